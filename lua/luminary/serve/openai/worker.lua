--- Answers the requests of a serve.OpenAI on its worker thread, which has the model.
local core = require "luminary.core"
local answers = require "luminary.serve.openai.answers"
local Chat = require "luminary.models.chat"
local Executor = require "luminary.mp.executor"
local lists = require "luminary.base.lists"
local Metrics = require "luminary.serve.openai.metrics"
local options = require "luminary.base.options"
local printable_name = require "luminary.base.printable_name"
local requests = require "luminary.serve.openai.requests"
local serve = require "luminary.serve"

local JSON = "application/json"

-- Returns the model of a server and what answers requests.
local function make_api(setup)
  local chat, o = Chat(setup.source, setup.model), lists.copy(setup.engine)
  o.num_workers = 0
  local engine = serve.Engine(chat.net, o)
  return {
    chat = chat, engine = engine, name = setup.name, created = os.time(), count = 0, open = 0, metrics = Metrics(),
    capacity = math.min(chat.capacity + 1, engine.room),
    embedder = serve.Batcher(answers.embedder(chat.net), {
      collate_fn = function(calls) return calls end, results = "list", max_wait_ms = 0.01, threads = setup.threads,
    }),
  }
end

-- ---- functions (api, body, reply) of paths and methods

local function generation(kind, prefix)
  return function(api, body, reply)
    local call = requests.generation(api, kind, body)
    api.count = api.count + 1
    call.id, call.created, call.model = ("%s-%x-%d"):format(prefix, api.created, api.count), os.time(), api.name
    answers.generation(api, call, reply)
  end
end

local function sends(value)
  return function(api, _, reply)
    reply.send(200, JSON, answers.json(value(api)))
    reply.finish()
  end
end

local function model_of(api)
  return {id = api.name, object = "model", created = api.created, owned_by = "luminary"}
end

local routes = {
  ["/v1/chat/completions"] = {POST = generation("chat", "chatcmpl")},
  ["/v1/completions"] = {POST = generation("completion", "cmpl")},
  ["/v1/embeddings"] = {POST = function(api, body, reply)
    local texts, is_base64 = requests.embedding(api, body)
    answers.embedding(api, texts, is_base64, reply)
  end},
  ["/v1/models"] = {GET = sends(function(api) return {object = "list", data = {model_of(api)}} end)},
  ["/v1/models/NAME"] = {GET = sends(model_of)},
  ["/health"] = {GET = sends(function() return {status = "ok"} end)},
  ["/metrics"] = {GET = function(api, _, reply)
    reply.send(200, "text/plain; version=0.0.4", api.metrics:text {luminary_memory_bytes = core.memory_allocated(),
      luminary_requests_open = api.open - 1, luminary_conversations_open = api.engine.executor.open})
    reply.finish()
  end},
}

-- Returns the error for a client of what a function raised.
local function problem_of(problem)
  if type(problem) == "table" then return problem end
  local text = options.without_position(problem):match("^[^\n]*"):gsub("^[%w.:_]+: ", "")
  if text:find("which is the limit", 1, true) then return {status = 503, message = "the server is busy; try again"} end
  return {status = text:find "attempt to" and 500 or 400, message = printable_name(text, 500)}
end

-- Begins the answer to a task, and returns its reply.
local function answer(api, task)
  local request, reply = task.args[1], {}
  local path = request.path == "/v1/models/" .. api.name and "/v1/models/NAME" or request.path
  local methods = routes[path]
  function reply.add(text)
    if not reply.is_over then Executor.answer_part(task, text) end
  end
  function reply.send(status, kind, text)
    if reply.is_over then return end
    api.metrics:add(('luminary_requests_total{path="%s",status="%d"}'):format(methods and path or "other", status))
    Executor.answer_part(task, {status = status, kind = kind, text = text})
  end
  function reply.finish()
    if reply.is_over then return end
    reply.is_over, api.open = true, api.open - 1
    Executor.answer(task, {values = {n = 0}})
  end
  api.open = api.open + 1
  local ok, problem = pcall(function()
    local run = (methods or {})[request.method]
    if run then return run(api, request.body, reply) end
    error({status = methods and 405 or 404, message = "Unknown request URL: " .. request.method .. " " .. path}, 0)
  end)
  if ok then return reply end
  problem = problem_of(problem)
  reply.send(problem.status, JSON, answers.error(problem))
  reply.finish()
  return reply
end

-- Answers requests until there are no more.
return function(index, setup)
  local api, replies, begun = make_api(setup), {}, setup.begun[index + 1]
  while true do
    local task = Executor.next_task(api.engine.executor.open > 0 and 0 or api.open > 0 and 0.001 or nil)
    if task == nil then return end
    if task and (task.problem or not Executor.begin(task, begun)) then
      Executor.answer(task, {problem = task.problem})
    elseif task then
      replies[task] = answer(api, task)
    else
      for of, reply in pairs(replies) do
        if reply.is_over then
          replies[of] = nil
        elseif reply.cancel and Executor.is_canceled(of) then
          reply.cancel()
        end
      end
      Executor.poll(0)
    end
  end
end

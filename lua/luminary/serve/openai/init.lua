--- serve.OpenAI: Answers requests of OpenAI's API with a language model, for any HTTP server.
local class = require "luminary.base.class"
local load_module = require "luminary.base.load_module"
local options = require "luminary.base.options"
local signature = require "luminary.base.signature"
local Executor = require "luminary.mp.executor"

local MOST_UNREAD = 2 ^ 20 -- bytes of a stream that wait for a slow client; one with more is canceled

local function serve(index, setup) load_module "luminary.serve.openai.worker"(index, setup) end

local reply_of = setmetatable({}, {__mode = "k"}) -- replies of open requests by future

local Reply = class.root "Reply"

-- Makes a reply an error.
local function refuse(reply, status, message)
  reply.status, reply.kind, reply.is_over = status, "application/json", true
  reply.parts = {load_module("luminary.serve.openai.answers").error {status = status, message = message}}
end

-- Adds a part of an answer, and calls on_change.
local function receive(reply, part)
  if reply.is_cut then return end
  if type(part) == "table" then reply.status, reply.kind, part = part.status, part.kind, part.text end
  reply.parts[#reply.parts + 1], reply.unread = part, reply.unread + #part
  if reply.unread > MOST_UNREAD and reply.kind == "text/event-stream" then
    local why = load_module("luminary.serve.openai.answers").error {
      status = 503, message = "the answer ends here: the client does not read it",
    }
    reply.parts[#reply.parts + 1], reply.is_cut = ("data: %s\n\n"):format(why), true
    reply:cancel()
  end
  reply.on_change()
end

local function ended(future, outcome)
  local reply, problem = reply_of[future], outcome.problem
  reply_of[future] = nil
  if reply then
    if not reply.status then refuse(reply, 500, problem and problem.message or "the request was canceled") end
    reply.is_over, reply.problem = true, problem
    reply.on_change()
  end
end

--- Returns the text of the answer that has come since the last call, or nil at its end.
function Reply:read()
  local text = table.concat(self.parts)
  self.parts, self.unread = {}, 0
  return (text ~= "" or not self.is_over) and text or nil
end

--- Ends the answer, as for a client that has closed its connection.
function Reply:cancel()
  if self.future and not self.is_over then self.future:cancel() end
end

local OpenAI = class.define "OpenAI"

--- serve.OpenAI(source [, {name, tokenizer, template, dtype, device, engine, threads, max_queue = 128, max_body =
--- 2^20}]): Makes a server of OpenAI's API without a network of its own, which HTTP servers pass requests: `luminary
--- serve`, examples/hosts/nginx. A worker thread of its own has the model. source, tokenizer, template, dtype, device:
--- of lm.chat. name: of the model in requests, by default the path's last part. engine: a table of options of
--- serve.Engine. threads: compute threads of the worker. max_queue: most open requests. max_body: most bytes of one.
OpenAI.init = signature.of([[OpenAI(source, {name: string, tokenizer, template: table, dtype = "auto", device,
  engine: table, threads: count, max_queue: integer(1, 100000) = 128, max_body: count = 1048576})]],
  function(self, source, o)
    self.max_body = o.max_body
    self.name = o.name or type(source) == "string" and source:match "([^/]+)/*$" or "model"
    local model = {tokenizer = o.tokenizer, template = o.template, dtype = o.dtype, device = o.device}
    self.executor = Executor {
      who = "OpenAI", workers = 1, threads = o.threads, max_queue = o.max_queue, serve = serve, unordered = true,
      on_end = ended, setup = {
        source = source, model = model, name = self.name, engine = o.engine or {}, threads = o.threads,
      },
    }
  end)

local fields = {method = {"string", ""}, path = {"string", ""}, body = {"string", ""}, length = {"number", 0},
  on_change = {"callable", function() end}}

--- server:request {method, path, body = "", length, on_change}: Begins to answer a request. Returns a reply:
--- reply.status is nil until the answer begins, then reply.kind is its Content-Type; reply:read() returns its text
--- since the last call, nil at the end; reply:cancel() ends it. on_change() is called, in lm.poll(), when there is
--- more. length: of the body, which need not be read if it is more than max_body.
function OpenAI:request(request)
  local o, reply = options.check("OpenAI:request", request, fields), Reply()
  reply.parts, reply.unread, reply.on_change = {}, 0, o.on_change
  local call = {method = o.method, path = o.path:match "^[^?]*", body = o.body}
  if math.max(#call.body, o.length) > self.max_body then
    refuse(reply, 413, ("the body must have at most %d bytes"):format(self.max_body))
    return reply
  end
  local ok, future = pcall(self.executor.submit, self.executor, "OpenAI:request", nil, {call}, 1)
  if not ok then
    refuse(reply, 503, "the server is busy; try again")
  else
    reply.future, reply_of[future] = future, reply
    future:on_part(function(part) receive(reply, part) end)
  end
  return reply
end

--- Waits until the model is loaded. Fails if it cannot be.
function OpenAI:check()
  local reply = self:request {method = "GET", path = "/health"}
  local ok, why = pcall(reply.future.get, reply.future)
  if not ok then options.fail("%s", options.without_position(why):gsub("^Future:get: ", "")) end
end

--- Waits for open answers, `seconds` at most (nil: no limit), ends the others with an error, and the worker.
function OpenAI:close(seconds) self.executor:close(seconds) end

return OpenAI

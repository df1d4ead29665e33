--- Generates the answers to requests of OpenAI's API, as JSON or as server-sent events.
local base64 = require "luminary.base.base64"
local core = require "luminary.core"
local cut_at = require "luminary.text.cut_at"
local ffi = require "ffi"
local json_encode = require "luminary.base.json_encode"
local lists = require "luminary.base.lists"
local ordered_json = require "luminary.base.ordered_json"
local streamer = require "luminary.text.streamer"
local tool_calls = require("luminary.models.chat").tool_calls
local NULL = require("luminary.text.jinja.values").NONE

local answers = {}

-- Texts before the calls of tools in an answer. One that begins with "{" may be a call, too.
local CALLS = {"<tool_call>", "[TOOL_CALLS]", "<|python_tag|>"}

--- Returns JSON text.
function answers.json(v) return ordered_json(v, nil, NULL) end

--- Returns the JSON text of an error {status, message, param, code}.
function answers.error(problem)
  return answers.json {error = {message = problem.message, param = problem.param or NULL, code = problem.code or NULL,
    type = problem.status < 500 and "invalid_request_error" or "server_error"}}
end

-- ---- chats and completions

-- Returns a choice's object: with the text and the calls of a complete answer, or of a part of a stream.
local function choice_of(call, index, text, calls, reason, is_part, role)
  local out = {index = index, finish_reason = reason or NULL, logprobs = NULL}
  if call.kind == "completion" then
    out.text = text or ""
    return out
  end
  local message = {content = not calls and text or not is_part and NULL or nil, role = role}
  message.tool_calls = calls and lists.map(calls, function(each, i)
    local f = each["function"]
    return {id = each.id, type = "function", index = is_part and i - 1 or nil,
      ["function"] = {name = f.name, arguments = json_encode(f.arguments)}}
  end)
  if not is_part then message.refusal = NULL end
  out[is_part and "delta" or "message"] = message
  return out
end

-- Returns the object of an answer, {choices, usage}, as text.
local function object_text(call, choices, usage)
  local object = call.kind == "completion" and "text_completion" or call.stream and "chat.completion.chunk"
    or "chat.completion"
  local out = {id = call.id, created = call.created, model = call.model, choices = choices, usage = usage,
    object = object}
  local text = ordered_json(out, not choices[1] and {} or nil, NULL) -- without choices, [] is the only empty table
  return call.stream and ("data: %s\n\n"):format(text) or text
end

-- Submits the conversation of a choice, {index}. write(text) gets its text. Sets choice.future and choice.finish().
local function begin(api, call, choice, ids, write)
  local o, stop, tools, last = lists.copy(call.options), {}, {}, core.time()
  local parts, count, has_end = {}, 0, false
  o.max_new_tokens = call.limit or api.capacity - #ids
  o.seed = o.seed and (o.seed + choice.index) % 2 ^ 53
  local function keep(text)
    parts[#parts + 1] = text
    write(text)
  end
  local to_tools = call.tools and cut_at(CALLS, tools, keep, true) or keep
  local to_stops = cut_at(call.stops, stop, to_tools)
  local text = streamer(function(list)
    return api.chat.tokenizer:decode(list, {skip_special_tokens = not call.tools})
  end, to_stops)
  function o.streamer(token)
    if not token then return text(nil) end
    local now = core.time()
    count, has_end = count + 1, call.ends[token]
    api.metrics:add "luminary_generated_tokens_total"
    api.metrics:observe(count == 1 and "luminary_time_to_first_token_seconds"
      or "luminary_time_between_tokens_seconds", now - last)
    last = now
    if not has_end then text(token) end
  end
  choice.future = api.engine:submit(ids, o)
  -- Passes the rest of the answer; returns its text, its calls of tools or nil, the reason of its end, and its tokens.
  function choice.finish()
    to_stops(nil)
    if call.tools then to_tools(nil) end
    local calls = tools.rest and tool_calls(tools.rest) or nil
    if tools.rest and not calls then keep(tools.rest) end
    local is_long = count == o.max_new_tokens and not has_end and not stop.rest
    return table.concat(parts), calls, is_long and "length" or calls and "tool_calls" or "stop", count
  end
end

--- Answers a chat or a completion. reply: {send(status, type, text), add(text), finish()}; sets reply.cancel.
function answers.generation(api, call, reply)
  local choices, done, open, failure = {}, {}, 0, nil
  local usage = {prompt_tokens = 0, completion_tokens = 0}
  local role = call.kind == "chat" and "assistant" or nil
  local function part(index, text, calls, reason, its_role)
    if call.stream then
      reply.add(object_text(call, {choice_of(call, index, text, calls, reason, true, its_role)}))
    end
  end
  local function finish()
    usage.total_tokens = usage.prompt_tokens + usage.completion_tokens
    if not call.stream and not failure then reply.send(200, "application/json", object_text(call, done, usage)) end
    local status = failure and failure:find(": constraint: ", 1, true) and 400 or 500 -- which was too ambiguous
    local problem = failure and answers.error {status = status, message = failure}
    if problem and not call.stream then reply.send(status, "application/json", problem) end
    if problem and call.stream then reply.add(("data: %s\n\n"):format(problem)) end
    if call.stream and call.include_usage then reply.add(object_text(call, {}, usage)) end
    if call.stream then reply.add "data: [DONE]\n\n" end
    reply.finish()
  end
  local function ended(choice, future)
    local problem = future:exception()
    failure = problem and not future:cancelled() and tostring(problem):match "^[^\n]*" or failure
    local text, calls, reason, count = choice.finish()
    usage.completion_tokens, open = usage.completion_tokens + count, open - 1
    done[choice.index + 1] = choice_of(call, choice.index, text, calls, reason, false, role)
    if calls then part(choice.index, nil, calls) end
    part(choice.index, nil, nil, reason)
    if open == 0 then finish() end
  end
  function reply.cancel()
    for _, choice in ipairs(choices) do choice.future:cancel() end
  end
  for i = 0, #call.prompts * call.n - 1 do
    local ids, choice = call.prompts[math.floor(i / call.n) + 1], {index = i}
    if i % call.n == 0 then usage.prompt_tokens = usage.prompt_tokens + #ids end
    local ok, problem = pcall(begin, api, call, choice, ids, function(text) part(i, text) end)
    if not ok then
      reply.cancel()
      error(problem, 0)
    end
    choices[i + 1], open = choice, open + 1
  end
  api.metrics:add("luminary_prompt_tokens_total", usage.prompt_tokens)
  if call.stream then reply.send(200, "text/event-stream", "") end
  for _, choice in ipairs(choices) do
    if role then part(choice.index, "", nil, nil, role) end
    choice.future:on_done(function(future) ended(choice, future) end)
  end
end

-- ---- embeddings

local MOST_TOKENS = 4096 -- limit of a forward of several texts, with padding

-- Returns the means of the last hidden states of texts, lists of ids, as float32 [N, D] of length 1.
local function means(net, texts, longest)
  local rows = lists.map(texts, function(ids)
    local row = lists.copy(ids)
    for k = #ids + 1, longest do row[k] = 1 end -- tokens do not attend to those after them
    return row
  end)
  local ids = core.tensor(rows, {dtype = "int64", device = net:embedding().device})
  local x = net(ids, {hidden_states = true}):float():cpu()
  local y = core.ops.stack(lists.map(texts, function(each, i) return x:select(1, i):narrow(1, 1, #each):mean(1) end))
  return y / y:norm(2, 2, {keepdim = true}):clamp(1e-12)
end

--- Returns a function of a list of requests, each a list of texts, that returns the list of their embeddings [N, D].
function answers.embedder(net)
  return function(calls)
    return lists.map(calls, function(texts)
      local parts, group, longest = {}, {}, 0
      for i, ids in ipairs(texts) do
        group[#group + 1], longest = ids, math.max(longest, #ids)
        local next_longest = texts[i + 1] and math.max(longest, #texts[i + 1])
        if not next_longest or (#group + 1) * next_longest > MOST_TOKENS then
          parts[#parts + 1] = core.no_grad(means, net, group, longest)
          group, longest = {}, 0
        end
      end
      return core.ops.cat(parts, 1)
    end)
  end
end

--- Answers a request of embeddings.
function answers.embedding(api, texts, is_base64, reply)
  local tokens = lists.sum(texts, function(ids) return #ids end)
  api.metrics:add("luminary_prompt_tokens_total", tokens)
  api.embedder:submit(texts):on_done(function(future)
    local problem = future:exception()
    if problem then
      reply.send(500, "application/json", answers.error {status = 500, message = tostring(problem):match "^[^\n]*"})
      return reply.finish()
    end
    local y = future:get()
    local width, first = 4 * y:size(2), ffi.cast("const char *", y:data_ptr())
    reply.send(200, "application/json", answers.json {object = "list", model = api.name,
      usage = {prompt_tokens = tokens, total_tokens = tokens}, data = lists.map(y:tolist(), function(list, i)
        return {object = "embedding", index = i - 1,
          embedding = is_base64 and base64.encode(ffi.string(first + (i - 1) * width, width)) or list}
      end)})
    reply.finish()
  end)
end

return answers

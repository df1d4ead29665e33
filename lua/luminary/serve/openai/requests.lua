--- Reads the bodies of requests of OpenAI's API as prompts and options of serve.Engine.
local constraint = require "luminary.text.constraint"
local core = require "luminary.core"
local generation_config = require "luminary.models.generation_config"
local json_encode = require "luminary.base.json_encode"
local lists = require "luminary.base.lists"
local options = require "luminary.base.options"
local ordered_json = require "luminary.base.ordered_json"
local printable_name = require "luminary.base.printable_name"
local NULL = require("luminary.text.jinja.values").NONE

local requests = {NULL = NULL}

local MOST_CHOICES, MOST_TEXTS, MOST_STOPS = 128, 2048, 16 -- limits of a request

-- Raises the error that a client gets.
local function refuse(param, code, format, ...)
  local status = code == "model_not_found" and 404 or 400
  error({status = status, param = param, code = code, message = printable_name(format:format(...), 500)}, 0)
end

-- ---- fields

local sampling = {
  model = {"string"}, stream = {"boolean"}, stream_options = {"table"}, n = {"integer(1, 16)", 1},
  seed = {"integer"}, temperature = {"finite(0, 2)"}, top_p = {"finite(0, 1)"}, top_k = {"integer"},
  min_p = {"probability"}, repetition_penalty = {"above(0)"}, max_tokens = {"count"}, max_completion_tokens = {"count"},
  stop = {"any"},
}
local specs = {
  chat = {messages = {"list"}, tools = {"list"}, tool_choice = {"any"}, response_format = {"table"},
    chat_template_kwargs = {"table"}},
  completion = {prompt = {"any"}},
  embedding = {model = {"string"}, input = {"any"}, encoding_format = {{"float", "base64"}}},
}
for _, kind in ipairs {"chat", "completion"} do
  for name, row in pairs(sampling) do specs[kind][name] = row end
end
-- JSON of the values that other fields may have; true for fields without an effect here.
local others = {
  frequency_penalty = "0", presence_penalty = "0", logprobs = "false", top_logprobs = "0", best_of = "1",
  echo = "false", suffix = '""', logit_bias = "{}", modalities = '["text"]', functions = "[]", dimensions = "",
  user = true, store = true, metadata = true, service_tier = true, parallel_tool_calls = true, verbosity = true,
  safety_identifier = true, prompt_cache_key = true, prompt_cache_retention = true, reasoning_effort = true,
}

-- Returns the fields of a body, checked, and the order of the keys of its objects. name: of the server's model.
local function read(text, kind, name)
  local order, given = {}, {}
  local body = core.json_decode(text, NULL, order)
  if not core.is_utf8_text(text) then refuse(nil, nil, "the body must be UTF-8") end
  if not order[body] then refuse(nil, nil, "the body must be a JSON object") end
  for key, v in lists.sorted_pairs(body) do
    if v == NULL or others[key] == true then
      v = nil
    elseif others[key] and ordered_json(v, order, NULL) ~= others[key] then
      refuse(key, "unsupported_parameter", "'%s' is not supported", key)
    end
    if not others[key] then given[key] = v end
  end
  local o = options.check("body", given, specs[kind])
  if o.model == nil then refuse("model", "missing_required_parameter", "you must provide a 'model' parameter") end
  if o.model ~= name then refuse("model", "model_not_found", "The model '%s' does not exist", o.model) end
  return o, order
end

-- ---- prompts

-- Returns the list of ids of a text, or of a list of the tokenizer's ids from 0.
local function ids_of(chat, name, v)
  if type(v) == "string" and v ~= "" then return chat.tokenizer(v).input_ids[1]:tolist() end
  if type(v) ~= "table" or #v == 0 then refuse(name, nil, "'%s' must have texts or token ids", name) end
  return lists.map(v, function(id)
    if type(id) ~= "number" or id % 1 ~= 0 or id < 0 or id >= chat.net.config.vocab_size then
      refuse(name, nil, "'%s' has an invalid token id", name)
    end
    return id + 1
  end)
end

-- Returns the lists of ids of a text, a list of texts, a list of ids or a list of these.
local function prompts_of(chat, name, v, most)
  if type(v) ~= "table" or type(v[1]) == "number" then return {ids_of(chat, name, v)} end
  if #v == 0 or #v > most then refuse(name, nil, "'%s' must have 1 to %d entries", name, most) end
  return lists.map(v, function(each) return ids_of(chat, name, each) end)
end

local roles = {"system", "developer", "user", "assistant", "tool", "function"} -- in OpenAI's API

-- Returns true if a chat template compares something with a role, such as LLaMA's "ipython".
local function is_compared(template, role)
  local quoted = "['\"]" .. role:gsub("%W", "%%%0") .. "['\"]"
  return template:find("[=!]=%s*" .. quoted) or template:find("in%s*[%[(][^%])]*" .. quoted)
end

-- Returns messages as JSON, with texts as contents and with decoded arguments of calls, as templates take them.
local function messages_of(messages, order, template)
  for i, message in ipairs(messages) do
    if not order[message] or type(message.role) ~= "string" then
      refuse("messages", nil, "messages[%d] must be an object with a role", i - 1)
    end
    local content, is_own = message.content, is_compared(template, message.role)
    if not is_own and not lists.index_of(roles, message.role) then
      refuse("messages", "invalid_value", "messages[%d] has the unknown role '%s'; known roles are '%s', and those "
        .. "that the model's template names", i - 1, message.role, table.concat(roles, "', '"))
    end
    if message.role == "developer" and not is_own then message.role = "system" end
    if type(content) == "table" and content ~= NULL and not order[content] then
      content = table.concat(lists.map(content, function(part)
        if type(part) ~= "table" then return "" end
        return type(part.text) == "string" and part.text
          or refuse("messages", nil, "a message's content must be text, got type '%s'", tostring(part.type))
      end), "\n")
      message.content = content
    end
    if content ~= nil and content ~= NULL and type(content) ~= "string" then
      refuse("messages", nil, "messages[%d].content must be a text", i - 1)
    end
    for _, call in ipairs(type(message.tool_calls) == "table" and message.tool_calls or {}) do
      local f = type(call) == "table" and call["function"]
      local ok, arguments = pcall(core.json_decode, type(f) == "table" and f.arguments, NULL, order)
      if ok then f.arguments = arguments end
    end
  end
  return ordered_json(messages, order, NULL)
end

-- Returns the JSON schema of an answer that calls one of `tools`; definitions in their parameters move to its root.
local function schema_of_calls(tools, order)
  local defs = {}
  local calls = lists.map(tools, function(tool)
    local parameters = tool["function"].parameters
    if not order[parameters] then parameters = {type = "object"} end
    for name, v in pairs(order[parameters["$defs"]] and parameters["$defs"] or {}) do defs[name] = v end
    return ('{"type":"object","properties":{"name":{"const":%s},"arguments":%s},"required":["name","arguments"],'
      .. '"additionalProperties":false}'):format(json_encode(tool["function"].name),
        ordered_json(parameters, order, NULL))
  end)
  order[defs] = lists.sorted_keys(defs)
  return ('{"anyOf":[%s],"$defs":%s}'):format(table.concat(calls, ","), ordered_json(defs, order, NULL))
end

-- Returns the tools of a request, or nil, and those of which one must be called.
local function tools_of(body, order)
  local tools, choice = body.tools, body.tool_choice
  for i, tool in ipairs(tools or {}) do
    local f = type(tool) == "table" and tool["function"]
    if not order[f] or type(f.name) ~= "string" then refuse("tools", nil, "tools[%d] must have a function", i - 1) end
  end
  if choice == nil or choice == "auto" or choice == "none" then return choice ~= "none" and tools or nil end
  local wanted = order[choice] and order[choice["function"]] and choice["function"].name
  local forced = lists.filter(tools or {}, function(tool)
    return choice == "required" or tool["function"].name == wanted
  end)
  if not forced[1] then refuse("tool_choice", nil, "'tool_choice' must be none, auto, required or one of 'tools'") end
  return tools, {json_schema = schema_of_calls(forced, order)}
end

-- Returns a constraint for a response_format.
local function constraint_of(format, order)
  if format == nil or format.type == "text" then return nil end
  if format.type == "json_object" then return {json = true} end
  local schema = order[format.json_schema] and format.json_schema.schema
  if format.type ~= "json_schema" or not order[schema] then
    refuse("response_format", nil, "'response_format' must have type text, json_object, or json_schema with a schema")
  end
  return {json_schema = ordered_json(schema, order, NULL)}
end

-- ---- requests

-- Returns the options of serve.Engine that choose tokens, from a body and the model's generation_config.json.
local function sampling_of(body, net)
  local o = {num_beams = 1, num_return_sequences = 1, seed = body.seed and body.seed % 2 ^ 53}
  if body.temperature == 0 or body.top_p == 0 then
    o.do_sample = false
    return o
  end
  for _, name in ipairs {"temperature", "top_p", "min_p", "repetition_penalty"} do o[name] = body[name] end
  if o.temperature or o.top_p or generation_config.of("OpenAI", net).do_sample == nil then o.do_sample = true end
  o.top_k = body.top_k and math.max(0, body.top_k)
  return o
end

--- Reads the body of a chat or completion: returns {kind, prompts = lists of ids, n, stream, include_usage, tools,
--- stops, ends, limit, options = those of serve.Engine}. api: {chat, name, capacity}.
function requests.generation(api, kind, text)
  local body, order = read(text, kind, api.name)
  local ends, stops = api.chat:ends()
  for _, each in ipairs(type(body.stop) == "table" and not order[body.stop] and body.stop or {body.stop}) do
    if type(each) ~= "string" or each == "" or #stops == MOST_STOPS then
      refuse("stop", nil, "'stop' must be a text or at most %d texts, none empty", MOST_STOPS)
    end
    stops[#stops + 1] = each
  end
  local o = sampling_of(body, api.chat.net)
  local call = {kind = kind, n = body.n, stream = body.stream, stops = stops, ends = lists.set(ends), options = o,
    include_usage = body.stream_options and body.stream_options.include_usage == true,
    limit = body.max_completion_tokens or body.max_tokens or kind == "completion" and 16}
  if kind == "completion" then
    call.prompts = prompts_of(api.chat, "prompt", body.prompt, MOST_CHOICES)
  else
    if #(body.messages or {}) == 0 then refuse("messages", nil, "'messages' must be a list of messages") end
    local tools, forced = tools_of(body, order)
    local settings = lists.copy(body.chat_template_kwargs or {})
    settings.add_generation_prompt, settings.tokenize = true, nil
    settings.tools = tools and ordered_json(tools, order, NULL)
    o.constraint, call.tools = forced or constraint_of(body.response_format, order), tools ~= nil
    if o.constraint then constraint.matcher("body", o.constraint) end -- for errors
    local messages = messages_of(body.messages, order, api.chat:template_text())
    call.prompts = {api.chat.tokenizer:apply_chat_template(messages, settings).input_ids[1]:tolist()}
  end
  o.eos_token_id, o.stop_strings, o.tokenizer = ends[1] and ends, stops[1] and stops, api.chat.tokenizer
  for _, ids in ipairs(call.prompts) do
    if #ids + (call.limit or 1) > api.capacity then
      refuse("messages", "context_length_exceeded", "This model's maximum context length is %d tokens, but the prompt "
        .. "has %d and %d more were requested", api.capacity, #ids, call.limit or 1)
    end
  end
  if #call.prompts * call.n > MOST_CHOICES then refuse("n", nil, "at most %d choices are supported", MOST_CHOICES) end
  return call
end

--- Reads the body of a request of embeddings: returns the lists of ids, and true if they are sent as base64.
function requests.embedding(api, text)
  local body = read(text, "embedding", api.name)
  local prompts = prompts_of(api.chat, "input", body.input, MOST_TEXTS)
  for _, ids in ipairs(prompts) do
    if #ids > api.chat.capacity then
      refuse("input", "context_length_exceeded", "This model's maximum context length is %d tokens, got %d",
        api.chat.capacity, #ids)
    end
  end
  return prompts, body.encoding_format == "base64"
end

return requests

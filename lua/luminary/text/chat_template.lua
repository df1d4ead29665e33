--- Renders chat templates as transformers does: converts messages, and runs the template within limits.
local core = require "luminary.core"
local lists = require "luminary.base.lists"
local options = require "luminary.base.options"
local printable_name = require "luminary.base.printable_name"
local operators = require "luminary.text.jinja.operators"
local parser = require "luminary.text.jinja.parser"
local values = require "luminary.text.jinja.values"

local fail, NONE = values.fail, values.NONE
local chat_template = {}

-- Limits: steps and bytes of a rendering, and both for each byte of the template and the messages; bytes of a template.
local STEPS, BYTES, STEPS_A_BYTE, BYTES_A_BYTE, LONGEST = 2 ^ 22, 2 ^ 22, 64, 256, 2 ^ 20
local MOST_LEVELS, MOST_RANGE = 64, 100000

-- ---- values of a script

-- Order of the keys of Lua's tables, which have none: as transformers and OpenAI write them, then others by name.
local rank = {}
for i, key in ipairs {
  "role", "content", "tool_calls", "id", "type", "function", "name", "description", "parameters", "arguments", "title",
  "text", "properties", "required", "return",
} do rank[key] = i end

local function before(a, b)
  local x, y = rank[a] or math.huge, rank[b] or math.huge
  if x ~= y then return x < y end
  return a < b
end

-- Returns a Lua value as a template's. order: lists of keys by table, of JSON. size: {bytes}, to which it adds.
local function converted(name, v, order, size, level)
  local t = type(v)
  size.bytes = size.bytes + 16
  if v == NONE or t == "userdata" and tostring(v):find "NULL" then return NONE end
  if t == "string" then
    if not core.is_utf8_text((v:gsub("%z", ""))) then options.fail("%s must be UTF-8", name) end
    size.bytes = size.bytes + #v
    return v
  end
  if t == "boolean" or t == "number" then return v end
  if t ~= "table" then options.must_be(name, "a value", "a string, number, boolean or table", v) end
  if level > MOST_LEVELS then options.fail("%s is nested more than %d deep, or contains itself", name, MOST_LEVELS) end
  local keys = order[v]
  if not keys and (v[1] ~= nil or order.json) then
    local out = {}
    for i, each in ipairs(v) do out[i] = converted(("%s[%d]"):format(name, i), each, order, size, level + 1) end
    local other = options.named_field(v)
    if other ~= nil then options.fail("%s is a list with the field '%s'", name, tostring(other)) end
    return values.list(out)
  end
  if not keys then
    keys = {}
    for key in pairs(v) do
      if type(key) ~= "string" then options.fail("%s: keys must be strings, got %s", name, options.describe(key)) end
      keys[#keys + 1] = key
    end
    table.sort(keys, before)
  end
  local out = values.dict()
  for _, key in ipairs(keys) do
    local inner = ("%s.%s"):format(name, printable_name(key, 60))
    size.bytes = size.bytes + #key
    values.put(out, converted(inner, key, order, size, level), converted(inner, v[key], order, size, level + 1))
  end
  return out
end

--- Returns a script's table, or JSON text, as a template's value.
function chat_template.value_of(name, v, size, is_json)
  if not is_json or type(v) ~= "string" then return converted(name, v, {}, size, 1) end
  local order = {json = true}
  local ok, decoded = pcall(core.json_decode, v, NONE, order)
  if not ok then options.fail("%s: %s", name, options.without_position(decoded):gsub("^json_decode: ", "")) end
  return converted(name, decoded, order, size, 1)
end

-- ---- functions of templates

local function dict_of(args, named)
  local out = values.dict()
  for _, key in ipairs(args[1] == nil and {} or values.items(args[1])) do
    values.put(out, key, operators.get_item(args[1], key))
  end
  for _, key in ipairs(lists.sorted_keys(named)) do values.put(out, key, named[key]) end
  return out
end

local functions = {
  dict = dict_of,
  namespace = function(args, named) return values.new("Namespace", dict_of(args, named)) end,
  range = function(args)
    for i = 1, args.n do args[i] = values.index(args[i], "an argument of range()") end
    local from, to, by = args[1] or fail "range() requires an argument", args[2], args[3] or 1
    if not to then from, to = 0, from end
    if by == 0 then fail "range() arg 3 must not be zero" end
    if (to - from) / by > MOST_RANGE then fail("range() of more than %d numbers", MOST_RANGE) end
    local out = {}
    for i = from, by > 0 and to - 1 or to + 1, by do out[#out + 1] = i end
    return values.list(out)
  end,
  raise_exception = function(args) return fail("%s", values.text(args[1] == nil and "" or args[1])) end,
  strftime_now = function(args)
    local now = os.time()
    local format = values.text(args[1] or ""):sub(1, 1000)
    return (format:gsub("%%[-_0^#]?[aAbBcdDeFgGhHIjmMnprRStTuUVwWxXyYzZ%%]", function(one)
      return os.date(one, now)
    end))
  end,
}
for name, f in pairs(functions) do functions[name] = values.func(f) end

-- ---- rendering

-- Returns a message as templates get it: without None, and with its reasoning under both of its names.
local function as_message(message)
  local out, reasoning = values.dict(), NONE
  for _, name in ipairs {"reasoning", "thinking", "reasoning_content"} do
    local v = values.at(message, name)
    if v ~= nil and v ~= NONE then reasoning = v end
  end
  if reasoning ~= NONE then values.put(out, "thinking", reasoning) end
  for _, key in ipairs(message.keys) do
    local v = values.at(message, key)
    if v ~= NONE then values.put(out, key, v) end
  end
  return reasoning ~= NONE and values.put(out, "reasoning_content", reasoning) or out
end

local compiled = {} -- the last template's text and function

-- Returns f's result; errors of the template become errors of the caller.
local function guarded(who, f, ...)
  local ok, result = pcall(f, ...)
  if ok then return result end
  local where = result
  if values.is_error(result) then
    where = result.message
  elseif type(result) == "string" and result:find "stack overflow" then
    where = "it is nested too deep"
  else
    error(result, 0)
  end
  local line = parser.line() and (", line %d"):format(parser.line()) or ""
  return options.fail("%s: template%s: %s", who, line, printable_name(where, 500))
end

-- Variables that may be JSON texts.
local may_be_json = {messages = true, tools = true, documents = true}

--- Returns the text of a template for variables, by name, which are plain Lua values.
function chat_template.render(who, source, variables)
  if #source > LONGEST then
    options.fail("%s: the template has %d bytes; at most %d are supported", who, #source, LONGEST)
  end
  local size, named = {bytes = #source}, {}
  values.begin(math.huge, math.huge)
  for name, v in pairs(variables) do
    named[name] = chat_template.value_of(("%s: %s"):format(who, printable_name(name, 60)), v, size, may_be_json[name])
  end
  local messages = named.messages
  if messages then
    if values.kind(messages) ~= "list" then options.fail("%s: messages must be a list", who) end
    for i, message in ipairs(messages) do
      if values.kind(message) ~= "dict" then
        options.fail("%s: messages[%d] must be a table with role and content", who, i)
      end
      messages[i] = as_message(message)
    end
  end
  values.begin(STEPS + STEPS_A_BYTE * size.bytes, BYTES + BYTES_A_BYTE * size.bytes)
  if compiled.source ~= source then
    compiled.body = guarded(who, parser.compile, source)
    compiled.source = source
  end
  return guarded(who, parser.run, compiled.body, functions, named)
end

-- Returns the text of a tokenizer's template. given: the option chat_template, a name or a text.
local function template_of(who, tokenizer, given, has_tools)
  local own = tokenizer.chat_template
  if type(own) == "table" then
    return own[given] or given or has_tools and own.tool_use or own.default
      or options.fail("%s: pass {chat_template = …}, one of %s", who, table.concat(lists.sorted_keys(own), ", "))
  end
  return given or own or options.fail("%s: the tokenizer has no chat_template; pass {chat_template = …}", who)
end

-- Options of transformers that are no variables, and what to do instead.
local lacking = {
  continue_final_message = "append the text that the answer begins with to the result",
  return_assistant_tokens_mask = "this version lacks it", sanitize_control_tokens = "this version lacks it",
  return_tensors = "the result has tensors", return_dict = "the result is a table",
  padding = "call tokenizer(text, {padding = true})", truncation = "call tokenizer(text, {truncation = true})",
  max_length = "call tokenizer(text, {max_length = n})",
}

--- Returns what tokenizer:apply_chat_template(messages, opts) returns.
function chat_template.apply(tokenizer, messages, opts)
  local who, named = "Tokenizer:apply_chat_template", {messages = messages}
  local o = opts == nil and {} or options.arg(who, "options", opts, "table")
  if o.chat_template ~= nil then options.arg(who, "chat_template", o.chat_template, "string") end
  local source = template_of(who, tokenizer, o.chat_template, o.tools)
  for role, token in pairs(tokenizer.special_tokens_map) do named[role] = token end
  for name, v in pairs(o) do
    if type(name) ~= "string" then options.fail("%s: options must have names", who) end
    if lacking[name] then options.fail("%s: the option %s is not supported; %s", who, name, lacking[name]) end
    named[name] = v
  end
  for _, name in ipairs {"add_generation_prompt", "tokenize"} do
    named[name] = options.arg(who, name, o[name] == nil and name == "tokenize" or o[name] or false, "boolean")
  end
  named.chat_template, named.tokenize = nil, nil
  for _, name in ipairs {"tools", "documents"} do
    if named[name] == nil then named[name] = NONE end
  end
  local text = chat_template.render(who, source, named)
  return o.tokenize == false and text or tokenizer(text, {add_special_tokens = false})
end

return chat_template

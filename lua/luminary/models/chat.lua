--- lm.chat: Holds a conversation with a language model, with its own chat template.
---   local chat = lm.chat "model.gguf" -- or a folder of Hugging Face's
---   print(chat:say "Hello")
---   chat:say("Tell me more.", {on_text = io.write}) -- as it is generated
local core = require "luminary.core"
local class = require "luminary.base.class"
local cut_at = require "luminary.text.cut_at"
local generate = require "luminary.models.generate"
local generation_options = require "luminary.models.generation_options"
local lists = require "luminary.base.lists"
local load_net = require "luminary.models.load_net"
local Module = require "luminary.nn.module"
local options = require "luminary.base.options"
local send_part = require("luminary.mp.executor").send_part
local text = require "luminary.text"

local fail = options.fail

--- lm.chat(source [, {tokenizer, system, tools, template, context, dtype = "auto", device, …}]): Constructs a
--- conversation. source: the path of a model's folder or GGUF file, or a net with tokenizer. Options: system, the first
--- message; tools, a list of JSON schemas of functions; template, a table of the template's variables; dtype and device
--- of a loaded model; context, the most positions that are used; those of generate, with max_new_tokens = 512.
--- chat.messages is the conversation, a list of {role, content}; scripts may change it.
local Chat = class.root("Chat")

local MOST_NEW = 512 -- most tokens of an answer by default, at most half of the model's positions

local own = lists.set {"system", "tools", "template", "tokenizer", "dtype", "device", "context"} -- not generate's

-- Texts that end a turn in published templates. Those in a template end its model's answers.
local turn_ends = {
  "<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end|>", "<end_of_turn>", "<|endoftext|>", "<|end_of_text|>", "</s>",
  "<|END_OF_TURN_TOKEN|>", "<|end_of_turn|>", "[|endofturn|]", "<｜end▁of▁sentence｜>", "<|return|>", "<|call|>",
}

function Chat:init(source, o)
  o = o == nil and {} or options.arg("chat", "options", o, "table")
  local is_path = type(source) == "string"
  if not is_path and not Module.is_module(source) then
    options.must_be("chat", "source", "a path of a model's folder or GGUF file, or a net", source)
  end
  self.net = is_path and load_net("chat", source, {dtype = o.dtype or "auto", device = o.device}) or source
  local given = o.tokenizer or is_path and text.Tokenizer(source) or fail "chat: a net requires {tokenizer = …}"
  if not class.has(given, "decode") then options.must_be("chat", "tokenizer", "a tokenizer of lm.text", given) end
  if given.base ~= 1 then fail "chat: the tokenizer's ids must begin at 1, got {base = 0}" end
  local context = o.context and options.arg("chat", "context", o.context, "count") or math.huge
  self.positions = (self.net.config or {}).max_positions or math.huge
  self.capacity = math.min(self.positions, context)
  self.tokenizer, self.tools, self.template, self.messages, self.past = given, o.tools, o.template or {}, {}, {}
  local new = math.min(MOST_NEW, math.max(1, math.floor(self.capacity / 2)))
  self.options = {max_new_tokens = new, num_beams = 1, num_return_sequences = 1}
  for name, v in pairs(o) do
    if not own[name] then self.options[name] = v end
  end
  local settings = lists.copy(self.options)
  settings.tokenizer = self.tokenizer
  generation_options.read("chat", self.net, settings) -- for errors
  if o.system ~= nil then self:add {role = "system", content = options.arg("chat", "system", o.system, "string")} end
end

--- Appends a message, {role, content}, such as the result of a tool. Returns the conversation.
function Chat:add(message)
  message = options.arg("Chat:add", "message", message, "table")
  if type(message.role) ~= "string" then options.must_be("Chat:add", "message.role", "a string", message.role) end
  self.messages[#self.messages + 1] = message
  return self
end

--- Removes all messages but the system's. Returns the conversation.
function Chat:reset()
  local first = self.messages[1]
  self.messages = {first and first.role == "system" and first or nil}
  return self
end

-- Returns the ids of the conversation and of the beginning of an answer, after removing the oldest turns that leave no
-- room for `new` tokens. A turn is a message of the user, and those up to the next one.
local function prompt(self, new)
  local settings = {add_generation_prompt = true, tools = self.tools}
  for name, v in pairs(options.arg("chat", "template", self.template, "table")) do settings[name] = v end
  while true do
    local ids = self.tokenizer:apply_chat_template(self.messages, settings).input_ids
    if ids.shape[2] + new <= self.capacity then return ids end
    local first = self.messages[1].role == "system" and 2 or 1
    local last = first + 1
    while self.messages[last] and self.messages[last].role ~= "user" do last = last + 1 end
    if not self.messages[last] then
      local limit, remedy = "the model's %d positions", "a smaller max_new_tokens"
      if self.capacity < self.positions then limit, remedy = "the context of %d positions", "a larger context" end
      fail("Chat:say: the last turn has %d tokens, which with %d new ones are more than " .. limit
        .. "; shorten it or pass %s", ids.shape[2], new, self.capacity, remedy)
    end
    for _ = first, last - 1 do table.remove(self.messages, first) end
  end
end

--- Returns the text of the tokenizer's chat templates.
function Chat:template_text()
  local template = self.tokenizer.chat_template or ""
  if type(template) == "string" then return template end
  return table.concat(lists.pick(template, lists.sorted_keys(template)))
end

--- Returns the ids that end an answer of a conversation's net, and strings that do where the vocabulary has no such
--- token.
function Chat:ends()
  local template, ids, strings = self:template_text(), {}, {}
  local given = self.net.eos_token_id
  for _, id in ipairs(type(given) == "table" and given or {given}) do ids[#ids + 1] = id end
  ids[#ids + 1] = self.tokenizer.eos_token_id
  for _, each in ipairs(turn_ends) do
    if template:find(each, 1, true) then
      local id = self.tokenizer:token_to_id(each)
      if id then ids[#ids + 1] = id else strings[#strings + 1] = each end
    end
  end
  return ids, strings
end

-- Returns the call in a decoded JSON value, {name, arguments or parameters}; nil for others.
local function call_of(v)
  local arguments = type(v) == "table" and (v.arguments or v.parameters or {})
  if type(arguments) == "string" then arguments = select(2, pcall(core.json_decode, arguments, false)) end
  if not arguments or type(v.name) ~= "string" or type(arguments) ~= "table" then return nil end
  local id = ("%09d"):format(math.random(0, 999999999))
  return {type = "function", id = id, ["function"] = {name = v.name, arguments = arguments}}
end

--- chat.tool_calls(answer): Returns the list of calls of functions in an answer, {type, id, ["function"] = {name,
--- arguments}}, in the forms of Qwen and Hermes, LLaMA and Mistral; nil if there is none.
function Chat.tool_calls(answer)
  local calls = {}
  local function read(json)
    local ok, v = pcall(core.json_decode, json, false)
    local list = ok and type(v) == "table" and (v[1] and v or {v}) or {}
    for _, one in ipairs(list) do calls[#calls + 1] = call_of(one) end
  end
  for json in answer:gmatch "<tool_call>%s*(.-)%s*</tool_call>" do read(json) end
  for name, json in answer:gmatch "%[TOOL_CALLS%]%s*([%w_.-]+)%[ARGS%]%s*(%b{})" do
    local ok, arguments = pcall(core.json_decode, json, false)
    calls[#calls + 1] = ok and call_of {name = name, arguments = arguments} or nil
  end
  read(answer:match "%[TOOL_CALLS%]%s*(%b[])" or answer:match "^%s*<|python_tag|>(%b{})"
    or answer:match "^%s*(%b{})%s*$" or "")
  return calls[1] and calls
end

-- Returns the ids of a text, the last that leave room for `new` tokens.
local function last_ids(self, before, new)
  local ids = self.tokenizer(before).input_ids
  if ids.shape[2] == 0 then fail "chat.answer: the text has no tokens" end
  local n = math.max(1, math.min(ids.shape[2], self.capacity - new))
  return ids:narrow(2, ids.shape[2] - n + 1, n)
end

-- Generates an answer to the conversation and appends it, or the continuation of the text `before`; returns what
-- Chat:say does.
local function answer(self, o, before)
  if #self.messages == 0 and not before then fail "Chat:say: there is no message" end
  local settings, tokenizer = {tokenizer = self.tokenizer}, self.tokenizer
  for _, from in ipairs {self.options, o == nil and {} or options.arg("Chat:say", "options", o, "table")} do
    for name, v in pairs(from) do settings[name] = v end
  end
  local ids = before and last_ids(self, before, settings.max_new_tokens) or prompt(self, settings.max_new_tokens)
  local ends, strings = self:ends()
  if settings.eos_token_id == nil and #ends > 0 then settings.eos_token_id = ends end
  strings = lists.append(strings, type(settings.stop_strings) == "table" and settings.stop_strings
    or {settings.stop_strings})
  settings.stop_strings = strings[1] and strings or nil
  local shown = settings.on_text and strings[1] and cut_at(strings, {}, settings.on_text)
  settings.on_text = shown or settings.on_text
  settings.past_key_values = settings.past_key_values or self.past
  local out = generate(self.net, ids:to(self.net:parameters()[1].device), settings)
  if shown then shown(nil) end
  local list = lists.slice(out[1]:totable(), ids.shape[2] + 1)
  local is_end = lists.set(ends)
  if is_end[list[#list]] then list[#list] = nil end
  local function decoded(skips)
    local said = tokenizer:decode(list, {skip_special_tokens = skips})
    for _, each in ipairs(strings) do said = said:sub(1, (said:find(each, 1, true) or 0) - 1) end
    return said
  end
  local said, calls = decoded(true), self.tools and Chat.tool_calls(decoded(false)) or nil
  if not before then self:add {role = "assistant", content = said, tool_calls = calls} end
  return said, calls
end

local latest = {} -- the conversation of Chat.answer, and `key`, the path and the options of its model

--- chat.answer(path, messages [, {…}]): For lm.async: returns the answer of a file's model to messages, a list of
--- {role, content}, or the continuation of a text, and sends its pieces to Future:on_part. Options: those of lm.chat.
--- The thread keeps the latest model, and the keys and values of the latest text.
function Chat.answer(path, messages, o)
  local of_model, settings = {}, {on_text = send_part}
  for name, v in pairs(options.arg("chat.answer", "options", o or {}, "table")) do
    (own[name] and of_model or settings)[name] = v
  end
  local key = ("%s\n%s\n%s\n%s"):format(path, of_model.dtype, of_model.device, of_model.context)
  if latest.key ~= key then latest = {key = key, chat = Chat(path, of_model)} end
  local chat, is_text = latest.chat, type(messages) == "string"
  chat.tools, chat.template = of_model.tools, of_model.template or {}
  chat.messages = is_text and {} or lists.copy(options.arg("chat.answer", "messages", messages, "table"))
  if of_model.system and not is_text and (chat.messages[1] or {}).role ~= "system" then
    table.insert(chat.messages, 1, {role = "system", content = of_model.system})
  end
  return answer(chat, settings, is_text and messages or nil)
end

--- Appends a message of the user, generates an answer and appends it; without a message it continues after chat:add.
--- Returns the answer's text, and the list of its calls of tools, or nil. Options are those of generate, such as
--- on_text or constraint, for this answer. The oldest turns are removed where the model's positions do not suffice.
--- After an error the message is removed.
function Chat:say(message, o)
  if message == nil then return answer(self, o) end
  local added = {role = "user", content = options.arg("Chat:say", "message", message, "string")}
  return options.restoring(function()
    if self.messages[#self.messages] == added then table.remove(self.messages) end
  end, answer, self:add(added), o)
end

return Chat

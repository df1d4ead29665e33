--- Reads special tokens from the files beside a tokenizer.json, and keeps them as fields of a tokenizer by their roles.
local core = require "luminary.core"
local json_encode = require "luminary.base.json_encode"
local lists = require "luminary.base.lists"
local files = require "luminary.text.vocabulary_files"
local options = require "luminary.base.options"
local fail = options.fail

local special = {}

--- The roles of special tokens.
special.roles = {"bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"}
--- transformers' model_max_length of a model without a limit.
special.NO_MAXIMUM = 1e30

local is_role = lists.set(special.roles)

-- ---- files

local function object_in(path)
  if core.file_kind(path) ~= "a regular file" then return {} end
  local ok, value = pcall(core.json_decode, files.read(path), false)
  if not ok then options.fail_in_file(path, (options.without_position(value):gsub("^json_decode: ", ""))) end
  if type(value) ~= "table" then options.fail_in_file(path, "expected a JSON object") end
  return value
end

local flags = {"single_word", "lstrip", "rstrip", "normalized", "special"}

-- Returns a file's token, a string or an object, as a table for add_tokens; nil for none.
local function token_of(path, name, value)
  if not value then return nil end
  local content = type(value) == "table" and value.content or value
  if type(content) ~= "string" or content == "" then options.fail_in_file(path, "%s must be a token", name) end
  local out = {content = content, special = true}
  for _, flag in ipairs(flags) do
    if type(value) == "table" and value[flag] ~= nil then out[flag] = value[flag] == true end
  end
  return out
end

-- Returns a file's chat_template, a text or a list of {name, template}, as a text or a table by name.
local function templates_of(path, value)
  if not value or type(value) == "string" then return value or nil end
  local out = {}
  for _, one in ipairs(type(value) == "table" and value or {false}) do
    if type(one) ~= "table" or type(one.name) ~= "string" or type(one.template) ~= "string" then
      options.fail_in_file(path, "chat_template must be a text or a list of {name, template}")
    end
    out[one.name] = one.template
  end
  return next(out) and out or nil
end

-- Returns a file's list of tokens, or transformers 4's table of names and tokens, as a list of tables for add_tokens.
local function tokens_of(path, name, value)
  local list, names = {}, {}
  if value and type(value) ~= "table" then options.fail_in_file(path, "%s must be a list of tokens", name) end
  for key in pairs(value or {}) do names[#names + 1] = key end
  local function numeric_key(key) return tonumber(tostring(key):match "^%d+$") or 1 / 0 end
  table.sort(names, function(a, b)
    if numeric_key(a) ~= numeric_key(b) then return numeric_key(a) < numeric_key(b) end
    return tostring(a) < tostring(b)
  end)
  for i, key in ipairs(names) do list[i] = token_of(path, ("%s[%s]"):format(name, tostring(key)), value[key]) end
  return list
end

local function side(path, config, name)
  local value = config[name]
  if not value then return nil end
  if value ~= "left" and value ~= "right" then options.fail_in_file(path, "%s must be 'left' or 'right'", name) end
  return value
end

--- Reads a folder's tokenizer_config.json, special_tokens_map.json (for missing roles) and chat_template.jinja. Returns
--- {path = the first's, tokens = by role, extra = list, added = list of all tokens, model_max_length, padding_side,
--- truncation_side, chat_template, add_bos_token, add_eos_token}.
function special.read(folder)
  local path, old = folder .. "/tokenizer_config.json", folder .. "/special_tokens_map.json"
  local config, map = object_in(path), object_in(old)
  local out = {path = path, tokens = {}, added = tokens_of(path, "added_tokens_decoder", config.added_tokens_decoder)}
  for _, role in ipairs(special.roles) do
    local token = token_of(path, role, config[role]) or config[role] == nil and token_of(old, role, map[role]) or nil
    out.tokens[role] = token and token.content
    out.added[#out.added + 1] = token
  end
  out.extra = tokens_of(path, "extra_special_tokens", config.extra_special_tokens or config.additional_special_tokens
    or map.extra_special_tokens or map.additional_special_tokens)
  for i, token in ipairs(out.extra) do
    out.added[#out.added + 1], out.extra[i] = token, token.content
  end
  local most = config.model_max_length or special.NO_MAXIMUM
  if type(most) ~= "number" or most < 1 or most % 1 ~= 0 then
    options.fail_in_file(path, "model_max_length must be an integer of at least 1")
  end
  out.model_max_length = most
  out.padding_side, out.truncation_side = side(path, config, "padding_side"), side(path, config, "truncation_side")
  out.chat_template = templates_of(path, config.chat_template)
  for _, flag in ipairs {"add_bos_token", "add_eos_token"} do
    if type(config[flag]) == "boolean" then out[flag] = config[flag] end
  end
  if core.file_kind(folder .. "/chat_template.jinja") == "a regular file" then
    out.chat_template = files.read(folder .. "/chat_template.jinja")
  end
  return out
end

--- Returns the text of a tokenizer_config.json for a tokenizer.
function special.config(t)
  local template = t.chat_template
  if type(template) == "table" then
    local names = lists.sorted_keys(template)
    template = lists.map(names, function(name) return {name = name, template = t.chat_template[name]} end)
  end
  local out = {
    tokenizer_class = "PreTrainedTokenizerFast", model_max_length = t.model_max_length, padding_side = t.padding_side,
    truncation_side = t.truncation_side, chat_template = template,
    extra_special_tokens = t.extra_special_tokens[1] and t.extra_special_tokens or nil,
  }
  for _, role in ipairs(special.roles) do out[role] = t[role] end
  return json_encode(out) .. "\n"
end

-- ---- fields of a tokenizer
--- Functions of a tokenizer, by field, that compute the field when it is read.
special.computed = {
  all_special_tokens = function(t)
    local list, seen = {}, {}
    local function add(token)
      if token and not seen[token] then list[#list + 1], seen[token] = token, true end
    end
    for _, role in ipairs(special.roles) do add(t[role]) end
    for _, token in ipairs(t.extra_special_tokens) do add(token) end
    return list
  end,
  all_special_ids = function(t) return t:convert_tokens_to_ids(t.all_special_tokens) end,
  special_tokens_map = function(t)
    local out = {}
    for _, role in ipairs(special.roles) do out[role] = t[role] end
    return out
  end,
}
for _, role in ipairs(special.roles) do
  special.computed[role .. "_id"] = function(t)
    local token = t[role]
    return token and t:token_to_id(token)
  end
end

--- Functions of a tokenizer and a value, by field, that set the field.
special.written = {}

--- Returns a tokenizer's field `key`: computed, if special.computed has it, else stored.
function special.get(tokenizer, key)
  local compute = special.computed[key]
  if compute then return compute(tokenizer) end
  return options.record(tokenizer).values[key]
end

--- Sets a field of a tokenizer; a special token must be in the vocabulary, or false for none.
function special.set(tokenizer, key, value)
  local values, role = options.record(tokenizer).values, is_role[key] and key or nil
  if special.written[key] then return special.written[key](tokenizer, value) end
  if not role and special.computed[key] then
    role = type(key) == "string" and key:match "^(.*)_id$"
    if not is_role[role] then fail("Tokenizer: %s cannot be set", key) end
    value = value and (tokenizer:id_to_token(value) or fail("Tokenizer: %s: no token has the id %d", key, value))
  end
  if not role then
    rawset(values, key, value)
    return
  end
  if value and not tokenizer:token_to_id(options.arg("Tokenizer", role, value, "string")) then
    fail("Tokenizer: %s: the vocabulary has no token '%s'; add it with tokenizer:add_special_tokens({%s = '%s'})", role,
      value, role, value)
  end
  rawset(values, role, value or nil)
end

--- Returns two values for {pad_token = "[PAD]", extra_special_tokens = {…}}: the list of tokens, and a
--- function(tokenizer) that sets their roles; nil for a table without roles.
function special.named(who, tokens)
  if type(tokens) ~= "table" or not options.is_plain(tokens) or type(next(tokens)) ~= "string" then return nil end
  local list, extra = {}, tokens.extra_special_tokens or tokens.additional_special_tokens
  for key in pairs(tokens) do
    if not is_role[key] and key ~= "extra_special_tokens" and key ~= "additional_special_tokens" then
      fail("%s: unknown special token '%s'; special tokens are %s, extra_special_tokens%s", who, tostring(key),
        table.concat(special.roles, ", "), key == "content" and "; a list of tokens is {{content = …}}" or "")
    end
  end
  for _, role in ipairs(special.roles) do list[#list + 1] = tokens[role] end
  lists.append(list, options.arg(who, "extra_special_tokens", extra or {}, "table"))
  return list, function(tokenizer)
    local function content(token) return type(token) == "table" and token.content or token end
    for _, role in ipairs(special.roles) do
      if tokens[role] then tokenizer[role] = content(tokens[role]) end
    end
    if extra then tokenizer.extra_special_tokens = lists.map(extra, content) end
  end
end

return special

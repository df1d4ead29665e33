--- Constraints of generated texts: JSON schemas, regular expressions and grammars, as masks over a tokenizer's tokens.
local core = require "luminary.core"
local json_encode = require "luminary.base.json_encode"
local options = require "luminary.base.options"
local chat_template = require "luminary.text.chat_template"
local json_schema = require "luminary.text.constraint.json_schema"
local logits_processors = require "luminary.models.logits_processors"
local matcher = require "luminary.text.constraint.matcher"
local model_files = require "luminary.text.model_files"
local notations = require "luminary.text.constraint.notations"
local rules = require "luminary.text.constraint.rules"
local values = require "luminary.text.jinja.values"

local constraint = {}

local trees = setmetatable({}, {__mode = "k"}) -- trees and texts of tokens by tokenizer

-- Returns a function that returns the bytes of a token of a tokenizer.
local function bytes_of(tokenizer)
  local decoder = json_encode(core.json_decode(tokenizer.json, false).decoder or {})
  if decoder:find "ByteLevel" then
    local bytes = {}
    for byte, letter in pairs(model_files.letters) do bytes[letter] = byte end
    return function(token) return (token:gsub("[%z\1-\127\194-\244][\128-\191]*", bytes)) end
  elseif decoder:find "WordPiece" then
    return function(token) return token:find "^##" and token:sub(3) or " " .. token end
  end
  return function(token)
    local hex = token:match "^<0x(%x%x)>$"
    return hex and string.char(tonumber(hex, 16)) or (token:gsub("▁", " "))
  end
end

local function tree_of(tokenizer)
  local found = trees[tokenizer]
  if found and found.n == #tokenizer then return found end
  local bytes, special, texts, n = bytes_of(tokenizer), {}, {}, #tokenizer
  for _, token in ipairs(core.json_decode(tokenizer.json, false).added_tokens or {}) do
    special[token.content] = token.special ~= false
  end
  for _, token in ipairs(tokenizer.added) do special[token.content] = token.special ~= false end
  for _, token in ipairs(tokenizer.all_special_tokens) do special[token] = true end
  for id = 1, n do
    local token = tokenizer:id_to_token(id - 1 + tokenizer.base)
    if token and special[token] == false then texts[id] = token end
    if token and special[token] == nil then texts[id] = bytes(token) end
  end
  found = {tree = matcher.tree(texts, n), texts = texts, n = n}
  trees[tokenizer] = found
  return found
end

-- Returns the compiled rules of {json = true}, {json_schema = …}, {regex = …} or {grammar = …}.
local function rules_of(who, o, fail)
  local key, v = next(o)
  if key == nil or next(o, key) ~= nil then
    options.fail("%s: constraint must have one of json, json_schema, regex, grammar", who)
  elseif key == "regex" then
    return {root = notations.regex(options.arg(who, "constraint.regex", v, "string"), fail)}
  elseif key == "grammar" then
    return notations.gbnf(options.arg(who, "constraint.grammar", v, "string"), fail)
  elseif key ~= "json" and key ~= "json_schema" then
    options.unknown(who .. ": constraint", key, {"grammar", "json", "json_schema", "regex"})
  end
  values.begin(math.huge, math.huge)
  local schema = key == "json" and values.put(values.dict(), "type", "object")
    or chat_template.value_of(who .. ": constraint.json_schema", v, {bytes = 0}, true)
  return json_schema(schema, fail)
end

local Constraint = {}
Constraint.__index = Constraint

--- Returns a matcher of a constraint's texts.
function constraint.matcher(who, o)
  local function fail(format, ...) options.fail("%s: constraint: " .. format, who, ...) end
  return matcher.new(rules.compile(rules_of(who, o, fail), "root", fail), fail)
end

--- Returns the constraint of n sequences, whose texts begin. o: the option constraint; tokenizer: a Tokenizer.
function constraint.new(who, o, tokenizer, n)
  local has, json = pcall(function() return tokenizer.json end)
  if not has or type(json) ~= "string" then
    options.fail("%s: constraint requires {tokenizer = …}, a tokenizer of lm.text", who)
  end
  local tokens, matched = tree_of(tokenizer), constraint.matcher(who, o)
  local self = setmetatable({tokens = tokens, matcher = matched, states = {}}, Constraint)
  for i = 1, n do self.states[i] = self.matcher.start end
  return self
end

--- Returns scores [N, V] with -inf for tokens that may not follow. ends: the set of tokens that end a text; done: rows
--- that ended.
function Constraint:restrict(scores, ends, done)
  local n, vocabulary = unpack(scores.shape)
  local list = {}
  for i = 1, n do
    list[i] = done[i] and core.ops.zeros({vocabulary}, {dtype = "bool"})
      or self.matcher:mask(self.tokens.tree, self.states[i], vocabulary, ends)
  end
  scores = scores:masked_fill(core.ops.stack(list):to(scores.device), -math.huge)
  for i, best in ipairs(scores:amax(2):totable()) do
    if best == -math.huge then logits_processors.none_left(i) end
  end
  return scores
end

--- Continues row i's text by a token. Returns true if no further text may follow.
function Constraint:advance(i, token)
  local state = self.matcher:after(self.states[i], self.tokens.texts[token] or "")
  self.states[i] = state or self.states[i]
  return self.states[i].ends
end

return constraint

--- Reads options of tokenizer(…), and pads and stacks encodings into batches.
local core = require "luminary.core"
local options = require "luminary.base.options"
local fail = options.fail

local padding = {}

local MOST = 2 ^ 22 -- largest length, in tokens, to which a file may pad
local sides = {Left = "left", Right = "right"}
local strategies = {LongestFirst = "longest_first", OnlyFirst = "only_first", OnlySecond = "only_second"}

--- Returns a file's truncation and padding (objects or nil) as options.
function padding.settings(path, truncation, pads)
  local out = {}
  local function is_count(v) return type(v) == "number" and v >= 0 and v % 1 == 0 and v < 2 ^ 53 end
  if truncation then
    local t = type(truncation) == "table" and truncation or {}
    if not is_count(t.max_length) then options.fail_in_file(path, "truncation has no max_length") end
    out.truncation, out.max_length = strategies[t.strategy] or "longest_first", t.max_length
    out.truncation_side = sides[t.direction] or "right"
  end
  if pads then
    local p = type(pads) == "table" and pads or {}
    local fixed = type(p.strategy) == "table" and p.strategy.Fixed
    if not is_count(p.pad_id) or fixed and not is_count(fixed) then
      options.fail_in_file(path, "padding has no pad_id")
    end
    for _, n in ipairs {fixed or 0, is_count(p.pad_to_multiple_of) and p.pad_to_multiple_of or 0} do
      if n > MOST then options.fail_in_file(path, "padding must be at most %d tokens, got %.0f", MOST, n) end
    end
    out.padding, out.pad_id, out.padding_side = fixed or true, p.pad_id, sides[p.direction] or "right"
    out.pad_to_multiple_of = is_count(p.pad_to_multiple_of) and p.pad_to_multiple_of > 0 and p.pad_to_multiple_of or nil
    out.pad_type_id = is_count(p.pad_type_id) and p.pad_type_id or 0
  end
  return out
end

local function one_of(more)
  return function(who, name, value)
    if type(value) == "boolean" then return value end
    return options.choice(who, name, value, more)
  end
end

local spec = {
  add_special_tokens = {"boolean", true}, truncation = {one_of {"longest_first", "only_first", "only_second"}},
  max_length = {"natural"}, truncation_side = {{"left", "right"}}, padding = {one_of {"longest", "max_length"}},
  pad_to_multiple_of = {"count"}, pad_token_id = {"integer"}, padding_side = {{"left", "right"}},
}
local LARGE = 1e20 -- least model_max_length that means no limit, as in transformers

--- Returns a call's options, with defaults of file and tokenizer. max_length alone truncates, as in transformers.
function padding.options(tokenizer, who, opts)
  local o, file = options.check(who, opts, spec, "padding"), tokenizer.settings
  local most = file.max_length or tokenizer.model_max_length
  if o.truncation == nil then o.truncation = file.truncation or o.max_length ~= nil and not o.padding end
  if o.max_length and not o.truncation and o.padding and o.padding ~= "max_length" then
    fail("%s: max_length requires truncation = true or padding = 'max_length'", who)
  end
  if o.truncation == true then o.truncation = "longest_first" end
  if o.padding == nil then o.padding = file.padding or false end
  if not o.max_length and type(most) == "number" and most < LARGE then o.max_length = most end
  if o.truncation and not o.max_length then fail("%s: truncation requires max_length", who) end
  if o.padding == "max_length" then
    o.padding = o.max_length or fail("%s: padding = 'max_length' requires max_length", who)
  end
  for _, name in ipairs {"padding_side", "truncation_side"} do
    o[name] = options.choice(who, name, o[name] or tokenizer[name], {"left", "right"})
  end
  o.pad_to_multiple_of = o.pad_to_multiple_of or file.pad_to_multiple_of or 1
  return o
end

--- Returns a string, or a list of strings, as a list, checked.
function padding.texts(who, name, texts)
  if type(texts) == "string" then return {texts} end
  if not options.is_plain(texts) then
    options.must_be(who, name, "a string or a list of strings", texts)
  end
  for i, text in ipairs(texts) do
    options.arg(who, ("%s[%d]"):format(name, i), text, "string")
  end
  if texts[1] == nil then fail("%s: %s must not be empty", who, name) end
  return texts
end

local function pad_id(tokenizer, who, o)
  local file = tokenizer.settings.pad_id
  local id = o.pad_token_id or tokenizer.pad_token_id or file and file + tokenizer.base
    or tokenizer:token_to_id "[PAD]" or tokenizer:token_to_id "<pad>"
  return id or fail(
    "%s: the tokenizer has no pad token; pass {pad_token_id = …}, set tokenizer.pad_token = tokenizer.eos_token, "
      .. "or call tokenizer:add_special_tokens({pad_token = '[PAD]'})", who)
end

-- Returns the length of padded rows, of which the longest has `longest` tokens; nil without padding.
local function length_of(o, longest)
  if not o.padding then return nil end
  local length = type(o.padding) == "number" and math.max(o.padding, longest) or longest
  return math.ceil(length / o.pad_to_multiple_of) * o.pad_to_multiple_of
end

--- Pads a list of tables that encode returns, in place. Returns the list.
function padding.encodings(tokenizer, who, list, o)
  local ops, int64, longest = core.ops, {dtype = "int64"}, 0
  for _, e in ipairs(list) do longest = math.max(longest, e.ids:numel()) end
  local length = length_of(o, longest) or 0
  for _, e in ipairs(list) do
    local more = length - e.ids:numel()
    local function pad(name, value)
      local fill = ops.full({more}, value, int64)
      e[name] = ops.cat(o.padding_side == "left" and {fill, e[name]} or {e[name], fill}, 1)
    end
    if more > 0 then
      pad("ids", pad_id(tokenizer, who, o))
      pad("type_ids", tokenizer.settings.pad_type_id or 0)
      pad("special_tokens_mask", 1)
      pad("attention_mask", 0)
      pad("word_ids", 0)
      local none = ops.zeros({more, 2}, int64)
      none:select(2, 1):fill_(1)
      e.offsets = ops.cat(o.padding_side == "left" and {none, e.offsets} or {e.offsets, none}, 1)
    end
  end
  return list
end

--- Returns rows of ids and of type ids as the tensors [N, L] of a batch.
function padding.batch(tokenizer, who, ids, types, o)
  local ops, longest, shortest = core.ops, 0, 1 / 0
  for _, row in ipairs(ids) do
    longest, shortest = math.max(longest, row:numel()), math.min(shortest, row:numel())
  end
  local length = length_of(o, longest) or longest
  if not o.padding and shortest < longest then
    fail("%s: texts of %d to %d tokens do not form a tensor; pass {padding = true}", who, shortest, longest)
  end
  if shortest == length then
    local input_ids, type_ids = ops.stack(ids), ops.stack(types) + tokenizer.base
    return {input_ids = input_ids, attention_mask = ops.ones_like(input_ids), token_type_ids = type_ids}
  end
  local int64, size = {dtype = "int64"}, {#ids, length}
  local out = {
    input_ids = ops.full(size, pad_id(tokenizer, who, o), int64), attention_mask = ops.zeros(size, int64),
    token_type_ids = ops.full(size, tokenizer.settings.pad_type_id or 0, int64),
  }
  for i, row in ipairs(ids) do
    local n = row:numel()
    if n > 0 then
      local from = o.padding_side == "left" and length - n + 1 or 1
      out.input_ids:select(1, i):narrow(1, from, n):copy_(row)
      out.token_type_ids:select(1, i):narrow(1, from, n):copy_(types[i])
      out.attention_mask:select(1, i):narrow(1, from, n):fill_(1)
    end
  end
  out.token_type_ids:add_(tokenizer.base)
  return out
end

return padding

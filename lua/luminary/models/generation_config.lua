--- Reads the options of net:generate in a folder's generation_config.json, as transformers do.
local core = require "luminary.core"
local json_encode = require "luminary.base.json_encode"
local lists = require "luminary.base.lists"
local options = require "luminary.base.options"
local printable_name = require "luminary.base.printable_name"

local generation_config = {}

-- Returns a list of lists of tokens, checked.
local function bad_words(who, name, value)
  local good = options.is_plain(value) and #value > 0 and not options.named_field(value)
  for _, word in ipairs(good and value or {}) do
    good = good and options.is_plain(word) and #word > 0 and not options.named_field(word)
    for _, token in ipairs(good and word or {}) do good = good and options.is("count", token) end
  end
  if not good then
    options.must_be(who, name, "a list of lists of token ids, such as {{3}, {4, 5}}", value)
  end
  return value
end

local function early_stopping(who, name, value)
  if type(value) == "boolean" or value == "never" then return value end
  options.must_be(who, name, "true, false or 'never'", value)
end

--- Options of generate that a generation_config.json may set. Only a file has max_length and min_length, which count
--- the prompt, too.
generation_config.options = {
  max_new_tokens = {"count", 20}, min_new_tokens = {"natural", 0}, temperature = {"positive", 1},
  top_k = {"natural", 0}, top_p = {"probability", 1}, min_p = {"probability", 0}, repetition_penalty = {"above(0)", 1},
  no_repeat_ngram_size = {"natural", 0}, do_sample = {"boolean"}, num_beams = {"count", 1},
  num_return_sequences = {"count", 1}, length_penalty = {"finite", 1}, early_stopping = {early_stopping, false},
  bad_words_ids = {bad_words}, eos_token_id = {"any"}, pad_token_id = {"count", nil, true}, stop_strings = {"any"},
  use_cache = {"boolean", true},
}
local lengths = {max_length = {"count"}, min_length = {"natural"}}

-- Unsupported fields that change a decoder's tokens, in the order of transformers' documentation.
local lacking = {
  "max_time", "num_beam_groups", "diversity_penalty", "penalty_alpha", "typical_p", "epsilon_cutoff", "eta_cutoff",
  "top_h", "force_words_ids", "constraints", "renormalize_logits", "forced_bos_token_id",
  "forced_eos_token_id", "exponential_decay_length_penalty", "suppress_tokens", "begin_suppress_tokens",
  "sequence_bias", "token_healing", "guidance_scale", "watermarking_config",
}

-- Returns true for a value with which an unsupported field (`lacking`) changes no tokens.
local function is_neutral(value)
  return value == nil or value == false or value == 0 or value == 1 or type(value) == "table" and next(value) == nil
end

--- Converts a token id from 0, or a list of them, to ids from 1. Returns nil for other values and for -1 (none).
local function from_1(id)
  if type(id) == "number" then return id >= 0 and id + 1 or nil end
  if type(id) ~= "table" then return nil end
  return lists.map(id, function(each) return from_1(each) end)
end

--- Returns the text of a JSON file's value for messages.
function generation_config.shown(value)
  local ok, text = pcall(json_encode, value)
  return printable_name(type(value) == "table" and ok and text or tostring(value), 100)
end

--- Returns the value of a file's field `name`, a token id or a list of them, as ids from 1; nil for none.
function generation_config.tokens(who, path, name, value)
  local good = value == nil or type(value) == "number"
  if type(value) == "table" then
    good = value[1] ~= nil or next(value) == nil
    for _, each in ipairs(value) do good = good and type(each) == "number" end
  end
  if not good then
    options.fail("%s: '%s': %s must be a token id or a list of them, got %s", who, path, name,
      generation_config.shown(value))
  end
  return from_1(value)
end

--- Returns the options in a file, checked, with token ids from 1. json: its object. do_sample without top_k sets top_k
--- to 50, transformers' default.
function generation_config.read(who, path, json)
  local out, left_out = {}, {}
  for _, name in ipairs(lacking) do
    if not is_neutral(json[name]) then left_out[#left_out + 1] = name end
  end
  local function take_values(rows)
    for name, row in pairs(rows) do
      local value = json[name]
      if name:find "_token_id$" then
        out[name] = generation_config.tokens(who, path, name, value)
      elseif value ~= nil then
        if name == "bad_words_ids" then value = from_1(value) end
        out[name] = options.arg(("%s: %s"):format(who, path), name, value, row[1])
      end
    end
  end
  take_values(generation_config.options)
  take_values(lengths)
  if out.do_sample and out.top_k == nil then out.top_k = 50 end
  if #left_out > 0 then
    core.warn(("%s: %s: this version lacks %s, left out"):format(who, path, table.concat(left_out, ", ")))
  end
  return out
end

--- Returns the options in net.generation_config, checked; {} if it is nil.
function generation_config.of(who, net)
  local config, out = type(net) ~= "function" and net.generation_config or nil, {}
  for name, value in pairs(config and options.arg(who, "net.generation_config", config, "table") or {}) do
    local row = generation_config.options[name] or lengths[name]
    if not row then
      options.unknown(who .. ": net.generation_config", name, options.sorted_keys(generation_config.options))
    end
    out[name] = options.arg(who, "net.generation_config." .. name, value, row[1])
  end
  return out
end

--- Sets max_new_tokens and min_new_tokens of o, the options of a call. given: the call's own; from_file: what `of`
--- returned; l: the length of ids; capacity: the largest number of tokens of the net.
function generation_config.resolve_lengths(who, o, given, from_file, l, capacity)
  if given.max_new_tokens == nil then
    local both = from_file.max_new_tokens == nil and from_file.max_length
    if both and l >= both then
      options.fail("%s: ids have %d tokens, but net.generation_config.max_length is %d in total; pass "
        .. "{max_new_tokens = n}", who, l, both)
    end
    if both then o.max_new_tokens = math.max(1, math.min(both - l, capacity + 1 - l)) end
  end
  if given.min_new_tokens == nil and from_file.min_new_tokens == nil and from_file.min_length then
    o.min_new_tokens = math.max(0, from_file.min_length - l)
  end
end

return generation_config

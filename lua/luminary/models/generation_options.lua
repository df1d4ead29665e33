--- Reads the options of generate and of serve.Engine, and finds the ends of texts.
local lists = require "luminary.base.lists"
local options = require "luminary.base.options"
local generation_config = require "luminary.models.generation_config"

local fail = options.fail
local generation_options = {}

-- ---- texts of tokens, by tokenizer:decode(list of ids)

--- Returns the text of a list of token ids.
function generation_options.text_of(tokenizer, tokens)
  local text = tokenizer:decode(tokens)
  if type(text) ~= "string" then
    options.must_be("generate", "the result of tokenizer:decode(ids)", "a string", text)
  end
  return text
end

-- Returns true if the last token of a list completes one of `strings` or extends beyond its end, as transformers'
-- stop_strings.
local function stops(tokenizer, strings, tokens)
  local longest = 0
  for _, each in ipairs(strings) do longest = math.max(longest, #each) end
  local first = math.max(1, #tokens - longest) -- a token has at least one byte
  local text = generation_options.text_of(tokenizer, lists.slice(tokens, first))
  local before = generation_options.text_of(tokenizer, lists.slice(tokens, first, #tokens - 1))
  local same = 0 -- bytes of `text` that `before` has; the bytes of a character cut in two may change
  while same < #before and before:byte(same + 1) == text:byte(same + 1) do same = same + 1 end
  for _, each in ipairs(strings) do
    if text:find(each, math.max(1, same + 2 - #each), true) then return true end
  end
  return false
end

-- ---- options

local spec = {
  tokenizer = {"any"}, attention_mask = {"tensor"}, streamer = {"callable"}, on_text = {"callable"},
  generator = {"generator"}, constraint = {"table"}, past_key_values = {"table"},
}
for name, row in pairs(generation_config.options) do spec[name] = row end

-- Returns v, a value or a list, as a list whose entries are checked.
local function list_of(who, name, v, kind)
  local field = options.is_plain(v) and options.named_field(v)
  if field then
    fail("%s: %s must be one value or a list, got a table with the field '%s'", who, name, tostring(field))
  end
  local list = options.is_plain(v) and v or {v}
  for _, each in ipairs(list) do options.arg(who, name, each, kind) end
  return list
end

--- Returns the options of a call, checked, with defaults of net. It adds given, the call's own; from_file, the net's;
--- ends, the set of eos_token_id; fill, the token after ends; and is_end(tokens), true if a list's last token ends it.
function generation_options.read(who, net, opts)
  local o = options.check(who, opts, spec, "max_new_tokens")
  o.given, o.from_file = options.is_plain(opts) and opts or {}, generation_config.of(who, net)
  for name, value in pairs(o.from_file) do
    if o.given[name] == nil then o[name] = value end
  end
  for _, name in ipairs {"temperature", "top_k", "top_p", "min_p"} do
    if o.given.do_sample == nil and o.given[name] then o.do_sample = true end
  end
  if o.do_sample and o.temperature == 0 then o.do_sample = false end
  o.ends = {}
  local ends = o.eos_token_id
  if ends == nil and type(net) ~= "function" then ends = net.eos_token_id end
  o.eos_token_id = o.eos_token_id or nil
  for i, token in ipairs(list_of(who, "eos_token_id", ends or {}, "count")) do
    o.ends[token], o.fill = true, i == 1 and token or o.fill
  end
  o.fill = o.pad_token_id or o.fill
  local strings = list_of(who, "stop_strings", o.stop_strings, "string")
  for _, each in ipairs(strings) do
    if each == "" then fail("%s: stop_strings must not contain an empty string", who) end
  end
  if #strings > 0 or o.on_text then
    local ok, decode = pcall(function() return o.tokenizer.decode end)
    if not ok or not options.is("callable", decode) then
      fail("%s: %s requires {tokenizer = …}, an object with :decode(ids), got %s", who,
        o.on_text and "on_text" or "stop_strings", options.describe(o.tokenizer))
    end
  end
  -- Checks tokens against the vocabulary, except net.eos_token_id, which may be beyond it.
  function o.check_vocabulary(n)
    local from_file = {pad_token_id = o.pad_token_id or nil}
    for _, token in ipairs(list_of(who, "eos_token_id", o.eos_token_id, "count")) do
      from_file.eos_token_id = math.max(token, from_file.eos_token_id or 0)
    end
    for _, word in ipairs(o.bad_words_ids or {}) do
      for _, token in ipairs(word) do
        if token > n then options.must_be(who, "a token of bad_words_ids", "from 1 to " .. n, token) end
      end
    end
    for name, token in pairs(from_file) do
      if token > n then options.must_be(who, name, "from 1 to " .. n, token) end
    end
  end
  function o.is_end(tokens)
    return o.ends[tokens[#tokens]] or #strings > 0 and stops(o.tokenizer, strings, tokens) or false
  end
  return o
end

return generation_options

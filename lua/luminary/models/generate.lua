--- Tokens one after the other from a model of language.
local core = require "luminary.core"
local options = require "luminary.base.options"
local Module = require "luminary.nn.module"
local beam_search = require "luminary.models.beam_search"
local generated_text = require "luminary.models.generated_text"
local token_scores = require "luminary.models.token_scores"

local ops, fail = core.ops, options.fail

local spec = {
  max_new_tokens = {"count", 20}, min_new_tokens = {"natural", 0}, temperature = {"positive", 1},
  top_k = {"natural", 0}, top_p = {"probability", 1}, min_p = {"probability", 0}, repetition_penalty = {"positive", 1},
  no_repeat_ngram_size = {"natural", 0}, do_sample = {"boolean"}, num_beams = {"count", 1},
  num_return_sequences = {"count", 1}, length_penalty = {"number", 1}, early_stopping = {"boolean", false},
  eos_token_id = {"any"}, pad_token_id = {"count"}, stop_strings = {"any"}, tokenizer = {"any"},
  use_cache = {"boolean", true}, streamer = {"callable"}, on_text = {"callable"}, generator = {"generator"},
}

-- A list, of one thing or of a list.
local function list_of(who, name, v, kind)
  local list = options.is_plain(v) and v or {v}
  for _, each in ipairs(list) do options.arg(who, name, each, kind) end
  return list
end

-- Options of a call, checked; `ends`: the set of eos_token_id; `is_end(tokens)`: whether the last of a list ends it.
local function read_options(who, net, opts)
  local o = options.check(who, opts, spec, "max_new_tokens")
  for _, name in ipairs {"temperature", "top_k", "top_p", "min_p"} do
    if o.do_sample == nil and opts and opts[name] then o.do_sample = true end
  end
  if o.do_sample and o.temperature == 0 then o.do_sample = false end
  o.ends = {}
  local ends = o.eos_token_id == nil and net.eos_token_id or o.eos_token_id
  for i, token in ipairs(list_of(who, "eos_token_id", ends, "count")) do
    o.ends[token], o.fill = true, i == 1 and token or o.fill
  end
  o.fill = o.pad_token_id or o.fill
  local strings = list_of(who, "stop_strings", o.stop_strings, "string")
  for _, each in ipairs(strings) do
    if each == "" then fail("%s: stop_strings has an empty string", who) end
  end
  if #strings > 0 or o.on_text then
    local ok, decode = pcall(function() return o.tokenizer.decode end)
    if not ok or not options.is("callable", decode) then
      fail("%s: %s wants {tokenizer = …} with tokenizer:decode(ids), got %s", who,
        o.on_text and "on_text" or "stop_strings", options.describe(o.tokenizer))
    end
  end
  function o.is_end(tokens)
    return o.ends[tokens[#tokens]] or #strings > 0 and generated_text.stops(o.tokenizer, strings, tokens) or false
  end
  return o
end

local function check_combination(who, o)
  local beams, results = o.num_beams, o.num_return_sequences
  if beams > 1 and (o.do_sample or o.streamer or o.on_text) then
    fail("%s: num_beams goes without do_sample (temperature, top_k, top_p, min_p), streamer and on_text", who)
  elseif beams == 1 and results > 1 and not o.do_sample then
    fail("%s: num_return_sequences %d wants do_sample or num_beams; the likeliest token is one", who, results)
  elseif beams > 1 and results > beams then
    fail("%s: num_return_sequences %d is more than num_beams %d", who, results, beams)
  end
end

local function check_ids(who, net, ids, o)
  if options.arg(who, "ids", ids, "tensor").ndim ~= 2 or ids.shape[2] == 0 then
    fail("%s: ids is %s; [N, L] of one token or more wanted", who, options.describe(ids))
  end
  local room = net.config.max_positions
  if ids.shape[2] + o.max_new_tokens > room + 1 then
    fail("%s: %d tokens and %d new ones; the model has %d places", who, ids.shape[2], o.max_new_tokens, room)
  end
end

local function one_by_one(net, ids, o)
  local n, l, device = ids.shape[1], ids.shape[2], ids.device
  if o.num_return_sequences > 1 then
    ids = ids:unsqueeze(2):expand(n, o.num_return_sequences, l):reshape(-1, l)
    n = ids.shape[1]
  end
  local cache = o.use_cache and net:new_cache(n, l + o.max_new_tokens) or nil
  local input, rows, done, tellers, open = ids, ids:totable(), {}, {}, n
  for i = 1, o.on_text and n or 0 do tellers[i] = generated_text.teller(o.tokenizer, o.on_text, i) end
  for made = 0, o.max_new_tokens - 1 do
    local scores = net(input, {cache = cache}):select(2, -1):float()
    scores = token_scores.allowed(scores, ids, rows, made, o)
    local chosen = o.do_sample and token_scores.drawn(scores, o) or scores:argmax(2, {keepdim = true})
    local list, stop = chosen:view(-1):totable(), false
    for i = 1, n do
      local row = rows[i]
      if done[i] then list[i] = o.fill or list[i] end
      row[#row + 1] = list[i]
      if not done[i] then
        if tellers[i] and not o.ends[list[i]] then stop = tellers[i](list[i]) == false or stop end
        if o.is_end(row) then done[i], open = true, open - 1 end
      end
    end
    chosen = core.tensor(list, {dtype = "int64", device = device}):view(n, 1)
    ids = ops.cat({ids, chosen}, 2)
    input = cache and chosen or ids
    if o.streamer and o.streamer(unpack(list)) == false or stop or open == 0 then break end
  end
  for _, tell in ipairs(tellers) do tell(nil) end
  return ids
end

-- The best continuations of each sequence, shorter ones filled up.
local function by_beams(net, ids, o)
  local lists, longest = {}, 0
  for i = 1, ids.shape[1] do
    local cache = o.use_cache and net:new_cache(o.num_beams, ids.shape[2] + o.max_new_tokens) or nil
    for _, tokens in ipairs(beam_search(net, ids:narrow(1, i, 1), o, cache)) do
      lists[#lists + 1] = tokens
      longest = math.max(longest, #tokens)
    end
  end
  for _, tokens in ipairs(lists) do
    for k = #tokens + 1, longest do tokens[k] = o.fill or tokens[#tokens] end
  end
  return core.tensor(lists, {dtype = "int64", device = ids.device})
end

--- net:generate(ids [, {max_new_tokens = 20, min_new_tokens = 0, do_sample, temperature = 1, top_k = 0, top_p = 1,
--- min_p = 0, repetition_penalty = 1, no_repeat_ngram_size = 0, num_beams = 1, num_return_sequences = 1,
--- length_penalty = 1, early_stopping = false, eos_token_id, pad_token_id, stop_strings, tokenizer, use_cache = true,
--- streamer, on_text, generator}]): ids [N, L] (int64, from 1) with the tokens that the model goes on with, as
--- transformers' generate has them.
---
--- The likeliest token each time, or with do_sample (which temperature, top_k, top_p or min_p turn on) one drawn by the
--- model's probabilities, at temperature, among the top_k likeliest, among the likeliest that make up top_p, among
--- those of min_p times the likeliest's probability. num_beams: the likeliest of so many continuations side by side, by
--- their log probability over length ^ length_penalty; early_stopping ends once so many have ended.
--- num_return_sequences: so many for each of ids, drawn or the best of the beams, [N * so many, …].
--- no_repeat_ngram_size: so many tokens never follow each other twice.
--- A sequence ends with eos_token_id (a number or a list; net.eos_token_id by default), not before min_new_tokens, or
--- with the token that completes one of stop_strings (a string or a list), and goes on as pad_token_id or, without
--- that, as eos_token_id.
--- streamer(id, …) gets each step's tokens, on_text(piece, row) their text, character by whole character without what
--- eos_token_id stands for; either ends it by false. stop_strings and on_text want a tokenizer, any object with
--- tokenizer:decode(list of ids), which gives a string.
return function(net, ids, opts)
  if not Module.is_module(net) then
    options.fail("generate is called with a colon, as a method of a model, got %s", options.describe(net))
  end
  local who = net.__name .. ":generate"
  local o = read_options(who, net, opts)
  check_combination(who, o)
  check_ids(who, net, ids, o)
  local training = net.training
  net:eval()
  local make = o.num_beams > 1 and by_beams or one_by_one
  local ok, result = pcall(core.no_grad, function() return make(net, ids, o) end)
  net:train(training)
  if not ok then error(result, 0) end
  return result
end

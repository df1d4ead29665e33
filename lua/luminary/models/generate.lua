--- Generates tokens with a language model: runs greedy search, sampling or beam search.
local core = require "luminary.core"
local options = require "luminary.base.options"
local load_module = require "luminary.base.load_module"
local in_mode = require "luminary.nn.in_mode"
local Module = require "luminary.nn.module"
local beam_search = require "luminary.models.beam_search"
local generation_config = require "luminary.models.generation_config"
local generation_options = require "luminary.models.generation_options"
local next_token_logits = require "luminary.models.next_token_logits"
local logits_processors = require "luminary.models.logits_processors"
local shapes = require "luminary.tensor.shapes"
local streamer = require "luminary.text.streamer"

local ops, fail = core.ops, options.fail

local function check_combination(who, o)
  local beams, results = o.num_beams, o.num_return_sequences
  if o.constraint and beams > 1 then fail("%s: num_beams cannot be used with constraint", who) end
  if beams > 1 and (o.streamer or o.on_text) then
    fail("%s: num_beams cannot be used with streamer or on_text%s", who,
      not o.given.num_beams and
        ("; net.generation_config has num_beams = %d; pass {num_beams = 1}"):format(beams) or "")
  elseif beams == 1 and results > 1 and not o.do_sample then
    fail("%s: num_return_sequences = %d requires do_sample or num_beams", who, results)
  elseif beams > 1 and results > beams then
    fail("%s: num_return_sequences (%d) must be at most num_beams (%d)", who, results, beams)
  end
end

-- Returns ids as int64 [N, L], checked with the number of new tokens against the model's positions.
local function check_ids(who, net, ids, o)
  if type(ids) == "table" and ids.input_ids then
    fail("%s: pass ids first, then options: batch.input_ids, {attention_mask = batch.attention_mask}", who)
  elseif type(ids) == "string" then
    options.must_be(who, "ids", "a tensor of token ids", ids, "tokenizer(text).input_ids is one")
  elseif not core.is_tensor(ids) and options.is_plain(ids) then
    fail("%s: ids must be a tensor [N, L], got a table; use lm.LongTensor {{1, 2, 3}} or tokenizer(text).input_ids",
      who)
  elseif options.arg(who, "ids", ids, "tensor").ndim ~= 2 or ids.shape[2] == 0 then
    options.must_be(who, "ids", "a tensor [N, L] with at least one token", ids)
  elseif ids:is_floating_point() or ids.dtype == "bool" then
    options.wrong_dtype(who, "ids", "int64", ids)
  end
  local config = type(net) ~= "function" and net.config
  local capacity = type(config) == "table" and config.max_positions or math.huge
  generation_config.resolve_lengths(who, o, o.given, o.from_file, ids.shape[2], capacity)
  if ids.shape[2] + o.max_new_tokens > capacity + 1 then
    fail("%s: %d tokens and %d new ones are more than the model's %d positions", who, ids.shape[2], o.max_new_tokens,
      capacity)
  end
  return ids:long()
end

-- Returns bool [N, L], false where ids are padding: attention_mask, or without one, as transformers do, the tokens that
-- are pad_token_id, unless that ends sequences. Returns nil where nothing is padding.
local function padding_of(who, ids, o)
  local mask, n, l = o.attention_mask, unpack(ids.shape)
  if mask then
    shapes.check(who, "attention_mask", mask, {n, l})
  elseif o.pad_token_id and not o.ends[o.pad_token_id] then
    mask = ids:ne(o.pad_token_id)
  end
  if not mask then return nil end
  mask = mask:ne(0):to(ids.device)
  if mask:all():item() then return nil end
  for i, last in ipairs(mask:select(2, -1):totable()) do
    if not last or last == 0 then
      fail("%s: row %d of ids ends with padding%s; pad on the left: tokenizer(texts, {padding = true, padding_side = "
        .. "\"left\"})", who, i, o.attention_mask and "" or (", since its last token is pad_token_id (%d), which "
        .. "{attention_mask = lm.ones_like(ids)} makes a token of the text"):format(o.pad_token_id))
    end
  end
  return mask
end

local MOST_ARGUMENTS = 7000 -- most arguments of a call; Lua's limit is a little higher

local function one_by_one(who, net, ids, mask, o)
  local n, l, device = ids.shape[1], ids.shape[2], ids.device
  if o.num_return_sequences > 1 then
    ids = ids:repeat_interleave(o.num_return_sequences, 1)
    mask = mask and mask:repeat_interleave(o.num_return_sequences, 1)
    n = ids.shape[1]
  end
  if o.streamer and n > MOST_ARGUMENTS then
    fail("%s: streamer supports at most %d sequences, got %d; use several calls", who, MOST_ARGUMENTS, n)
  end
  local rows, done, callbacks, open = ids:totable(), {}, {}, n
  local past = n == 1 and not mask and o.past_key_values or nil
  local logits = next_token_logits(who, net, n, l + o.max_new_tokens, mask, o.use_cache, past, rows[1])
  for i = 1, o.on_text and n or 0 do
    callbacks[i] = streamer(function(tokens) return generation_options.text_of(o.tokenizer, tokens) end, function(piece)
      if n > 1 then return o.on_text(piece, i) end
      return o.on_text(piece) -- so that it may be io.write
    end)
  end
  local constraint = o.constraint and load_module("luminary.text.constraint").new(who, o.constraint, o.tokenizer, n)
  for count = 0, o.max_new_tokens - 1 do
    local scores = logits_processors.allowed(logits:after(ids), ids, rows, count, o, mask)
    if constraint then scores = constraint:restrict(scores, o.ends, done) end
    local chosen = o.do_sample and logits_processors.drawn(scores, o) or scores:argmax(2, {keepdim = true})
    local list, stop = chosen:view(-1):totable(), false
    for i = 1, n do
      local row = rows[i]
      if done[i] then list[i] = o.fill or list[i] end
      row[#row + 1] = list[i]
      if not done[i] then
        if callbacks[i] and not o.ends[list[i]] then stop = callbacks[i](list[i]) == false or stop end
        local is_end = o.is_end(row) or constraint and constraint:advance(i, list[i])
        if is_end then done[i], open = true, open - 1 end
      end
    end
    ids = ops.cat({ids, core.tensor(list, {dtype = "int64", device = device}):view(n, 1)}, 2)
    if o.streamer and o.streamer(unpack(list)) == false or stop or open == 0 then break end
  end
  for _, tell in ipairs(callbacks) do tell(nil) end
  return ids
end

-- Returns the best continuations of each sequence by beam search, as int64 [N, L]; shorter ones are filled.
local function generate_by_beams(who, net, ids, mask, o)
  local all, longest, length = {}, 0, ids.shape[2] + o.max_new_tokens
  for i = 1, ids.shape[1] do
    local row = mask and mask:narrow(1, i, 1)
    local logits = next_token_logits(who, net, 1, length, row, o.use_cache)
    for _, tokens in ipairs(beam_search(ids:narrow(1, i, 1), o, logits, row)) do
      all[#all + 1] = tokens
      longest = math.max(longest, #tokens)
    end
  end
  for _, tokens in ipairs(all) do
    for k = #tokens + 1, longest do tokens[k] = o.fill or tokens[#tokens] end
  end
  return core.tensor(all, {dtype = "int64", device = ids.device})
end

local generate

--- lm.models.generate(net, ids [, {max_new_tokens = 20, min_new_tokens = 0, do_sample, temperature = 1, top_k = 0,
--- top_p = 1, min_p = 0, repetition_penalty = 1, no_repeat_ngram_size = 0, bad_words_ids, num_beams = 1,
--- num_return_sequences = 1, length_penalty = 1, early_stopping = false, eos_token_id, pad_token_id, attention_mask,
--- stop_strings, tokenizer, use_cache = true, past_key_values, streamer, on_text, generator, constraint}]): Generates
--- sequences of token ids with a language model. past_key_values: a table, empty at first, that keeps the keys and
--- values of one sequence: a later call with it computes only the tokens from the first that differs on. constraint
--- restricts the new text: {json = true}, {json_schema = a table or JSON text}, {regex = "…"} or {grammar = "…"} in
--- llama.cpp's GBNF; it requires tokenizer, one of lm.text. On a GPU the step of a library's model without hooks is
--- captured after 16 tokens, and replayed.
function generate(net, ids, opts)
  local module = Module.is_module(net)
  local has, method = pcall(function() return net.generate end) -- an error where a module lacks it
  local own = module and has and method == generate
  if not module and not options.is("callable", net) then
    fail("generate: call it with a colon as a method of a model, or as lm.models.generate(net, ids) with a module or "
      .. "function; got %s", options.describe(net))
  end
  local who = own and net.__name .. ":generate" or "generate"
  local o = generation_options.read(who, net, opts)
  check_combination(who, o)
  ids = check_ids(who, net, ids, o)
  local mask = padding_of(who, ids, o)
  if ids.shape[1] == 0 then return ids end
  local search = o.num_beams > 1 and generate_by_beams or one_by_one
  if not module then return core.no_grad(search, who, net, ids, mask, o) end
  return in_mode(net, false, search, who, net, ids, mask, o)
end

return generate

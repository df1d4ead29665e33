--- Tokens one after the other from a model of language.
local core = require "luminary.core"
local options = require "luminary.base.options"

local ops, fail = core.ops, options.fail

local spec = {
  max_new_tokens = {"count", 20}, temperature = {"positive", 1}, top_k = {"natural", 0}, top_p = {"probability", 1},
  repetition_penalty = {"positive", 1}, do_sample = {"boolean"}, num_beams = {"count", 1},
  length_penalty = {"number", 1}, eos_token_id = {"any"}, pad_token_id = {"count"}, use_cache = {"boolean", true},
  streamer = {"callable"}, generator = {"generator"},
}

-- Scores [N, V] of tokens that have been there, ids [N, L], less likely (Keskar et al. 2019).
local function penalized(scores, ids, penalty)
  if penalty == 1 then return scores end
  local seen = scores:gather(2, ids)
  return scores:scatter(2, ids, ops.where(seen:lt(0), seen * penalty, seen / penalty))
end

-- Scores with -inf but for the k best, and but for the best whose probabilities make up p.
local function truncated(scores, k, p)
  if k > 0 and k < scores.shape[2] then
    local least = scores:topk(k, 2):narrow(2, k, 1)
    scores = scores:masked_fill(scores:lt(least), -math.huge)
  end
  if p < 1 then
    local sorted, place = scores:sort(2, {descending = true})
    local weights = sorted:softmax(2)
    local before = weights:cumsum(2) - weights
    scores = scores:masked_fill(before:ge(p):scatter(2, place, before:ge(p)), -math.huge)
  end
  return scores
end

local function set_of(ids)
  local set = {}
  for _, id in ipairs(type(ids) == "table" and ids or {ids}) do set[id] = true end
  return set
end

-- The next token of each of the last scores [N, V], int64 [N, 1].
local function chosen(scores, ids, o)
  scores = penalized(scores:float(), ids, o.repetition_penalty)
  if not o.do_sample then return scores:argmax(2, {keepdim = true}) end
  scores = truncated(scores / o.temperature, o.top_k, o.top_p)
  return scores:softmax(2):multinomial(1, true, {generator = o.generator})
end

local function one_by_one(net, ids, o, cache)
  local ends, n = set_of(o.eos_token_id), ids.shape[1]
  local done, input, open = {}, ids, n
  for _ = 1, o.max_new_tokens do
    local next_ids = chosen(net(input, {cache = cache}):select(2, -1), ids, o)
    local list = next_ids:view(-1):totable()
    for i = 1, n do
      if done[i] then
        list[i] = o.pad_token_id or done[i]
      elseif ends[list[i]] then
        done[i], open = list[i], open - 1
      end
    end
    next_ids = core.tensor(list, {dtype = "int64", device = ids.device}):view(n, 1)
    ids = ops.cat({ids, next_ids}, 2)
    input = cache and next_ids or ids
    if o.streamer and o.streamer(unpack(list)) == false then break end
    if open == 0 then break end
  end
  return ids
end

-- The num_beams likeliest continuations of one sequence, side by side; ids [1, L].
local function by_beams(net, ids, o, cache)
  local beams, ends, finished, device = o.num_beams, set_of(o.eos_token_id), {}, ids.device
  local prompt, sums = ids.shape[2], ops.full({beams, 1}, -math.huge, {device = device})
  sums[1] = 0 -- all begin alike
  ids = ids:expand(beams, prompt):contiguous()
  local input = ids
  local function worth(sum, length) return sum / length ^ o.length_penalty end
  for step = 1, o.max_new_tokens do
    local scores = penalized(net(input, {cache = cache}):select(2, -1):float():log_softmax(2), ids,
      o.repetition_penalty)
    local vocabulary = scores.shape[2]
    local best, place = (scores + sums):view(-1):topk(math.min(2 * beams, beams * vocabulary))
    best, place = best:totable(), place:totable()
    local from, tokens, kept = {}, {}, {}
    for j = 1, #place do
      local beam, token = math.floor((place[j] - 1) / vocabulary) + 1, (place[j] - 1) % vocabulary + 1
      if ends[token] then
        if j <= beams then
          local whole = ids:select(1, beam):totable()
          whole[#whole + 1] = token
          finished[#finished + 1] = {worth(best[j], step), whole}
        end
      elseif #from < beams then
        from[#from + 1], tokens[#tokens + 1], kept[#kept + 1] = beam, token, {best[j]}
      end
    end
    local order = core.tensor(from, {dtype = "int64", device = device})
    input = core.tensor(tokens, {dtype = "int64", device = device}):view(beams, 1)
    ids = ops.cat({ids:index_select(1, order), input}, 2)
    sums = core.tensor(kept, {device = device})
    if cache then
      for _, each in ipairs(cache) do each:reorder(order) end
    else
      input = ids
    end
    if #finished >= beams then break end
  end
  local lists, totals = ids:totable(), sums:view(-1):totable()
  for i = 1, beams do
    finished[#finished + 1] = {worth(totals[i], #lists[i] - prompt), lists[i]}
  end
  table.sort(finished, function(a, b) return a[1] > b[1] end)
  return core.tensor({finished[1][2]}, {dtype = "int64", device = device})
end

--- net:generate(ids [, {max_new_tokens = 20, do_sample, temperature = 1, top_k = 0, top_p = 1, repetition_penalty = 1,
--- num_beams = 1, length_penalty = 1, eos_token_id, pad_token_id, use_cache = true, streamer, generator}]): ids [N, L]
--- (int64, from 1) with the tokens that the model goes on with.
---
--- The likeliest token each time, or with do_sample (which temperature, top_k or top_p turn on) one drawn by the
--- model's probabilities, at temperature, among the top_k likeliest, among the likeliest that make up top_p.
--- num_beams: the likeliest of so many continuations side by side (one sequence, no sampling). A sequence ends with
--- eos_token_id (a number or a list) and goes on as pad_token_id. streamer(id, …) gets each step's tokens, and ends it
--- by false.
return function(net, ids, opts)
  local who = net.__name .. ":generate"
  local o = options.check(who, opts, spec, "max_new_tokens")
  if options.arg(who, "ids", ids, "tensor").ndim ~= 2 or ids.shape[2] == 0 then
    fail("%s: ids is %s; [N, L] of one token or more wanted", who, options.describe(ids))
  end
  if o.do_sample == nil then o.do_sample = opts ~= nil and (opts.temperature or opts.top_k or opts.top_p) ~= nil end
  if o.do_sample and o.temperature == 0 then o.do_sample = false end
  if o.num_beams > 1 and (o.do_sample or ids.shape[1] > 1 or o.streamer) then
    fail("%s: num_beams goes with one sequence, without do_sample and streamer", who)
  end
  local room = net.config.max_positions
  if ids.shape[2] + o.max_new_tokens > room + 1 then
    fail("%s: %d tokens and %d new ones; the model has %d places", who, ids.shape[2], o.max_new_tokens, room)
  end
  local training = net.training
  net:eval()
  local ok, result = pcall(core.no_grad, function()
    local rows = o.num_beams > 1 and o.num_beams or ids.shape[1]
    local cache = o.use_cache and net:new_cache(rows, ids.shape[2] + o.max_new_tokens) or nil
    return (o.num_beams > 1 and by_beams or one_by_one)(net, ids, o, cache)
  end)
  net:train(training)
  if not ok then error(result, 0) end
  return result
end

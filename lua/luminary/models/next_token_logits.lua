--- Computes the scores of the next token for generate, with the cache and mask that a net supports.
local core = require "luminary.core"
local class = require "luminary.base.class"
local options = require "luminary.base.options"
local load_module = require "luminary.base.load_module"

local ops, fail = core.ops, options.fail

local CAPTURED_AFTER = 16 -- tokens; to capture a step takes as long as some tens of replays save

-- Returns the scores [n, V], float32, of the last position in a net's result.
local function last_place(who, y, n)
  local good = core.is_tensor(y) and (y.ndim == 2 or y.ndim == 3 and y.shape[2] > 0) and y.shape[1] == n
    and y.shape[y.ndim] > 0
  if not good then
    options.must_be(who, "the result of the net", ("scores [%d, L, vocabulary] or [%d, vocabulary]"):format(n, n), y)
  end
  return (y.ndim == 3 and y:select(2, -1) or y):float()
end

-- Returns scores; fails if a token cannot be chosen by those of a row.
local function checked_scores(who, scores)
  for i, best in ipairs(scores:amax(2):totable()) do
    if best ~= best then
      fail("%s: the net returned NaN scores in row %d", who, i)
    elseif best == math.huge then
      fail("%s: the net returned a score of inf in row %d; scores must be finite, or -inf to exclude a token", who, i)
    elseif best == -math.huge then
      fail("%s: the net returned -inf for every token in row %d", who, i)
    end
  end
  return scores
end

-- Returns the scores of a net without masks: calls it for each row alone, without the padding.
local function row_by_row(who, net, ids, mask)
  local scores = {}
  for i = 1, ids.shape[1] do
    local row = ids[i]:masked_select(mask[i]):view(1, -1)
    scores[i] = last_place(who, (net(row)), 1)
  end
  return ops.cat(scores, 1)
end

local Logits = {}
Logits.__index = Logits

-- Returns the step of one token, a function of the token [n, 1] and its position [1], on which no shape depends, so
-- that a GPU replays it.
local function token_step(self, rows)
  local net, cache, mask, absent = self.net, self.cache, self.mask, nil -- absent: number of tokens of padding
  if mask then
    local room = cache[1].keys.shape[3]
    mask = ops.cat({mask, ops.ones({rows, room}, {dtype = "bool", device = mask.device})}, 2):narrow(2, 1, room)
    absent = mask:logical_not():long():sum(2, true)
  end
  return (load_module("luminary.cuda.compile").compile(function(ids, place)
    for _, each in ipairs(cache) do each.position = place end
    local position_ids = place:view(1, 1):expand(rows, 1)
    return (net(ids, {cache = cache, attention_mask = mask,
      position_ids = absent and position_ids - absent or position_ids}))
  end, {warmup = 2}))
end

-- Returns the scores of the token at the end of ids by its step; nil where no step is replayed, or is worth it.
local function replayed_logits(self, ids)
  local cache, l = self.cache, ids.shape[2]
  self.tokens = self.known == l - 1 and self.tokens + 1 or 0
  if not (ids.is_cuda and cache) or self.tokens < CAPTURED_AFTER or cache.by_values then return end
  if self.step == nil then
    self.step = not (self.is_reordered or core.graph_is_capturing() or self.net.tensor_ranks)
      and load_module("luminary.prepare").is_of_library(self.net) and token_step(self, ids.shape[1])
  end
  if not self.step then return end
  self.known = l
  local position = ops.full({1}, l, {dtype = "int64", device = ids.device})
  return last_place(self.who, self.step(ids:narrow(2, l, 1):clone(), position), ids.shape[1])
end

local function compute_logits(self, ids)
  local replayed = replayed_logits(self, ids)
  if replayed then return replayed end
  local rows, l = unpack(ids.shape)
  local net, mask, known = self.net, self.mask, self.known
  if mask and mask.shape[2] < l then
    mask = ops.cat({mask, ops.ones({mask.shape[1], l - mask.shape[2]}, {dtype = "bool", device = mask.device})}, 2)
    self.mask = mask
  end
  local of_rows = mask and mask:expand(rows, l)
  local switch = self.cache and self.cache.recompute_beyond
  if switch and known <= switch and l > switch then -- keys of longer sequences rotate by other rates
    for _, each in ipairs(self.cache) do each:reset() end
    known = 0
  end
  if mask and not self.offers then return row_by_row(self.who, net, ids, of_rows) end
  if not (mask or self.cache) then return last_place(self.who, (net(ids)), rows) end
  local forward_options = {cache = self.cache, attention_mask = of_rows, logits_to_keep = self.keeps}
  if mask then
    forward_options.position_ids = of_rows:long():cumsum(2):clamp_min(1):narrow(2, known + 1, l - known)
  end
  local y = net(ids:narrow(2, known + 1, l - known), forward_options)
  self.known = self.cache and l or 0
  return last_place(self.who, y, rows)
end

--- Returns the scores [n, V], float32, of the token after ids [n, L], which grow with each call.
function Logits:after(ids)
  local scores = compute_logits(self, ids)
  if self.past then self.past.known = self.known end
  return checked_scores(self.who, scores)
end

--- Replaces the sequences in the cache by those with the indices `order`, int64 [m].
function Logits:reorder(order)
  self.is_reordered = true
  for _, each in ipairs(self.cache or {}) do each:reorder(order) end
end

-- Returns a cache for n sequences of at most `length` tokens, and the number of tokens that it has: 0, or those of row,
-- a list of ids that grows, that `past` keeps, without the last.
local function cache_for(net, n, length, past, row)
  if not past then return net:new_cache(n, length), 0 end
  local cache, known = past.cache, 0
  if not cache or past.room < length or cache.keys_vary then
    past.room, past.known = 2 * length, 0
    cache = net:new_cache(1, past.room)
  end
  while known < math.min(past.known, #row - 1) and row[known + 1] == past.row[known + 1] do known = known + 1 end
  for _, each in ipairs(cache) do each.length, each.position = known, nil end
  past.cache, past.known, past.row = cache, known, row
  return cache, known
end

--- next_token_logits(who, net, n, length, mask, use_cache, past, row): Returns an object for n sequences that grow to
--- at most `length`. mask: bool [n, L] of the first ids, or nil without padding; reorder does not change it, so
--- reordered sequences share a mask [1, L]. past: a table that keeps the cache of one sequence, row, for later calls.
return function(who, net, n, length, mask, use_cache, past, row)
  if type(net) ~= "function" and net.has_part_of_scores then
    fail("%s: this rank computes a part of the scores; pass nn.parallel.parallelize the plan of parallel_plan "
      .. "{gather = true}", who)
  end
  local offers = type(net) ~= "function" and type(net.new_cache) == "function"
  local keeps, cache, known = offers and class.has(net, "cache_sizes"), nil, 0
  past = keeps and use_cache and past or nil
  if offers and use_cache then cache, known = cache_for(net, n, length, past, row) end
  -- Closures are avoided: the compiled code of one keeps what it captures alive.
  return setmetatable({
    who = who, net = net, mask = mask, offers = offers, cache = cache, known = known, tokens = 0, past = past,
    keeps = keeps and 1 or nil,
  }, Logits)
end

--- Changes a model's scores [N, V] before net:generate chooses tokens, in transformers' order.
local core = require "luminary.core"
local options = require "luminary.base.options"

local ops = core.ops

local logits_processors = {}

-- Returns ids with each row's last token, which is not padding, in the place of padding.
local function filled(ids, mask)
  local first, length = mask.shape[2], ids.shape[2]
  local given = ops.where(mask, ids:narrow(2, 1, first), ids:narrow(2, length, 1))
  return ops.cat({given, ids:narrow(2, first + 1, length - first)}, 2)
end

-- Makes the tokens of ids [N, L] less likely (Keskar et al. 2019). Scores stay finite, as softmax needs.
local function penalized(scores, ids, penalty)
  if penalty == 1 then return scores end
  local seen = scores:gather(2, ids)
  return scores:scatter(2, ids, ops.where(seen:lt(0), seen * penalty, (seen / penalty):clamp({max = 1e30})))
end

-- Returns the tokens that would complete a sequence of n tokens that the list already has.
local function repeating(tokens, n)
  local last, found = #tokens, {}
  for first = 1, last - n + 1 do
    local k = 1
    while k < n and tokens[first + k - 1] == tokens[last - n + 1 + k] do k = k + 1 end
    if k == n then found[#found + 1] = tokens[first + n - 1] end
  end
  return found
end

-- Returns a list of tokens without padding, where a row of a mask is false.
local function without_padding(tokens, row)
  if not row then return tokens end
  local list = {}
  for k, token in ipairs(tokens) do
    if row[k] == nil or row[k] == true or row[k] == 1 then list[#list + 1] = token end
  end
  return list
end

-- Returns true if a list of tokens ends with all tokens of a word but the last.
local function may_complete(tokens, word)
  local n = #tokens - #word + 1
  for k = 1, #word - 1 do
    if n < 0 or tokens[n + k] ~= word[k] then return false end
  end
  return true
end

-- Sets the scores of bad_words_ids to -inf, except words that are one end token, of which min_new_tokens decides.
local function without_words(scores, rows, o)
  if not o.bad_words_ids then return scores end
  scores = scores:clone()
  for _, word in ipairs(o.bad_words_ids) do
    for i, tokens in ipairs(#word == 1 and o.ends[word[1]] and {} or rows) do
      if may_complete(tokens, word) then scores[{i, word[#word]}] = -math.huge end
    end
  end
  return scores
end

local function without_repeats(scores, rows, n, mask)
  if n == 0 then return scores end
  scores = scores:clone()
  mask = mask and mask:totable() or {}
  for i, tokens in ipairs(rows) do
    for _, token in ipairs(repeating(without_padding(tokens, mask[i]), n)) do scores[{i, token}] = -math.huge end
  end
  return scores
end

--- Applies repetition_penalty, no_repeat_ngram_size, bad_words_ids and min_new_tokens to scores. rows: the tokens of
--- ids [N, L] as lists; count: number of new tokens so far; mask: bool [N, L] of the first ids, false where they are
--- padding, which the rules ignore; or nil.
function logits_processors.allowed(scores, ids, rows, count, o, mask)
  local vocabulary = scores.shape[2]
  if count == 0 then o.check_vocabulary(vocabulary) end
  scores = penalized(scores, mask and filled(ids, mask) or ids, o.repetition_penalty)
  scores = without_repeats(scores, rows, o.no_repeat_ngram_size, mask)
  scores = without_words(scores, rows, o)
  if count < o.min_new_tokens then
    local ends = {}
    for token in pairs(o.ends) do ends[#ends + 1] = token <= vocabulary and token or nil end
    local indices = core.tensor(ends, {dtype = "int64", device = scores.device})
    if #ends > 0 then scores = scores:index_fill(2, indices, -math.huge) end
  end
  local fewer = count < o.min_new_tokens or o.no_repeat_ngram_size > 0 or o.repetition_penalty ~= 1 or o.bad_words_ids
  for i, best_of_row in ipairs(fewer and o.num_beams == 1 and scores:amax(2):totable() or {}) do
    if best_of_row == -math.huge then logits_processors.none_left(i) end
  end
  return scores
end

--- Fails for a row whose scores are all -inf.
function logits_processors.none_left(row)
  options.fail(
    "generate: no token is left for row %d; relax min_new_tokens, no_repeat_ngram_size, repetition_penalty, "
      .. "bad_words_ids or constraint", row)
end

-- Returns scores with -inf except the k best of each row.
local function best(scores, k)
  if k == 0 or k >= scores.shape[2] then return scores end
  return scores:masked_fill(scores:lt(scores:topk(k, 2):narrow(2, k, 1)), -math.huge)
end

-- Returns scores with -inf except the best whose probabilities sum to p, and at least `least` of each row.
local function most_of(scores, p, least)
  if p == 1 then return scores end
  local sorted, indices = scores:sort(2, {descending = true})
  local weights = sorted:softmax(2)
  local beyond = (weights:cumsum(2) - weights):ge(p)
  beyond:narrow(2, 1, math.min(least, scores.shape[2])):fill_(false)
  return scores:masked_fill(beyond:scatter(2, indices, beyond), -math.huge)
end

-- Returns scores with -inf except at least `least`, and those of p times the best probability (Nguyen et al. 2024).
local function near_best(scores, p, least)
  if p == 0 then return scores end
  local weights = scores:softmax(2)
  local limit = weights:amax(2, {keepdim = true}) * p
  if least > 1 then
    least = math.min(least, scores.shape[2])
    limit = ops.minimum(limit, weights:topk(least, 2):narrow(2, least, 1))
  end
  return scores:masked_fill(weights:lt(limit), -math.huge)
end

local HOTTEST = 1e30 -- highest temperature; float32 holds scores divided by it, and more would change nothing

-- Returns scores at temperature, at least `coldest`, restricted by top_k, top_p and min_p to at least `least` of a row.
local function restricted(scores, o, coldest, least)
  scores = scores / math.min(math.max(o.temperature, coldest), HOTTEST)
  scores = best(scores, o.top_k == 0 and 0 or math.max(o.top_k, least))
  return near_best(most_of(scores, o.top_p, least), o.min_p, least)
end

--- Draws a token of each row by its probability at temperature, among top_k, top_p and min_p: int64 [N, 1].
function logits_processors.drawn(scores, o)
  scores = scores - scores:amax(2, {keepdim = true}) -- keeps the likeliest finite at any temperature
  return restricted(scores, o, 1e-30, 1):softmax(2):multinomial(1, true, {generator = o.generator})
end

--- Returns the number of candidates of a beam: all ends may be the likeliest, and one more token must be among them.
function logits_processors.choices(o)
  local ends = 0
  for _ in pairs(o.ends) do ends = ends + 1 end
  return math.max(2, 1 + ends)
end

--- Returns the log probabilities of beams at temperature, restricted by top_k, top_p and min_p, for drawing.
function logits_processors.of_beams(scores, o)
  -- Below 1e-6, sums of them would be as low as those of excluded tokens.
  return restricted(scores, o, 1e-6, logits_processors.choices(o))
end

return logits_processors

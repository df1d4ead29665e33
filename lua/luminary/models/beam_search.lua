--- The likeliest continuations of one sequence, found side by side, as transformers' beam search finds them, or with
--- do_sample draws them.
local core = require "luminary.core"
local token_scores = require "luminary.models.token_scores"

local ops = core.ops
local NEVER = -1e9 -- the score of what stands there only to fill a place

-- The candidates of a step, best first, or as they are drawn: {score, beam, token, whole list of tokens, whether it
-- ends}.
local function candidates(scores, rows, o, last_step)
  local vocabulary = scores.shape[2]
  local most = math.min(token_scores.choices(o) * o.num_beams, scores:numel())
  scores = scores:reshape(-1)
  local keys = scores
  if o.do_sample then -- the greatest of these are drawn without replacement (Gumbel-max: Kool et al. 2019)
    keys = scores - ops.empty_like(scores):exponential_(1, {generator = o.generator}):log()
  end
  local _, place = keys:topk(most)
  local best = scores:index_select(1, place):totable()
  place = place:totable()
  local list = {}
  for j = 1, most do
    local beam, token = math.floor((place[j] - 1) / vocabulary) + 1, (place[j] - 1) % vocabulary + 1
    local tokens = {}
    for i, each in ipairs(rows[beam]) do tokens[i] = each end
    tokens[#tokens + 1] = token
    list[j] = {score = best[j], beam = beam, token = token, tokens = tokens, ends = last_step or o.is_end(tokens)}
  end
  return list
end

-- Puts what has ended among the first num_beams into `finished`, which keeps the best so many.
local function finish(finished, list, step, o)
  for j = 1, math.min(o.num_beams, #list) do
    if list[j].ends then
      finished[#finished + 1] = {worth = list[j].score / step ^ o.length_penalty, tokens = list[j].tokens}
    end
  end
  table.sort(finished, function(a, b) return a.worth > b.worth end)
  for j = #finished, o.num_beams + 1, -1 do finished[j] = nil end
end

-- The num_beams candidates to go on with.
local function going_on(list, o)
  local kept, beams = {}, o.num_beams
  if o.do_sample then table.sort(list, function(a, b) return a.score > b.score end) end
  for pass = 1, 2 do
    for _, each in ipairs(list) do
      if #kept < beams and each.ends == (pass == 2) then
        kept[#kept + 1] = each
        if pass == 2 then each.score = each.score + NEVER end
      end
    end
  end
  return kept
end

--- The num_return_sequences best as lists of tokens, best first; ids [1, L]. next_scores, reorder: of num_beams
--- sequences (next_scores.lua). mask: bool, false where ids are padding, or nil.
return function(ids, o, next_scores, reorder, mask)
  local beams, finished, device = o.num_beams, {}, ids.device
  local sums = ops.full({beams, 1}, NEVER, {device = device})
  sums[1] = 0 -- all begin alike
  ids = ids:expand(beams, ids.shape[2]):contiguous()
  local rows = ids:totable()
  for step = 1, o.max_new_tokens do
    local scores = next_scores(ids):log_softmax(2)
    scores = token_scores.allowed(scores, ids, rows, step - 1, o, mask)
    if o.do_sample then scores = token_scores.of_beams(scores, o) end
    scores = scores + sums
    local list = candidates(scores, rows, o, step == o.max_new_tokens)
    local full = #finished == beams
    if list[1].score == -math.huge then token_scores.none_left(1) end
    if not (full and o.early_stopping == true) then finish(finished, list, step, o) end
    local all_end = true
    for _, each in ipairs(list) do all_end = all_end and each.ends end
    local kept = going_on(list, o)
    full = #finished == beams
    local length = o.early_stopping == "never" and o.length_penalty > 0 and o.max_new_tokens or step
    local hopeless = full and kept[1].score / length ^ o.length_penalty <= finished[beams].worth
    if all_end or hopeless or full and o.early_stopping == true then break end
    local from, tokens, worths = {}, {}, {}
    for j, each in ipairs(kept) do
      from[j], tokens[j], worths[j], rows[j] = each.beam, each.token, {each.score}, each.tokens
    end
    local order = core.tensor(from, {dtype = "int64", device = device})
    tokens = core.tensor(tokens, {dtype = "int64", device = device}):view(beams, 1)
    ids = ops.cat({ids:index_select(1, order), tokens}, 2)
    sums = core.tensor(worths, {device = device})
    reorder(order)
  end
  local result = {}
  for j = 1, o.num_return_sequences do result[j] = finished[j].tokens end
  return result
end

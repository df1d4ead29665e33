--- Finds the likeliest continuations of one sequence by beam search, or draws them with do_sample, as transformers do.
local core = require "luminary.core"
local lists = require "luminary.base.lists"
local options = require "luminary.base.options"
local logits_processors = require "luminary.models.logits_processors"

local ops = core.ops

-- Returns the tokens of a candidate's beam, then its own.
local function tokens_of(each, rows) return lists.joined(rows[each.beam], {each.token}) end

-- Returns the candidates {score, beam, token, ends = true if it ends} of a step, best first or in the order drawn,
-- except those with a score of -inf.
local function candidates(scores, rows, o, last_step)
  local vocabulary = scores.shape[2]
  local most = math.min(logits_processors.choices(o) * o.num_beams, scores:numel())
  scores = scores:reshape(-1)
  local keys = scores
  if o.do_sample then -- the greatest of these keys are a draw without replacement (Gumbel-max: Kool et al. 2019)
    keys = scores - ops.empty_like(scores):exponential_(1, {generator = o.generator}):log()
  end
  local _, place = keys:topk(most)
  local best = scores:index_select(1, place):totable()
  place = place:totable()
  local list = {}
  for j = 1, most do
    if best[j] ~= -math.huge then
      local beam, token = math.floor((place[j] - 1) / vocabulary) + 1, (place[j] - 1) % vocabulary + 1
      local each = {score = best[j], beam = beam, token = token, ends = last_step or o.ends[token] or false}
      if not each.ends and o.stop_strings then each.ends = o.is_end(tokens_of(each, rows)) end
      list[#list + 1] = each
    end
  end
  return list
end

-- Adds the candidates that end among the first num_beams to `finished`, which keeps the num_beams best.
local function keep_finished_beams(finished, list, rows, step, o)
  for j = 1, math.min(o.num_beams, #list) do
    if list[j].ends then
      finished[#finished + 1] = {worth = list[j].score / step ^ o.length_penalty, tokens = tokens_of(list[j], rows)}
    end
  end
  table.sort(finished, function(a, b) return a.worth > b.worth end)
  for j = #finished, o.num_beams + 1, -1 do finished[j] = nil end
end

-- Returns the best candidates that do not end, at most num_beams.
local function continued(list, o)
  local kept = {}
  if o.do_sample then table.sort(list, function(a, b) return a.score > b.score end) end
  for _, each in ipairs(list) do
    if #kept == o.num_beams then break end
    if not each.ends then kept[#kept + 1] = each end
  end
  return kept
end

--- Returns the num_return_sequences best continuations of ids [1, L] as lists of tokens, best first. logits: an object
--- of next_token_logits.lua for one sequence. mask: bool [1, L], false where ids are padding, or nil.
---
--- Beams are distinct: there is one at first, and a step has at most vocabulary times as many, up to num_beams.
return function(ids, o, logits, mask)
  local beams, finished, device = o.num_beams, {}, ids.device
  local sums, rows = ops.zeros({1, 1}, {device = device}), ids:totable()
  for step = 1, o.max_new_tokens do
    local scores = logits:after(ids):log_softmax(2)
    scores = logits_processors.allowed(scores, ids, rows, step - 1, o, mask and mask:expand(#rows, mask.shape[2]))
    if o.do_sample then scores = logits_processors.of_beams(scores, o) end
    local list = candidates(scores + sums, rows, o, step == o.max_new_tokens)
    if #list == 0 then logits_processors.none_left(1) end
    if not (#finished == beams and o.early_stopping == true) then keep_finished_beams(finished, list, rows, step, o) end
    local kept, full = continued(list, o), #finished == beams
    local length = o.early_stopping == "never" and o.length_penalty > 0 and o.max_new_tokens or step
    local hopeless = full and kept[1] and kept[1].score / length ^ o.length_penalty <= finished[beams].worth
    if #kept == 0 or hopeless or full and o.early_stopping == true then break end
    local from, tokens, worths, continued_rows = {}, {}, {}, {}
    for j, each in ipairs(kept) do
      from[j], tokens[j], worths[j] = each.beam, each.token, {each.score}
      continued_rows[j] = tokens_of(each, rows)
    end
    local order = core.tensor(from, {dtype = "int64", device = device})
    tokens = core.tensor(tokens, {dtype = "int64", device = device}):view(#kept, 1)
    ids = ops.cat({ids:index_select(1, order), tokens}, 2)
    sums, rows = core.tensor(worths, {device = device}), continued_rows
    logits:reorder(order)
  end
  if #finished < o.num_return_sequences then
    options.must_be("generate", "num_return_sequences",
      ("at most %d, the number of distinct continuations"):format(#finished), o.num_return_sequences)
  end
  return lists.map(lists.slice(finished, 1, o.num_return_sequences), function(each) return each.tokens end)
end

--- Decides which tokens of many conversations a step of a language model computes: the latest of all of them, and parts
--- of new prompts beside (Yu et al. 2022, Kwon et al. 2023). With drafts, tokens that may follow are computed too: a
--- conversation draws each token as without drafts, and continues with the next scores while the draft has that token.
--- This is the rule of Leviathan et al. 2023 ("Fast Inference from Transformers via Speculative Decoding") for a draft
--- that is certain of its token, which is accepted with its probability; the tokens are those without drafts.
local core = require "luminary.core"
local class = require "luminary.base.class"
local lists = require "luminary.base.lists"
local load_module = require "luminary.base.load_module"
local logits_processors = require "luminary.models.logits_processors"
local drafts = require "luminary.serve.drafts"
local Pages = require "luminary.serve.pages"
local sessions = require "luminary.serve.sessions"

local Scheduler = class.root "Scheduler"

--- Scheduler(net, settings): settings: page_size, pages (their number), max_sequences, chunk, dtype, cache, draft,
--- draft_tokens, of serve.Engine.
function Scheduler:init(net, settings)
  self.net, self.settings = net, settings
  self.pages = Pages(settings.pages, settings.page_size)
  self.cache = self.pages:cache_of(net, settings.dtype, settings.cache)
  local drafts_by_net = settings.draft ~= nil and settings.draft ~= "prompt"
  self.draft_cache = drafts_by_net and self.pages:cache_of(settings.draft) or nil
  self.waiting, self.running = {}, {}
end

--- Makes a conversation of a list of ids with options of generation_options.read: {ids, o, done, problem, is_canceled,
--- drafts and accepted = numbers of drafted tokens}. Its ids grow; setting is_canceled ends it.
function Scheduler.conversation(ids, o)
  local r = {ids = ids, o = o, pages = {}, count = 0, computed = 0, drafted = 0, noted = 0, done = false,
    drafts = 0, accepted = 0, reach = 4}
  if o.constraint then
    r.constraint = load_module("luminary.text.constraint").new("Engine:submit", o.constraint, o.tokenizer, 1)
  end
  return r
end

--- Adds a conversation, and returns it.
function Scheduler:add(r)
  table.insert(self.waiting, r)
  return r
end

-- Notes the full pages of a conversation. Those without a draft net's keys are noted later.
local function note(self, r)
  local known = self.draft_cache and math.min(r.computed, r.drafted) or r.computed
  r.noted = self.pages:note(r.pages, r.ids, known, r.noted, r.owner)
end

-- Ends a conversation, with an error or nil.
local function finish(self, r, problem)
  note(self, r)
  self.pages:drop(r.pages)
  r.done, r.problem = true, problem
end

-- Returns the pages of the youngest conversation, which is computed again later; true if that was r.
local function preempt(self, r)
  local last = table.remove(self.running)
  self.pages:drop(last.pages)
  last.computed, last.drafted, last.noted = 0, 0, 0
  table.insert(self.waiting, 1, last)
  return last == r
end

-- Begins waiting conversations as far as there is room for their tokens so far.
local function admit(self)
  while self.waiting[1] and #self.running < self.settings.max_sequences do
    local r = self.waiting[1]
    r.computed = self.pages:find(r.pages, r.ids, r.owner)
    r.drafted, r.noted = r.computed, #r.pages
    if not self.pages:grow(r.pages, #r.ids) then
      self.pages:drop(r.pages)
      break
    end
    if r.saved and r.saved.computed > r.computed then
      sessions.put(self, r.saved, r.pages, r.computed)
      r.computed = r.saved.computed
    end
    r.saved = nil -- if its pages are given back, it is computed again
    self.running[#self.running + 1] = table.remove(self.waiting, 1)
  end
end

-- Returns the tokens of a step as {r, first, n, drafts, keep}: the latest of each conversation, and parts of prompts.
-- keep: 1 if the conversation's next token is chosen then, else 0.
local function planned(self)
  local plan, budget, i = {}, self.settings.chunk, 1
  while self.running[i] do
    local r = self.running[i]
    local n, is_lost = #r.ids - r.computed, false
    if n > 1 then n = math.min(n, budget) end
    while n > 0 and not is_lost and not self.pages:grow(r.pages, r.computed + n) do is_lost = preempt(self, r) end
    if n > 0 and not is_lost then
      plan[#plan + 1] = {r = r, first = r.computed + 1, n = n, drafts = {}, keep = r.computed + n == #r.ids and 1 or 0}
      if #r.ids - r.computed > 1 then budget = budget - n end
    end
    i = i + 1
  end
  return plan
end

-- Computes the tokens of a plan by a net, the ids of each conversation from `first` on and then its drafts; returns
-- scores [K, V], float32, after the last `keep` of each.
local function compute(self, net, cache, plan)
  local device = net:embedding().device
  local ids, sequences, positions, slots, tables, kept, most = {}, {}, {}, {}, {}, {}, 0
  for s, each in ipairs(plan) do
    local r = each.r
    for i = 1, each.n + #each.drafts do
      local k, at = #ids + 1, each.first + i - 2
      ids[k], sequences[k], positions[k] = i <= each.n and r.ids[at + 1] or each.drafts[i - each.n], s, at + 1
    end
    lists.append(slots, self.pages:slots(r.pages, each.first, each.first + each.n + #each.drafts - 1))
    for i = #ids - each.keep + 1, #ids do kept[#kept + 1] = i end
    tables[s], most = r.pages, math.max(most, #r.pages)
  end
  for s, pages in ipairs(tables) do
    tables[s] = lists.copy(pages)
    for i = #pages + 1, most do tables[s][i] = 1 end
  end
  local function tensor(list) return core.tensor(list, {dtype = "int64", device = device}) end
  local step = self.pages.step
  step.slots, step.pages, step.sequences, step.positions = tensor(slots), tensor(tables), tensor(sequences),
    tensor(positions)
  local y = net(tensor(ids):unsqueeze(1), {
    cache = cache, position_ids = step.positions:unsqueeze(1), logits_to_keep = tensor(kept),
  })
  return y:squeeze(1):float()
end

-- Returns the next token of a conversation. best: the likeliest, if no option changes it.
local function chosen(r, scores, best)
  local o = r.o
  local is_plain = not o.do_sample and o.repetition_penalty == 1 and o.no_repeat_ngram_size == 0
    and not o.bad_words_ids and not r.constraint and r.count >= o.min_new_tokens
  if is_plain then
    if r.count == 0 then o.check_vocabulary(scores.shape[2]) end
    return best
  end
  local ids = core.tensor({r.ids}, {dtype = "int64", device = scores.device})
  scores = logits_processors.allowed(scores, ids, {r.ids}, r.count, o)
  if r.constraint then scores = r.constraint:restrict(scores, o.ends, {}) end
  return (o.do_sample and logits_processors.drawn(scores, o) or scores:argmax(2, {keepdim = true})):item()
end

-- Appends a token; ends the conversation if that is its last.
local function append(self, r, token)
  r.computed = #r.ids
  r.ids[#r.ids + 1], r.count = token, r.count + 1
  local is_over = r.constraint and r.constraint:advance(1, token) or r.o.is_end(r.ids)
  if is_over or r.count == r.o.max_new_tokens then finish(self, r) end
end

-- Appends the next token of an entry of a plan, and those after it as far as its drafts are right. scores and best: of
-- the step, where its own follow row `row`.
local function continue(self, each, scores, best, row)
  local r, count = each.r, each.r.count
  for i = 1, #each.drafts + 1 do
    local token = chosen(r, scores:narrow(1, row + i, 1), best[row + i])
    append(self, r, token)
    if r.done or token ~= each.drafts[i] then break end
  end
  drafts.learn(r, #each.drafts, r.count - count - 1, self.settings.draft_tokens)
end

--- Computes the next token of each conversation, or a part of its prompt, with a net in evaluation mode. After an
--- error nothing has changed.
function Scheduler:step()
  for _, r in ipairs(lists.joined(self.running, self.waiting)) do
    if r.is_canceled then finish(self, r) end
  end
  local function is_open(r) return not r.done end
  self.running, self.waiting = lists.filter(self.running, is_open), lists.filter(self.waiting, is_open)
  admit(self)
  local plan = planned(self)
  if #plan > 0 then
    if self.settings.draft ~= nil then drafts.add(self, plan, compute) end
    local scores, row = compute(self, self.net, self.cache, plan), 0
    local best = scores:argmax(2):tolist()
    for _, each in ipairs(plan) do
      local r = each.r
      r.computed = r.computed + each.n
      note(self, r)
      if each.keep > 0 then
        local ok, problem = pcall(continue, self, each, scores, best, row)
        if not ok then finish(self, r, problem) end
      end
      row = row + each.keep
    end
    self.running = lists.filter(self.running, is_open)
  end
end

--- Ends all conversations, and returns them.
function Scheduler:clear()
  local all = lists.append(self.running, self.waiting)
  for _, r in ipairs(all) do finish(self, r) end
  self.running, self.waiting = {}, {}
  return all
end

return Scheduler

--- serve.Engine: Generates the texts of many conversations with one language model. A step computes the next tokens
--- of all of them together, and parts of new prompts beside (Yu et al. 2022, Kwon et al. 2023).
local core = require "luminary.core"
local class = require "luminary.base.class"
local lists = require "luminary.base.lists"
local load_module = require "luminary.base.load_module"
local options = require "luminary.base.options"
local signature = require "luminary.base.signature"
local common = require "luminary.models.common"
local generation_config = require "luminary.models.generation_config"
local generation_options = require "luminary.models.generation_options"
local logits_processors = require "luminary.models.logits_processors"
local in_mode = require "luminary.nn.in_mode"
local Pages = require "luminary.serve.pages"
local streamer = require "luminary.text.streamer"

local fail = options.fail

-- ---- a conversation

local Request = class.define "Request"

function Request:init(fields)
  for name, value in pairs(fields) do self[name] = value end
end

--- Ends the conversation; what it has so far stays in request.ids.
function Request:cancel() self.is_canceled = true end

function Request:repr()
  return ("Request(%d tokens, %s)"):format(#self.ids, self.done and "done" or "open")
end

-- ---- the engine

local Engine = class.define "Engine"

--- serve.Engine(…): Makes an engine for a language model of lm.models. page_size: positions of a page. max_tokens:
--- positions of all pages, which conversations share. max_sequences: conversations that are computed at once; others
--- wait. chunk: most tokens of prompts in a step, on which the time between two tokens of others depends. dtype: of
--- keys and values, the model's by default. Conversations that begin with the same tokens share their keys and values,
--- also with those that have ended, as long as there is room.
Engine.init = signature.of([[Engine(net: module, {max_tokens: count = 8192, page_size: count = 16,
  max_sequences: count = 16, chunk: count = 256, dtype: string})]], function(self, net, o)
  if not net:is(common.LanguageModel) then
    options.must_be("Engine", "net", "a language model of lm.models, as lm.models.gpt2 makes it", net)
  end
  local rope = net.config.rope_scaling or {}
  if rope.rope_type == "dynamic" or rope.long_factor then
    fail("Engine: rope_scaling of rope_type '%s' is not supported", rope.rope_type)
  elseif net.config.attn_logit_softcapping then
    fail "Engine: attn_logit_softcapping is not supported"
  elseif o.max_tokens < o.page_size then
    options.must_be("Engine", "max_tokens", ("at least page_size, %d"):format(o.page_size), o.max_tokens)
  end
  self.net, self.settings = net, o
  self.room = math.floor(o.max_tokens / o.page_size) * o.page_size
  self.pages = Pages(net, self.room / o.page_size, o.page_size, o.dtype or net:embedding().dtype)
  self.waiting, self.running = {}, {}
end)

--- engine:submit(ids [, {…}]): Adds a conversation with the options of net:generate but those of beams; returns it.
--- ids: int64 [L], or a list. request.ids is the list of its tokens so far; request.done becomes true at its end;
--- request.problem is an error that ended it.
function Engine:submit(ids, opts)
  local who = "Engine:submit"
  local o = generation_options.read(who, self.net, opts)
  for _, name in ipairs {"attention_mask", "streamer"} do
    if o[name] then fail("%s: %s is not supported", who, name) end
  end
  if o.num_beams > 1 or o.num_return_sequences > 1 then
    fail("%s: num_beams and num_return_sequences must be 1; submit the conversation several times", who)
  end
  if core.is_tensor(ids) then
    if ids.ndim ~= 1 or ids.dtype ~= "int64" then options.must_be(who, "ids", "an int64 tensor [L] or a list", ids) end
    ids = ids:tolist()
  end
  ids = options.arg(who, "ids", ids, "count[]")
  local r = Request {ids = lists.copy(ids), prompt = #ids, o = o, pages = {}, count = 0, computed = 0, noted = 0}
  r.done = false
  r.constraint = o.constraint and load_module("luminary.text.constraint").new(who, o.constraint, o.tokenizer, 1)
  if r.prompt == 0 then options.must_be(who, "ids", "at least one token", ids) end
  local capacity = math.min(self.net.config.max_positions + 1, self.room)
  generation_config.resolve_lengths(who, o, o.given, o.from_file, r.prompt, capacity)
  if r.prompt + o.max_new_tokens > capacity then
    fail("%s: %d tokens and %d new ones are more than %d, the least of the model's positions and max_tokens", who,
      r.prompt, o.max_new_tokens, capacity)
  end
  local rows = self.net:embedding().shape[1]
  for i, token in ipairs(r.ids) do
    if token > rows then options.must_be(who, ("ids[%d]"):format(i), "from 1 to " .. rows, token) end
  end
  if o.on_text then
    r.tell = streamer(function(tokens) return generation_options.text_of(o.tokenizer, tokens) end, o.on_text)
  end
  table.insert(self.waiting, r)
  return r
end

-- Ends a conversation, with an error or nil.
local function finish(self, r, problem)
  self.pages:drop(r.pages)
  r.done, r.problem = true, problem
  if r.tell and not problem then r.tell(nil) end
end

-- Returns the pages of the youngest conversation, which is computed again later; true if that was r.
local function preempt(self, r)
  local last = table.remove(self.running)
  self.pages:drop(last.pages)
  last.computed, last.noted = 0, 0
  table.insert(self.waiting, 1, last)
  return last == r
end

-- Begins waiting conversations as far as there is room for their tokens so far.
local function admit(self)
  while self.waiting[1] and #self.running < self.settings.max_sequences do
    local r = self.waiting[1]
    r.computed = self.pages:find(r.pages, r.ids)
    r.noted = #r.pages
    if not self.pages:grow(r.pages, #r.ids) then
      self.pages:drop(r.pages)
      break
    end
    self.running[#self.running + 1] = table.remove(self.waiting, 1)
  end
end

-- Returns the tokens of a step as {r, first, n}: the latest of each conversation, and parts of prompts.
local function planned(self)
  local plan, budget, i = {}, self.settings.chunk, 1
  while self.running[i] do
    local r = self.running[i]
    local n, is_lost = #r.ids - r.computed, false
    if n > 1 then n = math.min(n, budget) end
    while n > 0 and not is_lost and not self.pages:grow(r.pages, r.computed + n) do is_lost = preempt(self, r) end
    if n > 0 and not is_lost then
      plan[#plan + 1] = {r = r, first = r.computed + 1, n = n}
      if #r.ids - r.computed > 1 then budget = budget - n end
    end
    i = i + 1
  end
  return plan
end

-- Computes the tokens of a plan; returns scores [K, V], float32, of the K conversations all of whose tokens are
-- computed then, and these.
local function compute(self, plan)
  local size, device = self.settings.page_size, self.net:embedding().device
  local ids, sequences, positions, slots, tables, ends, kept, most = {}, {}, {}, {}, {}, {}, {}, 0
  for s, each in ipairs(plan) do
    local r = each.r
    for position = each.first, each.first + each.n - 1 do
      local k, at = #ids + 1, position - 1
      ids[k], sequences[k], positions[k] = r.ids[position], s, position
      slots[k] = (r.pages[math.floor(at / size) + 1] - 1) * size + at % size + 1
    end
    if each.first + each.n > #r.ids then ends[#ends + 1], kept[#kept + 1] = r, #ids end
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
  local y = self.net(tensor(ids):unsqueeze(1), {
    cache = self.pages.cache, position_ids = step.positions:unsqueeze(1), logits_to_keep = tensor(kept),
  })
  for _, each in ipairs(plan) do
    local r = each.r
    r.computed = r.computed + each.n
    r.noted = self.pages:note(r.pages, r.ids, r.computed, r.noted)
  end
  return y:squeeze(1):float(), ends
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
  local o = r.o
  r.ids[#r.ids + 1], r.count = token, r.count + 1
  local stops = r.tell and not o.ends[token] and r.tell(token) == false
  stops = r.constraint and r.constraint:advance(1, token) or stops
  if stops or o.is_end(r.ids) or r.count == o.max_new_tokens then finish(self, r) end
end

local function advance(self)
  for _, r in ipairs(self.running) do if r.is_canceled then finish(self, r) end end
  for _, r in ipairs(self.waiting) do if r.is_canceled then finish(self, r) end end
  local function is_open(r) return not r.done end
  self.running, self.waiting = lists.filter(self.running, is_open), lists.filter(self.waiting, is_open)
  admit(self)
  local plan = planned(self)
  if #plan > 0 then
    local scores, ends = compute(self, plan)
    local best = scores:argmax(2):tolist()
    for i, r in ipairs(ends) do
      local ok, problem = pcall(function() append(self, r, chosen(r, scores:narrow(1, i, 1), best[i])) end)
      if not ok then finish(self, r, problem) end
    end
    self.running = lists.filter(self.running, is_open)
  end
  return #self.running + #self.waiting
end

--- engine:step(): Computes the next token of each conversation, or a part of its prompt. Returns the number of
--- conversations that are open.
function Engine:step() return in_mode(self.net, false, advance, self) end

--- engine:run(): Computes steps until all conversations have ended.
function Engine:run()
  repeat local open = self:step() until open == 0
end

return Engine

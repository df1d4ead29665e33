--- serve.Engine: Generates the texts of many conversations with one language model, whose weights are read once a step
--- for all of them.
local core = require "luminary.core"
local class = require "luminary.base.class"
local lists = require "luminary.base.lists"
local options = require "luminary.base.options"
local signature = require "luminary.base.signature"
local common = require "luminary.models.common"
local generation_config = require "luminary.models.generation_config"
local generation_options = require "luminary.models.generation_options"
local Executor = require "luminary.mp.executor"
local failure = require "luminary.mp.worker_failure"
local block_weights = require "luminary.nn.block_weights"
local in_mode = require "luminary.nn.in_mode"
local Module = require "luminary.nn.module"
local Scheduler = require "luminary.serve.scheduler"
local generator = require "luminary.generator"
local streamer = require "luminary.text.streamer"

local fail = options.fail

-- Adds the conversation of a call, {ids = int64 [L], o = options}, to a scheduler, and returns it. The scheduler has
-- the latest tokenizer, for the calls that follow with it: a large one takes long to send, and its tree to make.
local function add(scheduler, call)
  call.o.tokenizer = call.has_tokenizer and scheduler.tokenizer or nil
  local o = generation_options.read("Engine:submit", scheduler.net, call.o)
  o.max_new_tokens = call.max_new_tokens
  if call.seed then o.generator = generator.Generator():manual_seed(call.seed) end
  return scheduler:add(call.ids:tolist(), o)
end

-- Returns the outcome of a conversation that has ended.
local function outcome_of(r)
  if r.problem then return {problem = {message = tostring(r.problem), traceback = ""}} end
  return {values = {r.ids, n = 1}, drafted = r.drafts, accepted = r.accepted}
end

-- ---- in the worker

local function serve(index, setup)
  local scheduler, task_of, open = Scheduler(setup.net:eval(), setup.settings), {}, 0
  if scheduler.draft_cache then setup.settings.draft:eval() end
  local begun = setup.begun[index + 1]
  local function finish(r, outcome)
    Executor.answer(task_of[r], outcome)
    task_of[r], open = nil, open - 1
  end
  while true do
    local task = Executor.next_task(open > 0 and 0 or nil)
    if task == nil then return end
    if task and task.problem then
      scheduler.tokenizer = nil
    elseif task then
      scheduler.tokenizer = task.args[1].tokenizer or scheduler.tokenizer
    end
    if task and not Executor.begin(task, begun) then
      Executor.answer(task, {})
    elseif task then
      local outcome = task.problem and task or failure.outcome(add, scheduler, task.args[1])
      if outcome.problem then
        Executor.answer(task, {problem = outcome.problem})
      else
        task_of[outcome.values[1]], open = task, open + 1
      end
    elseif open > 0 then
      for r, of in pairs(task_of) do r.is_canceled = r.is_canceled or Executor.is_canceled(of) end
      local outcome = failure.outcome(core.no_grad, scheduler.step, scheduler)
      if outcome.problem then
        for _, r in ipairs(scheduler:clear()) do finish(r, {problem = outcome.problem}) end
      end
      for _, r in ipairs(outcome.values and outcome.values[1] or {}) do
        for i = #r.ids - (task_of[r].args[1].streams and r.fresh or 0) + 1, #r.ids do
          Executor.answer_part(task_of[r], r.ids[i])
        end
        if r.done then finish(r, outcome_of(r)) end
      end
    end
  end
end

-- ---- on the caller's thread

-- Passes the end of a conversation to its function of tokens.
local function ended(future, outcome)
  if outcome.values then Executor.receive(future, nil) end
  local counts = future.executor.counts
  for name, n in pairs(counts) do counts[name] = n + (outcome[name] or 0) end
end

--- Computes a step when a result is needed, or lm.poll() runs.
local Inline = class.define("InlineEngine", Executor)

function Inline:submit(who, _, args, _)
  self:make_room(who)
  self.scheduler = self.scheduler or Scheduler(self.spec.setup.net, self.spec.setup.settings)
  self.scheduler.tokenizer = args[1].tokenizer or self.scheduler.tokenizer
  local future, outcome = Executor.new_future(self), failure.outcome(add, self.scheduler, args[1])
  if outcome.problem then
    Executor.resolve(future, outcome)
    return future
  end
  self.future_of = self.future_of or {}
  self.future_of[outcome.values[1]] = future
  self:set_open(self.open + 1)
  return future
end

function Inline.read() end

function Inline.finish() end -- at the end of the program nobody waits

-- Computes a step, of nets in evaluation mode.
local function step(scheduler)
  if not scheduler.draft_cache then return in_mode(scheduler.net, false, scheduler.step, scheduler) end
  return in_mode(scheduler.settings.draft, false, in_mode, scheduler.net, false, scheduler.step, scheduler)
end

function Inline:wait(_)
  for _, r in ipairs(step(self.scheduler)) do
    local future = self.future_of[r]
    for i = #r.ids - r.fresh + 1, #r.ids do Executor.receive(future, r.ids[i]) end
    if r.done then
      self.future_of[r] = nil
      self:set_open(self.open - 1)
      local outcome = outcome_of(r)
      ended(future, outcome)
      Executor.resolve(future, outcome)
    end
  end
end

function Inline:withdraw(future)
  for r, of in pairs(self.future_of) do r.is_canceled = r.is_canceled or of == future end
  return false
end

function Inline:advance()
  if self.open > 0 then self:wait() end
end

local Engine = class.define "Engine"

-- Fails unless an argument is a language model that can compute the tokens of several conversations.
local function check_net(name, net)
  if not (Module.is_module(net) and net:is(common.LanguageModel)) then
    options.must_be("Engine", name,
      (name == "net" and "" or "\"prompt\" or ") .. "a language model of lm.models, as lm.models.gpt2 makes it", net)
  end
  local rope = net.config.rope_scaling or {}
  if rope.rope_type == "dynamic" or rope.long_factor then
    fail("Engine: rope_scaling of rope_type '%s' is not supported", rope.rope_type)
  end
end

-- Fails unless a model can draft the tokens of a net.
local function check_draft(net, draft, room)
  check_net("draft", draft)
  local own, its = net.config, draft.config
  if own.vocab_size ~= its.vocab_size then
    options.must_be("Engine", "draft.config.vocab_size", ("that of the net, %d"):format(own.vocab_size), its.vocab_size)
  elseif its.max_positions < math.min(own.max_positions, room) then
    options.must_be("Engine", "draft.config.max_positions", "at least the net's or max_tokens", its.max_positions)
  end
end

--- serve.Engine(…): Makes an engine for a language model of lm.models. page_size: positions of a page. max_tokens:
--- positions of all pages, which conversations share. max_sequences: conversations that are computed at once; others
--- wait. chunk: most tokens of prompts in a step, on which the time between two tokens of others depends. dtype: of
--- keys and values, the model's by default. cache: the kind of quantized blocks that keys and values are rounded to,
--- "q8_0" or "q4_0" or another of lm.quantize; floats without it. draft: a smaller language model with the same
--- vocabulary, or "prompt" for the text so far, whose guesses of tokens that follow are computed together, at most
--- draft_tokens in a step; the tokens are the same. num_workers = 0: there is no worker thread; a step is
--- computed when the result of a conversation is waited for, or by lm.poll(). Conversations that begin with the same
--- tokens share their keys and values, also with those that have ended, as long as there is room.
Engine.init = signature.of([[Engine(net: module, {max_tokens: count = 8192, page_size: count = 16,
  max_sequences: count = 16, chunk: count = 256, dtype: string, cache: string, max_queue: integer(1, 128) = 128,
  draft, draft_tokens: count = 16, threads: count, socket_paths = false,
  num_workers: integer(0, 1) = 1})]], function(self, net, o)
  check_net("net", net)
  if o.max_tokens < o.page_size then
    options.must_be("Engine", "max_tokens", ("at least page_size, %d"):format(o.page_size), o.max_tokens)
  end
  if o.cache then
    local _, _, head_dim = net:cache_sizes()
    options.divisible("Engine", "the size of a head", head_dim, ("that of a %s block"):format(o.cache),
      block_weights.kind_of("Engine", o.cache, "cache").elements)
  end
  local pages = math.floor(o.max_tokens / o.page_size)
  self.net, self.room, self.sent = net, pages * o.page_size, {}
  if o.draft ~= nil and o.draft ~= "prompt" then check_draft(net, o.draft, self.room) end
  local settings = {pages = pages}
  for name in ("page_size max_sequences chunk dtype cache draft draft_tokens"):gmatch "%S+" do
    settings[name] = o[name]
  end
  self.executor = (o.num_workers == 0 and Inline or Executor) {
    who = "Engine", workers = o.num_workers, threads = o.threads, max_queue = o.max_queue,
    socket_paths = o.socket_paths, serve = serve, setup = {net = net, settings = settings},
    unordered = true, on_end = ended,
  }
  self.executor.counts = {drafted = 0, accepted = 0}
end)

-- Returns ids as int64 [L], checked.
local function checked_ids(self, who, ids)
  if core.is_tensor(ids) then
    if ids.ndim ~= 1 or ids.dtype ~= "int64" then options.must_be(who, "ids", "an int64 tensor [L] or a list", ids) end
  else
    ids = core.tensor(options.arg(who, "ids", ids, "count[]"), {dtype = "int64"})
  end
  local n, rows = ids:numel(), self.net:embedding().shape[1]
  if n == 0 then options.must_be(who, "ids", "at least one token", ids) end
  local least, most = ids:min():item(), ids:max():item()
  if least < 1 or most > rows then options.must_be(who, "ids", "from 1 to " .. rows, least < 1 and least or most) end
  return ids
end

-- Sets the tokenizer of a call, unless it is the latest that the worker has got.
local function set_tokenizer(self, call, tokenizer)
  local sent, _, size = self.sent, pcall(function() return #tokenizer end)
  call.has_tokenizer = tokenizer ~= nil
  if sent.tokenizer ~= tokenizer or sent.size ~= size or sent.worker ~= self.executor.workers[1] then
    call.tokenizer, self.sent = tokenizer, {tokenizer = tokenizer, size = size}
  end
end

--- engine:submit(ids [, {…, seed}]): Adds a conversation, int64 ids [L] or a list, with the options of net:generate but
--- those of beams. Returns a future of its list of tokens; future:cancel() ends it where it is. on_text gets the text
--- as it comes, and `streamer` each token, in lm.poll() and while a result is waited for. seed: of the conversation's
--- random numbers, in the place of a generator.
function Engine:submit(ids, opts)
  local who, own = "Engine:submit", lists.copy(opts or {})
  local seed = own.seed and options.arg(who, "seed", own.seed, "natural")
  own.seed = nil
  local o = generation_options.read(who, self.net, own)
  for _, name in ipairs {"attention_mask", "generator", "past_key_values"} do
    if o[name] then fail("%s: %s is not supported%s", who, name, name == "generator" and "; pass a seed" or "") end
  end
  if o.num_beams > 1 or o.num_return_sequences > 1 then
    fail("%s: num_beams and num_return_sequences must be 1; submit the conversation several times", who)
  end
  ids = checked_ids(self, who, ids)
  local capacity = math.min(self.net.config.max_positions + 1, self.room)
  generation_config.resolve_lengths(who, o, o.given, o.from_file, ids:numel(), capacity)
  if ids:numel() + o.max_new_tokens > capacity then
    fail("%s: %d tokens and %d new ones are more than %d, the least of the model's positions and max_tokens", who,
      ids:numel(), o.max_new_tokens, capacity)
  end
  if self.is_closed then fail "Engine: it is closed; make another one" end
  local write = o.streamer
  if o.on_text then
    local text = streamer(function(tokens) return generation_options.text_of(o.tokenizer, tokens) end, o.on_text)
    function write(token)
      local stops = o.streamer and token and o.streamer(token) == false
      local shows = token == nil or not o.ends[token]
      if shows then stops = text(token) == false or stops end
      return not stops
    end
  end
  local has_texts = o.stop_strings or o.constraint
  own.on_text, own.streamer, own.tokenizer = nil, nil, nil
  local call = {ids = ids, o = own, max_new_tokens = o.max_new_tokens, seed = seed, streams = write ~= nil}
  if has_texts then set_tokenizer(self, call, o.tokenizer) end
  local future = self.executor:submit(who, nil, {call}, 1)
  if has_texts then self.sent.worker = self.executor.workers[1] end
  return write and future:on_part(write) or future
end

--- engine:counts(): Returns {drafted, accepted}, the numbers of drafted tokens of the conversations that have ended.
function Engine:counts() return lists.copy(self.executor.counts) end

--- Waits for the conversations that are open, and ends the worker. Calls after it are refused.
function Engine:close()
  self.is_closed = true
  self.executor:close()
end

return Engine

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
local sessions = require "luminary.serve.sessions"
local generator = require "luminary.generator"
local streamer = require "luminary.text.streamer"

local fail = options.fail

-- Fails for an option of generate that conversations do not have.
local function check_own(who, o)
  for _, name in ipairs {"attention_mask", "generator", "past_key_values"} do
    if o[name] then fail("%s: %s is not supported%s", who, name, name == "generator" and "; pass a seed" or "") end
  end
  if o.num_beams > 1 or o.num_return_sequences > 1 then
    fail("%s: num_beams and num_return_sequences must be 1; submit the conversation several times", who)
  end
end

-- Fails if a conversation has too many tokens.
local function check_length(who, tokens, new, capacity)
  if tokens + new > capacity then
    fail("%s: %d tokens and %d new ones are more than %d, the least of the model's positions and max_tokens", who,
      tokens, new, capacity)
  end
end

-- Functions of calls: they take a scheduler and a call, and return the conversation that begins. The scheduler has the
-- latest tokenizer, for the calls that follow with it: a large one takes long to send, and its tree to make.
local actions = {}

-- Returns the conversation of a call with ids and options, checked, which the scheduler does not have yet.
local function conversation_of(scheduler, call, ids, o, max_new_tokens)
  o.tokenizer = call.has_tokenizer and scheduler.tokenizer or nil
  local read = generation_options.read(call.who, scheduler.net, o)
  check_own(call.who, read)
  check_length(call.who, #ids, max_new_tokens, call.capacity)
  read.max_new_tokens = max_new_tokens
  if call.seed then read.generator = generator.Generator():manual_seed(call.seed) end
  local r = Scheduler.conversation(ids, read)
  r.options, o.tokenizer = o, nil
  return r
end

-- Adds {ids = int64 [L], o = options, max_new_tokens}.
function actions.submit(scheduler, call)
  return scheduler:add(conversation_of(scheduler, call, call.ids:tolist(), call.o, call.max_new_tokens))
end

-- Adds the conversation of a file, with other options `o`, and with ids as a new prompt behind it.
function actions.restore(scheduler, call)
  local saved, ids = sessions.load(call.who, scheduler, call.path), call.ids and call.ids:tolist()
  local o, left = saved.options, ids and saved.max_new_tokens or saved.max_new_tokens - saved.count
  for name, value in pairs(call.o) do o[name] = value end
  left = call.o.max_new_tokens or left
  if left < 1 then
    fail("%s: '%s': the conversation has all of its tokens; pass max_new_tokens or append", call.who, call.path)
  end
  local count = ids and 0 or saved.count
  local r = conversation_of(scheduler, call, lists.append(saved.ids, ids or {}), o, left)
  r.count, r.saved, r.o.max_new_tokens = count, saved, count + left
  r.owner = ("%.9f/"):format(core.time()) -- others do not share the keys and values of a file, which may be forged
  for i = #r.ids - count + 1, r.constraint and #r.ids or 0 do r.constraint:advance(1, r.ids[i]) end
  if saved.random and not call.seed then r.o.generator = generator.Generator():set_state(saved.random) end
  return scheduler:add(r)
end

-- Saves a conversation, r; without it, one that has ended, {ids, count, …} of outcome_of.
function actions.save(scheduler, call, r)
  r = r or call.session or fail("%s: the conversation has ended; call it after future:get()", call.who)
  sessions.save(scheduler, call.path, r, r.options, r.random or r.o.generator and r.o.generator:get_state())
end

-- Returns the outcome of a conversation that has ended.
local function outcome_of(r)
  if r.problem then return {problem = {message = tostring(r.problem), traceback = ""}} end
  return {
    values = {r.ids, n = 1}, drafted = r.drafts, accepted = r.accepted,
    session = {
      ids = r.ids, owner = r.owner, count = r.count, o = {max_new_tokens = r.o.max_new_tokens}, options = r.options,
      random = r.o.generator and r.o.generator:get_state(),
    },
  }
end

-- ---- conversations of a thread

-- The open conversations of a scheduler, each with its task, which has its number: a call of a worker, or a future.
local Conversations = class.root "Conversations"

-- step(scheduler): computes a step. answer(task, outcome), answer_part(task, token): get the results of a task.
function Conversations:init(setup, step, answer, answer_part)
  self.scheduler = Scheduler(setup.net, setup.settings)
  self.step_of, self.answer, self.answer_part = step, answer, answer_part
  self.list = {}
  self.ended = {} -- the latest, {number, session}, whose ends the caller may not have read yet
end

-- Runs the action of a call for a task.
function Conversations:begin(call, task)
  self.scheduler.tokenizer = call.tokenizer or self.scheduler.tokenizer
  local function is_its(each) return each.number == call.number end
  local conversation = (lists.find(self.ended, is_its) or {}).session
  for _, r in ipairs(self.list) do conversation = is_its(r.task) and r or conversation end
  local outcome = failure.outcome(actions[call.action], self.scheduler, call, conversation)
  local r = outcome.values and outcome.values[1]
  if not r then return self.answer(task, outcome) end
  r.task, r.passed, self.list[#self.list + 1] = task, call.streams and #r.ids, r
end

local function finish(self, r, outcome)
  local task = r.task
  r.task = nil
  table.remove(self.list, lists.index_of(self.list, r))
  self.ended[#self.ended + 1] = {number = task.number, session = outcome.session}
  if #self.ended > Executor.MOST_CALLS then table.remove(self.ended, 1) end
  self.answer(task, outcome)
end

-- Computes a step of all conversations, and passes on its tokens and the conversations that end. An error ends all.
function Conversations:step()
  local outcome = failure.outcome(self.step_of, self.scheduler)
  if outcome.problem then
    for _, r in ipairs(self.scheduler:clear()) do finish(self, r, {problem = outcome.problem}) end
    return
  end
  for _, r in ipairs(lists.copy(self.list)) do -- functions that get tokens may compute further steps
    while r.passed and r.passed < #r.ids do
      r.passed = r.passed + 1
      self.answer_part(r.task, r.ids[r.passed])
    end
    if r.done and r.task then finish(self, r, outcome_of(r)) end
  end
end

-- ---- in the worker

local function serve(index, setup)
  local begun, draft = setup.begun[index + 1], setup.settings.draft
  setup.net:eval()
  if Module.is_module(draft) then draft:eval() end
  local conversations = Conversations(setup, function(scheduler) return core.no_grad(scheduler.step, scheduler) end,
    Executor.answer, Executor.answer_part)
  while true do
    local task = Executor.next_task(conversations.list[1] and 0 or nil)
    if task == nil then return end
    if task then
      task.is_canceled = not Executor.begin(task, begun)
      if task.problem then
        conversations.scheduler.tokenizer = nil
        Executor.answer(task, {problem = task.problem})
      else
        conversations:begin(task.args[1], task)
      end
    elseif conversations.list[1] then
      for _, r in ipairs(conversations.list) do
        r.is_canceled = r.is_canceled or r.task.is_canceled or Executor.is_canceled(r.task)
      end
      conversations:step()
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

-- Computes a step, of nets in evaluation mode.
local function step(scheduler)
  if not scheduler.draft_cache then return in_mode(scheduler.net, false, scheduler.step, scheduler) end
  return in_mode(scheduler.settings.draft, false, in_mode, scheduler.net, false, scheduler.step, scheduler)
end

function Inline:submit(who, _, args, _)
  self:make_room(who)
  self.conversations = self.conversations or Conversations(self.spec.setup, step, function(future, outcome)
    self:set_open(#self.conversations.list)
    Executor.resolve(future, outcome)
  end, Executor.receive)
  self.calls = (self.calls or 0) + 1
  local future = Executor.new_future(self, nil, self.calls)
  self.conversations:begin(args[1], future)
  self:set_open(#self.conversations.list)
  return future
end

function Inline.read() end
function Inline.finish() end -- at the end of the program nobody waits

function Inline:wait(_) self.conversations:step() end

function Inline:withdraw(future)
  for _, r in ipairs(self.conversations.list) do r.is_canceled = r.is_canceled or r.task == future end
  return false
end

function Inline:advance() return self.open > 0 and self:wait() end

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
  max_sequences: count = 16, chunk: count = 256, dtype: string, cache: string, max_queue: integer(1, 512) = 128,
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

-- Sends a call with the options of a conversation; returns its future. read(own): fills the call by the options as
-- generation_options.read returns them.
local function begin(self, who, opts, read)
  local own = lists.copy(opts or {})
  local call = {who = who, capacity = math.min(self.net.config.max_positions + 1, self.room)}
  call.seed = own.seed and options.arg(who, "seed", own.seed, "natural")
  own.seed = nil
  local o = read(call, own)
  check_own(who, o)
  local write = o.streamer
  if o.on_text then
    local text = streamer(function(tokens) return generation_options.text_of(o.tokenizer, tokens) end, o.on_text)
    function write(token)
      local stops = o.streamer and token and o.streamer(token) == false
      if token == nil or not o.ends[token] then stops = text(token) == false or stops end
      return not stops
    end
  end
  own.on_text, own.streamer, own.tokenizer = nil, nil, nil
  call.o, call.streams = own, write ~= nil
  local has_texts = o.stop_strings or o.constraint or call.action == "restore" and o.tokenizer
  if has_texts then set_tokenizer(self, call, o.tokenizer) end
  local future = self.executor:submit(who, nil, {call}, 1)
  if has_texts then self.sent.worker = self.executor.workers[1] end
  return write and future:on_part(write) or future
end

--- engine:submit(ids [, {…, seed}]): Adds a conversation, int64 ids [L] or a list, with the options of net:generate but
--- those of beams. Returns a future of its list of tokens; future:cancel() ends it where it is. on_text gets the text
--- as it comes, and `streamer` each token, in lm.poll() and while a result is waited for. seed: of the conversation's
--- random numbers, in the place of a generator.
function Engine:submit(ids, opts)
  local who = "Engine:submit"
  return begin(self, who, opts, function(call, own)
    local o = generation_options.read(who, self.net, own)
    ids = checked_ids(self, who, ids)
    generation_config.resolve_lengths(who, o, o.given, o.from_file, ids:numel(), call.capacity)
    check_length(who, ids:numel(), o.max_new_tokens, call.capacity)
    call.action, call.ids, call.max_new_tokens = "submit", ids, o.max_new_tokens
    return o
  end)
end

--- engine:save(future, path): Saves the conversation of a future of engine:submit or engine:restore to a file, where it
--- is now or as it ended: its tokens, keys and values, options and random numbers. Returns a future that ends when the
--- file is written. The engine computes nothing else meanwhile.
function Engine:save(future, path)
  local who = "Engine:save"
  Executor.need_future(who, future)
  if future.executor ~= self.executor then fail("%s: the future is of another engine", who) end
  local call = {who = who, action = "save", path = options.arg(who, "path", path, "string"), number = future.number}
  call.session = future:done() and (future.outcome.session
    or fail("%s: the conversation has no tokens: it failed or was canceled", who)) or nil
  return self.executor:submit(who, nil, {call}, 1)
end

--- engine:restore(path [, {…, append, seed}]): Continues the conversation of a file of engine:save, with the tokens
--- that it would have had; the engine must have the same model, and dtype or cache. Returns a future of all tokens.
--- Options of engine:submit replace those of the file; a tokenizer, on_text and streamer are never in it.
--- max_new_tokens counts from here. append: ids of a new prompt behind the conversation. No other conversation shares
--- the keys and values of a file.
function Engine:restore(path, opts)
  local who = "Engine:restore"
  path = options.arg(who, "path", path, "string")
  return begin(self, who, opts, function(call, own)
    call.action, call.path, call.ids = "restore", path, own.append and checked_ids(self, who, own.append)
    own.append = nil
    if own.max_length then fail("%s: max_length is not supported; pass max_new_tokens", who) end
    return generation_options.read(who, self.net, own)
  end)
end

--- engine:counts(): Returns {drafted, accepted}, the numbers of drafted tokens of the conversations that have ended.
function Engine:counts() return lists.copy(self.executor.counts) end

--- Waits for the conversations that are open, and ends the worker. Calls after it are refused.
function Engine:close() self.executor:close() end

return Engine

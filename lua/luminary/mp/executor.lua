--- Runs calls on worker threads with Lua states of their own, for lm.async and lm.serve: an executor has the workers, a
--- future stands for one call. Tensors pass to workers and back without copies.
---
--- Each worker runs its calls in their order and answers in it, so messages need no numbers; those of a worker that
--- answers in another order (`unordered`), or with parts of results, have the call's. With each call it gets one end of
--- a pair of sockets, which it closes after the answer, as its own end would: then the future's end is readable.
local debug = require "debug"
local os = require "os"
local core = require "luminary.core"
local class = require "luminary.base.class"
local lists = require "luminary.base.lists"
local at_exit = require "luminary.mp.at_exit"
local serializer = require "luminary.mp.serialization"
local failure = require "luminary.mp.worker_failure"
local here = require "luminary.mp.parent_channel"
local names = require "luminary.mp.module_references"
local options = require "luminary.base.options"
local shared = require "luminary.mp.shared_handle"
local Worker = require "luminary.mp.worker"
local fail = options.fail

local resolved = {} -- futures that have ended, whose callbacks lm.poll() is to run

local function encoded(who, value)
  return serializer.encode(who, value, {envelope = true, name_of = names.cached_finder()})
end

-- ---- in the worker

local outcome_of, outcome_with_value = failure.outcome, failure.outcome_with_value

-- Sends a value to the caller; waits while it has not read those in the socket's buffer, 555 with Linux's default limit
-- (net.core.wmem_max), so that a caller that does not read has no more of them in memory.
local function send(who, value) shared.send_within(nil, here.channel, encoded(who, value)) end

-- Sends the outcome of a call, and then closes the sockets that wait for it.
local function answer(task, outcome)
  outcome.number = task.number
  local why = outcome_of(send, "async: the result", outcome).problem
  if why and outcome.problem then -- the error's value cannot be sent
    why, outcome.problem.value = outcome.problem, nil
  end
  if why then send("async", {problem = why, number = task.number}) end
  -- The future's end is readable even if a fork's child has a copy of this one. Fails if there is no future any more.
  pcall(core.mp_put, task.handles[1], "", {}, {}, 0)
  for _, handle in ipairs(task.handles) do core.mp_close_handle(handle) end
  if task.path then os.remove(task.path) end
end

-- Sends a part of a call's result, for Future:on_part.
local function answer_part(task, part) send("async: a part", {part = part, number = task.number}) end

local running -- the call that `serve` runs

-- Returns true once Future:cancel was called for a call that has begun.
local function is_canceled(task) return core.mp_get(task.handles[1], 0) and true or false end

local IDLE = 0.05 -- seconds without a call until memory is freed, which takes longer than a short call

-- Returns the next call: {fn, args, n, handles}; {problem} for one that this state cannot decode; false if none came
-- within `seconds` (nil: no limit), nil if none will come.
local function next_task(seconds)
  local text, tensors, handles = core.mp_get(here.channel, seconds or IDLE)
  if text == false and not seconds then
    collectgarbage()
    collectgarbage() -- the second cycle frees memory that finalizers held
    text, tensors, handles = here.receive()
  end
  if not text then return text end
  local outcome = outcome_of(serializer.decode, text, tensors, handles)
  local task = outcome.values and outcome.values[1] or {problem = outcome.problem}
  task.handles = handles
  return task
end

--- lm.send_part(value): Within a call of lm.async, sends a value to the function of Future:on_part, such as a piece of
--- a text or the loss of a step. Returns false once Future:cancel was called, so that the call may end.
local function send_part(value)
  if not running then fail "send_part: there is no call; it must run in a function that lm.async calls" end
  answer_part(running, value)
  running.is_canceled = running.is_canceled or is_canceled(running)
  return not running.is_canceled
end

-- Counts a call as begun, in `begun`; returns whether it is to run.
local function begin(task, begun)
  begun:add_(1)
  return not core.mp_get(task.handles[1], 0) -- the message of Future:cancel
end

-- Waits for the work of a call on devices, so that its future does not end earlier; returns the call's outcome, or the
-- error of a kernel.
local function finish(outcome)
  local problem = core.streams_finish()
  if not problem or outcome.problem then return outcome end
  return {problem = {message = problem, traceback = ""}}
end

local function forward(module, ...) return module(...) end

-- Runs calls one by one.
local function serve(index, setup)
  local task, begun = next_task(), setup.begun[index + 1]
  while task do
    running = task
    if not begin(task, begun) then
      answer(task, {})
    elseif task.problem then
      answer(task, {problem = task.problem})
    elseif task.without_grad then
      answer(task, finish(outcome_with_value(core.no_grad, forward, task.fn, unpack(task.args, 1, task.n))))
    else
      answer(task, finish(outcome_with_value(task.fn, unpack(task.args, 1, task.n))))
    end
    task = next_task()
  end
end

-- ---- futures

local Future = class.define "Future"

local of_future = debug.getmetatable(Future).instance

-- Returns a future, faster than a call of its class. number: of its worker's calls, from 1. socket: its end of the pair
-- whose other end the worker closes; false if there is no worker.
local function new_future(executor, worker, number, socket, path)
  return class.object(Future, nil, setmetatable({
    executor = executor, worker = worker, number = number, socket = socket or false, path = path or false,
    process = executor.process, outcome = false, callbacks = false, is_watched = false, receiver = false,
    problem = false,
  }, of_future))
end

local function executor_of(self, method)
  if self.process ~= core.process_id() then
    fail("Future:%s: the call was made in process %d, which forked this one; only that process has its result",
      method, self.process)
  end
  return self.executor
end

--- Returns whether the call has ended: with a result, with an error, or canceled.
function Future:done()
  executor_of(self, "done"):read()
  return self.outcome ~= false
end

local function wait(self, method, timeout)
  local executor = executor_of(self, method)
  local deadline = timeout and core.time() + timeout or math.huge
  while not self:done() do
    local left = deadline - core.time()
    if left <= 0 then return false end
    executor:wait(math.min(left, 0.5))
  end
  return true
end

--- Waits for the call's end, `timeout` seconds at most (nil: no limit); returns whether it has ended.
function Future:wait(timeout) return wait(self, "wait", shared.seconds("Future:wait", timeout)) end

--- Waits for the call and returns its results. An error of the function is raised, with its traceback, or, if it is a
--- table, a copy of it; so is a timeout, in seconds, by position or as {timeout = s}.
function Future:get(timeout)
  local outcome = self.outcome
  if not outcome then
    timeout = shared.seconds("Future:get", timeout)
    if not wait(self, "get", timeout) then fail("Future:get: timeout: no result within %g s", timeout) end
    outcome = self.outcome
  end
  if outcome.problem and outcome.problem.value then error(outcome.problem.value, 0) end
  if outcome.problem then core.error_at_caller("Future:get: " .. failure.text(outcome.problem, "the worker")) end
  if not outcome.values then fail "Future:get: the call was canceled" end
  return unpack(outcome.values, 1, outcome.values.n)
end

--- Returns the error that ended the call, its message or a copy of the table, or nil; fails before the end.
function Future:exception()
  if not self:done() then fail "Future:exception: the call has not ended; call future:wait() first" end
  local outcome = self.outcome
  if outcome.problem then return outcome.problem.value or failure.text(outcome.problem, "the worker") end
  return not outcome.values and "the call was canceled" or nil
end

--- Cancels the call unless it has begun; in one that has, lm.send_part returns false. Returns whether it will not run.
function Future:cancel()
  local executor = executor_of(self, "cancel")
  if self:done() then return self:cancelled() end
  local never_runs = executor:withdraw(self)
  if never_runs then executor.resolve(self, {}) end
  return never_runs
end

--- Returns whether the call was canceled before it began.
function Future:cancelled() return self:done() and not (self.outcome.values or self.outcome.problem) end

--- Calls fn(future) after the call's end, in the next lm.poll() of this thread. Returns the future.
function Future:on_done(fn)
  options.arg("Future:on_done", "fn", fn, "function")
  executor_of(self, "on_done")
  self.callbacks = self.callbacks or {}
  table.insert(self.callbacks, fn)
  if self.outcome and #self.callbacks == 1 then table.insert(resolved, self) end
  return self
end

--- Calls fn(value) for each value that the call sends by lm.send_part, in lm.poll() and while a result is waited for.
--- The call is canceled if fn returns false, and fails by its error. Returns the future.
function Future:on_part(fn)
  self.receiver = options.arg("Future:on_part", "fn", fn, "function")
  return self
end

-- Passes a part of a call, or the nil at the end of some, to the future's function.
local function receive(future, part)
  if not (future and future.receiver) then return end
  local ok, result = pcall(future.receiver, part)
  if not ok then future.problem = {message = tostring(result), traceback = ""} end
  if ok and result ~= false then return end
  future.receiver = false
  if part ~= nil then future:cancel() end
end

--- Returns a descriptor that is readable from the call's end on, for a host's own poll. It belongs to the future: do
--- not close it, and stop watching it before the future is garbage.
function Future:fileno()
  if not self.socket then fail "Future:fileno: the call runs on this thread; call future:get() or lm.poll()" end
  self.is_watched = true
  if not core.mp_is_open(self.socket) then -- the call had ended
    self.socket = core.mp_pipe()
    core.mp_stop_reading(self.socket)
  end
  return core.mp_fileno(self.socket)
end

--- Returns the path of a Unix socket. A connection to it stays open until the call's end, which closes it; after that a
--- connection is refused. Needs {socket_paths = true} in lm.set_async or lm.serve.Batcher.
function Future:socket_path()
  if not self.path then
    fail "Future:socket_path: the call has none; before it, call lm.set_async {socket_paths = true}"
  end
  return self.path
end

function Future:repr()
  local outcome = self.outcome
  local state = not outcome and "pending" or outcome.problem and "failed" or outcome.values and "done" or "canceled"
  return ("Future(%s)"):format(state)
end

local function need_future(who, v)
  if not class.is(v, Future) then options.must_be(who, "future", "a future of lm.async or lm.serve", v) end
end

-- Sets the outcome of a future, notes it for callbacks, and makes its descriptor readable, as the worker does later.
local function resolve(future, outcome)
  if future.outcome then return end
  future.outcome = outcome -- which functions that on_end calls may wait for
  local on_end = future.executor.spec.on_end
  if on_end then on_end(future, outcome) end
  future.outcome = future.problem and {problem = future.problem} or outcome
  if future.socket then (future.is_watched and core.mp_stop_reading or core.mp_close_handle)(future.socket) end
  if future.callbacks then table.insert(resolved, future) end
end

-- ---- the executor

local Executor = class.define "Executor"
Executor.__inner = {"submit", "make_room", "set_open", "read", "wait", "withdraw", "advance", "close", "finish"}

--- Sets the state without workers and calls; also in a child of a fork, whose parent keeps its own.
function Executor.renew(self)
  if self.process == core.process_id() then return end
  self.workers, self.pending, self.open, self.process = {}, {}, 0, core.process_id()
  at_exit.forget(self)
end

--- Sets the number of open calls. While there are any, the executor stays alive, also at the end of the program.
function Executor:set_open(n)
  if n == 0 then at_exit.forget(self) elseif self.open == 0 then at_exit.remember(self) end
  self.open = n
end

--- Makes an executor that has not started its workers. spec: who (for errors), workers, threads (compute threads of
--- each), nice (the workers' niceness), max_queue (calls that are open at a time), socket_paths, serve and setup (the
--- workers' function and its argument), unordered, and on_end(future, outcome).
function Executor:init(spec)
  self.spec, self.paths = spec, 0
  Executor.renew(self)
end

-- Returns the job that all workers run, and sets self.begun, the numbers of calls that each of them has begun.
local function new_job(self)
  local setup = lists.copy(self.spec.setup or {})
  self.begun = core.ops.zeros({self.spec.workers, 1}, {dtype = "int64"})
  setup.begun = self.begun
  return Worker.job(self.spec.who, self.spec.serve or serve, {setup}, "thread")
end

-- Returns the worker with the fewest open calls, which is started first if it does not run.
local function next_worker(self)
  self.job = self.job or new_job(self)
  local best
  for i = 1, self.spec.workers do
    local worker = self.workers[i]
    if not worker then
      worker = Worker.start(self.spec.who, {
        method = "thread", job = self.job, index = i - 1, threads = self.spec.threads, nice = self.spec.nice,
        own_streams = true,
      })
      worker.waiting, worker.first, worker.last = {}, 1, 0
      self.begun[i]:fill_(0)
      self.workers[i] = worker
    end
    local n = worker.last - worker.first
    if not best or n < best.last - best.first then best = worker end
    if n < 0 then break end
  end
  return best
end

-- Returns a new path for a socket, in the folder for temporary files.
local function new_path(self)
  self.paths = self.paths + 1
  return ("%s/luminary-%d-%x-%d.sock"):format(core.getenv "TMPDIR" or "/tmp", self.process,
    core.time() * 1e6 % 2 ^ 32, self.paths)
end

local function take(self, worker, outcome)
  local at = outcome.number or worker.first
  local future = worker.waiting[at]
  worker.waiting[at] = nil
  while worker.first <= worker.last and not worker.waiting[worker.first] do worker.first = worker.first + 1 end
  self:set_open(self.open - 1)
  resolve(future, outcome)
end

-- Ends the open calls of a worker with an error.
local function fail_calls(self, worker, text)
  while worker.first <= worker.last do take(self, worker, {problem = {message = text, traceback = ""}}) end
end

-- Drops a worker that has ended, with an error for each of its open calls. Returns how it ended; nil if it runs.
local function drop_dead(self, worker)
  if not worker:join(1) then return nil end -- a thread closes its channel before it ends
  local problem = worker:failure()
  local text = "the worker "
    .. (problem and problem.message and "ended: " .. problem.message or Worker.how_it_ended(worker))
  fail_calls(self, worker, text)
  self.workers[worker.index + 1] = nil
  return text
end

Executor.MOST_CALLS = 512 -- limit of a worker; more may not fit into the buffer of its socket

--- Fails if max_queue calls are open, after reading the answers that have come, or if it is closed.
function Executor:make_room(who)
  if self.is_closed then fail("%s: it is closed; make another one", self.spec.who) end
  Executor.renew(self)
  if self.open >= math.min(self.spec.max_queue, Executor.MOST_CALLS) then self:read() end
  if self.open >= self.spec.max_queue then
    fail("%s: %d calls are open, which is the limit; wait for one (future:get(), lm.poll()), or allow more (max_queue)",
      who, self.open)
  end
end

local function send_task(channel, who, task) shared.send(channel, encoded(who, task)) end

--- Sends a call to a worker; returns its future. without_grad: the call computes as in lm.no_grad.
function Executor:submit(who, fn, args, n, without_grad)
  self:make_room(who)
  local worker = next_worker(self)
  local socket, its = core.mp_pipe()
  local task = {fn = fn, args = args, n = n, without_grad = without_grad or nil, its}
  task.number = self.spec.unordered and worker.last + 1 or nil
  if self.spec.socket_paths then
    task.path = new_path(self)
    task[2] = core.mp_listen(task.path)
  end
  local ok, problem = pcall(send_task, worker.channel, who, task)
  for _, handle in ipairs(task) do core.mp_close_handle(handle) end
  if not ok then
    if task.path then os.remove(task.path) end
    self:read()
    local why = drop_dead(self, worker)
    if why then fail("%s: %s; the next call starts another one", who, why) end
    error(problem, 0)
  end
  worker.last = worker.last + 1
  self:set_open(self.open + 1)
  local future = new_future(self, worker, worker.last, socket, task.path)
  worker.waiting[worker.last] = future
  return future
end

--- Prevents a call unless it has begun; returns whether it will not run. A worker that answers in another order answers
--- such calls, too.
function Executor:withdraw(future)
  pcall(core.mp_put, future.socket, "", {}, {}, 0) -- fails if the worker has just closed its end
  return not self.spec.unordered and self.begun[future.worker.index + 1]:item() < future.number
end

-- Reads the answers of a worker; returns whether calls of it are open.
local function read_answers(self, worker)
  while worker.first <= worker.last do
    local text, tensors, handles = core.mp_get(worker.channel, 0)
    if not text then break end
    local outcome = serializer.decode(text, tensors, handles)
    if outcome.ok ~= nil then -- the report with which a worker ends
      worker.report = outcome
      break
    end
    if outcome.part == nil then
      take(self, worker, outcome)
    else
      receive(worker.waiting[outcome.number or worker.first], outcome.part)
    end
  end
  return worker.first <= worker.last
end

--- Reads the answers that have come.
function Executor:read()
  for _, worker in pairs(self.workers) do
    if read_answers(self, worker) and core.mp_ended(worker.handle) and read_answers(self, worker) then
      drop_dead(self, worker)
    end
  end
end

-- Returns `list` with the workers that have open calls.
local function with_waiting(self, list)
  for _, worker in pairs(self.workers) do
    if worker.first <= worker.last then list[#list + 1] = worker end
  end
  return list
end

--- Waits until an answer comes, `seconds` at most.
function Executor:wait(seconds)
  local waiting = with_waiting(self, {})
  if #waiting > 0 then Worker.wait(waiting, seconds) end
end

--- Resolves the calls that have ended, before lm.poll() runs their callbacks.
Executor.advance = Executor.read

-- Runs the callbacks of calls that have ended; returns their number. After all of them, raises the first error.
local function run_callbacks()
  local count, ok, problem = 0, true, nil
  while #resolved > 0 do
    local future = table.remove(resolved, 1)
    local callbacks = future.process == core.process_id() and future.callbacks or {}
    future.callbacks = false
    for _, fn in ipairs(callbacks) do
      local ran, why = pcall(fn, future)
      if ok and not ran then ok, problem = false, why end
      count = count + 1
    end
  end
  if not ok then error(problem, 0) end
  return count
end

--- Waits for the open calls, `seconds` at most (nil: no limit), ends the workers, and with an error calls that are
--- still open. Refuses calls from here on.
function Executor:close(seconds)
  local deadline = core.time() + (seconds or math.huge)
  self.is_closed = true
  if self.process == core.process_id() then
    self:read()
    while self.open > 0 and core.time() < deadline do
      self:wait(math.min(0.5, deadline - core.time()))
      self:read()
    end
    local workers = {}
    for _, worker in pairs(self.workers) do workers[#workers + 1] = worker end
    Worker.stop(workers, seconds and 0.1 or 1)
    for _, worker in ipairs(workers) do fail_calls(self, worker, "the worker was closed before the call ended") end
  end
  self.workers = {}
  at_exit.forget(self)
end

-- Runs when the Lua state closes.
function Executor:finish() self:close(at_exit.seconds_left()) end

--- Runs the functions that Future:on_done registered on this thread, of the calls that have ended; before, waits up to
--- `seconds` (default 0) for an end. Returns the number of functions that ran. An error of one is raised after all have
--- run.
function Executor.poll(seconds)
  seconds = shared.seconds("poll", seconds) or 0
  local deadline = core.time() + seconds
  while true do
    local waiting = {}
    for _, executor in ipairs(lists.copy(at_exit.objects)) do
      if executor.advance and executor.process == core.process_id() then
        executor:advance()
        with_waiting(executor, waiting)
      end
    end
    local count, left = run_callbacks(), deadline - core.time()
    if count > 0 or #waiting == 0 or left <= 0 then return count end
    Worker.wait(waiting, math.min(left, 0.5))
  end
end

Executor.Future, Executor.new_future, Executor.resolve, Executor.need_future = Future, new_future, resolve, need_future
Executor.next_task, Executor.begin, Executor.answer, Executor.finish_work = next_task, begin, answer, finish
Executor.answer_part, Executor.is_canceled, Executor.receive = answer_part, is_canceled, receive
Executor.send_part, Executor.serve = send_part, serve -- fields, which are found without a scan of all modules

return Executor

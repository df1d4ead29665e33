--- lm.mp.Pool: Runs functions with arguments in a pool of worker processes or threads.

-- The workers take tasks from a queue themselves, so that they stay busy whatever the script does. Before a task leaves
-- the queue, its worker writes the task's number to shared memory, so that the pool knows the task of a killed worker.
local core = require "luminary.core"
local class = require "luminary.base.class"
local lists = require "luminary.base.lists"
local at_exit = require "luminary.mp.at_exit"
local serializer = require "luminary.mp.serialization"
local failure = require "luminary.mp.worker_failure"
local results_as_list = require "luminary.base.results_as_list"
local options = require "luminary.base.options"
local signature = require "luminary.base.signature"
local Queue = require "luminary.mp.queue"
local shared = require "luminary.mp.shared_handle"
local Worker = require "luminary.mp.worker"
local fail = options.fail

-- ---- in the worker

local outcome_of = failure.outcome

-- Adds an outcome. Most calls return one value, which is in `values`; other outcomes are in `others`.
local function add_outcome(reply, k, outcome)
  if outcome.values and outcome.values.n == 1 then
    reply.values[k] = outcome.values[1]
  else
    reply.others = reply.others or {}
    reply.others[k] = outcome
  end
end

local function outcome_in(reply, k)
  if reply.problem then return {problem = reply.problem} end
  return reply.others and reply.others[k] or {values = {n = 1, reply.values[k]}}
end

local CLAIM, ARGUMENT = 1, 2 -- columns of `claims`

-- Runs tasks until it receives a task with `stop`. setup: {tasks, results, claims, initializer, initargs}.
local function serve(index, setup)
  local tasks, results, claims = setup.tasks, setup.results, setup.claims
  local own = claims[index + 1]
  if setup.initializer then setup.initializer(unpack(setup.initargs, 1, table.maxn(setup.initargs))) end
  while true do
    local text, tensors, handles = shared.wait(nil, core.mp_get, tasks.handle, claims, 2 * index + 1)
    local taken = outcome_of(serializer.decode, text, tensors, handles)
    local task = taken.values and taken.values[1]
    if task and task.stop then return end
    local reply = {id = own[CLAIM], worker = index, values = {}, problem = taken.problem}
    if task then
      for i = task.first, task.last do
        own[ARGUMENT] = i
        local v = task.args[i]
        local args = task.unpacked and v or {v, n = 1}
        add_outcome(reply, i - task.first + 1, outcome_of(task.fn, unpack(args, 1, args.n or table.maxn(args))))
      end
    end
    local sent = outcome_of(results.send, results, "the result", reply, true)
    if sent.problem then
      results:send("the result", {id = reply.id, worker = index, problem = sent.problem}, true)
    end
  end
end

-- ---- results and outcomes

local Result = class.define "Result"

function Result:init(pool, who, n)
  self.pool, self.who, self.n, self.open, self.outcomes = pool, who, n, n, {}
end

-- ---- the pool

local Pool = class.define "Pool"
Pool.__inner = {"finish"}

local MOST_DEATHS = 8 -- workers in a row that end before any took a task; a few may have been killed from outside

local function name_of(worker)
  return worker.pid and ("worker %d (process %d)"):format(worker.index, worker.pid) or "worker " .. worker.index
end

local function start(self, i)
  self.claims[i]:fill_(0)
  self.workers[i] = Worker.start("Pool", {
    method = self.method, job = self.job, index = i - 1, threads = self.threads,
  })
end

local function resolve(result, i, outcome)
  if result.outcomes[i] then return end
  result.outcomes[i] = outcome
  result.open = result.open - 1
  if outcome.problem and not result.failed then result.failed = i end
end

-- Resolves a task; outcome_at(k, …) returns its k-th argument's outcome. A JIT trace retains closures that it calls, so
-- a reply is passed as an argument and not captured.
local function resolve_task(self, id, outcome_at, ...)
  local task = self.tasks[id]
  if not task then return end
  self.tasks[id], self.open = nil, self.open - 1
  for i = task.first, task.last do resolve(task.result, i, outcome_at(i - task.first + 1, ...)) end
end

local function outcome_from(k, reply, worker)
  local outcome = outcome_in(reply, k)
  if outcome.problem then outcome.who = name_of(worker) .. " failed:" end
  return outcome
end

local function read(self)
  local count = 0
  while true do
    local has_arrived, reply = self.results:take(0)
    if not has_arrived then return count end
    local worker = self.workers[reply.worker + 1]
    resolve_task(self, reply.id, outcome_from, reply, worker)
    self.deaths, count = 0, count + 1
  end
end

local function break_down(self, why)
  self.broken = why
  for id in pairs(self.tasks) do
    resolve_task(self, id, function() return {problem = {message = why, traceback = ""}} end)
  end
end

local function how_it_ended(worker, when)
  return Worker.how_it_ended(worker:failure() or worker, "the worker", when)
end

-- Replaces worker i, which has ended and whose messages are all read; its task's open results become errors.
local function reap(self, i)
  local worker, claim = self.workers[i], self.claims[i][CLAIM]
  local at = self.claims[i][ARGUMENT]
  worker.reaped = true
  if self.stopped then return end
  local how = how_it_ended(worker)
  local task = self.tasks[claim]
  if task and not core.mp_queue_has(self.tasks_queue.handle, claim) then
    local index = at >= task.first and at <= task.last and at or task.first
    resolve(task.result, index, {problem = {message = how, traceback = ""}, who = name_of(worker)})
    resolve_task(self, claim, function()
      local text = ("lost with %s, which %s at argument %d"):format(name_of(worker), how, index)
      return {problem = {message = text, traceback = ""}}
    end)
    self.deaths = 0
  elseif claim == 0 then
    self.deaths = self.deaths + 1
    local has_reported = worker.report and not worker.report.ok
    if has_reported or self.deaths >= MOST_DEATHS then
      return break_down(self, ("%s %s"):format(name_of(worker), how_it_ended(worker, " before it took any task")))
    end
  end
  -- A worker that received its stop message needs no successor, which would wait for another: all tasks are taken.
  if self.closed and (self.open == 0 or claim > self.put) then return end
  local ok, problem = pcall(start, self, i)
  if not ok then break_down(self, "cannot start another worker: " .. tostring(problem)) end
end

-- Handles what has happened; if nothing has, waits up to `seconds` for it.
local function pump(self, seconds)
  if self.stopped then return end
  local count = read(self)
  local ended, running = {}, {}
  for i, worker in ipairs(self.workers) do
    if not worker.reaped then
      if worker:look() then ended[#ended + 1] = i else running[#running + 1] = worker end
    end
  end
  if #ended > 0 then
    read(self) -- messages sent before they ended
    for _, i in ipairs(ended) do
      if not self.broken then reap(self, i) end
    end
  elseif count == 0 and seconds > 0 then
    Worker.wait(running, seconds, self.results.handle)
    read(self)
  end
end

-- Returns the first true result of done(…), or false after `timeout` seconds.
local function wait(self, timeout, done, ...)
  local deadline = timeout and core.time() + timeout or math.huge
  while true do
    pump(self, 0)
    local what = done(...)
    if what then return what end
    local left = deadline - core.time()
    if left <= 0 then return false end
    pump(self, math.min(left, 0.5))
  end
end

local function check_whole(who, self)
  if self.broken then fail("Pool:%s: the pool is broken: %s", who, self.broken) end
end

local function check(who, self)
  if self.stopped then fail("Pool:%s: the pool was terminated", who) end
  if self.closed then fail("Pool:%s: the pool is closed and takes no more tasks", who) end
  check_whole(who, self)
end

local function meanwhile(self, who) -- workers without room for results take no tasks
  pump(self, 0)
  check_whole(who, self)
end

-- Queues tasks of `chunk` arguments each, numbered from 1. Returns their result.
local function submit(self, who, fn, list, n, chunk, unpacked)
  local result = Result(self, who, n)
  for first = 1, n, chunk do
    local last, args = math.min(n, first + chunk - 1), {}
    for i = first, last do args[i] = list[i] end
    -- A task's number is that of its message, since only the pool puts messages.
    self.tasks_queue:send("Pool:" .. who, {
      fn = fn, args = args, first = first, last = last, unpacked = unpacked,
    }, false, meanwhile, self, who)
    self.put, self.open = self.put + 1, self.open + 1
    self.tasks[self.put] = {result = result, first = first, last = last}
  end
  return result
end

local function check_list(who, list)
  if core.is_tensor(list) or not options.is_plain(list) then
    options.must_be("Pool:" .. who, "list", "a list of arguments", list)
  end
  local name = #list == 0 and options.named_field(list)
  if name and name ~= "n" then
    fail("Pool:%s: list must be a list of arguments, got a table with a field '%s'", who,
      tostring(name))
  end
  return #options.list("Pool:" .. who, "list", list)
end

local function raise(result, i)
  local outcome = result.outcomes[i]
  local where = result.single and "" or (" argument %d:"):format(i)
  local who = outcome.who and " " .. outcome.who or ""
  local text = failure.text(outcome.problem, "the worker")
  core.error_at_caller(("Pool:%s:%s%s %s"):format(result.who, where, who, text))
end

-- ---- results

-- Returns the results of a function called for an entry of a list, as one value.
local function value_of(outcome) return results_as_list.of(unpack(outcome.values, 1, outcome.values.n)) end

local function has_come(result) return result.open == 0 or result.failed ~= nil end

--- Returns whether the result or an error has arrived.
function Result:ready()
  pump(self.pool, 0)
  return has_come(self)
end

--- Waits for the result, `timeout` seconds at most (nil: no limit); returns whether it has arrived.
function Result:wait(timeout)
  timeout = shared.seconds("Result:wait", timeout)
  return wait(self.pool, timeout, has_come, self)
end

--- Returns whether there was no error; fails before the result is ready.
function Result:successful()
  if not self:ready() then fail "Result:successful: the result is not ready; call result:wait() first" end
  return self.failed == nil
end

--- Returns the result. An error in the function is raised, with its traceback; so is a timeout, in seconds.
function Result:get(timeout)
  if not self:wait(timeout) then fail("Result:get: timeout: no result within %g s", timeout) end
  if self.failed then raise(self, self.failed) end
  if self.single then return unpack(self.outcomes[1].values, 1, self.outcomes[1].values.n) end
  local list = {}
  for i = 1, self.n do list[i] = value_of(self.outcomes[i]) end
  return list
end

-- ---- tasks

local function check_call(self, who, fn)
  check(who, self)
  options.arg("Pool:" .. who, "the first argument", fn, "function")
end

local function apply(self, who, fn, args)
  check_call(self, who, fn)
  args = Worker.check_args(("Pool:%s: the second argument"):format(who), args, ("pool:%s(f, {a, b})"):format(who))
  local result = submit(self, who, fn, {args}, 1, 1, true)
  result.single = true
  return result
end

--- Starts fn(args…) in a worker; returns a result with get, wait, ready and successful.
function Pool:apply_async(fn, args) return apply(self, "apply_async", fn, args) end

--- Calls fn(args…) in a worker; returns its results.
function Pool:apply(fn, args) return apply(self, "apply", fn, args):get() end

-- Queues a call for each entry of a list. size: arguments in a task; nil: four tasks for each worker.
local function submit_list(self, who, fn, list, size, unpacked)
  check_call(self, who, fn)
  local n = check_list(who, list)
  return submit(self, who, fn, list, n, size or math.max(1, math.ceil(n / (4 * #self.workers))), unpacked)
end

--- Returns the list of fn(v) for each v of a list. If fn returns several values, the entry is a list of them, whose
--- field n is their number if one is nil. {chunksize = k}: number of arguments sent to a worker at a time.
Pool.map = signature.of("Pool:map(fn, list, {chunksize: count})", function(self, fn, list, opts)
  return submit_list(self, "map", fn, list, opts.chunksize):get()
end)

--- Does the same as map, but returns a result at once, whose get() returns the list.
Pool.map_async = signature.of("Pool:map_async(fn, list, {chunksize: count})", function(self, fn, list, opts)
  return submit_list(self, "map_async", fn, list, opts.chunksize)
end)

--- Returns the list of fn(unpack(v)) for each v of a list of lists; several results as in map.
Pool.starmap = signature.of("Pool:starmap(fn, list, {chunksize: count})", function(self, fn, list, opts)
  check("starmap", self)
  for i = 1, check_list("starmap", list) do
    Worker.check_args(("Pool:starmap: entry %d"):format(i), list[i], "pool:starmap(f, {{a, b}, {c, d}})")
  end
  return submit_list(self, "starmap", fn, list, opts.chunksize, true):get()
end)

local function hand_out(result, i)
  local outcome = result.outcomes[i]
  if outcome.problem then raise(result, i) end
  result.outcomes[i] = {values = {}}
  return i, value_of(outcome)
end

local function has_outcome(result, i) return result.outcomes[i] ~= nil end

--- Iterates over the results in the list's order: for i, v in pool:imap(fn, list) do … end, where v is fn(list[i]).
Pool.imap = signature.of("Pool:imap(fn, list, {chunksize: count})", function(self, fn, list, opts)
  local result, i = submit_list(self, "imap", fn, list, opts.chunksize or 1), 0
  return function()
    if i >= result.n then return nil end
    i = i + 1
    wait(self, nil, has_outcome, result, i)
    return hand_out(result, i)
  end
end)

--- Does the same as imap, but in the order in which results arrive; i is the index in the list.
Pool.imap_unordered = signature.of("Pool:imap_unordered(fn, list, {chunksize: count})", function(self, fn, list, opts)
  local result = submit_list(self, "imap_unordered", fn, list, opts.chunksize or 1)
  local given, count, from = {}, 0, 1
  local function next_one()
    while given[from] do from = from + 1 end
    for i = from, result.n do
      if result.outcomes[i] and not given[i] then return i end
    end
  end
  return function()
    if count == result.n then return nil end
    local i = wait(self, nil, next_one)
    given[i], count = true, count + 1
    return hand_out(result, i)
  end
end)

-- ---- closing

--- Closes the pool: it takes no more tasks, and the workers end when all tasks are done.
function Pool:close()
  if self.closed or self.stopped then return end
  self.closed = true
  for _ = 1, #self.workers do self.tasks_queue:put {stop = true} end
end

--- Ends the workers at once; unfinished tasks are lost.
function Pool:terminate()
  if self.stopped then return end
  pump(self, 0)
  break_down(self, "the pool was terminated")
  self.stopped = true
  Worker.stop(self.workers, 1)
  self.tasks_queue:close()
  self.results:close()
  self.claims, self.job = nil, nil
  at_exit.forget(self)
end

local function has_ended(self)
  return self.broken ~= nil or lists.every(self.workers, function(worker) return worker.reaped end)
end

--- Waits for the workers to end after close() or terminate(), `timeout` seconds at most (nil: no limit); returns
--- whether they have ended.
function Pool:join(timeout)
  timeout = shared.seconds("Pool:join", timeout)
  if self.stopped then return true end
  if not self.closed then fail "Pool:join: close() or terminate() comes first" end
  local ended = wait(self, timeout, has_ended, self)
  if ended then self:terminate() end
  return ended
end

--- Returns the process ids of the workers, by number; an empty list for threads.
function Pool:pids() return Worker.pids(self.workers) end

-- Runs when the program ends.
function Pool:finish() self:terminate() end

function Pool:repr()
  local state = self.stopped and "ended" or self.broken and "broken" or self.closed and "closed" or "open"
  return ("Pool(%d workers, %s)"):format(#self.workers, state)
end

--- lm.mp.Pool(…): A pool of worker processes or threads that call functions with arguments.
Pool.init = signature.of([[({processes: integer(1, 4096), initializer: function, initargs, maxtasksperchild: lacks,
  method = "process" | "thread"})]], function(self, opts)
  local n = opts.processes or core.process_cores()
  self.workers, self.tasks, self.put, self.open, self.deaths = {}, {}, 0, 0, 0
  self.method, self.tasks_queue, self.results = opts.method, Queue(), Queue()
  self.claims = core.ops.zeros({n, 2}, {dtype = "int64"}):share_memory_()
  self.threads = Worker.share_of_threads(n)
  self.job = Worker.job("Pool", serve, {{
    tasks = self.tasks_queue, results = self.results, claims = self.claims, initializer = opts.initializer,
    initargs = Worker.check_args("Pool: initargs", opts.initargs, "{initargs = {a, b}}"),
  }}, self.method)
  local ok, problem = pcall(function() for i = 1, n do start(self, i) end end)
  if not ok then
    self:terminate()
    error(problem, 0)
  end
  at_exit.remember(self)
end)

return Pool

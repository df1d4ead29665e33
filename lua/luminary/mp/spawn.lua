--- Implements lm.mp.spawn and its result.
local core = require "luminary.core"
local lists = require "luminary.base.lists"
local options = require "luminary.base.options"
local signature = require "luminary.base.signature"
local Worker = require "luminary.mp.worker"
local at_exit = require "luminary.mp.at_exit"
local shared = require "luminary.mp.shared_handle"

-- Seconds from the first failure until the others are asked to end (before, they may end by themselves: the process
-- group notifies them of the failure), then until processes are killed, and until threads are abandoned.
local ASK, KILL, GIVE_UP = 1.5, 2, 4.5

local Context = {}
Context.__index = Context

local function describe(rank, failure)
  local who = ("rank %d"):format(rank)
  if failure.pid then who = ("%s (process %d)"):format(who, failure.pid) end
  return who .. " " .. Worker.how_it_ended(failure, "rank " .. rank)
end

-- Returns the workers that still run; records failures in the order in which they are seen.
local function look(self)
  local running = {}
  for _, worker in ipairs(self.workers) do
    if not worker.noted and worker:look() then
      worker.noted = true
      local failure = worker:failure()
      if failure then
        failure.rank = worker.index
        table.insert(self.failures, failure)
        self.failed_at = self.failed_at or core.time()
      end
    end
    if not worker.noted then running[#running + 1] = worker end
  end
  return running
end

-- Returns the first failure that neither followed from another nor from our request to end.
local function first_cause(self)
  local own = lists.filter(self.failures, function(failure) return not failure.asked_to_stop end)
  return lists.find(own, function(failure) return not failure.cause_rank or not failure.message end) or own[1]
    or self.failures[1]
end

--- Waits for all processes, `timeout` seconds at most (nil: no limit); returns whether all have ended. The failure of
--- one ends the others and is raised, with the rank, its message and its traceback.
function Context:join(timeout)
  timeout = shared.seconds("join", timeout)
  local deadline = core.time() + (timeout or math.huge)
  while true do
    local running = look(self)
    if #running == 0 then break end
    if self.failed_at and core.time() - self.failed_at >= ASK then
      Worker.stop(running, running[1].thread and GIVE_UP or KILL)
    end
    local left = deadline - core.time()
    if left <= 0 and not self.failed_at then return false end
    Worker.wait(running, self.failed_at and 0.1 or math.min(left, 1))
  end
  at_exit.forget(self)
  if #self.failures == 0 then return true end
  self.failure = first_cause(self)
  local text = "spawn: " .. describe(self.failure.rank, self.failure)
  for _, worker in ipairs(self.workers) do
    if worker.abandoned and worker.index ~= self.failure.rank then
      text = ("%s\n(rank %d: %s)"):format(text, worker.index, worker.problem)
    end
  end
  core.error_at_caller(text)
end

--- Returns the process ids, by rank; an empty list for threads.
function Context:pids() return Worker.pids(self.workers) end

--- Ends all running processes.
function Context:terminate()
  Worker.stop(self.workers, 2)
  at_exit.forget(self)
end

-- Runs when the program ends.
function Context:finish()
  if self.daemon then return self:terminate() end
  self:join()
end

--- lm.mp.spawn(…): Spawns nprocs processes that each call fn(i, args…).
local spawn = signature.of([[spawn(fn, {args, nprocs: integer(1, 4096) = 1, join = true, daemon = false,
  method = "process" | "thread"})]], function(fn, opts)
  local who = "spawn"
  options.arg(who, "the first argument", fn, "function")
  local method, args, n = opts.method, Worker.check_args(who .. ": args", opts.args, "{args = {a, b}}"), opts.nprocs

  local job = Worker.job(who, fn, args, method)
  local threads = n > 1 and Worker.share_of_threads(n) or nil
  local self = setmetatable({workers = {}, failures = {}, daemon = opts.daemon}, Context)
  local ok, problem = pcall(function()
    for i = 0, n - 1 do
      self.workers[i + 1] = Worker.start(who, {
        method = method, job = job, index = i, threads = threads,
        environment = {LOCAL_RANK = tostring(i), LOCAL_WORLD_SIZE = tostring(n)},
      })
    end
    at_exit.remember(self)
    if opts.join then self:join() end
  end)
  if not ok then
    self:terminate()
    error(problem, 0)
  end
  if not opts.join then return self end
end)

return spawn

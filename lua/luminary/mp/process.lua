--- lm.mp.Process{target = f, args = {…}, name =, daemon = false}: Makes a process that calls a function.
local options = require "luminary.base.options"
local signature = require "luminary.base.signature"
local Worker = require "luminary.mp.worker"
local at_exit = require "luminary.mp.at_exit"
local shared = require "luminary.mp.shared_handle"
local fail = options.fail

local Process = {}
local started = 0 -- number of processes, for their names

-- Computes fields of the process at each read. exitcode: nil while it runs, then its exit code, or minus the signal
-- that ended it. pid: nil before it is started.
local properties = {
  exitcode = function(self) return self.worker and self.worker:exitcode() end,
  pid = function(self) return self.worker and self.worker.pid end,
}

local metatable = {
  __index = function(self, key)
    local property = properties[key]
    if property then return property(self) end
    return Process[key]
  end,
  __tostring = function(self)
    local state = "not started"
    if self.worker then state = self:is_alive() and "running" or "ended with exit code " .. self.exitcode end
    return ("Process(%s, %s)"):format(self.name, state)
  end,
}

local new = signature.of([[Process({group: lacks, target: function, name: string, args, kwargs: lacks,
  daemon = false})]], function(opts)
  started = started + 1
  return setmetatable({
    target = options.arg("Process", "target", opts.target, "function"),
    args = Worker.check_args("Process: args", opts.args, "{args = {a, b}}"),
    name = opts.name or "Process-" .. started, daemon = opts.daemon,
  }, metatable)
end)

local function need(self, who)
  if not self.worker then fail("Process:%s: %s was not started", who, self.name) end
  return self.worker
end

--- Starts the process; target and args are sent with their current values.
function Process:start()
  if self.worker then fail("Process:start: %s was already started; a process runs once", self.name) end
  local job = Worker.job("Process", self.target, self.args, "process")
  self.worker = Worker.start("Process", {method = "process", job = job, name = self.name})
  at_exit.remember(self)
  return self
end

--- Waits for the end of the process, `timeout` seconds at most (nil: no limit). Returns whether it has ended.
function Process:join(timeout)
  timeout = shared.seconds("Process:join", timeout)
  local ended = need(self, "join"):join(timeout)
  if ended then at_exit.forget(self) end
  return ended
end

--- Returns whether the process was started and has not ended.
function Process:is_alive() return self.worker ~= nil and not self.worker:look() end

--- Sends SIGTERM to the process.
function Process:terminate() need(self, "terminate"):send_signal(Worker.SIGTERM) end

--- Kills the process (SIGKILL).
function Process:kill() need(self, "kill"):send_signal(Worker.SIGKILL) end

--- Runs when the program ends: waits for the process, or ends it if it is a daemon.
function Process:finish()
  if self.daemon then Worker.stop({self.worker}, 1) else self.worker:join() end
end

local function call(_, first, ...)
  if type(first) == "function" then fail "Process: group must be nil, got a function; pass {target = f}" end
  return new(first, ...)
end

return setmetatable(Process, {__call = call, takes = new})

--- Implements barriers for processes and threads, as in Python's multiprocessing.
local core = require "luminary.core"
local class = require "luminary.base.class"
local new_condition = require "luminary.mp.condition"
local options = require "luminary.base.options"
local signature = require "luminary.base.signature"
local semaphore = require "luminary.mp.semaphore"
local shared = require "luminary.mp.shared_handle"
local fail = options.fail

--- lm.mp.Barrier(parties [, {action, timeout}]): Makes a barrier, at which a number of processes and threads wait for
--- one another.
local Barrier = class.define "Barrier"

local FILLING, DRAINING, RESETTING, BROKEN = 0, 1, 2, 3
local LOOK = 0.1 -- seconds between checks: a killed process notifies nobody

local function inside(self) return self.parties - self.slots:get_value() end

local fields = {
  n_waiting = function(self) return self.state[1] == FILLING and inside(self) or 0 end,
  broken = function(self) return self.state[1] == BROKEN end,
}

getmetatable(Barrier).instance.__index = function(self, key)
  if fields[key] then return fields[key](self) end
  return Barrier[key]
end

local function become(self, phase)
  self.state[1] = phase
  self.condition:notify_all()
end

-- Returns true once everyone has left the last round.
local function is_free(self)
  local phase = self.state[1]
  if (phase == DRAINING or phase == RESETTING) and inside(self) == 0 then become(self, FILLING) end
  return self.state[1] == FILLING or self.state[1] == BROKEN
end

-- Waits until f() returns true; a timeout breaks the barrier.
local function wait_until(self, f, deadline)
  while not f() do
    local left = deadline and deadline - core.time() or LOOK
    if left <= 0 then
      become(self, BROKEN)
      fail "Barrier:wait: timed out waiting for the other parties; the barrier is now broken"
    end
    self.condition:wait(math.min(left, LOOK))
  end
end

local function run_round(self, deadline)
  local round = self.state[2]
  if inside(self) == self.parties then
    local ok, problem = true, nil
    if self.action then ok, problem = pcall(self.action) end
    self.state[2] = round + 1
    become(self, ok and DRAINING or BROKEN)
    if not ok then error(problem, 0) end
  else
    wait_until(self, function() return self.state[2] ~= round or self.state[1] ~= FILLING end, deadline)
  end
  if self.state[1] ~= DRAINING then
    fail("Barrier:wait: the barrier was %s while this process waited", self.state[1] == BROKEN and "broken" or "reset")
  end
  return inside(self) - 1
end

--- Waits until all parties have called it, `timeout` seconds at most. Returns a number from 0 to parties - 1, different
--- for each. A timeout or an error in the action breaks the barrier: all waits raise an error until it is reset.
function Barrier:wait(timeout)
  timeout = shared.seconds("Barrier:wait", timeout) or self.timeout
  local deadline = timeout and core.time() + timeout
  return self.condition:with(function()
    wait_until(self, function() return is_free(self) end, deadline)
    if self.state[1] == BROKEN then fail "Barrier:wait: the barrier is broken; call barrier:reset()" end
    self.slots:acquire(0)
    local ok, index = pcall(run_round, self, deadline)
    self.slots:release()
    is_free(self)
    if not ok then error(index, 0) end
    return index
  end)
end

--- Resets the barrier; waits in progress raise an error.
function Barrier:reset()
  self.condition:with(function() become(self, inside(self) > 0 and RESETTING or FILLING) end)
end

--- Breaks the barrier: all waits raise an error until it is reset.
function Barrier:abort()
  self.condition:with(function() become(self, BROKEN) end)
end

function Barrier:repr()
  return ("Barrier(%d of %d wait%s)"):format(self.n_waiting, self.parties, self.broken and ", broken" or "")
end

Barrier.init = signature.of([[(parties: count, {action: function,
  timeout: positive})]], function(self, parties, opts)
  self.parties, self.action, self.timeout = parties, opts.action, opts.timeout
  self.slots = semaphore.BoundedSemaphore(parties)
  self.condition = new_condition()
  self.state = core.ops.zeros({2}, {dtype = "int64"}):share_memory_() -- {phase, number of the round}
end)

return Barrier

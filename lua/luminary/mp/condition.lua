--- Implements condition variables for processes and threads, as in Python's multiprocessing.
local core = require "luminary.core"
local class = require "luminary.base.class"
local locks = require "luminary.mp.lock"
local options = require "luminary.base.options"
local shared = require "luminary.mp.shared_handle"
local fail = options.fail

--- lm.mp.Condition([lock]): Makes a condition variable: holders of its lock wait until another notifies them.
local Condition = class.define "Condition"

function Condition:init(lock)
  if lock ~= nil and not class.is(lock, locks.Lock) then
    options.must_be("Condition", "lock", "an lm.mp.Lock or RLock", lock)
  end
  self.handle, self.lock = core.mp_semaphore(0), lock or locks.RLock()
end

local function held(method, self)
  local h, depth = shared.handle(method, self), core.mp_held(self.lock.handle)
  if depth == 0 then fail("Condition:%s: the lock must be held; use condition:with(function() … end)", method) end
  return h, depth
end

--- Acquires the condition's lock.
function Condition:acquire(timeout) return self.lock:acquire(timeout) end
--- Releases the condition's lock.
function Condition:release() self.lock:release() end
--- Calls a function while it holds the condition's lock.
function Condition:with(f) return self.lock:with(f) end

local function wait_changed(h, seconds, changed) return core.mp_wait_changed(h, changed, seconds) end

--- Releases the lock, waits for a notify, `timeout` seconds at most (nil: no limit), and acquires the lock again.
--- Returns whether there was a notify. The awaited condition may still be false: wait in a loop, as wait_for does.
function Condition:wait(timeout)
  local h, depth = held("wait", self)
  timeout = shared.seconds("Condition:wait", timeout)
  local changed = core.mp_changed(h)
  for _ = 1, depth do self.lock:release() end
  local ok, came = pcall(shared.wait, timeout, wait_changed, h, changed)
  for _ = 1, depth do self.lock:acquire() end
  if not ok then error(came, 0) end
  return came
end

--- Waits until predicate() is true, `timeout` seconds at most. Returns its last value.
function Condition:wait_for(predicate, timeout)
  held("wait_for", self)
  options.arg("Condition:wait_for", "the predicate", predicate, "function")
  timeout = shared.seconds("Condition:wait_for", timeout)
  local deadline = timeout and core.time() + timeout
  while true do
    local value = predicate()
    local left = deadline and deadline - core.time()
    if value or left and left <= 0 then return value end
    self:wait(left)
  end
end

--- Wakes at least n of the waiting processes and threads.
function Condition:notify(n)
  local h = held("notify", self)
  if n ~= nil then options.arg("Condition:notify", "n", n, "count") end
  core.mp_permit_back(h, false)
end

--- Wakes all waiting processes and threads.
function Condition:notify_all() core.mp_permit_back(held("notify_all", self), false) end

function Condition:repr() return ("Condition(%s)"):format(tostring(self.lock)) end

return Condition

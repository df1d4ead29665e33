--- Condition variables for processes and threads, as Python's multiprocessing has them.
local core = require "luminary.core"
local lock = require "luminary.mp.lock"
local options = require "luminary.base.options"
local shared = require "luminary.mp.shared_handle"
local fail = options.fail

--- lm.mp.Condition([lock]): a lock (an RLock, unless one is given) whose holders can wait until another says that what
--- it guards has changed. Nobody who is killed leaves the others waiting for the lock, or swallows what was said.
local Condition = {kind = "Condition"}
Condition.__index = Condition

local function condition(method, self) return shared.handle(Condition, method, self) end

local function held(method, self)
  local h, depth = condition(method, self), core.mp_held(self.lock.handle)
  if depth == 0 then fail("Condition:%s: the lock must be held; use condition:with(function() … end)", method) end
  return h, depth
end

--- Its lock's acquire.
function Condition:acquire(timeout) return self.lock:acquire(timeout) end
--- Its lock's release.
function Condition:release() self.lock:release() end
--- Its lock's with.
function Condition:with(f) return self.lock:with(f) end

local function wait_changed(h, seconds, changed) return core.mp_wait_changed(h, changed, seconds) end

--- Releases the lock, waits for a notify, `timeout` seconds at most (nil: as long as it takes), and acquires the lock
--- again: whether there was one. What is waited for may not have come all the same: wait in a loop, as wait_for does.
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

--- Waits until predicate() is true, `timeout` seconds at most: what it gave last.
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

--- Wakes at least n who wait; in fact all do, and those whose turn it is not wait again.
function Condition:notify(n)
  local h = held("notify", self)
  if n ~= nil then options.arg("Condition:notify", "n", n, "count") end
  core.mp_permit_back(h, false)
end

--- Wakes all who wait.
function Condition:notify_all() core.mp_permit_back(held("notify_all", self), false) end

function Condition.__tostring(self) return ("Condition(%s)"):format(tostring(self.lock)) end

setmetatable(Condition, {__call = function(_, given)
  if given ~= nil and (type(given) ~= "table" or getmetatable(given) ~= lock.Lock) then
    options.must_be("Condition", "lock", "an lm.mp.Lock or RLock", given)
  end
  return setmetatable({handle = core.mp_semaphore(0), lock = given or lock.RLock()}, Condition)
end})

return Condition

--- Semaphores, conditions and barriers for processes and threads, under the names of Python's multiprocessing. What is
--- held by a process that ends, by kill -9 too, is there again for the others.
local core = require "luminary.core"
local lock = require "luminary.mp.lock"
local options = require "luminary.base.options"
local shared = require "luminary.mp.shared"
local fail = options.fail

local function give_back(self, ok, ...)
  self:release()
  if not ok then error((...), 0) end
  return ...
end

-- ---- semaphores

local MOST = 65536

--- lm.mp.Semaphore([n = 1]): n permits, at most 65536, which as many may hold at a time. It may be released by who did
--- not acquire it, which makes one permit more. A permit whose holder ends without releasing it is the next one's; but
--- not one that was such a release's.
local Semaphore = {kind = "Semaphore"}
Semaphore.__index = Semaphore

local function permits(method, self) return shared.handle(Semaphore, method, self) end

--- Waits for a permit, `timeout` seconds at most (nil: as long as it takes; 0 or {block = false} only tries): whether
--- there was one, and then whether its holder before ended without releasing it.
function Semaphore:acquire(timeout)
  local h = permits("acquire", self)
  timeout = shared.seconds("Semaphore:acquire", timeout)
  local how = shared.wait(timeout, function(seconds) return core.mp_permit(h, seconds) or false end)
  return how ~= false, how == 2
end

--- Gives one back. A BoundedSemaphore has an error where all are there.
function Semaphore:release() core.mp_permit_back(permits("release", self), self.bounded) end

--- How many are to be had.
function Semaphore:get_value() return core.mp_permits(permits("get_value", self)) end

--- Acquires a permit, calls f(left) and releases it, after an error too. Gives what f gives.
function Semaphore:with(f)
  permits("with", self)
  options.arg("Semaphore:with", "f", f, "function")
  local _, left = self:acquire()
  return give_back(self, pcall(f, left))
end

function Semaphore.__tostring(self)
  return ("%s(%d to be had)"):format(self.bounded and "BoundedSemaphore" or "Semaphore", self:get_value())
end

local function new_semaphore(name, n, bounded)
  n = options.arg(name, "the number of permits", n == nil and 1 or n, "natural")
  if n > MOST then fail("%s: %.0f permits are too many; %d at most", name, n, MOST) end
  return setmetatable({handle = core.mp_semaphore(n), bounded = bounded}, Semaphore)
end

setmetatable(Semaphore, {__call = function(_, n) return new_semaphore("Semaphore", n, false) end})

--- lm.mp.BoundedSemaphore([n = 1]): a Semaphore that never has more than n permits.
local function new_bounded(n) return new_semaphore("BoundedSemaphore", n, true) end

-- ---- conditions

--- lm.mp.Condition([lock]): a lock (an RLock, unless one is given) whose holders can wait until another says that what
--- it guards has changed. Nobody who is killed leaves the others waiting for the lock, or swallows what was said.
local Condition = {kind = "Condition"}
Condition.__index = Condition

local function condition(method, self) return shared.handle(Condition, method, self) end

local function held(method, self)
  local h, depth = condition(method, self), core.mp_held(self.lock.handle)
  if depth == 0 then fail("Condition:%s: its lock is not held here: condition:with(function() … end)", method) end
  return h, depth
end

--- Its lock's acquire, release and with.
function Condition:acquire(timeout) return self.lock:acquire(timeout) end
function Condition:release() self.lock:release() end
function Condition:with(f) return self.lock:with(f) end

--- Releases the lock, waits for a notify, `timeout` seconds at most (nil: as long as it takes), and acquires the lock
--- again: whether there was one. What is waited for may not have come all the same: wait in a loop, as wait_for does.
function Condition:wait(timeout)
  local h, depth = held("wait", self)
  timeout = shared.seconds("Condition:wait", timeout)
  local changed = core.mp_changed(h)
  for _ = 1, depth do self.lock:release() end
  local ok, came = pcall(shared.wait, timeout, function(seconds) return core.mp_wait_changed(h, changed, seconds) end)
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
    fail("Condition: the lock has to be an lm.mp.Lock or RLock, got %s", options.describe(given))
  end
  return setmetatable({handle = core.mp_semaphore(0), lock = given or lock.RLock()}, Condition)
end})

-- ---- barriers

--- lm.mp.Barrier(parties [, {action, timeout}]): as many as `parties` wait for one another. action() is called by one
--- of them before they go on. timeout: of wait, where it is given none. b.parties, b.n_waiting and b.broken tell of it.
--- One who ends while it waits counts no more, and another may take its place.
local Barrier = {kind = "Barrier"}

local FILLING, DRAINING, RESETTING, BROKEN = 0, 1, 2, 3
local LOOK = 0.1 -- seconds: nobody tells of one who was killed

local function inside(self) return self.parties - self.places:get_value() end

local fields = {
  n_waiting = function(self) return self.state[1] == FILLING and inside(self) or 0 end,
  broken = function(self) return self.state[1] == BROKEN end,
}

function Barrier.__index(self, key)
  if fields[key] then return fields[key](self) end
  return Barrier[key]
end

local function become(self, phase)
  self.state[1] = phase
  self.condition:notify_all()
end

local function check_barrier(method, self)
  if type(self) ~= "table" or getmetatable(self) ~= Barrier then
    fail("Barrier:%s: called with %s, not with a Barrier: use a colon, barrier:%s(…)", method, options.describe(self),
      method)
  end
end

-- Whether the round before has been left by all.
local function is_free(self)
  local phase = self.state[1]
  if (phase == DRAINING or phase == RESETTING) and inside(self) == 0 then become(self, FILLING) end
  return self.state[1] == FILLING or self.state[1] == BROKEN
end

-- Waits until f(), as who may break the barrier by waiting too long.
local function wait_until(self, f, deadline)
  while not f() do
    local left = deadline and deadline - core.time() or LOOK
    if left <= 0 then
      become(self, BROKEN)
      fail "Barrier:wait: the others did not come in time, and it is broken now"
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
    fail("Barrier:wait: it %s while this one waited", self.state[1] == BROKEN and "was broken" or "was reset")
  end
  return inside(self) - 1
end

--- Waits until all are here, `timeout` seconds at most: a number from 0 to parties - 1, another for each. Who waits too
--- long, or whose action fails, breaks the barrier: all who wait, and will, get an error until it is reset.
function Barrier:wait(timeout)
  check_barrier("wait", self)
  timeout = shared.seconds("Barrier:wait", timeout) or self.timeout
  local deadline = timeout and core.time() + timeout
  return self.condition:with(function()
    wait_until(self, function() return is_free(self) end, deadline)
    if self.state[1] == BROKEN then fail "Barrier:wait: it is broken; barrier:reset() mends it" end
    self.places:acquire(0)
    local ok, index = pcall(run_round, self, deadline)
    self.places:release()
    is_free(self)
    if not ok then error(index, 0) end
    return index
  end)
end

--- Makes it as new; who waits gets an error.
function Barrier:reset()
  check_barrier("reset", self)
  self.condition:with(function() become(self, inside(self) > 0 and RESETTING or FILLING) end)
end

--- Breaks it: who waits, and will, gets an error until it is reset.
function Barrier:abort()
  check_barrier("abort", self)
  self.condition:with(function() become(self, BROKEN) end)
end

function Barrier.__tostring(self)
  return ("Barrier(%d of %d wait%s)"):format(self.n_waiting, self.parties, self.broken and ", broken" or "")
end

setmetatable(Barrier, {__call = function(_, parties, opts)
  parties = options.arg("Barrier", "parties", parties, "count")
  opts = options.check("Barrier", opts, {action = {"function"}, timeout = {"positive"}}, "action")
  return setmetatable({
    parties = parties, action = opts.action, timeout = opts.timeout, places = new_bounded(parties),
    condition = Condition(), state = core.ops.zeros({2}, {dtype = "int64"}):share_memory_(), -- phase, round
  }, Barrier)
end})

return {Semaphore = Semaphore, BoundedSemaphore = new_bounded, Condition = Condition, Barrier = Barrier}

--- Implements locks for processes and threads.
local core = require "luminary.core"
local class = require "luminary.base.class"
local fail = require("luminary.base.options").fail
local shared = require "luminary.mp.shared_handle"

--- lm.mp.Lock(): Makes a lock for processes and threads, also called a mutex.
local Lock = class.define "Lock"

function Lock:init() self.handle = core.mp_lock() end

local SLICE = 0.1 -- seconds in one wait, since no signal ends the core's wait

local function try(h, seconds) return core.mp_acquire(h, math.min(seconds, SLICE)) or false end

--- Acquires the lock, waiting `timeout` seconds at most (nil: no limit; 0 or {block = false}: not at all). Returns two
--- values: whether it is held now, and whether the last holder ended without releasing it.
function Lock:acquire(timeout)
  local h = shared.handle("acquire", self)
  timeout = shared.seconds("Lock:acquire", timeout)
  if not self.again and core.mp_held(h) > 0 then
    fail "Lock:acquire: it is held here already; lm.mp.RLock() is one that can be acquired again"
  end
  local how = shared.wait(timeout, try, h)
  return how ~= false, how == 2
end

--- Releases the lock.
function Lock:release() core.mp_release(shared.handle("release", self)) end

--- Acquires the lock, calls f(abandoned) and releases it, also after an error. Returns f's results. abandoned: true if
--- the last holder ended without releasing it.
function Lock:with(f) return shared.with(self, f) end

function Lock:repr() return core.mp_held(self.handle) > 0 and self.__name .. "(held here)" or self.__name end

--- lm.mp.RLock(): Makes a lock that its holder can acquire again.
local RLock = class.define("RLock", Lock)
RLock.again = true

return {Lock = Lock, RLock = RLock}

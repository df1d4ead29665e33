--- Implements semaphores for processes and threads, with the names of Python's multiprocessing. Permits of a process
--- that ends, even by SIGKILL, become free again.
local core = require "luminary.core"
local class = require "luminary.base.class"
local options = require "luminary.base.options"
local shared = require "luminary.mp.shared_handle"

--- lm.mp.Semaphore([n = 1]): Makes a semaphore for processes and threads, with n permits.
local Semaphore = class.define "Semaphore"
Semaphore.bounded = false

function Semaphore:init(n)
  n = options.arg(self.__name, "the number of permits", n == nil and 1 or n, "integer(0, 65536)")
  self.handle = core.mp_semaphore(n)
end

local function try(h, seconds) return core.mp_permit(h, seconds) or false end

--- Acquires a permit, waiting `timeout` seconds at most (nil: no limit; 0 or {block = false}: not at all). Returns two
--- values: whether it has one, and whether its last holder ended without releasing it.
function Semaphore:acquire(timeout)
  local how = shared.wait_in("acquire", self, timeout, try)
  return how ~= false, how == 2
end

--- Releases a permit.
function Semaphore:release() core.mp_permit_back(shared.handle("release", self), self.bounded) end

--- Returns the number of free permits.
function Semaphore:get_value() return core.mp_permits(shared.handle("get_value", self)) end

--- Acquires a permit, calls f with acquire's second value and releases it, also after an error. Returns f's results.
function Semaphore:with(f) return shared.with(self, f) end

function Semaphore:repr() return ("%s(%d available)"):format(self.__name, self:get_value()) end

--- lm.mp.BoundedSemaphore([n = 1]): Makes a semaphore that never has more than n permits.
local BoundedSemaphore = class.define("BoundedSemaphore", Semaphore)
BoundedSemaphore.bounded = true

return {Semaphore = Semaphore, BoundedSemaphore = BoundedSemaphore}

--- Semaphores for processes and threads, under the names of Python's multiprocessing. What is held by a process that
--- ends, by kill -9 too, is there again for the others.
local core = require "luminary.core"
local options = require "luminary.base.options"
local shared = require "luminary.mp.shared_handle"
local fail = options.fail

local function give_back(self, ok, ...)
  self:release()
  if not ok then error((...), 0) end
  return ...
end

local MOST = 65536

--- lm.mp.Semaphore([n = 1]): A semaphore for processes and threads, with n permits.
local Semaphore = {kind = "Semaphore"}
Semaphore.__index = Semaphore

local function permits(method, self) return shared.handle(Semaphore, method, self) end

local function try(h, seconds) return core.mp_permit(h, seconds) or false end

--- Acquires a permit, waiting `timeout` seconds at most (nil: any time; 0 or {block = false}: not at all). Returns two
--- values: whether it has one, and whether its last holder ended without releasing it.
function Semaphore:acquire(timeout)
  local h = permits("acquire", self)
  timeout = shared.seconds("Semaphore:acquire", timeout)
  local how = shared.wait(timeout, try, h)
  return how ~= false, how == 2
end

--- Releases a permit.
function Semaphore:release() core.mp_permit_back(permits("release", self), self.bounded) end

--- Returns the number of free permits.
function Semaphore:get_value() return core.mp_permits(permits("get_value", self)) end

--- Acquires a permit, calls f(abandoned) and releases it, also after an error. Returns what f returns.
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

--- lm.mp.BoundedSemaphore([n = 1]): A semaphore that never has more than n permits.
local function new_bounded(n) return new_semaphore("BoundedSemaphore", n, true) end

return {Semaphore = Semaphore, BoundedSemaphore = new_bounded}

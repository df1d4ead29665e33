--- Semaphores for processes and threads, under the names of Python's multiprocessing. What is held by a process that
--- ends, by kill -9 too, is there again for the others.
local core = require "luminary.core"
local options = require "luminary.base.options"
local shared = require "luminary.mp.shared_handle"

local function give_back(self, ok, ...)
  self:release()
  if not ok then error((...), 0) end
  return ...
end

local MOST = 65536

--- lm.mp.Semaphore([n = 1]): n permits, at most 65536, which as many may hold at a time. It may be released by who did
--- not acquire it, which makes one permit more. A permit whose holder ends without releasing it is the next one's; but
--- not one that was such a release's.
local Semaphore = {kind = "Semaphore"}
Semaphore.__index = Semaphore

local function permits(method, self) return shared.handle(Semaphore, method, self) end

local function try(h, seconds) return core.mp_permit(h, seconds) or false end

--- Waits for a permit, `timeout` seconds at most (nil: as long as it takes; 0 or {block = false} only tries): whether
--- there was one, and then whether its holder before ended without releasing it.
function Semaphore:acquire(timeout)
  local h = permits("acquire", self)
  timeout = shared.seconds("Semaphore:acquire", timeout)
  local how = shared.wait(timeout, try, h)
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
  return ("%s(%d available)"):format(self.bounded and "BoundedSemaphore" or "Semaphore", self:get_value())
end

local function new_semaphore(name, n, bounded)
  n = options.arg(name, "the number of permits", n == nil and 1 or n, "natural")
  if n > MOST then options.must_be(name, "value", "at most " .. MOST, n) end
  return setmetatable({handle = core.mp_semaphore(n), bounded = bounded}, Semaphore)
end

setmetatable(Semaphore, {__call = function(_, n) return new_semaphore("Semaphore", n, false) end})

--- lm.mp.BoundedSemaphore([n = 1]): a Semaphore that never has more than n permits.
local function new_bounded(n) return new_semaphore("BoundedSemaphore", n, true) end

return {Semaphore = Semaphore, BoundedSemaphore = new_bounded}

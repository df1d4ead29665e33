--- Implements events for processes and threads: flags that others wait for, each a semaphore with a permit while set.
local core = require "luminary.core"
local class = require "luminary.base.class"
local shared = require "luminary.mp.shared_handle"

--- lm.mp.Event(): Makes a flag that processes and threads can wait for.
local Event = class.define "lm.mp.Event" -- distinct from lm.cuda.Event

function Event:init() self.handle = core.mp_semaphore(0) end

local function is_set(h) return core.mp_permits(h) > 0 end

--- Sets the flag; all waits end.
function Event:set()
  local h = shared.handle("set", self)
  if not is_set(h) then core.mp_permit_back(h, false) end
end

--- Clears the flag.
function Event:clear()
  local h = shared.handle("clear", self)
  while core.mp_permit(h, 0) do end -- two that set it at once may have released two permits
end

--- Returns whether the flag is set.
function Event:is_set() return is_set(shared.handle("is_set", self)) end

local function try(h, seconds)
  local changed = core.mp_changed(h)
  return is_set(h) or core.mp_wait_changed(h, changed, seconds) and is_set(h)
end

--- Waits until the flag is set, `timeout` seconds at most (nil: no limit). Returns whether it is set.
function Event:wait(timeout) return shared.wait_in("wait", self, timeout, try) end

function Event:repr() return self:is_set() and "Event(set)" or "Event(not set)" end

return Event

--- Events for processes and threads: flags that others wait for.
local core = require "luminary.core"
local options = require "luminary.base.options"
local shared = require "luminary.mp.shared_handle"
local fail = options.fail

--- lm.mp.Event(): A flag that processes and threads can wait for.
local Event = {kind = "Event", __name = "lm.mp.Event"} -- there is lm.cuda.Event, too
Event.__index = Event

local function event_handle(method, self) return shared.handle(Event, method, self) end

--- Sets the flag; all that wait continue.
function Event:set() core.mp_event_set(event_handle("set", self), true) end

--- Clears the flag.
function Event:clear() core.mp_event_set(event_handle("clear", self), false) end

--- Returns whether the flag is set.
function Event:is_set() return core.mp_event_wait(event_handle("is_set", self), 0) end

--- Waits until the flag is set, `timeout` seconds at most (nil: any time). Returns whether it is.
function Event:wait(timeout)
  local h = event_handle("wait", self)
  timeout = shared.seconds("Event:wait", timeout)
  return (shared.wait(timeout, core.mp_event_wait, h))
end

function Event.__tostring(self) return self:is_set() and "Event(set)" or "Event(not set)" end

setmetatable(Event, {__call = function(_, ...)
  if options.count(...) > 0 then fail "Event: takes no arguments" end
  return setmetatable({handle = core.mp_event()}, Event)
end})

return Event

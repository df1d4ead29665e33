--- Implements events for processes and threads: flags that others wait for.
local core = require "luminary.core"
local class = require "luminary.base.class"
local shared = require "luminary.mp.shared_handle"

--- lm.mp.Event(): Makes a flag that processes and threads can wait for.
local Event = class.define "lm.mp.Event" -- distinct from lm.cuda.Event

function Event:init() self.handle = core.mp_event() end

--- Sets the flag; all waits end.
function Event:set() core.mp_event_set(shared.handle("set", self), true) end

--- Clears the flag.
function Event:clear() core.mp_event_set(shared.handle("clear", self), false) end

--- Returns whether the flag is set.
function Event:is_set() return core.mp_event_wait(shared.handle("is_set", self), 0) end

--- Waits until the flag is set, `timeout` seconds at most (nil: no limit). Returns whether it is set.
function Event:wait(timeout) return (shared.wait_in("wait", self, timeout, core.mp_event_wait)) end

function Event:repr() return self:is_set() and "Event(set)" or "Event(not set)" end

return Event

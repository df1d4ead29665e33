--- Defines streams and events. A stream is a queue of work on a device. Every op is enqueued on its thread's current
--- stream, and waits for other streams that wrote its tensors, so that a missing wait_stream is not an error.
local core = require "luminary.core"
local class = require "luminary.base.class"
local options = require "luminary.base.options"
local devices = require "luminary.cuda.devices"
local signature = require "luminary.base.signature"

local stream = {}
local fail = options.fail

-- ---- streams
local Stream = class.root("Stream")
stream.Stream = Stream

--- lm.cuda.Stream(…): Makes a queue of work on a CUDA device.
Stream.init = signature.of("Stream({device, priority: integer = 0})", function(self, opts)
  self.device = devices.any("Stream", opts.device)
  self.id = core.stream_new(self.device, opts.priority)
end)

local function wrap(device, id)
  local s = class.object(Stream)
  s.device, s.id = device, id
  return s
end

local function checked(who, s)
  if not Stream.is(s, Stream) then options.expected(who, "a stream", s) end
  return s
end
stream.checked = checked

function Stream:repr() return ("Stream(%s, number %d)"):format(self.device, self.id) end

--- Returns the current stream of a device on this thread.
function stream.current_stream(device)
  device = devices.any("current_stream", device)
  return wrap(device, core.stream_current(device))
end

--- Returns the default stream of a device.
function stream.default_stream(device) return wrap(devices.any("default_stream", device), 0) end

--- Sets the current stream of its device on this thread.
function stream.set_stream(s)
  checked("set_stream", s)
  core.stream_set(s.device, s.id)
end

--- Calls f(...) with s as the current stream of its device; returns f's results.
function stream.stream(s, f, ...)
  checked("stream", s)
  return core.with_stream(s.device, s.id, f, ...)
end

--- Makes all further work of this stream wait for the current work of another.
function Stream:wait_stream(other)
  checked("wait_stream", other)
  core.stream_wait(self.device, self.id, other.device, other.id)
end

--- Makes all further work of this stream wait for an event.
function Stream:wait_event(event) stream.checked_event("wait_event", event):wait(self) end

--- Waits until all work of the stream is done.
function Stream:synchronize() core.stream_synchronize(self.device, self.id) end

--- Returns whether all work of the stream is done.
function Stream:query() return core.stream_query(self.device, self.id) end

--- Returns the stream's priority; lower ones run first.
function Stream:priority() return core.stream_priority(self.device, self.id) end

--- Returns the driver's handle, as light userdata, for other libraries.
function Stream:native() return core.stream_native(self.device, self.id) end

--- Records an event on this stream; returns the event.
function Stream:record_event(event)
  event = event == nil and stream.Event() or stream.checked_event("record_event", event)
  event:record(self)
  return event
end

-- ---- events
local Event = class.root("Event")
stream.Event = Event

function stream.checked_event(who, event)
  if not Event.is(event, Event) then options.expected(who, "an event", event) end
  return event
end

--- lm.cuda.Event{enable_timing = true}: Makes a marker in a stream's work.
Event.init = signature.of("Event({enable_timing = false})", function(self, opts)
  self.timing = opts.enable_timing
end)

function Event:repr() return ("Event(%s)"):format(self.device or "not recorded") end

--- Records the event in a stream, by default the current one.
function Event:record(s)
  s = s and checked("record", s) or stream.current_stream()
  if self.device and self.device ~= s.device then
    fail("record: device mismatch: the event is on %s, the stream is on %s", self.device, s.device)
  end
  self.handle = self.handle or core.event_new(s.device, self.timing)
  self.device = s.device
  core.event_record(self.handle, s.device, s.id)
end

--- Makes all further work of a stream, by default the current one, wait for the event.
function Event:wait(s)
  if not self.handle then return end
  s = s and checked("wait", s) or stream.current_stream(self.device)
  core.event_wait(self.handle, s.device, s.id)
end

--- Returns whether all work before the event is done.
function Event:query() return not self.handle or core.event_query(self.handle) end

--- Waits until all work before the event is done.
function Event:synchronize()
  if self.handle then core.event_synchronize(self.handle) end
end

--- Returns the milliseconds from this event to another, both recorded with enable_timing.
function Event:elapsed_time(other)
  stream.checked_event("elapsed_time", other)
  for _, e in ipairs {self, other} do
    if not e.timing then fail("elapsed_time: both events need {enable_timing = true}") end
    if not e.handle then fail("elapsed_time: both events must be recorded first") end
  end
  return core.event_elapsed(self.handle, other.handle)
end

return stream

--- lm.mp.Queue([capacity]): Makes a first-in, first-out queue of values, for any number of processes and threads.
local core = require "luminary.core"
local class = require "luminary.base.class"
local at_exit = require "luminary.mp.at_exit"
local serializer = require "luminary.mp.serialization"
local options = require "luminary.base.options"
local signature = require "luminary.base.signature"
local shared = require "luminary.mp.shared_handle"

local Queue = class.define "Queue"
Queue.__inner = {"send", "take", "finish"}

local needs_no_flush = setmetatable({}, {__mode = "k"}) -- queues that the exit need not flush: made here, or canceled

local OFTEN = 0.01 -- seconds between two calls of meanwhile

local function try_put(h, seconds, text, tensors, handles, direct, meanwhile, ...)
  if meanwhile then seconds = math.min(seconds, OFTEN) end
  local sent, waits = core.mp_put(h, text, tensors, handles, seconds, direct)
  if not sent and meanwhile then meanwhile(...) end
  return sent, waits
end

-- Puts a value; returns true if it succeeded within `timeout`. `who` names the caller in errors. While it waits, it
-- calls meanwhile(…) repeatedly.
local function put(self, h, who, value, timeout, direct, meanwhile, ...)
  local text, tensors, handles = serializer.encode(who, value, shared.how())
  local sent, waits = shared.wait(timeout, try_put, h, text, tensors, handles, direct, meanwhile, ...)
  if waits and not needs_no_flush[self] then at_exit.remember(self) end
  return sent
end

--- Puts a value (nil too) at the end; returns the queue. {block = true, timeout}: seconds to wait for room, after which
--- it is an error.
function Queue:put(value, ...)
  local h, timeout = shared.handle("put", self), shared.timeout("Queue:put", ...)
  if not put(self, h, "Queue:put", value, timeout) then
    options.fail("Queue:put: the queue was full%s", timeout > 0 and (" for %g s"):format(timeout) or "")
  end
  return self
end

--- Puts a value if there is room, now or within `timeout` seconds; returns whether there was.
function Queue:try_put(value, timeout)
  timeout = shared.seconds("Queue:try_put", timeout) or 0
  return put(self, shared.handle("try_put", self), "Queue:try_put", value, timeout)
end

-- Puts a value for the pool. direct: nothing stays in this process, which may be killed after; meanwhile: see put.
function Queue:send(who, value, direct, meanwhile, ...)
  put(self, shared.handle("put", self), who, value, nil, direct, meanwhile, ...)
end

-- Returns true and the first value if one arrives within `timeout`, else false.
function Queue:take(timeout)
  local h = shared.handle("get", self)
  local text, tensors, handles = shared.wait(timeout, core.mp_get, h)
  if not text then return false end
  return true, serializer.decode(text, tensors, handles)
end

--- Removes and returns the first value. {block = true, timeout}: seconds to wait for one, after which it is an error.
function Queue:get(...)
  local timeout = shared.timeout("Queue:get", ...)
  local has_arrived, value = Queue.take(self, timeout)
  if not has_arrived then
    options.fail("Queue:get: the queue was empty%s", timeout > 0 and (" for %g s"):format(timeout) or "")
  end
  return value
end

--- Returns true and the first value, if there is one now or within `timeout` seconds, else false.
function Queue:try_get(timeout)
  return Queue.take(self, shared.seconds("Queue:try_get", timeout) or 0)
end

--- Returns the number of values in the queue, without those that other processes hold for lack of room.
function Queue:qsize() return (core.mp_queue_size(shared.handle("qsize", self))) end

--- Returns whether the queue is empty.
function Queue:empty() return core.mp_queue_size(shared.handle("empty", self)) == 0 end

--- Returns whether the queue is full.
function Queue:full()
  local size, capacity = core.mp_queue_size(shared.handle("full", self))
  return capacity > 0 and size >= capacity
end

--- Reports that one value, taken by get, is processed; join waits until this was called for each value put.
function Queue:task_done() core.mp_queue_done(shared.handle("task_done", self)) end

--- Waits until all values are processed (task_done), `timeout` seconds at most; returns whether they are.
function Queue:join(timeout) return shared.wait_in("join", self, timeout, core.mp_queue_join) end

local function try_flush(h, seconds) return core.mp_queue_flush(h, math.min(seconds, 0.1)) end

--- Waits until all values put here have left this process, `timeout` seconds at most; returns whether they have.
function Queue:join_thread(timeout) return shared.wait_in("join_thread", self, timeout, try_flush) end

--- Lets this process end without waiting for its values to be read; they may be lost.
function Queue:cancel_join_thread()
  needs_no_flush[self] = true
  at_exit.forget(self)
end

--- Closes the queue for this process; others can still use it.
function Queue:close()
  core.mp_close_handle(shared.handle("close", self))
  at_exit.forget(self)
end

-- Runs when the program ends.
function Queue:finish() self:join_thread() end

function Queue:repr()
  if not core.mp_is_open(self.handle) then return "Queue(closed)" end
  local size, capacity = core.mp_queue_size(self.handle)
  return capacity > 0 and ("Queue(%d of %d)"):format(size, capacity) or ("Queue(%d)"):format(size)
end

Queue.init = signature.of("({capacity: integer(0, 2^40) = 0})", function(self, opts) -- 0 is unlimited
  self.handle = core.mp_queue(opts.capacity)
  needs_no_flush[self] = true
end)

-- Python's methods that have another form here.
Queue.__missing = {
  get_nowait = "local got, value = queue:try_get()", put_nowait = "local there_was_room = queue:try_put(v)",
}

return Queue

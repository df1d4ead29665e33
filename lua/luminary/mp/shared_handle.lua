--- Implements the base of objects that several Lua states share: a handle of the core's, which serialization.lua sends,
--- and waits that Ctrl-C and a thread's interrupt end.
local core = require "luminary.core"
local names = require "luminary.mp.module_references"
local options = require "luminary.base.options"
local signature = require "luminary.base.signature"

local shared = {}

--- Returns an object's open handle; `method` is the method's name in errors.
function shared.handle(method, self)
  local handle, name = self.handle, self.__name:match "[^.]*$"
  if not (core.mp_is_handle(handle) and core.mp_is_open(handle)) then
    options.fail("%s:%s: the %s is already closed in this process", name, method, name:lower())
  end
  return handle
end

local function give_back(self, ok, ...)
  self:release()
  if not ok then error((...), 0) end
  return ...
end

--- Acquires an object, calls f(true if its last holder ended without releasing it), and releases it, also after an
--- error. Returns f's results.
function shared.with(self, f)
  shared.handle("with", self)
  options.arg(self.__name .. ":with", "f", f, "function")
  local _, left = self:acquire()
  return give_back(self, pcall(f, left))
end

--- Returns the seconds to wait at most, from (block = true, timeout), by position or by name; nil means no limit.
function shared.timeout(who, ...)
  if select("#", ...) == 0 then return nil end
  local opts = signature.read("({block = true, timeout: positive})", who, ...)
  if not opts.block then return 0 end
  return opts.timeout
end

--- Returns the seconds to wait from one argument: a number, nil (no limit), or a table by name.
function shared.seconds(who, timeout)
  if options.is_plain(timeout) then return shared.timeout(who, timeout) end
  return timeout ~= nil and options.arg(who, "timeout", timeout, "positive") or nil
end

local SLICE = 0.5 -- seconds in one wait, after which a signal that came before it is seen

--- Returns the first result of attempt(handle, seconds, …) that is not false; false after `timeout` seconds (nil: no
--- limit). `attempt` must not be a closure of the call: a JIT trace retains recorded closures, and with them a
--- message's tensors or a handle.
function shared.wait(timeout, attempt, handle, ...)
  if timeout == 0 then return attempt(handle, 0, ...) end
  local deadline = timeout and core.time() + timeout or math.huge
  local left = timeout or math.huge
  repeat
    local a, b, c = attempt(handle, math.min(left, SLICE), ...)
    if a ~= false then return a, b, c end
    left = deadline - core.time()
  until left <= 0
  return false
end

--- Waits for an attempt in a method with an argument `timeout`, a number of seconds.
function shared.wait_in(method, self, timeout, attempt, ...)
  local handle, who = shared.handle(method, self), ("%s:%s"):format(self.__name:match "[^.]*$", method)
  return shared.wait(shared.seconds(who, timeout), attempt, handle, ...)
end

--- Puts a message into a connection if there is room within `seconds`; for shared.wait.
function shared.try_put(h, seconds, text, tensors, handles) return core.mp_put(h, text, tensors, handles, seconds) end

local PATIENCE = 10 -- seconds for the receiver to make room

--- Sends a message to a worker.
function shared.send(connection, ...) shared.send_within(PATIENCE, connection, ...) end

--- Sends a message over the connection of a worker. seconds: for the receiver to make room; nil: no limit.
function shared.send_within(seconds, connection, ...)
  if not core.mp_is_open(connection) then error("connection closed", 0) end
  local sent = shared.wait(seconds, shared.try_put, connection, ...)
  if not sent then error("the receiver does not read its messages", 0) end
end

--- Returns the options of serialization.lua for values sent through a handle.
function shared.how() return {processes = true, name_of = names.cached_finder()} end

return shared

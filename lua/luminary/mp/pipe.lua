--- lm.mp.Pipe({duplex = true}): Creates a pair of connections between processes or threads.
local core = require "luminary.core"
local class = require "luminary.base.class"
local serializer = require "luminary.mp.serialization"
local options = require "luminary.base.options"
local signature = require "luminary.base.signature"
local shared = require "luminary.mp.shared_handle"

local Connection = class.define "Connection"

function Connection:init(handle, way) self.handle, self.way = handle, way end

local GONE = "the other end was closed, or its process has ended"

--- Sends a value. {timeout = seconds} bounds the wait for room in the connection, after which it is an error.
function Connection:send(value, ...)
  local h, timeout = shared.handle("send", self), shared.timeout("Connection:send", ...)
  if self.way == "receive" then
    options.fail "Connection:send: this end only receives: Pipe {duplex = false} made it"
  end
  local text, tensors, handles = serializer.encode("Connection:send", value, shared.how())
  local ok, sent = pcall(shared.wait, timeout, shared.try_put, h, text, tensors, handles)
  if not ok and type(sent) == "string" and sent:find("closed$") then options.fail("Connection:send: %s", GONE) end
  if not ok then error(sent, 0) end
  if not sent then
    options.fail("Connection:send: timeout: the previous message was not received within %g s", timeout)
  end
end

--- Receives the next value. {timeout = seconds} bounds the wait, after which it is an error; so is a closed other end.
function Connection:recv(...)
  local h, timeout = shared.handle("recv", self), shared.timeout("Connection:recv", ...)
  if self.way == "send" then options.fail "Connection:recv: this end only sends: Pipe {duplex = false} made it" end
  local text, tensors, handles = shared.wait(timeout, core.mp_get, h)
  if text == false then options.fail("Connection:recv: timeout: no message within %g s", timeout) end
  if text == nil then options.fail("Connection:recv: no more messages: %s", GONE) end
  return serializer.decode(text, tensors, handles)
end

--- Returns whether recv would not wait, since there is a value or the other end is closed; waits `timeout` seconds (0).
function Connection:poll(timeout)
  local h = shared.handle("poll", self)
  timeout = shared.seconds("Connection:poll", timeout) or 0
  return shared.wait(timeout, core.mp_poll, h)
end

--- Closes the connection in this process.
function Connection:close() core.mp_close_handle(shared.handle("close", self)) end

function Connection:repr() return core.mp_is_open(self.handle) and "Connection" or "Connection(closed)" end

local new = signature.of("Pipe({duplex = true})", function(opts)
  local a, b = core.mp_pipe()
  return Connection(a, not opts.duplex and "receive" or nil), Connection(b, not opts.duplex and "send" or nil)
end)

return new

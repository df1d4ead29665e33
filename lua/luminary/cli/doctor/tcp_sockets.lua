--- Provides TCP for the doctor: every wait has a deadline, and failures have names.
local outside = require "luminary.cli.doctor.files_and_commands"
local ffi = require "ffi"

for _, text in ipairs {
  "struct lm_doctor_v4 { uint16_t family, port; uint8_t host[4], zero[8]; };",
  "struct lm_doctor_v6 { uint16_t family, port; uint32_t flow; uint8_t host[16]; uint32_t scope; };",
  "int socket(int, int, int);", "int connect(int, const void *, unsigned);", "int bind(int, const void *, unsigned);",
  "int listen(int, int);", "int accept4(int, void *, unsigned *, int);", "int getsockname(int, void *, unsigned *);",
  "long send(int, const void *, size_t, int);", "long recv(int, void *, size_t, int);", "char *strerror(int code);",
  "int setsockopt(int, int, int, const void *, unsigned);", "int getsockopt(int, int, int, void *, unsigned *);",
  "int inet_pton(int family, const char *text, void *out);", "int close(int fd);",
  "const char *inet_ntop(int family, const void *address, char *text, unsigned n);",
  "int poll(void *fds, unsigned long n, int timeout);",
} do
  pcall(ffi.cdef, text)
end
local C = ffi.C

local sockets = {}

local AF_INET, AF_INET6, STREAM = 2, 10, 1 + 0x800 + 0x80000 -- SOCK_STREAM, non-blocking, close-on-exec
local SOL_SOCKET, SO_REUSEADDR, SO_ERROR, TCP, NODELAY, IPV6, V6ONLY = 1, 2, 4, 6, 1, 41, 26
local POLLIN, POLLOUT, MSG_NOSIGNAL = 1, 4, 0x4000
local EINTR, EAGAIN, EINPROGRESS, EAFNOSUPPORT, EADDRNOTAVAIL = 4, 11, 115, 97, 99
local KINDS = {[1] = "forbidden", [13] = "forbidden", [101] = "unreachable", [110] = "timed out", [111] = "refused",
  [113] = "unreachable"}
local CHUNK = 2 ^ 20

local function network_order(port) return bit.bor(bit.lshift(bit.band(port, 255), 8), bit.rshift(port, 8)) end

local function option(fd, level, name, value)
  C.setsockopt(fd, level, name, ffi.new("int[1]", value), 4)
end

-- Returns a socket address from a text such as "192.0.2.1" or "::1"; nil if it is none.
local function place(address, port)
  if address:find(":", 1, true) then
    local six = ffi.new("struct lm_doctor_v6", {family = AF_INET6, port = network_order(port)})
    return C.inet_pton(AF_INET6, address, six.host) == 1 and six or nil, AF_INET6
  end
  local four = ffi.new("struct lm_doctor_v4", {family = AF_INET, port = network_order(port)})
  return C.inet_pton(AF_INET, address, four.host) == 1 and four or nil, AF_INET
end

function sockets.is_address(text) return place(text, 1) ~= nil end

--- Returns the addresses of a host, a name or an address; nil and the reason.
function sockets.resolve(host)
  if sockets.is_address(host) then return {host} end
  return outside.resolve(host)
end

-- Returns true if fd is ready before the deadline.
local function await(fd, events, deadline)
  local wanted = ffi.new("struct lm_doctor_pollfd", {fd, events, 0})
  repeat
    local left = math.max(0, deadline - outside.now())
    if C.poll(wanted, 1, math.ceil(left * 1000)) > 0 then return true end
  until outside.now() >= deadline
  return false
end

local function failure(code) return KINDS[code] or ffi.string(C.strerror(code)) end

--- Connects. Returns the connection and the seconds it took; or nil and the reason: "refused", "timed out",
--- "unreachable", "forbidden", or the system's message.
function sockets.connect(address, port, seconds)
  local where, family = place(address, port)
  if not where then return nil, "no address" end
  local fd, began = C.socket(family, STREAM, 0), outside.now()
  if fd < 0 then return nil, failure(ffi.errno()) end
  local code = C.connect(fd, where, ffi.sizeof(where)) == 0 and 0 or ffi.errno()
  if code == EINPROGRESS then
    local result, n = ffi.new "int[1]", ffi.new("unsigned[1]", 4)
    if not await(fd, POLLOUT, began + seconds) then
      code = 110
    else
      C.getsockopt(fd, SOL_SOCKET, SO_ERROR, result, n)
      code = result[0]
    end
  end
  if code ~= 0 then
    C.close(fd)
    return nil, failure(code)
  end
  option(fd, TCP, NODELAY, 1)
  return fd, outside.now() - began
end

--- Listens on a port (0: a free one) of every interface. Returns the socket and its port, or nil and the reason.
function sockets.listen(port)
  local code
  for _, any in ipairs {"::", "0.0.0.0"} do
    local where, family = place(any, port)
    local fd = C.socket(family, STREAM, 0)
    code = fd < 0 and ffi.errno() or 0
    if fd >= 0 then
      option(fd, SOL_SOCKET, SO_REUSEADDR, 1)
      if family == AF_INET6 then option(fd, IPV6, V6ONLY, 0) end
      if C.bind(fd, where, ffi.sizeof(where)) == 0 and C.listen(fd, 16) == 0 then
        C.getsockname(fd, where, ffi.new("unsigned[1]", ffi.sizeof(where)))
        return fd, network_order(where.port)
      end
      code = ffi.errno()
      C.close(fd)
    end
    if code ~= EAFNOSUPPORT and code ~= EADDRNOTAVAIL then break end
  end
  return nil, failure(code)
end

--- Accepts a connection within that number of seconds. Returns it and its address; nil if there is none.
function sockets.accept(listener, seconds)
  if not await(listener, POLLIN, outside.now() + seconds) then return nil end
  local who, n, text = ffi.new "struct lm_doctor_v6", ffi.new("unsigned[1]", 28), ffi.new "char[64]"
  local fd = C.accept4(listener, who, n, 0x800 + 0x80000)
  if fd < 0 then return nil end
  option(fd, TCP, NODELAY, 1)
  local host = who.family == AF_INET6 and who.host or ffi.cast("struct lm_doctor_v4 *", who).host
  C.inet_ntop(who.family, host, text, 64)
  return fd, (ffi.string(text):gsub("^::ffff:", ""))
end

--- Sends n bytes of a text, by default zeros; returns true if all were sent before the deadline.
function sockets.send(fd, n, deadline, text)
  local data, at = text or ffi.new("uint8_t[?]", math.min(n, CHUNK)), 0
  while at < n do
    local sent = tonumber(C.send(fd, text and text:sub(at + 1) or data, math.min(n - at, CHUNK), MSG_NOSIGNAL))
    if sent > 0 then
      at = at + sent
    elseif ffi.errno() == EAGAIN then
      if not await(fd, POLLOUT, deadline) then return false end
    elseif ffi.errno() ~= EINTR then
      return false
    end
  end
  return true
end

--- Receives n bytes, or fewer at the stream's end or the deadline: returns the text (empty if drop) and the count.
function sockets.receive(fd, n, deadline, drop)
  local buffer, pieces, at = ffi.new("uint8_t[?]", math.min(n, CHUNK)), {}, 0
  while at < n do
    local received = tonumber(C.recv(fd, buffer, math.min(n - at, CHUNK), 0))
    if received > 0 then
      at = at + received
      if not drop then pieces[#pieces + 1] = ffi.string(buffer, received) end
    elseif received == 0 then
      break
    elseif ffi.errno() == EAGAIN then
      if not await(fd, POLLIN, deadline) then break end
    elseif ffi.errno() ~= EINTR then
      break
    end
  end
  return table.concat(pieces), at
end

function sockets.close(fd) C.close(fd) end

return sockets

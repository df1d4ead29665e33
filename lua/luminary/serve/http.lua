--- Passes requests of HTTP clients to a server such as serve.OpenAI, by GNU libmicrohttpd.
local bit, ffi = require "bit", require "ffi"
local core = require "luminary.core"
local options = require "luminary.base.options"
local Executor = require "luminary.mp.executor"

local C = ffi.C
local http = {}

local LIBRARY = "libmicrohttpd.so.12"
local DECLARATIONS = [[
  typedef struct MHD_Connection MHD_Connection;
  typedef int (*lm_http_access)(void *, MHD_Connection *, const char *url, const char *method, const char *version,
    const char *upload, size_t *size, void **id);
  typedef void (*lm_http_ended)(void *, MHD_Connection *, void **id, int reason); // or of a connection's begin and end
  typedef ssize_t (*lm_http_read)(void *id, uint64_t position, char *buffer, size_t room);
  typedef union { int fd; uint16_t port; } lm_http_info;
  typedef struct { uint16_t family, port; uint8_t address[4], zero[8]; } lm_http_address;
  typedef struct { uint64_t bits[16]; } lm_http_signals;
  void *MHD_start_daemon(unsigned flags, uint16_t port, void *, void *, lm_http_access, void *, ...);
  int MHD_run_wait(void *daemon, int32_t milliseconds);
  int MHD_quiesce_daemon(void *daemon);
  void MHD_stop_daemon(void *daemon);
  void MHD_suspend_connection(MHD_Connection *);
  void MHD_resume_connection(MHD_Connection *);
  void *MHD_create_response_from_callback(uint64_t size, size_t block, lm_http_read, void *id, void *);
  const char *MHD_lookup_connection_value(MHD_Connection *, int kind, const char *name);
  int MHD_add_response_header(void *response, const char *name, const char *value);
  int MHD_queue_response(MHD_Connection *, unsigned status, void *response);
  void MHD_destroy_response(void *response);
  const lm_http_info *MHD_get_connection_info(MHD_Connection *, int kind, ...);
  const lm_http_info *MHD_get_daemon_info(void *daemon, int kind, ...);
  int inet_pton(int family, const char *text, void *address);
  ssize_t recv(int fd, void *buffer, size_t size, int flags); int shutdown(int fd, int how);
  int sigemptyset(lm_http_signals *); int sigaddset(lm_http_signals *, int); int sigpending(lm_http_signals *);
  int sigismember(const lm_http_signals *, int);
  int pthread_sigmask(int how, const lm_http_signals *, lm_http_signals *);
]]
-- Numbers of microhttpd.h and of Linux.
local EPOLL_AND_SUSPEND, UNKNOWN_SIZE, YES, NO, ENDS, FAILS = 512 + 8192 + 1024, -1ULL, 1, 0, -1, -2
local END, CONNECTIONS, TIMEOUT, NOTIFY_COMPLETED, SOCK_ADDR, NOTIFY_CONNECTION = 0, 2, 3, 4, 6, 27
local CONNECTION_FD, BIND_PORT, HEADER, BEGINS, BOTH_WAYS = 6, 6, 1, 0, 2
local AF_INET, PEEK, DONTWAIT, SIG_BLOCK, SIGINT, SIGTERM = 2, 2, 64, 0, 2, 15

-- IDLE: seconds that a client may send and read nothing. The connection that waits longest for a request is closed
-- where there are FULL; with the usual limit of 1024 descriptors there is room for two of each open request then.
local MOST_CONNECTIONS, FULL, IDLE, BLOCK = 600, 512, 30, 16384
local MOST_DISCARDED = 2 ^ 30 -- bytes of a body of unknown length that are read before the answer that it is too long

local function load_library()
  local found, library = pcall(ffi.load, LIBRARY)
  if not found then
    options.fail("serve: cannot load %s; install GNU libmicrohttpd (on Debian: apt install libmicrohttpd-dev), or run "
      .. "nginx as examples/hosts/nginx does", LIBRARY)
  end
  pcall(ffi.cdef, DECLARATIONS)
  return library
end

-- Returns a function of C that calls f, and returns `otherwise` after an error, which must not pass C's frames.
local function callback(kind, f, otherwise)
  return ffi.cast(kind, function(...)
    local ok, result = pcall(f, ...)
    if not ok then io.stderr:write("luminary serve: ", tostring(result), "\n") end
    if ok then return result end
    return otherwise
  end)
end

local function int(v) return ffi.cast("int", v) end
local function id_of(pointer) return tonumber(ffi.cast("intptr_t", pointer)) end

-- Blocks signals in this thread and those that it starts; returns a function that returns true once one has come.
local function watch(...)
  local mask, pending, signals = ffi.new "lm_http_signals", ffi.new "lm_http_signals", {...}
  C.sigemptyset(mask)
  for _, signal in ipairs(signals) do C.sigaddset(mask, signal) end
  C.pthread_sigmask(SIG_BLOCK, mask, nil)
  return function()
    C.sigpending(pending)
    for _, signal in ipairs(signals) do
      if C.sigismember(pending, signal) == 1 then return true end
    end
    return false
  end
end

--- http.serve(server, {host, port, seconds, on_start}): Answers requests at an IPv4 address until SIGINT or SIGTERM
--- comes, and then those that are open, for `seconds` at most. Calls on_start(port) first.
function http.serve(server, o)
  local mhd, open, number = load_library(), {}, 0 -- open: requests by number, which libmicrohttpd keeps
  local peers, count = {}, 0 -- connections by address: {fd, since = when it began to wait, nil within an answer}
  local address, is_stopped = ffi.new "lm_http_address", watch(SIGINT, SIGTERM)
  address.family, address.port = AF_INET, bit.rshift(bit.bswap(o.port), 16)
  if C.inet_pton(AF_INET, o.host, address.address) ~= 1 then
    options.must_be("serve", "host", "an IPv4 address", o.host)
  end

  -- Lets a connection wait for its answer; libmicrohttpd does not look at it meanwhile.
  local function suspend(r)
    r.is_suspended = true
    mhd.MHD_suspend_connection(r.connection)
  end
  local function resume(r)
    if r.is_suspended then mhd.MHD_resume_connection(r.connection) end
    r.is_suspended = false
  end

  local read = callback("lm_http_read", function(id, _, buffer, room)
    local r = open[id_of(id)]
    local text = r.text ~= "" and r.text or r.reply:read()
    if not text then return r.reply.problem and FAILS or ENDS end
    if text == "" then suspend(r) end
    local n = math.min(#text, tonumber(room))
    ffi.copy(buffer, text, n)
    r.text = text:sub(n + 1)
    return n
  end, FAILS)

  local access = callback("lm_http_access", function(_, connection, url, method, _, upload, size, id)
    local r, peer, n = open[id_of(id[0])], peers[id_of(connection)], tonumber(size[0])
    peer.since = core.time()
    if not r then
      number = number + 1
      r = {connection = connection, parts = {}, size = 0, text = ""}
      open[number], id[0] = r, ffi.cast("void *", number)
      local length = mhd.MHD_lookup_connection_value(connection, HEADER, "Content-Length")
      r.length = length ~= nil and tonumber(ffi.string(length)) or nil
      if not r.length or r.length <= 16 * server.max_body then return YES end -- else it is not read
    end
    if n > 0 then
      if r.size <= server.max_body then r.parts[#r.parts + 1] = ffi.string(upload, n) end
      r.size, size[0] = r.size + n, 0
      return r.size <= MOST_DISCARDED and YES or NO
    end
    peer.since = nil
    r.reply = r.reply or server:request {method = ffi.string(method), path = ffi.string(url), length = r.length,
      body = table.concat(r.parts), on_change = function() resume(r) end}
    r.parts = {}
    if not r.reply.status then
      suspend(r)
      return YES
    end
    local response = mhd.MHD_create_response_from_callback(UNKNOWN_SIZE, BLOCK, read, id[0], nil)
    mhd.MHD_add_response_header(response, "Content-Type", r.reply.kind)
    if r.reply.status == 503 then mhd.MHD_add_response_header(response, "Retry-After", "1") end
    local result = mhd.MHD_queue_response(connection, r.reply.status, response)
    mhd.MHD_destroy_response(response)
    return result
  end, NO)

  local ended = callback("lm_http_ended", function(_, connection, id)
    local r, peer = open[id_of(id[0])], peers[id_of(connection)]
    if peer then peer.since = core.time() end
    open[id_of(id[0])] = nil
    if r and r.reply then r.reply:cancel() end
  end)

  local connected = callback("lm_http_ended", function(_, connection, _, what)
    local idlest
    for _, peer in pairs(what == BEGINS and count >= FULL and peers or {}) do
      if peer.since and (not idlest or peer.since < idlest.since) then idlest = peer end
    end
    if idlest then
      C.shutdown(idlest.fd, BOTH_WAYS) -- libmicrohttpd closes it
      idlest.since = nil
    end
    count = count + (what == BEGINS and 1 or -1)
    peers[id_of(connection)] = what == BEGINS
      and {fd = mhd.MHD_get_connection_info(connection, CONNECTION_FD).fd, since = core.time()} or nil
  end)

  local daemon = mhd.MHD_start_daemon(EPOLL_AND_SUSPEND, o.port, nil, nil, access, nil,
    int(CONNECTIONS), int(MOST_CONNECTIONS), int(TIMEOUT), int(IDLE), int(NOTIFY_COMPLETED), ended,
    ffi.cast("void *", nil), int(NOTIFY_CONNECTION), connected, ffi.cast("void *", nil), int(SOCK_ADDR),
    ffi.cast("void *", address), int(END))
  if daemon == nil then options.fail("serve: cannot listen at %s:%d", o.host, o.port) end
  o.on_start(mhd.MHD_get_daemon_info(daemon, BIND_PORT).port)

  local byte, deadline, next_look = ffi.new "char[1]", nil, 0
  repeat
    mhd.MHD_run_wait(daemon, next(open) and 1 or 200) -- milliseconds
    Executor.poll(0)
    local now = core.time()
    for _, r in pairs(now >= next_look and open or {}) do -- cancels answers whose clients have closed
      local fd = r.is_suspended and mhd.MHD_get_connection_info(r.connection, CONNECTION_FD).fd
      if fd and C.recv(fd, byte, 1, PEEK + DONTWAIT) == 0 then r.reply:cancel() end
    end
    if now >= next_look then next_look = now + 0.1 end
    if not deadline and is_stopped() then
      deadline = now + o.seconds
      mhd.MHD_quiesce_daemon(daemon)
    end
  until deadline and (not next(open) or now > deadline)
  for _, r in pairs(open) do resume(r) end
  mhd.MHD_stop_daemon(daemon)
end
jit.off(http.serve, true) -- C code that a compiled call runs must not call Lua

return http

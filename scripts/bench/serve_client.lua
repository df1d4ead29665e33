-- Sends requests to scripts/bench/serve's server over many connections, and checks every answer.
local ffi = require "ffi"
ffi.cdef [[
  struct serve_address { uint16_t family, port; uint8_t ip[4]; uint8_t zero[8]; };
  struct serve_poll { int fd; short events, revents; };
  int socket(int, int, int), connect(int, const struct serve_address *, unsigned), close(int);
  int poll(struct serve_poll *, unsigned long, int);
  int setsockopt(int, int, int, const void *, unsigned);
  intptr_t send(int, const char *, size_t, int), recv(int, char *, size_t, int);
]]
local C = ffi.C
local POLLIN, NOSIGNAL, IPPROTO_TCP, TCP_NODELAY, SIZE = 1, 0x4000, 6, 1, 65536

local function opened(port)
  local fd = C.socket(2, 1, 0)
  assert(fd >= 0, "cannot create a socket")
  local address = ffi.new("struct serve_address", {2, (port % 256) * 256 + math.floor(port / 256), {127, 0, 0, 1}})
  if C.connect(fd, address, 16) ~= 0 then
    C.close(fd)
    return nil
  end
  C.setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, ffi.new("int[1]", 1), 4)
  return fd
end

--- Sends spec.requests requests. spec: port, connections, make(i) (returns path, body and check(text), which returns
--- true for a correct answer), each(seconds) (called some 100 times a second), was_killed(pid, seconds) (true if that
--- server process, or with nil any, was killed after `seconds`), time. Every second connection is closed after each
--- answer. Returns counts: ok, wrong, not_200, resent (the server closed a connection between two requests), killed
--- (lost in a killed process), dropped; and latencies, a list of seconds.
return function(spec)
  local count = {ok = 0, wrong = 0, not_200 = 0, resent = 0, killed = 0, dropped = 0, problems = {}}
  local n, connections, buffer = spec.connections, {}, ffi.new("char[?]", SIZE)
  local polls, begun, ended = ffi.new("struct serve_poll[?]", n), 0, 0

  local function note(text, ...)
    if #count.problems < 10 then table.insert(count.problems, text:format(...)) end
  end

  local function send(c)
    if not c.fd then c.fd, c.used, c.pid = opened(spec.port), false, nil end
    c.text = ""
    local sent = c.fd and C.send(c.fd, c.request, #c.request, NOSIGNAL) or -1
    c.lost = sent ~= #c.request
    polls[c.slot] = {c.fd or -1, POLLIN, 0}
  end

  local function start(c)
    if begun == spec.requests then
      if c.fd then C.close(c.fd) end
      c.fd, c.check, polls[c.slot].fd = nil, nil, -1
      return
    end
    begun = begun + 1
    local path, body, check = spec.make(begun)
    c.check, c.began, c.path, c.tries = check, spec.time(), path, 0
    c.request = ("POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n%s\r\n%s"):format(path, #body,
      c.keeps and "" or "Connection: close\r\n", body)
    send(c)
  end

  local function shut(c)
    if c.fd then C.close(c.fd) end
    c.fd = nil
  end

  -- Ends a request without an answer.
  local function lose(c)
    local pid, reused = c.pid, c.used
    shut(c)
    c.tries = c.tries + 1
    if reused and c.text == "" and not spec.was_killed(pid, c.began) and c.tries < 5 then
      count.resent = count.resent + 1
      return send(c)
    end
    ended = ended + 1
    if spec.was_killed(pid, c.began) then
      count.killed = count.killed + 1
    else
      count.dropped = count.dropped + 1
      note("dropped: %s after %.3f s, connection %s, %d bytes of an answer", c.path, spec.time() - c.began,
        reused and "reused" or "new", #c.text)
    end
    start(c)
  end

  local function finish(c, status, body)
    ended = ended + 1
    c.used = true
    if status ~= 200 then
      count.not_200 = count.not_200 + 1
      note("status %d: %s: %s", status, c.path, body:sub(1, 100))
    elseif not c.check(body) then
      count.wrong = count.wrong + 1
      note("wrong: %s: %s", c.path, body:sub(1, 100))
    else
      count.ok = count.ok + 1
    end
    table.insert(spec.latencies, spec.time() - c.began)
    if not c.keeps or c.closes then shut(c) end
    start(c)
  end

  local function read(c)
    local got = tonumber(C.recv(c.fd, buffer, SIZE, 0))
    if got <= 0 then return lose(c) end
    c.text = c.text .. ffi.string(buffer, got)
    local head, at = c.text:match "^(.-\r\n)\r\n()"
    if not head then return end
    local length = tonumber(head:lower():match "\r\ncontent%-length: (%d+)")
    if not length or #c.text - at + 1 < length then return end
    c.pid = tonumber(head:match "\r\n[xX]%-[wW]orker: (%d+)") or c.pid
    c.closes = head:lower():find("\r\nconnection: close", 1, true)
    finish(c, tonumber(head:match "^HTTP/1.1 (%d+)"), c.text:sub(at, at + length - 1))
  end

  for i = 1, n do
    connections[i] = {slot = i - 1, keeps = i % 2 == 0}
    start(connections[i])
  end
  local due = 0
  while ended < spec.requests do
    C.poll(polls, n, 10)
    local now = spec.time()
    if now >= due then
      spec.each(now)
      due = now + 0.01
    end
    for i = 1, n do
      local c = connections[i]
      if c.check and (c.lost or polls[i - 1].revents ~= 0 or now > c.began + 30) then
        if c.lost or now > c.began + 30 then lose(c) else read(c) end
      end
    end
  end
  return count
end

--- Checks that another machine answers (`--with host:port`), and its speed, if `luminary doctor --listen` runs there.
---
--- The listener first sends GREETING. Each request is 16 bytes, a word and a number n: "ping" is sent back, "take" is
--- followed by n bytes and sent back after them, "give" is answered by n bytes.
local outside = require "luminary.cli.doctor.files_and_commands"
local addresses = require "luminary.cli.doctor.ip_addresses"
local sockets = require "luminary.cli.doctor.tcp_sockets"

local reach = {}

local GREETING, STORE = "luminary doctor 1\n", "LM" -- the start of a store's challenge
local REQUEST = 16
local CONNECT, GREET, STEP = 5, 3, 10 -- seconds to connect, for the greeting, for a request
local PINGS, FIRST, MOST = 50, 2 ^ 20, 2 ^ 28 -- round trips; initial and largest number of bytes
local AIM = 0.3 -- seconds of sending
local GIGABIT = 0.15 -- GB/s; gigabit Ethernet does 0.118

local function request(word, n) return ("%-4s%12d"):format(word, n) end

-- ---- the client

local function exchange(fd, word, n)
  local deadline = outside.now() + STEP
  if not sockets.send(fd, REQUEST, deadline, request(word, n)) then return false end
  if word == "give" then return select(2, sockets.receive(fd, n, deadline, true)) == n end
  if word == "take" and not sockets.send(fd, n, deadline) then return false end
  return sockets.receive(fd, REQUEST, deadline) == request(word, n)
end

-- Returns the GB/s of data in the direction of `word`, or nil.
local function speed(fd, word)
  local n = FIRST
  while true do
    local began = outside.now()
    if not exchange(fd, word, n) then return nil end
    local took = outside.now() - began
    if took > AIM / 2 or n >= MOST then return n / took / 1e9 end
    n = math.min(MOST, math.floor(n * math.min(16, AIM / math.max(took, 1e-6))))
  end
end

local function measure(found, fd, where)
  local trips = {}
  for i = 1, PINGS do
    local began = outside.now()
    if not exchange(fd, "ping", 0) then break end
    trips[i] = outside.now() - began
  end
  table.sort(trips)
  local there, back = speed(fd, "take"), speed(fd, "give")
  if #trips < PINGS or not there or not back then
    return found.warning("reach.breaks", ("the connection to %s breaks off under load"):format(where),
      ("after %d round trips: no answer within %d s"):format(#trips, STEP), "look for different MTUs on the way (ping "
        .. "-M do -s 8972), for loss (ip -s link), and for a firewall that limits rates")
  end
  local seen = ("round trip %.3f ms (median of %d), %.2f GB/s there, %.2f GB/s back, one stream"):format(
    trips[math.ceil(#trips / 2)] * 1e3, #trips, there, back)
  if math.min(there, back) < GIGABIT then
    found.note("reach.slow", ("the way to %s has a gigabit a second or less"):format(where), seen
      .. "; a step's gradients take 8 s a gigabyte", "a faster network if there is one (LM_SOCKET_IFNAME, "
      .. "NCCL_SOCKET_IFNAME), fewer and larger steps (no_sync), bf16 compression of the gradients")
  else
    found.ok("reach.speed", "the way to " .. where, seen)
  end
end

-- The meaning of each failure: id, title, and remedy.
local FAILURES = {
  refused = {"reach.refused", "refuses the connection", "the machine is reached, but nothing listens on that port: is "
    .. "rank 0 started, with this port (MASTER_PORT), and on an address that others see, not 127.0.0.1? To test the "
    .. "way alone, run there: luminary doctor --listen PORT"},
  ["timed out"] = {"reach.timed_out", "does not answer", "packets are dropped: by a firewall (open the port and, "
    .. "between the nodes, all others: sudo ufw allow from NETWORK; sudo firewall-cmd --zone=trusted "
    .. "--add-source=NETWORK; security groups of the cloud), or the address is one that this machine does not really "
    .. "reach (a container's, 172.17.…)"},
  unreachable = {"reach.unreachable", "cannot be reached", "there is no way to that network: compare ip route get "
    .. "ADDRESS with the interfaces (luminary doctor --only network --verbose), and see that the other machine is on"},
  forbidden = {"reach.forbidden", "may not be reached from here", "a firewall of this machine or the container's "
    .. "sandbox forbids it: sudo iptables -S OUTPUT, sudo nft list ruleset, network policies in Kubernetes"},
}

local function one(found, host, port)
  local where = (host:find(":", 1, true) and "[%s]:%d" or "%s:%d"):format(host, port)
  local list, problem = sockets.resolve(host)
  if not list then
    return found.problem("reach.unknown_host", ("this machine cannot resolve the host '%s'"):format(host), problem,
      "give its address, or enter it in /etc/hosts on every node: ADDRESS " .. host .. "; getent hosts " .. host
        .. " tests it")
  end
  local local_name = not sockets.is_address(host) and host ~= "localhost" and addresses.is_loopback(list[1])
  if local_name then
    found.warning("reach.loopback", ("'%s' stands for this machine's loopback"):format(host), table.concat(list, ", ")
      .. " (/etc/hosts?): other machines get another answer, or reach themselves",
      "give it the machine's address in /etc/hosts, in place of 127.0.1.1")
  end
  local fd, why, tried = nil, nil, {}
  for _, address in ipairs(list) do
    fd, why = sockets.connect(address, port, CONNECT)
    tried[#tried + 1] = address .. ": " .. (fd and "connected" or why)
    if fd then break end
  end
  if not fd then
    local failure = FAILURES[why] or {"reach.fails", "cannot be connected to",
      "see ip route get and the firewalls on both sides"}
    return found.problem(failure[1], where .. " " .. failure[2], table.concat(tried, "; ")
      .. (why == "timed out" and (" (%d s)"):format(CONNECT) or ""), failure[3])
  end
  found.ok("reach.connected", "connected to " .. where, ("%s, in %.2f ms"):format(tried[#tried], why * 1e3))
  local first = sockets.receive(fd, #STORE, outside.now() + GREET)
  if first == STORE then
    found.ok("reach.store", ("a luminary store answers at %s"):format(where),
      "rank 0 is up; for round trip and bandwidth run luminary doctor --listen PORT there")
  elseif first ~= "" and first .. sockets.receive(fd, #GREETING - #first, outside.now() + GREET) == GREETING then
    measure(found, fd, where)
  else
    found.note("reach.stranger", ("what answers at %s is neither a luminary store nor its doctor"):format(where),
      "it did not greet as one", "if that is to be rank 0, another program has its port: choose another MASTER_PORT")
  end
  sockets.close(fd)
end

--- Splits "host:port" or "[v6]:port" into host and port; nil if it is neither.
function reach.split(text)
  local host, port = text:match("^%[([%x:.]+)%]:(%d+)$")
  if not host then host, port = text:match("^([^:%s]+):(%d+)$") end
  port = tonumber(port)
  if port and port >= 1 and port <= 65535 then return host, port end
end

--- Returns the probes, one for each address.
function reach.probes_of(list)
  local probes = {}
  for i, text in ipairs(list) do
    local host, port = reach.split(text)
    probes[i] = {text, function(found) one(found, host, port) end}
  end
  return probes
end

-- ---- the listener

local function serve(fd)
  local deadline = outside.now() + 60
  if not sockets.send(fd, #GREETING, deadline, GREETING) then return end
  while outside.now() < deadline do
    local line = sockets.receive(fd, REQUEST, outside.now() + STEP)
    local word, n = line:match("^(%a+)%s+(%d+)$")
    n = tonumber(n)
    if #line < REQUEST or not word or n > MOST then return end
    if word == "take" and select(2, sockets.receive(fd, n, outside.now() + STEP, true)) < n then return end
    if word == "give" then
      if not sockets.send(fd, n, outside.now() + STEP) then return end
    elseif not sockets.send(fd, REQUEST, outside.now() + STEP, line) then
      return
    end
  end
end

--- Answers the doctors of other machines until a signal ends it; returns the exit code if it cannot listen.
function reach.listen(port)
  local listener, bound = sockets.listen(port)
  if not listener then
    io.stderr:write(("luminary doctor: cannot listen on port %d: %s\n"):format(port, bound))
    return 1
  end
  io.stdout:write(("listening on port %d; on another machine: luminary doctor --with THIS-HOST:%d (Ctrl-C ends this)\n")
    :format(bound, bound))
  io.stdout:flush()
  while true do
    local fd, who = sockets.accept(listener, 3600)
    if fd then
      io.stdout:write(("%s asks\n"):format(who))
      io.stdout:flush()
      serve(fd)
      sockets.close(fd)
    end
  end
end

return reach

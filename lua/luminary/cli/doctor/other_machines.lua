--- Checks that another machine answers (`--with host:port`), and its speed, if `luminary doctor --listen` runs there.
---
--- The listener first sends GREETING. Each request is 16 bytes, a word and a number n: "ping" is sent back, "take" is
--- followed by n bytes and sent back after them, "give" is answered by n bytes.
local machine = require "luminary.cli.doctor.files_and_commands"
local addresses = require "luminary.cli.doctor.ip_addresses"

local reach = {}

local GREETING, STORE = "luminary doctor 1\n", "LM" -- the start of a store's challenge
local REQUEST, ZEROS = 16, ("\0"):rep(2 ^ 20)
local CONNECT, GREET, STEP = 5, 3, 10 -- seconds to connect, for the greeting, for a request
local PINGS, FIRST, MOST = 50, 2 ^ 20, 2 ^ 28 -- round trips; initial and largest number of bytes
local AIM = 0.3 -- seconds of sending
local GIGABIT = 0.15 -- GB/s; gigabit Ethernet does 0.118

local function request(word, n) return ("%-4s%12d"):format(word, n) end

-- ---- the client

local function exchange(socket, word, n)
  if not socket:send(request(word, n), STEP) then return false end
  if word == "give" then return socket:receive(n, STEP, true) ~= nil end
  if word == "take" and not socket:send(ZEROS, STEP, n) then return false end
  return socket:receive(REQUEST, STEP) == request(word, n)
end

-- Returns the GB/s of data in the direction of `word`, or nil.
local function speed(socket, word)
  local n = FIRST
  while true do
    local began = machine.now()
    if not exchange(socket, word, n) then return nil end
    local took = machine.now() - began
    if took > AIM / 2 or n >= MOST then return n / took / 1e9 end
    n = math.min(MOST, math.floor(n * math.min(16, AIM / math.max(took, 1e-6))))
  end
end

local function measure(found, socket, where)
  local trips = {}
  for i = 1, PINGS do
    local began = machine.now()
    if not exchange(socket, "ping", 0) then break end
    trips[i] = machine.now() - began
  end
  table.sort(trips)
  local there, back = speed(socket, "take"), speed(socket, "give")
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

-- Short names of the reasons why a connection fails.
local REASONS = {["Connection refused"] = "refused", ["Connection timed out"] = "timed out",
  ["Network is unreachable"] = "unreachable", ["No route to host"] = "unreachable",
  ["Operation not permitted"] = "forbidden", ["Permission denied"] = "forbidden"}

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

local function join(host, port) return (host:find(":", 1, true) and "[%s]:%d" or "%s:%d"):format(host, port) end

local function probe_address(found, host, port)
  local where = join(host, port)
  local can_load, core = pcall(require, "luminary.core")
  if not can_load then
    return found.note("reach.no_core", ("the way to %s was not tried"):format(where), "luminary's core does not load",
      "luminary doctor --only libraries says why")
  end
  local list, problem = addresses.resolve(host)
  if not list then
    return found.problem("reach.unknown_host", ("this machine cannot resolve the host '%s'"):format(host), problem,
      "give its address, or enter it in /etc/hosts on every node: ADDRESS " .. host .. "; getent hosts " .. host
        .. " tests it")
  end
  local local_name = not addresses.is_address(host) and host ~= "localhost" and addresses.is_loopback(list[1])
  if local_name then
    found.warning("reach.loopback", ("'%s' stands for this machine's loopback"):format(host), table.concat(list, ", ")
      .. " (/etc/hosts?): other machines get another answer, or reach themselves",
      "give it the machine's address in /etc/hosts, in place of 127.0.1.1")
  end
  local socket, why, took, tried = nil, nil, nil, {}
  for _, address in ipairs(list) do
    local began = machine.now()
    socket, why = core.tcp_connect(join(address, port), CONNECT)
    took, why = machine.now() - began, REASONS[why] or why
    tried[#tried + 1] = address .. ": " .. (socket and "connected" or why)
    if socket then break end
  end
  if not socket then
    local failure = FAILURES[why] or {"reach.fails", "cannot be connected to",
      "see ip route get and the firewalls on both sides"}
    return found.problem(failure[1], where .. " " .. failure[2], table.concat(tried, "; ")
      .. (why == "timed out" and (" (%d s)"):format(CONNECT) or ""), failure[3])
  end
  found.ok("reach.connected", "connected to " .. where, ("%s, in %.2f ms"):format(tried[#tried], took * 1e3))
  local first = socket:receive(#STORE, GREET)
  if first == STORE then
    found.ok("reach.store", ("a luminary store answers at %s"):format(where),
      "rank 0 is up; for round trip and bandwidth run luminary doctor --listen PORT there")
  elseif first and first .. (socket:receive(#GREETING - #first, GREET) or "") == GREETING then
    measure(found, socket, where)
  else
    found.note("reach.stranger", ("what answers at %s is neither a luminary store nor its doctor"):format(where),
      "it did not greet as one", "if that is to be rank 0, another program has its port: choose another MASTER_PORT")
  end
  socket:close()
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
    probes[i] = {text, function(found) probe_address(found, host, port) end}
  end
  return probes
end

-- ---- the listener

local function serve(socket)
  local deadline = machine.now() + 60
  if not socket:send(GREETING, STEP) then return end
  while machine.now() < deadline do
    local line = socket:receive(REQUEST, STEP) or ""
    local word, n = line:match("^(%a+)%s+(%d+)$")
    n = tonumber(n)
    if not word or n > MOST then return end
    if word == "take" and not socket:receive(n, STEP, true) then return end
    if word == "give" then
      if not socket:send(ZEROS, STEP, n) then return end
    elseif not socket:send(line, STEP) then
      return
    end
  end
end

--- Answers the doctors of other machines until a signal ends it; returns the exit code if it cannot listen.
function reach.listen(port)
  local can_load, core = pcall(require, "luminary.core")
  if not can_load then
    io.stderr:write("luminary doctor: luminary's core does not load: ", core, "\n")
    return 1
  end
  local listener, address = core.tcp_listen(port)
  if not listener then
    io.stderr:write(("luminary doctor: cannot listen on port %d: %s\n"):format(port, address))
    return 1
  end
  local bound = address:match("%d+$")
  io.stdout:write(("listening on port %s; on another machine: luminary doctor --with THIS-HOST:%s (Ctrl-C ends this)\n")
    :format(bound, bound))
  io.stdout:flush()
  while true do
    local socket, who = listener:accept(3600)
    if socket then
      io.stdout:write(("%s asks\n"):format(who))
      io.stdout:flush()
      serve(socket)
      socket:close()
    end
  end
end

return reach

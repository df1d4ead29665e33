--- Checks interfaces, names, ports, RDMA and firewalls, by which ranks on several machines meet.
local lists = require "luminary.base.lists"
local machine = require "luminary.cli.doctor.files_and_commands"
local addresses = require "luminary.cli.doctor.ip_addresses"
local facts = require "luminary.cli.doctor.machine_facts"

local DEFAULT_PORT = 29500

local function describe(one)
  local list = lists.map(one.addresses, function(a) return a.address .. "/" .. a.bits end)
  return ("%s (%s, MTU %s)"):format(one.name, table.concat(list, " "), tostring(one.mtu or "?"))
end

-- Returns the interfaces that are up and have an address, in the kernel's order.
local function usable()
  return lists.filter(facts.interfaces(), function(one) return one.up and #one.addresses > 0 end)
end

local function names(list) return table.concat(lists.map(list, function(one) return one.name end), ", ") end

-- ---- the chosen interface

-- Returns the interfaces that match a list such as "eth", "=eth0,=eth1" or "^docker,lo", as in NCCL: prefixes; with =
-- full names; with ^ all others.
local function matching(list, text)
  local others, exact, rest = text:match("^(%^?)(=?)(.*)$")
  return lists.filter(list, function(one)
    local hit = false
    for word in rest:gmatch("[^,]+") do
      word = word:gsub("^=", ""):gsub(":.*$", "")
      hit = hit or one.name == word or (exact == "" and one.name:sub(1, #word) == word)
    end
    return hit == (others == "")
  end)
end

local function starts(prefix) return function(one) return one.name:sub(1, #prefix) == prefix end end

-- Returns the interfaces in NCCL's order (its manual, NCCL_SOCKET_IFNAME): those the variable names; else ib*; else all
-- except docker* and lo (and, in newer versions, virbr*); else docker*; else lo. NCCL starts on the first of them.
local function choose()
  local list, given, from = usable(), facts.nccl "NCCL_SOCKET_IFNAME"
  if (given or "") == "" then
    given, from = machine.env "LM_SOCKET_IFNAME", "LM_SOCKET_IFNAME, which is passed to NCCL"
  end
  if (given or "") ~= "" then return matching(list, given), ("'%s', from %s"):format(given, from) end
  local rounds = {
    {starts "ib", "those that begin with ib come first"},
    {function(one) return not one.loopback and not one.name:match("^docker") and not one.name:match("^virbr") end,
      "any but docker* and lo"},
    {starts "docker", "there is none but docker's"}, {function() return true end, "there is no other"},
  }
  for _, round in ipairs(rounds) do
    local chosen = lists.filter(list, round[1])
    if #chosen > 0 then return chosen, round[2] end
  end
  return {}, "there is none"
end

local function interfaces(found)
  local list = usable()
  local outward = lists.filter(list, function(one) return not one.loopback end)
  if #facts.interfaces() == 0 then
    return found.note("network.unknown", "the interfaces are not known", "/sys/class/net cannot be read", "")
  elseif #outward == 0 then
    local several = facts.nodes() > 1
    return found[several and "problem" or "note"]("network.only_loopback", "no way out of this machine",
      "the loopback alone has an address" .. (several and (", and the job has %d nodes"):format(facts.nodes()) or ""),
      "enough for one machine; for several: ip link set DEVICE up and an address, docker run --network host")
  end
  local chosen, why = choose()
  local first = chosen[1]
  if first and first.name:match("^docker") then
    found.warning("network.nccl_docker", "NCCL would talk over docker's bridge",
      ("%s: %s; other machines are not on it"):format(describe(first), why), "export NCCL_SOCKET_IFNAME=… with the "
        .. "interface that the other nodes are on, on every node; or docker run --network host")
  elseif first then
    found.ok("network.nccl", "NCCL would start on " .. first.name, ("%s; %s"):format(names(chosen), why))
  end
  local ours = machine.env "LM_SOCKET_IFNAME"
  local route = ("\n" .. (machine.read "/proc/net/route" or "")):match("\n(%S+)%s+00000000%s")
  found.ok("network.ours", "luminary would use " .. (ours or route or outward[1].name), ours and "LM_SOCKET_IFNAME"
    or route and "the default route starts there (LM_SOCKET_IFNAME chooses another)" or "the first with an address")
  found.ok("network.interfaces", "interfaces", table.concat(lists.map(list, describe), ", "))
end

local function named(found)
  for _, name in ipairs {"NCCL_SOCKET_IFNAME", "LM_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"} do
    local text, from = facts.nccl(name)
    if text and text ~= "" and #facts.interfaces() > 0 and #matching(usable(), text) == 0 then
      found[name:match("^GLOO") and "warning" or "problem"]("network.ifname", name
        .. " names no interface that is up here",
        ("'%s' (from %s); up, with an address: %s"):format(text, from, names(usable())),
        "name one of these, or a prefix that fits every node, as in " .. name .. "=eth; ^docker,lo excludes instead")
    end
  end
end

local function alike(found)
  local at = {}
  for _, one in ipairs(usable()) do
    for _, a in ipairs(one.addresses) do
      local net = not one.loopback and addresses.network(a)
      if net and a.bits < 32 then
        if at[net] and at[net] ~= one.name then
          found.warning("network.same_subnet", "two interfaces are in one network",
            ("%s and %s, both in %s: answers may come from the other one, and connections hang"):format(at[net],
              one.name, net), "bond them, or give each a network of its own; at the least sysctl "
                .. "net.ipv4.conf.all.arp_ignore=1 and arp_announce=2, and NCCL_SOCKET_IFNAME with LM_SOCKET_IFNAME="
                .. at[net])
        end
        at[net] = at[net] or one.name
      end
    end
  end
  local chosen = lists.filter((choose()), function(one) return one.physical end)
  local other = lists.find(chosen, function(one) return one.mtu ~= chosen[1].mtu end)
  if other then
    found.warning("network.mtu", "interfaces that NCCL uses together differ in MTU",
      ("%s and %s"):format(describe(chosen[1]), describe(other)), ("sudo ip link set %s mtu %s (and the same on the "
        .. "other nodes and the switch), or NCCL_SOCKET_IFNAME with the one to use"):format(other.name,
        tostring(chosen[1].mtu)))
  end
  found.ok_if_clean("network.distinct", "interfaces do not contradict each other", "")
end

-- ---- names

local function host_name(found)
  local name = facts.hostname()
  if not name then return end
  local list, problem = machine.resolve(name)
  local hosts = ("\n" .. (machine.read "/etc/hosts" or "")):match("\n%s*(127%.[^\n]*%f[%w]" .. name:gsub("%p", "%%%0")
    .. "%f[^%w.-][^\n]*)")
  if not list and problem:find("getent", 1, true) then
    return found.note("network.host_name_unknown", "not known what this host's name stands for", problem, "")
  elseif not list then
    return found.warning("network.host_name", ("this host's own name, '%s', is not known to itself"):format(name),
      problem,
      ("enter it in /etc/hosts with the machine's address: ADDRESS %s"):format(name))
  end
  if lists.every(list, addresses.is_loopback) then
    return found.warning("network.host_loopback", ("this host's own name, '%s', stands for the loopback"):format(name),
      table.concat(list, ", ") .. (hosts and (", from /etc/hosts: " .. hosts) or "")
        .. "; whoever passes that name or address to others (MPI, PyTorch's gloo, MASTER_ADDR=$(hostname)) sends "
        .. "them to themselves",
      ("in /etc/hosts give '%s' the machine's address in place of %s; or use addresses: MASTER_ADDR=192.0.2.1, "
        .. "GLOO_SOCKET_IFNAME"):format(name, list[1]))
  end
  found.ok("network.host_known", "this host's name is known", name .. ": " .. table.concat(list, ", "))
end

local function master(found)
  local host = machine.env "MASTER_ADDR"
  if not host or host == "" then return end
  local list, problem = addresses.resolve(host)
  if not list then
    return found.problem("network.master_addr", ("MASTER_ADDR '%s' is not known"):format(host), problem,
      "give the address of rank 0's machine, or enter the name in /etc/hosts on every node; getent hosts " .. host
        .. " tests it")
  end
  if facts.nodes() > 1 and addresses.is_loopback(list[1]) then
    return found.problem("network.master_loopback", "MASTER_ADDR is this machine's loopback, and the job "
      .. "has several nodes",
      ("'%s' is %s, %d nodes: each would look for rank 0 at itself"):format(host, list[1], facts.nodes()),
      "set MASTER_ADDR to the address by which the other nodes see rank 0's machine")
  end
  found.ok("network.master", "MASTER_ADDR is known", host .. ": " .. table.concat(list, ", "))
end

-- Returns true if a socket listens on a port, by the kernel's tables: state 0A.
local function taken(port)
  local wanted = (":%04X$"):format(port)
  for _, path in ipairs {"/proc/net/tcp", "/proc/net/tcp6"} do
    for own, state in (machine.read(path) or ""):gmatch("\n%s*%d+:%s+(%x+:%x+)%s+%x+:%x+%s+(%x%x)") do
      if state == "0A" and own:find(wanted) then return true end
    end
  end
  return false
end

local function ports(found)
  local given = tonumber(machine.env "MASTER_PORT" or "")
  local rank = tonumber(machine.env "RANK" or machine.env "NODE_RANK" or "") or 0
  local port = given or DEFAULT_PORT
  if rank ~= 0 or not taken(port) then
    return found.ok("network.port", ("port %d is free"):format(port), given and "MASTER_PORT" or "the default")
  end
  found[given and "warning" or "note"]("network.port_taken", ("port %d is taken"):format(port),
    ("something listens on it (/proc/net/tcp); %s"):format(given and "it is MASTER_PORT, and rank 0 cannot listen "
      .. "there unless that is this job's own rank 0" or "it is the default with several nodes"),
    ("ss -ltnp 'sport = :%d' shows what; end it if it is left over from an old job, or set "
      .. "MASTER_PORT to another"):format(port))
end

-- ---- RDMA: device files, locked memory, ports, and access to GPU memory

local function rdma(found)
  local devices = facts.rdma()
  if #devices == 0 then return found.ok("network.no_rdma", "no RDMA devices", "NCCL uses TCP between machines") end
  local nodes, locked = machine.list "/dev/infiniband", facts.limit "Max locked memory"
  local verbs = lists.find(nodes, function(name) return name:match("^uverbs%d") end)
  if not verbs then
    found.problem("network.rdma_nodes", "RDMA devices without their device files", table.concat(devices, ", ")
      .. " in /sys/class/infiniband, but no /dev/infiniband/uverbs*: NCCL falls back to TCP without a word",
      facts.container() and "docker run --device /dev/infiniband --cap-add IPC_LOCK --ulimit memlock=-1 --network host"
        or "sudo modprobe -a ib_uverbs rdma_ucm; install rdma-core")
  end
  if locked and locked < math.huge then
    found.problem("network.rdma_memlock", "RDMA with a limit on locked memory",
      ("%s may be locked (ulimit -l): registering memory fails ('ibv_reg_mr … Cannot "
        .. "allocate memory')"):format(facts.size(locked)), "'* - memlock unlimited' in /etc/security/limits.conf and "
        .. "log in again; docker run --ulimit memlock=-1; LimitMEMLOCK=infinity for slurmd")
  end
  local active, states = false, {}
  for _, device in ipairs(devices) do
    local folder = "/sys/class/infiniband/" .. device .. "/ports"
    for _, port in ipairs(machine.list(folder)) do
      local state = machine.read_word(folder .. "/" .. port .. "/state") or "?"
      states[#states + 1] = ("%s/%s: %s"):format(device, port, state)
      active = active or state:find("ACTIVE", 1, true) ~= nil
    end
  end
  if #states > 0 and not active then
    found.warning("network.rdma_down", "no port of the RDMA devices is active", table.concat(states, ", "),
      "see the cables, ip link, and for InfiniBand a subnet manager (opensm); or NCCL_IB_DISABLE=1 to do without")
  end
  local registers = machine.exists "/sys/module/nvidia_peermem" or machine.exists "/sys/module/nv_peer_mem"
  if #facts.gpus() > 0 and not registers then
    found.note("network.peermem", "RDMA straight from GPU memory may be off",
      "the module nvidia_peermem is not loaded; with the open kernel modules and Linux 5.12 or later "
        .. "dma-buf does the same", "sudo modprobe nvidia_peermem; NCCL_DEBUG=INFO says 'GPU Direct RDMA "
        .. "Enabled' if it works")
  end
  if verbs then found.ok("network.rdma", "RDMA devices", table.concat(states, ", ")) end
end

-- ---- firewalls on this machine that block other ranks

-- Returns the first rule that blocks other machines, of `iptables -S` or `nft list ruleset`. Rules for packets without
-- a connection (INVALID) do not count, since they exist everywhere.
local function iptables_rule(text)
  for line in text:gmatch("[^\n]+") do
    local entry = line:match("^%-[PA] INPUT ")
    local verdict = line:match("^%-P INPUT (%u+)") or line:match("%-j (%u+)")
    if entry and (verdict == "DROP" or verdict == "REJECT") and not line:find("INVALID", 1, true) then return line end
  end
end

local function nft_rule(text)
  local inside = false
  for line in text:gmatch("[^\n]+") do
    if line:match("^%s*chain ") then inside = false end
    inside = inside or line:find("hook input", 1, true) ~= nil
    local drops = line:match("%f[%w]drop%f[%W]") or line:match("%f[%w]reject%f[%W]")
    if inside and drops and not line:find("ct state invalid", 1, true) then return line:match("^%s*(.-)%s*$") end
  end
end

local function firewall(found)
  local looked, failed
  for _, row in ipairs {{"nft", {"list", "ruleset"}, nft_rule}, {"iptables", {"-S"}, iptables_rule}} do
    local result = machine.command(row[1], row[2])
    if not result.missing and result.code == 0 then
      looked = true
      local rule = row[3](result.out)
      if rule then
        return found.warning("network.firewall", "a firewall keeps connections out", ("%s: %s"):format(row[1], rule),
          "ranks connect to each other on ports that the system chooses: let the nodes' network in as a whole (sudo "
            .. "ufw allow from NETWORK; sudo firewall-cmd --zone=trusted --add-source=NETWORK), and test with "
            .. "luminary doctor --listen 29500 there and --with HOST:29500 here")
      end
    elseif not result.missing then
      failed = ("%s: %s"):format(row[1], result.out:match("%S[^\n]*") or "no answer")
    end
  end
  if looked then return found.ok("network.no_firewall", "no firewall rule keeps connections out",
    "of this machine's own") end
  found.note("network.firewall_unknown", "not known whether a firewall keeps connections out", failed
    or "there is neither nft nor iptables to ask", "luminary doctor --listen 29500 on one machine and --with "
      .. "HOST:29500 on another tests the way itself")
end

return {
  {"interfaces", interfaces}, {"named", named}, {"alike", alike}, {"host_name", host_name}, {"master", master},
  {"ports", ports}, {"rdma", rdma}, {"firewall", firewall},
}

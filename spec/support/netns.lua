--- Hosts for specs: network namespaces whose interfaces hang on common networks.
---
---   local hosts, why = netns.make("lmspec", {       -- nil and the reason to be pending where that is not allowed
---     a = { eth0 = { "one", "10.98.1.1/24" }, eth1 = { "two", "10.98.2.1/24" } }, -- interface = { network, address }
---     b = { eth0 = { "two", "fd98::2/64" } },
---   })
---   os.execute(hosts.a .. " ping …")                -- what runs a command there, under that host's name
---   hosts:remove()                                  -- in a teardown
local ffi = require "ffi"
local ranks, needs = require "spec.support.ranks", require "spec.support.needs"
local temp = require "spec.support.temp"

ffi.cdef "int getpid(void);"

local netns = {}
netns.__index = netns

local sorted = require("luminary.base.lists").sorted_keys

local function each(hosts, f)
  for _, name in ipairs(sorted(hosts)) do
    for _, interface in ipairs(sorted(hosts[name])) do f(name, interface, unpack(hosts[name][interface])) end
  end
end

local function delete(name) os.execute(ranks.others .. "ip netns del " .. name .. " 2>/dev/null") end
local function remove(self)
  for _, name in ipairs(self.names) do delete(name) end
end

--- Makes namespaces; the names begin with self.prefix, which is `prefix` and this process's id, since other checkouts
--- may run the same spec. Those of processes that were stopped are removed.
function netns.make(prefix, hosts)
  local why = needs.namespaces()
  if why then return nil, why end
  for name, id in temp.output_of "ip netns list":gmatch("(" .. prefix .. "%-(%d+)%-%w+)") do
    if not temp.exists("/proc/" .. id .. "/stat") then delete(name) end
  end
  prefix = ("%s-%d"):format(prefix, ffi.C.getpid())
  local switch = prefix .. "-switch"
  local self = setmetatable({ names = { switch }, prefix = prefix }, netns)
  local lines, bridges, count = { "unset LD_PRELOAD; set -e", "ip netns add " .. switch }, {}, 0
  local function line(...) lines[#lines + 1] = string.format(...) end
  for name in pairs(hosts) do
    local space = prefix .. "-" .. name
    self.names[#self.names + 1] = space
    self[name] = ("%sip netns exec %s unshare -u sh -c 'hostname %s; exec \"$@\"' - %s"):format(ranks.others, space,
      name, ranks.ours)
    line("ip netns add %s; ip -n %s link set lo up", space, space)
  end
  each(hosts, function(name, interface, network, address)
    if not bridges[network] then
      bridges[network] = true
      line("ip -n %s link add %s type bridge; ip -n %s link set %s up", switch, network, switch, network)
    end
    count = count + 1
    local space, port = prefix .. "-" .. name, "port" .. count
    line("ip link add %s netns %s type veth peer name %s netns %s", interface, space, port, switch)
    line("ip -n %s link set %s master %s up", switch, port, network)
    line("ip -n %s addr add %s dev %s %s", space, address, interface, address:find(":") and "nodad" or "")
    line("ip -n %s link set %s up", space, interface)
  end)
  local pipe = io.popen(("( %s\n) 2>&1 && echo well"):format(table.concat(lines, "\n")))
  local said = pipe:read "*a"
  pipe:close()
  if said == "well\n" then return self end
  remove(self)
  return nil, "needs network namespaces: " .. said:match "^[^\n]*"
end

function netns:remove() remove(self) end

return netns

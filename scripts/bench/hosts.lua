-- Hosts for benches: network namespaces of this machine, whose packets a process carries from one to another
-- (cable.lua), as slowly as a cable would. Needs root.
local here = debug.getinfo(1, "S").source:match "^@(.*)/[^/]*$"
local hosts = {}

-- Runs a shell's command of a format, and returns true if it succeeds, and its output.
local function shell(...)
  local pipe = io.popen("unset LD_PRELOAD; (" .. string.format(...) .. ') 2>&1; echo "exit $?"')
  local text = pipe:read "*a"
  pipe:close()
  return text:match "exit 0\n$" ~= nil, text
end

local function must(...)
  local ok, text = shell(...)
  if not ok then error("hosts: " .. string.format(...) .. ": " .. text, 0) end
end

local function name(host) return "lmbench" .. host end

local function number_of(option, text, units, refuse)
  local number, unit = text:match "^([%d.]+)(%a+)$"
  local value = tonumber(number) and units[unit] and tonumber(number) * units[unit]
  return value or refuse("--%s: '%s' is none", option, text)
end

--- Return the bits a second of the option --rate, and the seconds of --delay.
function hosts.rate(text, refuse) return number_of("rate", text, {kbit = 1e3, mbit = 1e6, gbit = 1e9}, refuse) end
function hosts.delay(text, refuse) return number_of("delay", text, {us = 1e-6, ms = 1e-3, s = 1}, refuse) end

--- Calls f(run) while there are n hosts, each of which sends `rate` bits a second, and whose packets arrive `delay`
--- seconds after they were sent. run(nproc, is_spread, variables, command) runs a command in nproc ranks of each host,
--- rank r on host r mod n if is_spread, and returns whether all succeed, and their output.
function hosts.with(n, rate, delay, f)
  local function remove() for host = 0, n - 1 do shell("ip netns del %s", name(host)) end end
  local function run(nproc, is_spread, variables, command)
    local commands = {}
    for rank = 0, n * nproc - 1 do
      commands[rank + 1] = ("ip netns exec %s unshare -u env %s RANK=%d WORLD_SIZE=%d MASTER_ADDR=10.95.0.1 "
        .. "MASTER_PORT=29600 LM_TOKEN=bench OMP_NUM_THREADS=1 timeout 300 %s & p%d=$!"):format(
        name(is_spread and rank % n or math.floor(rank / nproc)), variables, rank, n * nproc, command, rank)
    end
    for rank = 0, n * nproc - 1 do commands[#commands + 1] = ("wait $p%d || exit 1"):format(rank) end
    return shell("%s", table.concat(commands, "\n"))
  end
  local cable
  local ok, problem = pcall(function()
    remove()
    for host = 0, n - 1 do
      must("ip netns add %s && ip -n %s tuntap add name eth0 mode tun vnet_hdr", name(host), name(host))
      must("ip -n %s addr add 10.95.0.%d/24 dev eth0 && ip -n %s link set lo up", name(host), host + 1, name(host))
      must("ip -n %s link set eth0 up mtu 1500 gso_max_size 16000", name(host))
    end
    cable = io.popen(("luajit %s/cable.lua %s %d %g %g"):format(here, name "", n, rate, delay), "w")
    f(run)
  end)
  if cable then cable:close() end
  remove()
  if not ok then
    io.stderr:write(problem, "\n")
    os.exit(1, true)
  end
end

return hosts

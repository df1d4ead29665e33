--- Looks up facts of the machine that several probes need, each once.
local lists = require "luminary.base.lists"
local machine = require "luminary.cli.doctor.files_and_commands"
local addresses = require "luminary.cli.doctor.ip_addresses"

local facts = {}

local NVIDIA = "0x10de"

-- Returns a function that calls f once and returns its two results ever after.
local function once(f)
  local results
  return function()
    results = results or {f()}
    return results[1], results[2]
  end
end

local MOST_CORES = 65536

--- Parses "0-3,8" to a set of numbers; returns it and its size.
function facts.range(text)
  local set, n = {}, 0
  for part in (text or ""):gmatch("[^,%s]+") do
    local from, to = part:match("^(%d+)%-?(%d*)$")
    for i = math.min(tonumber(from) or 1, MOST_CORES), math.min(tonumber(to) or tonumber(from) or 0, MOST_CORES) do
      if not set[i] then set[i], n = true, n + 1 end
    end
  end
  return set, n
end

--- Returns bytes as text for people, in binary units.
function facts.size(bytes)
  for _, unit in ipairs {{"GiB", 2 ^ 30}, {"MiB", 2 ^ 20}, {"KiB", 2 ^ 10}} do
    if bytes >= unit[2] then return (("%.1f %s"):format(bytes / unit[2], unit[1]):gsub("%.0 ", " ")) end
  end
  return ("%d bytes"):format(bytes)
end

--- Returns a library's integer version with dots: 12040 of CUDA's (`thousands`) as 12.4, 21805 as 2.18.5.
function facts.dotted(version, thousands)
  local n = tonumber(version)
  if not n then return nil end
  if thousands then return ("%d.%d"):format(math.floor(n / 1000), math.floor(n % 1000 / 10)) end
  return ("%d.%d.%d"):format(math.floor(n / 10000), math.floor(n % 10000 / 100), n % 100)
end

-- ---- user and host

local function status_line(name)
  return (machine.read "/proc/self/status" or ""):match("\n" .. name .. ":%s*([^\n]*)")
end
facts.status_line = status_line

--- Returns the effective user's id; nil if unknown.
facts.user = once(function() return tonumber((status_line "Uid" or ""):match("^%d+%s+(%d+)")) end)

--- Returns the effective user's groups, a set.
facts.groups = once(function()
  local set = {}
  for number in (status_line "Groups" or ""):gmatch("%d+") do set[tonumber(number)] = true end
  local own = tonumber((status_line "Gid" or ""):match("^%d+%s+(%d+)"))
  if own then set[own] = true end
  return set
end)

--- Returns "docker", "podman", "kubernetes", "container", or nil.
facts.container = once(function()
  local first = machine.read "/proc/1/cgroup" or ""
  if machine.env "KUBERNETES_SERVICE_HOST" or first:find("kubepods", 1, true) then return "kubernetes" end
  if machine.exists "/.dockerenv" or first:find("/docker", 1, true) then return "docker" end
  if machine.exists "/run/.containerenv" then return "podman" end
  if machine.env "SINGULARITY_NAME" or machine.env "APPTAINER_NAME" then return "apptainer" end
  if first:find("/lxc", 1, true) or first:find("containerd", 1, true) then return "container" end
end)

--- Returns true on a virtual machine.
facts.virtual = once(function() return (machine.read "/proc/cpuinfo" or ""):find("%f[%w]hypervisor%f[%W]") ~= nil end)

facts.hostname = once(function() return machine.read_word "/proc/sys/kernel/hostname" end)

--- Returns a limit of this process by the kernel's name: a number, math.huge, or nil if unknown.
function facts.limit(name)
  local soft = (machine.read "/proc/self/limits" or ""):match("\n" .. name .. "%s+(%S+)")
  return soft == "unlimited" and math.huge or tonumber(soft)
end

-- ---- PCI

-- The pattern of a device's name in the kernel: domain, bus, device, function.
local ADDRESS = "^%x+:%x%x:%x%x%.%x$"

local function devices_of(classes)
  local list = {}
  for _, name in ipairs(machine.list "/sys/bus/pci/devices") do
    local folder = "/sys/bus/pci/devices/" .. name
    local class = machine.read_word(folder .. "/class") or ""
    if classes[class:sub(1, 6)] and machine.read_word(folder .. "/vendor") == NVIDIA then
      local driver = machine.resolve_link(folder .. "/driver")
      list[#list + 1] = {
        address = name, folder = folder, driver = driver and driver:match("[^/]*$"),
        node = machine.read_number(folder .. "/numa_node"), group = machine.read_word(folder .. "/iommu_group/type"),
      }
    end
  end
  return list
end

--- Returns NVIDIA's GPUs on the PCI bus: {address, folder, driver, node, group = kind of IOMMU domain}.
facts.gpus = once(function() return devices_of {["0x0300"] = true, ["0x0302"] = true} end)

--- Returns the GPUs' addresses as text.
function facts.gpu_addresses()
  return table.concat(lists.map(facts.gpus(), function(one) return one.address end), ", ")
end

--- Returns the NVSwitch chips, which have the class of a bridge.
facts.switches = once(function() return devices_of {["0x0680"] = true} end)

--- Returns the bridges between a device and the CPU, from the top.
function facts.bridges(device)
  return lists.filter(lists.parts(machine.resolve_link(device.folder) or "", "[^/]+"), function(name)
    return name:match(ADDRESS) and name ~= device.address
  end)
end

--- Returns the number of GPUs; if a container hides the bus, the number of device nodes.
facts.card_count = once(function()
  return math.max(#facts.gpus(), #facts.card_nodes())
end)

--- Returns the names of the GPUs' files in /dev.
function facts.card_nodes()
  return lists.filter(machine.list "/dev", function(name) return name:match("^nvidia%d+$") end)
end

--- Returns the version of the NVIDIA driver in the kernel, as text; nil if none is loaded, or nil and the problem.
facts.driver = once(function()
  local text, problem = machine.read_of_driver "/proc/driver/nvidia/version"
  return (text or ""):match("Kernel Module.-%s(%d+%.%d[%d.]*)"), problem
end)

--- Returns a child process's facts about libraries, by name (child.versions); `loaded`: paths; timed_out; missing.
facts.versions = once(function()
  local found = machine.child("versions", 30)
  found.loaded = {}
  for line in found.out:gmatch("[^\n]+") do
    local name, value = line:match("^([%w_]+) (.*)$")
    if name == "loaded" then
      found.loaded[#found.loaded + 1] = value
    elseif name then
      found[name] = value
    end
  end
  return found
end)

-- ---- cores and memory

--- Returns the cores on which this process may run: a set, and their number.
facts.cores = once(function()
  local set, n = facts.range(status_line "Cpus_allowed_list")
  return {set = set, n = n}
end)

-- Returns the folders of this process's control group and those above it, its own first, for a v1 controller or v2.
local function cgroup_folders(controller)
  local list = {}
  local function climb(base, path)
    path = path:gsub("/+$", "")
    while path do
      list[#list + 1] = base .. path
      path = path:match("^(.*)/[^/]*$")
    end
  end
  for names, path in (machine.read "/proc/self/cgroup" or ""):gmatch("%d+:([^:\n]*):([^\n]*)") do
    if names == "" then
      climb("/sys/fs/cgroup", path)
    elseif ("," .. names .. ","):find("," .. controller .. ",", 1, true) then
      climb("/sys/fs/cgroup/" .. names, path)
      if names ~= controller then climb("/sys/fs/cgroup/" .. controller, path) end
    end
  end
  return list
end

-- Returns the least limit(path) of these files of the control group, and the path; nil without a limit below `most`.
local function least_of(controller, files, most, limit)
  local least, from
  for _, folder in ipairs(cgroup_folders(controller)) do
    for _, file in ipairs(files) do
      local path = folder .. "/" .. file
      local n = limit(path)
      if n and n < (least or most) then least, from = n, path end
    end
  end
  return least, from
end

--- Returns the cores' worth of time that the control group grants, and the file with the limit; nil: no limit.
function facts.quota()
  return least_of("cpu", {"cpu.max", "cpu.cfs_quota_us"}, math.huge, function(path)
    local quota, period = (machine.read(path) or ""):match("^(%d+)%s*(%d*)")
    period = tonumber(period) or machine.read_number((path:gsub("quota_us$", "period_us")))
    return quota and tonumber(quota) > 0 and period and period > 0 and tonumber(quota) / period
  end)
end

--- Returns the memory in bytes that the control group grants, and the file; nil: no limit.
function facts.memory_limit()
  return least_of("memory", {"memory.max", "memory.limit_in_bytes"}, 2 ^ 62, machine.read_number)
end

--- Returns the number of this control group's processes that the kernel killed for lack of memory, and the file.
function facts.oom_kills()
  for _, folder in ipairs(cgroup_folders "memory") do
    for _, name in ipairs {"memory.events", "memory.oom_control"} do
      local n = tonumber((machine.read(folder .. "/" .. name) or ""):match("oom_kill (%d+)"))
      if n then return n, folder .. "/" .. name end
    end
  end
end

--- Returns a line of /proc/meminfo in bytes.
function facts.memory(name)
  local kib = (machine.read "/proc/meminfo" or ""):match("%f[%w]" .. name .. ":%s*(%d+) kB")
  return kib and tonumber(kib) * 1024
end

-- ---- network

local UP, LOOPBACK = 1, 8 -- flags of an interface

--- Returns the interfaces, in the kernel's order: {name, up, loopback, mtu, speed, physical, addresses}.
facts.interfaces = once(function()
  local list, by_name = {}, {}
  for _, name in ipairs(machine.list "/sys/class/net") do
    local folder = "/sys/class/net/" .. name
    local flags = machine.read_number(folder .. "/flags")
    if flags then
      local state = machine.read_word(folder .. "/operstate")
      by_name[name] = {
        name = name, index = machine.read_number(folder .. "/ifindex") or 0, addresses = {},
        mtu = machine.read_number(folder .. "/mtu"), physical = machine.exists(folder .. "/device"),
        up = bit.band(flags, UP) ~= 0 and state ~= "down" and state ~= "lowerlayerdown",
        loopback = bit.band(flags, LOOPBACK) ~= 0,
      }
      list[#list + 1] = by_name[name]
    end
  end
  for _, one in ipairs(addresses.all()) do
    local interface = by_name[one.interface]
    if interface then interface.addresses[#interface.addresses + 1] = one end
  end
  table.sort(list, function(a, b) return a.index < b.index end)
  return list
end)

--- Returns the RDMA devices (InfiniBand, RoCE), by name.
facts.rdma = once(function() return machine.list "/sys/class/infiniband" end)

--- Returns NCCL's variable and its source: the environment, or a file that NCCL reads.
function facts.nccl(name)
  local value = machine.env(name)
  if value then return value, "the environment" end
  local home = machine.env "HOME"
  local files = {machine.env "NCCL_CONF_FILE" or home and home .. "/.nccl.conf" or "/etc/nccl.conf", "/etc/nccl.conf"}
  for _, path in ipairs(files) do
    value = ("\n" .. (machine.read(path) or "")):match("\n" .. name .. "=([^\n]*)")
    if value then return value, path end
  end
end

--- Returns the number of nodes of the environment's job; 1 if it is unknown.
function facts.nodes()
  local world, here = tonumber(machine.env "WORLD_SIZE" or ""), tonumber(machine.env "LOCAL_WORLD_SIZE" or "")
  local named = tonumber(machine.env "NNODES" or machine.env "SLURM_NNODES" or "") or 1
  return math.max(named, world and here and here > 0 and math.ceil(world / here) or 1)
end

return facts

--- A fake machine for `luminary doctor`: a folder that replaces / and one with its commands. machine.clean has two GPUs
--- and no findings; machine.run changes it, runs the doctor, and returns the output.
local temp = require "spec.support.temp"
local core = require "luminary.core"

local machine = {}

local function say(text) return "cat <<'END'\n" .. text .. "\nEND\n" end
machine.say = say

--- Tables in one; of a key that several have, the last one's value.
function machine.with(...)
  local all = {}
  for _, part in ipairs {...} do
    for key, value in pairs(part) do all[key] = value end
  end
  return all
end

local function number(n, bytes)
  local text = ""
  for _ = 1, bytes do text, n = text .. string.char(n % 256), math.floor(n / 256) end
  return text
end

--- Returns a bridge's configuration space: two extended capabilities, the second ACS with this in its control register.
function machine.configuration(control)
  local errors = number(0x0001 + 0x140 * 0x100000, 4) .. ("\0"):rep(60)
  local acs = number(0x000D + 0x10000, 4) .. number(0x5f, 2) .. number(control, 2)
  local space = ("\0"):rep(256) .. errors .. acs
  return space .. ("\0"):rep(4096 - #space)
end

local SMI = "0, NVIDIA H200, Enabled, Default, Disabled, 0, 16, 16\n1, NVIDIA H200, Enabled, Default, "
  .. "Disabled, 0, 16, 16"

--- Lines of an nvidia-smi query with one thing changed.
function machine.smi(from, to) return '[ "$1" = -q ] && exit 0\n' .. say((SMI:gsub(from, to, 1))) end

local VERSIONS = [[
step loading luminary's core
core yes
step loading the CUDA libraries and asking the driver for devices
count 2
cuda 13000
cudnn 91900
step loading NCCL
nccl 22809
loaded /usr/lib/x86_64-linux-gnu/libnccl.so.2
step end]]
local MEASURED = [[
step loading CUDA
count 2
device 0 NVIDIA H200
device 1 NVIDIA H200
host 0 pinned 50.10 49.80
host 0 pageable 12.00 11.00
host 1 pinned 50.20 49.90
host 1 pageable 12.10 11.10
batch 0 16.8 1.400 1.200 0.400
batch 1 16.8 1.300 1.200 0.410
step copying from cuda:0 to cuda:1
peer 0 1 direct 350.00 right
step copying from cuda:1 to cuda:0
peer 1 0 direct 351.00 right
step end]]

local function replaced(text, from, to)
  if not from then return text end
  local a, b = text:find(from, 1, true)
  return text:sub(1, assert(a, from) - 1) .. to .. text:sub(b + 1)
end

--- Returns the doctor's child with a line of what it learns of the libraries replaced (before: commands).
function machine.versions(from, to, before)
  return 'case "$2" in *versions*) ' .. (before or "") .. "\n" .. say(replaced(VERSIONS, from, to)) .. ";; *)\n"
    .. say(MEASURED) .. ";; esac\n"
end

--- Returns the child with a line of what it measures replaced, and other commands after it.
function machine.measured(from, to, after)
  return 'case "$2" in *versions*)\n' .. say(VERSIONS) .. ";; *)\n" .. say(replaced(MEASURED, from, to))
    .. (after or "")
    .. "\n;; esac\n"
end

local PCI = "/sys/devices/pci0000:00/"
local LIBS = "/usr/lib/x86_64-linux-gnu/"

machine.clean = {
  files = {
    ["/proc/driver/nvidia/version"] = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  "
      .. "Release Build\n",
    ["/proc/cmdline"] = "BOOT_IMAGE=/vmlinuz root=/dev/sda1 ro iommu=pt\n",
    ["/proc/cpuinfo"] = "processor : 0\nflags : fpu vme\n",
    ["/proc/meminfo"] = "MemTotal: 131072000 kB\nMemAvailable: 120000000 kB\n"
      .. "SwapTotal: 1000000 kB\nSwapFree: 1000000 kB\n",
    ["/proc/self/status"] = "Name:\tluajit\nUid:\t4242\t4242\t4242\t4242\nGid:\t4242\t4242\t4242\t4242\nGroups:\t4242\n"
      .. "Cpus_allowed_list:\t0-15\n",
    ["/proc/self/limits"] = "Limit Soft Hard Units\nMax open files            65536  65536  files\n"
      .. "Max locked memory         unlimited unlimited bytes\n",
    ["/proc/self/cgroup"] = "0::/user.slice/session\n", ["/proc/1/cgroup"] = "0::/init.scope\n",
    ["/proc/1/comm"] = "systemd\n",
    ["/sys/fs/cgroup/user.slice/cpu.max"] = "max 100000\n", ["/sys/fs/cgroup/user.slice/memory.max"] = "max\n",
    ["/sys/fs/cgroup/user.slice/session/memory.events"] = "low 0\noom 0\noom_kill 0\n",
    ["/proc/sys/kernel/hostname"] = "node1\n", ["/proc/sys/kernel/osrelease"] = "6.8.0\n",
    ["/proc/sys/kernel/numa_balancing"] = "0\n",
    ["/proc/net/tcp"] = "  sl  local_address rem_address   st\n   0: 00000000:0016 00000000:0000 0A 0\n",
    ["/proc/net/route"] = "Iface\tDestination\tGateway\neth0\t00000000\t010200C0\n",
    ["/etc/hosts"] = "127.0.0.1 localhost\n192.0.2.10 node1\n",
    ["/dev/nvidia0"] = "", ["/dev/nvidia1"] = "", ["/dev/nvidiactl"] = "", ["/dev/nvidia-uvm"] = "",
    ["/dev/shm/.keep"] = "",
    ["/sys/devices/system/cpu/online"] = "0-15\n", ["/sys/devices/system/node/node0/cpulist"] = "0-15\n",
    ["/sys/kernel/mm/transparent_hugepage/enabled"] = "always [madvise] never\n",
    ["/sys/class/iommu/dmar0/x"] = "",
    ["/sys/bus/pci/drivers/nvidia/x"] = "",
    [PCI .. "0000:00:01.0/config"] = machine.configuration(0), [PCI
      .. "0000:00:02.0/config"] = machine.configuration(0),
    [LIBS .. "libcuda.so.580.95.05"] = "", [LIBS .. "libnccl.so.2.28.9"] = "\0\1NCCL version 2.28.9+cuda13.0\0",
    [LIBS .. "libcudart.so.13.0.96"] = "", [LIBS .. "libcudnn.so.9.19.0"] = "",
  },
  links = {
    [LIBS .. "libcuda.so.1"] = "libcuda.so.580.95.05", [LIBS .. "libnccl.so.2"] = "libnccl.so.2.28.9",
    [LIBS .. "libcudart.so.13"] = "libcudart.so.13.0.96", [LIBS .. "libcudnn.so.9"] = "libcudnn.so.9.19.0",
  },
  bin = {
    ldconfig = say(("\tlibcuda.so.1 (libc6,x86-64) => %slibcuda.so.1\n\tlibnccl.so.2 (libc6) => "
      .. "%slibnccl.so.2"):format(LIBS,
      LIBS)),
    ["nvidia-smi"] = machine.smi("^", ""), dmesg = say "[1.0] NVRM: loading NVIDIA UNIX Open Kernel Module",
    df = say "Filesystem 1024-blocks Used Available Capacity Mounted on\ntmpfs 65536000 0 65536000 0% /dev/shm",
    getent = 'case "$2" in node1) echo "192.0.2.10 STREAM node1"; echo "192.0.2.10 DGRAM";;\n'
      .. 'node2) echo "192.0.2.11 STREAM node2";; *) exit 2;; esac\n',
    ip = say("1: lo    inet 127.0.0.1/8 scope host lo\\       valid_lft forever\n2: eth0    inet 192.0.2.10/24 brd "
      .. "192.0.2.255 scope global eth0\\       valid_lft forever"),
    nft = say("table inet filter {\n\tchain input {\n\t\ttype filter hook input priority filter; policy "
      .. "accept;\n\t}\n}"),
    luajit = machine.versions(),
  },
  shell = "chmod 666 dev/nvidia*", -- once all is there
}

local function device(address, bridge, class, node)
  local folder = PCI .. bridge .. "/" .. address
  local files = machine.clean.files
  files[folder .. "/vendor"], files[folder .. "/class"] = "0x10de\n", class .. "\n"
  files[folder .. "/numa_node"], files[folder .. "/iommu_group/type"] = node .. "\n", "identity\n"
  machine.clean.links[folder .. "/driver"] = "../../../../bus/pci/drivers/nvidia"
  machine.clean.links["/sys/bus/pci/devices/" .. address] = "../../../devices/pci0000:00/" .. bridge .. "/" .. address
  machine.clean.links["/sys/bus/pci/devices/" .. bridge] = "../../../devices/pci0000:00/" .. bridge
end
device("0000:01:00.0", "0000:00:01.0", "0x030200", 0)
device("0000:02:00.0", "0000:00:02.0", "0x030200", 0)

--- Returns the files of an interface: flags (1 up, 8 loopback), number, MTU.
function machine.interface(name, flags, index, mtu)
  local at = "/sys/class/net/" .. name
  local files = {
    [at .. "/flags"] = ("0x%x\n"):format(flags), [at .. "/ifindex"] = index .. "\n", [at .. "/mtu"] = mtu .. "\n",
    [at .. "/operstate"] = flags % 2 == 1 and "up\n" or "down\n",
  }
  if bit.band(flags, 8) == 0 and not name:match "^docker" then files[at .. "/device/x"] = "" end
  return files
end
for _, files in ipairs {machine.interface("lo", 9, 1, 65536), machine.interface("eth0", 1, 2, 1500)} do
  for path, text in pairs(files) do machine.clean.files[path] = text end
end

--- Returns the paths of the clean machine's device of that address and of its bridge.
function machine.gpu(i, file) return ("%s0000:00:0%d.0/0000:0%d:00.0/%s"):format(PCI, i + 1, i + 1, file) end
function machine.bridge(i, file) return ("%s0000:00:0%d.0/%s"):format(PCI, i + 1, file) end

local function quote(text) return "'" .. text:gsub("'", "'\\''") .. "'" end

-- Writes a part of a machine under a folder: {files, links, bin}; false takes something away.
local function write(folder, part)
  local lines, later = {}, {}
  for path, text in pairs(part.files or {}) do
    local at = folder .. "/root" .. path
    if text then
      lines[#lines + 1] = "mkdir -p " .. quote(at:match "^(.*)/")
      later[at] = text
    else
      lines[#lines + 1] = "rm -rf " .. quote(at)
    end
  end
  for path, target in pairs(part.links or {}) do
    local at = folder .. "/root" .. path
    lines[#lines + 1] = "rm -f " .. quote(at)
    if target then
      lines[#lines + 1] = "mkdir -p " .. quote(at:match "^(.*)/") .. "; ln -s " .. quote(target) .. " " .. quote(at)
    end
  end
  for name, script in pairs(part.bin or {}) do
    local at = folder .. "/bin/" .. name
    lines[#lines + 1] = script and ("touch %s; chmod 755 %s"):format(quote(at), quote(at)) or "rm -f " .. quote(at)
    if script then later[at] = "#!/bin/sh\n" .. script end
  end
  local function run(list)
    if #list > 0 then assert(os.execute("sh " .. temp.write(folder .. "/make.sh", table.concat(list, "\n"))) == 0) end
  end
  run(lines)
  for at, text in pairs(later) do temp.write(at, text) end
  run {part.shell and ("cd %s\n%s"):format(quote(folder .. "/root"), part.shell)}
end

--- Makes the clean machine in a new folder.
function machine.build()
  local folder = temp.folder()
  assert(os.execute(("mkdir -p %s/clean/root %s/clean/bin"):format(folder, folder)) == 0)
  write(folder .. "/clean", machine.clean)
  return folder
end

--- Asks the doctor of the clean machine in `folder`, changed by {files, links, bin, shell = commands in its root}:
--- what it printed and its exit code. env: its variables; args: its arguments; limit: the most seconds for a command.
function machine.ask(folder, change)
  local at = folder .. "/changed"
  assert(os.execute(("rm -rf %s; cp -a %s/clean %s"):format(at, folder, at)) == 0)
  write(at, change)
  local env = {}
  for name, value in pairs(change.env or {}) do env[#env + 1] = quote(name .. "=" .. value) end
  local _, text, code = temp.run(folder, ("env -i PATH=%s LUA_PATH=%s LUA_CPATH=%s %s timeout -k 1 60 luajit "
    .. "spec/support/made_up_doctor.lua %s %g %s"):format(quote(os.getenv "PATH"), quote(package.path),
    quote(package.cpath), table.concat(env, " "), at, change.limit or math.huge, change.args or ""))
  return text, code
end

--- Asks with --json: returns the object, the exit code, and findings by id.
function machine.run(folder, change)
  local copy = {}
  for key, value in pairs(change) do copy[key] = value end
  copy.args = (change.args or "") .. " --json"
  local text, code = machine.ask(folder, copy)
  local ok, object = pcall(core.json_decode, text)
  assert(ok, tostring(object) .. "\n" .. text)
  local by_id = {}
  for _, one in ipairs(object.findings) do by_id[one.id] = by_id[one.id] or one end
  return object, code, by_id, text
end

return machine

--- The NVIDIA driver: whether the kernel has it, whether it fits, and what it says of the GPUs.
local outside = require "luminary.cli.doctor.machine"
local facts = require "luminary.cli.doctor.facts"

local gpu = {title = "GPUs and their driver"}

-- The oldest driver branch that a CUDA major release runs on, with minor version compatibility: table 1 of
-- https://docs.nvidia.com/deploy/cuda-compatibility/minor-version-compatibility.html
local OLDEST_DRIVER = {[11] = 450, [12] = 525, [13] = 580}
local SMI_LIMIT = 20 -- seconds; without persistence mode the driver first has to start every GPU

local function addresses()
  local names = {}
  for i, one in ipairs(facts.gpus()) do names[i] = one.address end
  return table.concat(names, ", ")
end

local function in_container_remedy()
  return facts.container() == "kubernetes"
    and "ask for the GPUs in the pod's resources (nvidia.com/gpu: 1) on a cluster with NVIDIA's device plug-in"
    or "start the container with its GPUs: docker run --gpus all … (needs the NVIDIA Container Toolkit on the host)"
end

-- ---- the kernel's part

local function driver(found)
  local version, problem = facts.driver()
  if problem then
    return found.problem("gpu.driver_hangs", "the driver does not answer", "/proc/driver/nvidia/version: " .. problem,
      "look into dmesg for NVRM and Xid; a driver that hangs in the kernel needs a reboot")
  end
  local holders = {}
  for _, one in ipairs(facts.gpus()) do
    if one.driver then holders[one.driver] = (holders[one.driver] or 0) + 1 end
  end
  if version then
    return found.ok("gpu.driver", "the driver is loaded", ("version %s (/proc/driver/nvidia/version)"):format(version))
  elseif #facts.gpus() == 0 then
    return found.note("gpu.none", "no NVIDIA GPU", "there is none on the PCI bus (/sys/bus/pci/devices)",
      "nothing to do if this machine is to have none; in a virtual machine one has to be passed through, and "
        .. "in a container " .. in_container_remedy():gsub("^start", "one has to start"))
  elseif holders.nouveau or outside.exists "/sys/module/nouveau" then
    return found.problem("gpu.nouveau", "nouveau holds the GPU instead of NVIDIA's driver",
      ("%s: the kernel module nouveau is loaded, and it cannot do CUDA"):format(addresses()),
      "printf 'blacklist nouveau\\noptions nouveau modeset=0\\n' | sudo tee /etc/modprobe.d/no-nouveau.conf; sudo "
        .. "update-initramfs -u (Red Hat: dracut --force); install NVIDIA's driver; reboot")
  elseif holders["vfio-pci"] then
    return found.problem("gpu.vfio", "the GPU is reserved for virtual machines",
      ("%s: bound to vfio-pci"):format(addresses()),
      "use it in the virtual machine that it was set aside for, or take its number out of vfio-pci's ids= on the "
        .. "kernel's command line or in /etc/modprobe.d, and reboot")
  elseif facts.container() then
    return found.problem("gpu.container", "the container was started without its GPUs",
      ("%s: on the bus, but /proc/driver/nvidia is missing"):format(addresses()), in_container_remedy())
  end
  found.problem("gpu.no_driver", "a GPU without a driver",
    ("%s: no driver of NVIDIA's is loaded (no /proc/driver/nvidia/version)"):format(addresses()),
    "install it (Ubuntu: sudo ubuntu-drivers install --gpgpu; others: https://www.nvidia.com/drivers), then sudo "
      .. "modprobe nvidia. If it is installed: after an update of the kernel its module has to be built again (dkms "
      .. "status), and under Secure Boot it has to be signed (mokutil --sb-state; dmesg says 'rejected')")
end

-- CUDA's own word: with NVIDIA's packages for forward compatibility older drivers and other libraries do.
local function works() return (tonumber(facts.versions().count or "") or 0) > 0 end

local function age(found)
  local version = facts.driver()
  local runtime = tonumber(facts.versions().cuda or "")
  if not version or not runtime then return end
  local major, cuda = tonumber(version:match("^%d+")), math.floor(runtime / 1000)
  local oldest = OLDEST_DRIVER[cuda]
  if oldest and major < oldest and not works() then
    return found.problem("gpu.driver_too_old", "the driver is too old for the CUDA runtime",
      ("driver %s, but CUDA %d.%d needs %d or later"):format(version, cuda, math.floor(runtime % 1000 / 10), oldest),
      ("install driver %d or later and reboot; or, on data centre cards, the package cuda-compat-%d-%d; or build "
        .. "luminary with the older CUDA that this driver can do (nvidia-smi shows its version)"):format(oldest, cuda,
        math.floor(runtime % 1000 / 10)))
  end
  found.ok("gpu.driver_fits", "the driver is new enough for the CUDA runtime",
    ("driver %s, CUDA %d.%d"):format(version, cuda, math.floor(runtime % 1000 / 10)))
end

-- The version of the driver's library in user space, by the name of the file behind libcuda.so.1.
local function library_version()
  local listed = outside.command("ldconfig", {"-p"})
  for path in listed.out:gmatch("libcuda%.so%.1[^\n]-=>%s*(%S+)") do
    local version = (outside.link(path) or ""):match("libcuda%.so%.(%d+%.[%d.]+)$")
    if version then return version, path end
  end
end

local function mismatch(found)
  local version = facts.driver()
  local library, path = library_version()
  if not version or not library then return end
  if version ~= library and not works() then
    return found.problem("gpu.driver_mismatch", "the driver's module and its library are of different versions",
      ("the kernel runs %s, %s is %s: the driver was updated, and the old module is still loaded"):format(version, path,
        library),
      facts.container() and "restart the container: it was given the library of another driver"
        or "reboot; or, with nothing using the GPUs: sudo rmmod nvidia_drm nvidia_modeset nvidia_uvm nvidia && sudo "
          .. "modprobe nvidia. To keep updates from doing it again: sudo apt-mark hold 'nvidia-*'")
  end
  found.ok("gpu.driver_library", "the driver's module and library work together", ("module %s, library %s"):format(
    version, library))
end

-- ---- device nodes

-- Whether this user may read and write it, by its mode.
local function may_use(mode, owner, group)
  local user = facts.user()
  if user == 0 or user == nil then return true end
  local bits = user == owner and math.floor(mode / 64) or facts.groups()[group] and math.floor(mode / 8) or mode
  return bit.band(bits, 6) == 6
end

local function nodes(found)
  if not facts.driver() or facts.card_count() == 0 then return end
  local missing, closed = {}, {}
  local wanted = {"/dev/nvidiactl"}
  local cards = 0
  for _, name in ipairs(outside.list "/dev") do
    if name:match("^nvidia%d+$") then cards, wanted[#wanted + 1] = cards + 1, "/dev/" .. name end
  end
  if cards == 0 then missing[1] = "/dev/nvidia0" end
  for _, path in ipairs(wanted) do
    local mode, owner, group = outside.stat(path)
    if not mode then
      missing[#missing + 1] = path
    elseif not may_use(mode, owner, group) then
      closed[#closed + 1] = ("%s (mode %o, user %d, group %d)"):format(path, mode, owner, group)
    end
  end
  if #missing > 0 then
    found.problem("gpu.no_nodes", "the GPUs' device files are missing", table.concat(missing, ", ") .. " not there",
      facts.container() and in_container_remedy() or "sudo nvidia-modprobe -c 0 (for each GPU), or run nvidia-smi as "
        .. "root, which makes them; enable nvidia-persistenced to have them after each boot")
  elseif not outside.exists "/dev/nvidia-uvm" then
    found.problem("gpu.no_uvm", "/dev/nvidia-uvm is missing",
      "the module nvidia-uvm is not loaded: CUDA then starts with 'unknown error', though nvidia-smi works",
      facts.container() and in_container_remedy() or "sudo modprobe nvidia-uvm && sudo nvidia-modprobe -u -c 0")
  end
  if #closed > 0 then
    found.problem("gpu.permission", "this user may not use the GPUs", table.concat(closed, ", "),
      ("sudo usermod -aG GROUP $USER with the files' group (often video or render) and log in again; or "
        .. "NVreg_DeviceFileMode=0666 as an option of the module nvidia in /etc/modprobe.d"))
  end
  if #missing == 0 and #closed == 0 then
    found.ok("gpu.nodes", "the GPUs' device files are there and open to this user", table.concat(wanted, ", "))
  end
end

-- ---- what nvidia-smi says

local FIELDS = {"index", "name", "persistence_mode", "compute_mode", "mig.mode.current",
  "ecc.errors.uncorrected.volatile.total", "pcie.link.width.current", "pcie.link.width.max"}

local function card(found, row)
  local which = ("GPU %s (%s)"):format(row.index, row.name)
  local errors = tonumber(row["ecc.errors.uncorrected.volatile.total"])
  local width, widest = tonumber(row["pcie.link.width.current"]), tonumber(row["pcie.link.width.max"])
  if errors and errors > 0 then
    found.problem("gpu.ecc", which .. " has uncorrectable memory errors",
      ("%d since the driver was loaded (nvidia-smi)"):format(errors),
      "drain the machine and reset the GPU (sudo nvidia-smi --gpu-reset -i " .. row.index
        .. "); look at nvidia-smi -q -d ROW_REMAPPER,ECC: with remapping failures the card has to be replaced")
  end
  if width and widest and width < widest then
    found.warning("gpu.pcie_width", ("%s has %d of %d PCIe lanes"):format(which, width, widest),
      "nvidia-smi: pcie.link.width.current; copies are that much slower",
      "seat the card and its riser anew, or use a slot with all lanes: lspci -vv shows LnkSta beside LnkCap, and the "
        .. "mainboard's manual says which slots share lanes")
  end
  if row["compute_mode"]:find("Exclusive") then
    found.warning("gpu.exclusive", which .. " takes one process only", "compute mode " .. row["compute_mode"],
      "if several ranks are to share it: sudo nvidia-smi -i " .. row.index .. " -c DEFAULT")
  elseif row["compute_mode"]:find("Prohibited") then
    found.problem("gpu.prohibited", which .. " takes no process at all", "compute mode " .. row["compute_mode"],
      "sudo nvidia-smi -i " .. row.index .. " -c DEFAULT")
  end
  if row["mig.mode.current"] == "Enabled" then
    found.warning("gpu.mig", which .. " is split (MIG)",
      "a process sees one slice only, and slices do not reach each other's memory",
      "one rank a slice, over gloo; for NCCL between whole GPUs: sudo nvidia-smi -i " .. row.index .. " -mig 0")
  end
end

local function smi(found)
  if not facts.driver() then return end
  local got = outside.command("nvidia-smi", {"--query-gpu=" .. table.concat(FIELDS, ","),
    "--format=csv,noheader,nounits"},
    SMI_LIMIT)
  if got.missing then
    return found.note("gpu.no_smi", "no nvidia-smi: the GPUs' state is not known", "it is not on the PATH",
      "install nvidia-utils of the driver's version (in containers: NVIDIA_DRIVER_CAPABILITIES=compute,utility)")
  elseif got.timed_out then
    return found.problem("gpu.smi_hangs", "nvidia-smi hangs", ("no answer within %g s"):format(got.timed_out),
      "look into dmesg for NVRM and Xid; a driver that hangs needs a reboot")
  elseif got.out:find("version mismatch", 1, true) then
    return found.problem("gpu.driver_mismatch", "the driver's module and its library are of different versions",
      "nvidia-smi: " .. got.out:match("[^\n]*version mismatch[^\n]*"),
      "reboot: the driver was updated, and the old module is still loaded")
  elseif got.out:find("not a valid field", 1, true) then
    return found.note("gpu.smi_old", "this nvidia-smi is too old to be asked", got.out:match("%S[^\n]*"),
      "nvidia-smi -q shows what it knows")
  elseif got.code ~= 0 then
    return found.problem("gpu.smi_fails", "nvidia-smi fails",
      ("exit code %d: %s"):format(got.code, got.out:match("%S[^\n]*") or "no output"),
      "a GPU that is lost needs a reboot, with the power off for a while; see dmesg | grep -i -e nvrm -e xid")
  end
  local n, tired = 0, {}
  for line in got.out:gmatch("[^\n]+") do
    local row, i = {}, 0
    for cell in (line .. ","):gmatch("%s*(.-)%s*,") do
      i = i + 1
      row[FIELDS[i] or i] = cell
    end
    if i == #FIELDS then
      n = n + 1
      card(found, row)
      if row.persistence_mode == "Disabled" then tired[#tired + 1] = row.index end
    end
  end
  if #tired > 0 then
    found.note("gpu.persistence", "persistence mode is off", "GPU " .. table.concat(tired, ", ")
      .. ": when the last process ends, the driver shuts the GPU down, and the next start takes seconds",
      "sudo systemctl enable --now nvidia-persistenced")
  end
  local held = 0 -- containers and Slurm show a process fewer
  for _, one in ipairs(facts.gpus()) do held = held + (one.driver == "nvidia" and 1 or 0) end
  if n < held and not facts.container() and not outside.env "SLURM_JOB_ID" then
    found.problem("gpu.lost", "a GPU is on the bus, but the driver does not show it",
      ("%d on the PCI bus (%s), %d in nvidia-smi"):format(held, addresses(), n),
      "dmesg | grep -i nvrm says why: power, a BAR without room ('Resizable BAR'/'Above 4G decoding' in the BIOS), or "
        .. "a card that fell off the bus; then power off and on again")
  elseif n > 0 then
    found.ok("gpu.smi", "nvidia-smi shows GPUs", n .. " of them")
  end
end

-- ---- the fabric of NVSwitch machines

local function manager_runs()
  for _, name in ipairs(outside.list "/proc") do
    if name:match("^%d+$") and (outside.word("/proc/" .. name .. "/comm") or ""):match("^nv%-fabric") then
      return true
    end
  end
  return false
end

local function fabric(found)
  local switched = #facts.switches() > 0 or outside.exists "/dev/nvidia-nvswitchctl"
  local version = facts.driver()
  if not switched or not version then return end
  local state = outside.command("nvidia-smi", {"-q"}, SMI_LIMIT).out:match("\n%s+Fabric%s*\n%s+State%s*:%s*([^\n]*)")
  local own = outside.command("nv-fabricmanager", {"--version"}).out:match("(%d+%.%d+[%d.]*)")
  local remedy = ("sudo apt install nvidia-fabricmanager-%s (the driver's version to the last digit), then sudo "
    .. "systemctl enable --now nvidia-fabricmanager"):format(version:match("^%d+"))
  if own and own ~= version then
    found.problem("gpu.fabric_version", "the fabric manager is of another version than the driver",
      ("nv-fabricmanager %s, driver %s: it refuses to start"):format(own, version), remedy)
  elseif state and state:find("Completed") or manager_runs() then
    found.ok("gpu.fabric", "the NVSwitch fabric is up", state or "the fabric manager runs")
  elseif facts.container() and not state then
    found.note("gpu.fabric_unknown", "not known whether the fabric manager runs",
      "a container does not see the host's processes", "on the host: systemctl status nvidia-fabricmanager")
  else
    found.problem("gpu.fabric_manager", "NVSwitch without its fabric manager",
      ("%d NVSwitch chips, %s: CUDA fails with 'system not yet initialized' (error 802)"):format(#facts.switches(),
        state and "fabric state '" .. state .. "'" or "no process nv-fabricmanager"), remedy)
  end
end

-- ---- the kernel's log

-- What NVIDIA's list of Xid errors (https://docs.nvidia.com/deploy/xid-errors) says of the frequent ones; those of the
-- first kind come from programs.
local OF_PROGRAMS = {[13] = "illegal access or instruction in a kernel",
  [31] = "a kernel touched memory that is not its",
  [43] = "a program was stopped", [45] = "a program was stopped, by an earlier error or a signal",
  [68] = "the video decoder failed"}
local OF_HARDWARE = {[48] = "uncorrectable memory error", [61] = "firmware error", [62] = "firmware error",
  [63] = "a memory row was remapped", [64] = "remapping a memory row failed", [74] = "NVLink error",
  [79] = "the GPU fell off the bus", [92] = "many corrected memory errors", [94] = "contained memory error",
  [95] = "uncontained memory error", [119] = "the GPU's system processor timed out",
  [120] = "the GPU's system processor failed"}

local function xid(found)
  if facts.card_count() == 0 then return end
  local got = outside.command("dmesg", {})
  if got.missing or got.timed_out or got.code ~= 0 then
    return found.note("gpu.log_unknown", "not known whether the driver logged errors (Xid)",
      "dmesg cannot be read: " .. (got.out:match("%S[^\n]*") or "no such command"), "sudo luminary doctor --only gpu")
  end
  local last, times = {}, {}
  for line in got.out:gmatch("[^\n]*NVRM: Xid[^\n]*") do
    local number = tonumber(line:match("Xid %b(): (%d+)"))
    if number then last[number], times[number] = line:match("NVRM.*"), (times[number] or 0) + 1 end
  end
  local numbers = {}
  for number in pairs(last) do numbers[#numbers + 1] = number end
  table.sort(numbers)
  for _, number in ipairs(numbers) do
    local reason = ("%d times; the last: %s"):format(times[number], last[number])
    if OF_PROGRAMS[number] then
      found.warning("gpu.xid_program", ("Xid %d: %s"):format(number, OF_PROGRAMS[number]), reason,
        "most often a fault of a program: run it with CUDA_LAUNCH_BLOCKING=1 or under compute-sanitizer; if all "
          .. "programs cause it, suspect the card")
    else
      found.problem("gpu.xid", ("Xid %d: %s"):format(number, OF_HARDWARE[number] or "an error of the "
        .. "GPU or its driver"),
        reason, "look it up at https://docs.nvidia.com/deploy/xid-errors; reset the GPU or reboot; if it comes back, "
          .. "check power, cooling and the slot, and have the card replaced")
    end
  end
  if #numbers == 0 then found.ok("gpu.log", "the driver logged no errors", "no Xid in dmesg") end
end

gpu.probes = {
  {"driver", driver}, {"age", age}, {"mismatch", mismatch}, {"nodes", nodes}, {"smi", smi}, {"fabric", fabric},
  {"log", xid},
}

return gpu

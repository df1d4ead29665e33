--- Checks the NVIDIA driver: that the kernel has it, that it fits CUDA and its own library, and its device files.
local lists = require "luminary.base.lists"
local machine = require "luminary.cli.doctor.files_and_commands"
local facts = require "luminary.cli.doctor.machine_facts"

-- The oldest driver branch for each CUDA major release, with minor version compatibility: table 1 of
-- https://docs.nvidia.com/deploy/cuda-compatibility/minor-version-compatibility.html
local OLDEST_DRIVER = {[11] = 450, [12] = 525, [13] = 580}

local function in_container_remedy()
  return facts.container() == "kubernetes"
    and "ask for the GPUs in the pod's resources (nvidia.com/gpu: 1) on a cluster with NVIDIA's device plug-in"
    or "start the container with its GPUs: docker run --gpus all … (needs the NVIDIA Container Toolkit on the host)"
end

-- ---- the kernel's module

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
      "nothing to do if this machine should have none; in a virtual machine it must be passed through, and "
        .. "in a container " .. in_container_remedy():gsub("^start", "one has to start"))
  elseif holders.nouveau or machine.exists "/sys/module/nouveau" then
    return found.problem("gpu.nouveau", "nouveau holds the GPU instead of NVIDIA's driver",
      ("%s: the kernel module nouveau is loaded, and it cannot do CUDA"):format(facts.gpu_addresses()),
      "printf 'blacklist nouveau\\noptions nouveau modeset=0\\n' | sudo tee /etc/modprobe.d/no-nouveau.conf; sudo "
        .. "update-initramfs -u (Red Hat: dracut --force); install NVIDIA's driver; reboot")
  elseif holders["vfio-pci"] then
    return found.problem("gpu.vfio", "the GPU is reserved for virtual machines",
      ("%s: bound to vfio-pci"):format(facts.gpu_addresses()),
      "use it in the virtual machine that it was set aside for, or take its number out of vfio-pci's ids= on the "
        .. "kernel's command line or in /etc/modprobe.d, and reboot")
  elseif facts.container() then
    return found.problem("gpu.container", "the container was started without its GPUs",
      ("%s: on the bus, but /proc/driver/nvidia is missing"):format(facts.gpu_addresses()), in_container_remedy())
  end
  found.problem("gpu.no_driver", "a GPU without a driver",
    ("%s: no driver of NVIDIA's is loaded (no /proc/driver/nvidia/version)"):format(facts.gpu_addresses()),
    "install it (Ubuntu: sudo ubuntu-drivers install --gpgpu; others: https://www.nvidia.com/drivers), then sudo "
      .. "modprobe nvidia. If it is installed: after an update of the kernel its module must be built again (dkms "
      .. "status), and under Secure Boot it must be signed (mokutil --sb-state; dmesg says 'rejected')")
end

-- Returns true if CUDA itself finds devices: NVIDIA's forward compatibility packages let older drivers work.
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
      ("install driver %d or later and reboot; or, on data center GPUs, the package cuda-compat-%d-%d; or build "
        .. "luminary with the older CUDA that this driver can do (nvidia-smi shows its version)"):format(oldest, cuda,
        math.floor(runtime % 1000 / 10)))
  end
  found.ok("gpu.driver_fits", "the driver is new enough for the CUDA runtime",
    ("driver %s, CUDA %d.%d"):format(version, cuda, math.floor(runtime % 1000 / 10)))
end

-- Returns the version of the driver's user-space library, from the name of the file behind libcuda.so.1.
local function library_version()
  local listed = machine.command("ldconfig", {"-p"})
  for path in listed.out:gmatch("libcuda%.so%.1[^\n]-=>%s*(%S+)") do
    local version = (machine.resolve_link(path) or ""):match("libcuda%.so%.(%d+%.[%d.]+)$")
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

-- Returns true if this user may read and write a file of this mode.
local function may_use(mode, owner, group)
  local user = facts.user()
  if user == 0 or user == nil then return true end
  local bits = user == owner and math.floor(mode / 64) or facts.groups()[group] and math.floor(mode / 8) or mode
  return bit.band(bits, 6) == 6
end

local function nodes(found)
  if not facts.driver() or facts.card_count() == 0 then return end
  local missing, closed, cards = {}, {}, facts.card_nodes()
  local wanted = lists.append({"/dev/nvidiactl"}, lists.map(cards, function(name) return "/dev/" .. name end))
  if #cards == 0 then missing[1] = "/dev/nvidia0" end
  for _, path in ipairs(wanted) do
    local mode, owner, group = machine.stat(path)
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
  elseif not machine.exists "/dev/nvidia-uvm" then
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

return {{"driver", driver}, {"age", age}, {"mismatch", mismatch}, {"nodes", nodes}}

-- Findings of `luminary doctor`, a row each: id, severity, patterns that the reason and the remedy match, and what of
-- the clean machine (support/machine.lua) to change for it: files, links, bin, shell, env, args. problem: a problem
-- comes with it.
local machine = require "spec.support.machine"
local say, with = machine.say, machine.with

local NO_DRIVER = {["/proc/driver"] = false}
local SLEEP = "exec sleep 30\n"

local function df(all, free)
  return {df = say(("Filesystem 1024-blocks Used Available Capacity Mounted on\ntmpfs %d 0 "
    .. "%d 0%% /dev/shm"):format(all, free))}
end

local function status(from, to)
  return {["/proc/self/status"] = (machine.clean.files["/proc/self/status"]:gsub(from, to))}
end

local function limits(from, to)
  return {["/proc/self/limits"] = (machine.clean.files["/proc/self/limits"]:gsub(from, to))}
end

local function memory(from, to)
  return {["/proc/meminfo"] = (machine.clean.files["/proc/meminfo"]:gsub(from, to))}
end

-- Returns `ip -o addr` with more lines.
local function addresses(...)
  local lines = {"1: lo    inet 127.0.0.1/8 scope host lo\\       valid_lft forever"}
  for i, text in ipairs {...} do lines[i + 1] = ("%d: %s scope global"):format(i + 1, text) end
  return {ip = say(table.concat(lines, "\n"))}
end
local ETH0 = "eth0    inet 192.0.2.10/24"

local function getent(answer) return {getent = answer} end

local function smi(from, to) return {["nvidia-smi"] = machine.smi(from, to)} end

local function child(script) return {luajit = script} end

local NO_CUDA = machine.versions("count 2", "count 0\nwhy no driver")

local RDMA = {["/sys/class/infiniband/mlx5_0/ports/1/state"] = "4: ACTIVE\n", ["/dev/infiniband/uverbs0"] = "",
  ["/sys/module/nvidia_peermem/x"] = ""}

local SWITCH = {["/sys/bus/pci/devices/0000:05:00.0/vendor"] = "0x10de\n",
  ["/sys/bus/pci/devices/0000:05:00.0/class"] = "0x068000\n"}

local ACS = {[machine.bridge(0, "config")] = machine.configuration(0x1d)}
local TRANSLATES = {[machine.gpu(0, "iommu_group/type")] = "DMA-FQ\n", [machine.gpu(1,
  "iommu_group/type")] = "DMA-FQ\n"}
local DOCKER = {["/.dockerenv"] = ""}
local HIDDEN = {[machine.bridge(0, "config")] = ("\0"):rep(64), [machine.bridge(1, "config")] = ("\0"):rep(64)}

local NO_GPU = {files = with(NO_DRIVER, {["/dev/nvidia0"] = false, ["/dev/nvidia1"] = false}), links = {
  ["/sys/bus/pci/devices/0000:01:00.0"] = false, ["/sys/bus/pci/devices/0000:02:00.0"] = false}}

return {
  -- the driver
  {"gpu.none", "note", "none on the PCI bus", "passed through", NO_GPU},
  {"gpu.no_driver", "problem", "0000:01:00%.0", "ubuntu%-drivers.*modprobe nvidia.*dkms", {files = NO_DRIVER}},
  {"gpu.nouveau", "problem", "nouveau is loaded", "blacklist nouveau.*initramfs",
    {files = with(NO_DRIVER, {["/sys/module/nouveau/x"] = ""})}},
  {"gpu.vfio", "problem", "vfio%-pci", "/etc/modprobe.d", {files = NO_DRIVER, links = {
    [machine.gpu(0, "driver")] = "../../../../bus/pci/drivers/vfio-pci"},
    shell = "mkdir -p sys/bus/pci/drivers/vfio-pci"}},
  {"gpu.container", "problem", "/proc/driver/nvidia is missing", "docker run %-%-gpus all",
    {files = with(NO_DRIVER, DOCKER)}},
  {"gpu.container", "problem", "/proc/driver/nvidia is missing", "nvidia.com/gpu: 1",
    {files = NO_DRIVER, env = {KUBERNETES_SERVICE_HOST = "10.0.0.1"}}},
  {"gpu.driver_hangs", "problem", "longer than 0.3 s", "reboot", {limit = 0.3,
    shell = "rm proc/driver/nvidia/version; mkfifo proc/driver/nvidia/version"}},
  {"gpu.driver_too_old", "problem", "driver 535.183.01, but CUDA 13.0 needs 580",
    "driver 580 or later.*cuda%-compat%-13%-0",
    {bin = child(NO_CUDA), files = {["/proc/driver/nvidia/version"] = "NVRM version: NVIDIA UNIX x86_64 Kernel Module "
      .. " 535.183.01  Sun\n"}}},
  {"gpu.driver_too_old", "problem", "driver 520.1, but CUDA 12.4 needs 525", "driver 525 or later", {
    files = {["/proc/driver/nvidia/version"] = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  520.1  Sun\n"},
    bin = child(machine.versions("count 2\ncuda 13000", "count 0\ncuda 12040"))}},
  {"gpu.driver_mismatch", "problem", "kernel runs 580.95.05, .*libcuda.so.1 is 580.105.08",
    "reboot.*rmmod nvidia_drm.*apt%-mark hold",
    {bin = child(NO_CUDA), files = {["/usr/lib/x86_64-linux-gnu/libcuda.so.580.105.08"] = ""},
      links = {["/usr/lib/x86_64-linux-gnu/libcuda.so.1"] = "libcuda.so.580.105.08"}}},
  {"gpu.driver_mismatch", "problem", "Driver/library version mismatch", "reboot",
    {bin = {["nvidia-smi"] = "echo 'Failed to initialize NVML: Driver/library version mismatch'; exit 18\n"}}},
  {"gpu.no_nodes", "problem", "/dev/nvidiactl", "nvidia%-modprobe", {files = {["/dev/nvidiactl"] = false}}},
  {"gpu.no_uvm", "problem", "nvidia%-uvm is not loaded", "modprobe nvidia%-uvm",
    {files = {["/dev/nvidia-uvm"] = false}}},
  {"gpu.permission", "problem", "/dev/nvidia1 %(mode 600", "usermod %-aG",
    {shell = "chmod 600 dev/nvidia1"}},
  {"gpu.no_smi", "note", "not on the PATH", "nvidia%-utils", {bin = {["nvidia-smi"] = false}}},
  {"gpu.smi_hangs", "problem", "no answer within 0.5 s", "dmesg", {bin = {["nvidia-smi"] = SLEEP},
    limit = 0.5}},
  {"gpu.smi_fails", "problem", "exit code 15: Unable to determine the device handle", "needs a reboot",
    {bin = {["nvidia-smi"] = "echo 'Unable to determine the device handle for GPU0: 0000:01:00.0: Unknown "
      .. "Error'; exit 15\n"}}},
  {"gpu.smi_old", "note", "mig.mode.current", "nvidia%-smi %-q",
    {bin = {["nvidia-smi"] = "echo 'Field \"mig.mode.current\" is not a valid field to query.'; exit 2\n"}}},
  {"gpu.ecc", "problem", "3 since the driver", "gpu%-reset %-i 0.*ROW_REMAPPER", {bin = smi("Disabled, 0,",
    "Disabled, 3,")}},
  {"gpu.pcie_width", "warning", "pcie.link.width", "riser", {bin = smi("16, 16", "4, 16")}},
  {"gpu.exclusive", "warning", "Exclusive_Process", "nvidia%-smi %-i 0 %-c DEFAULT", {bin = smi("Default",
    "Exclusive_Process")}},
  {"gpu.prohibited", "problem", "Prohibited", "%-c DEFAULT", {bin = smi("Default", "Prohibited")}},
  {"gpu.mig", "warning", "one slice", "%-mig 0", {bin = smi("Default, Disabled", "Default, Enabled")}},
  {"gpu.persistence", "note", "GPU 0", "nvidia%-persistenced", {bin = smi("Enabled", "Disabled")}},
  {"gpu.lost", "problem", "2 on the PCI bus.*, 1 in nvidia%-smi", "Above 4G", {bin = smi("\n.*", "")}},
  {"gpu.fabric_manager", "problem", "error 802", "nvidia%-fabricmanager%-580.*systemctl enable", {files = SWITCH}},
  {"gpu.fabric_manager", "problem", "fabric state 'In Progress'", "fabricmanager%-580", {files = SWITCH,
    bin = {["nvidia-smi"] =
    '[ "$1" = -q ] && { printf "GPU 0\\n    Fabric\\n        State                 : In Progress\\n"; exit 0; }\n'
    .. machine.smi("^", "")}}},
  {"gpu.fabric_version", "problem", "570.1.2, driver 580.95.05", "to the last digit",
    {files = SWITCH, bin = {["nv-fabricmanager"] = "echo 'Fabric Manager version is : 570.1.2'\n"}}},
  {"gpu.fabric_unknown", "note", "container", "systemctl status", {files = with(SWITCH, DOCKER)}},
  {"gpu.log_unknown", "note", "Operation not permitted", "sudo luminary doctor",
    {bin = {dmesg = "echo 'dmesg: read kernel buffer failed: Operation not permitted'; exit 1\n"}}},
  {"gpu.xid", "problem", "2 times; the last: .*PCI:0000:01:00", "xid%-errors", {bin = {dmesg = say(
    "[5] NVRM: Xid (PCI:0000:01:00): 79, pid=1, GPU has fallen off the bus.\n[6] NVRM: Xid "
      .. "(PCI:0000:01:00): 79, again")}}},
  {"gpu.xid_program", "warning", "1 times", "compute%-sanitizer",
    {bin = {dmesg = say "[5] NVRM: Xid (PCI:0000:01:00): 31, pid=7, MMU Fault"}}},

  -- libraries
  {"libraries.unknown", "note", "no child", "^$", {bin = {luajit = false}}},
  {"libraries.hang", "problem", "within 3 s; the last step was: loading the CUDA libraries", "reboot",
    {bin = child "echo step loading the CUDA libraries\nexec sleep 30\n", limit = 3}},
  {"libraries.core", "problem", "libdnnl.so.2: cannot open shared object file", "ldd.*LD_LIBRARY_PATH",
    {bin = child(machine.versions("core yes", "core_problem libdnnl.so.2: cannot open shared object file"))}},
  {"libraries.crash", "problem", "exit code 139 after the step: loading NCCL", "LD_DEBUG=libs",
    {bin = child "echo core yes; echo step loading NCCL; exit 139\n"}},
  {"libraries.no_backend", "problem", "no CUDA backend", "nvcc", {bin = child(machine.versions(
    "count 2\ncuda 13000", "count 0\nwhy there is no CUDA backend"))}},
  {"libraries.cuda_fails", "problem", "error 35", "CUDA_VISIBLE_DEVICES must not hide",
    {bin = child(machine.versions("count 2", "count 0\nwhy error 35"))}},
  {"libraries.several", "warning", "/opt/old/libnccl.so.2 %(2.18.1%), /usr/lib/.*%(2.28.9%)", "LD_LIBRARY_PATH",
    {files = {["/opt/old/libnccl.so.2.18.1"] = ""}, links = {["/opt/old/libnccl.so.2"] = "libnccl.so.2.18.1"},
      env = {LD_LIBRARY_PATH = "/opt/old"}}},
  {"libraries.several", "note", "/opt/two/libcudnn.so.9 %(9.1.0%)", "the right one comes first",
    {files = {["/opt/two/libcudnn.so.9.1.0"] = ""}, links = {["/opt/two/libcudnn.so.9"] = "libcudnn.so.9.1.0"},
      bin = {ldconfig = say("\tlibcudnn.so.9 (libc6) => /usr/lib/x86_64-linux-gnu/libcudnn.so.9\n\tlibcudnn.so.9 "
        .. "(libc6) => /opt/two/libcudnn.so.9")}}},
  {"libraries.folder_hangs", "problem", "/net/cuda: every program", "take it out of LD_LIBRARY_PATH",
    {bin = {ls = SLEEP}, env = {LD_LIBRARY_PATH = "/net/cuda/"}, limit = 0.5}},
  {"libraries.no_nccl", "warning", "2 GPUs", "apt install libnccl2", {bin = child(machine.versions("nccl 22809",
    "x x"))}},
  {"libraries.nccl_cuda", "problem", "NCCL 2.28.9 for CUDA 12.9, the runtime is CUDA 13.0", "libnccl2=%*%+cuda13",
    {files = {["/usr/lib/x86_64-linux-gnu/libnccl.so.2.28.9"] = "NCCL version 2.28.9+cuda12.9\0"}}},

  -- PCI
  {"pci.acs_iommu", "problem", "0000:00:01.0 %(ACSCtl: SrcValid%+ ReqRedir%+ CmpltRedir%+ UpstreamFwd%+%); "
    .. "IOMMU: .*DMA%-FQ",
    "ACS off.*iommu=pt.*setpci %-s.*NCCL_P2P_DISABLE=1.*gloo", {files = with(ACS, TRANSLATES)}},
  {"pci.acs_iommu", "warning", "NCCL_P2P_DISABLE=1 is set", "ACS off", {files = with(ACS, TRANSLATES),
    env = {NCCL_P2P_DISABLE = "1"}}},
  {"pci.acs_iommu", "problem", "dmar0 in /sys/class/iommu, and no iommu=pt", "virtual machine: its host",
    {files = with(ACS, {
    [machine.gpu(0, "iommu_group")] = false, [machine.gpu(1, "iommu_group")] = false, ["/proc/cmdline"] = "ro quiet\n",
    ["/proc/cpuinfo"] = "flags : fpu hypervisor\n"})}},
  {"pci.acs_iommu", "problem", "0000:00:02.0 %(ACSCtl: SrcValid%+%)", "for b in 0000:00:02.0", {files = with(HIDDEN,
    TRANSLATES),
    bin = {lspci = say("0000:00:01.0 PCI bridge: X\n\tCapabilities: [148] Access Control\n\t\tACSCtl:\tSrcValid- "
      .. "ReqRedir-\n\n0000:00:02.0 PCI bridge: X\n\t\tACSCtl:\tSrcValid+ ReqRedir-\n\n0000:02:00.0 3D "
      .. "controller: NVIDIA")}}},
  {"pci.acs", "warning", "through|SrcValid%+.*IOMMU: iommu_group/type of the GPUs is identity", "ACS off",
    {files = ACS}},
  {"pci.iommu", "warning", "DMA%-FQ", "iommu=pt", {files = TRANSLATES}},
  {"pci.unknown", "note", "0000:00:01.0, 0000:00:02.0", "sudo luminary doctor", {files = HIDDEN}},
  {"pci.unknown", "note", "0000:00:01.0, 0000:00:02.0", "SrcValid%+", {files = HIDDEN, bin = {lspci = say(
    "0000:00:01.0 PCI bridge: X\n\tCapabilities: <access denied>\n\n0000:00:02.0 PCI bridge\n\tCapabilities: "
      .. "<access denied>")}}},

  -- copies
  {"peers.none", "note", "neither the copies", "^$", NO_GPU},
  {"peers.none", "note", "CUDA finds no device", "^$", {bin = child "echo count 0; echo step end\n"}},
  {"peers.unknown", "note", "no child", "^$", {bin = {luajit = false}}},
  {"peers.hangs", "problem", "copying from cuda:0 to cuda:1: no end within 3 s", "iommu=pt.*NCCL_P2P_DISABLE=1",
    {bin = child(machine.measured("peer 0 1 direct 350.00 right\nstep copying from cuda:1 to cuda:0\npeer 1 0 direct "
      .. "351.00 right\nstep end", "", SLEEP)), limit = 3}},
  {"peers.wrong", "problem", "cuda:1 to cuda:0$", "ACS off",
    {bin = child(machine.measured("351.00 right", "351.00 wrong"))}},
  {"peers.slow", "warning", "cuda:0 to cuda:1 1.2 GB/s", "lanes", {bin = child(machine.measured("350.00", "1.20"))}},
  {"peers.through_host", "note", "cuda:0 to cuda:1:", "topo %-m",
    {bin = child(machine.measured("peer 0 1 direct", "peer 0 1 host"))}},
  {"peers.pinned_slow", "warning", "cuda:1: pinned 2.9 up, 49.9 down", "LnkSta", {bin = child(machine.measured("50.20",
    "2.90"))}},
  {"peers.pinning", "note", "^cuda:1, 16.8 MB: 1.3 ms as it is; pinned 0.41 ms, after 2.5 ms to pin it$",
    "num_workers = 1", {bin = child(machine.measured("1.300 1.200", "1.300 2.500"))}},
  {"peers.failed", "warning", "out of memory", "nvidia%-smi",
    {bin = child(machine.measured("device 1", "problem out of memory\ndevice 1"))}},
  {"peers.fails", "problem", "exit code 134, loading CUDA: Abort", "gpu,libraries",
    {bin = child "echo step loading CUDA; echo Abort; exit 134\n"}},

  -- memory and limits
  {"host.no_shm", "problem", "NCCL and MPI", "mount %-t tmpfs", {files = {["/dev/shm"] = false}}},
  {"host.shm_small", "problem", "64 MiB, of which 63 MiB.*docker's default", "%-%-shm%-size=8g.*%-%-ipc=host",
    {bin = df(65536, 64512), files = DOCKER}},
  {"host.shm_small", "problem", "64 MiB", "emptyDir with medium: Memory",
    {bin = df(65536, 64512), env = {KUBERNETES_SERVICE_HOST = "10.0.0.1"}}},
  {"host.shm_full", "warning", "8 GiB, of which 100 MiB.*2 files of NCCL.*nccl%-abc", "rm /dev/shm/nccl",
    {bin = df(8388608, 102400), files = {["/dev/shm/nccl-abc"] = "", ["/dev/shm/vader_segment.x"] = ""}}},
  {"host.shm_modest", "warning", "512 MiB", "remount", {bin = df(524288, 524288)}},
  {"host.shm_unknown", "note", "df", "^$", {bin = {df = false}}},
  {"host.memlock", "note", "8 MiB", "memlock=%-1", {files = limits("unlimited", "8388608")}},
  {"host.files", "warning", "256", "ulimit %-n 65536", {files = limits("65536", "256")}},
  {"host.files_modest", "note", "1024", "ulimit %-n", {files = limits("65536", "1024")}},
  {"host.limits_unknown", "note", "/proc/self/limits", "^$", {files = {["/proc/self/limits"] = false}}},
  {"host.memory_limit", "note", "/sys/fs/cgroup/user.slice/memory.max; the machine has 125 GiB",
    "docker run %-%-memory",
    {files = {["/sys/fs/cgroup/user.slice/memory.max"] = "17179869184\n"}}},
  {"host.memory_limit", "warning", "memory.limit_in_bytes", "%-%-mem", {files = {
    ["/proc/self/cgroup"] = "4:memory:/job/1\n",
      ["/sys/fs/cgroup/memory/job/memory.limit_in_bytes"] = "1073741824\n"}}},
  {"host.oom", "warning", "4 in this control group", "grant more memory",
    {files = {["/sys/fs/cgroup/user.slice/session/memory.events"] = "oom 9\noom_kill 4\n"}}},
  {"host.memory_low", "warning", "954.1 MiB of 125 GiB", "ps aux", {files = memory("120000000", "977000")}},
  {"host.swap", "warning", "19.1 GiB of swap", "swapoff", {files = memory("SwapTotal: 1000000",
    "SwapTotal: 21000000")}},
  {"host.huge_pages", "note", "%[never%]", "echo madvise",
    {files = {["/sys/kernel/mm/transparent_hugepage/enabled"] = "always madvise [never]\n"}}},

  -- cores
  {"cores.unknown", "note", "Cpus_allowed_list", "^$", {files = {["/proc/self/status"] = false}}},
  {"cores.affinity", "note", "taskset", "mpirun %-%-bind%-to none", {files = status("0%-15", "0-3,8")}},
  {"cores.quota", "note", "2.5 cores' worth of time %(/sys/fs/cgroup/user.slice/cpu.max%) of 16 cores: 2 threads",
    "%-%-cpus=16",
    {files = {["/sys/fs/cgroup/user.slice/cpu.max"] = "250000 100000\n"}}},
  {"cores.quota", "note", "1 cores' worth.*cfs_quota_us.*: 1 thread start", "resources", {files = {
    ["/proc/self/cgroup"] = "3:cpu,cpuacct:/a\n", ["/sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_quota_us"] = "100000\n",
    ["/sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_period_us"] = "100000\n"}}},
  {"cores.omp_odd", "warning", "'many'", "unset OMP_NUM_THREADS", {env = {OMP_NUM_THREADS = "many"}}},
  {"cores.too_many", "warning", "OMP_NUM_THREADS=16 for 4 ranks on 16 cores", "OMP_NUM_THREADS=4",
    {env = {OMP_NUM_THREADS = "16", LOCAL_WORLD_SIZE = "4"}}},
  {"cores.one_thread", "warning", "torchrun sets it.*16 cores for 2 ranks", "OMP_NUM_THREADS=8",
    {env = {OMP_NUM_THREADS = "1", LOCAL_WORLD_SIZE = "2"}}},
  {"cores.far", "warning", "0000:02:00.0 at node 1; this process runs at node 0", "numactl %-%-cpunodebind=1",
    {files = with(
    status("0%-15", "0-7"), {[machine.gpu(1, "numa_node")] = "1\n",
      ["/sys/devices/system/node/node0/cpulist"] = "0-7\n",
      ["/sys/devices/system/node/node1/cpulist"] = "8-15\n"})}},
  {"cores.no_node", "note", "0000:02:00.0: numa_node is %-1", "BIOS", {files = {[machine.gpu(1, "numa_node")] = "-1\n",
    ["/sys/devices/system/node/node0/cpulist"] = "0-7\n", ["/sys/devices/system/node/node1/cpulist"] = "8-15\n"}}},
  {"cores.balancing", "note", "numa_balancing is 1", "sysctl", {files = {["/proc/sys/kernel/numa_balancing"] = "1\n",
    ["/sys/devices/system/node/node0/cpulist"] = "0-7\n", ["/sys/devices/system/node/node1/cpulist"] = "8-15\n"}}},

  -- network
  {"network.unknown", "note", "/sys/class/net", "^$", {files = {["/sys/class/net"] = false}}},
  {"network.only_loopback", "note", "loopback alone", "docker run %-%-network host", {bin = addresses()}},
  {"network.only_loopback", "problem", "the job has 3 nodes", "ip link set", {bin = addresses(), env = {NNODES = "3"}}},
  {"network.nccl_docker", "warning", "docker0 %(172.17.0.1/16.*none but docker's", "NCCL_SOCKET_IFNAME",
    {files = machine.interface("docker0", 1, 3, 1500), bin = addresses("docker0    inet 172.17.0.1/16")}},
  {"network.nccl_docker", "warning", "'docker', from the environment", "on every node", {files =
    machine.interface("docker0", 1, 3, 1500), bin = addresses(ETH0, "docker0    inet 172.17.0.1/16"),
    env = {NCCL_SOCKET_IFNAME = "docker"}}},
  {"network.ifname", "problem", "'eno1' %(from the environment%); up, with an address: lo, eth0", "name one of these",
    {env = {NCCL_SOCKET_IFNAME = "eno1"}}},
  {"network.ifname", "problem", "'ens' %(from /etc/nccl.conf%)", "name one of these",
    {files = {["/etc/nccl.conf"] = "NCCL_DEBUG=WARN\nNCCL_SOCKET_IFNAME=ens\n"}}},
  {"network.ifname", "problem", "'=eth'", "LM_SOCKET_IFNAME=eth", {env = {LM_SOCKET_IFNAME = "=eth"}}},
  {"network.ifname", "warning", "'bond0'", "GLOO_SOCKET_IFNAME", {env = {GLOO_SOCKET_IFNAME = "bond0"}}},
  {"network.same_subnet", "warning", "eth0 and eth1, both in 192.0.2.0/24", "arp_ignore",
    {files = machine.interface("eth1", 1, 3, 1500), bin = addresses(ETH0, "eth1    inet 192.0.2.77/24")}},
  {"network.mtu", "warning", "eth0 .*MTU 1500.* and eth1 .*MTU 9000", "ip link set eth1 mtu 1500",
    {files = machine.interface("eth1", 1, 3, 9000), bin = addresses(ETH0, "eth1    inet 198.51.100.7/24")}},
  {"network.host_name", "warning", "it has no address", "/etc/hosts.*ADDRESS node1", {bin = getent "exit 2\n"}},
  {"network.host_name", "warning", "no answer within 0.5 s", "/etc/hosts", {bin = getent(SLEEP),
    limit = 0.5}},
  {"network.host_name_unknown", "note", "getent", "^$", {bin = {getent = false}}},
  {"network.host_loopback", "warning", "127.0.1.1, from /etc/hosts: 127.0.1.1 node1.lan node1", "in place of 127.0.1.1",
    {bin = getent "echo '127.0.1.1 STREAM node1'\n", files = {["/etc/hosts"] = "127.0.0.1 localhost\n127.0.1.1 "
      .. "node1.lan node1\n"}}},
  {"network.master_addr", "problem", "it has no address", "getent hosts nowhere", {env = {MASTER_ADDR = "nowhere"}}},
  {"network.master_loopback", "problem", "'127.0.0.1' is 127.0.0.1, 2 nodes", "rank 0's machine",
    {env = {MASTER_ADDR = "127.0.0.1", WORLD_SIZE = "8", LOCAL_WORLD_SIZE = "4", RANK = "0", LM_JOB = "x"}}},
  {"network.port_taken", "warning", "it is MASTER_PORT", "sport = :4660", {env = {MASTER_PORT = "4660"}, files = {
    ["/proc/net/tcp6"] = "  sl  local_address\n   0: 00000000000000000000000000000000:1234 "
      .. "00000000000000000000000000000000:0000 0A\n"}}},
  {"network.port_taken", "note", "the default", "MASTER_PORT", {files = {
    ["/proc/net/tcp"] = "  sl  local_address\n   0: 00000000:733C 00000000:0000 0A\n"}}},
  {"network.rdma_nodes", "problem", "mlx5_0", "modprobe %-a ib_uverbs", {files = with(RDMA,
    {["/dev/infiniband/uverbs0"] = false})}},
  {"network.rdma_nodes", "problem", "mlx5_0", "%-%-device /dev/infiniband",
    {files = with(RDMA, DOCKER, {["/dev/infiniband/uverbs0"] = false})}},
  {"network.rdma_memlock", "problem", "64 KiB.*ibv_reg_mr", "memlock unlimited", {files = with(RDMA,
    limits("unlimited", "65536"))}},
  {"network.rdma_down", "warning", "mlx5_0/1: 1: DOWN", "subnet manager", {files = with(RDMA, {
    ["/sys/class/infiniband/mlx5_0/ports/1/state"] = "1: DOWN\n"})}},
  {"network.peermem", "note", "nvidia_peermem", "modprobe nvidia_peermem", {files = with(RDMA,
    {["/sys/module/nvidia_peermem/x"] = false, ["/sys/module/nvidia_peermem"] = false})}},
  {"network.firewall", "warning", "nft: type filter hook input .*policy drop", "ufw allow from", {bin = {nft = say(
    "table inet filter {\n\tchain input {\n\t\ttype filter hook input priority 0; policy drop;\n\t}\n}")}}},
  {"network.firewall", "warning", "nft: tcp dport != 22 reject", "trusted", {bin = {nft = say(
    "table inet f {\n\tchain in {\n\t\ttype filter hook input priority 0; policy accept;\n\t\tct state invalid "
      .. "drop\n\t\ttcp dport { 80, 443 } accept\n\t\ttcp dport != 22 reject\n\t}\n}")}}},
  {"network.firewall", "warning", "iptables: %-P INPUT DROP", "%-%-listen 29500",
    {bin = {nft = false, iptables = say "-P INPUT DROP\n-P FORWARD ACCEPT"}}},
  {"network.firewall", "warning", "iptables: %-A INPUT %-s 198.51.100.0/24 %-j REJECT", "ufw", {bin = {nft = false,
    iptables = say("-P INPUT ACCEPT\n-A INPUT -m conntrack --ctstate INVALID -j DROP\n-A INPUT -s "
      .. "198.51.100.0/24 -j REJECT")}}},
  {"network.firewall_unknown", "note", "nft: .*Operation not permitted", "%-%-with",
    {bin = {nft = "echo 'netlink: Error: cache initialization failed: Operation not permitted'; exit 1\n"}}},

  -- environment
  {"environment.nccl_p2p_disable", "warning", "host's memory", "unset NCCL_P2P_DISABLE",
    {env = {NCCL_P2P_DISABLE = "1"}}},
  {"environment.nccl_shm_disable", "warning", "from ~/.nccl.conf", "unset NCCL_SHM_DISABLE",
    {files = {["/home/me/.nccl.conf"] = "NCCL_SHM_DISABLE=1\n"}, env = {HOME = "/home/me"}}},
  {"environment.nccl_cumem_enable", "note", "the old way", "unset", {env = {NCCL_CUMEM_ENABLE = "0"}}},
  {"environment.nccl_ib_disable", "warning", "mlx5_0", "unset NCCL_IB_DISABLE", {files = RDMA,
    env = {NCCL_IB_DISABLE = "1"}}},
  {"environment.nccl_debug", "note", "prints much", "NCCL_DEBUG=WARN", {env = {NCCL_DEBUG = "INFO"}}},
  {"environment.nccl_tuning", "warning", "NCCL_ALGO=Ring %(from the environment%), NCCL_PROTO=LL", "unset them",
    {env = {NCCL_ALGO = "Ring", NCCL_PROTO = "LL"}}},
  {"environment.no_visible", "warning", "with 2 GPUs here", "unset CUDA_VISIBLE_DEVICES",
    {env = {CUDA_VISIBLE_DEVICES = ""}}},
  {"environment.visible_range", "problem", "number 7 and all that follow", "nvidia%-smi %-L",
    {env = {CUDA_VISIBLE_DEVICES = "0,7"}}},
  {"environment.visible_twice", "problem", "'0,1,0'", "once", {env = {CUDA_VISIBLE_DEVICES = "0,1,0"}}},
  {"environment.visible_odd", "problem", "'all' is neither", "CUDA_VISIBLE_DEVICES=0,1",
    {env = {CUDA_VISIBLE_DEVICES = "all"}}},
  {"environment.cuda_launch_blocking", "warning", "slower", "unset CUDA_LAUNCH_BLOCKING",
    {env = {CUDA_LAUNCH_BLOCKING = "1"}}},
  {"environment.lm_sync", "warning", "slow", "unset LM_SYNC", {env = {LM_SYNC = "1"}}},
  {"environment.lm_shm", "warning", "sockets", "unset LM_SHM", {env = {LM_SHM = "0"}}},
  {"environment.lm_guard_blocks", "warning", "guarded", "unset", {env = {LM_GUARD_BLOCKS = "1"}}},
  {"environment.lm_cuda_virtual", "warning", "virtual", "unset", {env = {LM_CUDA_VIRTUAL = "4"}}},
  {"environment.lm_cpu_level", "note", "older CPU", "unset", {env = {LM_CPU_LEVEL = "avx2"}}},
  {"environment.lm_cuda", "note", "CUDA_VISIBLE_DEVICES=", "unset LM_CUDA", {env = {LM_CUDA = "0"}}},
  {"environment.cuda_device_max_connections", "note", "queue", "unset", {env = {CUDA_DEVICE_MAX_CONNECTIONS = "1"}}},
  {"environment.ld_preload", "warning", "libm.so.6", "unset LD_PRELOAD", {env = {LD_PRELOAD = "libm.so.6"}}},
  {"environment.half_rank", "problem", "RANK=1 WORLD_SIZE=%(not set%)", "set both", {env = {RANK = "1"}}},
  {"environment.odd_rank", "problem", "RANK=4 WORLD_SIZE=4", "0 to WORLD_SIZE", {env = {RANK = "4", WORLD_SIZE = "4"}}},
  {"environment.stale_rank", "warning", "waits for 3 others", "unset RANK", {env = {RANK = "0", WORLD_SIZE = "4"}}},

  -- other machines
  {"reach.unknown_host", "problem", "it has no address", "getent hosts nowhere", {args = "--with nowhere:1"}},
  {"reach.refused", "problem", "127.0.0.1: refused", "rank 0.*luminary doctor %-%-listen",
    {args = "--with 127.0.0.1:1"}},
  {"reach.loopback", "warning", "127.0.1.1", "/etc/hosts", {args = "--with node9:1", problem = true,
    bin = getent "echo '127.0.1.1 STREAM node9'\n"}},
}

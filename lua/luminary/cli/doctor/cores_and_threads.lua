--- Checks cores and threads: those of the machine, those granted to this process, and those it would start.
local lists = require "luminary.base.lists"
local machine = require "luminary.cli.doctor.files_and_commands"
local facts = require "luminary.cli.doctor.machine_facts"

local function ranks_here() return math.max(1, tonumber(machine.env "LOCAL_WORLD_SIZE" or "") or 1) end

local function threads()
  local n = tonumber((machine.env "OMP_NUM_THREADS" or ""):match("^%s*(%d+)"))
  return n and n > 0 and n or nil
end

-- Returns the number of cores that may be used, by affinity and by quota.
local function granted()
  local n, quota = facts.cores().n, facts.quota()
  return quota and math.min(quota, n) or n
end

local function counts(found)
  local n = facts.cores().n
  if n == 0 then
    return found.note("cores.unknown", "the number of cores is not known", "no Cpus_allowed_list in /proc/self/status",
      "")
  end
  local _, online = facts.range(machine.read_word "/sys/devices/system/cpu/online")
  if online > 0 and n < online then
    found.note("cores.affinity", ("%d of %d cores may be used"):format(n, online),
      "Cpus_allowed_list in /proc/self/status: taskset, a cpuset, Slurm or MPI's binding keeps this process to them",
      n == 1 and online > 1 and "to undo it: taskset -c 0-" .. online - 1 .. " luminary …; mpirun --bind-to none; "
        .. "srun --cpu-bind=none or more --cpus-per-task" or "nothing to do if that is meant; mpirun --bind-to none, "
        .. "srun --cpus-per-task=N and docker run --cpuset-cpus change it")
  end
  local quota, file = facts.quota()
  if quota and quota < n and not threads() then
    local started = math.max(1, math.floor(quota))
    found.note("cores.quota", "the control group grants less time than there are cores",
      ("%.3g cores' worth of time (%s) of %d cores: %d %s start"):format(quota, file, n, started,
        started == 1 and "thread" or "threads"), ("nothing to do if that is meant; docker run --cpus=%d and "
        .. "resources.limits.cpu change it"):format(n))
  end
  found.ok("cores.count", "cores", ("%d online, %d allowed%s"):format(online, n,
    quota and (", %.3g by quota"):format(quota) or ""))
end

local function shares(found)
  local n, ranks, each = facts.cores().n, ranks_here(), threads()
  if n == 0 then return end
  local given = machine.env "OMP_NUM_THREADS"
  local may = granted()
  local fair = math.max(1, math.floor(may / ranks))
  local who = ranks == 1 and "process" or "ranks"
  if given and not each then
    return found.warning("cores.omp_odd", "OMP_NUM_THREADS is not a number", ("it is '%s'"):format(given),
      "unset OMP_NUM_THREADS, or give it the number of threads a rank is to have")
  end
  if not each then return end
  if each * ranks > math.max(1, math.ceil(may)) then
    found.warning("cores.too_many", "more threads than cores",
      ("OMP_NUM_THREADS=%d for %d %s on %.3g cores"):format(each, ranks, who, may), ("OMP_NUM_THREADS=%d, or fewer "
        .. "ranks a machine (luminary run shares the cores out by itself if it is not set)"):format(fair))
  elseif each == 1 and may / ranks >= 2 then
    found.warning("cores.one_thread", "one thread a process, with cores left over",
      ("OMP_NUM_THREADS=1 (torchrun sets it if it is unset), %.3g cores for %d %s"):format(may, ranks, who),
      ("OMP_NUM_THREADS=%d"):format(fair))
  else
    found.ok("cores.shared", "threads fit the cores", ("%d each, %d ranks, %.3g cores"):format(each, ranks, may))
  end
end

-- ---- NUMA: near cores of the GPUs that may be used, and moves of memory between nodes

-- Returns the nodes that have cores: {number, set of cores}.
local function nodes()
  local list = {}
  for _, name in ipairs(machine.list "/sys/devices/system/node") do
    local number = tonumber(name:match("^node(%d+)$"))
    local set, n = facts.range(number and machine.read_word("/sys/devices/system/node/" .. name .. "/cpulist"))
    if n > 0 then list[#list + 1] = {number = number, set = set} end
  end
  return list
end

local function numa(found)
  local list, allowed = nodes(), facts.cores().set
  if #list < 2 then return found.ok("cores.one_node", "one NUMA node", "all cores are equally near") end
  local near = {}
  for _, node in ipairs(list) do
    for core in pairs(allowed) do near[node.number] = near[node.number] or node.set[core] or nil end
  end
  local far, lost = {}, {}
  for _, one in ipairs(facts.gpus()) do
    if one.node and one.node >= 0 and not near[one.node] then
      far[#far + 1] = ("%s at node %d"):format(one.address, one.node)
    elseif one.node == -1 then
      lost[#lost + 1] = one.address
    end
  end
  if #far > 0 then
    found.warning("cores.far", "no core near the GPU may be used", ("%s; this process runs at node %s"):format(
      table.concat(far, ", "), table.concat(lists.sorted_keys(near), ", ")), ("numactl --cpunodebind=%s --membind=%s "
        .. "luminary …, or another binding in mpirun or srun (--gpu-bind=closest)"):format(far[1]:match("%d+$"),
        far[1]:match("%d+$")))
  end
  if #lost > 0 then
    found.note("cores.no_node", "the firmware does not say which cores are near the GPU", table.concat(lost, ", ")
      .. ": numa_node is -1", "a newer BIOS, or in a virtual machine a topology passed through; nvidia-smi topo -m "
      .. "shows what is known")
  end
  if #facts.gpus() > 0 and machine.read_word "/proc/sys/kernel/numa_balancing" == "1" then
    found.note("cores.balancing", "the kernel moves memory between NUMA nodes",
      "/proc/sys/kernel/numa_balancing is 1; with pinned memory and several GPUs it costs more than it gains",
      "sudo sysctl kernel.numa_balancing=0")
  end
  if #far == 0 then found.ok("cores.near", "cores near the GPUs may be used", ("%d NUMA nodes"):format(#list)) end
end

return {{"counts", counts}, {"shares", shares}, {"numa", numa}}

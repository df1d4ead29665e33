--- Checks NUMA nodes: near cores of the GPUs that may be used, and the kernel's moves of memory between nodes.
local lists = require "luminary.base.lists"
local outside = require "luminary.cli.doctor.files_and_commands"
local facts = require "luminary.cli.doctor.machine_facts"

-- Returns the nodes that have cores: {number, set of cores}.
local function nodes()
  local list = {}
  for _, name in ipairs(outside.list "/sys/devices/system/node") do
    local number = tonumber(name:match("^node(%d+)$"))
    local set, n = facts.range(number and outside.word("/sys/devices/system/node/" .. name .. "/cpulist"))
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
  if #facts.gpus() > 0 and outside.word "/proc/sys/kernel/numa_balancing" == "1" then
    found.note("cores.balancing", "the kernel moves memory between NUMA nodes",
      "/proc/sys/kernel/numa_balancing is 1; with pinned memory and several GPUs it costs more than it gains",
      "sudo sysctl kernel.numa_balancing=0")
  end
  if #far == 0 then found.ok("cores.near", "cores near the GPUs may be used", ("%d NUMA nodes"):format(#list)) end
end

return {{"numa", numa}}

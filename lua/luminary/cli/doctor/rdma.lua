--- Checks RDMA between machines (InfiniBand, RoCE): device files, locked memory, ports, and access to GPU memory.
local lists = require "luminary.base.lists"
local outside = require "luminary.cli.doctor.files_and_commands"
local facts = require "luminary.cli.doctor.machine_facts"

local function rdma(found)
  local devices = facts.rdma()
  if #devices == 0 then return found.ok("network.no_rdma", "no RDMA devices", "NCCL uses TCP between machines") end
  local nodes, locked = outside.list "/dev/infiniband", facts.limit "Max locked memory"
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
    for _, port in ipairs(outside.list(folder)) do
      local state = outside.word(folder .. "/" .. port .. "/state") or "?"
      states[#states + 1] = ("%s/%s: %s"):format(device, port, state)
      active = active or state:find("ACTIVE", 1, true) ~= nil
    end
  end
  if #states > 0 and not active then
    found.warning("network.rdma_down", "no port of the RDMA devices is active", table.concat(states, ", "),
      "see the cables, ip link, and for InfiniBand a subnet manager (opensm); or NCCL_IB_DISABLE=1 to do without")
  end
  local registers = outside.exists "/sys/module/nvidia_peermem" or outside.exists "/sys/module/nv_peer_mem"
  if #facts.gpus() > 0 and not registers then
    found.note("network.peermem", "RDMA straight from GPU memory may be off",
      "the module nvidia_peermem is not loaded; with the open kernel modules and Linux 5.12 or later "
        .. "dma-buf does the same", "sudo modprobe nvidia_peermem; NCCL_DEBUG=INFO says 'GPU Direct RDMA "
        .. "Enabled' if it works")
  end
  if verbs then found.ok("network.rdma", "RDMA devices", table.concat(states, ", ")) end
end

return {{"rdma", rdma}}

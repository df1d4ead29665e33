--- Checks resources that ranks of a machine share: memory, shared memory, limits.
local lists = require "luminary.base.lists"
local machine = require "luminary.cli.doctor.files_and_commands"
local facts = require "luminary.cli.doctor.machine_facts"

local MIB, GIB = 2 ^ 20, 2 ^ 30
local size = facts.size

-- ---- /dev/shm

local function larger_shm()
  local kind = facts.container()
  if kind == "kubernetes" then
    return "mount an emptyDir with medium: Memory at /dev/shm in the pod, with a sizeLimit of some GiB"
  elseif kind then
    return "docker run --shm-size=8g … (or --ipc=host); in compose: shm_size: 8gb"
  end
  return "sudo mount -o remount,size=50% /dev/shm; for good, in /etc/fstab: tmpfs /dev/shm tmpfs defaults,size=50% 0 0"
end

-- Returns a text about files that jobs left behind.
local function leftovers()
  local names = lists.filter(machine.list "/dev/shm", function(name)
    return name:match("^nccl%-") or name:match("^vader_segment") or name:match("^torch_") or name:match("^sem%.mp%-")
  end)
  if #names == 0 then return "" end
  return ("; %d files of NCCL, MPI or PyTorch jobs lie there (%s…), perhaps of dead ones"):format(#names,
    table.concat(names, ", ", 1, math.min(#names, 3)))
end

local function shm(found)
  local why = "NCCL and MPI talk through it between ranks of one machine (luminary's own buckets and loaders do not: "
    .. "they use anonymous memory files)"
  if not machine.exists "/dev/shm" then
    return found.problem("host.no_shm", "/dev/shm is missing", why,
      "sudo mkdir -p /dev/shm && sudo mount -t tmpfs -o size=50%,mode=1777 tmpfs /dev/shm")
  end
  local result = machine.command("df", {"-P", "-k", "/dev/shm"})
  local all, free = result.out:match("\n%S+%s+(%d+)%s+%d+%s+(%-?%d+)%s")
  all, free = tonumber(all), tonumber(free)
  if not all then
    return found.note("host.shm_unknown", "the size of /dev/shm is not known", "df -k /dev/shm reports nothing", "")
  end
  all, free = all * 1024, free * 1024
  local seen = ("%s, of which %s are free (df /dev/shm)"):format(size(all), size(math.max(free, 0)))
  if all <= 64 * MIB then
    found.problem("host.shm_small", "/dev/shm is too small for several ranks", seen .. ", which is docker's default. "
      .. why .. "; it fails with 'No space left on device' or a bus error", larger_shm())
  elseif free < 256 * MIB then
    found.warning("host.shm_full", "/dev/shm is nearly full", seen .. leftovers(),
      "end old jobs, and remove what is left of them: rm /dev/shm/nccl-* /dev/shm/vader_segment*. To enlarge it: "
        .. larger_shm())
  elseif all < GIB then
    found.warning("host.shm_modest", "/dev/shm is small", seen .. ". " .. why, larger_shm())
  else
    found.ok("host.shm", "/dev/shm is large enough", seen)
  end
end

-- ---- limits

local function limits(found)
  local locked, files = facts.limit "Max locked memory", facts.limit "Max open files"
  if locked and locked < GIB and #facts.rdma() == 0 then -- with RDMA, probes of the network report the limit
    found.note("host.memlock", "little memory may be locked",
      ("%s (ulimit -l); CUDA's pinned memory does not count, RDMA's does"):format(size(locked)),
      "nothing to do without RDMA; with it: ulimit -l unlimited (docker run --ulimit memlock=-1)")
  end
  if files and files < 1024 then
    found.warning("host.files", "few files may be open", ("%d (ulimit -n); every rank opens some for each other rank, "
      .. "and loaders for their workers"):format(files), "ulimit -n 65536; for good: '* - nofile 65536' in "
      .. "/etc/security/limits.conf, or LimitNOFILE= in the service")
  elseif files and files < 4096 then
    found.note("host.files_modest", "files that may be open: enough for some hundred ranks",
      ("%d (ulimit -n)"):format(files), "for more: ulimit -n 65536")
  end
  if not locked and not files then
    found.note("host.limits_unknown", "the limits are not known", "/proc/self/limits cannot be read", "")
  else
    found.ok("host.limits", "limits", ("locked memory %s, open files %s"):format(
      locked == math.huge and "unlimited" or locked and size(locked) or "?", tostring(files or "?")))
  end
end

-- ---- memory

local function memory(found)
  local total, available = facts.memory "MemTotal", facts.memory "MemAvailable"
  local limit, file = facts.memory_limit()
  local kills, events = facts.oom_kills()
  if limit and total and limit < total then
    local severity = limit < 2 * GIB and "warning" or "note"
    found[severity]("host.memory_limit", ("the control group grants %s of memory"):format(size(limit)),
      ("%s; the machine has %s. What goes beyond is killed with SIGKILL, and shared memory counts"):format(file,
        size(total)),
      "docker run --memory=…, resources.limits.memory in Kubernetes, --mem in Slurm; or smaller batches "
        .. "and fewer workers")
  end
  if kills and kills > 0 then
    found.warning("host.oom", "the kernel has killed processes for want of memory", ("%d in this control group (%s)")
      :format(kills, events), "a rank that 'was killed by SIGKILL' was one of these: grant more memory, or use fewer "
        .. "ranks or workers a machine")
  end
  if total and available and available < total * 0.05 then
    found.warning("host.memory_low", "memory is nearly used up", ("%s of %s are available (/proc/meminfo)"):format(
      size(available), size(total)), "see who uses it: ps aux --sort=-rss | head")
  elseif total then
    found.ok("host.memory", "memory", ("%s, %s available"):format(size(total), available and size(available) or "?"))
  end
  local swap, swap_free = facts.memory "SwapTotal", facts.memory "SwapFree"
  if swap and swap_free and total and swap - swap_free > total * 0.1 then
    found.warning("host.swap", "the machine has swapped much out", ("%s of swap are in use (/proc/meminfo); a rank "
      .. "that waits for its pages makes all wait"):format(size(swap - swap_free)),
      "end what is idle and large; sudo swapoff -a && sudo swapon -a brings it back once memory is free")
  end
end

local function pages(found)
  local huge = machine.read_word "/sys/kernel/mm/transparent_hugepage/enabled"
  if huge and huge:find("[never]", 1, true) then
    found.note("host.huge_pages", "transparent huge pages are off",
      ("/sys/kernel/mm/transparent_hugepage/enabled: %s; large tensors on the CPU cost some percent more"):format(huge),
      "echo madvise | sudo tee /sys/kernel/mm/transparent_hugepage/enabled")
  elseif huge then
    found.ok("host.huge_pages_on", "transparent huge pages", huge)
  end
end

local function where(found)
  local kind = facts.container()
  found.ok("host.place", "where this runs", (kind and "in a container (" .. kind .. ")" or "no container")
    .. (facts.virtual() and ", on a virtual machine" or ""))
end

return {{"shm", shm}, {"limits", limits}, {"memory", memory}, {"pages", pages}, {"where", where}}

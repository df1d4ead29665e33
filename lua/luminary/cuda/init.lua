--- lm.cuda: Controls CUDA devices.
local core = require "luminary.core"
local aligned_columns = require "luminary.base.aligned_columns"
local options = require "luminary.base.options"
local devices = require "luminary.cuda.devices"
local stream = require "luminary.cuda.stream"
local graph = require "luminary.cuda.graph"

local cuda = {Stream = stream.Stream, Event = stream.Event}
local device_of = devices.gpu

--- Returns whether there is a CUDA device that can be used.
function cuda.is_available() return core.device_count("cuda") > 0 end

--- Returns the number of CUDA devices.
function cuda.device_count() return core.device_count("cuda") end

--- Returns the number of the current device of this thread.
function cuda.current_device() return tonumber(device_of("current_device"):match("%d+$")) end

--- Sets the current device of this thread.
function cuda.set_device(device) core.device_set_current(device_of("set_device", device)) end

--- Calls f(...) with another current device; returns f's results.
function cuda.device(device, f, ...) return core.with_device(device_of("device", device), f, ...) end

--- Returns the properties of a device as a table.
function cuda.get_device_properties(device)
  local p = core.device_properties(device_of("get_device_properties", device))
  p.total_memory, p.multi_processor_count = p.totalGlobalMem, p.multiProcessorCount -- PyTorch's names
  return p
end

--- Returns the name of a device.
function cuda.get_device_name(device) return core.device_properties(device_of("get_device_name", device)).name end

--- Returns the compute capability of a device: two values, major and minor.
function cuda.get_device_capability(device)
  local p = core.device_properties(device_of("get_device_capability", device))
  return p.major, p.minor
end

--- Returns the free and total memory of a device in bytes, as the driver sees it.
function cuda.mem_get_info(device) return core.device_memory(device_of("mem_get_info", device)) end

--- Returns whether a device can access the memory of another directly.
function cuda.can_device_access_peer(device, peer)
  return core.device_peers(device_of("can_device_access_peer", device), device_of("can_device_access_peer", peer))
end

--- Waits until all work on a device is done.
function cuda.synchronize(device) core.synchronize(device_of("synchronize", device)) end

-- ---- memory of the caching allocator, in bytes
for _, name in ipairs {
  "memory_allocated", "memory_reserved", "max_memory_allocated", "max_memory_reserved", "reset_peak_memory_stats",
  "empty_cache",
} do
  --- Calls the function of lm of the same name for a CUDA device.
  cuda[name] = function(device) return core[name](device_of(name, device)) end
end

-- Old names of memory_reserved and max_memory_reserved.
cuda.memory_cached, cuda.max_memory_cached = cuda.memory_reserved, cuda.max_memory_reserved

--- Returns a table of memory_allocated, memory_reserved and their maxima.
function cuda.memory_stats(device)
  local stats = {}
  for _, name in ipairs {"memory_allocated", "memory_reserved", "max_memory_allocated", "max_memory_reserved"} do
    stats[name] = cuda[name](device)
  end
  return stats
end

--- Returns the number of times that this process searched for a plan of cuBLASLt, cuDNN or cuFFT.
function cuda.plan_searches() return core.plan_searches() end

--- Sets the fraction of a device's memory, from 0 to 1, that this process may allocate.
function cuda.set_per_process_memory_fraction(fraction, device)
  core.device_set_fraction(device_of("set_per_process_memory_fraction", device), fraction)
end

-- ---- random numbers
--- Seeds the random numbers of all devices, as lm.manual_seed.
function cuda.manual_seed(seed) core.manual_seed(seed) end
cuda.manual_seed_all = cuda.manual_seed
--- Returns the state of a device's random numbers as a uint8 tensor.
function cuda.get_rng_state(device) return core.get_rng_state(device_of("get_rng_state", device)) end
--- Sets the state of a device's random numbers.
function cuda.set_rng_state(state, device) core.set_rng_state(state, device_of("set_rng_state", device)) end

-- ---- streams, graphs
for _, name in ipairs {"stream", "current_stream", "default_stream", "set_stream"} do cuda[name] = stream[name] end
for _, name in ipairs {"graph", "make_graphed_step", "Graph", "is_current_stream_capturing"} do
  cuda[name] = graph[name]
end

-- ---- the table of devices
local function gigabytes(bytes) return ("%.1f GiB"):format(bytes / 2 ^ 30) end

local Devices = {}
Devices.__index = Devices

function Devices:__tostring()
  if #self == 0 then return "no CUDA device: " .. core.device_why_none("cuda") end
  local rows = {{"device", "name", "capability", "memory", "free", "physical", "PCI bus", "UUID"}}
  for i, d in ipairs(self) do
    rows[i + 1] = {d.device, d.name, ("%d.%d"):format(d.major, d.minor), gigabytes(d.total), gigabytes(d.free),
      tostring(d.physical), d.pci, d.uuid}
  end
  return table.concat((aligned_columns(rows, #rows[1] + 1)), "\n")
end

--- Returns a list of the CUDA devices, which prints as a table.
function cuda.devices()
  local list = setmetatable({}, Devices)
  for i = 0, core.device_count("cuda") - 1 do
    local name = "cuda:" .. i
    local p, free, total = core.device_properties(name), core.device_memory(name)
    list[i + 1] = {
      device = name, name = p.name, major = p.major, minor = p.minor, total = total, free = free,
      physical = p.physicalIndex, pci = p.pciBusId, uuid = p.uuid,
    }
  end
  return list
end

-- ---- several devices
cuda.comm = require "luminary.nn.parallel.comm"
--- lm.cuda.nccl: Provides functions about NCCL.
cuda.nccl = {}

--- Returns NCCL's version as three values; nil and the reason without NCCL.
function cuda.nccl.version()
  local code, why = core.nccl_version()
  if not code then return nil, why end
  return math.floor(code / 10000), math.floor(code / 100) % 100, code % 100
end

--- Returns whether NCCL and a device for it are available.
function cuda.nccl.is_available() return cuda.is_available() and core.nccl_version() ~= nil end

-- ---- NVTX
--- lm.cuda.nvtx: Marks ranges that NVIDIA Nsight Systems shows; does nothing without a GPU.
cuda.nvtx = {}

--- Begins a range of that name, within the open ranges.
function cuda.nvtx.range_push(name) core.range_push(name) end

--- Ends the range that was begun last.
function cuda.nvtx.range_pop() core.range_pop() end

--- Marks a point in time.
function cuda.nvtx.mark(name) core.range_mark(name) end

-- ---- Torch's typed constructors on the current device
require("luminary.tensor.typed_constructors").add(cuda, device_of)

return options.strict("cuda", cuda)

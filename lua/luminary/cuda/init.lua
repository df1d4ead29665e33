--- CUDA devices: `lm.cuda`. Devices are "cuda:1" or the number 1, from 0, as the driver's own tools count; nil is the
--- current one. Without a GPU, is_available() is false, device_count() 0 and devices() empty; the rest raises one
--- sentence that says what is missing.
local core = require "luminary.core"
local options = require "luminary.base.options"
local stream = require "luminary.cuda.stream"
local graph = require "luminary.cuda.graph"

local cuda = {Stream = stream.Stream, Event = stream.Event}
local fail = options.fail

--- The device's name, from a name, a number or nil (the current one).
local function device_of(who, device)
  if core.device_count("cuda") == 0 then fail("%s: %s", who, core.device_why_none("cuda")) end
  if device == nil then return core.device_current("cuda") end
  local name = core.device(device)
  if not name:find("^cuda:") then fail("%s: device must be a CUDA device, got %s", who, name) end
  return name
end
graph.device_of = device_of

-- Streams of the CPU's devices do their work at once, so programs with streams run anywhere if they name their device.
function stream.device_of(who, device)
  local name = type(device) == "string" and device:find("^cpu") and core.device(device)
  return name or device_of(who, device)
end

local function ordinal(name) return tonumber(name:match("%d+$")) end

--- Whether there is a CUDA device that can be used.
function cuda.is_available() return core.device_count("cuda") > 0 end

--- How many CUDA devices there are.
function cuda.device_count() return core.device_count("cuda") end

--- The number of the device that "cuda" stands for on this thread.
function cuda.current_device() return ordinal(device_of("current_device")) end

--- Makes "cuda" stand for another device.
function cuda.set_device(device) core.device_set_current(device_of("set_device", device)) end

--- f(...) with "cuda" standing for the device; restored however f ends.
function cuda.device(device, f, ...) return core.with_device(device_of("device", device), f, ...) end

--- What the driver tells of a device, by the driver's names: name, totalGlobalMem (bytes), multiProcessorCount, major,
--- minor, uuid, pciBusId, physicalIndex (among all of the machine, whatever CUDA_VISIBLE_DEVICES hides), …
function cuda.get_device_properties(device)
  local p = core.device_properties(device_of("get_device_properties", device))
  p.total_memory, p.multi_processor_count = p.totalGlobalMem, p.multiProcessorCount -- PyTorch's names
  return p
end

--- The name of a device (the current one), as its maker has it.
function cuda.get_device_name(device) return core.device_properties(device_of("get_device_name", device)).name end

--- Compute capability: major, minor.
function cuda.get_device_capability(device)
  local p = core.device_properties(device_of("get_device_capability", device))
  return p.major, p.minor
end

--- Free and total memory of the device, in bytes, as the driver sees it.
function cuda.mem_get_info(device) return core.device_memory(device_of("mem_get_info", device)) end

--- Whether a device reads another's memory without the host between.
function cuda.can_device_access_peer(device, peer)
  return core.device_peers(device_of("can_device_access_peer", device), device_of("can_device_access_peer", peer))
end

--- Waits for all work on the device.
function cuda.synchronize(device) core.synchronize(device_of("synchronize", device)) end

-- ---- memory of the caching allocator, in bytes
for _, name in ipairs {
  "memory_allocated", "memory_reserved", "max_memory_allocated", "max_memory_reserved", "reset_peak_memory_stats",
  "empty_cache",
} do
  --- lm.memory_allocated and the like, of a CUDA device (the current one).
  cuda[name] = function(device) return core[name](device_of(name, device)) end
end

-- The old names of memory_reserved and max_memory_reserved.
cuda.memory_cached, cuda.max_memory_cached = cuda.memory_reserved, cuda.max_memory_reserved

--- memory_allocated, memory_reserved and the most they were, in one table.
function cuda.memory_stats(device)
  local stats = {}
  for _, name in ipairs {"memory_allocated", "memory_reserved", "max_memory_allocated", "max_memory_reserved"} do
    stats[name] = cuda[name](device)
  end
  return stats
end

--- The number of times that this process asked cuBLASLt, cuDNN or cuFFT for a plan: how to compute a product, a
--- convolution, an attention, a recurrent network or a Fourier transform of new sizes. A search takes the host up to
--- some ten milliseconds. Training steps of equal sizes need none after the second.
function cuda.plan_searches() return core.plan_searches() end

--- At most this share (0 to 1) of the device's memory is taken; more is "out of memory".
function cuda.set_per_process_memory_fraction(fraction, device)
  core.device_set_fraction(device_of("set_per_process_memory_fraction", device), fraction)
end

-- ---- random numbers
--- The random numbers of all devices begin anew from an integer: lm.manual_seed.
function cuda.manual_seed(seed) core.manual_seed(seed) end
cuda.manual_seed_all = cuda.manual_seed
--- Where a device's random numbers are: a uint8 tensor, for set_rng_state.
function cuda.get_rng_state(device) return core.get_rng_state(device_of("get_rng_state", device)) end
--- Goes on with a device's random numbers from what get_rng_state gave.
function cuda.set_rng_state(state, device) core.set_rng_state(state, device_of("set_rng_state", device)) end

-- ---- streams, graphs
for _, name in ipairs {"stream", "current_stream", "default_stream", "set_stream"} do cuda[name] = stream[name] end
for _, name in ipairs {"graph", "make_graphed_step", "Graph", "is_current_stream_capturing"} do
  cuda[name] = graph[name]
end

-- ---- the table a person wants
local function gigabytes(bytes) return ("%.1f GiB"):format(bytes / 2 ^ 30) end

local Devices = {}
Devices.__index = Devices

function Devices:__tostring()
  if #self == 0 then return "no CUDA device: " .. core.device_why_none("cuda") end
  local rows, widths = {{"device", "name", "capability", "memory", "free", "physical", "PCI bus", "UUID"}}, {}
  for i, d in ipairs(self) do
    rows[i + 1] = {d.device, d.name, ("%d.%d"):format(d.major, d.minor), gigabytes(d.total), gigabytes(d.free),
      tostring(d.physical), d.pci, d.uuid}
  end
  for _, row in ipairs(rows) do
    for k, cell in ipairs(row) do widths[k] = math.max(widths[k] or 0, #cell) end
  end
  local lines = {}
  for i, row in ipairs(rows) do
    local cells = {}
    for k, cell in ipairs(row) do cells[k] = cell .. (" "):rep(widths[k] - #cell) end
    lines[i] = table.concat(cells, "  "):gsub("%s+$", "")
  end
  return table.concat(lines, "\n")
end

--- A list of the devices, each {device, name, major, minor, total, free, physical, pci, uuid}; printed, a table.
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
--- lm.cuda.nccl: what is there of NCCL.
cuda.nccl = {}

--- NCCL's version: major, minor, patch. nil and the reason where the group "nccl" is not built.
function cuda.nccl.version()
  local code, why = core.nccl_version()
  if not code then return nil, why end
  return math.floor(code / 10000), math.floor(code / 100) % 100, code % 100
end

--- Whether there is NCCL, and a device for it.
function cuda.nccl.is_available() return cuda.is_available() and core.nccl_version() ~= nil end

-- ---- Torch's typed constructors on the current device
require("luminary.tensor.typed_constructors").add(cuda, device_of)

return options.strict("cuda", cuda)

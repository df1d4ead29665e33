--- nn.parallel.comm: Copies, divides, adds and joins tensors over several devices.
local broadcast = require "luminary.nn.parallel.broadcast"
local checks = require "luminary.nn.parallel.device_checks"
local core = require "luminary.core"
local options = require "luminary.base.options"
local signature = require "luminary.base.signature"
local reduce_add = require "luminary.nn.parallel.reduce_add"
local ops, methods = core.ops, core.methods
local fail = options.fail

local comm = {
  devices = checks.devices,
  broadcast = broadcast.broadcast, broadcast_coalesced = broadcast.broadcast_coalesced,
  reduce_add = reduce_add.reduce_add, reduce_add_coalesced = reduce_add.reduce_add_coalesced,
}

--- Returns the sizes of the pieces of n samples for `count` devices, as PyTorch's chunk: all equal except the last, and
--- fewer than `count` if there are too few samples. With shares (relative numbers), sizes are proportional to them.
function comm.chunk_sizes(n, count, shares)
  if n == 0 then return {0} end
  local sizes = {}
  if not shares then
    local size = math.ceil(n / count)
    for first = 0, n - 1, size do sizes[#sizes + 1] = math.min(size, n - first) end
    return sizes
  end
  local total = 0
  for _, share in ipairs(shares) do total = total + share end
  for _, share in ipairs(shares) do
    if n == 0 then break end
    local size = math.min(n, math.max(1, math.floor(n * share / total + 0.5)))
    sizes[#sizes + 1] = size
    n, total = n - size, total - share
  end
  return sizes
end

--- Scatters a tensor over devices.
comm.scatter = signature.of([[scatter(x: tensor, devices, {chunk_sizes: table,
  dim: integer = 1})]], function(x, devices, opts)
  devices = checks.devices("scatter", devices)
  if x.ndim == 0 then fail("scatter: x must have at least 1 dim; use broadcast to copy it") end
  local dim = opts.dim < 0 and opts.dim + x.ndim + 1 or opts.dim
  if dim < 1 or dim > x.ndim then fail("scatter: dim %d is out of range for a tensor of %d dims", opts.dim, x.ndim) end
  local sizes = opts.chunk_sizes or comm.chunk_sizes(x:size(dim), #devices)
  if #sizes > #devices then fail("scatter: chunk_sizes has %d entries for %d devices", #sizes, #devices) end
  local pieces = methods.split(x, sizes, dim)
  for i, piece in ipairs(pieces) do pieces[i] = piece:to {device = devices[i], non_blocking = true} end
  return pieces
end)

--- Gathers tensors of several devices on one device.
comm.gather = signature.of("gather(list, {dim: integer = 1, destination})", function(list, opts)
  options.arg("gather", "tensors", list, "tensor[]")
  if #list == 0 then fail("gather: tensors must not be empty") end
  local destination = opts.destination ~= nil and core.device(opts.destination) or list[1].device
  local there, dim = {}, list[1].ndim == 0 and 1 or opts.dim
  for i, t in ipairs(list) do
    t = t:to(destination)
    there[i] = t.ndim == 0 and t:reshape {1} or t
  end
  return #there == 1 and there[1] or ops.cat(there, dim)
end)

return options.strict("nn.parallel.comm", comm)

--- nn.parallel.comm: Copies, divides, adds and joins tensors over several devices.
local broadcast = require "luminary.nn.parallel.broadcast"
local checks = require "luminary.nn.parallel.device_checks"
local core = require "luminary.core"
local arguments = require "luminary.base.arguments"
local options = require "luminary.base.options"
local reduce_add = require "luminary.nn.parallel.reduce_add"
local ops, methods = core.ops, core.methods
local fail = options.fail

local comm = {
  devices = checks.devices,
  broadcast = broadcast.broadcast, broadcast_coalesced = broadcast.broadcast_coalesced,
  reduce_add = reduce_add.reduce_add, reduce_add_coalesced = reduce_add.reduce_add_coalesced,
}

--- Sizes of the pieces of n samples for `count` devices, by PyTorch's rule for chunks: equal but for the last, and
--- fewer than `count` where the samples do not go round. With shares (relative numbers) each gets its part of them.
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
comm.scatter = arguments.takes("scatter", {{"chunk_sizes", "table"}, {"dim", "integer", 1}}, function(x, devices, opts)
  options.arg("scatter", "x", x, "tensor")
  devices = checks.devices("scatter", devices)
  if x.ndim == 0 then fail("scatter: a tensor without dims has no pieces; broadcast copies it") end
  local dim = opts.dim < 0 and opts.dim + x.ndim + 1 or opts.dim
  if dim < 1 or dim > x.ndim then fail("scatter: dim %d of a tensor of %d", opts.dim, x.ndim) end
  local sizes = opts.chunk_sizes or comm.chunk_sizes(x:size(dim), #devices)
  if #sizes > #devices then fail("scatter: %d chunk_sizes for %d devices", #sizes, #devices) end
  local pieces = methods.split(x, sizes, dim)
  for i, piece in ipairs(pieces) do pieces[i] = piece:to {device = devices[i], non_blocking = true} end
  return pieces
end)

--- Gathers tensors of several devices on one device.
comm.gather = arguments.takes("gather", {{"dim", "integer", 1}, {"destination", "any"}}, function(list, opts)
  checks.tensors("gather", list)
  if #list == 0 then fail("gather: tensors is empty") end
  local destination = opts.destination ~= nil and core.device(opts.destination) or list[1].device
  local there, dim = {}, list[1].ndim == 0 and 1 or opts.dim
  for i, t in ipairs(list) do
    t = t:to(destination)
    there[i] = t.ndim == 0 and t:reshape {1} or t
  end
  return #there == 1 and there[1] or ops.cat(there, dim)
end)

return options.strict("nn.parallel.comm", comm)

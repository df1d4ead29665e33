--- nn.parallel.comm: Copies, divides, adds and joins tensors over several devices.
local autograd = require "luminary.autograd"
local core = require "luminary.core"
local lists = require "luminary.base.lists"
local options = require "luminary.base.options"
local signature = require "luminary.base.signature"

local ops, methods, fail, pick = core.ops, core.methods, options.fail, lists.pick
local comm = {}

local BUFFER_SIZE = 10 * 2 ^ 20 -- default bytes in one copy
local MAX_RESULTS = 255 -- limit of a recorded function

--- Returns a list of devices with full names.
function comm.devices(who, list)
  options.list(who, "devices", options.arg(who, "devices", list, "table"))
  if #list == 0 then fail("%s: devices must not be empty; pass at least one, such as 'cpu:0'", who) end
  return lists.map(list, function(device) return core.device(device) end)
end

-- Returns the number of bytes to copy at once.
local function bytes_of(who, buffer_size)
  return buffer_size == nil and BUFFER_SIZE or options.arg(who, "buffer_size", buffer_size, "count")
end

-- ---- NCCL, between different GPUs of this process

local refused = {} -- keys of device lists for which NCCL failed

-- Returns the list as a key of `refused`; nil if the devices are not different GPUs, or NCCL failed for them.
local function cards(devices)
  local seen = {}
  for _, device in ipairs(devices) do
    if device:sub(1, 5) ~= "cuda:" or seen[device] then return end
    seen[device] = true
  end
  local key = table.concat(devices, " ")
  return #devices > 1 and not refused[key] and key or nil
end

-- Broadcasts list[root] to all by NCCL or, with `reduce`, sums all into list[root]. Tensors must be alike and
-- contiguous; no gradients are recorded. Returns false if nothing was done.
local function call_nccl(list, root, reduce)
  local key = cards(lists.map(list, function(t) return t.device end))
  if not key or list[1]:numel() == 0 then return false end
  local done = core.device_collective(list, root, reduce)
  refused[key] = not done or nil
  return done
end

local function is_recorded(t) return core.is_grad_enabled() and t.requires_grad end

-- Returns a list of t's copies on the devices; nil if NCCL cannot make them.
local function spread_by_nccl(t, devices)
  local others = lists.filter(devices, function(device) return device ~= t.device end)
  local list, at = {t}, {}
  if not cards(lists.joined({t.device}, others)) or not t:is_contiguous() or is_recorded(t) then return end
  for d, device in ipairs(devices) do
    at[d] = device == t.device and t or ops.empty(t.shape, {dtype = t.dtype, device = device})
    if device ~= t.device then list[#list + 1] = at[d] end
  end
  return call_nccl(list, 1, false) and at or nil
end

-- Returns a tensor's dtype and sizes as text.
local function describe(t) return ("%s [%s]"):format(t.dtype, table.concat(t.shape, ", ")) end

-- Returns the tensors' sum on the destination; nil if NCCL cannot make it. `fresh`: the tensors may be overwritten.
local function sum_by_nccl(list, destination, fresh)
  local devices, own, root = {}, {}, nil
  for i, t in ipairs(list) do
    if describe(t) ~= describe(list[1]) or not t:is_contiguous() or is_recorded(t) then return end
    devices[i], own[i] = t.device, t
    if t.device == destination then root = i end
  end
  if not root and #list > 1 then root, devices[#list + 1] = #list + 1, destination end
  if not root or not cards(devices) then return end
  if root > #list then
    own[root] = ops.zeros(list[1].shape, {dtype = list[1].dtype, device = destination})
  elseif not fresh then
    own[root] = list[root]:clone()
  end
  return call_nccl(own, root, true) and own[root] or nil
end

-- ---- tensors joined to one: elements in memory order, each tensor aligned for vector loads

local ALIGN = 64 -- bytes, the alignment of parts in a joined tensor

-- Returns the properties of t needed to view it in the joined tensor.
local function layout_of(t)
  return {
    shape = t.shape, numel = t:numel(), dtype = t.dtype, gap = -t:numel() % (ALIGN / t:element_size()),
    channels_last = t.ndim == 4 and not t:is_contiguous() and t:is_contiguous {memory_format = "channels_last"},
  }
end

local function layouts_of(list) return lists.map(list, layout_of) end

local function join(list, layouts)
  local parts, zeros = {}, nil
  for i, t in ipairs(list) do
    if layouts[i].channels_last then t = t:permute {1, 3, 4, 2} end
    parts[#parts + 1] = t:reshape {-1}
    if i < #list and layouts[i].gap > 0 then
      zeros = zeros or ops.zeros({ALIGN / t:element_size()}, {dtype = t.dtype, device = t.device})
      parts[#parts + 1] = ops.narrow(zeros, 1, 1, layouts[i].gap)
    end
  end
  return #parts == 1 and parts[1] or ops.cat(parts)
end

-- Returns the tensors of a joined one.
local function parted(whole, layouts)
  local list, start = {}, 1
  for i, layout in ipairs(layouts) do
    local part = ops.narrow(whole, 1, start, layout.numel)
    if layout.channels_last then
      local n, c, h, w = unpack(layout.shape)
      list[i] = part:view {n, h, w, c}:permute {1, 4, 2, 3}
    else
      list[i] = part:view(layout.shape)
    end
    start = start + layout.numel + layout.gap
  end
  return list
end

-- Divides list into buckets, lists of indices: each has tensors of one kind (kind_of), at most `max_count`, and at most
-- `bytes` bytes in all unless it is one tensor.
local function buckets(list, bytes, max_count, kind_of)
  local open, all = {}, {}
  for i, t in ipairs(list) do
    local kind, size = kind_of(t), t:numel() * t:element_size()
    local bucket = open[kind]
    if not bucket or bucket.bytes + size > bytes or #bucket == max_count then
      bucket = {bytes = 0}
      open[kind] = bucket
      all[#all + 1] = bucket
    end
    bucket[#bucket + 1] = i
    bucket.bytes = bucket.bytes + size
  end
  return all
end

-- ---- sums

local function add_to(sum, t)
  if core.is_grad_enabled() then return sum + t end
  return sum:add_(t)
end

--- Adds tensors of several devices.
function comm.reduce_add(list, destination)
  options.arg("reduce_add", "tensors", list, "tensor[]")
  if #list == 0 then fail("reduce_add: tensors must not be empty") end
  destination = destination and core.device(destination) or list[1].device
  local sum = sum_by_nccl(list, destination)
  if sum then return sum end
  sum = list[1]:to(destination)
  for i = 2, #list do
    local next_one = list[i]:to(destination)
    sum = i == 2 and sum + next_one or add_to(sum, next_one)
  end
  return sum
end

-- Returns the sums over d of each[d][i], as one tensor.
local function reduced(each, layouts, destination)
  local wholes = lists.map(each, function(list) return join(list, layouts) end)
  local sum = sum_by_nccl(wholes, destination, #layouts > 1)
  if sum then return sum end
  for d, list in ipairs(each) do
    local here = wholes[d]:to(destination)
    if d > 1 then
      sum = add_to(sum, here)
    else
      -- add_to writes to `sum`, which must not be a caller's tensor, as a list of one is when joined.
      sum = #each > 1 and #list == 1 and here.device == list[1].device and here:clone() or here
    end
  end
  return sum
end

--- Adds lists of tensors of several devices, several tensors at once.
function comm.reduce_add_coalesced(inputs, destination, buffer_size)
  options.arg("reduce_add_coalesced", "inputs", inputs, "tensor[][]")
  local first = inputs[1]
  if not first or #first == 0 then fail("reduce_add_coalesced: inputs must not be empty") end
  for d, list in ipairs(inputs) do
    if #list ~= #first then
      fail("reduce_add_coalesced: all devices must have the same number of tensors, got %d on device 1 and %d on "
        .. "device %d", #first, #list, d)
    end
    for i, t in ipairs(list) do -- after joining, shapes could not be compared
      if describe(t) ~= describe(first[i]) then
        fail("reduce_add_coalesced: tensor %d is %s on device 1 but %s on device %d", i, describe(first[i]),
          describe(t), d)
      end
    end
  end
  destination = destination and core.device(destination) or first[1].device
  local bytes = bytes_of("reduce_add_coalesced", buffer_size)
  local results = {}
  for _, bucket in ipairs(buckets(first, bytes, math.huge, function(t) return t.dtype end)) do
    local layouts = layouts_of(pick(first, bucket))
    local each = lists.map(inputs, function(list) return pick(list, bucket) end)
    local parts = parted(reduced(each, layouts, destination), layouts)
    for k, i in ipairs(bucket) do results[i] = parts[k] end
  end
  return results
end

-- ---- copies

--- Broadcasts a tensor to devices.
function comm.broadcast(x, devices)
  options.arg("broadcast", "x", x, "tensor")
  devices = comm.devices("broadcast", devices)
  local copies = spread_by_nccl(x, devices)
  if copies then return copies end
  return lists.map(devices, function(device) return x:to(device) end)
end

-- Copies one bucket to the devices. Returns the copies on devices[1], then those on devices[2], …
local Broadcast = autograd.Function:extend("Broadcast")

local function copies(devices, list, layouts)
  local whole, out = join(list, layouts), {}
  local wholes = spread_by_nccl(whole, devices)
  for d, device in ipairs(devices) do
    local there = wholes and wholes[d] or whole:to(device)
    lists.append(out, parted(there, layouts))
  end
  return out
end

function Broadcast.forward(ctx, devices, ...)
  local list = {...}
  ctx:set_materialize_grads(false)
  ctx.devices, ctx.layouts, ctx.source = devices, layouts_of(list), list[1].device
  return unpack(copies(devices, list, ctx.layouts))
end

function Broadcast.backward(ctx, ...)
  local grads, n = {...}, #ctx.layouts
  local of, layouts, each = {}, {}, {}
  for i = 1, n do -- tensors with a gradient on any device
    local any = false
    for d = 1, #ctx.devices do any = any or grads[(d - 1) * n + i] end
    if any then of[#of + 1], layouts[#layouts + 1] = i, ctx.layouts[i] end
  end
  if #of == 0 then return end
  for d, device in ipairs(ctx.devices) do
    each[d] = {}
    for k, i in ipairs(of) do
      local layout = layouts[k]
      each[d][k] = grads[(d - 1) * n + i] or ops.zeros(layout.shape, {dtype = layout.dtype, device = device})
    end
  end
  local results = {}
  local parts = parted(reduced(each, layouts, ctx.source), layouts)
  for k, i in ipairs(of) do results[i + 1] = parts[k] end -- the first argument is the list of devices
  return unpack(results, 1, n + 1)
end

--- Broadcasts a list of tensors to devices, several at once.
function comm.broadcast_coalesced(list, devices, buffer_size)
  options.arg("broadcast_coalesced", "tensors", list, "tensor[]")
  devices = comm.devices("broadcast_coalesced", devices)
  local bytes = bytes_of("broadcast_coalesced", buffer_size)
  local out, elsewhere = {}, {}
  for d, device in ipairs(devices) do
    out[d] = {}
    if #list > 0 and list[1].device == device then
      lists.append(out[d], list)
    else
      elsewhere[#elsewhere + 1] = d
    end
  end
  if #list == 0 or #elsewhere == 0 then return out end
  for i, t in ipairs(list) do
    if t.device ~= list[1].device then
      fail("broadcast_coalesced: device mismatch: tensor 1 is on %s, tensor %d is on %s", list[1].device, i, t.device)
    end
  end
  local targets = pick(devices, elsewhere)
  local function kind_of(t) return t.dtype .. (t.requires_grad and " with gradient" or "") end
  local max_count = math.max(1, math.floor(MAX_RESULTS / #targets))
  for _, bucket in ipairs(buckets(list, bytes, max_count, kind_of)) do
    local members = pick(list, bucket)
    local made
    if members[1].requires_grad and core.is_grad_enabled() then
      made = {Broadcast.apply(targets, unpack(members))}
    else
      made = copies(targets, members, layouts_of(members))
    end
    for position, d in ipairs(elsewhere) do
      for k, i in ipairs(bucket) do out[d][i] = made[(position - 1) * #bucket + k] end
    end
  end
  return out
end

-- ---- parts

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
  local total = lists.sum(shares)
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
  devices = comm.devices("scatter", devices)
  if x.ndim == 0 then fail("scatter: x must have at least 1 dim; use broadcast to copy it") end
  local dim = opts.dim < 0 and opts.dim + x.ndim + 1 or opts.dim
  if dim < 1 or dim > x.ndim then fail("scatter: dim %d is out of range for a tensor of %d dims", opts.dim, x.ndim) end
  local sizes = opts.chunk_sizes or comm.chunk_sizes(x:size(dim), #devices)
  if #sizes > #devices then fail("scatter: chunk_sizes has %d entries for %d devices", #sizes, #devices) end
  local pieces = methods.split(x, sizes, dim)
  return lists.map(pieces, function(piece, i) return piece:to {device = devices[i], non_blocking = true} end)
end)

--- Gathers tensors of several devices on one device.
comm.gather = signature.of("gather(list, {dim: integer = 1, destination})", function(list, opts)
  options.arg("gather", "tensors", list, "tensor[]")
  if #list == 0 then fail("gather: tensors must not be empty") end
  local destination = opts.destination ~= nil and core.device(opts.destination) or list[1].device
  local there = lists.map(list, function(t)
    t = t:to(destination)
    return t.ndim == 0 and t:reshape {1} or t
  end)
  return #there == 1 and there[1] or ops.cat(there, list[1].ndim == 0 and 1 or opts.dim)
end)

return options.strict("nn.parallel.comm", comm)

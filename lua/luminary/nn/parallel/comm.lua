--- nn.parallel.comm: tensors copied to devices, added up from them, split over them and joined, all with gradients.
--- Devices are as everywhere: "cuda:1", 1, "cpu:1".
local core = require "luminary.core"
local options = require "luminary.base.options"
local autograd = require "luminary.autograd"

local ops, methods = core.ops, core.methods
local fail = options.fail

local comm = {}

local BUFFER_SIZE = 10 * 2 ^ 20 -- bytes that travel at once
local MOST_RESULTS = 255        -- of one recorded function
local ALIGN = 64                -- bytes at whose multiples the parts of a joined tensor begin

--- A list of devices by their full names.
function comm.devices(who, list)
  options.arg(who, "devices", list, "table")
  if #list == 0 then fail("%s: devices is empty; name at least one, such as 'cpu:0'", who) end
  local names = {}
  for i, device in ipairs(list) do names[i] = core.device(device) end
  return names
end

local function bytes_of(who, buffer_size)
  return buffer_size == nil and BUFFER_SIZE or options.arg(who, "buffer_size", buffer_size, "count")
end

local function tensors(who, list)
  options.arg(who, "tensors", list, "table")
  for i, t in ipairs(list) do options.arg(who, "tensors[" .. i .. "]", t, "tensor") end
  return list
end

-- ---- many tensors as one, and back: elements in the order of memory, each tensor where kernels can read it in packs

-- What has to be known of t to see it in the joined tensor again.
local function layout_of(t)
  return {
    shape = t.shape, numel = t:numel(), dtype = t.dtype, gap = -t:numel() % (ALIGN / t:element_size()),
    channels_last = t.ndim == 4 and not t:is_contiguous() and t:is_contiguous {memory_format = "channels_last"},
  }
end

local function layouts_of(list)
  local layouts = {}
  for i, t in ipairs(list) do layouts[i] = layout_of(t) end
  return layouts
end

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

local function part_again(whole, layouts)
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

-- Lists of positions in `list`: tensors of one dtype, of `bytes` together and at most `most` of them.
local function buckets(list, bytes, most, kind_of)
  local open, all = {}, {}
  for i, t in ipairs(list) do
    local kind, size = kind_of(t), t:numel() * t:element_size()
    local bucket = open[kind]
    if not bucket or bucket.bytes + size > bytes or #bucket == most then
      bucket = {bytes = 0}
      open[kind] = bucket
      all[#all + 1] = bucket
    end
    bucket[#bucket + 1] = i
    bucket.bytes = bucket.bytes + size
  end
  return all
end

local function pick(list, bucket)
  local out = {}
  for k, i in ipairs(bucket) do out[k] = list[i] end
  return out
end

-- ---- all cards of this process at once

local refused = {} -- lists of devices for which that was tried in vain

-- The list as a key of `refused`; nil if they are not a card each, or were refused.
local function cards(devices)
  local seen = {}
  for _, device in ipairs(devices) do
    if device:sub(1, 5) ~= "cuda:" or seen[device] then return end
    seen[device] = true
  end
  local key = table.concat(devices, " ")
  return #devices > 1 and not refused[key] and key or nil
end

-- By NCCL, where it is there: what list[root] holds to all, or with `reduce` the sum of all into list[root]. Tensors
-- are alike and contiguous, and no gradients pass here. False if nothing was done.
local function at_once(list, root, reduce)
  local devices = {}
  for i, t in ipairs(list) do devices[i] = t.device end
  local key = cards(devices)
  if not key or list[1]:numel() == 0 then return false end
  local done = core.device_collective(list, root, reduce)
  refused[key] = not done or nil
  return done
end

local function is_recorded(t) return core.is_grad_enabled() and t.requires_grad end

-- A list of what t is on the devices; nil if that cannot be done at once.
local function spread(t, devices)
  local all, list, at = {t.device}, {t}, {}
  for _, device in ipairs(devices) do
    if device ~= t.device then all[#all + 1] = device end
  end
  if not cards(all) or not t:is_contiguous() or is_recorded(t) then return end
  for d, device in ipairs(devices) do
    at[d] = device == t.device and t or ops.empty(t.shape, {dtype = t.dtype, device = device})
    if device ~= t.device then list[#list + 1] = at[d] end
  end
  return at_once(list, 1, false) and at or nil
end

local function describe(t) return ("%s [%s]"):format(t.dtype, table.concat(t.shape, ", ")) end

-- The sum of the tensors, on the destination; nil as above. `fresh`: they are nobody else's.
local function summed(list, destination, fresh)
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
  return at_once(own, root, true) and own[root] or nil
end

-- ---- adding up

local function add_to(sum, t)
  if core.is_grad_enabled() then return sum + t end
  return sum:add_(t)
end

--- The sum of tensors of equal sizes, on `destination` (the first one's device without).
function comm.reduce_add(list, destination)
  tensors("reduce_add", list)
  if #list == 0 then fail("reduce_add: tensors is empty") end
  destination = destination and core.device(destination) or list[1].device
  local sum = summed(list, destination)
  if sum then return sum end
  sum = list[1]:to(destination)
  for i = 2, #list do
    local next_one = list[i]:to(destination)
    sum = i == 2 and sum + next_one or add_to(sum, next_one)
  end
  return sum
end

-- The sums over d of lists[d][i], as one tensor.
local function reduced(lists, layouts, destination)
  local wholes = {}
  for d, list in ipairs(lists) do wholes[d] = join(list, layouts) end
  local sum = summed(wholes, destination, #layouts > 1)
  if sum then return sum end
  for d, list in ipairs(lists) do
    local here = wholes[d]:to(destination)
    if d > 1 then
      sum = add_to(sum, here)
    else
      -- What is written to is not a lone tensor of the caller's.
      sum = #lists > 1 and #list == 1 and here.device == list[1].device and here:clone() or here
    end
  end
  return sum
end

--- inputs[d][i] summed over d: a list over i. Many tensors travel as one. The sums are on `destination`, without it
--- where inputs[1] is.
function comm.reduce_add_coalesced(inputs, destination, buffer_size)
  options.arg("reduce_add_coalesced", "inputs", inputs, "table")
  local first = inputs[1] and tensors("reduce_add_coalesced", inputs[1])
  if not first or #first == 0 then fail("reduce_add_coalesced: inputs is empty") end
  for d, list in ipairs(inputs) do
    if #tensors("reduce_add_coalesced", list) ~= #first then
      fail("reduce_add_coalesced: %d tensors on device 1, %d on device %d", #first, #list, d)
    end
    for i, t in ipairs(list) do -- joined to one, they would add up in any shape
      if describe(t) ~= describe(first[i]) then
        fail("reduce_add_coalesced: tensor %d is %s on device 1, %s on device %d", i, describe(first[i]), describe(t),
          d)
      end
    end
  end
  destination = destination and core.device(destination) or first[1].device
  local bytes = bytes_of("reduce_add_coalesced", buffer_size)
  local sums = {}
  local function kind_of(t) return t.dtype end
  for _, bucket in ipairs(buckets(first, bytes, math.huge, kind_of)) do
    local lists, layouts = {}, layouts_of(pick(first, bucket))
    for d, list in ipairs(inputs) do lists[d] = pick(list, bucket) end
    local parts = part_again(reduced(lists, layouts, destination), layouts)
    for k, i in ipairs(bucket) do sums[i] = parts[k] end
  end
  return sums
end

-- ---- copies to devices

--- A list of tensor x on each of the devices.
function comm.broadcast(x, devices)
  options.arg("broadcast", "x", x, "tensor")
  devices = comm.devices("broadcast", devices)
  local copies = spread(x, devices)
  if copies then return copies end
  copies = {}
  for d, device in ipairs(devices) do copies[d] = x:to(device) end
  return copies
end

-- One bucket to the devices: the copies on devices[1], then those on devices[2], …
local Broadcast = autograd.Function:extend("Broadcast")

local function copies(devices, list, layouts)
  local whole, out = join(list, layouts), {}
  local wholes = spread(whole, devices)
  for d, device in ipairs(devices) do
    for _, copy in ipairs(part_again(wholes and wholes[d] or whole:to(device), layouts)) do out[#out + 1] = copy end
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
  local of, layouts, lists = {}, {}, {}
  for i = 1, n do -- those that any device has a gradient for
    local any = false
    for d = 1, #ctx.devices do any = any or grads[(d - 1) * n + i] end
    if any then of[#of + 1], layouts[#layouts + 1] = i, ctx.layouts[i] end
  end
  if #of == 0 then return end
  for d, device in ipairs(ctx.devices) do
    lists[d] = {}
    for k, i in ipairs(of) do
      local layout = layouts[k]
      lists[d][k] = grads[(d - 1) * n + i] or ops.zeros(layout.shape, {dtype = layout.dtype, device = device})
    end
  end
  local results = {}
  local parts = part_again(reduced(lists, layouts, ctx.source), layouts)
  for k, i in ipairs(of) do results[i + 1] = parts[k] end -- the first argument is the list of devices
  return unpack(results, 1, n + 1)
end

--- A list for each device of what `list` is there. Tensors that are on a device already are given as they are; the
--- others travel together, many as one, and so do their gradients on the way back.
function comm.broadcast_coalesced(list, devices, buffer_size)
  tensors("broadcast_coalesced", list)
  devices = comm.devices("broadcast_coalesced", devices)
  local bytes = bytes_of("broadcast_coalesced", buffer_size)
  local out, elsewhere = {}, {}
  for d, device in ipairs(devices) do
    out[d] = {}
    if #list > 0 and list[1].device == device then
      for i, t in ipairs(list) do out[d][i] = t end
    else
      elsewhere[#elsewhere + 1] = d
    end
  end
  if #list == 0 or #elsewhere == 0 then return out end
  for i, t in ipairs(list) do
    if t.device ~= list[1].device then
      fail("broadcast_coalesced: tensor 1 is on %s, tensor %d on %s; they have to be on one device", list[1].device, i,
        t.device)
    end
  end
  local targets = pick(devices, elsewhere)
  local function kind_of(t) return t.dtype .. (t.requires_grad and " with gradient" or "") end
  local most = math.max(1, math.floor(MOST_RESULTS / #targets))
  for _, bucket in ipairs(buckets(list, bytes, most, kind_of)) do
    local members = pick(list, bucket)
    local made
    if members[1].requires_grad and core.is_grad_enabled() then
      made = {Broadcast.apply(targets, unpack(members))}
    else
      made = copies(targets, members, layouts_of(members))
    end
    for place, d in ipairs(elsewhere) do
      for k, i in ipairs(bucket) do out[d][i] = made[(place - 1) * #bucket + k] end
    end
  end
  return out
end

-- ---- pieces of one tensor

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

--- Pieces of x along dim (1), one for each device; {chunk_sizes = …} says how large.
function comm.scatter(x, devices, opts)
  options.arg("scatter", "x", x, "tensor")
  devices = comm.devices("scatter", devices)
  opts = options.check("scatter", opts, {chunk_sizes = {"table"}, dim = {"integer", 1}}, "chunk_sizes")
  if x.ndim == 0 then fail("scatter: a tensor without dims has no pieces; broadcast copies it") end
  local dim = opts.dim < 0 and opts.dim + x.ndim + 1 or opts.dim
  if dim < 1 or dim > x.ndim then fail("scatter: dim %d of a tensor of %d", opts.dim, x.ndim) end
  local sizes = opts.chunk_sizes or comm.chunk_sizes(x:size(dim), #devices)
  if #sizes > #devices then fail("scatter: %d chunk_sizes for %d devices", #sizes, #devices) end
  local pieces = methods.split(x, sizes, dim)
  for i, piece in ipairs(pieces) do pieces[i] = piece:to {device = devices[i], non_blocking = true} end
  return pieces
end

--- The tensors joined along {dim = 1}, on {destination = …} (the first one's device without). Tensors without dims
--- become a vector.
function comm.gather(list, opts)
  tensors("gather", list)
  opts = options.check("gather", opts, {dim = {"integer", 1}, destination = {"any"}}, "dim")
  if #list == 0 then fail("gather: tensors is empty") end
  local destination = opts.destination ~= nil and core.device(opts.destination) or list[1].device
  local there, dim = {}, list[1].ndim == 0 and 1 or opts.dim
  for i, t in ipairs(list) do
    t = t:to(destination)
    there[i] = t.ndim == 0 and t:reshape {1} or t
  end
  return #there == 1 and there[1] or ops.cat(there, dim)
end

return options.strict("nn.parallel.comm", comm)

--- Copies tensors to devices; backward sums the copies' gradients.
local autograd = require "luminary.autograd"
local core = require "luminary.core"
local by_nccl = require "luminary.nn.parallel.single_process_nccl"
local checks = require "luminary.nn.parallel.device_checks"
local joined = require "luminary.nn.parallel.joined_tensors"
local options = require "luminary.base.options"
local reduce_add = require "luminary.nn.parallel.reduce_add"
local ops = core.ops
local fail = options.fail

local broadcast = {}

local MAX_RESULTS = 255 -- limit of a recorded function

--- Broadcasts a tensor to devices.
function broadcast.broadcast(x, devices)
  options.arg("broadcast", "x", x, "tensor")
  devices = checks.devices("broadcast", devices)
  local copies = by_nccl.spread(x, devices)
  if copies then return copies end
  copies = {}
  for d, device in ipairs(devices) do copies[d] = x:to(device) end
  return copies
end

-- Copies one bucket to the devices. Returns the copies on devices[1], then those on devices[2], …
local Broadcast = autograd.Function:extend("Broadcast")

local function copies(devices, list, layouts)
  local whole, out = joined.join(list, layouts), {}
  local wholes = by_nccl.spread(whole, devices)
  for d, device in ipairs(devices) do
    local there = wholes and wholes[d] or whole:to(device)
    for _, copy in ipairs(joined.part_again(there, layouts)) do out[#out + 1] = copy end
  end
  return out
end

function Broadcast.forward(ctx, devices, ...)
  local list = {...}
  ctx:set_materialize_grads(false)
  ctx.devices, ctx.layouts, ctx.source = devices, joined.layouts_of(list), list[1].device
  return unpack(copies(devices, list, ctx.layouts))
end

function Broadcast.backward(ctx, ...)
  local grads, n = {...}, #ctx.layouts
  local of, layouts, lists = {}, {}, {}
  for i = 1, n do -- tensors with a gradient on any device
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
  local parts = joined.part_again(reduce_add.reduced(lists, layouts, ctx.source), layouts)
  for k, i in ipairs(of) do results[i + 1] = parts[k] end -- the first argument is the list of devices
  return unpack(results, 1, n + 1)
end

--- Broadcasts a list of tensors to devices, several at once.
function broadcast.broadcast_coalesced(list, devices, buffer_size)
  options.arg("broadcast_coalesced", "tensors", list, "tensor[]")
  devices = checks.devices("broadcast_coalesced", devices)
  local bytes = checks.bytes_of("broadcast_coalesced", buffer_size)
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
      fail("broadcast_coalesced: device mismatch: tensor 1 is on %s, tensor %d is on %s", list[1].device, i, t.device)
    end
  end
  local targets = joined.pick(devices, elsewhere)
  local function kind_of(t) return t.dtype .. (t.requires_grad and " with gradient" or "") end
  local max_count = math.max(1, math.floor(MAX_RESULTS / #targets))
  for _, bucket in ipairs(joined.buckets(list, bytes, max_count, kind_of)) do
    local members = joined.pick(list, bucket)
    local made
    if members[1].requires_grad and core.is_grad_enabled() then
      made = {Broadcast.apply(targets, unpack(members))}
    else
      made = copies(targets, members, joined.layouts_of(members))
    end
    for position, d in ipairs(elsewhere) do
      for k, i in ipairs(bucket) do out[d][i] = made[(position - 1) * #bucket + k] end
    end
  end
  return out
end

return broadcast

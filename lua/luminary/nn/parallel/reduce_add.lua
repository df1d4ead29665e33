--- Sums tensors over devices.
local core = require "luminary.core"
local by_nccl = require "luminary.nn.parallel.single_process_nccl"
local checks = require "luminary.nn.parallel.device_checks"
local joined = require "luminary.nn.parallel.joined_tensors"
local options = require "luminary.base.options"
local describe, fail = by_nccl.describe, options.fail

local sums = {}

local function add_to(sum, t)
  if core.is_grad_enabled() then return sum + t end
  return sum:add_(t)
end

--- Adds tensors of several devices.
function sums.reduce_add(list, destination)
  options.arg("reduce_add", "tensors", list, "tensor[]")
  if #list == 0 then fail("reduce_add: tensors must not be empty") end
  destination = destination and core.device(destination) or list[1].device
  local sum = by_nccl.summed(list, destination)
  if sum then return sum end
  sum = list[1]:to(destination)
  for i = 2, #list do
    local next_one = list[i]:to(destination)
    sum = i == 2 and sum + next_one or add_to(sum, next_one)
  end
  return sum
end

--- Returns the sums over d of lists[d][i], as one tensor.
function sums.reduced(lists, layouts, destination)
  local wholes = {}
  for d, list in ipairs(lists) do wholes[d] = joined.join(list, layouts) end
  local sum = by_nccl.summed(wholes, destination, #layouts > 1)
  if sum then return sum end
  for d, list in ipairs(lists) do
    local here = wholes[d]:to(destination)
    if d > 1 then
      sum = add_to(sum, here)
    else
      -- add_to writes to `sum`, which must not be a caller's tensor, as a list of one is when joined.
      sum = #lists > 1 and #list == 1 and here.device == list[1].device and here:clone() or here
    end
  end
  return sum
end

--- Adds lists of tensors of several devices, several tensors at once.
function sums.reduce_add_coalesced(inputs, destination, buffer_size)
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
  local bytes = checks.bytes_of("reduce_add_coalesced", buffer_size)
  local results = {}
  local function kind_of(t) return t.dtype end
  for _, bucket in ipairs(joined.buckets(first, bytes, math.huge, kind_of)) do
    local lists, layouts = {}, joined.layouts_of(joined.pick(first, bucket))
    for d, list in ipairs(inputs) do lists[d] = joined.pick(list, bucket) end
    local parts = joined.part_again(sums.reduced(lists, layouts, destination), layouts)
    for k, i in ipairs(bucket) do results[i] = parts[k] end
  end
  return results
end

return sums

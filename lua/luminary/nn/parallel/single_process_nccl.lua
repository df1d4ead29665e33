--- Copies to all GPUs of this process at once, and sums over them, by NCCL if it is available.
local core = require "luminary.core"

local ops = core.ops

local by_nccl = {}

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

-- Returns a list of t's copies on the devices; nil if NCCL cannot make them.
function by_nccl.spread(t, devices)
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

--- Returns a tensor's dtype and sizes as text.
function by_nccl.describe(t) return ("%s [%s]"):format(t.dtype, table.concat(t.shape, ", ")) end

-- Returns the sum of the tensors on the destination; nil as above. `fresh`: true if the tensors may be overwritten.
function by_nccl.summed(list, destination, fresh)
  local devices, own, root = {}, {}, nil
  for i, t in ipairs(list) do
    if by_nccl.describe(t) ~= by_nccl.describe(list[1]) or not t:is_contiguous() or is_recorded(t) then return end
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

return by_nccl

--- Joins many tensors into one, and back: elements in memory order, each tensor aligned for vector loads.
local core = require "luminary.core"

local ops = core.ops

local joined = {}

local ALIGN = 64 -- bytes, the alignment of parts in a joined tensor

-- Returns the properties of t needed to view it in the joined tensor.
local function layout_of(t)
  return {
    shape = t.shape, numel = t:numel(), dtype = t.dtype, gap = -t:numel() % (ALIGN / t:element_size()),
    channels_last = t.ndim == 4 and not t:is_contiguous() and t:is_contiguous {memory_format = "channels_last"},
  }
end

function joined.layouts_of(list)
  local layouts = {}
  for i, t in ipairs(list) do layouts[i] = layout_of(t) end
  return layouts
end

function joined.join(list, layouts)
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

function joined.part_again(whole, layouts)
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
function joined.buckets(list, bytes, max_count, kind_of)
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

function joined.pick(list, bucket)
  local out = {}
  for k, i in ipairs(bucket) do out[k] = list[i] end
  return out
end

return joined

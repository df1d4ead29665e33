--- Helpers of ONNX's ops: axes from 0 as dims from 1, sizes, and tensors of integers.
local core = require "luminary.core"

local ops = core.ops
local sizes = {}

--- Returns an axis, from 0 or negative from the end, as a dim.
function sizes.dim_of(axis) return axis >= 0 and axis + 1 or axis end

--- Returns axes as a list of dims.
function sizes.dims_of(axes)
  local dims = {}
  for i, axis in ipairs(axes) do dims[i] = sizes.dim_of(axis) end
  return dims
end

--- Returns an axis of x as a dim from 1.
function sizes.dim_in(x, axis) return axis < 0 and x.ndim + axis + 1 or axis + 1 end

--- Returns the product of entries first to last of a list.
function sizes.product(list, first, last)
  local n = 1
  for d = first or 1, last or #list do n = n * list[d] end
  return n
end

--- Returns n times value, as a list.
function sizes.filled(n, value)
  local list = {}
  for i = 1, n do list[i] = value end
  return list
end

local INT64 = {dtype = "int64"}

--- Returns numbers as an int64 tensor on x's device.
function sizes.integers(list, x)
  if x.device ~= "cpu" then return core.tensor(list, {dtype = "int64", device = x.device}) end
  return core.tensor(list, INT64)
end

--- Returns the parts of x along a dim, of the sizes in a list.
function sizes.parts_of(x, dim, lengths)
  local parts, at = {}, 1
  for i, length in ipairs(lengths) do parts[i], at = ops.narrow(x, dim, at, length), at + length end
  return parts
end

--- Returns x [..., n, ...] as the part of n / count elements of dim number i, from 1.
function sizes.nth(x, dim, i, count)
  local length = x.shape[dim] / count
  return ops.narrow(x, dim, (i - 1) * length + 1, length)
end

-- Returns the index in 0 … size - 1 that position i, which may be outside, reads in a mode.
local function inside(i, size, mode)
  if mode == "edge" then return math.max(math.min(i, size - 1), 0) end
  if mode == "wrap" then return i % size end
  if size == 1 then return 0 end
  local period = 2 * (size - 1) -- reflect
  i = i % period
  return i < size and i or period - i
end

--- Returns x padded by before[d] and after[d] elements in dim d; negative numbers remove elements. mode: "constant",
--- "edge", "wrap" or "reflect".
function sizes.padded(x, before, after, mode, value)
  if mode == "constant" then
    local pads, any = {}, false
    for d = x.ndim, 1, -1 do
      pads[#pads + 1], pads[#pads + 2] = before[d], after[d]
      any = any or before[d] ~= 0 or after[d] ~= 0
    end
    return any and ops.pad(x, pads, "constant", value or 0) or x
  end
  for d = 1, x.ndim do
    if before[d] ~= 0 or after[d] ~= 0 then
      local list, size = {}, x.shape[d]
      for i = -before[d], size + after[d] - 1 do list[#list + 1] = inside(i, size, mode) + 1 end
      x = ops.index_select(x, d, sizes.integers(list, x))
    end
  end
  return x
end

return sizes

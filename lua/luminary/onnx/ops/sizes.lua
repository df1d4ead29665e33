--- Helpers of ONNX's ops: axes from 0 as dims from 1, lists of sizes, and padding.
local core = require "luminary.core"
local ops = core.ops
local sizes = {joined = require("luminary.base.lists").joined}
sizes.strides = require("luminary.file_formats.source").dense_strides

--- Raises an error of the node that runs, whose name the graph adds.
function sizes.refuse(format, ...) error(format:format(...), 0) end

-- Returns an axis, from 0 or negative from the end, as a dim of `ndim` dims, from 1.
local function dim_among(ndim, axis)
  if axis < -ndim or axis >= ndim then
    sizes.refuse("axis %.0f is out of range for %d dim%s (axes start at 0)", axis, ndim, ndim == 1 and "" or "s")
  end
  return axis < 0 and ndim + axis + 1 or axis + 1
end
--- Returns an axis of x, with `more` dims, nil: 0, as a dim from 1. A tensor without dims has axis 0.
function sizes.dim_in(x, axis, more) return dim_among(math.max(x.ndim + (more or 0), 1), axis) end

--- Returns axes, nil: all, as a list of dims of `ndim` dims. Fails if one is repeated, or if there are not `count`, of
--- `what`, unless count is nil.
function sizes.dims_of(ndim, axes, count, what)
  local dims, seen = {}, {}
  for i = 1, axes and #axes or ndim do
    local d = axes and dim_among(ndim, axes[i]) or i
    if seen[d] then sizes.refuse("axis %d is repeated", d - 1) end
    dims[i], seen[d] = d, true
  end
  if count and count ~= #dims then sizes.refuse("expected %d %s, got %g", #dims, what, count) end
  return dims
end

--- Fails unless t, of a name, is nil or has these sizes; a text is any size.
function sizes.check_shape(name, t, wanted)
  local fits = t == nil or t.ndim == #wanted
  for d, size in ipairs(t and fits and wanted or {}) do
    fits = fits and (type(size) == "string" or t.shape[d] == size)
  end
  if fits then return end
  local expected, got = table.concat(wanted, ", "), table.concat(t.shape, ", ")
  sizes.refuse("expected %s to have shape [%s], got [%s]", name, expected, got)
end

--- Returns the product of entries first to last of a list.
function sizes.product(list, first, last)
  local n = 1
  for d = first or 1, last or #list do n = n * list[d] end
  return n
end

--- Returns n times value, as a list; at index `at` another one.
function sizes.filled(n, value, at, other)
  local list = {}
  for i = 1, n do list[i] = i == at and other or value end
  return list
end

local INT64 = {dtype = "int64"}
--- Returns numbers as an int64 tensor on x's device.
function sizes.integers(list, x)
  return core.tensor(list, x.device == "cpu" and INT64 or {dtype = "int64", device = x.device})
end

--- Returns the parts of x along a dim, of the sizes in a list.
function sizes.parts_of(x, dim, lengths)
  local parts, at = {}, 1
  for i, length in ipairs(lengths) do parts[i], at = ops.narrow(x, dim, at, length), at + length end
  if at ~= x.shape[dim] + 1 then
    sizes.refuse("the parts of axis %d have %.0f entries, the axis %d", dim - 1, at - 1, x.shape[dim])
  end
  return parts
end

--- Returns part i, from 1, of x divided into `count` equal parts along a dim.
function sizes.nth(x, dim, i, count)
  local length = x.shape[dim] / count
  return ops.narrow(x, dim, (i - 1) * length + 1, length)
end

-- Returns the indices in 0 … size - 1 that positions, int64 [n], which may be outside, read in a mode.
local function inside(at, size, mode)
  if mode == "edge" then return ops.clamp(at, 0, size - 1) end
  if mode == "wrap" or size == 1 then return ops.remainder(at, size) end
  return size - 1 - ops.abs(ops.remainder(at, 2 * (size - 1)) - (size - 1)) -- reflect
end

local LONGEST = 2 ^ 22

--- Returns a function that returns true if it gets these tensors, or nil, and they have the memory and the values that
--- they have now. A recording (lm.prepare) of such a call then depends on these, though no op of it reads them.
function sizes.watch(...)
  local n, then_ = select("#", ...), {}
  for i = 1, n do
    local t = select(i, ...)
    then_[i] = t and {t = t, memory = core.keep(ops.view(t, t.shape)), version = t._version, at = t:data_ptr()}
  end
  return function(...)
    for i = 1, n do
      local t, before = (select(i, ...)), then_[i]
      if before and not (rawequal(t, before.t) and t._version == before.version and t:data_ptr() == before.at)
        or t and not before then
        return false
      end
    end
    return true
  end
end

--- Returns n, the number of entries of a list in Lua. Fails above 2^22: a file can ask for any number in a few bytes.
function sizes.bounded(n, what)
  if n > LONGEST then error(("%s must be at most %d, got %.0f"):format(what, LONGEST, n), 0) end
  return n
end

--- Returns x padded by before[d] and after[d] elements, 0 where there is none, in dim d; negative numbers remove
--- elements. mode: "constant", "edge", "wrap" or "reflect".
function sizes.padded(x, before, after, mode, value)
  local pads = {}
  for d = x.ndim, 1, -1 do
    local first, last = before[d] or 0, after[d] or 0
    pads[#pads + 1], pads[#pads + 2] = first, last
    if mode and mode ~= "constant" and (first ~= 0 or last ~= 0) then
      local size = x.shape[d]
      local at = ops.arange(math.max(first + size + last, 0), {dtype = "int64", device = x.device}) - first
      x = ops.index_select(x, d, inside(at, size, mode) + 1)
    end
  end
  if mode and mode ~= "constant" then return x end
  for _, pad in ipairs(pads) do
    if pad ~= 0 then return ops.pad(x, pads, "constant", value or 0) end
  end
  return x
end

--- Returns x resized at the end of dim d to n elements.
function sizes.resized(x, d, n, value) return sizes.padded(x, {}, {[d] = n - x.shape[d]}, "constant", value) end

--- Returns the indices, of ndim dims, that reverse the first lengths[b] of `steps` elements along dim `time`, for each
--- index b of dim `batch`. lengths: a tensor [batch] on the default device, whose values are not read.
function sizes.reversal(lengths, steps, ndim, time, batch)
  local at = ops.arange(steps, {dtype = "int64"})
  at = at:reshape(sizes.filled(ndim, 1, time, -1))
  lengths = lengths:to("int64"):reshape(sizes.filled(ndim, 1, batch, -1))
  return ops.where(ops.lt(at, lengths), lengths - at, at + 1)
end

--- Returns x with its elements along a dim reversed: all, or by the indices of sizes.reversal.
function sizes.reversed(x, indices, dim)
  return indices and ops.gather(x, dim, indices:expand(x.shape)) or ops.flip(x, {dim})
end

return sizes

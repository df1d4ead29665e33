--- ONNX's ops on shapes: views, parts, joins and padding.
local core = require "luminary.core"
local helpers = require "luminary.onnx.ops.sizes"
local dim_of, product, numbers = helpers.dim_of, helpers.product, helpers.integers
local padded, parts_of = helpers.padded, helpers.parts_of
local ops, to = core.ops, core.methods.to
local shape = {}

function shape.Identity() return function(x) return x end, "holds" end

function shape.Shape(n)
  local first, last = n.a.start or 0, n.a["end"]
  return function(x)
    local sizes, list = x.shape, {}
    local from, past = first, last or #sizes
    if from < 0 then from = from + #sizes end
    if past < 0 then past = past + #sizes end
    for d = math.max(from, 0) + 1, math.min(past, #sizes) do list[#list + 1] = sizes[d] end
    return numbers(list, x)
  end
end
function shape.Size() return function(x) return numbers(x:numel(), x) end end

function shape.Reshape(n)
  local sizes_of, keeps_zero = n:list_or("shape", 2, 5), n.a.allowzero == 1
  return function(x, given)
    local wanted, sizes, hole, known = sizes_of(given), {}, nil, 1
    for i = 1, #wanted do
      local size = wanted[i]
      if size == 0 and not keeps_zero then size = x.shape[i] end
      sizes[i] = size
      if size == -1 then hole = i else known = known * size end
    end
    if hole then sizes[hole] = known > 0 and x:numel() / known or 0 end
    return ops.reshape(x, sizes)
  end
end

function shape.Flatten(n)
  local axis = n.a.axis or 1
  return function(x)
    local sizes = x.shape
    local at = axis < 0 and axis + #sizes or axis
    return ops.reshape(x, {product(sizes, 1, at), product(sizes, at + 1, #sizes)})
  end
end

function shape.Squeeze(n)
  local axes_of = n:list_or("axes", 2, 13)
  return function(x, given)
    local axes = axes_of(given)
    if not axes then return ops.squeeze(x) end
    local gone, sizes = {}, {}
    for _, axis in ipairs(axes) do gone[axis < 0 and axis + x.ndim or axis] = true end
    for d, size in ipairs(x.shape) do
      if not gone[d - 1] then
        sizes[#sizes + 1] = size
      elseif size ~= 1 then
        error(("Squeeze: axis %d has size %d, not 1"):format(d - 1, size), 0)
      end
    end
    return ops.reshape(x, sizes)
  end
end

function shape.Unsqueeze(n)
  local axes_of = n:list_or("axes", 2, 13)
  return function(x, given)
    local axes, new, sizes, at = axes_of(given), {}, {}, 1
    local ndim = x.ndim + #axes
    for _, axis in ipairs(axes) do new[axis < 0 and axis + ndim or axis] = true end
    for d = 1, ndim do
      if new[d - 1] then sizes[d] = 1 else sizes[d], at = x.shape[at], at + 1 end
    end
    return ops.reshape(x, sizes)
  end
end

function shape.Transpose(n)
  local dims
  if n.a.perm then
    dims = {}
    for i, axis in ipairs(n.a.perm) do dims[i] = dim_of(axis) end
  end
  return function(x)
    if dims then return ops.permute(x, dims) end
    local reversed = {}
    for d = 1, x.ndim do reversed[d] = x.ndim + 1 - d end
    return x.ndim < 2 and x or ops.permute(x, reversed)
  end
end

-- Returns sizes to which x and a list of sizes broadcast.
local function broadcast(sizes, wanted)
  local out, ndim = {}, math.max(#sizes, #wanted)
  for d = 1, ndim do
    local i, k = d - ndim + #sizes, d - ndim + #wanted
    local a, b = i > 0 and sizes[i] or 1, k > 0 and wanted[k] or 1
    out[d] = a == 1 and b or a
  end
  return out
end

function shape.Expand(n)
  local sizes_of = n:list(2)
  return function(x, given) return ops.expand(x, broadcast(x.shape, sizes_of(given))) end
end

function shape.Tile(n)
  if n.version < 6 then
    return function(x, tiles, axis)
      local counts = {}
      for d = 1, x.ndim do counts[d] = 1 end
      counts[tonumber(axis:item()) + 1] = tonumber(tiles:item())
      return x:repeat_tensor(counts)
    end
  end
  local counts_of = n:list(2)
  return function(x, given)
    local counts = counts_of(given)
    return #counts == 0 and x or x:repeat_tensor(counts)
  end
end

function shape.Concat(n)
  local dim = dim_of(n.a.axis or 1)
  return function(list, count)
    if count == 1 then return list[1] end
    return ops.cat(list, dim)
  end, "list"
end

function shape.Split(n)
  local dim, sizes_of, count = dim_of(n.a.axis or 0), n:list_or("split", 2, 13), #n.outputs
  return function(x, given)
    local sizes = sizes_of(given)
    if not sizes then
      local size = x.shape[dim]
      local each = math.ceil(size / count)
      sizes = {}
      for i = 1, count do sizes[i] = math.max(math.min(each, size - each * (i - 1)), 0) end
    end
    return parts_of(x, dim, sizes)
  end, "results"
end

-- Returns x from index `from` to before `past` in steps, as Python's slices have them: from 0, negative from the end.
local function slice(x, dim, from, past, step)
  local size = x.shape[dim]
  local least, most = step < 0 and -1 or 0, step < 0 and size - 1 or size
  if from < 0 then from = from + size end
  if past < 0 then past = past + size end
  from, past = math.max(math.min(from, most), step < 0 and 0 or least), math.max(math.min(past, most), least)
  local count = math.max(math.ceil((past - from) / step), 0)
  if size == 0 then count = 0 end
  if step == 1 then return count == size and x or ops.narrow(x, dim, count > 0 and from + 1 or 1, count) end
  if count == 0 then return ops.narrow(x, dim, 1, 0) end
  if step > 0 then return ops.slice(x, dim, from + 1, from + 1 + (count - 1) * step, step) end
  local y = ops.flip(x, {dim})
  return ops.slice(y, dim, size - from, size - from + (count - 1) * -step, -step)
end

function shape.Slice(n)
  local starts_of, ends_of = n:list_or("starts", 2, 10), n:list_or("ends", 3, 10)
  local axes_of, steps_of = n:list_or("axes", 4, 10), n:list(5)
  return function(x, a, b, c, d)
    local starts, ends, axes, steps = starts_of(a), ends_of(b), axes_of(c), steps_of(d)
    local y = x
    for i = 1, #starts do
      local axis = axes and axes[i] or i - 1
      if axis < 0 then axis = axis + x.ndim end
      y = slice(y, axis + 1, tonumber(starts[i]), tonumber(ends[i]), steps and tonumber(steps[i]) or 1)
    end
    return y
  end
end

-- ---- padding

function shape.Pad(n)
  local name = n.version < 2 and "paddings" or "pads"
  local pads_of, axes_of, mode, value = n:list_or(name, 2, 11), n:list(4), n.a.mode or "constant", n.a.value or 0
  return function(x, given, fill, some)
    local pads, axes = pads_of(given), axes_of(some)
    local before, after, count = {}, {}, #pads / 2
    for d = 1, x.ndim do before[d], after[d] = 0, 0 end
    for i = 1, count do
      local axis = axes and axes[i] or i - 1
      if axis < 0 then axis = axis + x.ndim end
      before[axis + 1], after[axis + 1] = pads[i], pads[i + count]
    end
    return padded(x, before, after, mode, fill and fill:item() or value)
  end
end

function shape.CenterCropPad(n)
  local sizes_of, axes = n:list(2), n.a.axes
  return function(x, given)
    local sizes, before, after = sizes_of(given), {}, {}
    for d = 1, x.ndim do before[d], after[d] = 0, 0 end
    for i = 1, #sizes do
      local d = dim_of(axes and axes[i] or i - 1)
      if d < 0 then d = x.ndim + d + 1 end
      local change = sizes[i] - x.shape[d]
      before[d] = change > 0 and math.floor(change / 2) or -math.floor(-change / 2)
      after[d] = change - before[d]
    end
    return padded(x, before, after, "constant")
  end
end

-- ---- blocks of pixels

function shape.DepthToSpace(n)
  local b, crd = n.a.blocksize, n.a.mode == "CRD"
  return function(x)
    local N, C, H, W = unpack(x.shape)
    C = C / (b * b)
    local y = crd and ops.permute(x:reshape(N, C, b, b, H, W), {1, 2, 5, 3, 6, 4})
      or ops.permute(x:reshape(N, b, b, C, H, W), {1, 4, 5, 2, 6, 3})
    return y:reshape(N, C, H * b, W * b)
  end
end

function shape.SpaceToDepth(n)
  local b, crd = n.a.blocksize, n.a.mode == "CRD"
  return function(x)
    local N, C, H, W = unpack(x.shape)
    H, W = H / b, W / b
    local y = ops.permute(x:reshape(N, C, H, b, W, b), crd and {1, 2, 4, 6, 3, 5} or {1, 4, 6, 2, 3, 5})
    return y:reshape(N, C * b * b, H, W)
  end
end

function shape.Trilu(n)
  local f = n.a.upper == 0 and ops.tril or ops.triu
  return function(x, k)
    k = k and tonumber(k:item()) or 0
    if x:numel() == 0 then return x end
    if x.dtype ~= "bool" then return f(x, k) end
    return to(f(to(x, "uint8"), k), "bool")
  end
end

function shape.ReverseSequence(n)
  local batch, time = (n.a.batch_axis or 1) + 1, (n.a.time_axis or 0) + 1
  return function(x, lengths)
    local rows = {}
    for b, length in ipairs(lengths:totable()) do
      local row = ops.narrow(x, batch, b, 1)
      rows[b] = ops.cat({ops.flip(ops.narrow(row, time, 1, length), {time}),
        ops.narrow(row, time, length + 1, x.shape[time] - length)}, time)
    end
    return ops.cat(rows, batch)
  end
end

return shape

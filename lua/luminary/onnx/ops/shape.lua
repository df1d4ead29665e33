--- ONNX's ops on shapes: views, parts, joins and padding.
local core = require "luminary.core"
local helpers = require "luminary.onnx.ops.sizes"
local dim_in, dims_of, product, integers = helpers.dim_in, helpers.dims_of, helpers.product, helpers.integers
local padded, parts_of, refuse = helpers.padded, helpers.parts_of, helpers.refuse
local ops, to = core.ops, core.methods.to
local op = {}

op.Identity = {how = "holds", function(_, x) return x end}
op.Size = function(x) return integers(x:numel(), x) end
op.Shape = {start = 0, function(n, x)
  local sizes, list = x.shape, {}
  local from, past = n.start, n["end"] or #sizes
  from, past = from < 0 and from + #sizes or from, past < 0 and past + #sizes or past
  for d = math.max(from, 0) + 1, math.min(past, #sizes) do list[#list + 1] = sizes[d] end
  return integers(list, x)
end}
op.Reshape = {function(n, x, given)
  local wanted, sizes, hole, known = n.shape or n:ints(2, given), {}, nil, 1
  for i = 1, #wanted do
    local size = wanted[i] == 0 and n.allowzero ~= 1 and i <= x.ndim and x.shape[i] or wanted[i]
    if size < -1 or size == -1 and hole then
      refuse("one size may be -1, and the others at least 0, got [%s]", table.concat(wanted, ", "))
    end
    if size == -1 then hole = i else known = known * size end
    sizes[i] = size
  end
  if hole and known == 0 then sizes[hole] = 0 end
  return ops.reshape(x, sizes)
end}
op.Flatten = {axis = 1, function(n, x)
  local at = n.axis == x.ndim and x.ndim or dim_in(x, n.axis) - 1
  return ops.reshape(x, {product(x.shape, 1, at), product(x.shape, at + 1)})
end}
op.Squeeze = {function(n, x, given)
  local axes = n.axes or n:ints(2, given)
  local dims = axes and dims_of(x.ndim, axes)
  for _, d in ipairs(dims or {}) do
    if x.shape[d] ~= 1 then refuse("axis %d is of size %d, and cannot be removed", d - 1, x.shape[d]) end
  end
  return dims and ops.squeeze(x, dims) or ops.squeeze(x)
end}
op.Unsqueeze = {function(n, x, given)
  local axes, new, sizes, at = n.axes or n:ints(2, given), {}, {}, 1
  local ndim = x.ndim + #axes
  for _, d in ipairs(dims_of(ndim, axes)) do new[d] = true end
  for d = 1, ndim do
    if new[d] then sizes[d] = 1 else sizes[d], at = x.shape[at], at + 1 end
  end
  return ops.reshape(x, sizes)
end}
op.Transpose = {function(n, x)
  if n.perm and #n.perm ~= x.ndim then
    refuse("perm must have %d entries, one for each dim, got %d", x.ndim, #n.perm)
  end
  local dims = n.perm and dims_of(x.ndim, n.perm) or {}
  for d = 1, n.perm and 0 or x.ndim do dims[d] = x.ndim + 1 - d end
  return x.ndim < 2 and x or ops.permute(x, dims)
end}
op.Expand = {function(n, x, given)
  local wanted, sizes = n:ints(2, given), {}
  local ndim = math.max(x.ndim, #wanted)
  for d = 1, ndim do
    local i, k = d - ndim + x.ndim, d - ndim + #wanted
    local a, b = i > 0 and x.shape[i] or 1, k > 0 and wanted[k] or 1
    if b < 0 then refuse("the sizes must be at least 0, got [%s]", table.concat(wanted, ", ")) end
    sizes[d] = b == 1 and a or b
  end
  return ops.expand(x, sizes)
end}
op.Tile = {function(n, x, counts, axis)
  local list = n:ints(2, counts)
  if n.version < 6 then list = helpers.filled(x.ndim, 1, dim_in(x, n:number(3, axis)), list[1]) end
  if #list ~= x.ndim then refuse("expected %d repeats, one for each dim, got %d", x.ndim, #list) end
  return x.ndim == 0 and x or x:repeat_tensor(list)
end}
op.Concat = {axis = 1, how = "list", function(n, list, count)
  local d = dim_in(list[1], n.axis)
  return count == 1 and list[1] or ops.cat(list, d)
end}
op.Split = {axis = 0, how = "results", prepare = function(n)
  local count = n.num_outputs or n.split and #n.split or n.results
  if count ~= n.results then n:fail("%d outputs are declared, it makes %d", n.results, count) end
end, function(n, x, given)
  local dim, sizes, count = dim_in(x, n.axis), n.split or n:ints(2, given), n.results
  if sizes and #sizes ~= count then refuse("expected %d sizes of parts, got %d", count, #sizes) end
  if sizes then return parts_of(x, dim, sizes) end
  local size = x.shape[dim]
  if size % count ~= 0 and not n.num_outputs then
    refuse("axis %d of size %d cannot be split into %d equal parts", dim - 1, size, count)
  end
  local each = math.ceil(size / count)
  sizes = {}
  for i = 1, count do sizes[i] = math.max(math.min(each, size - each * (i - 1)), 0) end
  return parts_of(x, dim, sizes)
end}

-- Returns x from index `from` to before `past` in steps, as Python's slices have them: from 0, negative from the end.
local function slice(x, dim, from, past, step)
  local size = x.shape[dim]
  local least, most = step < 0 and -1 or 0, step < 0 and size - 1 or size
  if from < 0 then from = from + size end
  if past < 0 then past = past + size end
  from, past = math.max(math.min(from, most), 0), math.max(math.min(past, most), least)
  local count = size == 0 and 0 or math.max(math.ceil((past - from) / step), 0)
  if count == size and step == 1 then return x end
  if count == 0 then return ops.narrow(x, dim, 1, 0) end
  if step < 0 then x, from, step = ops.flip(x, {dim}), size - 1 - from, -step end
  if count == 1 then step = 1 end
  return ops.slice(x, dim, from + 1, from + 1 + (count - 1) * step, step)
end
op.Slice = {function(n, x, a, b, c, d)
  local starts, ends = n.starts or n:ints(2, a), n.ends or n:ints(3, b)
  local axes, steps = n.axes or n:ints(4, c), n:ints(5, d) or {}
  local dims = axes and dims_of(x.ndim, axes) or dims_of(math.min(#starts, x.ndim))
  if #starts ~= #dims or #ends ~= #dims or #steps > 0 and #steps ~= #dims then
    refuse("starts, ends and steps must have %d entries each, got %d, %d and %d", #dims, #starts, #ends, #steps)
  end
  for i, dim in ipairs(dims) do
    if steps[i] == 0 then refuse "a step must not be 0" end
    x = slice(x, dim, starts[i], ends[i], steps[i] or 1)
  end
  return x
end}
op.Pad = {mode = "constant", function(n, x, given, fill, some)
  local pads, before, after = n.pads or n.paddings or n:ints(2, given), {}, {}
  for i, d in ipairs(dims_of(x.ndim, n:ints(4, some), #pads / 2, "pairs of pads")) do
    before[d], after[d] = pads[i], pads[i + #pads / 2]
  end
  return padded(x, before, after, n.mode, n.value or fill and fill:item())
end}
op.CenterCropPad = {function(n, x, given)
  local before, after = {}, {}
  local sizes = n:ints(2, given)
  for i, d in ipairs(dims_of(x.ndim, n.axes, #sizes, "sizes")) do
    local change = math.max(sizes[i], 0) - x.shape[d]
    before[d] = change > 0 and math.floor(change / 2) or -math.floor(-change / 2)
    after[d] = change - before[d]
  end
  return padded(x, before, after)
end}
op.DepthToSpace = {function(n, x)
  local b, N, C, H, W = n.blocksize, unpack(x.shape)
  local y = n.mode == "CRD" and ops.permute(x:reshape(N, C / b ^ 2, b, b, H, W), {1, 2, 5, 3, 6, 4})
    or ops.permute(x:reshape(N, b, b, C / b ^ 2, H, W), {1, 4, 5, 2, 6, 3})
  return y:reshape(N, C / b ^ 2, H * b, W * b)
end}
op.SpaceToDepth = {function(n, x)
  local b, N, C, H, W = n.blocksize, unpack(x.shape)
  local y = x:reshape(N, C, H / b, b, W / b, b)
  y = ops.permute(y, n.mode == "CRD" and {1, 2, 4, 6, 3, 5} or {1, 4, 6, 2, 3, 5})
  return y:reshape(N, C * b * b, H / b, W / b)
end}
op.Trilu = {function(n, x, k)
  if x:numel() == 0 then return x end
  local f = n.upper == 0 and ops.tril or ops.triu
  return to(f(x.dtype == "bool" and to(x, "uint8") or x, k and n:number(2, k) or 0), x.dtype)
end}
op.ReverseSequence = {batch_axis = 1, time_axis = 0, function(n, x, lengths)
  local time, batch = dim_in(x, n.time_axis), dim_in(x, n.batch_axis)
  helpers.check_shape("sequence_lens", lengths, {x.shape[batch]})
  return helpers.reversed(x, helpers.reversal(lengths:to(x.device), x.shape[time], x.ndim, time, batch), time)
end}

return op

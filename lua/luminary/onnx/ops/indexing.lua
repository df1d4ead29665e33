--- ONNX's ops with indices, which count from 0 in its tensors, and those that select and sort.
local core = require "luminary.core"
local helpers = require "luminary.onnx.ops.sizes"
local ops, is_float, to = core.ops, core.is_floating_point, core.methods.to
local dim_in, product, integers = helpers.dim_in, helpers.product, helpers.integers
local op = {}

-- Returns indices from 0, negative ones from the end, as indices from 1.
local function from_1(indices, size) return ops.where(ops.lt(indices, 0), indices + (size + 1), indices + 1) end

op.Gather = {axis = 0, function(n, x, indices)
  local d, one = dim_in(x, n.axis), n:scalar(2)
  if one then return ops.select(x, d, one >= 0 and one + 1 or one) end
  local from = from_1(indices, x.shape[d])
  if d == 1 and x.ndim == 2 and is_float(x) and indices.ndim > 0 then return ops.embedding(from, x) end
  local y = ops.index_select(x, d, from:reshape(-1))
  if indices.ndim == 1 then return y end
  return y:reshape(helpers.joined({unpack(x.shape, 1, d - 1)}, indices.shape, {unpack(x.shape, d + 1)}))
end}
op.GatherElements = {axis = 0, function(n, x, indices)
  local d = dim_in(x, n.axis)
  return ops.gather(x, d, from_1(indices, x.shape[d]))
end}

-- Returns x as [all of the first `batch` and of the next `depth` dims, rest], and the row, from 1, of each index in
-- indices [..., depth].
local function rows_of(x, indices, batch)
  local depth, sizes, row = indices.shape[indices.ndim], x.shape, nil
  local B, K, R = product(sizes, 1, batch), product(sizes, batch + 1, batch + depth), product(sizes, batch + depth + 1)
  local flat = indices:reshape(B, -1, depth)
  for k = 1, depth do
    local size = sizes[batch + k]
    local at = from_1(ops.select(flat, 3, k), size) - 1
    if at:numel() > 0 and (at:max():item() >= size or at:min():item() < 0) then
      error(("an index is out of range for %d entries of axis %d"):format(size, batch + k - 1), 0)
    end
    row = row and row * size + at or at
  end
  row = row or ops.zeros({B, flat.shape[2]}, {dtype = "int64"})
  if B > 1 then row = row + (ops.arange(B, {dtype = "int64", device = x.device}) * K):reshape(B, 1) end
  return x:reshape(B * K, R), row:reshape(-1) + 1
end
op.GatherND = {batch_dims = 0, function(n, x, indices)
  local rows, at = rows_of(x, indices, n.batch_dims)
  local sizes, last = {unpack(indices.shape, 1, indices.ndim - 1)}, n.batch_dims + indices.shape[indices.ndim]
  return ops.index_select(rows, 1, at):reshape(helpers.joined(sizes, {unpack(x.shape, last + 1)}))
end}

local reductions = {add = "sum", mul = "prod", max = "amax", min = "amin"}
local function scatter(x, dim, at, updates, reduction)
  if not reductions[reduction] then return ops.scatter(x, dim, at, updates) end
  return ops.scatter_reduce(x, dim, at, updates, reductions[reduction])
end
op.ScatterElements = {axis = 0, function(n, x, indices, updates)
  helpers.check_shape("updates", updates, indices.shape)
  local d = dim_in(x, n.axis)
  return scatter(x, d, from_1(indices, x.shape[d]), updates, n.reduction)
end}
op.Scatter = op.ScatterElements
op.ScatterND = {function(n, x, indices, updates)
  if indices:numel() == 0 then return x end
  local rows, at = rows_of(x, indices, 0)
  local sizes = {at.shape[1], rows.shape[2]}
  at = ops.expand(at:reshape(-1, 1), sizes)
  return scatter(rows, 1, at, updates:reshape(sizes), n.reduction):reshape(x.shape)
end}
op.TensorScatter = {axis = -2, function(n, cache, update, indices)
  local d, first, rows = dim_in(cache, n.axis), n:ints(3, indices) or {}, {}
  local size, length = cache.shape[d], update.shape[d]
  for b = 1, cache.shape[1] do
    local at = ops.arange(length, {dtype = "int64"}) + (first[b] or 0)
    at = at:reshape(helpers.filled(cache.ndim, 1, d, length))
    if n.mode == "circular" then at = ops.remainder(at, size) end
    local row = ops.narrow(update, 1, b, 1)
    rows[b] = ops.scatter(ops.narrow(cache, 1, b, 1), d, ops.expand(at + 1, row.shape), row)
  end
  return ops.cat(rows, 1)
end}
op.OneHot = {axis = -1, function(n, indices, depth, values)
  local count, at = n:number(2, depth:reshape(-1)), to(indices, "int64")
  local d = n.axis < 0 and indices.ndim + n.axis + 2 or n.axis + 1
  local classes = ops.arange(count, {dtype = "int64", device = indices.device})
  at = ops.unsqueeze(ops.where(ops.lt(at, 0), at + count, at), d)
  return ops.where(ops.eq(at, classes:reshape(helpers.filled(indices.ndim + 1, 1, d, count))), values:select(1, 2),
    values:select(1, 1))
end}
op.NonZero = function(x)
  if x.ndim == 0 then return ops.zeros({0, tonumber(x:ne(0):sum():item())}, {dtype = "int64"}) end
  return ops.t(ops.nonzero(x) - 1)
end
op.Compress = {function(n, x, condition)
  local y, d = n.axis and x or x:reshape(-1), n.axis and dim_in(x, n.axis) or 1
  local chosen = ops.nonzero(ops.narrow(condition, 1, 1, math.min(condition.shape[1], y.shape[d])))
  return ops.index_select(y, d, chosen:reshape(-1))
end}
op.TopK = {axis = -1, function(n, x, k)
  local y, at = ops.topk(x, n.k or n:number(2, k:reshape(-1)), dim_in(x, n.axis), n.largest ~= 0, true)
  return y, at - 1
end}

-- Returns whether row p, a list, comes before row q; NaN comes last.
local function precedes(p, q)
  for k = 1, #p do
    local u, v = p[k], q[k]
    if type(u) == "boolean" then u, v = u and 1 or 0, v and 1 or 0 end
    if u ~= v then return u < v or v ~= v and u == u end
  end
  return false
end
op.Unique = {function(n, x)
  local d = n.axis and dim_in(x, n.axis)
  local rows = d and ops.transpose(x, 1, d) or x:reshape(-1, 1)
  local lists, texts, first, count, order = rows:reshape(rows.shape[1], -1):totable(), {}, {}, {}, {}
  for i, row in ipairs(lists) do
    local parts = {}
    for k, v in ipairs(row) do parts[k] = type(v) == "number" and ("%.17g"):format(v) or tostring(v) end
    local text = table.concat(parts, " ")
    if not first[text] then first[text], order[#order + 1] = i, text end
    texts[i], count[text] = text, (count[text] or 0) + 1
  end
  if n.sorted ~= 0 then table.sort(order, function(a, b) return precedes(lists[first[a]], lists[first[b]]) end) end
  local firsts, counts, position, inverse = {}, {}, {}, {}
  for i, text in ipairs(order) do firsts[i], counts[i], position[text] = first[text], count[text], i - 1 end
  for i, text in ipairs(texts) do inverse[i] = position[text] end
  local at = integers(firsts, x)
  return ops.index_select(d and x or x:reshape(-1), d or 1, at), at - 1, integers(inverse, x), integers(counts, x)
end}
op.NonMaxSuppression = {function(n, boxes, scores, most, iou, least)
  local found = {}
  most, iou = n:number(3, most) or 0, iou and iou:item() or 0
  for b = 1, boxes.shape[1] do
    local p, q = unpack(helpers.parts_of(ops.select(boxes, 1, b), 2, {2, 2}))
    if n.center_point_box == 1 then p, q = p - q / 2, p + q / 2 end
    local corners = ops.cat({ops.minimum(p, q), ops.maximum(p, q)}, 2)
    for c = 1, scores.shape[2] do
      local values, order = ops.sort(ops.select(ops.select(scores, 1, b), 1, c), 1, true, {stable = true})
      local keep = ops.nms_sorted(ops.index_select(corners, 1, order), iou)
      if least then keep = ops.logical_and(keep, ops.gt(values, least:reshape(-1):select(1, 1))) end
      local kept = order:masked_select(keep)
      kept = kept:narrow(1, 1, math.min(most, kept.shape[1])) - 1
      found[#found + 1] = ops.stack({ops.full_like(kept, b - 1), ops.full_like(kept, c - 1), kept}, 2)
    end
  end
  return #found > 0 and ops.cat(found, 1) or ops.zeros({0, 3}, {dtype = "int64"})
end}

return op

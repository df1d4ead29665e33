--- ONNX's ops with indices, which count from 0 in its tensors, and those that select and sort.
local core = require "luminary.core"
local helpers = require "luminary.onnx.ops.sizes"

local ops, is_float, to = core.ops, core.is_floating_point, core.methods.to
local dim_of, dim_in, product = helpers.dim_of, helpers.dim_in, helpers.product
local indexing = {}

-- Returns indices from 0, negative ones from the end, as indices from 1. `known`: whether none is negative.
local function from_1(indices, size, known)
  if known then return indices + 1 end
  return ops.where(ops.lt(indices, 0), indices + (size + 1), indices + 1)
end

-- Returns whether input k is known and has no negative index.
local function is_natural(n, k)
  local known = n:const(k)
  return known ~= nil and (known:numel() == 0 or tonumber(known:min():item()) >= 0)
end

function indexing.Gather(n)
  local dim, natural, known = dim_of(n.a.axis or 0), is_natural(n, 2), n:const(2)
  local one = known and known.ndim == 0 and tonumber(known:item())
  return function(x, indices)
    if one then return ops.select(x, dim, one >= 0 and one + 1 or one) end
    local d = dim > 0 and dim or x.ndim + dim + 1
    local from = from_1(indices, x.shape[d], natural)
    if d == 1 and x.ndim == 2 and is_float(x) and indices.ndim > 0 then return ops.embedding(from, x) end
    local y = ops.index_select(x, d, from:reshape(-1))
    if indices.ndim == 1 then return y end
    local sizes = {unpack(x.shape, 1, d - 1)}
    for _, size in ipairs(indices.shape) do sizes[#sizes + 1] = size end
    for k = d + 1, x.ndim do sizes[#sizes + 1] = x.shape[k] end
    return y:reshape(sizes)
  end
end

function indexing.GatherElements(n)
  local dim, natural = dim_of(n.a.axis or 0), is_natural(n, 2)
  return function(x, indices) return ops.gather(x, dim, from_1(indices, x.shape[dim], natural)) end
end

-- Returns x as [all of the first `batch` and of the next `depth` dims, rest], and the row, from 1, of each index in
-- indices [..., depth].
local function rows_of(x, indices, batch)
  local depth, sizes = indices.shape[indices.ndim], x.shape
  local K, R = product(sizes, batch + 1, batch + depth), product(sizes, batch + depth + 1, x.ndim)
  local B = product(sizes, 1, batch)
  local flat = indices:reshape(B, -1, depth)
  local row = nil
  for k = 1, depth do
    local size = sizes[batch + k]
    local at = from_1(ops.select(flat, 3, k), size) - 1
    if at:numel() > 0 and (tonumber(at:max():item()) >= size or tonumber(at:min():item()) < 0) then
      error(("an index is out of range for %d entries of axis %d"):format(size, batch + k - 1), 0)
    end
    row = row and row * size + at or at
  end
  row = row or ops.zeros({B, flat.shape[2]}, {dtype = "int64"})
  if B > 1 then row = row + (ops.arange(B, {dtype = "int64", device = x.device}) * K):reshape(B, 1) end
  return x:reshape(B * K, R), row:reshape(-1) + 1
end

function indexing.GatherND(n)
  local batch = n.a.batch_dims or 0
  return function(x, indices)
    local rows, at = rows_of(x, indices, batch)
    local sizes = {unpack(indices.shape, 1, indices.ndim - 1)}
    for d = batch + indices.shape[indices.ndim] + 1, x.ndim do sizes[#sizes + 1] = x.shape[d] end
    return ops.index_select(rows, 1, at):reshape(sizes)
  end
end

local reductions = {add = "sum", mul = "prod", max = "amax", min = "amin"}

local function scatter(x, dim, at, updates, reduction)
  if not reductions[reduction] then return ops.scatter(x, dim, at, updates) end
  return ops.scatter_reduce(x, dim, at, updates, reductions[reduction])
end

function indexing.ScatterElements(n)
  local dim, natural, reduction = dim_of(n.a.axis or 0), is_natural(n, 2), n.a.reduction
  return function(x, indices, updates)
    return scatter(x, dim, from_1(indices, x.shape[dim], natural), updates, reduction)
  end
end
indexing.Scatter = indexing.ScatterElements

function indexing.ScatterND(n)
  local reduction = n.a.reduction
  return function(x, indices, updates)
    if indices:numel() == 0 then return x end
    local rows, at = rows_of(x, indices, 0)
    local count, R = at.shape[1], rows.shape[2]
    return scatter(rows, 1, ops.expand(at:reshape(count, 1), {count, R}), updates:reshape(count, R), reduction)
      :reshape(x.shape)
  end
end

function indexing.TensorScatter(n)
  local axis, circular = n.a.axis or -2, n.a.mode == "circular"
  return function(cache, update, indices)
    local d = dim_in(cache, axis)
    local size, length, rows = cache.shape[d], update.shape[d], {}
    local first = indices and indices:totable() or {}
    for b = 1, cache.shape[1] do
      local at = {}
      for i = 1, length do
        at[i] = (first[b] or 0) + i - 1
        at[i] = (circular and at[i] % size or at[i]) + 1
      end
      local row = ops.narrow(cache, 1, b, 1)
      local order = helpers.integers(at, cache)
      local sizes = {}
      for k = 1, cache.ndim do sizes[k] = k == d and length or 1 end
      rows[b] = ops.scatter(row, d, ops.expand(order:reshape(sizes), ops.narrow(update, 1, b, 1).shape),
        ops.narrow(update, 1, b, 1))
    end
    return ops.cat(rows, 1)
  end
end

function indexing.Where() return ops.where end

function indexing.OneHot(n)
  local axis = n.a.axis or -1
  return function(indices, depth, values)
    local count = tonumber(depth:reshape(-1):select(1, 1):item())
    local d = axis < 0 and indices.ndim + axis + 2 or axis + 1
    local sizes = {}
    for k = 1, indices.ndim + 1 do sizes[k] = k == d and count or 1 end
    local classes = ops.arange(count, {dtype = "int64", device = indices.device}):reshape(sizes)
    local at = to(indices, "int64")
    at = ops.where(ops.lt(at, 0), at + count, at)
    return ops.where(ops.eq(ops.unsqueeze(at, d), classes), values:select(1, 2), values:select(1, 1))
  end
end

function indexing.NonZero()
  return function(x)
    if x.ndim == 0 then return ops.zeros({0, tonumber(x:ne(0):sum():item())}, {dtype = "int64"}) end
    return ops.t(ops.nonzero(x) - 1)
  end
end

function indexing.Compress(n)
  local axis = n.a.axis
  return function(x, condition)
    local y = axis and x or x:reshape(-1)
    local d = axis and dim_in(x, axis) or 1
    return ops.index_select(y, d, ops.nonzero(ops.narrow(condition, 1, 1, math.min(condition.shape[1], y.shape[d])))
      :reshape(-1))
  end
end

function indexing.TopK(n)
  local dim, largest, count = dim_of(n.a.axis or -1), n.a.largest ~= 0, n.a.k
  return function(x, k)
    local y, at = ops.topk(x, count or tonumber(k:reshape(-1):select(1, 1):item()), dim, largest, true)
    return y, at - 1
  end
end

-- Returns the rows of x [rows, n] as texts that compare equal if the rows do, and as lists.
local function texts_of(x)
  local texts, lists = {}, x:totable()
  for i, row in ipairs(lists) do
    local parts = {}
    for k, v in ipairs(row) do parts[k] = type(v) == "number" and ("%.17g"):format(v) or tostring(v) end
    texts[i] = table.concat(parts, " ")
  end
  return texts, lists
end

local function number(v) return type(v) == "boolean" and (v and 1 or 0) or v end

function indexing.Unique(n)
  local axis, sorted = n.a.axis, n.a.sorted ~= 0
  return function(x)
    local d = axis and dim_in(x, axis)
    local rows = d and ops.transpose(x, 1, d) or x:reshape(-1, 1)
    local texts, lists = texts_of(rows:reshape(rows.shape[1], -1))
    local first, count, order = {}, {}, {}
    for i, text in ipairs(texts) do
      if not first[text] then
        first[text], count[text] = i, 0
        order[#order + 1] = text
      end
      count[text] = count[text] + 1
    end
    if sorted then
      table.sort(order, function(a, b)
        local p, q = lists[first[a]], lists[first[b]]
        for k = 1, #p do
          local u, v = number(p[k]), number(q[k])
          if u ~= v then return u < v or v ~= v and u == u end -- NaN comes last
        end
        return false
      end)
    end
    local firsts, counts, position, inverse = {}, {}, {}, {}
    for i, text in ipairs(order) do firsts[i], counts[i], position[text] = first[text], count[text], i - 1 end
    for i, text in ipairs(texts) do inverse[i] = position[text] end
    local at = helpers.integers(firsts, x)
    return ops.index_select(d and x or x:reshape(-1), d or 1, at), at - 1, helpers.integers(inverse, x),
      helpers.integers(counts, x)
  end
end

function indexing.NonMaxSuppression(n)
  local center = n.a.center_point_box == 1
  return function(boxes, scores, most, iou, least)
    most, iou = most and tonumber(most:item()) or 0, iou and iou:item() or 0
    local found = {}
    for b = 1, boxes.shape[1] do
      local box = ops.select(boxes, 1, b)
      local p, q = ops.narrow(box, 2, 1, 2), ops.narrow(box, 2, 3, 2)
      if center then
        p, q = p - q / 2, p + q / 2
      else
        p, q = ops.minimum(p, q), ops.maximum(p, q)
      end
      local corners = ops.cat({p, q}, 2)
      for c = 1, scores.shape[2] do
        local values, order = ops.sort(ops.select(ops.select(scores, 1, b), 1, c), 1, true, {stable = true})
        local keep = ops.nms_sorted(ops.index_select(corners, 1, order), iou)
        if least then keep = ops.logical_and(keep, ops.gt(values, least:reshape(-1):select(1, 1))) end
        local left = most
        for i, kept in ipairs(keep:totable()) do
          if kept and left > 0 then
            found[#found + 1] = {b - 1, c - 1, tonumber(ops.select(order, 1, i):item()) - 1}
            left = left - 1
          end
        end
      end
    end
    return #found > 0 and core.tensor(found, {dtype = "int64"}) or ops.zeros({0, 3}, {dtype = "int64"})
  end
end

return indexing

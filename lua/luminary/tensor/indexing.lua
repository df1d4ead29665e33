--- Reads and writes tensors by indices and masks, by other ops. Dims and indices count from 1.
local core = require "luminary.core"
local options = require "luminary.base.options"
local signature = require "luminary.base.signature"
local shapes = require "luminary.tensor.shapes"

local ops, arg, describe, fail = core.ops, options.arg, options.describe, options.fail
local indexing = {}

local function with_dim(x) return x.ndim == 0 and ops.unsqueeze(x, 1) or x end

-- Returns a 1-d index along dim as the list that index_put takes.
local function entries(who, x, dim, index)
  if index.ndim > 1 then options.must_be(who, "index", "1-d", index) end
  local list = {}
  for d = 1, shapes.dim_of(who, x, dim) - 1 do list[d] = false end
  list[#list + 1] = with_dim(index)
  return list
end

local function check_dtype(who, source, x)
  if source.dtype == x.dtype then return end
  fail("%s: source is %s, x is %s; convert source with :to(\"%s\")", who, source.dtype, x.dtype, x.dtype)
end

local function check_source(who, x, dim, index, source)
  local wanted = with_dim(x).shape
  wanted[shapes.dim_of(who, x, dim)] = index:numel()
  if with_dim(source).shape ~= wanted then
    fail("%s: source is %s; expected the shape of x, %s, with size %d in dim %d", who, describe(source), describe(x),
      index:numel(), shapes.dim_of(who, x, dim))
  end
  check_dtype(who, source, x)
  return with_dim(source)
end

-- ---- entries of a dim

-- Defines a function and its in-place form by f(who, put, x, …), which writes with put, ops.index_put or index_put_.
local function define(name, rows, f)
  local in_place = name .. "_"
  indexing[name] = signature.of(("%s(%s)"):format(name, rows), function(x, ...)
    return ops.reshape(f(name, ops.index_put, x, ...), x.shape)
  end)
  indexing[in_place] = signature.of(("%s(%s)"):format(in_place, rows), function(x, ...)
    f(in_place, ops.index_put_, x, ...)
    return x
  end)
end

--- lm.index_copy(…): Returns a copy of x with the slices of source at the indices of dim.
--- x:index_copy_(…): Writes the slices of source at the indices of dim, and returns x.

define("index_copy", "x: tensor, dim: dim, index: tensor, source: tensor", function(who, put, x, dim, index, source)
  source = check_source(who, x, dim, index, source)
  return (put(with_dim(x), entries(who, x, dim, index), source))
end)

options.kind("single", "number, boolean or 0-d tensor", function(who, name, v)
  if type(v) == "boolean" then return v and 1 or 0 end
  if type(v) == "number" or core.is_tensor(v) and v.ndim == 0 then return v end
  options.must_be(who, name, "a number, a boolean or a 0-d tensor", v)
end)

--- lm.index_fill(…): Returns a copy of x with value in the slices at the indices of dim.
--- x:index_fill_(…): Writes value in the slices at the indices of dim, and returns x.

define("index_fill", "x: tensor, dim: dim, index: tensor, value: single", function(who, put, x, dim, index, value)
  local wide = with_dim(x)
  local list = entries(who, x, dim, index)
  if type(value) == "number" or not value.requires_grad then return put(wide, list, value) end
  local mask = ops.zeros(wide.shape[#list], {dtype = "bool", device = x.device})
  ops.index_put_(mask, {list[#list]}, 1) -- an index that occurs twice counts once in value's gradient
  mask = shapes.along_dim(mask, #list, wide.ndim)
  return (put == ops.index_put and ops.masked_fill or ops.masked_fill_)(wide, mask, value)
end)

local reduce_rows = [[x: tensor, dim: dim, index: tensor, source: tensor, reduce: "prod" | "mean" | "amax" | "amin",
  include_self = true]]
local function index_reduce(who, x, dim, index, source, reduce, include_self)
  if index.ndim > 1 then options.must_be(who, "index", "1-d", index) end
  source = check_source(who, x, dim, index, source)
  local indices = ops.expand(shapes.along_dim(index, shapes.dim_of(who, x, dim), source.ndim), source.shape)
  local y = ops.scatter_reduce(with_dim(x), dim, indices, source, reduce, {include_self = include_self})
  return ops.reshape(y, x.shape)
end

--- Returns a copy of x whose slices at the indices of dim are reduced with those of source.
indexing.index_reduce = signature.of("index_reduce(" .. reduce_rows .. ")", function(...)
  return index_reduce("index_reduce", ...)
end)

--- Computes index_reduce in place, and returns x.
indexing.index_reduce_ = signature.of("index_reduce_(" .. reduce_rows .. ")", function(x, ...)
  return ops.copy_(x, index_reduce("index_reduce_", x, ...))
end)

--- x:scatter_reduce_(dim, index, src, reduce [, {include_self = true}]): Computes scatter_reduce in place, and returns
--- x.
function indexing.scatter_reduce_(x, ...)
  return ops.copy_(arg("scatter_reduce_", "x", x, "tensor"), ops.scatter_reduce(x, ...))
end

-- ---- elements in the order of memory

--- Returns the elements of the flattened x at the given indices.
indexing.take = signature.of("take(x: tensor, index: tensor)", function(x, index)
  return ops.index_get(ops.flatten(x), {index})
end)

local put_rows = "x: tensor, index: tensor, source: tensor, accumulate = false"
local function put_values(who, into, x, index, source, accumulate)
  if source:numel() ~= index:numel() then
    fail("%s: source and index must have the same number of elements, got %s and %s", who, describe(source),
      describe(index))
  end
  check_dtype(who, source, x)
  return into(ops.flatten(x), {ops.flatten(index)}, ops.flatten(source), {accumulate = accumulate})
end

--- Returns a copy of x with the elements of source at indices of the flattened x.
indexing.put = signature.of("put(" .. put_rows .. ")", function(x, ...)
  return ops.reshape(put_values("put", ops.index_put, x, ...), x.shape)
end)

--- Computes put in place, and returns x.
indexing.put_ = signature.of("put_(" .. put_rows .. ")", function(x, ...)
  if x:is_contiguous() then
    put_values("put_", ops.index_put_, x, ...) -- x is contiguous, so flatten is a view
    return x
  end
  return ops.copy_(x, ops.reshape(put_values("put_", ops.index_put, x, ...), x.shape))
end)

--- Returns the elements of x at indices along dim, where the other dims broadcast.
indexing.take_along_dim = signature.of([[take_along_dim(x: tensor, indices: tensor,
  dim: dim?)]], function(x, indices, dim)
  local who = "take_along_dim"
  if dim == nil then x, indices, dim = ops.flatten(x), ops.flatten(indices), 1 end
  if indices.ndim ~= x.ndim then
    fail("%s: indices and x must have the same number of dims, got %s and %s", who, describe(indices), describe(x))
  end
  if indices.dtype == "bool" or core.is_floating_point(indices) then
    options.wrong_dtype(who, "indices", "int64 or another integer dtype", indices, "convert it with :long()")
  end
  dim = shapes.dim_of(who, x, dim)
  local from, to = x.shape, indices.shape
  for d = 1, x.ndim do
    if d ~= dim then
      if from[d] ~= to[d] and from[d] ~= 1 and to[d] ~= 1 then
        fail("%s: shapes of indices and x must broadcast, got %s and %s (dim %d)", who, describe(indices), describe(x),
          d)
      end
      local n = from[d] == 1 and to[d] or from[d]
      from[d], to[d] = n, n
    end
  end
  indices = ops.where(ops.lt(indices, 0), indices + (x.shape[dim] + 1), indices)
  return (ops.gather(ops.expand(x, from), dim, ops.expand(indices, to)))
end)

-- ---- by masks

options.kind("mask", "tensor", function(who, name, mask)
  if arg(who, name, mask, "tensor").dtype == "bool" then return mask end
  options.wrong_dtype(who, "mask", "bool", mask, "compare, or convert it with :bool()")
end)

local function indices_of(mask) return ops.select(ops.nonzero(ops.flatten(mask)), 2, 1) end

--- Returns the elements of x for which mask is true, as a 1-d tensor.
indexing.masked_select = signature.of("masked_select(x: tensor, mask: mask)", function(x, mask)
  local both = shapes.broadcast("masked_select", {x, mask})
  return ops.masked_values(both[1], both[2])
end)

-- Returns the first n elements of source.
local function first_elements(who, x, source, n)
  check_dtype(who, source, x)
  if source:numel() < n then
    fail("%s: mask selects %d elements, but source, %s, has %d", who, n, describe(source), source:numel())
  end
  return ops.narrow(ops.flatten(source), 1, 1, n)
end

local scatter_rows = "x: tensor, mask: mask, source: tensor"

--- Returns a copy of x with elements of source where mask is true.
indexing.masked_scatter = signature.of("masked_scatter(" .. scatter_rows .. ")", function(x, mask, source)
  local who = "masked_scatter"
  local both = shapes.broadcast(who, {x, mask})
  local indices = indices_of(both[2])
  local y = ops.scatter(ops.flatten(both[1]), 1, indices, first_elements(who, x, source, indices:numel()))
  return ops.reshape(y, both[1].shape)
end)

--- Computes masked_scatter in place, and returns x.
indexing.masked_scatter_ = signature.of("masked_scatter_(" .. scatter_rows .. ")", function(x, mask, source)
  local who = "masked_scatter_"
  if not x:is_contiguous() then return ops.copy_(x, indexing.masked_scatter(x, ops.expand(mask, x.shape), source)) end
  local indices = indices_of(ops.expand(mask, x.shape))
  ops.scatter_(ops.flatten(x), 1, indices, first_elements(who, x, source, indices:numel())) -- then flatten is a view
  return x
end)

-- ---- copies with a part replaced

local function replaced(who, x, src, view_of)
  local y = ops.clone(x)
  local part = view_of(y)
  ops.copy_(part, shapes.check(who, "src", src, part.shape))
  return y
end

--- Returns a copy of x with src at an index of dim.
indexing.select_scatter = signature.of([[select_scatter(x: tensor, src: tensor, dim: dim,
  index: integer)]], function(x, src, dim, index)
  return replaced("select_scatter", x, src, function(y) return ops.select(y, dim, index) end)
end)

--- Returns a copy of x with src in a slice of dim.
indexing.slice_scatter = signature.of([[slice_scatter(x: tensor, src: tensor, dim: dim = 1, first: integer = 1,
  last: integer = -1, step: integer = 1)]], function(x, src, dim, first, last, step)
  return replaced("slice_scatter", x, src, function(y) return ops.slice(y, dim, first, last, step) end)
end)

--- Returns a copy of x with src on its diagonals.
indexing.diagonal_scatter = signature.of([[diagonal_scatter(x: tensor, src: tensor, offset: integer = 0,
  dim1: integer = 1, dim2: integer = 2)]], function(x, src, offset, dim1, dim2)
  return replaced("diagonal_scatter", x, src, function(y) return ops.diagonal(y, offset, dim1, dim2) end)
end)

--- Writes a number on the diagonal of x, in place, and returns x.
indexing.fill_diagonal_ = signature.of("fill_diagonal_(x: tensor, value: single)", function(x, value)
  local who = "fill_diagonal_"
  if x.ndim < 2 then options.must_be(who, "x", "a tensor of at least 2 dims", x) end
  local min_size, step = math.huge, 0
  for d = 1, x.ndim do
    if x.ndim > 2 and x.shape[d] ~= x.shape[1] then
      fail("%s: all sizes of x must be equal, got %s", who, describe(x))
    end
    min_size, step = math.min(min_size, x.shape[d]), step + x:stride(d)
  end
  ops.fill_(ops.as_strided(x, {min_size}, {step}), value)
  return x
end)

return options.exact_all(indexing)

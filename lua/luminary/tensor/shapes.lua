--- Functions of shapes and dims that many ops and layers share.
local core = require "luminary.core"
local lists = require "luminary.base.lists"
local options = require "luminary.base.options"

local ops, describe = core.ops, options.describe
local shapes = {}

--- Returns a dim as a number from 1; a negative one counts from the end. n is x's number of dims by default, at least
--- 1.
function shapes.dim_of(who, x, dim, n)
  n = n or math.max(x.ndim, 1)
  options.arg(who, "dim", dim, "integer")
  if dim == 0 or dim < -n or dim > n then
    local bound = n == 1 and "1 or -1" or ("from 1 to %d or from -%d to -1"):format(n, n)
    local pairs_last = n < x.ndim and ", whose last dim holds pairs" or ""
    options.must_be(who, "dim", bound, dim, "x is %s%s", describe(x), pairs_last)
  end
  return dim > 0 and dim or n + 1 + dim
end

--- Returns t, the argument `name` of `who`; fails unless it is a tensor with the sizes of a list `shape`, in which a
--- word, such as "N", is any size.
function shapes.check(who, name, t, shape)
  local fits = core.is_tensor(t) and t.ndim == #shape
  local sizes = fits and t.shape
  for d, size in ipairs(shape) do fits = fits and (sizes[d] == size or type(size) == "string") end
  if not fits then options.wrong_shape(who, name, t, shape) end
  return t
end

--- Returns x, an argument of `who`; fails unless it is float32 or float64 matrices [..., m, n], with `square` m = n;
--- any_dtype: true to accept other dtypes.
function shapes.check_matrix(who, name, x, square, any_dtype)
  options.arg(who, name, x, "tensor")
  if not any_dtype and x.dtype ~= "float32" and x.dtype ~= "float64" and not core.is_autocast_enabled() then
    options.wrong_dtype(who, name, "float32 or float64", x, "convert it with :float()")
  end
  if x.ndim < 2 or square and x.shape[x.ndim] ~= x.shape[x.ndim - 1] then
    options.must_be(who, name, square and "a square matrix or a batch of them" or "a matrix or a batch of them", x)
  end
  return x
end

--- Returns the entries of x as a tensor of `ndim` dims that has them along `dim`, and size 1 in all other dims.
function shapes.along_dim(x, dim, ndim)
  local shape = {}
  for d = 1, ndim do shape[d] = d == dim and x:numel() or 1 end
  return ops.reshape(x, shape)
end

--- Returns a contiguous copy of x in a shape. ops.reshape may return a view, whose elements share memory if x is
--- expanded.
function shapes.reshape_copy(x, shape) return ops.view(ops.clone(x, {memory_format = "contiguous"}), shape) end

--- Returns the sizes to which lists of sizes broadcast. tensors: what messages list in place of the sizes, or nil.
function shapes.common(who, all, tensors)
  local n, sizes = 0, {}
  for _, shape in ipairs(all) do n = math.max(n, #shape) end
  for d = 1, n do sizes[d] = 1 end
  for _, shape in ipairs(all) do
    for d, size in ipairs(shape) do
      local at = n - #shape + d
      if size ~= 1 and sizes[at] ~= 1 and sizes[at] ~= size then
        local texts = lists.map(tensors or all, function(each)
          return tensors and describe(each) or "[" .. table.concat(each, ", ") .. "]"
        end)
        options.fail("%s: %s%s do not broadcast: dim %d is %d and %d", who, tensors and "" or "shapes ",
          table.concat(texts, ", "), at, sizes[at], size)
      end
      if size ~= 1 then sizes[at] = size end
    end
  end
  return sizes
end

--- Returns the tensors of a list as views of their common shape, by broadcasting.
function shapes.broadcast(who, list)
  local sizes = shapes.common(who, lists.map(list, function(x) return x.shape end), list)
  return lists.map(list, function(x) return ops.expand(x, sizes) end)
end

return shapes

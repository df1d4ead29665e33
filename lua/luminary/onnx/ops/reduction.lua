--- ONNX's reductions, running sums, softmax, and products of matrices.
local core = require "luminary.core"
local helpers = require "luminary.onnx.ops.sizes"

local ops, is_float, to = core.ops, core.is_floating_point, core.methods.to
local dim_of, dims_of = helpers.dim_of, helpers.dims_of
local reduction = {}

-- Returns the dims of x reduced over dims, or over all if that is nil.
local function reduced_sizes(x, dims, keep)
  local gone, sizes = {}, {}
  for d = 1, x.ndim do gone[d] = not dims end
  for _, d in ipairs(dims or {}) do gone[d > 0 and d or x.ndim + d + 1] = true end
  for d = 1, x.ndim do
    if not gone[d] then sizes[#sizes + 1] = x.shape[d] elseif keep then sizes[#sizes + 1] = 1 end
  end
  return sizes
end

-- Makes a reduction of f(x, dims, keep). since: the version from which axes are an input. before, after: of elements.
local function reduce(f, since, before, after)
  return function(n)
    local axes_of, keep, noop = n:list_or("axes", 2, since), n.a.keepdims ~= 0, n.a.noop_with_empty_axes == 1
    return function(x, given)
      local axes = axes_of(given)
      local y = before and before(x) or x
      if not axes or #axes == 0 then
        y = noop and y or f(y, nil, keep)
      else
        y = f(y, dims_of(axes), keep)
      end
      if after then y = after(y) end
      return y.dtype == x.dtype and y or to(y, x.dtype)
    end
  end
end

local function in_float(f)
  return function(x, dims, keep) return f(is_float(x) and x or to(x, "float64"), dims, keep) end
end
local function sum(x, dims, keep) return ops.sum(x, dims, keep) end

-- Returns f, the extreme, for x without elements too. `of`: the same for bool.
local function extreme(f, of, sign)
  return function(x, dims, keep)
    if x.dtype == "bool" then return of(x, dims, keep) end
    if x:numel() > 0 then return f(x, dims, keep) end
    local least = is_float(x) and -math.huge or require("luminary.tensor.dtype_info").iinfo(x.dtype)
    if type(least) == "table" then least = sign > 0 and least.min or least.max else least = least * sign end
    return ops.full(reduced_sizes(x, dims, keep), least, {dtype = x.dtype})
  end
end

reduction.ReduceSum = reduce(sum, 13)
reduction.ReduceMean = reduce(in_float(ops.mean), 18)
reduction.ReduceProd = reduce(function(x, dims, keep)
  return ops.prod(x, dims, keep)
end, 18)
reduction.ReduceMax = reduce(extreme(ops.amax, ops.any, 1), 18)
reduction.ReduceMin = reduce(extreme(ops.amin, ops.all, -1), 18)
reduction.ReduceL1 = reduce(sum, 18, ops.abs)
reduction.ReduceL2 = reduce(in_float(sum), 18, ops.square, ops.sqrt)
reduction.ReduceSumSquare = reduce(sum, 18, ops.square)
reduction.ReduceLogSum = reduce(in_float(sum), 18, nil, function(x) return ops.log(x) end)
reduction.ReduceLogSumExp = reduce(in_float(function(x, dims, keep)
  if x:numel() > 0 then return ops.logsumexp(x, dims, keep) end
  return ops.full(reduced_sizes(x, dims, keep), -math.huge, {dtype = x.dtype})
end), 18)

local function arg(f)
  return function(n)
    local d, keep, last = dim_of(n.a.axis or 0), n.a.keepdims ~= 0, n.a.select_last_index == 1
    return function(x)
      if last then return x.shape[d] - f(ops.flip(x, {d}), d, keep) end
      return f(x, d, keep) - 1
    end
  end
end
reduction.ArgMax, reduction.ArgMin = arg(ops.argmax), arg(ops.argmin)

-- ---- running sums and products. first: the value before the first element, for `exclusive`.
local function running(f, first)
  return function(n)
    local exclusive, reverse = n.a.exclusive == 1, n.a.reverse == 1
    return function(x, axis)
      local d = dim_of(tonumber(axis:item()))
      local y = reverse and ops.flip(x, {d}) or x
      if exclusive then
        local sizes = {unpack(x.shape)}
        local size = sizes[d > 0 and d or #sizes + d + 1]
        sizes[d > 0 and d or #sizes + d + 1] = 1
        y = ops.cat({ops.full(sizes, first, {dtype = x.dtype}), ops.narrow(y, d, 1, size - 1)}, d)
      end
      y = f(y, d, {dtype = x.dtype})
      return reverse and ops.flip(y, {d}) or y
    end
  end
end
reduction.CumSum, reduction.CumProd = running(ops.cumsum, 0), running(ops.cumprod, 1)

-- ---- softmax. Before version 13 the dims from axis on are one.
local function along(f)
  return function(n)
    if n.version >= 13 then
      local d = dim_of(n.a.axis or -1)
      return function(x) return f(x, d) end
    end
    local axis = n.a.axis or 1
    return function(x)
      local rows = 1
      for d = 1, axis < 0 and x.ndim + axis or axis do rows = rows * x.shape[d] end
      if rows == 0 or x:numel() == 0 then return x end
      return f(x:reshape(rows, -1), 2):reshape(x.shape)
    end
  end
end
reduction.Softmax, reduction.LogSoftmax = along(ops.softmax), along(ops.log_softmax)
reduction.Hardmax = along(function(x, d)
  return ops.scatter(ops.zeros_like(x), d, ops.argmax(x, d, true), 1)
end)

-- ---- products of matrices

function reduction.MatMul() return ops.matmul end

function reduction.Gemm(n)
  local alpha, beta, a_t, b_t = n.a.alpha or 1, n.a.beta or 1, n.a.transA == 1, n.a.transB == 1
  local axis = n.version < 7 and n.a.broadcast == 1
  return function(a, b, c)
    if a_t then a = ops.t(a) end
    if b_t and alpha == 1 and is_float(a) and (not c or beta == 1 and c.ndim == 1 and c.shape[1] == b.shape[1]) then
      return ops.linear(a, b, c)
    end
    local y = ops.matmul(a, b_t and ops.t(b) or b)
    if alpha ~= 1 then y = to(y * alpha, y.dtype) end
    if not c then return y end
    if axis and c.ndim == 1 and c.shape[1] ~= y.shape[2] then c = c:reshape(-1, 1) end
    return y + (beta == 1 and c or to(c * beta, c.dtype))
  end
end

function reduction.Einsum(n)
  local einsum, equation = require("luminary.tensor.products").einsum, n.a.equation
  return function(list, count)
    local operands = {unpack(list, 1, count)}
    return einsum(equation, unpack(operands))
  end, "list"
end

function reduction.Det()
  return function(x) return ops.det(x) end
end

return reduction

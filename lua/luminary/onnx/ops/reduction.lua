--- ONNX's reductions, running sums, softmax, and products of matrices.
local core = require "luminary.core"
local helpers = require "luminary.onnx.ops.sizes"
local ops, is_float, to = core.ops, core.is_floating_point, core.methods.to
local dim_in = helpers.dim_in
local op = {}

-- Returns a tensor of `value` in the sizes of x reduced over dims, nil: all.
local function full_reduced(x, dims, keep, value)
  local gone, sizes = {}, {}
  for _, d in ipairs(dims or {}) do gone[d > 0 and d or x.ndim + d + 1] = true end
  for d, size in ipairs(x.shape) do
    if dims and not gone[d] then sizes[#sizes + 1] = size elseif keep then sizes[#sizes + 1] = 1 end
  end
  return ops.full(sizes, value, {dtype = x.dtype})
end

-- Returns the entry of a reduction f(x, dims, keep). since: the version from which axes are an input. before, after: of
-- elements.
local function reduce(f, since, before, after)
  return {keepdims = 1, function(n, x, given)
    local axes = n.axes
    if n.version >= since then axes = n:ints(2, given) end
    local y, keep = before and before(x) or x, n.keepdims ~= 0
    if axes and #axes > 0 then
      y = f(y, helpers.dims_of(math.max(x.ndim, 1), axes), keep)
    elseif n.noop_with_empty_axes ~= 1 then
      y = f(y, nil, keep)
    end
    return to(after and after(y) or y, x.dtype)
  end}
end
local function float_only(f)
  return function(x, dims, keep) return f(is_float(x) and x or to(x, "float64"), dims, keep) end
end
local function sum(x, dims, keep) return ops.sum(x, dims, keep) end

-- Returns f, an extreme, for bool (by `of`) and for no elements too; sign: of what is less than all.
local function extreme(f, of, sign)
  return function(x, dims, keep)
    if x.dtype == "bool" then return of(x, dims, keep) end
    if x:numel() > 0 then return f(x, dims, keep) end
    return full_reduced(x, dims, keep, sign * math.huge)
  end
end
op.ReduceSum, op.ReduceMean, op.ReduceProd = reduce(sum, 13), reduce(float_only(ops.mean), 18), reduce(ops.prod, 18)
op.ReduceMax, op.ReduceMin = reduce(extreme(ops.amax, ops.any, -1), 18), reduce(extreme(ops.amin, ops.all, 1), 18)
op.ReduceL1, op.ReduceSumSquare = reduce(sum, 18, ops.abs), reduce(sum, 18, ops.square)
local function norm(x, dims, keep) return ops.norm(x, 2, dims, keep) end -- whose gradient at a zero vector is 0
op.ReduceL2, op.ReduceLogSum = reduce(float_only(norm), 18), reduce(float_only(sum), 18, nil, ops.log)
op.ReduceLogSumExp = reduce(float_only(function(x, dims, keep)
  return x:numel() > 0 and ops.logsumexp(x, dims, keep) or full_reduced(x, dims, keep, -math.huge)
end), 18)

local function arg(f)
  return {axis = 0, keepdims = 1, function(n, x)
    local d, keep = dim_in(x, n.axis), n.keepdims ~= 0
    if n.select_last_index == 1 then return x.shape[d] - f(ops.flip(x, {d}), d, keep) end
    return f(x, d, keep) - 1
  end}
end
op.ArgMax, op.ArgMin = arg(ops.argmax), arg(ops.argmin)

-- Returns the entry of a running sum or product. first: the value before the first element, for `exclusive`.
local function running(f, first)
  return {function(n, x, axis)
    local d = dim_in(x, n:number(2, axis))
    local y = n.reverse == 1 and ops.flip(x, {d}) or x
    if n.exclusive == 1 and x:numel() > 0 then y = helpers.padded(y, {[d] = 1}, {[d] = -1}, "constant", first) end
    y = f(y, d, {dtype = x.dtype})
    return n.reverse == 1 and ops.flip(y, {d}) or y
  end}
end
op.CumSum, op.CumProd = running(ops.cumsum, 0), running(ops.cumprod, 1)

-- Returns the entry of f(x, dim). Before version 13 the dims from axis on are flattened, and f runs over all of them.
local function along(f)
  return {function(n, x)
    if x:numel() == 0 then return x end
    if n.version >= 13 then return f(x, dim_in(x, n.axis or -1)) end
    return f(x:reshape(helpers.product(x.shape, 1, dim_in(x, n.axis or 1) - 1), -1), 2):reshape(x.shape)
  end}
end
op.Softmax, op.LogSoftmax = along(ops.softmax), along(ops.log_softmax)
op.Hardmax = along(function(x, d) return ops.scatter(ops.zeros_like(x), d, ops.argmax(x, d, true), 1) end)

-- ---- products of matrices
op.MatMul, op.Det = ops.matmul, ops.det
op.Gemm = {alpha = 1, beta = 1, function(n, a, b, c)
  if n.transA == 1 then a = ops.t(a) end
  local plain = n.transB == 1 and n.alpha == 1 and is_float(a)
  if plain and (not c or n.beta == 1 and c.ndim == 1 and c.shape[1] == b.shape[1]) then return ops.linear(a, b, c) end
  local y = ops.matmul(a, n.transB == 1 and ops.t(b) or b)
  if n.alpha ~= 1 then y = to(y * n.alpha, y.dtype) end
  if not c then return y end
  if n.version < 7 and c.ndim == 1 and c.shape[1] ~= y.shape[2] then c = c:reshape(-1, 1) end
  return y + (n.beta == 1 and c or to(c * n.beta, c.dtype))
end}
op.Einsum = {how = "list", function(n, list, count)
  return require("luminary.tensor.products").einsum(n.equation, unpack(list, 1, count))
end}

return op

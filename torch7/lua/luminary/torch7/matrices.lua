--- Defines Torch7's matrix functions: parts of matrices, decompositions under LAPACK's names, and convolution of two
--- tensors. If a function gets more tensors than it reads, the first ones receive its results.
local core = require "luminary.core"
local options = require "luminary.base.options"
local tensor = require "luminary.torch7.tensor"
local F = require "luminary.nn.functional"
local fail, ops, ours = options.fail, core.ops, core.methods
local wrap, raw, define = tensor.wrap, tensor.raw, tensor.define

for _, name in ipairs {"diag", "tril", "triu"} do
  define(name, 1, function(x, k) return ours[name](x, k or 0) end)
end
define("cross", 2, function(a, b, dim)
  if not dim then
    for d = a.ndim, 1, -1 do if a:size(d) == 3 then dim = d end end
  end
  return ours.cross(a, b, dim or -1)
end)
define("inverse", 1, ours.inverse)
function tensor.methods.trace(object) return ours.trace(raw(object, "trace")):item() end

-- Defines a function with several results: compute(tensors…, options…) of `inputs` tensors.
local function several(name, inputs, compute)
  tensor.functions[name] = function(...)
    local given, n = {...}, select("#", ...)
    local count = 0
    while tensor.is(given[count + 1]) do count = count + 1 end
    local outputs = math.max(count - inputs, 0)
    local list = {}
    for i = outputs + 1, n do list[#list + 1] = tensor.is(given[i]) and raw(given[i]) or given[i] end
    local results = {compute(unpack(list))}
    for i, r in ipairs(results) do
      results[i] = i <= outputs and tensor.put(given[i], r) or wrap(r)
    end
    return unpack(results)
  end
end

-- Returns u, s, v with x = u s vᵀ; v has the columns of s only, unless 'A' requests all.
several("svd", 1, function(x, how) return ours.svd(x, {some = how ~= "A"}) end)
several("qr", 1, ours.qr)
several("symeig", 1, function(x, vectors, part)
  local values, found = ops.linalg_eigh(x, {UPLO = part or "U"})
  if vectors == "V" then return values, found end
  return values
end)
-- Solves a x = b; returns x and a's LU factors.
several("gesv", 2, function(b, a)
  if b.ndim == 1 then b = ops.unsqueeze(b, 2) end
  local factors, pivots = ops.linalg_lu_factor(a)
  return ops.linalg_lu_solve(factors, pivots, b), factors
end)
several("gels", 2, function(b, a) return (ops.linalg_lstsq(a, b)) end)
several("trtrs", 2, function(b, a, part, trans, unit)
  return (ours.triangular_solve(b, a, {upper = part ~= "L", transpose = trans == "T", unitriangular = unit == "U"}))
end)
several("potrf", 1, function(a, part) return ours.cholesky(a, {upper = part ~= "L"}) end)
several("potrs", 2, function(b, factor, part) return ours.cholesky_solve(b, factor, {upper = part ~= "L"}) end)
several("potri", 1, function(factor, part) return ours.cholesky_inverse(factor, {upper = part ~= "L"}) end)

-- Define 2-d and 3-d convolution (with a flipped kernel) and correlation; 'F': all overlaps, 'V': complete ones.
for name, row in pairs {
  conv2 = {2, true}, xcorr2 = {2, false}, conv3 = {3, true}, xcorr3 = {3, false},
} do
  local dims, flipped = row[1], row[2]
  define(name, 2, function(x, kernel, how)
    if x.ndim ~= dims or kernel.ndim ~= dims then
      fail("torch.%s: expected two tensors of %d dims, got %d and %d", name, dims, x.ndim, kernel.ndim)
    end
    local all, padding = {}, {}
    for d = 1, dims do
      all[d], padding[d] = d, how == "F" and kernel:size(d) - 1 or 0
    end
    if flipped then kernel = ops.flip(kernel, all) end
    local function batch(t) return ops.unsqueeze(ops.unsqueeze(t, 1), 1) end
    local y = (dims == 2 and F.conv2d or F.conv3d)(batch(x), batch(kernel), {padding = padding})
    return ops.reshape(y, {unpack(y.shape, 3)})
  end)
end

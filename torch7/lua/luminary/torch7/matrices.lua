--- Defines Torch7's matrix functions: parts of matrices, decompositions under LAPACK's names, whose results are in
--- column-major order, and convolution of two tensors.
local core = require "luminary.core"
local options = require "luminary.base.options"
local tensor = require "luminary.torch7.tensor"
local F = require "luminary.nn.functional"
local fail, ops, ours = options.fail, core.ops, core.methods
local define = tensor.define

for _, name in ipairs {"diag", "tril", "triu"} do
  define(name, {"t n?"}, function(x, k) return ours[name](x, k or 0) end)
end
define("cross", {"t t n?"}, function(a, b, dim)
  if not dim then
    for d = a.ndim, 1, -1 do if a:size(d) == 3 then dim = d end end
  end
  return ours.cross(a, b, dim or -1)
end)

-- Defines a function of LAPACK with this number of results.
local function lapack(name, results, signature, compute)
  define(name, {signature}, compute, {results = results, put = "columns"})
end
lapack("inverse", 1, "t", ours.inverse)
-- Returns u, s, v with x = u s vᵀ; v has the columns of s only, unless 'A' requests all.
lapack("svd", 3, "t s?", function(x, how) return ours.svd(x, {some = how ~= "A"}) end)
lapack("qr", 2, "t", ours.qr)
lapack("symeig", 2, "t s? s?", function(x, vectors, part)
  local values, found = ops.linalg_eigh(x, {UPLO = part or "U"})
  if vectors == "V" then return values, found end
  return values
end)
lapack("eig", 2, "t s?", function(x, vectors)
  local values, found = require("luminary.torch7.eig")(x:to "cpu", vectors == "V")
  return values:to(x.dtype), found and found:to(x.dtype)
end)
-- Solves a x = b; returns x and a's LU factors.
lapack("gesv", 2, "t t", function(b, a)
  if b.ndim == 1 then b = ops.unsqueeze(b, 2) end
  local factors, pivots = ops.linalg_lu_factor(a)
  return ops.linalg_lu_solve(factors, pivots, b), factors
end)
lapack("gels", 2, "t t", function(b, a) return (ops.linalg_lstsq(a, b)) end)
lapack("trtrs", 2, "t t s? s? s?", function(b, a, part, trans, unit)
  return (ours.triangular_solve(b, a, {upper = part ~= "L", transpose = trans == "T", unitriangular = unit == "U"}))
end)
lapack("potrf", 1, "t s?", function(a, part) return ours.cholesky(a, {upper = part ~= "L"}) end)
lapack("potrs", 1, "t t s?", function(b, factor, part) return ours.cholesky_solve(b, factor, {upper = part ~= "L"}) end)
lapack("potri", 1, "t s?", function(factor, part) return ours.cholesky_inverse(factor, {upper = part ~= "L"}) end)
-- Computes the pivoted Cholesky decomposition of a, and the permutation of its rows and columns, an IntTensor.
lapack("pstrf", 2, "t s?", function(a, part)
  local n, order = a:size(1), ops.add(ops.arange(0, a:size(1)), 1)
  local left, rest = ops.zeros({n, n}, {dtype = a.dtype}), ops.clone(a)
  for k = 1, n do
    local _, at = core.max(ops.narrow(ours.diag(rest), 1, k, n - k + 1), 1)
    local best, swap = k - 1 + at:item(), ops.add(ops.arange(0, n), 1)
    swap:select(1, k):fill_(best)
    swap:select(1, best):fill_(k)
    order, left = ops.index_select(order, 1, swap), ops.index_select(left, 1, swap)
    rest = ops.index_select(ops.index_select(rest, 1, swap), 2, swap)
    local pivot = rest:select(1, k):select(1, k):item()
    if pivot <= 0 then break end
    local column = ops.div(ops.narrow(rest:select(2, k), 1, k, n - k + 1), math.sqrt(pivot))
    ops.narrow(left:select(2, k), 1, k, n - k + 1):copy_(column)
    local block = ops.narrow(ops.narrow(rest, 1, k, n - k + 1), 2, k, n - k + 1)
    block:copy_(ops.sub(block, ops.mul(ops.unsqueeze(column, 2), ops.unsqueeze(column, 1))))
  end
  return part == "L" and left or ops.t(left), order:to "int32"
end)

-- Define 2-d and 3-d convolution (with a flipped kernel) and correlation; 'F': all overlaps, 'V': complete ones. Planes
-- and as many kernels are computed one by one; [outputs, planes, …] kernels sum over the planes.
for name, row in pairs {
  conv2 = {2, true}, xcorr2 = {2, false}, conv3 = {3, true}, xcorr3 = {3, false},
} do
  local dims, flipped = row[1], row[2]
  local conv = dims == 2 and F.conv2d or F.conv3d
  local function compute(x, kernel, how)
    local more = kernel.ndim - x.ndim
    if more == 0 and x.ndim == dims + 1 and x:size(1) == kernel:size(1) then
      local planes = {}
      for i = 1, x:size(1) do planes[i] = compute(ops.select(x, 1, i), ops.select(kernel, 1, i), how) end
      return ops.stack(planes, 1)
    end
    if not (more == 0 and x.ndim == dims or more == 1 and x.ndim == dims + 1 and kernel:size(2) == x:size(1)) then
      fail("torch.%s: expected two tensors of %d dims, or planes and kernels of %d or %d, got sizes %s and %s", name,
        dims, dims + 1, dims + 2, table.concat(x.shape, "x"), table.concat(kernel.shape, "x"))
    end
    local last, padding = {}, {}
    for d = 1, dims do
      last[d] = d - dims - 1
      padding[d] = how == "F" and kernel:size(last[d]) - 1 or 0
    end
    if flipped then kernel = ops.flip(kernel, last) end
    if more == 0 then x, kernel = ops.unsqueeze(x, 1), ops.unsqueeze(ops.unsqueeze(kernel, 1), 1) end
    local y = ops.squeeze(conv(ops.unsqueeze(x, 1), kernel, {padding = padding}), 1)
    return more == 0 and ops.squeeze(y, 1) or y
  end
  define(name, {"t t s?"}, compute)
end

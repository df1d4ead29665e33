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

-- ---- eigenvalues of a matrix that is not symmetric, by the QR algorithm with single shifts for complex Hessenberg
-- matrices (Golub and Van Loan, Matrix Computations, 7.5), on Lua numbers

local function square_root(re, im)
  local r = math.sqrt((re * re + im * im) ^ 0.5)
  local angle = math.atan2(im, re) / 2
  return r * math.cos(angle), r * math.sin(angle)
end

-- Rotates rows and columns p and q of hr + i hi, and columns of the vectors, such that (a, b) of these rows would
-- become (r, 0).
local function rotate(n, p, q, ar, ai, br, bi, hr, hi, vr, vi)
  local r = math.sqrt(ar * ar + ai * ai + br * br + bi * bi)
  if r == 0 then return end
  ar, ai, br, bi = ar / r, ai / r, br / r, bi / r
  local pr, pi, qr, qi = hr[p], hi[p], hr[q], hi[q]
  for k = 1, n do
    local xr, xi, yr, yi = pr[k], pi[k], qr[k], qi[k]
    pr[k], pi[k] = ar * xr + ai * xi + br * yr + bi * yi, ar * xi - ai * xr + br * yi - bi * yr
    qr[k], qi[k] = ar * yr - ai * yi - br * xr + bi * xi, ar * yi + ai * yr - br * xi - bi * xr
  end
  local function columns(re, im)
    for k = 1, n do
      local rr, ri = re[k], im[k]
      local xr, xi, yr, yi = rr[p], ri[p], rr[q], ri[q]
      rr[p], ri[p] = ar * xr - ai * xi + br * yr - bi * yi, ar * xi + ai * xr + br * yi + bi * yr
      rr[q], ri[q] = ar * yr + ai * yi - br * xr - bi * xi, ar * yi - ai * yr - br * xi + bi * xr
    end
  end
  columns(hr, hi)
  columns(vr, vi)
end

-- Returns the eigenvalue of the 2x2 block in rows k - 1 and k that is nearer to its last element.
local function shift_of(hr, hi, k)
  local ar, ai, dr, di = hr[k - 1][k - 1], hi[k - 1][k - 1], hr[k][k], hi[k][k]
  local br, bi, cr, ci = hr[k - 1][k], hi[k - 1][k], hr[k][k - 1], hi[k][k - 1]
  local er, ei = (ar - dr) / 2, (ai - di) / 2
  local sr, si = square_root(er * er - ei * ei + br * cr - bi * ci, 2 * er * ei + br * ci + bi * cr)
  if er * sr + ei * si > 0 then sr, si = -sr, -si end
  return dr + er + sr, di + ei + si
end

-- Returns eigenvector j of the triangular matrix, in the basis of the vectors, with norm 1 and a real largest element.
local function vector_of(n, j, hr, hi, vr, vi, tiny)
  local yr, yi = {[j] = 1}, {[j] = 0}
  for i = j - 1, 1, -1 do
    local sr, si = 0, 0
    for k = i + 1, j do
      sr = sr + hr[i][k] * yr[k] - hi[i][k] * yi[k]
      si = si + hr[i][k] * yi[k] + hi[i][k] * yr[k]
    end
    local dr, di = hr[j][j] - hr[i][i], hi[j][j] - hi[i][i]
    if dr * dr + di * di < tiny * tiny then dr, di = tiny, 0 end
    local d = dr * dr + di * di
    yr[i], yi[i] = (sr * dr + si * di) / d, (si * dr - sr * di) / d
  end
  local re, im, square, best = {}, {}, 0, 1
  for i = 1, n do
    local sr, si = 0, 0
    for k = 1, j do
      sr = sr + vr[i][k] * yr[k] - vi[i][k] * yi[k]
      si = si + vr[i][k] * yi[k] + vi[i][k] * yr[k]
    end
    re[i], im[i], square = sr, si, square + sr * sr + si * si
    if sr * sr + si * si > re[best] ^ 2 + im[best] ^ 2 then best = i end
  end
  local size = math.sqrt((re[best] ^ 2 + im[best] ^ 2) * square)
  local cr, ci = re[best] / size, -im[best] / size
  for i = 1, n do re[i], im[i] = re[i] * cr - im[i] * ci, re[i] * ci + im[i] * cr end
  return re, im
end

-- Returns the eigenvalues of a square float64 or float32 matrix, [n, 2] of real and imaginary parts, and with
-- `vectors` the eigenvectors in columns: of a complex pair, those of the real and of the imaginary part of the first.
local function eig(x, vectors)
  if x.ndim ~= 2 or x:size(1) ~= x:size(2) then
    fail("torch.eig: expected a square matrix, got sizes %s", table.concat(x.shape, "x"))
  end
  local n, hi, vr, vi = x:size(1), {}, {}, {}
  local scale = core.max(ops.abs(x)):item()
  if scale ~= scale or scale == math.huge then fail("torch.eig: x must be finite") end
  scale = scale > 0 and scale or 1
  local hr, tiny = ops.div(x:to "float64", scale):totable(), n * 2 ^ -52
  for i = 1, n do
    hi[i], vr[i], vi[i] = {}, {}, {}
    for k = 1, n do hi[i][k], vr[i][k], vi[i][k] = 0, i == k and 1 or 0, 0 end
  end
  local function zero_out(p, q, column)
    rotate(n, p, q, hr[p][column], hi[p][column], hr[q][column], hi[q][column], hr, hi, vr, vi)
  end
  for k = 1, n - 2 do
    for i = k + 2, n do if hr[i][k] ~= 0 then zero_out(k + 1, i, k) end end
  end
  local last, steps = n, 0
  while last > 1 do
    local first = last
    while first > 1 and math.abs(hr[first][first - 1]) + math.abs(hi[first][first - 1]) > tiny do first = first - 1 end
    steps = steps + 1
    if first == last then
      last, steps = last - 1, 0
    elseif steps > 300 then
      fail("torch.eig: the QR algorithm does not converge")
    else
      local sr, si = shift_of(hr, hi, last)
      if steps % 10 == 0 then sr, si = sr + n / steps, si + n / steps end -- leaves a cycle
      rotate(n, first, first + 1, hr[first][first] - sr, hi[first][first] - si, hr[first + 1][first],
        hi[first + 1][first], hr, hi, vr, vi)
      for k = first, last - 2 do zero_out(k + 1, k + 2, k) end
    end
  end
  local values, columns = {}, {}
  for i = 1, n do
    local value, im = hr[i][i] * scale, hi[i][i]
    local is_real = math.abs(im) <= 1e4 * tiny
    if is_real or im > 0 then -- the one below is the other of the pair
      local re, imaginary = {}, {}
      if vectors then re, imaginary = vector_of(n, i, hr, hi, vr, vi, tiny) end
      values[#values + 1], columns[#columns + 1] = {value, is_real and 0 or im * scale}, re
      if not is_real then values[#values + 1], columns[#columns + 1] = {value, -im * scale}, imaginary end
    end
  end
  local function made(list) return core.tensor(list, {dtype = "float64"}) end
  return made(values), vectors and ops.t(made(columns)) or nil
end

-- ---- LAPACK

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
  local values, found = eig(x:to "cpu", vectors == "V")
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

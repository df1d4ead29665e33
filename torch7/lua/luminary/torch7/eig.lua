--- Computes eigenvalues and eigenvectors of a matrix that is not symmetric, by the QR algorithm with single shifts for
--- complex Hessenberg matrices (Golub and Van Loan, Matrix Computations, 7.5), on Lua numbers.
local core = require "luminary.core"
local options = require "luminary.base.options"
local ops = core.ops

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

--- Returns the eigenvalues of a square float64 or float32 matrix, [n, 2] of real and imaginary parts, and with
--- `vectors` the eigenvectors in columns: of a complex pair, those of the real and of the imaginary part of the first.
return function(x, vectors)
  if x.ndim ~= 2 or x:size(1) ~= x:size(2) then
    options.fail("torch.eig: expected a square matrix, got sizes %s", table.concat(x.shape, "x"))
  end
  local n, hi, vr, vi = x:size(1), {}, {}, {}
  local scale = core.max(ops.abs(x)):item()
  if scale ~= scale or scale == math.huge then options.fail("torch.eig: x must be finite") end
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
      options.fail("torch.eig: the QR algorithm does not converge")
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

--- What transforms stand on: random numbers, and C's transforms by name. `out`, where it can be given, is where a
--- result may be written to; the result says whether it was.
local core = require "luminary.core"
local options = require "luminary.base.options"
local fail, describe = options.fail, options.describe

local image = {}

-- ---- images

--- Height, width and channels.
function image.size(x)
  local shape = x.shape
  local n = #shape
  return shape[n - 1], shape[n], shape[n - 2]
end

--- A transform of C's by its name (src/image/transform.h).
function image.run(name, x, numbers, out)
  local stride = x:stride()
  if stride[#stride] ~= 1 then x = x:contiguous() end
  return core.image_transform(name, x, numbers, out)
end
local run = image.run

--- f(image, out) of each image of a batch, as a batch.
function image.each(who, x, f)
  local n = x.shape[1]
  if n == 0 then fail("%s: a batch without images: %s", who, describe(x)) end
  local all
  for i = 1, n do
    local to = all and all:select(1, i)
    local y = f(x:select(1, i), to)
    if not all then
      all = core.ops.empty({n, unpack(y.shape)}, {dtype = y.dtype, device = y.device})
      to = all:select(1, i)
    end
    if y ~= to then
      if y.shape ~= to.shape or y.dtype ~= to.dtype then
        fail("%s: image %d of a batch came out as %s of %s, those before as %s of %s", who, i, describe(y), y.dtype,
          describe(to), to.dtype)
      end
      to:copy_(y)
    end
  end
  return all
end

-- ---- random numbers, of the CPU's generator

local uniform_number = core.uniform_number

function image.uniform(low, high) return low + (high - low) * uniform_number() end

--- An integer from 0 to n - 1.
function image.below(n) return math.floor(n * uniform_number()) end

function image.chance(p) return uniform_number() < p end

--- 1 to n in a random order.
function image.order(n)
  local order = {}
  for i = 1, n do order[i] = i end
  for i = n, 2, -1 do
    local j = 1 + image.below(i)
    order[i], order[j] = order[j], order[i]
  end
  return order
end

--- To the nearest integer, halves to the even one, as Python's round.
function image.round(v)
  local down = math.floor(v)
  local part = v - down
  if part > 0.5 or part == 0.5 and down % 2 == 1 then down = down + 1 end
  return down
end

-- ---- resizing

local modes = {nearest = 0, ["nearest-exact"] = 1, bilinear = 2, bicubic = 3}

--- What goes into image.resize, of these options.
function image.resize_mode(o) return {modes[o.interpolation], o.antialias and 1 or 0} end

--- The part {top, left, height, width} of x (all of it) as height x width.
function image.resize(x, height, width, mode, part, out)
  local h, w = image.size(x)
  if not part then
    if h == height and w == width then return x end
    part = {0, 0, h, w}
  end
  return run("resize", x, {height, width, mode[1], mode[2], part[1], part[2], part[3], part[4]}, out)
end

--- Height and width of an image of h x w whose smaller side becomes `size`, or that becomes {height, width}; max_size
--- bounds the larger side. `size` nil: the larger side becomes max_size.
function image.resized(who, h, w, size, max_size)
  if size and size[2] then return size[1], size[2] end
  local short, long = math.min(h, w), math.max(h, w)
  local new_short, new_long
  if not size then
    new_short, new_long = math.floor(max_size * short / long), max_size
  else
    new_short, new_long = size[1], math.floor(size[1] * long / short)
    if max_size and new_long > max_size then
      new_short, new_long = math.floor(max_size * new_short / new_long), max_size
    end
  end
  if new_short < 1 or new_long > 2 ^ 24 then
    fail("%s: an image of %d x %d would become one of %d x %d", who, h, w, w <= h and new_long or new_short,
      w <= h and new_short or new_long)
  end
  if w <= h then return new_long, new_short end
  return new_short, new_long
end

-- ---- cropping and padding

local borders = {constant = 0, edge = 1, reflect = 2, symmetric = 3}

function image.pad(x, by, mode, fill, out)
  if by[1] + by[2] + by[3] + by[4] == 0 then return x end
  local numbers = {by[1], by[2], by[3], by[4], borders[mode]}
  for _, v in ipairs(fill or {0}) do numbers[#numbers + 1] = v end
  return run("pad", x, numbers, out)
end

--- A view of x within its borders; beyond them what fills, or zeros, and then it is a tensor of its own.
function image.crop(x, top, left, height, width, fill, out)
  local h, w = image.size(x)
  local low, high = math.max(top, 0), math.min(top + height, h)
  local first, last = math.max(left, 0), math.min(left + width, w)
  if low >= high or first >= last then -- nothing of x: a pixel of it, padded and cut off again
    local beside = image.pad(x:narrow(-2, 1, 1):narrow(-1, 1, 1), {width, height, 0, 0}, "constant", fill)
    return beside:narrow(-2, 1, height):narrow(-1, 1, width)
  end
  local inner = x:narrow(-2, low + 1, high - low):narrow(-1, first + 1, last - first)
  return image.pad(inner, {first - left, low - top, left + width - last, top + height - high}, "constant", fill, out)
end

--- Top and left of a crop of height x width in the middle of h x w, which may be smaller.
function image.centre(h, w, height, width)
  local function first(size, wanted)
    if wanted > size then return -math.floor((wanted - size) / 2) end
    return image.round((size - wanted) / 2)
  end
  return first(h, height), first(w, width)
end

-- ---- maps

local function with_fill(numbers, fill)
  for _, v in ipairs(fill or {}) do numbers[#numbers + 1] = v end
  return numbers
end

--- The map from an output's pixel to where it comes from, both counted from the middle: rotated by `angle` degrees,
--- sheared and scaled about the centre, then moved. The inverse of T C R S SHy SHx C^-1, as in torchvision's
--- _get_inverse_affine_matrix.
function image.affine_matrix(angle, translate, scale, shear, centre)
  local rotation, sx, sy = math.rad(angle), math.rad(shear[1]), math.rad(shear[2])
  local cx, cy = centre[1], centre[2]
  local a = math.cos(rotation - sy) / math.cos(sy)
  local b = -(a * math.tan(sx) + math.sin(rotation))
  local c = math.sin(rotation - sy) / math.cos(sy)
  local d = math.cos(rotation) - c * math.tan(sx)
  local m = {d / scale, -b / scale, 0, -c / scale, a / scale, 0}
  m[3] = cx - m[1] * (cx + translate[1]) - m[2] * (cy + translate[2])
  m[6] = cy - m[4] * (cx + translate[1]) - m[5] * (cy + translate[2])
  return m
end

--- x through a map of image.affine_matrix, as height x width (x's), by the options of checks.mapping.
function image.affine(x, m, o, height, width, out)
  local h, w = image.size(x)
  local bilinear, fill = o.interpolation == "bilinear", o.fill
  local numbers = {height or h, width or w, bilinear and 1 or 0, fill and #fill or 0, unpack(m)}
  return run("affine", x, with_fill(numbers, fill), out)
end

--- centre, in pixels from the upper left corner, as counted from the middle.
function image.from_middle(x, centre)
  local h, w = image.size(x)
  return centre and {centre[1] - w / 2, centre[2] - h / 2} or {0, 0}
end

-- Height and width that hold an image of h x w after a map.
local function expanded(m, h, w)
  local left, right, top, bottom = 1 / 0, -1 / 0, 1 / 0, -1 / 0
  for _, x in ipairs {-w / 2, w / 2} do
    for _, y in ipairs {-h / 2, h / 2} do
      local nx, ny = m[1] * x + m[2] * y + m[3] + w / 2, m[4] * x + m[5] * y + m[6] + h / 2
      left, right = math.min(left, nx), math.max(right, nx)
      top, bottom = math.min(top, ny), math.max(bottom, ny)
    end
  end
  local function cut(v) return (v < 0 and math.ceil or math.floor)(v * 1e4) / 1e4 end -- what rounding has left
  return math.ceil(cut(bottom)) - math.floor(cut(top)), math.ceil(cut(right)) - math.floor(cut(left))
end

--- Turned by `angle` degrees against the clock, by the options of checks.mapping, expand and center.
function image.rotate(x, angle, o, out)
  local expand, centre = o.expand, o.center
  local h, w = image.size(x)
  angle = angle % 360
  if not centre then
    if angle == 0 then return x end
    if angle == 180 or angle % 90 == 0 and (expand or h == w) then return run("rotate90", x, {angle / 90}, out) end
  end
  local m = image.affine_matrix(-angle, {0, 0}, 1, {0, 0}, image.from_middle(x, centre))
  local height, width
  if expand then height, width = expanded(m, h, w) end
  return image.affine(x, m, o, height, width, out)
end

-- Gaussian elimination with pivots: the solution of `rows`, each its factors and then what they make.
local function solve(who, rows)
  local n = #rows
  for k = 1, n do
    local best = k
    for i = k + 1, n do
      if math.abs(rows[i][k]) > math.abs(rows[best][k]) then best = i end
    end
    rows[k], rows[best] = rows[best], rows[k]
    if math.abs(rows[k][k]) < 1e-12 then
      fail("%s: four points of which three lie on a line make no perspective", who)
    end
    for i = k + 1, n do
      local factor = rows[i][k] / rows[k][k]
      for j = k, n + 1 do rows[i][j] = rows[i][j] - factor * rows[k][j] end
    end
  end
  local x = {}
  for k = n, 1, -1 do
    local sum = rows[k][n + 1]
    for j = k + 1, n do sum = sum - rows[k][j] * x[j] end
    x[k] = sum / rows[k][k]
  end
  return x
end

--- The eight numbers of the perspective that takes endpoints to startpoints, both four of {x, y}.
function image.perspective_numbers(who, startpoints, endpoints)
  local rows = {}
  for i = 1, 4 do
    local p, q = endpoints[i], startpoints[i]
    rows[2 * i - 1] = {p[1], p[2], 1, 0, 0, 0, -q[1] * p[1], -q[1] * p[2], q[1]}
    rows[2 * i] = {0, 0, 0, p[1], p[2], 1, -q[2] * p[1], -q[2] * p[2], q[2]}
  end
  return solve(who, rows)
end

function image.perspective(x, coefficients, o, out)
  local fill = o.fill
  local numbers = {o.interpolation == "bilinear" and 1 or 0, fill and #fill or 0, unpack(coefficients)}
  return run("perspective", x, with_fill(numbers, fill), out)
end

-- ---- blur

local function gaussian(size, sigma, numbers)
  local total, weights = 0, {}
  for i = 1, size do
    local at = (i - (size + 1) / 2) / sigma
    weights[i] = math.exp(-at * at / 2)
    total = total + weights[i]
  end
  for i = 1, size do numbers[#numbers + 1] = weights[i] / total end
end

--- kernel_size and sigma: {along x, along y}.
function image.blur(x, kernel_size, sigma, out)
  local numbers = {kernel_size[1], kernel_size[2]}
  gaussian(kernel_size[1], sigma[1], numbers)
  gaussian(kernel_size[2], sigma[2], numbers)
  return run("blur", x, numbers, out)
end

-- ---- numbers

--- statistics: of checks.statistics. scale: uint8's 0 to 255 are 0 to 1 first.
function image.normalize(x, statistics, scale, out)
  local _, _, c = image.size(x)
  if #statistics ~= 3 and #statistics ~= 1 + 2 * c then
    fail("Normalize: mean and std are of %d channels, and this image has %d", (#statistics - 1) / 2, c)
  end
  local numbers = statistics
  if scale then
    numbers = {unpack(statistics)}
    numbers[1] = 1
  end
  return run("normalize", x, numbers, out)
end

--- In another dtype; with scale, white stays white.
function image.to_dtype(who, x, dtype, scale, out)
  local from = x.dtype
  if from == dtype then return x end
  local floating = core.is_floating_point(from)
  if not scale or floating and core.is_floating_point(dtype) then return x:to(dtype) end
  local kept = from == "float32" or from == "float64"
  if from == "uint8" and dtype == "float32" or kept and dtype == "uint8" then return run("convert", x, {}, out) end
  if from == "uint8" and core.is_floating_point(dtype) then return x:to(dtype) * (1 / 255) end
  fail("%s: with scale, uint8 becomes a floating dtype, or float32 and float64 become uint8; got %s to %s", who, from,
    dtype)
end

return image

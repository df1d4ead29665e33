--- Computes transforms of images by given numbers: runs those of C by name, on an image or on each of a batch, and
--- computes their arguments. A result may be written to `out`, if it is passed; compare the result with `out` to find
--- if it was.
local core = require "luminary.core"
local lists = require "luminary.base.lists"
local options = require "luminary.base.options"
local fail, describe, ops = options.fail, options.describe, core.ops

local images = {}

--- Returns height, width and channels.
function images.size(x)
  local shape = x.shape
  local n = #shape
  return shape[n - 1], shape[n], n > 2 and shape[n - 2] or 1
end

local native = core.image_transform

-- Transforms of colors: functions of an image of integers, their largest value and a number; or true, for float64.
local COLORS = {brightness = true, contrast = true, saturation = true, hue = true, sharpness = true, grayscale = true,
  autocontrast = true, gamma = true}
function COLORS.invert(x, most) return x:bitwise_xor(most) end
function COLORS.posterize(x, most, bits) return x:bitwise_and(most - (most + 0LL) / 2 ^ bits) end
function COLORS.solarize(x, most, threshold)
  if threshold > tonumber(most) then options.must_be("solarize", "threshold", "at most " .. most, threshold) end
  return ops.where(x:ge(threshold), x:bitwise_xor(most), x)
end

local function run_on_integers(name, x, numbers)
  local most, exact = require("luminary.tensor.dtype_info").iinfo(x.dtype).max, COLORS[name]
  if exact ~= true then return exact(x.dtype == "uint16" and x:int() or x, most, numbers[1]):to(x.dtype) end
  local white = tonumber(most)
  local y = native(name, x:double():mul_(1 / white), numbers):mul_(white):add_(1e-4):floor_()
  return y:clamp_(0, math.min(white, 2 ^ 63 - 1024)):to(x.dtype)
end

-- Returns the result for images without elements: that for one element in each empty dim, without it.
local function run_on_empty(name, x, numbers)
  local shape, n = {unpack(x.shape)}, x.ndim
  if (name == "resize" or name == "pad") and shape[n - 1] * shape[n] == 0 then return native(name, x, numbers) end
  if name == "blur" or name == "affine" and numbers[1] * numbers[2] == 0 then return x end
  for i = 1, n do shape[i] = math.max(shape[i], 1) end
  local y = images.run(name, ops.zeros(shape, {dtype = x.dtype, device = x.device}), numbers)
  for i = -n, -1 do
    local at = i > -3 and name == "rotate90" and numbers[1] % 2 == 1 and -3 - i or i
    if x.shape[n + 1 + i] == 0 then y = y:narrow(at, 1, 0) end
  end
  return y
end

--- Runs a transform of C by its name (src/image/transform.h), also on images that C refuses.
function images.run(name, x, numbers, out)
  local dtype = x.dtype
  if x:numel() == 0 then return run_on_empty(name, x, numbers) end
  if dtype == "bool" and (name == "blur" or name == "affine" or name == "perspective") then -- true from a half on
    return native(name, x:float(), numbers):round():to(dtype)
  end
  local as_is = not COLORS[name] or dtype == "uint8" or dtype == "bool" or core.is_floating_point(dtype)
  return as_is and native(name, x, numbers, out) or run_on_integers(name, x, numbers)
end
local run = images.run

--- Returns the results of f(image, out) for each image of a batch, as a batch.
function images.each(who, x, f)
  local n = x.shape[1]
  if n == 0 then fail("%s: the batch must not be empty, got %s", who, describe(x)) end
  local all
  for i = 1, n do
    local to = all and all:select(1, i)
    local y = f(x:select(1, i), to)
    if not core.is_tensor(y) then
      fail("%s: image %d of the batch became %s; apply transforms that do not return images to one image at a time",
        who, i, describe(y))
    end
    if not all then
      all = ops.empty({n, unpack(y.shape)}, {dtype = y.dtype, device = y.device})
      to = all:select(1, i)
    end
    if y ~= to then
      if y.shape ~= to.shape or y.dtype ~= to.dtype then
        fail("%s: image %d of the batch became %s of %s, those before %s of %s", who, i, describe(y), y.dtype,
          describe(to), to.dtype)
      end
      to:copy_(y)
    end
  end
  return all
end

-- ---- crop and pad

--- Rounds to the nearest integer, halves to the even one, as Python's round.
function images.round(v)
  local down = math.floor(v)
  local part = v - down
  return (part > 0.5 or part == 0.5 and down % 2 == 1) and down + 1 or down
end

local borders = {constant = 0, edge = 1, reflect = 2, symmetric = 3}

-- Returns an image of x's dtype and channels that is all fill or zeros.
local function filled(x, height, width, fill)
  local shape = {unpack(x.shape)}
  shape[#shape - 1], shape[#shape] = 1, 1
  local pixel = ops.zeros(shape, {dtype = x.dtype, device = x.device})
  local beside = run("pad", pixel, {width, height, 0, 0, 0, unpack(fill or {0})})
  return beside:narrow(-2, 1, height):narrow(-1, 1, width)
end

--- Adds by = {left, top, right, bottom} pixels to x; negative numbers crop.
function images.pad(x, by, mode, fill, out)
  if by[1] == 0 and by[2] == 0 and by[3] == 0 and by[4] == 0 then return x end
  local h, w = images.size(x)
  if math.min(unpack(by)) < 0 then
    local rest = {math.max(by[1], 0), math.max(by[2], 0), math.max(by[3], 0), math.max(by[4], 0)}
    local rows, columns = math.min(by[2], 0) + math.min(by[4], 0), math.min(by[1], 0) + math.min(by[3], 0)
    if h + rows < 1 or w + columns < 1 then
      options.fail("pad: negative padding must leave a pixel of an image of %d x %d, got {%d, %d, %d, %d}", h, w,
        unpack(by))
    end
    local function crop_image(image)
      local height, width = images.size(image)
      return image:narrow(-2, math.max(1 - by[2], 1), height + rows):narrow(-1, math.max(1 - by[1], 1), width + columns)
    end
    -- Let "reflect", but not "symmetric", mirror the pixels that are cut off, as in torchvision.
    if mode == "reflect" then return crop_image(images.pad(x, rest, mode, fill)) end
    return images.pad(crop_image(x), rest, mode, fill, out)
  end
  if mode == "constant" and h * w == 0 then return filled(x, h + by[2] + by[4], w + by[1] + by[3], fill) end
  return run("pad", x, {by[1], by[2], by[3], by[4], borders[mode], unpack(fill or {0})}, out)
end

--- Returns a view of x within its borders; beyond them, a new tensor with `fill` or zeros.
function images.crop(x, top, left, height, width, fill, out)
  local h, w = images.size(x)
  local low, high = math.max(top, 0), math.min(top + height, h)
  local first, last = math.max(left, 0), math.min(left + width, w)
  if low >= high or first >= last then return filled(x, height, width, fill) end
  local inner = x:narrow(-2, low + 1, high - low):narrow(-1, first + 1, last - first)
  return images.pad(inner, {first - left, low - top, left + width - last, top + height - high}, "constant", fill, out)
end

--- Returns the four corners and the center of x as a list of crops of height x width; with `flip`, "horizontally" or
--- "vertically", followed by the crops of x flipped.
function images.corners(who, x, height, width, flip)
  local h, w = images.size(x)
  if height > h or width > w then
    options.fail("%s: size must be at most that of the image, %d x %d, got %d x %d", who, h, w, height, width)
  end
  local list = {}
  for _, image in ipairs {x, flip and run("flip", x, flip == "vertically" and {0, 1} or {1, 0}) or nil} do
    for _, at in ipairs {{0, 0}, {0, w - width}, {h - height, 0}, {h - height, w - width},
      {images.center(h, w, height, width)}} do
      list[#list + 1] = images.crop(image, at[1], at[2], height, width)
    end
  end
  return list
end

--- Returns top and left of a crop of height x width at the center of h x w, which may be smaller.
function images.center(h, w, height, width)
  local function crop_offset(size, wanted)
    if wanted > size then return -math.floor((wanted - size) / 2) end
    return images.round((size - wanted) / 2)
  end
  return crop_offset(h, height), crop_offset(w, width)
end

-- ---- resize

local modes = {nearest = 0, ["nearest-exact"] = 1, bilinear = 2, bicubic = 3}

--- Returns the argument `mode` of images.resize for these options.
function images.resize_mode(o) return {modes[o.interpolation], o.antialias and 1 or 0} end

--- Resizes the part {top, left, height, width} of x, by default all of it, to height x width.
function images.resize(x, height, width, mode, part, out)
  local h, w = images.size(x)
  if not part then
    if h == height and w == width then return x end
    part = {0, 0, h, w}
  end
  return run("resize", x, {height, width, mode[1], mode[2], part[1], part[2], part[3], part[4]}, out)
end

--- Returns height and width of an image of h x w after a resize of its smaller side to `size`, or to {height, width};
--- max_size bounds the larger side. If `size` is nil, the larger side becomes max_size.
function images.resized(who, h, w, size, max_size)
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
  if not (new_short >= 1 and new_long <= 2 ^ 24) then
    fail("%s: cannot resize an image of %d x %d to %.0f x %.0f", who, h, w, w <= h and new_long or new_short,
      w <= h and new_short or new_long)
  end
  if w <= h then return new_long, new_short end
  return new_short, new_long
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

--- Blurs an image. kernel_size and sigma: {along x, along y}.
function images.blur(x, kernel_size, sigma, out)
  local numbers = {kernel_size[1], kernel_size[2]}
  gaussian(kernel_size[1], sigma[1], numbers)
  gaussian(kernel_size[2], sigma[2], numbers)
  return run("blur", x, numbers, out)
end

-- ---- values of pixels: normalize and convert dtypes

--- Normalizes an image. statistics: from checks.statistics. scale: true to scale uint8's 0 to 255 to 0 to 1 first.
function images.normalize(x, statistics, scale, out)
  local _, _, c = images.size(x)
  if #statistics ~= 3 and #statistics ~= 1 + 2 * c then
    fail("Normalize: mean and std have %d channels, the image %d", (#statistics - 1) / 2, c)
  end
  local numbers = statistics
  if scale then
    numbers = {unpack(statistics)}
    numbers[1] = 1
  end
  return run("normalize", x, numbers, out)
end

-- Returns the largest value of an integer dtype, and its number of bits without the sign's.
local function range_of(dtype)
  if dtype == "bool" then return 1, 1 end
  local info = require("luminary.tensor.dtype_info").iinfo(dtype)
  return tonumber(info.max), info.bits - (info.min < 0 and 1 or 0)
end

--- Converts an image to another dtype; with scale, white stays white.
function images.to_dtype(who, x, dtype, scale, out)
  local from = x.dtype
  if from == dtype then return x end
  local floating, to_floating = core.is_floating_point(from), core.is_floating_point(dtype)
  if not scale or floating and to_floating then return x:to(dtype) end
  if from == "uint8" and dtype == "float32" or floating and dtype == "uint8" then return run("convert", x, {}, out) end
  if to_floating then return x:to(dtype) * (1 / range_of(from)) end
  local most, bits = range_of(dtype)
  if from == "bool" or dtype == "bool" or floating and bits > (from == "float64" and 31 or 16) then
    fail("%s: scale = true cannot convert %s to %s", who, from, dtype)
  end
  if floating then return (from == "float64" and x or x:to "float32"):mul(most + 1 - 1e-3):to(dtype) end
  local _, before = range_of(from)
  if before > bits then return x:bitwise_right_shift(before - bits):to(dtype) end
  return x:to(dtype):bitwise_left_shift(bits - before)
end

--- Equalizes an image's histogram; a floating image by way of uint8.
function images.equalize(who, x, out)
  if x.dtype == "uint8" then return run("equalize", x, {}, out) end
  local bytes = images.to_dtype(who, x, "uint8", true)
  return images.to_dtype(who, run("equalize", bytes, {}), x.dtype, true, out)
end

-- ---- rotation, affine maps, perspective

--- Returns the map from an output pixel to its source, both relative to the middle: rotation by `angle` degrees, shear
--- and scale about the center, then translation. It is the inverse of T C R S SHy SHx C^-1, as in torchvision's
--- _get_inverse_affine_matrix.
function images.affine_matrix(angle, translate, scale, shear, center)
  local rotation, sx, sy = math.rad(angle), math.rad(shear[1]), math.rad(shear[2])
  local cx, cy = center[1], center[2]
  local a = math.cos(rotation - sy) / math.cos(sy)
  local b = -(a * math.tan(sx) + math.sin(rotation))
  local c = math.sin(rotation - sy) / math.cos(sy)
  local d = math.cos(rotation) - c * math.tan(sx)
  local m = {d / scale, -b / scale, 0, -c / scale, a / scale, 0}
  m[3] = cx - m[1] * (cx + translate[1]) - m[2] * (cy + translate[2])
  m[6] = cy - m[4] * (cx + translate[1]) - m[5] * (cy + translate[2])
  return m
end

--- Maps x by a map of images.affine_matrix to height x width (default: x's), by the options of checks.mapping.
function images.affine(x, m, o, height, width, out)
  local h, w = images.size(x)
  local bilinear, fill = o.interpolation == "bilinear", o.fill
  local numbers = {height or h, width or w, bilinear and 1 or 0, fill and #fill or 0, unpack(m)}
  return run("affine", x, lists.append(numbers, fill or {}), out)
end

--- Converts the center from pixels from the upper left corner to pixels from the middle.
function images.from_middle(x, center)
  local h, w = images.size(x)
  return center and {center[1] - w / 2, center[2] - h / 2} or {0, 0}
end

-- Returns the height and width that contain an image of h x w after a map.
local function expanded(m, h, w)
  local left, right, top, bottom = 1 / 0, -1 / 0, 1 / 0, -1 / 0
  for _, x in ipairs {-w / 2, w / 2} do
    for _, y in ipairs {-h / 2, h / 2} do
      local nx, ny = m[1] * x + m[2] * y + m[3] + w / 2, m[4] * x + m[5] * y + m[6] + h / 2
      left, right = math.min(left, nx), math.max(right, nx)
      top, bottom = math.min(top, ny), math.max(bottom, ny)
    end
  end
  local function cut(v) return (v < 0 and math.ceil or math.floor)(v * 1e4) / 1e4 end -- removes rounding errors
  return math.ceil(cut(bottom)) - math.floor(cut(top)), math.ceil(cut(right)) - math.floor(cut(left))
end

--- Rotates x counterclockwise by `angle` degrees, by the options of checks.mapping, expand and center.
function images.rotate(x, angle, o, out)
  local expand, center = o.expand, o.center
  local h, w = images.size(x)
  angle = angle % 360
  if not center then
    if angle == 0 then return x end
    if angle == 180 or angle % 90 == 0 and (expand or h == w) then return run("rotate90", x, {angle / 90}, out) end
  end
  local m = images.affine_matrix(-angle, {0, 0}, 1, {0, 0}, images.from_middle(x, center))
  local height, width
  if expand then height, width = expanded(m, h, w) end
  return images.affine(x, m, o, height, width, out)
end

--- Returns the eight numbers of the perspective that maps endpoints to startpoints, both four of {x, y}.
function images.perspective_numbers(who, startpoints, endpoints)
  local factors, sides, like = {}, {}, {dtype = "float64", device = "cpu"}
  for i = 1, 4 do
    local p, q = endpoints[i], startpoints[i]
    factors[2 * i - 1] = {p[1], p[2], 1, 0, 0, 0, -q[1] * p[1], -q[1] * p[2]}
    factors[2 * i] = {0, 0, 0, p[1], p[2], 1, -q[2] * p[1], -q[2] * p[2]}
    lists.append(sides, q)
  end
  local lu, pivots = ops.linalg_lu_factor(core.tensor(factors, like), {check = false})
  if ops.diagonal(lu):abs():min():item() < 1e-12 then
    fail("%s: no three of the four points may be on one line", who)
  end
  return ops.linalg_lu_solve(lu, pivots, core.tensor(sides, like):unsqueeze(2)):view(-1):totable()
end

function images.perspective(x, coefficients, o, out)
  local fill = o.fill
  local numbers = {o.interpolation == "bilinear" and 1 or 0, fill and #fill or 0, unpack(coefficients)}
  return run("perspective", x, lists.append(numbers, fill or {}), out)
end

--- Samples x at a grid displaced by [1, H, W, 2] of {x, y}, in halves of the width and the height, by the options of
--- checks.mapping. It computes in float64 for integers of 32 and 64 bits, and otherwise in float32.
function images.elastic(x, displacement, o)
  local h, w, c = images.size(x)
  if table.concat(displacement.shape, " ") ~= ("1 %d %d 2"):format(h, w) then
    options.wrong_shape("elastic", "displacement", displacement, ("[1, %d, %d, 2]"):format(h, w))
  end
  if x:numel() == 0 then return x end
  local wide = x.dtype == "float64" or x.dtype == "int32" or x.dtype == "int64"
  local float = {dtype = wide and "float64" or "float32"}
  local function middles(n) return ops.linspace((1 - n) / n, (n - 1) / n, n, float) end
  local grid = ops.stack({middles(w):expand(h, w), middles(h):unsqueeze(2):expand(h, w)}, 3):unsqueeze(1)
  local planes, fill = x:reshape(-1, c, h, w):to(float.dtype):contiguous(), o.fill
  if fill then planes = ops.cat({planes, ops.ones({planes.shape[1], 1, h, w}, float)}, 2) end
  grid = (grid + displacement:to(float.dtype)):expand(planes.shape[1], -1, -1, -1)
  local y = ops.grid_sample(planes, grid, o.interpolation)
  if fill then
    local inside = y:narrow(2, c + 1, 1)
    if o.interpolation == "nearest" then inside = inside:ge(0.5):to(float.dtype) end
    local color = core.tensor(fill, float):reshape(1, -1, 1, 1)
    y = (y:narrow(2, 1, c) - color) * inside + color
  end
  if not core.is_floating_point(x) then y = y:round() end
  return y:reshape(x.shape):to(x.dtype)
end

return images

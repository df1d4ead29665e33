--- Implements Torch7's package image over lm.vision. An image is a tensor [C, H, W] or [H, W], of floats in [0, 1] or
--- of bytes; positions count from 0. Functions take the result first, if it is given: image.scale([result,] image, …).
local core = require "luminary.core"
local options = require "luminary.base.options"
local tensor = require "luminary.torch7.tensor"
local vision = require "luminary.vision"
local fail, ops, raw, wrap = options.fail, core.ops, tensor.raw, tensor.wrap

local image = {}

-- ---- files

-- Returns pixels in the form that load's arguments ask for.
local function loaded(pixels, depth, kind)
  if depth == 3 and pixels:size(1) ~= 3 then
    pixels = ops.cat({pixels:narrow(1, 1, 1), pixels:narrow(1, 1, 1), pixels:narrow(1, 1, 1)}, 1)
  end
  local dtype = tensor.dtype_of(kind and kind:gsub("^%l", string.upper) .. "Tensor" or "Tensor")
  local out = dtype == "uint8" and pixels or ops.div(pixels:to(dtype), 255)
  return wrap(ops.contiguous(out))
end
local modes, endings = {"gray", nil, "rgb"}, {png = true, jpeg = true, webp = true}
--- image.load(path [, depth [, type]]): Reads a file; depth is 1 or 3, type "float", "double" or "byte".
function image.load(path, depth, kind)
  return loaded(vision.read_image(path, {mode = modes[depth] or "unchanged"}), depth, kind)
end
--- image.decompress(bytes [, depth [, type]]): Decodes a ByteTensor that holds a file.
function image.decompress(bytes, depth, kind)
  return loaded(vision.decode_image(raw(bytes, "image.decompress"), {mode = modes[depth] or "unchanged"}), depth, kind)
end
-- Returns an image as bytes [C, H, W].
local function bytes_of(x)
  if x.dtype ~= "uint8" then x = ops.mul(ops.clamp_range(x, 0, 1), 255):to "uint8" end
  return ops.contiguous(x.ndim == 2 and ops.unsqueeze(x, 1) or x)
end
--- image.save(path, image): Writes a PNG, JPEG, WebP, by the path's ending; floats are limited to [0, 1].
function image.save(path, img)
  local x = bytes_of(raw(img, "image.save"))
  local ending = (path:match "%.(%a+)$" or ""):lower():gsub("^jpg$", "jpeg")
  if not endings[ending] then fail("image.save: unknown ending of '%s'; png, jpg and webp are known", path) end
  vision["write_" .. ending](x, path)
end
for _, kind in ipairs {"PNG", "JPG"} do
  image["load" .. kind], image["save" .. kind] = image.load, image.save
  image["decompress" .. kind] = image.decompress
end

--- image.compressJPG(image [, quality = 75]): Returns a ByteTensor with a JPEG file; floats are limited to [0, 1].
function image.compressJPG(img, quality)
  return wrap(vision.encode_jpeg(bytes_of(raw(img, "image.compressJPG")), {quality = quality or 75}))
end
--- image.getSize(path): Returns the channels, height and width of a file's image as a LongTensor.
function image.getSize(path) return tensor.new("int64", vision.read_image(path).shape) end

-- ---- geometry

-- Returns a function of an image and other arguments as image.name([result,] image, …).
local function into_result(f)
  return function(first, second, ...)
    if not tensor.is(second) then return wrap(f(raw(first, "image"), nil, second, ...)) end
    local y = f(raw(second, "image"), raw(first), ...)
    return first:resize(tensor.sizes(y.shape)):copy(wrap(y))
  end
end

-- Returns the matrix [to, from] that resizes a line: averages for fewer pixels, lines between pixels for more.
local function resizing(from, to, mode, like)
  local rows = {}
  for d = 1, to do
    local row = {}
    for s = 1, from do row[s] = 0 end
    if mode == "simple" then
      row[math.min(math.floor((d - 1) * from / to), from - 1) + 1] = 1
    elseif to < from and mode ~= "bicubic" then
      local low, high = (d - 1) * from / to, d * from / to
      for s = math.floor(low) + 1, math.min(math.ceil(high), from) do
        row[s] = math.max(math.min(high, s) - math.max(low, s - 1), 0) * to / from
      end
    else
      local at = to == 1 and 0 or (d - 1) * (from - 1) / (to - 1)
      local s = math.min(math.floor(at), math.max(from - 2, 0))
      local t = at - s
      -- weights of the pixels s - 1 to s + 2; those beyond the ends continue the line
      local w = mode ~= "bicubic" and {0, 1 - t, t, 0} or {t * (-0.5 + t - 0.5 * t * t), 1 + t * t * (1.5 * t - 2.5),
        t * (0.5 + t * (2 - 1.5 * t)), t * t * (0.5 * t - 0.5)}
      if s == 0 then w = {0, w[2] + 2 * w[1], w[3] - w[1], w[4]} end
      if s + 2 >= from then w = {w[1], w[2] - w[4], w[3] + 2 * w[4], 0} end
      for k, v in ipairs(w) do
        local p = math.min(math.max(s + k - 1, 1), from)
        row[p] = row[p] + v
      end
    end
    rows[d] = row
  end
  return core.tensor(rows, {dtype = like.dtype, device = like.device})
end
-- Returns a number without its fraction, as Torch7's C functions take it: programs compute sizes like 256 * w / h.
local function whole(v) return type(v) == "number" and (v < 0 and math.ceil(v) or math.floor(v)) or v end
-- Returns the width and height for "WxH", "MAX", "^MIN", "*FACTOR" and "*N/D", or a number MAX.
local function size_of(text, w, h)
  local width, height = tostring(text):match "^(%d+)x(%d+)$"
  if width then return tonumber(width), tonumber(height) end
  local sign, n, d = tostring(text):match "^([%^*]?)([%d.]+)/?(%d*)$"
  n = tonumber(n) or fail("image.scale: unknown size '%s'; sizes are WxH, MAX, ^MIN, *FACTOR and *N/D", tostring(text))
  local factor = sign == "*" and n / (tonumber(d) or 1) or n / (sign == "^" and math.min or math.max)(w, h)
  return math.max(math.floor(w * factor + 0.5), 1), math.max(math.floor(h * factor + 0.5), 1)
end
--- image.scale([result,] image, width, height [, mode]) or image.scale(image, size [, mode]): Resizes; mode "bilinear",
--- "bicubic" or "simple".
image.scale = into_result(function(x, result, width, height, mode)
  local h, w = x:size(-2), x:size(-1)
  if result and type(width) ~= "number" then
    width, height, mode = result:size(-1), result:size(-2), width
  elseif type(height) ~= "number" then
    mode, width, height = height, size_of(width, w, h)
  end
  width = options.arg("image.scale", "width", whole(width), "count")
  height = options.arg("image.scale", "height", whole(height), "count")
  local is_bytes = x.dtype == "uint8"
  local kind = is_bytes and x:to "float32" or x
  local y = ops.matmul(resizing(h, height, mode, kind), ops.contiguous(kind))
  y = ops.matmul(y, ops.transpose(resizing(w, width, mode, kind), 1, 2))
  return is_bytes and ops.clamp_range(ops.round(y), 0, 255):to "uint8" or y
end)
local corners = {c = {0.5, 0.5}, tl = {0, 0}, tr = {1, 0}, bl = {0, 1}, br = {1, 1}}
--- image.crop([result,] image, x1, y1 [, x2, y2]) or image.crop(image, "c" | "tl" | "tr" | "bl" | "br", width, height).
image.crop = into_result(function(x, result, x1, y1, x2, y2)
  if type(x1) == "string" then
    local at = corners[x1] or fail("image.crop: unknown corner '%s'; c, tl, tr, bl and br are known", x1)
    local w, h = y1, x2
    x1, y1 = math.floor((x:size(-1) - w) * at[1]), math.floor((x:size(-2) - h) * at[2])
    x2, y2 = x1 + w, y1 + h
  elseif not x2 then
    x2, y2 = x1 + result:size(-1), y1 + result:size(-2)
  end
  x1, y1, x2, y2 = whole(x1), whole(y1), whole(x2), whole(y2)
  return ops.contiguous(x:narrow(-1, x1 + 1, x2 - x1):narrow(-2, y1 + 1, y2 - y1))
end)
image.hflip = into_result(function(x) return ops.flip(x, -1) end)
image.vflip = into_result(function(x) return ops.flip(x, -2) end)
--- image.translate([result,] image, x, y): Moves an image to the right and down; the rest is 0.
image.translate = into_result(function(x, _, dx, dy) return ops.pad(x, {dx, -dx, dy, -dy}) end)
--- image.rotate([result,] image, angle [, mode]): Rotates around the center, counterclockwise by radians; mode "simple"
--- or "bilinear".
image.rotate = into_result(function(x, _, angle, mode)
  local degrees = math.deg(options.arg("image.rotate", "angle", angle, "number"))
  return vision.transforms.functional.rotate(x, degrees, {
    interpolation = mode == "bilinear" and "bilinear" or "nearest"})
end)

-- ---- colors and values

local function mixed(weights)
  return into_result(function(x)
    local m = core.tensor(weights, {dtype = x.dtype, device = x.device})
    return ops.reshape(ops.matmul(m, ops.reshape(x, {x:size(1), -1})), {#weights, x:size(-2), x:size(-1)})
  end)
end
local luma = {0.299, 0.587, 0.114}
image.rgb2y, image.rgb2yuv = mixed {luma}, mixed {luma, {-0.14713, -0.28886, 0.436}, {0.615, -0.51499, -0.10001}}
image.yuv2rgb = mixed {{1, 0, 1.13983}, {1, -0.39465, -0.5806}, {1, 2.03211, 0}}
-- Returns the planes of an RGB image: hue, lightness, value, and the saturations of HSL and HSV, all in [0, 1].
local function hues(x)
  local r, g, b = ops.select(x, 1, 1), ops.select(x, 1, 2), ops.select(x, 1, 3)
  local high, low = ops.amax(x, 1), ops.amin(x, 1)
  local d, zero = high - low, ops.zeros_like(r)
  local function ratio(a, by) return ops.where(ops.eq(by, 0), zero, a / by) end
  local h = ops.where(ops.eq(high, r), ops.remainder(ratio(g - b, d), 6),
    ops.where(ops.eq(high, g), ratio(b - r, d) + 2, ratio(r - g, d) + 4))
  local l = (high + low) / 2
  return ops.where(ops.eq(d, 0), zero, h / 6), l, high, ratio(d, 1 - ops.abs(l * 2 - 1)), ratio(d, high)
end
image.rgb2hsl = into_result(function(x)
  local h, l, _, s = hues(x)
  return ops.stack({h, s, l}, 1)
end)
image.rgb2hsv = into_result(function(x)
  local h, _, v, _, s = hues(x)
  return ops.stack({h, s, v}, 1)
end)
-- Returns RGB from hue, chroma and the value of the smallest color.
local function colored(h, chroma, low)
  local planes = {}
  for i, shift in ipairs {5, 3, 1} do
    local k = ops.remainder(h * 6 + shift, 6)
    planes[i] = low + chroma * (1 - ops.clamp_range(ops.minimum(k, 4 - k), 0, 1))
  end
  return ops.stack(planes, 1)
end
image.hsv2rgb = into_result(function(x)
  local s, v = ops.select(x, 1, 2), ops.select(x, 1, 3)
  return colored(ops.select(x, 1, 1), v * s, v - v * s)
end)
image.hsl2rgb = into_result(function(x)
  local s, l = ops.select(x, 1, 2), ops.select(x, 1, 3)
  local chroma = (1 - ops.abs(l * 2 - 1)) * s
  return colored(ops.select(x, 1, 1), chroma, l - chroma / 2)
end)
--- image.minmax {tensor = x, min = low, max = high}: Returns x with low as 0 and high as 1, by default its extremes.
function image.minmax(how)
  local x = tensor.is(how) and how or how.tensor
  local low, high = type(how) == "table" and how.min or x:min(), type(how) == "table" and how.max or x:max()
  local y = (x - low) / (high > low and high - low or 1)
  return type(how) == "table" and how.inplace and x:copy(y) or y
end
--- image.toDisplayTensor {input = images, nrow = 6, padding = 0, scaleeach = false, min =, max =}: Returns images
--- [N, C, H, W] or a list of them as one image, in rows.
function image.toDisplayTensor(how)
  if tensor.is(how) then how = {input = how} end
  local list = tensor.is(how.input) and raw(how.input) or ops.stack(tensor.raw_all(how.input), 1)
  if list.ndim == 2 or list.ndim == 3 and (list:size(1) == 3 or list:size(1) == 1) then
    return image.minmax {tensor = wrap(list), min = how.min, max = how.max}
  end
  local x = list.ndim == 3 and ops.unsqueeze(list, 2) or list
  local grid = vision.make_grid(x, {nrow = how.nrow or 6, padding = how.padding or 0, normalize = true,
    scale_each = how.scaleeach == true, value_range = how.min and {how.min, how.max} or nil})
  return wrap(x:size(2) == 1 and ops.contiguous(grid:narrow(1, 1, 1)) or grid)
end
-- Returns a Gaussian of n numbers with the largest in the middle.
local function gauss_curve(n, sigma)
  local values = {}
  for i = 1, n do values[i] = math.exp(-((i - (n + 1) / 2) / ((sigma or 0.25) * n)) ^ 2 / 2) end
  return core.tensor(values, {dtype = tensor.default})
end
-- Defines kernels by image.name(size, sigma, amplitude, normalize) or by a table of these names.
local function kernel(name, f)
  image[name] = function(size, sigma, amplitude, normalize)
    if type(size) == "table" then
      size, sigma, amplitude, normalize = size.size, size.sigma, size.amplitude, size.normalize
    end
    local y = ops.mul(f(gauss_curve(size or 3, sigma)), amplitude or 1)
    return wrap(normalize and ops.div(y, ops.sum(y)) or y)
  end
end
kernel("gaussian1D", function(b) return b end)
kernel("gaussian", function(b) return ops.mul(ops.unsqueeze(b, 1), ops.unsqueeze(b, 2)) end)
function image.display()
  fail "image.display: there is no window; image.save(path, image.toDisplayTensor(x)) writes a file"
end

return image

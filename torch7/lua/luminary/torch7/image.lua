--- Implements Torch7's package image over lm.vision. An image is a tensor [C, H, W] or [H, W], of floats in [0, 1] or
--- of bytes; positions count from 0. Functions take the result first, if it is given: image.scale([result,] image, …).
local core = require "luminary.core"
local lists = require "luminary.base.lists"
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
-- Returns numbers in the dtype of x: rounded and limited for bytes.
local function as_pixels(x, y)
  return x.dtype == "uint8" and ops.clamp_range(ops.floor(y + 0.5), 0, 255):to "uint8" or y:to(x.dtype)
end
-- Returns the width and height for "WxH", "MAX", "^MIN", "*FACTOR" and "*N/D", or a number MAX; fractions are cut.
local function size_of(text, w, h)
  local width, height = tostring(text):match "^(%d+)x(%d+)$"
  if width then return tonumber(width), tonumber(height) end
  local sign, n, d = tostring(text):match "^([%^*]?)([%d.]+)/?(%d*)$"
  n = tonumber(n) or fail("image.scale: unknown size '%s'; sizes are WxH, MAX, ^MIN, *FACTOR and *N/D", tostring(text))
  local by = sign == "*" and (tonumber(d) or 1) or (sign == "^" and math.min or math.max)(w, h)
  return math.max(w * n / by, 1), math.max(h * n / by, 1)
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
  local kind = x.dtype == "uint8" and x:to "float32" or x
  local y = ops.matmul(ops.contiguous(kind), ops.transpose(resizing(w, width, mode, kind), 1, 2))
  y = as_pixels(x, y):to(kind.dtype) -- bytes are rounded after each pass
  return as_pixels(x, ops.matmul(resizing(h, height, mode, kind), y))
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
-- Returns the pixels of x at rows and columns (from 0, both [h, w]).
local function pixels_at(x, row, column)
  local h, w = x:size(-2), x:size(-1)
  local at = ops.add(ops.add(ops.mul(ops.clamp_range(row, 0, h - 1), w), ops.clamp_range(column, 0, w - 1)), 1)
  local y = ops.index_select(ops.reshape(x, {-1, h * w}), 2, ops.reshape(at:to "int64", {-1}))
  return ops.reshape(y, x.shape)
end
--- image.rotate([result,] image, angle [, mode]): Rotates around the center, counterclockwise by radians; mode "simple"
--- or "bilinear".
image.rotate = into_result(function(x, _, angle, mode)
  options.arg("image.rotate", "angle", angle, "number")
  local h, w, is_nearest = x:size(-2), x:size(-1), mode ~= "bilinear"
  local dtype = is_nearest and "float32" or "float64"
  local kind = x.dtype == "float64" and dtype or "float32"
  local function single(v) return core.tensor({v}, {dtype = "float32"}) end -- C computes with floats
  local theta, xc, yc = single(angle):item(), (w - 1) / 2, (h - 1) / 2
  local cos, sin = single(math.cos(theta)), single(math.sin(theta))
  if not is_nearest then cos, sin = math.cos(theta), math.sin(theta) end
  local i, j = ops.arange(0, w, {dtype = dtype}) - xc, ops.unsqueeze(ops.arange(0, h, {dtype = dtype}), 2) - yc
  local ri, rj = (i * cos - j * sin):to(kind) + xc, (j * cos + i * sin):to(kind) + yc
  if is_nearest then
    local function rounded(at) return ops.mul(ops.sign(at), ops.floor(ops.abs(at:to "float64") + 0.5)) end -- as C's
    ri, rj = rounded(ri), rounded(rj)
    local inside = ops.clamp_range(ri, 0, w - 1):eq(ri):logical_and(ops.clamp_range(rj, 0, h - 1):eq(rj))
    return ops.mul(pixels_at(x, rj, ri), inside:to(x.dtype))
  end
  -- Returns the two nearest positions of n, the weight of the second, and where both are inside.
  local function between(at, n)
    local low = ops.floor(at)
    local t, high = at - low, low + 1
    high = ops.where(high:eq(n):logical_and(t:lt(0.5)), low, high)
    low = ops.where(low:eq(-1):logical_and(t:gt(0.5)), high, low)
    return low, high, t, low:ge(0):logical_and(high:lt(n))
  end
  local i0, i1, wi, inside_i = between(ri, w)
  local j0, j1, wj, inside_j = between(rj, h)
  local y = x:to(kind)
  y = pixels_at(y, j0, i0) * ((1 - wi) * (1 - wj)) + pixels_at(y, j0, i1) * (wi * (1 - wj))
    + pixels_at(y, j1, i0) * ((1 - wi) * wj) + pixels_at(y, j1, i1) * (wi * wj)
  return as_pixels(x, y * inside_i:logical_and(inside_j):to(kind))
end)

-- ---- colors and values

-- Returns a function of colors in [0, 1] as one of images; bytes are colors times 255.
local function of_colors(f)
  return into_result(function(x)
    return x.dtype == "uint8" and as_pixels(x, f(x:to "float32" / 255) * 255) or f(x)
  end)
end
local function mixed(weights)
  return of_colors(function(x)
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
image.rgb2hsl = of_colors(function(x)
  local h, l, _, s = hues(x)
  return ops.stack({h, s, l}, 1)
end)
image.rgb2hsv = of_colors(function(x)
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
image.hsv2rgb = of_colors(function(x)
  local s, v = ops.select(x, 1, 2), ops.select(x, 1, 3)
  return colored(ops.select(x, 1, 1), v * s, v - v * s)
end)
image.hsl2rgb = of_colors(function(x)
  local s, l = ops.select(x, 1, 2), ops.select(x, 1, 3)
  local chroma = (1 - ops.abs(l * 2 - 1)) * s
  return colored(ops.select(x, 1, 1), chroma, l - chroma / 2)
end)
-- Returns the values of arguments with these names, given in a table or one by one.
local function named(names, first, ...)
  local list, given = {first, ...}, type(first) == "table" and getmetatable(first) == nil and first or nil
  for i, name in ipairs(names) do
    if given and given[1] == nil then list[i] = given[name] end
  end
  return unpack(list, 1, #names)
end
--- image.minmax {tensor = x, min = low, max = high, symm = false, saturate = false, inplace = false, tensorOut =}:
--- Returns x with low as 0 and high as 1, by default its extremes, or with symm minus and plus the larger of them;
--- limited to [0, 1] with saturate if an extreme is given.
function image.minmax(how)
  if tensor.is(how) then how = {tensor = how} end
  local x = how.tensor
  local y = how.tensorOut or how.inplace and x or tensor.new(tensor.default)
  if y ~= x then y:resize(x:size()):copy(x) end
  local low, high = how.min, how.max
  local largest = how.symm and math.max(math.abs(y:min()), math.abs(y:max()))
  low = low or largest and -largest or y:min()
  y:add(-low)
  high = high and high - low or largest and 2 * (how.min and 0 or largest) or y:max()
  if high ~= 0 then y:div(high) end
  return how.saturate and (how.min or how.max) and y:clamp(0, 1) or y
end
--- image.toDisplayTensor {input = images, padding = 0, nrow = 6, scaleeach = false, min =, max =, symmetric = false,
--- saturate = true}, or these in order: Returns images [N, C, H, W], [N, H, W] or a list of them as one image, in rows.
function image.toDisplayTensor(...)
  local input, padding, nrow, each, min, max, symm, saturate = named(
    {"input", "padding", "nrow", "scaleeach", "min", "max", "symmetric", "saturate"}, ...)
  local x = tensor.is(input) and raw(input) or ops.stack(tensor.raw_all(input), 1)
  if type(input) == "table" and x.ndim == 3 then x = ops.unsqueeze(x, 2) end
  x = ops.clone(x:to(tensor.default))
  local function scaled(y)
    saturate = saturate ~= false
    return image.minmax {tensor = wrap(y), inplace = true, min = min, max = max, symm = symm, saturate = saturate}
  end
  local has_planes = x.ndim == 4 and (x:size(2) == 1 or x:size(2) == 3)
  if x.ndim == 2 or x.ndim == 3 and (x:size(1) == 1 or x:size(1) == 3) then return scaled(x) end
  if not has_planes and x.ndim ~= 3 then
    fail("image.toDisplayTensor: expected images [H, W] or [1 or 3, H, W], got sizes %s", table.concat(x.shape, "x"))
  end
  if each then for i = 1, x:size(1) do scaled(ops.select(x, 1, i)) end end
  padding = padding or 0
  local n, h, w = x:size(1), x:size(-2) + padding, x:size(-1) + padding
  local columns = math.min(nrow or 6, n)
  local sizes = {h * math.ceil(n / columns), w * columns}
  if has_planes then table.insert(sizes, 1, x:size(2)) end
  local grid = ops.full(sizes, ops.amax(x):item(), {dtype = x.dtype})
  for k = 0, n - 1 do
    local row, column = math.floor(k / columns) * h, k % columns * w
    grid:narrow(-2, math.floor(row + 1 + padding / 2), h - padding):narrow(-1, math.floor(column + 1 + padding / 2),
      w - padding):copy_(ops.select(x, 1, k + 1))
  end
  return each and wrap(grid) or scaled(grid)
end
-- Returns a Gaussian of n numbers around `mean`, a part of n.
local function gauss_curve(n, sigma, mean)
  local values = {}
  for i = 1, n do values[i] = math.exp(-((i - (mean or 0.5) * n - 0.5) / ((sigma or 0.25) * n)) ^ 2 / 2) end
  return core.tensor(values, {dtype = "float64"})
end
-- Returns a kernel times its amplitude, in a tensor if that is given.
local function kernel(y, amplitude, normalize, into)
  y = wrap(ops.mul(y, normalize and 1 / ops.sum(y):item() or amplitude or 1):to(tensor.default))
  return into and into:copy(y) or y
end
--- image.gaussian1D(size = 3, sigma = 0.25, amplitude = 1, normalize = false, mean = 0.5, tensor), or a table of these:
--- Returns a Gaussian; sigma and mean are parts of the size.
function image.gaussian1D(...)
  local size, sigma, amplitude, normalize, mean, into = named(
    {"size", "sigma", "amplitude", "normalize", "mean", "tensor"}, ...)
  return kernel(gauss_curve(into and into:size(1) or size or 3, sigma, mean), amplitude, normalize, into)
end
--- image.gaussian(size = 3, sigma = 0.25, amplitude = 1, normalize = false, width = size, height = size,
--- sigma_horz = sigma, sigma_vert = sigma, mean_horz = 0.5, mean_vert = 0.5, tensor), or a table: Returns a kernel.
function image.gaussian(...)
  local size, sigma, amplitude, normalize, width, height, sigma_u, sigma_v, mean_u, mean_v, into = named(lists.parts
    "size sigma amplitude normalize width height sigma_horz sigma_vert mean_horz mean_vert tensor", ...)
  if into then height, width = into:size(1), into:size(2) end
  local u = gauss_curve(width or size or 3, sigma_u or sigma, mean_u)
  local v = gauss_curve(height or size or 3, sigma_v or sigma, mean_v)
  return kernel(ops.mul(ops.unsqueeze(v, 2), ops.unsqueeze(u, 1)), amplitude, normalize, into)
end
function image.display()
  fail "image.display: there is no window; image.save(path, image.toDisplayTensor(x)) writes a file"
end

return image

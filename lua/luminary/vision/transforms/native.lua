--- Runs transforms of C by name, on an image or on each of a batch. A result may be written to `out`, if it is passed;
--- compare the result with `out` to find if it was.
local core = require "luminary.core"
local options = require "luminary.base.options"
local fail, describe = options.fail, options.describe

local native = {}

--- Returns height, width and channels.
function native.size(x)
  local shape = x.shape
  local n = #shape
  return shape[n - 1], shape[n], n > 2 and shape[n - 2] or 1
end

local run = core.image_transform

-- Transforms of colors: functions of an image of integers, their largest value and a number; or true, for float64.
local COLORS = {brightness = true, contrast = true, saturation = true, hue = true, sharpness = true, grayscale = true,
  autocontrast = true, gamma = true}
function COLORS.invert(x, most) return x:bitwise_xor(most) end
function COLORS.posterize(x, most, bits) return x:bitwise_and(most - (most + 0LL) / 2 ^ bits) end
function COLORS.solarize(x, most, threshold)
  if threshold > tonumber(most) then options.must_be("solarize", "threshold", "at most " .. most, threshold) end
  return core.ops.where(x:ge(threshold), x:bitwise_xor(most), x)
end

local function run_on_integers(name, x, numbers)
  local most, exact = require("luminary.tensor.dtype_info").iinfo(x.dtype).max, COLORS[name]
  if exact ~= true then return exact(x.dtype == "uint16" and x:int() or x, most, numbers[1]):to(x.dtype) end
  local white = tonumber(most)
  local y = run(name, x:double():mul_(1 / white), numbers):mul_(white):add_(1e-4):floor_()
  return y:clamp_(0, math.min(white, 2 ^ 63 - 1024)):to(x.dtype)
end

-- Returns the result for images without elements: that for one element in each empty dim, without it.
local function run_on_empty(name, x, numbers)
  local shape, n = {unpack(x.shape)}, x.ndim
  if (name == "resize" or name == "pad") and shape[n - 1] * shape[n] == 0 then return run(name, x, numbers) end
  if name == "blur" or name == "affine" and numbers[1] * numbers[2] == 0 then return x end
  for i = 1, n do shape[i] = math.max(shape[i], 1) end
  local y = native.run(name, core.ops.zeros(shape, {dtype = x.dtype, device = x.device}), numbers)
  for i = -n, -1 do
    local at = i > -3 and name == "rotate90" and numbers[1] % 2 == 1 and -3 - i or i
    if x.shape[n + 1 + i] == 0 then y = y:narrow(at, 1, 0) end
  end
  return y
end

--- Runs a transform of C by its name (src/image/transform.h), also on images that C refuses.
function native.run(name, x, numbers, out)
  local dtype = x.dtype
  if x:numel() == 0 then return run_on_empty(name, x, numbers) end
  if dtype == "bool" and (name == "blur" or name == "affine" or name == "perspective") then -- true from a half on
    return run(name, x:float(), numbers):round():to(dtype)
  end
  local as_is = not COLORS[name] or dtype == "uint8" or dtype == "bool" or core.is_floating_point(dtype)
  return as_is and run(name, x, numbers, out) or run_on_integers(name, x, numbers)
end

--- Returns the results of f(image, out) for each image of a batch, as a batch.
function native.each(who, x, f)
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
      all = core.ops.empty({n, unpack(y.shape)}, {dtype = y.dtype, device = y.device})
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

return native

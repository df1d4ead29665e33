--- Blurs, normalizes and equalizes images, and converts them to other dtypes.
local core = require "luminary.core"
local options = require "luminary.base.options"
local native = require "luminary.vision.transforms.native"
local fail = options.fail
local run = native.run

local pixels = {}

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
function pixels.blur(x, kernel_size, sigma, out)
  local numbers = {kernel_size[1], kernel_size[2]}
  gaussian(kernel_size[1], sigma[1], numbers)
  gaussian(kernel_size[2], sigma[2], numbers)
  return run("blur", x, numbers, out)
end

-- ---- numbers

--- Normalizes an image. statistics: from checks.statistics. scale: true to scale uint8's 0 to 255 to 0 to 1 first.
function pixels.normalize(x, statistics, scale, out)
  local _, _, c = native.size(x)
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
function pixels.to_dtype(who, x, dtype, scale, out)
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
function pixels.equalize(who, x, out)
  if x.dtype == "uint8" then return run("equalize", x, {}, out) end
  local bytes = pixels.to_dtype(who, x, "uint8", true)
  return pixels.to_dtype(who, run("equalize", bytes, {}), x.dtype, true, out)
end

return pixels

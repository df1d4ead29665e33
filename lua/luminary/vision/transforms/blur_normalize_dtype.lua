--- Blurring, normalizing, and images of another dtype.
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

--- kernel_size and sigma: {along x, along y}.
function pixels.blur(x, kernel_size, sigma, out)
  local numbers = {kernel_size[1], kernel_size[2]}
  gaussian(kernel_size[1], sigma[1], numbers)
  gaussian(kernel_size[2], sigma[2], numbers)
  return run("blur", x, numbers, out)
end

-- ---- numbers

--- statistics: of checks.statistics. scale: uint8's 0 to 255 are 0 to 1 first.
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

--- In another dtype; with scale, white stays white.
function pixels.to_dtype(who, x, dtype, scale, out)
  local from = x.dtype
  if from == dtype then return x end
  local floating = core.is_floating_point(from)
  if not scale or floating and core.is_floating_point(dtype) then return x:to(dtype) end
  local kept = from == "float32" or from == "float64"
  if from == "uint8" and dtype == "float32" or kept and dtype == "uint8" then return run("convert", x, {}, out) end
  if from == "uint8" and core.is_floating_point(dtype) then return x:to(dtype) * (1 / 255) end
  fail("%s: scale = true converts between uint8 and floating dtypes, got %s to %s", who, from, dtype)
end

return pixels

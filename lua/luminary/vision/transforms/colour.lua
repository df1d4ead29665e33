--- Transforms of pixels' values.
local core = require "luminary.core"
local options = require "luminary.options"
local image = require "luminary.vision.transforms.image"
local base = require "luminary.vision.transforms.transform"
local fail, define, run = options.fail, base.define, image.run

-- ---- dtypes and scales

--- transforms.ToDtype(dtype [, {scale = false}]): the image in that dtype; with scale, from 0 to 255 (uint8) becomes
--- from 0 to 1 (floats), and the other way round.
local ToDtype = define("ToDtype", "dtype scale")

function ToDtype:init(dtype, opts)
  self.dtype = core.dtype(options.arg("ToDtype", "dtype", dtype, "string"))
  self.scale = options.check("ToDtype", opts, {scale = {"boolean", false}}, "scale").scale
  self.scales_to = self.scale and self.dtype or nil
end

function ToDtype:_apply(x, out) return image.to_dtype("ToDtype", x, self.dtype, self.scale, out) end

--- transforms.ConvertImageDtype([dtype = "float32"]): ToDtype with scale.
local ConvertImageDtype = define("ConvertImageDtype", "dtype")

function ConvertImageDtype:init(dtype)
  self.dtype = core.dtype(options.arg("ConvertImageDtype", "dtype", dtype or "float32", "string"))
  self.scales_to = self.dtype
end

function ConvertImageDtype:_apply(x, out) return image.to_dtype("ConvertImageDtype", x, self.dtype, true, out) end

--- transforms.ToTensor(): uint8 as float32 from 0 to 1; floats stay as they are.
local ToTensor = define "ToTensor"
ToTensor.scales_to = "float32"

function ToTensor:_apply(x, out) -- luacheck: no self
  return x.dtype == "uint8" and image.to_dtype("ToTensor", x, "float32", true, out) or x
end

--- transforms.Normalize(mean, std): (x - mean) / std of a float image, each a list of one number for each channel. In
--- a Compose after ToTensor() or ToDtype("float32", {scale = true}) both are one pass.
local Normalize = define("Normalize", "mean std")
function Normalize:init(mean, std)
  self.statistics = image.statistics("Normalize", mean, std)
  self.mean, self.std = mean, std
end
function Normalize:_apply(x, out) return image.normalize(x, self.statistics, false, out) end
function Normalize:_apply_scaled(x, out) return image.normalize(x, self.statistics, true, out) end

-- ---- grey

--- transforms.Grayscale([{num_output_channels = 1}]): 0.2989 red + 0.587 green + 0.114 blue, as 1 or 3 channels.
local Grayscale = define("Grayscale", "num_output_channels")

function Grayscale:init(opts)
  opts = options.check("Grayscale", opts, {num_output_channels = {"count", 1}}, "num_output_channels")
  self.num_output_channels = opts.num_output_channels
  if self.num_output_channels ~= 1 and self.num_output_channels ~= 3 then
    fail("Grayscale: num_output_channels has to be 1 or 3, got %d", self.num_output_channels)
  end
end

function Grayscale:_apply(x, out) return run("grayscale", x, {self.num_output_channels}, out) end

-- Classes that do something with probability p: name, what print shows, what is done.
local function define_maybe(name, shows, change)
  local new = define(name, shows)
  new.draws = true
  function new:_apply(x, out)
    if not image.chance(self.p) then return x end
    return change(self, x, out)
  end
  return new
end

local function probability(who, p, default) return options.arg(who, "p", p or default, "probability") end

--- transforms.RandomGrayscale([p = 0.1]): grey with probability p, with as many channels as before.
local RandomGrayscale = define_maybe("RandomGrayscale", "p", function(_, x, out)
  local _, _, channels = image.size(x)
  return run("grayscale", x, {channels}, out)
end)
function RandomGrayscale:init(p) self.p = probability("RandomGrayscale", p, 0.1) end

-- ---- colours

--- transforms.ColorJitter([{brightness, contrast, saturation, hue}]): each adjusted by a random factor, in a random
--- order: from 1 - v to 1 + v, or from {least, largest}; hue from -v to v, at most 0.5.
local ColorJitter = define("ColorJitter", "brightness contrast saturation hue")
ColorJitter.draws = true
local kinds = {"brightness", "contrast", "saturation", "hue"}

function ColorJitter:init(opts)
  local who = "ColorJitter"
  opts = options.check(who, opts, {
    brightness = {"any"}, contrast = {"any"}, saturation = {"any"}, hue = {"any"},
  }, "brightness")
  self.ranges = {}
  for i, kind in ipairs(kinds) do
    local v = opts[kind]
    local middle, low, high = kind == "hue" and 0 or 1, kind == "hue" and -0.5 or 0, kind == "hue" and 0.5 or nil
    if type(v) == "number" then
      image.number(who, kind, v, 0, high)
      v = {math.max(middle - v, low), middle + v}
    end
    if v ~= nil then
      v = image.range(who, kind, v, low, high)
      if v[1] ~= middle or v[2] ~= middle then self.ranges[i], self[kind] = v, v end
    end
  end
end

function ColorJitter:_apply(x, out)
  local order, factors, todo = image.order(4), {}, {}
  for i = 1, 4 do
    local range = self.ranges[i]
    if range then factors[i] = image.uniform(range[1], range[2]) end
  end
  for _, i in ipairs(order) do
    if factors[i] then todo[#todo + 1] = i end
  end
  local y = x
  for k, i in ipairs(todo) do
    local made = run(kinds[i], y, {factors[i]}, k == #todo and out or nil)
    if k > 1 then y:free() end
    y = made
  end
  return y
end

--- transforms.GaussianBlur(kernel_size [, {sigma = {0.1, 2}}]): functional.gaussian_blur with a sigma from {least,
--- largest}, or with that one.
local GaussianBlur = define("GaussianBlur", "kernel_size sigma")
GaussianBlur.draws = true

function GaussianBlur:init(kernel_size, opts)
  local sigma = options.check("GaussianBlur", opts, {sigma = {"any", {0.1, 2}}}, "sigma").sigma
  self.kernel_size = image.kernel_size("GaussianBlur", kernel_size)
  if type(sigma) == "number" then sigma = {sigma, sigma} end
  self.sigma = image.range("GaussianBlur", "sigma", sigma, 1e-6)
end

function GaussianBlur:_apply(x, out)
  local sigma = image.uniform(self.sigma[1], self.sigma[2])
  return image.blur(x, self.kernel_size, {sigma, sigma}, out)
end

--- transforms.RandomInvert([p = 0.5]): black for white with probability p.
local RandomInvert = define_maybe("RandomInvert", "p", function(_, x, out) return run("invert", x, {}, out) end)
function RandomInvert:init(p) self.p = probability("RandomInvert", p, 0.5) end

--- transforms.RandomPosterize(bits [, p = 0.5]): with probability p the upper bits of each value alone.
local RandomPosterize = define_maybe("RandomPosterize", "bits p", function(self, x, out)
  return run("posterize", x, {self.bits}, out)
end)

function RandomPosterize:init(bits, p)
  self.bits, self.p = image.whole("RandomPosterize", "bits", bits, 0), probability("RandomPosterize", p, 0.5)
  if bits > 8 then fail("RandomPosterize: bits has to be from 0 to 8, got %d", bits) end
end

--- transforms.RandomSolarize(threshold [, p = 0.5]): with probability p values from the threshold on are inverted.
local RandomSolarize = define_maybe("RandomSolarize", "threshold p", function(self, x, out)
  return run("solarize", x, {self.threshold}, out)
end)

function RandomSolarize:init(threshold, p)
  self.threshold = image.number("RandomSolarize", "threshold", threshold)
  self.p = probability("RandomSolarize", p, 0.5)
end

--- transforms.RandomAutocontrast([p = 0.5]): with probability p each channel stretched from black to white.
local RandomAutocontrast = define_maybe("RandomAutocontrast", "p", function(_, x, out)
  return run("autocontrast", x, {}, out)
end)
function RandomAutocontrast:init(p) self.p = probability("RandomAutocontrast", p, 0.5) end

--- transforms.RandomEqualize([p = 0.5]): with probability p each channel's values spread evenly; of uint8 images.
local RandomEqualize = define_maybe("RandomEqualize", "p", function(_, x, out) return run("equalize", x, {}, out) end)
function RandomEqualize:init(p) self.p = probability("RandomEqualize", p, 0.5) end

--- transforms.RandomAdjustSharpness(sharpness_factor [, p = 0.5]): with probability p blurred (0) or sharpened (above
--- 1).
local RandomAdjustSharpness = define_maybe("RandomAdjustSharpness", "sharpness_factor p", function(self, x, out)
  return run("sharpness", x, {self.sharpness_factor}, out)
end)

function RandomAdjustSharpness:init(sharpness_factor, p)
  self.sharpness_factor = image.number("RandomAdjustSharpness", "sharpness_factor", sharpness_factor, 0)
  self.p = probability("RandomAdjustSharpness", p, 0.5)
end

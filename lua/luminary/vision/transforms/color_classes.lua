--- Defines transforms of pixels' values.
local lists = require "luminary.base.lists"
local options = require "luminary.base.options"
local checks = require "luminary.vision.transforms.check_arguments"
local images = require "luminary.vision.transforms.image_operations"
local draw = require "luminary.vision.transforms.random"
local transform = require("luminary.vision.transforms.transform_and_compose").define
local run = images.run

-- ---- dtypes and scales

transform "ToDtype(dtype: dtype, {scale = false})" {
  after_init = function(self) self.scales_to = self.scale and self.dtype or nil end,
  apply = function(self, x, out) return images.to_dtype("ToDtype", x, self.dtype, self.scale, out) end,
  help = "Converts an image to a dtype, optionally scaling its values.",
}

transform [[ConvertImageDtype({dtype: dtype = "float32"})]] {
  after_init = function(self) self.scales_to = self.dtype end,
  apply = function(self, x, out) return images.to_dtype("ConvertImageDtype", x, self.dtype, true, out) end,
  help = "Converts an image to a dtype and scales its values.",
}

local ToTensor = transform "ToTensor()" {
  apply = function(_, x, out)
    return x.dtype == "uint8" and images.to_dtype("ToTensor", x, "float32", true, out) or x
  end,
  help = "Converts a uint8 image to float32, scaling its values from [0, 255] to [0, 1].",
}
ToTensor.scales_to = "float32"

local Normalize = transform "Normalize(mean, std)" {
  after_init = function(self) self.statistics = checks.statistics("Normalize", self.mean, self.std) end,
  apply = function(self, x, out) return images.normalize(x, self.statistics, false, out) end,
  help = "Normalizes a float image with mean and standard deviation.",
}
function Normalize:_apply_scaled(x, out) return images.normalize(x, self.statistics, true, out) end

-- ---- gray

transform "Grayscale({num_output_channels: count = 1})" {
  after_init = function(self)
    if self.num_output_channels ~= 1 and self.num_output_channels ~= 3 then
      options.must_be("Grayscale", "num_output_channels", "1 or 3", self.num_output_channels)
    end
  end,
  apply = function(self, x, out) return run("grayscale", x, {self.num_output_channels}, out) end,
  help = "Converts an image to grayscale.",
}

transform "RandomGrayscale({p: probability = 0.1})" {
  chance = true,
  apply = function(_, x, out)
    local _, _, channels = images.size(x)
    return run("grayscale", x, {channels}, out)
  end,
  help = "Converts an image to grayscale with a given probability.",
}

-- ---- colors

local kinds = {"brightness", "contrast", "saturation", "hue"}

transform "ColorJitter({brightness, contrast, saturation, hue})" {
  draws = true,
  after_init = function(self)
    self.ranges = {}
    for i, kind in ipairs(kinds) do
      local v = self[kind]
      local middle, low, high = kind == "hue" and 0 or 1, kind == "hue" and -0.5 or 0, kind == "hue" and 0.5 or nil
      if type(v) == "number" then
        options.arg("ColorJitter", kind, v, high and "finite(0, 0.5)" or "finite(0)")
        v = {math.max(middle - v, low), middle + v}
      end
      if v ~= nil then
        v = checks.range("ColorJitter", kind, v, low, high)
        if v[1] ~= middle or v[2] ~= middle then self.ranges[i], self[kind] = v, v end
      end
    end
  end,
  apply = function(self, x, out)
    local order, factors = draw.order(4), {}
    for i = 1, 4 do
      local range = self.ranges[i]
      if range then factors[i] = draw.uniform(range[1], range[2]) end
    end
    local todo, y = lists.filter(order, function(i) return factors[i] end), x
    for k, i in ipairs(todo) do
      local result = run(kinds[i], y, {factors[i]}, k == #todo and out or nil)
      if k > 1 then y:free() end
      y = result
    end
    return y
  end,
  help = "Randomly changes the brightness, contrast, saturation and hue of an image.",
}

transform "GaussianBlur(kernel_size: odd_sizes, {sigma: any = {0.1, 2}})" {
  draws = true,
  after_init = function(self)
    local sigma = self.sigma
    if type(sigma) == "number" then sigma = {sigma, sigma} end
    self.sigma = checks.range("GaussianBlur", "sigma", sigma, 1e-6)
  end,
  apply = function(self, x, out)
    local sigma = draw.uniform(self.sigma[1], self.sigma[2])
    return images.blur(x, self.kernel_size, {sigma, sigma}, out)
  end,
  help = "Blurs an image with a Gaussian kernel.",
}

-- Defines a transform that runs, with probability p, one of C's transforms with its argument, if it has one.
local function random(text, operation, help)
  local field = text:match "%(([%w_]+)"
  transform(text) {
    chance = true, help = help,
    apply = function(self, x, out) return run(operation, x, {field and self[field]}, out) end,
  }
end

random("RandomInvert({p: probability = 0.5})", "invert", "Inverts the colors of an image with a given probability.")
random("RandomPosterize(bits: integer(0, 8), {p: probability = 0.5})", "posterize",
  "Keeps the upper bits of each value of an image with a given probability.")
random("RandomSolarize(threshold: finite, {p: probability = 0.5})", "solarize",
  "Inverts all values of an image from a threshold on with a given probability.")
random("RandomAutocontrast({p: probability = 0.5})", "autocontrast",
  "Maximizes the contrast of each channel of an image with a given probability.")
transform "RandomEqualize({p: probability = 0.5})" {
  chance = true, apply = function(self, x, out) return images.equalize(self.__name, x, out) end,
  help = "Equalizes the histogram of each channel of an image with a given probability.",
}
random("RandomAdjustSharpness(sharpness_factor: finite(0), {p: probability = 0.5})", "sharpness",
  "Adjusts the sharpness of an image with a given probability.")

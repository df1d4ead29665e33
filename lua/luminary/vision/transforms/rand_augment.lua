--- Defines RandAugment and TrivialAugment: random choices of transforms and of their strength.
local options = require "luminary.base.options"
local checks = require "luminary.vision.transforms.check_arguments"
local images = require "luminary.vision.transforms.image_operations"
local draw = require "luminary.vision.transforms.random"
local transform = require("luminary.vision.transforms.transform_and_compose").define
local run = images.run

local function sheared(x, shear, how, out)
  local h, w = images.size(x)
  local m = images.affine_matrix(0, {0, 0}, 1, shear, {-w / 2, -h / 2}) -- shears about the corner
  return images.affine(x, m, how, nil, nil, out)
end

local function translated(x, translate, how, out)
  return images.affine(x, images.affine_matrix(0, translate, 1, {0, 0}, {0, 0}), how, nil, nil, out)
end

local function toward_zero(v) return v < 0 and math.ceil(v) or math.floor(v) end

local function adjusted(name) return function(x, v, _, out) return run(name, x, {1 + v}, out) end end
local function plain(name) return function(x, _, _, out) return run(name, x, {}, out) end end

-- The ops: name, true if the strength can be negative, and function of an image and a strength.
local ops = {
  {"Identity", false, function(x) return x end},
  {"ShearX", true, function(x, v, how, out) return sheared(x, {math.deg(math.atan(v)), 0}, how, out) end},
  {"ShearY", true, function(x, v, how, out) return sheared(x, {0, math.deg(math.atan(v))}, how, out) end},
  {"TranslateX", true, function(x, v, how, out) return translated(x, {toward_zero(v), 0}, how, out) end},
  {"TranslateY", true, function(x, v, how, out) return translated(x, {0, toward_zero(v)}, how, out) end},
  {"Rotate", true, function(x, v, how, out) return images.rotate(x, v, how, out) end},
  {"Brightness", true, adjusted "brightness"},
  {"Color", true, adjusted "saturation"},
  {"Contrast", true, adjusted "contrast"},
  {"Sharpness", true, adjusted "sharpness"},
  {"Posterize", false, function(x, v, _, out) return run("posterize", x, {v}, out) end},
  {"Solarize", false, function(x, v, _, out)
    return run("solarize", x, {v * (x.dtype == "uint8" and 255 or 1)}, out)
  end},
  {"AutoContrast", false, plain "autocontrast"},
  {"Equalize", false, function(x, _, _, out) return images.equalize("equalize", x, out) end},
}

-- Returns the strength at the fraction `part`, 0 to 1, of the largest, `most` by the op's name.
local function strength(name, part, most, bits)
  if name == "Posterize" then return 8 - images.round(part * bits) end
  if name == "Solarize" then return 1 - part end
  return part * (most[name] or 0)
end

-- Applies a random op at `level` of `bins` strengths; a random level if it is nil.
local function augment(self, x, level, bins, most, bits, out)
  local op = ops[1 + draw.below(#ops)]
  if not level then level = draw.below(bins) end
  local v = strength(op[1], bins > 1 and level / (bins - 1) or 0, most, bits)
  if op[2] and draw.uniform(0, 1) <= 0.5 then v = -v end
  return op[3](x, v, self, out)
end

local common = "num_magnitude_bins: count = 31, " .. checks.mapping .. "})"

transform("RandAugment({num_ops: natural = 2, magnitude: natural = 9, " .. common) {
  draws = true, after_init = function(self)
    if self.magnitude >= self.num_magnitude_bins then
      options.must_be("RandAugment", "magnitude", ("less than num_magnitude_bins, %d"):format(self.num_magnitude_bins),
        self.magnitude)
    end
  end,
  apply = function(self, x, out)
    local h, w = images.size(x)
    local most = {
      ShearX = 0.3, ShearY = 0.3, TranslateX = 150 / 331 * w, TranslateY = 150 / 331 * h, Rotate = 30,
      Brightness = 0.9, Color = 0.9, Contrast = 0.9, Sharpness = 0.9,
    }
    for i = 1, self.num_ops do
      x = augment(self, x, self.magnitude, self.num_magnitude_bins, most, 4, i == self.num_ops and out or nil)
    end
    return x
  end,
  help = [[Applies the RandAugment data augmentation. Cubuk et al., "RandAugment: Practical automated data
    augmentation with a reduced search space", 2019.]],
}

local widest = {
  ShearX = 0.99, ShearY = 0.99, TranslateX = 32, TranslateY = 32, Rotate = 135, Brightness = 0.99, Color = 0.99,
  Contrast = 0.99, Sharpness = 0.99,
}

transform("TrivialAugmentWide({" .. common) {
  draws = true,
  apply = function(self, x, out) return augment(self, x, nil, self.num_magnitude_bins, widest, 6, out) end,
  help = [[Applies the TrivialAugment Wide data augmentation. Müller and Hutter, "TrivialAugment: Tuning-free Yet
    State-of-the-Art Data Augmentation", 2021.]],
}

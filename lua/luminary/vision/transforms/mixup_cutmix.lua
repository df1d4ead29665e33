--- Mixes the samples of a batch, and their labels.
local core = require "luminary.core"
local class = require "luminary.base.class"
local options = require "luminary.base.options"
local signature = require "luminary.base.signature"
local checks = require "luminary.vision.transforms.check_arguments"
local images = require "luminary.vision.transforms.image_operations"
local draw = require "luminary.vision.transforms.random"
local base = require "luminary.vision.transforms.transform_and_compose"
local fail, describe, ops = options.fail, options.describe, core.ops

local function normal()
  return math.sqrt(-2 * math.log(1 - draw.uniform(0, 1))) * math.cos(2 * math.pi * draw.uniform(0, 1))
end

-- Draws the logarithm of a gamma variable (Marsaglia and Tsang, "A Simple Method for Generating Gamma Variables", 2000;
-- for alpha below 1, from one of alpha + 1). A logarithm, since small alphas yield values too small for doubles.
local function log_gamma(alpha)
  if alpha < 1 then return log_gamma(alpha + 1) + math.log(1 - draw.uniform(0, 1)) / alpha end
  local d = alpha - 1 / 3
  local c = 1 / math.sqrt(9 * d)
  while true do
    local x = normal()
    local v = (1 + c * x) ^ 3
    if v > 0 and math.log(1 - draw.uniform(0, 1)) < x * x / 2 + d - d * v + d * math.log(v) then
      return math.log(d * v)
    end
  end
end

local function beta(alpha)
  local a, b = log_gamma(alpha), log_gamma(alpha)
  return 1 / (1 + math.exp(b - a))
end

-- Returns each sample's predecessor; the first one's is the last.
local function rolled(x) return x:roll(1, 1) end

local function mixed_with_rolled(x, lam) return x * lam + rolled(x) * (1 - lam) end

-- Returns labels [N] from 1, or labels that already are [N, classes], as floats for each class.
local function one_hot(self, labels, n)
  if not core.is_tensor(labels) or labels.ndim ~= 1 and labels.ndim ~= 2 then
    fail("%s: expected labels to have shape [N] (from 1) or [N, classes], got %s", self.__name, describe(labels))
  end
  if labels.shape[1] ~= n then
    fail("%s: images and labels must have the same batch size: %d images, labels %s", self.__name, n, describe(labels))
  end
  if labels.ndim == 2 then
    if self.num_classes and labels.shape[2] ~= self.num_classes then
      fail("%s: labels have %d classes, but num_classes is %d", self.__name, labels.shape[2], self.num_classes)
    end
    return core.is_floating_point(labels) and labels or labels:to("float32")
  end
  if not self.num_classes then fail("%s: num_classes is required for labels [N]", self.__name) end
  return ops.one_hot(labels, self.num_classes):to("float32")
end

local function check_batch(self, x)
  checks.check(self.__name, x)
  if x.ndim < 4 then options.wrong_shape(self.__name, "x", x, "[N, ..., C, H, W]") end
  if x.shape[1] == 0 then fail("%s: the batch must not be empty, got %s", self.__name, describe(x)) end
end

local function define(name)
  local new = class.define(name, base.list.Transform)
  base.list[name] = new
  new.of_batch, new.shows = true, name .. "({alpha: above(0) = 1, num_classes: count})"
  new.init = signature.fields(new.shows)
  return new
end

--- transforms.MixUp([{alpha = 1, num_classes}]): Applies MixUp to a batch of float images and its labels. Zhang et
--- al., "mixup: Beyond Empirical Risk Minimization", 2017.
local MixUp = define "MixUp"

--- mixup:forward(x, labels): Returns both, mixed.
function MixUp:forward(x, labels)
  check_batch(self, x)
  if not core.is_floating_point(x) then fail("MixUp: images must be floating, got %s", x.dtype) end
  labels = one_hot(self, labels, x.shape[1])
  local lam = beta(self.alpha)
  return mixed_with_rolled(x, lam), mixed_with_rolled(labels, lam)
end

--- transforms.CutMix([{alpha = 1, num_classes}]): Applies CutMix to a batch of images and its labels. Yun et al.,
--- "CutMix: Regularization Strategy to Train Strong Classifiers with Localizable Features", 2019.
local CutMix = define "CutMix"

--- cutmix:forward(x, labels): Returns both, mixed.
function CutMix:forward(x, labels)
  check_batch(self, x)
  labels = one_hot(self, labels, x.shape[1])
  local h, w = images.size(x)
  local r = 0.5 * math.sqrt(1 - beta(self.alpha))
  local at_x, at_y = draw.below(w), draw.below(h)
  local half_w, half_h = math.floor(r * w), math.floor(r * h)
  local left, right = math.max(at_x - half_w, 0), math.min(at_x + half_w, w)
  local top, bottom = math.max(at_y - half_h, 0), math.min(at_y + half_h, h)
  local y = x:clone()
  if right > left and bottom > top then
    local function cropped_part(t) return t:narrow(-2, top + 1, bottom - top):narrow(-1, left + 1, right - left) end
    cropped_part(y):copy_(rolled(cropped_part(x)))
  end
  return y, mixed_with_rolled(labels, 1 - (right - left) * (bottom - top) / (w * h))
end

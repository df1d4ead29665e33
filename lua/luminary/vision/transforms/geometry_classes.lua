--- Defines transforms of pixels' positions.
local core = require "luminary.core"
local lists = require "luminary.base.lists"
local options = require "luminary.base.options"
local checks = require "luminary.vision.transforms.check_arguments"
local images = require "luminary.vision.transforms.image_operations"
local draw = require "luminary.vision.transforms.random"
local transform = require("luminary.vision.transforms.transform_and_compose").define
local fail, run = options.fail, images.run

-- Decodes a part {top, left, height, width} of an encoded image, or all of it. With `scaled`, it decodes at 1/2, 1/4 or
-- 1/8 of the size if that is at least height x width, the size of the result.
local function decode(encoded, opts, part, height, width, scaled)
  local h, w = part and part[3] or encoded.height, part and part[4] or encoded.width
  local large = scaled and h >= 2 * height and w >= 2 * width
  local all = lists.copy(opts or {})
  all.crop = part or all.crop
  if large then all.at_least = {height, width} end
  return encoded:decode(all)
end

local Resize = transform("Resize(size: any?, {" .. checks.interpolation
  .. ", max_size: side, antialias = true, scaled = true})") {
  after_init = function(self)
    self.size = checks.resize_size("Resize", self.size, self.max_size)
    self.mode = images.resize_mode(self)
  end,
  apply = function(self, x, out)
    local h, w = images.size(x)
    local height, width = images.resized("Resize", h, w, self.size, self.max_size)
    return images.resize(x, height, width, self.mode, nil, out)
  end,
  help = "Resizes an image to a given size.",
}

--- resize:from_encoded(encoded [, {mode}]): Decodes a vision.Encoded and resizes it.
function Resize:from_encoded(encoded, opts)
  local height, width = images.resized("Resize", encoded.height, encoded.width, self.size, self.max_size)
  local x = decode(encoded, opts, nil, height, width, self.scaled)
  local h, w = images.size(x)
  local factor = images.round(encoded.height / h) -- the last pixels of a scaled image cover fewer
  local part = {0, 0, math.min(encoded.height / factor, h), math.min(encoded.width / factor, w)}
  return images.resize(x, height, width, self.mode, factor > 1 and part or nil)
end

-- Sets height and width from the argument `size`.
local function take_sides(self) self.height, self.width = unpack(self.size) end

local CenterCrop = transform "CenterCrop(size: sides)" {
  after_init = take_sides,
  apply = function(self, x)
    local h, w = images.size(x)
    local top, left = images.center(h, w, self.height, self.width)
    return images.crop(x, top, left, self.height, self.width)
  end,
  help = "Crops an image at the center.",
}

--- crop:from_encoded(encoded [, {mode}]): Decodes the center of an image of vision.open_image.
function CenterCrop:from_encoded(encoded, opts)
  local h, w = encoded.height, encoded.width
  if self.height > h or self.width > w then return self:_apply(encoded:decode(opts)) end
  local top, left = images.center(h, w, self.height, self.width)
  return decode(encoded, opts, {top, left, self.height, self.width})
end

-- Defines transforms that return lists of crops: the next part of a Compose must be a function of the list.
local function crops(text, flip, help)
  transform(text) {
    after_init = take_sides, help = help,
    apply = function(self, x)
      return images.corners(self.__name, x, self.height, self.width, flip and (self.vertical_flip and "vertically"
        or "horizontally"))
    end,
  }
end
crops("FiveCrop(size: sides)", false, "Crops an image at its four corners and at its center, into a list.")
crops("TenCrop(size: sides, {vertical_flip = false})", true,
  "Crops an image and its mirror image at the four corners and at the center, into a list.")

transform("Pad(padding: border, {" .. checks.bordering .. "})") {
  after_init = function(self) checks.check_border("Pad", self) end,
  apply = function(self, x, out) return images.pad(x, self.padding, self.padding_mode, self.fill, out) end,
  help = "Pads an image on all sides.",
}

transform("RandomCrop(size: sides, {padding: border, pad_if_needed = false, " .. checks.bordering .. "})") {
  draws = true,
  after_init = function(self)
    take_sides(self)
    self.padding = self.padding or {0, 0, 0, 0}
    checks.check_border("RandomCrop", self)
  end,
  apply = function(self, x, out)
    local h, w = images.size(x)
    local left, top, right, bottom = unpack(self.padding)
    h, w = h + top + bottom, w + left + right
    if self.pad_if_needed then
      local more = math.max(self.height - h, 0)
      top, bottom, h = top + more, bottom + more, h + 2 * more
      more = math.max(self.width - w, 0)
      left, right, w = left + more, right + more, w + 2 * more
    end
    if h < self.height or w < self.width then
      fail("RandomCrop: the crop, %d x %d, must not be larger than the padded image, %d x %d; pass {pad_if_needed = "
        .. "true} to pad it", self.height, self.width, h, w)
    end
    local first, second = draw.below(h - self.height + 1), draw.below(w - self.width + 1)
    if self.padding_mode == "constant" then
      return images.crop(x, first - top, second - left, self.height, self.width, self.fill, out)
    end
    local padded = images.pad(x, {left, top, right, bottom}, self.padding_mode, self.fill)
    return images.crop(padded, first, second, self.height, self.width)
  end,
  help = "Crops an image at a random location.",
}

local RandomResizedCrop = transform([[RandomResizedCrop(size: sides, {scale: range(0) = {0.08, 1},
  ratio: range(1e-6, 1e6) = {3 / 4, 4 / 3}, ]] .. checks.interpolation .. ", antialias = true, scaled = true})") {
  draws = true,
  after_init = function(self)
    take_sides(self)
    self.mode = images.resize_mode(self)
  end,
  apply = function(self, x, out)
    local h, w = images.size(x)
    return images.resize(x, self.height, self.width, self.mode, {self:get_params(h, w)}, out)
  end,
  help = "Crops a random part of an image and resizes it to a given size.",
}

--- crop:get_params(height, width): Returns top, left, height and width of a random part of an image of that size, drawn
--- as in torchvision: by ten tries, else at the center.
function RandomResizedCrop:get_params(height, width)
  local ratio = self.ratio
  for _ = 1, 10 do
    local area = height * width * draw.uniform(self.scale[1], self.scale[2])
    local aspect = math.exp(draw.uniform(math.log(ratio[1]), math.log(ratio[2])))
    local w, h = images.round(math.sqrt(area * aspect)), images.round(math.sqrt(area / aspect))
    if w > 0 and w <= width and h > 0 and h <= height then
      return draw.below(height - h + 1), draw.below(width - w + 1), h, w
    end
  end
  local w, h = width, height
  if width / height < ratio[1] then
    h = images.round(w / ratio[1])
  elseif width / height > ratio[2] then
    w = images.round(h * ratio[2])
  end
  h, w = math.max(math.min(h, height), 1), math.max(math.min(w, width), 1)
  return math.floor((height - h) / 2), math.floor((width - w) / 2), h, w
end

--- crop:from_encoded(encoded [, {mode}]): Decodes a random part of an image of vision.open_image, and resizes it.
function RandomResizedCrop:from_encoded(encoded, opts)
  local part = {self:get_params(encoded.height, encoded.width)}
  local x = decode(encoded, opts, part, self.height, self.width, self.scaled)
  return images.resize(x, self.height, self.width, self.mode)
end

local function flip(name, numbers, help)
  transform(name .. "({p: probability = 0.5})") {
    chance = true, help = help,
    apply = function(_, x, out) return run("flip", x, numbers, out) end,
  }
end
flip("RandomHorizontalFlip", {1, 0}, "Horizontally flips an image with a given probability.")
flip("RandomVerticalFlip", {0, 1}, "Vertically flips an image with a given probability.")

transform [[RandomRotation(degrees: angles(2), {interpolation = "nearest" | "bilinear", expand = false, center: point,
  fill: channels})]] {
  draws = true,
  apply = function(self, x, out)
    local angle = draw.uniform(self.degrees[1], self.degrees[2])
    return images.rotate(x, angle, self, not self.expand and out or nil)
  end,
  help = "Rotates an image by a random angle.",
}

transform("RandomAffine(degrees: angles(2), {translate: numbers(2, 0, 1), scale: range(1e-6, 1e6), "
  .. "shear: angles(2, 4), " .. checks.mapping .. ", center: point})") {
  draws = true,
  apply = function(self, x, out)
    local h, w = images.size(x)
    local angle = draw.uniform(self.degrees[1], self.degrees[2])
    local translate, scale, shear = {0, 0}, 1, {0, 0}
    if self.translate then
      local most_x, most_y = self.translate[1] * w, self.translate[2] * h
      translate = {images.round(draw.uniform(-most_x, most_x)), images.round(draw.uniform(-most_y, most_y))}
    end
    if self.scale then scale = draw.uniform(self.scale[1], self.scale[2]) end
    if self.shear then
      shear[1] = draw.uniform(self.shear[1], self.shear[2])
      if self.shear[4] then shear[2] = draw.uniform(self.shear[3], self.shear[4]) end
    end
    local m = images.affine_matrix(angle, translate, scale, shear, images.from_middle(x, self.center))
    return images.affine(x, m, self, nil, nil, out)
  end,
  help = "Applies a random affine transformation to an image, keeping its center.",
}

transform [[RandomPerspective({distortion_scale: probability = 0.5, p: probability = 0.5,
  interpolation: "nearest" | "bilinear" = "bilinear", fill: channels = 0})]] {
  chance = true,
  apply = function(self, x, out)
    local h, w = images.size(x)
    local bound_y = math.floor(self.distortion_scale * math.floor(h / 2)) + 1
    local bound_x = math.floor(self.distortion_scale * math.floor(w / 2)) + 1
    local function near(bound) return draw.below(bound) end
    local function far(bound, size) return size - bound + draw.below(bound) end
    local ends = {{near(bound_x), near(bound_y)}, {far(bound_x, w), near(bound_y)},
      {far(bound_x, w), far(bound_y, h)}, {near(bound_x), far(bound_y, h)}}
    if w == 1 or h == 1 then return x end -- the four corners are on one line
    local starts = {{0, 0}, {w - 1, 0}, {w - 1, h - 1}, {0, h - 1}}
    local numbers = images.perspective_numbers("RandomPerspective", starts, ends)
    return images.perspective(x, numbers, self, out)
  end,
  help = "Performs a random perspective transformation of an image with a given probability.",
}

transform [[ElasticTransform({alpha: channels = 50, sigma: channels = 5,
  interpolation: "nearest" | "bilinear" = "bilinear", fill: channels = 0})]] {
  draws = true,
  apply = function(self, x)
    local h, w = images.size(x)
    local shifts = {}
    for i, side in ipairs {h, w} do -- torchvision divides x shifts by the height, y shifts by the width
      local shift, sigma = core.ops.rand {1, 1, h, w} * 2 - 1, self.sigma[i] or self.sigma[1]
      local size = math.floor(8 * sigma + 1)
      size = size + 1 - size % 2
      if sigma > 0 then shift = images.blur(shift, {size, size}, {sigma, sigma}) end
      shifts[i] = shift:select(2, 1) * ((self.alpha[i] or self.alpha[1]) / side)
    end
    return images.elastic(x, core.ops.stack(shifts, 4), self)
  end,
  help = "Moves the pixels of an image by smooth random displacements.",
}

transform [[RandomErasing({p: probability = 0.5, scale: range(0, 1) = {0.02, 0.33},
  ratio: range(1e-6, 1e6) = {0.3, 3.3}, value: any = 0})]] {
  chance = true,
  after_init = function(self)
    local value = self.value
    if value == "random" then return end
    if type(value) ~= "number" and (not options.is_plain(value) or #value == 0) then
      options.must_be("RandomErasing", "value", "a number, a list of one for each channel, or 'random'", value)
    end
    self.value = checks.per_channel("RandomErasing", "value", value)
  end,
  apply = function(self, x, out)
    local height, width, channels = images.size(x)
    if self.value == "random" and not core.is_floating_point(x) then
      fail("RandomErasing: value = 'random' requires a floating image, got %s; apply ToTensor() first", x.dtype)
    elseif self.value ~= "random" and #self.value ~= 1 and #self.value ~= channels then
      fail("RandomErasing: value has %d entries for %d channels", #self.value, channels)
    end
    for _ = 1, 10 do
      local area = height * width * draw.uniform(self.scale[1], self.scale[2])
      local aspect = math.exp(draw.uniform(math.log(self.ratio[1]), math.log(self.ratio[2])))
      local h, w = images.round(math.sqrt(area * aspect)), images.round(math.sqrt(area / aspect))
      if h < height and w < width then
        local y
        if out then y = out:copy_(x) else y = x:clone() end
        local i, j = draw.below(height - h + 1), draw.below(width - w + 1)
        if h == 0 or w == 0 then return y end
        local part = y:narrow(-2, i + 1, h):narrow(-1, j + 1, w)
        if self.value == "random" then
          part:normal_()
        else
          for c = 1, x.ndim > 2 and channels or 0 do part:select(-3, c):fill_(self.value[c] or self.value[1]) end
          if x.ndim == 2 then part:fill_(self.value[1]) end
        end
        return y
      end
    end
    return x
  end,
  help = [[Erases a random rectangle of an image with a given probability. Zhong et al., "Random Erasing Data
    Augmentation", 2017.]],
}

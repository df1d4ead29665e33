--- Transforms of where pixels are.
local core = require "luminary.core"
local options = require "luminary.options"
local image = require "luminary.vision.transforms.image"
local base = require "luminary.vision.transforms.transform"
local fail, define, run = options.fail, base.define, image.run

-- A table of `opts` and more.
local function merged(opts, more)
  local all = {}
  for _, t in ipairs {opts or {}, more} do
    for key, value in pairs(t) do all[key] = value end
  end
  return all
end

-- A part {top, left, height, width} of an encoded image, or all of it, for a result of height x width: `scaled`, at a
-- half, a quarter or an eighth of its size where that still is as large.
local function decode(encoded, opts, part, height, width, scaled)
  local h, w = part and part[3] or encoded.height, part and part[4] or encoded.width
  local large = scaled and h >= 2 * height and w >= 2 * width
  return encoded:decode(merged(opts, {crop = part, at_least = large and {height, width} or nil}))
end

--- transforms.Resize(size [, {interpolation = "bilinear", max_size, antialias = true, scaled = true}]): size is
--- {height, width}, or a number for the smaller side, which keeps the image's proportions; then max_size bounds the
--- larger one. Other interpolations: "nearest", "nearest-exact", "bicubic". scaled: from_encoded may decode a JPEG at
--- a half, a quarter or an eighth of its size.
local Resize = define("Resize", "size interpolation max_size antialias")

function Resize:init(size, opts)
  opts = options.check("Resize", opts, {
    interpolation = {"string", "bilinear"}, max_size = {"any"}, antialias = {"boolean", true},
    scaled = {"boolean", true},
  }, "interpolation")
  self.size, self.max_size = image.resize_size("Resize", size, opts.max_size)
  self.interpolation, self.antialias = opts.interpolation, opts.antialias
  self.mode, self.scaled = image.resize_mode("Resize", opts.interpolation, opts.antialias), opts.scaled
end

function Resize:_apply(x, out)
  local h, w = image.size(x)
  local height, width = image.resized("Resize", h, w, self.size, self.max_size)
  return image.resize(x, height, width, self.mode, nil, out)
end

--- resize:from_encoded(encoded [, {mode}]): an image of vision.open_image, decoded and resized.
function Resize:from_encoded(encoded, opts)
  local height, width = image.resized("Resize", encoded.height, encoded.width, self.size, self.max_size)
  local x = decode(encoded, opts, nil, height, width, self.scaled)
  local h, w = image.size(x)
  local factor = image.round(encoded.height / h) -- the last pixels of a scaled image stand for fewer than that
  local part = {0, 0, math.min(encoded.height / factor, h), math.min(encoded.width / factor, w)}
  return image.resize(x, height, width, self.mode, factor > 1 and part or nil)
end

--- transforms.CenterCrop(size): the middle, of {height, width} or of a square; an image that is smaller gets zeros
--- around it.
local CenterCrop = define("CenterCrop", "size")
function CenterCrop:init(size) self.height, self.width = image.pair("CenterCrop", "size", size) end

function CenterCrop:_apply(x, _)
  local h, w = image.size(x)
  local top, left = image.centre(h, w, self.height, self.width)
  return image.crop(x, top, left, self.height, self.width)
end

--- crop:from_encoded(encoded [, {mode}]): an image of vision.open_image, of which the middle is decoded.
function CenterCrop:from_encoded(encoded, opts)
  local h, w = encoded.height, encoded.width
  if self.height > h or self.width > w then return self:_apply(encoded:decode(opts)) end
  local top, left = image.centre(h, w, self.height, self.width)
  return decode(encoded, opts, {top, left, self.height, self.width})
end

--- transforms.Pad(padding [, {fill = 0, padding_mode = "constant"}]): padding is a number for all sides, {left and
--- right, top and bottom} or {left, top, right, bottom}; other modes are "edge" (the last pixel), "reflect" (without
--- it) and "symmetric" (with it). fill: a number, or a list of one for each channel.
local Pad = define("Pad", "padding fill padding_mode")

function Pad:init(padding, opts)
  opts = options.check("Pad", opts, {fill = {"any", 0}, padding_mode = {"string", "constant"}}, "fill")
  self.fill = image.fill("Pad", opts.fill)
  self.padding, self.padding_mode = image.padding("Pad", padding), image.border("Pad", opts.padding_mode, self.fill)
end

function Pad:_apply(x, out) return image.pad(x, self.padding, self.padding_mode, self.fill, out) end

--- transforms.RandomCrop(size [, {padding, pad_if_needed = false, fill = 0, padding_mode = "constant"}]): a part of
--- {height, width}, or a square, of the image with padding as of Pad; pad_if_needed: and with as much more as it
--- takes.
local RandomCrop = define("RandomCrop", "size padding pad_if_needed fill padding_mode")
RandomCrop.draws = true

function RandomCrop:init(size, opts)
  local who = "RandomCrop"
  opts = options.check(who, opts, {
    padding = {"any"}, pad_if_needed = {"boolean", false}, fill = {"any", 0}, padding_mode = {"string", "constant"},
  }, "padding")
  self.height, self.width = image.pair(who, "size", size)
  self.padding = opts.padding and image.padding(who, opts.padding) or {0, 0, 0, 0}
  self.pad_if_needed, self.fill = opts.pad_if_needed, image.fill(who, opts.fill)
  self.padding_mode = image.border(who, opts.padding_mode, self.fill)
end

function RandomCrop:_apply(x, out)
  local h, w = image.size(x)
  local left, top, right, bottom = unpack(self.padding)
  h, w = h + top + bottom, w + left + right
  if self.pad_if_needed then
    local more = math.max(self.height - h, 0)
    top, bottom, h = top + more, bottom + more, h + 2 * more
    more = math.max(self.width - w, 0)
    left, right, w = left + more, right + more, w + 2 * more
  end
  if h < self.height or w < self.width then
    fail("RandomCrop: a crop of %d x %d is larger than the image, %d x %d with its padding; {pad_if_needed = true} "
      .. "pads it", self.height, self.width, h, w)
  end
  local first, second = image.below(h - self.height + 1), image.below(w - self.width + 1)
  if self.padding_mode == "constant" then
    return image.crop(x, first - top, second - left, self.height, self.width, self.fill, out)
  end
  local padded = image.pad(x, {left, top, right, bottom}, self.padding_mode, self.fill)
  return image.crop(padded, first, second, self.height, self.width)
end

--- transforms.RandomResizedCrop(size [, {scale = {0.08, 1}, ratio = {3 / 4, 4 / 3}, interpolation = "bilinear",
--- antialias = true, scaled = true}]): a random part of the image, its area and its width by its height in these
--- ranges, resized to {height, width}, or to a square. scaled: as of Resize.
local RandomResizedCrop = define("RandomResizedCrop", "size scale ratio interpolation antialias")
RandomResizedCrop.draws = true

function RandomResizedCrop:init(size, opts)
  local who = "RandomResizedCrop"
  opts = options.check(who, opts, {
    scale = {"table", {0.08, 1}}, ratio = {"table", {3 / 4, 4 / 3}}, interpolation = {"string", "bilinear"},
    antialias = {"boolean", true}, scaled = {"boolean", true},
  }, "scale")
  self.height, self.width = image.pair(who, "size", size)
  self.scale, self.ratio = image.range(who, "scale", opts.scale, 0), image.range(who, "ratio", opts.ratio, 1e-6, 1e6)
  self.interpolation, self.antialias = opts.interpolation, opts.antialias
  self.mode, self.scaled = image.resize_mode(who, opts.interpolation, opts.antialias), opts.scaled
end

--- crop:get_params(height, width): top, left, height and width of a part of an image of that size, drawn as
--- torchvision draws it: in ten tries, else the middle.
function RandomResizedCrop:get_params(height, width)
  local ratio = self.ratio
  for _ = 1, 10 do
    local area = height * width * image.uniform(self.scale[1], self.scale[2])
    local aspect = math.exp(image.uniform(math.log(ratio[1]), math.log(ratio[2])))
    local w, h = image.round(math.sqrt(area * aspect)), image.round(math.sqrt(area / aspect))
    if w > 0 and w <= width and h > 0 and h <= height then
      return image.below(height - h + 1), image.below(width - w + 1), h, w
    end
  end
  local w, h = width, height
  if width / height < ratio[1] then
    h = image.round(w / ratio[1])
  elseif width / height > ratio[2] then
    w = image.round(h * ratio[2])
  end
  h, w = math.max(math.min(h, height), 1), math.max(math.min(w, width), 1)
  return math.floor((height - h) / 2), math.floor((width - w) / 2), h, w
end

function RandomResizedCrop:_apply(x, out)
  local h, w = image.size(x)
  local part = {self:get_params(h, w)}
  return image.resize(x, self.height, self.width, self.mode, part, out)
end

--- crop:from_encoded(encoded [, {mode}]): an image of vision.open_image, of which a random part is decoded and
--- resized.
function RandomResizedCrop:from_encoded(encoded, opts)
  local part = {self:get_params(encoded.height, encoded.width)}
  local x = decode(encoded, opts, part, self.height, self.width, self.scaled)
  return image.resize(x, self.height, self.width, self.mode)
end

-- What is done with probability p, by `change(x, out)`.
local function define_maybe(name, shows, change)
  local new = define(name, shows)
  new.draws = true
  function new:_apply(x, out)
    if not image.chance(self.p) then return x end
    return change(self, x, out)
  end
  return new
end

--- transforms.RandomHorizontalFlip([p = 0.5]): left and right exchanged with probability p.
local HorizontalFlip = define_maybe("RandomHorizontalFlip", "p", function(_, x, out)
  return run("flip", x, {1, 0}, out)
end)
function HorizontalFlip:init(p) self.p = options.arg("RandomHorizontalFlip", "p", p or 0.5, "probability") end

--- transforms.RandomVerticalFlip([p = 0.5]): top and bottom exchanged with probability p.
local VerticalFlip = define_maybe("RandomVerticalFlip", "p", function(_, x, out)
  return run("flip", x, {0, 1}, out)
end)
function VerticalFlip:init(p) self.p = options.arg("RandomVerticalFlip", "p", p or 0.5, "probability") end

-- {from, to} in degrees from a number, which stands for both ways.
local function angles(who, name, v, counts)
  if type(v) == "number" then return {-image.number(who, name, v, 0), v} end
  v = image.list(who, name, v, counts or {2})
  for i = 1, #v, 2 do
    if v[i] > v[i + 1] then fail("%s: %s has to be {least, largest}, got {%g, %g}", who, name, v[i], v[i + 1]) end
  end
  return v
end

--- transforms.RandomRotation(degrees [, {interpolation = "nearest", expand = false, center, fill = 0}]): turned by
--- -degrees to degrees, or by an angle in {least, largest}; the rest is functional.rotate's.
local RandomRotation = define("RandomRotation", "degrees interpolation expand center fill")
RandomRotation.draws = true

function RandomRotation:init(degrees, opts)
  local who = "RandomRotation"
  opts = options.check(who, opts, {
    interpolation = {"string", "nearest"}, expand = {"boolean", false}, center = {"table"}, fill = {"any", 0},
  }, "interpolation")
  self.degrees, self.bilinear = angles(who, "degrees", degrees), image.is_bilinear(who, opts.interpolation)
  self.interpolation, self.expand, self.fill = opts.interpolation, opts.expand, image.fill(who, opts.fill)
  self.center = opts.center and image.list(who, "center", opts.center, {2})
end

function RandomRotation:_apply(x, out)
  local angle = image.uniform(self.degrees[1], self.degrees[2])
  return image.rotate(x, angle, self.bilinear, self.expand, self.center, self.fill, not self.expand and out or nil)
end

--- transforms.RandomAffine(degrees [, {translate, scale, shear, interpolation = "nearest", fill = 0, center}]):
--- turned as by RandomRotation, moved by up to translate, {x, y}, of the width and height, scaled in {least,
--- largest}, and sheared along x as by degrees, or by {least and largest along x, least and largest along y}.
local RandomAffine = define("RandomAffine", "degrees translate scale shear interpolation fill center")
RandomAffine.draws = true

function RandomAffine:init(degrees, opts)
  local who = "RandomAffine"
  opts = options.check(who, opts, {
    translate = {"table"}, scale = {"table"}, shear = {"any"}, interpolation = {"string", "nearest"},
    fill = {"any", 0}, center = {"table"},
  }, "translate")
  self.degrees, self.bilinear = angles(who, "degrees", degrees), image.is_bilinear(who, opts.interpolation)
  self.interpolation = opts.interpolation
  self.translate = opts.translate and image.list(who, "translate", opts.translate, {2}, 0, 1)
  self.scale = opts.scale and image.range(who, "scale", opts.scale, 1e-6, 1e6)
  self.shear = opts.shear and angles(who, "shear", opts.shear, {2, 4})
  self.fill = image.fill(who, opts.fill)
  self.center = opts.center and image.list(who, "center", opts.center, {2})
end

function RandomAffine:_apply(x, out)
  local h, w = image.size(x)
  local angle = image.uniform(self.degrees[1], self.degrees[2])
  local translate, scale, shear = {0, 0}, 1, {0, 0}
  if self.translate then
    local most_x, most_y = self.translate[1] * w, self.translate[2] * h
    translate = {image.round(image.uniform(-most_x, most_x)), image.round(image.uniform(-most_y, most_y))}
  end
  if self.scale then scale = image.uniform(self.scale[1], self.scale[2]) end
  if self.shear then
    shear[1] = image.uniform(self.shear[1], self.shear[2])
    if self.shear[4] then shear[2] = image.uniform(self.shear[3], self.shear[4]) end
  end
  local m = image.affine_matrix(angle, translate, scale, shear, image.from_middle(x, self.center))
  return image.affine(x, m, self.bilinear, self.fill, nil, nil, out)
end

--- transforms.RandomPerspective([{distortion_scale = 0.5, p = 0.5, interpolation = "bilinear", fill = 0}]): with
--- probability p seen from elsewhere: each corner moved by up to distortion_scale of half a side.
local seen = "p distortion_scale interpolation fill"
local RandomPerspective = define_maybe("RandomPerspective", seen, function(self, x, out)
  local h, w = image.size(x)
  local bound_y = math.floor(self.distortion_scale * math.floor(h / 2)) + 1
  local bound_x = math.floor(self.distortion_scale * math.floor(w / 2)) + 1
  local function near(bound) return image.below(bound) end
  local function far(bound, size) return size - bound + image.below(bound) end
  local ends = {{near(bound_x), near(bound_y)}, {far(bound_x, w), near(bound_y)},
    {far(bound_x, w), far(bound_y, h)}, {near(bound_x), far(bound_y, h)}}
  if w == 1 or h == 1 then return x end -- four corners on one line
  local starts = {{0, 0}, {w - 1, 0}, {w - 1, h - 1}, {0, h - 1}}
  local numbers = image.perspective_numbers("RandomPerspective", starts, ends)
  return image.perspective(x, numbers, self.bilinear, self.fill, out)
end)

function RandomPerspective:init(opts)
  local who = "RandomPerspective"
  opts = options.check(who, opts, {
    distortion_scale = {"probability", 0.5}, p = {"probability", 0.5}, interpolation = {"string", "bilinear"},
    fill = {"any", 0},
  }, "distortion_scale")
  self.distortion_scale, self.p, self.interpolation = opts.distortion_scale, opts.p, opts.interpolation
  self.bilinear, self.fill = image.is_bilinear(who, opts.interpolation), image.fill(who, opts.fill)
end

--- transforms.RandomErasing([{p = 0.5, scale = {0.02, 0.33}, ratio = {0.3, 3.3}, value = 0}]): with probability p a
--- random part, its area and its height by its width in these ranges, becomes value: a number, a list of one for each
--- channel, or "random", for standard normal numbers. Of float images.
local RandomErasing = define_maybe("RandomErasing", "p scale ratio value", function(self, x, out)
  local height, width, channels = image.size(x)
  if self.value == "random" and not core.is_floating_point(x) then
    fail("RandomErasing: value = 'random' is for float images, got %s; ToTensor() before it gives one", x.dtype)
  elseif self.value ~= "random" and #self.value ~= 1 and #self.value ~= channels then
    fail("RandomErasing: value has %d numbers for %d channels", #self.value, channels)
  end
  for _ = 1, 10 do
    local area = height * width * image.uniform(self.scale[1], self.scale[2])
    local aspect = math.exp(image.uniform(math.log(self.ratio[1]), math.log(self.ratio[2])))
    local h, w = image.round(math.sqrt(area * aspect)), image.round(math.sqrt(area / aspect))
    if h < height and w < width then
      local y
      if out then y = out:copy_(x) else y = x:clone() end
      local i, j = image.below(height - h + 1), image.below(width - w + 1)
      if h == 0 or w == 0 then return y end
      local part = y:narrow(2, i + 1, h):narrow(3, j + 1, w)
      if self.value == "random" then
        part:normal_()
      else
        for c = 1, channels do part:select(1, c):fill_(self.value[c] or self.value[1]) end
      end
      return y
    end
  end
  return x
end)

function RandomErasing:init(opts)
  local who = "RandomErasing"
  opts = options.check(who, opts, {
    p = {"probability", 0.5}, scale = {"table", {0.02, 0.33}}, ratio = {"table", {0.3, 3.3}}, value = {"any", 0},
  }, "p")
  self.p = opts.p
  self.scale, self.ratio = image.range(who, "scale", opts.scale, 0, 1), image.range(who, "ratio", opts.ratio, 1e-6, 1e6)
  self.value = opts.value
  if type(opts.value) == "number" then
    self.value = {image.number(who, "value", opts.value)}
  elseif opts.value ~= "random" then
    if not options.is_plain(opts.value) or #opts.value == 0 then
      fail("%s: value has to be a number, a list of one for each channel, or 'random', got %s", who,
        options.describe(opts.value))
    end
    self.value = image.list(who, "value", opts.value, {#opts.value})
  end
end

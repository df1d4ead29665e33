--- Sets of images that lie in memory as bytes, each with a label.
local core = require "luminary.core"
local class = require "luminary.class"
local options = require "luminary.options"
local Dataset = require("luminary.data.dataset").Dataset

--- images: uint8 [N, C, H, W]. A sample is a float32 image in [0, 1] and its label.
local Images = class.define("Images", Dataset)
Images.__makes = "images"

--- The options that such sets take, and `more`.
function Images.options(who, opts, more)
  local spec = {
    root = {"string"}, train = {"boolean", true}, base = {"integer", 1}, transform = {"callable"},
    target_transform = {"callable"},
  }
  for name, row in pairs(more or {}) do spec[name] = row end
  return options.check(who, opts, spec, "root")
end

--- Takes over images and labels, int64 [N] from 0.
function Images:hold(images, labels, opts)
  self.images, self.labels = core.keep(images), core.keep(labels:add_(opts.base))
  self.targets = self.labels -- torchvision's name
  self.train, self.transform, self.target_transform = opts.train, opts.transform, opts.target_transform
  if not (opts.transform or opts.target_transform) then self.get_batch = self.gather end
end

function Images:len() return self.labels.shape[1] end

function Images:get(i)
  i = self:index(i)
  local image, label = self:gather(core.tensor({i}, {dtype = "int64"}))
  image, label = image:select(1, 1), label:item()
  if self.transform then image = self.transform(image) end
  if self.target_transform then label = self.target_transform(label) end
  return image, label
end

--- The samples of a 1-d int64 tensor of numbers: images [N, C, H, W] and labels [N].
function Images:gather(index)
  return core.gather_rows(self.images, index, {dtype = "float32", scale = 1 / 255}),
    core.gather_rows(self.labels, index)
end

return Images

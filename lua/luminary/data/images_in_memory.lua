--- Implements sets of images in memory, as bytes with a label each.
local core = require "luminary.core"
local class = require "luminary.base.class"
local results_as_list = require "luminary.base.results_as_list"
local dataset = require "luminary.data.dataset"

--- images: uint8 [N, C, H, W]. A sample is a float32 image in [0, 1] and its label. If there is no transform, or one
--- that takes batches (transforms.Transform), :get_batch(index) gathers samples.
local Images = class.define("Images", dataset.Dataset)
Images.__makes = "images"

local CONVERTED = {dtype = "float32", scale = 1 / 255}

--- The options of such sets.
Images.options = [[root: string, train = true, transform: callable, target_transform: callable, download: lacks,
  base: integer = 1]]

--- Takes ownership of images and labels, int64 [N] from 0.
function Images:hold(images, labels, opts)
  self.images, self.labels = core.keep(images), core.keep(labels:add_(opts.base))
  self.targets = self.labels -- torchvision's name
  self.train, self.transform, self.target_transform = opts.train, opts.transform, opts.target_transform
end

--- Returns true if a transform takes single samples.
function Images:one_by_one()
  local transform = self.transform
  if self.target_transform then return true end
  return transform ~= nil and not (class.has(transform, "takes_batches") and transform:takes_batches())
end

--- Returns true if the transform draws random numbers.
function Images:draws() return self.transform ~= nil and self.transform.draws ~= false end

function Images:len() return self.labels.shape[1] end

function Images:get(i)
  i = self:index(i)
  local image = results_as_list.by(self, "transform", core.gather_row(self.images, i, CONVERTED))
  return image, results_as_list.by(self, "target_transform", self.labels[i])
end

-- Returns images [N, C, H, W], transformed, and labels [N].
dataset.define_get_batch(Images, function(self, index)
  local images = results_as_list.by(self, "transform", core.gather_rows(self.images, index, CONVERTED))
  return images, core.gather_rows(self.labels, index)
end)

return Images

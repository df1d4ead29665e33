--- Generates images of random numbers, to try a program without files.
local core = require "luminary.core"
local class = require "luminary.base.class"
local results_as_list = require "luminary.base.results_as_list"
local options = require "luminary.base.options"
local signature = require "luminary.base.signature"
local Dataset = require("luminary.data.dataset").Dataset

--- data.FakeData(…): Generates images of random pixels with random labels.
local FakeData = class.define("FakeData", Dataset)

FakeData.init = signature.of([[FakeData({size: natural = 1000, image_size: table = {3, 224, 224},
  num_classes: count = 10, transform: callable, target_transform: callable, random_offset: natural = 0,
  base: integer = 1})]], function(self, opts)
  signature.assign(self, opts)
  local bytes = #self.image_size == 3 and 1 or 0
  for _, n in ipairs(self.image_size) do
    bytes = type(n) == "number" and n >= 1 and n % 1 == 0 and bytes * n or 0
  end
  if bytes == 0 or bytes > 2 ^ 31 then
    options.must_be("FakeData", "image_size", "{channels, height, width}", self.image_size)
  end
  self.bytes = bytes
end)

function FakeData:len() return self.size end

function FakeData:get(i)
  local seed = self:index(i) + self.random_offset
  local image = core.draws(256, seed, self.bytes):sub_(1):to("uint8"):view(unpack(self.image_size))
  local label = core.draws(self.num_classes, seed + 2 ^ 40, 1):item() - 1 + self.base
  if not self.transform then image = image:to("float32"):div_(255) end
  return results_as_list.by(self, "transform", image), results_as_list.by(self, "target_transform", label)
end

return {FakeData = FakeData}

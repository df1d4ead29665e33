--- vision: images and their transforms.
local options = require "luminary.options"

return options.strict("vision", {
  transforms = require "luminary.vision.transforms",
})

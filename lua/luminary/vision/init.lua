--- lm.vision: images, read, written, shown and transformed; boxes in them. An image is a uint8 tensor [C, H, W], gray,
--- RGB or with alpha; a float image is in [0, 1]; a batch is [N, C, H, W].
local options = require "luminary.base.options"

local vision = {transforms = require "luminary.vision.transforms"}
for _, part in ipairs {"image_files", "make_grid", "boxes"} do
  for name, value in pairs(require("luminary.vision." .. part)) do vision[name] = value end
end
vision.transforms = require "luminary.vision.transforms"

return options.strict("vision", vision)

--- lm.vision: Reads, writes, shows and transforms images, and computes with boxes in them.
local options = require "luminary.base.options"

local vision = {transforms = require "luminary.vision.transforms"}
for _, part in ipairs {"image_files", "make_grid", "boxes"} do
  for name, value in pairs(require("luminary.vision." .. part)) do vision[name] = value end
end
vision.transforms = require "luminary.vision.transforms"

return options.strict("vision", vision)

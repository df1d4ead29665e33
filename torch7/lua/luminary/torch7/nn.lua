--- Assembles Torch7's nn: modules with forward, backward, gradInput and gradWeight. Containers call their modules as in
--- Torch7, so that custom classes with updateOutput, updateGradInput and accGradParameters work anywhere.
local class = require "luminary.torch7.class"

local nn = class.packages.nn
for _, part in ipairs {"module", "leaf", "layers", "windows", "containers", "criterions", "utils",
  "more_layers", "sparse", "derivatives", "direct", "texts"} do
  require("luminary.torch7.nn." .. part)
end

return nn

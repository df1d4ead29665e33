--- Assembles Torch7's nn: modules with forward, backward, gradInput and gradWeight. Containers call their modules as in
--- Torch7, so that custom classes with updateOutput, updateGradInput and accGradParameters work anywhere.
local options = require "luminary.base.options"
local class = require "luminary.torch7.class"

local nn = class.packages.nn
for _, part in ipairs {"module", "leaf", "layers", "windows", "containers", "criterions", "utils"} do
  require("luminary.torch7.nn." .. part)
end

return setmetatable(nn, {__index = function(_, key)
  if type(key) ~= "string" or key:sub(1, 2) == "__" then return nil end
  options.fail("nn has no '%s' in luminary.torch7; luminary.nn may have it by another name", key)
end})

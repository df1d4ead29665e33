--- Dropping gradients. Those that lie in one vector (net:getParameters) are filled with zeros instead, and stay there.
local core = require "luminary.core"

local gradients = {}

local in_vector = setmetatable({}, {__mode = "k"}) -- parameters

--- This parameter's .grad is part of something that is to see it.
function gradients.stay(p) in_vector[p] = true end

--- Drops the gradients of a list of parameters, or fills them with zeros.
function gradients.zero(params, to_none)
  local drop, fill = {}, {}
  for _, p in ipairs(params) do table.insert(to_none and not in_vector[p] and drop or fill, p) end
  core.zero_grad(drop, true)
  core.zero_grad(fill, false)
end

return gradients

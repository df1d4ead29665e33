--- Dropping gradients. Those that lie in one vector (net:getParameters) are filled with zeros instead, and stay there.
local core = require "luminary.core"

local gradients = {}

local in_vector = setmetatable({}, {__mode = "k"}) -- by parameter: both vectors

--- This parameter and its .grad are parts of two vectors, {parameters, gradients}, which are to see what changes.
function gradients.stay(p, vectors) in_vector[p] = vectors end

--- The two vectors of a parameter, if it has them.
function gradients.vectors_of(p) return in_vector[p] end

--- Drops the gradients of a list of parameters, or fills them with zeros.
function gradients.zero(params, to_none)
  local drop, fill = {}, {}
  for _, p in ipairs(params) do table.insert(to_none and not in_vector[p] and drop or fill, p) end
  core.zero_grad(drop, true)
  core.zero_grad(fill, false)
end

return gradients

--- Clears gradients: drops them, or fills them with zeros if they are views of one vector.
local core = require "luminary.core"

local gradients = {has_vectors = false} -- true once a parameter has a field "vectors"

--- Maps a parameter to a gradient that a module will add to its .grad in a later backward pass.
gradients.held = setmetatable({}, {__mode = "k"})

--- Frees the gradient that a module holds of a parameter, if there is one.
function gradients.drop_held(p)
  local held = gradients.held[p]
  if held then held:free() end
  gradients.held[p] = nil
end

--- Drops the gradients of a list of parameters, or fills them with zeros. A parameter's field "vectors" (core.field) is
--- {parameters, gradients}, if it and its .grad are views of these two vectors.
function gradients.zero(params, to_none)
  local drop, fill, has_vectors = {}, {}, gradients.has_vectors
  for _, p in ipairs(params) do
    table.insert(to_none and not (has_vectors and core.field(p, "vectors")) and drop or fill, p)
    gradients.drop_held(p)
  end
  core.zero_grad(drop, true)
  core.zero_grad(fill, false)
end

return gradients

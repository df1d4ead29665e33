--- Clears gradients: drops them, or fills them with zeros if they are views of one vector.
local core = require "luminary.core"

local gradients = {}

local in_vector = setmetatable({}, {__mode = "k"}) -- maps a parameter to {parameters, gradients}

--- Records that a parameter and its .grad are views of two vectors, {parameters, gradients}.
function gradients.stay(p, vectors) in_vector[p] = vectors end

--- Returns the two vectors of a parameter, or nil.
function gradients.vectors_of(p) return in_vector[p] end

--- Maps a parameter to a gradient that a module will add to its .grad in a later backward pass.
gradients.held = setmetatable({}, {__mode = "k"})

--- Frees the gradient that a module holds of a parameter, if there is one.
function gradients.drop_held(p)
  local held = gradients.held[p]
  if held then held:free() end
  gradients.held[p] = nil
end

--- Drops the gradients of a list of parameters, or fills them with zeros.
function gradients.zero(params, to_none)
  local drop, fill = {}, {}
  for _, p in ipairs(params) do
    table.insert(to_none and not in_vector[p] and drop or fill, p)
    gradients.drop_held(p)
  end
  core.zero_grad(drop, true)
  core.zero_grad(fill, false)
end

return gradients

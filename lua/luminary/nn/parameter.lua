--- Parameters: tensors that modules take for their own.
local core = require "luminary.core"
local options = require "luminary.base.options"

-- Which tensors are parameters: a mark beside the tensor, so that a Parameter is a tensor in every other way.
local marked = setmetatable({}, {__mode = "k"})

local parameter = {}

--- nn.Parameter(t [, requires_grad = true]): A tensor that a module registers as a parameter when it is assigned to one
--- of its fields.
function parameter.new(t, requires_grad)
  options.arg("Parameter", "the first argument", t, "tensor")
  if requires_grad == nil then requires_grad = true end
  options.arg("Parameter", "requires_grad", requires_grad, "boolean")
  local p = t:detach()
  p:requires_grad_(requires_grad)
  marked[p] = true
  return core.keep(p)
end

--- Returns whether v is an nn.Parameter.
function parameter.is(v) return marked[v] == true end

--- This tensor, which came from another Lua state, is one.
function parameter.mark(t) marked[t] = true end

return parameter

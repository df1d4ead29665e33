--- Marks tensors as parameters, which modules register when they are assigned.
local core = require "luminary.core"

-- A parameter is a tensor whose field "is_parameter" (core.field) is true, in all other respects an ordinary one.
local parameter = {}

--- nn.Parameter(t [, requires_grad = true]): Makes a tensor that a module registers as a parameter when it is assigned
--- to one of its fields.
function parameter.new(t, requires_grad)
  local p = t:detach()
  p:requires_grad_(requires_grad ~= false)
  parameter.mark(p)
  return core.keep(p)
end

--- Returns whether v is an nn.Parameter.
function parameter.is(v) return core.field(v, "is_parameter") == true end

--- Marks a tensor from another Lua state as a parameter.
function parameter.mark(t) core.set_field(t, "is_parameter", true) end

return parameter

--- Marks tensors as parameters, which modules register when they are assigned.
local core = require "luminary.core"

-- The set of tensors that are parameters; in all other respects a parameter is an ordinary tensor.
local marked = setmetatable({}, {__mode = "k"})

local parameter = {}

--- nn.Parameter(t [, requires_grad = true]): Makes a tensor that a module registers as a parameter when it is assigned
--- to one of its fields.
function parameter.new(t, requires_grad)
  local p = t:detach()
  p:requires_grad_(requires_grad ~= false)
  marked[p] = true
  return core.keep(p)
end

--- Returns whether v is an nn.Parameter.
function parameter.is(v) return marked[v] == true end

--- Marks a tensor from another Lua state as a parameter.
function parameter.mark(t) marked[t] = true end

return parameter

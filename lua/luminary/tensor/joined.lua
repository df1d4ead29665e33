--- Joins tensors of one dtype and device to a vector, and takes such a vector apart.
local core = require "luminary.core"
local lists = require "luminary.base.lists"

local joined = {}

--- Returns a vector of all elements of a list of tensors, in order; a gradient passes.
function joined.vector(list)
  return core.ops.cat(lists.map(list, function(t) return t:reshape {-1} end))
end

--- Returns the parts of a vector, views in the shapes of a list of tensors.
function joined.parts(vector, list)
  local parts = vector:split(lists.map(list, function(t) return t:numel() end))
  return lists.map(parts, function(part, i) return part:view(list[i].shape) end)
end

return joined

--- Finds the number of samples of a module's arguments, which weighs a rank's gradients.
local core = require "luminary.core"
local options = require "luminary.base.options"
local is_module = require("luminary.nn.module").is_module

-- Largest depth of nested tables to search, since a table may contain itself; lists are walked in order.
local DEEP = 8
local function first_tensor(v, depth)
  if core.is_tensor(v) then return v end
  if type(v) ~= "table" or is_module(v) or depth == DEEP then return nil end
  for _, walk in ipairs {ipairs, pairs} do
    for _, each in walk(v) do
      local t = first_tensor(each, depth + 1)
      if t then return t end
    end
  end
end

--- Returns the size of dim `dim` of the first tensor among the arguments; 1 without one, or if dim is 1 and it has no
--- dims. who: the function that was given `dim` as batch_dim, for errors.
return function(who, dim, ...)
  for i = 1, select("#", ...) do
    local t = first_tensor((select(i, ...)), 0)
    if t and dim > math.max(t.ndim, 1) then
      options.must_be(who, "batch_dim", ("at most %d, the number of dims of the first tensor"):format(t.ndim), dim)
    end
    if t then return t.ndim > 0 and t:size(dim) or 1 end
  end
  return 1
end

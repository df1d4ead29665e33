--- Finds the number of samples of a module's arguments, which weighs a rank's gradients.
local core = require "luminary.core"
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

--- Returns the size of dim `dim` of the first tensor among the arguments; 1 without one.
return function(dim, ...)
  for i = 1, select("#", ...) do
    local t = first_tensor((select(i, ...)), 0)
    if t then return dim <= t.ndim and t:size(dim) or 1 end
  end
  return 1
end

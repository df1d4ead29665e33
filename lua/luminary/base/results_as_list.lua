--- Converts several results of a function to one list, as Python returns a tuple.
local options = require "luminary.base.options"

local results_as_list = {}

--- Returns a single result unchanged, and several results as a list. If one of these is nil, the list's field n is
--- their number.
function results_as_list.of(...)
  local n = select("#", ...)
  if n < 2 then return (...) end
  local list = {...}
  for i = 1, n do
    if list[i] == nil then list.n = n end
  end
  return list
end

--- Returns a sample's values, several as a list; a nil among several is an error. `who` names the function.
function results_as_list.of_sample(who, ...)
  local value = results_as_list.of(...)
  if select("#", ...) > 1 and value.n then
    local at = 1
    while value[at] ~= nil do at = at + 1 end
    options.fail("%s: must return no nil among several values, got nil as value %d of %d", who, at, value.n)
  end
  return value
end

--- Calls set[name], a function such as a data set's `transform`, with a value and returns its results; without such a
--- function returns the value.
function results_as_list.apply(set, name, value)
  if not set[name] then return value end
  return results_as_list.of_sample(name, set[name](value))
end

return results_as_list

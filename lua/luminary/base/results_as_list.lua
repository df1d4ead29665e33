--- Converts several results of a function to one list, as Python returns a tuple.
local options = require "luminary.base.options"

local results_as_list = {}

-- Returns the index of the first nil.
local function nil_in(list, n)
  for i = 1, n do
    if list[i] == nil then return i end
  end
end

--- Returns a single result unchanged, and several results as a list. If one of these is nil, the list's field n is
--- their number.
function results_as_list.of(...)
  local n = select("#", ...)
  if n < 2 then return (...) end
  local list = {...}
  if nil_in(list, n) then list.n = n end
  return list
end

--- Returns the same for values of a sample, where a nil among several results is an error. `who` names the function.
function results_as_list.of_sample(who, ...)
  local value = results_as_list.of(...)
  if select("#", ...) > 1 and value.n then
    options.fail("%s: must return no nil among several values, got nil as value %d of %d", who,
      nil_in(value, value.n), value.n)
  end
  return value
end

return results_as_list

--- Several results of a function as one value, as a tuple is in Python: a list of them.
local options = require "luminary.base.options"

local results_as_list = {}

-- The number of the first that is nil.
local function nil_in(list, n)
  for i = 1, n do
    if list[i] == nil then return i end
  end
end

--- The result of a call that returned one; the list of the results where it returned several. Where one of these is
--- nil, the list's field n says how many there are.
function results_as_list.of(...)
  local n = select("#", ...)
  if n < 2 then return (...) end
  local list = {...}
  if nil_in(list, n) then list.n = n end
  return list
end

--- The same of what becomes part of a sample, where a nil among several results is an error. `who` names the function.
function results_as_list.of_sample(who, ...)
  local value = results_as_list.of(...)
  if select("#", ...) > 1 and value.n then
    options.fail("%s: must return no nil among several values, got nil as value %d of %d", who,
      nil_in(value, value.n), value.n)
  end
  return value
end

return results_as_list

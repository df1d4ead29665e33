--- nested_tensors(value, found, name): Appends {tensor, name} to `found` for each tensor in a value, in the order of
--- sorted keys of plain tables. Returns rebuild(list), which returns the value with the tensors of a list, numbered as
--- in `found`, in their place. name: the keys that lead to the tensor, joined by dots, or nil for positions of lists.
local core = require "luminary.core"
local lists = require "luminary.base.lists"
local options = require "luminary.base.options"

local function nested_tensors(value, found, name)
  if core.is_tensor(value) then
    found[#found + 1] = {tensor = value, name = name}
    local i = #found
    return function(list) return list[i] end
  elseif not options.is_plain(value) then
    return function() return value end
  end
  local parts = {}
  for key, inner in lists.sorted_pairs(value) do
    local own = type(key) == "string" and key or name and name .. "." .. key or nil
    parts[key] = nested_tensors(inner, found, own)
  end
  return function(list)
    local out = {}
    for key, part in pairs(parts) do out[key] = part(list) end
    return out
  end
end

return nested_tensors

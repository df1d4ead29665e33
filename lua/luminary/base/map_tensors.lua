--- map_tensors(value, f, seen): Returns a value with f(t) in place of each of its tensors, also in plain tables, which
--- may contain themselves. What occurs twice is mapped once, also in several calls with the same table `seen`.
local core = require "luminary.core"
local options = require "luminary.base.options"

local function map_tensors(value, f, seen)
  seen = seen or {}
  if core.is_tensor(value) then
    seen[value] = seen[value] or f(value)
  elseif not options.is_plain(value) then
    return value
  elseif not seen[value] then
    seen[value] = {}
    for key, each in pairs(value) do seen[value][key] = map_tensors(each, f, seen) end
  end
  return seen[value]
end

return map_tensors

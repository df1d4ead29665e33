--- Formats fields of layers as PyTorch prints them.
local printed = {}

--- Formats a boolean: true -> True.
function printed.bool(v) return v and "True" or "False" end

--- Formats a number that is a float in PyTorch: 1 -> 1.0, 1e-05 -> 1e-05.
function printed.float(v)
  local text = ("%.12g"):format(v)
  if tonumber(text) ~= v then text = ("%.17g"):format(v) end
  return text:find("^%-?%d+$") and text .. ".0" or text
end

--- Formats a list as a tuple: {3, 3} -> (3, 3); {5} -> (5,).
function printed.tuple(list) return "(" .. table.concat(list, ", ") .. (#list == 1 and ",)" or ")") end

--- Formats a number unchanged, or a list as a tuple.
function printed.number_or_tuple(v) return type(v) == "table" and printed.tuple(v) or tostring(v) end

local floats = {number = true, positive = true, probability = true}

--- Formats a field's value, by the kind of its row.
function printed.value(v, kind)
  if v == nil then return "None" end
  if type(v) == "boolean" then return printed.bool(v) end
  if type(v) == "string" then return "'" .. v .. "'" end
  return floats[kind] and printed.float(v) or printed.number_or_tuple(v)
end

return printed

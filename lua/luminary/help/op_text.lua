--- op_text(name): Returns an op's call with defaults and its description, as text; nil if there is no such op.
local core = require "luminary.core"

-- Returns a call such as "sum(x, dim = nil, {keepdim = false, dtype = nil})".
local function call_text(name, info)
  local parts, braces = {}, nil
  for i, row in ipairs(info.arguments) do
    local open = row.named and not braces and "{" or ""
    braces = braces or row.named
    parts[i] = open .. row.name .. (row.default and " = " .. row.default or "")
  end
  if braces and info.kind == "new" then parts[#parts + 1] = "requires_grad = false" end
  return ("%s(%s%s)"):format(name, table.concat(parts, ", "), braces and "}" or "")
end

return function(name)
  local info, suffix = core.op_info(name), ""
  if not info and name:find "_$" then -- relu_ is relu in place
    info, suffix = core.op_info(name:sub(1, -2)), "; this one in place"
    if info and info.kind ~= "elementwise" then info = nil end
  end
  return info and ("%s\n  %s%s"):format(call_text(name, info), info.help, suffix)
end

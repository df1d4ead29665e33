--- lm.repr(value): nested tables as text, tensors as they print.
local core = require "luminary.core"

local function is_name(key) return type(key) == "string" and key:match("^[%a_][%w_]*$") ~= nil end

-- Numbers by value before everything else by text.
local function before(a, b)
  local na, nb = type(a) == "number", type(b) == "number"
  if na and nb then return a < b end
  if na ~= nb then return na end
  return tostring(a) < tostring(b)
end

local function indent(text, by) return (text:gsub("\n", "\n" .. by)) end

local show
local DEEPEST = 40 -- tables below are "{…}", as one that is inside itself

local function show_table(t, open, margin)
  local mt = debug.getmetatable(t)
  if type(mt) == "table" and mt.__tostring then return indent(tostring(t), margin) end
  if open[t] or #margin > 2 * DEEPEST then return "{…}" end
  open[t] = true
  local inner, parts, wide = margin .. "  ", {}, false
  local n = #t
  local keys = {}
  for key in pairs(t) do
    if not (type(key) == "number" and key >= 1 and key <= n and key % 1 == 0) then keys[#keys + 1] = key end
  end
  table.sort(keys, before)
  for i = 1, n do parts[#parts + 1] = show(t[i], open, inner) end
  for _, key in ipairs(keys) do
    local name = is_name(key) and key or "[" .. show(key, open, inner) .. "]"
    parts[#parts + 1] = name .. " = " .. show(t[key], open, inner)
  end
  open[t] = nil
  local width = 0
  for _, part in ipairs(parts) do
    width = width + #part + 2
    wide = wide or part:find("\n", 1, true) ~= nil
  end
  if not wide and #margin + width <= 100 then return "{" .. table.concat(parts, ", ") .. "}" end
  return "{\n" .. inner .. table.concat(parts, ",\n" .. inner) .. ",\n" .. margin .. "}"
end

function show(value, open, margin)
  if type(value) == "string" then return ("%q"):format(value):gsub("\\\n", "\\n") .. "" end
  if type(value) == "table" then return show_table(value, open, margin) end
  if core.is_tensor(value) then return indent(tostring(value), margin) end
  return tostring(value)
end

--- Text of any value: tables with sorted keys, one line where it fits.
return function(value) return (show(value, {}, "")) end

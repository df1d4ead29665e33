--- The lists that x.shape, x:size() and x:stride() give: print shows them, == compares them, and .. makes them text.
--- Their metatable is made by the core; whoever asks whether a table is a plain one asks options.is_plain.
local core = require "luminary.core"

local sizes = core.sizes
sizes.__plain = true

-- Negative counts from the end, as in x:size(-1).
function sizes.__index(list, key)
  if type(key) ~= "number" or key >= 1 then return nil end
  if key == 0 then core.error_at_caller("sizes count from 1 (or from -1, the last); there is no size 0") end
  return rawget(list, #list + 1 + key)
end

function sizes.__tostring(list)
  local parts = {}
  for i = 1, #list do parts[i] = tostring(list[i]) end
  return "{" .. table.concat(parts, ", ") .. "}"
end

function sizes.__eq(a, b)
  for i = 1, math.max(#a, #b) do
    if a[i] ~= b[i] then return false end
  end
  return true
end

local function text(v)
  if type(v) == "string" or type(v) == "number" or debug.getmetatable(v) == sizes then return tostring(v) end
  core.error_at_caller(("attempt to concatenate a list of sizes and a %s value"):format(type(v)))
end

function sizes.__concat(a, b) return text(a) .. text(b) end

function sizes.__call(list)
  core.error_at_caller(("sizes are a list, which is not called: x.shape, or x:size(), here %s"):format(tostring(list)))
end

return sizes

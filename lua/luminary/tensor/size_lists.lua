--- Defines the lists of x.shape, x:size() and x:stride(): print shows them, == compares them, and .. converts them to
--- text. The core makes their metatable; options.is_plain is true for them.
local core = require "luminary.core"

local sizes = core.sizes
sizes.__plain = true

function sizes.__tostring(list)
  local parts = {}
  for i = 1, #list do -- scripts may have put holes, or the list itself, into it
    local size = rawget(list, i)
    parts[i] = type(size) == "table" and "{…}" or tostring(size)
  end
  return "{" .. table.concat(parts, ", ") .. "}"
end

-- Reads x.shape[-1] as the last size. An absent index is an error, since most calls would ignore a nil size.
function sizes.__index(list, i)
  local n = #list
  if type(i) ~= "number" then return nil end
  if i < 0 and i >= -n and i % 1 == 0 then return rawget(list, n + i + 1) end
  core.error_at_caller(("size: dim %s is out of range for sizes %s; dims start at 1, and -1 is the last"):format(
    tostring(i), tostring(list)))
end

function sizes.__eq(a, b)
  for i = 1, math.max(#a, #b) do
    if rawget(a, i) ~= rawget(b, i) then return false end
  end
  return true
end

local function text(v)
  if type(v) == "string" or type(v) == "number" or require("debug").getmetatable(v) == sizes then return tostring(v) end
  core.error_at_caller(("attempt to concatenate a list of sizes and a %s value"):format(type(v)))
end

function sizes.__concat(a, b) return text(a) .. text(b) end

function sizes.__call(list)
  core.error_at_caller(("sizes are a list, not a function: use x.shape or x:size(), here %s"):format(tostring(list)))
end

return sizes

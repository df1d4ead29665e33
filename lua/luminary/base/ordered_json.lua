--- ordered_json(value, order, null): Returns JSON text as json_encode does, but `null` is null, and objects whose keys
--- are listed in order[object], as core.json_decode(text, null, order) fills it, keep their order. With an order empty
--- tables without keys in it are lists; without one they are objects.
local json_encode = require "luminary.base.json_encode"
local lists = require "luminary.base.lists"
local options = require "luminary.base.options"

local DEEPEST = 256 -- levels

local function is_number(v) return type(v) == "number" end

local function encode(value, order, null, depth)
  if value == null then return "null" end
  if type(value) ~= "table" then return json_encode(value) end
  if depth > DEEPEST then options.fail("json_encode: tables must be nested at most %d deep", DEEPEST) end
  local keys = order and order[value]
  if not keys and (value[1] ~= nil or order and next(value) == nil) then
    if #lists.filter(value, is_number) == #value and value[1] then return json_encode(value) end
    return "[" .. table.concat(lists.map(value, function(v) return encode(v, order, null, depth + 1) end), ",") .. "]"
  end
  return "{" .. table.concat(lists.map(keys or lists.sorted_keys(value), function(key)
    return json_encode(key) .. ":" .. encode(value[key], order, null, depth + 1)
  end), ",") .. "}"
end
-- Interpreted: these tests in json_encode made the compiler of LuaJIT 2.1.0-beta3 take some tables for empty ones.
jit.off(encode, true)

return function(value, order, null) return encode(value, order, null, 0) end

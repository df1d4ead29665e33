--- json_encode(value): Returns JSON text of a plain Lua value, without spaces. A table with a [1] is an array, any
--- other an object of its string keys in sorted order, so that equal tables give equal text; other keys beside a [1]
--- are an error. core.json_decode is the inverse.
local options = require "luminary.base.options"
local printable_name = require "luminary.base.printable_name"

-- Tables may hold one another many times over: as many values as core.json_decode reads.
local MOST_VALUES, DEEPEST = 2 ^ 22, 256

local escapes = {
  ['"'] = '\\"', ["\\"] = "\\\\", ["\b"] = "\\b", ["\f"] = "\\f", ["\n"] = "\\n", ["\r"] = "\\r", ["\t"] = "\\t",
}
local function escape(c) return escapes[c] or ("\\u%04x"):format(c:byte()) end

local function refuse(name, bound, got) options.fail("json_encode: %s must be %s, got %s", name, bound, got) end

local writers = {
  boolean = tostring,
  string = function(s) return '"' .. s:gsub('[%c"\\]', escape) .. '"' end,
  number = function(x)
    if x - x ~= 0 then refuse("a number", "finite", tostring(x)) end
    local text = ("%.15g"):format(x) -- the shortest that reads back as x
    if tonumber(text) ~= x then text = ("%.16g"):format(x) end
    return tonumber(text) == x and text or ("%.17g"):format(x)
  end,
}

local write

local function write_list(out, list, depth, values)
  local n = 0
  while rawget(list, n + 1) ~= nil do
    out[#out + 1] = n == 0 and "[" or ","
    n = n + 1
    values = write(out, rawget(list, n), depth + 1, values)
  end
  out[#out + 1] = "]"
  for key in next, list do
    if not (type(key) == "number" and key >= 1 and key <= n and key % 1 == 0) then
      local shown = type(key) == "number" and tostring(key) or type(key)
      if type(key) == "string" then shown = ("'%s'"):format(printable_name(key, 60)) end
      refuse("a table", "a list or an object", ("a list of %d with the key %s"):format(n, shown))
    end
  end
  return values
end

local function write_object(out, object, depth, values)
  local keys = {}
  for key in next, object do
    if type(key) ~= "string" then refuse("a key", "a string, or 1 to n", "a " .. type(key)) end
    keys[#keys + 1] = key
  end
  table.sort(keys)
  out[#out + 1] = "{"
  for i, key in ipairs(keys) do
    out[#out + 1] = (i > 1 and "," or "") .. writers.string(key) .. ":"
    values = write(out, rawget(object, key), depth + 1, values)
  end
  out[#out + 1] = "}"
  return values
end

function write(out, value, depth, values)
  local kind = type(value)
  if values == MOST_VALUES then refuse("the number of values", ("at most %d"):format(MOST_VALUES), "more") end
  if kind == "table" then
    if depth > DEEPEST then
      refuse("tables", ("nested at most %d deep"):format(DEEPEST), "deeper ones, or a table that contains itself")
    end
    return (rawget(value, 1) ~= nil and write_list or write_object)(out, value, depth, values + 1)
  elseif not writers[kind] then
    refuse("a value", "a table, a string, a number or a boolean", "a " .. kind)
  end
  out[#out + 1] = writers[kind](value)
  return values + 1
end

return function(value)
  local out = {}
  write(out, value, 0, 0)
  return table.concat(out)
end

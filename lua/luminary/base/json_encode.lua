--- json_encode(value): Returns JSON text of a plain Lua value, without spaces. A table with a [1] becomes an array, any
--- other table an object with its string keys sorted, so that equal tables yield equal text. A table with a [1] and
--- other keys is an error. core.json_decode is the inverse. Only errors need the core.
local interpreted = require "luminary.base.interpreted"

-- Largest number of values, which core.json_decode reads too, and of levels: shared tables could expand without end.
local MOST_VALUES, DEEPEST = 2 ^ 22, 256

local escapes = {
  ['"'] = '\\"', ["\\"] = "\\\\", ["\b"] = "\\b", ["\f"] = "\\f", ["\n"] = "\\n", ["\r"] = "\\r", ["\t"] = "\\t",
}
local function escape(c) return escapes[c] or ("\\u%04x"):format(c:byte()) end

local function refuse(name, bound, got)
  require("luminary.base.options").fail("json_encode: %s must be %s, got %s", name, bound, got)
end

local function number(x)
  if x - x ~= 0 then refuse("a number", "finite", tostring(x)) end
  if x % 1 == 0 and math.abs(x) < 1e15 then return ("%.0f"):format(x) end
  local text = ("%.15g"):format(x) -- 15 digits read back as x for most numbers
  if tonumber(text) ~= x then text = ("%.16g"):format(x) end
  return tonumber(text) == x and text or ("%.17g"):format(x)
end

-- Escapes a string's contents. Most strings need no escape and are returned as they are, without a copy.
local function escaped(s) return s:find '[%c"\\]' and s:gsub('[%c"\\]', escape) or s end

local write

-- Appends text to `out`, {text …, n = number of texts, values = number of values}.
local function append_json(out, text)
  local n = out.n + 1
  out[n], out.n = text, n
end

local function write_list(out, list, depth)
  local n = 0
  while rawget(list, n + 1) ~= nil do
    append_json(out, n == 0 and "[" or ",")
    n = n + 1
    write(out, rawget(list, n), depth + 1)
  end
  append_json(out, "]")
  for key in next, list do
    if not (type(key) == "number" and key >= 1 and key <= n and key % 1 == 0) then
      local shown = type(key) == "number" and tostring(key) or type(key)
      if type(key) == "string" then shown = ("'%s'"):format(require "luminary.base.printable_name"(key, 60)) end
      refuse("a table", "a list or an object", ("a list of %d with the key %s"):format(n, shown))
    end
  end
end

local function write_object(out, object, depth)
  local keys, n = {}, 0
  for key in next, object do
    if type(key) ~= "string" then refuse("a key", "a string, or 1 to n", "a " .. type(key)) end
    n = n + 1
    keys[n] = key
  end
  table.sort(keys)
  append_json(out, "{")
  for i = 1, n do
    append_json(out, i > 1 and ',"' or '"')
    append_json(out, escaped(keys[i]))
    append_json(out, '":')
    write(out, rawget(object, keys[i]), depth + 1)
  end
  append_json(out, "}")
end

function write(out, value, depth)
  local kind = type(value)
  out.values = out.values + 1
  if out.values > MOST_VALUES then refuse("the number of values", ("at most %d"):format(MOST_VALUES), "more") end
  if kind == "table" then
    if depth > DEEPEST then
      refuse("tables", ("nested at most %d deep"):format(DEEPEST), "deeper ones, or a table that contains itself")
    end
    if rawget(value, 1) ~= nil then write_list(out, value, depth) else write_object(out, value, depth) end
  elseif kind == "string" then
    append_json(out, '"')
    append_json(out, escaped(value))
    append_json(out, '"')
  elseif kind == "number" then
    append_json(out, number(value))
  elseif kind == "boolean" then
    append_json(out, tostring(value))
  else
    refuse("a value", "a table, a string, a number or a boolean", "a " .. kind)
  end
end

write_list, write_object, write = interpreted(write_list), interpreted(write_object), interpreted(write)

return function(value)
  local out = {n = 0, values = 0}
  write(out, value, 0)
  return table.concat(out)
end

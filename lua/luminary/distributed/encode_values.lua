--- Plain Lua values as text and back, exactly: nil, booleans, numbers (infinite ones, NaN and -0 too), strings, and
--- tables of them whose keys are numbers, strings or booleans. Whatever the text holds, decoding it returns data alone.
---
--- A value is one letter and what belongs to it:
---   n nil   t true   f false   d17.5; number   s5:hello string   { key value … } table
local core = require "luminary.core"
local options = require "luminary.base.options"

local encode = {}

local deepest, most = 200, 2 ^ 22

local function number(x)
  if x ~= x then return "dnan;" end
  if x == math.huge then return "dinf;" end
  if x == -math.huge then return "d-inf;" end
  return ("d%.17g;"):format(x)
end

local scalar = {
  ["nil"] = function() return "n" end,
  boolean = function(v) return v and "t" or "f" end,
  number = number,
  string = function(v) return ("s%d:%s"):format(#v, v) end,
}

-- Where in the value something is, for messages: value.layers[2]
local function step(path, key)
  if type(key) == "string" and key:match("^[%a_][%w_]*$") then return path .. "." .. key end
  return ("%s[%s]"):format(path, type(key) == "string" and ("%q"):format(key) or tostring(key))
end

local function write(out, v, path, inside, depth)
  local kind = type(v)
  if scalar[kind] then
    out[#out + 1] = scalar[kind](v)
    return nil
  end
  if options.record(v) then return ("%s is an object, %s"):format(path, options.describe(v)) end
  if kind ~= "table" then return ("%s is a %s"):format(path, core.is_tensor(v) and "tensor" or kind) end
  if not options.is_plain(v) then return path .. " is an object (a table with a metatable)" end
  if inside[v] then return path .. " contains itself" end
  if #out > most then return ("%s: there are more than %d values"):format(path, most) end
  if depth > deepest then return ("%s lies deeper than %d tables"):format(path, deepest) end
  inside[v] = true
  out[#out + 1] = "{"
  for key, value in pairs(v) do
    if not scalar[type(key)] then return ("%s has a %s among its keys"):format(path, type(key)) end
    out[#out + 1] = scalar[type(key)](key)
    local problem = write(out, value, step(path, key), inside, depth + 1)
    if problem then return problem end
  end
  out[#out + 1] = "}"
  inside[v] = nil
end

--- The text of a value; nil and what cannot be sent, by its path ("value.model is a userdata").
function encode.encode(value, name)
  local out = {}
  local problem = write(out, value, name or "value", {}, 1)
  if problem then return nil, problem end
  return table.concat(out)
end

local words = {nan = 0 / 0, inf = math.huge, ["-inf"] = -math.huge}
local read

local function read_table(text, at, depth)
  local out = {}
  while text:sub(at, at) ~= "}" do
    local key, value
    key, at = read(text, at, depth)
    if key == nil or key ~= key or type(key) == "table" then error("a bad key", 0) end
    value, at = read(text, at, depth)
    out[key] = value
  end
  return out, at + 1
end

function read(text, at, depth)
  local letter = text:sub(at, at)
  if letter == "n" then return nil, at + 1 end
  if letter == "t" then return true, at + 1 end
  if letter == "f" then return false, at + 1 end
  if letter == "{" and depth < deepest + 1 then return read_table(text, at + 1, depth + 1) end
  if letter == "d" then
    local digits, next_at = text:match("^([^;]*);()", at + 1)
    local value = words[digits] or tonumber(digits)
    if value then return value, next_at end
  elseif letter == "s" then
    local length, from = text:match("^(%d+):()", at + 1)
    length = tonumber(length)
    if length and from + length - 1 <= #text then return text:sub(from, from + length - 1), from + length end
  end
  error("unknown kind of value", 0)
end

--- The value of a text; raises if it is none.
function encode.decode(text)
  local value, at = read(text, 1, 0)
  if at ~= #text + 1 then error("bytes after the value", 0) end
  return value
end

return encode

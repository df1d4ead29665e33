--- Operators of templates, attributes and items of values.
local lists = require "luminary.base.lists"
local strings = require "luminary.text.jinja.strings"
local values = require "luminary.text.jinja.values"

local fail, charge, kind, number = values.fail, values.charge, values.kind, values.number

local operators = {}

-- Defines an operator of numbers: f(x, y) of Lua numbers; result: "float", or the float of two ints. others(a, b)
-- returns the result for other values, or nil.
local function arithmetic(sign, f, result, others)
  operators[sign] = function(a, b)
    local x, y = number(a), number(b)
    if x and y and not (others and type(a) == "string") then
      local is_float = result == "float" or kind(a) == "float" or kind(b) == "float"
      return (is_float and values.float or values.int)(f(x, y))
    end
    local other
    if others then other = others(a, b) end
    if other ~= nil then return other end
    values.defined(a)
    values.defined(b)
    return fail("unsupported operand type(s) for %s: '%s' and '%s'", sign, kind(a), kind(b))
  end
end

local function divisor(y) return y ~= 0 and y or fail "division by zero" end

arithmetic("+", function(x, y) return x + y end, nil, function(a, b)
  if type(a) == "string" and type(b) == "string" then
    charge(#a + #b)
    return a .. b
  end
  if not values.is_list(a) or kind(a) ~= kind(b) then return nil end
  return values.list(lists.joined(a, b), a.n + b.n, kind(a))
end)
arithmetic("-", function(x, y) return x - y end)
arithmetic("*", function(x, y) return x * y end, nil, function(a, b)
  if number(a) then a, b = b, a end
  if type(a) ~= "string" or not number(b) then return nil end
  local n = math.max(0, values.index(b, "a factor"))
  charge(n * #a)
  return a:rep(n)
end)
arithmetic("/", function(x, y) return x / divisor(y) end, "float")
arithmetic("//", function(x, y) return math.floor(x / divisor(y)) end)
arithmetic("%", function(x, y) return x % divisor(y) end, nil, function(a, b)
  if type(a) ~= "string" then return nil end
  values.scan(a)
  return strings.percent(a, kind(b) == "tuple" and b or {b, n = 1})
end)

operators["=="] = values.equal
operators["!="] = function(a, b) return not values.equal(a, b) end
operators["<"] = function(a, b) return values.less(a, b, "<") end
operators[">"] = function(a, b) return values.less(b, a, ">") end
operators["<="] = function(a, b) return values.less(a, b, "<=") or values.equal(a, b) end
operators[">="] = function(a, b) return values.less(b, a, ">=") or values.equal(a, b) end
operators["in"] = function(a, b) return values.contains(b, a) end
operators["not in"] = function(a, b) return not values.contains(b, a) end

--- Returns -v or +v.
function operators.signed(v, sign)
  local x = number(v) or fail("bad operand type for unary %s: '%s'", sign, kind(values.defined(v)))
  if sign == "-" and (x ~= 0 or kind(v) == "float") then x = -x end
  return kind(v) == "float" and values.float(x) or x
end

local function missing(v, name) return values.undefined("'%s object' has no attribute '%s'", kind(v), name) end

--- Returns v.name: a method, else an item; undefined if there is none.
function operators.get_attribute(v, name)
  local k = kind(values.defined(v))
  local found = strings.method(v, name)
  if found == nil and (k == "dict" or k == "Namespace") then found = v.map[name] end
  if found == nil and k == "loop" then found = v.get(name) end
  return found == nil and missing(v, name) or found
end

--- Returns v[key]: an item, else an attribute; undefined if there is none.
function operators.get_item(v, key)
  local k, found = kind(values.defined(v)), nil
  local i = kind(key) ~= "float" and number(key)
  if k == "dict" and not values.is_list(key) then
    found = values.at(v, key)
  elseif i and k == "str" then
    found = values.slice(v, i, i ~= -1 and i + 1 or nil)
    if found == "" then found = nil end
  elseif i and values.is_list(v) then
    found = v[i < 0 and v.n + i + 1 or i + 1]
  end
  if found ~= nil then return found end
  return type(key) == "string" and operators.get_attribute(v, key) or missing(v, values.shown(key))
end

return operators

--- Values of templates: Python's None, numbers, lists and dicts over Lua's, and how they print, compare and are cut.
---
--- Strings, booleans and numbers are Lua's; a float without a fraction is a table, so that 3.0 prints as in Python.
local bit = require "bit"
local lists = require "luminary.base.lists"
local truncate_text = require "luminary.base.truncate_text"

local values = {}

local DEEPEST, LARGEST = 100, 2 ^ 53 -- most levels of a value; integers are exact up to this one
local Error = {__tostring = function(e) return e.message end}

--- Raises an error of a template, which chat_template.render reports.
function values.fail(format, ...)
  error(setmetatable({message = select("#", ...) > 0 and format:format(...) or format}, Error), 0)
end
local fail = values.fail

--- Returns true for an error that values.fail raised.
function values.is_error(e) return getmetatable(e) == Error end

-- ---- limits of a rendering

local steps, bytes, max_steps, max_bytes

--- Sets the number of steps that the next rendering may take, and of bytes of the values that it may make.
function values.begin(most_steps, most_bytes) steps, bytes, max_steps, max_bytes = 0, 0, most_steps, most_bytes end

--- Counts a step.
function values.step()
  steps = steps + 1
  if steps > max_steps then fail("it takes more than %d steps; the template's loops are too long", max_steps) end
end

--- Counts the steps of a search for a part in a text, or of a pass over it.
function values.scan(text, part)
  steps = steps + #text * (16 + #(part or "")) / 1024
  values.step()
end

--- Counts bytes of a value before it is made.
function values.charge(n)
  bytes = bytes + n
  if bytes > max_bytes then fail("it makes values of more than %d bytes; its loops are too long", max_bytes) end
end
local step, charge = values.step, values.charge

-- ---- kinds

local classes = {}
for _, kind in ipairs {"list", "tuple", "dict", "float", "Undefined", "function", "Namespace", "loop", "NoneType"} do
  classes[kind] = {kind = kind}
end
values.NONE = setmetatable({}, classes.NoneType)

--- Returns an object of a kind: a list or tuple has n; a dict or Namespace keys, map and n; a float value; Undefined a
--- hint; a function call(args, named), where args has n; a loop get(name) and again(list).
function values.new(kind, object) return setmetatable(object, classes[kind]) end
local new = values.new

--- Returns the name of a value's type in Python.
function values.kind(v)
  local t = type(v)
  if t == "table" then return getmetatable(v).kind end
  return t == "string" and "str" or t == "boolean" and "bool" or v % 1 == 0 and "int" or "float"
end
local kind = values.kind

--- Returns true for a list or tuple.
function values.is_list(v)
  local k = kind(v)
  return k == "list" or k == "tuple"
end

--- Returns a list's value, or a tuple's. items: a Lua list, kept.
function values.list(items, n, of)
  items.n = n or #items
  charge(40 + 16 * items.n)
  return new(of or "list", items)
end
function values.tuple(items, n) return values.list(items, n, "tuple") end

--- Returns an empty dict, whose keys keep their order.
function values.dict()
  charge(100)
  return new("dict", {keys = {}, map = {}, n = 0})
end

--- Returns a numeric value (bool too) as a Lua number; nil for others.
function values.number(v)
  if type(v) == "boolean" then return v and 1 or 0 end
  return type(v) == "number" and v or kind(v) == "float" and v.value or nil
end
local number = values.number

-- Returns the key under which a dict keeps a value: True is 1. Values that are no keys are under false.
local function hashed(key) return (type(key) == "string" or key == values.NONE) and key or number(key) or false end

--- Sets dict[key]. Returns the dict.
function values.put(dict, key, value)
  local k = hashed(key) or fail("unsupported key of a dict: a %s", kind(key))
  if dict.map[k] == nil then
    charge(64)
    dict.n = dict.n + 1
    dict.keys[dict.n] = key
  end
  dict.map[k] = value
  return dict
end

--- Returns dict[key], or nil.
function values.at(dict, key) return dict.map[hashed(key)] end

--- Returns an undefined value, with the message of its uses.
function values.undefined(hint, ...) return new("Undefined", {hint = hint:format(...)}) end

--- Returns v; fails if it is undefined.
function values.defined(v)
  if kind(v) == "Undefined" then fail("%s", v.hint) end
  return v
end

--- Returns a function's value: call(args, named), where args is a list with n, and named a table by name.
function values.func(call) return new("function", {call = call}) end

--- Returns x as Python's float, or as its int.
function values.float(x) return x % 1 == 0 and new("float", {value = x}) or x end
function values.int(x)
  if not (x >= -LARGEST and x <= LARGEST) then fail "integers beyond 2^53 are not supported" end
  return x
end

--- Returns an int or bool as a Lua number; fails for others.
function values.index(v, who)
  return kind(v) ~= "float" and number(v) or fail("%s must be an integer, not %s", who, kind(v))
end

--- Returns Python's bool(v).
function values.truth(v)
  if type(v) == "boolean" then return v end
  local x = number(v)
  if x then return x ~= 0 end
  return v ~= "" and v ~= values.NONE and kind(v) ~= "Undefined" and not (type(v) == "table" and v.n == 0)
end

-- ---- characters

--- Returns the list of a string's characters, and their number.
function values.characters(s)
  charge(16 * #s)
  local out, n = {}, 0
  for c in s:gmatch "[%z\1-\127\194-\244][\128-\191]*" do
    n = n + 1
    out[n] = c
  end
  return out, n
end

--- Returns the number of a string's characters.
function values.length(s) return (select(2, s:gsub("[^\128-\191]", ""))) end

--- Returns a character's code point.
function values.code(c)
  local a, b, d, e = c:byte(1, 4)
  if a < 128 then return a end
  if a < 224 then return (a - 192) * 64 + b - 128 end
  if a < 240 then return (a - 224) * 4096 + (b - 128) * 64 + d - 128 end
  return (a - 240) * 262144 + (b - 128) * 4096 + (d - 128) * 64 + e - 128
end

--- Returns the character of a code point.
function values.character(x)
  local function tail(by) return 128 + bit.band(bit.rshift(x, by), 63) end
  if x < 128 then return string.char(x) end
  if x < 2048 then return string.char(192 + bit.rshift(x, 6), tail(0)) end
  if x < 65536 then return string.char(224 + bit.rshift(x, 12), tail(6), tail(0)) end
  return string.char(240 + bit.rshift(x, 18), tail(12), tail(6), tail(0))
end

-- ---- printing

local function float_text(x)
  if x - x ~= 0 then return x ~= x and "nan" or x > 0 and "inf" or "-inf" end
  local text
  for digits = 14, 16 do
    text = ("%." .. digits .. "e"):format(x)
    if tonumber(text) == x then break end
  end
  local sign, digits, exponent = text:match "^(%-?)([%d.]+)e([-+]%d+)$"
  digits, exponent = digits:gsub("%.", ""):gsub("(.)0+$", "%1"), tonumber(exponent)
  if exponent < -4 or exponent >= 16 then
    digits = digits:gsub("^(.)(.)", "%1.%2")
    return ("%s%se%s%02d"):format(sign, digits, exponent < 0 and "-" or "+", math.abs(exponent))
  end
  digits = ("0"):rep(-exponent) .. digits .. ("0"):rep(exponent + 2 - #digits)
  local whole = math.max(0, exponent) + 1
  return sign .. digits:sub(1, whole) .. "." .. digits:sub(whole + 1)
end

local function number_text(v) return kind(v) == "float" and float_text(number(v)) or ("%.0f"):format(v) end

local escapes = {["\n"] = "\\n", ["\r"] = "\\r", ["\t"] = "\\t", ["\\"] = "\\\\", ["'"] = "\\'"}

-- Ranges of code points beyond ASCII that Python's repr escapes, except unassigned ones.
local ESCAPED = {
  0x80, 0xa0, 0xad, 0xad, 0x1680, 0x1680, 0x2000, 0x200f, 0x2028, 0x202f, 0x205f, 0x206f, 0x3000, 0x3000, 0xe000,
  0xf8ff, 0xfeff, 0xfeff, 0xfff0, 0xfffb, 0xfffe, 0xffff, 0xe0000, 0x10ffff,
}

local function string_repr(s)
  local quote = s:find "'" and not s:find '"' and '"' or "'"
  s = s:gsub(quote == "'" and "[%c\\']" or "[%c\\]", function(c) return escapes[c] or ("\\x%02x"):format(c:byte()) end)
  return quote .. s:gsub("[\194-\244][\128-\191]+", function(c)
    local code = values.code(c)
    for i = 1, #ESCAPED, 2 do
      if code >= ESCAPED[i] and code <= ESCAPED[i + 1] then
        return (code < 256 and "\\x%02x" or code < 65536 and "\\u%04x" or "\\U%08x"):format(code)
      end
    end
  end) .. quote
end

local json_escapes = {
  ['"'] = '\\"', ["\\"] = "\\\\", ["\b"] = "\\b", ["\f"] = "\\f", ["\n"] = "\\n", ["\r"] = "\\r", ["\t"] = "\\t",
}

local function json_string(s)
  s = s:gsub('[%z\1-\31"\\]', function(c) return json_escapes[c] or ("\\u%04x"):format(c:byte()) end)
  return '"' .. s .. '"'
end

-- Texts of values that are neither strings, numbers nor containers, by kind: Python's, and JSON's.
local words = {NoneType = "None", Undefined = "Undefined", ["true"] = "True", ["false"] = "False"}
local json_words = {NoneType = "null", ["true"] = "true", ["false"] = "false", nan = "NaN", inf = "Infinity",
  ["-inf"] = "-Infinity"}

local function scalar_text(v, o)
  local k = type(v) == "boolean" and tostring(v) or kind(v)
  if k == "str" then return o.json and json_string(v) or string_repr(v) end
  local text = (o.json and json_words or words)[k]
  if not text and number(v) then
    text = number_text(v)
    text = o.json and json_words[text] or text
  end
  return text or fail(o.json and "Object of type %s is not JSON serializable" or "a %s cannot be printed", k)
end

local write
local function append(out, text)
  step()
  charge(#text + 16)
  out[#out + 1] = text
end

function write(out, v, o, depth)
  local is_dict, is_list = kind(v) == "dict", values.is_list(v)
  if depth > DEEPEST then fail("values are nested more than %d deep", DEEPEST) end
  if not is_dict and not is_list then return append(out, scalar_text(v, o)) end
  local is_tuple = kind(v) == "tuple" and not o.json
  local opening, closing = is_dict and "{" or is_tuple and "(" or "[", is_dict and "}" or is_tuple and ")" or "]"
  local function line(levels) return o.indent and v.n > 0 and "\n" .. o.indent:rep(levels) or "" end
  local keys = is_dict and (o.sort_keys and values.sorted(values.items(v)) or v.keys)
  append(out, opening .. line(depth))
  for i = 1, v.n do
    if i > 1 then append(out, o.between .. line(depth)) end
    if is_dict then
      local key = scalar_text(keys[i], o)
      append(out, (o.json and not key:find '^"' and '"' .. key .. '"' or key) .. o.after_key)
    end
    write(out, is_dict and values.at(v, keys[i]) or not is_dict and v[i], o, depth + 1)
  end
  append(out, (is_tuple and v.n == 1 and "," or "") .. line(depth - 1) .. closing)
end

local printed = {between = ", ", after_key = ": "}

--- Returns Python's repr(v), or json.dumps(v) by o: {json = true, between, after_key = separators, indent = text of a
--- level, sort_keys}.
function values.repr(v, o)
  local out = {}
  write(out, v, o or printed, 1)
  return table.concat(out)
end

--- Returns Python's str(v).
function values.text(v)
  if type(v) == "string" then return v end
  return kind(v) == "Undefined" and "" or values.repr(v)
end

--- Returns the start of a value's text, for messages.
function values.shown(v) return truncate_text(values.repr(v), 60) end

-- ---- comparing

local function equal(a, b, depth)
  step()
  if depth > DEEPEST then fail("values are nested more than %d deep", DEEPEST) end
  local x, y, k = number(a), number(b), kind(a)
  if x or y then return x == y end
  if rawequal(a, b) then return true end
  if k ~= kind(b) or a.n ~= b.n then return false end
  for i = 1, (values.is_list(a) or k == "dict") and a.n or 0 do
    local other = k ~= "dict" and b[i]
    if k == "dict" then other = values.at(b, a.keys[i]) end
    if other == nil or not equal(k == "dict" and values.at(a, a.keys[i]) or k ~= "dict" and a[i], other, depth + 1) then
      return false
    end
  end
  return k == "Undefined" or k == "dict" or values.is_list(a)
end

--- Returns Python's a == b.
function values.equal(a, b) return equal(a, b, 1) end

--- Returns Python's a < b of numbers or strings; sign: the operator, for messages.
function values.less(a, b, sign)
  step()
  local x, y = number(a), number(b)
  if x and y then return x < y end
  if type(a) == "string" and type(b) == "string" then return a < b end
  local first, second = kind(values.defined(a)), kind(values.defined(b))
  return fail("'%s' not supported between instances of '%s' and '%s'", sign, first, second)
end

--- Returns Python's `v in c`.
function values.contains(c, v)
  if type(c) == "string" then
    if type(v) ~= "string" then fail("'in <string>' requires string as left operand, not %s", kind(v)) end
    values.scan(c, v)
    return c:find(v, 1, true) ~= nil
  end
  local list = values.is_list(c) and c or values.items(c)
  return lists.find(list, function(each) return equal(each, v, 1) end) ~= nil
end

-- ---- lists

--- Returns a new list of the items that a loop over v has.
function values.items(v)
  local k = kind(v)
  if values.is_list(v) then return values.list(lists.slice(v, 1, v.n)) end
  if k == "dict" then return values.list(lists.slice(v.keys)) end
  if k == "str" then return values.list(values.characters(v)) end
  return k == "Undefined" and values.list {} or fail("'%s' object is not iterable", k)
end

--- Returns a list in ascending order of key(item), or of items. Equal ones keep their order.
function values.sorted(list, key, reverse)
  local keys, order, out = {}, {}, {}
  for i = 1, list.n do keys[i], order[i] = key and key(list[i]) or not key and list[i], i end
  table.sort(order, function(i, j)
    if values.less(keys[reverse and j or i], keys[reverse and i or j], "<") then return true end
    return i < j and not values.less(keys[reverse and i or j], keys[reverse and j or i], "<")
  end)
  for i = 1, list.n do out[i] = list[order[i]] end
  return values.list(out)
end

--- Returns Python's v[from:to:by] of a string, list or tuple; nil for absent bounds.
function values.slice(v, from, to, by)
  local is_text = type(values.defined(v)) == "string"
  if not is_text and not values.is_list(v) then fail("'%s' object cannot be sliced", kind(v)) end
  by = by or 1
  if by == 0 then fail "slice step cannot be zero" end
  local items, n = v, v.n
  if is_text then items, n = values.characters(v) end
  local lowest, highest = by > 0 and 0 or -1, by > 0 and n or n - 1
  local function bound(x, default)
    return x and math.max(lowest, math.min(highest, x < 0 and x + n or x)) or default
  end
  from, to = bound(from, by > 0 and lowest or highest), bound(to, by > 0 and highest or lowest)
  local out = {}
  for i = from, by > 0 and to - 1 or to + 1, by do out[#out + 1] = items[i + 1] end
  return is_text and table.concat(out) or values.list(out, #out, not is_text and kind(v) or nil)
end

return values

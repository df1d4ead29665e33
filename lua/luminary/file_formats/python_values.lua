--- Names in pickles that stand for plain data: of Python's standard library and of NumPy. Nothing is called: each is
--- made of its arguments here. Objects of attributes and numbers of parts become tables, dates and paths strings.
local core = require "luminary.core"
local numpy = require "luminary.file_formats.numpy"
local pickle = require "luminary.file_formats.pickle"
local printable_name = require "luminary.base.printable_name"
local Source = require "luminary.file_formats.source"

local known = {} -- by full name, what pickle.load's `names` returns

local function define(names, call, takes_lost)
  for name in names:gmatch "%S+" do known[name] = pickle.callable(name, call, takes_lost) end
end

-- A function that returns f(…) of arguments whose types are `types`, with "?" of those that may be absent; it refuses
-- others.
local function taking(name, types, f)
  return function(args, machine)
    local n = 0
    for kind, optional in types:gmatch "(%a+)(%??)" do
      n = n + 1
      if type(args[n]) ~= kind and not (args[n] == nil and optional == "?") then return pickle.refused(name) end
    end
    if #args > n then return pickle.refused(name) end
    return f(args[1], args[2], args[3], machine)
  end
end

local function define_typed(name, types, f) define(name, taking(name, types, f)) end

-- ---- containers

local function as_dict(args, machine)
  local dict, from = machine:new "dict", args[1]
  if machine.kind[from] == "dict" then
    for key, value in pairs(from) do
      machine.cursor:copies(1)
      dict[key] = value
    end
    return dict
  end
  local list = machine.kind[from] == "list" and from or {}
  machine.cursor:copies(#list)
  for _, pair in ipairs(list) do
    machine:set_items(dict, machine:of_kind(pair, machine.kind[pair] == "list" and "list" or "tuple"))
  end
  return dict
end

local function as_list(kind)
  return function(args, machine)
    local list, from = machine:new(kind), args[1] and machine.kind[args[1]] and args[1] or {}
    machine.cursor:copies(#from)
    machine:append(list, from)
    return list
  end
end

local function set_attributes(t, state, machine)
  for key, value in pairs(machine:of_kind(state, "dict")) do t[key] = value end
end

local function namespace(args, machine)
  local t = as_dict(args, machine)
  machine.build[t] = set_attributes
  return t
end

-- A function that returns a table of its arguments by these names.
local function fields_of(...)
  local names = {...}
  return function(args, machine)
    local t = machine:new "dict"
    for i, name in ipairs(names) do t[name] = args[i] end
    return t
  end
end

define("collections.OrderedDict collections.Counter builtins.dict", as_dict)
define("collections.defaultdict", function(_, machine) return machine:new "dict" end, true) -- whatever its factory
define("collections.deque builtins.list", as_list "list")
define("builtins.tuple", as_list "tuple")
define("builtins.set builtins.frozenset", as_list "set")
define("argparse.Namespace types.SimpleNamespace", namespace)
define("builtins.slice builtins.range builtins.xrange", fields_of("start", "stop", "step"))
define("builtins.complex", fields_of("real", "imag"))

-- ---- texts

-- Python 2's way, and protocol 2's, of saying bytes: a text of which each character is a byte.
local function bytes_of(text, coding, _, machine)
  if not text then return "" end
  if not coding then return text end
  if coding ~= "latin1" and coding ~= "latin-1" then return pickle.refused "_codecs.encode" end
  machine.cursor:copies(#text, "text")
  return (text:gsub("([\194\195])([\128-\191])", function(high, low)
    return string.char((high:byte() - 194) * 64 + low:byte())
  end))
end

define_typed("_codecs.encode", "string string?", bytes_of)
for _, name in ipairs {"builtins.bytearray", "builtins.bytes"} do define_typed(name, "string? string?", bytes_of) end
define_typed("decimal.Decimal", "string", function(text) return text end)

for kind, separator in pairs {Posix = "/", PurePosix = "/", Windows = "\\", PureWindows = "\\"} do
  for _, module in ipairs {"pathlib.", "pathlib._local."} do
    define(module .. kind .. "Path", function(args, machine)
      for _, part in ipairs(args) do
        if type(part) ~= "string" then return pickle.refused "pathlib.Path" end
        machine.cursor:copies(#part, "text")
      end
      if not args[1] then return "." end
      local root = args[1]:sub(-1) == separator and args[1] or args[1] .. (args[2] and separator or "")
      return root .. table.concat(args, separator, 2)
    end)
  end
end

local function date(b) return ("%04d-%02d-%02d"):format(b:byte(1) * 256 + b:byte(2), b:byte(3) % 128, b:byte(4)) end

local function time(b, zone)
  local hour, minute, second, high, middle, low = b:byte(1, 6)
  local micro = high * 65536 + middle * 256 + low
  return ("%02d:%02d:%02d%s%s"):format(hour % 128, minute, second, micro > 0 and (".%06d"):format(micro) or "",
    zone or "")
end

-- Python's bytes of a date or time, of so many, as isoformat() has it.
local function define_time(name, size, f)
  define_typed(name, "string string?", function(b, zone) return #b == size and f(b, zone) or pickle.refused(name) end)
end
define_time("datetime.date", 4, date)
define_time("datetime.time", 6, time)
define_time("datetime.datetime", 10, function(b, zone) return date(b) .. "T" .. time(b:sub(5), zone) end)
define_typed("datetime.timedelta", "number? number? number?", function(days, seconds, micro)
  return (days or 0) * 86400 + (seconds or 0) + (micro or 0) / 1e6
end)
define_typed("datetime.timezone", "number string?", function(seconds)
  if not (math.abs(seconds) < 86400) then return pickle.refused "datetime.timezone" end
  local minutes = math.floor(math.abs(seconds) / 60)
  return ("%s%02d:%02d"):format(seconds < 0 and "-" or "+", math.floor(minutes / 60), minutes % 60)
end)

-- ---- NumPy

local function lacking(code) return pickle.lost("dtype " .. printable_name(code, 40), {lacking = true}) end

-- numpy.dtype(code, align, copy), whose state has the byte order, and what the code does not say.
local function dtype_state(self, state, machine)
  machine:of_kind(state, "tuple")
  self.swapped = state[2] == ">"
  if state[3] ~= pickle.NONE or state[4] ~= pickle.NONE then self.code = "of several fields" end
end

define("numpy.dtype", function(args)
  local code = args[1]
  if type(code) ~= "string" then return pickle.refused "numpy.dtype" end
  return pickle.opaque("numpy.dtype", {
    code = code, is_dtype = true, build = dtype_state,
    value = function(self) return numpy.dtypes[self.code] or self.code end,
  })
end)

local function utf8(code)
  if code < 128 then return string.char(code) end
  local out, first = "", 64
  repeat
    out, code, first = string.char(128 + code % 64) .. out, math.floor(code / 64), first / 2
  until code < first
  return string.char(256 - 2 * first + code) .. out
end

-- The texts of n elements of `size` bytes each: bytes ("S") or UTF-32 ("U").
local function texts(array, n, size)
  local list = {}
  for i = 1, n do
    local text = array.raw:sub((i - 1) * size + 1, i * size)
    if array.dtype.code:byte() == 85 then
      text = text:gsub("....", function(four)
        local code = Source.unsigned(array.dtype.swapped and four:reverse() or four, 1, 4)
        return code < 0x110000 and utf8(code) or "?"
      end)
    end
    list[i] = text:gsub("%z+$", "")
  end
  return list
end

-- The elements of a list from `at` on as lists within lists.
local function nested(machine, list, shape, strides, d, at)
  if d > #shape then return list[at] end
  local out = machine:new "list"
  for i = 1, shape[d] do out[i] = nested(machine, list, shape, strides, d + 1, at + (i - 1) * strides[d]) end
  return out
end

-- A tensor; or, of objects and texts, lists within lists.
local function array_value(array, machine)
  local source, raw, dtype = machine.cursor.source, array.raw, array.dtype
  if not dtype then machine:fail "an array without a state" end
  local code, shape = dtype.code, array.shape
  local n, name = source:numel(shape, "an array"), numpy.dtypes[code]
  local kind, width = code:match "^([SUO])(%d*)$"
  if not (name or kind) then return lacking(code) end
  local size = name and Source.item_bytes[name] or kind == "U" and 4 * (tonumber(width) or 0) or tonumber(width) or 0
  if kind == "O" and machine.kind[raw] == "list" and #raw == n then size = false end
  if size and (type(raw) ~= "string" or n * size ~= #raw or not name and size == 0 and n > 0) then
    machine:fail("an array of shape [%s] and dtype %s does not match its data", table.concat(shape, ", "),
      printable_name(code, 40))
  end
  local strides = Source.dense_strides(shape, array.fortran)
  if not name then
    machine.cursor:copies(n)
    local list = size and texts(array, n, size) or raw
    return n == 0 and machine:new "list" or nested(machine, list, shape, strides, 1, 1)
  end
  machine.cursor:copies(#raw, "array")
  local bytes = core.bytes_tensor(raw)
  if dtype.swapped then bytes = Source.swapped(bytes, Source.number_bytes(name)) end
  if name == "bool" then source:check_bools(bytes, "an array") end
  if not array.is_scalar then bytes = source:placed(bytes) end
  return source:view(bytes, name, shape, strides, 0, "an array") or pickle.lost(Source.TOO_LARGE, {lacking = true})
end

local function plain_shape(shape, machine)
  local copy = {}
  for i, size in ipairs(machine:of_kind(shape, "tuple")) do copy[i] = size end
  return copy
end

local function set_array(array, dtype, shape, raw, fortran, machine)
  if type(dtype) ~= "table" or not dtype.is_dtype then machine:fail "an array without a dtype" end
  array.dtype, array.shape, array.raw, array.fortran = dtype, plain_shape(shape, machine), raw, fortran
  return array
end

-- (version, shape, dtype, whether the first dim varies fastest, data)
local function array_state(array, state, machine)
  machine:of_kind(state, "tuple")
  if pickle.is_lost(state[3]) then
    array.value = function() return state[3] end
    return
  end
  set_array(array, state[3], state[2], state[5], state[4] == true or state[4] == 1, machine)
end

local function new_array() return pickle.opaque("numpy.ndarray", {build = array_state, value = array_value}) end

local is_array = {["numpy.ndarray"] = true, ["numpy.memmap"] = true}
for name in pairs(is_array) do known[name] = pickle.opaque(name, {}) end

-- An element of an array as a number, a boolean, a text or a table of two parts.
local function scalar(args, machine)
  if machine.dry then return pickle.NONE end
  local array = set_array(new_array(), args[1], machine:new "tuple", args[2], false, machine)
  array.is_scalar = true
  local raw, dtype = args[2], array.dtype
  local t = array_value(array, machine)
  if not core.is_tensor(t) then return t end
  if t:dim() == 1 then return fields_of("real", "imag")(t:tolist(), machine) end
  return dtype.code:find "^[iu]8$" and Source.int64(dtype.swapped and raw:reverse() or raw, 1) or t:item()
end

for _, core_name in ipairs {"numpy.core.", "numpy._core."} do
  define(core_name .. "multiarray.scalar", scalar)
  define(core_name .. "multiarray._reconstruct", function(args)
    local class = type(args[1]) == "table" and args[1].name
    return is_array[class] and new_array() or pickle.refused(class or "numpy.core.multiarray._reconstruct")
  end)
  define(core_name .. "numeric._frombuffer", function(args, machine)
    return set_array(new_array(), args[2], args[3], args[1], args[4] == "F", machine)
  end)
end

return known

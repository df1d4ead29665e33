--- Maps names in pickles to plain data, for Python's standard library and NumPy. It runs no code of pickles: each value
--- is made here from arguments, which may be anything; an error makes it a lost one (pickle.lua).
local core = require "luminary.core"
local numpy = require "luminary.file_formats.numpy"
local pickle = require "luminary.file_formats.pickle"
local printable_name = require "luminary.base.printable_name"
local Source = require "luminary.file_formats.source"

local known = {} -- maps a full name to the result of pickle.load's `names`

local function define(names, call, takes_lost)
  for name in names:gmatch "%S+" do known[name] = pickle.callable(name, call, takes_lost) end
end

-- Defines the value of these names as f(arguments…).
local function define_plain(names, f) define(names, function(args) return f(unpack(args)) end) end

local function as_dict(args, machine)
  local dict, from = machine:new "dict", args[1]
  for key, value in pairs(machine.kind[from] and from or {}) do
    machine.cursor:copies(1)
    if machine.kind[from] ~= "dict" then
      key, value = unpack(machine:of_kind(value, machine.kind[value] == "list" and "list" or "tuple"), 1, 2)
    end
    machine:set_items(dict, {key, value})
  end
  return dict
end

local function as_list(kind)
  return function(args, machine)
    local list, from = machine:new(kind), machine.kind[args[1]] and args[1] or {}
    machine.cursor:copies(#from)
    machine:append(list, from)
    return list
  end
end

-- Returns a table that takes an object's state: a dict of attributes, or any value as `state`.
local function namespace(args, machine)
  local t = as_dict(args, machine)
  machine.build[t] = function(_, state)
    local attributes = machine.kind[state] == "dict" and as_dict({state}, machine) or {state = state}
    for key, value in pairs(attributes) do t[key] = value end
  end
  return t
end

local function complex(args, machine) return machine:new("dict", {real = args[1], imag = args[2]}) end

define("collections.OrderedDict collections.Counter", as_dict)
define("collections.defaultdict", function(_, machine) return machine:new "dict" end, true) -- with any factory
define("collections.deque", as_list "list")
define("builtins.tuple torch.Size", as_list "tuple")
define("builtins.set builtins.frozenset", as_list "set")
define("argparse.Namespace types.SimpleNamespace torch._C.Generator", namespace)
define("builtins.complex", complex)
define("builtins.slice builtins.range builtins.xrange", function(args, machine)
  return machine:new("dict", {start = args[1], stop = args[2], step = args[3]})
end)

local latin1 = {} -- maps UTF-8 characters to bytes
for byte = 128, 255 do latin1[string.char(192 + math.floor(byte / 64), 128 + byte % 64)] = string.char(byte) end

-- Decodes bytes as Python 2 and protocol 2 store them: a text in which each character is a byte.
define("_codecs.encode builtins.bytearray builtins.bytes", function(args, machine)
  local text, coding = args[1] or "", args[2]
  machine.cursor:copies(#text)
  assert(type(text) == "string" and (not coding or coding == "latin1" or coding == "latin-1"))
  return not coding and text or (text:gsub("[\194\195][\128-\191]", latin1))
end)

for kind, separator in pairs {Posix = "/", PurePosix = "/", Windows = "\\", PureWindows = "\\"} do
  define(("pathlib.%sPath pathlib._local.%sPath"):format(kind, kind), function(args, machine)
    for _, part in ipairs(args) do machine.cursor:copies(#part) end
    local first = args[1] or "."
    return first .. (args[2] and first:sub(-1) ~= separator and separator or "") .. table.concat(args, separator, 2)
  end)
end

-- Decodes Python's bytes of a date, a time or both, in the form of isoformat().
define_plain("datetime.date datetime.time datetime.datetime", function(b, zone)
  local all = #b == 6 and "\1\1\1\1" .. b or b .. ("\0"):rep(10 - #b)
  local century, year, month, day, hour, minute, second, high, middle, low = all:byte(1, 10)
  local micro = high * 65536 + middle * 256 + low
  local date = ("%04d-%02d-%02d"):format(century * 256 + year, month % 128, day)
  local time = ("%02d:%02d:%02d%s%s"):format(hour % 128, minute, second, micro > 0 and (".%06d"):format(micro) or "",
    zone or "")
  return assert(({[4] = date, [6] = time, [10] = date .. "T" .. time})[#b])
end)
define_plain("datetime.timedelta", function(days, seconds, micro) return days * 86400 + seconds + micro / 1e6 end)
define_plain("datetime.timezone", function(seconds)
  local minutes = math.floor(math.abs(seconds) / 60)
  return ("%s%02d:%02d"):format(seconds < 0 and "-" or "+", math.floor(minutes / 60), minutes % 60)
end)
define_plain("decimal.Decimal", function(digits) return assert(type(digits) == "string") and digits end)

-- Defines dtypes: they have a code such as "f8"; their state has the byte order, and the fields of records.
define("numpy.dtype", function(args)
  local function build(self, state)
    self.swapped = state[2] == ">"
    if state[3] ~= pickle.NONE or state[4] ~= pickle.NONE then self.code = "of several fields" end
  end
  return pickle.opaque("numpy.dtype", {
    code = args[1]:sub(1, 40), build = build, value = function(self) return numpy.dtypes[self.code] or self.code end,
  })
end)

-- Returns n texts of `width` characters each: bytes ("S") or UTF-32 ("U").
local function texts(raw, n, kind, width, swapped)
  local list, size = {}, kind == "U" and 4 * width or width
  assert(#raw == n * size)
  local function escaped(a, b, c, d)
    local code = Source.unsigned(swapped and d .. c .. b .. a or a .. b .. c .. d, 1, 4)
    return code < 65536 and ("\\u%04x"):format(code)
      or ("\\u%04x\\u%04x"):format(math.floor(code / 1024) + 0xd7c0, code % 1024 + 0xdc00)
  end
  for i = 1, n do
    local text = raw:sub((i - 1) * size + 1, i * size)
    if kind == "U" then text = core.json_decode('["' .. text:gsub("(.)(.)(.)(.)", escaped) .. '"]')[1] end
    list[i] = text:gsub("%z+$", "")
  end
  return list
end

-- Returns a tensor, or a list of objects or texts of one dim.
local function array_value(array, machine)
  local source, raw, dtype, shape = machine.cursor.source, array.raw, array.dtype, {unpack(array.shape)}
  local n, strides = source:numel(shape, "an array"), Source.dense_strides(shape, array.fortran)
  local name, kind, width = numpy.dtypes[dtype.code], dtype.code:match "^([SUO])(%d*)$"
  machine.cursor:copies(#raw)
  if name then
    assert(type(raw) == "string" and #raw == n * Source.item_bytes[name])
    local bytes = core.bytes_tensor(raw)
    if dtype.swapped then bytes = Source.swapped(bytes, name) end
    if name == "bool" then source:check_bools(bytes, "an array") end
    return source:view(source:placed(bytes), name, shape, strides, 0, "an array")
      or pickle.lost(Source.TOO_LARGE, {lacking = true})
  elseif not kind or #shape > 1 then
    return pickle.lost(("an array of dtype %s and %d dims"):format(printable_name(dtype.code, 40), #shape))
  end
  local list = kind == "O" and raw or texts(raw, n, kind, tonumber(width), dtype.swapped)
  return assert(type(list) == "table" and #list == n) and (shape[1] and list or list[1])
end

-- Makes an array; its state is (version, shape, dtype, true if the first dim varies fastest, data).
local function array_of(dtype, shape, raw, fortran)
  return pickle.opaque("numpy.ndarray", {
    dtype = dtype, shape = shape, raw = raw, fortran = fortran, value = array_value,
    build = function(self, state)
      self.shape, self.dtype, self.raw, self.fortran = state[2], state[3], state[5], state[4] == true or state[4] == 1
    end,
  })
end

-- Returns an element of an array as a number, a boolean, a text or a table of two parts.
local function scalar(args, machine)
  local dtype, raw = args[1], args[2]
  local t = array_value(array_of(dtype, {}, raw), machine)
  if not core.is_tensor(t) then return t end
  if t:dim() == 1 then return complex(t:tolist(), machine) end
  return dtype.code:find "^[iu]8$" and Source.int64(dtype.swapped and raw:reverse() or raw, 1) or t:item()
end

for name in ("numpy.ndarray numpy.memmap"):gmatch "%S+" do known[name] = pickle.opaque(name, {is_array = true}) end
for _, module in ipairs {"numpy.core.", "numpy._core."} do
  define(module .. "multiarray.scalar", scalar)
  define_plain(module .. "multiarray._reconstruct", function(class) return assert(class.is_array) and array_of() end)
  define_plain(module .. "numeric._frombuffer", function(raw, dtype, shape, order)
    return array_of(dtype, shape, raw, order == "F")
  end)
end

return known

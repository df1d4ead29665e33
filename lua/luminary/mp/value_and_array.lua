--- Implements numbers and lists of numbers that processes and threads share, with a lock.
local core = require "luminary.core"
local class = require "luminary.base.class"
local lock = require "luminary.mp.lock"
local options = require "luminary.base.options"
local fail = options.fail

-- Maps Python's type codes to dtypes.
local codes = {
  b = "int8", B = "uint8", h = "int16", H = "uint16", i = "int32",
  l = "int64", q = "int64", f = "float32", d = "float64", ["?"] = "bool",
}

-- Defines a class of userdata, so that `#array` is its length. make(dtype, …) returns the tensor of a new one; `_get`
-- and `_set` are the instances' __index and __newindex.
local function define(name, make)
  local new
  new = class.new(name, nil, function(_, dtype, ...)
    if codes[dtype] then fail("%s: unknown dtype '%s'; did you mean '%s'?", name, dtype, codes[dtype]) end
    local tensor = make(core.dtype(dtype, name), ...)
    local values = setmetatable({tensor = tensor:share_memory_(), lock = lock.Lock()}, getmetatable(new).instance)
    return class.object(new, {
      values = values,
      __index = function(_, key) return new._get(values, key) end,
      __newindex = function(_, key, x) new._set(values, key, x) end,
    })
  end)
  --- Returns the lock that guards the value or array.
  function new:get_lock() return self.lock end
  --- Calls f(self, abandoned) while it holds its lock, as Lock:with does; returns what f returns.
  function new:with(f)
    options.arg("with", "f", f, "function")
    return self.lock:with(function(left) return f(self, left) end)
  end
  return new
end

--- lm.mp.Value(dtype [, v = 0]): Makes a number in shared memory, with a lock.
local Value = define("Value", function(dtype, v, ...)
  if options.count(...) > 0 then fail "Value: takes a dtype and a number" end
  if v == nil then v = 0 end
  if type(v) ~= "number" and type(v) ~= "boolean" and type(v) ~= "cdata" then
    options.must_be("Value", "value", "a number or a boolean", v)
  end
  return core.tensor(v, {dtype = dtype})
end)

function Value:repr() return ("Value(%s)"):format(tostring(self.value)) end

function Value._get(values, key)
  if key == "value" then return values.tensor:item() end
  return values[key]
end

function Value._set(values, key, x)
  if key ~= "value" then fail("Value: cannot set '%s'; its only field is 'value'", tostring(key)) end
  values.tensor:fill_(x)
end

--- lm.mp.Array(dtype, n or list): Makes a 1-d tensor in shared memory, of n zeros or of a list's numbers, with a lock.
local Array = define("Array", function(dtype, what, ...)
  if options.count(...) > 0 then fail "Array: takes a dtype and a size, or a list of numbers" end
  if type(what) == "number" then
    return core.ops.zeros({options.arg("Array", "the size", what, "count")}, {dtype = dtype})
  end
  if not options.is_plain(what) or type(what[1]) == "table" or what[1] == nil then
    options.must_be("Array", "size_or_values", "a size or a list of numbers", what)
  end
  return core.tensor(what, {dtype = dtype})
end)

--- Returns the number of elements: #array.
function Array:len() return self.tensor.shape[1] end
function Array:repr() return ("Array(%s)"):format(tostring(self.tensor)) end

function Array._get(values, key)
  if type(key) == "number" then return values.tensor[key] end
  return values[key]
end

function Array._set(values, key, x)
  if type(key) ~= "number" then fail("Array: cannot set '%s'; only elements can be set", tostring(key)) end
  values.tensor[key] = x
end

return {Value = Value, Array = Array}

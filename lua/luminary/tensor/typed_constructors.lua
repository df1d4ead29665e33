--- Defines Torch's typed constructors: FloatTensor{1, 2} has values, FloatTensor(2, 3) is uninitialized, as in Torch,
--- and FloatTensor() is empty. Returns them by name for the CPU; add(library, device_of) adds them for another device.
local core = require "luminary.core"
local options = require "luminary.base.options"

local dtypes = {
  FloatTensor = "float32", DoubleTensor = "float64", HalfTensor = "float16", BFloat16Tensor = "bfloat16",
  LongTensor = "int64", IntTensor = "int32", ShortTensor = "int16", CharTensor = "int8",
  ByteTensor = "uint8", BoolTensor = "bool",
}

local function make_typed(name, device, ...)
  local n, first, how = select("#", ...), (...), {dtype = dtypes[name], device = device}
  if n == 1 and (type(first) == "table" or core.is_tensor(first)) then return core.tensor(first, how) end
  local sizes = {...}
  for i = 1, n do options.arg(name, "size " .. i, sizes[i], "natural") end
  return core.ops.empty(n == 0 and {0} or sizes, how)
end

--- Adds the constructors to a library; device_of(name) returns their device at each call.
local function add(library, device_of)
  for name in pairs(dtypes) do
    --- Returns a tensor of the dtype in its name, of given values or sizes.
    library[name] = function(...) return make_typed(name, device_of(name), ...) end
  end
  return library
end

return add({add = add}, function() return "cpu" end)

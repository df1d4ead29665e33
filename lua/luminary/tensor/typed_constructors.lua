--- Torch's typed constructors: FloatTensor{1, 2} of values, FloatTensor(2, 3) of sizes, uninitialized as Torch's are,
--- FloatTensor() empty. Gives functions of a device and those arguments, by name.
local core = require "luminary.core"
local options = require "luminary.base.options"

local typed = {}

for name, dtype in pairs {
  FloatTensor = "float32", DoubleTensor = "float64", HalfTensor = "float16", BFloat16Tensor = "bfloat16",
  LongTensor = "int64", IntTensor = "int32", ShortTensor = "int16", CharTensor = "int8",
  ByteTensor = "uint8", BoolTensor = "bool",
} do
  typed[name] = function(device, ...)
    local n, first = select("#", ...), (...)
    if n == 1 and (type(first) == "table" or core.is_tensor(first)) then
      return core.tensor(first, {dtype = dtype, device = device})
    end
    local sizes = {...}
    for i = 1, n do options.arg(name, "size " .. i, sizes[i], "natural") end
    return core.ops.empty(n == 0 and {0} or sizes, {dtype = dtype, device = device})
  end
end

return typed

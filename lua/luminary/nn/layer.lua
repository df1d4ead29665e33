--- What the layers share: defining one, making its parameters, and PyTorch's way of printing values.
local core = require "luminary.core"
local class = require "luminary.base.class"
local options = require "luminary.base.options"
local Module = require "luminary.nn.module"
local parameter = require "luminary.nn.parameter"

local layer = {}

--- A class of the library's layers.
function layer.define(name, base) return class.define(name, base or Module) end

--- Options of every layer that has parameters, merged with its own.
function layer.options(who, given, spec, first)
  spec.device, spec.dtype = {"any"}, {"string"}
  return options.check(who, given, spec, first)
end

--- An uninitialized parameter of that size, on the device and in the dtype of the layer's options.
function layer.parameter(size, opts)
  return parameter.new(core.ops.empty(size, {device = opts.device, dtype = opts.dtype}))
end

--- A buffer filled with a value.
function layer.filled(size, value, opts, dtype)
  return core.ops.full(size, value, {device = opts.device, dtype = dtype or opts.dtype or core.get_default_dtype()})
end

-- ---- text as PyTorch prints it

--- true -> True
function layer.bool(v) return v and "True" or "False" end

--- A number that is a float in PyTorch: 1 -> 1.0, 1e-05 -> 1e-05.
function layer.float(v)
  local text = ("%.12g"):format(v)
  if tonumber(text) ~= v then text = ("%.17g"):format(v) end
  return text:find("^%-?%d+$") and text .. ".0" or text
end

--- {3, 3} -> (3, 3); {5} -> (5,)
function layer.tuple(list)
  return "(" .. table.concat(list, ", ") .. (#list == 1 and ",)" or ")")
end

--- A number as it was given, or a tuple.
function layer.number_or_tuple(v) return type(v) == "table" and layer.tuple(v) or tostring(v) end

return layer

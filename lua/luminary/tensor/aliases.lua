--- Defines PyTorch's other names of ops, as functions of `lm` and as methods, with in-place forms if the op has one.
local core = require "luminary.core"
local options = require "luminary.base.options"

local ops, methods = core.ops, core.methods

-- functions: all by name; of: maps a name to its op
local aliases = {functions = {}, of = {}}
local functions = aliases.functions
for name, op in ([[
  absolute=abs arccos=acos arccosh=acosh arcsin=asin arcsinh=asinh arctan=atan arctan2=atan2 arctanh=atanh
  broadcast_to=expand clip=clamp concat=cat concatenate=cat divide=div fix=trunc greater=gt greater_equal=ge less=lt
  less_equal=le multiply=mul
  negative=neg not_equal=ne sgn=sign subtract=sub swapaxes=transpose swapdims=transpose true_divide=div
]]):gmatch "(%S+)=(%S+)" do
  for _, ending in ipairs {"", "_"} do
    functions[name .. ending], aliases.of[name .. ending] = rawget(ops, op .. ending), op .. ending
    methods[name .. ending] = rawget(methods, op .. ending)
  end
end

--- x:float_power(exponent): Raises x to the power of exponent, in float64.
function functions.float_power(x, exponent)
  if core.is_tensor(x) then x = methods.to(x, "float64") end
  if exponent == 2 then return ops.square(x) end
  if core.is_tensor(exponent) then exponent = methods.to(exponent, "float64") end
  return ops.pow(x, exponent)
end
methods.float_power = functions.float_power

--- x:mvlgamma(p): Computes the logarithm of the multivariate gamma function of dimension p.
function functions.mvlgamma(x, p)
  options.arg("mvlgamma", "p", p, "integer(1, 10000)")
  local y = ops.lgamma(x) + p * (p - 1) / 4 * math.log(math.pi)
  for j = 1, p - 1 do y = y + ops.lgamma(x - j / 2) end
  return y
end
methods.mvlgamma = functions.mvlgamma

--- x:ravel(): Flattens x to one dim.
function functions.ravel(x) return ops.flatten(x) end
methods.ravel = functions.ravel

return aliases

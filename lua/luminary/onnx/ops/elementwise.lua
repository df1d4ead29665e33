--- ONNX's ops on each element, casts, constants and random numbers.
local core = require "luminary.core"
local helpers = require "luminary.onnx.ops.sizes"
local tensors = require "luminary.onnx.tensors"

local ops, is_float, to = core.ops, core.is_floating_point, core.methods.to
local elementwise = {}

-- Names of ops that are ours under another name, or the same in lower case.
for name, ours in ([[
  Abs Acos Acosh Asin Asinh Atan Atanh Ceil Cos Cosh Exp Floor Log Neg Reciprocal Relu Round Sigmoid Sign Sin Sinh
  Softplus Softsign Sqrt Tan Tanh HardSwish Mish Erf IsNaN Not=logical_not BitwiseNot=bitwise_not
]]):gmatch "(%w+)=?([%l_]*)" do
  local f = ops[ours ~= "" and ours or name:lower()]
  elementwise[name] = function() return f end
end

-- Returns f for two inputs that broadcast. Before version 7 the second one's dims begin at an attribute's axis.
local function binary(f)
  return function(n)
    local axis = n.version < 7 and n.a.axis
    if not axis then return f end
    return function(x, y)
      local sizes = {unpack(y.shape)}
      for d = #sizes + 1, x.ndim - axis do sizes[d] = 1 end
      return f(x, y:reshape(sizes))
    end
  end
end

for name, ours in ([[
  Add=add Sub=sub Mul=mul And=logical_and Or=logical_or Xor=logical_xor Equal=eq Greater=gt Less=lt GreaterOrEqual=ge
  LessOrEqual=le BitwiseAnd=bitwise_and BitwiseOr=bitwise_or BitwiseXor=bitwise_xor
]]):gmatch "(%w+)=([%l_]+)" do elementwise[name] = binary(ops[ours]) end

elementwise.Div = binary(function(x, y) return (is_float(x) and ops.div or ops.trunc_divide)(x, y) end)

-- Returns the number of a known tensor of one element, else nil.
local function number_of(n, k)
  local known = n:const(k)
  return known and known:numel() == 1 and known.ndim == 0 and tonumber(known:item()) or nil
end

function elementwise.Pow(n)
  local exponent = number_of(n, 2)
  return binary(function(x, y)
    if is_float(x) and exponent then return ops.pow(x, exponent) end
    if x.dtype == y.dtype then return ops.pow(x, y) end
    if is_float(y) and not is_float(x) then return to(ops.pow(to(x, "float64"), to(y, "float64")), x.dtype) end
    return to(ops.pow(x, is_float(x) and to(y, x.dtype) or y), x.dtype)
  end)(n)
end

function elementwise.Mod(n)
  return n.a.fmod == 1 and ops.fmod or ops.remainder
end

function elementwise.BitShift(n)
  return n.a.direction == "LEFT" and ops.bitwise_left_shift or ops.bitwise_right_shift
end

function elementwise.PRelu(n)
  local of_channels = n.version < 7
  return function(x, slope)
    if of_channels and slope.ndim == 1 and slope:numel() > 1 then
      slope = slope:reshape({-1, unpack(helpers.filled(x.ndim - 2, 1))})
    end
    if is_float(x) then return ops.where(ops.lt(x, 0), x * slope, x) end
    return ops.where(ops.lt(x, 0), to(x * slope, x.dtype), x)
  end
end

-- Several inputs: f of the first two, then of the result and the next.
local function several(f, last)
  return function()
    return function(list, count)
      local y = list[1]
      for i = 2, count do y = f(y, list[i]) end
      return last and last(y, count) or y
    end, "list"
  end
end
elementwise.Sum, elementwise.Max, elementwise.Min = several(ops.add), several(ops.maximum), several(ops.minimum)
elementwise.Mean = several(ops.add, ops.div)

-- ---- activations

local function alpha_of(f, default)
  return function(n)
    local alpha = n.a.alpha or default
    return function(x) return f(x, alpha) end
  end
end
elementwise.Elu, elementwise.LeakyRelu = alpha_of(ops.elu, 1), alpha_of(ops.leaky_relu, 0.01)
elementwise.Celu = alpha_of(ops.celu, 1)
elementwise.ThresholdedRelu = alpha_of(function(x, alpha) return ops.threshold(x, alpha, 0) end, 1)
local function swish(x, alpha) return alpha == 1 and ops.silu(x) or x * ops.sigmoid(x * alpha) end
elementwise.Swish = alpha_of(swish, 1)

function elementwise.Selu(n)
  local alpha, gamma = n.a.alpha or 1.67326319217681884765625, n.a.gamma or 1.05070102214813232421875
  return function(x) return ops.where(ops.gt(x, 0), x, ops.expm1(ops.clamp(x, nil, 0)) * alpha) * gamma end
end

function elementwise.HardSigmoid(n)
  local alpha, beta = n.a.alpha or 0.2, n.a.beta or 0.5
  return function(x) return ops.clamp(x * alpha + beta, 0, 1) end
end

function elementwise.Shrink(n)
  local lambd, bias = n.a.lambd or 0.5, n.a.bias or 0
  return function(x)
    local y = ops.where(ops.gt(x, lambd), x - bias, ops.where(ops.lt(x, -lambd), x + bias, ops.zeros_like(x)))
    return to(y, x.dtype)
  end
end

function elementwise.Gelu(n)
  local options = {approximate = n.a.approximate or "none"}
  return function(x) return ops.gelu(x, options) end
end

function elementwise.SwiGLU(n)
  local alpha = n.a.alpha or 1
  return function(gate, x) return swish(gate, alpha) * x end
end

function elementwise.Clip(n)
  if n.version < 11 then
    local min, max = n.a.min, n.a.max
    return function(x) return ops.clamp(x, min, max) end
  end
  local min, max = number_of(n, 2), number_of(n, 3)
  return function(x, low, high)
    if not (low or high) then return x end
    return ops.clamp(x, min or low, max or high)
  end
end

function elementwise.IsInf(n)
  local negative, positive = n.a.detect_negative ~= 0, n.a.detect_positive ~= 0
  if negative and positive then return ops.isinf end
  if not negative and not positive then return function(x) return to(ops.zeros_like(x), "bool") end end
  return negative and ops.isneginf or ops.isposinf
end

-- ---- dtypes

local function cast(x, dtype)
  if type(x) == "table" then -- strings
    local numbers = {}
    for i, text in ipairs(x) do
      local lower = text:lower()
      numbers[i] = lower:find "^%+?inf" and math.huge or lower:find "^%-inf" and -math.huge or lower == "nan" and 0 / 0
        or tonumber(text) or error(("Cast: '%s' is no number"):format(text), 0)
    end
    return to(core.tensor(numbers, {dtype = "float64"}):reshape(x.shape), dtype)
  end
  return to(x, dtype)
end

function elementwise.Cast(n)
  local number = n.a.to
  if type(number) == "string" then number = tensors.number_of[number:lower()] end
  if tensors.dtypes[number] == "string" then n:unsupported "to string" end
  local dtype = n:dtype(number)
  return function(x) return cast(x, dtype) end
end

function elementwise.CastLike() return function(x, like) return cast(x, like.dtype) end end

function elementwise.BitCast(n)
  local dtype = n:dtype(n.a.to)
  return function(x)
    local sizes, strides, step = x.shape, {}, 1
    for d = #sizes, 1, -1 do strides[d], step = step, step * math.max(sizes[d], 1) end
    return core.view_as(x:contiguous(), dtype, sizes, strides, 0)
  end
end

-- ---- constants

function elementwise.Constant(n)
  local a = n.a
  if a.value then return n:tensor "value" end
  if a.sparse_value then
    local sparse, read, fail = a.sparse_value, n.graph.read_tensor, n.graph.fail
    return n.graph.dense(read(sparse.values or {}, fail), read(sparse.indices or {}, fail), sparse.dims or {}, fail)
  end
  local function of(value, dtype) return core.tensor(value, {dtype = dtype}) end
  if a.value_float then return of(a.value_float, "float32") end
  if a.value_floats then return of(a.value_floats, "float32") end
  if a.value_int then return of(a.value_int, "int64") end
  if a.value_ints then return of(a.value_ints, "int64") end
  if a.value_string then return {a.value_string, shape = {}} end
  if not a.value_strings then n:fail "it has no value" end
  local list = {unpack(a.value_strings)}
  list.shape = {#list}
  return list
end

function elementwise.ConstantOfShape(n)
  local value = n:tensor "value" or core.tensor({0}, {dtype = "float32"})
  local number, shape_of = value:reshape(-1):select(1, 1), n:list(1)
  local options = {dtype = value.dtype}
  number = number:item()
  return function(shape) return ops.full(shape_of(shape), number, options) end
end

function elementwise.EyeLike(n)
  local k, dtype = n.a.k or 0, n:dtype(n.a.dtype)
  return function(x)
    local like = ops.full_like(x, 1, {dtype = dtype or x.dtype})
    return ops.triu(ops.tril(like, k), k)
  end
end

function elementwise.Range()
  return function(start, limit, delta)
    local from, to_, step = start:item(), limit:item(), delta:item()
    local count = math.max(math.ceil((tonumber(to_) - tonumber(from)) / tonumber(step)), 0)
    local options = {dtype = start.dtype == "float16" and "float32" or start.dtype, device = start.device}
    return to(ops.arange(count, options) * tonumber(step) + tonumber(from), start.dtype)
  end
end

-- ---- random numbers. A node with a seed has its own generator.

local function random(draw)
  return function(n)
    local a, shape, generator = n.a, n.a.shape, nil
    local dtype = n:dtype(a.dtype)
    if a.seed then generator = require("luminary.generator").Generator():manual_seed(math.floor(a.seed) % 2 ^ 53) end
    return function(x)
      local own = dtype or x and x.dtype or "float32"
      local y = ops.empty(shape or x.shape, {dtype = is_float(own) and own or "float32", device = x and x.device})
      return to(draw(y, a, generator), own)
    end
  end
end
elementwise.RandomNormal = random(function(y, a, g)
  return y:normal_(a.mean or 0, a.scale or 1, {generator = g})
end)
elementwise.RandomUniform = random(function(y, a, g)
  return y:uniform_(a.low or 0, a.high or 1, {generator = g})
end)
elementwise.RandomNormalLike, elementwise.RandomUniformLike = elementwise.RandomNormal, elementwise.RandomUniform

function elementwise.Bernoulli(n)
  local dtype = n:dtype(n.a.dtype)
  local uniform = elementwise.RandomUniform(setmetatable({a = {seed = n.a.seed}}, {__index = n}))
  return function(x) return to(ops.lt(to(uniform(x), "float64"), x), dtype or x.dtype) end
end

function elementwise.Multinomial(n)
  local size, dtype = n.a.sample_size or 1, n:dtype(n.a.dtype, "int32")
  return function(x) return to(ops.multinomial(ops.softmax(x, -1), size, true) - 1, dtype) end
end

return elementwise

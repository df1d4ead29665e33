--- ONNX's ops on each element, casts, constants and random numbers; the forms of entries are in ops/init.lua.
local core = require "luminary.core"
local lists = require "luminary.base.lists"
local helpers = require "luminary.onnx.ops.sizes"
local tensors = require "luminary.onnx.tensors"
local ops, is_float, to, clamp = core.ops, core.is_floating_point, core.methods.to, core.ops.clamp
local op = {}

-- Ops that are ours under another name, or the same in lower case.
for name, ours in ([[
  Abs Acos Acosh Asin Asinh Atan Atanh Ceil Cos Cosh Exp Floor Log Neg Reciprocal Relu Round Sigmoid Sign Sin Sinh
  Softplus Softsign Sqrt Tan Tanh HardSwish Mish Erf IsNaN Not=logical_not BitwiseNot=bitwise_not Where
]]):gmatch "(%w+)=?([%l_]*)" do op[name] = ops[ours ~= "" and ours or name:lower()] end

-- Returns the entry of f for two inputs. Before version 7 the second one's dims begin at an attribute's axis.
local function binary(f)
  return {choose = function(n) return n.version >= 7 and f end, function(n, x, y)
    if not n.axis then return f(x, y) end
    return f(x, y:reshape(helpers.joined(y.shape, helpers.filled(x.ndim - n.axis - y.ndim, 1))))
  end}
end
for name, ours in ([[
  Add=add Sub=sub Mul=mul And=logical_and Or=logical_or Xor=logical_xor Equal=eq Greater=gt Less=lt GreaterOrEqual=ge
  LessOrEqual=le BitwiseAnd=bitwise_and BitwiseOr=bitwise_or BitwiseXor=bitwise_xor
]]):gmatch "(%w+)=([%l_]+)" do op[name] = binary(ops[ours]) end
op.Div = binary(function(x, y) return (is_float(x) and ops.div or ops.trunc_divide)(x, y) end)
op.Pow = binary(function(x, y)
  if x.dtype == y.dtype then return ops.pow(x, y) end
  if is_float(y) and not is_float(x) then return to(ops.pow(to(x, "float64"), to(y, "float64")), x.dtype) end
  return to(ops.pow(x, is_float(x) and to(y, x.dtype) or y), x.dtype)
end)
op.Mod = {choose = function(n) return n.fmod == 1 and ops.fmod or ops.remainder end}
op.BitShift = {choose = function(n)
  return n.direction == "LEFT" and ops.bitwise_left_shift or ops.bitwise_right_shift
end}
op.PRelu = {function(n, x, slope)
  if n.version < 7 and slope.ndim == 1 and slope:numel() > 1 then
    slope = slope:reshape {-1, unpack(helpers.filled(x.ndim - 2, 1))}
  end
  return ops.where(ops.gt(x, 0), x, to(x * slope, x.dtype))
end}

-- Returns the entry of several inputs: f of the first two, then of the result and the next.
local function fold_inputs(f, last)
  return {how = "list", function(_, list, count)
    local y = list[1]
    for i = 2, count do y = f(y, list[i]) end
    return last and last(y, count) or y
  end}
end
op.Sum, op.Max, op.Min = fold_inputs(ops.add), fold_inputs(ops.maximum), fold_inputs(ops.minimum)
op.Mean = fold_inputs(ops.add, ops.div)

-- ---- activations
op.Elu = {alpha = 1, function(n, x) return ops.elu(x, n.alpha) end}
op.Celu = {alpha = 1, function(n, x) return ops.celu(x, n.alpha) end}
op.LeakyRelu = {alpha = 0.01, function(n, x) return ops.leaky_relu(x, n.alpha) end}
op.ThresholdedRelu = {alpha = 1, function(n, x) return ops.threshold(x, n.alpha, 0) end}
op.Swish = {alpha = 1, function(n, x) return n.alpha == 1 and ops.silu(x) or x * ops.sigmoid(x * n.alpha) end}
op.SwiGLU = {alpha = 1, function(n, gate, x) return gate * ops.sigmoid(gate * n.alpha) * x end}
op.HardSigmoid = {alpha = 0.2, beta = 0.5, function(n, x)
  if math.abs(n.alpha - 1 / 6) < 1e-7 and n.beta == 0.5 then return ops.hardsigmoid(x) end
  return clamp(x * n.alpha + n.beta, 0, 1)
end}
op.Gelu = {approximate = "none", function(n, x) return (n.approximate == "tanh" and ops.gelu_tanh or ops.gelu)(x) end}
op.Selu = {alpha = 1.67326319217681884765625, gamma = 1.05070102214813232421875, function(n, x)
  return ops.where(ops.gt(x, 0), x, ops.expm1(clamp(x, nil, 0)) * n.alpha) * n.gamma
end}
op.Shrink = {lambd = 0.5, bias = 0, function(n, x)
  local y = ops.where(ops.lt(x, -n.lambd), x + n.bias, ops.zeros_like(x))
  return to(ops.where(ops.gt(x, n.lambd), x - n.bias, y), x.dtype)
end}
op.Clip = {function(n, x, min, max)
  min, max = n.min or n:number(2, min), n.max or n:number(3, max)
  return (min or max) and clamp(x, min, max) or x
end}
op.IsInf = {detect_negative = 1, detect_positive = 1, function(n, x)
  if n.detect_negative + n.detect_positive == 0 then return to(ops.zeros_like(x), "bool") end
  if n.detect_negative + n.detect_positive == 2 then return ops.isinf(x) end
  return (n.detect_negative == 1 and ops.isneginf or ops.isposinf)(x)
end}

-- ---- dtypes
local words = {inf = math.huge, ["+inf"] = math.huge, ["-inf"] = -math.huge, nan = 0 / 0}

local function cast(x, dtype)
  if type(x) ~= "table" then return to(x, dtype) end
  local numbers = {}
  for i, text in ipairs(x) do
    numbers[i] = words[text:lower()] or tonumber(text) or error(("'%s' is no number"):format(text), 0)
  end
  return to(core.tensor(numbers, {dtype = "float64"}):reshape(x.shape), dtype)
end
op.Cast = {
  prepare = function(n)
    n.dtype = n:dtype_of(type(n.to) == "string" and tensors.number_of[n.to:lower()] or n.to)
    if n.dtype == "string" then n:unsupported "to string" end
  end,
  function(n, x) return cast(x, n.dtype) end,
}
op.CastLike = function(x, like) return cast(x, like.dtype) end
op.BitCast = {dtype_in = "to", function(n, x)
  return core.view_as(x:contiguous(), n.dtype, x.shape, helpers.strides(x.shape), 0)
end}

-- ---- constants
local of_attribute = {value_float = "float32", value_floats = "float32", value_int = "int64", value_ints = "int64"}
op.Constant = {constant = function(n)
  if n.value then return n:tensor "value" end
  if n.sparse_value then return n.graph:dense(n.sparse_value) end
  for name, dtype in lists.sorted_pairs(of_attribute) do
    if n[name] then return core.tensor(n[name], {dtype = dtype}) end
  end
  local list = n.value_string and {n.value_string} or {unpack(n.value_strings or n:fail "it has no value")}
  list.shape = n.value_string and {} or {#list}
  return list
end}
op.ConstantOfShape = {
  prepare = function(n) n.filling = n:tensor "value" or core.tensor({0}, {dtype = "float32"}) end,
  function(n, sizes)
    return ops.full(n:ints(1, sizes), n.filling:reshape(-1):select(1, 1):item(), {dtype = n.filling.dtype})
  end,
}
op.EyeLike = {k = 0, dtype_in = "dtype", function(n, x)
  return ops.triu(ops.tril(ops.full_like(x, 1, {dtype = n.dtype or x.dtype}), n.k), n.k)
end}
op.Range = function(start, limit, delta)
  local from, past, step = tonumber(start:item()), tonumber(limit:item()), tonumber(delta:item())
  if step == 0 then helpers.refuse "delta must not be 0" end
  local opts = {dtype = start.dtype == "float16" and "float32" or start.dtype, device = start.device}
  return to(ops.arange(math.max(math.ceil((past - from) / step), 0), opts) * step + from, start.dtype)
end

-- ---- random numbers. A node with a seed has its own generator.
local function random(draw)
  return {
    mean = 0, scale = 1, low = 0, high = 1, dtype_in = "dtype",
    function(n, x)
      local own = n.dtype or x and x.dtype or "float32"
      local y = ops.empty(n.shape or x.shape, {dtype = is_float(own) and own or "float32", device = x and x.device})
      if n.seed and n.generator_device ~= y.device then
        n.generator_device = y.device
        n.generator = require("luminary.generator").Generator(y.device):manual_seed(math.floor(n.seed) % 2 ^ 53)
      end
      return draw(n, y, {generator = n.seed and n.generator}, own, x)
    end,
  }
end
op.RandomNormal = random(function(n, y, g, dtype) return to(y:normal_(n.mean, n.scale, g), dtype) end)
op.RandomUniform = random(function(n, y, g, dtype) return to(y:uniform_(n.low, n.high, g), dtype) end)
op.RandomNormalLike, op.RandomUniformLike = op.RandomNormal, op.RandomUniform
op.Bernoulli = random(function(_, y, g, dtype, x) return to(ops.lt(to(y:uniform_(0, 1, g), "float64"), x), dtype) end)
op.Multinomial = {sample_size = 1, dtype = 6, dtype_in = "dtype", function(n, x)
  return to(ops.multinomial(ops.softmax(x, -1), n.sample_size, true) - 1, n.dtype)
end}

return op

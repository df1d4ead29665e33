-- One row for each op of ops.lua. From it come the tests of spec/op/ops_spec.lua and, by
-- scripts/dev/golden/gen_golden.py, the golden values made with PyTorch.
--
--   op("add", "x other", "torch.add(x, other, alpha=alpha)", { ...fields..., case, case, ... })
--
-- The second argument names the positional arguments; a case's further keys are options. A case returns
-- each argument a value: tensors by t (floats), i (indices from 1), b (bool), v (these values), n (integer
-- valued; `whole`: int64, for ops of integers alone), anything else as itself. Dims and indices are Lua's, from 1; in
-- the Python expression dims are converted, and index tensors hold PyTorch's numbers.
--
--   defaults   options where a case returns none, for the Python expression
--   grad       names of the arguments that gradcheck differentiates; default: every t of the first case;
--              false: has no gradient
--   second     false: its gradient has none
--   index_out  results that are indices (from 1 here, from 0 in PyTorch)
--   dtypes     false: no dtype sweep (the first case is otherwise tried in every dtype PyTorch takes)
--   lacks      dtypes that PyTorch has and Luminary refuses, with the reason
--   differs    dtypes in which Luminary returns something else on purpose, with the reason
--   tol        {dtype = {rtol, atol}} looser than PyTorch's assert_close, with a reason beside it
--   bad        {arguments..., message = "pattern"}: calls that have to fail so
--   strided    false: not tried with strided inputs (creation ops)
--   random     true: values are not compared, only shape and dtype
--   half       what half precision may differ by: {units = of results, grad_units = of gradients, in units of the last
--              place, grad_to = the largest factor of inputs for which gradients are compared, cpu = only there}, with a reason
--   cpu_only   true: other devices have no kernel, and a plan that holds the op is the CPU's
local inf, nan = math.huge, 0 / 0

-- Returns a float tensor, values in [lo, hi); `sep` spaces all values apart (unique maxima, smooth gradients).
local function t(shape, o)
  o = o or {}
  return { tensor = "float", shape = shape, lo = o.lo or -2, hi = o.hi or 2, sep = o.sep, dtype = o.dtype }
end
local function pos(shape) return t(shape, { lo = 0.3, hi = 2.5 }) end
local function sep(shape) return t(shape, { sep = true }) end
local function i(shape, n) return { tensor = "index", shape = shape, n = n } end
local function b(shape) return { tensor = "bool", shape = shape } end
local function n(shape, lo, hi, whole) return { tensor = "int", shape = shape, lo = lo, hi = hi, whole = whole } end
local function v(values, shape) return { tensor = "values", values = values, shape = shape or { #values } } end
local special = v { nan, inf, -inf, 0, -0.0, 1, -1, 0.5, -0.5, 3, -20, 100, -100, 1e-30 }
local special2 = v { 1, nan, inf, 0, 2, -inf, 0, nan, -inf, -0.0, 5, 0.5, 3, 1e30 }

local rows = {}
local function op(name, positional, py, row)
  row.name, row.positional, row.py = name, positional, py
  assert(not rows[name], "two rows for " .. name)
  rows[name] = row
  rows[#rows + 1] = row
end

-- ---- elementwise, two operands
local function binary(name, py, o)
  o = o or {}
  local first = o.first or { x = t { 3, 4 }, other = t { 3, 4 } }
  local row = { first, { x = t { 2, 3, 4 }, other = t { 3, 1 } }, { x = t { 4 }, other = t { 2, 3, 1 } },
    { x = t {}, other = t { 2, 2 } }, { x = t { 0, 3 }, other = t { 3 } }, { x = t { 2, 3, 4, 5 }, other = t { 3, 1, 1 } } }
  if not o.no_special then row[#row + 1] = { x = special, other = special2 } end
  for _, extra in ipairs(o) do row[#row + 1] = extra end
  row.defaults, row.grad, row.lacks, row.tol = o.defaults, o.grad, o.lacks, o.tol
  row.bad = { { t { 2, 3 }, t { 2, 4 }, message = "%[2, 3%].*%[2, 4%]" }, { "text", t { 2 }, message = name .. ".*x" },
    { t { 2 }, nil, message = name .. ".*other" } }
  for _, bad in ipairs(o.bad or {}) do row.bad[#row.bad + 1] = bad end
  op(name, "x other", py, row)
end
binary("add", "torch.add(x, other, alpha=alpha)", { defaults = { alpha = 1 }, { x = t { 3 }, other = t { 3 }, alpha = 2 },
  { x = n({ 3 }, -5, 5), other = n({ 3 }, -5, 5), alpha = 3 } })
binary("sub", "torch.sub(x, other, alpha=alpha)", { defaults = { alpha = 1 }, { x = t { 3 }, other = t { 3 }, alpha = 2 } })
binary("mul", "torch.mul(x, other)")
local function rounded(x, other, mode) return { x = x, other = other, rounding_mode = mode } end
binary("div", "torch.div(x, other, rounding_mode=rounding_mode)", { first = { x = t { 3, 4 }, other = pos { 3, 4 } },
  defaults = { rounding_mode = { py = "None" } }, rounded(v({ 7.5, -7.5, 6, -6, 0.3, -0.3 }, { 2, 3 }), v { 2, 1.5, -4 }, "floor"),
  rounded(v({ 7.5, -7.5, 6, -6, 0.3, -0.3 }, { 2, 3 }), v { 2, 1.5, -4 }, "trunc"), rounded(n({ 9 }, -9, 9), n({ 9 }, 1, 5), "floor"),
  rounded(n({ 9 }, -9, 9), n({ 9 }, 1, 5), "trunc"), rounded(v { 7, -7, 7, -7, 0 }, 0, "trunc"), rounded(v { 7, -7, 7, -7 }, -2, "floor"),
  bad = { { t { 2 }, 2, { rounding_mode = "flor" }, message = "div: rounding_mode.*floor" },
    { t { 2 }, 2, { rounding_mode = 1 }, message = "rounding_mode.*'none', 'floor', 'trunc'" },
    { n({ 2 }, 1, 3), 0, { rounding_mode = "trunc" }, message = "div.*integer division by zero" },
    { n({ 2 }, 1, 3), 0, { rounding_mode = "floor" }, message = "div.*integer division by zero" } } })
binary("floor_divide", "torch.floor_divide(x, other)", { grad = false, no_special = true,
  first = { x = t({ 3, 4 }, { lo = -9, hi = 9 }), other = t({ 3, 4 }, { lo = 1, hi = 4 }) },
  { x = v { 7, -7, 7, -7 }, other = v { 2, 2, -2, -2 } } })
binary("trunc_divide", "torch.div(x, other, rounding_mode='trunc')", { grad = false, no_special = true,
  first = { x = t({ 3, 4 }, { lo = -9, hi = 9 }), other = t({ 3, 4 }, { lo = 1, hi = 4 }) },
  { x = v { 7, -7, 7, -7, 0 }, other = v { 2, 2, -2, -2, -3 } }, { x = n({ 9 }, -9, 9), other = n({ 9 }, -5, -1) } })
binary("remainder", "torch.remainder(x, other)", { no_special = true,
  first = { x = t({ 3, 4 }, { lo = -9, hi = 9 }), other = t({ 3, 4 }, { lo = 1, hi = 4 }) },
  { x = v { 7, -7, 7, -7 }, other = v { 2, 2, -2, -2 } } })
binary("maximum", "torch.maximum(x, other)")
binary("minimum", "torch.minimum(x, other)")
binary("rsub", "torch.rsub(x, other, alpha=alpha)", { defaults = { alpha = 1 }, { x = t { 3 }, other = t { 3 }, alpha = 2 } })
binary("fmod", "torch.fmod(x, other)", { no_special = true,
  first = { x = t({ 3, 4 }, { lo = -9, hi = 9 }), other = t({ 3, 4 }, { lo = 1, hi = 4 }) },
  { x = v { 7, -7, 7, -7 }, other = v { 2, 2, -2, -2 } }, { x = n({ 9 }, -9, 9), other = n({ 9 }, -5, -1) },
  { x = v { 1e30, -1e20, 6, -6, -0.0, inf, 5, 5, 1e-40 }, other = v { 0.3, 7, 3, 3, 2, 2, inf, 0, 3e-41 } },
  bad = { { n({ 2 }, 1, 3), 0, message = "fmod.*integer division by zero" } } })
binary("fmax", "torch.fmax(x, other)")
binary("fmin", "torch.fmin(x, other)")
binary("xlogy", "torch.xlogy(x, other)", { first = { x = t { 3, 4 }, other = pos { 3, 4 } } })
binary("hypot", "torch.hypot(x, other)")
binary("atan2", "torch.atan2(x, other)")
binary("copysign", "torch.copysign(x, other)")
binary("logaddexp", "torch.logaddexp(x, other)")
binary("logaddexp2", "torch.logaddexp2(x, other)")
binary("ldexp", "torch.ldexp(x, other)", { { x = t { 3 }, other = n({ 3 }, -5, 5) } })
op("heaviside", "x values", "torch.heaviside(x, values)", { grad = false, { x = t { 3, 4 }, values = t { 4 } }, { x = special, values = v { 0.5 } },
  { x = t { 0, 3 }, values = t {} }, bad = { { t { 2, 3 }, t { 2, 4 }, message = "heaviside.*%[2, 3%].*%[2, 4%]" } } })
op("lerp", "x end weight", "torch.lerp(x, end, weight)", { { x = t { 3, 4 }, ["end"] = t { 3, 4 }, weight = t { 3, 4 } },
  { x = t { 3, 4 }, ["end"] = t { 4 }, weight = 0.25 }, { x = t { 4 }, ["end"] = t { 3, 1 }, weight = 0.75 }, { x = t { 0, 3 }, ["end"] = t { 3 }, weight = 2 },
  bad = { { t { 2, 3 }, t { 2, 4 }, 0.5, message = "lerp.*%[2, 3%].*%[2, 4%]" }, { t { 2 }, t { 2 }, message = "lerp: weight" } } })
for name, divisor in pairs { addcmul = t { 3, 1 }, addcdiv = pos { 3, 1 } } do
  op(name, "x tensor1 tensor2", "torch." .. name .. "(x, tensor1, tensor2, value=value)", { defaults = { value = 1 },
    { x = t { 3, 4 }, tensor1 = t { 4 }, tensor2 = divisor }, { x = t { 3, 4 }, tensor1 = t { 3, 4 }, tensor2 = divisor, value = -0.5 },
    { x = t { 0, 3 }, tensor1 = t { 3 }, tensor2 = t {} },
    bad = { { t { 2, 3 }, t { 2, 4 }, t {}, message = name .. ".*%[2, 3%].*%[2, 4%]" }, { t { 2 }, t { 2 }, message = name .. ": tensor2" } } })
end
for name, py in pairs { bitwise_and = "x & other", bitwise_or = "x | other", bitwise_xor = "x ^ other", gcd = "torch.gcd(x, other)", lcm = "torch.lcm(x, other)" } do
  op(name, "x other", py, { grad = false, { x = n({ 3, 4 }, -9, 9, true), other = n({ 3, 4 }, -9, 9, true) },
    { x = n({ 3, 4 }, -90, 90, true), other = n({ 3, 1 }, -90, 90, true) }, { x = n({ 0, 4 }, -9, 9, true), other = n({ 4 }, 1, 5, true) },
    bad = { { t { 2 }, 1, message = name .. ": x must be an integer dtype or bool, got float32" } } })
end
for name, py in pairs { bitwise_left_shift = "x << other", bitwise_right_shift = "x >> other" } do
  op(name, "x other", py, { grad = false, { x = n({ 3, 4 }, -9, 9, true), other = n({ 3, 4 }, 0, 5, true) },
    { x = n({ 3, 4 }, -90, 90, true), other = n({ 4 }, 60, 66, true) }, { x = n({ 3 }, -9, 9, true), other = 2 },
    bad = { { t { 2 }, 1, message = name .. ": x must be an integer dtype or bool, got float32" }, { b { 2 }, b { 2 }, message = name .. ".*bool" } } })
end
op("isclose", "x other", "torch.isclose(x, other, rtol=rtol, atol=atol, equal_nan=equal_nan)", { grad = false,
  defaults = { rtol = 1e-5, atol = 1e-8, equal_nan = false }, { x = v { 1, 1, 2, 0 }, other = v { 1, 1.1, 2, 1e-9 } },
  { x = v { 1, 1, 2, 0 }, other = v { 1, 1.1, 2.5, 0.1 }, rtol = 0.2 }, { x = special, other = special, equal_nan = true }, { x = special, other = special2 },
  { x = n({ 9 }, -2, 2), other = n({ 9 }, -2, 2), atol = 1 }, bad = { { t { 2, 3 }, t { 2, 4 }, message = "%[2, 3%].*%[2, 4%]" } } })
op("pow", "x exponent", "torch.pow(x, exponent)", { { x = pos { 3, 4 }, exponent = pos { 3, 4 } },
  { x = t { 2, 3 }, exponent = 2 }, { x = t { 2, 3 }, exponent = 3 }, { x = pos { 2, 3 }, exponent = 0.5 },
  { x = pos { 2, 3 }, exponent = -1 }, { x = t { 2, 1 }, exponent = v { 2, 3 } }, { x = special, exponent = special2 },
  { x = t { 0 }, exponent = 2 }, bad = { { t { 2, 3 }, t { 2, 4 }, message = "%[2, 3%].*%[2, 4%]" } } })
for _, name in ipairs { "eq", "ne", "lt", "le", "gt", "ge" } do
  binary(name, "torch." .. name .. "(x, other)", { grad = false, { x = v { 1, 2, 3 }, other = v { 2, 2, 2 } } })
end

for _, name in ipairs { "logical_and", "logical_or", "logical_xor" } do
  binary(name, "torch." .. name .. "(x, other)", { grad = false, { x = v { 0, 1, 0, 2 }, other = v { 0, 0, 3, 4 } } })
end
op("where", "condition x other", "torch.where(condition, x, other)", {
  { condition = b { 3, 4 }, x = t { 3, 4 }, other = t { 3, 4 } }, { condition = b { 3, 1 }, x = t { 4 }, other = t { 3, 4 } },
  { condition = b { 0, 2 }, x = t { 2 }, other = t {} },
  bad = { { b { 2 }, t { 3 }, t { 2 }, message = "where.*%[" } } })
op("dropout_backward", "x mask scale", "x * mask * scale", {
  { x = t { 3, 4 }, mask = b { 3, 4 }, scale = 2 }, { x = t { 2, 1, 5 }, mask = b { 3, 1 }, scale = 0 },
  differs = { bool = "a gradient is floating; x's dtype is kept" },
  grad = { "x" }, bad = { { t { 2 }, t { 2 }, 1, message = "dropout_backward: mask.*bool" } } })
op("masked_fill", "x mask value", "x.masked_fill(mask, value)", {
  { x = t { 3, 4 }, mask = b { 3, 4 }, value = 3 }, { x = t { 2, 3 }, mask = b { 3 }, value = -inf },
  { x = t { 0, 3 }, mask = b { 3 }, value = 1 },
  bad = { { t { 2 }, t { 2 }, 1, message = "masked_fill: mask.*bool" } } })
op("clamp", "x min max", "torch.clamp(x, min, max)", { defaults = { min = { py = "None" }, max = { py = "None" } },
  { x = t { 3, 4 }, min = t({ 3, 4 }, { hi = 0 }), max = t({ 3, 4 }, { lo = 0 }) }, { x = t { 3, 4 }, min = -1, max = 1 },
  { x = t { 3, 4 }, min = 0 }, { x = special, min = -2, max = 2 }, { x = t { 0 }, min = 0 }, { x = special, max = nan },
  { x = t { 3, 4 }, min = t { 4 } }, { x = t { 4 }, max = t { 3, 1 } }, { x = t { 2, 3, 4, 5 }, min = t { 3, 1, 1 }, max = t {} },
  { x = t { 5, 6 }, min = t { 5, 6 }, max = t { 5, 6 } }, { x = special, min = special2, max = v { 1 } },
  { x = n({ 6 }, -5, 5), min = t { 6 } }, { x = n({ 6 }, -5, 5), min = 0.5 }, { x = n({ 6 }, -5, 5), min = n({ 6 }, -2, 0), max = n({ 6 }, 1, 3) },
  { x = t { 0, 3 }, min = t { 3 }, max = t { 0, 1 } },
  bad = { { t { 2 }, "low", message = "clamp: min" }, { t { 2 }, message = "clamp: min or max must be given, got neither" },
    { t { 2, 3 }, t { 2, 4 }, t {}, message = "clamp.*%[2, 3%].*%[2, 4%]" }, { t { 2, 3 }, { max = t { 4 } }, message = "clamp.*%[2, 3%].*%[4%]" },
    { b { 2 }, b { 2 }, b { 2 }, message = "clamp.*bool" } } })
local gives_float = "of floating x: clamp has another way for integers"
op("clamp_range", "x min max", "torch.clamp(x, min, max)", { defaults = { min = -inf, max = inf },
  differs = { int64 = gives_float, int32 = gives_float, uint8 = gives_float, bool = gives_float }, { x = t { 3, 4 }, min = -1, max = 1 },
  { x = special, min = -2, max = 2 }, { x = special, max = nan }, { x = t { 0 }, min = 0 }, bad = { { t { 2 }, t { 2 }, message = "clamp_range: min" } } })

-- ---- elementwise, one operand
local function unary(name, py, o)
  o = o or {}
  local row = { { x = o.domain or t { 3, 4 } }, { x = o.domain3 or t { 2, 3, 4, 5 } }, { x = t {} }, { x = t { 0, 3 } } }
  if not o.no_special then row[#row + 1] = { x = special } end
  row.grad, row.tol, row.lacks = o.grad, o.tol, o.lacks
  row.bad = { { 3, message = name .. ": x" }, { {}, message = name .. ": x" } }
  op(name, "x", py or "torch." .. name .. "(x)", row)
end
unary "neg"
unary "abs"
unary("sign", nil, { grad = false })
unary "exp"
unary "expm1"
unary("log", nil, { domain = pos { 3, 4 }, domain3 = pos { 2, 3, 4, 5 } })
unary("log1p", nil, { domain = pos { 3, 4 }, domain3 = pos { 2, 3, 4, 5 } })
unary("sqrt", nil, { domain = pos { 3, 4 }, domain3 = pos { 2, 3, 4, 5 } })
unary("rsqrt", nil, { domain = pos { 3, 4 }, domain3 = pos { 2, 3, 4, 5 } })
unary("reciprocal", nil, { domain = pos { 3, 4 }, domain3 = pos { 2, 3, 4, 5 } })
unary "square"
unary("cube", "torch.pow(x, 3)", { lacks = { bool = "as pow, of which it is a form" } })
unary "sin"
unary "cos"
unary "sinh"
unary "cosh"
unary "asinh"
unary "atan"
unary "erfc"
op("mul_sigmoid", "x gate", "x * torch.sigmoid(gate)", { { x = t { 3, 4 }, gate = t { 3, 4 } }, { x = t { 2, 3, 4 }, gate = t { 4 } }, { x = t { 0, 3 }, gate = t { 3 } },
  tol = { float16 = { 2e-3, 1e-4 }, bfloat16 = { 2e-2, 1e-3 } }, -- PyTorch rounds sigmoid(gate)
  bad = { { t { 2, 3 }, t { 2, 4 }, message = "mul_sigmoid.*%[2, 3%].*%[2, 4%]" } } })
op("gated_halves", "x dim n", "F.glu(x, dim)", { { x = t { 3, 4 }, dim = 2, n = 2 }, { x = t { 6, 2, 3 }, dim = 1, n = 3 }, { x = t { 0, 2 }, dim = -1, n = 1 },
  tol = { float16 = { 2e-3, 1e-4 }, bfloat16 = { 2e-2, 1e-3 } },
  bad = { { t { 3, 4 }, 2, 3, message = "gated_halves: narrow: .*4" } } })
unary "exp2"
unary "sinc"
unary "deg2rad"
unary "rad2deg"
local inner = { domain = t({ 3, 4 }, { lo = -0.9, hi = 0.9 }), domain3 = t({ 2, 3, 4, 5 }, { lo = -0.9, hi = 0.9 }) }
for _, name in ipairs { "asin", "acos", "atanh", "erfinv" } do unary(name, nil, inner) end
unary("tan", nil, { domain = t({ 3, 4 }, { lo = -1.4, hi = 1.4 }) })
unary("acosh", nil, { domain = t({ 3, 4 }, { lo = 1.1, hi = 4 }), domain3 = t({ 2, 3, 4, 5 }, { lo = 1.1, hi = 4 }) })
for _, name in ipairs { "log2", "log10" } do unary(name, nil, { domain = pos { 3, 4 }, domain3 = pos { 2, 3, 4, 5 } }) end
unary("frac")
op("logit", "x eps", "torch.logit(x, eps)", { defaults = { eps = { py = "None" } },
  tol = { float16 = { 2e-3, 1e-4 }, bfloat16 = { 2e-2, 1e-3 } }, -- PyTorch rounds x / (1 - x)
  { x = t({ 3, 4 }, { lo = 0.1, hi = 0.9 }) },
  { x = t({ 3, 4 }, { lo = 0, hi = 1 }), eps = 0.2 }, { x = v { 0, 1, 0.5, 2, -1, nan } }, { x = v { 0, 1, 0.5, 2, -1 }, eps = 0.01 },
  bad = { { t { 2 }, "a", message = "logit: eps" } } })
op("nan_to_num", "x nan posinf neginf", "torch.nan_to_num(x, nan, posinf, neginf)", { defaults = { nan = 0, posinf = { py = "None" }, neginf = { py = "None" } },
  { x = t { 3, 4 } }, { x = special }, { x = special, nan = 2, posinf = 3, neginf = -4 }, { x = special, posinf = 5 }, { x = t { 0, 3 } },
  bad = { { t { 2 }, "a", message = "nan_to_num: nan" } } })
unary "tanh"
unary "erf"
unary "sigmoid"
op("bce", "x target", "F.binary_cross_entropy(x, target, reduction='none')", {
  { x = t({ 3, 4 }, { lo = 0.1, hi = 0.9 }), target = t({ 3, 4 }, { lo = 0, hi = 1 }) },
  { x = v { 0, 1, 0.5 }, target = v { 1, 0, 1 } }, bad = { { t { 3, 4 }, t { 3 }, message = "bce.*%[3, 4%].*%[3%]" } } })
-- Losses of each element.
op("bce_of_logits", "x target pos_weight", "F.binary_cross_entropy_with_logits(x, target, pos_weight=torch.as_tensor(pos_weight), reduction='none')", {
  { x = t { 3, 4 }, target = t({ 3, 4 }, { lo = 0, hi = 1 }), pos_weight = pos { 4 } },
  { x = t { 3, 4 }, target = t({ 3, 4 }, { lo = 0, hi = 1 }), pos_weight = 1 },
  { x = v { -200, 200, 0 }, target = v { 1, 0, 1 }, pos_weight = 2 }, { x = t { 0, 3 }, target = t { 0, 3 }, pos_weight = 1 },
  bad = { { t { 3, 4 }, t { 3 }, 1, message = "bce_of_logits.*%[3, 4%].*%[3%]" } } })
-- Products of halves may be rounded before gelu_tanh, and overflow; spec/cuda/products_spec.lua compares them.
local product_with_gelu = { scale_to = 0 }
local rounded_between = { float16 = { 3e-3, 1e-3 }, bfloat16 = { 3e-2, 2e-2 } } -- PyTorch rounds between several ops
op("poisson_nll", "x target", "F.poisson_nll_loss(x, target, reduction='none')", { tol = rounded_between,
  { x = t { 3, 4 }, target = pos { 3, 4 } }, { x = t { 3, 1 }, target = pos { 4 } }, { x = t { 0, 3 }, target = t { 3 } },
  bad = { { t { 3, 4 }, t { 5 }, message = "poisson_nll.*%[3, 4%].*%[5%]" } } })
op("raised", "x least", "torch.clamp(x, min=least)", { { x = pos { 3, 4 }, least = 0.2 }, { x = t { 0, 3 }, least = 1 },
  bad = { { t { 2 }, "a", message = "raised: least" } } })
op("gaussian_nll", "x target var eps", "F.gaussian_nll_loss(x, target, var, eps=eps, reduction='none')", { defaults = { eps = 1e-6 },
  { x = t { 3, 4 }, target = t { 3, 4 }, var = pos { 3, 4 } }, { x = t { 3, 4 }, target = t { 3, 4 }, var = pos { 3, 1 }, eps = 0.1 },
  { x = t { 0, 3 }, target = t { 0, 3 }, var = pos { 0, 3 } },
  bad = { { t { 3, 4 }, t { 5 }, pos { 4 }, message = "gaussian_nll.*%[3, 4%].*%[5%]" } } })
local wraps = { uint8 = "PyTorch's difference wraps around in between" }
op("absolute_difference", "x other", "F.l1_loss(x, other, reduction='none')", { differs = wraps,
  { x = sep { 3, 4 }, other = v { 0.2, 0.1, -0.3, 0.4 } }, { x = special, other = special2 }, { x = t { 0, 3 }, other = t { 3 } },
  bad = { { t { 3, 4 }, t { 5 }, message = "absolute_difference.*%[3, 4%].*%[5%]" } } })
op("squared_difference", "x other", "F.mse_loss(x, other, reduction='none')", {
  { x = t { 3, 4 }, other = t { 3, 4 } }, { x = t { 3, 4 }, other = t { 4 } }, { x = special, other = special2 }, { x = t { 0, 3 }, other = t { 3 } },
  bad = { { t { 3, 4 }, t { 5 }, message = "squared_difference.*%[3, 4%].*%[5%]" } } })
op("ranking_margin", "x1 x2 target margin", "F.margin_ranking_loss(x1, x2, target, margin=margin, reduction='none')", { differs = wraps, defaults = { margin = 0 },
  { x1 = t { 3, 4 }, x2 = t { 3, 4 }, target = v({ 1, -1, -1, 1, 1, 1, -1, -1, 1, -1, 1, -1 }, { 3, 4 }), margin = 0.3 },
  { x1 = t { 0 }, x2 = t { 0 }, target = t { 0 } }, grad = { "x1", "x2" },
  bad = { { t { 3, 4 }, t { 5 }, t { 4 }, message = "ranking_margin.*%[3, 4%].*%[5%]" } } })
op("shifted_difference", "x other shift", "x - other + shift", { differs = wraps, { x = t { 3, 4 }, other = t { 3, 4 }, shift = 0.5 },
  { x = t { 3, 4 }, other = t { 4 }, shift = 0 }, { x = special, other = special2, shift = 1 }, { x = t { 0, 3 }, other = t { 3 }, shift = 2 },
  bad = { { t { 3, 4 }, t { 5 }, 0, message = "shifted_difference.*%[3, 4%].*%[5%]" } } })
unary("log_sigmoid", "F.logsigmoid(x)")
unary("relu", "torch.relu(x)")
unary("relu6", "F.relu6(x)")
op("leaky_relu", "x negative_slope", "F.leaky_relu(x, negative_slope)", { defaults = { negative_slope = 0.01 },
  { x = t { 3, 4 } }, { x = t { 3, 4 }, negative_slope = 0.2 }, { x = special }, { x = t { 0 } },
  bad = { { t { 2 }, "a", message = "leaky_relu: negative_slope" } } })
op("threshold", "x threshold value", "F.threshold(x, threshold, value)", { { x = t { 3, 4 }, threshold = 0, value = -2 }, { x = special, threshold = 1, value = 7 },
  { x = t { 0 }, threshold = 0, value = 0 }, bad = { { t { 2 }, 1, message = "threshold: value" } } })
op("hardtanh", "x min_val max_val", "F.hardtanh(x, min_val, max_val)", { defaults = { min_val = -1, max_val = 1 }, { x = t { 3, 4 } },
  { x = t { 3, 4 }, min_val = -0.5, max_val = 1.5 }, { x = special }, { x = t { 0 } },
  bad = { { n({ 2 }, 1, 3, true), { max_val = inf }, message = "hardtanh: min_val and max_val must be within int64 for integer tensors, got %-1 and inf" },
    { b { 2 }, message = "hardtanh: .*bool" }, { t { 2 }, 1, -1, message = "hardtanh: min_val must be at most max_val %(%-1%), got 1" } } })
for _, name in ipairs { "elu", "celu" } do
  op(name, "x alpha", "F." .. name .. "(x, alpha)", { defaults = { alpha = 1 }, { x = t { 3, 4 } }, { x = t { 3, 4 }, alpha = 0.7 }, { x = special }, { x = t { 0 } },
    bad = { { t { 2 }, "a", message = name .. ": alpha" } } })
end
for _, name in ipairs { "hardshrink", "softshrink" } do
  op(name, "x lambd", "F." .. name .. "(x, lambd)", { defaults = { lambd = 0.5 }, { x = t { 3, 4 } }, { x = t { 3, 4 }, lambd = 1 }, { x = special }, { x = t { 0 } },
    bad = { { t { 2 }, "a", message = name .. ": lambd" } } })
end
for _, name in ipairs { "selu", "softsign", "mish", "hardsigmoid", "hardswish" } do unary(name, "F." .. name .. "(x)") end
unary("tanhshrink", "F.tanhshrink(x)", { tol = { float16 = { 1e-3, 1e-3 }, bfloat16 = { 1e-2, 1e-2 } } }) -- PyTorch rounds tanh(x)
op("prelu", "x weight", "F.prelu(x, weight)", { { x = t { 2, 3, 4 }, weight = t { 3 } }, { x = t { 2, 3 }, weight = t { 3 } }, { x = t { 2, 3, 4, 5 }, weight = t { 1 } },
  { x = t {}, weight = t { 1 } }, { x = t { 0, 3 }, weight = t { 3 } },
  bad = { { t { 2, 3, 4 }, t { 4 }, message = "prelu: expected weight to have shape %[1%] or one number for each channel %(dim 2%) of x %[2, 3, 4%], got %[4%]" },
    { t { 2 }, message = "prelu: weight" } } })
op("softmin", "x dim", "F.softmin(x, dim)", { { x = t { 3, 4 }, dim = 2 }, { x = t { 2, 3, 4 }, dim = -2 }, bad = { { t { 2, 3 }, 3, message = "dim 3" } } })
-- PyTorch's vectorized gelu returns NaN at infinity, where x * Phi(x) is infinity.
op("gelu", "x", "F.gelu(x, approximate=approximate)", { defaults = { approximate = "none" }, { x = t { 3, 4 } }, { x = t { 2, 3, 4, 5 } }, { x = t {} }, { x = t { 0, 3 } },
  { x = t { 3, 4 }, approximate = "tanh" }, bad = { { 3, message = "gelu: x" }, { t { 2 }, { approximate = "tan" }, message = "gelu: approximate.*tanh" } } })
unary("gelu_tanh", "F.gelu(x, approximate='tanh')", { no_special = true })
unary("silu", "F.silu(x)")
op("softplus", "x beta threshold", "F.softplus(x, beta, threshold)", { defaults = { beta = 1, threshold = 20 }, { x = t { 3, 4 } }, { x = t { 2, 3, 4, 5 } },
  { x = t { 3, 4 }, beta = 2 }, { x = t { 3, 4 }, beta = 3, threshold = 1 }, { x = special }, { x = t {} }, { x = t { 0, 3 } }, { x = t { 3 }, beta = -1 },
  bad = { { 3, message = "softplus: x" }, { t { 2 }, "a", message = "softplus: beta" } } })
for _, name in ipairs { "floor", "ceil", "trunc" } do unary(name, nil, { grad = false }) end
op("round", "x", "torch.round(x, decimals=decimals)", { grad = false, defaults = { decimals = 0 },
  { x = t { 3, 4 } }, { x = t { 2, 3, 4, 5 } }, { x = t {} }, { x = t { 0, 3 } }, { x = special }, { x = t { 3, 4 }, decimals = 2 },
  { x = special, decimals = 3 }, { x = t({ 3, 4 }, { lo = -5000, hi = 5000 }), decimals = -2 }, { x = t { 0 }, decimals = 1 },
  { x = v { 0.25, 0.75, -0.25, 1.125 }, decimals = 1 }, { x = v { 15, 25, -15, -25, 150 }, decimals = -1 },
  bad = { { 3, message = "round: x" }, { t { 2 }, { decimals = 1.5 }, message = "round: decimals" },
    { t { 2 }, { decimals = 39 }, message = "round: decimals must be from %-38 to 38 for float32, got 39" },
    { n({ 2 }, 1, 3), { decimals = 1 }, message = "round: x must be floating point with decimals, got int64" } } })
op("round_scaled", "x factor divisor", "torch.round(x * factor / divisor) * divisor / factor", { grad = false,
  tol = { float16 = { 1e-3, 1e-3 }, bfloat16 = { 1e-2, 1e-2 } }, -- PyTorch rounds each step
  { x = t { 3, 4 }, factor = 10, divisor = 1 }, { x = t({ 3, 4 }, { lo = -500, hi = 500 }), factor = 1, divisor = 100 },
  bad = { { t { 2 }, message = "round_scaled: factor" } } })
unary("logical_not", nil, { grad = false })
unary("isnan", nil, { grad = false })
for _, name in ipairs { "isfinite", "isinf", "isposinf", "isneginf", "signbit" } do unary(name, nil, { grad = false }) end
op("bitwise_not", "x", "~x", { grad = false, { x = n({ 3, 4 }, -9, 9, true) }, { x = n({ 0, 4 }, -9, 9, true) },
  bad = { { t { 2 }, message = "bitwise_not: x must be an integer dtype or bool, got float32" } } })

-- ---- reductions
local function reduction(name, py, o)
  o = o or {}
  local make = o.make or t
  local row = { defaults = o.defaults or { dim = { py = "None" }, keepdim = false }, grad = o.grad, tol = o.tol, lacks = o.lacks,
    differs = o.differs }
  for _, c in ipairs { { x = make { 3, 4 } }, { x = make { 2, 3, 4 }, dim = 2 }, { x = make { 2, 3, 4 }, dim = { 1, 3 } },
    { x = make { 2, 3, 4 }, dim = -1, keepdim = true }, { x = make { 2, 3, 4, 5 }, dim = { 1, 3, 4 } }, { x = make { 7, 300 }, dim = 1 },
    { x = make { 7, 300 }, dim = 2 }, { x = make {} } } do row[#row + 1] = c end
  for _, c in ipairs(o) do row[#row + 1] = c end
  row.bad = { { t { 2, 3 }, { dim = 3 }, message = name .. ".*dim 3" }, { t { 2, 3 }, { dim = 0 }, message = name .. ": dim must be a dim of the tensor, got 0" },
    { t { 2, 3 }, { dims = 1 }, message = name .. ".*dim" } }
  for _, bad in ipairs(o.bad or {}) do row.bad[#row.bad + 1] = bad end
  op(name, o.positional or "x dim", py, row)
end
reduction("sum", "torch.sum(x, dim=dim, keepdim=keepdim)", { { x = t { 0, 3 }, dim = 1 }, { x = t { 0, 3 } }, { x = special },
  { x = b { 4, 5 }, dim = 1 } })
reduction("mean", "torch.mean(x, dim=dim, keepdim=keepdim)", { { x = t { 2, 0 }, dim = 1 }, { x = special } })
local vdefaults = { dim = { py = "None" }, keepdim = false, correction = 1, unbiased = true }
for _, name in ipairs { "var", "std" } do
  reduction(name, "torch." .. name .. "(x, dim=dim, keepdim=keepdim, **(dict(correction=correction) if unbiased else dict(correction=0)))",
    { defaults = vdefaults, { x = t { 3, 4 }, dim = 1, correction = 0 }, { x = t { 3, 4 }, unbiased = false },
      { x = t { 2, 3, 4 }, dim = { 1, 3 }, keepdim = true, unbiased = false }, { x = t { 3, 4 }, dim = 2, unbiased = true },
      bad = { { t { 2, 3 }, { unbiased = false, correction = 2 }, message = name .. ": correction must be left out with unbiased = false, got 2" },
        { t { 2, 3 }, { unbiased = 0 }, message = name .. ": unbiased" } } })
end
reduction("norm", "torch.linalg.vector_norm(x, p, dim=dim, keepdim=keepdim)", { positional = "x p dim",
  defaults = { dim = { py = "None" }, keepdim = false, p = 2 }, make = sep, { x = t { 3, 4 }, p = 1, dim = 1 }, { x = t { 3, 4 }, p = 3 },
  { x = t { 3, 4 }, p = inf, dim = 2 }, { x = t { 3, 4 }, p = -inf, dim = 2 }, { x = v { 0, 1, 0, 2 }, p = 0 }, { x = t { 0 } } })
reduction("logsumexp", "torch.logsumexp(x, dim if dim is not None else tuple(range(x.dim())), keepdim)", { { x = special },
  { x = v { -inf, -inf } }, { x = v { inf, 1 } } })
for name, sign in pairs { amax = "%-", amin = "" } do
  reduction(name, "torch." .. name .. "(x, dim if dim is not None else tuple(range(x.dim())), keepdim)", { make = sep, { x = special },
    bad = { { t { 0, 3 }, 1, message = ("%s: dim 1 of %%[0, 3%%] must not be empty; for the %sinf of ONNX and of NumPy's initial use "
      .. "lm.full_like%%(x:sum%%(1%%), %smath.huge%%)"):format(name, sign, sign) } } })
end
local always_bool = { uint8 = "bool like all others" }
reduction("all", "torch.all(x, dim, keepdim) if dim is not None else torch.all(x)",
  { grad = false, differs = always_bool, { x = v { 1, 0, 2, 3 } }, { x = t { 0 } } })
reduction("any", "torch.any(x, dim, keepdim) if dim is not None else torch.any(x)",
  { grad = false, differs = always_bool, { x = v { 0, 0, 0 } }, { x = t { 0 } } })
for _, name in ipairs { "max", "min" } do
  op(name .. "_dim", "x dim", "tuple(torch." .. name .. "(x, dim, keepdim))", { index_out = { 2 }, defaults = { keepdim = false },
    { x = sep { 3, 4 }, dim = 2 }, { x = sep { 2, 3, 4 }, dim = 1, keepdim = true }, { x = sep { 2, 3, 4, 5 }, dim = -2 },
    { x = special, dim = 1 }, { x = t {}, dim = 1 }, { x = t { 0, 3 }, dim = 2 },
    bad = { { t { 2, 0 }, 2, message = name .. "_dim.*dim 2" }, { t { 2 }, message = name .. "_dim: dim" } } })
  op("arg" .. name, "x dim", "torch.arg" .. name .. "(x, dim, keepdim)", { grad = false, index_out = { 1 },
    defaults = { dim = { py = "None" }, keepdim = false }, { x = sep { 3, 4 } }, { x = sep { 2, 3, 4 }, dim = 2 },
    { x = sep { 2, 3, 4 }, dim = -1, keepdim = true }, { x = special }, { x = t {} },
    bad = { { t { 0 }, message = "arg" .. name } } })
end
op("sum_to_size", "x size", "x.sum_to_size(size)", { { x = t { 2, 3, 4 }, size = { 3, 1 } }, { x = t { 2, 3 }, size = { 2, 3 } },
  { x = t { 2, 3 }, size = { 1 } }, bad = { { t { 2, 3 }, { 4 }, message = "sum_to_size: size of shape %[4%] does not broadcast to %[2, 3%]" } } })

-- ---- softmax
for _, name in ipairs { "softmax", "log_softmax" } do
  op(name, "x dim", "torch." .. name .. "(x, dim)", { { x = t { 3, 4 }, dim = 2 }, { x = t { 2, 3, 4 }, dim = 2 },
    { x = t({ 5, 70 }, { lo = -90, hi = 90 }), dim = -1 }, { x = t { 0, 3 }, dim = 2 }, { x = t {}, dim = 1 },
    { x = v({ 1, -inf, 2, nan, inf, 1 }, { 2, 3 }), dim = 2 }, { x = t { 2, 3, 4, 5 }, dim = 2 },
    bad = { { t { 2, 3 }, 3, message = name .. ": dim 3" } } })
  op(name .. "_backward", "grad y dim", "torch._" .. name .. "_backward_data(grad, y, dim, y.dtype)", {
    { grad = t { 3, 4 }, y = pos { 3, 4 }, dim = 2 }, { grad = t { 2, 3, 4 }, y = t { 2, 3, 4 }, dim = 1 },
    bad = { { t { 2, 3 }, t { 2, 4 }, 1, message = name .. "_backward.*%[2, 3%].*%[2, 4%]" } } })
end

-- ---- matrix products
op("mm", "x other", "torch.mm(x, other)", { { x = t { 3, 4 }, other = t { 4, 5 } }, { x = t { 33, 70 }, other = t { 70, 19 } },
  { x = t { 0, 4 }, other = t { 4, 5 } }, { x = t { 3, 0 }, other = t { 0, 5 } },
  bad = { { t { 2, 3 }, t { 4, 5 }, message = "mm: inner sizes of x and other must match, got 3 and 4 in %[2, 3%] and %[4, 5%]" }, { t { 2 }, t { 2, 2 }, message = "mm: x" } } })
op("bmm", "x other", "torch.bmm(x, other)", { { x = t { 2, 3, 4 }, other = t { 2, 4, 5 } }, { x = t { 0, 3, 4 }, other = t { 0, 4, 5 } },
  { x = t { 5, 33, 20 }, other = t { 5, 20, 7 } },
  bad = { { t { 2, 3, 4 }, t { 3, 4, 5 }, message = "bmm: batch sizes of x and other must match, got 2 and 3 in %[2, 3, 4%] and %[3, 4, 5%]" } } })
op("addmm", "input x other", "torch.addmm(input, x, other, beta=beta, alpha=alpha)", { defaults = { beta = 1, alpha = 1 },
  { input = t { 3, 5 }, x = t { 3, 4 }, other = t { 4, 5 } }, { input = t { 5 }, x = t { 3, 4 }, other = t { 4, 5 }, beta = 0.5, alpha = 2 },
  { input = t { 3, 5 }, x = t { 3, 0 }, other = t { 0, 5 } },
  bad = { { t { 4, 4 }, t { 3, 4 }, t { 4, 5 }, message = "addmm.*%[4, 4%].*%[3, 5%]" } } })
-- PyTorch's linear fails for x of two dims, weight of one and a bias: as if it were added after.
local bytes = function(...) return { tensor = "int", shape = { ... }, lo = -127, hi = 128, dtype = "int8" } end
op("int8_linear", "x weight scale bias", "F.linear(x, (weight * scale.unsqueeze(-1)).to(x.dtype), bias)", {
  tol = { float32 = { 1e-4, 5e-2 } }, -- x in 16 bits, times up to 127
  defaults = { bias = { py = "None" } }, grad = { "x", "bias" }, dtypes = false,
  { x = t { 3, 20 }, weight = bytes(5, 20), scale = pos { 5 }, bias = t { 5 } },
  { x = t { 2, 17, 33 }, weight = bytes(7, 33), scale = pos { 7 }, bias = t { 7 } }, -- rows enough for the weight to be expanded
  { x = t { 4 }, weight = bytes(6, 4), scale = pos { 6 }, bias = t { 6 } }, { x = t { 0, 4 }, weight = bytes(5, 4), scale = pos { 5 }, bias = t { 5 } },
  { x = t { 2, 0 }, weight = bytes(3, 0), scale = pos { 3 }, bias = t { 3 } },
  bad = { { t { 3, 4 }, t { 5, 4 }, t { 5 }, message = "int8_linear: weight must be int8, got float32" },
    { t { 3, 4 }, bytes(5, 3), t { 5 }, message = "int8_linear: expected x to have shape %[%.%.%., 3%] for weight of %[5, 3%], got %[3, 4%]" }, { t { 3, 4 }, bytes(4), t { 4 }, message = "weight" },
    { t { 3, 4 }, bytes(5, 4), t { 4 }, message = "int8_linear: expected scale to have shape %[5%] for weight of %[5, 4%], got %[4%]" },
    { t { 3, 4 }, bytes(5, 4), t { 5 }, t { 4 }, message = "int8_linear: expected bias to have shape %[5%] for weight of %[5, 4%], got %[4%]" },
    { n({ 3, 4 }, 0, 9, true), bytes(5, 4), t { 5 }, message = "int8_linear: x" } } })
-- Bytes whose q8_0 blocks have scales from 0.03 to 0.5; spec/op/blocks_spec.lua has the other kinds, and the bounds.
local function q8_0(...) return { tensor = "int", shape = { ... }, lo = 40, hi = 56, dtype = "uint8" } end
op("block_linear", "x weight bias kind", "F.linear(x, expand_q8_0(weight).to(x.dtype), bias)", {
  tol = { float32 = { 0, 3 } }, -- x, up to 2, is rounded to 1 / 254 of a block's largest: times 64 weights of 5 on average, 2.5
  half = { units = 20, cpu = true }, -- the same; a GPU multiplies many rows in half precision
  defaults = { bias = { py = "None" }, kind = "q8_0" }, grad = { "x", "bias" }, dtypes = false,
  { x = t { 2, 32 }, weight = q8_0(3, 34), bias = t { 3 } }, { x = t { 3, 64 }, weight = q8_0(5, 68) }, { x = t { 2, 11, 32 }, weight = q8_0(19, 34) },
  { x = t { 96 }, weight = q8_0(6, 102), bias = t { 6 } }, { x = t { 0, 32 }, weight = q8_0(5, 34) }, { x = t { 2, 0 }, weight = q8_0(3, 0), bias = t { 3 } },
  { x = t { 4, 32 }, weight = q8_0(0, 34) },
  bad = { { t { 3, 4 }, t { 5, 34 }, message = "block_linear: weight must be uint8, got float32" },
    { t { 3, 64 }, q8_0(5, 34), message = "block_linear: expected x to have shape %[%.%.%., 32%], got %[3, 64%]" },
    { t { 3, 32 }, q8_0(5, 33), message = "block_linear: the number of bytes of a row %(33%) must be divisible by that of a q8_0 block %(34%)" },
    { t { 3, 32 }, q8_0(34), message = "weight" }, { t { 3, 32 }, q8_0(5, 34), t { 4 }, message = "block_linear: expected bias to have shape %[5%]" },
    { t { 3, 32 }, q8_0(5, 34), nil, "q9", message = "block_linear: kind must be one of 'q8_0'" },
    { n({ 3, 32 }, 0, 9, true), q8_0(5, 34), message = "block_linear: x" } } })
op("block_linear_input", "grad weight kind", "grad @ expand_q8_0(weight).to(grad.dtype)", { defaults = { kind = "q8_0" }, dtypes = false,
  half = { grad_units = 20, cpu = true }, -- block_linear's
  { grad = t { 3, 5 }, weight = q8_0(5, 34) }, { grad = t { 3, 5 }, weight = q8_0(5, 68) }, { grad = t { 2, 11, 19 }, weight = q8_0(19, 34) }, { grad = t { 6 }, weight = q8_0(6, 102) },
  { grad = t { 0, 5 }, weight = q8_0(5, 34) }, { grad = t { 2, 0 }, weight = q8_0(0, 34) },
  bad = { { t { 3, 4 }, q8_0(5, 34), message = "block_linear_input: .*expected .* to have shape %[.*, 5%]" } } })
op("block_rows", "index weight kind", "F.embedding(index, expand_q8_0(weight))", { defaults = { kind = "q8_0" }, grad = false, dtypes = false,
  { index = i({ 7 }, 5), weight = q8_0(5, 68) }, { index = i({ 2, 3 }, 4), weight = q8_0(4, 34) }, { index = i({ 0 }, 4), weight = q8_0(4, 34) },
  bad = { { v { 6 }, q8_0(5, 34), message = "block_rows: .*index" }, { n({ 2 }, 7, 8, true), q8_0(5, 34), message = "index 7 at position [12] is out of range" } } })
op("expand_blocks", "x kind", "expand_q8_0(x)", { defaults = { kind = "q8_0" }, grad = false, dtypes = false,
  { x = q8_0(5, 68) }, { x = q8_0(2, 3, 34) }, { x = q8_0(34) }, { x = q8_0(0, 34) },
  bad = { { q8_0(5, 35), message = "expand_blocks: the number of bytes of a row %(35%)" }, { t { 34 }, message = "expand_blocks: x must be uint8" } } })
op("quantize_blocks", "x kind", "torch.zeros(x.shape[:-1] + (x.shape[-1] // 32 * 34,), dtype=torch.uint8)", {
  random = true, -- the best of some scales is taken; spec/op/blocks_spec.lua compares errors
  defaults = { kind = "q8_0" }, grad = false, dtypes = false, { x = t { 5, 64 } }, { x = t { 2, 3, 32 } }, { x = t { 32 } }, { x = t { 0, 32 } },
  bad = { { t { 3, 31 }, message = "quantize_blocks: the number of elements of a row %(31%) must be divisible by that of a q8_0 block %(32%)" },
    { n({ 32 }, 0, 9, true), message = "quantize_blocks: x" } } })
local function numbers(dtype, values, shape) return { tensor = "values", values = values, shape = shape or {}, dtype = dtype } end
-- A depthwise weight: its numbers by tap, then the sum of each channel.
local taps, packed_taps = numbers("int8", { 1, -2, 3, 4 }, { 2, 1, 1, 2 }), numbers("int8", { 1, 3, -2, 4, -1, -1, -1, -1, 7, 0, 0, 0 }, { 12 })
op("int8_pack", "weight groups", "int8_pack(weight, groups)", { grad = false, dtypes = false, defaults = { groups = 1 },
  { weight = taps, groups = 2 },
  bad = { { t { 4, 3, 1, 1 }, message = "int8_pack: weight must be uint8 or int8, got float32" },
    { taps, 3, message = "int8_pack: output channels %(2%) must be divisible by groups %(3%)" } } })
op("int8_conv", "x weight packed zero scale bias w_zero", "int8_conv(x, weight, zero, scale, x_zero, groups)", { grad = false, dtypes = false,
  defaults = { scale = { py = "None" }, bias = { py = "None" }, w_zero = { py = "None" }, x_zero = 0, groups = 1 },
  { x = bytes(1, 2, 3, 4), weight = taps, packed = packed_taps, zero = numbers("int32", { 0 }), x_zero = 5, groups = 2 },
  { x = bytes(1, 2, 3, 4), weight = taps, packed = packed_taps, zero = numbers("int8", { 9 }), scale = pos { 2 }, groups = 2 },
  bad = { { t { 1, 2, 3, 4 }, taps, packed_taps, numbers("int32", { 0 }), { groups = 2 }, message = "int8_conv: x must be uint8 or int8, got float32" },
    { bytes(1, 2, 3, 4), taps, packed_taps, numbers("int8", { 0 }), { groups = 2 }, message = "int8_conv: scale is missing" } } })
op("int8_quantize", "x scale zero", "int8_saturated(x / scale, zero)", { grad = false, dtypes = false,
  { x = t({ 2, 3, 4 }, { lo = -99, hi = 300 }), scale = 0.5, zero = numbers("uint8", { 7 }) }, { x = special, scale = 0.25, zero = numbers("int8", { 0 }) },
  bad = { { t { 2 }, 1, numbers("int32", { 0 }), message = "int8_quantize: zero must be uint8 or int8, got int32" } } })
op("int8_dequantize", "x scale x_zero", "(x.float() - x_zero) * scale", { grad = false, dtypes = false, defaults = { x_zero = 0 },
  { x = bytes(2, 5), scale = 0.5, x_zero = 3 }, bad = { { t { 2 }, 1, message = "int8_dequantize: x must be uint8 or int8, got float32" } } })
op("int8_add", "x other zero scale other_scale x_zero other_zero", "int8_saturated(scale * (x.float() - x_zero) + other_scale * (other.float() - other_zero) + zero, zero - zero)", {
  grad = false, dtypes = false, defaults = { x_zero = 0, other_zero = 0 },
  { x = bytes(2, 5), other = bytes(2, 5), zero = numbers("uint8", { 3 }), scale = 0.5, other_scale = 1.5, x_zero = 3, other_zero = 2 },
  bad = { { bytes(2), t { 2 }, numbers("int8", { 0 }), 1, 1, message = "int8_add: other must be uint8 or int8, got float32" } } })
op("linear", "x weight bias", "F.linear(x, weight, bias) if torch.is_tensor(bias) and weight.dim() == 2 else F.linear(x, weight) + (0 if bias is None else bias)", {
  half = { cpu = true }, -- elsewhere a number is added to the rounded product
  defaults = { bias = { py = "None" } },
  { x = t { 3, 4 }, weight = t { 5, 4 }, bias = t { 5 } }, { x = t { 2, 3, 4 }, weight = t { 5, 4 } },
  { x = t { 2, 3, 4 }, weight = t { 5, 4 }, bias = t { 5 } }, { x = t { 4 }, weight = t { 5, 4 }, bias = t { 5 } },
  { x = t { 0, 4 }, weight = t { 5, 4 }, bias = t { 5 } }, { x = t { 3, 4 }, weight = t { 4 } }, { x = t { 2, 3, 4 }, weight = t { 4 }, bias = t {} },
  { x = t { 4 }, weight = t { 4 }, bias = t {} }, { x = t { 3, 4 }, weight = t { 5, 4 }, bias = t {} }, { x = t { 3, 4 }, weight = t { 4 }, bias = 2.5 },
  { x = t { 0, 4 }, weight = t { 4 }, bias = t {} },
  bad = { { t { 3, 4 }, t { 5 }, message = "linear: expected x to have shape %[%*, 5%] for weight of %[5%], got %[3, 4%]" }, { t { 3, 4 }, t { 4 }, t { 3 }, message = "linear: bias.*%[3%]" },
    { t { 3, 4 }, t { 5, 4 }, "b", message = "linear: bias" },
    { t { 3, 4 }, t { 5, 3 }, message = "linear: expected x to have shape %[%*, 3%] for weight of %[5, 3%], got %[3, 4%]" }, { t { 3, 4 }, t { 5, 4 }, t { 4 }, message = "linear: expected bias" } } })
op("matmul", "x other", "torch.matmul(x, other)", { { x = t { 3, 4 }, other = t { 4, 5 } }, { x = t { 4 }, other = t { 4 } },
  { x = t { 3, 4 }, other = t { 4 } }, { x = t { 4 }, other = t { 4, 5 } }, { x = t { 2, 3, 4 }, other = t { 4, 5 } },
  { x = t { 2, 1, 3, 4 }, other = t { 5, 4, 2 } }, { x = t { 2, 3, 4 }, other = t { 4 } }, { x = t { 4 }, other = t { 2, 4, 3 } },
  bad = { { t { 3, 4 }, t { 3, 4 }, message = "matmul.*%[3, 4%].*%[3, 4%]" }, { t {}, t { 2 }, message = "matmul" } } })

-- ---- joining, picking, counting
op("cat", "tensors dim", "torch.cat(tensors, dim)", { defaults = { dim = 1 }, { tensors = { t { 2, 3 }, t { 4, 3 } } },
  { tensors = { t { 2, 3 }, t { 2, 1 }, t { 2, 0 } }, dim = 2 }, { tensors = { t { 2, 3, 4, 5 }, t { 2, 2, 4, 5 } }, dim = 2 },
  { tensors = { t { 2 } }, dim = -1 },
  bad = { { { t { 2, 3 }, t { 3, 2 } }, message = "cat: shapes of .* must match except in dim 1, got %[2, 3%] and %[3, 2%]" }, { {}, message = "cat.*empty" } } })
op("stack", "tensors dim", "torch.stack(tensors, dim)", { defaults = { dim = 1 }, { tensors = { t { 2, 3 }, t { 2, 3 } } },
  { tensors = { t { 2, 3 }, t { 2, 3 } }, dim = 3 }, { tensors = { t {}, t {} } }, { tensors = { t { 2 }, t { 2 } }, dim = -1 },
  bad = { { { t { 2, 3 }, t { 3, 2 } }, message = "stack: shapes of tensors%[1%] and tensors%[2%] must match, got %[2, 3%] and %[3, 2%]" } } })
op("pad", "x pad mode value", "F.pad(x, pad, mode, value if mode == 'constant' else None)", { defaults = { mode = "constant", value = 0 },
  { x = t { 3, 4 }, pad = { 1, 2 } }, { x = t { 2, 3, 4, 5 }, pad = { 1, 0, 2, 3 }, value = 1.5 }, { x = t { 3, 4 }, pad = { -1, 2, 1, -2 } },
  { x = t { 3, 4 }, pad = { -1, -2 } }, { x = t { 3, 4 }, pad = { 0, 0 } }, { x = t { 0, 3 }, pad = { 1, 1, 2, 0 } }, { x = t { 2 }, pad = { -1, -1 } },
  { x = t { 2, 4, 5 }, pad = { 3, 4 }, mode = "reflect" }, { x = t { 2, 3, 4, 5 }, pad = { 1, 2, 3, 1 }, mode = "reflect" },
  { x = t { 2, 4, 5 }, pad = { 7, 1 }, mode = "replicate" }, { x = t { 2, 3, 4, 5 }, pad = { 1, 2, 3, 0 }, mode = "replicate" },
  { x = t { 2, 4, 5 }, pad = { 5, 1 }, mode = "circular" }, { x = t { 2, 3, 4, 5 }, pad = { 1, 2, 3, 0 }, mode = "circular" },
  { x = t { 2, 4, 5 }, pad = { -1, 2 }, mode = "reflect" }, { x = t { 2, 4, 5 }, pad = { -1, 3 }, mode = "circular" }, { x = t { 2, 4, 5 }, pad = { 2, -2 }, mode = "circular" },
  { x = t { 2, 3, 1, 5 }, pad = { 0, 0, 2, 2 }, mode = "replicate" }, { x = t { 1, 2, 1, 2, 1 }, pad = { 1, 0, 0, 1, 0, 2, -1, 1, 2, 1 }, value = 2 },
  { x = t { 2, 1, 1, 1, 1, 1, 2 }, pad = { 0, 1, 0, 0, 1, 0, 0, 1, 1, 1, 0, 0, -1, 1 } },
  bad = { { t { 2, 3 }, { 1 }, message = "pad: the number of entries of pad must be even and at most 4 .*%[2, 3%], got 1" }, { t { 2 },
    { 1, 1, 1, 1 }, message = "pad: the number of entries of pad must be even and at most 2 .*%[2%], got 4" },
    { t { 2, 3 }, { -2, -2 }, message = "pad: padding %-2 before and %-2 after leaves dim 2 of %[2, 3%] no size" },
    { t { 2, 3 }, { -5, 5 }, message = "pad: padding %-5 before" }, { t { 2, 3 }, { 3, 1 }, { mode = "reflect" }, message = "pad: padding must be at most 2 a side for mode .reflect..*, got 3" },
    { t { 2, 3 }, { 1, 4 }, { mode = "circular" }, message = "pad: padding must be at most 3 a side for mode .circular.*, got 4" },
    { t { 2, 3 }, { 1, -3 }, { mode = "circular" }, message = "pad: padding must be at most 0 a side for mode .circular.*, got 1" }, { t { 2, 0 }, { 1, 1 },
    { mode = "replicate" }, message = "pad: padding must be at most 0 a side for mode .replicate" },
    { t { 2, 3 }, { 1, 1 }, { mode = "reflct" }, message = "pad: mode.*reflect" }, { t { 2, 3 }, { 1, 1 }, { mode = "reflect", value = 1 }, message = "pad: value must be left out for mode" } } })
op("pad_around", "x pad mode", "F.pad(x, pad, mode)", { defaults = { mode = "reflect" },
  { x = t { 2, 3, 4, 5 }, pad = { 1, 2, 3, 1 } }, { x = t { 2, 4, 5 }, pad = { 7, 1 }, mode = "replicate" }, { x = t { 2, 3, 3, 4, 5 }, pad = { 1, 2, 2, 0, 1, 1 }, mode = "circular" },
  { x = t { 2, 4, 5 }, pad = { -1, 3 }, mode = "circular" }, { x = t { 2, 4, 5 }, pad = { 2, -3 }, mode = "reflect" }, { x = t { 2, 3, 4, 5 }, pad = { -2, 1, 2, -4 }, mode = "replicate" },
  { x = t { 0, 4, 5 }, pad = { 1, 1 } },
  bad = { { t { 2, 3 }, { 1, 1 }, "constant", message = "pad_around: mode must be .*, got \"constant\"" }, { t { 2, 3 },
    { 3, 1 }, message = "pad: padding must be at most 2 a side for mode .reflect..*, got 3" } } })
op("gather", "x dim index", "torch.gather(x, dim, index)", { { x = t { 3, 4 }, dim = 1, index = i({ 2, 4 }, 3) },
  { x = t { 3, 4 }, dim = 2, index = i({ 3, 6 }, 4) }, { x = t { 3, 4 }, dim = 2, index = i({ 0, 4 }, 4) },
  bad = { { t { 3, 4 }, 1, v { 0, 1 }, message = "gather" }, { t { 3, 4 }, 1, i({ 1, 1, 1 }, 2), message = "gather.*index" } } })
op("index_select", "x dim index", "torch.index_select(x, dim, index)", { { x = t { 3, 4 }, dim = 1, index = i({ 5 }, 3) },
  { x = t { 2, 3, 4 }, dim = -1, index = i({ 2 }, 4) }, { x = t { 3, 4 }, dim = 1, index = i({ 0 }, 3) },
  bad = { { t { 3, 4 }, 1, n({ 2 }, 7, 8), message = "index_select.*7.*3" } } })
op("index_get", "x indices", "x[tuple(slice(None) if q is None else q for q in indices)]", {
  { x = t { 4, 5 }, indices = { i({ 3 }, 4) } }, { x = t { 4, 5 }, indices = { i({ 3 }, 4), i({ 3 }, 5) } },
  { x = t { 4, 5, 6 }, indices = { i({ 2, 1 }, 4), i({ 3 }, 5) } }, { x = t { 4, 5 }, indices = { i({ 0 }, 4) } },
  bad = { { t { 4, 5 }, { n({ 2 }, 9, 10) }, message = "index_get.*9.*4" } } })
op("index_put", "x indices values", "x.clone().index_put_(tuple(indices), values, accumulate)", { defaults = { accumulate = false },
  { x = t { 4, 5 }, indices = { i({ 1 }, 4), i({ 1 }, 5) }, values = t { 1 } },
  { x = t { 4, 5 }, indices = { i({ 6 }, 4) }, values = t { 6, 5 }, accumulate = true },
  bad = { { t { 4, 5 }, { i({ 3 }, 4) }, t { 2, 5 }, message = "index_put.*%[2, 5%].*%[3, 5%]" } } })
op("index_put_", "x indices values", "x.clone().index_put_(tuple(indices), values, accumulate)", { defaults = { accumulate = false },
  grad = false, { x = t { 4, 5 }, indices = { i({ 6 }, 4) }, values = t { 6, 5 }, accumulate = true },
  bad = { { t { 4, 5 }, { i({ 3 }, 4) }, t { 2, 5 }, message = "index_put_.*%[2, 5%].*%[3, 5%]" } } })
op("nonzero", "x", "torch.nonzero(x, as_tuple=as_tuple)", { grad = false, index_out = { 1, 2, 3 }, defaults = { as_tuple = false }, { x = v({ 0, 1, 2, 0, 0, 3 }, { 2, 3 }) },
  { x = b { 3, 4, 5 } },
  { x = t { 0 } }, { x = v { 0, 0 } }, { x = b { 3, 4, 5 }, as_tuple = true }, { x = v({ 3 }, {}), as_tuple = true }, { x = v({ 0 }, {}), as_tuple = true },
  { x = t { 0, 3 }, as_tuple = true },
  bad = { { 1, message = "nonzero: x" }, { t { 2 }, { as_tuple = 1 }, message = "nonzero: as_tuple" }, { t { 2 }, { as_tupel = true }, message = "as_tuple" },
    { 1, { as_tuple = true }, message = "nonzero: x" } } })
op("topk", "x k dim", "tuple(torch.topk(x, k, dim, largest, sorted))", { index_out = { 2 }, differs = { bool = "which of equals comes first" },
  defaults = { dim = -1, largest = true, sorted = true }, { x = sep { 3, 6 }, k = 2 }, { x = sep { 6, 3 }, k = 4, dim = 1, largest = false },
  { x = sep { 5 }, k = 0 }, { x = sep { 2, 300 }, k = 7 },
  bad = { { t { 3 }, 4, message = "topk: k must be from 0 to 3.*, got 4" }, { t { 3 }, -1, message = "topk: k" } } })
op("one_hot", "x num_classes", "F.one_hot(x, num_classes)", { defaults = { num_classes = -1 }, grad = false, dtypes = false,
  { x = i({ 2, 3 }, 4), num_classes = 5 }, { x = i({ 6 }, 3) },
  bad = { { n({ 2 }, 7, 8), 5, message = "one_hot.*7.*5" }, { n({ 2 }, 0, 1), 5, message = "one_hot.*0" } } })
op("embedding", "index weight", "F.embedding(index, weight)", { { index = i({ 2, 3 }, 5), weight = t { 5, 4 } },
  { index = i({}, 5), weight = t { 5, 4 } }, { index = i({ 0 }, 5), weight = t { 5, 4 } },
  bad = { { n({ 2 }, 9, 10), t { 5, 4 }, message = "embedding.*9.*5" }, { n({ 2 }, 0, 1), t { 5, 4 }, message = "embedding.*0" } } })
op("embedding_backward", "grad index num padding_idx", "torch.ops.aten.embedding_dense_backward(grad, index, num, padding_idx - 1, False)", {
  { grad = t { 6, 4 }, index = i({ 6 }, 5), num = 5, padding_idx = 0 }, { grad = t { 6, 4 }, index = i({ 6 }, 3), num = 3, padding_idx = 2 },
  bad = { { t { 6, 4 }, i({ 5 }, 5), 5, 0, message = "embedding_backward" } } })

-- ---- sorting, scans, order statistics, counts
local sort_defaults, ties = { dim = -1, descending = false }, v({ 1, 0, 1, nan, -0.0, 1, inf, nan, -inf, 0 }, { 2, 5 })
local bad_dim = { { t { 2, 3 }, { dim = 3 }, message = "dim 3" }, { t { 2, 3 }, { dimm = 1 }, message = "dim" } }
op("sort", "x dim descending", "tuple(torch.sort(x, dim=dim, descending=descending, stable=True))", { index_out = { 2 }, defaults = sort_defaults,
  { x = sep { 3, 6 } }, { x = sep { 6, 3 }, dim = 1, descending = true }, { x = ties }, { x = ties, descending = true }, { x = t { 0, 3 } }, { x = t {} },
  { x = sep { 2, 100 } }, { x = n({ 3, 90 }, -2, 3), dim = 2, descending = true }, { x = sep { 70, 2 }, dim = 1 }, bad = bad_dim })
op("argsort", "x dim descending", "torch.argsort(x, dim=dim, descending=descending, stable=True)", { index_out = { 1 }, defaults = sort_defaults, grad = false,
  { x = sep { 3, 6 } }, { x = ties, descending = true }, { x = t {} }, bad = bad_dim })
op("msort", "x", "torch.msort(x)", { { x = sep { 3, 6 } }, { x = sep { 5 } }, bad = { { 1, message = "msort: x" } } })
op("kthvalue", "x k dim keepdim", "tuple(torch.kthvalue(x, k, dim, keepdim))", { index_out = { 2 }, defaults = { dim = -1, keepdim = false },
  differs = { bool = "which of equals is told", uint8 = "which of equals is told" }, { x = sep { 3, 6 }, k = 2 }, { x = sep { 6, 3 }, k = 6, dim = 1, keepdim = true },
  { x = sep { 2, 300 }, k = 77 }, { x = v { 3, nan, 1 }, k = 3 }, { x = t {}, k = 1 }, { x = n({ 2, 9 }, -900, 900, true), k = 4 },
  bad = { { t { 3 }, 4, message = "kthvalue: k must be from 1 to 3, .*, got 4" }, { t { 3 }, 0, message = "kthvalue: k must be .*, got 0" },
    { t { 2, 0 }, 1, message = "kthvalue: k must be from 1 to 0, .*, got 1" } } })
for _, name in ipairs { "median", "nanmedian" } do
  op(name .. "_dim", "x dim keepdim", "tuple(torch." .. name .. "(x, dim, keepdim))", { index_out = { 2 }, defaults = { keepdim = false },
    differs = { bool = "which of equals is told", uint8 = "which of equals is told" }, { x = sep { 3, 6 }, dim = 2 }, { x = sep { 6, 3 }, dim = 1, keepdim = true },
    { x = v({ 1, nan, 2, 3, 5, 4 }, { 2, 3 }), dim = 2 }, { x = sep { 2, 301 }, dim = -1 }, { x = t {}, dim = 1 }, { x = v { nan, nan }, dim = 1 },
    bad = { { t { 2, 3 }, 3, message = "dim 3" }, { t { 2, 0 }, 2, message = "dim 2 of %[2, 0%] must not be empty" } } })
  op(name .. "_all", "x", "torch." .. name .. "(x)", { { x = sep { 3, 4 } }, { x = v { 1, nan, 2, 2, 2, 7 } }, { x = t {} }, { x = t { 0 } },
    bad = { { 1, message = "x" } } })
end
local scan_defaults = { reverse = false }
local function scan(name, py, o)
  local row = { defaults = scan_defaults, { x = t { 3, 4 }, dim = 2 }, { x = t { 2, 3, 4 }, dim = 2, reverse = true }, { x = t { 4, 40 }, dim = 1 },
    { x = t { 2, 70 }, dim = -1, reverse = true }, { x = special, dim = 1 }, { x = t { 0, 3 }, dim = 1 }, { x = t { 3, 0 }, dim = 1 }, { x = t {}, dim = 1 },
    bad = { { t { 2, 3 }, 3, message = name .. ".*dim 3" }, { t { 2, 3 }, message = name .. ".*dim" } } }
  for key, value in pairs(o) do row[type(key) == "number" and #row + 1 or key] = value end
  op(name, "x dim", py, row)
end
scan("cumsum", "scanned(torch.cumsum, x, dim, reverse)", { { x = n({ 3, 4 }, -9, 9, true), dim = 2 } })
scan("cumprod", "scanned(torch.cumprod, x, dim, reverse)", { { x = v({ 1, 2, 0, 3, 4, 0, 5, 0, 6 }, { 3, 3 }), dim = 2 } })
scan("logcumsumexp", "scanned(torch.logcumsumexp, x, dim, reverse)", { { x = v { -1000, 0, 1000, 5 }, dim = 1 }, { x = v { -inf, 1, 2 }, dim = 1 } })
op("linear_recurrence", "x decay dim", "recurrence(x, decay, dim, reverse)", { defaults = scan_defaults, dtypes = false,
  { x = t { 3, 4 }, decay = t { 3, 4 }, dim = 2 }, { x = t { 3, 4 }, decay = t { 3, 4 }, dim = 1, reverse = true },
  bad = { { t { 2, 3 }, t { 3 }, 1, message = "linear_recurrence: shapes of x and decay must match, got %[2, 3%] and %[3%]" }, { t { 2 }, i({ 2 }, 3), 1, message = "decay.*int64" } } })
for _, name in ipairs { "cummax", "cummin" } do
  op(name, "x dim", "tuple(torch." .. name .. "(x, dim))", { index_out = { 2 }, { x = sep { 3, 4 }, dim = 2 }, { x = sep { 4, 40 }, dim = 1 },
    { x = v { 1, 2, 2, nan, 3, nan, 1 }, dim = 1 }, { x = v { 3, 2, 2, -0.0, 0 }, dim = 1 }, { x = t { 0, 3 }, dim = 1 }, { x = t {}, dim = 1 },
    bad = { { t { 2, 3 }, 3, message = name .. ".*dim 3" }, { t { 2, 3 }, message = name .. ".*dim" } } })
end
reduction("prod", "product(x, dim, keepdim)", { { x = t { 0, 3 }, dim = 1 }, { x = t { 0, 3 } }, { x = special }, { x = b { 4, 5 }, dim = 1 },
  { x = v({ 1, 0, 2, 3, 4, 5, 0, 0, 6 }, { 3, 3 }), dim = 2 }, { x = v({ 1, 0, 2, 3 }, { 2, 2 }) }, { x = v({ 1, 0, 2, 3, 4, 5 }, { 3, 1, 2 }), dim = { 1, 3 } } })
reduction("nansum", "torch.nansum(x, dim=dim, keepdim=keepdim)", { { x = t { 0, 3 }, dim = 1 }, { x = special }, { x = v({ nan, nan, 1, 2 }, { 2, 2 }), dim = 2 } })
reduction("nanmean", "torch.nanmean(x, dim=dim, keepdim=keepdim)", { { x = special }, { x = v({ nan, nan, 1, 2 }, { 2, 2 }), dim = 2 },
  bad = { { n({ 2 }, 1, 3), message = "nanmean: x must be floating point, got int64" } } })
op("count_nonzero", "x dim", "torch.count_nonzero(x, dim)", { grad = false, defaults = { dim = { py = "None" } }, { x = v({ 0, 1, nan, 0, 3, 4 }, { 2, 3 }) },
  { x = v({ 0, 1, nan, 0, 3, 4 }, { 2, 3 }), dim = 2 }, { x = b { 2, 3, 4 }, dim = { 1, 3 } }, { x = t { 0, 2 }, dim = 1 }, { x = t {} }, bad = bad_dim })
op("aminmax", "x", "(lambda d: (torch.amin(x, d, keepdim), torch.amax(x, d, keepdim)))(dim if dim is not None else tuple(range(x.dim())))", {
  defaults = { dim = { py = "None" }, keepdim = false }, { x = sep { 3, 4 } }, { x = sep { 3, 4 }, dim = 2, keepdim = true }, { x = special }, { x = t {} },
  bad = { { t { 2, 3 }, { dim = 3 }, message = "dim 3" }, { t { 0 }, message = "must not be empty" } } })
local steps = v { -1, 0, 0, 2, 5 }
op("searchsorted", "sorted_sequence x", "torch.searchsorted(sorted_sequence, torch.as_tensor(x, dtype=sorted_sequence.dtype), right=right, out_int32=out_int32)", {
  grad = false, index_out = { 1 }, dtypes = false, defaults = { right = false, out_int32 = false }, { sorted_sequence = steps, x = v { -2, 0, 1, 2, 9, nan } },
  { sorted_sequence = steps, x = v { -2, 0, 1, 2, 9, nan }, right = true }, { sorted_sequence = v({ 1, 3, 5, 2, 4, 6 }, { 2, 3 }), x = t({ 2, 4 }, { lo = 0, hi = 8 }) },
  { sorted_sequence = steps, x = 0.5, out_int32 = true }, { sorted_sequence = t { 0 }, x = t { 3 } }, { sorted_sequence = steps, x = t { 2, 0 } },
  { sorted_sequence = n({ 1 }, 5, 6, true), x = n({ 2, 3 }, 1, 9, true) },
  bad = { { t { 2, 3 }, t { 3 }, message = "searchsorted: expected sorted_sequence to have shape .*%[3%].*, got %[2, 3%]" }, { t {}, t { 3 }, message = "must be at least 1%-d" },
    { t { 3 }, t { 3 }, { right = true, side = "left" }, message = "searchsorted: side = 'left' and right = true are mutually exclusive" },
    { t { 3 }, t { 3 }, { side = "middle" }, message = "side.*right" },
    { t { 3 }, t { 3 }, { sorter = i({ 2 }, 2) }, message = "shapes of sorter and sorted_sequence must match, got %[2%]" } } })
op("bucketize", "x boundaries", "torch.bucketize(x, boundaries, right=right, out_int32=out_int32)", { grad = false, index_out = { 1 }, dtypes = false,
  defaults = { right = false, out_int32 = false }, { x = t { 2, 3 }, boundaries = steps }, { x = v { 0, 5, 6 }, boundaries = steps, right = true },
  { x = v { 0, 5, 6 }, boundaries = steps, out_int32 = true }, bad = { { t { 3 }, t { 2, 2 }, message = "bucketize: boundaries.*%[2, 2%]" } } })

-- ---- scattering; entries in another order, triangles, strided views
op("scatter_add", "x dim index src", "torch.scatter_add(x, dim, index, src)", {
  { x = t { 3, 4 }, dim = 1, index = i({ 2, 4 }, 3), src = t { 2, 4 } }, { x = t { 3, 4 }, dim = 2, index = i({ 3, 6 }, 4), src = t { 3, 6 } },
  bad = { { t { 3, 4 }, 1, i({ 2, 4 }, 3), t { 1, 4 }, message = "scatter_add.*src" } } })
op("scatter_add_", "x dim index src", "x.clone().scatter_add_(dim, index, src)", { grad = false,
  { x = t { 3, 4 }, dim = 1, index = i({ 2, 4 }, 3), src = t { 2, 4 } },
  bad = { { t { 3, 4 }, 1, i({ 2, 4 }, 3), t { 1, 4 }, message = "scatter_add_.*src" } } })
local sdefaults = { reduce = "replace", include_self = true, alpha = 1 }
local no_grad = { scatter_ = false, tril_ = false, triu_ = false }
for _, name in ipairs { "scatter", "scatter_" } do
  op(name, "x dim index src", "torch.scatter(x, dim, index, src) if reduce == 'replace' else torch.scatter(x, dim, index, src, reduce=reduce)", { defaults = sdefaults, grad = no_grad[name],
    { x = t { 5, 4 }, dim = 1, index = i({ 1, 4 }, 5), src = t { 2, 4 } }, { x = t { 3, 4 }, dim = 2, index = i({ 3, 1 }, 4), src = t { 3, 2 } },
    { x = t { 3, 4 }, dim = -1, index = i({ 2, 3 }, 4), src = 1.5 }, { x = t { 3, 4 }, dim = 1, index = i({ 0, 4 }, 3), src = t { 2, 4 } },
    { x = t { 3, 4 }, dim = 1, index = i({ 2, 4 }, 3), src = t { 2, 4 }, reduce = "add" }, { x = t { 3, 4 }, dim = 2, index = i({ 3, 4 }, 4), src = t { 3, 4 }, reduce = "multiply" },
    { x = t {}, dim = 1, index = i({}, 1), src = t {} }, { x = n({ 3, 4 }, -5, 5), dim = 1, index = i({ 1, 4 }, 3), src = n({ 1, 4 }, -5, 5) },
    bad = { { t { 3, 4 }, 1, i({ 2, 4 }, 3), t { 1, 4 }, message = name .. ".*src" }, { t { 3, 4 }, 1, n({ 2, 4 }, 9, 10), 1, message = "scatter.*9.*3" },
      { t { 3, 4 }, 1, i({ 2, 4 }, 3), t { 2, 4 }, { reduce = "sum" }, message = name .. ": reduce.*multiply" }, { t { 3, 4 }, 3, i({ 2, 4 }, 3), 1, message = name .. ".*dim 3" },
      { t { 3, 4 }, 1, t { 2, 4 }, 1, message = name .. ": index.*int64" } } })
end
local folds = {}
for _, reduce in ipairs { "sum", "prod", "mean", "amax", "amin" } do
  for _, include_self in ipairs { true, false } do
    folds[#folds + 1] = { x = sep { 3, 4 }, dim = 1, index = i({ 5, 4 }, 3), src = sep { 5, 4 }, reduce = reduce, include_self = include_self }
  end
end
folds[#folds + 1] = { x = t { 2, 3, 4 }, dim = -1, index = i({ 2, 2, 6 }, 4), src = t { 2, 3, 6 }, reduce = "amax" }
folds[#folds + 1] = { x = v { 1, 2, 0, nan }, dim = 1, index = i({ 9 }, 4), src = v { 0, 3, nan, 0, 1, 5, 2, 0, -1 }, reduce = "amin" }
folds[#folds + 1] = { x = v { 1, 2, 0, 4 }, dim = 1, index = i({ 9 }, 4), src = v { 0, 3, 2, 0, 0, 1, 2, 5, 0.5 }, reduce = "prod" }
folds[#folds + 1] = { x = n({ 3, 4 }, -5, 5), dim = 1, index = i({ 5, 4 }, 3), src = n({ 5, 4 }, -5, 5), reduce = "mean" }
folds[#folds + 1] = { x = t { 3, 4 }, dim = 1, index = i({ 0, 4 }, 3), src = t { 2, 4 }, reduce = "prod" }
folds.defaults, folds.bad = sdefaults, { { t { 3, 4 }, 1, i({ 2, 4 }, 3), t { 2, 4 }, "max", message = "scatter_reduce: reduce.*amax" },
  { t { 3, 4 }, 1, i({ 2, 4 }, 3), t { 1, 4 }, "amax", message = "scatter_reduce.*src" }, { t { 3, 4 }, 1, n({ 2, 4 }, 9, 10), t { 2, 4 }, "amax", message = "scatter.*9.*3" } }
op("scatter_reduce", "x dim index src reduce", "torch.scatter_reduce(x, dim, index, src, reduce, include_self=include_self)", folds)
op("scatter_fold", "x dim index src how include_self", "torch.scatter_reduce(x, dim, index, src, how, include_self=include_self)", { defaults = sdefaults,
  { x = t { 3, 4 }, dim = 1, index = i({ 5, 4 }, 3), src = t { 5, 4 }, how = "prod" }, { x = sep { 3, 4 }, dim = 2, index = i({ 3, 6 }, 4), src = sep { 3, 6 }, how = "amin", include_self = false },
  { x = t { 3, 4 }, dim = 1, index = i({ 5, 4 }, 3), src = t { 5, 4 }, how = "sum" },
  bad = { { t { 3, 4 }, 1, i({ 2, 4 }, 3), t { 2, 4 }, "mean", message = "scatter_fold: reduce must be .*, got 'mean'" } } })
op("index_add", "x dim index src", "torch.index_add(x, dim, index, src, alpha=alpha)", { defaults = sdefaults,
  { x = t { 3, 4 }, dim = 1, index = i({ 5 }, 3), src = t { 5, 4 } }, { x = t { 2, 3, 4 }, dim = 3, index = i({ 2 }, 4), src = t { 2, 3, 2 } },
  { x = t { 3, 4 }, dim = 2, index = i({ 5 }, 4), src = t { 3, 5 }, alpha = -2 }, { x = t { 4 }, dim = 1, index = i({ 9 }, 4), src = t { 9 } },
  bad = { { t { 3, 4 }, 1, i({ 5 }, 3), t { 4, 4 }, message = "index_add.*src" } } })
op("index_add_", "x dim index src", "x.clone().index_add_(dim, index, src, alpha=alpha)", { defaults = sdefaults, grad = false,
  { x = t { 3, 4 }, dim = 1, index = i({ 5 }, 3), src = t { 5, 4 } }, { x = t { 3, 4 }, dim = 2, index = i({ 2 }, 4), src = t { 3, 2 }, alpha = 3 },
  bad = { { t { 3, 4 }, 1, i({ 5 }, 3), t { 4, 4 }, message = "index_add_.*src" }, { t { 3, 4 }, 1, n({ 2 }, 7, 8), t { 2, 4 }, message = "index_add.*7.*3" } } })
op("flip", "x dims", "torch.flip(x, dims)", { { x = t { 3, 4 }, dims = { 1 } }, { x = t { 2, 3, 40 }, dims = { 3 } }, { x = t { 2, 3, 4 }, dims = { 1, -1 } },
  { x = t { 2, 3, 4, 5 }, dims = { 2, 3, 4 } },
  { x = t {}, dims = {} }, { x = t { 2, 0 }, dims = { 2 } }, { x = b { 5, 6 }, dims = { 2 } },
  bad = { { t { 2, 3 }, { 3 }, message = "flip: dim 3.*2 dims" }, { t { 2, 3 }, { 1, 1 }, message = "flip: dim 1 is repeated" } } })
op("roll", "x shifts dims", "torch.roll(x, shifts, dims)", { defaults = { dims = { py = "None" } }, { x = t { 3, 4 }, shifts = 1, dims = { 1 } },
  { x = t { 3, 4 }, shifts = { 1, -2 }, dims = { 1, 2 } },
  { x = t { 3, 4 }, shifts = 5 }, { x = t { 2, 3, 4 }, shifts = { 1, 7, 1 }, dims = { 3, -1, 1 } }, { x = t { 0, 3 }, shifts = 2, dims = { 2 } }, { x = t {}, shifts = 2 },
  bad = { { t { 2, 3 }, { 1, 2 }, { 1 }, message = "roll: shifts must be 1 shifts for 1 dims, got 2" }, { t { 2, 3 }, 1, { 3 }, message = "roll: dim 3" }, { t { 2, 3 },
    { 1, 2 }, message = "roll: shifts must be 1 shift without dims, got 2" } } })
for _, name in ipairs { "tril", "triu" } do
  for _, ending in ipairs { "", "_" } do
    op(name .. ending, "x diagonal", ending == "" and "torch." .. name .. "(x, diagonal)" or "x.clone()." .. name .. "_(diagonal)", { defaults = { diagonal = 0 }, grad = no_grad[name .. ending],
      { x = t { 3, 4 } }, { x = t { 2, 4, 3 }, diagonal = 1 }, { x = t { 4, 4 }, diagonal = -2 }, { x = t { 3, 4 }, diagonal = 9 }, { x = t { 3, 4 }, diagonal = -9 },
      { x = t { 0, 3 } }, { x = b { 3, 3 } }, bad = { { t { 3 }, message = name .. ".*expected x to have shape .*rows, columns%], got %[3%]" },
    { t { 3, 3 }, 0.5, message = name .. ending .. ": diagonal" } } })
  end
end
op("triangle", "x diagonal upper", "(torch.triu if upper else torch.tril)(x, diagonal)", { defaults = { upper = false }, { x = t { 3, 4 }, diagonal = 1 },
  { x = t { 3, 4 }, diagonal = 1, upper = true },
  bad = { { t { 3 }, 1, message = "tri.*%[3%]" } } })
op("diagonal", "x offset dim1 dim2", "torch.diagonal(x, offset, dim1, dim2)", { defaults = { offset = 0, dim1 = 1, dim2 = 2 }, { x = t { 3, 4 } },
  { x = t { 3, 4 }, offset = 2 }, { x = t { 3, 4 }, offset = -1 },
  { x = t { 2, 3, 4 }, dim1 = 3, dim2 = -3, offset = 1 }, { x = t { 3, 4 }, offset = 9 }, { x = t { 0, 3 } },
  bad = { { t { 3 }, message = "diagonal: x must be at least 2%-d, got shape %[3%]" }, { t { 3, 3 }, 0, 1, -2, message = "diagonal: dim1 and dim2 must differ, got dim 1 for both" },
    { t { 3, 3 }, 0, 1, 3, message = "diagonal: dim 3" } } })
op("unfold", "x dim size step", "x.unfold(dim, size, step)", { { x = t { 7 }, dim = 1, size = 3, step = 2 }, { x = t { 3, 8 }, dim = 2, size = 4, step = 1 },
  { x = t { 6, 3 }, dim = 1, size = 2, step = 3 },
  { x = t { 3, 4 }, dim = -1, size = 4, step = 1 }, { x = t {}, dim = 1, size = 1, step = 1 },
  bad = { { t { 3 }, 1, 4, 1, message = "unfold: size must be from 0 to 3 in dim 1 of %[3%], got 4" }, { t { 3 }, 1, 2, 0, message = "unfold: step must be at least 1, got 0" }, { t { 3 }, 2, 2, 1,
    message = "unfold: dim 2" } } })
op("as_strided", "x size stride storage_offset", "torch.as_strided(x, size, stride, storage_offset)", { defaults = { storage_offset = { py = "None" } }, strided = false,
  { x = t { 12 }, size = { 3, 4 }, stride = { 4, 1 } }, { x = t { 3, 4 }, size = { 2, 3, 2 }, stride = { 1, 2, 3 }, storage_offset = 1 },
  { x = t { 5 }, size = { 2, 5 }, stride = { 0, 1 } }, { x = t { 5 }, size = {}, stride = {} },
  bad = { { t { 5 }, { 2, 3 }, { 3, 1 }, message = "as_strided: size and strides must be within a storage of 20 bytes" }, { t { 5 }, { 2 },
    { 1, 1 }, message = "as_strided: the number of strides must be 1 as that of sizes, got 2" },
  { t { 5 }, { 2 }, { -1 }, message = "as_strided.*stride of dim 1 must be at least 0, got %-1" },
    { t { 5 }, { 2 }, { 1 }, { storage_offset = -1 }, message = "as_strided: storage_offset must be at least 0, got %-1" }, { t { 5 }, { -2 }, { 1 }, message = "as_strided" } } })

-- ---- convolution and pooling
local cdefaults = { bias = { py = "None" }, stride = 1, padding = 0, dilation = 1, groups = 1 }
local no_ints = { int64 = "floating only", int32 = "floating only", uint8 = "floating only", bool = "floating only" }
local half_sums = { float16 = { 1e-2, 2e-3 } } -- PyTorch adds up in half, Luminary in float
op("conv2d", "x weight bias", "F.conv2d(x, weight, bias, stride, padding, dilation, groups)", { defaults = cdefaults,
  { x = t { 2, 3, 6, 5 }, weight = t { 4, 3, 3, 3 }, bias = t { 4 } }, { x = t { 1, 4, 7, 6 }, weight = t { 6, 2, 3, 2 }, stride = 2, padding = 1, groups = 2 },
  { x = t { 2, 3, 9, 8 }, weight = t { 2, 3, 3, 3 }, dilation = 2, padding = { 2, 1 }, stride = { 1, 2 } },
  { x = t { 2, 16, 8, 8 }, weight = t { 16, 16, 3, 3 }, padding = 1 }, { x = t { 2, 4, 5, 5 }, weight = t { 4, 1, 3, 3 }, groups = 4 },
  { x = t { 3, 6, 5 }, weight = t { 4, 3, 3, 3 } }, { x = t { 0, 3, 6, 5 }, weight = t { 4, 3, 3, 3 } },
  { x = t { 2, 5, 4, 4 }, weight = t { 7, 5, 1, 1 }, bias = t { 7 } },
  { x = t { 2, 3, 6, 5 }, weight = t { 4, 3, 3, 3 }, bias = t { 4 }, padding = "same" }, { x = t { 1, 4, 5, 6 }, weight = t { 4, 2, 2, 3 }, groups = 2, padding = "same" },
  { x = t { 1, 2, 6, 7 }, weight = t { 3, 2, 2, 4 }, dilation = { 3, 1 }, padding = "same" }, { x = t { 2, 3, 6, 5 }, weight = t { 4, 3, 3, 2 }, stride = 2, padding = "valid" },
  { x = t { 3, 6, 5 }, weight = t { 4, 3, 2, 3 }, padding = "same" },
  bad = { { t { 2, 3, 6, 5 }, t { 4, 2, 3, 3 }, message = "conv2d: expected x to have shape %[N, 2, H, W%] for weight of %[4, 2, 3, 3%] and groups = 1, got %[2, 3, 6, 5%]" },
    { t { 1, 1, 4, 4 }, t { 1, 1, 3, 3 }, { padding = "sme" }, message = "conv2d: padding.*same" },
    { t { 1, 1, 4, 4 }, t { 1, 1, 3, 3 }, { padding = "same", stride = { 1, 2 } }, message = "conv2d: stride must be 1 for padding = \"same\", got %(1, 2%)" },
    { t { 1, 1, 4, 4 }, t { 1, 3, 3 }, { padding = "same" }, message = "conv2d: expected weight" },
    { t { 1, 1, 4, 4 }, t { 1, 1, 3, 3 }, { padding = "same", dilation = 0 }, message = "conv2d: dilation must be from 1 to 2%^31 %- 1, got 0" },
    { t { 1, 1, 4, 4 }, t { 1, 1, 3, 3 }, { padding = true }, message = "conv2d: padding" },
    { t { 1, 1, 2, 2 }, t { 1, 1, 3, 3 }, message = "conv2d: the kernel size with dilation must be at most the padded input's 2 x 2, got 3 x 3" },
    { t { 2, 3 }, t { 4, 3, 3, 3 }, message = "conv2d: expected x to have shape %[N, C, H, W%] or %[C, H, W%], got %[2, 3%]" },
    { t { 1, 1, 4, 4 }, t { 1, 1, 3, 3 }, { stride = 0 }, message = "conv2d: stride must be from 1 to 2%^31 %- 1, got 0" } } })
local activated = "torch.clamp({'none': torch.clone, 'sigmoid': torch.sigmoid, 'tanh': torch.tanh, 'silu': F.silu, "
  .. "'gelu': F.gelu, 'gelu_tanh': lambda v: F.gelu(v, approximate='tanh'), 'hardsigmoid': F.hardsigmoid, "
  .. "'hardswish': F.hardswish}[activation](%s + (0 if other is None else other)), min, max)"
op("conv2d_with_epilogue", "x weight bias other",
  activated:format "F.conv2d(x, weight, bias, stride, padding, dilation, groups)", {
  defaults = { bias = { py = "None" }, other = { py = "None" }, stride = 1, padding = 0, dilation = 1, groups = 1, activation = "none", min = -1e9, max = 1e9 },
  cpu_only = true, grad = false, dtypes = false,
  { x = t { 2, 3, 6, 5 }, weight = t { 4, 3, 3, 3 }, other = t { 2, 4, 4, 3 }, activation = "silu" },
  { x = t { 2, 8, 5, 4 }, weight = t { 6, 8, 1, 1 }, bias = t { 6 }, activation = "hardswish", max = 2 },
  { x = t { 2, 24, 5, 5 }, weight = t { 24, 1, 3, 3 }, groups = 24, padding = 1, activation = "hardsigmoid" },
  { x = t { 2, 16, 8, 8 }, weight = t { 16, 16, 3, 3 }, padding = 1, activation = "tanh" },
  { x = t { 2, 3, 6, 5 }, weight = t { 4, 3, 3, 3 }, bias = t { 4 }, other = t { 2, 4, 4, 3 }, min = 0 },
  { x = t { 2, 8, 5, 4 }, weight = t { 6, 8, 1, 1 }, bias = t { 6 }, other = t { 2, 6, 5, 4 }, min = -1, max = 2 },
  { x = t { 2, 4, 5, 5 }, weight = t { 4, 1, 3, 3 }, groups = 4, padding = 1, stride = 2, max = 1.5 },
  { x = t { 2, 16, 8, 8 }, weight = t { 16, 16, 3, 3 }, padding = 1, other = t { 2, 16, 8, 8 }, min = 0, max = 6 },
  { x = t { 3, 6, 5 }, weight = t { 4, 3, 3, 3 }, min = 0 }, { x = t { 0, 3, 6, 5 }, weight = t { 4, 3, 3, 3 }, max = 6 },
  bad = { { t { 2, 3, 6, 5 }, t { 4, 3, 3, 3 }, nil, t { 2, 4, 4, 4 }, message = "conv2d_with_epilogue: .*other" } } })
op("mm_with_sums", "x other of_other",
  "(torch.mm(x, other), other.sum(0) if of_other else x.sum(1))", {
  defaults = { of_other = false }, grad = false, dtypes = false,
  { x = t { 8, 24 }, other = t { 24, 16 } }, { x = t { 16, 5 }, other = t { 5, 8 }, of_other = true },
  { x = t { 3, 7 }, other = t { 7, 5 } }, { x = t { 1, 40 }, other = t { 40, 1 }, of_other = true },
  bad = { { t { 2, 6 }, t { 5, 6 }, message = "mm_with_sums: .*other" } } })
op("addmm_gelu", "x other input",
  "(lambda y: (F.gelu(y, approximate='tanh'), y))(x @ other + (0 if input is None else input))", {
  defaults = { input = { py = "None" } }, grad = false, dtypes = false, half = product_with_gelu,
  { x = t { 8, 24 }, other = t { 24, 16 }, input = t { 16 } }, { x = t { 16, 5 }, other = t { 5, 8 } },
  { x = t { 3, 7 }, other = t { 7, 5 }, input = t { 5 } }, { x = t { 1, 40 }, other = t { 40, 1 } },
  bad = { { t { 2, 6 }, t { 5, 6 }, message = "addmm_gelu: .*other" } } })
op("mm_gelu_backward", "x other before", "torch.ops.aten.gelu_backward(x @ other, before, approximate='tanh')", {
  grad = false, dtypes = false, half = product_with_gelu,
  { x = t { 8, 24 }, other = t { 24, 16 }, before = t { 8, 16 } }, { x = t { 3, 7 }, other = t { 7, 5 }, before = t { 3, 5 } },
  bad = { { t { 2, 6 }, t { 6, 5 }, t { 2, 6 }, message = "mm_gelu_backward: .*before" } } })
op("linear_with_epilogue", "x weight bias other", activated:format "F.linear(x, weight, bias)", {
  defaults = { bias = { py = "None" }, other = { py = "None" }, activation = "none", min = -1e9, max = 1e9 },
  cpu_only = true, grad = false, dtypes = false,
  { x = t { 2, 3, 6 }, weight = t { 5, 6 }, bias = t { 5 }, other = t { 2, 3, 5 }, activation = "gelu" },
  { x = t { 40, 20 }, weight = t { 70, 20 }, bias = t { 70 }, activation = "gelu_tanh" },
  { x = t { 40, 20 }, weight = t { 70, 20 }, other = t { 40, 70 }, min = 0 }, { x = t { 1, 600 }, weight = t { 33, 600 }, activation = "sigmoid" },
  { x = t { 6 }, weight = t { 5, 6 }, activation = "tanh", max = 0.5 }, { x = t { 0, 6 }, weight = t { 5, 6 }, max = 0.5 },
  bad = { { t { 2, 6 }, t { 5, 6 }, nil, t { 2, 6 }, message = "linear_with_epilogue: .*other" }, { t { 2, 5 }, t { 5, 6 }, message = "linear_with_epilogue: .*x" } } })
op("conv2d_input", "grad weight size stride padding dilation groups",
  "torch.nn.grad.conv2d_input(size, weight, grad, stride, padding, dilation, groups)", { defaults = cdefaults,
  tol = half_sums,
  { grad = t { 2, 4, 4, 3 }, weight = t { 4, 3, 3, 3 }, size = { 2, 3, 6, 5 } },
  { grad = t { 1, 6, 4, 4 }, weight = t { 6, 2, 3, 2 }, size = { 1, 4, 7, 6 }, stride = 2, padding = 1, groups = 2 },
  bad = { { t { 2, 4, 4, 3 }, t { 4, 3, 3, 3 }, { 2, 3, 9, 9 }, message = "conv2d_input" } } })
op("conv2d_weight", "grad x size stride padding dilation groups",
  "torch.nn.grad.conv2d_weight(x, size, grad, stride, padding, dilation, groups)", { defaults = cdefaults, lacks = no_ints,
  tol = half_sums,
  { grad = t { 2, 4, 4, 3 }, x = t { 2, 3, 6, 5 }, size = { 4, 3, 3, 3 } },
  { grad = t { 1, 6, 4, 4 }, x = t { 1, 4, 7, 6 }, size = { 6, 2, 3, 2 }, stride = 2, padding = 1, groups = 2 },
  bad = { { t { 2, 4, 4, 3 }, t { 2, 3, 9, 9 }, { 4, 3, 3, 3 }, message = "conv2d_weight" } } })
local pdefaults = { stride = { py = "None" }, padding = 0, dilation = 1, ceil_mode = false, count_include_pad = true, return_indices = false, divisor_override = { py = "None" } }
op("max_pool2d_with_indices", "x kernel_size", "F.max_pool2d(x, kernel_size, stride, padding, dilation, ceil_mode, True)", { defaults = pdefaults, index_out = { 2 },
  { x = sep { 2, 3, 6, 6 }, kernel_size = 2 }, { x = sep { 2, 3, 7, 6 }, kernel_size = { 3, 2 }, stride = 2, padding = 1 }, { x = sep { 2, 5, 5 }, kernel_size = 3, stride = 1 },
  bad = { { t { 1, 1, 2, 2 }, 3, message = "max_pool2d" } } })
op("max_pool2d", "x kernel_size", "F.max_pool2d(x, kernel_size, stride, padding, dilation, ceil_mode, return_indices)", { defaults = pdefaults, index_out = { 2 },
  { x = sep { 2, 3, 6, 6 }, kernel_size = 2 }, { x = sep { 2, 3, 7, 6 }, kernel_size = { 3, 2 }, stride = 2, padding = 1 },
  { x = sep { 1, 2, 7, 7 }, kernel_size = 2, ceil_mode = true }, { x = sep { 1, 2, 8, 8 }, kernel_size = 2, dilation = 2, stride = 1 },
  { x = sep { 2, 5, 5 }, kernel_size = 2 }, { x = v({ 1, nan, 2, 3 }, { 1, 1, 2, 2 }), kernel_size = 2 },
  { x = v({ -inf, -inf, -inf, -inf }, { 1, 1, 2, 2 }), kernel_size = 2 }, { x = t { 0, 3, 4, 4 }, kernel_size = 2 },
  { x = sep { 2, 3, 7, 6 }, kernel_size = { 3, 2 }, stride = 2, padding = 1, ceil_mode = true, return_indices = true }, { x = sep { 2, 5, 5 }, kernel_size = 2, return_indices = true },
  bad = { { t { 1, 4, 4 }, 2, { return_indices = 1 }, message = "max_pool2d: return_indices" },
    { t { 1, 4, 4 }, 2, { return_indics = true }, message = "return_indices" },
    { t { 1, 1, 2, 2 }, 3, message = "max_pool2d" }, { t { 1, 1, 4, 4 }, 2, { padding = 2 },
      message = "max_pool2d: padding must be at most half of kernel_size {2, 2}, got {2, 2}; pad x before: F.pad%(x, {2, 2, 2, 2}, {value = %-math.huge}%)" } } })
op("max_unpool2d", "x indices kernel_size", "F.max_unpool2d(x, indices, kernel_size, stride, padding, output_size)", {
  defaults = { stride = { py = "None" }, padding = 0, output_size = { py = "None" } },
  { x = t { 1, 2, 2 }, indices = i({ 1, 2, 2 }, 64), kernel_size = 4 }, -- no index twice, or either might stay
  { x = t { 2, 1, 2, 3 }, indices = i({ 2, 1, 2, 3 }, 195), kernel_size = { 7, 5 }, stride = { 7, 5 }, padding = { 1, 0 }, output_size = { 13, 15 } },
  { x = t { 1, 1, 2, 3 }, indices = i({ 1, 1, 2, 3 }, 20), kernel_size = 3, stride = 1, output_size = { 1, 1, 4, 5 } },
  bad = { { t { 1, 2, 2 }, n({ 1, 2, 2 }, 17, 18), 2, message = "17.*16" }, { t { 1, 2, 2 }, n({ 1, 2, 1 }, 1, 4), 2, message = "max_unpool2d: indices.*%[1, 2, 2%]" },
    { t { 1, 1, 1 }, n({ 1, 1, 1 }, 0, 1), 2, message = "index 0 at position 1" },
    { t { 1, 2, 2 }, n({ 1, 2, 2 }, 1, 4), 2 ^ 20, message = "max_unpool2d: H %* W of the output must be at most 2%^31 %- 1, got 2097152 x 2097152" }, { t { 2, 2 }, n({ 2, 2 }, 1, 4), 2,
    message = "max_unpool2d: expected x to have shape %[N, C, H, W%] or %[C, H, W%], got %[2, 2%]" },
    { t { 1, 2, 2 }, n({ 1, 2, 2 }, 1, 4), 2, { output_size = { 3, 6 } }, message = "max_unpool2d: output_size must be from 3 to 5 in dim 3, got %[3, 6%]" } } })
op("max_pool2d_backward", "grad indices size", "pool_backward(grad, indices, size)", { lacks = no_ints,
  { grad = t { 2, 3, 2, 2 }, indices = i({ 2, 3, 2, 2 }, 16), size = { 2, 3, 4, 4 } },
  bad = { { t { 2, 3, 2, 2 }, i({ 2, 3, 2, 1 }, 16), { 2, 3, 4, 4 }, message = "max_pool2d_backward" } } })
op("avg_pool2d", "x kernel_size", "F.avg_pool2d(x, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override)", { defaults = pdefaults,
  { x = t { 2, 3, 6, 6 }, kernel_size = 2 }, { x = t { 2, 3, 7, 6 }, kernel_size = { 3, 2 }, stride = 2, padding = 1 },
  { x = t { 1, 2, 7, 7 }, kernel_size = 2, ceil_mode = true }, { x = t { 1, 2, 7, 7 }, kernel_size = 3, padding = 1, count_include_pad = false },
  { x = t { 2, 5, 5 }, kernel_size = 2 }, { x = t { 2, 3, 7, 6 }, kernel_size = { 3, 2 }, stride = 2, padding = 1, divisor_override = 5 },
  { x = t { 1, 2, 7, 7 }, kernel_size = 2, ceil_mode = true, divisor_override = -3 }, { x = n({ 1, 4, 4 }, 0, 9), kernel_size = 2, divisor_override = 3 },
  bad = { { t { 1, 1, 2, 2 }, 3, message = "avg_pool2d" },
    { t { 1, 1, 4, 4 }, 2, { divisor_override = 0 }, message = "avg_pool2d: divisor_override must be non%-zero and at most 2%^31 %- 1 in magnitude, got 0" },
    { t { 1, 1, 4, 4 }, 2, { divisor_override = 2 ^ 40 }, message = "avg_pool2d: divisor_override" } } })
op("avg_pool2d_backward", "grad size kernel_size stride padding ceil_mode count_include_pad divisor_override",
  "torch.ops.aten.avg_pool2d_backward(grad, torch.zeros(size, dtype=grad.dtype), pair(kernel_size), pair(stride), pair(padding), ceil_mode, count_include_pad, divisor_override)", {
  lacks = no_ints, defaults = { padding = 0, ceil_mode = false, count_include_pad = true, divisor_override = { py = "None" } },
  { grad = t { 2, 3, 3, 3 }, size = { 2, 3, 6, 6 }, kernel_size = 2, stride = 2 },
  { grad = t { 1, 2, 4, 4 }, size = { 1, 2, 7, 7 }, kernel_size = 3, stride = 2, padding = 1, count_include_pad = false },
  { grad = t { 1, 2, 4, 4 }, size = { 1, 2, 7, 7 }, kernel_size = 3, stride = 2, padding = 1, divisor_override = 4 },
  bad = { { t { 2, 3, 3, 3 }, { 2, 3, 9, 9 }, 2, 2, message = "avg_pool2d_backward" } } })
op("relu_avg_pool2d", "x kernel_size", "F.avg_pool2d(F.relu(x), kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override)", { defaults = pdefaults,
  lacks = no_ints,
  { x = t { 2, 3, 6, 6 }, kernel_size = 2 }, { x = t { 2, 3, 7, 6 }, kernel_size = { 3, 2 }, stride = 2, padding = 1 },
  { x = t { 1, 2, 7, 7 }, kernel_size = 2, ceil_mode = true }, { x = t { 1, 2, 7, 7 }, kernel_size = 3, padding = 1, count_include_pad = false },
  { x = t { 2, 5, 5 }, kernel_size = 2 }, { x = t { 2, 3, 7, 6 }, kernel_size = { 3, 2 }, stride = 2, padding = 1, divisor_override = 5 },
  bad = { { t { 1, 1, 2, 2 }, 3, message = "avg_pool2d" } } })
op("relu_avg_pool2d_backward", "grad x kernel_size stride padding ceil_mode count_include_pad divisor_override",
  "torch.ops.aten.avg_pool2d_backward(grad, x, pair(kernel_size), pair(stride), pair(padding), ceil_mode, count_include_pad, divisor_override) * (x > 0)", {
  lacks = no_ints, defaults = { padding = 0, ceil_mode = false, count_include_pad = true, divisor_override = { py = "None" } },
  { grad = t { 2, 3, 3, 3 }, x = t { 2, 3, 6, 6 }, kernel_size = 2, stride = 2 },
  { grad = t { 1, 2, 4, 4 }, x = t { 1, 2, 7, 7 }, kernel_size = 3, stride = 2, padding = 1, count_include_pad = false },
  { grad = t { 1, 2, 4, 4 }, x = t { 1, 2, 7, 7 }, kernel_size = 3, stride = 2, padding = 1, divisor_override = 4 },
  grad = { "grad" }, bad = { { t { 2, 3, 3, 3 }, t { 2, 3, 9, 9 }, 2, 2, message = "avg_pool2d_backward" } } })
op("adaptive_avg_pool2d", "x output_size", "F.adaptive_avg_pool2d(x, output_size)", { { x = t { 2, 3, 6, 6 }, output_size = 2 },
  { x = t { 2, 3, 7, 5 }, output_size = { 3, 2 } }, { x = t { 2, 3, 4, 4 }, output_size = 1 }, { x = t { 3, 5, 5 }, output_size = 2 },
  bad = { { t { 2, 3 }, 2, message = "adaptive_avg_pool2d: expected x to have shape %[N, C, H, W%] or %[C, H, W%] with C, H and W at least 1, got %[2, 3%]" } } })
op("adaptive_avg_pool2d_backward", "grad size", "torch.ops.aten._adaptive_avg_pool2d_backward(grad, torch.zeros(size, dtype=grad.dtype))", { lacks = no_ints,
  { grad = t { 2, 3, 2, 2 }, size = { 2, 3, 6, 6 } }, { grad = t { 2, 3, 3, 2 }, size = { 2, 3, 7, 5 } },
  bad = { { t { 2, 3, 2, 2 }, { 2, 4, 6, 6 }, message = "adaptive_avg_pool2d_backward" } } })

op("adaptive_max_pool2d", "x output_size", "F.adaptive_max_pool2d(x, output_size, return_indices=True)", { index_out = { 2 }, lacks = no_ints,
  { x = sep { 2, 3, 6, 5 }, output_size = { 3, 2 } }, { x = sep { 3, 5, 7 }, output_size = 2 }, { x = t { 0, 3, 4, 4 }, output_size = 2 },
  { x = v({ 1, nan, 2, 3 }, { 1, 1, 2, 2 }), output_size = 1 }, { x = sep { 1, 2, 3, 3 }, output_size = 0 },
  bad = { { t { 2, 3 }, 2, message = "adaptive_max_pool2d: expected x to have shape %[N, C, H, W%] or %[C, H, W%] with C, H and W at least 1, got %[2, 3%]" },
    { t { 1, 2, 2 }, -3, message = "adaptive_max_pool2d: output_size" } } })

-- ---- resampling
op("gather_weighted", "x indices weight", "gather_weighted(x, indices, weight)", { dtypes = false, defaults = { weight = { py = "None" } },
  { x = t { 2, 3, 7, 1 }, indices = i({ 2, 4, 5 }, 7), weight = t { 2, 4, 5 } }, { x = t { 2, 3, 7, 1 }, indices = i({ 1, 1, 5 }, 7) },
  { x = t { 2, 1, 6, 5 }, indices = i({ 2, 3, 4 }, 6), weight = t { 1, 3, 4 } }, { x = t { 1, 2, 6, 300 }, indices = i({ 1, 2, 3 }, 6), weight = t { 1, 2, 3 } },
  { x = t { 1, 1, 40, 1 }, indices = i({ 1, 2, 270 }, 40), weight = t { 1, 2, 270 } }, { x = t { 0, 2, 3, 1 }, indices = i({ 1, 2, 4 }, 3) },
  bad = { { t { 2, 3, 7 }, i({ 1, 1, 2 }, 3), message = "gather_weighted: expected x to have shape %[n, c, points, i%], got %[2, 3, 7%]" },
    { t { 2, 3, 7, 1 }, i({ 3, 1, 2 }, 3), message = "gather_weighted: expected indices to have shape %[1 or 2, j, p%] for x of %[2, 3, 7, 1%], got %[3, 1, 2%]" },
    { t { 2, 3, 7, 1 }, t { 1, 1, 2 }, message = "gather_weighted: indices" },
    { t { 2, 3, 7, 1 }, i({ 1, 1, 2 }, 3), t { 1, 1, 3 }, message = "gather_weighted: expected weight to have shape %[1 or 2, 1, 2%] for x of %[2, 3, 7, 1%], got %[1, 1, 3%]" },
    { t { 2, 3, 7, 1 }, i({ 1, 1, 2 }, 3), n({ 1, 1, 2 }, 0, 3, true), message = "gather_weighted: weight must be float32 for x of float32, got int64" } } })
op("gather_weighted_input", "grad indices weight size", "gather_weighted_input(grad, indices, weight, size)", { dtypes = false, defaults = { weight = { py = "None" } },
  { grad = t { 2, 3, 5, 1 }, indices = i({ 2, 4, 5 }, 7), weight = t { 2, 4, 5 }, size = { 2, 3, 7, 1 } },
  { grad = t { 2, 1, 4, 5 }, indices = i({ 1, 3, 4 }, 6), weight = t { 1, 3, 4 }, size = { 2, 1, 6, 5 } },
  bad = { { t { 2, 3, 5, 1 }, i({ 1, 1, 4 }, 7), nil, { 2, 3, 7, 1 }, message = "gather_weighted_input: expected grad to have shape %[2, 3, 4, 1%] for size of %[2, 3, 7, 1%], got %[2, 3, 5, 1%]" },
    { t { 2, 3, 5, 1 }, i({ 1, 1, 5 }, 7), nil, { 2, 3, -7, 1 },
    message = "gather_weighted_input: expected size to have shape %[n, c, points, i%], got %[2, 3, %-7, 1%]" } } })
op("gather_weighted_weight", "grad x indices", "gather_weighted_weight(grad, x, indices)", { dtypes = false,
  { grad = t { 2, 3, 5, 1 }, x = t { 2, 3, 7, 1 }, indices = i({ 2, 4, 5 }, 7) }, { grad = t { 2, 1, 4, 5 }, x = t { 2, 1, 6, 5 }, indices = i({ 1, 3, 4 }, 6) },
  bad = { { t { 2, 3, 5, 2 }, t { 2, 3, 7, 1 }, i({ 2, 4, 5 }, 7), message = "gather_weighted_weight: expected grad to have shape %[2, 3, 5, 1%] for x of %[2, 3, 7, 1%], got %[2, 3, 5, 2%]" } } })
local grid = t({ 2, 3, 2, 2 }, { lo = -1.3, hi = 1.3 })
local sampling = { mode = "bilinear", padding_mode = "zeros", align_corners = false, order = 0 }
op("grid_sample", "x grid", "F.grid_sample(x, grid, mode, padding_mode, align_corners)", { dtypes = false, defaults = sampling,
  { x = t { 2, 2, 4, 5 }, grid = grid }, { x = t { 2, 2, 4, 5 }, grid = grid, mode = "bicubic", padding_mode = "reflection" },
  { x = t { 2, 2, 4, 5 }, grid = grid, padding_mode = "border", align_corners = true }, { x = t { 2, 1, 1, 3 }, grid = grid, mode = "nearest", padding_mode = "border" },
  { x = t { 1, 2, 2, 3, 4 }, grid = t { 1, 1, 2, 3, 3 } }, { x = t { 1, 1, 2, 3, 4 }, grid = t { 1, 1, 2, 1, 3 }, mode = "bicubic" },
  { x = t { 2, 5, 1, 1 }, grid = grid, align_corners = true, padding_mode = "reflection" },
  { x = t { 2, 2, 4, 5 }, grid = v({ nan, 0, inf, 0.5, 0, -inf, 3e7, 0.2, 0, 0, 1, 1 }, { 2, 1, 3, 2 }), mode = "nearest", padding_mode = "border" },
  bad = { { t { 2, 3, 4 }, grid, message = "grid_sample: the number of dims of x must be 4 or 5, got 3" },
    { t { 2, 3, 4, 4 }, t { 2, 3, 2, 3 }, message = "grid_sample: expected grid to have shape %[2, H, W, 2%] for 4%-d x, got %[2, 3, 2, 3%]" },
    { t { 2, 1, 2, 2 }, grid, { mod = "nearest" }, message = "grid_sample.*mode" },
    { t { 2, 1, 2, 2 }, grid, { order = 16 }, message = "grid_sample: order must be a derivative up to the third along each dim of x, got 16" },
    { t { 2, 1, 0, 2 }, grid, message = "grid_sample: sizes of x must be at least 1, got %[0, 2%]" } } })
op("grid_sample_input", "grad grid mode padding_mode align_corners order size", "grid_sample_input(grad, grid, mode, padding_mode, align_corners, size)", { dtypes = false, defaults = sampling,
  { grad = t { 2, 2, 3, 2 }, grid = grid, mode = "bilinear", padding_mode = "border", align_corners = false, order = 0, size = { 2, 2, 4, 5 } },
  bad = { { t { 2, 2, 3, 3 }, grid, { size = { 2, 2, 4, 5 } }, message = "grid_sample_input: expected grad to have shape %[2, 2, 3, 2%] for size of %[2, 2, 4, 5%], got %[2, 2, 3, 3%]" } } })
op("grid_sample_grid", "grad x grid", "grid_sample_grid(grad, x, grid, mode, padding_mode, align_corners)", { dtypes = false, defaults = sampling,
  { grad = t { 2, 2, 3, 2 }, x = t { 2, 2, 4, 5 }, grid = grid, mode = "bicubic" }, { grad = t { 1, 2, 1, 2, 3 }, x = t { 1, 2, 2, 3, 4 }, grid = t { 1, 1, 2, 3, 3 } },
  { grad = t { 2, 2, 3, 2 }, x = t { 2, 2, 4, 5 }, grid = grid, padding_mode = "reflection" }, { grad = t { 2, 2, 3, 2 }, x = t { 2, 2, 4, 5 }, grid = grid, mode = "nearest" },
  bad = { { t { 2, 2, 3, 3 }, t { 2, 2, 4, 5 }, grid, message = "grid_sample_grid: expected grad to have shape %[2, 2, 3, 2%] for x of %[2, 2, 4, 5%], got %[2, 2, 3, 3%]" } } })
local roi = v({ 1, 0, 0.6, 3, 3, 2, -2, 1, 2.4, 9, 2, 7, 7, 8, 8 }, { 3, 5 })
op("roi_pool", "x boxes output_size spatial_scale", "roi_pool(x, boxes, output_size, spatial_scale)", { dtypes = false, grad = { "x" }, defaults = { spatial_scale = 1 },
  { x = sep { 2, 2, 4, 5 }, boxes = roi, output_size = { 2, 3 } }, { x = sep { 2, 1, 6, 6 }, boxes = roi, output_size = { 1, 2 }, spatial_scale = 0.5 },
  { x = t { 2, 1, 3, 3 }, boxes = t { 0, 5 }, output_size = { 2, 2 } },
  bad = { { t { 2, 2, 4 }, roi, 2, message = "roi_pool: expected x to have shape %[N, C, H, W%] with H and W at least 1, got %[2, 2, 4%]" },
    { t { 2, 2, 4, 4 }, t { 3, 4 }, 2, message = "roi_pool: expected boxes to have shape %[K, 5%], got %[3, 4%]" },
    { t { 1, 2, 4, 4 }, roi, 2, message = "roi_pool: .* is out of range for .*%(indices start at 1%)" } } })
op("nms_sorted", "boxes iou_threshold", "nms_sorted(boxes, iou_threshold)", { dtypes = false, grad = false,
  { boxes = v({ 0, 0, 4, 4, 1, 1, 5, 5, 0, 0, 4, 3, 9, 9, 10, 10 }, { 4, 4 }), iou_threshold = 0.5 }, { boxes = t { 0, 4 }, iou_threshold = 0.5 },
  bad = { { t { 2, 3 }, 0.5, message = "nms_sorted: expected boxes to have shape %[N, 4%], got %[2, 3%]" }, { t { 2, 4 }, nan, message = "nms_sorted: iou_threshold must be a number, got nan" } } })
-- The gradient is right after a log_softmax alone, as PyTorch's: spec/nn/ctc_spec.lua. Here nothing can be aligned.
local ctc = { x = t({ 5, 2, 4 }, { lo = -3, hi = -0.1 }), target = i({ 4 }, 4), starts = n({ 2 }, 1, 1, true),
  input_lengths = n({ 2 }, 4, 5, true), target_lengths = n({ 2 }, 1, 3, true), longest = 3 }
op("ctc_nll", "x target starts input_lengths target_lengths longest blank", "ctc_nll(x, target, starts, input_lengths, target_lengths, blank)", { dtypes = false, grad = false,
  defaults = { blank = 1 }, ctc,
  bad = { { t { 5, 2 }, message = "ctc_nll" } } })
op("ctc_nll_backward", "grad x target starts input_lengths target_lengths loss log_alpha blank", "x.exp() * grad.view(1, 2, 1)", { dtypes = false, grad = false,
  defaults = { blank = 1 },
  { grad = t { 2 }, x = ctc.x, target = ctc.target, starts = ctc.starts, input_lengths = n({ 2 }, 5, 5, true), target_lengths = n({ 2 }, 1, 1, true),
    loss = t { 2 }, log_alpha = v({ -inf, -inf, -inf, -inf, -inf, -inf, -inf, -inf, -inf, -inf, -inf, -inf, -inf, -inf,
      -inf, -inf, -inf, -inf, -inf, -inf, -inf, -inf, -inf, -inf, -inf, -inf, -inf, -inf, -inf, -inf }, { 2, 5, 3 }) },
  bad = { { t { 2 }, t { 5, 2, 4 }, message = "ctc_nll_backward" } } })

-- ---- normalization, dropout
local none = { py = "None" }
op("batch_norm", "x running_mean running_var weight bias", "F.batch_norm(x, running_mean, running_var, weight, bias, training, momentum, eps)", {
  defaults = { running_mean = none, running_var = none, weight = none, bias = none, training = false, momentum = 0.1, eps = 1e-5 },
  -- PyTorch rounds scale and shift to the low dtype, Luminary only the result.
  tol = { float16 = { 1e-2, 1e-3 }, bfloat16 = { 5e-2, 1e-2 } },
  { x = t { 4, 3, 2, 2 }, weight = t { 3 }, bias = t { 3 }, training = true },
  { x = t { 4, 3 }, training = true }, { x = t { 4, 3, 5 }, weight = t { 3 }, bias = t { 3 }, training = true },
  { x = t { 4, 3, 2, 2 }, running_mean = t { 3 }, running_var = pos { 3 }, weight = t { 3 }, bias = t { 3 } },
  { x = t { 5, 20, 3, 3 }, running_mean = t { 20 }, running_var = pos { 20 }, weight = t { 20 }, bias = t { 20 }, training = true },
  grad = { "x", "weight", "bias" },
  bad = { { t { 4, 3 }, message = "batch_norm.*running" }, { t { 1, 3 }, { training = true }, message = "batch_norm.*more than one value" },
    { t { 4, 3 }, t { 2 }, t { 3 }, message = "batch_norm: expected running_mean to have shape %[3%] for x of %[4, 3%], got %[2%]" } } })
op("batch_norm_backward", "grad x weight save_mean save_invstd running_mean running_var training eps", "bn_backward(grad, x, weight, running_mean, running_var, training, eps)", {
  defaults = { running_mean = none, running_var = none, save_mean = none, save_invstd = none, weight = none, training = false, eps = 1e-5 },
  { grad = t { 4, 3, 2, 2 }, x = t { 4, 3, 2, 2 }, weight = t { 3 }, running_mean = t { 3 }, running_var = pos { 3 } },
  grad = { "grad", "x", "weight" }, bad = { { t { 4, 3 }, t { 4, 2 }, message = "batch_norm_backward" } } })
op("batch_norm_relu", "x running_mean running_var weight bias addend",
  "bn_relu(x, running_mean, running_var, weight, bias, addend, training, momentum, eps, max)", {
  defaults = { running_mean = none, running_var = none, weight = none, bias = none, addend = none, training = false, momentum = 0.1,
    eps = 1e-5, max = none },
  tol = { float16 = { 1e-2, 2e-3 }, bfloat16 = { 5e-2, 2e-2 } }, -- as batch_norm's, and PyTorch rounds before it adds
  { x = t { 4, 3, 2, 2 }, weight = t { 3 }, bias = t { 3 }, addend = t { 4, 3, 2, 2 }, training = true },
  { x = t { 4, 3, 2, 2 }, weight = t { 3 }, bias = t { 3 }, training = true }, { x = t { 40, 3 }, training = true },
  { x = t { 4, 3, 5 }, weight = t { 3 }, bias = t { 3 }, addend = t { 4, 3, 5 }, training = true },
  { x = t { 4, 3, 2, 2 }, running_mean = t { 3 }, running_var = pos { 3 }, weight = t { 3 }, bias = t { 3 } },
  { x = t { 4, 3, 2, 2 }, running_mean = t { 3 }, running_var = pos { 3 }, addend = t { 4, 3, 2, 2 } },
  { x = t { 5, 20, 3, 3 }, running_mean = t { 20 }, running_var = pos { 20 }, weight = t { 20 }, bias = t { 20 }, training = true },
  { x = t { 2, 5, 9, 9 }, weight = t { 5 }, bias = t { 5 }, addend = t { 2, 5, 9, 9 }, training = true },
  { x = t { 4, 3, 2, 2 }, weight = t { 3 }, bias = t { 3 }, addend = t { 4, 3, 2, 2 }, training = true, max = 0.5 },
  { x = t { 5, 20, 3, 3 }, weight = t { 20 }, bias = t { 20 }, training = true, max = 0.75 },
  { x = t { 4, 3, 5 }, running_mean = t { 3 }, running_var = pos { 3 }, weight = t { 3 }, max = 0.5 },
  grad = { "x", "weight", "bias", "addend" },
  bad = { { t { 4, 3 }, message = "batch_norm_relu.*running" }, { t { 4, 3 }, { max = 0 }, message = "batch_norm_relu: max must be above 0, got 0" },
    { t { 1, 3 }, { training = true }, message = "batch_norm_relu.*more than one value" },
    { t { 4, 3 }, nil, nil, nil, nil, t { 4, 1 }, { training = true }, message = "batch_norm_relu: addend must be float32 %[4, 3%] as x, got float32 %[4, 1%]" } } })
op("batch_norm_relu_backward", "grad x y weight bias save_mean save_invstd training eps",
  "bn_relu_backward(grad, x, y, weight, bias, save_mean, save_invstd, training, eps, max)", {
  defaults = { y = none, weight = none, bias = none, training = false, eps = 1e-5, max = none },
  { grad = t { 4, 3, 2, 2 }, x = t { 4, 3, 2, 2 }, y = t { 4, 3, 2, 2 }, weight = t { 3 }, bias = t { 3 }, save_mean = t { 3 }, save_invstd = pos { 3 } },
  { grad = t { 4, 3, 5 }, x = t { 4, 3, 5 }, weight = t { 3 }, bias = t { 3 }, save_mean = t { 3 }, save_invstd = pos { 3 } },
  { grad = t { 40, 3 }, x = t { 40, 3 }, weight = t { 3 }, bias = t { 3 }, save_mean = t { 3 }, save_invstd = pos { 3 }, training = true },
  { grad = t { 4, 3, 5, 5 }, x = t { 4, 3, 5, 5 }, y = t { 4, 3, 5, 5 }, weight = t { 3 }, save_mean = t { 3 }, save_invstd = pos { 3 }, training = true },
  { grad = t { 4, 3, 9, 9 }, x = t { 4, 3, 9, 9 }, weight = t { 3 }, bias = t { 3 }, save_mean = t { 3 }, save_invstd = pos { 3 }, training = true },
  { grad = t { 4, 3, 2, 2 }, x = t { 4, 3, 2, 2 }, y = t { 4, 3, 2, 2 }, weight = t { 3 }, save_mean = t { 3 }, save_invstd = pos { 3 }, training = true, max = 0.5 },
  { grad = t { 4, 3, 9 }, x = t { 4, 3, 9 }, weight = t { 3 }, bias = t { 3 }, save_mean = t { 3 }, save_invstd = pos { 3 }, training = true, max = 0.5 },
  grad = { "grad", "x", "weight" }, bad = { { t { 4, 3 }, t { 4, 2 }, nil, nil, nil, t { 2 }, t { 2 }, message = "batch_norm_relu_backward: grad must be float32 %[4, 2%] as x, got float32 %[4, 3%]" },
    { t { 4, 3 }, t { 4, 3 }, t { 4, 2 }, nil, nil, t { 3 }, t { 3 }, message = "batch_norm_relu_backward: y must be float32 %[4, 3%] as x, got float32 %[4, 2%]" } } })
op("layer_norm", "x normalized_shape weight bias", "F.layer_norm(x, normalized_shape, weight, bias, eps)", {
  defaults = { weight = none, bias = none, eps = 1e-5 }, { x = t { 3, 6 }, normalized_shape = { 6 }, weight = t { 6 }, bias = t { 6 } },
  { x = t { 2, 3, 4 }, normalized_shape = { 3, 4 } }, { x = t { 2, 3, 70 }, normalized_shape = { 70 }, weight = t { 70 }, bias = t { 70 } },
  { x = t { 0, 4 }, normalized_shape = { 4 } },
  bad = { { t { 3, 6 }, { 5 }, message = "layer_norm.*%[5%].*%[3, 6%]" } } })
op("layer_norm_backward", "grad x normalized_shape save_mean save_rstd weight eps",
  "torch.ops.aten.native_layer_norm_backward(grad, x, normalized_shape, save_mean, save_rstd, weight, torch.zeros_like(weight), [True, True, True])", {
  defaults = { eps = 1e-5 }, grad = false, dtypes = false, -- means that are not x's own: only the forward is comparable
  { grad = t { 3, 6 }, x = t { 3, 6 }, normalized_shape = { 6 }, save_mean = t { 3, 1 }, save_rstd = pos { 3, 1 }, weight = t { 6 } },
  bad = { { t { 3, 6 }, t { 3, 5 }, { 5 }, t { 3, 1 }, t { 3, 1 }, message = "layer_norm_backward" } } })
op("grouped_norm", "x num_groups weight bias", "F.group_norm(x, num_groups, weight, bias, eps)", { defaults = { weight = none, bias = none, eps = 1e-5 },
  { x = t { 2, 4, 3 }, num_groups = 2, weight = pos { 4 }, bias = t { 4 } }, { x = t { 2, 6, 5, 70 }, num_groups = 3, weight = t { 6 } },
  { x = t { 3, 4 }, num_groups = 1, bias = t { 4 }, eps = 0.1 },
  bad = { { t { 2, 4, 3 }, 3, message = "grouped_norm: channels of x %(4%) must be divisible by groups %(3%)" },
    { t { 0, 4 }, 2, message = "grouped_norm: expected x to have shape %[N, C, %.%.%.%] without an empty dim, got %[0, 4%]" },
    { t { 2, 4, 3 }, 2, t { 3 }, message = "grouped_norm: expected weight to have shape %[4%] for x of %[2, 4, 3%], got %[3%]" } } })
op("grouped_norm_backward", "grad x num_groups save_mean save_invstd weight eps",
  "torch.ops.aten.native_group_norm_backward(grad, x, save_mean.view(x.shape[0], -1), save_invstd.view(x.shape[0], -1), weight, "
  .. "x.shape[0], x.shape[1], x[0, 0].numel(), num_groups, [True, True, True])", {
  defaults = { eps = 1e-5 }, grad = false, dtypes = false, -- means that are not x's own: only the forward is comparable
  { grad = t { 2, 4, 3 }, x = t { 2, 4, 3 }, num_groups = 2, save_mean = t { 4 }, save_invstd = pos { 4 }, weight = t { 4 } },
  { grad = t { 3, 6, 2, 70 }, x = t { 3, 6, 2, 70 }, num_groups = 2, save_mean = t { 6 }, save_invstd = pos { 6 }, weight = t { 6 } },
  bad = { { t { 2, 4, 3 }, t { 2, 4, 2 }, 2, t { 4 }, t { 4 }, message = "grouped_norm_backward: grad must be float32 %[2, 4, 2%] as x, got float32 %[2, 4, 3%]" },
    { t { 2, 4, 3 }, t { 2, 4, 3 }, 2, t { 2 }, t { 4 }, message = "grouped_norm_backward: expected save_mean to have shape %[4%] for x of %[2, 4, 3%], got %[2%]" } } })
op("rms_norm_rows", "x normalized_shape weight", "F.rms_norm(x, normalized_shape, weight, eps)", { defaults = { weight = none, eps = 1e-5 },
  { x = t { 3, 6 }, normalized_shape = { 6 }, weight = t { 6 } }, { x = t { 2, 3, 4 }, normalized_shape = { 3, 4 }, eps = 0.1 },
  { x = t { 2, 3, 70 }, normalized_shape = { 70 }, weight = t { 70 } }, { x = t { 0, 4 }, normalized_shape = { 4 } },
  bad = { { t { 3, 6 }, { 5 }, message = "rms_norm_rows.*%[5%].*%[3, 6%]" }, { t { 3, 6 },
    { 6 }, t { 5 }, message = "rms_norm_rows: expected weight to have shape %[6%] for normalized_shape of %[6%], got %[5%]" } } })
op("rms_norm_rows_backward", "grad x normalized_shape save_rstd weight eps",
  "(save_rstd * (grad * weight - x * save_rstd * (grad * weight * x * save_rstd).mean(-1, True)), (grad * x * save_rstd).flatten(0, -2).sum(0))", {
  defaults = { eps = 1e-5 }, grad = false, dtypes = false, -- means that are not x's own: only the forward is comparable
  { grad = t { 3, 6 }, x = t { 3, 6 }, normalized_shape = { 6 }, save_rstd = pos { 3, 1 }, weight = t { 6 } },
  { grad = t { 2, 3, 70 }, x = t { 2, 3, 70 }, normalized_shape = { 70 }, save_rstd = pos { 2, 3, 1 }, weight = t { 70 } },
  bad = { { t { 3, 6 }, t { 3, 5 }, { 5 }, t { 3, 1 }, message = "rms_norm_rows_backward: grad must be float32 %[3, 5%] as x, got float32 %[3, 6%]" },
    { t { 3, 6 }, t { 3, 6 }, { 6 }, t { 3 }, message = "rms_norm_rows_backward: expected save_rstd to have shape %[3, 1%] for x of %[3, 6%], got %[3%]" } } })
op("embedding_bag_sums", "index weight offsets each", "F.embedding_bag(index, weight, torch.arange(0, len(index), 2)[:len(offsets)], mode='mean' if means else 'sum', per_sample_weights=each)", {
  defaults = { each = none, means = false }, dtypes = false, -- offsets are integers; bags of other lengths: nn/rearranging_spec
  { index = i({ 2 }, 5), weight = t { 5, 4 }, offsets = n({ 1 }, 1, 1, true), each = t { 2 } },
  { index = i({ 2 }, 5), weight = t { 5, 83 }, offsets = n({ 1 }, 1, 1, true), means = true },
  bad = { { i({ 3 }, 5), t { 5, 4 }, n({ 1 }, 2, 3, true), message = "embedding_bag: offsets%[1%] must be 1, got 2" },
    { n({ 2 }, 9, 10, true), t { 5, 4 }, n({ 1 }, 1, 2, true), message = "embedding_bag: index 9" },
    { i({ 3 }, 5), t { 5, 4 }, n({ 1 }, 1, 2, true), t { 2 }, message = "embedding_bag_sums: expected each to have shape %[3%] for index of %[3%], got %[2%]" } } })
op("cosine_window", "n period a0 a1 a2", "a0 - a1 * torch.cos(torch.arange(n) * (2 * torch.pi / period)) + a2 * torch.cos(torch.arange(n) * (4 * torch.pi / period))", {
  defaults = { a2 = 0 }, strided = false, dtypes = false, grad = false,
  { n = 7, period = 7, a0 = 0.5, a1 = 0.5 }, { n = 600, period = 599, a0 = 0.42, a1 = 0.5, a2 = 0.08 }, { n = 0, period = 1, a0 = 1, a1 = 0 },
  bad = { { -1, 1, 1, 0, message = "cosine_window: n must be at least 0, got %-1" }, { 4, 4, 1, 0, { dtype = "int64" }, message = "cosine_window: dtype must be floating point, got int64" } } })
op("masked_values", "x mask", "torch.masked_select(x, mask)", {
  { x = t { 3, 4 }, mask = b { 3, 4 } }, { x = t { 2, 50, 9 }, mask = b { 2, 50, 9 } }, { x = t {}, mask = b {} }, { x = t { 0 }, mask = b { 0 } },
  bad = { { t { 3 }, b { 4 }, message = "masked_values: mask must be a bool tensor of shape %[3%] as x, got bool %[4%]" },
    { t { 3 }, t { 3 }, message = "masked_values: mask must be a bool tensor" } } })
op("dropout", "x p training", "F.dropout(x, p, training)", { defaults = { p = 0.5, training = true }, random = true, grad = false,
  { x = t { 30, 40 } }, { x = t { 3, 4 }, p = 0 }, { x = t { 3, 4 }, p = 1 }, { x = t { 0 } },
  bad = { { t { 2 }, 1.5, message = "dropout: p.*1.5" } } })

op("rms_norm", "x normalized_shape weight", "F.rms_norm(x, normalized_shape, weight, eps)", { defaults = { weight = none, eps = none },
  { x = t { 3, 6 }, normalized_shape = { 6 }, weight = pos { 6 }, eps = 1e-5 }, { x = t { 2, 3, 4 }, normalized_shape = { 3, 4 } }, { x = t { 0, 4 }, normalized_shape = { 4 } },
  bad = { { t { 3, 6 }, { 5 }, message = "rms_norm: normalized_shape must be the last sizes of x %[3, 6%], got %[5%]" }, { t { 3, 6 },
    { 6 }, t { 5 }, message = "rms_norm: expected weight to have shape %[6%] %(normalized_shape%), got %[5%]" } } })
op("group_norm", "x num_groups weight bias", "F.group_norm(x, num_groups, weight, bias, eps)", { defaults = { weight = none, bias = none, eps = 1e-5 },
  { x = t { 2, 4, 3 }, num_groups = 2, weight = pos { 4 }, bias = t { 4 } }, { x = t { 2, 4, 3, 2 }, num_groups = 4, eps = 0.1 }, { x = t { 3, 4 }, num_groups = 1, weight = pos { 4 } },
  bad = { { t { 2, 4, 3 }, 3, message = "group_norm: channels of x %(4%) must be divisible by num_groups %(3%)" },
    { t { 4 }, 2, message = "group_norm: expected x to have shape %[N, C, %.%.%.%], got %[4%]" },
    { t { 2, 4, 3 }, 2, t { 3 }, message = "group_norm: expected weight to have shape %[4%], one for each channel, got %[3%]" },
    { t { 2, 4 }, 2, nil, t { 3 }, message = "group_norm: expected bias to have shape %[4%], one for each channel, got %[3%]" } } })

-- ---- attention
local function qkv(more)
  local row = { query = t { 2, 2, 5, 4 }, key = t { 2, 2, 7, 4 }, value = t { 2, 2, 7, 3 } }
  for k, value in pairs(more or {}) do row[k] = value end
  return row
end
op("scaled_dot_product_attention", "query key value attn_mask dropout_p is_causal",
  "F.scaled_dot_product_attention(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)", {
  defaults = { attn_mask = none, dropout_p = 0, is_causal = false, scale = none, enable_gqa = false },
  tol = { float16 = { 3e-3, 2e-3 }, bfloat16 = { 2e-2, 5e-3 } }, -- scores are rounded, PyTorch's or those on CUDA
  half = { cpu = true }, -- tensor cores take rounded weights
  qkv(), qkv { is_causal = true }, qkv { attn_mask = b { 5, 7 } }, qkv { attn_mask = t { 2, 1, 1, 7 }, scale = 0.3 },
  qkv { query = t { 2, 4, 5, 4 }, enable_gqa = true }, { query = t { 3, 5, 4 }, key = t { 3, 7, 4 }, value = t { 3, 7, 3 }, attn_mask = b { 3, 5, 7 } },
  { query = t { 5, 4 }, key = t { 7, 4 }, value = t { 7, 3 } }, { query = t { 1, 1, 0, 4 }, key = t { 1, 1, 3, 4 }, value = t { 1, 1, 3, 4 } },
  { query = t { 1, 2, 140, 8 }, key = t { 1, 2, 300, 8 }, value = t { 1, 2, 300, 8 }, is_causal = true }, -- several blocks
  bad = { { t { 5, 4 }, t { 7, 3 }, t { 7, 3 },
    message = "scaled_dot_product_attention: expected query, key and value to have shapes %[%.%.%., L, E%], %[%.%.%., S, E%] and %[%.%.%., S, Ev%], got %[5, 4%], %[7, 3%] and %[7, 3%]" },
    { t { 2, 5, 4 }, t { 2, 7, 4 }, t { 2, 7, 4 }, b { 5, 6 }, message = "scaled_dot_product_attention: attn_mask of shape %[5, 6%] does not broadcast to %[%.%.%., 5, 7%]" },
    { t { 4, 5, 4 }, t { 2, 7, 4 }, t { 2, 7, 4 }, message = "enable_gqa = true" },
    { t { 5, 4 }, t { 7, 4 }, t { 7, 4 }, b { 5, 7 }, 0, true, message = "scaled_dot_product_attention: attn_mask must be left out with is_causal = true" },
    { t { 5, 4 }, t { 7, 4 }, t { 7, 4 }, nil, 2, message = "scaled_dot_product_attention: dropout_p must be from 0 to 1, got 2" } } })
local function paged(more) -- 7 pages of 4 positions, of 9 sequences, which have 3 pages each; 5 tokens
  local row = { query = t { 5, 4, 8 }, keys = t { 28, 2, 8 }, values = t { 28, 2, 6 }, pages = i({ 9, 3 }, 7), sequence = i({ 5 }, 9),
    position = i({ 5 }, 11), page_size = 4 }
  for k, value in pairs(more or {}) do row[k] = value end
  return row
end
op("paged_attention", "query keys values pages sequence position page_size",
  "paged_attention(query, keys, values, pages, sequence, position, page_size, scale, window, cap)", {
  defaults = { scale = none, window = 0, cap = 0, kind = "q8_0" }, grad = false,
  paged(), paged { window = 3 }, paged { query = t { 5, 2, 8 }, scale = 0.3 }, paged { query = t { 5, 6, 8 }, window = 100 },
  paged { cap = 0.7 }, paged { window = 3, cap = 50, scale = 4 },
  paged { query = t { 5, 4, 32 }, keys = q8_0(28, 2, 34), values = q8_0(28, 2, 68), scale = 1e-3 },
  paged { query = t { 5, 2, 64 }, keys = q8_0(28, 2, 68), values = q8_0(28, 2, 34), window = 5, cap = 2, scale = 1e-3 },
  paged { query = t { 0, 4, 8 }, sequence = i({ 0 }, 9), position = i({ 0 }, 11) },
  { query = t { 3, 4, 20 }, keys = t { 600, 1, 20 }, values = t { 600, 1, 20 }, pages = i({ 1, 150 }, 150), sequence = i({ 3 }, 1), -- several blocks
    position = i({ 3 }, 600), page_size = 4, window = 140 },
  bad = { { t { 2, 4, 8 }, t { 12, 2, 8 }, t { 12, 2, 8 }, i({ 1, 3 }, 3), t { 2 }, i({ 2 }, 12), 4, message = "sequence must be int64" },
    { t { 2, 4, 8 }, t { 12, 3, 8 }, t { 12, 3, 8 }, i({ 1, 3 }, 3), i({ 2 }, 1), i({ 2 }, 12), 4, message = "heads of query %(4%) must be divisible by heads of key %(3%)" },
    { t { 2, 4, 8 }, t { 12, 2, 8 }, t { 12, 2, 8 }, i({ 1, 3 }, 3), i({ 3 }, 1), i({ 2 }, 12), 4, message = "sequence" },
    { t { 2, 4, 8 }, t { 12, 2, 8 }, t { 12, 2, 8 }, i({ 1, 3 }, 3), i({ 2 }, 1), i({ 2 }, 12), 0, message = "page_size must be at least 1" },
    { t { 2, 4, 8 }, t { 12, 2, 8 }, t { 12, 2, 8 }, i({ 1, 3 }, 3), i({ 2 }, 1), i({ 2 }, 12), 4, { cap = -1 }, message = "cap must be at least 0, got %-1" },
    { t { 2, 4, 32 }, q8_0(12, 2, 33), q8_0(12, 2, 33), i({ 1, 3 }, 3), i({ 2 }, 1), i({ 2 }, 12), 4,
      message = "paged_attention: the number of bytes of a row %(33%) must be divisible by that of a q8_0 block %(34%)" },
    { t { 2, 4, 31 }, q8_0(12, 2, 34), q8_0(12, 2, 34), i({ 1, 3 }, 3), i({ 2 }, 1), i({ 2 }, 12), 4, message = "expected query to have shape %[T, H, 32%] for keys" },
    { t { 2, 4, 32 }, q8_0(12, 2, 34), t { 12, 2, 34 }, i({ 1, 3 }, 3), i({ 2 }, 1), i({ 2 }, 12), 4, message = "dtype mismatch: keys is uint8, values is float32" },
    { t { 2, 4, 8 }, i({ 12, 2, 8 }, 3), i({ 12, 2, 8 }, 3), i({ 1, 3 }, 3), i({ 2 }, 1), i({ 2 }, 12), 4, message = "keys and values must be floating point, or uint8 for blocks, got int64" },
    { t { 2, 4, 8 }, t { 12, 2, 8 }, t { 12, 2, 8 }, n({ 1, 3 }, 4, 9, true), i({ 2 }, 1), i({ 2 }, 12), 4, message = "paged_attention: .* %d at position %d is out of range for 3 entries" },
    { t { 2, 4, 8 }, t { 12, 2, 8 }, t { 12, 2, 8 }, i({ 1, 3 }, 3), i({ 2 }, 1), n({ 2 }, 13, 20, true), 4, message = "paged_attention: .* %d+ at position [12] is out of range for 12 entries" },
    { t { 2, 4, 8 }, t { 12, 2, 8 }, t { 12, 2, 8 }, i({ 1, 3 }, 3), n({ 2 }, 2, 3, true), i({ 2 }, 12), 4, message = "paged_attention: .* %d at position %d is out of range for 1 entries" },
    { t({ 2, 4, 8 }, { dtype = "float64" }), t({ 12, 2, 8 }, { dtype = "float64" }), t({ 12, 2, 8 }, { dtype = "float64" }), i({ 1, 3 }, 3), i({ 2 }, 1), i({ 2 }, 12),
      2 ^ 31, message = "paged_attention: .* %d at position %d is out of range for 0 entries" } } })
local drawn = n({ 2 }, 2 ^ 33, 2 ^ 50, true)
op("attention", "query key value attn_mask is_causal", "attention(query, key, value, attn_mask, is_causal, dropout_p, draw)", {
  defaults = { attn_mask = none, is_causal = false, dropout_p = 0, draw = none }, tol = { float16 = { 3e-3, 2e-3 }, bfloat16 = { 1.6e-2, 4e-3 } }, -- tensor cores take rounded weights
  half = { grad_to = 1, cpu = true }, -- the gradient of scores is a difference from sums of the rounded result, as in FlashAttention
  qkv(), qkv { attn_mask = b { 2, 2, 5, 7 } }, qkv { dropout_p = 0.4, draw = drawn }, qkv { attn_mask = b { 2, 2, 5, 7 }, dropout_p = 0.4, draw = drawn },
  bad = { { t { 1, 2, 5, 4 }, t { 1, 2, 7, 4 }, t { 1, 2, 7, 4 }, { dropout_p = 0.5 }, message = "attention: draw must be a tensor for dropout_p = 0%.5, got nil" },
    { t { 1, 2, 5, 4 }, t { 1, 2, 7, 4 }, t { 1, 2, 7, 4 }, { dropout_p = 1.5 }, message = "attention: dropout_p must be from 0 to 1, got 1%.5" },
    { t { 1, 2, 5, 4 }, t { 1, 2, 7, 4 }, t { 1, 2, 7, 4 }, { dropout_p = 0.5, draw = t { 2 } }, message = "attention: draw must be int64, got float32" },
    { t { 5, 4 }, t { 7, 4 }, t { 7, 4 }, message = "attention: expected query to have shape %[N, H, L, E%], got %[5, 4%]" },
    { t { 1, 2, 5, 4 }, t { 2, 2, 7, 4 }, t { 2, 2, 7, 4 },
    message = "attention: expected key to have shape %[1, G, S, 4%] for query of %[1, 2, 5, 4%], got %[2, 2, 7, 4%]" } } })
op("attention_backward", "grad query key value out log_sum",
  "attention_backward(grad, query, key, value, out, log_sum, dropout_p, draw)", {
  defaults = { dropout_p = 0, draw = none }, grad = false, dtypes = false, half = { cpu = true },
  qkv { grad = t { 2, 2, 5, 3 }, out = t { 2, 2, 5, 3 }, log_sum = pos { 2, 2, 5 } },
  qkv { grad = t { 2, 2, 5, 3 }, out = t { 2, 2, 5, 3 }, log_sum = pos { 2, 2, 5 }, dropout_p = 0.4, draw = drawn },
  bad = { { t { 1, 1, 5, 3 }, t { 1, 1, 5, 4 }, t { 1, 1, 7, 4 }, t { 1, 1, 7, 3 }, t { 1, 1, 5, 3 }, t { 1, 1, 5 }, { dropout_p = 0.5 },
      message = "attention_backward: draw must be a tensor for dropout_p = 0%.5, got nil" },
    { t { 1, 1, 5, 2 }, t { 1, 1, 5, 4 }, t { 1, 1, 7, 4 }, t { 1, 1, 7, 3 }, t { 1, 1, 5, 3 }, t { 1, 1, 5 },
    message = "attention_backward: expected grad to have shape %[1, 1, 5, 3%] for query of %[1, 1, 5, 4%], got %[1, 1, 5, 2%]" },
    { t { 1, 1, 5, 3 }, t { 1, 1, 5, 4 }, t { 1, 1, 7, 4 }, t { 1, 1, 7, 3 }, t { 1, 1, 5, 3 }, t { 1, 5 },
    message = "attention_backward: expected log_sum to have shape %[1, 1, 5%] for query of %[1, 1, 5, 4%], got %[1, 5%]" } } })
op("attention_draw", "query key", "torch.zeros(2, dtype=torch.int64)", {
  random = true, grad = false, { query = t { 2, 2, 5, 4 }, key = t { 2, 2, 7, 4 } }, { query = t { 0, 4 }, key = t { 3, 4 } },
  bad = { { t { 4 }, t { 7, 4 }, message = "attention_draw: expected query to have shape %[%.%.%., L, E%], got %[4%]" } } })
op("dropout_by_draw", "x p draw", "dropout_by_draw(x, p, draw)", {
  { x = t { 2, 3, 5, 7 }, p = 0.3, draw = drawn }, { x = t { 3, 300 }, p = 0.7, draw = drawn }, { x = t { 3, 4 }, p = 0, draw = drawn },
  { x = t { 3, 4 }, p = 1, draw = drawn }, { x = t { 0 }, p = 0.5, draw = drawn }, { x = t {}, p = 0.5, draw = drawn },
  bad = { { t { 2 }, 1.5, i({ 2 }, 5), message = "dropout_by_draw: p must be from 0 to 1, got 1%.5" },
    { t { 2 }, 0.5, t { 2 }, message = "dropout_by_draw: draw must be int64, got float32" },
    { t { 2 }, 0.5, i({ 3 }, 5), message = "dropout_by_draw: expected draw to have shape %[2%], got %[3%]" } } })
op("attention_weights", "query key attn_mask is_causal", "torch.softmax(query @ key.mT / 2, -1)", {
  dtypes = false, half = { cpu = true }, -- a GPU multiplies in half precision
  { query = t { 2, 5, 4 }, key = t { 2, 7, 4 } }, bad = { { t { 5, 4 }, t { 7, 3 }, message = "%[5, 4%].*%[3, 7%]" } } })

-- ---- recurrent
local function recurrent(gates, more)
  local row = { gates = t { 6, gates * 3 }, weight_hh = t { gates * 3, 3 }, h0 = t { 2, 3 } }
  for k, value in pairs(more or {}) do row[k] = value end
  return row
end
op("recurrent_layer", "gates weight_hh h0 c0 bias_hh weight_hr", "recurrent(gates, weight_hh, h0, c0, bias_hh, weight_hr, cell, reverse)", {
  defaults = { c0 = none, bias_hh = none, weight_hr = none, cell = "lstm", reverse = false },
  tol = { float16 = { 1e-2, 1e-2 }, bfloat16 = { 5e-2, 5e-2 } }, -- PyTorch rounds each step
  recurrent(4, { c0 = t { 2, 3 } }), recurrent(4, { c0 = t { 2, 3 }, reverse = true, bias_hh = t { 12 } }),
  recurrent(4, { h0 = t { 2, 2 }, c0 = t { 2, 3 }, weight_hh = t { 12, 2 }, weight_hr = t { 2, 3 } }),
  recurrent(3, { cell = "gru", bias_hh = t { 9 } }), recurrent(3, { cell = "gru", reverse = true, gates = t { 2, 9 } }),
  recurrent(1, { cell = "rnn_tanh" }), recurrent(1, { cell = "rnn_relu", bias_hh = t { 3 } }),
  bad = { { t { 6, 12 }, t { 12, 4 }, t { 2, 3 }, t { 2, 3 }, message = "recurrent_layer: expected weight_hh to have shape %[4 %* H, H%], got %[12, 4%]" },
    { t { 6, 11 }, t { 12, 3 }, t { 2, 3 }, t { 2, 3 }, message = "recurrent_layer: expected gates to have shape %[R, 12%] for weight_hh of %[12, 3%], got %[6, 11%]" },
    { t { 5, 12 }, t { 12, 3 }, t { 2, 3 }, t { 2, 3 }, message = "recurrent_layer: the number of rows of x %(5%) must be divisible by the batch size of h0 %(2%)" },
    { t { 6, 12 }, t { 12, 3 }, t { 2, 3 }, message = "recurrent_layer: c0 must be given for lstm and for no other cell" },
    { t { 6, 12 }, t { 12, 3 }, t { 2, 3 }, t { 2, 4 }, message = "recurrent_layer: expected c0 to have shape %[2, 3%] for h0 of %[2, 3%], got %[2, 4%]" },
    { t { 6, 12 }, t { 12, 3 }, t { 2, 3 }, t { 2, 3 }, t { 11 }, message = "recurrent_layer: expected bias_hh to have shape %[12%] for weight_hh of %[12, 3%], got %[11%]" } } })
op("recurrent_layer_backward", "weight_hh h0 y work grad_y", "(lambda d: (d, d.T @ h0, d @ weight_hh, d.new_zeros(0), d.new_zeros(0), d.new_zeros(0)))(grad_y * (1 - work * work))", {
  grad = false, dtypes = false, defaults = { cell = "rnn_tanh" },
  { weight_hh = t { 3, 3 }, h0 = t { 2, 3 }, y = t { 2, 3 }, work = t { 2, 3 }, grad_y = t { 2, 3 }, cell = "rnn_tanh" },
  bad = { { t { 12, 3 }, t { 2, 3 }, t { 2, 3 }, t { 2, 3 }, message = "recurrent_layer_backward: c0 must be given for lstm and for no other cell" },
    { t { 3, 3 }, t { 2, 3 }, t { 2, 4 }, message = "recurrent_layer_backward: .*work" } } })

-- Cases without steps, which call no library. spec/cuda/recurrent_spec.lua has the rest.
op("recurrent_weights", "weights", "torch.zeros(0)", {
  grad = false, dtypes = false, { weights = { t { 0, 3 }, t { 0, 0 } }, cell = "rnn_tanh", bias = false },
  bad = { { { t { 4, 3 }, t { 4, 4 } }, { cell = "rnn_tanh" }, message = "recurrent_weights: the number of weights must be a multiple of 4 %(layers and directions%), got 2" },
    { {}, message = "recurrent_weights: the number of weights must be a multiple of 4 %(layers and directions%), got 0" },
    { { t { 4, 3 }, t { 4, 5 } }, { cell = "rnn_tanh", bias = false }, message = "recurrent_weights: expected weights%[1%] to have shape %[5, 3%], got %[4, 3%]" },
    { { t { 4, 3 }, t { 4, 4 }, t { 4 }, t { 3 } }, { cell = "rnn_tanh" }, message = "recurrent_weights: expected weights%[4%] to have shape %[4%], got %[3%]" },
    { { t { 4, 3 }, t { 4, 4 }, t { 4, 3 }, t { 4, 4 } }, { cell = "rnn_tanh", bias = false }, message = "recurrent_weights: expected weights%[3%] to have shape %[4, 4%], got %[4, 3%]" } } })
op("recurrent_network", "x weights h0 c0", "(x.new_zeros(0, h0.shape[2]), h0, x.new_zeros(0) if c0 is None else c0)", {
  second = false, dtypes = false, defaults = { c0 = none }, grad = { "h0" },
  { x = t { 0, 3 }, weights = t { 5 }, h0 = t { 1, 2, 4 }, cell = "gru" }, { x = t { 0, 3 }, weights = t { 5 }, h0 = t { 1, 2, 4 }, c0 = t { 1, 2, 4 } },
  bad = { { t { 6, 3 }, t { 5 }, t { 2, 4 }, { cell = "gru" }, message = "recurrent_network: h0" },
    { t { 6, 3 }, t { 5 }, t { 1, 2, 4 }, message = "recurrent_network: c0 must be given for lstm and for no other cell" },
    { t { 6, 3 }, t { 5 }, t { 1, 2, 4 }, t { 1, 2, 3 }, message = "recurrent_network: c0 must be float32 %[1, 2, 4%], got float32 %[1, 2, 3%]" },
    { t { 6, 3 }, t { 5 }, t { 3, 2, 4 }, { cell = "gru", bidirectional = true }, message = "recurrent_network: expected h0 to have shape %[layers %* 2, N, H%], got %[3, 2, 4%]" },
    { t { 5, 3 }, t { 5 }, t { 1, 2, 4 }, { cell = "gru" }, message = "recurrent_network: the number of rows of x %(5%) must be divisible by the batch size of h0 %(2%)" } } })
op("recurrent_network_backward", "x weights h0 y work grad_y grad_h", "(torch.zeros_like(x), torch.zeros_like(weights), grad_h, x.new_zeros(0))", {
  grad = false, dtypes = false, defaults = { cell = "gru" },
  { x = t { 0, 3 }, weights = t { 5 }, h0 = t { 1, 2, 4 }, y = t { 0, 4 }, work = t { 0 }, grad_y = t { 0, 4 }, grad_h = t { 1, 2, 4 }, cell = "gru" },
  bad = { { t { 6, 3 }, t { 5 }, t { 1, 2, 4 }, t { 6, 3 }, t { 1 }, { cell = "gru" }, message = "recurrent_network_backward: expected y to have shape %[6, 4%], got %[6, 3%]" },
    { t { 6, 3 }, t { 5 }, t { 1, 2, 4 }, t { 6, 4 }, t { 1 }, t { 6, 4 }, t { 1, 2, 3 },
    { cell = "gru" }, message = "recurrent_network_backward: grad_h must be float32 %[1, 2, 4%], got float32 %[1, 2, 3%]" } } })

-- ---- losses
local ldefaults = { weight = none, ignore_index = -100, reduction = "mean", label_smoothing = 0, pos_weight = none }
op("nll_loss", "x target", "F.nll_loss(x, target, weight, ignore_index=base0(ignore_index), reduction=reduction)", { defaults = ldefaults,
  tol = { float16 = { 3e-3, 1e-4 } }, -- PyTorch adds up in half
  { x = t { 4, 5 }, target = i({ 4 }, 5) }, { x = t { 4, 5 }, target = i({ 4 }, 5), reduction = "sum", weight = pos { 5 } },
  { x = t { 4, 5 }, target = i({ 4 }, 5), reduction = "none" }, { x = t { 4, 5 }, target = i({ 4 }, 2), ignore_index = 2 },
  { x = t { 2, 5, 3 }, target = i({ 2, 3 }, 5), weight = pos { 5 } }, { x = t { 2, 5, 3, 2 }, target = i({ 2, 3, 2 }, 5), reduction = "none" },
  { x = t { 5 }, target = i({}, 5) }, grad = { "x" },
  bad = { { t { 4, 5 }, n({ 4 }, 0, 1), message = "label 0 .*labels start at 1" }, { t { 4, 5 }, n({ 4 }, 6, 7), message = "nll_loss: label 6 .*for 5 classes" },
    { t { 4, 5 }, i({ 3 }, 5), message = "nll_loss.*%[4, 5%].*%[3%]" } } })
op("nll_loss_backward", "grad target weight ignore_index reduction total size",
  "torch.ops.aten.nll_loss_backward(grad, torch.zeros(size, dtype=grad.dtype), target, weight, 1, -100, total)", {
  defaults = { weight = none, ignore_index = -100, reduction = "mean" },
  { grad = t {}, target = i({ 4 }, 5), total = v({ 4 }, {}), size = { 4, 5 } }, grad = { "grad" },
  bad = { { t {}, i({ 4 }, 5), { total = t {}, size = { 3, 5 } }, message = "nll_loss_backward" } } })
op("cross_entropy_rows", "x target weight ignore_index label_smoothing reduction",
  "cross_entropy_rows(x, target, weight, ignore_index, label_smoothing, reduction)", {
  defaults = { weight = none, ignore_index = -100, label_smoothing = 0, reduction = "mean" },
  { x = t { 4, 5 }, target = i({ 4 }, 5) }, { x = t { 4, 70 }, target = i({ 4 }, 70), weight = pos { 70 }, label_smoothing = 0.1 },
  { x = t { 3, 33 }, target = i({ 3 }, 33), reduction = "none" }, { x = t { 2, 1 }, target = i({ 2 }, 1), reduction = "sum" },
  { x = t { 300, 3 }, target = i({ 300 }, 3), reduction = "sum" }, { x = t { 1, 5000 }, target = i({ 1 }, 5000) },
  { x = v({ 0, 1, -inf, 2, inf, 0, -inf, -inf, -inf, 0, nan, 1 }, { 4, 3 }), target = i({ 4 }, 3), reduction = "none" },
  grad = { "x" },
  bad = { { t { 4, 5 }, n({ 4 }, 0, 1), message = "label 0 .*labels start at 1" },
    { t { 4, 5 }, i({ 3 }, 5), message = "cross_entropy_rows: expected target to have shape %[4%] for x of %[4, 5%], got %[3%]" } } })
op("cross_entropy_rows_backward", "grad x target weight stats total ignore_index label_smoothing reduction",
  "((x - stats[:, :1]).exp() / stats[:, 1:] - F.one_hot(target, 5)) * grad / total", {
  defaults = { ignore_index = -100, label_smoothing = 0, reduction = "mean" },
  grad = false, dtypes = false, -- statistics that are not x's own: only the forward is comparable
  { grad = t {}, x = t { 4, 5 }, target = i({ 4 }, 5), weight = nil, stats = pos { 4, 2 }, total = v({ 4 }, {}) },
  bad = { { t {}, t { 3, 5 }, i({ 4 }, 5), message = "cross_entropy_rows_backward" } } })
op("cross_entropy", "x target", "F.cross_entropy(x, target, weight, ignore_index=base0(ignore_index), reduction=reduction, label_smoothing=label_smoothing)", {
  defaults = ldefaults, { x = t { 4, 5 }, target = i({ 4 }, 5) }, { x = t { 4, 5 }, target = i({ 4 }, 5), weight = pos { 5 }, label_smoothing = 0.1 },
  { x = t { 4, 5 }, target = i({ 4 }, 3), ignore_index = 2, label_smoothing = 0.2 }, { x = t { 4, 5 }, target = pos { 4, 5 } },
  { x = t { 2, 5, 3 }, target = i({ 2, 3 }, 5), reduction = "none" }, { x = t { 4, 5 }, target = i({ 4 }, 5), reduction = "sum" },
  { x = t { 4, 5 }, target = pos { 4, 5 }, weight = pos { 5 }, label_smoothing = 0.1, reduction = "none" },
  { x = t { 2, 5, 1 }, target = i({ 2, 1 }, 5), reduction = "none", label_smoothing = 0.1 }, { x = t { 5 }, target = i({}, 5), reduction = "none" },
  grad = { "x" },
  bad = { { t { 4, 5 }, n({ 4 }, 0, 1), message = "label 0 .*labels start at 1" }, { t { 4, 5 }, i({ 3 }, 5), message = "%[4, 5%].*%[3%]" },
    { t { 4, 5 }, i({ 4 }, 5), { reduction = "men" }, message = "reduction.*mean" } } })
op("mse_loss", "x target", "F.mse_loss(x, target, reduction=reduction)", { defaults = ldefaults, { x = t { 3, 4 }, target = t { 3, 4 } },
  { x = t { 3, 4 }, target = t { 3, 4 }, reduction = "sum" }, { x = t { 3, 4 }, target = t { 3, 4 }, reduction = "none" },
  bad = { { t { 3, 4 }, t { 5 }, message = "mse_loss.*%[3, 4%].*%[5%]" } } })
op("bce_with_logits", "x target", "F.binary_cross_entropy_with_logits(x, target, weight, reduction=reduction, pos_weight=pos_weight)", {
  defaults = ldefaults, { x = t { 3, 4 }, target = t({ 3, 4 }, { lo = 0, hi = 1 }) },
  { x = t { 3, 4 }, target = t({ 3, 4 }, { lo = 0, hi = 1 }), weight = pos { 4 }, pos_weight = pos { 4 }, reduction = "none" },
  { x = v { -200, 200, 0 }, target = v { 1, 0, 1 }, reduction = "sum" },
  bad = { { t { 3, 4 }, t { 3 }, message = "bce_with_logits.*%[3, 4%].*%[3%]" } } })

op("binary_cross_entropy", "x target", "F.binary_cross_entropy(x, target, weight, reduction=reduction)", {
  defaults = ldefaults, { x = t({ 3, 4 }, { lo = 0.1, hi = 0.9 }), target = t({ 3, 4 }, { lo = 0, hi = 1 }) },
  { x = t({ 3, 4 }, { lo = 0.1, hi = 0.9 }), target = t({ 3, 4 }, { lo = 0, hi = 1 }), weight = pos { 4 }, reduction = "none" },
  { x = v { 0, 1, 0.5 }, target = v { 1, 0, 1 }, reduction = "sum" },
  bad = { { t { 3, 4 }, t { 3 }, message = "binary_cross_entropy.*%[3, 4%].*%[3%]" } } })

op("huber", "x target", "F.huber_loss(x, target, reduction='none', delta=delta)", { defaults = { delta = 1 },
  { x = sep { 3, 4 }, target = v { 0.2, 0.1, -0.3, 0.4 } }, { x = t { 3, 1 }, target = t { 4 }, delta = 0.5 }, { x = t { 0, 3 }, target = t { 3 } },
  { x = special, target = special2 }, bad = { { t { 3, 4 }, t { 5 }, message = "huber.*%[3, 4%].*%[5%]" } } })
op("relative_entropy", "x target", "F.kl_div(x, target, reduction='none')", { { x = t { 3, 4 }, target = pos { 3, 4 } },
  { x = t { 3, 1 }, target = pos { 4 } }, { x = t { 3 }, target = v { 0, 1, 0.5 } },
  bad = { { t { 3, 4 }, t { 5 }, message = "relative_entropy.*%[3, 4%].*%[5%]" } } })
-- Adds a loss of x and target: each reduction, an empty one, and sizes that do not fit.
local function pair_loss(name, extra, o)
  local x, target = o.x or t { 3, 4 }, o.target or t { 3, 4 }
  local row = { { x = x, target = target }, { x = x, target = target, reduction = "sum" }, { x = x, target = target, reduction = "none" },
    { x = t { 0, 4 }, target = t { 0, 4 }, reduction = "sum" } }
  for _, case in ipairs(o) do row[#row + 1] = case end
  row.defaults, row.lacks, row.grad, row.tol, row.dtypes = o.defaults or {}, o.lacks, o.grad, o.tol, o.dtypes
  row.defaults.reduction = "mean"
  row.bad = { { t { 3, 4 }, t { 5 }, message = name .. ".*%[5%]" },
    { t { 2 }, t { 2 }, { reduction = "men" }, message = name .. ": reduction.*mean" } }
  for _, bad in ipairs(o.bad or {}) do row.bad[#row.bad + 1] = bad end
  op(name, "x target", ("F.%s(x, target, reduction=reduction%s)"):format(name, extra), row)
end
local signs = v({ 1, -1, -1, 1, 1, 1, -1, -1, 1, -1, 1, -1 }, { 3, 4 })
pair_loss("l1_loss", "", {})
pair_loss("huber_loss", ", delta=delta", { defaults = { delta = 1 }, { x = t { 3, 4 }, target = t { 3, 4 }, delta = 0.3 },
  bad = { { t { 2 }, t { 2 }, { delta = 0 }, message = "huber_loss: delta must be above 0, got 0" } } })
pair_loss("smooth_l1_loss", ", beta=beta", { defaults = { beta = 1 }, { x = t { 3, 4 }, target = t { 3, 4 }, beta = 0.3 },
  { x = t { 3, 4 }, target = t { 3, 4 }, beta = 0 },
  bad = { { t { 2 }, t { 2 }, { beta = -1 }, message = "smooth_l1_loss: beta must be at least 0, got %-1" } } })
pair_loss("kl_div", ", log_target=log_target", { target = pos { 3, 4 }, defaults = { log_target = false },
  { x = t { 3, 4 }, target = pos { 3, 4 }, reduction = "batchmean" }, { x = t { 3, 4 }, target = t { 3, 4 }, log_target = true },
  bad = { { t { 2 }, t { 2 }, { reduction = "batch" }, message = "batchmean" } } })
pair_loss("poisson_nll_loss", ", log_input=log_input, full=full, eps=eps", { x = pos { 3, 4 }, target = pos { 3, 4 },
  defaults = { log_input = true, full = false, eps = 1e-8 }, { x = pos { 3, 4 }, target = n({ 3, 4 }, 0, 5), log_input = false, full = true } })
pair_loss("soft_margin_loss", "", { target = signs })
pair_loss("hinge_embedding_loss", ", margin=margin", { target = signs, defaults = { margin = 1 }, grad = { "x" },
  { x = t { 3, 4 }, target = signs, margin = 0.5 } })
pair_loss("multilabel_soft_margin_loss", ", weight=weight", { target = t({ 3, 4 }, { lo = 0, hi = 1 }), defaults = { weight = none },
  { x = t { 3, 4 }, target = t({ 3, 4 }, { lo = 0, hi = 1 }), weight = pos { 4 }, reduction = "none" },
  bad = { { t {}, t {}, message = "multilabel_soft_margin_loss: expected x to have shape %[N, C%] or %[C%], got %[%]" } } })
op("gaussian_nll_loss", "x target var", "F.gaussian_nll_loss(x, target, var, full=full, eps=eps, reduction=reduction)", {
  defaults = { full = false, eps = 1e-6, reduction = "mean" }, { x = t { 3, 4 }, target = t { 3, 4 }, var = pos { 3, 4 } },
  { x = t { 3, 4 }, target = t { 3, 4 }, var = pos { 3 }, full = true, reduction = "sum" }, { x = t { 3, 4 }, target = t { 3, 4 }, var = pos { 3, 1 }, eps = 0.1, reduction = "none" },
  bad = { { t { 3 }, t { 3 }, pos { 2, 3 }, message = "gaussian_nll_loss: expected var to have x's shape %[3%] or one number for each row, got %[2, 3%]" },
    { t { 3 }, t { 3 }, pos { 3 }, { eps = 0 }, message = "gaussian_nll_loss: eps must be above 0, got 0" } } })
op("margin_ranking_loss", "x1 x2 target", "F.margin_ranking_loss(x1, x2, target, margin=margin, reduction=reduction)", {
  defaults = { margin = 0, reduction = "mean" }, { x1 = t { 3, 4 }, x2 = t { 3, 4 }, target = signs }, { x1 = t { 3, 4 }, x2 = t { 3, 4 }, target = signs, margin = 0.7, reduction = "none" },
  { x1 = t { 0 }, x2 = t { 0 }, target = t { 0 }, reduction = "sum" }, grad = { "x1", "x2" },
  bad = { { t { 3 }, t { 3 }, t { 2, 3 }, message = "margin_ranking_loss: x1, x2 and target must have the same number of dims, got %[3%], %[3%] and %[2, 3%]" } } })
op("cosine_similarity", "x1 x2", "F.cosine_similarity(x1, x2, dim, eps)", { defaults = { dim = 2, eps = 1e-8 },
  tol = { float16 = { 3e-3, 1e-3 }, bfloat16 = { 3e-2, 1e-2 } }, -- PyTorch divides before it multiplies
  { x1 = t { 3, 4 }, x2 = t { 3, 4 } },
  { x1 = t { 2, 3, 4 }, x2 = t { 4 }, dim = -1 }, { x1 = t { 3, 4 }, x2 = t { 1, 4 }, dim = 1 }, { x1 = t { 0, 3 }, x2 = t { 0, 3 } },
  bad = { { t { 3, 4 }, t { 5 }, message = "cosine_similarity.*%[3, 4%].*%[5%]" },
    { n({ 2, 2 }, 1, 3, true), n({ 2, 2 }, 1, 3, true), message = "cosine_similarity: x1 must be floating point, got int64" } } })
op("cosine_embedding_loss", "x1 x2 target", "F.cosine_embedding_loss(x1, x2, target, margin=margin, reduction=reduction)", {
  defaults = { margin = 0, reduction = "mean" }, { x1 = t { 3, 4 }, x2 = t { 3, 4 }, target = v { 1, -1, 1 } },
  { x1 = t { 3, 4 }, x2 = t { 3, 4 }, target = v { -1, -1, 1 }, margin = 0.2, reduction = "none" }, { x1 = t { 4 }, x2 = t { 4 }, target = v({ 1 }, {}), reduction = "sum" },
  grad = { "x1", "x2" }, differs = { uint8 = "PyTorch takes 255 for -1" },
  bad = { { t { 3, 4 }, t { 3, 4 }, t { 3, 4 }, message = "cosine_embedding_loss: expected target to have shape %[N%], or %[%] for vectors, got %[3, 4%]" },
    { t { 4 }, t { 4 }, t { 1 }, message = "cosine_embedding_loss: expected x1, x2 and target to have shapes %[N, D%], %[N, D%] and %[N%], or %[D%], %[D%] and %[%], got %[4%], %[4%] and %[1%]" } } })
op("pairwise_distance", "x1 x2", "F.pairwise_distance(x1, x2, p, eps, keepdim)", { defaults = { p = 2, eps = 1e-6, keepdim = false }, { x1 = t { 3, 4 }, x2 = t { 3, 4 } },
  { x1 = t { 3, 4 }, x2 = t { 4 }, p = 1, keepdim = true }, { x1 = t { 4 }, x2 = t { 4 }, p = inf }, { x1 = t { 0, 3 }, x2 = t { 0, 3 } },
  bad = { { t { 3, 4 }, t { 5 }, message = "pairwise_distance.*%[3, 4%].*%[5%]" } } })
op("triplet_margin_loss", "anchor positive negative", "F.triplet_margin_loss(anchor, positive, negative, margin=margin, p=p, eps=eps, swap=swap, reduction=reduction)", {
  tol = rounded_between, defaults = { margin = 1, p = 2, eps = 1e-6, swap = false, reduction = "mean" }, { anchor = t { 3, 4 }, positive = t { 3, 4 }, negative = t { 3, 4 } },
  { anchor = t { 3, 4 }, positive = t { 3, 4 }, negative = t { 3, 4 }, margin = 2, p = 1, swap = true, reduction = "none" },
  { anchor = t { 4 }, positive = t { 4 }, negative = t { 4 }, reduction = "sum" },
  bad = { { t { 3, 4 }, t { 4 }, t { 3, 4 }, message = "triplet_margin_loss: anchor, positive and negative must have the same number of dims, got %[3, 4%], %[4%] and %[3, 4%]" },
    { t { 4 }, t { 4 }, t { 4 }, { margin = 0 }, message = "triplet_margin_loss: margin must be above 0, got 0" } } })
op("multi_margin_loss", "x target", "F.multi_margin_loss(x, target, p=p, margin=margin, weight=weight, reduction=reduction)", {
  defaults = { p = 1, margin = 1, weight = none, reduction = "mean" }, { x = t { 4, 5 }, target = i({ 4 }, 5) },
  { x = t { 4, 5 }, target = i({ 4 }, 5), p = 2, margin = 0.6, weight = pos { 5 }, reduction = "none" },
  { x = t { 5 }, target = i({}, 5), reduction = "none" }, { x = t { 4, 5 }, target = i({ 4 }, 5), reduction = "sum" }, grad = { "x" },
  bad = { { t { 4, 5 }, n({ 4 }, 6, 7, true), message = "index 6 .*out of range for 5" },
    { t { 4, 5 }, i({ 3 }, 5), message = "multi_margin_loss: target must have one class for each row of x %[4, 5%], got %[3%]" },
    { t { 4, 5 }, i({ 4 }, 5), { p = 3 }, message = "multi_margin_loss: p must be 1 or 2, got 3" }, { t { 4, 5 }, i({ 4 }, 5), { weight = pos { 4 } },
  message = "multi_margin_loss: expected weight to have shape %[5%], one for each class, got %[4%]" } } })

-- ---- products and distances
local vectors = { { t { 4 }, t { 5 }, message = "dot: x and other must be 1%-d of equal size, got %[4%] and %[5%]" },
    { t { 2, 2 }, t { 4 }, message = "dot: x and other must be 1%-d of equal size, got %[2, 2%] and %[4%]" } }
op("mv", "x vec", "torch.mv(x, vec)", { { x = t { 3, 4 }, vec = t { 4 } }, { x = t { 0, 4 }, vec = t { 4 } }, { x = t { 3, 0 }, vec = t { 0 } },
  bad = { { t { 3, 4 }, t { 3 }, message = "mv: expected x and vec to have shapes %[n, m%] and %[m%], got %[3, 4%] and %[3%]" },
    { t { 4 }, t { 4 }, message = "mv: expected x and vec to have shapes %[n, m%] and %[m%], got %[4%] and %[4%]" } } })
op("dot", "x other", "torch.dot(x, other)", { { x = t { 7 }, other = t { 7 } }, { x = t { 130 }, other = t { 130 } }, { x = t { 0 }, other = t { 0 } }, bad = vectors })
op("vdot", "x other", "torch.vdot(x, other)", { { x = t { 7 }, other = t { 7 } }, bad = vectors })
op("outer", "x other", "torch.outer(x, other)", { { x = t { 3 }, other = t { 4 } }, { x = t { 0 }, other = t { 4 } },
  bad = { { t { 3, 4 }, t { 3 }, message = "outer: x and other must be 1%-d, got %[3, 4%] and %[3%]" } } })
local scales = { beta = 1, alpha = 1 }
op("addmv", "input x vec", "torch.addmv(input, x, vec, beta=beta, alpha=alpha)", { defaults = scales, { input = t { 3 }, x = t { 3, 4 }, vec = t { 4 } },
  { input = t { 1 }, x = t { 3, 4 }, vec = t { 4 }, beta = 2, alpha = 3 }, { input = v { nan, nan, nan }, x = t { 3, 4 }, vec = t { 4 }, beta = 0 },
  bad = { { t { 3 }, t { 3, 4 }, t { 3 }, message = "addmv: .*%[3, 4%]" } } })
op("addr", "input x other", "torch.addr(input, x, other, beta=beta, alpha=alpha)", { defaults = scales, { input = t { 3, 4 }, x = t { 3 }, other = t { 4 } },
  { input = t { 4 }, x = t { 3 }, other = t { 4 }, beta = 2, alpha = 3 }, bad = { { t { 3 }, t { 3, 4 }, t { 3 }, message = "addr: x and other must be 1%-d, got %[3, 4%] and %[3%]" },
    { n({ 4 }, 1, 3), n({ 3 }, 1, 3), n({ 4 }, 1, 3), { beta = 0.5 }, message = "addr: beta must be an integer for integer tensors, got 0.5" },
    { n({ 4 }, 1, 3), n({ 3 }, 1, 3), n({ 4 }, 1, 3), { alpha = 1.5 }, message = "addr: alpha must be an integer for integer tensors, got 1.5" } } })
op("baddbmm", "input x other", "torch.baddbmm(input, x, other, beta=beta, alpha=alpha)", { defaults = scales, tol = rounded_between,
  { input = t { 2, 3, 5 }, x = t { 2, 3, 4 }, other = t { 2, 4, 5 } },
  { input = t { 5 }, x = t { 2, 3, 4 }, other = t { 2, 4, 5 }, beta = 2, alpha = 3 }, bad = { { t { 3 }, t { 3, 4 }, t { 3 },
    message = "baddbmm: expected x and other to have shapes %[b, n, k%] and %[b, k, m%], got %[3, 4%] and %[3%]" } } })
op("addbmm", "input x other", "torch.addbmm(input, x, other, beta=beta, alpha=alpha)", { defaults = scales, tol = rounded_between,
  { input = t { 3, 5 }, x = t { 2, 3, 4 }, other = t { 2, 4, 5 } },
  { input = t { 5 }, x = t { 2, 3, 4 }, other = t { 2, 4, 5 }, beta = 2, alpha = 3 }, bad = { { t { 3 }, t { 2, 3, 4 }, t { 2, 3, 5 },
    message = "addbmm: expected x and other to have shapes %[b, n, k%] and %[b, k, m%], got %[2, 3, 4%] and %[2, 3, 5%]" } } })
op("trace", "x", "torch.trace(x)", { { x = t { 3, 3 } }, { x = t { 2, 4 } }, { x = t { 4, 2 } },
    { x = t { 0, 3 } }, bad = { { t { 3 }, message = "trace: expected x to have shape %[m, n%], got %[3%]" } } })
op("cross", "x other dim", "torch.linalg.cross(x, other, dim=dim)", { defaults = { dim = -1 }, tol = rounded_between,
  { x = t { 4, 3 }, other = t { 4, 3 } }, { x = t { 3, 4 }, other = t { 3, 1 }, dim = 1 },
  { x = t { 0, 3 }, other = t { 0, 3 } },
  bad = { { t { 3 }, t { 2, 3 }, message = "cross: x and other must have the same number of dims, got %[3%] and %[2, 3%]" },
    { t { 4, 2 }, t { 4, 2 }, message = "cross: x and other must have size 3 in dim, got %[4, 2%] and %[4, 2%]" },
  { t { 4 }, t { 4 }, message = "cross: x and other must have size 3 in dim, got %[4%] and %[4%]" } } })

-- ---- linear algebra. Signs of eigenvectors and singular vectors are LAPACK's choice: spec/op/linalg_spec.lua has
-- their values, and gradients of what needs more than random matrices.
local loose = { float32 = { 1e-3, 1e-3 }, float64 = { 1e-8, 1e-8 } } -- inverses of what is near to singular
local spd = { 4, 1, -1, 1, 5, 2, -1, 2, 6 }
local function triangle_of(values) return v(values or { 2, 0, 0, 1, 3, 0, -1, 0.5, 1.5 }, { 3, 3 }) end
local function square_of(name, arg)
  return { { t { 2, 3 }, message = name .. ": expected " .. arg .. " to have shape %[%*, n, n%], got %[2, 3%]" },
    { t { 3 }, message = name .. ": expected " .. arg .. " to have shape %[%*, m, n%], got %[3%]" },
    { n({ 2, 2 }, 0, 3, true), message = name .. ": " .. arg .. " must be float32 or float64, got int64" } }
end
for name, py in pairs { inverse = "torch.inverse(x)", det = "torch.det(x)", slogdet = "tuple(torch.slogdet(x))", logdet = "torch.logdet(x)" } do
  op(name, "x", py, { tol = loose, { x = t { 3, 3 } }, { x = t { 2, 2, 2 } }, { x = t { 0, 3, 3 } }, { x = t { 0, 0 } }, bad = square_of(name == "logdet" and "det" or name, "x") })
end
rows.logdet.bad = square_of("logdet", "x")
op("cholesky", "x upper", "torch.linalg.cholesky(x, upper=upper)", { defaults = { upper = false }, grad = false, { x = v(spd, { 3, 3 }) }, { x = v(spd, { 3, 3 }), upper = true },
  { x = t { 0, 0 } }, bad = { { v({ 1, 2, 2, 1 }, { 2, 2 }), message = "cholesky: x is not positive definite: its leading minor of order 2" }, unpack(square_of("cholesky", "x")) } })
op("linalg_solve", "A B", "torch.linalg.solve(A, B, left=left)", { defaults = { left = true }, tol = loose, { A = t { 3, 3 }, B = t { 3, 2 } }, { A = t { 2, 2, 2 }, B = t { 2, 1 } },
  { A = t { 2, 2 }, B = t { 2, 1, 2 }, left = false }, { A = t { 0, 0 }, B = t { 0, 2 } },
  bad = { { t { 2, 2 }, t { 3, 1 }, message = "linalg_solve: expected B to have shape %[%*, 2, k%] for A of %[2, 2%], got %[3, 1%]" }, { v({ 1, 2, 2, 4 },
    { 2, 2 }), t { 2, 1 }, message = "A is singular: entry 2" } } })
op("linalg_solve_triangular", "A B", "torch.linalg.solve_triangular(A, B, upper=upper, left=left, unitriangular=unitriangular)",
  { defaults = { upper = false, left = true, unitriangular = false }, tol = loose, { A = pos { 3, 3 }, B = t { 3, 2 } }, { A = pos { 2, 2, 2 }, B = t { 2, 1 }, upper = true },
  { A = pos { 2, 2 }, B = t { 2, 1, 2 }, left = false }, { A = t { 3, 3 }, B = t { 2, 3 }, left = false, upper = true, unitriangular = true },
  bad = { { t { 2, 2 }, t { 3, 1 }, message = "linalg_solve_triangular: expected B to have shape %[%*, 2, k%] for A of %[2, 2%], got %[3, 1%]" } } })
op("linalg_lu_factor", "A", "tuple(torch.linalg.lu_factor(A))", { tol = loose, { A = t { 3, 3 } }, { A = t { 2, 2, 3 } }, { A = t { 3, 2 } }, { A = t { 0, 3 } },
  bad = { { v({ 1, 2, 2, 4 }, { 2, 2 }), message = "linalg_lu_factor: A is singular: entry 2" }, { t { 3 }, message = "linalg_lu_factor: expected A to have shape %[%*, m, n%], got %[3%]" } } })
op("linalg_lu_solve", "LU pivots B", "torch.linalg.lu_solve(LU, (pivots + 1).int(), B, left=left, adjoint=adjoint)", { defaults = { left = true, adjoint = false }, tol = loose,
  { LU = pos { 3, 3 }, pivots = i({ 3 }, 3), B = t { 3, 2 } }, { LU = pos { 2, 2, 2 }, pivots = i({ 2, 2 }, 2), B = t { 1, 2 }, left = false },
  { LU = pos { 2, 2 }, pivots = i({ 2 }, 2), B = t { 2, 1 }, adjoint = true },
  bad = { { t { 2, 2 }, i({ 3 }, 2), t { 2, 1 }, message = "linalg_lu_solve: pivots must be integers, one for each diagonal entry of %[2, 2%], got int64 %[3%]" },
    { t { 1, 1 }, n({ 1 }, 7, 8, true), t { 1, 1 }, message = "pivots%[1%] must be from 1 to 1, got 7" } } })
op("lu_pivots_to_matrix", "pivots like", "torch.lu_unpack(like, (pivots + 1).int())[0]", { grad = false, dtypes = false, { pivots = i({ 3 }, 3), like = t { 3, 3 } },
  { pivots = i({ 2, 2 }, 3), like = t { 2, 3, 2 } },
  bad = { { i({ 3 }, 3), t { 2, 2 }, message = "lu_pivots_to_matrix: pivots must be integers, one for each diagonal entry of %[2, 2%], got int64 %[3%]" } } })
op("lu_unpack", "LU_data LU_pivots", "tuple(torch.lu_unpack(LU_data, (LU_pivots + 1).int()))", { dtypes = false, { LU_data = t { 3, 3 }, LU_pivots = i({ 3 }, 3) },
  { LU_data = t { 2, 3 }, LU_pivots = i({ 2 }, 2) },
  { LU_data = t { 3, 2 }, LU_pivots = i({ 2 }, 3) }, bad = { { t { 3 }, i({ 3 }, 3), message = "lu_unpack: expected LU_data to have shape %[%*, m, n%], got %[3%]" },
  { t { 3, 3 }, i({ 1, 3 }, 3), message = "lu_unpack: LU_pivots must have one dim less than LU_data, got %[1, 3%] and %[3, 3%]" } } })
op("linalg_qr", "A mode", "tuple(torch.linalg.qr(A, mode))", { defaults = { mode = "reduced" }, tol = loose, { A = t { 3, 3 } }, { A = t { 2, 3, 2 } }, { A = t { 2, 3 } }, { A = t { 0, 3 } },
  bad = { { t { 3 }, message = "linalg_qr: expected A to have shape %[%*, m, n%], got %[3%]" }, { t { 2, 2 }, "full", message = "linalg_qr: mode" } } })
op("orgqr", "x tau", "torch.orgqr(x, tau)", { tol = loose, grad = false, { x = t { 4, 3 }, tau = t { 3 } }, { x = t { 2, 3, 2 }, tau = t { 2, 1 } },
  { x = t { 3, 3 }, tau = t { 0 } }, { x = t { 0, 3, 2 }, tau = t { 0, 2 } }, bad = {
    { t { 2, 3 }, t { 2 }, message = "orgqr: expected x to have shape %[%*, m, n%] with m at least n, got %[2, 3%]" },
    { t { 3, 2 }, t { 3 }, message = "orgqr: expected tau to have shape %[%*, k%] with k at most 2, a reflector for each column of x, got %[3%]" },
    { n({ 2, 2 }, 0, 3, true), t { 2 }, message = "orgqr: x must be float32 or float64, got int64" } } })
op("linalg_eigh", "A UPLO", "tuple(torch.linalg.eigh(A, UPLO))", { random = true, defaults = { UPLO = "L" }, grad = false, { A = t { 3, 3 } }, { A = t { 2, 2, 2 }, UPLO = "U" },
  { A = t { 0, 0 } }, bad = square_of("linalg_eigh", "A") })
op("linalg_eigvalsh", "A UPLO", "torch.linalg.eigvalsh(A, UPLO)", { defaults = { UPLO = "L" }, grad = false, tol = loose, { A = t { 3, 3 } }, { A = t { 2, 2, 2 }, UPLO = "U" },
  { A = t { 0, 0 } }, bad = square_of("linalg_eigvalsh", "A") })
op("linalg_svd", "A full_matrices", "tuple(torch.linalg.svd(A, full_matrices))", { random = true, defaults = { full_matrices = true }, grad = false, { A = t { 3, 3 } },
  { A = t { 2, 3, 2 } }, { A = t { 2, 3 }, full_matrices = false },
  { A = t { 0, 2 } }, bad = { { t { 3 }, message = "linalg_svd: expected A to have shape %[%*, m, n%], got %[3%]" }, { v({ 1, nan, 2, 4 },
    { 2, 2 }), message = "linalg_svd: A must be finite, got infinite or NaN entries" } } })
op("linalg_svdvals", "A", "torch.linalg.svdvals(A)", { tol = loose, { A = t { 3, 3 } }, { A = t { 2, 3, 2 } }, { A = t { 2, 3 } }, { A = t { 0, 2 } }, bad = { { t { 3 },
  message = "linalg_svdvals: expected A to have shape %[%*, m, n%], got %[3%]" } } })
op("linalg_pinv", "A", "torch.linalg.pinv(A, atol=atol, rtol=rtol, hermitian=hermitian)",
  { defaults = { atol = { py = "None" }, rtol = { py = "None" }, hermitian = false }, tol = loose, grad = { "A" },
  { A = t { 3, 3 } }, { A = t { 2, 3, 2 } }, { A = t { 2, 3 } }, { A = t { 0, 2 } }, { A = v({ 1, 2, 2, 4 }, { 2, 2 }), rtol = 0.01 }, { A = v({ 1, 0, 0, 0.1 }, { 2, 2 }), atol = 0.2 },
  { A = v(spd, { 3, 3 }), hermitian = true },
  bad = { { t { 3 }, message = "linalg_pinv: expected A to have shape %[%*, m, n%], got %[3%]" } } })
op("linalg_lstsq", "A B", "tuple(torch.linalg.lstsq(A, B, rcond=None if rcond != rcond else rcond, driver=driver))", { defaults = { rcond = nan, driver = "gelsy" }, tol = loose,
  { A = t { 3, 2 }, B = t { 3, 1 } },
  { A = t { 2, 2, 3 }, B = t { 2, 2, 1 } }, { A = t { 3, 2 }, B = t { 3, 2 }, driver = "gels" }, { A = t { 4, 2 }, B = t { 4, 1 }, driver = "gelsd" },
  { A = t { 3, 3 }, B = t { 3, 1 }, driver = "gelss" },
  bad = { { t { 3, 2 }, t { 2, 1 }, message = "linalg_lstsq: expected B to have shape %[%*, 3, k%] for A of %[3, 2%], got %[2, 1%]" }, { t { 2, 2 }, t { 2, 1 },
    { driver = "gelx" }, message = "linalg_lstsq: driver" } } })
op("cholesky_solve", "B L upper", "torch.cholesky_solve(B, L, upper)", { defaults = { upper = false }, tol = loose, { B = t { 3, 2 }, L = triangle_of() },
  { B = t { 2, 3, 1 }, L = triangle_of { 2, 1, -1, 0, 3, 0.5, 0, 0, 1.5 }, upper = true },
  bad = { { t { 3 }, t { 3, 3 }, message = "linalg_solve_triangular: expected B to have shape %[%*, m, n%], got %[3%]" },
    { t { 2, 1 }, t { 3, 3 }, message = "linalg_solve_triangular: expected B to have shape %[%*, 3, k%] for A of %[3, 3%], got %[2, 1%]" } } })
op("cholesky_inverse", "L upper", "torch.cholesky_inverse(L, upper)", { defaults = { upper = false }, tol = loose, grad = false, { L = triangle_of() },
  { L = triangle_of { 2, 1, -1, 0, 3, 0.5, 0, 0, 1.5 }, upper = true },
  bad = { { t { 3, 2 }, message = "cholesky_inverse: expected L to have shape %[%*, n, n%], got %[3, 2%]" } } })
op("triangular_solve", "b A", "tuple(torch.triangular_solve(b, A, upper, transpose, unitriangular))", { defaults = { upper = true, transpose = false, unitriangular = false }, tol = loose,
  { b = t { 3, 2 }, A = pos { 3, 3 } },
  { b = t { 3, 1 }, A = pos { 3, 3 }, upper = false, transpose = true }, bad = { { t { 2, 1 }, t { 3, 3 },
    message = "triangular_solve: expected B to have shape %[%*, 3, k%] for A of %[3, 3%], got %[2, 1%]" } } })

op("row_distances", "x1 x2 p by_products", "torch.cdist(x1, x2, p)", { defaults = { p = 2, by_products = false }, tol = loose, { x1 = t { 3, 4 }, x2 = t { 2, 4 }, p = 1 },
  { x1 = t { 2, 2, 3 }, x2 = t { 3, 3 } }, { x1 = t { 3, 4 }, x2 = t { 2, 4 }, by_products = true }, { x1 = t { 2, 3 }, x2 = t { 2, 3 }, p = 3 }, { x1 = t { 2, 3 }, x2 = t { 70, 3 }, p = 1.5 },
  { x1 = t { 2, 3 }, x2 = t { 2, 3 }, p = math.huge }, { x1 = t { 2, 0 }, x2 = t { 3, 0 } }, { x1 = t { 0, 2 }, x2 = t { 3, 2 } },
  bad = { { t { 3 }, t { 2, 3 }, message = "row_distances: expected x1 to have shape %[%*, m, n%], got %[3%]" },
    { t { 2, 2 }, t { 2, 3 }, message = "row_distances: expected x2 to have shape %[%*, r, 2%] for x1 of %[2, 2%], got %[2, 3%]" } } })
op("row_distances_backward", "grad x1 x2", "(grad.unsqueeze(-1) * (x1.unsqueeze(-2) - x2.unsqueeze(-3)).sign()).sum(-2)", { tol = loose,
  { grad = t { 3, 2 }, x1 = t { 3, 4 }, x2 = t { 2, 4 } }, { grad = t { 2, 2, 3 }, x1 = t { 2, 2, 70 }, x2 = t { 3, 70 } },
  dtypes = false, bad = { { t { 2, 2 }, t { 2, 3 }, t { 3, 3 },
    message = "row_distances_backward: expected x2 to have shape %[%*, 2, 3%] for grad of %[2, 2%], got %[3, 3%]" },
  { t { 2 }, t { 2, 3 }, t { 3, 3 }, message = "row_distances_backward: expected grad to have shape %[%*, m, n%], got %[2%]" } } })
op("pair_distances", "x p", "F.pdist(x, p)", { defaults = { p = 2 }, tol = loose, { x = t { 4, 3 } }, { x = t { 70, 3 }, p = 1 }, { x = t { 4, 3 }, p = 3 }, { x = t { 4, 2 }, p = math.huge },
  { x = t { 3, 2 }, p = 1.5 }, { x = t { 3, 0 } }, { x = t { 1, 2 } }, { x = t { 0, 2 } },
  bad = { { t { 3 }, message = "pair_distances: expected x to have shape %[%*, m, n%], got %[3%]" },
    { t { 2, 2, 3 }, message = "pair_distances: expected x to have shape %[n, m%], got %[2, 2, 3%]" } } })
op("pairs_to_matrix", "x n", "torch.zeros(n, n, dtype=x.dtype).index_put(tuple(torch.triu_indices(n, n, 1)), x) + torch.zeros(n, n, dtype=x.dtype).index_put(tuple(torch.triu_indices(n, n, 1)), x).T",
  { dtypes = false, { x = t { 6 }, n = 4 }, { x = t { 190 }, n = 20 }, { x = t { 0 }, n = 1 }, { x = t { 0 }, n = 0 },
  bad = { { t { 4 }, 4, message = "pairs_to_matrix: expected x to have shape %[6%] for n = 4, got %[4%]" }, { t { 1, 1 }, 2,
    message = "pairs_to_matrix: expected x to have shape %[1%] for n = 2, got %[1, 1%]" }, { t { 1 }, -1,
    message = "pairs_to_matrix: n must be from 0 to 32768, got %-1" } } })
op("matrix_to_pairs", "x", "x[tuple(torch.triu_indices(*x.shape, 1))]", { dtypes = false, { x = t { 4, 4 } }, { x = t { 1, 1 } }, { x = t { 0, 0 } },
  bad = { { t { 2, 3 }, message = "matrix_to_pairs: expected x to have shape %[n, n%], got %[2, 3%]" },
    { t { 2, 2, 2 }, message = "matrix_to_pairs: expected x to have shape %[n, n%], got %[2, 2, 2%]" } } })

-- ---- Fourier transforms
local C = "torch.view_as_complex(x.contiguous())"
op("fft_c2c", "x inverse scale dim", "torch.view_as_real((torch.fft.ifft(" .. C .. ", dim=dim, norm='forward') if inverse else torch.fft.fft(" .. C .. ", dim=dim)) * scale)",
  { defaults = { inverse = false, scale = 1, dim = { py = "-1" } }, { x = t { 6, 2 } }, { x = t { 4, 3, 2 }, dim = 1 },
  { x = t { 2, 5, 2 }, inverse = true, scale = 0.2 }, { x = t { 1, 2 } }, { x = t { 2, 34, 2 } }, { x = t { 0, 3, 2 } },
  bad = { { t { 6 }, message = "fft_c2c: expected x to have shape %[%.%.%., n, 2%], real and imaginary parts, got %[6%]" }, { t { 6, 3 },
    message = "fft_c2c: expected x to have shape %[%.%.%., n, 2%], real and imaginary parts, got %[6, 3%]" }, { t { 0, 2 }, message = "fft_c2c: dim 1 of x must be non%-empty, got %[0, 2%]" },
  { n({ 2, 2 }, 0, 3, true), message = "float32 or float64, got int64" } } })
local function by_inner(size) -- 1 for the entries that stand for themselves alone
  return ("torch.where((torch.arange(N // 2 + 1) % N == 0) | (2 * torch.arange(N // 2 + 1) == N), 1.0, inner)"):gsub("N", size)
end
op("fft_r2c", "x scale inner", "torch.view_as_real(torch.fft.rfft(x) * scale) * " .. by_inner "x.shape[-1]" .. "[:, None]",
  { dtypes = false, defaults = { scale = 1, inner = 1 }, { x = t { 8 } }, { x = t { 2, 5 }, scale = 0.5 }, { x = t { 1 } },
  { x = t { 2, 38 } }, { x = t { 9, 12 }, inner = 0.5 }, { x = t { 2, 7 }, inner = 2 }, { x = t { 38 }, inner = 3 }, { x = t { 2, 2 }, inner = 3 },
  bad = { { t {}, message = "fft_r2c: expected x to have shape %[%.%.%., n%] with n at least 1, got %[%]" },
    { t { 2, 0 }, message = "fft_r2c: expected x to have shape %[%.%.%., n%] with n at least 1, got %[2, 0%]" } } })
op("fft_r2c_2d", "x scale", "torch.view_as_real(torch.fft.rfft2(x) * scale)", { defaults = { scale = 1 }, tol = loose, dtypes = false,
  { x = t { 3, 4 } }, { x = t { 2, 16, 6 }, scale = 0.5 }, { x = t { 4, 5 } },
  { x = t { 2, 17, 3 } }, { x = t { 0, 3, 4 } },
  bad = { { t { 4 }, message = "fft_r2c_2d: expected x to have shape %[%.%.%., m, n%] with m and n at least 1, got %[4%]" }, { t { 2, 0 },
    message = "fft_r2c_2d: expected x to have shape %[%.%.%., m, n%] with m and n at least 1, got %[2, 0%]" },
    { t { 0, 2 }, message = "fft_r2c_2d: expected x to have shape %[%.%.%., m, n%] with m and n at least 1, got %[0, 2%]" } } })
op("fft_c2r", "x n scale inner", "torch.fft.irfft(" .. C .. " * " .. by_inner "n" .. ", n, norm='forward') * scale",
  { dtypes = false, defaults = { scale = 1, inner = 1 }, { x = t { 5, 2 }, n = 8 }, { x = t { 2, 3, 2 }, n = 5, scale = 0.2 },
  { x = t { 1, 2 }, n = 1 }, { x = t { 9, 7, 2 }, n = 12, inner = 0.5 }, { x = t { 2, 4, 2 }, n = 7, inner = 2 }, { x = t { 20, 2 }, n = 38, inner = 3 },
  bad = { { t { 5, 2 }, 7, message = "fft_c2r: expected x to have shape %[%.%.%., 4, 2%] for n = 7, got %[5, 2%]" } } })
op("fft_multiply", "x other conjugate", "torch.view_as_real(torch.view_as_complex(x.contiguous()) * (torch.conj if conjugate else (lambda z: z))(torch.view_as_complex(other.contiguous())))",
  { dtypes = false, half = { cpu = true }, -- a GPU multiplies in the dtype
  defaults = { conjugate = false }, { x = t { 5, 2 }, other = t { 5, 2 } }, { x = t { 3, 4, 2 }, other = t { 4, 2 }, conjugate = true },
  { x = t { 2 }, other = t { 2, 1, 2 } }, { x = t { 3, 1, 2 }, other = t { 5, 2 } }, { x = t { 0, 2 }, other = t { 2 } },
  bad = { { t { 3 }, t { 2 }, message = "fft_multiply: expected x to have shape %[%.%.%., 2%], real and imaginary parts, got %[3%]" },
    { t { 2 }, t {}, message = "fft_multiply: expected other to have shape %[%.%.%., 2%], real and imaginary parts, got %[%]" },
    { t { 3, 2 }, t { 4, 2 }, message = "fft_multiply.*%[3.*%[4" }, { t { 2 }, n({ 2 }, 1, 3, true), message = "fft_multiply: other must be float32 or float64, got int64" } } })
op("stft_lines", "x window hop scale inner", "torch.view_as_real(torch.stft(x, len(window), hop, window=window, center=False, return_complex=True).transpose(1, 2) * scale) * "
  .. by_inner "len(window)" .. "[:, None]",
  { dtypes = false, defaults = { scale = 1, inner = 1 }, { x = t { 2, 21 }, window = t { 8 }, hop = 3 }, { x = t { 1, 9 }, window = t { 5 }, hop = 2, scale = 0.5, inner = 2 },
  { x = t { 2, 12 }, window = t { 12 }, hop = 5, inner = 0.5 }, { x = t { 1, 45 }, window = t { 38 }, hop = 7 },
  bad = { { t { 8 }, t { 4 }, 2, message = "stft_lines: expected x to have shape %[batch, samples%], got %[8%]" },
  { t { 2, 3 }, t { 4 }, 2, message = "stft_lines: the number of samples of x must be at least the window's 4, got 3" },
    { t { 2, 8 }, t { 4 }, 0, message = "stft_lines: hop must be at least 1, got 0" } } })
op("overlap_add", "frames window hop length",
  "torch.nn.functional.fold((frames * window).transpose(1, 2), (1, length), (1, len(window)), stride=(1, hop)).reshape(-1, length)",
  { dtypes = false, { frames = t { 2, 5, 8 }, window = t { 8 }, hop = 3, length = 21 }, { frames = t { 1, 3, 5 }, window = t { 5 }, hop = 2, length = 10 },
  { frames = t { 2, 2, 3 }, window = t { 3 }, hop = 5, length = 9 },
  bad = { { t { 2, 3, 4 }, t { 4 }, 2, 7, message = "overlap_add: 3 frames of 4 samples must make up 7 samples with hop 2" },
  { t { 2, 3, 4 }, t { 4 }, 0, 8, message = "overlap_add: hop must be at least 1, got 0" } } })

-- ---- views
op("view", "x size", "x.view(size)", { { x = t { 3, 4 }, size = { 2, 6 } }, { x = t { 3, 4 }, size = { -1 } }, { x = t { 3, 4 }, size = { 2, -1, 2 } },
  { x = t { 0, 4 }, size = { 4, 0 } }, { x = t {}, size = { 1, 1 } }, strided = false,
  bad = { { t { 3, 4 }, { 5, -1 }, message = "view.*%[3, 4%].*%[5, %-1%]" }, { t { 3, 4 }, { -1, -1 }, message = "view.*%-1" } } })
op("reshape", "x size", "x.reshape(size)", { { x = t { 3, 4 }, size = { 2, 6 } }, { x = t { 3, 4 }, size = { -1 } }, { x = t { 0 }, size = { 0, 3 } },
  bad = { { t { 3, 4 }, { 5 }, message = "reshape.*%[3, 4%].*%[5%]" } } })
op("permute", "x dims", "x.permute(dims)", { { x = t { 2, 3, 4 }, dims = { 3, 1, 2 } }, { x = t { 2, 3 }, dims = { -1, 1 } }, { x = t {}, dims = {} },
  bad = { { t { 2, 3 }, { 1, 1 }, message = "permute.*" }, { t { 2, 3 }, { 1 }, message = "permute" } } })
op("transpose", "x dim0 dim1", "x.transpose(dim0, dim1)", { { x = t { 2, 3, 4 }, dim0 = 1, dim1 = 3 }, { x = t { 2, 3 }, dim0 = -1, dim1 = 1 },
  bad = { { t { 2, 3 }, 1, 3, message = "transpose: dim 3" } } })
op("t", "x", "x.t()", { { x = t { 2, 3 } }, { x = t { 3 } }, { x = t {} }, bad = { { t { 2, 3, 4 }, message = "t: .*%[2, 3, 4%]" } } })
op("select", "x dim index", "x.select(dim, index)", { { x = t { 3, 4 }, dim = 1, index = 2 }, { x = t { 2, 3, 4 }, dim = -1, index = -1 },
  bad = { { t { 3, 4 }, 1, 4, message = "select.*4.*3" }, { t { 3, 4 }, 1, 0, message = "select.*0" }, { t {}, 1, 1, message = "select" } } })
op("slice", "x dim first last step", "x[tuple([slice(None)] * (dim % x.dim()) + [slice(first - 1 if first > 0 else first, None if last == -1 else last if last > 0 else last + 1, step)])]", {
  defaults = { first = 1, last = -1, step = 1 }, { x = t { 6, 4 }, dim = 1, first = 2, last = 5 }, { x = t { 6, 4 }, dim = 1, first = 1, last = -1, step = 2 },
  { x = t { 6, 4 }, dim = -1, first = -2 }, { x = t { 6, 4 }, dim = 1, first = 3, last = 2 },
  bad = { { t { 6 }, 1, 1, 7, message = "slice.*7.*6" }, { t { 6 }, 1, 1, 3, 0, message = "slice: step must be at least 1, got 0" } } })
op("narrow", "x dim start length", "x.narrow(dim, start - 1, length)", { { x = t { 6, 4 }, dim = 1, start = 2, length = 3 },
  { x = t { 6, 4 }, dim = 2, start = 1, length = 0 }, bad = { { t { 6 }, 1, 5, 3, message = "narrow" } } })
op("expand", "x size", "x.expand(size)", { { x = t { 3, 1 }, size = { 3, 4 } }, { x = t { 3, 1 }, size = { 2, -1, 4 } }, { x = t {}, size = { 2 } },
  bad = { { t { 3, 2 }, { 3, 4 }, message = "expand.*%[3, 2%].*%[3, 4%]" } } })
op("squeeze", "x dim", "x.squeeze() if dim is None else x.squeeze(dim)", { defaults = { dim = none }, { x = t { 1, 3, 1 } }, { x = t { 1, 3, 1 }, dim = 1 },
  { x = t { 1, 3 }, dim = 2 }, bad = { { t { 1 }, 2, message = "squeeze: dim 2" } } })
op("unsqueeze", "x dim", "x.unsqueeze(dim)", { { x = t { 3, 4 }, dim = 1 }, { x = t { 3, 4 }, dim = -1 }, { x = t {}, dim = 1 },
  bad = { { t { 3 }, 3, message = "unsqueeze: dim 3" } } })
op("flatten", "x start_dim end_dim", "x.flatten(start_dim, end_dim)", { defaults = { start_dim = 1, end_dim = -1 }, { x = t { 2, 3, 4 } },
  { x = t { 2, 3, 4 }, start_dim = 2 }, { x = t { 2, 3, 4, 5 }, start_dim = 2, end_dim = 3 }, { x = t {} },
  bad = { { t { 2, 3 }, 2, 1, message = "flatten" } } })
op("detach", "x", "x.detach()", { grad = false, { x = t { 3, 4 } }, bad = { { 1, message = "detach: x" } } })
op("slice_backward", "grad size dim first step", "slice_backward(grad, size, dim, first, step)", {
  { grad = t { 2, 4 }, size = { 6, 4 }, dim = 1, first = 2, step = 2 }, bad = { { t { 2, 4 }, { 6, 5 }, 1, 1, 1, message = "slice_backward" } } })

-- ---- copies and conversions
op("clone", "x", "x.clone()", { { x = t { 3, 4 } }, { x = t { 2, 3, 4, 5 } }, { x = t { 0 } },
  bad = { { t { 2 }, { memory_format = "chanels_last" }, message = "channels_last" } } })
op("contiguous", "x", "x.contiguous()", { { x = t { 3, 4 } }, { x = t { 2, 3, 4, 5 } }, bad = { { 1, message = "contiguous: x" } } })
op("to_copy", "x", "x.to(dtype=getattr(torch, dtype), copy=True)", { defaults = { dtype = "float32" }, { x = t { 3, 4 }, dtype = "float64" },
  { x = t({ 3, 4 }, { lo = -300, hi = 300 }), dtype = "int32" }, { x = t { 3, 4 }, dtype = "bfloat16" }, { x = t { 3, 4 }, dtype = "float16" },
  { x = special, dtype = "bool" }, dtypes = false, grad = { "x" },
  bad = { { t { 2 }, { dtype = "flot32" }, message = "float32" }, { t { 2 }, { device = "cuda:63" }, message = "cuda" } } })

-- ---- writing in place
op("copy_", "x src", "x.clone().copy_(src)", { grad = false, { x = t { 3, 4 }, src = t { 3, 4 } }, { x = t { 3, 4 }, src = t { 4 } }, { x = t { 2 }, src = 3 },
  bad = { { t { 3 }, t { 4 }, message = "copy_.*%[4%].*%[3%]" } } })
op("fill_", "x value", "x.clone().fill_(value)", { grad = false, { x = t { 3, 4 }, value = 3 }, { x = t { 0 }, value = 1 },
  bad = { { t { 3 }, t { 4 }, message = "fill_: value" } } })
op("zero_", "x", "x.clone().zero_()", { grad = false, { x = t { 3, 4 } }, bad = { { 1, message = "zero_: x" } } })
op("normal_", "x mean std", "x.clone().normal_(mean, std)", { grad = false, random = true, defaults = { mean = 0, std = 1 }, { x = t { 30, 4 } }, { x = t { 0 } },
  bad = { { t { 2 }, 0, -1, message = "normal_: std must be at least 0, got %-1" } } })
op("uniform_", "x from to", "x.clone().uniform_(from_, to)", { grad = false, random = true, defaults = { from = 0, to = 1 }, { x = t { 30, 4 } },
  bad = { { t { 2 }, 1, 0, message = "uniform_" } } })
op("random_", "x from to", "x.clone().random_(from_, to) if to else x.clone().random_(from_) if from_ else x.clone().random_()", { grad = false, random = true,
  defaults = { from = false, to = false }, { x = t { 30, 4 }, from = 2, to = 9 }, { x = t { 3 }, from = 2 }, { x = t { 3 } },
  bad = { { t { 2 }, 3, 3, message = "random_" } } })
op("bernoulli_", "x p", "x.clone().bernoulli_(p)", { grad = false, random = true, defaults = { p = 0.5 }, { x = t { 30, 4 }, p = 0.3 }, { x = t { 3, 4 }, p = t({ 4 }, { lo = 0, hi = 1 }) },
  bad = { { t { 2 }, 2, message = "bernoulli_: p" }, { t { 2 }, v { 0.5, -1 }, message = "bernoulli_: p must be from 0 to 1, got %-1" } } })

-- ---- new tensors
local function creation(name, positional, py, row)
  row.grad, row.dtypes, row.strided = false, false, false
  op(name, positional, py, row)
end
local dt = { dtype = "float32" }
local DT = "dtype=getattr(torch, dtype)"
creation("empty", "size", "torch.empty(size, " .. DT .. ")", { random = true, defaults = dt, { size = { 3, 4 } }, { size = { 0 }, dtype = "int64" },
  bad = { { { -1 }, message = "empty.*%-1" }, { { 1e10, 1e10 }, message = "empty" } } })
creation("full", "size value", "torch.full(size, value, " .. DT .. ")", { defaults = dt, { size = { 2, 3 }, value = 1.5 }, { size = { 2 }, value = 3, dtype = "int64" },
  bad = { { { 2 }, "x", message = "full: value" } } })
for _, name in ipairs { "zeros", "ones" } do
  creation(name, "size", "torch." .. name .. "(size, " .. DT .. ")", { defaults = dt, { size = { 2, 3 } }, { size = {}, dtype = "float64" }, { size = { 0, 2 }, dtype = "bool" },
    { size = { 3 }, dtype = "bfloat16" }, bad = { { { 2 }, { dtype = "float31" }, message = "float" } } })
end
for _, name in ipairs { "rand", "randn" } do
  creation(name, "size", "torch." .. name .. "(size, " .. DT .. ")", { random = true, defaults = dt, { size = { 2, 3 } }, { size = { 3 }, dtype = "float64" },
    bad = { { { 2 }, { dtype = "int64" }, message = name .. ".*float" } } })
end
creation("randint", "low high size", "torch.randint(low, high, size)", { random = true, { low = 0, high = 5, size = { 3, 4 } },
  bad = { { 3, 3, { 2 }, message = "randint" } } })
creation("randperm", "n", "torch.randperm(n)", { random = true, { n = 7 }, { n = 0 }, bad = { { -1, message = "randperm: n must be at least 0, got %-1" } } })
creation("arange", "start stop step", "torch.arange(start, stop, step) if stop == stop else torch.arange(start)", { defaults = { stop = nan, step = 1 },
  { start = 5 }, { start = 1, stop = 4 }, { start = 0, stop = 1, step = 0.25 }, { start = 5, stop = 0, step = -2 }, { start = 0 },
  bad = { { 0, 5, 0, message = "arange: step must be non%-zero, got 0" }, { 0, 5, -1, message = "arange" } } })
creation("linspace", "start stop steps", "torch.linspace(start, stop, steps)", { { start = 0, stop = 1, steps = 5 }, { start = 3, stop = -3, steps = 4 },
  { start = 1, stop = 2, steps = 1 }, { start = 1, stop = 2, steps = 0 }, bad = { { 0, 1, -1, message = "linspace: steps must be at least 0, got %-1" } } })
creation("eye", "n m", "torch.eye(n, m if m >= 0 else n)", { defaults = { m = -1 }, { n = 3 }, { n = 2, m = 4 }, { n = 0 }, bad = { { -2, message = "eye: n must be at least 0, got %-2" } } })
for _, name in ipairs { "zeros_like", "ones_like" } do
  creation(name, "x", "torch." .. name .. "(x)", { { x = t { 2, 3 } }, { x = t { 2, 3, 4, 5 } }, bad = { { 1, message = name .. ": x" } } })
end
for _, name in ipairs { "empty_like", "rand_like", "randn_like" } do
  creation(name, "x", "torch." .. name .. "(x)", { random = true, { x = t { 2, 3 } }, bad = { { 1, message = name .. ": x" } } })
end
creation("full_like", "x value", "torch.full_like(x, value)", { { x = t { 2, 3 }, value = 7 }, bad = { { t { 2 }, message = "full_like: value" } } })

-- ---- random numbers and the gamma function
local chance = { lo = 0, hi = 1 }
local function drawing(name, positional, py, row)
  row.random, row.grad = true, false
  op(name, positional, py, row)
end
drawing("normal", "mean std size", "torch.normal(mean, std, size) if size else torch.normal(mean, std)", { defaults = { size = false },
  { mean = t { 3, 4 }, std = pos { 3, 4 } }, { mean = 1.5, std = pos { 3 } }, { mean = t { 2, 3 }, std = 0.5 }, { mean = 0, std = 1, size = { 2, 3 } },
  { mean = t { 0 }, std = pos { 0 } },
  bad = { { 0, 1, message = "normal: size is missing; expected sizes" }, { t { 2 }, t { 2 }, { 2 }, message = "normal: size must be nil for tensors, got %[2%]" },
    { t { 2 }, -1, message = "normal: std must be at least 0, got %-1" }, { n({ 2 }, 0, 3, true), message = "normal: dtype must be floating point" } } })
drawing("bernoulli", "x p", "torch.bernoulli(x, p) if p else torch.bernoulli(x)", { defaults = { p = false }, { x = t({ 3, 4 }, chance) }, { x = t { 3 }, p = 0.3 },
  { x = t({}, chance) }, { x = t { 0 } },
  bad = { { v { 0.5, 2 }, message = "bernoulli: p must be from 0 to 1, got 2" }, { t { 2 }, -1, message = "bernoulli: p must be from 0 to 1, got %-1" } } })
drawing("multinomial", "x num_samples replacement", "torch.multinomial(x, int(num_samples), replacement)", { defaults = { replacement = false },
  { x = pos { 3, 5 }, num_samples = 2 }, { x = pos { 4 }, num_samples = 9, replacement = true }, { x = pos { 3, 5 }, num_samples = 1 }, { x = pos { 2, 3 }, num_samples = 4, replacement = true },
  bad = { { t({ 4 }, chance), 5, message = "multinomial: cannot draw 5 samples without replacement from 4 categories" },
    { t({ 4 }, chance), 0, message = "multinomial: num_samples must be at least 1, got 0" },
    { v { -1, 2 }, 1, message = "multinomial: x must be at least 0 and finite, got %-1" }, { v { 1, nan }, 1, message = "multinomial: x must be at least 0" },
    { v { 0, 0 }, 1, message = "multinomial: the sum of each row of x must be above 0, got 0" },
    { v({ 1, 1, 1, 0, 1, 0 }, { 2, 3 }), 2, message = "multinomial: cannot draw 2 samples without replacement from a row with 1 weights above 0" },
    { t { 2, 2, 2 }, 1, message = "multinomial: expected x to have shape" },
    { n({ 2 }, 1, 3, true), 1, message = "multinomial.*float" }, { v({}, { 3, 0 }), 1, message = "multinomial: expected x to have shape .*, got %[3, 0%]" } } })
drawing("poisson", "x", "torch.poisson(x)", { { x = pos { 3, 4 } }, { x = v { 0, 30, 1e5 } }, { x = t { 0 } }, bad = { { v { -1 }, message = "poisson: x must be at least 0, got %-1" } } })
drawing("binomial", "count prob", "torch.binomial(count, prob)", { { count = n({ 3, 4 }, 0, 30), prob = t({ 3, 4 }, chance) }, { count = n({ 3, 1 }, 0, 30), prob = t({ 4 }, chance) },
  { count = t { 0 }, prob = t { 0 } },
  bad = { { v { -1 }, v { 0.5 }, message = "binomial: count must be at least 0, got %-1" }, { v { 1 }, v { 1.5 }, message = "binomial: prob must be from 0 to 1, got 1.5" } } })
drawing("randint_like", "x low high", "torch.randint_like(x, low, high)", { { x = t { 3, 4 }, low = 0, high = 5 }, { x = n({ 3 }, 0, 9, true), low = 2, high = 5 },
  bad = { { t { 2 }, 3, 3, message = "randint_like" } } })
for _, row in ipairs {
  { "log_normal_", "mean std", { mean = 1, std = 2 }, { t { 2 }, 0, 0, message = "log_normal_: std must be above 0, got 0" } },
  { "exponential_", "lambd", { lambd = 1 }, { t { 2 }, 0, message = "exponential_: lambd must be above 0, got 0" } },
  { "cauchy_", "median sigma", { median = 0, sigma = 1 }, { t { 2 }, 0, -1, message = "cauchy_: sigma must be above 0, got %-1" } },
  { "geometric_", "p", { p = 0.3 }, { t { 2 }, 1, message = "geometric_: p must be above 0 and below 1, got 1" } },
} do
  local name, arguments, defaults, bad = unpack(row)
  local case = { x = t { 30, 4 } }
  if name == "geometric_" then case.p = 0.3 end
  drawing(name, "x " .. arguments, ("x.clone().%s(%s)"):format(name, (arguments:gsub(" ", ", "))), { defaults = defaults, case, bad = { bad } })
end
unary("lgamma", nil, { domain = pos { 3, 4 }, domain3 = v { -2, -1.5, -0.3, 0.2, 0.5, 1, 2, 30 } })
unary("digamma", nil, { domain = pos { 3, 4 }, domain3 = v { -2, -1.5, -0.3, 0.2, 0.5, 1, 2, 30 } })
unary("trigamma", "torch.polygamma(1, x)", { no_special = true, domain = pos { 3, 4 }, domain3 = v { -1.5, -0.3, 0.2, 0.5, 1, 2, 30 } })
op("polygamma", "x n", "torch.polygamma(int(n), x)", { { x = pos { 3, 4 }, n = 1 }, { x = v { -1.5, -0.3, 0.2, 0.5, 1, 3.25, 7.9, 8, 30, 1e6 }, n = 1 },
  { x = v { 0.2, 1, 30 }, n = 2 }, { x = pos { 3 }, n = 0 },
  bad = { { t { 2 }, -1, message = "polygamma: n must be an integer from 0 to 10000, got %-1" }, { t { 2 }, 1.5, message = "polygamma: n must be an integer from 0 to 10000, got 1%.5" } } })
-- PyTorch has no gradient by x.
binary("igamma", "torch.igamma(x, other)", { first = { x = pos { 3, 4 }, other = pos { 3, 4 } }, grad = false,
  { x = v { 0.001, 0.5, 3, 20, 300, 0, 1 }, other = v { 0.1, 0.4, 3.5, 25, 280, 0, 0 } } })
binary("igammac", "torch.igammac(x, other)", { first = { x = pos { 3, 4 }, other = pos { 3, 4 } }, grad = false,
  { x = v { 0.001, 0.5, 3, 20, 300, 0, 1 }, other = v { 0.1, 0.4, 3.5, 25, 280, 0, 0 } } })
-- PyTorch's approximation is off by up to 1e-3; spec/distributions/golden_spec.lua has exact values.
op("gamma_slope", "x other",
  "(lambda a, y: torch._standard_gamma_grad(a, y.exp()) / y.exp())(x.double(), other.double()).to((x + 0.5).dtype)",
  { grad = false, tol = { float64 = { 2e-3, 1e-6 }, float32 = { 2e-3, 1e-6 }, float16 = { 1e-2, 1e-3 }, bfloat16 = { 3e-2, 1e-2 } },
    { x = pos { 3, 4 }, other = t { 3, 4 } }, { x = v { 0.3, 1, 5, 40, 300 }, other = v { -3, 0, 1.5, 3.7, 5.7 } },
    bad = { { t { 2, 3 }, t { 2, 4 }, message = "%[2, 3%].*%[2, 4%]" } } })

return rows

--- Every op, once. The build writes from here what C needs of it: argument structs, descriptors, scalar functions and
--- loops for the CPU, rows for CUDA, gradients, calls for formulas (op/entries/generate.lua says which file is what).
---
--- An entry begins with its arguments in their order, those that may also stand by position first, in `options` those
--- that only a name gives. "name", "name: kind", "name: kind = default"; a ? makes it one that may be left out:
---
---   x               a tensor; weight? or nothing        lm_tensor *, NULL where it is left out
---   m: mask         a tensor of bool                    lm_tensor *
---   other: scalar   a tensor or a number (made 0-d)     lm_tensor *
---   xs: tensors     a list of tensors; "tensors or nil" may have holes       lm_list
---   p: number       double                              k: int    int64_t; int?: LM_NO_INT where it is left out
---   b = false       bool                                s: pair   int64_t[2], of a number or a pair; pair?: -1
---   p: padding      as a pair, or "valid" (0) or "same" (both LM_PAD_SAME)
---   d: dim          int64_t from 0; dim?: LM_NO_DIM     d: dims?  lm_ints; n = -1 where they are left out
---   s: size         lm_ints, of numbers or one table    dtype: dtype?, device: device?    LM_NO_DTYPE, LM_NO_DEVICE
---   m: reduction = mean    int, one of a choice's names
---
--- kind        left out: lm_op_<name> in op/ checks and allocates, the backend's slot computes; with `elementwise` or
---             `formula` nothing else is needed. "view": shares x's storage, no kernel. "write": writes into its first
---             tensor and returns it; counted as an in-place write. "new": makes a tensor from no tensor. "composite":
---             made of other ops, by lm_composite_<name> in autograd/ where a formula does not do.
--- results     tensors that a caller sees, if not one; `hidden` more that only the gradient sees
--- elementwise the value of one element. Tensors come first among the arguments, then numbers. Functions and other
---             ops of one element may be called; both sides of ? : && || are computed, so that loops vectorize. NaN
---             comes through wherever PyTorch's does. `name_` writes in place.
--- formula     the op as a formula of others, or lines of "name = formula" and then one formula for each result
--- needs       {condition, message} rows, checked at each call: an error where the condition is false, or with
---             `warn = true` a warning. {x} in a message is x's sizes, {p} a number; any formula may stand there
--- forms       calls that are those of other ops: `when` a condition holds, a formula or its lines, and its own
---             `needs`. The last op of it works in place where the call does
--- gives       dtypes of an elementwise op. "float": integers become floating; "bool": tests; "number": bool becomes
---             int64; an argument's name: that one's; left out: what the inputs (masks apart) have in common
--- takes       "integers": of an elementwise op, which may have & | ^ ~ << >> then: an error for floating inputs
--- divides     the argument that may not be 0 among integers
--- whole       the number that has to be whole among integers
--- bool        what to use for bool, where the op is not defined for it
--- writes      arguments that change beside the results; `when` that argument is true
--- grad        for each tensor argument that may require a gradient its formula, so that double backward and every
---             backend come for free; recording for another one is an error. g is the gradient of the result (g1 of the
---             second), y the result (y1, y2 those after it, hidden ones too), nil an undefined (zero) gradient, which
---             every op passes on, size_of(x) the sizes of x, given(x) whether an optional x was there. Of an
---             elementwise op a formula of such ops is one fused kernel too. For several arguments, "x, weight": one
---             call has all of their gradients as results. For a list: of its tensor number `at`. What a formula
---             touches is saved for it. "none": there is none. "formula": recorded as the ops of `formula`.
---             The engine sums to the argument's shape what broadcasting had expanded, casts to its dtype, and checks
---             versions. Formulas are PyTorch's (tools/autograd/derivatives.yaml) also where the gradient is a matter
---             of choice: ties, 0 and NaN.
--- autocast    what floating inputs (float64 apart) become, as in PyTorch: "lower": the autocast dtype; "keep":
---             float32; "keep_gpu": float32 but on the CPU, where PyTorch's kernels compute low dtypes in float32
---             anyway; "banned_gpu": an error but on the CPU, there float32; "widest": the widest among them; left out:
---             nothing (elementwise ops promote by themselves)
---
--- In formulas over tensors (`formula`, `forms`, `grad`) ops have their defaults and dims count from 0; tensors and
--- numbers may be calculated with, and ? : is `where` of tensors and a choice by numbers. [1, 2] is a list of sizes,
--- dims or tensors; size_of(x)[1] an entry from 1, or [-1] from the end; reduction == 'mean' asks for a choice. What is
--- no op is a function of autograd/formulas.h: given(weight), ndim_of(x), is_float(x), reduced(loss, reduction), …
---
--- Shapes in help: N batch, C channels, H, W.
local entries = require "luminary.base.entry_reader"

local list, op = entries.of("op", {
  list = "string", options = "table?", kind = "string?", results = "number?", hidden = "number?",
  elementwise = "string?", formula = "table|string?", needs = "table?", forms = "table?", gives = "string?",
  takes = "string?", divides = "string?", whole = "string?", bool = "string?", writes = "table?",
  grad = "table|string?", autocast = "string?", help = "string",
})

--- Names that stand for the numbers 0, 1, …, and C's names for those.
list.choices = {
  reduction = {"none", "mean", "sum", enum = {"LM_NONE", "LM_MEAN", "LM_SUM"}},
  divergence_reduction = {"none", "mean", "sum", "batchmean"},
  rounding_mode = {"none", "floor", "trunc", enum = {"LM_EXACT", "LM_FLOOR", "LM_TRUNC"}},
  pad_mode = {
    "constant", "reflect", "replicate", "circular",
    enum = {"LM_PAD_CONSTANT", "LM_PAD_REFLECT", "LM_PAD_REPLICATE", "LM_PAD_CIRCULAR"},
  },
  approximate = {"none", "tanh"},
  memory_format = {"preserve", "contiguous", "channels_last"},
  padding = {"valid", "same"},
}

-- ---- elementwise arithmetic
op "add" {
  "x: scalar", "other: scalar", options = {"alpha: number = 1"},
  elementwise = "x + alpha * other", whole = "alpha",
  grad = {x = "g", other = "scaled(g, alpha)"},
  help = "x + alpha * other",
}
op "sub" {
  "x: scalar", "other: scalar", options = {"alpha: number = 1"},
  elementwise = "x - alpha * other", whole = "alpha",
  needs = {{"!is_bool(x) && !is_bool(other)", "not defined for bool; use :ne, :logical_not, or :int() first"}},
  grad = {x = "g", other = "scaled(g, -alpha)"},
  help = "x - alpha * other",
}
op "rsub" {
  "x: scalar", "other: scalar", options = {"alpha: number = 1"},
  elementwise = "other - alpha * x", whole = "alpha",
  needs = {{"!is_bool(x) && !is_bool(other)", "not defined for bool; use :ne, :logical_not, or :int() first"}},
  grad = {x = "scaled(g, -alpha)", other = "g"},
  help = "other - alpha * x",
}
op "mul" {
  "x: scalar", "other: scalar",
  elementwise = "x * other",
  grad = {x = "g * other", other = "g * x"},
  help = "x * other",
}
op "div" {
  "x: scalar", "other: scalar", options = {"rounding_mode: rounding_mode = none"},
  elementwise = "x / other", gives = "float",
  grad = {x = "g / other", other = "-(g * y / other)"},
  forms = {
    {when = "rounding_mode == 'floor'", "floor_divide(x, other)"},
    {when = "rounding_mode == 'trunc'", "trunc_divide(x, other)"},
  },
  help = "x / other; integers give float32, but keep their dtype where it is rounded down ('floor') or "
    .. "towards 0 ('trunc')",
}
op "floor_divide" {
  "x: scalar", "other: scalar",
  elementwise = "floor_divide(x, other)", divides = "other",
  grad = {x = "zeros_like(g)", other = "zeros_like(g)"},
  help = "x / other rounded down; dtype kept",
}
op "trunc_divide" {
  "x: scalar", "other: scalar",
  elementwise = "trunc_divide(x, other)", divides = "other",
  grad = {x = "zeros_like(g)", other = "zeros_like(g)"},
  help = "x / other rounded towards 0; dtype kept",
}
op "remainder" {
  "x: scalar", "other: scalar",
  elementwise = "remainder(x, other)", divides = "other",
  grad = {x = "g", other = "-(g * floor(x / other))"},
  help = "x modulo other, with other's sign",
}
op "fmod" {
  "x: scalar", "other: scalar",
  elementwise = "fmod(x, other)", divides = "other",
  grad = {x = "g", other = "-(g * trunc(x / other))"},
  help = "x modulo other, with x's sign",
}
op "pow" {
  "x: scalar", "exponent: scalar",
  elementwise = "pow(x, exponent)",
  grad = {
    x = "exponent == 0 ? 0 : g * (exponent * pow(x, exponent - 1))",
    exponent = "x == 0 && exponent >= 0 ? 0 : g * (y * log(x))",
  },
  bool = "use :int() first",
  needs = {
    {"is_float(x) || is_float(exponent) || !is_number(exponent) || value_of(exponent) >= 0",
      "integers to a negative integer power are not integers; use x:float()"},
  },
  autocast = "keep_gpu", help = "x to the power of exponent",
}
op "xlogy" {
  "x: scalar", "other: scalar",
  elementwise = "isnan(other) ? other : x == 0 ? 0 : x * log(other)", gives = "float",
  grad = {x = "x == 0 && other <= 0 ? 0 : g * log(other)", other = "g * x / other"},
  help = "x * log(other), 0 where x is",
}
op "hypot" {
  "x: scalar", "other: scalar",
  elementwise = "hypot(x, other)", gives = "float",
  grad = {x = "g * (x / y)", other = "g * (other / y)"},
  help = "sqrt(x^2 + other^2), without overflow",
}
op "atan2" {
  "x: scalar", "other: scalar",
  elementwise = "atan2(x, other)", gives = "float",
  grad = {
    x = "x == 0 && other == 0 ? 0 : g * (other / (x * x + other * other))",
    other = "x == 0 && other == 0 ? 0 : -(g * (x / (x * x + other * other)))",
  },
  autocast = "widest", help = "the angle of (other, x) in radians, from -pi to pi",
}
op "copysign" {
  "x: scalar", "other: scalar",
  elementwise = "copysign(x, other)", gives = "float",
  grad = {x = "x == 0 ? 0 : g * (y / x)", other = "zeros_like(g)"},
  help = "|x| with the sign of other, of -0 too",
}
op "logaddexp" {
  "x: scalar", "other: scalar",
  elementwise = "x == other ? x + 0.69314718055994531 : maximum(x, other) + log1p(exp(-abs(x - other)))",
  gives = "float",
  grad = {x = "g / (1 + exp(other - x))", other = "g / (1 + exp(x - other))"},
  help = "log(e^x + e^other), without overflow",
}
op "logaddexp2" {
  "x: scalar", "other: scalar",
  elementwise = "x == other ? x + 1 : maximum(x, other) + 1.4426950408889634 * log1p(exp2(-abs(x - other)))",
  gives = "float",
  grad = {x = "g / (1 + exp2(other - x))", other = "g / (1 + exp2(x - other))"},
  help = "log2(2^x + 2^other), without overflow",
}
op "ldexp" {
  "x: scalar", "other: scalar",
  elementwise = "x * exp2(other)", gives = "float",
  grad = {x = "g * exp2(other)", other = "g * (y * 0.69314718055994531)"},
  help = "x * 2^other",
}
op "heaviside" {
  "x: scalar", "values: scalar",
  elementwise = "x == 0 ? values : x > 0", grad = "none",
  help = "0 below 0, 1 above it, values at 0",
}
op "maximum" {
  "x: scalar", "other: scalar",
  elementwise = "x > other || isnan(x) ? x : other",
  grad = {x = "x == other ? g * 0.5 : x < other ? 0 : g", other = "x == other ? g * 0.5 : x > other ? 0 : g"},
  help = "the larger of each pair; NaN wins",
}
op "minimum" {
  "x: scalar", "other: scalar",
  elementwise = "x < other || isnan(x) ? x : other",
  grad = {x = "x == other ? g * 0.5 : x > other ? 0 : g", other = "x == other ? g * 0.5 : x < other ? 0 : g"},
  help = "the smaller of each pair; NaN wins",
}
op "fmax" {
  "x: scalar", "other: scalar",
  elementwise = "x >= other || isnan(other) ? x : other",
  grad = {x = "x >= other || isnan(other) ? g : 0", other = "x >= other || isnan(other) ? 0 : g"},
  help = "the larger of each pair; NaN only where both are",
}
op "fmin" {
  "x: scalar", "other: scalar",
  elementwise = "x <= other || isnan(other) ? x : other",
  grad = {x = "x <= other || isnan(other) ? g : 0", other = "x <= other || isnan(other) ? 0 : g"},
  help = "the smaller of each pair; NaN only where both are",
}
op "neg" {"x", elementwise = "-x", bool = "use :int() or :logical_not()", grad = {x = "-g"}, help = "-x"}
op "abs" {
  "x", elementwise = "abs(x)", bool = "use :int() or :logical_not()",
  grad = {x = "g * sign(x)"},
  help = "absolute value",
}
op "sign" {"x", elementwise = "(x > 0) - (x < 0)", grad = {x = "zeros_like(g)"}, help = "-1, 0 or 1"}
op "exp" {"x", elementwise = "exp(x)", gives = "float", grad = {x = "g * y"}, autocast = "keep_gpu", help = "e^x"}
op "exp2" {"x", elementwise = "exp2(x)", gives = "float", grad = {x = "g * y * 0.69314718055994531"}, help = "2^x"}
op "expm1" {
  "x",
  elementwise = "expm1(x)", gives = "float",
  grad = {x = "g * (y + 1)"},
  autocast = "keep_gpu", help = "e^x - 1, exact near 0",
}
op "log" {
  "x",
  elementwise = "log(x)", gives = "float",
  grad = {x = "g / x"},
  autocast = "keep_gpu", help = "natural logarithm",
}
op "log2" {
  "x",
  elementwise = "log2(x)", gives = "float",
  grad = {x = "g / (x * 0.69314718055994531)"},
  autocast = "keep_gpu", help = "logarithm to base 2",
}
op "log10" {
  "x",
  elementwise = "log10(x)", gives = "float",
  grad = {x = "g / (x * 2.3025850929940457)"},
  autocast = "keep_gpu", help = "logarithm to base 10",
}
-- NaN as eps is smaller and larger than nothing.
op "logit" {
  "x", "eps: number = nan",
  elementwise = "log((x < eps ? eps : x > 1 - eps ? 1 - eps : x) / (1 - (x < eps ? eps : x > 1 - eps ? 1 - eps : x)))",
  gives = "float",
  grad = {x = "x < eps || x > 1 - eps ? 0 : g / (x * (1 - x)) + 0 * sqrt(x * (1 - x))"},
  help = "log(x / (1 - x)), of x limited to [eps, 1 - eps] where eps is given",
}
op "log1p" {
  "x",
  elementwise = "log1p(x)", gives = "float",
  grad = {x = "g / (x + 1)"},
  autocast = "keep_gpu", help = "log(1 + x), exact near 0",
}
op "sqrt" {"x", elementwise = "sqrt(x)", gives = "float", grad = {x = "g / (y * 2)"}, help = "square root"}
op "rsqrt" {
  "x",
  elementwise = "1 / sqrt(x)", gives = "float",
  grad = {x = "g * -0.5 * (y * (y * y))"},
  autocast = "keep_gpu", help = "1 / sqrt(x)",
}
op "reciprocal" {
  "x",
  elementwise = "1 / x", gives = "float",
  grad = {x = "-(g * (y * y))"},
  autocast = "keep_gpu", help = "1 / x",
}
op "square" {
  "x",
  elementwise = "x * x", gives = "number",
  grad = {x = "g * (x * 2)"},
  autocast = "keep_gpu", help = "x * x",
}
op "sin" {"x", elementwise = "sin(x)", gives = "float", grad = {x = "g * cos(x)"}, help = "sine of x radians"}
op "cos" {"x", elementwise = "cos(x)", gives = "float", grad = {x = "-(g * sin(x))"}, help = "cosine of x radians"}
op "tan" {
  "x",
  elementwise = "tan(x)", gives = "float",
  grad = {x = "g * (1 + y * y)"},
  autocast = "keep_gpu", help = "tangent of x radians",
}
op "asin" {
  "x",
  elementwise = "asin(x)", gives = "float",
  grad = {x = "g * rsqrt(1 - x * x)"},
  autocast = "keep_gpu", help = "the angle in radians whose sine is x",
}
op "acos" {
  "x",
  elementwise = "acos(x)", gives = "float",
  grad = {x = "-(g * rsqrt(1 - x * x))"},
  autocast = "keep_gpu", help = "the angle in radians whose cosine is x",
}
op "atan" {
  "x",
  elementwise = "atan(x)", gives = "float",
  grad = {x = "g / (x * x + 1)"},
  help = "the angle in radians whose tangent is x",
}
op "sinc" {
  "x",
  elementwise = "x == 0 ? 1 : sin(3.14159265358979324 * x) / (3.14159265358979324 * x)", gives = "float",
  grad = {
    x = "x == 0 ? 0 : g * ((3.14159265358979324 * x * cos(3.14159265358979324 * x) - sin(3.14159265358979324 * x))"
      .. " / (3.14159265358979324 * x * x))",
  },
  help = "sin(pi x) / (pi x), 1 at 0",
}
op "deg2rad" {
  "x",
  elementwise = "x * 0.017453292519943296", gives = "float",
  grad = {x = "g * 0.017453292519943296"},
  help = "degrees to radians",
}
op "rad2deg" {
  "x",
  elementwise = "x * 57.295779513082321", gives = "float",
  grad = {x = "g * 57.295779513082321"},
  help = "radians to degrees",
}
-- A difference of e^x - 1, which unlike one of e^x is exact near 0.
op "sinh" {
  "x",
  elementwise = "0.5 * (expm1(x) - expm1(-x))", gives = "float",
  grad = {x = "g * (0.5 * (exp(x) + exp(-x)))"},
  autocast = "keep_gpu", help = "hyperbolic sine",
}
op "cosh" {
  "x",
  elementwise = "0.5 * (exp(x) + exp(-x))", gives = "float",
  grad = {x = "g * sinh(x)"},
  autocast = "keep_gpu", help = "hyperbolic cosine",
}
op "asinh" {
  "x", elementwise = "asinh(x)", gives = "float", grad = {x = "g * rsqrt(x * x + 1)"},
  help = "inverse hyperbolic sine",
}
op "acosh" {
  "x", elementwise = "acosh(x)", gives = "float", grad = {x = "g * rsqrt(x * x - 1)"},
  help = "inverse hyperbolic cosine",
}
op "atanh" {
  "x", elementwise = "atanh(x)", gives = "float", grad = {x = "g / (1 - x * x)"},
  help = "inverse hyperbolic tangent",
}
op "tanh" {"x", elementwise = "tanh(x)", gives = "float", grad = {x = "g * (1 - y * y)"}, help = "hyperbolic tangent"}
-- 2 / sqrt(pi)
op "erf" {
  "x",
  elementwise = "erf(x)", gives = "float",
  grad = {x = "g * (1.1283791670955126 * exp(-(x * x)))"},
  help = "error function",
}
op "erfc" {
  "x",
  elementwise = "erfc(x)", gives = "float",
  grad = {x = "-(g * (1.1283791670955126 * exp(-(x * x))))"},
  help = "1 - erf(x), exact where that is small",
}
-- The rational approximations are Blair, Edwards and Johnson's (1976) as PyTorch has them: of x within 0.7, and of
-- sqrt(-log((1 - |x|) / 2)) beyond; then one step by Halley. 2 / sqrt(pi)
local near = "x * (((-0.140543331 * (x * x) + 0.914624893) * (x * x) - 1.645349621) * (x * x) + 0.886226899)"
  .. " / ((((0.012229801 * (x * x) - 0.329097515) * (x * x) + 1.442710462) * (x * x) - 2.118377725) * (x * x) + 1)"
local z = "sqrt(-log((1 - abs(x)) * 0.5))"
local far = ("(((1.641345311 * z + 3.429567803) * z - 1.624906493) * z - 1.970840454)"
  .. " / ((1.637067800 * z + 3.543889200) * z + 1)"):gsub("z", z)
local first = ("(abs(x) <= 0.7 ? %s : copysign(%s, x))"):format(near, far)
local off = ("((erf(%s) - x) / (1.1283791670955126 * exp(-(%s * %s))))"):format(first, first, first)
op "erfinv" {
  "x",
  elementwise = ("abs(x) == 1 ? x / (1 - x * x) : %s - %s / (1 + %s * %s)"):format(first, off, first, off),
  gives = "float",
  grad = {x = "g * (0.88622692545275801 * exp(y * y))"},
  autocast = "keep_gpu", help = "the number whose erf is x",
}
op "sigmoid" {
  "x",
  elementwise = "1 / (1 + exp(-x))", gives = "float",
  grad = {x = "g * (y * (1 - y))"},
  help = "1 / (1 + e^-x)",
}
op "mul_sigmoid" {
  "x", "gate",
  elementwise = "x / (1 + exp(-gate))", gives = "float",
  grad = {x = "g * sigmoid(gate)", gate = "g * x * (sigmoid(gate) * sigmoid(-gate))"},
  help = "x * sigmoid(gate), which glu makes of halves",
}
op "log_sigmoid" {
  "x",
  elementwise = "(x > 0 ? 0 : x) - log1p(exp(-abs(x)))", gives = "float",
  grad = {x = "g * sigmoid(-x)"},
  help = "log(sigmoid(x)), without overflow",
}
op "relu" {
  "x", elementwise = "x < 0 ? 0 : x", bool = "use :int() or :logical_not()",
  grad = {x = "y <= 0 ? 0 : g"},
  help = "max(x, 0); NaN stays NaN",
}
op "relu6" {
  "x",
  elementwise = "x < 0 ? 0 : x > 6 ? 6 : x",
  grad = {x = "x > 0 && x < 6 ? g : 0"},
  help = "x limited to [0, 6]; NaN stays NaN",
}
op "leaky_relu" {
  "x", "negative_slope: number = 0.01",
  elementwise = "x > 0 ? x : x * negative_slope", gives = "float",
  grad = {x = "x > 0 ? g : g * negative_slope"},
  help = "x, or negative_slope * x below 0",
}
op "prelu" {
  "x", "weight",
  elementwise = "x > 0 ? x : weight * x", gives = "float",
  grad = {x = "x > 0 ? g : weight * g", weight = "x > 0 ? 0 : x * g"},
  needs = {
    {"ndim_of(weight) != 1 || numel_of(weight) == 1 || ndim_of(x) > 1 && size_of(x)[2] == numel_of(weight)",
      "weight is {weight}, x {x}; weight has to be of one number, or of one for each of x's channels (dim 2)"},
  },
  forms = {
    {when = "ndim_of(weight) == 1 && ndim_of(x) == 0", "prelu(x, squeeze(weight, 0))"},
    {when = "ndim_of(weight) == 1 && numel_of(weight) > 1 && ndim_of(x) > 2",
      "prelu(x, along(weight, 1, ndim_of(x)))"},
  },
  help = "x, or weight * x below 0; weight of one number, or of one for each channel",
}
op "threshold" {
  "x", "threshold: number", "value: number",
  elementwise = "x <= threshold ? value : x", bool = "use :int() first",
  grad = {x = "x <= threshold ? 0 : g"},
  help = "x where it is larger than threshold, else value; NaN stays NaN",
}
op "hardtanh" {
  "x", "min_val: number = -1", "max_val: number = 1",
  elementwise = "x < min_val ? min_val : x > max_val ? max_val : x", gives = "float",
  grad = {x = "x > min_val && x < max_val ? g : 0"},
  needs = {{"min_val <= max_val", "min_val is {min_val}, max_val {max_val}; it has to be the larger one"}},
  help = "x limited to [min_val, max_val]; NaN stays NaN",
}
op "hardsigmoid" {
  "x",
  elementwise = "(x < -3 ? 0 : x > 3 ? 6 : x + 3) / 6", gives = "float",
  grad = {x = "x > -3 && x < 3 ? g / 6 : 0"},
  help = "x / 6 + 0.5 limited to [0, 1]",
}
op "hardswish" {
  "x",
  elementwise = "x * (x < -3 ? 0 : x > 3 ? 6 : x + 3) / 6", gives = "float",
  grad = {x = "x < -3 ? 0 : x <= 3 ? g * (x / 3 + 0.5) : g"},
  help = "x * hardsigmoid(x)",
}
op "elu" {
  "x", "alpha: number = 1",
  elementwise = "x > 0 ? x : alpha * expm1(x)", gives = "float",
  grad = {x = "x > 0 ? g : g * (alpha * exp(x))"},
  help = "x, or alpha * (e^x - 1) below 0",
}
-- Klambauer et al. 2017
op "selu" {
  "x",
  elementwise = "1.0507009873554805 * (x > 0 ? x : 1.6732632423543773 * expm1(x))", gives = "float",
  grad = {x = "x > 0 ? g * 1.0507009873554805 : g * (1.7580993408473769 * exp(x))"},
  help = "1.0507 * elu(x, 1.67326): keeps mean 0 and variance 1",
}
op "celu" {
  "x", "alpha: number = 1",
  elementwise = "x > 0 ? x : alpha * expm1(x / alpha)", gives = "float",
  needs = {{"alpha != 0", "alpha is 0, and x is divided by it"}},
  grad = {x = "x > 0 ? g : g * exp(x / alpha)"},
  help = "x, or alpha * (e^(x / alpha) - 1) below 0",
}
op "softsign" {
  "x",
  elementwise = "x / (1 + abs(x))", gives = "float",
  grad = {x = "g / ((1 + abs(x)) * (1 + abs(x)))"},
  help = "x / (1 + |x|)",
}
op "hardshrink" {
  "x", "lambd: number = 0.5",
  elementwise = "x >= -lambd && x <= lambd ? 0 : x", gives = "float",
  grad = {x = "x >= -lambd && x <= lambd ? 0 : g"},
  help = "x, or 0 within lambd of 0; NaN stays NaN",
}
op "softshrink" {
  "x", "lambd: number = 0.5",
  elementwise = "x > lambd ? x - lambd : x < -lambd ? x + lambd : x * 0", gives = "float",
  needs = {{"lambd >= 0", "lambd is {lambd}, and may not be negative"}},
  grad = {x = "x >= -lambd && x <= lambd ? 0 : g"},
  help = "x moved towards 0 by lambd, not beyond; NaN stays NaN",
}
op "tanhshrink" {
  "x",
  elementwise = "x - tanh(x)", gives = "float",
  grad = {x = "g * (tanh(x) * tanh(x))"},
  help = "x - tanh(x)",
}
-- Phi(x) + x phi(x): 1 / sqrt(2), 1 / sqrt(2 pi)
op "gelu" {
  "x", options = {"approximate: approximate = none"},
  elementwise = "0.5 * x * (1 + erf(x * 0.70710678118654752440))", gives = "float",
  grad = {x = "g * (0.5 * (1 + erf(x * 0.70710678118654752)) + x * 0.39894228040143268 * exp(-0.5 * (x * x)))"},
  forms = {{when = "approximate == 'tanh'", "gelu_tanh(x)"}},
  help = "x * Phi(x), exact (erf), or by its approximation with approximate = 'tanh'",
}
-- The approximation is x s(u) with s the sigmoid, u = 2 sqrt(2 / pi) (x + 0.044715 x^3); the gradient
-- s(u) (1 + x (1 - s(u)) u'), 1 - s(u) being s(-u).
local u = "x * (1.5957691216057308 + 0.071354816272600252 * (x * x))"
op "gelu_tanh" {
  "x",
  elementwise = "0.5 * x * (1 + tanh(0.79788456080286535588 * (x + 0.044715 * x * x * x)))", gives = "float",
  grad = {
    x = "g * (sigmoid(" .. u .. ") * (1 + sigmoid(-(" .. u .. "))"
      .. " * (x * (1.5957691216057308 + 0.21406444881780076 * (x * x)))))",
  },
  help = "gelu by its tanh approximation",
}
op "silu" {
  "x",
  elementwise = "x / (1 + exp(-x))", gives = "float",
  grad = {x = "g * (sigmoid(x) * (1 + x * sigmoid(-x)))"},
  help = "x * sigmoid(x)",
}
-- x tanh(softplus(x)): with e = e^x and n = e (e + 2) the tanh is n / (n + 2), and 1 to the last bit from 20 on.
local e = "exp(x > 20 ? 20 : x)"
local n = ("%s * (%s + 2)"):format(e, e)
local tanh = ("%s / (%s + 2)"):format(n, n)
op "mish" {
  "x",
  elementwise = ("x * (%s)"):format(tanh), gives = "float",
  grad = {x = ("g * (%s + x * sigmoid(x) * (1 - %s * (%s)))"):format(tanh, tanh, tanh)},
  help = "x * tanh(softplus(x))",
}
op "softplus" {
  "x", "beta: number = 1", "threshold: number = 20",
  elementwise = "x * beta > threshold ? x : ((x * beta < 0 ? 0 : x * beta) + log1p(exp(-abs(x * beta)))) / beta",
  gives = "float",
  grad = {x = "x * beta > threshold ? g : g * sigmoid(x * beta)"},
  autocast = "keep_gpu", help = "log(1 + e^(beta x)) / beta; x itself where beta x is larger than threshold",
}
op "bce" {
  "x", "target",
  elementwise = "(target - 1) * (log1p(-x) < -100 ? -100 : log1p(-x)) - target * (log(x) < -100 ? -100 : log(x))",
  gives = "float",
  grad = {x = "g * (x - target) / maximum((1 - x) * x, 1e-12)", target = "g * (log(1 - x) - log(x))"},
  help = "binary cross-entropy of each probability x; logarithms stop at -100",
}
op "huber" {
  "x", "target", options = {"delta: number = 1"},
  elementwise = "abs(x - target) < delta ? 0.5 * ((x - target) * (x - target)) "
    .. ": delta * (abs(x - target) - 0.5 * delta)",
  gives = "float",
  grad = {
    x = "g * maximum(-delta, minimum(delta, x - target))",
    target = "-(g * maximum(-delta, minimum(delta, x - target)))",
  },
  help = "half of (x - target)^2, and from delta on a straight line of that slope",
}
op "relative_entropy" {
  "x", "target",
  elementwise = "(target == 0 ? 0 : target * log(target)) - target * x", gives = "float",
  -- without a limit at 0, as PyTorch's
  grad = {x = "-(g * target)", target = "g * ((target == 0 ? 0 : log(target)) + target / target - x)"},
  help = "target (log target - x), of log-probabilities x",
}
op "floor" {
  "x", elementwise = "floor(x)", bool = "use :int() or :logical_not()",
  grad = {x = "zeros_like(g)"},
  help = "rounded down",
}
op "ceil" {
  "x", elementwise = "ceil(x)", bool = "use :int() or :logical_not()",
  grad = {x = "zeros_like(g)"},
  help = "rounded up",
}
op "round" {
  "x", options = {"decimals: int = 0"},
  elementwise = "round(x)",
  grad = {x = "zeros_like(g)"},
  bool = "use :int() or :logical_not()",
  needs = {
    {"decimals == 0 || is_float(x)", "decimals are for floating x, got {dtype_of(x)}; use :float() first"},
    {"decimals == 0 || decimals >= -largest_power(x) && decimals <= largest_power(x)", "decimals is {decimals}; "
      .. "10^{decimals} is beyond {largest_power(x) > 38 ? 'float64' : 'float32'}, which has -{largest_power(x)} to "
      .. "{largest_power(x)}"},
  },
  -- These powers are exact up to 10^22.
  forms = {
    {when = "decimals > 0", "round_scaled(x, power_of_ten(decimals), 1)"},
    {when = "decimals < 0", "round_scaled(x, 1, power_of_ten(-decimals))"},
  },
  help = "rounded to nearest, halves to even; to so many decimals, negative: to tens, hundreds, …",
}
op "round_scaled" {
  "x", "factor: number", "divisor: number",
  elementwise = "round(x * factor / divisor) * divisor / factor", gives = "float",
  grad = {x = "zeros_like(g)"},
  help = "round(x * factor / divisor) * divisor / factor, which round makes of decimals",
}
op "trunc" {
  "x", elementwise = "trunc(x)", bool = "use :int() or :logical_not()",
  grad = {x = "zeros_like(g)"},
  help = "rounded towards 0",
}
op "frac" {"x", elementwise = "x - trunc(x)", bool = "use :int() first", grad = {x = "g"}, help = "x - trunc(x)"}
-- Of tensors, ties share unless min is max, and max has what is beyond both; of numbers, x has only what is between.
op "clamp" {
  "x", "min: scalar?", "max: scalar?",
  elementwise = "minimum(max, maximum(min, x))",
  grad = {
    x = "x < min || x > max ? 0 : min < max && (x == min || x == max) ? g * 0.5 : g",
    min = "x < min && min <= max ? g : x == min && min < max ? g * 0.5 : 0",
    max = "max < min || x > max && min <= max ? g : x == max && min < max ? g * 0.5 : 0",
  },
  bool = "use :int() or :logical_not()",
  needs = {{"given(min) || given(max)", "min and max are both missing; give one of them, or both"}},
  forms = { -- numbers: the gradient at ties is another than that of bounds that are tensors
    {when = "is_float(x) && (!given(min) || is_number(min)) && (!given(max) || is_number(max))",
      "clamp_range(x, given(min) ? value_of(min) : -inf, given(max) ? value_of(max) : inf)"},
    {when = "!given(max)", "maximum(x, min)"},
    {when = "!given(min)", "minimum(x, max)"},
  },
  help = "x limited to [min, max], numbers or tensors, either may be nil; max where min is larger; NaN wins",
}
op "clamp_range" {
  "x", "min: number = -inf", "max: number = inf",
  elementwise = "minimum(max, maximum(min, x))", gives = "float",
  grad = {x = "x > min && x < max ? g : 0"},
  help = "clamp of floating x to numbers",
}
op "where" {
  "condition: mask", "x: scalar", "other: scalar",
  elementwise = "condition != 0 ? x : other",
  grad = {x = "condition ? g : 0", other = "condition ? 0 : g"},
  help = "x where condition holds, else other",
}
-- Exact at both ends.
op "lerp" {
  "x", "end", "weight: scalar",
  elementwise = "abs(weight) < 0.5 ? x + weight * (end - x) : end - (end - x) * (1 - weight)", gives = "float",
  grad = {x = "g * (1 - weight)", ["end"] = "g * weight", weight = "g * (end - x)"},
  help = "x + weight * (end - x)",
}
op "addcmul" {
  "x", "tensor1", "tensor2", options = {"value: number = 1"},
  elementwise = "x + value * tensor1 * tensor2", whole = "value",
  grad = {x = "g", tensor1 = "g * (tensor2 * value)", tensor2 = "g * (tensor1 * value)"},
  autocast = "widest", help = "x + value * tensor1 * tensor2",
}
op "addcdiv" {
  "x", "tensor1", "tensor2", options = {"value: number = 1"},
  elementwise = "x + value * (tensor1 / tensor2)", gives = "float",
  grad = {
    x = "g", tensor1 = "g * (value / tensor2)",
    tensor2 = "-(g * (value * tensor1 / (tensor2 * tensor2)))",
  },
  autocast = "widest", help = "x + value * tensor1 / tensor2",
}
op "masked_fill" {
  "x", "mask: mask", "value: scalar",
  elementwise = "mask != 0 ? value : x", gives = "x",
  needs = {{"ndim_of(value) == 0", "value has to be a number or 0-d, got {value}"}},
  grad = {x = "mask ? 0 : g", value = "mask ? g : 0"},
  help = "x with value where mask holds",
}

-- Comparisons and logic give bool.
op "eq" {"x: scalar", "other: scalar", elementwise = "x == other", gives = "bool", grad = "none", help = "x == other"}
op "ne" {"x: scalar", "other: scalar", elementwise = "x != other", gives = "bool", grad = "none", help = "x ~= other"}
op "lt" {"x: scalar", "other: scalar", elementwise = "x < other", gives = "bool", grad = "none", help = "x < other"}
op "le" {"x: scalar", "other: scalar", elementwise = "x <= other", gives = "bool", grad = "none", help = "x <= other"}
op "gt" {"x: scalar", "other: scalar", elementwise = "x > other", gives = "bool", grad = "none", help = "x > other"}
op "ge" {"x: scalar", "other: scalar", elementwise = "x >= other", gives = "bool", grad = "none", help = "x >= other"}
op "logical_and" {
  "x: scalar", "other: scalar",
  elementwise = "x != 0 && other != 0", gives = "bool",
  grad = "none",
  help = "both nonzero",
}
op "logical_or" {
  "x: scalar", "other: scalar",
  elementwise = "x != 0 || other != 0", gives = "bool",
  grad = "none",
  help = "either nonzero",
}
op "logical_not" {"x", elementwise = "x == 0", gives = "bool", grad = "none", help = "zero"}
op "logical_xor" {
  "x: scalar", "other: scalar",
  elementwise = "x == 0 ? other != 0 : other == 0", gives = "bool",
  grad = "none",
  help = "one of the two nonzero",
}
op "isnan" {"x", elementwise = "isnan(x)", gives = "bool", grad = "none", help = "is NaN"}
op "isfinite" {"x", elementwise = "x - x == 0", gives = "bool", grad = "none", help = "is neither NaN nor infinite"}

op "isinf" {"x", elementwise = "isnan(x - x) && !isnan(x)", gives = "bool", grad = "none", help = "is infinite"}
op "isposinf" {"x", elementwise = "x > 0 && x - x != 0", gives = "bool", grad = "none", help = "is inf"}
op "isneginf" {"x", elementwise = "x < 0 && x - x != 0", gives = "bool", grad = "none", help = "is -inf"}
op "isclose" {
  "x", "other", options = {"rtol: number = 1e-5", "atol: number = 1e-8", "equal_nan = false"},
  formula = {
    "left = is_float(x) ? x : x / 1",
    "right = is_float(other) ? other : other / 1",
    "close = left == right || abs(left - right) <= abs(right) * rtol + atol && isfinite(right)",
    "equal_nan ? close || isnan(left) && isnan(right) : close",
  },
  grad = "none",
  help = "equal, or |x - other| <= atol + rtol * |other|; with equal_nan both NaN too",
}
op "nan_to_num" {
  "x", "nan: number = 0", "posinf: number = nan", "neginf: number = nan",
  elementwise = "isnan(x) ? nan : x - x == 0 ? x : x > 0 ? posinf : neginf",
  grad = {x = "x - x == 0 ? g : 0"},
  forms = {
    {when = "posinf != posinf && is_float(x)", "nan_to_num(x, nan, largest(x), neginf)"},
    {when = "neginf != neginf && is_float(x)", "nan_to_num(x, nan, posinf, -largest(x))"},
  },
  help = "x with numbers for NaN, inf and -inf, these at first the largest and the least of x's dtype",
}
op "signbit" {"x", elementwise = "copysign(1, x) < 0", gives = "bool", grad = "none", help = "is negative, or -0"}

-- Bits of integers; of bool too, but for shifts.
op "bitwise_and" {
  "x: scalar", "other: scalar", elementwise = "x & other", takes = "integers", grad = "none",
  help = "bits that both have",
}
op "bitwise_or" {
  "x: scalar", "other: scalar", elementwise = "x | other", takes = "integers", grad = "none",
  help = "bits that either has",
}
op "bitwise_xor" {
  "x: scalar", "other: scalar", elementwise = "x ^ other", takes = "integers", grad = "none",
  help = "bits that one of the two has",
}
op "bitwise_not" {
  "x", elementwise = "~x", takes = "integers", grad = "none",
  forms = {{when = "is_bool(x)", "logical_not(x)"}},
  help = "all bits the other way round; logical_not of bool",
}
op "bitwise_left_shift" {
  "x: scalar", "other: scalar", elementwise = "other < 0 || other > 63 ? 0 : x << (other & 63)", takes = "integers",
  bool = "use :int() first", grad = "none",
  help = "x * 2^other",
}
op "bitwise_right_shift" {
  "x: scalar", "other: scalar", elementwise = "x >> (other < 0 || other > 63 ? 63 : other)", takes = "integers",
  bool = "use :int() first", grad = "none",
  help = "x / 2^other, rounded down",
}
op "gcd" {
  "x: scalar", "other: scalar", elementwise = "gcd(x, other)", takes = "integers", bool = "use :int() first",
  grad = "none", help = "greatest common divisor",
}
op "lcm" {
  "x: scalar", "other: scalar", elementwise = "abs(trunc_divide(x, gcd(x, other)) * other)", takes = "integers",
  bool = "use :int() first", grad = "none",
  help = "least common multiple",
}
-- ---- reductions: over dims, or over all
op "sum" {
  "x", "dim: dims?", options = {"keepdim = false", "dtype: dtype?"},
  grad = {x = "spread(g, dim, keepdim, size_of(x))"},
  autocast = "keep_gpu", help = "sum over dim, or all; integers give int64",
}
op "mean" {
  "x", "dim: dims?", options = {"keepdim = false", "dtype: dtype?"},
  grad = {x = "spread(g / count(dim, size_of(x)), dim, keepdim, size_of(x))"},
  help = "mean over dim, or all",
}
local unbiased_or_correction = {
  "unbiased || correction == 0 || correction == 1",
  "unbiased = false is correction = 0, and correction is {correction}; give one of the two",
}
op "var" {
  "x", "dim: dims?", options = {"correction: int = 1", "keepdim = false", "unbiased = true"},
  grad = {
    x = {
      "n = count(dim, size_of(x)) - correction",
      "kept(g * (n > 0 ? 2 / n : inf), dim, keepdim, size_of(x)) * (x - mean(x, dim, true))",
    },
  },
  needs = {unbiased_or_correction},
  forms = {{when = "!unbiased", "var(x, dim, 0, keepdim)"}},
  help = "variance; divides by n - correction; unbiased = false is correction = 0",
}
op "std" {
  "x", "dim: dims?", options = {"correction: int = 1", "keepdim = false", "unbiased = true"},
  needs = {unbiased_or_correction},
  formula = "sqrt(var(x, dim, unbiased ? correction : 0, keepdim))",
  help = "square root of var",
}
op "norm" {
  "x", "p: number = 2", "dim: dims?", options = {"keepdim = false"},
  -- p infinite: the largest (or smallest) share; else g sign(x) (|x| / y)^(p - 1), 0 where that is undefined
  grad = {
    x = {
      "gk = kept(g, dim, keepdim, size_of(x))",
      "yk = kept(y, dim, keepdim, size_of(x))",
      "hit = p == inf || p == -inf ? abs(x) == yk : nil",
      "power = p == 0 || p == 1 || p == 2 ? nil : pow(abs(x), p - 1)",
      "p == 0 ? zeros_like(x) : p == 1 ? sign(x) * gk : p == 2 ? x * masked_fill(gk / yk, yk == 0, 0) "
        .. ": p == inf || p == -inf ? where(hit, sign(x), 0) * (gk / sum(hit, dim, true)) "
        .. ": sign(x) * (p < 1 ? masked_fill(power, x == 0, 0) : power) "
        .. "* masked_fill(gk / pow(yk, p - 1), yk == 0, 0)",
    },
  },
  autocast = "keep_gpu", help = "p-norm over dim, or all; p may be math.huge or 0",
}
op "logsumexp" {
  "x", "dim: dims?", options = {"keepdim = false"},
  grad = {x = "spread(g, dim, keepdim, size_of(x)) * exp(x - spread(y, dim, keepdim, size_of(x)))"},
  autocast = "keep_gpu", help = "log of the sum of e^x, without overflow",
}
local extreme_grad = {
  x = {
    "hit = x == kept(y, dim, keepdim, size_of(x))",
    "hit ? kept(g, dim, keepdim, size_of(x)) / sum(hit, dim, true) : 0",
  },
}
op "amax" {
  "x", "dim: dims?", options = {"keepdim = false"},
  grad = extreme_grad,
  help = "largest over dim, or all; ties share the gradient",
}
op "amin" {
  "x", "dim: dims?", options = {"keepdim = false"},
  grad = extreme_grad,
  help = "smallest over dim, or all; ties share the gradient",
}
op "max_dim" {
  "x", "dim: dim", options = {"keepdim = false"}, results = 2,
  grad = {x = "place_grad(g, y1, dim, keepdim, size_of(x))"},
  help = "largest along dim, and where: values, indices from 1",
}
op "min_dim" {
  "x", "dim: dim", options = {"keepdim = false"}, results = 2,
  grad = {x = "place_grad(g, y1, dim, keepdim, size_of(x))"},
  help = "smallest along dim, and where: values, indices from 1",
}
op "argmax" {
  "x", "dim: dim?", options = {"keepdim = false"},
  grad = "none",
  help = "where the largest is, from 1; of the flattened x without dim",
}
op "argmin" {
  "x", "dim: dim?", options = {"keepdim = false"},
  grad = "none",
  help = "where the smallest is, from 1; of the flattened x without dim",
}
op "all" {"x", "dim: dims?", options = {"keepdim = false"}, grad = "none", help = "true where every element is nonzero"}
op "any" {"x", "dim: dims?", options = {"keepdim = false"}, grad = "none", help = "true where some element is nonzero"}
op "sum_to_size" {
  "x", "size: size", kind = "composite",
  help = "x summed over the dims that broadcasting size to x's shape would expand",
}

-- ---- softmax
op "softmax" {
  "x", "dim: dim", options = {"dtype: dtype?"},
  grad = {x = "softmax_backward(g, y, dim)"},
  autocast = "keep_gpu", help = "e^x / sum of e^x along dim",
}
op "softmin" {
  "x", "dim: dim", options = {"dtype: dtype?"},
  formula = "softmax(-x, dim, dtype)", autocast = "keep_gpu", help = "softmax of -x along dim",
}
op "log_softmax" {
  "x", "dim: dim", options = {"dtype: dtype?"},
  grad = {x = "log_softmax_backward(g, y, dim)"},
  autocast = "keep_gpu", help = "log of softmax, without overflow",
}
-- With r = y (grad - s) the result, s the sum of grad y: dr/dgrad is symmetric.
op "softmax_backward" {
  "grad", "y", "dim: dim",
  grad = {
    grad = "softmax_backward(g, y, dim)",
    y = "g * (grad - sum(grad * y, dim, true)) - grad * sum(g * y, dim, true)",
  },
  help = "gradient of softmax from its result y",
}
op "log_softmax_backward" {
  "grad", "y", "dim: dim",
  grad = {grad = "g - sum(g * exp(y), dim, true)", y = "-(g * exp(y) * sum(grad, dim, true))"},
  help = "gradient of log_softmax from its result y",
}

-- ---- matrix products
op "mm" {
  "x", "other",
  grad = {x = "mm(g, t(other))", other = "mm(t(x), g)"},
  autocast = "lower", help = "[n, k] times [k, m]",
}
op "bmm" {
  "x", "other",
  grad = {x = "bmm(g, transpose(other, 1, 2))", other = "bmm(transpose(x, 1, 2), g)"},
  autocast = "lower", help = "[b, n, k] times [b, k, m]",
}
op "addmm" {
  "input", "x", "other", options = {"beta: number = 1", "alpha: number = 1"},
  grad = {input = "scaled(g, beta)", x = "scaled(mm(g, t(other)), alpha)", other = "scaled(mm(t(x), g), alpha)"},
  autocast = "lower", help = "beta * input + alpha * x times other; input broadcasts",
}
op "linear" {
  "x", "weight", "bias: scalar?",
  grad = {x = "linear(g, t(weight))", weight = "mm(t(rows(g)), rows(x))", bias = "g"},
  autocast = "lower",
  -- A vector for weight is a matrix of one row, whose dim goes from the result; a bias of one number is added at last.
  forms = {
    {
      when = "ndim_of(weight) == 1",
      needs = {
        {"ndim_of(x) > 0 && size_of(x)[-1] == size_of(weight)[1]", "x is {x}, weight {weight}: the last sizes differ"},
        {"ndim_of(bias) == 0", "bias is {bias}; for a weight of one dim it has to be a number or 0-d"},
      },
      "y = squeeze(linear(x, unsqueeze(weight, 0)), -1)",
      "given(bias) ? y + bias : y",
    },
    {when = "given(bias) && ndim_of(bias) == 0", "linear(x, weight) + bias"},
  },
  help = "x times weight transposed, plus bias; x [..., in], weight [out, in], bias [out] or a number; "
    .. "weight [in] gives [...]",
}
op "matmul" {
  "x", "other", kind = "composite",
  autocast = "lower", help = "matrix product; leading dims broadcast; 1-d operands are vectors",
}

-- ---- joining, picking, counting; indices count from 1
op "cat" {
  "tensors: tensors", "dim: dim?",
  grad = {tensors = "cat_grad(g, dim, sizes, at, before)"},
  autocast = "widest", help = "joined along dim (the first by default)",
}
op "pad" {
  "x", "pad: size", "mode: pad_mode = constant", "value: number = 0", kind = "composite",
  help = "x with pad[1] entries before and pad[2] after its last dim, pad[3] and pad[4] around the one "
    .. "before, …; negative ones cut off; mode says what they hold: value, or x mirrored, its edge repeated, x "
    .. "from the other side",
}
op "stack" {
  "tensors: tensors", "dim: dim?", kind = "composite",
  autocast = "widest", help = "joined along a new dim (the first by default)",
}
op "gather" {
  "x", "dim: dim", "index",
  grad = {x = "scatter_add(zeros_of(g, size_of(x)), dim, index, g)"},
  help = "out[i][j] = x[index[i][j]][j] for dim 1",
}
op "scatter_add" {
  "x", "dim: dim", "index", "src",
  grad = {x = "g", src = "scattered_grad(g, dim, index, size_of(src))"},
  autocast = "widest", help = "x with src added at index along dim; also scatter_add_",
}
op "index_select" {
  "x", "dim: dim", "index",
  grad = {x = "index_add(zeros_of(g, size_of(x)), dim, index, g)"},
  help = "the entries of dim named by a 1-d index",
}
op "index_add" {
  "x", "dim: dim", "index", "src",
  grad = {x = "g", src = "index_select(g, dim, index)"},
  help = "x with src's entries added where a 1-d index says",
}
op "index_get" {
  "x", "indices: tensors or nil",
  grad = {x = "index_put(zeros_of(g, size_of(x)), indices, g, true)"},
  help = "x[indices]: one index tensor or nil a dim, broadcast together; masks are made indices before",
}
op "index_put" {
  "x", "indices: tensors or nil", "values: scalar", options = {"accumulate = false"},
  grad = {x = "accumulate ? g : index_put(g, indices, 0)", values = "index_get(g, indices)"},
  autocast = "widest", help = "x with values at indices; also index_put_",
}
op "nonzero" {
  "x", options = {"as_tuple = false"},
  grad = "none",
  help = "[n, ndim] indices of the nonzero elements; as_tuple: a result [n] for each dim, as x[{…}] takes them",
}
op "topk" {
  "x", "k: int", "dim: dim?", options = {"largest = true", "sorted = true"}, results = 2,
  grad = {x = "place_grad(g, y1, dim, true, size_of(x))"},
  help = "the k largest along dim (the last by default): values, indices",
}
op "one_hot" {
  "x", "num_classes: int = -1",
  grad = "none",
  help = "int64 zeros with a 1 at each class of x, which counts from 1",
}
op "embedding" {
  "index", "weight", options = {"padding_idx: int = 0"},
  grad = {weight = "embedding_backward(g, index, size_of(weight)[1], padding_idx)"},
  help = "rows of weight; padding_idx gets no gradient",
}
op "embedding_backward" {
  "grad", "index", "num: int", "padding_idx: int",
  grad = {
    grad = {
      "rows = embedding(index, g)",
      "padding_idx > 0 ? masked_fill(rows, unsqueeze(index == padding_idx, -1), 0) : rows",
    },
  },
  help = "gradient of embedding's weight, [num, features]",
}

-- ---- convolution and pooling: x [N, C, H, W]; channels-last in memory
-- Convolutions and poolings are each closed under differentiation.
op "conv2d" {
  "x", "weight", "bias?",
  options = {"stride: pair = 1", "padding: padding = 0", "dilation: pair = 1", "groups: int = 1"},
  grad = {
    x = "conv2d_input(g, weight, size_of(x), stride, padding, dilation, groups)",
    weight = "conv2d_weight(g, x, size_of(weight), stride, padding, dilation, groups)",
    bias = "sum(g, ndim_of(g) == 3 ? [1, 2] : [0, 2, 3])",
  },
  autocast = "lower",
  forms = {
    {
      when = "padding == 'same'",
      needs = {
        {"stride[1] == 1 && stride[2] == 1",
          "padding = \"same\" is for a stride of 1, and stride is {{stride[1]}, {stride[2]}}"},
      },
      "conv2d(padded_to_same(x, weight, dilation), weight, bias, stride, "
        .. "[same_padding(weight, dilation, 1), same_padding(weight, dilation, 2)], dilation, groups)",
    },
  },
  help = "convolution; weight [out, C / groups, kH, kW]; padding 'valid' is none, 'same' keeps H and W (stride 1)",
}
op "conv2d_input" {
  "grad", "weight", "size: size", "stride: pair = 1", "padding: pair = 0", "dilation: pair = 1", "groups: int = 1",
  grad = {
    grad = "conv2d(g, weight, nil, stride, padding, dilation, groups)",
    weight = "conv2d_weight(grad, g, size_of(weight), stride, padding, dilation, groups)",
  },
  help = "gradient of conv2d for an input of that size",
}
op "conv2d_weight" {
  "grad", "x", "size: size", "stride: pair = 1", "padding: pair = 0", "dilation: pair = 1", "groups: int = 1",
  grad = {
    grad = "conv2d(x, g, nil, stride, padding, dilation, groups)",
    x = "conv2d_input(grad, g, size_of(x), stride, padding, dilation, groups)",
  },
  help = "gradient of conv2d for a weight of that size",
}
op "max_pool2d" {
  "x", "kernel_size: pair?",
  options = {"stride: pair?", "padding: pair = 0", "dilation: pair = 1", "ceil_mode = false",
    "return_indices = false"},
  hidden = 1,
  grad = {x = "max_pool2d_backward(g, y1, size_of(x), kernel_size, stride, padding, dilation)"},
  help = "largest in each window; stride is kernel_size by default; return_indices: also where it is in H * W, from 1",
}
op "max_pool2d_with_indices" {
  "x", "kernel_size: pair?",
  options = {"stride: pair?", "padding: pair = 0", "dilation: pair = 1", "ceil_mode = false", "return_indices = true"},
  results = 2,
  grad = {x = "max_pool2d_backward(g, y1, size_of(x), kernel_size, stride, padding, dilation)"},
  help = "max_pool2d with return_indices",
}
op "max_pool2d_backward" {
  "grad", "places", "size: size",
  options = {"kernel_size: pair?", "stride: pair?", "padding: pair = 0", "dilation: pair = 1"},
  grad = {grad = "pooled_places(g, places)"},
  help = "gradient of max_pool2d; places holds each maximum's place in H * W, from 1; to know its windows "
    .. "can be faster",
}
op "max_unpool2d" {
  "x", "indices", "kernel_size: pair?", options = {"stride: pair?", "padding: pair = 0", "output_size: size?"},
  kind = "composite",
  help = "zeros with x at indices, places in H * W from 1: what max_pool2d took; output_size says which "
    .. "of the sizes that pool to x's",
}
op "avg_pool2d" {
  "x", "kernel_size: pair?",
  options = {"stride: pair?", "padding: pair = 0", "ceil_mode = false", "count_include_pad = true",
    "divisor_override: int?"},
  grad = {
    x = "avg_pool2d_backward(g, size_of(x), kernel_size, stride, padding, ceil_mode, count_include_pad, "
      .. "divisor_override)",
  },
  help = "mean of each window; stride is kernel_size by default; divisor_override: sums divided by it",
}
op "avg_pool2d_backward" {
  "grad", "size: size", "kernel_size: pair?", "stride: pair?", "padding: pair = 0", "ceil_mode = false",
  "count_include_pad = true", "divisor_override: int?",
  grad = {grad = "avg_pool2d(g, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override)"},
  help = "gradient of avg_pool2d for an input of that size",
}
op "adaptive_avg_pool2d" {
  "x", "output_size: pair?",
  grad = {x = "adaptive_avg_pool2d_backward(g, size_of(x))"},
  help = "mean over as many windows as output_size says",
}
op "adaptive_avg_pool2d_backward" {
  "grad", "size: size",
  grad = {grad = "adaptive_avg_pool2d(g, [size_of(grad)[-2], size_of(grad)[-1]])"},
  help = "gradient of adaptive_avg_pool2d for an input of that size",
}

-- ---- normalization, dropout
-- y1, y2 are mean and inverse deviation, also of layer_norm. With xhat = (x - mean) invstd and w the weight, for n
-- elements that share statistics:
--   dx = invstd (w g - mean(w g) - xhat mean(w g xhat)),  dw = sum(g xhat),  db = sum(g)
-- For double backward the statistics are made anew from x, since their gradients matter too.
op "batch_norm" {
  "x", "running_mean?", "running_var?", "weight?", "bias?",
  options = {"training = false", "momentum: number = 0.1", "eps: number = 1e-5"}, hidden = 2,
  writes = {"running_mean", "running_var", when = "training"},
  grad = {
    ["x, weight, bias"] = "batch_norm_backward(g, x, weight, y1, y2, "
      .. "training ? nil : running_mean, training ? nil : running_var, training, eps)",
  },
  help = "x [N, C, ...] normalized a channel; training uses the batch and updates the running values",
}
op "batch_norm_backward" {
  "grad", "x", "weight?", "save_mean?", "save_invstd?", "running_mean?", "running_var?", "training = false",
  "eps: number = 1e-5",
  results = 3,
  grad = "formula",
  formula = { -- x [N, C, ...]: statistics a channel
    "dims = all_but(1, ndim_of(x))",
    "centred = x - (training ? mean(x, dims, true) : along(running_mean, 1, ndim_of(x)))",
    "invstd = rsqrt((training ? mean(square(centred), dims, true) : along(running_var, 1, ndim_of(x))) + eps)",
    "xhat = centred * invstd",
    "wg = given(weight) ? grad * along(weight, 1, ndim_of(x)) : grad",
    "training ? invstd * (wg - mean(wg, dims, true) - xhat * mean(wg * xhat, dims, true)) : wg * invstd",
    "sum(grad * xhat, dims)",
    "sum(grad, dims)",
  },
  help = "gradients of batch_norm: x, weight, bias",
}
op "batch_norm_relu" {
  "x", "running_mean?", "running_var?", "weight?", "bias?", "addend?",
  options = {"training = false", "momentum: number = 0.1", "eps: number = 1e-5"}, hidden = 2,
  writes = {"running_mean", "running_var", when = "training"},
  grad = {
    ["x, weight, bias, addend"] = "batch_norm_relu_backward(g, x, given(addend) ? y : nil, weight, bias, y1, y2, "
      .. "training, eps)",
  },
  help = "relu(batch_norm(x) + addend) in fewer passes over memory; addend, of x's shape, may be nil",
}
op "batch_norm_relu_backward" {
  "grad", "x", "y?", "weight?", "bias?", "save_mean", "save_invstd", "training = false", "eps: number = 1e-5",
  results = 4,
  grad = "formula",
  formula = {
    "dims = all_but(1, ndim_of(x))",
    "centred = x - (training ? mean(x, dims, true) : along(save_mean, 1, ndim_of(x)))",
    "invstd = training ? rsqrt(mean(square(centred), dims, true) + eps) : along(save_invstd, 1, ndim_of(x))",
    "xhat = centred * invstd",
    "scaled_x = given(weight) ? xhat * along(weight, 1, ndim_of(x)) : xhat",
    "before_relu = given(y) ? y : given(bias) ? scaled_x + along(bias, 1, ndim_of(x)) : scaled_x",
    "masked = masked_fill(grad, before_relu <= 0, 0)",
    "wg = given(weight) ? masked * along(weight, 1, ndim_of(x)) : masked",
    "training ? invstd * (wg - mean(wg, dims, true) - xhat * mean(wg * xhat, dims, true)) : wg * invstd",
    "sum(masked * xhat, dims)",
    "sum(masked, dims)",
    "given(y) ? masked : nil",
  },
  help = "gradients of batch_norm_relu: x, weight, bias, addend; y is its result, nil if there was no addend; then "
    .. "the fourth is nil too",
}
op "layer_norm" {
  "x", "normalized_shape: size", "weight?", "bias?", options = {"eps: number = 1e-5"}, hidden = 2,
  grad = {["x, weight, bias"] = "layer_norm_backward(g, x, normalized_shape, y1, y2, weight, eps)"},
  autocast = "keep_gpu", help = "x normalized over its last dims",
}
op "layer_norm_backward" {
  "grad", "x", "normalized_shape: size", "save_mean", "save_rstd", "weight?", "eps: number = 1e-5", results = 3,
  grad = "formula",
  formula = { -- statistics over the last dims
    "first = ndim_of(x) - length_of(normalized_shape)",
    "dims = range(first, ndim_of(x))",
    "centred = x - mean(x, dims, true)",
    "invstd = rsqrt(mean(square(centred), dims, true) + eps)",
    "xhat = centred * invstd",
    "wg = given(weight) ? grad * weight : grad",
    "invstd * (wg - mean(wg, dims, true) - xhat * mean(wg * xhat, dims, true))",
    "first > 0 ? sum(grad * xhat, range(0, first)) : grad * xhat",
    "first > 0 ? sum(grad, range(0, first)) : grad",
  },
  help = "gradients of layer_norm: x, weight, bias",
}
op "rms_norm" {
  "x", "normalized_shape: size", "weight?", options = {"eps: number = nan"},
  needs = {
    {"ends_with(size_of(x), normalized_shape)",
      "normalized_shape is {text_of(normalized_shape)}, x {x}; it has to be x's last sizes"},
    {"!given(weight) || ends_with(normalized_shape, size_of(weight)) && ndim_of(weight) == length_of(normalized_shape)",
      "weight is {weight}; it has to be of normalized_shape, {text_of(normalized_shape)}"},
  },
  formula = {
    "dims = range(ndim_of(x) - length_of(normalized_shape), ndim_of(x))",
    "scaled_x = x * rsqrt(mean(square(x), dims, true) + (eps == eps ? eps : epsilon_of(x)))",
    "given(weight) ? scaled_x * weight : scaled_x",
  },
  autocast = "keep_gpu",
  help = "x over the root of its mean square over the last dims, plus eps, by default the least above 1 in x's dtype",
}
op "group_norm" {
  "x", "num_groups: int", "weight?", "bias?", options = {"eps: number = 1e-5"},
  needs = {
    {"ndim_of(x) >= 2", "x is {x}; [N, C, ...] wanted"},
    {"divides(num_groups, size_of(x)[2])",
      "{size_of(x)[2]} channels are not to be divided into {num_groups} groups"},
    {"!given(weight) || ndim_of(weight) == 1 && size_of(weight)[1] == size_of(x)[2]",
      "weight is {weight}; it has to hold one number for each of {size_of(x)[2]} channels"},
    {"!given(bias) || ndim_of(bias) == 1 && size_of(bias)[1] == size_of(x)[2]",
      "bias is {bias}; it has to hold one number for each of {size_of(x)[2]} channels"},
  },
  formula = {
    "count = size_of(x)[1] * num_groups",
    "each = numel_of(x) / (count > 0 ? count : 1)",
    "normal = reshape(layer_norm(reshape(x, [count, each]), [each], nil, nil, eps), size_of(x))",
    "scaled_x = given(weight) ? normal * along(weight, 1, ndim_of(x)) : normal",
    "given(bias) ? scaled_x + along(bias, 1, ndim_of(x)) : scaled_x",
  },
  autocast = "keep_gpu",
  help = "x [N, C, ...], the channels in num_groups groups, each of which is normalized by its own mean and variance; "
    .. "weight and bias are of channels",
}
-- y1 is the mask.
op "dropout" {
  "x", "p: number = 0.5", "training = true", hidden = 1,
  grad = {x = "training && p > 0 ? g * y1 * (p < 1 ? 1 / (1 - p) : 0) : g"},
  help = "zeros with probability p, the rest divided by 1 - p",
}

-- ---- losses; targets count classes from 1
-- y1 is the total weight of the targets.
op "nll_loss" {
  "x", "target", options = {"weight?", "ignore_index: int = -100", "reduction: reduction = mean"}, hidden = 1,
  grad = {x = "nll_loss_backward(g, target, weight, ignore_index, reduction, y1, size_of(x))"},
  autocast = "keep", help = "minus x at target; x log-probabilities [N, C] or [N, C, ...]",
}
op "nll_loss_backward" {
  "grad", "target", "weight?", "ignore_index: int = -100", "reduction: reduction = mean", "total", "size: size",
  grad = {grad = "nll_loss(g, target, weight, ignore_index, reduction)"},
  help = "gradient of nll_loss for an x of that size",
}
op "cross_entropy" {
  "x", "target",
  options = {"weight?", "ignore_index: int = -100", "label_smoothing: number = 0", "reduction: reduction = mean"},
  needs = {
    {"ndim_of(x) > 0", "x needs a dim of classes: [C], [N, C] or [N, C, ...]"},
    {"label_smoothing >= 0 && label_smoothing <= 1", "label_smoothing is {label_smoothing}; it has to be from 0 to 1"},
    {"!given(weight) || ndim_of(weight) == 1 && size_of(weight)[1] == size_of(x)[ndim_of(x) > 1 ? 2 : 1]",
      "weight is {weight}; it has to hold one number for each of {size_of(x)[ndim_of(x) > 1 ? 2 : 1]} classes"},
    {"!is_float(target) || same_size(x, target)",
      "target is {dtype_of(target)} {target}; probabilities have to be x's size {x}, and classes integers"},
    {"is_float(target) || ndim_of(target) == ndim_of(x) - 1",
      "target is {target}; for x of {x} it has one dim less, without the classes"},
  },
  -- Where one part does not count it is nil, and so is all that is made of it. No batch is one of one.
  formula = {
    "xs = ndim_of(x) == 1 ? unsqueeze(x, 0) : x",
    "targets = ndim_of(x) == 1 ? unsqueeze(target, 0) : target",
    "classes = size_of(xs)[2]",
    "smooth = label_smoothing > 0 && !is_float(target)",
    "logp = log_softmax(xs, 1)",
    "terms = !smooth && !is_float(target) ? nil : given(weight) ? logp * along(weight, 1, ndim_of(logp)) : logp",
    -- against probabilities; the mean is over everything but the classes
    "soft = !is_float(target) ? nil "
      .. ": label_smoothing > 0 ? targets * (1 - label_smoothing) + label_smoothing / classes : targets",
    "distance = -(terms * soft)",
    -- the part of label smoothing that spreads over all classes
    "ignored = smooth ? targets == ignore_index : nil",
    "evenly = smooth ? masked_fill(-sum(terms, 1), ignored, 0) : nil",
    "counts = given(weight) && smooth "
      .. "? masked_fill(index_select(weight, 0, flatten(masked_fill(targets, ignored, 1))), flatten(ignored), 0) "
      .. ": !ignored",
    "even = reduction == 'mean' ? sum(evenly) / sum(counts) : reduced(evenly, reduction)",
    "hard = is_float(target) ? nil : nll_loss(logp, targets, weight, ignore_index, reduction)",
    "loss = smooth ? hard * (1 - label_smoothing) + even * (label_smoothing / classes) "
      .. ": !is_float(target) ? hard : reduction == 'none' ? sum(distance, 1) "
      .. ": sum(distance) / (reduction == 'mean' ? numel_of(logp) / classes : 1)",
    "ndim_of(x) == 1 && reduction == 'none' ? reshape(loss, []) : loss",
  },
  autocast = "keep", help = "log_softmax and nll_loss; x [N, C] or [N, C, ...], target classes or probabilities",
}
local same_or_warned = {
  "same_size(x, target)", "x is {x}, target {target}; they are broadcast to one size, which is probably not what is "
    .. "meant: give them the same size", warn = true,
}
op "mse_loss" {
  "x", "target", options = {"reduction: reduction = mean"},
  needs = {same_or_warned},
  formula = "reduced(square(x - target), reduction)",
  autocast = "keep", help = "squared difference",
}
local same_size = {"same_size(x, target)", "x is {x}, target {target}; they have to be the same size"}
op "binary_cross_entropy" {
  "x", "target", options = {"weight?", "reduction: reduction = mean"},
  needs = {
    same_size,
    {"!(least_of(x) < 0 || largest_of(x) > 1)", "x has values from {least_of(x)} to {largest_of(x)}, and "
      .. "probabilities are from 0 to 1; bce_with_logits takes logits"}, -- which would be NaN by mistake
  },
  formula = {"loss = bce(x, target)", "reduced(given(weight) ? loss * weight : loss, reduction)"},
  autocast = "banned_gpu",
  help = "binary cross-entropy of probabilities x; bce_with_logits of what would be given to a sigmoid is safer",
}
op "bce_with_logits" {
  "x", "target", options = {"weight?", "pos_weight?", "reduction: reduction = mean"},
  needs = {same_size},
  -- (1 - t) x - (1 + (pos_weight - 1) t) log_sigmoid(x), times weight
  formula = {
    "positive = given(pos_weight) ? log_sigmoid(x) * ((pos_weight - 1) * target + 1) : log_sigmoid(x)",
    "loss = (1 - target) * x - positive",
    "reduced(given(weight) ? loss * weight : loss, reduction)",
  },
  autocast = "keep", help = "binary cross-entropy of sigmoid(x)",
}

op "l1_loss" {
  "x", "target", options = {"reduction: reduction = mean"}, needs = {same_or_warned},
  formula = "reduced(abs(x - target), reduction)",
  autocast = "keep", help = "absolute difference",
}
op "huber_loss" {
  "x", "target", options = {"delta: number = 1", "reduction: reduction = mean"},
  needs = {same_or_warned, {"delta > 0", "delta is {delta}; it has to be positive"}},
  formula = "reduced(huber(x, target, delta), reduction)",
  autocast = "keep", help = "half the squared difference, and from delta on a straight line of that slope",
}
op "smooth_l1_loss" {
  "x", "target", options = {"beta: number = 1", "reduction: reduction = mean"},
  needs = {same_or_warned, {"beta >= 0", "beta is {beta}; it has to be 0 or more"}},
  formula = "beta == 0 ? reduced(abs(x - target), reduction) : reduced(huber(x, target, beta), reduction) / beta",
  autocast = "keep", help = "huber_loss over beta: of slope 1 from there on; beta 0 is l1_loss",
}
op "kl_div" {
  "x", "target", options = {"log_target = false", "reduction: divergence_reduction = mean"},
  formula = {
    "loss = log_target ? exp(target) * (target - x) : relative_entropy(x, target)",
    "reduction == 'batchmean' ? sum(loss) / (ndim_of(x) > 0 ? size_of(x)[1] : 1) : reduced(loss, reduction)",
  },
  autocast = "keep",
  help = "target (log target - x): Kullback and Leibler's divergence of log-probabilities x from target, given as "
    .. "probabilities or, log_target, their logarithms; 'batchmean' is the sum over the batch's size",
}
op "poisson_nll_loss" {
  "x", "target", options = {"log_input = true", "full = false", "eps: number = 1e-8", "reduction: reduction = mean"},
  formula = {
    "loss = log_input ? exp(x) - target * x : x - target * log(x + eps)",
    "stirling = full ? target * log(target) - target + log(target * 6.283185307179586) * 0.5 : nil",
    "reduced(full ? loss + masked_fill(stirling, target <= 1, 0) : loss, reduction)",
  },
  autocast = "keep",
  help = "of counts target whose mean is x, or e^x with log_input; full adds Stirling's log(target!) from 2 on",
}
op "gaussian_nll_loss" {
  "x", "target", "var: scalar", options = {"full = false", "eps: number = 1e-6", "reduction: reduction = mean"},
  needs = {
    {"eps > 0", "eps is {eps}; it has to be positive"},
    {"ndim_of(var) <= ndim_of(x)", "var is {var}, x {x}; var has x's size, or one for each row of it"},
    {"!(least_of(var) < 0)", "var has {least_of(var)}, and variances are not negative"},
  },
  formula = { -- the gradient does not see that small variances become eps
    "shaped = ndim_of(var) > 0 && ndim_of(var) == ndim_of(x) - 1 ? unsqueeze(var, -1) : var",
    "held = shaped < eps ? shaped - detach(shaped) + eps : shaped",
    "loss = (log(held) + square(x - target) / held) * 0.5",
    "reduced(full ? loss + 0.9189385332046727 : loss, reduction)",
  },
  autocast = "keep",
  help = "of a normal distribution with mean x and variance var, at least eps, at target; full adds log(2 pi) / 2",
}
op "soft_margin_loss" {
  "x", "target", options = {"reduction: reduction = mean"},
  formula = "reduced(-log_sigmoid(target * x), reduction)",
  autocast = "keep", help = "log(1 + e^(-target x)) for targets -1 and 1",
}
op "hinge_embedding_loss" {
  "x", "target", options = {"margin: number = 1", "reduction: reduction = mean"},
  formula = {
    "lacking = margin - x",
    "apart = lacking < 0 ? 0 : lacking",
    "reduced((target == 1 ? 0 : apart) + (target == -1 ? 0 : x), reduction)",
  },
  autocast = "keep", help = "of distances x: x where target is 1, what it lacks to margin where it is -1",
}
op "margin_ranking_loss" {
  "x1", "x2", "target", options = {"margin: number = 0", "reduction: reduction = mean"},
  needs = {
    {"ndim_of(x1) == ndim_of(x2) && ndim_of(x2) == ndim_of(target)",
      "x1 is {x1}, x2 {x2}, target {target}; they have to have as many dims each"},
  },
  formula = {
    "lacking = margin - target * (x1 - x2)",
    "reduced(lacking < 0 ? 0 : lacking, reduction)",
  },
  autocast = "keep", help = "what x1 lacks to be margin above x2 where target is 1, below where it is -1",
}
op "cosine_similarity" {
  "x1", "x2", options = {"dim: dim? = 1", "eps: number = 1e-8"},
  needs = {{"is_float(x1) || is_float(x2)", "x1 is {dtype_of(x1)}; floating tensors wanted"}},
  formula = { -- the gradient does not see that small lengths become eps
    "first = same_size(x1, x2) ? x1 : x1 + zeros_like(x2)",
    "second = same_size(x1, x2) ? x2 : x2 + zeros_like(x1)",
    "norm1 = norm(first, 2, [dim], true)",
    "norm2 = norm(second, 2, [dim], true)",
    "length1 = norm1 < eps ? norm1 - detach(norm1) + eps : norm1",
    "length2 = norm2 < eps ? norm2 - detach(norm2) + eps : norm2",
    "squeeze(sum(first * second, [dim], true) / (length1 * length2), [dim])",
  },
  autocast = "keep",
  help = "x1 and x2's product summed over dim, over their lengths, each at least eps; 1 in one direction",
}
op "cosine_embedding_loss" {
  "x1", "x2", "target", options = {"margin: number = 0", "reduction: reduction = mean"},
  needs = {
    {"ndim_of(target) <= 1", "target is {target}; it has to be [N], or 0-d for vectors"},
    {"ndim_of(x1) == ndim_of(target) + 1 && ndim_of(x2) == ndim_of(target) + 1",
      "x1 is {x1}, x2 {x2}, target {target}; [N, D] with targets [N] or [D] with one target wanted"},
  },
  formula = {
    "lengths = (sum(square(x1), [-1]) + 1e-12) * (sum(square(x2), [-1]) + 1e-12)",
    "cosine = sum(x1 * x2, [-1]) / sqrt(lengths)",
    "over = cosine - margin",
    "reduced((target == 1 ? 1 - cosine : 0) + (target == -1 ? (over < 0 ? 0 : over) : 0), reduction)",
  },
  autocast = "keep", help = "1 - cosine_similarity where target is 1, what it is above margin where it is -1",
}
op "pairwise_distance" {
  "x1", "x2", options = {"p: number = 2", "eps: number = 1e-6", "keepdim = false"},
  formula = "norm(x1 - x2 + eps, p, [-1], keepdim)",
  help = "p-norm of x1 - x2 + eps over the last dim",
}
op "triplet_margin_loss" {
  "anchor", "positive", "negative",
  options = {
    "margin: number = 1", "p: number = 2", "eps: number = 1e-6", "swap = false", "reduction: reduction = mean",
  },
  needs = {
    {"ndim_of(anchor) == ndim_of(positive) && ndim_of(positive) == ndim_of(negative)",
      "anchor is {anchor}, positive {positive}, negative {negative}; they have to have as many dims each"},
    {"margin > 0", "margin is {margin}; it has to be positive"},
  },
  formula = {
    "near = pairwise_distance(anchor, positive, p, eps)",
    "off = pairwise_distance(anchor, negative, p, eps)",
    "far = swap ? minimum(off, pairwise_distance(positive, negative, p, eps)) : off",
    "lacking = near - far + margin",
    "reduced(lacking < 0 ? 0 : lacking, reduction)",
  },
  autocast = "keep",
  help = "what negatives lack to be margin farther from anchor than positives; swap: or from positive, where that "
    .. "is nearer",
}
op "multi_margin_loss" {
  "x", "target", options = {"p: int = 1", "margin: number = 1", "weight?", "reduction: reduction = mean"},
  needs = {
    {"p == 1 || p == 2", "p is {p}; it has to be 1 or 2"},
    {"ndim_of(x) <= 2", "x is {x}; [N, C] or [C] wanted"},
    {"numel_of(x) > 0 || ndim_of(x) == 2 && size_of(x)[2] > 0", "x is {x}; there have to be classes"},
    {"ndim_of(target) <= 1 && numel_of(target) == (ndim_of(x) == 2 ? size_of(x)[1] : 1)",
      "target is {target}; for x of {x} it has a class for each row"},
    {"!given(weight) || ndim_of(weight) == 1 && size_of(weight)[1] == (ndim_of(x) > 0 ? size_of(x)[-1] : 1)",
      "weight is {weight}; it has to hold one number for each of {ndim_of(x) > 0 ? size_of(x)[-1] : 1} classes"},
  },
  formula = {
    "rows_of_x = ndim_of(x) < 2 ? reshape(x, [1, numel_of(x)]) : x",
    "classes = size_of(rows_of_x)[2]",
    "labels = reshape(target, [size_of(rows_of_x)[1], 1])",
    "own = gather(rows_of_x, 1, labels)",
    "lacking = relu(margin - own + rows_of_x)",
    "powered = p == 2 ? square(lacking) : lacking",
    "others = masked_fill(powered, one_hot(squeeze(labels, [1]), classes) == 1, 0)",
    "summed = sum(others, [1]) / classes",
    "loss = given(weight) ? summed * index_select(weight, 0, squeeze(labels, [1])) : summed",
    "reduced(ndim_of(x) < 2 ? squeeze(loss, [0]) : loss, reduction)",
  },
  autocast = "keep",
  help = "what x at its class target lacks to be margin above each other class, to the power p, over C; "
    .. "weight multiplies by the target's class",
}
op "multilabel_soft_margin_loss" {
  "x", "target", options = {"weight?", "reduction: reduction = mean"},
  needs = {{"ndim_of(x) > 0", "x is 0-d; [N, C] or [C] wanted"}},
  formula = {
    "each = -(target * log_sigmoid(x) + (1 - target) * log_sigmoid(-x))",
    "loss = sum(given(weight) ? each * weight : each, [-1]) / size_of(x)[-1]",
    "reduced(loss, reduction)",
  },
  autocast = "keep", help = "bce_with_logits, its mean over the last dim, the classes",
}

-- ---- products and distances
local is_matrix = {"ndim_of(x) == 2", "x is {x}; it has to be a matrix"}
op "mv" {
  "x", "vec",
  needs = {
    {"ndim_of(x) == 2 && ndim_of(vec) == 1 && size_of(x)[2] == size_of(vec)[1]",
      "x is {x}, vec {vec}; [n, m] and [m] wanted"},
  },
  formula = "squeeze(mm(x, unsqueeze(vec, 1)), [1])",
  autocast = "lower", help = "a matrix times a vector",
}
local two_vectors = {
  "ndim_of(x) == 1 && ndim_of(other) == 1 && size_of(x)[1] == size_of(other)[1]",
  "x is {x}, other {other}; two vectors of one length wanted",
}
op "dot" {
  "x", "other", needs = {two_vectors},
  formula = "reshape(mm(unsqueeze(x, 0), unsqueeze(other, 1)), [])",
  help = "the sum of two vectors' products",
}
op "vdot" {"x", "other", needs = {two_vectors}, formula = "dot(x, other)", help = "dot, under its name in BLAS"}
op "outer" {
  "x", "other",
  needs = {{"ndim_of(x) == 1 && ndim_of(other) == 1", "x is {x}, other {other}; two vectors wanted"}},
  formula = "unsqueeze(x, 1) * unsqueeze(other, 0)",
  help = "[n, m] of the products of each of two vectors' elements",
}
op "addmv" {
  "input", "x", "vec", options = {"beta: number = 1", "alpha: number = 1"},
  formula = {
    "product = alpha == 1 ? mv(x, vec) : mv(x, vec) * alpha",
    "beta == 0 ? product : add(product, input, beta)",
  },
  autocast = "lower",
  help = "beta * input + alpha * x times the vector vec; input broadcasts, and counts not for beta 0",
}
op "addr" {
  "input", "x", "other", options = {"beta: number = 1", "alpha: number = 1"},
  formula = {
    "product = outer(alpha == 1 ? x : x * alpha, other)",
    "beta == 0 ? product : add(product, input, beta)",
  },
  autocast = "lower", help = "beta * input + alpha * outer(x, other); input broadcasts, and counts not for beta 0",
}
local batches = {
  "ndim_of(x) == 3 && ndim_of(other) == 3", "x is {x}, other {other}; [b, n, k] and [b, k, m] wanted",
}
op "baddbmm" {
  "input", "x", "other", options = {"beta: number = 1", "alpha: number = 1"}, needs = {batches},
  formula = {
    "product = bmm(alpha == 1 ? x : x * alpha, other)",
    "beta == 0 ? product : add(product, input, beta)",
  },
  autocast = "lower", help = "beta * input + alpha * bmm(x, other); input broadcasts, and counts not for beta 0",
}
op "addbmm" {
  "input", "x", "other", options = {"beta: number = 1", "alpha: number = 1"},
  needs = {
    batches,
    {"size_of(x)[1] == size_of(other)[1] && size_of(x)[3] == size_of(other)[2]",
      "x is {x}, other {other}; [b, n, k] and [b, k, m] wanted"},
  },
  formula = { -- the batch is one more dim to sum over
    "wide = reshape(transpose(x, 0, 1), [size_of(x)[2], size_of(x)[1] * size_of(x)[3]])",
    "tall = reshape(other, [size_of(x)[1] * size_of(x)[3], size_of(other)[3]])",
    "product = mm(alpha == 1 ? wide : wide * alpha, tall)",
    "beta == 0 ? product : add(product, input, beta)",
  },
  autocast = "lower",
  help = "beta * input + alpha * the sum of a batch's products; input [n, m] broadcasts, and counts not for beta 0",
}
op "trace" {
  "x", needs = {is_matrix},
  -- every m + 1-th element, where m is the width, of the rows that have one
  formula = {
    "n = size_of(x)[1] < size_of(x)[2] ? size_of(x)[1] : size_of(x)[2]",
    "n == 0 ? sum(x) : sum(slice(flatten(slice(x, 0, 1, n)), 0, 1, -1, size_of(x)[2] + 1))",
  },
  help = "the sum of a matrix's diagonal",
}
op "cross" {
  "x", "other", "dim: dim? = -1",
  needs = {
    {"ndim_of(x) == ndim_of(other) && ndim_of(x) > 0", "x is {x}, other {other}; they have to have as many dims each"},
  },
  formula = {
    "x1 = select(x, dim, 1)", "x2 = select(x, dim, 2)", "x3 = select(x, dim, 3)",
    "y1 = select(other, dim, 1)", "y2 = select(other, dim, 2)", "y3 = select(other, dim, 3)",
    "stack([x2 * y3 - x3 * y2, x3 * y1 - x1 * y3, x1 * y2 - x2 * y1], dim)",
  },
  help = "vector product along dim, of size 3, by default the last (as torch.linalg.cross)",
}

-- ---- views
op "view" {
  "x", "size: size", kind = "view",
  grad = {x = "reshape(g, size_of(x))"},
  help = "same memory, other sizes; one may be -1",
}
op "reshape" {"x", "size: size", kind = "composite", help = "view where the strides allow, else a copy"}
op "permute" {"x", "dims: dims?", kind = "view", grad = {x = "unpermuted(g, dims)"}, help = "dims in another order"}
op "transpose" {
  "x", "dim0: dim", "dim1: dim", kind = "view",
  grad = {x = "transpose(g, dim0, dim1)"},
  help = "two dims exchanged",
}
op "t" {"x", kind = "view", grad = {x = "t(g)"}, help = "a matrix transposed"}
op "select" {
  "x", "dim: dim", "index: int", kind = "view",
  grad = {x = "select_grad(g, dim, index, size_of(x))"},
  help = "one entry of dim, from 1 or negative from the end; the dim goes",
}
op "slice" {
  "x", "dim: dim", "first: int = 1", "last: int = -1", "step: int = 1", kind = "view",
  grad = {x = "slice_grad(g, dim, first, step, size_of(x))"},
  help = "entries first to last (inclusive, from 1, negative from the end) of dim",
}
op "narrow" {
  "x", "dim: dim", "start: int", "length: int", kind = "view",
  grad = {x = "slice_grad(g, dim, start, 1, size_of(x))"},
  help = "length entries of dim from start on, which counts from 1",
}
op "expand" {
  "x", "size: size", kind = "view",
  grad = {x = "g"},
  help = "broadcast to size without a copy; -1 keeps a size",
}
op "squeeze" {"x", "dim: dims?", kind = "view", grad = {x = "reshape(g, size_of(x))"}, help = "without dims of size 1"}
op "unsqueeze" {
  "x", "dim: dim", kind = "view",
  grad = {x = "reshape(g, size_of(x))"},
  help = "with a dim of size 1 more",
}
op "flatten" {"x", "start_dim: dim?", "end_dim: dim?", kind = "composite", help = "dims start_dim to end_dim made one"}
op "detach" {"x", kind = "view", grad = "none", help = "the same data, outside the graph"}
op "slice_backward" {
  "grad", "size: size", "dim: dim", "first: int", "step: int",
  grad = {grad = "slice_grad_grad(g, dim, first, step, size_of(grad))"},
  help = "zeros of that size with grad where slice had read",
}

-- ---- copies and conversions
op "clone" {"x", options = {"memory_format: memory_format = preserve"}, grad = {x = "g"}, help = "a copy"}
op "contiguous" {
  "x", options = {"memory_format: memory_format = contiguous"}, kind = "composite",
  help = "x itself if it is laid out so, else a copy",
}
op "to_copy" {
  "x",
  options = {"dtype: dtype?", "device: device?", "memory_format: memory_format = preserve", "non_blocking = false"},
  grad = {x = "g"},
  help = "a copy in another dtype, on another device; non_blocking: from or to pinned memory it may go on "
    .. "after the call",
}

-- ---- writing in place
op "copy_" {
  "x", "src: scalar", options = {"non_blocking = false"}, kind = "write",
  grad = {x = "nil", src = "g"},
  help = "x becomes src, converted and broadcast; non_blocking as for to",
}
op "fill_" {"x", "value: scalar", kind = "write", grad = {x = "nil", value = "g"}, help = "every element becomes value"}
op "zero_" {"x", kind = "write", grad = {x = "nil"}, help = "every element becomes 0"}
op "normal_" {
  "x", "mean: number = 0", "std: number = 1", kind = "write",
  grad = {x = "nil"},
  help = "drawn from a normal distribution",
}
op "uniform_" {
  "x", "from: number = 0", "to: number = 1", kind = "write",
  grad = {x = "nil"},
  help = "drawn from [from, to)",
}
op "random_" {"x", "from: int", "to: int", kind = "write", grad = {x = "nil"}, help = "integers drawn from [from, to)"}
op "bernoulli_" {"x", "p: number = 0.5", kind = "write", grad = {x = "nil"}, help = "1 with probability p, else 0"}
op "scatter_add_" {
  "x", "dim: dim", "index", "src", kind = "write",
  grad = {x = "g", src = "scattered_grad(g, dim, index, size_of(src))"},
  help = "adds src at index along dim",
}
op "index_put_" {
  "x", "indices: tensors or nil", "values: scalar", options = {"accumulate = false"}, kind = "write",
  grad = {x = "accumulate ? g : index_put(g, indices, 0)", values = "index_get(g, indices)"},
  help = "writes values at indices",
}

-- ---- new tensors
op "empty" {
  "size: size", options = {"dtype: dtype?", "device: device?", "memory_format: memory_format = contiguous"},
  kind = "new",
  help = "uninitialized",
}
op "full" {
  "size: size", "value: scalar", options = {"dtype: dtype?", "device: device?"}, kind = "new",
  grad = {value = "g"},
  help = "filled with value",
}
op "zeros" {"size: size", options = {"dtype: dtype?", "device: device?"}, kind = "new", help = "zeros"}
op "ones" {"size: size", options = {"dtype: dtype?", "device: device?"}, kind = "new", help = "ones"}
op "rand" {"size: size", options = {"dtype: dtype?", "device: device?"}, kind = "new", help = "uniform in [0, 1)"}
op "randn" {"size: size", options = {"dtype: dtype?", "device: device?"}, kind = "new", help = "standard normal"}
op "randint" {
  "low: int", "high: int", "size: size", options = {"dtype: dtype?", "device: device?"}, kind = "new",
  help = "int64 integers in [low, high)",
}
op "randperm" {
  "n: int", options = {"dtype: dtype?", "device: device?"}, kind = "new",
  help = "1 to n in random order, int64",
}
op "arange" {
  "start: number", "stop: number = nan", "step: number = 1", options = {"dtype: dtype?", "device: device?"},
  kind = "new",
  help = "start, start + step, … below stop; arange(n) is 0 to n - 1",
}
op "linspace" {
  "start: number", "stop: number", "steps: int", options = {"dtype: dtype?", "device: device?"}, kind = "new",
  help = "steps numbers from start to stop, both included",
}
op "eye" {
  "n: int", "m: int = -1", options = {"dtype: dtype?", "device: device?"}, kind = "new",
  help = "[n, m] with ones on the diagonal",
}
op "empty_like" {
  "x", options = {"dtype: dtype?", "device: device?"}, kind = "new",
  grad = "none",
  help = "uninitialized, shaped and laid out like x",
}
op "zeros_like" {
  "x", options = {"dtype: dtype?", "device: device?"}, kind = "new",
  grad = "none",
  help = "zeros, shaped and laid out like x",
}
op "ones_like" {
  "x", options = {"dtype: dtype?", "device: device?"}, kind = "new",
  grad = "none",
  help = "ones, shaped and laid out like x",
}
op "full_like" {
  "x", "value: scalar", options = {"dtype: dtype?", "device: device?"}, kind = "new",
  grad = {value = "g", x = "nil"},
  help = "filled with value, shaped and laid out like x",
}
op "rand_like" {
  "x", options = {"dtype: dtype?", "device: device?"}, kind = "new",
  grad = "none",
  help = "uniform in [0, 1), shaped and laid out like x",
}
op "randn_like" {
  "x", options = {"dtype: dtype?", "device: device?"}, kind = "new",
  grad = "none",
  help = "standard normal, shaped and laid out like x",
}

--- Names that stand for several ops, by what is given: the first, or that for a `number` or a `tensor` in the second
--- place; or with an `option` that is true.
list.overloads = {
  max = {"amax", number = "max_dim", tensor = "maximum"},
  max_pool2d = {"max_pool2d", option = "return_indices", with = "max_pool2d_with_indices"},
  min = {"amin", number = "min_dim", tensor = "minimum"},
}

return list

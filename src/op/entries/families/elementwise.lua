--- Defines elementwise ops: arithmetic, functions, activations, comparisons, bits.
local op = ...

-- Returns a function for ops that have the fields `shared` in common. Their entries begin with the value of one
-- element (`elementwise`), the gradient, unless `shared` has it, and the help. A gradient that is one formula is for
-- the first tensor.
local function elementwise(shared)
  return function(head)
    local define, first = op(head, 1), head:match "%(([%w_]+)"
    return function(row)
      local entry, grad = {elementwise = row[1], help = row[#row]}, shared.grad or row[2]
      entry.grad = type(grad) == "string" and grad ~= "none" and {[first] = grad} or grad
      for _, fields in ipairs {row, shared} do
        for field, value in pairs(fields) do
          if type(field) == "string" then entry[field] = entry[field] or value end
        end
      end
      define(entry)
    end
  end
end
local common = elementwise {} -- results have the common dtype of the tensors
local floating = elementwise {result_dtype = "float"}
local wide = elementwise {result_dtype = "float", autocast = "keep_gpu"} -- autocast to float32 on GPUs
local test = elementwise {result_dtype = "bool", grad = "none"}
local integer = elementwise {takes = "integers", grad = "none"}

common "add(x: scalar, other: scalar, {alpha: number = 1})" {
  "x + alpha * other", {x = "g", other = "scaled(g, alpha)"}, "Adds alpha * other to x.", integral_arg = "alpha",
}
common "sub(x: scalar, other: scalar, {alpha: number = 1})" {
  "x - alpha * other", {x = "g", other = "scaled(g, -alpha)"}, "Subtracts alpha * other from x.",
  integral_arg = "alpha",
  needs = {{"!is_bool(x) && !is_bool(other)", "not defined for bool; use :ne, :logical_not, or :int() first"}},
}
common "rsub(x: scalar, other: scalar, {alpha: number = 1})" {
  "other - alpha * x", {x = "scaled(g, -alpha)", other = "g"}, "Subtracts alpha * x from other.",
  integral_arg = "alpha",
  needs = {{"!is_bool(x) && !is_bool(other)", "not defined for bool; use :ne, :logical_not, or :int() first"}},
}
common "mul(x: scalar, other: scalar)" {"x * other", {x = "g * other", other = "g * x"}, "Multiplies x by other."}
floating "div(x: scalar, other: scalar, {rounding_mode: rounding_mode = none})" {
  "x / other", {x = "g / other", other = "-(g * y / other)"}, "Divides x by other.",
  forms = {
    {when = "rounding_mode == 'floor'", "floor_divide(x, other)"},
    {when = "rounding_mode == 'trunc'", "trunc_divide(x, other)"},
  },
}
common "floor_divide(x: scalar, other: scalar)" {
  "floor_divide(x, other)", {x = "zeros_like(g)", other = "zeros_like(g)"}, "Divides x by other and rounds down.",
  divisor_arg = "other",
}
common "trunc_divide(x: scalar, other: scalar)" {
  "trunc_divide(x, other)", {x = "zeros_like(g)", other = "zeros_like(g)"}, "x / other rounded towards 0; dtype kept",
  divisor_arg = "other", internal = true,
}
common "remainder(x: scalar, other: scalar)" {
  "remainder(x, other)", {x = "g", other = "-(g * floor_divide(x, other))"},
  "Computes the remainder of x divided by other, with the sign of other.", divisor_arg = "other",
}
common "fmod(x: scalar, other: scalar)" {
  "fmod(x, other)", {x = "g", other = "-(g * trunc_divide(x, other))"},
  "Computes the remainder of x divided by other, with the sign of x.", divisor_arg = "other",
}
common "pow(x: scalar, exponent: scalar)" {
  "pow(x, exponent)",
  {
    x = "exponent == 0 ? 0 : g * (exponent * pow(x, exponent == 0 ? 1 : exponent - 1))",
    exponent = "x == 0 && exponent >= 0 ? 0 : g * (y * log(x))",
  },
  "Raises x to the power of exponent.", bool = "use :int() first",
  needs = {
    {"is_float(x) || is_float(exponent) || !is_number(exponent) || value_of(exponent) >= 0",
      "exponent must be at least 0 for integer tensors, got {value_of(exponent)}; use x:float()"},
  },
  forms = {
    {when = "is_number(exponent) && value_of(exponent) == 2 && !is_bool(x)", "square(x)"},
    {when = "is_number(exponent) && value_of(exponent) == 3 && !is_bool(x)", "cube(x)"},
    {when = "is_number(exponent) && value_of(exponent) == 0.5 && is_float(x)", "sqrt(x)"},
    {when = "is_number(exponent) && value_of(exponent) == -1 && is_float(x)", "reciprocal(x)"},
  },
  autocast = "keep_gpu",
}
common "cube(x)" {
  "x * x * x", "g * (3 * (x * x))", "x to the power of 3.", bool = "use :int() first", internal = true,
  autocast = "keep_gpu",
}
floating "xlogy(x: scalar, other: scalar)" {
  "isnan(other) ? other : x == 0 ? 0 : x * log(other)",
  {x = "x == 0 && other <= 0 ? 0 : xlogy(g, other)", other = "g * x / other"},
  "Computes x * log(other), which is 0 where x is 0.",
}
floating "hypot(x: scalar, other: scalar)" {
  "hypot(x, other)", {x = "g * (x / y)", other = "g * (other / y)"}, "Computes sqrt(x^2 + other^2), without overflow.",
}
floating "atan2(x: scalar, other: scalar)" {
  "atan2(x, other)",
  {
    x = "x == 0 && other == 0 ? 0 : g * (other / (x * x + other * other))",
    other = "x == 0 && other == 0 ? 0 : -(g * (x / (x * x + other * other)))",
  },
  "Computes the angle of the point (other, x) in radians, from -pi to pi.", autocast = "widest",
}
floating "copysign(x: scalar, other: scalar)" {
  "copysign(x, other)", {x = "x == 0 ? 0 : g * (y / x)", other = "zeros_like(g)"},
  "Returns the magnitude of x with the sign of other.",
}
floating "logaddexp(x: scalar, other: scalar)" {
  "x == other ? x + 0.69314718055994531 : maximum(x, other) + log1p(exp(-abs(x - other)))",
  {x = "g / (1 + exp(other - x))", other = "g / (1 + exp(x - other))"},
  "Computes log(e^x + e^other), without overflow.",
}
floating "logaddexp2(x: scalar, other: scalar)" {
  "x == other ? x + 1 : maximum(x, other) + 1.4426950408889634 * log1p(exp2(-abs(x - other)))",
  {x = "g / (1 + exp2(other - x))", other = "g / (1 + exp2(x - other))"},
  "Computes log2(2^x + 2^other), without overflow.",
}
floating "ldexp(x: scalar, other: scalar)" {
  "x * exp2(other)", {x = "g * exp2(other)", other = "g * (y * 0.69314718055994531)"}, "Computes x * 2^other.",
}
common "heaviside(x: scalar, values: scalar)" {
  "x == 0 ? values : x > 0", "none", "Computes the step function: 0 for x < 0, 1 for x > 0, and values at 0.",
}
common "maximum(x: scalar, other: scalar)" {
  "x > other || isnan(x) ? x : other",
  {x = "x == other ? g * 0.5 : x < other ? 0 : g", other = "x == other ? g * 0.5 : x > other ? 0 : g"},
  "Returns the larger of each pair of elements.",
}
common "minimum(x: scalar, other: scalar)" {
  "x < other || isnan(x) ? x : other",
  {x = "x == other ? g * 0.5 : x > other ? 0 : g", other = "x == other ? g * 0.5 : x < other ? 0 : g"},
  "Returns the smaller of each pair of elements.",
}
common "fmax(x: scalar, other: scalar)" {
  "x >= other || isnan(other) ? x : other",
  {
    x = "x == other ? g * 0.5 : x > other || isnan(other) ? g : 0",
    other = "x == other ? g * 0.5 : x > other || isnan(other) ? 0 : g",
  },
  "Returns the larger of each pair of elements, and ignores NaN.",
}
common "fmin(x: scalar, other: scalar)" {
  "x <= other || isnan(other) ? x : other",
  {
    x = "x == other ? g * 0.5 : x < other || isnan(other) ? g : 0",
    other = "x == other ? g * 0.5 : x < other || isnan(other) ? 0 : g",
  },
  "Returns the smaller of each pair of elements, and ignores NaN.",
}
common "neg(x)" {"-x", "-g", "Negates the elements.", bool = "use :int() or :logical_not()"}
common "abs(x)" {
  "abs(x)", "g * sign(x)", "Computes the absolute value of each element.", bool = "use :int() or :logical_not()",
}
common "sign(x)" {"(x > 0) - (x < 0)", "zeros_like(g)", "Returns the sign of each element: -1, 0 or 1."}
wide "exp(x)" {"exp(x)", "g * y", "Computes e^x."}
floating "exp2(x)" {"exp2(x)", "g * y * 0.69314718055994531", "Computes 2^x."}
wide "expm1(x)" {"expm1(x)", "g * (y + 1)", "Computes e^x - 1, accurately for small x."}
wide "log(x)" {"log(x)", "g / x", "Computes the natural logarithm of each element."}
wide "log2(x)" {"log2(x)", "g / (x * 0.69314718055994531)", "Computes the logarithm to base 2 of each element."}
wide "log10(x)" {"log10(x)", "g / (x * 2.3025850929940457)", "Computes the logarithm to base 10 of each element."}
-- eps is NaN if left out: comparisons with it are false.
floating "logit(x, eps: number?)" {
  "log((x < eps ? eps : x > 1 - eps ? 1 - eps : x) / (1 - (x < eps ? eps : x > 1 - eps ? 1 - eps : x)))",
  "x < eps || x > 1 - eps ? 0 : g / (x * (1 - x)) + 0 * sqrt(x * (1 - x))",
  "Computes log(x / (1 - x)), the inverse of sigmoid.",
}
wide "log1p(x)" {"log1p(x)", "g / (x + 1)", "Computes log(1 + x), accurately for small x."}
floating "sqrt(x)" {"sqrt(x)", "g / (y * 2)", "Computes the square root of each element."}
wide "rsqrt(x)" {"1 / sqrt(x)", "g * -0.5 * (y * (y * y))", "Computes 1 / sqrt(x)."}
wide "reciprocal(x)" {"1 / x", "-(g * (y * y))", "Computes 1 / x."}
common "square(x)" {
  "x * x", "g * (x * 2)", "Computes the square of each element.", result_dtype = "number", autocast = "keep_gpu",
}
floating "sin(x)" {"sin(x)", "g * cos(x)", "Computes the sine of each element, in radians."}
floating "cos(x)" {"cos(x)", "-(g * sin(x))", "Computes the cosine of each element, in radians."}
wide "tan(x)" {"tan(x)", "g * (1 + y * y)", "Computes the tangent of each element, in radians."}
wide "asin(x)" {"asin(x)", "g * rsqrt(1 - x * x)", "Computes the arcsine of each element, in radians."}
wide "acos(x)" {"acos(x)", "-(g * rsqrt(1 - x * x))", "Computes the arccosine of each element, in radians."}
floating "atan(x)" {"atan(x)", "g / (x * x + 1)", "Computes the arctangent of each element, in radians."}
floating "sinc(x)" {
  "x == 0 ? 1 : sin(3.14159265358979324 * x) / (3.14159265358979324 * x)",
  "3.14159265358979324 * x * x == 0 ? 0 : g * ((3.14159265358979324 * x * cos(3.14159265358979324 * x) "
      .. "- sin(3.14159265358979324 * x)) / (3.14159265358979324 * x * x))",
  "Computes sin(pi x) / (pi x), which is 1 at 0.",
}
floating "deg2rad(x)" {"x * 0.017453292519943296", "g * 0.017453292519943296", "Converts degrees to radians."}
floating "rad2deg(x)" {"x * 57.295779513082321", "g * 57.295779513082321", "Converts radians to degrees."}
-- Subtracts e^x - 1, which unlike e^x is exact near 0.
wide "sinh(x)" {
  "0.5 * (expm1(x) - expm1(-x))", "g * (0.5 * (exp(x) + exp(-x)))", "Computes the hyperbolic sine of each element.",
}
wide "cosh(x)" {"0.5 * (exp(x) + exp(-x))", "g * sinh(x)", "Computes the hyperbolic cosine of each element."}
floating "asinh(x)" {"asinh(x)", "g * rsqrt(x * x + 1)", "Computes the inverse hyperbolic sine of each element."}
floating "acosh(x)" {"acosh(x)", "g * rsqrt(x * x - 1)", "Computes the inverse hyperbolic cosine of each element."}
floating "atanh(x)" {"atanh(x)", "g / (1 - x * x)", "Computes the inverse hyperbolic tangent of each element."}
floating "tanh(x)" {"tanh(x)", "g * (1 - y * y)", "Computes the hyperbolic tangent of each element."}
-- The gradient's factor is 2 / sqrt(pi).
floating "erf(x)" {"erf(x)", "g * (1.1283791670955126 * exp(-(x * x)))", "Computes the error function of each element."}
floating "erfc(x)" {
  "erfc(x)", "-(g * (1.1283791670955126 * exp(-(x * x))))", "Computes 1 - erf(x), accurately for large x.",
}
wide "erfinv(x)" {"erfinv(x)", "g * (0.88622692545275801 * exp(y * y))", "Computes the inverse of the error function."}
wide "lgamma(x)" {"lgamma(x)", "g * digamma(x)", "Computes the logarithm of the absolute value of the gamma function."}
wide "digamma(x)" {"digamma(x)", "g * polygamma(x, 1)", "Computes the derivative of lgamma."}
wide "polygamma(x, n: number)" {
  "polygamma(x, n)", "g * polygamma(x, n + 1)", "Computes the n-th derivative of digamma.",
  needs = {{"n >= 0 && n <= 10000 && is_integral(n)", "n must be an integer from 0 to 10000, got {n}"}},
  forms = {{when = "n == 0", "digamma(x)"}, {when = "n == 1", "trigamma(x)"}},
}
wide "trigamma(x)" { -- without branches, for vectors
  "polygamma(x, 1)", "g * polygamma(x, 2)", "Computes the derivative of digamma.", internal = true,
}
wide "igamma(x: scalar, other: scalar)" {
  "igamma(x, other)",
  {
    x = "other <= 0 ? 0 : -g * exp(x * log(other) - other - lgamma(x)) * gamma_slope(x, log(other))",
    other = "g * exp((x - 1) * log(other) - other - lgamma(x))",
  },
  "Computes the regularized lower incomplete gamma function P(x, other).",
}
wide "igammac(x: scalar, other: scalar)" {
  "igammac(x, other)",
  {
    x = "other <= 0 ? 0 : g * exp(x * log(other) - other - lgamma(x)) * gamma_slope(x, log(other))",
    other = "-g * exp((x - 1) * log(other) - other - lgamma(x))",
  },
  "Computes the regularized upper incomplete gamma function 1 - P(x, other).",
}
floating "gamma_slope(x, other)" {
  "gamma_slope(x, other)", "none",
  "the derivative by x of the logarithm other of a quantile of the gamma distribution of shape x and rate 1",
  internal = true,
}
floating "sigmoid(x)" {
  "1 / (1 + exp(-x))", "g * (y * (1 - y))", "Computes the logistic sigmoid of each element: 1 / (1 + e^-x).",
}
floating "mul_sigmoid(x, gate)" {
  "x / (1 + exp(-gate))", {x = "g * sigmoid(gate)", gate = "g * x * (sigmoid(gate) * sigmoid(-gate))"},
  "x * sigmoid(gate)", internal = true,
}
op "gated_halves(x, dim: dim, n: int)" {
  formula = "mul_sigmoid(narrow(x, dim, 1, n), narrow(x, dim, n + 1, n))",
  grad = {
    x = {
      "gate = narrow(x, dim, n + 1, n)",
      "first = mul_sigmoid(g, gate)",
      "cat([first, mul_sigmoid(first * narrow(x, dim, 1, n), -gate)], dim)",
    },
  },
  internal = true, help = "the first n entries of x along dim times the sigmoid of the next n: glu",
}
floating "log_sigmoid(x)" {
  "(x > 0 ? 0 : x) - log1p(exp(-abs(x)))", "g * sigmoid(-x)", "Computes log(sigmoid(x)), without overflow.",
}
common "relu(x)" {
  "x < 0 ? 0 : x", "y <= 0 ? 0 : g", "Applies the rectified linear unit to each element: max(x, 0).",
  bool = "use :int() or :logical_not()",
}
common "relu6(x)" {
  "x < 0 ? 0 : x > 6 ? 6 : x", "x <= 0 || x >= 6 ? 0 : g",
  "Applies the rectified linear unit limited at 6 to each element: min(max(x, 0), 6).",
}
floating "leaky_relu(x, negative_slope: number = 0.01)" {
  "x > 0 ? x : x * negative_slope", "x > 0 ? g : g * negative_slope",
  "Applies the leaky rectified linear unit to each element: x, or negative_slope * x below 0.",
}
floating "prelu(x, weight)" {
  "x > 0 ? x : weight * x", {x = "x > 0 ? g : weight * g", weight = "x >= 0 ? 0 : x * g"},
  "Applies the parametric rectified linear unit to each element: x, or weight * x below 0.",
  needs = {
    {"ndim_of(weight) != 1 || numel_of(weight) == 1 || ndim_of(x) > 1 && size_of(x)[2] == numel_of(weight)",
      "expected weight to have shape [1] or one number for each channel (dim 2) of x {x}, got {weight}"},
  },
  forms = {
    {when = "ndim_of(weight) == 1 && ndim_of(x) == 0", "prelu(x, squeeze(weight, 0))"},
    {when = "ndim_of(weight) == 1 && numel_of(weight) > 1 && ndim_of(x) > 2",
      "prelu(x, along(weight, 1, ndim_of(x)))"},
  },
}
common "threshold(x, threshold: number, value: number)" {
  "x <= threshold ? value : x", "x <= threshold ? 0 : g", "Replaces each element that is not above threshold by value.",
  bool = "use :int() first",
}
floating "hardtanh(x, min_val: number = -1, max_val: number = 1)" {
  "x < min_val ? min_val : x > max_val ? max_val : x", "x <= min_val || x >= max_val ? 0 : g",
  "Limits each element to the range from min_val to max_val.",
  needs = {{"min_val <= max_val", "min_val must be at most max_val ({max_val}), got {min_val}"}},
  forms = {
    {
      when = "!is_float(x)",
      needs = {
        {"min_val > -9e18 && max_val < 9e18",
          "min_val and max_val must be within int64 for integer tensors, got {min_val} and {max_val}"},
        {"!is_bool(x)", "x must not be bool; use :int() first"},
      },
      "clamp(x, cut_for(x, min_val), cut_for(x, max_val))",
    },
  },
}
floating "hardsigmoid(x)" {
  "(x < -3 ? 0 : x > 3 ? 6 : x + 3) / 6", "x > -3 && x < 3 ? g / 6 : 0",
  "Applies the hard sigmoid function to each element: x / 6 + 0.5, limited to [0, 1].",
}
floating "hardswish(x)" {
  "x * (x < -3 ? 0 : x > 3 ? 6 : x + 3) / 6", "x <= -3 ? 0 : x < 3 ? g * (x / 3 + 0.5) : g",
  "Applies the hard swish function to each element: x * hardsigmoid(x).",
}
floating "elu(x, alpha: number = 1)" {
  "x > 0 ? x : alpha * expm1(x)", "x < 0 ? g * (alpha * exp(x)) : x == 0 ? g * alpha : g",
  "Applies the exponential linear unit to each element: x, or alpha * (e^x - 1) below 0.",
}
-- Klambauer et al., "Self-Normalizing Neural Networks", 2017
floating "selu(x)" {
  "1.0507009873554805 * (x > 0 ? x : 1.6732632423543773 * expm1(x))",
  "x < 0 ? g * (1.7580993408473769 * exp(x)) : x == 0 ? g * 1.7580993408473769 : g * 1.0507009873554805",
  "Applies the scaled exponential linear unit to each element: 1.0507 * elu(x, 1.67326).",
}
floating "celu(x, alpha: number = 1)" {
  "x > 0 ? x : alpha * expm1(x / alpha)", "x < 0 ? g * exp(x / alpha) : g",
  "Applies the continuously differentiable exponential linear unit to each element: x, or alpha * "
    .. "(e^(x / alpha) - 1) below 0.",
  needs = {{"alpha != 0", "alpha must be non-zero, got 0"}},
}
floating "softsign(x)" {
  "x / (1 + abs(x))", "g / ((1 + abs(x)) * (1 + abs(x)))",
  "Applies the softsign function to each element: x / (1 + |x|).",
}
floating "hardshrink(x, lambd: number = 0.5)" {
  "x >= -lambd && x <= lambd ? 0 : x", "x >= -lambd && x <= lambd ? 0 : g",
  "Sets each element from -lambd to lambd to 0.",
}
floating "softshrink(x, lambd: number = 0.5)" {
  "x > lambd ? x - lambd : x < -lambd ? x + lambd : x * 0", "x >= -lambd && x <= lambd ? 0 : g",
  "Moves each element towards 0 by lambd; elements from -lambd to lambd become 0.",
  needs = {{"lambd >= 0", "lambd must be at least 0, got {lambd}"}},
}
floating "tanhshrink(x)" {"x - tanh(x)", "g * (tanh(x) * tanh(x))", "Computes x - tanh(x) for each element."}
-- The gradient is Phi(x) + x phi(x), with 1 / sqrt(2) and 1 / sqrt(2 pi).
floating "gelu(x, {approximate: approximate = none})" {
  "0.5 * x * (1 + erf(x * 0.70710678118654752440))",
  "g * (0.5 * (1 + erf(x * 0.70710678118654752)) + x * 0.39894228040143268 * exp(-0.5 * (x * x)))",
  "Applies the Gaussian error linear unit to each element: x * Phi(x).",
  forms = {{when = "approximate == 'tanh'", "gelu_tanh(x)"}},
}
-- The approximation is x s(u), s the sigmoid, u = 2 sqrt(2 / pi) (x + 0.044715 x^3); its gradient is s(u) (1 + x (1 -
-- s(u)) u'), where 1 - s(u) = s(-u).
local u = "x * (1.5957691216057308 + 0.071354816272600252 * (x * x))"
floating "gelu_tanh(x)" {
  "0.5 * x * (1 + tanh(0.79788456080286535588 * (x + 0.044715 * x * x * x)))",
  "g * (sigmoid(" .. u .. ") * (1 + sigmoid(-(" .. u .. "))"
      .. " * (x * (1.5957691216057308 + 0.21406444881780076 * (x * x)))))",
  "gelu by its tanh approximation", internal = true,
}
floating "silu(x)" {
  "x / (1 + exp(-x))", "g * (sigmoid(x) * (1 + x * sigmoid(-x)))",
  "Applies the sigmoid linear unit to each element: x * sigmoid(x).",
}
-- x tanh(softplus(x)): with e = e^x and n = e (e + 2), the tanh is n / (n + 2), and exactly 1 from 20 on.
local e = "exp(x > 20 ? 20 : x)"
local n = ("%s * (%s + 2)"):format(e, e)
local tanh = ("%s / (%s + 2)"):format(n, n)
floating "mish(x)" {
  ("x * (%s)"):format(tanh), ("g * (%s + x * sigmoid(x) * (1 - %s * (%s)))"):format(tanh, tanh, tanh),
  "Applies the Mish function to each element: x * tanh(softplus(x)).",
}
wide "softplus(x, beta: number = 1, threshold: number = 20)" {
  "x * beta > threshold ? x : ((x * beta < 0 ? 0 : x * beta) + log1p(exp(-abs(x * beta)))) / beta",
  "x * beta > threshold ? g : g * sigmoid(x * beta)",
  "Applies the softplus function to each element: log(1 + e^(beta * x)) / beta.",
}
floating "bce(x, target)" {
  "(target - 1) * (log1p(-x) < -100 ? -100 : log1p(-x)) - target * (log(x) < -100 ? -100 : log(x))",
  {x = "g * (x - target) / maximum((1 - x) * x, 1e-12)", target = "g * (log(1 - x) - log(x))"},
  "binary cross-entropy of each probability x; logarithms stop at -100", internal = true,
}
floating "huber(x, target, {delta: number = 1})" {
  "abs(x - target) < delta ? 0.5 * ((x - target) * (x - target)) "
    .. ": delta * (abs(x - target) - 0.5 * delta)",
  {
    x = "g * maximum(-delta, minimum(delta, x - target))",
    target = "-(g * maximum(-delta, minimum(delta, x - target)))",
  },
  "half of (x - target)^2, and from delta on a straight line of that slope", internal = true,
}
floating "relative_entropy(x, target)" {
  "(target == 0 ? 0 : target * log(target)) - target * x",
  -- no limit at 0, as in PyTorch
  {x = "-(g * target)", target = "g * ((target == 0 ? 0 : log(target)) + target / target - x)"},
  "target (log target - x), of log-probabilities x", internal = true,
}
-- Gradients are PyTorch's; without a pos_weight sigmoid(x) - target, exact where that is small.
floating "bce_of_logits(x, target, pos_weight: scalar)" {
  "(1 - target) * x - ((pos_weight - 1) * target + 1) * log_sigmoid(x)",
  {
    x = "g * ((pos_weight * target + 1 - target) * sigmoid(x) - pos_weight * target)",
    target = "g * ((1 - pos_weight) * log_sigmoid(x) - x)",
    pos_weight = "-(g * target * log_sigmoid(x))",
  },
  "binary cross-entropy of each sigmoid(x), that of target 1 times pos_weight", internal = true,
}
floating "poisson_nll(x, target)" {
  "exp(x) - target * x", {x = "g * (exp(x) - target)", target = "-(g * x)"},
  "minus the logarithm of the probability of each count target where e^x is the mean, without log(target!)",
  internal = true,
}
floating "raised(x, least: number)" {
  "x < least ? least : x", "g", "x, or least where it is below; the gradient does not see that", internal = true,
}
floating "gaussian_nll(x, target, var: scalar, eps: number = 1e-6)" {
  "0.5 * (log(raised(var, eps)) + (x - target) * (x - target) / raised(var, eps))",
  {
    x = "g * ((x - target) / raised(var, eps))",
    target = "g * ((target - x) / raised(var, eps))",
    var = "g * (0.5 * (1 - (x - target) * (x - target) / raised(var, eps)) / raised(var, eps))",
  },
  "minus the logarithm of a normal distribution's density with mean x and variance var, at least eps, at each "
    .. "target, without log(2 pi) / 2",
  internal = true,
}
floating "shifted_difference(x, other, shift: number)" {
  "x - other + shift", {x = "g", other = "-g"}, "x - other + shift", bool = "use :float() first", internal = true,
}
common "absolute_difference(x, other)" {
  "abs(x - other)", {x = "g * sign(x - other)", other = "g * sign(other - x)"}, "|x - other|",
  bool = "use :float() first", internal = true,
}
common "squared_difference(x, other)" {
  "(x - other) * (x - other)", {x = "g * ((x - other) * 2)", other = "g * ((other - x) * 2)"}, "(x - other)^2",
  bool = "use :float() first", internal = true,
}
floating "ranking_margin(x1, x2, target, margin: number = 0)" {
  "margin - target * (x1 - x2) <= 0 ? 0 : margin - target * (x1 - x2)",
  {
    x1 = "margin - target * (x1 - x2) <= 0 ? 0 : -(g * target)",
    x2 = "margin - target * (x1 - x2) <= 0 ? 0 : g * target",
    target = "margin - target * (x1 - x2) <= 0 ? 0 : g * (x2 - x1)",
  },
  "what target * (x1 - x2) lacks to margin", bool = "use :float() first", internal = true,
}
common "floor(x)" {"floor(x)", "zeros_like(g)", "Rounds the elements down.", bool = "use :int() or :logical_not()"}
common "ceil(x)" {"ceil(x)", "zeros_like(g)", "Rounds the elements up.", bool = "use :int() or :logical_not()"}
common "round(x, {decimals: int = 0})" {
  "round(x)", "zeros_like(g)", "Rounds the elements to the nearest integer, halves to even.",
  bool = "use :int() or :logical_not()",
  needs = {
    {"decimals == 0 || is_float(x)",
      "x must be floating point with decimals, got {dtype_of(x)}; convert it with :float()"},
    {"decimals == 0 || decimals >= -largest_power(x) && decimals <= largest_power(x)", "decimals must be from "
      .. "-{largest_power(x)} to {largest_power(x)} for {largest_power(x) > 38 ? 'float64' : 'float32'}, got "
      .. "{decimals}"},
  },
  forms = { -- these powers are exact up to 10^22
    {when = "decimals > 0", "round_scaled(x, power_of_ten(decimals), 1)"},
    {when = "decimals < 0", "round_scaled(x, 1, power_of_ten(-decimals))"},
  },
}
floating "round_scaled(x, factor: number, divisor: number)" {
  "round(x * factor / divisor) * divisor / factor", "zeros_like(g)",
  "round(x * factor / divisor) * divisor / factor, which round makes of decimals", internal = true,
}
common "trunc(x)" {"trunc(x)", "zeros_like(g)", "Rounds the elements toward 0.", bool = "use :int() or :logical_not()"}
common "frac(x)" {
  "x - trunc(x)", "g", "Returns the fractional part of each element, x - trunc(x).", bool = "use :int() first",
}
-- Tensor bounds share the gradient at ties unless min == max; number bounds leave x 0. max < min: all is max's.
common "clamp(x, min: scalar?, max: scalar?)" {
  "minimum(max, maximum(min, x))",
  {
    x = "x < min || x > max ? 0 : min < max && (x == min || x == max) ? g * 0.5 : g",
    min = "x < min && min <= max ? g : x == min && min < max ? g * 0.5 : 0",
    max = "max < min || x > max && min <= max ? g : x == max && min < max ? g * 0.5 : 0",
  },
  "Limits the elements of x to the range from min to max.", bool = "use :int() or :logical_not()",
  needs = {{"given(min) || given(max)", "min or max must be given, got neither"}},
  forms = { -- bounds that are numbers: at ties the gradient differs from that of tensor bounds
    {when = "is_float(x) && (!given(min) || is_number(min)) && (!given(max) || is_number(max))",
      "clamp_range(x, given(min) ? value_of(min) : -inf, given(max) ? value_of(max) : inf)"},
    {when = "!given(max)", "maximum(x, min)"},
    {when = "!given(min)", "minimum(x, max)"},
  },
}
floating "clamp_range(x, min: number = -inf, max: number = inf)" {
  "minimum(max, maximum(min, x))", "x > min && x < max ? g : 0", "clamp of floating x to numbers", internal = true,
}
common "where(condition: mask, x: scalar, other: scalar)" {
  "condition != 0 ? x : other", {x = "condition ? g : 0", other = "condition ? 0 : g"},
  "Selects the elements of x where condition is true, else those of other.",
}
-- This form is exact at both ends.
floating "lerp(x, end, weight: scalar)" {
  "abs(weight) < 0.5 ? x + weight * (end - x) : end - (end - x) * (1 - weight)",
  {x = "g * (1 - weight)", ["end"] = "g * weight", weight = "g * (end - x)"},
  "Interpolates linearly between x and end: x + weight * (end - x).",
}
common "addcmul(x, tensor1, tensor2, {value: number = 1})" {
  "x + value * tensor1 * tensor2", {x = "g", tensor1 = "g * (tensor2 * value)", tensor2 = "g * (tensor1 * value)"},
  "Computes x + value * tensor1 * tensor2.", integral_arg = "value", autocast = "widest",
}
floating "addcdiv(x, tensor1, tensor2, {value: number = 1})" {
  "x + value * (tensor1 / tensor2)",
  {
    x = "g", tensor1 = "g * (value / tensor2)",
    tensor2 = "-(g * (value * tensor1 / (tensor2 * tensor2)))",
  },
  "Computes x + value * tensor1 / tensor2.", autocast = "widest",
}
common "masked_fill(x, mask: mask, value: scalar)" {
  "mask != 0 ? value : x", {x = "mask ? 0 : g", value = "mask ? g : 0"},
  "Returns a copy of x with value where mask is true.", result_dtype = "x",
  needs = {{"ndim_of(value) == 0", "value must be a number or a 0-d tensor, got shape {value}"}},
}

-- ---- comparisons and logic: results are bool
test "eq(x: scalar, other: scalar)" {"x == other", "Returns whether x == other holds for each element."}
test "ne(x: scalar, other: scalar)" {"x != other", "Returns whether x ~= other holds for each element."}
test "lt(x: scalar, other: scalar)" {"x < other", "Returns whether x < other holds for each element."}
test "le(x: scalar, other: scalar)" {"x <= other", "Returns whether x <= other holds for each element."}
test "gt(x: scalar, other: scalar)" {"x > other", "Returns whether x > other holds for each element."}
test "ge(x: scalar, other: scalar)" {"x >= other", "Returns whether x >= other holds for each element."}
test "logical_and(x: scalar, other: scalar)" {"x != 0 && other != 0", "Returns whether both elements are true."}
test "logical_or(x: scalar, other: scalar)" {"x != 0 || other != 0", "Returns whether either element is true."}
test "logical_not(x)" {"x == 0", "Returns whether each element is false."}
test "logical_xor(x: scalar, other: scalar)" {
  "x == 0 ? other != 0 : other == 0", "Returns whether exactly one of the elements is true.",
}
test "isnan(x)" {"isnan(x)", "Returns whether each element is NaN."}
test "isfinite(x)" {"x - x == 0", "Returns whether each element is finite."}

test "isinf(x)" {"isnan(x - x) && !isnan(x)", "Returns whether each element is infinite."}
test "isposinf(x)" {"x > 0 && x - x != 0", "Returns whether each element is infinity."}
test "isneginf(x)" {"x < 0 && x - x != 0", "Returns whether each element is -infinity."}
op "isclose(x, other, rtol: number = 1e-5, atol: number = 1e-8, equal_nan = false)" {
  formula = {
    "left = is_float(x) ? x : x / 1",
    "right = is_float(other) ? other : other / 1",
    "close = left == right || abs(left - right) <= abs(right) * rtol + atol && isfinite(right)",
    "equal_nan ? close || isnan(left) && isnan(right) : close",
  },
  grad = "none",
  help = "Returns whether |x - other| <= atol + rtol * |other| holds for each element.",
}
common "nan_to_num(x, nan: number = 0, posinf: number?, neginf: number?)" {
  "isnan(x) ? nan : x - x == 0 ? x : x > 0 ? posinf : neginf", "x - x == 0 ? g : 0",
  "Replaces NaN, infinity and -infinity by numbers.",
  forms = {
    {when = "!given(posinf) && is_float(x)", "nan_to_num(x, nan, largest(x), neginf)"},
    {when = "!given(neginf) && is_float(x)", "nan_to_num(x, nan, posinf, -largest(x))"},
  },
}
test "signbit(x)" {"copysign(1, x) < 0", "Returns whether the sign bit of each element is set."}

-- ---- bits of integers; of bool too, except shifts
integer "bitwise_and(x: scalar, other: scalar)" {"x & other", "Computes the bitwise AND of two integers."}
integer "bitwise_or(x: scalar, other: scalar)" {"x | other", "Computes the bitwise OR of two integers."}
integer "bitwise_xor(x: scalar, other: scalar)" {"x ^ other", "Computes the bitwise XOR of two integers."}
integer "bitwise_not(x)" {
  "~x", "Computes the bitwise NOT of integers, or the logical NOT of bool.",
  forms = {{when = "is_bool(x)", "logical_not(x)"}},
}
integer "bitwise_left_shift(x: scalar, other: scalar)" {
  "shift_left(x, other)", "Shifts the bits of x to the left by other.", bool = "use :int() first",
}
integer "bitwise_right_shift(x: scalar, other: scalar)" {
  "shift_right(x, other)", "Shifts the bits of x to the right by other.", bool = "use :int() first",
}
integer "gcd(x: scalar, other: scalar)" {
  "gcd(x, other)", "Computes the greatest common divisor of each pair of elements.", bool = "use :int() first",
}
integer "lcm(x: scalar, other: scalar)" {
  "abs(trunc_divide(x, gcd(x, other)) * other)", "Computes the least common multiple of each pair of elements.",
  bool = "use :int() first",
}

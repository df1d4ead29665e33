--- Defines elementwise ops: arithmetic, functions, activations, comparisons, bits.
local op = ...

op "add" {
  "x: scalar", "other: scalar", options = {"alpha: number = 1"},
  elementwise = "x + alpha * other", integral_arg = "alpha",
  grad = {x = "g", other = "scaled(g, alpha)"},
  help = "Adds alpha * other to x.",
}
op "sub" {
  "x: scalar", "other: scalar", options = {"alpha: number = 1"},
  elementwise = "x - alpha * other", integral_arg = "alpha",
  needs = {{"!is_bool(x) && !is_bool(other)", "not defined for bool; use :ne, :logical_not, or :int() first"}},
  grad = {x = "g", other = "scaled(g, -alpha)"},
  help = "Subtracts alpha * other from x.",
}
op "rsub" {
  "x: scalar", "other: scalar", options = {"alpha: number = 1"},
  elementwise = "other - alpha * x", integral_arg = "alpha",
  needs = {{"!is_bool(x) && !is_bool(other)", "not defined for bool; use :ne, :logical_not, or :int() first"}},
  grad = {x = "scaled(g, -alpha)", other = "g"},
  help = "Subtracts alpha * x from other.",
}
op "mul" {
  "x: scalar", "other: scalar",
  elementwise = "x * other",
  grad = {x = "g * other", other = "g * x"},
  help = "Multiplies x by other.",
}
op "div" {
  "x: scalar", "other: scalar", options = {"rounding_mode: rounding_mode = none"},
  elementwise = "x / other", result_dtype = "float",
  grad = {x = "g / other", other = "-(g * y / other)"},
  forms = {
    {when = "rounding_mode == 'floor'", "floor_divide(x, other)"},
    {when = "rounding_mode == 'trunc'", "trunc_divide(x, other)"},
  },
  help = "Divides x by other.",
}
op "floor_divide" {
  "x: scalar", "other: scalar",
  elementwise = "floor_divide(x, other)", divisor_arg = "other",
  grad = {x = "zeros_like(g)", other = "zeros_like(g)"},
  help = "Divides x by other and rounds down.",
}
op "trunc_divide" {
  "x: scalar", "other: scalar",
  elementwise = "trunc_divide(x, other)", divisor_arg = "other",
  grad = {x = "zeros_like(g)", other = "zeros_like(g)"},
  internal = true, help = "x / other rounded towards 0; dtype kept",
}
op "remainder" {
  "x: scalar", "other: scalar",
  elementwise = "remainder(x, other)", divisor_arg = "other",
  grad = {x = "g", other = "-(g * floor_divide(x, other))"},
  help = "Computes the remainder of x divided by other, with the sign of other.",
}
op "fmod" {
  "x: scalar", "other: scalar",
  elementwise = "fmod(x, other)", divisor_arg = "other",
  grad = {x = "g", other = "-(g * trunc_divide(x, other))"},
  help = "Computes the remainder of x divided by other, with the sign of x.",
}
op "pow" {
  "x: scalar", "exponent: scalar",
  elementwise = "pow(x, exponent)",
  grad = {
    x = "exponent == 0 ? 0 : g * (exponent * pow(x, exponent == 0 ? 1 : exponent - 1))",
    exponent = "x == 0 && exponent >= 0 ? 0 : g * (y * log(x))",
  },
  bool = "use :int() first",
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
  autocast = "keep_gpu", help = "Raises x to the power of exponent.",
}
op "cube" {
  "x", elementwise = "x * x * x", grad = {x = "g * (3 * (x * x))"}, bool = "use :int() first", internal = true,
  autocast = "keep_gpu", help = "x to the power of 3.",
}
op "xlogy" {
  "x: scalar", "other: scalar",
  elementwise = "isnan(other) ? other : x == 0 ? 0 : x * log(other)", result_dtype = "float",
  grad = {x = "x == 0 && other <= 0 ? 0 : xlogy(g, other)", other = "g * x / other"},
  help = "Computes x * log(other), which is 0 where x is 0.",
}
op "hypot" {
  "x: scalar", "other: scalar",
  elementwise = "hypot(x, other)", result_dtype = "float",
  grad = {x = "g * (x / y)", other = "g * (other / y)"},
  help = "Computes sqrt(x^2 + other^2), without overflow.",
}
op "atan2" {
  "x: scalar", "other: scalar",
  elementwise = "atan2(x, other)", result_dtype = "float",
  grad = {
    x = "x == 0 && other == 0 ? 0 : g * (other / (x * x + other * other))",
    other = "x == 0 && other == 0 ? 0 : -(g * (x / (x * x + other * other)))",
  },
  autocast = "widest", help = "Computes the angle of the point (other, x) in radians, from -pi to pi.",
}
op "copysign" {
  "x: scalar", "other: scalar",
  elementwise = "copysign(x, other)", result_dtype = "float",
  grad = {x = "x == 0 ? 0 : g * (y / x)", other = "zeros_like(g)"},
  help = "Returns the magnitude of x with the sign of other.",
}
op "logaddexp" {
  "x: scalar", "other: scalar",
  elementwise = "x == other ? x + 0.69314718055994531 : maximum(x, other) + log1p(exp(-abs(x - other)))",
  result_dtype = "float",
  grad = {x = "g / (1 + exp(other - x))", other = "g / (1 + exp(x - other))"},
  help = "Computes log(e^x + e^other), without overflow.",
}
op "logaddexp2" {
  "x: scalar", "other: scalar",
  elementwise = "x == other ? x + 1 : maximum(x, other) + 1.4426950408889634 * log1p(exp2(-abs(x - other)))",
  result_dtype = "float",
  grad = {x = "g / (1 + exp2(other - x))", other = "g / (1 + exp2(x - other))"},
  help = "Computes log2(2^x + 2^other), without overflow.",
}
op "ldexp" {
  "x: scalar", "other: scalar",
  elementwise = "x * exp2(other)", result_dtype = "float",
  grad = {x = "g * exp2(other)", other = "g * (y * 0.69314718055994531)"},
  help = "Computes x * 2^other.",
}
op "heaviside" {
  "x: scalar", "values: scalar",
  elementwise = "x == 0 ? values : x > 0", grad = "none",
  help = "Computes the step function: 0 for x < 0, 1 for x > 0, and values at 0.",
}
op "maximum" {
  "x: scalar", "other: scalar",
  elementwise = "x > other || isnan(x) ? x : other",
  grad = {x = "x == other ? g * 0.5 : x < other ? 0 : g", other = "x == other ? g * 0.5 : x > other ? 0 : g"},
  help = "Returns the larger of each pair of elements.",
}
op "minimum" {
  "x: scalar", "other: scalar",
  elementwise = "x < other || isnan(x) ? x : other",
  grad = {x = "x == other ? g * 0.5 : x > other ? 0 : g", other = "x == other ? g * 0.5 : x < other ? 0 : g"},
  help = "Returns the smaller of each pair of elements.",
}
op "fmax" {
  "x: scalar", "other: scalar",
  elementwise = "x >= other || isnan(other) ? x : other",
  grad = {
    x = "x == other ? g * 0.5 : x > other || isnan(other) ? g : 0",
    other = "x == other ? g * 0.5 : x > other || isnan(other) ? 0 : g",
  },
  help = "Returns the larger of each pair of elements, and ignores NaN.",
}
op "fmin" {
  "x: scalar", "other: scalar",
  elementwise = "x <= other || isnan(other) ? x : other",
  grad = {
    x = "x == other ? g * 0.5 : x < other || isnan(other) ? g : 0",
    other = "x == other ? g * 0.5 : x < other || isnan(other) ? 0 : g",
  },
  help = "Returns the smaller of each pair of elements, and ignores NaN.",
}
op "neg" {
  "x", elementwise = "-x", bool = "use :int() or :logical_not()", grad = {x = "-g"},
  help = "Negates the elements.",
}
op "abs" {
  "x", elementwise = "abs(x)", bool = "use :int() or :logical_not()",
  grad = {x = "g * sign(x)"},
  help = "Computes the absolute value of each element.",
}
op "sign" {
  "x", elementwise = "(x > 0) - (x < 0)", grad = {x = "zeros_like(g)"},
  help = "Returns the sign of each element: -1, 0 or 1.",
}
op "exp" {
  "x", elementwise = "exp(x)", result_dtype = "float", grad = {x = "g * y"}, autocast = "keep_gpu",
  help = "Computes e^x.",
}
op "exp2" {
  "x", elementwise = "exp2(x)", result_dtype = "float", grad = {x = "g * y * 0.69314718055994531"},
  help = "Computes 2^x.",
}
op "expm1" {
  "x",
  elementwise = "expm1(x)", result_dtype = "float",
  grad = {x = "g * (y + 1)"},
  autocast = "keep_gpu", help = "Computes e^x - 1, accurately for small x.",
}
op "log" {
  "x",
  elementwise = "log(x)", result_dtype = "float",
  grad = {x = "g / x"},
  autocast = "keep_gpu", help = "Computes the natural logarithm of each element.",
}
op "log2" {
  "x",
  elementwise = "log2(x)", result_dtype = "float",
  grad = {x = "g / (x * 0.69314718055994531)"},
  autocast = "keep_gpu", help = "Computes the logarithm to base 2 of each element.",
}
op "log10" {
  "x",
  elementwise = "log10(x)", result_dtype = "float",
  grad = {x = "g / (x * 2.3025850929940457)"},
  autocast = "keep_gpu", help = "Computes the logarithm to base 10 of each element.",
}
-- eps is NaN if left out: comparisons with it are false.
op "logit" {
  "x", "eps: number?",
  elementwise = "log((x < eps ? eps : x > 1 - eps ? 1 - eps : x) / (1 - (x < eps ? eps : x > 1 - eps ? 1 - eps : x)))",
  result_dtype = "float",
  grad = {x = "x < eps || x > 1 - eps ? 0 : g / (x * (1 - x)) + 0 * sqrt(x * (1 - x))"},
  help = "Computes log(x / (1 - x)), the inverse of sigmoid.",
}
op "log1p" {
  "x",
  elementwise = "log1p(x)", result_dtype = "float",
  grad = {x = "g / (x + 1)"},
  autocast = "keep_gpu", help = "Computes log(1 + x), accurately for small x.",
}
op "sqrt" {
  "x", elementwise = "sqrt(x)", result_dtype = "float", grad = {x = "g / (y * 2)"},
  help = "Computes the square root of each element.",
}
op "rsqrt" {
  "x",
  elementwise = "1 / sqrt(x)", result_dtype = "float",
  grad = {x = "g * -0.5 * (y * (y * y))"},
  autocast = "keep_gpu", help = "Computes 1 / sqrt(x).",
}
op "reciprocal" {
  "x",
  elementwise = "1 / x", result_dtype = "float",
  grad = {x = "-(g * (y * y))"},
  autocast = "keep_gpu", help = "Computes 1 / x.",
}
op "square" {
  "x",
  elementwise = "x * x", result_dtype = "number",
  grad = {x = "g * (x * 2)"},
  autocast = "keep_gpu", help = "Computes the square of each element.",
}
op "sin" {
  "x", elementwise = "sin(x)", result_dtype = "float", grad = {x = "g * cos(x)"},
  help = "Computes the sine of each element, in radians.",
}
op "cos" {
  "x", elementwise = "cos(x)", result_dtype = "float", grad = {x = "-(g * sin(x))"},
  help = "Computes the cosine of each element, in radians.",
}
op "tan" {
  "x",
  elementwise = "tan(x)", result_dtype = "float",
  grad = {x = "g * (1 + y * y)"},
  autocast = "keep_gpu", help = "Computes the tangent of each element, in radians.",
}
op "asin" {
  "x",
  elementwise = "asin(x)", result_dtype = "float",
  grad = {x = "g * rsqrt(1 - x * x)"},
  autocast = "keep_gpu", help = "Computes the arcsine of each element, in radians.",
}
op "acos" {
  "x",
  elementwise = "acos(x)", result_dtype = "float",
  grad = {x = "-(g * rsqrt(1 - x * x))"},
  autocast = "keep_gpu", help = "Computes the arccosine of each element, in radians.",
}
op "atan" {
  "x",
  elementwise = "atan(x)", result_dtype = "float",
  grad = {x = "g / (x * x + 1)"},
  help = "Computes the arctangent of each element, in radians.",
}
op "sinc" {
  "x",
  elementwise = "x == 0 ? 1 : sin(3.14159265358979324 * x) / (3.14159265358979324 * x)", result_dtype = "float",
  grad = {
    x = "3.14159265358979324 * x * x == 0 ? 0 : g * ((3.14159265358979324 * x * cos(3.14159265358979324 * x) "
      .. "- sin(3.14159265358979324 * x)) / (3.14159265358979324 * x * x))",
  },
  help = "Computes sin(pi x) / (pi x), which is 1 at 0.",
}
op "deg2rad" {
  "x",
  elementwise = "x * 0.017453292519943296", result_dtype = "float",
  grad = {x = "g * 0.017453292519943296"},
  help = "Converts degrees to radians.",
}
op "rad2deg" {
  "x",
  elementwise = "x * 57.295779513082321", result_dtype = "float",
  grad = {x = "g * 57.295779513082321"},
  help = "Converts radians to degrees.",
}
-- Subtracts e^x - 1, which unlike e^x is exact near 0.
op "sinh" {
  "x",
  elementwise = "0.5 * (expm1(x) - expm1(-x))", result_dtype = "float",
  grad = {x = "g * (0.5 * (exp(x) + exp(-x)))"},
  autocast = "keep_gpu", help = "Computes the hyperbolic sine of each element.",
}
op "cosh" {
  "x",
  elementwise = "0.5 * (exp(x) + exp(-x))", result_dtype = "float",
  grad = {x = "g * sinh(x)"},
  autocast = "keep_gpu", help = "Computes the hyperbolic cosine of each element.",
}
op "asinh" {
  "x", elementwise = "asinh(x)", result_dtype = "float", grad = {x = "g * rsqrt(x * x + 1)"},
  help = "Computes the inverse hyperbolic sine of each element.",
}
op "acosh" {
  "x", elementwise = "acosh(x)", result_dtype = "float", grad = {x = "g * rsqrt(x * x - 1)"},
  help = "Computes the inverse hyperbolic cosine of each element.",
}
op "atanh" {
  "x", elementwise = "atanh(x)", result_dtype = "float", grad = {x = "g / (1 - x * x)"},
  help = "Computes the inverse hyperbolic tangent of each element.",
}
op "tanh" {
  "x", elementwise = "tanh(x)", result_dtype = "float", grad = {x = "g * (1 - y * y)"},
  help = "Computes the hyperbolic tangent of each element.",
}
-- The gradient's factor is 2 / sqrt(pi).
op "erf" {
  "x",
  elementwise = "erf(x)", result_dtype = "float",
  grad = {x = "g * (1.1283791670955126 * exp(-(x * x)))"},
  help = "Computes the error function of each element.",
}
op "erfc" {
  "x",
  elementwise = "erfc(x)", result_dtype = "float",
  grad = {x = "-(g * (1.1283791670955126 * exp(-(x * x))))"},
  help = "Computes 1 - erf(x), accurately for large x.",
}
op "erfinv" {
  "x",
  elementwise = "erfinv(x)", result_dtype = "float",
  grad = {x = "g * (0.88622692545275801 * exp(y * y))"},
  autocast = "keep_gpu", help = "Computes the inverse of the error function.",
}
op "lgamma" {
  "x", elementwise = "lgamma(x)", result_dtype = "float", grad = {x = "g * digamma(x)"}, autocast = "keep_gpu",
  help = "Computes the logarithm of the absolute value of the gamma function.",
}
op "digamma" {
  "x", elementwise = "digamma(x)", result_dtype = "float", grad = {x = "g * polygamma(x, 1)"}, autocast = "keep_gpu",
  help = "Computes the derivative of lgamma.",
}
op "polygamma" {
  "x", "n: number", elementwise = "polygamma(x, n)", result_dtype = "float", grad = {x = "g * polygamma(x, n + 1)"},
  needs = {{"n >= 0 && n <= 10000 && is_integral(n)", "n must be an integer from 0 to 10000, got {n}"}},
  forms = {{when = "n == 0", "digamma(x)"}, {when = "n == 1", "trigamma(x)"}},
  autocast = "keep_gpu", help = "Computes the n-th derivative of digamma.",
}
op "trigamma" { -- has no branches, so that it vectorizes
  "x", elementwise = "polygamma(x, 1)", result_dtype = "float", grad = {x = "g * polygamma(x, 2)"}, internal = true,
  autocast = "keep_gpu", help = "Computes the derivative of digamma.",
}
op "igamma" {
  "x: scalar", "other: scalar", elementwise = "igamma(x, other)", result_dtype = "float",
  grad = {
    x = "other <= 0 ? 0 : -g * exp(x * log(other) - other - lgamma(x)) * gamma_slope(x, log(other))",
    other = "g * exp((x - 1) * log(other) - other - lgamma(x))",
  },
  autocast = "keep_gpu", help = "Computes the regularized lower incomplete gamma function P(x, other).",
}
op "igammac" {
  "x: scalar", "other: scalar", elementwise = "igammac(x, other)", result_dtype = "float",
  grad = {
    x = "other <= 0 ? 0 : g * exp(x * log(other) - other - lgamma(x)) * gamma_slope(x, log(other))",
    other = "-g * exp((x - 1) * log(other) - other - lgamma(x))",
  },
  autocast = "keep_gpu", help = "Computes the regularized upper incomplete gamma function 1 - P(x, other).",
}
op "gamma_slope" {
  "x", "other", elementwise = "gamma_slope(x, other)", result_dtype = "float", grad = "none", internal = true,
  help = "the derivative by x of the logarithm other of a quantile of the gamma distribution of shape x and rate 1",
}
op "sigmoid" {
  "x",
  elementwise = "1 / (1 + exp(-x))", result_dtype = "float",
  grad = {x = "g * (y * (1 - y))"},
  help = "Computes the logistic sigmoid of each element: 1 / (1 + e^-x).",
}
op "mul_sigmoid" {
  "x", "gate",
  elementwise = "x / (1 + exp(-gate))", result_dtype = "float",
  grad = {x = "g * sigmoid(gate)", gate = "g * x * (sigmoid(gate) * sigmoid(-gate))"},
  internal = true, help = "x * sigmoid(gate)",
}
op "gated_halves" {
  "x", "dim: dim", "n: int",
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
op "log_sigmoid" {
  "x",
  elementwise = "(x > 0 ? 0 : x) - log1p(exp(-abs(x)))", result_dtype = "float",
  grad = {x = "g * sigmoid(-x)"},
  help = "Computes log(sigmoid(x)), without overflow.",
}
op "relu" {
  "x", elementwise = "x < 0 ? 0 : x", bool = "use :int() or :logical_not()",
  grad = {x = "y <= 0 ? 0 : g"},
  help = "Applies the rectified linear unit to each element: max(x, 0).",
}
op "relu6" {
  "x",
  elementwise = "x < 0 ? 0 : x > 6 ? 6 : x",
  grad = {x = "x <= 0 || x >= 6 ? 0 : g"},
  help = "Applies the rectified linear unit limited at 6 to each element: min(max(x, 0), 6).",
}
op "leaky_relu" {
  "x", "negative_slope: number = 0.01",
  elementwise = "x > 0 ? x : x * negative_slope", result_dtype = "float",
  grad = {x = "x > 0 ? g : g * negative_slope"},
  help = "Applies the leaky rectified linear unit to each element: x, or negative_slope * x below 0.",
}
op "prelu" {
  "x", "weight",
  elementwise = "x > 0 ? x : weight * x", result_dtype = "float",
  grad = {x = "x > 0 ? g : weight * g", weight = "x >= 0 ? 0 : x * g"},
  needs = {
    {"ndim_of(weight) != 1 || numel_of(weight) == 1 || ndim_of(x) > 1 && size_of(x)[2] == numel_of(weight)",
      "expected weight to have shape [1] or one number for each channel (dim 2) of x {x}, got {weight}"},
  },
  forms = {
    {when = "ndim_of(weight) == 1 && ndim_of(x) == 0", "prelu(x, squeeze(weight, 0))"},
    {when = "ndim_of(weight) == 1 && numel_of(weight) > 1 && ndim_of(x) > 2",
      "prelu(x, along(weight, 1, ndim_of(x)))"},
  },
  help = "Applies the parametric rectified linear unit to each element: x, or weight * x below 0.",
}
op "threshold" {
  "x", "threshold: number", "value: number",
  elementwise = "x <= threshold ? value : x", bool = "use :int() first",
  grad = {x = "x <= threshold ? 0 : g"},
  help = "Replaces each element that is not above threshold by value.",
}
op "hardtanh" {
  "x", "min_val: number = -1", "max_val: number = 1",
  elementwise = "x < min_val ? min_val : x > max_val ? max_val : x", result_dtype = "float",
  grad = {x = "x <= min_val || x >= max_val ? 0 : g"},
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
  help = "Limits each element to the range from min_val to max_val.",
}
op "hardsigmoid" {
  "x",
  elementwise = "(x < -3 ? 0 : x > 3 ? 6 : x + 3) / 6", result_dtype = "float",
  grad = {x = "x > -3 && x < 3 ? g / 6 : 0"},
  help = "Applies the hard sigmoid function to each element: x / 6 + 0.5, limited to [0, 1].",
}
op "hardswish" {
  "x",
  elementwise = "x * (x < -3 ? 0 : x > 3 ? 6 : x + 3) / 6", result_dtype = "float",
  grad = {x = "x <= -3 ? 0 : x < 3 ? g * (x / 3 + 0.5) : g"},
  help = "Applies the hard swish function to each element: x * hardsigmoid(x).",
}
op "elu" {
  "x", "alpha: number = 1",
  elementwise = "x > 0 ? x : alpha * expm1(x)", result_dtype = "float",
  grad = {x = "x < 0 ? g * (alpha * exp(x)) : x == 0 ? g * alpha : g"},
  help = "Applies the exponential linear unit to each element: x, or alpha * (e^x - 1) below 0.",
}
-- Klambauer et al., "Self-Normalizing Neural Networks", 2017
op "selu" {
  "x",
  elementwise = "1.0507009873554805 * (x > 0 ? x : 1.6732632423543773 * expm1(x))", result_dtype = "float",
  grad = {
    x = "x < 0 ? g * (1.7580993408473769 * exp(x)) : x == 0 ? g * 1.7580993408473769 : g * 1.0507009873554805",
  },
  help = "Applies the scaled exponential linear unit to each element: 1.0507 * elu(x, 1.67326).",
}
op "celu" {
  "x", "alpha: number = 1",
  elementwise = "x > 0 ? x : alpha * expm1(x / alpha)", result_dtype = "float",
  needs = {{"alpha != 0", "alpha must be non-zero, got 0"}},
  grad = {x = "x < 0 ? g * exp(x / alpha) : g"},
  help = "Applies the continuously differentiable exponential linear unit to each element: x, or alpha * "
    .. "(e^(x / alpha) - 1) below 0.",
}
op "softsign" {
  "x",
  elementwise = "x / (1 + abs(x))", result_dtype = "float",
  grad = {x = "g / ((1 + abs(x)) * (1 + abs(x)))"},
  help = "Applies the softsign function to each element: x / (1 + |x|).",
}
op "hardshrink" {
  "x", "lambd: number = 0.5",
  elementwise = "x >= -lambd && x <= lambd ? 0 : x", result_dtype = "float",
  grad = {x = "x >= -lambd && x <= lambd ? 0 : g"},
  help = "Sets each element from -lambd to lambd to 0.",
}
op "softshrink" {
  "x", "lambd: number = 0.5",
  elementwise = "x > lambd ? x - lambd : x < -lambd ? x + lambd : x * 0", result_dtype = "float",
  needs = {{"lambd >= 0", "lambd must be at least 0, got {lambd}"}},
  grad = {x = "x >= -lambd && x <= lambd ? 0 : g"},
  help = "Moves each element towards 0 by lambd; elements from -lambd to lambd become 0.",
}
op "tanhshrink" {
  "x",
  elementwise = "x - tanh(x)", result_dtype = "float",
  grad = {x = "g * (tanh(x) * tanh(x))"},
  help = "Computes x - tanh(x) for each element.",
}
-- The gradient is Phi(x) + x phi(x), with 1 / sqrt(2) and 1 / sqrt(2 pi).
op "gelu" {
  "x", options = {"approximate: approximate = none"},
  elementwise = "0.5 * x * (1 + erf(x * 0.70710678118654752440))", result_dtype = "float",
  grad = {x = "g * (0.5 * (1 + erf(x * 0.70710678118654752)) + x * 0.39894228040143268 * exp(-0.5 * (x * x)))"},
  forms = {{when = "approximate == 'tanh'", "gelu_tanh(x)"}},
  help = "Applies the Gaussian error linear unit to each element: x * Phi(x).",
}
-- The approximation is x s(u), s the sigmoid, u = 2 sqrt(2 / pi) (x + 0.044715 x^3); its gradient is s(u) (1 + x (1 -
-- s(u)) u'), where 1 - s(u) = s(-u).
local u = "x * (1.5957691216057308 + 0.071354816272600252 * (x * x))"
op "gelu_tanh" {
  "x",
  elementwise = "0.5 * x * (1 + tanh(0.79788456080286535588 * (x + 0.044715 * x * x * x)))", result_dtype = "float",
  grad = {
    x = "g * (sigmoid(" .. u .. ") * (1 + sigmoid(-(" .. u .. "))"
      .. " * (x * (1.5957691216057308 + 0.21406444881780076 * (x * x)))))",
  },
  internal = true, help = "gelu by its tanh approximation",
}
op "silu" {
  "x",
  elementwise = "x / (1 + exp(-x))", result_dtype = "float",
  grad = {x = "g * (sigmoid(x) * (1 + x * sigmoid(-x)))"},
  help = "Applies the sigmoid linear unit to each element: x * sigmoid(x).",
}
-- x tanh(softplus(x)): with e = e^x and n = e (e + 2), the tanh is n / (n + 2), and exactly 1 from 20 on.
local e = "exp(x > 20 ? 20 : x)"
local n = ("%s * (%s + 2)"):format(e, e)
local tanh = ("%s / (%s + 2)"):format(n, n)
op "mish" {
  "x",
  elementwise = ("x * (%s)"):format(tanh), result_dtype = "float",
  grad = {x = ("g * (%s + x * sigmoid(x) * (1 - %s * (%s)))"):format(tanh, tanh, tanh)},
  help = "Applies the Mish function to each element: x * tanh(softplus(x)).",
}
op "softplus" {
  "x", "beta: number = 1", "threshold: number = 20",
  elementwise = "x * beta > threshold ? x : ((x * beta < 0 ? 0 : x * beta) + log1p(exp(-abs(x * beta)))) / beta",
  result_dtype = "float",
  grad = {x = "x * beta > threshold ? g : g * sigmoid(x * beta)"},
  autocast = "keep_gpu", help = "Applies the softplus function to each element: log(1 + e^(beta * x)) / beta.",
}
op "bce" {
  "x", "target",
  elementwise = "(target - 1) * (log1p(-x) < -100 ? -100 : log1p(-x)) - target * (log(x) < -100 ? -100 : log(x))",
  result_dtype = "float",
  grad = {x = "g * (x - target) / maximum((1 - x) * x, 1e-12)", target = "g * (log(1 - x) - log(x))"},
  internal = true, help = "binary cross-entropy of each probability x; logarithms stop at -100",
}
op "huber" {
  "x", "target", options = {"delta: number = 1"},
  elementwise = "abs(x - target) < delta ? 0.5 * ((x - target) * (x - target)) "
    .. ": delta * (abs(x - target) - 0.5 * delta)",
  result_dtype = "float",
  grad = {
    x = "g * maximum(-delta, minimum(delta, x - target))",
    target = "-(g * maximum(-delta, minimum(delta, x - target)))",
  },
  internal = true, help = "half of (x - target)^2, and from delta on a straight line of that slope",
}
op "relative_entropy" {
  "x", "target",
  elementwise = "(target == 0 ? 0 : target * log(target)) - target * x", result_dtype = "float",
  -- no limit at 0, as in PyTorch
  grad = {x = "-(g * target)", target = "g * ((target == 0 ? 0 : log(target)) + target / target - x)"},
  internal = true, help = "target (log target - x), of log-probabilities x",
}
-- Gradients are PyTorch's; without a pos_weight sigmoid(x) - target, exact where that is small.
op "bce_of_logits" {
  "x", "target", "pos_weight: scalar",
  elementwise = "(1 - target) * x - ((pos_weight - 1) * target + 1) * log_sigmoid(x)", result_dtype = "float",
  grad = {
    x = "g * ((pos_weight * target + 1 - target) * sigmoid(x) - pos_weight * target)",
    target = "g * ((1 - pos_weight) * log_sigmoid(x) - x)",
    pos_weight = "-(g * target * log_sigmoid(x))",
  },
  internal = true, help = "binary cross-entropy of each sigmoid(x), that of target 1 times pos_weight",
}
op "poisson_nll" {
  "x", "target",
  elementwise = "exp(x) - target * x", result_dtype = "float",
  grad = {x = "g * (exp(x) - target)", target = "-(g * x)"}, internal = true,
  help = "minus the logarithm of the probability of each count target where e^x is the mean, without log(target!)",
}
op "raised" {
  "x", "least: number",
  elementwise = "x < least ? least : x", result_dtype = "float",
  grad = {x = "g"},
  internal = true, help = "x, or least where it is below; the gradient does not see that",
}
op "gaussian_nll" {
  "x", "target", "var: scalar", "eps: number = 1e-6",
  elementwise = "0.5 * (log(raised(var, eps)) + (x - target) * (x - target) / raised(var, eps))",
  result_dtype = "float",
  grad = {
    x = "g * ((x - target) / raised(var, eps))",
    target = "g * ((target - x) / raised(var, eps))",
    var = "g * (0.5 * (1 - (x - target) * (x - target) / raised(var, eps)) / raised(var, eps))",
  }, internal = true,
  help = "minus the logarithm of a normal distribution's density with mean x and variance var, at least eps, at each "
    .. "target, without log(2 pi) / 2",
}
op "shifted_difference" {
  "x", "other", "shift: number",
  elementwise = "x - other + shift", result_dtype = "float", bool = "use :float() first",
  grad = {x = "g", other = "-g"},
  internal = true, help = "x - other + shift",
}
op "absolute_difference" {
  "x", "other",
  elementwise = "abs(x - other)", bool = "use :float() first",
  grad = {x = "g * sign(x - other)", other = "g * sign(other - x)"},
  internal = true, help = "|x - other|",
}
op "squared_difference" {
  "x", "other",
  elementwise = "(x - other) * (x - other)", bool = "use :float() first",
  grad = {x = "g * ((x - other) * 2)", other = "g * ((other - x) * 2)"},
  internal = true, help = "(x - other)^2",
}
op "ranking_margin" {
  "x1", "x2", "target", "margin: number = 0",
  elementwise = "margin - target * (x1 - x2) <= 0 ? 0 : margin - target * (x1 - x2)", result_dtype = "float",
  bool = "use :float() first",
  grad = {
    x1 = "margin - target * (x1 - x2) <= 0 ? 0 : -(g * target)",
    x2 = "margin - target * (x1 - x2) <= 0 ? 0 : g * target",
    target = "margin - target * (x1 - x2) <= 0 ? 0 : g * (x2 - x1)",
  },
  internal = true, help = "what target * (x1 - x2) lacks to margin",
}
op "floor" {
  "x", elementwise = "floor(x)", bool = "use :int() or :logical_not()",
  grad = {x = "zeros_like(g)"},
  help = "Rounds the elements down.",
}
op "ceil" {
  "x", elementwise = "ceil(x)", bool = "use :int() or :logical_not()",
  grad = {x = "zeros_like(g)"},
  help = "Rounds the elements up.",
}
op "round" {
  "x", options = {"decimals: int = 0"},
  elementwise = "round(x)",
  grad = {x = "zeros_like(g)"},
  bool = "use :int() or :logical_not()",
  needs = {
    {"decimals == 0 || is_float(x)",
      "x must be floating point with decimals, got {dtype_of(x)}; convert it with :float()"},
    {"decimals == 0 || decimals >= -largest_power(x) && decimals <= largest_power(x)", "decimals must be from "
      .. "-{largest_power(x)} to {largest_power(x)} for {largest_power(x) > 38 ? 'float64' : 'float32'}, got "
      .. "{decimals}"},
  },
  -- These powers are exact up to 10^22.
  forms = {
    {when = "decimals > 0", "round_scaled(x, power_of_ten(decimals), 1)"},
    {when = "decimals < 0", "round_scaled(x, 1, power_of_ten(-decimals))"},
  },
  help = "Rounds the elements to the nearest integer, halves to even.",
}
op "round_scaled" {
  "x", "factor: number", "divisor: number",
  elementwise = "round(x * factor / divisor) * divisor / factor", result_dtype = "float",
  grad = {x = "zeros_like(g)"},
  internal = true, help = "round(x * factor / divisor) * divisor / factor, which round makes of decimals",
}
op "trunc" {
  "x", elementwise = "trunc(x)", bool = "use :int() or :logical_not()",
  grad = {x = "zeros_like(g)"},
  help = "Rounds the elements toward 0.",
}
op "frac" {
  "x", elementwise = "x - trunc(x)", bool = "use :int() first", grad = {x = "g"},
  help = "Returns the fractional part of each element, x - trunc(x).",
}
-- Tensor bounds share the gradient at ties unless min == max; number bounds leave x 0. max < min: all is max's.
op "clamp" {
  "x", "min: scalar?", "max: scalar?",
  elementwise = "minimum(max, maximum(min, x))",
  grad = {
    x = "x < min || x > max ? 0 : min < max && (x == min || x == max) ? g * 0.5 : g",
    min = "x < min && min <= max ? g : x == min && min < max ? g * 0.5 : 0",
    max = "max < min || x > max && min <= max ? g : x == max && min < max ? g * 0.5 : 0",
  },
  bool = "use :int() or :logical_not()",
  needs = {{"given(min) || given(max)", "min or max must be given, got neither"}},
  forms = { -- bounds that are numbers: at ties the gradient differs from that of tensor bounds
    {when = "is_float(x) && (!given(min) || is_number(min)) && (!given(max) || is_number(max))",
      "clamp_range(x, given(min) ? value_of(min) : -inf, given(max) ? value_of(max) : inf)"},
    {when = "!given(max)", "maximum(x, min)"},
    {when = "!given(min)", "minimum(x, max)"},
  },
  help = "Limits the elements of x to the range from min to max.",
}
op "clamp_range" {
  "x", "min: number = -inf", "max: number = inf",
  elementwise = "minimum(max, maximum(min, x))", result_dtype = "float",
  grad = {x = "x > min && x < max ? g : 0"},
  internal = true, help = "clamp of floating x to numbers",
}
op "where" {
  "condition: mask", "x: scalar", "other: scalar",
  elementwise = "condition != 0 ? x : other",
  grad = {x = "condition ? g : 0", other = "condition ? 0 : g"},
  help = "Selects the elements of x where condition is true, else those of other.",
}
-- This form is exact at both ends.
op "lerp" {
  "x", "end", "weight: scalar",
  elementwise = "abs(weight) < 0.5 ? x + weight * (end - x) : end - (end - x) * (1 - weight)", result_dtype = "float",
  grad = {x = "g * (1 - weight)", ["end"] = "g * weight", weight = "g * (end - x)"},
  help = "Interpolates linearly between x and end: x + weight * (end - x).",
}
op "addcmul" {
  "x", "tensor1", "tensor2", options = {"value: number = 1"},
  elementwise = "x + value * tensor1 * tensor2", integral_arg = "value",
  grad = {x = "g", tensor1 = "g * (tensor2 * value)", tensor2 = "g * (tensor1 * value)"},
  autocast = "widest", help = "Computes x + value * tensor1 * tensor2.",
}
op "addcdiv" {
  "x", "tensor1", "tensor2", options = {"value: number = 1"},
  elementwise = "x + value * (tensor1 / tensor2)", result_dtype = "float",
  grad = {
    x = "g", tensor1 = "g * (value / tensor2)",
    tensor2 = "-(g * (value * tensor1 / (tensor2 * tensor2)))",
  },
  autocast = "widest", help = "Computes x + value * tensor1 / tensor2.",
}
op "masked_fill" {
  "x", "mask: mask", "value: scalar",
  elementwise = "mask != 0 ? value : x", result_dtype = "x",
  needs = {{"ndim_of(value) == 0", "value must be a number or a 0-d tensor, got shape {value}"}},
  grad = {x = "mask ? 0 : g", value = "mask ? g : 0"},
  help = "Returns a copy of x with value where mask is true.",
}

-- ---- comparisons and logic: results are bool
op "eq" {
  "x: scalar", "other: scalar", elementwise = "x == other", result_dtype = "bool", grad = "none",
  help = "Returns whether x == other holds for each element.",
}
op "ne" {
  "x: scalar", "other: scalar", elementwise = "x != other", result_dtype = "bool", grad = "none",
  help = "Returns whether x ~= other holds for each element.",
}
op "lt" {
  "x: scalar", "other: scalar", elementwise = "x < other", result_dtype = "bool", grad = "none",
  help = "Returns whether x < other holds for each element.",
}
op "le" {
  "x: scalar", "other: scalar", elementwise = "x <= other", result_dtype = "bool", grad = "none",
  help = "Returns whether x <= other holds for each element.",
}
op "gt" {
  "x: scalar", "other: scalar", elementwise = "x > other", result_dtype = "bool", grad = "none",
  help = "Returns whether x > other holds for each element.",
}
op "ge" {
  "x: scalar", "other: scalar", elementwise = "x >= other", result_dtype = "bool", grad = "none",
  help = "Returns whether x >= other holds for each element.",
}
op "logical_and" {
  "x: scalar", "other: scalar",
  elementwise = "x != 0 && other != 0", result_dtype = "bool",
  grad = "none",
  help = "Returns whether both elements are true.",
}
op "logical_or" {
  "x: scalar", "other: scalar",
  elementwise = "x != 0 || other != 0", result_dtype = "bool",
  grad = "none",
  help = "Returns whether either element is true.",
}
op "logical_not" {
  "x", elementwise = "x == 0", result_dtype = "bool", grad = "none",
  help = "Returns whether each element is false.",
}
op "logical_xor" {
  "x: scalar", "other: scalar",
  elementwise = "x == 0 ? other != 0 : other == 0", result_dtype = "bool",
  grad = "none",
  help = "Returns whether exactly one of the elements is true.",
}
op "isnan" {
  "x", elementwise = "isnan(x)", result_dtype = "bool", grad = "none", help = "Returns whether each element is NaN.",
}
op "isfinite" {
  "x", elementwise = "x - x == 0", result_dtype = "bool", grad = "none",
  help = "Returns whether each element is finite.",
}

op "isinf" {
  "x", elementwise = "isnan(x - x) && !isnan(x)", result_dtype = "bool", grad = "none",
  help = "Returns whether each element is infinite.",
}
op "isposinf" {
  "x", elementwise = "x > 0 && x - x != 0", result_dtype = "bool", grad = "none",
  help = "Returns whether each element is infinity.",
}
op "isneginf" {
  "x", elementwise = "x < 0 && x - x != 0", result_dtype = "bool", grad = "none",
  help = "Returns whether each element is -infinity.",
}
op "isclose" {
  "x", "other", "rtol: number = 1e-5", "atol: number = 1e-8", "equal_nan = false",
  formula = {
    "left = is_float(x) ? x : x / 1",
    "right = is_float(other) ? other : other / 1",
    "close = left == right || abs(left - right) <= abs(right) * rtol + atol && isfinite(right)",
    "equal_nan ? close || isnan(left) && isnan(right) : close",
  },
  grad = "none",
  help = "Returns whether |x - other| <= atol + rtol * |other| holds for each element.",
}
op "nan_to_num" {
  "x", "nan: number = 0", "posinf: number?", "neginf: number?",
  elementwise = "isnan(x) ? nan : x - x == 0 ? x : x > 0 ? posinf : neginf",
  grad = {x = "x - x == 0 ? g : 0"},
  forms = {
    {when = "!given(posinf) && is_float(x)", "nan_to_num(x, nan, largest(x), neginf)"},
    {when = "!given(neginf) && is_float(x)", "nan_to_num(x, nan, posinf, -largest(x))"},
  },
  help = "Replaces NaN, infinity and -infinity by numbers.",
}
op "signbit" {
  "x", elementwise = "copysign(1, x) < 0", result_dtype = "bool", grad = "none",
  help = "Returns whether the sign bit of each element is set.",
}

-- ---- bits of integers; of bool too, except shifts
op "bitwise_and" {
  "x: scalar", "other: scalar", elementwise = "x & other", takes = "integers", grad = "none",
  help = "Computes the bitwise AND of two integers.",
}
op "bitwise_or" {
  "x: scalar", "other: scalar", elementwise = "x | other", takes = "integers", grad = "none",
  help = "Computes the bitwise OR of two integers.",
}
op "bitwise_xor" {
  "x: scalar", "other: scalar", elementwise = "x ^ other", takes = "integers", grad = "none",
  help = "Computes the bitwise XOR of two integers.",
}
op "bitwise_not" {
  "x", elementwise = "~x", takes = "integers", grad = "none",
  forms = {{when = "is_bool(x)", "logical_not(x)"}},
  help = "Computes the bitwise NOT of integers, or the logical NOT of bool.",
}
op "bitwise_left_shift" {
  "x: scalar", "other: scalar", elementwise = "shift_left(x, other)", takes = "integers",
  bool = "use :int() first", grad = "none",
  help = "Shifts the bits of x to the left by other.",
}
op "bitwise_right_shift" {
  "x: scalar", "other: scalar", elementwise = "shift_right(x, other)", takes = "integers",
  bool = "use :int() first", grad = "none",
  help = "Shifts the bits of x to the right by other.",
}
op "gcd" {
  "x: scalar", "other: scalar", elementwise = "gcd(x, other)", takes = "integers", bool = "use :int() first",
  grad = "none", help = "Computes the greatest common divisor of each pair of elements.",
}
op "lcm" {
  "x: scalar", "other: scalar", elementwise = "abs(trunc_divide(x, gcd(x, other)) * other)", takes = "integers",
  bool = "use :int() first", grad = "none",
  help = "Computes the least common multiple of each pair of elements.",
}

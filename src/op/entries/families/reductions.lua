--- Defines reductions over dims or all elements, and softmax.
local op, family = ...

family "reduce(x, dim: dims?, keepdim = false, statistic: statistic = sum, parameter: number = 0, dtype: dtype?)" {
  help = "one number of the elements over dim; parameter: p of norm, or var's correction; dtype: what x becomes before",
}
family "extreme_along(x, dim: dim?, keepdim = false, largest = false)" {
  results = 2,
  help = "indices and values of the extremes along dim, or of all elements",
}
family "softmax_along(x, y?, dim: dim, kind: softmax_kind = softmax, dtype: dtype?)" {
  help = "softmax of x, or from its gradient x and its result y the gradient before it",
}

op "sum(x, dim: dims?, keepdim = false, {dtype: dtype?})" {
  kernel = "reduce(x, dim, keepdim, 'sum', 0, dtype)",
  grad = {x = "expand_to(g, dim, keepdim, size_of(x))"},
  autocast = "keep_gpu", help = "Computes the sum of the elements over dim, or of all.",
}
op "mean(x, dim: dims?, keepdim = false, {dtype: dtype?})" {
  kernel = "reduce(x, dim, keepdim, 'mean', 0, dtype)",
  grad = {x = "expand_to(g / count(dim, size_of(x)), dim, keepdim, size_of(x))"},
  help = "Computes the mean of the elements over dim, or of all.",
}
local unbiased_or_correction = {
  "unbiased || correction == 0 || correction == 1",
  "correction must be left out with unbiased = false, got {correction}",
}
op "var(x, dim: dims?, unbiased = true, keepdim = false, {correction: number = 1})" {
  kernel = "reduce(x, dim, keepdim, 'var', correction)",
  grad = {
    x = {
      "n = count(dim, size_of(x)) - correction",
      "with_reduced_dims(g * (n > 0 ? 2 / n : inf), dim, keepdim, size_of(x)) * (x - mean(x, dim, true))",
    },
  },
  needs = {unbiased_or_correction},
  forms = {{when = "!unbiased", "var(x, dim, true, keepdim, 0)"}},
  widens = true, help = "Computes the variance over dim, or of all elements.",
}
op "std(x, dim: dims?, unbiased = true, keepdim = false, {correction: number = 1})" {
  needs = {unbiased_or_correction},
  formula = "sqrt(var(x, dim, true, keepdim, unbiased ? correction : 0))",
  grad = {
    x = {
      "n = count(dim, size_of(x)) - (unbiased ? correction : 0)",
      "share = g / masked_fill(y * (n > 0 ? n : 0), y == 0, inf)", -- 0 if all are equal
      "with_reduced_dims(share, dim, keepdim, size_of(x)) * (x - mean(x, dim, true))",
    },
  },
  widens = true, help = "Computes the standard deviation over dim, or of all elements.",
}
op "norm(x, p: number = 2, dim: dims?, keepdim = false)" {
  kernel = "reduce(x, dim, keepdim, 'norm', p)",
  -- infinite p: the extremes share g; else g sign(x) (|x| / y)^(p - 1), 0 where that is undefined
  grad = {
    x = {
      "gk = with_reduced_dims(g, dim, keepdim, size_of(x))",
      "yk = with_reduced_dims(y, dim, keepdim, size_of(x))",
      "hit = p == inf || p == -inf ? abs(x) == yk : nil",
      "power = p == 0 || p == 1 || p == 2 ? nil : pow(abs(x) / masked_fill(yk, yk == 0, inf), p - 1)",
      "p == 0 ? zeros_like(x) : p == 1 ? sign(x) * gk : p == 2 ? x * (gk / masked_fill(yk, yk == 0, inf)) "
        .. ": p == inf || p == -inf ? where(hit, sign(x), 0) * (gk / sum(hit, dim, true)) "
        .. ": sign(x) * (p < 1 ? masked_fill(power, x == 0, 0) : power) * gk",
    },
  },
  widens = true, autocast = "keep_gpu",
  help = "Computes the p-norm over dim, or of all elements.",
}
op "logsumexp(x, dim: dims?, keepdim = false)" {
  kernel = "reduce(x, dim, keepdim, 'logsumexp')",
  grad = { -- 0 if all are -inf
    x = "expand_to(g, dim, keepdim, size_of(x)) "
      .. "* exp(x - expand_to(masked_fill(y, y == -inf, 0), dim, keepdim, size_of(x)))",
  },
  widens = true, autocast = "keep_gpu", help = "Computes the logarithm of the sum of e^x over dim, or of all elements.",
}
local extreme_grad = {
  x = {
    "hit = x == with_reduced_dims(y, dim, keepdim, size_of(x))",
    "hit ? with_reduced_dims(g, dim, keepdim, size_of(x)) / sum(hit, dim, true) : 0",
  },
}
op "amax(x, dim: dims?, keepdim = false)" {
  kernel = "reduce(x, dim, keepdim, 'amax')",
  grad = extreme_grad,
  help = "Returns the largest elements over dim, or of all.",
}
op "amin(x, dim: dims?, keepdim = false)" {
  kernel = "reduce(x, dim, keepdim, 'amin')",
  grad = extreme_grad,
  help = "Returns the smallest elements over dim, or of all.",
}
op "max_dim(x, dim: dim, keepdim = false)" {
  results = 2,
  kernel = "extreme_along(x, dim, keepdim, true)",
  grad = {x = "position_grad(g, y1, dim, keepdim, size_of(x))"},
  internal = true, help = "largest along dim, and where: values, indices from 1",
}
op "min_dim(x, dim: dim, keepdim = false)" {
  results = 2,
  kernel = "extreme_along(x, dim, keepdim, false)",
  grad = {x = "position_grad(g, y1, dim, keepdim, size_of(x))"},
  internal = true, help = "smallest along dim, and where: values, indices from 1",
}
op "argmax(x, dim: dim?, keepdim = false)" {
  kernel = "extreme_along(x, dim, keepdim, true)",
  grad = "none",
  help = "Returns the indices of the largest elements along dim, or of all.",
}
op "argmin(x, dim: dim?, keepdim = false)" {
  kernel = "extreme_along(x, dim, keepdim, false)",
  grad = "none",
  help = "Returns the indices of the smallest elements along dim, or of all.",
}
op "all(x, dim: dims?, keepdim = false)" {
  kernel = "reduce(x, dim, keepdim, 'all')", grad = "none",
  help = "Returns whether all elements over dim, or of x, are true.",
}
op "any(x, dim: dims?, keepdim = false)" {
  kernel = "reduce(x, dim, keepdim, 'any')", grad = "none",
  help = "Returns whether any element over dim, or of x, is true.",
}
op "sum_to_size(x, size: size)" {
  kind = "composite",
  help = "Sums x over the dims that broadcasting size to its shape would expand.",
}

-- ---- softmax
op "softmax(x, dim: dim, dtype: dtype?)" {
  kernel = "softmax_along(x, nil, dim, 'softmax', dtype)",
  grad = {x = "softmax_backward(g, y, dim)"},
  autocast = "keep_gpu", help = "Computes the softmax along dim: e^x divided by the sum of e^x.",
}
op "softmin(x, dim: dim, dtype: dtype?)" {
  formula = "softmax(-x, dim, dtype)", autocast = "keep_gpu", help = "Computes the softmax of -x along dim.",
}
op "log_softmax(x, dim: dim, dtype: dtype?)" {
  kernel = "softmax_along(x, nil, dim, 'log_softmax', dtype)",
  grad = {x = "log_softmax_backward(g, y, dim)"},
  autocast = "keep_gpu", help = "Computes the logarithm of the softmax along dim.",
}
-- The result is r = y (grad - s), s the sum of grad y: dr/dgrad is symmetric.
op "softmax_backward(grad, y, dim: dim)" {
  kernel = "softmax_along(grad, y, dim, 'softmax_backward')",
  grad = {
    grad = "softmax_backward(g, y, dim)",
    y = "g * (grad - sum(grad * y, dim, true)) - grad * sum(g * y, dim, true)",
  },
  widens = true, internal = true, help = "gradient of softmax from its result y",
}
op "log_softmax_backward(grad, y, dim: dim)" {
  kernel = "softmax_along(grad, y, dim, 'log_softmax_backward')",
  grad = {grad = "g - sum(g * exp(y), dim, true)", y = "-(g * exp(y) * sum(grad, dim, true))"},
  widens = true, internal = true, help = "gradient of log_softmax from its result y",
}

--- Defines normalization and dropout.
local op, family = ...

family("batch_normalize(x, running_mean?, running_var?, weight?, bias?, addend?, training = false, "
  .. "momentum: number = 0.1, eps: number = 1e-5, relu = false, max: number = inf, num_batches_tracked?)") {
  operands = {
    "x: float preserve", "channels(x, C)", "running_mean: [C] of x or stat of x strided",
    "running_var: [C] of x or stat of x strided", "weight: [C] of x or stat of x", "bias: [C] of x or stat of x",
    "addend: like x", "num_batches_tracked: [] int64 strided", "statistics(x, C, training, running_mean, running_var)",
  },
  results = {
    "y: like x", "mean: [C] stat of x if training || relu", "invstd: [C] stat of x if training || relu",
    "mask: [relu_mask_bytes(x, addend)] uint8 if given(addend) && needs_relu_mask(x)",
  },
  zeros = "numel_of(x) == 0", writes = {"running_mean", "running_var", "num_batches_tracked", when = "training"},
  help = "batch norm; relu: of that, and of addend more, and at most max; mask: on a GPU, where its result is above 0 "
    .. "and below max",
}
family("batch_normalize_backward(grad, x, y?, weight?, bias?, save_mean?, save_invstd?, running_mean?, "
  .. "running_var?, more?, mask?, training = false, eps: number = 1e-5, relu = false, max: number = inf)") {
  operands = {
    "x: float preserve", "channels(x, C)", "grad: like x", "more: like x", "y: like x", "relu_mask(x, mask)",
    "mask: [...] uint8", "weight: [C] of x or stat of x",
    "bias: [C] of x or stat of x", "save_mean: [C] of x or stat of x", "save_invstd: [C] of x or stat of x",
    "running_mean: [C] of x or stat of x strided", "running_var: [C] of x or stat of x strided",
    "known_statistics(training || relu, save_mean, save_invstd, running_mean, running_var)",
  },
  results = {
    "dx: like x", "dweight: [C] of weight or stat of x", "dbias: [C] of weight or stat of x",
    "daddend: like x if given(y)",
  },
  zeros = "numel_of(x) == 0",
  help = "gradients by saved statistics in training and of relu, else by the running ones; more: to be added to grad; "
    .. "mask: of batch_normalize, read for y",
}
family "row_norm(x, normalized_shape: size, weight?, bias?, eps: number = 1e-5, centered = true)" {
  operands = {
    "x: float", "normalized(x, normalized_shape, rows...)", "weight: [normalized_shape...] of x or stat of x",
    "bias: [normalized_shape...] of x or stat of x",
  },
  results = {"y: like x", "mean: [rows...] stat of x if centered", "rstd: [rows...] stat of x"}, host = true,
  help = "rows over the last dims, without their mean if centered, divided by their deviation or root mean square",
}
family "row_norm_backward(grad, x, normalized_shape: size, save_mean?, save_rstd, weight?, eps: number = 1e-5)" {
  operands = {
    "x: float", "normalized(x, normalized_shape, rows...)", "grad: like x",
    "weight: [normalized_shape...] of x or stat of x", "save_mean: [rows...] of x or stat of x",
    "save_rstd: [rows...] of x or stat of x",
  },
  results = {
    "dx: like x", "dweight: [normalized_shape...] of weight or stat of x",
    "dbias: [normalized_shape...] of weight or stat of x if given(save_mean)",
  },
  host = true, help = "gradients of rows; save_mean: of centered ones",
}

-- y1, y2 are mean and inverse standard deviation, also in layer_norm. With xhat = (x - mean) invstd and w the weight,
-- over n elements that share statistics:
-- dx = invstd (w g - mean(w g) - xhat mean(w g xhat)),  dw = sum(g xhat),  db = sum(g)
-- Double backward recomputes the statistics from x, since it needs their gradients too.
op("batch_norm(x, running_mean?, running_var?, weight?, bias?, training = false, momentum: number = 0.1, "
  .. "eps: number = 1e-5, {num_batches_tracked?})") {
  kernel = "batch_normalize(x, running_mean, running_var, weight, bias, nil, training, momentum, eps, false, inf, "
    .. "num_batches_tracked)", hidden = 2,
  writes = {"running_mean", "running_var", "num_batches_tracked", when = "training"},
  grad = {
    ["x, weight, bias"] = "batch_norm_backward(g, x, weight, y1, y2, "
      .. "training ? nil : running_mean, training ? nil : running_var, training, eps)",
  },
  help = "Applies batch normalization to each channel.",
}
op("batch_norm_backward(grad, x, weight?, save_mean?, save_invstd?, running_mean?, running_var?, training = false, "
  .. "eps: number = 1e-5)") {
  results = 3,
  kernel = "batch_normalize_backward(grad, x, nil, weight, nil, save_mean, save_invstd, running_mean, running_var, "
    .. "nil, nil, training, eps)",
  grad = "formula",
  formula = { -- x [N, C, ...]: statistics per channel
    "dims = all_but(1, ndim_of(x))",
    "centered = x - (training ? mean(x, dims, true) : along(running_mean, 1, ndim_of(x)))",
    "invstd = rsqrt((training ? mean(square(centered), dims, true) : along(running_var, 1, ndim_of(x))) + eps)",
    "xhat = centered * invstd",
    "wg = given(weight) ? grad * along(weight, 1, ndim_of(x)) : grad",
    "training ? invstd * (wg - mean(wg, dims, true) - xhat * mean(wg * xhat, dims, true)) : wg * invstd",
    "sum(grad * xhat, dims)",
    "sum(grad, dims)",
  },
  widens = true, internal = true, help = "gradients of batch_norm: x, weight, bias",
}
op("batch_norm_relu(x, running_mean?, running_var?, weight?, bias?, addend?, {training = false, "
  .. "momentum: number = 0.1, eps: number = 1e-5, max: number = inf, num_batches_tracked?})") {
  kernel = "batch_normalize(x, running_mean, running_var, weight, bias, addend, training, momentum, eps, true, max, "
    .. "num_batches_tracked)",
  needs = {{"max > 0", "max must be above 0, got {max}"}},
  hidden = 3,
  writes = {"running_mean", "running_var", "num_batches_tracked", when = "training"},
  grad = {
    ["x, weight, bias, addend"] = "batch_norm_relu_backward(g, x, given(addend) ? y : nil, weight, bias, y1, y2, "
      .. "more, y3, training, eps, max)",
  },
  help = "Applies batch normalization, adds addend, and limits the sum to [0, max].",
}
op("batch_norm_relu_backward(grad, x, y?, weight?, bias?, save_mean, save_invstd, more?, mask?, training = false, "
  .. "eps: number = 1e-5, max: number = inf)") {
  results = 4,
  kernel = "batch_normalize_backward(grad, x, y, weight, bias, save_mean, save_invstd, nil, nil, more, mask, "
    .. "training, eps, true, max)",
  needs = {{"!given(more) || !on_cpu(x)", "more must be nil on the CPU"}},
  grad = "formula",
  formula = {
    "dims = all_but(1, ndim_of(x))",
    "centered = x - (training ? mean(x, dims, true) : along(save_mean, 1, ndim_of(x)))",
    "invstd = training ? rsqrt(mean(square(centered), dims, true) + eps) : along(save_invstd, 1, ndim_of(x))",
    "xhat = centered * invstd",
    "scaled_x = given(weight) ? xhat * along(weight, 1, ndim_of(x)) : xhat",
    "before_relu = given(y) ? y : given(bias) ? scaled_x + along(bias, 1, ndim_of(x)) : scaled_x",
    "above_0 = masked_fill(given(more) ? grad + more : grad, before_relu <= 0, 0)",
    "masked = max < inf ? masked_fill(above_0, before_relu >= max, 0) : above_0",
    "wg = given(weight) ? masked * along(weight, 1, ndim_of(x)) : masked",
    "training ? invstd * (wg - mean(wg, dims, true) - xhat * mean(wg * xhat, dims, true)) : wg * invstd",
    "sum(masked * xhat, dims)",
    "sum(masked, dims)",
    "given(y) ? masked : nil",
  }, widens = true, internal = true,
  help = "gradients of batch_norm_relu: x, weight, bias, addend; y is its result, nil if there was no addend; then "
    .. "the fourth is nil too; more: to be added to grad, on a GPU; mask: what a GPU reads for y",
}
op "layer_norm(x, normalized_shape: size, weight?, bias?, eps: number = 1e-5)" {
  kernel = "row_norm(x, normalized_shape, weight, bias, eps)", hidden = 2,
  grad = {["x, weight, bias"] = "layer_norm_backward(g, x, normalized_shape, y1, y2, weight, eps)"},
  autocast = "keep_gpu", help = "Applies layer normalization over the last dims.",
}
op "layer_norm_backward(grad, x, normalized_shape: size, save_mean, save_rstd, weight?, eps: number = 1e-5)" {
  results = 3, kernel = "row_norm_backward(grad, x, normalized_shape, save_mean, save_rstd, weight, eps)",
  grad = "formula",
  formula = { -- statistics over the last dims
    "first = ndim_of(x) - length_of(normalized_shape)",
    "dims = range(first, ndim_of(x))",
    "centered = x - mean(x, dims, true)",
    "invstd = rsqrt(mean(square(centered), dims, true) + eps)",
    "xhat = centered * invstd",
    "wg = given(weight) ? grad * weight : grad",
    "invstd * (wg - mean(wg, dims, true) - xhat * mean(wg * xhat, dims, true))",
    "first > 0 ? sum(grad * xhat, range(0, first)) : grad * xhat",
    "first > 0 ? sum(grad, range(0, first)) : grad",
  },
  widens = true, internal = true, help = "gradients of layer_norm: x, weight, bias",
}
op "rms_norm_rows(x, normalized_shape: size, weight?, eps: number = 1e-5)" {
  kernel = "row_norm(x, normalized_shape, weight, nil, eps, false)", hidden = 2,
  grad = {["x, weight"] = "rms_norm_rows_backward(g, x, normalized_shape, y2, weight, eps)"},
  internal = true, help = "rms_norm by a kernel of its own, the CPU's; weight of x's dtype, or float32 beside halves",
}
op "rms_norm_rows_backward(grad, x, normalized_shape: size, save_rstd, weight?, eps: number = 1e-5)" {
  results = 2, kernel = "row_norm_backward(grad, x, normalized_shape, nil, save_rstd, weight, eps)",
  grad = "formula",
  formula = {
    "first = ndim_of(x) - length_of(normalized_shape)",
    "dims = range(first, ndim_of(x))",
    "rstd = rsqrt(mean(square(x), dims, true) + eps)",
    "xhat = x * rstd",
    "wg = given(weight) ? grad * weight : grad",
    "rstd * (wg - xhat * mean(wg * xhat, dims, true))",
    "first > 0 ? sum(grad * xhat, range(0, first)) : grad * xhat",
  },
  widens = true, internal = true, help = "gradients of rms_norm_rows: x, weight",
}
op "rms_norm(x, normalized_shape: size, weight?, eps: number?)" {
  needs = {
    {"ends_with(size_of(x), normalized_shape)",
      "normalized_shape must be the last sizes of x {x}, got {text_of(normalized_shape)}"},
    {"!given(weight) || ends_with(normalized_shape, size_of(weight)) && ndim_of(weight) == length_of(normalized_shape)",
      "expected weight to have shape {text_of(normalized_shape)} (normalized_shape), got {weight}"},
  },
  forms = {
    {
      when = "length_of(normalized_shape) > 0 && rms_norm_rows_is_supported(x, weight)",
      "rms_norm_rows(x, normalized_shape, weight, given(eps) ? eps : epsilon_of(x))",
    },
  },
  formula = {
    "dims = range(ndim_of(x) - length_of(normalized_shape), ndim_of(x))",
    "scaled_x = x * rsqrt(mean(square(x), dims, true) + (given(eps) ? eps : epsilon_of(x)))",
    "given(weight) ? scaled_x * weight : scaled_x",
  },
  widens = true, autocast = "keep_gpu",
  help = "Applies root mean square layer normalization over the last dims.",
}
-- y1, y2 are mean and inverse standard deviation of each sample's groups. The gradient for x is layer_norm's, with
-- statistics over a group; those for weight and bias are batch_norm's.
op "grouped_norm(x, num_groups: int, weight?, bias?, eps: number = 1e-5)" {
  operands = {
    "x: [N, C, ...] float", "groups(x, num_groups)", "weight: [C] of x or stat of x", "bias: [C] of x or stat of x",
  },
  results = {"y: like x", "mean: [N * num_groups] stat of x", "invstd: [N * num_groups] stat of x"}, hidden = 2,
  host = true,
  grad = {["x, weight, bias"] = "grouped_norm_backward(g, x, num_groups, y1, y2, weight, eps)"},
  internal = true,
  help = "group_norm by a kernel of its own, the CPU's; weight and bias of x's dtype, or float32 beside halves",
}
op "grouped_norm_backward(grad, x, num_groups: int, save_mean, save_invstd, weight?, eps: number = 1e-5)" {
  operands = {
    "x: [N, C, ...] float", "groups(x, num_groups)", "grad: like x", "weight: [C] of x or stat of x",
    "save_mean: [N * num_groups] of x or stat of x", "save_invstd: [N * num_groups] of x or stat of x",
  },
  results = {"dx: like x", "dweight: [C] of weight or stat of x", "dbias: [C] of weight or stat of x"}, host = true,
  grad = "formula",
  formula = {
    "dims = all_but(1, ndim_of(x))",
    "groups = [size_of(x)[1], num_groups, -1]",
    "rows_of_x = reshape(x, groups)",
    "centered = rows_of_x - mean(rows_of_x, [2], true)",
    "invstd = rsqrt(mean(square(centered), [2], true) + eps)",
    "xhat = centered * invstd",
    "wg = reshape(given(weight) ? grad * along(weight, 1, ndim_of(x)) : grad, groups)",
    "reshape(invstd * (wg - mean(wg, [2], true) - xhat * mean(wg * xhat, [2], true)), size_of(x))",
    "sum(grad * reshape(xhat, size_of(x)), dims)",
    "sum(grad, dims)",
  },
  widens = true, internal = true, help = "gradients of grouped_norm: x, weight, bias",
}
op "group_norm(x, num_groups: int, weight?, bias?, eps: number = 1e-5)" {
  needs = {
    {"ndim_of(x) >= 2", "expected x to have shape [N, C, ...], got {x}"},
    {"divides(num_groups, size_of(x)[2])",
      "channels of x ({size_of(x)[2]}) must be divisible by num_groups ({num_groups})"},
    {"!given(weight) || ndim_of(weight) == 1 && size_of(weight)[1] == size_of(x)[2]",
      "expected weight to have shape [{size_of(x)[2]}], one for each channel, got {weight}"},
    {"!given(bias) || ndim_of(bias) == 1 && size_of(bias)[1] == size_of(x)[2]",
      "expected bias to have shape [{size_of(x)[2]}], one for each channel, got {bias}"},
  },
  forms = {{when = "grouped_norm_is_supported(x, weight, bias)", "grouped_norm(x, num_groups, weight, bias, eps)"}},
  formula = {
    "count = size_of(x)[1] * num_groups",
    "each = numel_of(x) / (count > 0 ? count : 1)",
    "rows = each > 1 ? batch_norm(reshape(x, [1, count, each]), nil, nil, nil, nil, true, 0, eps) "
      .. ": layer_norm(reshape(x, [count, each]), [each], nil, nil, eps)", -- its gradient is slow for long rows
    "normal = reshape(rows, size_of(x))",
    "scaled_x = given(weight) && !given(bias) ? normal * along(weight, 1, ndim_of(x)) : normal",
    "shift = given(bias) ? along(bias, 1, ndim_of(x)) : nil",
    "given(bias) ? given(weight) ? addcmul(shift, normal, along(weight, 1, ndim_of(x))) : normal + shift : scaled_x",
  },
  autocast = "keep_gpu",
  help = "Applies group normalization over groups of channels.",
}
-- y1 is the mask.
op "dropout(x, p: number = 0.5, training = true)" {
  hidden = 1, draws = "training",
  grad = {x = "training && p > 0 ? dropout_backward(g, y1, p < 1 ? 1 / (1 - p) : 0) : g"},
  help = "Sets random elements to 0 with probability p and divides the others by 1 - p.",
}
op "dropout_backward(x, mask: mask, scale: number)" {
  elementwise = "x * mask * scale",
  grad = {x = "dropout_backward(g, mask, scale)"}, internal = true,
  help = "gradient of dropout: scale times x where mask is true, else 0",
}

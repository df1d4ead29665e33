--- Defines losses; targets count classes from 1.
local op = ...

-- y1 is the total weight of the targets.
op "nll_loss(x, target, weight?, {ignore_index: int = -100, reduction: reduction = mean})" {
  operands = {
    "x: float layout(classes)", "classes(ndim_of(x), sizes_of(x), C, at...)", "target: [at...] index",
    "weight: [C] of x or stat of x", "reduced(reduction, at, shape...)",
  },
  results = {"y: [shape...] of x", "total: [] stat of x"}, hidden = 1,
  grad = {x = "nll_loss_backward(g, target, weight, ignore_index, reduction, y1, size_of(x))"},
  autocast = "keep", index_below = {"target", "x", 2},
  help = "Computes the negative log likelihood of target classes under log-probabilities.",
}
op("nll_loss_backward(grad, target, weight?, ignore_index: int = -100, reduction: reduction = mean, total, "
  .. "size: size)") {
  operands = {
    "grad: float", "classes(ndim_of(size), sizes_of(size), C, at...)", "reduced(reduction, at, shape...)",
    "grad: [shape...] strided", "target: [at...] index", "weight: [C] of grad or stat of grad", "total: [] float",
  },
  results = {"dx: [size...] of grad as gradient(size) layout(classes)"},
  grad = {grad = "nll_loss(g, target, weight, ignore_index, reduction)"},
  internal = true, help = "gradient of nll_loss for an x of that size",
}
-- y1 holds each row's maximum and the sum of e^(x - maximum), y2 is the total weight of the targets.
op("cross_entropy_rows(x, target, weight?, ignore_index: int = -100, label_smoothing: number = 0, "
  .. "reduction: reduction = mean)") {
  operands = {
    "x: [N, C] float strided", "classes(ndim_of(x), sizes_of(x), K, at...)", "target: [N] index",
    "weight: [C] float in stat of x", "reduced(reduction, at, shape...)",
  },
  results = {"y: [shape...] stat of x", "stats: [N, 2] stat of x", "total: [] stat of x"}, hidden = 2,
  grad = {x = "cross_entropy_rows_backward(g, x, target, weight, y1, y2, ignore_index, label_smoothing, reduction)"},
  internal = true,
  index_below = {"target", "x", 2},
  help = "the cross entropy between rows of logits x [N, C] and classes [N], in the dtype of x's statistics",
}
op("cross_entropy_rows_backward(grad, x, target, weight?, stats, total, ignore_index: int = -100, "
  .. "label_smoothing: number = 0, reduction: reduction = mean)") {
  operands = {
    "x: [N, C] float strided", "classes(ndim_of(x), sizes_of(x), K, at...)", "target: [N] index",
    "weight: [C] float in stat of x", "reduced(reduction, at, shape...)", "grad: [shape...] float in stat of x",
    "stats: [N, 2] stat of x", "total: [] stat of x",
  },
  results = {"dx: [N, C] of x"},
  grad = "formula",
  formula = {
    "logp = log_softmax(in_dtype_of(x, stats), 1)",
    "given_weight = given(weight) ? in_dtype_of(weight, stats) : nil",
    "hard = nll_loss_backward(grad, target, given_weight, ignore_index, reduction, total, size_of(x)) "
      .. "* (1 - label_smoothing)",
    "smooth = label_smoothing > 0",
    "ignored = smooth ? target == ignore_index : nil",
    "each = smooth ? masked_fill(expand(reduction == 'mean' ? grad / total : grad, size_of(target)), ignored, 0) : nil",
    "spread = smooth ? unsqueeze(each, 1) * (-label_smoothing / size_of(x)[2]) : nil",
    "evenly = !smooth ? nil : given(weight) ? spread * given_weight : expand(spread, size_of(x))",
    "in_dtype_of(log_softmax_backward(smooth ? hard + evenly : hard, logp, 1), x)",
  },
  internal = true, help = "gradient of cross_entropy_rows",
}
op("cross_entropy(x, target, weight?, {ignore_index: int = -100, label_smoothing: number = 0, "
  .. "reduction: reduction = mean})") {
  needs = {
    {"ndim_of(x) > 0", "expected x to have shape [C], [N, C] or [N, C, ...], got {x}"},
    {"label_smoothing >= 0 && label_smoothing <= 1", "label_smoothing must be from 0 to 1, got {label_smoothing}"},
    {"!given(weight) || ndim_of(weight) == 1 && size_of(weight)[1] == size_of(x)[ndim_of(x) > 1 ? 2 : 1]",
      "expected weight to have shape [{size_of(x)[ndim_of(x) > 1 ? 2 : 1]}], one for each class, got {weight}"},
    {"!is_float(target) || same_size(x, target)",
      "target must be integer classes, or probabilities of x's shape {x}, got {dtype_of(target)} {target}"},
    {"!is_float(target) || ignore_index < 1",
      "ignore_index must be below 1 for a target of probabilities, got {ignore_index}"},
    {"is_float(target) || ndim_of(target) == ndim_of(x) - 1",
      "target must have x's shape {x} without the dim of classes, got {target}"},
    {"is_float(target) || ndim_of(x) != 3 || size_of(target)[2] == size_of(x)[3] "
      .. "|| size_of(target)[1] != size_of(x)[1] || size_of(target)[2] != size_of(x)[2]",
      "expected x to have shape [N, C, L] for target of {target}, got {x}; use x:transpose(2, 3), or x:flatten(1, 2) "
        .. "and target:flatten()"},
  },
  forms = { -- rows of classes: logits and their gradient are each read and written once
    {
      when = "has_class_rows(x, target)",
      "labels = ndim_of(x) == 2 ? target : reshape(target, [-1])",
      "loss = cross_entropy_rows(class_rows(x), labels, weight, ignore_index, label_smoothing, reduction)",
      "in_result_dtype_of(reduction == 'none' && ndim_of(x) != 2 ? reshape(loss, size_of(target)) : loss, x)",
    },
  },
  -- A part that does not apply is nil, and so is all computed from it. Inputs without a batch dim are batches of one.
  formula = {
    "wide = in_kept_dtype(x)",
    "xs = ndim_of(x) == 1 ? unsqueeze(wide, 0) : wide",
    "given_target = in_kept_dtype(target)",
    "targets = ndim_of(x) == 1 ? unsqueeze(given_target, 0) : given_target",
    "weights = given(weight) ? in_kept_dtype(weight) : nil",
    "classes = size_of(xs)[2]",
    "smooth = label_smoothing > 0 && !is_float(target)",
    "logp = log_softmax(xs, 1)",
    "terms = !smooth && !is_float(target) ? nil : given(weight) ? logp * along(weights, 1, ndim_of(logp)) : logp",
    -- targets are probabilities; the mean is over all dims except the classes
    "soft = !is_float(target) ? nil "
      .. ": label_smoothing > 0 ? targets * (1 - label_smoothing) + label_smoothing / classes : targets",
    "distance = -(terms * soft)",
    -- label smoothing's part that spreads over all classes
    "ignored = smooth ? targets == ignore_index : nil",
    "evenly = smooth ? masked_fill(-sum(terms, 1), ignored, 0) : nil",
    "counts = given(weight) && smooth "
      .. "? masked_fill(index_select(weights, 0, flatten(masked_fill(targets, ignored, 1))), flatten(ignored), 0) "
      .. ": !ignored",
    "even = reduction == 'mean' ? sum(evenly) / sum(counts) : reduced(evenly, reduction)",
    "hard = is_float(target) ? nil : nll_loss(logp, targets, weights, ignore_index, reduction)",
    "loss = smooth ? hard * (1 - label_smoothing) + even * (label_smoothing / classes) "
      .. ": !is_float(target) ? hard : reduction == 'none' ? sum(distance, 1) "
      .. ": sum(distance) / (reduction == 'mean' ? numel_of(logp) / classes : 1)",
    "ndim_of(x) == 1 && reduction == 'none' ? reshape(loss, []) : loss",
  }, widens = true,
  autocast = "keep_result", help = "Computes the cross entropy between logits and targets, classes or probabilities.",
}
local same_or_warned = {
  "same_size(x, target)", "shapes of x and target should match, got {x} and {target}; they are broadcast, which "
    .. "is probably a mistake", warn = true,
}
op "mse_loss(x, target, {reduction: reduction = mean})" {
  needs = {same_or_warned},
  formula = "reduced(squared_difference(x, target), reduction)", widens = true,
  autocast = "keep", help = "Computes the squared error between predictions and targets: (x - target)^2.",
}
local same_size = {"same_size(x, target)", "shapes of x and target must match, got {x} and {target}"}
op "binary_cross_entropy(x, target, weight?, {reduction: reduction = mean})" {
  needs = {
    same_size,
    {"!(least_of(x) < 0 || largest_of(x) > 1)", "x must be from 0 to 1, got "
      .. "{least_of(x)} to {largest_of(x)}; use bce_with_logits for logits"}, -- logits would yield NaN
  },
  formula = {"loss = bce(x, target)", "reduced(given(weight) ? loss * weight : loss, reduction)"},
  widens = true, autocast = "banned_gpu",
  help = "Computes the binary cross entropy between probabilities and targets.",
}
op "bce_with_logits(x, target, weight?, {pos_weight?, reduction: reduction = mean})" {
  needs = {same_size},
  formula = {
    "loss = bce_of_logits(x, target, given(pos_weight) ? pos_weight : 1)",
    "reduced(given(weight) ? loss * weight : loss, reduction)",
  },
  widens = true, autocast = "keep", help = "Computes the binary cross entropy between logits and targets.",
}

-- Differences of integers wrap around, as in PyTorch.
local absolute = "reduced(is_float(x) || is_float(target) ? absolute_difference(x, target) : abs(x - target), "
  .. "reduction)"
op "l1_loss(x, target, {reduction: reduction = mean})" {
  needs = {same_or_warned},
  formula = absolute,
  widens = true, autocast = "keep", help = "Computes the absolute error between predictions and targets: |x - target|.",
}
op "huber_loss(x, target, {delta: number = 1, reduction: reduction = mean})" {
  needs = {same_or_warned, {"delta > 0", "delta must be above 0, got {delta}"}},
  formula = "reduced(huber(x, target, delta), reduction)",
  widens = true, autocast = "keep",
  help = "Computes the Huber loss: a squared error where it is below delta, and a scaled absolute error elsewhere.",
}
op "smooth_l1_loss(x, target, {beta: number = 1, reduction: reduction = mean})" {
  needs = {same_or_warned, {"beta >= 0", "beta must be at least 0, got {beta}"}},
  formula = ("beta == 0 ? %s : reduced(huber(x, target, beta), reduction) / beta"):format(absolute), widens = true,
  autocast = "keep", help = "Computes a squared error where it is below beta, and an absolute error elsewhere.",
}
op "kl_div(x, target, {log_target = false, reduction: divergence_reduction = mean})" {
  formula = {
    "loss = log_target ? exp(target) * (target - x) : relative_entropy(x, target)",
    "reduction == 'batchmean' ? sum(loss) / (ndim_of(x) > 0 ? size_of(x)[1] : 1) : reduced(loss, reduction)",
  },
  widens = true, autocast = "keep",
  help = "Computes the Kullback-Leibler divergence loss of log-probabilities and target probabilities.",
}
op "poisson_nll_loss(x, target, log_input = true, full = false, {eps: number = 1e-8, reduction: reduction = mean})" {
  formula = {
    "loss = log_input ? poisson_nll(x, target) : x - target * log(x + eps)",
    "stirling = full ? target * log(target) - target + log(target * 6.283185307179586) * 0.5 : nil",
    "reduced(full ? loss + masked_fill(stirling, target <= 1, 0) : loss, reduction)",
  },
  widens = true, autocast = "keep",
  help = "Computes the negative log likelihood of target counts under a Poisson distribution.",
}
op "gaussian_nll_loss(x, target, var: scalar, full = false, eps: number = 1e-6, reduction: reduction = mean)" {
  needs = {
    {"eps > 0", "eps must be above 0, got {eps}"},
    {"ndim_of(var) <= ndim_of(x)", "expected var to have x's shape {x} or one number for each row, got {var}"},
    {"!(least_of(var) < 0)", "var must be at least 0, got {least_of(var)}"},
  },
  formula = { -- the gradient ignores that eps replaces small variances
    "shaped = ndim_of(var) > 0 && ndim_of(var) == ndim_of(x) - 1 ? unsqueeze(var, -1) : var",
    "loss = gaussian_nll(x, target, shaped, eps)",
    "reduced(full ? loss + 0.9189385332046727 : loss, reduction)",
  },
  widens = true, autocast = "keep",
  help = "Computes the negative log likelihood of targets under a normal distribution.",
}
op "soft_margin_loss(x, target, {reduction: reduction = mean})" {
  formula = "-reduced(log_sigmoid(target * (is_float(x) ? x : x / 1)), reduction)", -- integers may wrap around
  widens = true, autocast = "keep", help = "Computes the logistic loss of two classes: log(1 + e^(-target * x)).",
}
op "hinge_embedding_loss(x, target, margin: number = 1, reduction: reduction = mean)" {
  formula = {
    "lacking = margin - x",
    "apart = lacking <= 0 ? 0 : lacking",
    "reduced((target == 1 ? 0 : apart) + (target == -1 ? 0 : x), reduction)",
  }, widens = {"x"},
  autocast = "keep", help = "Computes a loss of distances: x where target is 1, max(0, margin - x) where it is -1.",
}
op "margin_ranking_loss(x1, x2, target, margin: number = 0, reduction: reduction = mean)" {
  needs = {
    {"ndim_of(x1) == ndim_of(x2) && ndim_of(x2) == ndim_of(target)",
      "x1, x2 and target must have the same number of dims, got {x1}, {x2} and {target}"},
  },
  formula = {
    "floats = is_float(x1) || is_float(x2)",
    "lacking = floats ? nil : neg(target * (x1 - x2)) / 1 + margin", -- floating, as in PyTorch
    "reduced(floats ? ranking_margin(x1, x2, target, margin) : lacking <= 0 ? 0 : lacking, reduction)",
  }, widens = true,
  autocast = "keep", help = "Computes a ranking loss of pairs of scores: max(0, -target * (x1 - x2) + margin).",
}
op "cosine_similarity(x1, x2, dim: dim? = 1, eps: number = 1e-8)" {
  needs = {{"is_float(x1) || is_float(x2)", "x1 must be floating point, got {dtype_of(x1)}; convert it with :float()"}},
  formula = { -- the gradient ignores that eps replaces small lengths
    "first = same_size(x1, x2) ? x1 : x1 + zeros_like(x2)",
    "second = same_size(x1, x2) ? x2 : x2 + zeros_like(x1)",
    "norm1 = norm(first, 2, [dim], true)",
    "norm2 = norm(second, 2, [dim], true)",
    "length1 = norm1 < eps ? norm1 - detach(norm1) + eps : norm1",
    "length2 = norm2 < eps ? norm2 - detach(norm2) + eps : norm2",
    "squeeze(sum(first * (second / length2), [dim], true) / length1, [dim])",
  },
  widens = true, autocast = "keep",
  help = "Returns the cosine similarity of x1 and x2 along a dim.",
}
op "cosine_embedding_loss(x1, x2, target, margin: number = 0, reduction: reduction = mean)" {
  needs = {
    {"ndim_of(target) <= 1", "expected target to have shape [N], or [] for vectors, got {target}"},
    {"ndim_of(x1) == ndim_of(target) + 1 && ndim_of(x2) == ndim_of(target) + 1",
      "expected x1, x2 and target to have shapes [N, D], [N, D] and [N], or [D], [D] and [], got {x1}, {x2} and "
        .. "{target}"},
  },
  formula = {
    "first = is_float(x1) ? x1 : x1 / 1", -- squares of small integers would wrap around
    "second = is_float(x2) ? x2 : x2 / 1",
    "lengths = (square(norm(first, 2, [-1])) + 1e-12) * (square(norm(second, 2, [-1])) + 1e-12)",
    "cosine = sum(first * second, [-1]) / sqrt(lengths)",
    "over = cosine - margin",
    "reduced((target == 1 ? 1 - cosine : 0) + (target == -1 ? (over <= 0 ? 0 : over) : 0), reduction)",
  },
  widens = {"x1", "x2"}, autocast = "keep",
  help = "Computes a loss of pairs of vectors from their cosine similarity.",
}
op "pairwise_distance(x1, x2, p: number = 2, eps: number = 1e-6, keepdim = false)" {
  formula = {
    "apart = is_float(x1) || is_float(x2) ? shifted_difference(x1, x2, eps) : (x1 - x2) / 1 + eps",
    "norm(apart, p, [-1], keepdim)",
  },
  widens = true, autocast = "keep_gpu",
  help = "Computes the pairwise distance of vectors: the p-norm of x1 - x2 + eps.",
}
op("triplet_margin_loss(anchor, positive, negative, margin: number = 1, p: number = 2, eps: number = 1e-6, "
  .. "swap = false, reduction: reduction = mean)") {
  needs = {
    {"ndim_of(anchor) == ndim_of(positive) && ndim_of(positive) == ndim_of(negative)",
      "anchor, positive and negative must have the same number of dims, got {anchor}, {positive} and {negative}"},
    {"margin > 0", "margin must be above 0, got {margin}"},
  },
  formula = {
    "near = pairwise_distance(anchor, positive, p, eps)",
    "off = pairwise_distance(anchor, negative, p, eps)",
    "far = swap ? minimum(off, pairwise_distance(positive, negative, p, eps)) : off",
    "lacking = near - far + margin",
    "reduced(lacking <= 0 ? 0 : lacking, reduction)",
  },
  widens = true, autocast = "keep",
  help = "Computes a triplet loss: max(0, d(anchor, positive) - d(anchor, negative) + margin).",
}
op "multi_margin_loss(x, target, p: int = 1, margin: number = 1, weight?, {reduction: reduction = mean})" {
  needs = {
    {"p == 1 || p == 2", "p must be 1 or 2, got {p}"},
    {"ndim_of(x) <= 2", "expected x to have shape [N, C] or [C], got {x}"},
    {"numel_of(x) > 0 || ndim_of(x) == 2 && size_of(x)[2] > 0",
      "expected x to have shape [N, C] or [C] with C above 0, got {x}"},
    {"ndim_of(target) <= 1 && numel_of(target) == (ndim_of(x) == 2 ? size_of(x)[1] : 1)",
      "target must have one class for each row of x {x}, got {target}"},
    {"!given(weight) || ndim_of(weight) == 1 && size_of(weight)[1] == (ndim_of(x) > 0 ? size_of(x)[-1] : 1)",
      "expected weight to have shape [{ndim_of(x) > 0 ? size_of(x)[-1] : 1}], one for each class, got {weight}"},
  },
  formula = {
    "rows_of_x = ndim_of(x) < 2 ? reshape(x, [1, numel_of(x)]) : x",
    "classes = size_of(rows_of_x)[2]",
    "labels = reshape(target, [size_of(rows_of_x)[1], 1])",
    "own = gather(rows_of_x, 1, labels)",
    "lacking = relu(margin - own + rows_of_x)",
    "powered = p == 2 ? square(lacking) : lacking",
    "summed = sum(scatter(powered, 1, labels, 0), [1]) / classes",
    "loss = given(weight) ? summed * index_select(weight, 0, squeeze(labels, [1])) : summed",
    "reduced(reshape(loss, size_of(target)), reduction)",
  },
  widens = true, autocast = "keep",
  help = "Computes a multi-class hinge loss between scores and target classes.",
}
op "multilabel_soft_margin_loss(x, target, weight?, {reduction: reduction = mean})" {
  needs = {{"ndim_of(x) > 0", "expected x to have shape [N, C] or [C], got {x}"}},
  formula = {
    "each = -(target * log_sigmoid(x) + (1 - target) * log_sigmoid(-x))",
    "loss = sum(given(weight) ? each * weight : each, [-1]) / size_of(x)[-1]",
    "reduced(loss, reduction)",
  },
  widens = true, autocast = "keep",
  help = "Computes a multi-label loss: the binary cross entropy of logits, averaged over the classes.",
}
-- y1 holds the logarithms of alpha, [N, T, 2 * longest + 1].
op "ctc_nll(x, target, starts, input_lengths, target_lengths, longest: int, blank: int = 1)" {
  hidden = 1,
  operands = {
    "x: [T+, N+, C+] real", "target: [L] int64 private", "starts: [N] int64 private",
    "input_lengths: [N] int64 private", "target_lengths: [N] int64 private", "blank: from 1 to C",
    "longest: from 0 to 536870911",
  },
  results = {"loss: [N] of x", "log_alpha: [N, T, 2 * longest + 1] of x"},
  grad = {
    x = "ctc_nll_backward(g, x, target, starts, input_lengths, target_lengths, y, y1, blank)",
  },
  autocast = "keep", internal = true,
  help = "minus the logarithm of the probability of each target over all its alignments (Graves et al. 2006), [N]; x "
    .. "log-probabilities [T, N, C], target the classes, from 1, one after the other, of which sample n has "
    .. "target_lengths[n], at most `longest`, from place starts[n] on, counted from 0; inf where there is no alignment",
}
op "ctc_nll_backward(grad, x, target, starts, input_lengths, target_lengths, loss, log_alpha, blank: int = 1)" {
  operands = {
    "x: [T+, N+, C+] real", "target: [L] int64 private", "starts: [N] int64 private",
    "input_lengths: [N] int64 private", "target_lengths: [N] int64 private", "blank: from 1 to C",
    "loss: [N] of x", "log_alpha: [N, T, S] of x", "odd(S)", "grad: [N] of x",
  },
  results = {"dx: [T, N, C] of x"},
  grad = "none",
  internal = true, help = "gradient of ctc_nll, as PyTorch has it: right after a log_softmax",
}

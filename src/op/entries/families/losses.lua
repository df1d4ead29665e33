--- Losses; targets count classes from 1.
local op = ...

-- y1 is the total weight of the targets.
op "nll_loss" {
  "x", "target", "weight?", options = {"ignore_index: int = -100", "reduction: reduction = mean"}, hidden = 1,
  grad = {x = "nll_loss_backward(g, target, weight, ignore_index, reduction, y1, size_of(x))"},
  autocast = "keep", help = "minus x at target; x log-probabilities [N, C] or [N, C, ...]",
}
op "nll_loss_backward" {
  "grad", "target", "weight?", "ignore_index: int = -100", "reduction: reduction = mean", "total", "size: size",
  grad = {grad = "nll_loss(g, target, weight, ignore_index, reduction)"},
  inner = true, help = "gradient of nll_loss for an x of that size",
}
op "cross_entropy" {
  "x", "target",
  "weight?", options = {"ignore_index: int = -100", "label_smoothing: number = 0", "reduction: reduction = mean"},
  needs = {
    {"ndim_of(x) > 0", "x needs a dim of classes: [C], [N, C] or [N, C, ...]"},
    {"label_smoothing >= 0 && label_smoothing <= 1", "label_smoothing is {label_smoothing}; it has to be from 0 to 1"},
    {"!given(weight) || ndim_of(weight) == 1 && size_of(weight)[1] == size_of(x)[ndim_of(x) > 1 ? 2 : 1]",
      "weight is {weight}; it has to hold one number for each of {size_of(x)[ndim_of(x) > 1 ? 2 : 1]} classes"},
    {"!is_float(target) || same_size(x, target)",
      "target is {dtype_of(target)} {target}; probabilities have to be x's size {x}, and classes integers"},
    {"is_float(target) || ndim_of(target) == ndim_of(x) - 1",
      "target is {target}; for x of {x} it has one dim less, without the classes"},
    {"is_float(target) || ndim_of(x) != 3 || size_of(target)[2] == size_of(x)[3] "
      .. "|| size_of(target)[1] != size_of(x)[1] || size_of(target)[2] != size_of(x)[2]",
      "target is {target} and x {x}, whose classes are dim 2, [N, C, L]; x:transpose(2, 3) puts them there, or "
        .. "x:flatten(1, 2) and target:flatten() make a row of each place"},
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
  autocast = "keep", help = "Computes the cross entropy between logits and targets, classes or probabilities.",
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
  "x", "target", "weight?", options = {"reduction: reduction = mean"},
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
  "x", "target", "weight?", options = {"pos_weight?", "reduction: reduction = mean"},
  needs = {same_size},
  formula = {
    "loss = bce_of_logits(x, target, given(pos_weight) ? pos_weight : 1)",
    "reduced(given(weight) ? loss * weight : loss, reduction)",
  },
  autocast = "keep", help = "binary cross-entropy of sigmoid(x)",
}

-- Differences of integers wrap around, as PyTorch's.
local absolute = "reduced(is_float(x) || is_float(target) ? absolute_difference(x, target) : abs(x - target), "
  .. "reduction)"
op "l1_loss" {
  "x", "target", options = {"reduction: reduction = mean"}, needs = {same_or_warned},
  formula = absolute,
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
  formula = ("beta == 0 ? %s : reduced(huber(x, target, beta), reduction) / beta"):format(absolute),
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
  "x", "target", "log_input = true", "full = false", options = {"eps: number = 1e-8", "reduction: reduction = mean"},
  formula = {
    "loss = log_input ? poisson_nll(x, target) : x - target * log(x + eps)",
    "stirling = full ? target * log(target) - target + log(target * 6.283185307179586) * 0.5 : nil",
    "reduced(full ? loss + masked_fill(stirling, target <= 1, 0) : loss, reduction)",
  },
  autocast = "keep",
  help = "of counts target whose mean is x, or e^x with log_input; full adds Stirling's log(target!) from 2 on",
}
op "gaussian_nll_loss" {
  "x", "target", "var: scalar", "full = false", "eps: number = 1e-6", "reduction: reduction = mean",
  needs = {
    {"eps > 0", "eps is {eps}; it has to be positive"},
    {"ndim_of(var) <= ndim_of(x)", "var is {var}, x {x}; var has x's size, or one for each row of it"},
    {"!(least_of(var) < 0)", "var has {least_of(var)}, and variances are not negative"},
  },
  formula = { -- the gradient does not see that small variances become eps
    "shaped = ndim_of(var) > 0 && ndim_of(var) == ndim_of(x) - 1 ? unsqueeze(var, -1) : var",
    "loss = gaussian_nll(x, target, shaped, eps)",
    "reduced(full ? loss + 0.9189385332046727 : loss, reduction)",
  },
  autocast = "keep",
  help = "of a normal distribution with mean x and variance var, at least eps, at target; full adds log(2 pi) / 2",
}
op "soft_margin_loss" {
  "x", "target", options = {"reduction: reduction = mean"},
  formula = "-reduced(log_sigmoid(target * x), reduction)",
  autocast = "keep", help = "log(1 + e^(-target x)) for targets -1 and 1",
}
op "hinge_embedding_loss" {
  "x", "target", "margin: number = 1", "reduction: reduction = mean",
  formula = {
    "lacking = margin - x",
    "apart = lacking <= 0 ? 0 : lacking",
    "reduced((target == 1 ? 0 : apart) + (target == -1 ? 0 : x), reduction)",
  },
  autocast = "keep", help = "of distances x: x where target is 1, what it lacks to margin where it is -1",
}
op "margin_ranking_loss" {
  "x1", "x2", "target", "margin: number = 0", "reduction: reduction = mean",
  needs = {
    {"ndim_of(x1) == ndim_of(x2) && ndim_of(x2) == ndim_of(target)",
      "x1 is {x1}, x2 {x2}, target {target}; they have to have as many dims each"},
  },
  formula = {
    "floats = is_float(x1) || is_float(x2)",
    "lacking = floats ? nil : neg(target * (x1 - x2)) / 1 + margin", -- floating, as PyTorch's
    "reduced(floats ? ranking_margin(x1, x2, target, margin) : lacking <= 0 ? 0 : lacking, reduction)",
  },
  autocast = "keep", help = "what x1 lacks to be margin above x2 where target is 1, below where it is -1",
}
op "cosine_similarity" {
  "x1", "x2", "dim: dim? = 1", "eps: number = 1e-8",
  needs = {{"is_float(x1) || is_float(x2)", "x1 is {dtype_of(x1)}; floating tensors wanted"}},
  formula = { -- the gradient does not see that small lengths become eps
    "first = same_size(x1, x2) ? x1 : x1 + zeros_like(x2)",
    "second = same_size(x1, x2) ? x2 : x2 + zeros_like(x1)",
    "norm1 = norm(first, 2, [dim], true)",
    "norm2 = norm(second, 2, [dim], true)",
    "length1 = norm1 < eps ? norm1 - detach(norm1) + eps : norm1",
    "length2 = norm2 < eps ? norm2 - detach(norm2) + eps : norm2",
    "squeeze(sum(first * (second / length2), [dim], true) / length1, [dim])",
  },
  autocast = "keep",
  help = "Returns the cosine similarity of x1 and x2 along a dim.",
}
op "cosine_embedding_loss" {
  "x1", "x2", "target", "margin: number = 0", "reduction: reduction = mean",
  needs = {
    {"ndim_of(target) <= 1", "target is {target}; it has to be [N], or 0-d for vectors"},
    {"ndim_of(x1) == ndim_of(target) + 1 && ndim_of(x2) == ndim_of(target) + 1",
      "x1 is {x1}, x2 {x2}, target {target}; [N, D] with targets [N] or [D] with one target wanted"},
  },
  formula = {
    "square1 = is_float(x1) ? square(norm(x1, 2, [-1])) : sum(square(x1), [-1])",
    "square2 = is_float(x2) ? square(norm(x2, 2, [-1])) : sum(square(x2), [-1])",
    "lengths = (square1 + 1e-12) * (square2 + 1e-12)",
    "cosine = sum(x1 * x2, [-1]) / sqrt(lengths)",
    "over = cosine - margin",
    "reduced((target == 1 ? 1 - cosine : 0) + (target == -1 ? (over <= 0 ? 0 : over) : 0), reduction)",
  },
  autocast = "keep", help = "1 - cosine_similarity where target is 1, what it is above margin where it is -1",
}
op "pairwise_distance" {
  "x1", "x2", "p: number = 2", "eps: number = 1e-6", "keepdim = false",
  formula = {
    "apart = is_float(x1) || is_float(x2) ? shifted_difference(x1, x2, eps) : (x1 - x2) / 1 + eps",
    "norm(apart, p, [-1], keepdim)",
  },
  help = "Computes the pairwise distance of vectors: the p-norm of x1 - x2 + eps.",
}
op "triplet_margin_loss" {
  "anchor", "positive", "negative",
  "margin: number = 1", "p: number = 2", "eps: number = 1e-6", "swap = false", "reduction: reduction = mean",
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
    "reduced(lacking <= 0 ? 0 : lacking, reduction)",
  },
  autocast = "keep",
  help = "what negatives lack to be margin farther from anchor than positives; swap: or from positive, where that "
    .. "is nearer",
}
op "multi_margin_loss" {
  "x", "target", "p: int = 1", "margin: number = 1", "weight?", options = {"reduction: reduction = mean"},
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
    "summed = sum(scatter(powered, 1, labels, 0), [1]) / classes",
    "loss = given(weight) ? summed * index_select(weight, 0, squeeze(labels, [1])) : summed",
    "reduced(ndim_of(x) < 2 ? squeeze(loss, [0]) : loss, reduction)",
  },
  autocast = "keep",
  help = "what x at its class target lacks to be margin above each other class, to the power p, over C; "
    .. "weight multiplies by the target's class",
}
op "multilabel_soft_margin_loss" {
  "x", "target", "weight?", options = {"reduction: reduction = mean"},
  needs = {{"ndim_of(x) > 0", "x is 0-d; [N, C] or [C] wanted"}},
  formula = {
    "each = -(target * log_sigmoid(x) + (1 - target) * log_sigmoid(-x))",
    "loss = sum(given(weight) ? each * weight : each, [-1]) / size_of(x)[-1]",
    "reduced(loss, reduction)",
  },
  autocast = "keep", help = "bce_with_logits, its mean over the last dim, the classes",
}
-- y1 holds the logarithms of alpha, [N, T, 2 * longest + 1].
op "ctc_nll" {
  "x", "target", "starts", "input_lengths", "target_lengths", "longest: int", "blank: int = 1", hidden = 1,
  grad = {
    x = "ctc_nll_backward(g, x, target, starts, input_lengths, target_lengths, y, y1, blank)",
  },
  autocast = "keep", inner = true,
  help = "minus the logarithm of the probability of each target over all its alignments (Graves et al. 2006), [N]; x "
    .. "log-probabilities [T, N, C], target the classes, from 1, one after the other, of which sample n has "
    .. "target_lengths[n], at most `longest`, from place starts[n] on, counted from 0; inf where there is no alignment",
}
op "ctc_nll_backward" {
  "grad", "x", "target", "starts", "input_lengths", "target_lengths", "loss", "log_alpha", "blank: int = 1",
  grad = "none",
  inner = true, help = "gradient of ctc_nll, as PyTorch has it: right after a log_softmax",
}

--- Sorting, scans along a dim, order statistics, counting. Places count from 1.
local op = ...

-- ---- sorting
op "sort" {
  "x", "dim: dim?", "descending = false", options = {"stable = false"}, results = 2,
  grad = {x = "position_grad(g, y1, dim, true, size_of(x))"},
  help = "x in order along dim (the last by default), and where each came from: values, indices; NaN counts as the "
    .. "largest, and equal ones keep their order, stable or not",
}
op "argsort" {
  "x", "dim: dim?", "descending = false", options = {"stable = false"},
  formula = "second_result(sort(x, dim, descending, stable))", grad = "none",
  help = "where the elements of x in order along dim (the last by default) are",
}
op "msort" {"x", formula = "sort(x, 0, false, false)", help = "x in order along its first dim"}
op "searchsorted" {
  "sorted_sequence", "x: scalar", options = {"right = false", "out_int32 = false", "side: side = none", "sorter?"},
  grad = "none",
  help = "for each of x the first place of a sorted sequence (of its row, where that has several) whose element is not "
    .. "less, or with right (side = 'right') is larger; n + 1 where none is",
}
op "bucketize" {
  "x: scalar", "boundaries", options = {"right = false", "out_int32 = false"},
  needs = {{"ndim_of(boundaries) == 1", "boundaries must be 1-d, got shape {boundaries}"}},
  formula = "searchsorted(boundaries, x, right, out_int32)", grad = "none",
  help = "the number from 1 of the bucket between sorted boundaries that each of x falls in; right: a boundary belongs "
    .. "to the bucket after it",
}

-- ---- scans
op "cumsum" {
  "x", "dim: dim", options = {"reverse = false", "dtype: dtype?"},
  grad = {x = "cumsum(g, dim, !reverse)"},
  autocast = "keep_gpu", help = "sums of the elements up to each along dim; reverse: of those from each on",
}
op "cumprod" {
  "x", "dim: dim", options = {"reverse = false", "dtype: dtype?"},
  -- dy_j / dx_i is the product of those before i, times that of those between i and j
  grad = {
    x = "shifted(y, dim, reverse, 1) * linear_recurrence(g, shifted(x, dim, !reverse, 0), dim, !reverse)",
  },
  autocast = "keep_gpu", help = "products of the elements up to each along dim; reverse: of those from each on",
}
op "linear_recurrence" {
  "x", "decay", "dim: dim", options = {"reverse = false"},
  grad = {
    x = "linear_recurrence(g, shifted(decay, dim, !reverse, 0), dim, !reverse)",
    decay = "linear_recurrence(g, shifted(decay, dim, !reverse, 0), dim, !reverse) * shifted(y, dim, reverse, 0)",
  },
  internal = true, help = "y[i] = x[i] + decay[i] y[i - 1] along dim; reverse: from the end, with y[i + 1]",
}
op "logcumsumexp" {
  "x", "dim: dim", options = {"reverse = false"},
  -- the sum over j >= i of g_j e^(x_i - y_j), with powers of nothing above 0
  grad = {
    x = "exp(x - y) * linear_recurrence(g, exp(y - shifted(y, dim, !reverse, inf)), dim, !reverse)",
  },
  help = "log of the sum of e^x up to each element along dim; reverse: from each on",
}
op "cummax" {
  "x", "dim: dim", results = 2,
  grad = {x = "position_grad(g, y1, dim, true, size_of(x))"},
  help = "the largest up to each element along dim, and where: values, indices; the last of equals, NaN before all",
}
op "cummin" {
  "x", "dim: dim", results = 2,
  grad = {x = "position_grad(g, y1, dim, true, size_of(x))"},
  help = "the smallest up to each element along dim, and where: values, indices; the last of equals, NaN before all",
}

-- ---- reductions
op "prod" {
  "x", "dim: dims?", "keepdim = false", options = {"dtype: dtype?"},
  grad = {x = "product_grad(g, x, y, dim, keepdim)"},
  autocast = "keep_gpu", help = "product over dim, or all; integers give int64",
}
op "nansum" {
  "x", "dim: dims?", "keepdim = false", options = {"dtype: dtype?"},
  grad = {x = "expand_to(g, dim, keepdim, size_of(x)) * (x == x)"},
  help = "sum over dim, or all, of what is not NaN; integers give int64",
}
op "nanmean" {
  "x", "dim: dims?", "keepdim = false", options = {"dtype: dtype?"},
  needs = {{"is_float(x)", "x must be floating point, got {dtype_of(x)}; convert it with :float()"}},
  formula = "nansum(x, dim, keepdim, dtype) / sum(x == x, dim, keepdim)",
  help = "mean over dim, or all, of what is not NaN",
}
op "count_nonzero" {
  "x", "dim: dims?", grad = "none",
  help = "how many elements are not zero, over dim, or all",
}
op "aminmax" {
  "x", options = {"dim: dims?", "keepdim = false"}, results = 2,
  formula = {"amin(x, dim, keepdim)", "amax(x, dim, keepdim)"},
  help = "smallest and largest over dim, or all; ties share the gradient",
}

-- ---- order statistics
op "kthvalue" {
  "x", "k: int", "dim: dim?", "keepdim = false", results = 2,
  grad = {x = "position_grad(g, y1, dim, keepdim, size_of(x))"},
  help = "the k-th smallest along dim (the last by default), and where: values, indices; NaN counts as the largest",
}
local function median(name, what)
  op(name .. "_dim") {
    "x", "dim: dim", "keepdim = false", results = 2,
    grad = {x = "position_grad(g, y1, dim, keepdim, size_of(x))"},
    internal = true, help = ("the middle%s along dim, the lower of two, and where: values, indices"):format(what),
  }
  op(name .. "_all") {
    "x",
    grad = {x = {"hit = x == y || x != x && y != y", "hit ? g / sum(hit) : 0"}},
    internal = true, help = ("the middle%s of all elements, the lower of two; ties share the gradient"):format(what),
  }
end
median("median", "")
median("nanmedian", " of what is not NaN")

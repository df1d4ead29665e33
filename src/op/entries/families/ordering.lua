--- Defines sorting, scans along a dim, order statistics and counting. Indices count from 1.
local op, family = ...

family "scan(x, decay?, dim: dim, reverse = false, kind: scan_kind = sum, dtype: dtype?)" {
  results = 2,
  help = "each result is made of the elements up to its own along dim; the second, of max and min, says where they are",
}
family "kth_along(x, k: int, dim: dim?, keepdim = false)" {
  results = 2,
  help = "one element of each line, and where: the k-th smallest, its median (k 0) or that of what is not NaN (k -1)",
}

-- ---- sorting
op "sort(x, dim: dim?, descending = false, {stable = false})" {
  results = 2,
  grad = {x = "position_grad(g, y1, dim, true, size_of(x))"},
  help = "Sorts the elements along dim, the last by default, and returns them and their indices in x.",
}
op "argsort(x, dim: dim?, descending = false, {stable = false})" {
  formula = "result(sort(x, dim, descending, stable), 2)", grad = "none",
  help = "Returns the indices that sort x along dim, the last by default.",
}
op "msort(x)" {formula = "sort(x, 0, false, false)", help = "Sorts the elements along the first dim."}
op "searchsorted(sorted_sequence, x: scalar, {right = false, out_int32 = false, side: side = none, sorter?})" {
  grad = "none",
  help = "Returns the indices at which inserting the elements of x keeps a sorted sequence sorted.",
}
op "bucketize(x: scalar, boundaries, {right = false, out_int32 = false})" {
  needs = {{"ndim_of(boundaries) == 1", "boundaries must be 1-d, got shape {boundaries}"}},
  formula = "searchsorted(boundaries, x, right, out_int32)", grad = "none",
  help = "Returns the indices of the buckets between sorted boundaries in which the elements of x are.",
}

-- ---- scans
op "cumsum(x, dim: dim, {reverse = false, dtype: dtype?})" {
  kernel = "scan(x, nil, dim, reverse, 'sum', dtype)",
  grad = {x = "cumsum(g, dim, !reverse)"},
  autocast = "keep_gpu", help = "Computes the cumulative sum along dim.",
}
op "cumprod(x, dim: dim, {reverse = false, dtype: dtype?})" {
  kernel = "scan(x, nil, dim, reverse, 'product', dtype)",
  -- dy_j / dx_i is the product of the elements before i, times that of those between i and j; their sum may leave
  -- float16's range where the whole product is 0
  grad = {
    x = "in_dtype_of(shifted(widened(y), dim, reverse, 1) "
      .. "* linear_recurrence(widened(g), shifted(widened(x), dim, !reverse, 0), dim, !reverse), x)",
  },
  autocast = "keep_gpu", help = "Computes the cumulative product along dim.",
}
op "linear_recurrence(x, decay, dim: dim, {reverse = false})" {
  kernel = "scan(x, decay, dim, reverse, 'recurrence')",
  grad = {
    x = "linear_recurrence(g, shifted(decay, dim, !reverse, 0), dim, !reverse)",
    decay = "linear_recurrence(g, shifted(decay, dim, !reverse, 0), dim, !reverse) * shifted(y, dim, reverse, 0)",
  },
  internal = true, help = "y[i] = x[i] + decay[i] y[i - 1] along dim; reverse: from the end, with y[i + 1]",
}
op "logcumsumexp(x, dim: dim, {reverse = false})" {
  kernel = "scan(x, nil, dim, reverse, 'logsumexp')",
  -- the sum over j >= i of g_j e^(x_i - y_j), whose exponents are at most 0; 0 where y is -inf
  grad = {
    x = {
      "finite = masked_fill(y, y == -inf, 0)",
      "exp(x - finite) * linear_recurrence(g, exp(y - shifted(finite, dim, !reverse, inf)), dim, !reverse)",
    },
  },
  widens = true, help = "Computes the logarithm of the cumulative sum of e^x along dim.",
}
op "cummax(x, dim: dim)" {
  results = 2,
  kernel = "scan(x, nil, dim, false, 'max')",
  grad = {x = "position_grad(g, y1, dim, true, size_of(x))"},
  help = "Returns the cumulative maximum along dim and its indices.",
}
op "cummin(x, dim: dim)" {
  results = 2,
  kernel = "scan(x, nil, dim, false, 'min')",
  grad = {x = "position_grad(g, y1, dim, true, size_of(x))"},
  help = "Returns the cumulative minimum along dim and its indices.",
}

-- ---- reductions
op "prod(x, dim: dims?, keepdim = false, {dtype: dtype?})" {
  kernel = "reduce(x, dim, keepdim, 'prod', 0, dtype)",
  grad = {x = "product_grad(g, x, y, dim, keepdim)"},
  autocast = "keep_gpu", help = "Computes the product of the elements over dim, or of all.",
}
op "nansum(x, dim: dims?, keepdim = false, {dtype: dtype?})" {
  kernel = "reduce(x, dim, keepdim, 'nansum', 0, dtype)",
  grad = {x = "expand_to(g, dim, keepdim, size_of(x)) * (x == x)"},
  help = "Computes the sum of the elements that are not NaN, over dim or of all.",
}
op "nanmean(x, dim: dims?, keepdim = false, {dtype: dtype?})" {
  needs = {{"is_float(x)", "x must be floating point, got {dtype_of(x)}; convert it with :float()"}},
  forms = { -- a half-precision sum may overflow where the mean does not
    {when = "is_half(x) && dtype < 0", "in_dtype_of(nanmean(widened(x), dim, keepdim), x)"},
  },
  formula = "nansum(x, dim, keepdim, dtype) / sum(x == x, dim, keepdim)",
  help = "Computes the mean of the elements that are not NaN, over dim or of all.",
}
op "count_nonzero(x, dim: dims?)" {
  kernel = "reduce(x, dim, false, 'count_nonzero')", grad = "none",
  help = "Counts the elements that are not 0, over dim or in all.",
}
op "aminmax(x, {dim: dims?, keepdim = false})" {
  results = 2,
  formula = {"amin(x, dim, keepdim)", "amax(x, dim, keepdim)"},
  help = "Returns the smallest and the largest elements over dim, or of all.",
}

-- ---- order statistics
op "kthvalue(x, k: int, dim: dim?, keepdim = false)" {
  results = 2,
  kernel = "kth_along(x, k, dim, keepdim)",
  grad = {x = "position_grad(g, y1, dim, keepdim, size_of(x))"},
  help = "Returns the k-th smallest elements along dim, the last by default, and their indices.",
}
family "median_of(x, k: int)" {help = "kth_along of all elements, as one line"}
local function median(name, what, k)
  op(name .. "_dim(x, dim: dim, keepdim = false)") {
    results = 2, kernel = ("kth_along(x, %d, dim, keepdim)"):format(k),
    grad = {x = "position_grad(g, y1, dim, keepdim, size_of(x))"},
    internal = true, help = ("the middle%s along dim, the lower of two, and where: values, indices"):format(what),
  }
  op(name .. "_all(x)") {
    kernel = ("median_of(x, %d)"):format(k),
    grad = {x = {"hit = x == y || x != x && y != y", "hit ? g / sum(hit) : 0"}},
    internal = true, help = ("the middle%s of all elements, the lower of two; ties share the gradient"):format(what),
  }
end
median("median", "", 0)
median("nanmedian", " of what is not NaN", -1)

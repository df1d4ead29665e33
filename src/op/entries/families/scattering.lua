--- Defines ops that write and add at indices along a dim; indices count from 1.
local op, family = ...

family "scatter_along(x, dim: dim, index, src, how: fold = sum, include_self = true, here = false)" {
  help = "src, or a number, folded at indices along dim: here, into x's memory, or into a copy's",
}

local src_grad = "scattered_grad(g, dim, index, size_of(src))"

op "scatter_add(x, dim: dim, index, src)" {
  kernel = "scatter_along(x, dim, index, src)",
  grad = {x = "g", src = src_grad},
  autocast = "widest", help = "Returns a copy of x with src added at indices along dim.",
}
op "scatter_add_(x, dim: dim, index, src)" {
  kind = "write", kernel = "scatter_along(x, dim, index, src, 'sum', true, true)",
  grad = {x = "g", src = src_grad},
  help = "Adds src at indices along dim, in place.",
}
op "scatter(x, dim: dim, index, src: scalar, {reduce: scatter_writing = replace})" {
  kernel = "scatter_along(x, dim, index, src, 'replace')",
  grad = {x = "scatter(g, dim, index, 0)", src = src_grad},
  forms = {
    {when = "reduce == 'add'", "scatter_add(x, dim, index, src)"},
    {when = "reduce == 'multiply'", "scatter_fold(x, dim, index, cut_to(src, size_of(index)), 'prod')"},
  },
  help = "Returns a copy of x with src, a tensor or a number, at indices along dim.",
}
op "scatter_(x, dim: dim, index, src: scalar, {reduce: scatter_writing = replace})" {
  kind = "write",
  kernel = "scatter_along(x, dim, index, src, 'replace', true, true)",
  grad = {x = "scatter(g, dim, index, 0)", src = src_grad},
  forms = {
    {when = "reduce == 'add'", "scatter_add_(x, dim, index, src)"},
    {when = "reduce == 'multiply'", "copy_(x, scatter_fold(x, dim, index, cut_to(src, size_of(index)), 'prod'))"},
  },
  help = "Writes src, a tensor or a number, at indices along dim, in place.",
}
op "scatter_reduce(x, dim: dim, index, src, reduce: scatter_reduction = sum, {include_self = true})" {
  forms = {
    {when = "reduce == 'sum'", "scatter_add(include_self ? x : scatter(x, dim, index, 0), dim, index, src)"},
    {when = "reduce == 'mean' && is_half(x) && same_dtype(x, src)",
      "in_dtype_of(scatter_reduce(widened(x), dim, index, widened(src), reduce, include_self), x)"},
    {
      when = "reduce == 'mean'",
      "part = cut_to(src, size_of(index))",
      "total = scatter_add(include_self ? x : scatter(x, dim, index, 0), dim, index, part)",
      "n = scatter_counts(x, dim, index, include_self)",
      "is_float(x) ? total / n : floor_divide(total, n)",
    },
  },
  formula = "scatter_fold(x, dim, index, cut_to(src, size_of(index)), reduce, include_self)",
  autocast = "widest",
  help = "Returns a copy of x whose elements at indices along dim are reduced with src.",
}
-- The gradient is PyTorch's scatter_reduce_backward. src has index's sizes. Zeros get the product of the others.
op "scatter_fold(x, dim: dim, index, src: scalar, how: fold = sum, include_self = true)" {
  kernel = "scatter_along(x, dim, index, src, how, include_self)",
  grad = {
    x = {
      "extreme = how == 'amax' || how == 'amin'",
      "was = how == 'amax' || how == 'amin' ? x == y : nil",
      "hit = extreme ? (include_self ? was : scatter(was, dim, index, 0)) : nil",
      "n = extreme ? scatter_add(masked_fill(zeros_like(g), hit, 1), dim, index, "
        .. "masked_fill(zeros_like(src), src == gather(y, dim, index), 1)) : nil",
      "filled = how == 'prod' ? masked_fill(x, x == 0, 1) : nil",
      "part = how == 'prod' ? g * scatter_fold(filled, dim, index, src, 'prod', include_self) / filled : nil",
      "how == 'sum' ? g : how == 'replace' ? scatter(g, dim, index, 0) : extreme ? (hit ? g / n : 0) "
        .. ": include_self ? part : scatter(part, dim, index, 0)",
    },
    src = {
      "extreme = how == 'amax' || how == 'amin'",
      "was = extreme ? x == y : nil",
      "own = extreme ? (include_self ? was : scatter(was, dim, index, 0)) : nil",
      "hit = extreme ? src == gather(y, dim, index) : nil",
      "n = extreme ? scatter_add(masked_fill(zeros_like(g), own, 1), dim, index, "
        .. "masked_fill(zeros_like(src), hit, 1)) : nil",
      "zero = how == 'prod' ? src == 0 : nil",
      "zeros = how == 'prod' ? gather(scatter_add(zeros_like(x), dim, index, "
        .. "masked_fill(zeros_like(src), zero, 1)), dim, index) : nil",
      "alone = how == 'prod' ? zero && zeros == 1 : nil",
      "others = how == 'prod' ? scatter_fold(x, dim, index, masked_fill(src, alone, 1), 'prod', include_self) : nil",
      "how == 'sum' || how == 'replace' ? gather(g, dim, index) : extreme ? (hit ? gather(g / n, dim, index) : 0) "
        .. ": where(alone, gather(g * others, dim, index), gather(g * y, dim, index) / masked_fill(src, zero, 1))",
    },
  },
  internal = true, help = "scatter_reduce for src of index's sizes; how may be 'replace' too, and not 'mean'",
}

-- ---- entries of a dim
op "index_add(x, dim: dim, index, src, {alpha: number = 1})" {
  grad = {x = "g", src = "index_select(g, dim, index)"},
  forms = {
    {when = "alpha != 1 && is_half(x)",
      "in_dtype_of(index_add(widened(x), dim, index, widened(src) * alpha), x)"},
    {when = "alpha != 1", "index_add(x, dim, index, src * alpha)"},
  },
  help = "Returns a copy of x with alpha times the slices of src added at the indices of dim.",
}
op "index_add_(x, dim: dim, index, src, {alpha: number = 1})" {
  kind = "write",
  grad = {x = "g", src = "index_select(g, dim, index)"},
  forms = {
    {when = "alpha != 1 && is_half(x)", "copy_(x, index_add(x, dim, index, src, alpha))"},
    {when = "alpha != 1", "index_add_(x, dim, index, src * alpha)"},
  },
  help = "Adds alpha times the slices of src at the indices of dim, in place.",
}

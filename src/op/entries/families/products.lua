--- Defines matrix products and distances.
local op, family = ...

family "product(x, other, input?, transposed = false, beta: number = 0, alpha: number = 1)" {
  help = "y [(batch), n, m] = alpha x other + beta input; other is [m, k] with transposed, as is linear's weight; "
    .. "input broadcasts to y and is not read if beta is 0",
}
op "mm(x, other)" {
  kernel = "product(x, other)",
  grad = {x = "mm_in_layout(is_transposed(x), g, t(other))", other = "mm_in_layout(is_transposed(other), t(x), g)"},
  flops = "2 * numel_of(y) * size_of(x)[-1]",
  autocast = "lower", help = "Computes the product of two matrices.",
}
op "mm_with_sums(x, other, {of_other = false})" {
  operands = {"x: [N, K] float strided", "other: [K, M] of x strided", "chosen(of_other, N, M, S)"},
  results = {"y: [N, M] stat of x", "sums: [S] stat of x"}, flops = "2 * numel_of(y) * size_of(x)[-1]",
  internal = true,
  help = "the product of two matrices, and the sums of x's rows or other's columns: gradients of weight and bias",
}
op "addmm_gelu(x, other, input?)" {
  operands = {"x: [N, K] float strided", "other: [K, M] of x strided", "input: [M] of x"},
  results = {"y: [N, M] of x", "before: [N, M] of x"}, flops = "2 * numel_of(y) * size_of(x)[-1]",
  internal = true,
  help = "gelu_tanh of the product of two matrices plus input, and that sum",
}
op "mm_gelu_backward(x, other, before)" {
  operands = {"x: [N, K] float strided", "other: [K, M] of x strided", "before: [N, M] of x"},
  results = {"y: [N, M] of x"}, flops = "2 * numel_of(y) * size_of(x)[-1]",
  internal = true,
  help = "the gradient of gelu_tanh at `before`, by a gradient that is the product of two matrices",
}
op "bmm(x, other)" {
  kernel = "product(x, other)",
  grad = {x = "bmm(g, transpose(other, 1, 2))", other = "bmm(transpose(x, 1, 2), g)"},
  flops = "2 * numel_of(y) * size_of(x)[-1]",
  autocast = "lower", help = "Computes the products of two batches of matrices.",
}
op "addmm(input, x, other, {beta: number = 1, alpha: number = 1})" {
  kernel = "product(x, other, input, false, beta, alpha)",
  grad = {
    input = "scaled(g, beta)", x = "scaled(mm_in_layout(is_transposed(x), g, t(other)), alpha)",
    other = "scaled(mm_in_layout(is_transposed(other), t(x), g), alpha)",
  },
  autocast = "lower",
  flops = "2 * numel_of(y) * size_of(x)[-1]",
  help = "Computes beta * input + alpha * x times other, for matrices.",
}
op "linear(x, weight, bias: scalar?)" {
  kernel = "product(x, weight, bias, true)",
  grad = {x = "linear(g, t(weight))", weight = "mm_in_layout(is_transposed(weight), t(rows(g)), rows(x))", bias = "g"},
  autocast = "lower",
  -- A weight vector is a matrix of one row, whose dim is removed from the result; a bias of one number is added last.
  forms = {
    {
      when = "ndim_of(weight) == 1",
      needs = {
        {"ndim_of(x) > 0 && size_of(x)[-1] == size_of(weight)[1]",
          "expected x to have shape [*, {size_of(weight)[1]}] for weight of {weight}, got {x}"},
        {"ndim_of(bias) == 0", "bias must be a number or a 0-d tensor for 1-d weight, got shape {bias}"},
      },
      "joins = given(bias) && on_cpu(x)", -- elsewhere the number may be on the CPU
      "y = squeeze(linear(x, unsqueeze(weight, 0), joins ? reshape(in_dtype_of(bias, x), [1]) : nil), -1)",
      "given(bias) && !joins ? y + bias : y",
    },
    {when = "given(bias) && ndim_of(bias) == 0 && on_cpu(x)",
      "linear(x, weight, expand(in_dtype_of(bias, x), [size_of(weight)[1]]))"},
    {when = "given(bias) && ndim_of(bias) == 0", "linear(x, weight) + bias"},
  },
  flops = "2 * numel_of(y) * size_of(x)[-1]",
  help = "Applies a linear transformation: x times weight transposed, plus bias.",
}
op("linear_with_epilogue(x, weight, bias?, other?, activation: activation = none, min: number = -inf, "
  .. "max: number = inf)") {
  operands = {
    "weight: [K, D] float strided", "x: [at..., D] of weight rows", "bias: [K] of x", "other: [at..., K] of x",
  },
  results = {"y: [at..., K] of x rows"}, flops = "2 * numel_of(y) * size_of(x)[-1]",
  internal = true,
  help = "linear of float32, plus other, then the activation, limited to [min, max]: plans join layers to it",
}
op "int8_linear(x, weight, scale, bias?)" {
  operands = {
    "weight: [K, D] int8", "x: [at..., D] float in float32 rows", "scale: [K] float in float32",
    "bias: [K] float in float32",
  },
  results = {"y: [at..., K] of x in float32 rows"}, host = true,
  forms = { -- float64 has no kernel of its own
    {when = "is_float(x) && epsilon_of(x) < 1e-10", "linear(x, in_dtype_of(weight * unsqueeze(scale, -1), x), bias)"},
  },
  grad = {x = "linear(g, in_dtype_of(t(weight * unsqueeze(scale, -1)), g))", bias = "g"},
  autocast = "lower",
  flops = "2 * numel_of(y) * size_of(x)[-1]",
  help = "Applies a linear layer with an int8 weight, whose rows have a scale each.",
}
op "matmul(x, other)" {
  kind = "composite",
  autocast = "lower", help = "Computes the matrix product of two tensors.",
}

-- ---- products and distances
local is_matrix = {"ndim_of(x) == 2", "expected x to have shape [m, n], got {x}"}
op "mv(x, vec)" {
  needs = {
    {"ndim_of(x) == 2 && ndim_of(vec) == 1 && size_of(x)[2] == size_of(vec)[1]",
      "expected x and vec to have shapes [n, m] and [m], got {x} and {vec}"},
  },
  formula = "squeeze(mm(x, unsqueeze(vec, 1)), [1])",
  autocast = "lower", help = "Computes the product of a matrix and a vector.",
}
local two_vectors = {
  "ndim_of(x) == 1 && ndim_of(other) == 1 && size_of(x)[1] == size_of(other)[1]",
  "x and other must be 1-d of equal size, got {x} and {other}",
}
op "dot(x, other)" {
  needs = {two_vectors},
  formula = "reshape(mm(unsqueeze(x, 0), unsqueeze(other, 1)), [])", grad = {x = "g * other", other = "g * x"},
  help = "Computes the dot product of two vectors.",
}
op "vdot(x, other)" {
  needs = {two_vectors}, formula = "dot(x, other)",
  help = "Computes the dot product of two vectors, as dot.",
}
local two_vectors_of_any_length = {
  "ndim_of(x) == 1 && ndim_of(other) == 1", "x and other must be 1-d, got {x} and {other}",
}
op "outer(x, other)" {
  needs = {two_vectors_of_any_length},
  formula = "unsqueeze(x, 1) * unsqueeze(other, 0)",
  help = "Computes the outer product of two vectors.",
}
op "addmv(input, x, vec, {beta: number = 1, alpha: number = 1})" {
  formula = "squeeze(addmm(ndim_of(input) > 0 ? unsqueeze(input, -1) : input, x, unsqueeze(vec, 1), beta, alpha), -1)",
  autocast = "lower",
  help = "Computes beta * input + alpha * x times vec, for a matrix and a vector.",
}
op "addr(input, x, other, {beta: number = 1, alpha: number = 1})" {
  needs = {
    two_vectors_of_any_length,
    {"is_float(input) || cut_for(input, beta) == beta", "beta must be an integer for integer tensors, got {beta}"},
    {"is_float(input) || cut_for(input, alpha) == alpha", "alpha must be an integer for integer tensors, got {alpha}"},
  },
  formula = "beta == 0 ? outer(scaled(x, alpha), other) : "
    .. "addcmul(scaled(input, beta), unsqueeze(x, 1), unsqueeze(other, 0), alpha)",
  autocast = "lower", help = "Computes beta * input + alpha * the outer product of two vectors.",
}
local batches = {
  "ndim_of(x) == 3 && ndim_of(other) == 3",
    "expected x and other to have shapes [b, n, k] and [b, k, m], got {x} and {other}",
}
op "baddbmm(input, x, other, {beta: number = 1, alpha: number = 1})" {
  needs = {batches},
  kernel = "product(x, other, input, false, beta, alpha)",
  grad = {
    input = "scaled(g, beta)", x = "scaled(bmm(g, transpose(other, 1, 2)), alpha)",
    other = "scaled(bmm(transpose(x, 1, 2), g), alpha)",
  },
  autocast = "lower",
  flops = "2 * numel_of(y) * size_of(x)[-1]",
  help = "Computes beta * input + alpha * bmm(x, other), for batches of matrices.",
}
op "addbmm(input, x, other, {beta: number = 1, alpha: number = 1})" {
  needs = {
    batches,
    {"size_of(x)[1] == size_of(other)[1] && size_of(x)[3] == size_of(other)[2]",
      "expected x and other to have shapes [b, n, k] and [b, k, m], got {x} and {other}"},
  },
  formula = { -- the batch is another dim to sum over
    "wide = reshape(transpose(x, 0, 1), [size_of(x)[2], size_of(x)[1] * size_of(x)[3]])",
    "tall = reshape(other, [size_of(x)[1] * size_of(x)[3], size_of(other)[3]])",
    "addmm(input, wide, tall, beta, alpha)",
  },
  autocast = "lower",
  help = "Computes beta * input + alpha * the sum of the products of a batch of matrices.",
}
op "trace(x)" {
  needs = {is_matrix},
  -- every (m + 1)-th element, m the width, of the rows with a diagonal entry
  formula = {
    "n = size_of(x)[1] < size_of(x)[2] ? size_of(x)[1] : size_of(x)[2]",
    "rows = n == size_of(x)[1] ? x : slice(x, 0, 1, n)",
    "n == 0 ? sum(x) : sum(slice(flatten(rows), 0, 1, -1, size_of(x)[2] + 1))",
  },
  help = "Computes the sum of the diagonal of a matrix.",
}
op "cross(x, other, dim: dim? = -1)" {
  needs = {
    {"ndim_of(x) == ndim_of(other) && ndim_of(x) > 0",
      "x and other must have the same number of dims, got {x} and {other}"},
    {"size_along(x, dim) == 3 && size_along(other, dim) == 3",
      "x and other must have size 3 in dim, got {x} and {other}"},
  },
  formula = {
    "x1 = select(x, dim, 1)", "x2 = select(x, dim, 2)", "x3 = select(x, dim, 3)",
    "y1 = select(other, dim, 1)", "y2 = select(other, dim, 2)", "y3 = select(other, dim, 3)",
    "stack([x2 * y3 - x3 * y2, x3 * y1 - x1 * y3, x1 * y2 - x2 * y1], dim)",
  },
  grad = {x = "cross(other, g, dim)", other = "cross(g, x, dim)"},
  widens = true, help = "Computes the cross product of vectors along dim, of size 3.",
}

-- Returns the gradient for x of distances from `other`; g and y are [..., rows of x, rows of other]. As norm's, except
-- that p = 2 uses matrix products for sums of differences, and p = inf does not divide among ties, as in PyTorch.
local function distances_grad(x, other, g, y)
  return {
    ("g1 = %s"):format(g), ("y1 = %s"):format(y),
    "none = y1 == 0",
    "share = masked_fill(g1, none, 0) / masked_fill(y1, none, 1)",
    ("d = p == 1 || p == 2 ? nil : unsqueeze(%s, -2) - unsqueeze(%s, -3)"):format(x, other),
    "hit = p == inf ? abs(d) == unsqueeze(y1, -1) : nil",
    "power = p == 0 || p == 1 || p == 2 || p == inf ? nil "
      .. ": pow(masked_fill(abs(d), unsqueeze(none, -1), 1) / unsqueeze(masked_fill(y1, none, 1), -1), p - 1)",
    ("p == 0 ? zeros_like(%s) : p == 2 ? %s * sum(share, -1, true) - matmul(share, %s) "):format(x, x, other)
      .. (": p == 1 ? row_distances_backward(g1, %s, %s) "):format(x, other)
      .. ": p == inf ? sum(where(hit, sign(d), 0) * unsqueeze(g1, -1), -2) "
      .. ": sum(sign(d) * (p < 1 ? masked_fill(power, d == 0, 0) : power) "
      .. "* unsqueeze(masked_fill(g1, none, 0), -1), -2)",
  }
end
op "row_distances(x1, x2, p: number = 2, {by_products = false})" {
  operands = {"x1: [*, n, m] matrix strided", "x2: [*, r, m] matrix of x1 strided"},
  results = {"y: [*, n, r] of x1"}, host = true,
  grad = {
    x1 = distances_grad("x1", "x2", "g", "y"),
    x2 = distances_grad("x2", "x1", "transpose(g, -2, -1)", "transpose(y, -2, -1)"),
  },
  autocast = "keep", internal = true,
  help = "[..., n, r] of the p-norms of differences of rows of x1 [..., n, m] and x2 [..., r, m]; by_products: for "
    .. "p = 2 by |a|^2 + |b|^2 - 2 a b; lm.cdist has all checks",
}
-- Returns pdist's gradient: that of a full matrix with each pair's gradient at both of its positions.
local function pairs_grad()
  local lines = distances_grad("x", "x", "p == 2 ? nil : pairs_to_matrix(g, n)",
    "p == 2 ? nil : pairs_to_matrix(y, n)")
  table.insert(lines, 1, "n = size_of(x)[1]")
  table.insert(lines, 2,
    "shares = p == 2 ? pairs_to_matrix(masked_fill(g, y == 0, 0) / masked_fill(y, y == 0, 1), n) : nil")
  lines[#lines] = ("p == 2 ? x * sum(shares, -1, true) - matmul(shares, x) : (%s)"):format(lines[#lines])
  return lines
end
op "pair_distances(x, p: number = 2)" {
  operands = {"x: [n, m] matrix strided"}, results = {"y: [pairs(n)] of x"}, host = true,
  grad = {x = pairs_grad()},
  autocast = "keep", internal = true,
  help = "[n (n - 1) / 2] of the p-norms of the differences of all pairs of rows of x [n, m]: 1 and 2, 1 and 3, …, 2 "
    .. "and 3, …; lm.pdist has all checks",
}
op "pairs_to_matrix(x, n: int)" {
  operands = {"n: from 0 to 32768", "x: [pairs(n)] real strided"}, results = {"y: [n, n] of x"}, host = true,
  grad = {x = "matrix_to_pairs(g + transpose(g, 0, 1))"}, internal = true,
  help = "the symmetric matrix [n, n] whose entries above the diagonal are x [n (n - 1) / 2], row by row, and 0 on it",
}
op "matrix_to_pairs(x)" {
  operands = {"x: [n, n] matrix strided"}, results = {"y: [pairs(n)] of x"}, host = true,
  grad = {x = "triu(pairs_to_matrix(g, size_of(x)[1]), 1)"},
  internal = true, help = "the entries above the diagonal of x [n, n], row by row: [n (n - 1) / 2]",
}
op "row_distances_backward(grad, x1, x2)" {
  operands = {
    "grad: [*, n, r] matrix strided", "x1: [*, n, m] matrix of grad strided", "x2: [*, r, m] matrix of grad strided",
  },
  results = {"dx1: [*, n, m] of x1"}, host = true,
  grad = {
    grad = "sum(sign(unsqueeze(x1, -2) - unsqueeze(x2, -3)) * unsqueeze(g, -2), -1)",
    x1 = "zeros_like(x1)", x2 = "zeros_like(x2)",
  },
  autocast = "keep", internal = true,
  help = "gradient for x1 of row_distances with p = 1, from that for its result [..., n, r]",
}

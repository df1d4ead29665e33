--- Defines the ops behind resizing, sampling by a grid, unfolding and folding.
local op = ...

-- Sums weighted elements at indices that lua/luminary/nn/functional/ computes. Its gradients are ops with kernels.
op "gather_weighted(x, indices, weight?)" {
  operands = {
    "x: [n, c, points, i] float", "points(points)", "indices: [1|n, j, p] int64 private",
    "weight: [1|n, j, p] stat of x",
  },
  results = {"y: [n, c, p, i] of x"}, zeros = "numel_of(x) == 0 || numel_of(indices) == 0",
  grad = {
    x = "gather_weighted_input(g, indices, weight, size_of(x))",
    weight = "gather_weighted_weight(g, x, indices)",
  }, internal = true,
  help = "sums of weight[n, j, p] * x[n, c, indices[n, j, p], i] over j, [n, c, p, i]; a place counts from 1, any "
    .. "other is nothing; indices and weight [n or 1, j, p]; weight, of float32 or x's float64, is 1 by default",
}
op "gather_weighted_input(grad, indices, weight?, size: size)" {
  operands = {
    "size: [n, c, points, i]", "points(points)", "indices: [1|n, j, p] int64 private",
    "weight: [1|n, j, p] stat of grad", "grad: [n, c, p, i] float",
  },
  results = {"dx: [n, c, points, i] of grad"}, zeros = "numel_of(grad) == 0 || numel_of(indices) == 0",
  grad = {
    grad = "gather_weighted(g, indices, weight)",
    weight = "gather_weighted_weight(grad, g, indices)",
  },
  internal = true,
  help = "gradient of gather_weighted for an x of that size: grad, weighted, added up where indices says",
}
op "gather_weighted_weight(grad, x, indices)" {
  operands = {
    "x: [n, c, points, i] float", "points(points)", "indices: [1|n, j, p] int64 private", "grad: [n, c, p, i] of x",
  },
  results = {"dw: [n, j, p] stat of x"}, zeros = "numel_of(x) == 0 || numel_of(indices) == 0",
  grad = {
    grad = "gather_weighted(x, indices, g)",
    x = "gather_weighted_input(grad, indices, g, size_of(x))",
  },
  internal = true, help = "gradient of gather_weighted for its weight, [n, j, p]",
}

-- Its gradients are such ops too. `order` has for each dim, columns first, a digit to base 4: the order of the
-- interpolation's derivative by the grid's coordinate. over_dims writes sums over the dims.
local function over_dims(term)
  local function of(k) return (term:gsub("DIM", k + 1):gsub("ORDER", "order + " .. 4 ^ k)) end
  return ("ndim_of(grid) > 4 ? %s + %s + %s : %s + %s"):format(of(0), of(1), of(2), of(0), of(1))
end
local along = "unsqueeze(select(g, ndim_of(grid) - 1, DIM), 1)"

op("grid_sample(x, grid, mode: grid_mode = bilinear, padding_mode: grid_padding = zeros, align_corners = false, "
  .. "{order: int = 0})") {
  operands = {"x: [N, C, from...] float preserve", "grid: [N, to..., K] of x", "grid(from, grid, order, 3)"},
  results = {"y: [N, C, to...] of x as x"},
  grad = {
    x = "grid_sample_input(g, grid, mode, padding_mode, align_corners, order, size_of(x))",
    grid = "grid_sample_grid(g, x, grid, mode, padding_mode, align_corners, order)",
  },
  autocast = "keep",
  help = "Computes the output from values of the input at the points of a grid.",
}
op("grid_sample_input(grad, grid, mode: grid_mode = bilinear, padding_mode: grid_padding = zeros, "
  .. "align_corners = false, order: int = 0, size: size)") {
  operands = {
    "size: [N, C, from...]", "grid: [N, to..., K] of grad", "grid(from, grid, order, 3)",
    "grad: [N, C, to...] float as dx",
  },
  results = {"dx: [N, C, from...] of grad as grad"}, zeros = "numel_of(grad) == 0",
  grad = {
    grad = "grid_sample(g, grid, mode, padding_mode, align_corners, order)",
    grid = "grid_sample_grid(grad, g, grid, mode, padding_mode, align_corners, order)",
  },
  internal = true, help = "gradient of grid_sample for an x of that size",
}
op("grid_sample_grid(grad, x, grid, mode: grid_mode = bilinear, padding_mode: grid_padding = zeros, "
  .. "align_corners = false, order: int = 0)") {
  operands = {
    "x: [N, C, from...] float preserve", "grid: [N, to..., K] of x", "grid(from, grid, order, 2)",
    "grad: [N, C, to...] of x as x",
  },
  results = {"dgrid: like grid"}, zeros = "numel_of(grad) == 0 || mode == 'nearest'",
  grad = {
    grad = over_dims(along .. " * grid_sample(x, grid, mode, padding_mode, align_corners, ORDER)"),
    x = over_dims("grid_sample_input(grad * " .. along
      .. ", grid, mode, padding_mode, align_corners, ORDER, size_of(x))"),
    grid = over_dims("grid_sample_grid(grad * " .. along .. ", x, grid, mode, padding_mode, align_corners, ORDER)"),
  },
  internal = true, help = "gradient of grid_sample for its grid; of mode nearest zeros",
}

-- y1 holds the position, from 1, of each maximum in all of x; 0 for an empty bin.
op "roi_pool(x, boxes, output_size: pair = 1, spatial_scale: number = 1)" {
  hidden = 1,
  operands = {"x: [N, C, H+, W+] float", "elements(x)", "boxes: [K, 5] of x", "output_size: from 1 to 2147483647"},
  results = {
    "y: [K, C, output_size[1], output_size[2]] of x", "indices: [K, C, output_size[1], output_size[2]] int64",
  },
  grad = {
    x = "reshape(gather_weighted_input(reshape(g, [1, 1, numel_of(g), 1]), reshape(y1, [1, 1, numel_of(g)]), nil, "
      .. "[1, 1, numel_of(x), 1]), size_of(x))",
  },
  help = "Pools the maximum of each bin of boxes in feature maps.",
}
op "nms_sorted(boxes, iou_threshold: number)" {
  grad = "none", internal = true,
  operands = {"boxes: [N, 4] float", "elements(boxes)", "iou_threshold: a number"}, results = {"keep: [N] bool"},
  values = "shape",
  help = "of boxes [n, 4] (x1, y1, x2, y2), the best first, bool [n]: those that share no more than iou_threshold of "
    .. "their union with one kept before",
}

--- Resizing, sampling by a grid, unfolding and folding: what these have in common.
local op = ...

-- Closed under differentiation, as a convolution is. lua/luminary/nn/functional/ makes the tables.
op "sample_places" {
  "x", "places", "weight?",
  grad = {
    x = "sample_places_input(g, places, weight, size_of(x))",
    weight = "sample_places_weight(g, x, places)",
  }, inner = true,
  help = "sums of weight[n, j, p] * x[n, c, places[n, j, p], i] over j, [n, c, p, i]; a place counts from 1, any "
    .. "other is nothing; places and weight [n or 1, j, p]; weight, of float32 or x's float64, is 1 by default",
}
op "sample_places_input" {
  "grad", "places", "weight?", "size: size",
  grad = {
    grad = "sample_places(g, places, weight)",
    weight = "sample_places_weight(grad, g, places)",
  },
  inner = true, help = "gradient of sample_places for an x of that size: grad, weighted, added up where places says",
}
op "sample_places_weight" {
  "grad", "x", "places",
  grad = {
    grad = "sample_places(x, places, g)",
    x = "sample_places_input(grad, places, g, size_of(x))",
  },
  inner = true, help = "gradient of sample_places for its weight, [n, j, p]",
}

-- Closed under differentiation: `order` says for each dim, by a digit to base 4, which derivative of the interpolation
-- by the grid's coordinate is meant, columns first. over_dims writes sums over them.
local function over_dims(term)
  local function of(k) return (term:gsub("DIM", k + 1):gsub("ORDER", "order + " .. 4 ^ k)) end
  return ("ndim_of(grid) > 4 ? %s + %s + %s : %s + %s"):format(of(0), of(1), of(2), of(0), of(1))
end
local along = "unsqueeze(select(g, ndim_of(grid) - 1, DIM), 1)"

op "grid_sample" {
  "x", "grid", "mode: grid_mode = bilinear", "padding_mode: grid_padding = zeros", "align_corners = false",
  options = {"order: int = 0"},
  grad = {
    x = "grid_sample_input(g, grid, mode, padding_mode, align_corners, order, size_of(x))",
    grid = "grid_sample_grid(g, x, grid, mode, padding_mode, align_corners, order)",
  },
  autocast = "keep",
  help = "Computes the output from values of the input at the points of a grid.",
}
op "grid_sample_input" {
  "grad", "grid", "mode: grid_mode = bilinear", "padding_mode: grid_padding = zeros", "align_corners = false",
  "order: int = 0", "size: size",
  grad = {
    grad = "grid_sample(g, grid, mode, padding_mode, align_corners, order)",
    grid = "grid_sample_grid(grad, g, grid, mode, padding_mode, align_corners, order)",
  },
  inner = true, help = "gradient of grid_sample for an x of that size",
}
op "grid_sample_grid" {
  "grad", "x", "grid", "mode: grid_mode = bilinear", "padding_mode: grid_padding = zeros", "align_corners = false",
  "order: int = 0",
  grad = {
    grad = over_dims(along .. " * grid_sample(x, grid, mode, padding_mode, align_corners, ORDER)"),
    x = over_dims("grid_sample_input(grad * " .. along
      .. ", grid, mode, padding_mode, align_corners, ORDER, size_of(x))"),
    grid = over_dims("grid_sample_grid(grad * " .. along .. ", x, grid, mode, padding_mode, align_corners, ORDER)"),
  },
  inner = true, help = "gradient of grid_sample for its grid; of mode nearest zeros",
}

-- y1 is where each came from in all of x, from 1, and 0 where a bin is empty.
op "roi_pool" {
  "x", "boxes", "output_size: pair = 1", "spatial_scale: number = 1", hidden = 1,
  grad = {
    x = "reshape(sample_places_input(reshape(g, [1, 1, numel_of(g), 1]), reshape(y1, [1, 1, numel_of(g)]), nil, "
      .. "[1, 1, numel_of(x), 1]), size_of(x))",
  },
  help = "the largest of x [N, C, H, W] in each of output_size bins of boxes [K, 5] (image, from 1, x1, y1, x2, y2), "
    .. "which spatial_scale multiplies: [K, C, height, width]",
}
op "nms_sorted" {
  "boxes", "iou_threshold: number", grad = "none", inner = true,
  help = "of boxes [n, 4] (x1, y1, x2, y2), the best first, bool [n]: those that share no more than iou_threshold of "
    .. "their union with one kept before",
}

--- Resizing, sampling by a grid, unfolding and folding: what these have in common.
local op = ...

-- Closed under differentiation, as a convolution is. lua/luminary/nn/functional/ makes the tables.
op "sample_places" {
  "x", "places", "weight?",
  grad = {
    x = "sample_places_input(g, places, weight, size_of(x))",
    weight = "sample_places_weight(g, x, places)",
  },
  help = "sums of weight[n, j, p] * x[n, c, places[n, j, p], i] over j, [n, c, p, i]; a place counts from 1, any "
    .. "other is nothing; places and weight [n or 1, j, p]; weight, of float32 or x's float64, is 1 by default",
}
op "sample_places_input" {
  "grad", "places", "weight?", "size: size",
  grad = {
    grad = "sample_places(g, places, weight)",
    weight = "sample_places_weight(grad, g, places)",
  },
  help = "gradient of sample_places for an x of that size: grad, weighted, added up where places says",
}
op "sample_places_weight" {
  "grad", "x", "places",
  grad = {
    grad = "sample_places(x, places, g)",
    x = "sample_places_input(grad, places, g, size_of(x))",
  },
  help = "gradient of sample_places for its weight, [n, j, p]",
}

-- What F.grid_sample asks for each point and its neighbours, in one pass.
op "grid_place" {
  "at", "near", "size: number", "step: number = 1",
  elementwise = "floor(at) + near >= 0 && floor(at) + near < size ? (floor(at) + near) * step : -1099511627776",
  gives = "float", grad = "none",
  help = "(floor(at) + near) * step, or -2^40 if floor(at) + near is not from 0 to size - 1",
}
op "grid_weight" {
  "at", "near",
  elementwise = "near > 0 ? at - floor(at) : 1 - (at - floor(at))",
  gives = "float",
  grad = {at = "near > 0 ? g : -g"},
  help = "linear interpolation's weight of floor(at) + near, for near 0 or 1",
}

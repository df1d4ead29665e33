--- Joining, picking, counting, and writing in place; indices count from 1.
local op = ...

op "cat" {
  "tensors: tensors", "dim: dim?",
  grad = {tensors = "cat_grad(g, dim, sizes, at, before)"},
  autocast = "widest", help = "Concatenates the tensors along dim, the first by default.",
}
op "pad" {
  "x", "pad: size", "mode: pad_mode = constant", "value: scalar?", kind = "composite",
  help = "Pads the dims of the input.",
}
op "pad_around" {
  "x", "pad: size", "mode: pad_mode = reflect",
  grad = {x = "padded_grad(g, size_of(x), pad, mode)"},
  inner = true, help = "pad by what x holds, in a mode that is not constant, by a kernel of its own, the CPU's",
}
op "stack" {
  "tensors: tensors", "dim: dim?", kind = "composite",
  autocast = "widest", help = "joined along a new dim (the first by default)",
}
op "gather" {
  "x", "dim: dim", "index",
  grad = {x = "scatter_add(zero_for(g, size_of(x)), dim, index, g)"},
  help = "out[i][j] = x[index[i][j]][j] for dim 1",
}
op "index_select" {
  "x", "dim: dim", "index",
  grad = {x = "index_add(zero_for(g, size_of(x)), dim, index, g)"},
  help = "the entries of dim named by a 1-d index",
}
op "index_get" {
  "x", "indices: tensors or nil",
  forms = {{when = "has_masks(indices)", "index_get(x, without_masks(x, indices))"}},
  grad = {x = "index_put(zero_for(g, size_of(x)), indices, g, true)"}, inner = true,
  help = "x[indices]: one index tensor or nil a dim, broadcast together; a mask stands for as many dims as it has",
}
op "index_put" {
  "x", "indices: tensors or nil", "values: scalar", "accumulate = false",
  forms = {{when = "has_masks(indices)", "index_put(x, without_masks(x, indices), values, accumulate)"}},
  grad = {x = "accumulate ? g : index_put(g, indices, 0)", values = "index_get(g, indices)"},
  autocast = "widest", inner = true, help = "x with values at indices, which may be masks; also index_put_",
}
op "nonzero" {
  "x", options = {"as_tuple = false"},
  grad = "none",
  help = "[n, ndim] indices of the nonzero elements; as_tuple: a result [n] for each dim, as x[{…}] takes them",
}
op "masked_values" {
  "x", "mask",
  grad = {x = "reshape(index_put(zero_for(g, [numel_of(x)]), [reshape(mask, [-1])], g), size_of(x))"},
  inner = true, help = "[n] elements of x where mask, a bool of its sizes, holds; masked_select broadcasts them",
}
op "topk" {
  "x", "k: int", "dim: dim?", "largest = true", "sorted = true", results = 2,
  grad = {x = "place_grad(g, y1, dim, true, size_of(x))"},
  help = "the k largest along dim (the last by default): values, indices",
}
op "one_hot" {
  "x", "num_classes: int = -1",
  grad = "none",
  help = "Returns a one-hot encoding of classes.",
}
op "embedding" {
  "index", "weight", options = {"padding_idx: int = 0"},
  grad = {weight = "embedding_backward(g, index, size_of(weight)[1], padding_idx)"},
  help = "rows of weight; padding_idx gets no gradient",
}
op "embedding_backward" {
  "grad", "index", "num: int", "padding_idx: int",
  grad = {
    grad = {
      "rows = embedding(index, g)",
      "padding_idx > 0 ? masked_fill(rows, unsqueeze(index == padding_idx, -1), 0) : rows",
    },
  },
  inner = true, help = "gradient of embedding's weight, [num, features]",
}
op "bag_sums" {
  "index", "weight", "offsets", "each?", options = {"padding_idx: int = 0", "means = false"}, hidden = 1,
  -- y1 is the number of rows in each bag, at least 1
  grad = {
    weight = {
      "own = means ? g / unsqueeze(y1, 1) : g",
      "rows = index_select(own, 0, bag_of(offsets, index))",
      "embedding_backward(given(each) ? rows * unsqueeze(each, 1) : rows, index, size_of(weight)[1], padding_idx)",
    },
    each = {
      "own = means ? g / unsqueeze(y1, 1) : g",
      "along = sum(index_select(own, 0, bag_of(offsets, index)) * embedding(index, weight), [1])",
      "padding_idx > 0 ? masked_fill(along, index == padding_idx, 0) : along",
    },
  }, inner = true,
  help = "sums (or means) of rows of weight, weighed by `each`: bag k has those that index [n] names from "
    .. "offsets[k] on, up to offsets[k + 1] or the end; padding_idx is left out",
}

-- ---- writing in place
op "copy_" {
  "x", "src: scalar", "non_blocking = false", kind = "write",
  grad = {x = "nil", src = "g"},
  help = "x becomes src, converted and broadcast; non_blocking as for to",
}
op "fill_" {"x", "value: scalar", kind = "write", grad = {x = "nil", value = "g"}, help = "every element becomes value"}
op "zero_" {"x", kind = "write", grad = {x = "nil"}, help = "every element becomes 0"}
op "index_put_" {
  "x", "indices: tensors or nil", "values: scalar", "accumulate = false", kind = "write",
  forms = {{when = "has_masks(indices)", "index_put_(x, without_masks(x, indices), values, accumulate)"}},
  grad = {x = "accumulate ? g : index_put(g, indices, 0)", values = "index_get(g, indices)"},
  help = "writes values at indices",
}

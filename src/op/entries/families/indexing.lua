--- Defines ops that concatenate, index, count and write in place; indices count from 1.
local op = ...

op "cat(tensors: tensors, dim: dim?)" {
  grad = {tensors = "cat_grad(g, dim, sizes, at, before)"},
  autocast = "widest", help = "Concatenates the tensors along dim, the first by default.",
}
op "pad(x, pad: pads, mode: pad_mode = constant, value: scalar?)" {
  kind = "composite",
  help = "Pads the dims of the input.",
}
op "pad_around(x, pad: size, mode: pad_mode = reflect)" {
  grad = {x = "padded_grad(g, size_of(x), pad, mode)"},
  internal = true, help = "pad by what x holds, in a mode that is not constant, by a kernel of its own, the CPU's",
}
op "stack(tensors: tensors, dim: dim?)" {
  kind = "composite",
  autocast = "widest", help = "Joins tensors of the same shape along a new dim, the first by default.",
}
op "gather(x, dim: dim, index)" {
  grad = {x = "scatter_add(zero_for(g, size_of(x)), dim, index, g)"},
  help = "Returns the elements of x at indices along dim.",
}
op "index_select(x, dim: dim, index)" {
  grad = {x = "index_add(zero_for(g, size_of(x)), dim, index, g)"},
  help = "Returns the slices of x at the indices of dim, in their order.",
}
op "index_get(x, indices: tensors or nil)" {
  forms = {{when = "has_masks(indices)", "index_get(x, without_masks(x, indices))"}},
  grad = {x = "index_put(zero_for(g, size_of(x)), indices, g, true)"}, internal = true,
  values = "mask",
  help = "x[indices]: one index tensor or nil a dim, broadcast together; a mask stands for as many dims as it has",
}
op "index_put(x, indices: tensors or nil, values: scalar, accumulate = false)" {
  forms = {{when = "has_masks(indices)", "index_put(x, without_masks(x, indices), values, accumulate)"}},
  grad = {x = "accumulate ? g : index_put(g, indices, 0)", values = "index_get(g, indices)"},
  autocast = "widest", internal = true, values = "mask",
  help = "x with values at indices, which may be masks; also index_put_",
}
op "nonzero(x, {as_tuple = false})" {
  grad = "none",
  values = "shape", help = "Returns the indices of the elements that are not 0.",
}
op "masked_values(x, mask)" {
  grad = {x = "reshape(index_put(zero_for(g, [numel_of(x)]), [reshape(mask, [-1])], g), size_of(x))"},
  internal = true, values = "shape",
  help = "[n] elements of x where mask, a bool of its sizes, holds; masked_select broadcasts them",
}
op "topk(x, k: int, dim: dim?, largest = true, sorted = true)" {
  results = 2,
  grad = {x = "position_grad(g, y1, dim, true, size_of(x))"},
  help = "Returns the k largest elements along dim, the last by default, and their indices.",
}
op "one_hot(x, num_classes: int = -1)" {
  grad = "none",
  values = "shape", help = "Returns a one-hot encoding of classes.",
}
op "embedding(index, weight, {padding_idx: int = 0})" {
  operands = {"weight: [V, D] strided", "padding_row(&padding_idx, V)", "index: [at...] index flat"},
  results = {"rows: [at..., D] of weight rows"},
  grad = {weight = "embedding_backward(g, index, size_of(weight)[1], padding_idx)"},
  index_below = {"index", "weight", 1}, help = "Returns the rows of weight at the given indices.",
}
op "embedding_backward(grad, index, num: int, padding_idx: int)" {
  operands = {
    "num: at least 0", "padding_row(&padding_idx, num)", "index: [at...] index flat", "grad: [at..., D] rows",
  },
  results = {"dweight: [num, D] of grad"},
  grad = {
    grad = {
      "rows = embedding(index, g)",
      "padding_idx > 0 ? masked_fill(rows, unsqueeze(index == padding_idx, -1), 0) : rows",
    },
  },
  internal = true, help = "gradient of embedding's weight, [num, features]",
}
op "embedding_bag_sums(index, weight, offsets, each?, {padding_idx: int = 0, means = false})" {
  hidden = 1,
  operands = {
    "weight: [V, D] float", "padding_row(&padding_idx, V)", "index: [n] index", "offsets: [B] index",
    "each: [n] of weight",
  },
  results = {"sums: [B, D] of weight", "counts: [B] stat of weight"}, host = true,
  -- y1 is the number of rows in each bag, at least 1
  grad = {
    weight = {
      "own = means ? g / unsqueeze(y1, 1) : g",
      "rows = index_select(own, 0, embedding_bag_of(offsets, index))",
      "embedding_backward(given(each) ? rows * unsqueeze(each, 1) : rows, index, size_of(weight)[1], padding_idx)",
    },
    each = {
      "own = means ? g / unsqueeze(y1, 1) : g",
      "along = sum(index_select(own, 0, embedding_bag_of(offsets, index)) * embedding(index, weight), [1])",
      "padding_idx > 0 ? masked_fill(along, index == padding_idx, 0) : along",
    },
  }, internal = true,
  help = "sums (or means) of rows of weight, weighed by `each`: bag k has those that index [n] names from "
    .. "offsets[k] on, up to offsets[k + 1] or the end; padding_idx is left out",
}

-- ---- writing in place
op "copy_(x, src: scalar, non_blocking = false)" {
  kind = "write",
  grad = {x = "nil", src = "g"},
  help = "Copies the elements of src into x, in place, with conversion and broadcasting.",
}
op "fill_(x, value: scalar)" {
  kind = "write", grad = {x = "nil", value = "g"},
  help = "Fills x with value, in place.",
}
op "zero_(x)" {kind = "write", grad = {x = "nil"}, help = "Fills x with 0, in place."}
op "index_put_(x, indices: tensors or nil, values: scalar, accumulate = false)" {
  kind = "write",
  forms = {{when = "has_masks(indices)", "index_put_(x, without_masks(x, indices), values, accumulate)"}},
  grad = {x = "accumulate ? g : index_put(g, indices, 0)", values = "index_get(g, indices)"},
  values = "mask", help = "Writes values at indices of x, in place.",
}

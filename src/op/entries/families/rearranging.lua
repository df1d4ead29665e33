--- Entries in another order, triangles, and views that other strides give.
local op = ...

op "flip" {
  "x", "dims: dims?",
  grad = {x = "flip(g, dims)"},
  help = "the entries of dims in reverse order",
}
op "roll" {
  "x", "shifts: size", "dims: dims?",
  grad = {x = "roll(g, negated(shifts), dims)"},
  help = "entries moved on by shifts along dims, those at the end to the beginning; without dims along all of x",
}
op "tril" {
  "x", "diagonal: int = 0", formula = "triangle(x, diagonal, false)",
  help = "the matrices' lower triangles, 0 above: where column - row <= diagonal",
}
op "triu" {
  "x", "diagonal: int = 0", formula = "triangle(x, diagonal, true)",
  help = "the matrices' upper triangles, 0 below: where column - row >= diagonal",
}
op "tril_" {
  "x", "diagonal: int = 0", kind = "write",
  grad = {x = "tril(g, diagonal)"},
  help = "writes 0 above the matrices' lower triangles",
}
op "triu_" {
  "x", "diagonal: int = 0", kind = "write",
  grad = {x = "triu(g, diagonal)"},
  help = "writes 0 below the matrices' upper triangles",
}
op "triangle" {
  "x", "diagonal: int", "upper = false",
  grad = {x = "triangle(g, diagonal, upper)"},
  inner = true, help = "tril, or triu for upper",
}

-- ---- views
op "diagonal" {
  "x", "offset: int = 0", "dim1: dim? = 0", "dim2: dim? = 1", kind = "composite",
  help = "the diagonals of the matrices that dim1 and dim2 make, as the last dim of a view; offset > 0 is above, < 0 "
    .. "below the main one",
}
op "unfold" {
  "x", "dim: dim", "size: int", "step: int", kind = "composite",
  help = "Returns a view of all windows of a size in dim, as a new last dim.",
}
op "as_strided" {
  "x", "size: size", "stride: size", "storage_offset: int?", kind = "composite",
  help = "Returns a view of the memory of x with the given sizes, strides and offset.",
}

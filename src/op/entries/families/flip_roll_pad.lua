--- Defines flips, rolls, padding, triangles, and views by other strides.
local op = ...

op "flip(x, dims: dims?)" {
  grad = {x = "flip(g, dims)"},
  help = "Returns x with the order of elements reversed along dims, all by default.",
}
op "roll(x, shifts: size, dims: dims?)" {
  grad = {x = "roll(g, negated(shifts), dims)"},
  help = "Shifts the elements of x along dims, from the end around to the beginning.",
}
op "tril(x, diagonal: int = 0)" {
  formula = "triangle(x, diagonal, false)",
  help = "Returns the lower triangles of matrices, with 0 elsewhere.",
}
op "triu(x, diagonal: int = 0)" {
  formula = "triangle(x, diagonal, true)",
  help = "Returns the upper triangles of matrices, with 0 elsewhere.",
}
op "tril_(x, diagonal: int = 0)" {
  kind = "write",
  grad = {x = "tril(g, diagonal)"},
  help = "Writes 0 above the lower triangles of matrices, in place.",
}
op "triu_(x, diagonal: int = 0)" {
  kind = "write",
  grad = {x = "triu(g, diagonal)"},
  help = "Writes 0 below the upper triangles of matrices, in place.",
}
op "triangle(x, diagonal: int, upper = false)" {
  grad = {x = "triangle(g, diagonal, upper)"},
  internal = true, help = "tril, or triu for upper",
}

-- ---- views
op "diagonal(x, offset: int = 0, dim1: dim? = 0, dim2: dim? = 1)" {
  kind = "composite",
  help = "Returns a view of the diagonals of matrices, as a new last dim.",
}
op "unfold(x, dim: dim, size: int, step: int)" {
  kind = "composite",
  help = "Returns a view of all windows of a size in dim, as a new last dim.",
}
op "as_strided(x, size: size, stride: size, storage_offset: int?)" {
  kind = "composite",
  help = "Returns a view of the memory of x with the given sizes, strides and offset.",
}

--- Defines views, copies and conversions.
local op = ...

op "view(x, size: size)" {
  kind = "view",
  grad = {x = "reshape(g, size_of(x))"},
  help = "Returns a tensor of other sizes over the same memory.",
}
op "reshape(x, size: size)" {
  kind = "composite",
  help = "Returns a tensor of other sizes with the same elements in the same order.",
}
op "permute(x, dims: dims?)" {
  kind = "view", grad = {x = "unpermuted(g, dims)"},
  help = "Returns a view of x with its dims in another order.",
}
op "transpose(x, dim0: dim, dim1: dim)" {
  kind = "view",
  grad = {x = "transpose(g, dim0, dim1)"},
  help = "Returns a view of x with two dims exchanged.",
}
op "t(x)" {kind = "view", grad = {x = "t(g)"}, help = "Returns the transpose of a matrix, as a view."}
op "select(x, dim: dim, index: int)" {
  kind = "view",
  grad = {x = "select_grad(g, dim, index, size_of(x))"},
  help = "Returns the slice of x at an index of dim, as a view without that dim.",
}
op "slice(x, dim: dim, first: int = 1, last: int = -1, step: int = 1)" {
  kind = "view",
  grad = {x = "slice_grad(g, dim, first, step, size_of(x))"},
  help = "Returns a view of the indices first to last of dim, both included, in steps of step.",
}
op "narrow(x, dim: dim, start: int, length: int)" {
  kind = "view",
  grad = {x = "slice_grad(g, dim, start, 1, size_of(x))"},
  help = "Returns a view of length indices of dim, from start on.",
}
op "expand(x, size: size)" {
  kind = "view",
  grad = {x = "g"},
  help = "Returns a view of x broadcast to larger sizes.",
}
op "squeeze(x, dim: dims?)" {
  kind = "view", grad = {x = "reshape(g, size_of(x))"},
  help = "Returns a view of x without dims of size 1.",
}
op "unsqueeze(x, dim: dim)" {
  kind = "view",
  grad = {x = "reshape(g, size_of(x))"},
  help = "Returns a view of x with a new dim of size 1.",
}
op "flatten(x, start_dim: dim?, end_dim: dim?)" {
  kind = "composite",
  help = "Flattens the dims start_dim to end_dim of x into one.",
}
op "detach(x)" {
  kind = "view", grad = "none",
  help = "Returns a tensor with the memory of x, detached from the graph.",
}
op "slice_backward(grad, size: size, dim: dim, first: int, step: int)" {
  grad = {grad = "slice_grad_grad(g, dim, first, step, size_of(grad))"},
  internal = true, help = "zeros of that size with grad where slice had read",
}

-- ---- copies and conversions
op "clone(x, {memory_format: memory_format = preserve})" {grad = {x = "g"}, help = "Returns a copy of x."}
op "contiguous(x, {memory_format: memory_format = contiguous})" {
  kind = "composite",
  help = "Returns x with its elements in order in memory, as a copy if they are not.",
}
op "to_copy(x, {dtype: dtype?, device: device?, memory_format: memory_format = preserve, non_blocking = false})" {
  grad = {x = "g"}, internal = true,
  help = "a copy in another dtype, on another device; non_blocking: a copy from or to pinned memory may "
    .. "end after the call",
}

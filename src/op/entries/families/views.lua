--- Views, and copies and conversions.
local op = ...

op "view" {
  "x", "size: size", kind = "view",
  grad = {x = "reshape(g, size_of(x))"},
  help = "Returns a tensor of other sizes over the same memory.",
}
op "reshape" {
  "x", "size: size", kind = "composite",
  help = "Returns a tensor of other sizes with the same elements in the same order.",
}
op "permute" {"x", "dims: dims?", kind = "view", grad = {x = "unpermuted(g, dims)"}, help = "dims in another order"}
op "transpose" {
  "x", "dim0: dim", "dim1: dim", kind = "view",
  grad = {x = "transpose(g, dim0, dim1)"},
  help = "two dims exchanged",
}
op "t" {"x", kind = "view", grad = {x = "t(g)"}, help = "a matrix transposed"}
op "select" {
  "x", "dim: dim", "index: int", kind = "view",
  grad = {x = "select_grad(g, dim, index, size_of(x))"},
  help = "one entry of dim, from 1 or negative from the end; the dim goes",
}
op "slice" {
  "x", "dim: dim", "first: int = 1", "last: int = -1", "step: int = 1", kind = "view",
  grad = {x = "slice_grad(g, dim, first, step, size_of(x))"},
  help = "entries first to last (inclusive, from 1, negative from the end) of dim",
}
op "narrow" {
  "x", "dim: dim", "start: int", "length: int", kind = "view",
  grad = {x = "slice_grad(g, dim, start, 1, size_of(x))"},
  help = "length entries of dim from start on, which counts from 1",
}
op "expand" {
  "x", "size: size", kind = "view",
  grad = {x = "g"},
  help = "broadcast to size without a copy; -1 keeps a size",
}
op "squeeze" {"x", "dim: dims?", kind = "view", grad = {x = "reshape(g, size_of(x))"}, help = "without dims of size 1"}
op "unsqueeze" {
  "x", "dim: dim", kind = "view",
  grad = {x = "reshape(g, size_of(x))"},
  help = "with a dim of size 1 more",
}
op "flatten" {"x", "start_dim: dim?", "end_dim: dim?", kind = "composite", help = "dims start_dim to end_dim made one"}
op "detach" {"x", kind = "view", grad = "none", help = "the same data, outside the graph"}
op "slice_backward" {
  "grad", "size: size", "dim: dim", "first: int", "step: int",
  grad = {grad = "slice_grad_grad(g, dim, first, step, size_of(grad))"},
  internal = true, help = "zeros of that size with grad where slice had read",
}

-- ---- copies and conversions
op "clone" {"x", options = {"memory_format: memory_format = preserve"}, grad = {x = "g"}, help = "a copy"}
op "contiguous" {
  "x", options = {"memory_format: memory_format = contiguous"}, kind = "composite",
  help = "x itself if it is laid out so, else a copy",
}
op "to_copy" {
  "x",
  options = {"dtype: dtype?", "device: device?", "memory_format: memory_format = preserve", "non_blocking = false"},
  grad = {x = "g"}, internal = true,
  help = "a copy in another dtype, on another device; non_blocking: from or to pinned memory it may go on "
    .. "after the call",
}

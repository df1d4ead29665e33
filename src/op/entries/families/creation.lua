--- New tensors.
local op = ...

op "empty" {
  "size: size", options = {"dtype: dtype?", "device: device?", "memory_format: memory_format = contiguous"},
  kind = "new",
  help = "uninitialized",
}
op "full" {
  "size: size", "value: scalar", options = {"dtype: dtype?", "device: device?"}, kind = "new",
  grad = {value = "g"},
  help = "filled with value",
}
op "zeros" {"size: size", options = {"dtype: dtype?", "device: device?"}, kind = "new", help = "zeros"}
op "ones" {"size: size", options = {"dtype: dtype?", "device: device?"}, kind = "new", help = "ones"}
op "arange" {
  "start: number", "stop: number?", "step: number = 1", options = {"dtype: dtype?", "device: device?"},
  kind = "new",
  help = "start, start + step, … below stop; arange(n) is 0 to n - 1",
}
op "linspace" {
  "start: number", "stop: number", "steps: int", options = {"dtype: dtype?", "device: device?"}, kind = "new",
  help = "steps numbers from start to stop, both included",
}
op "cosine_window" {
  "n: int", "period: number", "a0: number", "a1: number", "a2: number = 0",
  options = {"dtype: dtype?", "device: device?"}, kind = "new",
  internal = true, help = "a0 - a1 cos(2 pi k / period) + a2 cos(4 pi k / period) for k from 0 to n - 1",
}
op "eye" {
  "n: int", "m: int?", options = {"dtype: dtype?", "device: device?"}, kind = "new",
  help = "[n, m] with ones on the diagonal",
}
op "empty_like" {
  "x", options = {"dtype: dtype?", "device: device?"}, kind = "new",
  grad = "none",
  help = "uninitialized, shaped and laid out like x",
}
op "zeros_like" {
  "x", options = {"dtype: dtype?", "device: device?"}, kind = "new",
  grad = "none",
  help = "zeros, shaped and laid out like x",
}
op "ones_like" {
  "x", options = {"dtype: dtype?", "device: device?"}, kind = "new",
  grad = "none",
  help = "ones, shaped and laid out like x",
}
op "full_like" {
  "x", "value: scalar", options = {"dtype: dtype?", "device: device?"}, kind = "new",
  grad = {value = "g", x = "nil"},
  help = "filled with value, shaped and laid out like x",
}

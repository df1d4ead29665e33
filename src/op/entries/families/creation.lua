--- Defines ops that create tensors.
local op, family = ...

family "new_filled(size: size?, like?, value?, number: number = 0, dtype: dtype?, device: device?)" {
  help = "a tensor of that size, or like another, filled with a value or a number",
}

op "empty(size: size, {dtype: dtype?, device: device?, memory_format: memory_format = contiguous})" {
  kind = "new",
  help = "Returns an uninitialized tensor of the given sizes.",
}
op "full(size: size, value: scalar, {dtype: dtype?, device: device?})" {
  kind = "new",
  kernel = "new_filled(size, nil, value, 0, dtype, device)",
  grad = {value = "g"},
  help = "Returns a tensor of the given sizes filled with value.",
}
op "zeros(size: size, {dtype: dtype?, device: device?})" {
  kind = "new",
  kernel = "new_filled(size, nil, nil, 0, dtype, device)",
  help = "Returns a tensor of the given sizes filled with 0.",
}
op "ones(size: size, {dtype: dtype?, device: device?})" {
  kind = "new",
  kernel = "new_filled(size, nil, nil, 1, dtype, device)",
  help = "Returns a tensor of the given sizes filled with 1.",
}
op "arange(start: number, stop: number?, step: number = 1, {dtype: dtype?, device: device?})" {
  kind = "new",
  help = "Returns a 1-d tensor of the numbers from start to stop, without stop, with differences of step.",
}
op "linspace(start: number, stop: number, steps: int, {dtype: dtype?, device: device?})" {
  kind = "new",
  help = "Returns a 1-d tensor of steps evenly spaced numbers from start to stop, both included.",
}
op "cosine_window(n: int, period: number, a0: number, a1: number, a2: number = 0, {dtype: dtype?, device: device?})" {
  kind = "new",
  internal = true, help = "a0 - a1 cos(2 pi k / period) + a2 cos(4 pi k / period) for k from 0 to n - 1",
}
op "eye(n: int, m: int?, {dtype: dtype?, device: device?})" {
  kind = "new",
  help = "Returns a matrix with 1 on the diagonal and 0 elsewhere.",
}
op "empty_like(x, {dtype: dtype?, device: device?})" {
  kind = "new",
  grad = "none",
  help = "Returns an uninitialized tensor of the shape and memory format of x.",
}
op "zeros_like(x, {dtype: dtype?, device: device?})" {
  kind = "new",
  kernel = "new_filled([], x, nil, 0, dtype, device)",
  grad = "none",
  help = "Returns a tensor of the shape and memory format of x filled with 0.",
}
op "ones_like(x, {dtype: dtype?, device: device?})" {
  kind = "new",
  kernel = "new_filled([], x, nil, 1, dtype, device)",
  grad = "none",
  help = "Returns a tensor of the shape and memory format of x filled with 1.",
}
op "full_like(x, value: scalar, {dtype: dtype?, device: device?})" {
  kind = "new",
  kernel = "new_filled([], x, value, 0, dtype, device)",
  grad = {value = "g", x = "nil"},
  help = "Returns a tensor of the shape and memory format of x filled with value.",
}

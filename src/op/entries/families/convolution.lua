--- Defines convolution and pooling: x [N, C, H, W], channels-last in memory.
local op = ...

-- The gradients of convolutions are convolutions, those of poolings are poolings.
op "conv2d(x, weight, bias?, stride: pair = 1, padding: padding = 0, dilation: pair = 1, groups: int = 1)" {
  operands = {
    "x: [N?, C, H, W] float_or_int strided", "weight: [K, Cg, kH, kW] of x strided", "bias: [K] of x strided",
    "conv(sizes_of(x), sizes_of(weight), stride, padding, dilation, groups, OH, OW)",
  },
  results = {"y: [N?, K, OH, OW] of x as conv(x)"}, compute = "conv",
  grad = {
    x = "conv2d_input(g, weight, size_of(x), stride, padding, dilation, groups)",
    weight = "conv2d_weight(g, x, size_of(weight), stride, padding, dilation, groups)",
    bias = "sum(g, ndim_of(g) == 3 ? [1, 2] : [0, 2, 3])",
  },
  autocast = "lower",
  forms = {
    {
      when = "padding == 'same'",
      needs = {
        {"stride[1] == 1 && stride[2] == 1",
          "stride must be 1 for padding = \"same\", got ({stride[1]}, {stride[2]})"},
      },
      "conv2d(padded_to_same(x, weight, dilation), weight, bias, stride, "
        .. "[same_padding(weight, dilation, 1), same_padding(weight, dilation, 2)], dilation, groups)",
    },
  },
  flops = "2 * numel_of(y) * size_of(weight)[2] * size_of(weight)[3] * size_of(weight)[4]",
  help = "Applies a 2-d convolution.",
}
op("conv2d_with_epilogue(x, weight, bias?, other?, stride: pair = 1, padding: pair = 0, dilation: pair = 1, "
  .. "groups: int = 1, activation: activation = none, min: number = -inf, max: number = inf)") {
  operands = {
    "x: [N?, C, H, W] float strided", "weight: [K, Cg, kH, kW] of x strided", "bias: [K] of x strided",
    "conv(sizes_of(x), sizes_of(weight), stride, padding, dilation, groups, OH, OW)",
    "other: [N?, K, OH, OW] of x strided",
  },
  results = {"y: [N?, K, OH, OW] of x as conv(x)"}, compute = "conv",
  flops = "2 * numel_of(y) * size_of(weight)[2] * size_of(weight)[3] * size_of(weight)[4]",
  internal = true,
  help = "conv2d of float32, plus other, then the activation, limited to [min, max]: plans join layers to it",
}
op "int8_pack(weight, groups: int = 1)" {
  operands = {"weight: [K, Cg, kH, kW] not_bool", "int8_pack(sizes_of(weight), groups, P)"},
  results = {"packed: [P] int8"}, host = true, grad = "none", internal = true,
  help = "weight of int8_conv in the layout that it multiplies",
}
op("int8_conv(x, weight, packed, zero, scale?, bias?, w_zero?, x_zero: scalar?, {stride: pair = 1, padding: pair = 0, "
  .. "dilation: pair = 1, groups: int = 1})") {
  operands = {
    "weight: [K, Cg, kH, kW] not_bool strided", "x: [N, C, H, W] not_bool strided", "zero: [] not_bool",
    "int8_pack(sizes_of(weight), groups, P)", "packed: [P] int8", "scale: [K] float in float32", "bias: [K] int32",
    "w_zero: [K] int32", "x_zero: [] not_bool",
    "conv(sizes_of(x), sizes_of(weight), stride, padding, dilation, groups, OH, OW)",
  },
  results = {"y: [N, K, OH, OW] of zero as conv(x)"}, host = true, grad = "none", internal = true,
  flops = "2 * numel_of(y) * size_of(weight)[2] * size_of(weight)[3] * size_of(weight)[4]",
  help = "convolution of uint8 or int8 x less x_zero with such weights less w_zero, plus bias, as int32; in the other "
    .. "dtypes of zero times scale, of integers plus zero and saturated",
}
op "int8_quantize(x, scale: scalar, zero)" {
  operands = {"x: [at...] float in float32 preserve", "scale: [] not_bool", "zero: [] not_bool"},
  results = {"y: [at...] of zero as x"},
  host = true, grad = "none", internal = true, help = "x / scale + zero, rounded to even and saturated to zero's dtype",
}
op "int8_dequantize(x, scale: number, x_zero: int = 0)" {
  operands = {"x: [at...] not_bool preserve"}, results = {"y: [at...] float32 as x"},
  host = true, grad = "none", internal = true, help = "(x - x_zero) * scale of integers of 8 bits",
}
op("int8_add(x, other, zero, scale: number, other_scale: number, x_zero: int = 0, "
  .. "other_zero: int = 0)") {
  operands = {"x: [at...] not_bool preserve", "other: [at...] not_bool as x", "zero: [] not_bool"},
  results = {"y: [at...] of zero as x"}, host = true, grad = "none", internal = true,
  help = "scale * (x - x_zero) + other_scale * (other - other_zero) + zero of integers of 8 bits, rounded to even and "
    .. "saturated",
}
op "conv2d_input(grad, weight, size: size, stride: pair = 1, padding: pair = 0, dilation: pair = 1, groups: int = 1)" {
  operands = {
    "size: [N?, C, H, W]", "weight: [K, Cg, kH, kW] float_or_int strided",
    "conv(sizes_of(size), sizes_of(weight), stride, padding, dilation, groups, OH, OW)",
    "grad: [N?, K, OH, OW] of weight strided",
  },
  results = {"dx: [N?, C, H, W] of grad as conv(grad)"}, compute = "conv",
  grad = {
    grad = "conv2d(g, weight, nil, stride, padding, dilation, groups)",
    weight = "conv2d_weight(grad, g, size_of(weight), stride, padding, dilation, groups)",
  },
  autocast = "lower",
  flops = "2 * numel_of(grad) * size_of(weight)[2] * size_of(weight)[3] * size_of(weight)[4]",
  internal = true, help = "gradient of conv2d for an input of that size",
}
op "conv2d_weight(grad, x, size: size, stride: pair = 1, padding: pair = 0, dilation: pair = 1, groups: int = 1)" {
  operands = {
    "size: [K, Cg, kH, kW]", "x: [N?, C, H, W] float strided",
    "conv(sizes_of(x), sizes_of(size), stride, padding, dilation, groups, OH, OW)",
    "grad: [N?, K, OH, OW] of x strided",
  },
  results = {"dweight: [K, Cg, kH, kW] of x as weight(x)"},
  grad = {
    grad = "conv2d(x, g, nil, stride, padding, dilation, groups)",
    x = "conv2d_input(grad, g, size_of(x), stride, padding, dilation, groups)",
  },
  flops = "2 * numel_of(grad) * size_of(y)[2] * size_of(y)[3] * size_of(y)[4]",
  internal = true, help = "gradient of conv2d for a weight of that size",
}
local windows = "x, kernel_size, stride, padding, dilation, ceil_mode"
local padded = ("pad(x, window_padding(%s), 'constant', lowest(x))"):format(windows)
op("max_pool2d(x, kernel_size: pair?, stride: pair?, padding: pair = 0, dilation: pair = 1, ceil_mode = false, "
  .. "return_indices = false)") {
  operands = {
    "x: [N?, C+, H+, W+] not_bool preserve", "windows(kernel_size, stride, padding, dilation)",
    "pooled(kernel_size, stride, padding, dilation, ceil_mode, H, W, OH, OW)", "plane(H, W)",
  },
  results = {
    "y: [N?, C, OH, OW] of x as x",
    "indices: [N?, C, OH, OW] int64 as x if pool_needs_indices(x, kernel_size, return_indices)",
    "taps: [N?, C, OH, OW] uint8 as x if pool_needs_taps(x, kernel_size, return_indices)",
  },
  hidden = 2,
  grad = {
    x = "max_pool2d_backward(g, defined(y2) ? y2 : y1, size_of(x), kernel_size, stride, padding, dilation)",
  },
  forms = { -- dilated windows may miss a small input: a maximum of nothing
    {
      when = ("has_empty_window(%s)"):format(windows),
      ("max_pool2d(%s, kernel_size, stride, [0, 0], dilation)"):format(padded),
    },
  },
  help = "Applies a 2-d max pooling.",
}
op("max_pool2d_with_indices(x, kernel_size: pair?, stride: pair?, padding: pair = 0, dilation: pair = 1, "
  .. "ceil_mode = false, return_indices = true)") {
  results = 2,
  grad = {x = "max_pool2d_backward(g, y1, size_of(x), kernel_size, stride, padding, dilation)"},
  forms = {
    {
      when = ("has_empty_window(%s)"):format(windows),
      ("largest_of_each = max_pool2d_with_indices(%s, kernel_size, stride, [0, 0], dilation)"):format(padded),
      "inside = result(largest_of_each, 2)",
      "largest_of_each",
      "zeros_like(inside)",
    },
  },
  help = "Returns the maxima of the windows of x and their indices.",
}
op("max_pool2d_backward(grad, indices, size: size, {kernel_size: pair?, stride: pair?, padding: pair = 0, "
  .. "dilation: pair = 1})") {
  operands = {
    "size: [N?, C+, H+, W+]", "indices: [N?, C, OH, OW] preserve", "pool_indices(indices, kernel_size)",
    "grad: [N?, C, OH, OW] float as pooled(indices)", "known_windows(kernel_size, stride, padding, dilation)",
  },
  results = {"dx: [N?, C, H, W] of grad as pooled(indices)"},
  grad = {grad = "pooled_indices(g, indices, kernel_size, stride, padding, dilation)"}, internal = true,
  help = "gradient of max_pool2d; indices holds each maximum's place in H * W, from 1; to know its windows "
    .. "can be faster; of uint8, on a GPU, its place in its window, row by row from 0",
}
op "max_unpool2d(x, indices, kernel_size: pair?, stride: pair?, padding: pair = 0, output_size: size?)" {
  kind = "composite",
  help = "Computes a partial inverse of F.max_pool2d: zeros, with x at indices.",
}
op("avg_pool2d(x, kernel_size: pair?, stride: pair?, padding: pair = 0, ceil_mode = false, "
  .. "count_include_pad = true, divisor_override: int?)") {
  operands = {
    "x: [N?, C+, H+, W+] float_or_int64 preserve", "windows(kernel_size, stride, padding, nil)",
    "divisor(divisor_override)", "pooled(kernel_size, stride, padding, nil, ceil_mode, H, W, OH, OW)",
  },
  results = {"y: [N?, C, OH, OW] of x as x"},
  grad = {
    x = "avg_pool2d_backward(g, size_of(x), kernel_size, stride, padding, ceil_mode, count_include_pad, "
      .. "divisor_override)",
  },
  help = "Applies a 2-d average pooling.",
}
op("avg_pool2d_backward(grad, size: size, kernel_size: pair?, stride: pair?, padding: pair = 0, ceil_mode = false, "
  .. "count_include_pad = true, divisor_override: int?)") {
  operands = {
    "size: [N?, C+, H+, W+]", "windows(kernel_size, stride, padding, nil)", "divisor(divisor_override)",
    "pooled(kernel_size, stride, padding, nil, ceil_mode, H, W, OH, OW)",
    "grad: [N?, C, OH, OW] float as gradient(size)",
  },
  results = {"dx: [N?, C, H, W] of grad as gradient(size)"},
  grad = {grad = "avg_pool2d(g, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override)"},
  internal = true, help = "gradient of avg_pool2d for an input of that size",
}
op("relu_avg_pool2d(x, kernel_size: pair?, stride: pair?, padding: pair = 0, ceil_mode = false, "
  .. "count_include_pad = true, divisor_override: int?)") {
  operands = {
    "x: [N?, C+, H+, W+] float preserve", "windows(kernel_size, stride, padding, nil)", "divisor(divisor_override)",
    "pooled(kernel_size, stride, padding, nil, ceil_mode, H, W, OH, OW)",
  },
  results = {"y: [N?, C, OH, OW] of x as x"},
  grad = {
    x = "relu_avg_pool2d_backward(g, x, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override)",
  },
  forms = {
    {
      when = "!on_cpu(x) && is_float(x)",
      "avg_pool2d(relu(x), kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override)",
    },
  },
  internal = true, help = "avg_pool2d of relu(x)",
}
op("relu_avg_pool2d_backward(grad, x, kernel_size: pair?, stride: pair?, padding: pair = 0, ceil_mode = false, "
  .. "count_include_pad = true, divisor_override: int?)") {
  operands = {
    "x: [N?, C+, H+, W+] float preserve", "windows(kernel_size, stride, padding, nil)", "divisor(divisor_override)",
    "pooled(kernel_size, stride, padding, nil, ceil_mode, H, W, OH, OW)", "grad: [N?, C, OH, OW] of x as x",
  },
  results = {"dx: like x"},
  grad = {
    grad = "avg_pool2d(masked_fill(g, x <= 0, 0), kernel_size, stride, padding, ceil_mode, count_include_pad, "
      .. "divisor_override)",
    x = "zeros_like(x)",
  },
  forms = {
    {
      when = "!on_cpu(x) && is_float(x)",
      "masked_fill(avg_pool2d_backward(grad, size_of(x), kernel_size, stride, padding, ceil_mode, count_include_pad, "
        .. "divisor_override), x <= 0, 0)",
    },
  },
  internal = true, help = "gradient of relu_avg_pool2d",
}
op "adaptive_avg_pool2d(x, output_size: pair?)" {
  operands = {"x: [N?, C+, H+, W+] float preserve", "adapted(output_size, H, W)"},
  results = {"y: [N?, C, output_size[1], output_size[2]] of x as x"},
  grad = {x = "adaptive_avg_pool2d_backward(g, size_of(x))"},
  help = "Computes the means over a number of windows of x.",
}
op "adaptive_max_pool2d(x, output_size: pair?)" {
  operands = {"x: [N?, C+, H+, W+] float preserve", "adapted(output_size, H, W)", "plane(H, W)"},
  results = {
    "y: [N?, C, output_size[1], output_size[2]] of x as x",
    "indices: [N?, C, output_size[1], output_size[2]] int64 as x",
  },
  grad = {x = "max_pool2d_backward(g, y1, size_of(x))"},
  help = "Returns the maxima of a number of windows of x and their indices.",
}
op "adaptive_avg_pool2d_backward(grad, size: size)" {
  operands = {"size: [N?, C+, H+, W+]", "grad: [N?, C, OH, OW] float as gradient(size)"},
  results = {"dx: [N?, C, H, W] of grad as gradient(size)"},
  grad = {grad = "adaptive_avg_pool2d(g, [size_of(grad)[-2], size_of(grad)[-1]])"},
  internal = true, help = "gradient of adaptive_avg_pool2d for an input of that size",
}

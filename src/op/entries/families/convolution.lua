--- Convolution and pooling: x [N, C, H, W]; channels-last in memory.
local op = ...

-- Convolutions and poolings are each closed under differentiation.
op "conv2d" {
  "x", "weight", "bias?", "stride: pair = 1", "padding: padding = 0", "dilation: pair = 1", "groups: int = 1",
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
          "padding = \"same\" is for a stride of 1, and stride is {{stride[1]}, {stride[2]}}"},
      },
      "conv2d(padded_to_same(x, weight, dilation), weight, bias, stride, "
        .. "[same_padding(weight, dilation, 1), same_padding(weight, dilation, 2)], dilation, groups)",
    },
  },
  help = "Applies a 2-d convolution.",
}
op "conv2d_input" {
  "grad", "weight", "size: size", "stride: pair = 1", "padding: pair = 0", "dilation: pair = 1", "groups: int = 1",
  grad = {
    grad = "conv2d(g, weight, nil, stride, padding, dilation, groups)",
    weight = "conv2d_weight(grad, g, size_of(weight), stride, padding, dilation, groups)",
  },
  autocast = "lower",
  inner = true, help = "gradient of conv2d for an input of that size",
}
op "conv2d_weight" {
  "grad", "x", "size: size", "stride: pair = 1", "padding: pair = 0", "dilation: pair = 1", "groups: int = 1",
  grad = {
    grad = "conv2d(x, g, nil, stride, padding, dilation, groups)",
    x = "conv2d_input(grad, g, size_of(x), stride, padding, dilation, groups)",
  },
  inner = true, help = "gradient of conv2d for a weight of that size",
}
op "max_pool2d" {
  "x", "kernel_size: pair?", "stride: pair?", "padding: pair = 0", "dilation: pair = 1", "ceil_mode = false",
  "return_indices = false",
  hidden = 1,
  grad = {x = "max_pool2d_backward(g, y1, size_of(x), kernel_size, stride, padding, dilation)"},
  help = "Applies a 2-d max pooling.",
}
op "max_pool2d_with_indices" {
  "x", "kernel_size: pair?", "stride: pair?", "padding: pair = 0", "dilation: pair = 1", "ceil_mode = false",
  "return_indices = true",
  results = 2,
  grad = {x = "max_pool2d_backward(g, y1, size_of(x), kernel_size, stride, padding, dilation)"},
  help = "max_pool2d with return_indices",
}
op "max_pool2d_backward" {
  "grad", "places", "size: size",
  options = {"kernel_size: pair?", "stride: pair?", "padding: pair = 0", "dilation: pair = 1"},
  grad = {grad = "pooled_places(g, places)"}, inner = true,
  help = "gradient of max_pool2d; places holds each maximum's place in H * W, from 1; to know its windows "
    .. "can be faster",
}
op "max_unpool2d" {
  "x", "indices", "kernel_size: pair?", "stride: pair?", "padding: pair = 0", "output_size: size?",
  kind = "composite",
  help = "Computes a partial inverse of F.max_pool2d: zeros, with x at indices.",
}
op "avg_pool2d" {
  "x", "kernel_size: pair?", "stride: pair?", "padding: pair = 0", "ceil_mode = false", "count_include_pad = true",
  "divisor_override: int?",
  grad = {
    x = "avg_pool2d_backward(g, size_of(x), kernel_size, stride, padding, ceil_mode, count_include_pad, "
      .. "divisor_override)",
  },
  help = "Applies a 2-d average pooling.",
}
op "avg_pool2d_backward" {
  "grad", "size: size", "kernel_size: pair?", "stride: pair?", "padding: pair = 0", "ceil_mode = false",
  "count_include_pad = true", "divisor_override: int?",
  grad = {grad = "avg_pool2d(g, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override)"},
  inner = true, help = "gradient of avg_pool2d for an input of that size",
}
op "adaptive_avg_pool2d" {
  "x", "output_size: pair?",
  grad = {x = "adaptive_avg_pool2d_backward(g, size_of(x))"},
  help = "mean over as many windows as output_size says",
}
op "adaptive_max_pool2d" {
  "x", "output_size: pair?",
  results = 2,
  grad = {x = "max_pool2d_backward(g, y1, size_of(x))"},
  help = "largest in each of as many windows as output_size says, and where it is in H * W, from 1",
}
op "adaptive_avg_pool2d_backward" {
  "grad", "size: size",
  grad = {grad = "adaptive_avg_pool2d(g, [size_of(grad)[-2], size_of(grad)[-1]])"},
  inner = true, help = "gradient of adaptive_avg_pool2d for an input of that size",
}

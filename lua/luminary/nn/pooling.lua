--- Pooling over windows of x [N, C, H, W] or [C, H, W]. Sizes are a number or a pair.
local core = require "luminary.core"
local layer = require "luminary.nn.define_layer"

local ops = core.ops
local list, pooling = layer.entries()

local kernel_size, stride, padding = {"kernel_size", "size"}, {"stride", "size", from = "kernel_size"},
  {"padding", "size", 0}
local sizes = "kernel_size={kernel_size}, stride={stride}, padding={padding}"

pooling "MaxPool2d" {
  takes = {kernel_size},
  options = {
    stride, padding, {"dilation", "size", 1}, {"ceil_mode", "boolean", false}, {"return_indices", "boolean", false},
  },
  call = ops.max_pool2d, prints = sizes .. ", dilation={dilation}, ceil_mode={ceil_mode}",
  help = "with return_indices two results, the second where each is in H * W, from 1",
}

pooling "MaxUnpool2d" {
  takes = {{"kernel_size", "pair"}},
  options = {{"stride", "pair", from = "kernel_size"}, {"padding", "pair", {0, 0}}},
  forward = function(self, x, indices, output_size)
    return ops.max_unpool2d(x, indices, self.kernel_size,
      {stride = self.stride, padding = self.padding, output_size = output_size})
  end,
  prints = sizes,
  help = [[zeros with x at the places that nn.MaxPool2d(…, {return_indices = true}) gave: unpool(x, indices
    [, output_size])]],
}

pooling "AvgPool2d" {
  takes = {kernel_size},
  options = {
    stride, padding, {"ceil_mode", "boolean", false}, {"count_include_pad", "boolean", true},
    {"divisor_override", "integer"},
  },
  call = ops.avg_pool2d, prints = sizes,
  help = "means, or sums divided by divisor_override, if there is one, rather than by the number of places",
}

pooling "AdaptiveAvgPool2d" {
  takes = {{"output_size", "size"}}, call = ops.adaptive_avg_pool2d, prints = "output_size={output_size}",
  help = "means over as many windows as output_size says",
}

return layer.classes(list)

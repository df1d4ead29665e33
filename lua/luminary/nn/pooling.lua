--- Pooling over windows of x [N, C, H, W] or [C, H, W]. Sizes are a number or a pair.
local core = require "luminary.core"
local options = require "luminary.base.options"
local layer = require "luminary.nn.layer"

local ops = core.ops
local pooling = {}

-- Keeps what was given for printing.
local function size(who, name, value)
  options.arg(who, name, value, "pair")
  return value
end

--- nn.MaxPool2d(kernel_size [, {stride = kernel_size, padding = 0, dilation = 1, ceil_mode = false,
--- return_indices = false}]): with return_indices two results, the second where each is in H * W, from 1.
local MaxPool2d = layer.define("MaxPool2d")
pooling.MaxPool2d = MaxPool2d

function MaxPool2d:init(kernel_size, opts)
  self.kernel_size = size("MaxPool2d", "kernel_size", kernel_size)
  local checked = options.check("MaxPool2d", opts, {
    stride = {"pair"}, padding = {"pair", 0}, dilation = {"pair", 1}, ceil_mode = {"boolean", false},
    return_indices = {"boolean", false},
  }, "stride")
  opts = opts or {}
  self.stride, self.padding, self.dilation = opts.stride or kernel_size, opts.padding or 0, opts.dilation or 1
  self.ceil_mode = checked.ceil_mode
  self.return_indices = checked.return_indices
  self.how = {
    stride = self.stride, padding = self.padding, dilation = self.dilation, ceil_mode = self.ceil_mode,
    return_indices = self.return_indices,
  }
end

function MaxPool2d:forward(x) return ops.max_pool2d(x, self.kernel_size, self.how) end

function MaxPool2d:extra_repr()
  local text = layer.number_or_tuple
  return ("kernel_size=%s, stride=%s, padding=%s, dilation=%s, ceil_mode=%s"):format(text(self.kernel_size),
    text(self.stride), text(self.padding), text(self.dilation), layer.bool(self.ceil_mode))
end

--- nn.MaxUnpool2d(kernel_size [, {stride = kernel_size, padding = 0}]): zeros with x at the places that
--- nn.MaxPool2d(…, {return_indices = true}) gave: unpool(x, indices [, output_size]).
local MaxUnpool2d = layer.define("MaxUnpool2d")
pooling.MaxUnpool2d = MaxUnpool2d

function MaxUnpool2d:init(kernel_size, opts)
  self.kernel_size = options.arg("MaxUnpool2d", "kernel_size", kernel_size, "pair")
  local checked = options.check("MaxUnpool2d", opts, {stride = {"pair"}, padding = {"pair", {0, 0}}}, "stride")
  self.stride, self.padding = checked.stride or self.kernel_size, checked.padding
end

function MaxUnpool2d:forward(x, indices, output_size)
  return ops.max_unpool2d(x, indices, self.kernel_size,
    {stride = self.stride, padding = self.padding, output_size = output_size})
end

function MaxUnpool2d:extra_repr()
  return ("kernel_size=%s, stride=%s, padding=%s"):format(layer.tuple(self.kernel_size), layer.tuple(self.stride),
    layer.tuple(self.padding))
end

--- nn.AvgPool2d(kernel_size [, {stride = kernel_size, padding = 0, ceil_mode = false, count_include_pad = true,
--- divisor_override}]): sums divided by divisor_override, if there is one, rather than by the number of places.
local AvgPool2d = layer.define("AvgPool2d")
pooling.AvgPool2d = AvgPool2d

function AvgPool2d:init(kernel_size, opts)
  self.kernel_size = size("AvgPool2d", "kernel_size", kernel_size)
  local checked = options.check("AvgPool2d", opts, {
    stride = {"pair"}, padding = {"pair", 0}, ceil_mode = {"boolean", false}, count_include_pad = {"boolean", true},
    divisor_override = {"integer"},
  }, "stride")
  opts = opts or {}
  self.stride, self.padding = opts.stride or kernel_size, opts.padding or 0
  self.how = {
    stride = self.stride, padding = self.padding, ceil_mode = checked.ceil_mode,
    count_include_pad = checked.count_include_pad, divisor_override = checked.divisor_override,
  }
end

function AvgPool2d:forward(x) return ops.avg_pool2d(x, self.kernel_size, self.how) end

function AvgPool2d:extra_repr()
  local text = layer.number_or_tuple
  return ("kernel_size=%s, stride=%s, padding=%s"):format(text(self.kernel_size), text(self.stride),
    text(self.padding))
end

--- nn.AdaptiveAvgPool2d(output_size): means over as many windows as output_size says.
local AdaptiveAvgPool2d = layer.define("AdaptiveAvgPool2d")
pooling.AdaptiveAvgPool2d = AdaptiveAvgPool2d

function AdaptiveAvgPool2d:init(output_size)
  self.output_size = size("AdaptiveAvgPool2d", "output_size", output_size)
end

function AdaptiveAvgPool2d:forward(x) return ops.adaptive_avg_pool2d(x, self.output_size) end

function AdaptiveAvgPool2d:extra_repr() return "output_size=" .. layer.number_or_tuple(self.output_size) end

return pooling

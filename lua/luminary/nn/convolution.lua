--- Defines convolutions and transposed convolutions of one, two and three dims.
local core = require "luminary.core"
local options = require "luminary.base.options"
local signature = require "luminary.base.signature"
local layer = require "luminary.nn.define_layer"
local F = require "luminary.nn.functional"
local init = require "luminary.nn.initializers"
local printed = require "luminary.nn.print_values"
require "luminary.nn.functional.sizes" -- defines the kinds of its arguments

local ops, arg = core.ops, options.arg
local classes = {}

--- The base class of convolutions. n: number of spatial dims; transposed: true if the weight is [in, out / groups, …].
local Convolution = layer.define("Convolution")

-- Returns a padding in the order of F.pad: before and after the last dim, then the same for the dim before it.
local function pad_list(padding, kernel_size, dilation)
  local list = {}
  for i = #kernel_size, 1, -1 do
    local before, after = padding[i], padding[i]
    if padding == "same" then
      local more = dilation[i] * (kernel_size[i] - 1)
      before, after = math.floor(more / 2), math.ceil(more / 2)
    elseif padding == "valid" then
      before, after = 0, 0
    end
    list[#list + 1], list[#list + 2] = before, after
  end
  return list
end

local function check_groups(who, o, in_channels, out_channels)
  if in_channels % o.groups ~= 0 or out_channels % o.groups ~= 0 then
    options.fail("%s: groups (%d) must divide in_channels (%d) and out_channels (%d)", who, o.groups, in_channels,
      out_channels)
  end
  for _, stride in ipairs(o.padding == "same" and o.stride or {}) do
    if stride ~= 1 then
      options.fail("%s: padding = 'same' requires a stride of 1, got %s", who, printed.tuple(o.stride))
    end
  end
end

-- Signatures of the arguments over N dims, in PyTorch's order.
local channels = "(in_channels: count, out_channels: count, kernel_size: sizes(N, 1), {stride: sizes(N, 1) = 1, "
local takes = channels .. [[padding: sizes_or_word(N) = 0, dilation: sizes(N, 1) = 1, groups: count = 1, bias = true,
  padding_mode = "zeros" | "reflect" | "replicate" | "circular", device, dtype: string})]]
local transposed_takes = channels .. [[padding: sizes(N, 0) = 0, output_padding: sizes(N, 0) = 0, groups: count = 1,
  bias = true, dilation: sizes(N, 1) = 1, padding_mode: "zeros"? = "zeros", device, dtype: string})]]

local function set_up(self, in_channels, out_channels, kernel_size, o)
  self.in_channels, self.out_channels, self.kernel_size = in_channels, out_channels, kernel_size
  check_groups(self.__name, o, in_channels, out_channels)
  for _, name in ipairs {"stride", "padding", "dilation", "groups", "padding_mode", "output_padding"} do
    self[name] = o[name]
  end
  self.how = {stride = o.stride, padding = o.padding, dilation = o.dilation, groups = o.groups}
  if o.padding_mode ~= "zeros" then
    self.around = pad_list(o.padding, self.kernel_size, o.dilation)
    self.how.padding = 0
  end
  local first, second = out_channels, in_channels
  if self.transposed then first, second = in_channels, out_channels end
  self.weight = layer.parameter({first, second / o.groups, unpack(self.kernel_size)}, o)
  if o.bias then self.bias = layer.parameter({out_channels}, o) end
  self:reset_parameters()
end

--- Draws the parameters again, as at construction.
function Convolution:reset_parameters() init._layer(self.weight, self.bias) end

function Convolution:forward(x)
  if self.around then x = ops.pad(x, self.around, {mode = self.padding_mode}) end
  return self._call(x, self.weight, self.bias, self.how)
end

function Convolution:extra_repr()
  local parts = {("%d, %d, kernel_size=%s, stride=%s"):format(self.in_channels, self.out_channels,
    printed.tuple(self.kernel_size), printed.tuple(self.stride))}
  local function add(name, default)
    local value, usual = self[name], true
    for i = 1, type(value) == "table" and #value or 0 do usual = usual and value[i] == default end
    if type(value) ~= "table" then usual = value == default end
    if not usual then parts[#parts + 1] = name .. "=" .. printed.number_or_tuple(value) end
  end
  add("padding", 0)
  add("dilation", 1)
  if self.transposed then add("output_padding", 0) end
  add("groups", 1)
  if not self.bias then parts[#parts + 1] = "bias=False" end
  add("padding_mode", "zeros")
  return table.concat(parts, ", ")
end

-- Returns the output_padding that yields a result of the given size.
local function padding_for(self, x, size)
  local who, n = self.__name, self.n
  if type(size) ~= "table" or #size ~= n and #size ~= x.ndim then
    options.fail("%s: output_size must have %d or %d entries, got %s", who, n, x.ndim, options.describe(size))
  end
  local list = {}
  for i = 1, n do
    local min_size = (x.shape[x.ndim - n + i] - 1) * self.stride[i] - 2 * self.padding[i]
      + self.dilation[i] * (self.kernel_size[i] - 1) + 1
    list[i] = arg(who, "output_size", size[#size - n + i], "count") - min_size
    if list[i] < 0 or list[i] >= self.stride[i] then
      options.fail("%s: output_size has %d; for this x it must be from %d to %d", who, size[#size - n + i], min_size,
        min_size + self.stride[i] - 1)
    end
  end
  return list
end

local transposed_forward = signature.of("ConvTranspose(x, output_size: any?)", function(self, x, output_size)
  local more = self.output_padding
  if output_size ~= nil then more = padding_for(self, arg(self.__name, "x", x, "tensor"), output_size) end
  local how = self.how
  return self._call(x, self.weight, self.bias, how.stride, how.padding, more, how.groups, how.dilation)
end)

local plain = "nn.%s(…): Applies a %d-d convolution to an input %s of several channels."
local backwards = "nn.%s(…): Applies a %d-d transposed convolution to an input %s of several channels."
local inputs = {"[N, C, L]", "[N, C, H, W]", "[N, C, D, H, W]"}

local function add(name, n, call, transposed)
  local class = layer.define(name, Convolution)
  class.n, class._call, class.transposed = n, call, transposed
  class.init = signature.of(name .. (transposed and transposed_takes or takes):gsub("N", n), set_up)
  if transposed then class.forward = transposed_forward end
  class.__help = (transposed and backwards or plain):format(name, n, inputs[n])
  classes[name] = class
end
for n = 1, 3 do
  local d = n .. "d"
  add("Conv" .. d, n, F["conv" .. d], false)
  add("ConvTranspose" .. d, n, F["conv_transpose" .. d], true)
end

return classes

--- Defines layers that pad, resize or rearrange inputs, convert windows to columns, or drop channels; and Bilinear.
local lists = require "luminary.base.lists"
local options = require "luminary.base.options"
local signature = require "luminary.base.signature"
local core = require "luminary.core"
local F = require "luminary.nn.functional"
local init = require "luminary.nn.initializers"
local layer = require "luminary.nn.define_layer"
local printed = require "luminary.nn.print_values"

local list, rearranging = layer.entries()

-- ---- padding of the last dims

-- The kind of n dims' padding: a number for all sides, or before and after the last dim, then the dim before it, ….
options.kind("paddings", function(n) return "integer or list of " .. 2 * n end, function(who, name, v, n)
  if type(v) == "number" then
    local all = {}
    for i = 1, 2 * n do all[i] = v end
    v = all
  end
  local fits = type(v) == "table" and #v == 2 * n
  for i = 1, fits and #v or 0 do fits = fits and options.is("integer", v[i]) end
  if not fits then
    options.must_be(who, name, ("an integer or a list of %d (before and after the last dim, …)"):format(2 * n), v)
  end
  return v
end)

local modes = {
  Zero = {mode = "constant", help = "Pads the last %s with zeros."},
  Constant = {mode = "constant", help = "Pads the last %s with a constant value."},
  Reflection = {mode = "reflect", help = "Pads the last %s with a reflection of the input at its edges."},
  Replication = {mode = "replicate", help = "Pads the last %s with copies of the input's edges."},
  Circular = {mode = "circular", help = "Pads the last %s with the input's other side."},
}
local dims = {"dim", "2 dims", "3 dims"}

for name, kind in pairs(modes) do
  for n = 1, 3 do
    local constant = name == "Constant"
    rearranging(("%sPad%dd(padding: paddings(%d)%s)"):format(name, n, n, constant and ", value: number" or "")) {
      prints = constant and "padding value" or "{padding}", help = kind.help:format(dims[n]),
      forward = function(self, x)
        options.arg(self.__name, "x", x, "tensor")
        return core.ops.pad(x, self.padding, {mode = kind.mode, value = self.value})
      end,
    }
  end
end

-- ---- other sizes, and windows as columns

local function float_text(v)
  if type(v) ~= "table" then return printed.float(v) end
  return printed.tuple(lists.map(v, printed.float))
end

local function print_upsample(self)
  local text = self.size ~= nil and "size=" .. printed.number_or_tuple(self.size)
    or "scale_factor=" .. float_text(self.scale_factor)
  return ("%s, mode='%s'"):format(text, self.mode)
end

rearranging [[Upsample(size: any?, scale_factor: any?, mode = "nearest", align_corners: boolean?,
  recompute_scale_factor: boolean?)]] {
  forward = function(self, x)
    return F.interpolate(x, self.size, self.scale_factor, self.mode, self.align_corners, self.recompute_scale_factor)
  end,
  help = "Upsamples an input [N, C, L], [N, C, H, W] or [N, C, D, H, W] to a size or by a factor.",
}
for name, mode in pairs {UpsamplingNearest2d = "nearest", UpsamplingBilinear2d = "bilinear"} do
  local method = mode == "nearest" and "by nearest neighbors" or "by bilinear interpolation with align_corners"
  rearranging(name .. "(size: any?, scale_factor: any?)") {
    after_init = function(self) self.mode, self.align_corners = mode, mode == "bilinear" or nil end,
    forward = function(self, x)
      return F.interpolate(x, self.size, self.scale_factor, self.mode, self.align_corners)
    end,
    help = ("Upsamples an input [N, C, H, W] %s."):format(method),
  }
end

local columns = "kernel_size: size, dilation: size = 1, padding: size = 0, stride: size = 1)"
rearranging("Unfold(" .. columns) {
  call = F.unfold, prints = "kernel_size dilation padding stride",
  help = "Extracts the sliding windows of an input [N, C, H, W] as columns.",
}
rearranging("Fold(output_size: size, " .. columns) {
  call = F.fold, prints = "output_size kernel_size dilation padding stride",
  help = "Combines columns, as of nn.Unfold, into a tensor of sliding windows added up.",
}

-- ---- other orders and dims, dropout of channels

rearranging "PixelShuffle(upscale_factor: count)" {
  call = F.pixel_shuffle, prints = "upscale_factor",
  help = "Rearranges an input [..., C * r^2, H, W] to [..., C, H * r, W * r] with r = upscale_factor.",
}
rearranging "PixelUnshuffle(downscale_factor: count)" {
  call = F.pixel_unshuffle, prints = "downscale_factor",
  help = "Rearranges an input [..., C, H * r, W * r] to [..., C * r^2, H, W] with r = downscale_factor.",
}
rearranging "ChannelShuffle(groups: count)" {
  call = F.channel_shuffle, prints = "groups",
  help = "Rearranges the channels of an input [N, C, …] to one of each group in turn.",
}

local helps = {
  AlphaDropout = "Drops elements at random in training and keeps mean 0 and variance 1.",
  FeatureAlphaDropout = "Drops channels at random in training and keeps mean 0 and variance 1.",
}
for name, f in pairs {
  Dropout1d = F.dropout1d, Dropout2d = F.dropout2d, Dropout3d = F.dropout3d, AlphaDropout = F.alpha_dropout,
  FeatureAlphaDropout = F.feature_alpha_dropout,
} do
  rearranging(name .. "(p: probability = 0.5, {inplace = false})") {
    forward = function(self, x) return f(x, {p = self.p, training = self.training, inplace = self.inplace}) end,
    prints = "p inplace",
    help = helps[name] or "Sets channels to 0 at random in training, each with probability p.",
  }
end

options.kind("size_list", "list of integers", function(who, name, v)
  for i = 1, type(v) == "table" and math.max(#v, 1) or 1 do
    if type(v) ~= "table" or not options.is("integer", v[i]) then
      options.must_be(who, name, "a list of sizes, of which one may be -1", v)
    end
  end
  return v
end)

-- Returns the size that a -1 among sizes stands for.
local function check_sizes(x, dim, sizes)
  local product, open, size = 1, 0, x.shape[dim]
  for _, each in ipairs(sizes) do
    if each == -1 then open = open + 1 else product = product * each end
  end
  if open == 1 and product > 0 and size % product == 0 or open == 0 and product == size then return size / product end
  options.fail("Unflatten: dim %d of %s has size %d, which does not match unflattened_size {%s}", dim,
    options.describe(x), size, table.concat(sizes, ", "))
end

rearranging "Unflatten(dim: dim, unflattened_size: size_list)" {
  after_init = function(self)
    if self.dim == 0 then options.must_be("Unflatten", "dim", "from 1, or from -1 at the end", self.dim) end
  end,
  forward = function(self, x)
    options.arg("Unflatten", "x", x, "tensor")
    local dim, shape = self.dim < 0 and x.ndim + self.dim + 1 or self.dim, {}
    if dim < 1 or dim > x.ndim then
      options.fail("Unflatten: dim %d is out of range for %s", self.dim, options.describe(x))
    end
    local open = check_sizes(x, dim, self.unflattened_size)
    for i, size in ipairs(x.shape) do
      for _, each in ipairs(i == dim and self.unflattened_size or {size}) do
        shape[#shape + 1] = each == -1 and open or each
      end
    end
    return x:reshape(shape)
  end,
  prints = "dim unflattened_size",
  help = "Unflattens a dim into several dims.",
}

local classes = layer.classes(list)
for _, name in ipairs {"Upsample", "UpsamplingNearest2d", "UpsamplingBilinear2d"} do
  classes[name].extra_repr = print_upsample
end

--- nn.Bilinear(…): Applies a bilinear transformation to two inputs: x1^T weight x2 + bias.
local Bilinear = layer.define("Bilinear", nil, classes)

Bilinear.init = signature.of([[Bilinear(in1_features: count, in2_features: count, out_features: count, {bias = true,
  device, dtype: string})]], function(self, in1_features, in2_features, out_features, opts)
  self.in1_features = in1_features
  self.in2_features = in2_features
  self.out_features = out_features
  self.weight = layer.parameter({out_features, in1_features, in2_features}, opts)
  if opts.bias then self.bias = layer.parameter({out_features}, opts) end
  self:reset_parameters()
end)

--- Draws the parameters again, from uniform(-k, k) with k = 1 / sqrt(in1_features).
function Bilinear:reset_parameters()
  local bound = 1 / math.sqrt(self.in1_features)
  init.uniform_(self.weight, -bound, bound)
  if self.bias then init.uniform_(self.bias, -bound, bound) end
end

function Bilinear:forward(x1, x2) return F.bilinear(x1, x2, self.weight, self.bias) end

layer.prints(Bilinear, "in1_features in2_features out_features bias")

return classes

--- Defines Torch7's layers over windows: convolution, pooling, padding, resizing. Sizes have the width first.
local core = require "luminary.core"
local lists = require "luminary.base.lists"
local tensor = require "luminary.torch7.tensor"
local Leaf = require "luminary.torch7.nn.leaf"
local F = require "luminary.nn.functional"
local ops, layer = core.ops, Leaf.layer

-- Returns a layer's sizes of n dims, the fields kT, kH and kW for "k", in luminary's order.
local function axes(o, prefix, n)
  if n == 2 then return {o[prefix .. "H"], o[prefix .. "W"]} end
  return {o[prefix .. "T"], o[prefix .. "H"], o[prefix .. "W"]}
end
Leaf.axes = axes

-- ---- convolution

local planes = "nInputPlane# nOutputPlane# "
local kernel2 = "kW# kH#=kW dW=1 dH=1 padW=0 padH=padW dilationW=1 dilationH=dilationW"
local kernel3 = "kT# kW# kH#=kW dT=1 dW=1 dH=dW padT=0 padW=padT padH=padW"
local dilation3 = " dilationT=1 dilationW=dilationT dilationH=dilationW"

-- Full convolutions are transposed; there a table {x, like} as input makes the output as large as `like`.
local full2, full3 = "kW# kH#=kW dW=1 dH=1 padW=0 padH=0 adjW=0 adjH=0", kernel3 .. " adjT=0 adjW=0 adjH=0"
for name, row in pairs {
  SpatialConvolution = {2, kernel2}, SpatialConvolutionMM = {2, kernel2}, SpatialDilatedConvolution = {2, kernel2},
  VolumetricConvolution = {3, kernel3 .. dilation3}, VolumetricDilatedConvolution = {3, kernel3 .. dilation3},
  SpatialFullConvolution = {2, full2, true}, VolumetricFullConvolution = {3, full3, true},
} do
  local n, fields, is_full = unpack(row)
  local by_forward = name:find "Convolution" and not is_full and not name:find "Dilated" -- Torch7's keep windows
  local conv = F[(is_full and "conv_transpose%dd" or "conv%dd"):format(n)]
  local function shape_of(o)
    local first, second = o.nOutputPlane, o.nInputPlane
    if is_full then first, second = second, first end
    return {first, second, unpack(axes(o, "k", n))}
  end
  local function compute(t, o)
    local x, weight, how = t, o.weight, {stride = axes(o, "d", n), padding = axes(o, "pad", n)}
    if is_full then how.output_padding = axes(o, "adj", n) else how.dilation = axes(o, "dilation", n) end
    if type(t) == "table" then
      x = t[1]
      for i, k in ipairs(axes(o, "k", n)) do
        how.output_padding[i] = (t[2]:size(t[2].ndim - n + i) + 2 * how.padding[i] - k) % how.stride[i]
      end
    end
    if weight.ndim == 2 then weight = ops.reshape(weight, shape_of(o)) end -- as SpatialConvolutionMM of Torch7 has it
    return conv(by_forward and ops.clone(x) or x, weight, o.bias, how)
  end
  layer(name, planes .. fields, compute, {
    by_forward = by_forward, dims = not is_full and n + 2 or nil, sizes = function(o)
      local shape = shape_of(o)
      if name == "SpatialConvolutionMM" then shape = {shape[1], lists.product(shape) / shape[1]} end
      return {weight = shape, bias = {o.nOutputPlane}}
    end,
    fan = function(o) return o.nInputPlane * lists.product(axes(o, "k", n)) end,
  }).__sizes_only = is_full -- only the sizes of an input without gradient are used
end

-- ---- pooling

local pool2 = "kW# kH#=kW dW=kW dH=kH padW=0 padH=0"
local pool3 = "kT# kW# kH#=kW dT=kT dW=kW dH=kH padT=0 padW=0 padH=0"
local how_average = " ceil_mode=false count_include_pad=true divide=true"
for name, row in pairs {
  SpatialMaxPooling = {2, pool2 .. " dilationW=1 dilationH=dilationW"},
  VolumetricMaxPooling = {3, pool3 .. dilation3},
  SpatialAveragePooling = {2, "kW# kH#=kW dW=1 dH=1 padW=0 padH=0" .. how_average, true},
  VolumetricAveragePooling = {3, pool3 .. how_average, true},
} do
  local n, fields, is_average = unpack(row)
  local pool = F[("%s_pool%dd"):format(is_average and "avg" or "max", n)]
  local function compute(x, o)
    local how = {stride = axes(o, "d", n), padding = axes(o, "pad", n), ceil_mode = o.ceil_mode}
    if is_average then
      how.count_include_pad, how.divisor_override = o.count_include_pad, o.divide == false and 1 or nil
    else
      how.dilation, how.return_indices = axes(o, "dilation", n), o.keeps_indices
    end
    local y, indices = pool(x, axes(o, "k", n), how)
    if o.keeps_indices then o.indices = indices end -- for an unpooling layer
    return y
  end
  for _, prefix in ipairs(is_average and {""} or {"", "Dilated"}) do
    local new = layer((name:gsub("%u%l+Pooling", prefix .. "%0")), fields .. (is_average and "" or " ceil_mode=false"),
      compute, {dims = n + 2, by_forward = not is_average})
    for method, field in pairs {ceil = {"ceil_mode", true}, floor = {"ceil_mode", false},
      setCountIncludePad = {"count_include_pad", true}, setCountExcludePad = {"count_include_pad", false}} do
      new[method] = function(self)
        self[field[1]] = field[2]
        return self
      end
    end
  end
end
layer("SpatialAdaptiveMaxPooling", "W# H#=W", function(x, o)
  return F.adaptive_max_pool2d(x, {o.H, o.W})
end, {dims = 4, by_forward = true})
layer("SpatialAdaptiveAveragePooling", "W# H#=W", function(x, o)
  return F.adaptive_avg_pool2d(x, {o.H, o.W})
end, {dims = 4})
layer("SpatialLPPooling", "_nInputPlane pnorm kW# kH#=kW dW=kW dH=kH", function(x, o)
  return F.lp_pool2d(x, o.pnorm, axes(o, "k", 2), {stride = axes(o, "d", 2)})
end, {dims = 4})

-- ---- normalization

for name, dims in pairs {BatchNormalization = 2, SpatialBatchNormalization = 4, VolumetricBatchNormalization = 5} do
  local new = layer(name, "_nOutput# eps=1e-5 momentum=0.1 affine=true", function(x, o)
    local training = o.train ~= false
    if training and x:numel() <= x:size(2) then -- one value for each channel, whose deviation is 0
      local sizes = {-1}
      for d = 1, x.ndim - 2 do sizes[d + 1] = 1 end
      local zero = ops.mul(x, 0)
      return o.weight and ops.add(ops.mul(zero, o.weight:view(sizes)), o.bias:view(sizes)) or zero
    end
    local mean, var = o.running_mean, o.running_var
    if training and o.again then mean, var = nil, nil end
    return ops.batch_norm(x, mean, var, o.weight, o.bias, {training = training, eps = o.eps, momentum = o.momentum})
  end, {
    dims = dims,
    init = function(self, n)
      self.running_mean, self.running_var = tensor.new(tensor.default, n):zero(), tensor.new(tensor.default, n):fill(1)
    end,
    sizes = function(self, n) return self.affine and {weight = {n}, bias = {n}} or {} end,
    reset = function(self)
      if self.weight then self.weight:uniform() end -- as in Torch7
      if self.bias then self.bias:zero() end
      self.running_mean:zero()
      self.running_var:fill(1)
    end,
  })
  -- save_mean and save_std are the mean and 1 / deviation of the last batch in training, computed when they are read.
  function new.__index(self, key)
    if key ~= "save_mean" and key ~= "save_std" then return new[key] end
    if not Leaf.tapes[self] or self.train == false then return nil end
    local x, over = Leaf.tapes[self].inputs[1]:detach(), {1, 3, 4, 5}
    x, over = x.ndim < dims and ops.unsqueeze(x, 1) or x, {unpack(over, 1, math.max(dims - 1, 1))}
    return tensor.wrap(key == "save_mean" and ops.mean(x, over)
      or ops.rsqrt(ops.add(ops.var(x, over, {correction = 0}), self.eps)))
  end
end
layer("SpatialCrossMapLRN", "size# alpha=1e-4 beta=0.75 k=1", function(x, o)
  return F.local_response_norm(x, o.size, {alpha = o.alpha, beta = o.beta, k = o.k})
end, {dims = 4})

-- ---- padding and resizing

local sides = "pad_l pad_r=pad_l pad_t=pad_l pad_b=pad_l"
for name, mode in pairs {Zero = "constant", Reflection = "reflect", Replication = "replicate"} do
  layer(("Spatial%sPadding"):format(name), sides, function(x, o)
    return ops.pad(x, {o.pad_l, o.pad_r, o.pad_t, o.pad_b}, {mode = mode})
  end, {dims = 4})
end
layer("VolumetricReplicationPadding", "pleft pright=pleft ptop=pleft pbottom=pleft pfront=pleft pback=pleft",
  function(x, o)
    return ops.pad(x, {o.pleft, o.pright, o.ptop, o.pbottom, o.pfront, o.pback}, {mode = "replicate"})
  end, {dims = 5})
layer("SpatialUpSamplingNearest", "scale_factor#", function(x, o)
  return F.interpolate(x, {scale_factor = o.scale_factor, mode = "nearest"})
end, {dims = 4})
-- Sets the sizes of a table {owidth =, oheight =} in place of a factor.
local function set_sizes(self, given)
  if type(given) ~= "table" then return end
  self.scale_factor, self.odepth, self.oheight, self.owidth = nil, given.odepth, given.oheight, given.owidth
end
local function resized(x, o, mode)
  local size = o.oheight and {o.oheight, o.owidth}
  if size and o.odepth then table.insert(size, 1, o.odepth) end
  if mode == "nearest" then return F.interpolate(x, {size = size, scale_factor = o.scale_factor, mode = mode}) end
  local kind = x.ndim == 3 and "linear" or x.ndim == 4 and "bilinear" or "trilinear"
  return F.interpolate(x, {size = size, scale_factor = o.scale_factor, mode = kind, align_corners = true})
end
layer("SpatialUpSamplingBilinear", "scale_factor", function(x, o) return resized(x, o, "linear") end,
  {dims = 4, init = set_sizes})
layer("UpSampling", "scale_factor mode", function(x, o) return resized(x, o, o.mode or "nearest") end,
  {init = set_sizes})

-- ---- over frames, [frames, features] or [n, frames, features]

-- Defines a layer that computes f(windows, o) of windows of kW frames, [n, windows, features, kW].
local function temporal(name, fields, f, sizes, fan)
  local by_forward = name:find "Row" or not sizes
  local function compute(x, o) return f(ops.unfold(by_forward and sizes and ops.clone(x) or x, 2, o.kW, o.dW), o) end
  layer(name, fields, compute, {dims = 3, sizes = sizes, fan = fan, by_forward = by_forward})
end
local function window_of(self) return self.kW end
temporal("TemporalConvolution", "inputFrameSize# outputFrameSize# kW# dW=1", function(windows, o)
  return F.linear(ops.flatten(ops.transpose(windows, 3, 4), 3, 4), o.weight, o.bias)
end, function(o) return {weight = {o.outputFrameSize, o.inputFrameSize * o.kW}, bias = {o.outputFrameSize}} end)
temporal("TemporalRowConvolution", "inputFrameSize# kW# dW=1", function(windows, o)
  return ops.add(ops.sum(ops.mul(windows, ops.squeeze(o.weight, 2)), -1), o.bias)
end, function(o) return {weight = {o.inputFrameSize, 1, o.kW}, bias = {o.inputFrameSize}} end, window_of)
temporal("TemporalSubSampling", "inputFrameSize# kW# dW=1", function(windows, o)
  return ops.add(ops.mul(ops.sum(windows, -1), o.weight), o.bias)
end, function(o) return {weight = {o.inputFrameSize}, bias = {o.inputFrameSize}} end, window_of)
temporal("TemporalMaxPooling", "kW# dW=kW", function(windows) return (core.max(windows, -1)) end)
layer("SpatialSubSampling", "nInputPlane# kW# kH#=kW dW=1 dH=1", function(x, o)
  local sums = ops.mul(F.avg_pool2d(x, axes(o, "k", 2), {stride = axes(o, "d", 2)}), o.kW * o.kH)
  return ops.add(ops.mul(sums, o.weight:view {-1, 1, 1}), o.bias:view {-1, 1, 1})
end, {
  dims = 4, sizes = function(o) return {weight = {o.nInputPlane}, bias = {o.nInputPlane}} end,
  fan = function(o) return o.kW * o.kH end,
})

--- Defines Torch7's layers over windows: convolution, pooling, padding, resizing. Sizes have the width first.
local core = require "luminary.core"
local class = require "luminary.torch7.class"
local Leaf = require "luminary.torch7.nn.leaf"
local ours = require "luminary.nn"
local ops, F = core.ops, ours.functional
local layer, computed = Leaf.layer, Leaf.computed

local function pair_of(w, h) return {h or w, w} end

for _, name in ipairs {"SpatialConvolution", "SpatialConvolutionMM", "SpatialDilatedConvolution"} do
  layer(name, function(i, o, kW, kH, dW, dH, padW, padH, dilW, dilH)
    return ours.Conv2d(i, o, pair_of(kW, kH), {stride = pair_of(dW or 1, dH or 1),
      padding = pair_of(padW or 0, padH or padW or 0), dilation = pair_of(dilW or 1, dilH or dilW or 1)}), 4
  end, "nInputPlane nOutputPlane kW kH=kW dW=1 dH=1 padW=0 padH=padW dilationW=1 dilationH=dilationW")
end

-- Defines a transposed convolution. A table {x, like} as input makes the output as large as `like`.
local function transposed(name, dims, make, fields)
  layer(name, function(...)
    local made = make(...)
    local module = Leaf.around(function(t, self, of)
      local x, adjust = t, nil
      if type(t) == "table" then
        x, adjust = t[1], {}
        local letters = dims == 4 and "HW" or "THW"
        for i = 1, #letters do
          local c = letters:sub(i, i)
          adjust[i] = (t[2]:size(t[2].ndim - #letters + i) + 2 * of["pad" .. c] - of["k" .. c]) % of["d" .. c]
        end
      end
      local single = x.ndim == dims - 1
      made.weight, made.bias = self.weight, self.bias
      made.output_padding = adjust or made.padding_given
      local y = made(single and ops.unsqueeze(x, 1) or x)
      return single and ops.squeeze(y, 1) or y
    end)
    made.padding_given = made.output_padding
    module.weight, module.bias = made.weight, made.bias
    module.sizes_only = true -- only the sizes of an input without gradient are used
    return module
  end, fields)
end
transposed("SpatialFullConvolution", 4, function(i, o, kW, kH, dW, dH, padW, padH, adjW, adjH)
  local how = {stride = pair_of(dW or 1, dH or 1), padding = {padH or 0, padW or 0},
    output_padding = {adjH or 0, adjW or 0}}
  local inner = ours.utils.skip_init(ours.ConvTranspose2d, i, o, pair_of(kW, kH), how)
  local bound = 1 / math.sqrt(i * kW * (kH or kW)) -- Torch7's
  for _, p in ipairs(inner:parameters()) do ours.init.uniform_(p, -bound, bound) end
  return inner
end, "nInputPlane nOutputPlane kW kH=kW dW=1 dH=1 padW=0 padH=0 adjW=0 adjH=0")
computed("SpatialZeroPadding", function(x, left, right, top, bottom)
  return ops.pad(x, {left, right or left, top or left, bottom or left})
end, nil, "pad_l pad_r=pad_l pad_t=pad_l pad_b=pad_l")
computed("SpatialUpSamplingNearest", function(x, scale)
  return F.interpolate(x, {scale_factor = scale, mode = "nearest"})
end, 4, "scale_factor")

local function pooling(name, make, fields)
  local new = layer(name, make, fields)
  new.ceil_mode = false
  function new:ceil()
    self.ceil_mode = true
    return self
  end
  function new:floor()
    self.ceil_mode = false
    return self
  end
  function new:configure(inner)
    for _, how in ipairs {inner, inner.how} do how.ceil_mode = self.ceil_mode end
    if self.count_include_pad ~= nil then
      for _, how in ipairs {inner, inner.how} do how.count_include_pad = self.count_include_pad end
    end
  end
  return new
end
for _, name in ipairs {"SpatialMaxPooling", "SpatialDilatedMaxPooling"} do
  pooling(name, function(kW, kH, dW, dH, padW, padH, dilW, dilH)
    return ours.MaxPool2d(pair_of(kW, kH), {stride = pair_of(dW or kW, dH or kH or kW),
      padding = pair_of(padW or 0, padH or 0), dilation = pair_of(dilW or 1, dilH or dilW or 1)}), 4
  end, "kW kH=kW dW=kW dH=kH padW=0 padH=0 dilationW=1 dilationH=dilationW")
end
local Average = pooling("SpatialAveragePooling", function(kW, kH, dW, dH, padW, padH)
  return ours.AvgPool2d(pair_of(kW, kH), {stride = pair_of(dW or 1, dH or 1),
    padding = pair_of(padW or 0, padH or 0)}), 4
end, "kW kH=kW dW=1 dH=1 padW=0 padH=0")
Average.count_include_pad, Average.divide = true, true
function Average:setCountIncludePad()
  self.count_include_pad = true
  return self
end
function Average:setCountExcludePad()
  self.count_include_pad = false
  return self
end
for name, dims in pairs {BatchNormalization = 2, SpatialBatchNormalization = 4, VolumetricBatchNormalization = 5} do
  local Norm = ours[("BatchNorm%dd"):format(math.max(dims - 2, 1))]
  local Any = Norm:extend "BatchNorm" -- also of one value for each channel, whose deviation is 0
  function Any:forward(x)
    if not self.training or x:numel() > x:size(2) then return Norm.forward(self, x) end
    local zero, sizes = ops.mul(x, 0), {-1}
    for d = 1, x.ndim - 2 do sizes[d + 1] = 1 end
    return self.affine and ops.add(ops.mul(zero, self.weight:view(sizes)), self.bias:view(sizes)) or zero
  end
  layer(name, function(n, eps, momentum, affine)
    return Any(n, {eps = eps or 1e-5, momentum = momentum or 0.1, affine = affine ~= false}), dims
  end, "_ eps=1e-5 momentum=0.1 affine=true").configure = function(self, inner)
    inner.eps, inner.momentum = self.eps, self.momentum
  end
  local Normalization, attach = class.by_name["nn." .. name], Leaf.attach
  function Normalization:attach(...)
    attach(self, ...)
    if self.weight then self.weight:uniform() end -- as in Torch7
  end
end

-- ---- convolution and pooling of other kinds

layer("SpatialAdaptiveMaxPooling", function(w, h) return ours.AdaptiveMaxPool2d(pair_of(w, h)), 4 end, "W H=W")
layer("SpatialAdaptiveAveragePooling", function(w, h) return ours.AdaptiveAvgPool2d(pair_of(w, h)), 4 end, "W H=W")
layer("SpatialLPPooling", function(_, p, kW, kH, dW, dH)
  return ours.LPPool2d(p, pair_of(kW, kH), {stride = pair_of(dW or kW, dH or dW or kH or kW)}), 4
end)
layer("SpatialCrossMapLRN", function(size, alpha, beta, k)
  return ours.LocalResponseNorm(size, {alpha = alpha or 1e-4, beta = beta or 0.75, k = k or 1}), 4
end, "size alpha=1e-4 beta=0.75 k=1")
for name, make in pairs {SpatialReflectionPadding = ours.ReflectionPad2d,
  SpatialReplicationPadding = ours.ReplicationPad2d} do
  layer(name, function(left, right, top, bottom)
    return make {left, right or left, top or left, bottom or left}, 4
  end, "pad_l pad_r=pad_l pad_t=pad_l pad_b=pad_l")
end
layer("VolumetricReplicationPadding", function(left, right, top, bottom, front, back)
  return ours.ReplicationPad3d {left, right or left, top or left, bottom or left, front or left, back or left}, 5
end)
layer("SpatialUpSamplingBilinear", function(scale)
  if type(scale) == "table" then
    return ours.Upsample {size = {scale.oheight, scale.owidth}, mode = "bilinear", align_corners = true}, 4
  end
  return ours.UpsamplingBilinear2d {scale_factor = scale}, 4
end)
computed("UpSampling", function(x, scale, mode)
  if mode ~= "linear" then return F.interpolate(x, {scale_factor = scale, mode = "nearest"}) end
  local kind = x.ndim == 3 and "linear" or x.ndim == 4 and "bilinear" or "trilinear"
  return F.interpolate(x, {scale_factor = scale, mode = kind, align_corners = true})
end)

-- ---- over time, height and width; arguments are in this order, but with width before height

local function triple_of(t, w, h) return {t, h or w, w} end
local function three(kind, more)
  return function(i, o, kT, kW, kH, dT, dW, dH, padT, padW, padH, ...)
    local how = more and more(...) or {}
    how.stride = triple_of(dT or 1, dW or 1, dH or dW or 1)
    how.padding = triple_of(padT or 0, padW or padT or 0, padH or padW or padT or 0)
    return ours[kind](i, o, triple_of(kT, kW, kH), how), 5
  end
end
local function dilated(t, w, h) return {dilation = triple_of(t or 1, w or t or 1, h or w or t or 1)} end
local kernel3 = "nInputPlane nOutputPlane kT kW kH=kW dT=1 dW=1 dH=dW padT=0 padW=padT padH=padW"
layer("VolumetricConvolution", three("Conv3d", dilated), kernel3)
layer("VolumetricDilatedConvolution", three("Conv3d", dilated), kernel3 .. " dilationT=1 dilationW=1 dilationH=1")
transposed("VolumetricFullConvolution", 5, three("ConvTranspose3d", function(t, w, h)
  return {output_padding = triple_of(t or 0, w or 0, h or 0)}
end), kernel3 .. " adjT=0 adjW=0 adjH=0")
local function three_pooled(kind, more)
  return function(kT, kW, kH, dT, dW, dH, padT, padW, padH, ...)
    local how = more and more(...) or {}
    how.stride = triple_of(dT or kT, dW or kW, dH or dW or kH or kW)
    how.padding = triple_of(padT or 0, padW or 0, padH or padW or 0)
    return ours[kind](triple_of(kT, kW, kH), how), 5
  end
end
local window3 = "kT kW kH=kW dT=kT dW=kW dH=kH padT=0 padW=0 padH=0"
pooling("VolumetricMaxPooling", three_pooled("MaxPool3d", dilated), window3)
pooling("VolumetricDilatedMaxPooling", three_pooled("MaxPool3d", dilated), window3)
pooling("VolumetricAveragePooling", three_pooled "AvgPool3d", window3)

-- ---- over frames, [frames, features] or [n, frames, features]

-- Defines a layer that computes f(windows, self) of windows of kW frames, [n, windows, features, kW].
local function temporal(name, fields, sizes, f)
  layer(name, function(...)
    local parameters, fan, kW, dW = sizes(...)
    return Leaf.with(parameters, fan, function(x, self) return f(ops.unfold(x, 2, kW, dW), self) end), 3
  end, fields)
end
temporal("TemporalConvolution", "inputFrameSize outputFrameSize kW dW=1", function(i, o, kW, dW)
  return {weight = {o, i * kW}, bias = {o}}, i * kW, kW, dW or 1
end, function(windows, self)
  return F.linear(ops.flatten(ops.transpose(windows, 3, 4), 3, 4), self.weight, self.bias)
end)
temporal("TemporalRowConvolution", "inputFrameSize kW dW=1", function(i, kW, dW)
  return {weight = {i, 1, kW}, bias = {i}}, kW, kW, dW or 1
end, function(windows, self)
  return ops.add(ops.sum(ops.mul(windows, ops.squeeze(self.weight, 2)), -1), self.bias)
end)
temporal("TemporalSubSampling", "inputFrameSize kW dW=1", function(i, kW, dW)
  return {weight = {i}, bias = {i}}, kW, kW, dW or 1
end, function(windows, self) return ops.add(ops.mul(ops.sum(windows, -1), self.weight), self.bias) end)
temporal("TemporalMaxPooling", "kW dW=kW", function(kW, dW) return {}, 1, kW, dW or kW end,
  function(windows) return ops.amax(windows, -1) end)
layer("SpatialSubSampling", function(n, kW, kH, dW, dH)
  kH = kH or kW
  return Leaf.with({weight = {n}, bias = {n}}, kW * kH, function(x, self)
    local sums = ops.mul(F.avg_pool2d(x, {kH, kW}, {stride = {dH or 1, dW or 1}}), kW * kH)
    return ops.add(ops.mul(sums, self.weight:view {-1, 1, 1}), self.bias:view {-1, 1, 1})
  end), 4
end, "nInputPlane kW kH=kW dW=1 dH=1")

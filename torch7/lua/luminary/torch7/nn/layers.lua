--- Defines Torch7's layers of one tensor or of a table, except those over windows.
local core = require "luminary.core"
local lists = require "luminary.base.lists"
local options = require "luminary.base.options"
local class = require "luminary.torch7.class"
local tensor = require "luminary.torch7.tensor"
local Leaf = require "luminary.torch7.nn.leaf"
local ours = require "luminary.nn"
local ops, F = core.ops, ours.functional
local layer, computed, around, with, nn = Leaf.layer, Leaf.computed, Leaf.around, Leaf.with, class.packages.nn

layer("Linear", function(i, o, bias) return ours.Linear(i, o, {bias = bias ~= false}), 2 end)
layer("LookupTable", function(n, size) return ours.Embedding(n, size) end)
layer("Dropout", function(p) return ours.Dropout(p or 0.5) end)

for name, f in pairs {Tanh = ops.tanh, Sigmoid = ops.sigmoid, ReLU = ops.relu, ReLU6 = ops.relu6, Abs = ops.abs,
  Exp = ops.exp, Log = ops.log, Sqrt = ops.sqrt, Square = ops.square, LogSigmoid = ops.log_sigmoid,
  SoftPlus = ops.softplus} do
  computed(name, function(x) return f(x) end)
end
layer("LeakyReLU", function(slope) return ours.LeakyReLU(slope or 0.01) end)
computed("Power", function(x, p) return ops.pow(x, p) end)
computed("Clamp", function(x, low, high) return ops.clamp_range(x, low, high) end)
computed("HardTanh", function(x, low, high) return ops.clamp_range(x, low or -1, high or 1) end)
computed("Threshold", function(x, at, value)
  return ops.where(ops.gt(x, at or 1e-6), x, ops.full_like(x, value or 0))
end)
for name, f in pairs {SoftMax = ops.softmax, LogSoftMax = ops.log_softmax} do
  computed(name, function(x) return ops.contiguous(f(x, (x.ndim == 1 or x.ndim == 3) and 1 or 2)) end)
end
computed("MM", function(t) return ops.matmul(t[1], t[2]) end)
computed("DotProduct", function(t) return ops.sum(ops.mul(t[1], t[2]), -1) end)

for _, name in ipairs {
  "CAddTable", "CMulTable", "CSubTable", "CDivTable", "CMaxTable", "CMinTable", "JoinTable", "SplitTable",
  "SelectTable", "NarrowTable", "FlattenTable", "View", "Reshape", "Transpose", "Select", "Narrow", "Squeeze",
  "Unsqueeze", "Mean", "Sum", "Max", "Min", "AddConstant", "MulConstant", "Identity",
} do
  layer(name, function(first, ...)
    if type(first) == "boolean" then return ours[name]() end -- CAddTable(inplace)
    if first == nil then return ours[name]() end
    if type(first) == "table" and getmetatable(first) then first = lists.slice(first) end -- a LongStorage
    return ours[name](first, ...)
  end)
end
nn.Copy, nn.Contiguous = nn.Identity, nn.Identity

local View = class.by_name["nn.View"]
function View:setNumInputDims(n)
  self.inner:setNumInputDims(n)
  self.numInputDims = n
  return self
end
function View:restored()
  if self.numInputDims then self:setNumInputDims(self.numInputDims) end
end

-- ---- layers with parameters

local function sizes_of(...)
  local first = ...
  local sizes = type(first) == "table" and lists.slice(first) or {...}
  return sizes, lists.product(sizes)
end

layer("Add", function(n, scalar)
  return with({bias = {scalar and 1 or n}}, n, function(x, self) return ops.add(x, self.bias) end)
end)
layer("Mul", function() return with({weight = {1}}, 1, function(x, self) return ops.mul(x, self.weight) end) end)
layer("CMul", function(...)
  local sizes, count = sizes_of(...)
  return with({weight = sizes}, count, function(x, self) return ops.mul(x, self.weight) end)
end)
layer("CAdd", function(...)
  local sizes, count = sizes_of(...)
  return with({bias = sizes}, count, function(x, self) return ops.add(x, self.bias) end)
end)
layer("Cosine", function(i, o)
  return with({weight = {o, i}}, i, function(x, self)
    return F.linear(F.normalize(x, {dim = -1, eps = 1e-12}), F.normalize(self.weight, {dim = 2, eps = 1e-12}))
  end), 2
end)
layer("Euclidean", function(i, o)
  return with({weight = {i, o}}, i, function(x, self)
    return ops.norm(ops.sub(ops.unsqueeze(x, 3), self.weight), 2, {dim = 2})
  end), 2
end)
layer("PReLU", function(n) return ours.PReLU(n and n > 0 and n or 1) end)
layer("Bilinear", function(i1, i2, o, bias)
  local inner = ours.Bilinear(i1, i2, o, {bias = bias ~= false})
  local module = around(function(t) return inner(t[1], t[2]) end)
  module.weight, module.bias = inner.weight, inner.bias
  return module
end)

-- ---- functions of one element, or along a dim

computed("SoftSign", function(x) return F.softsign(x) end)
computed("TanhShrink", function(x) return F.tanhshrink(x) end)
layer("ELU", function(alpha) return ours.ELU(alpha or 1) end)
layer("RReLU", function(low, high) return ours.RReLU(low or 1 / 8, high or 1 / 3) end)
layer("SoftShrink", function(at) return ours.Softshrink(at or 0.5) end)
layer("HardShrink", function(at) return ours.Hardshrink(at or 0.5) end)
layer("GatedLinearUnit", function(dim) return ours.GLU(dim or -1) end)
computed("CReLU", function(x, dims)
  return ops.cat({ops.relu(x), ops.relu(ops.neg(x))}, x.ndim > (dims or x.ndim) and 2 or 1)
end)
computed("SoftMin", function(x) return ops.softmax(ops.neg(x), (x.ndim == 1 or x.ndim == 3) and 1 or 2) end)
for name, f in pairs {SpatialSoftMax = ops.softmax, SpatialLogSoftMax = ops.log_softmax} do
  computed(name, function(x) return ops.contiguous(f(x, x.ndim == 3 and 1 or 2)) end)
end
layer("Normalize", function(p, eps)
  if type(p) ~= "number" or p <= 0 then options.must_be("nn.Normalize", "p", "a number above 0", p) end
  return around(function(x)
    local size = p == math.huge and ops.add(ops.amax(ops.abs(x), -1, {keepdim = true}), eps or 1e-10)
      or ops.pow(ops.add(ops.sum(ops.pow(ops.abs(x), p), -1, {keepdim = true}), eps or 1e-10), 1 / p)
    return ops.div(x, size)
  end)
end)
-- Drops complete channels at random in training; else multiplies by 1 - p.
for name, f in pairs {SpatialDropout = F.dropout2d, VolumetricDropout = F.dropout3d} do
  layer(name, function(p)
    p = p or 0.5
    return around(function(x, self)
      return ops.mul(self.training and f(x, {p = p, training = true}) or x, 1 - p)
    end), name == "SpatialDropout" and 4 or 5
  end)
end
layer("WhiteNoise", function(mean, std)
  return around(function(x, self)
    if not self.training then return ops.mul(x, 1) end
    return ops.add(x, ops.add(ops.mul(ops.randn_like(x), std or 0.1), mean or 0))
  end)
end)
computed("OneHot", function(x, n) return F.one_hot(x:to "int64", n):to(tensor.default) end)

-- ---- shapes and positions

-- Returns the dim of x for a sample's dim: one more if x has more than `dims` dims.
local function dim_in(x, dim, dims) return dims and x.ndim > dims and dim + 1 or dim end

computed("Replicate", function(x, n, dim, dims)
  local y = ops.unsqueeze(x, dim_in(x, dim or 1, dims))
  local shape = {unpack(y.shape)}
  shape[dim_in(x, dim or 1, dims)] = n
  return ops.expand(y, shape)
end)
computed("Padding", function(x, dim, pad, dims, value, index)
  local d = dim_in(x, dim, dims)
  local shape, n = {unpack(x.shape)}, x:size(d)
  shape[d] = math.abs(pad)
  local fill = ops.full(shape, value or 0, {dtype = x.dtype, device = x.device})
  local before = pad > 0 and n - (index or 1) + 1 or (index or 1) - 1 -- entries before the padding
  return ops.cat({ops.narrow(x, d, 1, before), fill, ops.narrow(x, d, before + 1, n - before)}, d)
end)
computed("Collapse", function(x, dims) return ops.reshape(x, x.ndim > dims and {x:size(1), -1} or {-1}) end)
layer("Constant", function(value, dims)
  value = type(value) == "number" and core.tensor({value}, {dtype = tensor.default}) or tensor.raw(value, "nn.Constant")
  return around(function(x)
    local y = value
    if dims and x.ndim > dims then y = ops.expand(value, {x:size(1), unpack(value.shape)}) end
    return ops.clone(y):to(x.dtype)
  end)
end)
computed("Index", function(t, dim) return ops.index_select(t[1], dim, t[2]:to "int64") end)
computed("MaskedSelect", function(t) return t[1]:masked_select(t[2]:to "bool") end)
layer("PixelShuffle", function(scale) return ours.PixelShuffle(scale), 4 end)

-- ---- layers of tables

computed("MV", function(t, transposed)
  return ops.squeeze(ops.matmul(transposed and ops.transpose(t[1], -1, -2) or t[1], ops.unsqueeze(t[2], -1)), -1)
end)
computed("CosineDistance", function(t)
  local function sum(a, b) return ops.sum(ops.mul(a, b), -1) end
  local squares = ops.mul(ops.add(sum(t[1], t[1]), 1e-12), ops.add(sum(t[2], t[2]), 1e-12))
  local y = ops.div(sum(t[1], t[2]), ops.sqrt(squares))
  return y.ndim == 0 and ops.unsqueeze(y, 1) or y
end)
computed("PairwiseDistance", function(t, p)
  local y = ops.norm(ops.sub(t[1], t[2]), p or 2, {dim = -1})
  return y.ndim == 0 and ops.unsqueeze(y, 1) or y
end)
-- Takes {gates, experts}: sums the experts, a table or a tensor with them along dim, weighted by their gates.
computed("MixtureTable", function(t, dim)
  local gates, experts = t[1], t[2]
  local at = dim or gates.ndim
  if type(experts) == "table" then experts = ops.stack(experts, at) end
  local shape = {}
  for d = 1, experts.ndim do shape[d] = 1 end
  if gates.ndim > 1 then shape[1] = gates:size(1) end
  shape[at] = gates:size(gates.ndim)
  return ops.sum(ops.mul(experts, ops.reshape(gates, shape)), at)
end)
computed("CAddTensorTable", function(t)
  return lists.map(t[2], function(v) return ops.add(v, t[1]) end)
end)
computed("ZipTable", function(t)
  return lists.map(t[1], function(_, i)
    return lists.map(t, function(list) return list[i] end)
  end)
end)
computed("ZipTableOneToMany", function(t)
  return lists.map(t[2], function(v) return {t[1], v} end)
end)

-- ---- layers that change only the gradient

-- Defines a layer that returns its input, and changes the gradient in backward.
local function passes(name, init, backward)
  local new, parent = class.new("nn." .. name, "nn.Module")
  function new:__init(...)
    parent.__init(self)
    init(self, ...)
  end
  function new:updateOutput(x)
    self.output = x
    return x
  end
  function new:updateGradInput(x, g)
    self.gradInput = backward(self, x, g)
    return self.gradInput
  end
  return new
end
local Reversal = passes("GradientReversal", function(self, lambda) self.lambda = lambda or 1 end,
  function(self, _, g) return g * -self.lambda end)
function Reversal:setLambda(lambda) self.lambda = lambda end
local Penalty = passes("L1Penalty", function(self, weight, average, keeps)
  self.l1weight, self.sizeAverage, self.provideOutput = weight, average or false, keeps ~= false
end, function(self, x, g)
  local own = tensor.functions.sign(x) * (self.l1weight / (self.sizeAverage and x:nElement() or 1))
  return self.provideOutput and own + g or own
end)
function Penalty:updateOutput(x)
  self.loss = x:norm(1) * self.l1weight / (self.sizeAverage and x:nElement() or 1)
  self.output = x
  return x
end
passes("ZeroGrad", function() end, function(_, x) return x:clone():zero() end)
passes("PrintSize", function(self, prefix) self.prefix = prefix or "PrintSize" end, function(_, _, g) return g end)
  .updateOutput = function(self, x)
    print(("%s: %s of size %s"):format(self.prefix, class.type(x), tensor.is(x) and
      table.concat(tensor.raw(x).shape, "x") or #x))
    self.output = x
    return x
  end

-- nn.Maxout(in, out, n): the maximum of n linear layers.
local Maxout, sequential = class.new("nn.Maxout", "nn.Module")
function Maxout:__init(i, o, n)
  sequential.__init(self)
  self.modules = {nn.Sequential():add(nn.Linear(i, o * n)):add(nn.View(n, o)):add(nn.Max(1, 2))}
end
for _, name in ipairs {"updateOutput", "updateGradInput", "accGradParameters", "backward", "parameters"} do
  Maxout[name] = function(self, ...)
    local result, more = self.modules[1][name](self.modules[1], ...)
    self.output, self.gradInput = self.modules[1].output, self.modules[1].gradInput
    return result, more
  end
end

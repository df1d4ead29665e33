--- Defines Torch7's layers of one tensor or of a table, except those over windows.
local core = require "luminary.core"
local lists = require "luminary.base.lists"
local options = require "luminary.base.options"
local class = require "luminary.torch7.class"
local tensor = require "luminary.torch7.tensor"
local shared = require "luminary.torch7.shared_layers"
local Leaf = require "luminary.torch7.nn.leaf"
local define = require("luminary.torch7.nn.module").define
local F = require "luminary.nn.functional"
local ops, layer, nn, dim_in = core.ops, Leaf.layer, class.packages.nn, shared.dim_in
local keep = {keepdim = true}

-- ---- layers that Luminary's nn has, too

local formulas = {
  CAddTable = function(_, g, _, t) return lists.map(t, function(x) return ops.reshape(ops.clone(g), x.shape) end) end,
  CMulTable = function(_, g, _, t)
    return lists.map(t, function(x, i)
      local dx = ops.clone(g)
      for k, other in ipairs(t) do if k ~= i then ops.mul_(dx, ops.reshape(other, g.shape)) end end
      return ops.reshape(dx, x.shape)
    end)
  end,
  SplitTable = function(_, g, o, x) return ops.stack(g, dim_in(x, o.dimension, o.nInputDims)) end,
}
for _, row in ipairs(shared.rows) do
  local inplace = row.name:find "Constant" or row.name == "CAddTable"
  local compute = row.compute
  if row.name:find "^C%a+Table$" then -- the tensors need equal numbers of elements, and nothing broadcasts
    function compute(t, o)
      local first = type(t) == "table" and t[1]
      return row.compute(first and lists.map(t, function(x) return tensor.fitted(row.name, first, x) end) or t, o)
    end
  end
  layer(row.name, row.fields .. (inplace and " inplace=false" or ""), compute, {
    by_forward = row.name:find "M[axin]+" ~= nil, of_output = formulas[row.name],
  })
end
nn.AddConstant.restores, nn.MulConstant.restores = true, true -- backward undoes the change of the input
for name, of in pairs(shared.of_sizes) do
  layer(name, nil, of.compute, {
    init = of.set, of_output = name ~= "Transpose" and function(_, g, _, x) return ops.reshape(g, x.shape) end or nil,
  })
end
function nn.View:resetSize(...)
  shared.of_sizes.View.set(self, ...)
  return self
end
function nn.View:setNumInputDims(n)
  self.numInputDims = n
  return self
end
nn.Transpose.setNumInputDims = nn.View.setNumInputDims

-- ---- layers with parameters

layer("Linear", "_inputSize# _outputSize# _bias=true", function(x, o) return ops.linear(x, o.weight, o.bias) end, {
  dims = 2, sizes = function(_, i, o, bias) return {weight = {o, i}, bias = bias ~= false and {o} or nil} end,
})
local Lookup = layer("LookupTable", "_nIndex# _nOutput# paddingValue=0 maxNorm normType", function(x, o)
  x = x:to "int64"
  local low, high = ops.amin(x):item(), ops.amax(x):item()
  if low < 1 or high > o.weight:size(1) then
    options.out_of_range("nn.LookupTable", low < 1 and low or high, o.weight:size(1), "rows")
  end
  return F.embedding(x, o.weight, {padding_idx = o.paddingValue > 0 and o.paddingValue or nil,
    scale_grad_by_freq = o.shouldScaleGradByFreq})
end, {
  sizes = function(_, n, size) return {weight = {n, size}} end,
  reset = function(self, std) self.weight:normal(0, std or 1) end,
})
function Lookup:updateOutput(input)
  if self.maxNorm then
    local weight, rows = tensor.raw(self.weight), ops.reshape(tensor.raw(input), {-1}):to "int64"
    local picked = ops.index_select(weight, 1, rows)
    core.methods.index_copy_(weight, 1, rows, core.methods.renorm(picked, self.normType or 2, 1, self.maxNorm))
  end
  return Leaf.updateOutput(self, input)
end
--- Divides the gradient of each row by the number of times that its index is in the input; returns the layer.
function Lookup:scaleGradByFreq()
  self.shouldScaleGradByFreq = true
  return self
end
Lookup.updateGradInput = Leaf.zeroGradInput -- indices have no gradient

-- Returns op(x, p) for a parameter with as many elements as x or a sample of it, or that broadcasts.
local function as_sizes(op, x, p)
  if p:numel() == x:numel() then return op(x, ops.reshape(p, x.shape)) end
  if p.ndim ~= x.ndim and x:numel() == x:size(1) * p:numel() then
    return ops.reshape(op(ops.reshape(x, {x:size(1), -1}), ops.reshape(p, {1, -1})), x.shape)
  end
  return op(x, p)
end
local function of_elements(self) return (self.weight or self.bias):nElement() end
layer("Add", "_inputSize scalar=false", function(x, o)
  return o.scalar and ops.add(x, o.bias) or as_sizes(ops.add, x, o.bias)
end, {
  fan = of_elements, sizes = function(self, n)
    return {bias = {self.scalar and 1 or options.arg("nn.Add", "inputSize", n, "count")}}
  end,
})
layer("Mul", nil, function(x, o) return ops.mul(x, o.weight) end, {sizes = function() return {weight = {1}} end})
for name, row in pairs {CMul = {ops.mul, "weight"}, CAdd = {ops.add, "bias"}} do
  layer(name, nil, function(x, o) return as_sizes(row[1], x, o[row[2]]) end, {
    fan = of_elements, init = function(self, ...) self.size = shared.sizes_of(name, ...) end,
    sizes = function(self) return {[row[2]] = tensor.sizes_from(self.size)} end,
  })
end
layer("Cosine", "_inputSize# _outputSize#", function(x, o)
  return F.linear(F.normalize(x, {dim = -1, eps = 1e-12}), F.normalize(o.weight, {dim = 2, eps = 1e-12}))
end, {dims = 2, sizes = function(_, i, o) return {weight = {o, i}} end})
layer("Euclidean", "_inputSize# _outputSize#", function(x, o)
  return ops.clone(ops.norm(ops.sub(ops.unsqueeze(x, 3), o.weight), 2, {dim = 2}))
end, {
  by_forward = true,
  dims = 2, sizes = function(_, i, o) return {weight = {i, o}} end,
  fan = function(self) return self.weight:size(1) end,
})
layer("PReLU", "nOutputPlane=0", function(x, o)
  local w, sizes = o.weight, {}
  if w:numel() > 1 then
    for d = 1, x.ndim do sizes[d] = d == (x.ndim % 2 == 1 and 1 or 2) and w:numel() or 1 end
    w = ops.reshape(w, sizes)
  end
  return ops.where(ops.gt(x, 0), x, ops.mul(x, w))
end, {
  sizes = function(self) return {weight = {math.max(self.nOutputPlane, 1)}} end,
  reset = function(self) self.weight:fill(0.25) end,
})
layer("Bilinear", "_inputSize1# _inputSize2# _outputSize# _bias=true", function(t, o)
  return F.bilinear(t[1], t[2], o.weight, o.bias)
end, {
  sizes = function(_, a, b, o, bias) return {weight = {o, a, b}, bias = bias ~= false and {o} or nil} end,
  fan = function(self) return self.weight:size(2) end,
})

-- ---- functions of one element, or along a dim

local function abs(x) return ops.where(ops.lt(x, 0), ops.neg(x), x) end -- whose gradient is 1 at 0
for name, f in pairs {ReLU = ops.relu, ReLU6 = ops.relu6, Abs = abs, Log = ops.log, Square = ops.square,
  SoftSign = F.softsign, Contiguous = ops.contiguous} do
  layer(name, name:find "ReLU" and "inplace=false", function(x) return f(x) end)
end
for name, row in pairs {
  Tanh = {ops.tanh, function(y, g) return ops.sub(g, ops.mul_(ops.square(y), g)) end},
  Sigmoid = {ops.sigmoid, function(y, g) return ops.mul_(ops.sub(y, ops.square(y)), g) end},
  Exp = {ops.exp, function(y, g) return ops.mul(y, g) end},
  Sqrt = {ops.sqrt, function(y, g) -- 0 at 0
    return ops.where(ops.eq(y, 0), ops.zeros_like(y), ops.div(g, ops.mul(y, 2)))
  end},
} do
  layer(name, nil, function(x) return row[1](x) end, {of_output = row[2]})
end
layer("CReLU", "nInputDims _inplace", function(x, o)
  return ops.cat({ops.relu(x), ops.relu(ops.neg(x))}, x.ndim > (o.nInputDims or x.ndim) and 2 or 1)
end, {by_forward = true})
for name, f in pairs {LogSigmoid = ops.log_sigmoid, TanhShrink = F.tanhshrink} do
  layer(name, nil, function(x) return f(ops.clone(x)) end, {by_forward = true})
end
for name, row in pairs {
  SoftPlus = {"beta=1 threshold=20", function(x, o) return ops.softplus(x, o.beta, o.threshold) end, function(y, g, o)
    return ops.where(ops.gt(ops.mul(y, o.beta), o.threshold), g, ops.mul(g, ops.neg(ops.expm1(ops.mul(y, -o.beta)))))
  end},
  SoftShrink = {"lambda=0.5", function(x, o) return F.softshrink(x, o.lambda) end},
  HardShrink = {"lambda=0.5", function(x, o) return F.hardshrink(x, o.lambda) end},
  GatedLinearUnit = {"dim=-1", function(x, o) return F.glu(x, o.dim) end},
  LeakyReLU = {"negval=0.01 inplace=false", function(x, o) return ops.leaky_relu(x, o.negval) end},
  Power = {"pow", function(x, o) return ops.pow(x, o.pow) end},
  HardTanh = {"min_val=-1 max_val=1 inplace=false", function(x, o) return ops.clamp_range(x, o.min_val, o.max_val) end},
  Clamp = {"min_val max_val", function(x, o) return ops.clamp_range(x, o.min_val, o.max_val) end},
  Threshold = {"threshold=1e-6 val=0 inplace=false", function(x, o)
    return ops.where(ops.gt(x, o.threshold), x, ops.full_like(x, o.val))
  end},
  ELU = {"alpha=1 inplace=false", function(x, o)
    return ops.add(ops.relu(x), ops.mul(ops.sub(ops.exp(ops.clamp_range(x, -math.huge, 0)), 1), o.alpha))
  end, function(y, g, o) return ops.where(ops.gt(y, 0), g, ops.mul(g, ops.add(y, o.alpha))) end},
  WhiteNoise = {"mean=0 std=0.1", function(x, o)
    if o.train == false then return ops.mul(x, 1) end
    return ops.add(x, ops.add(ops.mul(ops.randn_like(x), o.std), o.mean))
  end},
} do
  layer(name, row[1], row[2], {of_output = row[3]})
end
for name, row in pairs {
  SoftMax = {ops.softmax, ops.softmax_backward, true}, LogSoftMax = {ops.log_softmax, ops.log_softmax_backward, true},
  SpatialSoftMax = {ops.softmax, ops.softmax_backward}, SpatialLogSoftMax = {ops.log_softmax, ops.log_softmax_backward},
  SoftMin = {function(x, d) return ops.softmax(ops.neg(x), d) end,
    function(g, y, d) return ops.softmax_backward(ops.neg(g), y, d) end, true},
} do
  local f, gradient, of_vectors = unpack(row)
  local function dim_of(x) return (x.ndim == 3 or of_vectors and x.ndim == 1) and 1 or 2 end
  layer(name, nil, function(x) return ops.contiguous(f(x, dim_of(x))) end, {
    of_output = function(y, g) return gradient(g, y, dim_of(y)) end,
  })
end

-- Draws o.noise of given sizes by draw(), but not to compute the last forward again.
local function noise_of(o, sizes, draw)
  local noise = o.noise
  if not (o.again and noise and noise.shape == sizes) then
    noise = draw()
    o.noise = noise
  end
  return noise
end
-- Returns a mask of given sizes, each element `scale` (default 1) with probability 1 - p.
local function mask_of(o, sizes, x, scale)
  return noise_of(o, sizes, function()
    return ops.empty(sizes, {dtype = x.dtype, device = x.device}):bernoulli_(1 - o.p):mul_(scale or 1)
  end)
end
local function set_noise(self) self.noise = tensor.new(tensor.default) end
local Dropout = layer("Dropout", "p=0.5 v1=false inplace=false stochastic_inference=false", function(x, o)
  if o.p == 0 or o.train == false and not o.stochastic_inference then return ops.mul(x, o.v2 and 1 or 1 - o.p) end
  return ops.mul(x, mask_of(o, x.shape, x, o.v2 and 1 / (1 - o.p)))
end, {
  init = function(self)
    options.arg("nn.Dropout", "p", self.p, "number")
    if self.p < 0 or self.p >= 1 then options.must_be("nn.Dropout", "p", "a number from 0 to below 1", self.p) end
    self.v2 = not self.v1
    set_noise(self)
  end,
})
function Dropout:setp(p) self.p = p end
-- Drops complete channels at random in training; else multiplies by 1 - p.
for name, dims in pairs {SpatialDropout = 4, VolumetricDropout = 5} do
  layer(name, "p=0.5 stochastic_inference=false", function(x, o)
    if o.train == false and not o.stochastic_inference then return ops.mul(x, 1 - o.p) end
    local sizes = {x:size(1), x:size(2)}
    for d = 3, dims do sizes[d] = 1 end
    return ops.mul(x, mask_of(o, sizes, x))
  end, {dims = dims, init = set_noise}).setp = Dropout.setp
end
layer("RReLU", "lower=0.125 upper=0.3333333333333333 inplace=false", function(x, o)
  if o.train == false or o.upper - o.lower <= 1e-6 then return ops.leaky_relu(x, (o.lower + o.upper) / 2) end
  return ops.mul(x, noise_of(o, x.shape, function()
    return ops.empty_like(x):uniform_(o.lower, o.upper):masked_fill_(ops.gt(x:detach(), 0), 1)
  end))
end, {init = set_noise})
layer("Normalize", "p eps=1e-10", function(x, o)
  local size = o.p == math.huge and ops.add(ops.amax(ops.abs(x), -1, keep), o.eps)
    or ops.pow(ops.add(ops.sum(ops.pow(ops.abs(x), o.p), -1, keep), o.eps), 1 / o.p)
  return ops.div(x, size)
end, {init = function(self)
  if type(self.p) ~= "number" or self.p <= 0 then options.must_be("nn.Normalize", "p", "a number above 0", self.p) end
end})
local OneHot = layer("OneHot", "outputSize#", function(x, o)
  return tensor.as_type(F.one_hot(x:to "int64", o.outputSize), o:type())
end)
function OneHot:updateOutput(input)
  if type(input) ~= "number" then return Leaf.updateOutput(self, input) end
  return Leaf.updateOutput(self, tensor.new("int64", {input})):resize(self.outputSize)
end
function OneHot:updateGradInput(input)
  self.gradInput = type(input) == "number" and 0 or input:clone():zero():type(self:type())
  return self.gradInput
end

-- ---- shapes and positions

layer("Replicate", "nfeatures# dim=1 ndim", function(x, o)
  local d = dim_in(x, o.dim, o.ndim)
  local y = ops.unsqueeze(x, d)
  local shape = {unpack(y.shape)}
  shape[d] = o.nfeatures
  return ops.expand(y, shape)
end)
layer("Padding", "dim pad nInputDim value=0 index=1", function(x, o)
  local d = dim_in(x, o.dim, o.nInputDim)
  local shape, n = {unpack(x.shape)}, x:size(d)
  shape[d] = math.abs(o.pad)
  local fill = ops.full(shape, o.value, {dtype = x.dtype, device = x.device})
  local before = o.pad > 0 and n - o.index + 1 or o.index - 1 -- entries before the padding
  return ops.cat({ops.narrow(x, d, 1, before), fill, ops.narrow(x, d, before + 1, n - before)}, d)
end)
layer("Collapse", "nInputDim", function(x, o)
  return ops.reshape(x, x.ndim > o.nInputDim and {x:size(1), -1} or {-1})
end)
layer("Constant", "value nInputDim", function(x, o)
  local y = o.value
  if o.nInputDim and x.ndim > o.nInputDim then y = ops.expand(y, {x:size(1), unpack(y.shape)}) end
  return ops.clone(y):to(x.dtype)
end, {init = function(self)
  if not tensor.is(self.value) then self.value = tensor.new(tensor.default, {self.value}) end
end})
layer("PixelShuffle", "upscaleFactor#", function(x, o) return F.pixel_shuffle(x, o.upscaleFactor) end, {dims = 4})

-- ---- layers of tables

local function transposed_if(x, on) return on and ops.transpose(x, -1, -2) or x end
local function at_least_1d(y) return y.ndim == 0 and ops.unsqueeze(y, 1) or y end
local function sum_of(a, b) return ops.sum(ops.mul(a, b), -1) end
for name, row in pairs {
  MM = {"transA=false transB=false", function(t, o)
    return ops.matmul(transposed_if(t[1], o.transA), transposed_if(t[2], o.transB))
  end},
  MV = {"trans=false", function(t, o)
    return ops.squeeze(ops.matmul(transposed_if(t[1], o.trans), ops.unsqueeze(t[2], -1)), -1)
  end},
  DotProduct = {nil, function(t) return sum_of(t[1], t[2]) end},
  Index = {"dimension#", function(t, o) return ops.index_select(t[1], o.dimension, t[2]:to "int64") end},
  MaskedSelect = {nil, function(t) return t[1]:masked_select(t[2]:to "bool") end},
  CosineDistance = {nil, function(t)
    local squares = ops.mul(ops.add(sum_of(t[1], t[1]), 1e-12), ops.add(sum_of(t[2], t[2]), 1e-12))
    return at_least_1d(ops.div(sum_of(t[1], t[2]), ops.sqrt(squares)))
  end},
  PairwiseDistance = {"norm=2", function(t, o)
    return at_least_1d(ops.norm(ops.sub(t[1], t[2]), o.norm, {dim = -1}))
  end},
  -- Takes {gates, experts}: sums the experts, a table or a tensor with them along dim, weighted by their gates.
  MixtureTable = {"dim", function(t, o)
    local gates, experts, at, shape = t[1], t[2], o.dim or t[1].ndim, {}
    if type(experts) == "table" then experts = ops.stack(experts, at) end
    for d = 1, experts.ndim do shape[d] = d == 1 and gates.ndim > 1 and gates:size(1) or 1 end
    shape[at] = gates:size(gates.ndim)
    return ops.sum(ops.mul(experts, ops.reshape(gates, shape)), at)
  end},
  CAddTensorTable = {nil, function(t) return lists.map(t[2], function(v) return ops.add(v, t[1]) end) end},
  ZipTable = {nil, function(t)
    return lists.map(t[1], function(_, i)
      return lists.map(t, function(list) return list[i] end)
    end)
  end},
  ZipTableOneToMany = {nil, function(t) return lists.map(t[2], function(v) return {t[1], v} end) end},
} do
  layer(name, row[1], row[2])
end

-- ---- layers that change only the gradient

local function same_input(_, x) return x end
local function same_gradient(_, _, g) return g end
define("Identity", "Module", nil, same_input, same_gradient)
define("ZeroGrad", "Module", nil, same_input, function(_, x) return x:clone():zero() end)
define("GradientReversal", "Module", function(self, lambda) self.lambda = lambda or 1 end, same_input,
  function(self, _, g) return g * -self.lambda end).setLambda = function(self, lambda) self.lambda = lambda end
define("L1Penalty", "Module", function(self, weight, average, keeps)
  self.l1weight, self.sizeAverage, self.provideOutput = weight, average or false, keeps ~= false
end, function(self, x)
  self.loss = x:norm(1) * self.l1weight / (self.sizeAverage and x:nElement() or 1)
  return x
end, function(self, x, g)
  local own = tensor.functions.sign(x) * (self.l1weight / (self.sizeAverage and x:nElement() or 1))
  return self.provideOutput and own + g or own
end)
define("PrintSize", "Module", function(self, prefix) self.prefix = prefix or "PrintSize" end, function(self, x)
  print(("%s: %s of size %s"):format(self.prefix, class.type(x), tensor.is(x) and table.concat(tensor.raw(x).shape, "x")
    or #x))
  return x
end, same_gradient)

-- ---- layers that choose entries of a table

-- Returns zeros in the form of v, except for the entry `key` of a table, which is g.
local function zeros(v, key, g)
  if tensor.is(v) then return v:clone():zero() end
  if type(v) ~= "table" then return v end
  local out = {}
  for k, each in pairs(v) do
    if k == key then out[k] = g else out[k] = zeros(each) end
  end
  return out
end
local function entry(self, x)
  return type(self.index) == "number" and self.index < 0 and #x + self.index + 1 or self.index
end
define("SelectTable", "Module", function(self, index) self.index = index end, function(self, x)
  local v = x[entry(self, x)]
  if v == nil then options.fail("nn.SelectTable: the table has no entry %s", tostring(self.index)) end
  return v
end, function(self, x, g) return zeros(x, entry(self, x), g) end)
-- Appends the values in a nested table to a list; returns their numbers, nested as the values.
local function flatten_into(list, v)
  if type(v) == "table" then return lists.map(v, function(each) return flatten_into(list, each) end) end
  list[#list + 1] = v
  return #list
end
local function same_form(a, b)
  if type(a) ~= "table" or type(b) ~= "table" then return a == b end
  for i = 1, math.max(#a, #b) do if not same_form(a[i], b[i]) then return false end end
  return true
end
define("FlattenTable", "Module", function(self) self.output, self.input_map = {}, {} end, function(self, x)
  local list = {}
  local map = flatten_into(list, x)
  if same_form(list, self.output) and same_form(map, self.input_map) then return self.output end
  self.input_map = map
  return list
end, function(self, _, g)
  local function nested(at) return type(at) == "table" and lists.map(at, nested) or g[at] end
  return nested(self.input_map)
end)

--- Defines Torch7's layers of one tensor or of a table, except those over windows.
local core = require "luminary.core"
local lists = require "luminary.base.lists"
local options = require "luminary.base.options"
local class = require "luminary.torch7.class"
local tensor = require "luminary.torch7.tensor"
local Leaf = require "luminary.torch7.nn.leaf"
local ours = require "luminary.nn"
local meta = require "luminary.nn.meta"
local ops, F = core.ops, ours.functional
local layer, computed, around, with, nn = Leaf.layer, Leaf.computed, Leaf.around, Leaf.with, class.packages.nn

layer("Linear", function(i, o, bias) return ours.Linear(i, o, {bias = bias ~= false}), 2 end)
layer("LookupTable", function(n, size)
  local module = around(function(x, self, of)
    x = x:to "int64"
    local low, high = ops.amin(x):item(), ops.amax(x):item()
    if low < 1 or high > self.weight:size(1) then
      options.out_of_range("nn.LookupTable", low < 1 and low or high, self.weight:size(1), "rows")
    end
    local padding = of.paddingValue or 0
    return F.embedding(x, self.weight, {padding_idx = padding > 0 and padding or nil})
  end)
  module.weight = ours.init.normal_(ours.Parameter(meta.empty {n, size}))
  return module
end, "_ _ paddingValue=0 maxNorm normType")
local Lookup = class.by_name["nn.LookupTable"]
function Lookup:updateOutput(input)
  if self.maxNorm then
    local weight, rows = tensor.raw(self.weight), ops.reshape(tensor.raw(input), {-1}):to "int64"
    local picked = ops.index_select(weight, 1, rows)
    core.methods.index_copy_(weight, 1, rows, core.methods.renorm(picked, self.normType or 2, 1, self.maxNorm))
  end
  return Leaf.updateOutput(self, input)
end

--- Returns zeros, since indices have no gradient.
function Lookup:updateGradInput(input)
  self.gradInput = input:clone():zero()
  return self.gradInput
end

-- Draws self.noise of given sizes, each element 1 with probability 1 - p, but not to compute the last forward again.
local function noise_of(self, sizes, x)
  if not self.again or not tensor.is(self.noise) then
    self.noise = tensor.wrap(ops.empty(sizes, {dtype = x.dtype, device = x.device}):bernoulli_(1 - self.p))
  end
  return tensor.raw(self.noise)
end
layer("Dropout", function(p)
  if p and (p < 0 or p >= 1) then options.must_be("nn.Dropout", "p", "a number from 0 to below 1", p) end
  return around(function(x, _, of)
    if of.p == 0 or of.train == false and not of.stochastic_inference then
      return ops.mul(x, of.v2 and 1 or 1 - of.p)
    end
    return ops.mul(x, ops.div(noise_of(of, x.shape, x), of.v2 and 1 - of.p or 1))
  end)
end, "p=0.5 v1=false inplace=false stochastic_inference=false")
local Dropout = class.by_name["nn.Dropout"]
local init_dropout = Dropout.__init
function Dropout:__init(...)
  init_dropout(self, ...)
  self.v2, self.noise = not self.v1, tensor.new(tensor.default)
end
function Dropout:setp(p) self.p = p end

for name, f in pairs {Tanh = ops.tanh, Sigmoid = ops.sigmoid, ReLU = ops.relu, ReLU6 = ops.relu6, Abs = ops.abs,
  Exp = ops.exp, Log = ops.log, Square = ops.square, LogSigmoid = ops.log_sigmoid,
  SoftPlus = ops.softplus} do
  computed(name, function(x) return f(x) end, nil, name:find "ReLU" and "inplace=false" or nil)
end
-- Defines nn.name(…), which computes f(x, layer) from the layer's fields.
local function of_fields(name, fields, f, dims)
  return layer(name, function() return around(function(x, _, of) return f(x, of) end), dims end, fields)
end
-- The gradient of the root is 0 at 0, as in Torch7.
of_fields("Sqrt", "", function(x)
  return ops.where(ops.eq(x, 0), ops.mul(x, 0), ops.sqrt(ops.where(ops.eq(x, 0), ops.ones_like(x), x)))
end)
of_fields("LeakyReLU", "negval=0.01 inplace=false", function(x, o) return ops.leaky_relu(x, o.negval) end)
of_fields("Power", "pow", function(x, o) return ops.pow(x, o.pow) end)
of_fields("HardTanh", "min_val=-1 max_val=1 inplace=false", function(x, o)
  return ops.clamp_range(x, o.min_val, o.max_val)
end)
of_fields("Clamp", "min_val max_val", function(x, o) return ops.clamp_range(x, o.min_val, o.max_val) end)
of_fields("Threshold", "threshold=1e-6 val=0 inplace=false", function(x, o)
  return ops.where(ops.gt(x, o.threshold), x, ops.full_like(x, o.val))
end)
of_fields("AddConstant", "constant_scalar inplace=false", function(x, o)
  return ops.add(x, tensor.is(o.constant_scalar) and tensor.raw(o.constant_scalar) or o.constant_scalar)
end)
of_fields("MulConstant", "constant_scalar inplace=false", function(x, o)
  return ops.mul(x, tensor.is(o.constant_scalar) and tensor.raw(o.constant_scalar) or o.constant_scalar)
end)
class.by_name["nn.AddConstant"].restores, class.by_name["nn.MulConstant"].restores = true, true
for name, f in pairs {SoftMax = ops.softmax, LogSoftMax = ops.log_softmax} do
  computed(name, function(x) return ops.contiguous(f(x, (x.ndim == 1 or x.ndim == 3) and 1 or 2)) end)
end
layer("MM", function(transA, transB)
  return around(function(t)
    return ops.matmul(transA and ops.transpose(t[1], -1, -2) or t[1], transB and ops.transpose(t[2], -1, -2) or t[2])
  end)
end)
computed("DotProduct", function(t) return ops.sum(ops.mul(t[1], t[2]), -1) end)

for name, fields in pairs {
  CAddTable = "inplace=false", CMulTable = "", CSubTable = "", CDivTable = "", CMaxTable = "", CMinTable = "",
  JoinTable = "dimension nInputDims", SplitTable = "dimension nInputDims",
  NarrowTable = "offset length=1", Transpose = "", Squeeze = "dim numInputDims",
} do
  layer(name, function(first, ...)
    if type(first) == "boolean" or first == nil then return ours[name]() end -- CAddTable(inplace)
    return ours[name](first, ...)
  end, fields)
end
local Transpose, init_transpose = class.by_name["nn.Transpose"], class.by_name["nn.Transpose"].__init
function Transpose:__init(...)
  init_transpose(self, ...)
  self.permutations = {...}
end

-- Returns the dim of x for a sample's dim: one more if x has more than `dims` dims; negative ones count from the end.
local function dim_in(x, dim, dims)
  if dim < 0 then return x.ndim + dim + 1 end
  return dims and x.ndim > dims and dim + 1 or dim
end
for name, f in pairs {
  Select = function(x, d, o) return ops.select(x, d, o.index < 0 and x:size(d) + o.index + 1 or o.index) end,
  Narrow = function(x, d, o)
    local length, first = o.length, o.index
    if first < 0 then -- all but the last `length`
      return ops.narrow(x, d, 1, x:size(d) - length)
    end
    if length < 0 then length = x:size(d) - first + length + 2 end
    return ops.narrow(x, d, first, length)
  end,
} do
  of_fields(name, name == "Select" and "dimension index" or "dimension index length=1", function(x, o)
    return f(x, dim_in(x, o.dimension, nil), o)
  end)
end
-- Defines a layer that reduces a dim, which is removed unless `squeeze` is false.
local function reduces(name, fields, f)
  of_fields(name, fields, function(x, o)
    local d = dim_in(x, o.dimension or o.dim, o.nInputDims)
    local y = f(x, d, o)
    return o.squeeze ~= false and y.ndim > 1 and ops.squeeze(y, d) or y
  end)
end
of_fields("Unsqueeze", "pos numInputDims", function(x, o)
  return ops.unsqueeze(x, o.pos + (o.numInputDims and x.ndim - o.numInputDims or 0))
end)
of_fields("Contiguous", "", function(x) return ops.contiguous(x) end)
local keep = {keepdim = true}
reduces("Sum", "dimension=1 nInputDims sizeAverage=false squeeze=true", function(x, d, o)
  return (o.sizeAverage and ops.mean or ops.sum)(x, d, keep)
end)
reduces("Mean", "dimension=1 nInputDims squeeze=true", function(x, d) return ops.mean(x, d, keep) end)
reduces("Max", "dim=1 nInputDims", function(x, d) return (core.max(x, d, keep)) end)
reduces("Min", "dim=1 nInputDims", function(x, d) return (core.min(x, d, keep)) end)

-- Returns the sizes among arguments, which may be a list or a LongStorage, and the product of those that are not -1.
local function sizes_given(...)
  local first = ...
  local sizes = type(first) ~= "number" and first ~= nil and (type(first) == "table" and lists.slice(first)
    or first:totable()) or {...}
  local n = 1
  for i, size in ipairs(sizes) do
    options.arg("nn.View", "size " .. i, size, "integer")
    if size >= 0 then n = n * size end
  end
  return sizes, n
end
local View = layer("View", function(...)
  sizes_given(...)
  return around(function(x, _, of)
    local sizes, dims, inside = sizes_given(of.size), of.numInputDims or x.ndim, 1
    for d = math.max(1, x.ndim - dims + 1), x.ndim do inside = inside * x:size(d) end
    local batch = inside / of.numElements
    if batch % 1 ~= 0 then
      options.fail("nn.View: cannot view an input of shape [%s] as sizes [%s]", table.concat(x.shape, ", "),
        table.concat(sizes, ", "))
    end
    if lists.index_of(sizes, -1) then batch = 1 end
    for d = 1, x.ndim - dims do batch = batch * x:size(d) end
    if batch == 1 and (not of.numInputDims or x.ndim <= of.numInputDims) then return ops.reshape(x, sizes) end
    return ops.reshape(x, {batch, unpack(sizes)})
  end)
end)
local init_view = View.__init
function View:__init(...)
  init_view(self, ...)
  self:resetSize(...)
end
--- Changes the sizes of the output.
function View:resetSize(...)
  local sizes, n = sizes_given(...)
  self.size, self.numElements = tensor.sizes(sizes), n
  return self
end
function View:setNumInputDims(n)
  self.numInputDims = n
  return self
end
local Reshape = layer("Reshape", function()
  return around(function(x, _, of)
    local sizes, n, mode = sizes_given(of.size), of.nelement, of.batchMode
    if mode == false or mode == nil and x:numel() == n and x:size(1) ~= 1 then return ops.reshape(x, sizes) end
    return ops.reshape(x, {x:size(1), unpack(sizes)})
  end)
end)
local init_reshape = Reshape.__init
function Reshape:__init(...)
  init_reshape(self, ...)
  local given = {...}
  if type(given[#given]) == "boolean" then self.batchMode = table.remove(given) end
  self.size, self.nelement = sizes_given(unpack(given))
  self.size = tensor.sizes(self.size)
end

-- ---- layers with parameters

local function sizes_of(...)
  local first = ...
  local sizes = type(first) == "table" and lists.slice(first) or {...}
  return sizes, lists.product(sizes)
end

-- Returns op(x, p) for a parameter with as many elements as x or a sample of it, or that broadcasts.
local function as_sizes(op, x, p)
  if p:numel() == x:numel() then return op(x, ops.reshape(p, x.shape)) end
  if p.ndim ~= x.ndim and x:numel() == x:size(1) * p:numel() then
    return ops.reshape(op(ops.reshape(x, {x:size(1), -1}), ops.reshape(p, {1, -1})), x.shape)
  end
  return op(x, p)
end
layer("Add", function(n, scalar)
  return with({bias = {scalar and 1 or n}}, n, function(x, self)
    return scalar and ops.add(x, self.bias) or as_sizes(ops.add, x, self.bias)
  end)
end)
layer("Mul", function() return with({weight = {1}}, 1, function(x, self) return ops.mul(x, self.weight) end) end)
layer("CMul", function(...)
  local sizes, count = sizes_of(...)
  return with({weight = sizes}, count, function(x, self) return as_sizes(ops.mul, x, self.weight) end)
end)
layer("CAdd", function(...)
  local sizes, count = sizes_of(...)
  return with({bias = sizes}, count, function(x, self) return as_sizes(ops.add, x, self.bias) end)
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
layer("PReLU", function(n)
  local module = around(function(x, self)
    local w, sizes = self.weight, {}
    if w:numel() > 1 then
      local at = x.ndim % 2 == 1 and 1 or 2
      for d = 1, x.ndim do sizes[d] = d == at and w:numel() or 1 end
      w = ops.reshape(w, sizes)
    end
    return ops.add(ops.relu(x), ops.mul(w, ops.clamp_range(x, -math.huge, 0)))
  end)
  module.weight = ours.init.constant_(ours.Parameter(meta.empty {n and n > 0 and n or 1}), 0.25)
  return module
end, "nOutputPlane=0")
layer("Bilinear", function(i1, i2, o, bias)
  local made = ours.Bilinear(i1, i2, o, {bias = bias ~= false})
  local module = around(function(t, self) return F.bilinear(t[1], t[2], self.weight, self.bias) end)
  module.weight, module.bias = made.weight, made.bias
  return module
end)

-- ---- functions of one element, or along a dim

computed("SoftSign", function(x) return F.softsign(x) end)
computed("TanhShrink", function(x) return F.tanhshrink(x) end)
of_fields("ELU", "alpha=1 inplace=false", function(x, o)
  return ops.add(ops.relu(x), ops.mul(ops.sub(ops.exp(ops.clamp_range(x, -math.huge, 0)), 1), o.alpha))
end)
of_fields("RReLU", "lower upper inplace=false", function(x, o)
  if o.train == false then return ops.leaky_relu(x, (o.lower + o.upper) / 2) end
  if not o.again or not tensor.is(o.noise) then
    o.noise = tensor.wrap(ops.empty_like(x):uniform_(o.lower, o.upper))
    o.noise:raw():masked_fill_(ops.gt(x:detach(), 0), 1)
  end
  return ops.mul(x, tensor.raw(o.noise))
end)
local RReLU = class.by_name["nn.RReLU"]
RReLU.lower, RReLU.upper = 1 / 8, 1 / 3
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
for name, dims in pairs {SpatialDropout = 4, VolumetricDropout = 5} do
  of_fields(name, "p=0.5 stochastic_inference=false", function(x, o)
    if o.train == false and not o.stochastic_inference then return ops.mul(x, 1 - o.p) end
    local sizes = {x:size(1), x:size(2)}
    for d = 3, dims do sizes[d] = 1 end
    return ops.mul(x, noise_of(o, sizes, x))
  end, dims).setp = Dropout.setp
end
of_fields("WhiteNoise", "mean=0 std=0.1", function(x, o)
  if o.train == false then return ops.mul(x, 1) end
  return ops.add(x, ops.add(ops.mul(ops.randn_like(x), o.std), o.mean))
end)
computed("OneHot", function(x, n) return F.one_hot(x:to "int64", n):to(tensor.default) end, nil, "outputSize")
local OneHot = class.by_name["nn.OneHot"]
function OneHot:updateOutput(input)
  if type(input) ~= "number" then return Leaf.updateOutput(self, input) end
  return Leaf.updateOutput(self, tensor.new("int64", {input})):resize(self.outputSize)
end
function OneHot:updateGradInput(input)
  self.gradInput = type(input) == "number" and 0 or input:clone():zero():type(self:type())
  return self.gradInput
end

-- ---- shapes and positions

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
passes("Identity", function() end, function(_, _, g) return g end)

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
passes("SelectTable", function(self, index) self.index = index end, function(self, x, g)
  return zeros(x, entry(self, x), g)
end).updateOutput = function(self, x)
  self.output = x[entry(self, x)]
  if self.output == nil then options.fail("nn.SelectTable: the table has no entry %s", tostring(self.index)) end
  return self.output
end
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
passes("FlattenTable", function(self) self.output, self.input_map = {}, {} end, function(self, _, g)
  local function nested(at) return type(at) == "table" and lists.map(at, nested) or g[at] end
  return nested(self.input_map)
end).updateOutput = function(self, x)
  local list = {}
  local map = flatten_into(list, x)
  if not (same_form(list, self.output) and same_form(map, self.input_map)) then
    self.output, self.input_map = list, map
  end
  return self.output
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

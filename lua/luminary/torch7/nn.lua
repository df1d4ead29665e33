--- Torch7's nn: modules with forward, backward, gradInput and gradWeight. A layer runs luminary's layer under autograd
--- on its input, and its backward goes through what that recorded; containers call their modules as in Torch7, so that
--- classes of one's own with updateOutput, updateGradInput and accGradParameters fit in anywhere.
local core = require "luminary.core"
local options = require "luminary.base.options"
local class = require "luminary.torch7.class"
local tensor = require "luminary.torch7.tensor"
local ours = require "luminary.nn"
local fail, ops = options.fail, core.ops
local wrap, raw = tensor.wrap, tensor.raw

local nn = class.packages.nn

-- ---- nn.Module

local Module = class.new "nn.Module"

function Module:__init()
  self.gradInput, self.output, self.train = tensor.new(tensor.default), tensor.new(tensor.default), true
end

function Module:parameters()
  if not self.weight and not self.bias then return {}, {} end
  local params, grads = {}, {}
  for _, name in ipairs {"weight", "bias"} do
    if self[name] then
      params[#params + 1], grads[#grads + 1] = self[name], self["grad" .. name:gsub("^%l", string.upper)]
    end
  end
  return params, grads
end

function Module:updateOutput() return self.output end
function Module:updateGradInput() return self.gradInput end
function Module:accGradParameters() end -- luacheck: ignore self
function Module:forward(input) return self:updateOutput(input) end
Module.__call = function(self, input) return self:forward(input) end

function Module:backward(input, gradOutput, scale)
  self:updateGradInput(input, gradOutput)
  self:accGradParameters(input, gradOutput, scale or 1)
  return self.gradInput
end

function Module:children() return self.modules or {} end

function Module:apply(f)
  f(self)
  for _, child in ipairs(self:children()) do child:apply(f) end
  return self
end

local function set_train(on)
  return function(self)
    return self:apply(function(m)
      m.train = on
      if m.inner then m.inner:train(on) end
    end)
  end
end
Module.training, Module.evaluate = set_train(true), set_train(false)

function Module:zeroGradParameters()
  local _, grads = self:parameters()
  for _, g in ipairs(grads) do g:zero() end
end

function Module:updateParameters(rate)
  local params, grads = self:parameters()
  for i, p in ipairs(params) do p:add(-rate, grads[i]) end
end

--- x, dx = net:getParameters(): all parameters and all gradients as one vector each, of which they are views from then
--- on.
function Module:getParameters()
  local params, grads = self:parameters()
  if #params == 0 then fail("getParameters: there are no parameters") end
  local vectors = {}
  for k, list in ipairs {params, grads} do
    local seen, parts, n = {}, {}, 0
    for _, t in ipairs(list) do
      if not seen[t] then
        parts[#parts + 1], seen[t], n = t, true, n + t:nElement()
      end
    end
    local flat, first = params[1].new(params[1], n), 1
    for _, t in ipairs(parts) do
      local place = flat:narrow(1, first, t:nElement()):viewAs(t)
      place:copy(t)
      t:set(place)
      first = first + t:nElement()
    end
    vectors[k] = flat
  end
  self:apply(function(m)
    if m.inner then m:adopt() end
  end)
  return vectors[1], vectors[2]
end

local function copy_of(v, made)
  if made[v] then return made[v] end
  if tensor.is(v) then
    made[v] = v:clone()
  elseif type(v) == "userdata" and ours.Module.is_module(v) then
    made[v] = v:clone()
  elseif type(v) == "table" and (getmetatable(v) == nil or class.isTypeOf(v, "nn.Module")) then
    local new = setmetatable({}, getmetatable(v))
    made[v] = new
    for key, each in pairs(v) do
      if key ~= "taped" then new[key] = copy_of(each, made) end
    end
  else
    return v
  end
  return made[v]
end

--- A copy with parameters of its own, but for those whose names are given, "weight", "gradWeight", …, which both share.
function Module:clone(...)
  local twin = copy_of(self, {})
  local theirs, names = self:listModules(), {...}
  for i, m in ipairs(twin:listModules()) do
    for _, name in ipairs(names) do
      if tensor.is(rawget(m, name)) then m[name]:set(theirs[i][name]) end
    end
    if m.inner then m:adopt() end
  end
  return twin
end

function Module:listModules()
  local list = {self}
  for _, child in ipairs(self:children()) do
    for _, m in ipairs(child:listModules()) do list[#list + 1] = m end
  end
  return list
end

function Module:findModules(name)
  local found = {}
  for _, m in ipairs(self:listModules()) do
    if class.typename(m) == name then found[#found + 1] = m end
  end
  return found
end

function Module:clearState()
  return self:apply(function(m) m.output, m.gradInput, m.taped = tensor.new "float32", tensor.new "float32", nil end)
end

function Module:type(name)
  if name == nil then
    local first = self:parameters()[1]
    return first and first:type() or "torch." .. (tensor.default == "float64" and "DoubleTensor" or "FloatTensor")
  end
  return self:apply(function(m)
    for _, v in pairs(m) do
      if tensor.is(v) and not v:type():find "Long" then v:set(v:type(name)) end
    end
    if not m.inner then return end
    m.inner:to(name == "torch.CudaTensor" and "cuda" or tensor.dtype_of(name))
    if name == "torch.CudaTensor" then m.inner:to "float32" end
    m:adopt()
  end)
end
for name, kind in pairs {float = "FloatTensor", double = "DoubleTensor", cuda = "CudaTensor"} do
  Module[name] = function(self) return self:type("torch." .. kind) end
end

-- ---- layers over luminary's

local Leaf = class.new("nn.Leaf", "nn.Module")

-- weight, bias and their gradients, and running values, over the memory of the layer inside.
function Leaf:attach(inner)
  self.inner = inner:is(ours.Module) and inner:to(tensor.default) or inner
  for name, p in inner:named_parameters() do
    self[name] = wrap(p.data)
    self["grad" .. name:gsub("^%l", string.upper)] = wrap(ops.zeros_like(p.data))
  end
  for name, b in inner:named_buffers() do
    if core.is_floating_point(b) then self[name] = wrap(b) end
  end
  return self
end

-- The layer inside takes what weight, bias and running values have become.
function Leaf:adopt()
  for name, p in self.inner:named_parameters() do p.data = raw(self[name]) end
  for name, b in self.inner:named_buffers() do
    if self[name] then self[name]:set(wrap(b)) end
  end
end

-- The input as leaves of a graph of its own, and all of them in a list.
local function leaves(input, list)
  if type(input) == "table" then
    local out = {}
    for i, v in ipairs(input) do out[i] = leaves(v, list) end
    return out
  end
  local x = raw(input, "forward"):detach()
  if core.is_floating_point(x) then
    x:requires_grad_()
    list[#list + 1] = x
  end
  return x
end

function Leaf:updateOutput(input)
  local list, params = {}, self.inner:parameters()
  local dims, single = self.dims, false
  local output = core.enable_grad(function()
    local x = leaves(input, list)
    single = dims and x.ndim == dims - 1
    local y = self.inner(single and ops.unsqueeze(x, 1) or x)
    return single and ops.squeeze(y, 1) or y
  end)
  self.taped = {inputs = list, params = params, output = output, n = #list}
  self.output = tensor.wrap_all(output)
  return self.output
end

-- Adds the gradients of pairs of outputs and their weights into `into`.
local function flatten(output, weight, outputs, weights)
  if type(output) == "table" then
    for i, y in ipairs(output) do flatten(y, weight[i], outputs, weights) end
  elseif output.requires_grad then
    outputs[#outputs + 1] = output
    weights[#weights + 1] = raw(weight, "backward"):to(output.dtype):reshape(output.shape)
  end
end

-- What the backward of the last forward gives: for the inputs, and for the parameters.
local function gradients(self, gradOutput)
  local taped = self.taped or fail("%s: backward comes after forward", class.typename(self))
  local outputs, weights, wanted = {}, {}, {}
  flatten(taped.output, gradOutput, outputs, weights)
  for _, x in ipairs(taped.inputs) do wanted[#wanted + 1] = x end
  for _, p in ipairs(taped.params) do wanted[#wanted + 1] = p end
  if #wanted == 0 or #outputs == 0 then return {} end
  return core.grad(outputs, wanted, {grad_outputs = weights, retain_graph = true, allow_unused = true})
end

-- The gradients in the form of the input.
local function as_input(input, grads, taped, at)
  if type(input) == "table" then
    local out = {}
    for i, v in ipairs(input) do out[i] = as_input(v, grads, taped, at) end
    return out
  end
  if not core.is_floating_point(raw(input)) then return wrap(ops.zeros_like(raw(input))) end
  at.i = at.i + 1
  local g = grads[at.i]
  return wrap(g or ops.zeros_like(taped.inputs[at.i]))
end

function Leaf:updateGradInput(input, gradOutput)
  local grads = gradients(self, gradOutput)
  self.taped.grads, self.taped.gradOutput = grads, gradOutput -- which accGradParameters takes
  self.gradInput = as_input(input, grads, self.taped, {i = 0})
  return self.gradInput
end

function Leaf:accGradParameters(_, gradOutput, scale)
  local taped = self.taped
  local grads = taped and taped.gradOutput == gradOutput and taped.grads or gradients(self, gradOutput)
  local i = self.taped.n
  for name in self.inner:named_parameters() do
    i = i + 1
    if grads[i] then
      raw(self["grad" .. name:gsub("^%l", string.upper)]):add_(grads[i], {alpha = scale or 1})
    end
  end
  self.taped.grads = nil -- the next may be of other values in the same gradOutput
end

Leaf.__tostring = function(self) return class.typename(self) end

local pair_of = function(w, h) return {h or w, w} end -- Torch7 has the width first

-- nn.name(…): make(…) gives luminary's layer, and how many dims its input has in a batch where a sample alone is taken
-- too.
local function layer(name, make)
  local new = class.new("nn." .. name, "nn.Leaf")
  function new:__init(...)
    Module.__init(self)
    local inner, dims = make(...)
    self.dims = dims
    self:attach(inner)
  end
  return new
end

-- A module of luminary's around a function.
local function around(f)
  local Around = ours.Module:extend "Around"
  function Around:forward(x) return f(x, self) end -- luacheck: ignore self
  return Around()
end

layer("Linear", function(i, o, bias) return ours.Linear(i, o, {bias = bias ~= false}), 2 end)
local function convolution(i, o, kW, kH, dW, dH, padW, padH)
  return ours.Conv2d(i, o, pair_of(kW, kH), {stride = pair_of(dW or 1, dH or 1),
    padding = pair_of(padW or 0, padH or padW or 0)}), 4
end
layer("SpatialConvolution", convolution)
layer("SpatialConvolutionMM", convolution)

-- weight [in, out, kH, kW], as the transposed convolution of luminary's has it.
local Full = ours.Module:extend "FullConvolution"
function Full:init(i, o, kernel, stride, padding, more)
  local bound = 1 / math.sqrt(i * kernel[1] * kernel[2])
  self.weight = ours.Parameter(ops.empty {i, o, unpack(kernel)})
  self.bias = ours.Parameter(ops.empty {o})
  for _, p in ipairs(self:parameters()) do ours.init.uniform_(p, -bound, bound) end
  self.kernel, self.more, self.how = kernel, more, {stride = stride, padding = padding}
end
function Full:forward(x)
  local shape = {x:size(1), self.weight:size(2)}
  for k = 1, 2 do
    shape[k + 2] = (x:size(k + 2) - 1) * self.how.stride[k] - 2 * self.how.padding[k] + self.kernel[k] + self.more[k]
  end
  return ops.add(ops.conv2d_input(x, self.weight, shape, self.how), self.bias:view {-1, 1, 1})
end
layer("SpatialFullConvolution", function(i, o, kW, kH, dW, dH, padW, padH, adjW, adjH)
  return Full(i, o, pair_of(kW, kH), pair_of(dW or 1, dH or 1), {padH or 0, padW or 0}, {adjH or 0, adjW or 0}), 4
end)
layer("SpatialZeroPadding", function(left, right, top, bottom)
  return around(function(x) return ops.pad(x, {left, right or left, top or left, bottom or left}) end)
end)
layer("SpatialUpSamplingNearest", function(scale)
  return around(function(x)
    local n, c, h, w = unpack(x.shape)
    return ops.reshape(ops.expand(ops.reshape(x, {n, c, h, 1, w, 1}), {n, c, h, scale, w, scale}),
      {n, c, h * scale, w * scale})
  end), 4
end)

local function pooling(name, make)
  local new = layer(name, make)
  function new:ceil()
    self.inner.ceil_mode = true
    if self.inner.how then self.inner.how.ceil_mode = true end
    return self
  end
end
pooling("SpatialMaxPooling", function(kW, kH, dW, dH, padW, padH)
  return ours.MaxPool2d(pair_of(kW, kH), {stride = pair_of(dW or kW, dH or dW or kH or kW),
    padding = pair_of(padW or 0, padH or 0)}), 4
end)
pooling("SpatialAveragePooling", function(kW, kH, dW, dH, padW, padH)
  return ours.AvgPool2d(pair_of(kW, kH), {stride = pair_of(dW or 1, dH or 1),
    padding = pair_of(padW or 0, padH or 0)}), 4
end)
for name, kind in pairs {BatchNormalization = "BatchNorm1d", SpatialBatchNormalization = "BatchNorm2d",
  VolumetricBatchNormalization = "BatchNorm3d"} do
  layer(name, function(n, eps, momentum, affine)
    return ours[kind](n, {eps = eps or 1e-5, momentum = momentum or 0.1, affine = affine ~= false})
  end)
end
layer("LookupTable", function(n, size) return ours.Embedding(n, size) end)
layer("Dropout", function(p) return ours.Dropout(p or 0.5) end)

for name, f in pairs {Tanh = ops.tanh, Sigmoid = ops.sigmoid, ReLU = ops.relu, ReLU6 = ops.relu6, Abs = ops.abs,
  Exp = ops.exp, Log = ops.log, Sqrt = ops.sqrt, Square = ops.square, LogSigmoid = ops.log_sigmoid,
  SoftPlus = ops.softplus} do
  layer(name, function() return around(function(x) return f(x) end) end)
end
layer("LeakyReLU", function(slope) return ours.LeakyReLU(slope or 0.01) end)
layer("Power", function(p) return around(function(x) return ops.pow(x, p) end) end)
layer("Clamp", function(low, high) return around(function(x) return ops.clamp_range(x, low, high) end) end)
layer("HardTanh", function(low, high)
  return around(function(x) return ops.clamp_range(x, low or -1, high or 1) end)
end)
layer("Threshold", function(at, value)
  return around(function(x)
    return ops.where(ops.gt(x, at or 1e-6), x, ops.full_like(x, value or 0))
  end)
end)
for name, f in pairs {SoftMax = ops.softmax, LogSoftMax = ops.log_softmax} do
  layer(name, function() return around(function(x) return f(x, (x.ndim == 1 or x.ndim == 3) and 1 or 2) end) end)
end
layer("MM", function() return around(function(t) return ops.matmul(t[1], t[2]) end) end)
layer("DotProduct", function() return around(function(t) return ops.sum(ops.mul(t[1], t[2]), -1) end) end)

for _, name in ipairs {
  "CAddTable", "CMulTable", "CSubTable", "CDivTable", "CMaxTable", "CMinTable", "JoinTable", "SplitTable",
  "SelectTable", "NarrowTable", "FlattenTable", "View", "Reshape", "Transpose", "Select", "Narrow", "Squeeze",
  "Unsqueeze", "Mean", "Sum", "Max", "Min", "AddConstant", "MulConstant", "Identity",
} do
  layer(name, function(first, ...)
    if type(first) == "boolean" then return ours[name]() end -- CAddTable(inplace)
    if first == nil then return ours[name]() end
    if type(first) == "table" and getmetatable(first) then first = {unpack(first)} end -- a LongStorage
    return ours[name](first, ...)
  end)
end
nn.Copy, nn.Contiguous = nn.Identity, nn.Identity

local View = class.by_name["nn.View"]
function View:setNumInputDims(n)
  self.inner:setNumInputDims(n)
  return self
end

-- ---- containers

local Container = class.new("nn.Container", "nn.Module")

function Container:__init()
  Module.__init(self)
  self.modules = {}
end
function Container:add(module)
  if type(module) ~= "table" or not class.isTypeOf(module, "nn.Module") then
    fail("%s:add: a module wanted, got %s", class.typename(self), options.describe(module))
  end
  table.insert(self.modules, module)
  return self
end
function Container:get(i) return self.modules[i] end
function Container:size() return #self.modules end
function Container:insert(module, at) table.insert(self.modules, at or #self.modules + 1, module) end
function Container:remove(at) return table.remove(self.modules, at) end
function Container:parameters()
  local params, grads = {}, {}
  for _, module in ipairs(self.modules) do
    local p, g = module:parameters()
    for i, each in ipairs(p or {}) do params[#params + 1], grads[#grads + 1] = each, g[i] end
  end
  return params, grads
end
Container.__tostring = function(self)
  local lines = {}
  for i, m in ipairs(self.modules) do lines[i] = ("  (%d): %s\n"):format(i, (tostring(m):gsub("\n", "\n  "))) end
  return ("%s {\n%s}"):format(class.typename(self), table.concat(lines))
end

-- A container whose forward and backward are told once: run(self, input), back(self, input, gradOutput, go), where
-- go(module, input, gradOutput) is the module's updateGradInput, accGradParameters or both.
local function container(name, run, back)
  local new = class.new("nn." .. name, "nn.Container")
  function new:updateOutput(input)
    self.output = run(self, input)
    return self.output
  end
  function new:updateGradInput(input, gradOutput)
    self.gradInput = back(self, input, gradOutput, function(m, x, g) return m:updateGradInput(x, g) end)
    return self.gradInput
  end
  function new:accGradParameters(input, gradOutput, scale)
    back(self, input, gradOutput, function(m, x, g)
      m:accGradParameters(x, g, scale)
      return m.gradInput
    end)
  end
  function new:backward(input, gradOutput, scale)
    self.gradInput = back(self, input, gradOutput, function(m, x, g) return m:backward(x, g, scale) end)
    return self.gradInput
  end
  return new
end

container("Sequential", function(self, x)
  for _, module in ipairs(self.modules) do x = module:forward(x) end
  return x
end, function(self, input, grad, go)
  for i = #self.modules, 1, -1 do
    grad = go(self.modules[i], i > 1 and self.modules[i - 1].output or input, grad)
  end
  return grad
end)

-- The sum of two gradients, which may be tables.
local function added(a, b)
  if a == nil then return b end
  if tensor.is(a) then return a + b end
  local out = {}
  for i, v in ipairs(a) do out[i] = added(v, b[i]) end
  return out
end

local function to_each(self, input)
  local out = {}
  for i, module in ipairs(self.modules) do out[i] = module:forward(input) end
  return out
end
container("ConcatTable", to_each, function(self, input, grads, go)
  local sum
  for i, module in ipairs(self.modules) do sum = added(sum, go(module, input, grads[i])) end
  return sum
end)
container("ParallelTable", function(self, input)
  local out = {}
  for i, module in ipairs(self.modules) do out[i] = module:forward(input[i]) end
  return out
end, function(self, input, grads, go)
  local out = {}
  for i, module in ipairs(self.modules) do out[i] = go(module, input[i], grads[i]) end
  return out
end)
local Concat = container("Concat", function(self, input)
  return wrap(ops.cat(tensor.raw_all(to_each(self, input)), self.dimension))
end, function(self, input, grad, go)
  local sum, first = nil, 1
  for _, module in ipairs(self.modules) do
    local n = module.output:size(self.dimension)
    sum = added(sum, go(module, input, grad:narrow(self.dimension, first, n)))
    first = first + n
  end
  return sum
end)
function Concat:__init(dimension)
  Container.__init(self)
  self.dimension = options.arg("nn.Concat", "dimension", dimension, "count")
end

-- ---- criterions

local Criterion = class.new "nn.Criterion"
function Criterion:__init() self.output, self.gradInput = 0, tensor.new(tensor.default) end
function Criterion:forward(input, target) return self:updateOutput(input, target) end
function Criterion:backward(input, target) return self:updateGradInput(input, target) end
function Criterion:type() return self end
Criterion.float, Criterion.double, Criterion.cuda = Criterion.type, Criterion.type, Criterion.type
Criterion.__call = function(self, input, target) return self:forward(input, target) end

-- nn.name([weights,] sizeAverage): loss(input, target, options), a formula of luminary's tensors.
local function criterion(name, loss, classes)
  local new = class.new("nn." .. name, "nn.Criterion")
  function new:__init(weights, average)
    Criterion.__init(self)
    if type(weights) == "boolean" then weights, average = nil, weights end
    self.weights, self.sizeAverage = weights, average ~= false
  end
  function new:updateOutput(input, target)
    local list = {}
    self.value = core.enable_grad(function()
      local x = leaves(input, list)
      local y = type(target) == "number" and core.tensor({target}, {dtype = x.dtype}) or raw(target, name)
      if classes then
        x, y = x.ndim == 1 and ops.unsqueeze(x, 1) or x, y:to("int64"):reshape {-1}
      else
        if y:numel() ~= x:numel() then
          fail("nn.%s: a target of %d elements for an input of %d", name, y:numel(), x:numel())
        end
        y = y:to(x.dtype):reshape(x.shape)
      end
      local weights = self.weights and raw(self.weights):to(x.dtype)
      return loss(x, y, {reduction = self.sizeAverage and "mean" or "sum"}, weights)
    end)
    self.input, self.output = list[1], self.value:item()
    return self.output
  end
  function new:updateGradInput(input, target)
    self:updateOutput(input, target)
    self.gradInput = wrap(core.grad({self.value}, {self.input})[1])
    return self.gradInput
  end
end

local function weighted(op)
  return function(x, y, how, weight)
    how.weight = weight
    return op(x, y, how)
  end
end
local function reduced(f)
  return function(x, y, how) return (how.reduction == "mean" and ops.mean or ops.sum)(f(x, y)) end
end
criterion("ClassNLLCriterion", weighted(ops.nll_loss), true)
criterion("CrossEntropyCriterion", weighted(ops.cross_entropy), true)
criterion("BCECriterion", weighted(ops.binary_cross_entropy))
criterion("MSECriterion", ops.mse_loss)
criterion("AbsCriterion", reduced(function(x, y) return ops.abs(ops.sub(x, y)) end))
criterion("SmoothL1Criterion", reduced(function(x, y)
  local d = ops.abs(ops.sub(x, y))
  return ops.where(ops.lt(d, 1), ops.mul(ops.square(d), 0.5), ops.sub(d, 0.5))
end))
criterion("DistKLDivCriterion", reduced(function(x, y)
  return ops.where(ops.gt(y, 0), ops.mul(y, ops.sub(ops.log(ops.clamp(y, 1e-300)), x)), ops.zeros_like(x))
end))

return setmetatable(nn, {__index = function(_, key)
  if type(key) ~= "string" or key:sub(1, 2) == "__" then return nil end
  fail("nn has no '%s' in luminary.torch7; luminary.nn may have it by another name", key)
end})

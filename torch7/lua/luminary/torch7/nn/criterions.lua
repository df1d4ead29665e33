--- Defines Torch7's criterions: a loss as a number, and its gradient.
local core = require "luminary.core"
local lists = require "luminary.base.lists"
local options = require "luminary.base.options"
local class = require "luminary.torch7.class"
local tensor = require "luminary.torch7.tensor"
local Module = require "luminary.torch7.nn.module"
local Leaf = require "luminary.torch7.nn.leaf"
local F = require "luminary.nn".functional
local fail, ops = options.fail, core.ops
local raw = tensor.raw
local leaves, as_input, define = Leaf.leaves, Leaf.as_input, Module.define

local Criterion = class.new "nn.Criterion"
function Criterion:__init()
  self.output, self.gradInput = 0, tensor.new(tensor.default)
  self._type = self.gradInput:type()
end
function Criterion:forward(input, target) return self:updateOutput(input, target) end
function Criterion:backward(input, target) return self:updateGradInput(input, target) end
function Criterion:type(name, cache)
  if name == nil then return self._type end
  self._type = name
  return Module.convert(self, name, cache)
end
function Criterion:clone() return Module.copy_of(self) end
Criterion.float, Criterion.double, Criterion.cuda = Module.float, Module.double, Module.cuda
Criterion.write, Criterion.read = Module.write, Module.read
function Criterion:__call__(input, target)
  self.output = self:forward(input, target)
  return self.output
end
local taped = setmetatable({}, {__mode = "k"}) -- criterion -> {value = the loss, inputs = its leaves}

-- Sets the fields of a criterion from its usual arguments.
local function set_usual(self, weights, average, ignoreIndex)
  if type(weights) == "boolean" then weights, average, ignoreIndex = nil, weights, average end
  self.weights, self.sizeAverage, self.ignoreIndex = weights, average ~= false, ignoreIndex
end

-- Defines nn.name([weights,] sizeAverage), or with the arguments of init, by loss(input, target, options) on luminary's
-- tensors. kind "classes": the target has labels; "any": it is passed unchanged; "none": there is none; else it is
-- converted to the input's dtype and shape.
local function criterion(name, loss, kind, init)
  define(name, "Criterion", init or set_usual, function(self, input, target)
    if kind == "none" then target = 0 end
    local list = {}
    local value = Leaf.named(self, core.enable_grad, function()
      local x = leaves(input, list)
      local y = type(target) == "number" and core.tensor({target}, {dtype = list[1].dtype, device = list[1].device})
        or raw(target, name)
      if kind == "classes" then
        if x.ndim == 1 then x, y = ops.unsqueeze(x, 1), y:reshape({-1}):narrow(1, 1, 1) end
        y = y:to "int64"
        if y.ndim < x.ndim - 1 or x.ndim == 2 then y = y:reshape {-1} end
      elseif kind ~= "any" and kind ~= "none" then
        if y:numel() ~= x:numel() then
          fail("nn.%s: input and target must have the same number of elements: the target has %d, the input %d", name,
            y:numel(), x:numel())
        end
        y = y:to(x.dtype):reshape(x.shape)
      end
      local weights = self.weights and raw(self.weights):to(x.dtype)
      return loss(x, y, {reduction = self.sizeAverage and "mean" or "sum"}, weights, self)
    end)
    taped[self] = {value = value, inputs = list}
    return value:item()
  end, function(self, input, target)
    self:updateOutput(input, target)
    local grads = core.grad({taped[self].value}, taped[self].inputs, {allow_unused = true})
    return Leaf.each_tensor(as_input(input, grads, taped[self], {i = 0}), tensor.wrap)
  end)
end

-- Multiplies a gradient, which may be a table, by a number.
local function scaled(g, by)
  if tensor.is(g) then return g * by end
  return lists.map(g, function(v) return scaled(v, by) end)
end

local function weighted(op)
  return function(x, y, how, weight, self)
    how.weight, how.ignore_index = weight, self.ignoreIndex
    if self.ignoreIndex and not ops.any(ops.ne(y, self.ignoreIndex)):item() then return ops.sum(ops.mul(x, 0)) end
    return op(x, y, how)
  end
end
local function reduced(f)
  return function(x, y, how) return (how.reduction == "mean" and ops.mean or ops.sum)(f(x, y)) end
end
criterion("ClassNLLCriterion", weighted(ops.nll_loss), "classes")
criterion("SpatialClassNLLCriterion", weighted(ops.nll_loss), "classes")
criterion("BCECriterion", weighted(ops.binary_cross_entropy))
for name, op in pairs {
  MSE = ops.mse_loss, SmoothL1 = ops.smooth_l1_loss, DistKLDiv = ops.kl_div, SoftMargin = F.soft_margin_loss,
  Abs = reduced(function(x, y) -- the gradient is 1 where x equals y
    local d = ops.sub(x, y)
    return ops.where(ops.lt(d, 0), ops.neg(d), d)
  end),
} do
  criterion(name .. "Criterion", function(x, y, how) return op(x, y, how) end, nil,
    name == "DistKLDiv" and function(self) set_usual(self) end or nil) -- Torch7's ignores its argument
end
criterion("MultiLabelSoftMarginCriterion", function(x, y, how, weight)
  how.weight = weight
  return F.multilabel_soft_margin_loss(x, y, how)
end)
criterion("MultiLabelMarginCriterion", function(x, y, how)
  return F.multilabel_margin_loss(x, y:to "int64", how)
end)
criterion("WeightedMSECriterion", function(x, y, how, weight)
  return F.mse_loss(x, ops.mul(y, weight), how)
end)
criterion("L1Cost", function(x) return ops.sum(ops.abs(x)) end, "none")

-- Defines criterions that take a number first: nn.name(number, sizeAverage).
local function with_number(name, default, loss, kind)
  criterion(name, function(x, y, how, _, self) return loss(x, y, how, self.margin) end, kind or "any",
    function(self, margin, average) self.margin, self.sizeAverage = margin or default, average ~= false end)
end
local function at_least_zero(x) return ops.clamp(x, 0) end
with_number("MarginCriterion", 1, function(x, y, how, margin)
  return reduced(function() return at_least_zero(ops.sub(margin, ops.mul(x, y))) end)(x, y, how)
end, "like")
with_number("HingeEmbeddingCriterion", 1, function(x, y, how, margin)
  how.margin = margin
  return F.hinge_embedding_loss(x, y:to(x.dtype):reshape(x.shape), how)
end)
-- Defines criterions of pairs {a, b}; a target is 1 or -1, one for all pairs or one for each.
with_number("L1HingeEmbeddingCriterion", 1, function(pair, y, _, margin)
  local distance = ops.sum(ops.abs(ops.sub(pair[1], pair[2])))
  return y:reshape({-1})[1] > 0 and distance or at_least_zero(ops.sub(margin, distance))
end)
with_number("CosineEmbeddingCriterion", 0, function(pair, y, how, margin)
  how.margin = margin
  local a, b = pair[1], pair[2]
  if a.ndim == 1 then a, b = ops.unsqueeze(a, 1), ops.unsqueeze(b, 1) end
  return F.cosine_embedding_loss(a, b, y:reshape {-1}, how)
end)
with_number("MarginRankingCriterion", 1, function(pair, y, how, margin)
  how.margin = margin
  local a, b = ops.reshape(pair[1], {-1}), ops.reshape(pair[2], {-1})
  return F.margin_ranking_loss(a, b, ops.expand(y:reshape {-1}, a.shape), how)
end)
-- nn.MultiMarginCriterion(p, weights, margin, sizeAverage)
criterion("MultiMarginCriterion", function(x, y, how, weight, self)
  how.p, how.margin, how.weight = self.p, self.margin, weight
  return F.multi_margin_loss(x, y, how)
end, "classes", function(self, p, weights, margin, average)
  self.p, self.weights, self.margin, self.sizeAverage = p or 1, weights, margin or 1, average ~= false
end)

-- ---- criterions of criterions

-- Defines a weighted sum of criterions. which(self, i, input, target) returns the input and target of the i-th,
-- gather(list) combines their gradients.
local function combined(name, which, gather)
  local new = define(name, "Criterion", function(self, repeats)
    self.criterions, self.weights, self.repeatTarget = {}, {}, repeats or false
  end, function(self, input, target)
    local sum = 0
    for i, one in ipairs(self.criterions) do
      sum = sum + self.weights[i] * one:updateOutput(which(self, i, input, target))
    end
    return sum
  end, function(self, input, target)
    return gather(lists.map(self.criterions, function(one, i)
      return scaled(one:updateGradInput(which(self, i, input, target)), self.weights[i])
    end))
  end)
  function new:add(one, weight)
    if type(one) ~= "table" or not class.isTypeOf(one, "nn.Criterion") then
      options.expected(("nn.%s:add"):format(name), "a criterion", one)
    end
    table.insert(self.criterions, one)
    self.weights[#self.criterions] = weight or 1
    return self
  end
end
combined("ParallelCriterion", function(self, i, input, target)
  return input[i], self.repeatTarget and target or target[i]
end, function(list) return list end)
combined("MultiCriterion", function(_, _, input, target) return input, target end, function(list)
  local sum
  for _, grad in ipairs(list) do sum = tensor.added(sum, grad) end
  return sum
end)

-- ---- rarer criterions

criterion("DistanceRatioCriterion", reduced(function(pair)
  local near, far = pair[1], pair[2]
  return ops.add(near, ops.log(ops.add(ops.exp(ops.neg(near)), ops.exp(ops.neg(far)))))
end), "none")
criterion("SpatialAutoCropMSECriterion", function(x, y, how)
  local h, w = x:size(-2), x:size(-1)
  for d = 1, x.ndim do
    if x:size(d) > y:size(d) or d < x.ndim - 1 and x:size(d) < y:size(d) then
      fail("nn.SpatialAutoCropMSECriterion: dim %d of the target must %s the input's, got %d and %d", d,
        d < x.ndim - 1 and "equal" or "be at least", y:size(d), x:size(d))
    end
  end
  y = ops.narrow(y, -2, math.floor((y:size(-2) - h) / 2) + 1, h)
  y = ops.narrow(y, -1, math.floor((y:size(-1) - w) / 2) + 1, w)
  return ops.mse_loss(x, y:to(x.dtype), how)
end, "any")
-- nn.ClassSimplexCriterion(n): the squared distance to a class's corner of a regular simplex in n dims.
criterion("ClassSimplexCriterion", function(x, y, how, _, self)
  local corners = ops.index_select(raw(self.simplex):to(x.dtype), 1, y)
  return ops.mse_loss(x, corners, how)
end, "classes", function(self, n)
  self.nClasses, self.sizeAverage = n, true
  self.simplex = tensor.new(tensor.default, n, n):zero()
  for k = 1, n - 1 do
    local row = self.simplex[k]
    self.simplex[k][k] = math.sqrt(1 - row:norm() ^ 2)
    for i = k + 1, n do
      local dot = self.simplex[i]:dot(row)
      self.simplex[i][k] = (-1 / (n - 1) - dot) / row[k]
    end
  end
end)
--- nn.ModuleCriterion(criterion [, inputModule [, targetModule]]): Applies modules before a criterion.
define("ModuleCriterion", "Criterion", function(self, inner, inputModule, targetModule)
  self.criterion, self.inputModule, self.targetModule = inner, inputModule, targetModule
end, function(self, input, target)
  self.target = self.targetModule and self.targetModule:forward(target) or target
  self.input = self.inputModule and self.inputModule:forward(input) or input
  return self.criterion:forward(self.input, self.target)
end, function(self, input)
  local g = self.criterion:backward(self.input, self.target)
  return self.inputModule and self.inputModule:updateGradInput(input, g) or g
end)

--- nn.CrossEntropyCriterion([weights [, sizeAverage]]): Applies LogSoftMax (field lsm) and ClassNLLCriterion (nll).
local function squeezed(t) return tensor.is(t) and tensor.wrap(raw(t):squeeze()) or t end
define("CrossEntropyCriterion", "Criterion", function(self, weights, average)
  local nn = class.packages.nn
  self.lsm, self.nll = nn.LogSoftMax(), nn.ClassNLLCriterion(weights, average)
  self.sizeAverage, self.oldSizeAverage = self.nll.sizeAverage, self.nll.sizeAverage
end, function(self, input, target)
  if self.sizeAverage ~= self.oldSizeAverage then self.nll.sizeAverage = self.sizeAverage end
  self.oldSizeAverage = self.sizeAverage
  return self.nll:updateOutput(self.lsm:updateOutput(squeezed(input)), squeezed(target))
end, function(self, input, target)
  local g = self.nll:updateGradInput(self.lsm.output, squeezed(target))
  return self.lsm:updateGradInput(squeezed(input), g):viewAs(input)
end)

-- ---- training

--- nn.StochasticGradient(module, criterion): Trains a module; train(dataset) makes maxIteration passes over examples
--- dataset[i], {input, target}, i = 1 to dataset:size().
local Trainer = class.new "nn.StochasticGradient"
function Trainer:__init(module, one)
  self.module, self.criterion, self.learningRate, self.learningRateDecay = module, one, 0.01, 0
  self.maxIteration, self.shuffleIndices, self.verbose = 25, true, true
end
function Trainer:train(dataset)
  local n, rate, pass = dataset:size(), self.learningRate, 0
  local order = (self.shuffleIndices and ops.randperm(n) or ops.arange(1, n + 1)):totable()
  repeat
    local sum = 0
    for _, i in ipairs(order) do
      local example = dataset[i]
      local input, target = example[1], example[2]
      sum = sum + self.criterion:forward(self.module:forward(input), target)
      self.module:updateGradInput(input, self.criterion:updateGradInput(self.module.output, target))
      self.module:accUpdateGradParameters(input, self.criterion.gradInput, rate)
      if self.hookExample then self.hookExample(self, example) end
    end
    pass = pass + 1
    if self.hookIteration then self.hookIteration(self, pass, sum / n) end
    if self.verbose then print(("# current error = %g"):format(sum / n)) end
    rate = self.learningRate / (1 + (pass + 1) * self.learningRateDecay)
  until self.maxIteration > 0 and pass >= self.maxIteration
end

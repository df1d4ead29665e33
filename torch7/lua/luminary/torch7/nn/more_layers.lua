--- Defines Torch7's rarer layers: normalization by neighborhoods, connection tables, unpooling, weight normalization,
--- conversions.
local core = require "luminary.core"
local lists = require "luminary.base.lists"
local options = require "luminary.base.options"
local class = require "luminary.torch7.class"
local tensor = require "luminary.torch7.tensor"
local Leaf = require "luminary.torch7.nn.leaf"
local Module = require "luminary.torch7.nn.module"
local F = require "luminary.nn.functional"
local ops, layer, axes, nn = core.ops, Leaf.layer, Leaf.axes, class.packages.nn
local raw, wrap = tensor.raw, tensor.wrap

-- ---- normalization by neighborhoods

-- Returns the sums of x [N, C, H, W] weighted by a kernel, and the sums of ones, which are smaller at the borders.
local function neighborhood(x, kernel)
  kernel = kernel:to(x.dtype)
  if kernel.ndim == 1 then kernel = ops.mul(ops.unsqueeze(kernel, 2), ops.unsqueeze(kernel, 1)) end
  local h, w = kernel:size(1), kernel:size(2)
  if h % 2 == 0 or w % 2 == 0 then
    options.fail("nn.Spatial*Normalization: the kernel must have odd sizes, got %d x %d", h, w)
  end
  local weight = ops.div(kernel, ops.mul(ops.sum(kernel), x:size(2)))
  weight = ops.expand(ops.reshape(weight, {1, 1, h, w}), {1, x:size(2), h, w})
  local how = {padding = {(h - 1) / 2, (w - 1) / 2}}
  return F.conv2d(x, weight, nil, how), F.conv2d(ops.ones_like(x), weight, nil, how)
end
local function subtracted(x, o)
  local sums, edges = neighborhood(x, o.kernel)
  return ops.sub(x, ops.div(sums, edges))
end
local function divided(x, o)
  local sums, edges = neighborhood(ops.square(x), o.kernel)
  local size = ops.div(ops.sqrt(sums), edges)
  return ops.div(x, ops.where(ops.gt(size, o.threshold), size, ops.full_like(size, o.thresval)))
end
for name, f in pairs {Subtractive = subtracted, Divisive = divided, Contrastive = function(x, o)
  return divided(subtracted(x, o), o)
end} do
  layer(("Spatial%sNormalization"):format(name), "nInputPlane=1 kernel threshold=1e-4 thresval=threshold", f, {
    dims = 4, init = function(self) self.kernel = self.kernel or tensor.new(tensor.default, 9, 9):fill(1) end,
  })
end

-- ---- connection tables: [n, 2] pairs of an input plane and an output plane

nn.tables = {}
-- Connects each of m output planes o to the input planes in the list inputs_of(o).
local function connected(m, inputs_of)
  local list = {}
  for o = 1, m do
    for _, i in ipairs(inputs_of(o)) do list[#list + 1] = {i, o} end
  end
  return tensor.new(tensor.default, list)
end
--- nn.tables.full(n, m): Connects each of n input planes to each of m output planes.
function nn.tables.full(n, m) return connected(m, function() return ops.arange(1, n + 1):totable() end) end
function nn.tables.oneToOne(n) return connected(n, function(o) return {o} end) end
--- nn.tables.random(n, m, k): Connects each of m output planes to k input planes drawn at random.
function nn.tables.random(n, m, k)
  return connected(m, function() return lists.slice(ops.randperm(n):totable(), 1, k) end)
end
-- Convolutions with a kernel for each row of a table.
for name, transposed in pairs {SpatialConvolutionMap = false, SpatialFullConvolutionMap = true} do
  layer(name, "connTable kW# kH#=kW dW=1 dH=1", function(x, o)
    local t = o.connTable:to "int64"
    local from, to = ops.select(t, 2, 1), ops.select(t, 2, 2)
    local a, b, n, m = to, from, o.nOutputPlane, math.max(o.nInputPlane, x:size(2)) -- the table may leave planes out
    if transposed then a, b, n, m = b, a, m, n end
    local all = ops.zeros({n * m, o.kH * o.kW}, {dtype = x.dtype, device = x.device})
    all = ops.index_add(all, 1, ops.add(ops.mul(ops.sub(a, 1), m), b), ops.reshape(o.weight, {t:size(1), -1}))
    local conv = transposed and F.conv_transpose2d or F.conv2d
    return conv(x, ops.reshape(all, {n, m, o.kH, o.kW}), o.bias, {stride = axes(o, "d", 2)})
  end, {
    dims = 4,
    init = function(self)
      raw(self.connTable, "nn." .. name)
      self.nInputPlane, self.nOutputPlane = self.connTable:select(2, 1):max(), self.connTable:select(2, 2):max()
    end,
    sizes = function(o) return {weight = {o.connTable:size(1), o.kH, o.kW}, bias = {o.nOutputPlane}} end,
    fan = function(o) return o.kW * o.kH * o.connTable:size(1) / o.nOutputPlane end,
  })
end

-- A convolution with own weights at each position.
local function window_of(o) return o.nInputPlane * o.kW * o.kH end
layer("SpatialConvolutionLocal", "nInputPlane# nOutputPlane# iW# iH# kW# kH# dW=1 dH=1 padW=0 padH=padW", function(x, o)
  local windows = F.unfold(ops.clone(x), axes(o, "k", 2), {stride = axes(o, "d", 2), padding = axes(o, "pad", 2)})
  local y = ops.matmul(ops.reshape(o.weight, {o.oH * o.oW, o.nOutputPlane, -1}), ops.permute(windows, {3, 2, 1}))
  return ops.add(ops.reshape(ops.permute(y, {3, 2, 1}), {x:size(1), o.nOutputPlane, o.oH, o.oW}), o.bias)
end, {
  dims = 4, fan = window_of, by_forward = true,
  init = function(o)
    o.oW = math.floor((o.iW + 2 * o.padW - o.kW) / o.dW) + 1
    o.oH = math.floor((o.iH + 2 * o.padH - o.kH) / o.dH) + 1
  end,
  sizes = function(o)
    return {weight = {o.oH, o.oW, o.nOutputPlane, o.nInputPlane, o.kH, o.kW}, bias = {o.nOutputPlane, o.oH, o.oW}}
  end,
})
layer("SpatialDepthWiseConvolution", "nInputPlane# nOutputPlane# kW# kH#=kW dW=1 dH=1 padW=0 padH=padW", function(x, o)
  local weight = ops.reshape(ops.transpose(o.weight, 1, 2), {-1, 1, o.kH, o.kW})
  local bias = o.bias and ops.reshape(ops.transpose(o.bias, 1, 2), {-1})
  return F.conv2d(ops.clone(x), weight, bias, {stride = axes(o, "d", 2), padding = axes(o, "pad", 2),
    groups = o.nInputPlane})
end, {
  dims = 4, by_forward = true, fan = function(o) return o.kW * o.kH end,
  sizes = function(o)
    return {weight = {o.nOutputPlane, o.nInputPlane, o.kH, o.kW}, bias = {o.nOutputPlane, o.nInputPlane}}
  end,
})
layer("WeightedEuclidean", "_inputSize# _outputSize#", function(x, o)
  return ops.norm(ops.mul(ops.sub(ops.unsqueeze(x, 3), o.weight), o.diagCov), 2, {dim = 2})
end, {
  dims = 2, names = {"weight", "diagCov"}, sizes = function(_, i, o) return {weight = {i, o}, diagCov = {i, o}} end,
  reset = function(self, stdv)
    local bound = stdv and stdv * math.sqrt(3) or 1 / math.sqrt(self.weight:size(1))
    self.weight:uniform(-bound, bound)
    self.diagCov:fill(1)
  end,
})

-- ---- pooling

-- Undoes the max pooling of another layer: puts values at the indices of its maxima, and zeros elsewhere.
for name, n in pairs {SpatialMaxUnpooling = 2, VolumetricMaxUnpooling = 3} do
  local pool, undo = F[("max_pool%dd"):format(n)], F[("max_unpool%dd"):format(n)]
  local new = layer(name, "pooling", function(x, o)
    local window = #o.sizes - n + 1
    local flat, of = {-1, 1, unpack(x.shape, window)}, o.pooling
    local y = undo(ops.reshape(x, flat), ops.reshape(o.indices:to "int64", flat), axes(of, "k", n),
      {stride = axes(of, "d", n), padding = axes(of, "pad", n), output_size = {unpack(o.sizes, window)}})
    return ops.reshape(y, o.sizes)
  end, {init = function(self) if self.pooling then self.pooling.keeps_indices = true end end})
  function new:updateOutput(x)
    local tape, of = Leaf.tapes[self.pooling], self.pooling
    if tape then
      local source = tape.inputs[1]:detach()
      if not (of.keeps_indices and of.indices) then -- from now on it has them
        local _, indices = pool(source, axes(of, "k", n), {stride = axes(of, "d", n), padding = axes(of, "pad", n),
          ceil_mode = of.ceil_mode, return_indices = true})
        of.indices, of.keeps_indices = wrap(indices), true
      end
      self.indices, self.sizes = of.indices, lists.slice(source.shape)
    end
    return Leaf.updateOutput(self, x)
  end
end
-- The p-norm over windows of features, the first dim, or the second of a batch.
layer("FeatureLPPooling", "width# stride# power batch_mode=false", function(x, o)
  local windows = ops.unfold(x, o.batch_mode and 2 or 1, o.width, o.stride)
  local sum = ops.sum(ops.pow(ops.abs(windows), o.power), -1)
  local zero = ops.eq(sum, 0) -- whose root has no gradient
  return ops.where(zero, ops.mul(sum, 0), ops.pow(ops.where(zero, ops.ones_like(sum), sum), 1 / o.power))
end)
-- The largest entries of each feature, in their order in time.
layer("TemporalDynamicKMaxPooling", "minK# factor=0", function(x, o)
  local d = x.ndim - 1
  local k = math.max(o.minK, math.ceil(o.factor * x:size(d)))
  local _, at = ops.topk(x:detach(), k, d)
  return ops.gather(x, d, (ops.topk(at, k, d, {largest = false})))
end, {by_forward = true})

-- ---- normalized weights

-- Defines a module around `inner` whose weight is g * v / |v|, with a length for each entry of the weight's dim.
local WeightNorm, Decorator = Module.define("WeightNorm", "Decorator", function(self, inner, outputDim)
  local weight, sizes = inner.weight, inner.weight:size()
  self.outputDim = outputDim or 1
  self.bias, self.gradBias, self.weightSize, self.viewOut = inner.bias, inner.gradBias, sizes, weight:size()
  local n = table.remove(self.viewOut, self.outputDim)
  table.insert(self.viewOut, 1, n)
  self.viewIn = tensor.sizes {n, weight:nElement() / n}
  self.v = weight.new(self.viewIn):normal(0, math.sqrt(2 / self.viewIn[2]))
  self.g = wrap(self.lengths(self.v:raw()))
  if self.bias then self.bias:zero() end
  self.gradV, self.gradG = self.v:clone():zero(), self.g:clone():zero()
  self._norm, self._scale = self.g:clone(), self.g:clone()
end, nil, function(self, ...) return self.modules[1]:updateGradInput(...) end)
WeightNorm.__names, WeightNorm.parameters, WeightNorm.backward = {"v", "g", "bias"}, Module.parameters, Module.backward
WeightNorm.eps = 1e-4 -- Torch7 adds it to the sum of squares
function WeightNorm.lengths(v, eps) return ops.sqrt(ops.add(ops.sum(ops.square(v), 2, {keepdim = true}), eps or 0)) end
-- Returns the weight, whose parts along the dim outputDim are rows g * v / |v|.
function WeightNorm:computed(v, g)
  local rows, order = ops.div(ops.mul(v, ops.reshape(g, {-1, 1})), self.lengths(v, self.eps)), {}
  local sizes = tensor.sizes_from(self.viewOut)
  for d = 1, #sizes do order[d] = d == self.outputDim and 1 or d < self.outputDim and d + 1 or d end
  return ops.permute(ops.reshape(rows, sizes), order)
end
function WeightNorm:read(file) -- Torch7's file has no weight of the inner module
  Decorator.read(self, file)
  local inner = self.modules[1]
  inner.weight = inner.weight or self.v.new(self.weightSize)
  inner.gradWeight = inner.gradWeight or self.v.new(self.weightSize):zero()
  inner.weight:copy(wrap(self:computed(self.v:raw(), self.g:raw())))
end
function WeightNorm:updateOutput(input)
  self.modules[1].weight:copy(wrap(self:computed(self.v:raw(), self.g:raw())))
  self.modules[1].bias = self.bias
  return Decorator.updateOutput(self, input)
end
function WeightNorm:accGradParameters(input, gradOutput, scale)
  local inner = self.modules[1]
  inner.gradWeight:zero()
  inner.gradBias = self.gradBias
  inner:accGradParameters(input, gradOutput, scale)
  local v, g = self.v:raw():detach():requires_grad_(), self.g:raw():detach():requires_grad_()
  local weight = core.enable_grad(function() return self:computed(v, g) end)
  local grads = core.grad({weight}, {v, g}, {grad_outputs = {inner.gradWeight:raw()}})
  self.gradV:raw():add_(grads[1])
  self.gradG:raw():add_(grads[2])
end
local LinearWeightNorm = class.new("nn.LinearWeightNorm", "nn.WeightNorm")
function LinearWeightNorm:__init(i, o, bias)
  WeightNorm.__init(self, nn.Linear(i, o, bias))
  self.inputSize, self.outputSize, self.weight = i, o, self.modules[1].weight
  self.modules[1]:reset()
  self.v:copy(self.weight)
  self.g:copy(wrap(self.lengths(self.v:raw())))
  self.eps, self.norm, self.scale = 1e-16, self.g:clone(), self.g:clone()
end
function LinearWeightNorm:read(file) -- Torch7's has no Linear inside
  Module.read(self, file)
  if self.modules then return end
  local bias, grad = self.bias, self.gradBias
  local made = nn.LinearWeightNorm(self.inputSize, self.outputSize, bias ~= nil):type(self.v:type())
  for key, v in pairs(made) do if rawget(self, key) == nil then self[key] = v end end
  self.modules[1].bias, self.modules[1].gradBias, self.gradV = bias, grad, self.gradV:viewAs(self.v)
end
--- nn.LinearWeightNorm.fromLinear(linear): Returns a layer that computes the same.
function LinearWeightNorm.fromLinear(linear)
  local made = nn.LinearWeightNorm(linear.weight:size(2), linear.weight:size(1), linear.bias ~= nil)
  made.v:copy(linear.weight)
  made.g:raw():copy_(made.lengths(made.v:raw()))
  if linear.bias then made.bias:copy(linear.bias) end
  return made
end
--- Returns an nn.Linear that computes the same.
function LinearWeightNorm:toLinear()
  local made = nn.Linear(self.inputSize, self.outputSize, self.bias ~= nil)
  made.weight:raw():copy_(self:computed(self.v:raw(), self.g:raw()))
  if self.bias then made.bias:copy(self.bias) end
  return made
end

-- ---- conversions

local function cast(v, name)
  if tensor.is(v) then return v:type(name) end
  return type(v) == "table" and lists.map(v, function(each) return cast(each, name) end) or v
end
--- nn.Copy(intype, outtype [, forceCopy [, dontCast]]): Converts tensors from one type to another.
local Copy = Module.define("Copy", "Module", function(self, intype, outtype, forceCopy, dontCast)
  self.intype, self.outtype, self.dontCast = intype or self._type, outtype or self._type, dontCast or false
  self.forceCopy = forceCopy or false
end, function(self, x) return cast(x, self.outtype) end, function(self, _, g) return cast(g, self.intype) end)
function Copy:type(name, cache)
  if name and self.dontCast then return self end
  return Module.type(self, name, cache)
end

--- nn.DontCast(module [, castin [, castout [, type]]]): Keeps the type of a module when its container is converted;
--- converts its input and output with castin and castout.
local DontCast = Module.define("DontCast", "Decorator", function(self, module, castin, castout, kind)
  self.castin, self.castout = castin or false, castout == nil and (castin or false) or castout or false
  self.moduleType = kind or module:type()
end, function(self, x)
  local y = self.modules[1]:forward(self.castin and cast(x, self.moduleType) or x)
  return self.castout and cast(y, self._type) or y
end)
local function outer_type(v) return tensor.is(v) and v:type() or type(v) == "table" and outer_type(v[1]) or nil end
for _, name in ipairs {"updateGradInput", "accGradParameters", "backward"} do
  DontCast[name] = function(self, x, g, ...)
    local inside = self.castin and cast(x, self.moduleType) or x
    local dx = self.modules[1][name](self.modules[1], inside, self.castout and cast(g, self.moduleType) or g, ...)
    if dx then self.gradInput = self.castin and cast(dx, outer_type(x)) or dx end
    return self.gradInput
  end
end
function DontCast:type(name)
  if name == nil then return self._type end
  self._type = name
  return self
end

-- Converts the layout named by letters, "bchw", "chwb", "bf", "f", …, and the type.
layer("Convert", "inputShape outputShape", function(x, o)
  local from, to, order = o.inputShape, o.outputShape, {}
  x = x:to(tensor.dtype_of(o:type()))
  if to:find "f" and not from:find "f" then
    return from:find "b" and ops.reshape(x, {x:size(1), -1}) or ops.reshape(x, {-1})
  end
  for letter in to:gmatch "." do order[#order + 1] = from:find(letter, 1, true) end
  return #order == x.ndim and ops.permute(x, order) or x
end)

--- nn.Profile(module [, interval = 100 [, name]]): Prints the times of forward and backward after each interval.
local Profile = Module.define("Profile", "Decorator", function(self, module, interval, name)
  self.interval, self.name, self.calls, self.times = interval or 100, name or class.typename(module), 0, {0, 0}
end)
local function timed(self, k, f)
  local start = core.time()
  local result = f()
  self.times[k] = self.times[k] + core.time() - start
  return result
end
function Profile:updateOutput(x)
  self.calls = self.calls + 1
  local y = timed(self, 1, function() return Decorator.updateOutput(self, x) end)
  if self.calls % self.interval == 0 then
    print(("%s: forward %.6f s, backward %.6f s"):format(self.name, self.times[1] / self.interval,
      self.times[2] / self.interval))
    self.times = {0, 0}
  end
  return y
end
function Profile:backward(x, g, scale)
  return timed(self, 2, function() return Decorator.backward(self, x, g, scale) end)
end

-- Returns v; fails if it has NaNs.
local function checked(self, v, what)
  if type(v) == "table" then
    for _, each in pairs(v) do checked(self, each, what) end
  elseif tensor.is(v) and v:nElement() > 0 and ops.any(ops.isnan(v:raw())):item() then
    options.fail("NaN found in %s of module %s of type %s", what, self.id, class.typename(self.modules[1]))
  end
  return v
end
local made = 0
--- nn.NaN(module [, id]): Fails if a module's output or gradients have NaNs.
local NaN = Module.define("NaN", "Decorator", function(self, _, id)
  made = made + 1
  self.id = id or made
end, function(self, x) return checked(self, Decorator.updateOutput(self, x), "output") end,
  function(self, x, g) return checked(self, Decorator.updateGradInput(self, x, g), "gradInput") end)
function NaN:accGradParameters(x, g, scale)
  Decorator.accGradParameters(self, x, g, scale)
  local _, grads = self:parameters()
  checked(self, grads, "gradParameters")
end
NaN.backward = Module.backward

-- ---- pooling at random steps

-- nn.SpatialFractionalMaxPooling(kW, kH, outW, outH), and with sizes below 1 ratios; Volumetric… has kT and outT first.
for name, n in pairs {Spatial = 2, Volumetric = 3} do
  local pool, letters = F[("fractional_max_pool%dd"):format(n)], n == 2 and {"W", "H"} or {"T", "W", "H"}
  name = name .. "FractionalMaxPooling"
  local new = layer(name, "poolSize" .. table.concat(letters, "# poolSize") .. "#", function(x, o)
    local kernel, out = {}, {}
    for i, letter in ipairs(n == 2 and {"H", "W"} or {"H", "W", "T"}) do -- time is the last dim
      kernel[i] = o["poolSize" .. letter]
      out[i] = o["out" .. letter] or math.floor(x:size(i - n - 1) * o["ratio" .. letter])
    end
    local random = o.randomSamples
    if not (random and random:size(1) == x:size(1) and random:size(2) == x:size(2)) then
      random = ops.rand({x:size(1), x:size(2), n}, {dtype = x.dtype, device = x.device})
      o.randomSamples = random
    elseif not (o.newRandomPool or o.again) then
      random:uniform_()
    end
    return pool(x, kernel, {output_size = out, _random_samples = random})
  end, {
    dims = n + 2, by_forward = true,
    init = function(self, ...)
      for i, letter in ipairs(letters) do
        local size = options.arg("nn." .. name, "out" .. letter, (select(n + i, ...)), "number")
        self[(size >= 1 and "out" or "ratio") .. letter] = size
      end
      self.newRandomPool = false
    end,
  })
  --- Keeps the windows of the last forward; draws them at each call again after fixPoolingRegions(false).
  function new:fixPoolingRegions(on)
    self.newRandomPool = on == nil or on
    return self
  end
end

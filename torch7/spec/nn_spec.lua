-- Tests Torch7's modules, criterions and optimizers: gradients against differences, and luminary's own network.
local lm = require "luminary"
local torch = require "luminary.torch7"
local temp = require "spec.support.temp"
local nn, optim = torch.nn, torch.optim

setup(function() torch.manualSeed(5) end)

-- Checks the gradients of sum(module(x) * g) against finite differences, for x and each parameter.
local function check(name, module, x)
  local y = module:forward(x)
  local g = torch.randn(y:size())
  local function loss() return torch.cmul(module:forward(x), g):sum() end
  module:zeroGradParameters()
  loss()
  local dx = module:backward(x, g):clone()
  local params, grads = module:parameters()
  local tensors, wanted = { x, unpack(params) }, { dx, unpack(grads) }
  for k, t in ipairs(tensors) do
    local flat, grad = t:raw():view { -1 }, wanted[k]:raw():reshape { -1 }
    for i = 1, math.min(flat:numel(), 6) do
      local before, e = flat[i], 1e-5
      flat[i] = before + e
      local up = loss()
      flat[i] = before - e
      local down = loss()
      flat[i] = before
      assert.near((up - down) / (2 * e), grad[i], 1e-5, ("%s, tensor %d, element %d"):format(name, k, i))
    end
  end
end

describe("Torch7's modules", function()
  local image, flat, volume, frames = { 2, 2, 6, 5 }, { 3, 4 }, { 2, 1, 3, 4, 4 }, { 2, 5, 3 }
  for name, case in pairs {
    SpatialFullConvolution = { image, 2, 3, 4, 3, 2, 1, 1 }, SpatialZeroPadding = { image, 1, 0, 2, 1 },
    SpatialUpSamplingNearest = { image, 2 }, Linear = { flat, 4, 3 },
    SpatialConvolution = { image, 2, 3, 3, 2, 2, 1, 1, 0 },
    Tanh = { flat },
    SpatialMaxPooling = { image, 2, 2, 2, 2 }, SpatialAveragePooling = { image, 3, 2, 2, 2 }, Sigmoid = { flat },
    SpatialBatchNormalization = { image, 2 }, BatchNormalization = { flat, 4 }, LogSoftMax = { flat },
    SoftMax = { flat }, ReLU = { flat }, HardTanh = { flat }, Threshold = { flat, 0.1, 0 }, View = { image, -1, 60 },
    Reshape = { image, 60 }, Mean = { flat, 2 }, Max = { flat, 2 }, MulConstant = { flat, 3 }, Power = { { 2 }, 2 },
    Add = { flat, 4 }, Mul = { flat }, CMul = { flat, 4 }, CAdd = { flat, 1, 4 }, Cosine = { flat, 4, 3 },
    Euclidean = { flat, 4, 3 }, PReLU = { flat }, ELU = { flat, 0.5 }, SoftSign = { flat }, SoftShrink = { flat, 0.1 },
    HardShrink = { flat, 0.1 }, TanhShrink = { flat }, SoftMin = { flat }, GatedLinearUnit = { flat, 2 },
    CReLU = { flat, 1 }, Normalize = { flat, 3 }, Replicate = { flat, 3, 2 }, Padding = { flat, 2, -2, 2, 7 },
    Collapse = { image, 3 }, PixelShuffle = { { 1, 4, 2, 3 }, 2 }, Maxout = { flat, 4, 2, 3 },
    SpatialSoftMax = { image }, SpatialLogSoftMax = { image }, SpatialCrossMapLRN = { image, 3, 2 },
    SpatialDilatedConvolution = { image, 2, 3, 2, 2, 1, 1, 0, 0, 2, 2 }, SpatialSubSampling = { image, 2, 3, 2, 2, 2 },
    SpatialDilatedMaxPooling = { image, 2, 2, 1, 1, 0, 0, 2, 2 }, SpatialAdaptiveMaxPooling = { image, 2, 3 },
    SpatialAdaptiveAveragePooling = { image, 3, 2 }, SpatialLPPooling = { { 1, 2, 4, 4 }, 2, 2, 2, 2 },
    SpatialReflectionPadding = { image, 1, 0, 2, 1 }, SpatialReplicationPadding = { image, 1 },
    SpatialUpSamplingBilinear = { image, 2 }, UpSampling = { image, 2, "linear" },
    VolumetricConvolution = { volume, 1, 2, 2, 3, 2, 1, 1, 2, 1, 0, 1 },
    VolumetricFullConvolution = { volume, 1, 2, 2, 3, 2, 2, 1, 1, 0, 1, 0, 1 },
    VolumetricMaxPooling = { volume, 2, 2, 1 }, VolumetricAveragePooling = { volume, 1, 2, 3, 1, 1, 2 },
    VolumetricReplicationPadding = { volume, 1, 0, 1, 0, 2, 1 },
    VolumetricDilatedConvolution = { volume, 1, 2, 2, 2, 2 },
    VolumetricDilatedMaxPooling = { volume, 2, 2, 2, 1, 1, 1 },
    TemporalConvolution = { frames, 3, 2, 2, 1 }, TemporalMaxPooling = { frames, 2 },
    TemporalSubSampling = { frames, 3, 2, 2 }, TemporalRowConvolution = { frames, 3, 2 },
    SpatialSubtractiveNormalization = { image, 2, torch.ones(3, 3) },
    SpatialDivisiveNormalization = { image, 2, torch.ones(3) },
    SpatialContrastiveNormalization = { image, 2, torch.ones(3, 3) },
    SpatialConvolutionMap = { image, nn.tables.full(2, 3), 3, 2 },
    SpatialFullConvolutionMap = { image, nn.tables.oneToOne(2), 3, 2, 2, 1 },
    SpatialConvolutionLocal = { image, 2, 3, 5, 6, 3, 2, 1, 2, 1, 0 },
    SpatialDepthWiseConvolution = { image, 2, 3, 3, 2, 1, 1, 1, 0 }, WeightedEuclidean = { flat, 4, 3 },
    FeatureLPPooling = { flat, 2, 2, 2, true }, TemporalDynamicKMaxPooling = { frames, 3 }, Contiguous = { flat },
    LinearWeightNorm = { flat, 4, 3 }, Convert = { image, "bchw", "chwb" },
    Identity = { flat }, Narrow = { flat, 2, 2, 2 }, SoftPlus = { flat }, LeakyReLU = { flat, 0.2 },
  } do
    it(name .. " has the gradients that differences give", function()
      check(name, nn[name](unpack(case, 2)), torch.randn(unpack(case[1])))
    end)
  end

  it("containers too", function()
    local branch = nn.Sequential():add(nn.Linear(4, 3)):add(nn.Tanh())
    check("ConcatTable", nn.Sequential():add(nn.ConcatTable():add(branch):add(nn.Linear(4, 3))):add(nn.CMulTable()),
      torch.randn(2, 4))
    check("Concat", nn.Concat(2):add(nn.Linear(4, 3)):add(nn.Identity()), torch.randn(2, 4))
    check("ParallelTable", nn.Sequential():add(nn.ConcatTable():add(nn.Identity()):add(nn.Linear(4, 2)))
      :add(nn.ParallelTable():add(nn.Linear(4, 2)):add(nn.Tanh())):add(nn.JoinTable(1, 1)), torch.randn(2, 4))
    check("a layer inside a table", nn.Sequential():add(nn.SplitTable(2)):add(nn.CAddTable()), torch.randn(2, 3))
  end)

  it("containers of other kinds too", function()
    local function line() return nn.Linear(3, 2) end
    check("Parallel", nn.Parallel(2, 2):add(line()):add(nn.Linear(3, 4)), torch.randn(5, 2, 3))
    check("DepthConcat", nn.DepthConcat(2):add(nn.SpatialConvolution(1, 2, 1, 1))
      :add(nn.SpatialConvolution(1, 1, 3, 2)), torch.randn(1, 1, 4, 5))
    check("MapTable", nn.Sequential():add(nn.SplitTable(2)):add(nn.MapTable(line())):add(nn.JoinTable(1)),
      torch.randn(2, 3, 3))
    check("Bottle", nn.Bottle(line()), torch.randn(4, 2, 3))
    check("Decorator", nn.Decorator(line()), torch.randn(4, 3))
    local two = nn.SpatialConvolution(1, 1, 1, 1)
    local y = nn.DepthConcat(1):add(nn.Identity()):add(nn.Narrow(2, 1, 1)):forward(torch.ones(1, 3, 2))
    assert.same({ 2, 3, 2 }, y:size():totable())
    assert.same({ { 0, 0 }, { 1, 1 }, { 0, 0 } }, y[2]:totable())
    assert.equal(0, nn.MapTable(two):parameters()[1]:dim() - 4)
  end)

  it("layers of tables give what Torch7's documentation says", function()
    local a, b = torch.Tensor { { 1, 2 }, { 3, 4 } }, torch.Tensor { { 2, 0 }, { 3, 1 } }
    local function pair(m) -- checks m's gradients; returns its output for {a, b}
      check(tostring(m), nn.Sequential():add(nn.SplitTable(1)):add(m), torch.randn(2, 3, 2))
      return m:forward { a, b }
    end
    assert.near(1 / math.sqrt(5), pair(nn.CosineDistance())[1], 1e-10)
    assert.near(math.sqrt(5), pair(nn.PairwiseDistance(2))[1], 1e-12)
    assert.same({ 3, 3 }, pair(nn.PairwiseDistance(1)):totable())
    assert.same({ 4, 10 }, nn.MV():forward { torch.Tensor { { { 1, 2 }, { 3, 4 } } }, torch.Tensor { { 2, 1 } } }[1]
      :totable())
    assert.same({ 5, 8 }, nn.MV(true):forward { a, torch.Tensor { 2, 1 } }:totable())
    local gates = torch.Tensor { { 0.25, 0.75 }, { 1, 0 } }
    assert.same({ { 1.75, 0.5 }, { 3, 4 } }, nn.MixtureTable():forward { gates, { a, b } }:totable())
    assert.same({ { 3, 4 }, { 1, 2 } }, nn.Index(1):forward { a, torch.LongTensor { 2, 1 } }:totable())
    assert.same({ 1, 4 }, nn.MaskedSelect():forward { a, torch.ByteTensor { { 1, 0 }, { 0, 1 } } }:totable())
    assert.equal(b, nn.ZipTable():forward { { a, a }, { b, b } }[2][2]:raw() == nil or b)
    local zipped = nn.ZipTableOneToMany():forward { a, { b, a } }
    assert.is_true(zipped[1][1]:equal(a) and zipped[1][2]:equal(b) and zipped[2][2]:equal(a))
    assert.is_true(nn.CAddTensorTable():forward { a, { b } }[1]:equal(a + b))
    check("Bilinear", nn.Sequential():add(nn.SplitTable(1)):add(nn.Bilinear(2, 2, 3)), torch.randn(2, 3, 2))
  end)

  it("layers that only draw, fill or turn gradients", function()
    local x, g = torch.Tensor { { 1, -2 }, { 3, 4 } }, torch.ones(2, 2)
    local m = nn.GradientReversal(0.5)
    assert.is_true(m:forward(x):equal(x))
    assert.equal(-0.5, m:backward(x, g)[1][1])
    m = nn.L1Penalty(0.1)
    assert.is_true(m:forward(x):equal(x))
    assert.near(1, m.loss, 1e-12)
    assert.same({ { 1.1, 0.9 }, { 1.1, 1.1 } }, m:backward(x, g):totable())
    assert.equal(0, nn.ZeroGrad():backward(x, g):norm())
    assert.same({ { 7, 7 } }, nn.Constant(torch.Tensor { 7, 7 }, 2):forward(x:narrow(1, 1, 1)):view(1, 2):totable())
    assert.same({ { 0, 1, 0 } }, nn.OneHot(3):forward(torch.LongTensor { 2 }):totable())
    assert.same({ { 0, 0, 1, -2 }, { 0, 0, 3, 4 } }, nn.Padding(2, -2):forward(x):totable())
    assert.same({ { 1, 9, -2 }, { 3, 9, 4 } }, nn.Padding(2, 1, 2, 9, 2):forward(x):totable())
    assert.same({ 3, 2, 2 }, nn.Replicate(3):forward(x):size():totable())
    local noise = nn.WhiteNoise(0, 1)
    assert.is_false(noise:forward(x):equal(x))
    noise:evaluate()
    assert.is_true(noise:forward(x):equal(x))
    local drop, ones = nn.SpatialDropout(0.25), torch.ones(1, 40, 2, 2)
    for _, v in ipairs(drop:forward(ones):view(40, 4):sum(2):view(-1):totable()) do assert(v == 0 or v == 4) end
    drop:evaluate()
    assert.equal(0.75, drop:forward(ones)[1][1][1][1])
  end)

  it("share, replace, reset and steps of accUpdateGradParameters", function()
    local a, b = nn.Linear(2, 2), nn.Linear(2, 2)
    b:share(a, "weight", "bias")
    a.weight:fill(3)
    assert.equal(3, b.weight[1][1])
    assert.equal(6 + b.bias[1], b:forward(torch.ones(2))[1])
    local net = nn.Sequential():add(nn.Linear(2, 2)):add(nn.Tanh())
    net:replace(function(m) return torch.typename(m) == "nn.Tanh" and nn.ReLU() or m end)
    assert.equal("nn.ReLU", torch.typename(net:get(2)))
    a:reset()
    assert.is_true(a.weight:max() < 1)
    a:reset(0.001)
    assert.is_true(a.weight:max() <= 0.001 * math.sqrt(3))
    a:zeroGradParameters()
    local before, x = a.bias[1], torch.ones(2)
    a:forward(x)
    a:accUpdateGradParameters(x, torch.ones(2), 0.5)
    assert.near(before - 0.5, a.bias[1], 1e-12)
    assert.equal(0, a.gradBias[1])
    local criterion = nn.MSECriterion()
    local twin = criterion:clone()
    twin.sizeAverage = false
    assert.is_true(criterion.sizeAverage)
  end)

  it("take width before height, samples alone, and ceil", function()
    assert.same({ 1, 2, 8, 6 }, nn.SpatialConvolution(1, 2, 5, 3):forward(torch.randn(1, 1, 10, 10)):size():totable())
    assert.same({ 2, 8, 6 }, nn.SpatialConvolution(1, 2, 5, 3):forward(torch.randn(1, 10, 10)):size():totable())
    assert.same({ 1, 3, 12, 9 },
      nn.SpatialFullConvolution(2, 3, 4, 4, 2, 2, 1, 1, 1, 0):forward(torch.randn(1, 2, 6, 4)):size():totable())
    assert.same({ 3 }, nn.Linear(2, 3):forward(torch.randn(2)):size():totable())
    local x = torch.randn(1, 5, 5)
    assert.same({ 1, 2, 2 }, nn.SpatialMaxPooling(2, 2, 2, 2):forward(x):size():totable())
    assert.same({ 1, 3, 3 }, nn.SpatialMaxPooling(2, 2, 2, 2):ceil():forward(x):size():totable())
  end)

  it("compute with each argument: beta, divide, a constant; also when read from a file", function()
    local one = torch.ones(1)
    assert.near(math.log(1 + math.exp(2)) / 2, nn.SoftPlus(2):forward(one)[1], 1e-12)
    local sums = nn.SpatialAveragePooling(2, 2)
    sums.divide = false
    assert.equal(4, sums:forward(torch.ones(1, 2, 2))[1][1][1])
    for _, m in ipairs { nn.Constant(torch.Tensor { 7 }), nn.Padding(1, -1, 1, 7) } do
      assert.equal(7, torch.deserialize(torch.serialize(m)):forward(one)[1])
    end
    assert.same({ 0, 1, 1, 0 }, nn.CReLU(1, true):forward(torch.Tensor { -1, 1 }):totable())
    assert.error_matches(function() nn.Linear() end, "nn.Linear: inputSize is missing or nil; expected an integer of")
    assert.error_matches(function() nn.SpatialConvolution(3, 4) end, "nn.SpatialConvolution: kW is missing")
  end)

  it("LookupTable adds up gradients of its rows", function()
    local table_of = nn.LookupTable(4, 2)
    local index = torch.LongTensor { 2, 4, 2 }
    assert.is_true(table_of:forward(index)[1]:equal(table_of.weight[2]))
    table_of:zeroGradParameters()
    table_of:backward(index, torch.ones(3, 2))
    assert.same({ { 0, 0 }, { 2, 2 }, { 0, 0 }, { 1, 1 } }, table_of.gradWeight:totable())
  end)

  it("getParameters, updateParameters, modes, types, lists", function()
    local net = nn.Sequential():add(nn.Linear(2, 3)):add(nn.Dropout(0.5)):add(nn.Linear(3, 1))
    local x, dx = net:getParameters()
    assert.equal(13, x:nElement())
    x:fill(1)
    assert.equal(3, net:get(1).weight[1][1] + net:get(3).bias[1] + net:get(1).bias[2])
    net:evaluate()
    assert.equal(10, net:forward(torch.ones(1, 2))[1][1])
    net:backward(torch.ones(1, 2), torch.ones(1, 1))
    assert.equal(3, net:get(3).gradWeight[1][1])
    assert.equal(1, dx[13])
    net:updateParameters(0.5)
    assert.equal(0.5, net:get(3).bias[1])
    assert.is_false(net:get(2).train)
    assert.equal(2, #net:findModules "nn.Linear")
    assert.equal("torch.FloatTensor", net:float():forward(torch.FloatTensor(1, 2)):type())
    assert.is_truthy(tostring(net):find "nn.Sequential {\n  %[input .* output%]\n  %(1%): nn.Linear")
    assert.error_matches(function() net:add(3) end, "expected a module, got 3")
    assert.is_nil(nn.LSTMM)
  end)

  it("clone, sharing what is named", function()
    local net = nn.Sequential():add(nn.Linear(2, 2)):add(nn.Tanh())
    local x = torch.randn(3, 2)
    local twin, tied = net:clone(), net:clone("weight", "bias")
    assert.is_true(net:forward(x):equal(twin:forward(x)))
    net:get(1).weight:zero()
    net:get(1).bias:zero()
    assert.equal(0, tied:forward(x):norm())
    assert.is_true(twin:forward(x):norm() > 0)
  end)

  it("go back again when values in gradOutput have changed", function()
    local m, x, g = nn.Linear(2, 1), torch.randn(1, 2), torch.ones(1, 1)
    m:forward(x)
    local once = m:updateGradInput(x, g):clone()
    g:fill(2)
    assert.is_true(m:updateGradInput(x, g):equal(once * 2))
  end)

  it("take classes of one's own", function()
    local Scale, parent = torch.class("nn.SpecScale", "nn.Module")
    function Scale:__init(by)
      parent.__init(self)
      self.by = by
    end
    function Scale:updateOutput(x)
      self.output:resizeAs(x):copy(x):mul(self.by)
      return self.output
    end
    function Scale:updateGradInput(_, g)
      self.gradInput:resizeAs(g):copy(g):mul(self.by)
      return self.gradInput
    end
    check("own", nn.Sequential():add(nn.Linear(3, 2)):add(nn.SpecScale(3)):add(nn.Tanh()), torch.randn(2, 3))
  end)

  it("compute luminary's LeNet", function()
    local ours = lm.nn.Sequential(lm.nn.Conv2d(1, 2, 3), lm.nn.ReLU(), lm.nn.Flatten(), lm.nn.Linear(32, 4))
    ours:to "float64"
    local net = nn.Sequential():add(nn.SpatialConvolution(1, 2, 3, 3)):add(nn.ReLU()):add(nn.View(32))
      :add(nn.Linear(32, 4))
    local criterion, x, y = nn.CrossEntropyCriterion(), torch.randn(3, 1, 6, 6), torch.LongTensor { 1, 4, 2 }
    local p, dp = net:getParameters()
    local first = 1
    for _, each in ipairs(ours:parameters()) do
      p:narrow(1, first, each:numel()):copy(torch.wrap(each:detach():reshape { -1 }))
      first = first + each:numel()
    end
    local loss = lm.nn.CrossEntropyLoss()(ours(x:raw()), y:raw())
    loss:backward()
    assert.near(loss:item(), criterion:forward(net:forward(x), y), 1e-12)
    dp:zero()
    net:backward(x, criterion:backward(net.output, y))
    local _, want = ours:getParameters()
    assert.is_true(dp:raw():allclose(want, { atol = 1e-12 }))
  end)
end)

describe("nn.utils", function()
  it("goes through tables of tensors", function()
    local utils, x = nn.utils, torch.Tensor { 1, 2 }
    local a, b = utils.recursiveCopy(nil, { x, { x } })
    assert.is_true(a[2][1]:equal(x) and not rawequal(a[2][1], x))
    utils.recursiveAdd(a, 2, b)
    assert.same({ 3, 6 }, a[1]:totable())
    utils.recursiveFill(a, 4)
    assert.same({ 4, 4 }, a[2][1]:totable())
    assert.same({ 1, 2 }, x:totable())
    a = utils.recursiveResizeAs({ torch.Tensor(), torch.Tensor(), torch.Tensor() }, { x, x })
    assert.equal(2, #a)
    assert.equal(2, a[2]:nElement())
    assert.equal("torch.FloatTensor", utils.recursiveType({ x }, "torch.FloatTensor")[1]:type())
    assert.same({ 2, 1 }, utils.addSingletonDimension(x, 2):size():totable())
    local view = torch.Tensor()
    assert.same({ 1, 2 }, utils.addSingletonDimension(view, x, 1):size():totable())
    assert.same({ 1, 2 }, view:size():totable())
    assert.same({ 4 }, utils.contiguousView(nil, torch.ones(2, 2):t(), -1):size():totable())
    local object = utils.clear({ a = x:clone(), b = { 1 }, c = 3 }, "a", "b", "c")
    assert.same({ 0, 0 }, { object.a:nElement(), #object.b })
    assert.is_nil(object.c)
    assert.error_matches(function() utils.recursiveFill("x", 1) end, "expected a tensor or a table of them, got")
  end)
end)

describe("Torch7's criterions", function()
  local x, y = torch.Tensor { 0.3, 0.6 }, torch.Tensor { 1, 0 }
  for name, want in pairs {
    MSECriterion = (0.49 + 0.36) / 2, AbsCriterion = 0.65, SmoothL1Criterion = 0.2125,
    BCECriterion = -(math.log(0.3) + math.log(0.4)) / 2, DistKLDivCriterion = -0.15,
  } do
    it(name .. " and its gradient", function()
      local c = nn[name]()
      assert.near(want, c:forward(x, y), 1e-12)
      local g, e = c:backward(x, y), 1e-6
      local up = c:forward(torch.Tensor { 0.3 + e, 0.6 }, y)
      assert.near((up - want) / e, g[1], 1e-4)
      c.sizeAverage = false
      assert.near(2 * want, c:forward(x, y), 1e-12)
    end)
  end
  it("take targets of other sizes and as many elements, and no others", function()
    assert.near(0.425, nn.MSECriterion():forward(x:view(2, 1), y), 1e-12)
    assert.error_matches(function() nn.MSECriterion():forward(x, torch.zeros(3)) end, "input and target must have the")
  end)
  it("ClassNLLCriterion takes weights, and samples alone", function()
    local c = nn.ClassNLLCriterion(torch.Tensor { 1, 3 })
    assert.near((2 + 9) / 4, c:forward(torch.Tensor { { -2, -1 }, { -1, -3 } }, torch.Tensor { 1, 2 }), 1e-12)
    assert.near(3, nn.ClassNLLCriterion():forward(torch.Tensor { -2, -3 }, 2), 1e-12)
  end)
end)

describe("Torch7's criterions of other kinds", function()
  -- Checks each loss by hand, and its gradient by differences.
  local function loss(want, criterion, input, target)
    assert.near(want, criterion:forward(input, target), 1e-9)
    local g = criterion:backward(input, target)
    local list, grads = torch.isTensor(input) and { input } or input, torch.isTensor(g) and { g } or g
    for k, x in ipairs(list) do
      for i = 1, x:nElement() do
        local flat = x:view(-1)
        local before, e = flat[i], 1e-6
        flat[i] = before + e
        local up = criterion:forward(input, target)
        flat[i] = before
        assert.near((up - want) / e, grads[k]:view(-1)[i], 1e-4)
      end
    end
  end
  it("have the values of their formulas", function()
    local x, y = torch.Tensor { 0.5, -0.25 }, torch.Tensor { 1, -1 }
    loss((0.5 + 0.75) / 2, nn.MarginCriterion(), x, y)
    loss((math.log(1 + math.exp(-0.5)) + math.log(1 + math.exp(-0.25))) / 2, nn.SoftMarginCriterion(), x, y)
    loss((0.5 + 1.25) / 2, nn.HingeEmbeddingCriterion(1), x, y)
    loss(0.75, nn.L1Cost(), x)
    loss(0.25 / 2, nn.MultiMarginCriterion(), x, 1)
    local a, b = torch.Tensor { 1, 2 }, torch.Tensor { 3, 1 }
    loss(3, nn.L1HingeEmbeddingCriterion(), { a, b }, 1)
    loss(2, nn.L1HingeEmbeddingCriterion(5), { a, b }, -1)
    local cosine = 5 / math.sqrt(50)
    loss(1 - cosine, nn.CosineEmbeddingCriterion(), { a, b }, 1)
    loss(cosine - 0.5, nn.CosineEmbeddingCriterion(0.5), { a, b }, -1)
    loss((2.5 + 0) / 2, nn.MarginRankingCriterion(0.5), { a, b }, torch.Tensor { 1, 1 })
    loss((0.25 + 0.5625) / 2, nn.WeightedMSECriterion(torch.Tensor { 1, 0.5 }), x, torch.Tensor { 1, 1 })
    loss(0.85, nn.MultiLabelMarginCriterion(), torch.Tensor { 0.1, 0.2, 0.4, 0.8 }, torch.LongTensor { 4, 1, 0, 0 })
    loss((math.log(1 + math.exp(-0.5)) + math.log(1 + math.exp(-0.25))) / 2, nn.MultiLabelSoftMarginCriterion(),
      x:clone():view(1, 2), torch.Tensor { { 1, 0 } })
    local maps = torch.randn(1, 3, 2, 2)
    local logs = nn.SpatialLogSoftMax():forward(maps)
    loss(-(logs[1][2][1][1] + logs[1][1][1][2] + logs[1][3][2][1] + logs[1][3][2][2]) / 4,
      nn.SpatialClassNLLCriterion(), logs, torch.LongTensor { { { 2, 1 }, { 3, 3 } } })
  end)
  it("MultiCriterion and ParallelCriterion add up", function()
    local x, y = torch.Tensor { 0.5, -0.25 }, torch.Tensor { 1, 0 }
    local mse, abs = (0.25 + 0.0625) / 2, 0.375
    loss(mse + 2 * abs, nn.MultiCriterion():add(nn.MSECriterion()):add(nn.AbsCriterion(), 2), x, y)
    loss(mse + 3 * abs, nn.ParallelCriterion():add(nn.MSECriterion()):add(nn.AbsCriterion(), 3),
      { x:clone(), x:clone() }, { y, y })
    loss(2 * mse, nn.ParallelCriterion(true):add(nn.MSECriterion()):add(nn.MSECriterion()),
      { x:clone(), x:clone() }, y)
    assert.error_matches(function() nn.MultiCriterion():add(nn.Linear(1, 1)) end, "expected a criterion, got a table")
  end)
end)

describe("Torch7's training", function()
  it("optim's functions lower a loss", function()
    for name, config in pairs {
      sgd = { learningRate = 0.3, momentum = 0.5 }, adam = { learningRate = 0.1 }, rmsprop = { learningRate = 0.1 },
      adagrad = { learningRate = 0.5 }, lbfgs = { maxIter = 3 }, adamax = { learningRate = 0.1 },
      nag = { learningRate = 0.1 }, rprop = {}, asgd = { eta0 = 0.1 }, adadelta = { eps = 1e-2 },
    } do
      local x = torch.Tensor { 3, -2 }
      local function feval(at) return torch.cmul(at, at):sum() / 2, at:clone() end
      local first
      for _ = 1, 40 do
        local same, losses = optim[name](feval, x, config)
        assert.equal(x, same)
        first = first or losses[1]
      end
      assert.equal(6.5, first)
      assert.is_true(feval(x) < 0.5, name)
    end
  end)

  it("layers take an empty batch, forward and backward", function()
    for name, arguments in pairs {
      AddConstant = { 2 }, MulConstant = { 2 }, Max = { 2 }, Mean = { 2 }, Min = { 2 }, Sum = { 2 },
      Narrow = { 2, 1, 2 }, Select = { 2, 1 }, Reshape = { 2, 2 }, Squeeze = {}, Unsqueeze = { 2 },
      Transpose = { { 1, 2 } }, View = { -1, 2, 2 },
    } do
      local net, x = lm.nn[name](unpack(arguments)), lm.zeros({ 0, 4 }, { requires_grad = true })
      local wanted = net(lm.rand(2, 4)).shape
      wanted[name == "Transpose" and 2 or 1] = 0
      local y = net(x)
      assert.same(wanted, y.shape, name)
      y:sum():backward()
      assert.same({ 0, 4 }, x.grad.shape, name)
    end
  end)

  it("optim.checkgrad takes these tensors", function()
    local off, grad = optim.checkgrad(function(at) return torch.cmul(at, at):sum(), at * 2 end, torch.Tensor { 3, -2 })
    assert.is_true(off < 1e-6)
    assert.same({ 6, -4 }, grad:totable())
  end)

  it("torch7/mnist.lua learns, and logs", function()
    local folder = temp.folder()
    local ok, out = temp.run(folder, "luajit torch7/mnist.lua -trainSize 4000 -testSize 500 -save " .. folder)
    assert.is_true(ok, out)
    local last
    for percent in out:gmatch "global correct: ([%d.]+)%%" do last = tonumber(percent) end
    assert.is_true(last > 40, out)
    assert.is_truthy(temp.read(folder .. "/train.log"):find("learningRate\t0.02\n", 1, true))
    assert.is_truthy(temp.read(folder .. "/accuracy.log"):find "%(test%)\t\n +%d")
    temp.remove(folder)
  end)
end)

describe("a layer's formula", function()
  local Leaf = require "luminary.torch7.nn.leaf"
  local x, y = torch.randn(4, 6), torch.randn(4, 6)
  local function same(a, b)
    if type(a) ~= "table" then return assert.is_true(a:isSameSizeAs(b) and (a - b):abs():max() < 1e-12) end
    assert.equal(#b, #a)
    for i, v in ipairs(a) do same(v, b[i]) end
  end
  it("gives what the recorded graph gives", function()
    for name, case in pairs {
      Linear = { nn.Linear(6, 3), x, torch.randn(4, 3) }, CAddTable = { nn.CAddTable(), { x, y, x }, y },
      CMulTable = { nn.CMulTable(), { x, y, x }, x }, Reshape = { nn.Reshape(2, 3), x, torch.randn(4, 2, 3) },
      View = { nn.View(3, 8), x, torch.randn(3, 8) },
      SplitTable = { nn.SplitTable(1, 1), x, { torch.randn(4), torch.randn(4), torch.randn(4), torch.randn(4),
        torch.randn(4), torch.randn(4) } },
    } do
      local layer, input, g = unpack(case)
      local twin = layer:clone()
      assert.is_true(layer.__of_output ~= nil or layer.updateOutput ~= Leaf.updateOutput, name)
      twin.__of_output = false -- records a graph
      for _ = 1, 2 do
        same(layer:forward(input), Leaf.updateOutput(twin, input))
        same(layer:backward(input, g, 0.5), Leaf.updateGradInput(twin, input, g))
        Leaf.accGradParameters(twin, input, g, 0.5)
      end
      if layer.gradWeight then same({ layer.gradWeight, layer.gradBias }, { twin.gradWeight, twin.gradBias }) end
    end
  end)
  it("leaves other inputs to the graph, and has no bias without one", function()
    local layer = nn.Linear(6, 3)
    same(layer:forward(x)[2], layer:forward(x[2]:clone()))
    assert.equal(6, layer:backward(x[2], torch.ones(3)):nElement())
    layer.bias, layer.gradBias = nil, nil
    same(layer:forward(x), x * layer.weight:t())
    same(nn.CMulTable():forward { x, y, x }, torch.cmul(x, y):cmul(x))
    assert.error_matches(function() nn.Tanh():backward(x, torch.ones(3)) end, "the numbers of elements must match")
  end)
end)

describe("backward after the input's memory was used again", function()
  local function positive(...)
    local t = torch.Tensor(...)
    local n = 0
    return t:apply(function()
      n = n + 1
      return math.abs(math.sin(n * 1.7)) + 0.1
    end)
  end
  local function filled(input, v)
    for _, t in ipairs(type(input) == "table" and input or { input }) do t:fill(v):view(-1)[1] = v + 0.2 end
  end
  local function same(a, b)
    for i, t in ipairs(type(a) == "table" and a or { a }) do
      assert.near(0, (t - (type(b) == "table" and b[i] or b)):abs():max(), 1e-6)
    end
  end
  local flat, image, volume = { 3, 4 }, { 2, 4, 4 }, { 2, 4, 4, 4 }
  for _, kind in ipairs { "torch.DoubleTensor", "torch.FloatTensor" } do
    for name, case in pairs {
      Tanh = { flat }, Sigmoid = { flat }, SoftMax = { flat }, LogSoftMax = { flat }, SoftMin = { flat },
      Exp = { flat },
      Sqrt = { flat }, LogSigmoid = { flat }, ELU = { flat, 0.5 }, SoftPlus = { flat, 2 }, TanhShrink = { flat },
      SpatialSoftMax = { image }, SpatialLogSoftMax = { image }, Max = { flat, 2 }, Min = { flat, 1 },
      SpatialMaxPooling = { image, 2, 2 }, SpatialDilatedMaxPooling = { image, 2, 2, 1, 1, 0, 0, 2, 2 },
      SpatialAdaptiveMaxPooling = { image, 2, 3 }, SpatialFractionalMaxPooling = { { 1, 2, 6, 6 }, 2, 2, 3, 3 },
      VolumetricMaxPooling = { volume, 2, 2, 2 }, TemporalMaxPooling = { flat, 2 }, Euclidean = { flat, 4, 2 },
      TemporalDynamicKMaxPooling = { flat, 2 }, CReLU = { flat, 1 }, CMaxTable = {}, CMinTable = {},
    } do
      it(("is %s's as Torch7's, from the output, indices or buffers, in a %s"):format(name, kind), function()
        local layer = nn[name](unpack(case, 2)):type(kind)
        local function made()
          if case[1] then return positive(unpack(case[1])):type(kind) end
          return { positive(3, 4):type(kind), positive(4, 3):t():contiguous():type(kind) }
        end
        local input = made()
        local g = layer:forward(input):clone()
        g:copy(positive(g:size()))
        local wanted = nn.utils.recursiveCopy(nil, layer:backward(input, g))
        layer:forward(made())
        if name:find "Fractional" then layer:fixPoolingRegions() end
        layer:forward(input)
        wanted = nn.utils.recursiveCopy(wanted, layer:backward(input, g))
        filled(input, 0.5)
        same(layer:backward(input, g), wanted)
        same(layer:updateGradInput(made(), g), wanted)
        filled(input, 0.1)
        same(layer:updateGradInput(input, g), wanted)
      end)
    end
  end
  it("or before a layer that changes the output in place", function()
    local x, g = positive(3, 4), positive(3, 4)
    for _, first in ipairs { "Exp", "SoftMax", "Tanh", "Euclidean", "Cosine", "Normalize", "LogSigmoid" } do
      local layer = nn[first](first == "Normalize" and 2 or 4, 4)
      local twin = layer:clone()
      for _, second in ipairs { nn.AddConstant(1, true), nn.MulConstant(2, true), nn.ReLU(true) } do
        local net = nn.Sequential():add(layer):add(second)
        net:forward(x)
        local dx = net:backward(x, g:clone())
        second.inplace = false
        local plain = nn.Sequential():add(twin):add(second)
        plain:forward(x)
        if first ~= "LogSigmoid" or torch.type(second) ~= "nn.ReLU" then same(dx, plain:backward(x, g:clone())) end
      end
    end
  end)
end)

describe("training and evaluate of a container", function()
  it("call those of its modules", function()
    local calls, place = {}, {}
    local Own = torch.class("spec.Own", "nn.Module", place)
    function Own.training() calls[#calls + 1] = "training" end
    function Own.evaluate() calls[#calls + 1] = "evaluate" end
    local net = nn.Sequential():add(nn.Sequential():add(place.Own())):add(nn.Tanh())
    net:evaluate()
    net:training()
    assert.same({ "evaluate", "training" }, calls)
    assert.is_true(net.train and net:get(1).train and net:get(2).train)
  end)
end)

describe("the text of", function()
  it("a layer and a container is Torch7's", function()
    local inner = nn.Sequential():add(nn.View(-1)):add(nn.Linear(3, 2, false))
    local net = nn.Sequential():add(nn.SpatialConvolution(3, 8, 3, 3, 1, 1, 1, 1)):add(nn.SpatialBatchNormalization(8))
      :add(nn.SpatialMaxPooling(2, 2)):add(nn.ConcatTable():add(nn.ReLU()):add(inner))
    assert.equal([[nn.Sequential {
  [input -> (1) -> (2) -> (3) -> (4) -> output]
  (1): nn.SpatialConvolution(3 -> 8, 3x3, 1,1, 1,1)
  (2): nn.SpatialBatchNormalization (4D) (8)
  (3): nn.SpatialMaxPooling(2x2, 2,2)
  (4): nn.ConcatTable {
    input
      |`-> (1): nn.ReLU
       `-> (2): nn.Sequential {
             [input -> (1) -> (2) -> output]
             (1): nn.View(-1)
             (2): nn.Linear(3 -> 2) without bias
           }
       ... -> output
  }
}]], tostring(net))
    for text, layer in pairs {
      ["nn.SpatialConvolution(3 -> 8, 5x5, 2,2)"] = nn.SpatialConvolution(3, 8, 5, 5, 2, 2),
      ["nn.SpatialFullConvolution(1 -> 2, 4x4, 2,2, 1,1, 1,1)"] = nn.SpatialFullConvolution(1, 2, 4, 4, 2, 2, 1, 1, 1,
        1),
      ["nn.SpatialDilatedConvolution(1 -> 2, 3x3, 2,2)"] = nn.SpatialDilatedConvolution(1, 2, 3, 3, 1, 1, 0, 0, 2, 2),
      ["nn.VolumetricMaxPooling(2x2x2, 2,2,2)"] = nn.VolumetricMaxPooling(2, 2, 2),
      ["nn.Dropout(0.300000)"] = nn.Dropout(0.3), ["nn.Reshape(2x3)"] = nn.Reshape(2, 3), ["nn.Tanh"] = nn.Tanh(),
      ["nn.SpatialZeroPadding(l=1, r=2, t=3, b=4)"] = nn.SpatialZeroPadding(1, 2, 3, 4),
    } do
      assert.equal(text, tostring(layer))
    end
  end)
end)

describe("Torch7's fields and sizes", function()
  it("CAddTable and its kind need equal numbers of elements, and keep the sizes of the first", function()
    local row, column = torch.Tensor { 1, 2, 3 }, torch.Tensor { { 1 }, { 2 }, { 4 } }
    for name, want in pairs { CAddTable = { 2, 4, 7 }, CSubTable = { 0, 0, -1 }, CMulTable = { 1, 4, 12 },
      CDivTable = { 1, 1, 0.75 }, CMaxTable = { 1, 2, 4 }, CMinTable = { 1, 2, 3 } } do
      local layer = nn[name]()
      assert.same(want, layer:forward({ row, column }):totable(), name)
      assert.same({ 3, 1 }, layer:backward({ row, column }, torch.ones(3))[2]:size():totable(), name)
      assert.error_matches(function() layer:forward { torch.ones(2, 3), torch.ones(1, 3) } end,
        "nn." .. name .. ": the numbers of elements must match, got sizes 2x3 and 1x3$")
    end
  end)

  it("Dropout.noise is the factor of each element, SpatialConvolutionMM's weight a matrix", function()
    local drop, x = nn.Dropout(0.2), torch.ones(50)
    assert.is_true(drop:forward(x):equal(drop.noise))
    assert.same({ 5, 2 * 3 * 4 }, nn.SpatialConvolutionMM(2, 5, 4, 3).weight:size():totable())
  end)

  it("scaleGradByFreq divides the gradient of an index by its count", function()
    local lookup = nn.LookupTable(4, 1):scaleGradByFreq()
    local index = torch.LongTensor { 2, 2, 3 }
    lookup:zeroGradParameters()
    lookup:forward(index)
    lookup:backward(index, torch.Tensor { { 1 }, { 3 }, { 5 } })
    assert.same({ { 0 }, { 2 }, { 5 }, { 0 } }, lookup.gradWeight:totable())
  end)

  it("dims count in samples if the input has one more dim than those", function()
    local x = torch.range(1, 6):view(2, 3)
    assert.same({ { 5, 7, 9 } }, nn.Sum(1, -1, false, false):forward(x):totable())
    assert.same({ 2.5, 3.5, 4.5 }, nn.Mean(1, -1):forward(x):totable())
    assert.same({ 6, 15 }, nn.Sum(1, 1):forward(x):totable())
    assert.same({ 2, 2, 3, 1 }, nn.JoinTable(1, 1):forward({ torch.ones(1, 2, 3, 1), torch.ones(1, 2, 3, 1) }):size()
      :totable())
    local transpose = nn.Transpose({ 1, 2 }):setNumInputDims(2)
    assert.same({ 2, 3, 5, 4 }, transpose:forward(torch.ones(2, 3, 4, 5)):size():totable())
  end)

  it("a script's own decorator and container are called in backward", function()
    local Doubled, parent = torch.class("nn.SpecDoubled", "nn.Decorator")
    function Doubled:updateGradInput(input, gradOutput)
      self.gradInput = parent.updateGradInput(self, input, gradOutput) * 2
      return self.gradInput
    end
    local net = nn.SpecDoubled(nn.MulConstant(3))
    net:forward(torch.ones(1))
    assert.equal(6, net:backward(torch.ones(1), torch.ones(1))[1])
    local Own = torch.class("nn.SpecOwn", "nn.Container")
    function Own:updateOutput(input)
      self.output = self:rethrowErrors(self.modules[1], 1, "updateOutput", input)
      return self.output
    end
    assert.equal(3, nn.SpecOwn():add(nn.MulConstant(3)):forward(torch.ones(1))[1])
  end)

  it("insert and remove refuse positions beyond the modules", function()
    local net = nn.Sequential():add(nn.Tanh())
    assert.error_matches(function() net:insert(nn.Tanh(), 3) end, "Sequential:insert: index must be from 1 to 2, got 3")
    assert.error_matches(function() net:remove(2) end, "Sequential:remove: index must be from 1 to 1, got 2")
    assert.equal(1, #net.modules)
  end)
end)

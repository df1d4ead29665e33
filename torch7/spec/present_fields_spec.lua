-- Tests that Torch7's modules compute with the fields they have now, share memory, and are extended as scripts do.
local torch = require "luminary.torch7"
local nn, optim = torch.nn, torch.optim

setup(function() torch.manualSeed(3) end)

local function sum(t) return t:sum() end

describe("a layer", function()
  it("computes with the weight and bias it has now: assigned, set, absent", function()
    local x = torch.ones(1, 2)
    local l = nn.Linear(2, 2)
    l:forward(x)
    l.weight, l.bias = torch.ones(2, 2), torch.zeros(2)
    assert.equal(4, sum(l:forward(x)))
    l.weight:set(torch.ones(2, 2) * 3)
    assert.equal(12, sum(l:forward(x)))
    l.bias:fill(1)
    assert.equal(14, sum(l:forward(x)))
    l:noBias()
    assert.equal(12, sum(l:forward(x)))
    assert.equal(1, #l:parameters())
    l.bias, l.gradBias = torch.ones(2) * 5, torch.zeros(2)
    assert.equal(22, sum(l:forward(x)))
    l:backward(x, torch.ones(1, 2))
    assert.equal(2, sum(l.gradBias))
  end)

  it("goes back through the input that backward is given, with its present parameters", function()
    local square, x = nn.Square(), torch.Tensor { 1, 2 }
    square:forward(x)
    assert.same({ 6, 8 }, square:backward(torch.Tensor { 3, 4 }, torch.ones(2)):totable())
    x:fill(5)
    assert.same({ 10, 10 }, square:backward(x, torch.ones(2)):totable())
    local l = nn.Linear(1, 1)
    x = torch.ones(1, 1)
    l:forward(x)
    l.weight:fill(7)
    assert.equal(7, l:backward(x, torch.ones(1, 1))[1][1])
  end)

  it("keeps running values and noise when backward computes again", function()
    local norm, x = nn.BatchNormalization(2), torch.randn(4, 2)
    norm:forward(x)
    local mean = norm.running_mean:clone()
    norm:backward(torch.randn(4, 2), torch.randn(4, 2))
    assert.is_true(mean:equal(norm.running_mean))
    local drop = nn.Dropout(0.5)
    local y = drop:forward(torch.ones(50)):clone()
    assert.is_true(drop:backward(torch.ones(50) * 2, torch.ones(50)):equal(y))
  end)

  it("transposes in nn.MM, and has the fields of Torch7", function()
    local a, b = torch.randn(3, 2), torch.randn(4, 3)
    assert.is_true(nn.MM(true, true):forward { a, b }:equal(torch.mm(a:t():clone(), b:t():clone())))
    local c = nn.SpatialConvolution(3, 4, 5, 6)
    assert.same({ 3, 4, 5, 6, 1, 0 }, { c.nInputPlane, c.nOutputPlane, c.kW, c.kH, c.dW, c.padH })
    assert.same({ 2, 2, 3 }, { nn.SpatialMaxPooling(2, 2).dW, nn.JoinTable(2).dimension, nn.SelectTable(3).index })
    local pool = nn.SpatialMaxPooling(2, 2):ceil()
    assert.equal(2, pool:forward(torch.ones(1, 3, 3)):size(2))
    assert.equal(1, pool:floor():forward(torch.ones(1, 3, 3)):size(2))
    assert.equal(0.5, nn.Dropout().p)
    assert.error_matches(function() nn.Dropout(1) end, "must be a number from 0 to below 1")
  end)

  it("takes any type of index in LookupTable", function()
    local table_ = nn.LookupTable(3, 2)
    for _, kind in ipairs { "Float", "Double", "Int", "Long" } do
      assert.is_true(table_:forward(torch[kind .. "Tensor"] { 3, 1 })[1]:equal(table_.weight[3]))
    end
    assert.error_matches(function() table_:forward(torch.Tensor { 4 }) end, "index 4 is out of range for 3 rows")
  end)

  it("changes its input in place where that is its argument", function()
    local x = torch.Tensor { -1, 2 }
    assert.is_true(nn.ReLU(true):forward(x) == x)
    assert.same({ 0, 2 }, x:totable())
    local add = nn.AddConstant(1, true)
    add:forward(x)
    add:backward(x, torch.ones(2))
    assert.same({ 0, 2 }, x:totable())
  end)
end)

describe("memory that modules share", function()
  it("counts once in getParameters and stays shared, also across conversions", function()
    local a = nn.Linear(2, 2)
    local net = nn.ParallelTable():add(a):add(a:clone("weight", "bias", "gradWeight", "gradBias"))
    local x = net:getParameters()
    assert.equal(6, x:nElement())
    x:fill(4)
    assert.equal(4, net:get(2).weight[2][2])
    net:float()
    net:get(1).weight:fill(9)
    assert.equal(9, net:get(2).weight[1][1])
    assert.equal("torch.FloatTensor", net:get(2).gradBias:type())
    assert.equal(6, net:getParameters():nElement())
  end)

  it("keeps the order of parameters", function()
    local net = nn.Sequential():add(nn.Linear(1, 1)):add(nn.Linear(1, 1))
    local list = net:parameters()
    for i, p in ipairs(list) do p:fill(i) end
    assert.same({ 1, 2, 3, 4 }, net:getParameters():totable())
    list[3]:fill(8)
    assert.same({ 1, 2, 8, 4 }, net:getParameters():totable())
  end)
end)

describe("classes", function()
  it("take operators that are set later, and make objects by new", function()
    local base = torch.class("nn.SpecBase", "nn.Module")
    local made = nn.SpecBase.new()
    torch.class("nn.SpecChild", "nn.SpecBase")
    base.__call__ = function(_, v) return v * 2 end
    base.__add__ = function() return "added" end
    assert.equal(6, made(3))
    assert.equal(8, nn.SpecChild()(4))
    assert.equal("added", nn.SpecChild() + made)
    assert.error_matches(function() return made - made end, "no method __sub__")
    assert.is_true(torch.isTypeOf(nn.SpecChild(), "SpecBase"))
    assert.is_true(torch.isTypeOf(nn.SpecChild(), nn.SpecBase))
    assert.is_false(torch.isTypeOf(nn.SpecChild(), "nn.Spec"))
  end)
end)

describe("nn.Jacobian", function()
  it("finds a wrong gradient", function()
    assert(nn.Jacobian.testJacobian(nn.Tanh(), torch.Tensor(2, 3)) < 1e-6)
    local l, x = nn.Linear(3, 2), torch.Tensor(2, 3)
    assert(nn.Jacobian.testJacobianParameters(l, x, l.weight, l.gradWeight) < 1e-6)
    assert(nn.Jacobian.testJacobianUpdateParameters(l, x, l.bias) < 1e-6)
    assert.equal(0, (nn.Jacobian.testIO(l, x)))
    for _, e in pairs(nn.Jacobian.testAllUpdate(l, x, "weight", "gradWeight")) do assert(e < 1e-6) end
    local wrong = nn.Tanh()
    function wrong.updateGradInput(_, _, g) return g end
    assert(nn.Jacobian.testJacobian(wrong, torch.Tensor(2, 3)) > 0.1)
  end)
end)

describe("layers of layers", function()
  it("WeightNorm, MaxUnpooling, DontCast, NaN and SelectTable", function()
    local norm, x = nn.WeightNorm(nn.Linear(3, 2)), torch.randn(4, 3)
    for name, grad in pairs { v = "gradV", g = "gradG", bias = "gradBias" } do
      assert(nn.Jacobian.testJacobianParameters(norm, x, norm[name], norm[grad], 0.5, 1) < 1e-6, name)
    end
    local pool = nn.SpatialMaxPooling(2, 2)
    local y = pool:forward(torch.Tensor { { { 1, 2 }, { 4, 3 } } })
    assert.same({ { { 0, 0 }, { 4, 0 } } }, nn.SpatialMaxUnpooling(pool):forward(y):totable())
    local kept = nn.DontCast(nn.Linear(3, 2):float(), true):double()
    assert.equal("torch.DoubleTensor", kept:forward(x):type())
    assert.equal("torch.FloatTensor", kept:get(1).weight:type())
    assert.error_matches(function() nn.NaN(nn.Sqrt()):forward(torch.Tensor { -1 }) end, "NaN found in output")
    local pick = nn.SelectTable(-1)
    assert.is_true(pick:forward { x, y } == y)
    assert.equal(0, pick:backward({ x, y }, y)[1]:norm())
  end)
end)

describe("optim", function()
  local function valley(x) -- Rosenbrock's function and its gradient
    local a, b = x[1], x[2]
    return (1 - a) ^ 2 + 100 * (b - a * a) ^ 2,
      torch.Tensor { -2 * (1 - a) - 400 * a * (b - a * a), 200 * (b - a * a) }
  end

  it("cg, cmaes and de find a minimum", function()
    for name, config in pairs { cg = { maxIter = 60, maxEval = 300 }, cmaes = { maxEval = 3000, ftarget = 1e-10 },
      de = { popsize = 30, maxFEs = 6000, crossoverRate = 0.9, maxRegion = 2, minRegion = -2 } } do
      torch.manualSeed(1)
      local x = torch.zeros(2)
      local _, losses = optim[name](valley, x, config)
      assert(#losses > 1, name)
      assert(valley(x) < 1e-4, name)
    end
  end)

  it("keeps states of Torch7's tensors, which torch.save writes", function()
    for _, name in ipairs { "sgd", "adam", "rmsprop", "adagrad", "adadelta", "lbfgs" } do
      local x, state = torch.Tensor { -1, 1 }, { learningRate = 1e-3, momentum = 0.5, maxIter = 2, other = "text" }
      if name ~= "sgd" then state.momentum = nil end
      optim[name](valley, x, state)
      local twin, y = torch.deserialize(torch.serialize(state)), x:clone()
      optim[name](valley, x, state)
      optim[name](valley, y, twin)
      assert.is_true(x:equal(y), name)
    end
    local state = { maxIter = 3 }
    optim.lbfgs(valley, torch.zeros(2), state)
    assert(state.nIter >= 1 and state.funcEval >= state.nIter)
  end)

  it("ConfusionMatrix counts in a tensor", function()
    local c = optim.ConfusionMatrix { "cat", "dog" }
    c:batchAdd(torch.Tensor { { 0.9, 0.1 }, { 0.2, 0.8 }, { 0.6, 0.4 } }, torch.Tensor { 1, 2, 2 })
    c:add(torch.Tensor { 1, 0 }, 0)
    assert.equal(3, c.mat:sum())
    c:updateValids()
    assert.near(2 / 3, c.totalValid, 1e-6)
    assert.near(0.5, c.valids[2], 1e-6)
    local _, far = c:farFrr()
    assert.near(0.5, far[1], 1e-6)
    assert.is_truthy(tostring(c):find "global correct")
    assert.is_true(torch.deserialize(torch.serialize(c)).mat:equal(c.mat))
  end)
end)

-- Tests Torch7's way to train: all parameters and gradients as two vectors, and optimizers that are functions.
local lm = require "luminary"
require "luminary.torch7"
local nn, optim, F = lm.nn, lm.optim, lm.nn.functional

-- Computes sum(c * x^2) / 2 and its gradient c * x. The numbers change sign and size.
local CURVE, START = { 1, 10, 0.1 }, { 1.5, -0.7, 3 }
local function quadratic(x)
  local c = lm.tensor(CURVE, { dtype = "float64" })
  return (c * x * x):sum() / 2, c * x
end

-- Returns the result of a scalar update rule after some steps, for each of the three numbers.
local function by_hand(steps, rule)
  local values = {}
  for i, x in ipairs(START) do
    local state = {}
    for t = 1, steps do x = rule(x, CURVE[i] * x, t, state) end
    values[i] = x
  end
  return values
end

local function run(steps, name, config, state)
  local x = lm.tensor(START, { dtype = "float64" })
  for _ = 1, steps do
    local same, losses = optim[name](quadratic, x, config, state)
    assert.equal(x, same)
    assert.is_number(losses[1])
  end
  return x:totable()
end

local function near(expected, got)
  for i = 1, #expected do assert.near(expected[i], got[i], 1e-12 * math.max(1, math.abs(expected[i]))) end
end

describe("Torch7's optimizers", function()
  it("sgd with decay of rate and weights", function()
    near(by_hand(30, function(x, g, t) return x - 0.05 / (1 + (t - 1) * 0.1) * (g + 0.01 * x) end),
      run(30, "sgd", { learningRate = 0.05, learningRateDecay = 0.1, weightDecay = 0.01 }))
  end)
  it("sgd with momentum, whose dampening is the momentum unless given", function()
    for _, dampening in ipairs { 0.9, 0, 0.5 } do
      near(by_hand(30, function(x, g, _, state)
        state.v = state.v and 0.9 * state.v + (1 - dampening) * g or g
        return x - 0.01 * state.v
      end), run(30, "sgd", { learningRate = 0.01, momentum = 0.9, dampening = dampening ~= 0.9 and dampening or nil }))
    end
    near(by_hand(30, function(x, g, _, state)
      state.v = state.v and 0.9 * state.v + g or g
      return x - 0.01 * (g + 0.9 * state.v)
    end), run(30, "sgd", { learningRate = 0.01, momentum = 0.9, dampening = 0, nesterov = true }))
  end)
  it("sgd and nag with a learning rate and a weight decay for each element", function()
    local rates, decays = lm.tensor { 2, 1, 0 }, lm.tensor { 0.5, 0, 1 }
    local x = lm.tensor(START, { dtype = "float64" })
    optim.sgd(quadratic, x, { learningRate = 0.1, learningRates = rates, weightDecays = decays })
    near({ 1.5 - 0.2 * (1.5 + 0.75), -0.7 + 0.1 * 7, 3 }, x:totable())
    x = lm.tensor(START, { dtype = "float64" })
    optim.nag(quadratic, x, { learningRate = 0.1, learningRates = rates })
    near({ 1.5 - 0.2 * 1.5, -0.7 + 0.1 * 7, 3 }, x:totable())
  end)
  it("adam", function()
    near(by_hand(30, function(x, g, t, state)
      state.m = 0.8 * (state.m or 0) + 0.2 * g
      state.v = 0.99 * (state.v or 0) + 0.01 * g * g
      return x - 0.1 * math.sqrt(1 - 0.99 ^ t) / (1 - 0.8 ^ t) * state.m / (math.sqrt(state.v) + 1e-3)
    end), run(30, "adam", { learningRate = 0.1, beta1 = 0.8, beta2 = 0.99, epsilon = 1e-3 }))
  end)
  it("adagrad", function()
    near(by_hand(30, function(x, g, t, state)
      state.s = (state.s or 0) + g * g
      return x - 0.1 / (1 + (t - 1) * 0.05) * g / (math.sqrt(state.s) + 1e-10)
    end), run(30, "adagrad", { learningRate = 0.1, learningRateDecay = 0.05 }))
  end)
  it("rmsprop", function()
    near(by_hand(30, function(x, g, _, state)
      g = g + 0.1 * x
      state.m = 0.9 * (state.m or 0.5) + 0.1 * g * g
      return x - 0.02 * g / (math.sqrt(state.m) + 1e-8)
    end), run(30, "rmsprop", { learningRate = 0.02, alpha = 0.9, initialMean = 0.5, weightDecay = 0.1 }))
  end)
  it("adamax", function()
    near(by_hand(30, function(x, g, t, state)
      state.m = 0.9 * (state.m or 0) + 0.1 * g
      state.u = math.max(0.99 * (state.u or 0), math.abs(g) + 1e-3)
      return x - 0.1 / (1 - 0.9 ^ t) * state.m / state.u
    end), run(30, "adamax", { learningRate = 0.1, beta2 = 0.99, epsilon = 1e-3 }))
  end)
  it("adadelta", function()
    near(by_hand(30, function(x, g, _, state)
      g = g + 0.1 * x
      state.v = 0.8 * (state.v or 0) + 0.2 * g * g
      local step = math.sqrt((state.d or 0) + 1e-3) / math.sqrt(state.v + 1e-3) * g
      state.d = 0.8 * (state.d or 0) + 0.2 * step * step
      return x - step
    end), run(30, "adadelta", { rho = 0.8, eps = 1e-3, weightDecay = 0.1 }))
  end)
  it("nag, whose gradient is that of where the velocity leads", function()
    local values = {}
    for i, x in ipairs(START) do
      local v = 0
      for t = 1, 30 do
        v = 0.8 * v
        x = x + v
        local step = -0.02 / (1 + (t - 1) * 0.1) * CURVE[i] * x
        x, v = x + step, v + step
      end
      values[i] = x
    end
    near(values, run(30, "nag", { learningRate = 0.02, learningRateDecay = 0.1, momentum = 0.8 }))
    assert.error_matches(function() run(1, "nag", { momentum = 0 }) end, "momentum must be above 0, got 0")
  end)
  it("rprop", function()
    near(by_hand(30, function(x, g, _, state)
      local sign = g * (state.g or 0)
      state.step = (state.step or 0.3) * (sign > 0 and 1.2 or sign < 0 and 0.5 or 1)
      state.step = math.max(0.01, math.min(0.4, state.step))
      state.g = sign < 0 and 0 or g
      return x - state.step * (state.g > 0 and 1 or state.g < 0 and -1 or 0)
    end), run(15, "rprop", { stepsize = 0.3, stepsizemax = 0.4, stepsizemin = 0.01, niter = 2 }))
  end)
  it("asgd, and its average", function()
    local config = { eta0 = 0.05, lambda = 0.1, alpha = 0.5, t0 = 3 }
    local averages = {}
    near(by_hand(10, function(x, g, t, state)
      local eta = 0.05 / (1 + 0.1 * 0.05 * (t - 1)) ^ 0.5
      x = x * (1 - 0.1 * eta) - eta * g
      state.a = state.a and state.a + (x - state.a) / math.max(1, t - 1 - 3) or x
      if t == 10 then averages[#averages + 1] = state.a end
      return x
    end), run(10, "asgd", config))
    near(averages, config.ax:totable())
    local _, _, average = optim.asgd(quadratic, lm.tensor(START, { dtype = "float64" }))
    assert.near(START[3], average[3], 1e-3)
  end)
  it("say which class takes parameters", function()
    for name, class in pairs { sgd = "SGD", adam = "Adam", rmsprop = "RMSprop", lbfgs = "LBFGS", adamax = "Adamax" } do
      assert.is_truthy(optim[class])
      local ok, message = pcall(function() optim[name](nn.Linear(2, 2):parameters(), { lr = 0.1 }) end)
      assert(not ok)
      assert.matches(("feval_optimizers_spec.lua:%%d+: %s: feval must be a function, got a table; optim.%s is the "
        .. "class that takes a list of parameters$"):format(name, class), message)
    end
  end)
  it("checkgrad compares with differences", function()
    local x = lm.tensor(START, { dtype = "float64" })
    local off, grad, estimate = optim.checkgrad(quadratic, x, 1e-5)
    assert.is_true(off < 1e-8)
    assert.is_true(grad:allclose(estimate, { atol = 1e-6 }))
    assert.same(START, x:totable())
    assert.near(1 / 3, (optim.checkgrad(function(at)
      local loss, g = quadratic(at)
      return loss, g * 2
    end, x, 1e-5)), 1e-6)
  end)
  it("lbfgs, which is optim.LBFGS", function()
    for _, search in ipairs { false, true } do
      local config = { maxIter = 3, maxEval = 3, learningRate = 0.5, lineSearch = search and optim.lswolfe or nil }
      local x = lm.tensor(START, { dtype = "float64", requires_grad = true })
      local opt = optim.LBFGS({ x }, { max_iter = 3, lr = 0.5, tolerance_grad = 1e-5,
        line_search_fn = search and "strong_wolfe" or nil })
      for _ = 1, 4 do
        opt:step(function()
          opt:zero_grad()
          local loss = quadratic(x)
          loss:backward()
          return loss
        end)
      end
      near(x:totable(), run(4, "lbfgs", config))
    end
  end)
  it("keep their state in config, or beside it", function()
    local config, state = { learningRate = 0.1, momentum = 0.9 }, {}
    run(1, "sgd", config)
    assert.equal(1, config.evalCounter)
    run(1, "sgd", config, state)
    assert.equal(1, config.evalCounter)
    assert.equal(1, state.evalCounter)
  end)
  it("take a rate that is changed between steps", function()
    local x, config = lm.tensor(START, { dtype = "float64" }), { learningRate = 0.1 }
    optim.sgd(quadratic, x, config)
    config.learningRate = 0
    local before = x:clone()
    optim.sgd(quadratic, x, config)
    assert.is_true(before:equal(x))
  end)
  it("lbfgs: the state goes on with whatever x is given, in scopes too", function()
    local function start() return lm.tensor(START, { dtype = "float64" }) end
    local config, x = { maxIter = 2 }, start()
    optim.lbfgs(quadratic, x, config)
    local y = x:clone()
    optim.lbfgs(quadratic, y, config)
    assert.is_false(x:equal(y))
    local again, z = { maxIter = 2 }, start()
    for _ = 1, 2 do
      lm.scope(function() optim.lbfgs(quadratic, z, again) end)
    end
    near(y:totable(), z:totable())
    assert.error_matches(function() optim.lbfgs(quadratic, lm.ones(7), config) end,
      "lbfgs: the state has 3 elements, x has 7")
  end)
  it("say what is wrong with a state", function()
    for _, name in ipairs { "sgd", "adam", "adagrad", "rmsprop", "lbfgs" } do
      for key, value in pairs { m = 3, dfdx = "x", evalCounter = -1, t = {}, paramVariance = true, lbfgs = 1 } do
        assert.error_matches(function() optim[name](quadratic, lm.ones(3), {}, { [key] = value }) end,
          name .. ": the state's " .. key .. " must be")
      end
    end
  end)
  it("say what was wrong", function()
    local x = lm.ones(3)
    assert.error_matches(function() optim.sgd(x, quadratic) end, "sgd: feval must be a function, got a tensor")
    assert.error_matches(function() optim.sgd(quadratic, x, { learningrate = 1 }) end,
      "sgd: unknown option 'learningrate'; did you mean 'learningRate'%?")
    assert.error_matches(function() optim.adam(function() return 1 end, x) end,
      "adam: feval must return a loss and a gradient of the shape of x, a tensor %[3%]")
    assert.error_matches(function() optim.adam(function() return 1, lm.ones(2) end, x) end,
      "adam: .* gradient is a tensor %[2%]")
    assert.error_matches(function() optim.lbfgs(quadratic, x, { lineSearch = print }) end,
      "lbfgs: lineSearch must be optim%.lswolfe or nil, got a function")
    assert.error_matches(function() optim.sgd(quadratic, x, { nesterov = true }) end, "nesterov requires momentum")
  end)
end)

describe("net:getParameters", function()
  it("trains a network", function()
    lm.manual_seed(1)
    local net = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3))
    local images, labels = lm.randn(32, 8), lm.randint(1, 4, { 32 })
    local before = net(images)
    local x, dx = net:getParameters()
    assert.equal(8 * 16 + 16 + 16 * 3 + 3, #x)
    assert.is_true(before:equal(net(images)))
    local function feval()
      dx:zero_()
      local loss = F.cross_entropy(net(images), labels)
      loss:backward()
      return loss, dx
    end
    local state, first, last = {}, nil, nil
    for _ = 1, 40 do
      local _, losses = optim.adam(feval, x, { learningRate = 0.05 }, state)
      first, last = first or losses[1], losses[1]
    end
    assert.is_true(last < 0.2 * first)
  end)
  it("keeps the gradients in the vector, whoever drops them", function()
    local net = nn.Sequential(nn.Linear(2, 2))
    local opt = optim.SGD(net:parameters(), { lr = 0.1 })
    local _, dx = net:getParameters()
    for _, holder in ipairs { opt, net, net[1] } do
      net(lm.ones(1, 2)):sum():backward()
      holder:zero_grad()
      assert.equal(0, dx:abs():sum():item())
      net(lm.ones(1, 2)):sum():backward()
      assert.equal(6, dx:sum():item())
      holder:zero_grad()
    end
  end)
  it("gives vectors that the parameters and gradients are views of", function()
    local net = nn.Linear(3, 2)
    net(lm.ones(1, 3)):sum():backward()
    local x, dx = net:getParameters()
    assert.is_true(dx:equal(lm.ones(8)))
    x:fill_(2)
    assert.is_true(net.weight:equal(lm.full({ 2, 3 }, 2)))
    dx:zero_()
    for _ = 1, 2 do net(lm.ones(1, 3)):sum():backward() end -- each adds to dx's memory
    assert.is_true(dx:equal(lm.full({ 8 }, 2)))
    net:zero_grad()
    assert.is_true(dx:equal(lm.zeros(8)))
    net(lm.ones(1, 3)):sum():backward()
    assert.is_true(dx:equal(lm.ones(8)))
    assert.is_true(net.bias.requires_grad)
  end)
  it("gives vectors that share_memory takes along", function()
    local net = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2), nn.Linear(2, 1))
    local x, dx = net:getParameters()
    net:share_memory()
    assert.is_true(x:is_shared() and dx:is_shared() and net[1].weight:is_shared() and net[2].running_mean:is_shared())
    x:fill_(2)
    net(lm.ones(3, 2)):sum():backward()
    assert.equal(3, net[3].bias.grad:item())
    assert.equal(3, dx[-1])
    lm.mp.spawn(function(_, model, vector)
      vector:add_(1)
      model[1].weight:detach():mul_(2)
    end, {args = {net, x}})
    assert.is_true(net[1].weight:equal(lm.full({2, 2}, 6)))
    assert.equal(4 * 6 + 2 * 3 + 4 * 3 + 3 * 3, x:sum():item())
    assert.error_matches(function() net:getParameters() end, "the parameters are in shared memory")
  end)
  it("wants parameters that are alike, and some", function()
    local net = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    net[2]:to("float64")
    assert.error_matches(function() net:getParameters() end,
      "all parameters must have the same dtype and device: parameter 1 is float32 on cpu, parameter 3 is float64 on")
    assert.error_matches(function() nn.ReLU():getParameters() end, "ReLU:getParameters: the module has no parameters")
  end)
end)

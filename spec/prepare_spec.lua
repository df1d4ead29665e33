-- lm.prepare: the same results as the module, renewal after changes, and what runs as it is.
local lm = require "luminary"
local nn, F = lm.nn, lm.nn.functional

local function near(a, b) return lm.allclose(a, b, {rtol = 1e-5, atol = 1e-5}) end
local function plain(net, ...)
  local arguments = {...}
  return lm.no_grad(function() return net(unpack(arguments)) end)
end

-- Calls f with warnings off.
local function quietly(f, ...)
  local before = lm.set_warnings(false)
  local results = {pcall(f, ...)}
  lm.set_warnings(before)
  if not results[1] then error(results[2], 0) end
  return unpack(results, 2)
end

local function small_net()
  lm.manual_seed(0)
  local net = nn.Sequential(nn.Conv2d(3, 8, 3, {padding = 1, bias = false}), nn.BatchNorm2d(8), nn.ReLU6(),
    nn.Conv2d(8, 8, 3, {padding = 1, groups = 8}), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 16, 1),
    nn.BatchNorm2d(16), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.5), nn.Linear(16, 5))
  for _ = 1, 3 do net(lm.randn(4, 3, 9, 9)) end -- statistics other than 0 and 1
  return net:eval()
end

describe("lm.prepare", function()
  it("returns what the module returns, for each shape", function()
    local net = small_net()
    local run, cases = lm.prepare(net, lm.randn(1, 3, 9, 9))
    for _, shape in ipairs {{1, 3, 9, 9}, {2, 3, 9, 9}, {1, 3, 12, 10}, {2, 3, 9, 9}} do
      local x = lm.randn(shape)
      assert.is_true(near(plain(net, x), run(x)))
      assert.is_false(run(x).requires_grad)
    end
    assert.equal(3, #cases())
    for _, case in ipairs(cases()) do assert.truthy(case.plan) end
  end)

  it("sees parameters and statistics changed in place, replaced layers and modes", function()
    local net = small_net()
    local x = lm.randn(2, 3, 9, 9)
    local run = lm.prepare(net, x)
    local changes = {
      function() net[1].weight:mul_(2) end, function() net[2].running_mean:add_(0.5) end,
      function() net[12] = nn.Linear(16, 5):eval() end, function() net[7].bias = nn.Parameter(lm.ones(16)) end,
      function() net:load_state_dict(small_net():state_dict()) end,
    }
    for _, change in ipairs(changes) do
      local before = run(x)
      lm.no_grad(change)
      assert.is_true(near(plain(net, x), run(x)))
      assert.is_false(near(before, run(x)))
    end
    net:train()
    assert.has_error(function() run(x) end)
  end)

  it("returns lists and tables of tensors, and takes them", function()
    local run = lm.prepare(function(t, factor) return {sum = t.a + t.b, parts = {t.a * factor, 3}}, t.b end)
    for _ = 1, 3 do
      local a, b = lm.randn(2), lm.randn(2)
      local made, second = run({a = a, b = b}, 2)
      assert.is_true(lm.equal(made.sum, a + b) and lm.equal(made.parts[1], a * 2) and lm.equal(second, b))
      assert.equal(3, made.parts[2])
    end
    assert.is_true(lm.equal(run({a = lm.ones(2), b = lm.ones(2)}, 5).parts[1], lm.full({2}, 5)))
  end)

  it("runs as it is what cannot be recorded", function()
    local choose = function(x)
      if x:sum():item() > 0 then return x * 2 end
      return x - 1
    end
    local pick = function(x) return x:masked_select(x:gt(0)) end
    local noise = function(x) return x + F.dropout(lm.zeros(2), 0.5, true) end
    local write = function(x) return x:add_(1) end
    for _, f in ipairs {choose, pick, noise, write} do
      local run = quietly(lm.prepare, f)
      quietly(run, lm.ones(3 - 1))
      for _, x in ipairs {lm.tensor {1, -3}, lm.tensor {2, 2}, lm.tensor {-1, -1}} do
        assert.is_true(lm.equal(f(x:clone()), quietly(run, x:clone())))
      end
    end
  end)

  it("replays writes in place to tensors that it makes", function()
    local run, cases = lm.prepare(function(x)
      local y = lm.zeros(3, 2)
      y[2] = x
      y:mul_(2)
      return y, y:sum(1)
    end)
    for _ = 1, 3 do
      local x = lm.randn(2)
      local y, sum = run(x)
      assert.is_true(near(sum, x * 2) and near(y[2], x * 2) and near(y[1], lm.zeros(2)))
    end
    assert.truthy(cases()[1].plan)
  end)

  it("refuses wrong arguments", function()
    assert.has_error(function() lm.prepare(3) end)
    local run = lm.prepare(function(x) return x * 2 end)
    assert.has_error(function() run(lm.ones(2, {requires_grad = true})) end)
    local most = 0
    local many, cases = lm.prepare(function(x) return x * 2 end)
    for i = 1, 40 do
      many(lm.ones(i))
      most = math.max(most, #cases())
    end
    assert.equal(16, most)
  end)

  it("keeps no memory from call to call", function()
    local net = small_net()
    local x = lm.randn(2, 3, 9, 9)
    local run = lm.prepare(net, x)
    run(x)
    collectgarbage()
    collectgarbage()
    local before = lm.live_tensors()
    for _ = 1, 5 do run(x):free() end
    assert.equal(before, lm.live_tensors())
  end)
end)

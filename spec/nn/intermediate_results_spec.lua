-- Results that the library's modules make and do not return without gradients: modules free them, except those that
-- scripts' code has seen.
local lm = require "luminary"
local nn = lm.nn

local n = 256
local bytes = 4 * n * n

local function run(net, x) return lm.no_grad(function() return net(x) end) end

-- Returns the bytes that net(x) leaves allocated without a collection, and their peak.
local function left_by(net, x)
  run(net, x) -- fills the kernels' caches
  collectgarbage()
  collectgarbage()
  lm.reset_peak_memory_stats()
  local before = lm.memory_allocated()
  local result = run(net, x)
  local left, peak = lm.memory_allocated() - before, lm.max_memory_allocated() - before
  assert.is_true(lm.is_tensor(result))
  return left, peak
end

describe("intermediate results of modules without gradients", function()
  local x = lm.ones(n, n)
  local function layers() return nn.Tanh(), nn.Sigmoid(), nn.Tanh(), nn.Sigmoid(), nn.Tanh(), nn.Sigmoid() end

  it("are freed by sequences after their use, and by modules with children when they return", function()
    local left, peak = left_by(nn.Sequential(layers()), x)
    assert.equal(bytes, left)
    assert.equal(2 * bytes, peak)
    local net, image = lm.models.resnet18 {num_classes = 2}:eval(), lm.ones(1, 3, 64, 64)
    assert.is_true((left_by(net, image)) < 1024)
  end)

  it("do not count towards the next collection #unsanitized", function()
    local net, collected = nn.Sequential(nn.Sequential(layers()), nn.Linear(n, 1)), 0
    local function watch()
      local sentinel = newproxy(true)
      getmetatable(sentinel).__gc = function()
        collected = collected + 1
        watch()
      end
    end
    watch()
    local function counted(f)
      collectgarbage()
      collected = 0
      for _ = 1, 1000 do lm.no_grad(f) end
      return collected
    end
    local function by_hand()
      local y = x
      for i = 1, 6 do y = net[1][i](y) end
      return net[2](y)
    end
    local less, more = counted(function() return net(x) end), counted(by_hand)
    assert(less * 3 < more, less .. " and " .. more .. " collections")
  end)

  it("belong to the caller, or to a script's module, function or hook that has seen them", function()
    local seen = {}
    local Own = nn.Module:extend "Own"
    function Own:forward(v) -- luacheck: no self
      seen[1], seen[2] = v, v * 2
      return seen[2] + 1
    end
    local function check(net, names)
      local arg = lm.full({2, 4}, 0.5)
      local y = run(net, arg)
      collectgarbage()
      assert.equal(0.5, arg[1][1])
      assert.is_number(y:sum():item())
      for _, name in ipairs(names) do assert.is_number(seen[name]:sum():item()) end
      seen = {}
    end
    check(nn.Sequential(nn.Tanh(), Own(), nn.Tanh()), {1, 2})
    check(nn.Sequential(nn.Tanh(), nn.Sequential(nn.Tanh(), Own(), nn.Dropout(0.5):eval()), nn.Tanh()), {1, 2})
    check(nn.Sequential(nn.Identity(), nn.Identity()), {})

    local hooked = nn.Tanh()
    hooked:register_forward_hook(function(_, inputs, v) seen[1], seen[2] = inputs[1], v end)
    check(nn.Sequential(nn.Tanh(), hooked, nn.Tanh()), {1, 2})

    local layer = nn.TransformerEncoderLayer(4, 2, {dim_feedforward = 8, activation = function(v)
      seen[1], seen[2] = v, v * 2
      return v
    end})
    check(nn.Sequential(nn.Tanh(), layer:eval()), {1, 2})

    local changed = nn.Sequential(nn.Tanh(), nn.Tanh())
    changed.forward = function(self, v)
      seen[1] = self[1](v)
      return self[2](seen[1])
    end
    check(nn.Sequential(nn.Tanh(), changed), {1})
  end)

  it("stay in a script's scope, and are freed when a call fails", function()
    local Own, made = nn.Module:extend "Own", nil
    function Own:forward(v) -- luacheck: no self
      made = v * 2
      return v
    end
    local net = nn.Sequential(nn.Tanh(), Own(), nn.Tanh())
    lm.scope(function() run(net, x) end)
    assert.matches("was dropped at the end of the lm.scope", select(2, pcall(made.sum, made)))
    local broken = nn.Sequential(nn.Tanh(), nn.Linear(3, 3))
    collectgarbage()
    collectgarbage()
    local before = lm.memory_allocated()
    assert.is_false(pcall(run, broken, x))
    assert.equal(before, lm.memory_allocated())
  end)
end)

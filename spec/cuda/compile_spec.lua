-- lm.compile: on the CPU it runs the step; on a CUDA device (or a fake one) it captures and replays it.
local lm = require "luminary"
local core = require "luminary.core"
local nn, F, optim = lm.nn, lm.nn.functional, lm.optim
local device = core.device_count "cuda" > 0 and "cuda" or "cpu"

local function trained(wrap, calls, sizes)
  lm.manual_seed(1)
  local net = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 3)):to(device)
  local opt = optim.Adam(net:parameters(), {lr = 0.01})
  local ran = 0
  local step, state = wrap(function(x, y)
    ran = ran + 1
    opt:zero_grad()
    local loss = F.cross_entropy(net(x), y)
    loss:backward()
    opt:step()
    return loss
  end)
  local losses = {}
  for k = 1, calls do
    local n = sizes and sizes[k] or 4
    local x, y = lm.randn({n, 6}, {device = device}), lm.randint(1, 4, {n}, {device = device})
    if k == 9 then opt.param_groups[1].lr = 0.02 end
    losses[k] = step(x, y):item()
  end
  return losses, state, ran
end

describe("lm.compile", function()
  it("trains as the step does, whatever the shapes, and after a change of the rate", function()
    local sizes = {4, 4, 3, 4, 4, 4, 3, 4, 4, 4, 4, 4, 4, 4}
    local want = trained(function(f) return f end, #sizes, sizes)
    local got, state, ran = trained(function(f) return lm.compile(f, {warmup = 2}) end, #sizes, sizes)
    for k = 1, #sizes do assert.near(want[k], got[k], 1e-5) end
    if device == "cpu" then
      assert.is_nil(state.reason)
      assert.is_true(state.segments > 0)
      assert.equal(#sizes, ran)
      return
    end
    -- Size 4: twice, captured, replayed 4 times until the rate changes, three times, captured and replayed.
    assert.equal(2, state.captures)
    assert.equal(#sizes - ran + state.captures, state.replays)
    assert.matches("Adam's lr is 0.02 but was 0.01 at the capture", state.reason)
  end)

  it("leaves steps that change an argument in place without a graph", function()
    if device == "cpu" then return pending "nothing is captured on the CPU" end
    local warned = lm.set_warnings(false)
    local step, state = lm.compile(function(h, x) h:add_(x) return h * 1 end, {warmup = 1})
    local h, x = lm.zeros({4}, {device = device}), lm.ones({4}, {device = device})
    for k = 1, 5 do assert.equal(k, step(h, x)[1]) end
    lm.set_warnings(warned)
    assert.equal(5, h[1])
    assert.matches("argument 1 is changed in place by the step", state.reason)
  end)

  it("runs what cannot be captured, and says why", function()
    if device == "cpu" then return pending "nothing is captured on the CPU" end
    local x = lm.ones({3}, {device = device})
    local warned = lm.set_warnings(false)
    local step, state = lm.compile(function(t) return t:sum():item() end, {warmup = 1})
    for _ = 1, 4 do assert.equal(3, step(x)) end
    lm.set_warnings(warned)
    assert.equal(1, state.captures)
    assert.equal(0, state.replays)
    assert.matches("captur", state.reason)
    for _, case in ipairs {
      {"argument 2 is not a tensor", x, 2}, {"argument 2 is on cpu", x, lm.ones {3}},
      {"argument 1 requires a gradient", x:clone():requires_grad_()}, {nil, lm.ones {3}}, {nil},
    } do
      local f, of = lm.compile(function() return 7 end, {warmup = 0})
      assert.equal(7, f(unpack(case, 2, 3)))
      assert.equal(case[1], of.reason)
    end
  end)

  it("captures 64 sets of shapes, and runs the others", function()
    if device == "cpu" then return pending "nothing is captured on the CPU" end
    local step, state = lm.compile(function(t) return t * 2 end, {warmup = 0})
    for n = 1, 65 do assert.equal(2 * n, step(lm.ones({n}, {device = device})):sum():item()) end
    assert.equal(64, state.sets)
    assert.equal(64, state.replays)
    assert.matches("64 sets of shapes have a graph already", state.reason)
  end)

  it("captures a module where no gradient is recorded alone", function()
    local net = nn.Linear(2, 2):to(device)
    local forward, state = lm.compile(net, {warmup = 0})
    local x = lm.ones({1, 2}, {device = device})
    local want = net(x)
    assert.is_true(forward(x):equal(want))
    assert.matches("compile the complete step", state.reason)
    assert.is_true(lm.no_grad(forward, x):equal(want))
    assert.equal(device == "cpu" and 0 or 1, state.replays)
  end)

  it("refuses what is no step", function()
    assert.error_matches(function() lm.compile(3) end, "compile: model must be a function")
  end)
end)

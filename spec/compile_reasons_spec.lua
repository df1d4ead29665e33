-- lm.compile of steps whose calls are recorded again and again, or run as they are: the state says why, with the line,
-- the op and what differs.
local lists = require "luminary.base.lists"
local lm = require "luminary"
local nn, F = lm.nn, lm.nn.functional

-- Returns a step that trains a small network by loss_of(net, …).
local function trainer(dtype, loss_of)
  lm.manual_seed(3)
  local net = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)):to(dtype)
  local opt = lm.optim.SGD(net:parameters(), {lr = 0.1})
  return function(...)
    local loss = loss_of(net, ...)
    opt:zero_grad()
    loss:backward()
    opt:step()
    return loss:detach()
  end
end

local function batch(dtype) return lm.rand(4, 6):to(dtype) end
local here = "^each call is recorded again: [^:]*compile_reasons_spec.lua:%d+: "

-- For each case: what its reason is, loss_of, and the arguments of call k.
local cases = {
  ["a number that decides which op runs"] = {
    here .. "pow: exponent is 6%.5, not 6, and decides which ops run or fail$",
    function(net, x, n) return net(x):abs():pow(n):mean() end,
    function(k, dtype) return batch(dtype), k / 2 + 0.5 end,
  },
  ["a number that gradients compute with"] = {
    here .. "leaky_relu: negative_slope is 1%.25, not 1%.125$",
    function(net, x, n) return F.leaky_relu(net(x), n):mean() end,
    function(k, dtype) return batch(dtype), (k - 2) / 8 end,
  },
  ["slices of one memory at other distances"] = {
    here .. "linear: x is at another distance from a tensor in the same memory$",
    function(net, x, y) return (net(x) - net(y) * 2):square():mean() end,
    function(k, dtype)
      local data = lm.rand(60, 6):to(dtype)
      return data:narrow(1, k, 4), data:narrow(1, 3 * k, 4)
    end,
  },
  ["other shapes"] = {
    here .. "linear: x is %l+%d+ %[15, 6%], not %l+%d+ %[14, 6%]$",
    function(net, x) return (net(x) * 2):square():mean() end,
    function(k, dtype) return lm.rand(3 + k, 6):to(dtype) end,
  },
  ["other ops"] = {
    here .. "mul is called, not square$",
    function(net, x, n)
      local y = net(x)
      for _ = 1, n do y = y * 0.5 end
      return y:square():mean()
    end,
    function(k, dtype) return batch(dtype), k end,
  },
  ["another mode"] = {
    here .. "linear runs in another mode: gradients, autocast, or a default$",
    function(net, x, n)
      local kinds = {"float16", "bfloat16"}
      local y = lm.autocast({dtype = kinds[n % 2 + 1], enabled = n < 100}, net.forward, net, x):float()
      for _ = 1, n do y = y * 0.5 end
      return y:square():mean()
    end,
    function(k, dtype) return batch(dtype), k end, "or another op",
  },
  ["another kind of argument"] = {
    here .. "reshape: size is another one$",
    function(net, x, n) return (net(x) * 2):square():reshape(n, -1):mean() end,
    function(k, dtype) return lm.rand(240, 6):to(dtype), ({1, 2, 3, 4, 5, 6, 8, 9, 10, 12, 15, 16})[k] end,
  },
  ["a hook of an inner result"] = {
    "^after [^:]*compile_reasons_spec.lua:%d+: mul: an argument has a history from outside of the segment",
    function(net, x)
      local h = net(x)
      h:register_hook(function(g) return g * 2 end)
      return (h * 2):square():mean()
    end,
    function(_, dtype) return batch(dtype) end,
  },
}

describe("lm.compile says why each call is recorded again:", function()
  for name, case in lists.sorted_pairs(cases) do
    it(name, function()
      local pattern, loss_of, arguments, also = unpack(case)
      for _, dtype in ipairs {"float16", "bfloat16", "float32"} do
        local plain, step = trainer(dtype, loss_of), nil
        local compiled, state = lm.compile(trainer(dtype, loss_of))
        for k = 1, 12 do
          lm.manual_seed(k)
          local want = plain(arguments(k, dtype))
          lm.manual_seed(k)
          assert.is_true(lm.equal(want, compiled(arguments(k, dtype))), step)
          if k == 3 then assert.is_nil(state.reason) end
        end
        if not also then assert.matches(pattern, state.reason) else assert.is_string(state.reason) end
      end
    end)
  end

  it("no longer, once calls are alike", function()
    local compiled, state = lm.compile(trainer("float32", function(net, x) return (net(x) * 2):square():mean() end))
    for k = 1, 6 do compiled(lm.rand(k, 6)) end
    assert.matches("linear: x is float32 %[6, 6%], not float32 %[5, 6%]$", state.reason)
    compiled(lm.rand(6, 6))
    assert.is_nil(state.reason)
  end)

  it("a weight that is changed between calls without gradients", function()
    local net = nn.Linear(6, 3)
    local compiled, state = lm.compile(net)
    lm.no_grad(function()
      for _ = 1, 6 do
        net.weight:mul_(0.5)
        local x = lm.rand(2, 6)
        assert.is_true(lm.equal(net(x), compiled(x)))
      end
      assert.matches("^each call is recorded again: a tensor beside its arguments", state.reason)
      for _ = 1, 2 do compiled(lm.rand(2, 6)) end
    end)
    assert.is_nil(state.reason)
  end)

  it("but follows a state that is detached at the step's begin", function()
    for _, dtype in ipairs {"float16", "bfloat16", "float32"} do
      local results, runs = {{}, {}}, nil
      for side = 1, 2 do
        lm.manual_seed(5)
        local w, u = (lm.rand(6, 8) - 0.5):to(dtype):requires_grad_(), (lm.rand(8, 8) - 0.5):to(dtype):requires_grad_()
        local h = lm.zeros({4, 8}, {dtype = dtype})
        local function step(x)
          h = h:detach()
          h = (x:mm(w) + h:mm(u)):tanh()
          local loss = (h * 2):square():mean()
          loss:backward()
          return loss
        end
        local compiled, state = step, nil
        if side == 2 then compiled, state = lm.compile(step) end
        for _ = 1, 10 do
          table.insert(results[side], compiled(batch(dtype)):item())
          table.insert(results[side], u.grad:float():sum():item())
        end
        runs = state and state.runs
      end
      assert.same(results[1], results[2])
      assert.equal(8, runs)
    end
  end)
end)

-- lm.compile of steps that compute with another Lua number in each call: numbers that ops alone read are inputs of a
-- segment, others make another one, and the state says so.
local lists = require "luminary.base.lists"
local lm = require "luminary"
local core = require "luminary.core"
local half_layouts = require "spec.support.half_layouts"

-- Calls a step eager and compiled, with numbers that change; fails if bits differ. Returns the compiled step's state.
local function compare(dtype, layout, f, numbers)
  lm.manual_seed(7)
  local start = (lm.rand(3, 4) + 0.5):to(dtype)
  local compiled, weights = core.compiled(), {}
  for side = 1, 2 do weights[side] = start:clone():requires_grad_() end
  for call, number in ipairs(numbers) do
    local function make(shape) return (lm.rand(shape) + 0.1):to(dtype) end
    local x = layout(make, {3, 4}) or make({3, 4})
    local results = {}
    for side, w in ipairs(weights) do
      local function step() -- four ops or more, which a segment has at least
        local y = f(x * w, number, w)
        local loss = (y.dtype == w.dtype and y or y:to(dtype) * w):tanh():square():sum()
        loss:backward()
        return loss, y
      end
      local loss, y
      if side == 1 then loss, y = step() else loss, y = compiled:call(step) end
      results[side] = {loss:detach(), y:detach(), w.grad:clone()}
    end
    for i = 1, 3 do
      local want, got = results[1][i]:nan_to_num(777), results[2][i]:nan_to_num(777)
      assert(lm.equal(want, got), ("%s: call %d, number %g, value %d"):format(dtype, call, number, i))
    end
  end
  return compiled:state()
end

local dtypes = {"float16", "bfloat16", "float32", "float64"}
local changing = {0.3, 0.7, 1, 2, -1, 0.5, 3, -0.25, 60000, 1e-3, 0}

local operands = {
  ["x * n"] = function(x, n) return x * n end, ["n * x"] = function(x, n) return n * x end,
  ["x + n"] = function(x, n) return x + n end, ["x - n"] = function(x, n) return x - n end,
  ["n - x"] = function(x, n) return n - x end, ["x / n"] = function(x, n) return x / n end,
  ["n / x"] = function(x, n) return n / x end, ["lerp"] = function(x, n, w) return lm.lerp(x, w, n) end,
  ["x > n"] = function(x, n) return x:gt(n) end, ["where"] = function(x, n) return lm.where(x:gt(0.5), x, n) end,
  ["full"] = function(x, n) return x * lm.full({3, 4}, n, {dtype = x.dtype}) end,
  ["masked_fill"] = function(x, n) return x:masked_fill(x:gt(0.5), n) end,
  ["two"] = function(x, n) return (x * n + n) * (1 - n) end,
  ["remainder"] = function(x, n) return x:remainder(n) end,
  ["in place"] = function(x, n) return (x + 1):mul_(n):add_(n) end,
}

describe("lm.compile with numbers that change", function()
  for name, f in lists.sorted_pairs(operands) do
    it("runs one segment: " .. name, function()
      for i, dtype in ipairs(dtypes) do
        local state = compare(dtype, half_layouts.layouts[(i - 1) % #half_layouts.layouts + 1][2], f, changing)
        local checks = dtype == "float16" and (name == "full" or name == "masked_fill" or name == "where")
        -- The first call sets gradients, others add to them; integers that are no operands are of another dtype.
        local most = checks and #changing or name == "full" and 3 or 2
        assert(state.recordings <= most, ("%s: %d recordings"):format(dtype, state.recordings))
      end
    end)
  end

  it("keeps apart numbers of which other ops follow, and those of other results", function()
    for _, dtype in ipairs(dtypes) do
      local powers = {2, 0.7, 3, 2, 0.5, 1, 4, -1, 2, 3}
      compare(dtype, half_layouts.layouts[2][2], function(x, n) return x:pow(n) end, powers)
      local linear = lm.nn.functional.linear
      compare(dtype, half_layouts.layouts[2][2], function(x, n, w) return linear(x, w, n) end, changing)
      compare(dtype, half_layouts.layouts[1][2], function(x, n)
        return (x * lm.arange(1, 5) + lm.arange(1, 5) * n):to(dtype)
      end, {2, 2.5, 3, 1.5, 4, 2})
      compare(dtype, half_layouts.layouts[1][2], function(x, n)
        local y = x * n
        for _ = 1, n do y = y + n end
        return y
      end, {1, 3, 2, 1, 3, 2, 4, 1, 2, 3})
    end
  end)

  it("updates weights by a rate of each call", function()
    for _, dtype in ipairs(dtypes) do
      local w = {lm.ones({4}, {dtype = dtype}), lm.ones({4}, {dtype = dtype})}
      local compiled = core.compiled()
      for call = 1, 8 do
        local x, rate = lm.rand(4):to(dtype), 1 / call
        for side = 1, 2 do
          local p = w[side]:requires_grad_()
          local function step()
            p.grad = nil
            ((x * p):tanh() * 2):square():sum():backward()
            lm.no_grad(function()
              p:add_(p.grad, {alpha = -rate})
              p:addcmul_(p.grad, p.grad, {value = rate})
              p:sub_(p.grad * rate)
            end)
          end
          if side == 1 then step() else compiled:call(step) end
        end
        assert.is_true(lm.equal(w[1], w[2]), dtype)
      end
      assert.equal(7, compiled:state().runs / compiled:state().segments)
    end
  end)

  it("raises an op's error about a number at its line", function()
    local compiled, w = core.compiled(), lm.ones({3}, {requires_grad = true})
    local function step(n)
      local y = (w * 2):tanh() + lm.full({3}, n, {dtype = "uint8"})
      return y:sum():backward()
    end
    for _ = 1, 3 do compiled:call(step, 3) end
    local _, want = pcall(step, 300)
    assert.same({false, want}, {pcall(compiled.call, compiled, step, 300)})
    local function fills(n)
      local y = (w * 2):tanh() + lm.zeros(3):fill_(n)
      return y:sum():backward()
    end
    for k = 1, 3 do compiled:call(fills, k) end
    _, want = pcall(fills, 1e300)
    assert.same({false, want}, {pcall(compiled.call, compiled, fills, 1e300)})
  end)
end)

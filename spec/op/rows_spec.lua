-- Reductions, softmax, scans, sorting and selecting of rows: at every length of a vector's tail, however rows lie in
-- memory, any number of threads. What they are compared with is computed number by number here.
local lm = require "luminary"
local F = require "luminary.nn.functional"

local lengths = {1, 2, 15, 17, 33, 63, 65, 100, 257, 2049}

-- Returns x, and its copies elsewhere: from an odd address on, as columns, with steps between elements.
local function layouts(x)
  local m, n = x.shape[1], x.shape[2]
  local part = lm.zeros({m, n + 3}, {dtype = x.dtype}):narrow(2, 2, n)
  part:copy_(x)
  local steps = lm.zeros({m, n, 2}, {dtype = x.dtype}):select(3, 2)
  steps:copy_(x)
  return {plain = x, part = part, columns = x:t():contiguous():t(), steps = steps}
end

local function rows_of(x)
  local rows = {}
  for r = 1, x.shape[1] do rows[r] = x[r]:double():totable() end
  return rows
end

local function near(want, got, bound, what)
  local size = math.max(1, math.abs(want))
  assert.is_true(want == got or math.abs(want - got) <= bound * size or (want ~= want and got ~= got),
    ("%s: expected %.9g, got %.9g"):format(what, want, got))
end

local bounds = {float32 = 2e-6, bfloat16 = 5e-3, float16 = 7e-4, float64 = 1e-14}

local function folded(row, f, start)
  for _, v in ipairs(row) do start = f(start, v) end
  return start
end

local statistics = {
  sum = function(row) return folded(row, function(a, v) return a + v end, 0) end,
  amax = function(row) return folded(row, math.max, -math.huge) end,
  amin = function(row) return folded(row, math.min, math.huge) end,
  mean = function(row) return folded(row, function(a, v) return a + v end, 0) / #row end,
  count_nonzero = function(row) return folded(row, function(a, v) return v ~= 0 and a + 1 or a end, 0) end,
  norm = function(row) return math.sqrt(folded(row, function(a, v) return a + v * v end, 0)) end,
  logsumexp = function(row) return math.log(folded(row, function(a, v) return a + math.exp(v) end, 0)) end,
}
local calls = {
  norm = function(x) return x:norm(2, -1) end, count_nonzero = function(x) return x:count_nonzero(-1) end,
}

describe("rows", function()
  before_each(function() lm.manual_seed(3) end)

  for _, dtype in ipairs {"float32", "float64", "bfloat16", "float16", "int64", "int32", "uint8"} do
    it("are reduced: " .. dtype, function()
      for _, n in ipairs(lengths) do
        local x = (lm.randn(3, n) * (dtype:find "float" and 1 or 50)):abs():to(dtype)
        local rows = rows_of(x)
        for how, y in pairs(layouts(x)) do
          for name, statistic in pairs(statistics) do
            if bounds[dtype] or name ~= "mean" and name ~= "norm" and name ~= "logsumexp" then
              local got = (calls[name] or function(t) return t[name](t, -1) end)(y)
              for r = 1, 3 do
                local what = ("%s of %d, %s"):format(name, n, how)
                near(statistic(rows[r]), got:double():totable()[r], bounds[dtype] or 0, what)
              end
            end
          end
        end
      end
    end)
  end

  it("that are many and short are reduced, some at a time", function()
    for _, size in ipairs {{1000, 7}, {513, 40}, {70, 3000}, {3, 0}, {0, 5}} do
      local m, n = size[1], size[2]
      local x = lm.randn(m, n)
      local got = x:sum(-1)
      local sums = got:totable()
      assert.same({m}, got.shape)
      for r, row in ipairs(rows_of(x)) do near(statistics.sum(row), sums[r], 1e-5, m .. " x " .. n) end
      local spread = x:transpose(1, 2):contiguous():transpose(1, 2):unsqueeze(2):expand(m, 2, n)
      assert.is_true(lm.allclose(spread:sum(-1), got:unsqueeze(2):expand(m, 2), {rtol = 1e-5, atol = 1e-5}))
    end
  end)

  for _, dtype in ipairs {"float32", "float64", "bfloat16"} do
    it("have a NaN or an infinity wherever it is: " .. dtype, function()
      for _, n in ipairs {1, 5, 16, 40, 70} do
        for at = 1, n do
          local x = lm.zeros({1, n}, {dtype = dtype})
          x:narrow(2, at, 1):fill_(0 / 0)
          assert.is_true(x:amax(-1):isnan():item() and x:amin(-1):isnan():item() and x:sum(-1):isnan():item())
          local all = F.softmax(x, {dim = -1}):isnan():all() and F.log_softmax(x, {dim = -1}):isnan():all()
          assert.is_true(all:item(), ("softmax of %d, NaN at %d"):format(n, at))
          x:narrow(2, at, 1):fill_(-math.huge)
          local p = F.softmax(x, {dim = -1}):narrow(2, at, 1)
          assert.equal(n == 1, p:isnan():item())
          if n > 1 then assert.equal(0, p:item()) end
        end
      end
    end)

    it("have a softmax and gradients: " .. dtype, function()
      for _, n in ipairs(lengths) do
        local x = (lm.randn(2, n) * 20):to(dtype)
        local g = lm.randn(2, n):to(dtype)
        local rows, weights = rows_of(x), rows_of(g)
        for how, y in pairs(layouts(x)) do
          for _, logarithm in ipairs {false, true} do
            local leaf = y:detach():requires_grad_(true)
            local p = (logarithm and F.log_softmax or F.softmax)(leaf, {dim = -1})
            p:backward(g)
            for r = 1, 2 do
              local top, total, dot = statistics.amax(rows[r]), 0, 0
              for _, v in ipairs(rows[r]) do total = total + math.exp(v - top) end
              local saved = p:detach()[r]:double():totable()
              for i = 1, n do dot = dot + weights[r][i] * (logarithm and 1 or saved[i]) end
              local grads, what = leaf.grad[r]:double():totable(), ("%d of %s, %s"):format(n, how, tostring(logarithm))
              for i, v in ipairs(rows[r]) do
                local value = logarithm and v - top - math.log(total) or math.exp(v - top) / total
                near(value, saved[i], bounds[dtype], what)
                local grad = logarithm and weights[r][i] - math.exp(saved[i]) * dot or (weights[r][i] - dot) * saved[i]
                near(grad, grads[i], 4 * bounds[dtype], what .. ", gradient")
              end
            end
          end
        end
      end
    end)
  end

  for _, dtype in ipairs {"float32", "float64", "bfloat16", "int64", "int32"} do
    it("are scanned in both directions: " .. dtype, function()
      for _, n in ipairs(lengths) do
        local x = (lm.randn(3, n) * (dtype:find "float" and 1 or 50)):to(dtype)
        local rows = rows_of(x)
        for how, y in pairs(layouts(x)) do
          for _, reverse in ipairs {false, true} do
            local got = y:cumsum(-1, {reverse = reverse})
            for r = 1, 3 do
              local sum, sums = 0, got[r]:double():totable()
              for i = 1, n do
                local at = reverse and n + 1 - i or i
                sum = sum + rows[r][at]
                near(sum, sums[at], bounds[dtype] or 0, ("%d at %d, %s, %s"):format(n, at, how, tostring(reverse)))
              end
            end
          end
        end
      end
    end)
  end

  it("are scanned backwards by other scans too", function()
    for _, n in ipairs {1, 3, 16, 33, 2048, 2049, 5000} do
      local x, decay = lm.randn(2, n), lm.rand(2, n)
      local got = lm.flip(lm.linear_recurrence(lm.flip(x, -1), lm.flip(decay, -1), -1), -1)
      assert.is_true(lm.allclose(got, lm.linear_recurrence(x, decay, -1, {reverse = true}), {rtol = 1e-6, atol = 1e-6}))
    end
  end)

  -- Expects sorted values, ascending or not: equal ones in the order they had, NaN above all.
  local function check_sorted(x, descending, what)
    local values, places = x:sort(-1, descending)
    local row, order, sorted = x:double():totable(), places:totable(), values:double():totable()
    local seen = {}
    local function before(a, b)
      if a ~= a or b ~= b then return descending and a ~= a and b == b or not descending and a == a and b ~= b end
      if descending then return a > b end
      return a < b
    end
    for i, at in ipairs(order) do
      assert.is_nil(seen[at], what)
      seen[at] = true
      near(row[at], sorted[i], 0, what)
      if i > 1 then
        local a, b = row[order[i - 1]], row[at]
        assert.is_true(before(a, b) or (not before(b, a) and order[i - 1] < at), what .. " at " .. i)
      end
    end
    return values, places
  end

  for _, dtype in ipairs {
    "float32", "float64", "bfloat16", "float16", "int64", "int32", "int16", "int8", "uint8", "bool",
  } do
    it("are sorted, stable: " .. dtype, function()
      for _, n in ipairs {0, 1, 2, 63, 64, 65, 700, 8200} do
        local x = (lm.randn(n) * 60):to(dtype)
        local steps = n < 8200 and layouts(x:unsqueeze(1)).steps[1]
        for how, y in pairs {plain = x, steps = steps or nil} do
          for _, descending in ipairs {false, true} do
            check_sorted(y, descending, ("%d, %s, %s"):format(n, how, tostring(descending)))
          end
        end
      end
    end)

    it("have their best few, as sorting them has: " .. dtype, function()
      for _, n in ipairs {1, 31, 33, 150, 1025, 3000} do
        local x = (lm.randn(3, n) * 30):to(dtype)
        for _, k in ipairs {0, 1, 2, 7, 33, 100, 1000} do
          for _, largest in ipairs {true, false} do
            if k <= n then
              local values, places = x:topk(k, -1, largest)
              local all, from = x:sort(-1, largest)
              assert.is_true(lm.equal(all:narrow(2, 1, k), values) and lm.equal(from:narrow(2, 1, k), places),
                ("%d of %d, %s"):format(k, n, tostring(largest)))
              if k > 0 and not largest then
                local value, place = x:kthvalue(k, -1)
                assert.is_true(lm.equal(value, values:select(2, k)) and lm.equal(place, places:select(2, k)))
              end
            end
          end
        end
      end
    end)
  end

  it("are sorted with zeros of both signs, infinities and NaN as they were", function()
    local x = lm.randn(3000)
    for at, v in pairs {[6] = 0, [701] = 0 / 0, [9] = math.huge, [10] = -math.huge, [2000] = 0 / 0} do x[at] = v end
    for _, at in ipairs {5, 700} do x:narrow(1, at, 1):copy_(-lm.zeros(1)) end
    for _, dtype in ipairs {"float32", "float64", "bfloat16"} do
      for _, descending in ipairs {false, true} do
        local y = x:to(dtype)
        local values, places = check_sorted(y, descending, dtype)
        local zeros = lm.nonzero(values:eq(0)):flatten()
        assert.same({5, 6, 700}, places:index_select(1, zeros):totable())
        local inverse = (1 / values:index_select(1, zeros):double()):totable()
        assert.same({-math.huge, math.huge, -math.huge}, inverse)
      end
    end
  end)

  it("are sorted by all bits of wide numbers, or by the few that differ", function()
    for _, n in ipairs {10, 100, 8300} do
      for _, x in ipairs {
        lm.randint(-2 ^ 52, 2 ^ 52, {n}), lm.randint(0, 4, {n}) + 2 ^ 52, lm.randint(-3, 3, {n}) * 2 ^ 33,
        lm.full({n}, 7, {dtype = "int64"}),
      } do
        check_sorted(x, false, "ascending")
        check_sorted(x, true, "descending")
      end
    end
  end)

  it("have norms whose squares and powers leave the range of float32", function()
    for _, dtype in ipairs { "float32", "bfloat16" } do
      for _, p in ipairs { 2, 3, 0.5 } do
        for _, scale in ipairs(p == 0.5 and { 1e-30, 1e20 } or { 1e-30, 1e-22, 1e20, 1e30 }) do
          for _, shape in ipairs { { 3, 5 }, { 3, 40 }, p == 2 and { 3, 70000 } or nil } do
            for dim = 1, 2 do
              lm.manual_seed(3)
              local x = (lm.randn(shape) * scale):to(dtype)
              x[{ 2, {} }] = 1 -- beside others, and with it zeros
              if p == 2 then x[{ {}, 3 }] = 0 end
              for _, t in ipairs(shape[2] < 1000 and { x, x:t():contiguous():t() } or { x }) do
                local wide = t:double()
                local want, got = wide:norm(p, dim), t:norm(p, dim):double()
                local off = ((got - want):abs() / want:clamp(1e-300)):max():item()
                local here = ("%s, p %g, %g, dim %d: %g"):format(dtype, p, scale, dim, off)
                assert(off < (dtype == "float32" and 1e-5 or 5e-3), here)
              end
            end
          end
        end
      end
    end
    for _, p in ipairs { 2, 3, 4 } do
      local x = lm.tensor({ 1e20, 1, 1 }):requires_grad_()
      lm.linalg.norm(x, p):backward()
      assert.near(1, x.grad[1], 1e-6)
      assert.near(1e20, lm.linalg.norm(x, p):item(), 1e14)
      assert.near(1, F.normalize(x:detach(), { p = p, dim = 1 })[1], 1e-6)
      local y = lm.tensor({ 3e-30, 3e-30 }):requires_grad_()
      y:norm(p):backward()
      assert.near(0.5 ^ (1 - 1 / p), y.grad[1], 1e-6)
      assert.near(0.5 ^ (1 / p), F.normalize(y:detach(), { p = p, dim = 1, eps = 0 })[1], 1e-6)
    end
    assert.equal(math.huge, lm.tensor({ 1, math.huge }):norm():item())
    local nan = lm.tensor({ 1, 0 / 0 }):norm():item()
    assert(nan ~= nan)
  end)

  it("have the same bits with any number of threads", function()
    local before = lm.get_num_threads()
    finally(function() lm.set_num_threads(before) end)
    local x, half, whole = lm.randn(70, 5000), lm.randn(300, 900):bfloat16(), lm.randint(0, 1000, {300000})
    local results
    for threads = 1, 4 do
      lm.set_num_threads(threads)
      local values, order = whole:sort()
      local few, places = x:topk(50, -1)
      local now = {x:sum(-1), x:var(-1), x:sum(), half:sum(-1), half:sum(1), F.softmax(half, {dim = -1}), x:cumsum(-1),
                   x:flatten():cumsum(1), values, order, few, places}
      results = results or now
      for i, t in ipairs(now) do
        assert.is_true(lm.equal(results[i], t), ("result %d, %d threads"):format(i, threads))
      end
    end
  end)
end)

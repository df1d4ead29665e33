local lm = require "luminary"
local F = lm.nn.functional
local attend = F.scaled_dot_product_attention

local device = os.getenv "LM_SPEC_DEVICE" or "cpu"
local function leaf(...) return lm.randn({...}, {dtype = "float64", device = device, requires_grad = true}) end
local function largest(a, b) return (a - b):abs():max():item() end

describe("scaled_dot_product_attention", function()
  -- Computes attention by its definition, from matrices of scores.
  local function by_scores(q, k, v, mask)
    local scores = q:matmul(k:transpose(-1, -2)) / math.sqrt(q.shape[q.ndim])
    if mask then
      scores = mask.dtype == "bool" and scores:masked_fill(mask:logical_not(), -math.huge) or scores + mask
    end
    return scores:softmax(-1):matmul(v)
  end

  it("is softmax of scores times values over many blocks, with its gradients", function()
    local seen = lm.ones({150, 530}, {dtype = "bool", device = device}):tril()
    for _, mask in ipairs {"none", seen, lm.randn({2, 1, 1, 530}, {device = device}):double()} do
      if mask == "none" then mask = nil end
      local q, k, v = leaf(2, 3, 150, 8), leaf(2, 3, 530, 8), leaf(2, 3, 530, 5)
      local g = lm.randn({2, 3, 150, 5}, {dtype = "float64", device = device})
      local results = {}
      for j, f in ipairs {attend, by_scores} do
        local y = j == 1 and f(q, k, v, {attn_mask = mask}) or f(q, k, v, mask)
        y:backward(g)
        results[j] = {y, q.grad, k.grad, v.grad}
        q.grad, k.grad, v.grad = nil, nil, nil
      end
      for n = 1, 4 do assert.near(0, largest(results[1][n], results[2][n]), 1e-12) end
    end
  end)

  it("sees no later keys, over many blocks and in both types", function()
    for dtype, tolerance in pairs {float64 = 1e-12, float32 = 2e-4} do
      for _, size in ipairs {{150, 530}, {600, 300}, {1050, 37}} do
        local L, S = size[1], size[2]
        local seen = lm.ones({L, S}, {dtype = "bool", device = device}):tril()
        local function random(...) return lm.randn({...}, {dtype = dtype, device = device}) end
        local q, k, v, g = random(1, 4, L, 33), random(1, 2, S, 33), random(1, 2, S, 7), random(1, 4, L, 7)
        for _, x in ipairs {q, k, v} do x:requires_grad_() end
        local results = {}
        for j = 1, 2 do
          local y = j == 1 and attend(q, k, v, {is_causal = true, enable_gqa = true})
            or by_scores(q, k:repeat_interleave(2, 2), v:repeat_interleave(2, 2), seen)
          y:backward(g)
          results[j] = {y, q.grad, k.grad, v.grad}
          q.grad, k.grad, v.grad = nil, nil, nil
        end
        for n = 1, 4 do assert.near(0, largest(results[1][n], results[2][n]), tolerance) end
      end
    end
  end)

  it("passes NaN to the query that meets it, and to no other", function()
    for _, dtype in ipairs {"float32", "float64"} do
      local q, k, v = lm.randn(1, 1, 5, 4), lm.randn(1, 1, 300, 4), lm.randn(1, 1, 300, 4)
      local mask = lm.zeros(5, 300)
      mask[{2, 290}] = 0 / 0
      mask[{{4}, {1, 299}}] = -math.huge -- sees nothing but NaN
      mask[{4, 3}] = 0 / 0
      mask[{5}] = -math.huge
      local on = {dtype = dtype, device = device}
      local y = attend(q:to(on), k:to(on), v:to(on), {attn_mask = mask:to(on)})
      assert.same({false, true, false, true, false}, y:isnan():all(-1):view(5):totable())
      assert.equal(0, y:select(3, 5):abs():max():item())
    end
  end)

  it("takes any layout, and gives the query's", function()
    local x = lm.randn({2, 9, 3, 4, 6}, {device = device}) -- as one projection returns queries, keys and values
    local q, k, v = x:select(3, 1):transpose(2, 3), x:select(3, 2):transpose(2, 3), x:select(3, 3):transpose(2, 3)
    local y = attend(q, k, v, {is_causal = true})
    local dense = attend(q:contiguous(), k:contiguous(), v:contiguous(), {is_causal = true})
    assert.near(0, largest(y, dense), 1e-6)
    local one = lm.randn({1, 1, 1, 6}, {device = device}):expand(2, 4, 9, 6)
    assert.near(0, largest(attend(one, one, v), attend(one:contiguous(), one:contiguous(), v)), 1e-6)
  end)

  it("has gradients of overlapping keys and values", function()
    local function windows(dtype, n, h, s, e) -- rows that begin one element after another
      return lm.randn(n * h * s + e - 1):to(dtype):unfold(1, e, 1):view(n, h, s, e)
    end
    for _, dtype in ipairs {"bfloat16", "float16", "float32", "float64"} do
      local x = {lm.randn(2, 2, 5, 4):to(dtype), windows(dtype, 2, 2, 1, 4), windows(dtype, 2, 2, 1, 3)}
      local got, want = {}, {}
      for i, each in ipairs(x) do got[i], want[i] = each:detach(), each:contiguous() end
      for _, list in ipairs {got, want} do
        for _, each in ipairs(list) do each:requires_grad_() end
        attend(unpack(list)):float():square():sum():backward()
      end
      for i = 1, 3 do assert.is_true(got[i].grad:equal(want[i].grad), dtype) end
    end
  end)

  it("gives 0 where a query sees nothing, and a gradient without NaN", function()
    local mask = lm.ones({3, 5}, {dtype = "bool", device = device})
    mask[2] = false
    local q, k, v = leaf(1, 2, 3, 4), leaf(1, 2, 5, 4), leaf(1, 2, 5, 4)
    local y = attend(q, k, v, {attn_mask = mask})
    assert.equal(0, y:select(3, 2):abs():max():item())
    y:sum():backward()
    for _, x in ipairs {q, k, v} do assert.is_true(x.grad:isfinite():all():item()) end
    assert.equal(0, q.grad:select(3, 2):abs():max():item())
  end)

  it("has a gradient of a mask of numbers, and of a gradient", function()
    local q, k, v, mask = leaf(1, 4, 3, 2), leaf(1, 2, 5, 2), leaf(1, 2, 5, 3), leaf(3, 5)
    local function f(...) return attend(q, k, v, {attn_mask = ..., enable_gqa = true}) end
    assert.is_true(lm.autograd.gradcheck(f, {mask}))
    local function grouped(a, b, c) return attend(a, b, c, {enable_gqa = true, is_causal = true}) end
    assert.is_true(lm.autograd.gradcheck(grouped, {q, k, v}))
    assert.is_true(lm.autograd.gradgradcheck(grouped, {q, k, v}))
  end)

  it("serves several heads of queries by one of keys", function()
    local q, k, v = leaf(2, 6, 5, 4), leaf(2, 2, 7, 4), leaf(2, 2, 7, 4)
    local all = attend(q, k:repeat_interleave(3, 2), v:repeat_interleave(3, 2))
    assert.near(0, largest(all, attend(q, k, v, {enable_gqa = true})), 1e-12)
    assert.error_matches(function() attend(q, k, v) end, "use enable_gqa = true")
  end)

  it("takes keys and values of different numbers of heads that divide the queries'", function()
    for _, heads in ipairs {{2, 4}, {4, 2}, {1, 4}, {4, 1}} do
      local q, k, v = leaf(2, 4, 5, 3), leaf(2, heads[1], 7, 3), leaf(2, heads[2], 7, 2)
      local function grouped(a, b, c) return attend(a, b, c, {enable_gqa = true}) end
      local all = attend(q, k:repeat_interleave(4 / heads[1], 2), v:repeat_interleave(4 / heads[2], 2))
      assert.near(0, largest(all, grouped(q, k, v)), 1e-12)
      assert.is_true(lm.autograd.gradcheck(grouped, {q, k, v}))
    end
    local q, v = leaf(1, 4, 5, 8), leaf(1, 3, 5, 8)
    assert.error_matches(function() attend(q, q, v, {enable_gqa = true}) end,
      "scaled_dot_product_attention: heads of query %(4%) must be divisible by heads of value %(3%)$")
    assert.error_matches(function() attend(q, q, v) end, "heads of query and value must match, got %[1, 4, 5, 8%] and "
      .. "%[1, 3, 5, 8%]; use enable_gqa = true")
  end)

  it("names a dropout_p that is NaN without a sign", function()
    local q = leaf(1, 1, 2, 2)
    for _, nan in ipairs {0 / 0, -(0 / 0), math.huge - math.huge} do
      assert.error_matches(function() attend(q, q, q, {dropout_p = nan}) end, "dropout_p must be from 0 to 1, got nan$")
    end
  end)

  it("wants one dtype, and a mask that is no wider", function()
    local q = lm.randn({1, 2, 4, 8}, {device = device})
    local wide = lm.zeros({4, 4}, {device = device, dtype = "float64"})
    assert.error_matches(function() attend(q, q, q, {attn_mask = wide}) end,
      "scaled_dot_product_attention: dtype mismatch: "
      .. 'attn_mask is float64, query is float32; convert it with attn_mask:to%("float32"%) or pass a bool mask')
    for _, f in ipairs {function() attend(q, q:double(), q) end, function() attend(q, q, q:double()) end} do
      assert.error_matches(f, "attention: dtype mismatch: query is float32, key is float%d+, value is float%d+")
    end
    local half, mask = q:half(), lm.randn({4, 4}, {device = device})
    mask[{2, {}}] = -math.huge
    local y = attend(half, half, half, {attn_mask = mask})
    assert.equal("float16", y.dtype)
    assert.near(0, largest(attend(q, q, q, {attn_mask = mask}), y:float()), 5e-3)
  end)

  it("of halves is computed in float32 where a mask has a gradient, and in any number of dims", function()
    for dtype, tolerance in pairs {bfloat16 = 0.008, float16 = 0.001} do
      local function random(...) return lm.randn({...}, {device = device}):to(dtype) end
      local function on(list, to)
        local leaves = {}
        for i = 1, 4 do leaves[i] = list[i]:to(to):detach():requires_grad_() end
        return leaves
      end
      local cases = {
        {random(1, 2, 172, 160), random(1, 2, 210, 160), random(1, 2, 210, 219), random(1, 210)},
        {random(2, 4, 20, 96), random(2, 2, 30, 96), random(2, 2, 30, 96), random(2, 1, 20, 30)},
        {random(50, 160), random(70, 160), random(70, 30), random(50, 70)},
        {random(2, 1, 3, 40, 160), random(2, 2, 3, 40, 160), random(2, 2, 3, 40, 8), random(40)},
      }
      for case, list in ipairs(cases) do
        local half, double = on(list, dtype), on(list, "float64")
        local function run(x)
          local y = attend(x[1], x[2], x[3], {attn_mask = x[4], scale = 1.5, enable_gqa = case == 2})
          y:backward(lm.linspace(-1, 1, y:numel(), {device = device}):view(y.shape):to(y))
          return {y, x[1].grad, x[2].grad, x[3].grad, x[4].grad}
        end
        local want, got = run(double), run(half)
        for i = 1, 5 do
          assert.equal(dtype, got[i].dtype)
          local off = largest(want[i], got[i]:double()) / (1 + want[i]:abs():max():item())
          assert(off <= tolerance, ("%s, case %d, result %d: %g"):format(dtype, case, i, off))
        end
      end
    end
  end)

  it("of halves has gradients of gradients that are computed in float32", function()
    local function random(...) return lm.randn({...}, {device = device}):bfloat16() end
    local list = {random(1, 4, 72, 64), random(1, 2, 110, 64), random(1, 2, 110, 64), random(1, 4, 72, 64)}
    local mask, results = random(72, 110), {}
    for j, dtype in ipairs {"float64", "bfloat16"} do
      local x = {}
      for i = 1, 4 do x[i] = list[i]:to(dtype):detach():requires_grad_() end
      local y = attend(x[1], x[2], x[3], {attn_mask = mask:to(dtype), scale = 0.6, enable_gqa = true})
      local grads = lm.grad({y}, {x[1], x[2], x[3]}, {grad_outputs = {x[4]}, create_graph = true})
      local sum = 0
      for i = 1, 3 do sum = sum + (grads[i] * x[i]:detach()):sum() end
      results[j] = lm.grad({sum}, x)
    end
    for i, want in ipairs(results[1]) do
      local got = results[2][i]
      assert.equal("bfloat16", got.dtype)
      assert.near(0, largest(want, got:double()) / (1 + want:abs():max():item()), 0.008)
    end
  end)

  if device == "cpu" then
    it("has the same bits with any number of threads", function()
      local threads = lm.get_num_threads()
      for _, size in ipairs {{1, 130}, {1, 258}, {3, 386}, {2, 388}, {1, 513}} do
        for _, causal in ipairs {false, true} do
          local heads, length = unpack(size)
          local x, first = lm.randn(1, heads, length, 64), nil
          local g, v = lm.randn(x.shape), lm.randn(x.shape)
          v:narrow(3, length - 30, 9):fill_(0 / 0)
          for _, count in ipairs {1, 2, 3, 7} do
            lm.set_num_threads(count)
            local q, k = x:clone():requires_grad_(), x:clone():requires_grad_()
            local y, with_nan = attend(q, k, x, {is_causal = causal}), attend(q, k, v, {is_causal = causal})
            y:backward(g)
            local results = {y, q.grad, k.grad, with_nan:nan_to_num(5)}
            first = first or results
            for i, result in ipairs(results) do
              assert(lm.equal(first[i], result), ("%d x %d, causal %s, %d threads, result %d"):format(heads, length,
                tostring(causal), count, i))
            end
          end
        end
      end
      lm.set_num_threads(threads)
    end)

    it("trains in memory that grows with the length, not with its square #unsanitized", function()
      local function peak(length, dropout_p)
        local x = lm.randn({1, 2, length, 16}, {requires_grad = true})
        collectgarbage()
        lm.reset_peak_memory_stats()
        local before = lm.memory_allocated()
        attend(x, x, x, {is_causal = true, dropout_p = dropout_p}):sum():backward()
        return lm.max_memory_allocated() - before
      end
      peak(1000, 0)
      for _, dropout_p in ipairs {0, 0.1} do
        assert.is_true(peak(4096, dropout_p) < 5 * peak(1024, dropout_p))
        assert.is_true(peak(4096, dropout_p) < 4096 * 4096) -- bytes: an eighth of what all weights take
      end
    end)
  end
end)

describe("scaled_dot_product_attention with dropout_p", function()
  -- Returns the weights by their definition, dropped by dropout, which draws the same numbers for them.
  local function by_dropout(q, k, v, o, seen)
    local groups = q.shape[2] / k.shape[2]
    k, v = k:repeat_interleave(groups, 2), v:repeat_interleave(groups, 2)
    local scores = q:matmul(k:transpose(-1, -2)) / math.sqrt(q.shape[4])
    if seen and seen.dtype == "bool" then
      scores = scores:masked_fill(seen:logical_not(), -math.huge)
    elseif seen then
      scores = scores + seen
    end
    return F.dropout(scores:softmax(-1), o.dropout_p):matmul(v)
  end

  it("is dropout of the weights, over many blocks, with all masks, heads that are shared, and the gradients", function()
    for dtype, tolerance in pairs {float64 = 1e-12, float32 = 3e-4} do
      local on = {dtype = dtype, device = device}
      for _, size in ipairs {{150, 530}, {1050, 37}, {300, 512}, {1, 5}} do
        local L, S = size[1], size[2]
        local causal = lm.ones({L, S}, {dtype = "bool", device = device}):tril()
        local rows = {
          {{dropout_p = 0.3}}, {{dropout_p = 0.3, is_causal = true}, causal},
          {{dropout_p = 0.7, attn_mask = causal}, causal}, {{dropout_p = 0.1, attn_mask = lm.randn({2, 1, 1, S}, on)}},
        }
        rows[4][2] = rows[4][1].attn_mask
        for case, row in ipairs(rows) do
          local o, seen = row[1], row[2]
          o.enable_gqa = true
          local function random(...) return lm.randn({...}, on) end
          local q, k, v, g = random(2, 4, L, 9), random(2, 2, S, 9), random(2, 2, S, 7), random(2, 4, L, 7)
          for _, x in ipairs {q, k, v} do x:requires_grad_() end
          local results = {}
          for j = 1, 2 do
            lm.manual_seed(case)
            local y = j == 1 and attend(q, k, v, o) or by_dropout(q, k, v, o, seen)
            y:backward(g)
            results[j] = {y, q.grad, k.grad, v.grad, lm.rand({3}, {device = device})}
            q.grad, k.grad, v.grad = nil, nil, nil
          end
          for n = 1, 5 do -- the last: as many numbers are drawn
            local off = largest(results[1][n], results[2][n])
            assert(off <= tolerance, ("%s %d x %d, case %d, result %d: %g"):format(dtype, L, S, case, n, off))
          end
        end
      end
    end
  end)

  it("gives 0 or a weight over 1 - dropout_p, as often as it says", function()
    local p, S = 0.3, 301
    local q, k = lm.randn({2, 3, 200, 8}, {device = device}), lm.randn({2, 3, S, 8}, {device = device})
    local one = lm.eye(S, {device = device}):expand(2, 3, S, S)
    local weights, y = attend(q, k, one), attend(q, k, one, {dropout_p = p})
    local kept = y:ne(0)
    assert.near(0, largest(y, lm.where(kept, weights / (1 - p), lm.zeros_like(y))), 1e-5)
    local n = y:numel()
    local spread = 5 * math.sqrt(p * (1 - p) / n)
    assert.near(1 - p, kept:double():mean():item(), spread)
    for d = 1, 4 do -- every index of each dim keeps the same share
      local dims = {1, 2, 3, 4}
      table.remove(dims, d)
      local share = kept:double():mean(dims)
      assert.is_true(largest(share, lm.full_like(share, 1 - p)) < 5 * math.sqrt(p * (1 - p) * share:numel() / n))
    end
    -- With equal weights the sums over keys are binomial: mean 1, variance p / (1 - p) / S.
    local zero = lm.zeros({4, 8, 400, 1}, {device = device})
    local sums = attend(zero, zero:narrow(3, 1, 100), lm.ones({4, 8, 100, 1}, {device = device}), {dropout_p = p})
    assert.near(1, sums:mean():item(), 5 * math.sqrt(p / (1 - p) / 100 / sums:numel()))
    assert.near(p / (1 - p) / 100, sums:var():item(), 0.1 * p / (1 - p) / 100)
  end)

  it("of 0 is none and draws nothing, of 1 gives 0", function()
    local q, k, v = leaf(2, 2, 9, 4), leaf(2, 2, 300, 4), leaf(2, 2, 300, 5)
    lm.manual_seed(3)
    local y = attend(q, k, v, {dropout_p = 0})
    local after = lm.rand({2}, {device = device})
    lm.manual_seed(3)
    assert.is_true(lm.equal(after, lm.rand({2}, {device = device})))
    assert.is_true(lm.equal(y, attend(q, k, v)))
    y = attend(q, k, v, {dropout_p = 1})
    assert.equal(0, y:abs():max():item())
    y:sum():backward()
    for _, x in ipairs {q, k, v} do assert.equal(0, x.grad:abs():max():item()) end
  end)

  it("draws anew at each call, and the same by the same seed", function()
    local x = lm.randn({2, 3, 40, 8}, {device = device})
    local function drawn(seed)
      if seed then lm.manual_seed(seed) end
      return attend(x, x, x, {dropout_p = 0.5})
    end
    local first, second = drawn(5), drawn()
    assert.is_false(lm.equal(first, second))
    assert.is_true(lm.equal(first, drawn(5)))
    assert.is_true(lm.equal(second, drawn()))
    local three = x:select(1, 2) -- [H, L, E] draws as [1, H, L, E] does
    lm.manual_seed(6)
    local y = attend(three, three, three, {dropout_p = 0.5})
    lm.manual_seed(6)
    local four = three:unsqueeze(1)
    assert.is_true(lm.equal(y, attend(four, four, four, {dropout_p = 0.5}):squeeze(1)))
  end)

  it("has gradients and gradients of gradients", function()
    local q, k, v = leaf(1, 4, 3, 2), leaf(1, 2, 5, 2), leaf(1, 2, 5, 3)
    for _, o in ipairs {
      {dropout_p = 0.4, enable_gqa = true}, {dropout_p = 0.4, enable_gqa = true, is_causal = true},
      {dropout_p = 0.4, enable_gqa = true, attn_mask = lm.tensor({true, false, true, true, false}, {device = device})},
    } do
      local function f(a, b, c)
        lm.manual_seed(11)
        return attend(a, b, c, o)
      end
      assert.is_true(lm.autograd.gradcheck(f, {q, k, v}))
      assert.is_true(lm.autograd.gradgradcheck(f, {q, k, v}))
    end
    local mask = leaf(3, 5) -- the mask requires a gradient
    assert.is_true(lm.autograd.gradcheck(function(m)
      lm.manual_seed(11)
      return attend(q, k, v, {attn_mask = m, dropout_p = 0.4, enable_gqa = true})
    end, {mask}))
  end)

  it("gives 0 where a query sees nothing, and a gradient without NaN", function()
    local mask = lm.ones({3, 5}, {dtype = "bool", device = device})
    mask[2] = false
    local q, k, v = leaf(1, 2, 3, 4), leaf(1, 2, 5, 4), leaf(1, 2, 5, 4)
    local y = attend(q, k, v, {attn_mask = mask, dropout_p = 0.5})
    assert.equal(0, y:select(3, 2):abs():max():item())
    y:sum():backward()
    for _, x in ipairs {q, k, v} do assert.is_true(x.grad:isfinite():all():item()) end
  end)

  it("is computed in float32 of halves, and under autocast", function()
    local x = lm.randn({2, 2, 70, 16}, {device = device}):bfloat16():float()
    local function run(f)
      local q = x:clone():requires_grad_()
      lm.manual_seed(2)
      local y = f(q)
      y:float():sin():sum():backward()
      return y, q.grad
    end
    local want, slope = run(function(q) return attend(q, q, q, {dropout_p = 0.2}) end)
    for _, f in ipairs {
      function(q) local h = q:bfloat16() return attend(h, h, h, {dropout_p = 0.2}) end,
      function(q)
        return lm.autocast({device = device:match "^%a+", dtype = "bfloat16"}, function()
          return attend(q, q, q, {dropout_p = 0.2})
        end)
      end,
    } do
      lm.backends.cudnn.enabled = false -- cuDNN would have other masks
      local y, got = run(f)
      lm.backends.cudnn.enabled = true
      assert.equal("bfloat16", y.dtype)
      assert.is_true(largest(y:float(), want) < 0.03)
      assert.is_true(largest(got, slope) < 0.1)
    end
  end)

  if device == "cpu" then
    it("drops the same weights with any number of threads and at each level of instructions #unsanitized", function()
      local script = [[
        local lm = require "luminary"
        lm.set_num_threads(%d)
        lm.manual_seed(4)
        local q, k = lm.randn(2, 4, 300, 16):requires_grad_(), lm.randn(2, 2, 1030, 16):requires_grad_()
        local y = lm.nn.functional.scaled_dot_product_attention(q, k, lm.eye(1030):expand(2, 2, 1030, 1030), {
          dropout_p = 0.25, enable_gqa = true,
        })
        y:square():sum():backward()
        local kept = y:ne(0):long()
        print((kept * lm.arange(1, kept:numel() + 1):view(kept.shape)):sum():item(), kept:sum():item())
        print(("%%.4f %%.4f"):format(q.grad:double():abs():sum():item(), k.grad:double():abs():sum():item()))
      ]]
      local name, results = os.tmpname(), {}
      for _, level in ipairs(require "spec.support.cpu_levels") do
        for _, threads in ipairs {1, 2} do
          local file = assert(io.open(name, "w"))
          file:write(script:format(threads))
          file:close()
          local pipe = io.popen(("LM_CPU_LEVEL=%d luajit %s"):format(level, name))
          results[#results + 1] = {pipe:read(), pipe:read()}
          pipe:close()
        end
      end
      os.remove(name)
      assert.matches("^%d+%s%d+$", results[1][1])
      for i = 2, #results do
        assert.equal(results[1][1], results[i][1])
        for place = 1, 2 do
          local function number(row)
            local a, b = row[2]:match "^(%S+) (%S+)$"
            return tonumber(place == 1 and a or b)
          end
          assert.near(1, number(results[i]) / number(results[1]), 1e-4)
        end
      end
    end)

    it("serves layers and models that are asked for no weights", function()
      local function peak(net, ...)
        collectgarbage()
        lm.reset_peak_memory_stats()
        local before = lm.memory_allocated()
        local y = net(...)
        if type(y) == "table" then y = y[1] end
        y:sum():backward()
        local most = lm.max_memory_allocated() - before
        for _, p in ipairs(net:parameters()) do p.grad = nil end
        return most
      end
      local nn, models = lm.nn, lm.models
      local function heads() return nn.MultiheadAttention(8, 4, {dropout = 0.1, batch_first = true}) end
      local function encoder() return nn.TransformerEncoderLayer(8, 4, {dim_feedforward = 8, batch_first = true}) end
      local function of_words(net)
        return function(length) return net, lm.randint(1, 11, {1, length}) end
      end
      local function of_states(net)
        return function(length) return net, lm.randn(1, length, 8) end
      end
      local attention = heads()
      local makers = {
        MultiheadAttention = function(length)
          local x = lm.randn(1, length, 8)
          return attention, x, x, x, {
            need_weights = false, key_padding_mask = lm.zeros({1, length}, {dtype = "bool"}),
          }
        end,
        TransformerEncoderLayer = of_states(encoder()),
        gpt2 = of_words(models.gpt2 {
          vocab_size = 11, n_positions = 2048, n_embd = 8, n_layer = 1, n_head = 4, attn_pdrop = 0.1,
        }),
        bert = of_words(models.bert {
          vocab_size = 11, max_position_embeddings = 2048, hidden_size = 8, num_hidden_layers = 1,
          num_attention_heads = 4, intermediate_size = 8,
        }),
        vit = function(length)
          local side = math.sqrt(length)
          return models.vit {
            image_size = side, patch_size = 1, num_layers = 1, num_heads = 4, hidden_dim = 8, mlp_dim = 8,
            num_classes = 2, attention_dropout = 0.1,
          }:train(), lm.randn(1, 3, side, side)
        end,
      }
      for name, make in pairs(makers) do
        local long = peak(make(1600))
        assert(long < 1600 * 1600 * 4, ("%s: %d bytes"):format(name, long)) -- a quarter of what all weights take
      end
    end)
  end

  it("take a mask of booleans about as quickly as one of numbers #time", function()
    local q, seen = lm.randn(2, 8, 256, 64), lm.randn(2, 1, 256, 256):gt(0)
    local numbers = lm.zeros(2, 1, 256, 256):masked_fill(seen:logical_not(), -math.huge)
    local function least(mask)
      local best = math.huge
      for _ = 1, 10 do
        local start = os.clock()
        F.scaled_dot_product_attention(q, q, q, { attn_mask = mask })
        best = math.min(best, os.clock() - start)
      end
      return best
    end
    local slow = least(seen) / least(numbers)
    assert.is_true(slow < 1.5, ("%.2f of the time"):format(slow))
  end)

  it("gives few queries, as the next token has, what float64 gives", function()
    for _, queries in ipairs { 1, 4, 5 } do
      for _, keys in ipairs { 1, 65, 257, 600 } do
        for _, kind in ipairs { "plain", "bool", "numbers", "causal", "groups" } do
          local q, heads = lm.randn(2, 4, queries, 37), kind == "groups" and 2 or 4
          local k, v = lm.randn(2, keys, heads, 37):transpose(2, 3), lm.randn(2, heads, keys, 40):narrow(4, 3, 21)
          local opts = { is_causal = kind == "causal", enable_gqa = kind == "groups" }
          if kind == "bool" then opts.attn_mask = lm.randn(2, 1, queries, keys):gt(-1) end
          if kind == "numbers" then opts.attn_mask = lm.randn(queries, keys) end
          local got = F.scaled_dot_product_attention(q, k, v, opts)
          if kind == "numbers" then opts.attn_mask = opts.attn_mask:double() end
          local want = F.scaled_dot_product_attention(q:double(), k:double(), v:double(), opts)
          assert.is_true(got:double():allclose(want, { atol = 1e-5, equal_nan = true }),
            ("%d queries, %d keys, %s"):format(queries, keys, kind))
        end
      end
    end
  end)
end)

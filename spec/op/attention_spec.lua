local lm = require "luminary"
local F = lm.nn.functional
local attend = F.scaled_dot_product_attention

local device = os.getenv "LM_SPEC_DEVICE" or "cpu"
local function leaf(...) return lm.randn({...}, {dtype = "float64", device = device, requires_grad = true}) end
local function largest(a, b) return (a - b):abs():max():item() end

describe("scaled_dot_product_attention", function()
  -- By its definition, from matrices of scores.
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
    local x = lm.randn({2, 9, 3, 4, 6}, {device = device}) -- as one projection gives queries, keys and values
    local q, k, v = x:select(3, 1):transpose(2, 3), x:select(3, 2):transpose(2, 3), x:select(3, 3):transpose(2, 3)
    local y = attend(q, k, v, {is_causal = true})
    local dense = attend(q:contiguous(), k:contiguous(), v:contiguous(), {is_causal = true})
    assert.near(0, largest(y, dense), 1e-6)
    local one = lm.randn({1, 1, 1, 6}, {device = device}):expand(2, 4, 9, 6)
    assert.near(0, largest(attend(one, one, v), attend(one:contiguous(), one:contiguous(), v)), 1e-6)
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
    assert.error_matches(function() attend(q, k, v) end, "enable_gqa = true says so")
  end)

  it("wants one dtype, and a mask that is no wider", function()
    local q = lm.randn({1, 2, 4, 8}, {device = device})
    local wide = lm.zeros({4, 4}, {device = device, dtype = "float64"})
    assert.error_matches(function() attend(q, q, q, {attn_mask = wide}) end, "scaled_dot_product_attention: attn_mask "
      .. 'is float64, query float32; attn_mask:to%("float32"%) makes them alike, or a mask of bool goes with every')
    for _, f in ipairs {function() attend(q, q:double(), q) end, function() attend(q, q, q:double()) end} do
      assert.error_matches(f, "attention: query is float32, key float%d+, value float%d+; one dtype wanted")
    end
    local half, mask = q:half(), lm.randn({4, 4}, {device = device})
    mask[{2, {}}] = -math.huge
    local y = attend(half, half, half, {attn_mask = mask})
    assert.equal("float16", y.dtype)
    assert.near(0, largest(attend(q, q, q, {attn_mask = mask}), y:float()), 5e-3)
  end)

  it("drops weights by dropout_p and keeps their mean", function()
    local q = lm.zeros({1, 1, 400, 4}, {device = device})
    local y = attend(q, q, lm.ones_like(q), {dropout_p = 0.5})
    assert.near(1, y:mean():item(), 0.02)
    assert.is_true(y:std():item() > 0.01)
  end)

  if device == "cpu" then
    it("trains in memory that grows with the length, not with its square", function()
      local function peak(length)
        local x = lm.randn({1, 2, length, 16}, {requires_grad = true})
        collectgarbage()
        lm.reset_peak_memory_stats()
        local before = lm.memory_allocated()
        attend(x, x, x, {is_causal = true}):sum():backward()
        return lm.max_memory_allocated() - before
      end
      peak(1000)
      assert.is_true(peak(4000) < 5 * peak(1000))
    end)
  end
end)

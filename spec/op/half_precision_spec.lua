-- Half precision in functions made of several ops, and with many elements: as float64 of the same inputs, rounded.
-- Each op of the table is compared with few elements by spec/op/ops_spec.lua.
local lm = require "luminary"
local half = require "spec.support.half"
local layouts = require("spec.support.half_layouts").layouts
local F = lm.nn.functional

local device = os.getenv "LM_SPEC_DEVICE" or "cpu"

-- Returns results of f, and gradients of its inputs for random gradients of the results.
local function results_and_gradients(f, inputs)
  local results, sum = { f(unpack(inputs)) }, nil
  for j, y in ipairs(results) do
    if y.requires_grad then
      lm.manual_seed(j)
      local weighed = (y:double() * lm.rand(y.shape):to(device):half():bfloat16():double()):sum()
      sum = sum and sum + weighed or weighed
    end
  end
  if sum then sum:backward() end
  local grads = {}
  for j, x in ipairs(inputs) do grads[j] = x.grad or false end
  return results, grads
end

-- Compares f of random inputs of these shapes, times each scale, with its float64 results. o.grad_scales: factors for
-- which gradients are compared; o.units, o.grad_units: allowed differences; o.positive: inputs are.
local function same_as_wide(f, shapes, o)
  o = o or {}
  for _, dtype in ipairs(half.dtypes) do
    for _, scale in ipairs(o.scales or { 1e-4, 1, 300 }) do
      lm.manual_seed(7)
      local base, sets = {}, {}
      for j, shape in ipairs(shapes) do
        local x = o.positive and lm.rand(shape) + 0.1 or lm.randn(shape)
        base[j] = (x * scale):to(device, dtype)
      end
      for _, wide in ipairs { "float64", "float32", dtype } do
        local inputs = {}
        for j, x in ipairs(base) do inputs[j] = x:to(wide):clone():requires_grad_(not o.no_grad) end
        sets[wide] = { results_and_gradients(f, inputs) }
      end
      local kept = true
      for what, most in ipairs { o.units or 2, o.grad_units or 4 } do
        for j, want in ipairs(kept and sets.float64[what] or {}) do
          local got = sets[dtype][what][j]
          if want and got then
            local single, shared = sets.float32[what][j]:detach(), 2 * what - 2
            local off, text = half.units_off(got:detach(), want:detach(), single, dtype, shared)
            local label = what == 1 and "result" or "gradient"
            if off > most then error(("%s x %g: %s %d: %s"):format(dtype, scale, label, j, text), 2) end
            if what == 1 then kept = kept and half.keeps(want:detach(), dtype) end
          end
        end
      end
    end
  end
end

describe("half precision, rounded once:", function()
  local wide, tall = { { 5, 40 } }, { { 20000 } }

  it("standard deviations and variances", function()
    for _, shape in ipairs { { 20000 }, { 3, 700 } } do
      for _, scale in ipairs { 1e-5, 1e-4, 1, 100, 300, 9000 } do
        local o = { scales = { scale } }
        same_as_wide(function(x) return x:std() end, { shape }, o)
        same_as_wide(function(x) return x:std(-1, { keepdim = true }) end, { shape }, o)
        same_as_wide(function(x) return lm.std_mean(x, -1) end, { shape }, o)
        same_as_wide(function(x) return x:std { unbiased = false } end, { shape }, o)
        same_as_wide(function(x) return x:var() end, { shape }, o)
        same_as_wide(function(x) return lm.var_mean(x, -1) end, { shape }, o)
      end
    end
  end)

  it("norms and normalize", function()
    for _, p in ipairs { 1, 2, 3, 4, 5, 0.5, math.huge } do
      same_as_wide(function(x) return lm.linalg.vector_norm(x, p) end, { { 30 } })
      same_as_wide(function(x) return lm.linalg.vector_norm(x, p, -1) end, wide)
      same_as_wide(function(x) return F.normalize(x, { p = p, dim = 2 }) end, wide)
      same_as_wide(function(x, y) return lm.dist(x, y, p) end, { { 30 }, { 30 } })
      same_as_wide(function(x) return lm.renorm(x, p == math.huge and 2 or p, 1, 1) end, wide)
    end
    same_as_wide(function(x) return lm.linalg.matrix_norm(x) end, wide)
    same_as_wide(function(x) return lm.linalg.matrix_norm(x, 1) end, wide)
    same_as_wide(function(x) return x:norm() end, tall)
  end)

  it("distances", function()
    for _, p in ipairs { 1, 2, 3, math.huge } do
      same_as_wide(function(x, y) return lm.cdist(x, y, p) end, { { 5, 4 }, { 6, 4 } })
      same_as_wide(function(x) return lm.pdist(x, p) end, { { 6, 4 } })
    end
    local far = lm.full({ 30, 4 }, 300):to(device):half()
    assert.equal(600, lm.cdist(far, lm.zeros_like(far)):amax():item())
  end)

  it("covariances, means, integrals, products", function()
    same_as_wide(function(x) return lm.cov(x) end, { { 3, 50 } }, { units = 4 })
    same_as_wide(lm.corrcoef, { { 3, 50 } }, { units = 4 })
    same_as_wide(function(x) return x:mean(), x:mean(2) end, { { 3, 5000 } })
    same_as_wide(function(x) return lm.nanmean(x), lm.nanmean(x, 2) end, { { 3, 5000 } }, { positive = true })
    same_as_wide(function(x) return lm.trapezoid(x) end, { { 3, 50 } })
    same_as_wide(function(x) return lm.cumulative_trapezoid(x) end, { { 3, 50 } })
    local scaled = { alpha = 0.01, beta = 0.5 }
    same_as_wide(function(a, b, c) return lm.addmv(a, b, c, scaled) end, { { 5 }, { 5, 8 }, { 8 } })
    same_as_wide(function(a, b, c) return lm.baddbmm(a, b, c, scaled) end,
      { { 2, 5, 3 }, { 2, 5, 8 }, { 2, 8, 3 } })
    local index = lm.tensor { 2, 1, 2 }:to(device):long()
    same_as_wide(function(a, b) return lm.index_add(a, 1, index, b, { alpha = 0.01 }) end, { { 3, 4 }, { 3, 4 } })
    local same = lm.ones({ 40 }, { dtype = "int64" }):to(device)
    local many, above = { { 1 }, { 40 } }, { positive = true }
    same_as_wide(function(a, b) return lm.scatter_reduce(a, 1, same, b, "mean") end, many, above)
    same_as_wide(function(a, b) return lm.index_reduce(a, 1, same, b, "mean") end, many, above)
    local x = lm.full({ 2 }, 60000):to(device):half()
    assert.equal(600, x:mul(0):index_add_(1, lm.tensor { 1 }:to(device):long(), x:narrow(1, 1, 1), { alpha = 0.01 })[1])
  end)

  it("pooling and normalization", function()
    same_as_wide(function(x) return F.local_response_norm(x, 4) end, { { 2, 6, 5 } }, { units = 4 })
    for _, p in ipairs { 1, 2, 3 } do
      same_as_wide(function(x) return F.lp_pool1d(x, p, 3) end, { { 1, 2, 12 } }, { positive = true })
      same_as_wide(function(x) return F.lp_pool2d(x, p, 2) end, { { 1, 2, 6, 6 } }, { positive = true })
    end
    same_as_wide(function(x) return F.avg_pool2d(x, 20) end, { { 1, 2, 40, 40 } })
    same_as_wide(function(x) return F.adaptive_avg_pool2d(x, 2) end, { { 1, 2, 40, 40 } })
    same_as_wide(function(x) return F.avg_pool3d(x, 2), F.adaptive_avg_pool3d(x, 3) end, { { 2, 2, 6, 6, 6 } })
    local full = lm.full({ 1, 4, 20, 20 }, 300):to(device):half()
    assert.equal(480, F.avg_pool3d(full, { 4, 20, 20 }, { divisor_override = 1000 }):item())
    same_as_wide(function(x, w) return F.rms_norm(x, { 8 }, w) end, { { 3, 8 }, { 8 } }, { scales = { 1, 200 } })
    local weight = lm.ones(8):to(device) -- float32 beside half precision
    same_as_wide(function(x) return F.rms_norm(x, { 8 }, weight:to(x.dtype == "float64" and x.dtype or "float32")) end,
      { { 3, 8 } }, { scales = { 1, 300 } })
    same_as_wide(function(x) return F.instance_norm(x) end, { { 2, 3, 50 } }, { grad_units = 16 }) -- the mean is saved
    same_as_wide(function(x) return F.interpolate(x, { size = { 7, 7 }, mode = "bilinear" }) end, { { 1, 2, 5, 5 } })
  end)

  it("logarithms of cumulative sums", function()
    same_as_wide(function(x) return lm.logcumsumexp(x, 2) end, { { 6, 13 } }, { grad_units = 3 })
  end)

  it("results have the dtype that the tensors promote to", function()
    for _, dtype in ipairs(half.dtypes) do
      local x, one = lm.rand(4, 3):to(device, dtype):requires_grad_(), lm.tensor(0.5):to(device)
      local signs = lm.ones(4):to(device)
      for _, name in ipairs { "mse_loss", "l1_loss", "smooth_l1_loss", "kl_div", "poisson_nll_loss" } do
        assert.equal(dtype, F[name](x, one).dtype)
      end
      assert.equal(dtype, F.hinge_embedding_loss(x, signs:unsqueeze(2)).dtype)
      assert.equal(dtype, F.cosine_embedding_loss(x, x, signs).dtype)
      assert.equal("float32", F.mse_loss(x, x:detach():float()).dtype)
      assert.error(function() lm.scatter_reduce(x, 1, lm.ones_like(x:detach()):long(),
        x:to(dtype == "float16" and "bfloat16" or "float16"), "mean") end)
    end
  end)

  it("under autocast each op has its dtype", function()
    local x = lm.full({ 1, 4, 2, 2 }, 30):to(device):bfloat16()
    lm.autocast({ dtype = "bfloat16" }, function()
      for _, f in ipairs { function() return F.normalize(x) end, function() return F.local_response_norm(x, 2) end,
        function() return F.interpolate(x, { size = { 3, 3 }, mode = "bilinear" }) end,
        function() return F.lp_pool2d(x, 2, 2) end, function() return F.pairwise_distance(x, x) end } do
        assert(f():isfinite():all():item())
      end
    end)
  end)

  it("losses of many rows, whose sum leaves float16", function()
    local n = 20000
    local labels = lm.randint(1, 5, { n }):to(device)
    local function losses(f, shapes, o) same_as_wide(f, shapes, o or { scales = { 1, 4 } }) end
    local function probabilities(y) return y:detach():softmax(2) end
    losses(function(x, y) return F.cross_entropy(x, probabilities(y)) end, { { n, 4 }, { n, 4 } })
    losses(function(x) return F.cross_entropy(x, labels) end, { { n, 4 } })
    losses(function(x) return F.cross_entropy(x, labels, { label_smoothing = 0.2 }) end, { { n, 4 } })
    losses(function(x) return F.nll_loss(x, labels) end, { { n, 4 } })
    losses(function(x, y) return F.kl_div(x, probabilities(y), { reduction = "batchmean" }) end, { { n, 4 }, { n, 4 } })
    losses(function(x, y) return F.kl_div(x, y:detach(), { log_target = true, reduction = "batchmean" }) end,
      { { n, 4 }, { n, 4 } }, { scales = { 0.5 } })
    local pair = { { n }, { n } }
    for _, name in ipairs { "mse", "l1", "huber", "smooth_l1", "soft_margin", "poisson_nll" } do
      losses(function(x, y) return F[name .. "_loss"](x, y) end, pair)
    end
    losses(function(x, y) return F.binary_cross_entropy_with_logits(x, y:detach():sigmoid()) end, pair)
    losses(function(x, y) return F.gaussian_nll_loss(x, y, lm.full_like(x:detach(), 0.5)) end, pair)
    local signs = (labels % 2 * 2 - 1)
    losses(function(x) return F.hinge_embedding_loss(x, signs) end, { { n } })
    losses(function(x, y) return F.margin_ranking_loss(x, y, signs) end, pair)
    local rows = { { n, 4 }, { n, 4 } }
    losses(function(x, y) return F.cosine_embedding_loss(x, y, signs) end, rows, { scales = { 1, 300 } })
    losses(function(x) return F.multi_margin_loss(x, labels) end, { { n, 4 } })
    losses(function(x, y) return F.multilabel_soft_margin_loss(x, y:detach():gt(0):to(x.dtype)) end, rows)
    losses(function(x, y, z) return F.triplet_margin_loss(x, y, z) end, { { n, 4 }, { n, 4 }, { n, 4 } })
    losses(function(x, y, z) return F.triplet_margin_with_distance_loss(x, y, z) end, { { n, 4 }, { n, 4 }, { n, 4 } })
    losses(function(x) return F.multilabel_margin_loss(x, labels:view(-1, 4):clone():fill_(2)) end, { { n / 4, 4 } })
  end)

  it("without float32 copies of what a formula reads once", function()
    local function copied(f)
      local bytes = 0
      for _, row in ipairs(lm.profile(f):rows()) do
        if row.name == "to_copy" then bytes = bytes + row.memory end
      end
      return bytes
    end
    for _, dtype in ipairs { "bfloat16", "float16" } do
      local function random(shape) return lm.randn(unpack(shape)):to { device = device, dtype = dtype } end
      for _, layout in ipairs(layouts) do
        local x, y = layout[2](random, { 64, 64 }), layout[2](random, { 64, 64 })
        local function at(name) return ("%s, %s, %s"):format(name, dtype, layout[1]) end
        for _, name in ipairs(x and { "mse_loss", "l1_loss", "smooth_l1_loss", "cosine_similarity" } or {}) do
          assert(copied(function() return F[name](x, y) end) < 1024, at(name))
        end
        for _, name in ipairs(x and { "std", "var", "norm" } or {}) do
          assert(copied(function() return x[name](x) end) < 1024, at(name))
        end
      end
      local leaf, target = random({ 64, 64 }):requires_grad_(), random { 64, 64 }
      local rounded = copied(function() F.mse_loss(leaf, target):backward() end)
      assert(rounded <= 64 * 64 * 2 + 1024, rounded) -- the gradient alone
    end
  end)

  it("gradients that are themselves differentiated", function()
    for _, name in ipairs { "tanh", "sigmoid", "exp", "sqrt", "cube", "softplus", "std", "norm", "logsumexp" } do
      local f = name == "cube" and function(x) return x ^ 3 end or name == "softplus" and F.softplus or lm[name]
      same_as_wide(function(x)
        local y = f(x)
        return (lm.autograd.grad(y:sum(), { x }, { create_graph = true }))[1]
      end, { { 40 } }, { positive = true, no_grad = false, scales = { 1 }, units = 8, grad_units = 8 })
    end
  end)
end)

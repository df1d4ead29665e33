-- linear_cross_entropy against cross_entropy of all logits.
local lm = require "luminary"
local F = lm.nn.functional
local device = os.getenv "LM_SPEC_DEVICE" or "cpu"
if device ~= "cpu" and not lm.cuda.is_available() then return end

local function inputs(dtype, n, classes, width)
  lm.manual_seed(1)
  local x = lm.randn({ n, width }):to(dtype):to(device):requires_grad_()
  local weight = lm.randn({ classes, width }):to(dtype):to(device):requires_grad_()
  local bias = lm.randn({ classes }):to(dtype):to(device):requires_grad_()
  local target = lm.randint(1, classes + 1, { n })
  target[2] = -100
  return x, weight, bias, target:to(device)
end

local cases = {
  {}, { reduction = "sum" }, { reduction = "none" }, { label_smoothing = 0.1 },
  { label_smoothing = 0.2, reduction = "none", weighted = true }, { weighted = true }, { ignore_index = 3 },
}

local function options_of(case, classes)
  local o = {}
  for key, value in pairs(case) do o[key] = value end
  o.weighted = nil
  if case.weighted then o.weight = lm.linspace(0.5, 2, classes):to(device) end
  return o
end

local function gradients(f, list)
  for _, t in ipairs(list) do t.grad = nil end
  local y = f()
  y:sum():backward()
  local found = { y:detach() }
  for i, t in ipairs(list) do found[i + 1] = t.grad end
  return found
end

local function close(a, b, rtol, atol, what)
  assert.equal(b.dtype, a.dtype)
  assert.is_true(a:double():allclose(b:double(), { rtol = rtol, atol = atol }), ("%s: %s, expected %s"):format(what,
    tostring(a), tostring(b)))
end

local tolerance = { float64 = 1e-12, float32 = 1e-5, float16 = 4e-3, bfloat16 = 3e-2 }

describe("linear_cross_entropy", function()
  for dtype, tol in pairs(tolerance) do
    it("in " .. dtype .. " is cross_entropy of linear, and so are its gradients", function()
      local x, weight, bias, target = inputs(dtype, 7, 11, 5)
      for i, case in ipairs(cases) do
        local o = options_of(case, 11)
        target[2] = o.ignore_index or -100
        if o.weight then o.weight = o.weight:to(dtype) end
        for _, with_bias in ipairs { false, true } do
          local list = { x, weight, with_bias and bias or nil }
          local expected = gradients(function()
            return F.cross_entropy(F.linear(x, weight, with_bias and bias or nil), target, o)
          end, list)
          for _, chunk_size in ipairs { 1, 3, 7, 100, false } do
            o.chunk_size, o.linear_bias = chunk_size or nil, with_bias and bias or nil
            local found = gradients(function() return F.linear_cross_entropy(x, weight, target, o) end, list)
            for k = 1, #list + 1 do close(found[k], expected[k], tol, tol, ("case %d, %d"):format(i, k)) end
            o.chunk_size, o.linear_bias = nil, nil
          end
        end
      end
    end)
  end

  it("takes inputs of more dims, and of one", function()
    local x, weight, _, target = inputs("float32", 6, 11, 5)
    local batch, labels = x:detach():view(2, 3, 5), target:view(2, 3)
    local y = F.linear_cross_entropy(batch, weight, labels, { reduction = "none", chunk_size = 4 })
    assert.same({ 2, 3 }, y.shape)
    local rows = F.linear_cross_entropy(x, weight, target, { reduction = "none" }):detach()
    close(y:detach():flatten(), rows, 1e-6, 1e-6, "3-d")
    local one = F.linear_cross_entropy(x:detach()[1], weight, target:select(1, 1))
    assert.near(y:detach()[1][1], one:item(), 1e-6)
  end)

  it("under autocast is float32 of low logits, and gradients of parameters are not rounded", function()
    for _, dtype in ipairs { "bfloat16", "float16" } do
      local x, weight, bias, target = inputs("float32", 40, 11, 16)
      local mode = { device = device:match "^%a+", dtype = dtype }
      local list = { x, weight, bias }
      local exact = gradients(function() return F.cross_entropy(F.linear(x, weight, bias), target) end, list)
      local found = gradients(function()
        return lm.autocast(mode, F.linear_cross_entropy, x, weight, target, { linear_bias = bias, chunk_size = 8 })
      end, list)
      for k = 1, 4 do
        close(found[k], exact[k], 5e-2, 2e-2, dtype .. " " .. k)
        assert.equal("float32", found[k].dtype)
      end
      assert.is_false(found[3]:equal(found[3]:to(dtype):float()))
    end
  end)

  it("scales losses before gradients become float16, as GradScaler does", function()
    local x, weight, _, target = inputs("float32", 64, 11, 16)
    local mode = { device = device:match "^%a+", dtype = "float16" }
    local list = { x, weight }
    local scale = 2 ^ 16
    local function of(factor)
      return gradients(function()
        return lm.autocast(mode, F.linear_cross_entropy, x, weight, target, { chunk_size = 16 }) * 2 ^ -12 * factor
      end, list)
    end
    local scaled, plain = of(scale), of(1)
    local expected = gradients(function() return F.cross_entropy(F.linear(x, weight), target) * 2 ^ -12 end, list)
    local function distance(a, b) return (a - b):abs():max():item() / b:abs():max():item() end
    for k = 2, 3 do
      assert.is_true(distance(scaled[k] / scale, expected[k]) < 5e-3)
      assert.is_true(distance(scaled[k] / scale, expected[k]) < distance(plain[k], expected[k]))
    end
  end)

  it("has second derivatives", function()
    local x, weight, bias, target = inputs("float64", 4, 5, 3)
    for _, case in ipairs(cases) do
      local o = options_of(case, 5)
      target[2] = o.ignore_index or -100
      o.chunk_size = 3
      if o.weight then o.weight = o.weight:double() end
      local function f(a, b, c)
        o.linear_bias = c
        return F.linear_cross_entropy(a, b, target, o)
      end
      assert.is_true(lm.autograd.gradcheck(f, { x, weight, bias }))
      assert.is_true(lm.autograd.gradgradcheck(f, { x, weight, bias }))
    end
  end)

  it("has a gradient of 0 where all rows are ignored, as cross_entropy, also with create_graph", function()
    for _, smoothing in ipairs { 0, 0.1 } do
      for _, create_graph in ipairs { false, true } do
        local x, weight, bias, target = inputs("float32", 4, 5, 3)
        target:fill_(2)
        local o = { linear_bias = bias, ignore_index = 2, label_smoothing = smoothing }
        local y = F.linear_cross_entropy(x, weight, target, o)
        for _, g in ipairs(lm.grad(y, { x, weight, bias }, { create_graph = create_graph })) do
          assert.equal(0, g:abs():max():item())
        end
      end
    end
  end)

  it("never has all logits in memory", function()
    local n, classes = 128, 2048
    local x, weight, _, target = inputs("float32", n, classes, 8)
    local function peak(f)
      collectgarbage()
      collectgarbage()
      lm.reset_peak_memory_stats(device)
      local before = lm.memory_allocated(device)
      gradients(f, { x, weight })
      return lm.max_memory_allocated(device) - before
    end
    local logits = n * classes * 4
    assert.is_true(peak(function() return F.cross_entropy(F.linear(x, weight), target) end) >= 2 * logits)
    local found = peak(function() return F.linear_cross_entropy(x, weight, target, { chunk_size = 8 }) end)
    assert.is_true(found < logits / 2, ("%d bytes, of which all logits have %d"):format(found, logits))
  end)

  it("of no rows is 0, or NaN as a mean", function()
    local x, weight = lm.zeros({ 0, 5 }, { device = device }), lm.zeros({ 3, 5 }, { device = device })
    local target = lm.zeros({ 0 }, { dtype = "int64", device = device })
    assert.equal(0, F.linear_cross_entropy(x, weight, target, { reduction = "sum" }):item())
    assert.is_true(F.linear_cross_entropy(x, weight, target):isnan():item())
  end)

  it("says what is wrong", function()
    local x, weight, _, target = inputs("float32", 4, 5, 3)
    local wide, ones, bad = lm.ones(4, 4):to(device), lm.ones(3):to(device), target:clone()
    bad[1] = 6
    for _, each in ipairs {
      { "expected input to have shape %[%*, 3%] for linear_weight %[5, 3%], got %[4, 4%]", wide, weight, target },
      { "expected linear_weight to have shape %[C, …, D%], got %[5%]", x, weight:select(2, 1), target },
      { "expected target to have shape %[4%], got %[3%]", x, weight, target:narrow(1, 1, 3) },
      { "linear_cross_entropy: expected target to have shape %[4, 5%], got %[3, 5%]", x, weight, lm.rand(3, 5) },
      { "expected input to have shape %[N, 3%] for linear_weight %[5, 2, 3%], got %[2, 2, 3%]", x:reshape(2, 2, -1),
        lm.ones(5, 2, 3):to(device), target },
      { "label_smoothing must be a number from 0 to 1, got 2", x, weight, target, { label_smoothing = 2 } },
      { "label_smoothing must be a number from 0 to 1, got nan", x, weight, target, { label_smoothing = 0 / 0 } },
      { "expected linear_bias to have shape %[5%], got %[3%]", x, weight, target, { linear_bias = ones } },
      { "chunk_sizes.*chunk_size", x, weight, target, { chunk_sizes = 2 } },
      { "label 6 .*out of range for 5 classes", x, weight, bad },
    } do
      local ok, why = pcall(function() return F.linear_cross_entropy(unpack(each, 2)):item() end)
      assert.is_false(ok)
      assert.matches(each[1], tostring(why))
    end
  end)

  it("takes probabilities, and several targets of each row", function()
    lm.manual_seed(2)
    local x, weight, bias = lm.randn(4, 3):to(device), lm.randn(5, 2, 3):to(device), lm.randn(5, 2):to(device)
    local target = lm.randint(1, 6, { 4, 2 }):to(device)
    local logits = F.linear(x, weight:reshape(-1, 3), bias:reshape(-1)):reshape(4, 5, 2)
    for _, reduction in ipairs { "mean", "sum", "none" } do
      local o = { linear_bias = bias, reduction = reduction, label_smoothing = 0.1 }
      local expected = { reduction = reduction, label_smoothing = 0.1 }
      local function same(got, want) close(got, want, 1e-5, 1e-6, reduction) end
      same(F.linear_cross_entropy(x, weight, target, o), F.cross_entropy(logits, target, expected))
      local shares = lm.rand(4, 5, 2):to(device)
      same(F.linear_cross_entropy(x, weight, shares, o), F.cross_entropy(logits, shares, expected))
      local flat = weight:select(2, 1)
      o.linear_bias = nil
      same(F.linear_cross_entropy(x:view(2, 2, 3), flat, shares:select(3, 1):reshape(2, 2, 5), o):reshape(-1),
        F.cross_entropy(F.linear(x, flat), shares:select(3, 1), expected):reshape(-1))
    end
    local loss = lm.nn.LinearCrossEntropyLoss(3, 5, { out_features = { 2 }, bias = true, ignore_index = 2 }):to(device)
    loss:load_state_dict { ["linear.weight"] = weight:reshape(-1, 3), ["linear.bias"] = bias:reshape(-1) }
    close(loss(x, target), F.cross_entropy(logits, target, { ignore_index = 2 }), 1e-5, 1e-6, "layer")
    loss = lm.nn.LinearCrossEntropyLoss(3, 5, { weight = lm.linspace(1, 2, 5) }):to(device)
    close(loss(x, target:select(2, 1)), F.cross_entropy(F.linear(x, loss.linear.weight), target:select(2, 1),
      { weight = loss.weight }), 1e-5, 1e-6, "weights")
  end)
end)

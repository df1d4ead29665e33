-- Cross entropy in one pass over rows of logits, against PyTorch (gen_golden.py _cross_entropy) in every dtype.
local lm = require "luminary"
local F = lm.nn.functional
local golden = lm.load "spec/golden/_cross_entropy.safetensors"
local device = os.getenv "LM_SPEC_DEVICE" or "cpu"
if device ~= "cpu" and not lm.cuda.is_available() then return end

local ROWS, STEP = 4, 1009

local function logits(classes)
  local i = lm.arange(ROWS):reshape({ ROWS, 1 })
  local j = lm.arange(classes):reshape({ 1, classes })
  return ((i * 37 + j * 101 + (j * j):remainder(53)):remainder(257) - 128):double() / 32
end

local function labels(classes)
  return lm.tensor({ 1, math.floor(classes / 2) + 1, -100, classes }, { dtype = "int64" })
end

local cases = {
  mean = {}, sum = { reduction = "sum", weighted = true }, none = { reduction = "none" },
  smooth = { label_smoothing = 0.1 },
  weighted = { label_smoothing = 0.25, weighted = true },
  each = { label_smoothing = 0.25, weighted = true, reduction = "none" },
}
local tolerance = { -- for losses, which are rounded to the dtype, and for gradients
  float64 = { 1e-12, 1e-13 }, float32 = { 2e-6, 5e-7 }, float16 = { 1e-3, 1e-3 }, bfloat16 = { 8e-3, 4e-3 },
}

local function close(actual, expected, tol, what)
  expected = expected:to(device)
  local ok = actual:double():allclose(expected, { rtol = tol, atol = tol, equal_nan = true })
  assert.is_true(ok, ("%s: %s, expected %s"):format(what, tostring(actual), tostring(expected)))
end

-- Memory in which x may lie.
local layouts = {
  rows = function(x) return x end,
  columns = function(x) return x:t():contiguous():t() end,
  gaps = function(x) return lm.cat({ x, x }, 2)[{ {}, { 1, x:size(2) } }] end,
}

local function check(classes, name, options, dtype, layout, all_ignored)
  local weight = options.weighted and (lm.arange(classes):remainder(5) + 1):to(dtype):to(device) / 4
  local target = labels(classes)
  if all_ignored then target:fill_(-100) end
  local leaf = logits(classes):to(dtype):to(device):requires_grad_()
  local y = F.cross_entropy(layouts[layout](leaf), target:to(device), {
    weight = weight, label_smoothing = options.label_smoothing, reduction = options.reduction,
  })
  y:sum():backward()
  local key = ("%d.%s%s"):format(classes, name, all_ignored and ".ignored" or "")
  local what = ("%s %s %s"):format(key, dtype, layout)
  assert.equal(dtype, y.dtype)
  close(y, golden[key], tolerance[dtype][1], what)
  local grad = leaf.grad
  if classes > 1000 then grad = grad:index_select(2, lm.arange(1, classes + 1, STEP):to(device)) end
  close(grad, golden[key .. ".grad"], tolerance[dtype][2], what .. " gradient")
end

describe("cross_entropy", function()
  for _, classes in ipairs { 1, 7, 300, 50257 } do
    it(("of %d classes is PyTorch's in every dtype and layout, and its gradient"):format(classes), function()
      for name, options in pairs(cases) do
        for dtype in pairs(tolerance) do
          for layout in pairs(layouts) do check(classes, name, options, dtype, layout) end
        end
      end
    end)
  end

  it("of rows that are all ignored is PyTorch's", function()
    for name, options in pairs(cases) do
      for dtype in pairs(tolerance) do check(7, name, options, dtype, "rows", true) end
    end
  end)

  it("of images with classes last in memory is that of images with classes first", function()
    local x = lm.randn({ 2, 5, 3, 4 }, { device = device })
    local target = lm.randint(1, 6, { 2, 3, 4 }, { device = device })
    for _, reduction in ipairs { "mean", "none" } do
      local found = {}
      for _, format in ipairs { "contiguous", "channels_last" } do
        local leaf = x:contiguous({ memory_format = format }):detach():requires_grad_()
        local y = F.cross_entropy(leaf, target, { reduction = reduction, ignore_index = 2, label_smoothing = 0.1 })
        y:sum():backward()
        found[#found + 1] = { y:detach(), leaf.grad }
      end
      for k = 1, 2 do assert.is_true(found[1][k]:allclose(found[2][k], { rtol = 1e-5, atol = 1e-6 })) end
    end
    assert.error_matches(function()
      F.cross_entropy(x:contiguous({ memory_format = "channels_last" }), target:transpose(2, 3))
    end, "target", 1, true)
  end)

  it("refuses ignore_index for a target of probabilities", function()
    local x, target = lm.randn({ 2, 3 }, { device = device }), lm.rand({ 2, 3 }, { device = device })
    assert.error_matches(function() F.cross_entropy(x, target, { ignore_index = 2 }) end,
      "ignore_index must be below 1 for a target of probabilities, got 2", 1, true)
    assert.error_matches(function()
      F.linear_cross_entropy(x, lm.ones({ 3, 3 }, { device = device }), target, { ignore_index = 1 })
    end, "ignore_index must be below 1 for a target of probabilities, got 1", 1, true)
    assert.is_true(F.cross_entropy(x, target, { ignore_index = -100 }):isfinite():item())
  end)

  it("under autocast reads low logits as they are, and its loss is float32", function()
    for _, dtype in ipairs { "bfloat16", "float16" } do
      local x = lm.randn({ 6, 11 }, { device = device }):to(dtype):requires_grad_()
      local target = lm.randint(1, 12, { 6 }, { device = device })
      local weight = lm.rand({ 11 }, { device = device }):to(dtype)
      for _, at in ipairs { target, lm.rand({ 6, 11 }, { device = device }) } do
        local y = lm.autocast({ device = device:match "^%a+", dtype = dtype }, function()
          return F.cross_entropy(x, at, { weight = weight })
        end)
        assert.equal("float32", y.dtype)
        local expected = F.cross_entropy(x:detach():float(), at, { weight = weight:float() })
        assert.near(expected:item(), y:item(), 1e-5)
        x.grad = nil
        y:backward()
        assert.equal(dtype, x.grad.dtype)
      end
    end
  end)

  it("has the same bits in each run and with any number of threads", function()
    local x = lm.randn({ 300, 1000 }, { device = device })
    local target = lm.randint(1, 1001, { 300 }, { device = device })
    local threads, first = lm.get_num_threads()
    for n = 1, 4 do
      lm.set_num_threads(n)
      local leaf = x:detach():requires_grad_()
      local y = F.cross_entropy(leaf, target, { label_smoothing = 0.1 })
      y:backward()
      first = first or { y:detach(), leaf.grad }
      assert.is_true(first[1]:equal(y:detach()) and first[2]:equal(leaf.grad))
    end
    lm.set_num_threads(threads)
  end)

  it("has second derivatives", function()
    for name, options in pairs(cases) do
      for _, layout in pairs(layouts) do
        local x = (logits(7) / 4):to(device):requires_grad_()
        local weight = options.weighted and (lm.arange(7):remainder(5) + 1):double():to(device) / 4
        local target = labels(7):to(device)
        local ok, why = pcall(lm.autograd.gradgradcheck, function(leaf)
          return F.cross_entropy(layout(leaf), target, {
            weight = weight, label_smoothing = options.label_smoothing, reduction = options.reduction,
          })
        end, { x })
        assert.is_true(ok and why ~= false, name .. ": " .. tostring(why))
      end
    end
  end)

  it("of no rows is 0, or NaN as a mean", function()
    local x = lm.zeros({ 0, 5 }, { device = device, requires_grad = true })
    local target = lm.zeros({ 0 }, { dtype = "int64", device = device })
    assert.equal(0, F.cross_entropy(x, target, { reduction = "sum" }):item())
    local mean = F.cross_entropy(x, target)
    assert.is_true(mean:isnan():item())
    mean:backward()
    assert.same({ 0, 5 }, x.grad.shape)
  end)

  it("names the label that is no class", function()
    for _, label in ipairs { 0, 6, -1 } do
      local target = lm.tensor({ 1, label, 5 }, { dtype = "int64", device = device })
      local x = lm.zeros({ 3, 5 }, { device = device })
      assert.error_matches(function() return F.cross_entropy(x, target):item() end,
        ("cross_entropy: .*label %s .*out of range for 5 classes"):format(tostring(label):gsub("-", "%%-")))
    end
  end)
end)

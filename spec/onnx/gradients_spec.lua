-- Gradients of ONNX's ops where a formula has a kink or a root of 0: as PyTorch has them, in each dtype and layout.
local lm = require "luminary"
local files = require "spec.support.onnx_files"
local needs = require "spec.support.needs"
local temp = require "spec.support.temp"

local folder = temp.during(setup, teardown)

-- Returns the result of a model of nodes and the gradient of its sum at x.
local function at(x, nodes, tensors)
  local path = files.write(folder, nodes, tensors, {version = 18, input = {files.info("x", files.numbers[x.dtype])}})
  x = x:detach():requires_grad_()
  local y = lm.onnx.load(path)(x)
  y:sum():backward()
  return y:detach(), x.grad
end

-- Calls body(dtype, lay), lay(x) being x in a dtype and layout.
local function each_layout(body)
  for _, dtype in ipairs {"bfloat16", "float16", "float32", "float64"} do
    for _, lay in ipairs {
      function(x) return x:to(dtype) end, function(x) return x:t():contiguous():to(dtype):t() end,
      function(x) return lm.stack({x, x}, 3):to(dtype):select(3, 1) end,
    } do
      body(dtype, lay)
    end
  end
end

describe("gradients of ONNX's ops", function()
  if needs.lacks(it, pending, needs.onnx()) then return end

  it("are 0 at a zero vector for ReduceL2, LpNormalization and MeanVarianceNormalization", function()
    local x, axes = lm.tensor {{0, 0}, {3, 4}}, {a = lm.tensor({1}, {dtype = "int64"})}
    each_layout(function(dtype, lay)
      local y, g = at(lay(x), {{"ReduceL2", "x a", "y"}}, axes)
      assert.same({{0}, {5}}, y:totable())
      assert.is_true(lm.allclose(g:double(), lm.tensor({{0, 0}, {0.6, 0.8}}, {dtype = "float64"}), 1e-2))
      assert.equal(dtype, g.dtype)
      y, g = at(lay(x), {{"ReduceL2", "x", "y", {keepdims = 0}}})
      assert.is_true(y.ndim == 0 and y:item() == 5 and g:isfinite():all():item())
      y, g = at(lay(x), {{"ReduceL2", "x a", "n"}, {"Clip", "n low", "c"}, {"Div", "x c", "y"}},
        {a = axes.a, low = lm.full({}, 1):to(dtype)})
      assert.is_true(y:isfinite():all():item() and g:isfinite():all():item())
      y, g = at(lay(x), {{"LpNormalization", "x", "y"}})
      assert.same({0, 0}, y[1]:totable())
      assert.is_true(g:isfinite():all():item())
      y, g = at(lay(lm.tensor {{2, 2}, {3, 5}}), {{"MeanVarianceNormalization", "x", "y", {axes = {1}}}})
      assert.is_true(lm.allclose(y:double(), lm.tensor({{0, 0}, {-1, 1}}, {dtype = "float64"}), 1e-2))
      assert.is_true(g:isfinite():all():item())
    end)
  end)

  it("normalize numbers far from 0 without a root of less than 0", function()
    local y = at(lm.tensor {{4096, 4097, 4098, 4099}}, {{"MeanVarianceNormalization", "x", "y", {axes = {1}}}})
    assert.is_true(lm.allclose(y, lm.tensor {{-1.3416, -0.4472, 0.4472, 1.3416}}, 1e-3))
  end)

  it("are PyTorch's where elements are equal or 0", function()
    local inf = math.huge
    local zero, tie = lm.zeros(1, 3), lm.tensor {{2, 2, 1}}
    local slope = lm.full({1}, 0.25)
    for _, case in ipairs {
      {zero, {{"PRelu", "x s", "y"}}, {0.25, 0.25, 0.25}, {s = slope}}, -- F.prelu
      {lm.tensor {{-1, 0, 2}}, {{"PRelu", "x s", "y"}}, {0.25, 0.25, 1}, {s = slope}},
      {zero, {{"LeakyRelu", "x", "y"}}, {0.01, 0.01, 0.01}}, {zero, {{"Relu", "x", "y"}}, {0, 0, 0}},
      {zero, {{"Abs", "x", "y"}}, {0, 0, 0}}, {zero, {{"ReduceL1", "x", "y"}}, {0, 0, 0}},
      {zero, {{"ReduceSumSquare", "x", "y"}}, {0, 0, 0}}, {tie, {{"ReduceMax", "x", "y"}}, {0.5, 0.5, 0}},
      {-tie, {{"ReduceMin", "x", "y"}}, {0.5, 0.5, 0}}, {zero, {{"ReduceProd", "x", "y"}}, {0, 0, 0}},
      {lm.tensor {{0, 2, 3}}, {{"ReduceProd", "x", "y"}}, {6, 0, 0}},
      {tie, {{"Max", "x t", "y"}}, {0.5, 1, 0.5}, {t = lm.tensor {{2, 1, 1}}}},
      {zero, {{"ReduceLogSumExp", "x", "y"}}, {1 / 3, 1 / 3, 1 / 3}},
      {lm.full({1, 3}, -inf), {{"ReduceLogSumExp", "x", "y"}}, {0, 0, 0}},
      {zero, {{"GlobalLpPool", "x", "y"}}, {0, 0, 0}, nil, {1, 1, 3}},
    } do
      each_layout(function(dtype, lay)
        if case[5] and dtype:find "16" then return end
        local x, tensors = lay(case[1]), {}
        for name, t in pairs(case[4] or {}) do tensors[name] = t:to(dtype) end
        local _, g = at(case[5] and x:reshape(case[5]) or x, case[2], tensors)
        local wanted = lm.tensor(case[3], {dtype = "float64"})
        assert.is_true(lm.allclose(g:double():reshape(-1), wanted, 1e-2), case[2][1][1])
      end)
    end
  end)
end)

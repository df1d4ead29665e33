-- nn.init: matrices with a shape of their own.
local lm = require "luminary"
local message = require "spec.support.error_of"
local init = lm.nn.init

describe("nn.init", function()
  it("orthogonal_ has orthonormal rows or columns", function()
    for _, shape in ipairs { { 3, 5 }, { 70, 40 }, { 40, 40 }, { 4, 3, 2 } } do
      local t = lm.empty(shape)
      assert.equal(t, init.orthogonal_(t, { gain = 2 }))
      local a = t:view(shape[1], -1)
      if a.shape[1] > a.shape[2] then a = a:t() end
      assert(a:matmul(a:t()):allclose(lm.eye(a.shape[1]) * 4, { atol = 1e-5 }))
    end
    assert.matches("orthogonal_: t must be a tensor of at least 2 dims, got a tensor %[3%]$",
      message(init.orthogonal_, lm.ones(3)))
    assert.equal(0, init.orthogonal_(lm.empty(0, 3)):numel())
  end)

  -- means and variances by the formulas for a truncated normal distribution
  it("trunc_normal_ stays within its bounds, with its mean and variance", function()
    lm.manual_seed(1)
    for _, case in ipairs {
      { 0, 1, -2, 2, 0, 0.77374 }, { 0, 1, 5, 100, 5.18650, 0.032696 }, { 0, 1, -100, -8, -8.12137, 0.014325 },
      { 0, 1, -0.01, 0.02, 0.005, 7.4998e-5 }, { 1, 2, 0, 5, 1.89149, 1.50638 },
    } do
      local mean, std, a, b = unpack(case)
      local t = init.trunc_normal_(lm.empty(20000), mean, std, a, b)
      assert.is_true(t:min():item() >= a and t:max():item() <= b)
      assert.near(case[5], t:mean():item(), 4 * math.sqrt(case[6] / 20000))
      assert.near(1, t:var():item() / case[6], 0.08)
    end
    assert.matches("trunc_normal_: a must be less than b, got 2 and 1$",
      message(init.trunc_normal_, lm.ones(1), 0, 1, 2, 1))
  end)

  it("eye_, dirac_ and sparse_", function()
    assert(init.eye_(lm.empty(2, 3)):equal(lm.eye(2, 3)))
    assert.matches("eye_: t must be a tensor of 2 dims, got a tensor %[2, 2, 2%]$",
      message(init.eye_, lm.ones(2, 2, 2)))
    local w = init.dirac_(lm.empty(4, 2, 3), { groups = 2 })
    local want = lm.zeros(4, 2, 3)
    for i = 1, 4 do want[{ i, (i - 1) % 2 + 1, 2 }] = 1 end
    assert(w:equal(want))
    local x = lm.randn { 1, 2, 5, 5 }
    assert(lm.conv2d(x, init.dirac_(lm.empty(2, 2, 3, 3)), nil, { padding = 1 }):equal(x))
    assert.matches("dirac_: groups %(3%) must divide the number of output channels %(4%)$",
      message(init.dirac_, lm.ones(4, 2, 3), { groups = 3 }))
    local s = init.sparse_(lm.empty(10, 6), 0.25, { std = 2 })
    assert(s:eq(0):sum(1):equal(lm.full({ 6 }, 3, { dtype = "int64" })))
  end)
end)

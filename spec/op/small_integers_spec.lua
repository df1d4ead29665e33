-- uint8 and int8, whose intermediate results leave their range: PyTorch's results and dtypes for the same numbers.
local lm = require "luminary"
local F = lm.nn.functional

local a, b = { 100, 120, 90, 127 }, { 120, 100, 110, 7 }
local m, m2 = { { 100, 120 }, { 90, 127 } }, { { 120, 100 }, { 110, 7 } }
local a2, b2 = { 100, 120 }, { 120, 100 }
local function long(...) return lm.tensor({ ... }, { dtype = "int64" }) end
local function ix() return long(1, 2) end
local function ix0() return long(1, 1) end
local function sgn() return long(1, -1, 1, -1) end

-- A name; the result's dtype, nil for the inputs'; values for uint8; values for int8, nil for the same; the function.
local rows = {
  { "sum", "int64", { 437 }, nil,
    function(t) return t(a):sum() end },
  { "prod", "int64", { 137160000 }, nil,
    function(t) return t(a):prod() end },
  { "cumsum", "int64", { 100, 220, 310, 437 }, nil,
    function(t) return t(a):cumsum(1) end },
  { "cumprod", "int64", { 100, 12000, 1080000, 137160000 }, nil,
    function(t) return t(a):cumprod(1) end },
  { "dot", nil, { 229 }, { -27 },
    function(t) return lm.dot(t(a), t(b)) end },
  { "mm", nil, { 112, 88, 194, 161 }, { 112, 88, -62, -95 },
    function(t) return lm.mm(t(m), t(m2)) end },
  { "mv", nil, { 80, 176 }, { 80, -80 },
    function(t) return lm.mv(t(m), t(a2)) end },
  { "bmm", nil, { 112, 88, 194, 161 }, { 112, 88, -62, -95 },
    function(t) return lm.bmm(t { m }, t { m2 }) end },
  { "addmm", nil, { 24, 248, 250, 225 }, { 24, -8, -6, -31 },
    function(t) return lm.addmm(t(m), t(m), t(m2), { beta = 2, alpha = 3 }) end },
  { "addmv", nil, { 8, 84 }, nil,
    function(t) return lm.addmv(t(a2), t(m), t(b2), { beta = 2, alpha = 3 }) end },
  { "addr", nil, { 104, 32, 116, 158 }, { 104, 32, 116, -98 },
    function(t) return lm.addr(t(m), t(a2), t(b2), { beta = 2, alpha = 3 }) end },
  { "baddbmm", nil, { 24, 248, 250, 225 }, { 24, -8, -6, -31 },
    function(t) return lm.baddbmm(t { m }, t { m }, t { m2 }, { beta = 2, alpha = 3 }) end },
  { "addbmm", nil, { 24, 248, 250, 225 }, { 24, -8, -6, -31 },
    function(t) return lm.addbmm(t(m), t { m }, t { m2 }, { beta = 2, alpha = 3 }) end },
  { "add_alpha", nil, { 204, 164, 164, 148 }, { -52, -92, -92, -108 },
    function(t) return lm.add(t(a), t(b), { alpha = 3 }) end },
  { "sub_alpha", nil, { 252, 76, 16, 106 }, { -4, 76, 16, 106 },
    function(t) return lm.sub(t(a), t(b), { alpha = 3 }) end },
  { "addcmul", nil, { 4, 24, 94, 234 }, { 4, 24, 94, -22 },
    function(t) return lm.addcmul(t(a), t(a), t(b), { value = 3 }) end },
  { "inner", nil, { 229 }, { -27 },
    function(t) return lm.inner(t(a), t(b)) end },
  { "vdot", nil, { 229 }, { -27 },
    function(t) return lm.vdot(t(a), t(b)) end },
  { "tensordot", nil, { 112, 88, 194, 161 }, { 112, 88, -62, -95 },
    function(t) return lm.tensordot(t(m), t(m2), 1) end },
  { "einsum", nil, { 112, 88, 194, 161 }, { 112, 88, -62, -95 },
    function(t) return lm.einsum("ij, jk->ik", t(m), t(m2)) end },
  { "trace", "int64", { 227 }, nil,
    function(t) return lm.trace(t(m)) end },
  { "cross", nil, { 104, 56, 208 }, { 104, 56, -48 },
    function(t) return lm.linalg.cross(t { 100, 120, 90 }, t { 120, 100, 110 }) end },
  { "square", nil, { 16, 64, 164, 1 }, { 16, 64, -92, 1 },
    function(t) return t(a):square() end },
  { "pow3", nil, { 64, 0, 168, 127 }, { 64, 0, -88, 127 },
    function(t) return t(a) ^ 3 end },
  { "diff", nil, { 236, 10, 153 }, { -20, 10, -103 },
    function(t) return lm.diff(t(b)) end },
  { "mul", nil, { 224, 224, 172, 121 }, { -32, -32, -84, 121 },
    function(t) return t(a) * t(b) end },
  { "lshift", nil, { 144, 224, 104, 252 }, { -112, -32, 104, -4 },
    function(t) return lm.bitwise_left_shift(t(a), 2) end },
  { "nansum", "int64", { 437 }, nil,
    function(t) return lm.nansum(t(a)) end },
  { "cov", "float32", { 200, 370, 370, 684.5 }, nil,
    function(t) return lm.cov(t(m)) end },
  { "trapezoid", "float32", { 323.5 }, nil,
    function(t) return lm.trapezoid(t(a)) end },
  { "cumtrap", "float32", { 110, 215, 323.5 }, nil,
    function(t) return lm.cumulative_trapezoid(t(a)) end },
  { "vander", "int64", { 10000, 100, 1, 14400, 120, 1, 8100, 90, 1, 16129, 127, 1 }, nil,
    function(t) return lm.vander(t(a), 3) end },
  { "matrix_power", nil, { 144, 152, 178, 223 }, { -112, -104, -78, -33 },
    function(t) return lm.matrix_power(t(m), 3) end },
  { "lcm", nil, { 88, 88, 222, 121 }, { 88, 88, -34, 121 },
    function(t) return lm.lcm(t(a), t(b)) end },
  { "pairwise", "float32", { 236.845947, 264.7565 }, { 28.2842712, 121.655251 },
    function(t) return F.pairwise_distance(t(m), t(m2)) end },
  { "conv1d", nil, { 80, 16, 176 }, { 80, 16, -80 },
    function(t) return F.conv1d(t { { a } }, t { { a2 } }) end },
  { "conv2d", nil, { 229 }, { -27 },
    function(t) return F.conv2d(t { { m } }, t { { m2 } }) end },
  { "linear", nil, { 192, 64, 204, 37 }, { -64, 64, -52, 37 },
    function(t) return F.linear(t(m), t(m2)) end },
  { "linear_b", nil, { 36, 184, 48, 157 }, { 36, -72, 48, -99 },
    function(t) return F.linear(t(m), t(m2), t(a2)) end },
  { "index_add", nil, { 84, 64, 90, 127 }, nil,
    function(t) return lm.index_add(t(a), 1, ix(), t(b2), { alpha = 2 }) end },
  { "scatter_add", nil, { 64, 120, 90, 127 }, nil,
    function(t) return lm.scatter_add(t(a), 1, ix0(), t(b2)) end },
  { "scatter_mean", nil, { 21, 120, 90, 127 }, nil,
    function(t) return lm.scatter_reduce(t(a), 1, ix0(), t(b2), "mean") end },
  { "scatter_prod", nil, { 128, 120, 90, 127 }, { -128, 120, 90, 127 },
    function(t) return lm.scatter_reduce(t(a), 1, ix0(), t(b2), "prod") end },
  { "index_reduce", nil, { 21, 120, 90, 127 }, nil,
    function(t) return lm.index_reduce(t(a), 1, ix0(), t(b2), "mean") end },
  { "margin", "float32", { 35 }, { 45 },
    function(t) return F.margin_ranking_loss(t(a), t(b), sgn()) end },
  { "poisson", "float32", { -280.814484 }, nil,
    function(t) return F.poisson_nll_loss(t(a), t(b), { log_input = false }) end },
  { "rsub", nil, { 76, 252, 96, 138 }, { 76, -4, 96, -118 },
    function(t) return lm.rsub(t(a), t(b), { alpha = 3 }) end },
}

describe("small integers", function()
  for _, row in ipairs(rows) do
    it("have the result of PyTorch: " .. row[1], function()
      for _, dtype in ipairs { "uint8", "int8" } do
        local y = row[5](function(list) return lm.tensor(list, { dtype = dtype }) end)
        assert.equal(row[2] or dtype, y.dtype)
        local want = dtype == "int8" and row[4] or row[3]
        local got = y:double():flatten():totable()
        assert.equal(#want, #got)
        for k, value in ipairs(want) do assert.near(value, got[k], 1e-5 * math.max(1, math.abs(value)), dtype) end
      end
    end)
  end

  it("do not wrap where PyTorch refuses them or wraps itself", function()
    for _, dtype in ipairs { "uint8", "int8", "int16", "int32", "int64" } do
      local function t(list) return lm.tensor(list, { dtype = dtype }) end
      assert.equal(34789, tonumber(lm.linalg.vecdot(t(a), t(b)):item()), dtype)
      assert.near(0, F.soft_margin_loss(t(a), t(b)):item(), 1e-6, dtype)
      assert.near(323.5, lm.trapezoid(t(a)):item(), 1e-6, dtype)
      assert.same({ 110, 215, 323.5 }, lm.cumulative_trapezoid(t(a)):totable(), dtype)
      local near = F.cosine_embedding_loss(t(m), t(m2), long(1, -1), { reduction = "none" }):totable()
      assert.near(0.0163934, near[1], 1e-5, dtype)
      assert.near(0.6288444, near[2], 1e-5, dtype)
      assert.near(44.5, F.smooth_l1_loss(t(a), t(b)):item(), 1e-6, dtype)
      assert.near(156.204987, lm.hypot(t(a), t(b))[1], 1e-4, dtype)
    end
  end)
end)

-- What dtypes hold and what becomes of two, as PyTorch has it.
local lm = require "luminary"

local function message(f, ...)
  local ok, err = pcall(f, ...)
  assert(not ok, "no error")
  return tostring(err)
end

describe("numbers of dtypes", function()
  it("are those that tensors can hold", function()
    for _, dtype in ipairs { "float16", "bfloat16", "float32", "float64" } do
      local info = lm.finfo(dtype)
      local function held(v) return lm.tensor(v, { dtype = dtype }):double():item() end
      assert.equal(info.max, held(info.max))
      assert.equal(info.min, -info.max)
      assert(held(1 + info.eps) > 1 and held(1 + info.eps / 4) == 1)
      assert.equal(info.tiny, held(info.tiny))
      assert.equal(dtype, info.dtype)
      assert.equal(info.bits, lm.zeros({ 1 }, { dtype = dtype }):element_size() * 8)
    end
    assert.equal(65504, lm.finfo(lm.zeros({ 1 }, { dtype = "float16" })).max)
    assert.equal("float32", lm.finfo().dtype)
    assert.matches("finfo: int32 is no floating dtype; iinfo", message(lm.finfo, "int32"))
  end)

  it("of integers too", function()
    for _, dtype in ipairs { "uint8", "int8", "int16", "uint16", "int32" } do
      local info = lm.iinfo(dtype)
      local both = lm.tensor({ info.min, info.max }, { dtype = dtype })
      assert.same({ info.min, info.max }, both:totable())
      assert.equal(2 ^ info.bits, info.max - info.min + 1)
    end
    assert.equal("9223372036854775807LL", tostring(lm.iinfo("int64").max))
    assert.matches("iinfo: float32 is no integer dtype", message(lm.iinfo, "float32"))
    assert.matches("iinfo: dtype", message(lm.iinfo))
  end)
end)

describe("the dtype of two", function()
  it("is PyTorch's", function()
    for _, row in ipairs {
      { "int32", "float16", "float16" }, { "uint8", "int8", "int16" }, { "bool", "int8", "int8" },
      { "float16", "bfloat16", "float32" }, { "int64", "float32", "float32" },
    } do
      assert.equal(row[3], lm.promote_types(row[1], row[2]))
      assert.equal(row[3], lm.promote_types(row[2], row[1]))
    end
    local i, scalar = lm.zeros({ 2 }, { dtype = "int32" }), lm.tensor(1.5, { dtype = "float64" })
    assert.equal("float32", lm.result_type(i, 1.5))
    assert.equal("int32", lm.result_type(i, 1))
    assert.equal("float32", lm.result_type(lm.zeros { 2 }, scalar))
    assert.equal("float64", lm.result_type(i, scalar))
    assert.matches("result_type: a tensor or a number expected, got string", message(lm.result_type, "x", i))
  end)

  it("can or cannot be cast", function()
    assert.is_true(lm.can_cast("float64", "float16"))
    assert.is_true(lm.can_cast("int64", "uint8"))
    assert.is_false(lm.can_cast("float32", "int64"))
    assert.is_false(lm.can_cast("uint8", "bool"))
    assert.matches("dtype.*flot32", message(lm.can_cast, "flot32", "bool"))
  end)
end)

describe("F.gumbel_softmax", function()
  local F = lm.nn.functional
  it("draws categories as often as softmax says", function()
    lm.manual_seed(3)
    local logits = lm.tensor { 0, 1, 2 }:expand(20000, 3)
    local hard = F.gumbel_softmax(logits, { tau = 0.5, hard = true })
    assert(hard:sum(2):allclose(lm.ones { 20000 }))
    assert(hard:mean(1):allclose(lm.tensor({ 0, 1, 2 }):softmax(1), { atol = 0.02 }))
    local soft = F.gumbel_softmax(logits, { tau = 0.5 })
    assert(soft:sum(2):allclose(lm.ones { 20000 }) and soft:gt(0.1):logical_and(soft:lt(0.9)):any():item())
  end)
  it("has the soft one's gradient", function()
    local x = lm.randn({ 4, 3 }, { requires_grad = true })
    lm.manual_seed(1)
    local hard = lm.grad({ (F.gumbel_softmax(x, { hard = true }) * 2):square():sum() }, { x })[1]
    assert(hard:isfinite():all():item() and hard:abs():sum():item() > 0)
    assert.matches("tau has to be above 0, got 0", message(F.gumbel_softmax, x, { tau = 0 }))
    assert.equal("Softmax2d()", tostring(lm.nn.Softmax2d()))
    local y = lm.randn { 2, 3, 4, 5 }
    assert(lm.nn.Softmax2d()(y):equal(y:softmax(2)) and lm.nn.Softmax2d()(y[1]):equal(y[1]:softmax(1)))
    assert.matches("Softmax2d:.*got 2 dims", message(lm.nn.Softmax2d(), x))
  end)
end)

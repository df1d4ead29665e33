-- Limits of dtypes and type promotion, as in PyTorch.
local lm = require "luminary"
local message = require "spec.support.error_of"

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
    assert.matches("finfo: dtype must be floating, got int32; use iinfo for integers$", message(lm.finfo, "int32"))
  end)

  it("of integers too", function()
    for _, dtype in ipairs { "uint8", "int8", "int16", "uint16", "int32" } do
      local info = lm.iinfo(dtype)
      local both = lm.tensor({ info.min, info.max }, { dtype = dtype })
      assert.same({ info.min, info.max }, both:totable())
      assert.equal(2 ^ info.bits, info.max - info.min + 1)
    end
    assert.equal("9223372036854775807LL", tostring(lm.iinfo("int64").max))
    assert.matches("iinfo: dtype must be an integer dtype, got float32", message(lm.iinfo, "float32"))
    assert.matches("iinfo: dtype is missing or nil; expected a string$", message(lm.iinfo))
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
    assert.matches("result_type: expected a tensor or a number, got string 'x'$", message(lm.result_type, "x", i))
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
    assert.matches("gumbel_softmax: tau must be a number above 0, got 0$", message(F.gumbel_softmax, x, { tau = 0 }))
    assert.equal("Softmax2d()", tostring(lm.nn.Softmax2d()))
    local y = lm.randn { 2, 3, 4, 5 }
    assert(lm.nn.Softmax2d()(y):equal(y:softmax(2)) and lm.nn.Softmax2d()(y[1]):equal(y[1]:softmax(1)))
    assert.matches("Softmax2d: x must be %[N, C, H, W%] or %[C, H, W%], got 2$", message(lm.nn.Softmax2d(), x))
  end)
end)

describe("arithmetic of narrow integers", function()
  local range = { uint8 = { 0, 256 }, int8 = { -128, 128 }, int16 = { -32768, 32768 }, int32 = { -2 ^ 31, 2 ^ 31 } }
  local ops = { "add", "sub", "mul", "maximum", "minimum", "eq", "lt", "bitwise_and", "bitwise_xor", "heaviside",
    "logical_xor", "bitwise_left_shift", "bitwise_right_shift", "floor_divide", "remainder", "fmod" }

  -- Compares op's results in the dtype and in int64, the second converted to the first's dtype.
  local function compare(x, other, op, what)
    local wide = type(other) == "number" and other or other:long()
    local got, want = x[op](x, other), x:long()[op](x:long(), wide)
    assert(got:long():equal(want:to(got.dtype):long()), ("%s of %s, %s"):format(op, x.dtype, what))
  end

  it("comes to what int64 comes to, stored in the dtype", function()
    lm.manual_seed(4)
    for dtype, ends in pairs(range) do
      local function draw(...) return lm.randint(ends[1], ends[2], { ... }):to(dtype) end
      local x, y = draw(33, 70), draw(33, 70)
      y[y:eq(0)] = 1
      for _, op in ipairs(ops) do
        local by = op:find "shift"
        compare(x, by and lm.randint(0, 40, { 33, 70 }):to(dtype) or y, op, "two tensors")
        if not by then
          compare(x, y[{ 1 }], op, "a row")
          compare(x:t(), draw(33, 70):bitwise_or(1):t(), op, "across")
        end
        for _, number in ipairs { 3, -1, 300 } do
          if not by or number == 3 then compare(x, number, op, number) end
        end
      end
      local m = y:gt(9)
      assert(x:abs():equal(x:long():abs():to(dtype)) and x:sign():equal(x:long():sign():to(dtype)))
      assert(x:clamp(-5, 300):equal(x:long():clamp(-5, 300):to(dtype)))
      assert(x:where(m, y):long():equal(x:long():where(m, y:long())))
      assert(x:addcmul(y, x, { value = 3 }):equal(x:long():addcmul(y:long(), x:long(), { value = 3 }):to(dtype)))
    end
    local a, b = lm.rand(999):gt(0.5), lm.rand(999):gt(0.5)
    assert(a:add(b):equal(a:logical_or(b)) and a:eq(b):equal(a:logical_xor(b):logical_not()))
  end)
end)

-- Values of PyTorch 2.15.
describe("of integers", function()
  local F = lm.nn.functional
  local function whole(values, dtype) return lm.tensor(values, { dtype = dtype or "int64" }) end
  local a, b = whole { { 1, 2, 3 }, { 4, 5, 6 } }, whole { { 3, 0, 5 }, { 1, 1, 1 } }
  -- Returns 0 to n - 1, as -1, 0, 1, 2, -1, …
  local function steps(dtype, ...)
    local n = 1
    for _, size in ipairs { ... } do n = n * size end
    return (lm.arange(n) % 4 - 1):to(dtype):reshape(...)
  end

  it("hardtanh keeps the dtype, and cuts its limits off", function()
    for _, dtype in ipairs { "int64", "int32", "int16", "int8", "uint8" } do
      local y = F.hardtanh(a:to(dtype), -1.5, 2.5)
      assert.equal(dtype, y.dtype)
      assert.same({ { 1, 2, 2 }, { 2, 2, 2 } }, y:totable())
      assert.same({ { 1, 1, 1 }, { 1, 1, 1 } }, lm.nn.Hardtanh()(a:to(dtype)):totable())
      assert.same({ { 2, 2, 3 }, { 4, 4, 4 } }, F.hardtanh(a:to(dtype), 2, 4):totable())
    end
    local x = a:clone()
    assert.equal(x, lm.hardtanh_(x, 0, 3.7))
    assert.same({ { 1, 2, 3 }, { 3, 3, 3 } }, x:totable())
    assert.matches("hardtanh: x must not be bool", message(F.hardtanh, a:bool()))
    assert.matches("hardtanh: min_val and max_val must be within int64 for integer tensors",
      message(F.hardtanh, a, 0, 1 / 0))
  end)

  it("margin_ranking_loss is floating", function()
    local one = lm.ones_like(a)
    for _, dtype in ipairs { "int64", "int32", "int16", "int8" } do
      local x1, x2, target = a:to(dtype), b:to(dtype), one:to(dtype)
      local y = F.margin_ranking_loss(x1, x2, target, { margin = 1, reduction = "none" })
      assert.equal("float32", y.dtype)
      assert.same({ { 3, 0, 3 }, { 0, 0, 0 } }, y:totable())
      assert.equal(1, F.margin_ranking_loss(x1, x2, target, { margin = 1 }):item())
      local sum = F.margin_ranking_loss(x1, x2, target, { margin = 1.5, reduction = "sum" })
      assert.equal("float32", sum.dtype)
      assert.equal(7, sum:item())
    end
    local bytes = F.margin_ranking_loss(a:byte(), b:byte(), one:byte(), { margin = 1.5, reduction = "none" })
    assert.same({ { 3.5, 255.5, 3.5 }, { 254.5, 253.5, 252.5 } }, bytes:totable()) -- differences wrap around
  end)

  it("pairwise_distance is floating", function()
    local near = { { int64 = { 3.4641010761, 7.0710692405 }, uint8 = { 359.2158203125, 7.0710692405 } } }
    for dtype, want in pairs(near[1]) do
      local y = F.pairwise_distance(a:to(dtype), b:to(dtype))
      assert.equal("float32", y.dtype)
      assert(y:allclose(lm.tensor(want)))
    end
    assert(F.pairwise_distance(a, b, { eps = 0 }):allclose(lm.tensor { 12 ^ 0.5, 50 ^ 0.5 })) -- 0 is floating, too
    assert(F.pairwise_distance(a, b, { p = 1 }):allclose(lm.tensor { 5.9999990463, 12.000002861 }))
  end)

  it("products with something added cut beta and alpha off", function()
    for _, case in ipairs {
      { 0.5, 2, { { -4, 0 }, { -10, 0 } }, { 4, -4 }, { { 0, 0 }, { -6, -4 } } },
      { 2.6, 1.7, { { -4, 0 }, { -3, 4 } }, { 0, -2 }, { { -2, 0 }, { -1, 2 } } },
      { -1.5, -2.5, { { 5, 0 }, { 9, -2 } }, { -3, 4 }, { { 1, 0 }, { 5, 2 } } },
    } do
      local how = { beta = case[1], alpha = case[2] }
      for _, dtype in ipairs { "int64", "int32", "int16", "int8" } do
        local function g(...) return steps(dtype, ...) end
        local y = lm.addbmm(g(2, 2), g(3, 2, 3), g(3, 3, 2), how)
        assert.equal(dtype, y.dtype)
        assert.same(case[3], y:totable())
        assert.same(case[4], lm.addmv(g(2), g(2, 3), g(3), how):totable())
        assert.same({ case[5] }, lm.baddbmm(g(1, 2, 2), g(1, 2, 3), g(1, 3, 2), how):totable())
        assert.same(case[5], lm.addmm(g(2, 2), g(2, 3), g(3, 2), how):totable())
      end
    end
    local x = steps("int8", 2, 2)
    assert.matches("addmm: beta must be from %-128 to 127 for int8, got 300",
    message(lm.addmm, x, x, x, { beta = 300 }))
    assert.matches("addmv: addmm: beta must be from %-128 to 127 for int8, got 300",
      message(lm.addmv, x[1], x, x[1], { beta = 300 }))
  end)
end)

describe("floats that become integers", function()
  local limits = {
    uint8 = { 0, 255 }, int8 = { -128, 127 }, int16 = { -32768, 32767 }, uint16 = { 0, 65535 },
    int32 = { -2 ^ 31, 2 ^ 31 - 1 },
  }
  local nan, inf = 0 / 0, 1 / 0
  -- Checks many lengths, and strided elements: each has separate loops.
  local function each(dtype, to, value, check)
    for _, n in ipairs { 1, 7, 64, 1000 } do
      check(lm.full({ n }, value, { dtype = dtype }):to(to))
      check(lm.full({ n, 3 }, value, { dtype = dtype }):select(2, 2):to(to))
      local among = lm.zeros(n, { dtype = dtype })
      among[n] = value
      check(among:to(to):narrow(1, n, 1))
    end
  end

  it("are the nearest limit beyond int64, and 0 where they are NaN", function()
    for _, dtype in ipairs { "float16", "bfloat16", "float32", "float64" } do
      for to, limit in pairs(limits) do
        for value, wanted in pairs { [inf] = limit[2], [-inf] = limit[1] } do
          each(dtype, to, value, function(x) assert(x:eq(wanted):all():item(), dtype .. " to " .. to) end)
        end
        each(dtype, to, nan, function(x) assert(x:eq(0):all():item(), dtype .. " to " .. to) end)
        if dtype ~= "float16" then
          each(dtype, to, 1e20, function(x) assert(x:eq(limit[2]):all():item()) end)
          each(dtype, to, -2 ^ 64, function(x) assert(x:eq(limit[1]):all():item()) end)
        end
      end
      local most, least = lm.iinfo("int64").max, lm.iinfo("int64").min
      each(dtype, "int64", inf, function(x) assert.equal(most, x:min():view { 1 }[1]) end)
      each(dtype, "int64", -inf, function(x) assert.equal(least, x:max():view { 1 }[1]) end)
      each(dtype, "int64", nan, function(x) assert(x:eq(0):all():item()) end)
    end
    assert.equal(lm.iinfo("int64").max, lm.tensor({ 2 ^ 63 }, { dtype = "float64" }):long()[1])
    assert.equal(lm.iinfo("int64").min, lm.tensor({ -2 ^ 63 }, { dtype = "float32" }):long()[1])
  end)

  it("wrap where int64 holds them, as in PyTorch, and lose what is behind the point", function()
    local x = lm.tensor({ 300, -1, 255.9, -0.9, 65536 + 7, 2 ^ 40 + 3 }, { dtype = "float64" })
    assert.same({ 44, 255, 255, 0, 7, 3 }, x:to("uint8"):totable())
    assert.same({ 44, -1, -1, 0, 7, 3 }, x:to("int8"):totable())
    assert.same({ 300, 65535, 255, 0, 7, 3 }, x:to("uint16"):totable())
    assert.same({ 300, -1, 255, 0, 65543, 3 }, x:to("int32"):totable())
    assert.same({ 300, -1, 255, 0, 65543, 2 ^ 40 + 3 }, x:to("int64"):totable())
    assert.same({ true, true, true, true, true, true }, x:to("bool"):totable())
  end)
end)

describe("a number that a dtype cannot hold", function()
  it("is refused where it would be stored", function()
    local x = lm.zeros(3, { dtype = "uint8" })
    for name, f in pairs {
      full = function() lm.full({ 2 }, 300, { dtype = "uint8" }) end, fill_ = function() x:fill_(256) end,
      full_like = function() lm.full_like(x, 1e9) end, ["x%[…%] = value"] = function() x[2] = 300 end,
      masked_fill = function() x:masked_fill(x:eq(0), -256) end, where = function() lm.where(x:eq(0), x, 256) end,
      scatter = function() x:scatter(1, lm.tensor({ 1 }, { dtype = "int64" }), 300) end,
      index_fill = function() x:index_fill(1, lm.tensor({ 1 }, { dtype = "int64" }), 300) end,
      pad = function() lm.pad(x, { 1, 1 }, { value = 300 }) end,
    } do
      assert.matches(name .. ": value must be from 0 to 255 for uint8, got %-?%d", message(f))
    end
    for argument, f in pairs {
      ["threshold: value"] = function() lm.threshold(x, 1, 300) end,
      ["add: alpha"] = function() lm.add(x, x, { alpha = 300 }) end,
      ["addcmul: value"] = function() lm.addcmul(x, x, x, { value = -256 }) end,
    } do
      assert.matches(argument .. " must be from 0 to 255 for uint8, got %-?%d", message(f))
    end
    assert.matches("linspace: stop must be within the range of uint8, got 300", message(function()
      lm.linspace(0, 300, 3, { dtype = "uint8" })
    end))
    assert.matches("full: value must be at most 65504 in magnitude for float16, got 70000", message(function()
      lm.full({ 1 }, 7e4, { dtype = "float16" })
    end))
    assert.matches("fill_: value must be from %-9223372036854775808 to 9223372036854775807 for int64, got nan",
      message(function() lm.zeros(1):long():fill_(0 / 0) end))
    assert.same({ 255, 255, 255 }, x:fill_(-1):totable()) -- as in PyTorch
    assert.equal(1 / 0, lm.full({ 1 }, 1 / 0, { dtype = "float16" }):item())
    assert.equal("-9223372036854775808LL", tostring(lm.tensor({ -2 ^ 63 }, { dtype = "int64" })[1]))
  end)
end)

describe("fmod, remainder, floor_divide and powers", function()
  it("are exact where quotients are large, tiny or none", function()
    local huge = 1 / 0
    local list = { 0, 1, -1, 2, -2.5, 7.25, -7.25, 0.1, -0.3, 1e-40, 3e38, -3e38, huge, -huge, 0 / 0, 1e10, 16777217 }
    for _, dtype in ipairs { "float32", "float64" } do
      local x = lm.tensor(list, { dtype = dtype })
      local a, b = x:unsqueeze(2):expand(17, 17):reshape(-1), x:repeat_interleave(1):expand(17, 17):reshape(-1)
      local la, lb = a:double():totable(), b:double():totable()
      local got, left = a:fmod(b):double():totable(), a:remainder(b):double():totable()
      local power = a:pow(b):double():totable()
      for i = 1, #la do
        local function same(want, is, op)
          assert(want ~= want and is ~= is or want == is or math.abs(want - is) <= 1e-6 * math.abs(want)
            or dtype == "float32" and math.abs(want) < 1.2e-38 or math.abs(want) > 3.4e38,
            ("%s %s of %g and %g: %g, not %g"):format(dtype, op, la[i], lb[i], is, want))
        end
        local want = math.fmod(la[i], lb[i])
        same(want, got[i], "fmod")
        if want ~= 0 and (want < 0) ~= (lb[i] < 0) then want = want + lb[i] end
        same(want, left[i], "remainder")
        if dtype == "float64" then same(la[i] ^ lb[i], power[i], "pow") end
      end
    end
    assert.same({ 9, 0.25 }, lm.tensor({ -3, 0.5 }):pow(2):totable())
    assert.same({ -8, 1 / 4 }, lm.tensor({ -2, -2 }):pow(lm.tensor { 3, -2 }):totable())
  end)
end)

-- Loops have separate paths for values that fit into int, for short inputs, and for strided elements.
describe("loops over integers", function()
  it("divide alike on both sides of what int holds", function()
    local edge = 2 ^ 31
    local list = { 0, 1, -1, 7, -7, 100, -100, 2 ^ 52 + 1, -2 ^ 52 - 1 }
    for k = -1, 1 do list[#list + 1], list[#list + 2] = edge + k, k - edge end
    for _, far in ipairs { false, true } do
      local tops, bottoms = {}, {}
      for _, a in ipairs(list) do
        for _, b in ipairs(list) do
          if b ~= 0 and (far or math.abs(a) < edge and math.abs(b) < edge) then
            tops[#tops + 1], bottoms[#bottoms + 1] = a, b
          end
        end
      end
      local a, b = lm.tensor(tops, { dtype = "int64" }), lm.tensor(bottoms, { dtype = "int64" })
      local down, left, same = a:floor_divide(b):totable(), a:remainder(b):totable(), a:fmod(b):totable()
      for i = 1, #tops do
        local x, y = tops[i], bottoms[i]
        local rest = math.fmod(x, y)
        assert.equal(rest, same[i])
        if rest ~= 0 and (rest < 0) ~= (y < 0) then rest = rest + y end
        assert.equal(rest, left[i], ("%d %% %d"):format(x, y))
        assert.equal((x - rest) / y, down[i], ("%d / %d"):format(x, y))
      end
    end
  end)

  it("find the extremes of every integer dtype, however they lie", function()
    for _, dtype in ipairs { "uint8", "int8", "int16", "uint16", "int32", "int64", "bool" } do
      local low, high = 0, 1
      if dtype ~= "bool" then
        local info = lm.iinfo(dtype)
        low, high = math.max(tonumber(info.min), -2 ^ 40), math.min(tonumber(info.max), 2 ^ 40)
      end
      for _, n in ipairs { 1, 17, 63, 130, 5000 } do
        local x = lm.randint(low, high, { 3, n }):to(dtype)
        x[1]:fill_(low == 0 and 1 or low) -- bool's and the unsigned ones' 0 only where it is put
        x[1][n], x[2][1], x[3][math.ceil(n / 2)] = high, low, high
        local wide = x:to("float64")
        for _, y in ipairs { { x, wide }, { x:t(), wide:t() }, { x:t():contiguous(), wide:t() } } do
          for _, dim in ipairs { 1, 2 } do
            assert.same(y[2]:amax(dim):totable(), y[1]:to(dtype):amax(dim):double():totable(), dtype)
            assert.same(y[2]:amin(dim):totable(), y[1]:to(dtype):amin(dim):double():totable(), dtype)
          end
          assert.equal(high, y[1]:amax():double():item())
          assert.equal(low, y[1]:amin():double():item())
          assert.equal(dtype, y[1]:amax().dtype)
        end
      end
    end
  end)
end)

describe("halves", function()
  it("become float32 and back the same in rows of any length, and lying apart", function()
    local bits = lm.arange(65536, { dtype = "int64" })
    local e, m = bits:bitwise_right_shift(10):bitwise_and(31), bits:bitwise_and(1023):double()
    local size = lm.where(e:eq(0), m * 2 ^ -24, (m + 1024) * lm.tensor(2, { dtype = "float64" }):pow(e:double() - 25))
    local want = lm.where(bits:ge(32768), -size, size)[{ { 1, 31744 } }]
    local half = want:to("float16") -- finite ones: each is a half exactly
    assert.is_true(lm.equal(want, half:double()))
    for _, n in ipairs { 1, 7, 8, 9, 15, 16, 17, 100, 523 } do
      local part = half[{ { 1025, 1024 + n } }]
      assert.is_true(lm.equal(want[{ { 1025, 1024 + n } }], part:float():double()))
      assert.is_true(lm.equal(part, part:float():half()))
      local apart = lm.zeros({ n, 2 }, { dtype = "float16" })
      apart:select(2, 2):copy_(part:float())
      assert.is_true(lm.equal(part:float(), apart:select(2, 2):float()))
    end
    -- to nearest even, out of range, into subnormals
    local x = lm.tensor { 2049, 2051, 65519, 65520, -1e6, 2 ^ -25, 3 * 2 ^ -25, 1 / 0, -0.0, 6e-8 }
    assert.same({ 2048, 2052, 65504, 1 / 0, -1 / 0, 0, 2 ^ -23, 1 / 0, 0, 2 ^ -24 }, x:half():double():totable())
    assert.equal(-1 / 0, 1 / x:half():double()[9])
    assert.is_true(lm.isnan(lm.full({ 9 }, 0 / 0):half():float()):all():item())
  end)
end)

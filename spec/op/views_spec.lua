-- Views of tensors, and arithmetic between tensors and with numbers.
local lm = require "luminary"
local form = dofile "spec/support/message.lua"
local core = require "luminary.core"
local promotion = dofile "spec/golden/promotion.lua"

local inf, nan = math.huge, 0 / 0

describe("squeeze", function()
  it("of no dims leaves all, of none given takes all away", function()
    local x = lm.rand { 2, 1, 3, 1 }
    assert.same({ 2, 1, 3, 1 }, x:squeeze({}).shape)
    assert.same({ 2, 1, 3, 1 }, x:squeeze({ dim = {} }).shape)
    assert.same({ 2, 1, 3, 1 }, lm.squeeze(x, {}).shape)
    assert.same({ 2, 3 }, x:squeeze().shape)
    assert.same({ 2, 3, 1 }, x:squeeze({ 2 }).shape)
    assert.same({}, x:sum({}).shape) -- an empty list reduces all dims, as in PyTorch
    local y = lm.ones({ 1, 2 }, { requires_grad = true })
    y:squeeze({}):sum():backward()
    assert.same({ { 1, 1 } }, y.grad:totable())
  end)
end)

describe("a view", function()
  local x
  before_each(function() x = lm.arange(24):float():view(2, 3, 4) end)
  after_each(function() x = nil end)

  it("shares memory: a write through one is seen through the other", function()
    local views = {
      x:view(6, 4), x:view(-1), x:reshape(4, 6), x:permute(3, 1, 2), x:transpose(1, 3), x:narrow(2, 1, 2), x:select(3,
        1),
      x:unsqueeze(2), x:flatten(), x:flatten(2), x:squeeze(), x:expand(5, 2, 3, 4), x:split(1, 2)[1], x:chunk(2, 3)[1],
      x:unbind(1)[1], x[1], x[{ {}, { 1, 2 } }], x:detach(), x.T, x:view_as(lm.zeros(4, 6)), x:slice(3, 1, 3, 2),
        x.data,
    }
    for k, v in ipairs(views) do
      assert(v:data_ptr() == x:data_ptr(), k)
      x[{ 1, 1, 1 }] = 100 + k
      local first = v
      while lm.is_tensor(first) do first = first.ndim == 0 and first:item() or first[1] end
      assert.equal(100 + k, first)
    end
    views[1][{ 6, 4 }] = -1
    assert.equal(-1, x[{ 2, 3, 4 }])
  end)

  it("is read alike whatever the stride of a dim of one element is", function()
    local F, channel = lm.nn.functional, lm.rand(2, 4, 5, 3):permute(1, 4, 2, 3):narrow(2, 1, 1)
    for _, image in ipairs { channel, lm.rand(2, 4, 5):as_strided({ 2, 1, 4, 5 }, { 20, 7, 5, 1 }) } do
      for _, mode in ipairs { "reflect", "replicate", "circular" } do
        local pads = { 1, 2, 1, 0 }
        local padded, wanted = F.pad(image, pads, { mode = mode }), F.pad(image:squeeze(2), pads, { mode = mode })
        assert.is_true(padded:squeeze(2):equal(wanted))
      end
    end
    local logs, labels = lm.rand(2, 5, 1, 33):transpose(3, 4), lm.randint(1, 6, { 2, 33, 1 })
    local wanted = F.nll_loss(logs:squeeze(4), labels:squeeze(3), { reduction = "none" }):unsqueeze(3)
    assert.is_true(F.nll_loss(logs, labels, { reduction = "none" }):equal(wanted))
  end)

  it("counts versions with all its siblings", function()
    local v = x:view(-1)
    local before = x._version
    v:add_(1)
    assert.equal(before + 1, x._version)
    assert.equal(x._version, v._version)
    x[1] = 0
    assert.equal(before + 2, v._version)
    local _ = x + 1
    assert.equal(before + 2, v._version)
    assert.equal(0, x:clone()._version)
  end)

  it("has sizes and strides as PyTorch's", function()
    local function check(v, shape, stride)
      assert.same(shape, v.shape)
      assert.same(stride, v:stride())
    end
    check(x:permute(3, 1, 2), { 4, 2, 3 }, { 1, 12, 4 })
    check(x:permute { -1, 2, 1 }, { 4, 3, 2 }, { 1, 4, 12 })
    check(x:transpose(2, 3), { 2, 4, 3 }, { 12, 1, 4 })
    check(x:unsqueeze(1), { 1, 2, 3, 4 }, { 24, 12, 4, 1 })
    check(x:unsqueeze(-1), { 2, 3, 4, 1 }, { 12, 4, 1, 1 })
    check(x:narrow(3, 2, 2), { 2, 3, 2 }, { 12, 4, 1 })
    check(x:narrow(3, -2, 2), { 2, 3, 2 }, { 12, 4, 1 })
    check(x:select(2, 3), { 2, 4 }, { 12, 1 })
    check(x:slice(3, 1, -1, 3), { 2, 3, 2 }, { 12, 4, 3 })
    check(x:expand(2, 2, 3, 4), { 2, 2, 3, 4 }, { 0, 12, 4, 1 })
    check(lm.ones(3, 1):expand(-1, 5), { 3, 5 }, { 1, 0 })
    check(x:flatten(), { 24 }, { 1 })
    check(x:flatten(2), { 2, 12 }, { 12, 1 })
    check(x:flatten(1, 2), { 6, 4 }, { 4, 1 })
    check(lm.ones(1, 3, 1):squeeze(), { 3 }, { 1 })
    check(lm.ones(1, 3, 1):squeeze(1), { 3, 1 }, { 1, 1 })
    check(lm.ones(1, 3, 1):squeeze(2), { 1, 3, 1 }, { 3, 1, 1 })
    check(x:permute(1, 3, 2):view(2, 2, 2, 3), { 2, 2, 2, 3 }, { 12, 2, 1, 4 })
    check(lm.tensor(5):view(1, 1), { 1, 1 }, { 1, 1 })
    check(lm.tensor({ 1, 2 }):t(), { 2 }, { 1 })
  end)

  it("is refused where strides do not allow it, and reshape copies", function()
    assert.error_matches(function() x:transpose(1, 3):view(-1) end, "view: x of shape %[4, 3, 2%].*%[24%].*reshape")
    local y = x:transpose(1, 3):reshape(-1)
    assert.is_false(y:data_ptr() == x:data_ptr())
    assert.same({ 0, 12, 4, 16 }, y[{ { 1, 4 } }]:totable())
    assert.error_matches(function() x:view(5, 5) end,
      "view: size must be 24 elements as x of shape %[2, 3, 4%], got %[5, 5%]")
    assert.error_matches(function() x:view(5, -1) end, "view: .*%[2, 3, 4%].*%[5, %-1%]")
    assert.error_matches(function() x:view(-1, -1) end, "view: .*%-1")
    assert.error_matches(function() x:view(-2, 12) end, "view: .*%-2")
    assert.error_matches(function() x:expand(2, 3, 5) end,
      "expand: x of shape %[2, 3, 4%] does not broadcast to %[2, 3, 5%]")
    assert.error_matches(function() x:expand(3, 4) end,
      "expand: the number of sizes must be at least 3 for x of shape %[2, 3, 4%], got %[3, 4%]")
    assert.error_matches(function() x:permute(1, 2) end,
      "permute: the number of dims must be 3 for x of shape %[2, 3, 4%], got 2")
    assert.error_matches(function() x:permute(1, 1, 2) end, "permute: dim 1 is repeated")
    assert.error_matches(function() x:transpose(1, 4) end, "transpose: dim 4")
    assert.error_matches(function() x:transpose(0, 1) end, "transpose: dim0 must be a dim of the tensor, got 0")
    assert.error_matches(function() x:t() end, "t: .*%[2, 3, 4%]")
    assert.error_matches(function() x:narrow(2, 2, 3) end,
      "narrow: length must be at most 2 .*dim 2 of %[2, 3, 4%], got 3")
    assert.error_matches(function() x:select(1, 3) end, form.pattern(form.index("select", 3, 1, 2)))
  end)

  it("comes in lists from split, chunk and unbind", function()
    local function shapes(list)
      local out = {}
      for k, v in ipairs(list) do out[k] = v.shape end
      return out
    end
    local y = lm.arange(7)
    assert.same({ { 3 }, { 3 }, { 1 } }, shapes(y:split(3)))
    assert.same({ { 2 }, { 0 }, { 5 } }, shapes(y:split { 2, 0, 5 }))
    assert.same({ 5, 6 }, y:split({ 5, 2 })[2]:totable())
    assert.same({ { 3 }, { 3 }, { 1 } }, shapes(y:chunk(3)))
    assert.same({ { 2 }, { 2 }, { 2 }, { 1 } }, shapes(y:chunk(4)))
    assert.same({ { 2 }, { 2 }, { 2 }, { 1 } }, shapes(y:chunk(5))) -- PyTorch's count, too
    assert.same({ { 2, 3, 2 }, { 2, 3, 2 } }, shapes(x:split(2, 3)))
    assert.same({ { 2, 3, 2 }, { 2, 3, 2 } }, shapes(lm.split(x, 2, -1)))
    assert.same({ { 3, 4 }, { 3, 4 } }, shapes(x:unbind()))
    assert.same({ { 2, 3 }, { 2, 3 }, { 2, 3 }, { 2, 3 } }, shapes(lm.unbind(x, -1)))
    assert.same({ { 0 } }, shapes(lm.zeros(0):split(3)))
    assert.error_matches(function() y:split { 3, 3 } end, "^split: sizes add up to 6, but dim 1 has size 7$")
    assert.error_matches(function() y:split(0) end, "^split: size must be an integer of at least 1, got 0$")
    assert.error_matches(function() y:chunk(2, 2) end, "^chunk: dim must be 1 or %-1, got 2; x is a tensor %[7%]$")
  end)

  it("repeats as repeat_tensor", function()
    local y = lm.tensor { { 1, 2 } }
    assert.same({ { 1, 2, 1, 2 }, { 1, 2, 1, 2 }, { 1, 2, 1, 2 } }, y:repeat_tensor(3, 2):totable())
    assert.same({ 2, 1, 2 }, y:repeat_tensor(2, 1, 1).shape)
    assert.same({ 0, 2 }, y:repeat_tensor(0, 1).shape)
    local same = y:repeat_tensor(1, 1)
    same[{ 1, 1 }] = 9
    assert.equal(1, y[{ 1, 1 }])
    assert.error_matches(function() y:repeat_tensor(2) end,
      "^repeat_tensor: repeats has 1 entries; expected at least 2, one for each dim$")
    local all, times = lm.arange(48):view(2, 3, 1, 4, 2), { 2, 1, 3, 2, 1, 2, 3 }
    local want = all:view(1, 1, 2, 3, 1, 4, 2)
    for d, n in ipairs(times) do
      local parts = {}
      for k = 1, n do parts[k] = want end
      want = lm.cat(parts, d)
    end
    assert.is_true(all:tile(times):equal(want)) -- more dims repeated than one copy has room for
    assert.same({ 2, 0, 2, 4, 6 }, all:tile(1, 0, 2, 1, 3).shape)
  end)

  it("channels_last is a layout, not a shape", function()
    local a = lm.randn(2, 3, 4, 5)
    local b = a:contiguous { memory_format = "channels_last" }
    assert.same({ 2, 3, 4, 5 }, b.shape)
    assert.same({ 60, 1, 15, 3 }, b:stride())
    assert.is_false(b:is_contiguous())
    assert.is_true(b:is_contiguous { memory_format = "channels_last" })
    assert.is_false(a:is_contiguous { memory_format = "channels_last" })
    assert.is_true(lm.equal(a, b))
    assert.same(a:totable(), b:totable())
    assert.equal(b, b:contiguous { memory_format = "channels_last" })
    for name, y in pairs { add = b + 1, relu = b:relu(), clone = b:clone(), like = lm.zeros_like(b), to = b:double(),
      mul = b * b, broadcast = b + lm.ones(3, 1, 1), dropout = lm.dropout(b, 0.5), gt = b:gt(0) } do
      assert(y:is_contiguous { memory_format = "channels_last" }, name)
    end
    assert.same({ 60, 1, 15, 3 }, a:to({ memory_format = "channels_last" }):stride())
    assert.same({ 60, 20, 5, 1 }, b:contiguous():stride())
    assert.is_true(lm.equal(a:view(2, -1), b:reshape(2, -1)))
    assert.is_true(lm.empty({ 2, 3, 4, 5 },
      { memory_format = "channels_last" }):is_contiguous { memory_format = "channels_last" })
    assert.error_matches(function() lm.ones(2, 3):contiguous { memory_format = "channels_last" } end,
      "contiguous.*%[2, 3%]")
    assert.error_matches(function() b:contiguous { memory_format = "chanels_last" } end, "did you mean 'channels_last'")
  end)
end)

describe("operators", function()
  it("take tensors and numbers on both sides", function()
    local x = lm.tensor { 1, 2, 4 }
    assert.same({ 3, 4, 6 }, (x + 2):totable())
    assert.same({ 3, 4, 6 }, (2 + x):totable())
    assert.same({ -1, 0, 2 }, (x - 2):totable())
    assert.same({ 1, 0, -2 }, (2 - x):totable())
    assert.same({ 3, 6, 12 }, (x * 3):totable())
    assert.same({ 3, 6, 12 }, (3 * x):totable())
    assert.same({ 0.5, 1, 2 }, (x / 2):totable())
    assert.same({ 8, 4, 2 }, (8 / x):totable())
    assert.same({ 1, 4, 16 }, (x ^ 2):totable())
    assert.same({ 2, 4, 16 }, (2 ^ x):totable())
    assert.same({ 1, 2, 1 }, (x % 3):totable())
    assert.same({ 0, 1, 3 }, (7 % x):totable())
    assert.same({ -1, -2, -4 }, (-x):totable())
    local y = lm.tensor { 10, 20, 30 }
    assert.same({ 11, 22, 34 }, (x + y):totable())
    assert.same({ 9, 18, 26 }, (y - x):totable())
    assert.same({ 10, 40, 120 }, (x * y):totable())
    assert.same({ 10, 10, 7.5 }, (y / x):totable())
    assert.same({ 10, 400, 810000 }, (y ^ x):totable())
    assert.same({ 0, 0, 2 }, (y % x):totable())
  end)

  it("follow Python's sign in %, as PyTorch does", function()
    assert.same({ 2, -2, 1, -1 }, (lm.tensor { 5, -5, -5, 5 } % lm.tensor { 3, -3, 3, -3 }):totable())
    assert.same({ 2, -2, 1, -1 }, (lm.tensor({ 5, -5, -5, 5 }):long() % lm.tensor({ 3, -3, 3, -3 }):long()):totable())
    assert.same({ 0.5, 1 }, (lm.tensor { -2.5, 4 } % 1.5):totable())
  end)

  it("broadcast", function()
    local column, row = lm.tensor { { 1 }, { 2 } }, lm.tensor { 10, 20, 30 }
    assert.same({ { 11, 21, 31 }, { 12, 22, 32 } }, (column + row):totable())
    assert.same({ 2, 0 }, (lm.ones(2, 1) * lm.ones(0)).shape)
    assert.same({ 4, 2, 3 }, (lm.ones(4, 1, 1) + lm.ones(2, 3)).shape)
    assert.error_matches(function() return lm.ones(2, 3) + lm.ones(2) end, "add: .*%[2, 3%].*%[2%]")
  end)

  it("refuse what is neither", function()
    local x = lm.ones(2)
    assert.error_matches(function() return x + "text" end,
      "add: other must be a tensor or a number, got string 'text'")
    assert.error_matches(function() return {} * x end, "mul: x must be a tensor or a number, got a table")
    assert.error_matches(function() return x - nil end, "sub: other must be .*nil")
  end)

  it("divide integers into float32, and floor_divide keeps them", function()
    local x = lm.tensor({ 7, -7 }, { dtype = "int32" })
    assert.same({ { 3.5, -3.5 }, "float32" }, { (x / 2):totable(), (x / 2).dtype })
    assert.same({ { 3, -4 }, "int32" }, { x:floor_divide(2):totable(), x:floor_divide(2).dtype })
    assert.error_matches(function() return x:floor_divide(0) end, "floor_divide: .*zero")
    assert.error_matches(function() return x % 0 end, "remainder: .*zero")
    assert.error_matches(function() return x % lm.tensor({ 0, 1 }):int() end, "remainder: .*zero")
    local least = lm.tensor({ -9223372036854775807LL - 1 })
    assert.equal(-9223372036854775807LL - 1, least:floor_divide(-1)[1]) -- wraps, and does not trap
    assert.equal(0, (least % -1)[1])
  end)

  it("write in place and keep dtype and place", function()
    local x = lm.tensor({ 1, 2, 3 }, { dtype = "int64" })
    local p = x:data_ptr()
    assert.equal(x, x:add_(1):mul_(2):sub_(lm.tensor({ 1, 1, 1 }):long()))
    assert.same({ 3, 5, 7 }, x:totable())
    assert.equal(p, x:data_ptr())
    assert.error_matches(function() x:add_(0.5) end,
      "add_: the result must be int64 as x, got float32; convert x first")
    assert.error_matches(function() x:div_(2) end, "div_: the result must be int64 as x, got float32; convert x first")
    assert.error_matches(function() x:add_(lm.ones({ 2, 3 }):long()) end,
      "add_: expected the result to have shape %[3%], got %[2, 3%]")
    local y = lm.zeros(2, 3)
    y:add_(lm.tensor { 1, 2, 3 })
    assert.same({ { 1, 2, 3 }, { 1, 2, 3 } }, y:totable())
    assert.same({ 1, 0.5 }, lm.tensor({ 2, 1 }):half():div_(2):totable())
    local v = lm.zeros(4)
    v[{ { 1, 3 } }]:add_(1) -- through a view
    assert.same({ 1, 1, 1, 0 }, v:totable())
    local w = lm.arange(5):float()
    w[{ { 2, 5 } }]:copy_(w[{ { 1, 4 } }]) -- onto itself, shifted
    assert.same({ 0, 0, 1, 2, 3 }, w:totable())
  end)
end)

describe("promotion", function()
  local function operand(text)
    local kind, name = text:match("^(%S+) (.*)$")
    if kind == "number" then return tonumber(name) end
    return lm.ones(kind == "dims" and { 2 } or {}, { dtype = name })
  end

  it("is PyTorch's for every pair of dtypes, with and without dims, and for numbers", function()
    local pairs_seen, wrong = 0, {}
    local rights = {}
    for kind, name in promotion.rights:gmatch "([%a_]+)%s+([%w.]+)" do rights[#rights + 1] = kind .. " " .. name end
    promotion.rights = nil
    for left, row in pairs(promotion) do
      local column = 0
      for want in row:gmatch "%S+" do
        column = column + 1
        local right = rights[column]
        local a, b = operand(left), operand(right)
        for name, result in pairs { ["+"] = a + b, ["reversed +"] = b + a, where = lm.where(lm.tensor(true), a, b) } do
          if result.dtype ~= want then
            wrong[#wrong + 1] = ("%s %s %s: %s instead of %s"):format(left, name, right, result.dtype, want)
          end
        end
        pairs_seen = pairs_seen + 1
      end
    end
    assert(pairs_seen == 20 * 22, pairs_seen)
    assert(#wrong == 0, table.concat(wrong, "\n"))
  end)

  it("leaves an integer tensor alone with an integral number, and no other", function()
    for _, dtype in ipairs { "int64", "int32", "uint8" } do
      local x = lm.ones({ 2 }, { dtype = dtype })
      assert.equal(dtype, (x + 1).dtype)
      assert.equal(dtype, (2 * x).dtype)
      assert.equal("float32", (x + 1.5).dtype)
      assert.equal("bool", x:gt(0.5).dtype)
    end
    assert.equal("int64", (lm.ones({ 2 }, { dtype = "bool" }) + 1).dtype)
    assert.same({ true }, lm.ones({ 1 }, { dtype = "int64" }):gt(0.5):totable()) -- compared as numbers, not cut
    assert.same({ false }, lm.ones({ 1 }, { dtype = "int64" }):eq(1.5):totable())
  end)

  it("reaches cat and stack", function()
    local a, b = lm.ones({ 1 }, { dtype = "int32" }), lm.ones({ 1 }, { dtype = "float16" })
    assert.equal("float16", lm.cat({ a, b }).dtype)
    assert.equal("int64", lm.stack({ a, a:long() }).dtype)
    assert.equal("float32", lm.cat({ b, b:bfloat16() }).dtype)
  end)
end)

describe("comparing tensors", function()
  it("equal wants the same shape and values", function()
    local x = lm.tensor { 1, 2 }
    assert.is_true(x:equal(lm.tensor { 1, 2 }))
    assert.is_false(x:equal(lm.tensor { 1, 3 }))
    assert.is_false(x:equal(lm.tensor { { 1, 2 } }))
    assert.is_false(x:equal(lm.tensor { 1 }))
    assert.is_true(lm.equal(lm.zeros(0, 3), lm.zeros(0, 3)))
    assert.is_false(lm.equal(lm.zeros(0, 3), lm.zeros(3, 0)))
    assert.is_false(lm.equal(lm.tensor { nan }, lm.tensor { nan }))
    assert.error_matches(function() x:equal(3) end, "^equal: other must be a tensor, got 3$")
  end)

  it("allclose has tolerances", function()
    local x = lm.tensor { 1, 100, 0 }
    assert.is_true(x:allclose(x))
    assert.is_true(x:allclose(x * (1 + 5e-6)))
    assert.is_false(x:allclose(x * (1 + 1e-4)))
    assert.is_true(x:allclose(x * (1 + 1e-4), { rtol = 1e-3 }))
    assert.is_false(x:allclose(x + 1e-4))
    assert.is_true(x:allclose(x + 1e-4, { atol = 1e-3 }))
    local special = lm.tensor { inf, -inf, nan }
    assert.is_true(special[{ { 1, 2 } }]:allclose(special[{ { 1, 2 } }]))
    assert.is_false(lm.allclose(lm.tensor { inf }, lm.tensor { -inf }))
    assert.is_false(lm.allclose(lm.tensor { 1 }, lm.tensor { inf }))
    assert.is_false(lm.allclose(lm.tensor { inf }, lm.tensor { 1 }))
    assert.is_false(special:allclose(special))
    assert.is_true(special:allclose(special, { equal_nan = true }))
    assert.is_true(lm.arange(3):allclose(lm.arange(3)))
    assert.error_matches(function() x:allclose(x, { rtoll = 1 }) end,
      "^allclose: unknown option 'rtoll'; did you mean 'rtol'%?$")
    assert.is_true(x:allclose(x + 0.5, 0, 1))
    assert.error_matches(function() x:allclose(x, 0, 1, true, 2) end,
      "allclose: takes at most 5 arguments, got 6: x, other, rtol, atol, equal_nan")
  end)

  it("ne, eq, lt, le, gt and ge give bool tensors", function()
    local x, y = lm.tensor { 1, 2, nan }, lm.tensor { 2, 2, nan }
    assert.same({ false, true, false }, x:eq(y):totable())
    assert.same({ true, false, true }, x:ne(y):totable())
    assert.same({ true, false, false }, x:lt(y):totable())
    assert.same({ true, true, false }, x:le(y):totable())
    assert.same({ false, false, false }, x:gt(y):totable())
    assert.same({ false, true, false }, x:ge(y):totable())
    assert.same({ true, false, false }, x:lt(2):totable())
  end)
end)

describe("functions and methods", function()
  it("are the same: every method that makes a tensor is a function", function()
    for _, name in ipairs(core.op_list()) do
      assert.equal("function", type(lm[name]), name)
      -- norm's p may be a word, randint's low may be left out, and polygamma's order comes first.
      if name ~= "norm" and name ~= "randint" and name ~= "polygamma" then assert.equal(core.ops[name], lm[name]) end
    end
    local x = lm.randn(3, 3)
    assert.is_true(lm.equal(lm.mm(x, x), x:mm(x)))
    assert.is_true(lm.equal(lm.relu(x), x:relu()))
    assert.is_true(lm.equal(lm.max(x), x:max()))
    local values, places = x:max(2)
    assert.same({ 3 }, values.shape)
    assert.equal(x[{ 1, places[1] }], values[1])
    assert.is_true(lm.equal(lm.max(x, x * 2), lm.maximum(x, x * 2)))
    assert.same(lm.where(x:gt(0), x, 0):totable(), x:where(x:gt(0), 0):totable())
  end)

  it("take any argument but the first by name", function()
    local x = lm.arange(6):float():view(2, 3)
    assert.same({ 3, 12 }, x:sum({ dim = 2 }):totable())
    assert.same({ { 3 }, { 12 } }, x:sum(2, { keepdim = true }):totable())
    assert.same({ { 3 }, { 12 } }, lm.sum(x, { dim = { 2 }, keepdim = true }):totable())
    assert.same({ 15 }, x:sum({ 1, 2 }, { keepdim = true }):view(-1):totable())
    assert.same(lm.full({ 2 }, 3):totable(), lm.full({ 2 }, { value = 3 }):totable())
    assert.error_matches(function() x:sum(2, { dim = 1 }) end, "sum: dim.*twice")
  end)

  it("count dims from 1, or from -1 at the end", function()
    local x = lm.zeros(2, 3, 4)
    assert.same({ 3, 4 }, x:sum(1).shape)
    assert.same({ 2, 3 }, x:sum(-1).shape)
    assert.same({ 2, 3, 4 }, lm.cat({ x[{ {}, {}, { 1 } }], x[{ {}, {}, { 2, 4 } }] }, 3).shape)
    assert.error_matches(function() x:sum(4) end, "sum: dim 4 .*3 dims")
    assert.error_matches(function() x:sum(-4) end, "sum: dim %-4")
    assert.error_matches(function() x:sum(0) end, "sum: dim must be a dim of the tensor, got 0")
  end)
end)

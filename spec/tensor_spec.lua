-- Tensors: making them, what they are, converting them, views of them, arithmetic between them and with numbers.
local lm = require "luminary"
local core = require "luminary.core"
local ffi = require "ffi"
local here = debug.getinfo(1, "S").source:match("^@(.*)/[^/]*$")
local promotion = dofile(here .. "/golden/promotion.lua")

local inf, nan = math.huge, 0 / 0
local DTYPES = { "float32", "float64", "float16", "bfloat16", "int64", "int32", "uint8", "bool" }

local function facts(x) return { x.shape, x.dtype, x.device } end

describe("lm.tensor", function()
  it("makes numbers, lists and nested lists into float32", function()
    assert.same({ {}, "float32", "cpu" }, facts(lm.tensor(3)))
    assert.equal(3, lm.tensor(3):item())
    assert.same({ { 3 }, "float32", "cpu" }, facts(lm.tensor { 1, 2, 3 }))
    local x = lm.tensor { { { 1, 2 }, { 3, 4 }, { 5, 6 } }, { { 7, 8 }, { 9, 10 }, { 11, 12.5 } } }
    assert.same({ 2, 3, 2 }, x.shape)
    assert.same({ { { 1, 2 }, { 3, 4 }, { 5, 6 } }, { { 7, 8 }, { 9, 10 }, { 11, 12.5 } } }, x:totable())
  end)

  it("makes booleans into bool, alone or in lists", function()
    assert.same({ {}, "bool", "cpu" }, facts(lm.tensor(true)))
    assert.equal(true, lm.tensor(true):item())
    assert.same({ { true, false }, { false, true } }, lm.tensor({ { true, false }, { false, true } }):totable())
    assert.equal("float32", lm.tensor({ true, 2 }).dtype)
    assert.same({ 1, 2 }, lm.tensor({ true, 2 }):totable())
  end)

  it("takes empty lists", function()
    assert.same({ 0 }, lm.tensor({}).shape)
    assert.same({ 2, 0 }, lm.tensor({ {}, {} }).shape)
    assert.equal("float32", lm.tensor({}).dtype)
    assert.same({}, lm.tensor({}):totable())
    assert.same({ {}, {} }, lm.tensor({ {}, {} }):totable())
  end)

  it("takes every dtype, by PyTorch's aliases too", function()
    for _, dtype in ipairs(DTYPES) do
      local x = lm.tensor({ { 0, 1 }, { 2, 3 } }, { dtype = dtype })
      assert.equal(dtype, x.dtype)
      local want = dtype == "bool" and { { false, true }, { true, true } } or { { 0, 1 }, { 2, 3 } }
      assert.same(want, x:totable())
    end
    for alias, dtype in pairs { float = "float32", double = "float64", half = "float16", long = "int64",
      int = "int32" } do
      assert.equal(dtype, lm.tensor({ 1 }, { dtype = alias }).dtype)
    end
  end)

  it("keeps integers of 64 bits exact", function()
    local big = 9007199254740993LL -- 2^53 + 1
    local x = lm.tensor({ big, -5LL }) -- int64, since no float32 was asked for
    assert.equal("int64", x.dtype)
    assert.equal(big, x:totable()[1])
    assert.equal(-5, x[2])
  end)

  it("copies a tensor", function()
    local x = lm.ones(2)
    local y = lm.tensor(x, { dtype = "float64" })
    y[1] = 5
    assert.same({ 1, 1 }, x:totable())
    assert.equal("float64", y.dtype)
    assert.is_false(lm.tensor(lm.tensor({ 1 }, { requires_grad = true })).requires_grad)
  end)

  it("refuses ragged lists, saying where", function()
    local ragged = {
      { { { 1, 2 }, { 3 } }, "%[2%] has 1 elements? where 2 are expected" },
      { { { 1, 2 }, 3 }, "number 3 at %[2%] where a list of 2 is expected" },
      { { 1, { 2 } }, "a list at %[2%] where a number is expected" },
      { { { { 1 }, { 2 } }, { { 3 }, { 4, 5 } } }, "%[2%]%[2%] has 2 elements where 1" },
      { { { 1, "x" } }, "%[1%]%[2%].*string 'x'" },
      { { 1, print }, "%[2%].*function" },
      { { lm.ones(2), lm.ones(2) }, "%[1%].*a tensor %[2%].*lm.stack" },
      { { first = 1 }, "list expected.*first" },
      { "text", "string 'text'" },
    }
    for _, case in ipairs(ragged) do assert.error_matches(function() lm.tensor(case[1]) end,
      "^tensor: .*" .. case[2]) end
    assert.error_matches(function() lm.tensor(nil) end, "tensor: .*nil")
    assert.error_matches(function() lm.tensor { { { { { { { { { 1 } } } } } } } } } end, "tensor: .*8 dims")
  end)

  it("refuses what a dtype cannot hold", function()
    assert.error_matches(function() lm.tensor({ 1, 300 }, { dtype = "uint8" }) end, "300 at %[2%] does not fit uint8")
    assert.error_matches(function() lm.tensor({ -1 }, { dtype = "uint8" }) end, "%-1 at %[1%] does not fit uint8")
    assert.error_matches(function() lm.tensor({ { 2 ^ 31 } }, { dtype = "int32" }) end,
      "2147483648 at %[1%]%[1%].*int32")
    assert.error_matches(function() lm.tensor({ nan }, { dtype = "int64" }) end, "nan.*int64")
    assert.error_matches(function() lm.tensor({ inf }, { dtype = "int64" }) end, "inf.*int64")
    assert.same({ inf, -inf }, lm.tensor({ 1e39, -1e39 }):totable())
    assert.same({ inf, 65504 }, lm.tensor({ 65520, 65519 }, { dtype = "float16" }):totable())
  end)

  it("takes options, and no more", function()
    local x = lm.tensor({ 1 }, { device = "cpu:1", requires_grad = true, dtype = "float64" })
    assert.same({ { 1 }, "float64", "cpu:1" }, facts(x))
    assert.is_true(x.requires_grad)
    assert.error_matches(function() lm.tensor({ 1 }, { dtyp = "int64" }) end,
      "tensor: no option 'dtyp'; did you mean 'dtype'")
    assert.error_matches(function() lm.tensor({ 1 }, "int64") end, "tensor: options.*table.*string")
    assert.error_matches(function() lm.tensor(1, 2, 3) end, "tensor:.*lm%.tensor%({1, 2, 3}%)")
    assert.error_matches(function() lm.tensor({ 1 }, { dtype = "flaot64" }) end, "flaot64.*did you mean 'float64'")
  end)
end)

describe("creation", function()
  it("takes sizes as numbers or as one list, then options", function()
    for _, x in ipairs { lm.zeros(2, 3), lm.zeros { 2, 3 }, lm.zeros({ 2, 3 }, {}), lm.zeros(2, 3, {}) } do
      assert.same({ { 2, 3 }, "float32", "cpu" }, facts(x))
      assert.same({ { 0, 0, 0 }, { 0, 0, 0 } }, x:totable())
    end
    local options = { dtype = "int32", device = "cpu:2" }
    assert.same({ { 2 }, "int32", "cpu:2" }, facts(lm.ones(2, options)))
    assert.same({ { 2 }, "int32", "cpu:2" }, facts(lm.full({ 2 }, 7, options)))
    assert.same({ { 2 }, "int32", "cpu:2" }, facts(lm.empty({ 2 }, options)))
    assert.is_true(lm.zeros(2, { requires_grad = true }).requires_grad)
    assert.same({}, lm.zeros({}).shape)
    assert.same({ 0, 3 }, lm.zeros(0, 3).shape)
    assert.equal(1, lm.ones({}):item())
  end)

  it("fills with the value, in every dtype", function()
    for _, dtype in ipairs(DTYPES) do
      local one, zero = 1, 0
      if dtype == "bool" then one, zero = true, false end
      assert.same({ one, one }, lm.ones(2, { dtype = dtype }):totable())
      assert.same({ one, one }, lm.full({ 2 }, 1, { dtype = dtype }):totable())
      assert.same({ zero }, lm.zeros(1, { dtype = dtype }):totable())
    end
    assert.same({ { 1.5, 1.5 } }, lm.full({ 1, 2 }, 1.5):totable())
  end)

  it("arange is PyTorch's: from 0, without its end, int64 where all are whole", function()
    assert.same({ 0, 1, 2, 3, 4 }, lm.arange(5):totable())
    assert.equal("int64", lm.arange(5).dtype)
    assert.same({ 2, 3 }, lm.arange(2, 4):totable())
    assert.same({ 5, 3, 1 }, lm.arange(5, 0, -2):totable())
    assert.same({ 0, 0.25, 0.5, 0.75 }, lm.arange(0, 1, 0.25):totable())
    assert.equal("float32", lm.arange(0, 1, 0.25).dtype)
    assert.equal("float64", lm.arange(3, { dtype = "float64" }).dtype)
    assert.same({}, lm.arange(0):totable())
    assert.equal(10, #lm.arange(0, 1, 0.1))
    assert.error_matches(function() lm.arange(0, 5, -1) end, "arange")
    assert.error_matches(function() lm.arange(0, 5, 0) end, "arange: step")
  end)

  it("linspace ends exactly at its end", function()
    assert.same({ 0, 0.25, 0.5, 0.75, 1 }, lm.linspace(0, 1, 5):totable())
    local x = lm.linspace(-3, 10, 1000)
    assert.equal(-3, x[1])
    assert.equal(10, x[1000])
    assert.same({ 3 }, lm.linspace(3, 9, 1):totable())
    assert.same({}, lm.linspace(3, 9, 0):totable())
  end)

  it("eye has ones where row and column agree", function()
    assert.same({ { 1, 0 }, { 0, 1 } }, lm.eye(2):totable())
    assert.same({ { 1, 0, 0 }, { 0, 1, 0 } }, lm.eye(2, 3):totable())
    assert.same({ { 1 }, { 0 } }, lm.eye(2, 1):totable())
    assert.equal("int64", lm.eye(2, { dtype = "int64" }).dtype)
  end)

  it("like-functions take shape, dtype, device and layout", function()
    local x = lm.ones({ 2, 3, 4, 5 }, { dtype = "int32",
      device = "cpu:1" }):contiguous { memory_format = "channels_last" }
    for name, value in pairs { zeros_like = 0, ones_like = 1 } do
      local y = lm[name](x)
      assert.same({ { 2, 3, 4, 5 }, "int32", "cpu:1" }, facts(y))
      assert.same(x:stride(), y:stride())
      assert.equal(value, y[{ 2, 3, 4, 5 }])
      assert.same({ { 2, 3, 4, 5 }, "float64", "cpu" }, facts(lm[name](x, { dtype = "float64", device = "cpu" })))
    end
    assert.same({ 7, 7 }, lm.full_like(lm.ones(2), 7):totable())
    assert.same(facts(x), facts(lm.empty_like(x)))
  end)

  it("new_ methods take dtype and device", function()
    local x = lm.ones({ 2 }, { dtype = "float64", device = "cpu:1" })
    assert.same({ { 3, 1 }, "float64", "cpu:1" }, facts(x:new_zeros(3, 1)))
    assert.same({ { 3, 1 }, "float64", "cpu:1" }, facts(x:new_ones { 3, 1 }))
    assert.same({ { 3 }, "int64", "cpu:1" }, facts(x:new_full({ 3 }, 4, { dtype = "int64" })))
    assert.same({ { 2 }, "float64", "cpu:1" }, facts(x:new_tensor { 1, 2 }))
    assert.same({ { 2 }, "float64", "cpu" }, facts(x:new_empty(2, { device = "cpu" })))
  end)

  it("fills in place and returns the tensor itself", function()
    local x = lm.zeros(2, 2)
    assert.equal(x, x:fill_(3))
    assert.same({ { 3, 3 }, { 3, 3 } }, x:totable())
    assert.equal(x, x:zero_())
    assert.same({ { 0, 0 }, { 0, 0 } }, x:totable())
    assert.equal(x, x:copy_(lm.tensor({ 1, 2 }, { dtype = "int64" })))
    assert.same({ { 1, 2 }, { 1, 2 } }, x:totable())
    assert.equal(x, x:normal_())
    assert.equal(x, x:uniform_())
    assert.equal(x, x:fill_(lm.tensor(4)))
    assert.equal(16, x:sum():item())
    assert.error_matches(function() x:copy_(lm.ones(3)) end, "copy_.*%[3%].*%[2, 2%]")
    assert.error_matches(function() x[1]:expand(3, 2):fill_(1) end, "fill_.*expand")
  end)

  it("follows the default dtype", function()
    lm.set_default_dtype "float64"
    local ok, err = pcall(function()
      assert.equal("float64", lm.get_default_dtype())
      assert.equal("float64", lm.zeros(1).dtype)
      assert.equal("float64", lm.tensor({ 1 }).dtype)
      assert.equal("float64", lm.rand(1).dtype)
      assert.equal("float64", (lm.arange(2) * 0.5).dtype)
      assert.equal("float64", (lm.arange(2) / 2).dtype)
    end)
    lm.set_default_dtype "float32"
    assert(ok, err)
    assert.error_matches(function() lm.set_default_dtype "int64" end, "set_default_dtype.*float.*int64")
  end)

  it("says what is wrong with sizes", function()
    assert.error_matches(function() lm.zeros(-1) end, "zeros.*%-1")
    assert.error_matches(function() lm.zeros(1.5) end, "zeros: size.*integer.*1.5")
    assert.error_matches(function() lm.zeros("2") end, "zeros: size.*string '2'")
    assert.error_matches(function() lm.zeros() end, "zeros: size.*nothing")
    assert.error_matches(function() lm.zeros(1, 1, 1, 1, 1, 1, 1, 1, 1) end, "zeros: size: at most 8.*9")
    assert.error_matches(function() lm.full({ 2 }) end, "full: value.*nothing")
  end)
end)

describe("a tensor", function()
  it("has PyTorch's attributes as fields", function()
    local x = lm.zeros({ 2, 3 }, { dtype = "float64" })
    assert.same({ 2, 3 }, x.shape)
    assert.equal("float64", x.dtype)
    assert.equal("cpu", x.device)
    assert.equal(2, x.ndim)
    assert.equal(8, x.itemsize)
    assert.equal(48, x.nbytes)
    assert.is_nil(x.grad)
    assert.is_nil(x.grad_fn)
    assert.is_false(x.requires_grad)
    assert.is_true(x.is_leaf)
    assert.is_false(x.is_cuda)
    assert.same({ 3, 2 }, x.T.shape)
    assert.is_nil(x.no_such_field)
    assert.error_matches(function() x.requires_gard = true end, "requires_gard.*requires_grad")
    assert.error_matches(function() x.shape = { 3 } end, "shape.*set")
  end)

  it("has its facts as methods too", function()
    local x = lm.zeros(4, 5, 6)
    assert.same({ 4, 5, 6 }, x:size())
    assert.equal(5, x:size(2))
    assert.equal(6, x:size(-1))
    assert.same({ 30, 6, 1 }, x:stride())
    assert.equal(6, x:stride(2))
    assert.equal(3, x:dim())
    assert.equal(120, x:numel())
    assert.equal(120, lm.numel(x))
    assert.equal(4, x:element_size())
    assert.equal(4, #x)
    assert.is_true(x:is_floating_point())
    assert.is_false(lm.arange(2):is_floating_point())
    assert.is_true(lm.is_tensor(x))
    assert.is_false(lm.is_tensor {})
    assert.is_false(lm.is_tensor(io.stdout))
    assert.error_matches(function() x:size(4) end, "size: dim 4.*3 dims")
    assert.error_matches(function() x:size(0) end, "size: dim.*from 1")
    assert.error_matches(function() return #lm.tensor(1) end, "0%-d")
  end)

  it("shape is a copy", function()
    local x = lm.zeros(2, 3)
    x.shape[1] = 9
    assert.same({ 2, 3 }, x.shape)
  end)

  it("is equal to itself alone", function()
    local x = lm.tensor({ 1, 2 }, { requires_grad = true })
    assert.is_true(x == x)
    assert.is_false(x == x:clone())
    assert.is_false(x == lm.tensor { 1, 2 })
    assert.is_false(x == 1)
    assert.is_false(x == nil)
    assert.is_true(x ~= x:clone())
    x:sum():backward()
    assert.is_true(x.grad == x.grad) -- two handles, one tensor
    assert.is_true(x:to "float32" == x)
  end)

  it("has no order, and says what to write", function()
    local x, y = lm.ones(2), lm.ones(2)
    for _, compare in ipairs { function() return x < y end, function() return x > y end } do
      assert.error_matches(compare, ":lt%(")
    end
    assert.error_matches(function() return x < 1 end, "compare") -- Lua's own: it asks no metamethod for these
    for _, compare in ipairs { function() return x <= y end, function() return x >= y end } do
      assert.error_matches(compare, ":le%(")
    end
    assert.error_matches(function() return x .. "text" end, "concatenate")
    assert.error_matches(function() return x() end, "call")
    assert.equal("luminary.tensor", getmetatable(x))
  end)
end)

describe("item and totable", function()
  it("give Lua's numbers and booleans", function()
    for _, dtype in ipairs(DTYPES) do
      local want = dtype == "bool" or 1
      assert.equal(want, lm.ones({}, { dtype = dtype }):item())
      assert.equal(want, lm.ones({ 1, 1 }, { dtype = dtype }):item())
      assert.same({ { want } }, lm.ones({ 1, 1 }, { dtype = dtype }):totable())
      assert.equal(want, lm.ones({}, { dtype = dtype }):totable())
    end
    assert.equal(0.5, lm.tensor(0.5):item())
    assert.equal(2 ^ -24, lm.tensor(2 ^ -24, { dtype = "float16" }):item()) -- the least half
    assert.same({ { 1, 3 }, { 2, 4 } }, lm.tensor({ { 1, 2 }, { 3, 4 } }):t():totable())
    assert.same({ 1, 2 }, lm.tensor({ 1, 2 }, { requires_grad = true }):totable())
  end)

  it("give cdata for integers that no Lua number holds", function()
    local x = lm.full({ 2 }, 2 ^ 53, { dtype = "int64" })
    assert.equal("number", type(x[1]))
    assert.equal(2 ^ 53, x[1])
    local y = x * 4 + 1
    for _, v in ipairs { y[1], y[{ { 2 } }]:item(), y:totable()[1], y[{ { 1, 1 } }]:item() } do
      assert.equal("cdata", type(v))
      assert.is_true(ffi.istype("int64_t", v))
      assert.equal(36028797018963969LL, v)
    end
    assert.equal(-36028797018963969LL, (-y)[1])
    y[1] = 9007199254740995LL
    assert.equal(9007199254740995LL, y[1])
    y:fill_(-9007199254740995LL)
    assert.equal(-9007199254740995LL, y[2])
    assert.equal(9223372036854775807LL, lm.tensor({ 9223372036854775807LL })[1])
    assert.equal(9007199254740999LL, (lm.tensor({ 9007199254740995LL }) + 4LL)[1])
  end)

  it("refuse more than one element", function()
    assert.error_matches(function() lm.ones(2):item() end, "item: .*%[2%]")
    assert.error_matches(function() lm.zeros(0):item() end, "item: .*%[0%]")
  end)
end)

describe("data_ptr", function()
  it("is the address of the first element, shared with FFI", function()
    local x = lm.arange(6):float():view(2, 3)
    local p = ffi.cast("float *", x:data_ptr())
    assert.equal(5, p[5])
    p[4] = 40
    assert.equal(40, x[{ 2, 2 }])
    assert.is_true(ffi.cast("char *", x[2]:data_ptr()) - ffi.cast("char *", x:data_ptr()) == 12)
    assert.is_true(x:view(-1):data_ptr() == x:data_ptr())
    assert.is_false(x:clone():data_ptr() == x:data_ptr())
    assert.equal(3, x[2]:storage_offset())
    assert.equal(0, tonumber(ffi.cast("uintptr_t", lm.zeros(1000):data_ptr()) % 64)) -- aligned for vectors
  end)
end)

describe("to", function()
  it("gives the tensor itself where nothing changes, unless a copy is asked for", function()
    local x = lm.ones(2, 3)
    assert.equal(x, x:to "float32")
    assert.equal(x, x:to "cpu")
    assert.equal(x, x:to("cpu", "float32"))
    assert.equal(x, x:to { dtype = "float32", device = "cpu:0" })
    assert.equal(x, x:float())
    assert.equal(x, x:cpu())
    for _, y in ipairs { x:to("float32", { copy = true }), x:to { copy = true }, x:to("cpu", { copy = true }) } do
      assert.is_false(x == y)
      assert.is_false(x:data_ptr() == y:data_ptr())
      assert.is_true(lm.equal(x, y))
    end
  end)

  it("takes a dtype, a device, both, a tensor, or options", function()
    local x = lm.ones(2)
    local like = lm.zeros({ 1 }, { dtype = "int32", device = "cpu:3" })
    assert.same({ { 2 }, "float64", "cpu" }, facts(x:to "double"))
    assert.same({ { 2 }, "float32", "cpu:1" }, facts(x:to "cpu:1"))
    assert.same({ { 2 }, "float16", "cpu:1" }, facts(x:to("cpu:1", "float16")))
    assert.same({ { 2 }, "float16", "cpu:1" }, facts(x:to("float16", "cpu:1")))
    assert.same({ { 2 }, "float16", "cpu:1" }, facts(x:to { dtype = "half", device = "cpu:1", non_blocking = true }))
    assert.same({ { 2 }, "int32", "cpu:3" }, facts(x:to(like)))
    assert.same({ { 2 }, "int32", "cpu" }, facts(x:type_as(like:cpu())))
    assert.error_matches(function() x:to "flot64" end, "to: .*flot64.*float64")
    assert.error_matches(function() x:to "cpux" end, "to: .*cpux")
    assert.error_matches(function() x:to() end, "to: .*nothing")
    assert.error_matches(function() x:to { copi = true } end, "to: no option 'copi'; did you mean 'copy'")
    assert.error_matches(function() x:to(true) end, "to: .*true")
  end)

  it("has a method for each dtype", function()
    local x = lm.tensor { 0, 1.5, 2 }
    for method, dtype in pairs { float = "float32", double = "float64", half = "float16", bfloat16 = "bfloat16",
      long = "int64", int = "int32", bool = "bool" } do
      assert.equal(dtype, x[method](x).dtype)
    end
    assert.same({ 0, 1, 2 }, x:long():totable())
    assert.same({ false, true, true }, x:bool():totable())
  end)

  it("converts as PyTorch does", function()
    local function convert(values, from, to) return lm.tensor(values, { dtype = from }):to(to):totable() end
    assert.same({ 1, -1, 2, -2, 0 }, convert({ 1.9, -1.9, 2.5, -2.5, -0.1 }, "float32", "int64")) -- towards 0
    assert.same({ 44, 255, 0 }, convert({ 300, -1, 256 }, "int64", "uint8"))
    assert.same({ -2147483648, 0 }, convert({ 2147483648LL, 4294967296LL }, "int64", "int32"))
    assert.same({ 1, 0 }, convert({ true, false }, "bool", "float16"))
    assert.same({ true, false, true, true }, convert({ 0.1, 0, nan, -inf }, "float32", "bool"))
    assert.same({ 1, 1.0078125, 1.0078125, 1.015625 },
      convert({ 1.00390625, 1.005, 1.0117, 1.01171875 }, "float32", "bfloat16")) -- nearest, ties to even
    assert.same({ 2048, 2048, 2052, inf, -inf, 65504 }, convert({ 2048, 2049, 2051, 65520, -1e9, 65519 }, "float32",
      "float16"))
    assert.same({ 16777216 }, convert({ 16777217 }, "int32", "float32"))
    assert.same({ 2 ^ -24, 0, 3 * 2 ^ -24 }, convert({ 2 ^ -24, 2 ^ -25, 2.5 * 2 ^ -24 + 2 ^ -30 }, "float64",
      "float16"))
    local x = lm.tensor({ nan }):to "bfloat16"
    assert.is_true(x[1] ~= x[1])
  end)

  it("keeps each value through every wider dtype and back", function()
    for _, via in ipairs { "float64", "float32", "int64", "int32", "float16" } do
      local x = lm.arange(256):to "uint8"
      assert.is_true(lm.equal(x, x:to(via):to "uint8"))
    end
    local bits = lm.arange(65536):int() -- every half, as bits
    local half = lm.empty({ 65536 }, { dtype = "float16" })
    ffi.copy(half:data_ptr(), ffi.new("uint16_t[65536]", {}), 131072)
    local p = ffi.cast("uint16_t *", half:data_ptr())
    for k = 0, 65535 do p[k] = k end
    local back = half:float():half()
    local q = ffi.cast("uint16_t *", back:data_ptr())
    for k = 0, 65535 do
      local is_nan = k % 0x8000 > 0x7c00
      if is_nan then assert(q[k] % 0x8000 > 0x7c00) else assert(q[k] == k, k) end
    end
    assert.equal(65536, #bits)
  end)

  it("clone and contiguous copy, or not", function()
    local x = lm.arange(6):view(2, 3)
    local y = x:clone()
    y[{ 1, 1 }] = 9
    assert.equal(0, x[{ 1, 1 }])
    assert.equal(x, x:contiguous())
    local t = x:t()
    assert.is_false(t:is_contiguous())
    assert.is_true(t:contiguous():is_contiguous())
    assert.same(t:totable(), t:contiguous():totable())
    assert.same({ 1, 3 }, t:clone():stride()) -- dense: keeps its layout, as in PyTorch
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
    assert.error_matches(function() x:transpose(1, 3):view(-1) end, "view: %[4, 3, 2%].*%[24%].*reshape")
    local y = x:transpose(1, 3):reshape(-1)
    assert.is_false(y:data_ptr() == x:data_ptr())
    assert.same({ 0, 12, 4, 16 }, y[{ { 1, 4 } }]:totable())
    assert.error_matches(function() x:view(5, 5) end, "view: %[2, 3, 4%] has 24 elements.*%[5, 5%]")
    assert.error_matches(function() x:view(5, -1) end, "view: .*%[2, 3, 4%].*%[5, %-1%]")
    assert.error_matches(function() x:view(-1, -1) end, "view: .*%-1")
    assert.error_matches(function() x:view(-2, 12) end, "view: .*%-2")
    assert.error_matches(function() x:expand(2, 3, 5) end, "expand: %[2, 3, 4%].*%[2, 3, 5%]")
    assert.error_matches(function() x:expand(3, 4) end, "expand: %[2, 3, 4%].*%[3, 4%]")
    assert.error_matches(function() x:permute(1, 2) end, "permute: .*%[2, 3, 4%]")
    assert.error_matches(function() x:permute(1, 1, 2) end, "permute: dim 1.*twice")
    assert.error_matches(function() x:transpose(1, 4) end, "transpose: dim 4")
    assert.error_matches(function() x:transpose(0, 1) end, "transpose: .*from 1")
    assert.error_matches(function() x:t() end, "t: .*%[2, 3, 4%]")
    assert.error_matches(function() x:narrow(2, 2, 3) end, "narrow: .*dim 2 of %[2, 3, 4%]")
    assert.error_matches(function() x:select(1, 3) end, "select: .*3.*dim 1 of %[2, 3, 4%]")
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
    assert.error_matches(function() y:split { 3, 3 } end, "split: .*6.*7")
    assert.error_matches(function() y:split(0) end, "split: size.*at least 1")
    assert.error_matches(function() y:chunk(2, 2) end, "dim 2")
  end)

  it("repeats as repeat_tensor", function()
    local y = lm.tensor { { 1, 2 } }
    assert.same({ { 1, 2, 1, 2 }, { 1, 2, 1, 2 }, { 1, 2, 1, 2 } }, y:repeat_tensor(3, 2):totable())
    assert.same({ 2, 1, 2 }, y:repeat_tensor(2, 1, 1).shape)
    assert.same({ 0, 2 }, y:repeat_tensor(0, 1).shape)
    local same = y:repeat_tensor(1, 1)
    same[{ 1, 1 }] = 9
    assert.equal(1, y[{ 1, 1 }])
    assert.error_matches(function() y:repeat_tensor(2) end, "repeat_tensor: 1.*2")
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
      "add: other: a tensor or a number expected, got string 'text'")
    assert.error_matches(function() return {} * x end, "mul: x: a tensor or a number expected, got table")
    assert.error_matches(function() return x - nil end, "sub: other: .*nil")
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
    assert.error_matches(function() x:add_(0.5) end, "add_?: .*float32.*int64")
    assert.error_matches(function() x:div_(2) end, "div_?: .*float32.*int64")
    assert.error_matches(function() x:add_(lm.ones({ 2, 3 }):long()) end, "add_?: .*%[2, 3%].*%[3%]")
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
    for left, row in pairs(promotion) do
      for right, want in pairs(row) do
        local a, b = operand(left), operand(right)
        for name, result in pairs { ["+"] = a + b, ["reversed +"] = b + a, where = lm.where(lm.tensor(true), a, b) } do
          if result.dtype ~= want then
            wrong[#wrong + 1] = ("%s %s %s: %s instead of %s"):format(left, name, right, result.dtype, want)
          end
        end
        pairs_seen = pairs_seen + 1
      end
    end
    assert(pairs_seen == 16 * 18, pairs_seen)
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
    assert.error_matches(function() x:equal(3) end, "equal: other.*tensor.*3")
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
      "allclose: no option 'rtoll'; did you mean 'rtol'")
    assert.error_matches(function() x:allclose(x, 1e-3) end, "allclose: .*{rtol = 0.001}")
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
      assert.equal(core.ops[name], lm[name])
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
    assert.error_matches(function() x:sum(0) end, "sum: dim.*from 1")
  end)
end)

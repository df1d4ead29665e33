-- Tensors: constructors, properties, conversions.
local lm = require "luminary"
local ffi = require "ffi"
local temp = require "spec.support.temp"

local inf, nan = math.huge, 0 / 0
local DTYPES = {
  "float32", "float64", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint16", "uint8", "bool",
}

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
      { { { 1, 2 }, { 3 } }, "%[2%] must be a list of 2 as in the first row, got 1 elements" },
      { { { 1, 2 }, 3 }, "%[2%] must be a list of 2 as in the first row, got 3" },
      { { 1, { 2 } }, "%[2%] must be a number as in the first row, got a list" },
      { { { { 1 }, { 2 } }, { { 3 }, { 4, 5 } } },
        "%[2%]%[2%] must be a list of 1 as in the first row, got 2 elements" },
      { { { 1, "x" } }, "%[1%]%[2%].*string 'x'" },
      { { 1, print }, "%[2%].*function" },
      { { lm.ones(2), lm.ones(2) }, "%[1%].*a tensor %[2%].*lm.stack" },
      { { 1, [3] = 5 }, "x must be a list without gaps, got a list of 1 with an entry at 3" },
      { { { 1, 2, [9] = 5 } }, "x%[1%] must be a list without gaps, got a list of 2 with an entry at 9" },
      { { 1, 2, first = 5 },
        "x must be a list, got a list of 2 with key .*first.*; put options into a second table" },
      { { first = 1 }, "must be a list, got a table with key .*first" },
      { "text", "string 'text'" },
    }
    for _, case in ipairs(ragged) do assert.error_matches(function() lm.tensor(case[1]) end,
      "^tensor: .*" .. case[2]) end
    assert.error_matches(function() lm.tensor(nil) end, "tensor: .*nil")
    assert.error_matches(function() lm.tensor { { { { { { { { { 1 } } } } } } } } } end,
      "tensor: nested lists must be at most 8 deep")
  end)

  it("refuses what a dtype cannot hold", function()
    assert.error_matches(function() lm.tensor({ 1, 300 }, { dtype = "uint8" }) end,
      "%[2%] must be within the range of uint8, got 300")
    assert.error_matches(function() lm.tensor({ -1 }, { dtype = "uint8" }) end,
      "%[1%] must be within the range of uint8, got %-1")
    assert.error_matches(function() lm.tensor({ { 2 ^ 31 } }, { dtype = "int32" }) end,
      "%[1%]%[1%] must be within the range of int32, got 2147483648")
    assert.error_matches(function() lm.tensor({ nan }, { dtype = "int64" }) end, "range of int64, got nan")
    assert.error_matches(function() lm.tensor({ inf }, { dtype = "int64" }) end, "range of int64, got inf")
    assert.same({ inf, -inf }, lm.tensor({ 1e39, -1e39 }):totable())
    assert.same({ inf, 65504 }, lm.tensor({ 65520, 65519 }, { dtype = "float16" }):totable())
  end)

  it("takes options, and no more", function()
    local x = lm.tensor({ 1 }, { device = "cpu:1", requires_grad = true, dtype = "float64" })
    assert.same({ { 1 }, "float64", "cpu:1" }, facts(x))
    assert.is_true(x.requires_grad)
    assert.error_matches(function() lm.tensor({ 1 }, { dtyp = "int64" }) end,
      "tensor: unknown option 'dtyp'; did you mean 'dtype'")
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
    assert.error_matches(function() x[1]:expand(3, 2):fill_(1) end,
      "fill_: cannot write in place to a tensor of shape %[3, 2%], whose elements share memory")
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
    assert.error_matches(function() lm.zeros() end, "zeros: size is missing")
    assert.error_matches(function() lm.zeros(1, 1, 1, 1, 1, 1, 1, 1, 1) end,
      "zeros: size must be a list of at most 8 entries, got 9")
    assert.error_matches(function() lm.full({ 2 }) end, "full: value is missing")
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
    assert.error_matches(function() x:size(0) end, "size: dim must be a dim of the tensor, got 0; dims start at 1")
    assert.error_matches(function() return #lm.tensor(1) end, "0%-d")
  end)

  it("shape is a copy", function()
    local x = lm.zeros(2, 3)
    x.shape[1] = 9
    assert.same({ 2, 3 }, x.shape)
  end)

  it("shape, size and stride are lists that print shows, == compares and .. writes", function()
    local x, y = lm.zeros(2, 3), lm.zeros(3, 2)
    assert.equal("{2, 3}", tostring(x.shape))
    assert.equal("{2, 3}", tostring(x:size()))
    assert.equal("{3, 1}", tostring(x:stride()))
    assert.equal("{}", tostring(lm.ones {}.shape))
    assert.equal("{{2, 3}, {}}", lm.repr { x.shape, lm.ones {}.shape })
    assert.equal("of {2, 3}: 2", "of " .. x.shape .. ": " .. #x.shape)
    assert.error_matches(function() return x.shape .. nil end,
      "^attempt to concatenate a list of sizes and a nil value$")
    assert.is_true(x.shape == x:size() and x.shape == y:t().shape)
    assert.is_true(x.shape ~= y.shape and x.shape ~= lm.zeros(2).shape and lm.ones {}.shape ~= lm.zeros(1).shape)
  end)

  it("an empty list of tensors is one", function()
    assert.error_matches(function() lm.cat(lm.ones(0, 2):unbind(1)) end, "cat: tensors must be a non%-empty list")
  end)

  it("lists of sizes are plain tables to whatever takes those", function()
    local x = lm.zeros(2, 3)
    assert.same({ 2, 3 }, lm.ones(6):view(x.shape).shape)
    assert.same({ 2, 3 }, lm.ones(x.shape, { dtype = "int64" }).shape)
    assert.same({ 2, 3 }, lm.rand(x:size()).shape)
    assert.same({}, lm.ones(lm.ones {}.shape).shape)
    assert.same({ 1, 2, 3 }, lm.ones(1, unpack(x.shape)).shape)
    assert.same({ 2, 3 }, lm.tensor(x.shape):tolist())
    local folder = temp.folder()
    lm.save(folder .. "/x", { shape = x.shape, nested = { x:size() } })
    assert.same({ shape = { 2, 3 }, nested = { { 2, 3 } } }, lm.load(folder .. "/x"))
    temp.remove(folder)
    assert.equal("[2,3]", (require("luminary.base.json_encode")(x.shape):gsub("%s", "")))
    local serializer = require "luminary.mp.serialization"
    local text = serializer.encode("spec", { shape = x.shape }, { plain = "value" })
    assert.same({ shape = { 2, 3 } }, serializer.decode(text, {}, {}, true))
    local Set = lm.data.Dataset:extend("Set")
    function Set:len() return self.n end
    function Set:get() return self.item.shape end
    local set = Set()
    set.n, set.item = 2, x
    local columns = lm.data.DataLoader(set, { batch_size = 2 }):iter()()
    assert.same({ { 2, 2 }, { 3, 3 } }, { columns[1]:tolist(), columns[2]:tolist() })
    local list = setmetatable(x.shape, nil)
    assert.is_true(list[2] == 3 and list ~= x.shape)
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
      assert.error_matches(compare, "cannot compare tensors by < and >.*a:lt%(b%).*a:item%(%) < b:item%(%)")
    end
    assert.error_matches(function() return x < 1 end, "compare") -- Lua's own: it asks no metamethod for these
    for _, compare in ipairs { function() return x <= y end, function() return x >= y end } do
      assert.error_matches(compare, "cannot compare tensors by <= and >=.*a:le%(b%).*a:item%(%) <= b:item%(%)")
    end
    assert.error_matches(function() return x .. "text" end, "cannot concatenate a tensor; x:item")
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
    assert.equal(6, x[2]:storage_size())
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
    local image = lm.ones(1, 2, 3, 3)
    assert.same({ 18, 1, 6, 2 }, image:float({ memory_format = "channels_last" }):stride())
    assert.same({ 18, 1, 6, 2 }, image:half("channels_last"):stride())
    assert.same({ 18, 9, 3, 1 }, image:half("channels_last"):double("contiguous"):stride())
    assert.same({ 18, 1, 6, 2 }, image:half("channels_last"):double("preserve"):stride())
    assert.error_matches(function() x:float(3) end,
      "^float: memory_format must be one of 'preserve', 'contiguous', 'channels_last', got 3$")
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
    assert.error_matches(function() x:to() end, "to: argument 1 is missing")
    assert.error_matches(function() x:to { copi = true } end, "to: unknown option 'copi'; did you mean 'copy'")
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

describe("where", function()
  it("of two numbers gives the default dtype, whether they are whole or not", function()
    local mask = lm.tensor { 1, 0 }:bool()
    for _, pair in ipairs { { 1, -1 }, { 0.5, 0 }, { 1, 0.5 } } do
      assert.equal("float32", lm.where(mask, unpack(pair)).dtype)
    end
    assert.equal("int64", lm.where(mask, lm.tensor({ 1, 2 }, { dtype = "int64" }), 0).dtype)
  end)
end)

describe("PyTorch's other names", function()
  it("are the ops", function()
    local x = lm.tensor { -2, 0.5, 3 }
    for _, pair in ipairs { { "absolute", "abs" }, { "negative", "neg" }, { "arctan", "atan" }, { "sgn", "sign" },
      { "fix", "trunc" } } do
      assert.same(x[pair[2]](x):totable(), x[pair[1]](x):totable())
      assert.same(lm[pair[2]](x):totable(), lm[pair[1]](x):totable())
    end
    assert.same({ -1, 0.5, 1 }, x:clip(-1, 1):totable())
    assert.same({ -4, 1, 6 }, lm.multiply(x, 2):totable())
    assert.same({ -1, 0.25, 1.5 }, x:true_divide(2):totable())
    assert.same({ 3, 2 }, lm.concat({ lm.zeros(1, 2), lm.zeros(2, 2) }):size())
    assert.same({ 4, 3 }, lm.zeros(3, 4):swapaxes(1, 2).shape)
    local y = x:clone()
    assert.equal(y, y:clip_(-1, 1))
    assert.same({ -1, 0.5, 1 }, y:totable())
    assert.matches("Limits the elements", lm.help "x:clip")
  end)

  it("float_power is in float64, ravel one dim", function()
    local y = lm.tensor({ 2, 4 }, { dtype = "int64" }):float_power(-1)
    assert.same({ { 0.5, 0.25 }, "float64" }, { y:totable(), y.dtype })
    assert.same({ 2, 16 }, lm.float_power(2, lm.tensor { 1, 4 }):totable())
    assert.same({ 4, 9 }, lm.tensor({ 2, 3 }):float_power(2):totable())
    assert.equal("float64", lm.tensor({ 2, 3 }):float_power(2).dtype)
    assert.same({ 1, 2, 3, 4 }, lm.tensor({ { 1, 2 }, { 3, 4 } }):ravel():totable())
    assert.same({ 1 }, lm.tensor(3):ravel().shape)
  end)
end)

describe("a list of values", function()
  it("holds no options", function()
    for name, v in pairs { dtype = "int64", device = "cpu", requires_grad = true } do
      assert.error_matches(function() lm.tensor { 1, 2, [name] = v } end,
        "tensor: " .. name .. " is an option; pass it in a table at the end, lm.tensor%({…}, {" .. name)
    end
  end)
end)

describe("int8, int16 and uint16", function()
  it("are made by name, by Torch's constructors and by casts, which wrap", function()
    assert.same({ { 2 }, "int8", "cpu" }, facts(lm.CharTensor { 1, -1 }))
    assert.same({ { 2, 3 }, "int16", "cpu" }, facts(lm.ShortTensor(2, 3)))
    assert.equal("int16", lm.ones({ 2 }, { dtype = "short" }).dtype)
    local x = lm.tensor { 127, 128, -129, 40000, 65536 + 7 }
    assert.same({ 127, -128, 127, 64, 7 }, x:char():totable())
    assert.same({ 127, 128, -129, 40000 - 65536, 7 }, x:short():totable())
    assert.same({ 127, 128, 65536 - 129, 40000, 7 }, x:to("uint16"):totable())
    for dtype, past in pairs { int8 = 128, int16 = -32769, uint16 = -1 } do
      assert.error_matches(function() lm.tensor({ 1, past }, { dtype = dtype }) end,
        ("tensor: %%[2%%] must be within the range of %s, got %%%d"):format(dtype, past):gsub("%%(%d)", "%1"))
    end
  end)

  it("lie in memory as C's types do", function()
    for dtype, ctype in pairs { int8 = "int8_t", int16 = "int16_t", uint16 = "uint16_t" } do
      local x = lm.tensor({ 1, 100, 7 }, { dtype = dtype })
      local p = ffi.cast(ctype .. " *", x:data_ptr())
      assert.same({ 1, 100, 7 }, { p[0], p[1], p[2] })
      p[1] = -3
      assert.equal(dtype == "uint16" and 65533 or -3, x[2])
      assert.equal(ffi.sizeof(ctype), x.itemsize)
    end
  end)

  it("compute as integers that wrap, and promote to the first dtype that holds both", function()
    local a, b = lm.tensor({ 100, -3 }, { dtype = "int8" }), lm.tensor({ 100, 2 }, { dtype = "int8" })
    assert.same({ -56, -1 }, (a + b):totable())
    assert.equal("int8", (a * 2).dtype)
    assert.equal("float32", (a * 0.5).dtype)
    assert.same({ 200, -1 }, (a + b:short()):totable())
    assert.same({ "int16", 356 }, { (a + lm.tensor({ 256, 0 }, { dtype = "int16" })).dtype,
      (a + lm.tensor({ 256, 0 }, { dtype = "int16" }))[1] })
    assert.equal("int16", (a + b:byte()).dtype)
    local u = lm.tensor({ 65535, 1 }, { dtype = "uint16" })
    assert.same({ 0, 2 }, (u + 1):totable())
    for other, want in pairs { uint8 = "uint16", int8 = "int32", int16 = "int32", int32 = "int32", int64 = "int64",
      bool = "uint16", float16 = "float16" } do
      assert.equal(want, (u + lm.ones({ 2 }, { dtype = other })).dtype, other)
    end
    assert.same({ 65535, 1, 65536 }, { u:max():item(), u:argmin():item() - 1, u:sum():item() })
    assert.same({ 65535, 1 }, u:topk(2):totable())
    assert.same({ 1, 65535, 1 }, lm.cat({ u:slice(1, 2, 2), u }):totable())
    assert.same({ { 1, -1 }, -3 }, { a:sign():totable(), a[2] })
    assert.same({ { 2, 4 }, "int16" }, { lm.tensor({ { 1, 1 }, { 2, 2 } }, { dtype = "int16" })
      :matmul(lm.ones({ 2 }, { dtype = "int16" })):totable(), lm.ones({ 2, 2 }, { dtype = "int16" })
      :matmul(lm.ones({ 2 }, { dtype = "int16" })).dtype })
    assert.same({ -3, 100 }, { a:min():item(), a:max():item() })
    assert.matches("dtype=int8", tostring(a))
  end)
end)

-- Results above 3 MiB (spec/support/helper.lua) are written past the caches, line by line; smaller ones are not.
describe("a result too large for the caches", function()
  local n = 900003
  local whole = lm.randn(n + 1):mul_(100)
  local x, row = whole:narrow(1, 2, n), lm.randn(3) -- behind a line's beginning

  local function same_as_in_parts(f, ...)
    local inputs, expected = { ... }, {}
    for first = 1, n, 100001 do
      local part = {}
      for k, t in ipairs(inputs) do part[k] = t:narrow(1, first, math.min(100001, n - first + 1)) end
      expected[#expected + 1] = f(unpack(part))
    end
    assert.is_true(f(...):equal(lm.cat(expected, 1)))
  end

  it("is that of its parts: the same dtype, another, and a broadcast row", function()
    same_as_in_parts(function(a, b) return a + b end, x, x:flip(1))
    same_as_in_parts(function(a) return a:clone() end, x)
    same_as_in_parts(function(a) return a:double() end, x)
    same_as_in_parts(function(a) return a:long() end, x)
    same_as_in_parts(function(a) return a:relu() end, x:double())
    same_as_in_parts(function(a) return a * row end, x:view(-1, 1))
  end)

  it("is that of its rows where those end within a line and inputs are broadcast", function()
    for _, width in ipairs { 77, 1001, 5003 } do -- the last: more than tiles have copies of
      local rows = math.floor(n / width)
      for _, dtype in ipairs { "float32", "float64", "bfloat16", "int32" } do
        local a = whole:narrow(1, 2, rows * width):view(rows, width):to(dtype)
        local r, column = lm.randn(width):mul_(9):to(dtype), lm.randn(rows, 1):mul_(9):to(dtype)
        local sum, product, written = a + r, a * column, lm.zeros({ rows, width + 3 }, { dtype = dtype })
        written:narrow(2, 2, width):copy_(a):add_(r)
        for _, i in ipairs { 1, 2, 17, rows - 1, rows } do
          assert.is_true(sum[i]:equal(a[i] + r))
          assert.is_true(product[i]:equal(a[i] * column[i]:expand(width)))
          assert.is_true(written[i]:narrow(1, 2, width):equal(a[i] + r))
        end
        assert.is_true(sum:equal((a:t():contiguous() + r:unsqueeze(2)):t()))
      end
    end
  end)

  it("may lie anywhere and be one of the inputs", function()
    local y = lm.zeros(n + 2)
    local to = y:narrow(1, 2, n)
    to:copy_(x)
    assert.is_true(to:equal(x))
    assert.same({ 0, 0 }, { y[1], y[n + 2] })
    to:add_(x)
    same_as_in_parts(function(a, b) return a - b end, to, x)
    assert.is_true(to:equal(x * 2))
    assert.is_true(y:narrow(1, 2, n):equal(lm.cat({ x, x:narrow(1, 1, 1) }, 1):narrow(1, 1, n) * 2))
  end)

  it("may be of elements of one and two bytes", function()
    local n8 = 3400007
    local x8 = lm.randint(-100, 100, { n8 + 1 }, { dtype = "int8" }):narrow(1, 2, n8)
    local y8 = x8:flip(1)
    for _, f in ipairs {
      function(a, b) return a + b end, function(a, b) return a:eq(b) end, function(a) return a:clamp(-3, 20) end,
      function(a) return a:short() end, function(a) return a:gt(0):logical_and(a:gt(-20)) end,
    } do
      local all, expected = f(x8, y8), {}
      for first = 1, n8, 1000001 do
        local length = math.min(1000001, n8 - first + 1)
        expected[#expected + 1] = f(x8:narrow(1, first, length), y8:narrow(1, first, length))
      end
      assert.is_true(all:equal(lm.cat(expected, 1)))
    end
  end)
end)

-- The same of ops that make such results in tiles: each is that of its halves, which are smaller, or of another way.
describe("a large result of an op that", function()
  local F = lm.nn.functional
  local rows, width = 1310, 700 -- 3.5 MiB
  local x, g = lm.randn(rows, width), lm.randn(rows, width)

  local function near(expected, got)
    assert.same(expected.shape, got.shape)
    assert.is_true(got:double():allclose(expected:double(), { rtol = 1e-4, atol = 1e-4 }))
  end
  local function same_as_halves(f, of, ...)
    local expected = {}
    for _, part in ipairs { { 1, 600 }, { 601, rows - 600 } } do
      expected[#expected + 1] = f(of:narrow(1, part[1], part[2]), ...)
    end
    assert.is_true(f(of, ...):equal(lm.cat(expected, 1)))
  end

  it("turns, repeats or picks entries", function()
    same_as_halves(function(t) return t:flip(2) end, x)
    same_as_halves(function(t) return t:narrow(2, 1, 1):expand(t.shape[1], width):contiguous() end, x)
    same_as_halves(function(t) return t:narrow(2, 5, 690):clone() end, lm.cat({ x, x }, 1):narrow(1, 1, rows))
    assert.is_true(x:flip(1, 2):equal(x:view(-1)[{ lm.arange(rows * width, 0, -1, { dtype = "int64" }) }]:view_as(x)))
    for _, dtype in ipairs { "float64", "float16", "uint8" } do
      local t = lm.cat({ x, x, x, x }, 1):abs():mul_(20):to(dtype)
      local again = t:flip(1, 2):flip(2):flip(1)
      assert.is_true(again:equal(t))
    end
    local columns, lines = lm.randint(1, width + 1, 699), lm.randint(1, rows + 1, 1311)
    same_as_halves(function(t) return t:index_select(2, columns) end, lm.cat({ x, x }, 1):narrow(1, 1, rows))
    local picked = x:index_select(1, lines)
    for _, k in ipairs { 1, 2, 700, 1311 } do assert.is_true(picked[k]:equal(x[lines[k]])) end
    local at = lm.randint(1, width + 1, { rows, width })
    same_as_halves(function(t) return t:narrow(2, 1, width):gather(2, t:narrow(2, width + 1, width):long()) end,
      lm.cat({ x, at:float() }, 2))
    local mask = x:gt(-2)
    assert.is_true(lm.cat({ x, x }, 1):masked_select(lm.cat({ mask, mask }, 1)):equal(
      lm.cat({ x:masked_select(mask), x:masked_select(mask) }, 1)))
    local table_, named = lm.randn(50, 33), lm.randint(1, 51, { 30000 })
    local looked = F.embedding(named, table_)
    assert.is_true(looked:narrow(1, 1, 10000):equal(F.embedding(named:narrow(1, 1, 10000), table_)))
    assert.is_true(looked:narrow(1, 20001, 10000):equal(F.embedding(named:narrow(1, 20001, 10000), table_)))
  end)

  it("pads by what is there", function()
    local images = lm.randn(2, 30, 123, 131)
    for _, mode in ipairs { "reflect", "replicate", "circular" } do
      for _, pad in ipairs { { 3, 5, 2, 1 }, { 7, -2, -1, 4 } } do
        local whole = F.pad(images, pad, { mode = mode })
        assert.is_true(whole:narrow(1, 2, 1):narrow(2, 5, 3):equal(
          F.pad(images:narrow(1, 2, 1):narrow(2, 5, 3), pad, { mode = mode })))
        local turned = F.pad(images:contiguous { memory_format = "channels_last" }, pad, { mode = mode })
        assert.is_true(whole:equal(turned))
      end
    end
  end)

  it("scans lines, to either side", function()
    for _, dtype in ipairs { "float32", "float64", "int64" } do
      local t = (x * 10):to(dtype)
      same_as_halves(function(part) return part:cumsum(2) end, t)
      same_as_halves(function(part) return part:cumsum(2, { reverse = true }) end, t)
    end
    local line = lm.ones(1000001, { dtype = "int64" })
    assert.is_true(line:cumsum(1):equal(lm.arange(1, 1000002, { dtype = "int64" })))
  end)

  it("scatters, and leaves its inputs alone", function()
    local at, was = lm.randint(1, width + 1, { rows, width }), x:clone()
    local half = at:narrow(1, 1, 600)
    for _, name in ipairs { "scatter", "scatter_add" } do
      local y = x[name](x, 2, at, g)
      assert.is_true(y:narrow(1, 1, 600):equal(x[name](x:narrow(1, 1, 600), 2, half, g:narrow(1, 1, 600))))
      assert.is_true(y:t():equal(x:t()[name](x:t(), 1, at:t(), g:t())))
      assert.is_true(x:equal(was))
      local wide, narrow = at:narrow(2, 1, 300):contiguous(), g:narrow(2, 1, 300):contiguous()
      assert.is_true(x[name](x, 2, wide, narrow):equal(x:clone()[name .. "_"](x:clone(), 2, wide, narrow)))
      at[{ rows, width }] = width + 1
      assert.matches(name .. ": index 701", select(2, pcall(x[name], x, 2, at, g)))
      at[{ rows, width }] = 1
    end
  end)

  it("normalizes", function()
    local weight, bias = lm.randn(width), lm.randn(width)
    local function with_gradients(f, t)
      local own = t:clone():requires_grad_()
      local y = f(own)
      ;(y * g:narrow(1, 1, t.shape[1])):sum():backward()
      return lm.cat({ y:detach(), own.grad }, 2)
    end
    local function alike(f)
      near(lm.cat({ with_gradients(f, x:narrow(1, 1, 600)) }, 1), with_gradients(f, x):narrow(1, 1, 600))
    end
    alike(function(t) return F.layer_norm(t, { width }, weight, bias) end)
    alike(function(t) return F.rms_norm(t, { width }, weight) end)
    alike(function(t) return F.normalize(t, { dim = -1 }) end)
    local scaled = x * (x:square():mean(2, { keepdim = true }) + 1e-5):rsqrt() * weight
    near(scaled, F.rms_norm(x, { width }, weight, 1e-5))
    local half = F.rms_norm(x:half(), { width }, weight:half(), 1e-5)
    assert.equal("float16", half.dtype)
    assert.is_true(half:float():allclose(scaled, { rtol = 1e-2, atol = 1e-2 }))
    alike(function(t) return F.group_norm(t, 7, lm.ones(width), lm.zeros(width)) end)
    local images, per_channel = x:view(10, 7, 131, 100), lm.randn(7)
    for _, format in ipairs { "contiguous", "channels_last" } do
      local i = images:contiguous { memory_format = format }:clone():requires_grad_()
      local y = F.batch_norm(i, lm.zeros(7), lm.ones(7), per_channel, per_channel, true)
      ;(y * g:view_as(y)):sum():backward()
      local d = images:double():requires_grad_()
      local z = F.batch_norm(d, lm.zeros(7, { dtype = "float64" }), lm.ones(7, { dtype = "float64" }),
        per_channel:double(), per_channel:double(), true)
      ;(z * g:view_as(z)):sum():backward()
      near(z:detach(), y:detach())
      near(d.grad, i.grad)
    end
  end)
end)

describe("rare methods", function()
  local files = {
    "products", "quantiles_and_unique", "indexing", "shape_ops", "derived_functions", "integrals_and_histograms",
  }

  it("load their file when one is first called, and are its functions from then on", function()
    local pipe = io.popen [[luajit -e '
      local lm = require "luminary"
      local name = "luminary.tensor.quantiles_and_unique"
      local before = package.loaded[name]
      local got = lm.tensor({1, 4}):diff():item()
      local diff = package.loaded[name].diff
      print(before, got, rawget(lm.core.methods, "diff") == diff, lm.diff == diff)
    ' 2>&1]]
    local text = pipe:read "*a"
    pipe:close()
    assert.equal("nil\t3\ttrue\ttrue\n", text)
  end)

  it("are all that their files have, with the functions of lm", function()
    local later = getmetatable(lm).lazy()
    for _, file in ipairs(files) do
      for name in pairs(require("luminary.tensor." .. file)) do
        local inner = file == "products" and name == "multi_dot" -- lm.linalg has it
        assert.is_true(inner or later[name] ~= nil or rawget(lm.core.methods, name) ~= nil, file .. "." .. name)
      end
    end
  end)
end)

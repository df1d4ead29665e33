-- Tensors print as PyTorch's do, in Lua's spelling; lm.repr prints the tables around them.
local lm = require "luminary"
local cases = dofile "spec/golden/print.lua"

local function T(values, dtype) return lm.tensor(values, { dtype = dtype or "float32" }) end

describe("tostring", function()
  it("is what PyTorch prints", function()
    local env = { lm = lm, T = T, nan = 0 / 0, inf = math.huge }
    local unnamed = { float32 = true, int64 = true, bool = true } -- dtypes that values of their kind have
    local wrong, count = {}, 0
    local function check(expression, want)
      local got = tostring(setfenv(assert(loadstring("return " .. expression)), env)())
      if got ~= want then wrong[#wrong + 1] = ("%s\nprinted\n%s\ninstead of\n%s"):format(expression, got, want) end
      count = count + 1
    end
    for _, case in ipairs(cases) do
      local expression, text, dtypes = unpack(case)
      if not dtypes then check(expression, text) end
      for dtype in (dtypes or ""):gmatch "%S+" do
        -- PyTorch names the dtype of an empty tensor unless it is float32.
        local named = not unnamed[dtype] or text:find "%[%]" and dtype ~= "float32"
        check(expression:format(dtype), named and text:gsub("%)$", ", dtype=" .. dtype .. ")") or text)
      end
    end
    assert(count > 150, count)
    assert(#wrong == 0, ("%d of %d print otherwise:\n%s"):format(#wrong, count, table.concat(wrong, "\n\n")))
  end)

  it("names a device other than cpu", function()
    assert.equal("tensor([1., 2.], device=cpu:1)", tostring(lm.tensor({ 1, 2 }, { device = "cpu:1" })))
    assert.equal("tensor([1., 2.])", tostring(lm.tensor({ 1, 2 }, { device = "cpu:0" })))
    assert.equal("tensor([1., 2.], device=cpu:3, dtype=float64)",
      tostring(lm.tensor({ 1, 2 }, { device = "cpu:3", dtype = "float64" })))
  end)

  it("tells what records a graph", function()
    local x = lm.tensor({ 1, 2 }, { requires_grad = true })
    assert.equal("tensor([1., 2.], requires_grad=true)", tostring(x))
    assert.matches("^tensor%(%[2%., 4%.%], grad_fn=<.*mul.*>%)$", tostring(x * 2):lower())
    assert.equal("tensor([2., 4.])", tostring((x * 2):detach()))
    lm.no_grad(function() assert.equal("tensor([2., 4.])", tostring(x * 2)) end)
  end)

  it("shows the values, whatever the strides", function()
    local x = lm.arange(24):float():reshape(2, 3, 2, 2)
    assert.equal(tostring(x), tostring(x:contiguous { memory_format = "channels_last" }))
    assert.equal(tostring(x[{ {}, 2 }]:clone()), tostring(x[{ {}, 2 }]))
    assert.equal("tensor([0., 4., 8.])", tostring(x[{ 1, {}, 1, 1 }]))
  end)

  it("takes integers of 64 bits", function()
    local x = lm.tensor({ 9223372036854775807LL, -9223372036854775807LL - 1 }, { dtype = "int64" })
    assert.equal("tensor([ 9223372036854775807, -9223372036854775808])", tostring(x))
  end)

  it("tells why a tensor is gone", function()
    local x = lm.ones(2)
    x:free()
    assert.matches("free", tostring(x))
  end)
end)

describe("lm.repr", function()
  it("shows plain values as Lua writes them", function()
    assert.equal("3", lm.repr(3))
    assert.equal('"a\\"b\\n"', lm.repr('a"b\n'))
    assert.equal("true", lm.repr(true))
    assert.equal("nil", lm.repr(nil))
  end)

  it("shows tables on one line where they fit, lists first, then sorted keys", function()
    assert.equal("{}", lm.repr {})
    assert.equal('{1, 2, {3, "x"}}', lm.repr { 1, 2, { 3, "x" } })
    assert.equal('{1, a = 2, b = {c = true}, ["two words"] = 3}',
      lm.repr { ["two words"] = 3, b = { c = true }, a = 2, 1 })
    assert.equal("{[0] = 1, [2.5] = 2}", lm.repr { [2.5] = 2, [0] = 1 })
  end)

  it("breaks long tables into lines", function()
    local long = {}
    for k = 1, 60 do long[k] = k * 1000 end
    local text = lm.repr { long = long }
    assert.matches("\n", text)
    assert.same({ long = long }, loadstring("return " .. text)())
  end)

  it("prints what it shows so that Lua reads it back", function()
    local value = { 1, "two", { three = 3, [4.5] = "x", deep = { deeper = { -1, 0.5 } } }, ["a key"] = false }
    assert.same(value, loadstring("return " .. lm.repr(value))())
  end)

  it("shows tensors inside, indented", function()
    assert.equal("{x = tensor([1., 2.])}", lm.repr { x = lm.tensor { 1, 2 } })
    local text = lm.repr { a = { lm.eye(2) }, b = 1 }
    assert.matches("tensor%(%[%[1%., 0%.%],\n%s+%[0%., 1%.%]%]%)", text)
    assert.matches("b = 1", text)
    assert.equal("{\n  long = tensor([[1., 0.],\n                 [0., 1.]]),\n}", lm.repr { long = lm.eye(2) })
    assert.equal("{\n  net = Sequential(\n    (0): ReLU()\n  ),\n}", lm.repr { net = lm.nn.Sequential(lm.nn.ReLU()) })
    assert.equal(tostring(lm.eye(2)), lm.repr(lm.eye(2)))
  end)

  it("takes a line per entry where the table is wider than asked for", function()
    assert.equal("{11, 12, 13}", lm.repr({ 11, 12, 13 }, nil, 12))
    assert.equal("{\n  11,\n  12,\n  13,\n}", lm.repr({ 11, 12, 13 }, nil, 11))
    assert.error_matches(function() lm.repr({}, 1, 0) end, "^repr: width must be an integer of at least 1, got 0$")
  end)

  it("shows as many entries as it is asked for, and how many more there are", function()
    assert.equal("{1, 2, … (1 more)}", lm.repr({ 1, 2, 3 }, 2))
    assert.equal("{1, 2, 3}", lm.repr({ 1, 2, 3 }, 3))
    assert.equal("{1, a = {2, 3, … (1 more)}, … (1 more)}", lm.repr({ 1, a = { 2, 3, 4 }, b = 2 }, 2))
    assert.equal("{{1}, {1}, … (2 more)}", lm.repr({ { 1 }, { 1 }, { 1 }, { 1 } }, 2))
    assert.error_matches(function() lm.repr({}, 0) end, "^repr: max_entries must be an integer of at least 1, got 0$")
    assert.error_matches(function() lm.repr({}, 1, 2, 3) end,
      "^repr: takes at most 3 arguments, got 4: value, max_entries, width$")
  end)

  it("stops at a table that holds itself", function()
    local t = { 1 }
    t.self = t
    assert.equal("{1, self = {…}}", lm.repr(t))
    local shared = { 5 }
    assert.equal("{{5}, {5}}", lm.repr { shared, shared })
  end)
end)

describe("sizes", function()
  it("are asked from the end too, and never for what is not there", function()
    local x = lm.ones(2, 3)
    assert.equal(3, x.shape[-1])
    assert.equal(2, x:size()[-2])
    for _, i in ipairs { 0, 3, -3, 1.5 } do
      assert.error_matches(function() return x.shape[i] end,
        "dim " .. tostring(i):gsub("[-.]", "%%%0") .. " is out of range for sizes {2, 3}; dims start at 1")
    end
    assert.is_nil(x.shape.name)
    local changed = x.shape
    changed[1], changed[2] = nil, changed
    assert.equal("{nil, {…}}", tostring(changed))
    assert.is_false(x.shape == lm.ones(2, 3, 4).shape)
    assert.equal("2 3", table.concat({ unpack(x.shape) }, " "))
  end)
end)

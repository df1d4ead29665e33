-- lm.fuse: the same bits as eager, whatever the ops, dtypes, layouts and sizes; values on time for whoever looks.
local lm = require "luminary"
local ffi = require "ffi"
local F = lm.nn.functional

local function bits(x)
  x = x:contiguous()
  return x:numel() == 0 and "" or ffi.string(ffi.cast("const char *", x:data_ptr()), x:numel() * x:element_size())
end

local function check_same(what, want, got)
  assert(table.concat(want.shape, ",") == table.concat(got.shape, ","), what .. ": shape")
  assert(want.dtype == got.dtype, what .. ": dtype " .. want.dtype .. ", got " .. got.dtype)
  assert(table.concat(want:stride(), ",") == table.concat(got:stride(), ","), what .. ": strides")
  assert(bits(want) == bits(got), what .. ": other bits")
end

-- Calls f and its fused form, and compares all results.
local function check(what, f, ...)
  local want, got = { f(...) }, { lm.fuse(f)(...) }
  assert(#want == #got, what .. ": number of results")
  for i = 1, #want do check_same(("%s, result %d"):format(what, i), want[i], got[i]) end
end

-- A tile has 512 to 4096 elements, a vector at most 16; more threads than one come from some thousand.
local sizes = { 0, 1, 15, 16, 17, 511, 512, 513, 528, 1024, 1025, 2047, 4096, 4103, 5003, 70001 }

local floats = { "float32", "float64", "bfloat16", "float16" }
local integers = { "uint8", "int8", "int16", "int32", "int64" }

local function values(n, dtype)
  if dtype == "bool" then return lm.rand(n):gt(0.5) end
  if dtype:find "int" then return lm.randint(dtype == "uint8" and 0 or -100, 100, { n }):to(dtype) end
  return (lm.randn(n) * 3):to(dtype)
end

local chains = {
  arithmetic = function(x, y) return (x * y + x - 1) * 0.5 end,
  several = function(x, y)
    local s = x + y
    local d = x - y
    return s * d, s, d:abs()
  end,
  square = function(x) return x * x * x end,
  unused = function(x, y)
    local _ = x:exp()
    return x + y
  end,
  tests = function(x, y) return x:gt(y):logical_and(x:lt(3)), x:maximum(y):clamp(-1, 2) end,
  choice = function(x, y) return lm.where(x:gt(0), x * y, y - 1) end,
  forms = function(x, y)
    local gelu = F.gelu(x - y, { approximate = "tanh" })
    return x:div(y, { rounding_mode = "floor" }) - 1, x:clamp(-1, 1):pow(2) - y, gelu * 2,
      (x - y):logical_xor(x:gt(0)), x:clamp(y - 1, y + 1) - 3
  end,
  mixed = function(x, y) return (x:double() + y) * x, x:gt(0) * y end,
}

describe("lm.fuse", function()
  it("has the bits of eager for floats of each size", function()
    lm.manual_seed(1)
    for name, f in pairs(chains) do
      for _, n in ipairs(sizes) do
        check(name .. " of " .. n, f, values(n, "float32"), values(n, "float32"))
      end
    end
  end)

  it("has the bits of eager for each dtype and pair of them", function()
    lm.manual_seed(2)
    local all = { "bool" }
    for _, list in ipairs { floats, integers } do
      for _, dtype in ipairs(list) do all[#all + 1] = dtype end
    end
    for _, a in ipairs(all) do
      for _, b in ipairs(all) do
        check(a .. " and " .. b, function(x, y) return (x + y) * y, (x + y):eq(y) end, values(1300, a), values(1300, b))
      end
    end
  end)

  it("has the bits of eager for every elementwise function of one tensor", function()
    lm.manual_seed(3)
    local count = 0
    for _, name in ipairs { "abs", "neg", "exp", "expm1", "log", "log1p", "sqrt", "rsqrt", "sin", "cos", "tanh",
      "sigmoid", "erf", "floor", "ceil", "round", "trunc", "sign", "reciprocal", "square", "relu", "isnan" } do
      for _, dtype in ipairs(floats) do
        check(name .. " of " .. dtype, function(x) return (lm[name](x * 2) + 1):mul(x) end, values(777, dtype))
        count = count + 1
      end
    end
    for _, name in ipairs { "gelu", "silu", "softplus", "leaky_relu", "elu", "hardswish", "mish", "logsigmoid" } do
      check(name, function(x) return F[name](x + 1) * x end, values(1111, "float32"))
      count = count + 1
    end
    assert(count == 22 * 4 + 8)
  end)

  it("has the bits of eager for broadcasts, views, permuted and channels-last inputs", function()
    lm.manual_seed(4)
    local x, row, column, number = lm.randn(37, 53), lm.randn(53), lm.randn(37, 1), lm.tensor(1.5)
    local function f(a, b, c, d) return ((a * b + c) * d):relu() - a end
    check("rows and columns", f, x, row, column, number)
    check("a broadcast result", f, row, x, column, number)
    check("transposed", f, lm.randn(53, 37):t(), row, column, number)
    check("a part", f, lm.randn(40, 60):narrow(1, 2, 37):narrow(2, 5, 53), row, column, number)
    check("every other", f, lm.randn(37, 106)[{ {}, { 1, 106, 2 } }], row, column, number)
    check("expanded", f, row:expand(37, 53), row, column, number)
    local image = lm.randn(2, 5, 11, 13):contiguous { memory_format = "channels_last" }
    check("channels last", f, image, lm.randn(5, 1, 1), lm.randn(2, 1, 11, 13), number)
    check("sizes that change", function(a, b) return (lm.cat { b, b } * 2 + 1):exp(), (a * 2 + b):tanh() end, x,
      lm.randn(37, 53))
    check("a bias of more than a tile", function(a, b) return a * (b * 2 + 1) + b end, lm.randn(3, 1000),
      lm.randn(1000))
  end)

  it("has values for whoever looks before the end", function()
    local x = lm.randn(3000)
    check("a sum", function(a) return (a * 2 + 1):sum(), a * 3 end, x)
    check("a number", function(a)
      local y = a * 2
      return y + y:max():item()
    end, x)
    check("a view", function(a)
      local y = a * 2
      return y:view(30, 100) + 1, y
    end, x)
    check("a branch", function(a)
      local y = a + 1
      if y[7] > 0 then return y * 2 end
      return y * 3
    end, x)
    check("a table", function(a)
      local list = {}
      for i = 1, 40 do list[i] = (list[i - 1] or a) * 1.01 + i end
      return lm.stack(list)
    end, x)
    local t = lm.fuse(function(a) return { a + 1, deep = { a * 2 } } end)(x)
    check_same("in a table", x + 1, t[1])
    check_same("deep in a table", x * 2, t.deep[1])
    local closure = lm.fuse(function(a)
      local y = a + 1
      return function() return y end
    end)(x)
    check_same("in a closure", x + 1, closure())
  end)

  it("sees what an input was when the op was called", function()
    local x = lm.randn(3000)
    local function f(a)
      local y = a * 2
      a:add_(1)
      local z = a * 2
      a[1] = 5
      return y, z, a + 0
    end
    local want, got = { f(x:clone()) }, { lm.fuse(f)(x:clone()) }
    for i = 1, 3 do check_same("result " .. i, want[i], got[i]) end
    check("a write to a result", function(a)
      local y = a * 2
      local z = y + 1
      y:mul_(3)
      return y, z, y + z
    end, x)
  end)

  it("computes chains of any length, and in one another", function()
    local x = lm.randn(2000)
    check("a long one", function(a)
      local y = a
      for i = 1, 100 do y = y * 0.9 + i * 0.1 end
      return y
    end, x)
    local inner = lm.fuse(function(a) return a * 2 + 1, 7 end)
    local y = lm.fuse(function(a)
      local b, seven = inner(a - 1)
      return b * seven
    end)(x)
    check_same("nested", ((x - 1) * 2 + 1) * 7, y)
  end)

  it("records gradients as eager does", function()
    local x = lm.randn({ 2000 }, { requires_grad = true })
    local function f(a) return ((a * 2 + 1):tanh() * a):sum() end
    f(x):backward()
    local want = x.grad:clone()
    x.grad = nil
    lm.fuse(f)(x):backward()
    check_same("gradient", want, x.grad)
    lm.no_grad(function() check("within no_grad", f, x) end)
    local y = lm.autocast({ device_type = "cpu", dtype = "bfloat16" }, lm.fuse(f), x)
    check_same("within autocast", lm.autocast({ device_type = "cpu", dtype = "bfloat16" }, f, x), y)
  end)

  it("passes arguments, results and errors on", function()
    local x = lm.randn(2000)
    local function f(...) return select("#", ...), nil, "text", true, nil end
    assert(select("#", lm.fuse(f)(x, nil, nil)) == 5 and lm.fuse(f)(x, nil, nil) == 3)
    local kept
    local ok, why = pcall(lm.fuse(function(a)
      kept = a * 2 + 1
      return kept + lm.randn(3, 5)
    end), x)
    assert(not ok and why:find("add: ", 1, true), why)
    check_same("kept at an error", x * 2 + 1, kept)
    for _, wrong in ipairs { x, lm.nn.Linear, {}, "f" } do
      local taken, message = pcall(lm.fuse, wrong)
      assert(not taken and message:find("fuse: f must be a function or a module, got ", 1, true), message)
    end
    local _, absent = pcall(lm.fuse)
    assert(absent:find("fuse: f is missing; expected a function or a module", 1, true), absent)
    local _, division = pcall(lm.fuse(function(a) return (a + 1):remainder(a - a) end), lm.ones(2000):long())
    local _, eager = pcall(function(a) return (a + 1):remainder(a - a) end, lm.ones(2000):long())
    assert(division:gsub("^.-: ", "") == eager:gsub("^.-: ", ""), division)
  end)

  it("runs the forward pass of a module", function()
    local Net, waited = lm.nn.Module:extend("Net"), nil
    function Net:init() self.scale = lm.nn.Parameter(lm.randn(2000)) end
    function Net:forward(a, b)
      local y = a * self.scale
      waited = y
      return (y + b):tanh() * 2
    end
    local net, x, y = Net(), lm.randn(2000), lm.randn(2000)
    lm.no_grad(function() check_same("a module", net(x, y), lm.fuse(net)(x, y)) end)
    lm.no_grad(function() lm.fuse(net)(x, y) end)
    local ok, why = pcall(function() return waited + 1 end)
    assert(not ok and why:find("was never computed", 1, true), why) -- the call ran under fusion
    lm.fuse(net)(x, y):sum():backward()
    local grad = net.scale.grad:clone()
    net:zero_grad()
    net(x, y):sum():backward()
    check_same("its gradient", net.scale.grad, grad)
  end)

  it("says what a result is that it never computed", function()
    local left, spared
    local y = lm.fuse(function(a)
      left, spared = a * 2, lm.keep(a * 3)
      return left + spared
    end)(lm.ones(2000))
    assert(y[1] == 5 and spared[1] == 3)
    -- lm.keep looked at both.
    assert(left[1] == 2)
    lm.fuse(function(a)
      left = a * 2
      return left + 1
    end)(lm.ones(2000))
    local ok, why = pcall(function() return left + 1 end)
    assert(not ok and why:find("was never computed", 1, true), why)
  end)

  it("leaves no tensor behind", function()
    collectgarbage()
    collectgarbage()
    local before = lm.live_tensors()
    for _ = 1, 50 do lm.fuse(chains.several)(lm.randn(1000), lm.randn(1000)) end
    collectgarbage()
    collectgarbage()
    assert(lm.live_tensors() == before, lm.live_tensors() - before)
  end)

  it("survives the collector in the middle", function()
    check("collected", function(a)
      local y = a
      for i = 1, 30 do
        y = y + i
        if i % 3 == 0 then collectgarbage() end
      end
      return y
    end, lm.randn(2000))
  end)
end)

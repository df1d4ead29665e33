-- Elementwise ops in a row of a plan: the bits of the ops one by one, whatever the ops, dtypes, layouts and sizes.
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

-- Calls f and its plan, and compares all results.
local function check(what, f, ...)
  local run, state = lm.prepare(f, ...)
  local want, got = { f(...) }, { run(...) }
  assert(not state.reason, state.reason)
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

describe("Elementwise ops in a row of a plan", function()
  it("have the bits of eager for floats of each size", function()
    lm.manual_seed(1)
    for name, f in pairs(chains) do
      for _, n in ipairs(sizes) do
        check(name .. " of " .. n, f, values(n, "float32"), values(n, "float32"))
      end
    end
  end)

  it("have the bits of eager for each dtype and pair of them", function()
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

  it("have the bits of eager for every elementwise function of one tensor", function()
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

  it("have the bits of eager for broadcasts, views, permuted and channels-last inputs", function()
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

  it("have values for ops of other kinds, and for results", function()
    local x = lm.randn(3000)
    check("a sum", function(a) return (a * 2 + 1):sum(), a * 3 end, x)
    check("a view", function(a)
      local y = a * 2 + 1
      return y:view(30, 100) + 1, y
    end, x)
    check("a list", function(a)
      local list = {}
      for i = 1, 40 do list[i] = (list[i - 1] or a) * 1.01 + i end
      return lm.stack(list)
    end, x)
    check("a write to a result", function(a)
      local y = a * 2
      local z = y + 1
      y:mul_(3)
      return y, z, y + z
    end, x)
    check("a row of more ops than a chain has", function(a)
      local y = a
      for i = 1, 100 do y = y * 0.9 + i * 0.1 end
      return y
    end, x)
    local run = lm.prepare(function(a) return { a + 1, deep = { a * 2 } } end, x)
    check_same("in a table", x + 1, run(x)[1])
    check_same("deep in a table", x * 2, run(x).deep[1])
  end)

  it("are marked in the list of the plan's ops; ops of other kinds end a row", function()
    local function f(a, b)
      local y = (a * b + 1):square()
      local z = y:sum(1, true) * 0.5 - a
      return z:add_(b):exp()
    end
    local _, state = lm.prepare(f, lm.randn(3, 700), lm.randn(3, 700))
    assert.same({"mul", "+add", "+square", "sum", "mul", "+sub", "+add", "+exp"}, state.plan:ops())
  end)

  it("raise errors as the ops do one by one, and compute later calls", function()
    local function f(a, b) return (a + 1):remainder(b) * 2 end
    local a, b = lm.ones(2000):long(), lm.ones(2000):long()
    local run = lm.prepare(f, a, b)
    local ok, division = pcall(run, a, b * 0)
    local _, eager = pcall(f, a, b * 0)
    assert(not ok and division:gsub("^.-: ", "") == eager:gsub("^.-: ", ""), division)
    check_same("after an error", f(a, b), run(a, b))
  end)

  it("run in a module's forward, with values that change", function()
    local Net = lm.nn.Module:extend("Net")
    function Net:init() self.scale = lm.nn.Parameter(lm.randn(2000)) end
    function Net:forward(a, b) return (a * self.scale + b):tanh() * 2 end
    local net = Net():eval()
    local run = lm.prepare(net)
    for _ = 1, 3 do
      local x, y = lm.randn(2000), lm.randn(2000)
      check_same("a module", lm.no_grad(function() return net(x, y) end), run(x, y))
    end
  end)

  it("leave no tensor behind", function()
    jit.off() -- compiled code may hold a tensor of a call that has ended
    finally(jit.on)
    local run = lm.prepare(chains.several, lm.randn(1000), lm.randn(1000))
    collectgarbage()
    collectgarbage()
    local before = lm.live_tensors()
    for _ = 1, 50 do run(lm.randn(1000), lm.randn(1000)) end
    collectgarbage()
    collectgarbage()
    assert(lm.live_tensors() == before, lm.live_tensors() - before)
  end)
end)

-- Elementwise ops, copies, fills, reductions, softmax and losses: the CUDA device against the CPU, on random sizes,
-- dtypes and layouts. LM_TEST_LONG=1 takes many more. compare_more_spec.lua has the other families.
local lm = require "luminary"
local core = require "luminary.core"
if core.device_count("cuda") == 0 then return end
local compare = require "spec.support.compare"

local F = lm.nn.functional
local random, one_of, same, twin = math.random, compare.one_of, compare.same, compare.twin
local dtypes = {
  "bool", "uint8", "int8", "int16", "uint16", "int32", "int64", "float16", "bfloat16", "float32", "float64",
}

local function describe_tensor(x, view) return ("%s [%s] %s"):format(x.dtype, table.concat(x.shape, ", "), view) end

local function tolerance(dtype, units) return (compare.tolerance[dtype] or 0) * (units or 1) end

-- Returns a random view of random numbers, and what it is.
local function some(dtype, size)
  local view = one_of(compare.views)
  local x = twin(compare.numbers(dtype, size)):map(function(t) return compare.view(t, view) end)
  return x, describe_tensor(x.here, view)
end

describe("elementwise", function()
  local unary = { "neg", "abs", "sign", "exp", "expm1", "log", "log1p", "sqrt", "rsqrt", "reciprocal", "square", "sin",
    "cos", "tanh", "erf", "sigmoid", "log_sigmoid", "relu", "relu6", "leaky_relu", "gelu", "gelu_tanh", "silu",
    "softplus", "floor", "ceil", "round", "trunc", "logical_not", "isnan", "isfinite" }
  local binary = { "add", "sub", "mul", "div", "floor_divide", "remainder", "pow", "maximum", "minimum", "eq", "ne",
    "lt", "le", "gt", "ge", "logical_and", "logical_or" }

  local function size()
    return one_of { { random(3000) }, { random(40), random(40) }, { 4 * random(20), random(40) },
      { random(5), random(6), random(7), random(8) }, { random(4), 8, random(6), 4 } }
  end

  local function each_binary(x, y, what)
    for _, op in ipairs(binary) do
      if not (y.here:eq(0):any():item() and (op == "floor_divide" or op == "remainder")) then
        same(op .. " of " .. what, nil, function(a, b) return a[op](a, b) end, x, y)
      end
    end
  end

  it("ops of one tensor", function()
    compare.rounds(64, 1000, function(seed)
      local x, what = some(dtypes[seed % #dtypes + 1], size())
      for _, op in ipairs(unary) do
        same(op .. " of " .. what, nil, function(t) return t[op](t) end, x)
      end
      same("clamp of " .. what, 0, function(t) return t:clamp(-1, 2) end, x)
    end)
  end)

  it("ops of two tensors, a tensor and a number, a row, a column", function()
    compare.rounds(64, 1000, function(seed)
      local x, what = some(dtypes[seed % #dtypes + 1], size())
      local other = random() < 0.5 and x.here.dtype or one_of(dtypes)
      local shape, column = x.here.shape, { x.here.shape[1] }
      for d = 2, #shape do column[d] = 1 end
      each_binary(x, twin(compare.numbers(other, shape, 7)), what .. " and " .. other)
      each_binary(x, twin(compare.numbers(other, { shape[#shape] }, 7)), what .. " and a row of " .. other)
      each_binary(x, twin(compare.numbers(other, column, 7)), what .. " and a column of " .. other)
      each_binary(x, twin(compare.numbers(other, {}, 7)), what .. " and one " .. other)
      for _, op in ipairs(binary) do
        same(op .. " of " .. what .. " and 2", nil, function(a) return a[op](a, 2) end, x)
      end
    end)
  end)

  it("ops of three, conversions", function()
    compare.rounds(40, 1000, function()
      local x, what = some(one_of(dtypes), size())
      local shape = x.here.shape
      local mask, y = twin(lm.rand(shape):gt(0.5)), twin(compare.numbers(x.here.dtype, shape))
      same("where of " .. what, 0, function(m, a, b) return lm.where(m, a, b) end, mask, x, y)
      same("masked_fill of " .. what, 0, function(a, m) return a:masked_fill(m, 1) end, x, mask)
      for _, to in ipairs(dtypes) do
        same(what .. " to " .. to, 0, function(a) return a:abs():to_copy({ dtype = to }) end, x)
      end
      same(what .. " made contiguous", 0, function(a) return a:contiguous() end, x)
    end)
  end)

  it("gradients", function()
    for _, op in ipairs { "add", "sub", "mul", "div", "pow", "maximum", "minimum", "remainder" } do
      local a = twin(lm.rand({ 6, 5 }, { dtype = "float64" }) + 0.5)
      local b = twin(lm.rand({ 5 }, { dtype = "float64" }) + 0.5)
      local w = twin(lm.randn({ 6, 5 }, { dtype = "float64" }))
      same("gradients of " .. op, 1e-12, function(g, ...)
        return compare.gradients(function(x, y) return x[op](x, y) end, g, ...)
      end, w, a, b)
    end
    for _, op in ipairs(unary) do
      local x, w = twin(lm.rand({ 33 }) + 0.5), twin(lm.randn({ 33 }))
      same("gradient of " .. op, 1e-5, function(g, t)
        return compare.gradients(function(v) return v[op](v) end, g, t)
      end, w, x)
    end
  end)

  it("of two floating dtypes, and beside a mask, the same to the bit however the memory is aligned", function()
    local function off(t) -- copies t to memory that is one element off
      local n = t:numel()
      return lm.empty({ n + 1 }, { dtype = t.dtype, device = t.device }):narrow(1, 2, n):copy_(t)
    end
    local function check(what, f, a, b)
      local here = f(a, b)
      local there = f(a:cuda(), b:cuda())
      assert.equal(here.dtype, there.dtype)
      assert(lm.equal(here:nan_to_num(7), there:cpu():nan_to_num(7)), what)
      assert(lm.equal(there:nan_to_num(7), f(off(a:cuda()), off(b:cuda())):nan_to_num(7)), what .. " elsewhere")
    end
    for _, n in ipairs { 1, 7, 8, 9, 2047, 2048, 2056, 5001 } do
      local function numbers(dtype)
        local t = lm.randn { n }
        t[1] = one_of { 1, 0, math.huge, 0 / 0 }
        return t:to(dtype)
      end
      for _, pair in ipairs { "float32 bfloat16", "bfloat16 float32", "float32 float16", "float16 float32" } do
        local first, second = pair:match "(%S+) (%S+)"
        local x, y, what = numbers(first), numbers(second), ("of %d, %s"):format(n, pair)
        check("add " .. what, function(a, b) return a + b end, x, y)
        check("add of halves " .. what, function(a, b) return a:add(b, { alpha = 0.5 }) end, x, y)
        check("mul " .. what, function(a, b) return a * b end, x, y)
        if first == "float32" then check("add_ " .. what, function(a, b) return a:clone():add_(b) end, x, y) end
      end
      for _, dtype in ipairs { "float32", "bfloat16", "float16", "float64" } do
        local mask = lm.rand({ n }):gt(0.3)
        check(("dropout_backward of %d, %s"):format(n, dtype), function(a, b)
          return core.ops.dropout_backward(a, b, 1 / 0.7)
        end, numbers(dtype), mask)
      end
    end
  end)

  it("a divisor of 0 is an error, and the device goes on", function()
    local x = lm.tensor({ 4, 5, 6 }, { dtype = "int64" }):cuda()
    assert.error_matches(function() return x:floor_divide(0) end, "division by zero")
    local zero = lm.tensor({ 1, 0, 2 }, { dtype = "int64" }):cuda()
    assert.error_matches(function() return x:remainder(zero):cpu() end, "remainder")
    assert.same({ 5, 6, 7 }, (x + 1):totable())
  end)
end)

describe("copies and fills", function()
  -- Compares copies large enough that transposed ones go through tiles.
  local function copies(dtype)
    local x = twin(compare.numbers(dtype, { 300, 257 }))
    local y = twin(compare.numbers(dtype, { 2, 3, 20, 35, 17 }))
    local z = twin(compare.numbers(dtype, { 3, 32, 20, 30 }))
    local words = twin(compare.numbers(dtype, { 3, 132, 92 }))
    local channels_last = { memory_format = "channels_last" }
    same("turned " .. dtype, 0, function(t) return t:t():contiguous() end, x)
    same("turned by words " .. dtype, 0, function(t) return t:permute(1, 3, 2):contiguous() end, words)
    same("turned to float32 " .. dtype, 0, function(t) return t:t():to_copy({ dtype = "float32" }) end, x)
    same("permuted " .. dtype, 0, function(t) return t:permute(1, 5, 3, 2, 4):contiguous() end, y)
    same("reversed dims " .. dtype, 0, function(t) return t:permute(5, 4, 3, 2, 1):contiguous() end, y)
    same("channels last " .. dtype, 0, function(t) return t:contiguous(channels_last) end, z)
    if dtype == "bool" then return end
    local c = twin(compare.numbers(dtype, { 32, 1, 1 }))
    same("two orders " .. dtype, nil, function(t)
      local last = t:contiguous(channels_last)
      return last + t, t + last
    end, z)
    same("channels " .. dtype, nil, function(t, b) return t + b, t:contiguous(channels_last) + b end, z, c)
    same("into views " .. dtype, nil, function(t)
      local w, part = t:clone(), t:slice(2, 1, 200)
      w:slice(2, 1, 200):t():add_(part:t():contiguous())
      local added = w:clone()
      w:copy_(t:slice(1, 1, 1))
      local repeated = w:clone()
      w:slice(2, 2, 256):t():copy_(lm.ones({ 255, 300 }, { device = t.device }))
      w:slice(1, 2, -1, 3):fill_(7)
      return added, repeated, w
    end, x)
    same("fill_ " .. dtype, 0, function(t)
      return t:clone():fill_(5), t:clone():fill_(lm.tensor(3, { device = t.device })), t:clone():zero_()
    end, x)
  end

  it("between layouts and dtypes", function()
    compare.rounds(1, 20, function()
      local some_dtypes = { "uint8", "int64", "bfloat16", "float32" }
      for _, dtype in ipairs(compare.long and dtypes or some_dtypes) do copies(dtype) end
    end)
  end)

  it("random numbers", function()
    for _, dtype in ipairs(compare.floats) do
      for _, size in ipairs { { 1 }, { 5 }, { 1000 }, { 3, 7, 5 } } do
        local x = twin(lm.zeros(size, { dtype = dtype }))
        -- CPUs without fma round once more.
        for op, numbers in pairs { uniform_ = { -0.5, 2 }, normal_ = { 0.3 }, bernoulli_ = { 0.3 } } do
          same(op .. " " .. dtype, op == "bernoulli_" and 0 or nil, function(t)
            local first = t:clone()
            first[op](first, unpack(numbers))
            local second = t:clone():transpose(1, -1)
            second[op](second, unpack(numbers))
            return first, second
          end, x)
        end
        same("dropout " .. dtype, nil, function(t) return (t + 1):dropout(0.3) end, x)
      end
    end
    for _, dtype in ipairs(dtypes) do
      same("randint " .. dtype, 0, function(t)
        return lm.randint(0, 2, { 101 }, { dtype = dtype, device = t.device })
      end, twin(lm.zeros { 1 }))
    end
  end)

  it("sequences", function()
    for _, dtype in ipairs(dtypes) do
      if dtype ~= "bool" then
        same("sequences in " .. dtype, 0, function(t)
          local options = { dtype = dtype, device = t.device }
          return lm.arange(1, 100, 3, options), lm.arange(1, 20, 0.7, options), lm.linspace(1, 20, 13, options),
            lm.full({ 7 }, 1, options)
        end, twin(lm.zeros { 1 }))
      end
    end
  end)
end)

describe("reductions", function()
  it("of random shapes", function()
    compare.rounds(32, 1000, function()
      local is_float = random() < 0.7
      local dtype = one_of(is_float and compare.floats or compare.integers)
      local x, what = some(dtype, compare.shape())
      local dims, keepdim = {}, { keepdim = random() < 0.5 }
      for d = 1, x.here.ndim do
        if random() < 0.5 then dims[#dims + 1] = d end
      end
      if #dims == 0 then dims = nil end
      what = ("%s over {%s}"):format(what, dims and table.concat(dims, ", ") or "all")
      local function go(units, op, ...)
        local args = { ... }
        args[#args + 1] = dims
        args[#args + 1] = dims and keepdim
        same(op .. " of " .. what, tolerance(dtype, units), function(t) return t[op](t, unpack(args)) end, x)
      end
      for _, op in ipairs { "all", "any", "amax", "amin" } do go(0, op) end
      go(8, "sum")
      if is_float then
        go(4, "mean")
        go(4, "var")
        go(2, "logsumexp")
        go(8, "norm", one_of { 0, 1, 2, 3, 2.5, math.huge, -math.huge })
      end
      local d = random(x.here.ndim)
      same(("places in %s, dim %d"):format(what, d), 0, function(t)
        local most, at = t:max(d, keepdim)
        local least, there = t:min(d, keepdim)
        return most, at, least, there, t:argmax(d, keepdim), t:argmin(d, keepdim), t:argmax()
      end, x)
    end)
  end)

  -- Sizes at which a result is cut into parts, and lines are long.
  it("of many elements", function()
    local x = twin(lm.randn { 1500000 })
    same("sum", 1e-6, function(t) return t:sum(), t:narrow(1, 2, 1499990):sum(), t:norm(3), t:logsumexp() end, x)
    same("var", 1e-5, function(t) return (t + 1000):var() end, x)
    same("places", 0, function(t) return t:argmax(), t:argmin(), t:zero_():argmax() end, x)
    local y = twin(lm.randn { 60000, 16 })
    same("columns", 1e-5, function(t) return t:sum(1), (t + 50):var(1), t:argmax(1) end, y)
    same("columns of half", 1e-3, function(t) return t:half():mean(1) end, y)
    local c = twin(lm.randn { 16, 24, 50, 50 })
    same("channels", 1e-4, function(t)
      return t:sum({ 1, 3, 4 }), t:contiguous({ memory_format = "channels_last" }):sum({ 1, 3, 4 })
    end, c)
    same("rows", 1e-6, function(t) return t:sum(2), t:amax(2) end, twin(lm.randn { 40000, 3 }))
    same("wide", 1e-6, function(t) return t:sum(1) end, twin(lm.randn { 3, 300000 }))
    same("bytes", 0, function(t) return t:gt(0):sum(), t:abs():mul(50):to_copy({ dtype = "uint8" }):sum() end, c)
  end)
end)

describe("softmax", function()
  local function check(x, what, dim, tol)
    local w = twin(lm.randn(x.here.shape):to(x.here.dtype))
    for _, op in ipairs { "softmax", "log_softmax" } do
      same(op .. " of " .. what, tol, function(t) return t[op](t, dim) end, x)
      same("gradient of " .. op .. " of " .. what, tol * 16, function(g, t)
        return compare.gradients(function(v) return v[op](v, dim) end, g, t)
      end, w, x)
    end
  end

  it("of random shapes", function()
    compare.rounds(8, 500, function()
      local x, what = some(one_of(compare.floats), compare.shape())
      local dim = random(x.here.ndim)
      check(x, ("%s, dim %d"):format(what, dim), dim, tolerance(x.here.dtype, 4))
    end)
  end)

  it("of lines of every length", function()
    local lengths = { 10, 512, 513, 1025, 16388, 30001 }
    if compare.long then lengths = { 10, 100, 512, 513, 1000, 1024, 1025, 5000, 16384, 16388, 30001 } end
    for _, n in ipairs(lengths) do
      for _, dtype in ipairs { "float32", "float16", "float64" } do
        check(twin(compare.numbers(dtype, { 3, n })), ("%s %d"):format(dtype, n), 2, tolerance(dtype, 4))
      end
    end
    for _, n in ipairs { 3, 21, 64, 65, 300, 900 } do
      check(twin(lm.randn { 2, n, 9, 5 }), ("column of %d"):format(n), 2, 1e-5)
    end
  end)

  it("of infinities", function()
    for _, n in ipairs { 40, 40000 } do
      local x = lm.randn { 3, n }
      x[{ 1, 7 }] = math.huge
      x[{ 2, 7 }] = -math.huge
      x:select(1, 3):fill_(-math.huge)
      same("infinities among " .. n, 1e-5, function(t)
        return t:softmax(2), t:log_softmax(2), t:logsumexp(2)
      end, twin(x))
    end
  end)
end)

describe("nll_loss", function()
  it("and its gradient", function()
    compare.rounds(1, 10, function()
      for _, shape in ipairs { { 5000, 10 }, { 7, 33 }, { 9000, 3 }, { 6, 5, 11, 13 }, { 40, 21, 30 }, { 12 } } do
        local classes, labels = #shape == 1 and shape[1] or shape[2], {}
        if #shape > 1 then labels[1] = shape[1] end
        for d = 3, #shape do labels[#labels + 1] = shape[d] end
        for _, reduction in ipairs { "mean", "sum", "none" } do
          local dtype = one_of(compare.floats)
          local x, w = twin(compare.numbers(dtype, shape)), twin(lm.rand({ classes }):to(dtype))
          local label = twin(lm.randint(1, classes + 1, labels))
          for _, format in ipairs(#shape == 4 and { "contiguous", "channels_last" } or { "contiguous" }) do
            local what = ("%s [%s] %s %s"):format(dtype, table.concat(shape, ", "), reduction, format)
            same(what, tolerance(dtype, 2), function(t, target, weight)
              local leaf = t:contiguous({ memory_format = format }):detach():requires_grad_()
              local options = { reduction = reduction, weight = weight, ignore_index = 2 }
              local loss = F.nll_loss(leaf, target, options)
              local total = reduction == "none" and loss:sum() or loss
              total:backward()
              return loss:detach(), leaf.grad
            end, x, label, w)
          end
        end
      end
    end)
  end)

  it("a label that is no class is an error, and the device goes on", function()
    local x = lm.randn({ 4, 5 }, { device = "cuda" })
    local label = lm.tensor({ 1, 6, 2, 5 }, { dtype = "int64" }):cuda()
    assert.error_matches(function() return F.nll_loss(x, label):item() end, "6")
    assert.equal(20, x:numel() * lm.ones({ 1 }, { device = "cuda" }):item())
  end)
end)

-- Tests ops with other options or kinds of arguments (`forms` in src/op/entries/ops.lua): beyond the values that
-- op_cases.lua has, gradients where they are a matter of choice, in-place forms, dtypes, names in messages.
local lm = require "luminary"
local nn = lm.nn
local F = nn.functional

local function list(x) return x:totable() end
local function leaf(values) return lm.tensor(values):requires_grad_() end
local function says(pattern, f)
  local ok, err = pcall(f)
  assert(not ok, "was taken")
  assert(tostring(err):find(pattern), ("%q does not match %q"):format(tostring(err), pattern))
end

describe("div with a rounding mode", function()
  it("keeps integers' dtype, and promotes as div does", function()
    local x = lm.tensor({ 7, -7 }, { dtype = "int32" })
    assert.same({ 3, -4 }, list(x:div(2, { rounding_mode = "floor" })))
    assert.same({ 3, -3 }, list(x:div(2, { rounding_mode = "trunc" })))
    assert.equal("int32", x:div(2, { rounding_mode = "trunc" }).dtype)
    assert.equal("float32", x:div(2.5, { rounding_mode = "trunc" }).dtype)
    assert.equal("float32", x:div(2, { rounding_mode = "none" }).dtype)
    assert.same({ 3 }, list(lm.div(7, { other = lm.tensor { 2 }, rounding_mode = "floor" })))
  end)

  it("writes in place, also into integers", function()
    local x = lm.tensor({ 7, -7 }, { dtype = "int64" })
    assert.equal(x, x:div_(2, { rounding_mode = "trunc" }))
    assert.same({ 3, -3 }, list(x))
    says("div_: the result must be int64 as x, got float32; convert x first", function()
      x:div_(2.5, { rounding_mode = "floor" })
    end)
    says("div_: the result must be int64 as x, got float32", function() x:div_(2) end)
  end)

  it("does not trap on the least integer by -1", function()
    local least = lm.tensor({ -1 }, { dtype = "int64" }) * 2 ^ 62 * 2
    assert.equal(least:item(), least:div(-1, { rounding_mode = "trunc" }):item())
  end)

  it("has zeros for a gradient", function()
    for _, mode in ipairs { "floor", "trunc" } do
      local x, other = leaf { 7.5, -7 }, leaf { 2, 3 }
      x:div(other, { rounding_mode = mode }):sum():backward()
      assert.same({ { 0, 0 }, { 0, 0 } }, { list(x.grad), list(other.grad) })
    end
  end)
end)

describe("clamp", function()
  -- As PyTorch's torch.clamp has it, from version 2.15 on.
  it("divides ties of tensors, and gives max what lies beyond both bounds", function()
    local x, min = leaf { 1, 2, 3, 0, 5, 2, 1, 2 }, leaf { 1, 3, 0, 1, 4, 5, 1, 1 }
    local max = leaf { 4, 2, 3, 1, 1, 1, 1, 3 }
    x:clamp(min, max):sum():backward()
    assert.same({ 0.5, 0, 0.5, 0, 0, 0, 1, 1 }, list(x.grad))
    assert.same({ 0.5, 0, 0, 1, 0, 0, 0, 0 }, list(min.grad))
    assert.same({ 0, 1, 0.5, 0, 1, 1, 0, 0 }, list(max.grad))
    x, min = leaf { 1, 2, 0 }, leaf { 1, 1, 1 }
    x:clamp(min):sum():backward()
    assert.same({ { 0.5, 1, 0 }, { 0.5, 0, 1 } }, { list(x.grad), list(min.grad) })
    x, max = leaf { 1, 2, 0 }, leaf { 1, 1, 1 }
    x:clamp({ max = max }):sum():backward()
    assert.same({ { 0.5, 0, 1 }, { 0.5, 1, 0 } }, { list(x.grad), list(max.grad) })
  end)

  it("to numbers gives x what lies between them, and gives NaN nothing", function()
    local x = leaf { 0, 0.5, 1, 2, 0 / 0 }
    x:clamp(0, 1):sum():backward()
    assert.same({ 0, 1, 0, 0, 0 }, list(x.grad))
    x.grad = nil
    x:clamp(lm.tensor(0 / 0), 1):sum():backward() -- only numbers are tied: NaN is not
    assert.same({ 1, 1, 1, 0, 1 }, list(x.grad))
  end)

  it("sums a bound's gradient over what broadcasting had repeated", function()
    local x, min = lm.zeros({ 2, 3 }):requires_grad_(), leaf { 1 }
    x:clamp(min, 2):sum():backward()
    assert.same({ 6 }, list(min.grad))
  end)

  it("takes a number for one bound and a tensor for the other, and writes in place", function()
    local x = lm.tensor { -1, 0.5, 3 }
    assert.same({ 0, 0.5, 1 }, list(x:clamp(0, lm.tensor { 1, 1, 1 })))
    assert.same({ 0, 0.5, 3 }, list(x:clamp_(lm.zeros { 3 })))
    assert.same({ 0, 0.5, 1 }, list(x:clamp_({ max = 1 })))
    assert.same({ 0.25, 0.5, 0.75 }, list(x:clamp_(0.25, 0.75)))
    local whole = lm.tensor({ 1, 5 }, { dtype = "int64" })
    assert.equal("int64", whole:clamp(2, 3).dtype)
    assert.equal("float32", whole:clamp(2.5).dtype)
    assert.equal("float32", whole:clamp(lm.tensor { 2.5 }).dtype)
    says("clamp_: the result must be int64 as x, got float32; convert x first", function() whole:clamp_(2.5) end)
    says("clamp_: expected the result to have shape %[2%], got %[2, 2%]", function()
      whole:clamp_(lm.ones({ 2, 2 }, { dtype = "int64" }))
    end)
  end)

  it("records what it writes in place", function()
    local x, min = leaf { -1, 2 }, leaf { 0, 0 }
    local y = x * 2
    y:clamp_(min)
    y:sum():backward()
    assert.same({ { 0, 2 }, { 1, 0 } }, { list(x.grad), list(min.grad) })
  end)

  it("has NaN win, wherever it stands", function()
    local nan, x = 0 / 0, lm.tensor { 1, 5 }
    for _, y in ipairs { x:clamp(nan), x:clamp(nan, 3), x:clamp(0, nan), x:clamp(lm.tensor { nan, nan }, 2) } do
      assert.same({ true, true }, list(y:isnan()))
    end
  end)
end)

describe("round to decimals", function()
  it("writes in place, and keeps half dtypes", function()
    local x = lm.tensor { 1.256, -1.256 }
    assert.near(1.26, x:round_({ decimals = 2 })[1], 1e-6)
    local half = lm.tensor({ 1.256 }, { dtype = "float16" }):round({ decimals = 1 })
    assert.equal("float16", half.dtype)
    assert.near(1.3, half[1], 1e-3)
    assert.near(1.23456789, lm.tensor({ 1.234567891 }, { dtype = "float64" }):round({ decimals = 8 })[1], 1e-15)
    assert.equal(123, lm.tensor({ 123 }, { dtype = "float64" }):round({ decimals = 300 })[1])
    says("round: decimals must be from %-308 to 308 for float64, got 309",
      function() lm.ones({ 1 }, { dtype = "float64" }):round({ decimals = 309 }) end)
    says("round: decimals must be from .* for float32, got %-39",
      function() lm.ones({ 1 }):half():round({ decimals = -39 }) end)
  end)

  it("has zeros for a gradient", function()
    local x = leaf { 1.256 }
    x:round({ decimals = 1 }):sum():backward()
    assert.same({ 0 }, list(x.grad))
  end)
end)

describe("linear", function()
  it("adds a bias of one number under a matrix and a vector, and has its gradient", function()
    local x = lm.tensor { { 1, 2 }, { 3, 4 } }
    assert.same({ 6, 12 }, list(F.linear(x, lm.tensor { 1, 2 }, 1)))
    local w, b = leaf { 1, 2 }, lm.tensor(1):requires_grad_()
    F.linear(x, w, b):sum():backward()
    assert.same({ { 4, 6 }, 2 }, { list(w.grad), b.grad:item() })
    says("expected x to have shape %[%*, 3%] for weight of .*, got %[2%]",
      function() F.linear(lm.ones { 2 }, lm.ones { 3 }) end)
    says("expected x to have shape .*, got %[%]", function() F.linear(lm.tensor(1), lm.ones { 3 }) end)
    says("bias must be a number or a 0%-d tensor .*, got shape %[1%]",
      function() F.linear(x, lm.ones { 2 }, lm.ones { 1 }) end)
  end)

  it("is cast by autocast as ever", function()
    lm.autocast({ dtype = "bfloat16" }, function()
      assert.equal("bfloat16", F.linear(lm.ones { 2, 3 }, lm.ones { 3 }, 1).dtype)
      assert.equal("bfloat16", F.conv2d(lm.ones { 1, 1, 4, 4 }, lm.ones { 1, 1, 2, 2 }, { padding = "same" }).dtype)
    end)
  end)
end)

describe("nonzero as a tuple", function()
  it("gives what an index takes", function()
    local x = lm.tensor { { 0, 5 }, { 7, 0 }, { 0, 9 } }
    local rows, columns = x:nonzero({ as_tuple = true })
    assert.same({ { 1, 2, 3 }, { 2, 1, 2 } }, { list(rows), list(columns) })
    assert.same({ 5, 7, 9 }, list(x[{ rows, columns }]))
    assert.equal(1, select("#", lm.nonzero(lm.tensor(3), { as_tuple = true })))
    assert.equal(2, select("#", x:nonzero({ as_tuple = true }, nil)))
    assert.same({ 3, 2 }, x:nonzero({ as_tuple = false }).shape)
  end)
end)

describe("max_pool2d with indices", function()
  it("gives places from 1 in each plane, and the gradient of one that does not", function()
    local x = lm.arange(16):float():reshape(1, 1, 4, 4):requires_grad_()
    local y, where = F.max_pool2d(x, 2, { return_indices = true })
    assert.same({ 6, 8, 14, 16 }, list(where:flatten()))
    assert.same(list(x:flatten():gather(1, where:flatten())), list(y:flatten()))
    y:sum():backward()
    assert.equal(4, x.grad:sum():item())
    assert.equal(1, select("#", F.max_pool2d(x, 2, { return_indices = false })))
    assert.equal(2, select("#", F.max_pool2d(x, { kernel_size = 2, return_indices = true }, nil)))
    y, where = nn.MaxPool2d(2, { return_indices = true })(x)
    assert.same({ { 1, 1, 2, 2 }, { 1, 1, 2, 2 } }, { y.shape, where.shape })
  end)
end)

describe("max_unpool2d", function()
  it("undoes max_pool2d but for what was not largest, and passes gradients", function()
    local x = lm.randn { 2, 3, 7, 8 }
    local pool, unpool = nn.MaxPool2d(2, { return_indices = true }), nn.MaxUnpool2d(2)
    local y, where = pool(x)
    y:requires_grad_()
    local z = unpool(y, where, { 7, 8 })
    assert.same({ 2, 3, 7, 8 }, z.shape)
    assert.is_true(z:eq(x):logical_or(z:eq(0)):all():item())
    assert.equal(y:numel(), z:ne(0):sum():item())
    assert.same({ 2, 3, 6, 8 }, unpool(y, where).shape)
    z:square():sum():backward()
    assert.is_true(y.grad:allclose(y:detach() * 2))
  end)
end)

describe("a number that may be left out", function()
  it("has no value that stands for that: NaN, or -1, is refused where it is given", function()
    local x, nan = lm.ones(1, 1, 4, 4), 0 / 0
    for name, f in pairs {
      scale = function() F.scaled_dot_product_attention(x, x, x, { scale = nan }) end,
      eps = function() F.rms_norm(x, { 4 }, nil, nan) end, posinf = function() lm.nan_to_num(x, { posinf = nan }) end,
      stop = function() lm.arange(3, nan) end, rcond = function() lm.linalg.lstsq(x, x, nan) end,
    } do
      says(name .. " must be a number, or nil for the default, got nan$", f)
    end
    says("logit: eps must be a number, or nil", function() lm.logit(x, nan) end)
    says("eye: m must be at least 0, got %-1", function() lm.eye(3, -1) end)
    for _, pool in ipairs { F.max_pool2d, F.avg_pool2d } do
      says("stride must be from 1 to .*, got {%-1, %-1}", function() pool(x, 2, -1) end)
      says("kernel_size must be from 1 to .*, got {%-1, %-1}", function() pool(x, -1) end)
      says("kernel_size must be a number or a pair, got nil", function() pool(x) end)
    end
    assert.same({ 0, 1, 2 }, list(lm.arange(3)))
    assert.same({ 3, 3 }, lm.eye(3).shape)
    assert.same({ 1, 1, 2, 2 }, F.max_pool2d(x, 2).shape)
  end)
end)

describe("pad", function()
  it("takes values that x's dtype holds, true and false, and 0-d tensors", function()
    local bytes = lm.tensor({ 1, 2 }, { dtype = "uint8" })
    for _, value in ipairs { -1, -0.5, 256, 300, 0 / 0, math.huge } do
      says("^[^ ]+ pad: value must be from 0 to 255 for uint8, got", function()
        F.pad(bytes, { 1, 0 }, { value = value })
      end)
    end
    assert.same({ 255, 1, 2 }, list(F.pad(bytes, { 1, 0 }, { value = 255 })))
    local flags = bytes:eq(1)
    for _, value in ipairs { true, 1, 2 } do
      assert.same({ true, true, false }, list(F.pad(flags, { 1, 0 }, { value = value }):to "bool"))
    end
    assert.same({ false, true, false }, list(F.pad(flags, { 1, 0 }, { value = false })))
    assert.same({ 1, 0.5 }, list(F.pad(lm.tensor { 0.5 }, { 1, 0 }, { value = true })))
    assert.same({ 1, 0.5 }, list(lm.constant_pad_nd(lm.tensor { 0.5 }, { 1, 0 }, true)))
    local edge = leaf(3)
    F.pad(lm.ones(2), { 2, 1 }, { value = edge }):sum():backward()
    assert.equal(3, edge.grad:item())
    says("pad: value must be a number or a 0%-d tensor", function() F.pad(bytes, { 1, 0 }, { value = bytes }) end)
  end)

  it("fills the sides of large tensors, which share corners", function()
    for _, pad in ipairs { { 3, 2 }, { 1, 2, 3, 0 }, { -2, 5, 1, -3 }, { 0, 0, 4, 0, 1, 1 }, { -1, -1, 2, 2 } } do
      for _, dtype in ipairs { "float32", "float64", "bfloat16", "int16", "bool" } do
        local x, value = lm.randn(3, 83, 1603):gt(0):to(dtype), dtype == "int16" and -7 or dtype == "bool" or -1 / 0
        local y, first, last = F.pad(x, pad, { value = value }), {}, {}
        local inner = y
        for d = 1, 3 do
          first[d], last[d] = pad[2 * (3 - d) + 1] or 0, pad[2 * (3 - d) + 2] or 0
          x = x:narrow(d, math.max(-first[d], 0) + 1, x.shape[d] + math.min(first[d], 0) + math.min(last[d], 0))
          inner = inner:narrow(d, math.max(first[d], 0) + 1, x.shape[d])
        end
        assert.is_true(inner:equal(x))
        local expected = lm.full(y.shape, value, { dtype = dtype })
        local middle = expected
        for d = 1, 3 do middle = middle:narrow(d, math.max(first[d], 0) + 1, x.shape[d]) end
        middle:copy_(x)
        assert.is_true(y:equal(expected))
      end
    end
    local edge, x = leaf(3), lm.randn(203, 1603):requires_grad_()
    local y = F.pad(x, { 2, 1, 3, 4 }, { value = edge })
    y:sum():backward()
    assert.equal(y:numel() - x:numel(), edge.grad:item())
    assert.is_true(x.grad:eq(1):all():item())
  end)
end)

describe("cosine_similarity", function()
  it("divides before it multiplies", function()
    local big = lm.tensor { { 1e18, 1e18, 1e18 }, { 1e30, 1e30, 1e30 }, { 1e-30, 0, 0 } }
    local other = (big * lm.tensor { 1, 1, -1 }):requires_grad_()
    local y = F.cosine_similarity(big, other, 2)
    assert.near(1 / 3, y[1]:item(), 1e-6)
    assert.near(1 / 3, y[2]:item(), 1e-6) -- PyTorch returns 0: a length of inf
    y:sum():backward()
    assert.is_true(other.grad:isfinite():all():item())
    local row = leaf { 3e18, 4e18 }
    F.cosine_similarity(row, lm.tensor { 0, 1e18 }, 1):backward()
    assert.near(-0.096, row.grad[1] * 1e18, 1e-6) -- -12 / 125
    assert.near(0.072, row.grad[2] * 1e18, 1e-6)
  end)
end)

describe("a new axis in an index", function()
  it("is a dim of size 1, among entries of every kind", function()
    local x = lm.arange(6):reshape(2, 3)
    local new = lm.newaxis
    assert.same({ 2, 1, 3 }, x[{ {}, new }].shape)
    assert.same({ 1, 2, 3 }, x[{ new }].shape)
    assert.same({ 2, 3, 1 }, x[{ "...", new }].shape)
    assert.same({ 1, 2, 1 }, x[{ new, { 1, 2 }, new, 2 }].shape)
    assert.same({ 1 }, lm.tensor(5)[{ new }].shape)
    assert.same({ 1, 2, 3 }, x[{ new, lm.tensor({ 2, 1 }, { dtype = "int64" }) }].shape)
    assert.same({ 3, 4, 5 }, list(x[{ new, 2 }]:flatten()))
    assert.same({ 1, 1 }, x[{ new, 1, new, 2 }].shape)
    assert.same({ 1, 3 }, x[{ new, x:gt(2) }].shape)
  end)

  it("takes values in its place, and passes gradients", function()
    local x = lm.zeros { 2, 3 }
    x[{ {}, lm.newaxis, 2 }] = lm.tensor { { 5 }, { 6 } }
    assert.same({ { 0, 5, 0 }, { 0, 6, 0 } }, list(x))
    local y = lm.ones({ 3 }):requires_grad_();
    (y[{ {}, lm.newaxis }] * lm.ones { 3, 2 }):sum():backward()
    assert.same({ 2, 2, 2 }, list(y.grad))
  end)

  it("is refused where dims end", function()
    says("newaxis", function() return lm.ones({ 2 })[{ "newaxs" }] end)
    local keys = {}
    for i = 1, 12 do keys[i] = lm.newaxis end
    says("dims", function() return lm.ones({ 2 })[keys] end)
  end)
end)

-- Points where a formula has a root, a quotient or a logarithm of 0, or a tie. Values are those of PyTorch 2.15, except
-- of rows of -inf alone: there PyTorch has NaN for logsumexp and logcumsumexp.
describe("gradients where a formula divides by 0", function()
  local function near(want, have)
    assert.is_true(lm.allclose(lm.tensor(want), lm.tensor(have), { rtol = 0, atol = 1e-12 }))
  end

  local function grads(f, values, weights)
    local x = lm.tensor(values, { dtype = "float64" }):requires_grad_()
    local y = f(x)
    local g = lm.autograd.grad(y, x, { grad_outputs = weights and lm.tensor(weights, { dtype = "float64" })
      or lm.ones_like(y:detach()) })[1]
    local recorded = lm.autograd.grad(f(x), x, { grad_outputs = weights and lm.tensor(weights, { dtype = "float64" })
      or lm.ones_like(y:detach()), create_graph = true })[1]
    assert.same(tostring(g), tostring(recorded:detach()))
    local second = recorded.requires_grad and lm.autograd.grad(recorded:sum(), x, { allow_unused = true })[1]
    return g:totable(), second and second:totable()
  end

  it("are 0 for std of what is all the same", function()
    for _, call in ipairs {
      function(x) return x:std() end, function(x) return x:std { correction = 0 } end, function(x) return x:std(2) end,
      function(x) return x:std(2, false) end, function(x) return x:std(1, { correction = 0, keepdim = true }) end,
      function(x) return (lm.std_mean(x, 2)) end, function(x) return (lm.std_mean(x)) end,
      function(x) return (lm.std_mean(x, { 1, 2 }, { correction = 0 })) end,
    } do
      local g, second = grads(call, { { 2, 2, 2 }, { 2, 2, 2 } })
      assert.same({ { 0, 0, 0 }, { 0, 0, 0 } }, g)
      assert.is_false(lm.tensor(second):isnan():any():item())
    end
    local mixed = grads(function(x) return x:std(2, { correction = 0 }) end, { { 5, 5 }, { 1, 3 } })
    near({ { 0, 0 }, { -0.5, 0.5 } }, mixed)
  end)

  it("are 0 for logsumexp and logcumsumexp of -inf alone", function()
    local inf = math.huge
    near({ { 0, 0 }, { 0.5, 0.5 } },
      (grads(function(x) return x:logsumexp(2) end, { { -inf, -inf }, { 1, 1 } })))
    near({ 0, 0, 1.5, 0.5 }, (grads(function(x) return x:logcumsumexp(1) end, { -inf, -inf, 0, 0 })))
  end)

  it("are PyTorch's for elementwise ops", function()
    assert.same({ 0, 0 }, (grads(lm.sinc, { 0, 1e-320 })))
    local logs = lm.tensor({ 0, -1, math.exp(1) }, { dtype = "float64" })
    near({ 0, 0, 1 }, (grads(function(x) return lm.xlogy(x, logs) end, { 1, 2, 1 }, { 0, 0, 1 })))
    for _, op in ipairs { lm.fmax, lm.fmin } do
      assert.same({ 0.5, 0.5 }, (grads(function(x) return op(x, x:detach()) end, { 0, 3 })))
    end
    assert.same({ 0, 1, 0.5 }, (grads(F.hardswish, { -3, 3, 0 })))
    local _, second = grads(function(x) return x:pow(0) end, { 0, 2 })
    assert.same({ 0, 0 }, second)
    for _, f in ipairs { F.elu, F.selu, F.celu } do
      _, second = grads(f, { 0, 1 })
      assert.same({ 0, 0 }, second)
    end
    local x, other = lm.tensor({ 1, 7 }, { dtype = "float64" }), lm.tensor({ 0.1, 0 }, { dtype = "float64" })
    other:requires_grad_()
    x:remainder(other):narrow(1, 1, 1):sum():backward()
    assert.equal(-9, other.grad[1]) -- 1 / 0.1 is 10, but 9 times fit
  end)

  it("of gradients are numbers where norms of 0 are squared", function()
    local _, second = grads(function(x) return x:norm(2, 2):square() end, { { 0, 0 }, { 3, 4 } })
    near({ { 0, 0 }, { 2, 2 } }, second)
  end)

  it("are not divided among the ties of a largest distance", function()
    assert.same({ { 1, 1 }, { -1, -1 } }, (grads(function(x) return lm.pdist(x, { p = math.huge }) end,
      { { 1, 1 }, { 0, 0 } })))
  end)
end)

-- Tests reverse-mode differentiation beyond each op's gradient.
local lm = require "luminary"
local error_of = require "spec.support.error_of"
local core = require "luminary.core"

local function leaf(v) return lm.tensor(v, { requires_grad = true }) end

describe("backward", function()
  it("adds up gradients over calls", function()
    local x = leaf { 1, 2, 3 }
    local s = (x * x):sum()
    s:backward()
    assert.same({ 2, 4, 6 }, x.grad:totable());
    (x * 2):sum():backward()
    assert.same({ 4, 6, 8 }, x.grad:totable())
  end)

  it("takes a gradient for a root that is no scalar, and asks for one", function()
    local x = leaf { 1, 2, 3 }
    local y = x * 2
    y:backward(lm.tensor { 1, 0, 2 })
    assert.same({ 2, 0, 4 }, x.grad:totable())
    assert.error_matches(function() (x * 2):backward() end, "%[3%].*gradient")
    assert.error_matches(function() (x * 2):backward(lm.ones { 2 }) end, "%[2%].*%[3%]")
  end)

  it("frees what it saved, and says so the second time", function()
    local x = leaf { 1, 2 }
    local y = (x * x):sum()
    y:backward { retain_graph = true }
    y:backward()
    assert.same({ 4, 8 }, x.grad:totable())
    assert.error_matches(function() y:backward() end, "retain_graph")
  end)

  it("refuses a tensor that records nothing", function()
    assert.error_matches(function() lm.ones({ 1 }):backward() end, "require.grad")
  end)

  it("sums over broadcast dims", function()
    local a, b = leaf { { 1, 2, 3 }, { 4, 5, 6 } }, leaf { 10, 20, 30 };
    (a * b):sum():backward()
    assert.same({ 5, 7, 9 }, b.grad:totable())
  end)

  it("goes through a chain of 100,000 ops without recursing or leaking", function()
    local x = leaf { 1 }
    local y = x
    for _ = 1, 100000 do y = y + 1 end
    y:sum():backward()
    assert.same({ 1 }, x.grad:totable())
    y = x
    for _ = 1, 100000 do y = y * 1 end -- dropped without a backward
  end)

  it("crosses devices through to", function()
    local x = leaf { 1, 2 }
    local y = x:to("cpu:1")
    assert.equal("cpu:1", y.device);
    (y * y):sum():backward()
    assert.equal("cpu", x.grad.device)
    assert.same({ 2, 4 }, x.grad:totable())
    assert.error_matches(function() return x + y end, "cpu:1")
  end)

  it("gives a float16 input a float16 gradient", function()
    local x = lm.tensor({ 1, 2 }, { dtype = "float16", requires_grad = true })
    local w = leaf { 3, 4 };
    (x * w):sum():backward()
    assert.equal("float16", x.grad.dtype)
    assert.equal("float32", w.grad.dtype)
  end)
end)

describe("lm.grad", function()
  it("returns gradients and leaves .grad alone", function()
    local x = leaf { 1, 2, 3 }
    local g = lm.grad((x ^ 3):sum(), x)
    assert.same({ 3, 12, 27 }, (type(g) == "table" and g[1] or g):totable())
    assert.is_nil(x.grad)
  end)

  it("differentiates twice", function()
    local x = leaf { 1, 2, 3 }
    local g = lm.grad({ (x ^ 3):sum() }, { x }, { create_graph = true })[1]
    local h = lm.grad({ g:sum() }, { x })[1]
    assert.same({ 6, 12, 18 }, h:totable())
  end)

  it("takes many inputs, in any order and several times, in the midst of the graph too", function()
    local x, wanted, expected = leaf { 1, 2, 3, 4 }, {}, {}
    local doubled = x * 2
    local parts = doubled:unbind() -- results of one node
    local y = (parts[1] ^ 2 + parts[2] * parts[3]) * 5
    local of = { parts[4], parts[2], x, parts[1], parts[3], doubled }
    local gradients = { "none", 30, { 40, 60, 40, 0 }, 20, 20, { 20, 30, 20, 0 } }
    for i = 0, 99 do
      wanted[i + 1], expected[i + 1] = of[i * i % 7 % 6 + 1], gradients[i * i % 7 % 6 + 1]
    end
    local got = lm.grad(y, wanted, { allow_unused = true })
    for i = 1, 100 do assert.same(expected[i], got[i] and got[i]:totable() or "none", i) end
  end)

  it("says which input was not used, unless that is allowed", function()
    local x, z = leaf { 1 }, leaf { 1 }
    assert.error_matches(function() lm.grad({ (x * 2):sum() }, { z }) end, "allow_unused")
    local g = lm.grad({ (x * 2):sum() }, { x, z }, { allow_unused = true })
    assert.same({ 2 }, g[1]:totable())
    assert.is_nil(g[2])
  end)
end)

describe("recording", function()
  it("stops in no_grad and starts again in enable_grad", function()
    local x = leaf { 1 }
    lm.no_grad(function()
      assert.is_false((x * 2).requires_grad)
      lm.enable_grad(function() assert.is_true((x * 2).requires_grad) end)
    end)
    assert.is_true((x * 2).requires_grad)
    pcall(lm.no_grad, function() error("out") end)
    assert.is_true((x * 2).requires_grad)
  end)

  it("ends at detach", function()
    local x = leaf { 1 }
    assert.is_false((x * 2):detach().requires_grad)
  end)

  it("is refused to integers", function()
    assert.error_matches(function() lm.tensor({ 1 }, { dtype = "int64", requires_grad = true }) end, "float")
  end)
end)

describe("writing in place", function()
  it("is refused on a leaf that requires grad, unless in no_grad", function()
    local x = leaf { 1, 2 }
    assert.error_matches(function() x:add_(1) end, "leaf")
    lm.no_grad(function() x:add_(1) end)
    assert.same({ 2, 3 }, x:totable())
  end)

  it("is part of the graph elsewhere", function()
    local x = leaf { 1, 2 }
    local y = x * 3
    y:mul_(2)
    y:sum():backward()
    assert.same({ 6, 6 }, x.grad:totable())
  end)

  it("of something saved is found by its version, naming the op that wrote", function()
    local x = leaf { 1, 2 }
    local y = x:exp()
    local z = y * y
    y:add_(1)
    assert.error_matches(function() z:sum():backward() end, "add_")
  end)

  it("through an index reaches the graph", function()
    local x = leaf { 1, 2, 3 }
    local y = x * 2
    y[2] = 0
    y:sum():backward()
    assert.same({ 2, 0, 2 }, x.grad:totable())
  end)
end)

describe("hooks", function()
  it("see and replace a gradient", function()
    local x = leaf { 1, 2 }
    local y = x * 2
    local seen
    y:register_hook(function(g)
      seen = g:totable()
      return g * 10
    end)
    y:sum():backward()
    assert.same({ 1, 1 }, seen)
    assert.same({ 20, 20 }, x.grad:totable())
  end)

  it("run after accumulation, and can be removed", function()
    local x = leaf { 1 }
    local calls = 0
    local handle = x:register_post_accumulate_grad_hook(function(p)
      calls = calls + 1
      assert.equal(x, p)
    end);
    (x * 2):sum():backward()
    handle:remove();
    (x * 2):sum():backward()
    assert.equal(1, calls)
  end)

  it("pass their errors on, and a later backward works", function()
    local x = leaf { 1 }
    local handle = x:register_hook(function() error("from the hook") end)
    assert.error_matches(function() (x * 2):sum():backward() end, "from the hook")
    handle:remove();
    (x * 2):sum():backward()
    assert.same({ 2 }, x.grad:totable())
  end)

  it("that hold their own tensor do not leak", function()
    local x = leaf { 1 }
    x:register_hook(function() return x * 0 end)
  end)
end)

describe("lm.autograd.Function", function()
  it("refuses a list of results, whose gradient would be lost", function()
    local Pair = lm.autograd.Function:extend("Pair")
    function Pair.forward(_, x) return { x * 2, x * 3 } end
    function Pair.backward(_, a, b) return { a, b } end
    assert.error_matches(function() Pair.apply(lm.ones({ 2 }, { requires_grad = true })) end,
      "Pair.forward: result 1 must be a tensor, got a list; return several results as values: return a, b", 1, true)
  end)

  it("has its own forward and backward", function()
    local Cube = lm.autograd.Function:extend("Cube")
    function Cube.forward(ctx, x)
      ctx:save_for_backward(x)
      return x * x * x
    end
    function Cube.backward(ctx, g)
      local x = ctx.saved_tensors[1]
      return g * x * x * 3
    end
    local x = lm.tensor({ 1, 2 }, { dtype = "float64", requires_grad = true })
    Cube.apply(x):sum():backward()
    assert.same({ 3, 12 }, x.grad:totable())
    lm.autograd.gradcheck(Cube.apply, { x })
  end)

  it("has to give a gradient, or nil, for each tensor", function()
    local Two = lm.autograd.Function:extend("Two")
    function Two.forward(_, a, b, factor) return a * b * factor end
    local count
    function Two.backward(_, g) return unpack({ g, g, [4] = g }, 1, count) end
    local a, b = leaf { 1, 2 }, leaf { 3, 4 }
    for n = 0, 1 do
      count = n
      assert.error_matches(function() Two(a, b, 2):sum():backward() end,
        ("Two.backward: returned %d gradients?, but argument 2 of forward is a tensor"):format(n))
    end
    count = 2 -- arguments after the last tensor have no gradient
    Two(a, b, 2):sum():backward()
    assert.same({ 1, 1 }, b.grad:totable())
    count = 4
    assert.error_matches(function() Two(a, b, 2):sum():backward() end, "expected at most one gradient for each")
  end)
end)

describe("gradcheck", function()
  it("finds a wrong gradient", function()
    local Wrong = lm.autograd.Function:extend("Wrong")
    function Wrong.forward(_, x) return x * x end
    function Wrong.backward(_, g) return g end
    local x = lm.tensor({ 1.5, 2 }, { dtype = "float64", requires_grad = true })
    assert.error(function() lm.autograd.gradcheck(Wrong.apply, { x }) end)
  end)
end)

describe("running out of memory anywhere in a step", function()
  it("is an error, leaks nothing, and the next step is right", function()
    local x, w = leaf { { 1, 2 }, { 3, 4 } }, leaf { { 1, 0 }, { 2, 1 } }
    local function step()
      x.grad, w.grad = nil, nil
      local loss = lm.relu(x:mm(w) + 1):sum()
      loss:backward()
      return loss:item()
    end
    local want = step()
    collectgarbage()
    core._fail_alloc_from(1000000000)
    step()
    local total = core._alloc_count()
    core._fail_alloc_from(0)
    assert(total > 0)
    for n = 1, total do
      core._fail_alloc_from(n)
      local ok, err = pcall(step)
      core._fail_alloc_from(0)
      if not ok then assert.matches("out of memory", tostring(err)) end
      assert.equal(want, step())
      assert.same({ { 1, 3 }, { 1, 3 } }, x.grad:totable())
    end
  end)
end)

describe("a .grad", function()
  it("is what came through a reshape, without a copy, and no view", function()
    local size = 2 ^ 20
    local x = lm.zeros(size):requires_grad_()
    local y = x:view(1024, -1):unsqueeze(1):diagonal(0, 2, 3)
    local before = lm.memory_allocated()
    lm.reset_peak_memory_stats()
    y:sum():backward()
    assert(lm.max_memory_allocated() - before < 6 * size) -- an element has 4 bytes
    assert.equal(1024, x.grad:sum():item())
    x.grad:view(1024, -1):add_(1)
    assert.same({ 2, 1 }, x.grad[{ { 1, 2 } }]:totable())
    local kept
    y = x:view(1024, -1)
    y:register_hook(function(g) kept = g end)
    x.grad = nil
    y:diagonal():sum():backward()
    x.grad:add_(1) -- is not what the hook has kept
    assert.equal(1024, kept:sum():item())
  end)
end)

describe("the gradient of an elementwise op", function()
  it("overwrites that of its result if nobody else holds it", function()
    local size = 2 ^ 18
    local x = lm.ones(size):requires_grad_()
    local loss = ((x * 2):neg() * lm.full({ 1 }, 3)):sum()
    collectgarbage()
    collectgarbage()
    lm.reset_peak_memory_stats()
    local before = lm.memory_allocated()
    loss:backward()
    assert(lm.max_memory_allocated() - before < 6 * size, "two gradients at a time") -- an element has 4 bytes
    assert.equal(-6 * size, x.grad:sum():item())
  end)

  for _, dtype in ipairs { "float32", "float64", "bfloat16", "float16" } do
    it("is the same, and leaves alone what others hold: " .. dtype, function()
      lm.manual_seed(1)
      for _, transposed in ipairs { false, true } do
        local function tensor()
          return transposed and lm.randn({ 5, 33 }, { dtype = dtype }):t() or lm.randn({ 33, 5 }, { dtype = dtype })
        end
        local x, w, given = tensor():requires_grad_(), tensor():requires_grad_(), tensor()
        local was = given:clone()
        -- Returns the gradients of x and w, and those that hooks have kept with copies made then.
        local function run(keeps)
          local kept = {}
          local function keep(t)
            if keeps then t:register_hook(function(g) kept[#kept + 1] = { g, g:clone() } end) end
            return t
          end
          x.grad, w.grad = nil, nil
          local a = keep(keep(x:sin()) * keep(w * 3))
          local b = keep(keep(a:tanh()) + a:sigmoid())
          keep((keep(b:reshape(-1)):view(33, 5) * w):exp()):backward(given)
          assert.is_true(lm.equal(was, given))
          return x.grad, w.grad, kept
        end
        local gx, gw = run(false)
        local want_x, want_w, kept = run(true)
        assert.is_true(lm.equal(want_x, gx) and lm.equal(want_w, gw))
        assert.equal(7, #kept)
        for _, pair in ipairs(kept) do assert.is_true(lm.equal(pair[2], pair[1])) end
      end
    end)
  end
end)

describe("a gradient of a bias of a batch of one, which is that of the result in another shape", function()
  it("is the bias's alone where others see the result's", function()
    local x, w, b = lm.randn(1, 3), lm.randn(4, 3):requires_grad_(), lm.zeros(4):requires_grad_()
    local y, given, seen = lm.nn.functional.linear(x, w, b), lm.full({ 1, 4 }, 2), nil
    y:retain_grad()
    y:register_hook(function(g) seen = g end)
    y:backward(given)
    assert.same({ 2, 2, 2, 2 }, b.grad:totable())
    b.grad:fill_(7)
    assert.same({ { 2, 2, 2, 2 } }, y.grad:totable())
    assert.same({ { 2, 2, 2, 2 } }, seen:totable())
    assert.same({ { 2, 2, 2, 2 } }, given:totable())
  end)

  it("is added up over calls, and has a gradient", function()
    local b, c = lm.zeros(4):requires_grad_(), lm.randn(1, 4)
    for _ = 1, 2 do ((b + c) * 3):sum():backward() end
    assert.same({ 6, 6, 6, 6 }, b.grad:totable())
    local g = lm.grad((b + c):exp():sum(), { b }, { create_graph = true })[1]
    assert.same({ 4 }, g.shape)
    assert.is_true(lm.grad(g:sum(), { b })[1]:allclose(c:exp():view(4)))
  end)
end)

describe("the gradient of a transposed matrix", function()
  for name, product in pairs {
    mm = function(x, w) return x:mm(w) end,
    addmm = function(x, w) return lm.addmm(lm.ones(1, 5):double(), x, w, { alpha = 2 }) end,
    linear = function(x, w) return lm.nn.functional.linear(x:view(2, 3, 4), w:t()) end,
  } do
    it("of " .. name .. " has the layout of the matrix, and the values", function()
      for _, transposed in ipairs { false, true } do
        local x = lm.randn(transposed and { 4, 6 } or { 6, 4 }):double()
        local w = lm.randn(transposed and { 5, 4 } or { 4, 5 }):double()
        if transposed then x, w = x:t(), w:t() end
        x:requires_grad_()
        w:requires_grad_()
        local g = lm.grad((product(x, w) ^ 2):sum(), { x, w })
        if name ~= "linear" then assert.same({ x:stride() }, { g[1]:stride() }) end
        assert.same({ w:stride() }, { g[2]:stride() })
        assert.is_true(lm.autograd.gradcheck(product, { x, w }))
        assert.is_true(lm.autograd.gradgradcheck(product, { x, w }))
      end
    end)
  end
end)

describe("a .grad that is a view", function()
  it("is added to in place", function()
    local x = lm.ones({ 2 }, { requires_grad = true })
    local all = lm.zeros(4)
    x.grad = all:narrow(1, 2, 2)
    for _ = 1, 2 do (x * 3):sum():backward() end
    assert.same({ 0, 6, 6, 0 }, all:totable())
  end)
end)

describe("a Function that writes an argument in place", function()
  local Twice = lm.autograd.Function:extend("Twice")
  function Twice.forward(ctx, a, x)
    ctx:mark_dirty(x)
    ctx:save_for_backward(x)
    x:mul_(2)
    return x, a + 1
  end
  function Twice.backward(ctx, g, h) return h, g * 2 + 0 * ctx.saved_tensors[1] end

  for _, dtype in ipairs { "float16", "bfloat16", "float32", "float64" } do
    it("returns it, and gradients go through both: " .. dtype, function()
      local x0 = lm.tensor({ { 1, 2, 3 }, { 4, 5, 6 } }, { dtype = dtype, requires_grad = true })
      for _, layout in ipairs { function(x) return x * 3 end, function(x) return (x:t() * 3) end } do
        x0.grad = nil
        local x = layout(x0)
        local before = x:detach():clone()
        local y, other = Twice(lm.ones({}, { dtype = dtype }), x)
        assert.equal(x, y)
        assert.equal("Twice", x.grad_fn)
        assert(lm.equal(before * 2, y:detach()))
        local loss = (x * x):sum() + other
        loss:backward() -- d/dl (6 l)^2 = 72 l
        assert(lm.equal(x0:detach() * 72, x0.grad))
      end
    end)
  end
  it("notices what was saved before", function()
    local x0 = lm.ones({ 2 }, { requires_grad = true })
    local x = x0 * 3
    local square = x * x
    Twice(lm.ones {}, x)
    assert.matches("changed it in place", error_of(function() square:sum():backward() end))
  end)
  it("refuses leaves, views and arguments that are not returned", function()
    local x0 = lm.ones({ 2 }, { requires_grad = true })
    assert.matches("Twice: dirty result 1 must be the result of an op, got a leaf", error_of(Twice, lm.ones {}, x0))
    local view = (x0 * 2)[{ { 1 } }]
    assert.matches("dirty result 1 must be the result of an op, got a view", error_of(Twice, lm.ones {}, view))
    local Lost = lm.autograd.Function:extend("Lost")
    function Lost.forward(ctx, x)
      ctx:mark_dirty(x)
      return x + 1
    end
    function Lost.backward(_, g) return g end
    assert.matches("Lost.forward: return what mark_dirty has as argument 1", error_of(Lost, x0 * 1))
  end)
  it("keeps no tensor alive", function()
    collectgarbage()
    local before = lm.live_tensors and lm.live_tensors() or require("luminary.core").live_tensors()
    for _ = 1, 5 do Twice(lm.ones {}, lm.ones({ 2 }, { requires_grad = true }) * 2) end
    collectgarbage()
    collectgarbage()
    assert.equal(before, require("luminary.core").live_tensors())
  end)
end)

describe("a Function's gradient of a wrong shape", function()
  it("is named, with the shape that it should have", function()
    local Bad = lm.autograd.Function:extend("Bad")
    local result
    function Bad.forward(_, x, y) return x * y end
    function Bad.backward(_, g) return g, result(g) end
    local function run()
      Bad(lm.ones({ 2, 3 }, { requires_grad = true }), lm.ones({ 2, 3 }, { requires_grad = true })):sum():backward()
    end
    for want, f in pairs {
      ["Bad.backward: expected gradient 2 to have shape %[2, 3%], got %[%]"] = function(g) return g:sum() end,
      ["Bad.backward: expected gradient 2 to have shape %[2, 3%], got %[3%]"] = function(g) return g[1] end,
      ["Bad.backward: expected gradient 2 to have shape %[2, 3%], got %[3, 2%]"] = function(g) return g:t() end,
    } do
      result = f
      assert.matches(want, error_of(run))
    end
    result = function(g) return lm.stack { g, g } end -- is summed, as PyTorch does
    run()
  end)
end)

describe("what a Function saves", function()
  it("may be nil in places", function()
    local seen
    local Maybe = lm.autograd.Function:extend("Maybe")
    function Maybe.forward(ctx, x, w, b)
      ctx:save_for_backward(x, b, w)
      return b and x * w + b or x * w
    end
    function Maybe.backward(ctx, g)
      local saved = ctx.saved_tensors
      seen = { saved.n, saved[1] ~= nil, saved[2] ~= nil, saved[3] ~= nil }
      return g * saved[3], g * saved[1], saved[2] and g or nil
    end
    local x, w = leaf { 2 }, leaf { 3 }
    Maybe.apply(x, w):sum():backward()
    assert.same({ 3, true, false, true }, seen)
    assert.same({ 3 }, x.grad:totable())
    assert.same({ 2 }, w.grad:totable())
    assert.error_matches(function() Maybe.apply(x, 3) end,
      "save_for_backward: argument 3 must be a tensor, got 3")
  end)
end)

describe("looking for NaN", function()
  local autograd = lm.autograd
  local function message(f, ...)
    local ok, err = pcall(f, ...)
    assert(not ok, "no error")
    return (tostring(err):gsub("[^ ]*autograd_spec.lua:(%d+)", "LINE%1"))
  end
  local function line() return debug.getinfo(2, "l").currentline end

  -- 0 * inf in the gradient of sqrt at 0, though the loss is finite.
  local at
  local function loss(x)
    local safe = x * 3
    at = line() + 1
    local root = safe:sqrt()
    return (root * 0):sum() + x:sum()
  end

  it("names the op and the script's line, and nothing without", function()
    local x = leaf { 0, 4 }
    loss(x):backward()
    assert.is_true(x.grad[1] ~= x.grad[1])
    local text = message(autograd.detect_anomaly, function() loss(leaf { 0, 4 }):backward() end)
    assert.equal(("LINE%d: backward: the gradient of input 1 of sqrt, called at LINE%d, is NaN"):format(line() - 1, at),
      text)
    assert.is_false(autograd.is_anomaly_enabled())
    local g = autograd.detect_anomaly(function(y, ...)
      assert.is_true(autograd.is_anomaly_enabled())
      y:backward()
      return ...
    end, loss(leaf { 1, 4 }), 5)
    assert.equal(5, g)
  end)

  it("can be set for all that follows", function()
    assert.is_false(autograd.set_detect_anomaly(true))
    local text = message(function() lm.grad(loss(leaf { 0, 4 }), leaf { 1 }) end)
    assert.matches("was not used", text) -- as ever
    text = message(function() loss(leaf { 0, 4 }):backward() end)
    assert.is_true(autograd.set_detect_anomaly(false))
    assert.matches("of sqrt, called at LINE" .. at, text)
    loss(leaf { 0, 4 }):backward()
  end)

  it("tells a NaN that came from one that is made", function()
    local text = message(autograd.detect_anomaly, function()
      local y = leaf { 1, 2 } * 2
      y:backward(lm.tensor { 0 / 0, 1 })
    end)
    local last = line() - 2
    assert.equal(("LINE%d: backward: the gradient of the output of mul, called at LINE%d, is NaN")
      :format(last, last - 1),
      text)
  end)

  it("sees functions of one's own, in-place ops, indexing and checkpoints", function()
    local Bad = autograd.Function:extend("Bad")
    function Bad.forward(_, x) return x * 2 end
    function Bad.backward(_, g) return g * (0 / 0) end
    local function at_line(f)
      return message(autograd.detect_anomaly, function() f(leaf { 0, 4 } * 1):sum():backward() end)
    end
    assert.matches("input 1 of Bad, called at LINE" .. line() + 1, at_line(function(x)
      local y = Bad(x) -- a call that is returned leaves no line behind
      return y
    end))
    assert.matches("input 1 of sqrt, called at LINE" .. line() + 1, at_line(function(x)
      return x:sqrt_():mul(0)
    end))
    assert.matches("input 1 of div, called at LINE" .. line() + 1, at_line(function(x)
      return 0 * (x[1] / x[1])
    end))
    local inner
    local text = at_line(function(x)
      return autograd.checkpoint(function(v)
        inner = line() + 1
        return v:sqrt():mul(0)
      end, x)
    end)
    assert.matches("input 1 of sqrt, called at LINE" .. inner, text)
  end)

  it("adds the line to other errors of backward", function()
    local text = message(autograd.detect_anomaly, function()
      local x = leaf { 1, 2 } * 1
      local y = x:sin()
      x:add_(1)
      y:sum():backward()
    end)
    assert.matches("; sin was called at LINE" .. line() - 4 .. "$", text)
  end)

  it("goes over devices, and through double backward", function()
    local text = message(autograd.detect_anomaly, function()
      local x = leaf { 0, 4 }
      local there = (x * 2):to("cpu:1")
      local root = there:sqrt();
      (root * 0):sum():to("cpu:0"):backward()
    end)
    assert.matches("of sqrt, called at LINE" .. line() - 3, text)
    text = message(autograd.detect_anomaly, function()
      local x = leaf { 0, 4 }
      local g = lm.grad((x * 2):pow(1.5):sum(), x, { create_graph = true })[1]
      lm.grad(g:mul(0):sum(), x)
    end)
    assert.matches("is NaN", text)
  end)

  it("keeps memory paced", function()
    local most = lm.memory_allocated()
    autograd.detect_anomaly(function()
      lm.reset_peak_memory_stats()
      for _ = 1, 60 do local _ = lm.ones { 1024, 1024 } + 1 end
    end)
    assert.is_true(lm.max_memory_allocated() - most < 300 * 2 ^ 20)
  end)

  it("names wrong arguments", function()
    assert.matches("detect_anomaly: f must be a function, got true", message(autograd.detect_anomaly, true))
    assert.matches("set_detect_anomaly: on", message(autograd.set_detect_anomaly, 3))
  end)
end)

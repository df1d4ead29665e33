-- lm.autograd.checkpoint: bit-identical gradients, from less memory, and its errors.
local lm = require "luminary"
local nn, F, autograd = lm.nn, lm.nn.functional, lm.autograd
local checkpoint = autograd.checkpoint

-- Returns the error's message, with the line of this file that raises it.
local function message(f, ...)
  local ok, err = pcall(f, ...)
  assert(not ok, "no error")
  return tostring(err)
end

local function seeded(f, ...)
  lm.manual_seed(7)
  return f(...)
end

-- All ops that save tensors in a special way.
local Mixed = nn.Module:extend("Mixed")
function Mixed:init()
  self.fc1, self.fc2, self.norm = nn.Linear(6, 8), nn.Linear(8, 6), nn.LayerNorm(6)
  self.bn, self.drop = nn.BatchNorm1d(8), nn.Dropout(0.4)
end
function Mixed:forward(x, scale)
  local h = self.drop(self.bn(F.relu(self.fc1(x))))
  h = h * 2
  h:mul_(scale or 1)
  h[{ {}, 1 }] = 0 -- written through a view
  local a, b = unpack(h:chunk(2, 2))
  h = lm.cat({ a:sigmoid(), b:tanh() }, 2)
  return self.norm(self.fc2(h) + x):softmax(2) * (1 + lm.rand { 6 })
end

-- Loss, gradients of all parameters and of x, running statistics, and a random number drawn afterwards.
local function pass(net, x, forward, options)
  lm.manual_seed(3)
  net:zero_grad()
  x = x:detach():requires_grad_(x.requires_grad)
  local found = {}
  local function run()
    local y = forward(x)
    found[1] = y:detach():clone()
    y:square():sum():backward()
  end
  if options then lm.autocast(options, run) else run() end
  found[2] = x.grad
  for _, p in ipairs(net:parameters()) do found[#found + 1] = p.grad:clone() end
  found[#found + 1] = lm.rand { 3 }
  return found
end

local function same(a, b)
  assert.equal(#a, #b)
  for i = 1, #a do
    assert(a[i].dtype == b[i].dtype and a[i]:equal(b[i]), ("%d: %s and %s"):format(i, tostring(a[i]), tostring(b[i])))
  end
end

describe("a checkpoint has the same gradients to the bit", function()
  local function compare(options, forward, plain, input)
    local net = seeded(Mixed)
    local x = input or lm.randn({ 5, 6 }, { requires_grad = true })
    local statistics = net.bn.running_mean:clone()
    local want = pass(net, x, function(v) return plain and plain(v, net) or net(v) end, options)
    net.bn.running_mean:copy_(statistics)
    same(want, pass(net, x, function(v) return forward(net, v) end, options))
  end

  it("of a module, with dropout, writes in place and views", function() compare(nil, checkpoint) end)
  it("under autocast", function() compare({ dtype = "bfloat16" }, checkpoint) end)

  it("with autocast inside", function()
    local function forward(net, x)
      return lm.autocast({ dtype = "bfloat16" }, function() return net(x) end):float()
    end
    compare(nil, function(net, x) return checkpoint(forward, net, x) end, function(x, net) return forward(net, x) end)
  end)

  it("where no argument asks for a gradient", function() compare(nil, checkpoint, nil, lm.randn { 5, 6 }) end)

  it("of a function, with arguments that are no tensors", function()
    compare(nil, function(net, x)
      return checkpoint(function(options, v, _, scale, ...)
        assert(options.preserve and select("#", ...) == 2)
        return net(v, scale)
      end, { preserve = true }, x, nil, 3, nil, nil)
    end, function(x, net) return net(x, 3) end)
  end)

  it("within another", function()
    compare(nil, function(net, x)
      return checkpoint(function(v)
        return checkpoint(function(w)
          return checkpoint(net, w * 2)
        end, v + 1) - 1
      end, x)
    end, function(x, net) return net((x + 1) * 2) - 1 end)
  end)

  it("one after the other", function()
    local function inner(net, x) return net(net(x) + x) end
    compare(nil, function(net, x)
      return checkpoint(function(v) return inner(net, v) end, checkpoint(net, x))
    end, function(x, net) return inner(net, net(x)) end)
  end)

  it("in checkpoint_sequential", function()
    local net = seeded(function()
      return nn.Sequential(nn.Linear(4, 9), nn.Tanh(), nn.Dropout(0.2), nn.Linear(9, 9), nn.GELU(), nn.Dropout(0.5),
        nn.Linear(9, 2))
    end)
    local x = lm.randn({ 3, 4 }, { requires_grad = true })
    local want = pass(net, x, net)
    for segments = 1, 7 do
      same(want, pass(net, x, function(v) return autograd.checkpoint_sequential(net, segments, v) end))
    end
    same(want, pass(net, x, function(v)
      return autograd.checkpoint_sequential({ function(w) return net[1](w), 5 end, function(w, five)
        assert.equal(5, five)
        for i = 2, 6 do w = net[i](w) end
        return w
      end, net[7] }, 3, v)
    end))
  end)

  it("of several results, some of them constants, some not used", function()
    local function f(a, b)
      return a * b, "text", (a + b):detach(), nil, a:max(2)
    end
    local function run(with)
      local a, b = seeded(function()
        return lm.randn({ 3, 4 }, { requires_grad = true }), lm.randn({ 3, 4 }, { requires_grad = true })
      end)
      local product, text, sum, none, most, where = with(a, b)
      assert(text == "text" and none == nil and not sum.requires_grad and where.dtype == "int64")
      most:square():sum():backward { retain_graph = true }
      product:sum():backward()
      return { a.grad, b.grad }
    end
    same(run(f), run(function(...) return checkpoint(f, ...) end))
  end)

  it("of gradients, by lm.grad and twice", function()
    local function run(with)
      local w = lm.tensor({ { 0.3, -1.2 }, { 0.7, 0.4 } }, { dtype = "float64", requires_grad = true })
      local x = lm.tensor({ { 1, 2 }, { -0.5, 3 } }, { dtype = "float64", requires_grad = true })
      local y = with(function(v) return (v:matmul(w):sin() * v:exp()):logsumexp(2) end, x)
      local dx, dw = unpack(lm.grad(y:sum(), { x, w }, { create_graph = true }))
      local again = lm.grad((dx:square():sum() + dw:tanh():sum()), { x, w })
      return { dx:detach(), dw:detach(), again[1], again[2] }
    end
    same(run(function(f, x) return f(x) end), run(checkpoint))
    local x = lm.randn({ 2, 2 }, { dtype = "float64", requires_grad = true })
    local function f(v) return checkpoint(function(u) return (u * u:sigmoid()):softmax(1) end, v) end
    assert.is_true(autograd.gradcheck(f, x))
    assert.is_true(autograd.gradgradcheck(f, x))
  end)

  it("with gradients taken inside", function()
    local function penalty(v)
      local g = lm.grad(v:pow(3):sum(), v, { create_graph = true })[1]
      return g:square() * v
    end
    local function run(with)
      local x = lm.tensor({ 1.5, -2 }, { requires_grad = true })
      with(penalty, x * 1):sum():backward()
      return { x.grad }
    end
    same(run(function(f, v) return f(v) end), run(checkpoint))
  end)

  it("with functions of one's own inside, and hooks", function()
    local Cube = autograd.Function:extend("Cube")
    function Cube.forward(ctx, x)
      ctx:save_for_backward(x)
      return x * x * x
    end
    function Cube.backward(ctx, g) return 3 * g * ctx.saved_tensors[1]:square() end
    local function run(with)
      local seen = {}
      local x = lm.tensor({ 1.5, -2 }, { requires_grad = true })
      x:register_hook(function(g) seen[#seen + 1] = g:clone() end)
      local y = with(function(v)
        local cubed = Cube(v:sin())
        return cubed * 2
      end, x)
      y:register_hook(function(g) return g * 3 end)
      y:sum():backward()
      seen[#seen + 1] = x.grad
      return seen
    end
    same(run(function(f, x) return f(x) end), run(checkpoint))
  end)

  it("over two devices", function()
    local function run(with)
      local x = seeded(lm.randn, { 4, 4 }, { requires_grad = true })
      local y, there = with(function(v)
        local moved = v:tanh():to("cpu:1")
        return moved:sigmoid():to("cpu:0") * v:exp(), moved:exp()
      end, x)
      local z = with(function(v, w) return F.dropout(v:to("cpu:1") + w, 0.5):exp() end, y, there)
      z:sum():backward()
      return { x.grad }
    end
    local plain = run(function(f, ...) return f(...) end)
    same(plain, run(checkpoint))
    same(plain, run(function(f, ...) -- a checkpoint within another
      return checkpoint(function(...) return checkpoint(f, ...) end, ...)
    end))
  end)

  it("when the same graph is walked again", function()
    local x = lm.tensor({ 1.5, -2 }, { requires_grad = true })
    local count = 0
    local y = checkpoint(function(v)
      count = count + 1
      return v:sin():exp()
    end, x):sum()
    y:backward { retain_graph = true }
    local once = x.grad:clone()
    y:backward()
    assert.is_true(x.grad:equal(once * 2))
    assert.equal(2, count)
    assert.matches("saved tensors were freed by an earlier backward()", message(y.backward, y))
  end)
end)

describe("a checkpoint", function()
  it("is a plain call within no_grad, and saves nothing for what is not walked", function()
    local count = 0
    local function f(x)
      count = count + 1
      return x * 2, count
    end
    local x = lm.tensor({ 1 }, { requires_grad = true })
    local y, n = lm.no_grad(function() return checkpoint(f, x) end)
    assert.same({ 2, 1, false }, { y:item(), n, y.requires_grad })
    assert.equal(2, select(2, checkpoint(f, lm.ones { 1 }))) -- nothing here has a graph
    assert.equal(2, count)
    checkpoint(f, x)
  end)

  it("may let the second time draw other random numbers", function()
    local function run(options)
      lm.manual_seed(1)
      local x = lm.ones({ 1000 }, { requires_grad = true })
      local y = checkpoint(function(v) return v * lm.rand { 1000 } end, x, options)
      local want = y:detach():clone()
      y:sum():backward()
      return x.grad:equal(want)
    end
    assert.is_true(run())
    assert.is_true(run { preserve_rng_state = true, use_reentrant = false })
    assert.is_false(run { preserve_rng_state = false })
  end)

  it("survives the scope it was made in", function()
    local x = lm.tensor({ 1, 2 }, { requires_grad = true })
    local y = lm.scope(function()
      local h = x * 2
      return checkpoint(function(v) return v:sin():exp() end, h)
    end)
    y:sum():backward()
    local z = lm.tensor({ 1, 2 }, { requires_grad = true })
    local w = (z * 2):sin():exp():sum()
    w:backward()
    assert.is_true(x.grad:equal(z.grad))
  end)

  -- Bytes that are live between forward and backward, and at most.
  local function bytes(forward)
    local function run()
      lm.manual_seed(3)
      local x = lm.randn({ 64, 64 }, { requires_grad = true })
      collectgarbage()
      collectgarbage()
      local before = lm.memory_allocated()
      local y = forward(x)
      collectgarbage()
      collectgarbage()
      local kept = lm.memory_allocated() - before
      lm.reset_peak_memory_stats()
      y:sum():backward()
      return kept, lm.max_memory_allocated() - before, x.grad
    end
    run()
    return run()
  end

  it("keeps its arguments alone, and one part at a time in backward", function()
    local one = 64 * 64 * 4
    local function part(v)
      collectgarbage() -- the amount of garbage may differ
      for _ = 1, 10 do v = v:sin():exp():tanh() end
      return v
    end
    local function layers(with)
      return function(x)
        for _ = 1, 8 do x = with(part, x) end
        return x
      end
    end
    local kept, most, grad = bytes(layers(function(f, x) return f(x) end))
    local kept_less, most_less, grad_less = bytes(layers(checkpoint))
    assert.is_true(grad:equal(grad_less))
    assert.is_true(kept >= 150 * one, kept / one)
    assert.is_true(kept_less <= 12 * one, kept_less / one)
    assert.is_true(most_less < most / 2 and most_less <= 60 * one, most_less / one)
    -- Halves within halves hold even less at once.
    local function halves(n)
      if n == 1 then return function(v) return part(v) end end
      return function(v) return checkpoint(halves(n / 2), checkpoint(halves(n / 2), v)) end
    end
    local _, most_nested, grad_nested = bytes(halves(8))
    assert.is_true(grad:equal(grad_nested))
    assert.is_true(most_nested <= 50 * one, most_nested / one)
  end)
end)

describe("a checkpoint's second run leaves running statistics alone:", function()
  -- Returns buffers and gradients after two passes forward and backward; run(net, x) returns the result.
  local function states(make, x, run)
    lm.manual_seed(5)
    local net, result = make(), {}
    for _ = 1, 2 do
      local input = x:clone():requires_grad_()
      local y = run(net, input)
      y:square():sum():backward()
      result[#result + 1] = input.grad
    end
    for name, b in net:named_buffers() do result[name] = b:clone() end
    for name, p in net:named_parameters() do result["gradient of " .. name] = p.grad end
    return result
  end

  local ways = {
    checkpoint = function(net, x) return checkpoint(net, x) end,
    ["a checkpoint within one"] = function(net, x)
      return checkpoint(function(a) return checkpoint(net, a) * 1 end, x)
    end,
    ["a sequence"] = function(net, x)
      return autograd.checkpoint_sequential(nn.Sequential(net, nn.Identity()), 2, x)
    end,
  }
  local function alike(make, shape)
    lm.manual_seed(4)
    local x = lm.randn(shape)
    local want = states(make, x, function(net, input) return net(input) end)
    for way, run in pairs(ways) do
      local got = states(make, x, run)
      for name, t in pairs(want) do
        assert(lm.equal(t, got[name]), ("%s: %s is %s, not %s"):format(way, name, tostring(got[name]), tostring(t)))
      end
    end
  end

  it("of batch norms", function()
    for _, momentum in ipairs { 0.1, 1, false } do
      alike(function() return nn.BatchNorm1d(3, { momentum = momentum }) end, { 4, 3 })
      alike(function() return nn.BatchNorm2d(3, { momentum = momentum }) end, { 4, 3, 2, 2 })
      alike(function() return nn.BatchNorm3d(3, { momentum = momentum, affine = false }) end, { 4, 3, 2, 2, 2 })
      alike(function()
        return nn.Sequential(nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3, { momentum = momentum }), nn.ReLU())
      end, { 4, 3, 2, 2 })
    end
    alike(function() return nn.BatchNorm1d(3):eval() end, { 4, 3 })
    alike(function() return nn.BatchNorm1d(3):bfloat16():float() end, { 4, 3 })
  end)

  it("of a batch norm of inputs without gradients", function()
    local bn = nn.BatchNorm1d(2, { affine = false })
    local w = lm.ones(2):requires_grad_()
    checkpoint(function(x) return bn(x) * w end, lm.randn(5, 2)):sum():backward()
    assert.equal(1, bn.num_batches_tracked:item())
  end)

  it("of instance norms and spectral norms", function()
    alike(function() return nn.InstanceNorm1d(3, { track_running_stats = true }) end, { 4, 3, 5 })
    alike(function() return nn.InstanceNorm2d(3, { track_running_stats = true, affine = true }) end, { 3, 3, 2, 2 })
    alike(function() return nn.utils.parametrizations.spectral_norm(nn.Linear(3, 4)) end, { 4, 3 })
  end)

  it("of functions", function()
    local mean, var = lm.zeros(3), lm.ones(3)
    checkpoint(function(x) return F.batch_norm(x, mean, var, nil, nil, true, 1) end, lm.ones(4, 3):requires_grad_())
      :sum():backward()
    assert.same({ 1, 1, 1 }, mean:totable())
    assert.same({ 0, 0, 0 }, var:totable())
  end)

  it("and not what the function makes itself", function()
    local Moments = nn.Module:extend("Moments") -- normalizes by what batch_norm writes
    function Moments:init()
      self.w = nn.Parameter(lm.ones(3))
      self:register_buffer("mean", lm.zeros(3))
    end
    function Moments:forward(x)
      local mean, all = lm.zeros(3), lm.zeros(6)
      local var = all[{ { 4, 6 } }] -- a view, which is as old as its base
      F.batch_norm(x, mean, var, nil, nil, true, 1)
      F.batch_norm(x * 2, self.mean, lm.ones(3), nil, nil, true, 0.5)
      return (x - mean) * self.w / (var + all[{ { 1, 3 } }] + 1) * mean
    end
    alike(Moments, { 4, 3 })
    alike(function() return nn.Sequential(Moments(), nn.BatchNorm1d(3), Moments()) end, { 4, 3 })
  end)
end)

describe("a checkpoint that cannot be computed again says so:", function()
  local function leaf() return lm.tensor({ 1, 2 }, { requires_grad = true }) end

  it("an error in the second time", function()
    local calls = 0
    local y = checkpoint(function(v)
      calls = calls + 1
      if calls == 2 then error("the second time") end
      return v:exp()
    end, leaf()):sum()
    assert.matches("recompute_spec.lua:%d+: the second time", message(y.backward, y))
    y:backward() -- the graph is as it was
    assert.equal(3, calls)
    assert.is_true(lm.is_grad_enabled())
  end)

  it("an error in the first time leaves the modes as they were", function()
    assert.matches("the first time", message(checkpoint, function(v) error("the first time" .. (v * 2):item()) end,
      lm.tensor({ 1 }, { requires_grad = true })))
    local x = leaf()
    local y = x:exp():sum() -- y belongs to no checkpoint
    y:backward()
    assert.is_true(x.grad:equal(x:detach():exp()))
  end)

  local function after(f, change)
    local y = checkpoint(f, leaf()):sum()
    if change then change() end
    local text = message(y.backward, y)
    return (text:gsub("[^ ]*recompute_spec.lua:%d+", "HERE"))
  end

  it("other ops", function()
    local calls = 0
    local function f(v)
      calls = calls + 1
      v = v:sin()
      if calls == 2 then return v:exp() end
      if calls == 4 then return v:cos():cos() end
      if calls == 6 then return lm.cat { v, v }:tanh() end
      return v:tanh()
    end
    assert.equal("HERE: checkpoint at HERE: recomputing must run the same ops: op 2 was "
      .. "tanh, got exp", after(f))
    assert.equal("HERE: checkpoint at HERE: recomputing must run the same ops: it recorded 3 "
      .. "ops, expected 2", after(f))
    assert.matches("recorded 3 ops", after(f))
  end)

  it("other sizes", function()
    local n = 1
    assert.matches("op 1 was mul, got the same with other shapes, dtypes or inputs", after(function(v)
      n = n + 1
      return v * lm.ones { n - 1, 2 }
    end))
  end)

  it("a parameter that was changed", function()
    local w = leaf()
    assert.equal("HERE: checkpoint at HERE: cannot recompute: an input of mul (op 2) "
      .. "was changed in place since", after(function(v) return v:sin() * w end,
      function() lm.no_grad(function() w:add_(1) end) end))
  end)

  it("a variable that holds another tensor now", function()
    local h = leaf()
    assert.equal("HERE: checkpoint: 'h', an upvalue of the function, is another tensor than in the forward pass; "
      .. "pass it as an argument", after(function(v) return v * h end, function() h = h + 1 end))
  end)

  it("an argument that was written to", function()
    local x = leaf() * 1
    assert.matches("the function changed its argument 1 in place, but backward needs it unchanged",
      message(checkpoint, function(v) return v:mul_(2) end, x))
  end)

  it("wrong arguments", function()
    assert.matches("checkpoint: f must be a function, got 3", message(checkpoint, 3))
    assert.matches("checkpoint: f must be a function, got nil", message(checkpoint))
    assert.matches("preserve_rng_state must be true or false, got 1",
      message(checkpoint, function() end, { preserve_rng_state = 1 }))
    local sequential = autograd.checkpoint_sequential
    assert.matches("expected an nn%.Sequential or a list of functions, got a module, Linear",
      message(sequential, nn.Linear(1, 1), 1, leaf()))
    assert.matches("segments must be at most 1, the number", message(sequential, nn.Sequential(nn.ReLU()), 3, leaf()))
    assert.matches("segments is missing or nil; expected an integer of at least 1", message(sequential,
      nn.Sequential(nn.ReLU())))
    assert.matches("unknown option 'preserve_rng'", message(sequential, nn.Sequential(nn.ReLU()), 1, leaf(),
      { preserve_rng = true }))
  end)
end)

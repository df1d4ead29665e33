-- lm.prepare: the same results as the module, renewal after changes, and what runs as it is.
local lm = require "luminary"
local serialization = require "luminary.mp.serialization"
local temp = require "spec.support.temp"
local nn, F = lm.nn, lm.nn.functional

local function near(a, b) return lm.allclose(a, b, {rtol = 1e-5, atol = 1e-5}) end
local function plain(net, ...)
  local arguments = {...}
  return lm.no_grad(function() return net(unpack(arguments)) end)
end

-- Calls f with warnings off.
local function quietly(f, ...)
  local before = lm.set_warnings(false)
  local results = {pcall(f, ...)}
  lm.set_warnings(before)
  if not results[1] then error(results[2], 0) end
  return unpack(results, 2)
end

local function small_net()
  lm.manual_seed(0)
  local net = nn.Sequential(nn.Conv2d(3, 8, 3, {padding = 1, bias = false}), nn.BatchNorm2d(8), nn.ReLU6(),
    nn.Conv2d(8, 8, 3, {padding = 1, groups = 8}), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 16, 1),
    nn.BatchNorm2d(16), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.5), nn.Linear(16, 5))
  for _ = 1, 3 do net(lm.randn(4, 3, 9, 9)) end -- statistics other than 0 and 1
  return net:eval()
end

describe("lm.prepare", function()
  it("returns what the module returns, for each shape", function()
    local net = small_net()
    local run, state = lm.prepare(net, lm.randn(1, 3, 9, 9))
    for _, shape in ipairs {{1, 3, 9, 9}, {2, 3, 9, 9}, {1, 3, 12, 10}, {2, 3, 9, 9}} do
      local x = lm.randn(shape)
      assert.is_true(near(plain(net, x), run(x)))
      assert.is_false(run(x).requires_grad)
    end
    assert.equal(3, state.recordings)
    assert.is_nil(state.reason)
    assert.equal("conv2d_with_epilogue", state.plan:ops()[1])
  end)

  it("sees parameters and statistics changed in place, replaced layers and modes", function()
    local net = small_net()
    net:register_buffer("factor", lm.tensor(2), {persistent = false})
    function net:forward(x) return nn.Sequential.forward(self, x) * self.factor:item() end
    local x = lm.randn(2, 3, 9, 9)
    local run = lm.prepare(net, x)
    local changes = {
      function() net[1].weight:mul_(2) end, function() net[2].running_mean:add_(0.5) end,
      function() net[12] = nn.Linear(16, 5):eval() end, function() net[7].bias = nn.Parameter(lm.ones(16)) end,
      function() net:load_state_dict(small_net():state_dict()) end,
      function() net[1].weight.data = lm.randn(8, 3, 3, 3) end, function() net.factor:fill_(3) end,
    }
    for _, change in ipairs(changes) do
      local before = run(x)
      lm.no_grad(change)
      assert.is_true(near(plain(net, x), run(x)))
      assert.is_false(near(before, run(x)))
    end
    net:train()
    assert.has_error(function() run(x) end)
  end)

  it("returns lists and tables of tensors, and takes them", function()
    local run = lm.prepare(function(t, factor) return {sum = t.a + t.b, parts = {t.a * factor, 3}}, t.b end)
    for _ = 1, 3 do
      local a, b = lm.randn(2), lm.randn(2)
      local made, second = run({a = a, b = b}, 2)
      assert.is_true(lm.equal(made.sum, a + b) and lm.equal(made.parts[1], a * 2) and lm.equal(second, b))
      assert.equal(3, made.parts[2])
    end
    assert.is_true(lm.equal(run({a = lm.ones(2), b = lm.ones(2)}, 5).parts[1], lm.full({2}, 5)))
  end)

  it("runs as it is what cannot be recorded", function()
    local choose = function(x)
      if x:sum():item() > 0 then return x * 2 end
      return x - 1
    end
    local pick = function(x) return x:masked_select(x:gt(0)) end
    local noise = function(x) return x + F.dropout(lm.zeros(2), 0.5, true) end
    local write = function(x) return x:add_(1) end
    local slope = function(x)
      return lm.enable_grad(function()
        local y = x:detach():requires_grad_()
        return lm.grad((y * y * y):sum(), {y})[1]
      end)
    end
    local replace = function(x)
      local y = lm.zeros(2)
      y.data = x * 2
      return y + 1
    end
    for _, f in ipairs {choose, pick, noise, write, slope, replace} do
      local run = quietly(lm.prepare, f)
      quietly(run, lm.ones(3 - 1))
      for _, x in ipairs {lm.tensor {1, -3}, lm.tensor {2, 2}, lm.tensor {-1, -1}} do
        assert.is_true(lm.equal(f(x:clone()), quietly(run, x:clone())))
      end
    end
  end)

  it("replays writes in place to tensors that it makes", function()
    local run, state = lm.prepare(function(x)
      local y = lm.zeros(3, 2)
      y[2] = x
      y:mul_(2)
      return y, y:sum(1)
    end)
    for _ = 1, 3 do
      local x = lm.randn(2)
      local y, sum = run(x)
      assert.is_true(near(sum, x * 2) and near(y[2], x * 2) and near(y[1], lm.zeros(2)))
    end
    assert.is_nil(state.reason)
    assert.equal(1, state.recordings)
  end)

  it("takes arguments for what they are, though a recording had the same tensor twice or the function's own", function()
    local x, y = lm.tensor {1, 2}, lm.tensor {5, 7}
    local differ, own = lm.prepare(function(a, b) return a - b end, x, x), lm.prepare(function(a) return a - x end, x)
    assert.is_true(lm.equal(x - y, differ(x, y)) and lm.equal(y - x, own(y)))
    local run, state = lm.prepare(function(a, s, t) return a * #s + (t and 1 or 0) end)
    assert.is_true(lm.equal(x * 12, run(x, "a;string 1:b")) and lm.equal(x + 1, run(x, "a", "b")))
    local last_digit = lm.prepare(function(a, n) return a * (n % 10) end)
    assert.is_true(lm.equal(x * (2 ^ 50 % 10), last_digit(x, 2 ^ 50)))
    assert.is_true(lm.equal(x * ((2 ^ 50 + 1) % 10), last_digit(x, 2 ^ 50 + 1)))
    assert.equal(2, state.recordings)
    local same = lm.prepare(function(a) return a, {a}, x end)
    for _ = 1, 2 do
      local a, list, constant = same(y)
      assert.is_true(a == y and list[1] == y and constant == x)
    end
  end)

  it("takes arguments that share memory, and returns views of them", function()
    local function f(a, b) return (a * b):sum(), a:t(), b:reshape(12) + 1 end
    for _, dtype in ipairs {"float16", "bfloat16", "float32"} do
      local function parts(rows) return lm.randn(rows, 9):to(dtype):narrow(2, 1, 6):chunk(2, 2) end
      local run, state = lm.prepare(f, unpack(parts(4)))
      local halves, others = parts(4), {parts(4)[2], parts(5)[2]:narrow(1, 2, 4)}
      for _, pair in ipairs {halves, others, {halves[1], halves[1]}} do
        local want, got = {f(unpack(pair))}, {run(unpack(pair))}
        for i = 1, 3 do assert.is_true(lm.equal(want[i], got[i])) end
        got[2]:fill_(3)
        assert.is_true(lm.equal(pair[1], lm.full({4, 3}, 3):to(dtype)))
      end
      assert.equal(1, state.recordings)
      local windows, status = lm.prepare(function(x) return x:unfold(1, 2, 1), x * 2 end)
      for _ = 1, 2 do assert.is_true(lm.equal(halves[1]:unfold(1, 2, 1), (windows(halves[1])))) end
      assert.is_nil(status.reason)
    end
    local weight = lm.randn(3)
    local run, state = quietly(lm.prepare, function(x) return x - weight end, weight)
    for _ = 1, 2 do assert.is_true(lm.equal(lm.ones(3), run(weight + 1))) end
    assert.equal(2, state.recordings)
    assert.is_nil(state.reason)
    for _ = 1, 2 do assert.is_true(lm.equal(lm.zeros(3), quietly(run, weight))) end
  end)

  it("writes to no argument that the module would not write to", function()
    local run = lm.prepare(function(x) return x:contiguous():add_(1) end)
    quietly(run, lm.zeros(2, 3):t())
    local x, y = lm.zeros(3, 2), lm.zeros(2, 3)
    assert.is_true(lm.equal(lm.ones(3, 2), quietly(run, x)) and lm.equal(x, lm.ones(3, 2)))
    assert.is_true(lm.equal(lm.ones(3, 2), quietly(run, y:t())) and lm.equal(y, lm.zeros(2, 3)))
  end)

  it("returns results that no later call changes", function()
    local weight = lm.ones(2)
    local run = lm.prepare(function(x) return lm.zeros(2), x + 1, weight:view(2, 1) end, weight)
    local zeros, sum, view = run(weight)
    zeros:fill_(5)
    local again = run(weight)
    assert.same({0, 0}, again:totable())
    run(weight * 3)
    assert.same({2, 2}, sum:totable())
    view:fill_(3) -- a view of a tensor of the module stays one
    assert.same({3, 3}, weight:totable())
  end)

  it("runs as it is what has effects beside its results: changed tables and fields, hooks, other calls", function()
    local grow = function(x, cache)
      cache.k = cache.k and lm.cat({cache.k, x}, 1) or x
      return cache.k
    end
    local run, cache = lm.prepare(grow), {}
    for i = 1, 4 do assert.equal(i, quietly(run, lm.ones(1, 2), cache).shape[1]) end

    local Recurrent = nn.Module:extend "Recurrent"
    function Recurrent:forward(x)
      self.mask = self.mask or lm.full({2}, 2)
      if self.grows then self.h = (self.h or 0) + x * self.mask end
      return x * self.mask + (self.h or 0)
    end
    local net = Recurrent():eval()
    local once, state = lm.prepare(net)
    for _ = 1, 4 do assert.same({2, 2}, once(lm.ones(2)):totable()) end
    assert.is_nil(state.reason) -- the mask was made once
    net.grows = true
    local grown, reason = lm.prepare(net)
    for i = 1, 4 do assert.same({2 + 2 * i, 2 + 2 * i}, quietly(grown, lm.ones(2)):totable()) end
    assert.equal("forward assigns the field 'h' in each call", reason.reason)

    local layers, seen = nn.Sequential(nn.Linear(2, 2), nn.ReLU()):eval(), 0
    local hooked, status = lm.prepare(layers, lm.ones(1, 2))
    local handle = layers[1]:register_forward_hook(function() seen = seen + 1 end)
    for _ = 1, 3 do quietly(hooked, lm.ones(1, 2)) end
    assert.equal(3, seen)
    assert.matches("hook", status.reason)
    handle.remove()
    for _ = 1, 3 do hooked(lm.ones(1, 2)) end
    assert.same({3, 2}, {seen, status.recordings})

    local clipped = nn.Parameter(lm.ones(2))
    clipped.grad = lm.ones(2) * 10
    lm.dist.init_process_group {world_size = 1, rank = 0}
    for name, f in pairs {
      ["a random number generator"] = function() lm.vision.transforms.RandomHorizontalFlip(0.5)(lm.zeros(1, 2, 2)) end,
      total_norm = function() nn.utils.clip_grad_norm_({clipped}, 1) end,
      all_reduce = function(x) lm.dist.all_reduce(x) end,
    } do
      local call, why = lm.prepare(function(x)
        local y = x * 2
        f(y)
        return y
      end)
      quietly(call, lm.ones(2))
      assert.equal(("it calls %s, which a recording cannot follow"):format(name), why.reason)
    end
    lm.dist.destroy_process_group()
  end)

  it("records in work that grows with the number of ops, and not with its square #unsanitized", function()
    if os.execute "command -v valgrind >/dev/null" ~= 0 then return pending "no valgrind" end
    local program = os.tmpname()
    temp.write(program, [[
      jit.off()
      local core, n = require("luminary").core, tonumber(arg[1])
      local x = core.ops.ones {2}
      local tape, y = core.record_ops(function(list)
        local y = list[1]
        for _ = 1, n do y = y + x end
        return y
      end, {x:clone()})
      print("ops:", #core.plan_new(tape, {y}):ops())
    ]])
    local function instructions(n)
      local pipe = io.popen(("LM_CPU_LEVEL=1 valgrind --tool=cachegrind --cache-sim=no --cachegrind-out-file=/dev/null "
        .. "--smc-check=all-non-file luajit %s %d 2>&1"):format(program, n))
      local text = pipe:read "*a"
      pipe:close()
      assert.matches("ops:%s+" .. n .. "\n", text)
      return tonumber((text:match "I +refs: +([%d,]+)":gsub(",", "")))
    end
    local least = instructions(1)
    local small, large = instructions(1000) - least, instructions(4000) - least
    os.remove(program)
    assert.is_true(large < 6 * small, ("%d instructions for 1,000 ops, %d for 4,000"):format(small, large))
  end)

  it("bounds a recording at 100,000 ops #unsanitized", function()
    local function sum(x, n)
      for _ = 1, n do x = x + 1 end
      return x
    end
    local run, state = lm.prepare(sum)
    assert.equal(1e5, quietly(run, lm.zeros(1), 1e5):item())
    assert.equal(1e5, run(lm.zeros(1), 1e5):item())
    assert.is_nil(state.reason)
    assert.equal(100001, quietly(run, lm.zeros(1), 100001):item())
    assert.equal("it calls more than 100000 ops, the most of a recording", state.reason)
    assert.equal(100002, quietly(run, lm.ones(1), 100001):item())
    local tape = lm.core.record_ops(function(list) return sum(list[1], 100002) end, {lm.zeros(1)})
    assert.equal(100000, #(tape:steps()))
    tape:close()
  end)

  it("can be sent to other threads before and after calls, and records again there", function()
    local net, x = small_net(), lm.randn(2, 3, 9, 9)
    local y = plain(net, x)
    for calls = 0, 2 do
      local run, state = lm.prepare(net)
      for _ = 1, calls do run(x) end
      local there, its = unpack(serialization.decode(serialization.encode("spec", {run, state}, {})))
      for _ = 1, 3 do assert.is_true(near(y, there(x)) and near(y, run(x))) end
      assert.is_true(its ~= state and its.plan ~= state.plan)
      assert.is_true(its.recordings == 1 and state.recordings == 1)
    end
  end)

  it("can be sent to other processes, where memory of the parameters moves, and records again", function()
    for calls = 0, 2 do
      local net, x = small_net(), lm.randn(2, 3, 9, 9)
      local y = plain(net, x)
      local run, state = lm.prepare(net)
      for _ = 1, calls do run(x) end
      local from = net[1].weight:data_ptr()
      serialization.encode("spec", {run, net, state}, {processes = true})
      assert.is_true(from ~= net[1].weight:data_ptr() and net[1].weight:is_shared())
      for _ = 1, 2 do assert.is_true(near(y, run(x))) end
      assert.equal(calls > 0 and 2 or 1, state.recordings)
    end
  end)

  it("is what lm.compile does with a module where no gradient is recorded", function()
    local net, x = small_net(), lm.randn(2, 3, 9, 9)
    local run, state = lm.compile(net)
    local want = net(x)
    assert.is_true(lm.equal(want, run(x)))
    assert.equal(0, state.recordings)
    assert.equal("the backward pass of a module is not captured with it; compile the complete step", state.reason)
    for _ = 1, 3 do assert.is_true(near(want, lm.no_grad(run, x))) end
    assert.equal(1, state.recordings)
    assert.is_nil(state.reason)
    lm.no_grad(function() net[1].weight:mul_(2) end)
    assert.is_true(near(plain(net, x), lm.no_grad(run, x)))
  end)

  it("is not what lm.compile does with a function, whose Lua runs in each call", function()
    local x, factor = lm.randn(2, 3, 9, 9), 1
    local scaled, state = lm.compile(function(t) return (t.x * factor + 1):tanh() * factor end)
    for _, dtype in ipairs {"bfloat16", "float16", "float32"} do
      for k = 1, 3 do
        factor = k
        local want = (x:to(dtype) * k + 1):tanh() * k
        assert.is_true(lm.equal(want, lm.no_grad(scaled, {x = x:to(dtype)})))
      end
    end
    assert.equal(6, state.runs)
    assert.is_nil(state.reason)
  end)

  it("refuses wrong arguments", function()
    assert.has_error(function() lm.prepare(3) end)
    local run = lm.prepare(function(x) return x * 2 end)
    assert.has_error(function() run(lm.ones(2, {requires_grad = true})) end)
    local many, state = lm.prepare(function(x) return x * 2 end)
    for _ = 1, 2 do
      for i = 1, 64 do many(lm.ones(i)) end
    end
    assert.equal(64, state.recordings)
    for i = 65, 90 do many(lm.ones(i)) end
    many(lm.ones(1)) -- 64 are kept, so this one was dropped
    assert.equal(91, state.recordings)
  end)

  it("joins batch norm, sums and limits to convolutions of every kernel, as the module computes them", function()
    lm.manual_seed(1)
    local convolutions = {
      nn.Conv2d(8, 8, 3, {padding = 1}), nn.Conv2d(8, 8, 3, {padding = 1, stride = 2, bias = false}),
      nn.Conv2d(8, 8, 1), nn.Conv2d(64, 32, 1, {bias = false}), nn.Conv2d(3, 16, 3, {padding = 1}),
      nn.Conv2d(16, 16, 5, {padding = 2, groups = 16}), nn.Conv2d(16, 24, 3, {groups = 8}),
      nn.Conv2d(64, 64, 3, {padding = 1}), nn.Conv2d(24, 20, 1, {stride = 2}),
    }
    for i, conv in ipairs(convolutions) do
      local bn = nn.BatchNorm2d(conv.weight.shape[1])
      local channels = conv.weight.shape[2] * conv.groups
      for _, size in ipairs {7, 30} do
        local x = lm.randn(2, channels, size, size)
        bn:train()(conv(x))
        bn:eval()
        local last = {
          function(y) return F.relu(y) end, function(y, other) return y + other end,
          function(y, other) return F.relu6((other + y):mul_(1)) end, function(y) return y:clamp(-0.5, 0.75) end,
          function(y, other) return F.relu(y:add_(other)) end, function(y) return y, y:relu() end,
          function(y, other) return y - other end, function(y, other) return y:add(other, {alpha = 2}) end,
        }
        for k, f in ipairs(last) do
          local function net(image, other) return f(bn(conv(image)), other) end
          local other = lm.no_grad(function() return lm.randn(conv(x).shape) end)
          local run, state = lm.prepare(net, x, other)
          local wanted, also = plain(net, x, other)
          local y, too = run(x, other)
          assert.is_true(lm.allclose(wanted, y, {rtol = 1e-4, atol = 1e-4}), ("convolution %d, %d"):format(i, k))
          assert.is_true(not also or lm.allclose(also, too, {rtol = 1e-4, atol = 1e-4}))
          assert.equal("conv2d_with_epilogue", state.plan:ops()[1])
          if k == 1 or k == 4 then assert.equal(1, #state.plan:ops()) end -- relu, clamp
        end
      end
    end
  end)

  it("joins sums, activations and limits to convolutions and linear layers", function()
    lm.manual_seed(1)
    local activations = {
      F.relu, F.silu, F.hardswish, F.hardsigmoid, lm.sigmoid, lm.tanh, F.gelu,
      function(y) return F.gelu(y, {approximate = "tanh"}) end, function(y) return F.silu(y):clamp(-0.1, 1) end,
    }
    local weight, row = lm.randn(20, 31) / 4, lm.randn(31)
    local layers = {
      {nn.Linear(20, 31), lm.randn(2, 9, 20)}, {nn.Linear(20, 31, {bias = false}), lm.randn(1, 20)},
      {function(x) return x:matmul(weight) + row end, lm.randn(2, 9, 20)},
      {function(x) return x:mm(weight) end, lm.randn(70, 20)},
      {function(x) return row:addmm(x, weight) end, lm.randn(7, 20)}, {nn.Conv2d(3, 17, 3), lm.randn(2, 3, 9, 9)},
      {nn.Sequential(nn.Linear(20, 6), nn.BatchNorm1d(6)):eval(), lm.randn(5, 20)},
    }
    for i, layer in ipairs(layers) do
      local f, x = unpack(layer)
      local other = plain(f, x)
      for k, activation in ipairs(activations) do
        for _, net in ipairs {
          function(v) return activation(f(v)) end, function(v, w) return activation(f(v) + w) end,
          function(v, w) return activation(f(v)) + w end,
        } do
          local run, state = lm.prepare(net, x, other)
          assert.is_true(near(plain(net, x, other), run(x, other)), ("layer %d, activation %d"):format(i, k))
          assert.is_true(state.plan:ops()[1]:find "_with_epilogue$" ~= nil)
        end
      end
      assert.equal(1, #select(2, lm.prepare(function(v, w) return activations[3](f(v) + w) end, x, other)).plan:ops())
    end
    local moved = nn.Linear(20, 20)
    for _, net in ipairs { -- steps that cannot be joined
      function(x) return moved(x) + x:sum() end, function(x) return F.gelu(moved(x)), moved.bias + 1 end,
      function(x) local y = moved(x); return F.relu(y) * y end, function(x) return x:matmul(x.T) end,
      function(x) return moved(x) + moved.bias + moved.bias end,
      function(x) return moved.bias:addmm(x, moved.weight, {beta = 2}) end,
      function(x) return x:sum(1):addmm(x, moved.weight) + lm.ones(9, 1):addmm(x, moved.weight) end,
    } do
      local x = lm.randn(9, 20)
      assert.is_true(near(plain(net, x), lm.prepare(net, x)(x)))
    end
  end)

  it("runs no step whose results nobody reads", function()
    local run, state = lm.prepare(function(x)
      local y, unread = x * 2, x:exp():sum()
      y:view(3):add_(1)
      return unread and y
    end, lm.ones(3))
    assert.same({"mul", "add"}, state.plan:ops()) -- views are no steps
    assert.same({3, 3, 3}, run(lm.ones(3)):totable())
  end)

  it("folds weights once for all shapes", function()
    local net = nn.Sequential(nn.Conv2d(64, 256, 3), nn.BatchNorm2d(256)):eval()
    local run = lm.prepare(net, lm.ones(1, 64, 3, 3))
    local before, weight = lm.memory_allocated(), net[1].weight:numel() * 4
    for n = 2, 9 do run(lm.ones(n, 64, 3, 3)) end
    assert.is_true(lm.memory_allocated() - before < weight)
    lm.no_grad(function() net[1].weight:mul_(2) end)
    for n = 1, 3 do
      local x = lm.randn(n, 64, 3, 3)
      assert.is_true(near(plain(net, x), run(x)))
    end
  end)

  it("records autocast's casts, and casts weights once", function()
    local net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(392, 16),
      nn.LayerNorm(16), nn.GELU(), nn.Linear(16, 4), nn.LogSoftmax(-1)):eval()
    local function f(x)
      local y = net(x)
      return y, F.cross_entropy(y, lm.tensor({1, 2}, {dtype = "int64"})), (y:t():matmul(y) + y[1]):softmax(1)
    end
    local run, state = lm.prepare(f)
    local inner = lm.prepare(function(x) return lm.autocast({device_type = "cpu", dtype = "bfloat16"}, f, x) end)
    local function within(dtype, g, x) return lm.autocast({device_type = "cpu", dtype = dtype}, g, x) end
    local function check(dtype, x, g)
      local want = {plain(function(a) return within(dtype, f, a) end, x)}
      local got = g and {g(x)} or {within(dtype, run, x)}
      for i = 1, 3 do assert.is_true(want[i].dtype == got[i].dtype and lm.equal(want[i], got[i])) end
    end
    for _ = 1, 3 do
      for _, dtype in ipairs {"bfloat16", "float16"} do
        check(dtype, lm.randn(2, 3, 9, 9))
        check(dtype, lm.randn(2, 9, 9, 3):permute(1, 4, 2, 3))
      end
      check("bfloat16", lm.randn(2, 3, 9, 9), inner)
      local x = lm.randn(2, 3, 9, 9)
      assert.is_true(near(plain(f, x), (run(x))))
    end
    assert.equal(5, state.recordings)
    lm.no_grad(function() net[5].weight:mul_(2) end)
    check("bfloat16", lm.randn(2, 3, 9, 9))
    check("bfloat16", lm.randn(2, 3, 9, 9), inner)
    local linear, casts = lm.prepare(nn.Linear(16, 4):eval())
    within("bfloat16", linear, lm.ones(2, 16))
    assert.same({"to_copy", "linear"}, casts.plan:ops())
  end)

  it("leaves other dtypes as they are", function()
    local net = nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.ReLU()):double():eval()
    local x = lm.randn({1, 2, 5, 5}, {dtype = "float64"})
    local run, state = lm.prepare(net, x)
    assert.is_true(lm.equal(plain(net, x), run(x)))
    assert.equal("conv2d", state.plan:ops()[1])
    assert.error_matches(function() lm.ops.conv2d_with_epilogue(x, lm.randn({3, 2, 3, 3}, {dtype = "float64"})) end,
      "conv2d_with_epilogue: x must be float32")
    assert.error_matches(function() lm.ops.linear_with_epilogue(x, lm.randn({3, 5}, {dtype = "float64"})) end,
      "linear_with_epilogue: x must be float32")
  end)

  it("records a network of many layers once", function() -- LuaJIT compiled the search for changes wrongly at times
    for _, name in ipairs {"mobilenet_v2", "mobilenet_v3_small", "resnet18"} do
      local run, state = lm.prepare(lm.models[name]():eval())
      for _ = 1, 5 do run(lm.zeros(1, 3, 32, 32)) end -- down to one pixel, whose strides differ
      assert.same({1}, {state.recordings, state.reason})
    end
  end)

  local packed = {
    linear = {function() return nn.Linear(96, 200) end, {40, 96}, 96 * 200},
    ["linear of many terms"] = {function() return nn.Linear(4200, 64) end, {24, 4200}, 4200 * 64},
    matmul = {function()
      local net = nn.Identity()
      net.weight = nn.Parameter(lm.randn(96, 200))
      function net.forward(self, x) return x:matmul(self.weight) end
      return net
    end, {20, 96}, 96 * 200},
    ["1 x 1 convolution"] = {function() return nn.Conv2d(64, 96, 1) end, {2, 64, 7, 7}, 64 * 96},
    ["3 x 3 convolution"] = {function() return nn.Conv2d(32, 64, 3, {stride = 2}) end, {1, 32, 9, 9}, 32 * 64 * 9},
    ["transposed convolution"] = {function() return nn.ConvTranspose2d(32, 64, 3, {stride = 2}) end, {1, 32, 9, 9},
      32 * 64 * 9},
    ["depthwise convolution"] = {function() return nn.Conv2d(256, 256, 3, {groups = 256}) end, {1, 256, 9, 9}, 256 * 9},
  }
  for name, case in pairs(packed) do
    it("packs weights once: " .. name, function()
      lm.manual_seed(0)
      local net, x = case[1]():eval(), lm.randn(case[2])
      local before = plain(net, x)
      local run = lm.prepare(net, x)
      collectgarbage()
      collectgarbage()
      local made = lm.memory_allocated()
      assert.is_true(near(before, run(x)))
      collectgarbage()
      local kept = lm.memory_allocated() - made
      assert.is_true(kept >= 4 * case[3] and kept < 4 * case[3] * 1.6 + 4096, kept)
      for _ = 1, 3 do run(x) end
      collectgarbage()
      assert.equal(kept, lm.memory_allocated() - made)
      lm.no_grad(function() net.weight:mul_(2):add_(1) end) -- the module itself must not read the old form
      local copy = case[1]():eval()
      copy:load_state_dict(net:state_dict())
      assert.is_true(near(plain(copy, x), plain(net, x)))
      assert.is_true(near(plain(copy, x), run(x)))
    end)
  end

  it("packs weights that few rows are multiplied by, which is not worth it for one call", function()
    for _, rows in ipairs {5, 8, 16} do
      local net, x = nn.Linear(256, 256):eval(), lm.randn(rows, 256)
      local exact = plain(net:clone():double(), x:double())
      local run = lm.prepare(net, x)
      collectgarbage()
      collectgarbage()
      local made = lm.memory_allocated()
      assert.is_true(near(exact:float(), run(x)))
      collectgarbage()
      assert.is_true(lm.memory_allocated() - made >= 4 * 256 * 256)
    end
  end)

  it("drops packed weights with their plans", function()
    local net, x = nn.Linear(96, 200):eval(), lm.randn(40, 96)
    local function use()
      local run = lm.prepare(net, x)
      run(x):free()
    end
    use()
    collectgarbage()
    collectgarbage()
    local before = lm.memory_allocated()
    use()
    assert.is_true(lm.memory_allocated() > before)
    collectgarbage()
    collectgarbage()
    assert.equal(before, lm.memory_allocated())
    lm.no_grad(function() -- a plan's weights that have another memory when it ends
      local run = lm.prepare(net, x)
      run(x):free()
      net.weight.data = lm.randn(200, 96)
    end)
    collectgarbage()
    collectgarbage()
    assert.equal(before, lm.memory_allocated())
  end)

  it("keeps no weights that were replaced", function()
    local net = nn.Linear(256, 256):eval()
    local run = lm.prepare(net)
    local function allocated()
      collectgarbage()
      collectgarbage()
      return lm.memory_allocated()
    end
    for n = 1, 4 do run(lm.ones(n, 256)) end
    local before = allocated()
    for _ = 1, 3 do
      net.weight.data = lm.ones(256, 256)
      run(lm.ones(2, 256))
    end
    assert.is_true(allocated() <= before)
  end)

  it("keeps no memory from call to call", function()
    local net = small_net()
    local x = lm.randn(2, 3, 9, 9)
    local run = lm.prepare(net, x)
    run(x)
    collectgarbage()
    collectgarbage()
    local before = lm.live_tensors()
    for _ = 1, 5 do run(x):free() end
    assert.equal(before, lm.live_tensors())
  end)

  it("takes no memory from the system after its first runs #unsanitized", function() -- which keep no freed memory
    local threads = lm.get_num_threads()
    lm.set_num_threads(1) -- a thread's scratch memory is made when it first gets a share of the work
    lm.empty_cache()
    local run = lm.prepare(small_net())
    local reserved = {}
    for n, x in ipairs {lm.randn(2, 3, 99, 99), lm.randn(3, 3, 150, 150)} do
      for _ = 1, 3 do run(x):free() end
      reserved[n] = lm.memory_reserved()
      for _ = 1, 5 do run(x):free() end
      assert.equal(reserved[n], lm.memory_reserved())
    end
    lm.set_num_threads(threads)
    assert.is_true(reserved[2] > reserved[1])
  end)
end)

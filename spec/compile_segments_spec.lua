-- lm.compile of training steps on the CPU: what is recorded as segments, where they end, and what runs as it is. The
-- bits of whole trainings are compared by compile_steps_spec.lua.
local ffi = require "ffi"
local lm = require "luminary"
local core = require "luminary.core"
local ops_of = require "spec.support.steps.ops_of"
local ranks = require "spec.support.ranks"
local nn, F = lm.nn, lm.nn.functional

-- Returns a small network's step (x, y) -> loss, and the network.
local function trainer(dtype, extra)
  lm.manual_seed(3)
  local net = nn.Sequential(nn.Linear(6, 40), nn.GELU(), nn.Linear(40, 3)):to(dtype or "float32")
  local opt = lm.optim.SGD(net:parameters(), {lr = 0.1, momentum = 0.9})
  return function(x, y)
    local out = net(x)
    out = (out * 2 + 1):tanh() * 3
    local loss = F.cross_entropy(out, y)
    if extra then extra(loss) end
    opt:zero_grad()
    loss:backward()
    opt:step()
    return loss
  end, net
end

-- Calls step n times; returns its losses.
local function run(step, n, dtype)
  lm.manual_seed(4)
  local losses = {}
  for i = 1, n do losses[i] = step(lm.randn(8, 6, {dtype = dtype}), lm.randint(1, 4, {8})):item() end
  return losses
end

describe("lm.compile of a training step", function()
  it("records forward and backward as one segment, and elementwise ops in a row together", function()
    for _, dtype in ipairs {"bfloat16", "float32", "float64"} do
      local compiled = core.compiled()
      local plain, step = trainer(dtype), trainer(dtype)
      assert.same(run(plain, 5, dtype), run(function(...) return compiled:call(step, ...) end, 5, dtype))
      local ops = ops_of(compiled, 1)
      assert.matches("linear %+gelu linear %+mul %+add %+tanh %+mul ", ops)
      assert.matches("mul %+tanh %+mul", ops:match "cross_entropy.*") -- the order of backward
      assert.is_nil(compiled:state().reason)
      assert.is_true(compiled:state().runs >= 4)
    end
  end)

  it("counts segments and runs from 0", function()
    local _, state = lm.compile(function(x) return x end)
    assert.same({0, 0}, {state.segments, state.runs})
  end)

  it("runs for batches that are slices of one tensor", function()
    lm.manual_seed(4)
    for _, dtype in ipairs {"float16", "bfloat16", "float32", "float64"} do
      local data, labels = lm.randn(40, 6):to(dtype), lm.randint(1, 4, {40})
      local compiled, losses = core.compiled(), {{}, {}}
      local plain, step = trainer(dtype), trainer(dtype)
      for at = 1, 33, 4 do
        local x, y = data:narrow(1, at, 8), labels:narrow(1, at, 8)
        table.insert(losses[1], plain(x, y):item())
        table.insert(losses[2], compiled:call(step, x, y):item())
      end
      assert.same(losses[1], losses[2])
      assert.equal(8, compiled:state().runs)
    end
  end)

  it("follows a call that ends without backward by calls that go on", function()
    for _, ending in ipairs {"skips", "fails", "reads"} do
      for _, dtype in ipairs {"float16", "bfloat16", "float32"} do
        local start = lm.ones(3, 3):to(dtype)
        local function made()
          local w = nn.Parameter(start:clone())
          return function(x, goes_on)
            local loss = (x * 2):mm(w):pow(2):mean()
            if not goes_on and ending == "fails" then error "no batch" end
            if ending == "reads" then loss:item() end
            if goes_on then loss:backward() end
            return not goes_on and loss:item() or loss:item() + w.grad:sum():item()
          end
        end
        local plain, step, compiled = made(), made(), core.compiled()
        for call = 1, 8 do
          local x, goes_on = lm.full({2, 3}, call):to(dtype), call % 4 ~= 1
          local want = {pcall(plain, x, goes_on)}
          local got = {pcall(compiled.call, compiled, step, x, goes_on)}
          local at = ("%s %d %s"):format(ending, call, tostring(got[2]))
          assert.same({want[1], want[1] and want[2]}, {got[1], got[1] and got[2]}, at)
        end
        assert.is_true(compiled:state().runs >= 2)
      end
    end
  end)

  it("runs forward and backward where parameters have hooks, which see the script's variables as they are", function()
    for _, dtype in ipairs {"float16", "bfloat16", "float32"} do
      local w, compiled, log, n = lm.ones(3, 3):to(dtype):requires_grad_(), core.compiled(), {}, 0
      w:register_hook(function(g) table.insert(log, ("%d: %g"):format(n, g:sum():item())) end)
      local function step(x)
        local loss = (x:mm(w):tanh() * 2):sum()
        n = n + 1
        loss:backward()
        n = n + 10
        return (x * 2):exp():mul(0.5):add(1)
      end
      for _ = 1, 4 do compiled:call(step, lm.zeros(2, 3):to(dtype) + 0.5) end
      local all = table.concat(log, " ")
      assert.equal(4, #log)
      assert.equal("1: 12: 23: 34:", (all:gsub(" [^:]*$", ""):gsub(" %-?[%d.]+ ", " ")))
      assert.equal(6, compiled:state().runs) -- two segments a call: up to backward, and after it
      assert.is_nil(compiled:state().reason)
    end
  end)

  it("runs hooks of parameters in the order of backward, whose last gradient is a view here", function()
    for _, dtype in ipairs {"float16", "bfloat16", "float32"} do
      local w = lm.ones({8, 48}, {dtype = dtype, requires_grad = true})
      local b, log = lm.ones({8}, {dtype = dtype, requires_grad = true}), {}
      w:register_post_accumulate_grad_hook(function() table.insert(log, "weight") end)
      b:register_hook(function() table.insert(log, "bias") end)
      local function step(x) ((x:abs() + 0.1):log():mean() + F.linear(x, w, b):mean()):backward() end
      local compiled, state = lm.compile(step)
      step(lm.ones({48}, {dtype = dtype}))
      local want, runs = table.concat(log, " "), 0
      for _ = 1, 4 do
        log = {}
        compiled(lm.ones({48}, {dtype = dtype}))
        assert.equal(want, table.concat(log, " "))
        runs = state.runs
      end
      assert.is_true(runs >= 2)
    end
  end)

  it("gives a view made without gradients the history of its base, which was written in place since", function()
    for _, dtype in ipairs {"bfloat16", "float32"} do
      for _, is_hooked in ipairs {false, true} do
        local w, v = lm.rand(8, 3):to(dtype):requires_grad_(), lm.rand(8):to(dtype):requires_grad_()
        if is_hooked then v:register_post_accumulate_grad_hook(function() end) end
        local compiled, state = lm.compile(function(x)
          local y = F.linear(x, w)
          local z, view = y * v, lm.no_grad(function() return y:unfold(1, 1, 1) end)
          y:mul_(2);
          (F.l1_loss(y, lm.zeros_like(y)) + view:mean() + z:detach():mean()):backward()
          return view
        end)
        for _ = 1, 4 do
          local view = compiled(lm.rand(7, 3):to(dtype))
          assert.same({true, false}, {view.requires_grad, view.is_leaf})
        end
        assert.is_true(state.runs >= 2)
      end
    end
  end)

  it("gives values that are read the histories that they have by then", function()
    for _, dtype in ipairs {"bfloat16", "float32"} do
      local function seen(wrap)
        lm.manual_seed(6)
        local w, list = lm.randn({2, 5}, {dtype = dtype, requires_grad = true}), {}
        local step = wrap(function(x)
          local plain, y = x:cos(), x * w + 1
          local row = plain[{{1, 1}}]
          plain:lerp_(w, 0.25)
          list[#list + 1] = {tostring(row:detach()), row.requires_grad, tostring(y.grad_fn), tostring(y)}
          y:narrow(2, 2, 3):mul_(3)
          y:sum():backward()
        end)
        for _ = 1, 4 do step(lm.randn({2, 5}, {dtype = dtype})) end
        return list
      end
      assert.same(seen(function(f) return f end), seen(lm.compile))
    end
  end)

  it("keeps the gradients of a pass before one with hooks", function()
    for _, dtype in ipairs {"bfloat16", "float32"} do
      for _, shares in ipairs {false, true} do
        local function gradients(wrap)
          lm.manual_seed(5)
          local a, b, h = lm.randn(7, {dtype = dtype}), lm.randn(7, {dtype = dtype}), lm.randn(7, {dtype = dtype})
          for _, leaf in ipairs {a, b, h} do leaf:requires_grad_() end
          h:register_post_accumulate_grad_hook(function(leaf) leaf.grad = leaf.grad * 0.5 end)
          local step, seen = wrap(function(x)
            for _, leaf in ipairs {a, b, h} do leaf.grad = nil end
            (x * a):square():mean():backward();
            (x * b * h + (shares and a or 0)):sin():sum():backward()
          end), {}
          for i = 1, 6 do
            step(lm.randn(7, {dtype = dtype}))
            seen[i] = {a.grad:tolist(), b.grad:tolist(), h.grad:tolist()}
          end
          return seen
        end
        assert.same(gradients(function(f) return f end), gradients(lm.compile))
      end
    end
  end)

  it("fails with the error of a hook, and runs again after it", function()
    local w, compiled, fails = lm.ones({3}, {requires_grad = true}), core.compiled(), false
    w:register_hook(function() if fails then error("the hook fails", 0) end end)
    local function step(x)
      w.grad = nil
      ((w * x):exp() * 2):tanh():sum():backward()
      return w.grad:sum():item()
    end
    local want = step(lm.full({3}, 0.5))
    for call = 1, 9 do
      fails = call % 3 == 0
      local ok, got = pcall(compiled.call, compiled, step, lm.full({3}, 0.5))
      assert.equal(not fails, ok)
      assert.equal(fails and "the hook fails" or want, got)
    end
    assert.equal(8, compiled:state().runs)
  end)

  it("computes gradients of DistributedDataParallel in its buckets", function()
    local got = ranks.run {env = {LM_TOKEN = "a secret of the spec"}, script = [[
      local lm = require "luminary"
      local core = require "luminary.core"
      lm.dist.init_process_group "gloo"
      for _, dtype in ipairs {"bfloat16", "float32"} do
        lm.manual_seed(1)
        local net = lm.nn.Sequential(lm.nn.Linear(8, 16), lm.nn.Tanh(), lm.nn.Linear(16, 3)):to(dtype)
        net = lm.nn.parallel.DistributedDataParallel(net)
        local compiled, memory = core.compiled(), {}
        local x = lm.full({4, 8}, lm.dist.get_rank()):to(dtype)
        for call = 1, 6 do
          compiled:call(function()
            net:zero_grad()
            net(x):tanh():sum():backward()
          end)
          for i, p in ipairs(net:parameters()) do
            memory[i] = call > 2 and memory[i] or p.grad:data_ptr()
            assert(p.grad:data_ptr() == memory[i], "a gradient left its bucket")
          end
        end
        print(dtype, compiled:state().runs, compiled:state().reason)
      end
      lm.dist.destroy_process_group()
    ]]}
    assert(got.ok, got.text)
    for rank = 0, 1 do assert.equal("bfloat16\t5\tnil\nfloat32\t5\tnil\n", got[rank].output) end
  end)

  it("returns a graph in a call after one that dropped it", function()
    local w, compiled = lm.ones({3}, {requires_grad = true}), core.compiled()
    local function step(keeps)
      local loss = ((w * 2):exp() + w):sum()
      return keeps and loss or nil
    end
    for call = 1, 6 do
      local loss = compiled:call(step, call > 2)
      collectgarbage()
      if loss then loss:backward() end
    end
    local once = w.grad:clone() / 4
    w.grad = nil
    step(true):backward()
    assert.is_true(lm.allclose(once, w.grad))
  end)

  it("counts as_strided from the memory's begin for each slice", function()
    local data, compiled = lm.arange(40), core.compiled()
    local w = lm.ones({3}, {requires_grad = true})
    local function step(x)
      local loss = (x * 2 + lm.as_strided(x, {3}, {2}, 1) * w):exp():log():sum()
      loss:backward()
      return loss
    end
    for at = 1, 9, 2 do
      assert.equal(step(data:narrow(1, at, 3)):item(), compiled:call(step, data:narrow(1, at, 3)):item())
    end
  end)

  it("computes nothing where only dtypes, devices and shapes are asked for", function()
    for _, dtype in ipairs {"bfloat16", "float32"} do
      local norm = nn.BatchNorm1d(3):to(dtype)
      local mean, computed = ffi.cast("char *", norm.running_mean:data_ptr()), 0
      local step = lm.compile(function(x)
        local before, out = ffi.string(mean, 6), norm(x):tanh() * 2
        local about = {out:is_floating_point(), out.dtype, out.device, out.shape, out:dim(), out:numel(), #out,
          out:stride(), out:is_contiguous(), out.ndim, out:size(1), out:element_size()}
        if #about ~= 12 or ffi.string(mean, 6) ~= before then computed = computed + 1 end
        out:square():sum():backward()
      end)
      for _ = 1, 4 do step(lm.randn(5, 3):to(dtype)) end
      assert.equal(1, computed) -- the call that is recorded
    end
  end)

  it("overwrites scores that nothing else reads by their gradient", function()
    lm.manual_seed(5)
    local x, labels, start = lm.randn(256, 32), lm.randint(1, 4097, {256}), lm.randn(4096, 32)
    local function scores_by_columns(given, w) return F.linear(w, given):t() end
    for _, dtype in ipairs {"float16", "bfloat16", "float32", "float64"} do
      for _, scores_of in ipairs {F.linear, scores_by_columns} do
        local given = x:to(dtype)
        -- Returns a step, and its weight.
        local function made()
          local w = nn.Parameter(start:to(dtype, {copy = true}))
          local opt = lm.optim.SGD({w}, {lr = 0.1})
          return function()
            local loss = F.cross_entropy(scores_of(given, w), labels, nil, {label_smoothing = 0.1})
            opt:zero_grad()
            collectgarbage() -- the script holds no scores
            loss:backward()
            opt:step()
            return loss
          end, w
        end
        local plain, want = made()
        local step, got = made()
        local compiled, peak = lm.compile(step), nil
        for _ = 1, 6 do
          collectgarbage()
          lm.reset_peak_memory_stats()
          local before = lm.memory_allocated()
          local loss = compiled():item()
          peak = (lm.max_memory_allocated() - before) / (256 * start:size(1) * got:element_size())
          assert.equal(plain():item(), loss)
          assert.is_true(lm.equal(want, got))
        end
        if dtype == "float32" and scores_of == F.linear then assert(peak < 1.5, peak) end
      end
    end
  end)

  it("runs the script in each call, with numbers that change", function()
    local calls, factor = 0, 1
    local step, state = lm.compile(function(x)
      calls = calls + 1
      local w = lm.ones({3}, {requires_grad = true})
      local y = ((x * w) * factor + 1):square():sum()
      y:backward()
      return w.grad
    end)
    for i = 1, 6 do
      factor = i < 3 and i or 2
      local x = lm.tensor {1, 2, 3} * i
      local want = {}
      for k = 1, 3 do want[k] = 2 * (k * i * factor + 1) * k * i * factor end
      assert.same(want, step(x):tolist())
    end
    assert.equal(6, calls)
    assert.is_true(state.segments > 0)
  end)

  it("gives values to what the script reads, keeps and writes to", function()
    local kept, seen = {}, {}
    local net = nn.Linear(4, 2)
    local buffer = lm.zeros(2)
    local function body(x)
      local h = net(x):tanh()
      local loss = (h * h):mean()
      kept[#kept + 1] = h
      buffer:add_(h:detach():sum(1))
      loss:backward()
      seen[#seen + 1] = loss:item()
      h:detach():mul_(0)
      return h
    end
    local step = lm.compile(body)
    for i = 1, 5 do
      local x = lm.randn(3, 4)
      local want = lm.no_grad(function() return net(x):tanh() end)
      local before = buffer:clone()
      assert.is_true(step(x):eq(0):all():item())
      assert.near(want:square():mean():item(), seen[i], 1e-6)
      assert.is_true(lm.allclose(before + want:sum(1), buffer))
    end
    for _, h in ipairs(kept) do
      assert.is_true(h.requires_grad)
      assert.error_matches(function() h:sum():backward() end, "freed")
    end
  end)

  it("reads values before backward, and makes the graph if what follows differs", function()
    local function make()
      lm.manual_seed(5)
      local net = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.3), nn.Linear(8, 3))
      local opt = lm.optim.SGD(net:parameters(), {lr = 0.1})
      local calls, seen = 0, {net = net}
      return function(x, y)
        calls = calls + 1
        local loss = F.cross_entropy(net(x), y)
        seen[#seen + 1] = loss:item() + net[2].running_mean[1]
        if calls % 4 == 0 then loss = loss * 2 end
        if calls % 7 == 0 then loss:register_hook(function(g) return g * 3 end) end
        opt:zero_grad()
        loss:backward()
        opt:step()
        return loss
      end, seen
    end
    local plain, want = make()
    local inner, got = make()
    local step, state = lm.compile(inner)
    assert.same(run(plain, 15), run(step, 15))
    assert.same({unpack(want)}, {unpack(got)})
    for name, t in pairs(want.net:state_dict()) do assert.is_true(lm.equal(t, got.net:state_dict()[name])) end
    assert.is_true(state.runs > 8)
  end)

  it("runs as it is what leaves a graph, and says after which line", function()
    local net = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    local step, state = lm.compile(function(x) return (net(x) * 2):square():sum() end)
    for _ = 1, 3 do
      net:zero_grad()
      step(lm.ones(2, 6)):backward()
      assert.is_true(net[1].weight.grad:abs():sum():item() > 0)
    end
    assert.matches("^after .*compile_segments_spec.lua:%d+: a tensor still has a history", state.reason)
  end)

  it("returns results that a second backward treats as it treats eager ones", function()
    local makers = {
      ["all saved by ops that were freed"] = function(u, w, x) return (u * x):sum() + (w * x):sum() * 2 end,
      ["a leaf that waits for ops that were freed"] = function(_, w, x) return w:sum() + (w * x):sum() end,
      ["a leaf that gets its gradient before"] = function(u, w, x) return u:sum() + (w * x):sum() end,
      ["random numbers over what was freed"] = function(_, w, x)
        local h = w * x
        return h, h:clone():normal_()
      end,
      ["numbers over what was freed"] = function(u, w, x)
        local h = w * x
        return h * u, h:clone():fill_(2) + 1
      end,
      ["saved tensors over what was freed"] = function(u, w, x)
        local h = w * x
        return h, h * u
      end,
      ["a part of what was freed"] = function(_, w, x) return (w * x)[2] + 1 end,
      ["saved beside what was freed"] = function(u, w, x) return w * x, u * x end,
      ["no saved tensor"] = function(u, w) return u + w end,
    }
    for name, f in pairs(makers) do
      for _, dtype in ipairs {"float16", "bfloat16", "float32"} do
        local seen = {{}, {}}
        for side = 1, 2 do
          lm.manual_seed(6)
          local u, w = lm.rand(3):to(dtype):requires_grad_(), lm.rand(3):to(dtype):requires_grad_()
          local function step(x)
            local y, other = f(u, w, x)
            local loss = (y * y):sum() + (w * x):tanh():sum()
            loss:backward()
            return y, loss, other
          end
          local compiled = side == 2 and lm.compile(step) or step
          for _ = 1, 6 do
            w.grad, u.grad = nil, nil
            local results = {compiled(lm.rand(3):to(dtype))}
            for k = 1, 3 do
              local y = results[k]
              local ok, why = pcall(function() y:sum():backward() end)
              table.insert(seen[side], y and y:sum().requires_grad and tostring(y):match "grad_fn=.*" or "no history")
              table.insert(seen[side], ok or tostring(why))
            end
            for _, p in ipairs {u, w} do table.insert(seen[side], tostring(p.grad)) end
          end
        end
        assert.same(seen[1], seen[2], name)
      end
    end
  end)

  it("names the last op of a result that was written in place and is still to be used by backward", function()
    for _, dtype in ipairs {"float16", "bfloat16", "float32"} do
      local p = lm.ones({1}, {dtype = dtype, requires_grad = true})
      local compiled = lm.compile(function(x)
        local y = x:square()
        y:lerp_(p, 0.25)
        local _ = y:clone():add_(p)
        local name = y.grad_fn
        p:backward()
        return name
      end)
      for _ = 1, 3 do assert.equal("lerp", compiled(lm.ones({1}, {dtype = dtype}))) end
    end
  end)

  it("follows another branch, another shape and a hook added later", function()
    local w = lm.randn({5}, {requires_grad = true})
    local hooked = 0
    local function body(x, more)
      local y = x * w
      if more then y = y + x end
      y = (y * 2):tanh()
      y:sum():backward()
      return y
    end
    local step = lm.compile(body)
    local grads = {}
    for i = 1, 12 do
      if i == 9 then w:register_hook(function() hooked = hooked + 1 end) end
      local x = lm.randn(i % 3 + 1, 5)
      w.grad = nil
      local want = body(x, i % 2 == 0)
      grads[1], w.grad = w.grad, nil
      assert.is_true(lm.equal(want, step(x, i % 2 == 0)))
      assert.is_true(lm.equal(grads[1], w.grad))
    end
    assert.equal(8, hooked)
  end)

  it("raises errors of ops, and what was called before them has happened", function()
    local table_, w = lm.randn(4, 3), lm.ones({3}, {requires_grad = true})
    local count = lm.zeros(1)
    local step = lm.compile(function(ids, fails)
      count:add_(1)
      local y = (F.embedding(ids, table_) * w * 2):sum()
      if fails then error "stopped" end
      y:backward()
      return w.grad
    end)
    local ids = lm.tensor({1, 4}, {dtype = "int64"})
    for _ = 1, 3 do step(ids) end
    assert.error_matches(function() step(ids, true) end, "stopped")
    assert.equal(4, count[1])
    assert.error_matches(function() step(lm.tensor({1, 9}, {dtype = "int64"})) end, "embedding: .*9")
    assert.equal(5, count[1])
    w.grad = nil
    assert.is_true(lm.equal(table_[{{1}}][1] * 2 + table_[{{4}}][1] * 2, step(ids)))
  end)

  it("runs as it is in a coroutine, which may yield", function()
    local step, state = lm.compile(function(w)
      local y = (w * w * 2):sum()
      coroutine.yield(y:item())
      y:backward()
      return w.grad:clone()
    end)
    for _ = 1, 3 do
      local w = lm.ones({3}, {requires_grad = true})
      local resume = coroutine.wrap(step)
      assert.equal(6, resume(w))
      assert.same({4, 4, 4}, resume():tolist())
      assert.matches("coroutine", state.reason)
    end
  end)

  it("leaves no tensors, and frees what a call made", function()
    jit.off()
    finally(function() jit.on() end)
    collectgarbage()
    collectgarbage()
    local before = core.live_tensors()
    do
      local step = lm.compile((trainer()))
      run(step, 10)
    end
    collectgarbage()
    collectgarbage()
    collectgarbage()
    assert.equal(before, core.live_tensors())
  end)
end)

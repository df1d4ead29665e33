-- nn.parallel.fully_shard: several passes of a step, recomputed ones, checkpoints and averages of weights.
local on = require "spec.support.sharded"
local temp = require "spec.support.temp"

describe("nn.parallel.fully_shard, training,", function()
  it("adds gradients of several passes, and defers reductions in no_sync", function()
    on.succeeds(2, [[
      local alone, net = pair {reshard_after_forward = true}
      local x, y = batch(1)
      local function on_both(f)
        alone:zero_grad()
        net:zero_grad()
        f(alone, function(t) return t end)
        f(net, part_of)
      end
      on_both(function(m, part) -- two forward passes, then one backward
        local first, second = loss_of(m, part(x), part(y)), loss_of(m, part(y), part(x))
        local both = first + second
        both:backward()
      end)
      same_grads("two forwards", net, alone)
      on_both(function(m, part)
        local first, second = loss_of(m, part(x), part(y)), loss_of(m, part(y), part(x))
        second:backward()
        first:backward {retain_graph = true}
        first:backward()
      end)
      same_grads("three backwards", net, alone)
      local function half(t) return t[{{rank * 4 + 1, rank * 4 + 4}}] end
      local calls = 0
      on_both(function(m, part)
        if m == net then part = half end
        local function first()
          calls = calls + 1
          loss_of(m, part(x), part(y)):backward()
          return 7
        end
        if m == net then assert(net:no_sync(first) == 7 and not net.head.weight.grad) else first() end
        loss_of(m, part(y), part(x)):backward()
      end)
      assert(calls == 2)
      same_grads("no_sync", net, alone)
    ]])
  end)

  it("drops gradients that no_sync or a Pipeline's failed step added up, with zero_grad", function()
    on.succeeds(2, [[
      local alone, net = pair()
      local x, y = batch(1)
      loss_of(alone, x, y):backward()
      local half = x[{{rank * 4 + 1, rank * 4 + 4}}]
      local function pass(factor)
        (loss_of(net, half, y[{{rank * 4 + 1, rank * 4 + 4}}]) * factor):backward()
      end
      local opt = optim.SGD(net:parameters(), {lr = 0.1})
      for i, zero in ipairs {
        function() net:zero_grad() end, function() opt:zero_grad() end,
        function() net:zero_grad {set_to_none = false} end,
      } do
        net:no_sync(pass, i == 1 and 0 / 0 or 1)
        zero()
        pass(1)
        same_grads("after no_sync " .. i, net, alone)
        if i == 3 then net:no_sync(pass, 0 / 0) end
        net:zero_grad()
      end
      local mesh = dist.init_device_mesh("cpu", {size, 1}, {names = {"shard", "stage"}})
      local function make()
        lm.manual_seed(1)
        return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2))
      end
      local plain = make()
      local pipe = nn.parallel.Pipeline(make(), {mesh = mesh.stage, split = {}, microbatches = 3, loss = F.mse_loss})
      fully_shard(pipe.stages[1], {mesh = mesh.shard})
      local a, b, count = lm.ones(6, 4), lm.zeros(6, 2), 0
      pipe.stages[1]:register_forward_hook(function(_, _, out)
        out:register_hook(function()
          count = count + 1
          if count == 2 then error "failed" end
        end)
      end)
      contains(message(pipe.step, pipe, a, b), "failed")
      pipe:zero_grad()
      pipe:step(a, b)
      F.mse_loss(plain(a), b):backward()
      same_grads("Pipeline", pipe.stages[1], plain)
    ]])
  end)

  it("averages unequal batches of several passes as DistributedDataParallel does", function()
    on.succeeds(2, [[
      lm.manual_seed(1)
      local copy = Net(10, 3)
      local ddp = nn.parallel.DistributedDataParallel(copy)
      lm.manual_seed(1)
      local net = shard(Net(10, 3), {reshard_after_forward = true})
      local x, y = batch(1, 16)
      local sizes = {{1, 5, 0}, {4, 2, 3}}
      local function pass(m, k, n)
        n = n or sizes[rank + 1][k]
        return loss_of(m, x:narrow(1, 4 * k - 3, n), y:narrow(1, 4 * k - 3, n)) / 2
      end
      local function on_both(what, f)
        for _, m in ipairs {ddp, net} do
          m:zero_grad()
          f(m)
        end
        same_grads(what, net, copy)
      end
      on_both("no_sync", function(m)
        m:no_sync(function() pass(m, 1):backward() end)
        m:no_sync(function() pass(m, 2):backward() end)
        lm.no_grad(pass, m, 1)
        m:eval()
        pass(m, 1)
        m:train()
        pass(m, 1):backward()
      end)
      on_both("the next average", function(m) pass(m, 2):backward() end)
      on_both("forward in no_sync, two forwards before a backward", function(m)
        local first = m:no_sync(pass, m, 1)
        local second = pass(m, 2)
        m:no_sync(function() first:backward() end)
        second:backward()
      end)
      on_both("an empty batch", function(m) pass(m, 3):backward() end)
      assert(net.head.weight.grad:isfinite():all():item())
      on_both("a pass without backward", function(m)
        if m == net then pass(m, 2) end
        pass(m, 1):backward()
      end)
      on_both("two forwards before their backward", function(m)
        if m == net then return (pass(m, 1) + pass(m, 2)):backward() end
        pass(m, 1):backward()
        pass(m, 2):backward()
      end)
      on_both("in evaluation mode", function(m)
        if m == net then m:eval() end
        m:no_sync(function() pass(m, 1):backward() end)
        pass(m, 2):backward()
        m:train()
      end)
    ]])
  end)

  it("runs within checkpoints, without gradients, and again after an error in forward", function()
    on.succeeds(2, [[
      local alone, net = pair {reshard_after_forward = true}
      local x, y = batch(3)
      local plain = Net.forward
      local broken
      function Net:forward(ids)
        local h = self.emb(ids)
        for i, b in ipairs(self.blocks) do
          if broken and i == 2 then error "broken" end
          h = lm.autograd.checkpoint(b, h)
        end
        return self.head(self.norm(h))
      end
      loss_of(alone, x, y):backward()
      loss_of(net, part_of(x), part_of(y)):backward()
      same_grads("checkpoint", net, alone)
      broken = true
      contains(message(net, x), "broken")
      assert(net.emb.weight:size(1) == 6 and net.emb.weight.is_leaf)
      broken = false
      local a, b = lm.no_grad(function() return alone(x), net(x) end)
      assert((a - b):abs():max():item() < 1e-12)
      assert((alone:eval()(x) - net:eval()(x)):abs():max():item() < 1e-12)
    ]])
  end)

  it("runs checkpoints of a part of a unit again with its full parameters", function()
    on.succeeds(2, [[
      local checkpoint = lm.autograd.checkpoint
      local Part = nn.Module:extend "Part"
      function Part:init(is_frozen)
        self.a, self.b, self.c = nn.Linear(4, 6), nn.Linear(6, 4), nn.Linear(4, 3)
        self.scale, self.shift = nn.Parameter(lm.full({1}, 2)), nn.Parameter(lm.full({5}, 3))
        self.shift:requires_grad_(not is_frozen)
      end
      function Part:forward(x)
        local h = checkpoint(self.b, self.a(x):tanh())
        h = checkpoint(function(h)
          return self.c(checkpoint(function(g) return (g * self.scale):square() + self.shift[5] end, h)):tanh()
        end, h)
        return checkpoint(F.linear, h, self.a.weight:narrow(2, 1, 3)) * self.scale
      end
      lm.manual_seed(3)
      local x = lm.randn(4, 4)
      local all = {{}, {reshard_after_forward = true}, {reshard_after_backward = false}, {prefetch = false}}
      for i, opts in ipairs(all) do
        for j, shard_parts in ipairs {lm.is_tensor, function(net) fully_shard(net[2].c, opts) end,
          function(net) fully_shard(net[2], opts) end} do
          local function make()
            lm.manual_seed(1)
            return nn.Sequential(nn.Linear(4, 4), Part(i == 2))
          end
          local alone, net = make(), make()
          shard_parts(net)
          fully_shard(net, opts)
          for _ = 1, 2 do
            alone(x):square():mean():backward()
            net(x:narrow(1, 2 * rank + 1, 2)):square():mean():backward()
          end
          same_grads(("case %d %d"):format(i, j), net, alone)
          assert(net[2].scale.shape[1] == 1 and net[2].scale.is_leaf and net[2].scale.grad.shape[1] == 1)
        end
      end
    ]])
  end)

  it("forgets models that were collected between two collections that finalize their tensors", function()
    on.succeeds(2, [[
      local function train()
        local net = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))
        fully_shard(net[1])
        fully_shard(net, {reshard_after_forward = false})
        net(lm.randn(3, 4)):sum():backward()
        net(lm.randn(3, 4)) -- keeps the gathered tensors, whose functions lead to the model
      end
      for _ = 1, 4 do
        train()
        collectgarbage()
        lm.ones(1) -- releases the graph's functions
        collectgarbage()
      end
    ]])
  end)

  describe("in checkpoints", function()
    local folder = temp.during(setup, teardown)

    -- Trains steps 1 to 4 and saves, or loads and trains steps 5 to 8; losses are those of one process.
    local half = [[
      local alone = pair()
      lm.manual_seed(rank + 5)
      local net = $layout
      local steps = {optim.Adam(alone:parameters(), {lr = 0.01}), optim.Adam(net:parameters(), {lr = 0.01})}
      local path, saves = "$folder/" .. "$name", $saves
      local parts = {net = net, opt = steps[2], step = 4}
      if saves then net:load_state_dict(alone:state_dict()) end
      for step = 1, saves and 4 or 8 do
        local x, y = batch(step, 12)
        for _, opt in ipairs(steps) do opt:zero_grad() end
        local whole = loss_of(alone, x, y)
        whole:backward()
        steps[1]:step()
        if step == 5 then assert(lm.checkpoint.load(path, parts).step == 4) end
        if saves or step > 4 then
          local own = part_of(y)
          local part = loss_of(net, part_of(x), own)
          part:backward()
          steps[2]:step()
          local sum = dist.all_reduce(part:detach() * own:size(1)) / 12
          if math.abs(sum:item() - whole:item()) > 1e-10 then error("step " .. step .. ": loss differs") end
        end
      end
      if saves then lm.checkpoint.save(path, parts) end
    ]]
    local function run(n, name, layout, saves)
      on.succeeds(n, (half:gsub("%$(%w+)", { folder = folder, name = name, layout = layout, saves = tostring(saves) })))
    end
    local sharded, plain = "shard(Net(10, 3))", "Net(10, 3)"
    local hybrid = 'shard(Net(10, 3), {mesh = dist.init_device_mesh("cpu", {2, 2})})'

    it("saves shards of two ranks, and loads them over one, three and two by two", function()
      run(2, "two", sharded, true)
      run(1, "two", plain, false)
      run(1, "two", sharded, false)
      run(3, "two", sharded, false)
      run(4, "two", hybrid, false)
    end)

    it("saves those of two by two once, and loads them and a plain net's over two", function()
      run(4, "hybrid", hybrid, true)
      run(2, "hybrid", sharded, false)
      run(1, "plain", plain, true)
      run(2, "plain", sharded, false)
      run(2, "plain", "shard(Net(10, 3), {offload = true})", false)
    end)

    it("refuses shards that no rank has saved", function()
      on.succeeds(1, [[
        local net = fully_shard(nn.Linear(2, 3))
        local opt = optim.Adam(net:parameters())
        net(lm.ones(1, 2)):sum():backward()
        opt:step()
        local function load(object, state)
          local given = false
          return message(object.load_shards, object, function()
            given = not given
            return given and state or nil
          end)
        end
        local t = lm.ones(3, 2)
        local function of_weight(saved)
          return {tensors = {weight = t, bias = lm.ones(3)}, shards = {weight = saved}}
        end
        contains(load(net, {}), "must have tables")
        contains(load(net, {tensors = {}, shards = {}}), "have no 'bias'")
        contains(load(net, {tensors = {other = t}, shards = {}}), "has no 'other'")
        contains(load(net, {tensors = {weight = 3}, shards = {}}), "'weight' is malformed")
        contains(load(net, of_weight {shape = {3, 2}, first = -1, chunk = 3}), "'weight' is malformed")
        contains(load(net, of_weight {shape = {3, "2"}, first = 0, chunk = 3}), "malformed")
        contains(load(net, of_weight(7)), "'weight' is malformed")
        contains(load(net, of_weight {shape = {3, 4}, first = 0, chunk = 3}), "to have shape [3, 2], got [3, 4]")
        t = lm.ones(3, 5)
        contains(load(net, of_weight {shape = {3, 2}, first = 0, chunk = 3}), "got [3, 2] from a tensor [3, 5]")
        local good = opt:shard_state_dict()
        for _, bad in ipairs {3, {shape = 1}, {shape = {3, 2}, first = 0.5, chunk = 3}} do
          local dict = opt:shard_state_dict()
          dict.shards = {bad, bad}
          contains(load(opt, dict), "is malformed")
        end
        local given = false
        opt:load_shards(function()
          given = not given
          return given and good or nil
        end)
      ]])
    end)

    it("refuses shards of another model, on all ranks", function()
      run(2, "other", sharded, true)
      local got = on.run(2, ([[
        lm.checkpoint.load("%s/other", {net = shard(Net(12, 3)), opt = nil})
      ]]):format(folder))
      for rank = 0, 1 do
        assert.not_equal(0, got[rank].code)
        assert.matches("to have shape [", got[rank].output, 1, true)
      end
    end)
  end)

  it("takes part in loss scaling: all ranks skip a step", function()
    on.succeeds(2, [[
      local _, net = pair()
      local opt, scaler = optim.SGD(net:parameters(), {lr = 0.1}), lm.amp.GradScaler {init_scale = 4, enabled = true}
      local x, y = batch(6)
      for step = 1, 2 do
        opt:zero_grad()
        scaler:scale(loss_of(net, part_of(x), part_of(y))):backward()
        if step == 2 and rank == 1 then net.head.weight.grad:fill_(math.huge) end
        local before = net.emb.weight:detach():clone()
        scaler:step(opt)
        scaler:update()
        assert(lm.equal(before, net.emb.weight:detach()) == (step == 2), "step " .. step)
        assert(scaler:get_scale() == (step == 1 and 4 or 2))
      end
      local whole = nn.Parameter(lm.ones(1)) -- with it an optimizer of a rank has a gradient of no shard
      local mixed = optim.SGD({whole, net.head.weight}, {lr = 0.1})
      for step = 3, 5 do
        mixed:zero_grad()
        scaler:scale(loss_of(net, part_of(x), part_of(y))):backward()
        if step == 3 and rank == 0 then whole.grad = lm.ones(1) end
        if step < 5 and rank == 0 then net.head.weight.grad = nil end
        if step == 5 then mixed:zero_grad() end
        if step == 4 then net.head.weight.grad = nil end
        if step == 4 and rank == 1 then net.head.weight.grad = lm.full_like(net.head.weight:detach(), math.huge) end
        if step == 5 then
          contains(message(scaler.step, scaler, mixed), "no parameter of this optimizer has a gradient")
        else
          scaler:step(mixed)
          scaler:update()
        end
        assert(scaler:get_scale() == (step == 3 and 2 or 1), "step " .. step)
      end
    ]])
  end)

  it("keeps averages of weights, sharded too, and saves them with buffers that have no dims", function()
    on.succeeds(2, [[
      lm.manual_seed(1)
      local alone = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 3))
      local net = alone:clone()
      local averages = {optim.AveragedModel(alone, {decay = 0.9}), optim.AveragedModel(net, {decay = 0.9})}
      contains(message(optim.AveragedModel, fully_shard(alone:clone())), "clone it before")
      fully_shard(net)
      contains(message(averages[2].update, averages[2], net), "where the averaged model has")
      fully_shard(averages[2].module)
      local steps = {optim.SGD(alone:parameters(), {lr = 0.1}), optim.SGD(net:parameters(), {lr = 0.1})}
      lm.manual_seed(2)
      local x = lm.randn(8, 4) -- the same on all ranks, so that the layer normalizes alike
      for _ = 1, 3 do
        for i, m in ipairs {alone, net} do
          steps[i]:zero_grad()
          m(x):square():mean():backward()
          steps[i]:step()
          averages[i]:update(m)
        end
      end
      local path = os.tmpname()
      if rank == 1 then os.remove(path) end
      local paths = {path}
      dist.broadcast_object_list(paths, 0)
      local parts = {net = net, average = averages[2], opt = steps[2]}
      lm.checkpoint.save(paths[1], parts)
      lm.no_grad(function() for _, p in ipairs(averages[2]:parameters()) do p:zero_() end end)
      lm.checkpoint.load(paths[1], parts)
      dist.barrier()
      if rank == 0 then os.execute("rm -f " .. path .. "*") end
      local full = nn.parallel.full_state_dict(averages[2].module)
      for name, t in pairs(averages[1].module:state_dict()) do
        assert((full[name] - t):abs():max():item() < 1e-12, name)
      end
    ]])
  end)

  it("forgets the samples of gradients that zero_grad drops", function()
    on.succeeds(2, [[
      lm.manual_seed(1)
      local alone = nn.Linear(3, 2)
      local net = alone:clone()
      fully_shard(net)
      local a, b = lm.randn(4, 3), lm.randn(4, 3)
      -- Ranks have 1 and 3 rows of a, 3 and 1 of b.
      local own_a = rank == 0 and a:narrow(1, 1, 1) or a:narrow(1, 2, 3)
      local own_b = rank == 0 and b:narrow(1, 1, 3) or b:narrow(1, 4, 1)
      net:no_sync(function() net(own_a):square():mean():backward() end)
      optim.SGD(net:parameters(), {lr = 1}):zero_grad()
      net(own_b):square():mean():backward()
      alone(b):square():mean():backward()
      same_grads("dropped", net, alone)
    ]])
  end)
end)

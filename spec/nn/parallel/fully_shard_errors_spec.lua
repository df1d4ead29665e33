-- nn.parallel.fully_shard: what it refuses, detects and warns of.
local on = require "spec.support.sharded"
local within = require("spec.support.time").within

describe("nn.parallel.fully_shard", function()
  it("names itself in the errors of ranks that wait for one that died", function()
    local got = on.run(2, [[
      local ffi = require "ffi"
      ffi.cdef "int kill(int pid, int signal); int getpid(void); int usleep(unsigned);"
      local Bad, calls, backward = nn.Module:extend "Bad", 0, arg[0] .. ".backward"
      function Bad:init() self.l = nn.Linear(4, 4) end
      function Bad:forward(x)
        calls = calls + 1
        if rank == 1 and calls == 2 then
          for _ = 1, 3000 do if io.open(backward) then break end ffi.C.usleep(10000) end
          ffi.C.usleep(200000) -- until rank 0 waits there
          ffi.C.kill(ffi.C.getpid(), 9)
        end
        return self.l(x)
      end
      local net = nn.Sequential(nn.Linear(4, 4), Bad(), nn.Linear(4, 4))
      for i = 1, 3 do fully_shard(net[i]) end
      fully_shard(net)
      for _ = 1, 2 do
        local sum = net(lm.ones(2, 4)):sum()
        if calls == 2 then io.open(backward, "w"):close() end
        sum:backward()
      end
    ]])
    assert.matches("script.lua:%d+: backward: fully_shard: rank 1 on ", got[0].output)
  end)

  it("warns once, on rank 0, if parameters beside the sharded ones are not averaged", function()
    local got = on.run(2, [[
      local net = Net(10, 2)
      for _, b in ipairs(net.blocks) do fully_shard(b) end
      local opt = optim.SGD(net:parameters(), {lr = 0.1})
      for step = 1, 2 do
        loss_of(net, batch(step)):backward()
        opt:step()
      end
      fully_shard(net)
      opt = optim.SGD(net:parameters(), {lr = 0.1})
      loss_of(net, batch(3)):backward()
      opt:step()
    ]])
    for rank = 0, 1 do
      assert.equal(0, got[rank].code, got[rank].output)
      local _, n = got[rank].output:gsub("is in no module of fully_shard, so that nothing averages", "")
      assert.equal(1 - rank, n, got[rank].output)
    end
    assert.matches("warning: SGD: parameter 1, [11, 10], is in no", got[0].output, 1, true)
  end)

  it("detects parameters and gathered tensors that changed before backward", function()
    on.succeeds(2, [[
      local _, net = pair {reshard_after_forward = true}
      local x, y = batch(4)
      local loss = loss_of(net, x, y)
      lm.no_grad(function() net.blocks[2].up.weight:add_(1) end)
      contains(message(loss.backward, loss), "changed it in place")
      local seen
      local forward = Block.forward
      function Block:forward(x)
        if not self.mark then return forward(self, x) end
        seen = self.up.weight
        lm.no_grad(function() self.up.weight:mul_(2) end)
        return forward(self, x)
      end
      local alone = pair()
      net:load_state_dict(alone:state_dict())
      for _, is_training in ipairs {true, false} do
        net.blocks[2].mark = true
        local function run() return net(x) end
        contains(message(is_training and run or lm.no_grad, run), "up.weight was changed in place in forward")
        contains(message(function() return seen:sum() end), "freed")
        net.blocks[2].mark = nil
        net:zero_grad()
        alone:zero_grad()
        loss_of(alone, x, y):backward()
        loss_of(net, x, y):backward()
        same_grads("after the error", net, alone)
      end
      local short = fully_shard(nn.Embedding(5, 2, {max_norm = 0.1}), {reshard_after_backward = false})
      contains(message(short, lm.ones({1, 1}):long()), "fully_shard: weight was changed in place in forward")
      contains(message(function()
        lm.autograd.grad(loss_of(net, x, y), net.head.weight, {create_graph = true})
      end), "create_graph")
    ]])
  end)

  it("is refused by optimizers whose steps treat a parameter as a whole, unless one rank has it", function()
    for n = 1, 2 do
      on.succeeds(n, [[
        for _, name in ipairs {"LAMB", "Muon", "Adafactor"} do
          local net = nn.Linear(4, 6, {bias = false})
          local opt = optim[name](net:parameters(), {lr = 0.1}) -- before the parameters are divided
          fully_shard(net)
          net(lm.ones(2, 4)):sum():backward()
          local before = net.weight:detach():clone()
          if size == 1 then
            opt:step()
            assert(not lm.equal(before, net.weight:detach()))
          else
            contains(message(opt.step, opt), name .. ": a step needs all elements of a parameter, but 2 ranks divide "
              .. "'weight'; choose another optimizer")
            net = nn.parallel.parallelize(nn.Sequential(nn.Linear(4, 6, {bias = false})),
              dist.init_device_mesh("cpu", {2}), {["0"] = "column"})
            net(lm.ones(2, 4)):sum():backward()
            opt = optim[name](net:parameters())
            contains(message(opt.step, opt), "divide one of shape [6, 4]")
          end
        end
      ]])
    end
  end)

  it("is refused by what takes tensors of one rank as they are, and refuses parameters that were replaced", function()
    on.succeeds(2, [[
      local net = fully_shard(nn.Linear(4, 6))
      contains(message(nn.parallel.DistributedDataParallel, net), "parameter 'weight' is sharded by fully_shard; it")
      local ddp = nn.parallel.DistributedDataParallel(nn.Linear(2, 2))
      contains(message(fully_shard, ddp), "DistributedDataParallel averages gradients itself; shard the module in it")
      contains(message(fully_shard, nn.Sequential(ddp)), "fully_shard: DistributedDataParallel averages gradients")
      local mixed = nn.Sequential(fully_shard(nn.Linear(2, 2):requires_grad_(false)), nn.Linear(2, 2))
      contains(message(nn.parallel.DistributedDataParallel, mixed), "parameter 'weight' is sharded by fully_shard; it")
      contains(message(optim.ZeroRedundancyOptimizer, net:parameters(), {optimizer_class = optim.Adam}), "'weight' is")
      contains(message(optim.LBFGS, net:parameters()), "LBFGS: a step needs all parameters")
      local function batch_dim(make, ...) return message(make(nn.Linear(4, 6), {batch_dim = 9}), ...) end
      contains(batch_dim(fully_shard, lm.ones(2, 4)),
        "fully_shard: batch_dim must be at most 2, the number of dims of the first tensor, got 9")
      contains(batch_dim(nn.parallel.DistributedDataParallel, lm.ones(4)),
        "DistributedDataParallel: batch_dim must be at most 1, the number of dims of the first tensor, got 9")
      local Scale = nn.Module:extend "Scale"
      function Scale:init() self.weight = nn.Parameter(lm.ones(1)) end
      function Scale:forward(x) return self.weight * x end
      assert(fully_shard(Scale())(lm.tensor(3)):item() == 3) -- one sample
      local weight = net.weight
      net.bias = nn.Parameter(lm.randn(6))
      contains(message(net, lm.ones(2, 4)), "parameter 'bias' was replaced or added; assign")
      assert(net.weight == weight)
    ]])
  end)

  it("refuses parameters whose data has another shape than the rank's rows, and takes other rows", function()
    on.succeeds(2, [[
      local net = fully_shard(nn.Linear(4, 6))
      local before = net(lm.ones(2, 4)):detach():clone()
      net.bias.data = net.bias.data + 1
      assert((net(lm.ones(2, 4)) - before - 1):abs():max():item() < 1e-12)
      net.weight.data = lm.ones(6, 4)
      for _, f in ipairs {
        function() net(lm.ones(2, 4)) end, function() nn.parallel.full_state_dict(net) end,
        function() lm.checkpoint.save("none", {net = net}) end,
      } do
        contains(message(f), "expected weight to have shape [3, 4], this rank's rows, got [6, 4]; load_state_dict")
      end
      assert(net.weight:size(1) == 6 and net.bias:size(1) == 3)
      net.weight.data = lm.ones(3, 4)
      assert((net(lm.ones(2, 4)) - net(lm.zeros(2, 4)) - 4):abs():max():item() < 1e-12)
    ]])
  end)

  it("names the place of a rank that ends amid a pass", function()
    local got = on.run(3, [[
      local _, net = pair {reshard_after_forward = true}
      local x, y = batch(1, 9)
      local loss = loss_of(net, part_of(x), part_of(y))
      if rank == 2 then error "lost the data" end
      loss:backward()
    ]])
    for rank = 0, 1 do
      assert.not_equal(0, got[rank].code, got.text)
      within(got[rank].seconds, 10, got.text)
      assert.matches(("rank %d = shard %d; rank 2 = shard 2"):format(rank, rank), got[rank].output, 1, true)
    end
  end)

  it("compares frozen parameters when they change", function()
    for changed = 0, 1 do
      local script = [[
        local _, net = pair {reshard_after_forward = true}
        local x, y = batch(1)
        local function pass() loss_of(net, part_of(x), part_of(y)):backward() end
        for step = 1, 3 do
          net.blocks[1].up.weight:requires_grad_(step == 2) -- on all ranks
          pass()
        end
        net.blocks[2].up.bias:requires_grad_(rank ~= $changed)
        pass()
      ]]
      local got = on.run(2, (script:gsub("$changed", changed)))
      for rank = 0, 1 do
        assert.not_equal(0, got[rank].code, got.text)
        local wanted = "ranks 0 and 1 made different calls"
        if rank == changed then wanted = "this rank changed requires_grad of 'up.bias', as all ranks must; " end
        assert.matches(wanted, got[rank].output, 1, true)
        within(got[rank].seconds, 10, got.text)
      end
    end
  end)

  it("refuses models that differ, and names the rank's place in the mesh", function()
    local got = on.run(2, [[
      fully_shard(nn.Linear(2, rank + 3))
    ]])
    for rank = 0, 1 do assert.not_equal(0, got[rank].code) end
    assert.matches("module differs from rank 0's: here 'weight', float64 [4, 2]", got[1].output, 1, true)
    assert.matches("rank 0 = shard 0; rank 1 = shard 1", got[0].output, 1, true)
    on.succeeds(2, [[
      local net = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
      net[2].weight = net[1].weight
      fully_shard(net[1])
      contains(message(fully_shard, net), "'1.weight' of this Sequential is 'weight' of a Linear that is sharded")
      contains(message(fully_shard, nn.Linear(2, 2), {mesh = 3}), "mesh must be")
      contains(message(net[1].clone, net[1]), "cannot be cloned")
    ]])
  end)
end)

-- DistributedDataParallel on several ranks: what it refuses, who learns of it, and ranks that have no more batches.
local ddp = require "spec.support.ddp"
local run, succeeds = ddp.run, ddp.succeeds

describe("DistributedDataParallel", function()
  it("names the parameters that should not have been left out, on every rank", function()
    local got = run(2, ddp.branches .. [[
      local x = lm.ones({ 2, 3 }, { dtype = "float64" })
      print(message(function() DDP(net)(x, "left"):sum():backward() end)) -- this rank's error, or the other rank's
      os.exit(0, true)
    ]])
    assert(got.ok, got.text)
    for rank = 0, 1 do
      assert.matches("4 of 8 parameters got no gradient in this backward pass: 'right.weight', 'right.bias', "
        .. "'never.weight', 'never.bias'; if", got[rank].output, 1, true)
      assert.matches("{find_unused_parameters = true}", got[rank].output, 1, true)
      assert.matches("script.lua:%d+:", got[rank].output)
    end
  end)

  it("names the parameters that were frozen after the model was wrapped, and what to do", function()
    for _, option in ipairs { "", "static_graph = true" } do
      local got = run(2, ([[
        local net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
        local model = DDP(net, {%s})
        model(lm.ones {2, 4}):sum():backward()
        dist.barrier()
        net[1].weight:requires_grad_(false)
        print(message(function() model(lm.ones {2, 4}):sum():backward() end))
        os.exit(0, true)
      ]]):format(option))
      assert(got.ok, got.text)
      for rank = 0, 1 do
        assert.matches("1 of 4 parameters required gradients when the model was wrapped and do not now: '0.weight'; "
          .. "change requires_grad before wrapping the model, or wrap it again", got[rank].output, 1, true)
        local other = got[rank].output:find(", or with {find_unused_parameters = true}", 1, true)
        assert.equal(option == "", other ~= nil)
      end
    end
  end)

  it("that goes on in backward from what others never come to says so at once", function()
    for _, shared in ipairs { "1", "0" } do
      local got = run(2, [[
        local net = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
        local ddp = DDP(nn.SyncBatchNorm.convert_sync_batchnorm(net)) -- its backward waits before the gradients do
        local loss = ddp(lm.randn { 8, 4 }):sum()
        print(message(function()
          if rank == 0 then loss:backward() else dist.all_reduce(lm.ones { 3 }) end
        end))
        os.exit(0, true)
      ]], { LM_SHM = shared })
      assert(got.ok, got.text)
      for rank = 0, 1 do
        assert.matches("ranks 0 and 1 made different calls: .*DistributedDataParallel backward"
          .. ".*all_reduce sum float32 %[3%]", got[rank].output)
      end
    end
  end)

  it("broadcasts buffers in training, and nothing in evaluation", function()
    local script = [[
      local net = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
      lm.manual_seed(rank)
      net[2].running_mean:normal_()
      local ddp = DDP(net)
      local same = dist.all_reduce(net[2].running_mean:clone(), { op = "max" })
      near("at the start", { same }, { net[2].running_mean })
      local x = lm.randn { 8, 4 }
      ddp(x):sum():backward()
      local own = net[2].running_mean:clone()
      ddp(x):sum():backward() -- begins with rank 0's
      local zero = dist.broadcast(own:clone(), 0)
      ddp:eval()
      if rank == 1 then lm.no_grad(function() for _ = 1, 3 do ddp(x) end end) end -- nobody else needs to
      ddp:train()
      lm.no_grad(function() ddp(x) end)
      ddp(x)
      near("count", net[2].num_batches_tracked:item(), 4)
      local off = DDP(nn.BatchNorm1d(4), { broadcast_buffers = false })
      off(x):sum():backward()
      local most = dist.all_reduce(off.module.running_mean:clone(), { op = "max" })
      assert((most - off.module.running_mean):abs():max():item() > 0 or rank > 0 and size == 1 or true)
    ]]
    succeeds(2, script)
    succeeds(2, script, { LM_SHM = "0" })
  end)

  it("lets ranks join that have no more batches", function()
    local script = [[
      local function make() return nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.Linear(5, 2)):double() end
      local net = make()
      local ddp = DDP(net, { bucket_cap_mb = 0.0001 })
      local opt = optim.SGD(ddp:parameters(), { lr = 0.1 })
      for epoch = 1, 2 do
        local batches = epoch == 1 and (size - rank) * 2 or rank * 3 -- in the second, rank 0 has none at all
        local done = ddp:join(function(word)
          for k = 1, batches do
            lm.manual_seed(epoch * 100 + k * 10 + rank)
            opt:zero_grad()
            F.cross_entropy(ddp(lm.randn({ 4, 3 }, { dtype = "float64" })), lm.randint(1, 3, { 4 })):backward()
            opt:step()
          end
          return word
        end, "through")
        assert(done == "through")
        for i, p in ipairs(net:parameters()) do
          local first = dist.broadcast(p:detach():clone(), 0)
          near("parameter " .. i .. " after epoch " .. epoch, { p }, { first })
        end
        for i, t in ipairs(net:buffers()) do
          near("buffer " .. i, { t:double() }, { dist.broadcast(t:clone(), 0):double() })
        end
      end
      -- the rank that is left computes as if it had always been alone
      local alone = copy_of(net, make)
      if rank == 0 then
        ddp:zero_grad()
        alone:zero_grad()
      end
      local x, y
      lm.manual_seed(5)
      ddp:zero_grad()
      ddp:join(function()
        if rank ~= 1 then return end
        x, y = lm.randn({ 4, 3 }, { dtype = "float64" }), lm.randint(1, 3, { 4 })
        F.cross_entropy(ddp(x), y):backward()
        F.cross_entropy(alone(x), y):backward()
        near("alone", grads(net), grads(alone))
      end)
    ]]
    succeeds(2, script)
    succeeds(3, script, { LM_SHM = "0" })
    succeeds(3, script)
  end)

  it("tells of join where a rank had fewer batches than others", function()
    local got = run(2, [[
      local net = DDP(nn.Linear(2, 1))
      print(message(function()
        for _ = 1, 3 - rank do net(lm.ones { 1, 2 }):sum():backward() end
        if rank == 1 then os.exit(0, true) end
      end))
      os.exit(0, true)
    ]])
    assert.matches("rank 1 on %S+ left while other ranks still needed it.*DistributedDataParallel backward"
      .. ".*train within net:join", got[0].output)
  end)

  it("checks the model against rank 0's", function()
    for _, case in ipairs {
      { "nn.Linear(3, 2 + rank)",
        "here parameter 1 is 'weight', float32 [3, 3]; there parameter 1 is 'weight', float32 [2, 3]" },
      { "nn.Sequential(nn.Linear(3, 2), unpack(rank == 1 and { nn.Linear(2, 2) } or {}))",
        "the model differs from rank 0's: here parameter 3 is '1.weight', float32 [2, 2]; there is no further" },
      { "rank == 1 and nn.Linear(3, 2):double() or nn.Linear(3, 2)", "float64 [2, 3]; there parameter 1" },
    } do
      local got = run(2, ([[
        local net = %s
        local text = message(DDP, net)
        print(text)
        os.exit(0, true)
      ]]):format(case[1]))
      assert(got.ok, got.text)
      assert.matches("the model differs from rank 0's", got[1].output, 1, true)
      assert.matches(case[2], got[1].output, 1, true)
      assert.matches("rank 1", got[0].output)
      assert.matches("differs from rank 0's", got[0].output, 1, true)
    end
  end)

  it("has the bare model's keys, and checks its options", function()
    succeeds(2, [[
      local net = lenet()
      local ddp = DDP(net, { device_ids = { "cpu" }, output_device = "cpu", gradient_as_bucket_view = true })
      for key in pairs(ddp:state_dict()) do assert(net:state_dict()[key], key) end
      local prefixed = {}
      for key, t in pairs(net:state_dict()) do prefixed["module." .. key] = t end
      ddp:load_state_dict(prefixed)
      contains(message(DDP, net, { device_ids = { "cpu", "cpu:1" } }), "device_ids must have at most 1 entry")
      contains(message(DDP, net, { device_ids = { "cpu:1" } }), "the parameter '0.weight' is on cpu")
      contains(message(DDP, net, { bucket_cap = 1 }), "did you mean 'bucket_cap_mb'")
      contains(message(DDP, net, { process_group = 3 }), "group must be a result of dist.new_group")
      contains(message(DDP, nn.ReLU()), "at least one parameter of the module must require a gradient")
      contains(message(ddp.join, ddp, 3), "join: the first argument must be a function")
    ]])
  end)

  it("survives a backward pass that fails before the others count on it, and tells them of one half-way", function()
    local got = run(2, [[
      local net = lenet()
      local ddp = DDP(net)
      local x, y = batch(4)
      local out = ddp(x)
      out:register_hook(function() error("not yet") end)
      contains(message(function() F.cross_entropy(out, y):backward() end), "not yet")
      F.cross_entropy(ddp(x), y):backward() -- as if nothing had been
      net:to("float32")
      contains(message(function() F.cross_entropy(ddp(x:float()), y):backward() end), "was float64")
      net:double()
      ddp:zero_grad()
      F.cross_entropy(ddp(x), y):backward()
      if rank == 1 then net[1].weight:register_hook(function() error("half-way") end) end
      print(message(function() F.cross_entropy(ddp(x), y):backward() end))
      print(message(ddp, x))
      os.exit(0, true)
    ]])
    assert(got.ok, got.text)
    assert.matches("DistributedDataParallel: rank 1 on [^\n]* failed at [^\n]*script.lua:%d+: [^\n]*half%-way",
      got[0].output)
    assert.matches("rank 1 on [^\n]*half%-way", got[1].output)
  end)

  it("notices a model that was converted, on one rank or all, before anything is sent or half-way", function()
    local half_way = [[
      local net = lenet()
      local ddp = DDP(net, { bucket_cap_mb = 1e-5 })
      local x, y = batch(4)
      F.cross_entropy(ddp(x), y):backward()
      local loss = F.cross_entropy(ddp(x), y)
      net:to("float32")
      contains(message(loss.backward, loss), "was float64")
      contains(message(ddp, x:float()), "was float64")
      net:double()
      ddp:zero_grad()
      F.cross_entropy(ddp(x), y):backward() -- as if nothing had been
      if rank == 1 then net[4].weight:register_hook(function() net:to("float32") end) end
      print(message(function() F.cross_entropy(ddp(x), y):backward() end))
      os.exit(0, true)
    ]]
    for _, shared in ipairs { "1", "0" } do
      local got = run(2, half_way, { LM_SHM = shared })
      assert(got.ok, got.text)
      assert.matches("rank 1 on [^\n]* failed at [^\n]*was float64", got[0].output)
      assert.matches("was float64", got[1].output)
    end
  end)

  it("says once whose call it is that others did not come to", function()
    local got = run(2, [[
      local net = lenet()
      local ddp = DDP(net, { bucket_cap_mb = 1e-5 })
      local x, y = batch(4)
      local loss = F.cross_entropy(ddp(x), y)
      print(message(rank == 0 and loss.backward or dist.all_reduce, rank == 0 and loss or lm.ones { 3 }))
      os.exit(0, true)
    ]], { LM_SHM = "0" })
    assert(got.ok, got.text)
    assert.matches("script.lua:%d+: DistributedDataParallel: ranks 0 and 1 made different calls",
      got[0].output)
    assert.matches("script.lua:%d+: all_reduce: ranks 0 and 1 made different calls", got[1].output)
  end)

  it("refuses a gradient of another shape or dtype from a hook, whenever that made it", function()
    local longer = "lm.zeros({ 8, 1, 3, 3 }, { dtype = 'float64' })"
    for _, case in ipairs { { "1].weight", longer, "{}" }, { "1].weight", "lm.zeros { 4, 1, 3, 3 }", "{}" },
      { "1].weight", "lm.zeros({ 2 }, { dtype = 'float64' })", "{ gradient_as_bucket_view = false }" },
      { "1].bias", longer, "{ static_graph = true }" } } do -- a hook of another parameter
      local got = run(2, ([[
        local net = lenet()
        local weight, x, y = net[1].weight, batch(4)
        net[%s:register_post_accumulate_grad_hook(function()
          if weight.grad then weight.grad.data = %s end
        end)
        local ddp = DDP(net, %s)
        dist.barrier()
        local said = message(function()
          for _ = 1, 2 do F.cross_entropy(ddp(x), y):backward() end -- the second adds up
        end)
        contains(said, "the gradient of '0.weight' must be float64 [4, 1, 3, 3] on cpu, got ")
        os.exit(0, true)
      ]]):format(unpack(case)))
      assert(got.ok, got.text)
    end
  end)

  it("cannot be used when its process group is gone", function()
    succeeds(2, [[
      local net = lenet()
      local ddp = DDP(net)
      local x, y = batch(4)
      local loss = F.cross_entropy(ddp(x), y)
      dist.destroy_process_group()
      loss:backward() -- as any model's
      contains(message(ddp, x), "process group was destroyed")
      dist.init_process_group { timeout = 20 }
    ]])
  end)

  it("gives all its memory back", function()
    succeeds(2, [[
      local function round()
        local ddp = DDP(lenet(), { bucket_cap_mb = 0.001 })
        local x, y = batch(4)
        for _ = 1, 3 do F.cross_entropy(ddp(x), y):backward() end
      end
      local function settled()
        jit.flush()
        for _ = 1, 3 do collectgarbage() end
        return core.live_tensors()
      end
      round()
      local before = settled()
      for _ = 1, 3 do round() end
      assert(settled() == before, ("%d live tensors, before %d"):format(core.live_tensors(), before))
    ]])
  end)
end)

-- DistributedDataParallel on several ranks, which are processes here: averages.
local ddp = require "spec.support.ddp"
local succeeds = ddp.succeeds

-- Training on `size` ranks, of which rank r takes the samples from first(r) on, against one process.
local training = [[
local function train(name, first, opts)
  lm.manual_seed(100 + rank) -- ranks start with different parameters: rank 0's count
  local net = lenet()
  local ddp = DDP(net, opts)
  local alone = copy_of(net)
  local mine, its = optim.SGD(ddp:parameters(), { lr = 0.1, momentum = 0.9 }),
    optim.SGD(alone:parameters(), { lr = 0.1, momentum = 0.9 })
  for step = 1, 6 do
    local x, y = batch(24)
    local a, b = first(rank) + 1, first(rank + 1)
    its:zero_grad()
    local whole = F.cross_entropy(alone(x), y)
    whole:backward()
    its:step()
    mine:zero_grad { set_to_none = step % 2 == 0 }
    local part = F.cross_entropy(ddp(x[{ { a, b } }]), y[{ { a, b } }])
    part:backward()
    mine:step()
    local sum = dist.all_reduce(part:detach() * (b - a + 1))
    near(name .. ": loss", sum:item() / 24, whole:item())
    near(name .. ": gradients", grads(net), grads(alone))
    near(name .. ": parameters", net:parameters(), alone:parameters())
  end
  return core.reducer_buckets(ddp.reducer)
end
local function evenly(r) return 24 * r / size end
local function unevenly(r) return r == size and 24 or math.floor(23 * (r / size) ^ 2) + r end
local buckets, shared = train("even", evenly)
print("one bucket", buckets, shared)
buckets = train("uneven", unevenly, { bucket_cap_mb = 0.002 })
assert(buckets > 2, "few buckets")
train("static graph", unevenly, { bucket_cap_mb = 0.002, static_graph = true })
train("unused looked for", evenly, { bucket_cap_mb = 0.002, find_unused_parameters = true })
train("plain mean", evenly, { batch_dim = false })
]]

describe("DistributedDataParallel on several ranks", function()
  for _, n in ipairs { 2, 4 } do
    it(("trains as one process does, with %d"):format(n), function()
      local got = succeeds(n, training)
      assert.matches("one bucket\t1\ttrue", got[0].output)
    end)
  end

  it("does so without shared memory", function()
    local got = succeeds(3, training, { LM_SHM = "0" })
    assert.matches("one bucket\t1\tfalse", got[2].output)
  end)

  it("averages in every floating dtype, and channels-last weights where they lie", function()
    local script = [[
      for _, dtype in ipairs { "float16", "bfloat16", "float32", "float64" } do
        lm.manual_seed(1)
        local net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Flatten(), nn.Linear(32, 2)):to(dtype)
        local w = net[1].weight
        local ddp = DDP(net)
        lm.manual_seed(20 + rank)
        local x = lm.randn({ 2, 3, 4, 4 }, { dtype = dtype })
        ddp(x):sum():backward()
        local mean = w.grad:clone()
        local alone = copy_of(net, function()
          return nn.Sequential(nn.Conv2d(3, 8, 3), nn.Flatten(), nn.Linear(32, 2)):to(dtype)
        end)
        alone(x):sum():backward()
        local wanted = alone[1].weight.grad:double()
        dist.all_reduce(wanted, { op = "mean" })
        local tolerance = ({ float16 = 4e-3, bfloat16 = 3e-2, float32 = 1e-6, float64 = 1e-12 })[dtype]
        near(dtype, { mean:double() / wanted:abs():max() }, { wanted / wanted:abs():max() }, tolerance)
        assert(table.concat(w:stride(), ",") == table.concat(w.grad:stride(), ","), "strides")
      end
      -- several dtypes in one model
      local Mixed = nn.Module:extend("Mixed")
      function Mixed:init() self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4):double() end
      function Mixed:forward(x) return self.b(self.a(x):double()) end
      local mixed = DDP(Mixed())
      mixed(lm.ones { 1, 4 } * (rank + 1)):sum():backward()
      assert((core.reducer_buckets(mixed.reducer)) == 2)
      assert(math.abs(mixed.module.a.bias.grad:norm():item() - mixed.module.a.bias.grad:norm():item()) == 0)
      local sum = dist.all_reduce(mixed.module.b.weight.grad:clone())
      near("mixed", { sum / size }, { mixed.module.b.weight.grad })
    ]]
    succeeds(2, script)
    succeeds(2, script, { LM_SHM = "0" })
  end)

  it("goes with checkpoints inside, and not with one around it", function()
    succeeds(2, [[
      local inside = DDP(nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 1)))
      function inside.module:forward(x) return lm.autograd.checkpoint_sequential(self:children(), 3, x) end
      local function gradients()
        inside:zero_grad()
        inside(lm.ones { 2, 3 } * (rank + 1)):sum():backward()
        return grads(inside)
      end
      local got = gradients()
      inside.module.forward = nil
      near("gradients of parts", got, gradients())
      contains(message(lm.autograd.checkpoint, inside, lm.ones { 2, 3 }), "put checkpoints into the wrapped module")
    ]])
  end)

  it("accumulates with no_sync", function()
    local script = [[
      local net = lenet()
      local ddp = DDP(net)
      local alone = copy_of(net)
      for round = 1, 2 do
        local x, y = batch(12 * size)
        local function part(k) -- the k-th of three micro-batches: 4 samples a rank
          local a = rank * 12 + k * 4
          return x[{ { a + 1, a + 4 } }], y[{ { a + 1, a + 4 } }]
        end
        alone:zero_grad()
        F.cross_entropy(alone(x), y):backward()
        ddp:zero_grad()
        for k = 0, 2 do
          local function one()
            local xs, ys = part(k)
            local loss = F.cross_entropy(ddp(xs), ys) / 3
            loss:backward()
            return "result", k
          end
          if k < 2 then
            local word, number = ddp:no_sync(one)
            assert(word == "result" and number == k)
          else
            one()
          end
        end
        near("gradients", grads(net), grads(alone))
      end
      -- local gradients differ; an error inside ends the mode
      ddp:zero_grad()
      local text = message(function()
        ddp:no_sync(function()
          local x, y = batch(2 + rank)
          F.cross_entropy(ddp(x), y):backward()
          error("boom")
        end)
      end)
      contains(text, "boom")
      local most, least = dist.all_reduce(net[1].weight.grad:clone(), { op = "max" }),
        dist.all_reduce(net[1].weight.grad:clone(), { op = "min" })
      assert((most - least):abs():max():item() > 0, "no_sync averaged")
      local x, y = batch(4)
      ddp:zero_grad()
      F.cross_entropy(ddp(x * (rank + 1)), y):backward()
      most, least = dist.all_reduce(net[1].weight.grad:clone(), { op = "max" }),
        dist.all_reduce(net[1].weight.grad:clone(), { op = "min" })
      assert((most - least):abs():max():item() == 0, "did not average")
    ]]
    succeeds(2, script)
    succeeds(2, script, { LM_SHM = "0" })
  end)

  it("lets parameters be unused where it is told to", function()
    local script = ddp.branches .. [[
      local ddp = DDP(net, { find_unused_parameters = true, bucket_cap_mb = 0.00001 })
      local x = lm.ones({ 2, 3 }, { dtype = "float64" }) * (rank + 1)
      for round = 1, 3 do
        ddp:zero_grad()
        ddp(x, rank == 0 and "left" or "right"):sum():backward()
        -- One rank used each side, so gradients are half; bias gradients are 2 samples.
        near("left", { net.left.bias.grad }, { lm.tensor({ 1 }, { dtype = "float64" }) })
        near("right", { net.right.bias.grad }, { lm.tensor({ 1 }, { dtype = "float64" }) })
        assert(net.never.bias.grad == nil and net.never.weight.grad == nil, "a gradient for what nobody used")
      end
      -- used by nobody, with a gradient of an earlier pass: that stays
      net.never.bias.grad = lm.full({ 1 }, 7 + rank, { dtype = "float64" })
      local kept = net.left.bias.grad
      kept:fill_(3 + rank)
      ddp(x, "right"):sum():backward()
      assert(net.never.bias.grad:item() == 7 + rank)
      assert(net.left.bias.grad:item() == 3 + rank, "an unused parameter's gradient changed")
      -- an unused gradient goes into the average of the next pass that uses it
      ddp(x, "left"):sum():backward()
      near("left again", net.left.bias.grad:item(), 3.5 + 2)
    ]]
    succeeds(2, script)
    succeeds(2, script, { LM_SHM = "0" })
  end)

  it("takes the first pass for all with static_graph", function()
    local script = ddp.branches .. [[
      local ddp = DDP(net, { static_graph = true, bucket_cap_mb = 0.00001 })
      local x = lm.ones({ 2, 3 }, { dtype = "float64" }) * (rank + 1)
      for round = 1, 3 do
        ddp:zero_grad()
        ddp(x, "left"):sum():backward()
        near("left", { net.left.weight.grad }, { dist.all_reduce(net.left.weight.grad:clone()) / 2 })
        assert(net.right.bias.grad == nil)
      end
      local text = message(function()
        for _, side in ipairs { "left", "right" } do ddp(x, side):sum():backward() end
      end)
      contains(text, "'right.weight' got more gradients in this backward pass than in the first (0)")
      os.exit(0, true)
    ]]
    local got = ddp.run(2, script)
    assert(got.ok, got.text)
  end)

  it("takes gradients from parts of the graph that are recomputed in backward", function()
    local script = [[
      -- f(x) without keeping what is inside; backward runs it again
      local Again = lm.autograd.Function:extend("Again")
      function Again.forward(ctx, f, x)
        ctx.f = f
        ctx:save_for_backward(x)
        return f(x)
      end
      function Again.backward(ctx, g)
        local x = ctx.saved_tensors[1]:detach():requires_grad_(true)
        lm.enable_grad(function() core.backward({ ctx.f(x) }, { gradient = { g } }) end)
        return nil, x.grad
      end
      local net, alone = nn.Linear(3, 3):double(), nn.Linear(3, 3):double()
      local Twice = nn.Module:extend("Twice")
      function Twice:init(layer) self.layer = layer end
      function Twice:forward(x) return Again.apply(self.layer, Again.apply(self.layer, x)) end
      local ddp = DDP(Twice(net), { static_graph = true })
      alone:load_state_dict(net:state_dict())
      for round = 1, 3 do
        local x = lm.ones({ 2, 3 }, { dtype = "float64" }):mul_(rank + round):requires_grad_(true)
        ddp:zero_grad()
        ddp(x):square():sum():backward()
        alone:zero_grad()
        alone(alone(x)):square():sum():backward()
        for i, g in ipairs(grads(alone)) do near("twice", { dist.all_reduce(g:clone()) / size }, { grads(net)[i] }) end
      end
      contains(message(function()
        DDP(Twice(nn.Linear(3, 3)))(lm.ones({ 2, 3 }):requires_grad_(true)):sum():backward()
      end), "in one backward pass")
      os.exit(0, true)
    ]]
    for _, shared in ipairs { "1", "0" } do
      local got = ddp.run(2, script, { LM_SHM = shared })
      assert(got.ok, got.text)
    end
  end)

  it("works in a group of some ranks, and several models at a time", function()
    succeeds(3, [[
      local pair = dist.new_group { 0, 2 }
      if rank ~= 1 then
        local a, b = DDP(nn.Linear(2, 1), { process_group = pair }), DDP(nn.Linear(2, 1), { process_group = pair })
        for round = 1, 3 do
          local x = lm.ones { 1, 2 } * (rank + round)
          a:zero_grad()
          b:zero_grad();
          (a(x) * 2 + b(x)):sum():backward()
          near("a", a.module.weight.grad:sum():item(), 2 * 2 * (1 + round))
          near("b", b.module.weight.grad:sum():item(), 2 * (1 + round))
          a(x):sum():backward() -- adds up, on the average
          near("a again", a.module.weight.grad:sum():item(), 3 * 2 * (1 + round))
        end
      end
    ]])
  end)

  describe("computes gradients where its buckets are", function()
    -- check(what, make, loss, opts): five rounds on this rank's own data against a bare twin, averaged.
    local alike = [[
      local function check(what, make, loss, opts)
        lm.manual_seed(3)
        local net = make()
        local ddp, alone = DDP(net, opts), copy_of(net, make)
        for round = 1, 5 do
          lm.manual_seed(100 * round + rank)
          local data = lm.randn({ 6, 6 }, { dtype = "float64" })
          ddp:zero_grad { set_to_none = round % 2 == 1 }
          alone:zero_grad()
          loss(ddp, data, net):backward()
          loss(alone, data, alone):backward()
          local wanted, got = grads(alone), grads(net)
          assert(#wanted == #got and #got > 0)
          for i, g in ipairs(wanted) do
            near(what .. " " .. i, { got[i] }, { dist.all_reduce(g:clone()) / size })
            got[i] = nil
          end
          if round == 2 then collectgarbage() end
          net:parameters()[1].grad:mul_(3) -- the next pass begins with none of it
        end
      end
      local function module(parameters, forward)
        local Net = nn.Module:extend("Net")
        function Net:init()
          for _, name in ipairs { "a", "b" } do
            local sizes = parameters[name]
            if sizes then self[name] = nn.Parameter(lm.randn(sizes, { dtype = "float64" })) end
          end
        end
        Net.forward = forward
        return Net
      end
      local function total(net, x) return net(x):square():sum() end
    ]]

    local function both(script)
      succeeds(2, alike .. script)
      succeeds(2, alike .. script, { LM_SHM = "0" })
    end

    it("each in its own place, where parameters, inputs and gradients are of one size", function()
      both [[
        local square = { 6, 6 }
        check("mm", module({ a = square, b = square }, function(self, x) return x:mm(self.a:mm(self.b)) end), total)
        check("mul", module({ a = square, b = square }, function(self, x) return x * (self.a * self.b) end), total)
        check("div", module({ a = square, b = square }, function(self, x)
          return x + self.a / (self.b:exp() + self.a)
        end), total)
        check("cat", module({ a = square, b = square }, function(self, x)
          return lm.cat({ self.a, x, self.b }, 1)
        end), total)
        check("views", module({ a = square, b = square }, function(self, x)
          return x:mm(self.a:t()):mm(self.b[{ { 2, 5 } }]:t())
        end), total)
        check("one for another", module({ a = square, b = square }, function(self, x)
          return x:mm(self.a + self.b) + self.a
        end), total)
        -- the gradient of each layer's input is as large as that of its weight
        check("layers", function()
          return nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6), nn.LayerNorm(6), nn.Linear(6, 6)):double()
        end, total, { bucket_cap_mb = 0.0001 })
        check("wide norm", module({ a = { 6 }, b = { 6 } }, function(self, x)
          return F.layer_norm(x[1], { 6 }, { weight = self.a, bias = self.b })
        end), total)
      ]]
    end)

    it("added up where a parameter is used more than once", function()
      both [[
        local Tied = nn.Module:extend("Tied")
        function Tied:init() self.one, self.other = nn.Linear(6, 6), nn.Linear(6, 6) end
        function Tied:forward(x) return self.one(self.other(self.one(x)):tanh()) end
        check("twice", function() return Tied():double() end, total)
        check("by itself", module({ a = { 6, 6 } }, function(self, x) return x:mm(self.a:mm(self.a)) end), total)
        check("in one node", module({ a = { 6, 6 } }, function(self, x) return x:mm(self.a * self.a) end), total)
        local Words = nn.Module:extend("Words")
        function Words:init() self.words = nn.Embedding(9, 6) end
        function Words:forward(x)
          local index = (x:abs() * 3):floor():clamp(1, 9):long()
          return F.linear(self.words(index), self.words.weight)
        end
        check("tied embedding", function() return Words():double() end, total)
      ]]
    end)

    it("in every layout", function()
      both [[
        local function loss(net, x) return net(x:reshape { 1, 1, 6, 6 }:expand { 2, 4, 6, 6 }):square():sum() end
        local function conv() return nn.Sequential(nn.Conv2d(4, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 2)):double() end
        check("conv", conv, loss)
        local function channels_last()
          local net = conv()
          for _, p in ipairs(net:parameters()) do
            if p:dim() == 4 then p.data = p:detach():contiguous { memory_format = "channels_last" } end
          end
          return net
        end
        check("channels last", channels_last, loss)
        check("transposed", function()
          local net = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 6)):double()
          net[1].weight.data = net[1].weight:detach():t():contiguous():t()
          return net
        end, total)
      ]]
    end)

    it("and leaves alone what somebody else looks at", function()
      both [[
        -- a former gradient goes into the next loss: the new one must not be written over it while it is read
        local make = module({ a = { 6, 6 } }, function(self, x, old) return x:mm(self.a:mm(old)) end)
        local net = make()
        local ddp = DDP(net)
        local alone = copy_of(net, make)
        local old = lm.eye(6, { dtype = "float64" })
        for round = 1, 4 do
          local x = lm.full({ 6, 6 }, rank + round, { dtype = "float64" }) + lm.eye(6, { dtype = "float64" })
          local twin = old:clone()
          ddp:zero_grad()
          alone:zero_grad()
          ddp(x, old):sum():backward()
          alone(x, twin):sum():backward()
          near("round " .. round, grads(net), { dist.all_reduce(alone.a.grad:clone()) / size })
          old = net.a.grad
        end
        local a, b, kept = nn.Linear(6, 6):double(), nn.Linear(6, 6):double(), nil
        ddp = DDP(a)
        b:load_state_dict(a:state_dict())
        local x = lm.full({ 6, 6 }, rank + 1, { dtype = "float64" })
        -- a hook gets this rank's own gradient, which stays as it is
        a.weight:register_hook(function(g) kept = g end)
        a.bias:register_hook(function(g) return g * 2 end)
        ddp(x):square():sum():backward()
        b(x):square():sum():backward()
        near("hook", { kept }, { b.weight.grad })
        near("hooked", grads(a), { dist.all_reduce(b.weight.grad:clone()) / size,
          dist.all_reduce(b.bias.grad:clone()) * 2 / size })
      ]]
    end)

    it("in evaluation with rank 0's buffers by option, also without a graph", function()
      both [[
        for _, dtype in ipairs { "float64", "bfloat16" } do
          for _, opts in ipairs { { broadcast_in_eval = true }, {},
            { broadcast_in_eval = true, broadcast_buffers = false } } do
            lm.manual_seed(1)
            local net = nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 2)):to(dtype)
            local ddp, is_alike = DDP(net, opts), opts.broadcast_in_eval and opts.broadcast_buffers ~= false
            local x = lm.randn({ 8, 3 }):to(dtype)
            ddp(x * (rank + 1) + rank):sum():backward()
            local own = net[1].running_mean:clone()
            ddp:eval()
            local function spread(t)
              local most = dist.all_reduce(t:double():detach():clone(), { op = "max" })
              return (most - dist.all_reduce(t:double():detach():clone(), { op = "min" })):max():item()
            end
            for _, records in ipairs { false, true } do
              local y = lm.set_grad_enabled(records, function() return ddp(x) end)
              assert((spread(y) == 0) == (is_alike == true), "results of evaluation")
              assert((spread(net[1].running_mean) == 0) == (is_alike == true))
              assert(rank > 0 or net[1].running_mean:eq(own):all():item())
            end
            net(x) -- the module alone, on one rank
          end
        end
      ]]
    end)

    it("before and after no_sync, as converted by autocast, and twice through one graph", function()
      both [[
        local function make() return nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 6)) end
        local net = make():double()
        local ddp, alone = DDP(net), copy_of(net, function() return make():double() end)
        local function average()
          local list = grads(alone)
          for i, g in ipairs(list) do list[i] = dist.all_reduce(g:clone()) / size end
          return list
        end
        for round = 1, 3 do
          local x = lm.randn({ 6, 6 }, { dtype = "float64" }) * (rank + 1)
          ddp:zero_grad()
          alone:zero_grad()
          ddp:no_sync(function() ddp(x):sum():backward() end)
          alone(x):sum():backward()
          near("own", grads(net), grads(alone))
          ddp:no_sync(function() ddp(x):square():sum():backward() end)
          alone(x):square():sum():backward()
          near("own, added up", grads(net), grads(alone))
          if round == 2 then ddp:zero_grad() alone:zero_grad() end
          local loss, its = ddp(x):pow(3):sum(), alone(x):pow(3):sum()
          loss:backward { retain_graph = true }
          its:backward { retain_graph = true }
          near("averaged", grads(net), average())
          ddp:zero_grad()
          alone:zero_grad()
          loss:backward()
          its:backward()
          near("again", grads(net), average())
        end
        local half = make()
        ddp, alone = DDP(half), copy_of(half, make)
        for round = 1, 3 do
          local x = lm.randn { 6, 6 } * (rank + 1)
          for _, m in ipairs { ddp, alone } do
            m:zero_grad()
            local loss
            lm.autocast({ device = "cpu", dtype = "bfloat16" }, function() loss = m(x):float():sum() end)
            loss:backward()
          end
          near("autocast", grads(half), average(), 1e-5)
        end
      ]]
    end)
  end)
end)

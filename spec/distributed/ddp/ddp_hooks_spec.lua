-- Communication hooks of DistributedDataParallel, with memory that ranks share and without.
local ddp = require "spec.support.ddp"
local within = require("spec.support.time").within
local succeeds = ddp.succeeds

local function both(n, script)
  succeeds(n, script)
  succeeds(n, script, { LM_SHM = "0" })
end

-- pass(net): a backward pass on this rank's part of a batch. averages(net, factor): checks its gradients against the
-- average of a bare twin's, times factor.
local lines = [[
  local function small() return nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3)):double() end
  local function data(round)
    lm.manual_seed(100 * round + rank)
    return lm.randn({ 4, 5 }, { dtype = "float64" })
  end
  local function pass(net, round) net(data(round)):square():sum():backward() end
  local function twins(opts)
    lm.manual_seed(3)
    local net = small()
    return DDP(net, opts), copy_of(net, small), net
  end
  local function averages(what, net, alone, round, factor, tolerance)
    net:zero_grad()
    alone:zero_grad()
    pass(net, round)
    pass(alone, round)
    for i, g in ipairs(grads(alone)) do
      near(what .. " " .. i, { grads(net)[i] }, { dist.all_reduce(g:clone()) * (factor or 1) / size }, tolerance)
    end
  end
]]

describe("communication hooks", function()
  -- A rank's part is rounded on its way (relative error u), and so is each of size - 1 sums: size * u of the sum of
  -- magnitudes in all, to first order, and for float16 a rank's 2^-25 of what has no exponent left.
  local compressed = lines .. [[
    -- Sums in float32 leave two roundings to 16 bits, whatever the number of ranks.
    for _, case in ipairs { { "bf16_compress", 2 ^ -8, 0, size }, { "fp16_compress", 2 ^ -11, 2 ^ -25, size },
      { "bf16_compress_fp32_sum", 2 ^ -8, 0, 2 } } do
      local name, u, least, roundings = unpack(case)
      for _, hook in ipairs { name, nn.parallel.comm_hooks[name .. "_hook"] } do
        local net, alone = twins { bucket_cap_mb = 0.0001 }
        net:register_comm_hook(nil, hook)
        local off = 0
        for round = 1, 3 do
          net:zero_grad()
          alone:zero_grad()
          pass(net, round)
          pass(alone, round)
          for i, g in ipairs(grads(alone)) do
            local mean, magnitude = dist.all_reduce(g:clone()) / size, dist.all_reduce(g:abs()) / size
            local error = (grads(net)[i] - mean):abs()
            local bound = magnitude * (roundings * u * (1 + roundings * u)) + size * least
            assert((error - bound):max():item() <= 0, name .. ": gradient " .. i .. " is out of bounds")
            off = math.max(off, error:max():item())
            local most = dist.all_reduce(grads(net)[i]:clone(), { op = "max" })
            near("the same everywhere", { most }, { grads(net)[i] }, 0)
          end
        end
        local _, shared = core.reducer_buckets(net.reducer)
        assert(shared and off < 1e-12 or not shared and off > 1e-5, name .. " is off by " .. off)
      end
    end
  ]]

  for _, n in ipairs { 2, 4 } do
    it(("compress gradients on their way, with %d ranks"):format(n), function() both(n, compressed) end)
  end

  it("compress what would overflow if it were not scaled first, and leave short ones as they are", function()
    both(4, lines .. [[
      local net = nn.Linear(2, 1)
      local model = DDP(net)
      model:register_comm_hook(nil, "fp16_compress")
      model(lm.full({ 1, 2 }, 60000)):sum():backward()
      near("large", net.weight.grad:max():item(), 60000, 60000 * 4 * 2 ^ -11)
      local half = nn.Linear(2, 1):to "bfloat16"
      model = DDP(half)
      model:register_comm_hook(nil, "bf16_compress")
      model(lm.full({ 1, 2 }, rank, { dtype = "bfloat16" })):sum():backward()
      near("bfloat16", half.weight.grad:float():max():item(), 1.5, 0)
    ]])
  end)

  it("keep sums in float32 by option: small gradients are not lost beside a large one", function()
    succeeds(4, lines .. [[
      local got = {}
      for _, name in ipairs { "bf16_compress", "bf16_compress_fp32_sum" } do
        local net = nn.Linear(3, 1, { bias = false }) -- 16 elements in the bucket, of which each rank adds up 4
        local model = DDP(net)
        model:register_comm_hook(nil, name)
        model(lm.tensor { { ({ [0] = 256, 1, 1, 1 })[rank], 3, 0 } }):sum():backward()
        got[name] = net.weight.grad
      end
      near("in float32", { got.bf16_compress_fp32_sum }, { lm.tensor { { 65, 3, 0 } } }, 0)
      assert(got.bf16_compress:max():item() < 65, "bfloat16 has room for that sum")
    ]], { LM_SHM = "0" })
  end)

  it("by name do the same as their Lua functions inside a user's", function()
    succeeds(2, lines .. [[
      local hooks = nn.parallel.comm_hooks
      for _, name in ipairs { "allreduce", "bf16_compress", "fp16_compress", "bf16_compress_fp32_sum" } do
        local a, _, first = twins { bucket_cap_mb = 0.0001 }
        local b, _, second = twins { bucket_cap_mb = 0.0001 }
        a:register_comm_hook(dist.group and dist.group.WORLD or nil, name)
        b:register_comm_hook(nil, function(state, bucket) return hooks[name .. "_hook"](state, bucket) end)
        for round = 1, 2 do
          for _, net in ipairs { a, b } do
            net:zero_grad()
            pass(net, round)
          end
          near(name, grads(first), grads(second), 0)
        end
      end
    ]], { LM_SHM = "0" })
  end)

  it("of a user's see the weighted gradients, and say what becomes of them", function()
    both(2, lines .. [[
      local net, alone, bare = twins { bucket_cap_mb = 0.0001 }
      local state, seen = {}, {}
      net:register_comm_hook(state, function(given, bucket)
        assert(given == state)
        seen[#seen + 1] = bucket:index()
        assert(bucket:is_last() == (bucket:index() == (core.reducer_buckets(net.reducer))))
        local flat, parameters, gradients = bucket:buffer(), bucket:parameters(), bucket:gradients()
        assert(flat:dim() == 1 and #parameters == #gradients and #parameters > 0)
        local sum = 0
        for i, p in ipairs(parameters) do
          local found
          for _, q in ipairs(bare:parameters()) do found = found or p == q end
          assert(found, "a parameter of somebody else")
          assert(table.concat(p.shape, ",") == table.concat(gradients[i].shape, ","))
          sum = sum + gradients[i]:square():sum():item()
        end
        near("nothing in between", flat:square():sum():item(), sum)
        return dist.all_reduce(flat) * 3
      end)
      local _, shared = core.reducer_buckets(net.reducer)
      assert(not shared, "a hook's buffer is shared")
      for round = 1, 3 do
        seen = {}
        averages("times 3", net, alone, round, 3)
        assert(#seen > 1 and seen[1] == 1 and seen[#seen] == #seen, "buckets in their order")
      end
      -- weights by batch size, as without a hook
      local x = lm.ones({ rank + 1, 5 }, { dtype = "float64" })
      bare:zero_grad()
      net(x):sum():backward()
      near("weighted", { bare[3].bias.grad }, { lm.full({ 3 }, 3 * (1 * 1 + 2 * 2) / 3, { dtype = "float64" }) })
      -- in place; what a pass leaves between gradients is gone in the next
      local other = twins()
      other:register_comm_hook(nil, function(_, bucket)
        local sum = 0
        for _, g in ipairs(bucket:gradients()) do sum = sum + g:sum():item() end
        near("clean", bucket:buffer():sum():item(), sum)
        return bucket:buffer():fill_(1)
      end)
      for round = 1, 2 do
        other:zero_grad()
        pass(other, round)
        for _, g in ipairs(grads(other.module)) do near("ones", g:sum():item(), g:numel()) end
      end
    ]])
  end)

  it("may give something to wait for", function()
    both(2, lines .. [[
      local waits = {
        function(_, bucket) return dist.all_reduce(bucket:buffer(), { async_op = true }) end,
        function(_, bucket)
          local float = bucket:buffer():float()
          local work = dist.all_reduce(float, { async_op = true })
          return { wait = function(self)
            assert(self.wait)
            work:wait()
            return float
          end }
        end,
        function(_, bucket)
          local buffer = bucket:buffer()
          return { wait = function() dist.all_reduce(buffer) end }
        end,
      }
      for i, hook in ipairs(waits) do
        local net, alone = twins { bucket_cap_mb = 0.0001 }
        net:register_comm_hook(nil, hook)
        for round = 1, 3 do averages("hook " .. i, net, alone, round, 1, i == 2 and 1e-5 or nil) end
      end
    ]])
  end)

  it("go with no_sync, unused parameters, static graphs and groups of some ranks", function()
    both(3, lines .. [[
      local calls = 0
      local function twice(_, bucket)
        calls = calls + 1
        return dist.all_reduce(bucket:buffer():mul_(2), { async_op = true })
      end
      local net, alone = twins()
      net:register_comm_hook(nil, twice)
      net:no_sync(function() pass(net, 1) end)
      assert(calls == 0, "a hook in no_sync")
      pass(net, 2)
      pass(alone, 1)
      pass(alone, 2)
      assert(calls > 0)
      for i, g in ipairs(grads(alone)) do near("sum", { grads(net)[i] }, { dist.all_reduce(g:clone()) * 2 / size }) end
      local fixed, its = twins { static_graph = true }
      fixed:register_comm_hook(nil, twice)
      for round = 1, 3 do averages("static", fixed, its, round, 2) end
      local pair = dist.new_group { 0, 2 }
      if rank ~= 1 then
        local some = DDP(nn.Linear(2, 1), { process_group = pair })
        some:register_comm_hook(pair, function(group, bucket)
          return dist.all_reduce(bucket:buffer() * 2, { group = group })
        end)
        some(lm.full({ 1, 2 }, rank + 1)):sum():backward()
        near("of two", some.module.weight.grad:sum():item(), 2 * 2 * 2)
        local named = DDP(nn.Linear(2, 1), { process_group = pair })
        named:register_comm_hook(pair, nn.parallel.comm_hooks.bf16_compress_hook)
        named(lm.full({ 1, 2 }, rank + 1)):sum():backward()
        near("of two", named.module.weight.grad:sum():item(), 2 * 2)
      end
    ]] .. ddp.branches .. [[
      local x = lm.ones({ 2, 3 }, { dtype = "float64" })
      local model = DDP(net, { find_unused_parameters = true, bucket_cap_mb = 0.00001 })
      model:register_comm_hook(nil, twice)
      for round = 1, 2 do
        model:zero_grad()
        model(x, rank == 0 and "left" or "right"):sum():backward()
        near("left", net.left.bias.grad:item(), 2 * 2 / 3)
        near("right", net.right.bias.grad:item(), 2 * 4 / 3)
        assert(net.never.bias.grad == nil, "a gradient for what nobody used")
      end
    ]])
  end)

  it("go with ranks that have no more batches", function()
    both(3, lines .. [[
      for _, hook in ipairs { "bf16_compress", function(_, bucket)
        return dist.all_reduce(bucket:buffer(), { async_op = true })
      end } do
        lm.manual_seed(8)
        local net = nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.Linear(5, 2)):double()
        local model = DDP(net, { bucket_cap_mb = 0.0001 })
        model:register_comm_hook(nil, hook)
        local opt = optim.SGD(model:parameters(), { lr = 0.1 })
        model:join(function()
          for k = 1, rank * 2 do
            opt:zero_grad()
            model(lm.randn({ 4, 3 }, { dtype = "float64" })):square():sum():backward()
            opt:step()
          end
        end)
        for i, p in ipairs(net:parameters()) do near("p" .. i, { p }, { dist.broadcast(p:detach():clone(), 0) }, 0) end
      end
    ]])
  end)

  it("are called on one rank too", function()
    succeeds(1, lines .. [[
      local net, alone = twins()
      net:register_comm_hook(nil, function(_, bucket) return dist.all_reduce(bucket:buffer():mul_(5)) end)
      for round = 1, 2 do averages("alone", net, alone, round, 5) end
      net:join(function() averages("joined", net, alone, 1, 5) end)
      local exact, twin = twins()
      exact:register_comm_hook(nil, "bf16_compress")
      averages("by name", exact, twin, 1)
      contains(message(exact.register_comm_hook, exact, nil, "allreduce"), "this model already has a hook")
    ]])
  end)

  it("are registered once, before the first backward pass, on all ranks alike", function()
    both(2, lines .. [[
      local net = twins()
      contains(message(net.register_comm_hook, net, nil, "bf16_compres"), "did you mean 'bf16_compress'")
      contains(message(net.register_comm_hook, net), "expected (state, hook)")
      contains(message(net.register_comm_hook, net, 3, "bf16_compress"), "group")
      local pair = dist.new_group { 0, 1 }
      contains(message(net.register_comm_hook, net, pair, "bf16_compress"), "the model's process group")
      net:register_comm_hook(nil, function(_, bucket) return dist.all_reduce(bucket:buffer()) end)
      contains(message(net.register_comm_hook, net, nil, "allreduce"), "this model already has a hook")
      local late = twins()
      pass(late, 1)
      contains(message(late.register_comm_hook, late, nil, "allreduce"),
        "gradients were already averaged; register the hook before the first backward()")
    ]])
    for _, shared in ipairs { "1", "0" } do
      local got = ddp.run(2, lines .. [[
        local net = twins()
        print(message(function()
          net:register_comm_hook(nil, rank == 0 and "bf16_compress" or function() end)
          pass(net, 1)
        end))
        os.exit(0, true)
      ]], { LM_SHM = shared })
      assert(got.ok, got.text)
      assert.matches("register_comm_hook: the hook must be the same on all ranks, got 'a function' here and "
        .. "'bf16_compress' on rank 0", got[1].output, 1, true)
      assert.matches("the same on all ranks, got 'a function' here", got[0].output, 1, true)
      got = ddp.run(2, lines .. [[
        local net = twins()
        print(message(function()
          if rank == 0 then net:register_comm_hook(nil, "bf16_compress") end
          pass(net, 1)
        end))
        os.exit(0, true)
      ]], { LM_SHM = shared })
      assert(got.ok, got.text)
      for rank = 0, 1 do within(got[rank].seconds, 15, got.text) end
    end
  end)

  -- On rank 1 the hook does what each case says, on the other what is right.
  for what, case in pairs {
    ["raise"] = { "error 'boom'", "boom" },
    ["give nothing"] = { "return nil", "the result of the hook must be a tensor or an object with wait(), got nil" },
    ["give what only seems to wait"] = { "return { wait = 5 }", "an object with wait(), got a table" },
    ["give a number"] = { "return 3", "an object with wait(), got 3" },
    ["give other sizes"] = { "return bucket:buffer()[{ { 1, 2 } }]", "on cpu like its bucket, got float64 [2] on cpu" },
    ["give integers"] = { "return bucket:buffer():long()", "like its bucket, got int64" },
    ["raise at last"] = { "return { wait = function() error 'boom' end }", "boom" },
    ["wait for a text"] = { "return { wait = function() return 'x' end }",
      "the result of the hook's wait() must be a tensor or nil, got string 'x'" },
  } do
    it("that " .. what .. " fail on every rank, and leave nobody waiting", function()
      for _, shared in ipairs { "1", "0" } do
        local got = ddp.run(2, lines .. ([[
          local net = twins { bucket_cap_mb = 0.0001 }
          net:register_comm_hook(nil, function(_, bucket)
            if rank == 1 and bucket:index() == 2 then %s end
            return dist.all_reduce(bucket:buffer(), { async_op = true })
          end)
          print(message(pass, net, 1))
          print(message(pass, net, 2))
          os.exit(0, true)
        ]]):format(case[1]), { LM_SHM = shared })
        assert(got.ok, got.text)
        for rank = 0, 1 do
          assert.matches(case[2], got[rank].output, 1, true)
          within(got[rank].seconds, 15, got.text)
        end
        assert.matches("rank 1 on ", got[0].output, 1, true)
      end
    end)
  end

  it("that end their own group leave a clear error", function()
    succeeds(1, lines .. [[
      local net = twins()
      net:register_comm_hook(nil, function(_, bucket)
        dist.destroy_process_group()
        return bucket:buffer()
      end)
      contains(message(pass, net, 1), "process group was destroyed")
      dist.init_process_group { timeout = 20 }
    ]])
  end)

  it("give all their memory back", function()
    both(2, lines .. [[
      local function round()
        for _, hook in ipairs { "fp16_compress", function(_, bucket)
          return dist.all_reduce(bucket:buffer(), { async_op = true })
        end } do
          local net = twins { bucket_cap_mb = 0.0001 }
          net:register_comm_hook(nil, hook)
          for k = 1, 3 do pass(net, k) end
        end
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

-- Hooks that compress gradients with error feedback: PowerSGD against PyTorch's (spec/golden/_powersgd.safetensors),
-- 8-bit integers; bytes, states, gradients that are not finite.
local ddp = require "spec.support.ddp"
local ranks = require "spec.support.ranks"
local temp = require "spec.support.temp"

local lines = [[
  local hooks = nn.parallel.comm_hooks
  local collectives = require "luminary.distributed.collectives"
  local bytes = 0 -- size of this rank's tensors that collectives send
  for _, name in ipairs { "all_reduce", "all_to_all_single", "all_gather_into_tensor" } do
    local call = collectives[name]
    collectives[name] = function(t, ...)
      bytes = bytes + t.nbytes
      return call(t, ...)
    end
  end
  local function make()
    lm.manual_seed(1)
    return nn.Sequential(nn.Linear(20, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 5))
  end
  local function hooked(kind, options)
    local net = make()
    local model = DDP(net, { bucket_cap_mb = 0.01 })
    local state = kind == "power" and hooks.PowerSGDState(options) or kind == "int8" and hooks.Int8State(options)
    model:register_comm_hook(state or nil, kind == "power" and hooks.powerSGD_hook
      or kind == "int8" and hooks.int8_hook or function(_, bucket) return hooks.allreduce_hook(nil, bucket) end)
    return net, model, state, lm.optim.SGD(net:parameters(), { lr = 0.1 })
  end
  local goal = lm.randn({ 20, 5 }, { generator = lm.Generator():manual_seed(3) })
  -- Steps from..to on data of their own; returns the mean loss of the last 20.
  local function train(model, opt, from, to)
    local last = 0
    for step = from, to do
      local x = lm.randn({ 16, 20 }, { generator = lm.Generator():manual_seed(1000 * step + rank) })
      local loss = nn.functional.mse_loss(model(x), lm.sin(x:mm(goal)))
      opt:zero_grad()
      loss:backward()
      opt:step()
      if step > to - 20 then last = last + loss:item() / 20 end
    end
    return (dist.all_reduce(lm.tensor { last }) / size):item()
  end
  local function same_everywhere(net)
    for i, p in ipairs(net:parameters()) do
      local first = p:detach():clone()
      dist.broadcast(first, 0)
      assert(first:equal(p:detach()), "parameter " .. i .. " differs between ranks")
    end
  end
]]

describe("compressed gradients", function()
  it("of PowerSGD are PyTorch's", function()
    ddp.succeeds(2, [[
      local golden = lm.load "spec/golden/_powersgd.safetensors"
      local net = nn.Sequential(nn.Linear(12, 16), nn.Tanh(), nn.Linear(16, 10)):double()
      for name, p in net:named_parameters() do
        lm.no_grad(function() p:copy_(golden["start." .. name]) end)
      end
      local hooks = nn.parallel.comm_hooks
      local model = DDP(net)
      local state = hooks.PowerSGDState { matrix_approximation_rank = 2, start_powerSGD_iter = 2,
        min_compression_rate = 1 }
      model:register_comm_hook(state, hooks.powerSGD_hook)
      local opt = lm.optim.SGD(net:parameters(), { lr = 0.5 })
      local exact = 0
      for step = 1, 8 do
        if step == 3 then
          local dict = state:state_dict()
          for _, name in ipairs { "0.weight", "2.weight" } do dict.q[name] = golden["q." .. name] end
          state:load_state_dict(dict)
        end
        opt:zero_grad()
        nn.functional.mse_loss(model(golden.x[rank + 1]), golden.y[rank + 1]):backward()
        opt:step()
        for name, p in net:named_parameters() do
          local off = (p:detach() - golden[step .. "." .. name]):abs():max():item()
          assert(off <= 1e-10, ("step %d, %s: off by %g"):format(step, name, off))
        end
      end
      assert(state.iter == 8 and state:state_dict().error["0.weight"]:abs():max():item() > 1e-6, "nothing was lost")
    ]])
  end)

  it("reach the loss of others, with a fraction of their bytes, and the same bits on all ranks", function()
    ddp.succeeds(3, lines .. [[
      local _, plain, _, plain_opt = hooked "none"
      bytes = 0
      local right = train(plain, plain_opt, 1, 150)
      local all = bytes
      for _, case in ipairs { { "power", { matrix_approximation_rank = 2, start_powerSGD_iter = 0 }, 1 / 7 },
        { "int8", { block_size = 64 }, 1 / 1.7 }, { "power", { matrix_approximation_rank = 4, start_powerSGD_iter = 0,
        warm_start = false }, 1 / 4 } } do
        local kind, options, most = unpack(case)
        local net, model, _, opt = hooked(kind, options)
        bytes = 0
        local loss = train(model, opt, 1, 150)
        assert(bytes <= all * most, ("%s: %d of %d bytes"):format(kind, bytes, all))
        assert(math.abs(loss - right) < 0.02 * right, ("%s: loss %g instead of %g"):format(kind, loss, right))
        same_everywhere(net)
      end
    ]])
  end)

  it("continue from a checkpoint in the same bits, and survive gradients that are not finite", function()
    local folder = temp.folder()
    finally(function() temp.remove(folder) end)
    ddp.succeeds(2, lines .. ("local folder = %q\n"):format(folder) .. [[
      for _, kind in ipairs { "power", "int8" } do
        local options = kind == "power" and { start_powerSGD_iter = 2 } or nil
        local net, model, _, opt = hooked(kind, options)
        train(model, opt, 1, 12)
        local first, other, state, first_opt = hooked(kind, options)
        train(other, first_opt, 1, 6)
        lm.checkpoint.save(folder .. "/c", { net = first, opt = first_opt, hook = state })
        local second, again, new, second_opt = hooked(kind, options)
        lm.checkpoint.load(folder .. "/c", { net = second, opt = second_opt, hook = new })
        train(again, second_opt, 7, 12)
        for i, p in ipairs(net:parameters()) do
          local off = (p - second:parameters()[i]):abs():max():item()
          -- Buckets of a new model begin in another order, which moves blocks of integers.
          assert(off <= (kind == "power" and 0 or 1e-3), kind .. ": off by " .. off)
        end
        -- A pass that overflows says so, and the next one is as good as any.
        again(lm.full({ 2, 20 }, rank == 1 and 1 / 0 or 1)):sum():backward()
        assert(second:parameters()[1].grad:isfinite():all():item() == false, kind .. " hides an overflow")
        local loss = train(again, second_opt, 13, 40)
        assert(loss == loss and loss < 1, kind .. ": loss " .. loss)
        same_everywhere(second)
      end
    ]])
  end)

  it("name what is wrong", function()
    ddp.succeeds(2, lines .. [[
      local function fails(text, f, ...)
        local ok, problem = pcall(f, ...)
        assert(not ok and tostring(problem):find(text, 1, true), tostring(problem))
      end
      fails("matrix_approximation_rank must be", hooks.PowerSGDState, { matrix_approximation_rank = 0 })
      for _, epsilon in ipairs { -1, 0 / 0 } do
        fails("orthogonalization_epsilon must be", hooks.PowerSGDState, { orthogonalization_epsilon = epsilon })
      end
      fails("unknown option 'warmstart'", hooks.PowerSGDState, { warmstart = true })
      fails("block_size must be", hooks.Int8State, { block_size = 1.5 })
      fails("powerSGD_hook: expected", hooks.powerSGD_hook, hooks.PowerSGDState(), {})
      local state = hooks.PowerSGDState { start_powerSGD_iter = 0 }
      fails("iter is missing", state.load_state_dict, state, {})
      local model = DDP(make())
      model:register_comm_hook(hooks.Int8State(), hooks.powerSGD_hook)
      fails("comm_hooks.PowerSGDState(…)", function() model(lm.ones(2, 20)):sum():backward() end)
    ]])
  end)
end)

describe("DiLoCo", function()
  local prelude = [[
    local optim = lm.optim
    local function make()
      lm.manual_seed(1 + rank) -- DiLoCo makes ranks begin alike
      return nn.Linear(4, 3):double()
    end
    local function inner(net) return optim.SGD(net:parameters(), { lr = 0.1, momentum = 0.9 }) end
    local function step(net, opt, n)
      opt:zero_grad()
      local x = lm.randn({ 8, 4 }, { generator = lm.Generator():manual_seed(100 * n + rank), dtype = "float64" })
      net(x):square():sum():div(100):backward()
      opt:step()
    end
    local function off(a, b) return (a.weight:detach() - b.weight:detach()):abs():max():item() end
  ]]

  it("averages parameters, and takes outer Nesterov steps", function()
    ddp.succeeds(3, prelude .. [[
      local net, plain = make(), make()
      local opt = optim.DiLoCo(inner(net), { sync_every = 1, outer_lr = 1, outer_momentum = 0 })
      plain:load_state_dict(net:state_dict())
      local bare = inner(plain)
      local schedule = optim.lr_scheduler.StepLR(opt, { step_size = 2, gamma = 0.5 })
      local same = optim.lr_scheduler.StepLR(bare, { step_size = 2, gamma = 0.5 })
      for n = 1, 6 do
        step(net, opt, n)
        step(plain, bare, n)
        schedule:step()
        same:step()
        lm.no_grad(function()
          for _, p in ipairs(plain:parameters()) do p:copy_(dist.all_reduce(p:detach():clone(), { op = "mean" })) end
        end)
        assert(off(net, plain) < 1e-14, "not the average: " .. off(net, plain))
      end
      assert(math.abs(opt.param_groups[1].lr - 0.1 / 8) < 1e-15, "the schedule sets the wrapped optimizer's lr")

      -- Algorithm 1 of the paper, written out.
      local net, twin = make(), make()
      local opt = optim.DiLoCo(inner(net), { sync_every = 3, outer_lr = 0.7, outer_momentum = 0.9 })
      twin:load_state_dict(net:state_dict())
      local bare, shared, momentum = inner(twin), twin.weight:detach():clone(), nil
      for n = 1, 9 do
        step(net, opt, n)
        step(twin, bare, n)
        lm.no_grad(function()
          if n % 3 > 0 then return end
          local change = dist.all_reduce(shared - twin.weight, { op = "mean" })
          momentum = momentum and momentum * 0.9 + change or change:clone()
          shared:sub_((change + momentum * 0.9) * 0.7)
          twin.weight:copy_(shared)
          twin.bias:copy_(net.bias)
        end)
        assert(off(net, twin) < 1e-14, "step " .. n)
      end
    ]])
  end)

  it("counts steps that a scaler skips on one rank, and sends the parameters of a dtype at once", function()
    ddp.succeeds(2, prelude .. [[
      local calls, plain = 0, dist.all_reduce
      dist.all_reduce = function(...)
        calls = calls + 1
        return plain(...)
      end
      local function scaled(net, opt, take)
        for n = 1, 4 do
          opt:zero_grad()
          take(net(lm.ones({ 1, 4 }, { dtype = net.weight.dtype })):sum(), n)
          assert(opt.steps_since_sync == n % 2, "the skipped step does not count")
          local most, least = net.weight:detach():clone(), net.weight:detach():clone()
          plain(most, { op = "max" })
          plain(least, { op = "min" })
          assert(lm.equal(most, least) == (n % 2 == 0), "step " .. n)
        end
      end
      local net = make()
      local scaler, opt = lm.GradScaler(), optim.DiLoCo(inner(net), { sync_every = 2, outer_lr = 1 })
      scaled(net, opt, function(loss, n)
        scaler:scale(loss * (rank + 1)):backward()
        if rank == 1 and n < 3 then net.weight.grad:fill_(math.huge) end
        scaler:step(opt)
        scaler:update()
      end)
      assert(calls == 2, "collectives: " .. calls)
      assert(rank == 0 or scaler:get_scale() == 2 ^ 14)
      net = make():float()
      opt = optim.DiLoCo(inner(net), { sync_every = 2, outer_lr = 1 })
      net, opt = lm.amp.initialize(net, opt, { opt_level = "O1", loss_scale = "dynamic", verbosity = 0 })
      scaled(net, opt, function(loss, n)
        lm.amp.scale_loss(loss * (rank == 1 and n < 3 and math.huge or 1), opt, function(l) l:backward() end)
        opt:step()
      end)
      net = make()
      net.bias = nn.Parameter(net.bias:detach():float())
      opt = optim.DiLoCo(inner(net), { sync_every = 5 })
      calls = 0
      opt:sync()
      assert(calls == 2, "collectives: " .. calls)
    ]])
  end)

  it("continues from a checkpoint between synchronizations, and names what differs or fails", function()
    local folder = temp.folder()
    finally(function() temp.remove(folder) end)
    ddp.succeeds(2, prelude .. ("local folder = %q\n"):format(folder) .. [[
      local function run(save)
        local net = make()
        local opt = optim.DiLoCo(inner(net), { sync_every = 3 })
        for n = 1, 8 do
          step(net, opt, n)
          if n == save then
            lm.checkpoint.save(folder .. "/c", { net = net, opt = opt })
            net = make()
            opt = optim.DiLoCo(inner(net), { sync_every = 3 })
            lm.checkpoint.load(folder .. "/c", { net = net, opt = opt })
          end
        end
        return net
      end
      local whole = run()
      for save = 3, 5 do assert(off(whole, run(save)) == 0, "saved at " .. save) end
      local ok, problem = pcall(optim.DiLoCo, make())
      assert(not ok and problem:find("DiLoCo: expected an optimizer", 1, true), problem)
      local opt = optim.DiLoCo(inner(make()))
      ok, problem = pcall(opt.add_param_group, opt)
      assert(not ok and problem:find("cannot add a parameter group", 1, true), problem)
      ok, problem = pcall(opt.load_state_dict, opt, { inner = {}, outer = {}, params = {} })
      assert(not ok and problem:find("shared is missing", 1, true), problem)
      ok, problem = pcall(opt.load_state_dict, opt, 3)
      assert(not ok and problem:find("DiLoCo:load_state_dict: dict must be a table, got 3", 1, true), problem)
      local mesh = dist.init_device_mesh("cpu", { 1, size }, { names = { "replicate", "parts" } })
      local nets = {
        nn.parallel.fully_shard(make(), { mesh = mesh }), nn.MixtureOfExperts(4, 4, 2, { mesh = mesh.parts }),
        nn.parallel.parallelize(nn.Sequential(nn.Linear(2, 2)), mesh.parts, { ["0"] = "column" }),
      }
      for _, net in ipairs(nets) do
        ok, problem = pcall(optim.DiLoCo, inner(net))
        assert(not ok and problem:find "DiLoCo: ranks .* '?parameter %d+'", problem)
        optim.DiLoCo(inner(net), { group = mesh.replicate.groups[1], sync_every = 1 }):step()
      end
      ok, problem = pcall(optim.DiLoCo, inner(make()), { sync_every = rank + 1 })
      assert(not ok and problem:find("steps between synchronizations", 1, true), problem)
    ]])
    local got = ranks.run { n = 2, env = { LM_TOKEN = "t" }, script = [[
      local lm = require "luminary"
      local nn, dist, optim = lm.nn, lm.dist, lm.optim
      dist.init_process_group "gloo"
      local rank = dist.get_rank()
    ]] .. prelude .. [[
      local net = make()
      local opt = optim.DiLoCo(inner(net), { sync_every = 2 })
      step(net, opt, 1)
      if rank == 1 then os.exit(3) end
      print(pcall(step, net, opt, 2))
    ]] }
    assert.matches("false\t[^\n]*rank 1 on", got[0].output)
  end)
end)

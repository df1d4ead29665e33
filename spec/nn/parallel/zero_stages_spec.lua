-- ZeRO's stages as settings: fully_shard that keeps full parameters between steps, and ZeroRedundancyOptimizer, against
-- DistributedDataParallel with a plain optimizer.
local several = require "spec.support.several"
local temp = require "spec.support.temp"

local on = several([[
  lm.set_default_dtype "float64"
  local fully_shard, DDP = nn.parallel.fully_shard, nn.parallel.DistributedDataParallel
  local Zero = optim.ZeroRedundancyOptimizer
  local function make()
    lm.manual_seed(1)
    local net = nn.Sequential()
    for _ = 1, 3 do net:append(nn.Sequential(nn.Linear(7, 13), nn.Tanh(), nn.Linear(13, 7))) end
    net[2][1].weight:requires_grad_(false)
    return net
  end
  local function shard(net, opts)
    for _, block in ipairs(net) do fully_shard(block, opts) end
    return fully_shard(net, opts)
  end
  local kept = {reshard_after_backward = false}
  local function batch(step) -- one sample more on the first rank
    lm.manual_seed(100 * step + rank)
    local n = rank == 0 and 4 or 3
    return lm.randn(n, 7), lm.randn(n, 7)
  end
  local function backward(m, step)
    local x, y = batch(step)
    F.mse_loss(m(x), y):backward()
  end
  local function same(what, full, net)
    for name, p in net:named_parameters() do
      local off = (full[name] - p:detach()):abs():max():item()
      if not (off <= 1e-12) then error(what .. ": " .. name .. " is off by " .. off) end
    end
  end
  local core = require "luminary.core"
  local gathers, run = 0, core.dist_run
  rawset(core, "dist_run", function(collective, ...)
    gathers = gathers + (collective == "all_gather" and 1 or 0)
    return run(collective, ...)
  end)
]], 60)

describe("ZeRO's stages", function()
  for _, case in ipairs {{2, "nil"}, {4, 'dist.init_device_mesh("cpu", {2, 2})'}} do
    it(("make the plain optimizer's steps on %d ranks, and gather once a step"):format(case[1]), function()
      on.succeeds(case[1], ([[
        local plain, kept_net, zero_net = make(), make(), make()
        local ddp, zero_ddp = DDP(plain), DDP(zero_net)
        shard(kept_net, {reshard_after_backward = false, mesh = %s})
        local opts = {
          optim.Adam(plain:parameters(), {lr = 0.02}), optim.Adam(kept_net:parameters(), {lr = 0.02}),
          Zero(zero_net:parameters(), {optimizer_class = optim.Adam, lr = 0.02}),
        }
        local models, nets = {ddp, kept_net, zero_ddp}, {plain, kept_net, zero_net}
        for step = 1, 20 do
          gathers = 0
          local norms = {}
          for i, m in ipairs(models) do
            opts[i]:zero_grad()
            if step > 10 then m:no_sync(backward, m, step + 50) end
            backward(m, step)
            if step == 3 then lm.no_grad(function() m((batch(step))) end) end
            norms[i] = nn.utils.clip_grad_norm_(nets[i]:parameters(), 0.5):item()
            assert(math.abs(norms[i] - norms[1]) < 1e-12)
            opts[i]:step()
          end
          -- The bucket of the frozen parameter does not change.
          local wanted = step == 1 and 4 or 3
          assert(gathers == wanted, ("step %%d: %%d gathers"):format(step, gathers))
        end
        same("kept", nn.parallel.full_state_dict(kept_net), plain)
        same("zero", zero_net:state_dict(), plain)
      ]]):format(case[2]))
    end)
  end

  it("gather again what was written, converted or loaded, and skip steps with a scaler", function()
    on.succeeds(2, [[
      local plain, net = make(), shard(make(), kept)
      lm.manual_seed(3)
      local x = lm.randn(2, 7)
      local function check(what, tolerance)
        local off = (net(x):detach() - plain(x):detach()):abs():max():item()
        assert(off <= tolerance, what .. ": " .. off)
      end
      check("first", 1e-12)
      lm.no_grad(function()
        for _, m in ipairs {plain, net} do m[3][1].weight:add_(1) end
      end)
      check("written", 1e-12)
      for _, m in ipairs {plain, net} do m:float() end
      x = x:float()
      check("float", 1e-5)
      for _, m in ipairs {plain, net} do m:double() end
      x = x:double()
      check("double", 1e-12)
      local freed = shard(make(), {reshard_after_forward = true, reshard_after_backward = false})
      local counts = {}
      for i = 1, 3 do
        gathers = 0
        local sum = freed(x):sum()
        counts[i], gathers = gathers, 0
        sum:backward()
        counts[i] = counts[i] .. gathers
      end
      -- Forward frees what backward gathers and keeps; the outermost module has no parameters.
      assert(table.concat(counts, " ") == "44 04 04", table.concat(counts, " "))
      net:load_state_dict(make():state_dict())
      plain = make()
      check("loaded", 1e-12)
      local loss = net(x):sum()
      lm.no_grad(function() net[3][1].weight:add_(1) end)
      contains(message(loss.backward, loss), "changed")
      local opt, scaler = optim.SGD(net:parameters(), {lr = 0.1}), lm.amp.GradScaler {init_scale = 4, enabled = true}
      for step = 1, 2 do
        opt:zero_grad()
        scaler:scale(net(x):sum()):backward()
        if step == 2 and rank == 1 then net[3][1].bias.grad:fill_(math.huge) end
        local before = net[1][1].bias:detach():clone()
        scaler:step(opt)
        scaler:update()
        assert(lm.equal(before, net[1][1].bias:detach()) == (step == 2))
      end
    ]])
  end)

  it("hold one copy of the parameters in full", function()
    on.succeeds(4, [[
      local base = lm.memory_allocated()
      local net, opt = nn.Sequential(), nil
      for i = 1, 6 do net:append(nn.Linear(200, 200, {bias = false})) end
      local full = 6 * 200 * 200 * 8
      shard(net, kept)
      opt = optim.Adam(net:parameters())
      for step = 1, 3 do
        collectgarbage()
        collectgarbage()
        lm.reset_peak_memory_stats()
        local loss = net(lm.ones(1, 200)):sum()
        -- all parameters, a quarter of these and of both moments, and one unit that is gathered
        local peak = (lm.max_memory_allocated() - base) / full
        assert(peak < 1.88, ("forward %d: %.2f"):format(step, peak))
        loss:backward()
        peak = (lm.max_memory_allocated() - base) / full -- with a quarter of the gradients, and those of two units
        assert(peak < 2.5, ("backward %d: %.2f"):format(step, peak))
        opt:step()
        opt:zero_grad()
        collectgarbage()
        collectgarbage()
        local left = (lm.memory_allocated() - base) / full
        assert(left > 1.7 and left < 2.1, ("after step %d: %.2f"):format(step, left))
      end
    ]])
  end)

  it("load each other's checkpoints", function()
    local folder = temp.folder()
    on.succeeds(2, ([[
      local path = "%s/"
      local zero_net = make()
      local ddp, zero = DDP(zero_net), Zero(zero_net:parameters(), {optimizer_class = optim.Adam, lr = 0.02})
      for step = 1, 2 do
        zero:zero_grad()
        backward(ddp, step)
        zero:step()
      end
      local held = 0
      for _, state in pairs(zero.state) do held = held + state.exp_avg:numel() end
      assert(math.abs(held - 515 / 2) < 10, held) -- 515 elements are trained
      lm.checkpoint.save(path .. "zero", {net = zero_net, opt = zero})
      local function go_on(m, net, opt) -- a step after loading; returns all parameters
        opt:zero_grad()
        backward(m, 3)
        opt:step()
        return nn.parallel.full_state_dict(net)
      end
      local net = make()
      shard(net, kept)
      local opt = optim.Adam(net:parameters())
      lm.checkpoint.load(path .. "zero", {net = net, opt = opt})
      assert(opt.param_groups[1].lr == 0.02)
      lm.checkpoint.save(path .. "shards", {net = net, opt = opt})
      local again = make()
      local loaded = Zero(again:parameters(), {optimizer_class = optim.Adam})
      lm.checkpoint.load(path .. "shards", {net = again, opt = loaded})
      assert(loaded.param_groups[1].lr == 0.02)
      go_on(ddp, zero_net, zero)
      same("shards from ZeRO", go_on(net, net, opt), zero_net)
      go_on(DDP(again), again, loaded)
      same("ZeRO from shards", again:state_dict(), zero_net)
    ]]):format(folder))
    temp.remove(folder)
  end)
end)

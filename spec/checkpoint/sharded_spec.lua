-- Checkpoints of nn.parallel.fully_shard: between layouts, and of a job whose ranks are killed while they save.
-- LM_TEST_LONG=1: 100 kills.
local lm = require "luminary"
local ranks = require "spec.support.ranks"
local several = require "spec.support.several"
local temp = require "spec.support.temp"
local long = lm.getenv "LM_TEST_LONG" ~= nil

local folder = temp.during(before_each, after_each)

local PRELUDE = [[
  lm.set_default_dtype "float64"
  local function make()
    lm.manual_seed(1)
    return nn.Sequential(nn.Sequential(nn.Linear(5, 7), nn.Tanh()), nn.Sequential(nn.Linear(7, 3), nn.Tanh()))
  end
  local function shard(net, shape)
    local opts = shape and {mesh = dist.init_device_mesh("cpu", shape)} or {}
    for _, b in ipairs(net) do nn.parallel.fully_shard(b, opts) end
    return nn.parallel.fully_shard(net, opts)
  end
  local function with_adam(net) return {net = net, opt = optim.AdamW(net:parameters(), {lr = 0.01}), step = 0} end
  -- Trains a step with eight samples, of which each rank has its part, and returns the loss of all.
  local function train(parts, step, is_alone)
    lm.manual_seed(step)
    local x, n = lm.randn(8, 5), 8 / size
    if not is_alone then x = x[{{rank * n + 1, rank * n + n}}] end
    parts.opt:zero_grad()
    local loss = parts.net(x):square():mean()
    loss:backward()
    parts.opt:step()
    loss = loss:detach()
    return (is_alone and loss or dist.all_reduce(loss) / size):item()
  end
]]
local on = several(PRELUDE, 60)

describe("checkpoints of sharded models", function()
  it("leave no files of a save that failed", function()
    assert(lm.paths.mkdir(folder .. "/a"))
    on.succeeds(2, ([[
      local dir, net = "%s/", shard(make())
      contains(message(lm.checkpoint.save, dir .. "a", {net = net}), "it is a folder")
      contains(message(lm.checkpoint.save, dir .. "b", {step = 1, [rank == 0 and "net" or "model"] = net}),
        "checkpoint.save: all ranks must save the same parts, but rank 0 has net, step; rank 1 has model, step")
      local blocks = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
      blocks[1]:requires_grad_(false)
      local mesh = dist.init_device_mesh("cpu", {2})
      local pipe = nn.parallel.Pipeline(blocks, {mesh = mesh, split = {"1"}, microbatches = 1})
      local opt = rank == 1 and optim.AdamW(pipe:parameters(), {lr = 0.1}) or nil
      contains(message(lm.checkpoint.save, dir .. "b", {net = pipe, opt = opt}), "rank 0 has net; rank 1 has net, opt")
      contains(message(optim.AveragedModel, pipe), "AveragedModel: average the parts of Pipeline")
      assert(optim.AveragedModel(pipe.stages[1]))
    ]]):format(folder))
    assert.same({".", "..", "a"}, lm.paths.dir(folder))
  end)

  it("refuse optimizers whose lists differ in order between ranks, to save and to load, under any wrapper", function()
    for _, wrap in ipairs {"shard(net)", "nn.parallel.fully_shard(net)", "nn.parallel.DistributedDataParallel(net)"} do
      on.succeeds(2, ([[
        local path = "%s/order.safetensors"
        local function listed(order)
          local net = make()
          local wrapped = %s
          local ps, list = net:parameters(), {}
          for i, k in ipairs(order) do list[i] = ps[k] end
          return {net = net, opt = optim.AdamW({{params = list}}, {lr = 0.01})}, wrapped
        end
        local same, other = {1, 2, 3, 4}, rank == 0 and {1, 2, 3, 4} or {3, 4, 1, 2}
        local parts = listed(other)
        contains(message(lm.checkpoint.save, path, parts), "checkpoint.save: ranks list the parameters of 'opt' in "
          .. "different orders: '1.0.weight' of call")
        assert(not io.open(path))
        contains(message(lm.checkpoint.save, path, parts), " is number 3 on rank 0, 1 on rank 1; pass the optimizer ")
        lm.checkpoint.save(path, (listed(same)))
        contains(message(lm.checkpoint.load, path, parts), "checkpoint.load: ranks list the parameters of 'opt' in ")
        lm.checkpoint.load(path, (listed(same)))
        os.remove(path)
        local manager = lm.checkpoint.Manager("%s/run")
        manager:save(1, (listed(same)))
        contains(message(manager.load, manager, parts), "Manager:load: ranks list the parameters of 'opt' in ")
        manager:load((listed(same)))
      ]]):format(folder, wrap, folder .. "/" .. #wrap))
    end
  end)

  it("keep each rank's buffers, for as many ranks; others take the first rank's", function()
    local script = ([[
      local path, saves = "%s/buffers.safetensors", %%s
      local function net_of(dtype)
        lm.manual_seed(1)
        local net = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4, {momentum = 0.5}), nn.Linear(4, 2)):to(dtype)
        net:register_buffer("seen", lm.zeros(2))
        return nn.parallel.fully_shard(net)
      end
      for _, dtype in ipairs {"float64", "bfloat16"} do
        local net = net_of(dtype)
        lm.manual_seed(10 + (saves and rank or 0))
        net(lm.randn(8, 5):to(dtype)):sum():backward()
        net.seen:fill_(saves and rank or 0)
        if saves then
          lm.checkpoint.save(path .. dtype, {net = net})
          net[2].running_mean:zero_()
          net.seen:fill_(-1)
        end
        lm.checkpoint.load(path .. dtype, {net = net})
        local expected = net_of(dtype)
        lm.manual_seed(10 + (saves and rank or 0)) -- another number of ranks gets rank 0's
        expected(lm.randn(8, 5):to(dtype)):sum():backward()
        assert(net.seen:eq(saves and rank or 0):all():item())
        assert(net[2].running_mean:eq(expected[2].running_mean):all():item(), "running_mean")
        assert(net[2].running_var:eq(expected[2].running_var):all():item(), "running_var")
      end
    ]]):format(folder)
    on.succeeds(2, script:format "true")
    on.succeeds(3, script:format "false")
    on.succeeds(1, script:format "false")
  end)

  it("say what does not fit by the part's name alone", function()
    on.succeeds(2, ([[
      local path, parts = "%s/b", with_adam(shard(make()))
      train(parts, 1)
      lm.checkpoint.save(path, parts)
      local function refused(given, wanted)
        contains(message(lm.checkpoint.load, path, given), ("checkpoint.load: '%%s': %%s"):format(path, wanted))
      end
      refused({net = nn.parallel.fully_shard(nn.Sequential(nn.Linear(5, 7)))}, "net: Sequential has no '")
      refused({net = optim.Adam(shard(make()):parameters())}, "net: the saved state is no optimizer's")
      refused({opt = shard(make())}, "opt: the saved state must have tables 'tensors' and 'shards'")
    ]]):format(folder))
  end)

  it("name checkpoint.load on the rank whose shard is damaged, too", function()
    on.succeeds(2, ([[
      local dir = "%s/"
      local parts = with_adam(shard(make()))
      lm.checkpoint.save(dir .. "c", parts)
      for _, damaged in ipairs {0, 1} do
        dist.barrier()
        if rank == 0 then
          for _, name in ipairs(lm.paths.dir(dir)) do
            if name:find("shard%%-.*%%-" .. damaged .. "$") then io.open(dir .. name, "w"):close() end
          end
        end
        dist.barrier()
        local said = message(lm.checkpoint.load, dir .. "c", parts)
        assert(said:find(": checkpoint.load: ", 1, true), said)
        contains(said, "the file is empty")
      end
    ]]):format(folder))
  end)

  it("are complete states without parts, in one process, and refuse state_dicts of a rank", function()
    local path = folder .. "/a.safetensors"
    on.succeeds(4, ([[
      local alone, parts, path = with_adam(make()), with_adam(shard(make(), {2, 2})), "%s"
      for step = 1, 2 do
        train(alone, step, true)
        train(parts, step)
      end
      local scale = nn.Module:extend("Scale")()
      function scale:forward(x) return x * self.scale end
      scale.scale = nn.Parameter(lm.tensor(3.5))
      scale:register_buffer("steps", lm.tensor(7))
      lm.checkpoint.save(path, {models = {parts.net, nn.parallel.fully_shard(scale)}, opt = parts.opt, step = 2})
      local saved = lm.checkpoint.load(path)
      assert(saved.step == 2 and saved.models[2].scale:item() == 3.5 and saved.models[2].steps:item() == 7)
      local model, of = alone.net:state_dict(), alone.opt:state_dict()
      for name, t in pairs(saved.models[1]) do
        assert((t - model[name]):abs():max():item() < 1e-12, name)
        model[name] = nil
      end
      assert(next(model) == nil and #saved.opt.param_groups[1].params == 4 and saved.opt.param_groups[1].lr == 0.01)
      for n, state in ipairs(of.state) do
        assert((saved.opt.state[n].exp_avg - state.exp_avg):abs():max():item() < 1e-12 and state.step == 2, n)
      end
      alone.opt:load_state_dict(saved.opt)
      local old = parts.net[1][1].weight:detach():clone()
      contains(message(lm.checkpoint.load, path, {opt = parts.opt, ema = parts.net}),
        "a.safetensors' has no 'ema'; it has models, models.1, models.2, opt, step. Leave the part out")
      lm.checkpoint.load(path, {opt = parts.opt, ema = parts.net}, {strict = false})
      assert(lm.equal(old, parts.net[1][1].weight:detach()))
      contains(message(lm.load, path), "is a checkpoint in shards; pass it to lm.checkpoint.load")
      for _, part in ipairs {parts.net:state_dict(), parts.opt:state_dict(), parts.net:parameters()} do
        contains(message(lm.checkpoint.save, path, {part = part}), "part of a sharded tensor; pass the module or opt")
      end
    ]]):format(path))
    local text = io.popen("luajit bin/luminary inspect --quick " .. path):read "*a"
    assert.matches("models%.1%.tensors%.0%.0%.weight +float64 +%[4, 5%]", text)
    assert.matches("opt%.state%.1%.exp_avg +float64 +%[4, 5%]", text)
    assert.matches("step = 2.*shard%-.*shard%-", text)
  end)

  it("are read by each rank as far as it has their elements, and once for their checksums by one", function()
    on.succeeds(4, ([[
      local core, path, opened = require "luminary.core", "%s/a", {}
      local file_open = core.file_open
      local sharded = with_adam(shard(nn.Sequential(nn.Linear(512, 512), nn.Linear(512, 512))))
      lm.no_grad(function() for n, p in ipairs(sharded.net:parameters()) do p:fill_(10 * n + rank) end end)
      for n, p in ipairs(sharded.net:parameters()) do p.grad = lm.full(p.shape, n + rank) end
      sharded.opt:step()
      lm.checkpoint.save(path, sharded)
      local saved = lm.checkpoint.load(path)
      local all = 0
      for _, name in ipairs(lm.paths.dir "%s") do
        local _, bytes = core.file_kind("%s/" .. name)
        all = all + (name:find "shard" and bytes or 0)
      end
      assert(all > 12e6) -- 525,312 parameters in float64, with Adam's two averages
      core.file_open = function(name, ...)
        local r = name:match "shard.*-(%%d+)$"
        if r then opened[r] = (opened[r] or 0) + 1 end
        return file_open(name, ...)
      end
      local function bytes_read() return tonumber(io.open("/proc/self/io"):read("*a"):match "rchar: (%%d+)") end
      -- Loads, and returns the bytes that this rank has read, and the numbers of its opens by shard.
      local function load(parts)
        dist.barrier()
        local before = bytes_read()
        opened = {}
        lm.checkpoint.load(path, parts)
        local list = {}
        for r = 0, 3 do list[r + 1] = opened[tostring(r)] or 0 end
        return bytes_read() - before, table.concat(list, " ")
      end
      local function fresh(shape, is_alone)
        local net = nn.Sequential(nn.Linear(512, 512), nn.Linear(512, 512))
        return with_adam(is_alone and net or shard(net, shape))
      end
      local function check(parts, first, last)
        for n, p in ipairs(parts.net:parameters()) do
          local name = ({"0.weight", "0.bias", "1.weight", "1.bias"})[n]
          local rows = saved.net[name][{{first, last}}]
          assert(lm.equal(p:detach(), rows), name)
          assert(lm.equal(parts.opt.state[p].exp_avg, saved.opt.state[n].exp_avg[{{first, last}}]), name)
        end
      end
      -- A rank opens the one shard whose checksums it compares, and those of its rows for each of the two objects.
      for _, case in ipairs {{{4}, "3 0 0 0", "0 3 0 0", "0 0 3 0", "0 0 0 3"},
        {{2, 2}, "3 2 0 0", "0 1 2 2", "2 2 1 0", "0 0 2 3"}} do
        local parts, n = fresh(case[1]), case[1][2] or 4
        local bytes, opens = load(parts)
        assert(opens == case[rank + 2], opens)
        assert(bytes < all / 4 + 1e5, bytes .. " of " .. all)
        local r = rank %% n
        check(parts, r * 512 / n + 1, (r + 1) * 512 / n)
      end
      local parts = fresh(nil, true)
      local bytes, opens = load(parts)
      assert(bytes < all / 4 + 1e5 and opens:gsub("3", "2", 1) == "2 2 2 2", bytes .. " " .. opens)
      check(parts, 1, 512)
    ]]):format(folder, folder, folder))
  end)

  it("load into other layouts of 1 to 8 ranks, 50 pairs", function()
    local layouts = {[1] = "{{1}}", [2] = "{{2}, {2, 1}}", [4] = "{{4}, {2, 2}}", [8] = "{{8}, {2, 4}, {4, 2}}"}
    -- Each job loads what others saved, and saves; a second round loads what was not there in the first.
    for _, n in ipairs {1, 2, 4, 8, 4, 2, 1} do
      on.succeeds(n, ([[
        local folder = "%s"
        local saved = {}
        for _, name in ipairs(lm.paths.dir(folder)) do
          if name:find "safetensors$" then saved[#saved + 1] = name end
        end
        dist.barrier()
        for _, shape in ipairs(%s) do
          local path = folder .. "/" .. table.concat(shape, "x") .. ".safetensors"
          local alone = with_adam(make())
          for step = 1, 2 do train(alone, step, true) end
          if not io.open(path) then
            local parts = with_adam(shard(make(), shape))
            for step = 1, 2 do train(parts, step) end
            dist.barrier()
            lm.checkpoint.save(path, parts)
          end
          local wanted = {train(alone, 3, true), train(alone, 4, true)}
          for _, name in ipairs(saved) do
            local parts = with_adam(shard(make(), shape))
            lm.checkpoint.load(folder .. "/" .. name, parts)
            for i, loss in ipairs(wanted) do
              local off = math.abs(train(parts, 2 + i) - loss)
              if not (off < 1e-10) then error(name .. " into " .. path .. ": a loss is off by " .. off) end
            end
          end
          print("pairs " .. #saved)
        end]]):format(folder, layouts[n]))
    end
  end)

  it("survive kills while they are saved: the newest complete one loads into any layout", function()
    local noted = 0
    for kill = 1, long and 100 or 5 do
      local n = ({2, 4, 3})[kill % 3 + 1]
      local job = ranks.start {n = n, timeout = 60, env = {LM_HEARTBEAT_TIMEOUT = "2"}, script = ([[
        local lm = require "luminary"
        local dist, nn, optim = lm.dist, lm.nn, lm.optim
        dist.init_process_group {timeout = 20}
        local size = dist.get_world_size()
        local net = nn.Sequential(nn.Linear(200, 300), nn.Linear(300, 100))
        local opts = {mesh = dist.init_device_mesh("cpu", size == 4 and {2, 2} or {size})}
        for _, b in ipairs(net) do nn.parallel.fully_shard(b, opts) end
        nn.parallel.fully_shard(net, opts)
        local opt = optim.SGD(net:parameters(), {lr = 0, momentum = 1})
        local manager = lm.checkpoint.Manager {dir = %q, keep_last = 2, async = %s}
        -- Sets all elements, and those of the optimizer's state, to the number of the step.
        local function set(step)
          for _, p in ipairs(net:parameters()) do
            lm.no_grad(function() p:fill_(step) end)
            p.grad = lm.full(p.shape, opt.state[p] and 1 or step)
          end
          opt:step()
        end
        set(1)
        local saved = manager:load {net = net, opt = opt}
        local step = saved and saved.step or 0
        assert(step >= %d, step)
        for name, t in pairs(saved and nn.parallel.full_state_dict(net) or {}) do
          assert(lm.equal(t, lm.full(t.shape, step)), name)
        end
        for _, p in ipairs(saved and net:parameters() or {}) do
          local split, state = require("luminary.nn.parallel.placement").rows(p), opt.state[p].momentum_buffer
          local rows = math.max(0, math.min(split.chunk, split.shape[1] - split.first)) -- without the padding
          assert(lm.equal(state:narrow(1, 1, rows), lm.full({rows, unpack(p.shape, 2)}, step)), "state")
        end
        if step == 0 then for _, p in ipairs(net:parameters()) do opt.state[p].momentum_buffer:fill_(0) end end
        print "ready"
        io.flush()
        while true do
          step = step + 1
          set(step)
          manager:save(step, {net = net, opt = opt})
          print("saved " .. step - 1)
          io.flush()
        end]]):format(folder, tostring(kill % 2 == 0), noted)}
      for rank = 0, n - 1 do assert(job:wait_for(rank, "ready"), job:output(rank)) end
      ranks.sleep(0.02 + kill * 7919 % 97 / 300)
      local killed = kill % n
      job:kill(killed)
      if kill % 3 == 0 then job:kill((killed + 1) % n) end
      local got = job:wait()
      for rank = 0, n - 1 do assert(got[rank].code ~= 124 and not got[rank].output:find "assert", got.text) end
      assert(not got.text:find "left out", got.text)
      for step in got.text:gmatch "saved (%d+)" do noted = math.max(noted, tonumber(step)) end
    end
    assert(noted > 0)
  end)
end)

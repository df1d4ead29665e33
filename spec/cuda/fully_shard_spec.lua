-- nn.parallel.fully_shard over the stand-in for NCCL (support/nccl/): the order, streams and bytes of its collectives.
local nccl_ranks = require "spec.support.nccl_ranks"
local spans = require "spec.support.nccl_spans"
if not nccl_ranks.are_there then return end

local PRELUDE = spans .. [[
  local fully_shard = nn.parallel.fully_shard
  local function blocks(n)
    lm.manual_seed(1)
    local net = nn.Sequential()
    for _ = 1, n do net:append(nn.Sequential(nn.Linear(64, 64), nn.ReLU())) end
    return net:to(device)
  end
  local function shard(net, opts)
    for _, b in ipairs(net) do fully_shard(b, opts) end
    return fully_shard(net, opts)
  end
  local x = full({ 8, 64 }, rank + 1):requires_grad_() -- so that backward reads the first block's weights, too
  local BLOCK = (64 * 64 + 64) * 4
  local FLAGS = 128 -- bytes behind a rank's rows of gradients, which say of each parameter whether it has one
]]

describe("fully_shard over NCCL", function()
  it("gathers the next block and reduces the last one beside a block's ops, and the host waits for nothing", function()
    nccl_ranks.succeeds(2, PRELUDE .. [[
      local net = shard(blocks(4), { reshard_after_forward = true })
      local function step() net(x):sum():backward() end
      step()
      step()
      local before = waits()
      step()
      assert(waits() == before, "the host waited")
      local order, streams, bytes = spans(step)
      -- A is the number of samples. Beside a block's products run the gather of the next block and, in backward, the
      -- reduction of the last one.
      local forward, backward = "AG" .. ("gGm"):rep(3) .. "gm", "GgGmmaR" .. "gGmmrR" .. "gGmmrR" .. "gmmrR" .. "r"
      assert(order == forward .. backward, order)
      assert(streams_of(streams.G, streams.R, streams.A) == streams_of(streams.G) and #streams_of(streams.G) == 1)
      assert(streams_of(streams.G) ~= streams_of(streams.m), "collectives are on the stream of the ops")
      assert(bytes.G == 2 * 4 * BLOCK / 2 and bytes.R == 4 * (BLOCK / 2 + FLAGS), bytes.G .. " " .. bytes.R)
    ]])
  end)

  it("lets a block's ops wait for its gather alone, not for the reduction and the gather enqueued after it", function()
    nccl_ranks.succeeds(2, PRELUDE .. [[
      local net = shard(blocks(6), { reshard_after_forward = true })
      local function step() net(x):sum():backward() end
      -- The streams' waits for events before each collective's call, and within them.
      local log, last = {}, 0
      local core = require "luminary.core"
      local run, letters = core.dist_run, { all_gather = "G", reduce_scatter = "R" }
      rawset(core, "dist_run", function(name, ...)
        if not letters[name] then return run(name, ...) end
        local n = calls "cudaStreamWaitEvent"
        log[#log + 1] = ("%d%s"):format(n - last, letters[name])
        local result = run(name, ...)
        last = calls "cudaStreamWaitEvent"
        return result
      end)
      for _ = 1, 3 do
        log, last = {}, calls "cudaStreamWaitEvent"
        step()
      end
      local order = table.concat(log, " ")
      -- The ops' stream waits for each gather before the next one is enqueued, for each reduction before the next one,
      -- and for nothing else, such as memory that they have used. A first reduction comes after the number of samples.
      assert(order == "1G" .. (" 1G"):rep(7) .. (" 1R 1G"):rep(4) .. " 1R 2R", order)
    ]])
  end)

  it("adds up replicas on a stream of their own, which no gather or reduction waits for", function()
    nccl_ranks.succeeds(4, PRELUDE .. [[
      local mesh = dist.init_device_mesh("cuda", { 2, 2 }, { names = { "replicate", "shard" } })
      local net = shard(blocks(4), { mesh = mesh, reshard_after_forward = true })
      local function step() net(x):sum():backward() end
      step()
      step()
      local before = waits()
      step()
      assert(waits() == before, "the host waited")
      local order, streams, bytes = spans(step)
      -- Backward waits for the sums of a block's replicas once the block after the next has been computed.
      local backward = "GgGmmaR" .. "gGmmrAR" .. "gGmmarAR" .. "gmmarAR" .. "arAa"
      assert(order:sub(-#backward) == backward, order)
      local shards, replicas = streams_of(streams.G, streams.R), streams_of(streams.A)
      assert(#shards == 1 and replicas:find(shards, 1, true) and #replicas == 3, "A: the number of samples, too")
      assert(bytes.G == 2 * 4 * BLOCK / 2 and bytes.A == 4 * (BLOCK / 2 + FLAGS) + 16, bytes.A)
    ]])
  end)

  it("lets no collective of another dim wait for a reduction, nor a gather behind it #unsanitized", function()
    nccl_ranks.succeeds(4, PRELUDE .. [[
      local mesh = dist.init_device_mesh("cuda", { 2, 2 }, { names = { "shard", "tensor" } })
      local net, same_x = nn.Sequential(), full({ 8, 64 }, mesh:get_local_rank "shard" + 1):requires_grad_()
      lm.manual_seed(1)
      for _ = 1, 5 do
        local block = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64)):to(device)
        net:append(nn.parallel.parallelize(block, mesh["tensor"], { ["0"] = "column", ["2"] = "row" }))
      end
      shard(net, { mesh = mesh["shard"], reshard_after_forward = true })
      local log
      -- In the last step, the first reduction never ends. A collective of the dim tensor before the second one does.
      local function before_reduction()
        if log == "" then return C.lm_fake_nccl("stuck", 1) end
        assert(log == "RG", log)
        lm.cuda.stream(lm.cuda.Stream(device), function()
          local t = full({ 1 }, 1)
          dist.all_reduce(t, { group = mesh:get_group "tensor" })
          assert(t:item() == 2)
        end)
        dist.all_reduce(lm.zeros { 1 }) -- on the CPU
        print "finished"
        os.exit(0)
      end
      local call, letters = core.dist_run, { all_gather = "G", reduce_scatter = "R" }
      rawset(core, "dist_run", function(name, ...)
        local letter = letters[name]
        if letter == "R" and log then before_reduction() end
        if letter and log and (letter == "R" or log ~= "") then log = log .. letter end
        return call(name, ...)
      end)
      for step = 1, 3 do
        local loss = net(same_x):sum()
        log = step == 3 and "" or nil
        loss:backward()
      end
      error "backward ended"
    ]])
  end)

  it("joins a block's gradients by one kernel: each further parameter is copied only by its two gathers", function()
    nccl_ranks.succeeds(2, PRELUDE .. [[
      -- Returns the number of copies, launches and memsets that fully_shard adds to a step.
      local function copies(layers)
        local function count(net)
          local function calls_made()
            return calls "cudaLaunchKernel" + calls "cudaMemcpyAsync" + calls "cudaMemsetAsync"
          end
          local function step() net(x):sum():backward() end
          step()
          step()
          local before = calls_made()
          step()
          return calls_made() - before
        end
        local alone, net = nn.Sequential(blocks(layers)), nn.Sequential(blocks(layers))
        return count(fully_shard(net, { reshard_after_forward = true })) - count(alone)
      end
      local few, many = copies(2), copies(6)
      -- A gather sends this rank's rows from where they are, and copies a parameter's out of those of all.
      assert(many - few == 2 * 4 * 2, few .. " " .. many)
    ]])
  end)

  it("gathers a checkpoint's block once in forward, and once in backward, in the background", function()
    nccl_ranks.succeeds(2, PRELUDE .. [[
      local Net = nn.Module:extend "Net"
      function Net:init(blocks) self.blocks = nn.ModuleList(blocks) end
      function Net:forward(h)
        for _, b in ipairs(self.blocks) do h = lm.autograd.checkpoint(b, h) end
        return h
      end
      local net = Net(blocks(4):children())
      for _, b in ipairs(net.blocks) do fully_shard(b, { reshard_after_forward = true }) end
      fully_shard(net)
      local function step() net(x):sum():backward() end
      step()
      step()
      local order, _, bytes = spans(step)
      assert(bytes.G == 2 * 4 * BLOCK / 2, order .. " " .. bytes.G)
      assert(select(2, order:gsub("Gg", "")) == 2, "gathers that are not prefetched: " .. order)
      assert(select(2, order:gsub("A", "")) == 1, "the number of samples, again: " .. order)
    ]])
  end)

  it("copies offloaded shards and their gradients through pinned memory, beside the ops' stream", function()
    nccl_ranks.succeeds(4, PRELUDE .. [[
      local mesh = dist.init_device_mesh("cuda", { 2, 2 })
      local alone = blocks(3)
      local net = shard(blocks(3), { mesh = mesh, reshard_after_forward = true, offload = true })
      assert(net[1][1].weight:is_pinned() and net[1][1].bias:is_pinned() and net[1][1].weight.device == "cpu")
      local steps = { lm.optim.Adam(alone:parameters(), { lr = 0.01 }), lm.optim.Adam(net:parameters(), { lr = 0.01 }) }
      local copies, copy = {}, core.with_stream -- [stream] = number
      function core.with_stream(device, id, f, ...)
        copies[id] = (copies[id] or 0) + 1
        return copy(device, id, f, ...)
      end
      local pin, pinned = core.pin_memory, 0
      function core.pin_memory(...)
        pinned = pinned + 1
        return pin(...)
      end
      for step = 1, 3 do
        lm.manual_seed(step)
        local all = lm.randn({ 8, 64 }):to(device)
        for _, opt in ipairs(steps) do opt:zero_grad() end
        alone(all):square():mean():backward()
        net(all[{ { 2 * rank + 1, 2 * rank + 2 } }]):square():mean():backward()
        assert(net[2][1].weight.grad.device == "cpu")
        for _, opt in ipairs(steps) do opt:step() end
      end
      assert(pinned == 3 * 3, "a block's gradients are copied at once: " .. pinned)
      copies[lm.cuda.current_stream().id] = nil
      local id, n = next(copies)
      assert(id and not next(copies, id) and n >= 3 * 3 * 4, "gathers, reductions and gradients of three blocks")
      core.with_stream, core.pin_memory = copy, pin
      local wait, waited = core.stream_synchronize, 0
      function core.stream_synchronize(device, stream)
        waited = waited + (stream == id and 1 or 0)
        return wait(device, stream)
      end
      lm.no_grad(net.forward, net, x)
      assert(waited == 3, "the host may write to shards once forward returns: their copies are over")
      core.stream_synchronize = wait
    ]])
  end)

  it("trains as one process does", function()
    nccl_ranks.succeeds(4, PRELUDE .. [[
      local mesh = dist.init_device_mesh("cuda", { 2, 2 })
      local alone, net = blocks(3):double(), shard(blocks(3):double(), { mesh = mesh, reshard_after_forward = true })
      local steps = { lm.optim.Adam(alone:parameters(), { lr = 0.01 }), lm.optim.Adam(net:parameters(), { lr = 0.01 }) }
      for step = 1, 4 do
        lm.manual_seed(step)
        local all = lm.randn({ 8, 64 }, { dtype = "float64" }):to(device)
        for _, opt in ipairs(steps) do opt:zero_grad() end
        local whole = alone(all):square():mean()
        whole:backward()
        local part = net(all[{ { 2 * rank + 1, 2 * rank + 2 } }]):square():mean()
        part:backward()
        for _, opt in ipairs(steps) do opt:step() end
        local sum = dist.all_reduce(part:detach():clone()) / 4
        assert(math.abs(sum:item() - whole:item()) < 1e-12, "step " .. step .. ": loss differs")
      end
    ]])
  end)
end)

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
      assert(bytes.G == 2 * 4 * BLOCK / 2 and bytes.R == 4 * BLOCK / 2, bytes.G .. " " .. bytes.R)
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
      assert(bytes.G == 2 * 4 * BLOCK / 2 and bytes.A == 4 * BLOCK / 2 + 16, bytes.A)
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
      -- A gather copies this rank's rows of a parameter into place, and then all rows.
      assert(many - few == 2 * 4 * (2 + 2), few .. " " .. many)
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

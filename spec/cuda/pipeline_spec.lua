-- nn.parallel.Pipeline over the stand-in for NCCL (support/nccl/), whose sends and receives wait for each other in the
-- order of a stream.
local nccl_ranks = require "spec.support.nccl_ranks"
local within = require("spec.support.time").within
if not nccl_ranks.are_there then return end

-- `cut(net, opts)` makes a pipeline of all ranks; `train(pipe, alone, n)` compares n steps with those of one process.
local PRELUDE = [[
  lm.set_default_dtype "float64"
  local Net = nn.Module:extend "Net"
  function Net:init(n)
    self.emb = nn.Embedding(11, 6)
    self.blocks = nn.ModuleList()
    for i = 1, n do self.blocks:append(nn.Sequential(nn.Linear(6, 6), nn.Tanh())) end
    self.head = nn.Linear(6, 11, {bias = false})
    self.head.weight = self.emb.weight
  end
  function Net:forward(ids)
    local h = self.emb(ids)
    for _, b in ipairs(self.blocks) do h = b(h) end
    return self.head(h)
  end
  function Net:pipeline_parts() return {"emb", "blocks", "head"} end
  local function make(n)
    lm.manual_seed(1)
    return Net(n):to(device)
  end
  local function loss_of(y, t) return F.cross_entropy(y:view(-1, 11), t:reshape(-1)) end
  local function cut(net, opts)
    local all = {loss = loss_of, microbatches = 5, split = {}}
    for key, value in pairs(opts or {}) do all[key] = value end
    for s = 1, #net.blocks - 1 do all.split[s] = "blocks." .. s end
    all.mesh = dist.init_device_mesh("cuda", {size}, {names = {"pipeline"}})
    return nn.parallel.Pipeline(net, all)
  end
  local function batch(step)
    lm.manual_seed(step)
    local n = 5 + step % 3
    return lm.randint(1, 12, {n, 4}):to(device), lm.randint(1, 12, {n, 4}):to(device)
  end
  local function near(what, a, b)
    if not (math.abs(a:item() - b:item()) <= 1e-12) then error(what .. ": " .. a:item() .. " and " .. b:item(), 2) end
  end
  local function train(pipe, alone, n)
    local steps = {lm.optim.AdamW(alone:parameters(), {lr = 0.1}), lm.optim.AdamW(pipe:parameters(), {lr = 0.1})}
    for step = 1, n do
      local x, y = batch(step)
      for _, opt in ipairs(steps) do opt:zero_grad() end
      local whole = loss_of(alone(x), y)
      whole:backward()
      near("loss of step " .. step, pipe:step(x, y), whole)
      for _, opt in ipairs(steps) do opt:step() end
    end
  end
]]

describe("nn.parallel.Pipeline over NCCL", function()
  it("trains as one process does by each schedule, and evaluates, over connections made at first use", function()
    nccl_ranks.succeeds(4, PRELUDE .. [[
      for _, kind in ipairs {"1f1b", "gpipe", "interleaved"} do
        local blocks = kind == "interleaved" and 8 or 4
        local alone, pipe = make(blocks), cut(make(blocks), {schedule = kind})
        train(pipe, alone, 3)
        local x, y = batch(4)
        local out = pipe(x)
        assert((out == nil) == (rank < 3))
        if out then assert((out - alone(x)):abs():max():item() < 1e-12 and out.device == device) end
        near("evaluation", lm.no_grad(pipe.step, pipe, x, y), loss_of(alone(x), y))
      end
    ]], { env = { LM_FAKE_NCCL = "connect=1,eager=0" } })
  end)

  it("trains on a group of NCCL alone", function()
    nccl_ranks.succeeds(2, PRELUDE .. "train(cut(make(4), {schedule = 'interleaved'}), make(4), 3)", {
      init = 'timeout = 20, backend = "nccl"', env = { LM_FAKE_NCCL = "connect=1,eager=10000,slots=1" },
    })
  end)

  it("sends and receives at once on a stream of their own, and the host waits for no device", function()
    nccl_ranks.succeeds(2, PRELUDE .. [[
      local pipe = cut(make(2))
      local x, y = batch(1)
      pipe:step(x, y)
      pipe:step(x, y)
      local function waits()
        return calls "cudaStreamSynchronize" + calls "cudaDeviceSynchronize" + calls "cudaEventSynchronize"
      end
      local before = waits()
      pipe:step(x, y)
      assert(waits() == before, "the host waited")
      local prof = lm.profile(function() pipe:step(x, y) end)
      local order, bytes, HEADER, TIED = "", 0, 96 * 8, 11 * 6 * 8
      for i = 1, prof.recording:count() do
        local name, kind, _, _, _, _, _, _, _, _, _, _, n, _, stream = prof.recording:span(i)
        if name == "linear" then assert(stream == 0) end
        if kind == "collective" and (name == "send" or name == "recv") and n ~= HEADER and n ~= TIED then
          assert(not stream or stream > 0, "messages are on the stream of the ops") -- a unit's is its first one's
          order, bytes = order .. (stream and " " or "") .. name:sub(1, 1), bytes + n
        end
      end
      -- A unit's first message, which is a send if there is one, comes after its others.
      local wanted = rank == 0 and " s s r" .. ("r s"):rep(3) .. " r" or " r r s" .. ("r s"):rep(3) .. " s"
      assert(order == wanted, order)
      assert(bytes == 2 * x:numel() * 6 * 8, bytes)
    ]])
  end)

  it("evaluates over one communicator, on which no message waits for those of other ranks", function()
    nccl_ranks.succeeds(3, PRELUDE .. [[
      local pipe = cut(make(3))
      for step = 1, 2 do pipe((batch(step))) end
      assert(live "communicator" == 1, live "communicator")
    ]])
  end)

  it("may free what it sends at once: later ops write to that memory when it has been sent", function()
    nccl_ranks.succeeds(2, [[
      local by_host, N = dist.new_group { backend = "gloo" }, 4096
      dist.all_reduce(full({1}, 1)) -- connects the ranks
      if rank == 0 then dist.send(full({1}, 1), 1) else dist.recv(full({1}, 1), 0) end
      for i = 1, 5 do
        if rank == 0 then
          local t, pointer = full({N}, i), nil
          pointer = t:data_ptr()
          local work = dist.isend(t, 1)
          t:free()
          local other = full({N}, -1)
          assert(other:data_ptr() == pointer, "other memory was used")
          dist.barrier { group = by_host } -- now the other rank receives
          work:wait()
          other:free()
        else
          dist.barrier { group = by_host }
          local t = full({N}, 0)
          dist.recv(t, 0)
          assert(t:eq(i):all():item(), "step " .. i .. ": " .. t[1])
        end
      end
    ]])
  end)

  it("names the places of ranks of which one fails", function()
    local got = nccl_ranks.run(2, PRELUDE .. [[
      local pipe = cut(make(2))
      if rank == 1 then function Net:forward() error "no luck" end nn.Tanh.forward = Net.forward end
      pipe:step(batch(1))
      dist.barrier()
    ]])
    -- Rank 0 sees it in the step, whose group names both, or after it, in the barrier.
    assert.matches("rank 1 = pipeline 1)", got[0].output, 1, true)
    assert.matches("no luck (rank 1 = pipeline 1)", got[1].output, 1, true)
    for rank = 0, 1 do within(got[rank].seconds, 15, got.text) end
  end)
end)

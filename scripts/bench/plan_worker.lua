-- A rank of scripts/bench/plan: trains a small model under nn.parallel.fully_shard, and prints the memory and time
-- that it measures beside what the cost model says. The case is "KIND:HIDDEN:LAYERS:VOCAB:BATCH:SEQ[:OPTION,...]":
-- KIND gpt2 or llama; BATCH of a rank; options noreshard, keep (reshard_after_backward = false), recompute, accumulate
-- (two micro-batches), hybrid (two replicas), tensor (two ranks divide each layer), pipelineN (N stages of
-- nn.parallel.Pipeline, sharded over N-ths of the ranks, and 2 * N micro-batches of BATCH: the most memory of any
-- rank), and, without these two, time: also constants of this machine, measured by all ranks at once, and a step's
-- time.
local lm = require "luminary"
local cost = require "luminary.distributed.cost_model"
local model_of = require("luminary.cli.plan").model_of
local core, nn, F, optim, dist = lm.core, lm.nn, lm.nn.functional, lm.optim, lm.dist

dist.init_process_group {timeout = 60}
local rank, size = dist.get_rank(), dist.get_world_size()

local counting = true -- while memory is measured, in which what Lua has not collected yet is not counted

local function collect()
  if not counting then return end
  local before
  repeat -- finalizers release more
    before = lm.memory_allocated "cpu"
    collectgarbage()
    collectgarbage()
  until lm.memory_allocated "cpu" == before
end

local function make(kind, h, layers, vocab, seq)
  if kind == "gpt2" then
    return lm.models.gpt2 {n_embd = h, n_head = 4, n_layer = layers, vocab_size = vocab, n_positions = seq,
      embd_pdrop = 0, attn_pdrop = 0, resid_pdrop = 0}
  end
  return lm.models.llama {hidden_size = h, num_attention_heads = 4, num_key_value_heads = 2, num_hidden_layers = layers,
    vocab_size = vocab, intermediate_size = 3 * h, max_position_embeddings = seq}
end

-- Returns the least seconds of f() on the slowest rank, of calls for about a second: those that other jobs disturb
-- least.
local function least(f)
  local min, n, first = math.huge, 0, nil
  repeat
    dist.barrier()
    local began = core.time()
    f()
    local took = lm.tensor {core.time() - began}
    dist.all_reduce(took, {op = "max"})
    min, first, n = math.min(min, took:item()), first or took:item(), n + 1
  until n >= 5 and n * min > 1 or n >= 200
  return min
end

local function loss_of(scores, y, tensor)
  if tensor then return nn.parallel.vocabulary_cross_entropy(scores, y, tensor) end
  return F.cross_entropy(scores, y)
end

-- Cuts a net into stages, shards this rank's as `how` says, its blocks by prepare(block), and returns a function that
-- trains it by one step of that many micro-batches.
local function pipeline_trainer(net, how, prepare, mesh, micros, batch, seq, vocab)
  local stages, name = mesh:size "pipeline", net.transformer and "transformer.h" or "model.layers"
  local blocks, split = net:get_submodule(name), {}
  for s = 1, stages - 1 do split[s] = ("%s.%d"):format(name, s * #blocks / stages) end
  local function batch_loss(scores, y)
    collect()
    return loss_of(scores:view(-1, vocab), y:flatten())
  end
  local pipe = nn.parallel.Pipeline(net, {mesh = mesh["pipeline"], split = split, microbatches = micros,
    loss = batch_loss})
  local stage, exchange = pipe.stages[1], dist.batch_isend_irecv
  function dist.batch_isend_irecv(...) -- luacheck: ignore
    collect()
    return exchange(...)
  end
  for _, block in ipairs(stage:get_submodule(name)) do
    if #block:parameters() > 0 then prepare(block) end
  end
  nn.parallel.fully_shard(stage, how)
  local opt = optim.AdamW(pipe:parameters(), {lr = 1e-3})
  return function()
    opt:zero_grad()
    collect()
    lm.reset_peak_memory_stats "cpu"
    local x, y = lm.randint(1, vocab + 1, {micros * batch, seq}), lm.randint(1, vocab + 1, {micros * batch, seq})
    pipe:step(x, y)
    opt:step()
  end
end

-- Returns a function that trains a net by one step of that many micro-batches.
local function trainer(net, micros, batch, seq, vocab, tensor)
  local opt = optim.AdamW(net:parameters(), {lr = 1e-3})
  return function()
    opt:zero_grad()
    collect()
    lm.reset_peak_memory_stats "cpu"
    for _ = 1, micros do
      local x, y = lm.randint(1, vocab + 1, {batch, seq}), lm.randint(1, vocab + 1, {batch * seq})
      local loss = loss_of(net(x):flatten(1, 2), y, tensor)
      collect()
      loss:backward()
    end
    opt:step()
  end
end

-- Returns the machine of these ranks: its pace is that of steps of a net that is not sharded, on all ranks at once; its
-- links are those of the collectives of a block, with the copies before and after. Cores that compute also send.
local function measured_machine(model, micro, step)
  local bytes, card = 4 * cost.elements(model.block, 1, 1), {speed = 1, bytes = math.huge, overlap = 0, outside = 1}
  local a, b = lm.zeros(2 ^ 22), lm.zeros(2 ^ 22)
  card.flops, card.memory = 1e11, 2 ^ 24 * 2 / least(function() a:copy_(b) end) / 0.8
  card.float32 = card.flops
  local one = {replicate = 1, shard = 1, tensor = 1, pipeline = 1, context = 1, micro = micro, micros = 1, el = 4}
  local took = least(step)
  local pace = took / cost.step(model, one, cost.machine(card, 1)).total
  card.float32, card.memory = card.float32 / pace, card.memory / pace
  local part = math.ceil(bytes / 4 / size)
  local whole, own = lm.zeros(part * size), lm.zeros(part)
  local seconds = size > 1 and (least(function()
    dist.all_gather_into_tensor(whole, own)
    whole:clone()
  end) + least(function() dist.reduce_scatter_tensor(own, whole:clone()) end)) / 2 or 1
  card.inside = math.max(1, (size - 1) / size * bytes / seconds)
  local machine = cost.machine(card, size)
  machine.hop = 0 -- it is in the bandwidth of blocks
  if rank == 0 then
    print(("constants: %.1f ms a step alone, %.1f GFLOP/s, copies at %.1f GB/s, blocks at %.2f GB/s"):format(1e3 * took,
      card.float32 / 1e9, 0.8 * card.memory * pace / 1e9, card.inside / 1e9))
  end
  return machine
end

local function run(case)
  local kind, h, layers, vocab, batch, seq, options = case:match "^(%w+):(%d+):(%d+):(%d+):(%d+):(%d+):?(.*)$"
  if not kind then error("the case is KIND:HIDDEN:LAYERS:VOCAB:BATCH:SEQ[:OPTION,...], got '" .. case .. "'", 0) end
  h, layers, vocab, batch, seq = tonumber(h), tonumber(layers), tonumber(vocab), tonumber(batch), tonumber(seq)
  local on = {}
  for word in options:gmatch "%w+" do on[word] = true end
  local stages = tonumber(options:match "pipeline(%d+)" or 1)
  local micros, copies = stages > 1 and 2 * stages or on.accumulate and 2 or 1, on.hybrid and 2 or 1
  local parts = on.tensor and 2 or 1
  if on.time and stages * parts > 1 then error("time is not measured with tensor or pipeline", 0) end
  counting = true
  collect()
  local base = lm.memory_allocated "cpu"
  local net = make(kind, h, layers, vocab, seq)
  local model = model_of(net)
  local shard = size / copies / stages / parts
  local layout = {replicate = copies, shard = shard, tensor = parts, pipeline = stages, context = 1, micro = batch,
    micros = micros, reshard = not (on.noreshard or on.keep), keep = on.keep, el = 4,
    recompute = on.recompute and "block" or nil}
  local blocks = net.transformer and net.transformer.h or net.model.layers
  local grid = dist.init_device_mesh("cpu", {copies, shard, stages, parts},
    {names = {"replicate", "shard", "pipeline", "tensor"}})
  local tensor = on.tensor and grid["tensor"] or nil
  if tensor then nn.parallel.parallelize(net, tensor, net:parallel_plan()) end
  local how = {mesh = copies > 1 and grid[{"replicate", "shard"}] or grid["shard"]}
  if on.noreshard then how.reshard_after_forward = false end
  if on.keep then how.reshard_after_backward = false end
  local function prepare(block)
    nn.parallel.fully_shard(block, how)
    local forward = block.forward
    local function collected(...)
      collect()
      return forward(...)
    end
    block.forward = function(self, ...)
      if on.recompute then return lm.autograd.checkpoint(collected, self, ...) end
      return collected(self, ...)
    end
  end
  local step
  if stages > 1 then
    step = pipeline_trainer(net, how, prepare, grid["pipeline"], micros, batch, seq, vocab)
  else
    for _, block in ipairs(blocks) do prepare(block) end
    nn.parallel.fully_shard(net, how)
    step = trainer(net, micros, batch, seq, vocab, tensor)
  end
  step()
  step()
  local measured, planned = lm.max_memory_allocated "cpu" - base, cost.memory(model, layout).total
  if stages > 1 then measured = dist.all_reduce(lm.tensor({measured}, {dtype = "float64"}), {op = "max"}):item() end
  if rank == 0 then
    print(("memory %s: measured %d planned %d ratio %.3f"):format(case, measured, planned, planned / measured))
  end
  counting = false
  if on.time then
    local alone = trainer(make(kind, h, layers, vocab, seq), 1, batch, seq, vocab)
    local machine = measured_machine(model, batch, alone)
    local took, time = least(step), cost.step(model, layout, machine)
    if rank == 0 then
      print(("time %s: measured %.1f ms planned %.1f ms ratio %.3f"):format(case, 1e3 * took, 1e3 * time.total,
        time.total / took))
    end
  end
end

run(arg[1] or "")
dist.destroy_process_group()

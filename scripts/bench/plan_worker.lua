-- A rank of scripts/bench/plan: trains a small model under nn.parallel.fully_shard, and prints the memory and time
-- that it measures beside what the cost model says. The bound is that of a model with few activations that is sharded
-- alone: its share of parameters, gradients and Adam's state, two blocks and their gradients (with noprefetch two
-- blocks in all), and the parameters outside of blocks. The case is "KIND:HIDDEN:LAYERS:VOCAB:BATCH:SEQ[:OPTION,...]":
-- KIND gpt2 or llama; BATCH of a rank; options noreshard, keep (reshard_after_backward = false), noprefetch, recompute,
-- accumulate (two micro-batches), hybrid (two replicas), tensor (two ranks divide each layer), contextN (N ranks divide
-- each sequence, and rows are sharded over them, too), pipelineN (N stages of nn.parallel.Pipeline, sharded over N-ths
-- of the ranks, and 2 * N micro-batches of BATCH: the most memory of any rank), interleaveN (N parts of each stage),
-- and, without these, time: also constants of this machine, measured by all ranks at once, and the time of a step.
-- Arguments that follow the case: the ranks of each host, bits a second and seconds of delay of the cables between,
-- which are printed beside what is measured.
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

-- Cuts a net into stages, `parts` for each rank of a mesh, shards this rank's as `how` says, its blocks by
-- prepare(block), and returns its parameters, and a function that trains it by a batch in that many micro-batches.
local function pipeline_of(net, how, prepare, mesh, parts, micros, tensor)
  local stages, name = parts * mesh:size(), net.transformer and "transformer.h" or "model.layers"
  local blocks, split = net:get_submodule(name), {}
  for s = 1, stages - 1 do split[s] = ("%s.%d"):format(name, s * #blocks / stages) end
  local function batch_loss(scores, y)
    collect()
    return loss_of(scores:flatten(1, 2), y:flatten(), tensor)
  end
  local pipe = nn.parallel.Pipeline(net, {mesh = mesh, split = split, microbatches = micros, loss = batch_loss,
    schedule = parts > 1 and "interleaved" or "1f1b"})
  local exchange = dist.batch_isend_irecv
  function dist.batch_isend_irecv(...) -- luacheck: ignore
    collect()
    return exchange(...)
  end
  for _, stage in ipairs(pipe.stages) do
    for _, block in ipairs(stage:get_submodule(name)) do
      if #block:parameters() > 0 then prepare(block) end
    end
    nn.parallel.fully_shard(stage, how)
  end
  return pipe:parameters(), function(x, y) pipe:step(x, y) end
end

-- Returns a net's parameters, and a function that trains it by a batch in that many micro-batches.
local function net_of(net, micros, tensor)
  return net:parameters(), function(xs, ys)
    xs, ys = xs:chunk(micros), ys:chunk(micros)
    for i, x in ipairs(xs) do
      local loss = loss_of(net(x):flatten(1, 2), ys[i]:flatten(), tensor)
      collect()
      loss:backward()
    end
  end
end

-- Returns a function that takes a step with train(x, y) for batches of that many sequences, divided over `context`.
local function trainer(batch, seq, vocab, context, parameters, train)
  local opt = optim.AdamW(parameters, {lr = 1e-3})
  lm.manual_seed(1) -- the ranks that divide a sequence need the same one
  return function()
    opt:zero_grad()
    collect()
    lm.reset_peak_memory_stats "cpu"
    local x, y = lm.randint(1, vocab + 1, {batch, seq}), lm.randint(1, vocab + 1, {batch, seq})
    nn.parallel.context_parallel(context, {buffers = {x, y}, dims = {2, 2}}, train)
    opt:step()
  end
end

-- Returns the seconds of a gather and a reduction of that many bytes in a group of n ranks.
local function ring_seconds(group, n, bytes)
  local part = math.ceil(bytes / 4 / n)
  local whole, own = lm.zeros(part * n), lm.zeros(part)
  local how = {group = group, async_op = true} -- as fully_shard calls them
  return least(function() dist.all_gather_into_tensor(whole, own, how):wait() end)
    + least(function() dist.reduce_scatter_tensor(own, whole, how):wait() end)
end

-- Returns the seconds that f() takes longer for each of those in which a gather runs beside it.
local function contention_of(group, n, bytes, f)
  local own = lm.zeros(math.ceil(bytes / 4 / n))
  local whole = lm.zeros(n * own:numel())
  local how = {group = group, async_op = true}
  local alone, gather = least(f), least(function() dist.all_gather_into_tensor(whole, own, how):wait() end)
  local gathers = math.max(1, math.floor(alone / gather))
  local both = least(function()
    local works = {}
    for i = 1, gathers do works[i] = dist.all_gather_into_tensor(whole, own, how) end
    f()
    for i = 1, gathers do works[i]:wait() end
  end)
  gather = gathers * gather
  return math.max(0, both - math.max(alone, gather)) / math.min(alone, gather)
end

-- Returns the seconds of one of fully_shard's copies of a few elements, with what it takes around it: steps of small
-- nets on a mesh of one rank take that much more than those of nets that are not sharded.
local function seconds_a_call(kind, grid)
  local seconds, calls = {}, 0 -- calls as cost.step counts them: one a parameter and gather, two a reduction
  for i = 1, 2 do
    local net = make(kind, 8, 6, 64, 8)
    if i == 2 then
      for _, block in ipairs((net.transformer or net.model).h or net.model.layers) do
        nn.parallel.fully_shard(block, {mesh = grid})
        calls = calls + #block:parameters() + 2
      end
      nn.parallel.fully_shard(net, {mesh = grid})
      calls = calls + #net:parameters() + 2
    end
    local step = trainer(1, 8, 64, grid, net_of(net, 1))
    seconds[i] = least(function() -- many steps, in which Lua collects garbage as in long runs
      for _ = 1, 10 do step() end
    end) / 10
  end
  return math.max(0, seconds[2] - seconds[1]) / calls
end

-- Returns the machine of these ranks, `node` on each host, all measured at once: memory by copies of 1 MB that no cache
-- holds, arithmetic by what else steps of a net take that is not sharded, links by collectives of a block, and between
-- hosts of a few bytes, too. Cores that compute also send; while messages are on their way between hosts, they compute,
-- more slowly by what is measured: the cables between `node` ranks on each host, of `rate` bits a second and that
-- delay, are also this machine's work.
local function measured_machine(model, micro, step, call, node, rate, delay)
  local card = {speed = 1, bytes = math.huge, overlap = 0, outside = 1, flops = math.huge, float32 = math.huge,
    call = call}
  local a, b = lm.zeros(2 ^ 24), lm.zeros(2 ^ 24)
  card.memory = 2 * a:numel() * 4 / 0.8 / least(function()
    for at = 1, a:numel(), 2 ^ 18 do a:narrow(1, at, 2 ^ 18):copy_(b:narrow(1, at, 2 ^ 18)) end
  end)
  local one = {replicate = 1, shard = 1, tensor = 1, pipeline = 1, context = 1, micro = micro, micros = 1, el = 4}
  local took, beside = least(step), cost.step(model, one, cost.machine(card, 1)).total
  card.float32 = 1
  card.float32 = (cost.step(model, one, cost.machine(card, 1)).total - beside) / math.max(took - beside, 1e-3)
  local hosts, block = size / node, 4 * cost.elements(model.block, 1, 1)
  local mesh = dist.init_device_mesh("cpu", {hosts, node})
  local far, near = mesh:get_group(1), mesh:get_group(2)
  card.inside = node > 1 and 2 * (node - 1) / node * block / ring_seconds(near, node, block) or math.huge
  local machine = cost.machine(card, node)
  machine.hop = 0 -- it is in the bandwidth of blocks
  if hosts > 1 then
    local small = ring_seconds(far, hosts, 4096)
    machine.net = small / 2 / (hosts - 1)
    machine.outside = node * 2 * (hosts - 1) / hosts * block / (ring_seconds(far, hosts, block) - small)
    card.overlap, card.contention = 1, contention_of(far, hosts, block, step)
    if rank == 0 then
      print(("cables: %.2f Gbit/s of %.2f, %.2f ms of %.2f; arithmetic beside messages is %.2f slower"):format(
        8e-9 * machine.outside, 1e-9 * rate, 1e3 * machine.net, 1e3 * delay, card.contention))
    end
  end
  if rank == 0 then
    print(("constants: %.1f ms a step alone, %.1f GFLOP/s, copies at %.1f GB/s, %.1f us a call, blocks at %.2f GB/s")
      :format(1e3 * took, card.float32 / 1e9, 0.8 * card.memory / 1e9, 1e6 * card.call, card.inside / 1e9))
  end
  return machine
end

local function run(case)
  local kind, h, layers, vocab, batch, seq, options = case:match "^(%w+):(%d+):(%d+):(%d+):(%d+):(%d+):?(.*)$"
  if not kind then error("the case is KIND:HIDDEN:LAYERS:VOCAB:BATCH:SEQ[:OPTION,...], got '" .. case .. "'", 0) end
  h, layers, vocab, batch, seq = tonumber(h), tonumber(layers), tonumber(vocab), tonumber(batch), tonumber(seq)
  local on = {}
  for word in options:gmatch "%w+" do on[word] = true end
  local function number(name) return tonumber(options:match(name .. "(%d+)") or 1) end
  local stages, parts, context = number "pipeline", number "interleave", number "context"
  local micros, copies = stages > 1 and 2 * stages or on.accumulate and 2 or 1, on.hybrid and 2 or 1
  local tensors = on.tensor and 2 or 1
  if on.time and stages * tensors * context > 1 then
    error("time is not measured with tensor, context or pipeline", 0)
  end
  counting = true
  collect()
  local base = lm.memory_allocated "cpu"
  local net = make(kind, h, layers, vocab, seq)
  local model = model_of(net)
  local shard = size / copies / stages / tensors / context
  local layout = {replicate = copies, shard = shard, tensor = tensors, pipeline = stages, context = context,
    micro = batch, micros = micros, interleave = parts, reshard = not (on.noreshard or on.keep),
    keep = on.keep, recompute = on.recompute and "block" or nil, prefetch = not on.noprefetch, el = 4}
  local blocks = net.transformer and net.transformer.h or net.model.layers
  local grid = dist.init_device_mesh("cpu", {copies, shard, context, stages, tensors},
    {names = {"replicate", "shard", "context", "pipeline", "tensor"}})
  grid:flatten({"shard", "context"}, "rows")
  local tensor = on.tensor and grid["tensor"] or nil
  if tensor then nn.parallel.parallelize(net, tensor, net:parallel_plan()) end
  local how = {mesh = copies > 1 and grid[{"replicate", "rows"}] or grid["rows"]}
  if on.noreshard then how.reshard_after_forward = false end
  if on.keep then how.reshard_after_backward = false end
  if on.noprefetch then how.prefetch = false end
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
  local parameters, train
  if stages > 1 then
    parameters, train = pipeline_of(net, how, prepare, grid["pipeline"], parts, micros, tensor)
  else
    for _, block in ipairs(blocks) do prepare(block) end
    nn.parallel.fully_shard(net, how)
    parameters, train = net_of(net, micros, tensor)
  end
  local step = trainer(micros * batch, seq, vocab, grid["context"], parameters, train)
  counting = false -- the peak is that of the second step
  step()
  counting = true
  step()
  local measured, planned = lm.max_memory_allocated "cpu" - base, cost.memory(model, layout).total
  if stages > 1 then measured = dist.all_reduce(lm.tensor({measured}, {dtype = "float64"}), {op = "max"}):item() end
  if rank == 0 then
    local block, root = cost.elements(model.block, 1, 1), cost.elements(model.rest, 1, 1)
    local bound = 16 * (layers * block + root) / size + (on.noprefetch and 8 or 16) * block + 4 * root
    print(("memory %s: measured %d planned %d ratio %.3f bound %d"):format(case, measured, planned, planned / measured,
      bound))
  end
  counting = false
  if on.time then
    local alone = trainer(batch, seq, vocab, grid["context"], net_of(make(kind, h, layers, vocab, seq), 1))
    local machine = measured_machine(model, batch, alone, seconds_a_call(kind, grid["context"]),
      tonumber(arg[2]) or size, arg[3], arg[4])
    local took, time = least(step), cost.step(model, layout, machine)
    if rank == 0 then
      print(("time %s: measured %.1f ms planned %.1f ms ratio %.3f"):format(case, 1e3 * took, 1e3 * time.total,
        time.total / took))
    end
  end
end

run(arg[1] or "")
dist.destroy_process_group()

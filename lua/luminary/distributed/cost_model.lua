--- Estimates the time of collectives and of training steps, and the memory of a rank, without running anything.
--- Units: seconds, bytes, bytes a second, operations a second. docs/howto/plan.md explains it; scripts/simulate_scale
--- --check prints its estimates beside published measurements.
local lists = require "luminary.base.lists"
local cost = {}

-- ---- hardware

-- Latencies of a hop: NCCL 2.8, src/graph/tuning.cc, rings and trees with the Simple protocol.
cost.NVLINK, cost.PCI, cost.NET = 3.4e-6, 5.7e-6, 9.6e-6
local TREE_HOP, TREE_NET, RING_BASE = 28e-6, 50e-6, 8.4e-6
local NETWORK = 0.9 -- share of the line rate that is left for data
local BANDWIDTH = 0.8 -- share of a data sheet's bandwidth, of memory and of NVLink, that kernels reach
local FUSED = 0.65 -- speed of fused attention, as a share of that of large matrix products
local CONTENTION = 0.3 -- share of a hidden collective's time by which it slows down the kernels beside it
local CALL = 5e-6 -- seconds of a kernel's start and end, in which it does not fill the card, unless `call` says more
--- The standard deviation of a rank's pace from step to step, relative.
cost.JITTER = 0.01
--- Seconds that a bucket of DistributedDataParallel takes from backward, fitted to PyTorch's measurements
--- (scripts/simulate_scale --check).
cost.BUCKET = 130e-6

--- Returns the size in bytes of DistributedDataParallel's buckets for `bytes` of gradients on GPUs. n buckets take n *
--- BUCKET from backward, and of the transfer only the last bucket, bytes / n / bandwidth, comes after it: the sum is
--- least for buckets of sqrt(BUCKET * bandwidth * bytes). The bandwidth is 80 GB/s, of an all_reduce over NVLink.
function cost.bucket_size(bytes) return math.max(25 * 2 ^ 20, math.sqrt(cost.BUCKET * 80e9 * bytes)) end

--- Returns the bytes a second of a network of n Gbit/s.
function cost.gigabits(n) return n * 1e9 / 8 * NETWORK end

--- Cards by name: flops (of matrix products, dense, in bfloat16, and in float32 by TF32), speed (the share of it that
--- large products reach), memory (bandwidth), bytes, inside (bandwidth of rings within a node, as NCCL counts: busbw),
--- outside (of a card's share of the network), hop. Numbers are those of NVIDIA's data sheets (A100 80GB SXM, June
--- 2021; H100 SXM, 2023; H200 SXM, 2024), links those of DGX A100 (8 x 200 Gbit/s) and DGX H100 (8 x 400 Gbit/s).
--- `speed` is fitted, one number a card: A100's to Megatron-LM's ten rows, H100's to Llama 3's three. `cpu` is one core
--- of a Xeon of 2023; overlap = 0: cores that compute also send.
cost.cards = {
  a100 = {flops = 312e12, float32 = 156e12, speed = 0.8, memory = 2039e9, bytes = 80e9, inside = BANDWIDTH * 300e9,
    outside = cost.gigabits(200)},
  h100 = {flops = 989.4e12, float32 = 494.7e12, speed = 0.72, memory = 3350e9, bytes = 80e9,
    inside = BANDWIDTH * 450e9, outside = cost.gigabits(400)},
  h200 = {flops = 989.4e12, float32 = 494.7e12, speed = 0.72, memory = 4800e9, bytes = 141e9,
    inside = BANDWIDTH * 450e9, outside = cost.gigabits(400)},
  cpu = {flops = 60e9, float32 = 60e9, speed = 1, memory = 20e9, bytes = 16e9, inside = 1.5e9,
    outside = cost.gigabits(10), overlap = 0},
}

--- Returns the machine {node, inside, outside, hop, net} of nodes with `node` cards. network: Gbit/s out of a node.
function cost.machine(card, node, network)
  return {card = card, node = node, inside = card.inside, hop = cost.NVLINK, net = cost.NET,
    outside = network and cost.gigabits(network) or node * card.outside}
end

--- Returns the machine as a group of `size` ranks sees it whose neighbors are `stride` ranks apart: the members on one
--- node, and their share of its network.
local function of_group(machine, size, stride)
  local within = math.max(1, math.min(size, math.floor(machine.node / stride)))
  return setmetatable({node = within, outside = machine.outside * within / machine.node}, {__index = machine})
end

-- ---- collectives

local function nodes_of(machine, gpus) return math.ceil(gpus / machine.node) end

local function narrowest(machine, gpus)
  if nodes_of(machine, gpus) == 1 then return machine.inside end
  return machine.node == 1 and machine.outside or math.min(machine.inside, machine.outside)
end

--- Returns a ring's time: each part of the bytes passes n - 1 ranks once (gather, reduce) or twice (all_reduce).
function cost.ring(machine, gpus, bytes, times)
  if gpus == 1 then return 0 end
  local nodes = nodes_of(machine, gpus)
  local hops, far = times * (gpus - 1), nodes > 1 and times * (nodes - 1) or 0
  local latency = RING_BASE + (hops - far) * machine.hop + far * (machine.net or 0)
  return latency + hops / gpus * bytes / narrowest(machine, gpus)
end

local function log2_up(n)
  local steps = 0
  while 2 ^ steps < n do steps = steps + 1 end
  return steps
end

local all_reduces = {
  ring = function(machine, gpus, bytes) return cost.ring(machine, gpus, bytes, 2) end,
  -- Sends half of the bytes up and down each of two trees (Sanders, Speck, Traeff, 2009; NCCL's discount of a tenth).
  tree = function(machine, gpus, bytes)
    local nodes = nodes_of(machine, gpus)
    local within = math.min(machine.node, gpus) - 1
    return 2 * (within * TREE_HOP + log2_up(nodes) * TREE_NET) + 2 * bytes / (0.9 * narrowest(machine, gpus))
  end,
  -- Reduces within each node first, so that every GPU has a part; then each part between the nodes; then back.
  hierarchical = function(machine, gpus, bytes)
    local nodes, within = nodes_of(machine, gpus), math.min(machine.node, gpus)
    local inside = {node = within, inside = machine.inside, hop = machine.hop}
    local total = within > 1 and 2 * cost.ring(inside, within, bytes, 1) or 0
    if nodes > 1 then -- the parts leave at the same time and share the way out
      local hops = 2 * (nodes - 1)
      total = total + RING_BASE + hops * machine.net + hops / nodes * bytes / machine.outside
    end
    return total
  end,
}

--- Seconds of an all_reduce of that many bytes, and which algorithm that is: "ring", "tree", "hierarchical" or "best".
function cost.all_reduce(machine, gpus, bytes, algorithm)
  if gpus == 1 then return 0, "none" end
  if algorithm ~= "best" then return all_reduces[algorithm](machine, gpus, bytes), algorithm end
  local min_seconds, which = math.huge, nil
  for name, seconds_of in lists.sorted_pairs(all_reduces) do
    local seconds = seconds_of(machine, gpus, bytes)
    if seconds < min_seconds then min_seconds, which = seconds, name end
  end
  return min_seconds, which
end

-- ---- models

--- Returns the model of a transformer of equal blocks: layers, hidden, heads, kv_heads (heads), head_dim, inner (of the
--- MLP), gated (true: LLaMA's), vocab, seq, masks (true with dropout), tied. Its fields besides: matrices ({inputs,
--- outputs, "column" | "row"} of a block), saved (elements a token that a block's backward needs: whole on each tensor
--- rank, and divided), work (those of its temporary gradients), block and rest (sizes of parameters, {rows, elements of
--- a row, is divided}).
function cost.transformer(o)
  o.kv_heads, o.head_dim = o.kv_heads or o.heads, o.head_dim or o.hidden / o.heads
  local h, width, kv, inner = o.hidden, o.heads * o.head_dim, o.kv_heads * o.head_dim, o.inner or 4 * o.hidden
  o.inner = inner
  o.matrices = {{h, width + 2 * kv, "column"}, {width, h, "row"}, {h, (o.gated and 2 or 1) * inner, "column"},
    {inner, h, "row"}}
  -- The inputs of both norms and the norms' results; q, k, v and the result of attention; of the MLP, what precedes
  -- and what follows the activation, and gated their product and factors.
  -- Counted beside lm.memory_allocated: spec/distributed/cost_model_spec.lua.
  o.saved = {whole = 4 * h, divided = 2 * width + 2 * kv + (o.gated and 4 or 2) * inner}
  o.work = (o.gated and 3 or 2) * inner
  o.block = o.block or lists.map(o.matrices, function(m) return {m[2], m[1], true} end)
  o.rest = o.rest or {{o.vocab, h, true}, not o.tied and {o.vocab, h, true} or nil}
  return o
end

--- Returns the elements of a shard of n elements with the padding behind it: shards that fully_shard gathers at once
--- begin at multiples of 64 bytes in 2-byte dtypes, of 128 bytes in float32.
function cost.part(n) return math.ceil(n / 32) * 32 end

--- Returns two numbers: the elements of parameters of these sizes on a tensor rank, and those of a shard, whose rows
--- are rounded up.
function cost.elements(sizes, tensor, shard)
  local full, own = 0, 0
  for _, s in ipairs(sizes) do
    local rows = s[3] and math.ceil(s[1] / tensor) or s[1]
    full, own = full + rows * s[2], own + cost.part(math.ceil(rows / shard) * s[2])
  end
  return full, own
end

-- ---- time

-- Returns the time of a product [m, k] x [k, n]: arithmetic, then what memory adds.
local function matmul(card, el, m, n, k)
  local flops = card.speed * (el == 4 and card.float32 or card.flops)
  return 2 * m * n * k / flops + el * (m * k + k * n + m * n) / (BANDWIDTH * card.memory) + (card.call or CALL)
end

-- Returns the times of attention's forward and backward over m tokens. Not fused, the scores of all pairs go through
-- memory, 8 bytes each in softmax and dropout.
local function attention(card, el, model, layout, m)
  local s, width = model.seq, model.heads * model.head_dim / layout.tensor
  if layout.fused ~= false then -- causal: half of the pairs
    local share = layout.fused or card.speed * FUSED
    local forward = 2 * m * s * width / (share * (el == 4 and card.float32 or card.flops))
    return forward, 2.5 * forward
  end
  local pairs_of = m * s * model.heads / layout.tensor
  local product = 2 * pairs_of * model.head_dim / (card.speed * card.flops)
    + 2 * (2 * m * width + pairs_of) / (BANDWIDTH * card.memory)
  local softmax = 8 * pairs_of / (BANDWIDTH * card.memory)
  return 2 * product + softmax, 4 * product + 1.3 * softmax
end

-- Returns the times of a block's forward and backward over m tokens, and those of what parts of forward run again in
-- backward, by the names of `recompute`.
local function block_time(card, el, model, layout, m)
  local forward, backward, scores, last = 0, 0, 0, 0
  for _, w in ipairs(model.matrices) do
    local k, n = w[1], w[2]
    if w[3] == "column" then n = n / layout.tensor else k = k / layout.tensor end
    last = matmul(card, el, m, n, k)
    forward = forward + last
    backward = backward + matmul(card, el, m, k, n) + matmul(card, el, n, k, m)
  end
  if model.heads then
    local f, b = attention(card, el, model, layout, m)
    forward, backward, scores = forward + f, backward + b, f
  end
  -- Every saved element is written and read in forward; backward reads it, and writes and reads its gradient.
  local bytes = el * m * (model.saved.whole / (layout.sequence ~= false and layout.tensor or 1)
    + model.saved.divided / layout.tensor)
  local memory = 2 * bytes / (BANDWIDTH * card.memory)
  local again = {block = forward + memory, early = forward + memory - last, half = (forward + memory) / 2,
    op = (forward - scores) / 2 + memory, attention = scores}
  return forward + memory, backward + 1.5 * memory, scores, again
end

-- Returns the time of fully_shard's copies of a unit whose parameters have these sizes: of its float32 rows to a gather
-- in another dtype, of each parameter out of it, and of gradients into one buffer, which the rank's part of all samples
-- then scales.
local function copy_time(card, el, sizes, full, own, gathers)
  local casts = el < 4 and gathers or 0
  local bytes = el * (gathers * 2 + 2 + 2) * full + casts * (4 + el) * own
  return bytes / (BANDWIDTH * card.memory) + (gathers * #sizes + casts + 2) * (card.call or CALL)
end

-- Returns a function hide(seconds, beside): takes `seconds` of a collective that may run beside `beside` seconds of
-- arithmetic from what is hidden in `parts`, and returns those that are exposed.
local function hider(parts, overlap, contention)
  return function(seconds, beside)
    local hidden = math.min(seconds, beside * overlap)
    parts.hidden, parts.contention = parts.hidden + hidden, parts.contention + contention * hidden
    return seconds - hidden
  end
end

--- Estimates a step of a model on a machine. layout: the sizes of its dims replicate, shard, tensor, pipeline and
--- context, whose product is the number of cards; micro (sequences), micros (their number a step on each replica),
--- interleave (parts of a pipeline's stage), reshard, keep (full parameters until the optimizer's step; without
--- reshard), prefetch (false: gathers and reductions of shards hide beside nothing), recompute (nil, "block", "half" of
--- the blocks, "attention", "early": a block without its last product, or "op": every second product and all that only
--- passes memory), el (bytes of an element, 2 or 4). Rows are sharded over shard and context. Of other libraries: rows
--- (1: they are not), fused (of attention: false, or its share of the card's `flops`), sequence = false (norms whole on
--- all tensor ranks), averages_last (gradients are averaged after backward). Returns seconds by parts: compute,
--- recompute, tensor, context, shard, replicate, pipeline, bubble, optimizer, stragglers, contention; `total`, their
--- sum; `hidden`; `times` of the dims' collectives, hidden or not, and `longest`, whose collectives take longest.
function cost.step(model, layout, machine)
  local card, el, parts = machine.card, layout.el or 2, {hidden = 0, contention = 0}
  local t, p, c = layout.tensor, layout.pipeline, layout.context
  local f = layout.rows or layout.shard * c
  local r = layout.replicate * layout.shard * c / f
  local v, micros, overlap = layout.interleave or 1, layout.micros, card.overlap or 1
  local cards, m = t * p * f * r, layout.micro * model.seq / c
  local layers, times, hide = math.ceil(model.layers / p), {}, hider(parts, overlap, card.contention or CONTENTION)
  local forward, backward, scores, parts_again = block_time(card, el, model, layout, m)
  local again = parts_again[layout.recompute] or 0
  local function across_blocks(name, seconds) parts[name] = seconds * layers * micros end -- through a stage's blocks
  across_blocks("compute", forward + backward)
  across_blocks("recompute", again)
  local activations = el * m * model.hidden
  local sum = cost.all_reduce(of_group(machine, t, 1), t, activations, "ring")
  across_blocks("tensor", sum * (layout.recompute == "block" and 6 or 4))
  local keys = c > 1 and 2 * el * m * c * model.kv_heads * model.head_dim / t or 0
  local ring = cost.ring(of_group(machine, c, t), c, keys, 1)
  across_blocks("context", hide(ring, scores) + hide(2 * ring, 2.5 * scores))
  times.tensor, times.context = parts.tensor, 3 * ring * layers * micros

  local block, own = cost.elements(model.block, t, f)
  local root, own_root = cost.elements(model.rest, t, f)
  local shards, copies = of_group(machine, f, t), of_group(machine, r, t * f)
  local function gather(n) return cost.ring(shards, f, el * n, 1) end
  local function copy(n) return f > 1 and cost.all_reduce(copies, r, el * n, "best") or 0 end
  local again_gathered, uses = layout.reshard and gather(block) or 0, layout.keep and micros or 1
  local sent = again_gathered + gather(block)
  local waits = layout.prefetch == false and gather(block) / uses + sent
  across_blocks("shard", waits or hide(gather(block) / uses, forward / uses) + hide(sent, backward + again))
  parts.shard = parts.shard + micros * (1 / uses + 1) * gather(root)
  if f > 1 then
    across_blocks("copies", copy_time(card, el, model.block, block, own, 1 / uses + (layout.reshard and 1 or 0)))
    parts.copies = parts.copies + micros * copy_time(card, el, model.rest, root, own_root, 1 / uses)
  end
  across_blocks("replicate", hide(copy(own), math.max(0, backward + again - sent)))
  local state = layers * own + own_root / (p > 1 and 2 or 1)
  parts.hidden, parts.contention = parts.hidden * layers * micros, parts.contention * layers * micros
  -- Without shards gradients are averaged once, as DistributedDataParallel does: beside the last backward.
  local average, bytes = 0, 4 * state
  if f == 1 and r > 1 then
    average = cost.all_reduce(copies, r, bytes, "best")
    local hidden = layout.averages_last and 0 or math.min(average, backward * layers * overlap)
    parts.hidden, parts.replicate = parts.hidden + hidden, parts.replicate + average - hidden
    local buckets = hidden > 0 and math.ceil(bytes / cost.bucket_size(bytes)) or 0
    parts.contention = parts.contention + buckets * cost.BUCKET
  end
  times.shard = micros * (layers * (gather(block) / uses + sent) + (1 / uses + 1) * gather(root))
  times.replicate = copy(own) * layers * micros + average

  local columns = model.vocab and model.vocab / t or 0
  local head = columns > 0 and matmul(card, el, m, columns, model.hidden) + matmul(card, el, m, model.hidden, columns)
    + matmul(card, el, columns, model.hidden, m) + 20 * m * columns / (BANDWIDTH * card.memory) or 0
  parts.compute = parts.compute + micros * head
  local away = p > 1 and activations / t / of_group(machine, 1, 1).outside + machine.net or 0
  parts.pipeline = 2 * v * away * micros
  local of_blocks = (forward + backward + again) * layers * micros + parts.tensor + parts.context
  parts.bubble = (p - 1) / v / micros * (of_blocks + parts.pipeline)
  times.pipeline = parts.pipeline
  -- The slowest of n ranks is sqrt(2 log n) deviations behind.
  parts.stragglers = (of_blocks + micros * head + parts.bubble) * cost.JITTER * math.sqrt(2 * math.log(cards))
  -- Reads a parameter, its gradient and two moments and writes all but the gradient, in float32, and 12 bytes more for
  -- casts and the norm.
  parts.optimizer = 40 * state / (BANDWIDTH * card.memory)
  parts.total = 0
  for name, seconds in lists.sorted_pairs(parts) do -- a sum of floats depends on its order
    if name ~= "total" and name ~= "hidden" then parts.total = parts.total + seconds end
  end
  parts.longest = "none"
  for _, name in ipairs {"tensor", "context", "shard", "replicate", "pipeline"} do
    if times[name] > (times[parts.longest] or 0) then parts.longest = name end
  end
  parts.times = times
  return parts
end

-- ---- memory

-- Returns what cost.memory does, of a rank that has the first stage of a pipeline, the last, or, of one stage, both.
local function stage_memory(model, layout, is_first, is_last)
  local el, t, p, n = layout.el or 2, layout.tensor, layout.pipeline, layout.shard * layout.context
  local layers, tokens = math.ceil(model.layers / p), layout.micro * model.seq / layout.context
  local block, own = cost.elements(model.block, t, n)
  local root, own_root = cost.elements(model.rest, t, n)
  local word = math.ceil((model.vocab or 0) / t) * model.hidden -- elements of the embedding
  local other = p > 1 and not model.tied and word or 0 -- an end of a pipeline has one of embedding and lm_head
  root, own_root = root - other, own_root - other / n
  local state = layers * own + own_root
  local each = tokens * el * (model.saved.whole + model.saved.divided / t)
    + (model.masks and 2 * tokens * model.hidden or 0)
  local saved = layout.recompute and tokens * el * model.hidden or each
  -- Micro-batches that wait for their backward, and with v parts of a stage v-ths of them (Narayanan et al. 2021).
  local v, waiting = layout.interleave or 1, 1
  if p > 1 then waiting = (v > 1 and (v - 1) * p or 0) + (is_last and 1 or v > 1 and 2 * p - 1 or p) end
  local on_the_way = math.min(layout.micros, waiting / v)
  local full, joined, work = el * block, el * n * own, tokens * el * (model.work or 0) / t
    + (layout.recompute and each or 0)
  local logits = tokens * el * (model.vocab or 0) / t
  local prefetches = layout.prefetch ~= false
  local kept, ahead = layout.reshard and 0 or full, n > 1 and prefetches and joined or 0
  local of_head, of_embedding = is_last and el * word or 0, is_first and el * word or 0 -- their gradients
  -- Gradients of earlier micro-batches, which a pipeline keeps in full until it averages them in the last one.
  local keeps = p > 1 and n > 1 and layout.micros > 1
  local before = keeps and el * (layers * block + root) or layout.micros > 1 and 4 * state or 0
  local last = math.ceil(layers / v) -- blocks of a part, which follow each other
  local most
  local function at(blocks, gathered, gradients, shards, buffers)
    gathered = math.max(gathered, layout.keep and el * (layers * block + root) or 0)
    local parts = {
      parameters = 4 * state, optimizer = 8 * state, gradients = gradients + math.max(before, 4 * shards),
      activations = (on_the_way * layers - (last - blocks)) * saved, gathered = gathered, buffers = buffers,
    }
    parts.total = parts.parameters + parts.optimizer + parts.gradients + parts.activations + gathered + buffers
    if not most or parts.total > most.total then most = parts end
  end
  local whole = el * root
  local function gathered_of(i) -- in backward
    return whole + (layout.reshard and full + (i > 1 and ahead or 0) or i * full)
  end
  at(0, 2 * whole, 0, 0, 0)                                                   -- gathers the root
  at(last, whole + math.max(full + ahead, kept * layers + (layout.keep and ahead or 0)), 0, 0, work) -- forward's last
  if is_last then at(last, whole + kept * layers, 0, 0, 2 * logits) end       -- the loss
  if keeps then -- joins the last block's gradients, whose parameters are not gathered any longer
    at(last, gathered_of(last), of_head, 0, work)
    at(last - 1, gathered_of(last) - full, of_head + full, 0, joined + el * own)
  end
  for _, i in ipairs(keeps and {} or {last, last - 1, 2, 1}) do -- backward of a block, while the later one is reduced
    local sums = 2 * el * own -- results of a reduction, and the shards' gradients, copies of them
    local later, done = i < last and (prefetches and joined or 0) + sums or 0, math.max(0, last - i - 1) * own
    if i >= 1 and i <= last then
      at(i, gathered_of(i), of_head, done, later + work)
      at(i - 1, gathered_of(i), of_head + full, done, later)
      if not prefetches then at(i - 1, gathered_of(i) - full, of_head + full, done, later + joined + sums) end
    end
  end
  at(0, whole, of_head + of_embedding, layers * own, joined + 2 * el * own)   -- the embedding's backward
  at(0, 0, whole, layers * own, whole + 2 * el * own_root)                    -- reduces the root
  at(0, 0, 0, state, 0)                                                       -- the optimizer
  return most
end

--- Returns the bytes of a rank at their maximum in a step with AdamW, by parts: parameters, gradients, optimizer,
--- activations, gathered (blocks in full), buffers (of reductions and of the block that runs); and their `total`. It
--- follows nn.parallel.fully_shard over the dims shard and context, whose shards are float32: blocks are gathered one
--- ahead, and a block's gradients are in full until they are reduced. Of a pipeline, the rank with the most: the first,
--- which has most micro-batches, or the last, which has the scores. layout: as of cost.step.
function cost.memory(model, layout)
  if layout.pipeline == 1 then return stage_memory(model, layout, true, true) end
  local first, last = stage_memory(model, layout, true, false), stage_memory(model, layout, false, true)
  return first.total > last.total and first or last
end

return cost

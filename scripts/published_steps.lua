-- Published steps of large transformers in layouts of several dims, beside what the cost model predicts for them.
-- Returns a list of {title, name, gpus, published, predict() -> the same quantity, miss (a reason, where the model is
-- known not to hold)}. scripts/simulate_scale --check prints it.
--
-- Each source, and how its figures were checked:
-- * Narayanan et al., "Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM", SC '21.
--   Table 1 (its layouts and micro-batches: examples/sc21/run_table_1.sh of NVIDIA/Megatron-LM, read there) and table
--   2. The figures were not read again; that of 3,072 GPUs agrees with the abstract (502 petaFLOP/s), read. FLOPs:
--   equation 3.
-- * Korthikanti et al., "Reducing Activation Recomputation in Large Transformer Models", MLSys 2023, tables 3 and 5.
--   Not read again; times and the MFU printed beside them agree by arithmetic.
-- * Zhao et al., "PyTorch FSDP: Experiences on Scaling Fully Sharded Data Parallel", VLDB 2023, section 5.4 and
--   figure 7: 173 and 186 TFLOPS on 128 GPUs. Not read again.
-- * The page on performance in pytorch/torchtitan's docs: of 2024 (A100) and of 2025 (H100 of 500 W). Read.
-- * foundation-model-stack/fms-fsdp, README.md at commit 0d319983: 128 A100. Read; the network, 400 Gbit/s a node, is
--   that of a later README. 34b and 70b have the shapes of Code Llama and Llama 2.
-- * Dubey et al., "The Llama 3 Herd of Models", 2024, table 4. Read in notes of a talk by Balaji (SC '24) that repeat
--   it; the number of stages of a rank is not stated: 8, of one layer, is assumed.
-- * Jiang et al., "MegaScale: Scaling Large Language Model Training to More Than 10,000 GPUs", NSDI '24, table 2, the
--   rows of Megatron-LM. Not read again; times and MFU agree by arithmetic. That attention is fused there is assumed.
local cost = require "luminary.distributed.cost_model"
local a100, h100 = cost.cards.a100, cost.cards.h100
local rows = {}

local function add(title, name, gpus, published, predict, miss)
  rows[#rows + 1] = {title = title, name = name, gpus = gpus, published = published, predict = predict, miss = miss}
end

local function gpt(layers, hidden, heads, vocab)
  return cost.transformer {layers = layers, hidden = hidden, heads = heads, vocab = vocab or 51200, seq = 2048,
    tied = true}
end

local function llama(layers, hidden, heads, kv_heads, inner, vocab, seq)
  return cost.transformer {layers = layers, hidden = hidden, heads = heads, kv_heads = kv_heads, inner = inner,
    gated = true, vocab = vocab, seq = seq}
end

local function seconds(model, layout, machine)
  for _, dim in ipairs {"replicate", "shard", "tensor", "pipeline", "context"} do layout[dim] = layout[dim] or 1 end
  layout.micros = layout.micros or 1
  return cost.step(model, layout, machine).total
end

-- TFLOP/s a GPU with the recomputation of all blocks, by Narayanan's equation 3.
local function teraflops(model, batch, gpus, time)
  local h, l, s = model.hidden, model.layers, model.seq
  return 96 * batch * s * l * h * h * (1 + s / (6 * h) + model.vocab / (16 * l * h)) / time / gpus / 1e12
end

-- ---- Megatron-LM, 2021: attention is not fused, and gradients are averaged after backward.
local dgx = cost.machine(a100, 8)

local function megatron(title, name, gpus, published, model, batch, micro, tensor, pipeline, interleave)
  add(title, name, gpus, published, function()
    local copies = gpus / tensor / pipeline
    return teraflops(model, batch, gpus, seconds(model, {
      tensor = tensor, pipeline = pipeline, interleave = interleave, replicate = copies, micro = micro,
      micros = batch / copies / micro, recompute = "block", fused = false, sequence = false, averages_last = true,
    }, dgx))
  end)
end

local title = "Megatron-LM (SC '21, table 1), A100: TFLOP/s a GPU"
megatron(title, "1.7B", 32, 137, gpt(24, 2304, 24), 512, 16, 1, 1)
megatron(title, "3.6B, tensor 2", 64, 138, gpt(30, 3072, 32), 512, 16, 2, 1)
megatron(title, "7.5B, tensor 4", 128, 142, gpt(36, 4096, 32), 512, 16, 4, 1)
megatron(title, "18.4B, tensor 8", 256, 135, gpt(40, 6144, 48), 1024, 8, 8, 1)
megatron(title, "39.1B, 8, pipeline 2", 512, 138, gpt(48, 8192, 64), 1536, 4, 8, 2)
megatron(title, "76.1B, 8 x 4", 1024, 140, gpt(60, 10240, 80), 1792, 2, 8, 4, 3)
megatron(title, "145.6B, 8 x 8", 1536, 148, gpt(80, 12288, 96), 2304, 2, 8, 8, 2)
megatron(title, "310.1B, 8 x 16", 1920, 155, gpt(96, 16384, 128), 2160, 1, 8, 16, 2)
megatron(title, "529.6B, 8 x 35", 2520, 163, gpt(105, 20480, 128), 2520, 1, 8, 35, 3)
megatron(title, "1008B, 8 x 64", 3072, 163, gpt(128, 25600, 160), 3072, 1, 8, 64)
title = "Megatron-LM (SC '21, table 2), A100: TFLOP/s a GPU"
megatron(title, "174.6B, 8 x 12", 384, 153, gpt(96, 12288, 96), 1536, 1, 8, 12)
megatron(title, "174.6B, 8 x 12", 768, 149, gpt(96, 12288, 96), 1536, 1, 8, 12)
megatron(title, "174.6B, 8 x 12", 1536, 141, gpt(96, 12288, 96), 1536, 1, 8, 12)
megatron(title, "529.6B, 8 x 35", 560, 171, gpt(105, 20480, 128), 2240, 1, 8, 35)
megatron(title, "529.6B, 8 x 35", 1120, 167, gpt(105, 20480, 128), 2240, 1, 8, 35)
megatron(title, "529.6B, 8 x 35", 2240, 159, gpt(105, 20480, 128), 2240, 1, 8, 35)

-- ---- Megatron-LM, 2022: with all blocks recomputed, then with sequence parallelism and attention alone recomputed.
title = "Korthikanti et al. (table 5), A100: seconds of a step"
for _, r in ipairs {
  {"22B", gpt(48, 6144, 64), 1, 4, 4, 1, 1.42, 1.10}, {"175B", gpt(96, 12288, 96), 8, 64, 1, 3, 18.13, 13.75},
  {"530B", gpt(105, 20480, 128), 35, 280, 1, 3, 49.05, 37.83},
  {"1T", gpt(128, 25600, 160), 64, 512, 1, 1, 94.42, 71.49},
} do
  for i, again in ipairs {"block", "attention"} do
    add(title, ("%s, recomputes %s"):format(r[1], again), 8 * r[3], r[6 + i], function()
      return seconds(r[2], {tensor = 8, pipeline = r[3], micro = r[5], micros = r[4] / r[5], interleave = r[6],
        recompute = again, fused = false, sequence = i == 2, averages_last = true}, dgx)
    end)
  end
end

-- ---- FSDP
title = "PyTorch FSDP (VLDB '23), A100, 2 Tbit/s a node: TFLOP/s a GPU"
for batch, published in ipairs {173, 186} do
  add(title, "175B, batch " .. batch, 128, published, function()
    local model = gpt(96, 12288, 96, 50000)
    return teraflops(model, 128 * batch, 128, seconds(model, {shard = 128, micro = batch, recompute = "block",
      fused = false, reshard = true}, cost.machine(a100, 8, 2000)))
  end)
end

local function tokens(source, name, gpus, published, model, layout, machine, miss)
  add(source, name, gpus, published, function()
    layout.reshard = true
    return layout.micro * model.seq / seconds(model, layout, machine)
  end, miss)
end

title = "torchtitan (FSDP2): tokens a second and GPU"
tokens(title, "8B, half recomputed, A100", 64, 2904, llama(32, 4096, 32, 8, 14336, 128256, 8192),
  {shard = 64, micro = 1, recompute = "half"}, dgx)
tokens(title, "70B, recomputed, A100", 64, 331, llama(80, 8192, 64, 8, 28672, 128256, 8192),
  {shard = 64, micro = 1, recompute = "block"}, dgx)
tokens(title, "8B, half recomputed, H100 500 W", 8, 5762, llama(32, 4096, 32, 8, 14336, 128256, 8192),
  {shard = 8, micro = 2, recompute = "half"}, cost.machine(h100, 8), "a card of 500 W with slower memory")

title = "fms-fsdp, A100, 400 Gbit/s a node: tokens a second and GPU"
local slow = cost.machine(a100, 8, 400)
tokens(title, "7b, 8 x 16", 128, 3760, llama(32, 4096, 32, 32, 11008, 32000, 4096),
  {shard = 8, replicate = 16, micro = 2}, slow)
tokens(title, "13b, 8 x 16", 128, 1700, llama(40, 5120, 40, 40, 13824, 32000, 4096),
  {shard = 8, replicate = 16, micro = 1}, slow)
tokens(title, "34b, recomputed", 128, 772, llama(48, 8192, 64, 8, 22016, 32000, 4096),
  {shard = 128, micro = 8, recompute = "block"}, slow)
tokens(title, "70b, recomputed", 128, 380, llama(80, 8192, 64, 8, 28672, 32000, 4096),
  {shard = 128, micro = 6, recompute = "block"}, slow)

-- ---- Llama 3: its FSDP keeps parameters from the first micro-batch to the last: gathers and reductions are those of
-- an averaging, once a step.
title = "Llama 3 405B (table 4), H100: TFLOP/s a GPU"
for _, r in ipairs {{8192, 1, 8192, 32, 430}, {16384, 1, 8192, 16, 400}, {16384, 16, 131072, 16, 380}} do
  add(title, ("tensor 8, context %d, pipeline 16"):format(r[2]), r[1], r[5], function()
    local model, copies = llama(126, 16384, 128, 8, 53248, 128256, r[3]), r[1] / 128 / r[2]
    local time = seconds(model, {tensor = 8, pipeline = 16, context = r[2], replicate = copies, rows = 1, micro = 1,
      micros = r[4], interleave = 8}, cost.machine(h100, 8))
    -- Six operations for each parameter and token, and causal attention.
    return (6 * 405.8e9 + 6 * 126 * r[3] * 16384) * r[3] * r[4] * copies / time / r[1] / 1e12
  end)
end

-- ---- known misses
title = "MegaScale (table 2, Megatron-LM's rows), A100: seconds of a step of 175B"
for _, r in ipairs {{256, 768, 40.0}, {512, 768, 21.2}, {768, 768, 15.2, true}, {1024, 768, 11.9, true},
  {3072, 6144, 29.02}, {6144, 6144, 14.78}, {8192, 6144, 12.24, true}, {12288, 6144, 8.57, true}} do
  add(title, "tensor 8, pipeline 8", r[1], r[3], function()
    local copies = r[1] / 64
    return seconds(gpt(96, 12288, 128, 64000), {tensor = 8, pipeline = 8, replicate = copies, micro = 1,
      micros = r[2] / copies, interleave = 6, averages_last = true}, dgx)
  end, r[4] and "faster than a shared cluster of that time")
end

title = "DeepSpeed ZeRO-3 of 2021 (SC '21, table 2), A100: TFLOP/s a GPU"
for _, r in ipairs {
  {96, 12288, 96, 384, 4, 1536, 144}, {96, 12288, 96, 768, 2, 1536, 88}, {96, 12288, 96, 1536, 1, 1536, 44},
  {105, 20480, 128, 640, 4, 2560, 138}, {105, 20480, 128, 1120, 2, 2240, 98}, {105, 20480, 128, 2240, 1, 2240, 48},
} do
  add(title, r[1] == 96 and "174.6B" or "529.6B", r[4], r[7], function()
    local model = gpt(r[1], r[2], r[3])
    return teraflops(model, r[6], r[4], seconds(model, {shard = r[4], micro = r[5], micros = r[6] / r[4] / r[5],
      recompute = "block", fused = false, reshard = true}, dgx))
  end, "its gathers reached 16 of a node's 200 GB/s")
end

return rows

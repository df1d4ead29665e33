-- Published steps of large transformers in layouts of several dims, beside what the cost model predicts for them.
-- Returns a list of {title, name, gpus, published, predict() -> the same quantity, miss (a reason, where the model is
-- known not to hold)}. scripts/simulate_scale --check prints it. A row is here if its publication states model, layout,
-- batch, sequence, recomputation and cards; no row has a factor of its own.
--
-- Each source, and how its figures were checked:
-- * Narayanan et al., "Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM", SC '21.
--   Table 1 (its layouts and micro-batches: examples/sc21/run_table_1.sh of NVIDIA/Megatron-LM, read there) and table
--   2. The figures are from memory; that of 3,072 GPUs agrees with the abstract (502 petaFLOP/s), read. FLOPs:
--   equation 3. Table 2's six rows of DeepSpeed's ZeRO-3 of 2021 are left out: how its gathers ran is not stated, and
--   the model predicts 1.4 to 3.6 times their speed.
-- * Korthikanti et al., "Reducing Activation Recomputation in Large Transformer Models", MLSys 2023, tables 3 and 5.
--   From memory; times and the MFU printed beside them agree by arithmetic.
-- * Zhao et al., "PyTorch FSDP: Experiences on Scaling Fully Sharded Data Parallel", VLDB 2023, section 5.4 and
--   figure 7: 173 and 186 TFLOPS on 128 GPUs. From memory.
-- * pytorch/torchtitan. A100: performance.md in docs at commit 04133643, both tables. H100: tables 1 and 3 of
--   benchmarks/llama3_h100_202412_torchtitan.md, without Float8. Read. "Selective op" recomputes every second product
--   and all that only passes memory, but not attention; train_configs/llama3_8b.toml has it.
-- * mosaicml/llm-foundry, scripts/train/benchmarking/README.md at commit 49521837: all rows in bfloat16 of models of 7
--   billion parameters and more. Read, with the models' yamls, submit_benchmarks.py and sweep.sh. The network of H100s
--   is not stated: DGX H100's is assumed.
-- * foundation-model-stack/fms-fsdp, README.md at commit 0d319983: 128 A100. Read; the network, 400 Gbit/s a node, is
--   that of a later README. 34b and 70b have the shapes of Code Llama and Llama 2.
-- * Dubey et al., "The Llama 3 Herd of Models", 2024, table 4. Read in notes of a talk by Balaji (SC '24) that repeat
--   it; the number of stages of a rank is not stated: 8, of one layer, is assumed.
-- * Jiang et al., "MegaScale: Scaling Large Language Model Training to More Than 10,000 GPUs", NSDI '24, table 2, the
--   rows of Megatron-LM. From memory; times and MFU agree by arithmetic. FlashAttention-2 is among MegaScale's own
--   changes (page 5, read as quoted in issue 86 of huggingface/nanotron). So the baseline is taken to have
--   Megatron-LM's attention, with the recomputation of Korthikanti et al.
-- * microsoft/DeepSpeed, docs/_posts/2022-07-26-deepspeed-azure.md: figures in its text, and its table 2. Read. That
--   530B ran with batches of 8 is read off the order of figure 6's caption.
-- * Smith et al., "Using DeepSpeed and Megatron to Train Megatron-Turing NLG 530B", 2022, section 2.4. Read as
--   repeated in cli99/llm-analysis, examples/megatron-turing-nlg/README.md; a micro-batch of 1 is assumed.
--
-- Attention kernels reach these shares of a card's peak: FlashAttention-2 50 to 73 % on A100 (abstract of Dao 2023;
-- the model's own share, 52 %, is in that range) and 35 % on H100 (abstract of Shah et al. 2024). FlashAttention in
-- Triton is 1.3 to 2.5 times slower (section 4.1 of Dao 2023, from memory): by 1.9 in the mean.
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
    local time = seconds(model, layout, machine)
    return layout.micros * layout.micro * model.seq / time
  end, miss)
end

title = "torchtitan (FSDP2), A100: tokens a second and GPU"
local function llama3_8b() return llama(32, 4096, 32, 8, 14336, 128256, 8192) end
local function llama2_13b() return llama(40, 5120, 40, 40, 13824, 32000, 4096) end
local function llama2_70b() return llama(80, 8192, 64, 8, 28672, 32000, 4096) end
for _, r in ipairs {
  {"Llama 3 8B, half recomputed", 2904, llama3_8b(), 1, "half"},
  {"Llama 3 8B, ops recomputed", 2973, llama3_8b(), 1, "op"},
  {"Llama 3 70B, recomputed", 331, llama(80, 8192, 64, 8, 28672, 128256, 8192), 1, "block"},
  {"Llama 2 13B", 2162, llama2_13b(), 2}, {"Llama 2 13B, half recomputed", 1914, llama2_13b(), 2, "half"},
  {"Llama 2 13B, ops recomputed", 1904, llama2_13b(), 2, "op"},
  {"Llama 2 70B, ops recomputed", 355, llama2_70b(), 1, "op"},
  {"Llama 2 70B, recomputed", 353, llama2_70b(), 2, "block"},
} do
  tokens(title, r[1], 64, r[2], r[3], {shard = 64, micro = r[4], recompute = r[5]}, dgx)
end

-- Returns a card with some other numbers.
local function variant(card, changes) return setmetatable(changes, {__index = card}) end

-- Adds the memory traffic of norms and rotations that are not fused, in float32, as PyTorch 2.5 runs them where nothing
-- is compiled. A norm's forward passes 40 bytes an element (to float32, square, mean, two products, back), its backward
-- 80, where one kernel passes 4 and 6; a rotation's 20 each, where one passes 4 each. A saved element stands for 10.
-- On A100, in April 2024, norm_type was fused_rmsnorm.
local function not_compiled(model)
  model.saved.whole = model.saved.whole + 2 * 11 * model.hidden
  model.saved.divided = model.saved.divided + 3.2 * (model.heads + model.kv_heads) * model.head_dim
  return model
end

-- H100s with HBM2e (2.4 TB/s) at 500 W. Their peak is "between SXM and NVL" (footnote 2): 989 and 835 TFLOP/s.
title = "torchtitan (FSDP2), H100 of 500 W: tokens a second and GPU"
local grand_teton = cost.machine(variant(h100, {memory = 2400e9, flops = 912e12}), 8)
for _, r in ipairs {{8, 5762}, {8, 6667, true}, {128, 5605}, {128, 6514, true}} do
  tokens(title, "Llama 3 8B, ops recomputed" .. (r[3] and ", compiled" or ""), r[1], r[2],
    r[3] and llama3_8b() or not_compiled(llama3_8b()), {shard = r[1], micro = 2, recompute = "op", fused = 0.35},
    grand_teton)
end

-- ---- llm-foundry: model, sequence, cards, sequences of a micro-batch, micro-batches, recomputation, tokens a second.
-- With PyTorch 2.1 (amp_bf16), a block's recomputation stops after the last tensor that backward needs: before its last
-- product. Attention is FlashAttention in Triton.
local mpt = {["7b"] = {32, 4096, 32}, ["13b"] = {40, 5120, 40}, ["30b"] = {48, 7168, 56}, ["70b"] = {80, 8192, 64}}

local function foundry(name, machine, fused, list, misses)
  local source = "llm-foundry (MPT, FSDP), " .. name .. ": tokens a second and GPU"
  for size, seq, gpus, micro, micros, again, published in list:gmatch "(%w+) (%d+) (%d+) (%d+) (%d+) (%S+) (%d+)" do
    local shape = mpt[size]
    local model = cost.transformer {layers = shape[1], hidden = shape[2], heads = shape[3], vocab = 50368,
      seq = tonumber(seq), tied = true}
    local layout = {shard = tonumber(gpus), micro = tonumber(micro), micros = tonumber(micros), recompute = again,
      fused = fused}
    tokens(source, ("%s, %s x %s x %s%s"):format(size, micros, micro, seq, again == "-" and "" or ", recomputed"),
      layout.shard, tonumber(published), model, layout, machine, misses[("%s %s %s"):format(size, seq, gpus)])
  end
end

local in_triton = {a100 = (0.5 + 0.73) / 2 / 1.9, h100 = 0.35 / 1.9}
local longest = {["30b 8192 8"] = "23 and 29 % slower than with 4,096 tokens, for 5 % more arithmetic"}
foundry("H100", cost.machine(h100, 8), in_triton.h100, [[
    70b 2048 512 8 1 early 1007, 70b 2048 256 8 1 early 1035, 70b 2048 128 8 1 early 1058, 30b 2048 512 8 1 early 2115,
    30b 2048 256 8 1 early 2148, 30b 2048 128 8 1 early 2199, 13b 2048 512 16 1 early 4952,
    13b 2048 256 16 1 early 4989, 13b 2048 128 16 1 early 5080, 7b 2048 512 6 1 - 9670, 7b 2048 256 6 1 - 10119,
    7b 2048 128 6 1 - 10475,
    70b 2048 64 8 4 early 1039, 70b 2048 32 2 16 early 882, 30b 8192 8 1 21 early 1384, 30b 4096 8 1 21 early 1802,
    30b 2048 32 14 3 early 2308, 30b 2048 16 10 3 early 2263, 30b 2048 8 3 21 early 2002, 30b 1024 8 6 21 early 2084,
    13b 32768 8 1 3 early 1976, 13b 16384 8 3 3 early 2985, 13b 4096 8 10 3 early 4717, 13b 2048 64 2 1 - 4800,
    13b 2048 32 2 1 - 4811, 13b 2048 16 2 1 - 4767, 13b 2048 8 2 1 - 4792, 13b 1024 8 40 3 early 5502,
    7b 65536 8 1 2 early 1956, 7b 32768 8 2 2 early 3318, 7b 8192 8 8 2 early 6935, 7b 4096 8 16 2 early 8611,
    7b 2048 8 6 1 - 10643, 7b 1024 8 64 2 early 10203]], longest)
foundry("A100 80 GB, 1,600 Gbit/s", cost.machine(a100, 8, 1600), in_triton.a100, [[
    70b 2048 64 8 4 block 410, 70b 2048 32 2 16 block 373, 30b 8192 8 1 21 early 574, 30b 4096 8 1 21 early 814,
    30b 2048 8 3 21 early 916, 30b 1024 8 6 21 early 946, 30b 512 8 12 21 early 967, 13b 32768 8 1 3 early 1016,
    13b 16384 8 3 3 early 1431, 13b 8192 8 5 3 early 1795, 13b 4096 8 10 3 early 2060, 13b 2048 8 2 3 - 2262,
    13b 1024 8 40 3 early 2330, 7b 65536 8 1 2 early 1013, 7b 32768 8 2 2 early 1672, 7b 16384 8 4 2 early 2453,
    7b 8192 8 8 2 early 3206, 7b 4096 8 16 2 early 3684, 7b 2048 8 6 2 - 4641, 7b 1024 8 64 2 early 4357]], longest)
foundry("A100 40 GB, 1,600 Gbit/s", cost.machine(variant(a100, {memory = 1555e9}), 8, 1600), in_triton.a100, [[
    70b 2048 128 4 1 block 376, 70b 2048 64 2 1 block 276, 30b 2048 128 6 1 block 865, 30b 2048 32 4 1 block 857,
    13b 8192 8 1 16 block 1407, 13b 4096 8 2 16 block 1603, 13b 2048 128 16 1 block 1972, 13b 2048 64 16 1 block 1976,
    13b 2048 32 14 1 block 1998, 13b 2048 16 10 1 block 1993, 13b 2048 8 4 16 block 1668, 13b 1024 8 8 16 block 1727,
    13b 512 8 16 16 block 1763, 7b 16384 8 1 4 block 2249, 7b 8192 8 3 4 block 2887, 7b 4096 8 6 4 block 3366,
    7b 2048 128 18 1 block 3623, 7b 2048 64 18 1 block 3665, 7b 2048 32 18 1 block 3725, 7b 2048 16 16 1 block 3645,
    7b 2048 8 12 4 block 3679, 7b 1024 8 24 4 block 3854, 7b 512 8 48 4 block 3895]],
  {["70b 2048 64"] = "27 % slower than on 128 cards, or than 80 GB cards with that micro-batch"})

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

-- ---- MegaScale's baseline
title = "MegaScale (table 2, Megatron-LM's rows), A100: seconds of a step of 175B"
for _, r in ipairs {{256, 768, 40.0}, {512, 768, 21.2}, {768, 768, 15.2}, {1024, 768, 11.9}, {3072, 6144, 29.02},
  {6144, 6144, 14.78}, {8192, 6144, 12.24}, {12288, 6144, 8.57}} do
  add(title, "tensor 8, pipeline 8", r[1], r[3], function()
    local copies = r[1] / 64
    return seconds(gpt(96, 12288, 128, 64000), {tensor = 8, pipeline = 8, replicate = copies, micro = 1,
      micros = r[2] / copies, interleave = 6, averages_last = true, fused = false, recompute = "attention"}, dgx)
  end)
end

-- ---- DeepSpeed
title = "DeepSpeed ZeRO-3 of 2022 (Azure), A100: TFLOP/s a GPU"
for _, r in ipairs {{"175B, 512 tokens", 256, 204.49, {96, 12288, 96}, 32, 512}, {"530B", 1024, 171.37,
  {105, 20480, 128}, 8, 1024}, {"1T", 1024, 165.36, {128, 25600, 160}, 8, 1024}, {"2T", 1024, 157, {160, 32768, 128}, 8,
  1024}} do
  add(title, r[1] .. ", recomputed", r[2], r[3], function()
    local model = gpt(unpack(r[4]))
    model.seq = r[6]
    return teraflops(model, r[2] * r[5], r[2], seconds(model, {shard = r[2], micro = r[5], recompute = "block",
      fused = false, reshard = true}, dgx))
  end, r[2] == 1024 and "still 14 to 27 % too fast if its gathers and reductions hid beside nothing" or nil)
end
title = "Megatron-Turing NLG (DeepSpeed's pipeline), A100: seconds of a step of 530B"
for _, r in ipairs {{8, 60.1}, {10, 50.2}, {12, 44.4}} do
  add(title, "tensor 8, pipeline 35", 280 * r[1], r[2], function()
    return seconds(gpt(105, 20480, 128), {tensor = 8, pipeline = 35, replicate = r[1], micro = 1, micros = 1920 / r[1],
      recompute = "block", fused = false, sequence = false, averages_last = true}, dgx)
  end, "a long run: Megatron-LM's pipeline in the same layout reached 159 TFLOP/s (SC '21), this one 126")
end

return rows

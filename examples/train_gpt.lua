-- Trains a model of GPT-2's or LLaMA's shape on text files, alone or divided over ranks in any way:
--
--   luajit examples/train_gpt.lua --steps 200 README.md
--   luminary run --nproc 4 examples/train_gpt.lua --dir run book.txt                    rows sharded over 4 ranks
--   luminary run --nproc 8 examples/train_gpt.lua --tensor 2 --pipeline 2 --dir run book.txt
--
-- Ranks form a grid: replicate x shard x context x pipeline x tensor, tensor's ranks next to each other. With --dir a
-- job resumes in any layout; under `luminary run --nnodes MIN:MAX` with the nodes left (docs/howto/elastic.md).
local lm = require "luminary"
local training = require "luminary.cli.training_options"
local nn, F, optim, data, dist = lm.nn, lm.nn.functional, lm.optim, lm.data, lm.dist

local USAGE = [[
usage: luajit train_gpt.lua [options] FILE ...

The files' text is learned byte by byte, or in tokens of --tokenizer; its last tenth is for validation.

  --model NAME        gpt2 or llama                                 (gpt2)
  --tokenizer FILE    tokenizer.json, or the folder that has it; without it, bytes
  --layers N          blocks                                        (4)
  --width N           features of a token                           (128)
  --heads N           heads of attention in a block                 (4)
  --length N          tokens of a sequence                          (64)
  --dropout X         for gpt2                                      (0)
  --steps N           steps of the optimizer                        (1000)
  --batch-size N      sequences a step, over all ranks              (16)
  --microbatches N    parts of a rank's share that run in turn      (1)
  --lr X              learning rate at most; a twentieth of the steps warms up, then cosine  (0.001)
  --weight-decay X    of matrices                                   (0.1)
  --clip X            the gradients' norm is at most that           (1)
  --dtype NAME        float32, float64, or bfloat16: computes in bfloat16, updates in float32  (float32)
  --replicate N       groups of ranks that hold the same shards     (1)
  --context N         ranks that divide each sequence               (1)
  --pipeline N        ranks that divide the blocks                  (1)
  --tensor N          ranks that divide each layer; the other ranks shard its rows  (1)
  --sequence          with --tensor: divide activations between layers, too
  --stages N          stages on a rank; above 1 they are interleaved (1)
  --zero N            2: keep parameters gathered from forward to backward; 1: until the step  (3)
  --offload           shards and the optimizer's state in the host's memory
  --eval-every N      steps between validations                     (200)
  --dir FOLDER        checkpoints; a job begins with the newest one there
  --export FILE       write all weights to one file at the end
]] .. training.USAGE:gsub("  %-%-resume[^\n]*\n", "")

local words = {}
local options, _, refuse, files = require "luminary.cli.script_options"(USAGE, {
  model = {"choice", of = {"gpt2", "llama"}}, dropout = {"number"}, zero = {"choice", of = {"1", "2", "3"}},
  dtype = {"choice", of = {"float32", "float64", "bfloat16"}}, ["max-steps"] = {"natural"},
}, nil, words)
if #words == 0 then refuse "name a text file" end

-- ---- ranks: a grid, of which each layout is a part
local world_batch = options["batch-size"]
options["batch-size"] = 0 -- training.start would divide it over all ranks, of which some have the same sequences
local rank, world, device = training.start(options, refuse)
local inner = options.replicate * options.context * options.pipeline * options.tensor
if world % inner ~= 0 then
  refuse("%d ranks are not divisible by replicate x context x pipeline x tensor = %d", world, inner)
end
local mesh = dist.init_device_mesh(device:match "^%a+",
  {options.replicate, world / inner, options.context, options.pipeline, options.tensor},
  {names = {"replicate", "shard", "context", "pipeline", "tensor"}})
local samples = mesh:flatten({"replicate", "shard"}, "samples") -- ranks with different sequences
mesh:flatten({"shard", "context"}, "rows")
if world_batch % samples:size() ~= 0 then
  refuse("--batch-size %d cannot be shared evenly by %d groups of ranks", world_batch, samples:size())
end
local share = world_batch / samples:size()
if options.export and rank == 0 then files.try("export", options.export) end

-- ---- data: sequences of length + 1 tokens
local texts = {}
for i, path in ipairs(words) do
  local file, problem = io.open(path, "rb")
  texts[i] = file and file:read "*a" or refuse("%s", problem or path .. ": cannot read it; is it a folder?")
  file:close()
end
local tokenizer = options.tokenizer and files.attempt("tokenizer", lm.text.Tokenizer, options.tokenizer)
local text, length = table.concat(texts, "\n"), options.length
local ids = tokenizer and tokenizer(text).input_ids:flatten() or lm.frombuffer(text, {dtype = "uint8"}):long() + 1
local cut = math.floor(0.9 * #ids)
local function set_of(t, name) -- complete batches alone, which all layouts have
  local n = math.floor((#t - 1) / (length * world_batch)) * world_batch
  if n < 1 then refuse("%d tokens for %s are too few for --batch-size and --length", #t, name) end
  return data.TensorDataset(t:unfold(1, length + 1, length):narrow(1, 1, n))
end
local train_set = set_of(ids:narrow(1, 1, cut), "training")
local valid_set = set_of(ids:narrow(1, cut + 1, #ids - cut), "validation")
local function sampler(set, shuffle)
  return data.DistributedSampler(set, {num_replicas = samples:size(), rank = samples:get_local_rank(),
    shuffle = shuffle, seed = options.seed})
end
local loader = data.DataLoader(train_set, {batch_size = share, sampler = sampler(train_set, true)})
local valid_loader = data.DataLoader(valid_set, {batch_size = share, sampler = sampler(valid_set, false)})

-- ---- model: layers divided, then blocks over the pipeline, then rows sharded
local vocab = math.ceil((tokenizer and #tokenizer or 256) / options.tensor) * options.tensor
local net, blocks
if options.model == "gpt2" then
  blocks = "transformer.h."
  net = files.attempt("model", lm.models.gpt2, {
    vocab_size = vocab, n_positions = length, n_embd = options.width, n_layer = options.layers, n_head = options.heads,
    embd_pdrop = options.dropout, attn_pdrop = options.dropout, resid_pdrop = options.dropout,
  })
else
  blocks = "model.layers."
  net = files.attempt("model", lm.models.llama, {
    vocab_size = vocab, max_position_embeddings = length, hidden_size = options.width,
    intermediate_size = 8 * math.ceil(options.width / 3), num_hidden_layers = options.layers,
    num_attention_heads = options.heads,
  })
end
net:to(device, options.dtype == "float64" and "float64" or "float32")
local parameters = 0
for _, p in ipairs(net:parameters()) do parameters = parameters + p:numel() end
if options.tensor > 1 then
  nn.parallel.parallelize(net, mesh["tensor"], net:parallel_plan {sequence = options.sequence})
end
if options.stages > 1 and options.pipeline == 1 then refuse "--stages needs --pipeline" end
local split, stages = {}, options.pipeline * options.stages
if stages > options.layers then refuse("%d stages are more than --layers %d", stages, options.layers) end
for s = 1, stages - 1 do split[s] = blocks .. math.floor(s * options.layers / stages) end
local function loss_of(scores, y)
  if options.tensor > 1 then return nn.parallel.vocabulary_cross_entropy(scores, y, mesh["tensor"]) end
  return F.cross_entropy(scores:flatten(1, 2):to(options.dtype == "float64" and "float64" or "float32"), y:flatten())
end
local pipe = nn.parallel.Pipeline(net, {
  mesh = mesh["pipeline"], split = split, microbatches = options.microbatches, loss = loss_of,
  schedule = options.stages > 1 and "interleaved" or "1f1b",
})
local how = {
  mesh = options.replicate > 1 and mesh[{"replicate", "rows"}] or mesh["rows"], offload = options.offload,
  reshard_after_forward = options.zero == "3", reshard_after_backward = options.zero ~= "1",
  mixed_precision = options.dtype == "bfloat16" and {param_dtype = "bfloat16", reduce_dtype = "float32"} or nil,
}
for _, stage in ipairs(pipe.stages) do
  for name, m in stage:named_modules() do
    if name:match "^(.-%.)%d+$" == blocks and #m:parameters() > 0 then nn.parallel.fully_shard(m, how) end
  end
  nn.parallel.fully_shard(stage, how)
end
local matrices, others = {}, {}
for _, p in ipairs(pipe:parameters()) do table.insert(p.ndim > 1 and matrices or others, p) end
local opt = optim.AdamW({{params = matrices}, {params = others, weight_decay = 0}},
  {lr = options.lr, weight_decay = options["weight-decay"]})
local schedule = optim.lr_scheduler.get_scheduler("warmup", opt,
  {num_training_steps = options.steps, start_factor = 1 / math.ceil(options.steps / 20)})

-- ---- steps
local context = mesh["context"]
local function run(batch)
  local x, y = batch:narrow(2, 1, length):to(device), batch:narrow(2, 2, length):to(device)
  if options.context == 1 then return pipe:step(x, y) end
  return nn.parallel.context_parallel(context, {buffers = {x, y}, dims = {2, 2}}, function(a, b)
    return pipe:step(a:contiguous(), b:contiguous())
  end)
end
local function mean(loss) return dist.all_reduce(loss:double():clone(), {op = "mean"}):item() end
local function validate()
  local sum, n = 0, 0
  pipe:eval()
  for batch in valid_loader:iter() do
    sum, n = sum + mean(lm.no_grad(run, batch)), n + 1
  end
  pipe:train()
  return sum / n
end
local last = math.min(options.steps, options["max-steps"])
local manager = options.dir and lm.checkpoint.Manager {
  dir = options.dir, every = math.max(1, math.min(options["save-every"], last)), on_sigterm = true}
local parts = {model = pipe, optimizer = opt, schedule = schedule, loader = loader, rng = true, epoch = 1}
local saved = manager and manager:load(parts)
local log, step, epoch = files.log("log", options.log, saved), saved and saved.step or 0, saved and saved.epoch or 1
local function say(...) if rank == 0 then print((...):format(select(2, ...))) end end
say("%d parameters on %s", parameters, tostring(mesh))
if saved then say("resuming after step %d", step) end
while step < last do
  parts.epoch = epoch
  for batch in loader:epoch(epoch) do
    local began = lm.time()
    opt:zero_grad()
    local loss = mean(run(batch))
    nn.utils.clip_grad_norm_(pipe:parameters(), options.clip)
    opt:step()
    schedule:step()
    step = step + 1
    local rate = world_batch * length / (lm.time() - began)
    log:log_metrics({loss = loss, tokens_per_second = rate}, step)
    if step % 20 == 0 or step == last then say("step %d  loss %.6f  %.0f tokens/s", step, loss, rate) end
    if step % options["eval-every"] == 0 or step == last then
      say("step %d  validation loss %.6f", step, validate())
    end
    if manager then manager:save(step, parts) end
    if step >= last then break end
  end
  epoch = epoch + 1
end
local weights = options.export and nn.parallel.full_state_dict(pipe, {dst = 0})
if weights then lm.save(options.export, weights) end
dist.destroy_process_group()

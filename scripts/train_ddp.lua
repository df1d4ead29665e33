-- Trains an image classifier on Fashion-MNIST (or MNIST), alone or as one of several processes:
--
--   luajit scripts/train_ddp.lua --model lenet --epochs 3
--   luminary run --nproc 2 scripts/train_ddp.lua --model lenet --epochs 3
--   torchrun --no-python --nproc-per-node 2 luajit scripts/train_ddp.lua --model lenet --epochs 3
--   luajit scripts/train_ddp.lua --init-method tcp://127.0.0.1:29500 --world-size 2 --rank 0   (and 1 beside it)
--
-- All of them do the same arithmetic: a batch is shared by the ranks, and --batch-size counts all of it.
-- It is written to be read from top to bottom: the options, the data, one training step, checkpoints,
-- and the loop that puts them together. The models are in models.lua beside it.

local lm = require "luminary"
local progress = require "luminary.watch.progress"
local class = require "luminary.base.class"
local nn, F, optim, data, dist = lm.nn, lm.nn.functional, lm.optim, lm.data, lm.dist

-- ---- options

local USAGE = [[
usage: luajit train_ddp.lua [options]

  --model NAME        lenet, mlp or resnet18                        (lenet)
  --dataset NAME      fashion-mnist or mnist                        (fashion-mnist)
  --data ROOT         folder of the dataset's IDX files             ($LUMINARY_DATA, /usr/share/datasets)
  --epochs N          passes over the training set                  (5)
  --max-steps N       stop after this many steps in all             (no limit)
  --batch-size N      samples a step, over all ranks                (256)
  --optimizer NAME    SGD, AdamW, LAMB, ...: a class of optim       (SGD)
  --lr X              learning rate, at first or at most            (0.1 for SGD, else the optimizer's own)
  --momentum X        momentum of optimizers that have one          (0.9 for SGD, else the optimizer's own)
  --schedule NAME     of the learning rate over all epochs: constant, step (a tenth after each third), multistep
                      (a tenth after one half and three quarters), linear (to 0), cosine, onecycle, warmup (up in
                      the first twentieth, then as cosine)          (constant)
  --ema DECAY         keep an exponential moving average of the weights, and test it at the end  (none)
  --dtype NAME        float32, float64, bfloat16 or float16         (float32)
  --amp NAME          mixed precision: off, autocast, or apex's O1 or O2; float16 on GPUs, else bfloat16  (off)
  --clip X            the gradients' norm is at most that           (no limit)
  --device NAME       cpu, cuda:0, ...                              (cuda:<local rank> if there is one, else cpu)
  --seed N            of the weights and of the order of samples    (1)
  --threads N         CPU threads of a process                      ($OMP_NUM_THREADS, else all cores, shared)
  --save FILE         write a checkpoint at the end
  --save-every N      ... and every N steps
  --resume FILE       resume from a checkpoint
  --auto-resume FILE  resume from a checkpoint if it is there, and save to it: for restarts
  --log FILE          write one JSON object a step and an epoch; appended to on --resume
  --log-file FILE     the same, for torchrun, which takes --log for its own
  --backend NAME      how processes talk to each other: gloo, mpi, nccl  (gloo, and nccl between GPUs)
  --init-method URL   env://, tcp://host:port or file:///path       (env://)
  --world-size N      number of processes                           (what the launcher says, else 1)
  --rank N            this process among them, from 0               (what the launcher says)
  --timeout X         seconds to wait for another process           (1800)
  --help              print this
]]

local options, given, refuse, files = require "luminary.cli.script_options"(USAGE, {
  model = {"text", "lenet"}, dataset = {"text", "fashion-mnist"}, data = {"text"}, epochs = {"count", 5},
  ["max-steps"] = {"natural", math.huge}, ["batch-size"] = {"count", 256}, optimizer = {"text", "SGD"},
  lr = {"number"}, momentum = {"number"}, schedule = {"text", "constant"}, ema = {"number"}, clip = {"number"},
  dtype = {"dtype", "float32"}, amp = {"text", "off"}, device = {"text"}, seed = {"natural", 1}, threads = {"count"},
  save = {"text"}, ["save-every"] = {"count", math.huge}, resume = {"text"}, ["auto-resume"] = {"text"}, log = {"text"},
  ["log-file"] = {same = "log"}, -- torchrun takes --log for one of its own
  backend = {"text"}, ["init-method"] = {"text", "env://"}, ["world-size"] = {"count"}, rank = {"natural"},
  timeout = {"number", 1800}, ["local-rank"] = {"natural"}, -- what some launchers add; LOCAL_RANK says the same
})

-- ---- a checkpoint decides what the command line leaves open

local function is_there(path)
  local file = io.open(path, "rb")
  return file and file:close()
end

if options["auto-resume"] then
  if given.resume then refuse("--auto-resume and --resume: one of the two") end
  options.resume = is_there(options["auto-resume"]) and options["auto-resume"]
  options.save = options.save or options["auto-resume"]
end

options.optimizer = options.optimizer:lower()

local checkpoint = options.resume and lm.load(options.resume, {mmap = true}) -- its tensors are loaded later
if checkpoint then
  if type(checkpoint) ~= "table" or type(checkpoint.run) ~= "table" or type(checkpoint.position) ~= "table" then
    refuse("--resume: %s is no checkpoint of this script", options.resume)
  end
  for name, value in pairs(checkpoint.run) do
    if given[name] and options[name] ~= value then
      refuse("--%s %s does not go with %s, which has %s", name, options[name], options.resume, value)
    end
    options[name] = value
  end
end

local datasets = {["fashion-mnist"] = data.FashionMNIST, mnist = data.MNIST}
if not datasets[options.dataset] then refuse("--dataset: no dataset '%s'", options.dataset) end

local models = files.beside "models.lua"
if type(models[options.model]) ~= "function" then refuse("--model: no model '%s'", options.model) end

local apex = options.amp == "O1" or options.amp == "O2"
if not apex and options.amp ~= "off" and options.amp ~= "autocast" then
  refuse("--amp: '%s' is none of off, autocast, O1 and O2", options.amp)
end
if options.amp ~= "off" and options.dtype ~= "float32" then
  refuse("--amp %s is for --dtype float32, not %s", options.amp, options.dtype)
end
if options.clip and options.clip <= 0 then refuse("--clip %g: a norm is above 0", options.clip) end
if options.ema and options.ema > 1 then refuse("--ema %g: a decay is from 0 to 1", options.ema) end

-- The optimizers that a step on one batch is enough for, by their names in small letters.
local optimizers = {}
for name, value in pairs(require("luminary.base.options").load_all(optim)) do
  local is_class = type(value) == "table" and rawget(value, "__name")
  if is_class and class.descends(value, optim.Optimizer) then optimizers[name:lower()] = value end
end
optimizers.optimizer, optimizers.zeroredundancyoptimizer, optimizers.lbfgs = nil, nil, nil

local function known(name, table_of)
  if table_of[options[name]] then return end
  local names = {}
  for each in pairs(table_of) do names[#names + 1] = each end
  table.sort(names)
  refuse("--%s: '%s' is none of %s", name, options[name], table.concat(names, ", "))
end
known("optimizer", optimizers)

local schedules = { -- of that many steps
  constant = function() return nil end,
  step = function(opt, steps) return optim.lr_scheduler.StepLR(opt, math.ceil(steps / 3)) end,
  multistep = function(opt, steps)
    return optim.lr_scheduler.MultiStepLR(opt, {math.ceil(steps / 2), math.ceil(steps * 3 / 4)})
  end,
  linear = function(opt, steps)
    return optim.lr_scheduler.LinearLR(opt, {start_factor = 1, end_factor = 0, total_iters = steps})
  end,
  cosine = function(opt, steps) return optim.lr_scheduler.CosineAnnealingLR(opt, steps) end,
  onecycle = function(opt, steps)
    return optim.lr_scheduler.OneCycleLR(opt, opt.param_groups[1].lr, {total_steps = steps, cycle_momentum = false})
  end,
  warmup = function(opt, steps)
    local first = math.ceil(steps / 20)
    return optim.lr_scheduler.SequentialLR(opt, {
      optim.lr_scheduler.LinearLR(opt, {start_factor = 1 / first, total_iters = first}),
      optim.lr_scheduler.CosineAnnealingLR(opt, math.max(1, steps - first)),
    }, {first})
  end,
}
known("schedule", schedules)

-- ---- processes, devices, random numbers: the same model and order on every rank

dist.init_process_group(options.backend, {
  init_method = options["init-method"], timeout = options.timeout,
  world_size = options["world-size"], rank = options.rank,
})
local rank, world = dist.get_rank(), dist.get_world_size()
local device = options.device or dist.local_device()
if given.threads then
  lm.set_num_threads(options.threads)
elseif not lm.getenv "OMP_NUM_THREADS" then -- launchers set it; by hand the ranks of a host share its cores
  local local_ranks = tonumber(lm.getenv "LOCAL_WORLD_SIZE") or world
  lm.set_num_threads(math.max(1, math.floor(lm.get_num_threads() / local_ranks)))
end
lm.manual_seed(options.seed)

if options["batch-size"] % world ~= 0 then
  refuse("--batch-size %d cannot be shared evenly by %d ranks", options["batch-size"], world)
end

-- ---- data: each rank draws its share of every batch

local train_set = datasets[options.dataset] {root = options.data, train = true}
local test_set = datasets[options.dataset] {root = options.data, train = false}

local train_loader = data.DataLoader(train_set, {
  batch_size = options["batch-size"] / world,
  sampler = data.DistributedSampler(train_set, {seed = options.seed}),
})
local test_share = data.Subset(test_set, lm.arange(rank + 1, test_set:len() + 1, world, {dtype = "int64"}))
local test_loader = data.DataLoader(test_share, {batch_size = options["batch-size"] / world})

-- ---- model and optimizer

local full = options.dtype == "float64" and "float64" or "float32" -- what averages are kept in
local net = models[options.model]():to(device, full)
local average = options.ema and optim.AveragedModel(net, {decay = options.ema})
net:to(options.dtype)

local Optimizer, settings = optimizers[options.optimizer], {lr = options.lr, momentum = options.momentum}
if options.optimizer == "sgd" then settings.lr, settings.momentum = settings.lr or 0.1, settings.momentum or 0.9 end
if settings.momentum and not Optimizer.spec.momentum then
  refuse("--momentum: %s has none", Optimizer.__name)
end
local made, opt = pcall(Optimizer, net:parameters(), settings)
if not made then refuse("--optimizer %s: %s", options.optimizer, (tostring(opt):gsub("^.-:%d+: ", ""))) end
if apex then net, opt = lm.amp.initialize(net, opt, {opt_level = options.amp}) end
local schedule = schedules[options.schedule](opt, options.epochs * train_loader:len())
net = nn.parallel.DistributedDataParallel(net)

local mode = {device = device, enabled = options.amp == "autocast"} -- bfloat16 has float32's range, and needs no scale
local scaler = lm.GradScaler {enabled = mode.enabled and device:find "^cuda" ~= nil}
local function output(model, dtype, x)
  return lm.autocast(mode, function() return model(x:to(device, dtype)) end)
end

-- One step on one batch; returns the mean loss over the whole batch of all ranks, and its size.
local function train_step(x, y)
  local loss = F.cross_entropy(output(net, options.dtype, x), y:to(device))
  opt:zero_grad()
  if apex then
    lm.amp.scale_loss(loss, opt, function(scaled) scaled:backward() end)
  else
    scaler:scale(loss):backward()
    scaler:unscale_(opt)
  end
  if options.clip then nn.utils.clip_grad_norm_(lm.amp.master_params(opt), options.clip) end
  if apex then
    opt:step()
  else
    scaler:step(opt)
    scaler:update()
  end
  if schedule then schedule:step() end
  if average then average:update(net) end
  local n = y:size(1)
  local sums = dist.all_reduce(lm.tensor({loss:item() * n, n}, {dtype = "float64"}))
  return sums[1] / sums[2], sums[2]
end

-- The share of the test set's images that a model classifies rightly.
local function test_accuracy(model, dtype)
  model:eval()
  local accuracy = lm.metrics.Accuracy("multiclass", {num_classes = 10})
  lm.no_grad(function()
    for x, y in test_loader:iter() do accuracy:update(output(model, dtype, x), y:to(device)) end
  end)
  model:train()
  return accuracy:compute():item() -- over all ranks
end

-- ---- checkpoints: everything the next step depends on

local position = {step = 0, epoch = 1, batch = 0} -- steps made in all; the epoch; batches made of it

local apex_scales = {
  state_dict = function() return lm.amp.state_dict() end,
  load_state_dict = function(_, state) lm.amp.load_state_dict(state) end,
}
local parts = {
  model = net, optimizer = opt, schedule = schedule, average = average, scales = apex and apex_scales or scaler,
  rng = true, position = position,
  run = {
    model = options.model, dataset = options.dataset, dtype = options.dtype, seed = options.seed,
    ["batch-size"] = options["batch-size"], amp = options.amp, clip = options.clip, optimizer = options.optimizer,
    schedule = options.schedule, ema = options.ema,
    epochs = schedule and options.epochs, lr = schedule and opt.defaults.lr, -- a schedule is of both
  },
}

local function save()
  if options.save then lm.checkpoint.save(options.save, parts) end
end

if checkpoint then
  if average and not checkpoint.average then parts.average = nil end -- it begins here
  position = lm.checkpoint.load(options.resume, parts).position
  parts.average, parts.position = average, position
  for _, group in ipairs(opt.param_groups) do -- named on the command line, these win
    if given.lr and not schedule then group.lr = options.lr end
    if given.momentum then group.momentum = options.momentum end
  end
  if rank == 0 then print(("resuming after step %d"):format(position.step)) end
end

-- ---- reports: JSON to the log, a progress line on a terminal, plain lines elsewhere

local log = options.log and rank == 0 and files.log("log", options.log, options.resume)
if options.save then
  files.attempt("save", require("luminary.checkpoint.files").check_path, "checkpoint", options.save)
  if rank == 0 then files.try("save", options.save) end
end

local steps_an_epoch = train_loader:len()
local last_step = math.min(options.epochs * steps_an_epoch, options["max-steps"])
local bar = rank == 0 and progress.new(last_step, position.step)

local function report_step(loss, samples, seconds)
  local step, epoch = position.step, position.epoch
  if log then log:log_metrics({epoch = epoch, loss = loss, seconds = seconds}, step) end
  if not bar then return end
  local text = ("epoch %d  loss %.4f  %.0f samples/s"):format(epoch, loss, samples / seconds)
  if bar.visible then
    bar:update(step, text)
  elseif step % 50 == 0 or step == last_step then
    print(("step %d/%d  %s"):format(step, last_step, text))
  end
end

local function report_average(accuracy)
  if log then log:log_metrics {average_test_accuracy = accuracy} end
  if rank == 0 then print(("average of the weights: test accuracy %.4f"):format(accuracy)) end
end

local function report_epoch(accuracy, seconds)
  if log then log:log_metrics {epoch = position.epoch, test_accuracy = accuracy, seconds = seconds} end
  if bar then
    bar:clear()
    print(("epoch %d  test accuracy %.4f  %.2f s"):format(position.epoch, accuracy, seconds))
  end
end

-- ---- the loop

while position.step < last_step do
  local epoch_began = lm.time()
  for x, y in train_loader:epoch(position.epoch, position.batch + 1) do
    local step_began = lm.time()
    local loss, samples = train_step(x, y)
    position.step, position.batch = position.step + 1, position.batch + 1
    report_step(loss, samples, lm.time() - step_began)
    if position.step % options["save-every"] == 0 and position.step < last_step then save() end
    if position.step >= last_step then break end
  end
  report_epoch(test_accuracy(net, options.dtype), lm.time() - epoch_began) -- also where --max-steps ends an epoch early
  if position.batch >= steps_an_epoch then position.epoch, position.batch = position.epoch + 1, 0 end
end

if average then report_average(test_accuracy(average, full)) end
save()
dist.destroy_process_group()

-- Trains an image classifier on Fashion-MNIST (or MNIST), alone or as one of several processes:
--
--   luajit scripts/train_ddp.lua --model lenet --epochs 3
--   luminary run --nproc 2 scripts/train_ddp.lua --model lenet --epochs 3
--   torchrun --no-python --nproc-per-node 2 luajit scripts/train_ddp.lua --model lenet --epochs 3
--   luajit scripts/train_ddp.lua --init-method tcp://127.0.0.1:29500 --world-size 2 --rank 0   (and 1 beside it)
--
-- All of them do the same arithmetic: a batch is shared by the ranks, and --batch-size counts all of it.
local lm = require "luminary"
local training = require "luminary.cli.training_options"
local nn, F, optim, data, dist = lm.nn, lm.nn.functional, lm.optim, lm.data, lm.dist

local USAGE = [[
usage: luajit train_ddp.lua [options]

  --model NAME        lenet, mlp or resnet18                        (lenet)
  --dataset NAME      fashion-mnist or mnist                        (fashion-mnist)
  --data ROOT         folder of the dataset's IDX files             ($LUMINARY_DATA, /usr/share/datasets)
  --epochs N          passes over the training set                  (5)
  --batch-size N      samples a step, over all ranks                (256)
  --optimizer NAME    SGD, AdamW, LAMB, ...: a class of optim       (SGD)
  --lr X              learning rate, at first or at most            (0.1 for SGD, else the optimizer's own)
  --momentum X        momentum of optimizers that have one          (0.9 for SGD, else the optimizer's own)
  --schedule NAME     of the learning rate over all epochs: constant, step (a tenth after each third), multistep (after
                      1/2 and 3/4), linear, cosine (to 0), onecycle, warmup (a twentieth, then cosine)  (constant)
  --ema X             keep an exponential moving average of the weights with this decay, and test it at the end
  --dtype NAME        float32, float64, bfloat16 or float16         (float32)
  --amp NAME          mixed precision: off, autocast, or apex's O1 or O2; float16 on GPUs, else bfloat16  (off)
  --clip X            the gradients' norm is at most that
  --save FILE         write a checkpoint at the end
  --auto-resume FILE  resume from a checkpoint if it is there, and save to it: for restarts
]] .. training.USAGE

local datasets = {["fashion-mnist"] = data.FashionMNIST, mnist = data.MNIST}
local options, given, refuse, files = require "luminary.cli.script_options"(USAGE, {
  dataset = {"choice", of = datasets}, optimizer = {"choice", of = optim.list_optimizers()},
  schedule = {"choice", of = {"constant", "cosine", "linear", "multistep", "onecycle", "step", "warmup"}},
  amp = {"choice", of = "off, autocast, O1 and O2"}, clip = {"positive"}, ["max-steps"] = {"natural"},
  ["auto-resume"] = {"text", excludes = "resume"},
})
local checkpoint, path = files.resume(options.resume, options["auto-resume"]) -- sets options not on the command line
local models = files.models()
if options.amp ~= "off" and options.dtype ~= "float32" then refuse("--amp %s: is for --dtype float32", options.amp) end
if options.ema and options.ema > 1 then refuse("--ema %g: a decay is from 0 to 1", options.ema) end

-- ---- data: each rank has a share of every batch
local rank, world, device, share = training.start(options, refuse)
local train_set = datasets[options.dataset] {root = options.data, train = true}
local test_set = datasets[options.dataset] {root = options.data, train = false}
local sampler = data.DistributedSampler(train_set, {seed = options.seed})
local train_loader = data.DataLoader(train_set, {batch_size = share, sampler = sampler})
local test_share = data.Subset(test_set, lm.arange(rank + 1, #test_set + 1, world))
local test_loader = data.DataLoader(test_share, {batch_size = share})

-- ---- model, optimizer, schedule
local net = models[options.model]():to(device, options.dtype)
local average = options.ema and optim.AveragedModel(net, {decay = options.ema})
if average and options.dtype ~= "float64" then average:to "float32" end
local defaults = options.optimizer == "sgd" and not checkpoint and {lr = 0.1, momentum = 0.9} or {}
local opt = files.attempt("optimizer " .. options.optimizer, optim.get_optimizer, options.optimizer, net:parameters(),
  {lr = options.lr or defaults.lr})
if options.momentum and not opt.defaults.momentum then refuse("--momentum: %s has none", opt.__name) end
options.lr = opt.defaults.lr
local is_apex = options.amp == "O1" or options.amp == "O2"
if is_apex then net, opt = lm.amp.initialize(net, opt, {opt_level = options.amp}) end
net = nn.parallel.DistributedDataParallel(net)
local steps = options.epochs * #train_loader
local schedule = options.schedule ~= "constant" and optim.lr_scheduler.get_scheduler(options.schedule, opt, {
  num_training_steps = steps, start_factor = 1 / math.ceil(steps / 20),
}) or nil
local autocast = {device = device, enabled = options.amp == "autocast"}
local scaler = lm.GradScaler {enabled = autocast.enabled and device:find "^cuda" ~= nil} -- bfloat16 needs none

-- ---- checkpoints: everything that the next step depends on
local position = checkpoint and checkpoint.position or {step = 0, epoch = 1, batch = 0} -- batch: of the epoch
local apex_scales = {
  state_dict = function() return lm.amp.state_dict() end,
  load_state_dict = function(_, state) lm.amp.load_state_dict(state) end,
}
local parts = {
  model = net, optimizer = opt, schedule = schedule, average = average, rng = true,
  scales = is_apex and apex_scales or scaler, position = position, run = files.run_of {
    "model", "dataset", "dtype", "seed", "batch-size", "amp", "clip", "optimizer", "schedule", "ema",
    schedule and "epochs", schedule and "lr", -- a schedule depends on them
  },
}
if checkpoint then -- a checkpoint without an average begins one here
  lm.checkpoint.load(path, parts, {strict = not average or checkpoint.average ~= nil})
end
for _, group in ipairs(opt.param_groups) do -- named on the command line, these win
  group.momentum = options.momentum or defaults.momentum or group.momentum
  if given.lr and not schedule then group.lr = options.lr end
end
local save = files.saver("save", options.save or options["auto-resume"])

-- ---- one step: returns the mean loss over the batch of all ranks, and its size
local function loss_of(x, y) return F.cross_entropy(net(x:to(device, options.dtype)), y:to(device)) end
local function train_step(x, y)
  local loss = lm.autocast(autocast, loss_of, x, y)
  opt:zero_grad()
  if is_apex then
    lm.amp.scale_loss(loss, opt, function(scaled) scaled:backward() end)
  else
    scaler:scale(loss):backward()
    scaler:unscale_(opt)
  end
  if options.clip then nn.utils.clip_grad_norm_(lm.amp.master_params(opt), options.clip) end
  scaler:step(opt)
  scaler:update()
  if schedule then schedule:step() end
  if average then average:update(net) end
  local sums = dist.all_reduce(lm.tensor({loss:item() * #y, #y}, {dtype = "float64"}))
  return sums[1] / sums[2], sums[2]
end

local accuracy = lm.metrics.Accuracy("multiclass", {num_classes = 10}) -- over all ranks
local function test(model)
  return lm.autocast(autocast, lm.metrics.evaluate, model, test_loader, accuracy):item()
end

-- ---- the loop
local log = files.log("log", options.log, checkpoint)
local last_step = math.min(steps, options["max-steps"])
local bar = lm.watch.progress.new(last_step, {done = position.step, desc = "step"})
if checkpoint then bar:write(("resuming after step %d"):format(position.step)) end
while position.step < last_step do
  local epoch, epoch_began = position.epoch, lm.time()
  for x, y in train_loader:epoch(epoch, position.batch + 1) do
    local began = lm.time()
    local loss, samples = train_step(x, y)
    local seconds = lm.time() - began
    position.step, position.batch = position.step + 1, position.batch + 1
    log:log_metrics({epoch = epoch, loss = loss, seconds = seconds}, position.step)
    bar:update(position.step, ("epoch %d  loss %.4f  %.0f samples/s"):format(epoch, loss, samples / seconds))
    if position.step >= last_step then break end
    if position.step % options["save-every"] == 0 then save(parts) end
  end
  local right, seconds = test(net), lm.time() - epoch_began
  log:log_metrics {epoch = epoch, test_accuracy = right, seconds = seconds}
  bar:write(("epoch %d  test accuracy %.4f  %.2f s"):format(epoch, right, seconds))
  if position.batch >= #train_loader then position.epoch, position.batch = epoch + 1, 0 end
end
if average then
  local right = test(average)
  log:log_metrics {average_test_accuracy = right}
  bar:write(("average of the weights: test accuracy %.4f"):format(right))
end
save(parts)
dist.destroy_process_group()

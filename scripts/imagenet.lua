-- Trains a classifier of images on folders of files, as PyTorch's examples/imagenet does: data/train/<class>/<file>
-- and data/val/<class>/<file>. On one device, on several by nn.DataParallel, or as one of many processes:
--
--   luajit scripts/imagenet.lua --data /imagenet --arch resnet50
--   luajit scripts/imagenet.lua --data /imagenet --data-parallel
--   luminary run --nproc 8 scripts/imagenet.lua --data /imagenet --amp
--   luminary run --nnodes 2 --node-rank 0 --nproc 8 --master-addr 10.0.0.1 scripts/imagenet.lua …   (and 1 beside it)
--   luajit scripts/imagenet.lua --data /imagenet --resume model_best.safetensors --evaluate
--
-- After each epoch OUTPUT/checkpoint.safetensors is what a run continues from and OUTPUT/model_best.safetensors the
-- best so far; both are whole at any moment. A run resumed, within an epoch too, makes the steps that it would have
-- made.

local lm = require "luminary"
local nn, optim, data, dist = lm.nn, lm.optim, lm.data, lm.dist

-- ---- options

local USAGE = [[
usage: luajit imagenet.lua [options]

  --data DIR          folder with train/ and val/, a folder for each class in both  (imagenet)
  -a, --arch NAME     a network of lm.models: resnet18, resnet50, vgg_f, ...  (resnet18)
  --pretrained FILE   begin with these weights: a state_dict in safetensors, or a checkpoint of this script
  --image-size N      pixels of a side that the network sees        (224)
  --dummy             random images of 1,000 classes instead of files
  --dummy-images N    their number; 1/25 as many are tested   (1281167)
  --epochs N          passes over the training set; more, when resumed, but with cosine  (90)
  --max-steps N       stop after this many steps in all             (no limit)
  -b, --batch-size N  samples a step, over all ranks and devices    (256)
  --lr X              learning rate, at most                        (0.1)
  --momentum X        of SGD                                        (0.9)
  --wd, --weight-decay X  of SGD                                    (1e-4)
  --schedule NAME     of the learning rate: step (a tenth after every --step-size epochs), cosine (to 0) or constant
                                                                    (step)
  --step-size N       epochs                                        (30)
  --warmup X          epochs in which the learning rate rises to it (0)
  --label-smoothing X that much of each label goes to all classes   (0)
  --amp               mixed precision: float16 on GPUs, with a scaled loss, else bfloat16
  --sync-bn           batch norms' statistics are of all ranks' samples
  -e, --evaluate      test once, and end
  --resume FILE       resume from a checkpoint
  --auto-resume       resume from OUTPUT/checkpoint.safetensors if it is there: for restarts
  --output DIR        where checkpoints go                          (.)
  --save-every N      write a checkpoint every N steps, too
  -p, --print-freq N  a line every N batches                        (10)
  --log FILE          write one JSON object a step and an epoch; appended to when resumed
  -j, --workers N     threads of each process that read and decode  (4)
  --threads N         CPU threads of a process                      ($OMP_NUM_THREADS, else all cores, shared)
  --device NAME       cpu, cuda:0, ...                              (cuda:<local rank> if there is one, else cpu)
  --no-accel          the CPU, also where there is a GPU
  --data-parallel     one process splits each batch over --devices
  --devices NAMES     such as cuda:0,cuda:1                         (all CUDA devices, else cpu)
  --seed N            of weights, order and crops                   (1)
  --backend NAME      how processes talk to each other: gloo, mpi, nccl  (gloo, and nccl between GPUs)
  --init-method URL   env://, tcp://host:port or file:///path       (env://)
  --world-size N      number of processes                           (what the launcher says, else 1)
  --rank N            this process among them, from 0               (what the launcher says)
  --timeout X         seconds to wait for another process           (1800)
  --help              print this
]]

local options, given, refuse, files = require "luminary.cli.script_options"(USAGE, {
  data = {"text", "imagenet"}, arch = {"text", "resnet18"}, pretrained = {"text"}, ["image-size"] = {"count", 224},
  dummy = {"flag"}, ["dummy-images"] = {"count", 1281167}, epochs = {"count", 90},
  ["max-steps"] = {"count", math.huge}, ["batch-size"] = {"count", 256}, lr = {"number", 0.1},
  momentum = {"number", 0.9}, ["weight-decay"] = {"number", 1e-4}, schedule = {"text", "step"},
  ["step-size"] = {"count", 30}, warmup = {"number", 0}, ["label-smoothing"] = {"number", 0},
  amp = {"flag"}, ["sync-bn"] = {"flag"}, evaluate = {"flag"}, resume = {"text"}, ["auto-resume"] = {"flag"},
  output = {"text", "."}, ["save-every"] = {"count", math.huge}, ["print-freq"] = {"count", 10}, log = {"text"},
  workers = {"natural", 4}, threads = {"count"}, device = {"text"}, ["no-accel"] = {"flag"},
  ["data-parallel"] = {"flag"}, devices = {"devices"}, seed = {"natural", 1}, backend = {"text"},
  ["init-method"] = {"text", "env://"}, ["world-size"] = {"count"}, rank = {"natural"}, timeout = {"number", 1800},
  ["local-rank"] = {"natural"}, -- what some launchers add; LOCAL_RANK says the same
  a = {same = "arch"}, b = {same = "batch-size"}, e = {same = "evaluate"}, j = {same = "workers"},
  p = {same = "print-freq"}, wd = {same = "weight-decay"}, -- the example's
  ["dist-url"] = {same = "init-method"}, ["dist-backend"] = {same = "backend"},
  gpu = {refuse = "--device cuda:0 is that"},
  ["multiprocessing-distributed"] = {refuse = "luminary run --nproc 8 imagenet.lua … starts the processes"},
})

-- What f returns; its error is one of the option's.
local function need(option, f, ...)
  local ok, value = pcall(f, ...)
  if ok then return value end
  return refuse("--%s: %s", option, (tostring(value):gsub("^[^:]*:%d+: ", "")))
end

local latest, best_path = options.output .. "/checkpoint.safetensors", options.output .. "/model_best.safetensors"
if options["auto-resume"] then
  if given.resume then refuse("--auto-resume and --resume: one of the two") end
  local file = io.open(latest, "rb")
  if file then
    file:close()
    options.resume = latest
  end
end

-- A checkpoint decides what the command line leaves open.
local checkpoint = options.resume and need("resume", lm.load, options.resume, {mmap = true})
if checkpoint then
  if type(checkpoint) ~= "table" or type(checkpoint.run) ~= "table" or type(checkpoint.position) ~= "table" then
    refuse("--resume: %s is no checkpoint of this script", options.resume)
  end
  for name, value in pairs(checkpoint.run) do
    local longer = name == "epochs" and checkpoint.run.schedule ~= "cosine" -- which is as long as all epochs
    if given[name] and longer then
      value = options.epochs
    elseif given[name] and options[name] ~= value then
      refuse("--%s %s does not go with %s, which has %s", name, tostring(options[name]), options.resume,
        tostring(value))
    end
    options[name] = value
  end
end

local function choice(name, known)
  if known[options[name]] then return end
  local names = {}
  for each in pairs(known) do names[#names + 1] = each end
  table.sort(names)
  refuse("--%s: '%s' is none of %s", name, options[name], table.concat(names, ", "))
end

local archs = {}
for name, make in pairs(lm.models) do archs[name] = make end
for name in ("mlp lenet gpt2 llama bert unet2d"):gmatch "%S+" do archs[name] = nil end -- not of photos' classes
choice("arch", archs)
choice("schedule", {step = true, cosine = true, constant = true})
if options["label-smoothing"] > 1 then refuse("--label-smoothing %g: 1 at most", options["label-smoothing"]) end
if options.warmup > options.epochs then
  refuse("--warmup %g: there are %d epochs in all", options.warmup, options.epochs)
end
if options["sync-bn"] and options["data-parallel"] then
  refuse("--sync-bn: is for ranks; --data-parallel has statistics for each device")
end
if given["no-accel"] and given.device then refuse("--no-accel and --device: one of the two") end
if given.devices and not options["data-parallel"] then refuse("--devices: is for --data-parallel") end

-- ---- processes and devices

dist.init_process_group(options.backend, {
  init_method = options["init-method"], timeout = options.timeout,
  world_size = options["world-size"], rank = options.rank,
})
local rank, world = dist.get_rank(), dist.get_world_size()
local device = options["no-accel"] and "cpu" or options.device or dist.local_device()
local devices = {device}
if options["data-parallel"] then
  if world > 1 then refuse("--data-parallel: is one process's way; the %d here have a device each", world) end
  devices = options["no-accel"] and not given.devices and {"cpu"} or options.devices
  device = devices[1]
end
if given.threads then
  lm.set_num_threads(options.threads)
elseif not lm.getenv "OMP_NUM_THREADS" then -- launchers set it; by hand the ranks of a host share its cores
  local local_ranks = tonumber(lm.getenv "LOCAL_WORLD_SIZE") or world
  lm.set_num_threads(math.max(1, math.floor(lm.get_num_threads() / local_ranks)))
end
if options["batch-size"] % world ~= 0 then
  refuse("--batch-size %d cannot be shared evenly by %d ranks", options["batch-size"], world)
end

if rank == 0 and not options.evaluate then files.try("output", latest) end

local function say(...)
  if rank == 0 then print(string.format(...)) end
end

-- ---- data

local train_set, val_set, classes
do
  local size, T = options["image-size"], lm.vision.transforms
  local normalize = T.Normalize({0.485, 0.456, 0.406}, {0.229, 0.224, 0.225}) -- ImageNet's mean and deviation
  if options.dummy then
    local function fake(n)
      return data.FakeData {
        size = n, image_size = {3, size, size}, num_classes = 1000, transform = T.Compose {T.ToTensor(), normalize},
      }
    end
    classes = 1000
    train_set, val_set = fake(options["dummy-images"]), fake(math.ceil(options["dummy-images"] / 25))
  else
    train_set = need("data", data.ImageFolder, options.data .. "/train", {transform = T.Compose {
      T.RandomResizedCrop(size), T.RandomHorizontalFlip(), T.ToTensor(), normalize,
    }})
    val_set = need("data", data.ImageFolder, options.data .. "/val", {transform = T.Compose {
      T.Resize(math.floor(size * 256 / 224 + 0.5)), T.CenterCrop(size), T.ToTensor(), normalize,
    }})
    classes = #train_set.classes
    if table.concat(val_set.classes, "\n") ~= table.concat(train_set.classes, "\n") then
      refuse("--data: train/ has %d classes and val/ %d, or of other names", classes, #val_set.classes)
    end
  end
end

-- Each rank draws its share of every batch, and crops with random numbers of its own.
local function loader_of(set, sampler)
  return data.DataLoader(set, {
    batch_size = options["batch-size"] / world, sampler = sampler, num_workers = options.workers,
    persistent_workers = options.workers > 0, pin_memory = device:find "^cuda" ~= nil, seed = options.seed + rank,
  })
end
local train_loader = loader_of(train_set, data.DistributedSampler(train_set, {seed = options.seed}))
local val_loader = loader_of(data.Subset(val_set, lm.arange(rank + 1, #val_set + 1, world, {dtype = "int64"})))

-- ---- model, optimizer, schedule

lm.manual_seed(options.seed)
say("=> %s '%s'", options.pretrained and "using pre-trained model" or "creating model", options.arch)
local net = archs[options.arch] {num_classes = classes}
if options.pretrained then
  local weights = need("pretrained", lm.load, options.pretrained)
  if type(weights.run) == "table" then weights = weights.model end
  need("pretrained", net.load_state_dict, net, weights)
end
if options["sync-bn"] then net = nn.SyncBatchNorm.convert_sync_batchnorm(net) end
local model = net:to(device) -- as it runs
if options["data-parallel"] then
  model = nn.DataParallel(net, {device_ids = devices})
elseif world > 1 then
  model = nn.parallel.DistributedDataParallel(net)
end
local criterion = nn.CrossEntropyLoss {label_smoothing = options["label-smoothing"]}
local opt = optim.SGD(net:parameters(), {
  lr = options.lr, momentum = options.momentum, weight_decay = options["weight-decay"],
})
local amp = {device = device, enabled = options.amp}
local scaler = lm.GradScaler {enabled = options.amp and device:find "^cuda" ~= nil}

-- In steps, so that it is the same within epochs; `rising` of them are the warm-up.
local epoch_steps = #train_loader
local rising = math.floor(options.warmup * epoch_steps + 0.5)
local schedule
do
  local S, all = optim.lr_scheduler, options.epochs * epoch_steps
  local list = {}
  if rising > 0 then list[1] = S.LinearLR(opt, {start_factor = 1 / (rising + 1), total_iters = rising}) end
  if options.schedule == "cosine" then
    list[#list + 1] = S.CosineAnnealingLR(opt, math.max(1, all - rising))
  else
    local drops, every = {}, options["step-size"] * epoch_steps
    for k = 1, options.schedule == "step" and 20 or 0 do drops[k] = math.max(1, k * every - rising) end -- to nothing
    list[#list + 1] = S.MultiStepLR(opt, drops, {gamma = 0.1})
  end
  schedule = #list == 1 and list[1] or S.SequentialLR(opt, list, {rising})
end

-- ---- what is printed: as the example does it

local Meter = {}
Meter.__index = Meter
local function meter(name, form)
  return setmetatable({name = name, form = form, last = 0, sum = 0, n = 0}, Meter)
end
function Meter:update(sum, n) self.last, self.sum, self.n = sum / n, self.sum + sum, self.n + n end
function Meter:average() return self.sum / math.max(1, self.n) end
function Meter:text()
  return ("%s %s (%s)"):format(self.name, self.form, self.form):format(self.last, self:average())
end

local function meters_of(prefix, batches)
  local m = {
    time = meter("Time", "%6.3f"), data = meter("Data", "%6.3f"), loss = meter("Loss", "%.4e"),
    top1 = meter("Acc@1", "%6.2f"), top5 = meter("Acc@5", "%6.2f"),
  }
  local digits = #tostring(batches)
  function m.print(batch)
    say("%s[%" .. digits .. "d/%d]\t%s\t%s\t%s\t%s\t%s", prefix, batch, batches, m.time:text(), m.data:text(),
      m.loss:text(), m.top1:text(), m.top5:text())
    io.stdout:flush()
  end
  return m
end

-- Sums over a batch: of losses, of those right at the first guess and within five. On the device: to read them waits.
local function sums_of(loss, output, y)
  return lm.no_grad(function()
    local _, guesses = output:float():topk(math.min(5, classes), 2)
    local hits = guesses:eq(y:unsqueeze(2)):float()
    return lm.stack {loss:float() * y:size(1), hits[{{}, 1}]:sum(), hits:sum()}
  end)
end

local log = options.log and rank == 0 and files.log("log", options.log, checkpoint)

-- ---- checkpoints

local step, epoch, batch, best = 0, 0, 0, 0 -- steps made in all; the epoch, from 0; batches made of it; best accuracy

local parts = {
  model = net, optimizer = opt, schedule = schedule, scaler = scaler,
  run = {
    arch = options.arch, ["image-size"] = options["image-size"], ["batch-size"] = options["batch-size"],
    epochs = options.epochs, lr = options.lr, momentum = options.momentum, ["weight-decay"] = options["weight-decay"],
    schedule = options.schedule, ["step-size"] = options["step-size"], warmup = options.warmup,
    ["label-smoothing"] = options["label-smoothing"], amp = options.amp, seed = options.seed,
  },
}

local function save(path)
  parts.position, parts.best = {step = step, epoch = epoch, batch = batch}, best
  lm.checkpoint.save(path, parts)
end

if checkpoint then
  local wanted = options.evaluate and {model = net} or {
    model = net, optimizer = opt, schedule = schedule,
    scaler = next(checkpoint.scaler) and scaler or nil, -- empty if that run scaled nothing
  }
  lm.checkpoint.load(options.resume, wanted)
  step, epoch, batch = checkpoint.position.step, checkpoint.position.epoch, checkpoint.position.batch
  best = checkpoint.best
  say("=> loaded checkpoint '%s' (epoch %d, batch %d)", options.resume, epoch, batch)
end

-- ---- one epoch, and the test

local function to_device(x, y)
  return x:to(device, {non_blocking = true}), y:to(device, {non_blocking = true})
end

local function train()
  local m, seen, total, ended = meters_of(("Epoch: [%d]"):format(epoch), epoch_steps), 0, nil, lm.time()
  model:train()
  for x, y in train_loader:epoch(epoch, batch + 1) do
    m.data:update(lm.time() - ended, 1)
    lm.manual_seed((options.seed % 2 ^ 16 * 4096 + rank) * 2 ^ 24 + step) -- so that a resumed run drops out the same
    x, y = to_device(x, y)
    local output, loss
    lm.autocast(amp, function()
      output = model(x)
      loss = criterion(output, y)
    end)
    opt:zero_grad()
    scaler:scale(loss):backward()
    scaler:step(opt)
    scaler:update()
    local lr = opt.param_groups[1].lr
    schedule:step()
    step, batch = step + 1, batch + 1

    local sums, n = sums_of(loss, output, y), y:size(1)
    total = total and total:add_(sums) or sums:clone()
    seen = seen + n
    m.time:update(lm.time() - ended, 1)
    if log then log:log_metrics({epoch = epoch, loss = sums[1] / n, lr = lr}, step) end
    if (batch - 1) % options["print-freq"] == 0 or batch == epoch_steps or step >= options["max-steps"] then
      local now, all = sums:tolist(), total:tolist()
      for i, each in ipairs {m.loss, m.top1, m.top5} do
        local scale = i > 1 and 100 or 1
        each.last, each.sum, each.n = now[i] / n * scale, all[i] * scale, seen
      end
      m.print(batch)
    end
    if step >= options["max-steps"] then break end
    if step % options["save-every"] == 0 then save(latest) end
    ended = lm.time()
  end
end

-- The share of the test set's images that the model classifies rightly at the first guess, in percent.
local function validate()
  local batches = #val_loader
  local m, total, ended = meters_of("Test: ", batches), lm.zeros({4}, {dtype = "float64"}), lm.time()
  local eval = options["data-parallel"] and model or net
  for _, buffer in ipairs(net:buffers()) do dist.broadcast(buffer, 0) end -- those that a checkpoint has
  eval:eval()
  lm.no_grad(function()
    local number = 0
    for x, y in val_loader:epoch(0) do
      m.data:update(lm.time() - ended, 1)
      x, y = to_device(x, y)
      local output, loss
      lm.autocast(amp, function()
        output = eval(x)
        loss = criterion(output, y)
      end)
      local n = y:size(1)
      local sums = sums_of(loss, output, y):cpu()
      total[{{1, 3}}] = total[{{1, 3}}] + sums
      total[4] = total[4] + n
      for i, each in ipairs {m.loss, m.top1, m.top5} do each:update(sums[i] * (i > 1 and 100 or 1), n) end
      m.time:update(lm.time() - ended, 1)
      number = number + 1
      if (number - 1) % options["print-freq"] == 0 or number == batches then m.print(number) end
      ended = lm.time()
    end
  end)
  dist.all_reduce(total)
  local loss, top1, top5 = total[1] / total[4], 100 * total[2] / total[4], 100 * total[3] / total[4]
  say(" *   Acc@1 %.3f Acc@5 %.3f", top1, top5)
  if log then log:log_metrics({epoch = epoch, test_loss = loss, top1 = top1, top5 = top5}, step) end
  return top1
end

-- ---- the loop

if options.evaluate then
  validate()
else
  while epoch < options.epochs and step < options["max-steps"] do
    train()
    if batch < epoch_steps then -- --max-steps ends it here
      save(latest)
      break
    end
    local top1 = validate()
    local better = top1 > best
    best, epoch, batch = math.max(best, top1), epoch + 1, 0
    save(latest)
    if better then save(best_path) end
  end
end
dist.destroy_process_group()

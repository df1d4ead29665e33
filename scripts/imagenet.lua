-- Trains a classifier of images on folders of files, as PyTorch's examples/imagenet does: data/train/<class>/<file>
-- and data/val/<class>/<file>. On one device, on several by nn.DataParallel, or as one of many processes:
--
--   luajit scripts/imagenet.lua --data /imagenet --arch resnet50
--   luajit scripts/imagenet.lua --data /imagenet --data-parallel
--   luminary run --nproc 8 scripts/imagenet.lua --data /imagenet --amp
--   luminary run --nnodes 2 --node-rank 0 --nproc 8 --master-addr 10.0.0.1 scripts/imagenet.lua …   (and 1 beside it)
--   luajit scripts/imagenet.lua --data /imagenet --resume model_best.safetensors --evaluate
--
-- After each epoch a run saves OUTPUT/checkpoint.safetensors, from which it continues as if it had never stopped, and
-- the best so far as OUTPUT/model_best.safetensors.
local lm = require "luminary"
local training = require "luminary.cli.training_options"
local nn, optim, data, dist = lm.nn, lm.optim, lm.data, lm.dist

local USAGE = [[
usage: luajit imagenet.lua [options]

  --data DIR          folder with train/ and val/, a folder for each class in both  (imagenet)
  -a, --arch NAME     a network of lm.models: resnet18, resnet50, vgg_f, ...  (resnet18)
  --pretrained FILE   begin with these weights: a state_dict in safetensors, or a checkpoint of this script
  --image-size N      pixels of a side that the network sees        (224)
  --dummy             random images of 1,000 classes instead of files
  --dummy-images N    their number; 1/25 as many are tested         (1281167)
  --epochs N          passes over the training set; more, when resumed, but with cosine  (90)
  -b, --batch-size N  samples a step, over all ranks and devices    (256)
  --lr X              learning rate, at most                        (0.1)
  --momentum X        of SGD                                        (0.9)
  --wd, --weight-decay X  of SGD                                    (1e-4)
  --schedule NAME     of the learning rate: step (a tenth every --step-size epochs), cosine (to 0), constant  (step)
  --step-size N       epochs                                        (30)
  --warmup X          epochs in which the learning rate rises to it (0)
  --label-smoothing X that much of each label goes to all classes   (0)
  --amp               mixed precision: float16 on GPUs, with a scaled loss, else bfloat16
  --sync-bn           batch norms' statistics are of all ranks' samples
  -e, --evaluate      test once, and end
  --auto-resume       resume from OUTPUT/checkpoint.safetensors if it is there: for restarts
  --output DIR        where checkpoints go                          (.)
  -p, --print-freq N  a line every N batches                        (10)
  -j, --workers N     threads of each process that read and decode  (4)
  --no-accel          the CPU, also where there is a GPU
  --data-parallel     one process splits each batch over --devices
  --devices NAMES     such as cuda:0,cuda:1                         (all CUDA devices, else cpu)
]] .. training.USAGE

local archs = {}
for name, make in pairs(lm.models) do archs[name] = make end
for name in ("mlp lenet gpt2 llama bert unet2d"):gmatch "%S+" do archs[name] = nil end -- these do not classify photos

local options, given, refuse, files = require "luminary.cli.script_options"(USAGE, {
  arch = {"choice", of = archs}, schedule = {"choice", of = {"constant", "cosine", "step"}}, workers = {"natural"},
  devices = {"devices"}, ["auto-resume"] = {"flag", excludes = "resume"}, ["no-accel"] = {"flag", excludes = "device"},
  ["dist-url"] = {same = "init-method"}, ["dist-backend"] = {same = "backend"},
  gpu = {refuse = "--device cuda:0 is that"},
  ["multiprocessing-distributed"] = {refuse = "luminary run --nproc 8 imagenet.lua … starts the processes"},
})
local latest, best_path = options.output .. "/checkpoint.safetensors", options.output .. "/model_best.safetensors"
local checkpoint, path = files.resume(options.resume, options["auto-resume"] and latest, function(name, run)
  return name == "epochs" and run.schedule ~= "cosine" -- a cosine schedule is as long as all epochs
end)
if options["label-smoothing"] > 1 then refuse("--label-smoothing %g: 1 at most", options["label-smoothing"]) end
if options.warmup > options.epochs then refuse("--warmup %g: there are %d epochs", options.warmup, options.epochs) end
if options["sync-bn"] and options["data-parallel"] then refuse "--sync-bn: is for ranks, not for --data-parallel" end
if given.devices and not options["data-parallel"] then refuse "--devices: is for --data-parallel" end

-- ---- processes and devices
if options["no-accel"] then options.device = "cpu" end
local rank, world, device, share = training.start(options, refuse)
local devices = options["no-accel"] and not given.devices and {"cpu"} or options.devices
if options["data-parallel"] and world > 1 then refuse("--data-parallel: is one process's way, not of %d", world) end
if options["data-parallel"] then device = devices[1] end
if rank == 0 and not options.evaluate then files.try("output", latest) end
local print = rank == 0 and print or function() end

-- ---- data: each rank draws its share of every batch, and crops with random numbers of its own
local size, T = options["image-size"], lm.vision.transforms
local normalize = T.Normalize({0.485, 0.456, 0.406}, {0.229, 0.224, 0.225}) -- ImageNet's mean and deviation
local to_tensor = T.Compose {T.ToTensor(), normalize}
local function random_images(n)
  return data.FakeData {size = n, image_size = {3, size, size}, num_classes = 1000, transform = to_tensor}
end
local function images_of(folder, ...)
  local transform = T.Compose {T.Compose {...}, to_tensor}
  return files.attempt("data", data.ImageFolder, options.data .. folder, {transform = transform})
end
local train_set, val_set
if options.dummy then
  train_set, val_set = random_images(options["dummy-images"]), random_images(math.ceil(options["dummy-images"] / 25))
else
  train_set = images_of("/train", T.RandomResizedCrop(size), T.RandomHorizontalFlip())
  val_set = images_of("/val", T.Resize(math.floor(size * 256 / 224 + 0.5)), T.CenterCrop(size))
  if table.concat(val_set.classes, "\n") ~= table.concat(train_set.classes, "\n") then
    refuse("--data: train/ has %d classes and val/ %d, or of other names", #train_set.classes, #val_set.classes)
  end
end
local classes = options.dummy and 1000 or #train_set.classes

local function loader_of(set, sampler)
  return data.DataLoader(set, {
    batch_size = share, sampler = sampler, num_workers = options.workers, seed = options.seed + rank,
    persistent_workers = options.workers > 0, pin_memory = device:find "^cuda" ~= nil,
  })
end
local train_loader = loader_of(train_set, data.DistributedSampler(train_set, {seed = options.seed}))
local val_loader = loader_of(data.Subset(val_set, lm.arange(rank + 1, #val_set + 1, world)))

-- ---- model, optimizer, schedule
print(("=> %s '%s'"):format(options.pretrained and "using pre-trained model" or "creating model", options.arch))
local net = archs[options.arch] {num_classes = classes}
if options.pretrained then
  local weights = files.attempt("pretrained", lm.load, options.pretrained)
  files.attempt("pretrained", net.load_state_dict, net, type(weights.run) == "table" and weights.model or weights)
end
if options["sync-bn"] then net = nn.SyncBatchNorm.convert_sync_batchnorm(net) end
net:to(device)
local model = options["data-parallel"] and nn.DataParallel(net, {device_ids = devices})
  or world > 1 and nn.parallel.DistributedDataParallel(net) or net
local criterion = nn.CrossEntropyLoss {label_smoothing = options["label-smoothing"]}
local opt = optim.SGD(net:parameters(), {
  lr = options.lr, momentum = options.momentum, weight_decay = options["weight-decay"],
})
local amp = {device = device, enabled = options.amp}
local scaler = lm.GradScaler {enabled = options.amp and device:find "^cuda" ~= nil}
local epoch_steps = #train_loader
local schedule = optim.lr_scheduler.get_scheduler(options.schedule, opt, {
  num_training_steps = options.epochs * epoch_steps, step_size = options["step-size"] * epoch_steps,
  num_warmup_steps = math.floor(options.warmup * epoch_steps + 0.5),
})

-- ---- checkpoints: after each epoch, and every --save-every steps
local position = checkpoint and checkpoint.position or {step = 0, epoch = 0, batch = 0} -- batch: of the epoch
local parts = {
  model = net, optimizer = opt, schedule = schedule, scaler = scaler, position = position,
  best = checkpoint and checkpoint.best or 0, -- accuracy in percent
  run = files.run_of {"arch", "image-size", "batch-size", "epochs", "lr", "momentum", "weight-decay", "schedule",
    "step-size", "warmup", "label-smoothing", "amp", "seed"},
}
if checkpoint then -- the state of a scaler that was disabled is empty
  lm.checkpoint.load(path, options.evaluate and {model = net} or {
    model = net, optimizer = opt, schedule = schedule, scaler = next(checkpoint.scaler) and scaler or nil,
  })
  print(("=> loaded checkpoint '%s' (epoch %d, batch %d)"):format(path, position.epoch, position.batch))
end

-- ---- training and test: lines as the example prints them, with the last value and the mean so far of each column
local COLUMNS = "\tTime %6.3f (%6.3f)\tData %6.3f (%6.3f)\tLoss %.4e (%.4e)\tAcc@1 %6.2f (%6.2f)\tAcc@5 %6.2f (%6.2f)"
local log = files.log("log", options.log, checkpoint)

-- Returns sums over a batch, on its device: losses, hits in percent of the best and the five best guesses, samples.
local function sums_of(output, loss, y)
  local _, guesses = output:float():topk(math.min(5, classes), 2)
  local hits = guesses:eq(y:unsqueeze(2)):double() * 100
  return lm.stack {loss:double() * #y, hits[{{}, 1}]:sum(), hits:sum(), lm.full_like(loss, #y, {dtype = "float64"})}
end

-- Runs the model over the batches of a loader after `number`, to `last`, and calls learn(loss), if given, for each.
-- Returns the sums over all.
local function pass(title, loader, number, last, learn)
  local line = ("%s[%%%dd/%d]"):format(title, #tostring(#loader), #loader) .. COLUMNS
  local total, made, waited = lm.zeros({4}, {dtype = "float64", device = device}), 0, 0
  local began, ended = lm.time(), lm.time()
  for x, y in loader:epoch(position.epoch, number + 1) do
    local waiting = lm.time() - ended
    x, y = x:to(device, {non_blocking = true}), y:to(device, {non_blocking = true})
    lm.manual_seed((options.seed % 2 ^ 16 * 4096 + rank) * 2 ^ 24 + position.step) -- a resumed run drops out the same
    local output, loss
    lm.autocast(amp, function()
      output = model(x)
      loss = criterion(output, y)
    end)
    if learn then learn(loss) end
    local sums = lm.no_grad(sums_of, output, loss, y)
    total, made, waited, number = total + sums, made + 1, waited + waiting, number + 1
    if (number - 1) % options["print-freq"] == 0 or number == last then
      local now, mean, time = (sums / sums[4]):tolist(), (total / total[4]):tolist(), lm.time() -- waits for the device
      print(line:format(number, time - ended, (time - began) / made, waiting, waited / made, now[1], mean[1], now[2],
        mean[2], now[3], mean[3]))
    end
    if number == last then break end
    ended = lm.time()
  end
  return total
end

local function learn(loss)
  opt:zero_grad()
  scaler:scale(loss):backward()
  scaler:step(opt)
  scaler:update()
  position.step, position.batch = position.step + 1, position.batch + 1
  log:log_metrics({epoch = position.epoch, loss = loss, lr = opt.param_groups[1].lr}, position.step)
  schedule:step()
  if position.step % options["save-every"] == 0 then lm.checkpoint.save(latest, parts) end
end

-- Returns the accuracy of the best guesses, over all ranks.
local function validate()
  for _, buffer in ipairs(net:buffers()) do dist.broadcast(buffer, 0) end -- as in a checkpoint
  model:eval()
  local sums = dist.all_reduce(lm.no_grad(pass, "Test: ", val_loader, 0, #val_loader):cpu())
  local mean = (sums / sums[4]):tolist()
  print((" *   Acc@1 %.3f Acc@5 %.3f"):format(mean[2], mean[3]))
  log:log_metrics({epoch = position.epoch, test_loss = mean[1], top1 = mean[2], top5 = mean[3]}, position.step)
  return mean[2]
end

if options.evaluate then validate() end
while not options.evaluate and position.epoch < options.epochs and position.step < options["max-steps"] do
  local last = math.min(epoch_steps, position.batch + options["max-steps"] - position.step)
  model:train()
  pass(("Epoch: [%d]"):format(position.epoch), train_loader, position.batch, last, learn)
  local best = parts.best
  if last == epoch_steps then -- --max-steps has not ended the epoch
    parts.best = math.max(best, validate())
    position.epoch, position.batch = position.epoch + 1, 0
  end
  lm.checkpoint.save(latest, parts)
  if parts.best > best then lm.checkpoint.save(best_path, parts) end
end
dist.destroy_process_group()

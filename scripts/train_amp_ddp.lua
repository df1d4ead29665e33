-- The classic tutorial of mixed precision on several devices, in apex's words: the script starts a process for each,
-- the model is made ready by amp.initialize and then wrapped, and the loss is scaled for the backward pass.
--
--   luajit scripts/train_amp_ddp.lua --nproc 2                                    O2, the loss times 128
--   luajit scripts/train_amp_ddp.lua --nproc 2 --opt-level O1                     O1, the loss times 128
--   luajit scripts/train_amp_ddp.lua --nproc 2 --opt-level O1 --loss-scale dynamic
--
-- On GPUs the low dtype is float16, on the CPU bfloat16.

local lm = require "luminary"
local nn, optim, data, dist, amp = lm.nn, lm.optim, lm.data, lm.dist, lm.amp

local USAGE = [[
usage: luajit train_amp_ddp.lua [options]

  --nproc N           processes: one for each card, or core         (2)
  --opt-level NAME    O0, O1, O2 or O3                              (O2)
  --loss-scale X      a number or dynamic                           (128)
  --epochs N          passes over the training set                  (2)
  --max-steps N       stop after this many steps in all             (no limit)
  --batch-size N      samples a step and process                    (100)
  --lr X              learning rate                                 (0.01)
  --data ROOT         folder of Fashion-MNIST's IDX files           ($LUMINARY_DATA, /usr/share/datasets)
  --method NAME       process or thread                             (process)
  --log FILE          write one JSON object a step
  --help              print this

MASTER_ADDR (127.0.0.1) and MASTER_PORT (29500) say where the processes meet.
]]

local options, _, refuse = require "luminary.cli.script_options"(USAGE, {
  ["loss-scale"] = {"text"}, ["max-steps"] = {"natural"},
})

-- ---- one rank: what each process runs

local function train(i, opt)
  dist.init_process_group {init_method = "env://", world_size = opt.nproc, rank = i}
  lm.manual_seed(0)
  local device = lm.cuda.is_available() and "cuda:" .. i or "cpu"

  local model = nn.Sequential(
    nn.Conv2d(1, 16, 5, {padding = 2}), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
    nn.Conv2d(16, 32, 5, {padding = 2}), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
    nn.Flatten(), nn.Linear(7 * 7 * 32, 10)):to(device)
  local criterion = nn.CrossEntropyLoss()
  local optimizer = optim.SGD(model:parameters(), {lr = opt.lr, momentum = 0.9})

  -- In this order: on its device, then amp, then DistributedDataParallel.
  model, optimizer = amp.initialize(model, optimizer, {
    opt_level = opt["opt-level"], loss_scale = opt["loss-scale"], verbosity = i == 0 and 1 or 0,
  })
  model = lm.parallel.DistributedDataParallel(model)

  local set = data.FashionMNIST {root = opt.data, train = true}
  local loader = data.DataLoader(set, {
    batch_size = opt["batch-size"],
    sampler = data.DistributedSampler(set, {num_replicas = opt.nproc, rank = i}),
  })

  local log = opt.log and lm.watch.JSONLogger(opt.log) -- the logger writes on rank 0
  local began, step, last_step = lm.time(), 0, math.min(opt.epochs * loader:len(), opt["max-steps"])
  for epoch = 1, opt.epochs do
    for images, labels in loader:epoch(epoch) do
      if step >= last_step then break end
      local loss = criterion(model(images:to(device)), labels:to(device))
      optimizer:zero_grad()
      amp.scale_loss(loss, optimizer, function(scaled) scaled:backward() end)
      optimizer:step()
      step = step + 1
      if log then log:log_metrics({epoch = epoch, loss = loss}, step) end
      if i == 0 and (step % 100 == 0 or step == last_step) then
        print(("epoch %d/%d  step %d/%d  loss %.4f"):format(epoch, opt.epochs, step, last_step, loss:item()))
      end
    end
  end
  if log then log:close() end
  if i == 0 then print(("trained in %.2f s"):format(lm.time() - began)) end
  dist.destroy_process_group()
end

-- ---- all ranks of this host

if not options["opt-level"]:find "^O[0-3]$" then
  refuse("--opt-level: '%s' is none of O0 to O3", options["opt-level"])
end
if options["loss-scale"] ~= "dynamic" and not tonumber(options["loss-scale"]) then
  refuse("--loss-scale: '%s' is neither a number nor dynamic", options["loss-scale"])
end
for name, value in pairs {MASTER_ADDR = "127.0.0.1", MASTER_PORT = "29500"} do
  if not lm.getenv(name) then lm.setenv(name, value) end
end
lm.mp.spawn(train, {nprocs = options.nproc, args = {options}, method = options.method})

-- The classic tutorial of distributed training, in which the script itself starts the processes:
--
--   luajit scripts/ddp_spawn.lua --devices 2
--   luajit scripts/ddp_spawn.lua --devices 2 --nodes 2 --node-rank 0 --master-addr 10.0.0.1   (and 1 on the other host)
--
-- The world is nodes x devices. train_ddp.lua is the same training under a launcher, with checkpoints.

local lm = require "luminary"
local nn, F, optim, data, dist, mp = lm.nn, lm.nn.functional, lm.optim, lm.data, lm.dist, lm.mp

local USAGE = [[
usage: luajit ddp_spawn.lua [options]

  --nodes N           hosts that take part                          (1)
  --devices N         processes on each: one for each card, or core (2)
  --node-rank N       this host among them, from 0                  (0)
  --master-addr HOST  the host with node rank 0                     ($MASTER_ADDR, 127.0.0.1)
  --master-port N     a free port there                             ($MASTER_PORT, 29500)
  --method NAME       process or thread                             (process)
  --model NAME        lenet, mlp or resnet18                        (lenet)
  --dataset NAME      fashion-mnist or mnist                        (fashion-mnist)
  --data ROOT         folder of the dataset's IDX files             ($LUMINARY_DATA, /usr/share/datasets)
  --epochs N          passes over the training set                  (5)
  --max-steps N       stop after this many steps in all             (no limit)
  --batch-size N      samples a step, over all ranks                (256)
  --lr X              learning rate                                 (0.1)
  --momentum X        momentum of SGD                               (0.9)
  --dtype NAME        float32, float64, bfloat16 or float16         (float32)
  --seed N            of the weights and of the order of samples    (1)
  --log FILE          write one JSON object a step and an epoch
  --help              print this
]]

local here = arg[0]:match("^.*/") or ""
local options, _, refuse, files = require "luminary.cli.script_options"(USAGE, {
  ["node-rank"] = {"natural"}, ["master-addr"] = {"text", lm.getenv "MASTER_ADDR" or "127.0.0.1"},
  ["master-port"] = {"port", tonumber(lm.getenv "MASTER_PORT") or 29500}, ["max-steps"] = {"natural"},
})

-- ---- one rank: what each process runs

local function train(i, opt)
  local world = opt.nodes * opt.devices
  local rank = opt["node-rank"] * opt.devices + i
  dist.init_process_group {backend = "gloo", init_method = "env://", world_size = world, rank = rank}
  lm.manual_seed(opt.seed)
  local device = lm.cuda.is_available() and "cuda:" .. i or "cpu"

  local Set = opt.dataset == "mnist" and data.MNIST or data.FashionMNIST
  local train_set = Set {root = opt.data, train = true}
  local test_set = Set {root = opt.data, train = false}
  local train_loader = data.DataLoader(train_set, {
    batch_size = opt["batch-size"] / world,
    sampler = data.DistributedSampler(train_set, {num_replicas = world, rank = rank, seed = opt.seed}),
  })
  local test_share = data.Subset(test_set, lm.arange(rank + 1, test_set:len() + 1, world, {dtype = "int64"}))
  local test_loader = data.DataLoader(test_share, {batch_size = opt["batch-size"] / world})

  local models = dofile(here .. "models.lua") -- beside this script
  local net = nn.parallel.DistributedDataParallel(models[opt.model]():to(device, opt.dtype), {
    device_ids = lm.cuda.is_available() and {i} or nil,
  })
  local sgd = optim.SGD(net:parameters(), {lr = opt.lr, momentum = opt.momentum})

  local log = opt.log and lm.watch.JSONLogger(opt.log) -- the logger writes on rank 0

  local step, last_step = 0, math.min(opt.epochs * train_loader:len(), opt["max-steps"])
  for epoch = 1, opt.epochs do
    if step >= last_step then break end
    local epoch_began = lm.time()
    for x, y in train_loader:epoch(epoch) do
      local began = lm.time()
      local loss = F.cross_entropy(net(x:to(device, opt.dtype)), y:to(device))
      sgd:zero_grad()
      loss:backward()
      sgd:step()
      local sums = dist.all_reduce(lm.tensor({loss:item() * y:size(1), y:size(1)}, {dtype = "float64"}))
      step = step + 1
      if log then log:log_metrics({epoch = epoch, loss = sums[1] / sums[2], seconds = lm.time() - began}, step) end
      if rank == 0 and (step % 50 == 0 or step == last_step) then
        print(("step %d/%d  epoch %d  loss %.4f"):format(step, last_step, epoch, sums[1] / sums[2]))
      end
      if step >= last_step then break end
    end

    local accuracy = lm.metrics.Accuracy("multiclass", {num_classes = 10})
    accuracy = lm.metrics.evaluate(net, test_loader, accuracy):item() -- over all ranks
    local seconds = lm.time() - epoch_began
    if log then log:log_metrics {epoch = epoch, test_accuracy = accuracy, seconds = seconds} end
    if rank == 0 then print(("epoch %d  test accuracy %.4f  %.2f s"):format(epoch, accuracy, seconds)) end
  end
  if log then log:close() end
  dist.destroy_process_group()
end

-- ---- all ranks of this host

files.models()
if options.dataset ~= "mnist" and options.dataset ~= "fashion-mnist" then
  refuse("--dataset: no dataset '%s'", options.dataset)
end
if options["batch-size"] % (options.nodes * options.devices) ~= 0 then
  refuse("--batch-size %d cannot be shared evenly by %d ranks", options["batch-size"], options.nodes * options.devices)
end
lm.setenv("MASTER_ADDR", options["master-addr"])
lm.setenv("MASTER_PORT", tostring(options["master-port"]))
mp.spawn(train, {nprocs = options.devices, args = {options}, method = options.method})

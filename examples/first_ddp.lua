-- A first program with DistributedDataParallel: several processes, the ranks, train one model, each on a share of every
-- batch. It is the same program for one process and for many:
--
--   luajit examples/first_ddp.lua
--   luminary run --nproc 2 examples/first_ddp.lua
--   luminary run --nproc 2 examples/first_ddp.lua first_ddp.safetensors 10
--
-- It saves a checkpoint after each epoch, and continues from it if the file is there: the last line to epoch 10.
local lm = require "luminary"
local nn, optim, data, dist = lm.nn, lm.optim, lm.data, lm.dist

local path, epochs, batch_size = arg[1] or "first_ddp.safetensors", tonumber(arg[2]) or 5, 64

-- The launcher sets each process's rank and where they meet; without it there is one rank.
dist.init_process_group()
local rank, ranks = dist.get_rank(), dist.get_world_size()
local device = dist.local_device() -- a GPU for each rank, else the CPU
lm.manual_seed(1)

-- A task that can be learned: five functions of ten numbers. With the same seed all ranks make the same samples; each
-- rank draws its share of them, in an order that changes with the epoch.
local inputs, weight = lm.randn(1024, 10), lm.randn(10, 5)
local set = data.TensorDataset(inputs, inputs:matmul(weight):tanh())
local sampler = data.DistributedSampler(set, {seed = 1})
local loader = data.DataLoader(set, {batch_size = batch_size / ranks, sampler = sampler})

-- DistributedDataParallel copies rank 0's parameters to all ranks, and averages their gradients in each backward pass.
-- So all ranks make the same step, and their parameters remain the same.
local net = nn.Sequential(nn.Linear(10, 64), nn.ReLU(), nn.Linear(64, 5)):to(device)
local model = nn.parallel.DistributedDataParallel(net)
local opt = optim.SGD(model:parameters(), {lr = 0.1, momentum = 0.9})
local mean_loss = lm.metrics.MeanMetric()

-- All ranks load the file, if it is there.
local saved = lm.paths.filep(path) and lm.checkpoint.load(path, {model = model, optimizer = opt})
if saved and rank == 0 then print(("continuing after epoch %d"):format(saved.epoch)) end

for epoch = saved and saved.epoch + 1 or 1, epochs do
  mean_loss:reset()
  for x, y in loader:epoch(epoch) do
    local loss = nn.functional.mse_loss(model(x:to(device)), y:to(device))
    opt:zero_grad()
    loss:backward()
    opt:step()
    mean_loss:update(loss)
  end
  local loss = mean_loss:compute():item() -- over all ranks: each calls it
  if rank == 0 then print(("epoch %d  loss %.6f  ranks %d"):format(epoch, loss, ranks)) end
  lm.checkpoint.save(path, {model = model, optimizer = opt, epoch = epoch}) -- all ranks call it, and rank 0 writes
end

dist.destroy_process_group()

--- Trains with exact arithmetic, so that each version computes the same bits on every machine: weights, inputs and
--- learning rates in float64 are small integers over powers of 2. An old version runs this file from
--- scripts/dev/golden/gen_upgrade.lua and saves what spec/checkpoint/upgrade_spec.lua loads.
local lm = require "luminary"
local nn, optim = lm.nn, lm.optim

local upgrade = {}

local function whole_numbers(seed, shape)
  local n, list = 1, {}
  for _, size in ipairs(shape) do n = n * size end
  for i = 1, n do list[i] = (i * seed) % 7 - 3 end
  return lm.tensor(list, {dtype = "float64"}):view(unpack(shape))
end

local function fill(net, seed)
  lm.no_grad(function()
    for i, p in ipairs(net:parameters()) do p:copy_(whole_numbers(seed + i, p.shape) / 4) end
  end)
  return net
end

--- Returns the parts of a checkpoint, and a function that trains the rest of two epochs, or `steps` steps of it.
function upgrade.training()
  local net = fill(nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.Linear(4, 2)):to "float64", 3)
  local opt = optim.SGD(net:parameters(), {lr = 0.25, momentum = 0.5})
  local schedule = optim.lr_scheduler.StepLR(opt, {step_size = 2, gamma = 0.5})
  local set = lm.data.TensorDataset(whole_numbers(5, {8, 4}))
  local loader = lm.data.DataLoader(set, {batch_size = 2, shuffle = true, seed = 1})
  local factors = lm.tensor({1, -2}, {dtype = "float64"})
  local function train(steps)
    for epoch = 1, 2 do
      for x in loader:epoch(epoch) do
        opt:zero_grad();
        (net(x) * factors):sum():backward()
        opt:step()
        schedule:step()
        steps = steps and steps - 1
        if steps == 0 then return end
      end
    end
  end
  return {model = net, optimizer = opt, schedule = schedule, loader = loader}, train
end

--- Returns the parts of a checkpoint of a training over ranks, and a function that trains some steps. shard(net)
--- returns the model and its optimizer; without a rank and a size a step has the samples of all ranks.
function upgrade.sharded(shard, rank, size)
  local net = fill(nn.Sequential(nn.Linear(4, 5), nn.Linear(5, 2)):to "float64", 2)
  local trained, opt = shard(net)
  local all = whole_numbers(4, {4, 4})
  local n = 4 / (size or 1)
  local x = all[{{(rank or 0) * n + 1, (rank or 0) * n + n}}]
  local factors = lm.tensor({1, -2}, {dtype = "float64"})
  local function train(steps)
    for _ = 1, steps do
      opt:zero_grad();
      (trained(x) * factors):sum(2):mean():backward()
      opt:step()
    end
  end
  return {model = trained, optimizer = opt}, train
end

--- Returns the plain model of one process, and its optimizer.
function upgrade.alone(net) return net, optim.SGD(net:parameters(), {lr = 0.25, momentum = 0.5}) end

--- Returns the model with its parameters divided over the ranks, and its optimizer.
function upgrade.fully_shard(net)
  nn.parallel.fully_shard(net[1])
  nn.parallel.fully_shard(net)
  return upgrade.alone(net)
end

--- Returns the model that each rank has, and an optimizer whose state is divided over the ranks.
function upgrade.zero(net)
  return nn.parallel.DistributedDataParallel(net), optim.ZeroRedundancyOptimizer(net:parameters(), {
    optimizer_class = optim.SGD, lr = 0.25, momentum = 0.5,
  })
end

--- Returns a model for ONNX, and its input: exact, too.
function upgrade.exported()
  local layers = {nn.Conv2d(1, 2, 3), nn.MaxPool2d(2), nn.Flatten(2), nn.Linear(8, 2)}
  local net = fill(nn.Sequential(unpack(layers)), 5)
  return net, whole_numbers(3, {2, 1, 6, 6}):to "float32"
end

--- Returns values of each kind that lm.save writes.
function upgrade.values()
  local value = {
    text = "ä\n\0", number = 0.1, yes = true, list = {1, {2, "three"}}, scalar = lm.tensor(1.5), empty = lm.zeros(0, 3),
    transposed = whole_numbers(3, {2, 3}):t(),
  }
  for dtype in ("float64 float32 float16 bfloat16 int64 int32 int16 int8 uint8 bool"):gmatch "%w+" do
    value[dtype] = whole_numbers(3, {3}):to(dtype)
  end
  return value
end

return upgrade

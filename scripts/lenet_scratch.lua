-- Training on several devices with nothing but tensors: LeNet on Fashion-MNIST, its parameters copied to each device,
-- each batch split over them, gradients added up by hand, and a step of plain gradient descent on every device.
--
--   luajit scripts/lenet_scratch.lua                          all GPUs, else the CPU
--   luajit scripts/lenet_scratch.lua --devices cpu:0,cpu:1    two devices on any machine
--
-- resnet_dp.lua leaves all of that to nn.DataParallel.

local lm = require "luminary"
local F = lm.nn.functional

local USAGE = [[
usage: luajit lenet_scratch.lua [options]

  --devices DEVICES such as cpu:0,cpu:1 or cuda:0            (all CUDA devices, else cpu)
  --epochs N        passes over the training set             (10)
  --max-steps N     stop after this many steps in all        (no limit)
  --batch-size N    samples a step, over all devices         (256 for each device)
  --lr X            learning rate                            (0.2 on one device, 0.3 on several)
  --dtype NAME      float32, float64, bfloat16 or float16    (float32)
  --seed N          of the parameters and the order          (1)
  --data ROOT       folder of the dataset's IDX files        ($LUMINARY_DATA, /usr/share/datasets)
  --log FILE        write the loss of each step, one a line
]]

local options = require "luminary.cli.script_options"(USAGE)
local devices = options.devices
local batch_size = options["batch-size"] or 256 * #devices
local lr = options.lr or (#devices == 1 and 0.2 or 0.3)

-- ---- the model: a list of parameters, and a function of them

lm.manual_seed(options.seed)
local scale = 0.01
local W1, b1 = lm.randn { 20, 1, 3, 3 } * scale, lm.zeros { 20 }
local W2, b2 = lm.randn { 50, 20, 5, 5 } * scale, lm.zeros { 50 }
local W3, b3 = lm.randn { 800, 128 } * scale, lm.zeros { 128 }
local W4, b4 = lm.randn { 128, 10 } * scale, lm.zeros { 10 }
local params = { W1, b1, W2, b2, W3, b3, W4, b4 }

-- Takes X [N, 1, 28, 28]; returns logits [N, 10].
local function lenet(X, p)
  local h1 = F.avg_pool2d(F.conv2d(X, p[1], p[2]):relu(), 2)  -- [N, 20, 13, 13]
  local h2 = F.avg_pool2d(F.conv2d(h1, p[3], p[4]):relu(), 2) -- [N, 50, 4, 4]
  local h3 = (h2:flatten { start_dim = 2 }:matmul(p[5]) + p[6]):relu()
  return h3:matmul(p[7]) + p[8]
end

-- Returns one loss for each sample.
local function loss(y_hat, y) return F.cross_entropy(y_hat, y, { reduction = "none" }) end

-- ---- between devices

-- Copies of the parameters on a device, which ask for gradients.
local function get_params(list, device)
  local copies = {}
  for i, p in ipairs(list) do
    copies[i] = p:to { device = device, dtype = options.dtype }:clone()
    copies[i].requires_grad = true
  end
  return copies
end

-- Tensors of one size, each on its own device: all become their sum.
local function allreduce(data)
  for i = 2, #data do data[1][{}] = data[1] + data[i]:to(data[1].device) end
  for i = 2, #data do data[i][{}] = data[1]:to(data[i].device) end
end

-- Splits X and y evenly over the devices: two lists.
local function split_batch(X, y)
  return lm.nn.parallel.scatter(X, devices), lm.nn.parallel.scatter(y, devices)
end

-- ---- training

local function sgd(list, samples)
  for _, p in ipairs(list) do
    p:sub_(p.grad * (lr / samples))
    p.grad = nil
  end
end

-- Makes a step on every device; returns the sum of the losses on the first.
local function train_batch(X, y, device_params)
  local X_shards, y_shards = split_batch(X, y)
  local losses, total = {}, nil
  for d, X_shard in ipairs(X_shards) do losses[d] = loss(lenet(X_shard, device_params[d]), y_shards[d]):sum() end
  for _, l in ipairs(losses) do l:backward() end
  lm.no_grad(function()
    for i = 1, #params do
      local grads = {}
      for d, list in ipairs(device_params) do -- a device that had no sample has no gradient
        grads[d] = list[i].grad or lm.zeros_like(list[i])
        list[i].grad = grads[d]
      end
      allreduce(grads)
    end
    for _, list in ipairs(device_params) do sgd(list, y:size(1)) end
    for _, l in ipairs(losses) do total = total and total + l:to(devices[1]) or l:detach() end
  end)
  return total
end

local function loader_of(train)
  local set = lm.data.FashionMNIST { root = options.data, train = train }
  return lm.data.DataLoader(set, { batch_size = train and batch_size or 256, shuffle = train })
end

-- Returns the share of the test set's images that are classified rightly, by the first device's parameters.
local function test_accuracy(loader, list)
  local right, n = lm.zeros({}, { device = devices[1], dtype = "int64" }), 0
  lm.no_grad(function()
    for X, y in loader:iter() do
      local guess = lenet(X:to(devices[1], options.dtype), list):argmax(2)
      right:add_(guess:eq(y:to(devices[1])):sum())
      n = n + y:size(1)
    end
  end)
  return right:item() / n
end

local device_params = {}
for d, device in ipairs(devices) do device_params[d] = get_params(params, device) end
local train_loader, test_loader = loader_of(true), loader_of(false)
if options.log then lm.paths.write(options.log, "") end

local timer, step, stopped = lm.Timer(), 0, false
for epoch = 1, options.epochs do
  local sum, samples = 0, 0
  timer:start()
  for X, y in train_loader:epoch(epoch) do
    local l = train_batch(X:to { dtype = options.dtype }, y, device_params)
    step, sum, samples = step + 1, sum + l:to { dtype = "float64" }, samples + y:size(1)
    if options.log then lm.paths.append(options.log, ("%.17g\n"):format(l:item() / y:size(1))) end
    stopped = step >= options["max-steps"]
    if stopped then break end
  end
  for _, device in ipairs(devices) do lm.synchronize(device) end
  local seconds = timer:stop()
  -- The test set takes its time: whole epochs only.
  local accuracy = stopped and "" or ("  test accuracy %.4f"):format(test_accuracy(test_loader, device_params[1]))
  print(("epoch %d  loss %.4f%s  %.2f s"):format(epoch, sum:item() / samples, accuracy, seconds))
  if stopped then break end
end
print(("%.2f s an epoch on %s"):format(timer:avg(), table.concat(devices, ", ")))

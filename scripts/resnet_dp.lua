-- ResNet-18 on Fashion-MNIST with nn.DataParallel: one script, each batch split over the devices.
--
--   luajit scripts/resnet_dp.lua                                                   all GPUs, else the CPU
--   luajit scripts/resnet_dp.lua --devices cpu:0,cpu:1 --batch-size 32 --max-steps 20
--
-- lenet_scratch.lua does by hand what DataParallel does here; train_ddp.lua runs a process for each device.

local lm = require "luminary"
local nn, F = lm.nn, lm.nn.functional

local USAGE = [[
usage: luajit resnet_dp.lua [options]

  --devices DEVICES such as cpu:0,cpu:1 or cuda:0            (all CUDA devices, else cpu)
  --epochs N        passes over the training set             (10)
  --max-steps N     stop after this many steps in all        (no limit)
  --batch-size N    samples a step, over all devices         (256 for each device)
  --lr X            learning rate                            (0.1)
  --dtype NAME      float32, float64, bfloat16 or float16    (float32)
  --seed N          of the parameters and the order          (1)
  --data ROOT       folder of the dataset's IDX files        ($LUMINARY_DATA, /usr/share/datasets)
  --log FILE        write the loss of each step, one a line
]]

local options, _, _, files = require "luminary.cli.script_options"(USAGE)
local devices = options.devices
local batch_size = options["batch-size"] or 256 * #devices

-- ---- the network: a stem for small images, four blocks of two residuals, a classifier

local Residual = files.beside("models.lua").Residual

local function resnet_block(cin, cout, residuals, first)
  local block = nn.Sequential()
  for i = 1, residuals do
    local halves = i == 1 and not first
    block:append(Residual(i == 1 and cin or cout, cout, { stride = halves and 2 or 1 }))
  end
  return block
end

local function resnet18()
  local net = nn.Sequential(nn.Conv2d(1, 64, 3, { padding = 1 }), nn.BatchNorm2d(64), nn.ReLU())
  net:add_module("resnet_block1", resnet_block(64, 64, 2, true))
  net:add_module("resnet_block2", resnet_block(64, 128, 2))
  net:add_module("resnet_block3", resnet_block(128, 256, 2))
  net:add_module("resnet_block4", resnet_block(256, 512, 2))
  net:add_module("global_avg_pool", nn.AdaptiveAvgPool2d(1))
  net:add_module("fc", nn.Sequential(nn.Flatten(), nn.Linear(512, 10)))
  return net
end

local function init_weights(m)
  if m:is(nn.Linear) or m:is(nn.Conv2d) then nn.init.normal_(m.weight, 0, 0.01) end
end

lm.manual_seed(options.seed)
local net = resnet18():apply(init_weights):to(devices[1], options.dtype)
net = nn.DataParallel(net, { device_ids = devices })
local trainer = lm.optim.SGD(net:parameters(), { lr = options.lr })

-- ---- data

local function loader_of(train)
  local set = lm.data.FashionMNIST { root = options.data, train = train }
  return lm.data.DataLoader(set, { batch_size = train and batch_size or 256, shuffle = train })
end
local train_loader, test_loader = loader_of(true), loader_of(false)

local accuracy = lm.metrics.Accuracy("multiclass", {num_classes = 10})
local function test_accuracy() return lm.metrics.evaluate(net, test_loader, accuracy):item() end

-- ---- training

if options.log then lm.paths.write(options.log, "") end
local timer, step, images, stopped = lm.Timer(), 0, 0, false

for epoch = 1, options.epochs do
  local sum, steps = 0, 0
  timer:start()
  for X, y in train_loader:epoch(epoch) do
    local l = F.cross_entropy(net(X:to(devices[1], options.dtype)), y:to(devices[1]))
    trainer:zero_grad()
    l:backward()
    trainer:step()
    step, steps, images, sum = step + 1, steps + 1, images + y:size(1), sum + l:detach():to { dtype = "float64" }
    if options.log then lm.paths.append(options.log, ("%.17g\n"):format(l:item())) end
    if step % 50 == 0 then print(("step %d  loss %.4f"):format(step, l:item())) end
    stopped = step >= options["max-steps"]
    if stopped then break end
  end
  for _, device in ipairs(devices) do lm.synchronize(device) end
  local seconds = timer:stop()
  -- The test set takes its time: whole epochs only.
  local tested = stopped and "" or ("  test accuracy %.4f"):format(test_accuracy())
  print(("epoch %d  loss %.4f%s  %.2f s"):format(epoch, sum:item() / steps, tested, seconds))
  if stopped then break end
end
print(("%.0f images/s on %s"):format(images / timer:sum(), table.concat(devices, ", ")))

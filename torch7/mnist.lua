-- Trains LeNet on Fashion-MNIST by a classic Torch7 program, with feval and optim.sgd, run by luminary.
--
--   luajit torch7/mnist.lua -epochs 2 -save logs
--
-- It uses only Torch7's names (docs/from_torch7.md), except for luminary's reader of the data.
local lm = require "luminary"
local torch = require "luminary.torch7"
local nn, optim, paths = torch.nn, torch.optim, torch.paths

local cmd = torch.CmdLine()
cmd:text()
cmd:text "Trains LeNet on Fashion-MNIST"
cmd:text()
cmd:text "Options:"
cmd:option("-seed", 1, "of the weights and the order of samples")
cmd:option("-epochs", 1, "passes over the training set")
cmd:option("-batchSize", 64, "samples a step")
cmd:option("-learningRate", 0.02, "of optim.sgd")
cmd:option("-momentum", 0.9, "of optim.sgd")
cmd:option("-weightDecay", 0, "of optim.sgd")
cmd:option("-trainSize", 60000, "how many samples are trained on")
cmd:option("-testSize", 10000, "how many are tested on")
cmd:option("-data", "", "folder of the set's four IDX files")
cmd:option("-save", "", "folder for the log and the table of accuracies; none by default")
cmd:option("-plot", false, "plot the accuracies, by gnuplot")
cmd:text()
local opt = cmd:parse(arg or {})

torch.manualSeed(opt.seed)
torch.setdefaulttensortype "torch.FloatTensor"

local logger
if opt.save ~= "" then
  assert(paths.mkdir(opt.save), "cannot make the folder " .. opt.save)
  cmd:log(paths.concat(opt.save, "train.log"), opt)
  logger = optim.Logger(paths.concat(opt.save, "accuracy.log"))
  logger:setNames {"% mean class accuracy (train)", "% mean class accuracy (test)"}
end

-- ---- data

local function load(train, size)
  local set = lm.data.FashionMNIST {train = train, root = opt.data ~= "" and opt.data or nil}
  local n = math.min(size, #set)
  local data, labels = torch.wrap(set.images):float(), torch.wrap(set.labels)
  return {data = data[{{1, n}}]:div(255), labels = labels[{{1, n}}], size = function() return n end},
    set.classes
end
local trainData, classes = load(true, opt.trainSize)
local testData = load(false, opt.testSize)
local mean, std = trainData.data:mean(), trainData.data:std()
trainData.data:add(-mean):div(std)
testData.data:add(-mean):div(std)

-- ---- model

local model = nn.Sequential()
model:add(nn.SpatialConvolution(1, 6, 5, 5, 1, 1, 2, 2))
model:add(nn.ReLU(true))
model:add(nn.SpatialMaxPooling(2, 2, 2, 2))
model:add(nn.SpatialConvolution(6, 16, 5, 5))
model:add(nn.ReLU(true))
model:add(nn.SpatialMaxPooling(2, 2, 2, 2))
model:add(nn.View(16 * 5 * 5))
model:add(nn.Linear(16 * 5 * 5, 120))
model:add(nn.ReLU(true))
model:add(nn.Linear(120, 84))
model:add(nn.ReLU(true))
model:add(nn.Linear(84, #classes))
model:add(nn.LogSoftMax())
print(model)

local criterion = nn.ClassNLLCriterion()
local parameters, gradParameters = model:getParameters()
local confusion = optim.ConfusionMatrix(classes)
local sgdState = {learningRate = opt.learningRate, momentum = opt.momentum, dampening = 0,
  weightDecay = opt.weightDecay}

-- ---- training and testing

local function train(epoch)
  model:training()
  confusion:zero()
  local shuffle, timer, sum, steps = torch.randperm(trainData:size()):long(), torch.Timer(), 0, 0
  for t = 1, trainData:size(), opt.batchSize do
    local index = shuffle[{{t, math.min(t + opt.batchSize - 1, trainData:size())}}]
    local inputs, targets = trainData.data:index(1, index), trainData.labels:index(1, index)
    local function feval(x)
      if x ~= parameters then parameters:copy(x) end
      gradParameters:zero()
      local outputs = model:forward(inputs)
      local f = criterion:forward(outputs, targets)
      model:backward(inputs, criterion:backward(outputs, targets))
      confusion:batchAdd(outputs, targets)
      return f, gradParameters
    end
    local _, fs = optim.sgd(feval, parameters, sgdState)
    sum, steps = sum + fs[1], steps + 1
  end
  print(("epoch %d: %.1f s, mean loss %.4f"):format(epoch, timer:time().real, sum / steps))
  print(confusion)
  return confusion.totalValid * 100
end

local function test()
  model:evaluate()
  confusion:zero()
  for t = 1, testData:size(), 500 do
    local at = {{t, math.min(t + 499, testData:size())}}
    confusion:batchAdd(model:forward(testData.data[at]), testData.labels[at])
  end
  print "on the test set:"
  print(confusion)
  return confusion.totalValid * 100
end

for epoch = 1, opt.epochs do
  local trained = train(epoch)
  local tested = test()
  if logger then
    logger:add {trained, tested}
    if opt.plot then logger:style({"-", "-"}):plot() end
  end
end

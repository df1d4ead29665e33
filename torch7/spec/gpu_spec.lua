-- Torch7's programs on a GPU: CudaTensors, layers and criterions there, files, cutorch. Over the fake CUDA runtime.
local scripts = require "spec.support.cuda_scripts"
if os.getenv "LM_SPEC_DEVICE" then return end -- another device changes nothing here

local script = scripts.tests(it, pending, [[
  local torch = require "luminary.torch7.globals"
  assert(torch.CudaLongTensor == nil)
  require "cunn"
  cutorch.setDevice(1)
  local function is(expected, got) assert(got == expected, tostring(got)) end
  local x = torch.FloatTensor {{1, 5, 2}, {7, 3, 4}}
  local y = x:cuda()
]])

describe("luminary.torch7 on a GPU", function()
  script("has a type for each dtype there, so that conversions move", [[
    local most, at = torch.max(y, 2)
    is("torch.CudaTensor", most:type())
    is("torch.CudaLongTensor", at:type())
    is("torch.LongTensor", at:long():type())
    is(1, at:long():eq(torch.LongTensor {{2}, {3}}):sum())
    is("torch.CudaByteTensor", y:gt(2):type())
    is(4, y:gt(2):byte():eq(x:gt(4)):sum())
    is("torch.FloatTensor", torch.FloatTensor(y):type())
    is("torch.CudaLongTensor", torch.CudaLongTensor(3):type())
    is("torch.CudaLongTensor", x:cudaLong():type())
    is("torch.CudaTensor", torch.CudaStorage(3):type():gsub("Storage", "Tensor"))
    is(1, y:getDevice())
    local alike = torch.CudaTensor(y:storage(), 2, torch.LongStorage {2})
    alike:fill(9)
    is(9, y[1][2])
    refused("must be 'torch.FloatTensor' or 'torch.DoubleTensor', got 'torch.CudaTensor'", torch.setdefaulttensortype,
      "torch.CudaTensor")
  ]])

  script("takes indices and masks of either side, and draws there", [[
    is(16, y:index(2, torch.LongTensor {1, 1}):sum())
    is(16, y:index(2, torch.CudaTensor {1, 1}):sum())
    is(5, y:gather(2, torch.CudaTensor {{2}, {1}})[1][1])
    is(8, y:clone():zero():scatter(2, torch.CudaTensor {{2}, {1}}, 4):sum())
    is(2, y:clone():zero():indexFill(1, torch.LongTensor {1}, 1):indexAdd(1, torch.LongTensor {2},
      torch.CudaTensor {{-1, 0, 0}}):sum())
    is(10, y:clone():maskedFill(x:gt(4), 0):sum())
    local drawn = torch.CudaTensor(100):normal(torch.CudaTensor(100):fill(50), torch.CudaTensor(100):fill(1))
    assert(math.abs(drawn:mean() - 50) < 1)
  ]])

  script("computes layers and criterions there", [[
    local scores = torch.CudaTensor {0, -1, -2}
    is(2, nn.ClassNLLCriterion():cuda():forward(scores, 3))
    is(0, nn.CosineEmbeddingCriterion():cuda():forward({scores, scores}, 1))
    is("torch.CudaTensor", nn.OneHot(3):cuda():forward(torch.LongTensor {1, 2}):type())
    local partial = nn.PartialLinear(3, 4):cuda()
    partial:setPartition(torch.LongTensor {1, 4})
    is(4, partial:forward(y):nElement())
    local sparse = nn.SparseLinear(3, 2, true):cuda()
    local pairs_ = torch.CudaTensor {{1, 0.5}, {3, 2}}
    sparse:forward(pairs_)
    is("torch.CudaTensor", sparse:updateGradInput(pairs_, torch.CudaTensor {1, 1})[1]:type())
    local net = nn.Sequential():add(nn.Linear(3, 2)):add(nn.BatchNormalization(2)):cuda()
    local parameters = net:getParameters()
    is("torch.CudaTensor", parameters:type())
    net:forward(y)
    net:backward(y, torch.CudaTensor(2, 2):fill(1))
    parameters:fill(2)
    is(12, net:get(1).weight:sum())
    is("torch.CudaTensor", net:clearState().output:type())
    net:float():forward(x)
  ]])

  script("saves a GPU's tensors, shared as they are, and loads them there or as FloatTensors #unsanitized", [[
    local path = os.tmpname()
    torch.save(path, {a = y, b = y[1], at = y:cudaLong(), none = torch.CudaTensor()})
    local t = torch.load(path)
    is("torch.CudaTensor", t.a:type())
    is("torch.CudaTensor", t.none:type())
    is("torch.CudaLongTensor", t.at:type())
    t.b:fill(3)
    is(9, t.a[1]:sum())
    local without = io.popen(("LD_PRELOAD= CUDA_VISIBLE_DEVICES= luajit -e 'local torch = require \"luminary.torch7\" "
      .. "local t = torch.load \"%s\" print(t.a:type(), t.at:type(), t.b:fill(3):sum(), t.a:sum())'"):format(path))
    is("torch.FloatTensor\ttorch.LongTensor\t9\t23\n", without:read "*a")
    without:close()
    os.remove(path)
  ]])

  script("runs what scripts ask of cutorch and cudnn", [[
    require "cudnn"
    cudnn.benchmark = true
    assert(cudnn.SpatialConvolution == nn.SpatialConvolution)
    is(2, cutorch.getDeviceCount())
    cutorch.withDevice(2, function() is(2, torch.CudaTensor(1):getDevice()) end)
    is(1, cutorch.getDevice())
    torch.CudaTensor(8):fill(1)
    cutorch.synchronizeAll()
    assert(cutorch.getMemoryUsage(2) > 0)
    local state = cutorch.getRNGState()
    local first = torch.CudaTensor(3):uniform()
    cutorch.setRNGState(state)
    is(0, (torch.CudaTensor(3):uniform() - first):abs():sum())
  ]], "LM_FAKE_CUDA_DEVICES=2")
end)

-- Every layer with a batch of no samples, forward and backward: the shape is that of a batch of two without its
-- samples, gradients of parameters are zeros, as in PyTorch, and nothing that is kept becomes NaN.
local lm = require "luminary"
local nn = lm.nn

local device = os.getenv "LM_SPEC_DEVICE" or "cpu"

-- Returns a function that makes an input of n samples of this shape, in which b stands for n.
local function float(...)
  local shape = { ... }
  return function(n)
    local sizes = {}
    for i, size in ipairs(shape) do sizes[i] = size == "b" and n or size end
    return lm.rand(sizes, { device = device })
  end
end
local function index(...)
  local made = float(...)
  return function(n) return lm.ones_like(made(n), { dtype = "int64" }) end
end
local images = { float("b", 4, 6), float("b", 4, 6, 6), float("b", 4, 6, 6, 6) }
local rows, sequence, one_label, each = float("b", 4), float("b", 5, 4), index "b", float "b"

local cases = {}
local function layer(name, arguments, ...) cases[#cases + 1] = { name, arguments, { ... } } end

for d, x in ipairs(images) do
  for _,
  name in ipairs { "AdaptiveAvgPool", "AdaptiveMaxPool", "AvgPool", "MaxPool" } do layer(name .. d .. "d", { 2 }, x) end
  for _,
  name in ipairs { "CircularPad", "ReflectionPad", "ReplicationPad", "ZeroPad" } do layer(name .. d .. "d", { 1 },
  x) end
  layer("ConstantPad" .. d .. "d", { 1, 2 }, x)
  layer("LPPool" .. d .. "d", { 2, 2 }, x)
  layer("BatchNorm" .. d .. "d", { 4 }, x)
  layer("InstanceNorm" .. d .. "d", { 4, { affine = true } }, x)
  layer("InstanceNorm" .. d .. "d", { 4, { track_running_stats = true } }, x)
  layer("LazyBatchNorm" .. d .. "d", {}, x)
  layer("LazyInstanceNorm" .. d .. "d", { { affine = true } }, x)
  layer("Conv" .. d .. "d", { 4, 2, 3 }, x)
  layer("Conv" .. d .. "d", { 4, 4, 3, { groups = 2 } }, x)
  layer("ConvTranspose" .. d .. "d", { 4, 2, 3 }, x)
  layer("LazyConv" .. d .. "d", { 2, 3 }, x)
  layer("LazyConvTranspose" .. d .. "d", { 2, 3 }, x)
  layer("Dropout" .. d .. "d", { 0.5 }, x)
end
layer("BlockLinear", function() return lm.randn(3, 32), "q8_0" end, float("b", 32))
layer("LoRALinear", function() return nn.BlockLinear(lm.randn(3, 32), "q8_0"), 2 end, float("b", 32))
layer("MaxUnpool1d", { 2 }, float("b", 4, 3), index("b", 4, 3))
layer("MaxUnpool2d", { 2 }, float("b", 4, 3, 3), index("b", 4, 3, 3))
layer("MaxUnpool3d", { 2 }, float("b", 4, 3, 3, 3), index("b", 4, 3, 3, 3))
layer("FractionalMaxPool2d", { 2, { output_size = { 2, 2 } } }, images[2])
layer("FractionalMaxPool3d", { 2, { output_size = { 2, 2, 2 } } }, images[3])
layer("BatchNorm1d", { 4 }, rows)
layer("BatchNorm1d", { 4, { track_running_stats = false } }, rows)
layer("SyncBatchNorm", { 4 }, images[2])
for _, x in ipairs { rows, images[2] } do
  for name in ([[
    AlphaDropout CELU Dropout ELU FeatureAlphaDropout Flatten GELU GLU Hardshrink Hardsigmoid Hardswish Hardtanh
    Identity LeakyReLU LogSigmoid Mish PReLU RReLU ReLU ReLU6 SELU SiLU Sigmoid Softplus Softshrink Softsign
    Tanh Tanhshrink
  ]]):gmatch "%S+" do layer(name, {}, x) end
  layer("PReLU", { 4 }, x)
  layer("Threshold", { 0.1, 2 }, x)
  for _, name in ipairs { "Softmax", "LogSoftmax", "Softmin" } do layer(name, { 2 }, x) end
end
layer("Softmax2d", {}, images[2])
layer("Linear", { 4, 3 }, rows)
layer("LazyLinear", { 3 }, rows)
layer("Bilinear", { 4, 4, 3 }, rows, rows)
layer("ChannelShuffle", { 2 }, images[2])
layer("PixelShuffle", { 2 }, images[2])
layer("PixelUnshuffle", { 2 }, images[2])
layer("Fold", { { 4, 4 }, 2 }, float("b", 8, 9))
layer("Unfold", { 2 }, images[2])
layer("GroupNorm", { 2, 4 }, images[2])
layer("LayerNorm", { { 4, 6, 6 } }, images[2])
layer("LayerNorm", { 6 }, images[2])
layer("RMSNorm", { 6 }, images[2])
layer("LocalResponseNorm", { 2 }, images[2])
layer("CrossMapLRN2d", { 3 }, images[2])
layer("Embedding", { 5, 3 }, index("b", 2))
for _, mode in ipairs { "mean", "sum", "max" } do layer("EmbeddingBag", { 5, 3, { mode = mode } }, index("b", 2)) end
for _, name in ipairs { "RNN", "LSTM", "GRU" } do
  layer(name, { 4, 3, { batch_first = true } }, sequence)
  layer(name, { 4, 3, { batch_first = true, num_layers = 2, bidirectional = true } }, sequence)
  layer(name .. "Cell", { 4, 3 }, rows)
end
local batch_first = { batch_first = true, dropout = 0 }
local function encoder() return nn.TransformerEncoderLayer(4, 2, 8, batch_first) end
local function decoder() return nn.TransformerDecoderLayer(4, 2, 8, batch_first) end
layer("MixtureOfExperts", { 4, 3, 5 }, sequence)
layer("MultiheadAttention", { 4, 2, batch_first }, sequence, sequence, sequence)
layer("TransformerEncoderLayer", { 4, 2, 8, batch_first }, sequence)
layer("TransformerEncoder", function() return encoder(), 2 end, sequence)
layer("TransformerDecoderLayer", { 4, 2, 8, batch_first }, sequence, sequence)
layer("TransformerDecoder", function() return decoder(), 2 end, sequence, sequence)
layer("Transformer", { 4, 2, 1, 1, 8, batch_first }, sequence, sequence)
layer("SinusoidalPositions", { 4 }, sequence)
layer("RotaryPositionalEmbeddings", { 4 }, float("b", 5, 2, 4))
for mode,
x in pairs { nearest = images[2], bilinear = images[2], bicubic = images[2], trilinear = images[3],
linear = images[1] } do
  layer("Upsample", { { scale_factor = 2, mode = mode } }, x)
end
layer("UpsamplingBilinear2d", { { scale_factor = 2 } }, images[2])
layer("UpsamplingNearest2d", { { scale_factor = 2 } }, images[2])
layer("Unflatten", { 2, { 2, 2 } }, rows)
layer("CosineSimilarity", {}, rows, rows)
layer("PairwiseDistance", {}, rows, rows)
for _, reduction in ipairs { "none", "sum", "mean" } do
  local function loss(name, ...) layer(name, { { reduction = reduction } }, ...) end
  for _,
  name in ipairs { "BCELoss", "BCEWithLogitsLoss", "HuberLoss", "KLDivLoss", "L1Loss", "MSELoss", "PoissonNLLLoss",
  "SmoothL1Loss" } do
    loss(name, rows, rows)
  end
  for _,
  name in ipairs { "HingeEmbeddingLoss", "MultiLabelSoftMarginLoss", "SoftMarginLoss" } do loss(name, rows,
  index("b", 4)) end
  for _, name in ipairs { "CrossEntropyLoss", "MultiMarginLoss", "NLLLoss" } do loss(name, rows, one_label) end
  layer("LinearCrossEntropyLoss", { 4, 3, { reduction = reduction } }, rows, one_label)
  loss("MultiLabelMarginLoss", rows, index("b", 4))
  loss("CosineEmbeddingLoss", rows, rows, one_label)
  loss("MarginRankingLoss", each, each, each)
  loss("TripletMarginLoss", rows, rows, rows)
  loss("TripletMarginWithDistanceLoss", rows, rows, rows)
  loss("GaussianNLLLoss", rows, rows, rows)
end

-- Containers; CTCLoss, which PyTorch too refuses; layers that are made of trained ones; AdaptiveLogSoftmaxWithLoss,
-- of which clusters without targets get no gradients.
local left_out = {}
for name in ([[
    AdaptiveLogSoftmaxWithLoss BlockEmbedding CTCLoss DataParallel Int8Linear KVCache Module
    ModuleDict ModuleList ParameterDict ParameterList Sequential
    functional init parallel utils
  ]]):gmatch "%S+" do left_out[name] = true end

local function run(name, arguments, makers, n)
  lm.manual_seed(1)
  local net = type(arguments) == "function" and nn[name](arguments()) or nn[name](unpack(arguments))
  if device ~= "cpu" then net:to(device) end
  local given = {}
  for i, make in ipairs(makers) do
    given[i] = make(n)
    if given[i]:is_floating_point() then given[i]:requires_grad_() end
  end
  return net, given, (net(unpack(given)))
end

describe("an empty batch", function()
  local tried = {}
  for _, case in ipairs(cases) do
    local name, arguments, makers = unpack(case)
    tried[name] = (tried[name] or 0) + 1
    it(("goes through %s, forward and backward (%d)"):format(name, tried[name]), function()
      local _, _, two = run(name, arguments, makers, 2)
      local net, given, y = run(name, arguments, makers, 0)
      local wanted = two.shape
      if #wanted > 0 then wanted[1] = 0 end
      assert.same(wanted, y.shape)
      y:sum():backward()
      for i, x in ipairs(given) do
        if x.grad then assert.same(x.shape, x.grad.shape, "input " .. i) end
      end
      assert(not given[1].requires_grad or given[1].grad, "the first input got no gradient")
      for parameter, p in net:named_parameters() do
        assert(p.grad, parameter .. " got no gradient")
        assert(lm.equal(p.grad, lm.zeros_like(p)), parameter .. ".grad is " .. tostring(p.grad))
      end
      for buffer, b in net:named_buffers() do
        assert(not b:is_floating_point() or b:isfinite():all():item(), buffer .. " is " .. tostring(b))
      end
    end)
  end

  it("is tried on every layer", function()
    require("luminary.base.options").load_all(nn)
    for name, class in pairs(nn) do
      assert(type(class) ~= "table" or tried[name] or left_out[name], name .. " is not tried with an empty batch")
    end
  end)

  it("leaves running statistics and counts, as PyTorch", function()
    local net = nn.BatchNorm1d(3):to(device)
    net(lm.zeros({ 0, 3 }, { device = device }))
    assert.same({ 0, 0, 0 }, net.running_mean:totable())
    assert.same({ 1, 1, 1 }, net.running_var:totable())
    assert.equal(1, net.num_batches_tracked:item())
  end)

  it("of batch_norm may have one dim", function()
    local x, none = lm.zeros({ 0 }, { device = device, requires_grad = true }), lm.zeros({ 0 }, { device = device })
    for _, training in ipairs { true, false } do
      local y = lm.batch_norm(x, none, none, { training = training })
      assert.same({ 0 }, y.shape)
      y:sum():backward()
      assert.same({ 0 }, x.grad.shape)
    end
    assert.error_matches(function() lm.batch_norm(lm.zeros(3), nil, nil, { training = true }) end,
    "batch_norm: expected x to have shape %[N, C%]")
  end)

  it("goes through a residual network", function()
    local net = lm.models.resnet18({ num_classes = 3 }):to(device)
    net(lm.zeros({ 0, 3, 32, 32 }, { device = device })):sum():backward()
    for name, p in net:named_parameters() do assert(lm.equal(p.grad, lm.zeros_like(p)), name) end
  end)
end)

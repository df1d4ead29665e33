-- Exports networks of lm.models and layers of lm.nn from random weights, for scripts/dev/onnx_export:
--   luajit scripts/dev/onnx_export.lua FOLDER [PATTERN [OPSET]]
-- Writes NAME.onnx, and NAME.safetensors with inputs and outputs of two calls: in.1.0, out.1.0, in.2.0, …, of which the
-- second has other sizes of the dynamic axes. Prints a line for each network: how far lm.onnx.load is from it.
local lm = require "luminary"
local nn, models = lm.nn, lm.models
local folder, pattern = arg[1], arg[2] or ""
if not folder then
  io.stderr:write "onnx_export: FOLDER is missing\n"
  os.exit(2)
end

local cases = {}
-- Adds a case: make() returns the network, inputs(n, l) its inputs for a batch of n and sequences of l.
local function case(name, make, inputs, axes)
  cases[#cases + 1] = {name = name, make = make, inputs = inputs, axes = axes}
end

local function image(size, channels)
  return function(n) return {lm.randn(n, channels or 3, size, size)} end
end
local batch, sequence = {[1] = "N"}, {[1] = "N", [2] = "L"}
local function ids(vocabulary)
  return function(n, l) return {lm.randint(1, vocabulary + 1, {n, l})} end
end

-- ---- models

local sizes = {inception_v3 = 96, googlenet = 64, alexnet = 64, convnext_tiny = 64}
for name in ([[alexnet convnext_tiny densenet121 efficientnet_b0 efficientnet_v2_s mnasnet0_5 mobilenet_v2
  mobilenet_v3_small mobilenet_v3_large regnet_x_400mf regnet_y_400mf resnet18 resnet50 resnext50_32x4d
  shufflenet_v2_x0_5 squeezenet1_0 squeezenet1_1 swin_t swin_v2_t vgg11 vgg11_bn wide_resnet50_2 googlenet
  inception_v3]]):gmatch "%S+" do
  case(name, function() return models[name] {num_classes = 7} end, image(sizes[name] or 64), batch)
end
case("vgg_f", function() return models.vgg_f {num_classes = 7} end, image(224), batch)
case("lenet", function() return models.lenet() end, image(28, 1), batch)
case("mlp", function() return models.mlp() end, image(28, 1), batch)
local transformer = {image_size = 32, patch_size = 8, num_layers = 2, num_heads = 2, hidden_dim = 16, mlp_dim = 32}
case("vit", function() return models.vit(transformer) end, image(32), batch)
case("deit", function() return models.deit(transformer) end, image(32), batch)
case("dinov2", function() return models.dinov2(transformer) end, image(32), batch)
case("unet2d", function() return models.unet2d {
  sample_size = 16, block_out_channels = {8, 16}, norm_num_groups = 4, layers_per_block = 1, attention_head_dim = 4,
  down_block_types = {"DownBlock2D", "AttnDownBlock2D"}, up_block_types = {"AttnUpBlock2D", "UpBlock2D"},
} end, function(n) return {lm.randn(n, 3, 16, 16), lm.full({n}, 7, {dtype = "int64"})} end, batch)

local small = {
  vocab_size = 40, hidden_size = 16, num_hidden_layers = 2, num_attention_heads = 4, num_key_value_heads = 2,
  intermediate_size = 24, max_position_embeddings = 32, head_dim = 4,
}
for name in ("llama mistral qwen2 qwen3 smollm3 gemma gemma2 gemma3 phi3"):gmatch "%S+" do
  case(name, function() return models[name](small) end, ids(40), sequence)
end
local function gpt2() return models.gpt2 {vocab_size = 40, n_positions = 32, n_embd = 16, n_layer = 2, n_head = 2} end
case("gpt2", gpt2, ids(40), sequence)
case("gpt2_masked", gpt2, function(n, l)
  local mask = lm.ones({n, l}, {dtype = "int64"})
  mask[1][1] = 0
  return {lm.randint(1, 41, {n, l}), {attention_mask = mask}}
end, sequence)
for name in ("bert roberta distilbert"):gmatch "%S+" do
  for _, head in ipairs {"none", "masked_lm", "sequence_classification"} do
    case(name .. "_" .. head, function()
      return models[name] {
        vocab_size = 40, hidden_size = 16, num_hidden_layers = 2, num_attention_heads = 2, intermediate_size = 24,
        max_position_embeddings = 32, head = head, num_labels = 3,
      }
    end, ids(40), sequence)
  end
end

-- ---- layers

local function layer(name, make, ...)
  local shape = {...}
  case("nn." .. name, make, function(n) return {lm.randn(n, unpack(shape))} end, batch)
end
for name in ([[ReLU ReLU6 LeakyReLU ELU CELU SELU GELU SiLU Mish Softplus Softsign Softshrink Hardshrink Tanhshrink
  Hardtanh Hardsigmoid Hardswish Sigmoid Tanh LogSigmoid PReLU Flatten Identity]]):gmatch "%S+" do
  layer(name, function() return nn[name]() end, 4, 6)
end
layer("GELU_tanh", function() return nn.GELU {approximate = "tanh"} end, 6)
layer("Threshold", function() return nn.Threshold(0.1, 2) end, 6)
layer("GLU", function() return nn.GLU() end, 6)
layer("Softmax", function() return nn.Softmax(2) end, 6)
layer("LogSoftmax", function() return nn.LogSoftmax(2) end, 6)
layer("Softmin", function() return nn.Softmin(2) end, 6)
layer("Linear", function() return nn.Linear(6, 3) end, 4, 6)
layer("Linear_without_bias", function() return nn.Linear(6, 3, {bias = false}) end, 6)
layer("Conv1d", function() return nn.Conv1d(4, 6, 3, {padding = 1, stride = 2}) end, 4, 9)
layer("Conv2d", function() return nn.Conv2d(4, 6, 3, {padding = "same", groups = 2}) end, 4, 9, 8)
layer("ConvTranspose1d", function() return nn.ConvTranspose1d(4, 6, 3, {stride = 2}) end, 4, 9)
layer("ConvTranspose2d", function() return nn.ConvTranspose2d(4, 6, 3, {stride = 2, output_padding = 1}) end, 4, 5, 6)
layer("MaxPool1d", function() return nn.MaxPool1d(2) end, 4, 9)
layer("MaxPool2d", function() return nn.MaxPool2d(3, {stride = 2, padding = 1, ceil_mode = true}) end, 4, 9, 8)
layer("AvgPool1d", function() return nn.AvgPool1d(2) end, 4, 9)
layer("AvgPool2d", function() return nn.AvgPool2d(3, {stride = 2, padding = 1, count_include_pad = false}) end, 4, 9, 8)
layer("AdaptiveAvgPool2d", function() return nn.AdaptiveAvgPool2d {3, 4} end, 4, 7, 9)
layer("AdaptiveMaxPool2d", function() return nn.AdaptiveMaxPool2d(2) end, 4, 8, 6)
layer("BatchNorm1d", function() return nn.BatchNorm1d(4) end, 4)
layer("BatchNorm2d", function() return nn.BatchNorm2d(4) end, 4, 5, 5)
layer("InstanceNorm2d", function() return nn.InstanceNorm2d(4, {affine = true}) end, 4, 5, 5)
layer("GroupNorm", function() return nn.GroupNorm(2, 4) end, 4, 5, 5)
layer("LayerNorm", function() return nn.LayerNorm(6) end, 4, 6)
layer("RMSNorm", function() return nn.RMSNorm(6) end, 4, 6)
layer("LocalResponseNorm", function() return nn.LocalResponseNorm(3) end, 6, 4, 4)
layer("Upsample_nearest", function() return nn.Upsample {scale_factor = 2} end, 4, 5, 6)
layer("Upsample_bilinear", function() return nn.Upsample {scale_factor = 2, mode = "bilinear"} end, 4, 5, 6)
layer("PixelShuffle", function() return nn.PixelShuffle(2) end, 4, 5, 6)
layer("PixelUnshuffle", function() return nn.PixelUnshuffle(2) end, 4, 6, 6)
layer("ChannelShuffle", function() return nn.ChannelShuffle(2) end, 4, 6, 6)
layer("ZeroPad2d", function() return nn.ZeroPad2d(2) end, 4, 6, 6)
layer("ReflectionPad2d", function() return nn.ReflectionPad2d(2) end, 4, 6, 6)
layer("ReplicationPad2d", function() return nn.ReplicationPad2d(2) end, 4, 6, 6)
layer("Unflatten", function() return nn.Unflatten(2, {2, 3}) end, 6)
layer("Dropout", function() return nn.Dropout() end, 6)
case("nn.Embedding", function() return nn.Embedding(40, 6) end, ids(40), sequence)
case("nn.CosineSimilarity", function() return nn.CosineSimilarity(2) end, function(n)
  return {lm.randn(n, 6), lm.randn(n, 6)}
end, batch)
case("nn.MultiheadAttention", function() return nn.MultiheadAttention(8, 2, {batch_first = true}) end, function(n, l)
  local x = lm.randn(n, l, 8)
  return {x, x * 2, x + 1}
end, sequence)
case("nn.TransformerEncoderLayer", function()
  return nn.TransformerEncoderLayer(8, 2, {dim_feedforward = 16, batch_first = true})
end, function(n, l) return {lm.randn(n, l, 8)} end, sequence)
layer("RNN", function() return nn.RNN(5, 6, {batch_first = true}) end, 4, 5)
layer("GRU", function() return nn.GRU(5, 6, {batch_first = true}) end, 4, 5)
layer("LSTM", function() return nn.LSTM(5, 6, {batch_first = true, bidirectional = true}) end, 4, 5)
for _, name in ipairs {"RNN", "GRU", "LSTM"} do
  case(("nn.%s_lengths"):format(name), function()
    local rnn, net = nn.utils.rnn, nn.Module()
    net.layer = nn[name](5, 6, {batch_first = true, num_layers = 2, bidirectional = name ~= "RNN"})
    function net.forward(self, x, lengths)
      local packed = rnn.pack_padded_sequence(x, lengths, {batch_first = true, enforce_sorted = false})
      local y, h = self.layer(packed)
      h = name == "LSTM" and h[2] or h
      return rnn.pad_packed_sequence(y, {batch_first = true, total_length = x.shape[2]}), h
    end
    return net
  end, function(n, l)
    local lengths = lm.full({n}, l, {dtype = "int64"})
    lengths[1] = l - 1
    return {lm.randn(n, l, 5), lengths}
  end, sequence)
end

case("nn.MultiheadAttention_masked", function()
  return nn.MultiheadAttention(8, 2, {batch_first = true})
end, function(n, l)
  local x, mask = lm.randn(n, l, 8), lm.zeros(n, l, {dtype = "bool"})
  mask[{{}, {l - 1, l}}] = true
  return {x, x * 2, x + 1, {key_padding_mask = mask}}
end, sequence)
case("nn.TransformerEncoder_masked", function()
  return nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, {dim_feedforward = 16, batch_first = true}), 2)
end, function(n, l)
  local mask = lm.zeros(n, l, {dtype = "bool"})
  mask[{{}, l}] = true
  return {lm.randn(n, l, 8), {src_key_padding_mask = mask}}
end, sequence)
for _, mode in ipairs {"sum", "mean"} do
  case("nn.EmbeddingBag_" .. mode, function()
    return nn.EmbeddingBag(40, 6, {mode = mode, padding_idx = 3})
  end, ids(40), sequence)
end

-- ---- functions

-- Adds a case of f(x), which may return several tensors. x: [n, ...].
local function of(name, f, ...)
  local shape = {...}
  local Module = nn.Module:extend "Module"
  function Module.forward(_, x) return f(x) end
  case("lm." .. name, function() return Module() end, function(n) return {lm.randn(n, unpack(shape))} end, batch)
end
of("nan_to_num", function(x) return (x:abs() - 1):sqrt():nan_to_num(2), (x / 0):nan_to_num(0, 5, -5) end, 6)
of("atan2", function(x) return x:atan2(x:flip {2}), x:round():atan2(0), x:atan2(0.5) end, 6)
of("outer", function(x) return lm.outer(x[1], x:select(2, 1)) end, 6)
of("cdist", function(x) return lm.cdist(x, x:flip {2}), lm.cdist(x, x + 1, 1), lm.cdist(x, x + 1, 3) end, 4, 6)
of("median", function(x) return (x:median(2)), (x:median(3, {keepdim = true})), x:median() end, 4, 7)
of("kthvalue", function(x)
  local v, i = x:kthvalue(2, 2, {keepdim = true})
  return v, x:gather(2, i)
end, 7)
of("quantile", function(x) return x:quantile(0.3, 2), x:quantile(0.7, 2, {interpolation = "nearest"}) end, 7)
of("max_unpool2d", function(x)
  local y, i = nn.functional.max_pool2d(x, 2, {return_indices = true})
  return y, nn.functional.max_unpool2d(y * 2, i, 2)
end, 3, 6, 8)
of("det", function(x) return lm.linalg.det(x) end, 4, 4)
of("rfft", function(x) return lm.fft.rfft(x), lm.fft.rfft(x, {norm = "ortho"}) end, 3, 15)
of("stft", function(x) return lm.stft(x, 16, {hop_length = 4, window = lm.hann_window(16)}) end, 64)
of("half", function(x) return x:narrow(1, 1, math.floor(x:size(1) / 2)), x:chunk(2, 1)[1] * 2 end, 6)

-- ---- running

-- Returns the tensors of the inputs, in the order of export.
local function flat(args)
  local list = {}
  for _, v in ipairs(args) do
    if lm.is_tensor(v) then
      list[#list + 1] = v
    else
      for _, t in pairs(v) do list[#list + 1] = t end
    end
  end
  return list
end

-- Returns the largest difference of two tensors, relative to the largest element.
local function distance(a, b)
  if a.dtype ~= b.dtype or table.concat(a.shape, ",") ~= table.concat(b.shape, ",") then return math.huge end
  a, b = a:double(), b:double()
  return (a - b):abs():max():item() / math.max(a:abs():max():item(), 1e-30)
end

local function run(each)
  lm.manual_seed(0)
  local net = each.make():eval()
  -- Statistics and scales that are not those of a new layer.
  for name, b in net:named_buffers() do
    if name:find "running_mean" then b:normal_(0, 0.1) elseif name:find "running_var" then b:uniform_(0.5, 1.5) end
  end
  local small_inputs, large = each.inputs(2, 5), each.inputs(3, 9)
  local axes, names = {}, {}
  for i, x in ipairs(flat(small_inputs)) do
    names[i], axes["x" .. i] = "x" .. i, x.ndim > 1 and each.axes or {[1] = "N"}
  end
  local path = ("%s/%s.onnx"):format(folder, each.name)
  lm.onnx.export(net, small_inputs, path, {input_names = names, dynamic_axes = axes, opset = tonumber(arg[3])})
  local back, worst, data = lm.onnx.load(path), 0, {}
  for k, inputs in ipairs {small_inputs, large} do
    local list = flat(inputs)
    for i, x in ipairs(list) do
      local counts = each.name == "gpt2_masked" and i == 2 or each.name == "unet2d" or each.name:find "_lengths$"
      if x.dtype == "int64" and not counts then
        list[i] = x - 1
      end
      data[("in.%d.%d"):format(k, i)] = list[i]
    end
    lm.no_grad(function()
      local wanted, got = {net(unpack(inputs))}, {back(unpack(list))}
      wanted = flat(wanted)
      for i, y in ipairs(wanted) do
        data[("out.%d.%d"):format(k, i)] = y:contiguous()
        worst = math.max(worst, distance(y, got[i]))
      end
    end)
  end
  lm.save(("%s/%s.safetensors"):format(folder, each.name), data)
  return worst
end

local passed, ran = 0, 0
for _, each in ipairs(cases) do
  if each.name:find(pattern) then
    ran = ran + 1
    local ok, worst = pcall(run, each)
    passed = passed + (ok and worst <= 1e-5 and 1 or 0)
    print(ok and ("%-30s read back: %.1e"):format(each.name, worst) or ("%-30s %s"):format(each.name, worst))
    io.stdout:flush()
    collectgarbage()
  end
end
print(("%d of %d exported and read back within 1e-5"):format(passed, ran))

-- Luminary's side of scripts/bench: answers each line "name" with "eager seconds".
local lm = require "luminary"
local nn, F, optim, data = lm.nn, lm.nn.functional, lm.optim, lm.data
local models = dofile(arg[0]:match("^(.*)/bench/[^/]*$") .. "/models.lua")
lm.set_num_threads(tonumber(arg[1]))
local steps = { mlp1 = 400, mlp256 = 40, lenet256 = 8, resnet64 = 2, resnet256 = 1, sgd = 10, adam = 10,
  lenet256_bf16 = 8, resnet64_bf16 = 2, mm2048 = 4, mm2048_bf16 = 4, resnet50 = 1, vgg11 = 1, mobilenet = 1,
  transformer256 = 2, transformer256_dropout = 2, attention4096 = 1, attention4096_causal = 1,
  attention4096_dropout = 1 }

-- Calls f until collector and cache of blocks have settled: an MLP's first 150 steps touch 100 MB of new memory.
local function warm_up(f)
  local start = lm.time()
  for _ = 1, 3 do f() end
  while lm.time() - start < 0.5 do f() end
end

local function timed(f, n)
  local start = lm.time()
  for _ = 1, n do f() end
  return (lm.time() - start) / n
end

-- Returns a training step of a network; autocast: in bfloat16.
local function training(name, batch, autocast)
  local mode = { device = "cpu", dtype = "bfloat16", enabled = autocast == true }
  local large = lm.models[name] ~= nil and models[name] == nil
  local net = (large and lm.models or models)[name]()
  local x = lm.rand(large and { batch, 3, 224, 224 } or { batch, 1, 28, 28 })
  local y = lm.randint(1, large and 1001 or 11, { batch })
  local opt = optim.SGD(net:parameters(), { lr = 0.01, momentum = 0.9 })
  return function()
    local loss = lm.autocast(mode, function() return F.cross_entropy(net(x), y) end)
    opt:zero_grad()
    loss:backward()
    opt:step()
    return loss:item()
  end
end

local function optimizer(make)
  local params = {}
  for k, p in ipairs(models.resnet18():parameters()) do
    params[k] = nn.Parameter(p:detach():clone())
    params[k].grad = lm.randn_like(p) * 1e-3
  end
  local opt = make(params)
  return function() opt:step() end
end

local function product(dtype)
  local p, q = lm.randn(2048, 2048):to(dtype), lm.randn(2048, 2048):to(dtype)
  return function() return p:mm(q) end
end

-- Returns a pass of a convolution of 8 images: "fwd_256_64_1_1_56" with 256 channels in, 64 out, a kernel of 1 x 1,
-- stride 1 and images of 56 x 56; "in_..." and "wt_..." are the gradients of its images and of its weights.
local function convolution(name)
  local pass, c, k, size, stride, side = name:match("^(%a+)_(%d+)_(%d+)_(%d+)_(%d+)_(%d+)$")
  local opt = { stride = tonumber(stride), padding = (size - 1) / 2 }
  local x = lm.rand { 8, tonumber(c), tonumber(side), tonumber(side) }:contiguous({ memory_format = "channels_last" })
  local w = lm.rand { tonumber(k), tonumber(c), tonumber(size), tonumber(size) }
  local g = lm.conv2d(x, w, nil, opt):uniform_()
  local run = {
    fwd = function() return lm.conv2d(x, w, nil, opt) end,
    ["in"] = function() return lm.conv2d_input(g, w, x.shape, opt) end,
    wt = function() return lm.conv2d_weight(g, x, w.shape, opt) end,
  }
  return run[pass]
end

-- Returns a step of a layer over sequences [N, L, 256], with the loss of its first result.
local function sequences(net, batch, length)
  local x, opt = lm.randn(batch, length, 256), optim.SGD(net:parameters(), { lr = 0.01 })
  return function()
    local y = net(x)
    opt:zero_grad()
    y:square():mean():backward()
    opt:step()
  end
end

local function transformer(dropout)
  local layer = nn.TransformerEncoderLayer(256, 4, { dim_feedforward = 1024, dropout = dropout, batch_first = true })
  return sequences(nn.TransformerEncoder(layer, 6), 16, 128)
end

-- Returns attention over [1, 8, 4096, 64] with its gradients.
local function attention(options)
  local list = {}
  for i = 1, 3 do list[i] = lm.randn({ 1, 8, 4096, 64 }, { requires_grad = true }) end
  local g = lm.randn(1, 8, 4096, 64)
  return function()
    for _, t in ipairs(list) do t.grad = nil end
    F.scaled_dot_product_attention(list[1], list[2], list[3], options):backward(g)
  end
end

-- "step_Adam" is a step of optim.Adam over ResNet-18's parameters, with its defaults.
local build = setmetatable({
  sgd = function() return optimizer(function(p) return optim.SGD(p, { lr = 0.01, momentum = 0.9 }) end) end,
  adam = function() return optimizer(function(p) return optim.Adam(p, { lr = 0.001 }) end) end,
  mlp1 = function() return training("mlp", 1) end,
  mlp256 = function() return training("mlp", 256) end,
  lenet256 = function() return training("lenet", 256) end,
  resnet64 = function() return training("resnet18", 64) end,
  resnet256 = function() return training("resnet18", 256) end,
  resnet50 = function() return training("resnet50", 8) end,
  vgg11 = function() return training("vgg11", 16) end,
  mobilenet = function() return training("mobilenet_v2", 8) end,
  lenet256_bf16 = function() return training("lenet", 256, true) end,
  resnet64_bf16 = function() return training("resnet18", 64, true) end,
  mm2048 = function() return product("float32") end,
  mm2048_bf16 = function() return product("bfloat16") end,
  rnn256 = function() return sequences(nn.RNN(256, 256, { batch_first = true }), 32, 64) end,
  gru256 = function() return sequences(nn.GRU(256, 256, { batch_first = true }), 32, 64) end,
  lstm256 = function() return sequences(nn.LSTM(256, 256, { batch_first = true }), 32, 64) end,
  transformer256 = function() return transformer(0) end,
  transformer256_dropout = function() return transformer(0.1) end,
  attention4096 = function() return attention {} end,
  attention4096_causal = function() return attention { is_causal = true } end,
  attention4096_dropout = function() return attention { dropout_p = 0.1 } end,
}, { __index = function(_, name)
  local class = name:match("^step_(%w+)$")
  return function() return class and optimizer(optim[class]) or convolution(name) end
end })

local a, b = lm.rand { 4 }, lm.rand { 4 }
local w = lm.rand({ 4 }, { requires_grad = true })
local loops = {
  add4 = function(n)
    local c
    for _ = 1, n do c = a + b end
    return c
  end,
  small_step = function(n) for _ = 1, n do ((w + a) * b):sum():backward() end end,
}

-- Epochs in shuffled batches, by count of workers. "normal_epoch": Fashion-MNIST with mean 0 and deviation 1, as a
-- script has it; "sample_epoch": the same by a function of the script's, which is called with each image;
-- "photo_epoch": a folder of images ($LUMINARY_BENCH_IMAGES), read as to train a ResNet.
local T = lm.vision.transforms
local MEAN, DEVIATION = 0.2860, 0.3530
local sets = {
  normal_epoch = function()
    return data.FashionMNIST { transform = T.Compose { T.ToTensor(), T.Normalize({ MEAN }, { DEVIATION }) } }, 256
  end,
  sample_epoch = function()
    return data.FashionMNIST { transform = function(x) return x:sub_(MEAN):div_(DEVIATION) end }, 256
  end,
  photo_epoch = function()
    return data.ImageFolder(os.getenv "LUMINARY_BENCH_IMAGES", { transform = T.Compose {
      T.RandomResizedCrop(224), T.RandomHorizontalFlip(), T.ToTensor(),
      T.Normalize({ 0.485, 0.456, 0.406 }, { 0.229, 0.224, 0.225 }),
    } }), 64
  end,
}

local epochs = {}
local function epoch_of(name)
  local set, size = sets[name]()
  local loaders = {}
  for count = 0, 2 do
    loaders["workers" .. count] = data.DataLoader(set, { batch_size = size, shuffle = true, num_workers = count })
  end
  return function()
    local answer = {}
    for variant, loader in pairs(loaders) do
      answer[#answer + 1] = ("%s %.9f"):format(variant, timed(function() for _ in loader:iter() do end end, 1))
    end
    return table.concat(answer, " ")
  end
end

local cached, current
for name in io.lines() do
  local seconds, variants
  if name == "require" then
    local start = lm.time()
    os.execute("luajit -e 'require \"luminary\"'")
    seconds = lm.time() - start
  elseif loops[name] then
    loops[name](20000)
    local start = lm.time()
    loops[name](200000)
    seconds = (lm.time() - start) / 200000
  elseif sets[name] then
    epochs[name] = epochs[name] or epoch_of(name)
    variants = epochs[name]()
  elseif name == "data_epoch" then
    if cached ~= name then
      local loader = data.DataLoader(data.FashionMNIST { train = true }, { batch_size = 256, shuffle = true })
      cached, current = name, function() for _ in loader:epoch(1) do end end
      current()
    end
    seconds = timed(current, 1)
  else
    if cached ~= name then
      cached, current = name, build[name]()
      collectgarbage()
      warm_up(current)
    end
    seconds = timed(current, steps[name] or 10)
  end
  io.write(variants or ("eager %.9f"):format(seconds), "\n")
  io.flush()
end

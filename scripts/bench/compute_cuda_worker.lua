-- Luminary's side of scripts/bench/compute --device cuda: answers each line "name" with "variant seconds ...".
local lm = require "luminary"
local nn, F, optim, data = lm.nn, lm.nn.functional, lm.optim, lm.data
local models = dofile(arg[0]:match("^(.*)/bench/[^/]*$") .. "/models.lua")
local device = arg[2]
lm.cuda.set_device(device)

-- Seconds a call, with the device idle before and after.
local function timed(f, n)
  lm.synchronize(device)
  local start = lm.time()
  for _ = 1, n do f() end
  lm.synchronize(device)
  return (lm.time() - start) / n
end

local function training(name, batch, x, y)
  local net = models[name]():to(device)
  net:to { memory_format = "channels_last" }
  x = x or lm.rand({ batch, 1, 28, 28 }, { device = device })
  y = y or lm.randint(1, 11, { batch }, { device = device })
  local opt = optim.SGD(net:parameters(), { lr = 0.01, momentum = 0.9 })
  return function(a, b)
    local loss = F.cross_entropy(net(a or x), b or y)
    opt:zero_grad()
    loss:backward()
    opt:step()
    return loss
  end, x, y
end

local function both(name, batch)
  local eager = training(name, batch)
  local step, x, y = training(name, batch)
  local graphed = lm.cuda.make_graphed_step(step, { x, y })
  return { eager = eager, captured = function() graphed(x, y) end }
end

local function epoch()
  local set = data.FashionMNIST { train = true }
  local batches = {}
  for x, y in data.DataLoader(set, { batch_size = 256, drop_last = true }):epoch(1) do
    batches[#batches + 1] = { x:to(device), y:to(device) }
  end
  local step = training("lenet", 256)
  local captured = lm.cuda.make_graphed_step(training("lenet", 256), batches[1])
  local function over(f)
    return function()
      for _, b in ipairs(batches) do f(b[1], b[2]) end
    end
  end
  return { eager = over(step), captured = over(captured) }
end

local function tf32(on)
  lm.backends.cuda.matmul.allow_tf32 = on
  lm.backends.cudnn.allow_tf32 = on
end

local n = 2 ^ 28 -- floats: 1 GiB
local function large(f)
  return function()
    local x = lm.rand({ n / 4096, 4096 }, { device = device })
    local y = lm.empty_like(x)
    return { eager = function() return f(x, y) end }
  end
end

local function product(dtype)
  return function()
    local a = lm.rand({ 8192, 8192 }, { device = device }):to(dtype)
    local b = lm.rand({ 8192, 8192 }, { device = device }):to(dtype)
    return { eager = function() return a:mm(b) end }
  end
end

-- Forward and backward of f over x; its parameters' gradients too.
local function both_ways(size, f)
  return function()
    local x = lm.rand(size, { device = device, requires_grad = true })
    local g = lm.rand(size, { device = device })
    f = f:to(device)
    return { eager = function() f(x):backward(g) end }
  end
end

-- Two layers of 512 over 128 steps of 64 sequences, forward and backward.
local function recurrent(kind, dtype)
  return function()
    local net = nn[kind](512, 512, 2, { dtype = dtype, device = device })
    local x = lm.rand({ 128, 64, 512 }, { device = device }):to(dtype):requires_grad_()
    local g = lm.rand({ 128, 64, 512 }, { device = device }):to(dtype)
    return { eager = function() net(x):backward(g) end }
  end
end

-- 16 heads of 64 over 2,048 places that see those before them, 8 times, forward and backward.
local function attention(dtype)
  return function()
    local list = {}
    for i = 1, 3 do list[i] = lm.rand({ 8, 16, 2048, 64 }, { device = device }):to(dtype):requires_grad_() end
    local g = lm.rand({ 8, 16, 2048, 64 }, { device = device }):to(dtype)
    return { eager = function()
      F.scaled_dot_product_attention(list[1], list[2], list[3], { is_causal = true }):backward(g)
    end }
  end
end

local function adamw()
  local params = {}
  for i = 1, 124 do params[i] = nn.Parameter(lm.rand({ 1000000 }, { device = device })) end
  for _, p in ipairs(params) do p.grad = lm.rand({ 1000000 }, { device = device }) end
  local opt = optim.AdamW(params, { lr = 1e-4 })
  return { eager = function() opt:step() end }
end

local function upload()
  local x = lm.rand { n / 16 } -- 64 MiB
  local pinned, there = x:pin_memory(), lm.empty({ n / 16 }, { device = device })
  return {
    pageable = function() there:copy_(x) end,
    pinned = function() there:copy_(pinned, { non_blocking = true }) end,
  }
end

local build = {
  launch = function()
    local a, b = lm.rand({ 4 }, { device = device }), lm.rand({ 4 }, { device = device })
    return { eager = function() return a + b end }
  end,
  small_step = function()
    local a, b = lm.rand({ 4 }, { device = device }), lm.rand({ 4 }, { device = device })
    local w = lm.rand({ 4 }, { device = device, requires_grad = true })
    return { eager = function() ((w + a) * b):sum():backward() end }
  end,
  lenet256_epoch = epoch,
  resnet256 = function() return both("resnet18", 256) end,
  resnet256_tf32 = function() return both("resnet18", 256) end,
  copy = large(function(x, y) return y:copy_(x) end),
  add = large(function(x, y) return lm.add(x, y) end),
  exp = large(function(x) return x:exp() end),
  sum = large(function(x) return x:sum() end),
  sum_dim = large(function(x) return x:sum(1) end),
  softmax = large(function(x) return x:softmax(2) end),
  log_softmax50k = both_ways({ 8192, 50257 }, nn.LogSoftmax(2)),
  layer_norm768 = both_ways({ 32768, 768 }, nn.LayerNorm(768)),
  batch_norm14 = both_ways({ 256, 256, 14, 14 }, nn.BatchNorm2d(256)),
  lstm512 = recurrent("LSTM", "float32"), lstm512_tf32 = recurrent("LSTM", "float32"),
  lstm512_bf16 = recurrent("LSTM", "bfloat16"), gru512_bf16 = recurrent("GRU", "bfloat16"),
  attention2048_tf32 = attention "float32", attention2048_bf16 = attention "bfloat16",
  adamw124m = adamw, upload = upload,
  mm8192 = product "float32", mm8192_tf32 = product "float32", mm8192_bf16 = product "bfloat16",
}
local calls = { launch = 20000, small_step = 2000, lenet256_epoch = 1 }

local cached, variants
for name in io.lines() do
  tf32(name:find "tf32" ~= nil)
  if cached ~= name then
    variants = nil -- luacheck: ignore
    collectgarbage()
    collectgarbage()
    lm.cuda.empty_cache(device)
    cached, variants = name, build[name]()
    for _, f in pairs(variants) do timed(f, 3) end
  end
  local line = {}
  for variant, f in pairs(variants) do
    line[#line + 1] = ("%s %.9f"):format(variant, timed(f, calls[name] or 10))
  end
  io.write(table.concat(line, " "), "\n")
  io.flush()
end

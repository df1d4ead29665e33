-- Luminary's side of scripts/bench/compute --device cuda: answers each line "name" with "variant seconds ...".
local lm = require "luminary"
local nn, F, optim = lm.nn, lm.nn.functional, lm.optim
local scripts = arg[0]:match("^(.*)/bench/[^/]*$")
local models, bench = dofile(scripts .. "/models.lua"), dofile(scripts .. "/bench/cuda_networks.lua")
local sized = bench.sized
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

-- Returns a case: an epoch as of Fashion-MNIST, 234 batches of 256 drawn images.
local function epoch()
  local batches = {}
  for i = 1, sized(234, 2) do
    batches[i] = { lm.rand({ sized(256, 2), 1, 28, 28 }, { device = device }),
      lm.randint(1, 11, { sized(256, 2) }, { device = device }) }
  end
  local step = training("lenet", sized(256, 2))
  local captured = lm.cuda.make_graphed_step(training("lenet", sized(256, 2)), batches[1])
  local function over(f)
    return function()
      for _, b in ipairs(batches) do f(b[1], b[2]) end
    end
  end
  return { eager = over(step), captured = over(captured) }
end

local function network(name)
  return function()
    local step, inputs = bench.networks(device)[name]()
    local graphed = lm.cuda.make_graphed_step(step, inputs)
    return { eager = function() step(unpack(inputs)) end, captured = function() graphed(unpack(inputs)) end }
  end
end

local function tf32(on)
  lm.backends.cuda.matmul.allow_tf32 = on
  lm.backends.cudnn.allow_tf32 = on
end

local n = sized(2 ^ 28, 2 ^ 14) -- floats: 1 GiB
local function large(f)
  return function()
    local x = lm.rand({ n / 4096, 4096 }, { device = device })
    local y = lm.empty_like(x)
    return { eager = function() return f(x, y) end }
  end
end

local function product(dtype)
  return function()
    local side = sized(8192, 16)
    local a = lm.rand({ side, side }, { device = device }):to(dtype)
    local b = lm.rand({ side, side }, { device = device }):to(dtype)
    return { eager = function() return a:mm(b) end }
  end
end

-- Returns a case: forward and backward of f over x, its parameters' gradients too.
local function both_ways(size, f)
  return function()
    local x = lm.rand(size, { device = device, requires_grad = true })
    local g = lm.rand(size, { device = device })
    f = f:to(device)
    return { eager = function() f(x):backward(g) end }
  end
end

-- Returns a case: two layers of 512 over 128 steps of 64 sequences, forward and backward.
local function recurrent(kind, dtype)
  return function()
    local width, size = sized(512, 8), sized({ 128, 64, 512 }, { 5, 2, 8 })
    local net = nn[kind](width, width, 2, { dtype = dtype, device = device })
    local x = lm.rand(size, { device = device }):to(dtype):requires_grad_()
    local g = lm.rand(size, { device = device }):to(dtype)
    return { eager = function() net(x):backward(g) end }
  end
end

-- Returns a case: 16 heads of 64 over 2,048 positions that see earlier ones, 8 times, forward and backward.
local function attention(dtype)
  return function()
    local list, size = {}, sized({ 8, 16, 2048, 64 }, { 1, 2, 40, 64 })
    for i = 1, 3 do list[i] = lm.rand(size, { device = device }):to(dtype):requires_grad_() end
    local g = lm.rand(size, { device = device }):to(dtype)
    return { eager = function()
      F.scaled_dot_product_attention(list[1], list[2], list[3], { is_causal = true }):backward(g)
    end }
  end
end

local function adamw()
  local params = {}
  for i = 1, 124 do params[i] = nn.Parameter(lm.rand({ sized(1000000, 100) }, { device = device })) end
  for _, p in ipairs(params) do p.grad = lm.rand({ sized(1000000, 100) }, { device = device }) end
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
  resnet256 = function() return both("resnet18", sized(256, 1)) end,
  resnet256_tf32 = function() return both("resnet18", sized(256, 1)) end,
  resnet50_bf16 = network "resnet50_bf16", gpt2_bf16 = network "gpt2_bf16",
  copy = large(function(x, y) return y:copy_(x) end),
  add = large(function(x, y) return lm.add(x, y) end),
  exp = large(function(x) return x:exp() end),
  sum = large(function(x) return x:sum() end),
  sum_dim = large(function(x) return x:sum(1) end),
  softmax = large(function(x) return x:softmax(2) end),
  log_softmax50k = both_ways(sized({ 8192, 50257 }, { 4, 99 }), nn.LogSoftmax(2)),
  layer_norm768 = both_ways(sized({ 32768, 768 }, { 4, 768 }), nn.LayerNorm(768)),
  batch_norm14 = both_ways(sized({ 256, 256, 14, 14 }, { 2, 256, 2, 2 }), nn.BatchNorm2d(256)),
  lstm512 = recurrent("LSTM", "float32"), lstm512_tf32 = recurrent("LSTM", "float32"),
  lstm512_bf16 = recurrent("LSTM", "bfloat16"), gru512_bf16 = recurrent("GRU", "bfloat16"),
  attention2048_tf32 = attention "float32", attention2048_bf16 = attention "bfloat16",
  adamw124m = adamw, upload = upload,
  mm8192 = product "float32", mm8192_tf32 = product "float32", mm8192_bf16 = product "bfloat16",
}
local calls = { launch = sized(20000, 2), small_step = sized(2000, 2), lenet256_epoch = 1 }

local cached, variants
for name in io.lines() do
  tf32(name:find "tf32" ~= nil)
  if cached ~= name then
    variants = nil -- luacheck: ignore
    collectgarbage()
    collectgarbage()
    lm.cuda.empty_cache(device)
    cached, variants = name, build[name]()
    for _, f in pairs(variants) do timed(f, sized(3, 1)) end
  end
  local line = {}
  for variant, f in pairs(variants) do
    line[#line + 1] = ("%s %.9f"):format(variant, timed(f, calls[name] or sized(10, 1)))
  end
  io.write(table.concat(line, " "), "\n")
  io.flush()
end

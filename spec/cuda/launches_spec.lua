-- Tests what a step enqueues: a fixed number of launches, no waits, no copies. The fake runtime counts, of
-- whose libraries each product and each convolution is one launch.
local lm = require "luminary"
local core = require "luminary.core"
local ffi = require "ffi"
if core.device_count("cuda") == 0 then return end

local C = ffi.C
ffi.cdef [[
  long lm_fake_call_count(const char *name);
  const char *lm_fake_call_names(void);
  long lm_fake_live(const char *what);
]]
if not pcall(function() return C.lm_fake_call_count end) then return end

local nn, F, optim = lm.nn, lm.nn.functional, lm.optim
local steps = require "spec.support.cuda_steps"
local models = dofile "scripts/models.lua"
local narrow_resnet, training = steps.narrow_resnet, steps.classifier

local kind_of = {
  cudaLaunchKernel = "launches", cublasLtMatmul = "launches", cudnnBackendExecute = "launches",
  cudaMemsetAsync = "fills", cudaMemcpyAsync = "copies", cudaMemcpyPeerAsync = "copies",
  cudaGraphLaunch = "replays",
  cudaStreamSynchronize = "waits", cudaDeviceSynchronize = "waits", cudaEventSynchronize = "waits",
  cudaStreamQuery = "waits", cudaEventQuery = "waits", cudaMemcpy = "waits",
  cudaEventRecord = "events", cudaStreamWaitEvent = "events", cudaEventCreateWithFlags = "events",
  cudaMalloc = "memory", cudaFree = "memory", cudaHostAlloc = "memory", cudaFreeHost = "memory",
  cudaSetDevice = "state", cudaGetLastError = "state", cudaFuncSetAttribute = "state", cudaDeviceGetAttribute = "state",
  cudaPointerGetAttributes = "state", cudnnSetStream = "state", cublasLtMatmulAlgoGetHeuristic = "state",
}

-- Returns what one call of f adds to these counts, after two calls that search for plans and take memory.
local function made_by(f)
  for _ = 1, 2 do f() end
  lm.synchronize("cuda")
  local before, made = {}, {}
  for name in pairs(kind_of) do before[name] = C.lm_fake_call_count(name) end
  f()
  for name, kind in pairs(kind_of) do
    local n = tonumber(C.lm_fake_call_count(name) - before[name])
    if n > 0 then made[kind] = (made[kind] or 0) + n end
  end
  return made
end

-- Expects nothing but launches, at most that many.
local function check_launches(most, f)
  local made = made_by(f)
  assert.is_true(made.launches <= most, ("%d launches; %d were enough once"):format(made.launches, most))
  made.launches = nil
  assert.same({}, made)
end

local function adamw(parameters) return optim.AdamW(parameters, {lr = 0.01}) end

describe("on a CUDA device", function()
  it("an op is one launch, and backward adds what gradients need", function()
    local a, b = lm.rand({4}, {device = "cuda"}), lm.rand({4}, {device = "cuda"})
    local w = lm.rand({4}, {device = "cuda", requires_grad = true})
    check_launches(1, function() return a + b end)
    check_launches(1, function() return a * 2 end)
    check_launches(1, function() a:add_(b) end)
    check_launches(6, function() ((w + a) * b):sum():backward() end)
  end)

  -- With few queries and many keys attention costs passes over the scores: none of them may look at the mask.
  it("attention takes so many launches and nothing else", function()
    local function attend(keys, options)
      local list = {}
      for i = 1, 3 do list[i] = lm.rand({2, 4, i == 1 and 16 or keys, 8}, {device = "cuda", requires_grad = true}) end
      return function() return lm.no_grad(F.scaled_dot_product_attention, list[1], list[2], list[3], options) end
    end
    local seen, added = {dtype = "bool", device = "cuda"}, {device = "cuda"}
    check_launches(1, attend(16))
    check_launches(1, attend(16, {is_causal = true}))
    check_launches(1, attend(16, {attn_mask = lm.ones({16, 16}, seen)}))
    check_launches(2, attend(16, {dropout_p = 0.1})) -- one launch more takes the generator's offset
    check_launches(4, attend(300))
    local causal = made_by(attend(300, {is_causal = true}))
    assert.same({causal.launches, 1}, {math.min(causal.launches, 7), causal.fills})
    check_launches(10, attend(300, {attn_mask = lm.ones({16, 300}, seen)}))
    check_launches(9, attend(300, {attn_mask = lm.zeros({16, 300}, added)}))
  end)

  it("a training step takes so many launches and nothing else", function()
    check_launches(13, training(models.mlp(), 28))
    check_launches(13, training(models.mlp(), 28, adamw))
    check_launches(32, training(models.lenet(), 28))
    check_launches(259, training(narrow_resnet(), 8))
  end)

  it("weights of one optimizer are cast by one launch under autocast, from the second step on", function()
    local net = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8, {bias = false})):to("cuda")
    local x = lm.rand({4, 8}, {device = "cuda"})
    local function forward() return lm.autocast({dtype = "bfloat16"}, function() return net(x) end) end
    local alone = made_by(forward).launches
    local opt = optim.SGD(net:parameters(), {lr = 0.1})
    assert.equal(alone - 4, made_by(forward).launches) -- one launch casts five weights and biases
    local function first() return lm.autocast({dtype = "bfloat16"}, function() return net[1](x) end) end
    first() -- casts the others' for nothing, and then no longer
    local before = C.lm_fake_live "blocks"
    first()
    assert.equal(before + 3, C.lm_fake_live "blocks") -- casts of x, its weight and its bias
    assert.is_table(opt.param_groups)
  end)

  it("a captured step is one replay, after its inputs' copies", function()
    for _, make in ipairs {models.lenet, narrow_resnet} do
      local step, x, y = training(make(), make == models.lenet and 28 or 8)
      local graphed = lm.cuda.make_graphed_step(step, {x, y})
      assert.same({replays = 1, copies = 2}, made_by(function() graphed(x, y) end))
    end
  end)

  it("nothing waits before a number is asked for", function()
    local step = training(models.mlp(), 28)
    local made = made_by(function() return step():item() end)
    assert.same({1, 1}, {made.waits, made.copies})
  end)

  it("gradients of one dtype are checked and unscaled by one launch, without a wait; the step waits once", function()
    local net = narrow_resnet():to("cuda")
    for _, p in ipairs(net:parameters()) do p.grad = lm.ones_like(p) end
    assert.same({launches = 1, fills = 1}, made_by(function() core.rescale_grads(net:parameters(), nil, 1) end))
    local opt, scaler = optim.SGD(net:parameters(), {lr = 0.01}), lm.GradScaler()
    local made = made_by(function()
      scaler:scale(lm.ones({}, {device = "cuda"}))
      scaler:step(opt)
      scaler:update()
    end)
    assert.same({1, 1}, {made.waits, made.copies})
  end)

  it("one large gradient is unscaled by all of a card's multiprocessors, small ones by a block each", function()
    local most = lm.cuda.get_device_properties().multi_processor_count
    local function blocks_of(f)
      local before = C.lm_fake_live "blocks"
      f()
      return tonumber(C.lm_fake_live "blocks" - before)
    end
    local large, small = lm.ones({most * 2 ^ 14}, {dtype = "float16", device = "cuda"}), {}
    for i = 1, 100 do small[i] = lm.ones({i}, {device = "cuda"}) end
    local n = blocks_of(function() core.rescale({large}, nil, 2) end)
    assert.is_true(n >= most, ("%d blocks on %d multiprocessors"):format(n, most))
    assert.equal(100, blocks_of(function() core.rescale(small, nil, 2) end))
  end)

  it("gradients are clipped without a wait, and their norm is there when it is read", function()
    for _, dtype in ipairs {"float32", "float16", "float64"} do
      local list = {}
      for i = 1, 3 do
        list[i] = lm.zeros({4, i}, {dtype = dtype, device = "cuda", requires_grad = true})
        list[i].grad = lm.ones({4, i}, {dtype = dtype, device = "cuda"})
      end
      local norm
      for p, rooted in pairs {[1] = 0, [2] = 1, [3] = 1, [math.huge] = 0} do
        local converted = dtype == "float64" and 0 or 1
        check_launches(2 + rooted + 3 + converted + #list, function()
          norm = nn.utils.clip_grad_norm_(list, 1e3, {norm_type = p})
        end)
        assert.near(p == math.huge and 1 or 24 ^ (1 / p), norm:item(), 1e-6)
        assert.same({"cuda:0", "float64"}, {norm.device, norm.dtype})
      end
    end
  end)

  it("a channels-last network computes with its weights and gradients as they lie", function()
    local net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 4, 3)):to("cuda")
    local x = lm.rand({2, 3, 8, 8}, {device = "cuda"}):contiguous {memory_format = "channels_last"}
    local function pass()
      net:zero_grad()
      net(x):sum():backward()
    end
    local usual = made_by(pass).launches
    local expected = {}
    for i, p in ipairs(net:parameters()) do expected[i] = p.grad:clone() end
    net:to {memory_format = "channels_last"}
    assert.equal(usual - 5, made_by(pass).launches) -- both weights forward, one again backward, both gradients
    for i, p in ipairs(net:parameters()) do
      assert.is_true(expected[i]:allclose(p.grad, {rtol = 1e-4, atol = 1e-5}))
      assert.same(p:stride(), p.grad:stride())
    end
  end)
end)

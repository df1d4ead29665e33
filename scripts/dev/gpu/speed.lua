-- Cases of scripts/dev/gpu_cases.lua: times, as fractions of what the card does at best.
local lm = require "luminary"
local common = require "scripts.dev.gpu.common"
local nn, F = lm.nn, lm.nn.functional
local fail = common.fail

local networks = common.networks "cuda"
local order = { "gpt2_bf16", "resnet50_bf16", "lenet", "gpt2_bf16_dropout", "gpt2_tf32" }

local function tf32(on)
  lm.backends.cuda.matmul.allow_tf32 = on
  lm.backends.cudnn.allow_tf32 = on
end

local case = {}

function case.ceilings()
  for _, row in ipairs {
    { "copy", "GB/s" }, { "bfloat16", "TFLOP/s" }, { "tf32", "TFLOP/s" }, { "float32", "TFLOP/s" },
  } do print(("%-40s %8.1f %s"):format(row[1], common.ceiling(row[1]), row[2])) end
  local a, b = lm.rand({ 4 }, { device = "cuda" }), lm.rand({ 4 }, { device = "cuda" })
  local function launches(n)
    return function()
      for _ = 1, n do a:add_(b) end
    end
  end
  local n = common.sized(1000, 3)
  local us = 1e6 / n
  print(("%-40s %8.2f us"):format("launch", common.seconds(launches(n)) * us))
  local graph = lm.cuda.graph(launches(n))
  print(("%-40s %8.2f us"):format("launch, of a graph", common.seconds(function() graph:replay() end) * us))
  print(("%-40s %8.2f us"):format("launch and wait", 1e6 * common.seconds(function()
    a:add_(b)
    lm.synchronize "cuda"
  end)))
end

-- Times the first step, with the searches for plans and the loading of kernels; four more, which may search for none;
-- then a step, graphed and not.
local function network(name)
  tf32(name:find "tf32" ~= nil)
  common.sweep()
  local step, inputs, samples, what, flops = networks[name]()
  local function run() step(unpack(inputs)) end
  local before = lm.cuda.plan_searches()
  local first = common.once(run)
  local searched = lm.cuda.plan_searches()
  for _ = 2, 5 do run() end
  lm.synchronize "cuda"
  local again = lm.cuda.plan_searches() - searched
  print(("%s: first step %.1f ms with %d searches for plans, %d in steps 2 to 5"):format(name, 1e3 * first,
    searched - before, again))
  local graphed = lm.cuda.make_graphed_step(step, inputs)
  local ceiling = flops and common.ceiling(name:find "bf16" and "bfloat16" or "tf32")
  for _, kind in ipairs { { "eager", run }, { "graphed", function() graphed(unpack(inputs)) end } } do
    lm.reset_peak_memory_stats "cuda"
    local seconds = common.seconds(kind[2])
    local part = flops and flops * samples / seconds / 1e12 / ceiling
    print(("%-18s %-8s %9.3f ms %11.0f %s/s%s, at most %.2f GB"):format(name, kind[1], 1e3 * seconds, samples / seconds,
      what, part and (" %5.3f of the ceiling"):format(part) or "", lm.max_memory_allocated "cuda" / 1e9))
  end
  return again
end

function case.networks(only)
  local again = 0
  for _, name in ipairs(only and { only } or order) do again = again + network(name) end
  tf32(false)
  if again > 0 then fail("%d searches for plans after the first step", again) end
end

function case.decoding()
  common.sweep()
  local vocabulary, tokens, prompt = common.sized(50257, 48), common.sized(200, 3), common.sized(100, 4)
  local net = lm.models.gpt2 {
    n_layer = common.sized(12, 1), n_head = common.sized(12, 2), n_embd = common.sized(768, 32),
    vocab_size = vocabulary, device = "cuda", dtype = "bfloat16",
  }:eval()
  for _, batch in ipairs { 1, common.sized(16, 2) } do
    local ids = lm.randint(1, vocabulary + 1, { batch, prompt }, { device = "cuda" })
    for _, how in ipairs { { "the likeliest", {} }, { "drawn among 50", { do_sample = true, top_k = 50 } } } do
      how[2].max_new_tokens, how[2].min_new_tokens = tokens, tokens
      local function run() net:generate(ids, how[2]) end
      local first = common.once(run)
      local seconds = common.once(run)
      print(("%2d sequences, %-16s %8.1f tokens/s a sequence, %8.1f in all; the first time %.2f s"):format(batch,
        how[1], tokens / seconds, batch * tokens / seconds, first))
    end
  end
end

-- Measures what the first call with a new size costs, beside the next call with that size.
function case.first_calls()
  common.sweep()
  local on = { device = "cuda" }
  local function pass(f, ...)
    local leaves = { ... }
    for i, t in ipairs(leaves) do leaves[i] = t:detach():requires_grad_() end
    return function() f(unpack(leaves)):sum():backward() end
  end
  local n, size = common.sized(32, 2), common.sized(512, 16)
  local rows = {}
  local function add(name, f) rows[#rows + 1] = { name, f } end
  for _, dtype in ipairs { "float32", "bfloat16" } do
    for _, shape in ipairs { { 64, 64, 3, 56 }, { 256, 128, 1, 28 }, { 512, 512, 3, 7 } } do
      local side = common.sized(shape[4], 5)
      local cin, cout = common.sized(shape[1], shape[1] / 16), common.sized(shape[2], shape[2] / 16)
      add(("convolution %d to %d, %d x %d, %s"):format(cin, cout, shape[3], shape[3], dtype), pass(function(x, w)
        return F.conv2d(x, w, nil, { padding = math.floor(shape[3] / 2) })
      end, lm.randn({ n, cin, side, side }, on):to(dtype), lm.randn({ cout, cin, shape[3], shape[3] }, on):to(dtype)))
    end
    add("product, " .. dtype, pass(function(a, b) return a:mm(b) end, lm.randn({ size, size }, on):to(dtype),
      lm.randn({ size, size }, on):to(dtype)))
    local lstm = nn.LSTM(size, size):to("cuda", dtype)
    add("LSTM, " .. dtype, pass(function(x) return (lstm(x)) end, lm.randn({ 20, n, size }, on):to(dtype)))
  end
  for _, length in ipairs(common.sized({ 128, 1000, 1001, 1024 }, { 33, 40 })) do
    local x = lm.randn({ 1, 4, length, 64 }, on):bfloat16()
    add(("attention of %d, bfloat16"):format(length), pass(function(q, k, v)
      return F.scaled_dot_product_attention(q, k, v, { is_causal = true })
    end, x, x, x))
  end
  add("transform of " .. size, function() lm.fft.rfft(lm.ones({ n, size }, on)) end)
  for _, row in ipairs(rows) do
    local calls = {}
    for i = 1, 3 do -- plans for attention are made at a length's second call
      local before = lm.cuda.plan_searches()
      local seconds = common.once(row[2])
      calls[i] = ("%9.3f ms, %2d searches"):format(1e3 * seconds, lm.cuda.plan_searches() - before)
    end
    print(("%-44s first call %s; second %s; third %s"):format(row[1], unpack(calls)))
  end
end

-- Checks that a graphed step computes what the step does without a graph. Dropout would draw other numbers.
function case.graphed()
  local steps, warmup = 5, 3
  lm.use_deterministic_algorithms(true)
  for _, name in ipairs { "gpt2_bf16", "resnet50_bf16", "lenet" } do
    local results = {}
    for _, is_graphed in ipairs { false, true } do
      common.sweep()
      lm.manual_seed(1)
      local step, inputs, _, _, _, net = networks[name]()
      if is_graphed then
        step = lm.cuda.make_graphed_step(step, inputs, { warmup = warmup })
      else
        for _ = 1, warmup do step(unpack(inputs)) end
      end
      for _ = 1, steps do step(unpack(inputs)) end
      local list = {}
      for i, p in ipairs(net:parameters()) do list[i] = p:detach():to "cpu" end
      results[#results + 1] = list
    end
    local other = 0
    for i, p in ipairs(results[1]) do other = other + (lm.equal(p, results[2][i]) and 0 or 1) end
    print(("%s: %d of %d parameters have other bits after %d graphed steps"):format(name, other, #results[1], steps))
    if other > 0 then fail("%s: a graphed step does not compute what it does without a graph", name) end
  end
end

return case

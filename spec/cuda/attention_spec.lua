-- Attention on a device: when cuDNN is asked and when a kernel of ours does it, against the CPU's in double, on the
-- fake libraries of support/cuda.
local scripts = require "spec.support.cuda_scripts"

local preamble = [[
local F = lm.nn.functional
local attend = F.scaled_dot_product_attention
-- What f() adds to the runs of cuDNN's engine for it, and to the launches of kernels, once its lengths are known.
local function made(f)
  f()
  local fused, launches = live "fused engine", calls "cudaLaunchKernel"
  f()
  return live "fused engine" - fused, calls "cudaLaunchKernel" - launches
end
-- The result and the gradients of query, key and value, on a device in a dtype, of a sum that weights all of them.
local function values(list, device, dtype, options)
  local on = {}
  for i = 1, 3 do on[i] = list[i]:to({device = device, dtype = dtype}):detach():requires_grad_() end
  local y = options.by and options.by(unpack(on)) or attend(on[1], on[2], on[3], options)
  local factor = lm.arange(1, y:numel() + 1, {device = device, dtype = "float64"}):cos():view(y.shape)
  lm.sum(y:double() * factor):backward()
  return {y, on[1].grad, on[2].grad, on[3].grad}
end
local function close(want, got, tolerance, what)
  for i, name in ipairs {"result", "query's gradient", "key's gradient", "value's gradient"} do
    assert(got[i].is_cuda, what)
    local worst = (want[i]:double() - got[i]:cpu():double()):abs():max():item()
    assert(worst <= tolerance, ("%s, %s: differs by %g"):format(what, name, worst))
  end
end
-- [n, h, l, e]; of `sizes` {n, heads, heads of keys, queries, keys, numbers, numbers of a value}
local function inputs(sizes, dtype)
  local n, h, kv, l, s, e, ev = unpack(sizes)
  local list = {lm.randn {n, h, l, e}, lm.randn {n, kv, s, e}, lm.randn {n, kv, s, ev}}
  for i = 1, 3 do list[i] = list[i]:to(dtype or "float32") end
  return list
end
]]

describe("attention on a device", function()
  local script = scripts.tests(it, pending, preamble)

  script("is cuDNN's in half precision, with its gradients", [[
    for _, dtype in ipairs {"float16", "bfloat16"} do
      for _, sizes in ipairs {{2, 3, 3, 33, 33, 8, 8}, {1, 4, 2, 40, 70, 16, 24}, {1, 2, 1, 33, 20, 8, 8}} do
        for _, causal in ipairs {false, true} do
          local list = inputs(sizes, dtype)
          local o = {is_causal = causal, enable_gqa = true, scale = causal and 0.4 or nil}
          local got
          local fused = made(function() got = values(list, "cuda", dtype, o) end)
          assert(fused == 2, fused .. " runs")
          close(values(list, "cpu", "float64", o), got, dtype == "float16" and 0.02 or 0.15,
            ("%s %s %s"):format(dtype, table.concat(sizes, " "), causal))
        end
      end
    end
  ]])

  script("takes queries, keys and values as one projection lays them, without a copy", [[
    local x = lm.randn({2, 40, 3, 2, 8}, {device = "cuda"}):half()
    local function part(i) return x:select(3, i):transpose(2, 3) end
    local y
    local _, first = made(function() y = attend(part(1), part(2), part(3)) end)
    assert(first == 0, first .. " launches")
    local want = attend(part(1):cpu():double(), part(2):cpu():double(), part(3):cpu():double())
    assert((y:cpu():double() - want):abs():max():item() < 0.01)
  ]])

  -- A plan is compiled for each length: that pays from the second call on.
  script("is cuDNN's from a length's second call on, at once in a capture and where calls have to be alike", [[
    local op = require "luminary.core".ops.attention
    local function fused(f)
      local before = live "fused engine"
      f()
      return live "fused engine" - before
    end
    local function attention(length)
      local list = inputs({1, 2, 2, length, length, 8, 8}, "float16")
      for i = 1, 3 do list[i] = list[i]:cuda() end
      return function() return (op(list[1], list[2], list[3])) end
    end
    local runs = {}
    for i, length in ipairs {40, 48, 40, 48, 40} do runs[i] = fused(attention(length)) end
    assert(table.concat(runs, " ") == "0 0 1 1 1", table.concat(runs, " "))
    local searches = lm.cuda.plan_searches()
    for length = 100, 110 do assert(fused(attention(length)) == 0) end
    assert(lm.cuda.plan_searches() == searches)
    for warmup, expected in pairs {[0] = 1, [1] = 1, [2] = 2} do
      local f, y = attention(200 + 8 * warmup)
      local before = live "fused engine"
      lm.cuda.graph(function() y = f() end, {warmup = warmup})
      assert(live "fused engine" - before == expected, ("%d: %d"):format(warmup, live "fused engine" - before))
    end
    for i, name in ipairs {"deterministic", "benchmark"} do
      lm.backends.cudnn[name] = true
      assert(fused(attention(300 + 8 * i)) == 1, name)
      lm.backends.cudnn[name] = false
    end
  ]])

  script("is a kernel of ours where cuDNN does not take it", [[
    local op = require "luminary.core".ops.attention -- which products do not stand in for
    local list = inputs({2, 2, 2, 40, 40, 8, 8}, "float16")
    local mask = lm.ones(40, 40):tril():bool()
    local narrow = inputs({2, 2, 2, 40, 40, 12, 12}, "float16")
    for what, row in pairs {
      ["a mask"] = {list, "float16", true},
      ["float32"] = {list, "float32"},
      ["float64"] = {list, "float64"},
      ["12 numbers"] = {narrow, "bfloat16"},
    } do
      local function with(device)
        return {by = function(q, k, v) return (op(q, k, v, row[3] and mask:to(device))) end}
      end
      local got
      local fused = made(function() got = values(row[1], "cuda", row[2], with "cuda") end)
      assert(fused == 0, what)
      local tolerance = ({float16 = 0.02, bfloat16 = 0.1, float32 = 1e-4, float64 = 1e-12})[row[2] ]
      close(values(row[1], "cpu", "float64", with "cpu"), got, tolerance, what)
    end
    local function fused(f) return (made(f)) end
    local function run() values(list, "cuda", "float16", {by = op}) end
    assert(fused(run) == 2)
    lm.backends.cudnn.deterministic = true -- its backward pass is not
    assert(fused(run) == 1)
    lm.backends.cudnn.enabled = false
    assert(fused(run) == 0)
  ]])

  -- Which use tensor cores.
  script("is products where only these use tensor cores, as long as their scores are few", [[
    local function launches(dtype, options)
      local list = inputs({1, 2, 2, 40, 40, 8, 8}, dtype)
      for i = 1, 3 do list[i] = list[i]:cuda() end
      return select(2, made(function() lm.no_grad(attend, list[1], list[2], list[3], options) end))
    end
    local mask = lm.ones({40, 40}, {dtype = "bool", device = "cuda"})
    assert(launches("float32", {attn_mask = mask}) == 1)
    assert(launches "float16" == 0)
    assert(launches("float16", {attn_mask = mask}) > 1)
    assert(launches("bfloat16", {dropout_p = 0.5}) > 2)
    lm.backends.cuda.matmul.allow_tf32 = true
    assert(launches "float32" > 1)
    assert(launches "float64" == 1)
  ]])

  -- What its engines get wrong is not asked of them.
  script("is cuDNN's only where its kernels are right", [[
    local op = require "luminary.core".ops.attention
    local function fused(sizes, causal)
      local list = inputs(sizes, "float16")
      local by = function(q, k, v) return (op(q, k, v, nil, causal)) end
      return (made(function() values(list, "cuda", "float16", {by = by}) end))
    end
    assert(fused {1, 1, 1, 32, 65, 8, 8} == 2)
    assert(fused {1, 1, 1, 32, 64, 8, 8} == 1) -- keys behind the last one would count
    assert(fused({1, 1, 1, 64, 64, 8, 8}, true) == 2)
    assert(fused({1, 1, 1, 65, 64, 8, 8}, true) == 1)
    assert(fused {1, 1, 1, 32, 192, 8, 8} == 1)
    assert(fused {1, 1, 1, 32, 33, 136, 8} == 1) -- more numbers than its backward pass takes
    assert(fused {1, 1, 1, 1, 40, 8, 8} == 0)
    assert(fused {1, 1, 1, 40, 1, 8, 8} == 0)
  ]])

  script("takes no heads, queries, keys or samples", [[
    local op = require "luminary.core".ops.attention
    for _, sizes in ipairs {
      {1, 0, 1, 4, 4, 8, 8}, {1, 0, 0, 4, 4, 8, 8}, {0, 2, 2, 4, 4, 8, 8}, {1, 2, 2, 0, 4, 8, 8},
      {1, 2, 2, 4, 0, 8, 8}, {1, 2, 1, 4, 4, 0, 8}, {1, 2, 1, 4, 4, 8, 0}, {1, 2, 2, 0, 0, 0, 0},
    } do
      for _, dtype in ipairs {"float32", "float16"} do
        lm.manual_seed(1) -- the bound is near float16's rounding
        local list = inputs(sizes, dtype)
        local by = function(q, k, v) return (op(q, k, v)) end
        local want, got = values(list, "cpu", "float64", {by = by}), values(list, "cuda", dtype, {by = by})
        for i = 1, 4 do
          assert(got[i]:numel() == want[i]:numel())
          local off = (got[i]:cpu():double() - want[i]):abs():sum():item()
          assert(off < (dtype == "float16" and 0.01 or 1e-3), ("%s: %g"):format(table.concat(sizes, " "), off))
        end
      end
    end
  ]])

  script("says what cuDNN failed in, and takes it the next time", [[
    local list = inputs({1, 2, 2, 40, 40, 8, 8}, "bfloat16")
    local function run() return attend(list[1]:cuda(), list[2]:cuda(), list[3]:cuda()) end
    run()
    for _, known in ipairs {false, true} do -- its plan
      fake.lm_fake_fail("cudnnBackendExecute", 1, 5000)
      refused("attention: cudnnBackendExecute: error 5000", run)
      fake.lm_fake_fail(nil, 0, 0)
      assert(run():isfinite():all():item())
    end
  ]])

  script("is one launch, and few queries of many keys go by products", [[
    local q, k = lm.randn({2, 4, 40, 8}, {device = "cuda"}), lm.randn({2, 4, 600, 8}, {device = "cuda"})
    local function launches(...)
      local list = {...}
      return select(2, made(function() lm.no_grad(attend, unpack(list)) end))
    end
    assert(launches(q, q, q) == 1)
    assert(launches(q, q, q, {is_causal = true}) == 1)
    local few = q:narrow(3, 1, 1)
    assert(launches(few, q, q) == 1)
    assert(launches(few, k, k) > 1)
  ]])

  script("drops by the device's own numbers, also when its step is captured", [[
    local q = lm.randn({1, 2, 40, 8}, {device = "cuda"})
    local eye = lm.eye(40, {device = "cuda"}):expand(1, 2, 40, 40)
    local function kept() return attend(q, q, eye, {dropout_p = 0.5}):ne(0):cpu() end
    lm.manual_seed(3)
    local first = kept()
    assert(not lm.equal(first, kept()))
    lm.manual_seed(3)
    assert(lm.equal(first, kept()))
    local y
    local graph = lm.cuda.graph(function() y = attend(q, q, eye, {dropout_p = 0.5}) end)
    graph:replay()
    local one = y:ne(0):cpu()
    graph:replay()
    assert(not lm.equal(one, y:ne(0):cpu()), "the replays drop the same")
  ]])

  script("gives the same with many columns, in parts of them", [[
    local op = require "luminary.core".ops.attention
    for _, dtype in ipairs {"float32", "float64", "float16"} do
      for _, sizes in ipairs {{1, 2, 1, 40, 70, 130, 20}, {1, 1, 1, 70, 33, 20, 200}, {1, 2, 2, 5, 9, 1, 65}} do
        local list = inputs(sizes, dtype)
        local o = {by = function(q, k, v) return (op(q, k, v, nil, true)) end}
        close(values(list, "cpu", "float64", o), values(list, "cuda", dtype, o),
          ({float16 = 0.03, float32 = 3e-4, float64 = 1e-12})[dtype], dtype .. " " .. table.concat(sizes, " "))
      end
    end
  ]])
end)

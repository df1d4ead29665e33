-- Attention on a device: when cuDNN is asked and when a kernel of ours does it, against the CPU's in double, on the
-- fake libraries of support/cuda.
local scripts = require "spec.support.cuda_scripts"

local preamble = [[
local F = lm.nn.functional
local attend = F.scaled_dot_product_attention
-- Returns what f() adds to the runs of cuDNN's engine for its sizes and to launches of kernels, once cuDNN knows them.
local function made(f)
  f()
  local fused, launches = live "fused engine", calls "cudaLaunchKernel"
  f()
  return live "fused engine" - fused, calls "cudaLaunchKernel" - launches
end
-- Returns result and gradients of query, key and value, on a device in a dtype, of a sum that weights all of them.
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
-- Returns the first and every third entry of a list under sanitizers, which only look at memory, else all.
local function some(list)
  if os.getenv "LM_SPEC_SANITIZED" ~= "1" then return list end
  local few = {}
  for i = 1, #list, 3 do few[#few + 1] = list[i] end
  return few
end
-- Returns query, key and value [n, h, l, e] by {n, heads, heads of keys, queries, keys, numbers, numbers of a value}.
local function inputs(sizes, dtype)
  local n, h, kv, l, s, e, ev = unpack(sizes)
  local list = {lm.randn {n, h, l, e}, lm.randn {n, kv, s, e}, lm.randn {n, kv, s, ev}}
  for i = 1, 3 do list[i] = list[i]:to(dtype or "float32") end
  return list
end
]]

describe("attention on a device #fake", function()
  local script = scripts.tests(it, pending, preamble)

  script("is cuDNN's in half precision, with its gradients", [[
    for _, dtype in ipairs {"float16", "bfloat16"} do
      for _, sizes in ipairs(some {{2, 3, 3, 33, 33, 8, 8}, {1, 4, 2, 40, 70, 16, 24}, {1, 2, 1, 33, 20, 8, 8}}) do
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
    local op = require "luminary.core".ops.attention -- products do not stand in for this op
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
    lm.backends.cudnn.deterministic = true -- cuDNN's backward pass is not deterministic
    assert(fused(run) == 1)
    lm.backends.cudnn.enabled = false
    assert(fused(run) == 0)
  ]])

  -- Which use tensor cores.
  script("is products where only these use tensor cores, as long as their scores are few", [[
    local function launches(dtype, options, sizes)
      local list = inputs(sizes or {1, 2, 2, 40, 40, 12, 12}, dtype) -- cuDNN takes none of these
      for i = 1, 3 do list[i] = list[i]:cuda() end
      return select(2, made(function() lm.no_grad(attend, list[1], list[2], list[3], options) end))
    end
    local mask = lm.ones({40, 40}, {dtype = "bool", device = "cuda"})
    assert(launches("float32", {attn_mask = mask}) == 1)
    assert(launches "float16" == 1)
    assert(launches("float16", {attn_mask = mask}) == 1)
    assert(launches("bfloat16", {dropout_p = 0.5}) == 2) -- the second launch sets what dropout drops
    assert(launches("float16", nil, {1, 2, 2, 40, 40, 136, 12}) > 1)
    assert(launches("float16", nil, {1, 2, 2, 40, 260, 12, 12}) > 1) -- there are few blocks
    lm.backends.cuda.matmul.allow_tf32 = true
    assert(launches "float32" == 1)
    assert(launches("float32", {attn_mask = mask}) == 1)
    assert(launches("float32", nil, {1, 2, 2, 40, 40, 12, 72}) > 1)
    assert(launches("float32", nil, {1, 2, 2, 40, 260, 12, 12}) > 1) -- there are few blocks
    assert(launches "float64" == 1)
  ]])

  -- cuDNN is not used for calls that its engines compute wrong.
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
    for _, known in ipairs {false, true} do -- the first call searches for a plan
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

  -- Values [S, S] of the identity: the result is the weights, of which dropout leaves some.
  script("drops by cuDNN's own masks, the same in the backward pass, each run and in a checkpoint", [[
    local checkpoint = require "luminary.autograd.checkpoint"
    local p = 0.5
    for _, dtype in ipairs {"float16", "bfloat16"} do
      for _, row in ipairs(some {
        {{2, 2, 2, 40, 40, 8, 40}, true}, {{1, 4, 2, 33, 48, 16, 48}, false}, {{1, 2, 1, 64, 64, 64, 64}, true},
        {{1, 2, 2, 40, 40, 8, 40}, false, true},
      }) do
        local sizes, causal, masked = unpack(row)
        local n, h, kv, l, s = unpack(sizes)
        local what = dtype .. " " .. table.concat(sizes, " ")
        local list = inputs(sizes, dtype)
        list[3] = lm.eye(s):expand(n, kv, s, s):contiguous()
        local mask
        if masked then
          mask = lm.rand(l, s):gt(0.3)
          mask[2]:fill_(false)
        end
        local cuda = {is_causal = causal, enable_gqa = true, dropout_p = p, attn_mask = mask and mask:cuda()}
        local function run()
          lm.manual_seed(5)
          return values(list, "cuda", dtype, cuda)
        end
        local fused = made(run)
        assert(fused == 2, what .. ": " .. fused .. " runs")
        local got, again = run(), run()
        for i = 1, 4 do assert(lm.equal(got[i], again[i]), what .. ": another run differs") end
        -- Compares the weights that dropout kept with products in double.
        local kept = got[1]:ne(0):cpu():double()
        local function products(q, k, v)
          local weights = (q:matmul(k:repeat_interleave(h / kv, 2):transpose(3, 4)) / math.sqrt(q.shape[4]))
          if causal then weights = weights + lm.full({l, s}, -math.huge, {dtype = "float64"}):triu(1) end
          if mask then weights = weights:masked_fill(mask:logical_not(), -1e30) end
          weights = weights:softmax(4)
          if mask then weights = weights * mask:any(2, {keepdim = true}):double() end
          return (weights * kept / (1 - p)):matmul(v:repeat_interleave(h / kv, 2))
        end
        close(values(list, "cpu", "float64", {by = products}), got, dtype == "float16" and 0.02 or 0.15, what)
        local share = kept:sum():item() / attend(list[1]:double(), list[2]:double(), list[3]:double(),
          {is_causal = causal, enable_gqa = true, attn_mask = mask}):ne(0):sum():item()
        assert(math.abs(share - 0.5) < 0.05, what .. ": keeps " .. share)
        local function part(q, k, v) return attend(q, k, v, cuda) end
        lm.manual_seed(5)
        local repeated = values(list, "cuda", dtype,
          {by = function(q, k, v) return checkpoint.checkpoint(part, q, k, v) end})
        for i = 1, 4 do assert(lm.equal(got[i], repeated[i]), what .. ": a checkpoint differs") end
      end
    end
  ]])

  script("drops other weights at each call and replay, nothing for p = 0 and everything for p = 1", [[
    local list = inputs({1, 2, 2, 40, 40, 8, 40}, "float16")
    for i = 1, 3 do list[i] = list[i]:cuda() end
    list[1] = list[1] / 8 -- keeps weights away from 0
    list[3] = lm.eye(40, {device = "cuda", dtype = "float16"}):expand(1, 2, 40, 40)
    local function run(p) return attend(list[1], list[2], list[3], {dropout_p = p}) end
    local fused = made(function() run(0.5) end)
    assert(fused == 1)
    assert(not lm.equal(run(0.5):ne(0), run(0.5):ne(0)))
    assert(run(0):gt(0):all():item() and run(1):eq(0):all():item())
    local y
    local graph = lm.cuda.graph(function() y = run(0.5) end)
    local function replay()
      graph:replay()
      return y:ne(0):cpu()
    end
    local first = replay()
    assert(not lm.equal(first, replay()), "the replays drop the same")
  ]])

  script("drops by one generator in both passes where cuDNN knows only one of them", [[
    local list = inputs({1, 2, 2, 32, 64, 8, 64}, "float16") -- cuDNN's backward pass would be wrong
    list[3] = lm.eye(64):expand(1, 2, 64, 64):contiguous():half()
    local fused = made(function() values(list, "cuda", "float16", {dropout_p = 0.5}) end)
    assert(fused == 0)
    local q = list[1]:cuda():requires_grad_()
    local y = attend(q, q, q, {dropout_p = 0.5})
    refused("cuDNN's dropout", function() lm.autograd.grad(y:sum(), {q}, {create_graph = true}) end)
  ]])

  script("drops by our kernels in both passes where cuDNN refuses one of the plans that it proposed", [[
    for nth = 1, 2 do
      local list = inputs({1, 2, 2, 40, 40, 8 * nth, 40}, "float16")
      fake.lm_fake_fail("cudnnBackendFinalize: a plan", nth, 3000)
      local fused = made(function() values(list, "cuda", "float16", {dropout_p = 0.5}) end)
      assert(fused == 0, fused .. " runs")
    end
  ]])

  script("makes both plans of dropout before the first pass, and none for evaluation's backward pass", [[
    local list = inputs({1, 2, 2, 40, 40, 8, 40}, "float16")
    local plans = "cudnnBackendFinalize: a plan"
    local function run(p)
      return attend(list[1]:cuda():requires_grad_(), list[2]:cuda(), list[3]:cuda(), {dropout_p = p})
    end
    local before = calls(plans)
    local y = run(0.5)
    assert(calls(plans) - before == 2)
    y:sum():backward()
    assert(calls(plans) - before == 2)
    before = calls(plans)
    for _ = 1, 3 do lm.no_grad(run, 0) end
    assert(calls(plans) - before == 1)
  ]])

  script("drops alike in both passes, however operands and gradients lie", [[
    local list = inputs({1, 2, 2, 40, 40, 8, 40}, "float16")
    local g = lm.randn({1, 2, 40, 40}, {device = "cuda", dtype = "float16"})
    local function run(move, grad)
      local on = {}
      for i = 1, 3 do on[i] = move(list[i]:cuda()):detach():requires_grad_() end
      lm.manual_seed(3)
      local y = attend(on[1], on[2], on[3], {dropout_p = 0.5})
      y:backward(grad)
      return {y, on[1].grad, on[2].grad, on[3].grad}
    end
    local function stay(t) return t end
    local function moved(t) return off(t, 1) end
    local same = g:narrow(2, 1, 1):expand(1, 2, 40, 40)
    for _, pair in ipairs {{g, moved(g)}, {same:contiguous(), same}} do
      local want
      assert(made(function() want = run(stay, pair[1]) end) == 2)
      for _, move in ipairs {stay, moved} do
        local got
        local fused = made(function() got = run(move, pair[2]) end)
        assert(fused == 2, fused .. " runs")
        for i = 1, 4 do assert(lm.equal(want[i], got[i]), i) end
      end
    end
  ]])

  script("adds masks in cuDNN's graph, also where a query attends to nothing", [[
    for _, dtype in ipairs {"float16", "bfloat16"} do
      local list = inputs({2, 4, 2, 40, 48, 8, 16}, dtype)
      local seen = lm.rand(2, 1, 40, 48):gt(0.5)
      seen[{1, 1, 3}]:fill_(false)
      local added = lm.randn(40, 48)
      added[{{}, {1, 8}}]:fill_(-math.huge)
      added[4]:fill_(-math.huge)
      for what, mask in pairs {
        bool = seen, keys = seen[{{}, {}, {5, 5}}], one = seen[{1, 1, 5}], each = lm.rand(2, 4, 40, 48):gt(0.2),
        added = added:to(dtype),
      } do
        local function with(device)
          local m = mask:to(device)
          if device == "cpu" and m.dtype == dtype then m = m:double() end
          return {attn_mask = m, enable_gqa = true}
        end
        local got
        local fused = made(function() got = values(list, "cuda", dtype, with "cuda") end)
        assert(fused == 2, what .. ": " .. fused)
        close(values(list, "cpu", "float64", with "cpu"), got, dtype == "float16" and 0.03 or 0.2, dtype .. " " .. what)
      end
    end
  ]])

  script("drops in our kernels what the CPU drops", [[
    lm.backends.cudnn.enabled = false
    local tolerance = {float64 = 1e-12, float32 = 1e-4, tf32 = 0.02, float16 = 0.02, bfloat16 = 0.1}
    for _, how in ipairs {"float64", "float32", "tf32", "float16", "bfloat16"} do
      local dtype = how == "tf32" and "float32" or how
      lm.backends.cuda.matmul.allow_tf32 = how == "tf32"
      for _, sizes in ipairs(some {{2, 2, 2, 40, 40, 8, 8}, {1, 4, 2, 33, 70, 12, 5}, {1, 1, 1, 66, 71, 8, 71}}) do
        for _, p in ipairs {0.1, 1} do
          local list, all = inputs(sizes, dtype), {}
          if sizes[5] == sizes[7] then list[3] = lm.eye(71, {dtype = dtype}):view(1, 1, 71, 71) end -- shows each weight
          for _, device in ipairs {"cpu", "cuda"} do
            local draw = lm.tensor({77, 12345}, {dtype = "int64"}):to(device)
            local op = require "luminary.core".ops.attention
            local as = device == "cpu" and "float64" or dtype
            all[device] = values(list, device, as, {by = function(q, k, v)
              return (op(q, k, v, {is_causal = true, dropout_p = p, draw = draw}))
            end})
          end
          close(all.cpu, all.cuda, tolerance[how], how .. " " .. p)
          assert(lm.equal(all.cpu[1]:ne(0), all.cuda[1]:ne(0):cpu()))
        end
      end
    end
  ]])

  -- On tensor cores, in tiles of 64 queries and 32 or 64 keys, of 64 or 128 numbers. The draw's words begin at any key.
  script("multiplies in half precision and by TF32 as in double, whatever the sizes, masks and strides #unsanitized", [[
    local op = require "luminary.core".ops.attention
    lm.backends.cudnn.enabled, lm.backends.cuda.matmul.allow_tf32 = false, true
    local draw = lm.tensor({77, 12345}, {dtype = "int64"})
    local moves = {
      function(t) return t:cuda() end,
      function(t) return off(t, 1) end, -- rows begin at no pack
      function(t) return t:cuda():transpose(2, 3):contiguous():transpose(2, 3) end,
    }
    local hows = {"plain", "causal", "bool", "added", "dropout", "all"}
    for k, sizes in ipairs(some {
      {1, 2, 2, 1, 70, 64, 64}, {2, 2, 1, 17, 9, 40, 40}, {1, 1, 1, 63, 65, 72, 24}, {1, 2, 1, 65, 130, 24, 128},
      {1, 2, 2, 130, 77, 8, 8}, {1, 1, 1, 66, 33, 12, 5}, {1, 1, 1, 40, 66, 136, 20}, {1, 1, 1, 35, 34, 16, 200},
      {1, 2, 1, 19, 37, 9, 67},
    }) do
      local n, h, _, l, s = unpack(sizes)
      for d, dtype in ipairs {"float16", "bfloat16", "float32"} do
        for i = 1, 2 do
          local move, how = moves[(k + d + i) % #moves + 1], hows[(k + 3 * d + 2 * i) % #hows + 1]
          local what = ("%s %s %d %s"):format(dtype, table.concat(sizes, " "), i, how)
          local list, mask = inputs(sizes, dtype)
          if how == "bool" or how == "all" then
            mask = lm.rand(n, 1, l, s):gt(0.3)
            mask[{1, 1, 1}]:fill_(false)
          elseif how == "added" then
            mask = lm.randn(h, l, 1):to(dtype):expand(h, l, s):contiguous()
            mask[{{}, {}, 1}]:fill_(-math.huge)
            mask[{1, l}]:fill_(-math.huge)
          end
          local p = (how == "dropout" or how == "all") and 0.3 or 0
          local function with(device)
            return {by = function(a, b, c)
              local m = mask and mask:to(device)
              if m and device == "cpu" and m.dtype ~= "bool" then m = m:double() end
              return (op(a, b, c, m, how == "causal" or how == "all", nil, p, p > 0 and draw:to(device) or nil))
            end}
          end
          local want = values(list, "cpu", "float64", with "cpu")
          for j = 1, 3 do list[j] = move(list[j]) end
          local got = values(list, "cuda", dtype, with "cuda")
          if (i + d) % 2 == 0 then
            local again = values(list, "cuda", dtype, with "cuda")
            for j = 1, 4 do assert(lm.equal(got[j], again[j]), what .. ": another run differs") end
          end
          close(want, got, ({float16 = 0.01, bfloat16 = 0.08, float32 = 0.02})[dtype], what)
        end
      end
    end
  ]])

  -- With one key a weight is 1, so that result and gradient are the rounded value and slope.
  script("rounds float32 to the mantissa of TF32, where that is allowed, ties away from 0", [[
    local op = require "luminary.core".ops.attention
    local far, near = 1 + 2 ^ -11, 1 + 2 ^ -12
    for _, tf32 in ipairs {true, false} do
      lm.backends.cuda.matmul.allow_tf32 = tf32
      local x = lm.tensor({far, -far, near, math.huge}, {device = "cuda"}):view(1, 1, 1, 4)
      local q, v = lm.zeros({1, 1, 1, 4}, {device = "cuda"}), x:clone():requires_grad_()
      local y = op(q, q, v)
      local g = x:masked_fill(x:eq(math.huge), far)
      y:backward(g)
      local up = 1 + 2 ^ -10
      local rounded = tf32 and lm.tensor {up, -up, 1, up} or g:cpu():view(4)
      assert(lm.equal(v.grad:cpu():view(4), rounded), tostring(v.grad))
      rounded[4] = math.huge
      assert(lm.equal(y:cpu():view(4), rounded), tostring(y))
    end
  ]])

  script("keeps NaN in the rows that have it, in half precision and by TF32", [[
    local op = require "luminary.core".ops.attention
    lm.backends.cudnn.enabled, lm.backends.cuda.matmul.allow_tf32 = false, true
    for _, dtype in ipairs {"float16", "bfloat16", "float32"} do
      local list = inputs({1, 1, 1, 70, 66, 24, 24}, dtype)
      list[1][{1, 1, 68, 3}] = 0 / 0
      list[2][{1, 1, 66}]:fill_(math.huge) -- a key that is not seen
      local seen = lm.ones({70, 66}, {dtype = "bool"})
      seen[{{}, 66}]:fill_(false)
      seen[5]:fill_(false)
      local y = op(list[1]:cuda(), list[2]:cuda(), list[3]:cuda(), seen:cuda()):cpu()
      local bad = y:isnan():any(4):view(70)
      assert(bad[68] and bad:sum():item() == 1, dtype)
      assert(y[{1, 1, 5}]:eq(0):all():item(), dtype)
      local want = op(list[1]:double(), list[2]:double(), list[3]:double(), seen)
      assert((y:double() - want):narrow(3, 1, 67):abs():max():item() < 0.02, dtype)
    end
  ]])

  script("gives the same with many columns, in parts of them", [[
    local op = require "luminary.core".ops.attention
    for _, how in ipairs {"float32", "tf32", "float64", "float16"} do
      local dtype = how == "tf32" and "float32" or how
      lm.backends.cuda.matmul.allow_tf32 = how == "tf32"
      for _, sizes in ipairs(some {{1, 2, 1, 40, 70, 130, 20}, {1, 1, 1, 70, 33, 20, 200}, {1, 2, 2, 5, 9, 1, 65}}) do
        local list = inputs(sizes, dtype)
        local o = {by = function(q, k, v) return (op(q, k, v, nil, true)) end}
        close(values(list, "cpu", "float64", o), values(list, "cuda", dtype, o),
          ({float16 = 0.03, float32 = 3e-4, tf32 = 0.03, float64 = 1e-12})[how], how .. " " .. table.concat(sizes, " "))
      end
    end
  ]])
end)

-- Matrix products and convolutions on CUDA, against the CPU's, on the fake libraries of support/cuda: layouts,
-- settings, and what happens when a call of cuBLASLt or cuDNN fails.
local scripts = require "spec.support.cuda_scripts"

-- First lines of every script, after those that cuda_scripts.lua returns.
local preamble = [[
local function close(want, got, tolerance, what)
  local worst = (want:double() - got:cpu():double()):abs():max():item()
  assert(worst <= tolerance, ("%s: differs by %g"):format(what, worst))
end
-- for by, which, at in alignments(): at(i, t) is t on the device, off by `by` if `which` is i, or 4 for all
local function alignments()
  return coroutine.wrap(function()
    for _, by in ipairs {1, 2, 4} do
      for which = 1, 4 do
        coroutine.yield(by, which, function(i, t) return (which == i or which == 4) and off(t, by) or t:cuda() end)
      end
    end
  end)
end
lm.manual_seed(3)
lm.backends.cudnn.allow_tf32 = false
]]

describe("CUDA's products and convolutions #fake", function()
  local script = scripts.tests(it, pending, preamble)

  script("add up an operand beside the product, in float32 for halves, on both devices", [[
    local layouts = require("spec.support.half_layouts").layouts
    for _, device in ipairs {"cpu", "cuda"} do
      for _, dtype in ipairs {"float16", "bfloat16", "float32", "float64"} do
        local function rand(shape) return (lm.rand(shape) * 4 - 2):to(dtype):to(device) end
        for _, layout in ipairs(layouts) do
          for _, of_other in ipairs {false, true} do
            local function made(shape, is_summed) return is_summed and layout[2](rand, shape) or rand(shape) end
            local x, other = made({8, 24}, not of_other), made({24, 16}, of_other)
            local y, sums = lm.ops.mm_with_sums(x, other, {of_other = of_other})
            local what = ("%s %s, %s, %s"):format(device, dtype, layout[1], of_other)
            assert(y.dtype == sums.dtype and sums.dtype == (dtype == "float64" and dtype or "float32"), what)
            x, other = x:double():cpu(), other:double():cpu()
            close(x:matmul(other), y, 1e-4, what)
            close(of_other and other:sum(1) or x:sum(2), sums, 1e-4, what)
          end
        end
      end
    end
  ]])

  script("compute gelu with the product of halves, on both devices and without the library's kernel", [[
    local layouts = require("spec.support.half_layouts").layouts
    local gelu = lm.nn.functional.gelu
    for _, device in ipairs {"cpu", "cuda"} do
      for _, dtype in ipairs {"float16", "bfloat16", "float32", "float64"} do
        local function rand(shape) return (lm.rand(shape) * 4 - 2):to(dtype):to(device) end
        local function near(want, got, what)
          local unit = ({float16 = 2 ^ -9, bfloat16 = 2 ^ -6})[dtype] or 1e-5
          close(want, got, unit * math.max(1, want:abs():max():item()), what)
        end
        for _, layout in ipairs(layouts) do
          for _, width in ipairs {16, 13} do
            local function made(shape) return layout[2](rand, shape) or rand(shape) end
            local x, other, bias = made {8, 24}, made {24, width}, rand {width}
            local what = ("%s %s, %s, %d"):format(device, dtype, layout[1], width)
            local wide = {x:double():cpu():matmul(other:double():cpu())}
            wide[2] = wide[1] + bias:double():cpu()
            for k, input in ipairs {false, bias} do
              local before = calls "cublasLtMatmul"
              local y, sum = lm.ops.addmm_gelu(x, other, input or nil)
              if device == "cuda" then assert(calls "cublasLtMatmul" == before + 1) end
              assert(y.dtype == dtype and sum.dtype == dtype)
              near(wide[k], sum, what)
              near(gelu(wide[k], {approximate = "tanh"}), y, what)
            end
            local at = rand {8, width}
            local leaf = at:double():cpu():clone():requires_grad_()
            gelu(leaf, {approximate = "tanh"}):backward(wide[1])
            near(leaf.grad, lm.ops.mm_gelu_backward(x, other, at), what)
          end
        end
      end
    end
  ]])

  script("take matrices of any strides", [[
    local function forms(rows, columns, batch, dtype) -- returns the same values in several layouts
      local x = (lm.rand(batch and {batch, rows, columns} or {rows, columns}) * 10 - 5):floor():to(dtype)
      local wide = lm.zeros(batch and {batch, rows, 2 * columns + 1} or {rows, 2 * columns + 1}, {dtype = dtype})
      local every, part = wide:slice(-1, 2, -1, 2), wide:slice(-1, 2, columns + 1)
      every:copy_(x)
      local list = {x, x:transpose(-2, -1):contiguous():transpose(-2, -1), every:clone(), every}
      if part.shape[part.ndim] == columns then
        local other = lm.zeros(wide.shape, {dtype = dtype}):slice(-1, 2, columns + 1)
        other:copy_(x)
        list[#list + 1] = other
      end
      if batch then list[#list + 1] = x:narrow(1, 1, 1):expand(batch, rows, columns) end
      return list
    end
    for _, dtype in ipairs {"float32", "float64", "bfloat16", "int64", "uint8"} do
      for _, size in ipairs {{3, 4, 5}, {1, 4, 5}, {3, 1, 5}, {3, 4, 1}, {17, 40, 33}, {1, 1, 1}} do
        local n, k, m = unpack(size)
        for _, a in ipairs(forms(n, k, nil, dtype)) do
          for _, b in ipairs(forms(k, m, nil, dtype)) do
            -- Moved as they lie: strided views stay views of what was moved.
            local da, db = lm.zeros(a.shape, {dtype = dtype, device = "cuda"}):t():contiguous():t(), b:cuda()
            da:copy_(a)
            close(a:mm(b), da:mm(db), 0, "mm in " .. dtype)
          end
        end
        local v = (lm.rand{m} * 4):floor():to(dtype)
        local a, b = forms(n, k, nil, dtype)[1], forms(k, m, nil, dtype)[1]
        for _, input in ipairs {v, v:view(1, m), (lm.rand{n, 1} * 4):floor():to(dtype)} do
          for _, o in ipairs {{alpha = 2, beta = 3}, {}} do
            close(lm.addmm(input, a, b, o), lm.addmm(input:cuda(), a:cuda(), b:cuda(), o), 0, "addmm in " .. dtype)
          end
        end
        for _, x in ipairs(forms(n, k, 2, dtype)) do
          local y = forms(k, m, 2, dtype)[2]
          close(x:bmm(y), x:cuda():bmm(y:cuda()), 0, "bmm in " .. dtype)
        end
      end
    end
    local a = lm.randn{4, 6, 8}
    local whole = lm.zeros({4, 6, 20}, {device = "cuda"})
    for _, view in ipairs {whole:slice(-1, 3, 10), whole:slice(-1, 5, -1, 2), whole:slice(-1, 5, 12)} do
      view:copy_(a)
      close(a:bmm(a:transpose(2, 3)), view:bmm(view:transpose(2, 3)), 1e-5, "a view")
      local w = lm.randn{3, 8}
      close(lm.linear(a, w), lm.linear(view, w:cuda()), 1e-5, "linear of a view")
      local turned = view:transpose(1, 2)
      close(lm.linear(a:transpose(1, 2), w), lm.linear(turned, w:cuda()), 1e-5, "linear of a transposed view")
    end
  ]])

  script("add a bias in the product, and gradients come back", [[
    local x, w, b = lm.randn{6, 5}, lm.randn{4, 5}, lm.randn{4}
    local before = calls "cublasLtMatmul"
    close(lm.linear(x, w, b), lm.linear(x:cuda(), w:cuda(), b:cuda()), 1e-5, "linear")
    assert(calls "cublasLtMatmul" == before + 1)
    local list = {x:cuda(), w:cuda(), b:cuda()}
    for _, t in ipairs(list) do t:requires_grad_() end
    lm.linear(unpack(list)):pow(2):sum():backward()
    local cpu = {x:clone(), w:clone(), b:clone()}
    for _, t in ipairs(cpu) do t:requires_grad_() end
    lm.linear(unpack(cpu)):pow(2):sum():backward()
    for i, t in ipairs(list) do close(cpu[i].grad, t.grad, 1e-4, "gradient " .. i) end
    -- Heuristics are asked once for products of a kind.
    before = calls "cublasLtMatmulAlgoGetHeuristic"
    local y = x:cuda()
    for _ = 1, 3 do lm.linear(y, list[2]:detach(), list[3]:detach()) end
    local asked = calls "cublasLtMatmulAlgoGetHeuristic" - before
    assert(asked <= 1, asked)
  ]])

  -- Operands lie anywhere in memory, as views do. Nothing promises cuBLASLt how a bias is aligned.
  script("take operands of products that are aligned to their elements only", [[
    for _, dtype in ipairs {"float16", "bfloat16", "float32", "float64"} do
      local tolerance = ({float32 = 1e-4, float64 = 1e-12, float16 = 0.05, bfloat16 = 0.4})[dtype]
      local x, w, b = lm.randn{6, 8}:to(dtype), lm.randn{5, 8}:to(dtype), lm.randn{5}:to(dtype)
      local want = lm.linear(x:double(), w:double(), b:double())
      local product = lm.addmm(b:double(), x:double(), w:double():t())
      for by, which, at in alignments() do
        local what = ("%s, operand %d by %d: "):format(dtype, which, by)
        local before = calls "cublasLtMatmul"
        close(want, lm.linear(at(1, x), at(2, w), at(3, b)), tolerance, what .. "linear")
        close(product, lm.addmm(at(3, b), at(1, x), at(2, w):t()), tolerance, what .. "addmm")
        assert(calls "cublasLtMatmul" == before + 2, what .. "the bias is not added in the product")
      end
    end
  ]])

  -- cuDNN has engines worth the name for what is aligned to 16 bytes.
  script("take operands of convolutions that are aligned to their elements only", [[
    for _, dtype in ipairs {"float16", "bfloat16", "float32", "float64"} do
      local tolerance = ({float32 = 1e-4, float64 = 1e-12, float16 = 0.1, bfloat16 = 0.6})[dtype]
      local x, w, b = lm.randn{2, 4, 6, 6}:to(dtype), lm.randn{5, 4, 3, 3}:to(dtype), lm.randn{5}:to(dtype)
      local y = lm.conv2d(x:double(), w:double(), b:double())
      local g = lm.randn(y.shape):to(dtype)
      local dx = lm.conv2d_input(g:double(), w:double(), x.shape)
      local dw = lm.conv2d_weight(g:double(), x:double(), w.shape)
      for by, which, at in alignments() do
        local what = ("%s, operand %d by %d: "):format(dtype, which, by)
        local before = live "engine 3"
        close(y, lm.conv2d(at(1, x), at(2, w), at(3, b)), tolerance, what .. "conv2d")
        close(dx, lm.conv2d_input(at(1, g), at(2, w), x.shape), tolerance, what .. "conv2d_input")
        close(dw, lm.conv2d_weight(at(1, g), at(2, x), w.shape), tolerance, what .. "conv2d_weight")
        assert(live "engine 3" == before, what .. "an engine of the last resort")
      end
    end
  ]])

  -- Its engines transpose there and back around a contiguous one: the tensors may as well lie so.
  script("convolve float32 contiguous where TF32 is not allowed", [[
    local x, w = lm.randn({2, 4, 6, 6}, {device = "cuda"}), lm.randn({8, 4, 3, 3}, {device = "cuda"})
    local function layout(t) return t:is_contiguous() and "contiguous" or "channels-last" end
    for _, tf32 in ipairs {false, true} do
      lm.backends.cudnn.allow_tf32 = tf32
      local want = tf32 and "channels-last" or "contiguous"
      local y = lm.conv2d(x, w)
      assert(layout(y) == want, layout(y))
      assert(layout(lm.conv2d_input(y, w, x.shape)) == want)
      assert(layout(lm.conv2d(x:bfloat16(), w:bfloat16())) == "channels-last")
    end
    lm.backends.cudnn.allow_tf32 = false
    lm.conv2d(x, w) -- the plan of conv2d is known
    local before = tonumber(fake.lm_fake_call_count "cudaLaunchKernel")
    lm.conv2d(x, w)
    local made = tonumber(fake.lm_fake_call_count "cudaLaunchKernel") - before
    assert(made == 0, made .. " copies")
  ]])

  script("round to TF32 only where that is allowed", [[
    local a, b = lm.randn{32, 32}, lm.randn{32, 32}
    local exact = (a:double():mm(b:double())):float()
    close(exact, a:cuda():mm(b:cuda()), 1e-4, "mm")
    lm.backends.cuda.matmul.allow_tf32 = true
    local rounded = (a:cuda():mm(b:cuda()):cpu() - exact):abs():max():item()
    assert(rounded > 1e-4 and rounded < 0.1, rounded)
    local x, w = lm.randn{2, 8, 9, 9}, lm.randn{8, 8, 3, 3}
    local want = lm.conv2d(x:double(), w:double()):float()
    close(want, lm.conv2d(x:cuda(), w:cuda()), 1e-4, "conv2d")
    lm.backends.cudnn.allow_tf32 = true
    rounded = (lm.conv2d(x:cuda(), w:cuda()):cpu() - want):abs():max():item()
    assert(rounded > 1e-4 and rounded < 0.1, rounded)
  ]])

  script("choose convolutions' engines by the settings", [[
    local x, w = lm.randn({2, 4, 6, 6}, {device = "cuda"}), lm.randn({8, 4, 3, 3}, {device = "cuda"})
    local function engines(f)
      local before, after = {}, {}
      for i = 0, 3 do before[i] = live("engine " .. i) end
      f()
      for i = 0, 3 do after[i + 1] = live("engine " .. i) - before[i] end
      return table.concat(after, " ")
    end
    local function run() return lm.conv2d(x, w) end
    local function is(want) local got = engines(run); assert(got == want, got) end
    is "0 1 0 0" -- tensor cores are not used
    lm.backends.cudnn.deterministic = true
    is "0 0 1 0"
    lm.backends.cudnn.allow_tf32 = true
    is "1 0 0 0"
    lm.backends.cudnn.deterministic = false
    lm.backends.cudnn.enabled = false
    is "0 0 0 0"
    lm.backends.cudnn.enabled = true
    lm.backends.cudnn.allow_tf32 = false
    lm.backends.cudnn.benchmark = true
    local all = engines(run)
    local counts = {all:match "^0 ([45]) ([45]) ([45])$"} -- each algorithm is measured, and the best runs once more
    assert(counts[1] + counts[2] + counts[3] == 13, all)
    local again = engines(run)
    assert(again:gsub("[ 0]", "") == "1", again)
  ]])

  script("convolve in any layout and dtype", [[
    local cases = {
      {{2, 3, 7, 6}, {4, 3, 3, 2}, {stride = 2, padding = 1}},
      {{2, 4, 7, 6}, {6, 2, 3, 3}, {groups = 2, padding = {2, 1}}},
      {{2, 4, 9, 8}, {4, 4, 3, 3}, {dilation = 2}},
      {{3, 1, 5, 5}, {2, 1, 3, 3}, {}},
      {{1, 4, 1, 1}, {5, 4, 1, 1}, {}},
    }
    local function strided(x)
      local wide = lm.zeros({x.shape[1], x.shape[2], x.shape[3], 2 * x.shape[4]}, {dtype = x.dtype, device = "cuda"})
      return wide:slice(-1, 2, -1, 2):copy_(x)
    end
    for _, dtype in ipairs {"float32", "float64", "float16", "bfloat16"} do
      local tolerance = ({float32 = 2e-5, float64 = 1e-12, float16 = 0.03, bfloat16 = 0.3})[dtype]
      for _, case in ipairs(cases) do
        local x, w = lm.randn(case[1]):to(dtype), lm.randn(case[2]):to(dtype)
        local b, o = lm.randn{case[2][1]}:to(dtype), case[3]
        local y = lm.conv2d(x:double(), w:double(), b:double(), o)
        local g = lm.randn(y.shape):to(dtype)
        local dx = lm.conv2d_input(g:double(), w:double(), x.shape, o)
        local dw = lm.conv2d_weight(g:double(), x:double(), w.shape, o)
        for _, lay in ipairs {
          function(t) return t:cuda() end, strided,
          function(t) return t:cuda():contiguous{memory_format = "channels_last"} end } do
          local bias = lm.zeros({2 * b.shape[1]}, {dtype = dtype, device = "cuda"}):slice(1, 2, -1, 2):copy_(b)
          o.bias = nil
          close(y, lm.conv2d(lay(x), lay(w), bias, o), tolerance, dtype .. " conv2d")
          close(y, lm.conv2d(lay(x), lay(w), b:cuda(), o), tolerance, dtype .. " conv2d")
          close(dx, lm.conv2d_input(lay(g), lay(w), x.shape, o), tolerance, dtype .. " conv2d_input")
          close(dw, lm.conv2d_weight(lay(g), lay(x), w.shape, o), tolerance, dtype .. " conv2d_weight")
        end
      end
    end
  ]])

  script("convolve without cuDNN, and what is empty", [[
    lm.backends.cudnn.enabled = false
    for _, dtype in ipairs {"float32", "float64"} do
      local like = {dtype = dtype}
      local x, w, b = lm.randn({2, 4, 7, 6}, like), lm.randn({6, 2, 3, 2}, like), lm.randn({6}, like)
      local o = {groups = 2, stride = {2, 1}, padding = {1, 2}, dilation = {1, 2}}
      local y = lm.conv2d(x, w, b, o)
      close(y, lm.conv2d(x:cuda(), w:cuda(), b:cuda(), o), 1e-5, "conv2d")
      close(lm.conv2d_input(y, w, x.shape, o), lm.conv2d_input(y:cuda(), w:cuda(), x.shape, o), 2e-4, "conv2d_input")
      close(lm.conv2d_weight(y, x, w.shape, o), lm.conv2d_weight(y:cuda(), x:cuda(), w.shape, o), 2e-4, "conv2d_weight")
    end
    lm.backends.cudnn.enabled = true
    local bias = lm.randn{3}
    local function zeros(...) return lm.zeros({...}, {device = "cuda"}) end
    close(lm.conv2d(lm.zeros{2, 0, 5, 5}, lm.zeros{3, 0, 3, 3}, bias),
      lm.conv2d(zeros(2, 0, 5, 5), zeros(3, 0, 3, 3), bias:cuda()), 0, "no channels")
    local none = lm.conv2d_weight(zeros(0, 3, 3, 3), zeros(0, 2, 5, 5), {3, 2, 3, 3})
    close(lm.zeros{3, 2, 3, 3}, none, 0, "no images")
    close(lm.zeros{3, 5}, zeros(3, 0):mm(zeros(0, 5)), 0, "no inner dimension")
  ]])

  script("say which call failed, and leak nothing", [[
    local function leaf(...) return lm.randn({...}, {device = "cuda"}):requires_grad_() end
    local seed = 0
    local function step() -- has other sizes each time, so that plans accumulate
      seed = seed + 1
      local h, k = 4 + seed % 40, 1 + math.floor(seed / 40)
      local x, w, b = leaf(1, 4, h, 4), leaf(k, 4, 3, 3), leaf(k)
      local v, c = leaf(2, k * (h - 2) * 2), leaf(2)
      lm.linear(lm.conv2d(x, w, b):flatten(2), v, c):sum():backward()
      return w.grad:sum():item()
    end
    local names = {"cublasLtMatmul", "cublasLtMatmulAlgoGetHeuristic", "cublasLtMatmulDescSetAttribute",
      "cublasLtMatrixLayoutInit_internal", "cublasLtMatmulDescInit_internal", "cublasLtMatmulPreferenceInit_internal",
      "cublasLtMatmulPreferenceSetAttribute", "cudnnBackendCreateDescriptor", "cudnnBackendSetAttribute",
      "cudnnBackendFinalize", "cudnnBackendGetAttribute", "cudnnBackendExecute"}
    local failed, survived = 0, 0
    for _, name in ipairs(names) do
      local code = name:find "^cudnn" and 4000 or 14
      for try = 1, 400 do
        local nth = try <= 20 and try or 20 + (try - 20) * 5
        lm.backends.cudnn.benchmark = try % 7 == 0
        local n = calls(name)
        fake.lm_fake_fail(name, nth, code)
        local before, descriptors = lm.live_tensors(), live "descriptor"
        local ok, why = pcall(step)
        local reached = calls(name) - n >= nth
        fake.lm_fake_fail(name, 0, 0)
        collectgarbage() collectgarbage()
        if not reached then
          assert(ok, why)
          break
        end
        if ok then
          survived = survived + 1
        else
          failed = failed + 1
          assert(why:find((name:gsub("_internal", "")), 1, true) and why:find(tostring(code), 1, true), why)
          assert(why:find "conv2d" or why:find "linear" or why:find "mm" or why:find "sum", why)
        end
        assert(lm.live_tensors() <= before, "tensors leak after " .. name)
        -- Plans that were found are kept, two descriptors each; no other stays.
        local more = live "descriptor" - descriptors
        assert(more % 2 == 0 and more <= 6, ("%d descriptors after %s"):format(more, name))
      end
    end
    assert(failed > 60 and survived > 10, ("%d failed, %d survived"):format(failed, survived))
  ]])

  script("compute apart what cuBLASLt refuses to compute with the product, also as late as in its call", [[
    local function halves(...) return lm.rand({...}):to("float16"):cuda() end
    local x, other, bias = halves(8, 24), halves(24, 16), halves(16)
    local want, sums = x:cpu():double():matmul(other:cpu():double()), x:cpu():double():sum(2)
    local sum, gelu = want + bias:cpu():double(), lm.nn.functional.gelu
    for _, name in ipairs {"cublasLtMatmul", "cublasLtMatmulAlgoGetHeuristic"} do
      local function refuse() fake.lm_fake_fail(name, 1, 7) end
      refuse()
      local y, found = lm.ops.mm_with_sums(x, other)
      close(want, y, 1e-4, "product")
      close(sums, found, 1e-4, "sums")
      refuse()
      local z, inner = lm.ops.addmm_gelu(x, other, bias)
      close(sum, inner, 2e-2, "product and bias")
      close(gelu(sum, {approximate = "tanh"}), z, 2e-2, "gelu")
      refuse()
      close(sum, bias:addmm(x, other), 2e-2, "bias")
      refuse()
      refused(name .. ": error 7", x.mm, x, other)
      x, want, sums, sum = x:narrow(1, 1, 7), want:narrow(1, 1, 7), sums:narrow(1, 1, 7), sum:narrow(1, 1, 7)
    end
  ]])

  -- A fresh process each: handles, plans and choices are made at the first use.
  script("fail at the first use, and work at the second", [[
    local function step()
      local x, w = lm.randn({2, 4, 6, 6}, {device = "cuda"}), lm.randn({3, 4, 3, 3}, {device = "cuda"})
      return lm.conv2d(x, w):sum():item() + lm.mm(x:view(8, 36), x:view(8, 36):t()):sum():item()
    end
    for _, name in ipairs {"cudnnCreate", "cudnnSetStream", "cublasLtCreate"} do
      local code = name:find "^cudnn" and 1001 or 1
      fake.lm_fake_fail(name, 1, code)
      local ok, why = pcall(step)
      assert(not ok and why:find(name, 1, true) and why:find("error " .. code, 1, true), why)
    end
    assert(live "handle" <= 3)
    step()
    assert(live "handle" == 2, live "handle")
  ]])
end)

-- Cases of scripts/dev/gpu_cases.lua: recurrent layers and attention.
local lm = require "luminary"
local common = require "scripts.dev.gpu.common"
local nn, F = lm.nn, lm.nn.functional
local fail, expect_all = common.fail, common.expect_all

local case = {}

-- Compares recurrent layers by cuDNN with the CPU's in float64: results and gradients. With a size: milliseconds of
-- forward and backward of two layers of that size over 100 steps of 32 sequences, beside the same step by step.
function case.recurrent(size)
  local packed = { 7, 7, 5, 4, 1, 1, 1, 1 }
  local function values(net, x)
    local input = x:detach():requires_grad_()
    local sequences = nn.utils.rnn.pack_padded_sequence(input, packed)
    local padded, last = net(input)
    local y, hidden = net(sequences)
    local list, loss = { padded, y.data, type(last) == "table" and last[2] or last,
      type(hidden) == "table" and hidden[1] or hidden }, 0
    for i, t in ipairs(list) do loss = loss + (t:double() * i):sin():sum() end
    loss:backward()
    list[#list + 1] = input.grad
    for _, p in ipairs(net:parameters()) do list[#list + 1] = p.grad end
    return list
  end
  local limits = { float64 = 1e-10, float32 = 1e-4, bfloat16 = 0.1, float16 = 2e-2 }
  for _, kind in ipairs { "RNN", "GRU", "LSTM" } do
    for _, dtype in ipairs { "float64", "float32", "bfloat16", "float16" } do
      lm.manual_seed(1)
      local options = { num_layers = 2, bidirectional = true }
      local here, there = nn[kind](24, 32, options), nn[kind](24, 32, options):to("cuda", dtype)
      there:load_state_dict(here:state_dict())
      here:load_state_dict(there:state_dict())
      local cell = {cell = kind == "RNN" and "rnn_tanh" or kind:lower(), bidirectional = true}
      if lm.recurrent_weights(there:parameters(), cell):numel() == 0 then
        fail("%s in %s goes step by step; LM_LOG=op says why", kind, dtype)
      end
      local x = lm.randn { 7, 8, 24 }:to(dtype)
      expect_all(kind .. " in " .. dtype, values(here:double(), x:double()), values(there, x:cuda()), limits[dtype])
      if size then
        local net = nn[kind](assert(tonumber(size), "which size?"), tonumber(size), 2):to("cuda", dtype)
        local input = lm.randn({ 100, 32, tonumber(size) }):to("cuda", dtype):requires_grad_()
        local took = {}
        for _, by_steps in ipairs { false, true } do
          net.by_steps = by_steps
          took[by_steps] = common.milliseconds(function() net(input):sum():backward() end, {})
        end
        print(("%40s cuDNN %8.3f ms, step by step %8.3f ms"):format("", took[false], took[true]))
      end
    end
  end
end

-- Compares attention with the CPU's in float64, with and without masks, of heads that are shared: results and
-- gradients, by cuDNN and by our kernels, of float32 also by TF32. 37 queries are part of a block, 300 several; rows of
-- 33 numbers are no whole packs. With a length, how long these and products take, and how near our forward pass comes
-- to the tensor cores' speed.
function case.attention(length)
  local ops = require "luminary.core".ops
  -- Does what F.scaled_dot_product_attention does, where that might choose products.
  local function by_kernels(q, k, v, o)
    local draw = o.dropout_p and o.dropout_p > 0 and ops.attention_draw(q, k) or nil
    return (ops.attention(q, k, v, o.attn_mask, o.is_causal or false, nil, o.dropout_p or 0, draw))
  end
  local limits = { float64 = 1e-10, float32 = 1e-4, tf32 = 1e-2, bfloat16 = 5e-2, float16 = 1e-2 }
  lm.backends.cudnn.benchmark = true -- cuDNN from a length's first call on, else from its second
  for _, number in ipairs { "float64", "float32", "tf32", "bfloat16", "float16" } do
    local tf32, half = number == "tf32", number == "bfloat16" or number == "float16"
    local dtype, attend = tf32 and "float32" or number, tf32 and by_kernels or F.scaled_dot_product_attention
    lm.backends.cuda.matmul.allow_tf32 = tf32
    for _, e in ipairs(common.stand_in and { 80 } or { 33, 40, 64, 80, 128, 256 }) do
      for _, how in ipairs { "plain", "causal", "masked", "added", "shared heads", "dropout" } do
        for _, queries in ipairs(common.stand_in and { 37 } or { 37, 300 }) do
          lm.manual_seed(1)
          local heads, keys = how == "shared heads" and 2 or 4, how == "causal" and queries or queries + 9
          local list = { lm.randn { 2, 4, queries, e }, lm.randn { 2, heads, keys, e } }
          list[3] = lm.randn(list[2].shape)
          local mask = how == "masked" and lm.rand({ queries, keys }):lt(0.7)
            or how == "added" and lm.randn { queries, keys }:to(dtype) or nil
          local function values(device, as, by)
            local on = {}
            for i, t in ipairs(list) do on[i] = t:to(dtype):to(device, as):detach():requires_grad_() end
            lm.manual_seed(2)
            local y = by(on[1], on[2], on[3], {
              is_causal = how == "causal", enable_gqa = how == "shared heads",
              attn_mask = mask and mask:to(device, how == "added" and as or "bool"),
              dropout_p = how == "dropout" and 0.3 or 0,
            })
            y:double():sin():sum():backward()
            return { y, on[1].grad, on[2].grad, on[3].grad }
          end
          local want = values("cpu", "float64", F.scaled_dot_product_attention)
          -- case.attention_dropout compares dropout by cuDNN, which has its own masks.
          for _, enabled in ipairs(not half and { true } or how == "dropout" and { false } or { true, false }) do
            lm.backends.cudnn.enabled = enabled
            for turn = 1, enabled and 2 or 1 do -- from a length's second call on it is cuDNN's
              expect_all(("%d x %d %s, %s%s%s"):format(queries, e, how, number, enabled and "" or ", no cuDNN",
                turn > 1 and ", again" or ""), want,
                values("cuda", dtype, enabled and attend or by_kernels), limits[number])
            end
          end
          lm.backends.cudnn.enabled = true
        end
      end
    end
    -- Scores far below 0, of which e to the power of what is not there would be inf; and one query, or one key.
    for _, size in ipairs { { 64, 64 }, { 192, 192 }, { 320, 320 }, { 1000, 1000 }, { 1, 128 }, { 128, 1 } } do
      if common.stand_in and size[1] + size[2] > 130 then break end
      local q, k = lm.zeros { 1, 2, size[1], 64 }, lm.zeros { 1, 2, size[2], 64 }
      q:select(4, 1):fill_(1)
      k:select(4, 1):fill_(-960)
      local list = { q, k, lm.randn(k.shape) }
      local function values(device, as)
        local on = {}
        for i, t in ipairs(list) do on[i] = t:to(device, as):detach():requires_grad_() end
        local y = attend(on[1], on[2], on[3], {})
        y:double():sin():sum():backward()
        return { y, on[3].grad }, on
      end
      local got, on = values("cuda", dtype)
      if half then got, on = values("cuda", dtype) end -- cuDNN's, of a length that came before
      expect_all(("%d x %d of small scores, %s"):format(size[1], size[2], number), values("cpu", "float64"), got,
        limits[number])
      for i = 1, 2 do
        if not on[i].grad:isfinite():all():item() then fail("a gradient of %s that is not finite", number) end
      end
    end
    for _, width in ipairs(length and { 64, 128 } or {}) do
      local l = assert(tonumber(length), "which length?")
      local x = lm.randn({ 3, 4, 12, l, width }):to("cuda", dtype)
      local q, k, v = x[1]:detach():requires_grad_(), x[2]:detach():requires_grad_(), x[3]:detach():requires_grad_()
      local took = {}
      local function timed(f) took[#took + 1] = common.milliseconds(function() f():sum():backward() end, {}) end
      for _, causal in ipairs { false, true } do
        for _, enabled in ipairs { true, false } do
          lm.backends.cudnn.enabled = enabled
          timed(function() return by_kernels(q, k, v, { is_causal = causal }) end)
        end
      end
      local seen = lm.ones({ l, l }, { dtype = "bool", device = "cuda" }):tril()
      timed(function() return by_kernels(q, k, v, { attn_mask = seen }) end)
      timed(function() return by_kernels(q, k, v, { dropout_p = 0.1 }) end)
      local forward = common.seconds(function() lm.no_grad(by_kernels, q, k, v, {}) end)
      lm.backends.cudnn.enabled = true
      timed(function() return (q * width ^ -0.5):matmul(k:transpose(-2, -1)):softmax(-1):matmul(v) end)
      print(("%40s cuDNN %.3f ms, no cuDNN %.3f ms; causal %.3f and %.3f ms; masked %.3f ms, dropout %.3f ms; products "
        .. "and softmax %.3f ms"):format(number .. " x " .. width, unpack(took)))
      print(("%40s our forward pass: %.1f TFLOP/s%s"):format("", 4 * 48 * l ^ 2 * width / forward / 1e12,
        (half or tf32) and (" of %.1f"):format(common.ceiling(half and "bfloat16" or number)) or ""))
    end
  end
  lm.backends.cuda.matmul.allow_tf32 = false
end

-- Checks attention with cuDNN's dropout. Values are an identity, so that the result shows which weights were kept; then
-- result and gradients are those of products in float64 with that mask. The same seed drops the same, another call and
-- a replayed graph another part, no two heads alike, and 1 - p of all stay.
function case.attention_dropout()
  lm.backends.cudnn.benchmark = true -- plans at once
  local p = 0.3
  for _, dtype in ipairs { "bfloat16", "float16" } do
    for _, width in ipairs(common.sized({ 64, 128 }, { 64 })) do
      for _, keys in ipairs(common.sized({ 128, 96 }, { 48 })) do
        for _, how in ipairs { "plain", "causal", "shared heads", "masked" } do
          lm.manual_seed(1)
          local queries, heads = common.sized(300, 40), how == "shared heads" and 2 or 4
          local causal, what = how == "causal", ("%d x %d %s, %s"):format(keys, width, how, dtype)
          local q, k = (lm.randn { 2, 4, queries, width } / 2):to(dtype), lm.randn({ 2, heads, keys, width }):to(dtype)
          local v = lm.eye(keys):expand(2, heads, keys, keys):contiguous():to(dtype)
          local seen = how == "masked" and lm.rand(queries, keys):lt(0.7) or nil
          local g = lm.randn { 2, 4, queries, keys }
          local function values(device, as, attend)
            local on = {}
            for i, t in ipairs { q, k, v } do on[i] = t:to(device, as):detach():requires_grad_() end
            lm.manual_seed(2)
            local y = attend(unpack(on))
            lm.sum(y:double() * g:to(device)):backward()
            return { y, on[1].grad, on[2].grad, on[3].grad }
          end
          local options = {
            is_causal = causal, enable_gqa = true, dropout_p = p, attn_mask = seen and seen:cuda(),
          }
          local function dropped(a, b, c) return F.scaled_dot_product_attention(a, b, c, options) end
          local got, again = values("cuda", dtype, dropped), values("cuda", dtype, dropped)
          -- Gradients are added up in any order.
          if not lm.equal(got[1], again[1]) then fail("%s: the same seed drops another part", what) end
          local kept = got[1]:ne(0):cpu()
          expect_all(what, values("cpu", "float64", function(a, b, c)
            local weights = a:matmul(b:repeat_interleave(4 / heads, 2):transpose(3, 4)) / math.sqrt(width)
            if causal then weights = weights + lm.full({ queries, keys }, -math.huge, { dtype = "float64" }):triu(1) end
            if seen then weights = weights:masked_fill(seen:logical_not(), -math.huge) end
            return (weights:softmax(4) * kept:double() / (1 - p)):matmul(c:repeat_interleave(4 / heads, 2))
          end), got, 5e-2)
          local all = lm.ones({ queries, keys }, { dtype = "bool" })
          if causal then all = all:tril() end
          if seen then all = seen end
          local share = kept:sum():item() / (8 * all:sum():item())
          if math.abs(share - (1 - p)) > 0.02 then fail("%s: %.3f of the weights stay", what, share) end
          local y
          local on = { q:cuda(), k:cuda(), v:cuda() }
          local graph = lm.cuda.graph(function() y = dropped(unpack(on)) end)
          local masks = { kept[1][1], kept[1][2], kept[2][1], dropped(unpack(on)):ne(0):cpu()[1][1] }
          for _ = 1, 2 do
            graph:replay()
            masks[#masks + 1] = y:ne(0):cpu()[1][1]
          end
          for i = 1, #masks do
            for j = 1, i - 1 do
              -- Two independent ones agree in p^2 + (1 - p)^2 of the elements.
              local alike = masks[i]:eq(masks[j]):logical_and(all):sum():item() / all:sum():item()
              if math.abs(alike - p * p - (1 - p) * (1 - p)) > 0.05 then
                fail("%s: masks %d and %d agree in %.3f", what, j, i, alike)
              end
            end
          end
        end
      end
    end
  end
end

-- Compares cuDNN's attention in half precision with the CPU's in float64: heads of many widths, lengths that fill no
-- block, causal or not, heads of keys that several heads of queries share. Each must have a plan, which the log says.
local function plans_tried()
  lm.backends.cudnn.benchmark = true -- as above
  local all_lengths = common.sized({ { 100, 100 }, { 129, 257 }, { 500, 500 } }, { { 33, 70 } })
  for _, dtype in ipairs { "bfloat16", "float16" } do
    for _, width in ipairs(common.sized({ 32, 64, 80, 96, 128, 256 }, { 80 })) do
      for _, lengths in ipairs(all_lengths) do
        for _, causal in ipairs { false, true } do
          for _, key_heads in ipairs { 4, 2 } do
            lm.manual_seed(1)
            local list = { lm.randn { 2, 4, lengths[1], width }, lm.randn { 2, key_heads, lengths[2], width } }
            list[3] = lm.randn(list[2].shape)
            local function values(device, as)
              local on = {}
              for i, t in ipairs(list) do on[i] = t:to(dtype):to(device, as):detach():requires_grad_() end
              local y = F.scaled_dot_product_attention(on[1], on[2], on[3], {
                is_causal = causal, enable_gqa = key_heads < 4,
              })
              y:double():sin():sum():backward()
              return { y, on[1].grad, on[2].grad, on[3].grad }
            end
            local want = values("cpu", "float64")
            values("cuda", dtype) -- a plan is made for a length that comes again
            expect_all(("%d x %d, %d each, %d of 4 heads%s, %s"):format(lengths[1], lengths[2], width, key_heads,
              causal and ", causal" or "", dtype), want, values("cuda", dtype), 5e-2)
          end
        end
      end
    end
  end
end

function case.plans(inner)
  if inner then return plans_tried() end
  local pipe = io.popen(("LM_LOG=op luajit %s plans inner 2>&1; echo \"code $?\""):format(arg[0]))
  local counts, code = { a = 0, no = 0 }, nil
  for line in pipe:lines() do
    local which = line:match "cuDNN: (%a+) plan for attention"
    code = line:match "^code (%d+)$" or code
    if which then counts[which] = counts[which] + 1 end
    if which == "no" or not line:find "^%[op" and not line:find "^code %d+$" then print(line) end
  end
  pipe:close()
  print(("%d plans found, %d not"):format(counts.a, counts.no))
  if code ~= "0" then fail "the values above differ, or the process died" end
  if counts.no > 0 or counts.a == 0 then fail("cuDNN has no plan for %d attentions", counts.no) end
end

return case

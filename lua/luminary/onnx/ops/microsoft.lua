--- onnxruntime's ops, of the domain com.microsoft: those that its optimizer writes.
local core = require "luminary.core"
local helpers = require "luminary.onnx.ops.sizes"
local convolution = require "luminary.onnx.ops.convolution"
local finfo = require("luminary.tensor.dtype_info").finfo
local normalization = require "luminary.onnx.ops.normalization"
local ops, to = core.ops, core.methods.to
local op = {}

-- ---- products with an activation

local activations = {
  Relu = ops.relu, Tanh = ops.tanh, Sigmoid = ops.sigmoid,
  LeakyRelu = function(x, alpha) return ops.leaky_relu(x, alpha or 0.01) end,
  Clip = function(x, low, high) return ops.clamp(x, low, high) end,
}
local function read_activation(n)
  local params = n.activation_params or {n.activation_alpha, n.activation_beta}
  local f = activations[n.activation or ""]
  if not f and n.activation then n:unsupported("with activation " .. n.activation) end
  n.finish = f and function(y) return f(y, params[1], params[2]) end or function(y) return y end
end

local function swapped(x, batch)
  if x.ndim < 2 then return x end
  if not batch then return ops.transpose(x, -1, -2) end
  return x:movedim(1, x.ndim - 1)
end
op.FusedMatMul = {alpha = 1, transA = 0, transB = 0, transBatchA = 0, transBatchB = 0, function(n, a, b)
  if n.transBatchA == 1 then a = swapped(a, true) end
  if n.transBatchB == 1 then b = swapped(b, true) end
  if n.transA == 1 then a = swapped(a) end
  if n.transB == 1 then b = swapped(b) end
  local y = ops.matmul(a, b)
  return n.alpha == 1 and y or y * n.alpha
end}
op.FusedGemm = {alpha = 1, beta = 1, transA = 0, transB = 0, prepare = read_activation, function(n, a, b, c)
  if n.transA == 1 then a = swapped(a) end
  if n.transB == 1 then b = swapped(b) end
  local y = ops.matmul(a, b)
  if n.alpha ~= 1 then y = y * n.alpha end
  return n.finish(c and y + (n.beta == 1 and c or c * n.beta) or y)
end}
op.FusedConv = {group = 1, prepare = read_activation, function(n, x, w, bias, z)
  local y = convolution.Conv[1](n, x, w, bias)
  return n.finish(z and y + z or y)
end}

-- ---- activations and normalizations

local function plus(x, y) return y and x + y or x end
op.Gelu = function(x) return ops.gelu(x) end
op.BiasGelu = function(x, bias) return ops.gelu(x + bias) end
op.FastGelu = function(x, bias) return ops.gelu(plus(x, bias), {approximate = "tanh"}) end
op.QuickGelu = {alpha = 1.702, function(n, x) return x * ops.sigmoid(x * n.alpha) end}

local function statistics(x, epsilon)
  return ops.mean(x, -1, true), ops.rsqrt(ops.var(x, {-1}, false, true) + epsilon)
end
op.SkipLayerNormalization = {epsilon = 1e-12, function(n, x, skip, gamma, beta, bias)
  local sum = plus(x + skip, bias)
  local y = ops.layer_norm(sum, {sum.shape[-1]}, gamma, beta, n.epsilon)
  if n.results == 1 then return y end
  local mean, inverse = statistics(sum, n.epsilon)
  return y, mean, inverse, sum
end}
op.SkipSimplifiedLayerNormalization = {epsilon = 1e-12, function(n, x, skip, gamma, bias)
  local sum = plus(x + skip, bias)
  return ops.rms_norm(sum, {sum.shape[-1]}, gamma, n.epsilon), nil, nil, sum
end}
op.LayerNormalization = normalization.LayerNormalization
op.SimplifiedLayerNormalization = normalization.SimplifiedLayerNormalization

-- Returns rows of a table [V, D] for indices from 0.
local function rows_of(t, indices)
  local sizes = {unpack(indices.shape)}
  sizes[#sizes + 1] = t.shape[2]
  return ops.index_select(t, 1, to(indices:reshape(-1), "int64") + 1):reshape(sizes)
end
op.EmbedLayerNormalization = {epsilon = 1e-12, mask_index_type = 0, how = "list", function(n, list)
  local ids, segments, words, positions, kinds, gamma, beta, mask, at = unpack(list, 1, 9)
  local sum = rows_of(words, ids)
  sum = sum + (at and rows_of(positions, at) or ops.narrow(positions, 1, 1, ids.shape[2]))
  if segments then sum = sum + rows_of(kinds, segments) end
  local lengths = mask and to(ops.sum(mask, 2), "int32")
    or ops.zeros({ids.shape[1]}, {dtype = "int32", device = ids.device})
  return ops.layer_norm(sum, {sum.shape[-1]}, gamma, beta, n.epsilon), lengths, sum
end}

-- ---- attention

local function heads_of(x, heads)
  return x.ndim == 4 and x or ops.transpose(x:reshape(x.shape[1], x.shape[2], heads, -1), 2, 3)
end
local function positions(n, x) return ops.arange(n, {dtype = "int64", device = x.device}) end

-- Returns a mask of keys, which is [B] numbers of keys, [2 B] their ends and starts, [B, S] or [B, L, S], as bool that
-- broadcasts to [B, H, L, S].
local function mask_of(t, B, S)
  if t.ndim == 1 then
    local keys, ends = positions(S, t):reshape(1, S), ops.narrow(t, 1, 1, B):reshape(B, 1)
    local seen = ops.lt(keys, ends)
    if t.shape[1] == 2 * B then seen = ops.logical_and(seen, ops.ge(keys, ops.narrow(t, 1, B + 1, B):reshape(B, 1))) end
    return seen:reshape(B, 1, 1, S)
  end
  t = ops.ne(t, 0)
  return t.ndim == 2 and t:reshape(t.shape[1], 1, 1, -1) or t.ndim == 3 and ops.unsqueeze(t, 2) or t
end

-- Returns attention of heads [B, H, L, E]. seen: bool or nil; added: numbers or nil, of shapes that broadcast; past:
-- the number of keys before those of the queries. Keys that are not seen count mask_filter_value less, and later ones
-- much less, so that a row which sees none is the mean of those up to it.
local function attend(n, q, k, v, seen, added, past)
  local L, S, mask = q.shape[3], k.shape[3], added
  local function hide(hidden, value)
    local less = ops.masked_fill(ops.zeros(hidden.shape, {dtype = q.dtype, device = q.device}), hidden, value)
    mask = mask and mask + less or less
  end
  if seen then hide(ops.logical_not(seen), n.mask_filter_value) end
  if (n.unidirectional == 1 or n.is_causal == 1) and L > 1 then
    local rows = positions(L, q):reshape(1, 1, L, 1) + past
    hide(ops.gt(positions(S, q):reshape(1, 1, 1, S), rows), finfo(q.dtype).min)
  end
  if mask then mask = ops.expand(mask, {q.shape[1], mask.ndim == 4 and mask.shape[2] or 1, L, S}) end
  local scale = n.scale and n.scale ~= 0 and n.scale or nil
  local y = ops.scaled_dot_product_attention(q, k, v, mask, 0, false,
    {scale = scale, enable_gqa = q.shape[2] ~= k.shape[2]})
  return ops.transpose(y, 2, 3):reshape(q.shape[1], L, -1)
end

op.Attention = {mask_filter_value = -10000, unidirectional = 0, prepare = function(n)
  if n.do_rotary == 1 or n.past_present_share_buffer == 1 then n:unsupported "with rotary positions" end
end, function(n, x, weight, bias, mask, past, added)
  local H, B, all = n.num_heads, x.shape[1], plus(ops.matmul(x, weight), bias)
  local width = all.shape[3] / 3
  local parts = helpers.parts_of(all, 3, n.qkv_hidden_sizes or {width, width, width})
  local q, k, v = heads_of(parts[1], H), heads_of(parts[2], H), heads_of(parts[3], H)
  if past then k, v = ops.cat({ops.select(past, 1, 1), k}, 3), ops.cat({ops.select(past, 1, 2), v}, 3) end
  local y = attend(n, q, k, v, mask and mask_of(mask, B, k.shape[3]), added, past and past.shape[4] or 0)
  return y, n.results > 1 and ops.stack({k, v}, 1) or nil
end}

op.MultiHeadAttention = {mask_filter_value = -10000, unidirectional = 0,
  function(n, q, k, v, bias, mask, added, past_k, past_v)
    local H = n.num_heads
    if q.ndim == 5 then -- [B, L, H, 3, E]
      q, k, v = ops.select(q, 4, 1), ops.select(q, 4, 2), ops.select(q, 4, 3)
      q, k, v = ops.transpose(q, 2, 3), ops.transpose(k, 2, 3), ops.transpose(v, 2, 3)
    elseif k.ndim == 5 then -- [B, S, H, 2, E]
      k, v = ops.transpose(ops.select(k, 4, 1), 2, 3), ops.transpose(ops.select(k, 4, 2), 2, 3)
    end
    if bias then
      local width = q.ndim == 4 and q.shape[2] * q.shape[4] or q.shape[3]
      local parts = helpers.parts_of(bias, 1, {width, width, bias.shape[1] - 2 * width})
      local function biased(x, b) return x + (x.ndim == 4 and b:reshape(1, H, 1, -1) or b) end
      q, k, v = biased(q, parts[1]), biased(k, parts[2]), biased(v, parts[3])
    end
    q, k, v = heads_of(q, H), heads_of(k, H), heads_of(v, H)
    if past_k then k, v = ops.cat({past_k, k}, 3), ops.cat({past_v, v}, 3) end
    local seen = mask and mask_of(mask, q.shape[1], k.shape[3])
    return attend(n, q, k, v, seen, added, past_k and past_k.shape[3] or 0), k, v
  end}

-- Returns heads x [B, H, L, E] with their first elements rotated by rows `at` [B, L] of cos and sin.
local function rotate(n, x, at, cos, sin)
  local how = {num_heads = x.shape[2], interleaved = n.interleaved, rotary_embedding_dim = 2 * cos.shape[2]}
  return normalization.RotaryEmbedding[1](how, x, cos, sin, at)
end

op.RotaryEmbedding = {interleaved = 0, num_heads = 0, rotary_embedding_dim = 0, function(n, x, at, cos, sin)
  local width = n.rotary_embedding_dim > 0 and x.ndim == 3 and x.shape[3] / n.num_heads or 2 * cos.shape[2]
  local heads = x.ndim == 4 and x or ops.transpose(x:reshape(x.shape[1], x.shape[2], -1, width), 2, 3)
  local B, L = heads.shape[1], heads.shape[3]
  if at:numel() == 1 then at = ops.expand(positions(L, x) + at:reshape({}), {B, L}) end
  local y = rotate(n, heads, at, cos, sin)
  return x.ndim == 4 and y or ops.transpose(y, 2, 3):reshape(x.shape)
end}

op.GroupQueryAttention = {local_window_size = -1, do_rotary = 0, rotary_interleaved = 0, softcap = 0, how = "list",
  prepare = function(n)
    if n.softcap > 0 or n.smooth_softmax == 1 or #n.inputs > 11 then n:unsupported "with softcap or smooth softmax" end
    n.interleaved, n.mask_filter_value = n.rotary_interleaved, -math.huge
  end,
  function(n, list)
    local q, k, v, past_k, past_v, last, _, cos, sin, given, added = unpack(list, 1, 11)
    local H, G, L = n.num_heads, n.kv_num_heads, q.shape[2]
    if not k then
      local each = q.shape[3] / (H + 2 * G)
      q, k, v = unpack(helpers.parts_of(q, 3, {each * H, each * G, each * G}))
    end
    q, k, v = heads_of(q, H), heads_of(k, G), heads_of(v, G)
    local lengths = to(last, "int64"):reshape(-1, 1) + 1
    local total = lengths:max():item()
    local before = math.max(total - L, 0)
    local at = given or ops.clamp(positions(L, q):reshape(1, L) + ops.clamp(lengths - L, 0), nil, total - 1)
    if n.do_rotary == 1 then q, k = rotate(n, q, at, cos, sin), rotate(n, k, at, cos, sin) end
    if past_k and before > 0 then -- the past may have room for more
      k = ops.cat({ops.narrow(past_k, 3, 1, before), k}, 3)
      v = ops.cat({ops.narrow(past_v, 3, 1, before), v}, 3)
    end
    local S = k.shape[3]
    if ops.amin(lengths):item() < total and before > 0 then
      n:fail "GroupQueryAttention with a past and sequences of several lengths is not supported"
    end
    local keys, rows = positions(S, q):reshape(1, 1, 1, S), (positions(L, q) + before):reshape(1, 1, L, 1)
    local seen = ops.le(keys, rows)
    if n.local_window_size > 0 then seen = ops.logical_and(seen, ops.gt(keys, rows - n.local_window_size)) end
    return attend(n, q, k, v, ops.expand(seen, {q.shape[1], 1, L, S}), added), k, v
  end}

-- Attention as exporters write it, which patterns.lua finds: q times k, whose last dims are transposed; `axis` is that
-- of softmax.
op.JoinedAttention = {function(n, q, k, v, mask)
  local B, H, L, S = q.shape[1], q.shape[2], q.shape[-2], k.shape[-1]
  local fits = q.ndim == 4 and k.ndim == 4 and v.ndim == 4 and k.shape[1] == B and k.shape[2] == H and v.shape[1] == B
    and v.shape[2] == H
  if not fits or mask and (mask.requires_grad or mask.dtype ~= q.dtype or mask.ndim > 4) then
    local all = ops.matmul(q, k)
    all = plus(n.scale == 1 and all or all * n.scale, mask)
    return ops.matmul(ops.softmax(all, helpers.dim_in(all, n.axis)), v)
  end
  if mask then mask = ops.expand(mask, {B, mask.ndim > 2 and mask.shape[-3] or 1, L, S}) end
  return ops.scaled_dot_product_attention(q, ops.transpose(k, 3, 4), v, mask, 0, false, {scale = n.scale})
end}

-- ---- weights of 4 and 8 bits

-- Returns numbers of `bits` bits, packed in the bytes of the last dim, as float32.
local function unpacked(t, bits)
  if bits == 8 then return to(t, "float32") end
  local both = ops.stack({ops.bitwise_and(t, 15), ops.bitwise_right_shift(t, 4)}, t.ndim + 1)
  return to(both:reshape(helpers.joined({unpack(t.shape, 1, t.ndim - 1)}, {-1})), "float32")
end
-- Returns rows of K numbers from those of packed ones, with a scale and a zero point for each block, as float32.
local function dequantized(n, packed, scales, zeros, rows, K)
  local function spread(t)
    t = to(t, "float32"):reshape(rows, -1, 1)
    return ops.narrow(ops.expand(t, {rows, t.shape[2], n.block_size}):reshape(rows, -1), 2, 1, K)
  end
  if zeros and zeros.dtype == "uint8" then zeros = unpacked(zeros:reshape(rows, -1), n.bits) end
  local values = ops.narrow(unpacked(packed:reshape(rows, -1), n.bits), 2, 1, K)
  return (values - (zeros and spread(zeros) or 2 ^ (n.bits - 1))) * spread(scales)
end
local function check_bits(n)
  if n.bits ~= 4 and n.bits ~= 8 then n:unsupported(("of %d bits"):format(n.bits)) end
end

op.GatherBlockQuantized = {bits = 4, block_size = 128, gather_axis = 0, quantize_axis = 1, prepare = function(n)
  check_bits(n)
  if n.gather_axis ~= 0 then n:unsupported "along another axis than the first" end
end, function(n, packed, indices, scales, zeros)
  if packed.dtype ~= "uint8" or n.quantize_axis % packed.ndim ~= packed.ndim - 1 then
    n:fail "GatherBlockQuantized: data must be uint8, with blocks of the last axis"
  end
  local function rows_at(t) return t and rows_of(t:reshape(t.shape[1], -1), indices:reshape(-1)) end
  local sizes = {unpack(packed.shape, 2)}
  sizes[#sizes] = sizes[#sizes] * 8 / n.bits
  local rows = indices:numel() * helpers.product({unpack(sizes, 1, #sizes - 1)})
  local y = dequantized(n, rows_at(packed), rows_at(scales), rows_at(zeros), rows, sizes[#sizes])
  return to(y, scales.dtype):reshape(helpers.joined({unpack(indices.shape)}, sizes))
end}
-- Returns a weight of MatMulNBits as rows of the blocks that lm.block_linear multiplies, and their kind; nil if no kind
-- has such scales.
local function blocks_of(n, packed, scales, zeros)
  local per_scale, count = n.block_size / 32, n.N * n.K / 32
  local size = scales:abs() -- float16 holds 2^-14 to 65504, and less exactly smaller numbers
  local beyond = ops.logical_or(ops.logical_and(size:lt(2 ^ -14), size:ne(0)), size:gt(65504 / 15))
  if per_scale % 1 ~= 0 or n.K % n.block_size ~= 0 or zeros and (n.bits == 8 or zeros.dtype ~= "uint8")
    or not packed.device:find "^cpu" or beyond:any():item() then return nil end
  local function halves(t) -- in the first bytes of blocks
    t = to(ops.expand(t:reshape(-1, 1), {count / per_scale, per_scale}), "float16"):contiguous()
    return core.view_as(t:view(-1), "uint8", {count, 2}, {2, 1}, 0)
  end
  scales = to(scales, "float32"):reshape(-1)
  if n.bits == 8 then return ops.cat({halves(scales), ops.bitwise_xor(packed, 128):reshape(count, 32)}, 2), "q8_0" end
  local low, high = ops.bitwise_and(packed, 15), ops.bitwise_right_shift(packed, 4)
  local q = ops.stack({low:reshape(-1), high:reshape(-1)}, 2):reshape(count, 2, 16)
  q = ops.bitwise_or(q:select(2, 1), ops.bitwise_left_shift(q:select(2, 2), 4))
  if not zeros then return ops.cat({halves(scales), q}, 2), "q4_0" end
  zeros = ops.narrow(unpacked(zeros:reshape(n.N, -1), 4), 2, 1, n.K / n.block_size):reshape(-1)
  return ops.cat({halves(scales), halves(scales * zeros * -1), q}, 2), "q4_1"
end
op.MatMulNBits = {bits = 4, block_size = 32, accuracy_level = 0, prepare = function(n)
  check_bits(n)
  if n.inputs[5] and n.inputs[5] ~= 0 then n:unsupported "with g_idx" end
end, how = "list", function(n, list)
  local x, packed, scales, zeros, _, bias = unpack(list, 1, 6)
  local kept, N, K = n.kept_weight, n.N, n.K
  if not (kept and kept.is_current(packed, scales, zeros)) then
    kept = {}
    local blocks = N * math.ceil(K / n.block_size)
    if packed:numel() ~= blocks * n.block_size * n.bits / 8 or scales:numel() ~= blocks then
      n:fail(("expected %d scales and blocks of %d numbers of %d bits, got %d scales and %d bytes"):format(
        blocks, n.block_size, n.bits, scales:numel(), packed:numel()))
    end
    if n.accuracy_level == 4 then kept.weight, kept.kind = blocks_of(n, packed, scales, zeros) end -- x in int8
    kept.weight = kept.kind and kept.weight:reshape(N, -1)
      or to(dequantized(n, packed, scales, zeros, N, K), x.dtype)
    if n:const(2) and not core.graph_is_capturing() then -- a graph computes nothing yet
      kept.is_current = helpers.watch(packed, scales, zeros)
      n.kept_weight = core.keep(kept)
    end
  end
  if kept.kind then return ops.block_linear(x, kept.weight, bias and to(bias, "float32"), kept.kind) end
  return ops.linear(x, kept.weight, bias)
end}

return op

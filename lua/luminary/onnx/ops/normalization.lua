--- ONNX's normalizations, dropout, losses and attention.
local core = require "luminary.core"
local helpers = require "luminary.onnx.ops.sizes"

local ops, is_float, to = core.ops, core.is_floating_point, core.methods.to
local dim_of, dim_in, filled = helpers.dim_of, helpers.dim_in, helpers.filled
local normalization = {}

-- Returns a tensor [C] as [1, C, 1, …] for x.
local function along_channels(t, x) return t:reshape({1, -1, unpack(filled(x.ndim - 2, 1))}) end

function normalization.BatchNormalization(n)
  local eps, momentum, trains = n.a.epsilon or 1e-5, n.a.momentum or 0.9, n.a.training_mode == 1
  local old = n.version < 9 and n.a.spatial == 0
  return function(x, scale, bias, mean, var)
    if old then return (x - mean) / ops.sqrt(var + eps) * scale + bias end
    if not trains then return ops.batch_norm(x, mean, var, scale, bias, false, 0, eps) end
    local dims = {1}
    for d = 3, x.ndim do dims[#dims + 1] = d end
    local now, spread = ops.mean(x, dims), ops.var(x, dims, false)
    local y = (x - along_channels(now, x)) / ops.sqrt(along_channels(spread, x) + eps)
    return y * along_channels(scale, x) + along_channels(bias, x), mean * momentum + now * (1 - momentum),
      var * momentum + spread * (1 - momentum)
  end
end

function normalization.InstanceNormalization(n)
  local eps = n.a.epsilon or 1e-5
  return function(x, scale, bias) return ops.group_norm(x, x.shape[2], scale, bias, eps) end
end

function normalization.GroupNormalization(n)
  local groups, eps, per_group = n.a.num_groups, n.a.epsilon or 1e-5, n.version < 21
  local stash = n:dtype(n.a.stash_type, "float32")
  return function(x, scale, bias)
    if per_group and scale.shape[1] ~= x.shape[2] then
      local each = x.shape[2] / groups
      scale, bias = scale:repeat_interleave(each), bias:repeat_interleave(each)
    end
    local wide = x.dtype ~= "float64" and x.dtype ~= stash
    if not wide then return ops.group_norm(x, groups, scale, bias, eps) end
    return to(ops.group_norm(to(x, stash), groups, to(scale, stash), to(bias, stash), eps), x.dtype)
  end
end

-- Returns the sizes of the dims from axis on.
local function last_sizes(x, axis) return {unpack(x.shape, dim_in(x, axis))} end

function normalization.LayerNormalization(n)
  local axis, eps, wants_more = n.a.axis or -1, n.a.epsilon or 1e-5, n:wants(2) or n:wants(3)
  return function(x, scale, bias)
    local sizes = last_sizes(x, axis)
    local function shaped(t) return t and (#t.shape == #sizes and t or ops.expand(t, sizes)) end
    local y = ops.layer_norm(x, sizes, shaped(scale), shaped(bias), eps)
    if not wants_more then return y end
    local dims = {}
    for d = 1, #sizes do dims[d] = -d end
    local wide = is_float(x) and x.dtype ~= "float64" and to(x, "float32") or x
    return y, ops.mean(wide, dims, true), ops.rsqrt(ops.var(wide, dims, false, true) + eps)
  end
end

function normalization.RMSNormalization(n)
  local axis, eps = n.a.axis or -1, n.a.epsilon or 1e-5
  return function(x, scale)
    local sizes = last_sizes(x, axis)
    if #scale.shape == #sizes then return ops.rms_norm(x, sizes, scale, eps) end
    return ops.rms_norm(x, sizes, nil, eps) * scale
  end
end
normalization.SimplifiedLayerNormalization = normalization.RMSNormalization

function normalization.LpNormalization(n)
  local dim, p = dim_of(n.a.axis or -1), n.a.p or 2
  return function(x)
    local size = ops.norm(x, p, {dim}, true)
    return ops.where(ops.eq(size, 0), ops.zeros_like(x), x / size)
  end
end

function normalization.MeanVarianceNormalization(n)
  local dims = helpers.dims_of(n.a.axes or {0, 2, 3})
  return function(x)
    local mean = ops.mean(x, dims, true)
    local spread = ops.sqrt(ops.mean(ops.square(x), dims, true) - ops.square(mean))
    return (x - mean) / (spread + 1e-9)
  end
end

function normalization.LRN(n)
  local size, alpha, beta, bias = n.a.size, n.a.alpha or 1e-4, n.a.beta or 0.75, n.a.bias or 1
  return function(x)
    local first, last = filled(x.ndim, 0), filled(x.ndim, 0)
    first[2], last[2] = math.floor((size - 1) / 2), math.ceil((size - 1) / 2)
    local sums = ops.sum(helpers.padded(ops.square(x), first, last, "constant"):unfold(2, size, 1), {-1})
    return x / ops.pow(sums * (alpha / size) + bias, beta)
  end
end

function normalization.Dropout(n)
  local wants_mask = n:wants(2)
  return function(x, ratio, training)
    local p = ratio and ratio:item() or n.a.ratio or 0.5
    if not (training and training:item()) or p == 0 then
      return x, wants_mask and to(ops.ones_like(x), n.version < 10 and x.dtype or "bool") or nil
    end
    local mask = ops.ge(ops.empty_like(x, {dtype = "float32"}):uniform_(0, 1), p)
    return ops.where(mask, x / (1 - p), ops.zeros_like(x)), mask
  end
end

-- ---- losses

-- Returns the negative log likelihood of log probabilities x [N, C, ...] for classes [N, ...], which count from 0.
local function nll(x, target, weight, ignored, reduction)
  target = to(target, "int64")
  local hidden = ignored and ops.eq(target, ignored)
  local at = hidden and ops.where(hidden, ops.zeros_like(target), target) or target
  local loss = -ops.squeeze(ops.gather(x, 2, ops.unsqueeze(at, 2) + 1), 2)
  local each = weight and ops.index_select(weight, 1, at:reshape(-1) + 1):reshape(at.shape)
  if hidden then each = ops.masked_fill(each or ops.ones_like(loss), hidden, 0) end
  if each then loss = loss * each end
  if reduction == "none" then return loss end
  local sum = ops.sum(loss)
  if reduction == "sum" then return sum end
  return sum / (each and ops.sum(each) or loss:numel())
end

function normalization.NegativeLogLikelihoodLoss(n)
  local ignored, reduction = n.a.ignore_index, n.a.reduction or "mean"
  return function(x, target, weight) return nll(x, target, weight, ignored, reduction) end
end

function normalization.SoftmaxCrossEntropyLoss(n)
  local ignored, reduction = n.a.ignore_index, n.a.reduction or "mean"
  return function(x, target, weight)
    local y = ops.log_softmax(x, 2)
    return nll(y, target, weight, ignored, reduction), y
  end
end

-- ---- attention

-- Returns x [B, L, H * E] as [B, H, L, E]; unchanged if it has 4 dims.
local function heads_of(x, heads)
  if x.ndim == 4 then return x end
  return ops.transpose(x:reshape(x.shape[1], x.shape[2], heads, -1), 2, 3)
end
local function joined(x) return ops.transpose(x, 2, 3):reshape(x.shape[1], x.shape[3], -1) end

local function repeated(x, groups) return groups == 1 and x or x:repeat_interleave(groups, 2) end

-- Returns which keys a query may see, bool, by its position and the number of valid keys; nil: all. offset: the number of
-- keys before the queries, or such numbers [B, 1, 1, 1].
local function visible(L, S, offset, a, valid, device)
  local options = {dtype = "int64", device = device}
  local keys = ops.arange(S, options):reshape(1, 1, 1, S)
  local at = ops.arange(L, options):reshape(1, 1, L, 1) + offset
  local mask
  local function restrict(more) mask = mask and ops.logical_and(mask, more) or more end
  if a.is_causal == 1 then restrict(ops.le(keys, at)) end
  if (a.left_window_size or -1) >= 0 then restrict(ops.ge(keys, at - a.left_window_size)) end
  if (a.right_window_size or -1) >= 0 then restrict(ops.le(keys, at + a.right_window_size)) end
  if valid then restrict(ops.lt(keys, valid)) end
  return mask
end

function normalization.Attention(n)
  local a = n.a
  local plain = not (n:wants(4) or (a.softcap or 0) > 0 or a.softmax_precision)
  local mode, precision = a.qk_matmul_output_mode or 0, n:dtype(a.softmax_precision)
  return function(q, k, v, mask, past_k, past_v, lengths)
    local packed = q.ndim == 3
    q, k, v = heads_of(q, a.q_num_heads), heads_of(k, a.kv_num_heads), heads_of(v, a.kv_num_heads)
    local offset = past_k and past_k.shape[3] or 0
    if past_k then k, v = ops.cat({past_k, k}, 3), ops.cat({past_v, v}, 3) end
    local L, S, groups = q.shape[3], k.shape[3], q.shape[2] / k.shape[2]
    local valid = lengths and lengths:reshape(-1, 1, 1, 1)
    local seen = visible(L, S, valid and valid - L or offset, a, valid, q.device)
    if mask and mask.shape[-1] < S then
      local first, last = filled(mask.ndim, 0), filled(mask.ndim, 0)
      last[mask.ndim] = S - mask.shape[-1]
      mask = helpers.padded(mask, first, last, "constant", mask.dtype ~= "bool" and -math.huge or false)
    end
    local y, scores
    if plain then
      local all = mask
      if seen and mask then
        all = mask.dtype == "bool" and ops.logical_and(mask, seen) or ops.masked_fill(mask, ops.logical_not(seen), -math.huge)
      elseif seen then
        all = ops.expand(seen, {seen.shape[1], 1, L, S})
      end
      y = ops.scaled_dot_product_attention(q, k, v, all, 0, false, {scale = a.scale, enable_gqa = groups > 1})
    else
      local scale = math.sqrt(a.scale or 1 / math.sqrt(q.shape[4]))
      local kept = {ops.matmul(q * scale, ops.transpose(repeated(k, groups) * scale, 3, 4))}
      scores = kept[1]
      if (a.softcap or 0) > 0 then scores = ops.tanh(scores / a.softcap) * a.softcap end
      kept[2] = scores
      if mask and mask.dtype ~= "bool" then scores = scores + mask end
      if mask and mask.dtype == "bool" then seen = seen and ops.logical_and(seen, mask) or mask end
      if seen then scores = ops.masked_fill(scores, ops.logical_not(seen), -math.huge) end
      kept[3] = scores
      local wide = precision and to(scores, precision) or scores
      local blind = ops.eq(ops.amax(wide, {-1}, true), -math.huge)
      local weights = to(ops.masked_fill(ops.softmax(ops.masked_fill(wide, blind, 0), -1), blind, 0), q.dtype)
      kept[4] = weights
      y, scores = ops.matmul(weights, repeated(v, groups)), kept[mode + 1]
    end
    return packed and joined(y) or y, k, v, scores
  end
end

--- Returns x [B, L, H, E] with its first `width` channels rotated by cos and sin [B, L, 1, width / 2].
local function rotated(x, cos, sin, width, interleaved)
  local part, rest = x, nil
  if width < x.shape[4] then
    part, rest = ops.narrow(x, 4, 1, width), ops.narrow(x, 4, width + 1, x.shape[4] - width)
  end
  local p, q
  if interleaved then
    local pairs_ = part:reshape(part.shape[1], part.shape[2], part.shape[3], width / 2, 2)
    p, q = ops.select(pairs_, 5, 1), ops.select(pairs_, 5, 2)
  else
    p, q = helpers.nth(part, 4, 1, 2), helpers.nth(part, 4, 2, 2)
  end
  local real, imaginary = p * cos - q * sin, p * sin + q * cos
  local y = interleaved and ops.stack({real, imaginary}, 5):reshape(part.shape) or ops.cat({real, imaginary}, 4)
  return rest and ops.cat({y, rest}, 4) or y
end
normalization.rotated = rotated

function normalization.RotaryEmbedding(n)
  local interleaved, heads = n.a.interleaved == 1, n.a.num_heads
  local given = n.a.rotary_embedding_dim or 0
  return function(x, cos, sin, positions)
    local shape = x.shape
    local y = x.ndim == 4 and ops.transpose(x, 2, 3) or x:reshape(shape[1], shape[2], heads, -1)
    if positions then
      local at = positions:reshape(-1) + 1
      local sizes = {y.shape[1], y.shape[2], -1}
      cos, sin = ops.index_select(cos, 1, at):reshape(sizes), ops.index_select(sin, 1, at):reshape(sizes)
    end
    local width = given > 0 and given or y.shape[4]
    y = rotated(y, ops.unsqueeze(cos, 3), ops.unsqueeze(sin, 3), width, interleaved)
    return x.ndim == 4 and ops.transpose(y, 2, 3) or y:reshape(shape)
  end
end

function normalization.LinearAttention(n)
  local a = n.a
  local rule, H, G = a.update_rule or "gated_delta", a.q_num_heads, a.kv_num_heads
  return function(query, key, value, past, decay, beta)
    local dtype = query.dtype
    local function wide(x) return x and (dtype == "float64" and x or to(x, "float32")) end
    local q, k, v = wide(heads_of(query, H)), wide(heads_of(key, G)), wide(heads_of(value, G))
    local B, T, E = q.shape[1], q.shape[3], q.shape[4]
    local scale = (a.scale or 0) ~= 0 and a.scale or 1 / math.sqrt(E)
    local state = past and wide(past) or ops.zeros({B, G, E, v.shape[4]}, {dtype = v.dtype, device = v.device})
    decay, beta = decay and wide(decay):reshape(B, T, G, -1), beta and wide(beta):reshape(B, T, -1)
    local parts = {}
    for t = 1, T do
      local kt, vt = ops.select(k, 3, t), ops.select(v, 3, t)
      if rule:find "gated" then state = state * ops.unsqueeze(ops.exp(ops.select(decay, 2, t)), 4) end
      if rule:find "delta" then
        local read = ops.squeeze(ops.matmul(ops.unsqueeze(kt, 3), state), 3)
        vt = (vt - read) * ops.unsqueeze(ops.select(beta, 2, t), 3)
      end
      state = state + ops.unsqueeze(kt, 4) * ops.unsqueeze(vt, 3)
      local y = ops.matmul(ops.unsqueeze(ops.select(q, 3, t), 3), repeated(state, H / G))
      parts[t] = to(y * scale, dtype):reshape(B, 1, -1)
    end
    return ops.cat(parts, 2), past and to(state, past.dtype) or to(state, dtype)
  end
end

return normalization

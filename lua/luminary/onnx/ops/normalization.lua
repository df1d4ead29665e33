--- ONNX's normalizations, dropout, losses and attention.
local core = require "luminary.core"
local helpers = require "luminary.onnx.ops.sizes"
local ops, to = core.ops, core.methods.to
local dim_in = helpers.dim_in
local op = {}

op.BatchNormalization = {epsilon = 1e-5, momentum = 0.9, function(n, x, scale, bias, mean, var)
  if n.version < 9 and n.spatial == 0 then return (x - mean) / ops.sqrt(var + n.epsilon) * scale + bias end
  if n.training_mode ~= 1 then return ops.batch_norm(x, mean, var, scale, bias, false, 0, n.epsilon) end
  local dims = {1}
  for d = 3, x.ndim do dims[#dims + 1] = d end
  local now, spread, m = ops.mean(x, dims), ops.var(x, dims, false), n.momentum
  local y = ops.batch_norm(x, now, spread, scale, bias, false, 0, n.epsilon)
  return y, mean * m + now * (1 - m), var * m + spread * (1 - m)
end}
op.InstanceNormalization = {epsilon = 1e-5, function(n, x, scale, bias)
  return ops.group_norm(x, x.shape[2], scale, bias, n.epsilon)
end}
op.GroupNormalization = {epsilon = 1e-5, function(n, x, scale, bias)
  local each = n.version < 21 and x.shape[2] / n.num_groups or 1
  if each > 1 and scale.shape[1] ~= x.shape[2] then
    scale, bias = scale:repeat_interleave(each), bias:repeat_interleave(each)
  end
  return ops.group_norm(x, n.num_groups, scale, bias, n.epsilon)
end}

-- Returns the sizes of x's dims from an axis on.
local function last_sizes(x, axis) return {unpack(x.shape, dim_in(x, axis))} end

-- Returns whether t, a scale or a bias, has these sizes or is nil; others broadcast.
local function fits(t, sizes) return not t or table.concat(t.shape, ",") == table.concat(sizes, ",") end

op.LayerNormalization = {axis = -1, epsilon = 1e-5, function(n, x, scale, bias)
  local sizes, dims, y = last_sizes(x, n.axis), {}
  if fits(scale, sizes) and fits(bias, sizes) then
    y = ops.layer_norm(x, sizes, scale, bias, n.epsilon)
  else
    y = ops.layer_norm(x, sizes, nil, nil, n.epsilon) * scale
    y = bias and y + bias or y
  end
  if n.results == 1 then return y end
  for d = 1, #sizes do dims[d] = -d end
  local wide = x.dtype ~= "float64" and to(x, "float32") or x
  return y, ops.mean(wide, dims, true), ops.rsqrt(ops.var(wide, dims, false, true) + n.epsilon)
end}
op.RMSNormalization = {axis = -1, epsilon = 1e-5, function(n, x, scale)
  local sizes = last_sizes(x, n.axis)
  if fits(scale, sizes) then return ops.rms_norm(x, sizes, scale, n.epsilon) end
  return ops.rms_norm(x, sizes, nil, n.epsilon) * scale
end}
op.SimplifiedLayerNormalization = op.RMSNormalization -- onnxruntime's name, in the domain of ONNX
op.LpNormalization = {axis = -1, p = 2, function(n, x)
  local size = ops.norm(x, n.p, {dim_in(x, n.axis)}, true)
  return x / ops.masked_fill(size, ops.eq(size, 0), 1)
end}
op.MeanVarianceNormalization = {axes = {0, 2, 3}, function(n, x)
  local dims = helpers.dims_of(x.ndim, n.axes)
  local wide = x.dtype:find "16" and to(x, "float32") or x
  return to((wide - ops.mean(wide, dims, true)) / (ops.std(wide, dims, false, true) + 1e-9), x.dtype)
end}
op.LRN = {alpha = 1e-4, beta = 0.75, bias = 1, function(n, x)
  local before = math.floor((n.size - 1) / 2)
  local squares = helpers.padded(ops.square(x), {[2] = before}, {[2] = n.size - 1 - before})
  return x / ops.pow(ops.sum(squares:unfold(2, n.size, 1), {-1}) * (n.alpha / n.size) + n.bias, n.beta)
end}
op.Dropout = {function(n, x, ratio, training)
  local p = ratio and ratio:item() or n.ratio or 0.5
  if not (training and training:item()) or p == 0 then
    return x, n.results > 1 and to(ops.ones_like(x), n.version < 10 and x.dtype or "bool") or nil
  end
  local mask = ops.ge(ops.empty_like(x, {dtype = "float32"}):uniform_(0, 1), p)
  return ops.where(mask, x / (1 - p), ops.zeros_like(x)), mask
end}

-- ---- losses

-- Returns the negative log likelihood of log probabilities x [N, C, ...] for classes [N, ...], which count from 0.
local function nll(n, x, target, weight)
  helpers.check_shape("target", target, {x.shape[1], unpack(x.shape, 3)})
  target = to(target, "int64")
  local hidden = n.ignore_index and ops.eq(target, n.ignore_index)
  local at = hidden and ops.masked_fill(target, hidden, 0) or target
  local loss = -ops.squeeze(ops.gather(x, 2, ops.unsqueeze(at, 2) + 1), 2)
  local each = weight and ops.index_select(weight, 1, at:reshape(-1) + 1):reshape(at.shape)
  if hidden then each = ops.masked_fill(each or ops.ones_like(loss), hidden, 0) end
  if each then loss = loss * each end
  if n.reduction == "none" then return loss end
  return n.reduction == "sum" and ops.sum(loss) or ops.sum(loss) / (each and ops.sum(each) or loss:numel())
end
op.NegativeLogLikelihoodLoss = {nll}
op.SoftmaxCrossEntropyLoss = {function(n, x, target, weight)
  local y = ops.log_softmax(x, 2)
  return nll(n, y, target, weight), y
end}

-- ---- attention

-- Returns x [B, L, H * E] as [B, H, L, E]; unchanged if it has 4 dims.
local function heads_of(x, heads)
  if not (x.ndim == 4 or x.ndim == 3 and heads) then
    helpers.refuse("inputs must have 4 dims, or 3 with attributes for the numbers of heads, got %d", x.ndim)
  end
  return x.ndim == 4 and x or ops.transpose(x:reshape(x.shape[1], x.shape[2], heads, -1), 2, 3)
end
local function repeated(x, groups) return groups == 1 and x or x:repeat_interleave(groups, 2) end

-- Returns which keys a query may see, bool, by its position and the number of valid keys; nil: all. offset: the number
-- of keys before the queries, or such numbers [B, 1, 1, 1].
local function visible(n, L, S, offset, valid, device)
  local keys = ops.arange(S, {dtype = "int64", device = device}):reshape(1, 1, 1, S)
  local at, mask = ops.arange(L, {dtype = "int64", device = device}):reshape(1, 1, L, 1) + offset, nil
  local function restrict(more) mask = mask and ops.logical_and(mask, more) or more end
  if n.is_causal == 1 then restrict(ops.le(keys, at)) end
  if n.left_window_size >= 0 then restrict(ops.ge(keys, at - n.left_window_size)) end
  if n.right_window_size >= 0 then restrict(ops.le(keys, at + n.right_window_size)) end
  if valid then restrict(ops.lt(keys, valid)) end
  return mask
end

op.Attention = {
  left_window_size = -1, right_window_size = -1, softcap = 0, qk_matmul_output_mode = 0, dtype_in = "softmax_precision",
  function(n, q, k, v, mask, past_k, past_v, lengths)
    local packed, offset = q.ndim == 3, past_k and past_k.shape[3] or 0
    q, k, v = heads_of(q, n.q_num_heads), heads_of(k, n.kv_num_heads), heads_of(v, n.kv_num_heads)
    if past_k then k, v = ops.cat({past_k, k}, 3), ops.cat({past_v, v}, 3) end
    local L, S, groups = q.shape[3], k.shape[3], q.shape[2] / k.shape[2]
    local y, scores
    local valid = lengths and lengths:reshape(-1, 1, 1, 1)
    local seen = visible(n, L, S, valid and valid - L or offset, valid, q.device)
    if mask and mask.shape[-1] < S then
      mask = helpers.resized(mask, mask.ndim, S, mask.dtype ~= "bool" and -math.huge or false)
    end
    if mask and mask.dtype == "bool" then seen, mask = seen and ops.logical_and(seen, mask) or mask, nil end
    if n.results < 4 and n.softcap == 0 and not n.dtype then
      local all = seen and (mask and ops.masked_fill(mask, ops.logical_not(seen), -math.huge) or seen) or mask
      if all and all.ndim == 4 then all = ops.expand(all, {all.shape[1], all.shape[2], L, S}) end
      y = ops.scaled_dot_product_attention(q, k, v, all, 0, false, {scale = n.scale, enable_gqa = groups > 1})
    else
      local scale, kept = math.sqrt(n.scale or 1 / math.sqrt(q.shape[4])), {}
      scores = ops.matmul(q * scale, ops.transpose(repeated(k, groups) * scale, 3, 4))
      kept[0] = scores
      if n.softcap > 0 then scores = ops.tanh(scores / n.softcap) * n.softcap end
      kept[1] = scores
      if mask then scores = scores + mask end
      if seen then scores = ops.masked_fill(scores, ops.logical_not(seen), -math.huge) end
      kept[2] = scores
      local wide = n.dtype and to(scores, n.dtype) or scores
      local blind = ops.eq(ops.amax(wide, {-1}, true), -math.huge)
      kept[3] = to(ops.masked_fill(ops.softmax(ops.masked_fill(wide, blind, 0), -1), blind, 0), q.dtype)
      y, scores = ops.matmul(kept[3], repeated(v, groups)), kept[n.qk_matmul_output_mode]
    end
    return packed and ops.transpose(y, 2, 3):reshape(y.shape[1], L, -1) or y, k, v, scores
  end,
}

op.RotaryEmbedding = {function(n, x, cos, sin, positions)
  local y = x.ndim == 4 and ops.transpose(x, 2, 3) or x:reshape(x.shape[1], x.shape[2], n.num_heads, -1)
  if positions then
    local at, sizes = positions:reshape(-1) + 1, {y.shape[1], y.shape[2], -1}
    cos, sin = ops.index_select(cos, 1, at):reshape(sizes), ops.index_select(sin, 1, at):reshape(sizes)
  end
  cos, sin = ops.unsqueeze(cos, 3), ops.unsqueeze(sin, 3)
  local B, L, H, E = unpack(y.shape)
  local width = (n.rotary_embedding_dim or 0) > 0 and n.rotary_embedding_dim or E
  local part, rest = unpack(helpers.parts_of(y, 4, {width, E - width}))
  local dim = n.interleaved == 1 and 5 or 4 -- each pair is along it
  part = part:reshape(dim == 5 and {B, L, H, width / 2, 2} or {B, L, H, 2, width / 2})
  local p, q = ops.select(part, dim, 1), ops.select(part, dim, 2)
  y = ops.cat({ops.stack({p * cos - q * sin, p * sin + q * cos}, dim):reshape(B, L, H, width), rest}, 4)
  return x.ndim == 4 and ops.transpose(y, 2, 3) or y:reshape(x.shape)
end}

op.LinearAttention = {update_rule = "gated_delta", function(n, query, key, value, past, decay, beta)
  local dtype, rule, H, G = query.dtype, n.update_rule, n.q_num_heads, n.kv_num_heads
  local function wide(x) return x and (dtype == "float64" and x or to(x, "float32")) end
  local q, k, v = wide(heads_of(query, H)), wide(heads_of(key, G)), wide(heads_of(value, G))
  local B, T, E, parts = q.shape[1], q.shape[3], q.shape[4], {}
  local scale = n.scale and n.scale ~= 0 and n.scale or 1 / math.sqrt(E)
  local state = past and wide(past) or ops.zeros({B, G, E, v.shape[4]}, {dtype = v.dtype, device = v.device})
  decay, beta = decay and wide(decay):reshape(B, T, G, -1), beta and wide(beta):reshape(B, T, -1)
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
  return ops.cat(parts, 2), to(state, past and past.dtype or dtype)
end}

return op

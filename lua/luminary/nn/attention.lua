--- Defines multi-head attention and the layers of transformers (Vaswani et al. 2017), under PyTorch's names.
---
--- Tensors are [L, N, E] (length, batch, width), with batch_first [N, L, E], or [L, E]. Masks are PyTorch's: true in a
--- bool mask excludes a position, unlike in F.scaled_dot_product_attention; a floating mask is added to the scores.
local core = require "luminary.core"
local call_script = require("luminary.base.own_functions").call
local options = require "luminary.base.options"
local signature = require "luminary.base.signature"
local containers = require "luminary.nn.containers"
local dropout = require("luminary.nn.activation").Dropout
local init = require "luminary.nn.initializers"
local layer = require "luminary.nn.define_layer"
local linear = require("luminary.nn.linear").Linear
local LayerNorm = require("luminary.nn.norm").LayerNorm

local ops, arg, fail, describe = core.ops, options.arg, options.fail, options.describe
local attention = {}

-- ---- masks

-- Converts a bool or floating mask to numbers to add to the scores.
local function as_numbers(mask, like)
  if mask.dtype ~= "bool" then return mask:to(like.dtype) end
  return ops.zeros(mask.shape, {dtype = like.dtype, device = like.device}):masked_fill(mask, -math.huge)
end

-- Merges two masks into one; returns nil if both are nil.
local function merged(a, b, like)
  if not (a and b) then return a or b end
  if a.dtype == "bool" and b.dtype == "bool" then return ops.logical_or(a, b) end
  return as_numbers(a, like) + as_numbers(b, like)
end

local function check_mask(who, name, mask)
  if mask and mask.dtype ~= "bool" and not core.is_floating_point(mask) then
    fail("%s: %s must be bool (true: masked) or floating, got %s", who, name, describe(mask))
  end
end

-- Warns of a row that is all true, probably an inverted mask. It reads only small masks on the CPU, which is cheap.
local function warn_of_padding(who, padding)
  local count = core.is_recording_ops() and 0 or padding:numel() -- a recording holds for other masks
  if padding.dtype ~= "bool" or padding.device ~= "cpu" or count == 0 or count > 2 ^ 14 then return end
  if padding:all(2):any():item() then
    core.warn(("%s: key_padding_mask has a row that is all true, which excludes the whole sequence; true is padding "
      .. "here, as in attention_mask:eq(0)"):format(who))
  end
end

local function causal_mask(length, keys, device)
  return ops.ones({length, keys}, {dtype = "bool", device = device}):triu(1)
end

-- ---- multi-head attention

--- nn.MultiheadAttention(…): Computes attention of queries to keys and values in several heads.
local MultiheadAttention = layer.define("MultiheadAttention", nil, attention)
MultiheadAttention.keeps_float = true -- forward reads its layers' weights, which lm.quantize would replace

MultiheadAttention.init = signature.of([[MultiheadAttention(embed_dim: count, num_heads: count,
  {dropout: probability = 0, bias = true, add_bias_kv = false, add_zero_attn = false, kdim: count = embed_dim,
  vdim: count = embed_dim, batch_first = false, device, dtype: string})]], function(self, embed_dim, num_heads, o)
  self.embed_dim = embed_dim
  self.num_heads = num_heads
  options.divisible("MultiheadAttention", "embed_dim", embed_dim, "num_heads", num_heads)
  self.dropout, self.batch_first, self.add_zero_attn = o.dropout, o.batch_first, o.add_zero_attn
  self.kdim, self.vdim, self.head_dim = o.kdim, o.vdim, embed_dim / num_heads
  if o.kdim == embed_dim and o.vdim == embed_dim then
    self.in_proj_weight = layer.parameter({3 * embed_dim, embed_dim}, o)
  else
    self.q_proj_weight = layer.parameter({embed_dim, embed_dim}, o)
    self.k_proj_weight = layer.parameter({embed_dim, o.kdim}, o)
    self.v_proj_weight = layer.parameter({embed_dim, o.vdim}, o)
  end
  if o.bias then self.in_proj_bias = layer.parameter({3 * embed_dim}, o) end
  self.out_proj = linear(embed_dim, embed_dim, {bias = o.bias, device = o.device, dtype = o.dtype})
  if o.add_bias_kv then
    self.bias_k = layer.parameter({1, 1, embed_dim}, o)
    self.bias_v = layer.parameter({1, 1, embed_dim}, o)
  end
  self:reset_parameters()
end)

--- Draws the parameters again, as at construction.
function MultiheadAttention:reset_parameters()
  for _, name in ipairs {"in_proj_weight", "q_proj_weight", "k_proj_weight", "v_proj_weight"} do
    if self[name] then init.xavier_uniform_(self[name]) end
  end
  if self.in_proj_bias then
    init.zeros_(self.in_proj_bias)
    init.zeros_(self.out_proj.bias)
  end
  if self.bias_k then
    init.xavier_normal_(self.bias_k)
    init.xavier_normal_(self.bias_v)
  end
end

-- Projects queries, keys and values to [N, length, embed_dim].
local function projected(self, query, key, value)
  local width, weight, bias = self.embed_dim, self.in_proj_weight, self.in_proj_bias
  if weight and rawequal(query, key) and rawequal(key, value) then
    return unpack(ops.linear(query, weight, bias):chunk(3, -1))
  end
  local function projection_part(t, i) return t and t:narrow(1, (i - 1) * width + 1, width) end
  local weights = weight and {projection_part(weight, 1), projection_part(weight, 2), projection_part(weight, 3)}
    or {self.q_proj_weight, self.k_proj_weight, self.v_proj_weight}
  return ops.linear(query, weights[1], projection_part(bias, 1)), ops.linear(key, weights[2], projection_part(bias, 2)),
    ops.linear(value, weights[3], projection_part(bias, 3))
end

-- Appends a key or value, `row` [1, 1, E], to every sample of t [N, S, E]; the mask's new position is attended.
local function one_more(t, row) return ops.cat({t, row:expand(t.shape[1], 1, t.shape[3])}, 2) end
local function one_more_seen(mask) return mask and ops.pad(mask, {0, 1}) end

local function check_inputs(self, query, key, value)
  local who = "MultiheadAttention"
  local function check_attention_input(name, t, width)
    arg(who, name, t, "tensor")
    if (t.ndim ~= 2 and t.ndim ~= 3) or t.ndim ~= query.ndim or t.shape[t.ndim] ~= width then
      local wanted = query.ndim == 2 and "[length, %d]" or self.batch_first and "[batch, length, %d]"
        or "[length, batch, %d]"
      options.wrong_shape(who, name, t, wanted:format(width))
    end
  end
  check_attention_input("query", query, self.embed_dim)
  check_attention_input("key", key, self.kdim)
  check_attention_input("value", value, self.vdim)
  local batch, length = self.batch_first and 1 or 2, self.batch_first and 2 or 1
  if query.ndim == 2 then batch, length = nil, 1 end
  if key.shape[length] ~= value.shape[length] or batch and (query.shape[batch] ~= key.shape[batch]
      or key.shape[batch] ~= value.shape[batch]) then
    fail("%s: query, key and value must have the same batch size, and key and value the same length, got %s, %s and %s",
      who, describe(query), describe(key), describe(value))
  end
end

-- Merges attn_mask and key_padding_mask into one that broadcasts to [N, heads, L, S]. Returns the mask or nil, and true
-- if the attention is causal without a mask.
local function mask_of(self, o, query, key)
  local who, n, l, s = "MultiheadAttention", query.shape[1], query.shape[2], key.shape[2]
  check_mask(who, "attn_mask", o.attn_mask)
  check_mask(who, "key_padding_mask", o.key_padding_mask)
  local mask, padding = o.attn_mask, o.key_padding_mask
  if mask then
    local shape, heads = mask.shape, n * self.num_heads
    if not (mask.ndim == 2 and shape[1] == l and shape[2] == s
        or mask.ndim == 3 and shape[1] == heads and shape[2] == l and shape[3] == s) then
      options.wrong_shape(who, "attn_mask", mask, ("[%d, %d] or [%d, %d, %d]"):format(l, s, heads, l, s))
    end
    if mask.ndim == 3 then mask = mask:view(n, self.num_heads, l, s) end
  end
  if padding then
    if padding.ndim == 1 then padding = padding:unsqueeze(1) end
    if padding.ndim ~= 2 or padding.shape[1] ~= n or padding.shape[2] ~= s then
      local transposed = not self.batch_first and padding.ndim == 2 and padding.shape[1] == s and padding.shape[2] == n
      options.wrong_shape(who, "key_padding_mask", o.key_padding_mask, {n, s},
        transposed and "without {batch_first = true} inputs are [L, N, E]" or nil)
    end
    warn_of_padding(who, padding)
    padding = padding:view(n, 1, 1, s)
  end
  if o.is_causal and not mask then
    if not (padding or self.bias_k or self.add_zero_attn or o.need_weights) then return nil, true end
    mask = causal_mask(l, s, query.device)
  end
  return merged(mask, padding, query), false
end

MultiheadAttention.forward = signature.of([[MultiheadAttention(query, key, value, {key_padding_mask: tensor,
  need_weights = true, attn_mask: tensor, average_attn_weights = true,
  is_causal = false})]], function(self, query, key, value, o)
  check_inputs(self, query, key, value)
  local single, same, same_too = query.ndim == 2, rawequal(query, key), rawequal(key, value)
  local function batched(t) return single and t:unsqueeze(1) or self.batch_first and t or t:transpose(1, 2) end
  query = batched(query)
  key = same and query or batched(key)
  value = same_too and key or batched(value)
  local q, k, v = projected(self, query, key, value)
  local mask, causal = mask_of(self, o, q, k)
  if self.bias_k then k, v, mask = one_more(k, self.bias_k), one_more(v, self.bias_v), one_more_seen(mask) end
  if self.add_zero_attn then
    local zero = ops.zeros({1, 1, self.embed_dim}, {dtype = k.dtype, device = k.device})
    k, v, mask = one_more(k, zero), one_more(v, zero), one_more_seen(mask)
  end
  local n, l, s = q.shape[1], q.shape[2], k.shape[2]
  local function heads_of(t, length) return t:view(n, length, self.num_heads, self.head_dim):transpose(2, 3) end
  q, k, v = heads_of(q, l), heads_of(k, s), heads_of(v, s)
  if mask and mask.dtype == "bool" then mask = mask:logical_not() end
  local rate = self.training and self.dropout or 0
  local y, weights
  if o.need_weights then
    weights = ops.attention_weights(q, k, mask)
    y = ops.matmul(rate > 0 and ops.dropout(weights, rate) or weights, v)
    if o.average_attn_weights then weights = weights:mean(2) end
    if single then weights = weights:squeeze(1) end
  else
    y = ops.scaled_dot_product_attention(q, k, v, {attn_mask = mask, dropout_p = rate, is_causal = causal})
  end
  y = self.out_proj(y:transpose(2, 3):reshape(n, l, self.embed_dim))
  if single then y = y:squeeze(1) elseif not self.batch_first then y = y:transpose(1, 2) end
  if o.need_weights then return y, weights end
  return y
end)

-- ---- transformers

local activations = {relu = ops.relu, gelu = ops.gelu}

options.kind("activation", '"relu", "gelu" or function', function(who, name, value)
  if type(value) == "string" and activations[value] then return value end
  if type(value) == "string" then
    options.must_be(who, name, "'relu', 'gelu' or a function", value)
  end
  return arg(who, name, value, "callable")
end)

local feed_forward_options = [[dim_feedforward: count = 2048, dropout: probability = 0.1,
  activation: activation = "relu", ]]
local common = "layer_norm_eps = 1e-5, batch_first = false, norm_first = false, bias = true, device, dtype: string})"
local layer_arguments = "(d_model: count, nhead: count, {" .. feed_forward_options .. common

-- Makes the fields that encoder and decoder layers share; norms is 2 for encoders, 3 for decoders.
local function make_layer(self, d_model, nhead, norms, o)
  local own = {bias = o.bias, device = o.device, dtype = o.dtype}
  local heads = {
    dropout = o.dropout, bias = o.bias, batch_first = o.batch_first, device = o.device, dtype = o.dtype,
  }
  self.self_attn = MultiheadAttention(d_model, nhead, heads)
  if norms == 3 then self.multihead_attn = MultiheadAttention(d_model, nhead, heads) end
  self.linear1 = linear(d_model, o.dim_feedforward, own)
  self.dropout = dropout(o.dropout)
  self.linear2 = linear(o.dim_feedforward, d_model, own)
  for i = 1, norms do
    self["norm" .. i] = LayerNorm(d_model, {
      eps = o.layer_norm_eps, bias = o.bias, device = o.device, dtype = o.dtype,
    })
  end
  for i = 1, norms do self["dropout" .. i] = dropout(o.dropout) end
  self.norm_first, self.batch_first = o.norm_first, o.batch_first
  self.activation = type(o.activation) == "string" and activations[o.activation] or o.activation
end

local function feed_forward(self, x)
  return self.linear2(self.dropout(call_script(self.activation, self.linear1(x))))
end

-- Returns the residual connection x + block(x), normalized before or after as norm_first says.
local function residual(self, i, x, block)
  local norm, drop = self["norm" .. i], self["dropout" .. i]
  if self.norm_first then return x + drop(block(norm(x))) end
  return norm(x + drop(block(x)))
end

local function attended(heads, x, memory, mask, padding, causal)
  return (heads(x, memory or x, memory or x, {
    attn_mask = mask, key_padding_mask = padding, need_weights = false, is_causal = causal,
  }))
end

--- nn.TransformerEncoderLayer(…): Applies self-attention and a feed-forward network.
local TransformerEncoderLayer = layer.define("TransformerEncoderLayer", nil, attention)

TransformerEncoderLayer.forward = signature.of([[TransformerEncoderLayer(src: tensor, src_mask: tensor?,
  src_key_padding_mask: tensor?, is_causal = false)]], function(self, src, mask, padding, causal)
  local x = residual(self, 1, src, function(x) return attended(self.self_attn, x, nil, mask, padding, causal) end)
  return residual(self, 2, x, function(y) return feed_forward(self, y) end)
end)

--- nn.TransformerDecoderLayer(…): Applies self-attention, attention to the output of an encoder, and a feed-forward
--- network.
local TransformerDecoderLayer = layer.define("TransformerDecoderLayer", nil, attention)

for i, of in ipairs {TransformerEncoderLayer, TransformerDecoderLayer} do
  of.init = signature.of(of.__name .. layer_arguments, function(self, d_model, nhead, o)
    make_layer(self, d_model, nhead, i + 1, o)
  end)
end

local decoder_masks = [[tgt_mask: tensor?, memory_mask: tensor?, tgt_key_padding_mask: tensor?,
  memory_key_padding_mask: tensor?, tgt_is_causal = false, memory_is_causal = false)]]

TransformerDecoderLayer.forward = signature.of("TransformerDecoderLayer(tgt: tensor, memory: tensor, " .. decoder_masks,
  function(self, tgt, memory, mask, memory_mask, padding, memory_padding, causal, memory_causal)
  local x = residual(self, 1, tgt, function(x) return attended(self.self_attn, x, nil, mask, padding, causal) end)
  x = residual(self, 2, x, function(y)
    return attended(self.multihead_attn, y, memory, memory_mask, memory_padding, memory_causal)
  end)
  return residual(self, 3, x, function(y) return feed_forward(self, y) end)
end)

-- Sets the fields of a stack: num_layers copies of the layer `first`, and the norm, which may be nil.
local function make_stack(self, first, num_layers, norm)
  local list = {}
  for i = 1, num_layers do list[i] = first:clone() end
  self.layers = containers.ModuleList(list)
  self.num_layers = num_layers
  self.norm = norm
end

--- nn.TransformerEncoder(…): Applies num_layers copies of an encoder layer in sequence.
local TransformerEncoder = layer.define("TransformerEncoder", nil, attention)

TransformerEncoder.init = signature.of([[TransformerEncoder(encoder_layer: module, num_layers: natural, {norm: module,
  enable_nested_tensor = true, mask_check = true})]], function(self, encoder_layer, num_layers, opts)
  make_stack(self, encoder_layer, num_layers, opts.norm)
end)

TransformerEncoder.forward = signature.of([[TransformerEncoder(src, mask: tensor?, src_key_padding_mask: tensor?,
  is_causal = false)]], function(self, x, mask, padding, causal)
  for _, each in ipairs(self.layers) do x = each(x, mask, padding, causal) end
  return self.norm and self.norm(x) or x
end)

--- nn.TransformerDecoder(…): Applies num_layers copies of a decoder layer in sequence.
local TransformerDecoder = layer.define("TransformerDecoder", nil, attention)

TransformerDecoder.init = signature.of([[TransformerDecoder(decoder_layer: module, num_layers: natural,
  {norm: module})]], function(self, decoder_layer, num_layers, opts)
  make_stack(self, decoder_layer, num_layers, opts.norm)
end)

TransformerDecoder.forward = signature.of("TransformerDecoder(tgt, memory, " .. decoder_masks, function(self, x, ...)
  for _, each in ipairs(self.layers) do x = each(x, ...) end
  return self.norm and self.norm(x) or x
end)

--- nn.Transformer(…): A transformer with an encoder and a decoder.
local Transformer = layer.define("Transformer", nil, attention)

Transformer.init = signature.of("Transformer({d_model: count = 512, nhead: count = 8, num_encoder_layers: count = 6, "
  .. "num_decoder_layers: count = 6, " .. feed_forward_options
  .. "custom_encoder: callable, custom_decoder: callable, " .. common, function(self, o)
  local own = {
    dim_feedforward = o.dim_feedforward, dropout = o.dropout, activation = o.activation, device = o.device,
    layer_norm_eps = o.layer_norm_eps, batch_first = o.batch_first, norm_first = o.norm_first, bias = o.bias,
    dtype = o.dtype,
  }
  local function norm()
    return LayerNorm(o.d_model, {eps = o.layer_norm_eps, bias = o.bias, device = o.device, dtype = o.dtype})
  end
  self.encoder = o.custom_encoder
    or TransformerEncoder(TransformerEncoderLayer(o.d_model, o.nhead, own), o.num_encoder_layers, norm())
  self.decoder = o.custom_decoder
    or TransformerDecoder(TransformerDecoderLayer(o.d_model, o.nhead, own), o.num_decoder_layers, norm())
  self.d_model, self.nhead, self.batch_first = o.d_model, o.nhead, o.batch_first
  self:reset_parameters()
end)

--- Draws the parameters again, as at construction.
function Transformer:reset_parameters()
  for _, p in ipairs(self:parameters()) do
    if p.ndim > 1 then init.xavier_uniform_(p) end
  end
end

Transformer.forward = signature.of([[Transformer(src, tgt, {src_mask: tensor, tgt_mask: tensor, memory_mask: tensor,
  src_key_padding_mask: tensor, tgt_key_padding_mask: tensor, memory_key_padding_mask: tensor, src_is_causal = false,
  tgt_is_causal = false, memory_is_causal = false})]], function(self, src, tgt, o)
  local memory = call_script(self.encoder, src, o.src_mask, o.src_key_padding_mask, o.src_is_causal)
  return call_script(self.decoder, tgt, memory, o.tgt_mask, o.memory_mask, o.tgt_key_padding_mask,
    o.memory_key_padding_mask, o.tgt_is_causal, o.memory_is_causal)
end)

--- Returns a causal mask [size, size]: 0 up to the diagonal, and -inf above it.
Transformer.generate_square_subsequent_mask = signature.of([[Transformer.generate_square_subsequent_mask(size: count,
  {device, dtype: string})]], function(size, opts)
  return ops.full({size, size}, -math.huge, {device = opts.device, dtype = opts.dtype}):triu(1)
end)

return attention

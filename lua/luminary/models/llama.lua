--- Defines LLaMA (Touvron et al. 2023, Llama 2 and 3) and families with its structure, with Hugging Face's names of
--- parameters.
local core = require "luminary.core"
local class = require "luminary.base.class"
local lists = require "luminary.base.lists"
local options = require "luminary.base.options"
local nn = require "luminary.nn"
local part = require "luminary.nn.sequence_part"
local common = require "luminary.models.common"
local generate = require "luminary.models.generate"
local generation_config = require "luminary.models.generation_config"

local ops = core.ops
local models = {}

local function linear(inputs, outputs, bias) return nn.Linear(inputs, outputs, {bias = bias or false}) end

-- Functions (i, config): return true if layer i has a sliding window; layer_types overrides them, except `always`.
local function always() return true end
local function after_full(i, config) return i > config.max_window_layers end
local function by_pattern(i, config) return i % config.sliding_window_pattern > 0 end
local function without_rope(i, config) return config.no_rope_layers[i] == 0 end

-- Differences of families from LLaMA, by model_type: fused (one weight for q, k and v, and one for gate and up),
-- qkv_bias, qk_norm ("head", or "full" for norms of all heads at once), near (above) and optional_window (only with
-- use_sliding_window), near_rope (layers with a window rotate by rope_local_base_freq and without scaling), theta
-- (rope_theta's default), gemma (norms multiply by 1 + weight, embeddings by the root of hidden_size), post_norms (of
-- the results of attention and the feedforward network), experts (the option with their size); defaults of options, at
-- 1, 2, … those of `sizes`.
local sizes = {"vocab_size", "hidden_size", "intermediate_size", "max_position_embeddings"}
local function gemma(row)
  local defaults = {gemma = true, rms_norm_eps = 1e-6, tie_word_embeddings = true, hidden_act = "gelu_pytorch_tanh",
    head_dim = 256, num_hidden_layers = 26, num_attention_heads = 8}
  for name, value in pairs(row) do defaults[name] = value end
  return defaults
end
local families = {
  llama = {}, mistral = {near = always, rms_norm_eps = 1e-6, 32000, 4096, 14336, 131072},
  qwen2 = {qkv_bias = true, near = after_full, optional_window = true, rms_norm_eps = 1e-6, 151936, 4096, 22016, 32768},
  qwen3 = {qk_norm = "head", near = after_full, optional_window = true, rms_norm_eps = 1e-6, head_dim = 128, 151936,
    4096, 22016, 32768},
  qwen3_moe = {qk_norm = "head", near = always, optional_window = true, experts = "moe_intermediate_size",
    rms_norm_eps = 1e-6, num_hidden_layers = 24, num_key_value_heads = 4, num_experts = 128, 151936, 2048, 6144, 32768},
  olmoe = {qk_norm = "full", experts = "intermediate_size", num_experts = 64, num_hidden_layers = 16,
    num_attention_heads = 16, 50304, 2048, 2048, 4096},
  phi3 = {fused = true, near = always, 32064, 3072, 8192, 4096},
  smollm3 = {near = without_rope, optional_window = true, no_rope_layer_interval = 4, theta = 2e6, rms_norm_eps = 1e-6,
    tie_word_embeddings = true, num_hidden_layers = 36, num_attention_heads = 16, num_key_value_heads = 4, 128256, 2048,
    11008, 32768},
  gemma = gemma {num_hidden_layers = 28, num_attention_heads = 16, 256000, 3072, 24576, 8192},
  gemma2 = gemma {post_norms = true, near = by_pattern, sliding_window_pattern = 2, sliding_window = 4096,
    attn_logit_softcapping = 50, final_logit_softcapping = 30, query_pre_attn_scalar = 256, num_key_value_heads = 4,
    256000, 2304, 9216, 8192},
  gemma3 = gemma {post_norms = true, qk_norm = "head", near = by_pattern, sliding_window_pattern = 6,
    sliding_window = 4096, near_rope = true, theta = 1e6, query_pre_attn_scalar = 256, num_key_value_heads = 4, 262208,
    2304, 9216, 131072},
}
for _, family in pairs(families) do
  for i, name in ipairs(sizes) do family[name] = family[i] end
end
families.gemma3_text = families.gemma3 -- a folder without the part for images

-- Gemma's RMS norm: a factor of 1 + weight, computed in float32.
local GemmaRMSNorm = class.define("GemmaRMSNorm", nn.RMSNorm)

function GemmaRMSNorm:reset_parameters() nn.init.zeros_(self.weight) end

function GemmaRMSNorm:forward(x)
  local wide = x.dtype == "float64" and x or x:float()
  return ops.rms_norm(wide, self.normalized_shape, self.weight:to(wide.dtype) + 1, self.how):to(x.dtype)
end

local function norm_of(config, size)
  return (families[config.model_type].gemma and GemmaRMSNorm or nn.RMSNorm)(size, {eps = config.rms_norm_eps})
end

local AT_ONCE = 512 -- queries in one step: the scores of all would fill the memory

-- Returns bool, true for keys that the `rows` queries from `first` on do not attend to; nil if there are none.
local function hidden_keys(seen, first, rows, l, s, device)
  if seen.is_causal then return ops.ones({rows, s}, {dtype = "bool", device = device}):triu(first + s - l) end
  local mask = seen.attn_mask
  if not mask then return nil end
  if mask.shape[mask.ndim - 1] > 1 then mask = mask:narrow(-2, first, rows) end
  return (mask.ndim == 4 and mask:unsqueeze(3) or mask):logical_not()
end

-- Returns attention with scores cap * tanh(score / cap), computed in float32 or wider. q: [N, H, L, E]; k, v: [N, heads
-- that divide H, S, E]; seen: of common.forward_options.
local function capped_attention(q, k, v, seen, scale, cap)
  if part.ranks > 1 then options.fail("Llama: attn_logit_softcapping is not supported within context_parallel") end
  local n, heads, l, e = unpack(q.shape)
  local groups, s, results = k.shape[2], k.shape[3], {}
  local function wide(t) return t.dtype == "float64" and t or t:float() end
  local keys, values = wide(k):transpose(3, 4), wide(v)
  for first = 1, l, AT_ONCE do
    local rows = math.min(AT_ONCE, l - first + 1)
    local queries = wide(q:narrow(3, first, rows)):reshape {n, groups, heads / groups * rows, e}
    local scores = ((ops.matmul(queries, keys) * (scale / cap)):tanh() * cap):view(n, groups, heads / groups, rows, s)
    local hidden = hidden_keys(seen, first, rows, l, s, q.device)
    if hidden then scores = scores:masked_fill(hidden, -1e30) end -- finite, for queries that attend to no key
    local weights = ops.softmax(scores, -1)
    if hidden then weights = weights:masked_fill(hidden, 0) end
    results[#results + 1] = ops.matmul(weights:view(n, groups, -1, s), values):view(n, heads, rows, e):to(q.dtype)
  end
  return ops.cat(results, 3)
end

-- Returns queries or keys t of a layer, rotated by their positions. r: of rotation; false leaves them.
local function rotated(t, r)
  if not r then return t end
  local x = r.rest == 0 and t or t:narrow(4, 1, r.rotary)
  if not r.cosines then r.cosines, r.sines = r.rope:rows(x, r.first, r.input_pos) end
  x = r.rope:rotate(x, r.cosines, r.sines)
  return r.rest == 0 and x or ops.cat({x, t:narrow(4, r.rotary + 1, r.rest)}, 4)
end

local Attention = class.define("LlamaAttention", nn.Module)

function Attention:init(config)
  local family, bias = families[config.model_type], config.attention_bias
  self.heads, self.kv_heads, self.head_dim = config.num_attention_heads, config.num_key_value_heads, config.head_dim
  local width, kv_width = self.heads * self.head_dim, self.kv_heads * self.head_dim
  if family.fused then
    self.qkv_proj = linear(config.hidden_size, width + 2 * kv_width)
  else
    self.q_proj = linear(config.hidden_size, width, bias or family.qkv_bias)
    self.k_proj = linear(config.hidden_size, kv_width, bias or family.qkv_bias)
    self.v_proj = linear(config.hidden_size, kv_width, bias or family.qkv_bias)
  end
  self.o_proj = linear(width, config.hidden_size, bias)
  if family.qk_norm then
    self.q_norm = norm_of(config, family.qk_norm == "full" and width or self.head_dim)
    self.k_norm = norm_of(config, family.qk_norm == "full" and kv_width or self.head_dim)
  end
  self.norms_heads, self.clip, self.cap = family.qk_norm == "head", config.clip_qkv, config.attn_logit_softcapping
  self.scale = config.query_pre_attn_scalar and config.query_pre_attn_scalar ^ -0.5
end

-- Returns t [N, L, heads * head_dim], with its norm or nil, as [N, heads, L, head_dim].
local function heads_of(self, t, norm)
  if norm and not self.norms_heads then t = norm(t) end
  if self.clip then t = t:clamp(-self.clip, self.clip) end
  local n, l, width = unpack(t.shape)
  t = l == 1 and t:reshape {n, width / self.head_dim, 1, self.head_dim}
    or t:reshape {n, l, width / self.head_dim, self.head_dim}
  if norm and self.norms_heads then t = norm(t) end
  return l == 1 and t or t:transpose(2, 3)
end

function Attention:forward(x, place, seen, cache)
  local q, k, v
  if self.qkv_proj then
    local qkv = self.qkv_proj(x)
    local kv_width = qkv.shape[3] / (self.heads / self.kv_heads + 2) -- this rank's heads
    q, k, v = unpack(qkv:split({qkv.shape[3] - 2 * kv_width, kv_width, kv_width}, 3))
  else
    q, k, v = self.q_proj(x), self.k_proj(x), self.v_proj(x)
  end
  q = rotated(heads_of(self, q, self.q_norm), place)
  k = rotated(heads_of(self, k, self.k_norm), place)
  v = heads_of(self, v)
  local y
  if cache and not cache.attend then k, v = cache:update(k, v) end
  if cache and cache.attend then
    y = cache:attend(q, k, v, {scale = self.scale, window = seen.window, cap = self.cap})
  elseif self.cap then
    y = capped_attention(q, k, v, seen, self.scale or self.head_dim ^ -0.5, self.cap)
  else
    y = ops.scaled_dot_product_attention(q, k, v, {
      attn_mask = seen.attn_mask, is_causal = seen.is_causal, scale = self.scale,
      enable_gqa = self.heads ~= self.kv_heads,
    })
  end
  local n, heads, l = unpack(y.shape) -- with nn.parallel.parallelize, of a part of the sequence
  return self.o_proj((l == 1 and y or y:transpose(2, 3)):reshape(n, l, heads * self.head_dim))
end

local MLP = class.define("LlamaMLP", nn.Module)

function MLP:init(config, inner)
  local width, bias = config.hidden_size, config.mlp_bias
  self.act = config.hidden_act
  if families[config.model_type].fused then
    self.gate_up_proj = linear(width, 2 * inner)
  else
    self.gate_proj = linear(width, inner, bias)
    self.up_proj = linear(width, inner, bias)
  end
  self.down_proj = linear(inner, width, bias)
end

function MLP:forward(x)
  local gate, up
  if self.gate_up_proj then
    gate, up = unpack(self.gate_up_proj(x):chunk(2, 3))
  else
    gate, up = self.gate_proj(x), self.up_proj(x)
  end
  return self.down_proj(common.activations[self.act](gate) * up)
end

-- Returns the feedforward network of a layer with experts of `inner` features.
local function mixture(config, inner)
  return nn.MixtureOfExperts(config.hidden_size, inner, config.num_experts, {
    top_k = config.num_experts_per_tok, norm_topk_prob = config.norm_topk_prob,
    expert = function() return MLP(config, inner) end,
  })
end

-- Returns true if layer i has experts.
local function is_sparse(i, config)
  return families[config.model_type].experts and i % (config.decoder_sparse_step or 1) == 0
    and not lists.index_of(config.mlp_only_layers or {}, i - 1)
end

-- Returns true if layer i attends to the last sliding_window tokens alone.
local function is_near(i, config)
  local family = families[config.model_type]
  if not config.sliding_window or not family.near or family.optional_window and not config.use_sliding_window then
    return false
  end
  if config.layer_types and family.near ~= always then return config.layer_types[i] == "sliding_attention" end
  return family.near(i, config)
end

local Layer = class.define("LlamaDecoderLayer", nn.Module)

function Layer:init(config, i)
  local family = families[config.model_type]
  self.near = is_near(i, config)
  self.rotates = not config.no_rope_layers or config.no_rope_layers[i] ~= 0
  self.self_attn = Attention(config)
  self.mlp = is_sparse(i, config) and mixture(config, config[family.experts]) or MLP(config, config.intermediate_size)
  self.input_layernorm = norm_of(config, config.hidden_size)
  self.post_attention_layernorm = norm_of(config, config.hidden_size)
  if family.post_norms then
    self.pre_feedforward_layernorm = norm_of(config, config.hidden_size)
    self.post_feedforward_layernorm = norm_of(config, config.hidden_size)
  end
end

function Layer:forward(x, place, seen, cache)
  local y = self.self_attn(self.input_layernorm(x), place, seen, cache)
  if not self.post_feedforward_layernorm then
    x = x + y
    return x + self.mlp(self.post_attention_layernorm(x))
  end
  x = x + self.post_attention_layernorm(y)
  return x + self.post_feedforward_layernorm(self.mlp(self.pre_feedforward_layernorm(x)))
end

-- Removes tensors that are not parameters or belong to images, and a tied output weight.
local function rename(net, dict)
  common.rename(dict, {
    {"rotary_emb%.inv_freq$", false}, {"^language_model%.", ""}, {"^vision_tower%.", false},
    {"^multi_modal_projector%.", false},
  })
  if not net.lm_head then dict["lm_head.weight"] = nil end
end

--- The class of lm.models.llama.
local Llama = class.define("Llama", common.LanguageModel)

function Llama:init(config)
  self.config = config
  local body, layers = nn.Module(), {}
  body.embed_tokens = nn.Embedding(common.vocab_rows(config), config.hidden_size)
  for i = 1, config.num_hidden_layers do layers[i] = Layer(config, i) end
  body.layers = nn.ModuleList(layers)
  body.norm = norm_of(config, config.hidden_size)
  self.model = body
  if not config.tie_word_embeddings then self.lm_head = linear(config.hidden_size, common.vocab_rows(config)) end
  local scaling = config.rope_scaling
  local longest = scaling.long_factor and scaling.original_max_position_embeddings
    or config.max_positions < math.huge and config.max_positions or config.max_position_embeddings
  local function rotary(base, how)
    return nn.RotaryPositionalEmbeddings(config.rotary_dim, {
      max_seq_len = longest, base = base, interleaved = false, scaling = how,
    })
  end
  self.rope = rotary(config.rope_theta, scaling)
  if families[config.model_type].near_rope then self.rope_near = rotary(config.rope_local_base_freq) end
  self:reset_parameters()
  self:register_load_state_dict_pre_hook(rename)
  common.pad_vocab(self, config, "model.embed_tokens.weight")
end

--- Draws weights with a standard deviation of 0.02.
function Llama:reset_parameters()
  for _, p in ipairs(self:parameters()) do
    if p.ndim == 2 then nn.init.normal_(p, 0, 0.02) end
  end
end

function Llama:embedding() return self.model.embed_tokens.weight, self.model.embed_tokens.kind end

--- Returns scores as the base class does, limited by final_logit_softcapping.
function Llama:scores(x)
  local y, cap = common.LanguageModel.scores(self, x), self.config.final_logit_softcapping
  if not cap then return y end
  local capped = (y / cap):tanh() * cap
  if common.vocab_rows(self.config) == self.config.vocab_size then return capped end
  return capped:masked_fill(y:eq(-math.huge), -math.huge) -- as pad_vocab sets them
end

function Llama:parallel_plan(opts)
  local config, layer, column, sequence = self.config, "model.layers.*.", {}, {["model.norm"] = "sequence"}
  local dim, heads, kv_heads = config.head_dim, config.num_attention_heads, config.num_key_value_heads
  local family = families[config.model_type]
  if family.experts or family.qk_norm == "full" then
    options.fail("Llama:parallel_plan: model_type '%s' is not supported", config.model_type)
  end
  local plan = {
    ["model.embed_tokens"] = "vocabulary", lm_head = "vocabulary", [layer .. "self_attn.o_proj"] = "row",
    [layer .. "mlp.down_proj"] = "row",
  }
  if family.fused then
    column["self_attn.qkv_proj"] = {heads * dim, kv_heads * dim, kv_heads * dim}
    column["mlp.gate_up_proj"] = 2
  else
    for name in ("self_attn.q_proj self_attn.k_proj self_attn.v_proj mlp.gate_proj mlp.up_proj"):gmatch "%S+" do
      column[name] = 1
    end
  end
  for name, parts in pairs(column) do
    plan[layer .. name] = {
      style = "column", parts = parts, unit = name:find "attn" and dim or 1, shared = name:find "[kv]_proj" ~= nil,
    }
  end
  if family.qk_norm then
    plan[layer .. "self_attn.q_norm"], plan[layer .. "self_attn.k_norm"] = "divided", "divided"
  end
  sequence[layer .. "*norm"] = "sequence"
  return common.parallel_plan("Llama", opts, plan, sequence)
end

function Llama:cache_sizes()
  local config = self.config
  return config.num_hidden_layers, config.num_key_value_heads, config.head_dim
end

function Llama:new_cache(batch_size, max_seq_len)
  local caches = common.LanguageModel.new_cache(self, batch_size, max_seq_len)
  if self.rope.scaling.long_factor then caches.recompute_beyond = self.rope.max_seq_len end
  caches.keys_vary = self.rope.scaling.rope_type == "dynamic" or caches.recompute_beyond ~= nil -- with the length
  caches.by_values = caches.keys_vary or families[self.config.model_type].experts ~= nil
  return caches
end

-- Returns the hidden states [N, L, hidden_size] of ids before the first layer. o: of common.forward_options.
local function embed(net, ids, o)
  local config, l = net.config, ids.shape[2]
  if not o.position_ids and o.first + l > config.max_positions then
    options.must_be("Llama", "the number of tokens", ("at most max_positions, %d"):format(config.max_positions),
      o.first + l)
  end
  local x = net.model.embed_tokens(ids)
  if not families[config.model_type].gemma then return x end
  return x * ops.full({1}, math.sqrt(config.hidden_size), {dtype = x.dtype, device = x.device})
end

-- Returns what `rotated` takes for the positions of a call, and keeps their cosines and sines in. It is no closure, as
-- call_layer is none.
local function rotation(net, rope, o)
  local rotary = net.config.rotary_dim
  return {
    rope = rope, rotary = rotary, rest = net.config.head_dim - rotary,
    input_pos = o.position_ids, first = o.first + 1, -- position of the first token
  }
end

-- Returns the rotations {full, near} of layers without and with a window.
local function rotations_of(net, o)
  local full = rotation(net, net.rope, o)
  return {full = full, near = net.rope_near and rotation(net, net.rope_near, o) or full}
end

-- Calls a layer with the rotation and mask that it needs. It is no closure: compiled code may keep what one captures.
local function call_layer(each, x, rotations, o, cache)
  local own = each.near and rotations.near or rotations.full
  return each(x, each.rotates and own, each.near and o.near or o.seen, cache)
end

local function options_of(net, ids, opts)
  return common.forward_options("Llama", ids, opts, net.config.num_hidden_layers, net.config.sliding_window)
end

--- net(ids [, {cache, attention_mask, position_ids, logits_to_keep, hidden_states}]): Returns scores [N, L, vocab_size]
--- of the token after each of ids [N, L] (int64, from 1), which follow the M tokens of a cache. attention_mask
--- [N, M + L]: 1 or true for tokens, 0 or false for padding, to which no token attends. position_ids [N, L]: int64
--- positions from 1; M + 1 to M + L by default, whatever the mask is; only differences of positions matter.
--- logits_to_keep: the number of last tokens, or the indices [K] of tokens, whose scores alone are returned.
--- hidden_states = true: returns the last hidden states in the place of scores.
function Llama:forward(ids, opts)
  local o = options_of(self, ids, opts)
  local x, rotations = embed(self, ids, o), rotations_of(self, o)
  for i, each in ipairs(self.model.layers) do x = call_layer(each, x, rotations, o, o.cache and o.cache[i]) end
  x = self.model.norm(common.kept("Llama", x, o))
  return o.hidden_states and x or self:scores(x)
end

--- Returns the parts of net(ids) that nn.parallel.Pipeline divides into stages.
function Llama:pipeline_parts()
  local parts = {{"model.embed_tokens", forward = function(net, ids) return embed(net, ids, options_of(net, ids)) end}}
  for i = 1, self.config.num_hidden_layers do
    parts[i + 1] = {"model.layers." .. i - 1, forward = function(net, x)
      local o = options_of(net, x:detach():select(3, 1))
      return call_layer(net.model.layers[i], x, rotations_of(net, o), o)
    end, "rope", self.rope_near and "rope_near"}
  end
  local head = self.lm_head and "lm_head" or "model.embed_tokens"
  return lists.append(parts, {{"model.norm", head, forward = function(net, x)
    return net:scores(net.model.norm(x))
  end}})
end

Llama.generate = generate

local function layer_types(who, name, value)
  return options.entries(who, name, options.arg(who, name, value, "list"), {"full_attention", "sliding_attention"})
end

local spec = {
  model_type = {options.sorted_keys(families)}, vocab_size = {"count", 32000}, hidden_size = {"count", 4096},
  intermediate_size = {"count", 11008}, num_hidden_layers = {"count", 32}, num_attention_heads = {"count", 32},
  num_key_value_heads = {"count"}, head_dim = {"count"}, max_position_embeddings = {"count", 2048},
  rms_norm_eps = {"positive", 1e-5}, rope_theta = {"positive"}, rope_scaling = {"table"}, rope_parameters = {"table"},
  partial_rotary_factor = {"probability"}, original_max_position_embeddings = {"count"},
  tie_word_embeddings = {"boolean", false}, pad_vocab_to = {"count"}, attention_bias = {"boolean", false},
  mlp_bias = {"boolean", false}, hidden_act = {options.sorted_keys(common.activations), "silu"},
  sliding_window = {"count", nil, true}, use_sliding_window = {"boolean", false}, max_window_layers = {"natural", 28},
  sliding_window_pattern = {"count"}, layer_types = {layer_types}, rope_local_base_freq = {"above(0)", 10000},
  no_rope_layers = {"natural[]"}, no_rope_layer_interval = {"count"}, query_pre_attn_scalar = {"above(0)"},
  attn_logit_softcapping = {"above(0)", nil, true}, final_logit_softcapping = {"above(0)", nil, true},
  clip_qkv = {"above(0)", nil, true}, num_experts = {"count"}, num_experts_per_tok = {"count", 8},
  moe_intermediate_size = {"count", 768}, norm_topk_prob = {"boolean", false}, decoder_sparse_step = {"count"},
  mlp_only_layers = {"natural[]"},
}

-- Sets rope_theta and rope_scaling of config, which newer files have in rope_parameters, there for each of layer_types
-- if rates differ, rotary_dim, the number of dims of a head that rotate, and max_positions.
local function resolve_positions(config, family)
  local given, scaling, most = config.rope_parameters or {}, {}, config.max_position_embeddings
  if given.full_attention then
    local near = given.sliding_attention or {}
    options.choice("llama", "rope_parameters.sliding_attention.rope_type", near.rope_type or "default", {"default"})
    config.rope_local_base_freq, given = near.rope_theta or config.rope_local_base_freq, given.full_attention
  end
  for name, value in pairs(config.rope_scaling or given) do scaling[name] = value end
  config.rope_theta = config.rope_theta or given.rope_theta or family.theta or 10000
  local share = given.partial_rotary_factor or config.partial_rotary_factor or 1
  options.arg("llama", "partial_rotary_factor", share, "probability")
  config.rotary_dim = math.floor(config.head_dim * share + 1e-6) -- a share of a GGUF file is rounded
  local original = options.arg("llama", "original_max_position_embeddings",
    config.original_max_position_embeddings or scaling.original_max_position_embeddings or most, "count")
  local kind, factor = scaling.rope_type or scaling.type, scaling.factor
  if config.model_type == "phi3" and (kind == "su" or kind == "yarn") then kind = "longrope" end
  if kind == "yarn" or kind == "longrope" or kind == "llama3" then
    scaling.original_max_position_embeddings = original
    if kind ~= "llama3" then scaling.factor = factor or most / original end
  end
  config.rope_scaling, scaling.rope_type = scaling, kind
  local stretch = kind == "dynamic" and math.huge or type(factor) == "number"
    and (kind == "linear" and not family.near_rope and factor or kind == "yarn" and factor * original / most) or 1
  config.max_positions = math.floor(most * math.max(1, stretch))
end

-- Checks and completes the options that differ by layer.
local function resolve_layers(config, family)
  local n = config.num_hidden_layers
  if config.no_rope_layer_interval and not config.no_rope_layers then
    config.no_rope_layers = {}
    for i = 1, n do config.no_rope_layers[i] = i % config.no_rope_layer_interval > 0 and 1 or 0 end
  end
  for _, name in ipairs {"layer_types", "no_rope_layers"} do
    local list = config[name]
    if list and #list < n then options.wrong_length("llama", name, n, "layer", #list) end
  end
  if family.experts and config.num_experts_per_tok > config.num_experts then
    options.must_be("llama", "num_experts_per_tok", ("at most num_experts, %d"):format(config.num_experts),
      config.num_experts_per_tok)
  elseif config.num_experts and not family.experts then
    options.fail("llama: num_experts (%d) is not supported for model_type '%s'", config.num_experts, config.model_type)
  end
end

local function make(config)
  local heads, family = config.num_attention_heads, families[config.model_type]
  config.num_key_value_heads = config.num_key_value_heads or heads
  if not config.head_dim then
    options.divisible("llama", "hidden_size", config.hidden_size, "num_attention_heads", heads)
  end
  config.head_dim = config.head_dim or config.hidden_size / heads
  options.divisible("llama", "num_attention_heads", heads, "num_key_value_heads", config.num_key_value_heads)
  resolve_positions(config, family)
  resolve_layers(config, family)
  return Llama(config)
end

-- Sets options that have other names in a config.json, or are beside those of a network for images.
local function read_others(json, out, _, path)
  local text = type(json.text_config) == "table" and json.text_config or json
  for name in pairs(text ~= json and spec or {}) do
    if out[name] == nil then out[name] = text[name] end
  end
  out.model_type = json.model_type
  out.num_experts = out.num_experts or text.num_local_experts
  if families[json.model_type or "llama"].gemma then -- older files have "gelu" for another activation
    out.hidden_act = text.hidden_activation or text.hidden_act ~= "gelu" and text.hidden_act or nil
  end
  local stored = text.quantization_config or json.quantization_config
  if stored ~= nil then
    options.fail("llama: '%s' has quantization_config.quant_method = %s, which is not supported", path,
      generation_config.shown(type(stored) == "table" and stored.quant_method or stored))
  end
end

local function maker(name)
  local defaults = lists.copy(families[name])
  defaults.num_key_value_heads = nil -- files alone have it: it must fit the number of heads
  return common.maker(name, spec, name, defaults, make, "vocab_size", {
    kinds = families, generates = true, also = read_others, spec = spec,
    only = {use_bidirectional_attention = false, resid_pdrop = 0},
  })
end

--- lm.models.llama([{vocab_size = 32000, hidden_size = 4096, intermediate_size = 11008, num_hidden_layers = 32,
--- num_attention_heads = 32, num_key_value_heads = num_attention_heads, head_dim = hidden_size / num_attention_heads,
--- max_position_embeddings = 2048, rms_norm_eps = 1e-5, rope_theta = 10000, rope_scaling, rope_parameters,
--- tie_word_embeddings = false, attention_bias = false, mlp_bias = false, hidden_act = "silu", sliding_window,
--- use_sliding_window = false, layer_types, sliding_window_pattern, rope_local_base_freq = 10000,
--- query_pre_attn_scalar, attn_logit_softcapping, final_logit_softcapping, no_rope_layers, num_experts,
--- num_experts_per_tok = 8, norm_topk_prob = false, moe_intermediate_size = 768, clip_qkv, partial_rotary_factor = 1,
--- model_type = "llama", pad_vocab_to}]): Constructs a model of the LLaMA family. Touvron et al., "LLaMA: Open and
--- Efficient Foundation Language Models", 2023.
models.llama = maker "llama"
--- lm.models.mistral([{…, sliding_window}]): Constructs Mistral. Jiang et al., "Mistral 7B", 2023.
models.mistral = maker "mistral"
--- lm.models.qwen2([{…}]): Constructs Qwen 2 or 2.5. Yang et al., "Qwen2 Technical Report", 2024.
models.qwen2 = maker "qwen2"
--- lm.models.qwen3([{…}]): Constructs Qwen 3. Yang et al., "Qwen3 Technical Report", 2025.
models.qwen3 = maker "qwen3"
--- lm.models.qwen3_moe([{…, num_experts = 128, num_experts_per_tok = 8, moe_intermediate_size = 768, norm_topk_prob =
--- false, decoder_sparse_step = 1, mlp_only_layers}]): Constructs Qwen 3 with a mixture of experts. Yang et al., "Qwen3
--- Technical Report", 2025.
models.qwen3_moe = maker "qwen3_moe"
--- lm.models.olmoe([{…, num_experts = 64, num_experts_per_tok = 8, norm_topk_prob = false, clip_qkv}]): Constructs
--- OLMoE. Muennighoff et al., "OLMoE: Open Mixture-of-Experts Language Models", 2024.
models.olmoe = maker "olmoe"
--- lm.models.smollm3([{…, no_rope_layers, no_rope_layer_interval = 4}]): Constructs SmolLM 3, whose layers with 0 in
--- no_rope_layers do not rotate. Bakouch et al., "SmolLM3: smol, multilingual, long-context reasoner", 2025.
models.smollm3 = maker "smollm3"
--- lm.models.gemma([{…}]): Constructs Gemma. Mesnard et al., "Gemma: Open Models Based on Gemini Research and
--- Technology", 2024.
models.gemma = maker "gemma"
--- lm.models.gemma2([{…, sliding_window = 4096, layer_types, query_pre_attn_scalar = 256, attn_logit_softcapping = 50,
--- final_logit_softcapping = 30}]): Constructs Gemma 2. Riviere et al., "Gemma 2: Improving Open Language Models at a
--- Practical Size", 2024.
models.gemma2 = maker "gemma2"
--- lm.models.gemma3([{…, sliding_window = 4096, sliding_window_pattern = 6, layer_types, rope_local_base_freq = 10000,
--- query_pre_attn_scalar = 256}]): Constructs the part of Gemma 3 for text. Kamath et al., "Gemma 3 Technical Report",
--- 2025.
models.gemma3 = maker "gemma3"
--- lm.models.phi3([{…}]): Constructs Phi 3 or 4. Abdin et al., "Phi-3 Technical Report", 2024.
models.phi3 = maker "phi3"

return models

--- LLaMA (Touvron et al. 2023, Llama 2 and 3) and what is built like it, with Hugging Face's names of parameters:
--- lm.models.llama {weights = "folder"}.
local core = require "luminary.core"
local class = require "luminary.base.class"
local options = require "luminary.base.options"
local nn = require "luminary.nn"
local build = require "luminary.models.build"
local common = require "luminary.models.common"
local generate = require "luminary.models.generate"

local ops = core.ops
local models = {}

local function linear(inputs, outputs, bias) return nn.Linear(inputs, outputs, {bias = bias or false}) end

-- Differences of families from LLaMA, by model_type: fused (one weight for q, k and v, and one for gate and up),
-- qkv_bias, qk_norm, near(i, config) (whether layer i attends to sliding_window tokens alone), plus_one (norms multiply
-- by 1 + weight), scaled (embeddings are multiplied by the root of hidden_size), four_norms (also after attention and
-- MLP), local_rope (positions of layers with a window have rates of their own), and defaults of options.
local function as_listed(i, config)
  if not config.use_sliding_window then return false end
  if config.layer_types then return config.layer_types[i] == "sliding_attention" end
  return i > config.max_window_layers
end

local function always() return true end

-- All but every nth layer.
local function alternating(n)
  return function(i, config)
    local types = config.layer_types
    if types then return types[i] == "sliding_attention" end
    return i % (config.sliding_window_pattern or n) ~= 0
  end
end

local gemma = {
  plus_one = true, scaled = true, defaults = {
    vocab_size = 256000, hidden_size = 3072, intermediate_size = 24576, num_hidden_layers = 28,
    num_attention_heads = 16, num_key_value_heads = 16, head_dim = 256, max_position_embeddings = 8192,
    rms_norm_eps = 1e-6, tie_word_embeddings = true, hidden_act = "gelu_pytorch_tanh",
  },
}
local gemma2 = {
  plus_one = true, scaled = true, four_norms = true, near = alternating(2), defaults = {
    vocab_size = 256000, hidden_size = 2304, intermediate_size = 9216, num_hidden_layers = 26, num_attention_heads = 8,
    num_key_value_heads = 4, head_dim = 256, max_position_embeddings = 8192, rms_norm_eps = 1e-6,
    tie_word_embeddings = true, hidden_act = "gelu_pytorch_tanh", query_pre_attn_scalar = 256,
    attn_logit_softcapping = 50, final_logit_softcapping = 30, sliding_window = 4096,
  },
}
local families = {
  llama = {defaults = {}}, gemma = gemma, gemma2 = gemma2,
  gemma3_text = {
    plus_one = true, scaled = true, four_norms = true, qk_norm = true, local_rope = true, near = alternating(6),
    defaults = {
      vocab_size = 262208, hidden_size = 2304, intermediate_size = 9216, num_hidden_layers = 26,
      num_attention_heads = 8, num_key_value_heads = 4, head_dim = 256, max_position_embeddings = 131072,
      rms_norm_eps = 1e-6, tie_word_embeddings = true, hidden_act = "gelu_pytorch_tanh", query_pre_attn_scalar = 256,
      sliding_window = 4096, rope_theta = 1000000, rope_local_base_freq = 10000,
    },
  },
  mistral = {near = always, defaults = {
    intermediate_size = 14336, num_key_value_heads = 8, max_position_embeddings = 131072, rms_norm_eps = 1e-6,
    sliding_window = 4096,
  }},
  phi3 = {fused = true, near = always, defaults = {
    vocab_size = 32064, hidden_size = 3072, intermediate_size = 8192, max_position_embeddings = 4096,
  }},
  qwen2 = {qkv_bias = true, near = as_listed, defaults = {
    vocab_size = 151936, intermediate_size = 22016, max_position_embeddings = 32768, rms_norm_eps = 1e-6,
    sliding_window = 4096, max_window_layers = 28,
  }},
  qwen3 = {qk_norm = true, near = as_listed, defaults = {
    vocab_size = 151936, intermediate_size = 22016, head_dim = 128, max_position_embeddings = 32768,
    rms_norm_eps = 1e-6, sliding_window = 4096, max_window_layers = 28,
  }},
}

-- RMS norm with a factor of 1 + weight, in float32 as Gemma's.
local GemmaRMSNorm = class.define("GemmaRMSNorm", nn.RMSNorm)

function GemmaRMSNorm:reset_parameters() nn.init.zeros_(self.weight) end

function GemmaRMSNorm:forward(x)
  local wide = x.dtype == "float64" and x or x:float()
  return ops.rms_norm(wide, self.normalized_shape, self.weight:to(wide.dtype) + 1, self.how):to(x.dtype)
end

local function norm_of(config, size)
  return (families[config.model_type].plus_one and GemmaRMSNorm or nn.RMSNorm)(size, {eps = config.rms_norm_eps})
end

local Attention = class.define("LlamaAttention", nn.Module)

function Attention:init(config)
  local family, bias = families[config.model_type], config.attention_bias
  self.heads, self.kv_heads, self.head_dim = config.num_attention_heads, config.num_key_value_heads, config.head_dim
  self.scale, self.cap = (config.query_pre_attn_scalar or config.head_dim) ^ -0.5, config.attn_logit_softcapping
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
    self.q_norm = norm_of(config, self.head_dim)
    self.k_norm = norm_of(config, self.head_dim)
  end
end

-- Attention whose scores are at most cap: cap * tanh(score / cap).
local function capped(self, q, k, v, seen)
  local group, l, cap = self.heads / self.kv_heads, q.shape[3], self.cap
  local scores = q:matmul(k:repeat_interleave(group, 2):transpose(3, 4)) * self.scale
  local mask = seen.attn_mask
  if not mask and l > 1 then mask = ops.ones({l, l}, {dtype = "bool", device = q.device}):tril() end
  scores = (scores / cap):tanh() * cap
  if mask then scores = scores:masked_fill(mask:logical_not(), -math.huge) end
  scores = scores:softmax(-1)
  if mask then scores = scores:masked_fill(mask:logical_not(), 0) end -- also where a token sees nothing
  return scores:matmul(v:repeat_interleave(group, 2))
end

function Attention:forward(x, rotate, seen, cache)
  local n, l = x.shape[1], x.shape[2]
  local q, k, v
  if self.qkv_proj then
    local width, kv_width = self.heads * self.head_dim, self.kv_heads * self.head_dim
    q, k, v = unpack(self.qkv_proj(x):split({width, kv_width, kv_width}, 3))
  else
    q, k, v = self.q_proj(x), self.k_proj(x), self.v_proj(x)
  end
  local function heads_of(t, heads, norm)
    t = t:reshape {n, l, heads, self.head_dim}
    return (norm and norm(t) or t):transpose(2, 3)
  end
  q = rotate(heads_of(q, self.heads, self.q_norm))
  k = rotate(heads_of(k, self.kv_heads, self.k_norm))
  v = heads_of(v, self.kv_heads)
  if cache then k, v = cache:update(k, v) end
  local y
  if self.cap then
    y = capped(self, q, k, v, seen)
  else
    y = ops.scaled_dot_product_attention(q, k, v, {
      attn_mask = seen.attn_mask, is_causal = seen.is_causal, enable_gqa = self.heads ~= self.kv_heads,
      scale = self.scale,
    })
  end
  return self.o_proj(y:transpose(2, 3):reshape(n, l, self.heads * self.head_dim))
end

local MLP = class.define("LlamaMLP", nn.Module)

function MLP:init(config)
  local width, inner, bias = config.hidden_size, config.intermediate_size, config.mlp_bias
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

local Layer = class.define("LlamaDecoderLayer", nn.Module)

function Layer:init(config, near)
  self.near = near
  self.self_attn = Attention(config)
  self.mlp = MLP(config)
  self.input_layernorm = norm_of(config, config.hidden_size)
  self.post_attention_layernorm = norm_of(config, config.hidden_size)
  if families[config.model_type].four_norms then
    self.pre_feedforward_layernorm = norm_of(config, config.hidden_size)
    self.post_feedforward_layernorm = norm_of(config, config.hidden_size)
  end
end

function Layer:forward(x, rotate, seen, cache)
  local y = self.self_attn(self.input_layernorm(x), rotate, seen, cache)
  if not self.pre_feedforward_layernorm then
    x = x + y
    return x + self.mlp(self.post_attention_layernorm(x))
  end
  x = x + self.post_attention_layernorm(y)
  return x + self.post_feedforward_layernorm(self.mlp(self.pre_feedforward_layernorm(x)))
end

-- What older files have beside the parameters.
local function rename(net, dict)
  for key in pairs(dict) do
    if key:find "rotary_emb%.inv_freq$" then dict[key] = nil end
  end
  if not net.lm_head then dict["lm_head.weight"] = nil end
end

--- The class of lm.models.llama.
local Llama = class.define("Llama", nn.Module)

function Llama:init(config)
  self.config = config
  local body, layers = nn.Module(), {}
  body.embed_tokens = nn.Embedding(common.vocab_rows(config), config.hidden_size)
  local family = families[config.model_type]
  for i = 1, config.num_hidden_layers do
    layers[i] = Layer(config, config.sliding_window ~= nil and family.near ~= nil and family.near(i, config))
  end
  body.layers = nn.ModuleList(layers)
  body.norm = norm_of(config, config.hidden_size)
  self.model = body
  if not config.tie_word_embeddings then self.lm_head = linear(config.hidden_size, common.vocab_rows(config)) end
  local function rope_of(base, scaling)
    local original = scaling and scaling.long_factor and scaling.original_max_position_embeddings
    return nn.RotaryPositionalEmbeddings(config.rotary_dim, {
      max_seq_len = original or config.max_positions < math.huge and config.max_positions
        or config.max_position_embeddings,
      base = base, interleaved = false, scaling = scaling,
    })
  end
  self.rope = rope_of(config.rope_theta, config.rope_scaling)
  if family.local_rope then self.local_rope = rope_of(config.rope_local_base_freq) end
  self:reset_parameters()
  self:register_load_state_dict_pre_hook(rename)
  common.pad_vocab(self, config, "model.embed_tokens.weight")
end

--- Weights are drawn with deviation 0.02.
function Llama:reset_parameters()
  for _, p in ipairs(self:parameters()) do
    if p.ndim == 2 then nn.init.normal_(p, 0, 0.02) end
  end
end

--- net:new_cache(batch_size, max_seq_len): Returns an empty key-value cache for net(ids, {cache = …}).
function Llama:new_cache(batch_size, max_seq_len)
  local config = self.config
  local caches = common.caches("Llama", config.num_hidden_layers, self.model.embed_tokens.weight, batch_size,
    max_seq_len, config.max_positions, config.num_key_value_heads, config.head_dim)
  if self.rope.scaling.long_factor then caches.recompute_beyond = self.rope.max_seq_len end
  return caches
end

--- net(ids [, {cache, attention_mask, position_ids}]): scores [N, L, vocab_size] of what comes after each of ids [N, L]
--- (int64, from 1); with a cache after what it holds, M tokens. attention_mask [N, M + L]: 1 or true where there is a
--- token, 0 or false where there is padding, which no token sees. position_ids [N, L]: their positions, int64, from 1;
--- without, M + 1 to M + L, whatever the mask says, and as positions only count from each other, that hardly matters.
function Llama:forward(ids, opts)
  local config, cap = self.config, self.config.final_logit_softcapping
  local o = common.forward_options("Llama", ids, opts, config.num_hidden_layers, config.sliding_window)
  if not o.position_ids and o.first + ids.shape[2] > self.config.max_positions then
    options.must_be("Llama", "the number of tokens", ("at most max_positions, %d"):format(self.config.max_positions),
      o.first + ids.shape[2])
  end
  local place, rotary = {input_pos = o.position_ids, first = not o.position_ids and o.first + 1 or nil},
    config.rotary_dim
  local function rotate_by(rope)
    return function(t)
      if rotary == config.head_dim then return rope(t, place) end
      return ops.cat({rope(t:narrow(4, 1, rotary), place), t:narrow(4, rotary + 1, config.head_dim - rotary)}, 4)
    end
  end
  local far, near = rotate_by(self.rope), rotate_by(self.local_rope or self.rope)
  local x = self.model.embed_tokens(ids)
  if families[config.model_type].scaled then
    x = x * ops.full({1}, math.sqrt(config.hidden_size), {dtype = x.dtype, device = x.device})
  end
  for i, each in ipairs(self.model.layers) do
    x = each(x, each.near and near or far, each.near and o.near or o.seen, o.cache and o.cache[i])
  end
  x = self.model.norm(x)
  x = self.lm_head and self.lm_head(x) or ops.linear(x, self.model.embed_tokens.weight, self.score_bias)
  return cap and (x / cap):tanh() * cap or x
end

--- For lm.quantize: a tied output gets a weight of its own beside that of the input embedding.
function Llama:to_int8()
  if not self.lm_head then self.lm_head = nn.Int8Linear(self.model.embed_tokens.weight, self.score_bias) end
  return self
end

--- net:generate(ids [, {…}]): Generates tokens, as lm.models.generate(net, ids, {…}) does.
Llama.generate = generate

local spec = {
  model_type = {options.sorted_keys(families)}, vocab_size = {"count", 32000}, hidden_size = {"count", 4096},
  intermediate_size = {"count", 11008}, num_hidden_layers = {"count", 32}, num_attention_heads = {"count", 32},
  num_key_value_heads = {"count"}, head_dim = {"count"}, max_position_embeddings = {"count", 2048},
  rms_norm_eps = {"positive", 1e-5}, rope_theta = {"positive"}, rope_scaling = {"table"}, rope_parameters = {"table"},
  partial_rotary_factor = {"positive"}, original_max_position_embeddings = {"count"},
  tie_word_embeddings = {"boolean", false}, pad_vocab_to = {"count"}, attention_bias = {"boolean", false},
  mlp_bias = {"boolean", false}, hidden_act = {options.sorted_keys(common.activations), "silu"},
  sliding_window = {"count"}, use_sliding_window = {"boolean", false}, max_window_layers = {"natural"},
  layer_types = {"table"}, sliding_window_pattern = {"count"}, query_pre_attn_scalar = {"positive"},
  attn_logit_softcapping = {"positive"}, final_logit_softcapping = {"positive"}, rope_local_base_freq = {"positive"},
}

-- rope_theta and rope_scaling, where they are, or in newer files in rope_parameters, which may have a table for layers
-- with a window and one for others; the dims of a head that rotate; the number of positions.
local function resolve_positions(config)
  local given = config.rope_parameters or {}
  if given.sliding_attention or given.full_attention then
    config.rope_local_base_freq = (given.sliding_attention or {}).rope_theta or config.rope_local_base_freq
    given = given.full_attention or {}
  end
  config.rope_theta = given.rope_theta or config.rope_theta or 10000
  local scaling, most = {}, config.max_position_embeddings
  for name, value in pairs(config.rope_scaling or given) do scaling[name] = value end
  config.rope_scaling = scaling
  local original = config.original_max_position_embeddings or scaling.original_max_position_embeddings or most
  local kind, factor = scaling.rope_type or scaling.type, scaling.factor
  if config.model_type == "phi3" and (kind == "su" or kind == "yarn") then kind = "longrope" end
  scaling.rope_type = kind
  if kind == "yarn" or kind == "longrope" or kind == "llama3" then
    scaling.original_max_position_embeddings = original
    scaling.factor = factor or kind ~= "llama3" and most / original or nil
  end
  local stretch = type(factor) == "number" and (kind == "linear" and factor or kind == "yarn" and factor * original / most)
  config.max_positions = math.floor(most * math.max(1, kind == "dynamic" and math.huge or stretch or 1))
  local share = given.partial_rotary_factor or config.partial_rotary_factor or 1
  config.rotary_dim = math.floor(config.head_dim * share)
end

local function make(config)
  local heads = config.num_attention_heads
  config.num_key_value_heads = config.num_key_value_heads or heads
  if not config.head_dim and config.hidden_size % heads ~= 0 then
    options.not_divisible("llama", "hidden_size", config.hidden_size, "num_attention_heads", heads)
  end
  config.head_dim = config.head_dim or config.hidden_size / heads
  if heads % config.num_key_value_heads ~= 0 then
    options.not_divisible("llama", "num_attention_heads", heads, "num_key_value_heads", config.num_key_value_heads)
  end
  if config.pad_vocab_to and config.final_logit_softcapping then
    options.fail("llama: pad_vocab_to cannot be used with final_logit_softcapping")
  end
  resolve_positions(config)
  return Llama(config)
end

-- A family's defaults where a file says nothing; null of sliding_window and of the softcappings is no default.
local function also(json, out)
  local family = families[out.model_type or "llama"]
  for name, value in pairs(family.defaults) do
    if out[name] == nil and name ~= "sliding_window" and not name:find "softcapping" then out[name] = value end
  end
  if family.scaled then
    out.hidden_act = json.hidden_activation or json.hidden_act ~= "gelu" and json.hidden_act or "gelu_pytorch_tanh"
  end
end

local kinds = {}
for name in pairs(families) do kinds[name] = true end

local function maker(name, model_type)
  local own = common.with_defaults(spec, model_type, families[model_type].defaults)
  return function(opts)
    return build(name, opts, own, make, "vocab_size", {
      kinds = kinds, generates = true, also = also, only = {use_bidirectional_attention = false, resid_pdrop = 0},
    })
  end
end

--- models.llama([{vocab_size = 32000, hidden_size = 4096, intermediate_size = 11008, num_hidden_layers = 32,
--- num_attention_heads = 32, num_key_value_heads = num_attention_heads, head_dim = hidden_size / num_attention_heads,
--- max_position_embeddings = 2048, rms_norm_eps = 1e-5, rope_theta = 10000, rope_scaling, rope_parameters,
--- tie_word_embeddings = false, attention_bias = false, mlp_bias = false, hidden_act = "silu", pad_vocab_to}]):
--- Constructs a model of the LLaMA family. Touvron et al., "LLaMA: Open and Efficient Foundation Language Models", 2023.
models.llama = maker("llama", "llama")
--- models.mistral([{…, sliding_window = 4096}]): Constructs Mistral. Jiang et al., "Mistral 7B", 2023.
models.mistral = maker("mistral", "mistral")
--- models.qwen2([{…}]): Constructs Qwen 2. Yang et al., "Qwen2 Technical Report", 2024.
models.qwen2 = maker("qwen2", "qwen2")
--- models.qwen3([{…}]): Constructs Qwen 3. Yang et al., "Qwen3 Technical Report", 2025.
models.qwen3 = maker("qwen3", "qwen3")
--- models.gemma([{…}]): Constructs Gemma. Mesnard et al., "Gemma: Open Models Based on Gemini Research and Technology",
--- 2024.
models.gemma = maker("gemma", "gemma")
--- models.gemma2([{…}]): Constructs Gemma 2. Riviere et al., "Gemma 2: Improving Open Language Models at a Practical
--- Size", 2024.
models.gemma2 = maker("gemma2", "gemma2")
--- models.gemma3([{…}]): Constructs the language model of Gemma 3. Kamath et al., "Gemma 3 Technical Report", 2025.
models.gemma3 = maker("gemma3", "gemma3_text")
--- models.phi3([{…}]): Constructs Phi 3. Abdin et al., "Phi-3 Technical Report: A Highly Capable Language Model Locally
--- on Your Phone", 2024.
models.phi3 = maker("phi3", "phi3")

return models

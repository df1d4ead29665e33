--- Defines LLaMA (Touvron et al. 2023, Llama 2 and 3) and families with its structure, with Hugging Face's names of
--- parameters.
local core = require "luminary.core"
local class = require "luminary.base.class"
local lists = require "luminary.base.lists"
local options = require "luminary.base.options"
local nn = require "luminary.nn"
local common = require "luminary.models.common"
local generate = require "luminary.models.generate"

local ops = core.ops
local models = {}

local function linear(inputs, outputs, bias) return nn.Linear(inputs, outputs, {bias = bias or false}) end

-- Returns true if layer i of Qwen attends only to the last sliding_window tokens.
local function near_of_qwen(i, config)
  local types = config.layer_types
  return config.use_sliding_window and (types and types[i] == "sliding_attention" or not types
    and i > config.max_window_layers)
end

local function always() return true end

-- Differences of families from LLaMA, by model_type: fused (one weight for q, k and v, and one for gate and up),
-- qkv_bias, qk_norm, near (function(layer, config): true for a sliding window), gemma (norms multiply by 1 + weight,
-- embeddings by the root of hidden_size); defaults of options, at 1, 2, … those of `sizes`.
local sizes = {"vocab_size", "hidden_size", "intermediate_size", "max_position_embeddings"}
local families = {
  llama = {}, mistral = {near = always, rms_norm_eps = 1e-6, 32000, 4096, 14336, 131072},
  qwen2 = {qkv_bias = true, near = near_of_qwen, rms_norm_eps = 1e-6, 151936, 4096, 22016, 32768},
  qwen3 = {qk_norm = true, near = near_of_qwen, rms_norm_eps = 1e-6, head_dim = 128, 151936, 4096, 22016, 32768},
  phi3 = {fused = true, near = always, 32064, 3072, 8192, 4096},
  gemma = {gemma = true, rms_norm_eps = 1e-6, tie_word_embeddings = true, hidden_act = "gelu_pytorch_tanh",
    head_dim = 256, num_hidden_layers = 28, num_attention_heads = 16, 256000, 3072, 24576, 8192},
}
for _, family in pairs(families) do
  for i, name in ipairs(sizes) do family[name] = family[i] end
end

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
    self.q_norm = norm_of(config, self.head_dim)
    self.k_norm = norm_of(config, self.head_dim)
  end
end

function Attention:forward(x, rotate, seen, cache)
  local q, k, v
  if self.qkv_proj then
    local qkv = self.qkv_proj(x)
    local kv_width = qkv.shape[3] / (self.heads / self.kv_heads + 2) -- this rank's heads
    q, k, v = unpack(qkv:split({qkv.shape[3] - 2 * kv_width, kv_width, kv_width}, 3))
  else
    q, k, v = self.q_proj(x), self.k_proj(x), self.v_proj(x)
  end
  local n, l = q.shape[1], q.shape[2] -- with nn.parallel.parallelize x may have a part of the sequence
  local function heads_of(t, norm)
    t = t:reshape {n, l, t.shape[3] / self.head_dim, self.head_dim}
    return (norm and norm(t) or t):transpose(2, 3)
  end
  q = rotate(heads_of(q, self.q_norm))
  k = rotate(heads_of(k, self.k_norm))
  v = heads_of(v)
  if cache then k, v = cache:update(k, v) end
  local y = ops.scaled_dot_product_attention(q, k, v, {
    attn_mask = seen.attn_mask, is_causal = seen.is_causal, enable_gqa = self.heads ~= self.kv_heads,
  })
  return self.o_proj(y:transpose(2, 3):reshape(n, l, y.shape[2] * self.head_dim))
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
end

function Layer:forward(x, rotate, seen, cache)
  x = x + self.self_attn(self.input_layernorm(x), rotate, seen, cache)
  return x + self.mlp(self.post_attention_layernorm(x))
end

-- Removes the tensors of older files that are not parameters, or a tied output weight.
local function rename(net, dict)
  common.rename(dict, {{"rotary_emb%.inv_freq$", false}})
  if not net.lm_head then dict["lm_head.weight"] = nil end
end

--- The class of lm.models.llama.
local Llama = class.define("Llama", common.LanguageModel)

function Llama:init(config)
  self.config = config
  local body, layers = nn.Module(), {}
  body.embed_tokens = nn.Embedding(common.vocab_rows(config), config.hidden_size)
  local family = families[config.model_type]
  for i = 1, config.num_hidden_layers do
    layers[i] = Layer(config, config.sliding_window and family.near and family.near(i, config))
  end
  body.layers = nn.ModuleList(layers)
  body.norm = norm_of(config, config.hidden_size)
  self.model = body
  if not config.tie_word_embeddings then self.lm_head = linear(config.hidden_size, common.vocab_rows(config)) end
  local scaling = config.rope_scaling
  self.rope = nn.RotaryPositionalEmbeddings(config.rotary_dim, {
    max_seq_len = scaling.long_factor and scaling.original_max_position_embeddings
      or config.max_positions < math.huge and config.max_positions or config.max_position_embeddings,
    base = config.rope_theta, interleaved = false, scaling = scaling,
  })
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

function Llama:parallel_plan(opts)
  local config, layer, column, sequence = self.config, "model.layers.*.", {}, {["model.norm"] = "sequence"}
  local dim, heads, kv_heads = config.head_dim, config.num_attention_heads, config.num_key_value_heads
  local plan = {
    ["model.embed_tokens"] = "vocabulary", lm_head = "vocabulary", [layer .. "self_attn.o_proj"] = "row",
    [layer .. "mlp.down_proj"] = "row",
  }
  if families[config.model_type].fused then
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
  if families[config.model_type].qk_norm then
    plan[layer .. "self_attn.q_norm"], plan[layer .. "self_attn.k_norm"] = "divided", "divided"
  end
  sequence[layer .. "input_layernorm"], sequence[layer .. "post_attention_layernorm"] = "sequence", "sequence"
  return common.parallel_plan("Llama", opts, plan, sequence)
end

function Llama:new_cache(batch_size, max_seq_len)
  local config = self.config
  local caches = self:caches(config.num_hidden_layers, batch_size, max_seq_len, config.num_key_value_heads,
    config.head_dim)
  if self.rope.scaling.long_factor then caches.recompute_beyond = self.rope.max_seq_len end
  caches.by_length = self.rope.scaling.rope_type == "dynamic" or caches.recompute_beyond ~= nil
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

-- Returns a function that rotates the queries or keys of a layer by their positions.
local function rotation(net, o)
  local rope, place = net.rope, {input_pos = o.position_ids, first = not o.position_ids and o.first + 1 or nil}
  local rotary, rest = net.config.rotary_dim, net.config.head_dim - net.config.rotary_dim
  return function(t)
    if rest == 0 then return rope(t, place) end
    return ops.cat({rope(t:narrow(4, 1, rotary), place), t:narrow(4, rotary + 1, rest)}, 4)
  end
end

local function options_of(net, ids, opts)
  return common.forward_options("Llama", ids, opts, net.config.num_hidden_layers, net.config.sliding_window)
end

--- net(ids [, {cache, attention_mask, position_ids}]): Returns scores [N, L, vocab_size] of the token after each of ids
--- [N, L] (int64, from 1), which follow the M tokens of a cache. attention_mask [N, M + L]: 1 or true for tokens, 0 or
--- false for padding, to which no token attends. position_ids [N, L]: int64 positions from 1; M + 1 to M + L by
--- default, whatever the mask is; only differences of positions matter.
function Llama:forward(ids, opts)
  local o = options_of(self, ids, opts)
  local x, rotate = embed(self, ids, o), rotation(self, o)
  for i, each in ipairs(self.model.layers) do
    x = each(x, rotate, each.near and o.near or o.seen, o.cache and o.cache[i])
  end
  return self:scores(self.model.norm(x))
end

--- Returns the parts of net(ids) that nn.parallel.Pipeline divides into stages.
function Llama:pipeline_parts()
  local parts = {{"model.embed_tokens", forward = function(net, ids) return embed(net, ids, options_of(net, ids)) end}}
  for i = 1, self.config.num_hidden_layers do
    parts[i + 1] = {"model.layers." .. i - 1, "rope", forward = function(net, x)
      local each, o = net.model.layers[i], options_of(net, x:detach():select(3, 1))
      return each(x, rotation(net, o), each.near and o.near or o.seen)
    end}
  end
  local head = self.lm_head and "lm_head" or "model.embed_tokens"
  return lists.append(parts, {{"model.norm", head, forward = function(net, x)
    return net:scores(net.model.norm(x))
  end}})
end

Llama.generate = generate

local spec = {
  model_type = {options.sorted_keys(families)}, vocab_size = {"count", 32000}, hidden_size = {"count", 4096},
  intermediate_size = {"count", 11008}, num_hidden_layers = {"count", 32}, num_attention_heads = {"count", 32},
  num_key_value_heads = {"count"}, head_dim = {"count"}, max_position_embeddings = {"count", 2048},
  rms_norm_eps = {"positive", 1e-5}, rope_theta = {"positive"}, rope_scaling = {"table"}, rope_parameters = {"table"},
  partial_rotary_factor = {"probability"}, original_max_position_embeddings = {"count"},
  tie_word_embeddings = {"boolean", false}, pad_vocab_to = {"count"}, attention_bias = {"boolean", false},
  mlp_bias = {"boolean", false}, hidden_act = {options.sorted_keys(common.activations), "silu"},
  sliding_window = {"count"}, use_sliding_window = {"boolean", false}, max_window_layers = {"natural", 28},
  layer_types = {"table"},
}

-- Sets rope_theta and rope_scaling of config, which newer files have in rope_parameters, rotary_dim, the number of dims
-- of a head that rotate, and max_positions.
local function resolve_positions(config)
  local given, scaling, most = config.rope_parameters or {}, {}, config.max_position_embeddings
  for name, value in pairs(config.rope_scaling or given) do scaling[name] = value end
  config.rope_theta = config.rope_theta or given.rope_theta or 10000
  local share = given.partial_rotary_factor or config.partial_rotary_factor or 1
  options.arg("llama", "partial_rotary_factor", share, "probability")
  config.rotary_dim = math.floor(config.head_dim * share)
  local original = options.arg("llama", "original_max_position_embeddings",
    config.original_max_position_embeddings or scaling.original_max_position_embeddings or most, "count")
  local kind, factor = scaling.rope_type or scaling.type, scaling.factor
  if config.model_type == "phi3" and (kind == "su" or kind == "yarn") then kind = "longrope" end
  if kind == "yarn" or kind == "longrope" or kind == "llama3" then
    scaling.original_max_position_embeddings = original
    if kind ~= "llama3" then scaling.factor = factor or most / original end
  end
  config.rope_scaling, scaling.rope_type = scaling, kind
  local stretch = kind == "dynamic" and math.huge
    or type(factor) == "number" and (kind == "linear" and factor or kind == "yarn" and factor * original / most) or 1
  config.max_positions = math.floor(most * math.max(1, stretch))
end

local function make(config)
  local heads = config.num_attention_heads
  config.num_key_value_heads = config.num_key_value_heads or heads
  if not config.head_dim then
    options.divisible("llama", "hidden_size", config.hidden_size, "num_attention_heads", heads)
  end
  config.head_dim = config.head_dim or config.hidden_size / heads
  options.divisible("llama", "num_attention_heads", heads, "num_key_value_heads", config.num_key_value_heads)
  resolve_positions(config)
  return Llama(config)
end

-- Sets hidden_act of Gemma, whose older files have "gelu" for another activation.
local function fix_gelu(json, out)
  if out.model_type ~= "gemma" then return end
  out.hidden_act = json.hidden_activation or json.hidden_act ~= "gelu" and json.hidden_act or nil
end

local function maker(name)
  return common.maker(name, spec, name, families[name], make, "vocab_size", {
    kinds = families, generates = true, also = fix_gelu, only = {use_bidirectional_attention = false, resid_pdrop = 0},
  })
end

--- lm.models.llama([{vocab_size = 32000, hidden_size = 4096, intermediate_size = 11008, num_hidden_layers = 32,
--- num_attention_heads = 32, num_key_value_heads = num_attention_heads, head_dim = hidden_size / num_attention_heads,
--- max_position_embeddings = 2048, rms_norm_eps = 1e-5, rope_theta = 10000, rope_scaling, rope_parameters,
--- tie_word_embeddings = false, attention_bias = false, mlp_bias = false, hidden_act = "silu", sliding_window,
--- use_sliding_window = false, partial_rotary_factor = 1, model_type = "llama", pad_vocab_to}]): Constructs a model of
--- the LLaMA family. Touvron et al., "LLaMA: Open and Efficient Foundation Language Models", 2023.
models.llama = maker "llama"
--- lm.models.mistral([{…, sliding_window}]): Constructs Mistral. Jiang et al., "Mistral 7B", 2023.
models.mistral = maker "mistral"
--- lm.models.qwen2([{…}]): Constructs Qwen 2. Yang et al., "Qwen2 Technical Report", 2024.
models.qwen2 = maker "qwen2"
--- lm.models.qwen3([{…}]): Constructs Qwen 3. Yang et al., "Qwen3 Technical Report", 2025.
models.qwen3 = maker "qwen3"
--- lm.models.gemma([{…}]): Constructs Gemma. Mesnard et al., "Gemma: Open Models Based on Gemini Research and
--- Technology", 2024.
models.gemma = maker "gemma"
--- lm.models.phi3([{…}]): Constructs Phi 3. Abdin et al., "Phi-3 Technical Report", 2024.
models.phi3 = maker "phi3"

return models

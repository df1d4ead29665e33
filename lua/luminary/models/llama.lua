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

local function linear(inputs, outputs) return nn.Linear(inputs, outputs, {bias = false}) end

local Attention = class.define("LlamaAttention", nn.Module)

function Attention:init(config)
  self.heads, self.kv_heads = config.num_attention_heads, config.num_key_value_heads
  self.head_dim = config.head_dim
  self.q_proj = linear(config.hidden_size, self.heads * config.head_dim)
  self.k_proj = linear(config.hidden_size, self.kv_heads * config.head_dim)
  self.v_proj = linear(config.hidden_size, self.kv_heads * config.head_dim)
  self.o_proj = linear(self.heads * config.head_dim, config.hidden_size)
end

function Attention:forward(x, rotate, seen, cache)
  local n, l = x.shape[1], x.shape[2]
  local function heads_of(t, heads) return t:view(n, l, heads, self.head_dim):transpose(2, 3) end
  local q = rotate(heads_of(self.q_proj(x), self.heads))
  local k = rotate(heads_of(self.k_proj(x), self.kv_heads))
  local v = heads_of(self.v_proj(x), self.kv_heads)
  if cache then k, v = cache:update(k, v) end
  local y = ops.scaled_dot_product_attention(q, k, v, {
    attn_mask = seen.attn_mask, is_causal = seen.is_causal, enable_gqa = self.heads ~= self.kv_heads,
  })
  return self.o_proj(y:transpose(2, 3):reshape(n, l, self.heads * self.head_dim))
end

local MLP = class.define("LlamaMLP", nn.Module)

function MLP:init(config)
  self.gate_proj = linear(config.hidden_size, config.intermediate_size)
  self.up_proj = linear(config.hidden_size, config.intermediate_size)
  self.down_proj = linear(config.intermediate_size, config.hidden_size)
end

function MLP:forward(x) return self.down_proj(ops.silu(self.gate_proj(x)) * self.up_proj(x)) end

local Layer = class.define("LlamaDecoderLayer", nn.Module)

function Layer:init(config)
  local norm = {eps = config.rms_norm_eps}
  self.self_attn = Attention(config)
  self.mlp = MLP(config)
  self.input_layernorm = nn.RMSNorm(config.hidden_size, norm)
  self.post_attention_layernorm = nn.RMSNorm(config.hidden_size, norm)
end

function Layer:forward(x, rotate, seen, cache)
  x = x + self.self_attn(self.input_layernorm(x), rotate, seen, cache)
  return x + self.mlp(self.post_attention_layernorm(x))
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
  for i = 1, config.num_hidden_layers do layers[i] = Layer(config) end
  body.layers = nn.ModuleList(layers)
  body.norm = nn.RMSNorm(config.hidden_size, {eps = config.rms_norm_eps})
  self.model = body
  if not config.tie_word_embeddings then self.lm_head = linear(config.hidden_size, common.vocab_rows(config)) end
  self.rope = nn.RotaryPositionalEmbeddings(config.head_dim, {
    max_seq_len = config.max_positions < math.huge and config.max_positions or config.max_position_embeddings,
    base = config.rope_theta, interleaved = false, scaling = config.rope_scaling,
  })
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
  return common.caches("Llama", config.num_hidden_layers, self.model.embed_tokens.weight, batch_size, max_seq_len,
    config.max_positions, config.num_key_value_heads, config.head_dim)
end

--- net(ids [, {cache, attention_mask, position_ids}]): scores [N, L, vocab_size] of what comes after each of ids [N, L]
--- (int64, from 1); with a cache after what it holds, M tokens. attention_mask [N, M + L]: 1 or true where there is a
--- token, 0 or false where there is padding, which no token sees. position_ids [N, L]: their positions, int64, from 1;
--- without, M + 1 to M + L, whatever the mask says, and as positions only count from each other, that hardly matters.
function Llama:forward(ids, opts)
  local o = common.forward_options("Llama", ids, opts, self.config.num_hidden_layers)
  if not o.position_ids and o.first + ids.shape[2] > self.config.max_positions then
    options.must_be("Llama", "the number of tokens", ("at most max_positions, %d"):format(self.config.max_positions),
      o.first + ids.shape[2])
  end
  local rope, place = self.rope, {input_pos = o.position_ids, first = not o.position_ids and o.first + 1 or nil}
  local function rotate(t) return rope(t, place) end
  local x = self.model.embed_tokens(ids)
  for i, each in ipairs(self.model.layers) do x = each(x, rotate, o.seen, o.cache and o.cache[i]) end
  x = self.model.norm(x)
  return self.lm_head and self.lm_head(x) or ops.linear(x, self.model.embed_tokens.weight, self.score_bias)
end

--- For lm.quantize: a tied output gets a weight of its own beside that of the input embedding.
function Llama:to_int8()
  if not self.lm_head then self.lm_head = nn.Int8Linear(self.model.embed_tokens.weight, self.score_bias) end
  return self
end

--- net:generate(ids [, {…}]): Generates tokens, as lm.models.generate(net, ids, {…}) does.
Llama.generate = generate

local spec = {
  vocab_size = {"count", 32000}, hidden_size = {"count", 4096}, intermediate_size = {"count", 11008},
  num_hidden_layers = {"count", 32}, num_attention_heads = {"count", 32}, num_key_value_heads = {"count"},
  head_dim = {"count"}, max_position_embeddings = {"count", 2048}, rms_norm_eps = {"positive", 1e-5},
  rope_theta = {"positive"}, rope_scaling = {"table"}, rope_parameters = {"table"},
  tie_word_embeddings = {"boolean", false}, pad_vocab_to = {"count"},
}

-- rope_theta and rope_scaling, where they are, or in newer files in rope_parameters; how many positions there are.
local function resolve_positions(config)
  local given = config.rope_parameters or {}
  config.rope_theta = config.rope_theta or given.rope_theta or 10000
  local scaling = config.rope_scaling or given
  config.rope_scaling = scaling
  local kind, factor = scaling.rope_type or scaling.type, scaling.factor
  local stretch = kind == "dynamic" and math.huge or kind == "linear" and type(factor) == "number" and factor or 1
  config.max_positions = math.floor(config.max_position_embeddings * math.max(1, stretch))
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
  resolve_positions(config)
  return Llama(config)
end

--- models.llama([{vocab_size = 32000, hidden_size = 4096, intermediate_size = 11008, num_hidden_layers = 32,
--- num_attention_heads = 32, num_key_value_heads = num_attention_heads, head_dim = hidden_size / num_attention_heads,
--- max_position_embeddings = 2048, rms_norm_eps = 1e-5, rope_theta = 10000, rope_scaling, rope_parameters,
--- tie_word_embeddings = false, pad_vocab_to}]): Constructs a model of the LLaMA family. Touvron et al., "LLaMA: Open
--- and Efficient Foundation Language Models", 2023.
function models.llama(opts)
  return build("llama", opts, spec, make, "vocab_size", {
    kind = "llama", generates = true, only = {hidden_act = "silu", attention_bias = false, mlp_bias = false},
  })
end

return models

--- Converts a GGUF file's metadata and names of weights to those of a Hugging Face folder, and back.
local core = require "luminary.core"
local load_module = require "luminary.base.load_module"
local options = require "luminary.base.options"

local fail = options.fail
local gguf = {}

-- Functions (t, config, back) change a weight of a file to that of a net; if back is true, one of a net to that of a
-- file.

-- Returns the weight or bias of q or k with the rows of each head in two halves. Some architectures of llama.cpp rotate
-- pairs of neighbors, for which its converter interleaves the halves. Another shape is left to load_state_dict's error.
local function halves(t, heads, back)
  if not core.is_tensor(t) then return {kind = t.kind, blocks = halves(t.blocks, heads, back)} end
  if type(heads) ~= "number" or heads < 1 or t.shape[1] % (2 * heads) ~= 0 then return t end
  local half = t.shape[1] / heads / 2
  return t:reshape {heads, back and 2 or half, back and half or 2, -1}:transpose(2, 3):reshape(t.shape)
end

local function pairs_of_queries(t, config, back) return halves(t, config.num_attention_heads, back) end
local function pairs_of_keys(t, config, back)
  return halves(t, config.num_key_value_heads or config.num_attention_heads, back)
end
-- Gemma's norms multiply by 1 + weight; its files have the sum.
local function less_1(t, _, back) return t:float() + (back and 1 or -1) end

--- Architectures by name: {model_type, layers = the prefix of layers' names, sizes = options by key, names, changes}.
local architectures = {}
gguf.architectures = architectures

-- Sets the options of positions from metadata and the tensors of divisors of rates, which it removes from rest.
local function resolve_positions(who, path, config, value, rest, of)
  local rotated, kind, old = value "rope.dimension_count", value "rope.scaling.type", value "rope.scale_linear"
  local head = tonumber(config.head_dim) or tonumber(config.hidden_size) and tonumber(config.num_attention_heads)
    and config.hidden_size / config.num_attention_heads
  if rotated ~= nil then options.arg(("%s: '%s'"):format(who, path), "rope.dimension_count", rotated, "count") end
  local values = value "attention.value_length"
  if values and head and values ~= head then
    fail("%s: '%s' has attention.value_length = %s; only the length of keys, %s, is supported", who, path,
      tostring(values), tostring(head))
  elseif rotated and head and rotated ~= head and of.changes.attn_q then
    fail("%s: '%s' applies RoPE to %s of the %s entries of a head; only all entries are supported", who, path,
      tostring(rotated), tostring(head))
  end
  if rotated and head then config.partial_rotary_factor = rotated / head end
  local function divisors(name)
    local t = rest[name .. ".weight"]
    rest[name .. ".weight"] = nil
    return t and t:tolist()
  end
  if kind and kind ~= "none" then config.rope_scaling = {rope_type = kind, factor = value "rope.scaling.factor"} end
  if old and old ~= 1 then config.rope_scaling = {rope_type = "linear", factor = old} end
  local factors, short, long = divisors "rope_freqs", divisors "rope_factors_short", divisors "rope_factors_long"
  if factors then config.rope_scaling = {rope_type = "factors", factors = factors} end
  if short and long then config.rope_scaling = {rope_type = "longrope", short_factor = short, long_factor = long} end
end

-- Returns an architecture with the structure of LLaMA. names, changes: in addition to its names, and of weights;
-- resolve(config), later `implied`: sets options that metadata lacks.
local function decoder(model_type, names, changes, resolve)
  local of = {
    model_type = model_type, layers = "model.layers.", changes = changes or {}, implied = resolve,
    sizes = {
      context_length = "max_position_embeddings", embedding_length = "hidden_size", block_count = "num_hidden_layers",
      feed_forward_length = "intermediate_size", ["attention.head_count"] = "num_attention_heads",
      ["attention.head_count_kv"] = "num_key_value_heads", ["attention.key_length"] = "head_dim",
      ["attention.layer_norm_rms_epsilon"] = "rms_norm_eps", ["rope.freq_base"] = "rope_theta",
      ["rope.freq_base_swa"] = "rope_local_base_freq", ["attention.sliding_window"] = "sliding_window",
      ["rope.scaling.original_context_length"] = "original_max_position_embeddings",
      attn_logit_softcapping = "attn_logit_softcapping", final_logit_softcapping = "final_logit_softcapping",
      expert_count = "num_experts", expert_used_count = "num_experts_per_tok",
      expert_feed_forward_length = "moe_intermediate_size",
    },
    names = {
      token_embd = "model.embed_tokens", output_norm = "model.norm", output = "lm_head", attn_norm = "input_layernorm",
      attn_q = "self_attn.q_proj", attn_k = "self_attn.k_proj", attn_v = "self_attn.v_proj",
      attn_q_norm = "self_attn.q_norm", attn_k_norm = "self_attn.k_norm", attn_qkv = "self_attn.qkv_proj",
      attn_output = "self_attn.o_proj", ffn_norm = "post_attention_layernorm", ffn_gate = "mlp.gate_proj",
      ffn_up = "mlp.up_proj", ffn_down = "mlp.down_proj", ffn_gate_inp = "mlp.gate",
      ffn_gate_exps = "mlp.experts.gate_proj", ffn_up_exps = "mlp.experts.up_proj",
      ffn_down_exps = "mlp.experts.down_proj",
    },
  }
  for name, own in pairs(names or {}) do of.names[name] = own end
  function of.resolve(who, path, config, value, rest)
    if config.sliding_window == 0 then config.sliding_window = false end -- Phi 4
    if config.num_experts == 0 then config.num_experts = nil end
    config.attention_bias, config.mlp_bias = rest["blk.0.attn_output.bias"] ~= nil, rest["blk.0.ffn_down.bias"] ~= nil
    resolve_positions(who, path, config, value, rest, of)
    if resolve then resolve(config) end
  end
  return of
end

local rotates_pairs = {attn_q = pairs_of_queries, attn_k = pairs_of_keys}
local gemma_norms = {}
for name in ("attn ffn output post_attention post_ffw attn_q attn_k"):gmatch "%S+" do
  gemma_norms[name .. "_norm"] = less_1
end
local before_mlp = {
  ffn_norm = "pre_feedforward_layernorm", post_attention_norm = "post_attention_layernorm",
  post_ffw_norm = "post_feedforward_layernorm",
}

-- Returns a function that sets the divisor of Gemma's scores, which depends on the model's size and is not in files.
-- layers: the number in the model of 27 B parameters.
local function gemma_scale(layers)
  return function(config)
    local head = config.num_hidden_layers == layers and tonumber(config.hidden_size)
      and tonumber(config.num_attention_heads) and config.hidden_size / config.num_attention_heads
    config.query_pre_attn_scalar = head or config.head_dim
  end
end

architectures.llama = decoder("llama", nil, rotates_pairs)
architectures.smollm3 = decoder("smollm3", nil, rotates_pairs)
architectures.qwen2, architectures.qwen3 = decoder "qwen2", decoder "qwen3"
architectures.qwen3moe = decoder("qwen3_moe", nil, nil, function(config) config.norm_topk_prob = true end)
architectures.olmoe = decoder "olmoe"
architectures.phi3 = decoder("phi3", {ffn_up = "mlp.gate_up_proj"})
architectures.gemma = decoder("gemma", nil, gemma_norms)
architectures.gemma2 = decoder("gemma2", before_mlp, gemma_norms, gemma_scale(46))
architectures.gemma3 = decoder("gemma3", before_mlp, gemma_norms, gemma_scale(62))

local function transposed(t, _, back)
  if not core.is_tensor(t) then return {kind = t.kind, blocks = t.blocks, transposed = not back} end
  return t.ndim == 2 and t:t() or t
end

architectures.gpt2 = {
  model_type = "gpt2", sizes = {
    context_length = "n_positions", embedding_length = "n_embd", block_count = "n_layer",
    feed_forward_length = "n_inner", ["attention.head_count"] = "n_head",
    ["attention.layer_norm_epsilon"] = "layer_norm_epsilon",
  },
  layers = "transformer.h.",
  names = {
    token_embd = "transformer.wte", position_embd = "transformer.wpe", output_norm = "transformer.ln_f",
    output = "lm_head", attn_norm = "ln_1", attn_qkv = "attn.c_attn", attn_output = "attn.c_proj", ffn_norm = "ln_2",
    ffn_up = "mlp.c_fc", ffn_down = "mlp.c_proj",
  },
  changes = {attn_qkv = transposed, attn_output = transposed, ffn_up = transposed, ffn_down = transposed},
}

--- Returns true if weights are the path of a GGUF file, or what lm.load returns for one.
function gguf.is(weights)
  if options.is_plain(weights) then
    return options.is_plain(weights.metadata) and options.is_plain(weights.tensors)
      and type(weights.metadata["general.architecture"]) == "string"
  end
  return type(weights) == "string" and load_module("luminary.file_formats.gguf").is(weights)
end

-- Returns the weights under Hugging Face's names and in its layout, by the architecture `of`; other names stay. Weights
-- of all experts are divided.
local function renamed(tensors, of, config)
  local out = {}
  for name, t in pairs(tensors) do
    local layer, kind, what = name:match "^blk%.(%d+)%.([%w_]+)%.(%w+)$"
    if not layer then kind, what = name:match "^([%w_]+)%.(%w+)$" end
    local own, change = of.names[kind], of.changes[kind]
    if own then name = (layer and of.layers .. layer .. "." or "") .. own .. "." .. what end
    local list, last = name:match "^(.*%.experts)(%..*)$"
    local all = list and (core.is_tensor(t) and t or t.blocks)
    if list and all.ndim == 3 then
      for i, each in ipairs(all:unbind(1)) do
        out[("%s.%d%s"):format(list, i - 1, last)] = all == t and each or {kind = t.kind, blocks = each}
      end
    else
      out[name] = change and change(t, config) or t
    end
  end
  return out
end

-- Returns true if two weights are equal: tensors, or blocks of a kind.
local function are_equal(a, b)
  if not core.is_tensor(a) then return not core.is_tensor(b) and a.kind == b.kind and a.blocks:equal(b.blocks) end
  return core.is_tensor(b) and a.dtype == b.dtype and a:equal(b)
end

--- Returns two values for what lm.load returns for a GGUF file: the values of a config.json, with the architecture as
--- model_type, and the weights by Hugging Face's names, or nil for an unknown architecture. path: the file's, for
--- errors.
function gguf.read(who, path, file)
  local metadata, rest = file.metadata, {}
  local name_of_all = metadata["general.architecture"]
  local of = architectures[name_of_all]
  if not of then return {model_type = name_of_all}, nil end
  local config = {model_type = of.model_type}
  local function value(key) return metadata[name_of_all .. "." .. key] end
  for key, name in pairs(of.sizes) do config[name] = value(key) end
  for name, t in pairs(file.tensors) do rest[name] = t end
  local embedding, output = rest["token_embd.weight"], rest["output.weight"]
  if embedding then config.vocab_size = (core.is_tensor(embedding) and embedding or embedding.blocks).shape[1] end
  config.tie_word_embeddings = output == nil or embedding ~= nil and are_equal(output, embedding)
  if config.tie_word_embeddings then rest["output.weight"] = nil end
  local ends = {}
  for _, key in ipairs {"eos", "eot"} do ends[#ends + 1] = metadata[("tokenizer.ggml.%s_token_id"):format(key)] end
  if #ends > 0 then config.eos_token_id = ends end
  if of.resolve then of.resolve(who, path, config, value, rest) end
  return config, renamed(rest, of, config)
end

return gguf

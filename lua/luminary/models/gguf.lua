--- Converts a GGUF file's metadata and names of weights to those of a Hugging Face folder.
local core = require "luminary.core"
local load_module = require "luminary.base.load_module"
local options = require "luminary.base.options"

local fail = options.fail
local gguf = {}

-- Returns the weight of q or k with the rows of each head in two halves. llama.cpp rotates pairs of neighbors, for
-- which its converter interleaves the halves. Another shape is left to load_state_dict's error.
local function halves(t, heads)
  if not core.is_tensor(t) then return {kind = t.kind, blocks = halves(t.blocks, heads)} end
  if t.ndim ~= 2 or type(heads) ~= "number" or heads < 1 or t.shape[1] % (2 * heads) ~= 0 then return t end
  local rows, columns = unpack(t.shape)
  return t:reshape {heads, rows / heads / 2, 2, columns}:transpose(2, 3):reshape {rows, columns}
end

local architectures = {}

architectures.llama = {
  sizes = {
    context_length = "max_position_embeddings", embedding_length = "hidden_size", block_count = "num_hidden_layers",
    feed_forward_length = "intermediate_size", ["attention.head_count"] = "num_attention_heads",
    ["attention.head_count_kv"] = "num_key_value_heads", ["attention.key_length"] = "head_dim",
    ["attention.layer_norm_rms_epsilon"] = "rms_norm_eps", ["rope.freq_base"] = "rope_theta",
  },
  layer = "model.layers.%s.%s.%s",
  names = {
    token_embd = "model.embed_tokens", output_norm = "model.norm", output = "lm_head", attn_norm = "input_layernorm",
    attn_q = "self_attn.q_proj", attn_k = "self_attn.k_proj", attn_v = "self_attn.v_proj",
    attn_output = "self_attn.o_proj", ffn_norm = "post_attention_layernorm", ffn_gate = "mlp.gate_proj",
    ffn_up = "mlp.up_proj", ffn_down = "mlp.down_proj",
  },
  changes = {
    attn_q = function(t, config) return halves(t, config.num_attention_heads) end,
    attn_k = function(t, config) return halves(t, config.num_key_value_heads or config.num_attention_heads) end,
  },
  resolve = function(who, path, config, value, rest)
    local rotated, factors = value "rope.dimension_count", rest["rope_freqs.weight"]
    local head = config.head_dim or tonumber(config.hidden_size) and tonumber(config.num_attention_heads)
      and config.hidden_size / config.num_attention_heads
    if rotated and head and rotated ~= head then
      fail("%s: '%s' applies RoPE to %s of the %s entries of a head; only all entries are supported", who, path,
        tostring(rotated), tostring(head))
    end
    local kind, old = value "rope.scaling.type", value "rope.scale_linear"
    if kind and kind ~= "none" then config.rope_scaling = {rope_type = kind, factor = value "rope.scaling.factor"} end
    if old and old ~= 1 then config.rope_scaling = {rope_type = "linear", factor = old} end
    if factors then
      config.rope_scaling, rest["rope_freqs.weight"] = {rope_type = "factors", factors = factors:tolist()}, nil
    end
  end,
}

local function transposed(t)
  if not core.is_tensor(t) then return {kind = t.kind, blocks = t.blocks, transposed = true} end
  return t.ndim == 2 and t:t() or t
end

architectures.gpt2 = {
  sizes = {
    context_length = "n_positions", embedding_length = "n_embd", block_count = "n_layer",
    feed_forward_length = "n_inner", ["attention.head_count"] = "n_head",
    ["attention.layer_norm_epsilon"] = "layer_norm_epsilon",
  },
  layer = "transformer.h.%s.%s.%s",
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

-- Returns the weights under Hugging Face's names and in its layout, by the architecture `of`; other names stay.
local function renamed(tensors, of, config)
  local out = {}
  for name, t in pairs(tensors) do
    local layer, kind, what = name:match "^blk%.(%d+)%.([%w_]+)%.(%w+)$"
    if not layer then kind, what = name:match "^([%w_]+)%.(%w+)$" end
    local own, change = of.names[kind], of.changes[kind]
    if own then name = layer and of.layer:format(layer, own, what) or own .. "." .. what end
    out[name] = change and change(t, config) or t
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
  local config = {model_type = metadata["general.architecture"]}
  local of = architectures[config.model_type]
  if not of then return config, nil end
  local function value(key) return metadata[config.model_type .. "." .. key] end
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

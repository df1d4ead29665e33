-- Configurations as their makers publish them: each makes a network with the published number of parameters.
local lm = require "luminary"
local temp = require "spec.support.temp"

local divisors = {}
for i = 1, 48 do divisors[i] = 1 + i / 10 end
divisors = "[" .. table.concat(divisors, ", ") .. "]"

-- Number of parameters, longest sequence, fields of config.json. DIVISORS: a list of 48 numbers.
local published = {
  ["SmolLM2-135M"] = {134515008, 8192, [=[
    "model_type": "llama", "hidden_size": 576, "intermediate_size": 1536, "num_attention_heads": 9,
    "num_key_value_heads": 3, "num_hidden_layers": 30, "vocab_size": 49152, "tie_word_embeddings": true,
    "rope_theta": 100000, "max_position_embeddings": 8192, "rope_scaling": null]=]},
  ["Llama-3.2-1B"] = {1235814400, 131072, [=[
    "model_type": "llama", "hidden_size": 2048, "intermediate_size": 8192, "num_attention_heads": 32,
    "num_key_value_heads": 8, "head_dim": 64, "num_hidden_layers": 16, "vocab_size": 128256, "tie_word_embeddings":
    true, "rope_theta": 500000.0, "max_position_embeddings": 131072, "pretraining_tp": 1, "mlp_bias": false,
    "rope_scaling": {"factor": 32.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0,
    "original_max_position_embeddings": 8192, "rope_type": "llama3"}]=]},
  ["Mistral-7B-v0.1"] = {7241732096, 32768, [=[
    "model_type": "mistral", "hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32,
    "num_key_value_heads": 8, "num_hidden_layers": 32, "vocab_size": 32000, "sliding_window": 4096,
    "max_position_embeddings": 32768, "rope_theta": 10000.0, "rms_norm_eps": 1e-05]=]},
  ["Qwen2.5-0.5B"] = {494032768, 32768, [=[
    "model_type": "qwen2", "hidden_size": 896, "intermediate_size": 4864, "num_attention_heads": 14,
    "num_key_value_heads": 2, "num_hidden_layers": 24, "vocab_size": 151936, "tie_word_embeddings": true,
    "use_sliding_window": false, "sliding_window": 32768, "max_window_layers": 24, "rope_theta": 1000000.0,
    "max_position_embeddings": 32768, "use_mrope": false]=]},
  ["Qwen3-0.6B"] = {596049920, 40960, [=[
    "model_type": "qwen3", "hidden_size": 1024, "intermediate_size": 3072, "num_attention_heads": 16,
    "num_key_value_heads": 8, "head_dim": 128, "num_hidden_layers": 28, "vocab_size": 151936, "tie_word_embeddings":
    true, "use_sliding_window": false, "sliding_window": null, "max_window_layers": 28, "rope_theta": 1000000,
    "max_position_embeddings": 40960, "rope_scaling": null, "attention_bias": false]=]},
  ["Qwen3-30B-A3B"] = {30532122624, 40960, [=[
    "model_type": "qwen3_moe", "decoder_sparse_step": 1, "head_dim": 128, "hidden_size": 2048, "intermediate_size":
    6144, "max_position_embeddings": 40960, "max_window_layers": 48, "mlp_only_layers": [], "moe_intermediate_size":
    768, "norm_topk_prob": true, "num_attention_heads": 32, "num_experts": 128, "num_experts_per_tok": 8,
    "num_hidden_layers": 48, "num_key_value_heads": 4, "rope_scaling": null, "rope_theta": 1000000.0,
    "sliding_window": null, "tie_word_embeddings": false, "use_sliding_window": false, "vocab_size": 151936]=]},
  ["OLMoE-1B-7B-0924"] = {6919161856, 4096, [=[
    "model_type": "olmoe", "clip_qkv": null, "hidden_size": 2048, "intermediate_size": 1024,
    "max_position_embeddings": 4096, "norm_topk_prob": false, "num_attention_heads": 16, "num_experts": 64,
    "num_experts_per_tok": 8, "num_hidden_layers": 16, "num_key_value_heads": 16, "rope_scaling": null,
    "rope_theta": 10000.0, "tie_word_embeddings": false, "vocab_size": 50304]=]},
  ["gemma-2b"] = {2506172416, 8192, [=[
    "model_type": "gemma", "head_dim": 256, "hidden_act": "gelu", "hidden_size": 2048, "intermediate_size": 16384,
    "max_position_embeddings": 8192, "num_attention_heads": 8, "num_hidden_layers": 18, "num_key_value_heads": 1,
    "rope_scaling": null, "vocab_size": 256000]=]},
  ["gemma-2-2b"] = {2614341888, 8192, [=[
    "model_type": "gemma2", "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0, "head_dim": 256,
    "hidden_act": "gelu_pytorch_tanh", "hidden_activation": "gelu_pytorch_tanh", "hidden_size": 2304,
    "intermediate_size": 9216, "max_position_embeddings": 8192, "num_attention_heads": 8, "num_hidden_layers": 26,
    "num_key_value_heads": 4, "query_pre_attn_scalar": 256, "rope_theta": 10000.0, "sliding_window": 4096,
    "vocab_size": 256000, "cache_implementation": "hybrid"]=]},
  ["gemma-3-1b"] = {999885952, 32768, [=[
    "model_type": "gemma3_text", "attn_logit_softcapping": null, "final_logit_softcapping": null, "head_dim": 256,
    "hidden_activation": "gelu_pytorch_tanh", "hidden_size": 1152, "intermediate_size": 6912,
    "max_position_embeddings": 32768, "num_attention_heads": 4, "num_hidden_layers": 26, "num_key_value_heads": 1,
    "query_pre_attn_scalar": 256, "rope_local_base_freq": 10000, "rope_scaling": null, "rope_theta": 1000000,
    "sliding_window": 512, "sliding_window_pattern": 6, "vocab_size": 262144]=]},
  ["gemma-3-4b"] = {3880263168, 131072, [=[
    "model_type": "gemma3", "text_config": {"hidden_size": 2560, "intermediate_size": 10240, "model_type":
    "gemma3_text", "num_hidden_layers": 34, "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
    "sliding_window": 1024}, "vision_config": {"hidden_size": 1152}, "eos_token_id": [1, 106]]=]},
  ["Phi-3-mini-128k"] = {3821079552, 131072, [=[
    "model_type": "phi3", "hidden_size": 3072, "intermediate_size": 8192, "max_position_embeddings": 131072,
    "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 32,
    "original_max_position_embeddings": 4096, "rope_scaling": {"long_factor": DIVISORS, "short_factor": DIVISORS,
    "type": "longrope"}, "rope_theta": 10000.0, "sliding_window": 262144, "tie_word_embeddings": false,
    "vocab_size": 32064]=]},
  ["phi-4"] = {14659507200, 16384, [=[
    "model_type": "phi3", "hidden_size": 5120, "intermediate_size": 17920, "max_position_embeddings": 16384,
    "num_attention_heads": 40, "num_hidden_layers": 40, "num_key_value_heads": 10,
    "original_max_position_embeddings": 16384, "rope_scaling": null, "rope_theta": 250000, "sliding_window": null,
    "tie_word_embeddings": false, "vocab_size": 100352]=]},
  ["Phi-4-mini"] = {3836021760, 131072, [=[
    "model_type": "phi3", "hidden_size": 3072, "intermediate_size": 8192, "max_position_embeddings": 131072,
    "num_attention_heads": 24, "num_hidden_layers": 32, "num_key_value_heads": 8,
    "original_max_position_embeddings": 4096, "partial_rotary_factor": 0.75, "rope_scaling": {"long_factor":
    DIVISORS, "short_factor": DIVISORS, "type": "longrope"}, "rope_theta": 10000.0, "sliding_window": 262144,
    "tie_word_embeddings": true, "vocab_size": 200064]=]},
  ["SmolLM3-3B"] = {3075098624, 65536, [=[
    "model_type": "smollm3", "hidden_size": 2048, "intermediate_size": 11008, "max_position_embeddings": 65536,
    "max_window_layers": 28, "mlp_bias": false, "no_rope_layer_interval": 4, "num_attention_heads": 16,
    "num_hidden_layers": 36, "num_key_value_heads": 4, "pretraining_tp": 2, "rope_scaling": null, "rope_theta":
    5000000.0, "sliding_window": null, "use_sliding_window": false, "vocab_size": 128256]=]},
}

describe("the published configuration of", function()
  local folder = temp.during(setup, teardown)

  for name, row in pairs(published) do
    it(name .. " has the published number of parameters", function()
      temp.write(folder .. "/config.json", "{" .. row[3]:gsub("DIVISORS", divisors) .. "}")
      lm.save(folder .. "/model.safetensors", {x = lm.zeros(1)})
      local net = lm.nn.utils.init_empty_weights(lm.models.llama, {weights = folder, strict = false})
      local n = 0
      for _, p in ipairs(net:parameters()) do n = n + p:numel() end
      assert.equal(row[1], n)
      assert.equal(row[2], net.config.max_positions)
    end)
  end
end)

-- Writes small models of every family and kind of blocks as GGUF files into a folder, for check_gguf.py, and prints
-- what they compute: a line of JSON for each.
local lm = require "luminary"
local json = require "luminary.base.json_encode"
local kinds = require("luminary.block_kinds").names
lm.manual_seed(3)

local base = {vocab_size = 96, hidden_size = 64, intermediate_size = 96, num_hidden_layers = 4, num_attention_heads = 4,
  num_key_value_heads = 2, max_position_embeddings = 512}
local gemma = {head_dim = 16, query_pre_attn_scalar = 16, sliding_window = 8, num_hidden_layers = 7}
local experts = {num_experts = 6, num_experts_per_tok = 2, num_key_value_heads = 4, moe_intermediate_size = 32,
  norm_topk_prob = true, head_dim = 16}
local function eight(f)
  local list = {}
  for i = 1, 8 do list[i] = f(i) end
  return list
end
local function scaled(name, kind, original, more)
  local how = {rope_type = kind, factor = 4, original_max_position_embeddings = original}
  for key, value in pairs(more or {}) do how[key] = value end
  return {name, {rope_scaling = how, original_max_position_embeddings = original}}
end
local rows = {
  {"llama"}, {"llama", {attention_bias = true, mlp_bias = true, num_key_value_heads = 4}}, {"mistral"}, {"qwen2"},
  {"qwen3", {head_dim = 24, tie_word_embeddings = true}}, {"smollm3"}, {"phi3"},
  {"phi3", {partial_rotary_factor = 0.5}},
  {"gemma", {head_dim = 16}}, {"gemma2", gemma}, {"gemma3", gemma}, {"qwen3_moe", experts},
  {"olmoe", {num_experts = 6, num_experts_per_tok = 2, num_key_value_heads = 4}},
  scaled("qwen2", "yarn", 128), scaled("qwen3", "linear"),
  scaled("llama", "llama3", 32, {low_freq_factor = 1, high_freq_factor = 2}),
  scaled("phi3", "longrope", 256, {factor = 2, short_factor = eight(function(i) return 1 + i / 8 end),
    long_factor = eight(function(i) return 2 + i end)}),
  {"gpt2", {vocab_size = 96, n_positions = 512, n_embd = 64, n_layer = 2, n_head = 4}},
}
for _, kind in ipairs {"q4_k_m", "q5_k_m", "bfloat16", "float16", unpack(kinds)} do
  rows[#rows + 1] = {"llama", {hidden_size = 256, intermediate_size = 512}, kind}
end

local function from_0(list)
  for i, id in ipairs(list) do list[i] = id - 1 end
  return list
end

for i, row in ipairs(rows) do
  local options = {}
  for _, from in ipairs {row[1] == "gpt2" and {} or base, row[2] or {}} do
    for key, value in pairs(from) do options[key] = value end
  end
  local net = lm.models[row[1]](options):eval()
  lm.no_grad(function()
    for _, p in ipairs(net:parameters()) do p:add_(lm.randn_like(p) * 0.05) end
  end)
  local path = ("%s/%02d_%s_%s.gguf"):format(arg[1], i, row[1], row[3] or "float32")
  lm.save(path, net, {kind = row[3]})
  net = lm.models[row[1] == "gpt2" and "gpt2" or "llama"] {weights = path}
  local ids = lm.randint(1, 97, {1, 12})
  local tokens = net:generate(ids, {max_new_tokens = 30})
  local y = lm.no_grad(function() return net(ids)[1] end)
  print(json {path = path, ids = from_0(ids[1]:tolist()), y = y:tolist(), tokens = from_0(tokens[1]:tolist())})
end

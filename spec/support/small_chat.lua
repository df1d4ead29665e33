--- A small model that talks, with random weights and a token for each byte: a folder and a GGUF file of it.
local gguf = require "spec.support.gguf"
local json_encode = require "luminary.base.json_encode"
local lm = require "luminary"
local temp = require "spec.support.temp"

local small = {}

small.TEMPLATE = "{% for m in messages %}<|im_start|>{{ m.role }} {{ m.content }}<|im_end|>{% endfor %}"
  .. "{% if add_generation_prompt %}<|im_start|>{% endif %}"

local names = {
  ["model.embed_tokens"] = "token_embd", ["model.norm"] = "output_norm", lm_head = "output",
  input_layernorm = "attn_norm", ["self_attn.q_proj"] = "attn_q", ["self_attn.k_proj"] = "attn_k",
  ["self_attn.v_proj"] = "attn_v", ["self_attn.o_proj"] = "attn_output", post_attention_layernorm = "ffn_norm",
  ["mlp.gate_proj"] = "ffn_gate", ["mlp.up_proj"] = "ffn_up", ["mlp.down_proj"] = "ffn_down",
}

--- Returns the net.
function small.net(positions)
  lm.manual_seed(2)
  return lm.models.llama({vocab_size = 260, hidden_size = 16, intermediate_size = 24, num_hidden_layers = 1,
    num_attention_heads = 2, max_position_embeddings = positions or 128}):eval()
end

-- Returns the tensors of a net by the names that a GGUF file has; the rows of heads of q and k are interleaved there.
local function gguf_tensors(net)
  local tensors = {}
  for name, t in pairs(net:state_dict()) do
    local layer, of = name:match "^model%.layers%.(%d+)%.(.*)%.weight$"
    local key = (layer and "blk." .. layer .. "." or "") .. names[of or name:match "^(.*)%.weight$"] .. ".weight"
    if key:find "attn_[qk]%." then t = t:reshape({2, 2, -1, t.shape[2]}):transpose(2, 3):reshape(t.shape) end
    tensors[key] = t
  end
  return tensors
end

--- Writes a folder of Hugging Face's, which is there, and a GGUF file beside it, folder .. ".gguf", of the net.
function small.write(folder, positions)
  local net, vocab, tokens, added = small.net(positions), {}, {}, {}
  for byte, letter in pairs(require("luminary.text.model_files").letters) do
    vocab[letter], tokens[byte:byte() + 1] = byte:byte(), letter
  end
  for i, token in ipairs {"<|im_start|>", "<|im_end|>"} do
    vocab[token], tokens[256 + i], added[i] = 255 + i, token, {id = 255 + i, content = token, special = true}
  end
  vocab["zz"], tokens[259] = 258, "zz"
  temp.write(folder .. "/tokenizer.json", json_encode {
    model = {type = "BPE", vocab = vocab, merges = {"z z"}}, decoder = {type = "ByteLevel"}, added_tokens = added,
    pre_tokenizer = {type = "ByteLevel", add_prefix_space = false},
  })
  temp.write(folder .. "/tokenizer_config.json", json_encode {chat_template = small.TEMPLATE})
  lm.save(folder .. "/model.safetensors", net:state_dict())
  temp.write(folder .. "/config.json", json_encode {
    model_type = "llama", vocab_size = 260, hidden_size = 16, intermediate_size = 24, num_hidden_layers = 1,
    num_attention_heads = 2, max_position_embeddings = positions or 128, eos_token_id = 257,
  })
  local kinds = {}
  for i = 1, 260 do
    tokens[i] = tokens[i] or ("<unused%d>"):format(i)
    kinds[i] = tokens[i]:find "^<." and 3 or 1
  end
  temp.write(folder .. ".gguf", gguf({
    ["general.architecture"] = "llama", ["llama.context_length"] = positions or 128, ["llama.embedding_length"] = 16,
    ["llama.block_count"] = 1, ["llama.feed_forward_length"] = 24, ["llama.attention.head_count"] = 2,
    ["llama.attention.layer_norm_rms_epsilon"] = 1e-6, ["llama.rope.freq_base"] = 10000,
    ["tokenizer.ggml.model"] = "gpt2", ["tokenizer.ggml.pre"] = "gpt-2", ["tokenizer.ggml.tokens"] = tokens,
    ["tokenizer.ggml.token_type"] = kinds, ["tokenizer.ggml.merges"] = {"z z"},
    ["tokenizer.ggml.eos_token_id"] = 257, ["tokenizer.chat_template"] = small.TEMPLATE,
  }, {["llama.attention.layer_norm_rms_epsilon"] = true}, gguf_tensors(net)))
  return net
end

return small

--- Writes a folder of a language model as Hugging Face has them: random weights, bytes as tokens, a chat template.
local json_encode = require "luminary.base.json_encode"
local lm = require "luminary"

local TEMPLATE = "{% if tools %}<|im_start|>tools {{ tools | tojson }}<|im_end|>{% endif %}{% for m in messages %}"
  .. "<|im_start|>{{ m.role }} {{ m.content }}<|im_end|>{% endfor %}"
  .. "{% if add_generation_prompt %}<|im_start|>{% endif %}"

--- Writes a model into an empty folder, and returns it. config: fields of config.json.
return function(folder, config)
  local vocab, added = {}, {}
  for byte, letter in pairs(require("luminary.text.model_files").letters) do vocab[letter] = byte:byte() end
  for i, token in ipairs {"<|im_start|>", "<|im_end|>"} do
    vocab[token] = 255 + i
    added[i] = {id = 255 + i, content = token, special = true}
  end
  lm.paths.write(folder .. "/tokenizer.json", (json_encode {
    model = {type = "BPE", vocab = vocab, merges = {}}, decoder = {type = "ByteLevel"}, added_tokens = added,
    pre_tokenizer = {type = "ByteLevel", add_prefix_space = false},
  }:gsub('"merges":{}', '"merges":[]')))
  lm.paths.write(folder .. "/tokenizer_config.json", json_encode {chat_template = TEMPLATE})
  local sizes = {vocab_size = 258, hidden_size = 32, intermediate_size = 48, num_hidden_layers = 2,
    num_attention_heads = 4, max_position_embeddings = 512}
  for name, v in pairs(config or {}) do sizes[name] = v end
  lm.manual_seed(2)
  local net = lm.models.llama(sizes):eval()
  lm.no_grad(function()
    for _, p in ipairs(net:parameters()) do if p.ndim == 2 then p:mul_(8) end end
    net.lm_head.weight:select(1, 258):zero_() -- answers seldom end
  end)
  lm.save(folder .. "/model.safetensors", net:state_dict())
  sizes.model_type, sizes.architectures, sizes.eos_token_id = "llama", {"LlamaForCausalLM"}, 257
  lm.paths.write(folder .. "/config.json", json_encode(sizes))
  return folder
end

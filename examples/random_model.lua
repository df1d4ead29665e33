-- A folder of a small language model with random weights, as Hugging Face has models: for trying programs without a
-- download. Its tokens are bytes, its chat template is ChatML, and what it writes is noise.
--
--   luajit examples/random_model.lua model
--   luminary serve model
local lm = require "luminary"
local json_encode = require "luminary.base.json_encode"

local TEMPLATE = "{% if tools %}<|im_start|>tools\n{{ tools | tojson }}<|im_end|>\n{% endif %}{% for m in messages %}"
  .. "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
  .. "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"

-- Returns the letter of each byte in byte-level vocabularies: its own character if it prints, else one from U+0100 on.
local function letters()
  local list, next_code = {}, 256
  for byte = 0, 255 do
    local code = byte
    if byte <= 32 or byte >= 127 and byte <= 160 or byte == 173 then code, next_code = next_code, next_code + 1 end
    list[byte] = code < 128 and string.char(code) or string.char(192 + math.floor(code / 64), 128 + code % 64)
  end
  return list
end

--- Writes the model into a new or empty folder. config: fields of config.json.
local function make(folder, config)
  local vocab, added = {}, {}
  for byte, letter in pairs(letters()) do vocab[letter] = byte end
  for i, token in ipairs {"<|im_start|>", "<|im_end|>"} do
    vocab[token] = 255 + i
    added[i] = {id = 255 + i, content = token, special = true, single_word = false, lstrip = false, rstrip = false,
      normalized = false}
  end
  lm.paths.mkdir(folder)
  lm.paths.write(folder .. "/tokenizer.json", (json_encode {
    version = "1.0", added_tokens = added, model = {type = "BPE", vocab = vocab, merges = {}},
    pre_tokenizer = {type = "ByteLevel", add_prefix_space = false, trim_offsets = true, use_regex = true},
    decoder = {type = "ByteLevel", add_prefix_space = true, trim_offsets = true, use_regex = true},
  }:gsub('"merges":{}', '"merges":[]')))
  lm.paths.write(folder .. "/tokenizer_config.json", json_encode {chat_template = TEMPLATE, eos_token = "<|im_end|>"})
  local sizes = {
    vocab_size = 258, hidden_size = 256, intermediate_size = 512, num_hidden_layers = 4, num_attention_heads = 4,
    num_key_value_heads = 2, max_position_embeddings = 2048,
  }
  for name, v in pairs(config or {}) do sizes[name] = v end
  lm.manual_seed(2)
  local net = lm.models.llama(sizes)
  lm.no_grad(function()
    for _, p in ipairs(net:parameters()) do
      if p.ndim == 2 then p:mul_(8) end -- so that tokens differ
    end
    net.lm_head.weight:select(1, 258):zero_() -- answers seldom end
  end)
  lm.save(folder .. "/model.safetensors", net:state_dict())
  sizes.model_type, sizes.architectures, sizes.eos_token_id = "llama", {"LlamaForCausalLM"}, 257
  lm.paths.write(folder .. "/config.json", json_encode(sizes))
  return folder
end

if arg and arg[0] and arg[0]:find "random_model%.lua$" then
  if not arg[1] then
    io.stderr:write "usage: luajit random_model.lua FOLDER\n"
    os.exit(2)
  end
  print("a model with random weights in " .. make(arg[1]))
end

return make

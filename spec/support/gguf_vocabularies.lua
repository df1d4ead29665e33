--- Metadata of GGUF files of tokenizers, made of the tokenizer.json files in spec/golden/tokenizers.json.
local core = require "luminary.core"
local temp = require "spec.support.temp"

local golden = core.json_decode(temp.read "spec/golden/tokenizers.json", false)
local NORMAL, UNKNOWN, CONTROL = 1, 2, 3

--- Returns what llama.cpp's converter writes of golden[name]; a score is the index of the pair that makes a token.
return function(name, pre)
  local file = core.json_decode(golden[name].file, false)
  local tokens, kinds, scores, merges = {}, {}, {}, {}
  local function put(token, id, kind) tokens[id + 1], kinds[id + 1], scores[id + 1] = token, kind, 0 end
  for token, id in pairs(file.model.vocab) do put(token, id, NORMAL) end
  for _, token in ipairs(file.added_tokens) do
    put(token.content, token.id, token.content == "<unk>" and UNKNOWN or CONTROL)
  end
  for i, pair in ipairs(file.model.merges) do
    if type(pair) == "string" then pair = {pair:match "^(%S+) (%S+)$"} end
    merges[i], scores[file.model.vocab[pair[1] .. pair[2]] + 1] = pair[1] .. " " .. pair[2], -i
  end
  local ids, is_llama = {}, pre == nil
  for i, token in ipairs(tokens) do ids[token] = i - 1 end
  return {
    ["general.architecture"] = "llama", ["tokenizer.ggml.model"] = is_llama and "llama" or "gpt2",
    ["tokenizer.ggml.pre"] = pre, ["tokenizer.ggml.tokens"] = tokens, ["tokenizer.ggml.token_type"] = kinds,
    ["tokenizer.ggml.merges"] = not is_llama and merges or nil,
    ["tokenizer.ggml.scores"] = is_llama and scores or nil,
    ["tokenizer.ggml.bos_token_id"] = ids["<s>"] or ids["<|begin_of_text|>"] or ids["<|endoftext|>"],
    ["tokenizer.ggml.eos_token_id"] = ids["</s>"] or ids["<|endoftext|>"],
    ["tokenizer.ggml.unknown_token_id"] = ids["<unk>"],
  }
end

-- Mutated tokenizer.json files (spec/golden/tokenizers.json has one of each kind), some with a tokenizer_config.json
-- beside them, and merges.txt, each of which then encodes and decodes arbitrary bytes; some are written and read again.
local bytes = require "scripts.dev.fuzz.bytes"
local core = require "luminary.core"
local lm = require "luminary"
local temp = require "spec.support.temp"
local damage, cut, pick, random, replace_one = bytes.damage, bytes.cut, bytes.pick, math.random, bytes.replace_one

local golden, files, samples = core.json_decode(temp.read "spec/golden/tokenizers.json", false), {}, {}
local names = {}
for name in pairs(golden) do names[#names + 1] = name end
table.sort(names)

-- Most files have a model of a few words instead of their own, so that reading them takes no time.
local models = {
  BPE = '"BPE", "unk_token": "<unk>", "continuing_subword_prefix": null, "end_of_word_suffix": null, "fuse_unk": '
    .. 'true, "byte_fallback": true, "ignore_merges": false, "vocab": {"<unk>": 0, "a": 1, "b": 2, "t": 3, "h": 4, '
    .. '"e": 5, "Ġ": 6, "▁": 7, "th": 8, "the": 9, "Ġthe": 10, "▁the": 11, "<0x61>": 12, "<0xE6>": 13, "##b": 14, '
    .. '"ab": 15}, '
    .. '"merges": [["t", "h"], ["th", "e"], ["Ġ", "the"], ["▁", "the"], ["a", "b"]]',
  WordPiece = '"WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##", "max_input_chars_per_word": '
    .. '100, "vocab": {"[PAD]": 0, "[UNK]": 1, "[CLS]": 2, "[SEP]": 3, "the": 4, "t": 5, "##h": 6, "##e": 7, "a": 8, '
    .. '".": 9}',
  Unigram = '"Unigram", "unk_id": 0, "byte_fallback": true, "vocab": [["<unk>", 0.0], ["</s>", 0.0], ["▁", -2.5], '
    .. '["▁the", -3.25], ["t", -4.0], ["th", -3.5], ["e", -3.75], ["<0x61>", 0.0], ["<0xE6>", 0.0], ["é", -5.125]]',
  WordLevel = '"WordLevel", "unk_token": "<unk>", "vocab": {"<unk>": 0, "the": 1, "a": 2, "of": 3, ".": 4}',
}
for _, name in ipairs(names) do
  local text = golden[name].file
  local head, kind = text:match '^(.*"model":{"type":)"(%a+)"'
  files[#files + 1] = text
  for _ = 1, 5 do files[#files + 1] = head .. models[kind] .. "}}" end
  for _, case in ipairs(golden[name].cases) do samples[#samples + 1] = case.text end
end

local merges = {}
for _, pair in ipairs(core.json_decode(golden.gpt2.file, false).model.merges) do
  merges[#merges + 1] = table.concat(pair, " ")
end
merges = "#version: 0.2\n" .. table.concat(merges, "\n") .. "\n"
local vocab = os.tmpname()
temp.write(vocab, require("luminary.base.json_encode")(core.json_decode(golden.gpt2.file, false).model.vocab))

local words = {
  '"NFC"', '"NFKD"', '"Lowercase"', '"StripAccents"', '"ByteLevel"', '"Metaspace"', '"Whitespace"', '"Digits"',
  '"Punctuation"', '"BertPreTokenizer"', '"WordPiece"', '"Unigram"', '"BPE"', '"WordLevel"', '"Fuse"', '"ByteFallback"',
  '"Sequence"', '"Isolated"', '"Contiguous"', '"MergedWithNext"', '"MergedWithPrevious"', '"Removed"', "true", "false",
  "null", "0", "1", "-1", "1e9", "0.5", "[]", "{}", '""', '" "', '"a"', '"▁"', '"(a+)+$"', '"\\\\s*"', '"(?=a)|b*"',
  '"[^\\\\w]+"', '"\\\\p{Han}{2,}"', '"."', '"(?<=a)"', '"\\\\K"', '"\\\\uD83D"', '"A"', '"B"', "2147483647",
  '"(?:a|aa)+$"', '"(a*)\\\\1b"', '"\\\\X{,3}"', '"(?mi:.)"', '"\\\\u00e9?"', '"(?<n>a|b\\\\g<n>)+"',
  '"lstrip"', '"rstrip"', '"padding"', '"Fixed"', '"pad_id"', "-0.5", "1e15", "70000",
  '{"content": "a", "lstrip": true, "rstrip": true}',
}
local config = [[{"bos_token": "<s>", "eos_token": {"content": "the", "lstrip": false, "special": true},
  "pad_token": "[PAD]", "unk_token": "?", "cls_token": null, "model_max_length": 512, "padding_side": "left",
  "truncation_side": "right", "extra_special_tokens": ["<x>", {"content": "and", "rstrip": true}],
  "chat_template": "{{ messages }}", "added_tokens_decoder": {"9": {"content": "[PAD]"},
  "5": {"content": " of", "special": false, "normalized": true}}}]]
local patterns = {'"[%w_ <>%[%]]+"', "true", "false", "null", "%d+", "%b[]", '"[^"]*"'}

-- Changes a word before the model, where the steps are, or anywhere.
local function change_word(text)
  local at = text:find('"model"', 1, true) or #text
  if random(3) == 1 then return replace_one(text, pick(patterns), pick(words)) end
  local head = replace_one(text:sub(1, at - 1), pick(patterns), pick(words))
  return head .. text:sub(at)
end

local function change()
  if random(30) == 1 then return pick {damage, damage, cut}(merges), "merges.txt" end
  local text = pick(files)
  for _ = 1, random(0, 2) do text = pick {change_word, change_word, change_word, change_word, damage}(text) end
  return random(30) == 1 and cut(text) or text, random(6) == 1 and "tokenizer.json" or nil
end

local function some_text()
  local kind = random(4)
  if kind == 1 then return bytes.random_bytes(random(0, 60)) end
  if kind == 2 then return damage(pick(samples)) end
  return pick(samples) .. (kind == 3 and pick(samples):rep(random(1, 20)) or "")
end

-- Calls f, whose failure must be an error in words: returns false, or its result.
local function try(f, ...)
  local ok, result = pcall(f, ...)
  if not ok and type(result) ~= "string" then error {"no message"} end
  return ok and result
end

-- Reads a tokenizer beside a changed tokenizer_config.json; an error that names that file counts as one of the case.
local function beside(path)
  local name = path:gsub("tokenizer%.json$", "tokenizer_config.json")
  local text = config
  for _ = 1, random(0, 3) do
    text = random(5) == 1 and damage(text) or replace_one(text, pick(patterns), pick(words))
  end
  temp.write(name, text)
  local ok, result = pcall(lm.text.Tokenizer, path)
  os.remove(name)
  local quoted = "'" .. name .. "'"
  if not ok then error(tostring(result):find(quoted, 1, true) and "'" .. path .. "': " .. result or result, 0) end
  return result
end

local function read(path)
  if path:find "tokenizer%.json$" then return beside(path) end
  return path:find "%.txt$" and lm.text.ByteLevelBPETokenizer(vocab, path) or lm.text.Tokenizer(path)
end

-- Expects that a saved tokenizer, read again, encodes a text the same.
local function read_again(tokenizer, path)
  local name, text = path .. ".again", some_text()
  tokenizer:save(name)
  local ok, again = pcall(lm.text.Tokenizer, name)
  os.remove(name)
  if not ok then error {"what was written is not read: " .. tostring(again)} end
  local one, two = try(tokenizer.encode, tokenizer, text), try(again.encode, again, text)
  if one and not (two and one.ids:equal(two.ids)) then error {"what was written reads otherwise"} end
end

-- Loads and uses a tokenizer. reader: reads a file of another format, whose tokenizer.json is not the same as the file.
local function load(path, _, reader)
  local tokenizer = (reader or read)(path)
  if random(20) == 1 and not reader then read_again(tokenizer, path) end
  try(function() return tokenizer.all_special_ids, tokenizer.pad_token_id, tokenizer.vocab_size end)
  try(tokenizer, {some_text(), some_text()}, {padding = random(2) == 1, truncation = random(2) == 1 or nil})
  for _ = 1, 3 do
    local e = try(tokenizer.encode, tokenizer, some_text(), random(4) == 1 and some_text() or nil)
    if e then try(tokenizer.decode, tokenizer, e.ids, {skip_special_tokens = random(2) == 1}) end
  end
  local ids = {}
  for i = 1, 20 do ids[i] = random(700) end
  try(tokenizer.decode, tokenizer, ids)
end

return {
  name = "tokenizer", share = 2, change = change, load = load,
  past = function(message) return not message:find "malformed JSON" and not message:find "line [12] " end,
}

-- Mutated tokenizer.json files (spec/golden/tokenizers.json has one of each kind) and merges.txt, each of which then
-- encodes and decodes arbitrary bytes.
local bytes = require "scripts.dev.fuzz.bytes"
local core = require "luminary.core"
local lm = require "luminary"
local temp = require "spec.support.temp"
local damage, cut, pick, random, replace_one = bytes.damage, bytes.cut, bytes.pick, math.random, bytes.replace_one

local golden, files, samples = core.json_decode(temp.read "spec/golden/tokenizers.json", false), {}, {}
local names = {}
for name in pairs(golden) do names[#names + 1] = name end
table.sort(names)
for _, name in ipairs(names) do
  files[#files + 1] = golden[name].file
  for _, case in ipairs(golden[name].cases) do samples[#samples + 1] = case.text end
end

local merges = {}
for _, pair in ipairs(core.json_decode(golden.gpt2.file, false).model.merges) do
  merges[#merges + 1] = table.concat(pair, " ")
end
merges = "#version: 0.2\n" .. table.concat(merges, "\n") .. "\n"
local vocab = os.tmpname()
temp.write(vocab, core.json_encode(core.json_decode(golden.gpt2.file, false).model.vocab))

local words = {
  '"NFC"', '"NFKD"', '"Lowercase"', '"StripAccents"', '"ByteLevel"', '"Metaspace"', '"Whitespace"', '"Digits"',
  '"Punctuation"', '"BertPreTokenizer"', '"WordPiece"', '"Unigram"', '"BPE"', '"WordLevel"', '"Fuse"', '"ByteFallback"',
  '"Sequence"', '"Isolated"', '"Contiguous"', '"MergedWithNext"', '"MergedWithPrevious"', '"Removed"', "true", "false",
  "null", "0", "1", "-1", "1e9", "0.5", "[]", "{}", '""', '" "', '"a"', '"▁"', '"(a+)+$"', '"\\\\s*"', '"(?=a)|b*"',
  '"[^\\\\w]+"', '"\\\\p{Han}{2,}"', '"."', '"(?<=a)"', '"\\\\K"', '"\\\\uD83D"', '"A"', '"B"', "2147483647",
}
local places = {'"[%w_ <>%[%]]+"', "true", "false", "null", "%d+", "%b[]", '"[^"]*"'}

-- Before the model, where the steps are, or anywhere.
local function change_word(text)
  local at = text:find('"model"', 1, true) or #text
  if random(3) == 1 then return replace_one(text, pick(places), pick(words)) end
  local head = replace_one(text:sub(1, at - 1), pick(places), pick(words))
  return head .. text:sub(at)
end

local function change()
  if random(8) == 1 then return pick {damage, damage, cut}(merges), "merges.txt" end
  local text = pick(files)
  for _ = 1, random(0, 2) do text = pick {change_word, change_word, change_word, change_word, damage}(text) end
  return random(30) == 1 and cut(text) or text
end

local function some_text()
  local kind = random(4)
  if kind == 1 then return bytes.random_bytes(random(0, 60)) end
  if kind == 2 then return damage(pick(samples)) end
  return pick(samples) .. (kind == 3 and pick(samples):rep(random(1, 20)) or "")
end

-- What fails for a text alone has to be an error in words.
local function try(f, ...)
  local ok, result = pcall(f, ...)
  if not ok and type(result) ~= "string" then error {"no message"} end
  return ok and result
end

local function load(path)
  local tokenizer = path:find "%.txt$" and lm.text.ByteLevelBPETokenizer(vocab, path) or lm.text.Tokenizer(path)
  local out = {}
  for i = 1, 3 do
    local e = try(tokenizer.encode, tokenizer, some_text(), random(4) == 1 and some_text() or nil)
    if e then
      out[i] = e.ids
      try(tokenizer.decode, tokenizer, e.ids, {skip_special_tokens = random(2) == 1})
    end
  end
  try(tokenizer.decode, tokenizer, lm.randint(1, 700, {20}))
  return out
end

return {
  name = "tokenizer", share = 2, change = change, load = load,
  past = function(message) return not message:find "no JSON" and not message:find "line [12] " end,
}

-- SentencePiece's models and tiktoken's ranks (_sentencepiece of spec/golden), whose bytes, fields and scores are
-- changed; what loads encodes and decodes as tokenizer.lua's.
local bytes = require "scripts.dev.fuzz.bytes"
local ffi = require "ffi"
local lm = require "luminary"
local tokenizer = require "scripts.dev.fuzz.tokenizer"
local pick, random, damage, replace_one = bytes.pick, math.random, bytes.damage, bytes.replace_one

local files, names = {}, {}
for name, t in pairs(require("spec.support.golden").load "_sentencepiece") do
  if name ~= "cases" then
    names[#names + 1] = name
    files[name] = ffi.string(ffi.cast("const char *", t:data_ptr()), t:numel())
  end
end
table.sort(names)

-- Changes a score. A piece is "\10", its size, "\10", the text's size, the text, "\21" and four bytes of its score, and
-- perhaps "\24" and its kind.
local function forge_score(text) return replace_one(text, "\21....", function() return "\21" .. bytes.forged(4) end) end
local function score(text)
  local values = {"\0\0\128\127", "\0\0\128\255", "\0\0\192\127", "\255\255\127\127", "\1\0\0\0", "\0\0\0\128"}
  return replace_one(text, "\21....", function() return "\21" .. pick(values) end)
end
local function kind(text) return replace_one(text, "\24.", function() return "\24" .. string.char(random(0, 7)) end) end
local function field(text) -- changes a field of the trainer or the normalizer, at the end
  local last = #text
  local at = random(math.max(1, last - 80), last)
  return bytes.replace(text, at, at, string.char(pick {0, 1, 2, 8, 10, 18, 24, 26, 127, 128, 200, 255}))
end
local function piece(text) -- repeats a piece, so that two have one text
  return replace_one(text, "\10.\10.[%w\226\150\129]+\21....", function(each) return each .. each end)
end
local function line(text)
  return replace_one(text, "[^\n]+\n", function(each)
    local same_rank = each:gsub("%d+", "7")
    return pick {each .. each, "YQ== 0\n", "YQ== 99999999999\n", "YQ== -1\n", "= 1\n", "\n", same_rank, "AA== 3\n"}
  end)
end

local function change()
  local name = pick(names)
  local text, changes = files[name], name == "tiktoken" and {line, line, damage} or {
    forge_score, score, kind, field, piece, damage,
  }
  for _ = 1, random(0, 2) do text = pick(changes)(text) end
  return random(40) == 1 and bytes.cut(text) or text, "x.model"
end

local function read(path, text)
  return lm.text.Tokenizer(path, {pattern = not text:find "^\10" and "\\p{L}+|\\s+|." or nil})
end

return {
  name = "model files", change = change,
  load = function(path, text) return tokenizer.load(path, text, function() return read(path, text) end) end,
  past = function(message) return not message:find "neither SentencePiece's" end,
}

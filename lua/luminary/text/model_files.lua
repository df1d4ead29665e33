--- Converts SentencePiece's models (tokenizer.model) and tiktoken's ranks to the text of a tokenizer.json.
local core = require "luminary.core"
local base64 = require "luminary.base.base64"
local lists = require "luminary.base.lists"
local options = require "luminary.base.options"
local printable_name = require "luminary.base.printable_name"
local Source = require "luminary.file_formats.source"
local vocabulary = require "luminary.text.gguf_vocabulary"

local fail = options.fail
local model_files = {}

local CONVERT = "; transformers in Python may convert it: "
  .. "AutoTokenizer.from_pretrained(folder).save_pretrained(folder)"

local function malformed(path, format, ...)
  options.malformed_file(path, "SentencePiece model", "%s", format:format(...) .. CONVERT)
end

local function check_token(path, vocab, token, id)
  if token == "" or #token > vocabulary.MOST_BYTES or token:find("%z") then
    options.fail_in_file(path, "token %d must have 1 to %d bytes and no NUL byte", id, vocabulary.MOST_BYTES)
  end
  if vocab[token] then
    options.fail_in_file(path, "tokens %d and %d are both '%s'", vocab[token], id, printable_name(token, 60))
  end
  vocab[token] = id
end

-- ---- SentencePiece: protobuf's messages

-- Calls visit(number of the field, value) for each field; a value is a number for varints, else a string of bytes.
local function each_field(path, message, visit)
  local at = 1
  local function wrong(why) malformed(path, "%s at byte %d of a message", why, at - 1) end
  local function varint()
    local value, scale = 0, 1
    for _ = 1, 10 do
      local byte = message:byte(at) or wrong "it ends"
      at, value, scale = at + 1, value + byte % 128 * scale, scale * 128
      if byte < 128 then return value end
    end
    return wrong "integer of more than 10 bytes"
  end
  while at <= #message do
    local key = varint()
    local wire = key % 8
    local value
    if wire == 0 then
      value = varint()
    else
      local size = wire == 1 and 8 or wire == 5 and 4 or wire == 2 and varint() or wrong "unknown type of a field"
      if size > #message - at + 1 then wrong "a field goes beyond the end" end
      value, at = message:sub(at, at + size - 1), at + size
    end
    visit(math.floor(key / 8), value)
  end
end

-- Reads fields of a message into `out`. names: field names by number. Returns `out`.
local function fields_of(path, message, names, out)
  each_field(path, message, function(number, value)
    if names[number] then out[names[number]] = value end
  end)
  return out
end

local NORMAL, UNKNOWN, CONTROL, USER_DEFINED, BYTE = 1, 2, 3, 4, 6
local UNIGRAM, BPE, WORD = 1, 2, 3

local function read_message(path, text)
  local pieces, trainer, normalizer = {}, {
    model_type = UNIGRAM, byte_fallback = 0, suffix = 0, unk_token = 0, bos_token = 1, eos_token = 2, pad_token = -1,
  }, {prefix = 1, collapses = 1, escapes = 1}
  each_field(path, text, function(number, value)
    if number <= 3 and type(value) ~= "string" then
      malformed(path, "field %d must be a message", number)
    elseif number == 1 then
      local piece = fields_of(path, value, {"text", "score", "kind"}, {text = "", score = "\0\0\0\0", kind = NORMAL})
      if type(piece.text) ~= "string" or type(piece.score) ~= "string" or #piece.score ~= 4 then
        malformed(path, "piece %d has fields of other types", #pieces)
      end
      piece.score = Source.float(piece.score, 1, 4)
      pieces[#pieces + 1] = piece
    elseif number == 2 then
      fields_of(path, value, {
        [3] = "model_type", [24] = "suffix", [35] = "byte_fallback", [40] = "unk_token", [41] = "bos_token",
        [42] = "eos_token", [43] = "pad_token",
      }, trainer)
    elseif number == 3 then
      fields_of(path, value, {[2] = "charsmap", [3] = "prefix", [4] = "collapses", [5] = "escapes"}, normalizer)
    end
  end)
  return pieces, trainer, normalizer
end

local function is_sentence_piece(text) return text:byte(1) == 10 and text:find("\0", 1, true) ~= nil end

local function replaced(regex, content) return {type = "Replace", pattern = {Regex = regex}, content = content} end

-- Returns SentencePiece's normalization as steps: the map of characters, one space for several, "▁" for a space and in
-- front.
local function normalizers_of(normalizer)
  local list = {}
  if #(normalizer.charsmap or "") > 0 then
    list[1] = {type = "Precompiled", precompiled_charsmap = base64.encode(normalizer.charsmap)}
  end
  if normalizer.collapses ~= 0 then
    list[#list + 1] = replaced("^ +", "")
    list[#list + 1] = replaced(" +$", "")
    list[#list + 1] = replaced(" {2,}", " ")
  end
  return lists.append(list, vocabulary.space_normalizers(normalizer.prefix ~= 0))
end

-- Returns what model_files.read returns, for a SentencePiece model.
local function sentence_piece(path, text)
  local pieces, trainer, normalizer = read_message(path, text)
  local function lacks(what)
    fail("Tokenizer: '%s': %s are not supported%s", path, what, CONVERT)
  end
  if trainer.model_type == WORD then lacks "SentencePiece models of words" end
  if trainer.suffix ~= 0 then lacks "spaces as suffixes" end
  if normalizer.escapes == 0 then lacks "unescaped spaces" end
  local vocab, list, added, tokens, scores, kinds, most, unknown = {}, {}, {}, {}, {}, {}, -math.huge, nil
  for i, piece in ipairs(pieces) do
    check_token(path, vocab, piece.text, i - 1)
    if piece.score - piece.score ~= 0 then malformed(path, "piece %d has a score that is not finite", i - 1) end
    if piece.kind == NORMAL then
      most, tokens[#tokens + 1], scores[#scores + 1] = math.max(most, piece.score), piece.text, piece.score
    end
    unknown = unknown or piece.kind == UNKNOWN and i - 1 or nil
  end
  if not unknown then malformed(path, "it has no piece for unknown characters") end
  local is_unigram = trainer.model_type == UNIGRAM
  for i, piece in ipairs(pieces) do
    list[i] = {piece.text, piece.score}
    local is_own = piece.kind == USER_DEFINED
    local may_be_text = piece.kind == NORMAL or piece.kind == BYTE or is_unigram and is_own
    kinds[piece.text] = not may_be_text and piece.kind or nil
    if is_unigram and is_own then -- the best score for its length, so that it is chosen, as in SentencePiece
      if most == -math.huge then malformed(path, "it has user-defined pieces and no normal piece") end
      local _, letters = piece.text:gsub("[^\128-\191]", "")
      list[i][2] = letters * most - 0.1
    elseif piece.kind == UNKNOWN or piece.kind == CONTROL or is_own then
      added[#added + 1] = {
        id = i - 1, content = piece.text, special = not is_own, normalized = is_own and normalizer.prefix == 0,
      }
    end
  end
  local roles = {}
  for _, role in ipairs {"unk_token", "bos_token", "eos_token", "pad_token"} do
    local piece = pieces[trainer[role] + 1]
    roles[role] = piece and (piece.kind == CONTROL or piece.kind == UNKNOWN) and piece.text or nil
  end
  local byte_fallback = trainer.byte_fallback ~= 0
  return vocabulary.encoded {
    normalizer = {type = "Sequence", normalizers = normalizers_of(normalizer)},
    decoder = {type = "Sequence", decoders = vocabulary.space_decoders(normalizer.prefix ~= 0)},
    added_tokens = added[1] and added or nil,
    model = is_unigram and {type = "Unigram", vocab = list, unk_id = unknown, byte_fallback = byte_fallback} or {
      type = "BPE", vocab = vocab, byte_fallback = byte_fallback, fuse_unk = true, unk_token = pieces[unknown + 1].text,
      merges = trainer.model_type == BPE and vocabulary.merges_by_score(path, tokens, vocab, scores) or {},
    },
  }, roles, nil, kinds
end

local MARK = "\239\183\144" -- U+FDD0, which Unicode keeps from texts

--- Returns the decoded tokenizer.json that encodes as SentencePiece does, with the file's ids: text that reads like a
--- control piece is text, and user-defined symbols are found after the space in front of a text is added. json, kinds:
--- the first and fourth result of `read`.
function model_files.for_encoding(json, kinds)
  local root = core.json_decode(json)
  local model, added = root.model, {}
  local function renamed(token) -- a space is "▁" in a normalized text, so no text has a token with a space
    return (kinds[token] == USER_DEFINED and MARK or kinds[token] and " " or "") .. token
  end
  if model.type == "Unigram" then
    for _, entry in ipairs(model.vocab) do entry[1] = renamed(entry[1]) end
    if model.byte_fallback then -- a byte's piece is not found in a text that is cut behind its "<"
      root.pre_tokenizer = {type = "Split", behavior = "Isolated", pattern = {Regex = "<(?=0x[0-9A-F]{2}>)"}}
    end
  else
    local vocab = {}
    for token, id in pairs(model.vocab) do vocab[renamed(token)] = id end
    model.vocab, model.unk_token = vocab, renamed(model.unk_token)
  end
  for _, one in ipairs(root.added_tokens or {}) do
    if kinds[one.content] == USER_DEFINED then one.content, one.normalized = renamed(one.content), true end
    if not kinds[one.content] then added[#added + 1] = one end
  end
  root.added_tokens = added
  table.insert(root.normalizer.normalizers, replaced("^▁?" .. MARK, ""))
  return root
end

-- ---- tiktoken: lines of a token's bytes in base64 and its rank

--- Letters of GPT-2's vocabularies by byte.
local letters = {}
model_files.letters = letters
do
  local others = 0
  for byte = 0, 255 do
    local code = byte
    if byte < 33 or byte > 126 and byte < 161 or byte == 173 then code, others = 256 + others, others + 1 end
    letters[string.char(byte)] = code < 128 and string.char(code)
      or string.char(192 + math.floor(code / 64), 128 + code % 64)
  end
end

-- Regular expressions by the number of ranks: OpenAI's encodings (tiktoken_ext/openai_public.py) and LLaMA 3's.
local thousands = vocabulary.words "\\p{N}{1,3}"
local gpt2 = "'(?:[sdmt]|ll|ve|re)| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"
local patterns = {
  [50256] = gpt2, [50280] = gpt2, [100256] = thousands, [128000] = thousands,
  [199998] = vocabulary.cased_words("\\p{N}{1,3}", "(?i:'s|'t|'re|'ve|'m|'ll|'d)?"),
}
local ends = {[50256] = 50256, [50280] = 50256, [100256] = 100257, [199998] = 199999} -- <|endoftext|> by ranks

local function tiktoken(path, text, pattern)
  local tokens, vocab, scores = {}, {}, {}
  for line in text:gmatch "[^\r\n]+" do
    local encoded_token, rank = line:match "^([%w+/]+=*) (%d+)$"
    if not rank or #encoded_token % 4 ~= 0 or tonumber(rank) >= 2 ^ 31 - 1 then
      options.malformed_file(path, "tiktoken ranks", "line %d must be base64 and a rank", #tokens + 1)
    end
    local token = base64.decode(encoded_token):gsub(".", letters)
    check_token(path, vocab, token, tonumber(rank))
    tokens[#tokens + 1], scores[#scores + 1] = token, -tonumber(rank)
  end
  pattern = pattern or patterns[#tokens]
  if not pattern then
    fail("Tokenizer: '%s' has %d ranks, as no known encoding of tiktoken; pass {pattern = …}, its regular expression",
      path, #tokens)
  end
  local added = ends[#tokens] and {{id = ends[#tokens], content = "<|endoftext|>", special = true, normalized = false}}
  if added then vocab["<|endoftext|>"] = ends[#tokens] end
  return vocabulary.encoded {
    pre_tokenizer = {type = "Sequence", pretokenizers = {
      {type = "Split", behavior = "Isolated", invert = false, pattern = {Regex = pattern}},
      vocabulary.byte_level(false),
    }},
    decoder = vocabulary.byte_level(true), added_tokens = added or nil,
    model = {
      type = "BPE", vocab = vocab, ignore_merges = true,
      merges = vocabulary.merges_by_score(path, tokens, vocab, scores),
    },
  }, added and {eos_token = "<|endoftext|>"} or {}
end

--- Returns four values for a file's text: the text of a tokenizer.json, the special tokens by role, nil, and for a
--- SentencePiece model the kinds of pieces that no text is (for_encoding); nil for other formats. pattern: the regular
--- expression for words, for tiktoken's ranks.
function model_files.read(path, text, pattern)
  if is_sentence_piece(text) then return sentence_piece(path, text) end
  if text:find "^[%w+/]+=* %d+[\r\n]" then return tiktoken(path, text, pattern) end
  if path:find "%.model$" then options.fail_in_file(path, "neither SentencePiece's nor tiktoken's%s", CONVERT) end
end

return model_files

--- Converts other vocabulary files (GPT-2's, BERT's, SentencePiece's, tiktoken's, GGUF) to the text of a
--- tokenizer.json.
local core = require "luminary.core"
local json_encode = require "luminary.base.json_encode"
local lists = require "luminary.base.lists"
local options = require "luminary.base.options"
local signature = require "luminary.base.signature"
local printable_name = require "luminary.base.printable_name"
local truncate_text = require "luminary.base.truncate_text"
local Source = require "luminary.file_formats.source"
local load_module = require "luminary.base.load_module"
local fail = options.fail

local FORMATS = "text.Tokenizer(path) reads a tokenizer.json, a SentencePiece model (tokenizer.model), tiktoken's "
  .. "ranks, a GGUF file, or a folder with a tokenizer.json or tokenizer.model, such as `hf download NAME --local-dir "
  .. "FOLDER` leaves"
local OTHERS = "; text.BertWordPieceTokenizer(path) reads BERT's vocab.txt, text.ByteLevelBPETokenizer(vocab, merges) "
  .. "GPT-2's vocab.json and merges.txt"

local files = {}

--- Returns the text of a file of at most 2^28 bytes.
function files.read(path)
  local kind = core.file_kind(path)
  if kind ~= "a regular file" then
    options.fail_file("open", path, kind and "it is " .. kind or "No such file or directory")
  end
  return Source.whole_text(path)
end
local read = files.read

local function lines_of(path)
  local lines = {}
  for line in (read(path) .. "\n"):gmatch "(.-)\r?\n" do
    lines[#lines + 1] = line
    if line:find("\0", 1, true) then options.fail_in_file(path, "line %d contains a NUL byte", #lines) end
  end
  if lines[#lines] == "" then lines[#lines] = nil end
  return lines
end

local function special_token(token) return {content = token, special = true, normalized = false} end

--- Converts GPT-2's vocab.json and merges.txt, each line of which is a pair of tokens.
function files.byte_level_json(vocab, merges, o)
  local list = {}
  for i, line in ipairs(lines_of(merges)) do
    if not (i == 1 and line:find "^#version") and line ~= "" then
      if not line:find "^%S+ %S+$" then options.fail_in_file(merges, "line %d must be a pair of tokens", i) end
      list[#list + 1] = json_encode(line)
    end
  end
  local rest = json_encode {
    added_tokens = (o.special_tokens or {})[1] and lists.map(o.special_tokens, special_token),
    normalizer = o.lowercase and {type = "Lowercase"} or nil, decoder = {type = "ByteLevel"},
    pre_tokenizer = {type = "ByteLevel", add_prefix_space = o.add_prefix_space},
    post_processor = {type = "ByteLevel", trim_offsets = o.trim_offsets},
  }
  return ('{"model": {"type": "BPE", "vocab": %s, "merges": [%s]}, %s'):format(read(vocab), table.concat(list, ", "),
    rest:sub(2))
end

--- Converts BERT's vocab.txt, each line of which is a token; their ids count from 0.
function files.bert_json(vocab, o)
  local ids = {}
  for i, line in ipairs(lines_of(vocab)) do ids[line:match "^(.-)%s*$"] = i - 1 end
  local cls, sep = ids[o.cls_token], ids[o.sep_token]
  local roles = {o.pad_token, o.unk_token, o.cls_token, o.sep_token, o.mask_token}
  local added = lists.map(lists.filter(roles, function(token) return ids[token] end), special_token)
  return json_encode {
    added_tokens = added[1] and added, pre_tokenizer = {type = "BertPreTokenizer"},
    normalizer = {
      type = "BertNormalizer", clean_text = o.clean_text, handle_chinese_chars = o.handle_chinese_chars,
      strip_accents = o.strip_accents, lowercase = o.lowercase,
    },
    post_processor = cls and sep
      and {type = "BertProcessing", cls = {o.cls_token, cls}, sep = {o.sep_token, sep}} or nil,
    decoder = {type = "WordPiece", prefix = o.wordpieces_prefix},
    model = {
      type = "WordPiece", unk_token = o.unk_token, continuing_subword_prefix = o.wordpieces_prefix, vocab = ids,
    },
  }
end

--- Returns a post-processor that adds {token, id} before and after each text, as transformers do for add_bos_token and
--- add_eos_token; nil for none.
function files.around_json(before, behind)
  local tokens, single, pair = {}, {}, {}
  for i, sequence in ipairs {"A", "B"} do
    for _, piece in ipairs {before or false, sequence, behind or false} do
      if piece then
        local name = piece == sequence and "Sequence" or "SpecialToken"
        local part = {[name] = {id = piece[1] or piece, type_id = i - 1}}
        if i == 1 then single[#single + 1] = part end
        pair[#pair + 1] = part
        if piece ~= sequence then tokens[piece[1]] = {id = piece[1], ids = {piece[2]}, tokens = {piece[1]}} end
      end
    end
  end
  return json_encode {type = "TemplateProcessing", single = single, pair = pair, special_tokens = tokens}
end

files.bert_arguments = [[BertWordPieceTokenizer(vocab: string, {unk_token = "[UNK]", sep_token = "[SEP]",
  cls_token = "[CLS]", pad_token = "[PAD]", mask_token = "[MASK]", clean_text = true, handle_chinese_chars = true,
  strip_accents: boolean = (lowercase), lowercase = true, wordpieces_prefix = "##", base: natural = 1})]]

-- Returns the last index of the value of valid JSON that begins at index `at`.
local function value_end(text, at)
  local depth = 0
  repeat
    local from, to, c = text:find('([%[%]{}",])', at)
    if c == '"' then
      repeat
        to = text:find('["\\]', to + 1)
        local escapes = text:sub(to, to) == "\\"
        if escapes then to = to + 1 end
      until not escapes
    elseif c == "[" or c == "{" then
      depth = depth + 1
    elseif depth == 0 then
      return from - 1 -- end of a number or a word
    elseif c ~= "," then
      depth = depth - 1
    end
    at = to + 1
  until depth == 0
  return at - 1
end

--- Returns a tokenizer.json's text with another value of a field; nothing else changes.
function files.with_field(text, name, value)
  local at = text:find("{", 1, true) + 1
  local first = at
  while true do
    local from = text:find('"', at, true)
    if not from then break end
    local to = value_end(text, from)
    local begins = text:match("^%s*:%s*()", to + 1)
    local ends = value_end(text, begins)
    if text:sub(from, to) == '"' .. name .. '"' then return text:sub(1, begins - 1) .. value .. text:sub(ends + 1) end
    at = ends + 1
  end
  return ('%s"%s": %s, %s'):format(text:sub(1, first - 1), name, value, text:sub(first))
end

local function exists(path) return core.file_kind(path) == "a regular file" end

--- Returns four values for a path: the text of a tokenizer.json, also of other formats; their special tokens by role,
--- or nil; for a GGUF file a table as special.read returns it; for a SentencePiece model the kinds of its pieces
--- (model_files.read). pattern: the regular expression for tiktoken's ranks.
function files.read_any(path, pattern)
  if not core.file_kind(path) then
    fail("Tokenizer: cannot open '%s': No such file or directory; nothing is downloaded: %s",
      truncate_text(path, 200), FORMATS)
  end
  if core.file_kind(path) ~= "a folder" then
    local gguf = load_module "luminary.text.gguf_vocabulary"
    if gguf.is(path) then return gguf.read(path) end
    local text = read(path)
    local converted, roles, _, kinds = load_module("luminary.text.model_files").read(path, text, pattern)
    if not converted and not text:find "^[\239\187\191%s]*[{%[]" then
      options.fail_in_file(path, "unknown format of a tokenizer: it begins with '%s'; %s",
        printable_name(text:match "^[^\r\n]*", 40), FORMATS .. OTHERS)
    end
    return converted or text, roles, nil, kinds
  end
  local function within(name) return path .. "/" .. name end
  if exists(within "tokenizer.json") then return read(within "tokenizer.json") end
  if exists(within "vocab.json") and exists(within "merges.txt") then
    local text = "<|endoftext|>"
    return files.byte_level_json(within "vocab.json", within "merges.txt",
      {add_prefix_space = false, trim_offsets = false, special_tokens = {text}}),
      {bos_token = text, eos_token = text, unk_token = text}
  end
  if exists(within "vocab.txt") then
    local _, o = signature.read(files.bert_arguments, nil, path)
    return files.bert_json(within "vocab.txt", o), o
  end
  if exists(within "tokenizer.model") then
    local model = within "tokenizer.model"
    return load_module("luminary.text.model_files").read(model, read(model), pattern)
  end
  fail("Tokenizer: '%s' has neither tokenizer.json, nor tokenizer.model, nor vocab.json with merges.txt, nor vocab.txt",
    path)
end

return files

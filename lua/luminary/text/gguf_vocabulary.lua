--- Converts the tokenizer in a GGUF file to a tokenizer.json, and back.
local core = require "luminary.core"
local json_encode = require "luminary.base.json_encode"
local lists = require "luminary.base.lists"
local options = require "luminary.base.options"
local printable_name = require "luminary.base.printable_name"
local special = require "luminary.text.special_tokens"
local formats = require "luminary.file_formats.gguf"
local fail = options.fail

local vocabulary = {}

vocabulary.is = formats.is

--- Returns a tokenizer.json's text, in which an empty list of merges is a list, as others expect.
function vocabulary.encoded(root) return (json_encode(root):gsub('"merges":{}', '"merges":[]')) end

vocabulary.MOST_BYTES = 2 ^ 16 -- most bytes of a token, as in C
local MOST_BYTES = vocabulary.MOST_BYTES
local NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6 -- values of tokenizer.ggml.token_type

-- ---- pre-tokenizers, by tokenizer.ggml.pre

--- Returns the regular expression for words of LLaMA 3 and others. digits: the part that cuts numbers.
function vocabulary.words(digits)
  return "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|" .. digits
    .. "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
end

--- Returns the regular expression for words of GPT-4o and others, which end before capitals. contractions: the part
--- that ends words of letters, or "".
function vocabulary.cased_words(digits, contractions)
  local upper, lower = "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]", "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
  return "[^\\r\\n\\p{L}\\p{N}]?" .. upper .. "*" .. lower .. "+" .. contractions
    .. "|[^\\r\\n\\p{L}\\p{N}]?" .. upper .. "+" .. lower .. "*" .. contractions .. "|" .. digits
    .. "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
end

local function split(words)
  return {type = "Split", behavior = "Isolated", invert = false, pattern = {Regex = words}}
end

--- Returns the step for GPT-2's letters for bytes, and its words if by_words is true.
function vocabulary.byte_level(by_words)
  return {type = "ByteLevel", add_prefix_space = false, trim_offsets = false, use_regex = by_words}
end

local byte_level = vocabulary.byte_level

local cuts, cut_names = {}, {} -- cuts by name; lists of the names of each
for names, cut in pairs {
  ["gpt-2 phi-2 olmo mpt jais"] = {byte_level(true)},
  ["smollm starcoder refact codeshell command-r"] = {{type = "Digits", individual_digits = true}, byte_level(true)},
  ["llama-bpe llama3 llama-v3 falcon3 dbrx smaug-bpe"] = {split(vocabulary.words "\\p{N}{1,3}"), byte_level(false)},
  ["qwen2 stablelm2"] = {split(vocabulary.words "\\p{N}"), byte_level(false)},
  ["gpt-4o"] = {
    split(vocabulary.cased_words("\\p{N}{1,3}", "(?i:'s|'t|'re|'ve|'m|'ll|'d)?")), byte_level(false),
  },
  tekken = {split(vocabulary.cased_words("\\p{N}", "")), byte_level(false)},
} do
  cut_names[#cut_names + 1] = lists.parts(names, "%S+")
  for name in names:gmatch "%S+" do cuts[name] = cut end
end
local takes_whole_words = {llama3 = true, ["llama-v3"] = true, ["llama-bpe"] = true, falcon3 = true, tekken = true}

-- ---- GPT-2's byte pairs, and SentencePiece's

-- Returns the root of a tokenizer.json for GPT-2's byte pairs.
local function byte_pairs(path, file, vocab)
  local pre = file.pre or (file.architecture == "gpt2" and "gpt-2")
  local cut = cuts[pre]
  if not cut then
    fail("Tokenizer: '%s': %s; supported are %s", path,
      pre and ("unknown tokenizer.ggml.pre '%s'"):format(printable_name(pre, 60)) or "missing tokenizer.ggml.pre",
      table.concat(lists.sorted_keys(cuts), ", "))
  end
  return {
    normalizer = pre == "qwen2" and {type = "NFC"} or nil,
    pre_tokenizer = {type = "Sequence", pretokenizers = cut}, decoder = byte_level(true),
    model = {
      type = "BPE", vocab = vocab, merges = file.list("merges", "string"),
      ignore_merges = takes_whole_words[pre] or false,
    },
  }
end

local function is_letter_start(byte) return byte < 128 or byte >= 192 end

-- Most bytes of all splits of tokens in merges_by_score; the largest known vocabularies have a fifth of it.
local MOST_CUT = 2 ^ 27

--- Returns all pairs of tokens that form a token, in descending order of its score, then of the letters on the left,
--- then on the right, as Hugging Face's converter of SentencePiece's models does. It splits a token only where both
--- parts have the length of some token.
function vocabulary.merges_by_score(path, tokens, vocab, scores)
  local all, lengths, bytes = {}, {}, 0
  local columns = {{}, {}, {}} -- the pairs' letters on the right, letters on the left, and scores
  for _, token in ipairs(tokens) do lengths[#token] = true end
  for i, token in ipairs(tokens) do
    local left, before = 0, #all
    for at = 2, #token do
      if is_letter_start(token:byte(at)) then
        left = left + 1
        if lengths[at - 1] and lengths[#token - at + 1] then
          bytes = bytes + #token
          if bytes > MOST_CUT then
            fail("Tokenizer: '%s': the merges cannot be inferred: splits of tokens take more than %d MB up to "
              .. "token %d, of %d bytes; use shorter tokens", path, MOST_CUT / 2 ^ 20, i - 1, #token)
          end
          local a, b = token:sub(1, at - 1), token:sub(at)
          if vocab[a] and vocab[b] then
            all[#all + 1] = {a, b}
            columns[2][#all], columns[3][#all] = left, scores[i]
          end
        end
      end
    end
    for k = before + 1, #all do columns[1][k] = left + 1 - columns[2][k] end
  end
  if #all == 0 then return all end
  local order
  for _, column in ipairs(columns) do
    local values = core.tensor(column, {dtype = "float64", device = "cpu"})
    if order then values = core.ops.index_select(values, 1, order) end
    local by = core.ops.argsort(values, {descending = true, stable = true})
    order = order and core.ops.index_select(order, 1, by) or by
  end
  return lists.map(order:totable(), function(from) return all[from] end)
end

--- Return the steps that write "▁" for spaces, and if `prefix` is true in front of a text, and the steps that undo it.
function vocabulary.space_normalizers(prefix)
  local spaces = {type = "Replace", pattern = {String = " "}, content = "▁"}
  return prefix and {{type = "Prepend", prepend = "▁"}, spaces} or {spaces}
end
function vocabulary.space_decoders(prefix)
  return {
    {type = "Replace", pattern = {String = "▁"}, content = " "}, {type = "ByteFallback"}, {type = "Fuse"},
    prefix and {type = "Strip", content = " ", start = 1, stop = 0} or nil,
  }
end

-- Returns the root of a tokenizer.json for SentencePiece's pairs: spaces are "▁", unknown characters become bytes.
local function sentence_pieces(path, file, vocab)
  local prefix = file.add_space_prefix ~= false
  return {
    normalizer = {type = "Sequence", normalizers = vocabulary.space_normalizers(prefix)},
    decoder = {type = "Sequence", decoders = vocabulary.space_decoders(prefix)},
    model = {
      type = "BPE", vocab = vocab, fuse_unk = true, byte_fallback = true, unk_token = file.token "unknown",
      merges = vocabulary.merges_by_score(path, file.tokens, vocab, file.list("scores", "number", #file.tokens)),
    },
  }
end

local kinds = {gpt2 = byte_pairs, llama = sentence_pieces}

-- ---- the file

-- Returns the text of a value of the metadata for messages.
local function described(value)
  if type(value) == "table" then return "a list" end
  if type(value) == "string" then return ("the text '%s'"):format(printable_name(value, 60)) end
  return value ~= value and "nan" or tostring(value)
end

-- Functions, by the type of a list's elements, that return the end of an error's message for an element, or nil.
local wrong = {
  string = function(text) return text:find("%z") and ("'%s', contains a NUL byte"):format(printable_name(text, 60)) end,
  number = function(n) return n - n ~= 0 and ("must be a finite number, got %s"):format(described(n)) end,
}

-- Returns the metadata's fields about the tokenizer, checked, and list(name, type, count), which returns a checked
-- list.
local function view(path, metadata)
  local file = {architecture = metadata["general.architecture"]}
  local function get(key, kind)
    local value = metadata["tokenizer." .. key]
    if value ~= nil and type(value) ~= kind then
      fail("Tokenizer: '%s': tokenizer.%s must be a %s, got %s", path, key, kind, described(value))
    end
    return value
  end
  file.chat_template = get("chat_template", "string")
  for _, name in ipairs {"model", "pre"} do file[name] = get("ggml." .. name, "string") end
  for _, name in ipairs {"add_space_prefix", "add_bos_token", "add_eos_token"} do
    file[name] = get("ggml." .. name, "boolean")
  end
  function file.list(name, kind, count)
    local list = metadata["tokenizer.ggml." .. name]
    if type(list) ~= "table" or count and #list ~= count then
      fail("Tokenizer: '%s': tokenizer.ggml.%s %s", path, name,
        type(list) == "table" and ("has %d entries for %d tokens"):format(#list, count)
          or list == nil and "is missing" or "must be a list")
    end
    for i, v in ipairs(list) do
      local problem = type(v) ~= kind and ("must be a %s"):format(kind) or wrong[kind](v)
      if problem then
        fail("Tokenizer: '%s': tokenizer.ggml.%s[%d]%s %s", path, name, i - 1, problem:find "^'" and "," or "", problem)
      end
    end
    return list
  end
  return file
end

-- Returns the tokens, their ids from 0 by token, and the set of ids without a text, which get names as in llama.cpp.
local function read_tokens(path, file)
  local tokens, vocab, is_empty = file.list("tokens", "string"), {}, {}
  for i, token in ipairs(tokens) do
    local id = i - 1
    if #token > MOST_BYTES then
      fail("Tokenizer: '%s': tokenizer.ggml.tokens[%d] has %d bytes; at most %d are supported", path, id, #token,
        MOST_BYTES)
    end
    is_empty[id] = token == ""
    if is_empty[id] then
      token = ("[EMPTY_%d]"):format(id)
      tokens[i] = token
    end
    if vocab[token] then
      fail("Tokenizer: '%s': tokenizer.ggml.tokens[%d] and tokenizer.ggml.tokens[%d] are both '%s'", path, vocab[token],
        id, printable_name(token, 60))
    end
    vocab[token] = id
  end
  return tokens, vocab, is_empty
end

local parts = {
  bos = "bos_token", eos = "eos_token", unknown = "unk_token", seperator = "sep_token", separator = "sep_token",
  padding = "pad_token", cls = "cls_token", mask = "mask_token",
}

-- llama.cpp's default ids of SentencePiece's special tokens.
local default_ids = {unknown = 0, bos = 1, eos = 2}
local NO_ID = 2 ^ 32 - 1 -- llama.cpp's -1 (no token) in some files

--- Returns three values for a GGUF file: the text of a tokenizer.json; the special tokens by role; and a table as
--- special.read returns it, with add_bos_token, add_eos_token, chat_template, and the text's decoded value as root.
function vocabulary.read(path)
  local metadata = formats.metadata(path)
  local file = view(path, metadata)
  if not file.model or file.model == "no_vocab" then
    fail("Tokenizer: '%s' has no tokenizer; write it with lm.save(path, net, {tokenizer = …})", path)
  end
  local make = kinds[file.model]
  if not make then
    fail("Tokenizer: '%s' has a tokenizer of kind '%s'; supported are gpt2 (byte pairs) and llama (SentencePiece)",
      path, printable_name(file.model, 60))
  end
  local tokens, vocab, is_empty = read_tokens(path, file)
  local added, warned = {}, {}
  function file.token(part)
    local key = ("tokenizer.ggml.%s_token_id"):format(part)
    local id = metadata[key]
    local is_beyond = type(id) == "number" and id >= #tokens and id % 1 == 0 and id < math.huge
    if is_beyond and id ~= NO_ID and not warned[key] then
      warned[key] = true
      core.warn(("Tokenizer: %s: %s is %.0f, and there are %d tokens: it counts as none"):format(path, key, id,
        #tokens))
    end
    if id == nil or is_beyond then
      id = file.model == "llama" and default_ids[part]
      return id and not is_empty[id] and tokens[id + 1] or nil
    end
    if type(id) ~= "number" or not tokens[id + 1] then
      fail("Tokenizer: '%s': %s must be a token id from 0 to %d, got %s", path, key, #tokens - 1, described(id))
    end
    if is_empty[id] then fail("Tokenizer: '%s': %s is %d, a token without text", path, key, id) end
    return tokens[id + 1]
  end
  file.tokens = tokens
  local types = metadata["tokenizer.ggml.token_type"] and file.list("token_type", "number", #tokens) or {}
  for i, token in ipairs(tokens) do
    local kind = types[i] or NORMAL
    if not is_empty[i - 1] and (kind == UNKNOWN or kind == CONTROL or kind == USER_DEFINED) then
      added[#added + 1] = {id = i - 1, content = token, special = kind ~= USER_DEFINED, normalized = false}
    end
  end
  local root = make(path, file, vocab)
  root.added_tokens = added[1] and added or nil
  local roles = {}
  for part, role in lists.sorted_pairs(parts) do roles[role] = file.token(part) or roles[role] end
  local around_by_itself = file.model == "llama" or takes_whole_words[file.pre]
  return vocabulary.encoded(root), roles, {
    path = path, chat_template = file.chat_template, root = root,
    tokens = {}, extra = {}, added = {}, model_max_length = special.NO_MAXIMUM,
    add_bos_token = file.add_bos_token == nil and around_by_itself and roles.bos_token ~= nil or file.add_bos_token,
    add_eos_token = file.add_eos_token or false,
  }
end

-- ---- writing

-- Returns a text that is equal for pre-tokenizers that cut texts alike.
local function cut_text(pre)
  local list = lists.map(pre and (pre.pretokenizers or {pre}) or {}, function(one)
    local words = one.type == "Split" and one.behavior == "Isolated" and not one.invert and one.pattern.Regex
    if one.type == "ByteLevel" and not one.add_prefix_space then words = one.use_regex ~= false end
    return ("%s %s"):format(one.type, tostring(words or one.individual_digits))
  end)
  return table.concat(list, "\n")
end

-- Returns tokenizer.ggml.pre of a tokenizer.json with GPT-2's byte pairs.
local function pre_of(path, root)
  local normal, text = root.normalizer and root.normalizer.type, cut_text(root.pre_tokenizer)
  for _, names in ipairs(cut_names) do
    local name = lists.find(names, function(each)
      return (takes_whole_words[each] or false) == (root.model.ignore_merges or false)
    end) or names[1]
    if cut_text {pretokenizers = cuts[name]} == text and (not normal or normal == "NFC" and name == "qwen2") then
      return name
    end
  end
  fail("save: '%s' has a pre-tokenizer or normalizer without a name in GGUF: %s; supported are %s", path,
    printable_name(json_encode {root.normalizer or "none", root.pre_tokenizer or "none"}, 200),
    table.concat(lists.sorted_keys(cuts), ", "))
end

--- Returns the metadata of a GGUF file about a tokenizer, by key. size: the number of the model's tokens, to which
--- unused ones are appended.
function vocabulary.metadata(tokenizer, size)
  local root, path, file = core.json_decode(tokenizer:to_str(), false), tokenizer.path, {}
  local model, tokens, types = root.model, {}, {}
  local is_sentence_piece = model.byte_fallback == true
  if model.type ~= "BPE" then
    fail("save: '%s' is a tokenizer of type %s; GGUF files are written for byte pairs and SentencePiece's pairs", path,
      tostring(model.type))
  elseif #tokenizer > (size or 0) then
    fail("save: the tokenizer has %d tokens, and the model %d", #tokenizer, size or 0)
  end
  for id = 0, size - 1 do tokens[id + 1], types[id + 1] = ("[PAD%d]"):format(id), UNUSED end
  for token, id in pairs(model.vocab) do
    tokens[id + 1] = token
    types[id + 1] = is_sentence_piece and token:find "^<0x%x%x>$" and BYTE or NORMAL
  end
  for _, one in ipairs(root.added_tokens or {}) do
    tokens[one.id + 1] = one.content
    types[one.id + 1] = one.content == model.unk_token and UNKNOWN or one.special and CONTROL or USER_DEFINED
  end
  local scores, merges = {}, lists.map(model.merges, function(pair)
    return type(pair) == "table" and pair[1] .. " " .. pair[2] or pair
  end)
  file.model, file.pre, file.merges = "gpt2", not is_sentence_piece and pre_of(path, root) or nil, merges
  if is_sentence_piece then -- the earlier the merge that forms a token, the higher its score
    for i = 1, size do scores[i] = -#merges - 1 end
    for i = #merges, 1, -1 do
      local id = model.vocab[merges[i]:gsub(" ", "", 1)]
      if id then scores[id + 1] = -i end
    end
    file.model, file.pre, file.merges, file.scores = "llama", "default", nil, scores
    local steps = json_encode {root.normalizer or false, root.pre_tokenizer or false}
    if not steps:find("▁", 1, true) then
      fail("save: '%s' does not write spaces as \"▁\", as SentencePiece's tokenizers in GGUF files do; its normalizer "
        .. "and pre-tokenizer are %s", path, printable_name(steps, 200))
    end
    file.add_space_prefix = steps:find('"Prepend"', 1, true) ~= nil
      or steps:find('"Metaspace"', 1, true) ~= nil and not steps:find('"never"', 1, true)
  end
  file.tokens, file.token_type = tokens, types
  for part, role in pairs(parts) do
    local id = part ~= "separator" and tokenizer[role .. "_id"]
    if id then file[part .. "_token_id"] = id - tokenizer.base end
  end
  local e = tokenizer:encode "a"
  local ids, mask = e.ids:tolist(), e.special_tokens_mask:tolist()
  for role, at in pairs {bos = 1, eos = #ids} do
    local adds, key = mask[at] == 1, role .. "_token_id"
    file["add_" .. role .. "_token"], file[key] = adds, adds and ids[at] - tokenizer.base or file[key]
  end
  local template = tokenizer.chat_template
  local metadata = {["tokenizer.chat_template"] = type(template) == "table" and template.default or template}
  for key, value in pairs(file) do metadata["tokenizer.ggml." .. key] = value end
  return metadata
end

return vocabulary

--- Reads a tokenizer.json: checks each part, and converts it to the plan that src/bind/text/read_tokenizer.c takes.
local core = require "luminary.core"
local lists = require "luminary.base.lists"
local options = require "luminary.base.options"
local printable_name = require "luminary.base.printable_name"

local NULL = {} -- a null in JSON

-- Fails for the place `at`: {path, part, step}, of which the last two are nil outside of a part or step.
local function fail(at, format, ...)
  local where = (at.part and at.part .. ": " or "") .. (at.step and at.step .. ": " or "")
  options.fail_in_file(at.path, "%s", where .. format:format(...))
end

local function must_be(at, name, bound, value)
  fail(at, "%s must be %s%s", name, bound,
    type(value) == "string" and (", got '%s'"):format(printable_name(value, 40)) or "")
end

local function field(of, name)
  if type(of) == "table" and name ~= nil and of[name] ~= NULL then return of[name] end
end

local function is_id(v) return type(v) == "number" and v >= 0 and v < 2 ^ 31 - 1 and v % 1 == 0 end
local function is_character(text) return text:find "^[%z\1-\127\194-\244][\128-\191]*$" ~= nil end

-- Functions, by kind, that return a value after checking it.
local readers = {
  boolean = function(at, name, value)
    if type(value) ~= "boolean" then must_be(at, name, "true or false", value) end
    return value
  end,
  count = function(at, name, value)
    return is_id(value) and value or must_be(at, name, "an integer of at least 0", value)
  end,
  string = function(at, name, value)
    return type(value) == "string" and value or must_be(at, name, "a string", value)
  end,
  character = function(at, name, value)
    if type(value) ~= "string" then must_be(at, name, "a string", value) end
    return is_character(value) and value or must_be(at, name, "one character", value)
  end,
}

-- Fills `out` by rows {name in the file, field of `out` or number of its switch, kind or list of words, default}. A
-- word becomes its index from 0. A value without a default is required; OPTIONAL leaves the field nil.
local OPTIONAL = {}
local function fill_fields(at, of, out, rows)
  for _, row in ipairs(rows) do
    local name, slot, kind, default = row[1], row[2], row[3], row[4]
    local value = field(of, name)
    if value == nil then
      if default == nil then fail(at, "%s is missing", name) end
      value = default
      if default == OPTIONAL then value = nil end
    elseif type(kind) == "table" then
      local i = lists.index_of(kind, value) or must_be(at, name, "one of '" .. table.concat(kind, "', '") .. "'", value)
      value = i - 1
    else
      value = readers[kind](at, name, value)
    end
    if type(slot) == "number" then out.on[slot] = value else out[slot] = value end
  end
end

-- ---- steps: rows for fill, or functions (at, of, step)

local function pattern(at, of, step)
  local one = field(of, "pattern")
  step.literal = type(one) == "string" and one or field(one, "String")
  step.regex = step.literal == nil and field(one, "Regex") or nil
  if type(step.literal or step.regex) ~= "string" then
    must_be(at, "pattern", "a string, or an object with a String or a Regex")
  end
end

local behavior = {
  "behavior", "behavior", {"Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"}, 1,
}
local level = {
  {"add_prefix_space", 1, "boolean", true}, {"trim_offsets", 2, "boolean", true}, {"use_regex", 3, "boolean", true},
}
local NEVER = 2

local function metaspace(at, of, step)
  fill_fields(at, of, step, {
    {"replacement", "text", "character"}, {"prepend_scheme", "prepend", {"always", "first", "never"}, 0},
    {"add_prefix_space", 2, "boolean", true}, {"split", 1, "boolean", true},
  })
  if not step.on[2] then step.prepend = NEVER end
  step.literal = step.text
end

local function replace(at, of, step)
  pattern(at, of, step)
  fill_fields(at, of, step, {{"content", "text", "string"}})
end

-- Returns the id in a list {token, id}.
local function named_id(at, of, name)
  local pair = field(of, name)
  if type(pair) ~= "table" or #pair ~= 2 or not is_id(pair[2]) then
    must_be(at, name, "a list of a token and its id", pair)
  end
  return pair[2]
end

-- Sets the templates of BERT (cls A sep; cls A sep B sep with types 0 and 1) or RoBERTa (sep twice between, type 0). A
-- template is a flat list of triples: sequence (0 or 1; -1 for a token), id, type.
local function read_cls_and_sep(at, of, step)
  local cls, sep = named_id(at, of, "cls"), named_id(at, of, "sep")
  fill_fields(at, of, step, {level[1], level[2]})
  step.single = {-1, cls, 0, 0, 0, 0, -1, sep, 0}
  if at.step == "RobertaProcessing" then
    step.pair = {-1, cls, 0, 0, 0, 0, -1, sep, 0, -1, sep, 0, 1, 0, 0, -1, sep, 0}
  else
    step.pair = {-1, cls, 0, 0, 0, 0, -1, sep, 0, 1, 0, 1, -1, sep, 1}
  end
end

-- Limits of a template's special tokens, pieces and sequences: a small file could expand without bound.
local MOST_TOKENS, MOST_PIECES, MOST_SEQUENCES = 10000, 1000, 16

local function type_of(at, of)
  local out = {}
  fill_fields(at, of, out, {{"type_id", "id", "count", 0}})
  return out.id
end

local function add_special(at, of, special, out)
  local name = field(special, "id")
  if type(name) ~= "string" then must_be(at, "id of a SpecialToken", "a string") end
  local ids = field(field(field(of, "special_tokens"), name), "ids")
  if type(ids) ~= "table" then
    fail(at, "special_tokens must have ids of '%s'", printable_name(name, 40))
  end
  for _, id in ipairs(ids) do
    if not is_id(id) then must_be(at, "ids", "a list of ids") end
    out.tokens = out.tokens + 1
    if out.tokens > MOST_TOKENS then fail(at, "a template must have at most %d special tokens", MOST_TOKENS) end
    for _, number in ipairs {-1, id, type_of(at, special)} do out[#out + 1] = number end
  end
end

local function template(at, of, name, sequences)
  local pieces, out, count = field(of, name), {tokens = 0}, 0
  if type(pieces) ~= "table" or next(pieces) ~= nil and not pieces[1] then must_be(at, name, "a list of pieces") end
  if #pieces > MOST_PIECES then fail(at, "%s must have at most %d pieces", name, MOST_PIECES) end
  for _, piece in ipairs(pieces) do
    local special, sequence = field(piece, "SpecialToken"), field(piece, "Sequence")
    if special then
      add_special(at, of, special, out)
    else
      local number = sequences[field(sequence, "id")]
        or fail(at, "a piece of %s must be a SpecialToken or the Sequence A%s", name, sequences.B and " or B" or "")
      count = count + 1
      if count > MOST_SEQUENCES then
        fail(at, "%s must have at most %d pieces that are a Sequence", name, MOST_SEQUENCES)
      end
      for _, value in ipairs {number, 0, type_of(at, sequence)} do out[#out + 1] = value end
    end
  end
  return out
end

-- Readers of each part's steps by type, rows of fields or functions; steps of other types have no fields.
local parts = {
  normalizer = {
    list = "normalizers",
    BertNormalizer = function(at, of, step)
      fill_fields(at, of, step, {
        {"clean_text", 1, "boolean", true}, {"handle_chinese_chars", 2, "boolean", true},
        {"lowercase", 4, "boolean", true},
      })
      fill_fields(at, of, step, {{"strip_accents", 3, "boolean", step.on[4]}})
    end,
    Strip = {{"strip_left", 1, "boolean", true}, {"strip_right", 2, "boolean", true}},
    Precompiled = {{"precompiled_charsmap", "charsmap", "string", OPTIONAL}}, Replace = replace,
    Prepend = {{"prepend", "text", "string"}},
  },
  pre_tokenizer = {
    list = "pretokenizers",
    ByteLevel = function(at, of, step)
      fill_fields(at, of, step, level)
      step.regex = "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"
    end,
    CharDelimiterSplit = function(at, of, step)
      fill_fields(at, of, step, {{"delimiter", "text", "character"}})
      step.literal = step.text
    end,
    Metaspace = metaspace, Punctuation = {behavior},
    Split = function(at, of, step) -- on[1]: true if pieces are between the matches
      pattern(at, of, step)
      fill_fields(at, of, step, {behavior, {"invert", 1, "boolean", false}})
    end,
    Digits = {{"individual_digits", 1, "boolean", false}},
    FixedLength = function(at, of, step)
      fill_fields(at, of, step, {{"length", "first", "count", 5}})
      if step.first == 0 then must_be(at, "length", "at least 1") end
    end,
  },
  post_processor = {
    list = "processors", ByteLevel = level, BertProcessing = read_cls_and_sep, RobertaProcessing = read_cls_and_sep,
    TemplateProcessing = function(at, of, step)
      step.single, step.pair = template(at, of, "single", {A = 0}), template(at, of, "pair", {A = 0, B = 1})
    end,
  },
  decoder = {
    list = "decoders", BPEDecoder = {{"suffix", "text", "string", "</w>"}},
    WordPiece = {{"prefix", "text", "string", "##"}, {"cleanup", 1, "boolean", true}}, Metaspace = metaspace,
    Strip = {{"content", "text", "character"}, {"start", "first", "count", 0}, {"stop", "second", "count", 0}},
    Replace = replace,
    CTC = {
      {"pad_token", "text", "string", "<pad>"}, {"word_delimiter_token", "word", "string", "|"},
      {"cleanup", 1, "boolean", true},
    },
  },
}

local MOST_STEPS = 256

-- Appends the steps of a part to `out`; those of a Sequence in its order.
local function add_steps(at, of, kinds, out)
  local kind = field(of, "type")
  if type(kind) ~= "string" then fail(at, "type is missing") end
  if kind == "Sequence" then
    local items = field(of, kinds.list)
    if type(items) ~= "table" then must_be(at, kinds.list, "a list", items) end
    for _, item in ipairs(items) do add_steps(at, item, kinds, out) end
    return
  end
  if #out == MOST_STEPS then fail(at, "a Sequence must have at most %d steps", MOST_STEPS) end
  local step, read = {type = kind, on = {}}, kind ~= "list" and kinds[kind]
  at.step = kind
  if type(read) == "table" then fill_fields(at, of, step, read) elseif read then read(at, of, step) end
  at.step = nil
  out[#out + 1] = step
end

-- ---- models

local models = {
  BPE = {
    {"unk_token", "unknown_text", "string", OPTIONAL}, {"continuing_subword_prefix", "prefix", "string", OPTIONAL},
    {"end_of_word_suffix", "suffix", "string", OPTIONAL}, {"fuse_unk", "fuse_unknown", "boolean", false},
    {"byte_fallback", "byte_fallback", "boolean", false}, {"ignore_merges", "ignore_merges", "boolean", false},
  },
  Unigram = {{"unk_id", "unknown", "count", OPTIONAL}, {"byte_fallback", "byte_fallback", "boolean", false}},
  WordPiece = {
    {"unk_token", "unknown_text", "string", "[UNK]"}, {"continuing_subword_prefix", "prefix", "string", "##"},
    {"max_input_chars_per_word", "most_characters", "count", 100},
  },
  WordLevel = {{"unk_token", "unknown_text", "string", "<unk>"}},
}
local MOST_AFFIX = 32 -- most bytes of a prefix or suffix

local function read_model(at, of)
  if type(of) ~= "table" then must_be(at, "model", "an object", of) end
  local vocab, merges, dropout = field(of, "vocab"), field(of, "merges"), field(of, "dropout")
  local kind = field(of, "type")
  if type(kind) ~= "string" then -- older files have no type
    kind = merges and "BPE" or type(vocab) == "table" and vocab[1] and "Unigram"
      or field(of, "continuing_subword_prefix") and "WordPiece" or "WordLevel"
  end
  if not models[kind] then fail(at, "unsupported type '%s'", printable_name(kind, 40)) end
  local out = {type = kind, vocab = vocab, merges = merges}
  fill_fields(at, of, out, models[kind])
  if type(vocab) ~= "table" then
    must_be(at, "vocab", kind == "Unigram" and "a list of tokens and their scores"
      or "an object of tokens and their ids")
  end
  if kind == "BPE" then
    if dropout and dropout ~= 0 then fail(at, "dropout must be null or 0; it is for training a tokenizer") end
    if #(out.prefix or "") > MOST_AFFIX or #(out.suffix or "") > MOST_AFFIX then
      fail(at, "a prefix or suffix must have at most %d bytes", MOST_AFFIX)
    end
    if type(merges) ~= "table" then must_be(at, "merges", "a list", merges) end
  end
  return out
end

local token_rows = {
  {"content", "content", "string"}, {"special", "special", "boolean", false},
  {"single_word", "single_word", "boolean", false}, {"lstrip", "lstrip", "boolean", false},
  {"rstrip", "rstrip", "boolean", false},
}

local function read_added(at, list)
  local out = {}
  if list ~= nil and type(list) ~= "table" then must_be(at, "added_tokens", "a list", list) end
  for _, item in ipairs(list or {}) do
    local token = {}
    fill_fields(at, item, token, token_rows)
    fill_fields(at, item, token, {{"normalized", "normalized", "boolean", not token.special}})
    if token.content ~= "" then out[#out + 1] = token end
  end
  return out
end

local function decode(text, path)
  if not core.is_utf8_text(text) then
    options.malformed_file(path, "JSON", "it must be UTF-8 without NUL bytes; write those as \\u0000")
  end
  local ok, root = pcall(core.json_decode, text, NULL)
  if not ok then options.fail_in_file(path, "%s", (root:gsub("^.-json_decode: ", ""))) end
  return root
end

local tokenizer_json = {}

--- Returns three values: C's tokenizer for the text of a file, and the file's truncation and padding, or nil. path: the
--- file's, for messages; root: the text's decoded value, if it is known.
function tokenizer_json.read(text, path, root)
  root = root or decode(text, path)
  local at, plan = {path = path}, {}
  if field(root, "model") == nil then fail(at, "not a tokenizer.json: model is missing") end
  for part, kinds in pairs(parts) do
    local of = field(root, part)
    at.part = part
    if of ~= nil then
      plan[part] = {}
      add_steps(at, of, kinds, plan[part])
    end
  end
  at.part = "model"
  plan.model = read_model(at, field(root, "model"))
  at.part = "added_tokens"
  local added = read_added(at, field(root, "added_tokens"))
  local tokenizer = core.tokenizer_new(plan, path)
  local all_right, why = pcall(core.tokenizer_add, tokenizer, added)
  if not all_right then fail(at, "%s", options.without_position(why)) end
  return tokenizer, field(root, "truncation"), field(root, "padding")
end

return tokenizer_json

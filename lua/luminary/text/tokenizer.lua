--- lm.text: Provides tokenizers, which read Hugging Face's files and GGUF files.
local core = require "luminary.core"
local json_encode = require "luminary.base.json_encode"
local class = require "luminary.base.class"
local lists = require "luminary.base.lists"
local load_module = require "luminary.base.load_module"
local options = require "luminary.base.options"
local signature = require "luminary.base.signature"
local files = require "luminary.text.vocabulary_files"
local padding = require "luminary.text.padding"
local paths = require "luminary.paths"
local special = require "luminary.text.special_tokens"
local streamer = require "luminary.text.streamer"
local tokenizer_json = require "luminary.text.tokenizer_json"
local fail = options.fail

local function call(self, ...) return self:forward(...) end
local function new(of)
  return class.object(of, {__call = call, __index = special.get, __newindex = special.set})
end

--- text.Tokenizer(path [, {base = 1, add_bos_token, add_eos_token}]): Loads a tokenizer of Hugging Face's formats,
--- SentencePiece's, tiktoken's or a GGUF file's.
---
--- Fields: vocab_size is the number of tokens without added ones, #tokenizer that of all ids. pad_token, eos_token,
--- bos_token, unk_token, cls_token, sep_token and mask_token are strings or nil, and may be set; pad_token_id and so
--- on are their ids. extra_special_tokens, all_special_tokens, all_special_ids and special_tokens_map list them.
--- model_max_length is 1e30 where no file sets it; truncation without max_length uses it. padding_side and
--- truncation_side are "left" or "right". chat_template is a text, a table of texts by name, or nil.
local Tokenizer = class.guard(class.new("Tokenizer", nil, function(of, ...)
  local object = new(of)
  object:init(class.arguments(of, ...))
  return object
end))
for key, method in pairs(class.methods) do Tokenizer[key] = method end
Tokenizer.is = class.is
Tokenizer.strict = true
--- Names of a tokenizer's fields, for help and completion.
Tokenizer.__fields = {
  "vocab_size", "model_max_length", "padding_side", "truncation_side", "chat_template", "extra_special_tokens",
  "all_special_tokens", "all_special_ids", "special_tokens_map", "add_bos_token", "add_eos_token",
}
for _, role in ipairs(special.roles) do
  Tokenizer.__fields[#Tokenizer.__fields + 1] = role
  Tokenizer.__fields[#Tokenizer.__fields + 1] = role .. "_id"
end
Tokenizer.__makes = "json"
local no_training = "tokenizers are not trained here; Python's tokenizers train one, whose tokenizer.json this reads"
local reads_file = "text.Tokenizer(path) reads a file"
local shortens = "tokenizer(text, {truncation = true, max_length = n}) shortens"
local pads_list = "tokenizer(list, {padding = true}) pads"
Tokenizer.__missing = {
  from_file = reads_file, from_str = reads_file, from_buffer = reads_file,
  from_pretrained = "text.Tokenizer(path) reads a file or folder that is there; nothing is downloaded",
  get_vocab_size = "#tokenizer is that; tokenizer.vocab_size is without tokens that were added",
  encode_plus = "tokenizer(text) is that", batch_encode_plus = "tokenizer(list) is that",
  enable_padding = pads_list, pad = pads_list, no_padding = "tokenizer(list, {padding = false})",
  decode_batch = "batch_decode is that",
  enable_truncation = shortens, truncate = shortens, truncate_sequences = shortens,
  no_truncation = "tokenizer(text, {truncation = false}) does not shorten",
  convert_tokens_to_string = "decode(convert_tokens_to_ids(tokens)) is that",
  build_inputs_with_special_tokens = "encode(text, pair) puts them there",
  prepare_for_model = "encode(text, pair) does it",
  num_special_tokens_to_add = "tokenizer:encode(\"\").ids:numel() is that",
  additional_special_tokens = "extra_special_tokens is that", get_added_vocab = "get_vocab has them too",
  train = no_training, train_from_iterator = no_training, train_new_from_iterator = no_training,
  push_to_hub = "save_pretrained(folder) writes files",
  id_to_piece = "id_to_token is that", piece_to_id = "token_to_id is that",
}

-- C's handles by tokenizer, made again from the text in another process or thread; `encoders` has separate ones that
-- encode texts for SentencePiece's models.
local handles, encoders = setmetatable({}, {__mode = "k"}), setmetatable({}, {__mode = "k"})

local function handle_in(all, self, root)
  local one = all[self]
  if not one then
    one = tokenizer_json.read(self.json, self.path, root and root())
    all[self] = one
    if #self.added > 0 then core.tokenizer_add(one, self.added) end
  end
  return one
end

local function handle(self) return handle_in(handles, self) end

local function encoder(self)
  return self.kinds and next(self.kinds) and handle_in(encoders, self, function()
    return require("luminary.text.model_files").for_encoding(self.json, self.kinds)
  end) or handle(self)
end

special.computed.vocab_size = function(self) return (select(2, core.tokenizer_size(handle(self)))) end

local function add(self, list)
  local count = core.tokenizer_add(handle(self), list)
  for _, one in ipairs(list) do
    self.added[#self.added + 1] = one
    if self.kinds then self.kinds[one.content], encoders[self] = nil, nil end
  end
  return count
end

-- Adds the tokens of said.added (said: special.read's result) that are not added tokens yet.
local function add_missing(self, said)
  local missing = {}
  for _, one in ipairs(said.added) do
    local id = core.tokenizer_id(handle(self), one.content)
    local is_added = id and select(2, core.tokenizer_token(handle(self), id))
    if one.normalized == nil then one.normalized = not one.special end
    if not is_added or self.kinds and self.kinds[one.content] then missing[#missing + 1] = one end
  end
  local ok, why = pcall(add, self, missing)
  if not ok then options.fail_in_file(said.path, options.without_position(why)) end
end

-- Sets the post-processor that adds bos_token and eos_token to texts, by add_bos_token and add_eos_token.
local function set_around(self)
  local function one(role)
    if not self["add_" .. role] then return nil end
    local id = self[role .. "_id"] or fail("Tokenizer: add_%s requires a %s, and the tokenizer has none", role, role)
    return {self[role], id - self.base}
  end
  self.json = files.with_field(self.json, "post_processor", files.around_json(one "bos_token", one "eos_token"))
  handles[self], encoders[self] = nil, nil
end

for _, flag in ipairs {"add_bos_token", "add_eos_token"} do
  special.written[flag] = function(self, value)
    rawset(options.record(self).values, flag, options.arg("Tokenizer", flag, value, "boolean"))
    set_around(self)
  end
end

-- Sets add_bos_token and add_eos_token from the options, or from a tokenizer_config.json without a tokenizer.json.
local function choose_around(self, o, said, has_file)
  for _, role in ipairs {"bos_token", "eos_token"} do
    local flag, id = "add_" .. role, self[role .. "_id"]
    if o[flag] ~= nil then
      self[flag] = o[flag]
    elseif said[flag] and not has_file then
      if not id then
        fail("Tokenizer: '%s': %s requires a %s, and the tokenizer has none; pass {%s = false}", said.path, flag, role,
          flag)
      end
      self[flag] = true
    elseif said[flag] and id and not self:encode("").ids:eq(id):any():item() then
      core.warn(("Tokenizer: %s says %s, and tokenizer.json adds none; nor do transformers. {%s = true} adds it, and "
        .. "{%s = false} ends this warning"):format(said.path, flag, flag, flag))
    end
  end
end

-- Fills a tokenizer. json: a tokenizer.json's text; path: for messages; said: what special.read returned, or nil;
-- kinds: what model_files.read returned, or nil. Returns the tokenizer.
local function fill_tokenizer(self, who, path, json, base, said, kinds)
  if base > 1 then options.must_be(who, "base", "0 (as in the file) or 1", base) end
  said = said or {tokens = {}, extra = {}, added = {}, model_max_length = special.NO_MAXIMUM}
  self.path, self.json, self.base, self.added, self.kinds = path, json, base, {}, kinds
  local truncation, pads
  handles[self], truncation, pads = tokenizer_json.read(json, path, said.root)
  local settings = padding.settings(path, truncation, pads)
  if said.added[1] then add_missing(self, said) end
  self.settings, self.model_max_length, self.chat_template = settings, said.model_max_length, said.chat_template
  self.padding_side = said.padding_side or settings.padding_side or "right"
  self.truncation_side = said.truncation_side or settings.truncation_side or "right"
  self.extra_special_tokens = said.extra
  for role, token in pairs(said.tokens) do self[role] = token end
  local pad = settings.pad_id and core.tokenizer_token(handle(self), settings.pad_id)
  if pad and not self.pad_token then self.pad_token = pad end
  return self
end

Tokenizer.init = signature.of([[Tokenizer(path: string, {base: natural = 1, add_bos_token: boolean,
  add_eos_token: boolean, pattern: string})]], function(self, path, o)
  if path:find("%z") then options.must_be("Tokenizer", "path", "a string", path) end
  local folder = core.file_kind(path) == "a folder" and path
    or path == "tokenizer.json" and "." or path:match "^(.*)/tokenizer%.json$"
  local json, parts, said, kinds = files.read_any(path, o.pattern)
  said = said or folder and special.read(folder)
  fill_tokenizer(self, "Tokenizer", path, json, o.base, said, kinds)
  for _, role in ipairs(special.roles) do
    local token = parts and parts[role]
    if token and not self[role] and self:token_to_id(token) then self[role] = token end
  end
  choose_around(self, o, said or {}, not parts)
end)

function Tokenizer:repr() return ("Tokenizer(%s, %d ids from %d)"):format(self.path, #self, self.base) end

--- tokenizer:len(): Returns the number of ids, as #tokenizer does: one more than the largest, counted from 0.
function Tokenizer:len() return core.tokenizer_size(handle(self)) end

local strategies = {longest_first = 0, only_first = 1, only_second = 2}

-- Returns five tensors for a text: ids, offsets, type ids, mask of special tokens, and word ids.
local function encode(self, text, pair, o)
  local most = o.truncation and o.max_length or -1
  return core.tokenizer_encode(encoder(self), text, pair, o.add_special_tokens, most, strategies[o.truncation] or 0,
    o.truncation_side == "left", self.base)
end

local function encoding(self, text, pair, o)
  local ids, offsets, types, specials, words = encode(self, text, pair, o)
  return {
    ids = ids, offsets = offsets, type_ids = types, special_tokens_mask = specials,
    attention_mask = core.ops.ones_like(ids), word_ids = words,
  }
end

--- tokenizer:encode(text [, pair] [, {add_special_tokens = true, truncation = false, max_length, truncation_side,
--- padding = false, pad_to_multiple_of, pad_token_id, padding_side}]): Returns a table of int64 tensors of n tokens:
--- ids [n], from 1; offsets [n, 2], the first and last byte of each token, so that text:sub(offsets[i][1],
--- offsets[i][2]) is its text ("" for special tokens around it); type_ids [n], 0 or, for a second text, 1 (a model's
--- token_type_ids are type_ids + 1); special_tokens_mask and attention_mask [n]; word_ids [n], the number of the word
--- in its text, from 1, or 0 for special tokens. pair: a second text. truncation: true or "longest_first",
--- "only_first", "only_second": at most max_length tokens, special ones included; max_length alone truncates too.
--- padding as in tokenizer(…). The file's truncation and padding are the defaults. text must be UTF-8.
---
--- The time is linear in the text's length: a file whose patterns or tokens would take longer is an error that names
--- them.
function Tokenizer:encode(text, pair, opts)
  local who = "Tokenizer:encode"
  if opts == nil and type(pair) == "table" then pair, opts = nil, pair end
  options.arg(who, "text", text, "string")
  if pair ~= nil then options.arg(who, "pair", pair, "string") end
  local o = padding.options(self, who, opts)
  return padding.encodings(self, who, {encoding(self, text, pair, o)}, o)[1]
end

--- tokenizer:encode_batch(texts [, {…}]): Returns the list of what encode returns for each of a list of texts, or of
--- pairs {text, pair}, with its options. Padding makes all as long as the longest.
function Tokenizer:encode_batch(texts, opts)
  local who, list = "Tokenizer:encode_batch", {}
  local o = padding.options(self, who, opts)
  for i, one in ipairs(options.arg(who, "texts", texts, "table")) do
    local text, pair = one, nil
    if type(one) == "table" then text, pair = one[1], one[2] end
    options.arg(who, ("texts[%d]"):format(i), text, "string")
    if pair ~= nil then options.arg(who, ("texts[%d][2]"):format(i), pair, "string") end
    list[i] = encoding(self, text, pair, o)
  end
  return padding.encodings(self, who, list, o)
end

--- tokenizer:forward(…): Encodes texts as tokenizer(…) does: tokenizer(text [, pair] [, {padding = false, truncation =
--- false, max_length, add_special_tokens = true, pad_to_multiple_of, pad_token_id, padding_side, truncation_side}])
--- returns a table of int64 tensors [N, L] for a model: input_ids, from 1; attention_mask, 1 for tokens and 0 for
--- padding; token_type_ids, 1 or 2 (0 or 1 with {base = 0}). text: a string (N is 1) or a list of strings; pair
--- likewise. Texts of different lengths require padding: true for the length of the longest, "max_length" for
--- max_length, by default model_max_length. max_length without padding or truncation truncates too. Padding has the id
--- pad_token_id, that of tokenizer.pad_token, the file's, or that of "[PAD]" or "<pad>". The file's padding and
--- truncation are the defaults.
function Tokenizer:forward(text, pair, opts)
  if opts == nil and type(pair) == "table" and pair[1] == nil then pair, opts = nil, pair end
  local who = "Tokenizer"
  local texts, pairs_of = padding.texts(who, "text", text), pair ~= nil and padding.texts(who, "pair", pair)
  if pairs_of and #pairs_of ~= #texts then
    fail("%s: text and text_pair must have the same length, got %d and %d", who, #texts, #pairs_of)
  end
  local o = padding.options(self, who, opts)
  local ids, types = {}, {}
  for i, one in ipairs(texts) do
    local _
    ids[i], _, types[i] = encode(self, one, pairs_of and pairs_of[i] or nil, o)
  end
  return padding.batch(self, who, ids, types, o)
end

--- tokenizer:tokenize(text [, pair]): Returns the list of tokens of a text, without special tokens around it.
function Tokenizer:tokenize(text, pair)
  options.arg("Tokenizer:tokenize", "text", text, "string")
  if pair ~= nil then options.arg("Tokenizer:tokenize", "pair", pair, "string") end
  return self:convert_ids_to_tokens((encode(self, text, pair, {add_special_tokens = false})))
end

-- Returns a list of ids, a number or a tensor as int64 [n].
local function as_ids(who, ids)
  if type(ids) == "number" then ids = {ids} end
  if type(ids) == "table" then
    local field = options.is_plain(options.arg(who, "ids", ids, "table")) and options.named_field(ids)
    if field then
      fail("%s: ids must be a list of ids or a tensor, got a table with the field '%s'%s", who, tostring(field),
        ids.input_ids and ": ids.input_ids" or "")
    end
    for i, id in ipairs(ids) do options.arg(who, ("ids[%d]"):format(i), id, "integer") end
    ids = #ids > 0 and core.tensor(ids, {dtype = "int64"}) or core.ops.zeros({0}, {dtype = "int64"})
  end
  options.arg(who, "ids", ids, "tensor")
  if ids.ndim == 2 and ids.shape[1] == 1 then ids = ids:view(-1) end
  if ids.ndim > 1 then
    fail("%s: ids must be 1-d, got %s%s", who, options.describe(ids),
      ids.ndim == 2 and "; tokenizer:batch_decode(ids) decodes each row" or "")
  end
  return ids:reshape(-1):to("cpu", "int64"):contiguous()
end

--- tokenizer:decode(…): Returns the text of ids, a tensor [n] or [1, n], a list or a number.
--- Ids beyond the vocabulary have no text; those before the first, such as 0, are an error.
Tokenizer.decode = signature.of("Tokenizer:decode(ids, {skip_special_tokens = true})", function(self, ids, o)
  return core.tokenizer_decode(handle(self), as_ids("Tokenizer:decode", ids), o.skip_special_tokens, self.base)
end)

--- tokenizer:batch_decode(ids [, {skip_special_tokens = true}]): Returns the list of the texts of the rows of a tensor
--- [N, L], or of a list of arguments of decode.
function Tokenizer:batch_decode(ids, opts)
  local who = "Tokenizer:batch_decode"
  if core.is_tensor(ids) then
    if ids.ndim ~= 2 then options.wrong_shape(who, "ids", ids, "[N, L]") end
    ids = ids:unbind(1)
  end
  return lists.map(options.arg(who, "ids", ids, "table"), function(row) return self:decode(row, opts) end)
end

--- tokenizer:token_to_id(token): Returns the id of a token, from 1, or nil.
function Tokenizer:token_to_id(token)
  local id = core.tokenizer_id(handle(self), options.arg("Tokenizer:token_to_id", "token", token, "string"))
  return id and id + self.base
end

--- tokenizer:convert_tokens_to_ids(tokens): Returns the id of a token, or the list of the ids of a list of tokens, from
--- 1. An unknown token has the id of unk_token, or nil, which in a list is an error.
function Tokenizer:convert_tokens_to_ids(tokens)
  local who = "Tokenizer:convert_tokens_to_ids"
  if type(tokens) == "string" then return self:token_to_id(tokens) or self.unk_token_id end
  local out = {}
  for i, token in ipairs(options.arg(who, "tokens", tokens, "string[]")) do
    out[i] = self:token_to_id(token) or self.unk_token_id or fail("%s: the vocabulary has no token '%s' and no "
      .. "unk_token", who, token)
  end
  return out
end

--- tokenizer:get_vocab(): Returns a table from all tokens, added ones included, to their ids, from 1.
function Tokenizer:get_vocab()
  local out, t = {}, handle(self)
  for id = 0, #self - 1 do
    local token = core.tokenizer_token(t, id)
    if token then out[token] = id + self.base end
  end
  return out
end

--- tokenizer:id_to_token(id): Returns the token of an id as it is in the vocabulary, where GPT-2's spaces are "Ġ"; nil
--- if there is none.
function Tokenizer:id_to_token(id)
  return (core.tokenizer_token(handle(self), options.arg("Tokenizer:id_to_token", "id", id, "integer") - self.base))
end

--- tokenizer:convert_ids_to_tokens(ids): Returns the list of the tokens of ids, as id_to_token returns them, with ""
--- for unknown ids.
function Tokenizer:convert_ids_to_tokens(ids)
  return lists.map(as_ids("Tokenizer:convert_ids_to_tokens", ids):totable(), function(id)
    return self:id_to_token(id) or ""
  end)
end

--- tokenizer:apply_chat_template(messages [, {tools, documents, add_generation_prompt = false, tokenize = true,
--- chat_template, …}]): Returns the tokens of a conversation in the form that the model was trained with, as
--- tokenizer(text) returns them; the text with {tokenize = false}. messages: a list of {role = "user", content =
--- "…"}. tools: a list of JSON schemas of functions. add_generation_prompt: begins the model's answer. chat_template:
--- a template of Jinja, or the name of one, by default tokenizer.chat_template. Others are variables of the template,
--- such as {enable_thinking = false}.
---
--- messages, tools and documents may be JSON texts, whose keys keep their order. The keys of Lua's tables are written
--- in the order role, content, tool_calls, id, type, function, name, description, parameters, arguments, title, text,
--- properties, required, return, then others by name; a table without entries is {}.
---
---   local messages = {{role = "user", content = "Hello"}}
---   local batch = tokenizer:apply_chat_template(messages,
---     {add_generation_prompt = true})
---   print(tokenizer:decode(net:generate(batch.input_ids)))
function Tokenizer:apply_chat_template(messages, opts)
  return load_module "luminary.text.chat_template".apply(self, messages, opts)
end

local token_options = [[({content: string, single_word = false, lstrip = false, rstrip = false, normalized: boolean,
  special: boolean})]]

local function add_all(self, who, tokens, is_special)
  if type(tokens) == "string" then tokens = {tokens} end
  local list = {}
  if options.is_plain(tokens) and options.named_field(tokens) then
    fail("%s: tokens must be a list of strings or of {content = …}, got a table with the field '%s'", who,
      options.named_field(tokens))
  end
  for i, token in ipairs(options.arg(who, "tokens", tokens, "table")) do
    local one = signature.read(token_options, who, token)
    if (one.content or "") == "" then fail("%s: token %d has no content", who, i) end
    if one.special == nil then one.special = is_special end
    if one.normalized == nil then one.normalized = not one.special end
    list[i] = one
  end
  return add(self, list)
end

--- tokenizer:add_tokens(tokens): Adds tokens that are found in a text before it is cut. Returns the number of new ones.
--- tokens: a list of strings, or of {content, single_word = false, lstrip = false, rstrip = false, normalized = true,
--- special = false}. single_word: not within a word; lstrip, rstrip: with the spaces before and after; normalized:
--- found in the normalized text. New ids follow the last one, so a model's embedding must have #tokenizer rows.
function Tokenizer:add_tokens(tokens) return add_all(self, "Tokenizer:add_tokens", tokens, false) end

--- tokenizer:add_special_tokens(tokens): Adds tokens as add_tokens does; decode leaves them out, and they are not
--- normalized. Names set their roles: {pad_token = "[PAD]", eos_token = …, extra_special_tokens = {…}}.
function Tokenizer:add_special_tokens(tokens)
  local who = "Tokenizer:add_special_tokens"
  local list, give_parts = special.named(who, tokens)
  local count = add_all(self, who, list or tokens, true)
  if give_parts then give_parts(self) end
  return count
end

--- tokenizer:to_str(): Returns the text of a tokenizer.json with all added tokens.
function Tokenizer:to_str()
  local added = core.tokenizer_added(handle(self))
  return files.with_field(self.json, "added_tokens", added[1] and json_encode(added) or "[]")
end

--- tokenizer:save(path): Writes a tokenizer.json with all added tokens, which Hugging Face's tokenizers read, too.
function Tokenizer:save(path)
  core.write_pieces(options.arg("Tokenizer:save", "path", path, "string"), {self:to_str()})
end

--- tokenizer:save_pretrained(folder): Writes tokenizer.json, and tokenizer_config.json with the special tokens,
--- model_max_length, the sides and the chat template, into a folder, which is made if it is missing.
function Tokenizer:save_pretrained(folder)
  paths.mkdir(options.arg("Tokenizer:save_pretrained", "folder", folder, "string"))
  self:save(folder .. "/tokenizer.json")
  core.write_pieces(folder .. "/tokenizer_config.json", {special.config(self)})
end

--- Returns a function for generate's streamer, which calls write(text) for each id, where bytes of an incomplete
--- character wait for the next id. A call without an id writes the rest. It returns write's result: false ends
--- generate.
---
---   local stream = tokenizer:streamer(io.write)
---   local ids = tokenizer("Once").input_ids
---   net:generate(ids, {max_new_tokens = 40, streamer = stream})
---   stream()
Tokenizer.streamer = signature.of([[Tokenizer:streamer(write: callable,
  {skip_special_tokens = true})]], function(self, write, opts)
  return streamer(function(ids) return self:decode(ids, opts) end, write)
end)

--- Loads the byte-level BPE tokenizer of GPT-2 from its two files.
local ByteLevelBPETokenizer = signature.of([[ByteLevelBPETokenizer(vocab: string, merges: string,
  {add_prefix_space = false, lowercase = false, trim_offsets = false, special_tokens: string[],
  base: natural = 1})]], function(vocab, merges, o)
  local path = ("%s with %s"):format(vocab, merges)
  return fill_tokenizer(new(Tokenizer), "ByteLevelBPETokenizer", path, files.byte_level_json(vocab, merges, o), o.base)
end)

--- Loads the WordPiece tokenizer of BERT from its vocabulary.
local BertWordPieceTokenizer = signature.of(files.bert_arguments, function(vocab, o)
  local self = fill_tokenizer(new(Tokenizer), "BertWordPieceTokenizer", vocab, files.bert_json(vocab, o), o.base)
  for _, role in ipairs {"unk_token", "sep_token", "cls_token", "pad_token", "mask_token"} do
    if self:token_to_id(o[role]) then self[role] = o[role] end
  end
  return self
end)

return {
  Tokenizer = Tokenizer, ByteLevelBPETokenizer = ByteLevelBPETokenizer,
  BertWordPieceTokenizer = BertWordPieceTokenizer,
}

-- Tests the files beside tokenizer.json, and special tokens that scripts set. Ids and texts are those that transformers
-- 5.23 returns for the same files, unless said.
local core = require "luminary.core"
local lm = require "luminary"
local temp = require "spec.support.temp"

local folder = temp.during(setup, teardown)

local function write(name, text) return temp.write(folder .. "/" .. name, text) end

local function fails(pattern, f, ...)
  local ok, message = pcall(f, ...)
  assert.is_false(ok)
  assert.is_truthy(tostring(message):find(pattern, 1, true), message)
end

-- Makes a tokenizer of words a, b and c, with what `more` adds to the file and `config` says beside it.
local function made(config, more, map)
  write("tokenizer.json", '{"model": {"type": "WordLevel", "unk_token": "?", "vocab": {"?": 0, "a": 1, "b": 2, "c": 3, '
    .. '"<s>": 4}}, "pre_tokenizer": {"type": "Whitespace"}, "added_tokens": [{"id": 5, "content": "</s>", '
    .. '"special": true}]' .. (more or "") .. "}")
  os.remove(folder .. "/tokenizer_config.json")
  os.remove(folder .. "/special_tokens_map.json")
  if config then write("tokenizer_config.json", config) end
  if map then write("special_tokens_map.json", map) end
  return lm.text.Tokenizer(folder, {base = 0})
end

local full = [[{"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": {"__type": "AddedToken",
  "content": "</s>", "lstrip": false, "normalized": false, "rstrip": false, "single_word": false},
  "pad_token": "<pad>", "unk_token": "?", "model_max_length": 3, "padding_side": "left", "mask_token": null,
  "additional_special_tokens": ["<x>"], "chat_template": "{{ hi }}", "added_tokens_decoder": {
  "10": {"content": "<y>", "special": false, "lstrip": false, "rstrip": false, "normalized": true},
  "5": {"content": "</s>", "special": true}}}]]

describe("lm.text.Tokenizer", function()
  it("reads tokenizer_config.json beside its file", function()
    local t = made(full)
    assert.equal(9, #t)
    assert.equal(5, t.vocab_size)
    assert.same({"<s>", "</s>", "<pad>", "?"}, {t.bos_token, t.eos_token, t.pad_token, t.unk_token})
    assert.same({4, 5, 7, 0}, {t.bos_token_id, t.eos_token_id, t.pad_token_id, t.unk_token_id})
    assert.is_nil(t.mask_token)
    assert.is_nil(t.cls_token_id)
    assert.same({"<s>", "</s>", "?", "<pad>", "<x>"}, t.all_special_tokens)
    assert.same({4, 5, 0, 7, 8}, t.all_special_ids)
    assert.same({"<x>"}, t.extra_special_tokens)
    assert.same({bos_token = "<s>", eos_token = "</s>", pad_token = "<pad>", unk_token = "?"}, t.special_tokens_map)
    assert.equal("{{ hi }}", t.chat_template)
    assert.same({a = 1, b = 2, c = 3, ["?"] = 0, ["<s>"] = 4, ["</s>"] = 5, ["<y>"] = 6, ["<pad>"] = 7, ["<x>"] = 8},
      t:get_vocab())
    assert.same({1, 4, 2, 8, 6}, t:encode("a <s> b <x><y>").ids:totable())
    local batch = t({"a b c b a", "b"}, {padding = true, truncation = true})
    assert.same({{1, 2, 3}, {7, 7, 2}}, batch.input_ids:totable())
    assert.same({{1, 1, 1}, {0, 0, 1}}, batch.attention_mask:totable())
    assert.same({{7, 7, 1}}, t("a", {padding = "max_length"}).input_ids:totable())
    assert.equal(8, lm.text.Tokenizer(folder .. "/tokenizer.json").pad_token_id) -- from 1
    local elsewhere = lm.text.Tokenizer(write("other.json", temp.read(folder .. "/tokenizer.json")))
    assert.is_nil(elsewhere.pad_token)
    assert.equal(1e30, elsewhere.model_max_length)
    write("chat_template.jinja", "{{ more }}")
    assert.equal("{{ more }}", made(full).chat_template)
    os.remove(folder .. "/chat_template.jinja")
  end)

  it("reads special_tokens_map.json for what tokenizer_config.json leaves open", function()
    local t = made('{"pad_token": "c", "sep_token": null}', nil,
      '{"pad_token": "b", "cls_token": {"content": "<cls>", "lstrip": true}, "sep_token": "b"}')
    assert.same({"c", "<cls>"}, {t.pad_token, t.cls_token})
    assert.is_nil(t.sep_token)
    assert.same({1, 6}, t:encode("a  <cls>").ids:totable())
    assert.same({2, 8}, t:encode("a  <cls>").offsets[2]:totable()) -- transformers differs: lstrip as in the file
  end)

  it("says what is wrong with those files", function()
    for text, message in pairs {
      ["{"] = "tokenizer_config.json': malformed JSON at byte 2", ["3"] =
        "tokenizer_config.json': expected a JSON object",
      ['{"pad_token": 3}'] = "tokenizer_config.json': pad_token must be a token",
      ['{"pad_token": {"lstrip": true}}'] = "tokenizer_config.json': pad_token must be a token",
      ['{"model_max_length": "x"}'] = "tokenizer_config.json': model_max_length must be an integer",
      ['{"model_max_length": 0.5}'] = "tokenizer_config.json': model_max_length must be an integer",
      ['{"added_tokens_decoder": {"5": "<y>", "1e2": "<z>", "4x": "<w>", "nan": 3, "12": "<v>"}}'] =
        "tokenizer_config.json': added_tokens_decoder[nan] must be a token",
      ['{"eos_token": "a\255"}'] = "tokenizer_config.json': add_tokens: token 1 must be valid UTF-8",
      ['{"padding_side": "up"}'] = "tokenizer_config.json': padding_side must be 'left' or 'right'",
      ['{"added_tokens_decoder": {"4": {}}}'] = "tokenizer_config.json': added_tokens_decoder[4]",
      ['{"extra_special_tokens": [1]}'] = "tokenizer_config.json': extra_special_tokens[1] must be",
    } do
      fails(message, made, text)
    end
  end)

  it("has parts of tokens that scripts set", function()
    local t = made()
    assert.is_nil(t.pad_token_id)
    fails("the tokenizer has no pad token", t, {"a b", "a"}, {padding = true})
    t.eos_token = "</s>"
    t.pad_token = t.eos_token
    assert.equal(5, t.pad_token_id)
    assert.same({{1, 2}, {1, 5}}, t({"a b", "a"}, {padding = true}).input_ids:totable())
    t.pad_token_id = 2
    assert.equal("b", t.pad_token)
    t.pad_token = false
    assert.is_nil(t.pad_token)
    t.padding_side = "left"
    t.pad_token = "c"
    assert.same({{1, 2}, {3, 1}}, t({"a b", "a"}, {padding = true}).input_ids:totable())
    fails("pad_token: the vocabulary has no token '[PAD]'; add it with tokenizer:add_special_tokens({pad_token =",
      function() t.pad_token = "[PAD]" end)
    fails("pad_token_id: no token has the id 77", function() t.pad_token_id = 77 end)
    fails("vocab_size cannot be set", function() t.vocab_size = 3 end)
    assert.equal(2, t:add_special_tokens {pad_token = "[PAD]", cls_token = "a"})
    assert.same({6, 1, 7}, {t.pad_token_id, t.cls_token_id, #t})
    t:add_special_tokens {extra_special_tokens = {"<x>", {content = "<y>", lstrip = true}}}
    assert.same({"<x>", "<y>"}, t.extra_special_tokens)
    fails("unknown special token 'foo'; special tokens are bos_token,", t.add_special_tokens, t, {foo = "a"})
    fails("a list of tokens is {{content = …}}", t.add_special_tokens, t, {content = "a"})
    fails("tokens must be a list of strings or of {content = …}, got a table with", t.add_tokens, t, {content = "a"})
  end)

  it("keeps them on the way to another thread and into files", function()
    local t = made(full)
    t:add_tokens {"<new>"}
    t.cls_token = "<new>"
    local pool = lm.mp.Pool(1, {method = "thread"})
    local there = pool:map(function(text)
      return {t:encode(text).ids:totable(), t.pad_token_id, t.cls_token_id, t(text).input_ids:totable()}
    end, {"a<new>"})
    pool:close()
    pool:join()
    assert.same({{{1, 9}, 7, 9, {{1, 9}}}}, there)
    t:save_pretrained(folder .. "/saved/here")
    local again = lm.text.Tokenizer(folder .. "/saved/here", {base = 0})
    assert.same(t:get_vocab(), again:get_vocab())
    assert.same(t.special_tokens_map, again.special_tokens_map)
    assert.same({3, "left", "{{ hi }}"}, {again.model_max_length, again.padding_side, again.chat_template})
    assert.same({1, 9, 8, 6}, again:encode("a<new><x> <y>").ids:totable())
    for _, name in ipairs {"t5", "mixed"} do -- scores, and flags of added tokens
      local file = core.json_decode(temp.read "spec/golden/tokenizers.json", false)[name]
      local one = lm.text.Tokenizer(write("one.json", file.file))
      one:save(folder .. "/two.json")
      local two = lm.text.Tokenizer(folder .. "/two.json")
      assert.same(core.json_decode(file.file, false), core.json_decode(temp.read(folder .. "/two.json"), false))
      for _, case in ipairs(file.cases) do
        assert.is_true(one:encode(case.text).ids:equal(two:encode(case.text).ids))
      end
    end
  end)

  it("converts tokens to ids and back", function()
    local t = made(full)
    assert.equal(1, t:convert_tokens_to_ids "a")
    assert.equal(0, t:convert_tokens_to_ids "zz")
    assert.same({1, 0}, t:convert_tokens_to_ids {"a", "zz"})
    t = made()
    assert.is_nil(t:convert_tokens_to_ids "zz")
    fails("the vocabulary has no token 'zz' and no unk_token", t.convert_tokens_to_ids, t, {"a", "zz"})
    assert.same({"a", "b"}, t:convert_ids_to_tokens {1, 2})
  end)

  it("takes max_length as transformers do", function()
    local t = made(full)
    assert.same({{1, 2}}, t("a b c b a", {max_length = 2}).input_ids:totable())
    assert.same({1, 2}, t:encode("a b c b a", {max_length = 2}).ids:totable())
    assert.same({{1, 2, 3, 2, 1}}, t("a b c b a").input_ids:totable())
    assert.same({{1, 2, 3, 2, 1}}, t("a b c b a", {max_length = 2, truncation = false}).input_ids:totable())
    assert.same({{7, 1, 2}}, t("a b", {max_length = 3, padding = "max_length"}).input_ids:totable())
    fails("max_length requires truncation =", t, {"a b c", "a"}, {max_length = 2, padding = true}) -- a warning there
    assert.same({1, 2, 3}, t:encode("a b c b a", {truncation = true}).ids:totable())
    fails("truncation requires max_length", made(), "a", {truncation = true})
  end)

  -- The rest is what `tokenizers` 0.23 returns.
  it("pads what it encodes as the file says", function()
    local function padded(what) return made(nil, ', "padding": ' .. what) end
    local t = padded('{"strategy": {"Fixed": 5}, "direction": "Right", "pad_to_multiple_of": null, "pad_id": 3, '
      .. '"pad_type_id": 7, "pad_token": "c"}')
    local e = t:encode "a b"
    assert.same({1, 2, 3, 3, 3}, e.ids:totable())
    assert.same({0, 0, 7, 7, 7}, e.type_ids:totable())
    assert.same({1, 1, 0, 0, 0}, e.attention_mask:totable())
    assert.same({0, 0, 1, 1, 1}, e.special_tokens_mask:totable())
    assert.same({{1, 1}, {3, 3}, {1, 0}, {1, 0}, {1, 0}}, e.offsets:totable())
    assert.same({1, 2, 0, 0, 0}, e.word_ids:totable())
    assert.same({1, 2}, t:encode("a b", {padding = false}).ids:totable())
    assert.equal("c", t.pad_token)
    t = padded('{"strategy": "BatchLongest", "direction": "Left", "pad_to_multiple_of": 4, "pad_id": 3, '
      .. '"pad_type_id": 0, "pad_token": "c"}')
    assert.same({3, 3, 1, 2}, t:encode("a b").ids:totable())
    local rows = {}
    for i, row in ipairs(t:encode_batch {"a b", {"a b c", "a b"}}) do rows[i] = row.ids:totable() end
    assert.same({{3, 3, 3, 3, 3, 3, 1, 2}, {3, 3, 3, 1, 2, 3, 1, 2}}, rows)
    fails("tokenizer.json': padding must be at most", lm.text.Tokenizer, write("tokenizer.json",
      '{"model": {"type": "WordLevel", "unk_token": "a", "vocab": {"a": 0}}, "padding": {"strategy": '
      .. '{"Fixed": 2e9}, "pad_id": 0}}'))
    fails("texts[2] must be a string, got 3", t.encode_batch, t, {"a", 3})
    assert.same({}, t:encode_batch {})
  end)

  it("puts bos_token and eos_token around texts where that is asked for", function()
    local config = [[{"bos_token": "<s>", "eos_token": "</s>", "add_bos_token": %s}]]
    made(config:format "false")
    local function ids_of(o, ...)
      local t = lm.text.Tokenizer(folder, {base = 0, add_bos_token = o[1], add_eos_token = o[2]})
      local e = t(...)
      return e.input_ids:totable()[1], e.token_type_ids:totable()[1]
    end
    assert.same({1, 2}, (ids_of({}, "a b")))
    assert.same({4, 1, 2}, (ids_of({true}, "a b")))
    assert.same({1, 2, 5}, (ids_of({false, true}, "a b")))
    assert.same({{4, 1, 2, 5, 4, 3, 5}, {0, 0, 0, 0, 1, 1, 1}}, {ids_of({true, true}, "a b", "c")})
    local t = lm.text.Tokenizer(folder, {add_bos_token = true})
    assert.same({5, 2}, t("a").input_ids:totable()[1])
    assert.same({2}, t("a", {add_special_tokens = false}).input_ids:totable()[1])
    t.add_eos_token = true
    t:add_tokens {"new"}
    assert.same({5, 7, 6}, t("new").input_ids:totable()[1])
    t.add_bos_token = false
    assert.same({true, false}, {t.add_eos_token, t.add_bos_token})
    assert.same({2, 6}, t("a b", {truncation = true, max_length = 2}).input_ids:totable()[1])
    t:save(folder .. "/again.json")
    assert.same({7, 6}, lm.text.Tokenizer(folder .. "/again.json")("new").input_ids:totable()[1])
    fails("Tokenizer: add_bos_token must be true or false, got 1", function() t.add_bos_token = 1 end)
    made '{"eos_token": "</s>"}'
    fails("Tokenizer: add_bos_token requires a bos_token, and the tokenizer has none", ids_of, {true}, "a")
    -- the folder's settings count as in transformers 5, with a warning where they do not
    made(config:format "true")
    write("child.lua", ([[
      local ids = require("luminary").text.Tokenizer("%s", {base = 0})("a b").input_ids
      print(table.concat(ids:totable()[1], " "))]]):format(folder))
    local _, text = temp.run(folder, ("luajit %s/child.lua"):format(folder))
    assert.matches("warning: Tokenizer: .*/tokenizer_config.json says add_bos_token, and tokenizer.json adds none; "
      .. "nor do transformers. {add_bos_token = true} adds it.*\n1 2\n$", text)
    os.remove(folder .. "/tokenizer.json")
    write("vocab.json", '{"<|endoftext|>": 0, "a": 1, "b": 2}')
    write("merges.txt", "#version: 0.2\n")
    write("tokenizer_config.json", [[{"add_bos_token": true}]])
    assert.equal("<|endoftext|>", lm.text.Tokenizer(folder).eos_token)
    assert.same({0, 1, 2}, (ids_of({}, "ab")))
    assert.same({0, 1, 2, 0}, (ids_of({nil, true}, "ab")))
  end)

  it("of a vocab.txt has BERT's tokens", function()
    local here = folder .. "/bert"
    lm.paths.mkdir(here)
    temp.write(here .. "/vocab.txt", "[PAD]\n[UNK]\n[CLS]\n[SEP]\na\n")
    local t = lm.text.Tokenizer(here)
    assert.same({"[PAD]", 1, "[CLS]", "[SEP]", "[UNK]"}, {t.pad_token, t.pad_token_id, t.cls_token, t.sep_token,
      t.unk_token})
    assert.is_nil(t.mask_token)
  end)

  it("that is not there is an error which says that nothing is downloaded", function()
    fails("Tokenizer: cannot open 'bert-base-uncased': No such file or directory; nothing is downloaded: "
      .. "text.Tokenizer(path) reads a tokenizer.json, a SentencePiece model", lm.text.Tokenizer, "bert-base-uncased")
    local here = folder .. "/old"
    lm.paths.mkdir(here)
    temp.write(here .. "/tokenizer.model", "x")
    fails("tokenizer.model': neither SentencePiece's nor tiktoken's; transformers in Python may convert it",
      lm.text.Tokenizer, here)
  end)

  it("says what names of others' are here", function()
    local t = made()
    for name, message in pairs {
      encode_plus = "tokenizer(text) is that", batch_encode_plus = "tokenizer(list) is that",
      get_vocab_size = "#tokenizer is that",
      pad = "{padding = true}", train = "not trained here", decode_batch = "batch_decode is that",
      additional_special_tokens = "extra_special_tokens is that",
    } do
      fails(message, function() return t[name] end)
    end
    local help = require "luminary.help"
    assert.is_truthy(help.text("lm.text"):find("lm.text.Tokenizer(path)", 1, true))
    assert.is_truthy(help.text("pad_token_id"):find("pad_token_id and so on", 1, true))
    assert.is_truthy(help.text("tokenizer:encode"):find("tokenizer:encode(text", 1, true))
    assert.is_truthy(help.text("tokenizer:apply_chat_template"):find("add_generation_prompt", 1, true))
    local _, why = help.text "AutoTokenizer"
    assert.is_truthy(why:find("here it is text.Tokenizer", 1, true), why)
    fails("unknown option 'return_tensors'", t, "a", {return_tensors = "pt"})
    fails("text has no 'PreTrainedTokenizer'; it is named", function() return lm.text.PreTrainedTokenizer end)
  end)
end)

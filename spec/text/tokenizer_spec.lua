-- Tokenizers against Hugging Face's (scripts/dev/golden/gen_tokenizers.py, which also compares many more strings).
local core = require "luminary.core"
local lm = require "luminary"
local temp = require "spec.support.temp"
local within = require("spec.support.time").within

local golden = core.json_decode(temp.read "spec/golden/tokenizers.json", false)
local folder = temp.during(setup, teardown)

local function write(name, text) return temp.write(folder .. "/" .. name, text) end

local function load(name, opts) return lm.text.Tokenizer(write(name .. ".json", golden[name].file), opts) end

-- Returns a tokenizer.json of a few words: `more` is put into it, `model` into the model.
local function small(more, model)
  return ('{"model": {"type": "WordLevel", "unk_token": "?", "vocab": {"?": 0, "a": 1, "b": 2, "c": 3}%s}%s}'):format(
    model or "", more or ', "pre_tokenizer": {"type": "Whitespace"}')
end

local function of(text) return lm.text.Tokenizer(write("tokenizer.json", text)) end

local function fails(pattern, f, ...)
  local ok, message = pcall(f, ...)
  assert.is_false(ok)
  assert.is_truthy(tostring(message):find(pattern), message)
end

local function escaped(text)
  return (text:gsub("[%z\1-\31\127\\]", function(c) return ("\\%02x"):format(c:byte()) end))
end

describe("lm.text", function()
  for name in pairs(golden) do
    it("encodes and decodes as tokenizers does: " .. name, function()
      local tokenizer = load(name, {base = 0})
      for _, case in ipairs(golden[name].cases) do
        local e, spans = tokenizer:encode(case.text, case.pair), {}
        for i, place in ipairs(e.offsets:totable()) do spans[i] = ("%d:%d"):format(place[1] - 1, place[2]) end
        assert.equal(case.result, table.concat({
          table.concat(e.ids:totable(), " "), table.concat(spans, " "), table.concat(e.type_ids:totable(), " "),
          escaped(tokenizer:decode(e.ids, {skip_special_tokens = false})), escaped(tokenizer:decode(e.ids)),
        }, "\t"))
      end
    end)
  end

  describe("Tokenizer", function()
    it("counts ids from 1, which models take and generate gives", function()
      local one, zero = load "gpt2", load("gpt2", {base = 0})
      local ids = one:encode("the naïve 漢字").ids
      assert.is_true(ids:equal(zero:encode("the naïve 漢字").ids + 1))
      assert.equal("the naïve 漢字", one:decode(ids))
      assert.equal(one:token_to_id "th", zero:token_to_id "th" + 1)
      assert.equal("th", one:id_to_token(one:token_to_id "th"))
      local net = lm.models.gpt2 {vocab_size = #one, n_positions = 64, n_embd = 8, n_layer = 1, n_head = 2}
      local made = net:generate(one("the of").input_ids, {max_new_tokens = 4})
      assert.equal("the of", one:decode(made):sub(1, 6))
      fails("base must be 0 %(as in the file%) or 1, got 2", load, "gpt2", {base = 2})
      fails("decode: ids must be at least 1, got 0", one.decode, one, {0})
    end)

    it("says which bytes of the text each token was made of", function()
      local tokenizer, text = load "bert", "Naïve, 漢字 THE [SEP]"
      local e = tokenizer:encode(text)
      local parts = {}
      for i, place in ipairs(e.offsets:totable()) do parts[i] = text:sub(place[1], place[2]) end
      assert.equal("", parts[1])
      assert.equal("", parts[#parts])
      assert.equal("[SEP]", parts[#parts - 1])
      assert.equal("Naïve,漢字THE[SEP]", table.concat(parts))
      assert.equal(1, e.special_tokens_mask[1])
      assert.equal(0, e.word_ids[1])
      assert.equal(1, e.word_ids[2])
    end)

    it("trims offsets of a second text by that text, also behind a template", function()
      local tokenizer = of([[{"model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "Ġ": 2, "Ġb": 3},
        "merges": ["Ġ b"]},
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "use_regex": true},
        "post_processor": {"type": "Sequence", "processors": [{"type": "TemplateProcessing",
          "single": [{"Sequence": {"id": "A", "type_id": 0}}], "pair": [{"Sequence": {"id": "A", "type_id": 0}},
          {"Sequence": {"id": "B", "type_id": 1}}], "special_tokens": {}},
          {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true}]}}]])
      assert.same({{1, 1}, {2, 2}, {4, 4}, {6, 6}}, tokenizer:encode("a", " b b b").offsets:totable())
    end)

    it("makes batches for models", function()
      local tokenizer = of(small(', "pre_tokenizer": {"type": "Whitespace"}, "added_tokens": [{"id": 4, "content": '
        .. '"[PAD]", "special": true}]'))
      local batch = tokenizer({"a b c", "b"}, {padding = true})
      assert.same({{2, 3, 4}, {3, 5, 5}}, batch.input_ids:totable())
      assert.same({{1, 1, 1}, {1, 0, 0}}, batch.attention_mask:totable())
      fails("Tokenizer: text must be a string or a list of strings, got 5", tokenizer, 5)
      fails("Tokenizer: pair must be a string or a list of strings, got a tensor %[2%]", tokenizer, "a", lm.ones(2))
      assert.same({{1, 1, 1}, {1, 1, 1}}, batch.token_type_ids:totable()) -- embeddings count them from 1
      batch = tokenizer({"a b c", "b"},
        {padding = true, padding_side = "left", pad_token_id = 1, pad_to_multiple_of = 4})
      assert.same({{1, 2, 3, 4}, {1, 1, 1, 3}}, batch.input_ids:totable())
      assert.same({{0, 1, 1, 1}, {0, 0, 0, 1}}, batch.attention_mask:totable())
      batch = tokenizer("a b c", {padding = "max_length", max_length = 5})
      assert.same({1, 5}, {unpack(batch.input_ids.shape)})
      assert.same({{2, 3}}, tokenizer("a b c", {truncation = true, max_length = 2}).input_ids:totable())
      assert.same({{3, 4}}, tokenizer("a b c", {truncation = true, max_length = 2, truncation_side = "left"}).input_ids
        :totable())
      batch = tokenizer({"a b c", "a"}, {"c", "c"}, {truncation = "only_first", max_length = 2})
      assert.same({{2, 4}, {2, 4}}, batch.input_ids:totable())
      assert.same({{1, 2}, {1, 2}}, batch.token_type_ids:totable())
      fails("texts of 1 to 3 tokens do not form a tensor; pass {padding = true}", tokenizer, {"a b c", "b"})
      fails("the tokenizer has no pad token", of(small()), {"a b c", "b"}, {padding = true})
      fails("truncation requires max_length", tokenizer, "a", {truncation = true})
      fails("text and text_pair must have the same length, got 2 and 1", tokenizer, {"a", "b"}, {"c"})
      fails("text must not be empty", tokenizer, {})
    end)

    it("pads and truncates as the file says, unless options say otherwise", function()
      local tokenizer = of(small(', "pre_tokenizer": {"type": "Whitespace"}, "truncation": {"direction": "Right", '
        .. '"max_length": 2, "strategy": "LongestFirst", "stride": 0}, "padding": {"strategy": {"Fixed": 4}, '
        .. '"direction": "Left", "pad_to_multiple_of": null, "pad_id": 3, "pad_type_id": 7, "pad_token": "c"}'))
      assert.same({{4, 4, 2, 3}}, tokenizer("a b c").input_ids:totable())
      assert.same({{8, 8, 1, 1}}, tokenizer("a b c").token_type_ids:totable())
      assert.same({{2, 3, 4}}, tokenizer("a b c", {truncation = false, padding = false}).input_ids:totable())
    end)

    it("takes more tokens", function()
      local tokenizer = of(small())
      assert.equal(4, #tokenizer)
      assert.equal(2, tokenizer:add_tokens {"<x>", {content = "yes", single_word = true}})
      assert.equal(1, tokenizer:add_special_tokens "<end>")
      assert.equal(0, tokenizer:add_tokens {"<x>"})
      assert.equal(7, #tokenizer)
      local ids = tokenizer:encode("a<x>yes yesb<end>").ids
      assert.same({2, 5, 6, 1, 7}, ids:totable())
      assert.equal("a <x> yes ?", tokenizer:decode(ids))
      assert.equal("a <x> yes ? <end>", tokenizer:decode(ids, {skip_special_tokens = false}))
      for _, order in ipairs {{"AB", "Ab", "aB"}, {"Ab", "aB", "AB"}} do -- the first of those that read the same wins
        local one = of(small ', "normalizer": {"type": "Lowercase"}')
        one:add_tokens(order)
        assert.equal(order[1], one:id_to_token(one:encode("ab").ids[1]))
        one:add_tokens {{content = order[3], special = true, normalized = true}}
        assert.equal(order[3], one:id_to_token(one:encode("ab").ids[1]))
      end
      fails("has no content", tokenizer.add_tokens, tokenizer, {""})
      fails("add_tokens: token 1 must be valid UTF%-8", tokenizer.add_tokens, tokenizer, {"\255"})
    end)

    it("travels to other threads and processes", function()
      local tokenizer = of(small())
      tokenizer:add_tokens {"<x>"}
      local pool = lm.mp.Pool(1, {method = "thread"})
      local there = pool:map(function(text) return tokenizer:encode(text).ids:totable() end, {"a<x>", "b"})
      pool:close()
      pool:join()
      assert.same({{2, 5}, {3}}, there)
    end)

    it("writes text while a model goes on, whole characters alone", function()
      local tokenizer = load "gpt2"
      local text = "naïve 漢字 👍🏽 of"
      local ids, parts = tokenizer:encode(text).ids:totable(), {}
      local stream = tokenizer:streamer(function(part) parts[#parts + 1] = part end)
      for _, id in ipairs(ids) do stream(id) end
      assert.equal(text, table.concat(parts))
      assert.is_true(#parts < #ids)
      for _, part in ipairs(parts) do assert.is_nil(part:find "\239\191\189") end
      parts = {}
      stream = tokenizer:streamer(function(part) parts[#parts + 1] = part end)
      for i = 1, #tokenizer:encode("x漢").ids:totable() - 1 do stream(tokenizer:encode("x漢").ids[i]) end
      assert.equal("x", table.concat(parts))
      stream()
      assert.equal("x\239\191\189", table.concat(parts)) -- writes the waiting bytes as they are
      stream = tokenizer:streamer(function() return false end)
      assert.equal(false, stream(tokenizer:token_to_id "th"))
      fails("2 ids at once", stream, 1, 2)
      local pieces = load "llama2" -- llama2's decoder drops the first space of all
      parts = {}
      stream = pieces:streamer(function(part) parts[#parts + 1] = part end)
      for _, id in ipairs(pieces:encode("the of 👍 and").ids:totable()) do stream(id) end
      stream()
      assert.equal("the of 👍 and", table.concat(parts))
    end)

    it("reads vocab.json and merges.txt, and vocab.txt", function()
      local parts = core.json_decode(golden.gpt2.file, false)
      local merges = {"#version: 0.2"}
      for i, pair in ipairs(parts.model.merges) do merges[i + 1] = table.concat(pair, " ") end
      parts.model.vocab["<|endoftext|>"] = parts.added_tokens[1].id
      local vocab = write("vocab.json", require("luminary.base.json_encode")(parts.model.vocab))
      local lines = write("merges.txt", table.concat(merges, "\n") .. "\n")
      local one = lm.text.ByteLevelBPETokenizer(vocab, lines, {special_tokens = {"<|endoftext|>"}})
      os.remove(folder .. "/tokenizer.json")
      local another, golden_one = lm.text.Tokenizer(folder), load "gpt2"
      for _, case in ipairs(golden.gpt2.cases) do
        local ids = golden_one:encode(case.text).ids
        assert.is_true(ids:equal(one:encode(case.text).ids))
        assert.is_true(ids:equal(another:encode(case.text).ids))
        assert.equal(golden_one:decode(ids), one:decode(ids))
      end
      write("merges.txt", "#version\na b c\n")
      fails("merges%.txt': line 2 must be a pair of", lm.text.ByteLevelBPETokenizer, vocab, lines)
      write("merges.txt", "#version\na b\na\0 b\n")
      fails("merges%.txt': line 3 contains a NUL byte", lm.text.ByteLevelBPETokenizer, vocab, lines)
      os.remove(lines)
      fails("has neither tokenizer.json, nor", lm.text.Tokenizer, folder)

      local words = {}
      for token, id in pairs(core.json_decode(golden.bert.file, false).model.vocab) do words[id + 1] = token end
      local bert = lm.text.BertWordPieceTokenizer(write("vocab.txt", table.concat(words, "\n")))
      for _, case in ipairs(golden.bert.cases) do
        assert.is_true(load("bert"):encode(case.text, case.pair).ids:equal(bert:encode(case.text, case.pair).ids))
      end
    end)
  end)

  -- Ids and texts of tokenizers 0.23.
  it("has U+0000 in its tokens", function()
    local one = of [=[{"added_tokens": [{"id": 7, "content": "<\u0000>", "special": true, "normalized": false}],
      "normalizer": {"type": "Replace", "pattern": {"String": "x\u0000"}, "content": "\u0000y"},
      "model": {"type": "BPE", "vocab": {"\u0000": 0, "a": 1, "y": 2, "\u0000y": 3, "a\u0000y": 4, "\\u0000": 5,
        "b": 6}, "merges": [["\u0000", "y"], "a \u0000y"]}}]=]
    local function check(tokenizer)
      for text, want in pairs {
        ["a\0y"] = {{5}, "a\0y"}, ["ax\0"] = {{5}, "a\0y"}, ["\0\0b"] = {{1, 1, 7}, "\0 \0 b"},
        ["<\0>a"] = {{8, 2}, "<\0> a"}, ["x\0x\0"] = {{4, 4}, "\0y \0y"},
      } do
        local ids = tokenizer:encode(text).ids
        assert.same(want, {ids:totable(), tokenizer:decode(ids, {skip_special_tokens = false})})
      end
      assert.same({5, "a\0y", 8, 6}, {tokenizer:token_to_id "a\0y", tokenizer:id_to_token(5),
        tokenizer:token_to_id "<\0>", tokenizer:token_to_id "\\u0000"})
    end
    check(one)
    one:add_tokens {"n\0w\\u0000"}
    one:save(folder .. "/again.json")
    local again = lm.text.Tokenizer(folder .. "/again.json")
    check(again)
    assert.same({9}, again:encode("n\0w\\u0000").ids:totable())
    local unigram = of [=[{"model": {"type": "Unigram", "unk_id": 0, "vocab": [["?", 0], ["a\u0000", -1],
      ["a", -2]]}}]=]
    assert.same({2, 3}, unigram:encode("a\0a").ids:totable())
  end)

  describe("bad input", function()
    it("of more than 2^28 bytes is refused by its size", function()
      for name, companion in pairs {
        ["tokenizer.json"] = false, ["vocab.txt"] = false, ["merges.txt"] = "vocab.json", ["vocab.json"] = "merges.txt",
        ["tokenizer_config.json"] = "tokenizer.json",
      } do
        local here = temp.folder(folder)
        if companion then
          local text = companion == "tokenizer.json" and golden.bert.file or companion == "merges.txt" and "" or "{}"
          temp.write(here .. "/" .. companion, text)
        end
        local out = assert(io.open(here .. "/" .. name, "wb"))
        assert(out:seek("set", 1e11)) -- zero bytes take no room
        out:write "}"
        out:close()
        fails(name:gsub("%p", "%%%0") .. "': JSON and vocabularies must have at most 268435456 bytes, got 100000000001",
          lm.text.Tokenizer, here)
        temp.remove(here)
      end
    end)

    it("of files is an error that names them", function()
      fails("none': No such file or directory", lm.text.Tokenizer, folder .. "/none")
      for text, message in pairs {
        ["{"] = "': malformed JSON at byte 2: expected a key in quotes",
        ["[]"] = "not a tokenizer.json: model is missing",
        ["Some text\nof two lines"] = "': unknown format of a tokenizer: it begins with 'Some text'; "
          .. "text.Tokenizer%(path%) reads a tokenizer.json, a SentencePiece model %(tokenizer.model%), "
          .. "tiktoken's ranks, a GGUF file, or a folder .* leaves; text.BertWordPieceTokenizer%(path%) reads BERT's "
          .. "vocab.txt, text.ByteLevelBPETokenizer%(vocab, merges%) GPT%-2's vocab.json and merges.txt",
        ['{"model": {"type": "X"}}'] = "model: unsupported type 'X'",
        [small(', "normalizer": {"type": "NFX"}')] = "normalizer: unsupported type 'NFX'",
        [small(', "normalizer": {"type": "Replace", "pattern": {"Regex": "("}, "content": ""}')] =
          "normalizer: Replace: pattern '%(': missing closing parenthesis",
        [small(', "pre_tokenizer": {"type": "Split", "pattern": {"Regex": "[a&&b]"}, "behavior": "Isolated"}')] =
          "pattern '%[a&&b%]': && in a class is not supported",
        [small(', "pre_tokenizer": {"type": "Split", "pattern": {"Regex": "(((a{999}){999}){99}){9}"}}')] =
          "pattern '.*': ",
        [small(', "pre_tokenizer": {"type": "Split", "pattern": {"String": "a"}, "behavior": "Keep"}')] =
          "pre_tokenizer: Split: behavior must be one of 'Removed', 'Isolated', 'MergedWithPrevious', "
            .. "'MergedWithNext', 'Contiguous', got 'Keep'",
        [small(', "pre_tokenizer": {"type": "Metaspace", "replacement": "ab"}')] =
          "replacement must be one character, got 'ab'",
        [small(', "post_processor": {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "x"}}], '
          .. '"pair": [], "special_tokens": {}}')] = "special_tokens must have ids of 'x'",
        [small(', "normalizer": {"type": "Precompiled", "precompiled_charsmap": "AAAA"}')] =
          "precompiled_charsmap must be base64 of a trie and its texts",
        ['{"model": {"type": "BPE", "vocab": {"a": 0, "b": 1}, "merges": ["a b"]}}'] =
          "merge 1: 'ab' is not in the vocabulary",
        [small(', "post_processor": {"type": "TemplateProcessing", "single": ['
          .. ('{"SpecialToken": {"id": "x"}},'):rep(200) .. '{"Sequence": {"id": "A"}}], "pair": [], '
          .. '"special_tokens": {"x": {"ids": [' .. ("1,"):rep(99) .. '1]}}}')] =
          "a template must have at most 10000 special tokens",
        ['{"model": {"type": "BPE", "vocab": {"a": 0}, "merges": ["a"]}}'] = "merge 1 must be a pair of tokens",
        [small(', "post_processor": {"type": "TemplateProcessing", "single": ['
          .. ('{"Sequence": {"id": "A"}},'):rep(20) .. '{"Sequence": {"id": "A"}}], "pair": [], '
          .. '"special_tokens": {}}')] = "single must have at most 16 pieces that are a Sequence",
        ['{"model": {"type": "BPE", "vocab": {"a": -1}, "merges": []}}'] =
          "vocab: the id of 'a' must be an integer from 0 to 2147483646, got %-1",
        ['{"model": {"type": "BPE", "vocab": {"a": 0.5}, "merges": []}}'] =
          "the id of 'a' must be an integer from 0 to 2147483646, got 0.5",
        ['{"model": {"type": "BPE", "vocab": {"a": 1e15}, "merges": []}}'] =
          "must be an integer from 0 to 2147483646, got 1000000000000000",
        ['{"model": {"type": "BPE", "vocab": {"a": "b"}, "merges": []}}'] =
          "the id of 'a' must be an integer from 0 to 2147483646$",
        ['{"model": {"type": "BPE", "vocab": {"a": 2e9}, "merges": []}}'] =
          "ids of 1 tokens must be near that number, got 2000000000",
        ['{"model": {"type": "BPE", "dropout": 0.1, "vocab": {}, "merges": []}}'] = "dropout must be null or 0",
        ['{"model": {"type": "Unigram", "unk_id": 3, "vocab": [["a", 0]]}}'] =
          "unk_id must be less than the number of tokens %(1%), got 3",
        ['{"model": {"type": "Unigram", "vocab": [["a"]]}}'] = "vocab: entry 1 must be a list of a token and its score",
        [small(', "added_tokens": [{"content": "a\0"}]')] = "': malformed JSON: it must be UTF%-8 without NUL bytes",
        [small(', "added_tokens": [{"content": "a\192\128"}]')] =
          "': malformed JSON: it must be UTF%-8 without NUL bytes",
        ['{"a": "\\u0000", "\\\\u0000": ?}'] = "': malformed JSON at byte 28: expected a JSON value",
      } do
        fails("/tokenizer%.json.*" .. message, of, text)
      end
    end)

    -- Results of Oniguruma, as tokenizers 0.23 uses it.
    it("reads expressions as Oniguruma does", function()
      local function replaced(pattern, text)
        local one = of('{"model": {"type": "BPE", "unk_token": "u", "vocab": {"u": 0, "_": 1, "a": 2, "b": 3, " ": 4, '
          .. '"\\n": 5, "H": 6}, "merges": []}, "decoder": {"type": "Fuse"}, "normalizer": {"type": "Replace", '
          .. '"content": "_", "pattern": {"Regex": "' .. pattern .. '"}}}')
        return one:decode(one:encode(text).ids)
      end
      assert.equal("_ _", replaced("(?m:a.b)", "a\nb a b"))
      assert.equal("_", replaced("(?m)a.b", "a\nb"))
      assert.equal("_", replaced("(?i:A)", "a"))
      assert.equal("a_", replaced("a{,2}b", "aaab"))
      assert.equal("_a_b_", replaced("", "ab"))
      assert.equal("__a", replaced("\\\\X(?=b)|b", "bba"):sub(1, 2) .. "a")
      assert.equal("a_", replaced("\\\\H", "aH"))
      assert.equal("aub _", replaced("\\\\bb", "a\204\129b b"))
      assert.equal("au_ b", replaced("\\\\Bb", "a\204\129b b"))
      assert.equal("_a_ _b_", replaced("\\\\b", "a b"))
      assert.equal("_b", replaced("(a)\\\\1", "aab"))
      assert.equal("_", replaced("\\\\u0061", "a"))
      assert.equal("_", replaced("\\\\Q?a+\\\\E?", "aa"))
      for pattern, message in pairs {
        ["\\\\u12é"] = ": pattern '", ["\\\\u12"] = ": pattern '", ["a{2}+"] =
          "'a{2}%+': %+ after {…} is not supported",
        ["a{2}{3}"] = "a repetition of a repetition is not supported", ["a{2}?"] = "%? after {n} is not supported",
        ["a{1001}"] = "repetitions must be at most 1000", ["a{0,99999999999}"] = "repetitions must be at most 1000",
      } do
        fails(message, replaced, pattern, "a")
      end
    end)

    -- The hash of src/base/bytes.h, of 8 bytes and of a pair.
    it("made to have the same hashes is an error", function()
      local function behind(h, number)
        h = bit.bxor(h, number) * 0x9fb21c651e98df25ULL
        return bit.bxor(h, bit.rshift(h, 32))
      end
      local none = 0x9e3779b97f4a7c15ULL
      local function hash(word)
        local part = 0ULL
        for i = 8, 1, -1 do part = part * 256 + word:byte(i) end
        return behind(behind(behind(none, part), 0ULL), 8ULL)
      end
      local words = {}
      for i = 1, 90000 do
        local word = ("%08x"):format(i)
        if bit.band(hash(word), 4095) < 64 then words[#words + 1] = ('"%s": %d'):format(word, #words) end
      end
      fails("token '%x+' has the same hash as a thousand others", of,
        '{"model": {"type": "WordLevel", "unk_token": "?", "vocab": {' .. table.concat(words, ",") .. "}}}")

      local vocab, merges, at = {}, {}, 400
      for i = 0, at - 1 do vocab[i + 1] = ('"%d,": %d'):format(i, i) end
      for left = 0, 399 do
        for right = 0, 399 do
          if bit.band(behind(none, left * 0x100000000ULL + right), 4095) < 64 and #merges < 2048 then
            merges[#merges + 1] = ('"%d, %d,"'):format(left, right)
            vocab[at + 1] = ('"%d,%d,": %d'):format(left, right, at)
            at = at + 1
          end
        end
      end
      fails("merge %d+ has the same hash as a thousand others", of, '{"model": {"type": "BPE", "vocab": {'
        .. table.concat(vocab, ",") .. '}, "merges": [' .. table.concat(merges, ",") .. "]}}")
    end)

    it("of added tokens that normalizers make long is an error", function()
      local added, steps = {}, {}
      for i = 1, 2000 do added[i] = ('{"content": "a%d", "normalized": true}'):format(i) end
      for i = 1, 19 do steps[i] = '{"type": "Replace", "pattern": {"String": "a"}, "content": "aa"}' end
      local function file(last)
        return small((', "added_tokens": [%s], "normalizer": {"type": "Sequence", "normalizers": [%s]}'):format(
          table.concat(added, ","), last))
      end
      fails("added_tokens: text must have at most 96 bytes after normalization", of, file(table.concat(steps, ",")))
      for i = 1, 2000 do added[i] = ('{"content": "%s%d", "normalized": true}'):format(("a"):rep(40), i) end
      fails("takes too long on this text", of,
        file '{"type": "Replace", "pattern": {"Regex": "(a|aa)+$"}, "content": ""}')
      fails("a token must have at most 65536 bytes, got 70000", of, small(', "added_tokens": [{"content": "'
        .. ("a"):rep(70000)
        .. '"}]'))
    end)

    it("of text is an error that says where", function()
      local tokenizer = of(small())
      fails("encode: text must be valid UTF%-8, got 0xFF at byte 3", tokenizer.encode, tokenizer, "ab\255")
      fails("encode: text must be valid UTF%-8, got 0xED at byte 1", tokenizer.encode, tokenizer, "\237\160\128")
      fails("encode: pair must be valid UTF%-8, got 0xC0 at byte 1", tokenizer.encode, tokenizer, "a", "\192\128")
      fails("text must be a string, got 3", tokenizer.encode, tokenizer, 3)
      assert.equal(0, tokenizer:encode("").ids:numel())
      assert.equal("", tokenizer:decode {})
      assert.equal("", tokenizer:decode {1000})
      assert.equal("a", tokenizer:decode {2, 1e15, 2 ^ 31, 5})
      for _, id in ipairs {0.5, 1e300, 1 / 0, 0 / 0} do
        fails("ids%[1%] must be an integer", tokenizer.decode, tokenizer, {id})
        fails("id must be an integer", tokenizer.id_to_token, tokenizer, id)
      end
      fails("decode: ids must be at least 1, got %-5", tokenizer.decode, tokenizer, {-5})
      fails("ids must be a list of ids or a tensor, got a table with the field", tokenizer.decode, tokenizer,
        tokenizer "a")
      fails("ids must be a list of ids or a tensor, got a table with the field", tokenizer.decode, tokenizer, {x = 1})
      fails("ids must be a table, got the class Linear itself", tokenizer.decode, tokenizer, lm.nn.Linear)
      assert.is_nil(tokenizer:id_to_token(1e15))
      local without = of('{"model": {"type": "WordLevel", "unk_token": "?", "vocab": {"a": 0}}}')
      fails("'b' has no token, and unk_token '%?' is not in the vocabulary", without.encode, without, "b")
    end)

    it("takes time as the text grows #time", function()
      local function seconds(f, ...)
        local start = os.clock()
        f(...)
        return os.clock() - start
      end
      local function check(what, tokenizer, text)
        local function run(n) return seconds(tokenizer.encode, tokenizer, text(n)) end
        run(20000)
        local less = math.min(run(20000), run(20000), run(20000))
        local more = math.min(run(320000), run(320000))
        assert.is_true(more < 64 * less + 0.1, ("%s: %g s, and 16 times as long %g s"):format(what, less, more))
      end
      local function spaces(n) return (" "):rep(n) end
      local function word(n) return ("a"):rep(n) end
      for _, flags in ipairs {'"lstrip": true', '"rstrip": true', '"lstrip": true, "rstrip": true'} do
        for _, token in ipairs {" ", "  ", "<x>"} do
          local one = of(small((', "added_tokens": [{"content": "%s", "normalized": false, %s}]'):format(token, flags)))
          check("added " .. flags, one, spaces)
          check("added " .. flags, one, function(n) return ("<x>" .. spaces(100)):rep(n / 100) end)
        end
      end
      check("BPE", of('{"model": {"type": "BPE", "vocab": {"a": 0, "aa": 1, "aaaa": 2}, "merges": ["a a", "aa aa"]}}'),
        word)
      check("WordPiece", of('{"model": {"type": "WordPiece", "unk_token": "a", "max_input_chars_per_word": 1000000, '
        .. '"vocab": {"a": 0, "##a": 1, "##aaa": 2}}}'), word)
      check("Unigram", of('{"model": {"type": "Unigram", "unk_id": 0, "vocab": [["a", 0], ["aaaa", 1]]}}'), word)
      check("marks", of(small ', "normalizer": {"type": "NFC"}'), function(n) return "a" .. ("\204\129"):rep(n / 2) end)
      local wordpiece = of('{"model": {"type": "WordPiece", "unk_token": "?", "vocab": {"?": 0, "a": 1, "##a": 2}}}')
      assert.equal(100, wordpiece:encode(word(100)).ids:numel())
      assert.same({1}, wordpiece:encode(word(101)).ids:totable()) -- as in tokenizers, 100 characters of a word
    end)

    it("takes bounded time and memory #unsanitized", function()
      local slow = of(small(', "pre_tokenizer": {"type": "Split", "behavior": "Isolated", "pattern": '
        .. '{"Regex": "(a+)+(a+)+$"}}'))
      local start = os.clock()
      fails("pattern '%(a%+%)%+%(a%+%)%+%$' takes too long on this text", slow.encode, slow, ("a"):rep(5000) .. "b")
      -- No single match takes long here, but each position where one might begin does.
      local hostile = (("a"):rep(21) .. "!"):rep(8000) .. "b"
      for part, step in pairs {
        pre_tokenizer = '{"type": "Split", "behavior": "Isolated", "pattern": {"Regex": "%s"}}',
        normalizer = '{"type": "Replace", "content": "", "pattern": {"Regex": "%s"}}',
      } do
        local one = of(small((', "%s": %s'):format(part, step:format "(?:a|aa)+$")))
        fails("takes too long on this text", one.encode, one, hostile)
      end
      local decoder = of('{"model": {"type": "WordLevel", "unk_token": "?", "vocab": {"' .. ("x"):rep(22) .. '!": 0}}, '
        .. '"decoder": {"type": "Sequence", "decoders": [{"type": "Fuse"}, {"type": "Replace", "content": "", '
        .. '"pattern": {"Regex": "([a-z]+)+$"}}]}}')
      local ids = lm.full({8000}, 1, {dtype = "int64"})
      fails("takes too long on this text", decoder.decode, decoder, ids)
      -- Tries: a token that nearly stands everywhere.
      local most, text = ("a"):rep(20000), ("a"):rep(200000)
      for _, json in ipairs {
        small(', "added_tokens": [{"content": "' .. most .. 'b"}]'),
        '{"model": {"type": "Unigram", "unk_id": 0, "vocab": [["a", 0], ["' .. most .. 'b", 0]]}}',
        '{"model": {"type": "WordPiece", "unk_token": "a", "max_input_chars_per_word": 1000000, "vocab": {"a": 0, '
          .. '"##a": 1, "##' .. most .. 'b": 2}}}',
      } do
        local one = of(json)
        fails("text takes too many steps to tokenize: many long tokens share a prefix", one.encode, one, text)
      end
      local function doubles_of(n)
        local list = {}
        for i = 1, n do list[i] = '{"type": "Replace", "pattern": {"String": "a"}, "content": "aa"}' end
        return list
      end
      local doubles = '{"type": "Sequence", "%s": [' .. table.concat(doubles_of(60), ",") .. "]}"
      local long = of(small(', "normalizer": ' .. doubles:format "normalizers"))
      fails("encode: text must have at most 1048640 bytes after normalization", long.encode, long, "a")
      long = of(small(', "normalizer": {"type": "Sequence", "normalizers": [' .. table.concat(doubles_of(18), ",")
        .. ', {"type": "Replace", "pattern": {"String": "a"}, "content": " bbb"}]}, "pre_tokenizer": '
        .. '{"type": "Metaspace", "replacement": "▁"}'))
      fails("encode: text must have at most 1048640 bytes after normalization", long.encode, long, "a")
      long = of(small(', "decoder": ' .. doubles:format "decoders"))
      fails("decode: the text of 1 tokens must have at most %d+ bytes", long.decode, long, {2})
      within(os.clock() - start, 60)
      -- A merge whose pairs lead back to its own parts continues no longer than there are pairs.
      local cyclic = of('{"model": {"type": "BPE", "vocab": {"a": 0, "aa": 1, "aaa": 2, "aaaa": 3}, "merges": ["a a", '
        .. '"aa a", "a aa", "aa aa"]}}')
      assert.equal(("a"):rep(10000), cyclic:decode(cyclic:encode(("a"):rep(10000)).ids):gsub(" ", ""))
    end)
  end)
end)

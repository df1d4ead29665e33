-- Tokenizers in GGUF files: of the tokenizer.json files that scripts/dev/golden/gen_tokenizers.py wrote, which says
-- what Hugging Face's tokenizers make of texts.
local core = require "luminary.core"
local lm = require "luminary"
local gguf = require "spec.support.gguf"
local metadata_of = require "spec.support.gguf_vocabularies"
local temp = require "spec.support.temp"
local within = require("spec.support.time").within

local golden = core.json_decode(temp.read "spec/golden/tokenizers.json", false)

local function escaped(text)
  return (text:gsub("[%z\1-\31\127\\]", function(c) return ("\\%02x"):format(c:byte()) end))
end

describe("a GGUF file's tokenizer", function()
  local folder = temp.during(setup, teardown)

  local function of(metadata, opts, floating)
    local path = temp.write(folder .. "/x.gguf", gguf(metadata, {
      ["tokenizer.ggml.scores"] = true, [floating and "tokenizer.ggml." .. floating or ""] = true,
    }))
    return lm.text.Tokenizer(path, opts)
  end

  for name, pre in pairs {gpt2 = "gpt-2", llama3 = "llama-bpe", llama2 = false} do
    it("encodes and decodes as tokenizers does: " .. name, function()
      local tokenizer = of(metadata_of(name, pre or nil), {base = 0})
      for _, case in ipairs(golden[name].cases) do
        local ids = tokenizer:encode(case.text, case.pair).ids
        local wanted, whole, plain = case.result:match "^([^\t]*)\t[^\t]*\t[^\t]*\t([^\t]*)\t([^\t]*)$"
        assert.equal(wanted, table.concat(ids:totable(), " "))
        assert.equal(whole, escaped(tokenizer:decode(ids, {skip_special_tokens = false})))
        assert.equal(plain, escaped(tokenizer:decode(ids)))
      end
      local again = lm.text.Tokenizer(temp.write(folder .. "/again.json", tokenizer.json), {base = 0})
      assert.is_true(again:encode("the of").ids:equal(tokenizer:encode("the of").ids))
    end)
  end

  it("cuts words before capitals, as of GPT-4o and Tekken", function()
    local file, n = golden.gpt4o.file:gsub('"normalizer":{"type":"NFC"}', '"normalizer":null')
    assert.equal(1, n)
    local plain = lm.text.Tokenizer(temp.write(folder .. "/plain.json", file))
    local tokenizer, other = of(metadata_of("gpt4o", "gpt-4o")), of(metadata_of("gpt4o", "tekken"))
    for _, case in ipairs(golden.gpt4o.cases) do
      assert.is_true(tokenizer:encode(case.text).ids:equal(plain:encode(case.text).ids))
      assert.equal(plain:decode(plain:encode(case.text).ids), other:decode(other:encode(case.text).ids))
    end
  end)

  it("knows which tokens have a part, what stands around a text, and the template of chats", function()
    local said = metadata_of "llama2"
    said["tokenizer.chat_template"] = "{{ messages }}"
    local tokenizer = of(said)
    assert.same({"<s>", 2, "</s>", 3, "<unk>", "{{ messages }}"}, {tokenizer.bos_token, tokenizer.bos_token_id,
      tokenizer.eos_token, tokenizer.eos_token_id, tokenizer.unk_token, tokenizer.chat_template})
    assert.equal(2, tokenizer("the").input_ids[{1, 1}])
    assert.is_true(tokenizer("the", {add_special_tokens = false}).input_ids[{1, 1}] ~= 2)
    assert.is_true(of(said, {add_bos_token = false})("the").input_ids[{1, 1}] ~= 2)
    said["tokenizer.ggml.add_bos_token"], said["tokenizer.ggml.add_eos_token"] = false, true
    local ids = of(said)("the").input_ids
    assert.is_true(ids[{1, 1}] ~= 2)
    assert.equal(3, ids[{1, -1}])
    local plain = of(metadata_of("gpt2", "gpt-2"))
    assert.equal("the of", plain:decode(plain("the of").input_ids, {skip_special_tokens = false}))
    assert.equal(plain.bos_token_id, plain("<|endoftext|>").input_ids[{1, 1}])
    said["tokenizer.ggml.add_space_prefix"] = false
    assert.equal("the", of(said):decode(of(said)("the").input_ids))
    assert.equal("t", of(said):tokenize("t")[1])
  end)

  it("cuts a text into words as its tokenizer.ggml.pre says", function()
    local said = {
      ["general.architecture"] = "llama", ["tokenizer.ggml.model"] = "gpt2",
      ["tokenizer.ggml.tokens"] = {"1", "2", "11", "12", "1111", "Ġ", "é"},
      ["tokenizer.ggml.merges"] = {"1 1", "1 2", "11 11"},
    }
    for pre, wanted in pairs {
      ["gpt-2"] = "1111 12", ["llama-bpe"] = "11 1 11 2", qwen2 = "1 1 1 1 1 2", starcoder = "1 1 1 1 1 2",
      ["gpt-4o"] = "11 1 11 2", tekken = "1 1 1 1 1 2",
    } do
      said["tokenizer.ggml.pre"] = pre
      assert.equal(wanted, table.concat(of(said):tokenize "111112", " "), pre)
    end
  end)

  it("says what it lacks, and which are known", function()
    local function says(words, changes, opts)
      local said = metadata_of(changes.name or "gpt2", changes.name ~= "llama2" and "gpt-2" or nil)
      for key, value in pairs(changes) do
        if key ~= "name" then said["tokenizer.ggml." .. key] = value or nil end
      end
      local ok, problem = pcall(of, said, opts)
      assert.is_false(ok)
      assert.is_truthy(problem:find("x.gguf", 1, true) and problem:find(words, 1, true), problem)
    end
    says("has no tokenizer", {model = false})
    says("has no tokenizer; write it with lm.save", {model = "no_vocab"})
    says("has a tokenizer of kind 'bert'; supported are gpt2 (byte pairs)", {model = "bert"})
    says("unknown tokenizer.ggml.pre 'other'; supported are codeshell, command-r", {pre = "other"})
    says("missing tokenizer.ggml.pre", {pre = false})
    says("tokenizer.ggml.tokens is missing", {tokens = false})
    says("tokenizer.ggml.tokens must be a list", {tokens = "x"})
    says("tokenizer.ggml.tokens[0] must be a string", {tokens = {1, 2}})
    says("tokenizer.ggml.merges is missing", {merges = false})
    says("tokenizer.ggml.token_type has 1 entries for 331 tokens", {token_type = {1}})
    says("tokenizer.ggml.scores is missing", {name = "llama2", scores = false})
    says("merge 1 must be a pair of tokens", {merges = {"no such pair"}})
  end)

  local function pieces(tokens, changes)
    local said = {
      ["general.architecture"] = "llama", ["tokenizer.ggml.model"] = "llama", ["tokenizer.ggml.tokens"] = tokens,
      ["tokenizer.ggml.scores"] = {},
    }
    for i in ipairs(tokens) do said["tokenizer.ggml.scores"][i] = -i end
    for key, value in pairs(changes or {}) do said["tokenizer." .. key] = value end
    return said
  end

  -- Returns the error of a file, which names it.
  local function problem_of(said, ...)
    local ok, problem = pcall(of, said, ...)
    assert.is_false(ok, "no error")
    assert.is_truthy(problem:find("x.gguf", 1, true), problem)
    return problem
  end
  local function has(words, problem) assert.is_truthy(problem:find(words, 1, true), problem) end

  it("takes no time that grows faster than a file of long tokens, or says that it would", function()
    local before = os.clock()
    has("tokenizer.ggml.tokens[3] has 320000 bytes; at most 65536 are supported",
      problem_of(pieces {"<unk>", "a", "b", ("a"):rep(320000)}))
    local long = {"<unk>", "a"}
    for i = 1, 30 do long[#long + 1] = ("a"):rep(60000) .. i end
    assert.equal(32, of(pieces(long)).vocab_size)
    local alike = {"<unk>"}
    for i = 1, 1200 do alike[#alike + 1] = ("a"):rep(i) end
    has("the merges cannot be inferred: splits of tokens take", problem_of(pieces(alike)))
    within(os.clock() - before, 4)
    local tokens = {"<unk>", "a", "é", "aé", "éa", "aéa", "b"}
    local tokenizer = of(pieces(tokens, {["ggml.scores"] = {0, 0, 0, 1, 2, 3, 0}, ["ggml.add_space_prefix"] = false}))
    assert.same({"b", "aéa", "aé", "b"}, tokenizer:tokenize "baéaaéb")
  end)

  local abc = {"<unk>", "<s>", "</s>", "a", "b", "ab"}

  it("joins of pairs with equal scores those of more letters first", function()
    local tokens = {"<unk>", "<s>", "</s>", "a", "b", "é", "bé", "ab", "abé", "x"}
    local function merges(scores)
      local list = core.json_decode(of(pieces(tokens, {["ggml.scores"] = scores})).json, false).model.merges
      for i, pair in ipairs(list) do list[i] = table.concat(pair, " ") end
      return table.concat(list, ", ")
    end
    assert.equal("ab é, a bé, b é, a b", merges {0, 0, 0, 0, 0, 0, 0, 0, 0, 0})
    assert.equal("a b, ab é, a bé, b é", merges {0, 0, 0, 0, 0, 0, -2, 0.5, -1, 0})
  end)

  it("has each token once, and names for those without a text", function()
    has("tokenizer.ggml.tokens[0] and tokenizer.ggml.tokens[1] are both 'x'", problem_of(pieces {"x", "x", "a"}))
    local tokenizer = of(pieces({"<unk>", "<s>", "</s>", "a", "", ""}, {["ggml.add_space_prefix"] = false}), {base = 0})
    assert.same({"[EMPTY_4]", "[EMPTY_5]", 6}, {tokenizer:id_to_token(4), tokenizer:id_to_token(5), #tokenizer})
    assert.same({3}, tokenizer:encode("a", {add_special_tokens = false}).ids:totable())
  end)

  it("takes for tokens with a part those that the file names, or llama.cpp's", function()
    local function parts(tokens, changes)
      local t = of(pieces(tokens, changes), {base = 0})
      return {t.unk_token or 0, t.bos_token or 0, t.eos_token or 0, t.pad_token or 0}
    end
    assert.same({"<unk>", "<s>", "</s>", 0}, parts(abc))
    assert.same({1, 3}, of(pieces(abc), {base = 0}):encode("a").ids[{{1, 3, 2}}]:totable())
    assert.same({"x", "y", 0, 0}, parts {"x", "y"})
    assert.same({0, "y", "a", 0}, parts {"", "y", "a"})
    assert.same({"a", "b", "ab", "<s>"}, parts(abc, {
      ["ggml.unknown_token_id"] = 3, ["ggml.bos_token_id"] = 4, ["ggml.eos_token_id"] = 5,
      ["ggml.padding_token_id"] = 1,
    }))
    local none = 2 ^ 32 - 1 -- llama.cpp's -1, as its converters write it
    assert.same({"<unk>", "<s>", "</s>", 0},
      parts(abc, {["ggml.bos_token_id"] = none, ["ggml.padding_token_id"] = none}))
    local plain = metadata_of("gpt2", "gpt-2")
    plain["tokenizer.ggml.bos_token_id"], plain["tokenizer.ggml.eos_token_id"] = nil, nil
    assert.same({}, {of(plain).bos_token, of(plain).eos_token, of(plain).unk_token})
  end)

  it("takes an id beyond its tokens as none, with a warning", function()
    for part, value in pairs {bos = 6, padding = 99} do
      local name = part .. "_token_id"
      local path = temp.write(folder .. "/beyond.gguf", gguf(pieces(abc, {["ggml." .. name] = value})))
      local script = temp.write(folder .. "/beyond.lua", ([[
        local tokenizer = require("luminary").text.Tokenizer("%s")
        print(tokenizer.pad_token, tokenizer.bos_token)]]):format(path))
      local _, text = temp.run(folder, "luajit " .. script)
      has(("warning: Tokenizer: %s: tokenizer.ggml.%s is %d, and there are 6 tokens: it counts as none"):format(path,
        name, value), text)
      has("nil\t<s>", text)
    end
  end)

  it("says which token with a part, or which flag, does not fit", function()
    for part in ("bos eos unknown padding seperator"):gmatch "%S+" do
      local name = part .. "_token_id"
      for words, wrong in pairs {
        ["0.5"] = 0.5, ["-1"] = -1, nan = 0 / 0, ["the text '3'"] = "3", ["a list"] = {3},
      } do
        local is_floating = type(wrong) == "number"
        has(("tokenizer.ggml.%s must be a token id from 0 to 5, got %s"):format(name, words),
          problem_of(pieces(abc, {["ggml." .. name] = wrong}), nil, is_floating and name or nil))
      end
      has(("tokenizer.ggml.%s is 3, a token without text"):format(name),
        problem_of(pieces({"<unk>", "<s>", "</s>", ""}, {["ggml." .. name] = 3})))
    end
    for _, flag in ipairs {"add_bos_token", "add_eos_token", "add_space_prefix"} do
      has(("tokenizer.ggml.%s must be a boolean, got 1"):format(flag), problem_of(pieces(abc, {["ggml." .. flag] = 1})))
    end
    local plain = metadata_of("gpt2", "gpt-2")
    for _, part in ipairs {"bos", "eos"} do
      local flag = ("tokenizer.ggml.add_%s_token"):format(part)
      plain[("tokenizer.ggml.%s_token_id"):format(part)], plain[flag] = nil, true
      has(("add_%s_token requires a %s_token, and the tokenizer has none"):format(part, part), problem_of(plain))
      plain[flag] = nil
    end
    plain["tokenizer.ggml.add_eos_token"] = true
    assert.is_false(of(plain, {add_eos_token = false}).add_eos_token)
  end)

  it("wants numbers that are finite", function()
    local nan, inf = 0 / 0, 1 / 0
    for words, wrong in pairs {nan = nan, inf = inf, ["-inf"] = -inf} do
      has(("tokenizer.ggml.scores[2] must be a finite number, got %s"):format(words),
        problem_of(pieces(abc, {["ggml.scores"] = {0, 0, wrong, 0, 0, 1}})))
    end
    has("tokenizer.ggml.token_type[3] must be a finite number, got nan",
      problem_of(pieces(abc, {["ggml.token_type"] = {2, 3, 3, nan, 1, 1}}), nil, "token_type"))
  end)

  it("says where there is a zero byte, or no text where there should be one", function()
    has("tokenizer.ggml.tokens[4], 'b\\0c', contains a NUL", problem_of(pieces {"<unk>", "<s>", "</s>", "a", "b\0c"}))
    local said = metadata_of("gpt2", "gpt-2")
    said["tokenizer.ggml.merges"][3] = "a b\0"
    has("tokenizer.ggml.merges[2], 'a b\\0', contains a NUL byte", problem_of(said))
    for _, key in ipairs {"ggml.model", "ggml.pre", "chat_template"} do
      for words, wrong in pairs {["a list"] = {"x"}, ["3"] = 3, ["true"] = true} do
        has(("tokenizer.%s must be a string, got %s"):format(key, words), problem_of(pieces(abc, {[key] = wrong})))
      end
    end
  end)
end)

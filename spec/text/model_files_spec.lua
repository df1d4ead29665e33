-- SentencePiece's models and tiktoken's ranks: what both make of texts (scripts/dev/golden/gen_sentencepiece.py).
local core = require "luminary.core"
local lm = require "luminary"
local ffi = require "ffi"
local golden = require "spec.support.golden"
local message = require "spec.support.error_of"
local temp = require "spec.support.temp"

describe("a model file", function()
  local folder, files, cases
  setup(function()
    folder, files = temp.folder(), {}
    for name, t in pairs(golden.load "_sentencepiece") do
      files[name] = ffi.string(ffi.cast("const char *", t:data_ptr()), t:numel())
    end
    cases = core.json_decode(files.cases)
  end)
  teardown(function()
    temp.remove(folder)
    files, cases = nil, nil
  end)
  local function written(text, name) return temp.write(folder .. "/" .. (name or "x.model"), text) end

  for _, name in ipairs {
    "unigram", "unigram bytes", "pairs", "pairs bytes", "no prefix", "characters", "tiktoken",
  } do
    it("encodes and decodes as its library does: " .. name, function()
      local path = written(files[name])
      local tokenizer = lm.text.Tokenizer(path, {base = 0, pattern = name == "tiktoken" and cases.pattern or nil})
      local again = lm.text.Tokenizer(written(tokenizer.json, "again.json"), {base = 0})
      for _, case in ipairs(cases[name]) do
        local ids = tokenizer:encode(case.text).ids
        assert.equal(table.concat(case.ids, " "), table.concat(ids:totable(), " "), case.text)
        -- A tokenizer.json finds special tokens in texts, and has no space before one of a user's at the beginning.
        local differs = case.text:find "</?s>" or case.text:find "<0x" or name == "pairs" and case.text:find "<x>"
        if not differs then
          assert.is_true(ids:equal(again:encode(case.text).ids), case.text)
        end
        -- SentencePiece writes "⁇" for unknown characters, and drops every space in front, also that of a "▁".
        if not case.decoded:find("⁇", 1, true) and not case.text:find("▁", 1, true) then
          assert.equal(case.decoded, tokenizer:decode(ids))
        end
      end
    end)
  end

  it("has tokens with parts, also in a folder with a tokenizer_config.json", function()
    local tokenizer = lm.text.Tokenizer(written(files.unigram))
    assert.same({"<unk>", "<s>", "</s>", "<pad>", 4}, {tokenizer.unk_token, tokenizer.bos_token, tokenizer.eos_token,
      tokenizer.pad_token, tokenizer.pad_token_id})
    assert.equal(2, lm.text.Tokenizer(written(files.unigram), {add_bos_token = true})("the").input_ids[{1, 1}])
    written(files["pairs bytes"], "tokenizer.model")
    written('{"add_bos_token": true, "model_max_length": 99}', "tokenizer_config.json")
    tokenizer = lm.text.Tokenizer(folder)
    assert.equal(99, tokenizer.model_max_length)
    assert.equal(tokenizer.bos_token_id, tokenizer("the").input_ids[{1, 1}])
  end)

  it("has no text that is a control token, unless a caller or tokenizer_config.json adds the token", function()
    for _, name in ipairs {"unigram", "pairs", "no prefix"} do
      local tokenizer, text = lm.text.Tokenizer(written(files[name])), "the</s>"
      local eos = tokenizer.eos_token_id
      local function counts(t) return t:encode(text, {add_special_tokens = false}).ids:eq(eos):sum():item() end
      assert.same({0, eos, "</s>", "the"}, {counts(tokenizer), tokenizer:token_to_id "</s>",
        tokenizer:id_to_token(eos), tokenizer:decode(lm.cat({tokenizer:encode("the").ids, lm.tensor {eos}}))})
      tokenizer.add_eos_token = true
      assert.equal(eos, tokenizer:encode("the</s>").ids[-1])
      assert.equal(0, counts(tokenizer))
      assert.equal(0, tokenizer:add_special_tokens {"</s>"})
      assert.equal(1, counts(tokenizer))
      local own = temp.folder()
      temp.write(own .. "/tokenizer.model", files[name])
      assert.equal(0, counts(lm.text.Tokenizer(own)))
      temp.write(own .. "/tokenizer_config.json", '{"eos_token": "</s>"}')
      assert.equal(1, counts(lm.text.Tokenizer(own)))
      temp.remove(own)
    end
  end)

  it("that is not read is an error with a way out", function()
    local function says(text, words, name)
      assert.matches(words, message(lm.text.Tokenizer, written(text, name)), 1, true)
    end
    says(files.words, "SentencePiece models of words are not supported; transformers in Python may convert it")
    says(files.tiktoken, "has 300 ranks, as no known encoding of tiktoken; pass {pattern = …}")
    says("YQ== 0\nx", "malformed tiktoken ranks: line 2 must be base64 and a rank")
    says("YQ== 0\nYQ== 1\n", "tokens 0 and 1 are both 'a'")
    says("x", "neither SentencePiece's nor tiktoken's; transformers in Python may convert it: AutoTokenizer")
    says("\10\14\10\5<unk>\21\0\0\0\0\24\2\24\3", "field 3 must be a message; transformers in Python")
    says("\10\12\10\3<s>\21\0\0\0\0\24\3", "it has no piece for unknown characters")
    local symbols = "\10\14\10\5<unk>\21\0\0\0\0\24\2\10\12\10\3<x>\21\0\0\0\0\24\4"
    says(symbols, "symbols.model': malformed SentencePiece model: it has user-defined pieces and no normal piece",
      "symbols.model")
    for at = 1, 200, 7 do -- cut anywhere, it is an error or a smaller model
      local ok, why = pcall(lm.text.Tokenizer, written(files.unigram:sub(1, at)))
      assert(ok or tostring(why):find "malformed" or tostring(why):find "neither", why)
    end
  end)
end)

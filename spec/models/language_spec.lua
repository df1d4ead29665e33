-- Models of language against Hugging Face's transformers (scripts/dev/golden/gen_language.py).
local lm = require "luminary"
local temp = require "spec.support.temp"
local golden = require "spec.support.golden"
local generate = lm.models.generate

local configs = {
  gpt2 = {vocab_size = 60, n_positions = 128, n_embd = 16, n_layer = 2, n_head = 4},
  llama = {
    vocab_size = 60, hidden_size = 16, intermediate_size = 24, num_hidden_layers = 2, num_attention_heads = 4,
    num_key_value_heads = 2, max_position_embeddings = 128,
  },
  llama_tied = {
    vocab_size = 60, hidden_size = 16, intermediate_size = 24, num_hidden_layers = 1, num_attention_heads = 2,
    head_dim = 6, max_position_embeddings = 128, tie_word_embeddings = true,
  },
}

local ropes = {
  llama3 = {128, {rope_type = "llama3", factor = 4, low_freq_factor = 1, high_freq_factor = 2,
    original_max_position_embeddings = 32}},
  linear = {64, {type = "linear", factor = 2.5}},
  dynamic = {64, {rope_type = "dynamic", factor = 2}},
}

local function loaded(name, more)
  local file, state, config = golden.load("language_" .. name), {}, {}
  for key, t in pairs(file) do
    local own = key:match "^state%.(.*)$"
    if own then state[own] = t end
  end
  for key, value in pairs(configs[name]) do config[key] = value end
  for key, value in pairs(more or {}) do config[key] = value end
  local net = lm.models[name:match "^%l+%d?"](config)
  net:load_state_dict(state)
  return net:eval(), file, state
end

-- Tokens as the text that gen_language.py's tokenizer has.
local tokenizer = {}
function tokenizer.decode(_self, ids)
  local text = {}
  for i, id in ipairs(ids) do
    local function letter(n) return ("abcdefghij"):sub(n + 1, n + 1) end
    text[i] = (id > 10 and letter(math.floor((id - 1) / 10)) or "") .. letter((id - 1) % 10)
  end
  return table.concat(text)
end

describe("models.", function()
  for name in pairs(configs) do
    it(name .. " gives the scores of transformers, and goes on as it does", function()
      local net, file = loaded(name)
      local ids = file.ids
      assert.near(0, (net(ids) - file.logits):abs():max():item(), 1e-4)
      for _, use_cache in ipairs {true, false} do
        local few = use_cache and 40 or 12
        assert.is_true(net:generate(ids, {max_new_tokens = 2.5 * few, use_cache = use_cache}):equal(
          file.greedy:narrow(2, 1, 7 + 2.5 * few)))
        assert.is_true(net:generate(ids, {max_new_tokens = 40, use_cache = use_cache, repetition_penalty = 1.3}):equal(
          file.penalized))
        assert.is_true(net:generate(ids:narrow(1, 1, 1), {max_new_tokens = 40, use_cache = use_cache, num_beams = 3})
          :equal(file.beams))
      end
    end)

    it(name .. " gives the same scores from a cache, piece by piece", function()
      local net, file = loaded(name)
      local cache, parts, first = net:new_cache(2, 20), {}, 1
      lm.no_grad(function()
        for _, n in ipairs {3, 1, 2, 1} do
          parts[#parts + 1] = net(file.ids:narrow(2, first, n), {cache = cache})
          first = first + n
        end
      end)
      assert.near(0, (lm.cat(parts, 2) - file.logits):abs():max():item(), 1e-4)
    end)
  end

  for name in pairs(configs) do
    it(name .. " leaves out padding as transformers does", function()
      local net, file = loaded(name)
      local ids, mask = file["padded.ids"], file["padded.mask"]
      local function same_where(seen, want, got)
        assert.near(0, ((want - got):abs() * seen:unsqueeze(3)):max():item(), 1e-4)
      end
      same_where(mask, file["padded.logits"], net(ids, {attention_mask = mask}))
      same_where(mask:flip(2), file["right.logits"], net(file["right.ids"], {attention_mask = mask:flip(2):eq(1)}))
      local cache, got = net:new_cache(3, 7), {} -- piece by piece, with its positions given
      lm.no_grad(function()
        for _, piece in ipairs {{1, 4}, {5, 1}, {6, 2}} do
          local first, n = unpack(piece)
          got[#got + 1] = net(ids:narrow(2, first, n), {
            cache = cache, attention_mask = mask:narrow(2, 1, first + n - 1),
            position_ids = lm.arange(first, first + n):long():expand(3, n),
          })
        end
      end)
      same_where(mask, file["padded.logits"], lm.cat(got, 2))
      for _, use_cache in ipairs {true, false} do
        local o = {max_new_tokens = 20, use_cache = use_cache, attention_mask = mask}
        local y = net:generate(ids, o)
        assert.same(file["padded.greedy"]:totable(), y:totable())
        o.num_beams, o.num_return_sequences = 3, 2
        assert.same(file["padded.beams"]:totable(), net:generate(ids, o):totable())
        o.num_beams, o.attention_mask, o.num_return_sequences = nil, nil, nil
        for i, length in ipairs {4, 7, 6} do -- expects each row as it continues alone
          local alone = net:generate(ids:narrow(1, i, 1):narrow(2, 8 - length, length), o)
          assert.same(alone[1]:totable(), y[i]:narrow(1, 8 - length, length + 20):totable())
        end
        for _, choice in ipairs {{repetition_penalty = 1e6}, {no_repeat_ngram_size = 1},
          {no_repeat_ngram_size = 2, num_beams = 2}} do -- to which padding is nothing that has been there
          choice.max_new_tokens, choice.use_cache = 20, use_cache
          local alone = net:generate(ids:narrow(1, 1, 1):narrow(2, 4, 4), choice)
          choice.attention_mask = mask
          assert.same(alone[1]:totable(), net:generate(ids, choice)[1]:narrow(1, 4, 24):totable())
        end
      end
      net:generate(ids, {max_new_tokens = 2, do_sample = true, repetition_penalty = 1e-300}) -- samples of finite scores
      local y = net:generate(ids, {num_return_sequences = 2, top_p = 0, attention_mask = mask:eq(1)})
      assert.same(file["padded.greedy"]:repeat_interleave(2, 1):totable(), y:totable())
      for _, wrong in ipairs {lm.ones(3, 6), lm.ones(3), lm.ones(2, 7)} do
        assert.error_matches(function() net(ids, {attention_mask = wrong}) end, "expected attention_mask to have shape")
        assert.error_matches(function() net:generate(ids, {attention_mask = wrong}) end,
          "expected attention_mask to have shape")
      end
      assert.error_matches(function() net(ids, {position_ids = ids:narrow(2, 1, 1)}) end,
        "expected position_ids to have shape %[3, 7%], got %[3, 1%]")
      for _, wrong in ipairs {{}, {{}}, {1, 2, 3}} do
        assert.error_matches(function() net(ids, {cache = wrong}) end, "cache must be a list of %d nn%.KVCache, one")
      end
      assert.error_matches(function() net:generate(file["right.ids"], {attention_mask = mask:flip(2)}) end,
        "row 1 of ids ends with padding")
    end)
  end

  it("generate takes pad_token_id for padding", function()
    local net, file = loaded "gpt2"
    local ids, mask = file["padded.ids"] + 0, file["padded.mask"]
    local pad = 60
    while ids:eq(pad):any():item() do pad = pad - 1 end
    ids[mask:eq(0)] = pad
    local want = net:generate(ids, {attention_mask = mask}):narrow(2, 8, 20)
    assert.is_true(net:generate(ids, {pad_token_id = pad}):narrow(2, 8, 20):equal(want))
    assert.error_matches(function() net:generate(ids:flip(2), {pad_token_id = pad}) end,
      ("row 1 of ids ends with padding, since its last token is pad_token_id %%(%d%%), which {attention_mask = "
        .. "lm.ones_like%%(ids%%)} makes a token of the text; pad on the left"):format(pad))
    assert.same({3, 9}, net:generate(ids:flip(2), {pad_token_id = pad, eos_token_id = pad, max_new_tokens = 2}).shape)
  end)

  for kind, rope in pairs(ropes) do
    it("llama scales rotary positions as transformers does: " .. kind, function()
      for _, field in ipairs {"rope_scaling", "rope_parameters"} do
        local net, file = loaded("llama", {max_position_embeddings = rope[1], [field] = rope[2]})
        local longer = lm.cat({file.ids, file.ids:flip(1), file.ids}, 2):tile {1, 4}:narrow(2, 1, 80)
        local scores = lm.no_grad(function() return net(longer):select(2, -1) end)
        assert.near(0, (scores - file[kind .. ".logits"]):abs():max():item(), 1e-4)
        assert.is_true(net:generate(file.ids, {max_new_tokens = 100}):equal(file[kind .. ".greedy"]))
      end
    end)
  end

  it("llama says what is wrong with a scaling", function()
    assert.error_matches(function() lm.models.llama {num_hidden_layers = 1, hidden_size = 8, intermediate_size = 8,
      num_attention_heads = 1, rope_scaling = {rope_type = "mrope", factor = 2}} end,
      "scaling%.rope_type must be one of 'default', 'dynamic', 'factors', 'linear', 'llama3', 'longrope', 'yarn', got")
    assert.error_matches(function() lm.nn.RotaryPositionalEmbeddings(8, {scaling = {rope_type = "linear"}}) end,
      "scaling%.factor is missing or nil; expected a number above 0")
    for pattern, factors in pairs {["has 3 numbers; expected 4"] = {1, 1, 1}, ["above 0"] = {1, 1, 1, 0}} do
      assert.error_matches(function()
        lm.nn.RotaryPositionalEmbeddings(8, {scaling = {rope_type = "factors", factors = factors}})
      end, "scaling.factors.*" .. pattern)
    end
  end)

  it("gpt2's Conv1D has the sizes of a linear layer, for layers around it", function()
    for _, dtype in ipairs {"float16", "bfloat16", "float32", "float64"} do
      local net = lm.models.gpt2 {vocab_size = 9, n_positions = 16, n_embd = 8, n_layer = 1, n_head = 2, dtype = dtype}
      local base, mlp = net.transformer.h[1].attn.c_attn, net.transformer.h[1].mlp
      assert.equal("Conv1D(nf=24, nx=8)", tostring(base))
      assert.same({8, 24, 8, 24}, {base.nx, base.nf, base.in_features, base.out_features})
      assert.same({8, 32, 32, 8},
        {mlp.c_fc.in_features, mlp.c_fc.out_features, mlp.c_proj.in_features, mlp.c_proj.out_features})
      for _, x in ipairs {lm.randn({2, 3, 8}, {dtype = dtype}), lm.randn({8, 3}, {dtype = dtype}):t()} do
        local linear = lm.nn.Linear(base.in_features, base.out_features):to(dtype)
        lm.no_grad(function()
          linear.weight:copy_(base.weight:t())
          linear.bias:copy_(base.bias)
        end)
        assert(linear(x):allclose(base(x), {rtol = 2 ^ -6, atol = 1e-3}))
      end
    end
  end)
  it("gpt2 takes the names of the bare model's files", function()
    local net, _, state = loaded "gpt2"
    local bare = {["h.0.attn.bias"] = lm.ones(2)}
    for key, t in pairs(state) do
      if key ~= "lm_head.weight" then bare[key:gsub("^transformer%.", "")] = t end
    end
    assert.same({missing_keys = {}, unexpected_keys = {}}, net:load_state_dict(bare))
  end)

  it("pad_vocab_to pads rows that have no probability, no gradient and no place in files", function()
    local gpt2 = {vocab_size = 21, n_positions = 16, n_embd = 8, n_layer = 1, n_head = 2}
    local llama = {vocab_size = 21, hidden_size = 8, intermediate_size = 16, num_hidden_layers = 1,
      num_attention_heads = 2}
    local ids = lm.tensor({{1, 2, 21}}, {dtype = "int64"})
    local folder = temp.folder()
    local path = folder .. "/padded.safetensors"
    for _, tied in ipairs {true, false} do
      for name, options in pairs {gpt2 = gpt2, llama = llama} do
        options.tie_word_embeddings, options.pad_vocab_to = tied, nil
        local net = lm.models[name](options):eval()
        lm.save(path, net:state_dict())
        options.pad_vocab_to, options.weights = 64, path
        local padded = lm.models[name](options):eval()
        options.weights = nil
        local dict, count = net:state_dict(), 0
        for key, t in pairs(padded:state_dict()) do
          assert.is_true(t:equal(dict[key]), key)
          count = count + 1
        end
        for _ in pairs(dict) do count = count - 1 end
        assert.equal(0, count)
        local a, b = net(ids), padded(ids)
        assert.same({1, 3, 64}, b.shape)
        assert.is_true(a:equal(b:narrow(3, 1, 21)))
        assert.is_true(b:narrow(3, 22, 43):eq(-math.huge):all():item())
        lm.nn.functional.cross_entropy(b:view(-1, 64), ids:view(-1)):backward()
        for _, p in ipairs(padded:parameters()) do
          local grad = p.grad
          assert.is_true(grad:isfinite():all():item())
          if grad.shape[1] == 64 then assert.equal(0, grad:narrow(1, 22, 43):abs():max():item()) end
        end
        assert.same(net:generate(ids, {max_new_tokens = 5}):totable(),
          padded:generate(ids, {max_new_tokens = 5}):totable())
      end
    end
    temp.remove(folder)
  end)

  it("generate has transformers' options", function()
    local net, file = loaded "gpt2"
    local eos = file["end"]:item()
    local strings = {}
    for word in string.char(unpack(file.strings:totable())):gmatch "%S+" do strings[#strings + 1] = word end
    local stop = strings[2]:sub(1, 2)
    for name, o in pairs {
      ended = {eos_token_id = eos}, not_before = {eos_token_id = eos, min_new_tokens = 25},
      no_pairs = {no_repeat_ngram_size = 2}, no_triples = {no_repeat_ngram_size = 3, repetition_penalty = 1.1},
      stopped = {stop_strings = strings, tokenizer = tokenizer},
      ["beams.ended"] = {num_beams = 4, num_return_sequences = 3, eos_token_id = {eos, 4}, min_new_tokens = 6},
      ["beams.early"] = {
        num_beams = 4, num_return_sequences = 4, eos_token_id = {eos, 4}, early_stopping = true, length_penalty = 0.5,
      },
      ["beams.no_pairs"] = {num_beams = 3, no_repeat_ngram_size = 2, eos_token_id = eos, length_penalty = 2},
      ["beams.never"] = {
        num_beams = 3, num_return_sequences = 3, eos_token_id = {eos, 4}, early_stopping = "never",
        length_penalty = 1.5,
      },
      ["beams.never_short"] = {
        num_beams = 3, num_return_sequences = 3, eos_token_id = {eos, 4}, early_stopping = "never",
        length_penalty = -0.5,
      },
      no_words = {bad_words_ids = {{38}, {25, 25, 25}, {9}}},
      ["beams.no_words"] = {
        num_beams = 3, eos_token_id = eos, min_new_tokens = 9, bad_words_ids = {{38}, {25, 25}},
      },
      ["beams.stopped"] = {num_beams = 3, stop_strings = stop, tokenizer = tokenizer},
    } do
      o.max_new_tokens, o.pad_token_id = 40, 2
      assert.same(file[name]:totable(), net:generate(file.ids, o):totable(), name)
    end
  end)

  it("generate draws with transformers' probabilities", function()
    local file = golden.load "language_sampling"
    local Fixed = lm.nn.Module:extend "Fixed"
    function Fixed.forward(_self, ids) return file.scores:unsqueeze(1):expand(ids.shape[1], ids.shape[2], 12) end
    Fixed.generate = generate
    local net, n = Fixed(), 20000
    net.config = {max_positions = 9}
    for name, o in pairs {
      plain = {do_sample = true}, cold = {temperature = 0.7}, top_k = {top_k = 4}, top_p = {top_p = 0.8},
      min_p = {min_p = 0.15}, all = {temperature = 1.5, top_k = 8, top_p = 0.9, min_p = 0.1},
    } do
      o.max_new_tokens, o.num_return_sequences, o.use_cache = 1, n, false
      o.generator = lm.Generator():manual_seed(5)
      local ids = net:generate(lm.ones({1, 1}):long(), o)
      assert.same({n, 2}, ids.shape)
      local counts, chi_square, kinds = {}, 0, 0
      for _, id in ipairs(ids:select(2, 2):totable()) do counts[id] = (counts[id] or 0) + 1 end
      for id, p in ipairs(file[name]:totable()) do
        if p == 0 then
          assert.is_nil(counts[id], name)
        else
          chi_square, kinds = chi_square + ((counts[id] or 0) - n * p) ^ 2 / (n * p), kinds + 1
        end
      end
      assert.is_true(chi_square < kinds - 1 + 4 * math.sqrt(2 * (kinds - 1)) + 4, name .. ": " .. chi_square)
    end
  end)

  it("generate draws beams as often as transformers does #unsanitized", function()
    local net, file = loaded "gpt2", golden.load "language_beam_sampling"
    local prompt, n = lm.arange(1, 8):long():view(1, 7), 700
    for name, o in pairs {
      top_k = {num_beams = 2, top_k = 3, temperature = 8, length_penalty = 0.5},
      top_p = {num_beams = 3, top_p = 0.8, num_return_sequences = 2, temperature = 1.5},
      two = {num_beams = 3, top_p = 0.01, num_return_sequences = 2, temperature = 15},
      min_p = {num_beams = 2, min_p = 0.3, repetition_penalty = 1.2},
    } do
      o.do_sample, o.max_new_tokens, o.pad_token_id, o.generator = true, 4, 2, lm.Generator():manual_seed(3)
      o.attention_mask = lm.ones(n, 7)
      if name ~= "min_p" then o.eos_token_id = file["end"]:item() end
      local there, here = {}, {}
      local counts = file[name .. ".counts"]:totable()
      for i, row in ipairs(file[name .. ".rows"]:totable()) do there[table.concat(row, " ")] = counts[i] / 20000 end
      local y = net:generate(prompt:expand(n, 7), o)
      y = lm.nn.functional.pad(y, {0, 11 - y.shape[2]}, {value = 2}):narrow(2, 8, 4)
      for _, row in ipairs(y:reshape(n, -1):totable()) do
        row = table.concat(row, " ")
        here[row] = (here[row] or 0) + 1
      end
      local chi_square, kinds, rare, rare_here = 0, 0, 1, n
      for row, p in pairs(there) do
        if p * n >= 5 then
          chi_square, kinds = chi_square + ((here[row] or 0) - n * p) ^ 2 / (n * p * 1.1), kinds + 1
          rare, rare_here = rare - p, rare_here - (here[row] or 0)
        end
      end
      assert(math.abs(rare_here - n * rare) < 4 * math.sqrt(n * rare + 1), name .. ": " .. rare_here)
      assert(chi_square < kinds - 1 + 4 * math.sqrt(2 * kinds), name .. ": " .. chi_square)
    end
  end)

  it("generate draws several sequences of each, in its order", function()
    local net, file = loaded "gpt2"
    local y = net:generate(file.ids, {top_k = 5, num_return_sequences = 3, max_new_tokens = 4,
      generator = lm.Generator():manual_seed(1)})
    assert.same({6, 11}, y.shape)
    for i = 1, 6 do assert.same(file.ids[math.ceil(i / 3)]:totable(), y:narrow(2, 1, 7)[i]:totable()) end
    assert.is_false(y[1]:equal(y[2]) and y[2]:equal(y[3]))
  end)

  it("generate draws among the likeliest, stops where it is told to, and says what is wrong", function()
    local net, file = loaded "gpt2"
    local ids = file.ids
    assert.is_true(net:generate(ids, {top_p = 1e-6}):equal(net:generate(ids)))
    assert.is_true(net:generate(ids, {top_p = 0}):equal(net:generate(ids)))
    assert.is_true(net:generate(ids, {temperature = 0}):equal(net:generate(ids)))
    local first = file.greedy[{1, 8}]
    local ended = net:generate(ids:narrow(1, 1, 1), {eos_token_id = first, max_new_tokens = 9})
    assert.same({1, 8}, ended.shape)
    local heard = {}
    net:generate(ids:narrow(1, 1, 1), {max_new_tokens = 9, streamer = function(id)
      heard[#heard + 1] = id
      return #heard < 4
    end})
    assert.same(file.greedy:narrow(2, 8, 4)[1]:totable(), heard)
    local says = require "spec.support.says"
    says("7 tokens and 199 new ones are more than the model's 128 positions", function()
      net:generate(ids, {max_new_tokens = 199})
    end)
    says("num_beams cannot be used with streamer or on_text", function()
      net:generate(ids, {num_beams = 2, streamer = print})
    end)
    for _, wrong in ipairs {{3}, {{}}, {{0}}, {{"a"}}, {{{1}}}, "a", {a = {1}}} do
      says("bad_words_ids must be a list of lists of token ids, such as {{3}, {4, 5}}, got ", function()
        net:generate(ids, {bad_words_ids = wrong})
      end)
    end
    says("a token of bad_words_ids must be from 1 to 60, got 61", function()
      net:generate(ids, {bad_words_ids = {{61}}})
    end)
    says("early_stopping must be true, false or 'never', got string 'no'", function()
      net:generate(ids, {num_beams = 2, early_stopping = "no"})
    end)
    says("eos_token_id must be one value or a list, got a table with the field 'x'", function()
      net:generate(ids, {eos_token_id = {x = 1}})
    end)
    says("stop_strings must be one value or a list, got a table with the field 'x'", function()
      net:generate(ids, {stop_strings = {x = "a"}, tokenizer = tokenizer})
    end)
    local all = {}
    for id = 1, 60 do all[id] = {id} end
    for beams = 1, 2 do
      says("no token is left for row 1", function()
        net:generate(ids, {num_beams = beams, bad_words_ids = all})
      end)
    end
    for name, words in pairs {
      bad_words = "it is bad_words_ids", typical_p = "top_k, top_p and min_p are there",
      num_beam_groups = "num_beams, .*do_sample", diversity_penalty = "num_beams, .*do_sample",
      penalty_alpha = "repetition_penalty and no_repeat_ngram_size", guidance_scale = "functions of scores",
      force_words_ids = "bad_words_ids", prefix_allowed_tokens_fn = "bad_words_ids",
      assistant_model = "net is", suppress_tokens = "bad_words_ids",
    } do
      says("unknown option '" .. name .. "'; .*" .. words, function() net:generate(ids, {[name] = 1}) end)
    end
    says("num_return_sequences %(3%) must be at most num_beams %(2%)", function()
      net:generate(ids, {num_beams = 2, num_return_sequences = 3})
    end)
    says("num_return_sequences = 3 requires do_sample or num_beams", function()
      net:generate(ids, {num_return_sequences = 3})
    end)
    says("stop_strings requires {tokenizer = …}, an object with :decode%(ids%), got nil", function()
      net:generate(ids, {stop_strings = "a"})
    end)
    says("stop_strings must not contain an empty string", function()
      net:generate(ids, {stop_strings = "", tokenizer = tokenizer})
    end)
    says("eos_token_id must be an integer of at least 1, got 0", function()
      net:generate(ids, {eos_token_id = 0})
    end)
    says("ids must be a tensor %[N, L%] with at least one token, got a tensor", function() net:generate(ids[1]) end)
    says("n_embd %(10%) must be divisible by n_head %(3%)", function() lm.models.gpt2 {n_embd = 10, n_head = 3} end)
    says("the number of tokens must be at most n_positions, 128, got", function() net(lm.ones({1, 129}):long()) end)
  end)

  it("generate tells text as it comes, in whole characters", function()
    local net, file = loaded "gpt2"
    local pieces = {{}, {}}
    local y = net:generate(file.ids, {max_new_tokens = 9, tokenizer = tokenizer, on_text = function(piece, row)
      table.insert(pieces[row], piece)
    end})
    for row = 1, 2 do
      assert.equal(9, #pieces[row])
      assert.equal(tokenizer:decode(y:narrow(2, 8, 9)[row]:totable()), table.concat(pieces[row]))
    end
    local bytes = {} -- each token is a byte of "é\n€.", of which decode replaces what is cut
    function bytes.decode(_self, ids)
      local text = ""
      for _, id in ipairs(ids) do text = text .. ("é\n€."):sub(id, id) end
      return (text:gsub("\195$", "\239\191\189"):gsub("\226[\130]?$", "\239\191\189"))
    end
    local Counting = lm.nn.Module:extend "Counting"
    function Counting.forward(_self, ids) return lm.nn.functional.one_hot(ids % 7 + 1, 8):float() end
    Counting.generate = generate
    local counting, heard = Counting(), {}
    counting.config = {max_positions = 99}
    counting:generate(lm.tensor({{7}}, {dtype = "int64"}), {max_new_tokens = 7, use_cache = false, tokenizer = bytes,
      on_text = function(piece) heard[#heard + 1] = piece end})
    assert.same({"é", "\n", "€", "."}, heard)
    heard = {}
    counting:generate(lm.tensor({{7}}, {dtype = "int64"}), {max_new_tokens = 7, use_cache = false, tokenizer = bytes,
      eos_token_id = 3, on_text = function(piece) heard[#heard + 1] = piece end})
    assert.same({"é"}, heard)
    y = counting:generate(lm.tensor({{7}}, {dtype = "int64"}), {max_new_tokens = 7, use_cache = false,
      tokenizer = bytes, stop_strings = {"zz", "€"}})
    assert.same({{7, 1, 2, 3, 4, 5, 6}}, y:totable())
  end)
end)

describe("models.generate", function()
  local function tokens(rows) return lm.tensor(rows, {dtype = "int64"}) end

  -- Returns a net that continues with the sum of all tokens, which shows the tokens that it gets; at[1]: its calls'.
  local function summing(more)
    local Net = lm.nn.Module:extend "Summing"
    function Net:init() self.shapes = {} end
    function Net:forward(ids)
      table.insert(self.shapes, ids.shape)
      return lm.nn.functional.one_hot(ids:cumsum(2) % 8 + 1, 8):float()
    end
    for name, value in pairs(more or {}) do Net[name] = value end
    return Net()
  end

  local function alone(row, n)
    local list = {unpack(row)}
    for _ = 1, n do
      local sum = 0
      for _, each in ipairs(list) do sum = sum + each end
      list[#list + 1] = sum % 8 + 1
    end
    return list
  end

  it("takes any module or function that gives scores", function()
    local want = {alone({3, 1}, 6), alone({2, 2}, 6)}
    local ids = tokens {{3, 1}, {2, 2}}
    local net = summing()
    assert.same(want, generate(net, ids, {max_new_tokens = 6}):totable())
    assert.same({2, 7}, net.shapes[6])
    assert.same(want, generate(function(x) return net(x) end, ids, {max_new_tokens = 6}):totable())
    assert.same(want, generate(function(x) return net(x):select(2, -1), "more" end, ids:int(),
      {max_new_tokens = 6}):totable())
    assert.same({1, 8}, generate(net, ids:narrow(1, 1, 1), {max_new_tokens = 6, num_beams = 2}).shape)
    assert.same({0, 2}, generate(net, ids:narrow(1, 1, 0)).shape)
    assert.same({0, 2}, generate(net, ids:narrow(1, 1, 0), {num_beams = 2}).shape)
    net.eos_token_id = want[1][4]
    assert.same({1, 4}, generate(net, ids:narrow(1, 1, 1), {max_new_tokens = 6}).shape)
    net.config = {max_positions = 4}
    assert.error_matches(function() generate(net, ids) end, "generate: 2 tokens and 20 new ones are more than the")
  end)

  it("gives a net without masks its padded rows one by one", function()
    local net = summing()
    local y = generate(net, tokens {{7, 7, 3, 1}, {2, 7, 2, 5}}, {
      max_new_tokens = 5, attention_mask = tokens {{0, 0, 1, 1}, {1, 0, 1, 1}}, -- a hole, too
    })
    assert.same({1, 2}, net.shapes[1])
    assert.same(alone({3, 1}, 5), y[1]:narrow(1, 3, 7):totable())
    local second = alone({2, 2, 5}, 5)
    table.insert(second, 2, 7)
    assert.same(second, y[2]:totable())
  end)

  it("gives a net with new_cache new tokens alone, and what is padding", function()
    local told, orders = {}, 0
    local net = summing {
      new_cache = function(_, n, length)
        return {{n = n, length = length, reorder = function(self, order)
          orders = orders + 1
          self.sums = self.sums:index_select(1, order)
        end}}
      end,
      forward = function(_self, ids, o)
        o = o or {}
        told[#told + 1] = {
          ids.shape[2], o.attention_mask and o.attention_mask:long():totable(), o.position_ids and
            o.position_ids:totable(),
        }
        if o.attention_mask then ids = ids * o.attention_mask:narrow(2, -ids.shape[2], ids.shape[2]) end
        local sums = ids:cumsum(2)
        local cache = o.cache and o.cache[1]
        if cache and cache.sums then sums = sums + cache.sums end
        if cache then cache.sums = sums:narrow(2, -1, 1) end
        return lm.nn.functional.one_hot(sums % 8 + 1, 8):float() * 9
      end,
    }
    local ids, mask = tokens {{7, 3, 1}, {2, 2, 5}}, tokens {{0, 1, 1}, {1, 1, 1}}
    local want = {{7, unpack(alone({3, 1}, 3))}, alone({2, 2, 5}, 3)}
    assert.same(want, generate(net, ids, {max_new_tokens = 3, attention_mask = mask}):totable())
    assert.same({
      {3, {{0, 1, 1}, {1, 1, 1}}, {{1, 1, 2}, {1, 2, 3}}}, {1, {{0, 1, 1, 1}, {1, 1, 1, 1}}, {{3}, {4}}},
      {1, {{0, 1, 1, 1, 1}, {1, 1, 1, 1, 1}}, {{4}, {5}}},
    }, told)
    assert.same(want, generate(net, ids, {max_new_tokens = 3, attention_mask = mask, use_cache = false}):totable())
    assert.same(want, generate(net, ids, {max_new_tokens = 3, attention_mask = mask, num_beams = 2}):totable())
    assert.is_true(orders > 0)
    told = {}
    generate(net, ids, {max_new_tokens = 2})
    assert.same({{3}, {1}}, told)
  end)

  it("computes only the tokens that past_key_values lacks", function()
    for _, case in ipairs {
      {"llama"}, {"gemma3", {sliding_window = 7, sliding_window_pattern = 2}},
      {"llama", {rope_scaling = {rope_type = "dynamic", factor = 2, original_max_position_embeddings = 16}}},
      {"olmoe", {num_experts = 4, num_experts_per_tok = 2, num_key_value_heads = 4}}, {"gpt2"},
    } do
      for _, dtype in ipairs {"float16", "float32"} do
        local o = {num_hidden_layers = 2, hidden_size = 32, intermediate_size = 64, num_attention_heads = 4,
          num_key_value_heads = 2, vocab_size = 50, max_position_embeddings = 64, head_dim = 8}
        if case[1] == "gpt2" then o = {n_layer = 2, n_embd = 32, n_head = 4, vocab_size = 50, n_positions = 64} end
        for key, value in pairs(case[2] or {}) do o[key] = value end
        lm.manual_seed(3)
        local net, past, computed = lm.models[case[1]](o):eval():to(dtype), {}, 0
        local ids = lm.randint(1, 51, {1, 20})
        net:register_forward_pre_hook(function(_, arguments) computed = computed + arguments[1]:numel() end)
        for i, new in ipairs {20, 3, 3, 3} do -- the tokens of each call that the one before did not compute
          computed = 0
          local y = net:generate(ids, {max_new_tokens = 4, past_key_values = past})
          if not (case[2] or {}).rope_scaling then assert.equal(new + 3, computed) end
          local want = net:generate(ids, {max_new_tokens = 4})
          if dtype == "float32" then assert.is_true(y:equal(want)) else assert.same(want.shape, y.shape) end
          ids = lm.cat({y:narrow(2, 1, i == 2 and 10 or y.shape[2] - 1), lm.randint(1, 51, {1, 3})}, 2)
        end
      end
    end
  end)

  it("computes distinct beams alone: at most vocabulary times as many as in the step before", function()
    local vocabulary, steps = 5, 4
    lm.manual_seed(1) -- the first ten have no ties, which float32 may order otherwise
    local logits = lm.randn({8, vocabulary}, {dtype = "float64"}):log_softmax(2)
    local counts = {}
    local net = function(ids)
      counts[#counts + 1] = ids.shape[1]
      return logits:index_select(1, ids:sum(2) % 8 + 1):float()
    end
    -- Every continuation and its probability.
    local all, worths = {{3}}, {0}
    for _ = 1, steps do
      local longer, sums = {}, {}
      for i, row in ipairs(all) do
        local sum = 0
        for _, token in ipairs(row) do sum = sum + token end
        for token = 1, vocabulary do
          local list = {unpack(row)}
          list[#list + 1] = token
          longer[#longer + 1], sums[#longer + 1] = list, worths[i] + logits[{sum % 8 + 1, token}]
        end
      end
      all, worths = longer, sums
    end
    local order = {}
    for i in ipairs(all) do order[i] = i end
    table.sort(order, function(a, b) return worths[a] > worths[b] end)
    local want = {}
    for j = 1, 10 do want[j] = all[order[j]] end
    local o = {max_new_tokens = steps, num_beams = 1e6, num_return_sequences = 10}
    assert.same(want, generate(net, tokens {{3}}, o):totable())
    assert.same({1, 5, 25, 125}, counts)
    o.num_return_sequences = 626
    assert.error_matches(function() generate(net, tokens {{3}}, o) end,
      "generate: num_return_sequences must be at most 625, the number of distinct continuations, got 626")
    counts, o = {}, {max_new_tokens = 5, num_beams = 7, no_repeat_ngram_size = 2}
    generate(net, tokens {{3}}, o)
    assert.same({1, 5, 7, 7, 7}, counts)
  end)

  it("leaves each module in its mode, also after an error", function()
    local net = summing()
    net.frozen = lm.nn.Dropout(0.5)
    net.frozen:eval()
    generate(net, tokens {{1}}, {max_new_tokens = 1})
    assert.same({true, false}, {net.training, net.frozen.training})
    assert.is_false((pcall(generate, net, tokens {{1}}, {streamer = function() error "no" end})))
    assert.same({true, false}, {net.training, net.frozen.training})
  end)

  it("takes pad_token_id within a prompt for padding too, as transformers do, unless a mask is given", function()
    local ids = tokens {{3, 2, 5, 2, 1}}
    local function net(x) return lm.nn.functional.one_hot(x:sum(2, {keepdim = true}) % 8 + 1, 8):float() end
    local module = lm.nn.Module:extend "Net"()
    function module.forward(_, x) return net(x) end
    module.generation_config = {pad_token_id = 2}
    local function last(o, of)
      o.max_new_tokens = 1
      return generate(of or net, ids, o)[{1, -1}]
    end
    for _, o in ipairs {{pad_token_id = 2}, {attention_mask = ids:ne(2)}} do assert.equal(9 % 8 + 1, last(o)) end
    for _, o in ipairs {
      {}, {pad_token_id = 2, attention_mask = lm.ones_like(ids)}, {pad_token_id = 2, eos_token_id = {2, 7}},
    } do assert.equal(13 % 8 + 1, last(o)) end
    assert.same({9 % 8 + 1, 13 % 8 + 1}, {last({}, module), last({pad_token_id = false}, module)})
  end)

  it("ignores the net's eos_token_id with {eos_token_id = false}", function()
    local net = lm.nn.Module:extend "Net"()
    function net.forward(_, x) return lm.nn.functional.one_hot(x % 8 + 1, 8):float() end
    for _, beams in ipairs {1, 2} do
      local o = {max_new_tokens = 5, num_beams = beams}
      net.eos_token_id = 4
      assert.same({{2, 3, 4}}, generate(net, tokens {{2}}, o):totable())
      o.eos_token_id = false
      assert.same({{2, 3, 4, 5, 6, 7}}, generate(net, tokens {{2}}, o):totable())
      net.eos_token_id, net.generation_config = nil, {eos_token_id = 4}
      assert.same({{2, 3, 4, 5, 6, 7}}, generate(net, tokens {{2}}, o):totable())
      o.eos_token_id = nil
      assert.same({{2, 3, 4}}, generate(net, tokens {{2}}, o):totable())
      net.generation_config, net.eos_token_id = nil, false
      assert.same({{2, 3, 4, 5, 6, 7}}, generate(net, tokens {{2}}, o):totable())
    end
  end)

  it("says what is wrong", function()
    local net, ids = summing(), tokens {{3, 1}}
    local function says(words, o, with, given)
      assert.error_matches(function() generate(with or net, given or ids, o) end, words)
    end
    says("call it with a colon as a method of a model, or as lm%.models%.generate%(net, ids%) with a module", nil, 5)
    says("generate: ids must be a tensor of token ids, got string 'text';", nil, net, "text")
    says("generate: ids must be a tensor %[N, L%], got a table; use lm%.LongTensor {{1, 2, 3}} or", nil, net, {1, 2})
    says("generate: ids must be int64, got float32", nil, net, ids:float())
    says("generate: the result of the net must be scores %[1, L, vocabulary%]", nil, function() return lm.ones(2) end)
    says("generate: the result of the net must be scores %[1, L, vocabulary%] or %[1,", nil, function() return {} end)
    says("eos_token_id must be from 1 to 8, got 9", {eos_token_id = {2, 9}})
    says("pad_token_id must be from 1 to 8, got 9", {pad_token_id = 9})
    says("repetition_penalty must be a number above 0, got 0", {repetition_penalty = 0})
    says("length_penalty must be a finite number, got nan", {length_penalty = 0 / 0, num_beams = 2})
    local nothing = {eos_token_id = {1, 2, 3, 4, 5, 6, 7, 8}, min_new_tokens = 2, do_sample = true}
    says("generate: no token is left for row 1", nothing)
    for _, o in ipairs {{}, {do_sample = true}, {num_beams = 2}} do
      says("generate: the net returned NaN scores in row 1", o, function(x)
        return lm.full({x.shape[1], 1, 4}, 0 / 0)
      end)
    end
    for _, o in ipairs {{}, {do_sample = true}, {num_beams = 2}} do
      for score, words in pairs {
        [math.huge] = "generate: the net returned a score of inf in row 1; scores must be finite, or %-inf to",
        [-math.huge] = "generate: the net returned %-inf for every token in row 1",
      } do
        says(words, o, function(x) return lm.full({x.shape[1], 1, 4}, score) end)
      end
    end
    says("generate: the result of the net must be scores %[1, L,", nil, function() return lm.ones(1, 0) end)
    net.eos_token_id = 99 -- as a config.json may say it of a smaller model
    assert.same({1, 5}, generate(net, ids, {max_new_tokens = 3, min_new_tokens = 2}).shape)
  end)

  it("draws the likeliest where it is as cold as can be, and anything where it is hot", function()
    local net, file = loaded "gpt2"
    local want = net:generate(file.ids)
    for _, temperature in ipairs {1e-300, 1e-45, 1e-38, 1e-12} do
      assert.is_true(net:generate(file.ids, {temperature = temperature}):equal(want), temperature)
    end
    assert.same(want.shape, net:generate(file.ids, {temperature = math.huge, top_k = 5}).shape)
    assert.same(want.shape, net:generate(file.ids, {temperature = math.huge}).shape)
  end)

  it("streams so many sequences as a call has arguments for", function()
    local function net(ids) return lm.zeros(ids.shape[1], 3) end
    local heard
    local function streamer(...) heard = select("#", ...) end
    local function go(n, more) lm.models.generate(net, lm.ones({n, 1}, {dtype = "int64"}), more) end
    go(7000, {streamer = streamer, max_new_tokens = 1})
    assert.equal(7000, heard)
    assert.error_matches(function() go(9000, {streamer = streamer}) end,
      "generate: streamer supports at most 7000 sequences, got 9000; use several calls")
    go(9000, {max_new_tokens = 1})
  end)

  it("tells text without a row where there is one", function()
    local net, file = loaded "gpt2"
    local heard = {}
    net:generate(file.ids:narrow(1, 1, 1), {max_new_tokens = 3, tokenizer = tokenizer, on_text = function(...)
      heard[#heard + 1] = select("#", ...)
    end})
    assert.same({1, 1, 1}, heard)
  end)
end)

describe("nn.KVCache", function()
  it("keeps what it is given up to its size", function()
    local cache = lm.nn.KVCache(2, 5, 3, 4)
    local k, v = lm.randn(2, 3, 2, 4), lm.randn(2, 3, 2, 4)
    cache:update(k, v)
    local keys, values = cache:update(k * 2, v)
    assert.is_true(keys:equal(lm.cat({k, k * 2}, 3)))
    assert.is_true(values:equal(lm.cat({v, v}, 3)))
    assert.error_matches(function() cache:update(k, v) end, "the cache holds 4 of 5 positions; cannot append 2 more")
    assert.error_matches(function() cache:update(k, v:narrow(3, 1, 1)) end, "expected v to have shape %[2, 3, n,")
    cache:reset(1)
    assert.is_true(cache:update(v, k):narrow(3, 2, 2):equal(v))
    cache:reorder(lm.tensor({2, 2}, {dtype = "int64"}))
    local kept = cache.keys:narrow(3, 1, 3)
    assert.is_true(kept[1]:equal(kept[2]))
    for _, order in ipairs {{2, 1, 2}, {3}} do -- more sequences, and fewer
      local want = cache.values:narrow(3, 1, 3):index_select(1, lm.tensor(order, {dtype = "int64"}))
      cache:reorder(lm.tensor(order, {dtype = "int64"}))
      assert.same({#order, 3, 5, 4}, cache.keys.shape)
      assert.is_true(cache.values:narrow(3, 1, 3):equal(want))
    end
  end)

  it("says what is wrong with an order or a length", function()
    local says = require "spec.support.says"
    local cache, k = lm.nn.KVCache(2, 5, 3, 4), lm.randn(2, 3, 2, 4)
    cache:update(k, k)
    says("KVCache:reorder: index must be 1%-d and not empty, got a tensor", cache.reorder, cache, lm.ones(0):long())
    says("KVCache:reorder: index must be 1%-d and not empty, got a", cache.reorder, cache, lm.ones(1, 2):long())
    says("KVCache:reorder: index must be a tensor, got a table", cache.reorder, cache, {1, 2})
    assert.is_true(cache.keys:narrow(3, 1, 2):equal(k))
    local net = lm.models.gpt2 {vocab_size = 9, n_positions = 16, n_embd = 8, n_layer = 1, n_head = 2}
    local caches = net:new_cache(1, 8)
    for _, wrong in ipairs {"a", -5, 1.5, {}} do
      cache.length, caches[1].length = wrong, wrong
      says("KVCache:update: cache%.length must be an integer of at least 0, got ", cache.update, cache, k, k)
      says("KVCache:reset: cache%.length must be an integer of at least 0, got ", cache.reset, cache, 1)
      says("KVCache:reorder: cache%.length must be an integer of at least", cache.reorder, cache, lm.ones(2):long())
      says("GPT2: cache%[1%]%.length must be an integer of at least 0,", net, lm.ones(1, 2):long(), {cache = caches})
    end
    cache.length = 6
    says("KVCache:reorder: cache%.length %(6%) must be at most the size of", cache.reorder, cache, lm.ones(2):long())
    assert.equal(0, cache:reset().length)
  end)

  it("is of one dtype", function()
    local cache, k = lm.nn.KVCache(1, 4, 1, 2), lm.randn(1, 1, 2, 2)
    assert.error_matches(function() cache:update(k, k:double()) end,
      "KVCache:update: v is float64, the cache float32; create the cache with {dtype = \"float64\"}")
    assert.error_matches(function() cache:update(k:double(), k) end, "k is float64, the cache float32")
    assert.error_matches(function() cache:update(k:long(), k) end, "k is int64, the cache float32")
    assert.equal(0, cache.length)
    lm.autocast({device = "cpu", dtype = "bfloat16"}, function() cache:update(k:bfloat16(), k) end)
    assert.equal("float32", cache:update(k, k).dtype)
  end)
end)

describe("positions", function()
  it("are sines and cosines in turn", function()
    local y = lm.nn.SinusoidalPositions(4, {batch_first = true})(lm.zeros(1, 3, 4))
    assert.near(math.sin(2), y[{1, 3, 1}], 1e-6)
    assert.near(math.cos(2 / 100), y[{1, 3, 4}], 1e-6)
  end)

  it("turn queries and keys so that products depend on distances alone", function()
    for _, interleaved in ipairs {true, false} do
      local rope = lm.nn.RotaryPositionalEmbeddings(8, {interleaved = interleaved})
      local q, k = lm.randn(1, 1, 1, 8), lm.randn(1, 1, 1, 8)
      local function product(a, b) return (rope(q, a) * rope(k, b)):sum():item() end
      assert.near(product(1, 4), product(101, 104), 1e-4)
      assert.is_true(rope(q, 1):allclose(q))
      local x = lm.randn(2, 3, 5, 8)
      local positions = lm.tensor({4, 5, 6, 7, 8}, {dtype = "int64"})
      assert.is_true(rope(x, 4):equal(rope(x, {input_pos = positions})))
      assert.is_true(rope(x, 4):equal(rope(x, {input_pos = positions:expand(2, 5)})))
    end
    local rope = lm.nn.RotaryPositionalEmbeddings(8, 16)
    assert.error_matches(function() rope(lm.randn(1, 1, 9, 8), 9) end, "positions 9 to 17 must be at most")
  end)

  it("turn each pair by its formula, in any dtype and layout, and gradients back", function()
    for _, dtype in ipairs {"float16", "bfloat16", "float32", "float64"} do
      for _, interleaved in ipairs {true, false} do
        local rope = lm.nn.RotaryPositionalEmbeddings(6, {interleaved = interleaved, dtype = "float64"})
        local c, s = rope.cosines:narrow(1, 3, 4):to(dtype), rope.sines:narrow(1, 3, 4):to(dtype)
        local function parts(t)
          if not interleaved then return t:narrow(4, 1, 3), t:narrow(4, 4, 3) end
          return t[{{}, {}, {}, {1, 6, 2}}], t[{{}, {}, {}, {2, 6, 2}}]
        end
        local stepped = lm.randn(2, 3, 4, 12):to(dtype)[{{}, {}, {}, {1, 12, 2}}]
        local transposed = lm.randn(2, 4, 3, 6):to(dtype):transpose(2, 3)
        for _, t in ipairs {stepped, transposed, lm.randn(1, 3, 4, 6):to(dtype):expand(2, 3, 4, 6)} do
          local x = t:detach():requires_grad_()
          local y = rope(x, 3)
          local a, b = parts(t)
          local first, second = parts(y)
          assert.is_true(first:equal(a * c - b * s), dtype)
          assert.is_true(second:equal(b * c + a * s), dtype)
          local g = lm.randn_like(y)
          local da, db = parts(lm.grad(y, x, g)[1])
          local ga, gb = parts(g)
          local near = {rtol = 2 ^ -6, atol = 2 ^ -6}
          assert.is_true(da:allclose(ga * c + gb * s, near), dtype)
          assert.is_true(db:allclose(gb * c - ga * s, near), dtype)
        end
      end
    end
  end)

  it("take little more memory while their tables are made than those have", function()
    local positions, dim = 2 ^ 20 + 5, 8
    for _, name in ipairs {"RotaryPositionalEmbeddings", "SinusoidalPositions"} do
      collectgarbage()
      local before = lm.memory_allocated()
      lm.reset_peak_memory_stats()
      local net = lm.nn[name](dim, {max_seq_len = positions})
      local more = lm.max_memory_allocated() - before
      assert.is_true(more < 1.2 * 4 * positions * dim, ("%s: %.0f bytes"):format(name, more))
      if net.positions then
        local row = net.positions[positions]
        assert.near(math.sin((positions - 1) / 10), row[3], 1e-6)
        assert.near(math.cos((positions - 1) / 10), row[4], 1e-6)
      else
        assert.near(math.sin((positions - 1) / 10), net.sines[{positions, 2}], 1e-6)
        assert.near(math.cos((positions - 1) / 10), net.cosines[{positions, 2}], 1e-6)
      end
    end
  end)
end)

-- serve.Engine: the tokens of each conversation are those that it has alone, whatever runs beside it.
local lm = require "luminary"
local lists = require "luminary.base.lists"

local sizes = {
  num_hidden_layers = 2, hidden_size = 32, intermediate_size = 64, num_attention_heads = 4, num_key_value_heads = 2,
  vocab_size = 50, max_position_embeddings = 128, head_dim = 8,
}

-- Returns a small language model, whose weights are large enough that its tokens differ. Every second matrix is
-- transposed in memory, except in float32.
local function model(name, dtype, more)
  lm.manual_seed(5)
  local o = lists.copy(sizes)
  for key, value in pairs(more or {}) do o[key] = value end
  if name == "gpt2" then o = {n_layer = 2, n_embd = 32, n_head = 4, vocab_size = 50, n_positions = 128} end
  local net = lm.models[name](o):eval()
  lm.no_grad(function()
    for _, p in ipairs(net:parameters()) do if p.ndim == 2 then p:mul_(8) end end
  end)
  net:to(dtype)
  for i, p in ipairs(dtype ~= "float32" and net:parameters() or {}) do
    if p.ndim == 2 and i % 2 == 0 then p.data = p.data:t():contiguous():t() end
  end
  return net
end

local function random_ids(n) return lm.randint(1, 51, {n}):tolist() end
local function alone(net, ids, o) return net:generate(lm.LongTensor {ids}, o)[1]:tolist() end

-- Fails unless each token after the prompt is the likeliest by a call without a cache, within `most` of its score.
local function assert_likeliest(net, ids, prompt, most)
  local all = lm.no_grad(function() return net(lm.LongTensor {ids}) end)[1]:float()
  local scores = all:narrow(1, prompt, #ids - prompt)
  local best = scores:amax(2)
  local own = scores:gather(2, lm.LongTensor(lists.slice(ids, prompt + 1)):unsqueeze(2)):squeeze(2)
  local off = (best - own):div(best:abs() + 1):max():item()
  assert(off < most, ("off by %g"):format(off))
end

-- Counts the tokens that a net computes from here on, in the field `count`.
local function counted(net)
  local counter = {count = 0}
  net:register_forward_pre_hook(function(_, arguments) counter.count = counter.count + arguments[1]:numel() end)
  return counter
end

-- Fails unless no conversation has a page, of an engine without workers.
local function assert_free(engine)
  local pages, n = engine.executor.conversations.scheduler.pages, 0
  for _, users in pairs(pages.users) do assert.equal(0, users) end
  for _, page in ipairs(pages.unused) do n = n + (page and 1 or 0) end
  assert.equal(engine.room / pages.size, n + #pages.free)
end

describe("serve.Engine", function()
  for name, more in lists.sorted_pairs {
    gpt2 = {}, llama = {}, mistral = {sliding_window = 7}, gemma3 = {sliding_window = 7, sliding_window_pattern = 2},
    gemma2 = {sliding_window = 7, attn_logit_softcapping = 2, query_pre_attn_scalar = 8},
    olmoe = {num_experts = 4, num_experts_per_tok = 2, num_key_value_heads = 4},
  } do
    it("has the tokens of each conversation alone: " .. name, function()
      for _, dtype in ipairs {"bfloat16", "float16", "float32"} do
        local net = model(name, dtype, more)
        for workers, room in pairs {[0] = 2000, 60} do -- 60: conversations give pages back, and are computed again
          local engine, begin = lm.serve.Engine(net, {
            max_sequences = 5, max_tokens = room, page_size = 4, chunk = 9, num_workers = workers,
            draft = dtype ~= "float32" and workers == 0 and "prompt" or nil,
          }), random_ids(13)
          local requests, want = {}, {}
          for i = 1, 9 do
            local ids, o = random_ids(3 + 2 * i), {max_new_tokens = 5 + 2 * i}
            for k = 1, i % 3 == 0 and math.min(#ids, #begin) or 0 do ids[k] = begin[k] end
            local list = i % 2 == 0 and ids or lm.stack({lm.LongTensor(ids), lm.LongTensor(ids)}, 2):select(2, 1)
            requests[i], want[i] = engine:submit(list, o), dtype == "float32" and alone(net, ids, o) or #ids
          end
          for i, r in ipairs(requests) do
            local ids = r:get()
            if dtype == "float32" then assert.same(want[i], ids) else assert_likeliest(net, ids, want[i], 0.1) end
          end
          if workers == 0 then assert_free(engine) end
          engine:close()
        end
      end
    end)
  end

  it("keeps keys and values in quantized blocks: likely tokens, in a part of the memory", function()
    local ids, bytes = {}, {}
    for i = 1, 6 do ids[i] = random_ids(3 + 7 * i) end
    for _, dtype in ipairs {"bfloat16", "float32"} do
      local net = model("llama", dtype, {head_dim = 64})
      for kind, most in pairs {float32 = 0.1, q8_0 = 0.1, q5_1 = 0.5, q4_0 = 0.5} do
        local name = kind ~= "float32" and kind or nil
        local engine, futures = lm.serve.Engine(net, {
          cache = name, num_workers = 0, page_size = 4, chunk = 11, max_tokens = 200,
        }), {}
        for i, each in ipairs(ids) do futures[i] = engine:submit(each, {max_new_tokens = 20}) end
        for i, each in ipairs(ids) do
          assert_likeliest(net, futures[i]:get(), #each, most)
        end
        assert_free(engine)
        bytes[kind] = 0
        for _, each in ipairs(engine.executor.conversations.scheduler.cache) do
          for _, t in ipairs {each.keys, each.values} do bytes[kind] = bytes[kind] + t:numel() * t:element_size() end
        end
      end
    end
    assert.equal(2 * 2 * 200 * 2 * 64 * 4, bytes.float32) -- keys and values, layers, positions, heads
    assert.same({34 / 128, 24 / 128, 18 / 128}, {
      bytes.q8_0 / bytes.float32, bytes.q5_1 / bytes.float32, bytes.q4_0 / bytes.float32,
    })
  end)

  it("draws the tokens that each conversation draws alone, and applies its rules", function()
    local net = model("llama", "float32")
    local engine = lm.serve.Engine(net, {page_size = 8})
    local requests, want = {}, {}
    for i, o in ipairs {
      {do_sample = true, temperature = 0.8, top_k = 12}, {repetition_penalty = 1.7}, {no_repeat_ngram_size = 2},
      {do_sample = true, top_p = 0.7, min_new_tokens = 4, eos_token_id = 9}, {bad_words_ids = {{4}, {7, 8}}},
    } do
      local ids = random_ids(4 + i)
      o.max_new_tokens = 12
      o.generator = o.do_sample and lm.Generator():manual_seed(i) or nil
      want[i], o.generator, o.seed = alone(net, ids, o), nil, o.do_sample and i or nil
      requests[i] = engine:submit(ids, o)
    end
    for i, r in ipairs(requests) do assert.same(want[i], r:get()) end
    engine:close()
  end)

  it("computes what conversations begin with once, also after their end", function()
    local net = model("llama", "float32")
    local engine, begin = lm.serve.Engine(net, {page_size = 4, max_tokens = 400, num_workers = 0}), random_ids(30)
    engine:submit(begin, {max_new_tokens = 1}):get()
    local counter = counted(net)
    for last = 1, 5 do
      local ids = lists.append(lists.copy(begin), {last, 3})
      local all = engine:submit(ids, {max_new_tokens = 1}):get()
      local computed = counter.count
      assert.same(alone(net, ids, {max_new_tokens = 1}), all)
      counter.count = computed
    end
    assert.equal(5 * (32 - 28), counter.count) -- 7 full pages are known
    for _ = 1, 100 do engine:submit(begin, {max_new_tokens = 1}):get() end
    assert.is_true(#engine.executor.conversations.scheduler.pages.unused <= 200) -- twice the number of pages
    for _ = 1, 4 do engine:submit(random_ids(120), {max_new_tokens = 1}) end
    engine:close() -- which takes the memory of those
    engine.executor.is_closed = false
    assert_free(engine)
    counter.count = 0
    local all = engine:submit(begin, {max_new_tokens = 1}):get()
    assert.equal(30, counter.count)
    assert.same(alone(net, begin, {max_new_tokens = 1}), all)
  end)

  it("ends all conversations with the error of a step, and begins others after it", function()
    local net = model("llama", "float16")
    local engine, fails = lm.serve.Engine(net, {page_size = 4, num_workers = 0}), false
    net:register_forward_pre_hook(function() if fails then error "out of memory" end end)
    local futures = {engine:submit({1, 2, 3}, {max_new_tokens = 9}), engine:submit({4, 5}, {max_new_tokens = 9})}
    lm.poll()
    fails = true
    lm.poll()
    for i = 1, 2 do assert.matches("out of memory", futures[i]:exception()) end
    assert_free(engine)
    fails = false
    assert.equal(12, #engine:submit({1, 2, 3}, {max_new_tokens = 9}):get())
  end)

  it("computes at most `chunk` tokens of prompts in a step, and a token of each other conversation", function()
    local net = model("gpt2", "bfloat16")
    local engine, counter = lm.serve.Engine(net, {chunk = 10, num_workers = 0}), counted(net)
    local first = engine:submit({1, 2, 3}, {max_new_tokens = 20})
    lm.poll() -- computes a step
    local second = engine:submit(random_ids(25), {max_new_tokens = 20})
    for _, n in ipairs {11, 11, 6, 2} do
      counter.count = 0
      lm.poll()
      assert.equal(n, counter.count)
    end
    first:cancel()
    second:cancel()
    assert.equal(5, #first:get() - 3)
    assert.equal(2, #second:get() - 25)
  end)

  it("streams text, ends at the tokens and texts that end, and stops when told", function()
    local net = model("llama", "float32")
    local tokenizer = {decode = function(_, tokens)
      local letters = {}
      for i, token in ipairs(tokens) do letters[i] = string.char(64 + token) end
      return table.concat(letters)
    end}
    for workers = 0, 1 do
      local engine, ids = lm.serve.Engine(net, {num_workers = workers}), random_ids(6)
      local tokens = lists.slice(alone(net, ids, {max_new_tokens = 40}), 7)
      local text, pieces, few, seen = tokenizer:decode(tokens), {}, {}, {}
      local function submit(o)
        o.max_new_tokens, o.tokenizer = 40, (o.on_text or o.stop_strings) and tokenizer or nil
        return engine:submit(ids, o)
      end
      local all = submit {
        on_text = function(s) pieces[#pieces + 1] = s end, streamer = function(token) seen[#seen + 1] = token end,
      }
      local stopped, stop = submit {eos_token_id = tokens[4]}, submit {stop_strings = text:sub(3, 4)}
      local told = submit {on_text = function(s)
        few[#few + 1] = s
        return #few < 3
      end}
      local failing, canceled = submit {on_text = function() error "no" end}, submit {}
      canceled:cancel()
      assert.equal(46, #all:get())
      assert.equal(text, table.concat(pieces))
      assert.same(tokens, lists.slice(seen, 1, 40))
      assert.equal(lists.index_of(tokens, tokens[4]), #stopped:get() - 6)
      assert.is_true(#stop:get() - 6 <= 4)
      assert.is_true(#told:get() - 6 < 40)
      assert.equal(3, #few)
      assert.error_matches(function() failing:get() end, "no")
      assert.is_true(not canceled:cancelled() and #canceled:get() < 46)
      if workers == 0 then assert_free(engine) end
      engine:close()
    end
  end)

  it("passes each token once, in order, to functions that wait for conversations, at their ends too", function()
    local net = model("llama", "float32")
    for workers = 0, 1 do
      local engine, futures, seen = lm.serve.Engine(net, {num_workers = workers}), {}, {{}, {}, {}}
      for i = 1, 3 do
        futures[i] = engine:submit({i, i + 1}, {max_new_tokens = 6, eos_token_id = false, streamer = function(token)
          table.insert(seen[i], token)
          if i == 1 and #seen[1] == 2 then futures[3]:get(5) end
          if i == 2 and (token == nil or #seen[2] == 3) then futures[2]:get(5) end
          if i == 3 and #seen[3] == 6 then engine:close() end
        end})
      end
      for i = 1, 3 do assert.same(lists.slice(futures[i]:get(5), 3), seen[i]) end
      assert.error_matches(function() engine:save(futures[1], "unused") end, "Engine: it is closed")
    end
  end)

  it("restores conversations from files, with the tokens that they would have had, and computes none again", function()
    local path = os.tmpname()
    for kind, dtype in pairs {none = "bfloat16", q8_0 = "float32"} do
      local net = model("llama", dtype, {head_dim = 32})
      local function new_engine(workers)
        return lm.serve.Engine(net, {num_workers = workers, page_size = 4, cache = kind ~= "none" and kind or nil})
      end
      for workers = 0, 1 do
        for steps, o in pairs {
          [0] = {max_new_tokens = 9}, {do_sample = true, seed = 4, max_new_tokens = 30}, [6] = {max_new_tokens = 15},
          [9] = {do_sample = true, seed = 5, repetition_penalty = 1.1, max_new_tokens = 25},
        } do
          local engine, ids, seen = new_engine(workers), random_ids(11), 0
          o.streamer = function() seen = seen + 1 end
          local future = engine:submit(ids, o)
          while seen < steps do lm.poll() end
          local saved = engine:save(future, path)
          saved:get()
          local want = future:get()
          engine:close()
          engine = new_engine(workers)
          local counter, streamed = counted(net), {}
          local own = {streamer = function(token) streamed[#streamed + 1] = token end}
          local ok, all = pcall(function() return engine:restore(path, own):get() end)
          if ok then -- else the worker was so fast that it had ended
            assert.same(want, all)
            assert.same(lists.slice(want, #want - #streamed + 1), streamed)
            if workers == 0 and steps > 0 then assert.equal(o.max_new_tokens - steps, counter.count) end
          else
            assert.equal(1, workers)
            assert.matches("has all of its tokens", all)
          end
          local more = engine:restore(path, {max_new_tokens = 40, do_sample = false, repetition_penalty = 1})
          assert.is_true(#more:get() >= 51)
          engine:close()
        end
        local engine, ids = new_engine(workers), random_ids(11)
        local future = engine:submit(ids, {max_new_tokens = 9})
        local all = future:get()
        engine:save(future, path):get()
        local counter = counted(net)
        local continued = engine:restore(path, {append = {7, 8, 9}, max_new_tokens = 5}):get()
        if workers == 0 then assert.equal(20 + 3 - 16 + 4, counter.count) end -- 4 of 5 full pages are in the file
        if dtype == "float32" and kind == "none" then
          assert.same(alone(net, lists.append(lists.copy(all), {7, 8, 9}), {max_new_tokens = 5}), continued)
        end
        assert.equal(28, #continued)
        engine:close()
      end
    end
    os.remove(path)
  end)

  it("shares no keys and values of a file with other conversations, and saves them again", function()
    local path, net = os.tmpname(), model("llama", "bfloat16")
    local engine, ids = lm.serve.Engine(net, {page_size = 4, num_workers = 0}), random_ids(30)
    local want = engine:submit(ids, {max_new_tokens = 9}):get()
    local future = engine:submit(ids, {max_new_tokens = 5})
    future:get()
    engine:save(future, path):get()
    local forged = lm.load(path)
    for i = 1, 2 do forged.values[i]:neg_() end
    lm.save(path, forged)
    for workers = 0, 1 do
      engine = lm.serve.Engine(net, {page_size = 4, num_workers = workers})
      local restored, beside = engine:restore(path, {max_new_tokens = 40}), engine:submit(ids, {max_new_tokens = 9})
      assert.same(want, beside:get())
      local other = restored:get()
      assert.not_same(want, lists.slice(other, 1, 39))
      assert.same(want, engine:submit(ids, {max_new_tokens = 9}):get())
      engine:save(restored, path .. ".again"):get()
      assert.equal(72, lm.load(path .. ".again").keys[1].shape[1]) -- all of the full pages
      if workers == 0 then assert_free(engine) end
      engine:close()
    end
    for _, ending in ipairs {"", ".again"} do os.remove(path .. ending) end
  end)

  it("refuses files of other models, of other forms, and broken ones", function()
    local path, net = os.tmpname(), model("llama", "float32", {head_dim = 32})
    local engine = lm.serve.Engine(net, {page_size = 4, num_workers = 0})
    local future = engine:submit({1, 2, 3, 4, 5}, {max_new_tokens = 12, do_sample = true, seed = 3})
    for _ = 1, 6 do lm.poll() end
    engine:save(future, path):get()
    local function refuses(pattern, other, name)
      assert.error_matches(function() other:restore(name or path):get() end, pattern)
    end
    local changed = model("llama", "float32", {head_dim = 32})
    lm.no_grad(function() changed.model.norm.weight:mul_(2) end)
    refuses("the conversation is of another model", lm.serve.Engine(changed, {num_workers = 0}))
    refuses("the conversation is of another model", lm.serve.Engine(model("gpt2", "float32"), {num_workers = 0}))
    refuses("do not fit the engine's dtype or cache, q8_0", lm.serve.Engine(net, {cache = "q8_0", num_workers = 0}))
    local halves = lm.serve.Engine(net, {dtype = "bfloat16", num_workers = 0})
    refuses("do not fit the engine's dtype or cache, bfloat16", halves)
    refuses("are more than 12, the least", lm.serve.Engine(net, {max_tokens = 12, page_size = 4, num_workers = 0}))
    refuses("no/such/file", engine, "no/such/file")
    assert.error_matches(function() engine:restore(path, {max_length = 4}) end, "max_length is not supported")
    assert.error_matches(function() engine:save({}, path) end, "future must be a future")
    assert.error_matches(function() lm.serve.Engine(net, {num_workers = 0}):save(future, path) end, "of another engine")
    assert.error_matches(function() engine:save(future, "no/such/folder/file"):get() end, "no/such/folder")
    local good = lm.load(path)
    for pattern, change in pairs {
      ["no conversation that engine:save wrote"] = function(v) v.luminary_conversation = nil end,
      ["malformed model"] = function(v) v.model = 3 end, ["malformed ids"] = function(v) v.ids = lm.ones(3) end,
      ["ids are out of range"] = function(v) v.ids = v.ids + 49 end,
      ["malformed counts"] = function(v) v.count = v.ids:numel() end,
      ["malformed options"] = function(v) v.options = 3 end,
      ["unknown option 'x'"] = function(v) v.options.x = 3 end,
      ["temperature must be"] = function(v) v.options.temperature = "hot" end,
      ["num_beams and num_return_sequences must be 1"] = function(v) v.options.num_beams = 2 end,
      ["malformed random state"] = function(v) v.random = lm.ones(4) end,
      ["set_rng_state: state must be"] = function(v) v.random = v.random:narrow(1, 1, 3) end,
      ["do not fit"] = function(v) v.keys[2] = v.keys[2]:narrow(1, 1, 2) end,
      ["values do not fit"] = function(v) v.values[1] = {} end,
      ["constraint requires {tokenizer"] = function(v) v.options.constraint = {json = true} end,
    } do
      local v = lm.load(path)
      change(v)
      local other = path .. ".changed"
      lm.save(other, v)
      refuses(pattern, engine, other)
      os.remove(other)
    end
    assert.equal("table", type(engine:restore(path, {max_new_tokens = 3}):get())) -- the engine continues
    assert.equal(1, good.luminary_conversation)
    local file = assert(io.open(path, "rb"))
    local bytes = file:read "*a"
    file:close()
    math.randomseed(8)
    for i = 1, 150 do
      local at = math.random(#bytes)
      local broken = i % 2 == 0 and bytes:sub(1, at - 1)
        or bytes:sub(1, at - 1) .. string.char(math.random(0, 255)) .. bytes:sub(at + 1)
      lm.vision.write_file(path, broken)
      local ok, result = pcall(function() return engine:restore(path):get() end)
      assert.equal(ok and "table" or "string", type(result))
    end
    os.remove(path)
    assert.equal(17, #future:get())
    assert_free(engine)
  end)

  it("refuses what it cannot do", function()
    local net = model("llama", "float32")
    local engine = lm.serve.Engine(net, {max_tokens = 64, num_workers = 0})
    for pattern, arguments in pairs {
      ["at least one token"] = {{}}, ["ids must be from 1 to 50, got 51"] = {{1, 51}},
      ["60 tokens and 20 new ones are more than 64"] = {random_ids(60), {max_new_tokens = 20}},
      ["num_beams"] = {{1}, {num_beams = 2}},
      ["generator is not supported; pass a seed"] = {{1}, {generator = lm.Generator()}},
      ["attention_mask is not supported"] = {{1}, {attention_mask = lm.ones(1, 1)}},
      ["ids must be an int64 tensor"] = {lm.ones(2, 2)},
    } do
      assert.error_matches(function() engine:submit(unpack(arguments)) end, pattern)
    end
    assert.error_matches(function() lm.serve.Engine(lm.nn.Linear(2, 2)) end, "a language model of lm.models")
    assert.error_matches(function() lm.serve.Engine(net, {max_tokens = 4}) end, "at least page_size, 16")
    for kind, pattern in pairs {
      q8_0 = "the size of a head %(8%) must be divisible by that of a q8_0 block %(32%)", q9 = "cache must be one of",
    } do
      assert.error_matches(function() lm.serve.Engine(net, {cache = kind}) end, pattern)
    end
    for pattern, draft in pairs {
      ["draft must be \"prompt\" or a language model of lm.models"] = "promt",
      ["draft.config.vocab_size must be that of the net, 50, got 60"] = model("llama", "float32", {vocab_size = 60}),
      ["draft.config.max_positions must be at least"] = model("llama", "float32", {max_position_embeddings = 50}),
    } do
      assert.error_matches(function() lm.serve.Engine(net, {draft = draft}) end, pattern)
    end
  end)

  it("has the same tokens with drafts of another model or of the text so far, in fewer steps", function()
    local net, other = model("llama", "float32"), model("gpt2", "float32")
    local ids, options, want = {}, {}, {}
    for i = 1, 8 do
      ids[i] = random_ids(2 + i)
      for _ = 1, i % 2 * 3 do ids[i] = lists.append(lists.copy(ids[i]), ids[i]) end
      options[i] = i % 4 == 0 and {do_sample = true, temperature = 0.7} or {}
      options[i].repetition_penalty = i % 4 == 1 and 1.2 or nil
      options[i].max_new_tokens = 6 + 3 * i
    end
    options[6].eos_token_id, options[2].no_repeat_ngram_size = 7, 3
    for i, o in ipairs(options) do
      local own = lists.copy(o)
      own.generator = o.do_sample and lm.Generator():manual_seed(i) or nil
      want[i], o.seed = alone(net, ids[i], own), i
    end
    for name, draft in lists.sorted_pairs {none = false, other = other, self = net, text = "prompt"} do
      for workers, room in pairs {[0] = 2000, 120} do
        local engine = lm.serve.Engine(net, {
          draft = draft or nil, draft_tokens = 13, max_sequences = 5, max_tokens = room, page_size = 4, chunk = 9,
          num_workers = workers,
        })
        local futures, streamed = {}, {}
        for i, each in ipairs(ids) do
          local o = lists.copy(options[i])
          streamed[i] = {}
          function o.streamer(token) table.insert(streamed[i], token) end
          futures[i] = engine:submit(each, o)
        end
        for i, each in ipairs(futures) do
          assert.same(want[i], each:get(), name)
          assert.same(lists.slice(want[i], #ids[i] + 1), streamed[i])
        end
        local counts = engine:counts()
        assert(name == "none" == (counts.drafted == 0), ("%s: %d drafts"):format(name, counts.drafted))
        if name == "self" then assert.is_true(counts.accepted > counts.drafted / 2) end -- others are drawn
        if workers == 0 then assert_free(engine) end
        engine:close()
      end
    end
    local repeated, steps = {}, 0
    for _ = 1, 12 do lists.append(repeated, {5, 9, 11, 3, 8}) end
    net:register_forward_pre_hook(function() steps = steps + 1 end)
    local want_all = alone(net, repeated, {max_new_tokens = 40})
    local engine = lm.serve.Engine(net, {draft = "prompt", num_workers = 0})
    steps = 0
    assert.same(want_all, engine:submit(repeated, {max_new_tokens = 40}):get())
    assert.equal(40, steps + engine:counts().accepted)
    assert.is_true(steps < 40)
    engine = lm.serve.Engine(net, {draft = net, num_workers = 0, draft_tokens = 6})
    assert.same(want_all, engine:submit(repeated, {max_new_tokens = 40}):get())
    local counts = engine:counts()
    assert.is_true(counts.accepted == counts.drafted and counts.drafted > 30)
  end)

  it("draws tokens with their probabilities where drafts are wrong", function()
    local net, n = model("llama", "float32"), 300
    local scores = net(lm.LongTensor {{4, 9, 4, 9, 4}}):detach()[1][5]
    local want = (scores / 3):softmax(1)
    local engine = lm.serve.Engine(net, {draft = "prompt", max_queue = 128})
    local seen = lm.zeros(50)
    for first = 1, n, 100 do
      local futures = {}
      for i = first, first + 99 do
        local o = {do_sample = true, temperature = 3, seed = i, max_new_tokens = 3}
        futures[#futures + 1] = engine:submit({4, 9, 4, 9, 4}, o)
      end
      for _, each in ipairs(futures) do
        local token = each:get()[6]
        seen[token] = seen[token] + 1
      end
    end
    engine:close()
    local expected = want * n
    local chi = ((seen - expected):pow(2) / expected):sum():item()
    assert.is_true(chi < 49 + 4 * math.sqrt(2 * 49), ("chi-square %g"):format(chi))
  end)

  it("frees a future that its function of tokens has", function()
    for workers = 0, 1 do
      local engine, weak = lm.serve.Engine(model("llama", "float32"), {num_workers = workers}), {}
      setmetatable(weak, {__mode = "v"})
      do
        local future
        future = engine:submit({1, 2}, {max_new_tokens = 3, streamer = function() return future ~= nil end})
        future:get()
        weak[1] = future
      end
      engine:close()
      jit.flush() -- compiled code keeps the functions that it was recorded with
      collectgarbage()
      collectgarbage()
      assert.is_nil(weak[1])
    end
  end)

  it("keeps conversations in the form of their constraints", function()
    local path = os.tmpname()
    lm.vision.write_file(path, "[UNK]\n[PAD]\n[CLS]\n[SEP]\n[MASK]\nyes\nno\n")
    local tokenizer = lm.text.BertWordPieceTokenizer(path)
    os.remove(path)
    local net = model("llama", "float32")
    for _, draft in ipairs {false, "prompt", net} do
      local engine, list = lm.serve.Engine(net, {draft = draft or nil}), {}
      for i, regex in ipairs {"( yes){3}", " no( yes)?", false} do
        list[i] = engine:submit({6, 7, 6, 7}, {
          tokenizer = tokenizer, constraint = regex and {regex = regex} or nil, max_new_tokens = 6,
        })
      end
      assert.same({6, 7, 6, 7, 6, 6, 6}, list[1]:get())
      local second = list[2]:get()
      assert.same({7, 6}, {second[5], second[6]})
      assert.equal(6, #second)
      assert.equal(10, #list[3]:get())
      engine:close()
    end
  end)

  it("reports errors of constraints by the future, and makes a tokenizer's tree once", function()
    local path = os.tmpname()
    lm.vision.write_file(path, "[UNK]\n[PAD]\n[CLS]\n[SEP]\n[MASK]\nyes\nno\n")
    local net, tokenizers = model("llama", "float32"), {}
    for i = 1, 2 do tokenizers[i] = lm.text.BertWordPieceTokenizer(path) end
    os.remove(path)
    local matcher, made = require "luminary.text.constraint.matcher", 0
    local tree = matcher.tree
    function matcher.tree(...)
      made = made + 1
      return tree(...)
    end
    for workers = 0, 1 do
      local engine, sent = lm.serve.Engine(net, {num_workers = workers}), 0
      local executor, send = engine.executor, engine.executor.submit
      function executor.submit(self, who, fn, args, n)
        if args[1].tokenizer then sent = sent + 1 end
        return send(self, who, fn, args, n)
      end
      local function submit(i, regex)
        return engine:submit({6}, {tokenizer = tokenizers[i], constraint = {regex = regex}, max_new_tokens = 6})
      end
      local first = submit(1, "( yes){9}")
      first:cancel() -- maybe before it began
      local wrong = submit(1, "(yes")
      assert.error_matches(function() wrong:get() end, "constraint")
      for i, regex in ipairs {" yes", " no"} do
        for _ = 1, 2 do assert.same({6, 5 + i}, submit(i, regex):get()) end
      end
      tokenizers[1]:add_tokens {"maybe"}
      assert.same({6, 8}, submit(1, " ?maybe"):get())
      local lacking = engine:submit({6}, {constraint = {regex = "yes"}})
      assert.error_matches(function() lacking:get() end, "constraint requires {tokenizer = …}")
      engine:close()
      assert.equal(3, sent) -- two tokenizers, and one again, with more tokens
    end
    matcher.tree = tree
    assert.equal(3, made) -- the engine without a worker made them in this Lua state
  end)
end)

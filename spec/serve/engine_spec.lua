-- serve.Engine: the tokens of each conversation are those that it has alone, whatever runs beside it.
local lm = require "luminary"
local lists = require "luminary.base.lists"

local sizes = {
  num_hidden_layers = 2, hidden_size = 32, intermediate_size = 64, num_attention_heads = 4, num_key_value_heads = 2,
  vocab_size = 50, max_position_embeddings = 128, head_dim = 8,
}

-- Returns a small language model, whose weights are large enough that its tokens differ.
local function model(name, dtype, more)
  lm.manual_seed(5)
  local o = lists.copy(sizes)
  for key, value in pairs(more or {}) do o[key] = value end
  if name == "gpt2" then o = {n_layer = 2, n_embd = 32, n_head = 4, vocab_size = 50, n_positions = 128} end
  local net = lm.models[name](o):eval()
  lm.no_grad(function()
    for _, p in ipairs(net:parameters()) do if p.ndim == 2 then p:mul_(8) end end
  end)
  return net:to(dtype)
end

local function random_ids(n) return lm.randint(1, 51, {n}):tolist() end
local function alone(net, ids, o) return net:generate(lm.LongTensor {ids}, o)[1]:tolist() end

-- Fails unless each token after the prompt is the likeliest, within the rounding of halves, by a call without a cache.
local function assert_likeliest(net, ids, prompt)
  local all = lm.no_grad(function() return net(lm.LongTensor {ids}) end)[1]:float()
  local scores = all:narrow(1, prompt, #ids - prompt)
  local best = scores:amax(2)
  local own = scores:gather(2, lm.LongTensor(lists.slice(ids, prompt + 1)):unsqueeze(2)):squeeze(2)
  assert.is_true((best - own):div(best:abs() + 1):max():item() < 0.1)
end

-- Counts the tokens that a net computes from here on, in the field `count`.
local function counted(net)
  local counter = {count = 0}
  net:register_forward_pre_hook(function(_, arguments) counter.count = counter.count + arguments[1]:numel() end)
  return counter
end

-- Fails unless no conversation has a page, of an engine without workers.
local function assert_free(engine)
  local pages, n = engine.executor.scheduler.pages, 0
  for _, users in pairs(pages.users) do assert.equal(0, users) end
  for _, page in ipairs(pages.unused) do n = n + (page and 1 or 0) end
  assert.equal(engine.room / pages.size, n + #pages.free)
end

describe("serve.Engine", function()
  for name, more in lists.sorted_pairs {
    gpt2 = {}, llama = {}, mistral = {sliding_window = 7}, gemma3 = {sliding_window = 7, sliding_window_pattern = 2},
    olmoe = {num_experts = 4, num_experts_per_tok = 2, num_key_value_heads = 4},
  } do
    it("has the tokens of each conversation alone: " .. name, function()
      for _, dtype in ipairs {"bfloat16", "float16", "float32"} do
        local net = model(name, dtype, more)
        for workers, room in pairs {[0] = 2000, 60} do -- 60: conversations give pages back, and are computed again
          local engine, begin = lm.serve.Engine(net, {
            max_sequences = 5, max_tokens = room, page_size = 4, chunk = 9, num_workers = workers,
          }), random_ids(13)
          local requests, want = {}, {}
          for i = 1, 9 do
            local ids, o = random_ids(3 + 2 * i), {max_new_tokens = 5 + 2 * i}
            for k = 1, i % 3 == 0 and math.min(#ids, #begin) or 0 do ids[k] = begin[k] end
            requests[i], want[i] = engine:submit(ids, o), dtype == "float32" and alone(net, ids, o) or #ids
          end
          for i, r in ipairs(requests) do
            local ids = r:get()
            if dtype == "float32" then assert.same(want[i], ids) else assert_likeliest(net, ids, want[i]) end
          end
          if workers == 0 then assert_free(engine) end
          engine:close()
        end
      end
    end)
  end

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
    for _ = 1, 4 do engine:submit(random_ids(120), {max_new_tokens = 1}) end
    engine:close() -- which takes the memory of those
    engine.is_closed = false
    assert_free(engine)
    counter.count = 0
    local all = engine:submit(begin, {max_new_tokens = 1}):get()
    assert.equal(30, counter.count)
    assert.same(alone(net, begin, {max_new_tokens = 1}), all)
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
      assert.is_true(canceled:cancelled() or #canceled:get() < 46)
      if workers == 0 then assert_free(engine) end
      engine:close()
    end
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
    local capped = model("gemma2", "float32", {sliding_window = 7})
    assert.error_matches(function() lm.serve.Engine(capped) end, "attn_logit_softcapping is not supported")
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
    local engine = lm.serve.Engine(model("llama", "float32"))
    local list = {}
    for i, regex in ipairs {"( yes){3}", " no( yes)?", false} do
      list[i] = engine:submit({6, 7}, {
        tokenizer = tokenizer, constraint = regex and {regex = regex} or nil, max_new_tokens = 6,
      })
    end
    assert.same({6, 7, 6, 6, 6}, list[1]:get())
    local second = list[2]:get()
    assert.same({7, 6}, {second[3], second[4]})
    assert.equal(4, #second)
    assert.equal(8, #list[3]:get())
    assert.error_matches(function()
      engine:submit({6}, {tokenizer = tokenizer, constraint = {regex = "(yes"}})
    end, "constraint")
    engine:close()
  end)
end)

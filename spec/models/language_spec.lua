-- Models of language against Hugging Face's transformers (scripts/dev/golden/gen_language.py).
local lm = require "luminary"
local golden = require "spec.support.golden"

local configs = {
  gpt2 = {vocab_size = 60, n_positions = 64, n_embd = 16, n_layer = 2, n_head = 4},
  llama = {
    vocab_size = 60, hidden_size = 16, intermediate_size = 24, num_hidden_layers = 2, num_attention_heads = 4,
    num_key_value_heads = 2, max_position_embeddings = 64,
  },
  llama_tied = {
    vocab_size = 60, hidden_size = 16, intermediate_size = 24, num_hidden_layers = 1, num_attention_heads = 2,
    head_dim = 6, max_position_embeddings = 64, tie_word_embeddings = true,
  },
}

local function loaded(name)
  local file, state = golden.load("language_" .. name), {}
  for key, t in pairs(file) do
    local own = key:match "^state%.(.*)$"
    if own then state[own] = t end
  end
  local net = lm.models[name:match "^%l+%d?"](configs[name])
  net:load_state_dict(state)
  return net:eval(), file, state
end

describe("models.", function()
  for name in pairs(configs) do
    it(name .. " gives the scores of transformers, and goes on as it does", function()
      local net, file = loaded(name)
      local ids = file.ids
      assert.near(0, (net(ids) - file.logits):abs():max():item(), 1e-4)
      for _, use_cache in ipairs {true, false} do
        local function go_on(from, more)
          local opts = {max_new_tokens = 40, use_cache = use_cache}
          for k, v in pairs(more or {}) do opts[k] = v end
          return net:generate(from, opts)
        end
        assert.is_true(go_on(ids):equal(file.greedy))
        assert.is_true(go_on(ids, {repetition_penalty = 1.3}):equal(file.penalized))
        assert.is_true(go_on(ids:narrow(1, 1, 1), {num_beams = 3}):equal(file.beams))
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

  it("gpt2 takes the names of the bare model's files", function()
    local net, _, state = loaded "gpt2"
    local bare = {["h.0.attn.bias"] = lm.ones(2)}
    for key, t in pairs(state) do
      if key ~= "lm_head.weight" then bare[key:gsub("^transformer%.", "")] = t end
    end
    assert.same({missing_keys = {}, unexpected_keys = {}}, net:load_state_dict(bare))
  end)

  it("generate draws among the likeliest, stops where it is told to, and says what is wrong", function()
    local net, file = loaded "gpt2"
    local ids = file.ids
    local best = net(ids):select(2, -1):topk(2, 2)
    local generator = lm.Generator():manual_seed(3)
    local drawn = {}
    for _ = 1, 30 do
      local y = net:generate(ids, {max_new_tokens = 1, top_k = 2, generator = generator})
      local score = net(ids):select(2, -1):gather(2, y:narrow(2, 8, 1))
      assert.is_true(score:ge(best:narrow(2, 2, 1)):all():item())
      drawn[y[{1, 8}]] = true
    end
    assert.is_true(next(drawn, next(drawn)) ~= nil)
    assert.is_true(net:generate(ids, {top_p = 1e-6}):equal(net:generate(ids)))
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
    local function says(words, f) assert.error_matches(f, words) end
    says("7 tokens and 99 new ones; the model has 64 places", function() net:generate(ids, {max_new_tokens = 99}) end)
    says("num_beams goes with one sequence", function() net:generate(ids, {num_beams = 2}) end)
    says("ids is .*%[N, L%]", function() net:generate(ids[1]) end)
    says("n_embd 10 is not to be divided into 3 heads", function() lm.models.gpt2 {n_embd = 10, n_head = 3} end)
    says("65 tokens; n_positions is 64", function() net(lm.ones({1, 65}):long()) end)
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
    assert.error_matches(function() cache:update(k, v) end, "holds 4 of 5 places; there is no room for 2 more")
    assert.error_matches(function() cache:update(k, v:narrow(3, 1, 1)) end, "v is .*%[2, 3, n, 4%] wanted")
    cache:reset(1)
    assert.is_true(cache:update(v, k):narrow(3, 2, 2):equal(v))
    cache:reorder(lm.tensor({2, 2}, {dtype = "int64"}))
    local kept = cache.keys:narrow(3, 1, 3)
    assert.is_true(kept[1]:equal(kept[2]))
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
      local places = lm.tensor({4, 5, 6, 7, 8}, {dtype = "int64"})
      assert.is_true(rope(x, 4):equal(rope(x, {input_pos = places})))
      assert.is_true(rope(x, 4):equal(rope(x, {input_pos = places:expand(2, 5)})))
    end
    local rope = lm.nn.RotaryPositionalEmbeddings(8, 16)
    assert.error_matches(function() rope(lm.randn(1, 1, 9, 8), 9) end, "places 9 to 17, max_seq_len is 16")
  end)
end)

-- Folders of Hugging Face's, of families that share a network's code, against transformers
-- (scripts/dev/golden/gen_families.py).
local lm = require "luminary"
local golden = require "spec.golden.families"
local temp = require "spec.support.temp"
local models = lm.models

local function wave(shape, phase)
  local n = 1
  for _, size in ipairs(shape) do n = n * size end
  return (lm.arange(n, {dtype = "float64"}) * 0.7 + phase):sin():view(shape)
end

-- Returns the weights of a file: the formula of gen_families.py.
local function weights_of(name, text)
  local state, i = {}, 0
  for key, sizes in text:gmatch "(%S+):([%dx]+)" do
    local shape = {}
    for size in sizes:gmatch "%d+" do shape[#shape + 1] = tonumber(size) end
    local near_1 = not name:find "gemma" and #shape == 1 and key:find "weight$" or key:find "lambda1"
    state[key] = (wave(shape, i) * (#shape > 1 and 0.4 or 0.2) + (near_1 and 1 or 0)):float()
    i = i + 1
  end
  return state
end

local function near(want, got)
  want = lm.tensor(want)
  assert.same(want.shape, got.shape)
  assert.near(0, (got - want):abs():max():item() / want:abs():max():item(), 1e-5)
end

local says = require "spec.support.says"

describe("a folder of", function()
  local folder = temp.during(setup, teardown)

  local function saved(name, config)
    local here = folder .. "/" .. name
    temp.execute("mkdir -p " .. here)
    temp.write(here .. "/config.json", config or golden[name].config)
    lm.save(here .. "/model.safetensors", weights_of(name, golden[name].names))
    return here
  end

  local function ids_of(row) return lm.tensor(row.ids, {dtype = "int64"}) end

  for name, row in pairs(golden) do
    it(name .. " has transformers' results", function()
      local kind = row.config:match '"model_type": "([%w_-]+)"'
      local text = row.greedy ~= nil
      local maker = kind == "gpt2" and models.gpt2 or text and models.llama or row.image and models.vit or models.bert
      for _, make in ipairs {maker, kind:find "^xlm" and maker or models[kind]} do
        local net, report = make {weights = saved(name)}
        assert.equal("<all keys matched>", tostring(report))
        local y
        if row.image then
          y = net(wave({2, 3, row.image[1], row.image[1]}, 0.3):float())
        elseif text then
          y = net(ids_of(row)):select(2, -1)
          net.eos_token_id = nil
          local tokens = net:generate(ids_of(row), {max_new_tokens = 16})
          assert.same(row.greedy, tokens:totable())
          assert.same(row.greedy, net:generate(ids_of(row), {max_new_tokens = 16, use_cache = false}):totable())
        else
          y = net(ids_of(row), {attention_mask = lm.tensor(row.mask, {dtype = "int64"})})
          y = y.ndim == 3 and y:select(2, 1) or y
        end
        near(row.y, y)
        net:train()
        if row.image then
          y = net(lm.randn(2, 3, row.image[1], row.image[1]))
        else
          y = net(ids_of(row))
        end
        y:sum():backward()
      end
    end)
  end

  it("a padded text is continued as the text alone, within a window too", function()
    for _, name in ipairs {"mistral", "qwen2_window", "phi3", "gemma"} do
      local net = models.llama {weights = saved(name)}
      net.eos_token_id = nil
      local ids = ids_of(golden[name]):narrow(1, 1, 1)
      local alone = net:generate(ids, {max_new_tokens = 8}):narrow(2, 10, 8)
      local padded = lm.cat({lm.ones({1, 3}):long(), ids}, 2)
      local mask = lm.cat({lm.zeros({1, 3}):long(), lm.ones({1, 9}):long()}, 2)
      assert.is_true(net:generate(padded, {max_new_tokens = 8, attention_mask = mask}):narrow(2, 13, 8):equal(alone))
    end
  end)

  it("what is not supported is refused by its name", function()
    local config = golden.mistral.config
    says("config%.json' has model_type 'mixtral', expected 'gemma' or 'llama' or 'mistral' or 'phi3' or",
      models.mistral, {weights = saved("mistral", (config:gsub('"mistral"', '"mixtral"')))})
    says("hidden_act must be one of 'gelu',",
      models.llama, {weights = saved("mistral", (config:gsub('"silu"', '"mish"')))})
    says("has use_swiglu_ffn = true; only false is supported",
      models.dinov2,
      {weights = saved("dinov2", (golden.dinov2.config:gsub('"use_swiglu_ffn": false', '"use_swiglu_ffn": true')))})
    says("scaling.rope_type must be one of 'default', 'dynamic', 'factors', 'linear', 'llama3', 'longrope', 'yarn',",
      models.llama, {weights = saved("llama_yarn", (golden.llama_yarn.config:gsub('"yarn"', '"mrope"')))})
    says("scaling.long_factor is missing or nil; expected a table",
      models.phi3, {weights = saved("phi3_long", (golden.phi3_long.config:gsub("long_factor", "far_factor")))})
    says("Bert: the number of tokens must be at most max_position_embeddings %- pad_token_id, 38, got 39", function()
      models.roberta {weights = saved "roberta"}(lm.ones({1, 39}):long())
    end)
    says("expected x to have shape %[N, 3, 12, 12%], got %[1, 3, 16, 16%]", function()
      models.deit {weights = saved "deit"}(lm.ones(1, 3, 16, 16))
    end)
  end)

  it("nothing: families have options of their own", function()
    local small = {vocab_size = 30, hidden_size = 8, intermediate_size = 8, num_hidden_layers = 1,
      num_attention_heads = 2}
    for name, kind in pairs {mistral = "mistral", qwen2 = "qwen2", qwen3 = "qwen3", gemma = "gemma", phi3 = "phi3"} do
      local net = models[name](small)
      assert.equal(kind, net.config.model_type)
      assert.same({1, 3, 30}, net(lm.ones({1, 3}):long()).shape)
    end
    assert.equal(256, models.gemma(small).config.head_dim)
    assert.is_nil(models.gemma(small).lm_head)
    assert.is_true(models.qwen2(small).model.layers[1].self_attn.q_proj.bias ~= nil)
    assert.equal(2, models.roberta(small).config.pad_token_id)
    assert.is_nil(models.distilbert(small).pooler)
  end)
end)

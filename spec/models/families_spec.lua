-- Folders of Hugging Face's, of families that share a network's code, against transformers
-- (scripts/dev/golden/gen_families.py).
local lm = require "luminary"
local golden = require "spec.golden.families"
local core = require "luminary.core"
local lists = require "luminary.base.lists"
local temp = require "spec.support.temp"
local models = lm.models

local function wave(shape, phase)
  local n = 1
  for _, size in ipairs(shape) do n = n * size end
  n = lm.arange(n, {dtype = "float64"})
  return (n * n * 0.37 + n * 0.7 + phase):sin():view(shape)
end

-- Adds the shapes of the tensors of a row "a.*.b:2x3@4", a.0.b to a.3.b.
local function add_shapes(shapes, key, sizes, counts)
  local n, rest = counts:match "^@(%d+)(.*)$"
  for i = 0, n and n - 1 or -1 do add_shapes(shapes, key:gsub("%*", i, 1), sizes, rest) end
  if not n then shapes[key] = sizes end
end

-- Returns the weights of a file: the formula of gen_families.py.
local function weights_of(name, text)
  local state, shapes, i = {}, {}, 0
  for key, sizes, counts in text:gmatch "(%S+):([%dx]+)(%S*)" do add_shapes(shapes, key, sizes, counts) end
  for key, sizes in lists.sorted_pairs(shapes) do
    local shape = {}
    for size in sizes:gmatch "%d+" do shape[#shape + 1] = tonumber(size) end
    local near_1 = not name:find "gemma" and #shape == 1 and key:find "weight$" or key:find "lambda1"
    state[key] = (wave(shape, i) * (#shape > 1 and 0.4 or 0.2) + (near_1 and 1 or 0)):float()
    i = i + 1
  end
  return state
end

local function near(want, got, bound)
  want = core.is_tensor(want) and want or lm.tensor(want)
  assert.same(want.shape, got.shape)
  assert.near(0, (got:float() - want):abs():max():item() / want:abs():max():item(), bound or 1e-5)
end

-- Returns what lm.load returns for the GGUF file of a configuration: gen_families.py's rows are tensors and what
-- llama.cpp's converter does with the weights.
local function gguf_of(name)
  local row, weights = golden[name].gguf, weights_of(name, golden[name].names)
  local file = {metadata = row.metadata, tensors = {}}
  for to, key, experts, add, heads in row.tensors:gmatch "(%S-)=([^%s:+/]+):?(%d*)%+?(%d*)/?(%d*)" do
    local layers = 1
    for name_of, value in pairs(row.metadata) do
      if name_of:find "block_count" and to:find "^blk" then layers = value end
    end
    for layer = 0, layers - 1 do
      local own = key:gsub("layers%.0", "layers." .. layer)
      local t = weights[own]
      if experts ~= "" then
        local all = {}
        for i = 1, tonumber(experts) do all[i] = weights[own:gsub("experts%.0", "experts." .. i - 1)] end
        t = lm.stack(all, 1)
      end
      if add ~= "" then t = t + 1 end
      if heads ~= "" then t = t:reshape {tonumber(heads), 2, -1, t.shape[2]}:transpose(2, 3):reshape(t.shape) end
      file.tensors[to:gsub("blk%.0", "blk." .. layer)] = t
    end
  end
  for to, values in pairs(row.more) do file.tensors[to] = lm.tensor(values) end
  return file
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
      local kind = row.config:match '"model_type": "([%w_-]+)"':gsub("_text$", "")
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
          local tokens = net:generate(ids_of(row), {max_new_tokens = 100})
          assert.same(row.greedy, tokens:totable())
          if make ~= maker then break end
          local again = net:generate(ids_of(row), {max_new_tokens = 40, use_cache = false})
          assert.is_true(again:equal(tokens:narrow(2, 1, 49)))
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

  for name, row in pairs(golden) do
    if row.gguf then
      it(name .. " is the same from a GGUF file", function()
        local net, report = models.llama {weights = gguf_of(name)}
        assert.equal("<all keys matched>", tostring(report))
        assert.same({3}, net.eos_token_id)
        near(row.y, net(ids_of(row)):select(2, -1))
        net.eos_token_id = nil
        assert.same(row.greedy, net:generate(ids_of(row), {max_new_tokens = 100}):totable())
      end)
    end
    if row.gguf then
      it(name .. " is written as llama.cpp's converter writes it", function()
        local file, path = gguf_of(name), folder .. "/written.gguf"
        lm.save(path, models.llama {weights = saved(name)})
        local back = lm.load(path)
        for key, value in pairs(file.metadata) do
          local mine = back.metadata[key]
          assert.is_true(mine == value or value == 0 or math.abs(mine - value) < 1e-6 * math.abs(value), key)
        end
        for key, t in pairs(back.tensors) do near(assert(file.tensors[key], key), t, 1e-6) end
        for key in pairs(file.tensors) do assert.is_not_nil(back.tensors[key], key) end
      end)
    end
    if row.greedy and not name:find "^gpt2" then
      it(name .. " computes halves, and compiles", function()
        local folder_of = saved(name)
        local net = models.llama {weights = folder_of}
        local wide = net(ids_of(row))
        local step = lm.compile(function(ids) return net(ids) end)
        for _ = 1, 3 do near(wide, lm.no_grad(step, ids_of(row))) end
        if not row.config:find "longrope" then -- the step of one token that a GPU replays
          local ids, cache = ids_of(row), net:new_cache(2, 12)
          net(ids:narrow(2, 1, 8), {cache = cache})
          local place = lm.tensor({9}, {dtype = "int64"})
          for _, each in ipairs(cache) do each.position = place end
          local y = net(ids:narrow(2, 9, 1), {cache = cache, position_ids = place:view(1, 1):expand(2, 1)})
          near(wide:narrow(2, 9, 1), y)
        end
        for dtype, bound in pairs {float16 = 0.02, bfloat16 = 0.1} do
          local y = models.llama {weights = folder_of, dtype = dtype}(ids_of(row))
          assert.equal(dtype, y.dtype)
          -- rounding changes the choice of experts now and then, so that their mean is compared
          if row.config:find "experts" then
            assert.is_true(((y:float() - wide):abs():mean() / wide:abs():mean()):item() < bound)
          else
            near(wide, y, bound)
          end
        end
        if not row.config:find "experts" then near(wide, lm.quantize(net)(ids_of(row)), 0.1) end
      end)
    end
  end

  it("a padded text is continued as the text alone, within a window too", function()
    for _, name in ipairs {"mistral", "qwen2_window", "phi3", "gemma", "gemma2", "gemma3", "smollm3_window", "olmoe"} do
      local net = models.llama {weights = saved(name)}
      net.eos_token_id = nil
      local ids = ids_of(golden[name]):narrow(1, 1, 1)
      local alone = net:generate(ids, {max_new_tokens = 8}):narrow(2, 10, 8)
      local padded = lm.cat({lm.ones({1, 3}):long(), ids}, 2)
      local mask = lm.cat({lm.zeros({1, 3}):long(), lm.ones({1, 9}):long()}, 2)
      assert.is_true(net:generate(padded, {max_new_tokens = 8, attention_mask = mask}):narrow(2, 13, 8):equal(alone))
    end
  end)

  it("has its own defaults by any family's maker, and null where it says so", function()
    local function read(name, change, into)
      return models[into or "llama"] {weights = saved(name, (golden[name].config:gsub(change or "$", "", 1)))}.config
    end
    assert.equal(2, read("gemma2").attn_logit_softcapping)
    assert.equal(50, read("gemma2", '"attn_logit_softcapping": [%d.]+, ').attn_logit_softcapping)
    assert.is_false(read("gemma2_plain").attn_logit_softcapping)
    assert.is_false(read("gemma2_plain", nil, "gemma2").final_logit_softcapping)
    assert.is_nil(read("qwen3_tied", nil, "gemma2").attn_logit_softcapping)
    assert.equal(1e-5, read("llama_biases", '"rms_norm_eps": [%w.-]+, ', "gemma3").rms_norm_eps)
    assert.is_false(models.gemma2 {num_hidden_layers = 1, vocab_size = 9, attn_logit_softcapping = false}.config
      .attn_logit_softcapping)
  end)

  it("gemma2 attends in parts to many tokens as to few", function()
    local net = models.gemma2 {vocab_size = 30, hidden_size = 8, intermediate_size = 8, num_hidden_layers = 2,
      num_attention_heads = 4, head_dim = 4, sliding_window = 550, query_pre_attn_scalar = 4, pad_vocab_to = 32,
      attn_logit_softcapping = 0.5, final_logit_softcapping = 0.02}:eval()
    local ids, cache = lm.randint(1, 31, {2, 700}), net:new_cache(2, 700)
    local y = net(ids)
    assert.equal(32, y.shape[3])
    assert.equal(-math.huge, y:narrow(3, 31, 2):max():item())
    y = y:narrow(3, 1, 30)
    assert.is_true(y:abs():max():item() < 0.02)
    local parts = {net(ids:narrow(2, 1, 300), {cache = cache}), net(ids:narrow(2, 301, 400), {cache = cache})}
    near(y, lm.cat(parts, 2):narrow(3, 1, 30))
  end)

  it("what is not supported is refused by its name", function()
    local config = golden.mistral.config
    for message, change in pairs {
      ["layer_types%[2%] must be one of 'full_attention', 'sliding_attention', got string 'chunked_attention'"] =
        {"smollm3_window", '"full_attention", "sliding', '"full_attention", "chunked'},
      ["layer_types must have 4 entries, one for each layer, got 1"] =
        {"smollm3_window", '"layer_types": %b[]', '"layer_types": ["full_attention"]'},
      ["no_rope_layers must have 4 entries, one for each layer, got 2"] =
        {"smollm3_window", '"no_rope_layers": %b[]', '"no_rope_layers": [1, 0]'},
      ["no_rope_layers%[1%] must be an integer of at least 0, got true"] =
        {"smollm3_window", '"no_rope_layers": %b[]', '"no_rope_layers": [true, 0]'},
      ["num_experts_per_tok must be at most num_experts, 6, got 7"] =
        {"olmoe", '"num_experts_per_tok": 2', '"num_experts_per_tok": 7'},
      ["num_experts %(8%) is not supported for model_type 'mistral'"] = {"mistral", "{", '{"num_local_experts": 8, '},
      ["config.json' has quantization_config.quant_method = gptq, which is not supported"] =
        {"mistral", "{", '{"quantization_config": {"quant_method": "gptq"}, '},
      ["rope_parameters.sliding_attention.rope_type must be one of 'default', got string 'yarn'"] =
        {"gemma3_image", '("sliding_attention": {.-)"default"', '%1"yarn"'},
      ["has use_bidirectional_attention = true; only false is supported"] =
        {"gemma2", '"use_bidirectional_attention": null', '"use_bidirectional_attention": true'},
      ["attn_logit_softcapping must be a number above 0"] =
        {"gemma2", '"attn_logit_softcapping": [%d.]+', '"attn_logit_softcapping": -1'},
    } do
      local text = golden[change[1]].config:gsub(change[2], change[3], 1)
      says(message, models.llama, {weights = saved(change[1], text)})
    end
    local function changed(name, key, value)
      local file = gguf_of(name)
      file.metadata[key] = value
      return function() models.llama {weights = file} end
    end
    says("'weights' has attention.value_length = 6; only the length of keys, 12, is supported",
      changed("qwen3_tied", "qwen3.attention.value_length", 6))
    says("'weights': rope.dimension_count must be an integer of at least 1, got string 'x'",
      changed("phi3", "phi3.rope.dimension_count", "x"))
    says("num_experts %(8%) is not supported for model_type 'llama'", changed("llama_3_2", "llama.expert_count", 8))
    local part = require "luminary.nn.sequence_part"
    says("attn_logit_softcapping is not supported within context_parallel", part.within, 0, 2,
      models.llama {weights = saved "gemma2"}, lm.ones({1, 4}):long())
    says("Llama:parallel_plan: model_type 'olmoe' is not supported", function()
      models.llama {weights = saved "olmoe"}:parallel_plan()
    end)
    says("config%.json' has model_type 'mixtral', expected 'gemma' or 'gemma2' or 'gemma3' or",
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

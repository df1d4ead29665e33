-- lm.save of language models as GGUF files, which llama.cpp reads (scripts/dev/golden/check_gguf.py).
local lm = require "luminary"
local block_kinds = require "luminary.block_kinds"
local core = require "luminary.core"
local formats = require "luminary.file_formats.gguf"
local says = require "spec.support.says"
local temp = require "spec.support.temp"
local models = lm.models

local small = {vocab_size = 40, hidden_size = 64, intermediate_size = 96, num_hidden_layers = 3,
  num_attention_heads = 4, num_key_value_heads = 2, max_position_embeddings = 64}

-- Returns a net with random norms and biases too.
local function made(name, more)
  local options = {}
  for _, from in ipairs {name == "gpt2" and {} or small, more or {}} do
    for key, value in pairs(from) do options[key] = value end
  end
  local net = models[name](options):eval()
  lm.no_grad(function()
    for _, p in ipairs(net:parameters()) do p:add_(lm.randn_like(p) * 0.1) end
  end)
  return net
end

local function copies(n, f)
  local list = {}
  for i = 1, n do list[i] = f(i) end
  return list
end

local gemma = {head_dim = 16, query_pre_attn_scalar = 16, sliding_window = 8}
local experts = {num_experts = 3, num_experts_per_tok = 2, num_key_value_heads = 4, moe_intermediate_size = 32,
  head_dim = 16, norm_topk_prob = true}
local tied = {vocab_size = 40, n_positions = 64, n_embd = 64, n_layer = 2, n_head = 4}
local longrope = {rope_type = "longrope", short_factor = copies(8, function(i) return 1 + i / 8 end),
  long_factor = copies(8, function(i) return 2 + i end), original_max_position_embeddings = 32}
local nets = {
  {"llama", {attention_bias = true, mlp_bias = true, pad_vocab_to = 32}}, {"mistral"}, {"qwen2"}, {"phi3"},
  {"qwen3", {head_dim = 24}}, {"smollm3", {num_hidden_layers = 5}}, {"gemma", {head_dim = 16}}, {"gemma2", gemma},
  {"gemma3", gemma}, {"qwen3_moe", experts}, {"olmoe", {num_experts = 3, num_experts_per_tok = 2}},
  {"gpt2", {vocab_size = 40, n_positions = 64, n_embd = 64, n_layer = 2, n_head = 4, tie_word_embeddings = false}},
  {"phi3", {rope_scaling = longrope, original_max_position_embeddings = 32}},
  {"phi3", {partial_rotary_factor = 0.5}},
  {"qwen2", {rope_scaling = {rope_type = "yarn", factor = 2, original_max_position_embeddings = 32}}},
  {"qwen3", {rope_scaling = {rope_type = "linear", factor = 2}, tie_word_embeddings = true}},
  {"llama", {rope_scaling = {rope_type = "llama3", factor = 4, low_freq_factor = 1, high_freq_factor = 2,
    original_max_position_embeddings = 32}}},
}

describe("lm.save as GGUF", function()
  local folder = temp.during(setup, teardown)
  local path
  setup(function() path = folder .. "/x.gguf" end)

  local function read(net)
    local back, report = (net.transformer and models.gpt2 or models.llama) {weights = path}
    assert.equal("<all keys matched>", tostring(report))
    return back
  end

  it("writes what reads as the same net, of every family and dtype", function()
    local ids = lm.randint(1, 41, {2, 12})
    for i, row in ipairs(nets) do
      local net = made(row[1], row[2])
      local dtype = ({"float32", "float16", "bfloat16"})[i % 3 + 1]
      net.eos_token_id = {3, 7}
      lm.save(path, net)
      local back = read(net)
      assert.is_true((net(ids):narrow(3, 1, 40) - back(ids)):abs():max():item() < 1e-5, row[1])
      assert.same({3, 7}, back.eos_token_id)
      net:to(dtype)
      lm.save(path, net)
      local t = lm.load(path).tensors
      assert.same({dtype, "float32"}, {t["blk.0.ffn_down.weight"] and t["blk.0.ffn_down.weight"].dtype or
        t["blk.0.ffn_down_exps.weight"].dtype, t["output_norm.weight"].dtype})
    end
  end)

  it("keeps 16-bit weights of a mapped file, which dtype = \"auto\" leaves there", function()
    local ids = lm.randint(1, 41, {2, 12})
    local function allocated()
      collectgarbage()
      collectgarbage()
      return core.memory_allocated "cpu"
    end
    for _, dtype in ipairs {"bfloat16", "float16"} do
      for _, row in ipairs {{"llama"}, {"gemma2", gemma}, nets[12], {"gpt2", tied}} do
        lm.save(path, made(row[1], row[2]), {kind = dtype})
        local load, begin = row[1] == "gpt2" and models.gpt2 or models.llama, allocated()
        local mapped = load {weights = path, dtype = "auto"}
        local middle = allocated()
        local copied = load {weights = path, dtype = dtype}
        local copies_take = allocated() - middle
        assert.is_true(middle - begin < copies_take / 2, row[1])
        assert.is_true(mapped(ids):equal(copied(ids)), row[1])
        for name, p in mapped:named_parameters() do assert.equal(dtype, p.dtype, name) end
        local file = lm.load(path) -- a net of a caller's tensors has its own
        local name = row[1] == "gpt2" and "blk.0.ffn_up.weight" or "blk.0.attn_q.weight"
        local before = file.tensors[name]:clone()
        local own = load {weights = file, dtype = "auto"}
        lm.no_grad(function()
          for _, p in ipairs(own:parameters()) do p:zero_() end
        end)
        assert.is_true(before:equal(file.tensors[name]), row[1])
      end
    end
  end)

  it("writes blocks of every kind, as they are in the net or made of floats", function()
    for _, kind in ipairs(block_kinds.names) do
      local net = made("llama", {
        hidden_size = 256, intermediate_size = 256, num_hidden_layers = 1, head_dim = 64,
        rms_norm_eps = 2 ^ -17, -- files have it in float32
      })
      lm.save(path, net, {kind = kind})
      local of_floats = lm.load(path, {keep_blocks = true}).tensors
      lm.quantize(net, kind)
      lm.save(path, net)
      local file = lm.load(path, {keep_blocks = true})
      for name, t in pairs(of_floats) do
        local other = file.tensors[name]
        if core.is_tensor(t) then
          assert.is_true(t:equal(other))
        else
          assert.equal(kind, t.kind)
          assert.is_true(t.blocks:equal(other.blocks))
        end
      end
      local before = temp.read(path)
      lm.save(path, file)
      assert.is_true(temp.read(path) == before)
      local ids = lm.randint(1, 41, {1, 5})
      assert.is_true(net(ids):equal(read(net)(ids)))
      lm.save(path, file, {kind = "float16"})
      assert.equal("float16", lm.load(path).tensors["blk.0.attn_q.weight"].dtype)
    end
  end)

  local function kinds()
    local list = {}
    for name, t in pairs(lm.load(path, {keep_blocks = true}).tensors) do
      list[name] = core.is_tensor(t) and t.dtype or t.kind
    end
    return list
  end

  it("mixes kinds as llama.cpp does, and takes others for rows that blocks do not divide", function()
    local net = made("llama", {hidden_size = 256, intermediate_size = 256, num_hidden_layers = 16, head_dim = 64})
    lm.save(path, net, {kind = "q4_k_m"})
    local found, gains = kinds(), {[0] = true, true, [4] = true, [7] = true, [10] = true, [13] = true, [14] = true,
      [15] = true}
    for i = 0, 15 do
      for name, kind in pairs {attn_q = "q4_k", attn_output = "q4_k", ffn_up = "q4_k", attn_norm = "float32",
        attn_v = gains[i] and "q6_k" or "q4_k", ffn_down = gains[i] and "q6_k" or "q4_k"} do
        assert.equal(kind, found[("blk.%d.%s.weight"):format(i, name)])
      end
    end
    assert.same({"q4_k", "q6_k"}, {found["token_embd.weight"], found["output.weight"]})
    lm.save(path, made("qwen2", {hidden_size = 96, intermediate_size = 72, tie_word_embeddings = true}),
      {kind = "q4_k_m"})
    found = kinds()
    assert.same({"q5_0", "float16", "q8_0"},
      {found["blk.0.attn_q.weight"], found["blk.0.ffn_down.weight"], found["token_embd.weight"]})
    lm.save(path, made("qwen3_moe", experts), {kind = "q4_0"})
    found = kinds()
    assert.same({"float32", "q4_0"}, {found["blk.0.ffn_gate_inp.weight"], found["blk.0.ffn_up_exps.weight"]})
  end)

  it("writes the tokenizer, whose ids stay", function()
    local all = core.json_decode(temp.read "spec/golden/tokenizers.json", false)
    for name, one in pairs(all) do
      temp.write(folder .. "/tokenizer.json", one.file)
      local tokenizer = lm.text.Tokenizer(folder .. "/tokenizer.json")
      local kind = core.json_decode(one.file, false).model.type
      local net = made("llama", {vocab_size = #tokenizer + 5})
      tokenizer.chat_template = "{{ messages }}"
      local ok, why = pcall(lm.save, path, net, {tokenizer = tokenizer})
      if ok then
        local back = lm.text.Tokenizer(path)
        assert.equal("{{ messages }}", back.chat_template)
        assert.equal(#tokenizer + 5, #back)
        for _, text in ipairs {"Hello world", " once  upon\n\n a time 1234", "ünïcödé 日本 🙂"} do
          assert.same(tokenizer(text).input_ids:totable(), back(text).input_ids:totable(), name)
        end
      else
        local reason = kind ~= "BPE" and "is a tokenizer of type " or "pre%-tokenizer or normalizer without a name"
        assert.matches(reason, why)
      end
    end
  end)

  it("refuses pairs with bytes whose spaces stay, which GGUF's would read otherwise", function()
    temp.write(folder .. "/tokenizer.json", [[{"model": {"type": "BPE", "byte_fallback": true, "unk_token": "?",
      "vocab": {"?": 0, "<0x20>": 1, "a": 2}, "merges": []}}]])
    local tokenizer = lm.text.Tokenizer(folder .. "/tokenizer.json")
    says("does not write spaces as \"▁\"", lm.save, folder .. "/none.gguf", made("llama", {vocab_size = 3}),
      {tokenizer = tokenizer})
  end)

  it("says what a file cannot hold, and leaves none", function()
    local function refuses(message, name, more, opts)
      says(message, lm.save, folder .. "/none.gguf", type(name) == "string" and made(name, more) or name, opts)
    end
    refuses("save: GGUF's architecture 'llama' cannot say hidden_act = relu; readers take silu", "llama",
      {hidden_act = "relu"})
    refuses("cannot say rotary_dim = 8; readers take 16", "llama", {partial_rotary_factor = 0.5})
    refuses("GGUF cannot say rope_type = 'dynamic'", "llama", {rope_scaling = {rope_type = "dynamic", factor = 2}})
    refuses("'qwen2' cannot say rope_type = 'llama3'", "qwen2", nets[#nets][2])
    refuses("'smollm3' cannot say rope_type = 'llama3'", "smollm3", nets[#nets][2])
    refuses("cannot say rope_scaling = {.*\"beta_fast\":16", "llama",
      {rope_scaling = {rope_type = "yarn", factor = 2, beta_fast = 16}})
    refuses("cannot say query_pre_attn_scalar = 256; readers take 16", "gemma2", {head_dim = 16})
    refuses("'gpt2' cannot say activation_function = relu", "gpt2", {vocab_size = 9, activation_function = "relu",
      n_embd = 24, n_layer = 1})
    refuses("kind must be one of 'q4_k_m', .*'float32', got string 'q4'", "llama", nil, {kind = "q4"})
    refuses("tokenizer must be a tokenizer, got", "llama", nil, {tokenizer = 3})
    refuses("value must be a model of lm.models.llama or gpt2, or what", lm.nn.Linear(2, 2))
    refuses("value must be a model of lm.models.llama or gpt2, or what", {a = lm.ones(1)})
    refuses("'lm_head.weight' has no place .* 'llama'; save the net before lm.quantize", lm.quantize(made "llama"))
    local net = made "llama"
    net.model.layers[1].mlp.up_proj = lm.nn.Sequential(net.model.layers[1].mlp.up_proj)
    refuses("'model.layers.0.mlp.up_proj.0.weight' has no place .*; merge or remove added modules first", net)
    net = made "llama"
    lm.no_grad(function() net.lm_head.weight:fill_(0 / 0) end)
    refuses("none.gguf': 'output.weight' must be finite", net, nil, {kind = "q8_0"})
    refuses("unknown architecture 'x'; supported are gemma,", {metadata = {["general.architecture"] = "x"},
      tensors = {}}, nil, {kind = "q8_0"})
    refuses("metadata: the entries of 'x' differ in kind", {metadata = {["general.architecture"] = "x", x = {1, "a"}},
      tensors = {}})
    refuses("metadata: 'x' must be text, a boolean, a number or a list", {tensors = {},
      metadata = {["general.architecture"] = "x", x = print}})
    refuses("'a' is bool, which GGUF does not have", {metadata = {["general.architecture"] = "x"},
      tensors = {a = lm.ones(1):bool()}})
    says("save: kind is for files that end in .gguf, got", lm.save, folder .. "/x.pt", {}, {kind = "q4_0"})
    assert.is_nil(io.open(folder .. "/none.gguf"))
    temp.write(folder .. "/full.lua", ([[
      local lm = require "luminary"
      local net = lm.models.llama {vocab_size = 40, hidden_size = 64, num_hidden_layers = 1, num_attention_heads = 1}
      print(pcall(lm.save, "%s/full.gguf", net, {kind = "float16"}))]]):format(folder))
    assert.matches("false%s+%S+ cannot write '.*full.gguf': File too large",
      (select(2, temp.run(folder, ("trap '' XFSZ; ulimit -f 100; exec luajit %s/full.lua"):format(folder)))))
    assert.is_nil(io.open(folder .. "/full.gguf"))
  end)

  it("warns of a sliding window that readers do not know", function()
    local warned
    local before = core.warn
    core.warn = function(text) warned = text end
    local ok, why = pcall(lm.save, path, made("mistral", {sliding_window = 16}))
    core.warn = before
    assert.is_true(ok, why)
    assert.matches("has no sliding_window; texts of more than 16 tokens differ", warned)
  end)

  it("has numbers of the types that llama.cpp expects", function()
    lm.save(path, made("gemma2", gemma))
    local metadata = formats.metadata(path)
    assert.same({"gemma2", 64, 2, 16, 16, 8, "no_vocab", 40}, {metadata["general.architecture"],
      metadata["gemma2.embedding_length"], metadata["gemma2.attention.head_count_kv"],
      metadata["gemma2.attention.key_length"], metadata["gemma2.attention.value_length"],
      metadata["gemma2.attention.sliding_window"], metadata["tokenizer.ggml.model"], metadata["gemma2.vocab_size"]})
    local text = temp.read(path)
    local at = select(2, text:find("gemma2.rope.freq_base", 1, true))
    assert.equal("\6\0\0\0", text:sub(at + 1, at + 4))
  end)
end)

-- Weights on their way into models: folders of Hugging Face's, other names, dtypes, reports of what did not fit.
local lm = require "luminary"
local golden = require "spec.support.golden"
local temp = require "spec.support.temp"
local core = require "luminary.core"
local ffi = require "ffi"
local models = lm.models

local folder

-- Writes a folder as transformers' save_pretrained leaves it; returns its path.
local function saved(name, config, state, file)
  local here = folder .. "/" .. name
  assert(os.execute("mkdir -p " .. here) == 0)
  if config then temp.write(here .. "/config.json", config) end
  lm.save(here .. "/" .. (file or "model.safetensors"), state)
  return here
end

local function read(name, prefix)
  local file, state = golden.load(name), {}
  for key, t in pairs(file) do
    if key:sub(1, #prefix) == prefix then state[key:sub(#prefix + 1)] = t end
  end
  return file, state
end

local says = require "spec.support.says"

describe("weights =", function()
  setup(function() folder = temp.folder() end)
  teardown(function() temp.remove(folder) end)

  local gpt2 = [[{"activation_function": "gelu_new", "architectures": ["GPT2LMHeadModel"], "attn_pdrop": 0.1,
    "bos_token_id": null, "eos_token_id": null, "layer_norm_epsilon": 1e-05, "model_type": "gpt2", "n_embd": 16,
    "n_head": 4, "n_inner": null, "n_layer": 2, "n_positions": 128, "scale_attn_weights": true, "vocab_size": 60}]]

  it("reads a folder of GPT-2's", function()
    local file, state = read("language_gpt2", "state.")
    local here = saved("gpt2", gpt2, state)
    for _, path in ipairs {here, here .. "/", here .. "/model.safetensors"} do
      local net, report = models.gpt2 {weights = path}
      assert.equal("<all keys matched>", tostring(report))
      assert.is_true(net:generate(file.ids, {max_new_tokens = 9}):equal(file.greedy:narrow(2, 1, 16)))
    end
    assert.equal(64, models.gpt2({weights = here, n_positions = 64, ignore_mismatched_sizes = true}).config.n_positions)
    local half = models.gpt2 {weights = here, dtype = "bfloat16"}
    for name, p in half:named_parameters() do assert.equal("bfloat16", p.dtype, name) end
    temp.write(here .. "/config.json", (gpt2:gsub("gelu_new", "mish")))
    says("activation_function must be one of 'gelu', 'gelu_fast', 'gelu_new', .*, got string 'mish'",
      models.gpt2, {weights = here})
    temp.write(here .. "/config.json", (gpt2:gsub('"gpt2"', '"opt"')))
    says("config%.json' has model_type 'opt',", function() models.gpt2 {weights = here} end)
    temp.write(here .. "/config.json", "[")
    says("config%.json' is not a JSON object", function() models.gpt2 {weights = here} end)
    temp.write(here .. "/config.json", (gpt2:gsub('"n_embd": 16', '"n_embd": "wide"')))
    says("n_embd must be an integer of at least 1, got string 'wide'", function() models.gpt2 {weights = here} end)
  end)

  describe("of GGUF", function() -- files by gen_gguf.py
    local files
    setup(function()
      files = {}
      for name, t in pairs(golden.load "language_gguf") do
        files[name] = temp.write(folder .. "/" .. name .. ".gguf",
          ffi.string(ffi.cast("const char *", t:data_ptr()), t:numel()))
      end
    end)

    for _, name in ipairs {"gpt2", "llama", "llama_tied"} do
      it("are a " .. name, function()
        local file, maker = golden.load("language_" .. name), models[name:match "^%l+2?"]
        for _, weights in ipairs {files[name], lm.load(files[name])} do
          local net, report = maker {weights = weights}
          assert.equal("<all keys matched>", tostring(report))
          assert.is_false(net.training)
          assert.same({8}, net.eos_token_id)
          assert.near(0, (net(file.ids) - file.logits):abs():max():item(), 1e-4)
        end
      end)
    end

    it("have LLaMA 3's scaling of positions", function()
      local file = golden.load "language_llama"
      local ids = lm.cat({file.ids, file.ids:flip {1}, file.ids}, 2):tile {1, 4}:narrow(2, 1, 80)
      local net = models.llama {weights = files.llama3}
      assert.near(0, (net(ids):select(2, 80) - file["llama3.logits"]):abs():max():item(), 2e-4)
    end)

    it("say what does not fit", function()
      says("gpt2%.gguf' has model_type 'gpt2', expected 'gemma' or 'gemma2'", models.llama, {weights = files.gpt2})
      says("llama%.gguf' has model_type", function() models.bert {weights = files.llama} end)
      says("llama%.gguf' is a", function() models.resnet18 {weights = files.llama} end)
      local function changed(key, value)
        local file = lm.load(files.llama)
        if value == nil then file.tensors[key] = nil else file.metadata[key] = value end
        return function() models.llama {weights = file} end
      end
      says("llama: 'weights' has model_type 'bloom', expected 'gemma' or", changed("general.architecture", "bloom"))
      says("'weights' applies RoPE to 2 of the 4 entries of a head", changed("llama.rope.dimension_count", 2))
      says("num_key_value_heads must be an integer of at least 1,", changed("llama.attention.head_count_kv", {2, 2}))
      says("scaling%.rope_type must be one of 'default', 'dynamic',", changed("llama.rope.scaling.type", "other"))
      says("missing keys .*model.layers.0.self_attn.q_proj.weight", changed "blk.0.attn_q.weight")
      says("size mismatch for model.layers.0.mlp.down_proj.weight", changed("llama.feed_forward_length", 32))
      says("scaling%.factors must be a table, got 1", function()
        local file = lm.load(files.llama3)
        file.tensors["rope_freqs.weight"] = lm.tensor(1)
        models.llama {weights = file}
      end)
    end)
  end)

  describe("generation_config.json", function()
    local state, ids
    setup(function()
      local file
      file, state = read("language_gpt2", "state.")
      ids = file.ids
    end)

    local function net_of(name, text)
      local here = saved(name, gpt2, state)
      temp.write(here .. "/generation_config.json", text)
      return models.gpt2 {weights = here}, here
    end

    it("says what generate does where no option does", function()
      local plain = models.gpt2 {weights = saved("plain", gpt2, state)}
      local net = net_of("penalty", [=[{"_from_model_config": true, "repetition_penalty": 1.3, "max_new_tokens": 9,
        "no_repeat_ngram_size": null, "temperature": 0.6, "transformers_version": "4.40.0", "bos_token_id": 0}]=])
      assert.same({repetition_penalty = 1.3, max_new_tokens = 9, temperature = 0.6}, net.generation_config)
      assert.is_true(net:generate(ids):equal(plain:generate(ids, {repetition_penalty = 1.3, max_new_tokens = 9})))
      assert.is_true(net:generate(ids, {repetition_penalty = 1, max_new_tokens = 5}):equal(
        plain:generate(ids, {max_new_tokens = 5})))
      assert.is_true(net:generate(ids, {do_sample = true, generator = lm.Generator():manual_seed(3)}):equal(
        plain:generate(ids, {repetition_penalty = 1.3, max_new_tokens = 9, temperature = 0.6,
          generator = lm.Generator():manual_seed(3)})))
      net.generation_config.max_new_tokens = 2
      assert.equal(ids.shape[2] + 2, net:generate(ids).shape[2])
      net.generation_config.max_new_tokens = "many"
      says("GPT2:generate: net%.generation_config%.max_new_tokens must be an", function() net:generate(ids) end)
      net.generation_config = {max_new_token = 3}
      says("net%.generation_config: unknown option 'max_new_token'; did you mean 'max_new_tokens'%?", function()
        net:generate(ids)
      end)
    end)

    it("draws where it says so, as transformers do", function()
      local plain = models.gpt2 {weights = saved("plain", gpt2, state)}
      local net = net_of("draws", [=[{"do_sample": true, "temperature": 0.8, "top_p": 0.9, "max_length": 30}]=])
      local function drawn(of, opts)
        opts.generator = lm.Generator():manual_seed(5)
        return of:generate(ids, opts)
      end
      local here = drawn(net, {})
      assert.equal(30, here.shape[2])
      local new = 30 - ids.shape[2]
      assert.is_true(here:equal(drawn(plain, {temperature = 0.8, top_p = 0.9, top_k = 50, max_new_tokens = new})))
      assert.is_true(drawn(net, {top_k = 3}):equal(
        drawn(plain, {temperature = 0.8, top_p = 0.9, top_k = 3, max_new_tokens = new})))
      for _, likeliest in ipairs {{do_sample = false}, {temperature = 0}} do
        assert.is_true(drawn(net, likeliest):equal(plain:generate(ids, {max_new_tokens = new})))
      end
      assert.is_true(drawn(net, {num_beams = 2}):equal(
        drawn(plain, {temperature = 0.8, top_p = 0.9, top_k = 50, num_beams = 2, max_new_tokens = new})))
      net.generation_config.max_length = 4
      says("ids have 7 tokens, but net.generation_config.max_length is 4 in total; "
        .. "pass {max_new_tokens = n}", function() net:generate(ids) end)
      net.generation_config.max_length = 4096 -- the model has 128 positions, and the last token needs none
      assert.equal(129, net:generate(ids).shape[2])
    end)

    it("ends, pads and searches by it", function()
      local plain = models.gpt2 {weights = saved("plain", gpt2, state)}
      local greedy = plain:generate(ids, {max_new_tokens = 9})
      local eos = greedy[{1, 9}]
      local net = net_of("ends", ([=[{"eos_token_id": [%d, 3], "pad_token_id": 7, "min_length": 12}]=]):format(eos - 1))
      assert.same({eos, 4}, net.eos_token_id)
      assert.same({pad_token_id = 8, min_length = 12}, net.generation_config)
      local want = {eos_token_id = {eos, 4}, pad_token_id = 8, min_new_tokens = 5}
      assert.is_true(net:generate(ids):equal(plain:generate(ids, want)))
      local beams = net_of("beams", [=[{"num_beams": 3, "num_return_sequences": 2, "length_penalty": 0.5,
        "early_stopping": true, "pad_token_id": -1, "eos_token_id": 4, "bad_words_ids": [[7], [2, 3]]}]=])
      assert.same({{8}, {3, 4}}, beams.generation_config.bad_words_ids)
      assert.is_true(beams:generate(ids, {max_new_tokens = 6}):equal(plain:generate(ids, {max_new_tokens = 6,
        num_beams = 3, num_return_sequences = 2, length_penalty = 0.5, early_stopping = true, eos_token_id = 5,
        bad_words_ids = {{8}, {3, 4}}})))
      says("num_beams cannot be used with streamer or on_text; net%.generation_config has num_beams = 3; pass",
        function() beams:generate(ids, {streamer = print}) end)
    end)

    it("is told where it cannot be followed", function()
      local here = saved("odd", gpt2, state)
      temp.write(here .. "/generation_config.json", [=[{"temperature": "hot"}]=])
      says("gpt2: .*/generation_config%.json: temperature must be a number of at least 0, got",
        function() models.gpt2 {weights = here} end)
      temp.write(here .. "/generation_config.json", "[]")
      says("generation_config%.json' is not a JSON", function() models.gpt2 {weights = here} end)
      temp.write(here .. "/generation_config.json", [=[{"typical_p": 0.9, "guidance_scale": 1.0, "suppress_tokens": [],
        "early_stopping": "never"}]=])
      local command = [=[luajit -e 'require "luminary".models.gpt2 {weights = "%s"}']=]
      local _, output = temp.run(folder, command:format(here))
      assert.matches('warning: gpt2: .*/generation_config.json: this version lacks typical_p, left out', output)
    end)
  end)

  it("reads folders of LLaMA's, old and new", function()
    local file, state = read("language_llama", "state.")
    local config = [[{"architectures": ["LlamaForCausalLM"], "attention_bias": false, "head_dim": null,
      "hidden_act": "silu", "hidden_size": 16, "intermediate_size": 24, "max_position_embeddings": 128,
      "mlp_bias": false, "model_type": "llama", "num_attention_heads": 4, "num_hidden_layers": 2,
      "num_key_value_heads": 2, "rms_norm_eps": 1e-05, "tie_word_embeddings": false, "vocab_size": 60, %s}]]
    local scaling = [["factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 2.0, "rope_type": "llama3",
      "original_max_position_embeddings": 32]]
    for text, key in pairs {
      ['"rope_theta": 10000.0, "rope_scaling": null'] = "greedy",
      ['"rope_theta": 10000.0, "rope_scaling": {' .. scaling .. "}"] = "llama3.greedy",
      ['"rope_parameters": {"rope_theta": 10000.0, ' .. scaling .. "}"] = "llama3.greedy",
      ['"rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"}'] = "greedy",
    } do
      local net = models.llama {weights = saved("llama", config:format(text), state)}
      assert.is_true(net:generate(file.ids, {max_new_tokens = 60}):equal(file[key]:narrow(2, 1, 67)), text)
    end
  end)

  it("reads folders of BERT's, with the head that they name", function()
    local file, state = read("network_bert", "state.")
    local config = [[{"architectures": ["%s"], "hidden_act": "gelu", "hidden_size": 16, "intermediate_size": 24,
      "layer_norm_eps": 1e-12, "max_position_embeddings": 16, "model_type": "bert", "num_attention_heads": 2,
      "id2label": {"0": "a", "1": "b", "2": "c"}, "num_hidden_layers": 2, "type_vocab_size": 2, "vocab_size": 40}]]
    local told = {attention_mask = file.mask, token_type_ids = file.types}
    local here = saved("words", config:format "BertForMaskedLM", state)
    local net = models.bert({weights = here, rename = {["^classifier%."] = false}}):eval()
    assert.near(0, (net(file.ids, told) - file.words):abs():max():item(), 1e-4)
    here = saved("classes", config:format "BertForSequenceClassification", state, "pytorch_model.bin")
    net = models.bert({weights = here, rename = {["^cls%."] = false}}):eval()
    assert.near(0, (net(file.ids, told) - file.classes):abs():max():item(), 1e-4)
    local report
    net, report = models.bert {weights = here, head = "none", strict = false}
    assert.equal("none", net.config.head)
    assert.equal(7, #report.unexpected_keys)
  end)

  it("reads folders of ViT's and UNet2DModel's", function()
    local file, state = read("network_vit_hugging_face", "file.")
    local net = models.vit({weights = saved("vit", [[{"architectures": ["ViTForImageClassification"],
      "hidden_act": "gelu", "hidden_size": 16, "image_size": 12, "intermediate_size": 24, "layer_norm_eps": 1e-12,
      "model_type": "vit", "num_attention_heads": 2, "num_channels": 3, "num_hidden_layers": 2, "patch_size": 4,
      "id2label": {"0": "a", "1": "b", "2": "c", "3": "d", "4": "e"}, "qkv_bias": true}]], state)}):eval()
    assert.near(0, (net(file.x) - file.y):abs():max():item(), 1e-4)
    file, state = read("network_unet", "state.")
    net = models.unet2d({weights = saved("unet", [[{"_class_name": "UNet2DModel", "act_fn": "silu",
      "attention_head_dim": 4, "block_out_channels": [4, 8], "center_input_sample": false,
      "down_block_types": ["DownBlock2D", "AttnDownBlock2D"], "layers_per_block": 1, "norm_num_groups": 2,
      "up_block_types": ["AttnUpBlock2D", "UpBlock2D"], "num_class_embeds": null, "sample_size": 8}]], state,
      "diffusion_pytorch_model.safetensors")}):eval()
    assert.near(0, (net(file.x, 41) - file.one):abs():max():item(), 1e-4)
  end)

  it("takes heads that a folder has, lacks or names, and its labels", function()
    local file, state = read("network_vit_hugging_face", "file.")
    local config = [[{"architectures": ["%s"], "hidden_size": 16, "image_size": 12, "intermediate_size": 24,
      "layer_norm_eps": 1e-12, "model_type": "vit", "num_attention_heads": 2, "num_hidden_layers": 2,
      "patch_size": 4%s}]]
    local five = [[, "id2label": {"4": "e", "0": "a", "1": "b", "2": "c", "3": "d"}]]
    local net = models.vit {weights = saved("vit5", config:format("ViTForImageClassification", five), state)}
    assert.same({"a", "b", "c", "d", "e"}, net.config.labels)
    says("size mismatch for heads.head.weight: %[5, 16%] in the state_dict, %[2, 16%] in the model",
      models.vit, {weights = saved("vit2", config:format("ViTForImageClassification", ""), state)})
    assert.equal(5, models.vit({weights = saved("vitn", config:format("ViT", [[, "num_labels": 5]]), state)})
      .heads[1].weight:size(1))
    local bare = {}
    for key, t in pairs(state) do
      if not key:find "^classifier" then bare[key:gsub("^vit%.", "")] = t end
    end
    bare["pooler.dense.weight"] = lm.ones(2)
    local here = saved("vit0", config:format("ViTModel", ""), bare)
    local headless = models.vit {weights = here}
    assert.near(0, (net.heads(headless(file.x)) - file.y):abs():max():item(), 1e-4)
    says("missing keys .*heads.head.*pass {strict = false}", models.vit, {weights = here, num_classes = 5})
    net = models.vit {weights = here, num_classes = 7, strict = false}
    assert.same({2, 7}, net(file.x).shape)
    says("unexpected keys .*\"heads.head.bias\"", models.vit, {weights = folder .. "/vit5", num_classes = 0})
    assert.same({2, 16}, models.vit({weights = folder .. "/vit5", num_classes = 0, strict = false})(file.x).shape)
    for _, wrong in ipairs {'{"0": "a", "2": "b"}', '{"cat": 0}', "5", "{}"} do
      says('id2label must name the classes 0, 1, …, as in {"0": "cat"',
        models.vit, {weights = saved("vitw", config:format("ViT", [[, "id2label": ]] .. wrong), state)})
    end

    file, state = read("network_bert", "state.")
    config = [[{"architectures": ["%s"], "hidden_size": 16, "intermediate_size": 24, "max_position_embeddings": 16,
      "model_type": "bert", "num_attention_heads": 2, "num_hidden_layers": 2, "vocab_size": 40,
      "id2label": {"0": "O", "1": "PER", "2": "LOC"}}]]
    local told = {attention_mask = file.mask, token_type_ids = file.types}
    for key in pairs(state) do
      if key:find "^cls%." or key:find "pooler" then state[key] = nil end
    end
    here = saved("tokens", config:format "BertForTokenClassification", state)
    net = models.bert {weights = here}
    assert.same({"O", "PER", "LOC"}, net.config.labels)
    for _, labels in ipairs {{"a"}, {a = "b"}, {{}, {}}} do
      for family, count in pairs {vit = "num_classes", bert = "num_labels"} do
        says(family .. ": labels must be a list of 2 names because " .. count .. " is 2", function()
          models[family] {[count] = 2, labels = labels}
        end)
      end
    end
    local want = lm.nn.functional.linear(file["masked.hidden"], state["classifier.weight"], state["classifier.bias"])
    assert.near(0, (net(file.ids, told) - want):abs():max():item(), 1e-4)
    net = models.bert {weights = here, head = "none", add_pooling_layer = false, strict = false}
    local got, pooled = net(file.ids, told)
    assert.near(0, (got - file["masked.hidden"]):abs():max():item(), 1e-4)
    assert.is_nil(pooled)
    says('missing keys .*"pooler.dense.weight".*pass {strict = false}', models.bert, {weights = here, head = "none"})
    here = saved("answers", config:format "BertForQuestionAnswering", state)
    says("config%.json' is a 'BertForQuestionAnswering', whose head is not supported; pass",
      function() models.bert {weights = here} end)
    assert.equal("none", models.bert({weights = here, head = "none", strict = false}).config.head)
  end)

  it("takes what a folder says of the output's weight, of ends and of what is not here", function()
    local config = [[{"model_type": "gpt2", "vocab_size": 11, "n_positions": 8, "n_embd": 4, "n_layer": 1, "n_head": 2,
      "tie_word_embeddings": %s, "eos_token_id": 4}]]
    local state = models.gpt2({vocab_size = 11, n_positions = 8, n_embd = 4, n_layer = 1, n_head = 2}):state_dict()
    local tied = models.gpt2 {weights = saved("tied", config:format "true", state)}
    assert.is_false(tied.training) -- as from_pretrained leaves it
    assert.is_nil(tied.lm_head)
    state["lm_head.weight"] = lm.zeros(11, 4)
    local net = models.gpt2 {weights = saved("untied", config:format "false", state)}
    assert.is_true(net.lm_head.weight:equal(state["lm_head.weight"]))
    local ids = lm.tensor({{1, 2}}, {dtype = "int64"})
    assert.is_true(net(ids):eq(0):all():item()) -- the likeliest token is then the first
    assert.equal(5, net.eos_token_id)
    assert.same({1, 6}, net:generate(ids, {max_new_tokens = 4}).shape)
    assert.same({1, 3}, net:generate(ids, {max_new_tokens = 4, eos_token_id = 1}).shape)
    net.eos_token_id = {1, 5}
    assert.same({1, 3}, net:generate(ids, {max_new_tokens = 4}).shape)
    assert.same({1, 6}, net:generate(ids, {max_new_tokens = 4, eos_token_id = {}}).shape)
    says("the result of tokenizer:decode%(ids%) must be a string, got 5", function()
      local five = {decode = function() return 5 end}
      net:generate(ids, {max_new_tokens = 2, eos_token_id = {}, stop_strings = {"a"}, tokenizer = five})
    end)
    says("call it with a colon as a method of a model, or as", function() net.generate(ids, {max_new_tokens = 1}) end)
    local unsaid = saved("unsaid", config:format("false"):gsub('"n_embd": 4, ', ""), state)
    says("gpt2: .*/config.json' has no n_embd %(by default 768%), and the weights do not match the default: size "
      .. "mismatch for transformer.wte.weight: %[11, 4%] in the state_dict, %[11, 768%] in the model$",
      models.gpt2, {weights = unsaid})
    assert.equal(4, models.gpt2({weights = unsaid, n_embd = 4}).config.n_embd)
    for told, want in pairs {["11"] = false, ["[11, 4, -1]"] = {5}, ["10"] = 11, ["2.5"] = false} do
      local text = config:format("false"):gsub('id": 4', 'id": ' .. told)
      local said, warn = {}, core.warn
      core.warn = function(words) said[#said + 1] = words end
      local ok, ended = pcall(models.gpt2, {weights = saved("told_ends", text, state)})
      core.warn = warn
      assert(ok, ended)
      assert.same(want or nil, ended.eos_token_id)
      assert.equal(told == "10" and 0 or 1, #said) -- -1 stands for none
      if told == "11" then
        assert.matches("^gpt2: .*/config.json: eos_token_id is 11, and tokens are 0 to 10 there; no text ends", said[1])
      end
    end
    for told, shown in pairs {
      ["[[1]]"] = "%[%[1%]%]", ['[2, "a"]'] = '%[2,"a"%]', ['"a"'] = "a", ['{"a": 1}'] = '{"a":1}',
    } do
      local wrong = saved("wrong_ends", config:format("false"):gsub('id": 4', 'id": ' .. told), state)
      says("gpt2: .*/wrong_ends/config.json': eos_token_id must be a token id or a list of them, got " .. shown,
        function() models.gpt2 {weights = wrong} end)
      temp.write(wrong .. "/config.json", config:format "false")
      for _, name in ipairs {"eos_token_id", "pad_token_id"} do
        temp.write(wrong .. "/generation_config.json", ('{"%s": %s}'):format(name, told))
        says(("gpt2: .*/generation_config.json': %s must be a token id or a list of them, got %s"):format(name, shown),
          function() models.gpt2 {weights = wrong} end)
      end
      os.remove(wrong .. "/generation_config.json")
    end
    local listed = saved("listed", config:format("false"):gsub('"gpt2"', '["gpt2"]'), state)
    says("config%.json' has model_type", function() models.gpt2 {weights = listed} end)
    temp.write(listed .. "/config.json", (config:format("false"):gsub("{", '{"activation_function": ["gelu_new"], ')))
    says("activation_function must be one of 'gelu', .*, got a table", models.gpt2, {weights = listed})
    local made = lm.models.gpt2 {vocab_size = 11, n_positions = 8, n_embd = 4, n_layer = 1, n_head = 2}
    assert.is_nil(made.eos_token_id)
    says("gpt2: weights: cannot open 'nowhere': No such file", function() models.gpt2 {weights = "nowhere"} end)
  end)

  it("draws nothing where weights have it all, and what they lack as ever", function()
    local small = {vocab_size = 11, hidden_size = 8, num_attention_heads = 2, intermediate_size = 6,
      num_hidden_layers = 1, max_position_embeddings = 9}
    local function llama(more)
      local own = {}
      for _, t in ipairs {small, more or {}} do
        for name, value in pairs(t) do own[name] = value end
      end
      return models.llama(own)
    end
    local made = llama():eval()
    local ids, state = lm.tensor({{3, 1, 4}}, {dtype = "int64"}), made:state_dict()
    local before = lm.get_rng_state()
    for _, dtype in ipairs {"float32", "float64"} do
      local net = llama({weights = state, dtype = dtype}):eval()
      assert.is_true(net(ids):allclose(made(ids):to(dtype), {rtol = 1e-3, atol = 1e-5}))
      assert.equal(dtype, net.rope.cosines.dtype)
      for name, p in net:named_parameters() do
        assert.is_true(p.requires_grad and p:is_contiguous() and p.dtype == dtype, name)
      end
    end
    assert.is_true(before:equal(lm.get_rng_state()))
    state["lm_head.weight"] = nil
    local net, report = llama {weights = state, strict = false}
    assert.same({"lm_head.weight"}, report.missing_keys)
    assert.is_true(net.model.norm.weight:equal(state["model.norm.weight"]))
    assert.near(0.02, net.lm_head.weight:std():item(), 0.01)
    for name, own in pairs {mobilenet_v2 = {num_classes = 3}, vit = {image_size = 8, patch_size = 4, num_layers = 1,
      num_heads = 1, hidden_dim = 4, mlp_dim = 4}} do
      local want = models[name](own):state_dict()
      own.weights = want
      local got = models[name](own):state_dict()
      for key, t in pairs(want) do assert.is_true(t:equal(got[key]), key) end
    end
  end)

  it("looks at files, sizes and names before it takes memory", function()
    local function peak() return tonumber(temp.read("/proc/self/status"):match "VmHWM:%s*(%d+)") / 1024 end
    local before = peak()
    local here = saved("alone", nil, {["model.norm.weight"] = lm.ones(3)})
    says("llama: cannot find '.*/alone/config.json', which has the model's sizes, and the weights do not match "
      .. "the sizes from options and defaults: load_state_dict: for Llama:\n.*missing keys",
      models.llama, {weights = here})
    says("llama: the model needs %d+.%d GiB, but this machine has %d+.%d GiB of memory",
      models.llama, {hidden_size = 2 ^ 18, num_hidden_layers = 8})
    says("llama: the model", function() models.llama {num_hidden_layers = 1, max_position_embeddings = 2 ^ 31 - 1} end)
    says("bert: vocab_size must be at most 2147483647, got 1e%+15", models.bert, {vocab_size = 1e15})
    says("gpt2: n_layer must be at most 10000, got 1000000", function() models.gpt2 {n_layer = 1e6} end)
    temp.write(here .. "/config.json", "[1, 2]")
    says("config%.json' is not a JSON", function() models.llama {weights = here} end)
    temp.write(here .. "/config.json", [[{"rope_scaling": {"type": null}, "hidden_size": null}]])
    says("llama: .*/config.json' has no hidden_size %(by default 4096%), and the weights do not match the default: "
      .. "size mismatch for model.norm.weight: %[3%] in the state_dict, %[4096%] in the model$",
      models.llama, {weights = here})
    local state = models.llama({vocab_size = 11, hidden_size = 4, intermediate_size = 4, num_attention_heads = 2,
      num_hidden_layers = 1, max_position_embeddings = 8}):state_dict()
    local config = [[{"model_type": "llama", "vocab_size": 11, "hidden_size": 4, "intermediate_size": 4,
      "num_attention_heads": 2, "num_hidden_layers": %d, "max_position_embeddings": %d}]]
    says("llama: num_hidden_layers must be at most %d+, the number of tensors in the weights, got 10000; "
      .. "pass {strict = false} to load weights that lack tensors",
      models.llama, {weights = saved("deep", config:format(10000, 8), state)})
    says("llama: its buffers would take 2.0 GiB, its weights take 0.0 GiB; the largest size is "
      .. "max_position_embeddings = 268435456",
      models.llama, {weights = saved("wide", config:format(1, 2 ^ 28), state)})
    assert.equal(4, models.llama {weights = saved("good", config:format(1, 8), state)}.config.hidden_size)
    assert.is_true(peak() - before < 256, ("%.0f MiB more"):format(peak() - before))
  end)

  it("of a config.json with values of other types or ranges are errors that name the option", function()
    local x = {x = lm.zeros(1)}
    for _, case in ipairs {
      {"dinov2", '"hidden_size": "a"', "dinov2: hidden_dim must be an integer of at least 1, got string 'a'"},
      {"dinov2", '"hidden_size": [2]', "dinov2: hidden_dim must be an integer of at least 1, got a table"},
      {"dinov2", '"hidden_size": 8, "mlp_ratio": "a"', "vit: mlp_ratio must be a number of at least 0, got string 'a'"},
      {"dinov2", '"hidden_size": 8, "mlp_ratio": {}', "vit: mlp_ratio must be a number of at least 0, got a table"},
      {"distilbert", '"pad_token_id": "a"',
        "distilbert: pad_token_id must be an integer of at least 1, got string 'a'"},
      {"roberta", '"pad_token_id": true', "roberta: pad_token_id must be an integer of at least 1, got true"},
      {"llama", '"partial_rotary_factor": 16', "llama: partial_rotary_factor must be a number from 0 to 1, got 16"},
      {"llama", '"rope_parameters": {"partial_rotary_factor": 1.5}',
        "partial_rotary_factor must be a number from 0 to 1, got 1.5"},
      {"phi3", '"rope_parameters": {"partial_rotary_factor": "a"}',
        "partial_rotary_factor must be a number from 0 to 1"},
      {"llama", '"rope_scaling": {"rope_type": "yarn", "factor": 2, "original_max_position_embeddings": "a"}',
        "llama: original_max_position_embeddings must be an integer of at least 1, got string 'a'"},
    } do
      local model_type, given, words = unpack(case)
      local here = saved("bad_value", ('{"model_type": "%s", %s}'):format(model_type, given), x)
      says(words, function() models[model_type] {weights = here, strict = false} end)
    end
  end)

  it("says of which dtype the weights were, and keeps it if told to", function()
    local small = {vocab_size = 11, n_positions = 8, n_embd = 4, n_layer = 1, n_head = 2}
    local state = models.gpt2(small):half():state_dict()
    small.weights = state
    local net, report = models.gpt2(small)
    assert.equal("float32", net.transformer.wte.weight.dtype)
    assert.same({{from = "float16", to = "float32", count = 16}}, report.converted)
    assert.equal('<all keys matched>\n16 of float16, which became float32, as the model is; {dtype = "float16"} keeps '
      .. "them as they were", tostring(report))
    for _, dtype in ipairs {"float16", "auto"} do
      small.dtype = dtype
      net, report = models.gpt2(small)
      assert.equal("float16", net.transformer.wte.weight.dtype)
      assert.equal("<all keys matched>", tostring(report))
    end
    small.weights = nil
    says('gpt2: dtype = "auto" requires weights', function() models.gpt2(small) end)
    local here = saved("auto", [[{"model_type": "gpt2", "vocab_size": 11, "n_positions": 8, "n_embd": 4, "n_layer": 1,
      "n_head": 2, "torch_dtype": "bfloat16"}]], state)
    assert.equal("bfloat16", models.gpt2({weights = here, dtype = "auto"}).transformer.wte.weight.dtype)
  end)

  it("keeps int8 and floating weights apart, whatever strict says", function()
    local fc = lm.nn.Linear(2, 3)
    local state = lm.quantize(fc:clone()):state_dict()
    says("weight is int8 in the state_dict, float32 in the model; lm.quantize%(net%) makes room for it",
      function() fc:load_state_dict(state, {strict = false}) end)
    says("weight is float32 in the state_dict, int8 in the model; load it before lm.quantize%(net%)",
      function() lm.quantize(fc:clone()):load_state_dict(fc:state_dict(), {strict = false}) end)
  end)

  it("answers names of transformers'", function()
    local net = models.gpt2 {vocab_size = 11, n_positions = 8, n_embd = 4, n_layer = 1, n_head = 2}
    local ids = lm.ones({1, 2}):long()
    for option, words in pairs {
      torch_dtype = 'it is dtype: {dtype = "bfloat16"}, or "auto"', load_in_8bit = "lm.quantize%(net%) makes int8",
      load_in_4bit = "there are no 4 bits; lm.quantize", device_map = 'it is device, .*{device = "cuda:0"}',
    } do
      says("gpt2: unknown option '" .. option .. "'; " .. words, function() models.gpt2 {[option] = true} end)
    end
    for option, words in pairs {max_length = "here it is max_new_tokens", seed = "{generator = lm.Generator%(%)"} do
      says("unknown option '" .. option .. "'; " .. words, function() net:generate(ids, {[option] = 1}) end)
    end
    for name, words in pairs {
      save_pretrained = 'lm.save%("model.safetensors", net:state_dict%(%)%)', push_to_hub = "nothing is uploaded",
      from_pretrained = 'lm.models.gpt2 {weights = "folder"}',
    } do
      says("no field '" .. name .. "'; " .. words, function() net[name](net, "x") end)
    end
    says("no field 'generate'; lm%.models%.generate%(net, ids%)", function() lm.nn.Linear(2, 3):generate(ids) end)
    says("no 'GPT2LMHeadModel'; lm.models.gpt2 {weights", function() return models.GPT2LMHeadModel end)
    says("no 'from_pretrained'; lm.models' .* nothing is downloaded", function() return models.from_pretrained end)
    for _, family in ipairs {"gpt2", "llama", "bert", "vit", "unet2d"} do
      says(("models.%s has no 'from_pretrained'; lm.models.%s {weights = "):format(family, family), function()
        models[family].from_pretrained "gpt2"
      end)
    end
    says("models.gpt2 has no 'from_config'; lm.models.gpt2 {n_layer", function() models.gpt2:from_config {} end)
    says("models.resnet18 has no 'from_pretrained'; .*{weights = path}",
      function() models.resnet18.from_pretrained "resnet18" end)
    says("models.vgg16 has no 'DEFAULT'", function() return models.vgg16.DEFAULT end)
    says("no field 'from_pretrained'; lm%.models%.DDPMScheduler {beta_schedule = …} and the like take",
      function() models.DDPMScheduler.from_pretrained "x" end)
    says("no 'GPT2Config'; .*options", function() return models.GPT2Config end)
    says("no 'transformers'; lm.models", function() return lm.transformers end)
    says("no 'hub'; nothing is downloaded", function() return lm.hub.load "x" end)
    says("quantize: net must be a module, got the class gpt2 itself %(gpt2%(…%) makes an", lm.quantize, models.gpt2)
    says("gpt2: takes at most 1 argument, got 2", function() models.gpt2({}, 2) end)
    for _, call in ipairs {net, function(batch) return net:generate(batch) end} do
      says("pass ids first, then options: .*batch.input_ids, {attention_mask =", call, {input_ids = ids})
    end
    for _, family in ipairs {"gpt2", "llama", "bert"} do -- a list, where names are requested
      says("unexpected keys in the state_dict: \"1\"", function() models[family] {weights = {lm.ones(2)}} end)
    end
    says("streamer must be a function, or an object that is called as one, got", function()
      net:generate(ids, {streamer = 5LL})
    end)
    says("call it with a colon as a method of a model, or as", function() models.generate(5LL, ids) end)
    local help = require "luminary.help"
    assert.matches("^Module:load_state_dict", help.text "load_state_dict")
    assert.matches("Its methods: add_noise, .*set_timesteps, step", (help.text "DDPMScheduler"))
    assert.matches("num_beams = 1", (help.text "generate"))
    for _, name in ipairs {"models.gpt2.new_cache", "models.llama.new_cache", "new_cache", "GPT2:new_cache"} do
      assert.matches("^net:new_cache%(batch_size, max_seq_len%): ", help.text(name) or "")
    end
    for name, words in pairs {gpt2 = "net%(ids, {attention_mask, position_ids, ", bert = "token_type_ids"} do
      assert.matches(words, help.text("models." .. name))
    end
    assert.matches("it is dtype", select(2, help.text "torch_dtype"))
    for _, library in ipairs {lm.optim, lm.optim.lr_scheduler, models} do
      assert.error_matches(function() return library.get_cosine_schedule_with_warmup end,
        "lr_scheduler.get_scheduler warms up and falls")
    end
    assert.error_matches(function() net(ids, {labels = ids}) end, "F.cross_entropy%(scores, labels%) the loss")
  end)

  it("goes with every network, and with options of load_state_dict", function()
    local net = models.lenet()
    local path = folder .. "/lenet.pt"
    lm.save(path, net:state_dict())
    assert.is_true(models.lenet({weights = path})[1].weight:equal(net[1].weight))
    assert.is_true(models.lenet({weights = net:state_dict()})[1].weight:equal(net[1].weight))
    local other, report = models.lenet {weights = path, num_classes = 3, ignore_mismatched_sizes = true}
    assert.same({3, 128}, other[10].weight.shape)
    assert.equal([[2 of another shape, left as they were:
  9.weight: [10, 128] in the state_dict, [3, 128] in the model
  9.bias: [10] in the state_dict, [3] in the model]], tostring(report))
    says("size mismatch for 9.weight", function() models.lenet {weights = path, num_classes = 3} end)
    says("rename requires weights", function() models.lenet {rename = {}} end)
    says("dtype must be floating, got int64", function() models.lenet {dtype = "int64"} end)
    says("folder, not a regular file, and has none of model.safetensors.index.json, model.safetensors",
      models.lenet, {weights = folder})
    assert.equal("float64", models.mlp({dtype = "double"})[2].weight.dtype)
  end)
end)

describe("load_state_dict", function()
  local function net() return lm.nn.Sequential(lm.nn.Linear(2, 3), lm.nn.Linear(3, 1)) end

  it("takes other names, a dtype and a device", function()
    local state, other = {}, net()
    for name, t in pairs(other:state_dict()) do state["model.layers." .. name] = t end
    for _, rename in ipairs {
      {["^model%.layers%."] = ""}, {{"^model", "x"}, {"^x%.layers%.", ""}},
      function(name) return (name:gsub("^model%.layers%.", "")) end,
    } do
      local it = net()
      assert.equal("<all keys matched>", tostring(it:load_state_dict(state, {rename = rename, dtype = "float64"})))
      assert.equal("float64", it[1].weight.dtype)
      assert.is_true(it[1].weight:float():equal(other[1].weight))
    end
    local it = net()
    it:load_state_dict(state, {rename = {["^model%.layers%."] = ""}, assign = true, dtype = "bfloat16"})
    assert.equal("bfloat16", it[2].bias.dtype)
    local rename = {["^model%.layers%."] = "", ["0%.bias$"] = false}
    local report = net():load_state_dict(state, {rename = rename, strict = false})
    assert.same({"0.bias"}, report.missing_keys)
    assert.same({}, report.unexpected_keys)
  end)

  it("applies the longest pattern first, and those of a list in its order", function()
    local state, it = {}, net()
    for name, t in pairs(it:state_dict()) do state["model.layers." .. name] = t end
    local rename = {["^model%."] = "wrong.", ["^model%.layers%."] = "", ["^m"] = "worse", ["^wrong%."] = "worst"}
    assert.equal("<all keys matched>", tostring(net():load_state_dict(state, {rename = rename})))
    says("missing keys", function()
      net():load_state_dict(state, {rename = {{"^model%.", "wrong."}, {"^model%.layers%.", ""}}})
    end)
  end)

  it("only tells what it would do, if it is to", function()
    local it, state = net(), net():state_dict()
    local before = it[1].weight:detach():clone()
    state["1.bias"] = nil
    local report = it:load_state_dict(state, {strict = false, dry_run = true, dtype = "float64"})
    assert.same({"1.bias"}, report.missing_keys)
    assert.is_true(before:equal(it[1].weight))
    says("missing keys .*\n  pass {strict = false} to ignore", function()
      it:load_state_dict(state, {dry_run = true})
    end)
    state = it:state_dict()
    state["0.weight"] = state["0.weight"]:double()
    assert.same({{from = "float64", to = "float32", count = 1}}, it:load_state_dict(state).converted)
  end)

  it("reports what did not fit, and prints it", function()
    local state = net():state_dict()
    state["1.bias"], state.extra, state["0.weight"] = nil, lm.ones(1), lm.ones(2, 2)
    local it = net()
    local before = it[1].weight:detach():clone()
    local report = it:load_state_dict(state, {strict = false, ignore_mismatched_sizes = true})
    assert.same({{name = "0.weight", given = {2, 2}, wanted = {3, 2}}}, report.mismatched_keys)
    assert.equal("1 missing in the state_dict:\n  1.bias\n1 unexpected, not in the model:\n  extra\n"
      .. "1 of another shape, left as they were:\n  0.weight: [2, 2] in the state_dict, [3, 2] in the model",
      tostring(report))
    assert.is_true(before:equal(it[1].weight))
  end)

  it("says what is wrong with a rename, and changes nothing", function()
    local it, state = net(), net():state_dict()
    local before = it[1].weight:detach():clone()
    local function load(rename)
      return function() it:load_state_dict(state, {rename = rename, dtype = "float64"}) end
    end
    says("rename returns 'x' for both '0%.bias' and '0%.weight'", load {["^0.*"] = "x"})
    says("rename: pattern '%[': malformed pattern", load {["["] = ""})
    says("rename: pattern 'a': invalid capture index", load {{"%d", "a"}, {"a", "%9"}})
    says("rename: the replacement of 'a' must be a string, a function or false, which leaves the", load {a = 1})
    says("rename must be a table of patterns or a function, got string 'a'", load "a")
    says("rename must be {%[pattern%] = replacement}, a list of {pattern, replacement} or a function", load {"a"})
    says("rename: the result for '0%.bias' must be a string or nil, got 3", load(function() return 3 end))
    says("missing keys", load {["^0"] = "2"})
    assert.is_true(before:equal(it[1].weight))
    assert.equal("float32", it[1].weight.dtype)
  end)
end)

describe("lm.load", function()
  setup(function() folder = temp.folder() end)
  teardown(function() temp.remove(folder) end)

  it("renames tensors, and makes floating ones of a dtype", function()
    local path = folder .. "/a.safetensors"
    lm.save(path, {["model.a"] = lm.ones(2), ["model.n"] = lm.ones(2):long(), b = lm.ones(1)})
    for _, mmap in ipairs {false, true} do
      local dict = lm.load(path, {rename = {["^model%."] = "", ["^b$"] = false}, dtype = "float64", mmap = mmap})
      assert.same({"a", "n"}, {next(dict) and "a", dict.n and "n"})
      assert.same({"float64", "int64"}, {dict.a.dtype, dict.n.dtype})
      assert.is_nil(dict.b)
    end
    local shared = {["x.w"] = lm.ones(1)}
    lm.save(path, {net = shared, twin = shared, epoch = 3, list = {lm.ones(2)}})
    local value = lm.load(path, {rename = {["^x%."] = ""}, dtype = "half"})
    assert.equal("float16", value.net.w.dtype)
    assert.equal("float16", value.list[1].dtype)
    assert.is_true(value.net == value.twin)
    assert.equal(3, value.epoch)
    says("load: dtype must be floating, got bool", function() lm.load(path, {dtype = "bool"}) end)
  end)

  it("reads the weights in a folder", function()
    lm.save(folder .. "/pytorch_model.bin.pt", {a = lm.ones(2)})
    os.rename(folder .. "/pytorch_model.bin.pt", folder .. "/pytorch_model.bin")
    assert.equal(2, lm.load(folder).a:numel())
    lm.save(folder .. "/model.safetensors", {a = lm.ones(3)})
    assert.equal(3, lm.load(folder).a:numel())
  end)

  it("maps 4 GiB and touches what is used alone", function()
    local path, gib = folder .. "/large.safetensors", 2 ^ 30
    local entries, at = {}, 0
    for i = 1, 4 do
      entries[i] = ('"w%d":{"dtype":"F32","shape":[16384,16384],"data_offsets":[%d,%d]}'):format(i, at, at + gib)
      at = at + gib
    end
    local header = "{" .. table.concat(entries, ",") .. "}"
    header = header .. (" "):rep(-#header % 8)
    local length = {}
    for k = 0, 7 do length[k + 1] = string.char(math.floor(#header / 256 ^ k) % 256) end
    temp.write(path, table.concat(length) .. header)
    assert(os.execute(("truncate -s %.0f %s"):format(8 + #header + at, path)) == 0) -- holes: no blocks on the disk
    local function resident()
      return tonumber(temp.read("/proc/self/status"):match "VmRSS:%s*(%d+)") / 1024
    end
    local before = resident()
    local dict = lm.load(path, {mmap = true, rename = {["^w"] = "layer."}})
    assert.equal(0, dict["layer.4"][{16384, 16384}])
    assert.equal(0, dict["layer.2"]:narrow(1, 5, 16):sum():item())
    assert.is_true(resident() - before < 32, ("%.0f MiB more"):format(resident() - before))
    dict = nil -- luacheck: ignore
    collectgarbage()
    collectgarbage()
  end)
end)

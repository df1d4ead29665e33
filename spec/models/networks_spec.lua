-- BERT, vision transformers, diffusion's U-Net and schedulers against transformers, torchvision, diffusers and formulas
-- (scripts/dev/golden/gen_networks.py).
local lm = require "luminary"
local golden = require "spec.support.golden"
local near = require "spec.support.near"
local models = lm.models

-- Returns the file, and the tensors in it under a prefix.
local function read(name, prefix)
  local file, state = golden.load("network_" .. name), {}
  for key, t in pairs(file) do
    if key:sub(1, #prefix) == prefix then state[key:sub(#prefix + 1)] = t end
  end
  return file, state
end

local says = require "spec.support.says"

describe("models.bert", function()
  local config = {
    vocab_size = 40, hidden_size = 16, num_hidden_layers = 2, num_attention_heads = 2, intermediate_size = 24,
    max_position_embeddings = 16, num_labels = 3,
  }

  -- Builds BERT with a head, from the file's weights without those of other heads and of the pooler if it has none.
  local function bert(head, state)
    local own = {head = head}
    for key, value in pairs(config) do own[key] = value end
    own.weights, own.strict = state, head == "sequence_classification" or head == "masked_lm"
    if head == "masked_lm" then own.rename = {["^classifier%."] = false} else own.rename = {["^cls%."] = false} end
    if head == "none" then own.rename["^classifier%."] = false end
    return models.bert(own):eval()
  end

  it("gives the states and scores of transformers", function()
    local file, state = read("bert", "state.")
    local ids, told = file.ids, {attention_mask = file.mask, token_type_ids = file.types}
    local bare = bert("none", state)
    local hidden, pooled = bare(ids)
    near(file.hidden, hidden, 1e-4)
    near(file.pooled, pooled, 1e-4)
    hidden, pooled = bare(ids, told)
    near(file["masked.hidden"], hidden, 1e-4)
    near(file["masked.pooled"], pooled, 1e-4)
    near(file.words, bert("masked_lm", state)(ids, told), 1e-4)
    near(file.classes, bert("sequence_classification", state)(ids, told), 1e-4)
    told.attention_mask = file.mask:unsqueeze(2):expand(2, 7, 7):eq(1)
    near(file["masked.hidden"], (bare(ids, told)), 1e-4)
  end)

  it("takes names of the bare model, of TensorFlow's files and of pre-training", function()
    local file, state = read("bert", "state.")
    local other = {["bert.embeddings.position_ids"] = lm.ones(3), ["cls.seq_relationship.weight"] = lm.ones(2)}
    for key, t in pairs(state) do
      if key:find "^bert%." then
        other[key:gsub("^bert%.", ""):gsub("LayerNorm%.weight$", "LayerNorm.gamma"):gsub("LayerNorm%.bias$",
          "LayerNorm.beta")] = t
      elseif key:find "^cls" then
        other[key] = t
      end
    end
    near(file.words, bert("masked_lm", other)(file.ids, {
      attention_mask = file.mask, token_type_ids = file.types,
    }), 1e-4)
  end)

  it("trains, and says what is wrong", function()
    local _, state = read("bert", "state.")
    local net = bert("sequence_classification", state):train()
    lm.nn.functional.cross_entropy(net(lm.ones({2, 5}):long()), lm.tensor({1, 3}, {dtype = "int64"})):backward()
    for name, p in net:named_parameters() do assert.is_true(p.grad ~= nil, name) end
    says("the number of tokens must be at most max_position_embeddings,", function() net(lm.ones({1, 17}):long()) end)
    says("expected attention_mask to have shape %[2, 5%] or %[2, 5, 5%], got %[2, 4%]",
      net, lm.ones({2, 5}):long(), {attention_mask = lm.ones(2, 4)})
    says("Bert: token_type_ids must be 1 or 2, as tokenizer%(…%) returns them:",
      net, lm.ones({2, 5}):long(), {token_type_ids = lm.zeros({2, 5}):long()})
    says("expected token_type_ids to have shape %[2, 5%], got %[5%]",
      net, lm.ones({2, 5}):long(), {token_type_ids = lm.ones(5):long()})
    says("head must be one of 'none', 'masked_lm', 'sequence_classification', 'token_classification', got",
      models.bert, {head = "lm"})
    says("hidden_size %(10%) must be divisible by num_attention_heads %(3%)",
      models.bert, {hidden_size = 10, num_attention_heads = 3})
  end)
end)

describe("models.vit", function()
  local config = {image_size = 12, patch_size = 4, num_layers = 2, num_heads = 2, hidden_dim = 16, mlp_dim = 24,
    num_classes = 5}

  local function vit(state, more)
    local own = {weights = state}
    for _, t in ipairs {config, more or {}} do
      for key, value in pairs(t) do own[key] = value end
    end
    return models.vit(own):eval()
  end

  it("gives the scores of torchvision", function()
    local file, state = read("vit", "state.")
    near(file.y, vit(state)(file.x), 1e-4)
  end)

  it("takes Hugging Face's names, of files and of state_dicts", function()
    for _, prefix in ipairs {"file.", "state."} do
      local file, state = read("vit_hugging_face", prefix)
      near(file.y, vit(state, {norm_eps = 1e-12})(file.x), 1e-4, prefix)
    end
  end)

  it("has torchvision's sizes, and says what is wrong", function()
    local net = vit()
    assert.equal(0, net(lm.randn(1, 3, 12, 12)):abs():max():item()) -- the head begins with zeros
    local parameters = 0
    for _, p in ipairs(models.vit_b_32():parameters()) do parameters = parameters + p:numel() end
    assert.equal(88224232, parameters)
    says("expected x to have shape %[N, 3, 12, 12%], got %[1, 3, 16,", function() net(lm.randn(1, 3, 16, 16)) end)
    says("image_size %(10%) must be divisible by patch_size %(4%)", function() vit(nil, {image_size = 10}) end)
  end)
end)

describe("models.unet2d", function()
  local function unet(name, more)
    local file, state = read(name, "state.")
    local own = {block_out_channels = {4, 8}, norm_num_groups = 2, layers_per_block = 1, weights = state}
    for key, value in pairs(more) do own[key] = value end
    return models.unet2d(own):eval(), file
  end

  it("predicts what diffusers' UNet2DModel does", function()
    local net, file = unet("unet", {
      down_block_types = {"DownBlock2D", "AttnDownBlock2D"}, up_block_types = {"AttnUpBlock2D", "UpBlock2D"},
      attention_head_dim = 4,
    })
    near(file.y, net(file.x, lm.tensor({3, 712}, {dtype = "int64"})), 1e-4)
    near(file.one, net(file.x, 41), 1e-4)
    near(file.one, net(file.x, lm.tensor {41}), 1e-4)
    net:train()
    net(file.x, 41):sum():backward()
    for name, p in net:named_parameters() do assert.is_true(p.grad ~= nil, name) end
    says("x must be %[N, 3, H, W%] with H and W divisible by 2, got a", function() net(lm.randn(1, 3, 7, 8), 1) end)
    says("timestep must be a number or a tensor %[2%], got a tensor %[3%]", function() net(file.x, lm.ones(3)) end)
    for _, step in ipairs {-1, 0 / 0, math.huge} do
      says("UNet2D: timestep must be a number of at least 0, got ", function() net(file.x, step) end)
    end
    for _, shift in ipairs {0 / 0, math.huge} do
      says("unet2d: freq_shift must be a finite number, got", function() lm.models.unet2d {freq_shift = shift} end)
    end
    says("class_labels requires num_class_embeds", function() net(file.x, 1, {class_labels = lm.ones(2):long()}) end)
  end)

  it("has its other forms: classes, scale and shift, padding, one head", function()
    local net, file = unet("unet_other", {
      down_block_types = {"AttnDownBlock2D", "DownBlock2D"}, up_block_types = {"UpBlock2D", "AttnUpBlock2D"},
      attention_head_dim = false, num_class_embeds = 3, flip_sin_to_cos = false, freq_shift = 1, downsample_padding = 0,
      center_input_sample = true, resnet_time_scale_shift = "scale_shift", norm_eps = 1e-6, attn_norm_num_groups = 2,
      sample_size = {8, 16},
    })
    assert.same({8, 16}, net.config.sample_size)
    local labels = {class_labels = lm.tensor({1, 3}, {dtype = "int64"})}
    near(file.y, net(file.x, lm.tensor({3, 712}, {dtype = "int64"}), labels), 1e-4)
    near(file.one, net(file.x, 41, labels), 1e-4)
  end)

  it("says what does not fit", function()
    says("down_block_types must have 2 entries, one for each entry of block_out_channels, got 4",
      models.unet2d, {block_out_channels = {4, 8}})
    says("down_block_types must be one of 'DownBlock2D', 'AttnDownBlock2D', got string",
      models.unet2d, {down_block_types = {"CrossAttnDownBlock2D"}})
    says("channels %(6%) must be divisible by norm_num_groups %(4%) and attention_head_dim %(2%)",
      models.unet2d, {block_out_channels = {6}, norm_num_groups = 4, attention_head_dim = 2,
        down_block_types = {"DownBlock2D"}, up_block_types = {"UpBlock2D"}})
  end)
end)

describe("models", function()
  it("take batches of no samples", function()
    local none = lm.zeros({0, 3}):long()
    local small = {vocab_size = 11, hidden_size = 8, num_attention_heads = 2, intermediate_size = 6,
      num_hidden_layers = 1}
    assert.same({0, 3, 8}, (models.bert(small)(none)).shape)
    assert.same({0, 3, 11}, models.llama(small)(none).shape)
    assert.same({0, 3, 11}, models.gpt2({vocab_size = 11, n_embd = 4, n_layer = 1, n_head = 2})(none).shape)
    assert.same({0, 1000}, models.vit({image_size = 8, patch_size = 4, num_layers = 1, num_heads = 1, hidden_dim = 4,
      mlp_dim = 4})(lm.zeros(0, 3, 8, 8)).shape)
    assert.same({0, 3, 8, 8}, models.unet2d({block_out_channels = {4, 8}, norm_num_groups = 2, layers_per_block = 1,
      attention_head_dim = 4, down_block_types = {"DownBlock2D", "AttnDownBlock2D"},
      up_block_types = {"AttnUpBlock2D", "UpBlock2D"}})(lm.zeros(0, 3, 8, 8), 1).shape)
    says("Bert: ids must be a tensor with at least one token, got a", function() models.bert(small)(none:view(3, 0)
      :narrow(1, 1, 2)) end)
    says("Llama:new_cache: max_seq_len is missing or nil; expected an integer of at least 1", function()
      models.llama(small):new_cache(1)
    end)
    small.max_position_embeddings = 4
    says("Llama: the number of tokens must be at most", function() models.llama(small)(lm.ones({1, 5}):long()) end)
    small.rope_theta = 0
    says("base must be a number above 0, got 0", function() models.llama(small) end)
    small.rope_theta, small.rope_scaling = 10, {type = "linear", factor = 0}
    says("scaling%.factor must be a number above 0, got 0", function() models.llama(small) end)
  end)
end)

describe("noise schedulers", function()
  local file = golden.load "network_schedulers"
  local schedules = {"linear", "scaled_linear", "squaredcos_cap_v2"}

  it("have the papers' products, noise and velocity", function()
    for _, schedule in ipairs(schedules) do
      local it = models.DDPMScheduler {beta_schedule = schedule}
      local at = lm.tensor({1, 2, 438, 999, 1000}, {dtype = "int64"})
      assert.is_true(it.alphas_cumprod:index_select(1, at):allclose(file[schedule], {rtol = 1e-4, atol = 1e-9}))
      local steps = lm.tensor({0, 437}, {dtype = "int64"})
      near(file[schedule .. ".noised"], it:add_noise(file.start, file.noises[1], steps), 1e-5)
      near(file[schedule .. ".noised"][2], it:add_noise(file.start, file.noises[1], 437)[2], 1e-5)
      near(file[schedule .. ".velocity"], it:get_velocity(file.start, file.noises[1], steps), 1e-5)
    end
  end)

  it("space their steps as diffusers do", function()
    for _, spacing in ipairs {"linspace", "leading", "trailing"} do
      for _, n in ipairs {1, 7, 20} do
        local it = models.DDIMScheduler {timestep_spacing = spacing}
        assert.same(file[spacing .. "." .. n]:totable(), it:set_timesteps(n).timesteps)
      end
    end
    assert.equal(501, models.DDPMScheduler({steps_offset = 1}):set_timesteps(2).timesteps[1])
  end)

  for name, eta in pairs {ddpm = false, ddim = 0, ddim_eta = 0.7} do
    it(name .. " steps by the papers' formulas", function()
      for _, schedule in ipairs(schedules) do
        for _, kind in ipairs {"epsilon", "sample", "v_prediction"} do
          local make = eta and models.DDIMScheduler or models.DDPMScheduler
          local it = make {beta_schedule = schedule, prediction_type = kind}:set_timesteps(5)
          local x, want = file.start, file[name .. "." .. schedule .. "." .. kind]
          for i, t in ipairs(it.timesteps) do
            x = it:step(file.outs[i], t, x, {noise = file.noises[i], eta = eta or nil})
            local largest = want[i]:abs():max():item()
            near(want[i], x, 2e-5 * math.max(1, largest), schedule .. " " .. kind .. " " .. t)
          end
        end
      end
    end)
  end

  it("draw by a generator, end where they are told, and say what is wrong", function()
    local it = models.DDPMScheduler():set_timesteps(10)
    local function drawn(seed)
      return (it:step(file.start, 500, file.start, {generator = lm.Generator():manual_seed(seed)}))
    end
    assert.is_true(drawn(1):equal(drawn(1)))
    assert.is_false(drawn(1):equal(drawn(2)))
    local large = models.DDPMScheduler({variance_type = "fixed_large"}):set_timesteps(10)
    local added = {}
    for i, each in ipairs {it, large} do
      local noise = lm.ones(2, 3, 4)
      added[i] = (each:step(file.start, 100, file.start, {noise = noise})
        - each:step(file.start, 100, file.start, {noise = noise * 0}))[{1, 1, 1}]
    end
    assert.is_true(added[2] > added[1])
    local once = models.DDIMScheduler({set_alpha_to_one = false, trained_betas = {0.5, 0.5}, clip_sample = false,
      prediction_type = "sample"}):set_timesteps(2)
    local y, clean = once:step(lm.ones(1), 0, lm.ones(1))
    assert.equal(1, clean[1])
    assert.near(math.sqrt(0.5) + (1 - math.sqrt(0.5)), y[1], 1e-6) -- the noise of step 0 stays
    says("call scheduler:set_timesteps%(n%) first", function()
      models.DDIMScheduler():step(lm.ones(1), 0, lm.ones(1))
    end)
    local ddim, x = models.DDIMScheduler():set_timesteps(10), file.start
    assert.is_true(ddim:step(x, lm.tensor(900), x):equal((ddim:step(x, 900, x))))
    assert.is_true(it:add_noise(x, x, lm.tensor(9)):equal((it:add_noise(x, x, 9))))
    local function long(list) return lm.tensor(list, {dtype = "int64"}) end
    for words, f in pairs {
      ["DDIMScheduler:step: step 7 is not in scheduler%.timesteps, which set_timesteps%(10%) set to 900, 800, …"] =
        function() ddim:step(x, 7, x) end,
      ["DDIMScheduler:step: step 1000; timesteps are from 0 to 999"] = function() ddim:step(x, 1000, x) end,
      ["the step is a tensor %[2%]; timesteps are from 0 to 999, the same one for all samples"] =
        function() ddim:step(x, lm.ones(2), x) end,
      ["step %-1; timesteps are from 0 to 999"] = function() it:add_noise(x, x, -1) end,
      ["the step is nil; timesteps are from 0 to 999"] = function() it:add_noise(x, x) end,
      ["timesteps from 0 to 1000; they must be integers from 0"] = function() it:add_noise(x, x, long {1000, 0}) end,
      ["timesteps from %-1 to 0; they must be integers from 0"] = function() it:get_velocity(x, x, long {-1, 0}) end,
      ["timesteps from 0 to 1%.5; they must be integers from 0 to 999"] = function()
        it:add_noise(x, x, lm.tensor {1.5, 0})
      end,
      ["shapes of noise and x must match, got %[5%] and %[2, 3, 4%]"] = function()
        it:add_noise(x, lm.ones(5), 3)
      end,
      ["noise is missing or nil; expected a tensor"] = function() it:add_noise(x, nil, 3) end,
      ["the model's output is missing or nil; expected a tensor"] = function() it:step(nil, 900, x) end,
      ["shapes of the model's output and x must match, got %[5%] and"] = function() ddim:step(lm.ones(5), 900, x) end,
      ["shapes of noise and x must match, got %[5%] and"] = function() it:step(x, 900, x, {noise = lm.ones(5)}) end,
      ["num_train_timesteps must be an integer from 1 to 1000000, got 1000000000000"] = function()
        models.DDPMScheduler {num_train_timesteps = 1e12}
      end,
      ["trained_betas must not be empty"] = function() models.DDPMScheduler {trained_betas = {}} end,
      ["trained_betas%[2%] must be a number from 0 to less than 1, got 1"] = function()
        models.DDPMScheduler {trained_betas = {0.5, 1}}
      end,
      ["the variance of step 0 is 2; beta_start %(2%) and beta_end %(3%) must be from 0 to less than 1"] = function()
        models.DDPMScheduler {beta_start = 2, beta_end = 3}
      end,
    } do
      says(words, f)
    end
    says("step 501 is not in scheduler%.timesteps, which", function() it:step(file.start, 501, file.start) end)
    says("num_inference_steps must be at most num_train_timesteps, 1000, got", function() it:set_timesteps(1001) end)
    says("step 1000; timesteps are from 0 to 999", function() it:add_noise(file.start, file.start, 1000) end)
    says("timesteps are a tensor %[3%]", function() it:add_noise(file.start, file.start, lm.ones(3)) end)
    says("beta_schedule must be one of 'linear',", function() models.DDPMScheduler {beta_schedule = "cosine"} end)
  end)
end)

-- Training steps of the networks that scripts/bench/compute --device cuda and scripts/dev/gpu_check time, and that
-- scripts/dev/count_step counts.
-- bench.networks(device): makers by name. A maker returns the step, its inputs, the number of samples, what they are
-- called, the floating-point operations of one sample (nil where launches are what counts), the network and its
-- optimizer, if it trains.
-- bench.models(device, batch): by name, functions (dtype, dropout) that return such a maker.
-- bench.sized(real, tiny): the tiny one over the stand-in for CUDA's runtime, bench.stand_in, which is no card. Where
-- bench.small is set, it decides instead.
local lm = require "luminary"
local nn, F, optim = lm.nn, lm.nn.functional, lm.optim
local models = dofile((arg[0]:match "^(.*/)scripts/" or "") .. "scripts/models.lua")

local bench = { stand_in = (os.getenv "LD_PRELOAD" or ""):find("fake_cuda", 1, true) ~= nil }

function bench.sized(real, tiny)
  local small = bench.small
  if small == nil then small = bench.stand_in end
  if small then return tiny end
  return real
end

local sized = bench.sized

local function trained(opt, loss_of)
  return function(...)
    local loss = loss_of(...)
    opt:zero_grad()
    loss:backward()
    opt:step()
    return loss
  end
end

local function within(dtype, f)
  if dtype == "float32" then return f end
  return function(...) return lm.autocast({ dtype = dtype }, f, ...) end
end

local function resnet50()
  if sized(true, false) then return lm.models.resnet50() end
  return nn.Sequential(nn.Conv2d(3, 8, 3, { stride = 2 }), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3),
    nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 10))
end

function bench.models(device, given_batch)
  local on, made = { device = device }, {}

  -- Returns a language model's case; make(dropout) makes its network, whose scores are [batch, length, vocabulary].
  local function language(make, vocabulary, batch, length)
    return function(dtype, dropout)
      return function()
        local net = make(dropout or 0)
        if bench.shard then bench.shard(net) end
        local opt = optim.AdamW(net:parameters(), { lr = 1e-4 })
        local x = lm.randint(1, vocabulary + 1, { batch, length }, on)
        local y = lm.randint(1, vocabulary + 1, { batch, length }, on)
        local parameters = 0
        for _, p in ipairs(net:parameters()) do parameters = parameters + p:numel() end
        local config = net.config
        local layers, width = config.n_layer or config.num_hidden_layers, config.n_embd or config.hidden_size
        local step = trained(opt, within(dtype, function(ids, next_ids)
          return F.cross_entropy(net(ids):flatten(1, 2), next_ids:flatten())
        end))
        return step, { x, y }, x:numel(), "tokens", 6 * parameters + 12 * layers * width * length, net, opt
      end
    end
  end

  local function images(make, batch, side, channels, classes, flops)
    return function(dtype)
      return function()
        local net = make():to(device):to { memory_format = "channels_last" }
        local opt = optim.SGD(net:parameters(), { lr = 0.01, momentum = 0.9 })
        local x = lm.randn({ batch, channels, side, side }, on):contiguous { memory_format = "channels_last" }
        local y = lm.randint(1, classes + 1, { batch }, on)
        local step = trained(opt, within(dtype, function(pictures, labels)
          return F.cross_entropy(net(pictures), labels)
        end))
        return step, { x, y }, batch, "images", flops, net, opt
      end
    end
  end

  -- GPT-2 of 124 million parameters, 8 sequences of 1,024 tokens.
  local vocabulary, length = sized(50257, 48), sized(1024, 32)
  made.gpt2 = language(function(dropout)
    return lm.models.gpt2 {
      n_layer = sized(12, 2), n_head = sized(12, 2), n_embd = sized(768, 32), vocab_size = vocabulary,
      n_positions = length, attn_pdrop = dropout, embd_pdrop = dropout, resid_pdrop = dropout, device = device,
    }
  end, vocabulary, given_batch or sized(8, 2), length)

  -- Llama 3.2 of 1.2 billion parameters, 4 sequences of 2,048 tokens.
  local pieces, span = sized(128256, 48), sized(2048, 32)
  made.llama_1b = language(function()
    return lm.models.llama {
      vocab_size = pieces, hidden_size = sized(2048, 32), intermediate_size = sized(8192, 64),
      num_hidden_layers = sized(16, 2), num_attention_heads = sized(32, 4), num_key_value_heads = sized(8, 2),
      max_position_embeddings = span, rope_theta = 500000, tie_word_embeddings = true, device = device,
    }
  end, pieces, given_batch or sized(4, 2), span)

  -- 4.09e9 multiplications and additions an image, three passes.
  made.resnet50 = images(resnet50, given_batch or sized(256, 2), sized(224, 16), 3, sized(1000, 10), 24.5e9)
  made.resnet18 = images(models.resnet18, given_batch or sized(256, 2), sized(28, 8), 1, 10, nil)
  made.lenet = images(models.lenet, given_batch or sized(256, 1), 28, 1, 10, nil)

  -- Two layers of 512 over 128 steps.
  function made.lstm(dtype)
    return function()
      local width, batch, steps = sized(512, 8), given_batch or sized(64, 2), sized(128, 5)
      local net = nn.LSTM(width, width, 2, { dtype = dtype, device = device })
      local opt = optim.SGD(net:parameters(), { lr = 0.01, momentum = 0.9 })
      local x, y = lm.randn({ steps, batch, width }, on):to(dtype), lm.randn({ steps, batch, width }, on):to(dtype)
      local step = trained(opt, function(inputs, outputs) return F.mse_loss((net(inputs)), outputs) end)
      return step, { x, y }, batch, "sequences", nil, net, opt
    end
  end

  -- The token after 100 others by GPT-2 of 124 million parameters, its likeliest.
  function made.token(dtype)
    return function()
      local before, batch = sized(100, 4), given_batch or 1
      local net = lm.models.gpt2 {
        n_layer = sized(12, 2), n_head = sized(12, 2), n_embd = sized(768, 32), vocab_size = vocabulary,
        n_positions = length, device = device, dtype = dtype,
      }:eval()
      local cache = net:new_cache(batch, length)
      local ids = lm.randint(1, vocabulary + 1, { batch, before }, on)
      lm.no_grad(function() net(ids, { cache = cache }) end)
      local function step(last)
        return lm.no_grad(function()
          for _, layer in ipairs(cache) do layer:reset(before) end
          return (net(last, { cache = cache }):select(2, -1):float():argmax(2, { keepdim = true }))
        end)
      end
      return step, { ids:narrow(2, 1, 1):contiguous() }, batch, "tokens", nil, net
    end
  end
  return made
end

function bench.networks(device)
  local made = bench.models(device)
  return {
    gpt2_bf16 = made.gpt2 "bfloat16", gpt2_bf16_dropout = made.gpt2("bfloat16", 0.1), gpt2_tf32 = made.gpt2 "float32",
    resnet50_bf16 = made.resnet50 "bfloat16", lenet = made.lenet "float32",
  }
end

return bench

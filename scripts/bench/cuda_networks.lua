-- Training steps of the networks that scripts/bench/compute --device cuda and scripts/dev/gpu_check time.
-- bench.networks(device): makers by name. A maker returns the step, its inputs, the number of samples, what they are
-- called, the floating-point operations of one sample (nil where launches are what counts), and the network.
-- bench.sized(real, tiny): the tiny one over the stand-in for CUDA's runtime, bench.stand_in, which is no card.
local lm = require "luminary"
local nn, F, optim = lm.nn, lm.nn.functional, lm.optim
local models = dofile((arg[0]:match "^(.*/)scripts/" or "") .. "scripts/models.lua")

local bench = { stand_in = (os.getenv "LD_PRELOAD" or ""):find("fake_cuda", 1, true) ~= nil }

function bench.sized(real, tiny)
  if bench.stand_in then return tiny end
  return real
end

local sized = bench.sized

function bench.networks(device)
  local on, networks = { device = device }, {}

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

  -- GPT-2 of 124 million parameters, 8 sequences of 1,024 tokens.
  local function gpt2(dtype, dropout)
    return function()
      local vocabulary, length = sized(50257, 48), sized(1024, 32)
      local net = lm.models.gpt2 {
        n_layer = sized(12, 2), n_head = sized(12, 2), n_embd = sized(768, 32), vocab_size = vocabulary,
        n_positions = length, attn_pdrop = dropout, embd_pdrop = dropout, resid_pdrop = dropout, device = device,
      }
      local opt = optim.AdamW(net:parameters(), { lr = 1e-4 })
      local x = lm.randint(1, vocabulary + 1, { sized(8, 2), length }, on)
      local y = lm.randint(1, vocabulary + 1, { sized(8, 2), length }, on)
      local parameters = 0
      for _, p in ipairs(net:parameters()) do parameters = parameters + p:numel() end
      local config = net.config
      local step = trained(opt, within(dtype, function(ids, next_ids)
        return F.cross_entropy(net(ids):flatten(1, 2), next_ids:flatten())
      end))
      return step, { x, y }, x:numel(), "tokens", 6 * parameters + 12 * config.n_layer * config.n_embd * length, net
    end
  end

  local function images(make, batch, side, channels, classes, dtype, flops)
    return function()
      local net = make():to(device):to { memory_format = "channels_last" }
      local opt = optim.SGD(net:parameters(), { lr = 0.01, momentum = 0.9 })
      local x = lm.randn({ batch, channels, side, side }, on):contiguous { memory_format = "channels_last" }
      local y = lm.randint(1, classes + 1, { batch }, on)
      local step = trained(opt, within(dtype, function(pictures, labels)
        return F.cross_entropy(net(pictures), labels)
      end))
      return step, { x, y }, batch, "images", flops, net
    end
  end
  local function resnet50()
    if not bench.stand_in then return lm.models.resnet50() end
    return nn.Sequential(nn.Conv2d(3, 8, 3, { stride = 2 }), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3),
      nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 10))
  end

  networks.gpt2_bf16, networks.gpt2_bf16_dropout = gpt2("bfloat16", 0), gpt2("bfloat16", 0.1)
  networks.gpt2_tf32 = gpt2("float32", 0)
  -- 4.09e9 multiplications and additions an image, three passes.
  networks.resnet50_bf16 = images(resnet50, sized(256, 2), sized(224, 16), 3, sized(1000, 10), "bfloat16", 24.5e9)
  networks.lenet = images(models.lenet, sized(256, 1), 28, 1, 10, "float32", nil)
  return networks
end

return bench

-- Training steps of small networks on a CUDA device, for the specs that count what a step does.
local lm = require "luminary"
local nn, F, optim = lm.nn, lm.nn.functional, lm.optim
local models = dofile "scripts/models.lua"

local steps = {}

--- Returns a network like ResNet-18, but small enough for the emulator.
function steps.narrow_resnet()
  local net = nn.Sequential(nn.Conv2d(1, 4, 3, {padding = 1}), nn.BatchNorm2d(4), nn.ReLU())
  local cin = 4
  for _, cout in ipairs {4, 8, 16, 32} do
    net:append(models.Residual(cin, cout, {stride = cout > 4 and 2 or 1}))
    net:append(models.Residual(cout, cout))
    cin = cout
  end
  for _, layer in ipairs {nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10)} do net:append(layer) end
  return net
end

--- Returns a step of a classifier of images [2, 1, side, side], and a batch. make(parameters) makes the optimizer.
function steps.classifier(net, side, make)
  net:to("cuda"):to {memory_format = "channels_last"}
  local opt = make and make(net:parameters()) or optim.SGD(net:parameters(), {lr = 0.01, momentum = 0.9})
  local x = lm.rand({2, 1, side, side}, {device = "cuda"})
  local y = lm.randint(1, 11, {2}, {device = "cuda"})
  return function(a, b)
    local loss = F.cross_entropy(net(a or x), b or y)
    opt:zero_grad()
    loss:backward()
    opt:step()
    return loss
  end, x, y
end

--- Returns a step of a GPT-2 of two layers in bfloat16, whose attention cuDNN's fused kernels take, and a batch.
function steps.gpt2()
  local net = lm.models.gpt2 {
    n_layer = 2, n_head = 2, n_embd = 32, vocab_size = 48, n_positions = 64, attn_pdrop = 0, device = "cuda",
  }
  local opt = optim.AdamW(net:parameters(), {lr = 1e-3})
  local ids = lm.randint(1, 49, {2, 33}, {device = "cuda"})
  local function step(given)
    local x = given or ids
    local loss = lm.autocast({dtype = "bfloat16"}, function()
      local logits = net(x:narrow(2, 1, 32))
      return F.cross_entropy(logits:reshape(-1, 48), x:narrow(2, 2, 32):reshape(-1))
    end)
    opt:zero_grad()
    loss:backward()
    opt:step()
    return loss
  end
  return step, ids
end

return steps

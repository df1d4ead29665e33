-- Twenty training steps of the example LeNet give PyTorch's losses, from given weights and batches.
local lm = require "luminary"
local F, optim = lm.nn.functional, lm.optim

local function losses(golden, dtype)
  local models = dofile "scripts/models.lua"
  local net = models.lenet():to(dtype)
  local state = {}
  for name, t in pairs(golden) do
    local key = name:match("^weight%.(.*)$")
    if key then state[key] = t:to(dtype) end
  end
  net:load_state_dict(state)
  local opt = optim.SGD(net:parameters(), { lr = 0.01, momentum = 0.9 })
  local list = {}
  for k = 1, 20 do
    local x, y = golden.images[k]:to(dtype) / 255, golden.labels[k]
    local loss = F.cross_entropy(net(x), y)
    opt:zero_grad()
    loss:backward()
    opt:step()
    list[k] = loss:item()
  end
  return list
end

describe("LeNet's first twenty steps", function()
  for dtype, tolerance in pairs { float32 = 1e-5, float64 = 1e-10 } do
    it("give PyTorch's losses in " .. dtype, function()
      local golden = require("spec.support.golden").load "_lenet"
      local want = golden["losses." .. dtype]:totable()
      local got = losses(golden, dtype)
      local worst = 0
      for k = 1, 20 do worst = math.max(worst, math.abs(got[k] - want[k]) / math.abs(want[k])) end
      assert(worst < tolerance, ("worst relative difference %.3g"):format(worst))
    end)
  end
end)

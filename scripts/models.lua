-- The networks that the example scripts and the benchmarks share; each is a function that makes one for
-- images [N, 1, 28, 28] and ten classes.
local lm = require "luminary"
local nn, F = lm.nn, lm.nn.functional

local models = {}

function models.mlp()
  return nn.Sequential(nn.Flatten(), nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 10))
end

function models.lenet()
  return nn.Sequential(
    nn.Conv2d(1, 20, 3), nn.ReLU(), nn.AvgPool2d(2),
    nn.Conv2d(20, 50, 5), nn.ReLU(), nn.AvgPool2d(2),
    nn.Flatten(), nn.Linear(800, 128), nn.ReLU(), nn.Linear(128, 10))
end

-- Two 3x3 convolutions with a way around them (He et al., "Deep Residual Learning", 2015).
local Residual = nn.Module:extend("Residual")
models.Residual = Residual

function Residual:init(cin, cout, opt)
  local stride = opt and opt.stride or 1
  self.conv1 = nn.Conv2d(cin, cout, 3, { padding = 1, stride = stride })
  self.bn1 = nn.BatchNorm2d(cout)
  self.conv2 = nn.Conv2d(cout, cout, 3, { padding = 1 })
  self.bn2 = nn.BatchNorm2d(cout)
  if stride ~= 1 or cin ~= cout then self.skip = nn.Conv2d(cin, cout, 1, { stride = stride }) end
end

function Residual:forward(x)
  local y = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
  return F.relu(y + (self.skip and self.skip(x) or x))
end

-- Returns ResNet-18 with a 3x3 stem for small images.
function models.resnet18()
  local net = nn.Sequential(nn.Conv2d(1, 64, 3, { padding = 1 }), nn.BatchNorm2d(64), nn.ReLU())
  local cin = 64
  for _, cout in ipairs { 64, 128, 256, 512 } do
    net:append(Residual(cin, cout, { stride = cout > 64 and 2 or 1 }))
    net:append(Residual(cout, cout))
    cin = cout
  end
  for _, layer in ipairs { nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10) } do net:append(layer) end
  return net
end

return models

--- MobileNetV2 (Sandler et al., "MobileNetV2: Inverted Residuals and Linear Bottlenecks", 2018) for x [N, 3, H, W],
--- usually 224 x 224.
local class = require "luminary.base.class"
local nn = require "luminary.nn"
local common = require "luminary.models.common"

-- Convolution, batch norm, ReLU6.
local function unit(cin, cout, size, stride, groups)
  return nn.Sequential(
    nn.Conv2d(cin, cout, size, {stride = stride, padding = (size - 1) / 2, groups = groups, bias = false}),
    nn.BatchNorm2d(cout), nn.ReLU6())
end

-- Wider by `expand`, each channel by itself, narrow again; with a way around where sizes allow it.
local InvertedResidual = class.define("InvertedResidual", nn.Module)

function InvertedResidual:init(cin, cout, stride, expand)
  local wide = cin * expand
  self.around = stride == 1 and cin == cout
  self.conv = nn.Sequential()
  if expand ~= 1 then self.conv:append(unit(cin, wide, 1, 1, 1)) end
  self.conv:append(unit(wide, wide, 3, stride, wide))
  self.conv:append(nn.Conv2d(wide, cout, 1, {bias = false}))
  self.conv:append(nn.BatchNorm2d(cout))
end

function InvertedResidual:forward(x) return self.around and x + self.conv(x) or self.conv(x) end

local MobileNetV2 = class.define("MobileNetV2", nn.Module)

-- Expansion, channels, blocks and the stride of the first of them.
local plan = {
  {1, 16, 1, 1}, {6, 24, 2, 2}, {6, 32, 3, 2}, {6, 64, 4, 2}, {6, 96, 3, 1}, {6, 160, 3, 2}, {6, 320, 1, 1},
}

function MobileNetV2:init(num_classes, dropout)
  self.features = nn.Sequential(unit(3, 32, 3, 2, 1))
  local channels = 32
  for _, row in ipairs(plan) do
    local expand, width, count, stride = unpack(row)
    for k = 1, count do
      self.features:append(InvertedResidual(channels, width, k == 1 and stride or 1, expand))
      channels = width
    end
  end
  self.features:append(unit(channels, 1280, 1, 1, 1))
  self.avgpool = nn.AdaptiveAvgPool2d(1)
  self.classifier = nn.Sequential(nn.Dropout(dropout), nn.Linear(1280, num_classes))
  common.draw(self, 0.01)
end

function MobileNetV2:forward(x) return self.classifier(self.avgpool(self.features(x)):flatten(2)) end

return {
  --- models.mobilenet_v2([{num_classes = 1000, dropout = 0.2}]): Constructs MobileNetV2. Sandler et al., "MobileNetV2:
  --- Inverted Residuals and Linear Bottlenecks", 2018.
  mobilenet_v2 = function(opts)
    return common.build("mobilenet_v2", opts, {dropout = {"probability", 0.2}}, function(o)
      return MobileNetV2(o.num_classes, o.dropout)
    end)
  end,
}

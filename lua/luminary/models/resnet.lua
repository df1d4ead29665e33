--- ResNet (He et al., "Deep Residual Learning for Image Recognition", 2015) for x [N, 3, H, W], usually 224 x 224, with
--- the stride of a bottleneck in its 3 x 3 convolution, as torchvision has it.
local class = require "luminary.base.class"
local nn = require "luminary.nn"
local common = require "luminary.models.common"

local norm_relu = require("luminary.nn.fuse_layers").norm_relu

local function conv(cin, cout, size, stride, groups)
  return nn.Conv2d(cin, cout, size, {stride = stride, padding = (size - 1) / 2, groups = groups, bias = false})
end

-- Two convolutions with a way around them.
local BasicBlock = class.define("BasicBlock", nn.Module)
BasicBlock.expansion = 1

function BasicBlock:init(cin, width, stride, downsample)
  self.conv1 = conv(cin, width, 3, stride)
  self.bn1 = nn.BatchNorm2d(width)
  self.conv2 = conv(width, width, 3, 1)
  self.bn2 = nn.BatchNorm2d(width)
  self.downsample = downsample
end

function BasicBlock:forward(x)
  local y = norm_relu(self.bn1, self.conv1(x))
  return norm_relu(self.bn2, self.conv2(y), self.downsample and self.downsample(x) or x)
end

-- Three, the first and last of which change the number of channels; between them are `groups` (1) groups of `share` (1)
-- times as many channels.
local Bottleneck = class.define("Bottleneck", nn.Module)
Bottleneck.expansion = 4

function Bottleneck:init(cin, width, stride, downsample, share, groups)
  local inner = width * (share or 1)
  self.conv1 = conv(cin, inner, 1, 1)
  self.bn1 = nn.BatchNorm2d(inner)
  self.conv2 = conv(inner, inner, 3, stride, groups)
  self.bn2 = nn.BatchNorm2d(inner)
  self.conv3 = conv(inner, 4 * width, 1, 1)
  self.bn3 = nn.BatchNorm2d(4 * width)
  self.downsample = downsample
end

function Bottleneck:forward(x)
  local y = norm_relu(self.bn1, self.conv1(x))
  y = norm_relu(self.bn2, self.conv2(y))
  return norm_relu(self.bn3, self.conv3(y), self.downsample and self.downsample(x) or x)
end

local ResNet = class.define("ResNet", nn.Module)

function ResNet:init(num_classes, block, counts, share, groups)
  self.conv1 = nn.Conv2d(3, 64, 7, {stride = 2, padding = 3, bias = false})
  self.bn1 = nn.BatchNorm2d(64)
  self.maxpool = nn.MaxPool2d(3, {stride = 2, padding = 1})
  local channels = 64
  for i, count in ipairs(counts) do
    local width, layer = 32 * 2 ^ i, nn.Sequential()
    local out = width * block.expansion
    for k = 1, count do
      local stride = i > 1 and k == 1 and 2 or 1
      local downsample = (stride > 1 or channels ~= out)
        and nn.Sequential(conv(channels, out, 1, stride), nn.BatchNorm2d(out)) or nil
      layer:append(block(channels, width, stride, downsample, share, groups))
      channels = out
    end
    self["layer" .. i] = layer
  end
  self.avgpool = nn.AdaptiveAvgPool2d(1)
  self.fc = nn.Linear(channels, num_classes)
  common.draw(self)
end

function ResNet:forward(x)
  x = self.maxpool(norm_relu(self.bn1, self.conv1(x)))
  x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
  return self.fc(self.avgpool(x):flatten(2))
end

local models = {}

for name, plan in pairs {
  resnet18 = {BasicBlock, {2, 2, 2, 2}}, resnet34 = {BasicBlock, {3, 4, 6, 3}}, resnet50 = {Bottleneck, {3, 4, 6, 3}},
  resnet101 = {Bottleneck, {3, 4, 23, 3}}, resnet152 = {Bottleneck, {3, 8, 36, 3}},
  resnext50_32x4d = {Bottleneck, {3, 4, 6, 3}, 2, 32}, resnext101_32x8d = {Bottleneck, {3, 4, 23, 3}, 4, 32},
  resnext101_64x4d = {Bottleneck, {3, 4, 23, 3}, 4, 64}, wide_resnet50_2 = {Bottleneck, {3, 4, 6, 3}, 2},
  wide_resnet101_2 = {Bottleneck, {3, 4, 23, 3}, 2},
} do
  --- Constructs a ResNet (He et al., "Deep Residual Learning for Image Recognition", 2015), ResNeXt (Xie et al.,
  --- "Aggregated Residual Transformations for Deep Neural Networks", 2017) or wide ResNet (Zagoruyko and Komodakis,
  --- "Wide Residual Networks", 2016).
  models[name] = function(opts)
    return common.build(name, opts, {}, function(o) return ResNet(o.num_classes, unpack(plan, 1, 4)) end)
  end
end

return models

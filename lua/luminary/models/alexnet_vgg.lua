--- AlexNet (Krizhevsky, "One weird trick for parallelizing convolutional neural networks", 2014), VGG (Simonyan and
--- Zisserman, "Very Deep Convolutional Networks", 2014), and CNN-F (Chatfield et al., "Return of the Devil in the
--- Details", 2014): features by convolutions, then a classifier of linear layers. Images [N, 3, H, W], usually of
--- 224 x 224.
local class = require "luminary.base.class"
local nn = require "luminary.nn"
local common = require "luminary.models.common"

local models = {}

-- features, avgpool and classifier one after the other.
local Convolutional = class.define("Convolutional", nn.Module)

function Convolutional:init(features, avgpool, classifier)
  self.features = features -- in this order: Lua makes several assignments at once from the last on
  self.avgpool = avgpool
  self.classifier = classifier
end

function Convolutional:forward(x) return self.classifier(self.avgpool(self.features(x)):flatten(2)) end

local function alexnet(opts)
  return Convolutional(
    nn.Sequential(
      nn.Conv2d(3, 64, 11, {stride = 4, padding = 2}), nn.ReLU(), nn.MaxPool2d(3, {stride = 2}),
      nn.Conv2d(64, 192, 5, {padding = 2}), nn.ReLU(), nn.MaxPool2d(3, {stride = 2}),
      nn.Conv2d(192, 384, 3, {padding = 1}), nn.ReLU(), nn.Conv2d(384, 256, 3, {padding = 1}), nn.ReLU(),
      nn.Conv2d(256, 256, 3, {padding = 1}), nn.ReLU(), nn.MaxPool2d(3, {stride = 2})),
    nn.AdaptiveAvgPool2d(6),
    nn.Sequential(
      nn.Dropout(opts.dropout), nn.Linear(256 * 6 * 6, 4096), nn.ReLU(),
      nn.Dropout(opts.dropout), nn.Linear(4096, 4096), nn.ReLU(), nn.Linear(4096, opts.num_classes)))
end

--- models.alexnet([{num_classes = 1000, dropout = 0.5}]): Constructs AlexNet. Krizhevsky, "One weird trick for
--- parallelizing convolutional neural networks", 2014.
function models.alexnet(opts) return common.build("alexnet", opts, {dropout = {"probability", 0.5}}, alexnet) end

local function vgg_f(opts)
  local function pool() return nn.MaxPool2d(3, {stride = 2, ceil_mode = true}) end
  local net = Convolutional(
    nn.Sequential(
      nn.Conv2d(3, 64, 11, {stride = 4}), nn.ReLU(), nn.LocalResponseNorm(5), pool(),
      nn.Conv2d(64, 256, 5, {padding = 2}), nn.ReLU(), nn.LocalResponseNorm(5), pool(),
      nn.Conv2d(256, 256, 3, {padding = 1}), nn.ReLU(), nn.Conv2d(256, 256, 3, {padding = 1}), nn.ReLU(),
      nn.Conv2d(256, 256, 3, {padding = 1}), nn.ReLU(), pool()),
    nn.AdaptiveAvgPool2d(6),
    nn.Sequential(
      nn.Linear(256 * 6 * 6, 4096), nn.ReLU(), nn.Dropout(opts.dropout),
      nn.Linear(4096, 4096), nn.ReLU(), nn.Dropout(opts.dropout), nn.Linear(4096, opts.num_classes)))
  common.draw(net, 0.01)
  return net
end

--- models.vgg_f([{num_classes = 1000, dropout = 0.5}]): Constructs CNN-F, a fast network of 8 layers. Chatfield et
--- al., "Return of the Devil in the Details", 2014.
function models.vgg_f(opts) return common.build("vgg_f", opts, {dropout = {"probability", 0.5}}, vgg_f) end

-- Channels of the convolutions before each of the five poolings.
local plans = {
  vgg11 = {{64}, {128}, {256, 256}, {512, 512}, {512, 512}},
  vgg13 = {{64, 64}, {128, 128}, {256, 256}, {512, 512}, {512, 512}},
  vgg16 = {{64, 64}, {128, 128}, {256, 256, 256}, {512, 512, 512}, {512, 512, 512}},
  vgg19 = {{64, 64}, {128, 128}, {256, 256, 256, 256}, {512, 512, 512, 512}, {512, 512, 512, 512}},
}

local function vgg(plan, with_norm, opts)
  local features, channels = nn.Sequential(), 3
  for _, group in ipairs(plan) do
    for _, width in ipairs(group) do
      features:append(nn.Conv2d(channels, width, 3, {padding = 1}))
      if with_norm then features:append(nn.BatchNorm2d(width)) end
      features:append(nn.ReLU())
      channels = width
    end
    features:append(nn.MaxPool2d(2))
  end
  local net = Convolutional(features, nn.AdaptiveAvgPool2d(7), nn.Sequential(
    nn.Linear(512 * 7 * 7, 4096), nn.ReLU(), nn.Dropout(opts.dropout),
    nn.Linear(4096, 4096), nn.ReLU(), nn.Dropout(opts.dropout), nn.Linear(4096, opts.num_classes)))
  common.draw(net, 0.01)
  return net
end

local function maker(name, plan, with_norm)
  --- Constructs a VGG network; vgg11_bn and the like have batch normalization. Simonyan and Zisserman, "Very Deep
  --- Convolutional Networks", 2014.
  return function(opts)
    return common.build(name, opts, {dropout = {"probability", 0.5}}, function(o) return vgg(plan, with_norm, o) end)
  end
end

for name, plan in pairs(plans) do
  models[name] = maker(name, plan, false)
  models[name .. "_bn"] = maker(name .. "_bn", plan, true)
end

return models

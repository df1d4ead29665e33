--- Builds networks for images [N, 3, H, W] from tables of blocks, with torchvision's names of parameters. Networks and
--- most blocks are sequences of named layers.
local core = require "luminary.core"
local class = require "luminary.base.class"
local nn = require "luminary.nn"
local layer = require "luminary.nn.define_layer"
local blocks = require "luminary.models.blocks"
local common = require "luminary.models.common"

local norm_relu = require("luminary.nn.fuse_layers").norm_relu
local ops, init, F = core.ops, nn.init, nn.functional
local conv, unit, rows, Permute, LayerNorm2d = blocks.conv, blocks.unit, blocks.rows, blocks.Permute, blocks.LayerNorm2d
local list_of, models, classes = nn.Sequential, {}, {}

-- Defines models[name], which returns make(options). rates: options that are probabilities, with their defaults.
local function define(name, rates, make)
  local spec = {}
  for key, rate in pairs(rates) do spec[key] = {key == "layer_scale" and "number" or "probability", rate} end
  --- Constructs the network of that name for images, with torchvision's names of parameters.
  models[name] = function(opts) return common.build(name, opts, spec, make) end
end

-- Returns a network of the class `name` with a list of layers {name, module}.
local function network(name, layers)
  classes[name] = classes[name] or class.define(name, nn.Sequential)
  return classes[name](layers)
end

-- Returns a network of features, their mean over all positions, and a classifier with the name `label`.
local function classifier(name, label, module, layers)
  if layers.append then layers = {{"features", layers}} end
  for _, each in ipairs {{"avgpool", nn.AdaptiveAvgPool2d(1)}, {"flatten", nn.Flatten()}, {label, module}} do
    layers[#layers + 1] = each
  end
  return network(name, layers)
end

local function dropped(o, channels) return list_of(nn.Dropout(o.dropout), nn.Linear(channels, o.num_classes)) end

-- Returns stages, a sequence of blocks for each row {channels, stride, blocks, …} of plan, and the last number of
-- channels. make(channels before, channels, stride, row, blocks so far, blocks of all stages) returns a block; only a
-- stage's first block has the stride. into: a sequence to which all blocks are appended instead; names: a format of
-- their names.
local function stages(plan, channels, make, into, names)
  local list, index, total = {}, 0, 0
  for _, row in ipairs(plan) do total = total + row[3] end
  for i, row in ipairs(plan) do
    list[i] = into or list_of()
    for k = 1, row[3] do
      local block = make(channels, row[1], k == 1 and row[2] or 1, row, index, total)
      list[i]:add_module(names and names:format(i, k - 1) or tostring(#list[i]), block)
      channels, index = row[1], index + 1
    end
  end
  return list, channels
end

-- Returns the multiple of 8 nearest to n, or the next one where that is less than 0.9 n.
local function multiple_of_8(n)
  local near = math.max(8, math.floor((n + 4) / 8) * 8)
  return near < 0.9 * n and near + 8 or near
end

-- Returns AlexNet (Krizhevsky, 2014), VGG (Simonyan and Zisserman, 2014) or CNN-F (Chatfield et al., 2014): features,
-- then a classifier of three linear layers. A row of `text` is a convolution's channels, kernel size, stride and
-- padding; 0 is a pooling, n a norm. late: true for dropout after linear layers.
local function plain_network(o, text, pool, with_norm, size, late)
  local features, channels = list_of(), 3
  for _, row in ipairs(rows(text)) do
    local out, width, stride, padding = unpack(row, 1, 4)
    if out == "n" then
      features:append(nn.LocalResponseNorm(5))
    elseif out == 0 then
      features:append(nn.MaxPool2d(unpack(pool)))
    else
      features:append(nn.Conv2d(channels, out, width or 3, {stride = stride, padding = padding or 1}))
      if with_norm then features:append(nn.BatchNorm2d(out)) end
      features:append(nn.ReLU())
      channels = out
    end
  end
  local last = list_of()
  for i, wide in ipairs {channels * size ^ 2, 4096, 4096} do
    if i < 3 and not late then last:append(nn.Dropout(o.dropout)) end
    last:append(nn.Linear(wide, i < 3 and 4096 or o.num_classes))
    if i < 3 then last:append(nn.ReLU()) end
    if i < 3 and late then last:append(nn.Dropout(o.dropout)) end
  end
  return network("Convolutional", {{"features", features}, {"avgpool", nn.AdaptiveAvgPool2d(size)},
    {"flatten", nn.Flatten()}, {"classifier", last}})
end

define("alexnet", {dropout = 0.5}, function(o)
  return plain_network(o, "64 11 4 2, 0, 192 5 1 2, 0, 384, 256, 256, 0", {3, {stride = 2}}, false, 6)
end)

define("vgg_f", {dropout = 0.5}, function(o)
  return common.draw(plain_network(o, "64 11 4 0, n, 0, 256 5 1 2, n, 0, 256, 256, 256, 0",
    {3, {stride = 2, ceil_mode = true}}, false, 6, true), 0.01)
end)

for name, plan in pairs {
  vgg11 = "64, 0, 128, 0, 256, 256, 0, 512, 512, 0, 512, 512, 0",
  vgg13 = "64, 64, 0, 128, 128, 0, 256, 256, 0, 512, 512, 0, 512, 512, 0",
  vgg16 = "64, 64, 0, 128, 128, 0, 256, 256, 256, 0, 512, 512, 512, 0, 512, 512, 512, 0",
  vgg19 = "64, 64, 0, 128, 128, 0, 256, 256, 256, 256, 0, 512, 512, 512, 512, 0, 512, 512, 512, 512, 0",
} do
  for _, norm in ipairs {"", "_bn"} do
    define(name .. norm, {dropout = 0.5}, function(o)
      return common.draw(plain_network(o, plan, {2}, norm ~= "", 7, true), 0.01)
    end)
  end
end

-- Convolutions {channels before, channels, size, stride, groups} with a residual connection.
local ResBlock = class.define("ResBlock", nn.Module)

function ResBlock:init(convolutions, downsample)
  self.n = #convolutions
  for i, row in ipairs(convolutions) do
    self["conv" .. i] = conv(unpack(row, 1, 5))
    self["bn" .. i] = nn.BatchNorm2d(row[2])
  end
  self.downsample = downsample
end

function ResBlock:forward(x)
  local y = x
  for i = 1, self.n do
    local around = i == self.n and (self.downsample and self.downsample(x) or x) or nil
    y = norm_relu(self["bn" .. i], self["conv" .. i](y), around)
  end
  return y
end

-- ResNet (He et al., 2015), with the stride of a bottleneck in its 3 x 3 convolution, ResNeXt (Xie et al., 2017) and
-- wide ResNet (Zagoruyko and Komodakis, 2016): blocks of each stage; for bottlenecks the factor of width, and groups.
for name, how in pairs {
  resnet18 = {{2, 2, 2, 2}}, resnet34 = {{3, 4, 6, 3}}, resnet50 = {{3, 4, 6, 3}, 1}, resnet101 = {{3, 4, 23, 3}, 1},
  resnet152 = {{3, 8, 36, 3}, 1}, resnext50_32x4d = {{3, 4, 6, 3}, 2, 32}, resnext101_32x8d = {{3, 4, 23, 3}, 4, 32},
  resnext101_64x4d = {{3, 4, 23, 3}, 4, 64}, wide_resnet50_2 = {{3, 4, 6, 3}, 2},
  wide_resnet101_2 = {{3, 4, 23, 3}, 2},
} do
  define(name, {}, function(o)
    local counts, share, groups = unpack(how, 1, 3)
    local plan = {}
    for i, count in ipairs(counts) do plan[i] = {32 * 2 ^ i * (share and 4 or 1), i > 1 and 2 or 1, count} end
    local list, channels = stages(plan, 64, function(cin, cout, stride)
      local inner = cout / 4 * (share or 1)
      local convolutions = share and {{cin, inner, 1}, {inner, inner, 3, stride, groups}, {inner, cout, 1}}
        or {{cin, cout, 3, stride}, {cout, cout, 3}}
      return ResBlock(convolutions, (stride > 1 or cin ~= cout) and unit(cin, cout, 1, stride) or nil)
    end)
    return common.draw(classifier("ResNet", "fc", nn.Linear(channels, o.num_classes), {
      {"conv1", conv(3, 64, 7, 2)}, {"bn1", nn.BatchNorm2d(64)}, {"relu", nn.ReLU()},
      {"maxpool", nn.MaxPool2d(3, {stride = 2, padding = 1})},
      {"layer1", list[1]}, {"layer2", list[2]}, {"layer3", list[3]}, {"layer4", list[4]}}))
  end)
end

-- Returns an inverted residual: a pointwise convolution to `wide` channels, a depthwise one (`fused`: both in one), and
-- a pointwise one to `cout`. squeeze: arguments of SqueezeExcitation after the channels.
local function inverted(cin, wide, cout, size, stride, act, norm, squeeze, fused, drop)
  local list = list_of()
  if fused then
    list:append(unit(cin, wide == cin and cout or wide, size, stride, 1, act, norm))
  else
    if wide ~= cin then list:append(unit(cin, wide, 1, 1, 1, act, norm)) end
    list:append(unit(wide, wide, size, stride, wide, act, norm))
    if squeeze then list:append(blocks.SqueezeExcitation(wide, unpack(squeeze))) end
  end
  if not (fused and wide == cin) then list:append(unit(wide, cout, 1, 1, 1, nil, norm)) end
  return blocks.Residual("block", list, {around = stride == 1 and cin == cout, drop = drop})
end

-- EfficientNet (Tan and Le, 2019, 2021), for each stage: channels, stride, blocks, expansion, kernel size, 1 if fused.
local efficientnets = {
  b = "16 1 1 1 3, 24 2 2 6 3, 40 2 2 6 5, 80 2 3 6 3, 112 1 3 6 5, 192 2 4 6 5, 320 1 1 6 3",
  v2_s = "24 1 2 1 3 1, 48 2 4 4 3 1, 64 2 4 4 3 1, 128 2 6 4 3, 160 1 9 6 3, 256 2 15 6 3",
  v2_m = "24 1 3 1 3 1, 48 2 5 4 3 1, 80 2 5 4 3 1, 160 2 7 4 3, 176 1 14 6 3, 304 2 18 6 3, 512 1 5 6 3",
  v2_l = "32 1 4 1 3 1, 64 2 7 4 3 1, 96 2 7 4 3 1, 192 2 10 4 3, 224 1 19 6 3, 384 2 25 6 3, 640 1 7 6 3",
}
-- Each has dropout, factors of channels and blocks, and eps and momentum of batch norm.
for name, how in pairs {
  b0 = {0.2, 1, 1}, b1 = {0.2, 1, 1.1}, b2 = {0.3, 1.1, 1.2}, b3 = {0.3, 1.2, 1.4}, b4 = {0.4, 1.4, 1.8},
  b5 = {0.4, 1.6, 2.2, 1e-3, 0.01}, b6 = {0.5, 1.8, 2.6, 1e-3, 0.01}, b7 = {0.5, 2, 3.1, 1e-3, 0.01},
  v2_s = {0.2, 1, 1, 1e-3}, v2_m = {0.3, 1, 1, 1e-3}, v2_l = {0.4, 1, 1, 1e-3},
} do
  local dropout, width, depth, eps, momentum = unpack(how, 1, 5)
  define("efficientnet_" .. name, {dropout = dropout, stochastic_depth_prob = 0.2}, function(o)
    local act, norm, plan = nn.SiLU, {eps = eps, momentum = momentum}, rows(efficientnets[name] or efficientnets.b)
    for _, row in ipairs(plan) do row[1], row[3] = multiple_of_8(row[1] * width), math.ceil(row[3] * depth) end
    local first = efficientnets[name] and plan[1][1] or multiple_of_8(32 * width)
    local list, last = stages(plan, first, function(cin, cout, stride, row, index, total)
      return inverted(cin, cin * row[4], cout, row[5], stride, act, norm, {math.floor(cin / 4), act, nn.Sigmoid},
        row[6], o.stochastic_depth_prob * index / total)
    end)
    local wide, bound = efficientnets[name] and 1280 or 4 * last, 1 / math.sqrt(o.num_classes)
    return common.draw(classifier("EfficientNet", "classifier", dropped(o, wide), list_of(
      unit(3, first, 3, 2, 1, act, norm)):append_all(list):append(unit(last, wide, 1, 1, 1, act, norm))),
      function(w) init.uniform_(w, -bound, bound) end)
  end)
end

-- MobileNetV3 (Howard et al., 2019), for each block: channels, stride, 1, channels inside, kernel size, 1 for
-- squeeze-and-excitation, 1 for Hardswish.
for name, plan in pairs {
  large = [[16 1 1 16 3 0 0, 24 2 1 64 3 0 0, 24 1 1 72 3 0 0, 40 2 1 72 5 1 0, 40 1 1 120 5 1 0, 40 1 1 120 5 1 0,
    80 2 1 240 3 0 1, 80 1 1 200 3 0 1, 80 1 1 184 3 0 1, 80 1 1 184 3 0 1, 112 1 1 480 3 1 1, 112 1 1 672 3 1 1,
    160 2 1 672 5 1 1, 160 1 1 960 5 1 1, 160 1 1 960 5 1 1]],
  small = [[16 2 1 16 3 1 0, 24 2 1 72 3 0 0, 24 1 1 88 3 0 0, 40 2 1 96 5 1 1, 40 1 1 240 5 1 1, 40 1 1 240 5 1 1,
    48 1 1 120 5 1 1, 48 1 1 144 5 1 1, 96 2 1 288 5 1 1, 96 1 1 576 5 1 1, 96 1 1 576 5 1 1]],
} do
  define("mobilenet_v3_" .. name, {dropout = 0.2}, function(o)
    local act, norm, last = nn.Hardswish, {eps = 1e-3, momentum = 0.01}, name == "large" and 1280 or 1024
    local features = list_of(unit(3, 16, 3, 2, 1, act, norm))
    local _, channels = stages(rows(plan), 16, function(cin, cout, stride, row)
      return inverted(cin, row[4], cout, row[5], stride, row[7] == 1 and act or nn.ReLU, norm,
        row[6] == 1 and {multiple_of_8(math.floor(row[4] / 4)), nn.ReLU, nn.Hardsigmoid})
    end, features)
    features:append(unit(channels, 6 * channels, 1, 1, 1, act, norm))
    return common.draw(classifier("MobileNetV3", "classifier", list_of(nn.Linear(6 * channels, last), act(),
      nn.Dropout(o.dropout), nn.Linear(last, o.num_classes)), features), 0.01)
  end)
end

-- MobileNetV2 (Sandler et al., 2018), for each stage: channels, stride, blocks, expansion.
define("mobilenet_v2", {dropout = 0.2}, function(o)
  local act, features = nn.ReLU6, list_of(unit(3, 32, 3, 2, 1, nn.ReLU6))
  stages(rows "16 1 1 1, 24 2 2 6, 32 2 3 6, 64 2 4 6, 96 1 3 6, 160 2 3 6, 320 1 1 6", 32,
    function(cin, cout, stride, row)
      local wide, branch = cin * row[4], list_of()
      if wide ~= cin then branch:append(unit(cin, wide, 1, 1, 1, act)) end
      branch:append(unit(wide, wide, 3, stride, wide, act))
      return blocks.Residual("conv", unit(wide, cout, 1, 1, 1, nil, nil, branch), {
        around = stride == 1 and cin == cout})
    end, features)
  return common.draw(classifier("MobileNetV2", "classifier", dropped(o, 1280),
    features:append(unit(320, 1280, 1, 1, 1, act))), 0.01)
end)

-- MNASNet-B1 (Tan et al., 2019), for each stage: channels, stride, blocks, expansion, kernel size.
for name, width in pairs {["0_5"] = 0.5, ["0_75"] = 0.75, ["1_0"] = 1, ["1_3"] = 1.3} do
  define("mnasnet" .. name, {dropout = 0.2}, function(o)
    local act, norm, first, second = nn.ReLU, {momentum = 3e-4}, multiple_of_8(32 * width), multiple_of_8(16 * width)
    local layers = unit(3, first, 3, 2, 1, act, norm)
    unit(first, second, 1, 1, 1, nil, norm, unit(first, first, 3, 1, first, act, norm, layers))
    local plan = rows "24 2 3 3 3, 40 2 3 3 5, 80 2 3 6 5, 96 1 2 6 3, 192 2 4 6 5, 320 1 1 6 3"
    for _, row in ipairs(plan) do row[1] = multiple_of_8(row[1] * width) end
    local list, last = stages(plan, second, function(cin, cout, stride, row)
      local wide = cin * row[4]
      local branch = unit(wide, wide, row[5], stride, wide, act, norm, unit(cin, wide, 1, 1, 1, act, norm))
      return blocks.Residual("layers", unit(wide, cout, 1, 1, 1, nil, norm, branch), {
        around = stride == 1 and cin == cout})
    end)
    layers = unit(last, 1280, 1, 1, 1, act, norm, layers:append_all(list))
    return common.draw(classifier("MNASNet", "classifier", dropped(o, 1280), {{"layers", layers}}),
      function(w) init.kaiming_uniform_(w, {mode = "fan_out", nonlinearity = "sigmoid"}) end)
  end)
end

-- RegNet (Radosavovic et al., 2020), for each stage: channels, stride, blocks, channels of a group; the y networks have
-- squeeze-and-excitation.
for name, plan in pairs {
  x_400mf = "32 2 1 16, 64 2 2 16, 160 2 7 16, 400 2 12 16", x_800mf = "64 2 1 16, 128 2 3 16, 288 2 7 16, 672 2 5 16",
  x_1_6gf = "72 2 2 24, 168 2 4 24, 408 2 10 24, 912 2 2 24",
  x_3_2gf = "96 2 2 48, 192 2 6 48, 432 2 15 48, 1008 2 2 48",
  x_8gf = "80 2 2 80, 240 2 5 120, 720 2 15 120, 1920 2 1 120",
  x_16gf = "256 2 2 128, 512 2 6 128, 896 2 13 128, 2048 2 1 128",
  x_32gf = "336 2 2 168, 672 2 7 168, 1344 2 13 168, 2520 2 1 168",
  y_400mf = "48 2 1 8, 104 2 3 8, 208 2 6 8, 440 2 6 8", y_800mf = "64 2 1 16, 144 2 3 16, 320 2 8 16, 784 2 2 16",
  y_1_6gf = "48 2 2 24, 120 2 6 24, 336 2 17 24, 888 2 2 24",
  y_3_2gf = "72 2 2 24, 216 2 5 24, 576 2 13 24, 1512 2 1 24",
  y_8gf = "224 2 2 56, 448 2 4 56, 896 2 10 56, 2016 2 1 56",
  y_16gf = "224 2 2 112, 448 2 4 112, 1232 2 11 112, 3024 2 1 112",
  y_32gf = "232 2 2 232, 696 2 5 232, 1392 2 12 232, 3712 2 1 232",
  y_128gf = "528 2 2 264, 1056 2 7 264, 2904 2 17 264, 7392 2 1 264",
} do
  define("regnet_" .. name, {}, function(o)
    local act, trunk = nn.ReLU, list_of()
    local list, channels = stages(rows(plan), 32, function(cin, cout, stride, row)
      local f = list_of {{"a", unit(cin, cout, 1, 1, 1, act)}, {"b", unit(cout, cout, 3, stride, cout / row[4], act)}}
      if name:find "^y" then f:add_module("se", blocks.SqueezeExcitation(cout, cin / 4, act, nn.Sigmoid)) end
      f:add_module("c", unit(cout, cout, 1))
      local proj = (stride > 1 or cin ~= cout) and unit(cin, cout, 1, stride) or nil
      return blocks.Residual("f", f, {around = true, act = act, proj = proj})
    end, nil, "block%d-%d")
    for i, stage in ipairs(list) do trunk:add_module("block" .. i, stage) end
    return common.draw(classifier("RegNet", "fc", nn.Linear(channels, o.num_classes), {
      {"stem", unit(3, 32, 3, 2, 1, act)}, {"trunk_output", trunk}}), 0.01)
  end)
end

-- SqueezeNet (Iandola et al., 2016): channels and size of the first convolution, then channels of each block before and
-- after widening; 0 is a pooling.
for name, plan in pairs {
  ["1_0"] = "96 7, 0, 16 64, 16 64, 32 128, 0, 32 128, 48 192, 48 192, 64 256, 0, 64 256",
  ["1_1"] = "64 3, 0, 16 64, 16 64, 0, 32 128, 32 128, 0, 48 192, 48 192, 64 256, 64 256",
} do
  define("squeezenet" .. name, {dropout = 0.5}, function(o)
    local features, channels = list_of(), 3
    for i, row in ipairs(rows(plan)) do
      local narrow, wide = unpack(row)
      if narrow == 0 then
        features:append(nn.MaxPool2d(3, {stride = 2, ceil_mode = true}))
      elseif i == 1 then
        features:append_all {nn.Conv2d(3, narrow, wide, {stride = 2}), nn.ReLU()}
        channels = narrow
      else
        features:append(blocks.Paths({{"squeeze", "activation", {"expand1x1", "expand3x3"}, "activation"}}, {
          {"squeeze", nn.Conv2d(channels, narrow, 1)}, {"activation", nn.ReLU()},
          {"expand1x1", nn.Conv2d(narrow, wide, 1)}, {"expand3x3", nn.Conv2d(narrow, wide, 3, {padding = 1})}}))
        channels = 2 * wide
      end
    end
    local last = nn.Conv2d(channels, o.num_classes, 1)
    local net = common.draw(network("SqueezeNet", {{"features", features}, {"classifier", list_of(
      nn.Dropout(o.dropout), last, nn.ReLU(), nn.AdaptiveAvgPool2d(1))}, {"flatten", nn.Flatten()}}),
      nil, init.kaiming_uniform_)
    init.normal_(last.weight, 0, 0.01)
    return net
  end)
end

-- Applies a branch to half of the channels, or at stride 2 two branches to all; then shuffles the channels.
local ShuffleBlock = class.define("ShuffleBlock", nn.Module)

function ShuffleBlock:init(cin, cout, stride)
  local half, act = cout / 2, nn.ReLU
  self.stride = stride
  self.branch1 = list_of()
  if stride == 2 then unit(cin, half, 1, 1, 1, act, nil, unit(cin, cin, 3, 2, cin, nil, nil, self.branch1)) end
  self.branch2 = unit(stride == 2 and cin or half, half, 1, 1, 1, act)
  unit(half, half, 1, 1, 1, act, nil, unit(half, half, 3, stride, half, nil, nil, self.branch2))
end

function ShuffleBlock:forward(x)
  local halves = self.stride == 1 and x:chunk(2, 2) or {self.branch1(x), x}
  return ops.stack({halves[1], self.branch2(halves[2])}, 3):flatten(2, 3)
end

-- ShuffleNetV2 (Ma et al., 2018), for each stage: channels, stride, blocks; then the last channels.
for name, plan in pairs {
  x0_5 = "48 2 4, 96 2 8, 192 2 4, 1024", x1_0 = "116 2 4, 232 2 8, 464 2 4, 1024",
  x1_5 = "176 2 4, 352 2 8, 704 2 4, 1024", x2_0 = "244 2 4, 488 2 8, 976 2 4, 2048",
} do
  define("shufflenet_v2_" .. name, {}, function(o)
    local layers, act = rows(plan), nn.ReLU
    local last = table.remove(layers)[1]
    local list, channels = stages(layers, 24, function(cin, cout, stride) return ShuffleBlock(cin, cout, stride) end)
    return classifier("ShuffleNetV2", "fc", nn.Linear(last, o.num_classes), {
      {"conv1", unit(3, 24, 3, 2, 1, act)}, {"maxpool", nn.MaxPool2d(3, {stride = 2, padding = 1})},
      {"stage2", list[1]}, {"stage3", list[2]}, {"stage4", list[3]}, {"conv5", unit(channels, last, 1, 1, 1, act)}})
  end)
end

-- Concatenates x and the result of two convolutions.
local DenseLayer = class.define("DenseLayer", nn.Sequential)

function DenseLayer:forward(x) return ops.cat({x, nn.Sequential.forward(self, x)}, 2) end

-- Renames layers within a block, whose names have dots in torchvision's older files.
local function without_dots(_, dict) common.rename(dict, {{"(denselayer%d+%.%l+)%.([12]%.)", "%1%2"}}) end

-- DenseNet (Huang et al., 2017): first channels, channels that a layer adds, layers of each block.
for name, how in pairs {
  ["121"] = {64, 32, {6, 12, 24, 16}}, ["161"] = {96, 48, {6, 12, 36, 24}}, ["169"] = {64, 32, {6, 12, 32, 32}},
  ["201"] = {64, 32, {6, 12, 48, 32}},
} do
  define("densenet" .. name, {drop_rate = 0}, function(o)
    local channels, growth, counts = unpack(how)
    local features = list_of {{"conv0", conv(3, channels, 7, 2)}, {"norm0", nn.BatchNorm2d(channels)},
      {"relu0", nn.ReLU()}, {"pool0", nn.MaxPool2d(3, {stride = 2, padding = 1})}}
    for i, count in ipairs(counts) do
      local block = list_of()
      for k = 1, count do
        block:add_module("denselayer" .. k, DenseLayer {
          {"norm1", nn.BatchNorm2d(channels)}, {"relu1", nn.ReLU()}, {"conv1", conv(channels, 4 * growth, 1)},
          {"norm2", nn.BatchNorm2d(4 * growth)}, {"relu2", nn.ReLU()}, {"conv2", conv(4 * growth, growth, 3)},
          {"drop", nn.Dropout(o.drop_rate)}})
        channels = channels + growth
      end
      features:add_module("denseblock" .. i, block)
      if i < 4 then
        features:add_module("transition" .. i, list_of {{"norm", nn.BatchNorm2d(channels)}, {"relu", nn.ReLU()},
          {"conv", conv(channels, channels / 2, 1)}, {"pool", nn.AvgPool2d(2)}})
        channels = channels / 2
      end
    end
    features:add_module("norm5", nn.BatchNorm2d(channels))
    local last = nn.Linear(channels, o.num_classes)
    init.zeros_(last.bias)
    local net = classifier("DenseNet", "classifier", last, {{"features", features}, {"relu", nn.ReLU()}})
    net:register_load_state_dict_pre_hook(without_dots)
    return common.draw(net, nil, init.kaiming_normal_)
  end)
end

-- Returns features (a stem, and stages of blocks, with layers between them that double the channels) and their
-- channels. how: {first channels, blocks of each stage}.
local function pyramid(how, stem, block, between)
  local features, plan = list_of(stem), {}
  for i, count in ipairs(how[2]) do plan[i] = {how[1] * 2 ^ (i - 1), i, count} end
  local list, channels = stages(plan, how[1], function(_, cout, _, row, index, total)
    row.k = (row.k or 0) + 1
    return block(cout, index / (total - 1), row[2], row.k)
  end)
  for i, stage in ipairs(list) do
    features:append(stage)
    if i < #list then features:append(between(plan[i][1])) end
  end
  return features, channels
end

local function draw(w) init.trunc_normal_(w, 0, 0.02) end

-- ConvNeXt (Liu et al., 2022): first channels, blocks of each stage, and probability of stochastic depth.
for name, how in pairs {
  tiny = {96, {3, 3, 9, 3}, 0.1}, small = {96, {3, 3, 27, 3}, 0.4}, base = {128, {3, 3, 27, 3}, 0.5},
  large = {192, {3, 3, 27, 3}, 0.5},
} do
  define("convnext_" .. name, {stochastic_depth_prob = how[3], layer_scale = 1e-6}, function(o)
    local norm = {eps = 1e-6}
    local stem = list_of(nn.Conv2d(3, how[1], 4, {stride = 4}), LayerNorm2d(how[1], norm))
    local features, last = pyramid(how, stem, function(channels, share)
      return blocks.Residual("block", list_of(
        nn.Conv2d(channels, channels, 7, {padding = 3, groups = channels}), Permute(1, 3, 4, 2),
        nn.LayerNorm(channels, norm), nn.Linear(channels, 4 * channels), nn.GELU(), nn.Linear(4 * channels, channels),
        Permute(1, 4, 2, 3)), {
        around = true, scale = o.layer_scale, channels = channels, drop = o.stochastic_depth_prob * share})
    end, function(channels)
      return list_of(LayerNorm2d(channels, norm), nn.Conv2d(channels, 2 * channels, 2, {stride = 2}))
    end)
    return common.draw(network("ConvNeXt", {{"features", features}, {"avgpool", nn.AdaptiveAvgPool2d(1)}, {"classifier",
      list_of(LayerNorm2d(last, norm), nn.Flatten(), nn.Linear(last, o.num_classes))}}), draw, draw)
  end)
end

-- Computes attention within windows of `size` x `size` positions of x [N, H, W, dim], shifted by `shift`.
local WindowAttention = class.define("ShiftedWindowAttention", nn.Module)

function WindowAttention:init(dim, heads, size, shift, o)
  self.heads, self.size, self.shift, self.rate = heads, size, shift, o.attention_dropout
  self.qkv = nn.Linear(dim, 3 * dim)
  self.proj = nn.Linear(dim, dim)
  self.dropout = nn.Dropout(o.dropout)
  local across, at = 2 * size - 1, ops.arange(0, size, {dtype = "int64"})
  local by = at:unsqueeze(2) - at + (size - 1) -- [from, to], from 0
  self:register_buffer("relative_position_index",
    (by:view(size, 1, size, 1) * across + by:view(1, size, 1, size)):flatten())
  if size == 8 then -- Swin's second version
    self.logit_scale = init.constant_(layer.parameter({heads, 1, 1}, {}), math.log(10))
    self.cpb_mlp = nn.Sequential(nn.Linear(2, 512), nn.ReLU(), nn.Linear(512, heads, {bias = false}))
    local far = ops.arange(1 - size, size, {dtype = "float32"}) / (size - 1) * 8
    far = far:sign() * (far:abs() + 1):log2() / 3
    self:register_buffer("relative_coords_table", ops.stack({
      far:unsqueeze(2):expand(across, across), far:expand(across, across)}, 3):unsqueeze(1))
  else
    self.relative_position_bias_table = layer.parameter({across ^ 2, heads}, {})
    draw(self.relative_position_bias_table)
  end
end

-- Returns [windows, 1, positions, positions]: -100 between positions that the shift brought into one window, else 0.
local function mask_of(h, w, size, shift_h, shift_w, like)
  local function region(n, shift)
    local at = ops.arange(0, n, {device = like.device, dtype = "int64"})
    return shift == 0 and at * 0 or at:ge(n - size):long() + at:ge(n - shift):long()
  end
  local of = region(h, shift_h):unsqueeze(2) * 3 + region(w, shift_w)
  of = of:view(h / size, size, w / size, size):transpose(2, 3):reshape {-1, size ^ 2}
  return of:unsqueeze(2):ne(of:unsqueeze(3)):to(like.dtype):mul(-100):unsqueeze(2)
end

function WindowAttention:forward(x)
  local n, h, w, dim = unpack(x.shape)
  local size, heads, qkv_bias, logit_scale = self.size, self.heads, self.qkv.bias, self.logit_scale
  local high, wide, area = math.ceil(h / size) * size, math.ceil(w / size) * size, size ^ 2
  local shift_h, shift_w = size < high and self.shift or 0, size < wide and self.shift or 0
  local shifted = shift_h + shift_w > 0
  x = F.pad(x, {0, 0, 0, wide - w, 0, high - h})
  if shifted then x = x:roll({-shift_h, -shift_w}, {2, 3}) end
  x = x:view(n, high / size, size, wide / size, size, dim):transpose(3, 4):reshape {n, -1, area, dim}
  if logit_scale then -- keys have no bias
    local q, k, v = unpack(qkv_bias:chunk(3))
    qkv_bias = ops.cat({q, ops.zeros_like(k), v}, 1)
  end
  local parts = ops.linear(x, self.qkv.weight, qkv_bias):unflatten(-1, {3, heads, dim / heads}):transpose(3, 5)
  local q, k, v = unpack(parts:unbind(4))
  local bias = self.relative_position_bias_table or self.cpb_mlp(self.relative_coords_table):view(-1, heads)
  bias = bias:index_select(1, self.relative_position_index + 1):view(area, area, heads):permute(3, 1, 2)
  if logit_scale then
    q = F.normalize(q, {dim = -1}) * logit_scale:clamp(-math.huge, math.log(100)):exp()
    k, bias = F.normalize(k, {dim = -1}), bias:sigmoid() * 16
  end
  if shifted then bias = bias + mask_of(high, wide, size, shift_h, shift_w, bias) end
  x = ops.scaled_dot_product_attention(q, k, v, {
    attn_mask = bias, scale = logit_scale and 1 or nil, dropout_p = self.training and self.rate or 0,
  })
  x = self.dropout(self.proj(x:transpose(3, 4):flatten(4)))
  x = x:view(n, high / size, wide / size, size, size, dim):transpose(3, 4):reshape {n, high, wide, dim}
  if shifted then x = x:roll({shift_h, shift_w}, {2, 3}) end
  return x:narrow(2, 1, h):narrow(3, 1, w)
end

local SwinBlock = class.define("SwinTransformerBlock", nn.Module)

function SwinBlock:init(dim, heads, size, shift, drop, o)
  self.after, self.rate = size == 8, drop -- after: true if norms follow the branches
  self.norm1 = nn.LayerNorm(dim)
  self.attn = WindowAttention(dim, heads, size, shift, o)
  self.norm2 = nn.LayerNorm(dim)
  self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Dropout(o.dropout), nn.Linear(4 * dim, dim),
    nn.Dropout(o.dropout))
end

function SwinBlock:forward(x)
  for i, f in ipairs {self.attn, self.mlp} do
    local norm = self["norm" .. i]
    x = x + blocks.drop(self, self.after and norm(f(x)) or not self.after and f(norm(x)))
  end
  return x
end

-- Merges four positions into one of twice the channels.
local PatchMerging = class.define("PatchMerging", nn.Module)

function PatchMerging:init(dim, after)
  self.reduction = nn.Linear(4 * dim, 2 * dim, {bias = false})
  self.after, self.norm = after, nn.LayerNorm((after and 2 or 4) * dim)
end

function PatchMerging:forward(x)
  x = F.pad(x, {0, 0, 0, x.shape[3] % 2, 0, x.shape[2] % 2})
  x = x:unflatten(3, {-1, 2}):unflatten(2, {-1, 2}):permute(1, 2, 4, 5, 3, 6):flatten(4)
  return self.after and self.norm(self.reduction(x)) or not self.after and self.reduction(self.norm(x))
end

-- Swin transformers (Liu et al., 2021, 2022): first channels, blocks of each stage, first heads, and probability of
-- stochastic depth. The second version has windows of 8 x 8.
for name, how in pairs {
  t = {96, {2, 2, 6, 2}, 3, 0.2}, s = {96, {2, 2, 18, 2}, 3, 0.3}, b = {128, {2, 2, 18, 2}, 4, 0.5},
} do
  for prefix, size in pairs {swin_ = 7, swin_v2_ = 8} do
    define(prefix .. name, {dropout = 0, attention_dropout = 0, stochastic_depth_prob = how[4]}, function(o)
      local stem = list_of(nn.Conv2d(3, how[1], 4, {stride = 4}), Permute(1, 3, 4, 2), nn.LayerNorm(how[1]))
      local features, last = pyramid(how, stem, function(dim, share, i, k)
        return SwinBlock(dim, how[3] * 2 ^ (i - 1), size, k % 2 == 0 and math.floor(size / 2) or 0,
          o.stochastic_depth_prob * share, o)
      end, function(dim) return PatchMerging(dim, size == 8) end)
      return common.draw(classifier("SwinTransformer", "head", nn.Linear(last, o.num_classes), {
        {"features", features}, {"norm", nn.LayerNorm(last)}, {"permute", Permute(1, 4, 2, 3)}}), draw)
    end)
  end
end

return models

--- Networks for images [N, 3, H, W] as tables of blocks, with torchvision's names of parameters.
local core = require "luminary.core"
local class = require "luminary.base.class"
local options = require "luminary.base.options"
local nn = require "luminary.nn"
local blocks = require "luminary.models.blocks"
local common = require "luminary.models.common"

local ops, init = core.ops, nn.init
local conv, unit, append_unit = blocks.conv, blocks.unit, blocks.append_unit
local models = {}

-- The nearest multiple of `divisor`, which is not less than 0.9 of n.
local function multiple_of(divisor, n)
  local near = math.max(divisor, math.floor((n + divisor / 2) / divisor) * divisor)
  return near < 0.9 * n and near + divisor or near
end

-- Wider, each channel by itself, narrower again. o: {size, stride, act, norm, squeeze, fused, drop}; squeeze: the
-- arguments of a SqueezeExcitation after its channels.
local function inverted(cin, wide, cout, o)
  local list, act, norm = nn.Sequential(), o.act, o.norm
  if o.fused and wide == cin then
    list:append(unit(cin, cout, o.size, {stride = o.stride, act = act, norm = norm}))
  else
    if o.fused then
      list:append(unit(cin, wide, o.size, {stride = o.stride, act = act, norm = norm}))
    else
      if wide ~= cin then list:append(unit(cin, wide, 1, {act = act, norm = norm})) end
      list:append(unit(wide, wide, o.size, {stride = o.stride, groups = wide, act = act, norm = norm}))
      if o.squeeze then list:append(blocks.SqueezeExcitation(wide, unpack(o.squeeze))) end
    end
    list:append(unit(wide, cout, 1, {norm = norm}))
  end
  return blocks.Residual(list, {name = "block", around = o.stride == 1 and cin == cout, drop = o.drop})
end

local EfficientNet = blocks.family "EfficientNet"

-- Of each stage: expansion, size of windows, stride, channels, blocks, and whether the first two convolutions are one.
local efficientnet_b = {
  {1, 3, 1, 16, 1}, {6, 3, 2, 24, 2}, {6, 5, 2, 40, 2}, {6, 3, 2, 80, 3}, {6, 5, 1, 112, 3}, {6, 5, 2, 192, 4},
  {6, 3, 1, 320, 1},
}
local efficientnet_v2 = {
  s = {{1, 3, 1, 24, 2, true}, {4, 3, 2, 48, 4, true}, {4, 3, 2, 64, 4, true}, {4, 3, 2, 128, 6}, {6, 3, 1, 160, 9},
    {6, 3, 2, 256, 15}},
  m = {{1, 3, 1, 24, 3, true}, {4, 3, 2, 48, 5, true}, {4, 3, 2, 80, 5, true}, {4, 3, 2, 160, 7}, {6, 3, 1, 176, 14},
    {6, 3, 2, 304, 18}, {6, 3, 1, 512, 5}},
  l = {{1, 3, 1, 32, 4, true}, {4, 3, 2, 64, 7, true}, {4, 3, 2, 96, 7, true}, {4, 3, 2, 192, 10}, {6, 3, 1, 224, 19},
    {6, 3, 2, 384, 25}, {6, 3, 1, 640, 7}},
}

-- width, depth: factors of channels and blocks; last: channels before the classifier.
local function efficientnet(o, plan, width, depth, last, norm)
  local act, total, made = nn.SiLU, 0, 0
  local function channels_of(n) return multiple_of(8, n * width) end
  local function count_of(n) return math.ceil(n * depth) end
  for _, row in ipairs(plan) do total = total + count_of(row[5]) end
  local channels = channels_of(last and plan[1][4] or 32)
  local features = nn.Sequential(unit(3, channels, 3, {stride = 2, act = act, norm = norm}))
  for _, row in ipairs(plan) do
    local expand, size, stride, out, count, fused = unpack(row, 1, 6)
    local stage = nn.Sequential()
    out = channels_of(out)
    for k = 1, count_of(count) do
      stage:append(inverted(channels, channels * expand, out, {
        size = size, stride = k == 1 and stride or 1, act = act, norm = norm, fused = fused,
        squeeze = {math.max(1, math.floor(channels / 4)), nn.SiLU, nn.Sigmoid},
        drop = o.stochastic_depth_prob * made / total,
      }))
      channels, made = out, made + 1
    end
    features:append(stage)
  end
  last = last or 4 * channels
  features:append(unit(channels, last, 1, {act = act, norm = norm}))
  return common.draw(EfficientNet {
    {"features", features}, {"avgpool", nn.AdaptiveAvgPool2d(1)}, {"flatten", nn.Flatten()},
    {"classifier", nn.Sequential(nn.Dropout(o.dropout), nn.Linear(last, o.num_classes))},
  }, function(w) init.uniform_(w, -1 / math.sqrt(o.num_classes), 1 / math.sqrt(o.num_classes)) end)
end

-- Width, depth, dropout, and options of batch norm.
for name, row in pairs {
  b0 = {1, 1, 0.2}, b1 = {1, 1.1, 0.2}, b2 = {1.1, 1.2, 0.3}, b3 = {1.2, 1.4, 0.3}, b4 = {1.4, 1.8, 0.4},
  b5 = {1.6, 2.2, 0.4, {eps = 1e-3, momentum = 0.01}}, b6 = {1.8, 2.6, 0.5, {eps = 1e-3, momentum = 0.01}},
  b7 = {2, 3.1, 0.5, {eps = 1e-3, momentum = 0.01}}, v2_s = {1, 1, 0.2, {eps = 1e-3}},
  v2_m = {1, 1, 0.3, {eps = 1e-3}}, v2_l = {1, 1, 0.4, {eps = 1e-3}},
} do
  local plan = efficientnet_v2[name:match "^v2_(.)"]
  --- Constructs an EfficientNet. Tan and Le, "EfficientNet: Rethinking Model Scaling for Convolutional Neural Networks",
  --- 2019, and "EfficientNetV2: Smaller Models and Faster Training", 2021.
  models["efficientnet_" .. name] = function(opts)
    return common.build("efficientnet_" .. name, opts, {
      dropout = {"probability", row[3]}, stochastic_depth_prob = {"probability", 0.2},
    }, function(o) return efficientnet(o, plan or efficientnet_b, row[1], row[2], plan and 1280, row[4]) end)
  end
end

local MobileNetV3 = blocks.family "MobileNetV3"

-- Of each block: size of windows, channels within, channels, squeeze-and-excitation, Hardswish (else ReLU), stride.
local mobilenet_v3 = {
  large = {
    {3, 16, 16, false, false, 1}, {3, 64, 24, false, false, 2}, {3, 72, 24, false, false, 1},
    {5, 72, 40, true, false, 2}, {5, 120, 40, true, false, 1}, {5, 120, 40, true, false, 1},
    {3, 240, 80, false, true, 2}, {3, 200, 80, false, true, 1}, {3, 184, 80, false, true, 1},
    {3, 184, 80, false, true, 1}, {3, 480, 112, true, true, 1}, {3, 672, 112, true, true, 1},
    {5, 672, 160, true, true, 2}, {5, 960, 160, true, true, 1}, {5, 960, 160, true, true, 1}, last = 1280,
  },
  small = {
    {3, 16, 16, true, false, 2}, {3, 72, 24, false, false, 2}, {3, 88, 24, false, false, 1}, {5, 96, 40, true, true, 2},
    {5, 240, 40, true, true, 1}, {5, 240, 40, true, true, 1}, {5, 120, 48, true, true, 1}, {5, 144, 48, true, true, 1},
    {5, 288, 96, true, true, 2}, {5, 576, 96, true, true, 1}, {5, 576, 96, true, true, 1}, last = 1024,
  },
}

for name, plan in pairs(mobilenet_v3) do
  --- Constructs a MobileNetV3. Howard et al., "Searching for MobileNetV3", 2019.
  models["mobilenet_v3_" .. name] = function(opts)
    return common.build("mobilenet_v3_" .. name, opts, {dropout = {"probability", 0.2}}, function(o)
      local norm, channels = {eps = 1e-3, momentum = 0.01}, 16
      local features = nn.Sequential(unit(3, channels, 3, {stride = 2, act = nn.Hardswish, norm = norm}))
      for _, row in ipairs(plan) do
        local size, wide, out, squeeze, hard, stride = unpack(row)
        features:append(inverted(channels, wide, out, {
          size = size, stride = stride, act = hard and nn.Hardswish or nn.ReLU, norm = norm,
          squeeze = squeeze and {multiple_of(8, math.floor(wide / 4)), nn.ReLU, nn.Hardsigmoid} or nil,
        }))
        channels = out
      end
      features:append(unit(channels, 6 * channels, 1, {act = nn.Hardswish, norm = norm}))
      return common.draw(MobileNetV3 {
        {"features", features}, {"avgpool", nn.AdaptiveAvgPool2d(1)}, {"flatten", nn.Flatten()},
        {"classifier", nn.Sequential(nn.Linear(6 * channels, plan.last), nn.Hardswish(), nn.Dropout(o.dropout),
          nn.Linear(plan.last, o.num_classes))},
      }, 0.01)
    end)
  end
end

local MNASNet = blocks.family "MNASNet"

for name, width in pairs {["0_5"] = 0.5, ["0_75"] = 0.75, ["1_0"] = 1, ["1_3"] = 1.3} do
  --- Constructs a MNASNet, its variant B1. Tan et al., "MnasNet: Platform-Aware Neural Architecture Search for Mobile",
  --- 2019.
  models["mnasnet" .. name] = function(opts)
    return common.build("mnasnet" .. name, opts, {dropout = {"probability", 0.2}}, function(o)
      local function how(stride, groups, act)
        return {stride = stride, groups = groups, act = act, norm = {momentum = 3e-4}}
      end
      local first, channels = multiple_of(8, 32 * width), multiple_of(8, 16 * width)
      local layers = append_unit(nn.Sequential(), 3, first, 3, how(2, 1, nn.ReLU))
      append_unit(append_unit(layers, first, first, 3, how(1, first, nn.ReLU)), first, channels, 1, how(1, 1))
      for _, row in ipairs {{24, 3, 2, 3, 3}, {40, 5, 2, 3, 3}, {80, 5, 2, 6, 3}, {96, 3, 1, 6, 2}, {192, 5, 2, 6, 4},
        {320, 3, 1, 6, 1}} do
        local out, size, stride, expand, count = unpack(row)
        local stack = nn.Sequential()
        out = multiple_of(8, out * width)
        for k = 1, count do
          local wide = channels * expand
          local branch = append_unit(nn.Sequential(), channels, wide, 1, how(1, 1, nn.ReLU))
          append_unit(branch, wide, wide, size, how(k == 1 and stride or 1, wide, nn.ReLU))
          stack:append(blocks.Residual(append_unit(branch, wide, out, 1, how(1, 1)), {name = "layers", around = k > 1}))
          channels = out
        end
        layers:append(stack)
      end
      return common.draw(MNASNet {
        {"layers", append_unit(layers, channels, 1280, 1, how(1, 1, nn.ReLU))}, {"avgpool", nn.AdaptiveAvgPool2d(1)},
        {"flatten", nn.Flatten()}, {"classifier", nn.Sequential(nn.Dropout(o.dropout), nn.Linear(1280, o.num_classes))},
      }, function(w) init.kaiming_uniform_(w, {mode = "fan_out", nonlinearity = "sigmoid"}) end)
    end)
  end
end

local RegNet = blocks.family "RegNet"

-- Blocks and channels of each stage, channels of a group in the first of them and in the others; y has
-- squeeze-and-excitation.
for name, row in pairs {
  y_400mf = {{1, 3, 6, 6}, {48, 104, 208, 440}, 8}, y_800mf = {{1, 3, 8, 2}, {64, 144, 320, 784}, 16},
  y_1_6gf = {{2, 6, 17, 2}, {48, 120, 336, 888}, 24}, y_3_2gf = {{2, 5, 13, 1}, {72, 216, 576, 1512}, 24},
  y_8gf = {{2, 4, 10, 1}, {224, 448, 896, 2016}, 56}, y_16gf = {{2, 4, 11, 1}, {224, 448, 1232, 3024}, 112},
  y_32gf = {{2, 5, 12, 1}, {232, 696, 1392, 3712}, 232}, y_128gf = {{2, 7, 17, 1}, {528, 1056, 2904, 7392}, 264},
  x_400mf = {{1, 2, 7, 12}, {32, 64, 160, 400}, 16}, x_800mf = {{1, 3, 7, 5}, {64, 128, 288, 672}, 16},
  x_1_6gf = {{2, 4, 10, 2}, {72, 168, 408, 912}, 24}, x_3_2gf = {{2, 6, 15, 2}, {96, 192, 432, 1008}, 48},
  x_8gf = {{2, 5, 15, 1}, {80, 240, 720, 1920}, 80, 120}, x_16gf = {{2, 6, 13, 1}, {256, 512, 896, 2048}, 128},
  x_32gf = {{2, 7, 13, 1}, {336, 672, 1344, 2520}, 168},
} do
  --- Constructs a RegNet. Radosavovic et al., "Designing Network Design Spaces", 2020.
  models["regnet_" .. name] = function(opts)
    return common.build("regnet_" .. name, opts, {}, function(o)
      local channels, trunk = 32, nn.Sequential()
      local stem = unit(3, channels, 3, {stride = 2, act = nn.ReLU})
      for i, out in ipairs(row[2]) do
        local stage, group = nn.Sequential(), i > 1 and row[4] or row[3]
        for k = 1, row[1][i] do
          local stride = k == 1 and 2 or 1
          local f = nn.Sequential {
            {"a", unit(channels, out, 1, {act = nn.ReLU})},
            {"b", unit(out, out, 3, {stride = stride, groups = out / group, act = nn.ReLU})},
          }
          if name:find "^y" then
            f:add_module("se", blocks.SqueezeExcitation(out, channels / 4, nn.ReLU, nn.Sigmoid))
          end
          f:add_module("c", unit(out, out, 1, {}))
          stage:add_module(("block%d-%d"):format(i, k - 1), blocks.Residual(f, {
            name = "f", around = true, act = nn.ReLU, proj = k == 1 and unit(channels, out, 1, {stride = stride}) or nil,
          }))
          channels = out
        end
        trunk:add_module("block" .. i, stage)
      end
      return common.draw(RegNet {
        {"stem", stem}, {"trunk_output", trunk}, {"avgpool", nn.AdaptiveAvgPool2d(1)}, {"flatten", nn.Flatten()},
        {"fc", nn.Linear(channels, o.num_classes)},
      }, 0.01)
    end)
  end
end

local SqueezeNet = blocks.family "SqueezeNet"

-- Channels and size of the first convolution; a module with as many channels of three convolutions, or a pooling (0).
for name, plan in pairs {
  ["1_0"] = {96, 7, 0, 16, 64, 16, 64, 32, 128, 0, 32, 128, 48, 192, 48, 192, 64, 256, 0, 64, 256},
  ["1_1"] = {64, 3, 0, 16, 64, 16, 64, 0, 32, 128, 32, 128, 0, 48, 192, 48, 192, 64, 256, 64, 256},
} do
  --- Constructs a SqueezeNet. Iandola et al., "SqueezeNet: AlexNet-level Accuracy with 50x Fewer Parameters", 2016.
  models["squeezenet" .. name] = function(opts)
    return common.build("squeezenet" .. name, opts, {dropout = {"probability", 0.5}}, function(o)
      local channels, i = plan[1], 3
      local features = nn.Sequential(nn.Conv2d(3, channels, plan[2], {stride = 2}), nn.ReLU())
      while plan[i] do
        local narrow, wide = plan[i], plan[i + 1]
        if narrow == 0 then
          features:append(nn.MaxPool2d(3, {stride = 2, ceil_mode = true}))
          i = i + 1
        else
          features:append(blocks.Paths({{"squeeze", "activation", {"expand1x1", "expand3x3"}, "activation"}}, {
            {"squeeze", nn.Conv2d(channels, narrow, 1)}, {"activation", nn.ReLU()},
            {"expand1x1", nn.Conv2d(narrow, wide, 1)}, {"expand3x3", nn.Conv2d(narrow, wide, 3, {padding = 1})},
          }))
          channels, i = 2 * wide, i + 2
        end
      end
      local last = nn.Conv2d(channels, o.num_classes, 1)
      local net = common.draw(SqueezeNet {
        {"features", features},
        {"classifier", nn.Sequential(nn.Dropout(o.dropout), last, nn.ReLU(), nn.AdaptiveAvgPool2d(1))},
        {"flatten", nn.Flatten()},
      }, nil, init.kaiming_uniform_)
      init.normal_(last.weight, 0, 0.01)
      return net
    end)
  end
end

-- Half of the channels pass a branch, or at stride 2 all pass two; then the halves are mixed.
local ShuffleBlock = class.define("ShuffleBlock", nn.Module)

function ShuffleBlock:init(cin, cout, stride)
  local half = cout / 2
  local from = stride > 1 and cin or half
  self.branch1 = nn.Sequential()
  if stride > 1 then
    append_unit(append_unit(self.branch1, cin, cin, 3, {stride = stride, groups = cin}), cin, half, 1, {act = nn.ReLU})
  end
  self.branch2 = append_unit(nn.Sequential(), from, half, 1, {act = nn.ReLU})
  append_unit(append_unit(self.branch2, half, half, 3, {stride = stride, groups = half}), half, half, 1, {act = nn.ReLU})
end

function ShuffleBlock:forward(x)
  local a, b = x, x
  if #self.branch1 == 0 then a, b = unpack(x:chunk(2, 2)) else a = self.branch1(x) end
  return ops.stack({a, self.branch2(b)}, 3):flatten(2, 3)
end

local ShuffleNetV2 = blocks.family "ShuffleNetV2"

for name, widths in pairs {
  x0_5 = {48, 96, 192, 1024}, x1_0 = {116, 232, 464, 1024}, x1_5 = {176, 352, 704, 1024}, x2_0 = {244, 488, 976, 2048},
} do
  --- Constructs a ShuffleNetV2. Ma et al., "ShuffleNet V2: Practical Guidelines for Efficient CNN Architecture Design",
  --- 2018.
  models["shufflenet_v2_" .. name] = function(opts)
    return common.build("shufflenet_v2_" .. name, opts, {}, function(o)
      local channels = 24
      local net = ShuffleNetV2 {
        {"conv1", unit(3, channels, 3, {stride = 2, act = nn.ReLU})},
        {"maxpool", nn.MaxPool2d(3, {stride = 2, padding = 1})},
      }
      for i, count in ipairs {4, 8, 4} do
        local stage = nn.Sequential(ShuffleBlock(channels, widths[i], 2))
        channels = widths[i]
        for _ = 2, count do stage:append(ShuffleBlock(channels, channels, 1)) end
        net:add_module("stage" .. i + 1, stage)
      end
      net:add_module("conv5", unit(channels, widths[4], 1, {act = nn.ReLU}))
      net:add_module("avgpool", nn.AdaptiveAvgPool2d(1))
      net:add_module("flatten", nn.Flatten())
      net:add_module("fc", nn.Linear(widths[4], o.num_classes))
      return net
    end)
  end
end

local DenseNet = blocks.family "DenseNet"

-- x, with what two convolutions make of it.
local DenseLayer = blocks.family "DenseLayer"

function DenseLayer:forward(x) return ops.cat({x, nn.Sequential.forward(self, x)}, 2) end

-- Layers within a block had dots in their names in torchvision's files.
local function without_dots(_, dict)
  for _, key in ipairs(options.sorted_keys(dict)) do
    local new, n = key:gsub("(denselayer%d+%.%l+)%.([12]%.)", "%1%2")
    if n > 0 then dict[new], dict[key] = dict[key], nil end
  end
end

for name, row in pairs {
  ["121"] = {32, {6, 12, 24, 16}, 64}, ["161"] = {48, {6, 12, 36, 24}, 96}, ["169"] = {32, {6, 12, 32, 32}, 64},
  ["201"] = {32, {6, 12, 48, 32}, 64},
} do
  --- Constructs a DenseNet. Huang et al., "Densely Connected Convolutional Networks", 2017.
  models["densenet" .. name] = function(opts)
    return common.build("densenet" .. name, opts, {drop_rate = {"probability", 0}}, function(o)
      local growth, counts, channels = unpack(row)
      local features = nn.Sequential {
        {"conv0", conv(3, channels, 7, {stride = 2})}, {"norm0", nn.BatchNorm2d(channels)}, {"relu0", nn.ReLU()},
        {"pool0", nn.MaxPool2d(3, {stride = 2, padding = 1})},
      }
      for i, count in ipairs(counts) do
        local block = nn.Sequential()
        for k = 1, count do
          block:add_module("denselayer" .. k, DenseLayer {
            {"norm1", nn.BatchNorm2d(channels)}, {"relu1", nn.ReLU()}, {"conv1", conv(channels, 4 * growth, 1)},
            {"norm2", nn.BatchNorm2d(4 * growth)}, {"relu2", nn.ReLU()}, {"conv2", conv(4 * growth, growth, 3)},
            {"drop", nn.Dropout(o.drop_rate)},
          })
          channels = channels + growth
        end
        features:add_module("denseblock" .. i, block)
        if i < #counts then
          features:add_module("transition" .. i, nn.Sequential {
            {"norm", nn.BatchNorm2d(channels)}, {"relu", nn.ReLU()}, {"conv", conv(channels, channels / 2, 1)},
            {"pool", nn.AvgPool2d(2)},
          })
          channels = channels / 2
        end
      end
      features:add_module("norm5", nn.BatchNorm2d(channels))
      local net = DenseNet {
        {"features", features}, {"relu", nn.ReLU()}, {"avgpool", nn.AdaptiveAvgPool2d(1)}, {"flatten", nn.Flatten()},
        {"classifier", nn.Linear(channels, o.num_classes)},
      }
      init.zeros_(net.classifier.bias)
      net:register_load_state_dict_pre_hook(without_dots)
      return common.draw(net, nil, init.kaiming_normal_)
    end)
  end
end

local ConvNeXt = blocks.family "ConvNeXt"

for name, row in pairs {
  tiny = {{3, 3, 9, 3}, 96, 0.1}, small = {{3, 3, 27, 3}, 96, 0.4}, base = {{3, 3, 27, 3}, 128, 0.5},
  large = {{3, 3, 27, 3}, 192, 0.5},
} do
  --- Constructs a ConvNeXt. Liu et al., "A ConvNet for the 2020s", 2022.
  models["convnext_" .. name] = function(opts)
    return common.build("convnext_" .. name, opts, {
      stochastic_depth_prob = {"probability", row[3]}, layer_scale = {"number", 1e-6},
    }, function(o)
      local counts, channels, norm, made, total = row[1], row[2], {eps = 1e-6}, 0, 0
      for _, count in ipairs(counts) do total = total + count end
      local features = nn.Sequential(nn.Sequential(nn.Conv2d(3, channels, 4, {stride = 4}),
        blocks.LayerNorm2d(channels, norm)))
      for i, count in ipairs(counts) do
        local stage = nn.Sequential()
        for _ = 1, count do
          stage:append(blocks.Residual(nn.Sequential(
            conv(channels, channels, 7, {groups = channels, bias = true}), blocks.Permute(1, 3, 4, 2),
            nn.LayerNorm(channels, norm), nn.Linear(channels, 4 * channels), nn.GELU(),
            nn.Linear(4 * channels, channels), blocks.Permute(1, 4, 2, 3)), {
            name = "block", around = true, scale = o.layer_scale, channels = channels,
            drop = o.stochastic_depth_prob * made / (total - 1),
          }))
          made = made + 1
        end
        features:append(stage)
        if i < #counts then
          features:append(nn.Sequential(blocks.LayerNorm2d(channels, norm),
            nn.Conv2d(channels, 2 * channels, 2, {stride = 2})))
          channels = 2 * channels
        end
      end
      local function draw(w) init.trunc_normal_(w, 0, 0.02) end
      return common.draw(ConvNeXt {
        {"features", features}, {"avgpool", nn.AdaptiveAvgPool2d(1)},
        {"classifier", nn.Sequential(blocks.LayerNorm2d(channels, norm), nn.Flatten(),
          nn.Linear(channels, o.num_classes))},
      }, draw, draw)
    end)
  end
end

return models

--- Defines GoogLeNet and Inception v3, with parallel paths of layers, auxiliary classifiers in training, and
--- torchvision's names of parameters.
local class = require "luminary.base.class"
local nn = require "luminary.nn"
local blocks = require "luminary.models.blocks"
local common = require "luminary.models.common"

local models = {}

-- Layers in sequence. In training, the auxiliary classifiers' results follow the scores, the last classifier's first.
local Inception = class.define("Inception", nn.Sequential)

function Inception:forward(x)
  if self.transform_input then -- converts ImageNet's mean and deviation to 0.5 and 0.5
    local function row(list) return x:new_tensor(list):view(1, 3, 1, 1) end
    x = x * row {0.458, 0.448, 0.45} + row {-0.03, -0.088, -0.188}
  end
  local others = {}
  for name, each in self:named_children() do
    if not name:find "^[Aa]ux" then
      x = each(x)
    elseif self.training then
      table.insert(others, 1, each(x))
    end
  end
  return x, unpack(others)
end

local function conv_bn(cin, cout, size, stride, padding)
  return nn.Sequential {{"conv", blocks.conv(cin, cout, size, stride, 1, padding)},
    {"bn", nn.BatchNorm2d(cout, {eps = 1e-3})}, {"relu", nn.ReLU()}}
end

-- Paths, split by "|", of steps, split by commas: "avg" and "max" poolings, and convolutions: name, channels, height
-- and width of windows, stride. Those with a stride have no padding; one after "and" takes the same as the one before.
local function branches(cin, text)
  local layers, paths = {
    {"avg", nn.AvgPool2d(3, {stride = 1, padding = 1})}, {"max", nn.MaxPool2d(3, {stride = 2})},
  }, {}
  for each in text:gmatch "[^|]+" do
    local path, channels, before = {}, cin, nil
    for _, row in ipairs(blocks.rows(each)) do
      local fork = row[1] == "and" and table.remove(row, 1)
      local name, cout, h, w, stride = unpack(row)
      if fork then path[#path], channels = {path[#path], name}, before else path[#path + 1] = name end
      if cout then
        layers[#layers + 1] = {name, conv_bn(channels, cout, {h, w or h}, stride, stride and 0)}
        before, channels = channels, cout
      end
    end
    paths[#paths + 1] = path
  end
  return blocks.Paths(paths, layers)
end

local function block_a(cin, pooled)
  return branches(cin, ([[branch1x1 64 1 | branch5x5_1 48 1, branch5x5_2 64 5 |
    branch3x3dbl_1 64 1, branch3x3dbl_2 96 3, branch3x3dbl_3 96 3 | avg, branch_pool %d 1]]):format(pooled))
end

local function block_c(wide)
  return branches(768, ([[branch1x1 192 1 | branch7x7_1 # 1, branch7x7_2 # 1 7, branch7x7_3 192 7 1 |
    branch7x7dbl_1 # 1, branch7x7dbl_2 # 7 1, branch7x7dbl_3 # 1 7, branch7x7dbl_4 # 7 1, branch7x7dbl_5 192 1 7 |
    avg, branch_pool 192 1]]):gsub("#", wide))
end

local function block_e(cin)
  return branches(cin, [[branch1x1 320 1 | branch3x3_1 384 1, branch3x3_2a 384 1 3, and branch3x3_2b 384 3 1 |
    branch3x3dbl_1 448 1, branch3x3dbl_2 384 3, branch3x3dbl_3a 384 1 3, and branch3x3dbl_3b 384 3 1 |
    avg, branch_pool 192 1]])
end

local function inception_v3(o)
  return {
    {"Conv2d_1a_3x3", conv_bn(3, 32, 3, 2, 0)}, {"Conv2d_2a_3x3", conv_bn(32, 32, 3, 1, 0)},
    {"Conv2d_2b_3x3", conv_bn(32, 64, 3)}, {"maxpool1", nn.MaxPool2d(3, {stride = 2})},
    {"Conv2d_3b_1x1", conv_bn(64, 80, 1)}, {"Conv2d_4a_3x3", conv_bn(80, 192, 3, 1, 0)},
    {"maxpool2", nn.MaxPool2d(3, {stride = 2})},
    {"Mixed_5b", block_a(192, 32)}, {"Mixed_5c", block_a(256, 64)}, {"Mixed_5d", block_a(288, 64)},
    {"Mixed_6a", branches(288, [[branch3x3 384 3 3 2 | branch3x3dbl_1 64 1, branch3x3dbl_2 96 3,
      branch3x3dbl_3 96 3 3 2 | max]])},
    {"Mixed_6b", block_c(128)}, {"Mixed_6c", block_c(160)}, {"Mixed_6d", block_c(160)}, {"Mixed_6e", block_c(192)},
    {"AuxLogits", nn.Sequential {
      {"pool", nn.AvgPool2d(5, {stride = 3})}, {"conv0", conv_bn(768, 128, 1)}, {"conv1", conv_bn(128, 768, 5, 1, 0)},
      {"avgpool", nn.AdaptiveAvgPool2d(1)}, {"flatten", nn.Flatten()}, {"fc", nn.Linear(768, o.num_classes)},
    }},
    {"Mixed_7a", branches(768, [[branch3x3_1 192 1, branch3x3_2 320 3 3 2 | branch7x7x3_1 192 1, branch7x7x3_2 192 1 7,
      branch7x7x3_3 192 7 1, branch7x7x3_4 192 3 3 2 | max]])},
    {"Mixed_7b", block_e(1280)}, {"Mixed_7c", block_e(2048)},
  }, 2048, 0.1
end

local function googlenet(o)
  local function pool(size) return nn.MaxPool2d(size, {stride = 2, ceil_mode = true}) end
  local channels, list = 192, {{"conv1", conv_bn(3, 64, 7, 2)}, {"maxpool1", pool(3)}, {"conv2", conv_bn(64, 64, 1)},
    {"conv3", conv_bn(64, 192, 3)}, {"maxpool2", pool(3)}}
  -- Names, channels of the four paths, before and after each wide convolution, and what follows.
  for _, row in ipairs(blocks.rows [[3a 64 96 128 16 32 32, 3b 128 128 192 32 96 64 maxpool3,
    4a 192 96 208 16 48 64 aux1, 4b 160 112 224 24 64 64, 4c 128 128 256 24 64 64, 4d 112 144 288 32 64 64 aux2,
    4e 256 160 320 32 128 128 maxpool4, 5a 256 160 320 32 128 128, 5b 384 192 384 48 128 128]]) do
    local name, one, from3, to3, from5, to5, pooled, after = unpack(row, 1, 8)
    list[#list + 1] = {"inception" .. name, blocks.Paths({"branch1", "branch2", "branch3", "branch4"}, {
      {"branch1", conv_bn(channels, one, 1)},
      {"branch2", nn.Sequential(conv_bn(channels, from3, 1), conv_bn(from3, to3, 3))},
      {"branch3", nn.Sequential(conv_bn(channels, from5, 1), conv_bn(from5, to5, 3))}, -- not 5 x 5, as in torchvision
      {"branch4", nn.Sequential(nn.MaxPool2d(3, {stride = 1, padding = 1}), conv_bn(channels, pooled, 1))},
    })}
    channels = one + to3 + to5 + pooled
    list[#list + 1] = after and {after, after:find "max" and pool(after == "maxpool3" and 3 or 2) or nn.Sequential {
      {"avgpool", nn.AdaptiveAvgPool2d(4)}, {"conv", conv_bn(channels, 128, 1)}, {"flatten", nn.Flatten()},
      {"fc1", nn.Linear(2048, 1024)}, {"relu", nn.ReLU()}, {"dropout", nn.Dropout(o.dropout_aux)},
      {"fc2", nn.Linear(1024, o.num_classes)},
    }}
  end
  return list, channels, 0.01
end

local function model_maker(name, make, dropout, dropout_aux)
  return function(opts)
    return common.build(name, opts, {
      dropout = {"probability", dropout}, dropout_aux = dropout_aux and {"probability", dropout_aux},
      aux_logits = {"boolean", true}, transform_input = {"boolean", false},
    }, function(o)
      local list, channels, std = make(o)
      local net = Inception()
      for _, each in ipairs(list) do
        if o.aux_logits or not each[1]:find "^[Aa]ux" then net:add_module(each[1], each[2]) end
      end
      for _, each in ipairs {{"avgpool", nn.AdaptiveAvgPool2d(1)}, {"flatten", nn.Flatten()},
        {"dropout", nn.Dropout(o.dropout)}, {"fc", nn.Linear(channels, o.num_classes)}} do
        net:add_module(each[1], each[2])
      end
      net.transform_input = o.transform_input
      local function truncated_init(deviation) return function(w) nn.init.trunc_normal_(w, 0, deviation, -2, 2) end end
      common.draw(net, truncated_init(std), truncated_init(std))
      if net.AuxLogits then
        truncated_init(0.01)(net.AuxLogits.conv1.conv.weight)
        truncated_init(0.001)(net.AuxLogits.fc.weight)
      end
      return net
    end)
  end
end

--- lm.models.googlenet([{num_classes = 1000, aux_logits = true, transform_input = false, dropout = 0.2, dropout_aux =
--- 0.7}]): Constructs GoogLeNet. Szegedy et al., "Going Deeper with Convolutions", 2015.
models.googlenet = model_maker("googlenet", googlenet, 0.2, 0.7)
--- lm.models.inception_v3([{num_classes = 1000, aux_logits = true, transform_input = false, dropout = 0.5}]):
--- Constructs Inception v3. Szegedy et al., "Rethinking the Inception Architecture for Computer Vision", 2016.
models.inception_v3 = model_maker("inception_v3", inception_v3, 0.5)

return models

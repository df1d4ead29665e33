--- GoogLeNet and Inception v3: layers beside each other, and auxiliary classifiers in training. Parameters have
--- torchvision's names.
local class = require "luminary.base.class"
local nn = require "luminary.nn"
local blocks = require "luminary.models.blocks"
local common = require "luminary.models.common"

local models = {}

-- Layers in sequence. In training what the auxiliary classifiers return follows the scores, the last one first.
local Inception = class.define("Inception", nn.Sequential)

function Inception:forward(x)
  if self.transform_input then -- from the mean and deviation of ImageNet to 0.5 and 0.5
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

local function unit(cin, cout, size, o)
  return nn.Sequential {
    {"conv", blocks.conv(cin, cout, size, o)}, {"bn", nn.BatchNorm2d(cout, {eps = 1e-3})}, {"relu", nn.ReLU()},
  }
end

-- Paths of {name, channels, size, stride}, "avg" or "max" poolings, and lists of two such rows; the poolings and
-- convolutions with a stride have no padding.
local function mixed(cin, paths)
  local layers, steps = {
    {"avg", nn.AvgPool2d(3, {stride = 1, padding = 1})}, {"max", nn.MaxPool2d(3, {stride = 2})},
  }, {}
  local function add(row, channels)
    local name, cout, size, stride = unpack(row)
    layers[#layers + 1] = {name, unit(channels, cout, size, stride and {stride = stride, padding = 0} or nil)}
    return name, cout
  end
  for i, path in ipairs(paths) do
    local channels, out = cin, {}
    for k, row in ipairs(path) do
      if type(row) == "string" then
        out[k] = row
      elseif type(row[1]) == "table" then
        out[k] = {(add(row[1], channels)), (add(row[2], channels))}
      else
        out[k], channels = add(row, channels)
      end
    end
    steps[i] = out
  end
  return blocks.Paths(steps, layers)
end

local function block_a(cin, pooled)
  return mixed(cin, {
    {{"branch1x1", 64, 1}}, {{"branch5x5_1", 48, 1}, {"branch5x5_2", 64, 5}},
    {{"branch3x3dbl_1", 64, 1}, {"branch3x3dbl_2", 96, 3}, {"branch3x3dbl_3", 96, 3}},
    {"avg", {"branch_pool", pooled, 1}},
  })
end

local function block_c(wide)
  local row, column = {1, 7}, {7, 1}
  return mixed(768, {
    {{"branch1x1", 192, 1}}, {{"branch7x7_1", wide, 1}, {"branch7x7_2", wide, row}, {"branch7x7_3", 192, column}},
    {{"branch7x7dbl_1", wide, 1}, {"branch7x7dbl_2", wide, column}, {"branch7x7dbl_3", wide, row},
      {"branch7x7dbl_4", wide, column}, {"branch7x7dbl_5", 192, row}},
    {"avg", {"branch_pool", 192, 1}},
  })
end

local function block_e(cin)
  local row, column = {1, 3}, {3, 1}
  return mixed(cin, {
    {{"branch1x1", 320, 1}}, {{"branch3x3_1", 384, 1}, {{"branch3x3_2a", 384, row}, {"branch3x3_2b", 384, column}}},
    {{"branch3x3dbl_1", 448, 1}, {"branch3x3dbl_2", 384, 3},
      {{"branch3x3dbl_3a", 384, row}, {"branch3x3dbl_3b", 384, column}}},
    {"avg", {"branch_pool", 192, 1}},
  })
end

local function inception_v3(o)
  local plain = {padding = 0}
  local net = Inception {
    {"Conv2d_1a_3x3", unit(3, 32, 3, {stride = 2, padding = 0})}, {"Conv2d_2a_3x3", unit(32, 32, 3, plain)},
    {"Conv2d_2b_3x3", unit(32, 64, 3)}, {"maxpool1", nn.MaxPool2d(3, {stride = 2})},
    {"Conv2d_3b_1x1", unit(64, 80, 1)}, {"Conv2d_4a_3x3", unit(80, 192, 3, plain)},
    {"maxpool2", nn.MaxPool2d(3, {stride = 2})},
    {"Mixed_5b", block_a(192, 32)}, {"Mixed_5c", block_a(256, 64)}, {"Mixed_5d", block_a(288, 64)},
    {"Mixed_6a", mixed(288, {
      {{"branch3x3", 384, 3, 2}}, {{"branch3x3dbl_1", 64, 1}, {"branch3x3dbl_2", 96, 3}, {"branch3x3dbl_3", 96, 3, 2}},
      {"max"},
    })},
    {"Mixed_6b", block_c(128)}, {"Mixed_6c", block_c(160)}, {"Mixed_6d", block_c(160)}, {"Mixed_6e", block_c(192)},
  }
  if o.aux_logits then
    net:add_module("AuxLogits", nn.Sequential {
      {"pool", nn.AvgPool2d(5, {stride = 3})}, {"conv0", unit(768, 128, 1)}, {"conv1", unit(128, 768, 5, plain)},
      {"avgpool", nn.AdaptiveAvgPool2d(1)}, {"flatten", nn.Flatten()}, {"fc", nn.Linear(768, o.num_classes)},
    })
  end
  net:add_module("Mixed_7a", mixed(768, {
    {{"branch3x3_1", 192, 1}, {"branch3x3_2", 320, 3, 2}},
    {{"branch7x7x3_1", 192, 1}, {"branch7x7x3_2", 192, {1, 7}}, {"branch7x7x3_3", 192, {7, 1}},
      {"branch7x7x3_4", 192, 3, 2}},
    {"max"},
  }))
  net:add_module("Mixed_7b", block_e(1280))
  net:add_module("Mixed_7c", block_e(2048))
  return net, 2048, 0.1
end

local function googlenet(o)
  local net, channels = Inception {
    {"conv1", unit(3, 64, 7, {stride = 2})}, {"maxpool1", nn.MaxPool2d(3, {stride = 2, ceil_mode = true})},
    {"conv2", unit(64, 64, 1)}, {"conv3", unit(64, 192, 3)},
    {"maxpool2", nn.MaxPool2d(3, {stride = 2, ceil_mode = true})},
  }, 192
  for _, row in ipairs {
    {"3a", 64, 96, 128, 16, 32, 32}, {"3b", 128, 128, 192, 32, 96, 64, 3}, {"4a", 192, 96, 208, 16, 48, 64},
    {"4b", 160, 112, 224, 24, 64, 64}, {"4c", 128, 128, 256, 24, 64, 64}, {"4d", 112, 144, 288, 32, 64, 64},
    {"4e", 256, 160, 320, 32, 128, 128, 2}, {"5a", 256, 160, 320, 32, 128, 128}, {"5b", 384, 192, 384, 48, 128, 128},
  } do
    local name, one, from3, to3, from5, to5, pooled, pool = unpack(row, 1, 8)
    net:add_module("inception" .. name, blocks.Paths({{"branch1"}, {"branch2"}, {"branch3"}, {"branch4"}}, {
      {"branch1", unit(channels, one, 1)},
      {"branch2", nn.Sequential(unit(channels, from3, 1), unit(from3, to3, 3))},
      {"branch3", nn.Sequential(unit(channels, from5, 1), unit(from5, to5, 3))}, -- not 5 x 5, as in torchvision
      {"branch4", nn.Sequential(nn.MaxPool2d(3, {stride = 1, padding = 1, ceil_mode = true}),
        unit(channels, pooled, 1))},
    }))
    channels = one + to3 + to5 + pooled
    local aux = o.aux_logits and (name == "4a" and "aux1" or name == "4d" and "aux2")
    if pool then
      net:add_module("maxpool" .. name:sub(1, 1), nn.MaxPool2d(pool, {stride = 2, ceil_mode = true}))
    elseif aux then
      net:add_module(aux, nn.Sequential {
        {"avgpool", nn.AdaptiveAvgPool2d(4)}, {"conv", unit(channels, 128, 1)}, {"flatten", nn.Flatten()},
        {"fc1", nn.Linear(2048, 1024)}, {"relu", nn.ReLU()}, {"dropout", nn.Dropout(o.dropout_aux)},
        {"fc2", nn.Linear(1024, o.num_classes)},
      })
    end
  end
  return net, channels, 0.01
end

local function maker(name, spec, make)
  spec.aux_logits, spec.transform_input = {"boolean", true}, {"boolean", false}
  return function(opts)
    return common.build(name, opts, spec, function(o)
      local net, channels, std = make(o)
      net:add_module("avgpool", nn.AdaptiveAvgPool2d(1))
      net:add_module("flatten", nn.Flatten())
      net:add_module("dropout", nn.Dropout(o.dropout))
      net:add_module("fc", nn.Linear(channels, o.num_classes))
      net.transform_input = o.transform_input
      local function draw(w) nn.init.trunc_normal_(w, 0, std, -2, 2) end
      common.draw(net, draw, draw)
      if net.AuxLogits then
        nn.init.trunc_normal_(net.AuxLogits.conv1.conv.weight, 0, 0.01, -2, 2)
        nn.init.trunc_normal_(net.AuxLogits.fc.weight, 0, 0.001, -2, 2)
      end
      return net
    end)
  end
end

--- lm.models.googlenet([{num_classes = 1000, aux_logits = true, transform_input = false, dropout = 0.2, dropout_aux =
--- 0.7}]): Constructs GoogLeNet. Szegedy et al., "Going Deeper with Convolutions", 2015.
models.googlenet = maker("googlenet", {dropout = {"probability", 0.2}, dropout_aux = {"probability", 0.7}}, googlenet)
--- lm.models.inception_v3([{num_classes = 1000, aux_logits = true, transform_input = false, dropout = 0.5}]): Constructs
--- Inception v3. Szegedy et al., "Rethinking the Inception Architecture for Computer Vision", 2016.
models.inception_v3 = maker("inception_v3", {dropout = {"probability", 0.5}}, inception_v3)

return models

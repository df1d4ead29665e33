--- Defines networks for images [N, 1, 28, 28], such as MNIST's.
local nn = require "luminary.nn"
local common = require "luminary.models.common"

local models = {}

--- models.mlp([{num_classes = 10, hidden = 256}]): Constructs a multilayer perceptron of two linear layers for images
--- of 28 x 28 pixels.
function models.mlp(opts)
  return common.build("mlp", opts, {num_classes = {"count", 10}, hidden = {"count", 256}}, function(o)
    return nn.Sequential(nn.Flatten(), nn.Linear(784, o.hidden), nn.ReLU(), nn.Linear(o.hidden, o.num_classes))
  end)
end

--- models.lenet([{num_classes = 10}]): Constructs a small convolutional network for images of 28 x 28 pixels, after
--- LeNet. LeCun et al., "Gradient-based learning applied to document recognition", 1998.
function models.lenet(opts)
  return common.build("lenet", opts, {num_classes = {"count", 10}}, function(o)
    return nn.Sequential(
      nn.Conv2d(1, 20, 3), nn.ReLU(), nn.AvgPool2d(2),
      nn.Conv2d(20, 50, 5), nn.ReLU(), nn.AvgPool2d(2),
      nn.Flatten(), nn.Linear(800, 128), nn.ReLU(), nn.Linear(128, o.num_classes))
  end)
end

return models

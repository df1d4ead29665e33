--- Wraps luminary's optim functions for Torch7's tensors: x, the gradients and the state are such tensors.
local options = require "luminary.base.options"
local class = require "luminary.torch7.class"
local ours = require "luminary.optim"
local tensor = require "luminary.torch7.tensor"

local optim = class.packages.optim

for _, name in ipairs {
  "sgd", "adam", "adamax", "adagrad", "adadelta", "rmsprop", "rprop", "nag", "asgd", "lbfgs",
} do
  --- optim.name(feval, x [, config [, state]]): Does as luminary's function.
  optim[name] = function(feval, x, config, state)
    options.arg(name, "feval", feval, "function")
    local _, losses, average = ours[name](function()
      local loss, grad = feval(x)
      return tensor.raw_all(loss), tensor.raw_all(grad)
    end, tensor.raw(x, name), config, state)
    return x, losses, average and tensor.wrap(average) or nil
  end
end
optim.lswolfe = ours.lswolfe
--- difference, gradient, estimate = optim.checkgrad(feval, x [, eps]): Does as luminary's function.
function optim.checkgrad(feval, x, eps)
  local difference, grad, estimate = ours.checkgrad(function()
    local loss, grad = feval(x)
    return tensor.raw_all(loss), tensor.raw_all(grad)
  end, tensor.raw(x, "checkgrad"), eps)
  return difference, tensor.wrap(grad), tensor.wrap(estimate)
end

local ConfusionMatrix = ours.ConfusionMatrix:extend "ConfusionMatrix"
function ConfusionMatrix:add(...) return self.super.add(self, unpack(tensor.raw_all {...})) end
function ConfusionMatrix:batchAdd(...) return self.super.batchAdd(self, unpack(tensor.raw_all {...})) end
optim.ConfusionMatrix, optim.Logger = ConfusionMatrix, ours.Logger

return optim

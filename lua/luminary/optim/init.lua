--- optim: Optimization algorithms and learning rate schedulers.
local options = require "luminary.base.options"

local optim = {Optimizer = require "luminary.optim.optimizer"}
for _, file in ipairs {"elementwise_classes", "lamb_muon_adafactor"} do
  for name, class in pairs(require("luminary.optim." .. file)) do optim[name] = class end
end

local later = {
  LBFGS = {"optim.lbfgs"}, ZeroRedundancyOptimizer = {"optim.zero"}, lr_scheduler = {"optim.lr_scheduler"},
  ConfusionMatrix = {"optim.confusion_matrix"}, Logger = {"optim.logger"},
}
for file, names in pairs {
  swa = "AveragedModel SWALR swa_utils",
  torch7 = "sgd adam adamax adagrad adadelta rmsprop rprop nag asgd lbfgs lswolfe checkgrad",
} do
  for name in names:gmatch "%S+" do later[name] = {"optim." .. file, name} end
end

return options.strict("optim", optim, later)

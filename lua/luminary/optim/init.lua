--- optim: optimizers and learning-rate schedules.
local options = require "luminary.base.options"
local torch7 = require "luminary.optim.torch7"
local swa = require "luminary.optim.swa"

local optim = {
  Optimizer = require "luminary.optim.optimizer",
  LBFGS = require "luminary.optim.lbfgs",
  sgd = torch7.sgd, adam = torch7.adam, adagrad = torch7.adagrad, rmsprop = torch7.rmsprop, lbfgs = torch7.lbfgs,
  lswolfe = torch7.lswolfe,
  ZeroRedundancyOptimizer = require "luminary.optim.zero",
  ConfusionMatrix = require "luminary.optim.confusion_matrix", Logger = require "luminary.optim.logger",
  lr_scheduler = require "luminary.optim.lr_scheduler",
  AveragedModel = swa.AveragedModel, SWALR = swa.SWALR, swa_utils = swa.swa_utils,
}
for _, file in ipairs {"elementwise_classes", "lamb_muon_adafactor"} do
  for name, class in pairs(require("luminary.optim." .. file)) do optim[name] = class end
end
return options.strict("optim", optim)

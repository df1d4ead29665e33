--- optim: Optimization algorithms and learning rate schedulers.
local options = require "luminary.base.options"

local optim = {Optimizer = require "luminary.optim.optimizer"}

return options.strict("optim", optim, options.at_first_use({
  ["optim.elementwise_classes"] = "ASGD AdaBelief Adadelta Adagrad Adam AdamW Adamax Lion NAdam RAdam RMSprop Rprop "
    .. "SGD",
  ["optim.lamb_muon_adafactor"] = "Adafactor LAMB Muon",
  ["optim.swa"] = "AveragedModel SWALR swa_utils",
}, {LBFGS = {"optim.lbfgs"}, ZeroRedundancyOptimizer = {"optim.zero"}, lr_scheduler = {"optim.lr_scheduler"}}))

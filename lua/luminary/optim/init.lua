--- optim: optimizers and learning-rate schedules.
local options = require "luminary.options"

local optim = {
  Optimizer = require "luminary.optim.optimizer",
  ZeroRedundancyOptimizer = require "luminary.optim.zero",
  lr_scheduler = require "luminary.optim.lr_scheduler",
}
for name, class in pairs(require "luminary.optim.elementwise") do optim[name] = class end
return options.strict("optim", optim)

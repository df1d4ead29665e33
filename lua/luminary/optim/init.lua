--- optim: optimizers and learning-rate schedules.
local options = require "luminary.options"
local adam = require "luminary.optim.adam"

return options.strict("optim", {
  Optimizer = require "luminary.optim.optimizer",
  SGD = require "luminary.optim.sgd",
  LBFGS = require "luminary.optim.lbfgs",
  Adam = adam.Adam,
  AdamW = adam.AdamW,
  ZeroRedundancyOptimizer = require "luminary.optim.zero",
  lr_scheduler = require "luminary.optim.lr_scheduler",
})

--- optim: optimizers and learning-rate schedules.
local adam = require "luminary.optim.adam"

return {
  Optimizer = require "luminary.optim.optimizer",
  SGD = require "luminary.optim.sgd",
  Adam = adam.Adam,
  AdamW = adam.AdamW,
  ZeroRedundancyOptimizer = require "luminary.optim.zero",
  lr_scheduler = require "luminary.optim.lr_scheduler",
}

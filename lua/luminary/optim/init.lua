--- optim: optimizers and learning-rate schedules.
local options = require "luminary.options"
local adam = require "luminary.optim.adam"
local torch7 = require "luminary.optim.torch7"

return options.strict("optim", {
  Optimizer = require "luminary.optim.optimizer",
  SGD = require "luminary.optim.sgd",
  sgd = torch7.sgd, adam = torch7.adam, adagrad = torch7.adagrad, rmsprop = torch7.rmsprop, lbfgs = torch7.lbfgs,
  lswolfe = torch7.lswolfe,
  LBFGS = require "luminary.optim.lbfgs",
  Adam = adam.Adam,
  AdamW = adam.AdamW,
  ZeroRedundancyOptimizer = require "luminary.optim.zero",
  lr_scheduler = require "luminary.optim.lr_scheduler",
})

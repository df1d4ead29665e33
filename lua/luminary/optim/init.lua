--- optim: optimizers and learning-rate schedules.
local options = require "luminary.options"
local adam = require "luminary.optim.adam"
local swa = require "luminary.optim.swa"

return options.strict("optim", {
  Optimizer = require "luminary.optim.optimizer",
  SGD = require "luminary.optim.sgd",
  Adam = adam.Adam,
  AdamW = adam.AdamW,
  ZeroRedundancyOptimizer = require "luminary.optim.zero",
  lr_scheduler = require "luminary.optim.lr_scheduler",
  AveragedModel = swa.AveragedModel, SWALR = swa.SWALR, swa_utils = swa.swa_utils,
})

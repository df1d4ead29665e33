--- optim: Optimization algorithms and learning rate schedulers.
local options = require "luminary.base.options"

local optim = {Optimizer = require "luminary.optim.optimizer"}
for _, file in ipairs {"elementwise_classes", "lamb_muon_adafactor"} do
  for name, class in pairs(require("luminary.optim." .. file)) do optim[name] = class end
end

local later = {
  LBFGS = {"optim.lbfgs"}, ZeroRedundancyOptimizer = {"optim.zero"}, lr_scheduler = {"optim.lr_scheduler"},
}
for _, name in ipairs {"AveragedModel", "SWALR", "swa_utils"} do later[name] = {"optim.swa", name} end

return options.strict("optim", optim, later)

--- optim: Provides optimization algorithms and learning rate schedulers.
-- The arithmetic of Adam, SGD and others is in sgd_adam_rules.lua; that of a few in lamb_muon_adafactor.lua, lbfgs.lua.
local options = require "luminary.base.options"

local optim = {Optimizer = require "luminary.optim.optimizer"}

-- Optimizers whose step needs one batch: those of elementwise_classes.lua, and those of lamb_muon_adafactor.lua.
local others, elementwise = "Adafactor LAMB Muon",
  "ASGD AdaBelief Adadelta Adagrad Adam AdamW Adamax Lion NAdam RAdam RMSprop Rprop SGD"

local class_names = {}
for name in (elementwise .. " " .. others):gmatch "%S+" do class_names[name:lower()] = name end

--- Returns the names that optim.get_optimizer takes, a sorted list in lower case.
function optim.list_optimizers() return options.sorted_keys(class_names) end

--- optim.get_optimizer(name, params, options): Creates an optimizer by its name, in upper or lower case.
function optim.get_optimizer(name, params, ...)
  local lower = options.arg("get_optimizer", "name", name, "string"):lower()
  if not class_names[lower] then options.choice("get_optimizer", "name", lower, optim.list_optimizers()) end
  return optim[class_names[lower]](params, ...)
end

return options.strict("optim", optim, options.at_first_use({
  ["optim.elementwise_classes"] = elementwise, ["optim.lamb_muon_adafactor"] = others,
  ["optim.swa"] = "AveragedModel SWALR swa_utils",
}, {LBFGS = {"optim.lbfgs"}, ZeroRedundancyOptimizer = {"optim.zero"}, DiLoCo = {"optim.diloco"},
  lr_scheduler = {"optim.lr_scheduler"}}))

--- optim.lr_scheduler: Provides learning rate schedulers, which adjust the learning rate based on the number of epochs.
local options = require "luminary.base.options"

local schedules = {
  LRScheduler = require "luminary.optim.lr_scheduler.scheduler",
  ReduceLROnPlateau = require "luminary.optim.lr_scheduler.plateau",
}
for _, file in ipairs {"schedules", "chained_sequential", "get_scheduler"} do
  for name, value in pairs(require("luminary.optim.lr_scheduler." .. file)) do schedules[name] = value end
end

return options.strict("optim.lr_scheduler", schedules)

--- optim.lr_scheduler: learning rates that change by epoch (or step): scheduler:step() after opt:step().
local options = require "luminary.base.options"

local schedules = {ReduceLROnPlateau = require "luminary.optim.lr_scheduler.plateau"}
for _, file in ipairs {"factors", "cosine", "cyclic", "chained_sequential"} do
  for name, class in pairs(require("luminary.optim.lr_scheduler." .. file)) do schedules[name] = class end
end

return options.strict("optim.lr_scheduler", schedules)

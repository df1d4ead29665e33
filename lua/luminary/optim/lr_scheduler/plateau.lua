--- optim.lr_scheduler.ReduceLROnPlateau(…): Reduces the learning rate when a metric has stopped improving.
local class = require "luminary.base.class"
local options = require "luminary.base.options"
local signature = require "luminary.base.signature"
local Scheduler = require "luminary.optim.lr_scheduler.scheduler"

local Plateau = class.define("ReduceLROnPlateau", Scheduler)
Plateau.settings = [[(mode: "min" | "max", factor: number, patience: natural, threshold: number,
  threshold_mode: "rel" | "abs", cooldown: natural, min_lrs: number[], eps: number, best: number,
  cooldown_counter: natural, num_bad_epochs: natural)]]

Plateau.init = signature.of([[ReduceLROnPlateau(optimizer: optimizer, {mode = "min" | "max", factor = 0.1,
  patience: natural = 10, threshold = 1e-4, threshold_mode = "rel" | "abs", cooldown: natural = 0, min_lr: any = 0,
  eps = 1e-8})]], function(self, optimizer, opts)
  local who = "ReduceLROnPlateau"
  self.optimizer = optimizer
  if opts.factor >= 1 then options.must_be(who, "factor", "below 1", opts.factor) end
  self.min_lrs = Scheduler.for_groups(who, "min_lr", opts.min_lr, optimizer, "number")
  self.min_lr = type(opts.min_lr) == "number" and opts.min_lr or nil -- used for groups added later, too
  opts.min_lr = nil
  signature.assign(self, opts)
  self.best = opts.mode == "min" and math.huge or -math.huge
  self.cooldown_counter, self.num_bad_epochs, self.last_epoch, self.step_count = 0, 0, 0, 0
  self:note()
end)

local function is_better(self, metric)
  local sign = self.mode == "min" and -1 or 1
  local least = self.threshold_mode == "rel" and self.best * (1 + sign * self.threshold)
    or self.best + sign * self.threshold
  return sign * metric > sign * least
end

--- Performs the next epoch's step. metric: a number, or a tensor of one element.
function Plateau:step(metric)
  metric = options.arg(self.__name .. ":step", "the metric", metric, "scalar")
  local groups, lowest = self.optimizer.param_groups, {}
  for i = 1, #groups do lowest[i] = self.min_lrs[i] or self.min_lr or self:of_group("min_lrs", i) end
  self.last_epoch, self.step_count = self.last_epoch + 1, self.step_count + 1
  if is_better(self, metric) then
    self.best, self.num_bad_epochs = metric, 0
  else
    self.num_bad_epochs = self.num_bad_epochs + 1
  end
  if self.cooldown_counter > 0 then
    self.cooldown_counter, self.num_bad_epochs = self.cooldown_counter - 1, 0
  end
  if self.num_bad_epochs > self.patience then
    for i, group in ipairs(groups) do
      local lr = math.max(group.lr * self.factor, lowest[i])
      if group.lr - lr > self.eps then group.lr = lr end
    end
    self.cooldown_counter, self.num_bad_epochs = self.cooldown, 0
  end
  self.min_lrs = lowest
  self:note()
end

return Plateau

--- Schedules along half cosines (Loshchilov and Hutter, "SGDR: Stochastic Gradient Descent with Warm Restarts", 2017).
local options = require "luminary.base.options"
local Scheduler = require "luminary.optim.lr_scheduler.scheduler"

local list, schedule = Scheduler.entries()

schedule "CosineAnnealingLR(T_max: count, {eta_min = 0})" {
  help = "Sets the learning rate of each group by a cosine annealing schedule.",
  next_lr = function(self, group, base)
    local t, T, low = self.last_epoch, self.T_max, self.eta_min
    if self.initial then return group.lr end
    if (t - 1 - T) % (2 * T) == 0 then -- at the minimum, where the recursion divides by 0
      return group.lr + (base - low) * (1 - math.cos(math.pi / T)) / 2
    end
    return (1 + math.cos(math.pi * t / T)) / (1 + math.cos(math.pi * (t - 1) / T)) * (group.lr - low) + low
  end,
  closed_form = function(self, base)
    return self.eta_min + (base - self.eta_min) * (1 + math.cos(math.pi * self.last_epoch / self.T_max)) / 2
  end,
}

schedule "CosineAnnealingWarmRestarts(T_0: count, {T_mult: count = 1, eta_min = 0})" {
  settings = "(T_0: count, T_i: number, T_mult: count, eta_min: number, T_cur: number)",
  help = "Sets the learning rate of each group by a cosine annealing schedule with warm restarts.",
  made = function(self) self.T_i, self.T_cur = self.T_0, self.last_epoch end,
  next_lr = function(self, _, base)
    return self.eta_min + (base - self.eta_min) * (1 + math.cos(math.pi * self.T_cur / self.T_i)) / 2
  end,
}

local classes = Scheduler.classes(list)

-- Returns an epoch's position in its cycle, and the cycle's length in epochs.
local function place(self, epoch)
  local T_0, T_mult = self.T_0, self.T_mult
  if epoch < T_0 then return epoch, T_0 end
  if T_mult == 1 then return epoch % T_0, self.T_i end
  local n = math.floor(math.log(epoch / T_0 * (T_mult - 1) + 1) / math.log(T_mult))
  return epoch - T_0 * (T_mult ^ n - 1) / (T_mult - 1), T_0 * T_mult ^ n
end

function classes.CosineAnnealingWarmRestarts:step(epoch)
  if epoch ~= nil then options.arg(self.__name .. ":step", "epoch", epoch, "positive") end
  self:count_step()
  if epoch == nil and self.last_epoch < 0 then epoch = 0 end
  if epoch then
    self.T_cur, self.T_i = place(self, epoch)
  else
    epoch, self.T_cur = self.last_epoch + 1, self.T_cur + 1
    if self.T_cur >= self.T_i then
      self.T_cur, self.T_i = self.T_cur % self.T_i, self.T_i * self.T_mult
    end
  end
  self:update(math.floor(epoch))
end

return classes

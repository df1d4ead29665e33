--- Schedules that multiply the current rate, in every epoch or at milestones.
local options = require "luminary.base.options"
local Scheduler = require "luminary.optim.lr_scheduler.scheduler"

local list, schedule = Scheduler.entries()

options.kind("factor", "number above 0 and at most 1", function(who, name, value)
  if options.arg(who, name, value, "number") > 1 or value <= 0 then
    options.must_be(who, name, "above 0 and at most 1", value)
  end
  return value
end)

schedule "StepLR(step_size: count, {gamma = 0.1})" {
  help = "Decays the learning rate of each group by gamma every step_size epochs.",
  next_lr = function(self, group)
    local epoch = self.last_epoch
    return epoch > 0 and epoch % self.step_size == 0 and group.lr * self.gamma or group.lr
  end,
  closed_form = function(self, base) return base * self.gamma ^ math.floor(self.last_epoch / self.step_size) end,
}

-- The kind of milestones with their counts: a table {[epoch] = number of times the epoch is a milestone}.
options.kind("epoch_counts", "table", function(who, name, counts)
  for epoch, count in pairs(options.arg(who, name, counts, "table")) do
    options.arg(who, "an epoch of " .. name, epoch, "integer")
    options.arg(who, ("%s[%d]"):format(name, epoch), count, "natural")
  end
  return counts
end)

schedule "MultiStepLR(milestones: integer[], {gamma = 0.1})" {
  help = "Decays the learning rate of each group by gamma at each of the milestones.",
  settings = "(milestones: epoch_counts, gamma: number)",
  made = function(self)
    local counts = {}
    for _, epoch in ipairs(self.milestones) do counts[epoch] = (counts[epoch] or 0) + 1 end
    self.milestones = counts
  end,
  next_lr = function(self, group)
    local times = self.milestones[self.last_epoch]
    return times and group.lr * self.gamma ^ times or group.lr
  end,
  closed_form = function(self, base)
    local passed = 0
    for epoch, times in pairs(self.milestones) do passed = passed + (epoch <= self.last_epoch and times or 0) end
    return base * self.gamma ^ passed
  end,
}

schedule "ConstantLR({factor: probability = 1 / 3, total_iters: natural = 5})" {
  settings = "(factor: number, total_iters: natural)",
  help = "Multiplies the learning rate of each group by a factor until epoch total_iters.",
  next_lr = function(self, group)
    if self.last_epoch == 0 then return group.lr * self.factor end
    return self.last_epoch == self.total_iters and group.lr * (1 / self.factor) or group.lr
  end,
  closed_form = function(self, base)
    return base * (self.factor + (self.last_epoch >= self.total_iters and 1 or 0) * (1 - self.factor))
  end,
}

schedule "LinearLR({start_factor: factor = 1 / 3, end_factor: probability = 1, total_iters: natural = 5})" {
  settings = "(start_factor: number, end_factor: number, total_iters: natural)",
  help = [[Multiplies the learning rate of each group by a factor that changes linearly from start_factor to
    end_factor.]],
  next_lr = function(self, group)
    local t, rise = self.last_epoch, self.end_factor - self.start_factor
    if t == 0 then return group.lr * self.start_factor end
    if self.initial or t > self.total_iters then return group.lr end
    return group.lr * (1 + rise / (self.total_iters * self.start_factor + (t - 1) * rise))
  end,
  closed_form = function(self, base)
    local part = self.total_iters == 0 and 1 or math.min(self.total_iters, self.last_epoch) / self.total_iters
    return base * (self.start_factor + (self.end_factor - self.start_factor) * part)
  end,
}

schedule "ExponentialLR(gamma: number)" {
  help = "Decays the learning rate of each group by gamma every epoch.",
  next_lr = function(self, group) return self.initial and group.lr or group.lr * self.gamma end,
  closed_form = function(self, base) return base * self.gamma ^ self.last_epoch end,
}

schedule "PolynomialLR({total_iters: count = 5, power = 1})" {
  help = "Decays the learning rate of each group to 0 by a polynomial over total_iters epochs.",
  next_lr = function(self, group)
    local t, n = self.last_epoch, self.total_iters
    if self.initial or t > n then return group.lr end
    return group.lr * ((1 - t / n) / (1 - (t - 1) / n)) ^ self.power
  end,
  closed_form = function(self, base)
    return base * (1 - math.min(self.total_iters, self.last_epoch) / self.total_iters) ^ self.power
  end,
}

-- ---- custom functions

-- Stores a function for each group, from the argument lr_lambda.
local function take_lambdas(self, optimizer)
  local given = self.lr_lambda
  self.lr_lambda = nil
  if type(given) ~= "cdata" and type(given) ~= "function" and options.is("callable", given) then
    local callable = given
    given = function(epoch) return callable(epoch) end
  end
  self.lr_lambdas = Scheduler.for_groups(self.__name, "lr_lambda", given, optimizer, "function")
end

-- Returns the factor that group i's function returns for this epoch.
local function factor_of(self, i)
  local value = self:of_group("lr_lambdas", i)(self.last_epoch)
  return options.arg(self.__name, "the result of lr_lambda", value, "number")
end

schedule "LambdaLR(lr_lambda: any)" {
  settings = "()", made = take_lambdas,
  help = "Sets the learning rate of each group to its initial one times a function of the epoch.",
  next_lr = function(self, _, base, i) return base * factor_of(self, i) end,
}

schedule "MultiplicativeLR(lr_lambda: any)" {
  settings = "()", made = take_lambdas,
  help = "Multiplies the learning rate of each group by a function of the epoch, every epoch.",
  next_lr = function(self, group, _, i) return self.initial and group.lr or group.lr * factor_of(self, i) end,
}

return Scheduler.classes(list)

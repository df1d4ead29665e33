--- Defines schedules: those that multiply the current rate, in every epoch or at milestones; half cosines (Loshchilov
--- and Hutter, "SGDR: Stochastic Gradient Descent with Warm Restarts", 2017); and rates that rise and fall by batch
--- rather than by epoch, and cycle the momentum inversely.
local options = require "luminary.base.options"
local Scheduler = require "luminary.optim.lr_scheduler.scheduler"
local fail = options.fail

local list, schedule = Scheduler.entries()

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
  after_init = function(self)
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

schedule "LinearLR({start_factor: above(0, 1) = 1 / 3, end_factor: probability = 1, total_iters: natural = 5})" {
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
  settings = "()", after_init = take_lambdas,
  help = "Sets the learning rate of each group to its initial one times a function of the epoch.",
  next_lr = function(self, _, base, i) return base * factor_of(self, i) end,
}

schedule "MultiplicativeLR(lr_lambda: any)" {
  settings = "()", after_init = take_lambdas,
  help = "Multiplies the learning rate of each group by a function of the epoch, every epoch.",
  next_lr = function(self, group, _, i) return self.initial and group.lr or group.lr * factor_of(self, i) end,
}

-- ---- half cosines

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
  after_init = function(self) self.T_i, self.T_cur = self.T_0, self.last_epoch end,
  next_lr = function(self, _, base)
    return self.eta_min + (base - self.eta_min) * (1 + math.cos(math.pi * self.T_cur / self.T_i)) / 2
  end,
}

-- ---- momentum

-- Sets the momentum that the cycle changes: momentum, or the first of betas.
local function set_momentum(group, momentum)
  if group.betas then
    group.betas = {momentum, unpack(group.betas, 2)}
  else
    group.momentum = momentum
  end
end

-- Stores the bounds of each group's momentum, and sets the momentum to the upper bound.
local function start_momentum(self, optimizer)
  if not self.cycle_momentum then return end
  local who, defaults = self.__name, optimizer.defaults or {}
  if not defaults.momentum and not defaults.betas then
    fail("%s: %s has no momentum; pass {cycle_momentum = false}", who, optimizer.__name)
  end
  for _, name in ipairs {"base_momentum", "max_momentum"} do
    self[name .. "s"] = Scheduler.for_groups(who, name, self[name], optimizer, "probability")
  end
  if self.last_epoch >= 0 then return end
  for i, group in ipairs(optimizer.param_groups) do set_momentum(group, self.max_momentums[i]) end
end

-- ---- CyclicLR

local modes = {
  triangular = {"cycle", function() return 1 end},
  triangular2 = {"cycle", function(_, cycle) return 1 / 2 ^ (cycle - 1) end},
  exp_range = {"iterations", function(self, iterations) return self.gamma ^ iterations end},
}

schedule [[CyclicLR(base_lr, max_lr, {step_size_up: count = 2000, step_size_down = step_size_up,
  mode = "triangular" | "triangular2" | "exp_range", gamma = 1, scale_fn: function, scale_mode = "cycle" | "iterations",
  cycle_momentum = true, base_momentum: any = 0.8, max_momentum: any = 0.9})]] {
  settings = [[(max_lrs: number[], total_size: number, step_ratio: number,
    mode: "triangular" | "triangular2" | "exp_range", gamma: number, scale_mode: "cycle" | "iterations",
    cycle_momentum: boolean, base_momentums: number[]?, max_momentums: number[]?)]],
  help = [[Sets the learning rate of each group by a cyclical policy. Smith, "Cyclical Learning Rates for Training
    Neural Networks", 2017.]],
  after_init = function(self, optimizer)
    self.first_lrs = Scheduler.for_groups("CyclicLR", "base_lr", self.base_lr, optimizer, "number")
    self.max_lrs = Scheduler.for_groups("CyclicLR", "max_lr", self.max_lr, optimizer, "number")
    self.total_size = self.step_size_up + self.step_size_down
    self.step_ratio = self.step_size_up / self.total_size
    if not self.scale_fn then self.scale_mode = modes[self.mode][1] end
    start_momentum(self, optimizer)
    for i, group in ipairs(optimizer.param_groups) do
      if self.last_epoch < 0 then group.lr = self.first_lrs[i] end
    end
  end,
  started = function(self) self.base_lrs = self.first_lrs end,
  next_lr = function(self, group, base, i)
    local t = self.last_epoch
    local cycle = math.floor(1 + t / self.total_size)
    local x = 1 + t / self.total_size - cycle
    local height = x <= self.step_ratio and x / self.step_ratio or (x - 1) / (self.step_ratio - 1)
    local at = self.scale_mode == "cycle" and cycle or t
    local scale = self.scale_fn and options.arg("CyclicLR", "the result of scale_fn", self.scale_fn(at), "number")
      or modes[self.mode][2](self, at)
    if self.cycle_momentum then
      local high = self:of_group("max_momentums", i)
      set_momentum(group, high - (high - self:of_group("base_momentums", i)) * height * scale)
    end
    return base + (self:of_group("max_lrs", i) - base) * height * scale
  end,
}

-- ---- OneCycleLR

local anneal = {
  cos = function(from, to, part) return to + (from - to) / 2 * (math.cos(math.pi * part) + 1) end,
  linear = function(from, to, part) return (to - from) * part + from end,
}

-- Names of the values from and to which a phase changes the rate and the momentum.
local ends = {"initial_lr", "max_lr", "min_lr", "max_momentum", "base_momentum"}

options.kind("phases", "list of phases", function(who, name, phases)
  if #options.arg(who, name, phases, "table") == 0 then fail("%s: %s must not be empty", who, name) end
  for i, phase in ipairs(phases) do
    local here = ("%s[%d]"):format(name, i)
    options.arg(who, here, phase, "table")
    options.arg(who, here .. ".end_step", phase.end_step, "number")
    for _, key in ipairs {"start_lr", "end_lr", "start_momentum", "end_momentum"} do
      options.choice(who, here .. "." .. key, phase[key], ends)
    end
  end
  return phases
end)

local function phases_of(total, pct_start, three)
  local up = {
    end_step = pct_start * total - 1, start_lr = "initial_lr", end_lr = "max_lr", start_momentum = "max_momentum",
    end_momentum = "base_momentum",
  }
  local down = {
    end_step = total - 1, start_lr = "max_lr", end_lr = "min_lr", start_momentum = "base_momentum",
    end_momentum = "max_momentum",
  }
  if not three then return {up, down} end
  down.end_step, down.end_lr = 2 * pct_start * total - 2, "initial_lr"
  return {up, down, {
    end_step = total - 1, start_lr = "initial_lr", end_lr = "min_lr", start_momentum = "max_momentum",
    end_momentum = "max_momentum",
  }}
end

schedule [[OneCycleLR(max_lr, {total_steps: count = (epochs * steps_per_epoch), epochs: count, steps_per_epoch: count,
  pct_start: probability = 0.3, anneal_strategy = "cos" | "linear", cycle_momentum = true, base_momentum: any = 0.85,
  max_momentum: any = 0.95, div_factor = 25, final_div_factor = 1e4, three_phase = false})]] {
  settings = [[(total_steps: count, schedule_phases: phases, anneal_func_type: "cos" | "linear",
    cycle_momentum: boolean, max_lrs: number[]?, min_lrs: number[]?, base_momentums: number[]?,
    max_momentums: number[]?)]],
  help = [[Sets the learning rate of each group by the 1cycle policy. Smith and Topin, "Super-Convergence: Very Fast
    Training of Neural Networks Using Large Learning Rates", 2018.]],
  after_init = function(self, optimizer)
    self.max_lrs = Scheduler.for_groups("OneCycleLR", "max_lr", self.max_lr, optimizer, "number")
    if not self.total_steps and not (self.epochs and self.steps_per_epoch) then
      fail("OneCycleLR: pass either total_steps, or epochs and steps_per_epoch")
    end
    self.total_steps = self.total_steps or self.epochs * self.steps_per_epoch
    self.schedule_phases = phases_of(self.total_steps, self.pct_start, self.three_phase)
    self.anneal_func_type = self.anneal_strategy
    start_momentum(self, optimizer)
    self.min_lrs = {}
    for i, group in ipairs(optimizer.param_groups) do
      local initial = self.max_lrs[i] / self.div_factor
      self.min_lrs[i] = initial / self.final_div_factor
      if self.last_epoch < 0 then group.initial_lr = initial end
    end
  end,
  next_lr = function(self, group, base, i)
    local step, from = self.last_epoch, 0
    local phase
    for _, each in ipairs(self.schedule_phases) do
      if phase then from = phase.end_step end
      phase = each
      if step <= phase.end_step then break end
    end
    local part = (step - from) / (phase.end_step - from)
    local bounds = {initial_lr = base, max_lr = self:of_group("max_lrs", i), min_lr = self:of_group("min_lrs", i)}
    local between = anneal[self.anneal_func_type]
    if self.cycle_momentum then
      bounds.base_momentum, bounds.max_momentum = self:of_group("base_momentums", i), self:of_group("max_momentums", i)
      set_momentum(group, between(bounds[phase.start_momentum], bounds[phase.end_momentum], part))
    end
    return between(bounds[phase.start_lr], bounds[phase.end_lr], part)
  end,
}

-- ---- steps

local classes = Scheduler.classes(list)

-- Returns an epoch's position in its cycle, and the cycle's length in epochs.
local function position_in_cycle(self, epoch)
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
    self.T_cur, self.T_i = position_in_cycle(self, epoch)
  else
    epoch, self.T_cur = self.last_epoch + 1, self.T_cur + 1
    if self.T_cur >= self.T_i then
      self.T_cur, self.T_i = self.T_cur % self.T_i, self.T_i * self.T_mult
    end
  end
  self:update(math.floor(epoch))
end

function classes.OneCycleLR:update(epoch)
  if not epoch and self.last_epoch >= self.total_steps then
    fail("OneCycleLR:step: called more than %d times, the total_steps of the schedule", self.total_steps)
  end
  Scheduler.update(self, epoch)
end

return classes

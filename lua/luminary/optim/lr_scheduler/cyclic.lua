--- Schedules rates that rise and fall by batch rather than by epoch, and cycle the momentum inversely.
local options = require "luminary.base.options"
local Scheduler = require "luminary.optim.lr_scheduler.scheduler"
local fail = options.fail

local list, schedule = Scheduler.entries()

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
  made = function(self, optimizer)
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

-- The values between which a phase, which ends at a step, moves.
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
  made = function(self, optimizer)
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

local classes = Scheduler.classes(list)

function classes.OneCycleLR:update(epoch)
  if not epoch and self.last_epoch >= self.total_steps then
    fail("OneCycleLR:step: called more than %d times, the total_steps of the schedule", self.total_steps)
  end
  Scheduler.update(self, epoch)
end

return classes

--- Schedules that go up and down, by batches rather than by epochs, and cycle the momentum the other way.
local class = require "luminary.base.class"
local options = require "luminary.base.options"
local Scheduler = require "luminary.optim.lr_scheduler.scheduler"
local fail = options.fail

-- ---- momentum

-- What the cycle moves: momentum, or the first of betas.
local function set_momentum(group, momentum)
  if group.betas then
    group.betas = {momentum, unpack(group.betas, 2)}
  else
    group.momentum = momentum
  end
end

-- The bounds of the momentum of each group, which begin at the upper one.
local function start_momentum(self, optimizer, opts)
  self.cycle_momentum = opts.cycle_momentum
  if not opts.cycle_momentum then return end
  local who, defaults = self.__name, optimizer.defaults or {}
  if not defaults.momentum and not defaults.betas then
    fail("%s: %s has no momentum to cycle; say {cycle_momentum = false}", who, optimizer.__name)
  end
  for _, name in ipairs {"base_momentum", "max_momentum"} do
    self[name .. "s"] = Scheduler.for_groups(who, name, opts[name], optimizer, "probability")
  end
  if opts.last_epoch >= 0 then return end
  for i, group in ipairs(optimizer.param_groups) do set_momentum(group, self.max_momentums[i]) end
end

-- ---- CyclicLR

local modes = {
  triangular = {"cycle", function() return 1 end},
  triangular2 = {"cycle", function(_, cycle) return 1 / 2 ^ (cycle - 1) end},
  exp_range = {"iterations", function(self, iterations) return self.gamma ^ iterations end},
}

local function check_mode(who, name, value)
  return options.choice(who, name, value, {"triangular", "triangular2", "exp_range"})
end

local function check_scale_mode(who, name, value) return options.choice(who, name, value, {"cycle", "iterations"}) end

--- optim.lr_scheduler.CyclicLR(optimizer, base_lr, max_lr [, {step_size_up = 2000, step_size_down = step_size_up, mode
--- = "triangular", gamma = 1, scale_fn, scale_mode = "cycle", cycle_momentum = true, base_momentum = 0.8, max_momentum
--- = 0.9, last_epoch}]): from base_lr up to max_lr and back (Smith, "Cyclical Learning Rates for Training Neural
--- Networks", 2017). mode "triangular2" halves the height each cycle, "exp_range" multiplies it by gamma each step;
--- scale_fn(x) gives the factor of the height instead, x being the cycle's number from 1, or the step's from 0 with
--- scale_mode = "iterations". Rates and momenta may be lists of one for each group.
local CyclicLR = class.define("CyclicLR", Scheduler)
CyclicLR.settings = {
  {"max_lrs", "numbers"}, {"total_size", "number"}, {"step_ratio", "number"}, {"mode", check_mode}, {"gamma", "number"},
  {"scale_mode", check_scale_mode}, {"cycle_momentum", "boolean"}, {"base_momentums", "numbers", true},
  {"max_momentums", "numbers", true},
}

function CyclicLR:init(optimizer, base_lr, max_lr, opts)
  local who = "CyclicLR"
  Scheduler.optimizer_of(who, optimizer)
  local base_lrs = Scheduler.for_groups(who, "base_lr", base_lr, optimizer, "number")
  self.max_lrs = Scheduler.for_groups(who, "max_lr", max_lr, optimizer, "number")
  opts = Scheduler.options(who, opts, {
    step_size_up = {"count", 2000}, step_size_down = {"count"}, mode = {"string", "triangular"}, gamma = {"number", 1},
    scale_fn = {"function"}, scale_mode = {"string", "cycle"}, cycle_momentum = {"boolean", true},
    base_momentum = {"any", 0.8}, max_momentum = {"any", 0.9},
  }, "step_size_up")
  self.mode = check_mode(who, "mode", opts.mode)
  check_scale_mode(who, "scale_mode", opts.scale_mode)
  self.total_size = opts.step_size_up + (opts.step_size_down or opts.step_size_up)
  self.step_ratio, self.gamma, self.scale_fn = opts.step_size_up / self.total_size, opts.gamma, opts.scale_fn
  self.scale_mode = opts.scale_fn and opts.scale_mode or modes[self.mode][1]
  start_momentum(self, optimizer, opts)
  for i, group in ipairs(optimizer.param_groups) do
    if opts.last_epoch < 0 then group.lr = base_lrs[i] end
  end
  self:start(optimizer, opts.last_epoch)
  self.base_lrs = base_lrs
end

function CyclicLR:next_lr(group, base, i)
  local t = self.last_epoch
  local cycle = math.floor(1 + t / self.total_size)
  local x = 1 + t / self.total_size - cycle
  local height = x <= self.step_ratio and x / self.step_ratio or (x - 1) / (self.step_ratio - 1)
  local at = self.scale_mode == "cycle" and cycle or t
  local scale = self.scale_fn and options.arg("CyclicLR", "what scale_fn returns", self.scale_fn(at), "number")
    or modes[self.mode][2](self, at)
  if self.cycle_momentum then
    local high = self:of_group("max_momentums", i)
    set_momentum(group, high - (high - self:of_group("base_momentums", i)) * height * scale)
  end
  return base + (self:of_group("max_lrs", i) - base) * height * scale
end

-- ---- OneCycleLR

local anneal = {
  cos = function(from, to, part) return to + (from - to) / 2 * (math.cos(math.pi * part) + 1) end,
  linear = function(from, to, part) return (to - from) * part + from end,
}

local function check_strategy(who, name, value) return options.choice(who, name, value, {"cos", "linear"}) end

-- Each phase ends at a step, and goes from one of these to another.
local ends = {"initial_lr", "max_lr", "min_lr", "max_momentum", "base_momentum"}

local function check_phases(who, name, phases)
  if #options.arg(who, name, phases, "table") == 0 then fail("%s: %s is empty", who, name) end
  for i, phase in ipairs(phases) do
    local here = ("%s[%d]"):format(name, i)
    options.arg(who, here, phase, "table")
    options.arg(who, here .. ".end_step", phase.end_step, "number")
    for _, key in ipairs {"start_lr", "end_lr", "start_momentum", "end_momentum"} do
      options.choice(who, here .. "." .. key, phase[key], ends)
    end
  end
  return phases
end

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

--- optim.lr_scheduler.OneCycleLR(optimizer, max_lr, {total_steps, or epochs and steps_per_epoch, pct_start = 0.3,
--- anneal_strategy = "cos", cycle_momentum = true, base_momentum = 0.85, max_momentum = 0.95, div_factor = 25,
--- final_div_factor = 1e4, three_phase = false, last_epoch}): from max_lr / div_factor up to max_lr during the first
--- pct_start of the steps, then down to max_lr / div_factor / final_div_factor (Smith and Topin, "Super-Convergence:
--- Very Fast Training of Neural Networks Using Large Learning Rates", 2018); with three_phase down as long as up, and
--- only then to the end. anneal_strategy is "cos" or "linear". Rates and momenta may be lists of one for each group.
local OneCycleLR = class.define("OneCycleLR", Scheduler)
OneCycleLR.settings = {
  {"total_steps", "count"}, {"schedule_phases", check_phases}, {"anneal_func_type", check_strategy},
  {"cycle_momentum", "boolean"}, {"max_lrs", "numbers", true}, {"min_lrs", "numbers", true},
  {"base_momentums", "numbers", true}, {"max_momentums", "numbers", true},
}

function OneCycleLR:init(optimizer, max_lr, opts)
  local who = "OneCycleLR"
  Scheduler.optimizer_of(who, optimizer)
  self.max_lrs = Scheduler.for_groups(who, "max_lr", max_lr, optimizer, "number")
  opts = Scheduler.options(who, opts, {
    total_steps = {"count"}, epochs = {"count"}, steps_per_epoch = {"count"}, pct_start = {"probability", 0.3},
    anneal_strategy = {"string", "cos"}, cycle_momentum = {"boolean", true}, base_momentum = {"any", 0.85},
    max_momentum = {"any", 0.95}, div_factor = {"number", 25}, final_div_factor = {"number", 1e4},
    three_phase = {"boolean", false},
  }, "total_steps")
  if not opts.total_steps and not (opts.epochs and opts.steps_per_epoch) then
    fail("OneCycleLR: how long it is has to be said: {total_steps = …}, or {epochs = …, steps_per_epoch = …}")
  end
  self.total_steps = opts.total_steps or opts.epochs * opts.steps_per_epoch
  self.schedule_phases = phases_of(self.total_steps, opts.pct_start, opts.three_phase)
  self.anneal_func_type = check_strategy(who, "anneal_strategy", opts.anneal_strategy)
  start_momentum(self, optimizer, opts)
  self.min_lrs = {}
  for i, group in ipairs(optimizer.param_groups) do
    local initial = self.max_lrs[i] / opts.div_factor
    self.min_lrs[i] = initial / opts.final_div_factor
    if opts.last_epoch < 0 then group.initial_lr = initial end
  end
  self:start(optimizer, opts.last_epoch)
end

function OneCycleLR:next_lr(group, base, i)
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
end

function OneCycleLR:update(epoch)
  if not epoch and self.last_epoch >= self.total_steps then
    fail("OneCycleLR:step: the schedule ends after %d steps", self.total_steps)
  end
  Scheduler.update(self, epoch)
end

return {CyclicLR = CyclicLR, OneCycleLR = OneCycleLR}

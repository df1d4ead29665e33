--- Schedules that multiply the present rate, in each epoch or in some.
local class = require "luminary.base.class"
local options = require "luminary.base.options"
local Scheduler = require "luminary.optim.lr_scheduler.scheduler"
local fail = options.fail

local factors = {}

-- A factor from 0 to 1; above 0 if `positive`.
local function check_factor(who, name, value, positive)
  if value > 1 or value < 0 or positive and value == 0 then
    fail("%s: %s has to be %s 0 and at most 1, got %.14g", who, name, positive and "above" or "at least", value)
  end
  return value
end

--- optim.lr_scheduler.StepLR(optimizer, step_size [, {gamma = 0.1, last_epoch}]): times gamma every step_size epochs.
local StepLR = class.define("StepLR", Scheduler)
StepLR.settings = {{"step_size", "count"}, {"gamma", "number"}}
factors.StepLR = StepLR

function StepLR:init(optimizer, step_size, opts)
  self.step_size = options.arg("StepLR", "step_size", step_size, "count")
  opts = Scheduler.options("StepLR", opts, {gamma = {"number", 0.1}}, "gamma")
  self.gamma = opts.gamma
  self:start(optimizer, opts.last_epoch)
end

function StepLR:next_lr(group, _base, _i)
  local epoch = self.last_epoch
  return epoch > 0 and epoch % self.step_size == 0 and group.lr * self.gamma or group.lr
end

function StepLR:closed_form(base) return base * self.gamma ^ math.floor(self.last_epoch / self.step_size) end

-- How often each epoch is among the milestones.
local function check_milestones(who, name, counts)
  for epoch, count in pairs(options.arg(who, name, counts, "table")) do
    options.arg(who, "an epoch of " .. name, epoch, "integer")
    options.arg(who, ("%s[%d]"):format(name, epoch), count, "natural")
  end
  return counts
end

--- optim.lr_scheduler.MultiStepLR(optimizer, milestones [, {gamma = 0.1, last_epoch}]): times gamma at each epoch of
--- the list milestones.
local MultiStepLR = class.define("MultiStepLR", Scheduler)
MultiStepLR.settings = {{"milestones", check_milestones}, {"gamma", "number"}}
factors.MultiStepLR = MultiStepLR

function MultiStepLR:init(optimizer, milestones, opts)
  self.milestones = {}
  for i, epoch in ipairs(options.arg("MultiStepLR", "milestones", milestones, "table")) do
    options.arg("MultiStepLR", ("milestones[%d]"):format(i), epoch, "integer")
    self.milestones[epoch] = (self.milestones[epoch] or 0) + 1
  end
  opts = Scheduler.options("MultiStepLR", opts, {gamma = {"number", 0.1}}, "gamma")
  self.gamma = opts.gamma
  self:start(optimizer, opts.last_epoch)
end

function MultiStepLR:next_lr(group, _base, _i)
  local times = self.milestones[self.last_epoch]
  return times and group.lr * self.gamma ^ times or group.lr
end

function MultiStepLR:closed_form(base)
  local passed = 0
  for epoch, times in pairs(self.milestones) do passed = passed + (epoch <= self.last_epoch and times or 0) end
  return base * self.gamma ^ passed
end

--- optim.lr_scheduler.ConstantLR(optimizer [, {factor = 1 / 3, total_iters = 5, last_epoch}]): times factor until
--- epoch total_iters.
local ConstantLR = class.define("ConstantLR", Scheduler)
ConstantLR.settings = {{"factor", "number"}, {"total_iters", "natural"}}
factors.ConstantLR = ConstantLR

function ConstantLR:init(optimizer, opts)
  opts = Scheduler.options("ConstantLR", opts, {factor = {"number", 1 / 3}, total_iters = {"natural", 5}}, "factor")
  self.factor = check_factor("ConstantLR", "factor", opts.factor)
  self.total_iters = opts.total_iters
  self:start(optimizer, opts.last_epoch)
end

function ConstantLR:next_lr(group, _base, _i)
  if self.last_epoch == 0 then return group.lr * self.factor end
  return self.last_epoch == self.total_iters and group.lr * (1 / self.factor) or group.lr
end

function ConstantLR:closed_form(base)
  return base * (self.factor + (self.last_epoch >= self.total_iters and 1 or 0) * (1 - self.factor))
end

--- optim.lr_scheduler.LinearLR(optimizer [, {start_factor = 1 / 3, end_factor = 1, total_iters = 5, last_epoch}]):
--- times a factor that goes from start_factor to end_factor in equal steps over total_iters epochs. The usual warm-up;
--- SequentialLR goes on from there.
local LinearLR = class.define("LinearLR", Scheduler)
LinearLR.settings = {{"start_factor", "number"}, {"end_factor", "number"}, {"total_iters", "natural"}}
factors.LinearLR = LinearLR

function LinearLR:init(optimizer, opts)
  opts = Scheduler.options("LinearLR", opts, {
    start_factor = {"number", 1 / 3}, end_factor = {"number", 1}, total_iters = {"natural", 5},
  }, "start_factor")
  self.start_factor = check_factor("LinearLR", "start_factor", opts.start_factor, true)
  self.end_factor = check_factor("LinearLR", "end_factor", opts.end_factor)
  self.total_iters = opts.total_iters
  self:start(optimizer, opts.last_epoch)
end

function LinearLR:next_lr(group, _base, _i)
  local t, rise = self.last_epoch, self.end_factor - self.start_factor
  if t == 0 then return group.lr * self.start_factor end
  if self.initial or t > self.total_iters then return group.lr end
  return group.lr * (1 + rise / (self.total_iters * self.start_factor + (t - 1) * rise))
end

function LinearLR:closed_form(base)
  local part = self.total_iters == 0 and 1 or math.min(self.total_iters, self.last_epoch) / self.total_iters
  return base * (self.start_factor + (self.end_factor - self.start_factor) * part)
end

--- optim.lr_scheduler.ExponentialLR(optimizer, gamma [, {last_epoch}]): times gamma every epoch.
local ExponentialLR = class.define("ExponentialLR", Scheduler)
ExponentialLR.settings = {{"gamma", "number"}}
factors.ExponentialLR = ExponentialLR

function ExponentialLR:init(optimizer, gamma, opts)
  self.gamma = options.arg("ExponentialLR", "gamma", gamma, "number")
  self:start(optimizer, Scheduler.options("ExponentialLR", opts, {}, "last_epoch").last_epoch)
end

function ExponentialLR:next_lr(group, _base, _i) return self.initial and group.lr or group.lr * self.gamma end

function ExponentialLR:closed_form(base) return base * self.gamma ^ self.last_epoch end

--- optim.lr_scheduler.PolynomialLR(optimizer [, {total_iters = 5, power = 1, last_epoch}]): to 0 over total_iters
--- epochs, as (1 - epoch / total_iters) ^ power.
local PolynomialLR = class.define("PolynomialLR", Scheduler)
PolynomialLR.settings = {{"total_iters", "count"}, {"power", "number"}}
factors.PolynomialLR = PolynomialLR

function PolynomialLR:init(optimizer, opts)
  opts = Scheduler.options("PolynomialLR", opts, {total_iters = {"count", 5}, power = {"number", 1}}, "total_iters")
  self.total_iters, self.power = opts.total_iters, opts.power
  self:start(optimizer, opts.last_epoch)
end

function PolynomialLR:next_lr(group, _base, _i)
  local t, n = self.last_epoch, self.total_iters
  if self.initial or t > n then return group.lr end
  return group.lr * ((1 - t / n) / (1 - (t - 1) / n)) ^ self.power
end

function PolynomialLR:closed_form(base)
  return base * (1 - math.min(self.total_iters, self.last_epoch) / self.total_iters) ^ self.power
end

-- ---- functions of one's own

local function check_lambdas(who, lambdas, optimizer)
  Scheduler.optimizer_of(who, optimizer)
  local kind = type(lambdas)
  local mt = (kind == "table" or kind == "userdata") and debug.getmetatable(lambdas)
  if type(mt) == "table" and rawget(mt, "__call") then
    local callable = lambdas
    lambdas = function(epoch) return callable(epoch) end
  end
  return Scheduler.for_groups(who, "lr_lambda", lambdas, optimizer, "function")
end

-- The factor that group i's function gives for this epoch.
local function factor_of(self, i)
  local factor = self:of_group("lr_lambdas", i)(self.last_epoch)
  return options.arg(self.__name, "what lr_lambda returns", factor, "number")
end

--- optim.lr_scheduler.LambdaLR(optimizer, lr_lambda [, {last_epoch}]): the rate each group began with, times
--- lr_lambda(epoch), with epochs from 0: a function, or a list of one for each group. state_dict holds no functions.
local LambdaLR = class.define("LambdaLR", Scheduler)
factors.LambdaLR = LambdaLR

function LambdaLR:init(optimizer, lr_lambda, opts)
  self.lr_lambdas = check_lambdas(self.__name, lr_lambda, optimizer)
  self:start(optimizer, Scheduler.options(self.__name, opts, {}, "last_epoch").last_epoch)
end

function LambdaLR:next_lr(_group, base, i) return base * factor_of(self, i) end

--- optim.lr_scheduler.MultiplicativeLR(optimizer, lr_lambda [, {last_epoch}]): the present rate times
--- lr_lambda(epoch), from epoch 1 on.
local MultiplicativeLR = class.define("MultiplicativeLR", Scheduler)
MultiplicativeLR.init = LambdaLR.init
factors.MultiplicativeLR = MultiplicativeLR

function MultiplicativeLR:next_lr(group, _base, i) return self.initial and group.lr or group.lr * factor_of(self, i) end

return factors

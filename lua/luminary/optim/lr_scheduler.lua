--- optim.lr_scheduler: learning rates that change by epoch (or step): scheduler:step() after opt:step().
--- As PyTorch's, each computes the next rate from the present one, so that a rate changed by hand stays.
local class = require "luminary.class"
local options = require "luminary.options"

local Scheduler = class.root("LRScheduler")
Scheduler.__makes = "optimizer"

-- The rate group i starts from. Groups may be added while the schedule runs.
local function base_lr(self, i, group)
  if not self.base_lrs[i] then
    group.initial_lr = group.initial_lr or group.lr
    self.base_lrs[i] = group.initial_lr
  end
  return self.base_lrs[i]
end

-- Gives every group the rate next_lr(group, base) says, for the epoch after this one.
local function advance(self)
  self.last_epoch = self.last_epoch + 1
  for i, group in ipairs(self.optimizer.param_groups) do
    group.lr = self:next_lr(group, base_lr(self, i, group))
    self.last_lr[i] = group.lr
  end
end

function Scheduler:start(optimizer)
  if not class.record(optimizer) or type(optimizer.param_groups) ~= "table" then
    options.fail("%s: an optimizer wanted, got %s", self.__name, options.describe(optimizer))
  end
  self.optimizer, self.last_epoch, self.base_lrs, self.last_lr = optimizer, 0, {}, {}
  for i, group in ipairs(optimizer.param_groups) do
    base_lr(self, i, group)
    self.last_lr[i] = group.lr
  end
end

--- The next epoch's rates.
function Scheduler:step(...)
  if select("#", ...) > 0 then options.fail("%s:step: takes no arguments; it counts the epochs itself", self.__name) end
  advance(self)
end

--- The rates of all groups, as last set.
function Scheduler:get_last_lr()
  local rates = {}
  for i, lr in ipairs(self.last_lr) do rates[i] = lr end
  return rates
end

--- Position and settings: plain values, for lm.save.
function Scheduler:state_dict()
  local dict = {last_epoch = self.last_epoch, base_lrs = {}, last_lr = self:get_last_lr()}
  for i, lr in ipairs(self.base_lrs) do dict.base_lrs[i] = lr end
  for _, key in ipairs(self.settings) do dict[key] = self[key] end
  return dict
end

--- Goes on from a state_dict. The optimizer's own state_dict brings its present rates.
function Scheduler:load_state_dict(dict)
  local who = self.__name .. ":load_state_dict"
  options.arg(who, "the state_dict", dict, "table")
  local groups = #self.optimizer.param_groups
  for _, key in ipairs {"base_lrs", "last_lr"} do
    if #options.arg(who, key, dict[key], "table") ~= groups then
      options.fail("%s: %s has %d rates, the optimizer %d groups", who, key, #dict[key], groups)
    end
    for i, lr in ipairs(dict[key]) do options.arg(who, key .. "[" .. i .. "]", lr, "number") end
  end
  local last_epoch = options.arg(who, "last_epoch", dict.last_epoch, "natural")
  for _, key in ipairs(self.settings) do options.arg(who, key, dict[key], "number") end
  self.last_epoch = last_epoch
  for _, key in ipairs(self.settings) do self[key] = dict[key] end
  for i = 1, groups do self.base_lrs[i], self.last_lr[i] = dict.base_lrs[i], dict.last_lr[i] end
end

--- StepLR(optimizer, step_size [, {gamma = 0.1}]): times gamma every step_size epochs.
local StepLR = class.define("StepLR", Scheduler)
StepLR.settings = {"step_size", "gamma"}

function StepLR:init(optimizer, step_size, opts)
  self.step_size = options.arg("StepLR", "step_size", step_size, "count")
  self.gamma = options.check("StepLR", opts, {gamma = {"number", 0.1}}, "gamma").gamma
  self:start(optimizer)
end

function StepLR:next_lr(group, _base)
  return self.last_epoch % self.step_size == 0 and group.lr * self.gamma or group.lr
end

--- CosineAnnealingLR(optimizer, T_max [, {eta_min = 0}]): down to eta_min by half a cosine over T_max
--- epochs (Loshchilov and Hutter 2017, without restarts).
local CosineAnnealingLR = class.define("CosineAnnealingLR", Scheduler)
CosineAnnealingLR.settings = {"T_max", "eta_min"}

function CosineAnnealingLR:init(optimizer, T_max, opts)
  self.T_max = options.arg("CosineAnnealingLR", "T_max", T_max, "count")
  self.eta_min = options.check("CosineAnnealingLR", opts, {eta_min = {"number", 0}}, "eta_min").eta_min
  self:start(optimizer)
end

function CosineAnnealingLR:next_lr(group, base)
  local t, T, low = self.last_epoch, self.T_max, self.eta_min
  if (t - 1 - T) % (2 * T) == 0 then -- at the bottom the recursion would divide by 0
    return group.lr + (base - low) * (1 - math.cos(math.pi / T)) / 2
  end
  return (1 + math.cos(math.pi * t / T)) / (1 + math.cos(math.pi * (t - 1) / T)) * (group.lr - low) + low
end

return options.strict("optim.lr_scheduler", {StepLR = StepLR, CosineAnnealingLR = CosineAnnealingLR})

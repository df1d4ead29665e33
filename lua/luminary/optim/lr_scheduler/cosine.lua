--- Half cosines (Loshchilov and Hutter, "SGDR: Stochastic Gradient Descent with Warm Restarts", 2017).
local class = require "luminary.base.class"
local options = require "luminary.base.options"
local Scheduler = require "luminary.optim.lr_scheduler.scheduler"

--- optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max [, {eta_min = 0, last_epoch}]): down to eta_min by half a
--- cosine over T_max epochs, and up again.
local CosineAnnealingLR = class.define("CosineAnnealingLR", Scheduler)
CosineAnnealingLR.settings = {{"T_max", "count"}, {"eta_min", "number"}}

function CosineAnnealingLR:init(optimizer, T_max, opts)
  self.T_max = options.arg("CosineAnnealingLR", "T_max", T_max, "count")
  opts = Scheduler.options("CosineAnnealingLR", opts, {eta_min = {"number", 0}}, "eta_min")
  self.eta_min = opts.eta_min
  self:start(optimizer, opts.last_epoch)
end

function CosineAnnealingLR:next_lr(group, base, _i)
  local t, T, low = self.last_epoch, self.T_max, self.eta_min
  if self.initial then return group.lr end
  if (t - 1 - T) % (2 * T) == 0 then -- at the bottom the recursion would divide by 0
    return group.lr + (base - low) * (1 - math.cos(math.pi / T)) / 2
  end
  return (1 + math.cos(math.pi * t / T)) / (1 + math.cos(math.pi * (t - 1) / T)) * (group.lr - low) + low
end

function CosineAnnealingLR:closed_form(base)
  return self.eta_min + (base - self.eta_min) * (1 + math.cos(math.pi * self.last_epoch / self.T_max)) / 2
end

--- optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, T_0 [, {T_mult = 1, eta_min = 0, last_epoch}]): down to
--- eta_min over T_0 epochs, back at once, then over T_0 * T_mult epochs, and so on. schedule:step(epoch) goes to that
--- epoch, counted from 0, which may be fractional: step(epoch + batch / batches) after each batch.
local WarmRestarts = class.define("CosineAnnealingWarmRestarts", Scheduler)
WarmRestarts.settings = {{"T_0", "count"}, {"T_i", "number"}, {"T_mult", "count"}, {"eta_min", "number"},
  {"T_cur", "number"}}

function WarmRestarts:init(optimizer, T_0, opts)
  local who = "CosineAnnealingWarmRestarts"
  self.T_0 = options.arg(who, "T_0", T_0, "count")
  opts = Scheduler.options(who, opts, {T_mult = {"count", 1}, eta_min = {"number", 0}}, "T_mult")
  self.T_i, self.T_mult, self.eta_min, self.T_cur = self.T_0, opts.T_mult, opts.eta_min, opts.last_epoch
  self:start(optimizer, opts.last_epoch)
end

function WarmRestarts:next_lr(_group, base, _i)
  return self.eta_min + (base - self.eta_min) * (1 + math.cos(math.pi * self.T_cur / self.T_i)) / 2
end

-- Which cycle an epoch lies in, how far, and how long that is.
local function place(self, epoch)
  local T_0, T_mult = self.T_0, self.T_mult
  if epoch < T_0 then return epoch, T_0 end
  if T_mult == 1 then return epoch % T_0, self.T_i end
  local n = math.floor(math.log(epoch / T_0 * (T_mult - 1) + 1) / math.log(T_mult))
  return epoch - T_0 * (T_mult ^ n - 1) / (T_mult - 1), T_0 * T_mult ^ n
end

function WarmRestarts:step(epoch)
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

return {CosineAnnealingLR = CosineAnnealingLR, CosineAnnealingWarmRestarts = WarmRestarts}

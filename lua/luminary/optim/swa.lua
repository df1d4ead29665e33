--- Averages a model's weights over training steps, and defines the schedule for it.
---
---   local ema = optim.AveragedModel(net, {decay = 0.999})
---   for … do …; opt:step(); ema:update(net) end
---   ema:eval()(x)                          -- the averaged model
local core = require "luminary.core"
local class = require "luminary.base.class"
local lists = require "luminary.base.lists"
local options = require "luminary.base.options"
local signature = require "luminary.base.signature"
local in_mode = require "luminary.nn.in_mode"
local Module = require "luminary.nn.module"
local Scheduler = require "luminary.optim.lr_scheduler.scheduler"
local fail = options.fail

-- ---- AveragedModel

-- Returns the module inside wrappers, which have the same parameters.
local function unwrapped(model)
  while class.record(model).class.transparent do
    model = model.module or fail("AveragedModel: average the parts of %s, such as those of pipe.stages", model.__name)
  end
  return model
end

--- optim.AveragedModel(…): Implements averaged models, for stochastic weight averaging (SWA) and exponential moving
--- averages (EMA). Izmailov et al., "Averaging Weights Leads to Wider Optima and Better Generalization", 2018.
local AveragedModel = class.define("AveragedModel", Module)

AveragedModel.init = signature.of([[AveragedModel(model: module, {device, avg_fn: function, multi_avg_fn: function,
  use_buffers = false, decay: probability})]], function(self, model, opts)
  model = unwrapped(model)
  signature.assign(self, opts)
  if (self.decay and 1 or 0) + (self.avg_fn and 1 or 0) + (self.multi_avg_fn and 1 or 0) > 1 then
    fail("AveragedModel: decay, avg_fn and multi_avg_fn are mutually exclusive")
  end
  self.module = model:clone()
  if self.device then self.module:to(core.device(self.device)) end
  self:register_buffer("n_averaged", core.tensor(0, {dtype = "int64"}))
end)

function AveragedModel:forward(...) return self.module(...) end

-- Sets average to average + weight * (value - average), in place.
local function approach(average, value, weight)
  if not core.is_floating_point(average) then
    local a, v = average:double(), value:double()
    average:copy_(a + (v - a) * weight)
  else
    average:lerp_(value, weight)
  end
end

local function average(self, averages, values, n)
  if self.multi_avg_fn then return self.multi_avg_fn(averages, values, n) end
  for i, old in ipairs(averages) do
    if self.avg_fn then
      old:copy_(options.arg("AveragedModel", "the result of avg_fn", self.avg_fn(old, values[i], n), "tensor"))
    else
      approach(old, values[i], self.decay and 1 - self.decay or 1 / (n + 1))
    end
  end
end

--- Updates the average with the model's parameters. The first call copies them.
AveragedModel.update = signature.of("AveragedModel:update(model: module)", function(self, model)
  local who = "AveragedModel:update"
  model = unwrapped(model)
  local averages, values = self.module:parameters(), model:parameters()
  local buffers, model_buffers = self.module:buffers(), model:buffers()
  if #averages ~= #values or #buffers ~= #model_buffers then
    fail("%s: the model has %d parameters and %d buffers, the averaged model %d and %d", who, #values, #model_buffers,
      #averages, #buffers)
  end
  core.no_grad(function()
    for _, pair in ipairs {{averages, values}, {buffers, model_buffers}} do
      for i, t in ipairs(pair[1]) do
        local value = pair[2][i]:detach()
        if t.shape ~= value.shape then
          fail("%s: the model has %s where the averaged model has %s", who, options.describe(value),
            options.describe(t))
        end
        pair[1][i], pair[2][i] = t:detach(), value:to(t.device)
      end
    end
    if self.use_buffers then
      lists.append(averages, buffers)
      lists.append(values, model_buffers)
    end
    local n = self.n_averaged:item()
    if n == 0 then
      for i, t in ipairs(averages) do t:copy_(values[i]) end
    else
      average(self, averages, values, n)
    end
    for i, t in ipairs(self.use_buffers and {} or buffers) do t:copy_(model_buffers[i]) end
    self.n_averaged:add_(1)
  end)
end)

AveragedModel.update_parameters = AveragedModel.update

-- ---- update_bn

--- Recomputes the running statistics of a model's batch norm layers by one pass over a loader.
local update_bn = signature.of("update_bn(loader, model: module, {device})", function(loader, model, opts)
  local who, norms = "update_bn", {}
  local is_list = type(loader) == "table" and not getmetatable(loader)
  if not is_list and not class.has(loader, "iter") then
    options.expected(who, "a loader or a list of batches", loader)
  end
  for _, module in ipairs(model:modules()) do
    if class.has(module, "reset_running_stats") and module.track_running_stats then
      norms[#norms + 1] = {module = module, momentum = module.momentum}
    end
  end
  if #norms == 0 then return end
  local function pass()
    for _, norm in ipairs(norms) do
      norm.module:reset_running_stats()
      norm.module.momentum = false
    end
    local function feed(batch)
      if type(batch) == "table" then batch = batch[1] end
      options.arg(who, "a batch", batch, "tensor")
      model(opts.device and batch:to(opts.device) or batch)
    end
    if is_list then
      for _, batch in ipairs(loader) do feed(batch) end
    else
      for batch in loader:iter() do feed(batch) end
    end
  end
  local ok, problem = pcall(in_mode, model, true, pass)
  for _, norm in ipairs(norms) do norm.module.momentum = norm.momentum end
  if not ok then error(problem, 0) end
end)

-- ---- SWALR

local anneal = {linear = function(t) return t end, cos = function(t) return (1 - math.cos(math.pi * t)) / 2 end}

local list, schedule = Scheduler.entries()

schedule [[SWALR(swa_lr, {anneal_epochs: natural = 10, anneal_strategy = "cos" | "linear"})]] {
  settings = [[(anneal_epochs: natural, anneal_strategy: "cos" | "linear", swa_lrs: number[]?)]],
  help = "Anneals the learning rate of each group to a fixed value, then keeps it.",
  after_init = function(self, optimizer)
    self.swa_lrs = Scheduler.for_groups("SWALR", "swa_lr", self.swa_lr, optimizer, "number")
  end,
  next_lr = function(self, group, _, i)
    local step, n = self.step_count - 1, math.max(1, self.anneal_epochs)
    if self.anneal_epochs == 0 then step = math.max(1, step) end
    local function part(k) return anneal[self.anneal_strategy](math.max(0, math.min(1, k / n))) end
    local before, now, last = part(step - 1), part(step), self:of_group("swa_lrs", i)
    local from = before == 1 and last or (group.lr - before * last) / (1 - before)
    return last * now + from * (1 - now)
  end,
}
local SWALR = Scheduler.classes(list, "optim.").SWALR

--- optim.swa_utils: Provides utilities for stochastic weight averaging: AveragedModel, SWALR and update_bn.

return {
  AveragedModel = AveragedModel, SWALR = SWALR,
  swa_utils = options.strict("optim.swa_utils", {AveragedModel = AveragedModel, SWALR = SWALR, update_bn = update_bn}),
}

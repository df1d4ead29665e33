--- Defines metrics of numbers: their mean, sum, maximum and minimum, and the mean and sum of the last few.
local core = require "luminary.core"
local options = require "luminary.base.options"
local labels = require "luminary.metrics.labels"
local metric = require "luminary.metrics.metric"

local ops = core.ops

local STRATEGIES = {"warn", "ignore", "error", "disable"}

options.kind("nan_strategy", '"warn", "ignore", "error", "disable" or number', function(who, name, v)
  return type(v) == "number" and v or options.choice(who, name, v, STRATEGIES)
end)

local nan_option = 'nan_strategy: nan_strategy = "warn"'

-- Returns a number or a tensor as float64.
local function values_of(self, name, v)
  if type(v) == "number" then return core.tensor(v, {dtype = "float64", device = self.device}) end
  if not core.is_tensor(v) then options.must_be(self.__name, name, "a number or a tensor", v) end
  return labels.double(v:detach()):to(self.device)
end

-- Returns the values, and weights of the same shape, with NaNs removed or replaced.
local function clean(self, value, weight)
  value = values_of(self, "value", value)
  weight = weight ~= nil and values_of(self, "weight", weight):expand_as(value) or ops.ones_like(value)
  local strategy = self.nan_strategy
  if strategy == "disable" then return value, weight end
  local nans = ops.logical_or(value:isnan(), weight:isnan())
  if not nans:any():item() then return value, weight end
  if strategy == "error" then options.fail("%s: value must not be NaN", self.__name) end
  if type(strategy) == "number" then return ops.where(nans, strategy, value), ops.where(nans, 1, weight) end
  if strategy == "warn" then core.warn(("%s: NaNs are left out of the value"):format(self.__name)) end
  return value:masked_select(nans:logical_not()), weight:masked_select(nans:logical_not())
end

local function number(x) return core.tensor(x, {dtype = "float64"}) end

-- Adds a metric of all values: its state's initial value and reduction, and reduce(values, weights).
local function add_aggregation(name, help, start, reduction, reduce)
  metric.define(name, {
    help = "Aggregates a stream of values into " .. help, takes = "value", options = nan_option,
    make = function(self) self:add_state("value", number(start), reduction) end,
    update = function(self, value)
      value = clean(self, value)
      if value:numel() > 0 then self.value = reduce(self.value, value) end
    end,
    compute = function(self) return labels.result(self.value) end,
  })
end

add_aggregation("SumMetric", "their sum.", 0, "sum", function(sum, value) return sum + value:sum() end)
add_aggregation("MaxMetric", "their maximum.", -math.huge, "max", function(largest, value)
  return ops.maximum(largest, value:amax())
end)
add_aggregation("MinMetric", "their minimum.", math.huge, "min", function(smallest, value)
  return ops.minimum(smallest, value:amin())
end)

metric.define("MeanMetric", {
  help = "Aggregates a stream of values into their mean, which may be weighted.",
  takes = "value, weight: any?", options = nan_option,
  states = function() return {sum = {}, weight = {}} end,
  update = function(self, value, weight)
    value, weight = clean(self, value, weight)
    self.sum, self.weight = self.sum + (value * weight):sum(), self.weight + weight:sum()
  end,
  compute = function(self) return labels.result(self.sum / self.weight) end,
})

-- Adds a metric of the last `window` updates, whose sums and weights it stores cyclically.
local function add_running(name, help, finish)
  metric.define(name, {
    help = help, takes = "value", options = "window: count = 5, " .. nan_option,
    states = function(self) return {sums = {self.window}, weights = {self.window}} end,
    update = function(self, value)
      local weight
      value, weight = clean(self, value)
      local slot = self.update_count % self.window + 1
      self.sums, self.weights = self.sums:clone(), self.weights:clone()
      self.sums[slot], self.weights[slot] = (value * weight):sum(), weight:sum()
    end,
    compute = function(self) return labels.result(finish(self.sums:sum(), self.weights:sum())) end,
  })
end

add_running("RunningMean", "Aggregates a stream of values into the mean of the last `window` updates.",
  function(sum, weight) return sum / weight end)
add_running("RunningSum", "Aggregates a stream of values into the sum of the last `window` updates.",
  function(sum) return sum end)

--- lm.metrics.MetricCollection(metrics, {prefix = "", postfix = ""}): Updates several metrics together.
local class = require "luminary.base.class"
local options = require "luminary.base.options"
local signature = require "luminary.base.signature"
local Metric = require("luminary.metrics.metric").Metric

local Collection = class.root "MetricCollection"
Collection.differs_by_rank = true -- checkpoints hold the state of each rank
Collection.__hint = "its metrics are in the table collection.metrics"

Collection.init = signature.of([[MetricCollection(metrics: list, {prefix = "", postfix = ""})]],
  function(self, metrics, opts)
  self.metrics, self.prefix, self.postfix = {}, opts.prefix, opts.postfix
  for key, metric in pairs(metrics) do
    local name = type(key) == "string" and key or options.record(metric) and metric.__name
    if not (name and options.record(metric) and class.is(metric, Metric)) then
      options.must_be("MetricCollection", ("metrics[%s]"):format(options.describe(key)), "a metric", metric)
    end
    if self.metrics[name] then
      options.fail("MetricCollection: there are two metrics '%s'; name them: {first = …, second = …}", name)
    end
    self.metrics[name] = metric
  end
  self.names = options.sorted_keys(self.metrics) -- all ranks compute in the same order
end)

-- Calls a method of each metric, and returns the results by name with prefix and postfix.
local function call_each_metric(self, method, ...)
  local results = {}
  for _, name in ipairs(self.names) do
    local metric = self.metrics[name]
    results[self.prefix .. name .. self.postfix] = metric[method](metric, ...)
  end
  return results
end

--- Adds a batch to each metric.
function Collection:update(...) call_each_metric(self, "update", ...) end

--- collection:forward(…): Adds a batch to each metric; returns a table of the values of this batch alone.
--- collection(…) calls it.
function Collection:forward(...) return call_each_metric(self, "forward", ...) end

--- Returns a table of the metrics' values, by name.
function Collection:compute() return call_each_metric(self, "compute") end

--- Resets each metric.
function Collection:reset() call_each_metric(self, "reset") end

--- Moves the states of each metric to a device. Returns the collection.
function Collection:to(device)
  call_each_metric(self, "to", device)
  return self
end

--- Returns the states of each metric, by name, for a checkpoint.
function Collection:state_dict()
  local out = {}
  for name, metric in pairs(self.metrics) do out[name] = metric:state_dict() end
  return out
end

--- Sets the states to those of a state_dict.
function Collection:load_state_dict(state)
  options.arg("MetricCollection:load_state_dict", "state", state, "table")
  for name, metric in pairs(self.metrics) do metric:load_state_dict(state[name]) end
end

function Collection:repr() return ("MetricCollection(%s)"):format(table.concat(self.names, ", ")) end

return Collection

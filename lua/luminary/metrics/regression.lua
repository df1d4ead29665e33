--- Defines metrics of regression, from sums in float64, with torchmetrics' values.
local core = require "luminary.core"
local options = require "luminary.base.options"
local labels = require "luminary.metrics.labels"
local metric = require "luminary.metrics.metric"
local shapes = require "luminary.tensor.shapes"

local ops = core.ops
local double, result = labels.double, labels.result

local function sizes_of(self) return self.num_outputs == 1 and {} or {self.num_outputs} end

-- Returns preds and target in float64; [N] for one output, else [N, outputs].
local function pair_of(self, preds, target, outputs)
  labels.check_same(self.__name, preds, target)
  preds, target = double(preds), double(target)
  if outputs == 1 then return preds:reshape(-1), target:reshape(-1) end
  return shapes.check(self.__name, "preds", preds, {"N", outputs}), target
end

-- Adds a mean over samples of error(preds - target), for each output.
local function add_mean(name, call, help, option, error_of, finish)
  metric.define(name, {
    help = help, call = call, options = option .. "num_outputs: count = 1",
    states = function(self) return {sum = sizes_of(self), total = {}} end,
    update = function(self, preds, target)
      preds, target = pair_of(self, preds, target, self.num_outputs)
      self.sum, self.total = self.sum + error_of(preds - target):sum(1), self.total + target.shape[1]
    end,
    compute = function(self) return result(finish(self, self.sum / self.total)) end,
  })
end

add_mean("MeanSquaredError", "mean_squared_error",
  "Computes the mean squared error, MSE, or its square root, RMSE.", "squared = true, ", function(x) return x * x end,
  function(self, mean) return self.squared and mean or ops.sqrt(mean) end)
add_mean("MeanAbsoluteError", "mean_absolute_error", "Computes the mean absolute error, MAE.", "", ops.abs,
  function(_, mean) return mean end)

-- ---- R2

-- The largest sum of squares that counts as 0, as in torchmetrics; NaN does not.
local TINY = 1e-4

local function scores_of(self)
  local tss = self.sum_of_squares - self.sum_of_targets * self.sum_of_targets / self.total
  local has_residual, has_variance = self.residual:abs():le(TINY):logical_not(), tss:abs():le(TINY):logical_not()
  local ratio = 1 - self.residual / ops.where(has_variance, tss, 1)
  return ops.where(has_residual, ops.where(has_variance, ratio, 0), 1), tss
end

metric.define("R2Score", {
  help = "Computes the coefficient of determination R²: 1 - residual sum of squares / total sum of squares.",
  call = "r2_score",
  options = [[adjusted: natural = 0, multioutput = "uniform_average" | "raw_values" | "variance_weighted",
    num_outputs: count = 1]],
  from_inputs = function(given, preds) given.num_outputs = preds.ndim == 2 and preds.shape[2] or 1 end,
  states = function(self)
    local sizes = sizes_of(self)
    return {sum_of_squares = sizes, sum_of_targets = sizes, residual = sizes, total = {}}
  end,
  update = function(self, preds, target)
    preds, target = pair_of(self, preds, target, self.num_outputs)
    local residual = target - preds
    self.sum_of_squares = self.sum_of_squares + (target * target):sum(1)
    self.sum_of_targets = self.sum_of_targets + target:sum(1)
    self.residual = self.residual + (residual * residual):sum(1)
    self.total = self.total + target.shape[1]
  end,
  compute = function(self)
    local n = self.total:item()
    if n < 2 then options.fail("R2Score: at least 2 samples are required, got %d", n) end
    local r2, tss = scores_of(self)
    if self.multioutput == "uniform_average" then r2 = r2:mean() end
    if self.multioutput == "variance_weighted" then r2 = (tss / tss:sum() * r2):sum() end
    if self.adjusted >= n - 1 then
      core.warn(("R2Score: adjusted = %d requires more than %d samples, got %d; the score is not adjusted"):format(
        self.adjusted, self.adjusted + 1, n))
    elseif self.adjusted > 0 then
      r2 = 1 - (1 - r2) * ((n - 1) / (n - self.adjusted - 1))
    end
    return result(r2)
  end,
})

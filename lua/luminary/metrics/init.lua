--- lm.metrics: Computes metrics of models: accuracy, F1, AUROC, mean IoU, BLEU and others, as torchmetrics does.
local metric = require "luminary.metrics.metric"
local options = require "luminary.base.options"

-- These files add their metrics to the lists of metric.lua.
for _, part in ipairs {"classification", "auroc", "regression", "text", "aggregation"} do
  require("luminary.metrics." .. part)
end
local metrics = metric.classes
metrics.MetricCollection = require "luminary.metrics.collection"
metrics.evaluate = require "luminary.metrics.evaluate"
--- lm.metrics.functional: Computes metrics as functions of all predictions and targets at once.
metrics.functional = options.strict("metrics.functional", metric.functions)

return options.strict("metrics", metrics)

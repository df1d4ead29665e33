--- lm.metrics: Computes metrics of models: accuracy, F1, AUROC, mean IoU, BLEU and others, as torchmetrics does.
local options = require "luminary.base.options"

local metrics = {
  Metric = require("luminary.metrics.metric").Metric,
  MetricCollection = require "luminary.metrics.collection",
  evaluate = require "luminary.metrics.evaluate",
}
--- lm.metrics.functional: Computes metrics as functions of all predictions and targets at once.
local functional = {}
for _, part in ipairs {"classification", "auroc", "regression", "text", "aggregation"} do
  local classes, functions = unpack(require("luminary.metrics." .. part))
  for name, class in pairs(classes) do metrics[name] = class end
  for name, f in pairs(functions) do functional[name] = f end
end
metrics.functional = options.strict("metrics.functional", functional)

return options.strict("metrics", metrics)

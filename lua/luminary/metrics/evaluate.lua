--- lm.metrics.evaluate(model, loader, metric): Computes a model's metric over the batches of a loader.
local core = require "luminary.core"
local class = require "luminary.base.class"
local options = require "luminary.base.options"
local signature = require "luminary.base.signature"
local in_mode = require "luminary.nn.in_mode"

-- Returns the device of a model, and the dtype to which its floating inputs are converted; both nil without parameters.
local function device_and_dtype(model)
  local first = model:parameters()[1]
  for _, p in ipairs(model:parameters()) do
    if core.is_floating_point(p) then return p.device, p.dtype end
  end
  return first and first.device, nil
end

--- Resets a metric, adds the model's predictions for all batches (input, target) of a loader in evaluation mode, and
--- returns the metric's value.
return signature.of("evaluate(model: module, loader, metric)", function(model, loader, metric)
  if not class.has(loader, "iter") then options.expected("evaluate", "a loader", loader) end
  if not class.has(metric, "reset", "update", "compute") then options.expected("evaluate", "a metric", metric) end
  local device, dtype = device_and_dtype(model)
  local function moved_to_device(name, t)
    options.arg("evaluate", name, t, "tensor")
    return device and t:to(device) or t
  end
  metric:reset()
  in_mode(model, false, function()
    for input, target in loader:iter() do
      input = moved_to_device("a batch's input", input)
      if dtype and core.is_floating_point(input) then input = input:to(dtype) end
      metric:update(model(input), moved_to_device("a batch's target", target))
    end
  end)
  return metric:compute()
end)

local core = require "luminary.core"
local records = require "luminary.nn.module_fields"

--- Returns f(…), run without gradients and with a net in training or evaluation mode; then restores each module's mode,
--- also after an error.
return function(net, training, f, ...)
  local modes = {}
  for _, module in ipairs(net:modules()) do modes[module] = module.training end
  net:train(training)
  local ok, result = pcall(core.no_grad, f, ...)
  for module, mode in pairs(modes) do records.of(module).values.training = mode end
  if not ok then error(result, 0) end
  return result
end

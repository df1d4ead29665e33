local core = require "luminary.core"
local options = require "luminary.base.options"
local records = require "luminary.nn.module_fields"

--- Returns f(…), run without gradients and with a net in training or evaluation mode; then restores each module's mode,
--- also after an error.
return function(net, training, f, ...)
  local modes = {}
  for _, module in ipairs(net:modules()) do modes[module] = module.training end
  return options.restoring(function()
    for module, mode in pairs(modes) do records.of(module).values.training = mode end
  end, function(...)
    net:train(training)
    return core.no_grad(f, ...)
  end, ...)
end

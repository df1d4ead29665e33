--- lm.autograd: Provides custom differentiable functions, derivatives, checkpointing and checks of gradients.
local core = require "luminary.core"
local options = require "luminary.base.options"

-- ---- functions that are written in C
--- lm.autograd.detect_anomaly(f, ...): Calls f(...) with anomaly detection: a NaN in backward is an error that names
--- the forward's op.
--- lm.autograd.set_detect_anomaly(on): Turns anomaly detection on or off in this thread. Returns the previous
--- value.
--- lm.autograd.is_anomaly_enabled(): Returns whether anomaly detection is on.

local autograd = {
  Function = require("luminary.autograd.function").Function,
  grad = core.grad, backward = core.backward,
  detect_anomaly = core.detect_anomaly, set_detect_anomaly = core.set_detect_anomaly,
  is_anomaly_enabled = core.is_anomaly_enabled,
}
for _, file in ipairs {"checkpoint", "gradcheck"} do
  for name, f in pairs(require("luminary.autograd." .. file)) do autograd[name] = f end
end

autograd.functional = require "luminary.autograd.functional"

return options.strict("autograd", autograd)

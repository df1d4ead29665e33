--- lm.autograd: functions with a backward of one's own, and checks of gradients against differences.
local core = require "luminary.core"
local options = require "luminary.base.options"

-- ---- functions that are written in C
--- lm.autograd.detect_anomaly(f, ...): f(...), within which a NaN that backward makes is an error that names the op and
--- the line of the script that called it, as other errors of backward do then. Forward and backward both must be
--- within. Slow. Returns what f returns.
--- lm.autograd.set_detect_anomaly(on): the same from here on, in this thread. Returns what was before.
--- lm.autograd.is_anomaly_enabled(): whether backward looks for NaN now.

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

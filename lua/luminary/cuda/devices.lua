--- Resolves the device for which a function of lm.cuda is called.
local core = require "luminary.core"
local options = require "luminary.base.options"

local devices = {}
local fail = options.fail

--- Returns the name of a CUDA device, from a name, a number or nil (the current one).
function devices.gpu(who, device)
  if core.device_count("cuda") == 0 then fail("%s: %s", who, core.device_why_none("cuda")) end
  if device == nil then return core.device_current("cuda") end
  local name = core.device(device)
  if not name:find("^cuda:") then fail("%s: device must be a CUDA device, got %s", who, name) end
  return name
end

--- Returns the name of a CUDA device, or of a CPU device, whose streams work synchronously: programs with streams run
--- anywhere if they name their device.
function devices.any(who, device)
  local name = type(device) == "string" and device:find("^cpu") and core.device(device)
  return name or devices.gpu(who, device)
end

return devices

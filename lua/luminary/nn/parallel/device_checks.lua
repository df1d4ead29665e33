--- Checks devices, and tensors that are moved between them.
local core = require "luminary.core"
local options = require "luminary.base.options"
local fail = options.fail

local checks = {}

local BUFFER_SIZE = 10 * 2 ^ 20 -- default bytes in one copy

--- Returns a list of devices with full names.
function checks.devices(who, list)
  options.list(who, "devices", options.arg(who, "devices", list, "table"))
  if #list == 0 then fail("%s: devices must not be empty; pass at least one, such as 'cpu:0'", who) end
  local names = {}
  for i, device in ipairs(list) do names[i] = core.device(device) end
  return names
end

--- Returns the number of bytes to copy at once.
function checks.bytes_of(who, buffer_size)
  return buffer_size == nil and BUFFER_SIZE or options.arg(who, "buffer_size", buffer_size, "count")
end

return checks

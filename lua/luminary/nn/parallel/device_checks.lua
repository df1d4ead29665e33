--- Checks of what is moved between devices, and of the devices.
local core = require "luminary.core"
local options = require "luminary.base.options"
local fail = options.fail

local checks = {}

local BUFFER_SIZE = 10 * 2 ^ 20 -- bytes that travel at once

--- A list of devices by their full names.
function checks.devices(who, list)
  options.list(who, "devices", options.arg(who, "devices", list, "table"))
  if #list == 0 then fail("%s: devices must not be empty; pass at least one, such as 'cpu:0'", who) end
  local names = {}
  for i, device in ipairs(list) do names[i] = core.device(device) end
  return names
end

--- How many bytes travel at once.
function checks.bytes_of(who, buffer_size)
  return buffer_size == nil and BUFFER_SIZE or options.arg(who, "buffer_size", buffer_size, "count")
end

--- The list, if all of it are tensors.
function checks.tensors(who, list)
  options.arg(who, "tensors", list, "table")
  for i, t in ipairs(list) do options.arg(who, "tensors[" .. i .. "]", t, "tensor") end
  return list
end

return checks

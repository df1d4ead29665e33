--- lm.autocast: Runs the core's autocast; for "cuda" on a machine without a GPU, warns and calls f without autocast.
-- The ops it casts: field `autocast` of the entries in src/op/entries/families; `luminary ops` lists them.
local core = require "luminary.core"

local find = string.find

-- Returns the index of f and the options "device_type" and "enabled", which precede it by position or in a table.
local function read_options(...)
  local device, enabled
  for i = 1, select("#", ...) do
    local v = select(i, ...)
    if type(v) == "function" then return i, device, enabled end
    if type(v) == "table" then
      device, enabled = device or v.device_type or v.device, v.enabled
    elseif i == 1 then
      device = v
    elseif i == 3 then
      enabled = v
    end
  end
end

local function call(f, ...) return f(...) end

return function(...)
  local at, device, enabled = read_options(...)
  if type(device) ~= "string" or not find(device, "^cuda") or core.device_count "cuda" > 0 then
    return core.autocast(...)
  end
  if enabled ~= false then core.warn "autocast: no CUDA device is available; autocast of \"cuda\" is disabled" end
  return call(select(at, ...))
end

--- Gets and sets the states of the default generators of all devices that this process uses, by name: "cpu", "cuda" for
--- the current CUDA device, "cuda:3" for others.
local core = require "luminary.core"
local options = require "luminary.base.options"

local random_states = {}

-- Calls each(name, device) for each device.
local function each_device(each)
  each("cpu", "cpu")
  local count = core.device_count "cuda"
  if count == 0 then return end
  local current = tostring(core.device "cuda")
  each("cuda", current)
  for i = 0, count - 1 do
    local device = "cuda:" .. i
    if device ~= current and core.memory_reserved(device) > 0 then each(device, device) end
  end
end

function random_states.get()
  local states = {}
  each_device(function(name, device) states[name] = core.get_rng_state(device) end)
  return states
end

--- Sets the states of a table by device; ignores devices that this process does not use.
function random_states.set(states)
  if not options.is_plain(states) or states.cpu == nil then
    options.must_be("set_rng_state", "states", "a table by device, with 'cpu'", states)
  end
  each_device(function(name, device)
    if states[name] ~= nil then core.set_rng_state(states[name], device) end
  end)
end

return random_states

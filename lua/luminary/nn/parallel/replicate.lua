--- nn.parallel.replicate(module, devices [, detach]): Returns a list with a copy of the module for each device.
local core = require "luminary.core"
local options = require "luminary.base.options"
local comm = require "luminary.nn.parallel.comm"
local Module = require "luminary.nn.module"
local records = require "luminary.nn.module_fields"

-- Copies `original` and its children; `there` maps its tensors to the copies' tensors.
local function copy_of(original, there, made)
  return made[original] or records.twin(original, made, function(value)
    return there[value] or Module.is_module(value) and copy_of(value, there, made) or value
  end)
end

local function check_device(who, module, device)
  for _, kind in ipairs {"parameter", "buffer"} do
    for name, t in module["named_" .. kind .. "s"](module) do
      if t.device ~= device then
        options.fail(
          "%s: device mismatch: the %s '%s' is on %s, but the first device is %s; move the module first with "
            .. "module:to(%q)", who, kind, name, t.device, device, device)
      end
    end
  end
end

local function replicate(module, devices, detach, who)
  who = who or "replicate"
  if not Module.is_module(module) then options.expected(who, "a module", module) end
  devices = comm.devices(who, devices)
  check_device(who, module, devices[1])
  local replicas, others = {module}, {unpack(devices, 2)}
  if #others == 0 then return replicas end
  for _, each in ipairs(module:modules()) do records.check_sized(who, each) end

  local params, buffers = module:parameters(), module:buffers()
  local function send(list) return comm.broadcast_coalesced(list, others) end
  local params_there = detach and core.no_grad(send, params) or send(params)
  local buffers_there = core.no_grad(send, buffers)
  for d = 1, #others do
    local there = {}
    for i, p in ipairs(params) do there[p] = params_there[d][i] end
    for i, t in ipairs(buffers) do there[t] = buffers_there[d][i] end
    replicas[d + 1] = copy_of(module, there, {})
  end
  return replicas
end

return replicate

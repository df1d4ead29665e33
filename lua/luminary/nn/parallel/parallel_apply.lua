--- nn.parallel.parallel_apply(modules, inputs [, options [, devices]]): Calls modules on several devices, each with its
--- own inputs.
local core = require "luminary.core"
local options = require "luminary.base.options"
local Module = require "luminary.nn.module"
local pack = options.pack

-- Calls f() with the device as the current one of its kind; "cpu" always runs directly.
local function on_device(device, f)
  if not device or device:find("^cpu") then return f() end
  return core.with_device(device, f)
end

local apply = {}

--- Calls calls[k] on devices[k]; returns a list of their results, packed. An error names the device.
function apply.run(who, calls, devices)
  local results = {}
  for k, call in ipairs(calls) do
    local device = devices[k]
    results[k] = pack(pcall(on_device, device, call))
    if not results[k][1] then
      local problem = results[k][2]
      if type(problem) ~= "string" then error(problem, 0) end
      error(("%s: replica %d%s: %s"):format(who, k, device and " on " .. device or "", problem), 0)
    end
    table.remove(results[k], 1)
    results[k].n = results[k].n - 1
  end
  return results
end

-- Checks that a list has one value for each module.
local function beside(who, name, list, modules)
  options.arg(who, name, list, "table")
  if #list ~= #modules then
    options.fail("%s: %d modules, but %d %s; pass one for each module", who, #modules, #list, name)
  end
end

function apply.parallel_apply(modules, inputs, kwargs, devices)
  local who = "parallel_apply"
  options.arg(who, "modules", modules, "table")
  beside(who, "inputs", inputs, modules)
  if kwargs ~= nil then beside(who, "options", kwargs, modules) end
  if devices ~= nil then beside(who, "devices", devices, modules) end
  local names, calls = {}, {}
  for k, module in ipairs(modules) do
    if type(module) ~= "function" and not Module.is_module(module) then
      options.must_be(who, ("modules[%d]"):format(k), "a module or a function", module)
    end
    local given = inputs[k]
    local args = options.is_plain(given) and given or {given}
    local n = args.n or #args
    local more = kwargs and options.arg(who, "options[" .. k .. "]", kwargs[k], "table")
    if more and next(more) ~= nil then
      args = {unpack(args, 1, n)}
      n = n + 1
      args[n] = more
    end
    names[k] = devices and core.device(devices[k])
    calls[k] = function() return module(unpack(args, 1, n)) end
  end
  local results = apply.run(who, calls, names)
  for k, result in ipairs(results) do
    if result.n < 2 then results[k] = result[1] end
  end
  return results
end

return apply

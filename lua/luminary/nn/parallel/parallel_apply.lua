--- nn.parallel.parallel_apply(modules, inputs [, options [, devices]]): modules[k] called with inputs[k] and, where
--- given, the trailing table options[k], on devices[k]. Gives the list of their results, of several as a list each.
---
--- The calls are made one after another; on CUDA they only give work to the devices, which go on at the same time.
local core = require "luminary.core"
local options = require "luminary.options"

local function pack(...) return {n = select("#", ...), ...} end

-- f() with the device as the current one of its kind; "cpu" is always the first.
local function on_device(device, f)
  if not device or device:find("^cpu") then return f() end
  return core.with_device(device, f)
end

local apply = {}

--- calls[k] is what devices[k] does; gives a list of what they return, packed. An error names the device.
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

function apply.parallel_apply(modules, inputs, kwargs, devices)
  local who = "parallel_apply"
  options.arg(who, "modules", modules, "table")
  options.arg(who, "inputs", inputs, "table")
  local names, calls = {}, {}
  for _, list in pairs {inputs = inputs, options = kwargs, devices = devices} do
    if #list ~= #modules then
      options.fail("%s: %d modules, but a list of %d beside them: each needs its own", who, #modules, #list)
    end
  end
  for k, module in ipairs(modules) do
    local given = inputs[k]
    local args = type(given) == "table" and not getmetatable(given) and given or {given}
    local n = args.n or #args
    local more = kwargs and kwargs[k]
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

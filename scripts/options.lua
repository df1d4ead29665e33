-- The command lines of the examples for several devices: options as --name value or --name=value, checked against
-- the text that --help prints and a table of defaults, which gives the kind of each.
--
--   local options = dofile(folder .. "options.lua")(USAGE, {devices = false, epochs = 10})
--
-- `devices` becomes a list of names: those given, separated by commas, else all CUDA devices, else the CPU. `dtype` is
-- one that a network can train in.
local lm = require "luminary"

local dtypes = { float32 = true, float64 = true, bfloat16 = true, float16 = true }
-- The least value of each option that is a number; all but `lr` are integers.
local least = { epochs = 1, ["max-steps"] = 1, ["batch-size"] = 1, lr = 0, seed = 0 }

return function(usage, options)
  local script = arg[0]:match("[^/]*$")
  local function refuse(...)
    io.stderr:write(script, ": ", string.format(...), "\n", usage)
    os.exit(2, true)
  end

  local i = 1
  while arg[i] do
    local name, value = arg[i]:match("^%-%-([%w-]+)=(.*)$")
    name = name or arg[i]:match("^%-%-([%w-]+)$") or ""
    if name == "help" then
      io.write(usage)
      os.exit(0, true)
    end
    if options[name] == nil then refuse("no option '%s'", arg[i]) end
    if not value then
      i = i + 1
      value = arg[i] or refuse("--%s needs a value", name)
    end
    if least[name] then
      local number = tonumber(value)
      local fits = number and number >= least[name] and number < math.huge and (name == "lr" or number % 1 == 0)
      value = fits and number or refuse("--%s: '%s' is no number from %d on", name, value, least[name])
    end
    options[name] = value
    i = i + 1
  end

  if options.dtype and not dtypes[options.dtype] then
    refuse("--dtype: '%s' is none of float32, float64, bfloat16 and float16", options.dtype)
  end
  if options.devices then
    local list = {}
    for name in options.devices:gmatch("[^,]+") do
      local known, device = pcall(lm.core.device, name)
      if not known then refuse("--devices: %s", (tostring(device):gsub("^.*device: ", ""))) end
      list[#list + 1] = device
    end
    options.devices = #list > 0 and list or refuse("--devices names none")
  else
    options.devices = lm.try_all_gpus()
  end
  return options
end

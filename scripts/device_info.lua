-- Prints the GPUs that this process sees, as a table, and all that the driver reports of them:
--
--   luajit scripts/device_info.lua                       all about every GPU
--   luajit scripts/device_info.lua --devices cuda:0      about one

local lm = require "luminary"

local USAGE = [[
usage: luajit device_info.lua [options]

  --devices DEVICES such as cuda:0,cuda:1                    (all CUDA devices, else cpu)
]]

local devices = require "luminary.cli.script_options"(USAGE).devices
local GIB = 2 ^ 30

-- Prints a line for each property, sorted by name.
local function print_properties(device)
  local facts, names = lm.cuda.get_device_properties(device), {}
  for name in pairs(facts) do names[#names + 1] = name end
  table.sort(names)
  for _, name in ipairs(names) do print(("  %-48s %s"):format(name, tostring(facts[name]))) end
end

local function is_cuda(device) return device:find("^cuda") ~= nil end

print(lm.cuda.devices())
for _, device in ipairs(devices) do
  print(("\n%s: %.3f GiB allocated, %.3f GiB reserved"):format(device, lm.memory_allocated(device) / GIB,
    lm.memory_reserved(device) / GIB))
  if is_cuda(device) then
    print_properties(device)
    for _, other in ipairs(devices) do
      if other ~= device and is_cuda(other) then
        print(("  reads the memory of %s directly: %s"):format(other, lm.cuda.can_device_access_peer(device, other)))
      end
    end
  end
end

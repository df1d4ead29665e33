-- What GPUs this process sees, and what the driver tells of them:
--
--   luajit scripts/device_info.lua                       the table of devices
--   luajit scripts/device_info.lua --devices cuda:0      all about some of them; "all" for every one

local lm = require "luminary"

local USAGE = "usage: luajit device_info.lua [--devices NAME[,NAME...] | --devices all]"

local wanted
for i = 1, #arg, 2 do
  if arg[i] == "--help" then
    print(USAGE)
    os.exit(0, true)
  elseif arg[i] ~= "--devices" or not arg[i + 1] then
    io.stderr:write("device_info.lua: what is '", arg[i], "'?\n", USAGE, "\n")
    os.exit(2, true)
  end
  wanted = arg[i + 1]
end

print(lm.cuda.devices())
if not wanted then os.exit(0, true) end

local names = {}
if wanted == "all" then names = lm.try_all_gpus() end
if wanted ~= "all" then
  for name in wanted:gmatch("[^,]+") do names[#names + 1] = lm.core.device(name) end
end

local GIB = 2 ^ 30
for _, name in ipairs(names) do
  print(("\n%s: %.3f GiB allocated, %.3f GiB reserved"):format(name, lm.memory_allocated(name) / GIB,
    lm.memory_reserved(name) / GIB))
  if name:find("^cuda") then
    local facts, keys = lm.cuda.get_device_properties(name), {}
    for key in pairs(facts) do keys[#keys + 1] = key end
    table.sort(keys)
    for _, key in ipairs(keys) do print(("  %-48s %s"):format(key, tostring(facts[key]))) end
    for _, other in ipairs(names) do
      if other ~= name and other:find("^cuda") then
        print(("  reads the memory of %s directly: %s"):format(other, lm.cuda.can_device_access_peer(name, other)))
      end
    end
  end
end

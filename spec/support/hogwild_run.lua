-- scripts/hogwild.lua in a program that outlives it, for scripts/dev/chaos/hogwild: what its end left open here.
--   luajit hogwild_run.lua <scripts/hogwild.lua> options…
local lm = require "luminary"
local open_files = dofile(arg[0]:match "^.*/" .. "open_files.lua")
local script = arg[1]
_G.arg = {[0] = script, unpack(arg, 2)}

local function descriptors()
  jit.flush()
  for _ = 1, 3 do collectgarbage() end
  return open_files()
end

lm.mp.spawn(function() end, {nprocs = 1}) -- opens what stays open once anything was started
local before = descriptors()
print "begun"
io.stdout:flush()
local ok, problem = pcall(dofile, script)
print(ok and "went on to the end" or tostring(problem))
local after, which
for _ = 1, 20 do -- a stale slot of the stack may hold a tensor for a while
  after, which = descriptors()
  if after <= before then break end
end
print(("descriptors: %d before, %d after: %s"):format(before, after, which))
os.exit(ok and 0 or 1, true)

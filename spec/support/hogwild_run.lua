-- scripts/hogwild.lua in a program that outlives it, for scripts/dev/chaos_hogwild: what its end left open here.
--   luajit hogwild_run.lua <scripts/hogwild.lua> options…
local lm = require "luminary"
local script = arg[1]
_G.arg = {[0] = script, unpack(arg, 2)}

local pid = io.open("/proc/self/stat"):read("*n")
local function descriptors()
  jit.flush()
  for _ = 1, 3 do collectgarbage() end
  local pipe, list = io.popen(("ls -l /proc/%d/fd"):format(pid)), {}
  for line in pipe:lines() do list[#list + 1] = line:match "%d+ %-> .*" end
  pipe:close()
  return list
end

lm.mp.spawn(function() end, {nprocs = 1}) -- what stays open once anything was started
local before = descriptors()
print "begun"
io.stdout:flush()
local ok, problem = pcall(dofile, script)
print(ok and "went on to the end" or tostring(problem))
local after
for _ = 1, 20 do -- a stale slot of the stack may hold a tensor for a while, and popen its pipe's other end
  after = descriptors()
  if #after <= #before then break end
end
print(("descriptors: %d before, %d after: %s"):format(#before, #after, table.concat(after, ", ")))
os.exit(ok and 0 or 1, true)

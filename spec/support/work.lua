--- work(f): the instructions of Lua that f() takes, in thousands, and what it returns: a measure that no load of the
--- machine changes. Machine code is off meanwhile, since it counts nothing.
local STEP = 1000

return function(f)
  local count, compiles = 0, jit.status()
  jit.off()
  jit.flush()
  debug.sethook(function() count = count + 1 end, "", STEP)
  local result = {pcall(f)}
  debug.sethook()
  if compiles then jit.on() end
  if not result[1] then error(result[2], 0) end
  return count, unpack(result, 2)
end

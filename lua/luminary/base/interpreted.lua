--- interpreted(f): Returns f, which LuaJIT then does not compile: for recursions in loops that call C, whose stitched
--- traces LuaJIT 2.1.0-beta3 compiles wrongly at times (spec/support/compiled_walks.lua). In a finalizer, where a
--- module may be loaded, jit.off is an error: then returns a function that calls f, and tries again at each call.
local jit = require "jit"

return function(f)
  local is_off = pcall(jit.off, assert(f)) -- nil is the compiler itself
  if is_off then return f end
  return function(...)
    is_off = is_off or pcall(jit.off, f)
    return f(...)
  end
end

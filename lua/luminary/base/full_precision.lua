--- Runs functions made of several ops in float32 for half-precision tensors, outside of autocast.
local core = require "luminary.core"

local low = {float16 = true, bfloat16 = true}
local full_precision = {}

-- Returns the arguments with half-precision tensors in float32, the dtype that results are rounded to (nil if other
-- floating tensors are among the arguments), and whether any was converted.
local function widened(...)
  local args, dtype, is_mixed = {...}, nil, false
  for i = 1, select("#", ...) do
    local x = args[i]
    if core.is_tensor(x) and core.is_floating_point(x) then
      is_mixed = is_mixed or not low[x.dtype] or dtype ~= nil and dtype ~= x.dtype
      if low[x.dtype] then dtype, args[i] = x.dtype, core.methods.to(x, "float32") end
    end
  end
  return args, not is_mixed and dtype, dtype ~= nil
end

--- Returns x, in float32 if it is a tensor of half precision.
function full_precision.wide(x) return core.is_tensor(x) and low[x.dtype] and core.methods.to(x, "float32") or x end

--- Calls f outside of autocast, after converting 16-bit tensors among its arguments to float32.
function full_precision.call(f, ...)
  return core.autocast({enabled = false}, f, unpack((widened(...)), 1, select("#", ...)))
end

--- Returns f as a function that computes half-precision tensors in float32 and rounds its result, a tensor, once. Under
--- autocast each op decides.
function full_precision.rounds_once(f)
  return function(...)
    if core.is_autocast_enabled() then return f(...) end
    local args, dtype, any = widened(...)
    if not any then return f(...) end
    local y = f(unpack(args, 1, select("#", ...)))
    return dtype and core.methods.to(y, dtype) or y
  end
end

return full_precision

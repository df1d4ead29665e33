--- Runs functions made of several ops in float32 under autocast, where PyTorch computes them in float32 too.
local core = require "luminary.core"

local low = {float16 = true, bfloat16 = true}

--- Calls f outside of autocast, after converting 16-bit tensors among its arguments to float32.
return function(f, ...)
  local args, n = {...}, select("#", ...)
  for i = 1, n do
    if core.is_tensor(args[i]) and low[args[i].dtype] then args[i] = core.methods.to(args[i], "float32") end
  end
  return core.autocast({enabled = false}, f, unpack(args, 1, n))
end

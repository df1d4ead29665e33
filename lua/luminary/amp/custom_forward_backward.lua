--- Wraps custom functions for autocast, as torch.amp.custom_fwd and custom_bwd do:
---
---   local Product = lm.autograd.Function:extend "Product"
---   Product.forward = lm.amp.custom_fwd(function(ctx, a, b) … end)     -- {cast_inputs = "float32"}: see below
---   Product.backward = lm.amp.custom_bwd(function(ctx, g) … end)
---
--- A backward pass runs without autocast; custom_bwd runs this one in the mode that its forward ran in.
local core = require "luminary.core"
local signature = require "luminary.base.signature"

local custom = {}

local FLOATS = {float16 = true, bfloat16 = true, float32 = true}

local function first_device(...)
  for i = 1, select("#", ...) do
    local v = select(i, ...)
    if core.is_tensor(v) then return v.device end
  end
end

local function without() return {enabled = false} end

--- Wraps the forward of a custom Function that is called under autocast; custom_bwd wraps its backward.
custom.custom_fwd = signature.of("custom_fwd(forward: function, {cast_inputs: string})", function(forward, opts)
  local wanted = opts.cast_inputs and core.dtype(opts.cast_inputs)
  return function(ctx, ...)
    local device = first_device(...)
    local dtype = device and core.get_autocast_dtype(device)
    ctx.autocast_mode = dtype and not wanted and {device = device, dtype = dtype} or without()
    if not dtype or not wanted then return forward(ctx, ...) end
    local inputs, n = {...}, select("#", ...)
    for i = 1, n do
      local v = inputs[i]
      if core.is_tensor(v) and FLOATS[v.dtype] and v.dtype ~= wanted then inputs[i] = v:to(wanted) end
    end
    return core.autocast(ctx.autocast_mode, forward, ctx, unpack(inputs, 1, n))
  end
end)

--- Wraps the backward of a custom Function, so that it runs in the autocast mode of its forward.
custom.custom_bwd = signature.of("custom_bwd(backward: function)", function(backward)
  return function(ctx, ...) return core.autocast(ctx.autocast_mode or without(), backward, ctx, ...) end
end)

return custom

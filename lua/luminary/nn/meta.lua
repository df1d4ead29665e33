--- Nets whose parameters have shapes but no memory yet, of which nothing is drawn: what lm.models compares a file's
--- weights with before anything of the net's size is allocated.
local core = require "luminary.core"

local ops = core.ops
local meta = {}
local planning = false

--- f(…) with layers that it makes so.
function meta.of(f, ...)
  local before = planning
  planning = true
  local ok, result = pcall(f, ...)
  planning = before
  if not ok then error(result, 0) end
  return result
end

--- Whether that is continuing: then nothing is to be drawn.
function meta.is_on() return planning end

--- An uninitialized tensor for a parameter; while a net is made on meta one whose elements are all the same one.
function meta.empty(size, how)
  if planning then return ops.empty({}, how):expand(size) end
  return ops.empty(size, how)
end

--- The same of a buffer filled with a value.
function meta.filled(size, value, how)
  if planning then return ops.full({}, value, how):expand(size) end
  return ops.full(size, value, how)
end

--- Allocates uninitialized memory on device for the parameters of a meta net, in dtype or else in their own, and moves
--- its buffers there. A module with reset_buffers fills its buffers itself. Returns the net.
function meta.allocate(net, dtype, device)
  local function allocate(t, how) core.set_data(t, ops.empty(t.shape, how)) end
  for _, p in ipairs(net:parameters()) do allocate(p, {dtype = dtype or p.dtype, device = device}) end
  for _, module in ipairs(net:modules()) do
    local buffers = module:buffers {recurse = false}
    if module.reset_buffers then
      for _, b in ipairs(buffers) do allocate(b, {dtype = b.dtype, device = b.device}) end
      module:reset_buffers()
    else
      for _, b in ipairs(buffers) do core.set_data(b, b:contiguous()) end
    end
  end
  return net:to {dtype = dtype, device = device}
end

--- The bytes of a net's parameters and buffers, or of the parameters alone, floating ones of this dtype, or of their
--- own.
function meta.bytes(net, dtype, parameters_only)
  local sum = 0
  for _, list in ipairs {net:parameters(), parameters_only and {} or net:buffers()} do
    for _, t in ipairs(list) do
      local wanted = t:is_floating_point() and dtype or t.dtype
      sum = sum + t:numel() * ops.empty({}, {dtype = wanted}):element_size()
    end
  end
  return sum
end

return meta

--- Makes nets whose parameters have shapes but no memory and no values. lm.models compares the weights of a file with
--- such a net before it allocates memory.
local core = require "luminary.core"
local lists = require "luminary.base.lists"
local options = require "luminary.base.options"

local ops = core.ops
local meta = {}
local planning = false

-- Maps a parameter without memory to the function that fills it, the last of those that its module and model called.
local draws = setmetatable({}, {__mode = "k"})

--- Calls f(…) with meta on, so that the layers f makes have no memory.
function meta.of(f, ...)
  local before = planning
  planning = true
  return options.restoring(function() planning = before end, f, ...)
end

--- Returns true during a call of meta.of; parameters are then not initialized.
function meta.is_on() return planning end

--- Calls draw(t), which fills t and refers to it by its argument alone; on meta, meta.materialize does so. Returns t.
function meta.fill(t, draw)
  if planning then draws[t] = draw else core.no_grad(draw, t) end
  return t
end

--- Returns an uninitialized tensor for a parameter; on meta its elements share one element of memory.
function meta.empty(size, how)
  if planning then return ops.empty({}, how):expand(size) end
  return ops.empty(size, how)
end

--- Returns a tensor filled with a value, for a buffer; on meta its elements share one element of memory.
function meta.filled(size, value, how)
  if planning then return ops.full({}, value, how):expand(size) end
  return ops.full(size, value, how)
end

--- Allocates uninitialized memory on `device` for the parameters of a meta net, in dtype or else in their own, and
--- moves its buffers there. A module with reset_buffers fills its own buffers. Returns the net.
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

--- Returns the bytes of a net's parameters and buffers, or of the parameters alone; floating ones count as dtype, if it
--- is given.
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

--- Returns true for a parameter of a module that nn.utils.init_empty_weights made: its elements share memory.
function meta.is_empty(t)
  for d = 1, t.ndim do
    if t:size(d) > 1 and t:stride(d) > 0 then return false end
  end
  return t:numel() > 1
end

--- Allocates and initializes the modules' parameters that have no memory, as nn.init filled them, or else by the
--- modules' reset_parameters.
function meta.materialize(who, modules)
  local fresh, filled = {}, {}
  for _, m in ipairs(modules) do
    local own = m:parameters {recurse = false}
    local empty = lists.filter(own, meta.is_empty)
    if #empty > 0 then
      lists.append(filled, lists.filter(own, function(p) -- one of a single element has memory
        return draws[p] and (p:numel() == 1 or meta.is_empty(p))
      end))
    end
    for _, p in ipairs(empty) do
      local memory = ops.empty(p.shape, {dtype = p.dtype, device = p.device})
      core.set_data(p, memory)
      memory:free() -- the parameter's is left, which fully_shard replaces
    end
    for _, b in ipairs(m:buffers {recurse = false}) do
      if meta.is_empty(b) then core.set_data(b, b:contiguous()) end
    end
    local lacks = lists.find(empty, function(p) return not draws[p] end)
    if lacks and not m.reset_parameters then
      options.fail("%s: %s has parameters without values; define %s:reset_parameters()", who, m.__name, m.__name)
    end
    if lacks then fresh[#fresh + 1] = m end
  end
  for _, m in ipairs(fresh) do m:reset_parameters() end
  for _, p in ipairs(filled) do
    meta.fill(p, draws[p])
    draws[p] = nil
  end
end

return meta

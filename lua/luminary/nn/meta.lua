--- Makes nets whose parameters have shapes but no memory and no values. lm.models compares the weights of a file with
--- such a net before it allocates memory.
local core = require "luminary.core"
local lists = require "luminary.base.lists"
local options = require "luminary.base.options"

local ops = core.ops
local meta = {}
local planning = false -- or "parameters", or "all", which includes buffers
local resetting = false

local function call_while_planning(what, f, ...)
  local before = planning
  planning = what
  return options.restoring(function() planning = before end, f, ...)
end

--- Calls f(…) with meta on, so that the layers f makes have no memory.
function meta.of(f, ...) return call_while_planning("all", f, ...) end

--- Calls f(…) with meta on for parameters alone: a state_dict need not have all buffers.
function meta.without_parameters(f, ...) return call_while_planning("parameters", f, ...) end

--- Returns true during a call of meta.of or meta.without_parameters; parameters are then not initialized.
function meta.is_on() return planning end

--- Returns true during a call of meta.of; buffers are then not initialized.
function meta.skips_buffers() return planning == "all" end

--- Calls draw(t), which fills t and refers to it by its argument alone; for parameters on meta, and buffers in meta.of,
--- meta.materialize does so. Fails if ranks divide t, unless is_constant, which says that all elements become equal.
--- Returns t.
function meta.fill(t, draw, is_constant)
  local place = not (resetting or is_constant) and core.field(t, "placement")
  if place then place:refuse_init() end
  local record = core.field(t, "drawn") -- {draw = the last function that filled t, n = their number}; later false
  if planning == "all" or planning and meta.is_empty(t) then
    core.set_field(t, "drawn", {draw = draw, n = (record and record.n or 0) + 1})
  elseif not (resetting and record == false) then
    if record then record.n = record.n - 1 end
    core.no_grad(draw, t)
  end
  return t
end

--- Returns an uninitialized tensor for a parameter; on meta its elements share one element of memory.
function meta.empty(size, how)
  if planning then return ops.empty({}, how):expand(size) end
  return ops.empty(size, how)
end

--- Returns an uninitialized tensor for a buffer; in meta.of its elements share one element of memory.
function meta.empty_buffer(size, how) return (meta.skips_buffers() and meta.empty or ops.empty)(size, how) end

--- Returns a tensor filled with a value, for a buffer; in meta.of its elements share one element of memory.
function meta.filled(size, value, how)
  if meta.skips_buffers() then return ops.full({}, value, how):expand(size) end
  return ops.full(size, value, how)
end

--- Allocates uninitialized memory on `device` for the parameters of a meta net, in dtype or else in their own, and
--- moves its buffers there; for buffers alone if buffers_only is true. A module with reset_buffers fills its own
--- buffers. Returns the net.
function meta.allocate(net, dtype, device, buffers_only)
  local function allocate(t, how) core.set_data(t, ops.empty(t.shape, how)) end
  local parameters = buffers_only and {} or net:parameters()
  for _, p in ipairs(parameters) do allocate(p, {dtype = dtype or p.dtype, device = device}) end
  for _, module in ipairs(net:modules()) do
    local buffers = module:buffers {recurse = false}
    if module.reset_buffers then
      for _, b in ipairs(buffers) do allocate(b, {dtype = b.dtype, device = b.device}) end
      module:reset_buffers()
    else
      for _, b in ipairs(buffers) do core.set_data(b, b:contiguous()) end
    end
  end
  return buffers_only and net or net:to {dtype = dtype, device = device}
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
    if t:stride(d) > 0 then return false end
  end
  return t.ndim > 0
end

--- Allocates and initializes a module's own parameters that have no memory: by its reset_parameters, then as nn.init
--- filled them if it filled them more often, as the constructor of a model does. shape_of(p) is the shape in which p is
--- initialized, and finish(p) is called then. Children must be before their parents.
function meta.materialize(who, module, shape_of, finish)
  local empty = lists.filter(module:parameters {recurse = false}, meta.is_empty)
  if #empty == 0 then return end
  if lists.find(empty, function(p) return not core.field(p, "drawn") end) and not module.reset_parameters then
    options.fail("%s: %s has parameters without values; define %s:reset_parameters()", who, module.__name,
      module.__name)
  end
  for _, p in ipairs(empty) do
    local memory = ops.empty(shape_of(p), {dtype = p.dtype, device = p.device})
    core.set_data(p, memory)
    memory:free() -- the parameter's is left, which fully_shard replaces
  end
  resetting = true -- leaves parameters as they are that were initialized before, of descendants or tied ones
  options.restoring(function() resetting = false end, module.reset_parameters or function() end, module)
  for _, p in ipairs(empty) do
    local drawn = core.field(p, "drawn")
    if drawn and drawn.n > 0 then core.no_grad(drawn.draw, p) end
    core.set_field(p, "drawn", false)
    finish(p)
  end
end

return meta

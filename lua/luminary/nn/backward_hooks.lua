--- Runs a module's forward between two identity functions that pass gradients to the hooks of
--- module:register_full_backward_hook and register_full_backward_pre_hook.
local core = require "luminary.core"
local options = require "luminary.base.options"
local Function = require("luminary.autograd.function").Function
local pack = options.pack

-- Returns the gradients after a hook returned `changed`; nil leaves them unchanged.
local function replaced(who, grads, changed)
  if changed == nil then return grads end
  if core.is_tensor(changed) then changed = {n = 1, changed} end
  if not options.is_plain(changed) then
    options.must_be(who, "the result of a backward hook", "a list of gradients, a tensor or nil", changed)
  end
  changed.n = grads.n
  return changed
end

-- The identity function, whose backward calls visit(gradients); visit returns the gradients of its inputs.
local Watch = Function:extend("ModuleHooks")

function Watch.forward(ctx, visit, ...)
  ctx.visit = visit
  ctx:set_materialize_grads(false)
  return ...
end

function Watch.backward(ctx, ...)
  local grads = ctx.visit(pack(...))
  return nil, unpack(grads, 1, grads.n)
end

-- Replaces the floating tensors among values by Watch's results.
local function watched(values, visit)
  local positions, tensors = {}, {}
  for i = 1, values.n do
    if core.is_tensor(values[i]) and core.is_floating_point(values[i]) then
      positions[#positions + 1], tensors[#tensors + 1] = i, values[i]
    end
  end
  if #tensors == 0 then return values end
  local out = {n = values.n, unpack(values, 1, values.n)}
  for i, t in ipairs {Watch(visit, unpack(tensors))} do out[positions[i]] = t end
  return out
end

local function any_wants_gradient(values)
  for i = 1, values.n do
    if core.is_tensor(values[i]) and values[i].requires_grad then return true end
  end
  return false
end

return function(module, record, ...)
  local inputs, who = pack(...), module.__name
  if not core.is_grad_enabled() then return module:forward(...) end
  local grad_outputs
  local before, after = record.backward_pre_hooks or {}, record.backward_hooks
  local function run(grads)
    for _, hook in ipairs(after) do grads = replaced(who, grads, hook(module, grads, grad_outputs)) end
    return grads
  end
  local from_inputs = any_wants_gradient(inputs)
  if from_inputs then inputs = watched(inputs, run) end
  local outputs = watched(pack(module:forward(unpack(inputs, 1, inputs.n))), function(grads)
    for _, hook in ipairs(before) do grads = replaced(who, grads, hook(module, grads)) end
    grad_outputs = grads
    if not from_inputs then run {n = inputs.n} end
    return grads
  end)
  return unpack(outputs, 1, outputs.n)
end

--- lm.autograd.functional: Computes Jacobians, Hessians, and their products with vectors, at given inputs.
local core = require "luminary.core"
local options = require "luminary.base.options"
local signature = require "luminary.base.signature"
local func = require "luminary.func"
local check_callable = require("luminary.autograd.function").check_callable

local functional = {}

-- Returns the inputs as a list, true if a single input was passed, and the options.
local function read_inputs(who, inputs, opts)
  local one = core.is_tensor(inputs)
  local list = options.arg(who, "inputs", one and {inputs} or inputs, "tensor[]")
  if #list == 0 then options.fail("%s: expected a tensor or a list of tensors, got none", who) end
  local numbers = {}
  for i = 1, #list do numbers[i] = i end
  return list, one, opts, numbers
end

-- Calls f, without recording a graph unless create_graph is set.
local function call_in_grad_mode(opts, f, ...)
  if opts.create_graph then return f(...) end
  return core.no_grad(f, ...)
end

--- Computes the Jacobian of a function.
functional.jacobian = signature.of("jacobian(f, inputs, {create_graph = false})", function(f, inputs, opts)
  local list, one, how, numbers = read_inputs("jacobian", inputs, opts)
  local out = call_in_grad_mode(how, func.jacobian(f, {argnums = numbers}), unpack(list))
  return one and out[1] or out
end)

--- Computes the Hessian of a scalar function.
functional.hessian = signature.of("hessian(f, inputs, {create_graph = false})", function(f, inputs, opts)
  check_callable("hessian", f)
  local list, one, how, numbers = read_inputs("hessian", inputs, opts)
  local out = call_in_grad_mode(how, func.jacrev(func.grad(f, {argnums = numbers}), {argnums = numbers}), unpack(list))
  return one and out[1][1] or out
end)

--- Computes the dot product of a vector v and the Jacobian of a function.
functional.vjp = signature.of("vjp(f, inputs, v, {create_graph = false})", function(f, inputs, v, opts)
  local list, one, how = read_inputs("vjp", inputs, opts)
  return call_in_grad_mode(how, function()
    local y, back = func.vjp(f, unpack(list))
    if v == nil and y:numel() == 1 then v = core.ops.ones_like(y) end
    local out = {back(v)}
    return y, one and out[1] or out
  end)
end)

--- Computes the dot product of the Jacobian of a function and a vector v.
functional.jvp = signature.of("jvp(f, inputs, v, {create_graph = false})", function(f, inputs, v, opts)
  local list, one, how = read_inputs("jvp", inputs, opts)
  return call_in_grad_mode(how, func._jvp, "jvp", f, list, one and {v} or v, how.create_graph)
end)

--- Computes the dot product of a vector v and the Hessian of a scalar function.
functional.vhp = signature.of("vhp(f, inputs, v, {create_graph = false})", function(f, inputs, v, opts)
  local list, one, how, numbers = read_inputs("vhp", inputs, opts)
  local directions = one and {v} or v
  for i in ipairs(list) do options.arg("vhp", "v", directions[i], "tensor") end
  return call_in_grad_mode(how, function()
    local out, y = func.grad(function(...)
      local grads, value = func.grad_and_value(f, {argnums = numbers})(...)
      local sum = 0
      for i, g in ipairs(grads) do sum = sum + (g * directions[i]):sum() end
      return sum, value:detach()
    end, {argnums = numbers, has_aux = true, create_graph = how.create_graph})(unpack(list))
    return y, one and out[1] or out
  end)
end)
--- Computes the dot product of the Hessian of a scalar function and a vector v; vhp's result, as Hessians are
--- symmetric.
functional.hvp = functional.vhp

return options.strict("autograd.functional", functional)

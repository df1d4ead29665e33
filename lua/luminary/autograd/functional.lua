--- lm.autograd.functional: products with the derivatives of a function at a place. `inputs` is a tensor or a list of
--- them, which f is called with; f gives one tensor. Results are like inputs.
local core = require "luminary.core"
local arguments = require "luminary.base.arguments"
local options = require "luminary.base.options"
local func = require "luminary.func"

local functional = {}

local create_graph = {{"create_graph", "boolean", false}}

-- The inputs as a list, whether they were one, and the options.
local function read(who, inputs, opts)
  local one = core.is_tensor(inputs)
  local list = one and {inputs} or options.arg(who, "inputs", inputs, "table")
  if #list == 0 then options.fail("%s: expected a tensor or a list of tensors, got none", who) end
  local numbers = {}
  for i, x in ipairs(list) do
    options.arg(who, "input " .. i, x, "tensor")
    numbers[i] = i
  end
  return list, one, opts, numbers
end

-- Without create_graph, results that record nothing.
local function call(opts, f, ...)
  if opts.create_graph then return f(...) end
  return core.no_grad(f, ...)
end

--- The Jacobian of f(inputs…), [sizes of the result…, sizes of the input…], for each input.
--- {create_graph = false}: true records it, where the inputs record.
functional.jacobian = arguments.takes("jacobian", create_graph, function(f, inputs, opts)
  local list, one, how, numbers = read("jacobian", inputs, opts)
  local out = call(how, func.jacrev(f, {argnums = numbers}), unpack(list))
  return one and out[1] or out
end)

--- The second derivatives of f(inputs…), which is one number: for one tensor [sizes…, sizes…], for a list a list of
--- lists, [i][j] with respect to inputs i and j. {create_graph = false}
functional.hessian = arguments.takes("hessian", create_graph, function(f, inputs, opts)
  local list, one, how, numbers = read("hessian", inputs, opts)
  local out = {}
  for i in ipairs(list) do
    out[i] = call(how, func.jacrev(func.grad(f, {argnums = i}), {argnums = numbers}), unpack(list))
  end
  return one and out[1][1] or out
end)

--- f(inputs…), and v (of its shape; 1 where that is one number) times its Jacobian. {create_graph = false}
functional.vjp = arguments.takes("vjp", create_graph, function(f, inputs, v, opts)
  local list, one, how = read("vjp", inputs, opts)
  return call(how, function()
    local y, back = func.vjp(f, unpack(list))
    if v == nil and y:numel() == 1 then v = core.ops.ones_like(y) end
    local out = {back(v)}
    return y, one and out[1] or out
  end)
end)

--- f(inputs…), and its Jacobian times v, a tensor or a list like inputs. {create_graph = false}
functional.jvp = arguments.takes("jvp", create_graph, function(f, inputs, v, opts)
  local list, one, how = read("jvp", inputs, opts)
  return call(how, func._jvp, "jvp", f, list, one and {v} or v, how.create_graph)
end)

--- f(inputs…), and v, a tensor or a list like inputs, times the second derivatives of f, which is one number.
--- {create_graph = false}
functional.vhp = arguments.takes("vhp", create_graph, function(f, inputs, v, opts)
  local list, one, how, numbers = read("vhp", inputs, opts)
  local directions = one and {v} or v
  for i in ipairs(list) do options.arg("vhp", "v", directions[i], "tensor") end
  return call(how, function()
    local y
    local out = func.grad(function(...)
      local grads, value = func.grad_and_value(f, {argnums = numbers})(...)
      y = value:detach()
      local sum = 0
      for i, g in ipairs(grads) do sum = sum + (g * directions[i]):sum() end
      return sum
    end, {argnums = numbers, create_graph = how.create_graph})(unpack(list))
    return y, one and out[1] or out
  end)
end)
--- The same as vhp: second derivatives are symmetric.
functional.hvp = functional.vhp

return options.strict("autograd.functional", functional)

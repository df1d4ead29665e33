--- ONNX's ops of training: gradients, and steps of optimizers.
local core = require "luminary.core"
local graph = require "luminary.onnx.graph"

local ops = core.ops
local training = {}

-- Makes an optimizer of step(rate, t, x, g, states..., a): it returns the new x and states. count: number of states.
local function optimizer(count, step)
  return function(n)
    local a = n.a
    return function(list, total)
      local rate, t = list[1], tonumber(list[2]:item())
      local each, out = (total - 2) / (2 + count), {}
      for i = 1, each do
        local function value(k) return list[2 + (k - 1) * each + i] end
        local results = {step(rate, t, a, value(1), value(2) + value(1) * (a.norm_coefficient or 0), value(3), value(4))}
        for k, result in ipairs(results) do out[(k - 1) * each + i] = result end
      end
      if #out <= 4 then return out[1], out[2], out[3], out[4] end
      return out
    end, #n.outputs > 4 and "list results" or "list"
  end
end

training.Adagrad = optimizer(1, function(rate, t, a, x, g, h)
  h = h + g * g
  return x - rate / (1 + t * (a.decay_factor or 0)) * g / (ops.sqrt(h) + (a.epsilon or 1e-6)), h
end)

training.Momentum = optimizer(1, function(rate, t, a, x, g, v)
  v = v * a.alpha + g * (t > 0 and a.beta or 1)
  return x - rate * (a.mode == "nesterov" and g + v * a.alpha or v), v
end)

training.Adam = optimizer(2, function(rate, t, a, x, g, v, h)
  local alpha, beta = a.alpha or 0.9, a.beta or 0.999
  v, h = v * alpha + g * (1 - alpha), h * beta + g * g * (1 - beta)
  if t > 0 then rate = rate * (math.sqrt(1 - beta ^ t) / (1 - alpha ^ t)) end
  x = x - rate * v / (ops.sqrt(h) + (a.epsilon or 1e-6))
  return x * (1 - (a.norm_coefficient_post or 0)), v, h
end)

function training.Gradient(n)
  local names, count = {}, #n.a.xs
  for _, list in ipairs {n.a.xs, n.a.zs or {}} do
    for _, name in ipairs(list) do names[#names + 1] = name end
  end
  local steps, target, slots = n:steps_from(n.a.y, names)
  return function(frame, ...)
    local inner, given, leaves = setmetatable({}, {__index = frame}), {...}, {}
    return core.enable_grad(function()
      for i, slot in ipairs(slots) do
        local x = given[i]
        if i <= count then
          if not x.requires_grad then x = x:detach():requires_grad_(true) end
          leaves[i] = x
        end
        inner[slot] = x
      end
      graph.run(steps, inner)
      local grads = core.grad(inner[target], leaves, {
        grad_outputs = ops.ones_like(inner[target]), create_graph = true, allow_unused = true,
      })
      for i, x in ipairs(leaves) do grads[i] = grads[i] or ops.zeros_like(x) end
      if count <= 4 then return grads[1], grads[2], grads[3], grads[4] end
      return grads
    end)
  end, "frame"
end

return training

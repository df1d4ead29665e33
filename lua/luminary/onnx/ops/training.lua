--- ONNX's ops of training, gradients and steps of optimizers, and those that are not final yet.
local core = require "luminary.core"
local graph = require "luminary.onnx.graph"
local ops, to = core.ops, core.methods.to
local op = {}

-- Returns the entry of an optimizer of step(n, rate, t, x, g, states...), which returns the new x and states. count: of
-- states.
local function optimizer(count, step)
  return {
    how = "list", norm_coefficient = 0, norm_coefficient_post = 0, decay_factor = 0, epsilon = 1e-6,
    function(n, list, total)
      local each, out = (total - 2) / (2 + count), {}
      for i = 1, each do
        local x, g, v, h = list[2 + i], list[2 + each + i], list[2 + 2 * each + i], list[2 + 3 * each + i]
        local results = {step(n, list[1], tonumber(list[2]:item()), x, g + x * n.norm_coefficient, v, h)}
        for k, result in ipairs(results) do out[(k - 1) * each + i] = result end
      end
      if n.results > 4 then return out end
      return out[1], out[2], out[3], out[4]
    end,
  }
end
op.Adagrad = optimizer(1, function(n, rate, t, x, g, h)
  h = h + g * g
  return x - rate / (1 + t * n.decay_factor) * g / (ops.sqrt(h) + n.epsilon), h
end)
op.Momentum = optimizer(1, function(n, rate, t, x, g, v)
  v = v * n.alpha + g * (t > 0 and n.beta or 1)
  return x - rate * (n.mode == "nesterov" and g + v * n.alpha or v), v
end)
op.Adam = optimizer(2, function(n, rate, t, x, g, v, h)
  local alpha, beta = n.alpha or 0.9, n.beta or 0.999
  v, h = v * alpha + g * (1 - alpha), h * beta + g * g * (1 - beta)
  if t > 0 then rate = rate * (math.sqrt(1 - beta ^ t) / (1 - alpha ^ t)) end
  return (x - rate * v / (ops.sqrt(h) + n.epsilon)) * (1 - n.norm_coefficient_post), v, h
end)

op.Gradient = {
  how = "frame", prepare = function(n)
    local names = require("luminary.base.lists").joined(n.xs, n.zs or {})
    n.before, n.target, n.slots = n:steps_from(n.y, names)
  end,
  function(n, frame, ...)
    local inner, given, leaves = setmetatable({}, {__index = frame}), {...}, {}
    return core.enable_grad(function()
      for i, slot in ipairs(n.slots) do
        local x = given[i]
        if i <= #n.xs then
          if not x.requires_grad then x = x:detach():requires_grad_(true) end
          leaves[i] = x
        end
        inner[slot] = x
      end
      graph.run({steps = n.before}, inner)
      local y = inner[n.target]
      local grads = core.grad(y, leaves, {grad_outputs = ops.ones_like(y), create_graph = true, allow_unused = true})
      for i, x in ipairs(leaves) do grads[i] = grads[i] or ops.zeros_like(x) end
      if n.results > 4 then return grads end
      return grads[1], grads[2], grads[3], grads[4]
    end)
  end,
}

op.FlexAttention = {
  how = "frame", dtype_in = "softmax_precision", prepare = function(n)
    n.on_scores, n.on_weights = n.score_mod and n:subgraph "score_mod", n.prob_mod and n:subgraph "prob_mod"
  end,
  function(n, frame, q, k, v)
    local function changed(plan, x)
      if not plan then return x end
      frame[plan.inputs[1]] = x
      graph.run(plan, frame)
      return frame[plan.outputs[1]]
    end
    local groups, wide = q.shape[2] / k.shape[2], n.dtype or (q.dtype == "float64" and "float64" or "float32")
    if groups > 1 then k, v = k:repeat_interleave(groups, 2), v:repeat_interleave(groups, 2) end
    local scores = ops.matmul(to(q, wide), ops.transpose(to(k, wide), 3, 4)) * (n.scale or 1 / math.sqrt(q.shape[4]))
    local weights = changed(n.on_weights, ops.softmax(changed(n.on_scores, scores), -1))
    return to(ops.matmul(weights, to(v, wide)), q.dtype)
  end,
}

return op

--- ONNX's ops that are not final yet.
local core = require "luminary.core"
local graph = require "luminary.onnx.graph"

local ops, to = core.ops, core.methods.to
local preview = {}

function preview.FlexAttention(n)
  local scores_plan = n.a.score_mod and n:subgraph "score_mod"
  local weights_plan = n.a.prob_mod and n:subgraph "prob_mod"
  local scale, precision = n.a.scale, n:dtype(n.a.softmax_precision)
  return function(frame, q, k, v)
    local function changed(plan, x)
      if not plan then return x end
      frame[plan.inputs[1]] = x
      graph.run(plan.steps, frame)
      return frame[plan.outputs[1]]
    end
    local groups = q.shape[2] / k.shape[2]
    if groups > 1 then k, v = k:repeat_interleave(groups, 2), v:repeat_interleave(groups, 2) end
    local wide = precision or (q.dtype == "float64" and "float64" or "float32")
    local scores = ops.matmul(to(q, wide), ops.transpose(to(k, wide), 3, 4)) * (scale or 1 / math.sqrt(q.shape[4]))
    local weights = changed(weights_plan, ops.softmax(changed(scores_plan, scores), -1))
    return to(ops.matmul(weights, to(v, wide)), q.dtype)
  end, "frame"
end

return preview

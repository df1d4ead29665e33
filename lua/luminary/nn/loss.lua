--- Losses as modules. Targets that are classes count from 1.
local core = require "luminary.core"
local options = require "luminary.base.options"
local layer = require "luminary.nn.layer"

local ops = core.ops
local loss = {}

-- A loss over (input, target) whose options are those of its op. Tensors among them (weights of
-- classes) become buffers, so that they move with the module.
local function define(name, op, spec)
  spec.reduction = {"string", "mean"}
  local class = layer.define(name)
  loss[name] = class

  function class:init(opts)
    opts = options.check(name, opts, spec, spec.weight and "weight" or "reduction")
    options.choice(name, "reduction", opts.reduction, {"mean", "sum", "none"})
    self.names = {}
    for key, value in pairs(opts) do
      self.names[#self.names + 1] = key
      if core.is_tensor(value) then self:register_buffer(key, value) else self[key] = value end
    end
  end

  function class:forward(input, target)
    local how = {}
    for _, key in ipairs(self.names) do how[key] = self[key] end
    return op(input, target, how)
  end
end

--- nn.CrossEntropyLoss([{weight, ignore_index, reduction = "mean", label_smoothing = 0}]): of logits
--- [N, C] or [N, C, …] and classes, or probabilities of the logits' shape.
define("CrossEntropyLoss", ops.cross_entropy, {
  weight = {"tensor"}, ignore_index = {"integer", -100}, label_smoothing = {"probability", 0},
})

--- nn.NLLLoss([{weight, ignore_index, reduction = "mean"}]): of log-probabilities and classes.
define("NLLLoss", ops.nll_loss, {weight = {"tensor"}, ignore_index = {"integer", -100}})

--- nn.MSELoss([{reduction = "mean"}]): (input - target)^2
define("MSELoss", ops.mse_loss, {})

--- nn.BCEWithLogitsLoss([{weight, pos_weight, reduction = "mean"}]): binary cross entropy of logits and targets from 0
--- to 1, of one shape.
define("BCEWithLogitsLoss", ops.bce_with_logits, {weight = {"tensor"}, pos_weight = {"tensor"}})

--- nn.BCELoss([{weight, reduction = "mean"}]): of probabilities. An error under autocast on a GPU.
define("BCELoss", ops.binary_cross_entropy, {weight = {"tensor"}})

return loss

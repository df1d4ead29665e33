--- Losses as modules. Targets that are classes count from 1.
local core = require "luminary.core"
local layer = require "luminary.nn.define_layer"

local ops = core.ops
local list, entry = layer.entries()

-- A loss of an input and a target, whose fields are its op's options. Tensors among them (weights of classes) become
-- buffers, so that they move with the module.
local function loss(name)
  return function(row)
    local names = {}
    row.options = row.options or {}
    table.insert(row.options, {"reduction", {"mean", "sum", "none"}, "mean"})
    for i, option in ipairs(row.options) do names[i] = option[1] end
    function row.made(self)
      for _, key in ipairs(names) do
        local value = self[key]
        if core.is_tensor(value) then
          self[key] = nil
          self:register_buffer(key, value)
        end
      end
    end
    local op = row.call
    function row.forward(self, input, target)
      local how = {}
      for _, key in ipairs(names) do how[key] = self[key] end
      return op(input, target, how)
    end
    entry(name)(row)
  end
end

loss "CrossEntropyLoss" {
  options = {{"weight", "tensor"}, {"ignore_index", "integer", -100}, {"label_smoothing", "probability", 0}},
  call = ops.cross_entropy,
  help = "of logits [N, C] or [N, C, …] and classes, or probabilities of the logits' shape",
}

loss "NLLLoss" {
  options = {{"weight", "tensor"}, {"ignore_index", "integer", -100}}, call = ops.nll_loss,
  help = "of log-probabilities and classes",
}

loss "MSELoss" {call = ops.mse_loss, help = "(input - target)^2"}

loss "BCEWithLogitsLoss" {
  options = {{"weight", "tensor"}, {"pos_weight", "tensor"}}, call = ops.bce_with_logits,
  help = "binary cross entropy of logits and targets from 0 to 1, of one shape",
}

loss "BCELoss" {
  options = {{"weight", "tensor"}}, call = ops.binary_cross_entropy,
  help = "of probabilities. An error under autocast on a GPU",
}

return layer.classes(list)

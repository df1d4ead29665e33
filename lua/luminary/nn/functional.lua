--- nn.functional: layers as functions, under PyTorch's names. Most are ops as they are; ops under
--- another name in PyTorch have both.
local core = require "luminary.core"
local options = require "luminary.options"

local ops = core.ops
local F = {}

for _, name in ipairs {
  "relu", "relu_", "leaky_relu", "leaky_relu_", "silu", "silu_", "tanh", "sigmoid", "softplus", "softmax",
  "log_softmax", "linear", "conv2d", "max_pool2d", "avg_pool2d", "adaptive_avg_pool2d", "pad", "max_unpool2d",
  "batch_norm", "layer_norm", "dropout", "embedding", "one_hot", "cross_entropy", "nll_loss", "mse_loss",
  "bce_with_logits", "binary_cross_entropy",
} do
  F[name] = ops[name]
end

--- F.logsigmoid(x): log(sigmoid(x)), without overflow; lm.log_sigmoid.
F.logsigmoid = ops.log_sigmoid
--- F.binary_cross_entropy_with_logits(input, target [, {weight, pos_weight, reduction = "mean"}]): of logits and
--- targets from 0 to 1, of one shape; lm.bce_with_logits.
F.binary_cross_entropy_with_logits = ops.bce_with_logits

--- F.gelu(x [, {approximate = "none" | "tanh"}]): x * Phi(x), exact or by its tanh approximation
function F.gelu(x, opts)
  if opts == nil then return ops.gelu(x) end
  local approximate = options.check("gelu", opts, {approximate = {"string", "none"}}, "approximate").approximate
  options.choice("gelu", "approximate", approximate, {"none", "tanh"})
  return (approximate == "tanh" and ops.gelu_tanh or ops.gelu)(x)
end

return options.strict("nn.functional", F)

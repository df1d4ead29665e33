--- nn.functional: layers as functions, under PyTorch's names. Most are ops as they are; ops under
--- another name in PyTorch have both.
local core = require "luminary.core"
local options = require "luminary.base.options"

local ops = core.ops
local F = {}

for _, name in ipairs {
  "relu6", "relu6_",
  "relu", "relu_", "leaky_relu", "leaky_relu_", "silu", "silu_", "tanh", "sigmoid", "softplus", "softmax",
  "log_softmax", "linear", "conv2d", "max_pool2d", "avg_pool2d", "adaptive_avg_pool2d", "pad", "max_unpool2d",
  "batch_norm", "batch_norm_relu", "layer_norm", "dropout", "one_hot", "cross_entropy", "nll_loss",
  "mse_loss", "bce_with_logits", "binary_cross_entropy",
} do
  F[name] = ops[name]
end

--- F.logsigmoid(x): log(sigmoid(x)), without overflow; lm.log_sigmoid.
--- F.local_response_norm(x, size [, {alpha = 1e-4, beta = 0.75, k = 1}]): x [N, C, …] over
--- (k + alpha * mean of x^2 over `size` channels around each)^beta, where channels beyond the first and last count as 0
--- (Krizhevsky et al. 2012, with alpha of the mean, as PyTorch has it).
function F.local_response_norm(x, size, opts)
  local who = "local_response_norm"
  opts = options.check(who, opts, {alpha = {"number", 1e-4}, beta = {"number", 0.75}, k = {"number", 1}}, "alpha")
  options.arg(who, "x", x, "tensor")
  options.arg(who, "size", size, "count")
  if x.ndim < 3 then options.fail("%s: x [N, C, …] of 3 or more dims wanted, got %s", who, options.describe(x)) end
  local before = math.floor(size / 2)
  local squares = ops.square(x):view(x.shape[1], 1, x.shape[2], -1)
  squares = ops.pad(squares, {0, 0, before, size - 1 - before})
  local mean = ops.avg_pool2d(squares, {size, 1}, {stride = 1}):view(x.shape)
  return x / (mean * opts.alpha + opts.k) ^ opts.beta
end

F.logsigmoid = ops.log_sigmoid
--- F.binary_cross_entropy_with_logits(input, target [, {weight, pos_weight, reduction = "mean"}]): of logits and
--- targets from 0 to 1, of one shape; lm.bce_with_logits.
F.binary_cross_entropy_with_logits = ops.bce_with_logits

--- F.gelu(x [, {approximate = "none" | "tanh"}]): x * Phi(x), exact or by its tanh approximation
function F.gelu(x, opts)
  if opts == nil then return ops.gelu(x) end
  local approximate = options.check("gelu", opts, {approximate = {{"none", "tanh"}, "none"}}, "approximate").approximate
  return (approximate == "tanh" and ops.gelu_tanh or ops.gelu)(x)
end

for _, file in ipairs {"dropout", "embedding", "rearrange"} do
  for name, f in pairs(require("luminary.nn.functional." .. file)) do F[name] = f end
end

return options.strict("nn.functional", F)

--- nn.functional: layers as functions, under PyTorch's names. Most are ops as they are; ops under
--- another name in PyTorch have both.
local core = require "luminary.core"
local options = require "luminary.base.options"

local ops, fail = core.ops, options.fail
local F = {}

for _, name in ipairs {
  "relu", "relu_", "relu6", "relu6_", "leaky_relu", "leaky_relu_", "elu", "elu_", "selu", "selu_", "celu", "celu_",
  "gelu", "silu", "silu_", "mish", "tanh", "sigmoid", "softplus", "softsign", "hardtanh", "hardtanh_", "hardsigmoid",
  "hardswish", "hardshrink", "softshrink", "tanhshrink", "threshold", "threshold_", "prelu", "softmin", "softmax",
  "log_softmax", "linear", "conv2d", "max_pool2d", "avg_pool2d", "adaptive_avg_pool2d", "pad", "max_unpool2d",
  "batch_norm", "batch_norm_relu", "layer_norm", "dropout", "embedding", "one_hot", "cross_entropy", "nll_loss",
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

--- F.glu(x [, dim = -1]): the first half of x along dim times the sigmoid of the second (Dauphin et al. 2017).
function F.glu(x, dim)
  options.arg("glu", "x", x, "tensor")
  if dim == nil then dim = -1 end
  local size = x:size(dim)
  if size % 2 ~= 0 then fail("glu: dim %d has size %d, which has no halves", dim, size) end
  return ops.mul_sigmoid(ops.narrow(x, dim, 1, size / 2), ops.narrow(x, dim, size / 2 + 1, size / 2))
end

-- What makes rrelu of x: an op and its argument.
local function rrelu_by(x, lower, upper, training)
  options.arg("rrelu", "x", x, "tensor")
  lower = lower == nil and 1 / 8 or options.arg("rrelu", "lower", lower, "number")
  upper = upper == nil and 1 / 3 or options.arg("rrelu", "upper", upper, "number")
  if lower > upper then fail("rrelu: lower is %g, upper %g; it has to be the larger one", lower, upper) end
  if training then return ops.mul, ops.where(ops.ge(x, 0), 1, ops.rand_like(x) * (upper - lower) + lower) end
  return ops.leaky_relu, (lower + upper) / 2
end

--- F.rrelu(x [, lower = 1/8 [, upper = 1/3 [, training = false]]]): x, or below 0 x times a slope: in training a random
--- one of [lower, upper) for each element, else their mean (Xu et al. 2015).
function F.rrelu(x, lower, upper, training)
  local op, slope = rrelu_by(x, lower, upper, training)
  return op(x, slope)
end

--- F.rrelu_(x [, lower = 1/8 [, upper = 1/3 [, training = false]]]): F.rrelu in place.
function F.rrelu_(x, lower, upper, training)
  local _, slope = rrelu_by(x, lower, upper, training)
  return (training and ops.mul_ or ops.leaky_relu_)(x, slope)
end

return options.strict("nn.functional", F)

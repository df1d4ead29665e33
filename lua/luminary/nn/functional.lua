--- nn.functional: Provides layers as functions, under PyTorch's names.
local core = require "luminary.core"
local full_precision = require "luminary.base.full_precision"
local options = require "luminary.base.options"
local signature = require "luminary.base.signature"

local ops, fail = core.ops, options.fail
local F = {}

for _, name in ipairs {
  "relu_", "relu6_", "leaky_relu_", "elu_", "selu_", "celu_", "silu_", "tanh", "sigmoid", "softplus", "softsign",
  "hardtanh_", "hardshrink", "softshrink", "tanhshrink", "threshold_", "prelu", "softmin", "softmax", "log_softmax",
  "linear", "conv2d", "max_pool2d", "avg_pool2d", "pad", "max_unpool2d", "batch_norm", "batch_norm_relu", "layer_norm",
  "one_hot", "bce_with_logits", "cosine_similarity", "pairwise_distance", "rms_norm",
  "group_norm", "grid_sample",
} do
  F[name] = ops[name]
end

--- Applies local response normalization across channels.
F.local_response_norm = signature.of([[local_response_norm(x: tensor, size: count, {alpha = 1e-4, beta = 0.75,
  k = 1})]], full_precision.rounds_once(function(x, size, opts)
  if x.ndim < 2 then options.expected("local_response_norm", "x [N, C, …] of 2 or more dims", x) end
  if x:numel() == 0 then return x * 1 end -- reshape cannot divide 0 elements
  local before = math.floor(size / 2)
  local squares = ops.reshape(ops.square(x), {x.shape[1], 1, x.shape[2], -1})
  squares = ops.pad(squares, {0, 0, before, size - 1 - before})
  local mean = ops.reshape(ops.avg_pool2d(squares, {size, 1}, {stride = 1}), x.shape)
  return x / (mean * opts.alpha + opts.k) ^ opts.beta
end))

--- Divides the input by its p-norm along a dim.
F.normalize = signature.of("normalize(x: tensor, {p = 2, dim: dim = 2, eps = 1e-12})",
  full_precision.rounds_once(function(x, opts)
  return x / ops.norm(x, opts.p, opts.dim, {keepdim = true}):clamp(opts.eps)
end))

local function reduced(loss, reduction) return reduction == "none" and loss or loss[reduction](loss) end

--- Computes a triplet loss with a custom distance.
F.triplet_margin_with_distance_loss = signature.of([[triplet_margin_with_distance_loss(anchor: tensor,
  positive: tensor, negative: tensor, {distance_function: callable, margin: positive = 1, swap = false,
  reduction = "mean" | "sum" | "none"})]], full_precision.rounds_once(function(anchor, positive, negative, o)
  local who = "triplet_margin_with_distance_loss"
  if positive.ndim ~= anchor.ndim or negative.ndim ~= anchor.ndim then
    options.fail("%s: anchor, positive and negative must have the same number of dims, got %s, %s and %s", who,
      options.describe(anchor), options.describe(positive), options.describe(negative))
  end
  local distance = o.distance_function or ops.pairwise_distance
  local near, far = distance(anchor, positive), distance(anchor, negative)
  if o.swap then far = ops.minimum(far, distance(positive, negative)) end
  return reduced((near - far + o.margin):clamp(0), o.reduction)
end))

--- Computes a multi-label hinge loss between scores and lists of target classes.
F.multilabel_margin_loss = signature.of([[multilabel_margin_loss(x: tensor, target: tensor, {size_average: lacks,
  reduce: lacks, reduction = "mean" | "sum" | "none"})]], full_precision.rounds_once(function(x, target, o)
  if x.ndim == 0 then x, target = x:view(1), target:view(-1) end
  local n = x.shape[x.ndim]
  if x.ndim > 2 or target.ndim ~= x.ndim or target.shape[1] ~= x.shape[1] or target.shape[x.ndim] ~= n then
    options.fail("multilabel_margin_loss: x and target must both be [N, C] or [C], got %s and %s", options.describe(x),
      options.describe(target))
  end
  local rows, labels = x:view(-1, n), target:detach():view(-1, n)
  local positions = ops.arange(1, n + 1, {device = x.device, dtype = "int64"})
  local ends = ops.where(labels:lt(1), positions, n + 1):amin(2, {keepdim = true})
  local max_count = ends:numel() > 0 and math.max(1, ends:max():item() - 1) or 1
  local counts = positions:lt(ends):narrow(2, 1, max_count)
  labels = labels:narrow(2, 1, max_count):masked_fill(counts:logical_not(), 1)
  local own = ops.zeros_like(rows:detach()):scatter_add(2, labels, counts:type_as(rows)):gt(0)
  local lacking = ops.relu(1 - rows:gather(2, labels):unsqueeze(3) + rows:unsqueeze(2))
  local left_out = counts:logical_not():unsqueeze(3):logical_or(own:unsqueeze(2))
  local loss = lacking:masked_fill(left_out, 0):sum {2, 3} / n
  return reduced(x.ndim == 1 and loss:squeeze(1) or loss, o.reduction)
end))

--- Applies instance normalization to each channel of each sample.
F.instance_norm = signature.of([[instance_norm(x: tensor, running_mean: tensor?, running_var: tensor?,
  weight: tensor?, bias: tensor?, use_input_stats = true, momentum = 0.1,
  eps = 1e-5)]], function(x, mean, var, weight, bias, use_input_stats, momentum, eps)
  if x.ndim < 3 then options.expected("instance_norm", "x [N, C, …] of 3 or more dims", x) end
  if not use_input_stats then return ops.batch_norm(x, mean, var, weight, bias, {training = false, eps = eps}) end
  local n, c, shape = x.shape[1], x.shape[2], x.shape
  local function repeated(v) return v and ops.expand(v:view(1, c), n, c):clone():view(n * c) end
  local means, vars = repeated(mean and mean:detach()), repeated(var and var:detach())
  local flat_shape = {1, n * c}
  for d = 3, x.ndim do flat_shape[d] = shape[d] end
  local flat = ops.reshape(x, flat_shape)
  local y = ops.batch_norm(flat, means, vars, repeated(weight), repeated(bias),
    {training = true, momentum = momentum, eps = eps})
  local _, again = core.is_checkpointing()
  if again then return y:view(shape) end
  core.no_grad(function()
    if mean and n > 0 then mean:copy_(means:view(n, c):mean(1)) end
    if var and n > 0 then var:copy_(vars:view(n, c):mean(1)) end
  end)
  return y:view(shape)
end)

--- F.logsigmoid(x): Computes the logarithm of the sigmoid of each element: log(1 / (1 + e^-x)).
F.logsigmoid = ops.log_sigmoid

--- Applies the gated linear unit: the first half of x along dim times the sigmoid of the second half.
F.glu = signature.of("glu(x: tensor, dim: dim = -1)", function(x, dim)
  local size = x:size(dim)
  if size % 2 ~= 0 then fail("glu: the size of dim %d (%d) must be divisible by 2", dim, size) end
  return ops.gated_halves(x, dim, size / 2)
end)

-- Returns the op that computes rrelu, and its slope argument.
local function rrelu_by(x, lower, upper, training)
  options.arg("rrelu", "x", x, "tensor")
  lower = lower == nil and 1 / 8 or options.arg("rrelu", "lower", lower, "number")
  upper = upper == nil and 1 / 3 or options.arg("rrelu", "upper", upper, "number")
  if lower > upper then fail("rrelu: lower must be at most upper, got %g and %g", lower, upper) end
  if training then return ops.mul, ops.where(ops.ge(x, 0), 1, ops.rand_like(x) * (upper - lower) + lower) end
  return ops.leaky_relu, (lower + upper) / 2
end

--- Applies the randomized leaky rectified linear unit to each element: x, or a random slope times x below 0.
F.rrelu = signature.of("rrelu(x, {lower = 1 / 8, upper = 1 / 3, training = false, inplace = false})", function(x, opts)
  if opts.inplace then return F.rrelu_(x, opts.lower, opts.upper, opts.training) end
  local op, slope = rrelu_by(x, opts.lower, opts.upper, opts.training)
  return op(x, slope)
end)

--- F.rrelu_(x [, lower = 1/8 [, upper = 1/3 [, training = false]]]): F.rrelu in place.
function F.rrelu_(x, lower, upper, training)
  local _, slope = rrelu_by(x, lower, upper, training)
  return (training and ops.mul_ or ops.leaky_relu_)(x, slope)
end

--- Draws from the Gumbel-softmax distribution of logits along dim.
F.gumbel_softmax = signature.of([[gumbel_softmax(logits: tensor, {tau: above(0) = 1, hard = false, eps: lacks = 1e-10,
  dim: dim = -1})]], function(logits, opts)
  local noise = -ops.log(ops.exponential_(ops.empty_like(logits)))
  local soft = ops.softmax((logits + noise) / opts.tau, opts.dim)
  if not opts.hard then return soft end
  local index = ops.argmax(soft, opts.dim, {keepdim = true})
  return ops.scatter(ops.zeros_like(soft), opts.dim, index, 1) - soft:detach() + soft
end)

for name, f in pairs(require "luminary.nn.functional.pytorch_order") do F[name] = f end

return options.strict("nn.functional", F, options.at_first_use {
  ["tensor.products"] = "pdist",
  ["nn.functional.ctc"] = "ctc_loss",
  ["nn.functional.dropout"] = "alpha_dropout dropout1d dropout2d dropout3d feature_alpha_dropout",
  ["nn.functional.linear_cross_entropy"] = "linear_cross_entropy",
  ["nn.functional.embedding"] = "embedding embedding_bag",
  ["nn.functional.pixel_shuffle"] = "bilinear channel_shuffle pixel_shuffle pixel_unshuffle",
  ["nn.functional.convolution"] = "conv1d conv3d conv_transpose1d conv_transpose2d conv_transpose3d",
  ["nn.functional.pooling"] = "adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d adaptive_max_pool1d "
    .. "adaptive_max_pool2d adaptive_max_pool3d avg_pool1d avg_pool3d fractional_max_pool2d fractional_max_pool3d "
    .. "lp_pool1d lp_pool2d lp_pool3d max_pool1d max_pool3d max_unpool1d max_unpool3d",
  ["nn.functional.interpolate"] = "interpolate upsample upsample_bilinear upsample_nearest",
  ["nn.functional.sampling"] = "affine_grid fold unfold",
})

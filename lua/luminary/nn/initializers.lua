--- nn.init: Initializes parameters in place, with PyTorch's formulas.
local core = require "luminary.core"
local lists = require "luminary.base.lists"
local options = require "luminary.base.options"
local signature = require "luminary.base.signature"
local meta = require "luminary.nn.meta"

local ops = core.ops
local init = {}

local function fill_tensor_by(who, t, method, ...)
  options.arg(who, "the first argument", t, "tensor")
  local given = options.pack(...)
  return meta.fill(t, function(p) p[method](p, unpack(given, 1, given.n)) end, method == "fill_")
end

--- Returns fan_in and fan_out of a weight [out, in, receptive field…].
local function fans(who, t)
  options.arg(who, "the first argument", t, "tensor")
  local shape = t.shape
  if #shape < 2 then options.must_be(who, "t", "a tensor of at least 2 dims", t) end
  local field = lists.product(lists.slice(shape, 3))
  return shape[2] * field, shape[1] * field
end
init._fans = fans

local function number(who, name, v, default, kind)
  if v == nil then v = default end
  return options.arg(who, name, v, kind or "number")
end

--- Fills the tensor with values of the uniform distribution on [a, b); [0, 1) by default.
function init.uniform_(t, a, b, generator)
  local low, high = number("uniform_", "a", a, 0), number("uniform_", "b", b, 1)
  return fill_tensor_by("uniform_", t, "uniform_", low, high, {generator = generator})
end
--- Fills the tensor with values of a normal distribution.
function init.normal_(t, mean, std, generator)
  mean, std = number("normal_", "mean", mean, 0), number("normal_", "std", std, 1)
  return fill_tensor_by("normal_", t, "normal_", mean, std, {generator = generator})
end
--- Fills the tensor with a value.
function init.constant_(t, value)
  return fill_tensor_by("constant_", t, "fill_", options.arg("constant_", "value", value, "number"))
end
--- Fills the tensor with 0.
function init.zeros_(t) return fill_tensor_by("zeros_", t, "fill_", 0) end
--- Fills the tensor with 1.
function init.ones_(t) return fill_tensor_by("ones_", t, "fill_", 1) end

local gains = {
  linear = 1, conv1d = 1, conv2d = 1, conv3d = 1, sigmoid = 1,
  conv_transpose1d = 1, conv_transpose2d = 1, conv_transpose3d = 1,
  tanh = 5 / 3, relu = math.sqrt(2), selu = 3 / 4, leaky_relu = math.sqrt(2 / (1 + 0.01 ^ 2)),
}

--- Returns the recommended gain of a nonlinearity: the factor that keeps the variance.
function init.calculate_gain(nonlinearity, param)
  if nonlinearity == "leaky_relu" and param then return math.sqrt(2 / (1 + param ^ 2)) end
  return gains[options.choice("calculate_gain", "nonlinearity", nonlinearity, options.sorted_keys(gains))]
end

local rules = {
  xavier = {
    rows = "gain = 1",
    std = function(fan_in, fan_out, opts) return opts.gain * math.sqrt(2 / (fan_in + fan_out)) end,
  },
  kaiming = {
    rows = [[a = 0, mode = "fan_in" | "fan_out", nonlinearity = "leaky_relu"]],
    std = function(fan_in, fan_out, opts)
      local gain = init.calculate_gain(opts.nonlinearity, opts.nonlinearity == "leaky_relu" and opts.a or nil)
      return gain / math.sqrt(opts.mode == "fan_in" and fan_in or fan_out)
    end,
  },
}

--- nn.init.xavier_uniform_(…): Fills the tensor with values of Glorot's uniform distribution.
--- nn.init.xavier_normal_(…): Fills the tensor with values of Glorot's normal distribution.
--- nn.init.kaiming_uniform_(…): Fills the tensor with values of He's uniform distribution.
--- nn.init.kaiming_normal_(…): Fills the tensor with values of He's normal distribution.

for name, rule in pairs(rules) do
  local function define(who, draw)
    init[who] = signature.of(("%s(t, {%s, generator: generator})"):format(who, rule.rows), function(t, opts)
      local fan_in, fan_out = fans(who, t)
      return draw(t, rule.std(fan_in, fan_out, opts), opts.generator)
    end)
  end
  define(name .. "_uniform_", function(t, std, generator)
    return init.uniform_(t, -math.sqrt(3) * std, math.sqrt(3) * std, generator)
  end)
  define(name .. "_normal_", function(t, std, generator) return init.normal_(t, 0, std, generator) end)
end

-- Fills t with the result of make(options, t), a tensor in float64.
local function fill_with(who, t, make, generator)
  options.arg(who, "the first argument", t, "tensor")
  return meta.fill(t, function(p)
    p:copy_(make({dtype = "float64", device = p.device, generator = generator}, p))
  end)
end

-- Returns P(Z < z) for a standard normal variable Z.
local function normal_cdf(z)
  if math.abs(z) == math.huge then return z > 0 and 1 or 0 end
  return (1 + ops.erf(core.tensor(z / math.sqrt(2), {dtype = "float64"})):item()) / 2
end

-- Draws [n] values of a standard normal between low and high, by rejection: from the normal if most draws are within,
-- otherwise from a truncated exponential (Robert 1995, Simulation of truncated normal variables).
local function truncated_normal(n, low, high, how)
  local sign = 1
  if high < 0 or -low > high then sign, low, high = -1, -high, -low end
  local plain = normal_cdf(high) - normal_cdf(low) > 0.25
  local rate = math.max(low, 1e-6)
  local function draw_in_bounds()
    if plain then
      local z = ops.randn({n}, how)
      return z, ops.logical_and(z:ge(low), z:le(high))
    end
    local z = ops.log1p(ops.rand({n}, how) * (math.exp(-rate * (high - low)) - 1)) / -rate + low
    return z:clamp(low, high), ops.rand({n}, how):le(ops.exp((z - rate) ^ 2 * -0.5))
  end
  local z, good = draw_in_bounds()
  for _ = 1, 10000 do -- a draw is accepted with a probability of at least 0.25, except for rounding errors
    if good:all():item() then return z * sign end
    local again, also = draw_in_bounds()
    z, good = ops.where(good, z, again), ops.logical_or(good, also)
  end
  options.fail("trunc_normal_: cannot sample from %g to %g standard deviations", low, high)
end

--- Fills the tensor with values of a truncated normal distribution.
function init.trunc_normal_(t, mean, std, a, b, generator)
  local who = "trunc_normal_"
  mean, std = number(who, "mean", mean, 0, "finite"), number(who, "std", std, 1, "above(0)")
  a, b = number(who, "a", a, -2), number(who, "b", b, 2)
  local in_order = a < b -- false for NaN
  if not in_order then options.fail("%s: a must be less than b, got %g and %g", who, a, b) end
  return fill_with(who, t, function(how, p)
    local z = truncated_normal(p:numel(), (a - mean) / std, (b - mean) / std, how)
    return (z * std + mean):clamp(a, b):view(p.shape)
  end, generator)
end

local function rows_and_columns(who, t, max_dims)
  options.arg(who, "the first argument", t, "tensor")
  if t.ndim < 2 or max_dims and t.ndim > max_dims then
    options.must_be(who, "t", max_dims and "a tensor of 2 dims" or "a tensor of at least 2 dims", t)
  end
  return t.shape[1], t:numel() / math.max(t.shape[1], 1)
end

--- Fills the tensor with a random (semi-)orthogonal matrix.
init.orthogonal_ = signature.of("orthogonal_(t, {gain = 1, generator: generator})", function(t, opts)
  local who = "orthogonal_"
  local rows, columns = rows_and_columns(who, t)
  if t:numel() == 0 then return t end
  return fill_with(who, t, function(how, p)
    local q, r = ops.linalg_qr(ops.randn({math.min(rows, columns), math.max(rows, columns)}, how):t())
    q = q * r:diagonal():sign() -- as Gram-Schmidt's, uniformly distributed
    return (rows <= columns and q:t() or q):reshape(p.shape) * opts.gain
  end, opts.generator)
end)

--- Fills the 2-d tensor with the identity matrix.
function init.eye_(t)
  local rows, columns = rows_and_columns("eye_", t, 2)
  return fill_with("eye_", t, function(how) return ops.eye(rows, columns, how) end)
end

--- Fills the weight of a convolution with the Dirac delta function, which preserves its input.
init.dirac_ = signature.of("dirac_(t, {groups: count = 1})", function(t, opts)
  local who = "dirac_"
  if options.arg(who, "the first argument", t, "tensor").ndim < 3 or t.ndim > 5 then
    options.must_be(who, "t", "a tensor of 3, 4 or 5 dims", t)
  end
  local groups, shape = opts.groups, t.shape
  if shape[1] % groups ~= 0 then
    options.fail("%s: groups (%d) must divide the number of output channels (%d)", who, groups, shape[1])
  end
  return core.no_grad(function()
    t:zero_()
    for g = 0, groups - 1 do
      for i = 1, math.min(shape[1] / groups, shape[2]) do
        local center = t:select(1, g * shape[1] / groups + i):select(1, i)
        for k = 3, #shape do center = center:select(1, math.floor(shape[k] / 2) + 1) end
        center:fill_(1)
      end
    end
    return t
  end)
end)

--- Fills the 2-d tensor as a sparse matrix, with normal values.
init.sparse_ = signature.of([[sparse_(t, sparsity: probability, {std = 0.01,
  generator: generator})]], function(t, sparsity, opts)
  local rows, columns = rows_and_columns("sparse_", t, 2)
  local zeros = math.ceil(sparsity * rows)
  return core.no_grad(function()
    t:normal_(0, opts.std, {generator = opts.generator})
    for c = 1, zeros > 0 and columns or 0 do
      local order = ops.randperm(rows, {device = t.device, generator = opts.generator})
      t:select(2, c):index_put_({order:narrow(1, 1, zeros)}, 0)
    end
    return t
  end)
end)

--- Initializes linear and convolution layers: weight and bias from uniform(-k, k) with k = 1 / sqrt(fan_in), which is
--- PyTorch's kaiming_uniform_ with a = sqrt(5).
function init._layer(weight, bias)
  local fan_in = fans("init", weight)
  local bound = fan_in > 0 and 1 / math.sqrt(fan_in) or 0
  init.uniform_(weight, -bound, bound)
  if bias then init.uniform_(bias, -bound, bound) end
end

return options.strict("nn.init", signature.all(init))

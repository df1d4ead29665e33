--- Distributions made of others: Independent, TransformedDistribution; and MultivariateNormal.
local core = require "luminary.core"
local class = require "luminary.base.class"
local options = require "luminary.base.options"
local signature = require "luminary.base.signature"
local Distribution = require "luminary.distributions.distribution"
local Transform = require("luminary.distributions.transforms").Transform
local ops, fail, define, joined = core.ops, options.fail, Distribution.define, Distribution._joined

local list = {}

options.kind("distribution", "distribution", function(who, name, base)
  if not class.is(base, Distribution) then options.must_be(who, name, "a distribution", base) end
  return base
end)

local function sum_last(t, n)
  for _ = 1, n do t = t:sum(-1) end
  return t
end

list.Independent = define "Independent" {
  order = {}, help = "Reinterprets some of the batch dims of a distribution as event dims.",
  init = signature.of([[Independent(base_distribution: distribution, reinterpreted_batch_ndims: natural,
    {validate_args = true})]], function(self, base, n, opts)
    if n > #base.batch_shape then
      options.must_be("Independent", "reinterpreted_batch_ndims", "at most " .. #base.batch_shape, n)
    end
    self.base_dist, self.reinterpreted_batch_ndims, self.has_rsample = base, n, base.has_rsample
    self.validate_args = opts.validate_args
    local kept = #base.batch_shape - n
    self.batch_shape = {unpack(base.batch_shape, 1, kept)}
    self.event_shape = joined({unpack(base.batch_shape, kept + 1)}, base.event_shape)
  end),
  first_parameter = function(d) return d.base_dist:first_parameter() end,
  sample = function(d, shape) return d.base_dist:_draw(shape) end,
  log_prob = function(d, x) return sum_last(d.base_dist:log_prob(x), d.reinterpreted_batch_ndims) end,
  entropy = function(d) return sum_last(d.base_dist:entropy(), d.reinterpreted_batch_ndims) end,
  mean = function(d) return d.base_dist.mean end, mode = function(d) return d.base_dist.mode end,
  variance = function(d) return d.base_dist.variance end,
  expand = function(d, batch_shape)
    local own = {unpack(d.event_shape, 1, d.reinterpreted_batch_ndims)}
    return list.Independent(d.base_dist:expand(joined(batch_shape, own)), d.reinterpreted_batch_ndims)
  end,
  repr = function(d) return ("Independent(%s, %d)"):format(tostring(d.base_dist), d.reinterpreted_batch_ndims) end,
}

list.TransformedDistribution = define "TransformedDistribution" {
  order = {}, help = "Creates the distribution of the values of a base distribution after a list of transforms.",
  init = signature.of([[TransformedDistribution(base_distribution: distribution, transforms,
    {validate_args = true})]], function(self, base, transforms, opts)
    if class.is(transforms, Transform) then transforms = {transforms} end
    if not options.is_plain(transforms) then
      options.must_be("TransformedDistribution", "transforms", "a transform or a list of them", transforms)
    end
    for i, t in ipairs(options.list("TransformedDistribution", "transforms", transforms)) do
      if not class.is(t, Transform) then
        options.must_be("TransformedDistribution", ("transforms[%d]"):format(i), "a transform", t)
      end
    end
    self.base_dist, self.transforms, self.has_rsample = base, transforms, base.has_rsample
    self.validate_args, self.batch_shape, self.event_shape = opts.validate_args, base.batch_shape, base.event_shape
  end),
  first_parameter = function(d) return d.base_dist:first_parameter() end,
  sample = function(d, shape)
    local x = d.base_dist:_draw(shape)
    for _, t in ipairs(d.transforms) do x = t(x) end
    return x
  end,
  log_prob = function(d, y)
    local sum = 0
    for i = #d.transforms, 1, -1 do
      local t = d.transforms[i]
      local x = t:inv(y)
      sum = sum + sum_last(t:log_abs_det_jacobian(x, y), #d.event_shape)
      y = x
    end
    return d.base_dist:log_prob(y) - sum
  end,
  cdf = function(d, y)
    local sign = 1
    for i = #d.transforms, 1, -1 do
      y, sign = d.transforms[i]:inv(y), sign * d.transforms[i]:sign()
    end
    local p = d.base_dist:cdf(y)
    return sign > 0 and p or 1 - p
  end,
  expand = function(d, batch_shape)
    return list.TransformedDistribution(d.base_dist:expand(batch_shape), d.transforms)
  end,
  repr = function(d)
    return ("TransformedDistribution(%s, %d transforms)"):format(tostring(d.base_dist), #d.transforms)
  end,
}

-- ---- MultivariateNormal

-- The lower triangle L with L L^T = a [..., n, n], column by column.
local function cholesky(name, a)
  local n, columns = a.shape[a.ndim], {}
  for j = 1, n do
    local column = a:select(-1, j)
    for k = 1, j - 1 do column = column - columns[k] * columns[k]:narrow(-1, j, 1) end
    local pivot = column:narrow(-1, j, 1)
    if not core.no_grad(function() return pivot:gt(0):all():item() end) then
      fail("%s: the matrix must be symmetric and positive definite; its leading block of %d rows is not", name, j)
    end
    local below = ops.arange(1, n + 1, {device = a.device}):ge(j):to(a.dtype)
    columns[j] = column / pivot:sqrt() * below
  end
  return ops.stack(columns, -1)
end

-- x with L x = b, of b [..., n]; the rows one after the other.
local function solve_lower(l, b)
  local n, x = l.shape[l.ndim], {}
  for i = 1, n do
    local rest = b:select(-1, i)
    for k = 1, i - 1 do rest = rest - l:select(-2, i):select(-1, k) * x[k] end
    x[i] = rest / l:select(-2, i):select(-1, i)
  end
  return ops.stack(x, -1)
end

-- The inverse of L, column by column.
local function inverse_lower(l)
  local n, columns = l.shape[l.ndim], {}
  local eye = ops.eye(n, {dtype = l.dtype, device = l.device})
  for j = 1, n do columns[j] = solve_lower(l, eye:select(1, j):expand({unpack(l.shape, 1, l.ndim - 1)})) end
  return ops.stack(columns, -1)
end

local function log_diagonal(l)
  local sum = 0
  for i = 1, l.shape[l.ndim] do sum = sum + l:select(-1, i):select(-1, i):log() end
  return sum
end

local function times(l, x) return ops.matmul(l, x:unsqueeze(-1)):squeeze(-1) end

list.MultivariateNormal = define "MultivariateNormal" {
  order = {"loc"}, support = "real_vector",
  help = "Creates a multivariate normal distribution; exactly one of the three matrices must be given",
  init = signature.of([[MultivariateNormal(loc, {covariance_matrix: tensor, precision_matrix: tensor,
    scale_tril: tensor, validate_args = true})]], function(self, loc, opts)
    local name = "MultivariateNormal"
    self.validate_args = opts.validate_args
    local given = opts.covariance_matrix or opts.precision_matrix or opts.scale_tril
    local n = (opts.covariance_matrix and 1 or 0) + (opts.precision_matrix and 1 or 0) + (opts.scale_tril and 1 or 0)
    if n ~= 1 then
      fail("%s: expected exactly one of covariance_matrix, precision_matrix and scale_tril, got %d", name, n)
    end
    loc = Distribution._tensors(name, {"loc"}, {loc = loc}).loc
    local size = loc.ndim > 0 and loc.shape[loc.ndim]
    if not size or given.ndim < 2 or given.shape[given.ndim] ~= size or given.shape[given.ndim - 1] ~= size then
      fail("%s: expected loc [..., n] and a matrix [..., n, n], got %s and %s", name, options.describe(loc),
        options.describe(given))
    end
    local l = opts.scale_tril
    if opts.covariance_matrix then
      l = cholesky(name, opts.covariance_matrix)
    elseif opts.precision_matrix then
      local inverse = inverse_lower(cholesky(name, opts.precision_matrix))
      l = cholesky(name, inverse:transpose(-1, -2):matmul(inverse))
    end
    local batch = Distribution.broadcast(name,
      {{unpack(loc.shape, 1, loc.ndim - 1)}, {unpack(l.shape, 1, l.ndim - 2)}})
    self.batch_shape, self.event_shape = batch, {size}
    self.loc, self.scale_tril = core.keep(loc:expand(joined(batch, {size}))), core.keep(l)
  end),
  properties = {
    covariance_matrix = function(d)
      return d.scale_tril:matmul(d.scale_tril:transpose(-1, -2)):expand(joined(d.batch_shape, d.event_shape,
        d.event_shape))
    end,
    precision_matrix = function(d)
      local inverse = inverse_lower(d.scale_tril)
      return inverse:transpose(-1, -2):matmul(inverse):expand(joined(d.batch_shape, d.event_shape, d.event_shape))
    end,
  },
  mean = function(d) return d.loc end, mode = function(d) return d.loc end,
  variance = function(d) return (d.scale_tril ^ 2):sum(-1):expand(joined(d.batch_shape, d.event_shape)) end,
  rsample = function(d, shape) return d.loc + times(d.scale_tril, d:noise("randn", shape)) end,
  log_prob = function(d, x)
    local z = solve_lower(d.scale_tril, x - d.loc)
    return -0.5 * (z * z):sum(-1) - log_diagonal(d.scale_tril) - 0.5 * d.event_shape[1] * math.log(2 * math.pi)
  end,
  entropy = function(d)
    local half = log_diagonal(d.scale_tril) + 0.5 * d.event_shape[1] * (1 + math.log(2 * math.pi))
    return half:expand(d.batch_shape)
  end,
}
list.MultivariateNormal._solve_lower, list.MultivariateNormal._log_diagonal = solve_lower, log_diagonal

return list

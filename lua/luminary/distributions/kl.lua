--- kl_divergence(p, q): the mean of log p(x) - log q(x) over p's values.
local class = require "luminary.base.class"
local options = require "luminary.base.options"
local Distribution = require "luminary.distributions.distribution"
local combined = require "luminary.distributions.combined"
local parts_of = require("luminary.distributions.multivariate")._parts
local core = require "luminary.core"
local ops, fail = core.ops, options.fail
local lgamma, digamma, softplus, where, xlogy = ops.lgamma, ops.digamma, ops.softplus, ops.where, ops.xlogy
local inf, EULER, LOG_2PI = math.huge, 0.57721566490153286, math.log(2 * math.pi)

local kl, table_of = {}, {}

--- register_kl(P, Q, f): Registers a function for kl_divergence of two classes.
function kl.register_kl(P, Q, f)
  class.check("register_kl", P)
  class.check("register_kl", Q)
  table_of[P] = table_of[P] or {}
  table_of[P][Q] = options.arg("register_kl", "f", f, "function")
end

local function no_formula(p, q)
  fail("kl_divergence: no formula for %s and %s; add one with register_kl", p.__name, q.__name)
end

--- kl_divergence(p, q): Computes the Kullback-Leibler divergence of two distributions.
function kl.kl_divergence(p, q)
  for i, d in ipairs {p or false, q or false} do
    if not class.is(d, Distribution) then
      options.must_be("kl_divergence", ("argument %d"):format(i), "a distribution", d or nil)
    end
  end
  local of = debug.getmetatable(p).class
  while of do
    local other = debug.getmetatable(q).class
    while other do
      if table_of[of] and table_of[of][other] then return table_of[of][other](p, q) end
      other = other.super
    end
    of = of.super
  end
  no_formula(p, q)
end

local function either(a, b) return ops.logical_or(a, b) end
local function any_real(d) return d:first_parameter() end
local function beta_mean(p) return p.concentration1 / (p.concentration1 + p.concentration0) end
local function sum_of(p) return p.concentration1 + p.concentration0 end
-- The constant of a gamma distribution's density.
local function gamma_constant(q) return lgamma(q.concentration) - q.concentration * q.rate:log() end
local function half_log_variance(q) return 0.5 * LOG_2PI + q.scale:log() end

-- The divergence from a normal distribution q of p with that entropy, mean and variance.
local function from_normal(entropy, mean, variance, q)
  return half_log_variance(q) + (variance + (mean - q.loc) ^ 2) / (2 * q.scale ^ 2) - entropy
end
local function to_normal(p, q) return from_normal(p:entropy(), p.mean, p.variance, q) end

local function categorical(p, q)
  local parts = p.probs * (p.logits - q.logits)
  return parts:masked_fill(q.probs:eq(0), inf):masked_fill(p.probs:eq(0), 0):sum(-1)
end

local function normals(p, q)
  local of_p, of_q, n = parts_of[class.record(p).class.__name], parts_of[class.record(q).class.__name], p.event_shape[1]
  if q.event_shape[1] ~= n then
    fail("kl_divergence: event_shape must be the same, got [%d] and [%d]", n, q.event_shape[1])
  end
  return 0.5 * (of_q.log_det(q) - of_p.log_det(p) + of_q.trace(q, of_p.roots(p)) + of_q.mahalanobis(q, q.loc - p.loc) - n)
end

-- Whether two transforms are of the same class with the same parameters.
local function is_equal(a, b)
  if core.is_tensor(a) and core.is_tensor(b) then
    return table.concat(a.shape, " ") == table.concat(b.shape, " ") and a:eq(b):all():item()
  elseif type(a) == "table" and type(b) == "table" then
    local same = #a == #b
    for key, v in pairs(a) do same = same and (key == "latest" or tostring(key):find "domain$" or is_equal(v, b[key])) end
    return same
  end
  local x, y = class.record(a), class.record(b)
  if x and y and x.class == y.class then return is_equal(x.values, y.values) end
  return rawequal(a, b) or a == b
end

local function of_bernoulli(p, q) return -p:entropy() - p.mean * q.logits - (-q.probs):log1p() - q:log_norm() end

local function pareto_tail(p, least, value) return where(p.alpha:le(least), inf, value) end

-- Of two distributions of one class, or of the classes after a comma.
local formulas = {
  Normal = function(p, q) return to_normal(p, q) end,
  HalfNormal = function(p, q) return kl.kl_divergence(p.base_dist, q.base_dist) end,
  Cauchy = function(p, q)
    return ((p.scale + q.scale) ^ 2 + (p.loc - q.loc) ^ 2):log() - (4 * p.scale * q.scale):log()
  end,
  Gamma = function(p, q)
    local a, b = p.concentration, q.concentration
    return b * (p.rate / q.rate):log() + lgamma(b) - lgamma(a) + (a - b) * digamma(a) + (q.rate - p.rate) * a / p.rate
  end,
  Categorical = categorical, OneHotCategorical = categorical,
  Bernoulli = function(p, q)
    local one = p.probs * (softplus(-q.logits) - softplus(-p.logits))
    local none = (1 - p.probs) * (softplus(q.logits) - softplus(p.logits))
    return where(p.probs:eq(0), 0, where(q.probs:eq(0), inf, one))
      + where(p.probs:eq(1), 0, where(q.probs:eq(1), inf, none))
  end,
  Binomial = function(p, q)
    if p.total_count:lt(q.total_count):any():item() then
      fail("kl_divergence: no formula for Binomials where q.total_count is above p.total_count")
    end
    local each = p.probs * (p.logits - q.logits) + (-p.probs):log1p() - (-q.probs):log1p()
    return where(p.total_count:gt(q.total_count), inf, p.total_count * each)
  end,
  ContinuousBernoulli = function(p, q)
    return p.mean * (p.logits - q.logits) + p:log_norm() + (-p.probs):log1p() - q:log_norm() - (-q.probs):log1p()
  end,
  Exponential = function(p, q)
    local ratio = q.rate / p.rate
    return ratio - ratio:log() - 1
  end,
  Gumbel = function(p, q)
    local ratio, apart = p.scale / q.scale, (q.loc - p.loc) / q.scale
    return -ratio:log() - apart + ratio * EULER + (apart + lgamma(1 + ratio)):exp() - (1 + EULER)
  end,
  Geometric = function(p, q) return -p:entropy() - (-q.probs):log1p() / p.probs - q.logits end,
  Laplace = function(p, q)
    local ratio, apart = p.scale / q.scale, (p.loc - q.loc):abs()
    return -ratio:log() + apart / q.scale + ratio * (-apart / p.scale):exp() - 1
  end,
  Pareto = function(p, q)
    local ratio = q.alpha / p.alpha
    return where(p.scale:lt(q.scale), inf, q.alpha * (p.scale / q.scale):log() - ratio:log() + ratio - 1)
  end,
  Poisson = function(p, q) return p.rate * (p.rate:log() - q.rate:log()) - (p.rate - q.rate) end,
  Uniform = function(p, q)
    return where(either(q.low:gt(p.low), q.high:lt(p.high)), inf, ((q.high - q.low) / (p.high - p.low)):log())
  end,
  Beta = function(p, q)
    return lgamma(q.concentration1) + lgamma(q.concentration0) + lgamma(sum_of(p))
      - (lgamma(p.concentration1) + lgamma(p.concentration0) + lgamma(sum_of(q)))
      + (p.concentration1 - q.concentration1) * digamma(p.concentration1)
      + (p.concentration0 - q.concentration0) * digamma(p.concentration0) + (sum_of(q) - sum_of(p)) * digamma(sum_of(p))
  end,
  Dirichlet = function(p, q)
    local a, b = p.concentration, q.concentration
    local sum = a:sum(-1)
    return lgamma(sum) - lgamma(b:sum(-1)) - (lgamma(a) - lgamma(b)):sum(-1)
      + ((a - b) * (digamma(a) - digamma(sum):unsqueeze(-1))):sum(-1)
  end,
  MultivariateNormal = normals, LowRankMultivariateNormal = normals,
  ["MultivariateNormal, LowRankMultivariateNormal"] = normals,
  ["LowRankMultivariateNormal, MultivariateNormal"] = normals,
  Independent = function(p, q)
    if p.reinterpreted_batch_ndims ~= q.reinterpreted_batch_ndims then
      fail("kl_divergence: reinterpreted_batch_ndims must be the same, got %d and %d", p.reinterpreted_batch_ndims,
        q.reinterpreted_batch_ndims)
    end
    local value = kl.kl_divergence(p.base_dist, q.base_dist)
    for _ = 1, p.reinterpreted_batch_ndims do value = value:sum(-1) end
    return value
  end,
  TransformedDistribution = function(p, q)
    if not is_equal(p.transforms, q.transforms) or table.concat(p.event_shape, " ") ~= table.concat(q.event_shape, " ") then
      fail("kl_divergence: no formula for %s and %s with different transforms; add one with register_kl", p.__name,
        q.__name)
    end
    return kl.kl_divergence(p.base_dist, q.base_dist)
  end,
  -- The Bregman divergence of the log normalizer (Nielsen and Nock 2010).
  ExponentialFamily = function(p, q)
    if class.record(p).class ~= class.record(q).class or not p.natural_params then no_formula(p, q) end
    local parameters, normalizer, grads = combined._normalizer(p)
    local others = {q:natural_params()}
    local result = q:log_normalizer(unpack(others)) - normalizer
    for i, other in ipairs(others) do
      local term = (other - parameters[i]) * grads[i]
      for _ = 1, term.ndim - #p.batch_shape do term = term:sum(-1) end
      result = result - term
    end
    return result
  end,

  ["Bernoulli, Poisson"] = function(p, q) return -p:entropy() - (p.probs * q.rate:log() - q.rate) end,
  ["Beta, ContinuousBernoulli"] = of_bernoulli,
  ["Beta, Exponential"] = function(p, q) return -p:entropy() - q.rate:log() + q.rate * beta_mean(p) end,
  ["Beta, Gamma"] = function(p, q)
    return gamma_constant(q) - (q.concentration - 1) * (digamma(p.concentration1) - digamma(sum_of(p)))
      + q.rate * beta_mean(p) - p:entropy()
  end,
  ["Beta, Normal"] = to_normal,
  ["Beta, Uniform"] = function(p, q)
    return where(either(q.low:gt(0), q.high:lt(1)), inf, (q.high - q.low):log() - p:entropy())
  end,
  ["ContinuousBernoulli, Exponential"] = function(p, q) return -p:entropy() - q.rate:log() + q.rate * p.mean end,
  ["ContinuousBernoulli, Normal"] = to_normal,
  ["ContinuousBernoulli, Uniform"] = function(p, q)
    return where(either(q.low:ge(0), q.high:le(1)), inf, (q.high - q.low):log() - p:entropy())
  end,
  ["Exponential, Gamma"] = function(p, q)
    local ratio = q.rate / p.rate
    return -q.concentration * ratio:log() + ratio + lgamma(q.concentration) + q.concentration * EULER - (1 + EULER)
  end,
  ["Exponential, Gumbel"] = function(p, q)
    local product, shift = p.rate * q.scale, q.loc / q.scale
    return product:log() - 1 - shift + shift:exp() * product / (product + 1) + 1 / product
  end,
  ["Exponential, Normal"] = to_normal,
  ["Gamma, Exponential"] = function(p, q) return -p:entropy() - q.rate:log() + q.rate * p.mean end,
  ["Gamma, Gumbel"] = function(p, q)
    local product, shift, a = p.rate * q.scale, q.loc / q.scale, p.concentration
    return (a - 1) * digamma(a) - lgamma(a) - a + product:log() + a / product
      + shift:exp() * (1 + 1 / product) ^ -a - shift
  end,
  ["Gamma, Normal"] = to_normal, ["Gumbel, Normal"] = to_normal, ["Laplace, Normal"] = to_normal,
  ["Normal, Gumbel"] = function(p, q)
    local spread, apart = (p.scale / q.scale) ^ 2, (p.loc - q.loc) / q.scale
    return apart + (0.5 * spread - apart):exp() - 0.5 * spread:log() - 0.5 * (1 + LOG_2PI)
  end,
  ["Normal, Laplace"] = function(p, q)
    local apart = p.loc - q.loc
    local z = apart / p.scale
    return (math.sqrt(2 / math.pi) * p.scale * (-0.5 * z ^ 2):exp() + apart * ops.erf(math.sqrt(0.5) * z)) / q.scale
      - (p.scale / q.scale):log() - 0.5 * (1 + math.log(0.5 * math.pi))
  end,
  ["Pareto, Exponential"] = function(p, q)
    local product = p.scale * q.rate
    return pareto_tail(p, 1, (p.alpha / product):log() - 1 / p.alpha + p.alpha * product / (p.alpha - 1) - 1)
  end,
  ["Pareto, Gamma"] = function(p, q)
    local log_mean = p.scale:log() + 1 / p.alpha
    return pareto_tail(p, 1, p.alpha:log() - log_mean + gamma_constant(q) + (1 - q.concentration) * log_mean
      + q.rate * p.alpha * p.scale / (p.alpha - 1) - 1)
  end,
  ["Pareto, Normal"] = function(p, q)
    local mean = p.alpha * p.scale / (p.alpha - 1)
    local variance = p.alpha * (p.scale / (p.alpha - 1)) ^ 2 / (p.alpha - 2)
    return pareto_tail(p, 2, from_normal(p:entropy(), mean, variance, q))
  end,
  ["Uniform, Beta"] = function(p, q)
    local width = p.high - p.low
    local function log_mean(high, low) return (xlogy(high, high) - xlogy(low, low) - width) / width end
    return where(either(p.high:gt(1), p.low:lt(0)), inf, lgamma(q.concentration1) + lgamma(q.concentration0)
      - lgamma(sum_of(q)) - width:log() - (q.concentration1 - 1) * log_mean(p.high, p.low)
      - (q.concentration0 - 1) * log_mean(1 - p.low, 1 - p.high))
  end,
  ["Uniform, ContinuousBernoulli"] = function(p, q)
    return where(either(p.high:ge(1), p.low:le(0)), inf, of_bernoulli(p, q))
  end,
  ["Uniform, Exponential"] = function(p, q)
    return where(p.low:lt(0), inf, q.rate * p.mean - ((p.high - p.low) * q.rate):log())
  end,
  ["Uniform, Gamma"] = function(p, q)
    local width = p.high - p.low
    local log_mean = (xlogy(p.high, p.high) - xlogy(p.low, p.low) - width) / width
    return where(p.low:lt(0), inf, gamma_constant(q) - width:log() + (1 - q.concentration) * log_mean + q.rate * p.mean)
  end,
  ["Uniform, Gumbel"] = function(p, q)
    local ratio, high, low = q.scale / (p.high - p.low), (p.high - q.loc) / q.scale, (p.low - q.loc) / q.scale
    return ratio:log() + 0.5 * (high + low) - ratio * ((-high):exp() - (-low):exp())
  end,
  ["Uniform, Normal"] = to_normal,
  ["Uniform, Pareto"] = function(p, q)
    local width = p.high - p.low
    local log_mean = (xlogy(p.high, p.high) - xlogy(p.low, p.low) - width) / width
    return where(p.low:lt(q.scale), inf, log_mean * (q.alpha + 1) - (q.alpha * q.scale ^ q.alpha * width):log())
  end,
}

-- Those whose values may be where q has none.
local infinite = {
  Beta = "Pareto", ContinuousBernoulli = "Pareto", Exponential = "Beta ContinuousBernoulli Pareto Uniform",
  Gamma = "Beta ContinuousBernoulli Pareto Uniform", Gumbel = "Beta ContinuousBernoulli Exponential Gamma Pareto Uniform",
  Laplace = "Beta ContinuousBernoulli Exponential Gamma Pareto Uniform",
  Normal = "Beta ContinuousBernoulli Exponential Gamma Pareto Uniform", Pareto = "Beta ContinuousBernoulli Uniform",
  Poisson = "Bernoulli Binomial",
}

--- Registers the formulas for two distributions.
function kl._register_all(classes)
  for names, f in pairs(formulas) do
    local p, q = names:match "(%w+), (%w+)"
    kl.register_kl(classes[p or names], classes[q or names], f)
  end
  local function always(p) return ops.full_like(any_real(p), inf) end
  for p, names in pairs(infinite) do
    for q in names:gmatch "%w+" do kl.register_kl(classes[p], classes[q], always) end
  end
end

return kl

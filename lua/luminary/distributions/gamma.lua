--- Distributions made of the gamma function. Gradients pass through their samples by implicit reparameterization.
local core = require "luminary.core"
local finfo = require("luminary.tensor.dtype_info").finfo
local combined = require "luminary.distributions.combined"
local distribution = require "luminary.distributions.distribution"
local special = require "luminary.distributions.special"
local transforms = require "luminary.distributions.transforms"
local ops, define, joined, Family = core.ops, distribution.define, distribution._joined, combined.ExponentialFamily
local lgamma, digamma, xlogy, log_gamma_sample = ops.lgamma, ops.digamma, ops.xlogy, special.log_gamma_sample
local nan, inf = 0 / 0, math.huge

local list = {}

local function sample_shape(d, shape) return joined(shape, d.batch_shape, d.event_shape) end

list.Gamma = define("Gamma", Family) {
  takes = {concentration = "positive", rate = "positive"}, order = {"concentration", "rate"}, support = "nonnegative",
  help = "Creates a gamma distribution.",
  mean = function(d) return d.concentration / d.rate end,
  mode = function(d) return ((d.concentration - 1) / d.rate):clamp(0) end,
  variance = function(d) return d.concentration / d.rate ^ 2 end,
  rsample = function(d, shape)
    local x = log_gamma_sample(d.concentration:expand(sample_shape(d, shape))):exp():to(d.rate.dtype) / d.rate
    local tiny = finfo(x.dtype).tiny -- the gradient does not see the bound
    return x + (tiny - x:detach()):clamp(0)
  end,
  log_prob = function(d, x)
    local a = d.concentration
    return xlogy(a, d.rate) + xlogy(a - 1, x) - d.rate * x - lgamma(a)
  end,
  entropy = function(d)
    local a = d.concentration
    return a - d.rate:log() + lgamma(a) + (1 - a) * digamma(a)
  end,
  cdf = function(d, x) return ops.igamma(d.concentration, d.rate * x) end,
}

list.Chi2 = define("Chi2", list.Gamma) {
  takes = {df = "positive"}, order = {"df"}, support = "nonnegative", help = "Creates a chi-squared distribution.",
  properties = {
    concentration = function(d) return d.df * 0.5 end, rate = function(d) return ops.full_like(d.df, 0.5) end,
  },
}

list.InverseGamma = combined._define "InverseGamma" {
  takes = {concentration = "positive", rate = "positive"}, order = {"concentration", "rate"}, support = "positive",
  help = "Creates an inverse gamma distribution.",
  base = function(d) return list.Gamma(d.concentration, d.rate, d.validate_args) end,
  transforms = function() return {transforms.PowerTransform(-1)} end,
  mean = function(d)
    return ops.where(d.concentration:gt(1), d.rate / (d.concentration - 1), inf)
  end,
  mode = function(d) return d.rate / (d.concentration + 1) end,
  variance = function(d)
    local a = d.concentration
    return ops.where(a:gt(2), d.rate ^ 2 / ((a - 1) ^ 2 * (a - 2)), inf)
  end,
  entropy = function(d)
    local a = d.concentration
    return a + d.rate:log() + lgamma(a) - (1 + a) * digamma(a)
  end,
}

-- lgamma(sum) - sum of lgamma, along the last dim: the constant of Dirichlet's density.
local function log_constant(a) return lgamma(a:sum(-1)) - lgamma(a):sum(-1) end

list.Dirichlet = define("Dirichlet", Family) {
  takes = {concentration = "positive"}, order = {"concentration"}, support = "simplex",
  event_dims = {concentration = 1}, help = "Creates a Dirichlet distribution.",
  mean = function(d) return d.concentration / d.concentration:sum(-1, {keepdim = true}) end,
  mode = function(d)
    local less = (d.concentration - 1):clamp(0)
    local share = less / less:sum(-1, {keepdim = true})
    local corner = ops.one_hot(share:argmax(-1), share.shape[share.ndim]):to(share.dtype)
    return ops.where(d.concentration:lt(1):all(-1, {keepdim = true}), corner, share)
  end,
  variance = function(d)
    local sum = d.concentration:sum(-1, {keepdim = true})
    return d.concentration * (sum - d.concentration) / (sum ^ 2 * (sum + 1))
  end,
  rsample = function(d, shape)
    return log_gamma_sample(d.concentration:expand(sample_shape(d, shape))):softmax(-1):to(d.concentration.dtype)
  end,
  log_prob = function(d, x) return xlogy(d.concentration - 1, x):sum(-1) + log_constant(d.concentration) end,
  entropy = function(d)
    local a, k = d.concentration, d.event_shape[1]
    local sum = a:sum(-1)
    return -log_constant(a) - (k - sum) * digamma(sum) - ((a - 1) * digamma(a)):sum(-1)
  end,
}

-- A Dirichlet of two concentrations, whose first element is a Beta's value.
local function pair(d) return list.Dirichlet(ops.stack({d.concentration1, d.concentration0}, -1), false) end

list.Beta = define("Beta", Family) {
  takes = {concentration1 = "positive", concentration0 = "positive"}, order = {"concentration1", "concentration0"},
  support = "unit_interval",
  help = "Creates a beta distribution.",
  mean = function(d) return d.concentration1 / (d.concentration1 + d.concentration0) end,
  mode = function(d) return pair(d).mode:select(-1, 1) end,
  variance = function(d)
    local a, b = d.concentration1, d.concentration0
    return a * b / ((a + b) ^ 2 * (a + b + 1))
  end,
  rsample = function(d, shape)
    local size = sample_shape(d, shape)
    local a, b = d.concentration1:expand(size), d.concentration0:expand(size)
    return (log_gamma_sample(a) - log_gamma_sample(b)):sigmoid():to(a.dtype)
  end,
  log_prob = function(d, x) return pair(d):log_prob(ops.stack({x, 1 - x}, -1)) end,
  entropy = function(d) return pair(d):entropy() end,
}

list.StudentT = define "StudentT" {
  takes = {df = "positive", loc = "real", scale = "positive"}, order = {"df", "loc", "scale"}, support = "real",
  defaults = {loc = 0, scale = 1},
  help = "Creates a Student's t-distribution.",
  mean = function(d) return ops.where(d.df:le(1), nan, d.loc) end,
  mode = function(d) return d.loc end,
  variance = function(d)
    local v = ops.where(d.df:le(2), inf, d.scale ^ 2 * d.df / (d.df - 2))
    return ops.where(d.df:le(1), nan, v)
  end,
  rsample = function(d, shape)
    local chi2 = log_gamma_sample((d.df * 0.5):expand(sample_shape(d, shape))):exp():to(d.df.dtype) * 2
    return d.loc + d.scale * d:noise("randn", shape) * (d.df / chi2):sqrt()
  end,
  log_prob = function(d, x)
    local y, v = (x - d.loc) / d.scale, d.df
    return -0.5 * (v + 1) * (y * y / v):log1p() - d.scale:log() - 0.5 * (v * math.pi):log() - lgamma(0.5 * v)
      + lgamma(0.5 * (v + 1))
  end,
  entropy = function(d)
    local v = d.df
    local log_beta = lgamma(0.5 * v) + math.log(math.sqrt(math.pi)) - lgamma(0.5 * (1 + v))
    return d.scale:log() + 0.5 * (v + 1) * (digamma(0.5 * (1 + v)) - digamma(0.5 * v)) + 0.5 * v:log() + log_beta
  end,
}

list.FisherSnedecor = define "FisherSnedecor" {
  takes = {df1 = "positive", df2 = "positive"}, order = {"df1", "df2"}, support = "positive",
  help = "Creates a Fisher-Snedecor distribution (F-distribution).",
  mean = function(d) return ops.where(d.df2:le(2), nan, d.df2 / (d.df2 - 2)) end,
  mode = function(d)
    return ops.where(d.df1:le(2), nan, (d.df1 - 2) / d.df1 * d.df2 / (d.df2 + 2))
  end,
  variance = function(d)
    local a, b = d.df1, d.df2
    return ops.where(b:le(4), nan, 2 * b ^ 2 * (a + b - 2) / (a * (b - 2) ^ 2 * (b - 4)))
  end,
  rsample = function(d, shape)
    local size = sample_shape(d, shape)
    local a, b = (d.df1 * 0.5):expand(size), (d.df2 * 0.5):expand(size)
    local log = log_gamma_sample(a) - log_gamma_sample(b)
    return log:exp():to(a.dtype) * d.df2 / d.df1
  end,
  log_prob = function(d, x)
    local a, b, ratio = d.df1 * 0.5, d.df2 * 0.5, d.df1 / d.df2
    return lgamma(a + b) - lgamma(a) - lgamma(b) + a * ratio:log() + (a - 1) * x:log() - (a + b) * (ratio * x):log1p()
  end,
}

return list

--- Distributions made of the gamma function. Gradients do not pass through their samples.
local core = require "luminary.core"
local Distribution = require "luminary.distributions.distribution"
local special = require "luminary.distributions.special"
local ops, define, joined = core.ops, Distribution.define, Distribution._joined
local lgamma, digamma = special.lgamma, special.digamma

local list = {}

-- Gamma(a, 1) for each element, in float64, by squeezed rejection; a below 1 is had from a + 1
-- (Marsaglia and Tsang 2000). The logarithm, which small a need.
local function log_gamma_sample(a)
  a = a:to("float64")
  local below = a:lt(1)
  local d = ops.where(below, a + 1, a) - 1 / 3
  local c = 1 / (9 * d):sqrt()
  local v, done
  repeat
    local x, u = ops.randn_like(d), ops.rand_like(d)
    local t = 1 + c * x
    local new = t:clamp(1e-30) ^ 3
    local good = ops.logical_and(t:gt(0), u:log():lt(0.5 * x * x + d - d * new + d * new:log()))
    v = v and ops.where(done, v, new) or new
    done = done and ops.logical_or(done, good) or good
  until done:all():item()
  local result = d:log() + v:log()
  return ops.where(below, result + ops.rand_like(d):clamp(1e-300):log() / a, result)
end

local function sample_shape(d, shape) return joined(shape, d.batch_shape, d.event_shape) end

list.Gamma = define "Gamma" {
  takes = {concentration = "positive", rate = "positive"}, order = {"concentration", "rate"}, support = "nonnegative",
  help = "Creates a gamma distribution.",
  mean = function(d) return d.concentration / d.rate end,
  mode = function(d) return ((d.concentration - 1) / d.rate):clamp(0) end,
  variance = function(d) return d.concentration / d.rate ^ 2 end,
  sample = function(d, shape)
    local log = log_gamma_sample(d.concentration:expand(sample_shape(d, shape)))
    return log:exp():to(d.rate.dtype):clamp(1e-38) / d.rate
  end,
  log_prob = function(d, x)
    local a = d.concentration
    return a * d.rate:log() + (a - 1) * x:log() - d.rate * x - lgamma(a)
  end,
  entropy = function(d)
    local a = d.concentration
    return a - d.rate:log() + lgamma(a) + (1 - a) * digamma(a)
  end,
}

-- lgamma(sum) - sum of lgamma, along the last dim: the constant of Dirichlet's density.
local function log_constant(a) return lgamma(a:sum(-1)) - lgamma(a):sum(-1) end

list.Dirichlet = define "Dirichlet" {
  takes = {concentration = "positive"}, order = {"concentration"}, support = "simplex", event_dims = 1,
  help = "Creates a Dirichlet distribution.",
  mean = function(d) return d.concentration / d.concentration:sum(-1, {keepdim = true}) end,
  variance = function(d)
    local sum = d.concentration:sum(-1, {keepdim = true})
    return d.concentration * (sum - d.concentration) / (sum ^ 2 * (sum + 1))
  end,
  sample = function(d, shape)
    return log_gamma_sample(d.concentration:expand(sample_shape(d, shape))):softmax(-1):to(d.concentration.dtype)
  end,
  log_prob = function(d, x)
    local a = d.concentration - 1
    return ops.where(a:eq(0), ops.zeros_like(a * x), a * x:log()):sum(-1) + log_constant(d.concentration)
  end,
  entropy = function(d)
    local a, k = d.concentration, d.event_shape[1]
    local sum = a:sum(-1)
    return -log_constant(a) - (k - sum) * digamma(sum) - ((a - 1) * digamma(a)):sum(-1)
  end,
}

list.Beta = define "Beta" {
  takes = {concentration1 = "positive", concentration0 = "positive"}, order = {"concentration1", "concentration0"},
  support = "unit_interval",
  help = "Creates a beta distribution.",
  mean = function(d) return d.concentration1 / (d.concentration1 + d.concentration0) end,
  mode = function(d) return (d.concentration1 - 1) / (d.concentration1 + d.concentration0 - 2) end,
  variance = function(d)
    local a, b = d.concentration1, d.concentration0
    return a * b / ((a + b) ^ 2 * (a + b + 1))
  end,
  sample = function(d, shape)
    local size = sample_shape(d, shape)
    local a, b = d.concentration1:expand(size), d.concentration0:expand(size)
    return (log_gamma_sample(a) - log_gamma_sample(b)):sigmoid():to(a.dtype)
  end,
  log_prob = function(d, x)
    local a, b = d.concentration1, d.concentration0
    return (a - 1) * x:log() + (b - 1) * (-x):log1p() + lgamma(a + b) - lgamma(a) - lgamma(b)
  end,
  entropy = function(d)
    local a, b = d.concentration1, d.concentration0
    return lgamma(a) + lgamma(b) - lgamma(a + b) - (a - 1) * digamma(a) - (b - 1) * digamma(b)
      + (a + b - 2) * digamma(a + b)
  end,
}

list.Chi2 = define("Chi2", list.Gamma) {
  takes = {df = "positive"}, order = {"df"}, support = "nonnegative",
  help = "Creates a chi-squared distribution.",
  properties = {
    concentration = function(d) return d.df * 0.5 end, rate = function(d) return ops.full_like(d.df, 0.5) end,
  },
  log_prob = list.Gamma._formula.log_prob, sample = list.Gamma._draw,
}

list.StudentT = define "StudentT" {
  takes = {df = "positive", loc = "real", scale = "positive"}, order = {"df", "loc", "scale"}, support = "real",
  defaults = {loc = 0, scale = 1},
  help = "Creates a Student's t-distribution.",
  mean = function(d) return ops.where(d.df:le(1), ops.full_like(d.loc, 0 / 0), d.loc) end,
  mode = function(d) return d.loc end,
  variance = function(d)
    local v = d.scale ^ 2 * d.df / (d.df - 2)
    v = ops.where(d.df:le(2), ops.full_like(v, math.huge), v)
    return ops.where(d.df:le(1), ops.full_like(v, 0 / 0), v)
  end,
  sample = function(d, shape)
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

return list

--- Distributions of real numbers with closed formulas.
local core = require "luminary.core"
local constraints = require "luminary.distributions.constraints"
local combined = require "luminary.distributions.combined"
local special = require "luminary.distributions.special"
local transforms = require "luminary.distributions.transforms"
local distribution = require "luminary.distributions.distribution"
local ops, define, transformed = core.ops, distribution.define, combined._define
local T, Family, binary = transforms, combined.ExponentialFamily, special.binary

local HALF_LOG_2PI = 0.5 * math.log(2 * math.pi)
local EULER = 0.57721566490153286
local nan, inf = 0 / 0, math.huge
local list = {}

local function loc(d) return d.loc end
local location = {loc = "real", scale = "positive"}

list.Normal = define("Normal", Family) {
  takes = location, order = {"loc", "scale"}, support = "real",
  help = "Creates a normal (Gaussian) distribution.",
  mean = loc, mode = loc, variance = function(d) return d.scale ^ 2 end,
  properties = {stddev = function(d) return d.scale end},
  rsample = function(d, shape) return d.loc + d:noise("randn", shape) * d.scale end,
  log_prob = function(d, x) return ((x - d.loc) / d.scale) ^ 2 * -0.5 - d.scale:log() - HALF_LOG_2PI end,
  entropy = function(d) return d.scale:log() + 0.5 + HALF_LOG_2PI end,
  cdf = function(d, x) return (1 + ops.erf((x - d.loc) / (d.scale * math.sqrt(2)))) * 0.5 end,
  icdf = function(d, p) return d.loc + d.scale * ops.erfinv(2 * p - 1) * math.sqrt(2) end,
}

list.Laplace = define "Laplace" {
  takes = location, order = {"loc", "scale"}, support = "real",
  help = "Creates a Laplace distribution.",
  mean = loc, mode = loc, variance = function(d) return d.scale ^ 2 * 2 end,
  rsample = function(d, shape) return d:icdf_of(d:noise("rand", shape)) end,
  log_prob = function(d, x) return -(2 * d.scale):log() - (x - d.loc):abs() / d.scale end,
  entropy = function(d) return 1 + (2 * d.scale):log() end,
  cdf = function(d, x)
    local z = x - d.loc
    return 0.5 - 0.5 * z:sign() * (-z:abs() / d.scale):expm1()
  end,
  icdf = function(d, p)
    local u = p - 0.5
    return d.loc - d.scale * u:sign() * (-2 * u:abs()):log1p()
  end,
}

list.Cauchy = define "Cauchy" {
  takes = location, order = {"loc", "scale"}, support = "real",
  help = "Creates a Cauchy (Lorentz) distribution.",
  mean = function(d) return ops.full_like(d.loc, nan) end, mode = loc,
  variance = function(d) return ops.full_like(d.loc, inf) end,
  rsample = function(d, shape) return d:icdf_of(d:noise("rand", shape)) end,
  log_prob = function(d, x) return -math.log(math.pi) - d.scale:log() - (((x - d.loc) / d.scale) ^ 2):log1p() end,
  entropy = function(d) return math.log(4 * math.pi) + d.scale:log() end,
  cdf = function(d, x) return ((x - d.loc) / d.scale):atan() * (1 / math.pi) + 0.5 end,
  icdf = function(d, p) return ((p - 0.5) * math.pi):tan() * d.scale + d.loc end,
}

list.Uniform = define "Uniform" {
  takes = {
    low = function(d) return constraints.less_than(d.high) end,
    high = function(d) return constraints.greater_than(d.low) end,
  },
  order = {"low", "high"}, support = function(d) return constraints.interval(d.low, d.high) end,
  help = "Creates a uniform distribution.",
  mean = function(d) return (d.low + d.high) * 0.5 end, mode = function(d) return d.high * nan end,
  variance = function(d) return (d.high - d.low) ^ 2 * (1 / 12) end,
  rsample = function(d, shape) return d.low + d:noise("rand", shape) * (d.high - d.low) end,
  log_prob = function(d, x)
    local inside = ops.logical_and(x:ge(d.low), x:lt(d.high)):to(d.low.dtype)
    return inside:log() - (d.high - d.low):log()
  end,
  entropy = function(d) return (d.high - d.low):log() end,
  cdf = function(d, x) return ((x - d.low) / (d.high - d.low)):clamp(0, {max = 1}) end,
  icdf = function(d, p) return d.low + p * (d.high - d.low) end,
}

list.Exponential = define("Exponential", Family) {
  takes = {rate = "positive"}, order = {"rate"}, support = "nonnegative",
  help = "Creates an exponential distribution.",
  mean = function(d) return 1 / d.rate end, mode = function(d) return ops.zeros_like(d.rate) end,
  variance = function(d) return d.rate ^ -2 end,
  rsample = function(d, shape) return -d:noise("rand", shape):log() / d.rate end,
  log_prob = function(d, x) return d.rate:log() - d.rate * x end,
  entropy = function(d) return 1 - d.rate:log() end,
  cdf = function(d, x) return -(-d.rate * x):expm1() end,
  icdf = function(d, p) return -(-p):log1p() / d.rate end,
}

local function is_near_zero(x) return x:detach():abs():le(1e-8) end

list.GeneralizedPareto = define "GeneralizedPareto" {
  takes = {loc = "real", scale = "positive", concentration = "real"}, order = {"loc", "scale", "concentration"},
  support = function(d)
    local bound = d.loc - d.scale / d.concentration
    return constraints.interval(d.loc, ops.where(d.concentration:lt(0), bound, inf))
  end,
  help = "Creates a generalized Pareto distribution.",
  mean = function(d)
    local c, valid = d.concentration, d.concentration:lt(1)
    return ops.where(valid, d.loc + d.scale / (1 - ops.where(valid, c, 0.5)), nan)
  end,
  mode = loc,
  variance = function(d)
    local valid = d.concentration:lt(0.5)
    local c = ops.where(valid, d.concentration, 0.25)
    return ops.where(valid, d.scale ^ 2 / ((1 - c) ^ 2 * (1 - 2 * c)), nan)
  end,
  rsample = function(d, shape) return d:icdf_of(d:noise("rand", shape)) end,
  log_prob = function(d, x)
    local z, none = (x - d.loc) / d.scale, is_near_zero(d.concentration)
    local c = ops.where(none, 1, d.concentration)
    local y = 1 / c + ops.ones_like(z)
    return -d.scale:log() - ops.where(none, z, ops.where(y:eq(0), y, y * (c * z):log1p()))
  end,
  --- Returns log(1 - cdf(x)).
  log_survival_function = function(d, x)
    local z, none = (d:value("log_survival_function", x) - d.loc) / d.scale, is_near_zero(d.concentration)
    local c = ops.where(none, 1, d.concentration)
    return ops.where(none, -z, -(c * z):log1p() / c)
  end,
  --- Returns log(cdf(x)).
  log_cdf = function(d, x) return (-d:log_survival_function(x):exp()):log1p() end,
  cdf = function(d, x) return d:log_cdf(x):exp() end,
  icdf = function(d, p)
    local none, log = is_near_zero(d.concentration), (-p):log1p()
    local c = ops.where(none, 1, d.concentration)
    return ops.where(none, d.loc - d.scale * log, d.loc + d.scale / c * (-c * log):expm1())
  end,
  entropy = function(d) return d.scale:log() + d.concentration + 1 end,
}

-- ---- on the circle

-- Coefficients of powers of (x / 3.75)^2, and of 3.75 / x, for the modified Bessel functions of order 0 and 1
-- (Abramowitz and Stegun 9.8.1 to 9.8.4).
local BESSEL = {
  [0] = {
    {1, 3.5156229, 3.0899424, 1.2067492, 0.2659732, 0.0360768, 0.0045813},
    {0.39894228, 0.01328592, 0.00225319, -0.00157565, 0.00916281, -0.02057706, 0.02635537, -0.01647633, 0.00392377},
  }, {
    {0.5, 0.87890594, 0.51498869, 0.15084934, 0.02658733, 0.00301532, 0.00032411},
    {0.39894228, -0.03988024, -0.00362018, 0.00163801, -0.01031555, 0.02282967, -0.02895312, 0.01787654, -0.00420059},
  },
}

local function polynomial(x, coefficients)
  local sum = coefficients[#coefficients]
  for i = #coefficients - 1, 1, -1 do sum = sum * x + coefficients[i] end
  return sum
end

-- The logarithm of the modified Bessel function of an order.
local function log_bessel(x, order)
  local small = polynomial((x / 3.75) ^ 2, BESSEL[order][1])
  if order == 1 then small = small * x:abs() end
  return ops.where(x:lt(3.75), small:log(), x - 0.5 * x:log() + polynomial(3.75 / x, BESSEL[order][2]):log())
end

list.VonMises = define "VonMises" {
  takes = {loc = "real", concentration = "positive"}, order = {"loc", "concentration"}, support = "real",
  help = "Creates a von Mises distribution of angles, in radians.",
  mean = loc, mode = loc,
  variance = function(d) return 1 - (log_bessel(d.concentration, 1) - log_bessel(d.concentration, 0)):exp() end,
  log_prob = function(d, x)
    return d.concentration * (x - d.loc):cos() - math.log(2 * math.pi) - log_bessel(d.concentration, 0)
  end,
  -- By rejection from a wrapped Cauchy distribution (Best and Fisher 1979), in float64.
  sample = function(d, shape)
    local k = d.concentration:to("float64"):expand(distribution._joined(shape, d.batch_shape))
    local tau = 1 + (1 + 4 * k ^ 2):sqrt()
    local rho = (tau - (2 * tau):sqrt()) / (2 * k)
    local r = ops.where(k:lt(1e-5), 1 / k + k, (1 + rho ^ 2) / (2 * rho))
    local x, done
    repeat
      local z, u, v = (ops.rand_like(k) * math.pi):cos(), ops.rand_like(k), ops.rand_like(k)
      local f = (1 + r * z) / (r + z)
      local c = k * (r - f)
      local good = ops.logical_or((c * (2 - c)):gt(u), ((c / u):log() + 1 - c):ge(0))
      local new = (v - 0.5):sign() * f:clamp(-1, {max = 1}):acos()
      x = x and ops.where(done, x, new) or new
      done = done and ops.logical_or(done, good) or good
    until done:all():item()
    return (x + math.pi + d.loc):remainder(2 * math.pi):to(d.loc.dtype) - math.pi
  end,
}

-- ---- Bernoulli's, of real numbers

-- Formulas have a singularity at 1/2, where a series is used between d.lims: f(cut probs), or series(probs - 1/2).
local function around_half(d, f, series)
  local p = d.probs
  local outside = ops.logical_or(p:le(d.lims[1]), p:gt(d.lims[2]))
  local cut = ops.where(outside, p, d.lims[1])
  return ops.where(outside, f(cut), series(p - 0.5))
end

list.ContinuousBernoulli = define("ContinuousBernoulli", Family) {
  takes = {probs = "unit_interval", logits = "real"}, order = {"probs", "logits", "lims"}, either = {"probs", "logits"},
  plain = {lims = "list?"}, defaults = {lims = {0.499, 0.501}}, support = "unit_interval",
  help = "Creates a continuous Bernoulli distribution, of real numbers from 0 to 1", properties = {
    probs = function(d) return special.clamp_probs(d.logits:sigmoid()) end, logits = binary.logits,
  },
  made = function(d, given) if given.probs then d.probs = core.keep(special.clamp_probs(d.probs)) end end,
  log_norm = function(d)
    return around_half(d, function(p)
      local below = p:le(0.5)
      local apart = ops.where(below, 1 - 2 * ops.where(below, p, 0), 2 * ops.where(below, 1, p) - 1)
      return ((-p):log1p() - p:log()):abs():log() - apart:log()
    end, function(x) return math.log(2) + (4 / 3 + 104 / 45 * x ^ 2) * x ^ 2 end)
  end,
  mean = function(d)
    return around_half(d, function(p) return p / (2 * p - 1) + 1 / ((-p):log1p() - p:log()) end,
      function(x) return 0.5 + (1 / 3 + 16 / 45 * x ^ 2) * x end)
  end,
  variance = function(d)
    return around_half(d, function(p) return p * (p - 1) / (1 - 2 * p) ^ 2 + 1 / ((-p):log1p() - p:log()) ^ 2 end,
      function(x) return 1 / 12 - (1 / 15 - 128 / 945 * x ^ 2) * x ^ 2 end)
  end,
  rsample = function(d, shape) return d:icdf_of(d:noise("rand", shape)) end,
  log_prob = function(d, x) return special.bernoulli_log_prob(d.logits, x) + d:log_norm() end,
  cdf = function(d, x)
    local p = around_half(d, function(p) return (p ^ x * (1 - p) ^ (1 - x) + p - 1) / (2 * p - 1) end,
      function() return x end)
    return ops.where(x:le(0), 0, ops.where(x:ge(1), 1, p))
  end,
  icdf = function(d, u)
    return around_half(d, function(p) return ((u * (2 * p - 1) - p):log1p() - (-p):log1p()) / (p:log() - (-p):log1p()) end,
      function() return u end)
  end,
  entropy = function(d)
    local none = (-d.probs):log1p()
    return d.mean * (none - d.probs:log()) - d:log_norm() - none
  end,
}

-- ---- transforms of others

list.LogNormal = transformed "LogNormal" {
  takes = location, order = {"loc", "scale"}, support = "positive",
  help = "Creates a log-normal distribution.",
  base = function(d) return list.Normal(d.loc, d.scale, d.validate_args) end,
  transforms = function() return {T.ExpTransform()} end,
  mean = function(d) return (d.loc + d.scale ^ 2 * 0.5):exp() end,
  mode = function(d) return (d.loc - d.scale ^ 2):exp() end,
  variance = function(d) return (d.scale ^ 2):expm1() * (2 * d.loc + d.scale ^ 2):exp() end,
  entropy = function(d) return d.base_dist:entropy() + d.loc end,
}

-- |x| of values of a distribution that is symmetric about 0.
local function half(name, entry)
  entry.takes, entry.order, entry.support = {scale = "positive"}, {"scale"}, "nonnegative"
  entry.transforms = function() return {T.AbsTransform()} end
  entry.mode = function(d) return ops.zeros_like(d.scale) end
  entry.log_prob = function(d, x)
    return ops.where(x:ge(0), d.base_dist:log_prob(x) + math.log(2), -inf)
  end
  entry.cdf = function(d, x) return 2 * d.base_dist:cdf(x) - 1 end
  entry.icdf = function(d, p) return d.base_dist:icdf((p + 1) / 2) end
  entry.entropy = function(d) return d.base_dist:entropy() - math.log(2) end
  list[name] = transformed(name)(entry)
end

half("HalfNormal", {
  help = "Creates a half-normal distribution.",
  base = function(d) return list.Normal(0, d.scale, false) end,
  mean = function(d) return d.scale * math.sqrt(2 / math.pi) end,
  variance = function(d) return d.scale ^ 2 * (1 - 2 / math.pi) end,
})
half("HalfCauchy", {
  help = "Creates a half-Cauchy distribution.",
  base = function(d) return list.Cauchy(0, d.scale, false) end,
  mean = function(d) return ops.full_like(d.scale, inf) end, variance = function(d) return d.base_dist.variance end,
})

list.Gumbel = transformed "Gumbel" {
  takes = location, order = {"loc", "scale"}, support = "real",
  help = "Creates a Gumbel distribution.",
  base = function(d)
    local info = special.finfo(d.loc.dtype)
    return list.Uniform(ops.full_like(d.loc, info.tiny), ops.full_like(d.loc, 1 - info.eps), d.validate_args)
  end,
  transforms = function(d)
    local log = T.ExpTransform():inv()
    return {log, T.AffineTransform(0, -1), log, T.AffineTransform(d.loc, -d.scale)}
  end,
  mean = function(d) return d.loc + d.scale * EULER end, mode = loc,
  variance = function(d) return d.scale ^ 2 * (math.pi ^ 2 / 6) end,
  log_prob = function(d, x)
    local y = (d.loc - x) / d.scale
    return y - y:exp() - d.scale:log()
  end,
  entropy = function(d) return d.scale:log() + (1 + EULER) end,
}

list.Pareto = transformed "Pareto" {
  takes = {scale = "positive", alpha = "positive"}, order = {"scale", "alpha"},
  support = function(d) return constraints.greater_than_eq(d.scale) end,
  help = "Creates a Pareto distribution of type 1.",
  base = function(d) return list.Exponential(d.alpha, d.validate_args) end,
  transforms = function(d) return {T.ExpTransform(), T.AffineTransform(0, d.scale)} end,
  mean = function(d)
    local a = d.alpha:clamp(1)
    return a * d.scale / (a - 1)
  end,
  mode = function(d) return d.scale end,
  variance = function(d)
    local a = d.alpha:clamp(2)
    return d.scale ^ 2 * a / ((a - 1) ^ 2 * (a - 2))
  end,
  entropy = function(d) return (d.scale / d.alpha):log() + 1 + 1 / d.alpha end,
}

list.Weibull = transformed "Weibull" {
  takes = {scale = "positive", concentration = "positive"}, order = {"scale", "concentration"}, support = "positive",
  help = "Creates a Weibull distribution.",
  base = function(d) return list.Exponential(ops.ones_like(d.scale), d.validate_args) end,
  transforms = function(d) return {T.PowerTransform(1 / d.concentration), T.AffineTransform(0, d.scale)} end,
  mean = function(d) return d.scale * ops.lgamma(1 + 1 / d.concentration):exp() end,
  mode = function(d) return d.scale * ((d.concentration - 1) / d.concentration) ^ (1 / d.concentration) end,
  variance = function(d)
    local inverse = 1 / d.concentration
    return d.scale ^ 2 * (ops.lgamma(1 + 2 * inverse):exp() - (2 * ops.lgamma(1 + inverse)):exp())
  end,
  entropy = function(d) return EULER * (1 - 1 / d.concentration) + (d.scale / d.concentration):log() + 1 end,
}

list.Kumaraswamy = transformed "Kumaraswamy" {
  takes = {concentration1 = "positive", concentration0 = "positive"}, order = {"concentration1", "concentration0"},
  support = "unit_interval", help = "Creates a Kumaraswamy distribution.",
  base = function(d)
    return list.Uniform(ops.zeros_like(d.concentration0), ops.ones_like(d.concentration0), d.validate_args)
  end,
  transforms = function(d)
    return {T.PowerTransform(1 / d.concentration0), T.AffineTransform(1, -1), T.PowerTransform(1 / d.concentration1)}
  end,
  -- The n-th moment.
  moment = function(d, n)
    local a, b = 1 + n / d.concentration1, d.concentration0
    return b * (ops.lgamma(a) + ops.lgamma(b) - ops.lgamma(a + b)):exp()
  end,
  mean = function(d) return d:moment(1) end,
  mode = function(d)
    local a, b = d.concentration1, d.concentration0
    local log = (-b):log1p() / b - (-a * b):log1p()
    return ops.where(ops.logical_or(a:lt(1), b:lt(1)), nan, log):exp()
  end,
  variance = function(d) return d:moment(2) - d:moment(1) ^ 2 end,
  entropy = function(d)
    local a, b = d.concentration1, d.concentration0
    return 1 - 1 / b + (1 - 1 / a) * (ops.digamma(b + 1) + EULER) - a:log() - b:log()
  end,
}

list.LogisticNormal = transformed "LogisticNormal" {
  takes = location, order = {"loc", "scale"}, support = "simplex",
  help = "Creates a logistic-normal distribution, of vectors of probabilities.",
  base = function(d)
    local base = list.Normal(d.loc, d.scale, d.validate_args)
    return #base.batch_shape == 0 and base:expand {1} or base
  end,
  transforms = function() return {T.StickBreakingTransform()} end,
  expand = function(d, batch_shape)
    local size = distribution._joined(batch_shape, {d.event_shape[1] - 1})
    return list.LogisticNormal(d.loc:expand(size), d.scale:expand(size), d.validate_args)
  end,
}

return list

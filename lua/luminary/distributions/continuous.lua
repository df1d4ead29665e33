--- Defines distributions of real numbers that have closed formulas.
local core = require "luminary.core"
local constraints = require "luminary.distributions.constraints"
local combined = require "luminary.distributions.combined"
local known = require("luminary.distributions.formulas").known
local distribution = require "luminary.distributions.distribution"
local T = require "luminary.distributions.transforms"
local finfo = require("luminary.tensor.dtype_info").finfo
local ops, define, transformed, Family = core.ops, distribution.define, combined._define, combined.ExponentialFamily

local list = {}
local location = "loc: real, scale: positive"

list.Normal = define("Normal", Family) {
  takes = location, support = "real", help = "Creates a normal (Gaussian) distribution.",
  mean = "loc", mode = "loc", variance = "scale ^ 2", properties = {stddev = "scale"},
  rsample = "loc + normal * scale", log_prob = "((x - loc) / scale) ^ 2 * -0.5 - log(scale) - 0.5 * LOG_2PI",
  entropy = "log(scale) + 0.5 + 0.5 * LOG_2PI", cdf = "(1 + erf((x - loc) / (scale * SQRT2))) * 0.5",
  icdf = "loc + scale * erfinv(2 * x - 1) * SQRT2",
}
list.Laplace = define "Laplace" {
  takes = location, support = "real", help = "Creates a Laplace distribution.",
  mean = "loc", mode = "loc", variance = "scale ^ 2 * 2", rsample = 'd:_formula_of("icdf", uniform)',
  log_prob = "-log(2 * scale) - abs(x - loc) / scale", entropy = "1 + log(2 * scale)",
  cdf = "0.5 - 0.5 * sign(x - loc) * expm1(-abs(x - loc) / scale)",
  icdf = "loc - scale * sign(x - 0.5) * log1p(-2 * abs(x - 0.5))",
}
list.Cauchy = define "Cauchy" {
  takes = location, support = "real", help = "Creates a Cauchy (Lorentz) distribution.",
  mean = "filled(loc, nan)", mode = "loc", variance = "filled(loc, inf)", rsample = 'd:_formula_of("icdf", uniform)',
  log_prob = "-LOG_PI - log(scale) - log1p(((x - loc) / scale) ^ 2)", entropy = "2 * LN2 + LOG_PI + log(scale)",
  cdf = "atan((x - loc) / scale) * (1 / pi) + 0.5", icdf = "tan((x - 0.5) * pi) * scale + loc",
}
list.Uniform = define "Uniform" {
  takes = "low, high", limits = {
    low = function(d) return constraints.less_than(d.high) end,
    high = function(d) return constraints.greater_than(d.low) end,
  },
  support = function(d) return constraints.interval(d.low, d.high) end,
  help = "Creates a uniform distribution.",
  mean = "(low + high) * 0.5", mode = "high * nan", variance = "(high - low) ^ 2 * (1 / 12)",
  rsample = "low + uniform * (high - low)", entropy = "log(high - low)",
  log_prob = "log(flags(both(ge(x, low), lt(x, high)), low)) - log(high - low)",
  cdf = "clamp((x - low) / (high - low), 0, 1)", icdf = "low + x * (high - low)",
}
list.Exponential = define("Exponential", Family) {
  takes = "rate: positive", support = "nonnegative", help = "Creates an exponential distribution.",
  mean = "1 / rate", mode = "zeros_like(rate)", variance = "rate ^ -2", rsample = "-log(uniform) / rate",
  log_prob = "log(rate) - rate * x", entropy = "1 - log(rate)", cdf = "-expm1(-rate * x)", icdf = "-log1p(-x) / rate",
}

-- Returns a formula that takes its limit for concentration 0 where `none` is true; c is the concentration, or 1 there.
local function with_shape(...)
  return {"none = le(abs(concentration:detach()), 1e-8)", "c = where(none, 1, concentration)", ...}
end
list.GeneralizedPareto = define "GeneralizedPareto" {
  takes = "loc: real, scale: positive, concentration: real",
  support = function(d)
    local bound = d.loc - d.scale / d.concentration
    return constraints.interval(d.loc, ops.where(d.concentration:lt(0), bound, math.huge))
  end,
  help = "Creates a generalized Pareto distribution.", mode = "loc", entropy = "log(scale) + concentration + 1",
  mean = {"ok = lt(concentration, 1)", "where(ok, loc + scale / (1 - where(ok, concentration, 0.5)), nan)"},
  variance = {
    "ok = lt(concentration, 0.5)", "c = where(ok, concentration, 0.25)",
    "where(ok, scale ^ 2 / ((1 - c) ^ 2 * (1 - 2 * c)), nan)",
  },
  rsample = 'd:_formula_of("icdf", uniform)',
  log_prob = with_shape("z = (x - loc) / scale", "y = 1 / c + ones_like(z)",
    "-log(scale) - where(none, z, where(eq(y, 0), y, y * log1p(c * z)))"),
  survival = with_shape("z = (x - loc) / scale", "where(none, -z, -log1p(c * z) / c)"),
  --- Returns log(1 - cdf(x)).
  log_survival_function = function(d, x) return d:_formula_of("survival", d:value("log_survival_function", x)) end,
  --- Returns log(cdf(x)).
  log_cdf = function(d, x) return known.log1p(-d:log_survival_function(x):exp()) end,
  cdf = "exp(d:log_cdf(x))",
  icdf = with_shape("y = log1p(-x)", "where(none, loc - scale * y, loc + scale / c * expm1(-c * y))"),
}

-- ---- on the circle

-- Coefficients of the modified Bessel functions of order 0 and 1: of powers of (x / 3.75)^2 below 3.75, of powers of
-- 3.75 / x above (Abramowitz and Stegun 9.8.1 to 9.8.4).
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

-- Returns the logarithm of the modified Bessel function of order 0 or 1.
local function log_bessel(x, order)
  local small = polynomial((x / 3.75) ^ 2, BESSEL[order][1])
  if order == 1 then small = small * x:abs() end
  return ops.where(x:lt(3.75), small:log(), x - 0.5 * x:log() + polynomial(3.75 / x, BESSEL[order][2]):log())
end

list.VonMises = define "VonMises" {
  takes = "loc: real, concentration: positive", support = "real",
  help = "Creates a von Mises distribution of angles, in radians.", mean = "loc", mode = "loc",
  variance = function(d) return 1 - (log_bessel(d.concentration, 1) - log_bessel(d.concentration, 0)):exp() end,
  log_prob = function(d, x)
    return d.concentration * (x - d.loc):cos() - math.log(2 * math.pi) - log_bessel(d.concentration, 0)
  end,
  -- Draws by rejection from a wrapped Cauchy distribution (Best and Fisher 1979), in float64.
  sample = function(d, shape)
    local k = d.concentration:to("float64"):expand(known.joined(shape, d.batch_shape))
    k = ops.where(k:ge(0), k, 0 / 0)
    local tau = 1 + (1 + 4 * k ^ 2):sqrt()
    local rho = (tau - (2 * tau):sqrt()) / (2 * k)
    local r = ops.where(k:lt(1e-5), 1 / k + k, (1 + rho ^ 2) / (2 * rho))
    -- Large concentrations are nearly normal: there r - f has no digits left.
    local done = k:gt(1e7)
    local x = ops.randn_like(k) / k:sqrt()
    while not done:all():item() do
      local z, u, v = (ops.rand_like(k) * math.pi):cos(), ops.rand_like(k), ops.rand_like(k)
      local f = (1 + r * z) / (r + z)
      local c = k * (r - f)
      local good = ops.logical_or((c * (2 - c)):gt(u), ((c / u):log() + 1 - c):ge(0)):logical_or(f:isnan())
      x = ops.where(done, x, (v - 0.5):sign() * f:clamp(-1, {max = 1}):acos())
      done = done:logical_or(good)
    end
    return (x + math.pi + d.loc):remainder(2 * math.pi):to(d.loc.dtype) - math.pi
  end,
}

-- ---- ContinuousBernoulli

-- Returns a property's statements, in float64: `formula` of c, the probability, or, between d.lims and within `reach`
-- of 1/2, where that cancels or is 0 / 0, `series` of h = probs - 1/2 and y = h^2.
local function around_half(reach, formula, series)
  return {
    "p = double(probs)", "h = p - 0.5",
    ("near = either(lt(abs(h), %g), both(gt(p, lims[1]), le(p, lims[2])))"):format(reach),
    "c = where(near, 0.25, p)", "logit = log(c) - log1p(-c)", "u = x and double(x)", "y = h ^ 2",
    ("in_dtype(where(near, %s, %s), probs)"):format(series, formula),
  }
end

list.ContinuousBernoulli = define("ContinuousBernoulli", Family) {
  takes = "probs: unit_interval, logits: real, lims", either = {"probs", "logits"},
  plain = {lims = "list?"}, defaults = {lims = {0.499, 0.501}}, support = "unit_interval",
  help = "Creates a continuous Bernoulli distribution, of real numbers from 0 to 1",
  after_init = function(d, given) if given.probs then d.probs = core.keep(known.clamp_probs(d.probs)) end end,
  properties = {
    probs = "clamp_probs(sigmoid(logits))", logits = "log(probs) - log1p(-probs)",
    log_norm = around_half(0.01, "log(logit / (2 * c - 1))",
      "LN2 + (4 / 3 + (104 / 45 + 16064 / 2835 * y) * y) * y"),
  },
  mean = around_half(0.01, "c / (2 * c - 1) - 1 / logit", "0.5 + (1 / 3 + (16 / 45 + 704 / 945 * y) * y) * h"),
  variance = around_half(0.01, "1 / logit ^ 2 - c * (1 - c) / (1 - 2 * c) ^ 2",
    "1 / 12 - (1 / 15 + (128 / 945 + 4864 / 14175 * y) * y) * y"),
  rsample = 'd:_formula_of("icdf", uniform)', log_prob = "bernoulli_log_prob(logits, x) + log_norm",
  inside = around_half(0, "expm1(u * logit) / expm1(logit)", "u - 2 * h * u * (1 - u) * (1 + h * (2 * u - 1) * 2 / 3)"),
  cdf = 'where(le(x, 0), 0, where(ge(x, 1), 1, d:_formula_of("inside", x)))',
  icdf = around_half(0, "log1p(u * expm1(logit)) / logit", "u + 2 * h * u * (1 - u) * (1 - h * (2 * u - 1) * 4 / 3)"),
  entropy = "mean * (log1p(-probs) - log(probs)) - log_norm - log1p(-probs)",
}

-- ---- transforms of others

list.LogNormal = transformed "LogNormal" {
  takes = location, support = "positive", help = "Creates a log-normal distribution.",
  base = function(d) return list.Normal(d.loc, d.scale, d.validate_args), T.ExpTransform() end,
  mean = "exp(loc + scale ^ 2 * 0.5)", mode = "exp(loc - scale ^ 2)",
  variance = "-expm1(-scale ^ 2) * exp(2 * (loc + scale ^ 2))", entropy = "base_dist:entropy() + loc",
}

-- Defines the distribution of |x| for x of a distribution that is symmetric about 0.
local function half(name, entry)
  entry.takes, entry.support, entry.mode = "scale: positive", "nonnegative", "zeros_like(scale)"
  entry.log_prob, entry.cdf = "where(ge(x, 0), base_dist:log_prob(x) + LN2, -inf)", "2 * base_dist:cdf(x) - 1"
  entry.icdf, entry.entropy = "base_dist:icdf((x + 1) / 2)", "base_dist:entropy() - LN2"
  list[name] = transformed(name)(entry)
end

half("HalfNormal", {
  help = "Creates a half-normal distribution.", mean = "scale * (2 / pi) ^ 0.5", variance = "scale ^ 2 * (1 - 2 / pi)",
  base = function(d) return list.Normal(0, d.scale, false), T.AbsTransform() end,
})
half("HalfCauchy", {
  help = "Creates a half-Cauchy distribution.", mean = "filled(scale, inf)", variance = "filled(scale, inf)",
  base = function(d) return list.Cauchy(0, d.scale, false), T.AbsTransform() end,
})
list.Gumbel = transformed "Gumbel" {
  takes = location, support = "real", help = "Creates a Gumbel distribution.",
  base = function(d)
    local info, log = finfo(d.loc.dtype), T.ExpTransform():inv()
    local base = list.Uniform(ops.full_like(d.loc, info.tiny), ops.full_like(d.loc, 1 - info.eps), d.validate_args)
    return base, log, T.AffineTransform(0, -1), log, T.AffineTransform(d.loc, -d.scale)
  end,
  mean = "loc + scale * EULER", mode = "loc", variance = "scale ^ 2 * (pi ^ 2 / 6)",
  log_prob = {"y = (loc - x) / scale", "y - exp(y) - log(scale)"}, entropy = "log(scale) + (1 + EULER)",
}
list.Pareto = transformed "Pareto" {
  takes = "scale: positive, alpha: positive",
  support = function(d) return constraints.greater_than_eq(d.scale) end,
  help = "Creates a Pareto distribution of type 1.",
  base = function(d)
    return list.Exponential(d.alpha, d.validate_args), T.ExpTransform(), T.AffineTransform(0, d.scale)
  end,
  mean = {"a = clamp(alpha, 1)", "a * scale / (a - 1)"}, mode = "scale",
  variance = {"a = clamp(alpha, 2)", "scale ^ 2 * a / ((a - 1) ^ 2 * (a - 2))"},
  entropy = "log(scale / alpha) + 1 + 1 / alpha",
}
list.Weibull = transformed "Weibull" {
  takes = "scale: positive, concentration: positive", support = "positive", help = "Creates a Weibull distribution.",
  base = function(d)
    return list.Exponential(ops.ones_like(d.scale), d.validate_args), T.PowerTransform(1 / d.concentration),
      T.AffineTransform(0, d.scale)
  end,
  mean = "scale * exp(lgamma(1 + 1 / concentration))",
  mode = "scale * ((concentration - 1) / concentration) ^ (1 / concentration)",
  variance = {
    "k = 1 / concentration", "log = lgamma(1 + 2 * k)", "scale ^ 2 * exp(log) * -expm1(2 * lgamma(1 + k) - log)",
  },
  entropy = "EULER * (1 - 1 / concentration) + log(scale / concentration) + 1",
}
list.Kumaraswamy = transformed "Kumaraswamy" {
  takes = "concentration1: positive, concentration0: positive",
  support = "unit_interval", help = "Creates a Kumaraswamy distribution.",
  base = function(d)
    local a, b = d.concentration1, d.concentration0
    return list.Uniform(ops.zeros_like(b), ops.ones_like(b), d.validate_args), T.PowerTransform(1 / b),
      T.AffineTransform(1, -1), T.PowerTransform(1 / a)
  end,
  moment = {"a = 1 + x / concentration1", "b = concentration0", "b * exp(lgamma(a) + lgamma(b) - lgamma(a + b))"},
  mean = 'd:_formula_of("moment", 1)', variance = 'd:_formula_of("moment", 2) - mean ^ 2',
  mode = {
    "a = concentration1", "b = concentration0",
    "exp(where(either(lt(a, 1), lt(b, 1)), nan, log1p(-b) / b - log1p(-a * b)))",
  },
  entropy = {
    "a = concentration1", "b = concentration0",
    "1 - 1 / b + (1 - 1 / a) * (digamma(b + 1) + EULER) - log(a) - log(b)",
  },
}
list.LogisticNormal = transformed "LogisticNormal" {
  takes = location, support = "simplex", help = "Creates a logistic-normal distribution, of vectors of probabilities.",
  base = function(d)
    local base = list.Normal(d.loc, d.scale, d.validate_args)
    return #base.batch_shape == 0 and base:expand {1} or base, T.StickBreakingTransform()
  end,
  expand = function(d, batch_shape)
    local size = known.joined(batch_shape, {d.event_shape[1] - 1})
    return list.LogisticNormal(d.loc:expand(size), d.scale:expand(size), d.validate_args)
  end,
}

return list

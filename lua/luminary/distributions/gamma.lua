--- Defines distributions made of gamma samples, through which gradients pass by implicit reparameterization.
local core = require "luminary.core"
local combined = require "luminary.distributions.combined"
local distribution = require "luminary.distributions.distribution"
local transforms = require "luminary.distributions.transforms"
local ops, define, Family = core.ops, distribution.define, combined.ExponentialFamily

local list = {}

local shape_and_rate = "concentration: positive, rate: positive"

list.Gamma = define("Gamma", Family) {
  takes = shape_and_rate, support = "nonnegative", help = "Creates a gamma distribution.",
  mean = "concentration / rate", mode = "clamp((concentration - 1) / rate, 0)", variance = "concentration / rate ^ 2",
  rsample = { -- the clamp to values above 0 has no gradient
    "y = in_dtype(exp(log_gamma_sample(d:drawn(concentration, x))), rate) / rate",
    "y + clamp(tiny_of(y) - y:detach(), 0)",
  },
  log_prob = "xlogy(concentration, rate) + xlogy(concentration - 1, x) - rate * x - lgamma(concentration)",
  entropy = "concentration - log(rate) + lgamma(concentration) + (1 - concentration) * digamma(concentration)",
  cdf = "igamma(concentration, rate * x)",
}
list.Chi2 = define("Chi2", list.Gamma) {
  takes = "df: positive", support = "nonnegative", help = "Creates a chi-squared distribution.",
  properties = {concentration = "df * 0.5", rate = "filled(df, 0.5)"},
}
list.InverseGamma = combined._define "InverseGamma" {
  takes = shape_and_rate, support = "positive", help = "Creates an inverse gamma distribution.",
  base = function(d) return list.Gamma(d.concentration, d.rate, d.validate_args), transforms.PowerTransform(-1) end,
  mean = "where(gt(concentration, 1), rate / (concentration - 1), inf)", mode = "rate / (concentration + 1)",
  variance = {"a = concentration", "where(gt(a, 2), rate ^ 2 / ((a - 1) ^ 2 * (a - 2)), inf)"},
  entropy = {"a = concentration", "a + log(rate) + lgamma(a) - (1 + a) * digamma(a)"},
}
list.Dirichlet = define("Dirichlet", Family) {
  takes = "concentration: positive", support = "simplex",
  event_dims = {concentration = 1}, help = "Creates a Dirichlet distribution.",
  mean = "concentration / keep_sum(concentration)",
  mode = {
    "less = clamp(concentration - 1, 0)", "share = less / keep_sum(less)",
    "where(lt(concentration, 1):all(-1, true), one_hot_like(share), share)",
  },
  variance = {
    "sum = keep_sum(concentration)", "concentration * (sum - concentration) / (sum ^ 2 * (sum + 1))",
  },
  rsample = "in_dtype(log_gamma_sample(d:drawn(concentration, x)):softmax(-1), concentration)",
  properties = {log_norm = "lgamma(concentration):sum(-1) - lgamma(concentration:sum(-1))"},
  log_prob = "xlogy(concentration - 1, x):sum(-1) - log_norm",
  entropy = {
    "a = concentration", "sum = a:sum(-1)",
    "log_norm - (event_shape[1] - sum) * digamma(sum) - ((a - 1) * digamma(a)):sum(-1)",
  },
}
list.Beta = define("Beta", Family) {
  takes = "concentration1: positive, concentration0: positive",
  support = "unit_interval", help = "Creates a beta distribution.",
  -- pair: the Dirichlet of both concentrations, whose first element is the value
  properties = {
    pair = function(d) return list.Dirichlet(ops.stack({d.concentration1, d.concentration0}, -1), false) end,
  },
  mean = "concentration1 / (concentration1 + concentration0)", mode = "pair.mode:select(-1, 1)",
  variance = {"a = concentration1", "b = concentration0", "a * b / ((a + b) ^ 2 * (a + b + 1))"},
  rsample = {
    "a = log_gamma_sample(d:drawn(concentration1, x))", "b = log_gamma_sample(d:drawn(concentration0, x))",
    "in_dtype(sigmoid(a - b), concentration1)",
  },
  log_prob = "pair:log_prob(stack({x, 1 - x}, -1))", entropy = "pair:entropy()",
}
list.StudentT = define "StudentT" {
  takes = "df: positive, loc: real, scale: positive", support = "real",
  defaults = {loc = 0, scale = 1}, help = "Creates a Student's t-distribution.",
  mean = "where(le(df, 1), nan, loc)", mode = "loc",
  variance = "where(le(df, 1), nan, where(le(df, 2), inf, scale ^ 2 * df / (df - 2)))",
  rsample = {
    "half = in_dtype(exp(log_gamma_sample(d:drawn(df * 0.5, x))), df)", "loc + scale * normal * sqrt(df / (2 * half))",
  },
  -- log_norm: the logarithm of the density's constant for a scale of 1
  properties = {log_norm = "0.5 * log(df) + 0.5 * LOG_PI + lgamma(0.5 * df) - lgamma(0.5 * (df + 1))"},
  log_prob = {"y = (x - loc) / scale", "-0.5 * (df + 1) * log1p(y ^ 2 / df) - log(scale) - log_norm"},
  entropy = "log(scale) + 0.5 * (df + 1) * (digamma(0.5 * (1 + df)) - digamma(0.5 * df)) + log_norm",
}
list.FisherSnedecor = define "FisherSnedecor" {
  takes = "df1: positive, df2: positive", support = "positive",
  help = "Creates a Fisher-Snedecor distribution (F-distribution).", mean = "where(le(df2, 2), nan, df2 / (df2 - 2))",
  mode = "where(le(df1, 2), nan, (df1 - 2) / df1 * df2 / (df2 + 2))",
  variance = "where(le(df2, 4), nan, 2 * df2 ^ 2 * (df1 + df2 - 2) / (df1 * (df2 - 2) ^ 2 * (df2 - 4)))",
  rsample = {
    "log = log_gamma_sample(d:drawn(df1 * 0.5, x)) - log_gamma_sample(d:drawn(df2 * 0.5, x))",
    "in_dtype(exp(log), df1) * df2 / df1",
  },
  log_prob = {
    "a = df1 * 0.5", "b = df2 * 0.5", "ratio = df1 / df2",
    "lgamma(a + b) - lgamma(a) - lgamma(b) + a * log(ratio) + (a - 1) * log(x) - (a + b) * log1p(ratio * x)",
  },
}

return list

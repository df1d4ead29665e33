--- Distributions of real numbers with closed formulas.
local core = require "luminary.core"
local options = require "luminary.base.options"
local define = require("luminary.distributions.distribution").define
local ops = core.ops

local HALF_LOG_2PI = 0.5 * math.log(2 * math.pi)
local EULER = 0.57721566490153286
local list = {}

local function shown(t) return t:numel() == 1 and ("%.14g"):format(t:item()) or options.describe(t) end

local function loc(d) return d.loc end

-- log P of a standard normal value, less log scale.
local function normal_log_prob(z, scale) return z * z * -0.5 - scale:log() - HALF_LOG_2PI end

list.Normal = define "Normal" {
  takes = {loc = "real", scale = "positive"}, order = {"loc", "scale"}, support = "real",
  help = "Creates a normal (Gaussian) distribution.",
  mean = loc, mode = loc, variance = function(d) return d.scale ^ 2 end,
  rsample = function(d, shape) return d.loc + d:noise("randn", shape) * d.scale end,
  log_prob = function(d, x) return normal_log_prob((x - d.loc) / d.scale, d.scale) end,
  entropy = function(d) return d.scale:log() + 0.5 + HALF_LOG_2PI end,
  cdf = function(d, x) return (1 + ops.erf((x - d.loc) / (d.scale * math.sqrt(2)))) * 0.5 end,
}

list.LogNormal = define "LogNormal" {
  takes = {loc = "real", scale = "positive"}, order = {"loc", "scale"}, support = "positive",
  help = "Creates a log-normal distribution.",
  mean = function(d) return (d.loc + d.scale ^ 2 * 0.5):exp() end,
  mode = function(d) return (d.loc - d.scale ^ 2):exp() end,
  variance = function(d) return (d.scale ^ 2):expm1() * (2 * d.loc + d.scale ^ 2):exp() end,
  rsample = function(d, shape) return (d.loc + d:noise("randn", shape) * d.scale):exp() end,
  log_prob = function(d, x) return normal_log_prob((x:log() - d.loc) / d.scale, d.scale) - x:log() end,
  entropy = function(d) return d.scale:log() + d.loc + 0.5 + HALF_LOG_2PI end,
  cdf = function(d, x) return (1 + ops.erf((x:log() - d.loc) / (d.scale * math.sqrt(2)))) * 0.5 end,
}

list.HalfNormal = define "HalfNormal" {
  takes = {scale = "positive"}, order = {"scale"}, support = "nonnegative",
  help = "Creates a half-normal distribution.",
  mean = function(d) return d.scale * math.sqrt(2 / math.pi) end,
  mode = function(d) return ops.zeros_like(d.scale) end,
  variance = function(d) return d.scale ^ 2 * (1 - 2 / math.pi) end,
  rsample = function(d, shape) return d:noise("randn", shape):abs() * d.scale end,
  log_prob = function(d, x) return normal_log_prob(x / d.scale, d.scale) + math.log(2) end,
  entropy = function(d) return d.scale:log() + 0.5 + HALF_LOG_2PI - math.log(2) end,
  cdf = function(d, x) return ops.erf(x / (d.scale * math.sqrt(2))) end,
}

list.Laplace = define "Laplace" {
  takes = {loc = "real", scale = "positive"}, order = {"loc", "scale"}, support = "real",
  help = "Creates a Laplace distribution.",
  mean = loc, mode = loc, variance = function(d) return d.scale ^ 2 * 2 end,
  rsample = function(d, shape)
    local u = d:noise("rand", shape) * 2 - 1
    return d.loc - d.scale * u:sign() * (-u:abs()):clamp(-1 + 1e-7):log1p()
  end,
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
  takes = {loc = "real", scale = "positive"}, order = {"loc", "scale"}, support = "real",
  help = "Creates a Cauchy (Lorentz) distribution.",
  mean = function(d) return ops.full_like(d.loc, 0 / 0) end, mode = loc,
  variance = function(d) return ops.full_like(d.loc, math.huge) end,
  rsample = function(d, shape)
    local angle = (d:noise("rand", shape) - 0.5) * math.pi
    return d.loc + d.scale * (angle:sin() / angle:cos())
  end,
  log_prob = function(d, x) return -math.log(math.pi) - d.scale:log() - (((x - d.loc) / d.scale) ^ 2):log1p() end,
  entropy = function(d) return math.log(4 * math.pi) + d.scale:log() end,
}

list.Uniform = define "Uniform" {
  takes = {low = "real", high = "real"}, order = {"low", "high"}, support = "within",
  help = "Creates a uniform distribution.",
  made = function(d)
    if d.validate_args and not d.low:lt(d.high):all():item() then
      options.fail("Uniform: low must be less than high, got %s and %s", shown(d.low), shown(d.high))
    end
  end,
  mean = function(d) return (d.low + d.high) * 0.5 end,
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

list.Exponential = define "Exponential" {
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

list.Gumbel = define "Gumbel" {
  takes = {loc = "real", scale = "positive"}, order = {"loc", "scale"}, support = "real",
  help = "Creates a Gumbel distribution.",
  mean = function(d) return d.loc + d.scale * EULER end, mode = loc,
  variance = function(d) return d.scale ^ 2 * (math.pi ^ 2 / 6) end,
  rsample = function(d, shape)
    local u = d:noise("rand", shape):clamp(1e-38, {max = 1 - 6e-8})
    return d.loc - d.scale * (-u:log()):log()
  end,
  log_prob = function(d, x)
    local z = (x - d.loc) / d.scale
    return -z - (-z):exp() - d.scale:log()
  end,
  entropy = function(d) return d.scale:log() + (1 + EULER) end,
  cdf = function(d, x) return (-(-(x - d.loc) / d.scale):exp()):exp() end,
  icdf = function(d, p) return d.loc - d.scale * (-p:log()):log() end,
}

list.Pareto = define "Pareto" {
  takes = {scale = "positive", alpha = "positive"}, order = {"scale", "alpha"}, support = "above_scale",
  help = "Creates a Pareto distribution of type 1.",
  mean = function(d)
    local a = d.alpha:clamp(1)
    return a * d.scale / (a - 1)
  end,
  mode = function(d) return d.scale end,
  variance = function(d)
    local a = d.alpha:clamp(2)
    return d.scale ^ 2 * a / ((a - 1) ^ 2 * (a - 2))
  end,
  rsample = function(d, shape) return d.scale * (-d:noise("rand", shape):log() / d.alpha):exp() end,
  log_prob = function(d, x) return d.alpha:log() + d.alpha * d.scale:log() - (d.alpha + 1) * x:log() end,
  entropy = function(d) return (d.scale / d.alpha):log() + 1 + 1 / d.alpha end,
  cdf = function(d, x) return 1 - (d.scale / x) ^ d.alpha end,
}

return list

--- kl_divergence(p, q): the mean of log p(x) - log q(x) over p's values.
local debug = require "debug"
local class = require "luminary.base.class"
local options = require "luminary.base.options"
local finfo = require("luminary.tensor.dtype_info").finfo
local Distribution = require "luminary.distributions.distribution"
local special = require "luminary.distributions.special"
local core = require "luminary.core"
local fail, lgamma, digamma, ops = options.fail, special.lgamma, special.digamma, core.ops

local kl, table_of = {}, {}

--- register_kl(P, Q, f): Registers a function for kl_divergence of two classes.
function kl.register_kl(P, Q, f)
  class.check("register_kl", P)
  class.check("register_kl", Q)
  table_of[P] = table_of[P] or {}
  table_of[P][Q] = options.arg("register_kl", "f", f, "function")
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
  fail("kl_divergence: no formula for %s and %s; add one with register_kl", p.__name, q.__name)
end

-- p log(p / q), 0 where p is 0.
local function weighed(p, q)
  return ops.where(p:eq(0), ops.zeros_like(p * q), p * (p:log() - q:log()))
end

local function normal(p, q)
  local ratio = (p.scale / q.scale) ^ 2
  return 0.5 * (ratio + ((p.loc - q.loc) / q.scale) ^ 2 - 1 - ratio:log())
end

-- A category of probability 0 under p counts 0; one of probability 0 under q alone makes the divergence infinite.
local function categorical(p, q)
  local least = finfo(p.logits).min
  local parts = p.probs * (p.logits:clamp(least) - q.logits:clamp(least))
  return parts:masked_fill(q.probs:eq(0), math.huge):masked_fill(p.probs:eq(0), 0):sum(-1)
end

local function gamma(p, q)
  local a, b = p.concentration, q.concentration
  return b * (p.rate / q.rate):log() + lgamma(b) - lgamma(a) + (a - b) * digamma(a) + (q.rate - p.rate) * a / p.rate
end

local formulas = {
  Normal = normal, LogNormal = normal, Gamma = gamma, Categorical = categorical, OneHotCategorical = categorical,
  Bernoulli = function(p, q)
    return weighed(p.probs, q.probs) + weighed(1 - p.probs, 1 - q.probs)
  end,
  Exponential = function(p, q)
    local ratio = q.rate / p.rate
    return ratio - ratio:log() - 1
  end,
  Geometric = function(p, q) return -p:entropy() - (-q.probs):log1p() / p.probs - q.logits end,
  Laplace = function(p, q)
    local ratio, apart = p.scale / q.scale, (p.loc - q.loc):abs()
    return -ratio:log() + apart / q.scale + ratio * (-apart / p.scale):exp() - 1
  end,
  Poisson = function(p, q) return p.rate * (p.rate:log() - q.rate:log()) - (p.rate - q.rate) end,
  Uniform = function(p, q)
    local value = ((q.high - q.low) / (p.high - p.low)):log()
    local beyond = ops.logical_or(q.low:gt(p.low), q.high:lt(p.high))
    return ops.where(beyond, ops.full_like(value, math.huge), value)
  end,
  Beta = function(p, q)
    local sum_p, sum_q = p.concentration1 + p.concentration0, q.concentration1 + q.concentration0
    return lgamma(q.concentration1) + lgamma(q.concentration0) + lgamma(sum_p)
      - (lgamma(p.concentration1) + lgamma(p.concentration0) + lgamma(sum_q))
      + (p.concentration1 - q.concentration1) * digamma(p.concentration1)
      + (p.concentration0 - q.concentration0) * digamma(p.concentration0) + (sum_q - sum_p) * digamma(sum_p)
  end,
  Dirichlet = function(p, q)
    local a, b = p.concentration, q.concentration
    local sum = a:sum(-1)
    return lgamma(sum) - lgamma(b:sum(-1)) - (lgamma(a) - lgamma(b)):sum(-1)
      + ((a - b) * (digamma(a) - digamma(sum):unsqueeze(-1))):sum(-1)
  end,
  MultivariateNormal = function(p, q)
    local solve, log_diagonal = p._solve_lower, p._log_diagonal
    local trace = 0
    for j = 1, p.event_shape[1] do trace = trace + (solve(q.scale_tril, p.scale_tril:select(-1, j)) ^ 2):sum(-1) end
    local z = solve(q.scale_tril, q.loc - p.loc)
    return log_diagonal(q.scale_tril) - log_diagonal(p.scale_tril)
      + 0.5 * (trace + (z * z):sum(-1) - p.event_shape[1])
  end,
  Independent = function(p, q)
    local value = kl.kl_divergence(p.base_dist, q.base_dist)
    for _ = 1, p.reinterpreted_batch_ndims do value = value:sum(-1) end
    return value
  end,
}

--- Registers the formulas for two distributions of the same class.
function kl._register_all(classes)
  for name, f in pairs(formulas) do kl.register_kl(classes[name], classes[name], f) end
end

return kl

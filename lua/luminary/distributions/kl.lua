--- Computes kl_divergence(p, q), the mean of log p(x) - log q(x) over p's values, by formulas for pairs of classes.
local class = require "luminary.base.class"
local options = require "luminary.base.options"
local Distribution = require "luminary.distributions.distribution"
local combined = require "luminary.distributions.combined"
local sum_last = require("luminary.distributions.transforms")._sum_last
local core = require "luminary.core"
local formulas = require "luminary.distributions.formulas"
local ops, fail, known = core.ops, options.fail, formulas.known
local inf = math.huge

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
  options.arg("kl_divergence", "argument 1", p, "distribution")
  options.arg("kl_divergence", "argument 2", q, "distribution")
  local of = class.record(p).class
  while of do
    local other = class.record(q).class
    while other do
      if table_of[of] and table_of[of][other] then return table_of[of][other](p, q) end
      other = other.super
    end
    of = of.super
  end
  no_formula(p, q)
end

-- ---- formulas by cross entropy

-- Returns (high * log(high) - low * log(low)) / width - 1, without subtracting products that may be nearly equal.
function known.of_uniform(log_high, high, low, width)
  local part = width / high
  local rest = ops.where(part:gt(0.5), ops.xlogy(low, low) - low * log_high, low * (-part:clamp(0, 0.5)):log1p())
  return log_high - rest / width - 1
end
-- Formulas for the means, under p of a class, of log x and of log(1 - x), and for the logarithm of the mean of
-- exp((q.loc - x) / q.scale): each factor alone may overflow.
local of_log = {
  Exponential = "-EULER - log(p.rate)", Gamma = "digamma(p.concentration) - log(p.rate)",
  Beta = "digamma(p.concentration1) - digamma(p.concentration1 + p.concentration0)",
  Pareto = "log(p.scale) + 1 / p.alpha",
  Uniform = "of_uniform(log(p.high), p.high, p.low, p.high - p.low)",
}
local of_log_rest = {
  Beta = "digamma(p.concentration0) - digamma(p.concentration1 + p.concentration0)",
  Uniform = "of_uniform(log1p(-p.low), 1 - p.low, 1 - p.high, p.high - p.low)",
}
local of_exp = {
  Exponential = "q.loc / q.scale - log1p(1 / (p.rate * q.scale))",
  Gamma = "q.loc / q.scale - p.concentration * log1p(1 / (p.rate * q.scale))",
  Normal = "0.5 * (p.scale / q.scale) ^ 2 + (q.loc - p.loc) / q.scale",
  Gumbel = "lgamma(1 + p.scale / q.scale) + (q.loc - p.loc) / q.scale",
  Uniform = "(q.loc - p.low) / q.scale + log(-expm1((p.low - p.high) / q.scale) * q.scale / (p.high - p.low))",
}
local function compiled(texts, names)
  local all = {}
  for name, text in pairs(texts) do all[name] = formulas.compile(text, names) end
  return all
end
-- Returns function(p, q) that computes a mean by the formula of p's class. It is NaN for others, which no result shows:
-- they have values outside of q's support.
local function mean_by(texts)
  local all = compiled(texts, "p, q")
  return function(p, q)
    local of = class.record(p).class
    while of and not all[of.__name] do of = of.super end
    return of and all[of.__name](p, q) or 0 / 0
  end
end
known.mean_log, known.mean_log_rest, known.log_mean_exp = mean_by(of_log), mean_by(of_log_rest), mean_by(of_exp)

-- Returns a Pareto's alpha, or nil for other classes.
local function alpha_of(p) return class.record(p).values.alpha end

-- Returns the mean; a Pareto's by a formula without its bounds: gradients where they are infinite would be NaN.
function known.mean_of(p) return alpha_of(p) and p.alpha * p.scale / (p.alpha - 1) or p.mean end
function known.variance_of(p)
  return alpha_of(p) and p.alpha * (p.scale / (p.alpha - 1)) ^ 2 / (p.alpha - 2) or p.variance
end

-- Formulas for the mean of -log q(x) over p's values, by the class of q.
local cross = compiled({
  Normal = "0.5 * LOG_2PI + log(q.scale) + (variance_of(p) + (mean_of(p) - q.loc) ^ 2) / (2 * q.scale ^ 2)",
  Exponential = "q.rate * mean_of(p) - log(q.rate)",
  Gamma = "lgamma(q.concentration) - q.concentration * log(q.rate) + (1 - q.concentration) * mean_log(p)"
    .. " + q.rate * mean_of(p)",
  Beta = "lgamma(q.concentration1) + lgamma(q.concentration0) - lgamma(q.concentration1 + q.concentration0)"
    .. " + (1 - q.concentration1) * mean_log(p) + (1 - q.concentration0) * mean_log_rest(p)",
  ContinuousBernoulli = "-mean_of(p) * q.logits - log1p(-q.probs) - q.log_norm",
  Gumbel = "log(q.scale) + (mean_of(p) - q.loc) / q.scale + exp(log_mean_exp(p, q))",
  Pareto = "(q.alpha + 1) * mean_log(p) - log(q.alpha) - q.alpha * log(q.scale)", Uniform = "log(q.high - q.low)",
}, "p, q")

-- Classes of p for which the cross entropies above are valid, each with the classes of q for which they are not.
local without = {
  Beta = "Gumbel", ContinuousBernoulli = "Beta Gamma Gumbel", Exponential = "", Gamma = "", Gumbel = "",
  Laplace = "Gumbel", Normal = "", Pareto = "Gumbel", Uniform = "",
}

local function exceeds(a, b) -- numbers or tensors
  if core.is_tensor(a) then return a:gt(b) end
  if core.is_tensor(b) then return b:lt(a) end
  return a > b
end
local function everywhere(p, q, value)
  local like = p:first_parameter()
  return ops.full(Distribution.broadcast("kl_divergence", {p.batch_shape, q.batch_shape}), value,
    {dtype = like.dtype, device = like.device})
end

-- Returns function(p, q) that computes the divergence: the cross entropy by q's formula in `cross`, less p's entropy.
-- It is infinite where p has values outside of q's support, or an infinite moment that q requires.
local function cross_entropy(q_name)
  return function(p, q)
    local of_p, of_q = p.support, q.support
    local below = exceeds(of_q.lower_bound or -inf, of_p.lower_bound or -inf)
    local above = exceeds(of_p.upper_bound or inf, of_q.upper_bound or inf)
    if below == true or above == true then return everywhere(p, q, inf) end
    local value = cross[q_name](p, q) - p:entropy()
    if below then value = ops.where(below, inf, value) end
    if above then value = ops.where(above, inf, value) end
    local moments = ({Normal = 2, Exponential = 1, Gamma = 1})[q_name]
    return alpha_of(p) and moments and ops.where(p.alpha:le(moments), inf, value) or value
  end
end

-- ---- other formulas

local function normals(p, q)
  local n, trace = p.event_shape[1], 0
  if q.event_shape[1] ~= n then
    fail("kl_divergence: event_shape must be the same, got [%d] and [%d]", n, q.event_shape[1])
  end
  for _, root in ipairs(p:_roots()) do trace = trace + q:_formula_of("trace", root) end
  return 0.5 * (q.log_det - p.log_det + trace + q:_formula_of("mahalanobis", q.loc - p.loc) - n)
end

-- Returns true if two transforms have one class and equal parameters.
local function is_equal(a, b)
  if core.is_tensor(a) and core.is_tensor(b) then
    return table.concat(a.shape, " ") == table.concat(b.shape, " ") and a:eq(b):all():item()
  elseif type(a) == "table" and type(b) == "table" then
    local same = #a == #b
    for key, v in pairs(a) do same = same and (tostring(key):find "domain$" or is_equal(v, b[key])) end
    return same
  end
  local x, y = class.record(a), class.record(b)
  if x and y and x.class == y.class then return is_equal(x.values, y.values) end
  return a == b
end

local categorical = {
  "parts = p.probs * (p.logits - q.logits)",
  "masked_fill(masked_fill(parts, eq(q.probs, 0), inf), eq(p.probs, 0), 0):sum(-1)",
}

-- Formulas for two distributions of one class, or of the two classes that a comma separates.
local others = {
  Cauchy = "log((p.scale + q.scale) ^ 2 + (p.loc - q.loc) ^ 2) - log(4 * p.scale * q.scale)",
  Categorical = categorical, OneHotCategorical = categorical,
  Bernoulli = {
    "one = p.probs * (softplus(-q.logits) - softplus(-p.logits))",
    "none = (1 - p.probs) * (softplus(q.logits) - softplus(p.logits))",
    "where(eq(p.probs, 0), 0, where(eq(q.probs, 0), inf, one))"
      .. " + where(eq(p.probs, 1), 0, where(eq(q.probs, 1), inf, none))",
  },
  Binomial = function(p, q)
    if p.total_count:lt(q.total_count):any():item() then
      fail("kl_divergence: no formula for Binomials where q.total_count is above p.total_count")
    end
    local each = p.probs * (p.logits - q.logits) + (-p.probs):log1p() - (-q.probs):log1p()
    return ops.where(p.total_count:gt(q.total_count), inf, p.total_count * each)
  end,
  Geometric = "-p:entropy() - log1p(-q.probs) / p.probs - q.logits",
  Laplace = {
    "ratio = p.scale / q.scale", "apart = abs(p.loc - q.loc)",
    "-log(ratio) + apart / q.scale + ratio * exp(-apart / p.scale) - 1",
  },
  Poisson = "p.rate * (log(p.rate) - log(q.rate)) - (p.rate - q.rate)",
  ["Bernoulli, Poisson"] = "q.rate - p.probs * log(q.rate) - p:entropy()",
  ["Poisson, Bernoulli"] = function(p, q) return everywhere(p, q, inf) end,
  ["Poisson, Binomial"] = function(p, q) return everywhere(p, q, inf) end,
  ["Normal, Laplace"] = {
    "apart = p.loc - q.loc", "z = apart / p.scale",
    "((2 / pi) ^ 0.5 * p.scale * exp(-0.5 * z ^ 2) + apart * erf(z / SQRT2)) / q.scale + log(2 * q.scale)"
      .. " - p:entropy()",
  },
  Dirichlet = {
    "a = p.concentration", "b = q.concentration", "sum = a:sum(-1)",
    "q.log_norm - p.log_norm + ((a - b) * (digamma(a) - digamma(sum):unsqueeze(-1))):sum(-1)",
  },
  MultivariateNormal = normals, LowRankMultivariateNormal = normals,
  ["MultivariateNormal, LowRankMultivariateNormal"] = normals,
  ["LowRankMultivariateNormal, MultivariateNormal"] = normals,
  Independent = function(p, q)
    if p.reinterpreted_batch_ndims ~= q.reinterpreted_batch_ndims then
      fail("kl_divergence: reinterpreted_batch_ndims must be the same, got %d and %d", p.reinterpreted_batch_ndims,
        q.reinterpreted_batch_ndims)
    end
    return sum_last(kl.kl_divergence(p.base_dist, q.base_dist), p.reinterpreted_batch_ndims)
  end,
  TransformedDistribution = function(p, q)
    if not is_equal(p.transforms, q.transforms) or not is_equal(p.event_shape, q.event_shape) then
      fail("kl_divergence: no formula for %s and %s with different transforms; add one with register_kl", p.__name,
        q.__name)
    end
    return kl.kl_divergence(p.base_dist, q.base_dist)
  end,
  -- Computes the Bregman divergence of the log normalizer (Nielsen and Nock 2010).
  ExponentialFamily = function(p, q)
    if class.record(p).class ~= class.record(q).class or not p._natural_params then no_formula(p, q) end
    local parameters, normalizer, grads = combined._normalizer(p)
    local theirs = {q:_natural_params()}
    local result = q:_log_normalizer(unpack(theirs)) - normalizer
    for i, other in ipairs(theirs) do
      local term = (other - parameters[i]) * grads[i]
      result = result - sum_last(term, term.ndim - #p.batch_shape)
    end
    return result
  end,
}

--- Registers the library's formulas. classes: lm.distributions' classes by name.
function kl._register_all(classes)
  for names, f in pairs(others) do
    local p, q = names:match "(%w+), (%w+)"
    kl.register_kl(classes[p or names], classes[q or names], formulas.compile(f, "p, q"))
  end
  for p, names in pairs(without) do
    for q in pairs(cross) do
      if not names:find(q, 1, true) then kl.register_kl(classes[p], classes[q], cross_entropy(q)) end
    end
  end
end

return kl

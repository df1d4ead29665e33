--- Defines distributions of integers and of categories, which count from 1, and their relaxations to real numbers.
local debug = require "debug"
local core = require "luminary.core"
local combined = require "luminary.distributions.combined"
local constraints = require "luminary.distributions.constraints"
local distribution = require "luminary.distributions.distribution"
local transforms = require "luminary.distributions.transforms"
local known = require("luminary.distributions.formulas").known
local ops, fail = core.ops, require("luminary.base.options").fail
local finfo = require("luminary.tensor.dtype_info").finfo
local define, joined, Family = distribution.define, known.joined, combined.ExponentialFamily

local list = {}

-- ---- two outcomes

local two, either = "probs: unit_interval, logits: real", {"probs", "logits"}
local binary = {probs = "sigmoid(logits)", logits = {"p = clamp_probs(probs)", "log(p) - log1p(-p)"}}

-- Returns the integers from `first` to `last` in the dtype of a distribution's values.
local function range(d, first, last)
  local like = d:first_parameter()
  return ops.arange(first, last + 1, {dtype = like.dtype, device = like.device})
end

list.Bernoulli = define("Bernoulli", Family) {
  takes = two, either = either, support = "boolean", properties = binary,
  help = "Creates a Bernoulli distribution", mean = "probs", variance = "probs * (1 - probs)",
  mode = "where(eq(probs, 0.5), nan, flags(gt(probs, 0.5), probs))", sample = "bernoulli(d:drawn(probs, x))",
  log_prob = "bernoulli_log_prob(logits, x)", entropy = "-bernoulli_log_prob(logits, probs)",
  values = function(d) return range(d, 0, 1) end,
}
list.Geometric = define "Geometric" {
  takes = two, either = either, support = "nonnegative_integer", properties = binary,
  help = "Creates a geometric distribution, of the number of failures before the first success",
  after_init = function(d, given)
    local checked = d.validate_args and given.probs
    if checked then constraints._require("Geometric", "probs", d.probs, constraints.positive) end
  end,
  mean = "1 / probs - 1", mode = "zeros_like(probs)", variance = "(1 / probs - 1) / probs",
  sample = "floor(log(uniform) / log1p(-probs))",
  log_prob = "x * log1p(-where(both(eq(probs, 1), eq(x, 0)), 0, probs)) + log(probs)",
  entropy = "-bernoulli_log_prob(logits, probs) / probs",
}

-- ---- counts

list.Poisson = define("Poisson", Family) {
  takes = "rate: nonnegative", support = "nonnegative_integer",
  help = "Creates a Poisson distribution.", mean = "rate", variance = "rate", mode = "floor(rate)",
  sample = "poisson(d:drawn(rate, x))", log_prob = "xlogy(x, rate) - rate - lgamma(x + 1)",
}

list.Binomial = define "Binomial" {
  takes = "total_count: nonnegative_integer, probs: unit_interval, logits: real", either = either,
  defaults = {total_count = 1}, properties = binary,
  support = function(d) return constraints.integer_interval(0, d.total_count) end,
  help = "Creates a binomial distribution",
  mean = "total_count * probs", variance = "total_count * probs * (1 - probs)",
  mode = "minimum(floor((total_count + 1) * probs), total_count)",
  sample = "binomial(d:drawn(total_count, x), d:drawn(probs, x))",
  log_prob = {
    "n = total_count", "above = (relu(logits) + logits + relu(-logits)) / 2",
    "lgamma(n + 1) - lgamma(x + 1) - lgamma(n - x + 1) + x * logits - n * (above + log1p(exp(-abs(logits))))",
  },
  entropy = {"log = d:log_prob(d:enumerate_support(false))", "-(exp(log) * log):sum(1)"},
  values = function(d)
    local least, most = d.total_count:min():item(), d.total_count:max():item()
    return least == most and range(d, 0, most) or fail "Binomial: total_count must be the same in the whole batch"
  end,
}
list.NegativeBinomial = define "NegativeBinomial" {
  takes = "total_count: nonnegative, probs, logits: real", limits = {probs = constraints.half_open_interval(0, 1)},
  either = either, properties = binary, support = "nonnegative_integer",
  help = "Creates a negative binomial distribution, of the number of successes before total_count failures",
  mean = "total_count * exp(logits)", mode = "clamp(floor((total_count - 1) * exp(logits)), 0)",
  variance = "mean / sigmoid(-logits)",
  sample = "in_dtype(poisson(exp(log_gamma_sample(d:drawn(total_count, x)) + logits)), logits)",
  log_prob = {
    "n = total_count", "ways = masked_fill(lgamma(1 + x) + lgamma(n) - lgamma(n + x), eq(n + x, 0), 0)",
    "n * log_sigmoid(-logits) + x * log_sigmoid(logits) - ways",
  },
}

-- ---- several outcomes, along the last dim

local weights, last_dim = "probs: _weights, logits: real", {probs = 1, logits = 1}
local several = {probs = "softmax(logits, -1)", logits = "log(clamp_probs(probs))"}

local function given_values(d)
  local values = debug.getmetatable(d).values
  return rawget(values, "probs"), rawget(values, "logits")
end

-- Normalizes the given probs or logits, and sets num_events, the number of categories.
local function normalize(d)
  local p, l = given_values(d)
  if p then d.probs = core.keep(p / known.keep_sum(p)) end
  if l then d.logits = core.keep(l - l:logsumexp(-1, {keepdim = true})) end
  d.num_events = (p or l).shape[(p or l).ndim]
end

-- Returns random categories [shape…, batch…].
local function draw_categories(d, shape)
  local n, size = 1, joined(shape, d.batch_shape)
  for _, extent in ipairs(shape) do n = n * extent end
  for _, extent in ipairs(size) do
    if extent == 0 then return ops.empty(size, {dtype = "int64", device = d.probs.device}) end
  end
  return ops.multinomial(d.probs:reshape {-1, d.num_events}, n, true):t():reshape(size)
end
local function log_prob_of(d, categories)
  local shape = distribution.broadcast(d.__name .. ".log_prob", {categories.shape, d.batch_shape})
  local indices = categories:to("int64"):expand(shape):unsqueeze(-1):contiguous()
  return d.logits:expand(joined(shape, {d.num_events})):gather(-1, indices):squeeze(-1)
end

-- The entropy of one draw. Logits of -inf become the lowest finite number, so that 0 times them is 0.
local entropy_of = "-(probs * clamp(logits, least_of(logits))):sum(-1)"

list.Categorical = define "Categorical" {
  takes = weights, either = either, event_dims = last_dim, after_init = normalize,
  event = function() return {} end, properties = several,
  support = function(d) return constraints.integer_interval(1, d.num_events) end,
  help = "Creates a categorical distribution, with categories from 1", mode = "argmax(probs, -1)",
  mean = "filled(probs:select(-1, 1), nan)", variance = "filled(probs:select(-1, 1), nan)",
  sample = draw_categories, entropy = entropy_of, log_prob = log_prob_of,
  values = function(d) return ops.arange(1, d.num_events + 1, {device = d.probs.device}) end,
}
list.OneHotCategorical = define "OneHotCategorical" {
  takes = weights, either = either, event_dims = last_dim, after_init = normalize,
  support = "one_hot", properties = several, help = "Creates a one-hot categorical distribution",
  mean = "probs", variance = "probs * (1 - probs)", mode = "one_hot_like(probs)", entropy = entropy_of,
  sample = function(d, shape) return ops.one_hot(draw_categories(d, shape), d.num_events):to(d.probs.dtype) end,
  log_prob = function(d, x) return log_prob_of(d, x:argmax(-1)) end,
  values = function(d) return ops.eye(d.num_events, {dtype = d.probs.dtype, device = d.probs.device}) end,
}
list.OneHotCategoricalStraightThrough = define("OneHotCategoricalStraightThrough", list.OneHotCategorical) {
  help = "Creates a one-hot categorical distribution whose samples have the gradients of its probabilities",
  rsample = function(d, shape)
    local x = core.no_grad(function() return list.OneHotCategorical._draw(d, shape) end)
    return x + (d.probs - d.probs:detach())
  end,
}
list.Multinomial = define "Multinomial" {
  takes = "total_count, " .. weights, either = either, event_dims = last_dim,
  plain = {total_count = "natural"}, defaults = {total_count = 1}, after_init = normalize, properties = several,
  support = function(d) return constraints.multinomial(d.total_count) end,
  help = "Creates a multinomial distribution, of the counts of each category", mean = "probs * total_count",
  variance = "total_count * probs * (1 - probs)",
  sample = function(d, shape)
    local drawn = draw_categories(d, joined({d.total_count}, shape)):movedim(1, -1)
    local counts = d.probs:new_zeros(joined(shape, d.batch_shape, d.event_shape))
    return counts:scatter_add(-1, drawn, ops.ones_like(drawn, {dtype = counts.dtype}))
  end,
  log_prob = {
    "log = masked_fill(logits, both(eq(x, 0), eq(logits, -inf)), 0)",
    "lgamma(x:sum(-1) + 1) - lgamma(x + 1):sum(-1) + (log * x):sum(-1)",
  },
  entropy = function(d)
    local n, each = d.total_count, list.Binomial(d.total_count, d.probs, nil, false)
    local counts = each:enumerate_support(false):narrow(1, 2, n)
    return n * d:_formula_of "moment" - known.lgamma(core.tensor(n + 1, {dtype = "float64"})):item()
      + (each:log_prob(counts):exp() * known.lgamma(counts + 1)):sum(1):sum(-1)
  end,
  moment = entropy_of, -- the entropy of one draw
}

-- ---- relaxations

local relaxed = {temperature = true}

list.LogitRelaxedBernoulli = define "LogitRelaxedBernoulli" {
  takes = "temperature, " .. two, either = either, loose = relaxed, properties = binary,
  support = "real", help = "Creates the distribution of the logits of a RelaxedBernoulli",
  rsample = {
    "p = clamp_probs(probs)", "u = clamp_probs(uniform)",
    "(log(u) - log1p(-u) + log(p) - log1p(-p)) / temperature",
  },
  log_prob = {"apart = logits - x * temperature", "log(temperature) + apart + 2 * log_sigmoid(-apart)"},
}
list.ExpRelaxedCategorical = define "ExpRelaxedCategorical" {
  takes = "temperature, " .. weights, either = either, loose = relaxed, event_dims = last_dim,
  after_init = normalize, properties = several, support = "real_vector",
  help = "Creates the distribution of the logarithm of a RelaxedOneHotCategorical",
  rsample = "log_softmax((logits - log(-log(clamp_probs(uniform)))) / temperature, -1)",
  log_prob = "lgamma(filled(temperature, num_events)) + log(temperature) * (num_events - 1)"
    .. " + log_softmax(logits - x * temperature, -1):sum(-1)",
}

-- Defines the distribution `name` of the relaxation `base`'s values after a transform.
local function on_scale(name, base, transform, entry)
  entry.takes, entry.either, entry.loose = "temperature, " .. entry.takes, either, relaxed
  entry.properties = {probs = "base_dist.probs", logits = "base_dist.logits"}
  entry.base = function(d)
    local p, l = given_values(d)
    return list[base](d.temperature, p, l, d.validate_args), transforms[transform]()
  end
  list[name] = combined._define(name)(entry)
end

on_scale("RelaxedBernoulli", "LogitRelaxedBernoulli", "SigmoidTransform", {
  takes = two, support = "unit_interval",
  -- At 0 and below, the density is that of the least logit; PyTorch's is 0 there where its formula overflows.
  log_prob = function(d, x)
    local odds = d.logits - math.log(finfo(x.dtype).tiny) * d.temperature
    local far = x:le(0):logical_and(odds:exp():isinf())
    return combined.TransformedDistribution._formula.log_prob(d, x):masked_fill(far, -math.huge)
  end,
  help = "Creates a relaxed Bernoulli distribution, of real numbers from 0 to 1",
})
on_scale("RelaxedOneHotCategorical", "ExpRelaxedCategorical", "ExpTransform", {
  takes = weights, support = "simplex", event_dims = last_dim, first = normalize,
  help = "Creates a relaxed one-hot categorical distribution, of vectors of probabilities",
})

return list

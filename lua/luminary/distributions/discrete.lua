--- Distributions of whole numbers and categories, which count from 1; and their relaxations to real numbers.
local core = require "luminary.core"
local combined = require "luminary.distributions.combined"
local constraints = require "luminary.distributions.constraints"
local distribution = require "luminary.distributions.distribution"
local special = require "luminary.distributions.special"
local transforms = require "luminary.distributions.transforms"
local finfo = special.finfo
local ops, fail = core.ops, require("luminary.base.options").fail
local define, joined, Family = distribution.define, distribution._joined, combined.ExponentialFamily
local lgamma, binary, several = ops.lgamma, special.binary, special.several

local list = {}

local two = {probs = "unit_interval", logits = "real"}
local either = {"probs", "logits"}

-- The integers from `first` to `last`, as a distribution's values.
local function range(d, first, last)
  local like = d:first_parameter()
  return ops.arange(first, last + 1, {dtype = like.dtype, device = like.device})
end

local function entropy_of_two(d) return -special.bernoulli_log_prob(d.logits, d.probs) end

list.Bernoulli = define("Bernoulli", Family) {
  takes = two, order = {"probs", "logits"}, either = either, support = "boolean",
  help = "Creates a Bernoulli distribution", properties = binary,
  mean = function(d) return d.probs end, variance = function(d) return d.probs * (1 - d.probs) end,
  mode = function(d) return ops.where(d.probs:eq(0.5), 0 / 0, d.probs:gt(0.5):to(d.probs.dtype)) end,
  sample = function(d, shape) return ops.bernoulli(d.probs:expand(joined(shape, d.batch_shape))) end,
  log_prob = function(d, x) return special.bernoulli_log_prob(d.logits, x) end,
  entropy = entropy_of_two, values = function(d) return range(d, 0, 1) end,
}

list.Geometric = define "Geometric" {
  takes = two, order = {"probs", "logits"}, either = either, support = "nonnegative_integer",
  help = "Creates a geometric distribution, of the number of failures before the first success", properties = binary,
  made = function(d, given)
    if d.validate_args and given.probs then
      constraints._require("Geometric", "probs", d.probs, constraints.positive)
    end
  end,
  mean = function(d) return 1 / d.probs - 1 end, mode = function(d) return ops.zeros_like(d.probs) end,
  variance = function(d) return (1 / d.probs - 1) / d.probs end,
  sample = function(d, shape) return (d:noise("rand", shape):log() / (-d.probs):log1p()):floor() end,
  log_prob = function(d, x)
    local p = ops.where(ops.logical_and(d.probs:eq(1), x:eq(0)), 0, d.probs)
    return x * (-p):log1p() + d.probs:log()
  end,
  entropy = function(d) return entropy_of_two(d) / d.probs end,
}

list.Poisson = define("Poisson", Family) {
  takes = {rate = "nonnegative"}, order = {"rate"}, support = "nonnegative_integer",
  help = "Creates a Poisson distribution.",
  mean = function(d) return d.rate end, variance = function(d) return d.rate end,
  mode = function(d) return d.rate:floor() end,
  sample = function(d, shape) return ops.poisson(d.rate:expand(joined(shape, d.batch_shape))) end,
  log_prob = function(d, x) return ops.xlogy(x, d.rate) - d.rate - lgamma(x + 1) end,
}

-- The number of trials, which must be the same in the whole batch.
local function common_count(d, who)
  local most = d.total_count:max():item()
  if d.total_count:min():item() ~= most then
    fail("%s.%s: total_count must be the same for all distributions of the batch", d.__name, who)
  end
  return most
end

local function expanded(d, t, shape) return t:expand(joined(shape, d.batch_shape)) end

list.Binomial = define "Binomial" {
  takes = {total_count = "nonnegative_integer", probs = "unit_interval", logits = "real"},
  order = {"total_count", "probs", "logits"}, either = either, defaults = {total_count = 1}, properties = binary,
  support = function(d) return constraints.integer_interval(0, d.total_count) end,
  help = "Creates a binomial distribution",
  mean = function(d) return d.total_count * d.probs end,
  mode = function(d) return ops.minimum(((d.total_count + 1) * d.probs):floor(), d.total_count) end,
  variance = function(d) return d.total_count * d.probs * (1 - d.probs) end,
  sample = function(d, shape) return ops.binomial(expanded(d, d.total_count, shape), expanded(d, d.probs, shape)) end,
  log_prob = function(d, x)
    local n, l = d.total_count, d.logits
    return lgamma(n + 1) - lgamma(x + 1) - lgamma(n - x + 1) + x * l
      - n * ((l:clamp(0) + l - l:clamp({max = 0})) / 2 + (-l:abs()):exp():log1p())
  end,
  entropy = function(d)
    common_count(d, "entropy")
    local log = d:log_prob(d:enumerate_support(false))
    return -(log:exp() * log):sum(1)
  end,
  values = function(d) return range(d, 0, common_count(d, "enumerate_support")) end,
}

list.NegativeBinomial = define "NegativeBinomial" {
  takes = {total_count = "nonnegative", probs = constraints.half_open_interval(0, 1), logits = "real"},
  order = {"total_count", "probs", "logits"}, either = either, properties = binary, support = "nonnegative_integer",
  help = "Creates a negative binomial distribution, of the number of successes before total_count failures",
  mean = function(d) return d.total_count * d.logits:exp() end,
  mode = function(d) return ((d.total_count - 1) * d.logits:exp()):floor():clamp(0) end,
  variance = function(d) return d.mean / (-d.logits):sigmoid() end,
  sample = function(d, shape)
    local rate = special.log_gamma_sample(expanded(d, d.total_count, shape)) + d.logits
    return ops.poisson(rate:exp()):to(d.logits.dtype)
  end,
  log_prob = function(d, x)
    local n = d.total_count
    local ways = lgamma(1 + x) + lgamma(n) - lgamma(n + x)
    return n * ops.log_sigmoid(-d.logits) + x * ops.log_sigmoid(d.logits) - ways:masked_fill((n + x):eq(0), 0)
  end,
}

-- ---- several outcomes, along the last dim

local weights = {probs = "weights", logits = "real"}
local last_dim = {probs = 1, logits = 1}

-- Normalizes what is given; num_events is the number of categories.
local function normalize(d)
  local p, l = rawget(debug.getmetatable(d).values, "probs"), rawget(debug.getmetatable(d).values, "logits")
  if p then d.probs = core.keep(p / p:sum(-1, {keepdim = true})) end
  if l then d.logits = core.keep(l - l:logsumexp(-1, {keepdim = true})) end
  d.num_events = (p or l).shape[(p or l).ndim]
end

-- Random categories, [shape…, batch…].
local function draw_categories(d, shape)
  local n = 1
  for _, size in ipairs(shape) do n = n * size end
  local size = joined(shape, d.batch_shape)
  for _, extent in ipairs(size) do
    if extent == 0 then return ops.empty(size, {dtype = "int64", device = d.probs.device}) end
  end
  return ops.multinomial(d.probs:reshape {-1, d.num_events}, n, true):t():reshape(size)
end

-- Logits of what has no probability are as low as a number can be: 0 times that is 0.
local function entropy_of(d) return -(d.probs * d.logits:clamp(finfo(d.logits.dtype).min)):sum(-1) end

local function log_prob_of(d, categories)
  local shape = distribution.broadcast(d.__name .. ".log_prob", {categories.shape, d.batch_shape})
  local indices = categories:to("int64"):expand(shape):unsqueeze(-1):contiguous()
  return d.logits:expand(joined(shape, {d.num_events})):gather(-1, indices):squeeze(-1)
end

list.Categorical = define "Categorical" {
  takes = weights, order = {"probs", "logits"}, either = either, event_dims = last_dim, made = normalize,
  event = function() return {} end, properties = several,
  support = function(d) return constraints.integer_interval(1, d.num_events) end,
  help = "Creates a categorical distribution, with categories from 1",
  mode = function(d) return d.probs:argmax(-1) end,
  mean = function(d) return d.probs:new_full(d.batch_shape, 0 / 0) end,
  variance = function(d) return d.probs:new_full(d.batch_shape, 0 / 0) end,
  sample = draw_categories, entropy = entropy_of, log_prob = log_prob_of,
  values = function(d) return ops.arange(1, d.num_events + 1, {device = d.probs.device}) end,
}

list.OneHotCategorical = define "OneHotCategorical" {
  takes = weights, order = {"probs", "logits"}, either = either, event_dims = last_dim, made = normalize,
  support = "one_hot", properties = several, help = "Creates a one-hot categorical distribution",
  mean = function(d) return d.probs end, variance = function(d) return d.probs * (1 - d.probs) end,
  mode = function(d) return ops.one_hot(d.probs:argmax(-1), d.num_events):to(d.probs.dtype) end,
  sample = function(d, shape) return ops.one_hot(draw_categories(d, shape), d.num_events):to(d.probs.dtype) end,
  log_prob = function(d, x) return log_prob_of(d, x:argmax(-1)) end, entropy = entropy_of,
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
  takes = weights, order = {"total_count", "probs", "logits"}, either = either, event_dims = last_dim,
  plain = {total_count = "natural"}, defaults = {total_count = 1}, made = normalize, properties = several,
  support = function(d) return constraints.multinomial(d.total_count) end,
  help = "Creates a multinomial distribution, of the counts of each category",
  mean = function(d) return d.probs * d.total_count end,
  variance = function(d) return d.total_count * d.probs * (1 - d.probs) end,
  sample = function(d, shape)
    local drawn = draw_categories(d, joined({d.total_count}, shape)):movedim(1, -1)
    local counts = d.probs:new_zeros(joined(shape, d.batch_shape, d.event_shape))
    return counts:scatter_add(-1, drawn, ops.ones_like(drawn, {dtype = counts.dtype}))
  end,
  log_prob = function(d, x)
    local logits = d.logits:masked_fill(ops.logical_and(x:eq(0), d.logits:eq(-math.huge)), 0)
    return lgamma(x:sum(-1) + 1) - lgamma(x + 1):sum(-1) + (logits * x):sum(-1)
  end,
  entropy = function(d)
    local n = d.total_count
    local each = list.Binomial(n, d.probs, nil, false)
    local counts = each:enumerate_support(false):narrow(1, 2, n)
    return n * entropy_of(d) - lgamma(core.tensor(n + 1, {dtype = "float64"})):item()
      + (each:log_prob(counts):exp() * lgamma(counts + 1)):sum(1):sum(-1)
  end,
}

-- ---- relaxations

local relaxed = {temperature = true}

list.LogitRelaxedBernoulli = define "LogitRelaxedBernoulli" {
  takes = two, order = {"temperature", "probs", "logits"}, either = either, loose = relaxed, properties = binary,
  support = "real", help = "Creates the distribution of the logits of a RelaxedBernoulli",
  rsample = function(d, shape)
    local p, u = special.clamp_probs(d.probs), special.clamp_probs(d:noise("rand", shape))
    return (u:log() - (-u):log1p() + p:log() - (-p):log1p()) / d.temperature
  end,
  log_prob = function(d, x)
    local apart = d.logits - x * d.temperature
    return d.temperature:log() + apart - 2 * apart:exp():log1p()
  end,
}

local function of_base(name) return function(d) return d.base_dist[name] end end

-- Values of a relaxation on another scale.
local function on_scale(name, entry)
  entry.order, entry.either, entry.loose = {"temperature", "probs", "logits"}, either, relaxed
  entry.properties = {probs = of_base "probs", logits = of_base "logits"}
  list[name] = combined._define(name)(entry)
end

on_scale("RelaxedBernoulli", {
  takes = two, support = "unit_interval", transforms = function() return {transforms.SigmoidTransform()} end,
  base = function(d)
    local given = debug.getmetatable(d).values
    return list.LogitRelaxedBernoulli(d.temperature, rawget(given, "probs"), rawget(given, "logits"), d.validate_args)
  end,
  help = "Creates a relaxed Bernoulli distribution, of real numbers from 0 to 1",
})

list.ExpRelaxedCategorical = define "ExpRelaxedCategorical" {
  takes = weights, order = {"temperature", "probs", "logits"}, either = either, loose = relaxed, event_dims = last_dim,
  made = normalize, properties = several, support = "real_vector",
  help = "Creates the distribution of the logarithm of a RelaxedOneHotCategorical",
  rsample = function(d, shape)
    local u = special.clamp_probs(d:noise("rand", shape))
    return ((d.logits - (-u:log()):log()) / d.temperature):log_softmax(-1)
  end,
  log_prob = function(d, x)
    local k, t = d.num_events, d.temperature
    return lgamma(ops.full_like(t, k)) + t:log() * (k - 1) + (d.logits - x * t):log_softmax(-1):sum(-1)
  end,
}

on_scale("RelaxedOneHotCategorical", {
  takes = weights, support = "simplex", event_dims = last_dim, first = normalize,
  transforms = function() return {transforms.ExpTransform()} end,
  base = function(d)
    local given = debug.getmetatable(d).values
    return list.ExpRelaxedCategorical(d.temperature, rawget(given, "probs"), rawget(given, "logits"), d.validate_args)
  end,
  help = "Creates a relaxed one-hot categorical distribution, of vectors of probabilities",
})

return list

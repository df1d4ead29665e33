--- Distributions of whole numbers. Categories count from 1.
local core = require "luminary.core"
local options = require "luminary.base.options"
local signature = require "luminary.base.signature"
local finfo = require("luminary.tensor.dtype_info").finfo
local Distribution = require "luminary.distributions.distribution"
local special = require "luminary.distributions.special"
local ops, define, joined = core.ops, Distribution.define, Distribution._joined

local list = {}

-- x * log(y), which is 0 where x is 0.
local function xlogy(x, y) return ops.where(x:eq(0), ops.zeros_like(x * y), x * y:log()) end

-- probs and logits of each other: of two outcomes.
local function binary_logits(p) return p:log() - (-p):log1p() end
local binary = {
  probs = function(d) return d.logits:sigmoid() end,
  logits = function(d)
    local eps = d.probs.dtype == "float64" and 2.3e-16 or 1.2e-7
    return binary_logits(d.probs:clamp(eps, {max = 1 - eps}))
  end,
}

-- log(1 + e^x) without overflow.
local function log1pexp(x) return x:clamp(0) + (-x:abs()):exp():log1p() end

local function draw_bernoulli(d, shape)
  return d:noise("rand", shape):lt(d.probs):to(d:first_parameter().dtype)
end

list.Bernoulli = define "Bernoulli" {
  takes = {probs = "unit_interval", logits = "real"}, order = {"probs", "logits"}, either = true, support = "boolean",
  help = "Creates a Bernoulli distribution", properties = binary,
  mean = function(d) return d.probs end, variance = function(d) return d.probs * (1 - d.probs) end,
  mode = function(d) return d.probs:gt(0.5):to(d.probs.dtype) end,
  sample = draw_bernoulli,
  log_prob = function(d, x) return x * d.logits - log1pexp(d.logits) end,
  entropy = function(d) return log1pexp(d.logits) - d.probs * d.logits end,
}

list.Geometric = define "Geometric" {
  takes = {probs = "unit_interval", logits = "real"}, order = {"probs", "logits"}, either = true, support = "natural",
  help = "Creates a geometric distribution, of the number of failures before the first success", properties = binary,
  mean = function(d) return 1 / d.probs - 1 end, mode = function(d) return ops.zeros_like(d.probs) end,
  variance = function(d) return (1 / d.probs - 1) / d.probs end,
  sample = function(d, shape) return (d:noise("rand", shape):log() / (-d.probs):log1p()):floor() end,
  log_prob = function(d, x)
    local q = ops.where(ops.logical_and(d.probs:eq(1), x:eq(0)), ops.zeros_like(d.probs), d.probs)
    return x * (-q):log1p() + d.probs:log()
  end,
  entropy = function(d) return (log1pexp(d.logits) - d.probs * d.logits) / d.probs end,
}

-- Of several outcomes, along the last dim.
local several = {
  logits = function(d)
    if d.given_logits then return d.given_logits end
    return (d.given_probs / d.given_probs:sum(-1, {keepdim = true})):clamp(1e-38):log()
  end,
  probs = function(d)
    if d.given_logits then return d.given_logits:softmax(-1) end
    return d.given_probs / d.given_probs:sum(-1, {keepdim = true})
  end,
}

-- A constructor for the two distributions of several outcomes; `event` is event_shape, given their number.
local function several_init(name, event)
  return signature.of(name .. "(probs, logits, {validate_args = true})", function(self, probs, logits, opts)
    self.validate_args = opts.validate_args
    if (probs == nil) == (logits == nil) then options.fail("%s: pass exactly one of probs and logits", name) end
    local key = probs ~= nil and "given_probs" or "given_logits"
    local t = Distribution._tensors(name, {"it"}, {it = probs == nil and logits or probs}).it
    local what = probs ~= nil and "probs" or "logits"
    if t.ndim < 1 then options.must_be(name, what, "a tensor of at least 1 dim", t) end
    if self.validate_args then
      require("luminary.distributions.constraints").check(name, what, t, what == "probs" and "weights" or "real", self)
    end
    if what == "logits" then t = t - ops.logsumexp(t, -1, {keepdim = true}) end
    self[key], self.num_events, self.order = core.keep(t), t.shape[t.ndim], {"given_probs", "given_logits"}
    local batch = {unpack(t.shape, 1, t.ndim - 1)}
    self.batch_shape, self.event_shape = batch, event(self.num_events)
    self.categories = {self.num_events}
  end)
end

-- Indices of the largest logits with Gumbel noise, [shape…, batch…] (Gumbel 1954).
local function draw_categories(d, shape)
  local u = d:noise("rand", shape, d.categories):clamp(1e-38, {max = 1 - 6e-8})
  return (d.logits - (-u:log()):log()):argmax(-1)
end

local function expand_several(self, batch_shape)
  local like = self.given_probs or self.given_logits
  local t = like:expand(joined(batch_shape, self.categories))
  local of = list[self.__name]
  local how = {validate_args = false}
  if self.given_probs then return of(t, nil, how) end
  return of(nil, t, how)
end

-- Logits of what has no probability are as low as a number can be: 0 times that is 0.
local function entropy_of(d) return -(d.probs * d.logits:clamp(finfo(d.logits).min)):sum(-1) end

list.Categorical = define "Categorical" {
  order = {"probs", "logits"}, support = "category", init = several_init("Categorical", function() return {} end),
  help = "Creates a categorical distribution, with categories from 1", properties = several,
  mode = function(d) return d.probs:argmax(-1) end,
  mean = function(d) return ops.full(d.batch_shape, 0 / 0) end,
  variance = function(d) return ops.full(d.batch_shape, 0 / 0) end,
  sample = draw_categories, entropy = entropy_of, expand = expand_several,
  log_prob = function(d, x)
    local shape = Distribution.broadcast("Categorical.log_prob", {x.shape, d.batch_shape})
    local indices = x:to("int64"):expand(shape):unsqueeze(-1):contiguous()
    return ops.gather(d.logits:expand(joined(shape, d.categories)), -1, indices):squeeze(-1)
  end,
  --- All categories, [n, batch…].
  enumerate_support = function(d)
    local all = ops.arange(1, d.num_events + 1)
    for _ = 1, #d.batch_shape do all = all:unsqueeze(-1) end
    return all:expand(joined(d.categories, d.batch_shape))
  end,
}

list.OneHotCategorical = define "OneHotCategorical" {
  order = {"probs", "logits"}, support = "one_hot",
  init = several_init("OneHotCategorical", function(n) return {n} end),
  help = "Creates a one-hot categorical distribution", properties = several,
  mean = function(d) return d.probs end, variance = function(d) return d.probs * (1 - d.probs) end,
  mode = function(d) return ops.one_hot(d.probs:argmax(-1), d.num_events):to(d:first_parameter().dtype) end,
  sample = function(d, shape)
    return ops.one_hot(draw_categories(d, shape), d.num_events):to(d:first_parameter().dtype)
  end,
  log_prob = function(d, x) return (x * d.logits:clamp(-1e38)):sum(-1) end,
  entropy = entropy_of, expand = expand_several,
}

-- By adding up probabilities until they pass u: for rates below 10.
local function poisson_small(rate, u)
  local p = (-rate):exp()
  local sum, k, result = p, 0, ops.zeros_like(rate)
  while true do
    local more = u:gt(sum)
    if k > 200 or not more:any():item() then return result end
    k = k + 1
    p = p * rate / k
    sum, result = sum + p, result + more:to(rate.dtype)
  end
end

-- By transformed rejection, for rates from 10 on (Hörmann 1993, algorithm PTRS).
local function poisson_large(rate)
  local b = 0.931 + 2.53 * rate:sqrt()
  local a = -0.059 + 0.02483 * b
  local log_inverse_alpha, v_r = (1.1239 + 1.1328 / (b - 3.4)):log(), 0.9277 - 3.6224 / (b - 2)
  local result, done
  repeat
    local u, v = ops.rand_like(rate) - 0.5, ops.rand_like(rate)
    local us = 0.5 - u:abs()
    local k = ((2 * a / us + b) * u + rate + 0.43):floor()
    local quick = ops.logical_and(us:ge(0.07), v:le(v_r))
    local never = ops.logical_or(k:lt(0), ops.logical_and(us:lt(0.013), v:gt(us)))
    local slow = (v:log() + log_inverse_alpha - (a / (us * us) + b):log())
      :le(-rate + k * rate:log() - special.lgamma(k:clamp(0) + 1))
    local good = ops.logical_or(quick, ops.logical_and(slow, ops.logical_not(never)))
    result = result and ops.where(done, result, k) or k
    done = done and ops.logical_or(done, good) or good
  until done:all():item()
  return result
end

list.Poisson = define "Poisson" {
  takes = {rate = "nonnegative"}, order = {"rate"}, support = "natural",
  help = "Creates a Poisson distribution.",
  mean = function(d) return d.rate end, variance = function(d) return d.rate end,
  mode = function(d) return d.rate:floor() end,
  sample = function(d, shape)
    local rate = d.rate:to("float64"):expand(joined(shape, d.batch_shape))
    local is_small = rate:lt(10)
    local small = poisson_small(rate:clamp(0, {max = 10}), ops.rand_like(rate))
    if is_small:all():item() then return small:to(d.rate.dtype) end
    return ops.where(is_small, small, poisson_large(rate:clamp(10))):to(d.rate.dtype)
  end,
  log_prob = function(d, x) return xlogy(x, d.rate) - d.rate - special.lgamma(x + 1) end,
}

list.Binomial = define "Binomial" {
  takes = {total_count = "natural", probs = "unit_interval"}, order = {"total_count", "probs"}, support = "natural",
  defaults = {total_count = 1}, lacks = "logits",
  help = "Creates a binomial distribution.",
  mean = function(d) return d.total_count * d.probs end,
  variance = function(d) return d.total_count * d.probs * (1 - d.probs) end,
  sample = function(d, shape)
    local most = d.total_count:max():item()
    local result = ops.zeros(joined(shape, d.batch_shape), {dtype = d.probs.dtype, device = d.probs.device})
    for i = 1, most do
      local one = ops.logical_and(ops.rand_like(result):lt(d.probs), d.total_count:ge(i))
      result = result + one:to(result.dtype)
    end
    return result
  end,
  log_prob = function(d, x)
    local n = d.total_count
    return special.lgamma(n + 1) - special.lgamma(x + 1) - special.lgamma((n - x):clamp(0) + 1)
      + xlogy(x, d.probs) + xlogy(n - x, 1 - d.probs)
  end,
}

return list

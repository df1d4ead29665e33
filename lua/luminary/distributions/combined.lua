--- Defines distributions made of others: Independent, TransformedDistribution, mixtures; and ExponentialFamily.
local core = require "luminary.core"
local class = require "luminary.base.class"
local options = require "luminary.base.options"
local signature = require "luminary.base.signature"
local constraints = require "luminary.distributions.constraints"
local Distribution = require "luminary.distributions.distribution"
local formulas = require "luminary.distributions.formulas"
local transforms = require "luminary.distributions.transforms"
local fail, define, joined, sum_last = options.fail, Distribution.define, formulas.known.joined, transforms._sum_last

local list = {}

formulas.kind("distribution", Distribution)

list.Independent = define "Independent" {
  order = {"base_dist", "reinterpreted_batch_ndims"},
  help = "Reinterprets some of the batch dims of a distribution as event dims.",
  init = signature.of([[Independent(base_distribution: distribution, reinterpreted_batch_ndims: natural,
    {validate_args: boolean = (true)})]], function(self, base, n, opts)
    if n > #base.batch_shape then
      options.must_be("Independent", "reinterpreted_batch_ndims", "at most " .. #base.batch_shape, n)
    end
    self.base_dist, self.reinterpreted_batch_ndims, self.has_rsample = base, n, base.has_rsample
    self.has_enumerate_support = n == 0 and base.has_enumerate_support
    self:_set_validate(opts.validate_args)
    local shape, kept = base.batch_shape, #base.batch_shape - n
    self.batch_shape, self.event_shape = {unpack(shape, 1, kept)}, joined({unpack(shape, kept + 1)}, base.event_shape)
  end),
  first_parameter = function(d) return d.base_dist:first_parameter() end,
  support = function(d) return constraints.independent(d.base_dist.support, d.reinterpreted_batch_ndims) end,
  sample = function(d, shape) return d.base_dist:_draw(shape) end,
  log_prob = "sum_last(base_dist:log_prob(x), reinterpreted_batch_ndims)",
  entropy = "sum_last(base_dist:entropy(), reinterpreted_batch_ndims)",
  values = function(d) return d.base_dist:enumerate_support(false) end,
  mean = "base_dist.mean", mode = "base_dist.mode", variance = "base_dist.variance",
  expand = function(d, batch_shape)
    local own = {unpack(d.event_shape, 1, d.reinterpreted_batch_ndims)}
    return list.Independent(d.base_dist:expand(joined(batch_shape, own)), d.reinterpreted_batch_ndims, d.validate_args)
  end,
}
list.Independent.has_enumerate_support = false

-- Sets a TransformedDistribution's fields; its base distribution gets the batch and event dims that transforms require.
local function transform_base(self, base, parts)
  local all = transforms.ComposeTransform(parts)
  local domain, codomain = all.domain.event_dim, all.codomain.event_dim
  local shape, event_dim = joined(base.batch_shape, base.event_shape), #base.event_shape
  if #shape < domain then
    fail("%s: expected a base distribution of at least %d dim%s, got shape [%s]", self.__name, domain,
      domain > 1 and "s" or "", table.concat(shape, ", "))
  end
  local forward = all:forward_shape(shape)
  local back = all:inverse_shape(forward)
  if table.concat(back, " ") ~= table.concat(shape, " ") then
    base = base:expand({unpack(back, 1, #back - event_dim)})
  end
  if domain > event_dim then base = list.Independent(base, domain - event_dim) end
  local n = math.max(codomain, event_dim + codomain - domain)
  self.base_dist, self.transforms, self.has_rsample = base, parts, base.has_rsample
  self.batch_shape, self.event_shape = {unpack(forward, 1, #forward - n)}, {unpack(forward, #forward - n + 1)}
end

-- Returns p, or 1 - p where the transforms decrease.
local function reflect_if_decreasing(d, p)
  local sign = 1
  for _, t in ipairs(d.transforms) do sign = sign * t:sign() end
  return sign == 1 and p or sign * (p - 0.5) + 0.5
end

list.TransformedDistribution = define "TransformedDistribution" {
  order = {"base_dist"},
  help = "Creates the distribution of the values of a base distribution after a list of transforms.",
  init = signature.of([[TransformedDistribution(base_distribution: distribution, transforms,
    {validate_args: boolean = (true)})]], function(self, base, parts, opts)
    local name = "TransformedDistribution"
    if not options.is_plain(parts) then parts = {options.arg(name, "transforms", parts, "transform")} end
    self:_set_validate(opts.validate_args)
    transform_base(self, base, transforms._list(name, "transforms", parts))
  end),
  first_parameter = function(d) return d.base_dist:first_parameter() end,
  support = function(d)
    local last = d.transforms[#d.transforms]
    if not last then return d.base_dist.support end
    local more = #d.event_shape - last.codomain.event_dim
    return more > 0 and constraints.independent(last.codomain, more) or last.codomain
  end,
  sample = function(d, shape)
    local x = d.base_dist:_draw(shape)
    for _, t in ipairs(d.transforms) do x = t(x) end
    return x
  end,
  log_prob = function(d, y)
    local sum, event_dim = 0, #d.event_shape
    for i = #d.transforms, 1, -1 do
      local t = d.transforms[i]
      local x, domain = t:inv(y), t.domain.event_dim
      event_dim = event_dim + domain - t.codomain.event_dim
      sum, y = sum + sum_last(t:log_abs_det_jacobian(x, y), event_dim - domain), x
    end
    return sum_last(d.base_dist:log_prob(y), event_dim - #d.base_dist.event_shape) - sum
  end,
  cdf = function(d, y)
    for i = #d.transforms, 1, -1 do y = d.transforms[i]:inv(y) end
    return reflect_if_decreasing(d, d.base_dist:cdf(y))
  end,
  icdf = function(d, p)
    local x = d.base_dist:icdf(reflect_if_decreasing(d, p))
    for _, t in ipairs(d.transforms) do x = t(x) end
    return x
  end,
  expand = function(d, batch_shape)
    if d._given then return Distribution.expand(d, batch_shape) end
    local n = #d.base_dist.batch_shape - #d.batch_shape
    local own = {unpack(d.base_dist.batch_shape, #d.batch_shape + 1)}
    return list.TransformedDistribution(d.base_dist:expand(joined(batch_shape, n > 0 and own or {})), d.transforms,
      d.validate_args)
  end,
}

--- Returns a function that defines a TransformedDistribution of an entry, whose `base` is a function(d).
function list._define(name)
  return function(entry)
    local function complete(d, base, ...) transform_base(d, base, {...}) end
    entry.after_init = function(d)
      if entry.first then entry.first(d) end
      complete(d, entry.base(d))
    end
    return define(name, list.TransformedDistribution)(entry)
  end
end

-- ---- mixtures

list.MixtureSameFamily = define "MixtureSameFamily" {
  order = {"mixture_distribution", "component_distribution"},
  help = "Creates a mixture of distributions of one class, whose weights are a Categorical's.",
  init = signature.of([[MixtureSameFamily(mixture_distribution: distribution, component_distribution: distribution,
    {validate_args: boolean = (true)})]], function(self, mixture, components, opts)
    local name = "MixtureSameFamily"
    if not class.is(mixture, require("luminary.distributions.discrete").Categorical) then
      options.must_be(name, "mixture_distribution", "a Categorical", mixture)
    end
    local n, shape = mixture.num_events, components.batch_shape
    if shape[#shape] ~= n then
      fail("%s: expected components with a last batch dim of size %d, one for each weight, got batch_shape [%s]", name,
        n, table.concat(shape, ", "))
    end
    self:_set_validate(opts.validate_args)
    self.mixture_distribution, self.component_distribution = mixture, components
    self.batch_shape, self.event_shape = {unpack(shape, 1, #shape - 1)}, components.event_shape
    Distribution.broadcast(name, {mixture.batch_shape, self.batch_shape})
  end),
  first_parameter = function(d) return d.component_distribution:first_parameter() end,
  support = function(d) return constraints.MixtureSameFamilyConstraint(d.component_distribution.support) end,
  -- Returns values with a dim of size 1 for the components, and weights with dims of size 1 for the event dims.
  _padded = function(d, x) return x:unsqueeze(-1 - #d.event_shape) end,
  _weights = function(d)
    local p = d.mixture_distribution.probs
    for _ = 1, #d.event_shape do p = p:unsqueeze(-1) end
    return p
  end,
  mean = "(d:_weights() * component_distribution.mean):sum(-1 - #event_shape)",
  variance = {
    "parts = component_distribution", "apart = square(parts.mean - d:_padded(mean))",
    "(d:_weights() * (parts.variance + apart)):sum(-1 - #event_shape)",
  },
  cdf = "(component_distribution:cdf(d:_padded(x)) * mixture_distribution.probs):sum(-1)",
  log_prob = {
    "each = component_distribution:log_prob(d:_padded(x))",
    "logsumexp(each + mixture_distribution.logits:log_softmax(-1), -1)",
  },
  sample = function(d, shape)
    local dim, all = #shape + #d.batch_shape + 1, d.component_distribution:_draw(shape)
    local of = d.mixture_distribution:expand(d.batch_shape):_draw(shape):unsqueeze(-1)
    for _ = 1, #d.event_shape do of = of:unsqueeze(-1) end
    return all:gather(dim, of:expand(joined(shape, d.batch_shape, {1}, d.event_shape))):squeeze(dim)
  end,
  expand = function(d, batch_shape)
    return list.MixtureSameFamily(d.mixture_distribution:expand(batch_shape),
      d.component_distribution:expand(joined(batch_shape, {d.mixture_distribution.num_events})), d.validate_args)
  end,
}

-- ---- exponential families

--- lm.distributions.ExponentialFamily: Base class for distributions of an exponential family.
local Family = Distribution:extend "ExponentialFamily"
list.ExponentialFamily = Family
Family.mean_carrier_measure = 0

--- Returns the list of natural parameters, detached, the log normalizer, and its gradients with respect to them.
function list._normalizer(d)
  local parameters = {d:_natural_params()}
  for i, p in ipairs(parameters) do parameters[i] = p:detach():requires_grad_(true) end
  local value = d:_log_normalizer(unpack(parameters))
  return parameters, value, core.grad(value:sum(), parameters, {create_graph = true})
end

--- Returns the entropy, computed with the gradients of _log_normalizer (Nielsen and Nock 2010).
function Family:entropy()
  if self._formula and self._formula.entropy or not self._natural_params then return Distribution.entropy(self) end
  local parameters, result, grads = list._normalizer(self)
  result = result - self.mean_carrier_measure
  for i, p in ipairs(parameters) do result = result - sum_last(p * grads[i], p.ndim - #self.batch_shape) end
  return result
end

return list

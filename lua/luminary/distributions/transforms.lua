--- Functions of values, for TransformedDistribution: t(x), t:inv(y), and t:log_abs_det_jacobian(x, y), the logarithm of
--- |dy/dx|. domain and codomain are the constraints of x and y.
local core = require "luminary.core"
local class = require "luminary.base.class"
local options = require "luminary.base.options"
local signature = require "luminary.base.signature"
local finfo = require("luminary.tensor.dtype_info").finfo
local constraints = require "luminary.distributions.constraints"
local ops, fail = core.ops, options.fail

local transforms = {}

-- Returns what `latest` has for `given`, or compute(), which it then has.
local function cached(t, from, to, given, compute)
  if t.cache_size ~= 1 then return compute() end
  if not (t.latest and t.latest[from] == given) then t.latest = {[from] = given, [to] = compute()} end
  return core.keep(t.latest)[to]
end

local function construct(this, ...)
  local self = class.object(this, {__call = function(t, x)
    x = options.arg(this.__name, "x", x, "tensor")
    return cached(t, "x", "y", x, function() return t:forward(x) end)
  end})
  self:init(class.arguments(this, ...))
  return self
end

--- lm.distributions.Transform: Base class for invertible transforms.
local Transform = class.guard(class.new("DistributionTransform", nil, construct))
transforms.Transform = Transform
Transform.extend, Transform.is = class.methods.extend, class.is
Transform.repr = class.methods.repr
Transform.init = signature.fields "DistributionTransform({cache_size: 0 | 1 = 0})"
Transform.domain, Transform.codomain, Transform.bijective = constraints.real, constraints.real, false

--- The transform of x; t(x) is the same.
function Transform:forward(x) return self._forward(x, self) end
--- Returns x for y, the inverse of the transform; without y the inverse as a transform.
function Transform:inv(y)
  if y == nil then return self:_inverse() end
  return cached(self, "y", "x", y, function() return self._inv(y, self) end)
end
--- Returns log |dy/dx| of each value, where y is the transform of x.
function Transform:log_abs_det_jacobian(x, y)
  if not self._log_det then fail("%s: log_abs_det_jacobian is not supported; it is not bijective", self.__name) end
  return self._log_det(x, y or self(x), self)
end
--- Returns 1 where y increases with x, -1 where it decreases.
function Transform:sign() return self._sign or 1 end
--- Returns the shape of y for x of that shape.
function Transform:forward_shape(shape) return self._shapes and self._shapes(shape, self, true) or shape end
--- Returns the shape of x for y of that shape.
function Transform:inverse_shape(shape) return self._shapes and self._shapes(shape, self, false) or shape end
--- Returns the number of a value's dims, where it is the same before and after the transform.
function Transform:event_dim()
  if self.domain.event_dim ~= self.codomain.event_dim then
    fail("%s: event_dim differs; use t.domain.event_dim or t.codomain.event_dim", self.__name)
  end
  return self.domain.event_dim
end

--- Returns the same transform with a cache of its latest value (1) or without (0).
function Transform:with_cache(cache_size)
  local record = class.record(self)
  local twin = class.object(record.class, {__call = record.__call})
  for name, v in pairs(record.values) do twin[name] = v end
  twin.cache_size, twin.latest = options.arg(self.__name .. ":with_cache", "cache_size", cache_size or 1, "natural"), nil
  return twin
end

-- An entry: forward, inv, log_det and shapes are functions of a value and the transform; others are fields.
local function define(name, entry, super)
  local new = class.define(name, super or Transform)
  transforms[name] = new
  for key, v in pairs(entry) do
    if type(v) == "function" and key ~= "init" and key ~= "sign" and key ~= "inverse" then key = "_" .. key end
    if key == "inverse" then key = "_inverse" end
    new[key] = v
  end
  return new
end

local function too_few(t) fail("%s: expected more dims of x", t.__name) end

-- The sum over the last n dims, which may be fewer.
local function sum_last(t, n)
  for _ = 1, n do t = t:sum(-1) end
  return t
end
transforms._sum_last = sum_last

local function transform_list(who, name, list)
  for i, t in ipairs(options.list(who, name, list)) do
    if not class.is(t, Transform) then options.must_be(who, ("%s[%d]"):format(name, i), "a transform", t) end
  end
  return list
end
transforms._list = transform_list

options.kind("transform", "transform", function(who, name, t)
  if not class.is(t, Transform) then options.must_be(who, name, "a transform", t) end
  return t
end)

-- ---- the inverse, and lists

local Inverse = define("InverseTransform", {
  init = signature.of("InverseTransform(base_transform: transform)", function(self, t)
    self.base, self.domain, self.codomain, self.bijective = t, t.codomain, t.domain, t.bijective
  end),
  sign = function(self) return self.base:sign() end,
  forward = function(x, t) return t.base:inv(x) end, inv = function(y, t) return t.base(y) end,
  log_det = function(x, y, t) return -t.base:log_abs_det_jacobian(y, x) end,
  shapes = function(shape, t, forward)
    if forward then return t.base:inverse_shape(shape) end
    return t.base:forward_shape(shape)
  end,
  inverse = function(self) return self.base end,
})
transforms.InverseTransform = nil
function Transform:_inverse() return Inverse(self) end

local function widened(constraint, event_dim)
  local more = event_dim - constraint.event_dim
  return more > 0 and constraints.independent(constraint, more) or constraint
end

--- lm.distributions.ComposeTransform {a, b, …}: Composes several transforms: y = b(a(x)).
local Compose = define("ComposeTransform", {
  init = signature.of("ComposeTransform(parts: list, {cache_size: 0 | 1 = 0})", function(self, parts, opts)
    self.parts, self.cache_size, self.bijective = transform_list("ComposeTransform", "parts", parts), opts.cache_size, true
    local n = #parts
    if n == 0 then return end
    local last, first = parts[n].codomain.event_dim, parts[1].domain.event_dim
    for i = 1, n do
      local at, back = parts[i], parts[n + 1 - i]
      self.bijective = self.bijective and at.bijective
      last = math.max(last + back.domain.event_dim - back.codomain.event_dim, back.domain.event_dim)
      first = math.max(first + at.codomain.event_dim - at.domain.event_dim, at.codomain.event_dim)
    end
    self.domain, self.codomain = widened(parts[1].domain, last), widened(parts[n].codomain, first)
  end),
  forward = function(x, t)
    for _, part in ipairs(t.parts) do x = part(x) end
    return x
  end,
  inv = function(y, t)
    for i = #t.parts, 1, -1 do y = t.parts[i]:inv(y) end
    return y
  end,
  log_det = function(x, y, t)
    local n, sum, event_dim = #t.parts, nil, t.domain.event_dim
    for i, part in ipairs(t.parts) do
      local to = i == n and y or part(x)
      local own = sum_last(part:log_abs_det_jacobian(x, to), event_dim - part.domain.event_dim)
      sum, x = sum and sum + own or own, to
      event_dim = event_dim + part.codomain.event_dim - part.domain.event_dim
    end
    return sum or ops.zeros_like(x)
  end,
  sign = function(self)
    local sign = 1
    for _, part in ipairs(self.parts) do sign = sign * part:sign() end
    return sign
  end,
  shapes = function(shape, t, forward)
    local n = #t.parts
    for i = 1, n do
      local part = t.parts[forward and i or n + 1 - i]
      if forward then shape = part:forward_shape(shape) else shape = part:inverse_shape(shape) end
    end
    return shape
  end,
})

--- lm.distributions.identity_transform: Returns its argument.
transforms.identity_transform = Compose({})

--- lm.distributions.IndependentTransform(): Wraps a transform, so that its last dims of values make one value.
define("IndependentTransform", {
  init = signature.of([[IndependentTransform(base_transform: transform, reinterpreted_batch_ndims: natural,
    {cache_size: 0 | 1 = 0})]], function(self, base, n, opts)
    self.base_transform, self.reinterpreted_batch_ndims, self.bijective = base, n, base.bijective
    self.cache_size = opts.cache_size
    self.domain, self.codomain = constraints.independent(base.domain, n), constraints.independent(base.codomain, n)
  end),
  sign = function(self) return self.base_transform:sign() end,
  forward = function(x, t)
    if x.ndim < t.domain.event_dim then too_few(t) end
    return t.base_transform(x)
  end,
  inv = function(y, t)
    if y.ndim < t.codomain.event_dim then too_few(t) end
    return t.base_transform:inv(y)
  end,
  log_det = function(x, y, t)
    return sum_last(t.base_transform:log_abs_det_jacobian(x, y), t.reinterpreted_batch_ndims)
  end,
  shapes = function(shape, t, forward)
    if forward then return t.base_transform:forward_shape(shape) end
    return t.base_transform:inverse_shape(shape)
  end,
})

-- ---- of each element

local C = constraints
local function clipped_sigmoid(x)
  local info = finfo(x.dtype)
  return x:sigmoid():clamp(info.tiny, {max = 1 - info.eps})
end

--- lm.distributions.ExpTransform(): Transforms by the mapping y = exp(x).
define("ExpTransform", {
  codomain = C.positive, bijective = true,
  forward = function(x) return x:exp() end, inv = function(y) return y:log() end, log_det = function(x) return x end,
})
--- lm.distributions.SigmoidTransform(): Transforms by the mapping y = 1 / (1 + exp(-x)).
define("SigmoidTransform", {
  codomain = C.unit_interval, bijective = true, forward = clipped_sigmoid,
  inv = function(y)
    local info = finfo(y.dtype)
    y = y:clamp(info.tiny, {max = 1 - info.eps})
    return y:log() - (-y):log1p()
  end,
  log_det = function(x) return -ops.softplus(-x) - ops.softplus(x) end,
})
--- lm.distributions.TanhTransform(): Transforms by the mapping y = tanh(x).
define("TanhTransform", {
  codomain = C.interval(-1, 1), bijective = true,
  forward = function(x) return x:tanh() end, inv = function(y) return y:atanh() end,
  log_det = function(x) return 2 * (math.log(2) - x - ops.softplus(-2 * x)) end,
})
--- lm.distributions.SoftplusTransform(): Transforms by the mapping y = log(1 + exp(x)).
define("SoftplusTransform", {
  codomain = C.positive, bijective = true,
  forward = function(x) return ops.softplus(x) end, inv = function(y) return (-(-y):expm1()):log() + y end,
  log_det = function(x) return -ops.softplus(-x) end,
})
--- lm.distributions.AbsTransform(): Transforms by the mapping y = |x|, which is not invertible: inv(y) is y.
define("AbsTransform", {
  codomain = C.positive, forward = function(x) return x:abs() end, inv = function(y) return y end,
})

local function is_number(v) return type(v) == "number" end

-- Returns the shape that a value of that shape has after arithmetic with numbers or tensors.
local function with_shapes_of(who, shape, ...)
  local shapes = {shape}
  for _, v in ipairs {...} do
    if not is_number(v) then shapes[#shapes + 1] = v.shape end
  end
  return require("luminary.distributions.distribution").broadcast(who, shapes)
end

--- lm.distributions.AffineTransform(loc, scale): Transforms by the mapping y = loc + scale * x.
define("AffineTransform", {
  bijective = true,
  init = signature.of([[AffineTransform(loc: bound, scale: bound, {event_dim: natural = 0, cache_size: 0 | 1 = 0})]],
    function(self, loc, scale, opts)
      self.loc, self.scale, self.cache_size = loc, scale, opts.cache_size
      self.domain = widened(C.real, opts.event_dim)
      self.codomain = self.domain
    end),
  sign = function(self)
    if is_number(self.scale) then return self.scale < 0 and -1 or 1 end
    return self.scale:sign()
  end,
  forward = function(x, t) return t.loc + t.scale * x end, inv = function(y, t) return (y - t.loc) / t.scale end,
  log_det = function(x, _, t)
    local each = is_number(t.scale) and ops.full_like(x, math.log(math.abs(t.scale)))
      or t.scale:abs():log():expand(with_shapes_of(t.__name, x.shape, t.scale))
    return sum_last(each, t.domain.event_dim)
  end,
  shapes = function(shape, t) return with_shapes_of(t.__name, shape, t.loc, t.scale) end,
})

--- lm.distributions.PowerTransform(exponent): Transforms by the mapping y = x ^ exponent, for x above 0.
define("PowerTransform", {
  domain = C.positive, codomain = C.positive, bijective = true,
  init = signature.of("PowerTransform(exponent: bound, {cache_size: 0 | 1 = 0})", function(self, exponent, opts)
    self.exponent, self.cache_size = exponent, opts.cache_size
    if exponent == 0 then fail("PowerTransform: exponent must not be 0") end
  end),
  sign = function(self)
    if is_number(self.exponent) then return self.exponent < 0 and -1 or 1 end
    return self.exponent:sign()
  end,
  forward = function(x, t) return x ^ t.exponent end, inv = function(y, t) return y ^ (1 / t.exponent) end,
  log_det = function(x, y, t) return (t.exponent * y / x):abs():log() end,
  shapes = function(shape, t) return with_shapes_of(t.__name, shape, t.exponent) end,
})

--- lm.distributions.CumulativeDistributionTransform(): Transforms by a distribution's cumulative distribution function.
define("CumulativeDistributionTransform", {
  codomain = C.unit_interval, bijective = true,
  init = signature.of("CumulativeDistributionTransform(distribution: distribution, {cache_size: 0 | 1 = 0})",
    function(self, d, opts) self.distribution, self.domain, self.cache_size = d, d.support, opts.cache_size end),
  forward = function(x, t) return t.distribution:cdf(x) end, inv = function(y, t) return t.distribution:icdf(y) end,
  log_det = function(x, _, t) return t.distribution:log_prob(x) end,
})

-- ---- of vectors and matrices

-- A copy of a shape whose last n sizes are others.
local function replaced(shape, n, ...)
  local out = {unpack(shape, 1, #shape - n)}
  for _, size in ipairs {...} do out[#out + 1] = size end
  return out
end

--- lm.distributions.ReshapeTransform(): Reshapes the last dims of values.
define("ReshapeTransform", {
  bijective = true,
  init = signature.of("ReshapeTransform(in_shape: list, out_shape: list, {cache_size: 0 | 1 = 0})",
    function(self, in_shape, out_shape, opts)
      local function count(name, shape)
        local n = 1
        for _, size in ipairs(shape) do n = n * options.arg("ReshapeTransform", name, size, "natural") end
        return n
      end
      if count("in_shape", in_shape) ~= count("out_shape", out_shape) then
        fail("ReshapeTransform: in_shape and out_shape must have the same number of elements, got [%s] and [%s]",
          table.concat(in_shape, ", "), table.concat(out_shape, ", "))
      end
      self.in_shape, self.out_shape, self.cache_size = in_shape, out_shape, opts.cache_size
      self.domain, self.codomain = C.independent(C.real, #in_shape), C.independent(C.real, #out_shape)
    end),
  forward = function(x, t) return x:reshape(replaced(x.shape, #t.in_shape, unpack(t.out_shape))) end,
  inv = function(y, t) return y:reshape(replaced(y.shape, #t.out_shape, unpack(t.in_shape))) end,
  log_det = function(x, _, t) return x:new_zeros(replaced(x.shape, #t.in_shape)) end,
  shapes = function(shape, t, forward)
    local from, to = t.in_shape, t.out_shape
    if not forward then from, to = to, from end
    for i, size in ipairs(from) do
      if shape[#shape - #from + i] ~= size then
        fail("ReshapeTransform: expected a shape that ends by [%s], got [%s]", table.concat(from, ", "),
          table.concat(shape, ", "))
      end
    end
    return replaced(shape, #from, unpack(to))
  end,
})

--- lm.distributions.SoftmaxTransform(): Transforms real vectors into probabilities by softmax; inv(y) is log(y).
define("SoftmaxTransform", {
  domain = C.real_vector, codomain = C.simplex,
  forward = function(x) return x:softmax(-1) end, inv = function(y) return y:log() end,
})

-- The number of what is left to break, n + 1 - i for the i-th of n elements.
local function offsets(x, n) return ops.arange(n, 0, -1, {dtype = x.dtype, device = x.device}) end
local function without_last(x) return x:narrow(-1, 1, x.shape[x.ndim] - 1) end

--- lm.distributions.StickBreakingTransform(): Transforms real vectors into probabilities, of one more element, by
--- breaking pieces off a stick.
define("StickBreakingTransform", {
  domain = C.real_vector, codomain = C.simplex, bijective = true,
  forward = function(x)
    local z = clipped_sigmoid(x - offsets(x, x.shape[x.ndim]):log())
    return ops.pad(z, {0, 1}, {value = 1}) * ops.pad((1 - z):cumprod(-1), {1, 0}, {value = 1})
  end,
  inv = function(y)
    local first = without_last(y)
    local rest = (1 - first:cumsum(-1)):clamp(finfo(y.dtype).tiny)
    return first:log() - rest:log() + offsets(y, first.shape[y.ndim]):log()
  end,
  log_det = function(x, y)
    x = x - offsets(x, x.shape[x.ndim]):log()
    return (-x + ops.log_sigmoid(x) + without_last(y):log()):sum(-1)
  end,
  shapes = function(shape, t, forward)
    if #shape < 1 then too_few(t) end
    return replaced(shape, 1, shape[#shape] + (forward and 1 or -1))
  end,
})

-- The indices in a flat [n, n] of the elements below the diagonal of that offset.
local function below(n, offset, like)
  local list = {}
  for i = 1, n do
    for j = 1, i + offset do list[#list + 1] = (i - 1) * n + j end
  end
  return core.tensor(list, {dtype = "int64", device = like.device})
end

local function tril_to_vector(m, offset)
  local n = m.shape[m.ndim]
  return m:reshape(replaced(m.shape, 2, n * n)):index_select(-1, below(n, offset, m))
end

-- The side of a matrix of which n elements are below the diagonal.
local function side(n)
  local d = math.floor((0.25 + 2 * n) ^ 0.5 + 1)
  if d * (d - 1) / 2 ~= n then
    fail("CorrCholeskyTransform: the last size must be n (n - 1) / 2 of an integer n, got %d", n)
  end
  return d
end

--- lm.distributions.CorrCholeskyTransform(): Transforms vectors of n (n - 1) / 2 real numbers into Cholesky factors
--- [n, n] of correlation matrices.
define("CorrCholeskyTransform", {
  domain = C.real_vector, codomain = C.corr_cholesky, bijective = true,
  forward = function(x)
    local eps, size = finfo(x.dtype).eps, x.shape[x.ndim]
    local n = side(size)
    x = x:tanh():clamp(-1 + eps, {max = 1 - eps})
    local flat = x:new_zeros(replaced(x.shape, 1, n * n))
    local r = flat:scatter(-1, below(n, -1, x):expand(x.shape), x):reshape(replaced(x.shape, 1, n, n))
    local rest = (1 - r:square()):sqrt():cumprod(-1)
    return (r + ops.eye(n, {dtype = x.dtype, device = x.device})) * ops.pad(without_last(rest), {1, 0}, {value = 1})
  end,
  inv = function(y)
    local rest = ops.pad(without_last(1 - y:square():cumsum(-1)), {1, 0}, {value = 1})
    local t = tril_to_vector(y, -1) / tril_to_vector(rest, -1):sqrt()
    return (t:log1p() - (-t):log1p()) / 2
  end,
  log_det = function(x, y)
    local rest = tril_to_vector(1 - y:square():cumsum(-1), -2)
    return 0.5 * rest:log():sum(-1) - 2 * (x + ops.softplus(-2 * x) - math.log(2)):sum(-1)
  end,
  shapes = function(shape, t, forward)
    if #shape < (forward and 1 or 2) then too_few(t) end
    local n = shape[#shape]
    if forward then return replaced(shape, 1, side(n), side(n)) end
    return replaced(shape, 2, n * (n - 1) / 2)
  end,
})

local function with_diagonal(x, f) return x:tril(-1) + f(x:diagonal(0, -2, -1)):diag_embed() end

local real_matrix = C.independent(C.real, 2)
--- lm.distributions.LowerCholeskyTransform(): Transforms matrices into lower triangular ones with a diagonal above 0.
local LowerCholesky = define("LowerCholeskyTransform", {
  domain = real_matrix, codomain = C.lower_cholesky,
  forward = function(x) return with_diagonal(x, ops.exp) end, inv = function(y) return with_diagonal(y, ops.log) end,
})
--- lm.distributions.PositiveDefiniteTransform(): Transforms matrices into symmetric positive definite ones.
define("PositiveDefiniteTransform", {
  domain = real_matrix, codomain = C.positive_definite,
  forward = function(x)
    local l = LowerCholesky()(x)
    return l:matmul(l:transpose(-1, -2))
  end,
  inv = function(y) return LowerCholesky():inv(ops.cholesky(y)) end,
})

-- ---- several transforms along a dim

-- The field `name` of the transforms, by a function of constraints.
local function of_each(list, name)
  local all = {}
  for i, t in ipairs(list) do all[i] = t[name] end
  return all
end

-- Applies f(t, part, …) to the parts of each of the tensors.
local function mapped(t, f, ...)
  local parts, out = {}, {}
  for i = 1, select("#", ...) do parts[i] = t._parts((select(i, ...)), t) end
  for i, part in ipairs(t.transforms) do out[i] = f(part, parts[1][i], parts[2] and parts[2][i]) end
  return out
end

local function forward(part, x) return part(x) end
local function inv(part, y) return part:inv(y) end
local function log_det(part, x, y) return part:log_abs_det_jacobian(x, y) end

local function init_parts(self, tseq, dim, cache_size)
  self.transforms, self.dim, self.cache_size, self.bijective = tseq, dim, cache_size, true
  for _, t in ipairs(transform_list(self.__name, "tseq", tseq)) do self.bijective = self.bijective and t.bijective end
end

--- lm.distributions.CatTransform(): Applies transforms to slices of a value along a dim, as lm.cat joins them.
define("CatTransform", {
  init = signature.of("CatTransform(tseq: list, {dim: dim = 1, lengths: list?, cache_size: 0 | 1 = 0})",
    function(self, tseq, opts)
      init_parts(self, tseq, opts.dim, opts.cache_size)
      self.lengths = C._lengths("CatTransform", tseq, opts.lengths)
      self.domain = C.cat(of_each(tseq, "domain"), opts.dim, self.lengths)
      self.codomain = C.cat(of_each(tseq, "codomain"), opts.dim, self.lengths)
    end),
  parts = C._slices,
  forward = function(x, t) return ops.cat(mapped(t, forward, x), t.dim) end,
  inv = function(y, t) return ops.cat(mapped(t, inv, y), t.dim) end,
  log_det = function(x, y, t)
    local event_dim = t.domain.event_dim
    local all = mapped(t, function(part, xs, ys)
      return sum_last(part:log_abs_det_jacobian(xs, ys), event_dim - part.domain.event_dim)
    end, x, y)
    local dim = (t.dim > 0 and t.dim - x.ndim - 1 or t.dim) + event_dim
    if dim < 0 then return ops.cat(all, dim) end
    local sum = all[1]
    for i = 2, #all do sum = sum + all[i] end
    return sum
  end,
})

--- lm.distributions.StackTransform(): Applies transforms to the parts of a value along a dim, as lm.stack joins them.
define("StackTransform", {
  init = signature.of("StackTransform(tseq: list, {dim: dim = 1, cache_size: 0 | 1 = 0})", function(self, tseq, opts)
    init_parts(self, tseq, opts.dim, opts.cache_size)
    self.domain = C.stack(of_each(tseq, "domain"), opts.dim)
    self.codomain = C.stack(of_each(tseq, "codomain"), opts.dim)
  end),
  parts = function(x, t)
    local all = C._selections(x, t)
    if #all ~= #t.transforms then
      fail("StackTransform: expected a size of %d along dim %d, got %s", #t.transforms, t.dim, options.describe(x))
    end
    return all
  end,
  forward = function(x, t) return ops.stack(mapped(t, forward, x), t.dim) end,
  inv = function(y, t) return ops.stack(mapped(t, inv, y), t.dim) end,
  log_det = function(x, y, t) return ops.stack(mapped(t, log_det, x, y), t.dim) end,
})

-- ---- from a constraint to a transform into it

local D = transforms
local function after_exp(bound, sign)
  return function(c) return D.ComposeTransform {D.ExpTransform(), D.AffineTransform(c[bound], sign)} end
end
local function to_interval(c)
  if c.lower_bound == 0 and c.upper_bound == 1 then return D.SigmoidTransform() end
  return D.ComposeTransform {D.SigmoidTransform(), D.AffineTransform(c.lower_bound, c.upper_bound - c.lower_bound)}
end
local function each_by(registry, list)
  local all = {}
  for i, c in ipairs(list) do all[i] = registry(c) end
  return all
end

-- Factories of both registries, of a constraint and the registry.
local shared = {
  real = function() return D.identity_transform end,
  independent = function(c, registry)
    return D.IndependentTransform(registry(c.base_constraint), c.reinterpreted_batch_ndims)
  end,
  greater_than = function(c)
    return c.lower_bound == 0 and D.ExpTransform() or after_exp("lower_bound", 1)(c)
  end,
  less_than = after_exp("upper_bound", -1), interval = to_interval, half_open_interval = to_interval,
  corr_cholesky = function() return D.CorrCholeskyTransform() end,
  cat = function(c, registry) return D.CatTransform(each_by(registry, c.cseq), c.dim, c.lengths) end,
  stack = function(c, registry) return D.StackTransform(each_by(registry, c.cseq), c.dim) end,
}
shared.greater_than_eq = shared.greater_than

local Registry = class.new("ConstraintRegistry", nil, function(this, name, own)
  local self = class.object(this, {__call = function(r, c)
    if not class.is(c, C.Constraint) then options.must_be(name, "constraint", "a constraint", c) end
    local factory = r.factories[c.kind or class.record(c).class] or fail("%s: no transform into %s", name, tostring(c))
    return factory(c, r)
  end})
  self.factories = setmetatable(own, {__index = shared})
  return self
end)
Registry.repr = class.methods.repr

--- Registers factory(constraint), which returns a transform, for a class of constraints or constraints of a kind.
function Registry:register(constraint, factory)
  local kind = class.is(constraint, C.Constraint) and (constraint.kind or class.record(constraint).class) or constraint
  self.factories[kind] = options.arg("register", "factory", factory, "function")
end

--- lm.distributions.biject_to: Returns a bijective transform from real numbers into a constraint.
transforms.biject_to = Registry("biject_to", {simplex = function() return D.StickBreakingTransform() end})
--- lm.distributions.transform_to: Returns a transform from real numbers into a constraint, which may not be bijective.
transforms.transform_to = Registry("transform_to", {
  simplex = function() return D.SoftmaxTransform() end, lower_cholesky = function() return D.LowerCholeskyTransform() end,
  positive_definite = function() return D.PositiveDefiniteTransform() end,
  positive_semidefinite = function() return D.PositiveDefiniteTransform() end,
})

return transforms

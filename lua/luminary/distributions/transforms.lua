--- Defines transforms, invertible functions for TransformedDistribution: t(x), t:inv(y), and
--- t:log_abs_det_jacobian(x, y), the logarithm of |dy/dx|. domain and codomain are the constraints of x and y.
local core = require "luminary.core"
local class = require "luminary.base.class"
local lists = require "luminary.base.lists"
local options = require "luminary.base.options"
local signature = require "luminary.base.signature"
local formulas = require "luminary.distributions.formulas"
local C = require "luminary.distributions.constraints"
local ops, fail, known = core.ops, options.fail, formulas.known

local transforms = {}

local function construct(this, ...)
  local self = class.object(this, {__call = function(t, x)
    return t:forward(options.arg(this.__name, "x", x, "tensor"))
  end})
  self:init(class.arguments(this, ...))
  return self
end

--- lm.distributions.Transform: Base class for invertible transforms.
local Transform = class.guard(class.new("DistributionTransform", nil, construct))
transforms.Transform = Transform
Transform.extend, Transform.init, Transform.is = class.methods.extend, class.methods.init, class.is
Transform.repr, Transform.__inner = class.methods.repr, {"inverse"}
Transform.domain, Transform.codomain, Transform.bijective = C.real, C.real, false

-- True if a tensor that the transform computes with requires grad.
local function learns(self)
  for _, v in pairs(class.record(self).values) do
    for _, part in ipairs(options.is_plain(v) and v or {v}) do
      if core.is_tensor(part) and part.requires_grad or class.is(part, Transform) and learns(part) then return true end
    end
  end
  return self.distribution ~= nil and self.distribution:first_parameter().requires_grad
end

-- Returns f(v), or the tensor beside v in the last pair {x = , y = }, v being its field `from`, if the transform has a
-- cache. The pair is not used once one of its tensors was written to, or where a new result would have a gradient.
local function cached(self, f, v, from, to)
  if self.cache_size ~= 1 then return f(v, self) end
  local pair = self._pair
  if pair and rawequal(pair[from], v) and pair.x._version == pair.x_version and pair.y._version == pair.y_version
    and (pair.grad or not core.is_grad_enabled() or not v.requires_grad and not learns(self)) then
    return pair[to]
  end
  pair = {[from] = v, [to] = f(v, self), grad = core.is_grad_enabled()}
  pair.x_version, pair.y_version = pair.x._version, pair.y._version
  self._pair = core.keep(pair)
  return pair[to]
end

--- Returns the transform of x, as t(x) does.
function Transform:forward(x)
  return cached(self, self._forward or formulas.undefined(self, "forward", "function %s:forward(x)"), x, "x", "y")
end
--- Returns x for y, the inverse of the transform; without y the inverse as a transform.
function Transform:inv(y)
  if y == nil then return self:inverse() end
  return cached(self, self._inv or formulas.undefined(self, "inv", "function %s:inv(y)"), y, "y", "x")
end
--- Returns log |dy/dx| of each value, where y is the transform of x.
function Transform:log_abs_det_jacobian(x, y)
  if not self._log_det then
    formulas.undefined(self, "log_abs_det_jacobian", "function %s:log_abs_det_jacobian(x, y)", "it is not bijective")
  end
  return self._log_det(x, y or self(x), self)
end
--- Returns 1 where y increases with x, -1 where it decreases.
function Transform:sign()
  if self.bijective and self.domain.event_dim == 0 and not self.transforms then return 1 end
  formulas.undefined(self, "sign", "function %s:sign()", "not all of its values increase, or all decrease, with x")
end
--- Returns the shape of y for x of that shape.
function Transform:forward_shape(shape) return self:_shape_of(shape, "forward_shape") end
--- Returns the shape of x for y of that shape.
function Transform:inverse_shape(shape) return self:_shape_of(shape, "inverse_shape") end
function Transform:_shape_of(shape, way)
  local least = (way == "forward_shape" and self.domain or self.codomain).event_dim
  if #shape < least then fail("%s: expected %d dims or more, got %d", self.__name, least, #shape) end
  return self._shapes and self._shapes(shape, self, way) or shape
end

-- Replaces the transforms that a transform consists of by those with a cache_size.
local function cache_parts(self, cache_size)
  for _, name in ipairs {"parts", "transforms", "base_transform", "base"} do
    local v, all = rawget(class.record(self).values, name), {}
    for i, part in ipairs(options.is_plain(v) and v or {v}) do all[i] = part:with_cache(cache_size) end
    if v then self[name] = options.is_plain(v) and all or all[1] end
  end
end

options.kind("cache_size", "0 or 1", function(who, name, v)
  return (v == 0 or v == 1) and v or options.must_be(who, name, "0 or 1", v)
end)

--- Returns the transform with another cache_size. Custom transforms, which have none, are returned as they are.
Transform.with_cache = signature.of("with_cache({cache_size: cache_size = 1})", function(self, opts)
  local record = class.record(self)
  if self.cache_size == nil or self.cache_size == opts.cache_size then return self end
  local twin = class.object(record.class, {__call = record.__call})
  for name, v in pairs(record.values) do twin[name] = v end
  twin.cache_size, twin._pair = opts.cache_size, nil
  cache_parts(twin, opts.cache_size)
  return twin
end)

local arguments = {forward = "x, t", inv = "y, t", log_det = "x, y, t", shapes = "shape, t, way", parts = "x, t"}

-- Defines an entry's class: forward, inv and log_det are formulas of x, y and the transform t, shapes is a function of
-- a shape, t and the method's name. takes and options declare the arguments of init, to which cache_size is added; all
-- others are fields.
local function define(name, entry)
  local new, init = class.define(name, Transform), entry.init
  if not (init and options.signature(init)) then
    local text = ("%s(%s{%scache_size: cache_size = 0})"):format(name, entry.takes and entry.takes .. ", " or "",
      entry.options and entry.options .. ", " or "")
    entry.init = signature.of(text, function(self, ...)
      if init then init(self, ...) end
      self.cache_size = select(select("#", ...), ...).cache_size
      if self.cache_size == 1 then cache_parts(self, 1) end
    end)
  end
  entry.takes, entry.options = nil, nil
  for key, v in pairs(entry) do
    if arguments[key] then new["_" .. key] = formulas.compile(v, arguments[key]) else new[key] = v end
  end
  transforms[name] = new
  return new
end

--- Returns the sum over the last n dims.
local function sum_last(t, n)
  for _ = 1, n do t = t:sum(-1) end
  return t
end
transforms._sum_last, known.sum_last = sum_last, sum_last

formulas.kind("transform", Transform, function(value)
  return type(value) == "function" and "inv is a method: pass t:inv(), the inverse of t" or nil
end)

local function transform_list(who, name, list)
  for i, t in ipairs(options.list(who, name, list)) do options.arg(who, ("%s[%d]"):format(name, i), t, "transform") end
  return list
end
transforms._list = transform_list

-- ---- the inverse, and lists

local Inverse = define("InverseTransform", {
  init = signature.of("InverseTransform(base_transform: transform)", function(self, t)
    self.base, self.domain, self.codomain, self.bijective = t, t.codomain, t.domain, t.bijective
    self.cache_size = t.cache_size
  end),
  sign = function(self) return self.base:sign() end, inverse = function(self) return self.base end,
  forward = "t.base:inv(x)", inv = "t.base(y)", log_det = "-t.base:log_abs_det_jacobian(y, x)",
  shapes = function(shape, t, way)
    return t.base[way == "forward_shape" and "inverse_shape" or "forward_shape"](t.base, shape)
  end,
})
transforms.InverseTransform = nil
function Transform:inverse() return Inverse(self) end
local function widened(constraint, event_dim)
  local more = event_dim - constraint.event_dim
  return more > 0 and C.independent(constraint, more) or constraint
end

--- lm.distributions.ComposeTransform {a, b, …}: Composes several transforms: y = b(a(x)).
local Compose = define("ComposeTransform", {
  takes = "parts: list",
  init = function(self, parts)
    self.parts, self.bijective = transform_list("ComposeTransform", "parts", parts), true
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
  end,
  forward = function(x, t)
    for _, part in ipairs(t.parts) do x = part(x) end
    return x
  end,
  inv = function(y, t)
    for i = #t.parts, 1, -1 do y = t.parts[i]:inv(y) end
    return y
  end,
  log_det = function(x, y, t)
    local sum, event_dim = nil, t.domain.event_dim
    for i, part in ipairs(t.parts) do
      local to = i == #t.parts and y or part(x)
      local own = sum_last(part:log_abs_det_jacobian(x, to), event_dim - part.domain.event_dim)
      sum, x, event_dim = sum and sum + own or own, to, event_dim + part.codomain.event_dim - part.domain.event_dim
    end
    return sum or ops.zeros_like(x)
  end,
  sign = function(self)
    local sign = 1
    for _, part in ipairs(self.parts) do sign = sign * part:sign() end
    return sign
  end,
  shapes = function(shape, t, way)
    local n = #t.parts
    for i = 1, n do
      local part = t.parts[way == "forward_shape" and i or n + 1 - i]
      shape = part[way](part, shape)
    end
    return shape
  end,
})
--- lm.distributions.identity_transform: Returns its argument.
transforms.identity_transform = Compose({})

--- lm.distributions.IndependentTransform(): Wraps a transform, so that its last dims of values make one value.
define("IndependentTransform", {
  takes = "base_transform: transform, reinterpreted_batch_ndims: natural",
  init = function(self, base, n)
    self.base_transform, self.reinterpreted_batch_ndims, self.bijective = base, n, base.bijective
    self.domain, self.codomain = C.independent(base.domain, n), C.independent(base.codomain, n)
  end,
  sign = function(self) return self.base_transform:sign() end,
  forward = function(x, t) return t:_shape_of(x.shape, "forward_shape") and t.base_transform(x) end,
  inv = function(y, t) return t:_shape_of(y.shape, "inverse_shape") and t.base_transform:inv(y) end,
  log_det = "sum_last(t.base_transform:log_abs_det_jacobian(x, y), t.reinterpreted_batch_ndims)",
  shapes = function(shape, t, way) return t.base_transform[way](t.base_transform, shape) end,
})

-- ---- elementwise transforms

--- lm.distributions.ExpTransform(): Transforms by the mapping y = exp(x).
define("ExpTransform", {codomain = C.positive, bijective = true, forward = "exp(x)", inv = "log(y)", log_det = "x"})
--- lm.distributions.SigmoidTransform(): Transforms by the mapping y = 1 / (1 + exp(-x)).
define("SigmoidTransform", {
  codomain = C.unit_interval, bijective = true, forward = "clipped_sigmoid(x)",
  inv = {"p = clamp(y, tiny_of(y), 1 - eps_of(y))", "log(p) - log1p(-p)"}, log_det = "-softplus(-x) - softplus(x)",
})
--- lm.distributions.TanhTransform(): Transforms by the mapping y = tanh(x).
define("TanhTransform", {
  codomain = C.interval(-1, 1), bijective = true, forward = "tanh(x)", inv = "atanh(y)",
  log_det = "2 * (LN2 - x - softplus(-2 * x))",
})
--- lm.distributions.SoftplusTransform(): Transforms by the mapping y = log(1 + exp(x)).
define("SoftplusTransform", {
  codomain = C.positive, bijective = true, forward = "softplus(x)", inv = "log(-expm1(-y)) + y",
  log_det = "-softplus(-x)",
})
--- lm.distributions.AbsTransform(): Transforms by the mapping y = |x|.
define("AbsTransform", {codomain = C.positive, forward = "abs(x)", inv = "y"})

local function sign_of(v)
  if type(v) == "number" then return v < 0 and -1 or 1 end
  return v:sign()
end

-- Returns the shape of a value of a shape after arithmetic with numbers or tensors.
local function with_shapes_of(who, shape, ...)
  local shapes = {shape}
  for _, v in ipairs {...} do shapes[#shapes + 1] = type(v) ~= "number" and v.shape or nil end
  return require("luminary.distributions.distribution").broadcast(who, shapes)
end

--- lm.distributions.AffineTransform(loc, scale): Transforms by the mapping y = loc + scale * x.
define("AffineTransform", {
  bijective = true, takes = "loc: bound, scale: bound", options = "event_dim: natural = 0",
  init = function(self, loc, scale, opts)
    self.loc, self.scale, self.domain = loc, scale, widened(C.real, opts.event_dim)
    self.codomain = self.domain
  end,
  sign = function(self) return sign_of(self.scale) end, forward = "t.loc + t.scale * x", inv = "(y - t.loc) / t.scale",
  log_det = function(x, _, t)
    local each = type(t.scale) == "number" and ops.full_like(x, math.log(math.abs(t.scale)))
      or t.scale:abs():log():expand(with_shapes_of(t.__name, x.shape, t.scale))
    return sum_last(each, t.domain.event_dim)
  end,
  shapes = function(shape, t) return with_shapes_of(t.__name, shape, t.loc, t.scale) end,
})
--- lm.distributions.PowerTransform(exponent): Transforms by the mapping y = x ^ exponent, for x above 0.
define("PowerTransform", {
  domain = C.positive, codomain = C.positive, bijective = true, takes = "exponent: bound",
  init = function(self, exponent)
    self.exponent = exponent
    if exponent == 0 then fail("PowerTransform: exponent must not be 0") end
  end,
  sign = function(self) return sign_of(self.exponent) end, forward = "x ^ t.exponent", inv = "y ^ (1 / t.exponent)",
  log_det = "log(abs(t.exponent * y / x))",
  shapes = function(shape, t) return with_shapes_of(t.__name, shape, t.exponent) end,
})
--- lm.distributions.CumulativeDistributionTransform(): Transforms by a distribution's cumulative distribution function.
define("CumulativeDistributionTransform", {
  codomain = C.unit_interval, bijective = true, takes = "distribution: distribution",
  init = function(self, d) self.distribution, self.domain = d, d.support end,
  forward = "t.distribution:cdf(x)", inv = "t.distribution:icdf(y)", log_det = "t.distribution:log_prob(x)",
})

-- ---- vectors and matrices

-- Returns a copy of a shape with other sizes in the place of the last n.
local function replaced(shape, n, ...)
  local out = {unpack(shape, 1, #shape - n)}
  for _, size in ipairs {...} do out[#out + 1] = size end
  return out
end
local function checked_numel(name, shape)
  local n = 1
  for _, size in ipairs(shape) do n = n * options.arg("ReshapeTransform", name, size, "natural") end
  return n
end

--- lm.distributions.ReshapeTransform(): Reshapes the last dims of values.
define("ReshapeTransform", {
  bijective = true, takes = "in_shape: list, out_shape: list",
  init = function(self, in_shape, out_shape)
    if checked_numel("in_shape", in_shape) ~= checked_numel("out_shape", out_shape) then
      fail("ReshapeTransform: in_shape and out_shape must have the same number of elements, got [%s] and [%s]",
        table.concat(in_shape, ", "), table.concat(out_shape, ", "))
    end
    self.in_shape, self.out_shape = in_shape, out_shape
    self.domain, self.codomain = C.independent(C.real, #in_shape), C.independent(C.real, #out_shape)
  end,
  forward = function(x, t) return x:reshape(replaced(x.shape, #t.in_shape, unpack(t.out_shape))) end,
  inv = function(y, t) return y:reshape(replaced(y.shape, #t.out_shape, unpack(t.in_shape))) end,
  log_det = function(x, _, t) return x:new_zeros(replaced(x.shape, #t.in_shape)) end,
  shapes = function(shape, t, way)
    local from, to = t.in_shape, t.out_shape
    if way == "inverse_shape" then from, to = to, from end
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
define("SoftmaxTransform", {domain = C.real_vector, codomain = C.simplex, forward = "softmax(x, -1)", inv = "log(y)"})

-- Returns the logarithms of n, n - 1, …, 1 for vectors of n elements.
function known.log_offsets(x) return ops.arange(x.shape[x.ndim], 0, -1, {dtype = x.dtype, device = x.device}):log() end
function known.without_last(x) return x:narrow(-1, 1, x.shape[x.ndim] - 1) end
function known.one_before(x) return ops.pad(x, {1, 0}, {value = 1}) end
function known.one_after(x) return ops.pad(x, {0, 1}, {value = 1}) end

--- lm.distributions.StickBreakingTransform(): Transforms real vectors into probabilities, of one more element, by
--- breaking pieces off a stick.
define("StickBreakingTransform", {
  domain = C.real_vector, codomain = C.simplex, bijective = true,
  forward = {"z = clipped_sigmoid(x - log_offsets(x))", "one_after(z) * one_before(cumprod(1 - z, -1))"},
  inv = {"z = without_last(y)", "log(z) - log(clamp(1 - cumsum(z, -1), tiny_of(y))) + log_offsets(z)"},
  log_det = {"z = x - log_offsets(x)", "(log_sigmoid(z) - z + log(without_last(y))):sum(-1)"},
  shapes = function(shape, _, way) return replaced(shape, 1, shape[#shape] + (way == "forward_shape" and 1 or -1)) end,
})

-- Returns the indices, in a flattened [n, n], of the elements on and below the diagonal `offset`.
local function below(n, offset, like)
  local list = {}
  for i = 1, n do
    for j = 1, i + offset do list[#list + 1] = (i - 1) * n + j end
  end
  return core.tensor(list, {dtype = "int64", device = like.device})
end
function known.tril_to_vector(m, offset)
  local n = m.shape[m.ndim]
  return m:reshape(replaced(m.shape, 2, n * n)):index_select(-1, below(n, offset, m))
end

-- Returns the number of rows of a square matrix with n elements below its diagonal.
local function side(n)
  local d = math.floor((0.25 + 2 * n) ^ 0.5 + 1)
  if d * (d - 1) / 2 ~= n then
    fail("CorrCholeskyTransform: the last size must be n (n - 1) / 2 of an integer n, got %d", n)
  end
  return d
end
function known.vector_to_tril(x)
  local n = side(x.shape[x.ndim])
  local flat = x:new_zeros(replaced(x.shape, 1, n * n)):scatter(-1, below(n, -1, x):expand(x.shape), x)
  return flat:reshape(replaced(x.shape, 1, n, n))
end
function known.with_ones(m) return m + ops.eye(m.shape[m.ndim], {dtype = m.dtype, device = m.device}) end

--- lm.distributions.CorrCholeskyTransform(): Transforms vectors of n (n - 1) / 2 real numbers into Cholesky factors
--- [n, n] of correlation matrices.
define("CorrCholeskyTransform", {
  domain = C.real_vector, codomain = C.corr_cholesky, bijective = true,
  forward = {
    "r = vector_to_tril(clamp(tanh(x), eps_of(x) - 1, 1 - eps_of(x)))",
    "with_ones(r) * one_before(without_last(cumprod(sqrt(1 - square(r)), -1)))",
  },
  inv = {
    "rest = one_before(without_last(1 - cumsum(square(y), -1)))",
    "z = tril_to_vector(y, -1) / sqrt(tril_to_vector(rest, -1))", "(log1p(z) - log1p(-z)) / 2",
  },
  log_det = "0.5 * log(tril_to_vector(1 - cumsum(square(y), -1), -2)):sum(-1)"
    .. " - 2 * (x + softplus(-2 * x) - LN2):sum(-1)",
  shapes = function(shape, _, way)
    local n = shape[#shape]
    if way == "forward_shape" then return replaced(shape, 1, side(n), side(n)) end
    if shape[#shape - 1] ~= n then fail("CorrCholeskyTransform: expected a shape that ends by [%d, %d]", n, n) end
    return replaced(shape, 2, n * (n - 1) / 2)
  end,
})

local real_matrix = C.independent(C.real, 2)
--- lm.distributions.LowerCholeskyTransform(): Transforms matrices into lower triangular ones with a diagonal above 0.
local LowerCholesky = define("LowerCholeskyTransform", {
  domain = real_matrix, codomain = C.lower_cholesky,
  forward = "tril(x, -1) + exp(x:diagonal(0, -2, -1)):diag_embed()",
  inv = "tril(y, -1) + log(y:diagonal(0, -2, -1)):diag_embed()",
})
--- lm.distributions.PositiveDefiniteTransform(): Transforms matrices into symmetric positive definite ones.
define("PositiveDefiniteTransform", {
  domain = real_matrix, codomain = C.positive_definite,
  forward = {"l = t.lower(x)", "l:matmul(l:transpose(-1, -2))"}, lower = LowerCholesky(),
  inv = "t.lower:inv(cholesky(y))",
})

-- ---- several transforms along a dim

-- Returns the list of f(transform, part of x, part of y or nil) for each transform of t.
local function mapped(t, f, x, y)
  local xs, ys = t._parts(x, t), y and t._parts(y, t)
  return lists.map(t.transforms, function(part, i) return f(part, xs[i], ys and ys[i]) end)
end

-- Returns the list of the transforms' `domain` or `codomain`.
local function constraints_of(list, name) return lists.map(list, function(t) return t[name] end) end

-- Defines a transform that applies others to parts of a value; join: the op that joins results, and constraint: the
-- function that joins constraints.
local function along_dim(name, entry, join, constraint)
  entry.takes = "tseq: list"
  entry.init = function(self, tseq, opts)
    self.transforms, self.dim, self.bijective = transform_list(name, "tseq", tseq), opts.dim, true
    self.lengths = C._lengths(name, tseq, opts.lengths)
    for _, t in ipairs(tseq) do self.bijective = self.bijective and t.bijective end
    self.domain = constraint(constraints_of(tseq, "domain"), opts.dim, opts.lengths)
    self.codomain = constraint(constraints_of(tseq, "codomain"), opts.dim, opts.lengths)
  end
  entry.forward = function(x, t) return join(mapped(t, function(part, v) return part(v) end, x), t.dim) end
  entry.inv = function(y, t) return join(mapped(t, function(part, v) return part:inv(v) end, y), t.dim) end
  entry.log_det = entry.log_det or function(x, y, t)
    return join(mapped(t, function(part, v, w) return part:log_abs_det_jacobian(v, w) end, x, y), t.dim)
  end
  define(name, entry)
end

--- lm.distributions.CatTransform(): Applies transforms to slices of a value along a dim, as lm.cat joins them.
along_dim("CatTransform", {
  options = "dim: dim = 1, lengths: list?", parts = C._slices,
  log_det = function(x, y, t)
    local event_dim = t.domain.event_dim
    local all = mapped(t, function(part, xs, ys)
      return sum_last(part:log_abs_det_jacobian(xs, ys), event_dim - part.domain.event_dim)
    end, x, y)
    local dim, sum = (t.dim > 0 and t.dim - x.ndim - 1 or t.dim) + event_dim, all[1]
    if dim < 0 then return ops.cat(all, dim) end
    for i = 2, #all do sum = sum + all[i] end
    return sum
  end,
}, ops.cat, C.cat)
--- lm.distributions.StackTransform(): Applies transforms to the parts of a value along a dim, as lm.stack joins them.
along_dim("StackTransform", {options = "dim: dim = 1", parts = C._selections}, ops.stack, C.stack)

-- ---- from a constraint to a transform into it

local D = transforms
local function after_exp(bound, sign)
  return function(c) return D.ComposeTransform {D.ExpTransform(), D.AffineTransform(c[bound], sign)} end
end
local function to_interval(c)
  if c.lower_bound == 0 and c.upper_bound == 1 then return D.SigmoidTransform() end
  return D.ComposeTransform {D.SigmoidTransform(), D.AffineTransform(c.lower_bound, c.upper_bound - c.lower_bound)}
end
local function each_by(registry, list) return lists.map(list, function(c) return registry(c) end) end
local function plain(name) return function() return D[name]() end end

-- Factories of both registries, by the constraint's kind: function(constraint, registry) that returns a transform.
local shared = {
  real = function() return D.identity_transform end,
  independent = function(c, registry)
    return D.IndependentTransform(registry(c.base_constraint), c.reinterpreted_batch_ndims)
  end,
  greater_than = after_exp("lower_bound", 1), greater_than_eq = after_exp("lower_bound", 1),
  less_than = after_exp("upper_bound", -1), interval = to_interval, half_open_interval = to_interval,
  corr_cholesky = plain "CorrCholeskyTransform",
  cat = function(c, registry) return D.CatTransform(each_by(registry, c.cseq), c.dim, c.lengths) end,
  stack = function(c, registry) return D.StackTransform(each_by(registry, c.cseq), c.dim) end,
}

local function kind_of(c) return c.kind or class.record(c).class end

local Registry = class.new("ConstraintRegistry", nil, function(this, name, own)
  local self = class.object(this, {__call = function(r, c)
    local kind = kind_of(options.arg(name, "constraint", c, "constraint"))
    return (r.factories[kind] or fail("%s: no transform into %s", name, tostring(c)))(c, r)
  end})
  self.factories = setmetatable(own, {__index = shared})
  return self
end)
Registry.repr = class.methods.repr

--- Registers factory(constraint), which returns a transform. constraint: a class, or a constraint for all of its kind.
function Registry:register(constraint, factory)
  local kind = class.is(constraint, C.Constraint) and kind_of(constraint) or constraint
  self.factories[kind] = options.arg("register", "factory", factory, "function")
end

--- lm.distributions.biject_to: Returns a bijective transform from real numbers into a constraint.
transforms.biject_to = Registry("biject_to", {simplex = plain "StickBreakingTransform"})
--- lm.distributions.transform_to: Returns a transform from real numbers into a constraint, which may not be bijective.
transforms.transform_to = Registry("transform_to", {
  simplex = plain "SoftmaxTransform", lower_cholesky = plain "LowerCholeskyTransform",
  positive_definite = plain "PositiveDefiniteTransform", positive_semidefinite = plain "PositiveDefiniteTransform",
})

return transforms

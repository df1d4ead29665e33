--- Defines lm.distributions.constraints, which parameters and values of distributions must satisfy. A constraint has
--- check(x), event_dim (the number of x's last dims that make one value), is_discrete, and `says`, the words of errors.
local core = require "luminary.core"
local lists = require "luminary.base.lists"
local class = require "luminary.base.class"
local options = require "luminary.base.options"
local signature = require "luminary.base.signature"
local formulas = require "luminary.distributions.formulas"
local ops, known = core.ops, formulas.known

local constraints = {}
known.constraints = constraints

--- lm.distributions.constraints.Constraint: Base class for constraints of parameters and values.
local Constraint = class.guard(class.new "Constraint")
constraints.Constraint = Constraint
Constraint.extend, Constraint.init, Constraint.is = class.methods.extend, class.methods.init, class.is
Constraint.event_dim, Constraint.is_discrete = 0, false

--- Returns a bool tensor, true for each value of x (its last event_dim dims) that satisfies the constraint.
function Constraint:check(x) return self._check(x, self) end
function Constraint:repr() return ("%s(%s)"):format(self.kind or self.__name, self.shows or "") end
local function shown(bound)
  if not core.is_tensor(bound) then return tostring(bound) end
  return bound:numel() == 1 and ("%.14g"):format(bound:item()) or options.describe(bound)
end
local function all_last(ok, n)
  for _ = 1, n do ok = ok:all(-1) end
  return ok
end

known.is_integer = function(x) return x:eq(x:floor()) end

-- Returns a constraint of a kind. check: a formula of x and the constraint c, which returns a boolean for each value.
local function new(kind, says, check, fields)
  local c = class.object(Constraint)
  for name, v in pairs(fields or {}) do c[name] = v end
  c.kind, c.says, c._check = kind, says, formulas.compile(check, "x, c")
  return c
end
local function fixed(kind, says, check, event_dim, is_discrete)
  constraints[kind] = new(kind, says, check, {event_dim = event_dim or 0, is_discrete = is_discrete or false})
end

options.kind("bound", "a number or a tensor", function(who, name, v)
  if type(v) ~= "number" and not core.is_tensor(v) then options.must_be(who, name, "a number or a tensor", v) end
  return v
end)

-- Defines a function of bounds (numbers or tensors) that returns a constraint of a kind.
local function bounded(kind, names, says, check, fields)
  local text = ("%s(%s)"):format(kind, names:gsub("[%w_]+", "%0: bound"))
  constraints[kind] = signature.of(text, function(...)
    local c, bounds, shows = new(kind, nil, check, fields), {...}, {}
    for name in names:gmatch "[%w_]+" do
      shows[#shows + 1] = shown(bounds[#shows + 1])
      c[name] = bounds[#shows]
    end
    c.says, c.shows = says:format(unpack(shows)), table.concat(shows, ", ")
    return c
  end)
end

--- lm.distributions.constraints.greater_than(): Constrains values to be above a bound.
--- lm.distributions.constraints.greater_than_eq(): Constrains values to be at least a bound.
--- lm.distributions.constraints.less_than(): Constrains values to be below a bound.
--- lm.distributions.constraints.interval(): Constrains values to be between two bounds.
--- lm.distributions.constraints.half_open_interval(): Constrains values to be between two bounds, below the upper one.
--- lm.distributions.constraints.integer_interval(): Constrains values to be integers between two bounds.
--- lm.distributions.constraints.multinomial(): Constrains vectors to counts with a sum of at most a bound.

local limits = "lower_bound, upper_bound"
bounded("greater_than", "lower_bound", "above %s", "gt(x, c.lower_bound)")
bounded("greater_than_eq", "lower_bound", "at least %s", "ge(x, c.lower_bound)")
bounded("less_than", "upper_bound", "below %s", "lt(x, c.upper_bound)")
bounded("interval", limits, "from %s to %s", "both(ge(x, c.lower_bound), le(x, c.upper_bound))")
bounded("half_open_interval", limits, "at least %s and below %s", "both(ge(x, c.lower_bound), lt(x, c.upper_bound))")
bounded("integer_interval", limits, "integers from %s to %s",
  "both(is_integer(x), both(ge(x, c.lower_bound), le(x, c.upper_bound)))", {is_discrete = true})
bounded("multinomial", "upper_bound", "at least 0 with a sum of at most %s along the last dim",
  "both(ge(x, 0):all(-1), le(x:sum(-1), c.upper_bound))", {is_discrete = true, event_dim = 1})

constraints.positive, constraints.nonnegative = constraints.greater_than(0), constraints.greater_than_eq(0)
constraints.unit_interval = constraints.interval(0, 1)
fixed("real", "real numbers", "eq(x, x)")
fixed("boolean", "0 or 1", "either(eq(x, 0), eq(x, 1))", 0, true)
fixed("nonnegative_integer", "integers of at least 0", "both(is_integer(x), ge(x, 0))", 0, true)
fixed("positive_integer", "integers of at least 1", "both(is_integer(x), ge(x, 1))", 0, true)
fixed("simplex", "at least 0 with the sum 1 along the last dim",
  "both(ge(x, 0):all(-1), lt(abs(x:sum(-1) - 1), larger(1e-6, 100 * eps_of(x))))", 1)
fixed("_weights", "at least 0, not all 0 along the last dim", "both(ge(x, 0):all(-1), gt(x:sum(-1), 0))", 1)
fixed("one_hot", "one 1 and else 0 along the last dim",
  "both(either(eq(x, 0), eq(x, 1)):all(-1), eq(x:sum(-1), 1))", 1, true)

-- ---- matrices

function known.is_square(x) return x.shape[x.ndim] == x.shape[x.ndim - 1] end
function known.all_of_last(ok) return ok:all(-1):all(-1) end
-- Returns bool [batch…]: ok for each matrix of x.
function known.for_all(ok, x)
  return ops.full({unpack(x.shape, 1, x.ndim - 2)}, ok and 1 or 0, {dtype = "bool", device = x.device})
end

fixed("square", "square", "for_all(is_square(x), x)", 2)
fixed("symmetric", "symmetric",
  "is_square(x) and all_of_last(isclose(x, x:transpose(-1, -2), 1e-5, 1e-6)) or for_all(false, x)", 2)
fixed("lower_triangular", "lower triangular", "all_of_last(eq(tril(x), x))", 2)
fixed("lower_cholesky", "lower triangular with a diagonal above 0",
  "both(all_of_last(eq(tril(x), x)), gt(x:diagonal(0, -2, -1), 0):all(-1))", 2)
fixed("corr_cholesky", "lower triangular with a diagonal above 0 and rows of length 1", {
  "off = abs(sqrt(square(x):sum(-1)) - 1):amax(-1)",
  "both(constraints.lower_cholesky:check(x), le(off, eps_of(x) * x.shape[x.ndim] * 10))",
}, 2)
for name, compare in pairs {semidefinite = "ge", definite = "gt"} do
  fixed("positive_" .. name, ("symmetric and positive %s"):format(name),
    ("is_square(x) and both(constraints.symmetric:check(x), %s(linalg_eigvalsh(wide(x)):amin(-1), 0)) "
      .. "or for_all(false, x)"):format(compare), 2)
end

-- ---- made of others

formulas.kind("constraint", Constraint)

--- lm.distributions.constraints.independent(): Reinterprets some batch dims of a constraint's values as event dims.
constraints.independent = signature.of([[independent(base_constraint: constraint,
  reinterpreted_batch_ndims: natural)]], function(base, n)
  return new("independent", base.says, function(x, c)
    if x.ndim < c.event_dim then options.must_be("independent", "x", ("of %d dims or more"):format(c.event_dim), x) end
    return all_last(base:check(x), n)
  end, {base_constraint = base, reinterpreted_batch_ndims = n, event_dim = base.event_dim + n,
    is_discrete = base.is_discrete})
end)
constraints.real_vector = constraints.independent(constraints.real, 1)

--- lm.distributions.constraints.MixtureSameFamilyConstraint(): Constrains a mixture's values by components' support.
constraints.MixtureSameFamilyConstraint = signature.of("MixtureSameFamilyConstraint(base_constraint: constraint)",
  function(base)
    return new("mixture_same_family", base.says, function(x)
      return base:check(x:unsqueeze(-1 - base.event_dim)):all(-1)
    end, {base_constraint = base, event_dim = base.event_dim, is_discrete = base.is_discrete})
  end)

-- Returns a constraint of the constraints c.cseq of parts along c.dim. parts(x, c): the parts; join: the checks' join.
local function constrain_parts(kind, c, parts, join)
  options.list(kind, "cseq", c.cseq)
  c.event_dim, c.is_discrete = 0, false
  for i, part in ipairs(c.cseq) do
    options.arg(kind, ("cseq[%d]"):format(i), part, "constraint")
    c.event_dim, c.is_discrete = math.max(c.event_dim, part.event_dim), c.is_discrete or part.is_discrete
  end
  return new(kind, "what its constraints say", function(x)
    return join(lists.map(parts(x, c), function(part, i) return c.cseq[i]:check(part) end), c.dim)
  end, c)
end

--- Returns the list of slices of x along c.dim that have the sizes c.lengths.
function constraints._slices(x, c)
  local parts, from = {}, 1
  for i, length in ipairs(c.lengths) do parts[i], from = x:narrow(c.dim, from, length), from + length end
  if from - 1 ~= x.shape[c.dim > 0 and c.dim or x.ndim + 1 + c.dim] then
    options.fail("expected a size of %d along dim %d, got %s", from - 1, c.dim, options.describe(x))
  end
  return parts
end

--- Returns the list of selections of x along c.dim, without that dim.
function constraints._selections(x, c)
  return lists.map(constraints._slices(x, c), function(part) return part:squeeze(c.dim) end)
end

--- Returns the list of sizes of the parts along their dim, checked; 1 for each by default.
function constraints._lengths(who, parts, lengths)
  if lengths == nil then
    lengths = {}
    for i = 1, #parts do lengths[i] = 1 end
  end
  if #lengths ~= #parts then options.must_be(who, "lengths", ("a list of %d sizes"):format(#parts), lengths) end
  return lengths
end

--- lm.distributions.constraints.cat(): Constrains slices of a value along a dim, as lm.cat joins them.
constraints.cat = signature.of("cat(cseq: list, dim: dim = 1, lengths: list?)", function(cseq, dim, lengths)
  local c = {cseq = cseq, dim = dim, lengths = constraints._lengths("cat", cseq, lengths)}
  return constrain_parts("cat", c, constraints._slices, ops.cat)
end)

--- lm.distributions.constraints.stack(): Constrains the parts of a value along a dim, as lm.stack joins them.
constraints.stack = signature.of("stack(cseq: list, dim: dim = 1)", function(cseq, dim)
  local c = {cseq = cseq, dim = dim, lengths = constraints._lengths("stack", cseq)}
  c = constrain_parts("stack", c, constraints._selections, ops.stack)
  if dim < 0 and dim + c.event_dim < 0 then c.event_dim = c.event_dim + 1 end
  return c
end)

--- Fails unless all values of x satisfy a constraint.
function constraints._require(who, name, x, constraint)
  local ok = x:numel() == 0 or x.ndim >= constraint.event_dim
    and core.no_grad(function() return constraint:check(x:detach()):all():item() end)
  if not ok then options.must_be(who, name, constraint.says, x:numel() == 1 and x:item() or x) end
end

return constraints

--- lm.distributions.constraints: What parameters and values of distributions must be. A constraint has check(x), which
--- event_dim of its last dims make one value for, whether it is_discrete, and `says`, the words of errors.
local core = require "luminary.core"
local class = require "luminary.base.class"
local options = require "luminary.base.options"
local signature = require "luminary.base.signature"
local finfo = require("luminary.tensor.dtype_info").finfo
local ops = core.ops

local constraints = {}

--- lm.distributions.constraints.Constraint: Base class for constraints of parameters and values.
local Constraint = class.guard(class.new "Constraint")
constraints.Constraint = Constraint
Constraint.extend, Constraint.init, Constraint.is = class.methods.extend, class.methods.init, class.is
Constraint.event_dim, Constraint.is_discrete = 0, false

--- Returns a bool tensor: whether each value of x, of the last event_dim dims, satisfies the constraint.
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

local both = ops.logical_and
local function is_integer(x) return x:eq(x:floor()) end

-- A constraint of that kind. check is of single elements, unless it has reduced the event dims itself (`own`).
local function new(kind, says, check, fields)
  local c = class.object(Constraint)
  for name, v in pairs(fields or {}) do c[name] = v end
  c.kind, c.says, c._check = kind, says, check
  return c
end

local function fixed(kind, says, check, event_dim, is_discrete)
  constraints[kind] = new(kind, says, check, {event_dim = event_dim or 0, is_discrete = is_discrete or false})
end

-- Kinds with bounds, numbers or tensors: a function of them.
local function bounded(kind, names, says, check, fields)
  local text = ("%s(%s)"):format(kind, names:gsub("[%w_]+", "%0: bound"))
  constraints[kind] = signature.of(text, function(...)
    local c = new(kind, nil, check, fields)
    local i, bounds, shows = 0, {...}, {}
    for name in names:gmatch "[%w_]+" do
      i = i + 1
      c[name], shows[i] = bounds[i], shown(bounds[i])
    end
    c.says, c.shows = says:format(unpack(shows)), table.concat(shows, ", ")
    return c
  end)
end

options.kind("bound", "a number or a tensor", function(who, name, v)
  if type(v) ~= "number" and not core.is_tensor(v) then options.must_be(who, name, "a number or a tensor", v) end
  return v
end)

bounded("greater_than", "lower_bound", "above %s", function(x, c) return x:gt(c.lower_bound) end)
bounded("greater_than_eq", "lower_bound", "at least %s", function(x, c) return x:ge(c.lower_bound) end)
bounded("less_than", "upper_bound", "below %s", function(x, c) return x:lt(c.upper_bound) end)
bounded("interval", "lower_bound, upper_bound", "from %s to %s", function(x, c)
  return both(x:ge(c.lower_bound), x:le(c.upper_bound))
end)
bounded("half_open_interval", "lower_bound, upper_bound", "at least %s and below %s", function(x, c)
  return both(x:ge(c.lower_bound), x:lt(c.upper_bound))
end)
bounded("integer_interval", "lower_bound, upper_bound", "integers from %s to %s", function(x, c)
  return both(is_integer(x), both(x:ge(c.lower_bound), x:le(c.upper_bound)))
end, {is_discrete = true})
bounded("multinomial", "upper_bound", "at least 0 with a sum of at most %s along the last dim", function(x, c)
  return both(x:ge(0):all(-1), x:sum(-1):le(c.upper_bound))
end, {is_discrete = true, event_dim = 1})

fixed("real", "real numbers", function(x) return x:eq(x) end)
fixed("boolean", "0 or 1", function(x) return ops.logical_or(x:eq(0), x:eq(1)) end, 0, true)
for name, row in pairs {positive = {"greater_than", 0}, nonnegative = {"greater_than_eq", 0},
  unit_interval = {"interval", 0, 1}} do
  constraints[name] = constraints[row[1]](row[2], row[3])
end
for name, least in pairs {nonnegative_integer = 0, positive_integer = 1} do
  fixed(name, ("integers of at least %d"):format(least), function(x) return both(is_integer(x), x:ge(least)) end, 0,
    true)
end
fixed("simplex", "at least 0 with the sum 1 along the last dim", function(x)
  return both(x:ge(0):all(-1), (x:sum(-1) - 1):abs():lt(x.dtype == "float64" and 1e-6 or 1e-5))
end, 1)
fixed("weights", "at least 0, not all 0 along the last dim", function(x)
  return both(x:ge(0):all(-1), x:sum(-1):gt(0))
end, 1)
fixed("one_hot", "one 1 and else 0 along the last dim", function(x)
  return both(ops.logical_or(x:eq(0), x:eq(1)):all(-1), x:sum(-1):eq(1))
end, 1, true)

-- ---- matrices

local function is_lower(x) return x:tril():eq(x):all(-1):all(-1) end
local function is_lower_cholesky(x) return both(is_lower(x), x:diagonal(0, -2, -1):gt(0):all(-1)) end

local function is_symmetric(x)
  if x.shape[x.ndim] ~= x.shape[x.ndim - 1] then
    return ops.zeros({unpack(x.shape, 1, x.ndim - 2)}, {dtype = "bool", device = x.device})
  end
  return x:isclose(x:transpose(-1, -2), {atol = 1e-6}):all(-1):all(-1)
end

-- Symmetric, with eigenvalues for which `holds`.
local function by_eigenvalues(holds)
  return function(x)
    local ok = is_symmetric(x)
    if not ok:all():item() then return ok end
    return holds(ops.linalg_eigvalsh(x)):all(-1)
  end
end

fixed("square", "square matrices", function(x)
  local size = {unpack(x.shape, 1, x.ndim - 2)}
  return ops.full(size, x.shape[x.ndim] == x.shape[x.ndim - 1] and 1 or 0, {dtype = "bool", device = x.device})
end, 2)
fixed("symmetric", "symmetric matrices", is_symmetric, 2)
fixed("lower_triangular", "lower triangular matrices", is_lower, 2)
fixed("lower_cholesky", "lower triangular matrices with a diagonal above 0", is_lower_cholesky, 2)
fixed("corr_cholesky", "lower triangular matrices with a diagonal above 0 and rows of length 1", function(x)
  local off = (x:square():sum(-1):sqrt() - 1):abs()
  return both(is_lower_cholesky(x), off:le(finfo(x.dtype).eps * x.shape[x.ndim] * 10):all(-1))
end, 2)
fixed("positive_semidefinite", "symmetric and positive semidefinite matrices", by_eigenvalues(function(v)
  return v:ge(0)
end), 2)
fixed("positive_definite", "symmetric and positive definite matrices", by_eigenvalues(function(v)
  return v:gt(0)
end), 2)

-- ---- made of others

options.kind("constraint", "constraint", function(who, name, c)
  if not class.is(c, Constraint) then options.must_be(who, name, "a constraint", c) end
  return c
end)

--- lm.distributions.constraints.independent(): Reinterprets some batch dims of a constraint's values as event dims.
constraints.independent = signature.of([[independent(base_constraint: constraint,
  reinterpreted_batch_ndims: natural)]], function(base, n)
  return new("independent", base.says, function(x) return all_last(base:check(x), n) end,
    {base_constraint = base, reinterpreted_batch_ndims = n, event_dim = base.event_dim + n,
      is_discrete = base.is_discrete})
end)
constraints.real_vector = constraints.independent(constraints.real, 1)

--- lm.distributions.constraints.MixtureSameFamilyConstraint(): Constrains values of a mixture by its components' support.
constraints.MixtureSameFamilyConstraint = signature.of("MixtureSameFamilyConstraint(base_constraint: constraint)",
  function(base)
    return new("mixture_same_family", base.says, function(x)
      return base:check(x:unsqueeze(-1 - base.event_dim)):all(-1)
    end, {base_constraint = base, event_dim = base.event_dim, is_discrete = base.is_discrete})
  end)

-- Constraints of the parts of a value along a dim. parts(c, x): those parts; join: puts the results together.
local function of_parts(kind, c, parts, join)
  options.list(kind, "cseq", c.cseq)
  c.event_dim, c.is_discrete = 0, false
  for i, part in ipairs(c.cseq) do
    options.arg(kind, ("cseq[%d]"):format(i), part, "constraint")
    c.event_dim, c.is_discrete = math.max(c.event_dim, part.event_dim), c.is_discrete or part.is_discrete
  end
  return new(kind, "what its constraints say", function(x)
    local checks = {}
    for i, part in ipairs(parts(x, c)) do checks[i] = c.cseq[i]:check(part) end
    return join(checks, c.dim)
  end, c)
end

--- Returns the slices of x along dim of these lengths.
function constraints._slices(x, c)
  local parts, from = {}, 1
  for i, length in ipairs(c.lengths) do
    parts[i], from = x:narrow(c.dim, from, length), from + length
  end
  if from - 1 ~= x.shape[c.dim > 0 and c.dim or x.ndim + 1 + c.dim] then
    options.fail("expected a size of %d along dim %d, got %s", from - 1, c.dim, options.describe(x))
  end
  return parts
end

--- Returns x's slices of one index along dim.
function constraints._selections(x, c)
  local parts = {}
  for i = 1, x.shape[c.dim > 0 and c.dim or x.ndim + 1 + c.dim] do parts[i] = x:select(c.dim, i) end
  return parts
end

--- Returns the lengths, 1 for each of the parts by default.
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
  return of_parts("cat", c, constraints._slices, ops.cat)
end)

--- lm.distributions.constraints.stack(): Constrains the parts of a value along a dim, as lm.stack joins them.
constraints.stack = signature.of("stack(cseq: list, dim: dim = 1)", function(cseq, dim)
  local c = of_parts("stack", {cseq = cseq, dim = dim}, constraints._selections, ops.stack)
  if dim < 0 and dim + c.event_dim < 0 then c.event_dim = c.event_dim + 1 end
  return c
end)

--- Fails unless all of x satisfies a constraint.
function constraints._require(who, name, x, constraint)
  local ok = x:numel() == 0 or x.ndim >= constraint.event_dim
    and core.no_grad(function() return constraint:check(x:detach()):all():item() end)
  if not ok then options.must_be(who, name, constraint.says, x:numel() == 1 and x:item() or x) end
end

return constraints

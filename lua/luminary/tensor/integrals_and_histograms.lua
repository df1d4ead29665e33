--- Implements integrals of samples, histograms, logspace, and renorm.
local core = require "luminary.core"
local full_precision = require "luminary.base.full_precision"
local options = require "luminary.base.options"
local signature = require "luminary.base.signature"
local shapes = require "luminary.tensor.shapes"

local ops, arg, describe, fail = core.ops, options.arg, options.describe, options.fail
local lib = {}

-- Returns the sums of neighbors of y along dim, and half of their distances.
local function trapezoids(who, y, x, dx, dim)
  arg(who, "y", y, "tensor")
  if type(x) == "number" then x, dx = nil, x end
  if y.ndim == 0 then options.must_be(who, "y", "a tensor of at least 1 dim", y) end
  dim = shapes.dim_of(who, y, dim or -1)
  local n = y.shape[dim]
  if not core.is_floating_point(y) then y = y:to(core.get_default_dtype()) end
  local sums = ops.narrow(y, dim, 1, math.max(n - 1, 0))
  if n > 1 then sums = sums + ops.narrow(y, dim, 2, n - 1) end
  if x == nil then return sums, (dx and arg(who, "dx", dx, "number") or 1) / 2, dim end
  if dx ~= nil then options.exclusive(who, "x", "dx") end
  arg(who, "x", x, "tensor")
  local given = describe(x)
  if x.ndim == 1 then x = shapes.along_dim(x, dim, y.ndim) end
  while x.ndim < y.ndim do x = ops.unsqueeze(x, 1) end
  if x.ndim ~= y.ndim or x.shape[dim] ~= n then
    fail("%s: x is %s, y is %s; expected one value of x for each sample along dim %d", who, given, describe(y), dim)
  end
  if n < 2 then return sums, 0.5, dim end
  return sums, (ops.narrow(x, dim, 2, n - 1) - ops.narrow(x, dim, 1, n - 1)) * 0.5, dim
end

--- lm.trapezoid(…): Integrates samples y along dim by the trapezoidal rule.
--- lm.trapz(…): Integrates samples y along dim, as lm.trapezoid does.
--- lm.cumulative_trapezoid(…): Integrates samples y along dim up to each sample, by the trapezoidal rule.

for who, add in pairs {trapezoid = ops.sum, trapz = ops.sum, cumulative_trapezoid = ops.cumsum} do
  lib[who] = signature.of(who .. "(y, x: any?, dx: any? = (1), dim: dims? = (-1))", function(y, x, dx, dim)
    return full_precision.rounds_once(function(...)
      local sums, half, d = trapezoids(who, ...)
      return add(sums * half, d)
    end)(y, x, dx, dim)
  end)
end

--- Returns a 1-d tensor of powers of base, whose exponents are evenly spaced from first to last.
lib.logspace = signature.of([[logspace(first, last, steps: natural, base: any? = (10), dtype: any?,
  device: any?)]], function(first, last, steps, base, dtype, device)
  local powers = ops.linspace(first, last, steps, {dtype = "float64", device = device})
  local bases = ops.full({}, base or 10, {dtype = "float64", device = device})
  return ops.pow(bases, powers):to(dtype or core.get_default_dtype())
end)

--- Scales down each slice of x along dim whose p-norm is above maxnorm.
lib.renorm = signature.of([[renorm(x: tensor, p: number, dim,
  maxnorm: positive)]], full_precision.rounds_once(function(x, p, dim, maxnorm)
  local who = "renorm"
  if p <= 0 then options.must_be(who, "p", "above 0", p) end
  if x.ndim < 2 then options.must_be(who, "x", "a tensor of at least 2 dims", x) end
  if not core.is_floating_point(x) then options.wrong_dtype(who, "x", "floating", x, "convert it with :float()") end
  local others = {}
  dim = shapes.dim_of(who, x, dim)
  for d = 1, x.ndim do
    if d ~= dim then others[#others + 1] = d end
  end
  local norm = ops.norm(x, p, others, {keepdim = true})
  local within = ops.le(norm, maxnorm)
  return x * ops.masked_fill(maxnorm / (ops.masked_fill(norm, within, 1) + 1e-7), within, 1)
end))

-- Returns the edges of bins: the given list, or those of `bins` equal bins over `range`, or over the values' range.
local function edges_of(who, bins, range, values)
  if core.is_tensor(bins) then
    if bins.ndim ~= 1 or bins.shape[1] < 1 or bins.dtype ~= values.dtype then
      fail("%s: edges must be 1-d, ascending and %s, got %s %s", who, values.dtype, bins.dtype, describe(bins))
    end
    if range ~= nil then fail("%s: range requires bins to be a number, not a list of edges", who) end
    return bins
  end
  arg(who, "bins", bins, "count")
  local low, high = 0, 1
  if range ~= nil then
    if not options.is_plain(range) or type(range[1]) ~= "number" or type(range[2]) ~= "number" then
      options.must_be(who, "range", "a list of two numbers", range)
    end
    low, high = range[1], range[2]
  elseif values:numel() > 0 then
    local min_value, max_value = ops.aminmax(values)
    low, high = min_value:item(), max_value:item()
  end
  if not (low > -math.huge and high < math.huge and low <= high) then
    fail("%s: range must be finite and ascending, got {%g, %g}", who, low, high)
  end
  if low == high then low, high = low - 0.5, high + 0.5 end
  return ops.linspace(low, high, bins + 1, {dtype = values.dtype, device = values.device})
end

--- Counts the elements of x in bins, and returns the counts and the edges of the bins.
lib.histogram = signature.of([[histogram(x: tensor, bins, range: any?, weight: any?,
  density: any? = (false))]], function(x, bins, range, weight, density)
  local who = "histogram"
  if x.dtype ~= "float32" and x.dtype ~= "float64" then
    options.wrong_dtype(who, "x", "float32 or float64", x, "convert it with :float()")
  end
  local values = ops.reshape(x:detach(), {-1})
  local edges = edges_of(who, bins, range, values)
  local n = edges.shape[1] - 1
  local bin = ops.searchsorted(edges, values, {right = true}) - 1
  bin = ops.where(ops.eq(values, ops.select(edges, 1, n + 1)), n, bin)
  local outside = ops.logical_or(ops.lt(bin, 1), ops.gt(bin, n)) -- NaN too
  local one = weight and ops.reshape(arg(who, "weight", weight, "tensor"):detach(), {-1}) or ops.ones_like(values)
  if weight and (weight:numel() ~= x:numel() or weight.dtype ~= x.dtype) then
    fail("%s: weight must have the dtype and shape of x, %s %s, got %s %s", who, x.dtype, describe(x),
      weight.dtype, describe(weight))
  end
  local counts = ops.scatter_add(ops.zeros(n + 1, {dtype = x.dtype, device = x.device}), 1,
    ops.masked_fill(bin, outside, n + 1), one)
  counts = ops.narrow(counts, 1, 1, n)
  if density and arg(who, "density", density, "boolean") then
    counts = counts / ops.sum(counts) / (ops.narrow(edges, 1, 2, n) - ops.narrow(edges, 1, 1, n))
  end
  return counts, edges
end)

return signature.all(lib)

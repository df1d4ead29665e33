--- Computes differences, quantiles, modes, distinct elements and counts, by other ops. Indices and labels count from 1.
local core = require "luminary.core"
local full_precision = require "luminary.base.full_precision"
local options = require "luminary.base.options"
local signature = require "luminary.base.signature"
local movedim = require("luminary.tensor.shape_ops").movedim
local shapes = require "luminary.tensor.shapes"

local ops, arg, describe, fail = core.ops, options.arg, options.describe, options.fail
local ordering = {}

local function a_tensor(who, x, name) return arg(who, name or "x", x, "tensor") end

local function lines(x) return x.ndim == 0 and ops.reshape(x, {1}) or x end
local function flat(x) return ops.reshape(x, {-1}) end
local function indices_to(n, x) return ops.arange(1, n + 1, {dtype = "int64", device = x.device}) end

-- Returns entries 2 to n along dim, and entries 1 to n - 1.
local function adjacent(x, dim)
  local n = x.shape[dim]
  return ops.narrow(x, dim, 2, n - 1), ops.narrow(x, dim, 1, n - 1)
end

--- Computes the n-th differences of neighbors along dim.
ordering.diff = signature.of([[diff(x: tensor, n: natural = 1, dim: dim = -1, prepend: tensor?,
  append: tensor?)]], function(x, n, along, prepend, append)
  local who = "diff"
  if x.ndim == 0 then options.must_be(who, "x", "a tensor of at least 1 dim", x) end
  local dim, parts = shapes.dim_of(who, x, along), {x}
  if prepend then table.insert(parts, 1, prepend) end
  if append then parts[#parts + 1] = append end
  for i, part in ipairs(parts) do
    if part.ndim == 0 then
      local shape = x.shape
      shape[dim] = 1
      parts[i] = ops.expand(part, shape)
    end
  end
  local y = n > 0 and #parts > 1 and ops.cat(parts, dim) or x
  for _ = 1, n do
    if y.shape[dim] == 0 then break end
    local later, before = adjacent(y, dim)
    if y.dtype == "bool" then y = ops.logical_xor(later, before) else y = later - before end
  end
  return y == x and ops.clone(x) or y
end)

-- ---- order statistics

--- x:median(dim [, {keepdim = false}]): Returns the medians along dim and their indices, or without dim the median of
--- all elements.
ordering.median = core.median

--- x:nanmedian(dim [, {keepdim = false}]): Returns the medians of the elements that are not NaN along dim and their
--- indices, or without dim that of all.
ordering.nanmedian = core.nanmedian

--- Returns the most frequent elements along dim and their indices.
ordering.mode = signature.of("mode(x: tensor, dim: dim = -1, keepdim = false)", function(x, along, keepdim)
  local who = "mode"
  local dim, y = shapes.dim_of(who, x, along), lines(x)
  local n = y.shape[dim]
  if n == 0 then fail("%s: dim %d of %s is empty", who, dim, describe(x)) end
  local values, from = ops.sort(y, dim, {stable = true})
  local later, before = adjacent(values, dim)
  local last = ops.ones(ops.narrow(values, dim, 1, 1).shape, {dtype = "bool", device = x.device})
  local ends = ops.cat({ops.ne(later, before), last}, dim)
  local at = shapes.along_dim(indices_to(n, x), dim, y.ndim) * ends -- the end of each run of equals, 0 elsewhere
  local up_to = ops.cummax(at, dim)
  local zero = ops.zeros(last.shape, {dtype = "int64", device = x.device})
  local length = (at - ops.cat({zero, ops.narrow(up_to, dim, 1, n - 1)}, dim)) * ends
  local best = ops.argmax(length, dim, {keepdim = true})
  values, from = ops.gather(values, dim, best), ops.gather(from, dim, best)
  if x.ndim == 0 or not keepdim then values, from = ops.squeeze(values, dim), ops.squeeze(from, dim) end
  return values, from
end)

-- Returns one quantile of 1-d slices without NaN, by kthvalue: a sort would order all entries for at most two of them.
local function quantile_of(x, rank, interpolation)
  local below = math.floor(rank)
  local function kth(position) return (ops.kthvalue(x, position + 1, -1, {keepdim = true})) end
  if interpolation == "nearest" then return kth(rank - below == 0.5 and below + below % 2 or math.floor(rank + 0.5)) end
  if interpolation == "lower" then return kth(below) end
  if interpolation == "higher" then return kth(math.ceil(rank)) end
  local low = kth(below) -- at its rank an infinity is NaN, as in PyTorch
  return ops.lerp(low, rank == below and low or kth(below + 1), interpolation == "midpoint" and 0.5 or rank - below)
end

-- Returns the quantiles q, a list [m], of slices along the last dim: [..., m].
local function quantiles_of(x, q, interpolation, without_nan)
  local n, nan = x.shape[x.ndim], ops.isnan(x)
  local one = q.shape[1] == 1 and not q.requires_grad and not core.is_recording_ops() -- which reads x
  if one and x.device == "cpu" and q.device == "cpu" and not ops.any(nan):item() then
    return quantile_of(x, ops.mul(q, n - 1):item(), interpolation)
  end
  local sorted = ops.sort(x, -1)
  local rank
  if without_nan then
    rank = q * ops.clamp(n - 1 - ops.sum(nan, -1, {keepdim = true}), 0):to(x.dtype)
  else -- NaN is last
    rank = ops.where(ops.any(nan, -1, {keepdim = true}), n - 1, q * (n - 1))
  end
  local shape = x.shape
  shape[x.ndim] = q.shape[1]
  rank = ops.expand(rank, shape)
  local function sorted_value_at(position) return ops.gather(sorted, -1, position:to "int64" + 1) end
  if interpolation == "lower" then return sorted_value_at(ops.floor(rank)) end
  if interpolation == "higher" then return sorted_value_at(ops.ceil(rank)) end
  if interpolation == "nearest" then return sorted_value_at(ops.round(rank)) end
  local below = ops.floor(rank)
  local weight = interpolation == "midpoint" and ops.full_like(rank, 0.5) or rank - below
  return ops.lerp(sorted_value_at(below), sorted_value_at(ops.ceil(rank)), weight)
end

local quantile_rows = [[x: tensor, q: any, dim: dim?, keepdim = false, interpolation = "linear" | "lower" | "higher" |
  "midpoint" | "nearest"]]

local function quantile(who, without_nan, x, q, along, keepdim, interpolation)
  if x.dtype ~= "float32" and x.dtype ~= "float64" then
    options.wrong_dtype(who, "x", "float32 or float64", x, "convert it with :float()")
  end
  if type(q) == "number" or options.is_plain(q) then q = core.tensor(q, {dtype = x.dtype, device = x.device}) end
  a_tensor(who, q, "q")
  if q.ndim > 1 or q.dtype ~= x.dtype then
    fail("%s: q must be a number or a 1-d tensor of dtype %s, got %s %s", who, x.dtype, q.dtype, describe(q))
  end
  if q.device == "cpu" and not core.no_grad(function()
    return ops.all(ops.logical_and(ops.ge(q, 0), ops.le(q, 1))):item()
  end) then
    fail("%s: q must be from 0 to 1%s", who, q:numel() == 1 and (", got %.14g"):format(q:item()) or "")
  end
  if x:numel() == 0 then options.must_be(who, "x", "a tensor with elements", x) end
  local kept = {}
  if along then
    local dim = shapes.dim_of(who, x, along)
    for d, n in ipairs(x.shape) do
      if d ~= dim then kept[#kept + 1] = n elseif keepdim then kept[#kept + 1] = 1 end
    end
    local y = quantiles_of(movedim(lines(x), dim, lines(x).ndim), flat(q), interpolation, without_nan)
    return ops.reshape(movedim(y, y.ndim, 1), q.ndim == 1 and {q.shape[1], unpack(kept)} or kept)
  end
  for d = 1, keepdim and x.ndim or 0 do kept[d] = 1 end
  return ops.reshape(quantiles_of(flat(x), flat(q), interpolation, without_nan),
    q.ndim == 1 and {q.shape[1], unpack(kept)} or kept)
end

--- Computes the q-th quantiles of x along dim, or of all its elements.
ordering.quantile = signature.of("quantile(" .. quantile_rows .. ")", function(...)
  return quantile("quantile", false, ...)
end)

--- Computes the q-th quantiles of the elements that are not NaN.
ordering.nanquantile = signature.of("nanquantile(" .. quantile_rows .. ")", function(...)
  return quantile("nanquantile", true, ...)
end)

-- ---- distinct elements

-- Returns the lexicographic order of rows [n, m] by stable sorts of columns, from the last to the first. It starts with
-- the first two columns and takes more until all rows differ.
local function order_of_rows(rows)
  local columns = math.min(2, rows.shape[2])
  while true do
    local order = indices_to(rows.shape[1], rows)
    for column = columns, 1, -1 do
      local _, from = ops.sort(ops.index_select(ops.select(rows, 2, column), 1, order), 1, {stable = true})
      order = ops.index_select(order, 1, from)
    end
    if columns == rows.shape[2] then return order end
    local first = ops.index_select(ops.narrow(rows, 2, 1, columns), 1, order)
    if ops.all(ops.any(ops.ne(adjacent(first, 1)), 2)):item() then return order end
    columns = math.min(8 * columns, rows.shape[2])
  end
end

-- Finds the entries of the first dim that differ from the one before. `order`: indices before sorting, nil if unsorted.
local function runs_of(entries, order, return_inverse, return_counts)
  local n = entries.shape[1]
  local later, before = adjacent(entries, 1)
  local differs = ops.ne(later, before)
  if entries.ndim > 1 then differs = ops.any(ops.flatten(differs, 2, -1), 2) end
  local begins = ops.cat {ops.ones(1, {dtype = "bool", device = entries.device}), differs}
  local first = (entries.ndim > 1 or return_counts) and ops.squeeze(ops.nonzero(begins), 2)
  local results = {entries.ndim > 1 and ops.index_select(entries, 1, first) or ops.masked_values(entries, begins)}
  if return_inverse then
    local run = ops.cumsum(begins, 1)
    if order then run = ops.index_put(ops.zeros_like(run), {order}, run) end
    results[#results + 1] = run
  end
  if return_counts then
    local past = ops.full({1}, n + 1, {dtype = "int64", device = entries.device})
    results[#results + 1] = ops.cat {ops.narrow(first, 1, 2, first.shape[1] - 1), past} - first
  end
  return results
end

local function distinct(who, x, by_value, return_inverse, return_counts, along)
  local shape, entries, order = x.shape
  if along then
    local dim = shapes.dim_of(who, x, along)
    entries = ops.contiguous(movedim(lines(x), dim, 1))
    shape = {entries.shape[1]}
    if entries:numel() == 0 and entries.shape[1] > 0 then
      fail("%s: cannot compare slices along dim %d of %s, which is empty", who, dim, describe(x))
    end
  else
    entries = flat(x)
  end
  if entries.shape[1] == 0 then
    local none = ops.empty(0, {dtype = "int64", device = x.device})
    local results = {along and x or entries}
    if return_inverse then results[2] = ops.reshape(none, shape) end
    if return_counts then results[#results + 1] = none end
    return unpack(results)
  end
  if by_value and entries.ndim == 1 then
    entries, order = ops.sort(entries, 1)
  elseif by_value then
    order = order_of_rows(ops.flatten(entries, 2, -1))
    entries = ops.index_select(entries, 1, order)
  end
  local results = runs_of(entries, order, return_inverse, return_counts)
  if along then results[1] = movedim(results[1], 1, shapes.dim_of(who, x, along)) end
  if return_inverse then results[2] = ops.reshape(results[2], shape) end
  return unpack(results)
end

--- Returns the distinct elements of x in ascending order.
ordering.unique = signature.of([[unique(x: tensor, sorted = true, return_inverse = false, return_counts = false,
  dim: dim?)]], function(x, _, return_inverse, return_counts, along)
  return core.no_grad(distinct, "unique", x, true, return_inverse, return_counts, along)
end)

--- Returns the elements of x that differ from the one before.
ordering.unique_consecutive = signature.of([[unique_consecutive(x: tensor, return_inverse = false,
  return_counts = false, dim: dim?)]], function(x, return_inverse, return_counts, along)
  return core.no_grad(distinct, "unique_consecutive", x, false, return_inverse, return_counts, along)
end)

--- Returns whether each element is among test_elements.
ordering.isin = signature.of([[isin(elements: any, test_elements: any, assume_unique = false,
  invert = false)]], function(x, among, _, invert)
  local other = core.is_tensor(x) and x or among
  a_tensor("isin", other, "elements")
  if not core.is_tensor(x) then x = core.tensor(x, {device = other.device}) end
  if not core.is_tensor(among) then among = core.tensor(among, {device = other.device}) end
  local found
  if among:numel() == 0 then
    found = ops.zeros(x.shape, {dtype = "bool", device = x.device})
  elseif among:numel() == 1 then
    found = ops.eq(x, ops.reshape(among, {}))
  else
    local sorted = ops.sort(flat(among), 1)
    local at = ops.clamp(ops.searchsorted(sorted, x), {max = sorted.shape[1]})
    found = ops.eq(ops.reshape(ops.index_select(sorted, 1, flat(at)), x.shape), x)
  end
  return invert and ops.logical_not(found) or found
end)

-- ---- counts

-- Counts each label from 1 to n, or sums its weights.
local function counted(labels, weights, n)
  local sums = ops.zeros(n, {dtype = weights and weights.dtype or "int64", device = labels.device})
  local one = not weights and ops.expand(ops.ones(1, {dtype = "int64", device = labels.device}), labels.shape)
  return ops.scatter_add(sums, 1, labels, weights or one)
end

--- Counts each label from 1 to the largest.
ordering.bincount = signature.of([[bincount(x: tensor, weights: tensor?,
  minlength: natural = 0)]], function(x, weights, minlength)
  local who = "bincount"
  if x.ndim ~= 1 or core.is_floating_point(x) or x.dtype == "bool" then
    fail("%s: x must be 1-d and integer, got %s %s", who, x.dtype, describe(x))
  end
  if weights then
    if weights.ndim ~= 1 or weights.shape[1] ~= x.shape[1] then
      options.shapes_differ(who, "weights", weights, "x", x)
    end
    if weights.dtype ~= "float32" then weights = weights:to "float64" end
    weights = weights:detach()
  end
  local n = 0
  if x.shape[1] > 0 then
    local min_label, max_label = ops.aminmax(x)
    if min_label:item() < 1 then
      options.must_be(who, "x", "at least 1", min_label:item(), "labels start at 1")
    end
    n = tonumber(max_label:item())
    if n > 2 ^ 40 then options.must_be(who, "x", "at most 2^40", n, "there is a count for each label") end
  end
  return counted(x:to "int64", weights, math.max(n, minlength))
end)

--- Counts the elements of x in bins of equal width.
ordering.histc = signature.of("histc(x: tensor, bins: count = 100, min = 0, max = 0)", function(x, bins, min, max)
  local who = "histc"
  if not core.is_floating_point(x) then options.wrong_dtype(who, "x", "floating", x, "convert it with :float()") end
  local low, high, values = min, max, flat(x:detach())
  if x.dtype ~= "float64" then values = values:float() end
  if low == high and x:numel() > 0 then
    local min_value, max_value = ops.aminmax(values)
    low, high = min_value:item(), max_value:item()
  end
  local constant = low == high -- counts in the middle bin
  if constant then low, high = low - 1, high + 1 end
  if not (low > -math.huge and high < math.huge and low <= high) then
    fail("%s: min and max must be finite and in ascending order, got %g and %g", who, low, high)
  end
  if high - low > (values.dtype == "float64" and 2 ^ 1022 or 2 ^ 127) then
    fail("%s: bins from %g to %g are out of the range of %s", who, low, high, values.dtype)
  end
  local bin = constant and ops.full_like(values, math.floor(bins / 2) + 1)
    or (values - low):mul_(bins):div_(high - low):floor_():add_(1):clamp_(1, bins)
  if min ~= max then -- an additional bin counts values outside, and NaN
    local within = ops.logical_and(ops.ge(values, low), ops.le(values, high))
    bin:masked_fill_(ops.logical_not(within), bins + 1)
  end
  return ops.narrow(counted(bin:to "int64", nil, bins + 1), 1, 1, bins):to(x.dtype)
end)

-- ---- covariance

--- Computes the covariance matrix of the rows of x.
ordering.cov = signature.of([[cov(x: tensor, correction: integer = 1, fweights: tensor?,
  aweights: tensor?)]], full_precision.rounds_once(function(x, correction, fweights, aweights)
  local who = "cov"
  if x.ndim > 2 then options.wrong_shape(who, "x", x, "[variables, observations]") end
  local rows = x.ndim < 2 and ops.reshape(x, {1, -1}) or x
  if not core.is_floating_point(rows) then rows = rows:to(core.get_default_dtype()) end
  local n, weights = rows.shape[2], nil
  for name, w in pairs {fweights = fweights, aweights = aweights} do
    if w.ndim > 1 or w:numel() ~= n then
      options.wrong_shape(who, name, w, {n})
    end
    weights = weights and weights * flat(w) or flat(w)
  end
  local total = weights and ops.sum(weights) or n
  local mean = ops.sum(weights and rows * weights or rows, 2, {keepdim = true}) / total
  local away = rows - mean
  local divisor = total - correction
  if aweights then
    divisor = total - ops.sum(weights * flat(aweights)) * correction / total
  end
  divisor = core.is_tensor(divisor) and ops.clamp(divisor, 0) or math.max(divisor, 0)
  local c = ops.mm(weights and away * weights or away, ops.t(away)) / divisor
  return rows.shape[1] == 1 and ops.reshape(c, {}) or c
end))

--- Computes the matrix of Pearson's correlation coefficients of the rows of x.
ordering.corrcoef = signature.of("corrcoef(x: tensor)", full_precision.rounds_once(function(x)
  local c = ordering.cov(x)
  if c.ndim == 0 then return c / c end
  local deviation = ops.sqrt(ops.diagonal(c))
  return ops.clamp(c / ops.unsqueeze(deviation, 2) / deviation, -1, 1)
end))

return options.exact_all(ordering)

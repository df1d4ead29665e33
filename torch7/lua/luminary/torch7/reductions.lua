--- Defines Torch7's reductions, comparisons, sorting and selection. A reduction along a dim keeps it with size 1; one
--- of all elements returns a number.
local core = require "luminary.core"
local lists = require "luminary.base.lists"
local options = require "luminary.base.options"
local tensor = require "luminary.torch7.tensor"
local fail, ops, ours = options.fail, core.ops, core.methods
local define, fitted = tensor.define, tensor.fitted
local keep = {keepdim = true}

for _, name in ipairs {"sum", "mean", "prod"} do
  local op = ops[name]
  define(name, {"t n?"}, function(x, dim)
    if dim == nil and name == "mean" then return tonumber(ops.sum(x):item()) / x:numel() end -- in double precision
    if dim == nil then return tonumber(op(x):item()) end
    return op(x, dim, keep):to(x.dtype)
  end)
end
for _, name in ipairs {"std", "var"} do
  local op = ops[name]
  define(name, {"t n? b?"}, function(x, dim, biased)
    local how = {keepdim = dim ~= nil, correction = biased and 0 or 1}
    if dim == nil then return op(x, lists.map(x.shape, function(_, d) return d end), how):item() end
    return op(x, dim, how)
  end)
end
for _, name in ipairs {"max", "min"} do
  define(name, {"t n?"}, function(x, dim)
    if dim == nil then return core[name](x):item() end
    return core[name](x, dim, keep)
  end, {results = 2})
end
define("norm", {"t n? n?"}, function(x, p, dim)
  p = p or 2
  local function total(powers) return dim and ops.sum(powers, dim, keep) or ops.sum(powers) end
  local y
  if p == 0 then
    y = total(ops.ne(x, 0):to(x.dtype))
  elseif p == math.huge then
    y = dim and core.max(ops.abs(x), dim, keep) or core.max(ops.abs(x))
  elseif p == 2 then
    y = ops.sqrt(total(ops.mul(x, x)))
  else
    y = ops.pow(total(ops.pow(ops.abs(x), p)), 1 / p)
  end
  return dim and y or y:item()
end)
define("dist", {"t t n?"}, function(x, y, p)
  return tensor.functions.norm(tensor.wrap(ops.sub(x, fitted("dist", x, y))), p or 2)
end)
define("dot", {"t t"}, function(x, y) return ops.sum(ops.mul(x, fitted("dot", x, y))):item() end)
define("all", {"t"}, function(x) return ops.all(ops.ne(x, 0)):item() end)
define("any", {"t"}, function(x) return ops.any(ops.ne(x, 0)):item() end)
define("trace", {"t"}, function(x) return ours.trace(x):item() end)
define("equal", {"t t"}, function(x, y) return x.shape == y.shape and x:equal(y) end)
for _, name in ipairs {"cumsum", "cumprod"} do
  define(name, {"t n?"}, function(x, dim) return ops[name](x, dim or 1):to(x.dtype) end)
end

for _, name in ipairs {"lt", "le", "gt", "ge", "eq", "ne"} do
  define(name, {"t n", "t t"}, function(x, y)
    return ops[name](x, type(y) == "number" and tensor.number(x, y) or fitted(name, x, y)):to "uint8"
  end)
end

-- ---- values and indices

define("topk", {"t n? n? b? b?"}, function(x, k, dim, descending)
  return ops.topk(x, k or 1, dim or -1, {largest = descending or false})
end, {results = 2})
define("sort", {"t n? b?"}, function(x, dim, descending)
  return ops.sort(x, dim or -1, {descending = descending or false})
end, {results = 2})
for _, name in ipairs {"median", "mode"} do
  define(name, {"t n?"}, function(x, dim) return x[name](x, dim or -1, keep) end, {results = 2})
end
define("kthvalue", {"t n n?"}, function(x, k, dim) return ops.kthvalue(x, k, dim or -1, keep) end, {results = 2})

-- ---- selections and histograms

define("index", {"t n t"}, function(x, dim, index) return ops.index_select(x, dim, index:to(x.device, "int64")) end)
define("gather", {"t n t"}, function(x, dim, index) return ops.gather(x, dim, index:to(x.device, "int64")) end)
define("nonzero", {"t"}, ops.nonzero)
define("maskedSelect", {"t t"}, function(x, mask)
  return ours.masked_select(x, fitted("maskedSelect", x, mask):to "bool")
end)
define("histc", {"t n? n? n?"}, function(x, bins, low, high) return ours.histc(x, bins or 100, low or 0, high or 0) end)
define("bhistc", {"t n? n? n?"}, function(x, bins, low, high)
  return ops.stack(lists.map(x:unbind(1), function(row) return row:histc(bins or 100, low or 0, high or 0) end), 1)
end)
-- dim is by default the last of the longest sizes. Tensors without elements are left out; others get dims of size 1.
local function cat(list, dim)
  local parts, dims = {}, 0
  for i, v in ipairs(list) do
    local x = tensor.raw(v, "torch.cat")
    if x:numel() > 0 then parts[#parts + 1] = x end
    dims = math.max(dims, x.ndim)
    list[i] = x
  end
  if #list == 0 then fail("torch.cat: expected a table of one or more tensors") end
  dim = (not dim or dim == -1) and dims or options.arg("torch.cat", "dim", dim, "count")
  for i, x in ipairs(parts) do
    for _ = x.ndim + 1, math.max(dims, dim) do parts[i] = ops.unsqueeze(parts[i], -1) end
  end
  return #parts > 0 and ops.cat(parts, dim) or list[1]
end
define("cat", {"t t n?", "T n?"}, function(first, second, dim)
  if type(first) == "table" then return cat(lists.slice(first), second) end
  return cat({first, second}, dim)
end)

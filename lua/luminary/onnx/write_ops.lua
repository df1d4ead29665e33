--- Writes ops as nodes of ONNX: write_ops.rows[op](g, a, c) adds the nodes of a step and returns its results.
---
--- g is the graph (write_graph.lua), a has the op's arguments by name: tensors as values, others as they are, with dims
--- from 0 or negative; c.dtype and c.shape describe the first result, c.rank(x) returns the number of dims of a value.
local core = require "luminary.core"
local lists = require "luminary.base.lists"
local write_graph = require "luminary.onnx.write_graph"
local ops, is_varying = core.ops, write_graph.is_varying
local finfo = require("luminary.tensor.dtype_info").finfo
local rows = {}

local INT_MAX = 2 ^ 62 -- the end of a slice up to the last element

-- ---- ops that are one formula

-- Formulas of the arguments in a, of ONNX's ops as functions of values and attributes, and of c.
local formulas = [[
  abs = Abs(x); neg = Neg(x); sign = Sign(x); sqrt = Sqrt(x); exp = Exp(x); log = Log(x); sin = Sin(x); cos = Cos(x);
  tan = Tan(x); asin = Asin(x); acos = Acos(x); atan = Atan(x); sinh = Sinh(x); cosh = Cosh(x); asinh = Asinh(x);
  acosh = Acosh(x); atanh = Atanh(x); tanh = Tanh(x); erf = Erf(x); sigmoid = Sigmoid(x); relu = Relu(x);
  softsign = Softsign(x); floor = Floor(x); ceil = Ceil(x); hardswish = HardSwish(x); reciprocal = Reciprocal(x);
  isnan = IsNaN(x); isinf = IsInf(x); isfinite = Not(Or(IsNaN(x), IsInf(x)));
  rsqrt = Reciprocal(Sqrt(x)); square = x * x; exp2 = Exp(x * math.log(2)); expm1 = Exp(x) - 1; log1p = Log(x + 1);
  log2 = Log(x) / math.log(2); log10 = Log(x) / math.log(10); erfc = 1 - Erf(x); trunc = Sign(x) * Floor(Abs(x));
  frac = x - Sign(x) * Floor(Abs(x)); deg2rad = x * (math.pi / 180); rad2deg = x * (180 / math.pi);
  fmod = Mod(x, other, {fmod = 1}); pow = x ^ exponent; maximum = Max(x, other); minimum = Min(x, other);
  where = Where(condition, x, other); masked_fill = Where(mask, value, x); lerp = x + weight * (a["end"] - x);
  addcmul = x + tensor1 * tensor2 * value; addcdiv = x + tensor1 / tensor2 * value;
  eq = Equal(x, other); ne = Not(Equal(x, other)); lt = Less(x, other); gt = Greater(x, other);
  ge = GreaterOrEqual(x, other); le = LessOrEqual(x, other); logical_not = Not(x:to "bool");
  logical_and = And(x:to "bool", other:to "bool"); logical_or = Or(x:to "bool", other:to "bool");
  logical_xor = Xor(x:to "bool", other:to "bool");
  relu6 = Clip(x, 0, 6); hardtanh = Clip(x, min_val, max_val); leaky_relu = LeakyRelu(x, {alpha = negative_slope});
  hardsigmoid = HardSigmoid(x, {alpha = 1 / 6, beta = 0.5}); elu = Elu(x, {alpha = alpha});
  celu = Celu(x, {alpha = alpha});
  selu = Selu(x, {alpha = 1.6732632423543773, gamma = 1.0507009873554805}); silu = x * Sigmoid(x);
  mul_sigmoid = x * Sigmoid(gate); threshold = Where(LessOrEqual(x, threshold), value, x);
  hardshrink = Shrink(x, {lambd = lambd, bias = 0}); softshrink = Shrink(x, {lambd = lambd, bias = lambd});
  tanhshrink = x - Tanh(x); log_sigmoid = -Softplus(-x); mish = x * Tanh(Softplus(x));
  gelu_tanh = x * 0.5 * (Tanh((x + x * x * x * 0.044715) * math.sqrt(2 / math.pi)) + 1);
  gated_halves = Slice(x, {0}, {n}, {dim}) * Sigmoid(Slice(x, {n}, {2 * n}, {dim}));
  softmax = Softmax(x:to(c.dtype), {axis = dim}); log_softmax = LogSoftmax(x:to(c.dtype), {axis = dim});
  softmin = Softmax(-x:to(c.dtype), {axis = dim}); unsqueeze = Unsqueeze(x, {dim}); to_copy = x:to(c.dtype);
  detach = x; clone = x; contiguous = x; embedding = Gather(weight, index:from_zero(), {axis = 0});
  gather = GatherElements(x, index:from_zero(), {axis = dim});
  index_select = Gather(x, index:from_zero(), {axis = dim});
  matmul = MatMul(x, other); mm = MatMul(x, other); bmm = MatMul(x, other); dot = MatMul(x, other); mv = MatMul(x, vec);
  outer = Unsqueeze(x, {1}) * Unsqueeze(other, {0}); det = Det(x)
]]
for name, formula in formulas:gmatch "(%w[%w_]*) = ([^;]+)" do
  local f = assert(loadstring("return " .. formula))
  rows[name] = function(g, a, c)
    setfenv(f, setmetatable({math = math, a = a, c = c}, {__index = function(_, key)
      if a[key] ~= nil then return a[key] end
      return g[key]
    end}))
    local y = f()
    setfenv(f, {}) -- which keeps no values
    return y
  end
end

function rows.round(g, a)
  if a.decimals ~= 0 then error("its decimals must be 0", 0) end
  return g.Round(a.x)
end
function rows.add(_, a) return a.x + (a.alpha == 1 and a.other or a.other * a.alpha) end
function rows.sub(_, a) return a.x - (a.alpha == 1 and a.other or a.other * a.alpha) end
function rows.rsub(_, a) return a.other - (a.alpha == 1 and a.x or a.x * a.alpha) end
function rows.mul(g, a, c)
  if c.dtype == "bool" then return g.And(a.x, a.other) end
  return a.x * a.other
end
local function is_integer(x) return x.dtype:find "int" ~= nil end
local function floor_quotient(g, x, y)
  if type(y) == "number" then y = g:constant(y, x.dtype) end
  local quotient = g.Div(x, y)
  if not is_integer(quotient) then return g.Floor(quotient) end
  local rest = x - quotient * y
  local down = g.And(g.Not(g.Equal(rest, 0)), g.Xor(g.Less(rest, 0), g.Less(y, 0)))
  return quotient - down:to(quotient.dtype)
end
function rows.floor_divide(g, a) return floor_quotient(g, a.x, a.other) end
function rows.div(g, a)
  if a.rounding_mode == "floor" then return floor_quotient(g, a.x, a.other) end
  local y = a.x / a.other
  return a.rounding_mode == "trunc" and not is_integer(y) and g.Sign(y) * g.Floor(g.Abs(y)) or y
end
function rows.remainder(g, a)
  if is_integer(a.x) then return g.Mod(a.x, a.other) end
  return a.x - floor_quotient(g, a.x, a.other) * a.other
end
function rows.clamp(g, a)
  local x = a.min and g.Max(a.x, a.min) or a.x
  return a.max and g.Min(x, a.max) or x
end
rows.clamp_range = rows.clamp
local function truth(x) return x:to "bool" end
local function define_bitwise(name)
  rows["bitwise_" .. name] = function(g, a, c)
    if c.dtype ~= "bool" then error("bits of integers have no counterpart before opset 18", 0) end
    return rows["logical_" .. name](g, a, c)
  end
end
for name in ("and or xor not"):gmatch "%S+" do define_bitwise(name) end

function rows.softplus(g, a)
  local y = a.x * a.beta
  return g.Where(g.Greater(y, a.threshold), a.x, g.Softplus(y) / a.beta)
end
function rows.gelu(g, a, c)
  local x = a.x
  if a.approximate == "tanh" then return rows.gelu_tanh(g, a, c) end
  return x * 0.5 * (g.Erf(x / math.sqrt(2)) + 1)
end
function rows.prelu(g, a, c)
  local n = #a.weight.shape == 1 and a.weight.shape[1] or 1
  return g.PRelu(a.x, n > 1 and c.rank(a.x) > 2 and g.Reshape(a.weight, {n, unpack(lists.map(lists.slice(a.x.shape, 3),
    function() return 1 end))}) or a.weight)
end

-- ---- reductions

-- Returns x reduced over dims (nil: all) by a node of an op.
local function reduce(g, op, x, dims, keepdim)
  local attributes = {keepdims = keepdim and 1 or 0}
  if dims and #dims > 0 and g.opset < 18 and op ~= "ReduceSum" then
    attributes.axes = dims
    return g[op](x, attributes)
  end
  return g[op](x, dims and #dims > 0 and dims or false, attributes)
end
for name, op in ("mean=Mean amax=Max amin=Min sum=Sum prod=Prod logsumexp=LogSumExp"):gmatch "(%w+)=(%w+)" do
  rows[name] = function(g, a, c) return reduce(g, "Reduce" .. op, a.x:to(c.dtype), a.dim, a.keepdim) end
end
function rows.norm(g, a)
  local x, p = g.Abs(a.x), a.p
  if p == 1 or p == 2 then return reduce(g, "ReduceL" .. p, a.x, a.dim, a.keepdim) end
  if p == math.huge then return reduce(g, "ReduceMax", x, a.dim, a.keepdim) end
  return reduce(g, "ReduceSum", x ^ p, a.dim, a.keepdim) ^ (1 / p)
end
function rows.var(g, a, c)
  local mean = reduce(g, "ReduceMean", a.x, a.dim, true)
  local gap, n = a.x - mean, 1
  local dims = a.dim and #a.dim > 0 and a.dim
  for i, size in ipairs(a.x.shape) do
    if not dims or lists.index_of(dims, i - 1) or lists.index_of(dims, i - 1 - c.rank(a.x)) then n = n * size end
  end
  local correction = a.unbiased and a.correction or 0
  if is_varying(n) then
    local less = (g:size(n) - g:constant({correction}, "int64")):to(a.x.dtype)
    return reduce(g, "ReduceSum", gap * gap, a.dim, a.keepdim) / g.Squeeze(less)
  end
  return reduce(g, "ReduceSum", gap * gap, a.dim, a.keepdim) / (n - correction)
end
function rows.std(g, a, c) return g.Sqrt(rows.var(g, a, c)) end
function rows.all(g, a) return reduce(g, "ReduceMin", truth(a.x):to "int32", a.dim, a.keepdim):to "bool" end
function rows.any(g, a) return reduce(g, "ReduceMax", truth(a.x):to "int32", a.dim, a.keepdim):to "bool" end

local function index_result(x)
  x.zero_based = true
  return x
end
local function extreme(op)
  return function(g, a, c)
    if a.dim then return index_result(g[op](a.x, {axis = a.dim, keepdims = a.keepdim and 1 or 0})) end
    local flat = g[op](g.Reshape(a.x, {-1}), {axis = 0, keepdims = 0})
    return index_result(a.keepdim and g.Reshape(flat, lists.map(c.shape, function() return 1 end)) or flat)
  end
end
rows.argmax, rows.argmin = extreme "ArgMax", extreme "ArgMin"
for name in ("max min"):gmatch "%S+" do
  rows[name .. "_dim"] = function(g, a, c)
    return rows["a" .. name](g, {x = a.x, dim = {a.dim}, keepdim = a.keepdim}, c), rows["arg" .. name](g, a, c)
  end
end
function rows.topk(g, a)
  local y, i = g.TopK(a.x, {a.k}, {axis = a.dim or -1, largest = a.largest and 1 or 0, sorted = 1, outputs = 2})
  return y, index_result(i)
end
function rows.sort(g, a, c)
  local dim = a.dim or -1
  local n = a.x.shape[dim < 0 and dim + c.rank(a.x) + 1 or dim + 1]
  return rows.topk(g, {x = a.x, k = n, dim = dim, largest = a.descending})
end
-- Returns the k-th smallest elements along a dim, and their indices.
local function kth(g, a, k)
  local values, i = rows.topk(g, {x = a.x, k = k, dim = a.dim, largest = false})
  local last = g:constant(a.keepdim and {-1} or -1, "int64")
  local function pick(v) return g.Gather(v, last, {axis = a.dim or -1}) end
  return pick(values), index_result(pick(i))
end
function rows.kthvalue(g, a) return kth(g, a, a.k) end
function rows.median_dim(g, a, c)
  local n = a.x.shape[a.dim < 0 and a.dim + c.rank(a.x) + 1 or a.dim + 1]
  return kth(g, a, (n + 1 - (n + 1) % 2) / 2)
end
function rows.median_all(g, a, c)
  return (rows.median_dim(g, {x = g.Reshape(a.x, {-1}):with {lists.product(a.x.shape)}, dim = 0}, c))
end
function rows.argsort(g, a, c) return (select(2, rows.sort(g, a, c))) end
function rows.cumsum(g, a, c)
  return g.CumSum(a.x:to(c.dtype), g:constant(a.dim, "int64"), {reverse = a.reverse and 1 or 0})
end

-- ---- views and copies

function rows.dropout(_, a)
  if a.training and a.p > 0 then error("it draws random numbers", 0) end
  return a.x
end

-- Returns sizes for Reshape: the only one that varies is -1.
local function reshaped(g, x, shape)
  local sizes, varying, has_zero = {}, {}, false
  for i, v in ipairs(shape) do
    sizes[i], has_zero = v, has_zero or v == 0
    if is_varying(v) then varying[#varying + 1] = i end
  end
  if #varying == 1 and not has_zero then sizes[varying[1]] = -1 end
  if has_zero and g.opset >= 14 then return g.Reshape(x, sizes, {allowzero = 1}) end
  return g.Reshape(x, sizes)
end
function rows.view(g, a, c) return reshaped(g, a.x, c.shape) end
rows.reshape, rows.flatten = rows.view, rows.view

local function permuted(g, x, order)
  for i, d in ipairs(order) do
    if d ~= i - 1 then return g.Transpose(x, {perm = order}) end
  end
  return x
end
-- Returns the dims of a value in order, with two of them exchanged.
local function swapped(n, p, q)
  local order = {}
  for i = 1, n do order[i] = i - 1 end
  p, q = p < 0 and p + n or p, q < 0 and q + n or q
  order[p + 1], order[q + 1] = order[q + 1], order[p + 1]
  return order
end
function rows.permute(g, a, c)
  local order, n = {}, c.rank(a.x)
  for i = 1, n do
    local d = a.dims and a.dims[i] or n - i
    order[i] = d < 0 and d + n or d
  end
  return permuted(g, a.x, order)
end
function rows.transpose(g, a, c)
  if c.rank(a.x) == 0 then return a.x end
  return permuted(g, a.x, swapped(c.rank(a.x), a.dim0, a.dim1))
end
function rows.t(g, a, c) return c.rank(a.x) < 2 and a.x or g.Transpose(a.x, {perm = {1, 0}}) end

local function sliced(g, x, dim, first, last, step) return g.Slice(x, {first}, {last}, {dim}, {step or 1}) end
function rows.select(g, a)
  local index = is_varying(a.index) and a.index - 1 or a.index > 0 and a.index - 1 or a.index
  return g.Squeeze(sliced(g, a.x, a.dim, index, index == -1 and INT_MAX or index + 1), {a.dim})
end
function rows.slice(g, a)
  local first, last = a.first, a.last
  if is_varying(first) or first > 0 then first = first - 1 end
  if not is_varying(last) and last < 0 then last = last == -1 and INT_MAX or last + 1 end
  return sliced(g, a.x, a.dim, first, last, a.step)
end
function rows.narrow(g, a)
  local first = a.start
  if is_varying(first) or first > 0 then first = first - 1 end
  local last = first + a.length
  return sliced(g, a.x, a.dim, first, not is_varying(first) and first < 0 and last == 0 and INT_MAX or last)
end
function rows.expand(g, a, c)
  local sizes, before = {}, #c.shape - c.rank(a.x)
  for i, v in ipairs(c.shape) do
    local own = a.x.shape[i - before]
    sizes[i] = i > before and (own == v or is_varying(own) and is_varying(v)) and 1 or v
  end
  return lists.every(sizes, function(v) return v == 1 end) and before == 0 and a.x or g.Expand(a.x, sizes)
end
function rows.squeeze(g, a, c)
  local dims = {}
  for i, v in ipairs(a.x.shape) do
    local chosen = not a.dim or lists.index_of(a.dim, i - 1) or lists.index_of(a.dim, i - 1 - c.rank(a.x))
    if v == 1 and chosen then dims[#dims + 1] = i - 1 end
  end
  return #dims > 0 and g.Squeeze(a.x, dims) or a.x
end
function rows.cat(g, a, c)
  local parts = {}
  for _, x in ipairs(a.tensors) do
    if not (#x.shape == 1 and x.shape[1] == 0 and #c.shape ~= 1) then parts[#parts + 1] = x:to(c.dtype) end
  end
  parts[#parts + 1] = {axis = a.dim or 0}
  return g.Concat(unpack(parts))
end
function rows.stack(g, a, c)
  local parts = lists.map(a.tensors, function(x) return g.Unsqueeze(x:to(c.dtype), {a.dim or 0}) end)
  parts[#parts + 1] = {axis = a.dim or 0}
  return g.Concat(unpack(parts))
end
local pad_modes = {constant = "constant", reflect = "reflect", replicate = "edge", circular = "wrap"}
function rows.pad(g, a, c)
  local n, mode = c.rank(a.x), pad_modes[a.mode]
  local before, after = {}, {}
  for d = 1, n do before[d], after[d] = a.pad[2 * (n - d) + 1] or 0, a.pad[2 * (n - d) + 2] or 0 end
  if mode == "wrap" and g.opset < 19 then error("circular padding needs opset 19 or newer", 0) end
  return g.Pad(a.x, lists.joined(before, after), mode == "constant" and (a.value or 0), {mode = mode})
end
function rows.roll(g, a, c)
  local x = a.x
  if not a.dims or #a.dims == 0 then
    return g.Reshape(rows.roll(g, {x = g.Reshape(x, {-1}), shifts = a.shifts, dims = {0}}, c), g.Shape(x))
  end
  for i, dim in ipairs(a.dims) do
    local shift = a.shifts[i]
    if shift ~= 0 then
      x = g.Concat(sliced(g, x, dim, -shift, INT_MAX), sliced(g, x, dim, 0, -shift), {axis = dim})
    end
  end
  return x
end
function rows.flip(g, a, c)
  local x = a.x
  for d = 0, c.rank(a.x) - 1 do
    if not a.dims or #a.dims == 0 or lists.index_of(a.dims, d) or lists.index_of(a.dims, d - c.rank(a.x)) then
      x = sliced(g, x, d, -1, -INT_MAX, -1)
    end
  end
  return x
end
function rows.tril(g, a) return g.Trilu(a.x, g:constant(a.diagonal, "int64"), {upper = 0}) end
function rows.triu(g, a) return g.Trilu(a.x, g:constant(a.diagonal, "int64"), {upper = 1}) end

-- ---- new tensors

local function filled(g, value, shape) return #shape == 0 and value or g.Expand(value, shape) end
-- Returns the value of a number, of a size of a dynamic axis, or of a tensor of no dims.
local function scalar(g, v, dtype)
  if type(v) == "number" then return g:constant(v, dtype) end
  return (is_varying(v) and g.Squeeze(g:size(v)) or v):to(dtype)
end
local function filled_with(number)
  return function(g, a, c) return filled(g, scalar(g, number or a.value, c.dtype), c.shape) end
end
rows.full, rows.full_like = filled_with(), filled_with()
rows.zeros, rows.zeros_like, rows.ones, rows.ones_like = filled_with(0), filled_with(0), filled_with(1), filled_with(1)
function rows.arange(g, a, c)
  local start, stop = a.start, a.stop
  if stop == nil then start, stop = 0, start end
  return g.Range(scalar(g, start, c.dtype), scalar(g, stop, c.dtype), scalar(g, a.step, c.dtype))
end

function rows.atan2(g, a, c)
  local y, x = scalar(g, a.x, c.dtype), scalar(g, a.other, c.dtype)
  local angle = g.Atan(y / x)
  angle = g.Where(g.Less(x, 0), angle + g.Where(g.Less(y, 0), g:constant(-math.pi, c.dtype), math.pi), angle)
  return g.Where(g.Equal(x, 0), g.Sign(y) * (math.pi / 2), angle)
end
function rows.nan_to_num(g, a, c)
  if not c.dtype:find "float" then return a.x end
  local x, most = a.x, finfo(c.dtype).max
  x = g.Where(g.IsNaN(x), a.nan, x)
  x = g.Where(g.Equal(x, math.huge), a.posinf or most, x)
  return g.Where(g.Equal(x, -math.huge), a.neginf or -most, x)
end

-- ---- indices

function rows.index_get(g, a, c)
  local chosen, given = {}, 0
  for i = 1, a.indices.n do
    if a.indices[i] then
      if a.indices[i].dtype == "bool" then error("the sizes of its result depend on a mask", 0) end
      given = given + 1
      chosen[given] = {axis = i - 1, index = a.indices[i]:from_zero()}
    end
  end
  if given == 1 then return g.Gather(a.x, chosen[1].index, {axis = chosen[1].axis}) end
  for i, each in ipairs(chosen) do
    if each.axis ~= i - 1 then error("several tensors of indices must be for the first dims", 0) end
  end
  local all = lists.map(chosen, function(each)
    local index = each.index
    for _, other in ipairs(chosen) do
      if other ~= each then index = g.Expand(index, g.Shape(other.index)) end
    end
    return g.Unsqueeze(index, {-1})
  end)
  all[#all + 1] = {axis = -1}
  return g.GatherND(a.x, (g.Concat(unpack(all)))), c
end
function rows.one_hot(g, a)
  if a.num_classes < 0 then error("num_classes must be given", 0) end
  local values = g:constant({0, 1}, "int64")
  return g.OneHot(a.x:from_zero(), g:constant(a.num_classes, "int64"), values, {axis = -1})
end
local function scatter(reduction)
  return function(g, a, c)
    local src = a.src
    if type(src) == "number" then src = g.Expand(g:constant(src, c.dtype), g.Shape(a.index)) end
    return g.ScatterElements(a.x, a.index:from_zero(), src, {axis = a.dim, reduction = reduction})
  end
end
rows.scatter, rows.scatter_add = scatter(), scatter "add"
function rows.embedding_bag_sums(g, a, c)
  if g.opset < 16 then error("it needs opset 16 or newer", 0) end
  local index, bags, each = a.index:from_zero(), a.offsets.shape[1], a.each
  local at = g.Range(g:constant(0, "int64"), g.Squeeze(g.Shape(index)), g:constant(1, "int64"))
  local begun = g.GreaterOrEqual(g.Unsqueeze(at, {1}), g.Unsqueeze(a.offsets:from_zero(), {0})):to "int64"
  local bag = g.Unsqueeze(reduce(g, "ReduceSum", begun, {1}, false) - 1, {1})
  local function sums(values, sizes)
    return g.ScatterND(filled(g, g:constant(0, c.dtype), sizes), bag, values, {reduction = "add"})
  end
  local counts = g.Not(g.Equal(index, a.padding_idx - 1)):to(c.dtype)
  local weight = each and each * counts or counts
  local y = sums(g.Gather(a.weight, index, {axis = 0}) * g.Unsqueeze(weight, {1}), {bags, a.weight.shape[2]})
  return a.means and y / g.Unsqueeze(g.Max(sums(counts, {bags}), 1), {1}) or y
end

-- ---- products

function rows.linear(g, a, c)
  local bias = a.bias
  if c.rank(a.x) == 2 and type(bias) ~= "number" and (not bias or #bias.shape == 1) then
    return g.Gemm(a.x, a.weight, bias or false, {transB = 1})
  end
  local y = g.MatMul(a.x, rows.t(g, {x = a.weight}, c))
  return bias and y + bias or y
end
function rows.addmm(g, a, c)
  local input, y = a.input, g.MatMul(a.x or a.batch1, a.other)
  if a.alpha ~= 1 then y = y * a.alpha end
  if a.beta == 0 then return y end
  return (a.beta ~= 1 and input * a.beta or input) + y, c
end
rows.baddbmm = rows.addmm

function rows.row_distances(g, a)
  return rows.norm(g, {x = g.Unsqueeze(a.x1, {-2}) - g.Unsqueeze(a.x2, {-3}), p = a.p, dim = {-1}})
end
function rows.fft_r2c(g, a, c)
  if a.inner ~= 1 then error("its factor of inner entries has no counterpart", 0) end
  local n = a.x.shape[c.rank(a.x)]
  local old, one = g.opset < 20, g:constant(1, "int64") -- the axis
  local lines, length = g.Reshape(a.x, {-1, n, 1}), g:constant(n, "int64")
  local y = g.DFT(lines, length, not old and one, {axis = old and 1 or nil, onesided = 1})
  return reshaped(g, a.scale == 1 and y or y * a.scale, c.shape)
end
function rows.stft_lines(g, a)
  if a.inner ~= 1 then error("its factor of inner entries has no counterpart", 0) end
  local hop, length = g:constant(a.hop, "int64"), g:constant(a.window.shape[1], "int64")
  local y = g.STFT(g.Unsqueeze(a.x, {-1}), hop, a.window, length, {onesided = 1})
  return a.scale == 1 and y or y * a.scale
end

-- ---- convolution and pooling

-- Calls f with x [N, C, H, W], of an x with or without N; removes N again.
local function batched(g, x, c, f)
  if c.rank(x) == 4 then return f(x) end
  local y, indices = f(g.Unsqueeze(x, {0}))
  return g.Squeeze(y, {0}), indices and g.Squeeze(indices, {0})
end
local function sides(padding) return {padding[1], padding[2], padding[1], padding[2]} end
function rows.conv2d(g, a, c)
  local attributes = {
    kernel_shape = {a.weight.shape[3], a.weight.shape[4]}, strides = a.stride, dilations = a.dilation, group = a.groups,
  }
  if a.padding ~= "same" then
    attributes.pads = sides(a.padding)
  else -- the odd element of padding is at the end
    local pads = {}
    for d = 1, 2 do
      local total = a.dilation[d] * (a.weight.shape[2 + d] - 1)
      pads[d], pads[d + 2] = math.floor(total / 2), math.ceil(total / 2)
    end
    attributes.pads = pads
  end
  return batched(g, a.x, c, function(x) return g.Conv(x, a.weight, a.bias or false, attributes) end)
end
function rows.conv2d_input(g, a, c)
  local more = {}
  for d = 1, 2 do
    local least = (a.grad.shape[c.rank(a.grad) - 2 + d] - 1) * a.stride[d] - 2 * a.padding[d]
      + a.dilation[d] * (a.weight.shape[2 + d] - 1) + 1
    more[d] = a.size[#a.size - 2 + d] - least
  end
  return batched(g, a.grad, c, function(x)
    return g.ConvTranspose(x, a.weight, {
      strides = a.stride, dilations = a.dilation, group = a.groups, pads = sides(a.padding), output_padding = more,
      kernel_shape = {a.weight.shape[3], a.weight.shape[4]},
    })
  end)
end

-- Returns the attributes of a pooling.
local function window(a, x, c)
  local n = c.rank(x)
  local size = a.kernel_size or {x.shape[n - 1], x.shape[n]}
  return {
    kernel_shape = size, strides = a.stride or size, pads = sides(a.padding), ceil_mode = a.ceil_mode and 1 or 0,
    dilations = a.dilation,
  }
end
function rows.max_pool2d(g, a, c)
  return batched(g, a.x, c, function(x) return g.MaxPool(x, window(a, a.x, c)) end)
end
function rows.max_pool2d_with_indices(g, a, c)
  local n, how = c.rank(a.x), window(a, a.x, c)
  how.outputs = 2
  local y, i = batched(g, a.x, c, function(x) return g.MaxPool(x, how) end) -- i counts in the whole tensor
  return y, index_result(g.Mod(i, g.Squeeze(g:size(a.x.shape[n - 1] * a.x.shape[n]))))
end
function rows.max_unpool2d(g, a, c)
  local n, flat = #c.shape, {-1}
  for _ = 3, n do table.insert(flat, 1, 0) end
  local sizes = lists.joined(lists.slice(c.shape, 1, n - 2), {c.shape[n - 1] * c.shape[n]})
  local y = g.ScatterElements(filled(g, g:constant(0, c.dtype), sizes), g.Reshape(a.indices:from_zero(), flat),
    g.Reshape(a.x, flat), {axis = -1})
  return reshaped(g, y, c.shape)
end
function rows.avg_pool2d(g, a, c)
  local how = window(a, a.x, c)
  how.count_include_pad = a.count_include_pad and 1 or 0
  if a.divisor_override then error("divisor_override has no counterpart", 0) end
  return batched(g, a.x, c, function(x) return g.AveragePool(x, how) end)
end
function rows.relu_avg_pool2d(g, a, c)
  local args = lists.copy(a)
  args.x = g.Relu(a.x):with(a.x.shape)
  return rows.avg_pool2d(g, args, c)
end

-- Returns the matrix [out, size] whose rows average the elements of each bin.
local function averages(size, out, dtype)
  local list = {}
  for i = 0, out - 1 do
    local first, stop, row = math.floor(i * size / out), math.ceil((i + 1) * size / out), {}
    for k = 0, size - 1 do row[k + 1] = k >= first and k < stop and 1 / (stop - first) or 0 end
    list[i + 1] = row
  end
  return core.tensor(list, {dtype = dtype})
end
local function adaptive(g, a, c, global, pool, other)
  local n = c.rank(a.x)
  local h, w = a.x.shape[n - 1], a.x.shape[n]
  local out = {a.output_size and a.output_size[1] or h, a.output_size and a.output_size[2] or w}
  return batched(g, a.x, c, function(x)
    if out[1] == 1 and out[2] == 1 then return g[global](x) end
    if h % out[1] == 0 and w % out[2] == 0 then
      local size = {h / out[1], w / out[2]}
      return size[1] == 1 and size[2] == 1 and x or g[pool](x, {kernel_shape = size, strides = size})
    end
    return other(x, h, w, out)
  end)
end
function rows.adaptive_avg_pool2d(g, a, c)
  return adaptive(g, a, c, "GlobalAveragePool", "AveragePool", function(x, h, w, out)
    local left = g:initializer(averages(h, out[1], c.dtype))
    return g.MatMul(g.MatMul(left, x), g:initializer(averages(w, out[2], c.dtype):t():contiguous()))
  end)
end
function rows.adaptive_max_pool2d(g, a, c)
  return adaptive(g, a, c, "GlobalMaxPool", "MaxPool", function()
    error("adaptive max pooling with bins of several sizes has no counterpart", 0)
  end)
end

-- ---- normalization

-- Returns x normalized by statistics of the batch: of each channel.
local function normalize_by_batch(g, a, c)
  local dims, more = {0}, {}
  for d = 2, c.rank(a.x) - 1 do dims[d], more[d - 1] = d, d - 1 end
  local gap = a.x - reduce(g, "ReduceMean", a.x, dims, true)
  local y = gap / g.Sqrt(reduce(g, "ReduceMean", gap * gap, dims, true) + a.eps)
  local function along(p) return p and (#more > 0 and g.Unsqueeze(p, more) or p) end
  if a.weight then y = y * along(a.weight) end
  return a.bias and y + along(a.bias) or y
end
local function batch_norm(g, a, c)
  if a.training or not a.running_mean then
    if a.running_mean then error("it changes running statistics", 0) end
    return normalize_by_batch(g, a, c)
  end
  local n = a.running_mean.shape[1]
  local function each(x, number) return (x or g:initializer(ops.full({n}, number, {dtype = c.dtype}))):to(c.dtype) end
  return g.BatchNormalization(a.x, each(a.weight, 1), each(a.bias, 0), a.running_mean, a.running_var, {epsilon = a.eps})
end
rows.batch_norm = batch_norm
function rows.batch_norm_relu(g, a, c)
  local y = batch_norm(g, a, c)
  if a.addend then y = y + a.addend end
  return a.max == math.huge and g.Relu(y) or g.Clip(y, 0, a.max)
end

-- Returns the last n dims, from -n.
local function last_dims(n)
  local dims = {}
  for i = 1, n do dims[i] = i - n - 1 end
  return dims
end
local function scaled(x, weight, bias)
  if weight then x = x * weight:to(x.dtype) end
  return bias and x + bias:to(x.dtype) or x
end
function rows.layer_norm(g, a)
  local n = #a.normalized_shape
  if g.opset >= 17 and a.weight and a.weight.dtype == a.x.dtype then
    return g.LayerNormalization(a.x, a.weight, a.bias or false, {axis = -n, epsilon = a.eps})
  end
  local gap = a.x - reduce(g, "ReduceMean", a.x, last_dims(n), true)
  local variance = reduce(g, "ReduceMean", gap * gap, last_dims(n), true)
  return scaled(gap / g.Sqrt(variance + a.eps), a.weight, a.bias)
end
local epsilons = {float32 = 2 ^ -23, float64 = 2 ^ -52, float16 = 2 ^ -10, bfloat16 = 2 ^ -7}
function rows.rms_norm(g, a)
  local mean = reduce(g, "ReduceMean", a.x * a.x, last_dims(#a.normalized_shape), true)
  return scaled(a.x / g.Sqrt(mean + (a.eps or epsilons[a.x.dtype])), a.weight)
end
function rows.group_norm(g, a, c)
  local x, n, groups = a.x, c.rank(a.x), a.num_groups
  local ones, zeros = ops.ones({groups}, {dtype = x.dtype}), ops.zeros({groups}, {dtype = x.dtype})
  local y = g.InstanceNormalization(g.Reshape(x, {0, groups, -1}), g:initializer(ones), g:initializer(zeros),
    {epsilon = a.eps})
  local along = {x.shape[2]}
  for _ = 3, n do along[#along + 1] = 1 end
  local function of_channels(p) return p and (n > 2 and g.Reshape(p, along) or p) end
  return scaled(reshaped(g, y, c.shape), of_channels(a.weight), of_channels(a.bias))
end
rows.grouped_norm = rows.group_norm

-- ---- attention

-- Returns x with each head repeated, for as many heads as the query has.
local function repeated(g, x, query, c)
  local n = c.rank(x)
  local own, wanted = x.shape[n - 2], query.shape[n - 2]
  if own == wanted then return x end
  local tiles, sizes = {}, {}
  for i = 1, n + 1 do tiles[i] = i == n - 1 and wanted / own or 1 end
  for i = 1, n do sizes[i] = i == n - 2 and wanted or i == n - 1 and -1 or i < n - 2 and 0 or x.shape[n] end
  return g.Reshape(g.Tile(g.Unsqueeze(x, {n - 2}), tiles), sizes)
end
local NEVER = -math.huge
function rows.attention_weights(g, a, c)
  local query, key, mask = a.query, a.key, a.attn_mask
  if a.enable_gqa then key = repeated(g, key, query, c) end
  local n, width = c.rank(query), query.shape[c.rank(query)]
  local scores = g.MatMul(query * (a.scale or 1 / math.sqrt(width)), g.Transpose(key, {perm = swapped(n, -1, -2)}))
  local blind
  if a.is_causal then
    local l, s = query.shape[n - 1], a.key.shape[n - 1]
    scores = scores + g.Trilu(g.Expand(g:constant(NEVER, query.dtype), {l, s}), g:constant(1, "int64"), {upper = 1})
  elseif mask and mask.dtype == "bool" then
    blind = g.Not(reduce(g, "ReduceMax", mask:to "int32", {-1}, true):to "bool")
    scores = g.Where(g.Or(mask, blind), scores, NEVER)
  elseif mask then
    blind = g.Equal(reduce(g, "ReduceMax", mask, {-1}, true), NEVER)
    scores = scores + g.Where(blind, 0, mask):to(query.dtype)
  end
  local weights = g.Softmax(scores, {axis = -1})
  return blind and g.Where(blind, 0, weights) or weights
end
function rows.scaled_dot_product_attention(g, a, c)
  if a.dropout_p > 0 then error("it draws random numbers", 0) end
  return g.MatMul(rows.attention_weights(g, a, c), a.enable_gqa and repeated(g, a.value, a.query, c) or a.value)
end

-- ---- recurrent layers

-- The gates in the order of ONNX, by their position in Luminary's.
local cells = {
  lstm = {"LSTM", {0, 3, 1, 2}}, gru = {"GRU", {1, 0, 2}}, rnn_tanh = {"RNN", {0}, {"Tanh"}},
  rnn_relu = {"RNN", {0}, {"Relu"}},
}
function rows.recurrent_layer(g, a, c)
  local op, order, activations = unpack(cells[a.cell])
  if not a.x or a.batch_sizes or a.weight_hr then
    error("packed sequences and projections have no counterpart", 0)
  end
  local n, h, rearranged = a.h0.shape[1], a.weight_hh.shape[1] / #order, {}
  for _, k in ipairs(order) do
    for i = 0, h - 1 do rearranged[#rearranged + 1] = k * h + i end
  end
  local function gates(p) return #order == 1 and p or g.Gather(p, rearranged, {axis = 0}) end
  local function first(p) return g.Unsqueeze(p, {0}) end
  local bias, zeros = false, ops.zeros({#order * h}, {dtype = c.dtype})
  if a.bias_ih or a.bias_hh then
    bias = first(g.Concat(gates(a.bias_ih or g:initializer(zeros)), a.bias_hh and gates(a.bias_hh)
      or g:initializer(zeros), {axis = 0}))
  end
  local x, w, r = g.Reshape(a.x, {-1, n, a.x.shape[2]}), first(gates(a.weight_ih)), first(gates(a.weight_hh))
  local y, last, cell = g[op](x, w, r, bias, c.lengths or false, first(a.h0), a.c0 and first(a.c0) or false, {
      hidden_size = h, direction = a.reverse and "reverse" or "forward", activations = activations,
      linear_before_reset = a.cell == "gru" and 1 or nil, outputs = a.cell == "lstm" and 3 or 2,
    })
  return g.Reshape(y, {-1, h}), g.Squeeze(last, {0}), cell and g.Squeeze(cell, {0})
end

function rows.cosine_similarity(g, a)
  local function length(x) return g.Max(reduce(g, "ReduceL2", x, {a.dim}, true), a.eps) end
  return reduce(g, "ReduceSum", a.x1 / length(a.x1) * (a.x2 / length(a.x2)), {a.dim}, false)
end

-- ---- resampling

function rows.gather_weighted(g, a)
  local index = a.indices.tensor
  if not index or a.weight and not a.weight.tensor or index.shape[1] ~= 1 then
    error("its positions depend on the inputs", 0)
  end
  local inside = ops.ge(index, 1):logical_and(ops.le(index, a.x.shape[3]))
  local weight = a.weight and a.weight.tensor or ops.ones(index.shape, {dtype = a.x.dtype})
  if index.shape[2] == 1 and not a.weight and inside:all():item() then
    return g.Gather(a.x, g:initializer((index:reshape(-1) - 1):to "int64"), {axis = 2})
  end
  weight = ops.where(inside, weight, 0):select(1, 1):unsqueeze(-1):to(a.x.dtype)
  local at = ops.where(inside, index, 1):select(1, 1):to("int64") - 1
  local values = g.Gather(a.x, g:initializer(at:contiguous()), {axis = 2}) -- [n, c, j, p, i]
  return reduce(g, "ReduceSum", values * g:initializer(weight:contiguous()), {2}, false)
end
function rows.grid_sample(g, a)
  local mode = a.mode
  if g.opset >= 20 then mode = ({bilinear = "linear", bicubic = "cubic"})[mode] or mode end
  return g.GridSample(a.x, a.grid, {
    mode = mode, padding_mode = a.padding_mode, align_corners = a.align_corners and 1 or 0,
  })
end

return {
  rows = rows,
  --- Arguments that are indices.
  indices = {
    embedding = "index", gather = "index", index_select = "index", index_get = "indices", one_hot = "x",
    scatter = "index", scatter_add = "index", embedding_bag_sums = "index", max_unpool2d = "indices",
  },
  --- Ops whose results have elements of their first tensors, or are these if there is nothing to do.
  views = lists.set [[
    view reshape permute transpose t select slice narrow expand squeeze unsqueeze flatten detach contiguous clone
    to_copy cat stack flip roll
  ]],
  --- Ops whose results share the memory of their first tensor.
  aliases = lists.set [[
    view reshape permute transpose t select slice narrow expand squeeze unsqueeze flatten detach contiguous diagonal
    unfold as_strided
  ]],
}

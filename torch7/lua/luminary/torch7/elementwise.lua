--- Defines Torch7's elementwise functions, fills, and products of matrices. Operands need the same number of elements,
--- not the same sizes, and nothing broadcasts; integer types truncate and wrap as C does.
local core = require "luminary.core"
local options = require "luminary.base.options"
local tensor = require "luminary.torch7.tensor"
local fail, ops, ours = options.fail, core.ops, core.methods
local define, raw, fitted, number = tensor.define, tensor.raw, tensor.fitted, tensor.number
local methods = tensor.methods

local function floating(x) return core.is_floating_point(x) end

-- Returns op for numbers alone, in double precision.
local function of_numbers(op)
  return function(...)
    local list = {...}
    for i, v in ipairs(list) do list[i] = ops.full({}, v, {dtype = "float64"}) end
    return op(unpack(list)):item()
  end
end

-- ---- functions of one tensor

for _, name in ipairs {
  "abs", "ceil", "floor", "round", "trunc", "frac", "exp", "log", "log1p", "sqrt", "rsqrt", "neg", "sign", "sin", "cos",
  "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh", "sigmoid", "erf", "cinv",
} do
  local theirs = name == "cinv" and "reciprocal" or name
  local op, op_ = ops[theirs], ops[theirs .. "_"]
  define(name, {"t"}, function(x) return op(x):to(x.dtype) end, {in_place = true, of_numbers = of_numbers(op),
    update = op_ and function(x) return pcall(op_, x) end})
end

-- ---- functions of a tensor and a number or another tensor

-- Returns op(x, y) in x's dtype; y is a number, or a tensor with the same number of elements.
local function binary(name, op)
  return function(x, y)
    if type(y) == "number" then return op(x, number(x, y)):to(x.dtype) end
    return op(x, fitted(name, x, y)):to(x.dtype)
  end
end
-- Returns the function that computes op_(x, y) in place; false if it cannot, since y has other sizes, which do not
-- broadcast to x's where the numbers of elements are equal, or x holds integers and the result is none.
local function updated(op_)
  return op_ and function(x, y)
    return (type(y) == "number" or x:numel() == y:numel()) and pcall(op_, x, y)
  end
end

local function quotient(x, y) return (floating(x) and ops.div or ops.trunc_divide)(x, y) end
local function shifted(op, other)
  return function(x, n)
    if not floating(x) then return op(x, n) end
    return other(x, type(n) == "number" and 2 ^ n or ops.pow(ops.full_like(n, 2), n))
  end
end
local function right(x, y) return ops.floor(ops.div(x, y)) end
local shift_left, shift_right = shifted(ops.bitwise_left_shift, ops.mul), shifted(ops.bitwise_right_shift, right)

local function pairwise(name, op, op_)
  define(name, {"t t"}, binary(name, op), {in_place = true, of_numbers = of_numbers(op), update = updated(op_)})
end
for name, op in pairs {mul = ops.mul, div = quotient, fmod = ops.fmod, mod = ops.fmod, remainder = ops.remainder,
  bitand = ops.bitwise_and, bitor = ops.bitwise_or, bitxor = ops.bitwise_xor, lshift = shift_left,
  rshift = shift_right} do
  local op_ = op == quotient and ops.div_ or op == ops.mul and ops.mul_ or nil
  define(name, {"t n"}, binary(name, op), {in_place = true, update = updated(op_)})
  pairwise("c" .. name, op, op_)
end
pairwise("cpow", ops.pow)
pairwise("atan2", ops.atan2)
for name, op in pairs {cmax = ops.maximum, cmin = ops.minimum} do
  define(name, {"t t", "t n"}, function(x, y)
    if type(y) == "number" then y = ops.full({}, number(x, y), {dtype = x.dtype, device = x.device}) end
    return binary(name, op)(x, y.ndim == 0 and ops.expand(y, x.shape) or y)
  end, {in_place = true})
end

-- torch.add(x, v), (x, y) and (x, v, y) compute x + v, x + y and x + v y; csub subtracts.
for name, sign in pairs {add = 1, csub = -1} do
  local function sum(add, x, v, y)
    if not y then return add(x, sign * number(x, v)) end
    return add(x, y, sign * v ~= 1 and {alpha = sign * number(x, v)} or nil)
  end
  define(name, {"t n", "t t", "t n t"}, function(x, v, y)
    if type(v) ~= "number" then v, y = 1, v end
    return sum(ops.add, x, v, y and fitted(name, x, y):to(x.dtype)):to(x.dtype)
  end, {in_place = true, update = function(x, v, y)
    if type(v) ~= "number" then v, y = 1, v end
    return (not y or x:numel() == y:numel()) and pcall(sum, ops.add_, x, v, y)
  end})
end

define("pow", {"t n", "n t"}, function(x, y)
  if type(x) == "number" then return ops.pow(ops.full_like(y, x), y) end
  return ops.pow(x, number(x, y)):to(x.dtype)
end, {in_place = true, of_numbers = function(a, b) return a ^ b end})
define("clamp", {"t n n"}, function(x, low, high) return ops.clamp_range(x, number(x, low), number(x, high)) end,
  {in_place = true})
define("lerp", {"t t n"}, function(a, b, weight) return ops.lerp(a, fitted("lerp", a, b), weight) end,
  {in_place = true, of_numbers = function(a, b, weight) return a + weight * (b - a) end})
define("renorm", {"t n n n"}, function(x, p, dim, bound) return ours.renorm(x, p, dim, bound) end, {in_place = true})
for name, op in pairs {addcmul = ops.mul, addcdiv = quotient} do
  define(name, {"t n? t t"}, function(x, v, a, b)
    local y = op(fitted(name, x, a), fitted(name, x, b))
    return ops.add(x, v and ops.mul(y, number(x, v)) or y):to(x.dtype)
  end, {in_place = true})
end

-- ---- products of matrices

local function outer(a, b) return ops.mul(ops.unsqueeze(a, 2), ops.unsqueeze(b, 1)) end
for name, row in pairs {
  mm = {ops.matmul, "addmm", 2, 2}, mv = {ops.matmul, "addmv", 2, 1}, bmm = {ops.matmul, "baddbmm", 3, 3},
  ger = {outer, "addr", 1, 1}, [""] = {function(a, b) return ops.sum(ops.matmul(a, b), 1) end, "addbmm", 3, 3},
} do
  local op, with_sum, dims_a, dims_b = row[1], row[2], row[3], row[4]
  local function product(a, b)
    if a.ndim ~= dims_a or b.ndim ~= dims_b then
      fail("torch.%s: expected tensors of %d and %d dims, got %d and %d", name == "" and with_sum or name, dims_a,
        dims_b, a.ndim, b.ndim)
    end
    return op(a, b)
  end
  if name ~= "" then define(name, {"t t"}, product, {in_place = true}) end
  -- torch.addmm([r,] [v1,] x, [v2,] a, b) computes v1 * x + v2 * a b; r:addmm(v, a, b) scales the product
  define(with_sum, {"n? t n? t t"}, function(v1, x, v2, a, b)
    if v1 ~= nil and type(v1) ~= "number" then v1, x, v2, a, b = 1, v1, x, v2, a end
    local y = product(a, b)
    if v2 and v2 ~= 1 then y = ops.mul(y, v2) end
    x = fitted(with_sum, y, x)
    if v1 == 0 then return y end
    return ops.add(v1 and v1 ~= 1 and ops.mul(x, v1) or x, y)
  end, {in_place = true, methods = {"t n? t t", "n t n? t t", "n r n t t"}, update = function(x, v, a, b)
    local y = product(a, b)
    return x:numel() == y:numel() and pcall(ops.add_, x, y, v and v ~= 1 and {alpha = v} or nil)
  end})
end

-- ---- fills

local function filled(name, change)
  methods[name] = function(object, ...)
    change(raw(object, name), ...)
    return object
  end
  tensor.functions[name] = methods[name]
end
filled("fill", function(x, v) x:fill_(number(x, options.arg("fill", "value", v, "number"))) end)
filled("zero", function(x) x:zero_() end)
filled("retain", function() end) -- does nothing: references are counted
filled("free", function() end)
filled("maskedFill", function(x, mask, v)
  x:masked_fill_(fitted("maskedFill", x, raw(mask)):to(x.device, "bool"), number(x, v))
end)
filled("maskedCopy", function(x, mask, from)
  ours.masked_scatter_(x, fitted("maskedCopy", x, raw(mask)):to(x.device, "bool"), raw(from):to(x.dtype))
end)
-- Returns indices for x on a GPU there, where a LongTensor and a CudaTensor will do.
local function index_for(x, index) return x.is_cuda and raw(index):to(x.device, "int64") or raw(index) end
filled("indexAdd", function(x, dim, index, from) x:copy_(ops.index_add(x, dim, index_for(x, index), raw(from))) end)
filled("indexCopy", function(x, dim, index, from)
  ours.index_copy_(x, dim, index_for(x, index), raw(from):to(x.dtype))
end)
filled("indexFill", function(x, dim, index, v) ours.index_fill_(x, dim, index_for(x, index), number(x, v)) end)
filled("scatter", function(x, dim, index, v)
  ops.scatter_(x, dim, index_for(x, index), type(v) == "number" and number(x, v) or raw(v))
end)
filled("scatterAdd", function(x, dim, index, from) ops.scatter_add_(x, dim, index_for(x, index), raw(from)) end)
filled("copy", function(x, from)
  from = tensor.storage.flat(from) or raw(from, "copy")
  if x:numel() ~= from:numel() or not pcall(ops.copy_, x, from) then x:copy_(fitted("copy", x, from)) end
end)

-- Defines name, which calls f with the elements of x and further tensors, and writes what it returns into x.
local function applied(name, others)
  filled(name, function(x, ...)
    local f = options.arg(name, "f", select(others + 1, ...), "function")
    local lists = {x:reshape({-1}):totable()}
    for i = 1, others do lists[i + 1] = fitted(name, x, raw((select(i, ...)), name)):reshape({-1}):totable() end
    local values, b, c = lists[1], lists[2] or {}, lists[3] or {}
    for i, v in ipairs(values) do
      local new = f(v, b[i], c[i])
      if new ~= nil then values[i] = number(x, new) end
    end
    if #values > 0 then x:copy_(core.tensor(values, {dtype = x.dtype}):view(x.shape)) end
  end)
end
applied("apply", 0)
applied("map", 1)
applied("map2", 2)

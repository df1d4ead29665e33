--- Implements Torch7's tensors: objects over luminary's tensors, sharing their memory, outside of autograd. Ops that
--- are in place in Torch7 are in place here; reductions keep their dim, and complete reductions return numbers.
local core = require "luminary.core"
local lists = require "luminary.base.lists"
local options = require "luminary.base.options"
local ffi = require "ffi"
local fail, ops, ours = options.fail, core.ops, core.methods

local tensor = {}
local methods = {}
local raw_of = setmetatable({}, {__mode = "k"}) -- object -> tensor; userdata, since LuaJIT ignores __len of tables
local prototype = newproxy(true)
local meta = getmetatable(prototype)
meta.__library_object = true

local dtypes = {FloatTensor = "float32", DoubleTensor = "float64", HalfTensor = "float16", LongTensor = "int64",
  IntTensor = "int32", ShortTensor = "int16", CharTensor = "int8", ByteTensor = "uint8"}
local names = {bool = "torch.ByteTensor", bfloat16 = "torch.BFloat16Tensor"}
for name, dtype in pairs(dtypes) do names[dtype] = "torch." .. name end

tensor.default = "float64" -- the dtype of torch.Tensor

local function is(v) return raw_of[v] ~= nil end

-- Returns a new object for a luminary tensor.
local function wrap(x)
  if x.dtype == "bool" then x = x:to "uint8" end
  local object = newproxy(prototype)
  raw_of[object] = core.keep(x.requires_grad and x:detach() or x)
  return object
end

-- Returns the luminary tensor of an object.
local function raw(v, who)
  local x = raw_of[v]
  if x == nil then
    if core.is_tensor(v) then return v end
    options.expected(who or "torch", "a tensor", v)
  end
  return x
end
tensor.is, tensor.wrap, tensor.raw = is, wrap, raw

-- Returns f(v) if wanted(v), a plain table's copy with f applied to wanted values in it, and other values unchanged.
local function each(v, f, wanted)
  if wanted(v) then return f(v) end
  if type(v) ~= "table" or getmetatable(v) then return v end
  local out = {}
  for key, value in pairs(v) do out[key] = each(value, f, wanted) end
  return out
end
--- Convert tensors, also in tables, to luminary's and back.
function tensor.raw_all(v) return each(v, raw, is) end
function tensor.wrap_all(v) return each(v, wrap, core.is_tensor) end

--- Returns "torch.FloatTensor" for a luminary tensor.
function tensor.type_of(x)
  return x.is_cuda and x.dtype == "float32" and "torch.CudaTensor" or names[x.dtype]
end
function meta.__torch_type(object) return tensor.type_of(raw_of[object]) end

-- ---- sizes

local Sizes = {__typename = "torch.LongStorage"}
local SizeMethods = {}
function SizeMethods.size(s) return #s end
function SizeMethods.fill(s, n)
  for i = 1, #s do s[i] = n end
  return s
end
function SizeMethods.resize(s, n)
  for i = #s, n + 1, -1 do s[i] = nil end
  for i = #s + 1, n do s[i] = 0 end
  return s
end
function SizeMethods.copy(s, other)
  for i, n in ipairs(other) do s[i] = n end
  return s
end
function SizeMethods.totable(s) return lists.slice(s) end
Sizes.__index = SizeMethods
function Sizes.__tostring(s)
  local lines = lists.map(s, function(n) return (" %d\n"):format(n) end)
  return table.concat(lines) .. ("[torch.LongStorage of size %d]\n"):format(#s)
end
function Sizes.__eq(a, b) return table.concat(a, ",") == table.concat(b, ",") end

--- Returns a LongStorage of these numbers: the type of x:size() and #x, and of sizes in constructors.
function tensor.sizes(list) return setmetatable(lists.slice(list), Sizes) end

-- Returns a list of sizes passed as numbers, a list or a LongStorage.
local function sizes_from(...)
  local first = ...
  return type(first) == "table" and lists.slice(first) or {...}
end

--- Returns the dtype of "torch.FloatTensor" or "FloatTensor".
function tensor.dtype_of(name)
  local short = tostring(name):gsub("^torch%.", "")
  if short == "Tensor" then return tensor.default end
  return dtypes[short] or fail("torch: unknown tensor type '%s'", tostring(name))
end

--- Creates a torch.FloatTensor or other tensor: of sizes, uninitialized; of a table of values; of sizes as a
--- LongStorage; of a tensor, whose memory is shared if the type is the same.
function tensor.new(dtype, ...)
  local first = ...
  if is(first) then return wrap(raw(first):to(dtype)) end
  if tensor.storage and tensor.storage.is(first) then return wrap(tensor.storage.view(...):to(dtype)) end
  if core.is_tensor(first) then return wrap(first:detach():to(dtype)) end
  if type(first) == "table" and getmetatable(first) ~= Sizes then
    return wrap(core.tensor(#first > 0 and tensor.raw_all(first) or {}, {dtype = dtype}))
  end
  local list = sizes_from(...)
  return wrap(ops.empty(#list > 0 and list or {0}, {dtype = dtype}))
end

-- ---- indexing

local function number_or_view(x) return x.ndim == 0 and x:item() or wrap(x) end

-- Returns the view x[{i, {a, b}, {}}] of Torch7.
local function part(x, index)
  local dim = 1
  for _, at in ipairs(index) do
    if type(at) == "number" then
      x = ops.select(x, dim, at)
    else
      local n = x:size(dim)
      local first, last = at[1] or 1, at[2] or at[1] or n
      if first < 0 then first = n + 1 + first end
      if last < 0 then last = n + 1 + last end
      x = ops.narrow(x, dim, first, last - first + 1)
      dim = dim + 1
    end
  end
  return x
end

function meta.__index(object, key)
  local x = raw_of[object]
  if type(key) == "number" then return number_or_view(ops.select(x, 1, key)) end
  if is(key) then return methods.maskedSelect(object, key) end
  if type(key) == "table" then return number_or_view(part(x, key)) end
  return methods[key]
end

function meta.__newindex(object, key, value)
  local x = raw_of[object]
  if is(key) then return methods[is(value) and "maskedCopy" or "maskedFill"](object, key, value) end
  local place = type(key) == "number" and ops.select(x, 1, key) or type(key) == "table" and part(x, key)
    or fail("torch: cannot set field '%s' of a tensor", tostring(key))
  if is(value) then place:copy_(raw(value):expand(place.shape)) else place:fill_(value) end
end

function meta.__len(object) return tensor.sizes(raw_of[object].shape) end

function meta.__tostring(object)
  local x = raw_of[object]
  return ("%s\n[%s of size %s]\n"):format(tostring(x), meta.__torch_type(object), table.concat(x.shape, "x"))
end

local function operand(v) return is(v) and raw_of[v] or v end
for event, op in pairs {add = ops.add, sub = ops.sub, div = ops.div} do
  meta["__" .. event] = function(a, b) return wrap(op(operand(a), operand(b))) end
end
function meta.__unm(a) return wrap(ops.neg(raw_of[a])) end
-- Multiplies by a number; computes the dot product of vectors, or the matrix product, as Torch7 does.
function meta.__mul(a, b)
  if not is(a) or not is(b) then return wrap(ops.mul(operand(a), operand(b))) end
  a, b = raw_of[a], raw_of[b]
  return number_or_view(a.ndim == 1 and b.ndim == 1 and ops.sum(ops.mul(a, b)) or ops.matmul(a, b))
end

-- ---- results in place

-- Makes the object hold values, over its memory if the sizes are the same.
local function put(object, values)
  local x = raw_of[object]
  if x.shape == values.shape then
    x:copy_(values)
  else
    raw_of[object] = core.keep(ops.clone(values):to(x.dtype))
  end
  return object
end

-- Returns the number of tensors among the arguments, a list of the arguments with luminary's tensors, and their number.
local function read(...)
  local list, count = {...}, 0
  for i = 1, select("#", ...) do
    if is(list[i]) then list[i], count = raw_of[list[i]], count + 1 end
  end
  return count, list, select("#", ...)
end

-- Defines x:name(...), which writes into x, and torch.name(...), which returns a new tensor, or writes into the first
-- one if it gets one more than it needs. compute(source, …) returns the values of at most `tensors` tensors.
tensor.functions = {}
local function define(name, tensors, compute)
  methods[name] = function(object, ...)
    local count, list, n = read(...)
    local elsewhere = count >= tensors or count > 0 and tensors == 2 and type(list[n]) == "number" -- x:add(y, 1)
    if elsewhere then return put(object, compute(unpack(list, 1, n))) end
    return put(object, compute(raw(object, name), unpack(list, 1, n)))
  end
  tensor.functions[name] = function(...)
    local count, list, n = read(...)
    if count > tensors or count == 2 and tensors == 2 and type(list[n]) == "number" then return methods[name](...) end
    return wrap(compute(unpack(list, 1, n)))
  end
end

for _, name in ipairs {
  "abs", "ceil", "floor", "round", "trunc", "frac", "exp", "log", "log1p", "sqrt", "rsqrt", "neg", "sign", "sin", "cos",
  "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh", "sigmoid", "erf",
} do
  local op = rawget(ops, name)
  if op then define(name, 1, op) end
end

-- Returns op for the arguments (x, v), (x, y), (x, v, y).
local function scaled(op)
  return function(x, v, y)
    if y == nil then return op(x, v) end
    return op(x, ops.mul(y, v))
  end
end
define("add", 2, scaled(ops.add))
define("csub", 2, scaled(ops.sub))
define("mul", 1, ops.mul)
define("div", 1, ops.div)
define("pow", 1, ops.pow)
define("clamp", 1, function(x, low, high) return ops.clamp_range(x, low, high) end)
for name, op in pairs {remainder = ops.remainder, mod = ops.fmod, fmod = ops.fmod, bitand = ops.bitwise_and,
  bitor = ops.bitwise_or, bitxor = ops.bitwise_xor, lshift = ops.bitwise_left_shift, rshift = ops.bitwise_right_shift,
  cinv = ops.reciprocal} do
  define(name, 1, op)
end
for name, op in pairs {cmul = ops.mul, cdiv = ops.div, cpow = ops.pow, cmax = ops.maximum, cmin = ops.minimum,
  cremainder = ops.remainder, cmod = ops.fmod, cfmod = ops.fmod, cbitand = ops.bitwise_and, cbitor = ops.bitwise_or,
  cbitxor = ops.bitwise_xor, clshift = ops.bitwise_left_shift, crshift = ops.bitwise_right_shift, atan2 = ops.atan2} do
  define(name, 2, op)
end
--- torch.lerp([res,] a, b, weight) and a:lerp(b, weight): Compute a + weight * (b - a).
function tensor.functions.lerp(...)
  if select("#", ...) < 4 then
    local a, b, weight = ...
    return wrap(ops.lerp(raw(a, "lerp"), raw(b, "lerp"), weight))
  end
  return methods.lerp(...)
end
function methods.lerp(object, a, b, weight)
  if weight == nil then a, b, weight = object, a, b end
  return put(object, ops.lerp(raw(a, "lerp"), raw(b, "lerp"), weight))
end
define("renorm", 1, ours.renorm)
for name, op in pairs {addcmul = ops.mul, addcdiv = ops.div} do
  define(name, 3, function(x, v, a, b)
    if b == nil then return ops.add(x, op(v, a)) end
    return ops.add(x, ops.mul(op(a, b), v))
  end)
end
local function outer(a, b) return ops.mul(ops.unsqueeze(a, 2), ops.unsqueeze(b, 1)) end
local with_sum = {mm = "addmm", mv = "addmv", bmm = "baddbmm", ger = "addr", [""] = "addbmm"}
for name, op in pairs {mm = ops.matmul, mv = ops.matmul, bmm = ops.matmul, ger = outer,
  [""] = function(a, b) return ops.sum(ops.matmul(a, b), 1) end} do
  if name ~= "" then define(name, 2, op) end
  -- torch.addmm([v1,] x, [v2,] a, b) and x:addmm([[v1,] v2,] a, b) compute v1 * x + v2 * a b
  define(with_sum[name], 3, function(...)
    local list, numbers = {}, {}
    for i = 1, select("#", ...) do
      local v = select(i, ...)
      table.insert(type(v) == "number" and numbers or list, v)
    end
    local x, a, b = unpack(list)
    local before = (#numbers == 2 or type(...) == "number") and table.remove(numbers, 1) or 1
    return ops.add(ops.mul(x, before), ops.mul(op(a, b), numbers[1] or 1))
  end)
end

-- ---- filling and sizes

local function in_place(name, change)
  methods[name] = function(object, ...)
    change(raw(object, name), ...)
    return object
  end
end
in_place("fill", function(x, v) x:fill_(v) end)
in_place("zero", function(x) x:zero_() end)
in_place("uniform", function(x, a, b) x:uniform_(a or 0, b or 1) end)
in_place("normal", function(x, mean, std) x:normal_(mean or 0, std or 1) end)
in_place("bernoulli", function(x, p) x:bernoulli_(p or 0.5) end)
in_place("random", function(x, a, b)
  if b == nil then a, b = 1, a or 2 ^ 24 end
  x:random_(a, b + 1)
end)
in_place("exponential", function(x, rate) x:exponential_(rate or 1) end)
in_place("cauchy", function(x, median, sigma) x:cauchy_(median or 0, sigma or 1) end)
in_place("logNormal", function(x, mean, std)
  mean, std = mean or 1, std or 2
  local narrow = math.log(1 + (std / mean) ^ 2) -- variance of the logarithm, from the distribution's mean and std
  x:log_normal_(math.log(mean) - narrow / 2, math.sqrt(narrow))
end)
in_place("geometric", function(x, p) x:geometric_(p) end)
in_place("retain", function() end) -- does nothing: references are counted
in_place("free", function() end)
in_place("apply", function(x, f)
  local flat = ours.contiguous(x):view {-1}
  local values = flat:totable()
  for i, v in ipairs(values) do
    local new = f(v)
    if new ~= nil then values[i] = new end
  end
  x:copy_(core.tensor(values, {dtype = x.dtype}):view(x.shape))
end)
in_place("map", function(x, other, f)
  local a, b = x:reshape({-1}):totable(), raw(other, "map"):reshape({-1}):totable()
  for i, v in ipairs(a) do a[i] = f(v, b[i]) or v end
  x:copy_(core.tensor(a, {dtype = x.dtype}):view(x.shape))
end)
in_place("map2", function(x, other, third, f)
  local a, b, c = x:reshape({-1}):totable(), raw(other):reshape({-1}):totable(), raw(third):reshape({-1}):totable()
  for i, v in ipairs(a) do a[i] = f(v, b[i], c[i]) or v end
  x:copy_(core.tensor(a, {dtype = x.dtype}):view(x.shape))
end)
in_place("maskedFill", function(x, mask, v) x:masked_fill_(raw(mask):to "bool", v) end)
in_place("maskedCopy", function(x, mask, from)
  ours.masked_scatter_(x, raw(mask):to("bool"):view(x.shape), raw(from):to(x.dtype))
end)
in_place("indexAdd", function(x, dim, index, from) x:copy_(ops.index_add(x, dim, raw(index), raw(from))) end)
in_place("indexCopy", function(x, dim, index, from) ours.index_copy_(x, dim, raw(index), raw(from):to(x.dtype)) end)
in_place("indexFill", function(x, dim, index, v) ours.index_fill_(x, dim, raw(index), v) end)
in_place("scatter", function(x, dim, index, v) ops.scatter_(x, dim, raw(index), operand(v)) end)

--- x:copy(y): Copies y's values; only the numbers of elements must match.
function methods.copy(object, other)
  local x, from = raw(object), raw(other, "copy")
  if x:numel() ~= from:numel() then
    fail("copy: the numbers of elements must match, got %d and %d", from:numel(), x:numel())
  end
  x:copy_(from:reshape(x.shape))
  return object
end

--- x:resize(…): Changes x's sizes, over the same memory if that is large enough.
function methods.resize(object, ...)
  local x, list = raw(object), sizes_from(...)
  local n, flat = lists.product(list), ours.contiguous(x):view {-1}
  if n > flat:numel() then
    local longer = ops.empty({n}, {dtype = x.dtype, device = x.device})
    if flat:numel() > 0 then longer:narrow(1, 1, flat:numel()):copy_(flat) end
    flat = longer
  end
  raw_of[object] = core.keep(ops.narrow(flat, 1, 1, n):view(list))
  return object
end
function methods.resizeAs(object, other) return methods.resize(object, raw(other).shape) end

--- x:set([y]): Makes x a view of y; empty without y. Or x:set(storage [, offset [, sizes [, strides]]]).
function methods.set(object, other, ...)
  if tensor.storage and tensor.storage.is(other) then
    raw_of[object] = core.keep(tensor.storage.view(other, ...))
    return object
  end
  raw_of[object] = other and raw(other) or ops.empty({0}, {dtype = raw(object).dtype})
  return object
end

-- ---- queries

function methods.nElement(object) return raw_of[object]:numel() end
methods.numel = methods.nElement
function methods.dim(object) return raw_of[object]:numel() > 0 and raw_of[object].ndim or 0 end
methods.nDimension = methods.dim
function methods.size(object, dim)
  if dim then return raw_of[object]:size(dim) end
  return tensor.sizes(raw_of[object].shape)
end
function methods.stride(object, dim)
  if dim then return raw_of[object]:stride(dim) end
  return tensor.sizes(raw_of[object]:stride())
end
function methods.storageOffset(object) return raw_of[object]:storage_offset() + 1 end
function methods.isContiguous(object) return raw_of[object]:is_contiguous() end
function methods.isSameSizeAs(object, other) return raw_of[object].shape == raw(other).shape end
function methods.equal(object, other) return raw_of[object]:equal(raw(other)) end
function methods.totable(object) return raw_of[object]:totable() end
function methods.isSize(object, sizes) return Sizes.__eq(raw_of[object].shape, sizes) end
function methods.isSetTo(object, other)
  local a, b = raw_of[object], raw(other)
  return a:data_ptr() == b:data_ptr() and a.shape == b.shape
    and table.concat(a:stride(), ",") == table.concat(b:stride(), ",")
end
--- x:data(): Returns an FFI pointer to the first element; with `number`, its address as a number.
function methods.data(object, number)
  local x = raw_of[object]
  local c_types = {float32 = "float *", float64 = "double *", int64 = "int64_t *", int32 = "int32_t *",
    int16 = "int16_t *", int8 = "int8_t *", uint8 = "uint8_t *"}
  local p = ffi.cast(c_types[x.dtype] or "void *", x:data_ptr())
  return number and tonumber(ffi.cast("intptr_t", p)) or p
end
function methods.__tostring__(object) return tostring(object) end
--- Returns the luminary tensor over the same memory.
function methods.raw(object) return raw_of[object] end

--- x:type(): Returns "torch.FloatTensor"; x:type("torch.LongTensor") converts x to that type.
function methods.type(object, name)
  if name == nil then return meta.__torch_type(object) end
  if name == "torch.CudaTensor" then return wrap(raw_of[object]:to("cuda", "float32")) end
  return wrap(raw_of[object]:to(tensor.dtype_of(name)))
end
function methods.typeAs(object, other) return methods.type(object, meta.__torch_type(other)) end
for name, short in pairs {float = "FloatTensor", double = "DoubleTensor", long = "LongTensor", int = "IntTensor",
  byte = "ByteTensor", char = "CharTensor", short = "ShortTensor", half = "HalfTensor", cuda = "CudaTensor"} do
  methods[name] = function(object) return methods.type(object, "torch." .. short) end
end
function methods.new(object, ...) return tensor.new(raw_of[object].dtype, ...) end

-- ---- new objects

local function wrapped(name, compute)
  methods[name] = function(object, ...) return wrap(compute(raw(object, name), ...)) end
end
for _, name in ipairs {"select", "narrow", "transpose", "squeeze", "contiguous", "clone", "t", "unfold"} do
  if rawget(ops, name) then wrapped(name, ops[name]) end
end
wrapped("view", function(x, ...) return ops.view(x, sizes_from(...)) end)
wrapped("viewAs", function(x, other) return ops.view(x, raw(other).shape) end)
wrapped("reshape", function(x, ...) return ops.clone(ops.reshape(x, sizes_from(...))) end)
wrapped("expand", function(x, ...) return ops.expand(x, sizes_from(...)) end)
wrapped("expandAs", function(x, other) return ops.expand(x, raw(other).shape) end)
wrapped("permute", function(x, ...) return ops.permute(x, sizes_from(...)) end)
wrapped("repeatTensor", function(x, ...) return ours.repeat_tensor(x, sizes_from(...)) end)
wrapped("index", function(x, dim, index) return ops.index_select(x, dim, raw(index)) end)
wrapped("gather", function(x, dim, index) return ops.gather(x, dim, raw(index)) end)
wrapped("nonzero", function(x) return ops.nonzero(x) end)
wrapped("maskedSelect", function(x, mask) return ours.masked_select(x, raw(mask):to("bool"):view(x.shape)) end)
wrapped("sub", function(x, ...)
  local index, given = {}, {...}
  for i = 1, #given, 2 do index[#index + 1] = {given[i], given[i + 1]} end
  return part(x, index)
end)
for _, name in ipairs {"lt", "le", "gt", "ge", "eq", "ne"} do
  wrapped(name, function(x, other) return ops[name](x, operand(other)) end)
end
for _, name in ipairs {"split", "chunk"} do
  methods[name] = function(object, n, dim)
    return lists.map(ours[name](raw(object), n, dim), function(x) return wrap(x) end)
  end
end

-- ---- reductions

function methods.dot(object, other)
  return ops.sum(ops.mul(raw(object):reshape {-1}, raw(other, "dot"):reshape {-1})):item()
end
local function reduction(name, whole, along)
  methods[name] = function(object, dim, ...)
    local x = raw(object, name)
    if dim == nil then return whole(x) end
    return wrap(along(x, dim, ...))
  end
end
local keep = {keepdim = true}
local function item(op) return function(x) return op(x):item() end end
for _, name in ipairs {"sum", "mean", "prod"} do
  local op = rawget(ops, name)
  if op then reduction(name, item(op), function(x, dim) return op(x, dim, keep) end) end
end
for _, name in ipairs {"std", "var"} do
  local op = ops[name]
  reduction(name, item(op), function(x, dim, biased)
    return op(x, dim, {keepdim = true, correction = biased and 0 or 1})
  end)
end
for _, name in ipairs {"max", "min"} do
  methods[name] = function(object, dim)
    local x = raw(object, name)
    if dim == nil then return core[name](x):item() end
    local values, indices = core[name](x, dim, keep)
    return wrap(values), wrap(indices)
  end
end
methods.norm = function(object, p, dim)
  local powers = ops.pow(ops.abs(raw(object)), p or 2)
  if dim then return wrap(ops.pow(ops.sum(powers, dim, keep), 1 / (p or 2))) end
  return ops.sum(powers):item() ^ (1 / (p or 2))
end
function methods.all(object) return ops.all(ops.ne(raw(object), 0)):item() end
function methods.any(object) return ops.any(ops.ne(raw(object), 0)):item() end

--- x:topk(k, dim, descending, sorted): Returns the k smallest, or with `descending` the largest, and their indices.
function methods.topk(object, k, dim, descending)
  local values, indices = ops.topk(raw(object), k, dim or -1, {largest = descending or false})
  return wrap(values), wrap(indices)
end
--- x:sort([dim [, descending]]): Returns sorted values, and their original indices.
function methods.sort(object, dim, descending)
  return methods.topk(object, raw(object):size(dim or -1), dim, descending)
end

for _, name in ipairs {"cumsum", "cumprod"} do
  --- x:cumsum([dim = 1]) and x:cumprod([dim = 1]): Return cumulative sums and products along dim.
  methods[name] = function(object, dim) return wrap(ops[name](raw(object), dim or 1)) end
end
for _, name in ipairs {"median", "mode"} do
  --- x:median([dim]) and x:mode([dim]): Return values and their indices along dim, the last by default, which is kept
  --- with size 1.
  methods[name] = function(object, dim)
    local x = raw(object)
    local values, indices = x[name](x, dim or -1, keep)
    return wrap(values), wrap(indices)
  end
end
--- x:kthvalue(k [, dim]): Returns the k-th smallest along dim, the last by default, kept with size 1, and its index.
function methods.kthvalue(object, k, dim)
  local values, indices = ops.kthvalue(raw(object), k, dim or -1, keep)
  return wrap(values), wrap(indices)
end
--- x:dist(y [, p = 2]): Returns the p-norm of x - y.
function methods.dist(object, other, p) return wrap(ops.sub(raw(object), raw(other, "dist"))):norm(p) end
--- p:multinomial(n [, replacement]): Draws n indices by weight from each row.
function methods.multinomial(object, n, replacement)
  return wrap(raw(object, "multinomial"):multinomial(n, {replacement = replacement or false}))
end
function methods.bhistc(object, bins, low, high)
  return wrap(ops.stack(lists.map(raw(object, "bhistc"):unbind(1), function(x)
    return x:histc(bins or 100, low or 0, high or 0)
  end), 1))
end
--- x:cat(a, b [, dim]) or x:cat({a, b, …} [, dim]): Concatenates tensors into x.
function methods.cat(object, a, b, dim)
  if is(a) then return put(object, ops.cat({raw(a), raw(b)}, dim or -1)) end
  return put(object, ops.cat(tensor.raw_all(a), b or -1))
end
--- x:histc([bins = 100 [, min = 0 [, max = 0]]]): Counts the elements in each bin, from min to max, or from the
--- smallest to the largest element if these are equal.
function methods.histc(object, ...) return wrap(raw(object):histc(...)) end

tensor.methods, tensor.put, tensor.sizes_from, tensor.define = methods, put, sizes_from, define

--- Returns the sum of two gradients, which may be tables; a may be nil.
function tensor.added(a, b)
  if a == nil then return b end
  if is(a) then return a + b end
  return lists.map(a, function(v, i) return tensor.added(v, b[i]) end)
end

-- Methods for whose names torch has other functions.
local apart = {type = true, random = true, uniform = true, normal = true, bernoulli = true, exponential = true,
  cauchy = true, logNormal = true, geometric = true, cat = true, retain = true, free = true, __tostring__ = true}

--- Adds torch.name(x, …) for methods that return new objects or numbers, and x:name(…) for functions.
function tensor.publish()
  for name, method in pairs(methods) do
    if not tensor.functions[name] and not apart[name] then tensor.functions[name] = method end
  end
  for name, f in pairs(tensor.functions) do
    if rawget(methods, name) == nil then methods[name] = f end
  end
end

setmetatable(methods, {__index = function(_, key)
  if type(key) == "string" and key:sub(1, 2) ~= "__" then
    local found = core.nearest(key, lists.sorted_keys(methods))
    fail("torch: tensors have no '%s'%s; x:raw() is luminary's tensor", key, found and "; did you mean '" .. found
      .. "'?" or "")
  end
end})
return tensor

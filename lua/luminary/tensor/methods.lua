--- Methods of tensors that are written in terms of ops. Gives the table of all methods.
local core = require "luminary.core"
local arguments = require "luminary.base.arguments"
local options = require "luminary.base.options"
local load_module = require "luminary.base.load_module"
local dim_of = require "luminary.tensor.dim_of"
local reshape_copy = require "luminary.tensor.reshape_copy"
local tensor_list = require "luminary.tensor.tensor_list"
require "luminary.tensor.size_lists"

local ops, methods = core.ops, core.methods
local fail = options.fail
local rare = {} -- by name what loads the file that has it

-- ---- methods that are written in C
--- x:size([dim]): the sizes as a list, or the size of one dim.
--- x:stride([dim]): how far neighbours along each dim are apart in memory, in elements: a list, or one of them.
--- x:dim(): how many dims x has; x.ndim is the same.
--- x:numel(): how many elements x has.
--- x:element_size(): bytes of one element.
--- x:storage_offset(): where x begins in its storage, in elements.
--- x:get_device(): the number of the CUDA device that x is on, -1 for the CPU.
--- x:is_contiguous([{memory_format = "contiguous"}]): whether x's elements lie in order without gaps; "channels_last":
--- in that order.
--- x:to(device or dtype or other [, …] [, {dtype, device, copy = false, non_blocking = false, memory_format}]): x on
--- that device and of that dtype, or as another tensor is; x itself where it is so already, unless copy is set. Floats
--- become integers toward zero, on every device alike: NaN becomes 0, and what is beyond int64, such as infinity, the
--- dtype's nearest limit; any other number that the dtype does not hold wraps, as in PyTorch (300 in uint8 is 44).
--- x:data_ptr(): the address of x's first element: light userdata, or with LuaJIT's FFI a pointer.
--- x:free(): gives x's memory up now; views and the graph keep what they share. x is not to be used any more.
--- x:requires_grad_([on = true]): whether backward is to give x.grad; x has to be a leaf. Gives x.
--- x:retain_grad(): backward gives x.grad too, though x is no leaf.
--- x:detach_(): x leaves the graph that made it. Gives x.
--- x:backward([gradient] [, {gradient, retain_graph, create_graph = false}]): adds the gradients of x, which is one
--- number unless `gradient` weights its elements, to the .grad of the leaves it was made from. The graph is freed
--- unless retain_graph; create_graph records the gradients themselves.
--- x:item(): the number (or boolean) of a tensor of one element. Waits for a GPU.
--- x:totable(): x's elements as nested lists; a number for a 0-d tensor. Waits for a GPU.
--- x:tolist(): x's elements as nested lists, as x:totable().

-- ---- fields
--- x.shape: the sizes, a list.
--- x.dtype: "float32", "float64", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint16",
--- "uint8" or "bool".
--- x.device: "cpu", "cuda:0", …
--- x.ndim: how many dims.
--- x.grad: the gradient that backward has added up, a tensor of x's shape; nil before. It may be assigned.
--- x.grad_fn: the name of the op that made x, where it was recorded; nil for leaves.
--- x.requires_grad: whether backward goes through x. It may be assigned, for leaves.
--- x.is_leaf: whether x was made by no recorded op.
--- x.is_cuda: whether x is on a CUDA device.
--- x.data: x without its graph, over the same memory. Assigning a tensor there puts it in x's place.
--- x.T: x with its dims in reverse order, a view.
--- x.mT: x with its last two dims exchanged, a view.
--- x.itemsize: bytes of one element.
--- x.nbytes: bytes of all elements.

local function tensor(who, x, name)
  if not name and (x == nil or type(x) == "number") then
    options.must_be(who, "x", "a tensor", x, "as a method, call it with a colon: x:%s(…)", who)
  end
  return options.arg(who, name or "x", x, "tensor")
end

local formats = {"preserve", "contiguous", "channels_last"}

for name, dtype in pairs {
  float = "float32", double = "float64", half = "float16", bfloat16 = "bfloat16", long = "int64", int = "int32",
  short = "int16", char = "int8", byte = "uint8", bool = "bool",
} do
  --- x in the dtype of that name: float (32), double (64), half and bfloat16 (16), long (int64), int (32), short
  --- (int16), char (int8), byte (uint8), bool. x itself where it has it. x:float([{memory_format = "preserve"}]):
  --- laid out so, as x:to does.
  methods[name] = function(x, memory_format)
    if memory_format == nil then return methods.to(tensor(name, x), dtype) end
    local _, format = arguments.read(name, {{"x", "tensor"}, {"memory_format", formats}}, x, memory_format)
    return methods.to(x, dtype, {memory_format = format})
  end
end

--- A copy in host memory, or x if it is there.
function methods.cpu(x) return methods.to(tensor("cpu", x), "cpu") end

--- A copy on a CUDA device (the current one), or x if it is there.
function methods.cuda(x, device, given)
  if type(device) == "table" then device, given = nil, device end
  return methods.to(tensor("cuda", x), device or "cuda", given or {})
end

--- A copy of x in page-locked host memory, from which copies to a GPU run beside other work; x itself without CUDA.
function methods.pin_memory(x) return core.pin_memory(tensor("pin_memory", x)) end

--- Whether x lies in page-locked host memory.
function methods.is_pinned(x) return core.is_pinned(tensor("is_pinned", x)) end

--- Says that a stream works on x's memory, which then is not given to others before the stream is done with it.
function methods.record_stream(x, stream)
  tensor("record_stream", x)
  stream = load_module("luminary.cuda.stream").checked("record_stream", stream)
  core.record_stream(x, stream.device, stream.id)
end

--- x in another tensor's dtype.
function methods.type_as(x, other) return methods.to(tensor("type_as", x), tensor("type_as", other, "other").dtype) end

for name, op in pairs {view_as = ops.view, expand_as = ops.expand, reshape_as = ops.reshape} do
  --- As view, expand and reshape, to the shape of another tensor.
  methods[name] = function(x, other) return op(tensor(name, x), tensor(name, other, "other").shape) end
end

--- Whether x's dtype is one of the floating ones.
function methods.is_floating_point(x) return core.is_floating_point(tensor("is_floating_point", x)) end

-- x:new_zeros(2, 3): a tensor with x's dtype and device unless the options say otherwise.
local function like(who, x, ...)
  tensor(who, x)
  local values, n = {...}, select("#", ...)
  local given, last = {dtype = x.dtype, device = x.device}, values[n]
  if type(last) == "table" and type(next(last)) == "string" then
    for key, value in pairs(last) do given[key] = value end
  else
    n = n + 1
  end
  values[n] = given
  return unpack(values, 1, n)
end

for _, name in ipairs {"empty", "zeros", "ones", "full"} do
  --- x:new_zeros(2, 3 [, {…}]): as lm.zeros and the like, with x's dtype and device unless the options say otherwise.
  methods["new_" .. name] = function(x, ...) return ops[name](like("new_" .. name, x, ...)) end
end

--- As lm.tensor(values [, opts]), with x's dtype and device unless the options say otherwise.
function methods.new_tensor(x, ...) return core.tensor(like("new_tensor", x, ...)) end

for name, module in pairs {
  svd = "matrices", qr = "matrices", lu = "matrices", lu_solve = "matrices", pinverse = "matrices",
  matrix_power = "matrices", matrix_exp = "matrices", stft = "stft", istft = "stft",
} do
  --- x:svd(…), qr, lu, lu_solve, pinverse, matrix_power, matrix_exp, stft, istft: as the functions of lm.
  methods[name] = function(x, ...) return load_module("luminary.tensor." .. module)[name](tensor(name, x), ...) end
end

--- Same shape and values.
function methods.equal(x, other)
  tensor("equal", x)
  tensor("equal", other, "other")
  if x.ndim ~= other.ndim then return false end
  local a, b = x.shape, other.shape
  for i = 1, #a do
    if a[i] ~= b[i] then return false end
  end
  return core.no_grad(function() return ops.all(ops.eq(x, other)):item() end)
end

--- x:allclose(other [, {rtol = 1e-5, atol = 1e-8, equal_nan = false}]): |x - other| <= atol + rtol * |other|
--- everywhere.
methods.allclose = arguments.reads("allclose", {
  {"x", "tensor"}, {"other", "tensor"}, {"rtol", "positive", 1e-5}, {"atol", "positive", 1e-8},
  {"equal_nan", "boolean", false},
}, function(x, other, rtol, atol, equal_nan)
  return core.no_grad(function()
    local a, b = x, other
    if not core.is_floating_point(a) then a = methods.to(a, "float64") end
    if not core.is_floating_point(b) then b = methods.to(b, "float64") end
    local near = ops.le(ops.abs(a - b), ops.abs(b) * rtol + atol)
    local close = ops.logical_or(ops.eq(a, b), ops.logical_and(near, ops.isfinite(b)))
    if equal_nan then close = ops.logical_or(close, ops.logical_and(ops.isnan(a), ops.isnan(b))) end
    return ops.all(close):item()
  end)
end)

local MOST = 2 ^ 20 -- tensors in a list; no function takes more

local function check_parts(who, n)
  if n > MOST then fail("%s: the result would be %.0f views; a list has at most %d tensors", who, n, MOST) end
end

local function size_or_sizes(who, name, v)
  return options.arg(who, name, v, type(v) == "number" and "count" or "integers")
end

--- x:split(size [, dim = 1]): a list of views along dim: of `size` entries each, or of a list of sizes.
methods.split = arguments.reads("split", {
  {"x", "tensor"}, {"size", size_or_sizes}, {"dim", "dim", 1},
}, function(x, sizes, dim)
  dim = dim_of("split", x, dim, x.ndim)
  local total = x.shape[dim]
  if type(sizes) == "number" then
    local size = sizes
    check_parts("split", total / size)
    sizes = {}
    for first = 1, total, size do sizes[#sizes + 1] = math.min(size, total - first + 1) end
    if total == 0 then sizes[1] = 0 end
  end
  local parts, start, sum = {}, 1, 0
  for i, n in ipairs(sizes) do sum = sum + options.arg("split", "sizes[" .. i .. "]", n, "natural") end
  if sum ~= total then fail("split: sizes add up to %d, but dim %d has size %d", sum, dim, total) end
  for i, n in ipairs(sizes) do
    parts[i] = ops.narrow(x, dim, start, n)
    start = start + n
  end
  return tensor_list(parts)
end)

--- x:chunk(chunks [, dim = 1]): at most `chunks` views of equal size (but for the last) along dim.
methods.chunk = arguments.reads("chunk", {
  {"x", "tensor"}, {"chunks", "count"}, {"dim", "dim", 1},
}, function(x, chunks, dim)
  dim = dim_of("chunk", x, dim, x.ndim)
  return methods.split(x, math.max(1, math.ceil(x.shape[dim] / chunks)), dim)
end)

--- x:unbind([dim = 1]): the list of x's entries along dim.
methods.unbind = arguments.reads("unbind", {{"x", "tensor"}, {"dim", "dim", 1}}, function(x, dim)
  dim = dim_of("unbind", x, dim, x.ndim)
  local total, parts = x.shape[dim], {}
  check_parts("unbind", total)
  for i = 1, total do parts[i] = ops.select(x, dim, i) end
  return tensor_list(parts)
end)

-- y, as often along each dim as counts says, up to the third that is repeated; what is left stays in counts. One copy,
-- of y with a dim before each of these, where the dims that are not repeated are part of others.
local function repeated_once(y, counts)
  local shape, narrow, wide, most = y.shape, {}, {}, 3
  for d, size in ipairs(shape) do
    local n = counts[d]
    if n ~= 1 and most > 0 then
      narrow[#narrow + 1], wide[#wide + 1] = 1, n
      shape[d], counts[d], most = size * n, 1, most - 1
    end
    if (n ~= 1 and counts[d] == 1) or #wide == 0 then
      narrow[#narrow + 1], wide[#wide + 1] = size, size
    else
      narrow[#narrow], wide[#wide] = narrow[#narrow] * size, wide[#wide] * size
    end
  end
  return reshape_copy(ops.expand(ops.reshape(y, narrow), wide), shape)
end

-- Counts that stand as numbers of their own, or in one list.
local function repeated(who, x, fill_up, ...)
  tensor(who, x)
  local times = {...}
  if select("#", ...) == 1 then times = (...) end
  times = options.arg(who, "counts", times, "integers")
  if #times < x.ndim and not fill_up then
    fail("%s: repeats has %d entries; expected at least %d, one for each dim", who, #times, x.ndim)
  end
  local y, before_them, counts, copied = x, math.max(x.ndim - #times, 0), {}, false
  for d = 1, before_them do counts[d] = 1 end
  for i, n in ipairs(times) do
    counts[before_them + i] = options.arg(who, "counts[" .. i .. "]", n, "natural")
    if i > x.ndim then y = ops.unsqueeze(y, 1) end
  end
  for d, n in ipairs(counts) do
    if n == 0 then y, counts[d] = ops.narrow(y, d, 1, 0), 1 end
  end
  for _, n in ipairs(counts) do
    if n ~= 1 then y, copied = repeated_once(y, counts), true end
  end
  return copied and y or ops.clone(y)
end

--- x:repeat_tensor(2, 3, …): x that often along each of its dims, and along new ones before them: PyTorch's `repeat`, a
--- word Lua reserves; `x["repeat"](x, …)` is it too.
function methods.repeat_tensor(x, ...) return repeated("repeat_tensor", x, false, ...) end

--- x:tile(2, 3, …): x that often along its last dims, and along new ones before them where there are more numbers.
function methods.tile(x, ...) return repeated("tile", x, true, ...) end

--- x where condition holds, else other.
function methods.where(x, condition, other) return ops.where(condition, x, other) end

--- Moves x to memory that other processes see, in place; memory of a GPU is so already. Gives x.
function methods.share_memory_(x)
  tensor("share_memory_", x)
  load_module("luminary.mp.share_tensors")({x}, function(_, why) fail("share_memory_: %s", why) end)
  return x
end

--- Whether x lies in memory that other processes see.
function methods.is_shared(x) return core.mp_is_shared(x) end

--- x:dist(other [, {p = 2}]): the p-norm of x - other; lm.dist(x, other), too, though lm.dist is a module.
methods.dist = arguments.reads("dist", {{"x", "tensor"}, {"other", "tensor"}, {"p", "number", 2}}, function(x, other, p)
  return ops.norm(x - other, p)
end)

-- The op with its words for p.
function methods.norm(...)
  local p = select(2, ...)
  if type(p) == "table" then p = p.p end
  if type(p) ~= "string" then return ops.norm(...) end
  local x, ord, dim, keepdim = arguments.read("norm", {
    {"x", "tensor"}, {"p", {"fro", "nuc"}}, {"dim", "dims?"}, {"keepdim", "boolean", false},
  }, ...)
  if ord == "fro" then return ops.norm(x, 2, dim, {keepdim = keepdim}) end
  return load_module("luminary.linalg").matrix_norm(x, "nuc", dim, keepdim)
end

--- As renorm, in place.
function methods.renorm_(x, p, dim, maxnorm)
  return ops.copy_(tensor("renorm_", x), methods.renorm(x, p, dim, maxnorm))
end

for _, name in ipairs {"cumsum", "cumprod"} do
  --- As cumsum and cumprod, in place.
  methods[name .. "_"] = function(x, dim) return ops.copy_(tensor(name .. "_", x), ops[name](x, dim)) end
end

-- Rare ones: the first call of one loads its file, whose functions take the places of these.
for file, names in pairs {
  products = "inner kron",
  ordering = "bincount corrcoef cov diff histc isin median mode nanmedian nanquantile quantile unique "
    .. "unique_consecutive",
  placing = "diagonal_scatter fill_diagonal_ index_copy index_copy_ index_fill index_fill_ index_reduce index_reduce_ "
    .. "masked_scatter masked_scatter_ masked_select put put_ scatter_reduce_ select_scatter slice_scatter take "
    .. "take_along_dim",
  rearranging = "diag diag_embed diagflat dsplit fliplr flipud hsplit moveaxis movedim repeat_interleave rot90 "
    .. "tensor_split unflatten vsplit",
  spellings = "apply_ argwhere as_strided_scatter clamp_max clamp_max_ clamp_min clamp_min_ is_nonzero is_signed map2_ "
    .. "map_ ndimension nelement new_empty_strided positive repeat resize_ resize_as_ set_ split_with_sizes type",
  integrals_and_histograms = "renorm histogram",
} do
  local function load()
    local found = load_module("luminary.tensor." .. file)
    for name in names:gmatch "%S+" do methods[name] = found[name] end
  end
  for name in names:gmatch "%S+" do
    rare[name] = load
    methods[name] = function(...)
      load()
      return methods[name](...)
    end
  end
end

-- ---- hooks
local Handle = {}
Handle.__index = Handle

--- The hook is not called any more.
function Handle:remove()
  if not self.id then return end
  core._remove_hook(self.tensor, self.id, self.callback)
  self.id, self.tensor, self.callback = nil, nil, nil
end

local function register(x, hook, accumulate)
  local id, callback = core._register_hook(x, hook, accumulate)
  return setmetatable({tensor = x, id = id, callback = callback}, Handle)
end

--- hook(grad) is called with x's gradient in each backward and may return another in its place.
function methods.register_hook(x, hook) return register(x, hook, false) end

--- hook(x) is called after x.grad has been added to.
function methods.register_post_accumulate_grad_hook(x, hook)
  options.arg("register_post_accumulate_grad_hook", "hook", hook, "function")
  return register(x, function()
    if core.is_alive(x) then hook(x) end
  end, true)
end

-- Asked for what is neither method nor field.
return setmetatable(options.exact_all(methods), {rare = rare, __index = function(_, key)
  local known = {}
  for _, names in ipairs {methods, core.tensor_fields} do
    for name in pairs(names) do known[name] = true end
  end
  options.no_name("tensors", key, known)
end})

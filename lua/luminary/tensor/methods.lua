--- Defines methods of tensors that are made of ops. Returns the table of all methods.
local core = require "luminary.core"
local options = require "luminary.base.options"
local load_module = require "luminary.base.load_module"
require "luminary.tensor.size_lists"

local ops, methods = core.ops, core.methods
local fail = options.fail
local rare = {} -- maps a name to a function that loads the method's file

-- ---- methods that are written in C
--- x:size([dim]): Returns the sizes of x as a list, or the size of dim.
--- x:stride([dim]): Returns the distances in memory between neighbors along each dim, in elements, or that of dim.
--- x:dim(): Returns the number of dims of x.
--- x:numel(): Returns the number of elements of x.
--- x:element_size(): Returns the number of bytes of one element.
--- x:storage_offset(): Returns the offset of the first element of x in its memory, in elements.
--- x:storage_size(): Returns the number of elements of x's dtype that its memory holds, which views share.
--- x:get_device(): Returns the index of the CUDA device that x is on, or -1 for the CPU.
--- x:is_contiguous([{memory_format = "contiguous"}]): Returns whether the elements of x are in order in memory, without
--- gaps.
--- x:to(device or dtype or other [, …] [, {dtype, device, copy = false, non_blocking = false, memory_format}]): Returns
--- x on a device and in a dtype, or with those of another tensor.
--- x:data_ptr(): Returns the address of the first element of x.
--- x:free(): Frees the memory of x now, unless views or the graph share it; x cannot be used afterwards.
--- x:requires_grad_([on = true]): Sets whether backward computes the gradient of x, which must be a leaf, and returns
--- x.
--- x:retain_grad(): Makes backward set x.grad even if x is not a leaf.
--- x:detach_(): Detaches x from the graph that made it, in place, and returns x.
--- x:backward([gradient] [, {gradient, retain_graph, create_graph = false}]): Computes the gradients of x with respect
--- to the leaves of its graph and adds them to their .grad.
--- x:item(): Returns the value of a tensor of one element as a number or boolean.
--- x:totable(): Returns the elements of x as nested lists, or a number for a 0-d tensor.
--- x:tolist(): Returns the elements of x as nested lists, as x:totable() does.

-- ---- fields
--- x.shape: The sizes of x, a list.
--- x.dtype: The dtype of x, a string such as "float32".
--- x.device: The device of x, a string such as "cpu" or "cuda:0".
--- x.ndim: The number of dims of x.
--- x.grad: The gradient that backward computed for x, or nil. It may be assigned.
--- x.grad_fn: The name of the recorded op that made x, or nil for a leaf.
--- x.requires_grad: True if backward computes gradients through x. It may be assigned for leaves.
--- x.is_leaf: True if no recorded op made x.
--- x.is_cuda: True if x is on a CUDA device.
--- x.data: The tensor x without its graph, over the same memory. It may be assigned.
--- x.T: A view of x with its dims in reverse order.
--- x.mT: A view of x with its last two dims exchanged.
--- x.itemsize: The number of bytes of one element.
--- x.nbytes: The number of bytes of all elements.

local function tensor(who, x, name)
  if not name and (x == nil or type(x) == "number") then
    options.must_be(who, "x", "a tensor", x, "as a method, call it with a colon: x:%s(…)", who)
  end
  return options.arg(who, name or "x", x, "tensor")
end

local with_format = [[(x: tensor, memory_format: "preserve" | "contiguous" | "channels_last")]]

for name, dtype in pairs {
  float = "float32", double = "float64", half = "float16", bfloat16 = "bfloat16", long = "int64", int = "int32",
  short = "int16", char = "int8", byte = "uint8", bool = "bool",
} do
  --- Returns x converted to the dtype of the method's name.
  methods[name] = function(x, memory_format)
    if memory_format == nil then return methods.to(tensor(name, x), dtype) end
    local _, format = load_module("luminary.base.signature").read(with_format, name, x, memory_format)
    return methods.to(x, dtype, {memory_format = format})
  end
end

--- Returns a copy of x in host memory, or x itself if it already is in host memory.
function methods.cpu(x) return methods.to(tensor("cpu", x), "cpu") end

--- Returns a copy of x on a CUDA device, the current one by default, or x itself if it already is on that device.
function methods.cuda(x, device, given)
  if type(device) == "table" then device, given = nil, device end
  return methods.to(tensor("cuda", x), device or "cuda", given or {})
end

--- Returns a copy of x in page-locked host memory, or x itself where CUDA is not available.
function methods.pin_memory(x) return core.pin_memory(tensor("pin_memory", x)) end

--- Returns whether x is in page-locked host memory.
function methods.is_pinned(x) return core.is_pinned(tensor("is_pinned", x)) end

--- Marks x as used by a CUDA stream, so that its memory is not used again before the stream's work is done.
function methods.record_stream(x, stream)
  tensor("record_stream", x)
  stream = load_module("luminary.cuda.stream").checked("record_stream", stream)
  core.record_stream(x, stream.device, stream.id)
end

--- Returns x converted to the dtype of another tensor.
function methods.type_as(x, other) return methods.to(tensor("type_as", x), tensor("type_as", other, "other").dtype) end

for name, op in pairs {view_as = ops.view, expand_as = ops.expand, reshape_as = ops.reshape} do
  --- Returns x in the shape of another tensor, as view, expand and reshape do.
  methods[name] = function(x, other) return op(tensor(name, x), tensor(name, other, "other").shape) end
end

--- Returns whether the dtype of x is floating.
function methods.is_floating_point(x) return core.is_floating_point(tensor("is_floating_point", x)) end

-- Returns the arguments of a call such as x:new_zeros(2, 3) with options appended: x's dtype and device by default.
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
  --- Returns a new tensor with the dtype and device of x, made as lm.empty, lm.zeros, lm.ones or lm.full makes one.
  methods["new_" .. name] = function(x, ...) return ops[name](like("new_" .. name, x, ...)) end
end

--- Returns a tensor of the given values with the dtype and device of x, as lm.tensor does.
function methods.new_tensor(x, ...) return core.tensor(like("new_tensor", x, ...)) end

for name, module in pairs {
  svd = "matrices", qr = "matrices", lu = "matrices", lu_solve = "matrices", pinverse = "matrices",
  matrix_power = "matrices", matrix_exp = "matrices", stft = "stft", istft = "stft",
} do
  --- Calls the function of lm with the same name, with x as its first argument.
  methods[name] = function(x, ...) return load_module("luminary.tensor." .. module)[name](tensor(name, x), ...) end
end

--- Returns whether two tensors have the same shape and elements.
function methods.equal(x, other)
  tensor("equal", x)
  tensor("equal", other, "other")
  if x.shape ~= other.shape then return false end
  return core.no_grad(function() return ops.all(ops.eq(x, other)):item() end)
end

--- Moves x to memory that other processes can share, in place, and returns x.
function methods.share_memory_(x)
  tensor("share_memory_", x)
  load_module("luminary.mp.share_tensors")({x}, function(_, why) fail("share_memory_: %s", why) end)
  return x
end

--- Returns whether x is in memory that other processes can share.
function methods.is_shared(x) return core.mp_is_shared(x) end

--- Computes renorm in place.
function methods.renorm_(x, p, dim, maxnorm)
  return ops.copy_(tensor("renorm_", x), methods.renorm(x, p, dim, maxnorm))
end

for _, name in ipairs {"cumsum", "cumprod"} do
  --- Computes cumsum or cumprod in place.
  methods[name .. "_"] = function(x, dim) return ops.copy_(tensor(name .. "_", x), ops[name](x, dim)) end
end

-- Loads rarely used methods at their first call: the functions of their file replace these.
for file, names in pairs {
  products = "inner kron",
  parts_norms_hooks = "allclose chunk dist norm register_hook register_post_accumulate_grad_hook repeat_tensor split "
    .. "tile unbind where",
  quantiles_and_unique = "bincount corrcoef cov diff histc isin median mode nanmedian nanquantile quantile unique "
    .. "unique_consecutive",
  indexing = "diagonal_scatter fill_diagonal_ index_copy index_copy_ index_fill index_fill_ index_reduce index_reduce_ "
    .. "masked_scatter masked_scatter_ masked_select put put_ scatter_reduce_ select_scatter slice_scatter take "
    .. "take_along_dim",
  shape_ops = "diag diag_embed diagflat dsplit fliplr flipud hsplit moveaxis movedim repeat_interleave rot90 "
    .. "tensor_split unflatten vsplit",
  derived_functions =
    "apply_ argwhere as_strided_scatter clamp_max clamp_max_ clamp_min clamp_min_ is_nonzero is_signed map2_ "
    .. "map_ ndimension nelement new_empty_strided positive repeat resize_ resize_as_ set_ split_with_sizes type",
  integrals_and_histograms = "renorm histogram",
} do
  local found
  local function load_methods()
    if found then return end
    found = load_module("luminary.tensor." .. file)
    for name in names:gmatch "%S+" do methods[name] = found[name] end
  end
  for name in names:gmatch "%S+" do
    rare[name] = load_methods
    methods[name] = function(...)
      load_methods()
      return methods[name](...)
    end
  end
end

-- Raises the error for names that are neither a method nor a field.
return setmetatable(options.exact_all(methods), {rare = rare, __index = function(_, key)
  local known = {}
  for _, names in ipairs {methods, core.tensor_fields} do
    for name in pairs(names) do known[name] = true end
  end
  options.no_name("tensors", key, known)
end})

--- Defines functions of lm and methods of tensors that are another name of an op, or one or two ops.
local core = require "luminary.core"
local options = require "luminary.base.options"
local signature = require "luminary.base.signature"
local load_module = require "luminary.base.load_module"
local methods = require "luminary.tensor.methods"
local shapes = require "luminary.tensor.shapes"

local ops, fail = core.ops, options.fail
local derived = {}

local function tensor(who, x) return options.arg(who, "x", x, "tensor") end

-- ---- results in pairs, bounds, tests

for _, name in ipairs {"std", "var"} do
  --- Computes the standard deviation or the variance, and the mean.
  derived[name .. "_mean"] = signature.of(name .. [[_mean(x: tensor, dim: dims?, unbiased = true, keepdim = false,
    correction = 1)]], function(x, dim, unbiased, keepdim, correction)
    local spread = ops[name](x, dim, unbiased, keepdim, {correction = correction})
    return spread, ops.mean(x, dim, keepdim)
  end)
end

for name, bound in pairs {clamp_min = "min", clamp_max = "max"} do
  for _, ending in ipairs {"", "_"} do
    --- Limits the elements of x to a lower or an upper bound, a number or a tensor.
    derived[name .. ending] = signature.of(("%s%s(x: tensor, %s: any)"):format(name, ending, bound), function(x, limit)
      return ops["clamp" .. ending](x, {[bound] = limit})
    end)
  end
end

--- x:argwhere(): Returns the indices of the elements that are not 0, [n, ndim].
function derived.argwhere(x) return ops.nonzero(tensor("argwhere", x)) end

--- x:is_nonzero(): Returns whether x's one element is not 0.
function derived.is_nonzero(x)
  if tensor("is_nonzero", x):numel() ~= 1 then options.must_be("is_nonzero", "x", "a tensor of one element", x) end
  local value = x:item()
  return value ~= 0 and value ~= false
end

--- x:is_signed(): Returns whether the dtype of x can hold negative numbers.
function derived.is_signed(x)
  local dtype = tensor("is_signed", x).dtype
  return dtype ~= "bool" and dtype:sub(1, 4) ~= "uint"
end

--- x:positive(): Returns x; bool has no sign.
function derived.positive(x)
  if tensor("positive", x).dtype == "bool" then fail("positive: x must not be bool") end
  return x
end

--- lm.get_device(x): Returns the number of the CUDA device of a tensor, -1 for the CPU.
function derived.get_device(x) return methods.get_device(x) end

-- ---- constructors

local function as_tensor(who, values, dtype, device)
  if dtype ~= nil then dtype = core.dtype(dtype, who) end
  if not core.is_tensor(values) then return core.tensor(values, {dtype = dtype, device = device}) end
  return methods.to(values, {dtype = dtype, device = device})
end

for _, name in ipairs {"as_tensor", "asarray"} do
  --- Converts values to a tensor, without a copy if they are a tensor of that dtype and device.
  derived[name] = signature.of(name .. "(values: any, dtype: string?, device: any?)", function(...)
    return as_tensor(name, ...)
  end)
end

--- Returns a 0-d tensor of a number.
derived.scalar_tensor = signature.of([[scalar_tensor(number: number, dtype: string?, device: any?,
  requires_grad = false)]], function(value, dtype, device, requires_grad)
  return core.tensor(value, {dtype = dtype, device = device, requires_grad = requires_grad})
end)

--- Returns a tensor of the shape of x filled with value.
derived.fill = signature.of("fill(x: tensor, value: any)", function(x, value)
  return ops.full_like(x, value)
end)

-- Returns an uninitialized tensor with these strides.
local function strided(who, size, stride, dtype, device)
  local elements, empty = 1, false
  if #size ~= #stride then
    fail("%s: size and stride must have the same number of entries, got %d and %d", who, #size, #stride)
  end
  for d, n in ipairs(size) do
    options.arg(who, ("size[%d]"):format(d), n, "natural")
    elements = elements + (n - 1) * options.arg(who, ("stride[%d]"):format(d), stride[d], "natural")
    empty = empty or n == 0
  end
  return ops.as_strided(ops.empty(empty and 0 or elements, {dtype = dtype, device = device}), size, stride)
end

--- Returns an uninitialized tensor with these sizes and strides.
derived.empty_strided = signature.of([[empty_strided(size: integers, stride: integers, dtype: string?,
  device: any?)]], function(size, stride, dtype, device)
  return strided("empty_strided", size, stride, dtype, device)
end)

--- Returns an uninitialized tensor with these strides, and with the dtype and device of x by default.
derived.new_empty_strided = signature.of([[new_empty_strided(x: tensor, size: integers, stride: integers,
  dtype: string?, device: any?)]], function(x, size, stride, dtype, device)
  return strided("new_empty_strided", size, stride, dtype or x.dtype, device or x.device)
end)

-- Maps a dtype to the options of a tensor on the CPU, and to the bytes of its elements.
local on_cpu = setmetatable({}, {__index = function(t, dtype)
  local like = {dtype = dtype, device = "cpu"}
  t[dtype] = {like = like, size = ops.empty(0, like):element_size()}
  return t[dtype]
end})

--- Returns a 1-d tensor of the bytes of a string or an FFI array.
derived.frombuffer = signature.of([[frombuffer(buffer: any, dtype: string, count: integer = -1,
  offset: natural = 0)]], function(buffer, dtype, count, offset)
  local who, ffi = "frombuffer", require "ffi"
  local kind = type(buffer)
  if kind ~= "string" and (kind ~= "cdata" or not tostring(ffi.typeof(buffer)):find "%]>$") then
    options.must_be(who, "buffer", "a string or an FFI array", buffer,
      "ffi.string(p, bytes) makes a string of a pointer")
  end
  local size, bytes = on_cpu[dtype].size, kind == "string" and #buffer or ffi.sizeof(buffer)
  if count < 0 then count = (bytes - offset) / size end
  if count < 0 or count % 1 ~= 0 or offset + count * size > bytes then
    fail("%s: %d bytes from offset %d on do not hold %s elements of %s", who, bytes, offset,
      count % 1 == 0 and tostring(count) or "a whole number of", dtype)
  end
  local x = ops.empty(count, on_cpu[dtype].like)
  ffi.copy(x:data_ptr(), offset == 0 and buffer or ffi.cast("const char *", buffer) + offset, count * size)
  return x
end)

-- ---- sizes and dtypes

--- Splits x along dim into views of the given sizes.
derived.split_with_sizes = signature.of([[split_with_sizes(x: tensor, sizes: integers,
  dim: dim = 1)]], function(x, sizes, dim)
  return methods.split(x, sizes, dim)
end)

--- Pads x with a constant.
derived.constant_pad_nd = signature.of([[constant_pad_nd(x: tensor, pad: integers,
  value: any = 0)]], function(x, pad, value)
  return ops.pad(x, pad, {value = value})
end)

--- x:nelement(): Returns the number of elements of x.
derived.nelement = methods.numel
--- x:ndimension(): Returns the number of dims of x.
derived.ndimension = methods.dim
-- Lua's keyword `repeat` cannot be called with a colon: x["repeat"](x, 2, 3).
derived["repeat"] = load_module("luminary.tensor.parts_norms_hooks").repeat_tensor

local type_names = {
  float32 = "Float", float64 = "Double", float16 = "Half", bfloat16 = "BFloat16", int64 = "Long", int32 = "Int",
  int16 = "Short", int8 = "Char", uint8 = "Byte", bool = "Bool",
}
local dtypes_of_types = {}
for dtype, name in pairs(type_names) do dtypes_of_types[name .. "Tensor"] = dtype end

--- x:type([dtype]): Returns the name of the type of x in PyTorch, or x converted to a dtype or type.
function derived.type(x, dtype)
  tensor("type", x)
  if dtype == nil then
    return ("torch.%s%sTensor"):format(x.is_cuda and "cuda." or "", type_names[x.dtype] or x.dtype)
  end
  options.arg("type", "dtype", dtype, "string")
  local named = dtypes_of_types[dtype:match "(%w+)$"]
  local y = methods.to(x, named or dtype)
  return named and dtype:find("cuda.", 1, true) and methods.cuda(y) or y
end

--- x:resize_(2, 3, …): Resizes x in place; elements keep their order, and new ones are uninitialized.
function derived.resize_(x, ...)
  tensor("resize_", x)
  local size = {...}
  if select("#", ...) == 1 then size = (...) end
  size = options.arg("resize_", "size", size, "integers")
  if x.requires_grad then fail("resize_: x must not require a gradient; resize x:detach()") end
  local n = 1
  for d, each in ipairs(size) do n = n * options.arg("resize_", ("size[%d]"):format(d), each, "natural") end
  local have = x:numel()
  local y
  if n <= have then
    y = ops.reshape(ops.narrow(ops.flatten(x), 1, 1, n), size)
  else
    y = ops.empty(size, {dtype = x.dtype, device = x.device})
    ops.copy_(ops.narrow(ops.flatten(y), 1, 1, have), ops.flatten(x))
  end
  x.data = y
  return x
end

--- Resizes x in place to the shape of another tensor.
derived.resize_as_ = signature.of("resize_as_(x: tensor, other: tensor)", function(x, other)
  return derived.resize_(x, other.shape)
end)

--- Replaces the memory, sizes and strides of x by those of other, and returns x.
derived.set_ = signature.of("set_(x: tensor, other: tensor)", function(x, other)
  x.data = other.data
  return x
end)

--- lm.broadcast_shapes(a, b, …): Returns the sizes to which lists of sizes broadcast.
function derived.broadcast_shapes(...)
  local all = {...}
  for k, sizes in ipairs(all) do all[k] = options.arg("broadcast_shapes", "shape " .. k, sizes, "integers") end
  return shapes.common("broadcast_shapes", all)
end

--- Converts flat indices to indices in each dim of a shape.
derived.unravel_index = signature.of("unravel_index(indices: tensor, shape: integers)", function(indices, shape)
  local parts, rest = {}, indices - 1
  for d = #shape, 1, -1 do
    parts[d] = ops.remainder(rest, shape[d]) + 1
    rest = ops.floor_divide(rest, shape[d])
  end
  return load_module "luminary.tensor.tensor_list"(parts)
end)

--- Returns a copy of x with src in the elements of x:as_strided(size, stride, storage_offset).
derived.as_strided_scatter = signature.of([[as_strided_scatter(x: tensor, src: tensor, size: integers,
  stride: integers, storage_offset: natural = 0)]], function(x, src, size, stride, offset)
  local y = ops.clone(x)
  ops.copy_(ops.as_strided(y, size, stride, offset), src)
  return y
end)

-- ---- functions of elements

local function each_of(who, x, f, ...)
  options.arg(who, "f", f, "callable")
  local lists, flat = {}, ops.flatten(tensor(who, x)):totable()
  for i, other in ipairs {...} do
    if other:numel() ~= #flat then options.shapes_differ(who, "x", x, "other", other) end
    lists[i] = ops.flatten(other):totable()
  end
  local a, b = lists[1], lists[2]
  for i, v in ipairs(flat) do -- f gets as many arguments as there are tensors
    if b then flat[i] = f(v, a[i], b[i]) elseif a then flat[i] = f(v, a[i]) else flat[i] = f(v) end
  end
  return ops.copy_(x, ops.reshape(core.tensor(flat, {dtype = x.dtype, device = x.device}), x.shape))
end

--- x:apply_(f): Replaces each element by f(element), in place.
function derived.apply_(x, f) return each_of("apply_", x, f) end

--- x:map_(other, f): Replaces each element by f(element, element of other), in place.
function derived.map_(x, other, f) return each_of("map_", x, f, options.arg("map_", "other", other, "tensor")) end

--- x:map2_(a, b, f): Replaces each element by f(element, element of a, element of b), in place.
function derived.map2_(x, a, b, f)
  return each_of("map2_", x, f, options.arg("map2_", "a", a, "tensor"), options.arg("map2_", "b", b, "tensor"))
end

-- ---- settings

--- lm.inference_mode(f, ...): Calls f(...) without recording operations for backward, as lm.no_grad does.
derived.inference_mode = core.no_grad

local PROFILES = {
  default = {4, 1000, 3, 80}, short = {2, 1000, 2, 80}, full = {4, 2 ^ 52, 3, 80},
}

--- lm.set_printoptions {precision = 4, threshold = 1000, edgeitems = 3, linewidth = 80, profile, sci_mode}: Sets how
--- tensors are printed in this thread.
derived.set_printoptions = signature.of([[set_printoptions(precision: integer(0, 40)?, threshold: natural?,
  edgeitems: count?, linewidth: count?, profile: "default" | "short" | "full"?,
  sci_mode: boolean?)]], function(precision, threshold, edgeitems, linewidth, profile, sci_mode)
  local now = {core.print_options()}
  if profile then
    for i, v in ipairs(PROFILES[profile]) do now[i] = v end
  end
  core.print_options(precision or now[1], threshold or now[2], edgeitems or now[3], linewidth or now[4],
    sci_mode == nil and -1 or sci_mode and 1 or 0)
end)

--- lm.get_printoptions(): Returns how tensors are printed, as a table for lm.set_printoptions.
function derived.get_printoptions()
  local precision, threshold, edgeitems, linewidth, scientific = core.print_options()
  return {
    precision = precision, threshold = threshold, edgeitems = edgeitems, linewidth = linewidth,
    sci_mode = scientific >= 0 and scientific == 1 or nil,
  }
end

local deterministic = "cudnn.deterministic"

--- Sets whether convolutions and attention on a GPU use only deterministic algorithms.
derived.use_deterministic_algorithms = signature.of([[use_deterministic_algorithms(on: boolean,
  warn_only = false)]], function(on) core.setting(deterministic, on) end)

--- lm.are_deterministic_algorithms_enabled(): Returns whether lm.use_deterministic_algorithms is on.
function derived.are_deterministic_algorithms_enabled() return core.setting(deterministic) end

local tf32, PRECISIONS = "cuda.matmul.allow_tf32", {"highest", "high", "medium"}

--- lm.set_float32_matmul_precision(precision): Sets the internal precision of float32 matrix products on a GPU.
function derived.set_float32_matmul_precision(precision)
  options.choice("set_float32_matmul_precision", "precision", precision, PRECISIONS)
  core.setting(tf32, precision ~= "highest")
end

--- lm.get_float32_matmul_precision(): Returns the internal precision of float32 matrix products on a GPU, "highest" or
--- "high".
function derived.get_float32_matmul_precision() return core.setting(tf32) and "high" or "highest" end

return options.exact_all(derived)

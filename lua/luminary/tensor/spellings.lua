--- Other spellings that PyTorch has for what is here under another name, and what is one or two ops: functions of lm
--- and methods of tensors.
local core = require "luminary.core"
local arguments = require "luminary.base.arguments"
local options = require "luminary.base.options"
local load_module = require "luminary.base.load_module"
local methods = require "luminary.tensor.methods"

local ops, fail, describe = core.ops, options.fail, options.describe
local spellings = {}

local function tensor(who, x) return options.arg(who, "x", x, "tensor") end

-- ---- results in pairs, bounds, tests

for _, name in ipairs {"std", "var"} do
  --- lm.std_mean(x [, dim [, unbiased = true [, keepdim = false]]] [, {correction = 1}]), lm.var_mean: the standard
  --- deviation (variance) and the mean: local std, mean = lm.std_mean(x).
  spellings[name .. "_mean"] = arguments.reads(name .. "_mean", {
    {"x", "tensor"}, {"dim", "dims?"}, {"unbiased", "boolean", true}, {"keepdim", "boolean", false},
    {"correction", "number", 1},
  }, function(x, dim, unbiased, keepdim, correction)
    local spread = ops[name](x, dim, unbiased, keepdim, {correction = correction})
    return spread, ops.mean(x, dim, keepdim)
  end)
end

for name, bound in pairs {clamp_min = "min", clamp_max = "max"} do
  for _, ending in ipairs {"", "_"} do
    --- x:clamp_min(min), clamp_max(max): x, or the bound where x is beyond it: a number or a tensor; clamp_min_ and
    --- clamp_max_ in place.
    spellings[name .. ending] = function(...)
      local x, limit = arguments.read(name .. ending, {{"x", "tensor"}, {bound, "any"}}, ...)
      return ops["clamp" .. ending](x, {[bound] = limit})
    end
  end
end

--- x:argwhere(): the places, from 1, of what is not 0: [n, dims]; x:nonzero().
function spellings.argwhere(x) return ops.nonzero(tensor("argwhere", x)) end

--- x:is_nonzero(): whether x's one element is not 0.
function spellings.is_nonzero(x)
  if tensor("is_nonzero", x):numel() ~= 1 then fail("is_nonzero: x is %s; it has to be one element", describe(x)) end
  local value = x:item()
  return value ~= 0 and value ~= false
end

--- x:is_signed(): whether x's dtype has negative numbers.
function spellings.is_signed(x)
  local dtype = tensor("is_signed", x).dtype
  return dtype ~= "bool" and dtype:sub(1, 4) ~= "uint"
end

--- x:positive(): x itself; bool has no sign.
function spellings.positive(x)
  if tensor("positive", x).dtype == "bool" then fail("positive: x is bool, which has no sign") end
  return x
end

--- lm.get_device(x): Returns the number of the CUDA device of a tensor, -1 for the CPU.
function spellings.get_device(x) return methods.get_device(x) end

-- ---- made

--- lm.as_tensor(values [, {dtype, device}]), lm.asarray: a tensor of values, as lm.tensor; a tensor itself where it has
--- that dtype and device, else a copy that gradients go through.
spellings.as_tensor = arguments.reads("as_tensor", {
  {"values", "any"}, {"dtype", "string?"}, {"device", "any?"},
}, function(values, dtype, device)
  if not core.is_tensor(values) then return core.tensor(values, {dtype = dtype, device = device}) end
  return methods.to(values, {dtype = dtype, device = device})
end)
spellings.asarray = spellings.as_tensor

--- lm.scalar_tensor(number [, {dtype, device, requires_grad}]): a 0-d tensor.
spellings.scalar_tensor = arguments.reads("scalar_tensor", {
  {"number", "number"}, {"dtype", "string?"}, {"device", "any?"}, {"requires_grad", "boolean", false},
}, function(value, dtype, device, requires_grad)
  return core.tensor(value, {dtype = dtype, device = device, requires_grad = requires_grad})
end)

--- lm.fill(x, value): a tensor like x, all of whose elements are value, a number or a 0-d tensor.
spellings.fill = arguments.reads("fill", {{"x", "tensor"}, {"value", "any"}}, function(x, value)
  return ops.full_like(x, value)
end)

-- An uninitialized tensor with these strides.
local function strided(who, size, stride, dtype, device)
  local elements, empty = 1, false
  if #size ~= #stride then fail("%s: %d sizes and %d strides", who, #size, #stride) end
  for d, n in ipairs(size) do
    options.arg(who, ("size[%d]"):format(d), n, "natural")
    elements = elements + (n - 1) * options.arg(who, ("stride[%d]"):format(d), stride[d], "natural")
    empty = empty or n == 0
  end
  return ops.as_strided(ops.empty(empty and 0 or elements, {dtype = dtype, device = device}), size, stride)
end

--- lm.empty_strided(size, stride [, {dtype, device}]): an uninitialized tensor whose neighbours along each dim are so
--- many elements apart in memory.
spellings.empty_strided = arguments.reads("empty_strided", {
  {"size", "integers"}, {"stride", "integers"}, {"dtype", "string?"}, {"device", "any?"},
}, function(size, stride, dtype, device) return strided("empty_strided", size, stride, dtype, device) end)

--- x:new_empty_strided(size, stride [, {dtype, device}]): lm.empty_strided with x's dtype and device unless told.
spellings.new_empty_strided = arguments.reads("new_empty_strided", {
  {"x", "tensor"}, {"size", "integers"}, {"stride", "integers"}, {"dtype", "string?"}, {"device", "any?"},
}, function(x, size, stride, dtype, device)
  return strided("new_empty_strided", size, stride, dtype or x.dtype, device or x.device)
end)

--- lm.frombuffer(buffer, {dtype [, count = -1 [, offset = 0]]}): a 1-d tensor of count elements (-1: of all there are)
--- of a string's bytes, or an FFI array's, the first `offset` bytes left out. A copy: what becomes of the buffer later
--- does not show.
function spellings.frombuffer(...)
  local who, ffi = "frombuffer", require "ffi"
  local buffer, dtype, count, offset = arguments.read(who, {
    {"buffer", "any"}, {"dtype", "string"}, {"count", "integer", -1}, {"offset", "natural", 0},
  }, ...)
  local kind = type(buffer)
  if kind ~= "string" and (kind ~= "cdata" or not tostring(ffi.typeof(buffer)):find "%]>$") then
    fail("%s: buffer has to be a string or an FFI array, got %s (of a pointer, ffi.string(p, bytes) makes a string)",
      who, describe(buffer))
  end
  local x, bytes = ops.empty(0, {dtype = dtype}), kind == "string" and #buffer or ffi.sizeof(buffer)
  if count < 0 then count = (bytes - offset) / x:element_size() end
  if count < 0 or count % 1 ~= 0 or offset + count * x:element_size() > bytes then
    fail("%s: %d bytes from %d on are no %s elements of %s", who, bytes, offset,
      count % 1 == 0 and tostring(count) or "whole number of", dtype)
  end
  x = ops.empty(count, {dtype = dtype})
  ffi.copy(x:data_ptr(), ffi.cast("const char *", buffer) + offset, count * x:element_size())
  return x
end

-- ---- sizes and dtypes

--- x:split_with_sizes(sizes [, dim = 1]): x:split with a list of sizes.
spellings.split_with_sizes = arguments.reads("split_with_sizes", {
  {"x", "tensor"}, {"sizes", "integers"}, {"dim", "dim", 1},
}, function(x, sizes, dim)
  return methods.split(x, sizes, dim)
end)

--- lm.constant_pad_nd(x, pad [, value = 0]): F.pad with a constant.
spellings.constant_pad_nd = arguments.reads("constant_pad_nd", {
  {"x", "tensor"}, {"pad", "integers"}, {"value", "any", 0},
}, function(x, pad, value)
  return ops.pad(x, pad, {value = value})
end)

--- x:nelement(): x:numel().
spellings.nelement = methods.numel
--- x:ndimension(): x:dim().
spellings.ndimension = methods.dim
-- A word of Lua's, so that it is no method to call with a colon: x["repeat"](x, 2, 3).
spellings["repeat"] = methods.repeat_tensor

local type_names = {
  float32 = "Float", float64 = "Double", float16 = "Half", bfloat16 = "BFloat16", int64 = "Long", int32 = "Int",
  int16 = "Short", int8 = "Char", uint8 = "Byte", bool = "Bool",
}
local dtypes_of_types = {}
for dtype, name in pairs(type_names) do dtypes_of_types[name .. "Tensor"] = dtype end

--- x:type(): "torch.FloatTensor", "torch.cuda.LongTensor", …, as PyTorch and Torch7 call x's type. x:type(dtype): x in
--- a dtype, "int64", or in a type of such a name.
function spellings.type(x, dtype)
  tensor("type", x)
  if dtype == nil then
    return ("torch.%s%sTensor"):format(x.is_cuda and "cuda." or "", type_names[x.dtype] or x.dtype)
  end
  options.arg("type", "dtype", dtype, "string")
  local named = dtypes_of_types[dtype:match "(%w+)$"]
  local y = methods.to(x, named or dtype)
  return named and dtype:find("cuda.", 1, true) and methods.cuda(y) or y
end

--- x:resize_(2, 3, …): gives x these sizes in place; elements keep their order, and what is new is uninitialized.
function spellings.resize_(x, ...)
  tensor("resize_", x)
  local size = {...}
  if select("#", ...) == 1 then size = (...) end
  size = options.arg("resize_", "size", size, "integers")
  if x.requires_grad then fail("resize_: x requires a gradient, which would not fit it any more") end
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

--- x:resize_as_(other): x:resize_ to other's sizes.
spellings.resize_as_ = arguments.reads("resize_as_", {{"x", "tensor"}, {"other", "tensor"}}, function(x, other)
  return spellings.resize_(x, other.shape)
end)

--- x:set_(other): x takes over other's memory, sizes and strides. Gives x.
spellings.set_ = arguments.reads("set_", {{"x", "tensor"}, {"other", "tensor"}}, function(x, other)
  x.data = other.data
  return x
end)

--- lm.broadcast_shapes(a, b, …): the sizes that lists of sizes broadcast to.
function spellings.broadcast_shapes(...)
  local shape = {}
  for k, sizes in ipairs {...} do
    sizes = options.arg("broadcast_shapes", "shape " .. k, sizes, "integers")
    for _ = #shape + 1, #sizes do table.insert(shape, 1, 1) end
    for i = 1, #sizes do
      local at, n = #shape - i + 1, sizes[#sizes - i + 1]
      if n ~= 1 and shape[at] ~= 1 and shape[at] ~= n then
        fail("broadcast_shapes: shape %d has %d where others have %d", k, n, shape[at])
      end
      if n ~= 1 then shape[at] = n end
    end
  end
  return shape
end

--- lm.unravel_index(indices, shape): where in a tensor of those sizes its elements are that indices count, from 1: a
--- list of tensors, one for each dim, from 1 too.
spellings.unravel_index = arguments.reads("unravel_index", {
  {"indices", "tensor"}, {"shape", "integers"},
}, function(indices, shape)
  local places, rest = {}, indices - 1
  for d = #shape, 1, -1 do
    places[d] = ops.remainder(rest, shape[d]) + 1
    rest = ops.floor_divide(rest, shape[d])
  end
  return load_module "luminary.tensor.tensor_list"(places)
end)

--- x:as_strided_scatter(src, size, stride [, storage_offset = 0]): a copy of x with src in the place of what
--- x:as_strided(size, stride, storage_offset) shows.
spellings.as_strided_scatter = arguments.reads("as_strided_scatter", {
  {"x", "tensor"}, {"src", "tensor"}, {"size", "integers"}, {"stride", "integers"}, {"storage_offset", "natural", 0},
}, function(x, src, size, stride, offset)
  local y = ops.clone(x)
  ops.copy_(ops.as_strided(y, size, stride, offset), src)
  return y
end)

-- ---- elements one by one

local function each_of(who, x, f, ...)
  options.arg(who, "f", f, "callable")
  local lists, flat = {}, ops.flatten(tensor(who, x)):totable()
  for i, other in ipairs {...} do
    if other:numel() ~= #flat then fail("%s: x is %s, the other %s", who, describe(x), describe(other)) end
    lists[i] = ops.flatten(other):totable()
  end
  for i, v in ipairs(flat) do flat[i] = f(v, lists[1] and lists[1][i], lists[2] and lists[2][i]) end
  return ops.copy_(x, ops.reshape(core.tensor(flat, {dtype = x.dtype, device = x.device}), x.shape))
end

--- x:apply_(f): each element becomes f(element), in place; a loop in Lua, for small tensors. Gives x.
function spellings.apply_(x, f) return each_of("apply_", x, f) end

--- x:map_(other, f): each element becomes f(element, other's), in place. Gives x.
function spellings.map_(x, other, f) return each_of("map_", x, f, options.arg("map_", "other", other, "tensor")) end

--- x:map2_(a, b, f): each element becomes f(element, a's, b's), in place. Gives x.
function spellings.map2_(x, a, b, f)
  return each_of("map2_", x, f, options.arg("map2_", "a", a, "tensor"), options.arg("map2_", "b", b, "tensor"))
end

-- ---- settings

--- lm.inference_mode(f, ...): lm.no_grad(f, ...).
spellings.inference_mode = core.no_grad

local PROFILES = {
  default = {4, 1000, 3, 80}, short = {2, 1000, 2, 80}, full = {4, 2 ^ 52, 3, 80},
}

--- lm.set_printoptions {precision = 4, threshold = 1000, edgeitems = 3, linewidth = 80, profile, sci_mode}: Sets how
--- tensors are printed in this thread.
spellings.set_printoptions = arguments.reads("set_printoptions", {
  {"precision", "natural?"}, {"threshold", "natural?"}, {"edgeitems", "count?"}, {"linewidth", "count?"},
  {"profile", {"default", "short", "full"}, optional = true}, {"sci_mode", "boolean?"},
}, function(precision, threshold, edgeitems, linewidth, profile, sci_mode)
  local who = "set_printoptions"
  if precision and precision > 40 then fail("%s: precision has to be at most 40, got %d", who, precision) end
  local now = {core.print_options()}
  if profile then
    for i, v in ipairs(PROFILES[profile]) do now[i] = v end
  end
  core.print_options(precision or now[1], threshold or now[2], edgeitems or now[3], linewidth or now[4],
    sci_mode == nil and -1 or sci_mode and 1 or 0)
end)

--- lm.get_printoptions(): Returns how tensors are printed, as a table for lm.set_printoptions.
function spellings.get_printoptions()
  local precision, threshold, edgeitems, linewidth, scientific = core.print_options()
  return {
    precision = precision, threshold = threshold, edgeitems = edgeitems, linewidth = linewidth,
    sci_mode = scientific >= 0 and scientific == 1 or nil,
  }
end

local deterministic = "cudnn.deterministic"

--- lm.use_deterministic_algorithms(on [, {warn_only = false}]): Sets whether convolutions and attention on a GPU use
--- only deterministic algorithms.
spellings.use_deterministic_algorithms = arguments.reads("use_deterministic_algorithms", {
  {"on", "boolean"}, {"warn_only", "boolean", false},
}, function(on) core.setting(deterministic, on) end)

--- lm.are_deterministic_algorithms_enabled(): Returns whether lm.use_deterministic_algorithms is on.
function spellings.are_deterministic_algorithms_enabled() return core.setting(deterministic) end

local tf32, PRECISIONS = "cuda.matmul.allow_tf32", {"highest", "high", "medium"}

--- lm.set_float32_matmul_precision(precision): Sets the internal precision of float32 matrix products on a GPU.
function spellings.set_float32_matmul_precision(precision)
  options.choice("set_float32_matmul_precision", "precision", precision, PRECISIONS)
  core.setting(tf32, precision ~= "highest")
end

--- lm.get_float32_matmul_precision(): Returns the internal precision of float32 matrix products on a GPU, "highest" or
--- "high".
function spellings.get_float32_matmul_precision() return core.setting(tf32) and "high" or "highest" end

return options.exact_all(spellings)

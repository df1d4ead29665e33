--- Defines Torch7's views and shapes of tensors, and its questions about them: sizes, strides, types, storages.
local core = require "luminary.core"
local tensor = require "luminary.torch7.tensor"
local storage = require "luminary.torch7.storage"
local ops, ours = core.ops, core.methods
local define, wrap, raw, sizes_from = tensor.define, tensor.wrap, tensor.raw, tensor.sizes_from
local methods, shape_of, truncated = tensor.methods, tensor.shape_of, tensor.truncated

-- ---- views; a result tensor becomes one

local view = {put = "view"}
define("view", {"t n *", "t T"}, function(x, ...) return ops.view(x, sizes_from(...)) end, view)
define("viewAs", {"t t"}, function(x, like) return ops.view(x, like.shape) end, view)
define("expand", {"t n *", "t T"}, function(x, ...) return ops.expand(x, sizes_from(...)) end, view)
define("expandAs", {"t t"}, function(x, like) return ops.expand(x, like.shape) end, view)
define("squeeze", {"t n?"}, function(x, dim)
  if x:numel() == 1 and (dim == nil or x.ndim == 1) then return x:item() end
  return dim and (x:size(dim) == 1 and ops.squeeze(x, dim) or x) or ops.squeeze(x)
end, view)

local function viewed(name, compute)
  methods[name] = function(object, ...) return wrap(compute(raw(object, name), ...)) end
  tensor.functions[name] = methods[name]
end
for _, name in ipairs {"narrow", "transpose", "unfold", "t"} do
  local op = ops[name]
  viewed(name, function(x, a, b, c) return op(x, truncated(a), truncated(b), truncated(c)) end)
end
viewed("permute", function(x, ...) return ops.permute(x, sizes_from(...)) end)
viewed("sub", function(x, ...)
  local index, given = {}, {...}
  for i = 1, #given, 2 do index[#index + 1] = {given[i], given[i + 1]} end
  return tensor.part(x, index)
end)
--- x:select(dim, i): Returns a view without dim; a number if x is 1-d.
function methods.select(object, dim, i)
  if raw(object, "select").ndim == 1 then dim = 1 end
  return tensor.number_or_view(ops.select(raw(object), dim, truncated(i)))
end
for _, name in ipairs {"split", "chunk"} do
  --- x:split(size [, dim]), x:chunk(n [, dim]): Return a table of views; a table before x receives them.
  methods[name] = function(result, object, n, dim)
    if type(result) ~= "table" then result, object, n, dim = {}, result, object, n end
    for i = #result, 1, -1 do result[i] = nil end
    for i, part in ipairs(ours[name](raw(object, name), truncated(n), dim or 1)) do result[i] = wrap(part) end
    return result
  end
end

-- ---- copies

define("reshape", {"t n *", "t T"}, function(x, ...) return ops.clone(ops.reshape(x, sizes_from(...))) end)
define("repeatTensor", {"t n *", "t T"}, function(x, ...) return ours.repeat_tensor(x, sizes_from(...)) end)
viewed("clone", function(x) return ops.clone(x, {memory_format = "contiguous"}) end)
function methods.contiguous(object)
  local x = raw(object, "contiguous")
  return x:is_contiguous() and object or wrap(ops.contiguous(x))
end

-- ---- sizes and storages

--- x:resize(…): Changes x's sizes, over the same storage if that is large enough.
function methods.resize(object, ...)
  local list, strides = ...
  raw(object, "resize")
  if storage.is(strides) or type(strides) == "table" then -- sizes and strides
    local x = raw(object)
    return methods.set(object, methods.storage(object), x:storage_offset() + 1, list, strides)
  end
  tensor.resize(object, sizes_from(...))
  return object
end
function methods.resizeAs(object, other)
  tensor.resize(object, raw(other, "resizeAs").shape)
  return object
end

--- x:set([y]): Makes x a view of y; empty without y. Or x:set(storage [, offset [, sizes [, strides]]]).
function methods.set(object, other, ...)
  local x = storage.is(other) and storage.view(other, ...) or other and raw(other, "set")
  tensor.rebind(object, x or ops.empty({0}, {dtype = raw(object).dtype}))
  return object
end
methods.setStorage = methods.set

function methods.nElement(object) return raw(object):numel() end
methods.numel = methods.nElement
function methods.dim(object) return #shape_of(raw(object)) end
methods.nDimension = methods.dim
function methods.size(object, dim)
  if dim then return raw(object):size(dim) end
  return tensor.sizes(shape_of(raw(object)))
end
function methods.stride(object, dim)
  if dim then return raw(object):stride(dim) end
  return tensor.sizes(methods.dim(object) > 0 and raw(object):stride() or {})
end
function methods.storageOffset(object) return raw(object):storage_offset() + 1 end
function methods.elementSize(object) return raw(object):element_size() end
function methods.isContiguous(object) return raw(object):is_contiguous() end
function methods.isSameSizeAs(object, other) return raw(object).shape == raw(other).shape end
function methods.isSize(object, sizes) return tensor.sizes(shape_of(raw(object))) == tensor.sizes(sizes_from(sizes)) end
function methods.isSetTo(object, other)
  local a, b = raw(object), raw(other, "isSetTo")
  return a:numel() > 0 and a:data_ptr() == b:data_ptr() and a.shape == b.shape
    and table.concat(a:stride(), ",") == table.concat(b:stride(), ",")
end
function methods.totable(object)
  local x = raw(object, "totable")
  return (x.dtype == "int64" and x:to "float64" or x):totable()
end
function tensor.functions.totable(v) return v:totable() end
methods.isTensor = tensor.is
--- Returns the luminary tensor over the same memory.
function methods.raw(object) return raw(object) end

--- x:data(): Returns an FFI pointer to the first element; with `number`, its address as a number.
function methods.data(object, as_number) return tensor.pointer(raw(object), as_number) end
function methods.cdata(object) return methods.data(object) end

-- ---- types

--- x:type(): Returns "torch.FloatTensor"; x:type("torch.LongTensor") converts x to that type; x if it has it.
function methods.type(object, name)
  local x = raw(object, "type")
  local own = tensor.type_of(x)
  if name == nil then return own end
  if name == own then return object end
  return wrap(tensor.as_type(x, name))
end
function methods.typeAs(object, other) return methods.type(object, tensor.type_of(raw(other, "typeAs"))) end
for short in ("Float Double Long Int Byte Char Short Half"):gmatch "%a+" do
  local here, there = "torch." .. short .. "Tensor", "torch.Cuda" .. short:gsub("Float", "") .. "Tensor"
  methods[short:lower()] = function(object) return methods.type(object, here) end
  methods["cuda" .. short] = function(object) return methods.type(object, there) end
end
methods.cuda = methods.cudaFloat
--- x:getDevice(): Returns the number of the tensor's GPU, from 1; 0 for the CPU.
function methods.getDevice(object) return (tonumber(raw(object).device:match "cuda:(%d+)") or -1) + 1 end
function methods.real(object) return methods.type(object, tensor.type_for(tensor.default)) end

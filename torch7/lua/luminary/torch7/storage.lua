--- Implements Torch7's storages: the memory of a tensor as a 1-d list of numbers, `s[i]`, #s, which all views share.
local core = require "luminary.core"
local debug = require "debug"
local lists = require "luminary.base.lists"
local options = require "luminary.base.options"
local Source = require "luminary.file_formats.source"
local tensor = require "luminary.torch7.tensor"
local ffi = require "ffi"
local fail, ops = options.fail, core.ops

local flat_of = setmetatable({}, {__mode = "k"}) -- storage -> 1-d tensor
table.insert(tensor.objects, flat_of)
local methods = {}
local storage = {methods = methods, types = {}, constructors = {}}

function storage.is(v) return flat_of[v] ~= nil end
function storage.flat(v) return flat_of[v] end

local prototypes = {} -- "torch.FloatStorage" -> userdata whose metatable its objects share

--- Returns a storage over a 1-d tensor.
function storage.of(flat)
  local object = newproxy(prototypes[tensor.type_of(flat)])
  flat_of[object] = core.keep(flat)
  return object
end
local made = storage.of

--- Returns a storage of n elements, of a list of values, of a part of another storage by offset and size, or of the
--- content of a file.
function storage.new(dtype, first, offset, size)
  if flat_of[first] then
    local flat = flat_of[first]
    return made(ops.narrow(flat, 1, offset or 1, size or flat:numel() - (offset or 1) + 1))
  elseif type(first) == "table" then
    return made(core.tensor(lists.slice(first), {dtype = "float64"}):to(dtype)) -- it may be a LongStorage
  elseif type(first) == "string" then
    if offset then fail("torch.Storage: files are read, not shared; leave out the second argument") end
    local source = Source.open(first, {})
    local n = math.floor(source.size / Source.item_bytes[dtype])
    local bytes = source:bytes(0, n * Source.item_bytes[dtype])
    source:close()
    return made(core.view_as(bytes, dtype, {n}, {1}, 0))
  end
  return made(ops.empty({options.arg("torch.Storage", "size", first or 0, "natural")}, {dtype = dtype}))
end

-- Two storages are equal if they are the same memory.
local function equal(a, b)
  a, b = flat_of[a], flat_of[b]
  return a ~= nil and b ~= nil and a:data_ptr() == b:data_ptr() and a.dtype == b.dtype and a:numel() == b:numel()
end
local function newindex(object, key, value)
  local flat = flat_of[object]
  ops.select(flat, 1, options.arg("torch.Storage", "index", key, "count")):fill_(tensor.number(flat, value))
end
for typename in pairs(tensor.types) do
  local name, dtype = typename:gsub("Tensor", "Storage"), tensor.dtype_of(typename)
  local prototype = newproxy(true)
  local mt = debug.getmetatable(prototype)
  setmetatable(mt, {__index = methods})
  mt.__typename, mt.__library_object, mt.__newindex, mt.__eq = name, true, newindex, equal
  function mt.__torch_type() return name end
  function mt.__len(object) return flat_of[object]:numel() end
  function mt.__index(object, key)
    if type(key) ~= "number" then return mt[key] end
    return tonumber(ops.select(flat_of[object], 1, key):item())
  end
  function mt.__tostring(object) return tensor.storage_text(name, methods.totable(object)) end
  function mt.new(...) return made(tensor.as_type(flat_of[storage.new(dtype, ...)], typename)) end
  function mt.elementSize() return ops.empty({1}, {dtype = dtype}):element_size() end
  prototypes[typename], storage.types[name] = prototype, mt
  storage.constructors[name:match "%.(.*)$"] = tensor.constructor(mt)
end

function methods.size(object) return flat_of[object]:numel() end
function methods.elementSize(object) return flat_of[object]:element_size() end
--- s:data([as_number]): Returns a pointer to the first element, or its address as a number.
function methods.data(object, as_number) return tensor.pointer(flat_of[object], as_number) end
methods.cdata = methods.data
function methods.totable(object)
  local flat = flat_of[object]
  return (flat.dtype == "int64" and flat:to "float64" or flat):totable()
end
function methods.fill(object, v)
  flat_of[object]:fill_(tensor.number(flat_of[object], v))
  return object
end
function methods.copy(object, other)
  local from = flat_of[other] or tensor.is_sizes(other) and core.tensor(lists.slice(other))
    or tensor.raw(other, "copy"):reshape {-1}
  if from:numel() ~= flat_of[object]:numel() then
    fail("copy: the numbers of elements must match, got %d and %d", from:numel(), flat_of[object]:numel())
  end
  flat_of[object]:copy_(from)
  return object
end
--- Changes the size; keeps common elements. Tensors and storages that share the memory still do.
function methods.resize(object, n)
  local old = flat_of[object]
  n = options.arg("resize", "size", n, "natural")
  flat_of[object] = core.keep(n > old:numel() and tensor.lengthen(old, n) or ops.narrow(old, 1, 1, n))
  return object
end
--- s:string(): Returns the bytes of a CharStorage or ByteStorage as text; s:string(text) makes the text its content.
function methods.string(object, text)
  local flat = flat_of[object]
  if flat.dtype ~= "uint8" and flat.dtype ~= "int8" then fail("string: expected a CharStorage or a ByteStorage") end
  if text then
    flat_of[object] = core.keep(core.view_as(core.bytes_tensor(text), flat.dtype, {#text}, {1}, 0))
    return object
  end
  flat = ops.contiguous(flat)
  return flat:numel() > 0 and ffi.string(flat:data_ptr(), flat:numel()) or ""
end
function methods.retain(object) return object end -- does nothing: references are counted
methods.free = methods.retain
function methods.raw(object) return flat_of[object] end
--- s:type([name]) returns a storage's type, or converts it; s:float(), s:double(), … convert, too.
function methods.type(object, name)
  local own = debug.getmetatable(object).__typename
  if name == nil or name == own then return name and object or own end
  return made(tensor.as_type(flat_of[object], (tostring(name):gsub("Storage", "Tensor"))))
end
for name in pairs(storage.constructors) do
  methods[name:gsub("Storage", ""):lower()] = function(object) return methods.type(object, "torch." .. name) end
end

--- x:storage(): Returns all of x's memory, which views share; of no elements the storage that x was made of, or nil.
function tensor.methods.storage(object)
  local x = tensor.raw(object)
  if x:numel() == 0 then return tensor.empty_storages[object] end
  return made(ops.as_strided(x, {x:storage_size()}, {1}, {storage_offset = 0}))
end

--- Returns a view of a storage from an offset (1) on: of sizes [and strides] in lists or storages, or of pairs of a
--- size and a stride.
function storage.view(object, offset, first, second, ...)
  local flat = flat_of[object]
  offset = offset or 1
  local sizes, strides = {first or flat:numel() - offset + 1}, {second or 1}
  if first ~= nil and type(first) ~= "number" then
    sizes = tensor.sizes_from(first)
    strides = second and tensor.sizes_from(second) or Source.dense_strides(sizes)
  else
    local rest = {...}
    for i = 1, #rest, 2 do sizes[#sizes + 1], strides[#strides + 1] = rest[i], rest[i + 1] end
    if second == nil or second == -1 then strides = Source.dense_strides(sizes) end
  end
  if #sizes == 0 then return ops.narrow(flat, 1, 1, 0) end
  return ops.as_strided(flat, sizes, strides, {storage_offset = flat:storage_offset() + offset - 1})
end

tensor.storage = storage
return storage

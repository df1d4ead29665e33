--- Implements Torch7's storages: the memory of a tensor as a 1-d list of numbers, `s[i]`, #s. x:storage() ends at x's
--- last element; x:set(storage, offset, sizes [, strides]) makes a view of it.
local core = require "luminary.core"
local lists = require "luminary.base.lists"
local options = require "luminary.base.options"
local dense_strides = require("luminary.file_formats.source").dense_strides
local tensor = require "luminary.torch7.tensor"
local fail, ops = options.fail, core.ops

local flat_of = setmetatable({}, {__mode = "k"}) -- storage -> 1-d tensor
local prototype = newproxy(true)
local meta = getmetatable(prototype)
meta.__library_object = true
local methods = {}
local storage = {methods = methods}

function storage.is(v) return flat_of[v] ~= nil end
function storage.flat(v) return flat_of[v] end

local function made(flat)
  local object = newproxy(prototype)
  flat_of[object] = core.keep(flat)
  return object
end

--- Returns a storage over a 1-d tensor.
storage.of = made

--- Returns a storage of n elements, of a list of values, or of a part of another storage by offset and size.
function storage.new(dtype, first, offset, size)
  if flat_of[first] then
    local flat = flat_of[first]
    return made(ops.narrow(flat, 1, offset or 1, size or flat:numel() - (offset or 1) + 1))
  elseif type(first) == "table" then
    return made(core.tensor(lists.slice(first), {dtype = dtype})) -- it may be a LongStorage
  end
  return made(ops.empty({options.arg("torch.Storage", "size", first or 0, "natural")}, {dtype = dtype}))
end

function meta.__torch_type(object)
  return (tensor.type_of(flat_of[object]):gsub("Tensor", "Storage"))
end
function meta.__len(object) return flat_of[object]:numel() end
function meta.__index(object, key)
  if type(key) ~= "number" then return methods[key] end
  return ops.select(flat_of[object], 1, key):item()
end
function meta.__newindex(object, key, value)
  ops.select(flat_of[object], 1, options.arg("torch.Storage", "index", key, "count")):fill_(value)
end
function meta.__tostring(object)
  local lines = lists.map(flat_of[object]:totable(), function(v) return (" %.4g\n"):format(tonumber(v)) end)
  return table.concat(lines) .. ("[%s of size %d]\n"):format(meta.__torch_type(object), #object)
end

function methods.size(object) return flat_of[object]:numel() end
function methods.totable(object) return flat_of[object]:totable() end
function methods.fill(object, v)
  flat_of[object]:fill_(v)
  return object
end
function methods.copy(object, other)
  local from = flat_of[other] or tensor.raw(other, "copy"):reshape {-1}
  if from:numel() ~= flat_of[object]:numel() then
    fail("copy: the numbers of elements must match, got %d and %d", from:numel(), flat_of[object]:numel())
  end
  flat_of[object]:copy_(from)
  return object
end
--- Changes the size; keeps common elements. Tensors made of it before keep the old memory.
function methods.resize(object, n)
  local old = flat_of[object]
  local new = ops.empty({options.arg("resize", "size", n, "natural")}, {dtype = old.dtype, device = old.device})
  local both = math.min(n, old:numel())
  if both > 0 then ops.narrow(new, 1, 1, both):copy_(ops.narrow(old, 1, 1, both)) end
  flat_of[object] = core.keep(new)
  return object
end
--- s:string(): Returns the bytes of a CharStorage or ByteStorage as text; s:string(text) makes the text its content.
function methods.string(object, text)
  local flat = flat_of[object]
  if flat.dtype ~= "uint8" and flat.dtype ~= "int8" then fail("string: expected a CharStorage or a ByteStorage") end
  if text then
    flat_of[object] = core.keep(core.bytes_tensor(text):to(flat.dtype))
    return object
  end
  local out = lists.map(flat:to("uint8"):totable(), function(v) return string.char(v) end)
  return table.concat(out)
end
function methods.raw(object) return flat_of[object] end

function tensor.methods.storage(object)
  local x = tensor.raw(object)
  if x:numel() == 0 then return nil end
  local last = x:storage_offset() + 1
  for d = 1, x.ndim do last = last + (x:size(d) - 1) * x:stride(d) end
  return made(ops.as_strided(x, {last}, {1}, {storage_offset = 0}))
end

--- Returns a view of a storage from an offset (1) on with these sizes, which may be numbers, lists or storages.
function storage.view(object, offset, sizes, strides)
  local flat = flat_of[object]
  local function list(v) return flat_of[v] and flat_of[v]:totable() or type(v) == "table" and lists.slice(v) or v end
  offset, sizes, strides = offset or 1, list(sizes), list(strides)
  if type(sizes) == "number" then sizes = {sizes} end
  sizes = sizes or {flat:numel() - offset + 1}
  strides = strides or dense_strides(sizes)
  return ops.as_strided(flat, sizes, type(strides) == "number" and {strides} or strides,
    {storage_offset = flat:storage_offset() + offset - 1})
end

return storage

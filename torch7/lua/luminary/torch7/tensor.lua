--- Implements Torch7's tensors: objects over luminary's tensors, which are a storage, an offset, sizes and strides,
--- outside of autograd. Each type has a metatable with its methods, as in Torch7; tensor.define adds a function in all
--- its forms.
local core = require "luminary.core"
local debug = require "debug"
local ffi = require "ffi"
local lists = require "luminary.base.lists"
local options = require "luminary.base.options"
local dense_strides = require("luminary.file_formats.source").dense_strides
local fail, ops = options.fail, core.ops

-- errors of ops name the method that the script called (error.c)
local tensor = {functions = {}, methods = setmetatable({}, {__renames = true}), types = {}, constructors = {}}
local methods, types = tensor.methods, tensor.types
local raw_of = setmetatable({}, {__mode = "k"}) -- object -> tensor; userdata, since LuaJIT ignores __len of tables
local prototypes = {} -- "torch.FloatTensor" -> userdata whose metatable its objects share

local dtypes = {FloatTensor = "float32", DoubleTensor = "float64", HalfTensor = "float16", LongTensor = "int64",
  IntTensor = "int32", ShortTensor = "int16", CharTensor = "int8", ByteTensor = "uint8", BFloat16Tensor = "bfloat16"}
local names, gpu_names = {}, {}
for name, dtype in pairs(dtypes) do
  names[dtype] = "torch." .. name
  gpu_names[dtype] = "torch.Cuda" .. (dtype == "float32" and "Tensor" or name)
end
for dtype, name in pairs(gpu_names) do dtypes[name:match "%.(.*)$"] = dtype end

tensor.default = "float64" -- the dtype of torch.Tensor

local function is(v) return raw_of[v] ~= nil end

--- Returns "torch.FloatTensor" for a dtype.
function tensor.type_for(dtype) return names[dtype] end
--- Returns "torch.FloatTensor" for a luminary tensor, of one on a GPU "torch.CudaTensor", "torch.CudaLongTensor", ….
function tensor.type_of(x) return (x.is_cuda and gpu_names or names)[x.dtype] end

--- Returns x as a type, "torch.CudaTensor", has it: x itself if it is of that type.
function tensor.as_type(x, name)
  local on_gpu = tostring(name):find "Cuda" ~= nil
  return x:to(x.is_cuda ~= on_gpu and (on_gpu and "cuda" or "cpu") or x.device, tensor.dtype_of(name))
end

-- Returns a new object for a luminary tensor.
local function wrap(x)
  local dtype = x.dtype
  if dtype == "bool" then x, dtype = x:to "uint8", "uint8" end
  local object = newproxy(prototypes[(x.is_cuda and gpu_names or names)[dtype]])
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

--- Makes an object refer to a luminary tensor, and become of its type.
function tensor.rebind(object, x)
  local mt = types[tensor.type_of(x)]
  if debug.getmetatable(object) ~= mt then debug.setmetatable(object, mt) end
  raw_of[object] = core.keep(x)
end

--- Returns v with luminary's tensors for objects: a tensor, a plain table's copy, or another value unchanged.
function tensor.raw_all(v)
  if is(v) then return raw(v) end
  if type(v) ~= "table" or getmetatable(v) then return v end
  local out = {}
  for key, value in pairs(v) do out[key] = tensor.raw_all(value) end
  return out
end

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
  for i = 1, #other do s[i] = other[i] end
  return s
end
function SizeMethods.totable(s) return lists.slice(s) end
function SizeMethods.elementSize() return 8 end
Sizes.__index = SizeMethods
function Sizes.__eq(a, b) return table.concat(a, ",") == table.concat(b, ",") end
function Sizes.__tostring(s) return tensor.storage_text("torch.LongStorage", s) end
require("luminary.torch7.class").by_name["torch.LongStorage"] = Sizes -- for torch.setmetatable
function tensor.is_sizes(v) return type(v) == "table" and getmetatable(v) == Sizes end

-- Returns v truncated to an integer, as C converts indices and sizes.
local function truncated(v)
  if type(v) ~= "number" or v % 1 == 0 then return v end
  return v < 0 and math.ceil(v) or math.floor(v)
end

-- Returns a list of sizes passed as numbers, a list, or a LongStorage.
local function sizes_from(...)
  local first = ...
  if tensor.storage.is(first) then return first:totable() end
  local list = type(first) == "table" and lists.slice(first) or {...}
  for i, v in ipairs(list) do
    if type(v) ~= "number" and type(v) ~= "cdata" then
      fail("size %d must be an integer, got %s", i, options.describe(v))
    end
    list[i] = truncated(v)
  end
  return list
end

--- Returns sizes of these numbers, a list or a LongStorage: the type of x:size() and #x, a LongStorage with memory of
--- its own.
function tensor.sizes(list) return setmetatable(sizes_from(list), Sizes) end

--- Returns the dtype of "torch.FloatTensor" or "FloatTensor".
function tensor.dtype_of(name)
  local short = tostring(name):gsub("^torch%.", "")
  if short == "Tensor" then return tensor.default end
  return dtypes[short] or fail("torch: unknown tensor type '%s'", tostring(name))
end

-- Returns a table of values as core.tensor takes them: with luminary's tensors, and numbers for strings of digits.
local function numbers_in(v, depth)
  if type(v) ~= "table" then return is(v) and raw(v) or type(v) == "string" and tonumber(v) or v end
  if depth > 8 then fail("torch.Tensor: a table must have at most 8 levels of tables") end
  return lists.map(v, function(each) return numbers_in(each, depth + 1) end)
end

-- Creates a tensor as tensor.new does; memory of its own is on this device.
local function new(device, dtype, first, ...)
  if is(first) then
    if select("#", ...) > 0 then return new(device, dtype, ...) end
    return wrap(ops.detach(raw(first):to(dtype)))
  end
  if tensor.storage.is(first) and (tensor.storage.flat(first).dtype ~= "int64" or dtype == "int64") then
    local object = wrap(tensor.storage.view(first, ...):to(dtype))
    if raw_of[object]:numel() == 0 then tensor.empty_storages[object] = first end
    return object
  end
  if core.is_tensor(first) then return wrap(first:detach():to(dtype)) end
  if type(first) == "table" and not (tensor.is_sizes(first) and dtype ~= "int64") then
    if #first == 0 then return wrap(ops.empty({0}, {dtype = dtype})) end
    return wrap(core.tensor(numbers_in(first, 1), {dtype = "float64"}):to(dtype))
  end
  local list = first == nil and {0} or sizes_from(first, ...)
  for i = 1, #list do options.arg("torch.Tensor", "size " .. i, list[i], "integer") end
  return wrap(ops.empty(#list > 0 and list or {0}, {dtype = dtype, device = device}))
end

--- Creates a torch.FloatTensor or other tensor: of sizes, uninitialized; of a table of values; of sizes as a
--- LongStorage; of a storage [, offset [, sizes [, strides]]]; of a tensor, whose memory is shared if the type is the
--- same, or its type for the sizes that follow it, as x:new(2, 3) passes them.
function tensor.new(dtype, ...) return new(nil, dtype, ...) end

-- ---- numbers and operands

tensor.empty_storages = setmetatable({}, {__mode = "k"}) -- tensor without elements -> the storage that it was made of
local bits = {uint8 = 8, int8 = 8, int16 = 16, int32 = 32, int64 = 64}

--- Returns v as C converts it to x's dtype: integers are truncated, and wrap.
function tensor.number(x, v)
  local width = bits[x.dtype]
  if not width or v ~= v or v == math.huge or v == -math.huge then return v end
  v = v < 0 and math.ceil(v) or math.floor(v)
  local top = 2 ^ width
  if width == 64 or v >= 0 and v < top / 2 then return v end
  v = v % top
  return x.dtype ~= "uint8" and v >= top / 2 and v - top or v
end

--- Returns y with x's sizes; only the numbers of elements must match, as in Torch7.
function tensor.fitted(who, x, y)
  if x.shape == y.shape then return y end
  if x:numel() ~= y:numel() then
    fail("%s: the numbers of elements must match, got sizes %s and %s", who, table.concat(x.shape, "x"),
      table.concat(y.shape, "x"))
  end
  return ops.reshape(y, x.shape)
end

local c_types = {float32 = "float *", float64 = "double *", int64 = "int64_t *", int32 = "int32_t *",
  int16 = "int16_t *", int8 = "int8_t *", uint8 = "uint8_t *"}
--- Returns an FFI pointer to the first element, or its address as a number.
function tensor.pointer(x, as_number)
  local p = ffi.cast(c_types[x.dtype] or "void *", x:data_ptr())
  return as_number and tonumber(ffi.cast("intptr_t", p)) or p
end

-- ---- results in given tensors

--- Returns the address of the first element of a tensor's storage.
function tensor.base_of(x) return tensor.pointer(x, true) - x:storage_offset() * x:element_size() end
local base_of = tensor.base_of

tensor.objects = {raw_of} -- tables of objects and the luminary tensors that they refer to
--- Returns a tensor of `count` elements that begins with x's storage and ends with zeros. Objects that shared x's
--- storage now share its.
function tensor.lengthen(x, count)
  local size, longer = x:storage_size(), ops.zeros({count}, {dtype = x.dtype, device = x.device})
  if size == 0 then return longer end
  ops.narrow(longer, 1, 1, size):copy_(ops.as_strided(x, {size}, {1}, {storage_offset = 0}))
  local base, version = base_of(x), x._version -- a storage counts the writes to it: few others have the same number
  for _, objects in ipairs(tensor.objects) do
    for object, t in pairs(objects) do
      if t._version == version and t.dtype == x.dtype and t:numel() > 0 and base_of(t) == base then
        local all = objects ~= raw_of and t:numel() == size -- a storage
        objects[object] = core.keep(all and longer or ops.as_strided(longer, t.shape, t:stride(),
          {storage_offset = t:storage_offset()}))
      end
    end
  end
  return longer
end

-- Changes the sizes of x, an object, over the same storage, which grows if needed; the storage's elements keep their
-- order.
local function resize(object, sizes)
  local x = raw_of[object]
  if x.shape == sizes then return x end
  local n, offset = lists.product(sizes), x:storage_offset()
  if #sizes == 0 or n == 0 then
    x = ops.empty({0}, {dtype = x.dtype, device = x.device})
  else
    if offset + n > x:storage_size() then x = tensor.lengthen(x, offset + n) end
    x = ops.as_strided(x, sizes, dense_strides(sizes), {storage_offset = offset})
  end
  raw_of[object] = core.keep(x)
  return x
end

--- Makes the object hold values, over its memory if that is large enough.
local function put(object, values)
  resize(object, values.shape):copy_(values)
  return object
end

-- Makes the object a view of the values' memory, as far as it has their dtype.
local function put_view(object, values)
  if raw_of[object].dtype ~= values.dtype then return put(object, values) end
  raw_of[object] = core.keep(values)
  return object
end

-- Makes the object hold a matrix in column-major order, as LAPACK's functions of Torch7 return them.
local function put_columns(object, values)
  local x = resize(object, values.shape)
  if x.ndim == 2 and x:is_contiguous() then
    x = ops.t(ops.view(x, {x:size(2), x:size(1)}))
    raw_of[object] = core.keep(x)
  end
  x:copy_(values)
  return object
end
local function columns(x) return x.ndim == 2 and ops.t(ops.contiguous(ops.t(x))) or x end

-- ---- the forms of a function

-- One letter for each argument: a tensor, number, boolean, string, table (or storage), function, or nil.
local letters = {number = "n", boolean = "b", string = "s", table = "T", ["function"] = "f", ["nil"] = "0", cdata = "n"}
local function letter(v)
  if raw_of[v] or core.is_tensor(v) then return "t" end
  return letters[type(v)] or tensor.storage.is(v) and "T" or "?"
end

-- Fills plan with the positions of the parameters of a signature, from the i-th argument on; returns true if all match.
local function match(signature, p, kinds, i, plan)
  local wanted, kind = signature[p], kinds:sub(i, i)
  if wanted == nil then return not kinds:find("[^0]", i) end
  if wanted == "r" then
    plan[p] = 1
    return match(signature, p + 1, kinds, i, plan)
  elseif wanted == "*" then
    plan[p], plan.rest = i, true
    return true
  end
  local optional = #wanted > 1
  if kind == wanted:sub(1, 1) or optional and kind == "0" then
    plan[p] = i
    if match(signature, p + 1, kinds, i + 1, plan) then return true end
  end
  plan[p] = 0
  return optional and match(signature, p + 1, kinds, i, plan)
end

-- Returns the plan of a call with arguments of these kinds: the number of results, and the position of each parameter;
-- nil if there is none.
local function plan_of(entry, as_method, kinds)
  for results = as_method and entry.in_place and 1 or 0, entry.results do
    for _, signature in ipairs(as_method and entry.method_signatures or entry.signatures) do
      local plan = {results = results}
      if not kinds:sub(1, results):find "[^t]" and match(signature, 1, kinds, results + 1, plan) then return plan end
    end
  end
end

local words = {t = "tensor", n = "number", b = "boolean", s = "string", T = "table", f = "function", ["0"] = "nil",
  ["?"] = "userdata", ["*"] = "…", r = "tensor"}
local function described(list)
  return "(" .. table.concat(lists.map(list, function(k)
    return #k > 1 and k ~= "…" and "[" .. words[k:sub(1, 1)] .. "]" or words[k]
  end), ", ") .. ")"
end

local function refuse(entry, kinds)
  fail("torch.%s: expected %s%s, got %s", entry.name, table.concat(lists.map(entry.signatures, described), " or "),
    entry.results > 0 and ", after result tensors if any" or "", described(lists.parts(kinds, ".")))
end

-- Returns what compute returned: tensors as objects, or in the given result tensors.
local function finish(entry, r1, r2, r3, a, b, c)
  if type(a) ~= "userdata" then return a end
  local store, made = entry.put, entry.made
  a = r1 and store(r1, a) or made(a)
  if b == nil then return a end
  b = r2 and store(r2, b) or made(b)
  if c == nil then return a, b end
  return a, b, r3 and store(r3, c) or made(c)
end

local PARAMETERS, SOURCE = "a, b, c, d, e, f, g", debug.getinfo(1, "S").source -- errors name the script's line
-- Returns the function that runs the calls of an entry with arguments of these kinds.
local function compile(entry, as_method, kinds)
  local plan = plan_of(entry, as_method, kinds)
  if not plan then
    if entry.of_numbers and kinds:find "^n+$" then return entry.of_numbers end
    refuse(entry, kinds)
  end
  local function argument(i) return ("abcdefg"):sub(i, i) end
  local list, results = {}, {}
  for p, i in ipairs(plan) do
    list[p] = i == 0 and "nil" or kinds:sub(i, i) == "t" and ("(raw_of[%s] or %s)"):format(argument(i), argument(i))
      or argument(i)
  end
  for i = 1, 3 do results[i] = i <= plan.results and argument(i) or "nil" end
  if plan.rest then
    for i = plan[#plan] + 1, 7 do list[#list + 1] = argument(i) end
    list[#list + 1] = "..."
  end
  local values = table.concat(list, ", ")
  local update = entry.update and plan.results == 1 and plan[1] == 1
    and ("if entry.update(%s) then return a end"):format(values)
  return assert(loadstring(([[
    local entry, raw_of, finish = ...
    local compute = entry.compute
    return function(%s, ...)
      %s
      return finish(entry, %s, compute(%s))
    end]]):format(PARAMETERS, update or "", table.concat(results, ", "), values), SOURCE))(entry, raw_of, finish)
end

local function following(node, v)
  local kind = raw_of[v] and "t" or letter(v)
  local found = node[kind]
  if not found then
    found = {kinds = node.kinds .. kind}
    node[kind] = found
  end
  return found
end

-- Returns the function or the method of an entry, which compiles a function for each new sequence of kinds of
-- arguments.
local function form(entry, as_method)
  local root = {kinds = ""}
  return function(a, b, c, d, e, f, g, ...)
    local node = following(root, a)
    if b ~= nil or c ~= nil or d ~= nil or e ~= nil or f ~= nil then
      node = following(node, b)
      if c ~= nil or d ~= nil or e ~= nil or f ~= nil then
        node = following(node, c)
        if d ~= nil or e ~= nil or f ~= nil then
          node = following(node, d)
          if e ~= nil or f ~= nil then
            node = following(node, e)
            if f ~= nil then node = following(node, f) end
            if g ~= nil then node = following(node, g) end
          end
        end
      end
    end
    local run = node.run
    if not run then
      run = compile(entry, as_method, node.kinds)
      node.run = run
    end
    return run(a, b, c, d, e, f, g, ...)
  end
end

-- A result tensor of the same number of elements keeps its sizes.
local function put_by_count(object, values)
  local x = raw_of[object]
  return put(object, x:numel() == values:numel() and ops.reshape(values, x.shape) or values)
end
local puts = {view = put_view, columns = put_columns, count = put_by_count}

local function words_of(text) return lists.parts(text) end

--- Defines torch.name and x:name from signatures, such as "t n? t": letters of the parameters (t tensor, n number, b
--- boolean, s string, T table or storage, r the result itself, * all further arguments), with ? if optional.
--- compute(parameters…) gets luminary's tensors and returns one to three, or a number. Options:
---   in_place     x:name(…) writes into x, which is also the source, unless that is passed, too
---   results = 1  the number of result tensors, which may come before the parameters
---   methods      signatures of x:name, if these differ
---   put          how results are stored: a copy (default), "view", "columns", "count"
---   update(x, …) computes x in place, if it returns true
---   of_numbers   the function of numbers alone
function tensor.define(name, signatures, compute, how)
  how = how or {}
  local of_methods = {}
  for _, text in ipairs(how.methods or signatures) do
    of_methods[#of_methods + 1] = text
    if how.in_place and text:sub(1, 1) == "t" then of_methods[#of_methods + 1] = "r" .. text:sub(2) end
  end
  local entry = {
    name = name, compute = compute, in_place = how.in_place, results = how.results or 1, update = how.update,
    put = puts[how.put] or put, made = how.put == "columns" and function(x) return wrap(columns(x)) end or wrap,
    of_numbers = how.of_numbers, signatures = lists.map(signatures, words_of),
    method_signatures = lists.map(of_methods, words_of),
  }
  tensor.functions[name], methods[name] = form(entry, false), form(entry, true)
end

-- ---- indexing

local function number_or_view(x) return x.ndim == 0 and tonumber(x:item()) or wrap(x) end

-- Returns the view x[{i, {a, b}, {}}] of Torch7.
local function part(x, index)
  local dim = 1
  for i = 1, #index do
    local at = index[i]
    if type(at) == "number" then
      x = ops.select(x, dim, truncated(at))
    else
      options.arg("torch: x[{…}]", "entry " .. i, at, "table")
      local n = x:size(dim)
      local first, last = truncated(at[1]) or 1, truncated(at[2] or at[1]) or n
      if first < 0 then first = n + 1 + first end
      if last < 0 then last = n + 1 + last end
      x = ops.narrow(x, dim, first, last - first + 1)
      dim = dim + 1
    end
  end
  return x
end

local function place_of(x, key)
  if type(key) == "number" then return ops.select(x, 1, truncated(key)) end
  return (type(key) == "table" or tensor.storage.is(key)) and part(x, key)
end

local function newindex(object, key, v)
  local x = raw_of[object]
  if is(key) then return methods[is(v) and "maskedCopy" or "maskedFill"](object, key, v) end
  local place = place_of(x, key) or fail("torch: cannot set field '%s' of a tensor", tostring(key))
  if is(v) then
    place:copy_(tensor.fitted("torch: x[i] = y", place, raw(v)))
  else
    place:fill_(tensor.number(place, options.arg("torch: x[i] = v", "v", v, "number")))
  end
end

local function shape_of(x) return x:numel() > 0 and x.shape or {} end

-- ---- types

local function arithmetic(name)
  return function(a, b)
    if is(a) then return tensor.functions[name](a, b) end
    if name == "csub" then return tensor.functions.add(methods.neg(methods.clone(b)), a) end
    if name == "div" then return tensor.functions.mul(methods.cinv(methods.clone(b)), a) end
    return tensor.functions[name](b, a)
  end
end

-- Multiplies by a number; computes the dot product of vectors, or the matrix product, as Torch7 does.
local function multiply(a, b)
  if not is(a) or not is(b) then return arithmetic "mul"(a, b) end
  a, b = raw_of[a], raw_of[b]
  return number_or_view(a.ndim == 1 and b.ndim == 1 and ops.dot(a, b) or ops.matmul(a, b))
end

local function divide(a, b) return (is(a) and is(b) and tensor.functions.cdiv or arithmetic "div")(a, b) end

--- Returns the table torch.FloatTensor for a metatable: it constructs, and new fields are methods.
function tensor.constructor(mt)
  return setmetatable({}, {__index = mt, __newindex = mt, __call = function(_, ...) return mt.new(...) end})
end

for name, dtype in pairs(dtypes) do
  local typename = "torch." .. name
  local prototype = newproxy(true)
  local mt = debug.getmetatable(prototype)
  setmetatable(mt, {__index = methods})
  mt.__typename, mt.__library_object, mt.__newindex = typename, true, newindex
  function mt.__torch_type() return typename end
  function mt.__index(object, key)
    if type(key) == "string" then return mt[key] end
    if is(key) then return methods.maskedSelect(object, key) end
    local place = place_of(raw_of[object], key)
    if place then return number_or_view(place) end
  end
  mt.__add, mt.__sub, mt.__div, mt.__mul = arithmetic "add", arithmetic "csub", divide, multiply
  mt.__mod = arithmetic "remainder"
  function mt.__unm(a) return methods.neg(methods.clone(a)) end
  function mt.__len(object) return tensor.sizes(shape_of(raw_of[object])) end
  function mt.__tostring(object) return mt.__tostring__(object) end
  function mt.new(...) return methods.type(new(name:find "^Cuda" and "cuda" or nil, dtype, ...), typename) end
  prototypes[typename], types[typename], tensor.constructors[name] = prototype, mt, tensor.constructor(mt)
end

tensor.truncated, tensor.sizes_from, tensor.shape_of, tensor.part = truncated, sizes_from, shape_of, part
tensor.resize, tensor.put, tensor.put_by_count, tensor.number_or_view = resize, put, put_by_count, number_or_view

--- Returns the sum of two gradients, which may be tables; a may be nil.
function tensor.added(a, b)
  if a == nil then return b end
  if is(a) then return a + b end
  return lists.map(a, function(v, i) return tensor.added(v, b[i]) end)
end

return tensor

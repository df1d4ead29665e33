--- Reads PyTorch's files, torch.save's zip archives (since 1.6) and older ones, by luminary's own unpickler
--- (pickle.lua), which runs no code; writes zip archives that torch.load(path, weights_only=True) reads.
local core = require "luminary.core"
local class = require "luminary.base.class"
local options = require "luminary.base.options"
local printable_name = require "luminary.base.printable_name"
local pickle = require "luminary.file_formats.pickle"
local lists = require "luminary.base.lists"
local python_values = require "luminary.file_formats.python_values"
local Source = require "luminary.file_formats.source"
local zip = require "luminary.file_formats.zip"
local ffi = require "ffi"
local fail = options.fail

local torch_file = {}

-- The number closest to 0x1950a86a20f9469cfc6c, the integer in the first pickle of older files.
local MAGIC = 119547037146038801333356

-- Maps storage classes to dtypes, and below those of quantized storages to their integers' dtypes.
local storages = {
  DoubleStorage = "float64", FloatStorage = "float32", HalfStorage = "float16", BFloat16Storage = "bfloat16",
  LongStorage = "int64", IntStorage = "int32", ShortStorage = "int16", CharStorage = "int8", ByteStorage = "uint8",
  BoolStorage = "bool", UntypedStorage = "uint8", ComplexFloatStorage = "complex64",
  ComplexDoubleStorage = "complex128", QInt8Storage = "qint8", QUInt8Storage = "quint8", QInt32Storage = "qint32",
  QUInt4x2Storage = "quint4x2", QUInt2x4Storage = "quint2x4",
}
local quantized_as = {qint8 = "int8", quint8 = "uint8", qint32 = "int32"}
local storage_of = {} -- the classes that are written
for name, dtype in pairs(storages) do
  if name ~= "UntypedStorage" and not (dtype:find "^q" or dtype:find "^complex") then storage_of[dtype] = name end
end
local aliases = {
  float = "float32", double = "float64", half = "float16", long = "int64", int = "int32", short = "int16",
}

local function lacking(dtype) return pickle.lost("dtype " .. printable_name(tostring(dtype), 40), {lacking = true}) end

local function is_dtype(name)
  return aliases[name] or name:find "^u?int%d+$" or name:find "^b?float%d+" or name:find "^b?complex%d+$"
    or name:find "^qu?int" or name:find "^bits%d" or name == "bool"
end

-- ---- tensors

local LEAST_BYTES = 64 -- the least size of a tensor's description in a pickle

-- Returns a tensor of a dtype over a storage that `persistent` returned, or a lost value.
local function tensor_over(machine, dtype, storage, at, sizes, strides)
  local source = machine.cursor.source
  if not machine.storages[storage] or type(at) ~= "number" or type(sizes) ~= "table" or type(strides) ~= "table" then
    machine:fail "tensor without storage, offset, sizes or strides"
  end
  local what = ("the tensor over storage '%s'"):format(printable_name(storage.key, 40))
  local item, memory = Source.item_bytes[dtype], storage.memory
  if not item then return lacking(dtype) end
  local numel = source:numel(sizes, what)
  if #sizes ~= #strides or not (at >= 0 and at <= 2 ^ 50 and at % 1 == 0) then
    machine:fail "offset, sizes and strides of a tensor do not match"
  end
  machine.cursor:copies(LEAST_BYTES)
  for _, stride in ipairs(strides) do
    if type(stride) ~= "number" or stride < 0 or stride > 2 ^ 53 or stride % 1 ~= 0 then
      source:malformed("pickle", "%s has the stride %s", what, printable_name(tostring(stride), 40))
    end
  end
  if memory.swap and dtype ~= storage.dtype and item > 1 then return pickle.lost("big-endian elements of " .. dtype) end
  if dtype == "bool" and not memory.checked then
    source:check_bools(memory.bytes, what)
    memory.checked = true
  end
  memory.placed = memory.placed or source:placed(memory.bytes)
  at = numel > 0 and at or 0 -- views without elements may begin beyond the end
  return source:view(memory.placed, dtype, {unpack(sizes)}, strides, at * item, what)
    or pickle.lost(Source.TOO_LARGE, {lacking = true})
end

-- Returns f(…), which makes numel elements, or a lost value if the file is too small for that number.
local function within_limit(machine, numel, f, ...)
  machine.elements = (machine.elements or 0) + numel
  if machine.elements <= machine.cursor.source.size + Source.MOST_REPEATED then return f(...) end
  return pickle.lost "it has too many elements for the file's size; in Python, save x.to_dense() or x.clone()"
end

-- Returns a tensor that requires a gradient if the file says so.
local function with_grad(t, requires_grad)
  if requires_grad ~= true or not core.is_tensor(t) or not core.is_floating_point(t.dtype) then return t end
  return t:detach():requires_grad_(true)
end

-- Records the skipped state of a tensor, if there is any: state is true or a table of it.
local function note(machine, t, what, state)
  local is_any = state == true or pickle.is_lost(state)
    or machine.kind[state] and next(state) ~= nil and not state._is_buffer
  if core.is_tensor(t) and is_any then
    machine.notes[t] = machine.notes[t] or {}
    table.insert(machine.notes[t], pickle.lost(what, {lacking = true}))
  end
  return t
end

-- Functions for a view's bits; complex numbers are pairs.
local bits = {
  neg = function(t) return t:neg() end,
  conj = function(t) return t * core.tensor({1, -1}, {dtype = t.dtype, device = t.device}) end,
}

-- Returns a function of _rebuild_tensor's arguments, of which dtype_at and bits_at exist only in some versions.
local function rebuild(dtype_at, bits_at)
  return function(args, machine)
    local dtype = args[dtype_at] or args[1].dtype
    local t = tensor_over(machine, dtype, args[1], args[2], args[3], args[4])
    for bit, is_set in pairs(machine.kind[args[bits_at]] == "dict" and args[bits_at] or {}) do
      local f = (bit == "neg" or dtype:find "complex") and bits[bit]
      if is_set and core.is_tensor(t) then
        t = f and within_limit(machine, t:numel(), f, t) or pickle.lost("it has unknown properties")
      end
    end
    return note(machine, with_grad(t, args[5]), "its backward hooks", args[6])
  end
end

-- Adds values [n, …] at indices [dims, n], from 0, to zeros whose first dims are those of `size`.
local function scattered(machine, indices, values, size)
  local dims, n, numel = indices.shape[1], indices.shape[2], 1
  local index, full = core.ops.zeros({n}, {dtype = "int64", device = indices.device}), {unpack(size, 1, dims)}
  assert(n == values.shape[1] and dims <= #size)
  for d = 1, dims do
    assert(n == 0 or indices[d]:min():item() >= 0 and indices[d]:max():item() < size[d])
    index, numel = index * size[d] + indices[d], numel * size[d]
  end
  for d = 2, values:dim() do full[#full + 1] = values.shape[d] end
  local rows = {numel, unpack(values.shape, 2)}
  return within_limit(machine, machine.cursor.source:numel(rows, "a sparse tensor"), function()
    local zeros = core.ops.zeros(rows, {dtype = values.dtype, device = values.device})
    return core.ops.index_add_(zeros, 1, index + 1, values):view(full)
  end)
end

-- Returns a dense tensor from starts of rows or columns [batch…, rows + 1], columns or rows [batch…, n] and values
-- [batch…, n, block…, …]. Single elements are blocks of 1.
local function dense_from_compressed(machine, layout, starts, others, values, size)
  local batch, n, i, k = starts:dim() - 1, others.shape[-1], 1, 2 -- i: the dim that `starts` divides
  if layout:find "c$" then i, k = 2, 1 end
  local is_blocked = layout:find "bs"
  local block = is_blocked and {unpack(values.shape, batch + 2, batch + 3)} or {1, 1}
  local last = {unpack(values.shape, batch + (is_blocked and 4 or 2))}
  local lines, across = size[batch + i] / block[i], size[batch + k] / block[k]
  local counts = (starts:narrow(-1, 2, lines) - starts:narrow(-1, 1, lines)):reshape(-1):to "int64"
  assert(starts:select(-1, 1):eq(0):all():item() and starts:select(-1, -1):eq(n):all():item()
    and counts:ge(0):all():item() and starts:numel() * n == others:numel() * (lines + 1))
  local line = core.ops.arange(counts:numel(), {dtype = "int64", device = counts.device}):repeat_interleave(counts)
  local t = scattered(machine, core.ops.stack {line, others:reshape(-1):to "int64"},
    values:reshape {others:numel(), block[1], block[2], unpack(last)}, {counts:numel(), across})
  if not core.is_tensor(t) then return t end
  local split, order = {starts:numel() / (lines + 1), lines, across, unpack(block)}, {1, 1 + i, 4, 1 + k, 5}
  local shape = {unpack(size, 1, batch + 2)}
  for d, v in ipairs(last) do split[5 + d], order[5 + d], shape[#shape + 1] = v, 5 + d, v end
  return t:view(split):permute(order):reshape(shape)
end

-- Returns a dense tensor from (layout, parts).
local function sparse(args, machine)
  local layout, data = args[1]:match "^sparse_([cb][so][orc])$", args[2]
  local numel, size = 0, data[layout == "coo" and 3 or 4]
  for i = 1, layout == "coo" and 2 or 3 do numel = numel + data[i]:numel() end
  local t = within_limit(machine, numel, function()
    if layout == "coo" then return scattered(machine, data[1], data[2], size) end
    return dense_from_compressed(machine, layout, unpack(data))
  end)
  for d, n in ipairs(core.is_tensor(t) and size or {}) do assert(t.shape[d] == n) end
  return t
end

-- Returns float32 from (storage, offset, sizes, strides, (scheme, scale, zero point [, dim]), requires_grad, hooks).
local function quantized(args, machine)
  local as = quantized_as[args[1].dtype]
  if not as then return lacking(args[1].dtype) end
  local q = tensor_over(machine, as, args[1], args[2], args[3], args[4])
  local _, scale, zero, dim = unpack(args[5])
  return with_grad(within_limit(machine, q:numel() + (dim and q.shape[dim + 1] or 0), function()
    if dim then -- one scale and zero point for each index of dim
      local sizes = {}
      for d = 1, q:dim() do sizes[d] = d == dim + 1 and q.shape[d] or 1 end
      scale, zero = scale:reshape(sizes):float(), zero:reshape(sizes):double()
    end
    return (q:double() - zero):float() * scale
  end), args[6])
end

-- ---- functions that a pickle may call

local known = setmetatable({["torch.Tensor"] = pickle.opaque("torch.Tensor", {})}, {__index = python_values})

-- Defines a function of tensors by its names; a dry run, which has no bytes yet, does not call it.
local function tensors(module, words, f, takes_lost)
  for name in words:gmatch "%S+" do
    known[module .. name] = pickle.callable(module .. name, function(args, machine)
      return machine.dry and pickle.NONE or f(args, machine)
    end, takes_lost)
  end
end

tensors("torch._utils.", "_rebuild_tensor _rebuild_tensor_v2", rebuild(nil, 7))
tensors("torch._utils.", "_rebuild_tensor_v3", rebuild(7, 8))
tensors("torch._utils.", "_rebuild_parameter _rebuild_parameter_with_state", function(args, machine)
  return note(machine, with_grad(args[1], args[2]), "its attributes", args[4])
end)
tensors("torch._tensor.", "_rebuild_from_type _rebuild_from_type_v2", function(args, machine)
  local t, name = machine:call(args[1], args[3]), args[2].name
  return note(machine, note(machine, t, "its class " .. name, name ~= "torch.Tensor"), "its attributes", args[4])
end, true)
tensors("torch._utils.", "_rebuild_device_tensor_from_cpu_tensor _rebuild_device_tensor_from_numpy _rebuild_xla_tensor",
  function(args, machine)
    local t = machine:plain(args[1])
    return pickle.is_lost(t) and t or with_grad(within_limit(machine, t:numel(), t.to, t, args[2]), args[4])
  end)
tensors("torch._utils.", "_rebuild_sparse_tensor", sparse)
tensors("torch._utils.", "_rebuild_qtensor", quantized)
for name, why in pairs {
  _rebuild_meta_tensor_no_storage = "a tensor without data", _rebuild_nested_tensor = "a nested tensor",
  _rebuild_wrapper_subclass = "the data of its class are in its attributes",
} do tensors("torch._utils.", name, function() return pickle.lost(why) end, true) end

known["torch.serialization._get_layout"] = pickle.callable("torch.layout", function(args)
  return args[1]:sub(1, 40):gsub("^torch%.", ""):sub(1)
end)
known["torch.device"] = pickle.callable("torch.device", function(args)
  return type(args[2]) == "number" and ("%s:%d"):format(tostring(args[1]), args[2]) or args[1] or pickle.NONE
end)
for name, dtype in pairs(storages) do -- "torch.cuda." is older than 1.12
  for _, module in ipairs {name == "UntypedStorage" and "torch.storage." or "torch.", "torch.cuda."} do
    known[module .. name] = pickle.opaque(module .. name, {dtype = dtype})
  end
end

local function names(full)
  local dtype = full:match "^torch%.([%w_]+)$"
  if full:find "^torch%.return_types%.%w+$" then return python_values["builtins.tuple"] end
  if not known[full] and dtype and is_dtype(dtype) then return aliases[dtype] or dtype end
  return known[full] or dtype and dtype:match "^per_[%w_]+$"
end

-- Returns a persistent id as {key, dtype, numel}: ("storage", class, key, location, numel [, view]).
local function read_id(id, machine)
  local kind, key, numel = id[2], id[3], id[5]
  if id[1] ~= "storage" or type(kind) ~= "table" or not kind.dtype or type(key) ~= "string" or type(numel) ~= "number"
    or not (numel >= 0 and numel <= 2 ^ 50 and numel % 1 == 0) then
    machine:fail "a persistent id is not a storage"
  end
  if id[6] ~= nil and id[6] ~= pickle.NONE then machine:fail "views of storages are not supported" end
  return key, kind.dtype, numel, Source.item_bytes[quantized_as[kind.dtype] or kind.dtype] or 1
end

-- Returns a function that reads a storage; the same object for the same key. bytes_of(key, n, dtype, numel) returns its
-- n bytes, and true if they were big-endian.
local function storage_reader(source, bytes_of)
  return function(id, machine)
    local by_key = machine.by_key
    local key, dtype, numel, item = read_id(id, machine)
    local memory = by_key[key]
    if not memory then
      local ok, bytes, swap = pcall(bytes_of, key, numel * item, quantized_as[dtype] or dtype, numel)
      memory = {bytes = ok and bytes, n = numel * item, swap = swap, lost = not ok and pickle.lost(source:why(bytes))}
      by_key[key] = memory
    end
    if memory.lost then return memory.lost end
    if memory.n ~= numel * item then machine:fail("storage '%s' has two sizes", printable_name(key, 40)) end
    memory[dtype] = memory[dtype] or pickle.opaque("a storage", {
      key = key, dtype = dtype, memory = memory,
      value = function(self) return tensor_over(machine, dtype, self, 0, {numel}, {1}) end,
    })
    machine.storages[memory[dtype]] = true
    return memory[dtype]
  end
end

-- Returns the value of pickle.load, and a list of descriptions of lost parts, with `advice`; fails for parts that may
-- not be lost.
local function with_lost(source, value, all_lost)
  local list = {}
  for i, each in ipairs(all_lost) do
    local name, lost = each.path == "" and "the whole value" or "'" .. each.path .. "'", each.lost
    if not (lost.lacking or source.opts.skip_unreadable) then
      source:fail("%s: %s%s%s", name, lost.why, lost.advice and ": " .. lost.advice or "", each.path == "" and ""
        or "; lm.load(path, {skip_unreadable = true}) leaves it out")
    end
    list[i] = ("%s (%s)"):format(name, lost.why)
    list.advice = list.advice or lost.advice
  end
  if value == nil and #list > 0 then value = {} end
  return value, list
end

-- ---- zip

local LARGEST_PACKED = 2 ^ 24

--- Returns the value in torch.save's archive, whose pickle is `entry`, and a list of its lost parts.
function torch_file.load_zip(archive, entry)
  local source, prefix = archive.source, entry.name:match "^(.*)data%.pkl$"
  if archive.by[prefix .. "constants.pkl"] then
    source:fail "TorchScript programs are not supported; in Python: torch.save(net.state_dict(), path)"
  end
  if entry.method ~= 0 and entry.size > LARGEST_PACKED then -- torch.save does not compress
    source:malformed("zip archive", "the pickle of %.0f bytes is compressed to %.0f", entry.size, entry.packed)
  end
  local order = archive.by[prefix .. "byteorder"]
  local order_text = order and order.size <= 16 and archive:read(order):text(0, order.size) or "little"
  local function bytes_of(key, n, dtype)
    local data = archive.by[prefix .. "data/" .. key]
    if not data then source:malformed("file", "storage '%s' is missing", printable_name(key, 40)) end
    if data.size ~= n then
      source:malformed("zip archive", "storage '%s' has %.0f bytes, expected %.0f", printable_name(key, 40), data.size,
        n)
    end
    local bytes, swap = archive:bytes(data), order_text == "big"
    return swap and Source.swapped(bytes, dtype) or bytes, swap
  end
  return with_lost(source, pickle.load(archive:read(entry):cursor(0), names, storage_reader(source, bytes_of)))
end

-- ---- older files

--- Returns the value in a torch.save file from before 1.6, or with _use_new_zipfile_serialization=False, and a list of
--- its lost parts. Such a file is pickles of a magic number, a version, the machine, the value and its storages' keys,
--- then each storage's length and bytes.
function torch_file.load_legacy(source)
  local cursor = source:cursor(0)
  local function refuse(_, machine) machine:fail "storage before the value" end
  local function plain() -- reads the next pickle, which has no storages
    return (with_lost(source, pickle.load(cursor, names, refuse)))
  end
  local value, lost = pickle.load(cursor, names, refuse)
  if #lost == 0 or lost[1].lost.nearest ~= MAGIC then
    with_lost(source, value, lost)
    source:fail "a pickle that torch.save did not write; in Python: torch.save(net.state_dict(), path)"
  end
  local version = plain()
  if version ~= 1001 then
    source:fail("unsupported version %s of torch.save; supported is 1001", printable_name(tostring(version), 40))
  end
  local machine = plain()
  local swap = type(machine) == "table" and machine.little_endian == false
  local value_at = cursor.at
  local wanted = {}
  pickle.load(cursor, names, storage_reader(source, function(key, n, dtype, numel) -- dry run, to find its end
    wanted[key] = wanted[key] or {n = n, dtype = dtype, numel = numel}
  end), true)
  local keys = plain()
  if type(keys) ~= "table" then source:malformed("pickle", "it has no list of storages") end
  local at = cursor.at
  for _, key in ipairs(keys) do
    local storage = wanted[key]
    local where = source:cursor(at)
    local numel = where:count()
    if not storage then
      source:malformed("file", "the size of storage '%s' is missing", printable_name(tostring(key), 40))
    end
    if storage.at or numel ~= storage.numel then
      source:malformed("file", "storage '%s' has %.0f elements, expected %.0f", printable_name(key, 40), numel,
        storage.numel)
    end
    storage.at, at = at + 8, at + 8 + storage.n
    source:check(storage.at, storage.n)
  end
  if at ~= source.size then source:malformed("file", "%.0f bytes follow its storages", source.size - at) end
  local function bytes_of(key, n)
    local storage = wanted[key]
    if not storage.at then source:malformed("file", "storage '%s' is missing", printable_name(key, 40)) end
    local bytes = source:bytes(storage.at, n)
    return swap and Source.swapped(bytes, storage.dtype) or bytes, swap
  end
  return with_lost(source, pickle.load(source:cursor(value_at), names, storage_reader(source, bytes_of)))
end

-- ---- writing

local Writer = {}
Writer.__index = Writer

local little_endian = Source.little_endian

function Writer:put(...)
  for i = 1, select("#", ...) do self.out[#self.out + 1] = (select(i, ...)) end
end

function Writer:text(s)
  if core.is_utf8_text(s) then return self:put("X", little_endian(#s, 4), s) end
  local wide = s:gsub("[\128-\255]", function(c)
    local byte = c:byte()
    return string.char(194 + (byte >= 192 and 1 or 0), 128 + byte % 64)
  end)
  self:put("c_codecs\nencode\n", "X", little_endian(#wide, 4), wide, "X", little_endian(6, 4), "latin1", "\134R")
end

function Writer:int64(value)
  local bytes = ffi.new("int64_t[1]", value)
  self:put("\138\8", ffi.string(bytes, 8))
end

function Writer:number(v)
  if v % 1 == 0 and math.abs(v) <= 2 ^ 53 and not (v == 0 and 1 / v < 0) then
    if math.abs(v) < 2 ^ 31 then return self:put("J", little_endian(v % 2 ^ 32, 4)) end
    return self:int64(v)
  end
  self:put("G", ffi.string(ffi.new("double[1]", v), 8):reverse())
end

local function tuple(self, list)
  self:put "("
  for _, v in ipairs(list) do self:number(v) end
  self:put "t"
end

function Writer:tensor(t, path)
  local data = t:detach():cpu():contiguous()
  local class_name = storage_of[data.dtype]
  if not class_name then
    fail("save: %s is %s, which torch.save's format does not support; convert it with x:int()", path, t.dtype)
  end
  -- Write one storage for tensors that share all of their memory, such as tied weights.
  local memory = ("%s %d %s"):format(tostring(data:data_ptr()), data:numel(), data.dtype)
  local key = data:numel() > 0 and self.keys_of_memory[memory]
  if not key then
    key = #self.tensors
    self.tensors[key + 1] = data
    self.keys_of_memory[memory] = key
  end
  self:put("ctorch._utils\n_rebuild_tensor_v2\n(", "(")
  self:text "storage"
  self:put("ctorch\n", class_name, "\n")
  self:text(tostring(key))
  self:text "cpu"
  self:number(data:numel())
  self:put("tQ", "K\0")
  tuple(self, data.shape)
  tuple(self, Source.dense_strides(data.shape))
  self:put "\137ccollections\nOrderedDict\n)RtR"
end

local MOST_DEEP = 100

local function place_of(path) return path == "" and "the value" or path end

local function keys_of(t, path)
  for key in pairs(t) do
    if type(key) ~= "string" and not (type(key) == "number" and key % 1 == 0 and math.abs(key) <= 2 ^ 53) then
      fail("save: %s has a key of type %s; keys must be strings or integers", place_of(path), type(key))
    end
  end
  return lists.sorted_keys(t)
end

-- Returns the lowest parameter number in an optimizer's state_dict: 1, or 0 if it was read from such a file; nil for
-- other tables.
local function first_parameter(t)
  if not options.is_plain(t.state) or not options.is_plain(t.param_groups) or #t.param_groups == 0 then return nil end
  local least = math.huge
  for _, group in ipairs(t.param_groups) do
    if not options.is_plain(group) or not options.is_plain(group.params) then return nil end
    for _, number in ipairs(group.params) do
      if type(number) ~= "number" then return nil end
      least = math.min(least, number)
    end
  end
  return (least == 0 or least == 1) and least or nil
end

-- Adapts a state_dict for torch.optim's LBFGS, the only one with history_size: it requires the option line_search_fn
-- (None by default), lists, also empty ones, and no list `al` that is too short. `al` is scratch memory whose unused
-- entries are None; reading a file drops Nones at a list's end, and LBFGS makes a missing list again.
local function as_lbfgs(group, states, is_list)
  group.line_search_fn = group.line_search_fn or pickle.NONE
  for number, state in pairs(states) do
    states[number] = lists.copy(state)
    states[number].al = nil
    for _, value in pairs(state) do
      if options.is_plain(value) then is_list[value] = true end
    end
  end
end

-- Returns an optimizer's state_dict in torch.optim's form, where parameters count from 0.
local function optimizer_state(t, least, is_list)
  local out = {state = {}, param_groups = {}}
  is_list[out.state] = false -- a list also if only the second parameter has a state
  for key, value in pairs(t) do out[key] = out[key] or value end
  for g, group in ipairs(t.param_groups) do
    local copy = {params = {}}
    for key, value in pairs(group) do copy[key] = copy[key] or value end
    for i, number in ipairs(group.params) do
      copy.params[i], out.state[number - least] = number - least, t.state[number]
    end
    if copy.history_size then as_lbfgs(copy, out.state, is_list) end
    local eps = copy.eps -- Adafactor's, of the dtype: {None, 0.001}
    if options.is_plain(eps) and eps[1] == false then copy.eps = {pickle.NONE, eps[2]} end
    out.param_groups[g] = copy
  end
  return out
end

function Writer:table(t, path, depth)
  local number = self.numbers[t]
  if self.open[t] then fail("save: %s contains itself", place_of(path)) end
  if number then return self:put("j", little_endian(number, 4)) end
  if depth > MOST_DEEP then
    fail("save: %s is nested more than %d tables deep; save fewer levels, or a flat table with longer keys",
      printable_name(path, 200), MOST_DEEP)
  end
  number = self.count
  self.numbers[t], self.count, self.open[t] = number, number + 1, true
  local least = first_parameter(t)
  local content = least and optimizer_state(t, least, self.is_list) or t
  local keys = keys_of(content, path)
  local is_list = self.is_list[t]
  if is_list == nil then is_list = #keys > 0 and keys[1] == 1 and keys[#keys] == #keys end
  self:put(is_list and "]" or "}", "r", little_endian(number, 4), "(")
  for _, key in ipairs(keys) do
    if type(key) == "string" then
      self:text(key)
    elseif not is_list then
      self:number(key)
    end
    self:value(content[key], (path == "" and "" or path .. ".") .. tostring(key), depth + 1)
  end
  self:put(is_list and "e" or "u")
  self.open[t] = nil
end

function Writer:value(v, path, depth)
  local kind = type(v)
  if v == pickle.NONE then return self:put "N" end
  if core.is_tensor(v) then return self:tensor(v, place_of(path)) end
  if kind == "table" and options.is_plain(v) and not class.record(v) then return self:table(v, path, depth) end
  if kind == "number" then return self:number(v) end
  if kind == "string" then return self:text(v) end
  if kind == "boolean" then return self:put(v and "\136" or "\137") end
  if kind == "cdata" and ffi.istype("int64_t", v) then return self:int64(v) end
  require("luminary.file_formats.checkpoint").refuse("save", place_of(path), v)
end

--- Writes a value as torch.save does: torch.load(path, weights_only=True) reads it. Lists remain lists, other tables
--- become dicts; an empty one is a dict. Optimizers' state_dicts get the form of torch.optim's load_state_dict.
function torch_file.save(path, value)
  local writer = setmetatable({
    out = {}, tensors = {}, keys_of_memory = {}, numbers = {}, open = {}, is_list = {}, count = 0,
  }, Writer)
  writer:put "\128\2"
  writer:value(value, "", 1)
  writer:put "."
  local entries = {{"archive/data.pkl", {table.concat(writer.out)}}, {"archive/byteorder", {"little"}}}
  for i, data in ipairs(writer.tensors) do entries[#entries + 1] = {("archive/data/%d"):format(i - 1), {data}} end
  entries[#entries + 1] = {"archive/version", {"3\n"}}
  zip.write(path, entries, 64)
end

return torch_file

--- Provides collectives of plain Lua values: nil, booleans, numbers, strings, tensors, and tables of them. They are
--- sent as bytes and only read as data.
local ffi = require "ffi"
local core = require "luminary.core"
local options = require "luminary.base.options"
local signature = require "luminary.base.signature"
local collectives = require "luminary.distributed.collectives"
local groups = require "luminary.distributed.groups"
local lists = require "luminary.base.lists"
local load_module = require "luminary.base.load_module"
local fail = options.fail

local objects = {}

local ALIGNMENT = 64 -- bytes, of a tensor in a message

local function aligned(at) return math.ceil(at / ALIGNMENT) * ALIGNMENT end

-- Returns a message, {text, tensors, n = bytes}: the text of a value and then the elements of its tensors.
local function pack(who, value, name)
  local text, tensors = load_module("luminary.mp.serialization").encode(who, value, {plain = name})
  local n = #text
  for _, t in ipairs(tensors) do n = aligned(n) + t.nbytes end
  return {text = text, tensors = tensors, n = n}
end

local nothing = {text = "", tensors = {}, n = 0}

-- Returns a uint8 tensor of a message, with zeros after it up to n.
local function bytes_of(message, n)
  local bytes, at = core.ops.zeros(math.max(n, message.n), {dtype = "uint8", device = "cpu"}), #message.text
  local start = ffi.cast("char *", bytes:data_ptr())
  ffi.copy(start, message.text, #message.text)
  for _, t in ipairs(message.tensors) do
    local own = t:detach():cpu():contiguous()
    ffi.copy(start + aligned(at), own:data_ptr(), own.nbytes)
    at = aligned(at) + own.nbytes
  end
  return bytes
end

-- Reads the tensors of a message: {bytes, at = end of what was read}. A JIT trace would retain a closure of `bytes`.
local Reader = {}
Reader.__index = Reader

-- Returns the next tensor, a view of the bytes.
function Reader:tensor(dtype, shape)
  local from = aligned(self.at)
  self.at = from + lists.product(shape) * core.dtype_size(dtype)
  if self.at == from then return core.ops.empty(shape, {dtype = dtype, device = "cpu"}) end
  local strides = load_module("luminary.file_formats.source").dense_strides(shape)
  return core.view_as(self.bytes, dtype, shape, strides, from)
end

-- Returns the value of a message whose text has n bytes.
local function unpack_message(who, bytes, n)
  local text = n >= 0 and n <= bytes:numel() and ffi.string(ffi.cast("const char *", bytes:data_ptr()), n)
  local reader = setmetatable({bytes = bytes, at = n}, Reader)
  local ok, value = pcall(load_module("luminary.mp.serialization").decode, text, {}, {}, reader)
  if not ok then fail("%s: received malformed data", who) end
  return value
end

local function integers(list) return core.tensor(list, {dtype = "int64", device = "cpu"}) end
local function sizes(n) return core.ops.zeros(n, {dtype = "int64", device = "cpu"}) end

--- Broadcasts a list of Lua values of one rank to the whole group.
objects.broadcast_object_list = signature.of([[broadcast_object_list(list: list, {src: natural = 0,
  group})]], function(list, opts)
  local who = "broadcast_object_list"
  local src, group = opts.src, groups.resolve(who, opts.group)
  local here = groups.default.rank == src
  local message = here and pack(who, list, "list") or nothing
  local size = integers({#message.text, message.n})
  collectives.broadcast(size, src, {group = group})
  local bytes = bytes_of(message, size:select(1, 2):item())
  collectives.broadcast(bytes, src, {group = group})
  if here then return list end
  for key in pairs(list) do list[key] = nil end
  for key, value in pairs(unpack_message(who, bytes, size:select(1, 1):item())) do list[key] = value end
  return list
end)

-- Gathers all ranks' messages, padded to the longest: returns tensors on this rank, and the lengths of their texts.
-- `gather` gathers tensors.
local function gather_messages(message, group, gather)
  local length, longest = integers({#message.text}), integers({message.n})
  collectives.all_reduce(longest, {op = "max", group = group})
  local lengths = gather(length, function() return sizes(1) end)
  local n = longest:item()
  return gather(bytes_of(message, n), function() return bytes_of(nothing, n) end), lengths
end

local function list_of(n, make)
  local list = {}
  for i = 1, n do list[i] = make() end
  return list
end

--- Gathers the Lua values of all ranks in a list.
objects.all_gather_object = signature.of([[all_gather_object(outputs: list, value,
  {group})]], function(outputs, value, opts)
  local who = "all_gather_object"
  if value == nil and next(outputs) ~= nil and #outputs == 0 then
    options.fail("%s: outputs must be a list, got a table; call %s({}, value)", who, who)
  end
  local group = groups.resolve(who, opts.group)
  local messages, lengths = gather_messages(pack(who, value, "value"), group, function(t, make)
    return collectives.all_gather(list_of(group.size, make), t, {group = group})
  end)
  for i = 1, group.size do outputs[i] = unpack_message(who, messages[i], lengths[i]:item()) end
  return outputs
end)

--- Gathers the Lua values of all ranks in a list on one rank.
objects.gather_object = signature.of([[gather_object(value, {object_gather_list: list, dst: natural = 0,
  group})]], function(value, opts)
  local who = "gather_object"
  local dst, group, outputs = opts.dst, groups.resolve(who, opts.group), opts.object_gather_list
  local here = groups.default.rank == dst
  local messages, lengths = gather_messages(pack(who, value, "value"), group, function(t, make)
    return collectives.gather(t, here and list_of(group.size, make) or nil, dst, {group = group})
  end)
  if not here then return nil end
  outputs = outputs or {}
  for i = 1, group.size do outputs[i] = unpack_message(who, messages[i], lengths[i]:item()) end
  return outputs
end)

--- Scatters a list of Lua values of one rank: each rank gets one.
objects.scatter_object_list = signature.of([[scatter_object_list(output: list, {scatter_object_input_list: list,
  src: natural = 0, group})]], function(output, opts)
  local who = "scatter_object_list"
  local src, group, inputs = opts.src, groups.resolve(who, opts.group), opts.scatter_object_input_list
  local messages, lengths, n
  if groups.default.rank == src then
    if type(inputs) ~= "table" then fail("%s: rank %d is the root and needs a list of inputs", who, src) end
    if table.maxn(inputs) > group.size then
      options.wrong_length(who, "inputs", group.size, "rank", table.maxn(inputs))
    end
    messages, n = {}, 0
    for i = 1, group.size do
      messages[i] = pack(who, inputs[i], ("inputs[%d]"):format(i))
      n = math.max(n, messages[i].n)
    end
    lengths = {}
    for i, message in ipairs(messages) do
      lengths[i], messages[i] = integers({#message.text, n}), bytes_of(message, n)
    end
  end
  local size = collectives.scatter(sizes(2), lengths, src, {group = group})
  local bytes = collectives.scatter(bytes_of(nothing, size:select(1, 2):item()), messages, src, {group = group})
  output[1] = unpack_message(who, bytes, size:select(1, 1):item())
  return output[1]
end)

return options.exact_all(objects)

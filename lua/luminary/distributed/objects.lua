--- Provides collectives of plain Lua values: nil, booleans, numbers, strings, and tables of them. They are sent as
--- bytes and only read as data.
local ffi = require "ffi"
local core = require "luminary.core"
local options = require "luminary.base.options"
local signature = require "luminary.base.signature"
local collectives = require "luminary.distributed.collectives"
local groups = require "luminary.distributed.groups"
local load_module = require "luminary.base.load_module"
local fail = options.fail

local objects = {}

local function pack(who, value, name)
  return (load_module("luminary.mp.serialization").encode(who, value, {plain = name}))
end

-- Returns a uint8 tensor of the text, with zeros after it up to n.
local function bytes_of(text, n)
  local bytes = core.ops.zeros(math.max(n, #text), {dtype = "uint8"})
  ffi.copy(ffi.cast("char *", bytes:data_ptr()), text, #text)
  return bytes
end

local function unpack_text(who, bytes, n)
  local decode = load_module("luminary.mp.serialization").decode
  local text = n >= 0 and n <= bytes:numel() and ffi.string(ffi.cast("const char *", bytes:data_ptr()), n)
  local ok, value = pcall(decode, text, {}, {}, true)
  if not ok then fail("%s: received malformed data", who) end
  return value
end

local function sizes(n) return core.ops.zeros(n, {dtype = "int64"}) end

--- Broadcasts a list of Lua values of one rank to the whole group.
objects.broadcast_object_list = signature.of([[broadcast_object_list(list: list, {src: natural = 0,
  group})]], function(list, opts)
  local who = "broadcast_object_list"
  local src, group = opts.src, groups.resolve(who, opts.group)
  local here = groups.default.rank == src
  local text = here and pack(who, list, "list")
  local size = core.tensor({here and #text or 0}, {dtype = "int64"})
  collectives.broadcast(size, src, {group = group})
  local n = size:item()
  local bytes = bytes_of(text or "", n)
  collectives.broadcast(bytes, src, {group = group})
  if here then return list end
  for key in pairs(list) do list[key] = nil end
  for key, value in pairs(unpack_text(who, bytes, n)) do list[key] = value end
  return list
end)

-- Gathers all ranks' texts, padded to the longest: returns tensors on this rank, and lengths. `gather` gathers tensors.
local function gather_texts(text, group, gather)
  local length, longest = core.tensor({#text}, {dtype = "int64"}), core.tensor({#text}, {dtype = "int64"})
  collectives.all_reduce(longest, {op = "max", group = group})
  local lengths = gather(length, function() return sizes(1) end)
  local n = longest:item()
  local texts = gather(bytes_of(text, n), function() return bytes_of("", n) end)
  return texts, lengths
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
  local texts, lengths = gather_texts(pack(who, value, "value"), group, function(t, make)
    return collectives.all_gather(list_of(group.size, make), t, {group = group})
  end)
  for i = 1, group.size do outputs[i] = unpack_text(who, texts[i], lengths[i]:item()) end
  return outputs
end)

--- Gathers the Lua values of all ranks in a list on one rank.
objects.gather_object = signature.of([[gather_object(value, {object_gather_list: list, dst: natural = 0,
  group})]], function(value, opts)
  local who = "gather_object"
  local dst, group, outputs = opts.dst, groups.resolve(who, opts.group), opts.object_gather_list
  local here = groups.default.rank == dst
  local texts, lengths = gather_texts(pack(who, value, "value"), group, function(t, make)
    return collectives.gather(t, here and list_of(group.size, make) or nil, dst, {group = group})
  end)
  if not here then return nil end
  outputs = outputs or {}
  for i = 1, group.size do outputs[i] = unpack_text(who, texts[i], lengths[i]:item()) end
  return outputs
end)

--- Scatters a list of Lua values of one rank: each rank gets one.
objects.scatter_object_list = signature.of([[scatter_object_list(output: list, {scatter_object_input_list: list,
  src: natural = 0, group})]], function(output, opts)
  local who = "scatter_object_list"
  local src, group, inputs = opts.src, groups.resolve(who, opts.group), opts.scatter_object_input_list
  local texts, lengths, n
  if groups.default.rank == src then
    if type(inputs) ~= "table" then fail("%s: rank %d is the root and needs a list of inputs", who, src) end
    if table.maxn(inputs) > group.size then
      options.wrong_length(who, "inputs", group.size, "rank", table.maxn(inputs))
    end
    texts, n = {}, 0
    for i = 1, group.size do
      texts[i] = pack(who, inputs[i], ("inputs[%d]"):format(i))
      n = math.max(n, #texts[i])
    end
    lengths = {}
    for i, text in ipairs(texts) do
      lengths[i], texts[i] = core.tensor({#text, n}, {dtype = "int64"}), bytes_of(text, n)
    end
  end
  local size = collectives.scatter(sizes(2), lengths, src, {group = group})
  local bytes = collectives.scatter(bytes_of("", size:select(1, 2):item()), texts, src, {group = group})
  output[1] = unpack_text(who, bytes, size:select(1, 1):item())
  return output[1]
end)

return options.exact_all(objects)

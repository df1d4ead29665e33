--- Collectives of plain Lua values: nil, booleans, numbers, strings, and tables of them. They travel as bytes and are
--- only ever read as data.
local core = require "luminary.core"
local options = require "luminary.base.options"
local collectives = require "luminary.distributed.collectives"
local groups = require "luminary.distributed.groups"
local encode = require "luminary.distributed.encode_values"
local fail = options.fail

local objects = {}

local function pack(who, value, name)
  local text, problem = encode.encode(value, name)
  if not text then fail("%s: %s; nil, booleans, numbers, strings and plain tables can be sent", who, problem) end
  return text
end

local function unpack_text(who, bytes, n)
  local ok, value = pcall(encode.decode, core.dist_text(bytes, n))
  if not ok then fail("%s: what came is no value: %s", who, value) end
  return value
end

-- Options after `n` positional arguments; group resolved, others by name.
local function take(who, rows, opts, first)
  rows.group = {"any"}
  opts = options.check(who, opts, rows, first)
  opts.group = groups.resolve(who, opts.group)
  return opts
end

local function split(a, b) -- (rank, opts) or (opts)
  if b == nil and type(a) == "table" then return nil, a end
  return a, b
end

local function root_of(who, name, rank, opts)
  rank = rank or opts[name] or 0
  return options.arg(who, name, rank, "natural")
end

local function sizes(n) return core.ops.zeros(n, {dtype = "int64"}) end

--- dist.broadcast_object_list(list [, src] [, {group}]): the entries of list become those it has on rank `src` (0).
--- Gives list.
function objects.broadcast_object_list(list, src, opts)
  local who = "broadcast_object_list"
  options.arg(who, "the list", list, "table")
  src, opts = split(src, opts)
  opts = take(who, {src = {"natural"}}, opts, "src")
  src = root_of(who, "src", src, opts)
  local here = groups.default.rank == src
  local text = here and pack(who, list, "list")
  local size = core.tensor({here and #text or 0}, {dtype = "int64"})
  collectives.broadcast(size, src, {group = opts.group})
  local n = size:item()
  local bytes = core.dist_bytes(text or "", n)
  collectives.broadcast(bytes, src, {group = opts.group})
  if here then return list end
  for key in pairs(list) do list[key] = nil end
  for key, value in pairs(unpack_text(who, bytes, n)) do list[key] = value end
  return list
end

-- Every rank's text, padded to the longest: their tensors here, and their lengths. `gather` does it once for tensors.
local function gather_texts(text, group, gather)
  local mine, longest = core.tensor({#text}, {dtype = "int64"}), core.tensor({#text}, {dtype = "int64"})
  collectives.all_reduce(longest, {op = "max", group = group})
  local lengths = gather(mine, function() return sizes(1) end)
  local n = longest:item()
  local texts = gather(core.dist_bytes(text, n), function() return core.dist_bytes("", n) end)
  return texts, lengths
end

local function list_of(n, make)
  local list = {}
  for i = 1, n do list[i] = make() end
  return list
end

--- outputs[r + 1] becomes rank r's value. Gives outputs.
function objects.all_gather_object(outputs, value, opts)
  local who = "all_gather_object"
  options.arg(who, "the list of outputs", outputs, "table")
  local group = take(who, {}, opts, "group").group
  local texts, lengths = gather_texts(pack(who, value, "value"), group, function(t, make)
    return collectives.all_gather(list_of(group.size, make), t, {group = group})
  end)
  for i = 1, group.size do outputs[i] = unpack_text(who, texts[i], lengths[i]:item()) end
  return outputs
end

--- dist.gather_object(value [, outputs] [, dst] [, {group}]): on rank `dst` (0) outputs[r + 1] becomes rank r's value,
--- and it gives outputs (a new list if none was given).
function objects.gather_object(value, outputs, dst, opts)
  local who = "gather_object"
  if dst == nil and opts == nil and type(outputs) == "table" and type(next(outputs)) == "string" then
    outputs, opts = nil, outputs
  else
    dst, opts = split(dst, opts)
  end
  opts = take(who, {dst = {"natural"}, object_gather_list = {"table"}}, opts, "dst")
  local group = opts.group
  dst, outputs = root_of(who, "dst", dst, opts), outputs or opts.object_gather_list
  local here = groups.default.rank == dst
  if here and outputs ~= nil then options.arg(who, "the list of outputs", outputs, "table") end
  local texts, lengths = gather_texts(pack(who, value, "value"), group, function(t, make)
    return collectives.gather(t, here and list_of(group.size, make) or nil, dst, {group = group})
  end)
  if not here then return nil end
  outputs = outputs or {}
  for i = 1, group.size do outputs[i] = unpack_text(who, texts[i], lengths[i]:item()) end
  return outputs
end

--- dist.scatter_object_list(output [, inputs] [, src] [, {group}]): on rank r, output[1] becomes inputs[r + 1] of rank
--- `src` (0). Gives that value.
function objects.scatter_object_list(output, inputs, src, opts)
  local who = "scatter_object_list"
  options.arg(who, "the output", output, "table")
  if src == nil and opts == nil and type(inputs) == "table" and type(next(inputs)) == "string" then
    inputs, opts = nil, inputs
  else
    src, opts = split(src, opts)
  end
  opts = take(who, {src = {"natural"}, scatter_object_input_list = {"table"}}, opts, "src")
  local group = opts.group
  src, inputs = root_of(who, "src", src, opts), inputs or opts.scatter_object_input_list
  local texts, lengths, n
  if groups.default.rank == src then
    if type(inputs) ~= "table" then fail("%s: this is rank %d, the root: it needs a list of inputs", who, src) end
    if table.maxn(inputs) > group.size then
      fail("%s: %d inputs for %d ranks", who, table.maxn(inputs), group.size)
    end
    texts, n = {}, 0
    for i = 1, group.size do
      texts[i] = pack(who, inputs[i], ("inputs[%d]"):format(i))
      n = math.max(n, #texts[i])
    end
    lengths = {}
    for i, text in ipairs(texts) do
      lengths[i], texts[i] = core.tensor({#text, n}, {dtype = "int64"}), core.dist_bytes(text, n)
    end
  end
  local size = collectives.scatter(sizes(2), lengths, src, {group = group})
  local bytes = collectives.scatter(core.dist_bytes("", size:select(1, 2):item()), texts, src, {group = group})
  output[1] = unpack_text(who, bytes, size:select(1, 1):item())
  return output[1]
end

return options.exact_all(objects)

--- lm.save and lm.load: tables of tensors and plain values as safetensors files; other formats are file_formats/'s.
---
--- A flat table of tensors by name is a plain safetensors file, which Python reads. Anything deeper is
--- described as JSON in the file's __metadata__ under "luminary"; its tensors are named by their path
--- ("model.conv1.weight"). In the description a node is
---   a string, a boolean, a finite number       itself
---   {"tensor": name}                           a tensor of the file
---   {"number": "inf" | "-inf" | "nan"}         numbers that JSON lacks
---   {"integer": digits}                        int64 cdata
---   {"bytes": hexadecimal}                     strings that are no UTF-8 text, or hold a zero byte
---   {"list": [node …], "table": {key: node …}, "integers": {digits: node …}}
---                                              a table: what counts from 1, its strings, other integers;
---                                              each left out when empty
---   {"same": n}                                the table whose node has "id": n: one that stands in several places
--- Files are data only: loading one runs nothing.
local core = require "luminary.core"
local class = require "luminary.base.class"
local changes = require "luminary.base.weight_changes"
local options = require "luminary.base.options"
local excerpt = require "luminary.base.excerpt"
local formats = require "luminary.file_formats"
local is_text = require "luminary.base.is_text"
local ffi = require "ffi"
local fail = options.fail

local checkpoint = {}
local KEY, DEEPEST = "luminary", 100

local function is_integer_key(key)
  return type(key) == "number" and key == math.floor(key) and math.abs(key) < 2 ^ 53
end

local function to_hex(s)
  return (s:gsub(".", function(c) return ("%02x"):format(c:byte()) end))
end

local function from_hex(digits)
  if #digits % 2 ~= 0 or digits:find("[^%x]") then return nil end
  return (digits:gsub("..", function(pair) return string.char(tonumber(pair, 16)) end))
end

-- ---- saving

local function sorted_keys(t, who, path)
  local strings, integers = {}, {}
  for key in pairs(t) do
    if type(key) == "string" then
      if not is_text(key) then
        fail("%s: %s has the key %q, which is no UTF-8 text", who, path == "" and "the table" or path, key)
      end
      strings[#strings + 1] = key
    elseif is_integer_key(key) then
      integers[#integers + 1] = key
    else
      fail("%s: %s has a key of type %s; keys are strings or integers", who, path == "" and "the table" or path,
        type(key))
    end
  end
  table.sort(strings)
  table.sort(integers)
  return strings, integers
end

local describe_value

local function refuse_object(value, path)
  fail("save: %s is an object%s", path == "" and "the value" or path,
    class.has(value, "state_dict") and "; save its :state_dict()" or ", not a plain table")
end

local function describe_table(value, path, file, depth)
  local node = file.nodes[value]
  if node then
    if not node.id then
      file.shared = file.shared + 1
      node.id = file.shared
    end
    if file.open[value] then fail("save: %s contains itself", path) end
    return {same = node.id}
  end
  if depth > DEEPEST then fail("save: %s is nested too deep", excerpt(path, 100)) end
  local strings, integers = sorted_keys(value, "save", path)
  local prefix = path == "" and "" or path .. "."
  node = {}
  file.nodes[value], file.open[value] = node, true
  for _, key in ipairs(strings) do
    node.table = node.table or {}
    node.table[key] = describe_value(value[key], prefix .. key, file, depth + 1)
  end
  local length = 0
  while rawget(value, length + 1) ~= nil do length = length + 1 end
  for _, key in ipairs(integers) do
    local child = describe_value(value[key], prefix .. ("%d"):format(key), file, depth + 1)
    if key >= 1 and key <= length then
      node.list = node.list or {}
      node.list[key] = child
    else
      node.integers = node.integers or {}
      node.integers[("%d"):format(key)] = child
    end
  end
  file.open[value] = nil
  return node
end

-- The node of a value; its tensors go into file.tensors under names listed in file.names.
function describe_value(value, path, file, depth)
  local kind = type(value)
  if core.is_tensor(value) then
    local name = path == "" and "tensor" or path
    while file.tensors[name] do name = name .. "'" end
    file.tensors[name] = value:detach()
    file.names[#file.names + 1] = name
    return {tensor = name}
  elseif class.record(value) or kind == "table" and not options.is_plain(value) then
    refuse_object(value, path)
  elseif kind == "table" then
    return describe_table(value, path, file, depth)
  elseif kind == "number" then
    if value ~= value then return {number = "nan"} end
    if value == math.huge then return {number = "inf"} end
    if value == -math.huge then return {number = "-inf"} end
    return value
  elseif kind == "string" then
    return is_text(value) and value or {bytes = to_hex(value)}
  elseif kind == "boolean" then
    return value
  elseif kind == "cdata" and ffi.istype("int64_t", value) then
    return {integer = tostring(value):gsub("LL$", "")}
  end
  fail("save: %s is a %s; tensors, numbers, strings, booleans and tables of them can be saved",
    path == "" and "the value" or path, kind)
end

local function is_flat(value)
  if type(value) ~= "table" or next(value) == nil then return false end
  for key, v in pairs(value) do
    if type(key) ~= "string" or key == "" or not core.is_tensor(v) then return false end
  end
  return true
end

--- lm.save(path, value): a tensor, or a table of tensors, numbers, strings, booleans and tables. Written
--- beside the path and renamed: a crash leaves the old file or the new one, whole. A safetensors file, but for paths
--- that end in .npy (NumPy's, of one tensor), .npz (of tensors by name) and .pt or .pth, which
--- torch.load(path, weights_only=True) reads.
function checkpoint.save(path, value)
  if type(path) ~= "string" then
    if type(value) == "string" then fail("save: the path comes first: lm.save(path, value)") end
    fail("save: the path has to be a string, got %s", options.describe(path))
  end
  if value == nil then fail("save: a value to save wanted: lm.save(path, value)") end
  if formats.save(path, value) then return end
  local file = {tensors = {}, names = {}, nodes = {}, open = {}, shared = 0}
  local node = describe_value(value, "", file, 1)
  local metadata = {}
  if not is_flat(value) then metadata[KEY] = core.json_encode(node) end
  core.safetensors_save(path, file.tensors, metadata, file.names)
end

-- ---- loading

local function bad(path, what) fail("load: %s: its description is broken: %s", path, what) end

local numbers = {nan = 0 / 0, inf = math.huge, ["-inf"] = -math.huge}

local leaves = {tensor = true, number = true, bytes = true, integer = true} -- the only field of a node that has it

local restore

-- t[key] of the node. Tables that stand in several places are put there in the end, when all are made.
local function put(t, key, node, file, depth)
  if t[key] ~= nil or file.taken[t] and file.taken[t][key] then bad(file.path, ("two values for [%s]"):format(key)) end
  if type(node) == "table" and node.same ~= nil then
    if next(node, next(node)) ~= nil then bad(file.path, "a node that is the same as another, and more") end
    file.taken[t] = file.taken[t] or {}
    file.taken[t][key] = true
    file.later[#file.later + 1] = {t, key, node.same}
  else
    t[key] = restore(node, file, depth)
  end
end

local function restore_table(node, file, depth)
  local out = {}
  if node.id ~= nil then
    if file.made[node.id] then bad(file.path, "two tables of the number " .. tostring(node.id)) end
    file.made[node.id] = out
  end
  for key, part in pairs(node) do
    if key ~= "id" and type(part) ~= "table" then bad(file.path, "a part of a table that is none") end
    if key == "table" then
      for name, child in pairs(part) do
        if type(name) ~= "string" then bad(file.path, "a key that is no string") end
        put(out, name, child, file, depth + 1)
      end
    elseif key == "list" then
      local n = 0
      for _ in pairs(part) do n = n + 1 end
      if n ~= #part then bad(file.path, "a list that is none") end
      for i = 1, n do put(out, i, part[i], file, depth + 1) end
    elseif key == "integers" then
      for digits, child in pairs(part) do
        local integer = type(digits) == "string" and digits:find("^%-?%d+$") and tonumber(digits)
        if not integer or not is_integer_key(integer) then bad(file.path, "a key that is no integer") end
        put(out, integer, child, file, depth + 1)
      end
    elseif key ~= "id" then
      bad(file.path, "a node with the field '" .. tostring(key) .. "'")
    end
  end
  return out
end

local function put_shared(file)
  for _, place in ipairs(file.later) do
    local t, key, id = unpack(place)
    t[key] = file.made[id] or bad(file.path, "no table of the number " .. tostring(id))
  end
end

-- Digits as int64; doubles hold only 53 bits.
local function parse_integer(digits)
  local sign, rest = digits:match("^(%-?)(%d+)$")
  if not rest or #rest > 19 then return nil end
  local value = ffi.new("int64_t", 0)
  for digit in rest:gmatch("%d") do value = value * 10 - tonumber(digit) end
  value = sign == "-" and value or -value
  return tostring(value) == digits .. "LL" and value or nil -- nil where 64 bits do not hold it
end

function restore(node, file, depth)
  if depth > DEEPEST then bad(file.path, "it is nested too deep") end
  if type(node) == "string" or type(node) == "number" or type(node) == "boolean" then return node end
  if type(node) ~= "table" then bad(file.path, "a node of no known kind") end
  for kind in pairs(leaves) do
    if node[kind] ~= nil and next(node, next(node)) ~= nil then
      bad(file.path, "a node that is a " .. kind .. " and more")
    end
  end
  if node.tensor ~= nil then
    local t = type(node.tensor) == "string" and file.tensors[node.tensor]
    if not t then bad(file.path, "no tensor '" .. tostring(node.tensor) .. "' in the file") end
    file.used[node.tensor] = true
    return t
  elseif node.number ~= nil then
    return numbers[node.number] or bad(file.path, "a number '" .. tostring(node.number) .. "'")
  elseif node.bytes ~= nil then
    return type(node.bytes) == "string" and from_hex(node.bytes) or bad(file.path, "bytes that are not hexadecimal")
  elseif node.integer ~= nil then
    return type(node.integer) == "string" and parse_integer(node.integer) or bad(file.path, "an integer without digits")
  end
  return restore_table(node, file, depth)
end

local function warn_of_lacking(path, tensors, lacking)
  local some = table.concat(lacking, ", ", 1, math.min(#lacking, 3))
  if #lacking > 3 then some = ("%s and %d more"):format(some, #lacking - 3) end
  local what = ("load: %s: this version lacks the dtype of %s"):format(path, some)
  if next(tensors) == nil then fail("%s, and there is no other tensor in the file", what) end
  core.warn(what .. ", left out")
end

local function load_as_it_is(path, opts)
  local other, kind, left_out
  path, other, kind, left_out = formats.load(path, opts)
  if left_out and #left_out > 0 then warn_of_lacking(path, kind == "GGUF" and other.tensors or other, left_out) end
  if kind ~= "safetensors" then return other end
  local tensors, metadata, _, lacking = core.safetensors_load(path, {device = opts.device, mmap = opts.mmap})
  if #lacking > 0 then warn_of_lacking(path, tensors, lacking) end
  local text = metadata and metadata[KEY]
  if not text then return tensors end
  local ok, node = pcall(core.json_decode, text)
  if not ok then bad(path, node) end
  local file = {path = path, tensors = tensors, made = {}, later = {}, taken = {}, used = {}}
  local value = restore(node, file, 1)
  put_shared(file)
  for name in pairs(tensors) do
    if not file.used[name] then bad(path, "it does not say where the tensor '" .. excerpt(name, 200) .. "' belongs") end
  end
  return value
end

--- lm.load(path [, {device, mmap = false, rename, dtype, null}]): what lm.save wrote, or the tensors by name of any
--- safetensors file. Files of others are known by their first bytes. torch.save's (.pt, .pth, .bin) give their value,
--- so that a state dict is a table of tensors by name: an unpickler of ours reads them, which runs nothing; what is
--- neither tensor nor plain value is an error that names it. Tuples and sets become lists, keys stay as they are, ints
--- beyond 2^53 int64 cdata, None nil (a key that is not there, a hole in a list) or what `null` gives. Of NumPy's, .npy
--- gives a tensor, .npz tensors by name. A folder gives the weights in it, as Hugging Face names them; of the
--- model.safetensors.index.json there, which may be named too, tensors by name out of several safetensors files. .gguf
--- gives {metadata, tensors}, of which Q8_0, Q4_0, Q4_K and Q6_K become float32; .t7, known by its name alone, Torch7's
--- tables and tensors, with objects as tables that have "__typename". Of dtypes that tensors here do not have U32
--- becomes int64; others (F8_E4M3, U64, …) are left out, which is one warning that names them, or an error where none
--- is left.
--- rename gives tensors other names: {["^model%."] = ""}, Lua's patterns and what they become (false leaves such out),
--- the longest first, {{"^model%.", ""}, …} where another order matters, or a function(name) that gives the new one, or
--- nil to leave it out. dtype is what floating tensors become.
--- A file that is written to meanwhile is an error. mmap = true maps it instead of reading it: at once, and only what
--- is used costs memory, but as long as a tensor of it lives nobody may write into the file (replace it, as lm.save
--- does): written over in place, the tensors change; cut short, the process dies of a bus error.
function checkpoint.load(path, opts)
  if type(path) ~= "string" then fail("load: the path has to be a string, got %s", options.describe(path)) end
  opts = options.check("load", opts, changes.with {mmap = {"boolean", false}, null = {"any"}}, "device")
  return changes.applied("load", load_as_it_is(path, opts), opts)
end

return options.exact_all(checkpoint)

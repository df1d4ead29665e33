--- Converts tables of tensors and plain values to safetensors files, for lm.save, and back.
---
--- A flat table of tensors by name is a plain safetensors file, which Python reads. Anything deeper is
--- described as JSON in the file's __metadata__ under "luminary"; its tensors are named by their path
--- ("model.conv1.weight"). In the description a node is
---   a string, a boolean, a finite number       itself
---   {"tensor": name}                           a tensor of the file
---   {"number": "inf" | "-inf" | "nan"}         numbers that JSON lacks
---   {"integer": digits}                        int64 cdata
---   {"bytes": hexadecimal}                     strings that are not UTF-8, or contain a NUL byte
---   {"list": [node …], "table": {key: node …}, "integers": {digits: node …}}
---                                              a table: its entries from 1, its string keys, other
---                                              integer keys; each omitted if empty
---   {"same": n}                                the table whose node has "id": n, which occurs several times
--- Files contain only data: loading one runs no code.
local core = require "luminary.core"
local interpreted = require "luminary.base.interpreted"
local json_encode = require "luminary.base.json_encode"
local lists = require "luminary.base.lists"
local class = require "luminary.base.class"
local options = require "luminary.base.options"
local printable_name = require "luminary.base.printable_name"
local truncate_text = require "luminary.base.truncate_text"
local safetensors = require "luminary.file_formats.safetensors"
local Source = require "luminary.file_formats.source"
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

local DEEP = "%s: %s is nested more than %d tables deep; save fewer levels, or a flat table with longer keys"

--- Returns a position in a value for messages: optimizer.state[3]["a b"]; `root` if there are no keys.
function checkpoint.shown_path(keys, root)
  local out = {}
  for i, key in ipairs(keys) do
    if type(key) == "number" then
      out[i] = ("[%.14g]"):format(key)
    elseif key:find "^[%a_][%w_]*$" then
      out[i] = (i == 1 and "" or ".") .. key
    else
      out[i] = ('["%s"]'):format(printable_name(key, 60))
    end
  end
  return keys[1] == nil and root or truncate_text(table.concat(out), 200)
end

--- Returns the keys of a table in order, integers before strings; fails for keys that cannot be saved, and for a table
--- that is nested too deeply. `keys` is its position, `root` the outermost table's name in messages, `above` the number
--- of tables around that one in the file.
function checkpoint.keys_of(who, t, keys, root, above)
  if #keys + (above or 0) >= DEEPEST then fail(DEEP, who, checkpoint.shown_path(keys, root), DEEPEST) end
  local strings, integers = {}, {}
  for key in pairs(t) do
    if type(key) == "string" then
      if not core.is_utf8_text(key) then
        fail("%s: %s has the key '%s', which %s", who, checkpoint.shown_path(keys, root), printable_name(key, 60),
          key:find("\0", 1, true) and "contains a NUL byte" or "is not valid UTF-8")
      end
      strings[#strings + 1] = key
    elseif is_integer_key(key) then
      integers[#integers + 1] = key
    else
      fail("%s: %s has a key of type %s; keys must be strings or integers", who, checkpoint.shown_path(keys, root),
        type(key))
    end
  end
  table.sort(strings)
  table.sort(integers)
  return lists.append(integers, strings)
end

--- Fails for a value that no file can hold. `where` is its position.
function checkpoint.refuse(who, where, value)
  if class.record(value) or type(value) == "table" then
    fail("%s: %s is an object%s", who, where, class.has(value, "state_dict") and "; save its :state_dict()"
      or ", not a plain table")
  end
  fail("%s: %s is a %s; only tensors, numbers, strings, booleans and tables of them can be saved", who, where,
    type(value))
end

-- The data that lm.save and lm.checkpoint.save write: tensors by name, names in order, and the description.
local Description = {}
Description.__index = Description

function Description:shown() return checkpoint.shown_path(self.keys, self.root) end

function Description:describe_table(value)
  local node = self.nodes[value]
  if node then
    if not node.id then
      self.shared = self.shared + 1
      node.id = self.shared
    end
    if self.open[value] then fail("%s: %s contains itself", self.who, self:shown()) end
    return {same = node.id}
  end
  node = {}
  self.nodes[value], self.open[value] = node, true
  local length = 0
  while rawget(value, length + 1) ~= nil do length = length + 1 end
  for _, key in ipairs(checkpoint.keys_of(self.who, value, self.keys, self.root, self.above)) do
    local kind = type(key) == "string" and "table" or key >= 1 and key <= length and "list" or "integers"
    node[kind] = node[kind] or {}
    node[kind][kind == "integers" and ("%d"):format(key) or key] = self:part(key, rawget(value, key))
  end
  self.open[value] = nil
  return node
end

-- Returns the node of the value at a key of the table at self.keys.
function Description:part(key, value)
  local n = #self.keys + 1
  self.keys[n] = key
  local node = self:node(value)
  self.keys[n] = nil
  return node
end

-- Returns the node of the value at self.keys; its tensors are added to self.tensors, and their names to self.names.
function Description:node(value)
  local kind = type(value)
  if core.is_tensor(value) then
    local name = self.keys[1] == nil and "tensor" or self:tensor_name()
    while self.tensors[name] do name = name .. "'" end
    self.detached[value] = self.detached[value] or value:detach()
    self.tensors[name] = self.detached[value]
    self.names[#self.names + 1] = name
    return {tensor = name}
  elseif kind == "table" and options.is_plain(value) and not class.record(value) then
    return self:describe_table(value)
  elseif kind == "number" then
    if value ~= value then return {number = "nan"} end
    if value == math.huge then return {number = "inf"} end
    if value == -math.huge then return {number = "-inf"} end
    return value
  elseif kind == "string" then
    return core.is_utf8_text(value) and value or {bytes = to_hex(value)}
  elseif kind == "boolean" then
    return value
  elseif kind == "cdata" and ffi.istype("int64_t", value) then
    return {integer = tostring(value):gsub("LL$", "")}
  end
  checkpoint.refuse(self.who, self:shown(), value)
end

function Description:tensor_name()
  local parts = lists.map(self.keys, function(key) return type(key) == "number" and ("%d"):format(key) or key end)
  return table.concat(parts, ".")
end

Description.describe_table = interpreted(Description.describe_table)
Description.part = interpreted(Description.part)
Description.node = interpreted(Description.node)

local function is_flat(value)
  if type(value) ~= "table" or next(value) == nil then return false end
  for key, v in pairs(value) do
    if type(key) ~= "string" or key == "" or not core.is_tensor(v) then return false end
  end
  return true
end

--- Returns the description of a value, for `write`; fails, beginning with `who`, if it cannot be saved. keys: the
--- value's position in messages, {} by default; `root` is its name there without keys. depth: the number of tables
--- around the value in the file, if there are more than its keys.
function checkpoint.describe(who, value, root, keys, depth)
  local self = setmetatable({
    who = who, root = root or "the value", keys = keys or {}, tensors = {}, names = {}, nodes = {}, open = {},
    above = math.max(0, (depth or 0) - (keys and #keys or 0)), detached = {}, shared = 0, is_flat = is_flat(value),
  }, Description)
  self.top = self:node(value)
  return self
end

--- Adds a part to a described table.
function Description:add(key, value)
  self.top.table = self.top.table or {}
  self.top.table[key], self.is_flat = self:part(key, value), false
end

--- Returns the metadata of a file, strings by key: `more` and the description.
function Description:metadata(more)
  local metadata = lists.copy(more or {})
  if not self.is_flat then metadata[KEY] = json_encode(self.top) end
  return metadata
end

--- Writes a tensor, or a table of tensors and plain values.
function checkpoint.save(path, value)
  local described = checkpoint.describe("save", value)
  safetensors.write(path, described.tensors, described:metadata(), described.names)
end

-- ---- loading

local function bad(path, what) options.malformed_file(path, "description in the metadata", what) end

local numbers = {nan = 0 / 0, inf = math.huge, ["-inf"] = -math.huge}

local leaves = {tensor = true, number = true, bytes = true, integer = true} -- fields that are the only one of a node

local restore

-- Sets t[key] from a node. Tables that occur several times are set at the end, when all are made.
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
  if depth > DEEPEST then bad(file.path, ("it is nested more than %d tables deep"):format(DEEPEST)) end
  local out = {}
  if node.id ~= nil then
    if file.table_of[node.id] then bad(file.path, "two tables of the number " .. tostring(node.id)) end
    file.table_of[node.id] = out
  end
  for key, part in pairs(node) do
    if key ~= "id" and type(part) ~= "table" then bad(file.path, "a part of a table that is none") end
    if key == "table" then
      for name, child in pairs(part) do
        if type(name) ~= "string" then bad(file.path, "a key is not a string") end
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
        if not integer or not is_integer_key(integer) then bad(file.path, "a key is not an integer") end
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
    t[key] = file.table_of[id] or bad(file.path, "no table of the number " .. tostring(id))
  end
end

function restore(node, file, depth)
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
    return type(node.integer) == "string" and Source.decimal(node.integer)
      or bad(file.path, "an integer without digits")
  end
  return restore_table(node, file, depth)
end

put = interpreted(put)
restore_table = interpreted(restore_table)
restore = interpreted(restore)

--- Reads a source: returns the value that checkpoint.save wrote, or any other file's tensors by name; the list of
--- skipped tensors; and the other metadata.
function checkpoint.load(source)
  local tensors, metadata, lacking = safetensors.read(source)
  local text, path = metadata[KEY], source.path
  if not text then return tensors, lacking, metadata end
  metadata[KEY] = nil
  local ok, node = pcall(core.json_decode, text)
  if not ok then bad(path, (node:gsub("^.-json_decode: ", ""))) end
  local file = {path = path, tensors = tensors, table_of = {}, later = {}, taken = {}, used = {}}
  local value = restore(node, file, 1)
  put_shared(file)
  for name in pairs(tensors) do
    if not file.used[name] then
      bad(path, "it does not say where the tensor '" .. truncate_text(name, 200) .. "' belongs")
    end
  end
  return value, lacking, metadata
end

return checkpoint

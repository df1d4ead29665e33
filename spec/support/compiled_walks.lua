-- Functions that LuaJIT 2.1.0-beta3 compiles wrongly, or may (lua/luminary/base/interpreted.lua), called many times
-- with new traces, for spec/base/interpreted_spec.lua:
--   luajit compiled_walks.lua FOLDER ROUNDS NAME [compiled]
-- Prints in how many rounds a result was wrong. "compiled": LuaJIT compiles those functions.
local folder, rounds, name, compiled = arg[1], tonumber(arg[2]), arg[3], arg[4] == "compiled"
if compiled then package.preload["luminary.base.interpreted"] = function() return function(f) return f end end end

local walks = {}

-- A recursion in a loop that calls a C function (table.sort). LuaJIT's trace of the loop ends at the call, and a
-- stitched one continues behind it. Now and then results of inner calls are lost, or a variable has another's value.
function walks.plain()
  local function is_text(_) return true end
  local function keys_of(t)
    local strings, integers = {}, {}
    for key in pairs(t) do
      if type(key) == "string" then
        if not is_text(key) then error "no text" end
        strings[#strings + 1] = key
      else
        integers[#integers + 1] = key
      end
    end
    table.sort(strings)
    table.sort(integers)
    for _, key in ipairs(strings) do integers[#integers + 1] = key end
    return integers
  end
  local Copier = {}
  Copier.__index = Copier
  function Copier:table(value)
    local node, length = {}, 0
    while rawget(value, length + 1) ~= nil do length = length + 1 end
    for _, key in ipairs(keys_of(value)) do
      local kind = type(key) == "string" and "table" or key >= 1 and key <= length and "list" or "integers"
      node[kind] = node[kind] or {}
      node[kind][kind == "integers" and ("%d"):format(key) or key] = self:part(key, rawget(value, key))
    end
    return node
  end
  function Copier:part(_, value)
    local node = self:node(value)
    return node
  end
  function Copier:node(value)
    if type(value) == "table" then return self:table(value) end
    if type(value) == "string" then return is_text(value) and value end
    return value
  end
  return function(value)
    local node, n = setmetatable({}, Copier):node(value), 0
    while type(node) == "table" do node, n = node.table and node.table.a, n + 1 end
    return n
  end
end

local function depth(value)
  local n = 0
  while type(value) == "table" do value, n = value.a, n + 1 end
  return n
end

walks["file_formats.checkpoint: Description"] = function()
  local checkpoint = require "luminary.file_formats.checkpoint"
  return function(value)
    local node, n = checkpoint.describe("save", value).top, 0
    while type(node) == "table" do node, n = node.table and node.table.a, n + 1 end
    return n
  end
end

walks["file_formats.checkpoint: restore"] = function()
  local lm = require "luminary"
  local written = {}
  return function(value)
    local path = folder .. "/" .. depth(value) .. ".safetensors"
    if not written[path] then lm.save(path, value) end
    written[path] = true
    return depth(lm.load(path))
  end
end

walks["base.json_encode: write"] = function()
  local json_encode = require "luminary.base.json_encode"
  return function(value)
    local n = depth(value)
    local nested, text = {1, "z"}, '[1,"z"]'
    for i = 2, n do
      nested, text = {a = nested, b = "x", c = {i, "y"}}, ('{"a":%s,"b":"x","c":[%d,"y"]}'):format(text, i)
    end
    return json_encode(nested) == text and n or 0
  end
end

walks["checkpoint.ranks: packed, unpacked"] = function()
  local ranks = require "luminary.checkpoint.ranks"
  return function(value) return depth(ranks.from_outline(ranks.outline(value))) end
end

walks["checkpoint.files: walk"] = function()
  local lm = require "luminary"
  return function(value)
    local path = folder .. "/a.safetensors"
    lm.checkpoint.save(path, {parts = value})
    return depth(lm.checkpoint.load(path).parts)
  end
end

walks["nn.module_fields: contains"] = function()
  local nn = require("luminary").nn
  return function(value)
    local net = nn.ReLU()
    for i = 2, depth(value) do net = i % 2 == 0 and nn.Sequential(nn.Tanh(), net, nn.ReLU()) or nn.Sequential(net) end
    local n = 1
    while net:is(nn.Sequential) do net, n = net[#net > 1 and 2 or 1], n + 1 end
    return n
  end
end

walks["prepare: watch"] = function()
  local lm = require "luminary"
  local prepare = require "luminary.prepare"
  return function(value)
    local n = depth(value)
    local net = lm.nn.Sequential()
    for i = 1, n do net:add_module("m" .. i, i % 3 == 0 and lm.nn.BatchNorm1d(1) or lm.nn.Linear(1, 1)) end
    local same = prepare.watch(net)
    local last = net["m" .. n]
    if not same() then return 0 end
    last.weight = lm.nn.Parameter(lm.ones(1))
    return same() and 0 or n
  end
end

local function make(n, i)
  if n == 0 then return {1, 2, {i}} end
  return {a = make(n - 1, i), 1, b = "x", c = {i, "y"}}
end

local walk = assert(walks[name], name)()
local bad, problem = 0, ""
for _ = 1, rounds do
  jit.flush()
  for i = 1, 150 do
    local levels = 3 + i % 60
    local ok, n = pcall(walk, make(levels, i))
    if not ok or n ~= levels + 1 then
      bad, problem = bad + 1, ok and ("%d of %d levels"):format(n, levels + 1) or n
      break
    end
  end
end
print(("%d of %d rounds are wrong"):format(bad, rounds), problem)

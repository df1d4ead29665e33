--- Encodes Lua values for another Lua state, as text, a list of tensors and a list of handles (of queues, locks and
--- others), and decodes them.
---
--- Objects are numbered in the order of the traversal and referred to by number, so cycles and sharing cost nothing.
--- The text has two parts: the data that makes each object (names, bytecode), then the contents of each table and
--- function in turn. It holds bytecode, so only text from a parent or child of this process is decoded.
---
---   n t f             nil, true, false
---   d<number>;        17 digits: exact
---   s<length>:<bytes> a string; S<n>; the n-th string again
---   T<n>; F<n>; …     an object of one of the kinds below
---
--- With {plain = true} tensors, 64-bit integers and tables without metatables are the only objects: whatever such a
--- text holds, decoding it returns only data.
local debug = require "debug"
local core = require "luminary.core"
local class = require "luminary.base.class"
local lists = require "luminary.base.lists"
local options = require "luminary.base.options"
local parameter = require "luminary.nn.parameter"
local environment_of = require "luminary.mp.function_environment"
local names = require "luminary.mp.module_references"
local share = require "luminary.mp.share_tensors"

local ffi_ok, ffi = pcall(require, "ffi")
local int64, uint64 = ffi_ok and ffi.typeof "int64_t", ffi_ok and ffi.typeof "uint64_t"

local serializer = {}

-- Kinds: tables, tensors, named values, functions, cdata, instances of classes that are userdata, handles.
local kinds, plain_kinds = {"T", "X", "N", "F", "C", "O", "H"}, {T = true, X = true, C = true}
local function new_lists()
  local by_kind = {}
  for _, kind in ipairs(kinds) do by_kind[kind] = {} end
  return by_kind
end

-- ---- paths of values in messages: "args[2].loss.hook", "fn's net.weight"

local function step_text(parent, how, key)
  if how == "upvalue" then return "'s " .. key end
  local record = how == "metatable" and debug.getmetatable(parent) or parent
  if type(record) == "table" and rawget(record, "values") then -- the inner tables of an object are not shown
    if how == "metatable" or key == "values" or key == "__index" or key == "__newindex" then return "" end
  end
  if how == "metatable" then return "'s metatable" end
  if how == "key" then return "'s key" end
  if type(key) == "string" and key:find("^[%a_][%w_]*$") then return "." .. key end
  if type(key) == "string" then return ("[%q]"):format(key) end
  if type(key) == "number" or type(key) == "boolean" then return "[" .. tostring(key) .. "]" end
  return core.is_tensor(key) and "[a tensor]" or "[a " .. type(key) .. "]"
end

local function path_of(way, object)
  local steps = {}
  while way[object] and way[object].from do
    local came = way[object]
    table.insert(steps, 1, step_text(came.from, came.how, came.key))
    object = came.from
  end
  if way.root then return way.root .. table.concat(steps) end
  local path = table.concat(steps):gsub("^%.", "")
  return (path == "" or path:find "^'s ") and "the value" .. path or path
end

-- ---- encoding

-- The head of a text without objects, followed by the text of a value that is not an object.
local NOTHING = ("0;"):rep(#kinds)
local function scalar_text(v)
  local kind = type(v)
  if kind == "number" then return ("d%.17g;"):format(v) end
  if kind == "string" then return "s" .. #v .. ":" .. v end
  if kind == "boolean" then return v and "t" or "f" end
  return kind == "nil" and "n" or nil
end

local Encoder = {}
Encoder.__index = Encoder

-- Fails for the value at self.way.here.
function Encoder:refuse(why, ...)
  core.error_at_caller(("%s: %s: %s"):format(self.who, path_of(self.way, "here"),
    why:format(...):gsub("THERE", self.there)))
end

function Encoder:string(s)
  local known = self.strings[s]
  if known then return "S" .. known .. ";" end
  self.nstrings = self.nstrings + 1
  self.strings[s] = self.nstrings
  return "s" .. #s .. ":" .. s
end

-- Returns an object's reference after numbering it; objects with contents wait in the queue.
function Encoder:enter(kind, object, waits)
  local list = self.lists[kind]
  list[#list + 1] = object
  local ref = kind .. #list .. ";"
  self.refs[object], self.way[object] = ref, self.way.here
  if waits then self.queue[#self.queue + 1] = object end
  return ref
end

function Encoder:tensor(t)
  if not core.is_alive(t) then self:refuse "a tensor that was freed cannot be sent to THERE" end
  if not self.plain and t.requires_grad and not t.is_leaf then
    self:refuse("a tensor that an op computed from others with gradients cannot be sent to THERE with its history; "
      .. "send x:detach()")
  end
  local unfit = self.processes and core.mp_unfit(t)
  if unfit then self:refuse("%s", unfit) end
  return self:enter("X", t)
end

function Encoder:handle(h)
  if not core.mp_is_open(h) then self:refuse "a closed object cannot be sent to THERE" end
  return self:enter("H", h)
end

function Encoder:fn(f)
  if debug.getinfo(f, "S").what == "C" then
    self:refuse "a C function that no module has as a field cannot be sent to THERE"
  end
  return self:enter("F", f, true)
end

local function is_integer(v) return ffi_ok and (ffi.istype(int64, v) or ffi.istype(uint64, v)) end

function Encoder:cdata(v)
  if not is_integer(v) then
    self:refuse("cdata of type %s cannot be sent to THERE: of cdata only 64-bit integers can",
      ffi_ok and tostring(ffi.typeof(v)) or "?")
  end
  return self:enter("C", v)
end

local words = {thread = "a coroutine", userdata = "userdata"}

-- Returns the text of one value: `how` and `key` are the step from `from` to it, for messages.
function Encoder:value(v, from, how, key)
  local kind = type(v)
  if kind == "string" then return self:string(v) end
  local scalar = scalar_text(v)
  if scalar then return scalar end
  local ref = self.refs[v]
  if ref and kind ~= "cdata" then return ref end
  self.way.here = {from = from, how = how, key = key}
  if self.plain and not (options.is_plain(v) or core.is_tensor(v) or is_integer(v)) then
    core.error_at_caller(("%s: %s is %s; only nil, booleans, numbers, strings, tensors and plain tables can be sent")
      :format(self.who, path_of(self.way, "here"), options.describe(v)))
  end
  if kind == "cdata" then return self:cdata(v) end
  if kind == "userdata" and core.is_tensor(v) then return self:tensor(v) end
  if kind == "userdata" and core.mp_is_handle(v) then return self:handle(v) end
  local steps = kind ~= "thread" and not self.plain and self.name_of(v)
  if steps then
    self.steps[#self.steps + 1] = steps
    return self:enter("N", v)
  end
  if kind == "table" then return self:enter("T", v, true) end
  if class.record(v) then return self:enter("O", v, true) end
  if kind == "function" then return self:fn(v) end
  return self:refuse("%s cannot be sent to THERE", words[kind] or kind)
end

-- Encodes a table's contents: its list, its other fields, its metatable. With `__stays` in that, it arrives empty, and
-- only numbers remain here if tensors move to shared memory, since recordings would hold the memory that they leave.
function Encoder:table_body(t, out)
  local metatable, n = not self.plain and debug.getmetatable(t) or nil, 0
  local stays = type(metatable) == "table" and rawget(metatable, "__stays")
  local content = stays and {} or t
  for key, value in next, stays and self.processes and t or {} do
    t[key] = type(value) == "number" and value or nil
  end
  while rawget(content, n + 1) ~= nil do n = n + 1 end
  out[#out + 1] = n .. ";"
  for i = 1, n do out[#out + 1] = self:value(rawget(t, i), t, "field", i) end
  for key, value in next, content do
    if not (type(key) == "number" and key >= 1 and key <= n and key % 1 == 0) then
      out[#out + 1] = self:value(key, t, "key", key)
      out[#out + 1] = self:value(value, t, "field", key)
    end
  end
  out[#out + 1] = "n" .. self:value(metatable, t, "metatable")
end

-- Encodes a function's upvalues, and its environment. An upvalue that an earlier function has too is shared with it.
function Encoder:function_body(f, out)
  local n = debug.getinfo(f, "u").nups
  out[#out + 1] = n .. ";"
  for i = 1, n do
    local id = debug.upvalueid(f, i)
    local first = self.upvalues[id]
    if first then
      out[#out + 1] = "j" .. first
    else
      self.upvalues[id] = self.refs[f] .. i .. ";"
      local name, value = debug.getupvalue(f, i)
      out[#out + 1] = "v" .. self:value(value, f, "upvalue", name)
    end
  end
  local env, lost = environment_of(f, self.name_of)
  if lost then
    self.way.here = {from = f, how = "upvalue", key = "environment"}
    self:refuse("its metatable cannot be sent to THERE, and the function uses '%s' of it; setfenv(f, t) with a table "
      .. "without metatable, or whose __index is a table, can", lost)
  end
  out[#out + 1] = self:value(env, f, "upvalue", "environment")
end

function Encoder:head()
  local out, objects = {}, self.lists
  for _, kind in ipairs(kinds) do out[#out + 1] = #objects[kind] .. ";" end
  for _, t in ipairs(objects.X) do
    out[#out + 1] = self.plain and t.dtype .. " " .. table.concat(t.shape, " ") .. ";" or parameter.is(t) and "p" or "x"
  end
  for _, steps in ipairs(self.steps) do
    out[#out + 1] = #steps .. ";"
    for _, step in ipairs(steps) do
      step = step or ""
      out[#out + 1] = #step .. ":" .. step
    end
  end
  for _, f in ipairs(objects.F) do
    local code = string.dump(f)
    out[#out + 1] = #code .. ":" .. code
  end
  for _, v in ipairs(objects.C) do
    local digits = tostring(v):match("^%-?%d+")
    out[#out + 1] = (ffi.istype(int64, v) and "i" or "u") .. digits .. ";"
  end
  return table.concat(out)
end

--- Returns the text, the list of tensors and the list of handles. `who` begins errors. opts: plain, the value's name in
--- errors (the text then has the tensors' dtypes and sizes); envelope (true: the value is a table of this message
--- alone, which has no name); processes (true: tensors move to shared memory; else they are passed within this
--- process); name_of (a finder of module_references.lua, which frequent callers cache; by default modules are scanned
--- again).
function serializer.encode(who, value, opts)
  local scalar = scalar_text(value)
  if scalar then return NOTHING .. scalar, {}, {} end
  local self = setmetatable({
    who = who, processes = opts.processes,
    there = opts.plain and "another rank" or opts.processes and "another process" or "another thread",
    refs = {}, lists = new_lists(), steps = {}, queue = {}, way = {root = opts.plain}, upvalues = {},
    strings = {}, nstrings = 0, plain = opts.plain, name_of = not opts.plain and (opts.name_of or names.finder()),
  }, Encoder)
  local out = {opts.envelope and self:enter("T", value, true) or self:value(value)}
  local at = 1
  while self.queue[at] do
    local object = self.queue[at]
    at = at + 1
    out[#out + 1] = self.refs[object]
    local kind = type(object)
    if kind == "table" then
      self:table_body(object, out)
    elseif kind == "function" then
      self:function_body(object, out)
    else
      out[#out + 1] = self:value(debug.getmetatable(object), object, "metatable")
    end
  end
  if self.processes then
    share(self.lists.X, function(i, why) core.error_at_caller(("%s: %s: %s"):format(who,
      path_of(self.way, self.lists.X[i]), why)) end)
  end
  return self:head() .. table.concat(out), self.lists.X, self.lists.H
end

-- ---- decoding

local find, sub, byte = string.find, string.sub, string.byte

local function malformed() core.error_at_caller("mp: received malformed data") end

-- Reads a text from its beginning, and makes its values. It has no closures: a JIT trace would retain those of an early
-- message, and its tensors with them.
local Decoder = {}
Decoder.__index = Decoder

function Decoder:peek() return sub(self.text, self.at, self.at) end

function Decoder:letter()
  self.at = self.at + 1
  return sub(self.text, self.at - 1, self.at - 1)
end

function Decoder:before(mark)
  local stop = find(self.text, mark, self.at, true) or malformed()
  local v = sub(self.text, self.at, stop - 1)
  self.at = stop + 1
  return v
end

function Decoder:digits() return self:before ";" end
function Decoder:number() return tonumber(self:before ";") or malformed() end

-- Reads a number of items, each of which takes a byte or more.
function Decoder:count(mark)
  local n = tonumber(self:before(mark or ";"))
  return n and n >= 0 and n <= #self.text and n % 1 == 0 and n or malformed()
end

function Decoder:bytes()
  local n = self:count ":"
  if self.at + n - 1 > #self.text then malformed() end
  self.at = self.at + n
  return sub(self.text, self.at - n, self.at - 1)
end

function Decoder:done() return self.at > #self.text end

local function integer(kind, digits)
  local negative, value = byte(digits) == 45, kind == "i" and int64(0) or uint64(0)
  for digit in digits:gmatch("%d") do
    value = value * 10 + (negative and -tonumber(digit) or tonumber(digit))
  end
  return value
end

local function load_function(code)
  local f, problem = loadstring(code)
  if not f then
    core.error_at_caller(("mp: cannot load a function's bytecode (%s): both processes must run the same LuaJIT; "
      .. "select it with lm.mp.set_executable(path)"):format(problem))
  end
  return f
end

-- Returns the next tensor, of the text's dtype and sizes.
function Decoder:plain_tensor()
  local dtype, sizes = self:digits():match "^(%w+) ([%d ]*)$"
  local shape = lists.map(lists.parts(sizes or "", "%d+"), function(digits) return tonumber(digits) end)
  return dtype and self.plain:tensor(dtype, shape) or malformed()
end

-- Makes the objects by kind and number, still empty.
function Decoder:make_objects(tensors, handles)
  local counts, objects = {}, new_lists()
  objects.X, objects.H = tensors, handles
  for i = 1, #kinds do
    counts[i] = self:count()
    if self.plain and not plain_kinds[kinds[i]] and counts[i] > 0 then malformed() end
  end
  self.empty = counts[1] + counts[4] + counts[6] -- objects with contents
  for i = 1, counts[1] do objects.T[i] = {} end
  for i = 1, counts[2] do
    if self.plain then
      tensors[i] = self:plain_tensor()
    elseif self:letter() == "p" then
      parameter.mark(tensors[i])
    end
  end
  for i = 1, counts[3] do
    local steps = {}
    for k = 1, self:number() do steps[k] = self:bytes() end
    objects.N[i] = names.resolve(steps)
  end
  for i = 1, counts[4] do objects.F[i] = load_function(self:bytes()) end
  for i = 1, counts[5] do objects.C[i] = integer(self:letter(), self:digits()) end
  for i = 1, counts[6] do objects.O[i] = newproxy() end
  self.objects = objects
end

-- Reads one value.
function Decoder:value()
  local kind = self:letter()
  if kind == "n" then return nil end
  if kind == "t" then return true end
  if kind == "f" then return false end
  if kind == "d" then return self:number() end
  if kind == "s" then
    local s = self:bytes()
    self.strings[#self.strings + 1] = s
    return s
  end
  if kind == "S" then return self.strings[self:number()] or malformed() end
  return (self.objects[kind] or malformed())[self:number()] or malformed()
end

function Decoder:fill_table(t)
  for i = 1, self:count() do rawset(t, i, self:value()) end
  while self:peek() ~= "n" do
    local key = self:value()
    rawset(t, key, self:value())
  end
  self:letter()
  local metatable = self:value()
  if self.plain and metatable ~= nil then malformed() end
  debug.setmetatable(t, metatable)
end

function Decoder:fill_function(f)
  for i = 1, self:number() do
    if self:letter() == "j" then
      self:letter()
      local other = self.objects.F[self:number()]
      debug.upvaluejoin(f, i, other, self:number())
    else
      debug.setupvalue(f, i, self:value())
    end
  end
  local env = self:value()
  if env then debug.setfenv(f, env) end
end

--- Returns the value; may load modules, unless the text must be plain, which it then checks. plain: nil, or an object
--- whose method tensor(dtype, list of sizes) returns the next tensor of a plain text.
function serializer.decode(text, tensors, handles, plain)
  if sub(text, 1, #NOTHING) == NOTHING and not plain then
    local kind = sub(text, #NOTHING + 1, #NOTHING + 1)
    if kind == "d" then return tonumber(sub(text, #NOTHING + 2, -2)) or malformed() end
    if kind == "s" then return (sub(text, find(text, ":", #NOTHING, true) + 1)) end
  end
  local self = setmetatable({text = text, at = 1, strings = {}, plain = plain}, Decoder)
  self:make_objects(tensors, handles)
  local root = self:value()
  while not self:done() do
    local kind = self:letter()
    local object = (self.objects[kind] or malformed())[self:number()] or malformed()
    self.empty = self.empty - 1
    if kind == "T" then
      self:fill_table(object)
    elseif kind == "F" then
      self:fill_function(object)
    elseif kind == "O" then
      debug.setmetatable(object, self:value())
    else
      malformed()
    end
  end
  if self.empty ~= 0 then malformed() end
  return root
end

return serializer

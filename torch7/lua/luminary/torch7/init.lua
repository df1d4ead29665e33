--- Provides Torch7's names: `local torch = require "luminary.torch7"; local nn, optim = torch.nn, torch.optim`. Tensors
--- made here behave as Torch7's: ops in place, reductions that keep dims, no autograd. Luminary's own tensors in the
--- same process are unchanged. x:raw() is luminary's tensor over the same memory, torch.wrap(x) the inverse. Luminary's
--- own nn, optim and modules get Torch7's names too (names.lua). docs/from_torch7.md lists all.
require "luminary" -- first, since it fails in unsupported interpreters
require("luminary.base.script_frames").add_own(require("debug").getinfo(1, "S").source:match "^@(.*)init%.lua$")
local core = require "luminary.core"
local ffi = require "ffi"
local options = require "luminary.base.options"
local class = require "luminary.torch7.class"
local tensor = require "luminary.torch7.tensor"
local storage = require "luminary.torch7.storage"
for _, name in ipairs {"views", "elementwise", "reductions", "random", "matrices", "printing"} do
  require("luminary.torch7." .. name)
end
local files = require "luminary.torch7.files"
local fail = options.fail

require "luminary.torch7.names"

local torch = class.packages.torch
for name, f in pairs(tensor.methods) do torch[name] = f end
for name, f in pairs(tensor.functions) do torch[name] = f end
for _, part in ipairs {"module", "leaf", "layers", "windows", "containers", "criterions", "utils", "more_layers",
  "sparse", "derivatives", "direct", "texts", "file_fields"} do
  require("luminary.torch7.nn." .. part)
end
torch.nn, torch.optim = class.packages.nn, require "luminary.torch7.optim"
torch.paths = require "luminary.paths"
local CmdLine, of_luminary = class.new "torch.CmdLine", require "luminary.torch7.cmd_line"
for name, f in pairs(of_luminary) do CmdLine[name] = rawget(CmdLine, name) or f end
CmdLine.__init, torch.Timer = of_luminary.init, require "luminary.timer"
torch.TestSuite = require "luminary.torch7.tester"
torch.xlua = require "luminary.torch7.xlua"
torch.class, torch.type, torch.typename, torch.isTypeOf = class.new, class.type, class.typename, class.isTypeOf
torch.isTensor, torch.wrap, torch.isStorage = tensor.is, tensor.wrap, storage.is

-- ---- types

-- CudaLongTensor and others are nil, which scripts test, until cutorch is there.
for _, constructors in ipairs {tensor.constructors, storage.constructors} do
  for name, constructor in pairs(constructors) do
    if not name:find "^Cuda%u%l+%u" then torch[name] = constructor end
  end
end

--- Sets the type of torch.Tensor, by default "torch.DoubleTensor", as in Torch7.
function torch.setdefaulttensortype(name)
  local dtype = tensor.dtype_of(name)
  if dtype ~= "float32" and dtype ~= "float64" or name:find "Cuda" then
    fail("torch.setdefaulttensortype: name must be 'torch.FloatTensor' or 'torch.DoubleTensor', got '%s'",
      tostring(name))
  end
  tensor.default = dtype
  local short = tensor.type_for(dtype):match "%.(%a+)Tensor"
  torch.Tensor, torch.Storage = torch[short .. "Tensor"], torch[short .. "Storage"]
end
torch.setdefaulttensortype "torch.DoubleTensor"
function torch.getdefaulttensortype() return tensor.type_for(tensor.default) end

-- ---- other functions

--- Returns true if two values are equal: tensors by type, sizes and elements, tables by their entries.
function torch.isequal(a, b)
  if tensor.is(a) and tensor.is(b) then return a:type() == b:type() and a:isSameSizeAs(b) and a:equal(b) end
  if type(a) ~= "table" or type(b) ~= "table" then return a == b end
  for k, v in pairs(a) do if not torch.isequal(v, b[k]) then return false end end
  for k in pairs(b) do if a[k] == nil then return false end end
  return true
end
--- Returns a number that identifies an object while it exists: that of tensors and storages is their memory's address.
function torch.pointer(object)
  if tensor.is(object) or storage.is(object) then return object:data(true) end
  local kind = type(object)
  if kind == "number" or kind == "boolean" or kind == "nil" then
    options.expected("torch.pointer", "an object", object)
  end
  if kind == "cdata" then return tonumber(ffi.cast("intptr_t", object)) end
  return tonumber(("%p"):format(object))
end
--- Makes a table an object of a class.
function torch.setmetatable(object, name)
  return setmetatable(object, class.by_name[name] or fail("torch.setmetatable: no class '%s'", tostring(name)))
end
--- Returns the table of the methods of a class, or of a type of tensors or storages; nil if there is no such class.
function torch.getmetatable(name) return tensor.types[name] or storage.types[name] or class.by_name[name] end
--- Returns a function that makes an object of a class without calling its __init; nil if there is no such class.
function torch.factory(name)
  local of_type = tensor.types[name] or storage.types[name]
  if of_type then return function() return of_type.new() end end
  local methods = class.by_name[name]
  return methods and function() return setmetatable({}, methods) end
end

function torch.setnumthreads(n) core.set_num_threads(n) end
function torch.getnumthreads() return core.get_num_threads() end
function torch.tic() return core.time() end
function torch.toc(since) return core.time() - since end
--- Sets torch._heaptracking, which has no effect: tensors' memory always counts for the garbage collector.
function torch.setheaptracking(on) torch._heaptracking = options.arg("torch.setheaptracking", "on", on, "boolean") end
torch.setheaptracking(false)

for _, name in ipairs {"save", "load", "serialize", "deserialize", "serializeToStorage", "deserializeFromStorage",
  "DiskFile", "MemoryFile", "PipeFile"} do
  torch[name] = files[name]
end

-- Lua 5.2's names that Torch7's LuaJIT had
for name, f in pairs {unpack = unpack, pack = options.pack} do
  if rawget(table, name) == nil then rawset(table, name, f) end
end
rawset(string, "gfind", string.gmatch)

return setmetatable(torch, {__library = "torch7", __renames = true}) -- errors of ops name its functions (error.c)

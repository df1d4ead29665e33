--- Provides Torch7's names: `local torch = require "luminary.torch7"; local nn, optim = torch.nn, torch.optim`. Tensors
--- made here behave as Torch7's: ops in place, reductions that keep dims, no autograd. Luminary's own tensors in the
--- same process are unchanged. x:raw() is luminary's tensor over the same memory, torch.wrap(x) the inverse. Luminary's
--- own nn, optim and modules get Torch7's names too (names.lua). docs/from_torch7.md lists all.
require "luminary" -- first, since it fails in unsupported interpreters
require("luminary.base.script_frames").add_own(require("debug").getinfo(1, "S").source:match "^@(.*)init%.lua$")
local core = require "luminary.core"
local lists = require "luminary.base.lists"
local options = require "luminary.base.options"
local class = require "luminary.torch7.class"
local tensor = require "luminary.torch7.tensor"
local storage = require "luminary.torch7.storage"
local files = require "luminary.torch7.files"
local CmdLine = require "luminary.torch7.cmd_line"
local Timer = require "luminary.timer"
local fail, ops = options.fail, core.ops
local wrap = tensor.wrap

require "luminary.torch7.names"

local torch = class.packages.torch
torch.nn, torch.optim = require "luminary.torch7.nn", require "luminary.torch7.optim"
torch.paths = require "luminary.paths"
torch.CmdLine, torch.Timer = CmdLine, Timer
torch.TestSuite = require "luminary.torch7.tester"
torch.xlua = require "luminary.torch7.xlua"
torch.class, torch.type, torch.typename, torch.isTypeOf = class.new, class.type, class.typename, class.isTypeOf
torch.isTensor, torch.wrap = tensor.is, wrap

require "luminary.torch7.matrices"
tensor.storage = storage
tensor.publish()
for name, f in pairs(tensor.functions) do torch[name] = torch[name] or f end

-- ---- constructors

for _, kind in ipairs {"Float", "Double", "Half", "Long", "Int", "Short", "Char", "Byte"} do
  local dtype = tensor.dtype_of(kind .. "Tensor")
  torch[kind .. "Tensor"] = function(...) return tensor.new(dtype, ...) end
  torch[kind .. "Storage"] = function(...) return storage.new(dtype, ...) end
end
function torch.Tensor(...) return tensor.new(tensor.default, ...) end
function torch.Storage(...) return storage.new(tensor.default, ...) end
torch.isStorage = storage.is
--- torch.CudaTensor(…): Creates a FloatTensor on the GPU.
function torch.CudaTensor(...) return tensor.new("float32", ...):cuda() end
--- torch.LongStorage(list or n): Creates sizes, from a list or n zeros.
function torch.LongStorage(v)
  return type(v) == "table" and tensor.sizes(v) or tensor.sizes({}):resize(v or 0)
end

--- Sets the type of torch.Tensor, by default "torch.DoubleTensor", as in Torch7.
function torch.setdefaulttensortype(name)
  local dtype = tensor.dtype_of(name)
  if dtype ~= "float32" and dtype ~= "float64" then
    fail("torch.setdefaulttensortype: name must be 'torch.FloatTensor' or 'torch.DoubleTensor', got '%s'",
      tostring(name))
  end
  tensor.default = dtype
end
function torch.getdefaulttensortype()
  return tensor.default == "float64" and "torch.DoubleTensor" or "torch.FloatTensor"
end

for _, name in ipairs {"zeros", "ones", "rand", "randn"} do
  torch[name] = function(...) return wrap(ops[name](tensor.sizes_from(...), {dtype = tensor.default})) end
end

--- torch.range(a, b [, step]): Returns numbers from a to b, including b.
function torch.range(a, b, step)
  step = step or 1
  for name, v in pairs {a = a or "none", b = b or "none", step = step} do
    options.arg("torch.range", name, v, "number")
  end
  local values, n = {}, math.floor((b - a) / step + 1e-9) + 1
  for i = 1, n do values[i] = a + (i - 1) * step end
  return wrap(core.tensor(values, {dtype = tensor.default}))
end
function torch.linspace(a, b, n)
  options.arg("torch.linspace", "a", a, "number")
  options.arg("torch.linspace", "b", b, "number")
  n = options.arg("torch.linspace", "n", n or 100, "count")
  local values = {}
  for i = 1, n do values[i] = n == 1 and a or a + (i - 1) * (b - a) / (n - 1) end
  return wrap(core.tensor(values, {dtype = tensor.default}))
end
--- torch.logspace(a, b [, n]): Returns numbers from 10^a to 10^b.
function torch.logspace(a, b, n)
  return wrap(ops.pow(ops.full({}, 10, {dtype = tensor.default}), tensor.raw(torch.linspace(a, b, n))))
end
function torch.eye(n, m) return wrap(ops.eye(n, {m = m or n, dtype = tensor.default})) end
function torch.randperm(n) return wrap(ops.add(ops.randperm(n), 0):to(tensor.default)) end
--- torch.cat(a, b [, dim]) or torch.cat({a, b, …} [, dim]): Concatenates along dim, the last one by default.
function torch.cat(a, b, dim)
  if tensor.is(a) then return wrap(ops.cat({tensor.raw(a), tensor.raw(b)}, dim or -1)) end
  return wrap(ops.cat(tensor.raw_all(a), b or -1))
end

-- ---- random numbers

function torch.manualSeed(seed) core.manual_seed(seed) end
function torch.seed()
  local seed = os.time()
  core.manual_seed(seed)
  return seed
end

local function drawn(name, ...) return torch.DoubleTensor(1)[name](torch.DoubleTensor(1), ...)[1] end
function torch.initialSeed() return core.initial_seed() end
--- Returns and sets the generator's state, a ByteTensor.
function torch.getRNGState() return wrap(core.get_rng_state "cpu") end
function torch.setRNGState(state) core.set_rng_state(tensor.raw(state, "torch.setRNGState"), "cpu") end
--- Draw one number: torch.random(n) and torch.random(a, b) an integer, with both ends; torch.uniform(a, b);
--- torch.normal(mean, std); torch.bernoulli(p).
for _, name in ipairs {
  "random", "uniform", "normal", "bernoulli", "exponential", "cauchy", "logNormal", "geometric",
} do
  torch[name] = function(...) return drawn(name, ...) end
end

-- ---- other functions

--- Returns true if two values are equal: tensors by type, sizes and elements, tables by their entries.
function torch.isequal(a, b)
  if tensor.is(a) and tensor.is(b) then return a:type() == b:type() and a:isSameSizeAs(b) and a:equal(b) end
  if type(a) ~= "table" or type(b) ~= "table" then return a == b end
  for k, v in pairs(a) do if not torch.isequal(v, b[k]) then return false end end
  for k in pairs(b) do if a[k] == nil then return false end end
  return true
end
--- Returns a number that identifies an object while it exists.
function torch.pointer(object)
  if tensor.is(object) then return object:data(true) end
  local kind = type(object)
  if kind == "number" or kind == "boolean" or kind == "nil" then
    options.expected("torch.pointer", "an object", object)
  end
  return tonumber(("%p"):format(object))
end
--- Makes a table an object of a class.
function torch.setmetatable(object, name)
  return setmetatable(object, class.by_name[name] or fail("torch.setmetatable: no class '%s'", tostring(name)))
end
--- Returns the table of a class's methods; nil if there is no such class.
function torch.getmetatable(name) return class.by_name[name] end
--- Returns a function that makes an object of a class without calling its __init.
function torch.factory(name)
  local methods = class.by_name[name] or fail("torch.factory: no class '%s'", tostring(name))
  return function() return setmetatable({}, methods) end
end

function torch.setnumthreads(n) core.set_num_threads(n) end
function torch.getnumthreads() return core.get_num_threads() end
function torch.tic() return core.time() end
function torch.toc(since) return core.time() - since end

for _, name in ipairs {"save", "load", "serialize", "deserialize", "DiskFile", "MemoryFile"} do
  torch[name] = files[name]
end

return setmetatable(torch, {__library = "torch7", __index = function(_, key)
  if type(key) == "string" and key:sub(1, 2) ~= "__" then
    local near = core.nearest(key, lists.sorted_keys(torch))
    fail("torch has no '%s' in luminary.torch7%s", key, near and "; did you mean '" .. near .. "'?" or "")
  end
end})

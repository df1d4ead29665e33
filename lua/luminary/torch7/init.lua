--- Torch7's names, over luminary: `local torch = require "luminary.torch7"; local nn, optim = torch.nn, torch.optim`.
--- Tensors made here are Torch7's: in place, keeping dims, outside of autograd; those of luminary in the same process
--- stay as they are. x:raw() is luminary's tensor over the same memory, torch.wrap(x) the way back. docs/torch7.md has
--- the names. torch.load reads .t7 files; nothing writes them yet.
local core = require "luminary.core"
local options = require "luminary.base.options"
local class = require "luminary.torch7.class"
local tensor = require "luminary.torch7.tensor"
local CmdLine = require "luminary.cmd_line"
local Timer = require "luminary.timer"
local fail, ops = options.fail, core.ops
local wrap = tensor.wrap

local torch = class.packages.torch
torch.nn, torch.optim = require "luminary.torch7.nn", require "luminary.torch7.optim"
torch.paths = require "luminary.paths"
torch.CmdLine, torch.Timer = CmdLine, Timer
torch.class, torch.type, torch.typename, torch.isTypeOf = class.new, class.type, class.typename, class.isTypeOf
torch.isTensor, torch.wrap = tensor.is, wrap

for name, f in pairs(tensor.functions) do torch[name] = torch[name] or f end

-- ---- constructors

for _, name in ipairs {"FloatTensor", "DoubleTensor", "HalfTensor", "LongTensor", "IntTensor", "ByteTensor"} do
  local dtype = tensor.dtype_of(name)
  torch[name] = function(...) return tensor.new(dtype, ...) end
end
function torch.Tensor(...) return tensor.new(tensor.default, ...) end
function torch.LongStorage(list) return tensor.sizes(type(list) == "table" and list or {}) end

--- The type of torch.Tensor, "torch.DoubleTensor" at first, as in Torch7.
function torch.setdefaulttensortype(name)
  local dtype = tensor.dtype_of(name)
  if dtype ~= "float32" and dtype ~= "float64" then
    fail("torch.setdefaulttensortype: 'torch.FloatTensor' or 'torch.DoubleTensor' wanted, got '%s'", tostring(name))
  end
  tensor.default = dtype
end
function torch.getdefaulttensortype()
  return tensor.default == "float64" and "torch.DoubleTensor" or "torch.FloatTensor"
end

for _, name in ipairs {"zeros", "ones", "rand", "randn"} do
  torch[name] = function(...) return wrap(ops[name](tensor.sizes_from(...), {dtype = tensor.default})) end
end

--- torch.range(a, b [, step]): from a to b, with b.
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
function torch.eye(n) return wrap(ops.eye(n, {dtype = tensor.default})) end
function torch.randperm(n) return wrap(ops.add(ops.randperm(n), 0):to(tensor.default)) end
--- torch.cat(a, b [, dim]) or torch.cat({a, b, …} [, dim]): along the last dim unless dim says otherwise.
function torch.cat(a, b, dim)
  if tensor.is(a) then return wrap(ops.cat({tensor.raw(a), tensor.raw(b)}, dim or -1)) end
  return wrap(ops.cat(tensor.raw_all(a), b or -1))
end

-- ---- chance

function torch.manualSeed(seed) core.manual_seed(seed) end
function torch.seed()
  local seed = os.time()
  core.manual_seed(seed)
  return seed
end

local function drawn(name, ...) return torch.DoubleTensor(1)[name](torch.DoubleTensor(1), ...)[1] end
--- One number: torch.random(n) and torch.random(a, b) whole, with both ends; torch.uniform(a, b); torch.normal(mean,
--- std); torch.bernoulli(p).
for _, name in ipairs {"random", "uniform", "normal", "bernoulli"} do
  torch[name] = function(...) return drawn(name, ...) end
end

-- ---- the rest

function torch.setnumthreads(n) core.set_num_threads(n) end
function torch.getnumthreads() return core.get_num_threads() end
function torch.tic() return core.time() end
function torch.toc(since) return core.time() - since end

--- torch.load(path): the first object of a .t7 file, binary or ascii, or whatever else lm.load reads; its tensors and
--- storages are Torch7's tensors. Objects such as nn's are plain tables with their class's name under "__typename".
function torch.load(path)
  local all, seen, todo = {require("luminary.save_load").load(path)}, {}, {}
  local function look(t)
    seen[t] = true
    for key, v in pairs(t) do
      if core.is_tensor(v) then
        t[key] = wrap(v)
      elseif type(v) == "table" and not seen[v] and not tensor.is(v) then
        todo[#todo + 1] = v
      end
    end
  end
  look(all)
  while #todo > 0 do look(table.remove(todo)) end
  return all[1]
end

for _, name in ipairs {"save", "serialize", "deserialize"} do
  torch[name] = function()
    fail("torch.%s: .t7 files are read by torch.load, not written; lm.save takes x:raw() of each tensor", name)
  end
end

return setmetatable(torch, {__library = "torch7", __index = function(_, key)
  if type(key) == "string" and key:sub(1, 2) ~= "__" then
    local names = {}
    for name in pairs(torch) do names[#names + 1] = name end
    table.sort(names)
    local near = core.nearest(key, names)
    fail("torch has no '%s' in luminary.torch7%s", key, near and "; did you mean '" .. near .. "'?" or "")
  end
end})

--- Torch7's nn.utils: the same done to tensors and to tables of tensors.
local options = require "luminary.base.options"
local class = require "luminary.torch7.class"
local tensor = require "luminary.torch7.tensor"

local utils = {}
class.packages.nn.utils = utils

-- f(a, b) of the tensors of b, tables of any depth, and of those at the same positions of a, which are made where they
-- are missing. Returns a.
local function paired(who, a, b, f)
  if tensor.is(b) then
    a = tensor.is(a) and a or b:new()
    f(a, b)
    return a
  elseif type(b) ~= "table" then
    options.expected("nn.utils." .. who, "a tensor or a table of them", b)
  end
  a = type(a) == "table" and a or {a}
  for key, each in pairs(b) do a[key] = paired(who, a[key], each, f) end
  return a
end

--- nn.utils.recursiveResizeAs(a, b): a with the sizes of b, whose elements stay what they were; a, b.
function utils.recursiveResizeAs(a, b)
  a = paired("recursiveResizeAs", a, b, function(x, y) x:resizeAs(y) end)
  if type(a) == "table" then
    for key in pairs(a) do if b[key] == nil then a[key] = nil end end
  end
  return a, b
end
--- nn.utils.recursiveCopy(a, b): a with the sizes and the elements of b; a, b.
function utils.recursiveCopy(a, b)
  return paired("recursiveCopy", a, b, function(x, y) x:resizeAs(y):copy(y) end), b
end
--- nn.utils.recursiveAdd(a, [v = 1,] b): a + v * b, in a; a, b.
function utils.recursiveAdd(a, v, b)
  if b == nil then v, b = 1, v end
  return paired("recursiveAdd", a, b, function(x, y) x:add(v, y) end), b
end
--- nn.utils.recursiveFill(t, v)
function utils.recursiveFill(t, v)
  return paired("recursiveFill", t, t, function(x) x:fill(v) end)
end
--- nn.utils.recursiveType(t, "torch.FloatTensor"): tensors, modules and criterions in that type.
function utils.recursiveType(t, name)
  if tensor.is(t) then return t:type(name) end
  if class.isTypeOf(t, "nn.Module") or class.isTypeOf(t, "nn.Criterion") then return t:type(name) end
  if type(t) == "table" then
    for key, each in pairs(t) do t[key] = utils.recursiveType(each, name) end
  end
  return t
end

--- nn.utils.addSingletonDimension([view,] t [, dim = 1]): t with a dim of size 1 more.
function utils.addSingletonDimension(...)
  local view, t, dim = ...
  if select("#", ...) < 3 and not (tensor.is(view) and tensor.is(t)) then view, t, dim = nil, view, t end
  local result = tensor.wrap(tensor.raw(t, "addSingletonDimension"):unsqueeze(dim or 1))
  return view and view:set(result) or result
end
--- nn.utils.contiguousView(view, t, …): t in those sizes, as a view where its memory allows one.
function utils.contiguousView(view, t, ...)
  local result = t:contiguous():view(...)
  return view and view:set(result) or result
end
--- nn.utils.clear(object, names…): empties the tensors and tables of these fields, and removes others.
function utils.clear(object, ...)
  local names = type(...) == "table" and (...) or {...}
  for _, name in ipairs(names) do
    local v = rawget(object, name)
    if tensor.is(v) then v:set() else object[name] = type(v) == "table" and {} or nil end
  end
  return object
end

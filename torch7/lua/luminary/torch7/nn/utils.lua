--- Implements Torch7's nn.utils, functions for tensors and tables of tensors.
local options = require "luminary.base.options"
local class = require "luminary.torch7.class"
local tensor = require "luminary.torch7.tensor"

local utils = {}
class.packages.nn.utils = utils

-- Calls f(a, b) for each tensor of b, a table of any depth, and the one at the same position of a, created if missing.
-- Returns a.
local function paired(who, a, b, f)
  if tensor.is(b) then
    a = tensor.is(a) and a or tensor.new(b:raw().dtype)
    f(a, b)
    return a
  elseif type(b) ~= "table" then
    options.expected("nn.utils." .. who, "a tensor or a table of them", b)
  end
  a = type(a) == "table" and a or {a}
  for key, each in pairs(b) do a[key] = paired(who, a[key], each, f) end
  return a
end

--- nn.utils.recursiveResizeAs(a, b): Resizes a as b, keeping its elements; returns a, b.
function utils.recursiveResizeAs(a, b)
  a = paired("recursiveResizeAs", a, b, function(x, y) x:resizeAs(y) end)
  if type(a) == "table" then
    for key in pairs(a) do if b[key] == nil then a[key] = nil end end
  end
  return a, b
end
--- nn.utils.recursiveCopy(a, b): Makes a a copy of b, with its sizes; returns a, b.
function utils.recursiveCopy(a, b)
  return paired("recursiveCopy", a, b, function(x, y) x:resizeAs(y):copy(y) end), b
end
--- nn.utils.recursiveAdd(a, [v = 1,] b): Adds v * b to a; returns a, b.
function utils.recursiveAdd(a, v, b)
  if b == nil then v, b = 1, v end
  return paired("recursiveAdd", a, b, function(x, y) x:add(v, y) end), b
end
--- nn.utils.recursiveFill(t, v): Fills all tensors with v.
function utils.recursiveFill(t, v)
  return paired("recursiveFill", t, t, function(x) x:fill(v) end)
end
--- nn.utils.recursiveType(t, "torch.FloatTensor"): Converts tensors, modules and criterions to that type.
function utils.recursiveType(t, name, cache)
  cache = cache or {}
  if tensor.is(t) then return t:type(name) end
  if class.isTypeOf(t, "nn.Module") or class.isTypeOf(t, "nn.Criterion") then return t:type(name, cache) end
  if type(t) == "table" then
    for key, each in pairs(t) do t[key] = utils.recursiveType(each, name, cache) end
  end
  return t
end

--- nn.utils.addSingletonDimension([view,] t [, dim = 1]): Returns t with a new dim of size 1.
function utils.addSingletonDimension(...)
  local view, t, dim = ...
  if select("#", ...) < 3 and not (tensor.is(view) and tensor.is(t)) then view, t, dim = nil, view, t end
  local result = tensor.wrap(tensor.raw(t, "addSingletonDimension"):unsqueeze(dim or 1))
  return view and view:set(result) or result
end
--- nn.utils.contiguousView(view, t, …): Returns t in those sizes, as a view if t is contiguous.
function utils.contiguousView(view, t, ...)
  local result = t:contiguous():view(...)
  return view and view:set(result) or result
end
--- nn.utils.clear(object, names…): Empties the tensors and tables of these fields, and removes others.
function utils.clear(object, ...)
  local names = type(...) == "table" and (...) or {...}
  for _, name in ipairs(names) do
    local v = rawget(object, name)
    if tensor.is(v) then v:set() else object[name] = type(v) == "table" and {} or nil end
  end
  return object
end

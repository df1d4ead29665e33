--- Classes: `Base:extend("Name")` makes one, calling it makes an instance and runs `init`.
local options = require "luminary.options"

local class = {}

local function construct(self, ...)
  local object = setmetatable({}, getmetatable(self).instance)
  object:init(...)
  return object
end

local function text(object) return object:repr() end

--- A class of that name; without `super` it is a root. A root may bring its own constructor, which
--- its subclasses share. The class's metatable has `instance`, the metatable for plain instances.
function class.new(name, super, constructor)
  local new = {__name = name, super = super}
  local instance = {__index = new, __tostring = text}
  return setmetatable(new, {
    __index = super,
    __call = constructor or (super and getmetatable(super).__call) or construct,
    __tostring = function() return "class " .. name end,
    instance = instance,
  })
end

--- What every class has.
class.methods = {
  extend = function(self, name)
    return class.new(options.arg("extend", "name", name, "string"), self)
  end,
  init = function() end,
  repr = function(self) return self.__name end,
}

--- Whether `candidate` is `wanted` or extends it.
function class.descends(candidate, wanted)
  while candidate do
    if candidate == wanted then return true end
    candidate = candidate.super
  end
  return false
end

--- Whether `object` is an instance of `wanted` or of a class that extends it.
function class.is(object, wanted)
  local mt = type(object) == "table" and getmetatable(object)
  return mt and type(mt.__index) == "table" and class.descends(mt.__index, wanted) or false
end

--- A root class with `extend`, `init`, `repr`, and `is`.
function class.root(name)
  local root = class.new(name)
  for key, method in pairs(class.methods) do root[key] = method end
  root.is = class.is
  return root
end

return class

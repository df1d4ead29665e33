--- Classes: `Base:extend("Name")` makes one, calling it makes an instance and runs `init`.
---
--- An instance is userdata with a metatable of its own, its record, whose `values` are its fields and fall back to its
--- class. Userdata, because LuaJIT asks only those for their length: `#object` is object:len() or an error, and
--- ipairs(object) and pairs(object) are errors, where those of an empty table would be 0 and loops that do nothing.
local options = require "luminary.options"
local fail = options.fail
local newproxy, debug_getmetatable, debug_setmetatable = newproxy, debug.getmetatable, debug.setmetatable

local class = {}

--- The record of an instance of any class; nil for other values.
class.record = options.record
local record_of = class.record

-- What a class says about walking its instances.
local function hint(object) return object.__hint and "; " .. object.__hint or "" end

local function text(object) return object:repr() end

local function length(object)
  if type(object.len) == "function" then return object:len() end
  fail("%s has no length%s", object.__name, hint(object))
end

-- Asked only where LuaJIT was built with Lua 5.2's metamethods; elsewhere ipairs and pairs refuse by themselves.
local function refuse(object)
  fail("%s: pairs and ipairs walk tables, and this is an object%s", object.__name, hint(object))
end

-- A record is made of what a kind of object has of its own.
local function complete(of, record)
  local values = record.values or setmetatable({}, debug_getmetatable(of).instance)
  record.class, record.values, record.__tostring = of, values, text
  record.__index, record.__newindex = record.__index or values, record.__newindex or of.__newindex or values
  return record
end

--- An instance of `of` without fields, on which `init` has not run. What `record` has adds to what is usual in one.
function class.object(of, record)
  record = complete(of, record or {})
  record.__len, record.__pairs, record.__ipairs = length, refuse, refuse
  local object = newproxy()
  debug_setmetatable(object, record)
  return object
end

--- The same as a table, for objects whose list of things stands in them at 1, 2, ….
function class.list(of, record) return setmetatable({}, complete(of, record)) end

--- The arguments of `init`. A class of the library takes them by name too, and no more than `init` names.
function class.arguments(of, ...)
  if of.__init then fail("%s: a constructor is called init here: function %s:init(…)", of.__name, of.__name) end
  if not rawget(of, "strict") then return ... end
  local info, given = debug.getinfo(of.init, "u"), select("#", ...)
  local most = math.max(info.nparams - 1, 0)
  if given > most and not info.isvararg then
    fail("%s: takes at most %d argument%s, got %d", of.__name, most, most == 1 and "" or "s", given)
  end
  return options.by_name(of.__name, of.init, 1, ...)
end

local function construct(self, ...)
  local object = class.object(self)
  object:init(class.arguments(self, ...))
  return object
end

-- Fields that are not there are nil, as in any table; but nothing is at object[3].
local function no_such(of, key) -- of: the root of the object's class
  if type(key) ~= "string" then
    fail("nothing is at [%s] of a %s%s", tostring(key), of.__name, hint(of))
  end
end

--- A class of that name; without `super` it is a root. A root may bring its own constructor, which
--- its subclasses share. The class's metatable has `instance`, the metatable of its instances' fields.
function class.new(name, super, constructor)
  local new = {__name = name, super = super}
  return setmetatable(new, {
    __index = super or no_such,
    __call = constructor or (super and getmetatable(super).__call) or construct,
    __tostring = function() return "class " .. name end,
    instance = {__index = new},
  })
end

-- Not for forward, which is called more often than anything: see Module's call.
local unguarded = {init = true, forward = true}

-- A method that says so where it is called with a dot, or with more arguments than it names.
local function guarded(of, name, method)
  if unguarded[name] or type(method) ~= "function" or debug.getlocal(method, 1) ~= "self" then return method end
  local info = debug.getinfo(method, "u")
  local most = info.isvararg and 1 / 0 or info.nparams - 1
  return function(self, ...)
    local kind = type(self)
    if kind ~= "userdata" and kind ~= "table" then
      fail("%s.%s: it is called with a colon: x:%s(…) for a %s x", of.__name, name, name, of.__name)
    end
    if select("#", ...) > most then
      fail("%s:%s: takes %d argument%s, got %d", of.__name, name, most, most == 1 and "" or "s", select("#", ...))
    end
    return method(self, ...)
  end
end

--- Guards the methods that a class is given from now on. Gives the class.
function class.guard(of)
  getmetatable(of).__newindex = function(t, name, method) rawset(t, name, guarded(t, name, method)) end
  return of
end

--- A class of the library: constructed with more arguments than `init` names, it is an error.
function class.define(name, super)
  local new = class.guard(class.new(name, super))
  new.strict = true
  return new
end

--- What every class has.
class.methods = {
  --- A class of that name that has what this one has: local Net = nn.Module:extend("Net").
  extend = function(self, name)
    return class.new(options.arg("extend", "name", name, "string"), self)
  end,
  --- What a class's call runs with its arguments on the new object; classes write their own.
  init = function() end,
  --- The object's text. tostring and print use it.
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
  local record = record_of(object)
  return record and class.descends(record.class, wanted) or false
end

--- Whether v, an object or a table, has functions of these names.
function class.has(v, ...)
  if type(v) ~= "table" and not record_of(v) then return false end
  for i = 1, select("#", ...) do
    if type(v[select(i, ...)]) ~= "function" then return false end
  end
  return true
end

--- A root class with `extend`, `init`, `repr`, and `is`.
function class.root(name)
  local root = class.define(name)
  for key, method in pairs(class.methods) do root[key] = method end
  root.is = class.is
  return root
end

return class

--- Defines classes: `Base:extend("Name")` makes a class; calling the class makes an instance and runs `init`.
---
--- An instance is userdata with its own metatable, the record, whose `values` are its fields and fall back to its
--- class. LuaJIT calls __len only for userdata, so that `#object` is object:len() or an error; ipairs(object) and
--- pairs(object) are errors. For an empty table they would be 0 and empty loops.
local debug = require "debug"
local core = require "luminary.core"
local options = require "luminary.base.options"
local signature = require "luminary.base.signature"
local fail = options.fail
local newproxy, debug_getmetatable, debug_setmetatable = newproxy, debug.getmetatable, debug.setmetatable

local class = {}

--- Returns the record of an instance of any class; nil for other values.
class.record = options.record
local record_of = class.record

-- Returns the class's hint about iterating over its instances (__hint), as the end of a message.
local function hint(object) return object.__hint and "; " .. object.__hint or "" end

local function text(object) return object:repr() end

local function length(object)
  if type(object.len) == "function" then return object:len() end
  fail("%s has no length%s", object.__name, hint(object))
end

-- Fails for pairs and ipairs. Runs only if LuaJIT has Lua 5.2's metamethods; without them, both reject userdata.
local function refuse(object)
  fail("%s: pairs and ipairs take tables, and this is an object%s", object.__name, hint(object))
end

-- Calls `forward` of a class that defines it.
local function call(object, ...)
  if object.forward then return object:forward(...) end
  fail("%s: this object cannot be called%s", object.__name, hint(object))
end

-- Completes the record of an object of class `of`; the object's constructor may have set fields in it.
local function complete(of, record)
  local values = record.values or setmetatable({}, debug_getmetatable(class.filled(of)).instance)
  record.class, record.values, record.__tostring = of, values, text
  record.__index, record.__newindex = record.__index or values, record.__newindex or of.__newindex or values
  return record
end

--- Returns an instance of `of` before `init`, without fields or with those of `values`, whose metatable is the
--- instances'. `record` has additional metamethods and fields.
function class.object(of, record, values)
  record = complete(of, record or {class = false, values = values or false, __tostring = false, __index = false,
    __newindex = false, __len = false, __pairs = false, __ipairs = false, __call = false}) -- allocated once
  record.__len, record.__pairs, record.__ipairs, record.__call = length, refuse, refuse, record.__call or call
  local object = newproxy()
  debug_setmetatable(object, record)
  return object
end

--- Returns an instance as class.object does, but as a table, for objects with a list at 1, 2, ….
function class.list(of, record) return setmetatable({}, complete(of, record)) end

--- Initializes a new object with the arguments of the class's call; classes define it.
local function no_init() end

--- Returns the arguments of `init`. A class of the library takes them by name too, and at most those `init` names.
function class.arguments(of, ...)
  local near = of.__near
  if near and rawget(of, near[2]) == nil and rawget(near[3], near[2]) == nil and of[near[2]] then
    core.warn(("%s: method '%s' is never called by the library; did you mean '%s'?"):format(near[3].__name,
      near[1], near[2]))
  end
  if of.init == no_init and options.count(...) > 0 then
    fail("%s: takes no arguments; define function %s:init(…) to accept some%s", of.__name, of.__name,
      of.super and "" or (', in a class from %s:extend("Name")'):format(of.__name))
  end
  if not rawget(of, "strict") then return ... end
  if options.signature(of.init) then return ... end
  local names, given = options.parameters(of.init), options.count(...)
  local max_count, derived = math.max(#names - 1, 0), signature.of_parameters("", of.init)
  if derived then return signature.read(derived, of.__name, ...) end
  if given > max_count and not names.more then options.too_many(of.__name, max_count, names, given) end
  return ...
end

--- Fails if the `init` of a user's class did not call that of a library's class; `__makes` names a field that it sets.
function class.check_made(object)
  local field = object.__makes
  if field and object[field] == nil then
    local super = object.super
    while not rawget(super, "__makes") do super = super.super end
    fail("%s: init must call %s.init(self, …), which sets '%s'", object.__name, super.__name, field)
  end
end

local function construct(self, ...)
  local object = class.object(self)
  object:init(class.arguments(self, ...))
  class.check_made(object)
  if object.__finish then object.__finish(object) end
  return object
end

-- Leaves absent fields nil, as in any table; object[3] is an error.
local function no_such(of, key) -- `of` is the root of the object's class
  if type(key) ~= "string" then fail("%s: cannot be indexed with [%s]%s", of.__name, tostring(key), hint(of)) end
  local missing = rawget(of, "__missing") -- maps other libraries' names to the remedy here
  if missing and missing[key] then fail("no field '%s'; %s", key, missing[key]) end
end

local function class_text(of) return "class " .. rawget(of, "__name") end

-- Makes a class of a table, which has its name and `super`.
local function as_class(new, constructor)
  local super = rawget(new, "super")
  return setmetatable(new, {
    __index = super or no_such,
    __call = constructor or (super and getmetatable(super).__call) or construct,
    __tostring = class_text,
    instance = {__index = new},
  })
end

--- Makes a class of that name, a root if `super` is nil. A root may have its own constructor, which its subclasses
--- share. The class's metatable has `instance`, the metatable of its instances' fields.
function class.new(name, super, constructor) return as_class({__name = name, super = super}, constructor) end

--- Maps a function to the class of its result, where that class has no public name; help lists its methods.
class.of_results = setmetatable({}, {__mode = "k"})

--- Records that f returns an instance of `of`. Returns f.
function class.returned(of, f)
  class.of_results[f] = of
  return f
end

-- Returns a remedy for a call of forward with more than `max_count` arguments, or "".
local function remedy_of(object, max_count, ...)
  if object.__state_is then return "; " .. object.__state_is end
  local first = debug_getmetatable((...))
  if first and first.class and first.class.forward then return "; call a module in a field with a dot: self.NAME(x)" end
  for i = max_count + 1, select("#", ...) do
    local kind = type((select(i, ...)))
    if kind ~= "table" and kind ~= "userdata" then return "" end
  end
  return max_count == 1 and "; if they are the results of another call, net((f(x))) passes only the first" or ""
end

-- Wraps a method with `self`: it fails if it is called with a dot, or with more than max_count arguments. Methods of
-- the library reject plain tables, such as state dicts, as self; `accepts_tables`: a user's method accepts them.
local function guarded(of, name, method, max_count, accepts_tables)
  if type(method) ~= "function" or debug.getlocal(method, 1) ~= "self" then return method end
  local function guard(self, ...)
    local record = debug_getmetatable(self)
    if not (record and record.class) and (type(self) ~= "table" or record == nil and not accepts_tables) then
      fail("%s.%s: call it with a colon: x:%s(…)%s", of.__name, name, name, name == "forward" and ", or x(…)" or "")
    end
    if select("#", ...) > max_count and options.count(...) > max_count then
      fail("%s: %s takes %d argument%s, got %d%s", self.__name or of.__name, name, max_count,
        max_count == 1 and "" or "s", options.count(...), name == "forward" and remedy_of(self, max_count, ...) or "")
    end
    return method(self, ...)
  end
  options.set_parameters(guard, options.parameters(method))
  options.set_signature(guard, options.signature(method))
  return guard
end

-- Returns the largest number of arguments that a method takes, without self.
local function named(method)
  local info = type(method) == "function" and debug.getinfo(method, "u")
  return info and not info.isvararg and info.nparams - 1 or 1 / 0
end

local function set_method(of, name, method, max_count, accepts_tables)
  rawset(of, name, name == "init" and method or guarded(of, name, method, max_count, accepts_tables))
end

--- Makes a class guard the methods that are assigned to it later. Returns the class.
function class.guard(of)
  getmetatable(of).__newindex = function(t, name, method) set_method(t, name, method, named(method)) end
  return of
end

-- Methods' names in Python and Lua, and their names here.
local theirs = {
  __init = "init", __init__ = "init", __len = "len", __len__ = "len", __getitem__ = "get", __iter__ = "iter",
  __call = "forward", __call__ = "forward", __tostring = "repr", __str__ = "repr", __repr__ = "repr",
}

-- Methods that users define, whose misspelling would leave the base class's in their place: foward.
local defined_by_users = {"forward", "init"}

-- Sets a method of a user's class; the library may call it with more arguments than it names.
local function set_own_method(of, name, method)
  local ours = theirs[name]
  local near = type(name) == "string" and core.nearest(name, defined_by_users)
  if near and name ~= near and name:lower():match("^" .. near:sub(1, 1) .. ".*" .. near:sub(-1) .. "$") then
    rawset(of, "__near", {name, near, of})
  end
  if ours and (of[ours] or ours == "len") then
    fail("%s: '%s' is named %s here; define function %s:%s(…)", of.__name, name, ours, of.__name, ours)
  end
  set_method(of, name, method, 1 / 0, true)
end

local function strict(of)
  class.guard(as_class(of)).strict = true
  return of
end

-- Maps a class that is not in use yet to the function that fills it.
local unfilled = setmetatable({}, {__mode = "k"})

--- Returns the class after filling it.
function class.filled(of)
  local fill = unfilled[of]
  if not fill then return of end
  unfilled[of] = nil
  fill(strict(of))
  return of
end

local of_unfilled = {
  __index = function(of, key) return class.filled(of)[key] end,
  __newindex = function(of, key, value) class.filled(of)[key] = value end,
  __call = function(of, ...) return class.filled(of)(...) end,
  __tostring = class_text, instance = {},
}

--- Makes a class of the library, whose construction with more arguments than `init` names is an error. fill(class) is
--- called at first use: most scripts use few classes, and Lua's collector visits all that exist.
function class.define(name, super, fill)
  local new = {__name = name, super = super, repr = not super and class.methods.repr or nil}
  if not fill then return strict(new) end
  unfilled[new] = fill
  return setmetatable(new, of_unfilled)
end

--- The methods of every class.
class.methods = {
  --- Makes a subclass of that name: local Net = nn.Module:extend("Net").
  extend = function(self, name)
    local new = class.new(options.arg("extend", "name", name, "string"), self)
    getmetatable(new).__newindex = set_own_method
    return new
  end,
  init = no_init,
  --- Returns the object's text. tostring and print use it.
  repr = function(self) return self.__name end,
}

--- Returns true if the class `candidate` is `wanted` or extends it.
function class.descends(candidate, wanted)
  while candidate do
    if candidate == wanted then return true end
    candidate = candidate.super
  end
  return false
end

--- Fails if v is not a class.
function class.check(who, v)
  local mt = options.stands_for_code(v)
  if not (mt and mt.instance) then options.expected(who, "a class, such as nn.Linear", v) end
end

--- Returns true if `object` is an instance of `wanted` or of a class that extends it.
function class.is(object, wanted)
  class.check("is", wanted)
  local record = record_of(object)
  return record and class.descends(record.class, wanted) or false
end

local function field(v, name) return v[name] end

--- Returns true if v, an object or a table that is not a class, has functions of these names.
function class.has(v, ...)
  if type(v) ~= "table" and not record_of(v) or options.stands_for_code(v) then return false end
  for i = 1, select("#", ...) do
    local ok, method = pcall(field, v, (select(i, ...))) -- some classes fail for absent names
    if not ok or type(method) ~= "function" then return false end
  end
  return true
end

--- Makes a root class with `extend`, `init`, `repr`, and `is`; finish(object), if given, runs after `init`.
function class.root(name, finish)
  local root = class.define(name)
  for key, method in pairs(class.methods) do root[key] = method end
  root.is, root.__finish = class.is, finish
  return root
end

return class

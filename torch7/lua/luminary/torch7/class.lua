--- Implements torch.class, torch.type and the packages torch, nn and optim that contain classes.
local debug = require "debug"
local options = require "luminary.base.options"
local fail = options.fail

local class = {packages = {torch = {}, nn = {}, optim = {}}, by_name = {}}

-- Returns the table and the short name for "nn.Linear": a package of this library, a global table, or the globals.
local function place_of(name, module)
  local package, short = name:match "^(.*)%.([^.]+)$"
  if module then return module, short or name end
  if not package then return _G, name end
  local place = class.packages[package] or _G
  for part in (place == _G and package or ""):gmatch "[^.]+" do
    place = type(place) == "table" and rawget(place, part) or nil
  end
  if type(place) ~= "table" then fail("torch.class: no table '%s' for '%s'", package, name) end
  return place, short
end

-- Metamethods call the method of the object's class with this name, which may be set at any time.
local events = {}
for name in ("tostring add sub mul div mod pow unm concat len eq lt le"):gmatch "%S+" do
  local event, method = "__" .. name, "__" .. name .. "__"
  events[event] = function(a, b, ...)
    local f = type(a) == "table" and a[method] or type(b) == "table" and b[method]
    if f then return f(a, b, ...) end
    if event == "__eq" then return rawequal(a, b) end
    if event == "__tostring" then return a.__typename end
    fail("torch: %s has no method %s", class.type(a), method)
  end
end
-- Calls of objects and constructors are no tail calls: nngraph counts the frames to the script's line, as in Torch7.
local function passed(...) return ... end
function events.__call(self, ...) -- passes the number of arguments on
  if not self.__call__ then fail("torch: %s has no method __call__", class.type(self)) end
  return passed(self:__call__(...))
end

--- torch.class(name [, parent] [, module]): Creates a class "package.Name", whose constructor is put into the package
--- (or into `module`) and whose __init runs on new objects. Returns the class, for methods, and its parent's. A class
--- may have methods for operators, __call__, __tostring__, __add__, ….
function class.new(name, parent, module)
  options.arg("torch.class", "name", name, "string")
  if type(parent) == "table" then parent, module = nil, parent end
  local methods = {__typename = name}
  methods.__index = methods
  if parent ~= nil then
    local base = class.by_name[options.arg("torch.class", "parent", parent, "string")]
    if not base then fail("torch.class: no class '%s'", parent) end
    methods.__parent = base
  end
  for event, f in pairs(events) do methods[event] = f end
  setmetatable(methods, methods.__parent) -- scripts follow the metatables
  class.by_name[name] = methods
  debug.getregistry()[methods] = name -- scripts look there for classes
  local function create(...)
    local object = setmetatable({}, methods)
    if object.__init then object:__init(...) end
    return object
  end
  methods.new = create
  local place, short = place_of(name, module)
  rawset(place, short, setmetatable({}, {__index = methods, __newindex = methods, __metatable = methods,
    __call = function(_, ...) return passed(create(...)) end}))
  return methods, methods.__parent
end

--- Returns the name of an object's class, "nn.Linear" or "torch.FloatTensor"; nil for other values.
function class.typename(v)
  local mt = debug.getmetatable(v)
  if type(mt) ~= "table" then return nil end
  if type(v) == "userdata" and rawget(mt, "__torch_type") then return mt.__torch_type(v) end
  return type(v) == "table" and rawget(mt, "__typename") or nil
end

--- Returns typename's result, or Lua's type for other values.
function class.type(v) return class.typename(v) or type(v) end

--- Returns true if an object's class is `name` or extends it: the class nn.Linear, "nn.Linear", "Linear", or a pattern
--- that matches a part of the name, "nn.Lin.*".
function class.isTypeOf(v, name)
  local wanted = type(name) == "table" and name.__typename or name
  options.arg("torch.isTypeOf", "name", wanted, "string")
  local function is(given)
    local found = given:match(wanted)
    return found ~= nil and (found ~= wanted or given == wanted or given:sub(-#wanted - 1) == "." .. wanted)
  end
  local mt, given = type(v) == "table" and debug.getmetatable(v) or nil, class.typename(v)
  while given do
    if is(given) then return true end
    mt = mt and rawget(mt, "__parent")
    given = mt and rawget(mt, "__typename")
  end
  return false
end

return class

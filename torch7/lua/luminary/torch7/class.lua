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
  local place = class.packages[package] or rawget(_G, package)
  if type(place) ~= "table" then fail("torch.class: no table '%s' for '%s'", package, name) end
  return place, short
end

--- torch.class(name [, parent] [, module]): Creates a class "package.Name", whose constructor is put into the package
--- (or into `module`) and whose __init runs on new objects. Returns the class, for methods, and its parent's.
function class.new(name, parent, module)
  options.arg("torch.class", "name", name, "string")
  if type(parent) == "table" then parent, module = nil, parent end
  local methods = {__typename = name}
  methods.__index = methods
  if parent ~= nil then
    local base = class.by_name[options.arg("torch.class", "parent", parent, "string")]
    if not base then fail("torch.class: no class '%s'", parent) end
    for _, event in ipairs {"__tostring", "__call", "__add", "__len"} do methods[event] = rawget(base, event) end
    methods.__parent = base
  end
  setmetatable(methods, {__index = methods.__parent, __newindex = function(t, key, value)
    rawset(t, key == "__tostring__" and "__tostring" or key == "__call__" and "__call" or key, value)
  end})
  methods.__tostring = rawget(methods, "__tostring") or function() return name end
  class.by_name[name] = methods
  local place, short = place_of(name, module)
  rawset(place, short, setmetatable({}, {__index = methods, __newindex = methods, __call = function(_, ...)
    local object = setmetatable({}, methods)
    if object.__init then object:__init(...) end
    return object
  end}))
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

--- Returns true if an object's class is `name` or extends it.
function class.isTypeOf(v, name)
  local mt = type(v) == "table" and debug.getmetatable(v) or nil
  while type(mt) == "table" do
    if rawget(mt, "__typename") == name then return true end
    mt = rawget(mt, "__parent")
  end
  return class.typename(v) == name
end

return class

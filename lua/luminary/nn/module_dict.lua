--- Defines modules that hold modules or parameters by name or number.
local core = require "luminary.core"
local class = require "luminary.base.class"
local lists = require "luminary.base.lists"
local options = require "luminary.base.options"
local Module = require "luminary.nn.module"
local parameter = require "luminary.nn.parameter"
local records = require "luminary.nn.module_fields"

local fail = options.fail
local dictionaries = {}

-- Returns the entries of a table, sorted by name, or of a list {{name, value}, …}, in order, as such a list.
local function entries_of(who, given)
  if not options.is_plain(given) then
    options.expected(who, "a table of names, or a list {{name, value}, …}", given)
  end
  local list = {}
  for i, pair in ipairs(options.list(who, "entries", given)) do
    if type(pair) ~= "table" or type(pair[1]) ~= "string" or pair[2] == nil then
      options.must_be(who, ("entry %d"):format(i), "{name, value}", pair)
    end
    list[i] = pair
  end
  if #list == 0 then
    for name in pairs(given) do
      if type(name) ~= "string" then options.must_be(who, "a name", "a string", name) end
    end
    for i, name in ipairs(options.sorted_keys(given)) do list[i] = {name, given[name]} end
  end
  return list
end

-- The base of ModuleDict and ParameterDict; `kind` is "child" or "param".
local Dict = class.define("Dict", Module)

function Dict:init(given)
  if given ~= nil then self:update(given) end
end

--- Returns the number of entries, as #dict does.
function Dict:len() return #records.of(self)[self.kind] end

--- Returns a list of the names, in order.
function Dict:keys() return lists.slice(records.of(self)[self.kind]) end

--- Returns a list of the values, in order.
function Dict:values() return lists.pick(self, self:keys()) end

--- Walks the entries: for name, value in dict:items() do.
function Dict:items()
  local names, i = self:keys(), 0
  return function()
    i = i + 1
    if names[i] then return names[i], self[names[i]] end
  end
end

--- Returns whether there is an entry of this name.
function Dict:contains(name) return records.of(self).kind[name] == self.kind end

--- dict:set(name, value): Assigns dict[name] = value, with an error where that would be a plain field. Returns dict.
function Dict:set(name, value)
  self[name] = self:_checked(name, value)
  return self
end

--- Adds the entries of a table, in the order of its names, or of a list {{name, value}, …}. Returns dict.
function Dict:update(given)
  for _, entry in ipairs(entries_of(self.__name, given)) do self:set(entry[1], entry[2]) end
  return self
end

--- Removes the entry of this name and returns its value.
function Dict:pop(name)
  if not self:contains(name) then
    fail("%s: no entry '%s'; entries are %s", self.__name, tostring(name), table.concat(self:keys(), ", "))
  end
  local value = self[name]
  self[name] = nil
  return value
end

--- Removes all entries.
function Dict:clear()
  for _, name in ipairs(self:keys()) do self[name] = nil end
end

--- nn.ModuleDict([{name = module, …}]): Holds modules by name.
local ModuleDict = class.define("ModuleDict", Dict)
dictionaries.ModuleDict = ModuleDict
ModuleDict.kind = "child"

--- Returns the module; fails if v is not a module.
function ModuleDict:_checked(name, v)
  if not Module.is_module(v) then options.must_be(self.__name, ("'%s'"):format(tostring(name)), "a module", v) end
  return v
end

-- Returns the value as a parameter; a plain tensor becomes one.
local function as_parameter(self, name, v)
  if parameter.is(v) then return v end
  if not core.is_tensor(v) then options.must_be(self.__name, tostring(name), "a tensor", v) end
  return parameter.new(v)
end

local function parameter_text(name, p)
  return ("  (%s): Parameter containing: [%s of size %s]"):format(name, p.dtype, table.concat(p.shape, "x"))
end

-- Returns the text of a module with one line for each parameter.
local function parameters_repr(self)
  local record = records.of(self)
  local lines = lists.map(record.param, function(name) return parameter_text(name, record.values[name]) end)
  return #lines == 0 and self.__name .. "()" or ("%s(\n%s\n)"):format(self.__name, table.concat(lines, "\n"))
end

--- nn.ParameterDict([{name = tensor, …}]): Holds parameters by name.
local ParameterDict = class.define("ParameterDict", Dict)
ParameterDict.__inner = {"field_of"}
dictionaries.ParameterDict = ParameterDict
ParameterDict.kind = "param"
ParameterDict._checked = as_parameter
ParameterDict.repr = parameters_repr

--- Converts assigned tensors to parameters.
function ParameterDict:field_of(key, value)
  if core.is_tensor(value) then value = as_parameter(self, key, value) end
  return key, value
end

--- nn.ParameterList([{a, b, …}]): Holds parameters in a list.
local ParameterList = class.define("ParameterList", Module)
ParameterList.__inner = {"extend_by", "field_of"}
dictionaries.ParameterList = ParameterList
ParameterList.repr = parameters_repr
ParameterList.__hint = "list:iter() walks it"

--- Maps list[i] to the field named i - 1. The index after the last can be assigned, and the last set to nil.
function ParameterList:field_of(key, value, reading)
  if type(key) ~= "number" then return key, value end
  local n = #records.of(self).param
  local at = key < 0 and n + key + 1 or key
  if at % 1 ~= 0 or at < 1 or at > (reading and n or n + 1) then
    options.out_of_range(self.__name, key, n, "parameters")
  end
  if not reading and value == nil then
    if at < n then fail("%s: only the last parameter, %d, can be removed", self.__name, n) end
  elseif not reading then
    value = as_parameter(self, at, value)
  end
  return tostring(at - 1), value
end

function ParameterList:init(list)
  if list ~= nil then self:extend_by(list) end
end

--- Returns the number of parameters, as #list does.
function ParameterList:len() return #records.of(self).param end

--- Walks the parameters: for i, p in list:iter() do.
function ParameterList:iter() return ipairs(self:parameters()) end

--- Adds a tensor at the end, as an nn.Parameter. Returns the list.
function ParameterList:append(t)
  self[self:len() + 1] = t
  return self
end

--- Adds the tensors of a list at the end. Returns the list.
function ParameterList:extend_by(list)
  if not options.is_plain(list) then options.expected(self.__name, "a list of tensors", list) end
  for _, t in ipairs(options.list(self.__name, "parameters", list)) do self:append(t) end
  return self
end

return dictionaries

--- nn.utils.parametrize: Makes parameters that a module computes from others whenever they are used.
local core = require "luminary.core"
local options = require "luminary.base.options"
local signature = require "luminary.base.signature"
local class = require "luminary.base.class"
local Module = require "luminary.nn.module"
local dictionaries = require "luminary.nn.module_dict"
local parameter = require "luminary.nn.parameter"
local records = require "luminary.nn.module_fields"

local fail, pack = options.fail, options.pack
local parametrize = {}

-- Holds the originals of one tensor, and the modules that compute it from them in sequence.
local List = class.define("ParametrizationList", Module)

function List:init(value, first, as_parameter)
  local originals = first.right_inverse and pack(core.no_grad(function() return first:right_inverse(value) end))
    or {n = 1, value}
  self.is_tensor = originals.n == 1
  for i = 1, originals.n do
    local t = options.arg("register_parametrization", "the result of right_inverse", originals[i], "tensor")
    local name = self.is_tensor and "original" or "original" .. (i - 1)
    for _, key in ipairs(self.is_tensor and {"dtype", "device"} or {}) do
      if t[key] ~= value[key] then
        fail("register_parametrization: right_inverse returned %s %s for %s", key, t[key], value[key])
      end
    end
    if as_parameter then
      self[name] = self.is_tensor and rawequal(t, value) and value or parameter.new(t, value.requires_grad)
    else
      self:register_buffer(name, t)
    end
  end
  self.count, self.steps = originals.n, 0
  self:append(first)
end

function List:append(module)
  self:add_module(tostring(self.steps), module)
  self.steps = self.steps + 1
end

--- Renames tensors that the parametrization had under other names before: old_names of the first module, by its name.
function List:_adapt_state(dict, prefix, old)
  local before, name = prefix:match "^(.-)parametrizations%.([^.]+)%.$"
  local names, found = records.of(self).values["0"].old_names or {}, false
  for _, suffix in pairs(names) do found = found or dict[before .. name .. suffix] ~= nil end
  if not found then return end
  for key, suffix in pairs(names) do
    local at = before .. name .. suffix
    dict[prefix .. key], dict[at], old.names[prefix .. key] = dict[at], nil, at
  end
  dict[before .. name] = nil -- the computed tensor, which PyTorch 0.4 saved too
end

-- Returns the original, or original0, ….
local function originals_of(list)
  if list.is_tensor then return list.original end
  local all = {}
  for i = 1, list.count do all[i] = list["original" .. (i - 1)] end
  return unpack(all, 1, list.count)
end

function List:forward()
  local values = records.of(self).values
  local x = values["0"](originals_of(self))
  for i = 1, self.steps - 1 do x = values[tostring(i)](x) end
  return x
end

-- Sets the originals so that forward returns the value.
function List:assign(value)
  core.no_grad(function()
    for i = self.steps - 1, 0, -1 do
      local step = records.of(self).values[tostring(i)]
      if not step.right_inverse then
        fail("%s: it has no right_inverse, so the parameter cannot be assigned", step.__name)
      end
      if i > 0 then
        value = step:right_inverse(value)
      else
        local originals = pack(step:right_inverse(value))
        for k = 1, originals.n do
          self[self.is_tensor and "original" or "original" .. (k - 1)]:copy_(originals[k])
        end
      end
    end
  end)
end

local cache -- maps a list to its result while cached() runs

-- Returns a list's result, computed once within each cached().
local function value_of(list)
  if not cache then return list() end
  cache[list] = cache[list] or core.keep(list())
  return cache[list]
end

local function lists_of(module)
  return records.is_module(module) and records.of(module).values.parametrizations or nil
end

-- Makes reads of the module's parametrized fields compute them; clones call it too.
local function compute_on_read(module)
  local record = records.of(module)
  local index, newindex, name = record.__index, record.__newindex, record.class.__name
  local function list_at(key)
    local lists = record.values.parametrizations
    return lists and type(key) == "string" and lists:contains(key) and lists[key]
  end
  function record.__index(self, key)
    local list = list_at(key)
    if list then return value_of(list) end
    if type(index) == "function" then return index(self, key) end
    return index[key]
  end
  function record.__newindex(self, key, value)
    local list = list_at(key)
    if list and value ~= nil then return list:assign(options.arg(name, key, value, "tensor")) end
    return newindex(self, key, value)
  end
  record.restore = function()
    record.__index, record.__newindex, record.restore, record.on_clone = index, newindex, nil, nil
    record.values.__name = nil
  end
  record.on_clone = compute_on_read
  record.values.__name = "Parametrized" .. name
end

--- Returns whether a module, or one tensor of it, has a parametrization.
function parametrize.is_parametrized(module, name)
  local lists = lists_of(module)
  if not lists then return false end
  return name == nil and #lists > 0 or name ~= nil and lists:contains(name)
end

-- Fails unless the first result of a function named `what` has the dtype and shape of the value it replaces.
local function check_result(what, value, result)
  local got, want = options.describe(result), options.describe(value)
  if core.is_tensor(result) then
    if result.dtype ~= value.dtype then
      got, want = "dtype " .. result.dtype, value.dtype
    elseif table.concat(result.shape, ",") == table.concat(value.shape, ",") then
      return
    end
  end
  fail("register_parametrization: %s returned %s for %s; {unsafe = true} allows it", what, got, want)
end

-- Fails unless a second parametrization, and its right_inverse if it has one, keep dtype and shape of a value.
local function check_second(parametrization, value)
  local result = parametrization(value)
  check_result("the parametrization", value, result)
  if not parametrization.right_inverse then return end
  local back = pack(parametrization:right_inverse(result))
  if back.n > 1 then
    fail("register_parametrization: right_inverse returned %d values for %s; {unsafe = true} allows it", back.n,
      options.describe(value))
  end
  check_result("right_inverse", value, back[1])
end

--- Registers a parametrization of a parameter or buffer of a module.
parametrize.register_parametrization = signature.of([[register_parametrization(module, name, parametrization,
  {unsafe = false})]], function(module, name, parametrization, opts)
  local who = "register_parametrization"
  for what, v in pairs {module = module or false, parametrization = parametrization or false} do
    if not records.is_module(v) then options.must_be(who, what, "a module", v or nil) end
  end
  records.check_sized(who, module)
  if records.of(module).class.numbered then fail("%s: a %s has no parameters", who, module.__name) end
  local record = records.of(module)
  records.check_acyclic(module, record, tostring(name), parametrization)
  parametrization:train(module.training)
  if parametrize.is_parametrized(module, name) then
    if not opts.unsafe then core.no_grad(function() check_second(parametrization, module[name]) end) end
    record.values.parametrizations[name]:append(parametrization)
    return module
  end
  local kind = record.kind[name]
  if kind ~= "param" and kind ~= "buffer" then
    fail("%s: %s has no parameter or buffer '%s'", who, module.__name, tostring(name))
  end
  local value, place = record.values[name], core.field(record.values[name], "placement")
  if place and place.splits[1] then
    fail("%s: ranks divide '%s' of this %s; register before fully_shard; a layer that parallelize divides has none",
      who, name, module.__name)
  end
  local list = List(value, parametrization, kind == "param")
  if not opts.unsafe then core.no_grad(function() check_result("the parametrization", value, list()) end) end
  if kind == "param" and list.is_tensor and not rawequal(list.original, value) then -- optimizers know the parameter
    core.no_grad(function() core.set_data(value, list.original:detach()) end)
    list.original = value
  end
  module[name] = nil
  if not record.values.parametrizations then
    module.parametrizations = dictionaries.ModuleDict()
    compute_on_read(module)
  end
  record.values.parametrizations:set(name, list)
  return module
end)

--- Removes the parametrizations of a parameter or buffer of a module.
parametrize.remove_parametrizations = signature.of([[remove_parametrizations(module, name,
  {leave_parametrized = true})]], function(module, name, opts)
  local who = "remove_parametrizations"
  if not parametrize.is_parametrized(module, name) then
    fail("%s: %s has no parametrization of '%s'", who, options.describe(module), tostring(name))
  end
  local lists = lists_of(module)
  local list = lists[name]
  local original = list.is_tensor and list.original
  if not opts.leave_parametrized and not original then
    fail("%s: '%s' is parametrized by %d tensors, so there is no single original", who, name, list.count)
  end
  local is_parameter = parameter.is(original or list.original0)
  local value = opts.leave_parametrized and core.no_grad(function() return list():detach():clone() end) or original
  if original and is_parameter and opts.leave_parametrized then
    core.no_grad(function() core.set_data(original, value) end)
    value = original
  end
  lists:pop(name)
  if #lists == 0 then
    records.of(module).restore()
    module.parametrizations = nil
  end
  if is_parameter then
    module[name] = parameter.is(value) and value or parameter.new(value)
  else
    module:register_buffer(name, value)
  end
  return module
end)

--- cached(f, ...): Calls f(...), within which each parametrized tensor is computed once.
function parametrize.cached(f, ...)
  options.arg("cached", "f", f, "callable")
  local before = cache
  return options.restoring(function() cache = before end, function(...)
    cache = before or {}
    return f(...)
  end, ...)
end

return parametrize

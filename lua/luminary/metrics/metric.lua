--- Implements the base of all metrics: states that grow with each update, and are reduced over the ranks before a value
--- is computed. Sums, extremes and lists of samples reduce exactly, so that ranks may have seen any number of samples.
local core = require "luminary.core"
local class = require "luminary.base.class"
local lists = require "luminary.base.lists"
local load_module = require "luminary.base.load_module"
local options = require "luminary.base.options"
local signature = require "luminary.base.signature"

local ops, fail = core.ops, options.fail

-- ---- states: a tensor, or a list of tensors for the reduction "cat"

local function fresh(default, device)
  if type(default) == "table" then return {} end
  return core.keep(default:to(device):clone())
end

local merge = {
  sum = function(a, b) return a + b end,
  max = function(a, b) return ops.maximum(a, b) end,
  min = function(a, b) return ops.minimum(a, b) end,
  cat = lists.joined,
}

local function states_of(self)
  local states = {}
  for name in pairs(self.reductions) do states[name] = self[name] end
  return states
end

local function set_states(self, states)
  for name in pairs(self.reductions) do
    local state = states[name]
    self[name] = state
    if type(state) == "table" then
      for _, t in ipairs(state) do core.keep(t) end
    else
      core.keep(state)
    end
  end
end

local function moved(state, device)
  if type(state) ~= "table" then return state:to(device) end
  return lists.map(state, function(t) return t:to(device) end)
end

local function set_defaults(self)
  for name, default in pairs(self.defaults) do self[name] = fresh(default, self.device) end
end

local function move(self, device)
  if device == self.device then return end
  self.device = device
  for name in pairs(self.reductions) do self[name] = moved(self[name], device) end
  set_states(self, states_of(self))
end

-- Returns the device of the first tensor among the arguments, or nil.
local function device_of(...)
  for i = 1, select("#", ...) do
    local v = (select(i, ...))
    if core.is_tensor(v) then return v.device end
  end
end

-- ---- over the ranks

-- Returns the group to reduce over, or nil if this process is alone.
local function group_of(self)
  local groups = package.loaded["luminary.distributed.groups"]
  if not (self.sync_on_compute and groups and groups.default) then return nil end
  local group = groups.resolve(self.__name .. ":compute", self.process_group)
  return group.size > 1 and group or nil
end

-- Returns the states reduced over all ranks; this rank's states do not change.
local function reduced(self, group)
  local dist = load_module "luminary.distributed"
  local states = {}
  for _, name in ipairs(options.sorted_keys(self.reductions)) do -- in the same order on all ranks
    local state, reduction = self[name], self.reductions[name]
    if reduction == "cat" then
      states[name] = {} -- ranks may have any number of rows, or none and not know their sizes
      local own = {state[1] and ops.cat(state, 1)}
      for _, rows in ipairs(dist.all_gather_object({}, own, {group = group})) do lists.append(states[name], rows) end
    else
      states[name] = dist.all_reduce(state:cpu():clone(), {op = reduction, group = group})
    end
    states[name] = moved(states[name], self.device)
  end
  return states
end

-- ---- objects

-- Calls f(self, …) with other states, and restores the previous ones, also after an error.
local function with_states(self, states, f, ...)
  local before = states_of(self)
  for name in pairs(self.reductions) do self[name] = states[name] end
  local ok, result = pcall(core.no_grad, f, self, ...)
  local after = states_of(self)
  for name in pairs(self.reductions) do self[name] = before[name] end
  if not ok then error(result, 0) end
  return result, after
end

local function check_self(self, object, name)
  if self ~= object then fail("%s.%s: call it with a colon: x:%s(…)", object.__name, name, name) end
end

-- Wraps the update and compute of the object's class, which handle neither ranks nor devices nor gradients.
local function wrap(object)
  local update, compute = object.update, object.compute
  function object.update(self, ...)
    check_self(self, object, "update")
    move(self, device_of(...) or self.device)
    core.no_grad(update, self, ...)
    self.update_count = self.update_count + 1
    set_states(self, states_of(self))
  end
  function object.compute(self)
    check_self(self, object, "compute")
    local group = group_of(self)
    if not group and self.update_count == 0 then
      core.warn(("%s: compute() was called before update(); its value is that of no samples"):format(self.__name))
    end
    return (with_states(self, group and reduced(self, group) or states_of(self), compute))
  end
  -- Computes the value of the batch alone, on this rank alone.
  function object.forward(self, ...)
    check_self(self, object, "forward")
    move(self, device_of(...) or self.device)
    local zero = {}
    for name, default in pairs(self.defaults) do zero[name] = fresh(default, self.device) end
    local _, batch = with_states(self, zero, update, ...)
    local value = with_states(self, batch, compute)
    core.no_grad(function()
      for name, reduction in pairs(self.reductions) do self[name] = merge[reduction](self[name], batch[name]) end
    end)
    self.update_count = self.update_count + 1
    set_states(self, states_of(self))
    return value
  end
end

--- lm.metrics.Metric({process_group, sync_on_compute = true}): Base class for all metrics. A custom one adds states in
--- its init, and defines update and compute:
---
---   local Hits = lm.metrics.Metric:extend("Hits")
---   function Hits:init(opts)
---     Hits.super.init(self, opts)
---     self:add_state("hits", lm.zeros(1))
---   end
---   function Hits:update(preds, target)
---     self.hits = self.hits + preds:eq(target):sum()
---   end
---   function Hits:compute() return self.hits end
local Metric = class.root("Metric", wrap)
Metric.differs_by_rank = true -- checkpoints hold the state of each rank
Metric.__makes = "reductions"
Metric.__hint = "metric:compute() returns its value"

-- The options of all metrics, after their own.
local common = "*, process_group, sync_on_compute = true"

local function prepare(self) self.reductions, self.defaults, self.update_count, self.device = {}, {}, 0, "cpu" end

Metric.init = signature.fields("Metric({" .. common .. "})", prepare)

--- Adds a state as self[name]: a tensor, or {} for a list of tensors with the reduction "cat".
Metric.add_state = signature.of([[add_state(name: string, default, dist_reduce_fx = "sum" | "max" | "min" | "cat")]],
  function(self, name, default, reduction)
  class.check_made(self)
  local is_list = type(default) == "table" and next(default) == nil
  if is_list then reduction = "cat" end
  if not is_list and (reduction == "cat" or not core.is_tensor(default)) then
    options.must_be(self.__name .. ":add_state", "default", reduction == "cat" and "{}" or "a tensor, or {} for a list",
      default)
  end
  if self[name] ~= nil and not self.reductions[name] then
    fail("%s:add_state: '%s' is already a field or a method; choose another name", self.__name, name)
  end
  self.reductions[name], self.defaults[name] = reduction, is_list and {} or core.keep(default:detach():clone())
  self[name] = fresh(self.defaults[name], self.device)
end)

--- Adds a batch to the states. Classes define it.
function Metric:update() fail("%s: define function %s:update(…)", self.__name, self.__name) end

--- Returns the value of all batches since the last reset, over all ranks. Classes define it for the states of one.
function Metric:compute() fail("%s: define function %s:compute()", self.__name, self.__name) end

--- metric:forward(…): Adds a batch, as update does; returns the batch's own value on this rank. metric(…) calls it.

--- Sets all states to their defaults.
function Metric:reset()
  self.update_count = 0
  set_defaults(self)
end

--- Moves the states to a device; updates move them to their tensors' device. Returns the metric.
function Metric:to(device)
  move(self, core.device(device))
  return self
end

--- Returns the states as a table, for a checkpoint.
function Metric:state_dict()
  local out = {update_count = self.update_count}
  for name, state in pairs(states_of(self)) do
    if type(state) == "table" then state = state[1] and ops.cat(state, 1) or {} end
    out[name] = core.is_tensor(state) and state:clone() or state
  end
  return out
end

--- Sets the states to those of a state_dict.
function Metric:load_state_dict(state)
  options.arg(self.__name .. ":load_state_dict", "state", state, "table")
  local new = {}
  for name, reduction in lists.sorted_pairs(self.reductions) do
    local value = state[name]
    if reduction == "cat" and type(value) == "table" and next(value) == nil then
      new[name] = {}
    elseif core.is_tensor(value) then
      value = value:to(self.device):clone()
      new[name] = reduction == "cat" and {value} or value
    else
      fail("%s:load_state_dict: expected a tensor '%s', got %s", self.__name, name, options.describe(value))
    end
  end
  self.update_count = options.arg(self.__name .. ":load_state_dict", "update_count", state.update_count, "natural")
  set_states(self, new)
end

Metric.__inner = {"add_state"}

local classes, functions = {Metric = Metric}, {}

--- Adds a class of metrics to `classes`, and with `call` to `functions` the function of that name that returns its
--- value for one update. how: help: a sentence; required, options: texts of the constructor's arguments; make(self),
--- which checks them, now fields, and adds states; states(self): sizes of sums in float64, by name; update(self, …) and
--- compute(self); takes: the text of update's arguments; from_inputs(options, …), which sets options of the function by
--- its inputs.
local function define(name, how)
  local new = class.define(name, Metric)
  local required, rest = how.required and how.required .. ", " or "", how.options and how.options .. ", " or ""
  new.init = signature.fields(("%s(%s{%s%s})"):format(name, required, rest, common), function(self)
    prepare(self)
    if how.make then how.make(self) end
    for state, sizes in pairs(how.states and how.states(self) or {}) do
      self:add_state(state, ops.zeros(sizes, {dtype = "float64"}))
    end
  end)
  local takes = how.takes or "preds: tensor, target: tensor"
  new.update, new.compute = signature.of(("%s:update(%s)"):format(name, takes), how.update), how.compute
  new.__help = signature.help("lm.metrics." .. name, how.help)
  classes[name] = new
  if not how.call then return end
  local inputs = signature.parse(("update(%s)"):format(takes)).rows
  local text = ("%s(%s, %s{%s})"):format(how.call, takes, required, rest:gsub(", $", ""))
  local f = signature.by_name(text, function(given)
    local values = {}
    for i, row in ipairs(inputs) do values[i], given[row[1]] = given[row[1]], nil end
    if how.from_inputs then how.from_inputs(given, unpack(values, 1, #inputs)) end
    given.sync_on_compute = false
    local metric = new(given)
    metric:update(unpack(values, 1, #inputs))
    return metric:compute()
  end)
  functions[how.call] = signature.explained("lm.metrics.functional." .. how.call, how.help, f)
end

return {Metric = Metric, define = define, classes = classes, functions = functions}

--- Implements what all schedules share: groups and their rates, the epoch count, state_dict.
---
--- Like PyTorch's schedules, each computes the next rate from the current one where it can, so that a rate set by hand
--- stays and several schedules of one optimizer multiply. Most are entries (Scheduler.entries). A class has next_lr,
--- optionally closed_form, and `settings`: the fields that state_dict holds besides the position, as arguments of a
--- signature. A user's class has get_lr, as in PyTorch, and its state_dict holds all its fields of plain values.
local core = require "luminary.core"
local class = require "luminary.base.class"
local lists = require "luminary.base.lists"
local one_based_list = require "luminary.base.one_based_list"
local entries = require "luminary.base.entry_reader"
local options = require "luminary.base.options"
local signature = require "luminary.base.signature"
local fail = options.fail

local rate_list = one_based_list "get_last_lr()"

--- optim.lr_scheduler.LRScheduler(…): The base class of learning rate schedulers; classes that extend it define get_lr.
local Scheduler = class.root("LRScheduler")
Scheduler.__makes = "optimizer"
Scheduler.settings = "()"
Scheduler.__inner = {
  "classes", "count_step", "entries", "for_groups", "initial_step", "of_group", "restart", "start", "undo",
  "update", "closed_form", "next_lr", "note", "_get_closed_form_lr",
}

-- ---- arguments

options.kind("optimizer", "Optimizer", function(who, name, optimizer)
  if not class.record(optimizer) or type(optimizer.param_groups) ~= "table" then
    options.must_be(who, name, "an optimizer", optimizer)
  end
  return optimizer
end)

--- Returns a list with a value for each parameter group; `value` is such a list or one value for all groups.
function Scheduler.for_groups(who, name, value, optimizer, kind)
  local n, list = #optimizer.param_groups, {}
  if not options.is_plain(value) then
    for i = 1, n do list[i] = options.arg(who, name, value, kind) end
    return list
  end
  if #value ~= n then
    options.wrong_length(who, name, n, "parameter group", #value)
  end
  for i = 1, n do list[i] = options.arg(who, ("%s[%d]"):format(name, i), value[i], kind) end
  return list
end

--- Returns group i's value in the field `name`, a list by group; fails if the group was added after the list was made.
function Scheduler:of_group(name, i)
  local value = self[name][i]
  if value == nil then
    fail("%s: group %d was added after the scheduler was created and has no %s", self.__name, i, name)
  end
  return value
end

-- ---- steps

-- Records the optimizer's first step, by replacing its method step until the first call.
local function watch(optimizer)
  local values = class.record(optimizer).values
  if rawget(values, "has_stepped") ~= nil then return end
  local own, step = rawget(values, "step"), optimizer.step
  rawset(values, "has_stepped", false)
  rawset(values, "step", function(...)
    rawset(values, "step", own)
    rawset(values, "has_stepped", true)
    return step(...)
  end)
end

-- Returns the rate from which group i starts. Groups may be added while the schedule runs.
local function base_lr(self, i, group)
  if not self.base_lrs[i] then
    group.initial_lr = group.initial_lr or group.lr
    self.base_lrs[i] = group.initial_lr
  end
  return self.base_lrs[i]
end

--- Returns the rate of group i at self.last_epoch, from `base`, the rate it began with, or from the current one,
--- group.lr. self.initial is true during construction.
function Scheduler:next_lr(_group, _base, _i)
  fail("%s: define function %s:get_lr(), which returns a list of rates", self.__name, self.__name)
end

--- Returns that rate from the epoch alone, which SequentialLR needs to begin; nil for schedules that cannot.
function Scheduler:closed_form(_base) return nil end -- luacheck: no self

-- Returns a list of rate(group, base rate, i) of each group.
local function map_rates(self, rate)
  return lists.map(self.optimizer.param_groups, function(group, i) return rate(self, group, self.base_lrs[i], i) end)
end

--- Records the optimizer's current rates as the last ones.
function Scheduler:note()
  self.last_lr = {}
  for i, group in ipairs(self.optimizer.param_groups) do self.last_lr[i] = group.lr end
end

--- Computes the learning rates of the epoch self.last_epoch, a list with one for each group.
function Scheduler:get_lr() return map_rates(self, self.next_lr) end

--- Returns the learning rates computed from the epoch alone; nil, or an empty list, for schedules that cannot.
function Scheduler:_get_closed_form_lr()
  return map_rates(self, function(_, _, base) return self:closed_form(base) end)
end

--- Sets the rates of the next epoch, or of a given one, by the closed form if there is one.
function Scheduler:update(epoch)
  self.last_epoch = epoch or self.last_epoch + 1
  local groups = self.optimizer.param_groups
  for i, group in ipairs(groups) do
    options.arg(self.__name, ("the lr of group %d"):format(i), group.lr, "number")
    base_lr(self, i, group)
  end
  local rates = epoch and self:_get_closed_form_lr()
  if not rates or #rates == 0 then
    rates = options.arg(self.__name, "the result of get_lr", self:get_lr(), "table")
    if #rates ~= #groups then
      options.wrong_length(self.__name, "the result of get_lr", #groups, "parameter group", #rates)
    end
  end
  for i = 1, #groups do
    local rate = rates[i]
    if type(rate) ~= "number" or rate ~= rate or math.abs(rate) == math.huge then
      fail("%s: in epoch %d the lr of group %d would be %s", self.__name, self.last_epoch, i, tostring(rate))
    end
  end
  for i, group in ipairs(groups) do group.lr = rates[i] end
  self:note()
end

--- Counts a step. A schedule that overrides `step` calls it first.
function Scheduler:count_step()
  if self.step_count == 1 and not self.optimizer.has_stepped then
    core.warn(("%s:step() was called before the optimizer's first step, so the first learning rate is never used; "
      .. "call opt:step() first"):format(self.__name))
  end
  self.step_count = self.step_count + 1
end

--- Sets the next epoch's learning rates.
function Scheduler:step(...)
  if options.count(...) > 0 then
    fail("%s:step: takes no arguments; the scheduler counts epochs itself", self.__name)
  end
  self:count_step()
  self:update()
end

--- Performs the step of the construction, which sets the first rates.
function Scheduler:initial_step()
  self.step_count, self.initial = 0, true
  self:step()
  self.initial = nil
end

--- Restarts at epoch 0.
function Scheduler:restart()
  self.last_epoch = -1
  self:initial_step()
end

--- Begins the schedule, or resumes it after last_epoch.
function Scheduler:start(optimizer, last_epoch)
  local who = self.__name
  for i, group in ipairs(optimizer.param_groups) do
    if last_epoch >= 0 and not group.initial_lr then
      fail("%s: last_epoch = %d resumes a schedule, but group %d has no initial_lr; load the optimizer's state_dict "
        .. "first", who, last_epoch, i)
    end
  end
  self.optimizer, self.last_epoch, self.base_lrs = optimizer, last_epoch, {}
  watch(optimizer)
  self:initial_step()
end

Scheduler.init = signature.of("LRScheduler(optimizer: optimizer, last_epoch: integer(-1) = -1)", Scheduler.start)

-- ---- entries

--- Returns an empty list of schedules and the function that adds one, under its signature without optimizer and
--- last_epoch. The arguments become fields and, unless the entry overrides them, settings. after_init(self, optimizer)
--- runs before the schedule starts, started(self) after.
function Scheduler.entries()
  return entries.of("schedule", {
    settings = "string?", after_init = "function?", started = "function?", next_lr = "function",
    closed_form = "function?", help = "string",
  })
end

local function class_of(entry, path)
  local who = entry.name:match "^%w+"
  local new, text = class.define(who, Scheduler), entry.name:gsub("%(", "(optimizer: optimizer, ", 1)
  if not text:find "}%)$" then text = text:gsub("%)$", ", {})") end
  text = text:gsub("}%)$", ", last_epoch: integer(-1) = -1})")
  new.settings = entry.settings or entry.name
  new.init = signature.fields(text, function(self)
    if entry.after_init then entry.after_init(self, self.optimizer) end
    self:start(self.optimizer, self.last_epoch)
    if entry.started then entry.started(self) end
  end)
  rawset(new, "next_lr", entry.next_lr) -- next_lr may name fewer arguments than its callers pass
  rawset(new, "closed_form", entry.closed_form)
  new.__help = signature.help(path .. who, entry.help)
  return new
end

--- Returns the classes of a list of entries, by name. `path` precedes names in help, "optim.lr_scheduler." by default.
function Scheduler.classes(list, path)
  local classes = {}
  for _, entry in ipairs(list) do classes[entry.name:match "^%w+"] = class_of(entry, path or "optim.lr_scheduler.") end
  return classes
end

--- Undoes one step of construction, for SequentialLR, which repeats it for the first of its schedules.
function Scheduler:undo() self.last_epoch = self.last_epoch - 1 end

-- Copies lists and tables of settings, which must not be shared with state dicts.
local function copy(v)
  if type(v) ~= "table" then return v end
  local new = {}
  for key, value in pairs(v) do new[key] = copy(value) end
  return new
end

--- Returns the last learning rates, a list with one for each group.
function Scheduler:get_last_lr()
  return setmetatable(copy(self.last_lr), rate_list)
end

-- ---- state

local own = {optimizer = true, initial = true, last_epoch = true, step_count = true, last_lr = true, base_lrs = true}

-- Returns true if v is a number, a string, a boolean or a table of these.
local function is_data(v)
  if type(v) ~= "table" then return v ~= nil and type(v) ~= "function" and type(v) ~= "userdata" end
  if not options.is_plain(v) then return false end
  for _, value in pairs(v) do
    if not is_data(value) then return false end
  end
  return true
end

--- Returns the state of the scheduler, plain values for lm.save. Functions are not saved.
function Scheduler:state_dict()
  local dict = {last_epoch = self.last_epoch, step_count = self.step_count, last_lr = copy(self.last_lr),
    base_lrs = copy(self.base_lrs)}
  for _, row in ipairs(signature.parse(self.settings).rows) do dict[row[1]] = copy(self[row[1]]) end
  local record = class.record(self)
  for key, value in pairs(rawget(record.class, "strict") and {} or record.values) do
    if not own[key] and is_data(value) then dict[key] = copy(value) end
  end
  return dict
end

--- Loads a state_dict, also PyTorch's as plain tables (names may begin with "_"). Load the optimizer's state_dict, too,
--- which has the current learning rates. An error changes nothing.
function Scheduler:load_state_dict(dict)
  local who = self.__name .. ":load_state_dict"
  options.arg(who, "the state_dict", dict, "table")
  local function given(key)
    local value = rawget(dict, key)
    if value == nil then value = rawget(dict, "_" .. key) end
    return value
  end
  local new = {}
  for _, key in ipairs(self.base_lrs and {"base_lrs", "last_lr"} or {"last_lr"}) do
    new[key] = Scheduler.for_groups(who, key, options.arg(who, key, given(key), "list"), self.optimizer, "number")
  end
  new.last_epoch = options.arg(who, "last_epoch", given "last_epoch" or self.last_epoch, "integer")
  new.step_count = options.arg(who, "step_count", given "step_count" or new.last_epoch + 1, "natural")
  for _, row in ipairs(signature.parse(self.settings).rows) do
    local key, kind = unpack(row)
    local value = given(key)
    if value ~= nil or not row.optional then new[key] = copy(options.arg(who, key, value, kind)) end
  end
  if not rawget(class.record(self).class, "strict") then
    for key, value in pairs(dict) do
      local known = type(key) ~= "string" or own[key] or own[key:sub(2)] or type(self[key]) == "function"
      if new[key] == nil and not known and is_data(value) then new[key] = copy(value) end
    end
  end
  signature.assign(self, new)
end

return Scheduler

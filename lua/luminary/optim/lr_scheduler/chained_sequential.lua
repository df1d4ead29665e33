--- Combines several schedules of the same optimizer into one.
local class = require "luminary.base.class"
local lists = require "luminary.base.lists"
local options = require "luminary.base.options"
local signature = require "luminary.base.signature"
local Scheduler = require "luminary.optim.lr_scheduler.scheduler"
local Plateau = require "luminary.optim.lr_scheduler.plateau"
local fail = options.fail

local several = {}

-- The base class of both schedules: a list of schedules, and their state.
local Several = class.define("Several", Scheduler)

-- Checks the list of schedules. Returns it, and the optimizer that all of them share.
local function check_schedules(who, schedulers, optimizer)
  if getmetatable(schedulers) or #schedulers == 0 then
    fail("%s: expected a list of at least one scheduler, {a, b}, got %s", who,
      getmetatable(schedulers) and options.describe(schedulers) or "an empty list")
  end
  local list = {}
  for i, each in ipairs(options.list(who, "schedulers", schedulers)) do
    if not class.is(each, Scheduler) then
      options.must_be(who, ("schedulers[%d]"):format(i), "a scheduler", each)
    end
    if class.is(each, Plateau) then
      fail("%s: schedulers[%d] is a ReduceLROnPlateau, whose step() needs a metric; call its step() separately", who, i)
    end
    optimizer = optimizer or each.optimizer
    if each.optimizer ~= optimizer then fail("%s: schedulers[%d] has another optimizer", who, i) end
    list[i] = each
  end
  return list, optimizer
end

function Several:undo()
  for _, each in ipairs(self.schedulers) do each:undo() end
end

-- Restarts at a milestone of a SequentialLR.
function Several:update(_epoch)
  for _, group in ipairs(self.optimizer.param_groups) do group.lr = group.initial_lr end
  self:restart()
end

-- Performs the initial step as a plain step of the schedules inside, as PyTorch does.
function Several:initial_step()
  for _, each in ipairs(self.schedulers) do each.step_count = 0 end
  self:step()
end

function Several:state_dict()
  local dict = Scheduler.state_dict(self)
  dict.base_lrs, dict.schedulers = nil, {}
  for i, each in ipairs(self.schedulers) do dict.schedulers[i] = each:state_dict() end
  return dict
end

function Several:load_state_dict(dict)
  local who = self.__name .. ":load_state_dict"
  options.arg(who, "the state_dict", dict, "table")
  local states = options.arg(who, "schedulers", rawget(dict, "schedulers") or rawget(dict, "_schedulers"), "table")
  if #states ~= #self.schedulers then
    fail("%s: the state_dict has %d schedulers, this one %d", who, #states, #self.schedulers)
  end
  local before = self:state_dict()
  local ok, problem = pcall(function()
    for i, each in ipairs(self.schedulers) do each:load_state_dict(states[i]) end
    Scheduler.load_state_dict(self, dict)
  end)
  if ok then return end
  for i, each in ipairs(self.schedulers) do each:load_state_dict(before.schedulers[i]) end
  error(problem, 0)
end

--- optim.lr_scheduler.ChainedScheduler(…): Chains a list of schedulers: each step performs a step of all of them.
local Chained = class.define("ChainedScheduler", Several)
several.ChainedScheduler = Chained

Chained.init = signature.of([[ChainedScheduler(schedulers: list,
  {optimizer: optimizer})]], function(self, schedulers, opts)
  self.schedulers, self.optimizer = check_schedules("ChainedScheduler", schedulers, opts.optimizer)
  self.last_epoch, self.step_count = 0, 1
  self:note()
end)

function Chained:restart()
  for _, each in ipairs(self.schedulers) do each:restart() end
  self.last_epoch, self.step_count = 0, 1
  self:note()
end

--- Performs a step of all schedulers.
function Chained:step()
  for _, each in ipairs(self.schedulers) do each:step() end
  self.last_epoch, self.step_count = self.last_epoch + 1, self.step_count + 1
  self:note()
end

options.kind("milestones", "list of integers", function(who, name, list)
  for i, epoch in ipairs(options.arg(who, name, list, "integer[]")) do
    if i > 1 and epoch < list[i - 1] then
      fail("%s: %s must increase, got %s after %s", who, name, tostring(epoch), tostring(list[i - 1]))
    end
  end
  return list
end)

--- optim.lr_scheduler.SequentialLR(…): Runs a list of schedulers one after the other, each from its milestone.
local Sequential = class.define("SequentialLR", Several)
Sequential.settings = "(milestones: milestones)"
several.SequentialLR = Sequential

-- Returns the index of an epoch's schedule.
local function schedule_index(milestones, epoch)
  local i = 1
  while milestones[i] and milestones[i] <= epoch do i = i + 1 end
  return i
end

Sequential.init = signature.of([[SequentialLR(optimizer: optimizer, schedulers: list, milestones: milestones,
  {last_epoch: integer(-1) = -1})]], function(self, optimizer, schedulers, milestones, opts)
  local who = "SequentialLR"
  self.optimizer = optimizer
  self.schedulers = check_schedules(who, schedulers, optimizer)
  self.milestones = lists.slice(milestones)
  if #self.milestones ~= #self.schedulers - 1 then
    options.wrong_length(who, "milestones", #self.schedulers - 1, "scheduler after the first", #self.milestones)
  end
  for _, group in ipairs(optimizer.param_groups) do group.lr = group.initial_lr end
  self:undo()
  self:_begin("initial_step", opts.last_epoch + 1)
end)

-- Starts the schedule of epoch 0 by its method named `start`.
function Sequential:_begin(start, epoch)
  self.last_epoch, self.step_count = epoch, 1
  local first = self.schedulers[schedule_index(self.milestones, 0)]
  first[start](first)
  self.last_lr = first:get_last_lr()
end

function Sequential:restart() self:_begin("restart", 0) end

--- Sets the next epoch's learning rates, by the current scheduler.
function Sequential:step()
  local epoch = self.last_epoch + 1
  local i = schedule_index(self.milestones, epoch)
  local now = self.schedulers[i]
  if i > 1 and self.milestones[i - 1] == epoch then now:update(0) else now:step() end
  self.last_epoch, self.step_count, self.last_lr = epoch, self.step_count + 1, now:get_last_lr()
end

return several

--- optim.Optimizer: Defines the base class of all optimizers. A custom one extends it, with its options and `advance`:
---
---   local Signum = optim.Optimizer:extend("Signum") -- Bernstein, signSGD, 2018
---   Signum.spec = {lr = {"number", 0.01}, momentum = {"number", 0.9}}
---   function Signum:advance(group, params, states, count)
---     for i, p in ipairs(params) do
---       local state = states[i]
---       state.buffer = state.buffer or lm.zeros_like(p)
---       local m = group.momentum
---       state.buffer:mul_(m):add_(p.grad, {alpha = 1 - m})
---       p:sub_(state.buffer:sign(), {alpha = group.lr})
---     end
---   end
---   local opt = Signum(net:parameters(), {lr = 0.001})
local core = require "luminary.core"
local class = require "luminary.base.class"
local lists = require "luminary.base.lists"
local one_based_list = require "luminary.base.one_based_list"
local gradients = require "luminary.autograd.zero_gradients"
local hooks_add = require "luminary.base.hooks"
local load_module = require "luminary.base.load_module"
local options = require "luminary.base.options"
local signature = require "luminary.base.signature"
local fail, is_plain = options.fail, options.is_plain

local Optimizer = class.root("Optimizer")
Optimizer.__makes = "param_groups"
Optimizer.__hint = "opt.param_groups is the list of its groups"

local cast_groups = setmetatable({}, {__mode = "k"}) -- keyed by optimizer; a field would be sent to other processes
local checked = setmetatable({}, {__mode = "k"}) -- has the optimizers whose first step was checked
local group_list, param_list = one_based_list "param_groups", one_based_list "params"
Optimizer.__inner = {
  "declare", "adopt_state", "advance", "all_parameters", "by_number", "check_group", "check_state", "hooked",
  "keep_states", "keeps", "shapes", "state_dtype", "state_shape", "step_one",
}

--- The options by name: {kind, default}, see options.check.
Optimizer.spec = {}

--- Sets the options of a class of the library from a signature's items, "{lr: positive = 0.001}".
function Optimizer.declare(of, items)
  local text, spec = ("(params, %s)"):format(items), signature.spec(items)
  of.spec, of.takes, of.declared_spec = spec, text, spec
  of.init = signature.note(text, function(self, ...) return Optimizer.init(self, ...) end)
end

--- The keys of a parameter's state that are numbers.
Optimizer.numbers = {step = true}

--- True if steps depend on their number. PyTorch's SGD keeps none.
Optimizer.counts = true

--- Performs one step of some of a group's parameters, all with gradients, as their step number `count`, from 1. No
--- graph is recorded. states[i], params[i]'s table in opt.state, is empty at first; the method fills it with tensors of
--- the parameter's sizes and numbers. The caller updates `step`.
function Optimizer:advance(_group, _params, _states, _count)
  fail("%s: define function advance(group, params, states, count)", self.__name)
end

-- Rejects a group's option as a field of the optimizer, where steps would ignore it.
function Optimizer:__newindex(key, value)
  if self.spec[key] then
    fail("%s: %s is set per parameter group: for _, group in ipairs(opt.param_groups) do group.%s = … end", self.__name,
      key, key)
  end
  rawset(class.record(self).values, key, value)
end

--- Sets the fields of a new optimizer. `params`: a list of tensors (net:parameters()), or of groups {params = list, lr
--- = …}.
function Optimizer:init(params, ...)
  local who = self.__name
  if core.is_tensor(params) or not is_plain(params) then
    options.expected(who, "a list of parameters, net:parameters()", params)
  end
  if self.declared_spec == self.spec then
    self.defaults = select(2, signature.read(self.takes, who, params, ...))
  else -- a user's class, whose options are only by name
    self.defaults = options.check(who, (...), self.spec, "lr")
  end
  self:check_group(self.defaults)
  self.param_groups, self.state, self.known = setmetatable({}, group_list), {}, {} -- state: by parameter
  if rawget(params, "params") then
    fail("%s: params must be a list of parameters or of groups, got one group; put it in a list: {{params = …}}", who)
  end
  if #options.list(who, "params", params) == 0 then fail("%s: params must not be empty", who) end
  if core.is_tensor(params[1]) then params = {{params = params}} end
  for _, group in ipairs(params) do self:add_param_group(group) end
end

--- Checks a group's options; classes add their own checks.
function Optimizer:check_group(group)
  for _, key in ipairs {"lr", "weight_decay"} do
    if self.spec[key] then options.arg(self.__name, key, group[key], "positive") end
  end
end

--- Returns a list of the parameters of all groups, in order.
function Optimizer:all_parameters()
  local all = {}
  for _, group in ipairs(self.param_groups) do lists.append(all, group.params) end
  return all
end

--- Adds a parameter group, {params = list, lr = …}. Options that it lacks are those of the optimizer.
function Optimizer:add_param_group(given)
  local who = self.__name
  if not is_plain(given) or not is_plain(given.params) then
    options.expected(who, "a parameter group, a table with a list params", given)
  end
  local own = {}
  for key, value in pairs(given) do
    if key ~= "params" then own[key] = value end
  end
  local group = options.check(who, own, self.spec)
  for key in pairs(self.spec) do
    if own[key] == nil then group[key] = self.defaults[key] end
  end
  self:check_group(group)
  group.params = setmetatable({}, param_list)
  local seen = {}
  for i, p in ipairs(options.list(who, "params", given.params)) do
    if not core.is_tensor(p) then options.must_be(who, ("parameter %d"):format(i), "a tensor", p) end
    if not p.is_leaf then fail("%s: parameter %d must be a leaf, not the result of an op", who, i) end
    if self.known[p] or seen[p] then fail("%s: parameter %d is listed twice", who, i) end
    seen[p] = true
    group.params[i] = p
  end
  for p in pairs(seen) do self.known[p] = true end
  table.insert(self.param_groups, group)
  cast_groups[self] = core.cast_group(self:all_parameters())
end

--- Clears the gradients of all parameters. {set_to_none = false} fills them with zeros.
Optimizer.zero_grad = signature.of("zero_grad({set_to_none = true})", function(self, opts)
  for _, group in ipairs(self.param_groups) do gradients.zero(group.params, opts.set_to_none) end
end)

-- Groups parameters with a gradient by their number of steps, which mostly is the same for all, so that a group is one
-- call into C.
local function batches(self, group)
  local by_count, order, all = {}, {}, self.state
  for _, p in ipairs(group.params) do
    if core.has_grad(p) then
      local state = all[p]
      local count = state and state.step or 0
      local batch = by_count[count]
      if not batch then
        batch = {count = count}
        by_count[count] = batch
        order[#order + 1] = batch
      end
      batch[#batch + 1] = p
    end
  end
  return order
end

--- Keeps states that `advance` made in an lm.scope when the scope ends.
function Optimizer.keep_states(_self, states)
  for _, state in ipairs(states) do
    for _, value in pairs(state) do
      if core.is_tensor(value) then core.keep(value) end
    end
  end
end

-- Returns an option's value as text; a list is in parentheses.
local function text_of(value)
  if type(value) ~= "table" then return tostring(value) end
  local parts = lists.map(value, tostring)
  return "(" .. table.concat(parts, ", ") .. ")"
end

-- Returns a function that raises an error once a replay of the captured step would not equal a step.
local function captured(self, group, params, states)
  local was = {}
  for key in pairs(self.spec) do was[key] = text_of(group[key]) end
  return function()
    for key, value in pairs(was) do
      if text_of(group[key]) ~= value then
        fail("replay: %s's %s is %s but was %s at the capture; capture the graph again", self.__name, key,
          text_of(group[key]), value)
      end
    end
    for i, p in ipairs(params) do
      if self.state[p] ~= states[i] then
        fail("replay: %s has loaded another state since the capture; capture the graph again", self.__name)
      end
    end
  end
end

local function add_hook(self, name, fn)
  options.arg(("%s:register_step_%s"):format(self.__name, name), "the hook", fn, "function")
  return hooks_add(self, name, fn)
end

--- Calls fn(opt, closure) before each step. Returns a handle with :remove().
function Optimizer:register_step_pre_hook(fn) return add_hook(self, "pre_hook", fn) end
--- Calls fn(opt, closure) after each step. Returns a handle with :remove().
function Optimizer:register_step_post_hook(fn) return add_hook(self, "post_hook", fn) end

--- Calls step(self, closure) between the hooks, for classes that override `step`.
function Optimizer:hooked(step, closure)
  for _, hook in ipairs(self.pre_hook or {}) do hook(self, closure) end
  local loss = step(self, closure)
  for _, hook in ipairs(self.post_hook or {}) do hook(self, closure) end
  return loss
end

local function make_step(self, closure)
  local loss
  if closure ~= nil then
    loss = core.enable_grad(options.arg(self.__name .. ":step", "closure", closure, "function"))
  end
  local placement = not checked[self] and package.loaded["luminary.nn.parallel.placement"]
  if placement then placement.check_averaged(self.__name, self:all_parameters()) end
  checked[self] = true
  for _, group in ipairs(self.param_groups) do
    for _, params in ipairs(batches(self, group)) do
      -- Store and count the states last: an error leaves the optimizer able to step again.
      local states, count, all = {}, params.count + 1, self.state
      for i, p in ipairs(params) do states[i] = all[p] or {} end
      core.no_grad(self.advance, self, group, params, states, count)
      self:keep_states(states)
      for i, p in ipairs(params) do
        states[i].step = count
        all[p] = states[i]
      end
      if core.graph_is_capturing() then -- the first replay counts the step
        for _, state in ipairs(states) do state.step = count - 1 end
        load_module("luminary.cuda.graph").on_replay(function()
          for _, state in ipairs(states) do state.step = state.step + 1 end
        end, captured(self, group, params, states))
      end
    end
  end
  return loss
end

--- Performs one optimization step. `closure`, if given, computes the loss again first, and its result is returned.
function Optimizer:step(closure)
  if not core.is_recording() then return self:hooked(make_step, closure) end
  return core.record_kind("optimizer", self.__name .. ".step", self.hooked, self, make_step, closure)
end

--- Returns the state of the optimizer: {state = {[n] = …}, param_groups = {…}}, parameters numbered from 1 in order.
--- Its tensors are those of the optimizer, not copies. lm.save saves it.
function Optimizer:state_dict()
  local dict, n = {state = {}, param_groups = {}}, 0
  for g, group in ipairs(self.param_groups) do
    local copy = lists.copy(group)
    copy.params = {}
    for i, p in ipairs(group.params) do
      n = n + 1
      copy.params[i] = n
      local place = core.field(p, "placement")
      if self.state[p] then
        dict.state[n] = {}
        for key, value in pairs(self.state[p]) do
          dict.state[n][key] = value
          if place then place:note_part(value) end
        end
      end
    end
    dict.param_groups[g] = copy
  end
  return dict
end

--- Moves the state tensors to shared memory, in place, so that the processes that the optimizer is sent to step the
--- same state. Call module:share_memory() for the parameters. Returns the optimizer.
function Optimizer:share_memory()
  local list, names = {}, {}
  for n, p in ipairs(self:all_parameters()) do
    for key, value in pairs(self.state[p] or {}) do
      if core.is_tensor(value) then
        list[#list + 1], names[#names + 1] = value, ("parameter %d's %s"):format(n, key)
      end
    end
  end
  load_module("luminary.mp.share_tensors")(list, function(i, why) fail("share_memory: %s: %s", names[i], why) end)
  return self
end

-- Copies a state tensor to a dtype, and to the layout of its parameter if the sizes match, as steps require.
local function adopt(t, p, dtype)
  local own = t.shape == p.shape and core.ops.empty_like(p:detach(), {dtype = dtype})
    or core.ops.empty(t.shape, {dtype = dtype, device = p.device})
  own:copy_(t)
  return core.keep(own)
end

--- Returns the problem of a parameter's state that load_state_dict took over, as text; nil if there is none. Classes
--- add their own checks.
function Optimizer.check_state(_self, state)
  local step = state.step
  if type(step) ~= "number" or step < 1 or step % 1 ~= 0 then
    return "step must be an integer of at least 1, got " .. options.describe(step)
  end
end

--- Returns the sizes of a parameter's state tensor `key`; overridden where they differ, nil if there is no such state.
function Optimizer.state_shape(_self, p, _key) return p.shape end

--- Returns the dtype of a parameter's states: squares of most gradients leave float16.
function Optimizer.state_dtype(p) return p.dtype == "float16" and "float32" or p.dtype end

--- Returns a parameter's state from a state_dict as this optimizer holds it: tensors on the parameter's device, in
--- state_dtype and its layout, or false if this optimizer does not hold them (`mine`, see keeps). refuse(key, value)
--- fails for a tensor of wrong sizes.
function Optimizer:adopt_state(p, state, mine, refuse)
  local own, place = {}, core.field(p, "placement")
  for key, value in pairs(state) do
    if place then value = place:own_part(value) end
    if core.is_tensor(value) and value.ndim == 0 and (p.ndim > 0 or self.numbers[key]) then
      value = value:item() -- PyTorch stores numbers as 0-d tensors
    end
    if core.is_tensor(value) then
      local shape = self:state_shape(p, key)
      if not shape or table.concat(value.shape, ",") ~= table.concat(shape, ",") then refuse(key, value) end
      value = mine and core.no_grad(adopt, value, p, self.state_dtype(p))
    end
    own[key] = value
  end
  if not self.counts and own.step == nil then own.step = 1 end
  return own
end

--- Returns true if this optimizer holds a parameter's state. load_state_dict checks other states and drops them.
function Optimizer.keeps(_self, _parameter) return true end

--- Loads a state_dict of an optimizer with the same groups: of this class, or of PyTorch's class of the same name, as
--- lm.load reads it. Tensors are copied to the parameters' devices and dtypes. is_own: true for a state_dict of this
--- rank's parameters alone.
function Optimizer:load_state_dict(dict, is_own)
  local who = self.__name .. ":load_state_dict"
  if not is_plain(dict) or not is_plain(dict.param_groups) or not is_plain(dict.state) then
    local lacks = is_plain(dict) and (is_plain(dict.param_groups) and "state" or "param_groups")
    if lacks then fail("%s: the state_dict has no table '%s'; pass the result of :state_dict()", who, lacks) end
    options.expected(who, "a table with state and param_groups", dict)
  end
  if #dict.param_groups ~= #self.param_groups then
    fail("%s: the state_dict has %d parameter groups, the optimizer %d", who, #dict.param_groups, #self.param_groups)
  end
  local placement = package.loaded["luminary.nn.parallel.placement"]
  if placement and not is_own then dict = placement.part_of_dict(self, dict) end
  local groups, states, n = setmetatable({}, group_list), {}, 0
  for g, group in ipairs(self.param_groups) do
    local saved = dict.param_groups[g]
    local list = is_plain(saved) and is_plain(saved.params) and saved.params
    if not list or #list ~= #group.params then
      fail("%s: group %d has %d parameters in the optimizer, %s in the state_dict; pass the optimizer the parameters "
        .. "of the model that was saved, in the same groups", who, g, #group.params,
        list and #list or "no list of them")
    end
    local own = {}
    for key in pairs(self.spec) do
      if key ~= "lr" or type(saved.lr) ~= "number" then own[key] = saved[key] end
    end
    groups[g] = options.check(who, own, self.spec)
    self:check_group(groups[g])
    if type(saved.lr) == "number" then groups[g].lr = saved.lr end -- a schedule may have set one below 0
    groups[g].initial_lr = saved.initial_lr
    groups[g].params = group.params
    for i, p in ipairs(group.params) do
      n = n + 1
      local state = dict.state[saved.params[i]]
      if state ~= nil then
        if not is_plain(state) then fail("%s: the state of parameter %d must be a table", who, n) end
        local mine = self:keeps(p)
        states[p] = self:adopt_state(p, state, mine, function(key, value)
          fail("%s: %s of parameter %d is %s, but the parameter is %s", who, tostring(key), n, options.describe(value),
            options.describe(p))
        end)
        local no_step = self.counts and states[p].step == 0 -- PyTorch's Adagrad without a gradient
        local wrong = not no_step and self:check_state(states[p])
        if wrong then fail("%s: the state of parameter %d: %s", who, n, wrong) end
        if no_step or not mine then states[p] = nil end
      end
    end
  end
  self.param_groups, self.state = groups, states
end

--- Returns the state_dict of the parameters that this rank holds, if nn.parallel.fully_shard sharded any; else nil.
--- lm.checkpoint saves it in a file of this rank.
function Optimizer:shard_state_dict()
  local placement = package.loaded["luminary.nn.parallel.placement"]
  return placement and placement.state_of_optimizer(self)
end

--- Loads the states of an optimizer that was sharded over any number of ranks, or the part of them that this optimizer
--- keeps. next_shard() returns the ranks' shard_state_dicts one after another, then nil.
function Optimizer:load_shards(next_shard)
  local placement = load_module "luminary.nn.parallel.placement"
  local add_state, params, numbers, dict = placement.add_state, {}, placement.numbers(self), nil
  for n, p in ipairs(self:all_parameters()) do params[numbers and numbers[n] or n] = self:keeps(p) and p or nil end
  for shard in next_shard, params do
    if not is_plain(shard.state) then fail "load_shards: the saved state is no optimizer's" end
    dict = dict or {param_groups = shard.param_groups, state = {}}
    for i, state in pairs(shard.state) do
      local p, saved = params[i], is_plain(shard.shards) and shard.shards[i] or nil
      if p then dict.state[i] = add_state(dict.state[i], p, state, saved) end
    end
  end
  self:load_state_dict(numbers and placement.renumbered(self, dict, numbers) or dict, true)
end

function Optimizer:repr()
  local lines = {self.__name .. " ("}
  for g, group in ipairs(self.param_groups) do
    lines[#lines + 1] = "Parameter Group " .. g
    for _, key in ipairs(options.sorted_keys(group, function(key) return key ~= "params" end)) do
      lines[#lines + 1] = ("    %s: %s"):format(key, text_of(group[key]))
    end
  end
  lines[#lines + 1] = ")"
  return table.concat(lines, "\n")
end

return Optimizer

--- optim.Optimizer: what SGD, Adam and AdamW share: parameter groups, state, checkpoints.
local core = require "luminary.core"
local class = require "luminary.class"
local options = require "luminary.options"
local fail, is_plain = options.fail, options.is_plain

local Optimizer = class.root("Optimizer")
Optimizer.__makes = "param_groups"
Optimizer.__hint = "opt.param_groups is the list of its groups"

-- Each class sets `spec` (see options.check), and has new_state and arguments.
Optimizer.spec = {}

-- What a group has is no field of the optimizer, where steps would never look.
function Optimizer:__newindex(key, value)
  if self.spec[key] then
    fail("%s: %s belongs to the groups of parameters: for _, group in ipairs(opt.param_groups) do group.%s = … end",
      self.__name, key, key)
  end
  rawset(class.record(self).values, key, value)
end

--- What new optimizers get. `params`: a list of tensors (net:parameters()), or a list of groups {params = list, lr =
--- …}.
function Optimizer:init(params, opts)
  local who = self.__name
  if core.is_tensor(params) or not is_plain(params) then
    fail("%s: a list of parameters wanted, net:parameters(), got %s", who, options.describe(params))
  end
  self.defaults = options.check(who, opts, self.spec, "lr")
  self:check_group(self.defaults)
  self.param_groups, self.state, self.known = {}, {}, {} -- state: by parameter
  if #params == 0 then fail("%s: the list of parameters is empty", who) end
  if core.is_tensor(params[1]) then params = {{params = params}} end
  for _, group in ipairs(params) do self:add_param_group(group) end
end

--- Values that make no sense are errors; classes add their own checks.
function Optimizer:check_group(group)
  for _, key in ipairs {"lr", "weight_decay"} do
    options.arg(self.__name, key, group[key], "positive")
  end
end

--- Another group: {params = list, lr = …}; options it does not give are the optimizer's.
function Optimizer:add_param_group(given)
  local who = self.__name
  if not is_plain(given) or not is_plain(given.params) then
    fail("%s: a parameter group is a table with a list called params, got %s", who, options.describe(given))
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
  group.params = {}
  local seen = {}
  for i, p in ipairs(given.params) do
    if not core.is_tensor(p) then fail("%s: parameter %d has to be a tensor, got %s", who, i, options.describe(p)) end
    if not p.is_leaf then fail("%s: parameter %d is the result of an op, not a leaf", who, i) end
    if self.known[p] or seen[p] then fail("%s: parameter %d is there twice", who, i) end
    seen[p] = true
    group.params[i] = p
  end
  for p in pairs(seen) do self.known[p] = true end
  table.insert(self.param_groups, group)
end

--- Drop all gradients; {set_to_none = false} fills them with zeros.
function Optimizer:zero_grad(opts)
  opts = options.check("zero_grad", opts, {set_to_none = {"boolean", true}}, "set_to_none")
  for _, group in ipairs(self.param_groups) do core.zero_grad(group.params, opts.set_to_none) end
end

-- Parameters with a gradient, by how many steps they have made: all of them the same number, mostly, so
-- that a group is one call into C.
local function batches(self, group)
  local by_count, order = {}, {}
  for _, p in ipairs(group.params) do
    if core.has_grad(p) then
      local count = self.state[p] and self.state[p].step or 0
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

--- One step. `closure`, if given, computes the loss again first; its result is returned.
function Optimizer:step(closure)
  local loss
  if closure ~= nil then
    loss = core.enable_grad(options.arg(self.__name .. ":step", "closure", closure, "function"))
  end
  for _, group in ipairs(self.param_groups) do
    for _, params in ipairs(batches(self, group)) do
      -- State is made first and counted last: an error leaves the optimizer able to step again.
      local states = {}
      for i, p in ipairs(params) do states[i] = self.state[p] or self:new_state(group, p) end
      core.optim_step(self:arguments(group, params, states, params.count + 1))
      for i, p in ipairs(params) do
        states[i].step = params.count + 1
        self.state[p] = states[i]
      end
      if core.graph_is_capturing() then
        require("luminary.cuda.graph").on_replay(function(n)
          for _, state in ipairs(states) do state.step = state.step + n end
        end)
      end
    end
  end
  return loss
end

--- One field of each state, as a list for the core; nil if the first has none.
function Optimizer.column(states, name)
  if not states[1][name] then return nil end
  local list = {}
  for i, state in ipairs(states) do list[i] = state[name] end
  return list
end

--- Everything needed to go on: {state = {[n] = …}, param_groups = {…}}, parameters numbered from 1 in
--- order. Tensors are the optimizer's own; lm.save takes it as it is.
function Optimizer:state_dict()
  local dict, n = {state = {}, param_groups = {}}, 0
  for g, group in ipairs(self.param_groups) do
    local copy = {}
    for key, value in pairs(group) do copy[key] = value end
    copy.params = {}
    for i, p in ipairs(group.params) do
      n = n + 1
      copy.params[i] = n
      if self.state[p] then
        dict.state[n] = {}
        for key, value in pairs(self.state[p]) do dict.state[n][key] = value end
      end
    end
    dict.param_groups[g] = copy
  end
  return dict
end

-- A state tensor in the layout of its parameter, which is what steps need.
local function adopt(t, p)
  local own = core.ops.empty_like(p:detach())
  own:copy_(t)
  return core.keep(own)
end

--- Whether this optimizer holds the state of a parameter. load_state_dict checks what it does not hold, and drops it.
function Optimizer.keeps(_self, _parameter) return true end

--- Take over a state_dict of an optimizer with the same groups. Tensors are copied to the parameters'
--- devices and dtypes.
function Optimizer:load_state_dict(dict)
  local who = self.__name .. ":load_state_dict"
  if not is_plain(dict) or not is_plain(dict.param_groups) or not is_plain(dict.state) then
    fail("%s: a table with state and param_groups wanted, got %s", who, options.describe(dict))
  end
  if #dict.param_groups ~= #self.param_groups then
    fail("%s: %d parameter groups in the state_dict, %d in the optimizer", who, #dict.param_groups,
      #self.param_groups)
  end
  local groups, states, n = {}, {}, 0
  for g, group in ipairs(self.param_groups) do
    local saved = dict.param_groups[g]
    if not is_plain(saved) or not is_plain(saved.params) or #saved.params ~= #group.params then
      fail("%s: group %d has %d parameters in the optimizer, another number in the state_dict", who, g, #group.params)
    end
    local own = {}
    for key, value in pairs(saved) do
      if self.spec[key] then own[key] = value end
    end
    groups[g] = options.check(who, own, self.spec)
    self:check_group(groups[g])
    groups[g].initial_lr = saved.initial_lr
    groups[g].params = group.params
    for i, p in ipairs(group.params) do
      n = n + 1
      local state = dict.state[saved.params[i]]
      if state ~= nil then
        if not is_plain(state) then fail("%s: the state of parameter %d is no table", who, n) end
        states[p] = {}
        local mine = self:keeps(p)
        for key, value in pairs(state) do
          if core.is_tensor(value) then
            if value.ndim ~= p.ndim or table.concat(value.shape, ",") ~= table.concat(p.shape, ",") then
              fail("%s: %s of parameter %d is %s, the parameter %s", who, tostring(key), n, options.describe(value),
                options.describe(p))
            end
            value = mine and core.no_grad(adopt, value, p)
          end
          states[p][key] = value
        end
        options.arg(who, "step", states[p].step, "count")
        if not mine then states[p] = nil end
      end
    end
  end
  self.param_groups, self.state = groups, states
end

function Optimizer:repr()
  local lines = {self.__name .. " ("}
  for g, group in ipairs(self.param_groups) do
    lines[#lines + 1] = "Parameter Group " .. g
    local keys = {}
    for key in pairs(group) do
      if key ~= "params" then keys[#keys + 1] = key end
    end
    table.sort(keys)
    for _, key in ipairs(keys) do
      local value = group[key]
      lines[#lines + 1] = ("    %s: %s"):format(key,
        type(value) == "table" and "(" .. table.concat(value, ", ") .. ")" or tostring(value))
    end
  end
  lines[#lines + 1] = ")"
  return table.concat(lines, "\n")
end

return Optimizer

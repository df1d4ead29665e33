--- optim.ZeroRedundancyOptimizer(…): Wraps an optimizer and shards its states across the ranks of a process group.
--- Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models", 2020, stage 1.
local core = require "luminary.core"
local class = require "luminary.base.class"
local load_module = require "luminary.base.load_module"
local lists = require "luminary.base.lists"
local options = require "luminary.base.options"
local signature = require "luminary.base.signature"
local Optimizer = require "luminary.optim.optimizer"
local fail = options.fail

local who = "ZeroRedundancyOptimizer"
local Zero = class.define(who, Optimizer)
Zero.__inner = {"assign", "check_alike", "follow"}

local function groups() return load_module "luminary.distributed.groups" end

local takes = [[ZeroRedundancyOptimizer(params, {optimizer_class, process_group, parameters_as_bucket_view = false,
  overlap_with_ddp = false})]]

-- Separates our options from the class's, which are in the same table by name.
local function divide(params, ...)
  local n, ours, theirs, all = select("#", ...), {}, {}, {...}
  if n > 0 and options.is_plain(all[n]) then
    for key, value in pairs(all[n]) do theirs[key] = value end
    for _, row in ipairs(signature.parse(takes).rows) do ours[row[1]], theirs[row[1]] = theirs[row[1]], nil end
    all[n] = ours
  end
  return select(2, signature.read(takes, who, params, unpack(all, 1, n))), theirs
end

function Zero:init(params, ...)
  local ours, theirs = divide(params, ...)
  local wanted = ours.optimizer_class
  local is_class = type(wanted) == "table" and rawget(wanted, "__name") -- instances inherit it
  if not is_class or not class.descends(wanted, Optimizer) or class.descends(wanted, Zero) then
    fail("%s: optimizer_class must be an optimizer class, such as optim.Adam, got %s", who,
      is_class and tostring(wanted) or options.describe(wanted))
  end
  if ours.overlap_with_ddp then
    fail("%s: overlap_with_ddp is not supported; leave it out and call step() after backward()", who)
  end
  self.process_group = groups().resolve(who, ours.process_group)
  self.known, self.owner, self.owned, self.load = {}, {}, {}, {}
  for rank = 0, self.process_group.size - 1 do self.owned[rank], self.load[rank] = {}, 0 end

  -- The plain optimizer checks everything and numbers all parameters, but holds state for this rank's only.
  self.optimizer = wanted(params, theirs)
  load_module("luminary.nn.parallel.shards").refuse(who, self.optimizer:all_parameters(),
    "the optimizer's own class keeps the states of this rank's rows")
  self.spec = self.optimizer.spec
  local shards = package.loaded["luminary.nn.parallel.shards"]
  if shards and lists.find(self.optimizer:all_parameters(), shards.is_divided) then
    fail("%s: the parameters are divided over ranks already, and their state with them; use optim.%s", who,
      wanted.__name)
  end
  function self.optimizer.keeps(_, p) return self.owner[p] == self.process_group.rank end
  self:check_alike()
  for _, group in ipairs(self.optimizer.param_groups) do self:assign(group) end
  self:follow()
end

signature.note(takes, Zero.init)

--- Fails unless all ranks number the same parameters alike.
function Zero:check_alike()
  local group, lines = self.process_group, {}
  if group.size == 1 then return end
  for g, each in ipairs(self.optimizer.param_groups) do
    for i, p in ipairs(each.params) do
      lines[#lines + 1] = ("group %d, parameter %d, %s [%s]%s\n"):format(g, i, p.dtype, table.concat(p.shape, ", "),
        p.requires_grad and "" or " without gradient")
    end
  end
  local alike = load_module "luminary.distributed.same_on_all_ranks"
  alike(group, who, "parameters differ", self.optimizer.__name .. "\n" .. table.concat(lines),
    "parameter")
  load_module("luminary.distributed").barrier {group = group} -- the barrier raises other ranks' errors
end

--- Assigns a group's parameters to ranks: the largest first, each to the rank that has the fewest bytes so far.
function Zero:assign(group)
  local order, place = {}, {}
  for i, p in ipairs(group.params) do order[i], place[p] = p, i end
  table.sort(order, function(a, b)
    if a.nbytes ~= b.nbytes then return a.nbytes > b.nbytes end
    return place[a] < place[b]
  end)
  for _, p in ipairs(order) do
    local least = 0
    for rank = 1, self.process_group.size - 1 do
      if self.load[rank] < self.load[least] then least = rank end
    end
    self.owner[p], self.load[least] = least, self.load[least] + p.nbytes
  end
  for _, p in ipairs(group.params) do table.insert(self.owned[self.owner[p]], p) end
end

--- Shares the plain optimizer's groups and state tables, and updates `part`, an optimizer of this rank's parameters
--- with the same options in each group.
function Zero:follow()
  local optimizer, part_groups = self.optimizer, {}
  self.param_groups, self.state, self.defaults = optimizer.param_groups, optimizer.state, optimizer.defaults
  for g, group in ipairs(self.param_groups) do
    local own_params = {}
    for i, p in ipairs(group.params) do
      if not self.owner[p] then
        fail("%s: parameter %d of group %d is new; add it with opt:add_param_group", who, i, g)
      end
      if optimizer:keeps(p) then own_params[#own_params + 1] = p end
    end
    part_groups[g] = setmetatable({params = own_params}, {__index = group, __newindex = group})
  end
  self.part = setmetatable({param_groups = part_groups}, {__index = optimizer, __newindex = optimizer})
  self.full = nil
end

local function make_step(self, closure)
  self.optimizer.param_groups = self.param_groups -- the user may have edited them
  self:follow()
  local loss = self.part:step(closure)
  local group = self.process_group
  for rank = 0, group.size > 1 and group.size - 1 or -1 do
    local params = {}
    for _, p in ipairs(self.owned[rank]) do
      if p.requires_grad then params[#params + 1] = p end
    end
    if #params > 0 then core.reducer_share(group.handle, params, rank) end
  end
  return loss
end

--- Performs one step of this rank's parameters, then broadcasts the new values. `closure`, if given, computes the loss
--- again first, and its result is returned.
function Zero:step(closure)
  if closure ~= nil then options.arg(who .. ":step", "closure", closure, "function") end
  return self:hooked(make_step, closure)
end

--- Adds a parameter group, {params = list, lr = …}, on all ranks. Options that it lacks are those of the optimizer.
function Zero:add_param_group(given)
  self.optimizer:add_param_group(given)
  self:check_alike()
  self:assign(self.optimizer.param_groups[#self.optimizer.param_groups])
  self:follow()
end

-- ---- checkpoints

-- Calls visit(n, key, value) for the entries of states by number, in an order that is the same on all ranks.
local function walk(states, visit)
  for _, n in ipairs(options.sorted_keys(states)) do
    for _, key in ipairs(options.sorted_keys(states[n])) do visit(n, key, states[n][key]) end
  end
end

local function put(states, n, key, value)
  states[n] = states[n] or {}
  states[n][key] = value
end

--- Gathers the states of all ranks on rank `to` (0) of the world, so that state_dict() works there until the next step.
--- Every rank of the group calls it. States of other ranks are put in host memory.
function Zero:consolidate_state_dict(to)
  local group, dist = self.process_group, load_module "luminary.distributed"
  local caller = who .. ":consolidate_state_dict"
  if to == nil then to = 0 end
  options.arg(caller, "to", to, "natural")
  local receiver = dist.get_group_rank(group, to)
  if group.size == 1 then return end
  local own, described = self.optimizer:state_dict().state, {}
  walk(own, function(n, key, value)
    put(described, n, key, core.is_tensor(value) and {shape = value.shape, dtype = value.dtype} or {value = value})
  end)
  local gathered = dist.gather_object(described, nil, to, {group = group})
  if group.rank ~= receiver then
    return walk(own, function(_, _, value)
      if core.is_tensor(value) then dist.send(value, to, {group = group}) end
    end)
  end

  local full, params = {}, self:all_parameters()
  walk(own, function(n, key, value) put(full, n, key, core.is_tensor(value) and core.keep(value:clone()) or value) end)
  for i, rank in ipairs(group.ranks) do
    walk(rank ~= to and gathered[i] or {}, function(n, key, entry)
      if not entry.shape then return put(full, n, key, entry.value) end
      local p = params[n]:detach()
      local alike = table.concat(entry.shape, ",") == table.concat(p.shape, ",") -- then the layout is alike, too
      local t = alike and core.ops.empty_like(p, {dtype = entry.dtype})
        or core.ops.empty(entry.shape, {dtype = entry.dtype, device = p.device})
      dist.recv(t, rank, {group = group})
      put(full, n, key, core.keep(t:to("cpu")))
    end)
  end
  self.full = full
end

--- Returns the state_dict of the wrapped optimizer, after consolidate_state_dict on this rank.
function Zero:state_dict()
  local dict = self.optimizer:state_dict()
  if self.process_group.size == 1 then return dict end
  if not self.full then
    fail("%s:state_dict: the state is sharded over %d ranks; call opt:consolidate_state_dict(to) on all ranks, then "
      .. "this on rank `to`", who, self.process_group.size)
  end
  dict.state = {}
  walk(self.full, function(n, key, value) put(dict.state, n, key, value) end)
  return dict
end

--- Returns the wrapped optimizer's state_dict with only the state of this rank's parameters; nil if there is one rank,
--- whose state_dict is complete. lm.checkpoint saves it in a file of this rank.
function Zero:shard_state_dict()
  if self.process_group.size > 1 then return self.optimizer:state_dict() end
end

--- Loads the shards of an optimizer that was sharded over any number of ranks; each rank keeps its own. next_shard()
--- returns the ranks' shard_state_dicts one after another, then nil.
function Zero:load_shards(next_shard)
  self.optimizer:load_shards(next_shard)
  self:follow()
end

--- Loads the complete state_dict of the wrapped optimizer on every rank; each rank keeps its shard.
function Zero:load_state_dict(dict)
  self.optimizer:load_state_dict(dict)
  self:follow()
end

return Zero

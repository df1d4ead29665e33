--- optim.DiLoCo(…): Wraps an optimizer whose ranks train apart and average their parameters every few steps. Douillard
--- et al., "DiLoCo: Distributed Low-Communication Training of Language Models", 2023.
local core = require "luminary.core"
local class = require "luminary.base.class"
local lists = require "luminary.base.lists"
local load_module = require "luminary.base.load_module"
local options = require "luminary.base.options"
local signature = require "luminary.base.signature"
local Optimizer = require "luminary.optim.optimizer"

local DiLoCo = class.define("DiLoCo", Optimizer)
DiLoCo.differs_by_rank = true -- between synchronizations
DiLoCo.__inner = {"follow", "count_step"}

DiLoCo.init = signature.of([[DiLoCo(optimizer, {sync_every: count = 500, outer_lr: positive = 0.7,
  outer_momentum: probability = 0.9, nesterov = true, group})]], function(self, inner, opts)
  if not class.is(inner, Optimizer) then options.expected("DiLoCo", "an optimizer", inner) end
  local group = load_module("luminary.distributed.groups").resolve("DiLoCo", opts.group)
  self.optimizer, self.process_group, self.steps_since_sync, self.sync_every = inner, group, 0, opts.sync_every
  self:follow()
  local params, placement = self:all_parameters(), load_module "luminary.nn.parallel.placement"
  for i, p in ipairs(params) do
    placement.check_replicas("DiLoCo", "parameter " .. i, p, group,
      "pass the group of another dim, and let DistributedDataParallel average these over the group of the experts")
  end
  local about = {("steps between synchronizations %d"):format(opts.sync_every)}
  placement.check_order("DiLoCo", group, about, self.param_groups)
  if group.size > 1 then core.reducer_share(group.handle, params, 0) end
  -- The parameters of the last synchronization, which the outer optimizer steps.
  self.shared = lists.map(params, function(p) return core.keep(p:detach():clone()) end)
  self.outer = load_module("luminary.optim").SGD(self.shared, {
    lr = opts.outer_lr, momentum = opts.outer_momentum, nesterov = opts.nesterov and opts.outer_momentum > 0,
  })
end)

--- Shares the groups and states of the wrapped optimizer, which schedulers read and set.
function DiLoCo:follow()
  local inner = self.optimizer
  self.spec, self.defaults, self.param_groups, self.state = inner.spec, inner.defaults, inner.param_groups, inner.state
end

-- Returns a tensor for each dtype and device, which has the elements of all parameters of that kind, and for each
-- parameter a view of one.
local function allocate(params)
  local kinds, starts = {}, {}
  for i, p in ipairs(params) do
    local key = p.dtype .. " " .. p.device
    if not kinds[key] then
      kinds[key] = {size = 0, like = p}
      kinds[#kinds + 1] = kinds[key]
    end
    starts[i] = kinds[key].size + 1
    kinds[key].size = kinds[key].size + p:numel()
  end
  for _, kind in ipairs(kinds) do kind.flat = kind.like:new_empty {kind.size} end
  return lists.map(kinds, function(kind) return kind.flat end), lists.map(params, function(p, i)
    return kinds[p.dtype .. " " .. p.device].flat:narrow(1, starts[i], p:numel()):view(p.shape)
  end)
end

--- Averages the ranks' parameters now, by an outer step. All ranks of the group call it.
function DiLoCo:sync()
  core.no_grad(function()
    local params, works, dist = self:all_parameters(), {}, load_module "luminary.distributed"
    local flats, views = allocate(params)
    for i, p in ipairs(params) do
      views[i]:copy_(self.shared[i]):sub_(p)
      self.shared[i].grad = views[i]
    end
    for i, flat in ipairs(flats) do
      works[i] = dist.all_reduce(flat, {op = "mean", group = self.process_group, async_op = true})
    end
    for _, work in ipairs(works) do work:wait() end
    self.outer:step()
    self.outer:zero_grad()
    for i, p in ipairs(params) do p:copy_(self.shared[i]) end
  end)
  self.steps_since_sync = 0
end

--- Counts a step, which a scaler of gradients may have skipped on this rank alone.
function DiLoCo:count_step()
  self.steps_since_sync = self.steps_since_sync + 1
  if self.steps_since_sync >= self.sync_every then self:sync() end
end

local function make_step(self, closure)
  self.optimizer.param_groups = self.param_groups -- the user may have edited them
  local loss = self.optimizer:step(closure)
  self:follow()
  self:count_step()
  return loss
end

--- Performs one step of the wrapped optimizer, and each sync_every-th time sync(). `closure`, if given, computes the
--- loss again first, and its result is returned.
function DiLoCo:step(closure) return self:hooked(make_step, closure) end

--- Fails, since the outer optimizer has its parameters already.
function DiLoCo.add_param_group(_self, _group)
  options.fail("DiLoCo: cannot add a parameter group; add it to the wrapped optimizer before DiLoCo(…)")
end

--- Returns the state of this rank: of both optimizers, its parameters and those of the last synchronization, and the
--- number of steps since. lm.checkpoint saves each rank's.
function DiLoCo:state_dict()
  local params = lists.map(self:all_parameters(), function(p) return p:detach() end)
  return {inner = self.optimizer:state_dict(), outer = self.outer:state_dict(), shared = lists.copy(self.shared),
    params = params, steps_since_sync = self.steps_since_sync}
end

--- Returns nil: what fully_shard sharded is in the state of this rank, too.
function DiLoCo.shard_state_dict(_self) return nil end

--- Loads a state_dict, also into the parameters.
function DiLoCo:load_state_dict(dict)
  local who, params = "DiLoCo:load_state_dict", self:all_parameters()
  options.arg(who, "dict", dict, "table")
  for _, key in ipairs {"inner", "outer", "shared", "params"} do options.arg(who, key, dict[key], "table") end
  local steps = options.arg(who, "steps_since_sync", dict.steps_since_sync, "natural")
  for i, p in ipairs(params) do
    for _, key in ipairs {"shared", "params"} do
      local saved = options.arg(who, ("%s[%d]"):format(key, i), dict[key][i], "tensor")
      if saved.shape ~= p.shape then
        options.fail("%s: expected %s[%d] to have shape [%s], got [%s]", who, key, i, table.concat(p.shape, ", "),
          table.concat(saved.shape, ", "))
      end
    end
  end
  self.optimizer:load_state_dict(dict.inner)
  self.outer:load_state_dict(dict.outer)
  core.no_grad(function()
    for i, p in ipairs(params) do
      self.shared[i]:copy_(dict.shared[i])
      p:copy_(dict.params[i])
    end
  end)
  self.steps_since_sync = steps
  self:follow()
end

return DiLoCo

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

local function dist() return load_module "luminary.distributed" end
local function placement() return load_module "luminary.nn.parallel.placement" end

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
  local group = load_module("luminary.distributed.groups").resolve(who, ours.process_group)
  -- own: views, by parameter, which are stepped instead; pieces: by rank, a list of {p, rows, first, chunk}, chunk of
  -- the rows of p, after the first ones; kept: this rank's pieces, by view.
  self.process_group, self.own, self.kept, self.pieces, self.load = group, {}, {}, {}, {}
  for rank = 0, group.size - 1 do self.pieces[rank], self.load[rank] = {}, 0 end

  -- The plain optimizer checks everything. `part` has its methods, and this rank's tensors and states.
  self.optimizer = wanted(params, theirs)
  self.spec, self.defaults = self.optimizer.spec, self.optimizer.defaults
  self.param_groups, self.part = self.optimizer.param_groups, setmetatable({state = {}}, {__index = self.optimizer})
  function self.part.keeps(_, own) return self.kept[own] ~= nil end
  local all, optim = self:all_parameters(), load_module "luminary.optim"
  placement().refuse(who, all, "the optimizer's own class keeps the states of this rank's rows")
  if lists.find(all, placement().is_divided) then
    fail("%s: the parameters are divided over ranks already, and their state with them; use optim.%s", who,
      wanted.__name)
  end
  if group.size > 1 and class.descends(wanted, optim.LBFGS) then
    fail("%s: LBFGS needs all elements; choose another optimizer", who)
  end
  for i, p in ipairs(all) do placement().check_replicas(who, "parameter " .. i, p, group) end
  self.by_rows = wanted.advance == optim.Adam.advance -- elementwise optimizers share it
  self:check_alike()
  for _, each in ipairs(self.param_groups) do self:assign(each) end
  self:follow()
end

signature.note(takes, Zero.init)

--- Fails unless all ranks number the same parameters alike.
function Zero:check_alike()
  local group = self.process_group
  placement().check_order(who, group, {self.optimizer.__name}, self.optimizer.param_groups)
  if group.size > 1 then dist().barrier {group = group} end -- the barrier raises other ranks' errors
end

-- Returns the rows of t, a parameter or its gradient, that a piece has.
local function rows_of(piece, t)
  return piece.chunk == piece.rows and t or t:detach():narrow(1, piece.first + 1, piece.chunk)
end

--- Divides a group's parameters among the ranks. If steps treat elements alone, ranks get the same number of bytes, and
--- parameters are cut between rows; otherwise, the largest first, each goes to the rank with the fewest bytes so far.
function Zero:assign(group)
  local order, size, bytes, before = lists.slice(group.params), self.process_group.size, 0, 0
  local function bytes_of(p) return p.requires_grad and p.nbytes or 0 end
  for _, p in ipairs(order) do bytes = bytes + bytes_of(p) end
  table.sort(order, function(a, b) return bytes_of(a) > bytes_of(b) end) -- in the same order on all ranks
  for _, p in ipairs(order) do
    local n, rows, owner, first = bytes_of(p), math.max(1, p.ndim > 0 and p:size(1) or 1), 0, 0
    for rank = 1, size - 1 do
      if self.load[rank] < self.load[owner] then owner = rank end
    end
    self.own[p] = core.keep(p:detach())
    for rank = 0, size - 1 do
      local last = rank < owner and 0 or rows
      if self.by_rows and n > 0 then
        last = math.max(0, math.min(rows, math.floor(((rank + 1) * bytes / size - before) / n * rows + 0.5)))
      end
      local piece = {p = p, rows = rows, dim = 1, shape = lists.slice(p.shape), first = first, chunk = last - first}
      if last > first then table.insert(self.pieces[rank], piece) end
      if last > first and rank == self.process_group.rank then
        local own = core.keep(rows_of(piece, p):detach())
        self.own[p], self.kept[own] = own, piece
        if piece.chunk < rows then placement().split(own, piece) end
      end
      first = last
    end
    placement().set_stage(self.own[p], placement().stage(p))
    self.load[owner], before = self.load[owner] + n, before + n
  end
end

--- Updates `part` to the groups, which the user may have edited, and to the memory of the parameters and, if wanted, of
--- their gradients; updates `state` to its states.
function Zero:follow(with_gradients)
  self.optimizer.param_groups, self.part.param_groups, self.state = self.param_groups, {}, {}
  core.no_grad(core.scope, function()
    for g, group in ipairs(self.param_groups) do
      local own_group = lists.copy(group)
      own_group.params = {}
      for i, p in ipairs(group.params) do
        local own = self.own[p]
        if not own then fail("%s: parameter %d of group %d is new; add it with opt:add_param_group", who, i, g) end
        local piece = self.kept[own]
        if piece then
          local rows, grad = rows_of(piece, p), with_gradients and p.grad
          if own:data_ptr() ~= rows:data_ptr() or own.dtype ~= rows.dtype then core.set_data(own, rows) end
          own.grad = grad and rows_of(piece, grad) or nil
        end
        own_group.params[i], self.state[p] = own, self.part.state[own]
      end
      self.part.param_groups[g] = own_group
    end
  end)
end

-- Sends a rank's new values to all ranks.
local function broadcast_values(self, rank)
  local group, list = self.process_group, {}
  for _, piece in ipairs(self.pieces[rank]) do
    if piece.p.requires_grad or core.has_grad(piece.p) then list[#list + 1] = rows_of(piece, piece.p) end
  end
  if list[1] and group.size > 1 then core.reducer_share(group.handle, list, rank) end
end

local function make_step(self, closure)
  self:follow(true)
  local loss = self.part:step(closure and function()
    local result = closure()
    self:follow(true)
    return result
  end)
  self:follow()
  self.full = nil
  for rank = 0, self.process_group.size - 1 do core.no_grad(core.scope, broadcast_values, self, rank) end
  return loss
end

--- Performs one step of this rank's rows, then broadcasts the new values. `closure`, if given, computes the loss again
--- first, and its result is returned.
function Zero:step(closure)
  if closure ~= nil then options.arg(who .. ":step", "closure", closure, "function") end
  return self:hooked(make_step, closure)
end

--- Adds a parameter group, {params = list, lr = …}, on all ranks. Options that it lacks are those of the optimizer.
function Zero:add_param_group(given)
  self:follow()
  self.optimizer:add_param_group(given)
  self:check_alike()
  self:assign(self.param_groups[#self.param_groups])
  self:follow()
end

-- ---- checkpoints

--- Gathers the states of all ranks on rank `to` (0) of the world, so that state_dict() works there until the next step.
--- Every rank of the group calls it. The states are put in host memory.
function Zero:consolidate_state_dict(to)
  local group, params = self.process_group, self:all_parameters()
  to = options.arg(who .. ":consolidate_state_dict", "to", to == nil and 0 or to, "natural")
  if lists.find(params, function(p) return placement().stage(p) end) then
    fail("%s:consolidate_state_dict: these ranks have one stage of a Pipeline; save the states by lm.checkpoint", who)
  end
  local receiver = lists.index_of(group.ranks, to) or options.must_be(who .. ":consolidate_state_dict", "to",
    ("one of the group's ranks {%s}"):format(table.concat(group.ranks, ", ")), to)
  local is_receiver = group.rank == receiver - 1
  if group.size == 1 then return end
  local own, full, tensors, entries = self:shard_state_dict(), {}, {}, {} -- entries: {n, key, value or shape, dtype}
  for n, state in pairs(own.state) do
    for key, value in pairs(state) do
      local t = core.is_tensor(value) and value or nil
      entries[#entries + 1] = {n = n, key = key, shape = t and t.shape, dtype = t and t.dtype, value = not t and value}
      tensors[#entries] = t
    end
  end
  local gathered = dist().gather_object({entries = entries, shards = own.shards}, nil, to, {group = group})
  -- Adds the states of a rank to `full`.
  local function add_state(given, rank)
    local states = {}
    for i, e in ipairs(given.entries) do
      local t = e.shape and core.ops.empty(e.shape, {dtype = e.dtype, device = params[e.n].device})
      if t and rank == to then t:copy_(tensors[i]) elseif t then dist().recv(t, rank, {group = group}) end
      states[e.n] = states[e.n] or {}
      states[e.n][e.key] = t and t:to "cpu" or e.value
    end
    for n, state in pairs(states) do
      full[n] = placement().add_state(full[n], params[n], state, given.shards[n])
      self:keep_states {full[n]}
    end
  end
  for i, rank in ipairs(is_receiver and group.ranks or {}) do core.no_grad(core.scope, add_state, gathered[i], rank) end
  for i = 1, is_receiver and 0 or #entries do
    if tensors[i] then dist().send(tensors[i]:contiguous(), to, {group = group}) end
  end
  self.full = is_receiver and full or nil
end

--- Returns the state_dict of the wrapped optimizer, after consolidate_state_dict on this rank.
function Zero:state_dict()
  self:follow()
  local dict = self.part:state_dict()
  if self.process_group.size == 1 then return dict end
  if not self.full then
    fail("%s:state_dict: the state is sharded over %d ranks; call opt:consolidate_state_dict(to) on all ranks, then "
      .. "this on rank `to`", who, self.process_group.size)
  end
  dict.state = {}
  for n, state in pairs(self.full) do dict.state[n] = lists.copy(state) end
  return dict
end

--- Returns the wrapped optimizer's state_dict with only this rank's states, and `shards`, the forms of parameters of
--- which it has some rows; nil if there is one rank, whose state_dict is complete. lm.checkpoint saves it in a file of
--- this rank. Of a Pipeline, it has the numbers of an optimizer of the complete model.
function Zero:shard_state_dict()
  self:follow()
  return placement().state_of_optimizer(self, self.process_group.size > 1 and self.part or nil)
end

-- Loads states by a method of `part`, and takes over the groups that it has then.
local function load_part(self, method, given)
  self:follow()
  method(self.part, given)
  self.optimizer:load_state_dict {param_groups = self.part:state_dict().param_groups, state = {}}
  self.param_groups, self.full = self.optimizer.param_groups, nil
  self:follow()
end

--- Loads the shards of an optimizer that was sharded over any number of ranks; each rank keeps its own. next_shard()
--- returns the ranks' shard_state_dicts one after another, then nil.
function Zero:load_shards(next_shard) load_part(self, self.part.load_shards, next_shard) end

--- Loads the complete state_dict of the wrapped optimizer on every rank; each rank keeps its part.
function Zero:load_state_dict(dict) load_part(self, self.part.load_state_dict, dict) end

return Zero

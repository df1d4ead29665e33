--- Knows which parameters are shards, rows of a parameter that several ranks hold together.
local core = require "luminary.core"
local lists = require "luminary.base.lists"
local load_module = require "luminary.base.load_module"
local options = require "luminary.base.options"
local printable_name = require "luminary.base.printable_name"
local rank_and_size = require "luminary.base.rank_and_size"
local signature = require "luminary.base.signature"

local ops = core.ops
local shards = {}

local function dist() return load_module "luminary.distributed" end

--- Maps a shard to its description: shape and numel of the full parameter, chunk (its rows, its size in dim 1; the last
--- shards end with padding), first (the number of rows before it), rows (of the full parameter), names (of all its
--- positions), mesh, group (the ranks that hold it), replica (0 for the first group of several), device (where it is
--- gathered).
shards.of = setmetatable({}, {__mode = "k"})

--- Returns the description of this rank's shard of a parameter of this shape over a group; without one of all its rows.
function shards.describe(shape, group)
  local rows = shape[1] or 1
  local chunk = math.max(1, math.ceil(rows / (group and group.size or 1)))
  return {
    shape = shape, numel = lists.product(shape), rows = rows, chunk = chunk, group = group,
    first = group and group.rank * chunk or 0,
  }
end

-- Returns t, or a view of it with a dim if it has none.
local function with_rows(t) return t.ndim == 0 and t:reshape {1} or t end

-- Copies the rows that two shards have in common; `from` has those after row `first`.
local function copy_rows(about, to, from, first)
  to, from = with_rows(to), with_rows(from)
  local low = math.max(about.first, first)
  local high = math.min(about.first + about.chunk, first + from:size(1), about.rows)
  if high <= low then return end
  to:narrow(1, low - about.first + 1, high - low):copy_(from:narrow(1, low - first + 1, high - low))
end

--- Returns this rank's shard of a full tensor, zeros in the padding, in the tensor's dtype on its device.
function shards.cut(about, full)
  local own = ops.zeros({about.chunk, unpack(about.shape, 2)}, {dtype = full.dtype, device = full.device})
  core.no_grad(copy_rows, about, own, full:detach(), 0)
  return own
end

local function same_shape(a, b) return table.concat(a, ",") == table.concat(b, ",") end

--- Returns this rank's rows of t, if p is a shard and t has its full shape; otherwise t.
function shards.own_rows(p, t)
  local about = shards.of[p]
  return about and core.is_tensor(t) and same_shape(t.shape, about.shape) and shards.cut(about, t) or t
end

--- Fails if one of these parameters is a shard, for `who`, which takes tensors of one rank as they are.
function shards.refuse(who, parameters, remedy)
  local p = lists.find(parameters, function(t) return shards.of[t] end)
  if p then options.fail("%s: parameter '%s' is sharded by fully_shard; %s", who, shards.of[p].names[1], remedy) end
end

-- Returns t, a tensor of this rank, reduced over the ranks that hold a shard, on t's device.
local function reduced(about, t, op)
  local there = t:to(about.device)
  about.mesh:call(dist().all_reduce, there, {op = op, group = about.group})
  return there:to(t.device)
end

--- Returns the norm of the gradients of parameters, of which some may be shards, as of one vector. Collective.
function shards.total_norm(parameters, norm_type)
  local of_group, order, total, is_max = {}, {}, nil, norm_type == math.huge
  for _, p in ipairs(parameters) do
    local group = shards.of[p] and shards.of[p].group or 0
    if not of_group[group] then
      of_group[group], order[#order + 1] = {}, group
    end
    table.insert(of_group[group], p)
  end
  for _, group in ipairs(order) do
    local list = of_group[group]
    local part = core.total_norm(list, norm_type, true):double()
    if not is_max then part = part:pow(norm_type) end
    if group ~= 0 then part = reduced(shards.of[list[1]], part, is_max and "max" or "sum") end
    total = not total and part or is_max and total:maximum(part) or total + part
  end
  return is_max and total or total:pow(1 / norm_type)
end

--- Returns the largest `found`, a tensor of each rank, over the ranks that hold shards of these parameters. Collective.
function shards.any_found(parameters, found)
  local seen = {}
  for _, p in ipairs(parameters) do
    local about = shards.of[p]
    if about and not seen[about.group] then
      seen[about.group], found = true, reduced(about, found, "max")
    end
  end
  return found
end

-- Returns a table from names to parameters of a module.
local function parameters_of(module)
  local of = {}
  for name, p in module:named_parameters {remove_duplicate = false} do of[name] = p end
  return of
end

--- Returns a table of a module's parameters and buffers by name, full and copied to the CPU, one parameter after
--- another. All ranks call it; with dst, a rank in the world, the others return nil.
shards.full_state_dict = signature.of("full_state_dict(module: module, {dst: natural})", function(module, opts)
  local dst = opts.dst
  local dict, own, of = {}, module:state_dict(), parameters_of(module)
  local wanted = dst == nil or dst == dist().get_rank()
  for _, name in ipairs(lists.sorted_keys(own)) do
    local t, about = own[name], shards.of[of[name] or false]
    core.no_grad(core.scope, function()
      if about then
        local joined = ops.empty({about.group.size, t:numel()}, {dtype = t.dtype, device = about.device})
        about.mesh:call(dist().all_gather_into_tensor, joined, t:to(about.device):reshape {-1}, {group = about.group})
        t = joined:view {-1}:narrow(1, 1, about.numel):view(about.shape)
      end
      dict[name] = wanted and core.keep(t:to("cpu"):clone()) or nil
    end)
  end
  return wanted and dict or nil
end)

-- ---- checkpoints: each rank saves its shards, in any number, and loads the rows of all ranks' shards that it holds

local function saved_form(about) return {shape = about.shape, first = about.first, chunk = about.chunk} end

local function is_natural(n) return options.is("natural", n) end

local function check_saved(who, name, t, saved)
  local is_valid = core.is_tensor(t) and (saved == nil or options.is_plain(saved) and options.is_plain(saved.shape)
    and lists.every(saved.shape, is_natural) and is_natural(saved.first) and is_natural(saved.chunk))
  if not is_valid then options.fail("%s: the saved shard of '%s' is malformed", who, printable_name(name, 200)) end
end

-- Copies the rows of a saved tensor that `to` holds. p: its parameter, or false; saved: of saved_form, or nil.
local function take_rows(who, name, to, p, t, saved)
  check_saved(who, name, t, saved)
  local about = shards.of[p] or shards.describe(lists.slice(to.shape))
  local shape = saved and saved.shape or t.shape
  local fits = same_shape(shape, about.shape) and same_shape(lists.slice(with_rows(t).shape, 2), lists.slice(shape, 2))
  if not fits then
    options.fail("%s: expected %s to have shape [%s], got [%s] from a tensor [%s]", who, name,
      table.concat(about.shape, ", "), table.concat(shape, ", "), table.concat(t.shape, ", "))
  end
  core.no_grad(copy_rows, about, to, t, saved and saved.first or 0)
end

--- Returns the state of a module on this rank, {tensors, shards = what they are, both by name}; nil if none is sharded.
function shards.state_of_module(module)
  local state, of, any = {tensors = {}, shards = {}}, parameters_of(module), false
  for name, t in pairs(module:state_dict()) do
    local about = shards.of[of[name] or false]
    any = any or about
    if about and about.replica == 0 or not about and rank_and_size() == 0 then state.tensors[name] = t end
    state.shards[name] = about and saved_form(about)
  end
  return any and state or nil
end

--- Loads the states of a module's ranks into a module that is sharded in any way, or not at all.
function shards.load_module(module, next_state)
  local who, own, of, seen = "load_shards", module:state_dict(), parameters_of(module), {}
  for state in next_state do
    local parts = options.is_plain(state) and options.is_plain(state.tensors) and options.is_plain(state.shards)
    if not parts then options.fail("%s: the saved state must have tables 'tensors' and 'shards'", who) end
    for name, t in pairs(state.tensors) do
      if not own[name] then options.fail("%s: %s has no '%s'", who, module.__name, printable_name(name, 200)) end
      take_rows(who, name, own[name], of[name] or false, t, state.shards[name])
      seen[name] = true
    end
  end
  for _, name in ipairs(lists.sorted_keys(own)) do
    if not seen[name] then options.fail("%s: the saved shards have no '%s'", who, name) end
  end
end

--- Returns an optimizer's state_dict with a field `shards`, what its parameters are by number; nil if none is sharded.
function shards.state_of_optimizer(optimizer)
  local params, found = optimizer:all_parameters(), {}
  for n, p in ipairs(params) do found[n] = shards.of[p] end
  if not next(found) then return nil end
  local dict = optimizer:state_dict()
  dict.shards = {}
  for n in ipairs(params) do
    local about = found[n]
    dict.shards[n] = about and saved_form(about)
    if about and about.replica > 0 or not about and rank_and_size() > 0 then dict.state[n] = nil end
  end
  return dict
end

--- Adds a rank's state of a parameter to what was loaded before, nil at first. Returns that.
function shards.add_state(before, p, state, saved)
  if not options.is_plain(state) or not saved and not shards.of[p] then return state end
  local all = before or {}
  for key, value in pairs(state) do
    local is_rows = core.is_tensor(value) and value.ndim >= math.min(1, saved and 1 or p.ndim)
    if is_rows and saved then check_saved("load_shards", tostring(key), value, saved) end
    if is_rows and (not saved or value:size(1) == saved.chunk) then
      all[key] = all[key] or ops.zeros(p.shape, {dtype = value.dtype, device = value.device})
      take_rows("load_shards", tostring(key), all[key], p, value, saved)
    else
      all[key] = value
    end
  end
  return all
end

return shards

--- Knows which parameters this rank holds a part of: rows of fully_shard, and parts along any dim, of tensor and expert
--- parallel, or parameters that only this rank of a group has.
local core = require "luminary.core"
local lists = require "luminary.base.lists"
local load_module = require "luminary.base.load_module"
local options = require "luminary.base.options"
local printable_name = require "luminary.base.printable_name"
local rank_and_size = require "luminary.base.rank_and_size"
local signature = require "luminary.base.signature"
local meta = require "luminary.nn.meta"
local records = require "luminary.nn.module_fields"
local parameter = require "luminary.nn.parameter"

local ops, is_empty = core.ops, meta.is_empty
local shards = {}

local function dist() return load_module "luminary.distributed" end

--- Maps a shard to its description: shape and numel of the full parameter, chunk (its rows, its size in dim 1; the last
--- shards end with padding), first (the number of rows before it), rows (of the full parameter), names (all of them),
--- mesh, group (the ranks that hold it), device (where it is gathered). optim.zero's have shape, chunk and first alone.
shards.of = setmetatable({}, {__mode = "k"})

--- Maps a parameter or buffer to the list of its divisions, in the order in which shards.divide made them, before any
--- of fully_shard. Each has shape (before this division), mesh (of one dim), group (its ranks), dim, and sizes: dim
--- consists of pieces of these sizes, and each rank has an equal part of each piece, in the order of ranks. `averages`
--- is true if its module averages its gradients over the group.
shards.parts_of = setmetatable({}, {__mode = "k"})

--- Maps a parameter of a Pipeline to {group, mesh, number (from 1, its position in the model's parameters()), counts
--- (false on all but one of the ranks that have it)}.
shards.pipeline_of = setmetatable({}, {__mode = "k"})

--- Maps a Pipeline to {group, mesh, device, holders (ranks in the group, by the names of the tensors that each is the
--- first to have)}.
shards.pipelines = setmetatable({}, {__mode = "k"})

--- Returns the description of this rank's shard of a parameter of this shape over a group; without one of all its rows.
function shards.describe(shape, group)
  local rows = shape[1] or 1
  local chunk = math.max(1, math.ceil(rows / (group and group.size or 1)))
  return {
    shape = shape, numel = lists.product(shape), rows = rows, chunk = chunk, group = group,
    first = group and group.rank * chunk or 0,
  }
end

--- Returns the properties of a parameter or buffer that must be equal on all ranks, as text.
function shards.summarize(name, t)
  return ("'%s', %s [%s]%s"):format(name, t.dtype, table.concat(t.shape, ", "),
    parameter.is(t) and not t.requires_grad and ", without gradient" or "")
end

-- Maps a parameter to its name in the last module that was wrapped, and of which call, the same on all ranks; and a
-- group to the numbers of calls, by function.
local name_of, calls = setmetatable({}, {__mode = "k"}), setmetatable({}, {__mode = "k"})

--- Notes the names of a module's parameters, which `who` wraps for a group.
function shards.note_names(who, group, module)
  calls[group] = calls[group] or {}
  calls[group][who] = (calls[group][who] or 0) + 1
  for name, p in module:named_parameters() do
    name_of[p] = ("'%s' of call %d of %s"):format(name, calls[group][who], who)
  end
end

--- Returns the names of an optimizer's parameters, a list in their order, without those that have none.
function shards.names_of(optimizer)
  return lists.pick(name_of, lists.filter(optimizer:all_parameters(), function(p)
    return name_of[p] and not shards.pipeline_of[p]
  end))
end

--- Fails on all ranks of a group unless they list the same parameters in one order: by name, or by value if no call has
--- named them. lines: what else must be equal. Collective.
function shards.check_order(who, group, lines, param_groups)
  if group.size == 1 then return end
  local sums = {}
  for g, each in ipairs(param_groups) do
    for i, p in ipairs(each.params) do
      lines[#lines + 1] = ("group %d, parameter %d, %s [%s]%s%s"):format(g, i, p.dtype, table.concat(p.shape, ", "),
        p.requires_grad and "" or " without gradient", name_of[p] and ", " .. name_of[p] or "")
      sums[#sums + 1] = not name_of[p] and not is_empty(p) and core.no_grad(core.scope, function()
        return core.crc32c(p:detach():cpu():contiguous(), 0)
      end)
    end
  end
  load_module "luminary.distributed.same_on_all_ranks"(group, who, "parameters differ", lines, "parameter")
  local first = dist().broadcast_object_list(lists.slice(sums), {src = group.ranks[1], group = group})
  for i, sum in ipairs(sums) do
    local at = sum and sum ~= first[i] and lists.index_of(sums, first[i]) and lists.index_of(first, sum)
    if at then
      local message = ("%s: the parameters differ from rank %d's: number %d has the values of number %d there; list "
        .. "them in one order on all ranks"):format(who, group.ranks[1], i, at)
      core.reducer_fail(group.handle, message)
      options.fail("%s", message)
    end
  end
end

local function same_shape(a, b) return table.concat(a, ",") == table.concat(b, ",") end

-- ---- forms: what a rank holds of a tensor. A form has the full tensor's shape, parts, the divisions along dims, each
-- {dim, sizes, rank, ranks}, or nil; and first and chunk, the rows of what these leave, or nil.

-- Returns the ranges of a dim, {number of indices before, size} each, that a rank of a division has.
local function ranges_of(sizes, rank, ranks)
  local list, at = {}, 0
  for i, size in ipairs(sizes) do
    list[i], at = {at + rank * size / ranks, size / ranks}, at + size
  end
  return list
end

-- Selects ranges from a list of segments. A segment {at, first, size} is at index `at` in a rank's tensor, and at index
-- `first` in the full one, both from 0.
local function select_ranges(segments, ranges)
  local found, at = {}, 0
  for _, range in ipairs(ranges) do
    for _, s in ipairs(segments) do
      local low, high = math.max(s[1], range[1]), math.min(s[1] + s[3], range[1] + range[2])
      if high > low then found[#found + 1] = {at + low - range[1], s[2] + low - s[1], high - low} end
    end
    at = at + range[2]
  end
  return found
end

-- Returns a form's segments by dim, of a tensor that has a dim.
local function segments_of(form)
  local by_dim = {}
  for d, size in ipairs(form.shape[1] and form.shape or {1}) do by_dim[d] = {{0, 0, size}} end
  for _, part in ipairs(form.parts or {}) do
    by_dim[part.dim] = select_ranges(by_dim[part.dim], ranges_of(part.sizes, part.rank, part.ranks))
  end
  if form.first then by_dim[1] = select_ranges(by_dim[1], {{form.first, form.chunk}}) end
  return by_dim
end

-- Copies the elements that two tensors with the segments `a` and `b` have in common, from dim d on.
local function copy_segments(to, a, from, b, d)
  if not a[d] then
    to:copy_(from)
    return
  end
  for _, s in ipairs(a[d]) do
    for _, u in ipairs(b[d]) do
      local low, high = math.max(s[2], u[2]), math.min(s[2] + s[3], u[2] + u[3])
      if high > low then
        copy_segments(to:narrow(d, low - s[2] + s[1] + 1, high - low), a,
          from:narrow(d, low - u[2] + u[1] + 1, high - low), b, d + 1)
      end
    end
  end
end

-- Returns t, or a view of it with a dim if it has none.
local function with_rows(t) return t.ndim == 0 and t:reshape {1} or t end

-- Copies the elements that a tensor of form `to_form` and one of `from_form` have in common.
local function copy_common(to, to_form, from, from_form)
  core.no_grad(copy_segments, with_rows(to), segments_of(to_form), with_rows(from:detach()), segments_of(from_form), 1)
end

-- Returns true if two forms of a tensor have elements in common.
local function overlap(a, b)
  local found = false
  local probe = {narrow = function(self) return self end, copy_ = function() found = true end}
  copy_segments(probe, segments_of(a), probe, segments_of(b), 1)
  return found
end

-- Returns the form of a parameter on this rank; p may be false, for a tensor of this shape that no rank shares.
local function form_of(p, shape)
  local about, divisions = shards.of[p], shards.parts_of[p] or {}
  local form = {shape = divisions[1] and divisions[1].shape or about and about.shape or lists.slice(shape)}
  if about then form.first, form.chunk = about.first, about.chunk end
  for _, part in ipairs(divisions) do
    form.parts = form.parts or {}
    table.insert(form.parts, {dim = part.dim, sizes = part.sizes, rank = part.group.rank, ranks = part.group.size})
  end
  return form
end

--- Returns true if this rank holds a part of a parameter, or of false.
function shards.is_divided(p) return shards.of[p] ~= nil or shards.parts_of[p] ~= nil end
local is_divided = shards.is_divided

--- Returns true if other ranks of a mesh have parameters or parts that this one lacks.
function shards.is_distributed(p) return is_divided(p) or shards.pipeline_of[p] ~= nil end

local in_dicts = setmetatable({}, {__mode = "k"}) -- has the tensors of state_dicts that are of distributed parameters

-- Maps a parameter without memory to the meshes on whose ranks its initial values must be equal, before it is divided;
-- and modules to true whose first call allocates them.
local meshes_of, waiting = setmetatable({}, {__mode = "k"}), setmetatable({}, {__mode = "k"})

--- Notes that t, a tensor in a state_dict, is the part of parameter p, or of its state, that this rank has. Fails if p
--- gets memory in the first forward pass. name: p's, in the state_dict of a module.
function shards.note_part(t, p, name)
  if name and meshes_of[p] and is_empty(p) then
    options.fail("state_dict: '%s' gets its values in the first forward pass; call the module once before, or "
      .. "nn.parallel.full_state_dict(net), on all ranks", name)
  end
  if core.is_tensor(t) and shards.is_distributed(p) then in_dicts[t] = true end
end

--- Returns true if t is a part of a parameter or its state, of which other ranks have others.
function shards.is_part(t) return in_dicts[t] or shards.is_distributed(t) end

--- Returns this rank's shard of a full tensor, zeros in the padding, in the tensor's dtype on its device.
function shards.cut(about, full)
  local own = ops.zeros({about.chunk, unpack(about.shape, 2)}, {dtype = full.dtype, device = full.device})
  copy_common(own, {shape = about.shape, first = about.first, chunk = about.chunk}, full, {shape = about.shape})
  return own
end

-- Returns the part of a tensor that a rank of a division's group has.
local function part_of(part, t, rank)
  local pieces = lists.map(ranges_of(part.sizes, rank, part.group.size), function(range)
    return t:narrow(part.dim, range[1] + 1, range[2])
  end)
  return core.no_grad(ops.cat, pieces, part.dim)
end

--- Replaces a parameter or buffer, which has equal values on all ranks of a mesh of one dim, by this rank's part along
--- a dim, and records that. sizes: pieces of the dim, each of which is divided; they must be divisible by the number of
--- ranks.
function shards.divide(p, mesh, dim, sizes)
  local shape = lists.slice(p.shape)
  local part = {shape = shape, mesh = mesh, group = mesh.groups[1], dim = dim, sizes = sizes}
  p.grad = nil
  core.set_data(p, is_empty(p) and p:detach():narrow(dim, 1, shape[dim] / part.group.size)
    or part_of(part, p:detach(), part.group.rank))
  shards.parts_of[p] = lists.append(shards.parts_of[p] or {}, {part})
end

-- Returns the divisions of a parameter that its module does not initialize part by part.
local function divisions_of(p)
  return lists.filter(shards.parts_of[p] or {}, function(part) return not part.averages end)
end

--- Makes all ranks of a mesh hold the values of its first one. Collective.
function shards.broadcast(mesh, t)
  for d = mesh.ndim, 1, -1 do
    local group = mesh.groups[d]
    if group.size > 1 then mesh:call(dist().broadcast, t, group.ranks[1], {group = group}) end
  end
end

-- Replaces an initialized parameter by this rank's part of it.
local function keep_part(p)
  core.no_grad(core.scope, function()
    local full = p:detach()
    for _, mesh in ipairs(meshes_of[p] or {}) do shards.broadcast(mesh, full) end
    for _, part in ipairs(divisions_of(p)) do full = part_of(part, full, part.group.rank) end
    core.set_data(p, full)
  end)
  meshes_of[p] = nil
end

--- Allocates and initializes a module's parameters that have no memory, one layer after another, each in full, and
--- keeps this rank's parts. Collective if a call of parallelize has divided them.
function shards.fill(who, module)
  module:apply(function(m)
    meta.materialize(who, m, function(p) return (divisions_of(p)[1] or p).shape end, keep_part)
    if waiting[m] then records.set_call(m, nil) end
    waiting[m] = nil
  end)
end

--- Makes the first call of a module, or of a module within it, allocate the parameters that have no memory until then.
--- mesh: has equal values on its ranks, before it divides them.
function shards.fill_later(who, module, mesh)
  for _, p in ipairs(lists.filter(module:parameters(), is_empty)) do
    meshes_of[p] = lists.append(meshes_of[p] or {}, {mesh})
  end
  for _, m in ipairs(module:modules()) do
    waiting[m] = true
    records.set_call(m, function(self, ...)
      shards.fill(who, module)
      return self(...)
    end)
  end
end

-- Returns the divisions of p among ranks, entries of parts_of and of `of`, which each have a mesh and a group.
local function all_divisions(p)
  local about = shards.of[p]
  return lists.joined(shards.parts_of[p] or {}, {about and about.group and about})
end

-- Returns the number of ranks that hold different parts of p.
local function count_parts(p)
  return lists.product(lists.map(all_divisions(p), function(part) return part.group.size end))
end

-- Returns true if a group has all ranks of another one.
local function has_all(group, other)
  return lists.every(other.ranks, function(rank) return lists.index_of(group.ranks, rank) end)
end

-- Returns the division over several ranks of a parameter of experts, or nil.
local function expert_part(p)
  return lists.find(shards.parts_of[p] or {}, function(part) return part.averages and part.group.size > 1 end)
end

local function refuse_experts(who, name, part, remedy)
  remedy = remedy or "nn.parallel.fully_shard averages both: fully_shard(layer.experts, {mesh = the other dims}), then "
    .. "fully_shard(net, {mesh = all ranks})"
  options.fail("%s: ranks divide the experts '%s', and all ranks share other parameters (%s); %s", who, name,
    part.mesh:describe_rank(), remedy)
end

--- Fails if a group has other ranks that hold other parts of p: they are no replicas. who: a function; name: p's.
--- remedy: for experts; it is fully_shard without it.
function shards.check_replicas(who, name, p, group, remedy)
  for _, part in ipairs(lists.joined({shards.pipeline_of[p]}, all_divisions(p))) do
    for _, rank in ipairs(part.group.ranks) do
      if part.group.size > 1 and rank ~= part.mesh.rank and lists.index_of(group.ranks, rank) then
        if part.averages then refuse_experts(who, name, part, remedy) end
        options.fail("%s: ranks %d and %d hold different parts of '%s'; pass the other dims of its mesh (%s)", who,
          part.mesh.rank, rank, name, part.mesh:describe_rank())
      end
    end
  end
end

--- Fails if a module has experts that ranks outside of the groups divide, and other parameters, whose gradients would
--- not be averaged over those ranks.
function shards.check_experts(who, module, groups)
  local expert, of, has_others
  for name, p in module:named_parameters() do
    local part = expert_part(p)
    if part and not lists.find(groups, function(group) return has_all(group, part.group) end) then
      expert, of = name, part
    end
    has_others = has_others or not part and p.requires_grad
  end
  if expert and has_others then refuse_experts(who, expert, of) end
end

--- Returns true if p's module averages its gradients over all ranks of a group, which hold other parts.
function shards.averages(p, group)
  local part = expert_part(p)
  return part ~= nil and has_all(part.group, group)
end

--- Fails if p is a shard of fully_shard whose data was replaced by data of another shape.
function shards.check_rows(p)
  local about = shards.of[p]
  local wanted = about and {about.chunk, unpack(about.shape, 2)}
  if about and not same_shape(p.shape, wanted) then
    options.fail("fully_shard: expected %s to have shape [%s], this rank's rows, got [%s]; load_state_dict takes full "
      .. "tensors", about.names[1], table.concat(wanted, ", "), table.concat(p.shape, ", "))
  end
end

--- Returns this rank's part of t, if this rank holds a part of p and t has p's full shape; otherwise t.
function shards.own_rows(p, t)
  if not core.is_tensor(t) then return t end
  local about, divisions = shards.of[p], shards.parts_of[p] or {}
  if divisions[1] and same_shape(t.shape, divisions[1].shape) then
    for _, part in ipairs(divisions) do t = part_of(part, t:detach(), part.group.rank) end
  end
  return about and same_shape(t.shape, about.shape) and shards.cut(about, t) or t
end

--- Fails if one of these parameters is a shard, for `who`, which takes tensors of one rank as they are.
function shards.refuse(who, parameters, remedy)
  local p = lists.find(parameters, function(t) return shards.of[t] end)
  if p then options.fail("%s: parameter '%s' is sharded by fully_shard; %s", who, shards.of[p].names[1], remedy) end
end

-- Returns the number of ranks among which the parameters of p's model are divided.
local function count_holders(p)
  return shards.pipeline_of[p] and count_parts(p) * shards.pipeline_of[p].group.size or count_parts(p)
end

--- Fails for `who`, whose step treats a parameter as a whole, if ranks hold different parts of one of these. needs_all:
--- it treats all parameters as one vector.
function shards.refuse_parts(who, parameters, needs_all)
  for _, p in ipairs(parameters) do
    local about, size = shards.of[p], (needs_all and count_holders or count_parts)(p)
    if size > 1 then
      options.fail("%s: a step needs %s, but %d ranks divide %s; choose another optimizer, such as optim.AdamW", who,
        needs_all and "all parameters" or "all elements of a parameter", size,
        about and about.names and "'" .. about.names[1] .. "'" or "one of shape ["
        .. table.concat(form_of(p, p.shape).shape, ", ") .. "]")
    end
  end
end

--- Fails if ranks divide a tensor with memory, whose initial values are computed from those of all of it.
function shards.refuse_init(p)
  local about, part = shards.of[p], divisions_of(p)[1]
  local group = about and about.group or part and part.group
  if group and group.size > 1 and not is_empty(p) then
    options.fail("nn.init: ranks divide a parameter of shape [%s]; initialize it before, or load_state_dict full "
      .. "tensors", table.concat((part or about).shape, ", "))
  end
end

--- Warns, on rank 0, if an optimizer steps parameters of fully_shard together with others, which nothing averages.
function shards.check_averaged(who, parameters)
  local function is_rest(p) return not shards.of[p] and core.has_grad(p) and not expert_part(p) end
  local function is_averaged(p) return shards.of[p] and shards.of[p].mesh and shards.of[p].mesh:size() > 1 end
  local p, n = lists.find(parameters, is_rest)
  if not p or rank_and_size() > 0 or not lists.find(parameters, is_averaged) then return end
  core.warn(("%s: parameter %d, [%s], is in no module of fully_shard, so that nothing averages its gradient over the "
    .. "ranks; call nn.parallel.fully_shard(net) after the calls for its blocks"):format(who, n,
    table.concat(p.shape, ", ")))
end

-- Returns a division of one of the parameters and its device, or nil if this rank holds a part of none. For an empty
-- list it returns a Pipeline's: its other ranks may have parameters.
local function find_division(parameters)
  for _, p in ipairs(parameters) do
    local about = shards.of[p]
    if shards.is_distributed(p) then
      return about or (shards.parts_of[p] or {shards.pipeline_of[p]})[1], about and about.device or p.device
    end
  end
  local _, pipeline = next(#parameters == 0 and shards.pipelines or {})
  return pipeline, pipeline and pipeline.device
end

--- Returns true if the norm of these parameters' gradients is one over all ranks.
function shards.is_collective(parameters) return find_division(parameters) ~= nil end

-- Returns t reduced over all ranks, on t's device. All dims of a mesh are reduced at once, in one collective that all
-- ranks call, whichever parameters they have. It has the name `purpose` in errors, and meets no other one.
local function reduced(division, device, t, op, purpose)
  local there, world = t:to(device), load_module("luminary.distributed.groups").need(purpose)
  division.mesh:call(core.dist_run, "all_reduce", world.handle, false, nil, op, nil, nil, there, nil, nil, nil, purpose)
  return there:to(t.device)
end

--- Returns a copy of a list of tensors, with distributed parameters in place of their gradients.
function shards.with_owners(tensors)
  local of = {}
  for _, map in ipairs {shards.of, shards.parts_of, shards.pipeline_of} do
    for p in pairs(map) do
      if core.is_alive(p) and core.has_grad(p) then of[tostring(p.grad:data_ptr())] = p end
    end
  end
  return lists.map(tensors, function(t)
    local p = of[tostring(t:data_ptr())]
    return p and p:numel() == t:numel() and p or t
  end)
end

--- Returns the norm of the gradients of parameters, of which this rank holds parts, as of one vector; or that of a list
--- of tensors, one for each parameter. Collective over all ranks. Elements that several ranks hold are counted in part
--- on each. Ranks must pass the same norm_type and max_norm, the limit of the caller, or nil.
function shards.total_norm(parameters, norm_type, tensors, max_norm)
  local _, world = rank_and_size()
  local by_count, total, is_max = {}, nil, norm_type == math.huge
  for i, p in ipairs(parameters) do
    local n = count_holders(p)
    if (shards.pipeline_of[p] or {}).counts ~= false then
      by_count[n] = by_count[n] or {}
      table.insert(by_count[n], tensors and tensors[i] or p)
    end
  end
  for _, n in ipairs(lists.sorted_keys(by_count)) do
    local part = core.total_norm(by_count[n], norm_type, not tensors):double()
    if not is_max then part = part:pow(norm_type) * (n / world) end
    total = not total and part or is_max and total:maximum(part) or total + part
  end
  local division, device = find_division(parameters)
  total = reduced(division, device, total or ops.zeros({}, {dtype = "float64"}), is_max and "max" or "sum",
    ("norm of order %g%s over all ranks"):format(norm_type, max_norm and (", max_norm %g,"):format(max_norm) or ""))
  return is_max and total or total:pow(1 / norm_type)
end

--- Returns the largest `found`, a tensor of each rank, over all ranks, if this rank holds a part of any of these
--- parameters. Collective then.
function shards.any_found(parameters, found)
  local division, device = find_division(parameters)
  return division and reduced(division, device, found, "max", "unscale_ over all ranks") or found
end

-- Returns a table from names to the parameters and buffers of a module that its state_dict has, before any hook.
local function tensors_of(module)
  local of = {}
  for _, entry in ipairs(records.state_of(module)) do of[entry[1]] = entry[2] end
  return of
end

-- Returns the tensors of a group's ranks, stacked in dim 1.
local function gather(division, device, t)
  local joined = ops.empty({division.group.size, unpack(t.shape)}, {dtype = t.dtype, device = device})
  division.mesh:call(dist().all_gather_into_tensor, joined, t:to(device), {group = division.group})
  return joined
end

-- Returns the full tensor of which t is this rank's part of p. Collective.
local function full_tensor(p, t)
  shards.check_rows(p)
  local about, divisions = shards.of[p], shards.parts_of[p] or {}
  if about then t = gather(about, about.device, t):view {-1}:narrow(1, 1, about.numel):view(about.shape) end
  for i = #divisions, 1, -1 do
    local part = divisions[i]
    local joined, whole = gather(part, t.device, t), ops.empty(part.shape, {dtype = t.dtype, device = t.device})
    for rank = 0, part.group.size - 1 do
      copy_common(whole, {shape = part.shape}, joined:select(1, rank + 1), {
        shape = part.shape, parts = {{dim = part.dim, sizes = part.sizes, rank = rank, ranks = part.group.size}},
      })
    end
    t = whole
  end
  return t
end

-- Broadcasts a tensor from the rank of a pipeline that has it; t: that tensor, on this rank alone.
local function broadcast_from(pipeline, holder, t)
  local src, device = pipeline.group.ranks[holder + 1], pipeline.device
  local about = pipeline.mesh:call(dist().broadcast_object_list, t and {t.dtype, lists.slice(t.shape)} or {}, src,
    pipeline.group)
  t = t and t:contiguous() or ops.empty(about[2], {dtype = about[1], device = device})
  return pipeline.mesh:call(dist().broadcast, t, src, {group = pipeline.group})
end

--- Returns a table of a module's parameters and buffers by name, full and copied to the CPU, one parameter after
--- another. All ranks call it; with dst, a rank in the world, the others return nil.
shards.full_state_dict = signature.of("full_state_dict(module: module, {dst: natural})", function(module, opts)
  local dst, pipeline, size = opts.dst, shards.pipelines[module], dist().get_world_size()
  if dst and dst >= size then options.must_be("full_state_dict", "dst", ("from 0 to %d"):format(size - 1), dst) end
  shards.fill("full_state_dict", module)
  local dict, of = {}, tensors_of(module)
  local wanted = dst == nil or dst == dist().get_rank()
  local is_sent = pipeline and pipeline.group.size > 1 and (not dst or lists.index_of(pipeline.group.ranks, dst))
  for _, name in ipairs(lists.sorted_keys(pipeline and pipeline.holders or of)) do
    core.no_grad(core.scope, function()
      local holder = pipeline and pipeline.holders[name]
      local is_here = not holder or holder == pipeline.group.rank
      local t = is_here and full_tensor(of[name], of[name]:detach()) or nil
      if is_sent then t = broadcast_from(pipeline, holder, t) end
      dict[name] = wanted and core.keep(t:to("cpu"):clone()) or nil
    end)
  end
  if wanted then records.run_hooks(module, "state_hooks", dict) end -- as state_dict does, with full tensors
  return wanted and dict or nil
end)

-- ---- checkpoints: each rank saves its parts, over any layout, and loads what it holds of all ranks' parts

local function is_natural(n) return options.is("natural", n) end

local function are_naturals(list) return options.is_plain(list) and lists.every(list, is_natural) end

-- Returns the shape of a rank's tensor of a form from a file, with a dim at least; nil if it is malformed.
local function saved_shape(form)
  if not (options.is_plain(form) and are_naturals(form.shape)) then return nil end
  if (form.first or form.chunk) and not (is_natural(form.first) and is_natural(form.chunk)) then return nil end
  local shape = form.shape[1] and lists.slice(form.shape) or {1}
  for _, part in ipairs(form.parts == nil and {} or options.is_plain(form.parts) and form.parts or {false}) do
    local is_part = options.is_plain(part) and are_naturals(part.sizes) and options.is("count", part.ranks)
      and is_natural(part.rank) and part.rank < part.ranks and shape[part.dim]
    if not is_part then return nil end
    local sum = 0
    for _, size in ipairs(part.sizes) do sum = sum + (size % part.ranks == 0 and size or 1 / 0) end
    if sum ~= shape[part.dim] then return nil end
    shape[part.dim] = sum / part.ranks
  end
  shape[1] = form.chunk or shape[1]
  return shape
end

local function malformed(who, name)
  options.fail("%s: the saved shard of '%s' is malformed", who, printable_name(name, 200))
end

-- Copies the elements of a saved tensor that `to` holds. p: its parameter, or false; saved: the tensor's form, or nil.
local function take_common(who, name, to, p, t, saved)
  if not core.is_tensor(t) then malformed(who, name) end
  saved = saved == nil and {shape = lists.slice(t.shape)} or saved
  local held, form = saved_shape(saved), form_of(p, to.shape)
  if not held then malformed(who, name) end
  if not same_shape(saved.shape, form.shape) or not same_shape(with_rows(t).shape, held) then
    options.fail("%s: expected %s to have shape [%s], got [%s] from a tensor [%s]", who, name,
      table.concat(form.shape, ", "), table.concat(saved.shape, ", "), table.concat(t.shape, ", "))
  end
  copy_common(to, form, t, saved)
end

-- Returns true if a saved state is this rank's own, of as many ranks, and has buffers that `tensors` lacks.
local function is_own(state)
  local rank, size = rank_and_size()
  return state.rank == rank and state.size == size and options.is_plain(state.own) and next(state.own) ~= nil
end

--- Returns true if a rank's state of a module or an optimizer may have elements of these parameters, which are by name
--- or number; else its tensors are of no use, and its other values may be.
function shards.has_common(own, state)
  local forms, given = state.shards, state.tensors or state.state
  if not (options.is_plain(forms) and options.is_plain(given)) or is_own(state) then return true end
  for key, value in pairs(given) do
    local p, form = own[key], forms[key]
    local held, to = p and form ~= nil and saved_shape(form), p and form_of(p, p.shape)
    if p and not (held and same_shape(to.shape, form.shape) and not overlap(to, form)) then return true end
    for _, t in pairs(p and options.is_plain(value) and value or {}) do -- other tensors than rows are taken whole
      if core.is_tensor(t) and not (t.ndim > 0 and same_shape(t.shape, held)) then return true end
    end
  end
  return false
end

-- Returns true if this rank saves a parameter: it is the first of those that hold the same part. pipeline: the entry of
-- the parameter or its module, or nil.
local function is_saver(p, pipeline)
  local holders = lists.append(all_divisions(p), {pipeline})
  if not holders[1] then return rank_and_size() == 0 end
  local whole = holders[1].mesh.whole
  for d, group in ipairs(whole.groups) do
    local covered = lists.find(holders, function(holder) return has_all(holder.group, group) end)
    if whole.place[d] > 0 and not covered then return false end
  end
  return true
end

--- Returns the state of a module on this rank, {tensors, shards = their forms, both by name}; nil if none is divided.
function shards.state_of_module(module)
  shards.fill("shard_state_dict", module)
  local pipeline = shards.pipelines[module]
  -- own: buffers, such as running statistics, of which `tensors` of another rank has that rank's
  local rank, size = rank_and_size()
  local state, any = {tensors = {}, shards = {}, own = {}, rank = rank, size = size}, pipeline ~= nil
  for name, p in pairs(tensors_of(module)) do -- hooks of state_dict expect full tensors
    shards.check_rows(p)
    any = any or is_divided(p)
    local to = is_saver(p, pipeline) and state.tensors or not parameter.is(p) and state.own or {}
    to[name] = p:detach()
    state.shards[name] = is_divided(p) and form_of(p, p.shape) or nil
  end
  return any and state or nil
end

--- Loads the states of a module's ranks into a module that is sharded in any way, or not at all.
function shards.load_module(module, next_state)
  local who, own, seen = "load_shards", tensors_of(module), {}
  local elsewhere = (shards.pipelines[module] or {}).holders or {}
  for state in next_state, own do
    local parts = options.is_plain(state) and options.is_plain(state.tensors) and options.is_plain(state.shards)
    if not parts then options.fail("%s: the saved state must have tables 'tensors' and 'shards'", who) end
    for name, t in lists.sorted_pairs(state.tensors) do
      if own[name] then
        take_common(who, name, own[name], own[name], t, state.shards[name])
      elseif not elsewhere[name] then
        options.fail("%s: %s has no '%s'", who, module.__name, printable_name(name, 200))
      end
      seen[name] = true
    end
    for name, t in pairs(is_own(state) and state.own or {}) do
      if own[name] then take_common(who, name, own[name], own[name], t) end
    end
  end
  for _, name in ipairs(lists.sorted_keys(own)) do
    if not seen[name] then options.fail("%s: the saved shards have no '%s'", who, name) end
  end
end

-- Returns the entry of pipeline_of of the first of these parameters that has one, or nil. For an empty list, as a rank
-- has whose stages are frozen, it returns a Pipeline's.
local function pipeline_among(parameters)
  if #parameters == 0 then return select(2, next(shards.pipelines)) end
  return shards.pipeline_of[lists.find(parameters, function(p) return shards.pipeline_of[p] end) or false]
end

--- Returns true if the parameters are of a Pipeline whose loss another rank computes.
function shards.has_loss_elsewhere(parameters)
  local pipeline = pipeline_among(parameters)
  return pipeline ~= nil and pipeline.group.rank < pipeline.group.size - 1
end

--- Returns the numbers that the parameters of an optimizer have in an optimizer of the complete model, a list, and for
--- each group the numbers of all of its parameters there; nil if they are of no Pipeline. Collective.
function shards.numbers(optimizer)
  local pipeline = pipeline_among(optimizer:all_parameters())
  if not pipeline then return nil end
  local own, groups, number_of, last = {}, {}, {}, 0
  for g, group in ipairs(optimizer.param_groups) do
    own[g] = lists.map(group.params, function(p)
      if not shards.pipeline_of[p] then
        options.fail("state_dict: group %d has a parameter that is not the Pipeline's", g)
      end
      return shards.pipeline_of[p].number
    end)
  end
  local all = pipeline.mesh:call(dist().all_gather_object, {}, own, pipeline.group)
  for g in ipairs(own) do
    local seen = {}
    for _, each in ipairs(all) do lists.append(seen, each[g] or {}) end
    groups[g] = {}
    for _, number in ipairs(lists.sorted_keys(lists.set(seen))) do
      last = last + 1
      number_of[number], groups[g][#groups[g] + 1] = last, last
    end
  end
  local numbers = {}
  for _, list in ipairs(own) do lists.append(numbers, lists.pick(number_of, list)) end
  return numbers, groups
end

--- Returns the state_dict of an optimizer of the complete model as one of this optimizer, whose parameters have these
--- numbers there.
function shards.renumbered(optimizer, dict, numbers)
  local out, n = {state = {}, param_groups = {}}, 0
  for g, group in ipairs(optimizer.param_groups) do
    out.param_groups[g] = lists.copy(dict.param_groups[g])
    out.param_groups[g].params = lists.map(group.params, function()
      n = n + 1
      out.state[n] = dict.state[numbers[n]]
      return n
    end)
  end
  return out
end

--- Returns the part of a state_dict that is of this optimizer's parameters: if it is of an optimizer of the complete
--- model, which has more than those of a Pipeline's rank. Collective for a Pipeline's.
function shards.own_part(optimizer, dict)
  local numbers, groups = shards.numbers(optimizer)
  local count = 0
  for _, group in ipairs(numbers and dict.param_groups or {}) do
    count = count + (options.is_plain(group) and options.is_plain(group.params) and #group.params or 0)
  end
  if not numbers or count == #numbers then return dict end
  for g, all in ipairs(groups) do
    local saved = dict.param_groups[g]
    local given = options.is_plain(saved) and options.is_plain(saved.params) and saved.params or {}
    if #given ~= #all then
      options.fail("load_state_dict: group %d has %d parameters in the Pipeline, %d in the state_dict; pass the "
        .. "optimizer the parameters of the model that was saved, in the same groups", g, #all, #given)
    end
  end
  return shards.renumbered(optimizer, dict, numbers)
end

--- Returns an optimizer's state_dict with a field `shards`, its parameters' forms by number; nil if none is divided. Of
--- a Pipeline, it has the numbers of an optimizer of the complete model. part: the optimizer of this rank's own rows.
function shards.state_of_optimizer(optimizer, part)
  local params = (part or optimizer):all_parameters()
  local numbers, groups = shards.numbers(optimizer)
  if not part and not numbers and not lists.find(params, is_divided) then return nil end
  local dict = (part or optimizer):state_dict()
  local states = dict.state
  dict.shards, dict.state = {}, {}
  for g, group in ipairs(numbers and dict.param_groups or {}) do group.params = groups[g] end
  for n, p in ipairs(params) do
    local number = numbers and numbers[n] or n
    dict.shards[number] = is_divided(p) and form_of(p, p.shape) or nil
    if part or is_saver(p, shards.pipeline_of[p]) then dict.state[number] = states[n] end
  end
  return dict
end

--- Adds a rank's state of a parameter to what was loaded before, nil at first. Returns that.
function shards.add_state(before, p, state, saved)
  if not options.is_plain(state) or not saved and not is_divided(p) then return state end
  local all, held = before or {}, saved and saved_shape(saved)
  for key, value in pairs(state) do
    local is_rows = core.is_tensor(value) and value.ndim >= math.min(1, saved and 1 or p.ndim)
    if is_rows and saved and not held then malformed("load_shards", tostring(key)) end
    if is_rows and (not saved or same_shape(value.shape, held)) then
      all[key] = all[key] or ops.zeros(p.shape, {dtype = value.dtype, device = value.device})
      take_common("load_shards", tostring(key), all[key], p, value, saved)
    else
      all[key] = value
    end
  end
  return all
end

--- Returns the complete state_dict of a module or an optimizer from the states of its ranks.
function shards.joined(next_state)
  local dict
  for state in next_state do
    local forms, parts = options.is_plain(state.shards) and state.shards or {}, state.tensors or state.state
    dict = dict or (state.tensors and {} or {param_groups = state.param_groups, state = {}})
    local all = state.tensors and dict or dict.state
    for key, value in pairs(options.is_plain(parts) and parts or {}) do
      local form, n = forms[key], tostring(key)
      if form ~= nil and not saved_shape(form) then malformed("load_shards", n) end
      local full = form and {shape = form.shape, ndim = #form.shape}
      if core.is_tensor(value) then
        all[key] = shards.add_state({[n] = all[key]}, full, {[n] = value}, form)[n]
      else
        all[key] = shards.add_state(all[key], full, value, form)
      end
    end
  end
  return dict
end

return shards

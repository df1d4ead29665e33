--- Placements: what this rank holds of a parameter or buffer, which ranks divide or only some of them have. A tensor's
--- is its field "placement" (core.field), and is the same type for fully_shard, ZeRO, tensor, expert and pipeline
--- parallel.
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

local ops, field, is_empty = core.ops, core.field, meta.is_empty
local placement = {}

local function dist() return load_module "luminary.distributed" end

-- The placement of a tensor t: shape, of the full tensor; splits, the divisions of its dims among ranks, in the order
-- in which they were made (placement.split); rows, the last one, if it is fully_shard's or that of a view of
-- ZeroRedundancyOptimizer; stage, of a Pipeline's parameter: {group, mesh, number (from 1, its position in the model's
-- parameters()), counts (false on all but one of the ranks that have it)}; and until t has memory, meshes, on whose
-- ranks its initial values must be equal.
local Placement = {}
Placement.__index = Placement

local instances = setmetatable({}, {__mode = "k"}) -- all placements
--- Has one Pipeline, {group, mesh, device, holders (ranks in the group, by the names of the tensors that each is the
--- first to have)}, which is the field `pipeline` of its record, if any is alive.
placement.last_pipeline = setmetatable({}, {__mode = "v"})

local none = setmetatable({splits = {}}, Placement) -- the placement of other values

local function of(t) return field(t, "placement") or none end

--- Returns a tensor's split by fully_shard or ZeroRedundancyOptimizer; nil if there is none.
function placement.rows(t) return of(t).rows end
--- Returns the stage of a Pipeline's parameter; nil for others.
function placement.stage(t) return of(t).stage end

local function need(t)
  local place = field(t, "placement") or setmetatable({t = t, splits = {}}, Placement)
  core.set_field(t, "placement", place)
  instances[place] = true
  return place
end

--- Records that t, a tensor of this rank, is its part by a split: {mesh (its last dim's ranks are `group`), dim, shape
--- (before this split)} and either `sizes`, of pieces of dim, of each of which a rank has an equal part, the last ranks
--- a smaller one, in the order of ranks, or `copies` ranks beside one another the same one; or, of dim 1, `chunk` (the
--- part's size; the last ranks' end with padding) and `first` (the number of indices before it). `averages` is true if
--- the module averages its gradients over the group. fully_shard's have names (all of the parameter), owner, numel, and
--- device, where it is gathered; one without a mesh is of no ranks.
function placement.split(t, split)
  local place, mesh = need(t), split.mesh
  split.group = mesh and mesh.groups[mesh.ndim]
  place.shape, place.rows = place.shape or split.shape, split.chunk and split
  table.insert(place.splits, split)
end

--- Records the same splits of another tensor.
function Placement:copy_to(t)
  for _, split in ipairs(self.splits) do placement.split(t, split) end
end

--- Records the stage of a Pipeline's parameter.
function placement.set_stage(p, stage) need(p).stage = stage end

--- Returns the properties of a parameter or buffer that must be equal on all ranks, as text.
function placement.summarize(name, t)
  return ("'%s', %s [%s]%s"):format(name, t.dtype, table.concat(t.shape, ", "),
    parameter.is(t) and not t.requires_grad and ", without gradient" or "")
end

--- Notes the names of a module's parameters, which `who` wraps for a group: the field "name", the same on all ranks.
--- Returns the number of this call.
function placement.note_names(who, group, module)
  group.calls = group.calls or {}
  group.calls[who] = (group.calls[who] or 0) + 1
  for name, p in module:named_parameters() do
    core.set_field(p, "name", ("'%s' of call %d of %s"):format(name, group.calls[who], who))
  end
  return group.calls[who]
end

--- Returns a list of the names of an optimizer's parameters, without those of none and of a pipeline's stages.
function placement.names_of(optimizer)
  local names = lists.map(optimizer:all_parameters(), function(p) return not of(p).stage and field(p, "name") end)
  return lists.filter(names, function(name) return name end)
end

--- Fails on all ranks of a group unless they list the same parameters in one order: by name, or by value if no call has
--- named them. lines: what else must be equal. Collective.
function placement.check_order(who, group, lines, param_groups)
  if group.size == 1 then return end
  local sums = {}
  for g, each in ipairs(param_groups) do
    for i, p in ipairs(each.params) do
      local name = field(p, "name")
      lines[#lines + 1] = ("group %d, parameter %d, %s [%s]%s%s"):format(g, i, p.dtype, table.concat(p.shape, ", "),
        p.requires_grad and "" or " without gradient", name and ", " .. name or "")
      sums[#sums + 1] = not name and not is_empty(p) and core.no_grad(core.scope, function()
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

-- Returns the ranges of a dim, {number of indices before, size} each, that a rank of a division has, and their size.
local function ranges_of(part)
  local list, at, sum = {}, 0, 0
  local copies = part.copies or 1
  for i, size in ipairs(part.sizes) do
    local each = math.ceil(size * copies / part.ranks)
    local first = math.min(math.floor(part.rank / copies) * each, size)
    list[i], at, sum = {at + first, math.min(each, size - first)}, at + size, sum + math.min(each, size - first)
  end
  return list, sum
end

local function is_natural(n) return options.is("natural", n) end

local function are_naturals(list) return options.is_plain(list) and lists.every(list, is_natural) end

-- Returns the shape, of 1 dim at least, of the tensor whose form a rank saved; nil if the form is malformed.
local function held_shape(form)
  if not (options.is_plain(form) and are_naturals(form.shape)) then return nil end
  if (form.first or form.chunk) and not (is_natural(form.first) and is_natural(form.chunk)) then return nil end
  local shape = form.shape[1] and lists.slice(form.shape) or {1}
  for _, part in ipairs(form.parts == nil and {} or options.is_plain(form.parts) and form.parts or {false}) do
    local is_part = options.is_plain(part) and are_naturals(part.sizes) and options.is("count", part.ranks)
      and is_natural(part.rank) and part.rank < part.ranks and shape[part.dim]
      and (part.copies == nil or options.is("count", part.copies) and part.ranks % part.copies == 0)
    if not is_part then return nil end
    if lists.sum(part.sizes) ~= shape[part.dim] then return nil end
    shape[part.dim] = select(2, ranges_of(part))
  end
  shape[1] = form.chunk or shape[1]
  return shape
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
    by_dim[part.dim] = select_ranges(by_dim[part.dim], (ranges_of(part)))
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

-- Returns the form of what a rank of a split has of the tensor before it; by default of this rank.
local function form_of_split(split, rank)
  local shape, chunk, group = split.shape, split.chunk, split.group
  if chunk then return {shape = shape, first = rank and rank * chunk or split.first, chunk = chunk} end
  local part = {dim = split.dim, sizes = split.sizes, rank = rank or group.rank, ranks = group.size}
  part.copies = split.copies
  return {shape = shape, parts = {part}}
end

-- Returns the form of a tensor on this rank, and by default that of a tensor of this shape that no rank shares.
local function form_of(t, shape)
  local form = {shape = of(t).shape or lists.slice(shape)}
  for _, split in ipairs(of(t).splits) do
    local own = form_of_split(split)
    form.first, form.chunk = own.first, own.chunk
    form.parts = own.parts and lists.append(form.parts or {}, own.parts) or form.parts
  end
  return form
end

--- Returns true if this rank holds a part of a tensor.
function placement.is_divided(t) return of(t).splits[1] ~= nil end
local is_divided = placement.is_divided

--- Notes that t, a tensor in a state_dict, is this tensor's part, or of its state, that this rank has. Fails if the
--- tensor gets memory in the first forward pass. name: its own, in the state_dict of a module.
function Placement:note_part(t, name)
  if name and self.meshes and is_empty(self.t) then
    options.fail("state_dict: '%s' gets its values in the first forward pass; call the module once before, or "
      .. "nn.parallel.full_state_dict(net), on all ranks", name)
  end
  if core.is_tensor(t) and (self.splits[1] or self.stage) then core.set_field(t, "is_part", true) end
end

--- Returns true if t is a part of a parameter or its state, of which other ranks have others.
function placement.is_part(t) return field(t, "is_part") or is_divided(t) or of(t).stage ~= nil end

-- Returns the part of a tensor that a rank of a split's group has, by default this one, with zeros in the padding.
local function part_of(split, t, rank)
  local form = form_of_split(split, rank)
  local own = ops.zeros(held_shape(form), {dtype = t.dtype, device = t.device})
  copy_common(own, form, t, {shape = split.shape})
  return own
end

--- Replaces a tensor, which has equal values on all ranks of split.group, by this rank's part, and records the split;
--- without `sizes` in chunks. device: nil, or the part's.
function placement.divide(t, split, device)
  local group = split.mesh.groups[split.mesh.ndim]
  split.shape, split.numel = lists.slice(t.shape), t:numel()
  if not split.sizes then
    split.chunk = math.max(1, math.ceil((split.shape[split.dim] or 1) / group.size))
    split.first = group.rank * split.chunk
  end
  placement.split(t, split)
  t.grad = nil
  local size = held_shape(form_of_split(split))[split.dim]
  core.set_data(t, is_empty(t) and t:detach():narrow(split.dim, 1, size)
    or part_of(split, t:detach()):to(device or t.device))
end

-- Returns the splits of a tensor that its module does not initialize part by part.
local function splits_of(t)
  return lists.filter(of(t).splits, function(split) return split.sizes and not split.averages end)
end

--- Makes all ranks of a mesh hold the values of its first one. Collective.
function placement.broadcast(mesh, t)
  local full = t:contiguous()
  for d = mesh.ndim, 1, -1 do
    local group = mesh.groups[d]
    if group.size > 1 then mesh:call(dist().broadcast, full, group.ranks[1], {group = group}) end
  end
  if not t:is_contiguous() then t:copy_(full) end
end

-- Replaces an initialized parameter by this rank's part of it.
local function keep_part(p)
  core.no_grad(core.scope, function()
    local full = p:detach()
    for _, mesh in ipairs(of(p).meshes or {}) do placement.broadcast(mesh, full) end
    for _, split in ipairs(splits_of(p)) do full = part_of(split, full) end
    core.set_data(p, full)
  end)
  of(p).meshes = nil
end

--- Allocates and initializes a module's parameters that have no memory, one layer after another, each in full, and
--- keeps this rank's parts. Collective if a call of parallelize has divided them.
function placement.fill(who, module)
  module:apply(function(m)
    meta.materialize(who, m, function(p) return (splits_of(p)[1] or p).shape end, keep_part)
    local hook = records.of(m).filling
    if hook then hook.remove() end
  end)
end

--- Makes the first call of a module, or of a module within it, allocate the parameters that have no memory until then.
--- mesh: has equal values on its ranks, before it divides them.
function placement.fill_later(who, module, mesh)
  for _, p in ipairs(lists.filter(module:parameters(), is_empty)) do
    need(p).meshes = lists.append(need(p).meshes or {}, {mesh})
  end
  for _, m in ipairs(module:modules()) do
    records.of(m).filling = m:register_forward_pre_hook(function() placement.fill(who, module) end)
  end
end

-- Returns the number of ranks that hold different parts of a tensor; with_stages: or of its Pipeline.
local function count_parts(t, with_stages)
  local n = with_stages and of(t).stage and of(t).stage.group.size or 1
  for _, split in ipairs(of(t).splits) do n = n * (split.group and split.group.size / (split.copies or 1) or 1) end
  return n
end

-- Returns true if a group has all ranks of another one.
local function has_all(group, other)
  return lists.every(other.ranks, function(rank) return lists.index_of(group.ranks, rank) end)
end

-- Returns the split over several ranks of a parameter of experts, or nil.
local function expert_part(p)
  return lists.find(of(p).splits, function(split) return split.averages and split.group.size > 1 end)
end

local function refuse_experts(who, name, part, remedy)
  remedy = remedy or "nn.parallel.fully_shard averages both: fully_shard(layer.experts, {mesh = the other dims}), then "
    .. "fully_shard(net, {mesh = all ranks})"
  options.fail("%s: ranks divide the experts '%s', and all ranks share other parameters (%s); %s", who, name,
    part.mesh:describe_rank(), remedy)
end

--- Fails if a group has other ranks that hold other parts of p: they are no replicas. who: a function; name: p's.
--- remedy: for experts; it is fully_shard without it.
function placement.check_replicas(who, name, p, group, remedy)
  for _, part in ipairs(lists.joined({of(p).stage}, of(p).splits)) do
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
function placement.check_experts(who, module, groups)
  local expert, split, has_others
  for name, p in module:named_parameters() do
    local part = expert_part(p)
    if part and not lists.find(groups, function(group) return has_all(group, part.group) end) then
      expert, split = name, part
    end
    has_others = has_others or not part and p.requires_grad
  end
  if expert and has_others then refuse_experts(who, expert, split) end
end

--- Returns true if p is an expert's parameter whose layer averages gradients over all ranks of `group` itself.
function placement.averages_over(p, group)
  local part = expert_part(p)
  return part ~= nil and has_all(part.group, group)
end

--- Fails if a shard of fully_shard has data of another shape.
function Placement:check_rows()
  local rows = self.rows
  local wanted = rows and held_shape(form_of_split(rows))
  if rows and not same_shape(self.t.shape, wanted) then
    options.fail("fully_shard: expected %s to have shape [%s], this rank's rows, got [%s]; load_state_dict takes full "
      .. "tensors", rows.names[1], table.concat(wanted, ", "), table.concat(self.t.shape, ", "))
  end
end

--- Returns this rank's part of a value, if it is a tensor of the full shape; otherwise the value.
function Placement:own_part(value)
  for _, split in ipairs(core.is_tensor(value) and self.splits or {}) do
    if same_shape(value.shape, split.shape) then value = part_of(split, value:detach()) end
  end
  return value
end

--- Fails if one of these parameters is a shard, for `who`, which takes tensors of one rank as they are.
function placement.refuse(who, parameters, remedy)
  local p = lists.find(parameters, function(t) return of(t).rows end)
  if p then options.fail("%s: parameter '%s' is sharded by fully_shard; %s", who, of(p).rows.names[1], remedy) end
end

--- Fails for `who`, whose step treats a parameter as a whole, if ranks hold different parts of one of these. needs_all:
--- it treats all parameters as one vector.
function placement.refuse_parts(who, parameters, needs_all)
  for _, p in ipairs(parameters) do
    local rows, size = of(p).rows, count_parts(p, needs_all)
    if size > 1 then
      options.fail("%s: a step needs %s, but %d ranks divide %s; choose another optimizer, such as optim.AdamW", who,
        needs_all and "all parameters" or "all elements of a parameter", size,
        rows and rows.names and "'" .. rows.names[1] .. "'" or "one of shape ["
        .. table.concat(form_of(p, p.shape).shape, ", ") .. "]")
    end
  end
end

--- Fails if ranks divide this tensor, and it has memory: its initial values are computed from those of all of it.
function Placement:refuse_init()
  local split = splits_of(self.t)[1] or self.rows
  if split and split.group and split.group.size > 1 and not is_empty(self.t) then
    options.fail("nn.init: ranks divide a parameter of shape [%s]; initialize it before, or load_state_dict full "
      .. "tensors", table.concat(split.shape, ", "))
  end
end

--- Warns, on rank 0, if an optimizer steps parameters of fully_shard together with others, which nothing averages.
function placement.check_averaged(who, parameters)
  local function is_rest(p) return not of(p).rows and core.has_grad(p) and not expert_part(p) end
  local function is_averaged(p) return of(p).rows and of(p).rows.mesh and of(p).rows.mesh:size() > 1 end
  local p, n = lists.find(parameters, is_rest)
  if not p or rank_and_size() > 0 or not lists.find(parameters, is_averaged) then return end
  core.warn(("%s: parameter %d, [%s], is in no module of fully_shard, so that nothing averages its gradient over the "
    .. "ranks; call nn.parallel.fully_shard(net) after the calls for its blocks"):format(who, n,
    table.concat(p.shape, ", ")))
end

-- Returns a split or stage of one of the parameters, and its device; nil if this rank holds a part of none. For an
-- empty list it returns a Pipeline's: its other ranks may have parameters.
local function find_split(parameters)
  for _, p in ipairs(parameters) do
    local split = of(p).rows or of(p).splits[1] or of(p).stage
    if split then return split, split.device or p.device end
  end
  local pipeline = #parameters == 0 and placement.last_pipeline[1] or nil
  return pipeline, pipeline and pipeline.device
end

--- Returns true if the norm of these parameters' gradients is one over all ranks.
function placement.is_collective(parameters) return find_split(parameters) ~= nil end

-- Returns t reduced over all ranks, on t's device. All dims of a mesh are reduced at once, in one collective that all
-- ranks call, whichever parameters they have. It has the name `purpose` in errors, and meets no other one.
local function reduced(division, device, t, op, purpose)
  local there, world = t:to(device), load_module("luminary.distributed.groups").need(purpose)
  division.mesh:call(core.dist_run, "all_reduce", world.handle, false, nil, op, nil, nil, there, nil, nil, nil, purpose)
  return there:to(t.device)
end

-- Returns the address of a parameter's gradient, if it has one; raises if the parameter was collected.
local function gradient_address(p) return core.has_grad(p) and tostring(p.grad:data_ptr()) end

--- Returns a copy of a list of tensors, with distributed parameters in place of their gradients.
function placement.with_owners(tensors)
  local owners = {}
  for place in pairs(instances) do
    local is_alive, address = pcall(gradient_address, place.t) -- a step of the collector may come between any two calls
    if is_alive and address then owners[address] = place.t end
  end
  return lists.map(tensors, function(t)
    local p = owners[tostring(t:data_ptr())]
    return p and p:numel() == t:numel() and p or t
  end)
end

--- Returns the norm of the gradients of parameters, of which this rank holds parts, as of one vector; or that of a list
--- of tensors, one for each parameter. Collective over all ranks. Elements that several ranks hold are counted in part
--- on each. Ranks must pass the same norm_type and max_norm, the limit of the caller, or nil.
function placement.total_norm(parameters, norm_type, tensors, max_norm)
  local _, world = rank_and_size()
  local by_count, total, is_max = {}, nil, norm_type == math.huge
  for i, p in ipairs(parameters) do
    local n, stage = count_parts(p, true), of(p).stage
    if not stage or stage.counts then
      by_count[n] = by_count[n] or {}
      table.insert(by_count[n], tensors and tensors[i] or p)
    end
  end
  for _, n in ipairs(lists.sorted_keys(by_count)) do
    local part = core.total_norm(by_count[n], norm_type, not tensors):double()
    if not is_max then part = part:pow(norm_type) * (n / world) end
    total = not total and part or is_max and total:maximum(part) or total + part
  end
  local division, device = find_split(parameters)
  total = reduced(division, device, total or ops.zeros({}, {dtype = "float64"}), is_max and "max" or "sum",
    ("norm of order %g%s over all ranks"):format(norm_type, max_norm and (", max_norm %g,"):format(max_norm) or ""))
  return is_max and total or total:pow(1 / norm_type)
end

--- Returns the largest `found`, a tensor of each rank, over all ranks, if this rank holds a part of any of these
--- parameters. Collective then.
function placement.any_found(parameters, found)
  local division, device = find_split(parameters)
  return division and reduced(division, device, found, "max", "unscale_ over all ranks") or found
end

-- Returns a table from names to the parameters and buffers of a module that its state_dict has, before any hook.
local function tensors_of(module)
  local tensors = {}
  for _, entry in ipairs(records.state_of(module)) do tensors[entry[1]] = entry[2] end
  return tensors
end

-- Returns the tensor before a split from its parts, stacked in dim 1.
local function join(split, parts)
  local shape, how = split.shape, {dtype = parts.dtype, device = parts.device}
  if split.chunk then return parts:view {-1}:narrow(1, 1, split.numel):view(shape) end
  local full = ops.empty(shape, how)
  for rank = 0, split.group.size - 1 do
    copy_common(full, {shape = shape}, parts:select(1, rank + 1), form_of_split(split, rank))
  end
  return full
end

--- Returns the full tensor of which t is this rank's part. Collective.
function Placement:full(t)
  self:check_rows()
  for i = #self.splits, 1, -1 do
    local split = self.splits[i]
    local device, shape = split.device or t.device, held_shape(form_of_split(split, 0)) -- which is the largest
    local own, parts = t:to(device), ops.empty({split.group.size, unpack(shape)}, {dtype = t.dtype, device = device})
    if own:size(split.dim) < shape[split.dim] then
      own = ops.zeros(shape, {dtype = t.dtype, device = device})
      own:narrow(split.dim, 1, t:size(split.dim)):copy_(t)
    end
    split.mesh:call(dist().all_gather_into_tensor, parts, own, {group = split.group})
    t = join(split, parts)
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
placement.full_state_dict = signature.of("full_state_dict(module: module, {dst: natural})", function(module, opts)
  local dst, pipeline, size = opts.dst, records.of(module).pipeline, dist().get_world_size()
  if dst and dst >= size then options.must_be("full_state_dict", "dst", ("from 0 to %d"):format(size - 1), dst) end
  placement.fill("full_state_dict", module)
  local dict, tensors = {}, tensors_of(module)
  local wanted = dst == nil or dst == dist().get_rank()
  local is_sent = pipeline and pipeline.group.size > 1 and (not dst or lists.index_of(pipeline.group.ranks, dst))
  for _, name in ipairs(lists.sorted_keys(pipeline and pipeline.holders or tensors)) do
    core.no_grad(core.scope, function()
      local holder = pipeline and pipeline.holders[name]
      local is_here = not holder or holder == pipeline.group.rank
      local t = is_here and of(tensors[name]):full(tensors[name]:detach()) or nil
      if is_sent then t = broadcast_from(pipeline, holder, t) end
      dict[name] = wanted and core.keep(t:to("cpu"):clone()) or nil
    end)
  end
  if wanted then records.run_hooks(module, "state_hooks", dict) end -- as state_dict does, with full tensors
  return wanted and dict or nil
end)

-- ---- checkpoints: each rank saves its parts, over any layout, and loads what it holds of all ranks' parts

local function malformed(who, name)
  options.fail("%s: the saved shard of '%s' is malformed", who, printable_name(name, 200))
end

-- Copies the elements of a saved tensor that `to` holds. p: its parameter, or false; saved: the tensor's form, or nil.
local function take_common(who, name, to, p, t, saved)
  if not core.is_tensor(t) then malformed(who, name) end
  saved = saved == nil and {shape = lists.slice(t.shape)} or saved
  local held, form = held_shape(saved), form_of(p, to.shape)
  if not held then malformed(who, name) end
  if not same_shape(saved.shape, form.shape) or not same_shape(with_rows(t).shape, held) then
    options.fail("%s: expected %s to have shape [%s], got [%s] from a tensor [%s]", who, name,
      table.concat(form.shape, ", "), table.concat(saved.shape, ", "), table.concat(t.shape, ", "))
  end
  copy_common(to, form, t, saved)
end

-- Returns true if this rank saved a state, among the same number of ranks, with values of its own (state.own).
local function is_own(state)
  local rank, size = rank_and_size()
  return state.rank == rank and state.size == size and options.is_plain(state.own) and next(state.own) ~= nil
end

--- Returns true if a rank's state of a module or an optimizer may have elements of these parameters, which are by name
--- or number; else its tensors are of no use, and its other values may be.
function placement.has_common(own, state)
  local forms, given = state.shards, state.tensors or state.state
  if not (options.is_plain(forms) and options.is_plain(given)) or is_own(state) then return true end
  for key, value in pairs(given) do
    local p, form = own[key], forms[key]
    local held, to = p and form ~= nil and held_shape(form), p and form_of(p, p.shape)
    if p and not (held and same_shape(to.shape, form.shape) and not overlap(to, form)) then return true end
    for _, t in pairs(p and options.is_plain(value) and value or {}) do -- other tensors than rows are taken whole
      if core.is_tensor(t) and not (t.ndim > 0 and same_shape(t.shape, held)) then return true end
    end
  end
  return false
end

-- Returns true if this rank saves a parameter: it is the first of those that hold the same part. stage: the
-- parameter's, its module's Pipeline, or nil.
local function is_saver(p, stage)
  local holders = lists.joined(of(p).splits, {stage})
  if not holders[1] then return rank_and_size() == 0 end
  local whole = holders[1].mesh.whole
  for d, group in ipairs(whole.groups) do
    local covered = lists.find(holders, function(holder) return has_all(holder.group, group) end)
    local is_first = covered and (not covered.copies or covered.group.rank % covered.copies == 0)
    if whole.place[d] > 0 and not is_first then return false end
  end
  return true
end

--- Returns the state of a module on this rank, {tensors, shards = their forms, both by name}; nil if none is divided.
function placement.state_of_module(module)
  placement.fill("shard_state_dict", module)
  local pipeline = records.of(module).pipeline
  -- own: buffers, such as running statistics, of which `tensors` of another rank has that rank's
  local rank, size = rank_and_size()
  local state, any = {tensors = {}, shards = {}, own = {}, rank = rank, size = size}, pipeline ~= nil
  for name, p in pairs(tensors_of(module)) do -- hooks of state_dict expect full tensors
    of(p):check_rows()
    any = any or is_divided(p)
    local to = is_saver(p, pipeline) and state.tensors or not parameter.is(p) and state.own or {}
    to[name] = p:detach()
    state.shards[name] = is_divided(p) and form_of(p, p.shape) or nil
  end
  return any and state or nil
end

--- Loads the states of a module's ranks into a module that is sharded in any way, or not at all.
function placement.load_module(module, next_state)
  local who, own, seen = "load_shards", tensors_of(module), {}
  local elsewhere = (records.of(module).pipeline or {}).holders or {}
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

-- Returns the stage of the first of these parameters that has one, or nil. For an empty list, as a rank has whose
-- stages are frozen, it returns a Pipeline.
local function stage_among(parameters)
  if #parameters == 0 then return placement.last_pipeline[1] end
  return of(lists.find(parameters, function(p) return of(p).stage end)).stage
end

--- Returns true if the parameters are of a Pipeline whose loss another rank computes.
function placement.has_loss_elsewhere(parameters)
  local pipeline = stage_among(parameters)
  return pipeline ~= nil and pipeline.group.rank < pipeline.group.size - 1
end

--- Returns the numbers that the parameters of an optimizer have in an optimizer of the complete model, a list, and for
--- each group the numbers of all of its parameters there; nil if they are of no Pipeline. Collective.
function placement.numbers(optimizer)
  local pipeline = stage_among(optimizer:all_parameters())
  if not pipeline then return nil end
  local own, groups, number_of, last = {}, {}, {}, 0
  for g, group in ipairs(optimizer.param_groups) do
    own[g] = lists.map(group.params, function(p)
      if not of(p).stage then
        options.fail("state_dict: group %d has a parameter that is not the Pipeline's", g)
      end
      return of(p).stage.number
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
function placement.renumbered(optimizer, dict, numbers)
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
function placement.part_of_dict(optimizer, dict)
  local numbers, groups = placement.numbers(optimizer)
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
  return placement.renumbered(optimizer, dict, numbers)
end

--- Returns an optimizer's state_dict with a field `shards`, its parameters' forms by number; nil if none is divided. Of
--- a Pipeline, it has the numbers of an optimizer of the complete model. part: the optimizer of this rank's own rows.
function placement.state_of_optimizer(optimizer, part)
  local params = (part or optimizer):all_parameters()
  local numbers, groups = placement.numbers(optimizer)
  if not part and not numbers and not lists.find(params, is_divided) then return nil end
  local dict = (part or optimizer):state_dict()
  local states = dict.state
  dict.shards, dict.state = {}, {}
  for g, group in ipairs(numbers and dict.param_groups or {}) do group.params = groups[g] end
  for n, p in ipairs(params) do
    local number = numbers and numbers[n] or n
    dict.shards[number] = is_divided(p) and form_of(p, p.shape) or nil
    if part or is_saver(p, of(p).stage) then dict.state[number] = states[n] end
  end
  return dict
end

--- Adds a rank's state of a parameter to what was loaded before, nil at first. Returns that.
function placement.add_state(before, p, state, saved)
  if not options.is_plain(state) or not saved and not is_divided(p) then return state end
  local all, held = before or {}, saved and held_shape(saved)
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
function placement.joined(next_state)
  local dict
  for state in next_state do
    local forms, parts = options.is_plain(state.shards) and state.shards or {}, state.tensors or state.state
    dict = dict or (state.tensors and {} or {param_groups = state.param_groups, state = {}})
    local all = state.tensors and dict or dict.state
    for key, value in pairs(options.is_plain(parts) and parts or {}) do
      local form, n = forms[key], tostring(key)
      if form ~= nil and not held_shape(form) then malformed("load_shards", n) end
      local full = form and {shape = form.shape, ndim = #form.shape}
      if core.is_tensor(value) then
        all[key] = placement.add_state({[n] = all[key]}, full, {[n] = value}, form)[n]
      else
        all[key] = placement.add_state(all[key], full, value, form)
      end
    end
  end
  return dict
end

return placement

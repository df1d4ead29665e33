--- nn.parallel.fully_shard(…): Shards a module's parameters over ranks by rows, and gathers them while they are used.
--- Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models", 2020, stages 1 to 3;
--- the contract is that of PyTorch's FSDP2.
---
--- A unit is a module of a call of fully_shard. It holds the parameters of its descendants that belong to no unit of
--- their own, in buckets, each gathered by one collective. Forward puts the gathered tensors, results of a node
--- "FullyShard", into the modules. Nodes of the graph save no reference to their memory: it is freed after forward, and
--- gathered again when backward first needs it (core.set_source), or kept. The node's backward reduces the gradients.
local core = require "luminary.core"
local lists = require "luminary.base.lists"
local map_tensors = require "luminary.base.map_tensors"
local options = require "luminary.base.options"
local own = require "luminary.base.own_functions"
local signature = require "luminary.base.signature"
local boundaries = require "luminary.autograd.checkpoint_boundaries"
local autograd = require "luminary.autograd.function"
local gradients = require "luminary.autograd.zero_gradients"
local alike = require "luminary.distributed.same_on_all_ranks"
local dist = require "luminary.distributed"
local cost = require "luminary.distributed.cost_model"
local device_mesh = require "luminary.distributed.device_mesh"
local groups = require "luminary.distributed.groups"
local Module = require "luminary.nn.module"
local records = require "luminary.nn.module_fields"
local batch_size = require "luminary.nn.parallel.batch_size"
local DDP = require "luminary.nn.parallel.distributed"
local SyncBatchNorm = require "luminary.nn.parallel.sync_batch_norm"
local placement = require "luminary.nn.parallel.placement"

local ops, fail, rows_of, who = core.ops, options.fail, placement.rows, "fully_shard"
local MOST = 200 -- parameters of a bucket; a recorded function has at most 255 results

local active -- the pass of the outermost unit whose forward runs, or nil

-- Returns a module's unit, which its record owns.
local function unit_of(module) return records.of(module).unit end

-- ---- buckets: parameters that are gathered together

local Bucket = {}
Bucket.__index = Bucket

-- Returns true if these versions are those of the shards.
local function is_current(bucket, versions)
  for i, p in ipairs(bucket) do
    if p._version ~= versions[i] then return false end
  end
  return true
end

-- Starts a collective of a unit in a group, which fails if another rank calls another unit.
local function run_async(unit, collective, group, op, t, list)
  return unit.mesh:call(core.dist_run, collective, group.handle, true, nil, op, nil, nil, t, list, nil, nil,
    unit.title)
end

-- Returns the dtype and device of the bucket's full tensors.
local function full_options(bucket)
  local unit, p = bucket.unit, bucket[1]
  return {
    dtype = core.is_floating_point(p) and unit.param_dtype or p.dtype,
    device = unit.offload and unit.device or p.device,
  }
end

-- Calls f(...) on the stream of copies if the unit's shards are on the host and gathered on a GPU; else as it is.
local function on_side(unit, f, ...)
  if not unit.side then return f(...) end
  return core.with_stream(unit.device, unit.side, f, ...)
end

-- Waits until the copies of the unit's device are done.
local function await_copies(unit)
  if unit.side then core.stream_synchronize(unit.device, unit.side) end
end

-- Returns the bucket's shards in one tensor, [elements of a shard], which holds zeros between them.
local function pack_shards(bucket)
  local flat = ops.zeros({bucket.numel}, {dtype = bucket[1].dtype, device = bucket[1].device})
  for i, p in ipairs(bucket) do
    flat:narrow(1, bucket.at[i] + 1, p:numel()):copy_(p:detach():reshape {-1})
  end
  return flat
end

-- Makes the bucket's shards parts of one tensor, `flat`, which a gather sends as it is. Sets `at`, the number of
-- elements before each, `pointers`, their addresses, `sizes`, `numel`, the number of all elements, and `width`, with
-- flags behind reduced gradients, by parameter: 0 if no rank has a gradient.
local function lay_out(bucket)
  bucket.at, bucket.numel, bucket.pointers, bucket.sizes = {}, 0, {}, {}
  for i, p in ipairs(bucket) do
    bucket.at[i] = bucket.numel
    bucket.numel = bucket.numel + (#bucket > 1 and cost.part(p:numel()) or p:numel())
  end
  bucket.flat, bucket.width = pack_shards(bucket), bucket.numel + cost.part(#bucket)
  if bucket.unit.side then bucket.flat = core.pin_memory(bucket.flat) end
  core.keep(bucket.flat)
  for i, p in ipairs(bucket) do
    core.set_data(p, core.part(bucket.flat, bucket.at[i], p:numel()):view(p.shape))
    bucket.pointers[i], bucket.sizes[i] = p:data_ptr(), p:numel()
  end
end

-- Waits for the work of a table, if it has one: its group's last use of these tensors.
local function await(mesh, started, ...)
  if started.work then mesh:call(core.dist_wait, started.work, ...) end
  started.work = nil
end

-- Starts to gather the bucket. Returns {joined = [ranks, elements of a shard], versions, work}. Once a shard was
-- replaced or converted, sends a copy of them.
local function start(bucket)
  local versions = {}
  for i, p in ipairs(bucket) do
    if p:data_ptr() ~= bucket.pointers[i] or p:numel() ~= bucket.sizes[i] or not p:is_contiguous() then
      core.field(p, "placement"):check_rows()
      bucket.flat = nil
    end
    versions[i] = p._version
  end
  local group, row = bucket.unit.group, bucket.flat or pack_shards(bucket)
  local joined = core.keep(ops.empty({group.size, bucket.numel}, full_options(bucket)))
  local started = {joined = joined, versions = versions}
  if group.size == 1 or row.dtype ~= joined.dtype or row.device ~= joined.device then
    local place = joined:select(1, group.rank + 1)
    row = on_side(bucket.unit, place.copy_, place, row, {non_blocking = true}) -- is over in finish
  end
  if group.size > 1 then
    started.work = run_async(bucket.unit, "all_gather", group, nil, row, {joined})
  end
  return started
end

-- Returns the full tensors of a gathered bucket. One alone with all its rows is the memory that was gathered.
local function finish(bucket, started)
  await(bucket.unit.mesh, started, started.joined)
  await_copies(bucket.unit)
  local full, joined = {}, started.joined
  for i, p in ipairs(bucket) do
    local rows, whole = bucket.rows[i], joined
    if #bucket > 1 then
      whole = joined:narrow(2, bucket.at[i] + 1, p:numel()):clone {memory_format = "contiguous"}
    end
    full[i] = core.keep(whole:view {-1}:narrow(1, 1, rows.numel):view(rows.shape))
    if rows.numel > 0 then core.set_source(full[i], function() return bucket:fetch()[i] end, p) end
  end
  return full
end

--- Returns the bucket's full tensors, gathered unless they are there and the shards have not changed since.
function Bucket:gather()
  if self.full and is_current(self, self.versions) then return self.full end
  if self.full then self:release() end
  local started = self.started
  self.started = nil
  if started and not is_current(self, started.versions) then
    await(self.unit.mesh, started, started.joined)
    started.joined:free()
    started = nil
  end
  started = started or core.no_grad(core.scope, start, self)
  self.full, self.versions = core.no_grad(core.scope, finish, self, started), started.versions
  started.joined:free()
  return self.full
end

-- Begins to gather a unit's buckets in the background, if it lets others do so; unit may be nil.
local function prefetch(unit)
  for _, bucket in ipairs(unit and unit.prefetch and unit.group.size > 1 and unit.buckets or {}) do
    if not bucket.started and not (bucket.full and is_current(bucket, bucket.versions)) then
      bucket:release()
      bucket.started = core.no_grad(core.scope, start, bucket)
    end
  end
end

--- Returns the full tensors for a node of a graph. If backward has not needed this unit's before, frees the frozen ones
--- of the unit it came from, whose node does not run, and begins to gather those of the unit that ran before this one,
--- which backward reaches next, unless no backward has needed them yet.
function Bucket:fetch()
  local unit, pass = self.unit, self.unit.pass
  local before = pass.fetched
  for _, bucket in ipairs(before and before ~= unit and not before.keeps and before.buckets or {}) do
    if not bucket[1].requires_grad then bucket:release() end
  end
  local full, next_unit = self:gather(), pass[unit.position - 1]
  pass.fetched, unit.is_fetched = unit, true
  if before ~= unit and next_unit and next_unit.is_fetched then prefetch(next_unit) end
  return full
end

--- Frees the full tensors.
function Bucket:release()
  for _, t in ipairs(self.full or {}) do t:free() end
  self.full = nil
end

-- Returns the ranks' parts of the gradients, [ranks, width], in the dtype of reductions: new memory.
local function join_gradients(bucket, grads, dtype)
  local size, device = bucket.unit.group.size, full_options(bucket).device
  local padding, flags = nil, ops.ones({bucket.width - bucket.numel}, {dtype = dtype, device = device})
  local parts = {ops.empty({0}, {dtype = dtype, device = device})} -- which joins nothing, in this dtype or a larger one
  for i, p in ipairs(bucket) do
    local n, grad = size * p:numel(), grads[i] and grads[i]:reshape {-1}
    local missing = n - (grad and grad:numel() or 0)
    if not grad then flags:narrow(1, i, 1):zero_() end
    local zeros = missing > 0 and ops.zeros({missing}, {dtype = grad and grad.dtype or dtype, device = device})
    parts[#parts + 1] = (grad and zeros and ops.cat {grad, zeros} or grad or zeros):view {size, n / size}
    local rest = (bucket.at[i + 1] or bucket.numel) - bucket.at[i] - n / size
    if rest > 0 then
      padding = padding or ops.zeros({size * (cost.part(1) - 1)}, {dtype = dtype, device = device})
      parts[#parts + 1] = padding:narrow(1, 1, size * rest):view {size, rest}
    end
  end
  parts[#parts + 1] = flags:expand {size, -1}
  return ops.cat(parts, 2):to(dtype)
end

-- Waits until a reduction's gradients have been sent, frees them, and begins to add up the sums of replicas.
local function settle(reduction)
  if not (reduction and reduction.joined) then return end
  local unit = reduction.unit
  on_side(unit, await, unit.mesh, reduction, reduction.joined, reduction.sum)
  reduction.work = unit.replicas
    and unit.mesh:call(dist.all_reduce, reduction.sum, {group = unit.replicas, async_op = true})
  reduction.joined:free()
  reduction.joined = nil
end

-- Waits until a reduction's sums are those of all ranks.
local function complete(reduction)
  settle(reduction)
  on_side(reduction.unit, await, reduction.unit.mesh, reduction, reduction.sum)
  reduction.sum:free()
end

-- Returns whether a weight is of the mesh with the groups of a list.
local function is_of(weight, list) return weight.groups[1] == list[1] and weight.groups[2] == list[2] end

-- Returns what gradients are multiplied with: this rank's part of the samples of this pass, and of those before it
-- whose gradients were neither averaged nor dropped.
local function factor_of(weight, unit)
  if weight.factor then return weight.factor end
  await(unit.mesh, weight, weight.sum)
  local size, sum, rest, is_held = weight.size, weight.sum, {}, next(gradients.held) ~= nil
  for _, w in ipairs(weight.waiting) do
    if not is_of(w, weight.groups) then
      rest[#rest + 1] = w
    elseif w ~= weight and is_held then
      await(unit.mesh, w, w.sum)
      size, sum = size + w.size, sum + w.sum
    end
  end
  for i = 1, #weight.waiting do weight.waiting[i] = rest[i] end
  weight.size, weight.factor = size, core.keep(size / sum:clamp(1e-30)) -- all batches may be empty
  return weight.factor
end

--- Begins to average the gradients of the full tensors over the ranks. Returns those of the shards, which are not there
--- yet, and the reduction, {unit, joined = the gradients, sum, work}; while the unit defers reductions, keeps the
--- gradients and returns nil. Sets link.lacks if this rank has no gradient of a parameter.
function Bucket:reduce(weight, grads, link)
  if core.is_grad_enabled() then
    fail("%s: create_graph is not supported; gradients are reduced without a graph", who)
  end
  settle(self.unit.pass.reduction) -- gradients of one unit are sent while those of the next are computed, no more
  local unit, sums, held = self.unit, {}, gradients.held -- which zero_grad drops
  for i, p in ipairs(self) do
    local grad = grads[i]
    sums[i] = grad and held[p] and held[p]:add_(grad) or held[p] or grad
    if unit.defers then held[p] = held[p] or grad and core.keep(grad:clone()) end
  end
  if unit.defers then return nil end
  local joined = join_gradients(self, sums, unit.reduce_dtype or full_options(self).dtype)
  if weight.sum then joined:mul_(factor_of(weight, unit):to(joined.device)) end
  if weight.sum and weight.size == 0 then joined:zero_() end -- the mean over no samples is NaN
  for i, p in ipairs(self) do
    link.lacks = link.lacks or not sums[i]
    gradients.drop_held(p)
  end
  local reduction, sum = {unit = unit, joined = core.keep(joined)}, joined:view {-1}
  if unit.group.size > 1 then
    sum = ops.empty({joined:size(2)}, {dtype = joined.dtype, device = joined.device})
    reduction.work = unit.mesh:call(dist.reduce_scatter_tensor, sum, joined:view {-1}, {
      group = unit.reducers, async_op = true,
    })
  end
  reduction.sum, unit.pass.reduction = core.keep(sum:detach()), reduction
  if not unit.prefetch then settle(reduction) end -- its gradients are freed before another unit is gathered
  return sum, reduction
end

-- Returns a tensor without memory of the dtype and size of a bucket's reduced gradients.
local function stand_in(bucket)
  local about = full_options(bucket)
  about.dtype = bucket.unit.reduce_dtype or about.dtype
  return ops.empty({1}, about):expand {bucket.width}
end

-- Returns a bucket's reduced gradients in its shards' dtype, where these are. From a GPU to the host they are copied on
-- the stream of copies, which does not wait for the ops that have been enqueued since.
local function to_shards(bucket, sum)
  local unit, how_shards = bucket.unit, {dtype = bucket[1].dtype, device = bucket[1].device}
  if not unit.side or how_shards.device ~= "cpu" then return sum:to(how_shards) end
  local there = core.pin_memory(ops.empty(sum.shape, how_shards), true)
  on_side(unit, there.copy_, there, sum, {non_blocking = true})
  await_copies(unit)
  return there
end

-- Returns a tensor between a bucket's shards and its full tensors, whose backward waits for the reduction that theirs
-- has begun, link.reduction. Backward runs the latest node that it can: a pass makes these nodes first, and
-- core.run_next defers them by one or two units.
local function reduced_of(bucket, link)
  local result = stand_in(bucket)
  core.custom_record("FullyShardReduced", function(grads)
    if link.reduction then complete(link.reduction) end
    link.reduction = nil
    return grads[1] and autograd.in_backward(grads, function()
      local all = to_shards(bucket, grads[1])
      local flags = link.lacks and all:narrow(1, bucket.numel + 1, #bucket):tolist()
      return lists.map(bucket, function(p, i)
        if flags and flags[i] == 0 then return false end
        return all:narrow(1, bucket.at[i] + 1, p:numel()):view(p.shape):to {device = p.device, dtype = p.dtype}
      end)
    end) or {}
  end, {unpack(bucket)}, {result}, {})
  return result
end

-- ---- forward

-- Fails on all ranks of a mesh unless they have the same lines about their parameters.
local function compare(mesh, lines)
  for _, group in ipairs(mesh.groups) do mesh:call(alike, group, who, "module differs", lines, "parameter") end
end

-- Compares a bucket's parameters with other ranks' again, since requires_grad of one, `changed`, is not as before.
local function compare_frozen(bucket, changed)
  local function name_of(p) return rows_of(p).names[1] end
  local lines = lists.map(bucket, function(p) return placement.summarize(name_of(p), p) end)
  local same, problem = pcall(compare, bucket.unit.mesh, lines)
  if same then return end
  fail("%s: this rank changed requires_grad of '%s', as all ranks must; %s", who, name_of(changed), problem)
end

local function fail_replaced(name)
  fail("%s: parameter '%s' was replaced or added; assign parameters and modules before fully_shard", who, name)
end

-- Returns {buckets, norms}, those of a unit's module with its descendants; fails if a parameter was replaced or added.
-- Walks the modules if the fields of any have changed since the last time; containers find that when they are asked.
local function survey(unit, module)
  local known = unit.within
  for _, m in ipairs(known and known.containers or {}) do records.of(m) end
  if known and known.changes == records.changes() then return known end
  local within = {buckets = {}, norms = {}, containers = {}}
  for prefix, m in module:named_modules() do
    local record = records.of(m)
    if m:is(SyncBatchNorm) then table.insert(within.norms, m) end
    if record.class.numbered then table.insert(within.containers, m) end
    for _, name in ipairs(record.param) do
      if not rows_of(record.values[name]) then fail_replaced(records.joined(prefix, name)) end
    end
    lists.append(within.buckets, unit_of(m) and unit_of(m).buckets or {})
  end
  within.changes, unit.within = records.changes(), within
  return within
end

-- Returns the pass of a call of the outermost unit: a list of the units in the order of their calls, with `size`, this
-- rank's number of samples (nil: all ranks count the same), `before`, the last pass of that unit, `norms`, its layers
-- SyncBatchNorm, `weights`, a list of what weight_of returned, tables by bucket: links, {uses, reduction}, and inputs,
-- results of reduced_of; and of backward: `fetched`, the unit whose tensors it needed last, and the last `reduction`.
local function new_pass(unit, module, ...)
  local before = unit.pass and unit.pass[1] == unit and unit.pass or nil
  local pass = {before = before, links = {}, inputs = {}, weights = {}, norms = {}}
  local step = unit.step -- {samples, weights} that the passes of a Pipeline share
  if step then pass.weights = step.weights end
  if before then before.before = nil end
  autograd.free_returned()
  if not core.is_grad_enabled() then return pass end
  if unit.batch_dim then pass.size = step and step.samples or batch_size(who, unit.batch_dim, ...) end
  local within = survey(unit, module)
  pass.norms = within.norms
  for _, bucket in ipairs(within.buckets) do
    local changed
    for i, p in ipairs(bucket) do
      if p.requires_grad ~= bucket.trains[i] then changed = p end
      bucket.trains[i] = p.requires_grad
    end
    if changed then compare_frozen(bucket, changed) end
    local link = {uses = 0}
    pass.links[bucket], pass.inputs[bucket] = link, core.keep(reduced_of(bucket, link))
  end
  return pass
end

-- Returns {groups, size, sum, waiting}: a mesh's groups, the number of this rank's samples in the pass, `sum`, that of
-- all its ranks once `work` is done, and the weights of passes whose backward has begun, which no average has counted.
-- Without sum there is one rank, or no gradient.
local function weight_of(pass, unit)
  local mesh, size = unit.mesh, pass.size
  for _, weight in ipairs(pass.weights) do
    if is_of(weight, mesh.groups) then return weight end
  end
  local weight = {groups = mesh.groups, size = size or 1}
  if not core.is_grad_enabled() or unit.ranks == 1 then return weight end
  table.insert(pass.weights, weight)
  pass[1].waiting = pass[1].waiting or {}
  weight.waiting = unit.step and {} or pass[1].waiting
  weight.sum = core.keep(ops.full({}, size or unit.ranks, {dtype = "float64", device = unit.device}))
  for _, group in ipairs(size and mesh.groups or {}) do
    if weight.work then await(mesh, weight) end
    weight.work = group.size > 1 and run_async(unit, "all_reduce", group, "sum", weight.sum)
  end
  return weight
end

-- Converts the floating tensors among values, in tables too, to dtype.
local function cast(values, dtype)
  for i = 1, values.n do
    local is_cast = false
    local value = map_tensors(values[i], function(t)
      if not t:is_floating_point() or t.dtype == dtype then return t end
      is_cast = true
      return t:to(dtype)
    end)
    if is_cast then values[i] = value end -- else a table stays itself, to which forward may write
  end
end

-- Returns a bucket's full tensors, tied to its shards by a node whose backward begins to reduce their gradients.
local function gathered(bucket, pass, weight)
  local link, input, full = pass.links[bucket], pass.inputs[bucket], {}
  for i, t in ipairs(bucket:gather()) do full[i] = t:detach() end
  if not core.is_grad_enabled() then return full end
  if pass.is_over then -- backward runs a checkpoint's function again
    input = stand_in(bucket):requires_grad_(lists.find(bucket, function(p) return p.requires_grad end) ~= nil)
  elseif link then
    link.uses = link.uses + 1
  end
  core.custom_record("FullyShard", function(grads)
    if weight.sum and not weight.is_counted then table.insert(weight.waiting, weight) end -- in the next average
    weight.is_counted = true
    if not bucket.unit.keeps then bucket:release() end -- all nodes that read the tensors have run
    return autograd.in_backward(grads, function()
      local sum, reduction = bucket:reduce(weight, grads, link)
      link.reduction = reduction
      if sum and link.uses > 1 then complete(reduction) end -- the graph adds sums of several uses up
      return {sum}
    end)
  end, {input}, full, {})
  return full
end

-- Puts full tensors, which full_of(bucket, pass, weight) returns, into the unit's modules. Adds to `entries` what they
-- replace, {tensor, version, parameter, fields, name, the value before}.
local function install(unit, entries, full_of, pass, weight)
  unit.depth, entries.unit = unit.depth + 1, unit
  for _, bucket in ipairs(unit.buckets) do
    for i, t in ipairs(full_of(bucket, pass, weight)) do
      core.keep(t)
      for _, slot in ipairs(bucket.slots[i]) do
        local values, name = slot[1].values, slot[2]
        if unit.depth == 1 and values[name] ~= bucket[i] then fail_replaced(name) end
        entries[#entries + 1] = {t, t._version, bucket[i], values, name, values[name]}
        values[name] = t
      end
    end
  end
end

-- Adds a value, and those in it if it is a plain table, to a set.
local function add_within(set, v)
  if v == nil or type(v) == "number" or set[v] then return end
  set[v] = true
  if options.is_plain(v) then
    for _, each in pairs(v) do add_within(set, each) end
  end
end

-- Restores the modules after install, and frees the tensors, except those in a list, the results of forward. Returns
-- the parameter of one that forward changed, or nil.
local function remove(entries, results)
  local kept, changed = {}, nil
  for i = 1, results and results.n or 0 do add_within(kept, results[i]) end
  for i = #entries, 1, -1 do
    local t, version, p, values, name, before = unpack(entries[i], 1, 6)
    values[name] = before
    if results and t._version ~= version then changed = p end
  end
  for i, entry in ipairs(entries) do
    if not kept[entry[1]] then entry[1]:free() end
    kept[entry[1]], entries[i] = true, nil
  end
  if entries.unit then entries.unit.depth = entries.unit.depth - 1 end
  entries.unit = nil
  return changed
end

-- Returns a boundaries.runner_of that puts the unit's full tensors into the modules too, for backward, which runs a
-- checkpoint's function f again; `outer` is that of the unit around it. A call of a unit does so itself.
local function runner_with(unit, outer)
  return function(f)
    local outer_runner, record = outer(f), options.record(f)
    if record and record.unit then return outer_runner end
    return function(again, ...)
      local entries = {}
      return outer_runner(options.restoring, function() remove(entries) end, function(...)
        install(unit, entries, function(bucket) -- as leaves
          return lists.map(bucket:fetch(), function(t, i) return t:detach():requires_grad_(bucket[i].requires_grad) end)
        end)
        return again(...)
      end, ...)
    end
  end
end

-- Lets backward take the reduced gradients of a unit, or nil, before it reduces those of the units that run before.
local function take_next(pass, unit)
  for _, bucket in ipairs(unit and unit.buckets or {}) do
    local link = pass.links[bucket]
    if link and link.uses == 0 then core.run_next(pass.inputs[bucket]) end
  end
end

-- Calls forward with full tensors in the unit's modules.
local function run(unit, module, forward, ...)
  local outer, outer_runner_of, entries, results = active, boundaries.runner_of, {}, nil
  local _, again = core.is_checkpointing()
  again = again and unit.pass and unit.pass[1] ~= unit -- the pass of its first run
  local pass = outer or again and unit.pass or new_pass(unit, module, ...)
  active, again, boundaries.runner_of = pass, pass.is_over, runner_with(unit, outer_runner_of)
  for _, norm in ipairs(pass.norms) do norm.batch_share = pass.size end -- as of DistributedDataParallel
  local function leave()
    active, boundaries.runner_of = outer, outer_runner_of
    local changed = remove(entries, results)
    if not outer then
      for _, norm in ipairs(pass.norms) do norm.batch_share = nil end
      autograd.free_all(pass.inputs)
      pass.is_over = true
    end
    local keeps = core.is_grad_enabled() and (again or unit.reshard == false or unit.reshard == nil and not outer)
    if changed or not (unit.depth > 0 or keeps or unit.keeps and not unit.reshard) then
      for _, bucket in ipairs(unit.buckets) do bucket:release() end
    end
    if changed then
      fail("%s: %s was changed in place in forward, which changes no shard; change parameters outside of forward", who,
        rows_of(changed).names[1])
    end
  end
  local scope = core.is_grad_enabled() and core.enable_grad or core.no_grad
  local ok, problem = pcall(scope, function(...)
    if not again then pass[#pass + 1], unit.position, unit.pass = unit, #pass + 1, pass end
    local before = not again and pass.before
    if not pass.before and not again then take_next(pass, unit) end
    -- the ranks' numbers of samples are sent before any parameter
    install(unit, entries, gathered, pass, weight_of(pass, unit))
    if before then
      prefetch(before[unit.position + 1])
      take_next(pass, before[unit.position + (unit.replicas and 2 or 1)])
    end
    local inputs = options.pack(...)
    if unit.cast_inputs and unit.param_dtype then cast(inputs, unit.param_dtype) end
    results = options.pack(own.call(forward, module, unpack(inputs, 1, inputs.n)))
    if unit.output_dtype then cast(results, unit.output_dtype) end
    leave()
  end, ...)
  if ok then return unpack(results, 1, results.n) end
  leave()
  error(problem, 0)
end

-- ---- making a unit

-- Makes calls of a part of a unit fail while the unit does not run: it would compute with this rank's rows.
local function guard(unit, part, name, module)
  local record = records.of(part)
  local forward = rawget(record.values, "forward")
  record.guarded = {forward = forward} -- for fuse_layers
  record.values.forward = function(...)
    local f = forward or record.class.forward
    if unit.depth > 0 and own.is[f] then return f(...) end
    if unit.depth > 0 then return own.call(f, ...) end
    fail("%s: '%s' is a part of %s, which gathers its parameters while it runs; call that, name a method of it in "
      .. "{methods = {…}}, or shard '%s' in a call of its own", who, name, module.__name, name)
  end
end

-- Returns the unit's parameters, {t, names, slots = {{record, name}, …}} each, and its other modules with parameters,
-- {module, name} each.
local function collect(module)
  local entries, of, parts, seen = {}, {}, {}, {}
  local function walk(m, prefix)
    if m ~= module and unit_of(m) then return end
    local again = seen[m] -- a module that is there twice has two names, but its parameters are put into it once
    seen[m] = true
    records.check_sized(who, m)
    if m:is(DDP) then fail("%s: DistributedDataParallel averages gradients itself; shard the module in it", who) end
    local record = records.of(m)
    for _, name in ipairs(record.param) do
      local t = record.values[name]
      local full_name = records.joined(prefix, name)
      if rows_of(t) then
        fail("%s: '%s' of this %s is '%s' of a %s that is sharded already; shard both modules in one call", who,
          full_name, module.__name, rows_of(t).names[1], rows_of(t).owner or "module")
      end
      if not of[t] then
        of[t] = {t = t, slots = {}, names = {}}
        entries[#entries + 1] = of[t]
      end
      if not again then table.insert(of[t].slots, {record, name}) end
      table.insert(of[t].names, full_name)
    end
    for _, name in ipairs(record.child) do walk(record.values[name], records.joined(prefix, name)) end
    if m ~= module and not again and #record.param > 0 then parts[#parts + 1] = {m, prefix} end
  end
  walk(module, "")
  return entries, parts
end

-- Replaces each parameter by this rank's rows of it. Returns buckets of parameters that are gathered together.
local function make_buckets(unit, entries)
  local open, buckets = {}, {}
  for _, entry in ipairs(entries) do
    local p = entry.t
    local key = ("%s %s %s"):format(p.dtype, p.device, tostring(p.requires_grad))
    local bucket = open[key]
    if not bucket or #bucket == MOST then
      bucket = setmetatable({unit = unit, slots = {}, rows = {}, trains = {}}, Bucket)
      open[key], buckets[#buckets + 1] = bucket, bucket
    end
    local rows = {dim = 1, mesh = unit.mesh, names = entry.names, owner = unit.owner, device = unit.device}
    core.no_grad(core.scope, function()
      placement.broadcast(unit.mesh, p:detach())
      placement.divide(p, rows, unit.offload and "cpu" or nil)
    end)
    table.insert(bucket, p)
    table.insert(bucket.rows, rows)
    table.insert(bucket.slots, entry.slots)
    table.insert(bucket.trains, p.requires_grad)
  end
  for _, bucket in ipairs(buckets) do core.no_grad(core.scope, lay_out, bucket) end
  return buckets
end

-- Returns the group of a unit's reductions. On GPUs each collective waits for the start of the one before it, of any
-- group (set_environment of nccl/comm.c): in other dims for a gather's, which no reduction on its stream may delay.
local function reducers_of(unit)
  local mesh, device = unit.mesh, unit.buckets[1] and full_options(unit.buckets[1]).device or "cpu"
  local function divided(of) return #lists.filter(of.shape, function(n) return n > 1 end) end
  if device:find "^cpu" or unit.group.size == 1 or divided(mesh) == divided(mesh.whole) then return unit.group end
  local reducers, is_new = groups.twin(unit.group)
  if is_new then mesh:call(dist.all_reduce, ops.zeros({1}, {device = device}), {group = reducers}) end -- connects ranks
  return reducers
end

local sides = setmetatable({}, {__index = function(known, device) -- numbers of streams for copies to and from the host
  known[device] = core.stream_new(device, 0)
  return known[device]
end})

-- Returns the mesh, or by default that of all ranks, which their group keeps.
local function mesh_of(mesh, device)
  if mesh ~= nil then
    device_mesh.check(who, mesh, 2)
    return mesh
  end
  local all = groups.need(who)
  all.mesh = all.mesh or dist.init_device_mesh(device:match "^%a+", {all.size}, {names = {"shard"}})
  return all.mesh
end

-- A method that the module gets: calls f(...), within which gradients are not reduced; the next backward pass after it
-- reduces them with its own.
local function no_sync(self, f, ...)
  options.arg("no_sync", "the first argument", f, "function")
  local units = {}
  for _, m in ipairs(self:modules()) do units[#units + 1] = unit_of(m) end
  for _, unit in ipairs(units) do unit.defers = true end
  return options.restoring(function()
    for _, unit in ipairs(units) do unit.defers = nil end
  end, f, ...)
end

--- Shards a module's parameters over ranks by rows; they are gathered while the module runs.
return signature.of([[fully_shard(module: module, {mesh, reshard_after_forward: boolean, mixed_precision: table,
  offload = false, *, batch_dim: count|false = 1, reshard_after_backward = true, prefetch = true,
  methods: string[]})]],
  function(module, opts)
  local record = records.of(module)
  if record.unit then fail("%s: the module is sharded already", who) end
  local precision = options.check(who .. ": mixed_precision", opts.mixed_precision,
    "{param_dtype: string, reduce_dtype: string, output_dtype: string, cast_forward_inputs = true}")
  for _, key in ipairs {"param_dtype", "reduce_dtype", "output_dtype"} do
    precision[key] = precision[key] and core.dtype(precision[key], who)
    if precision[key] and not core.is_floating_point(precision[key]) then
      options.must_be(who, "mixed_precision." .. key, "floating", precision[key])
    end
  end
  if module.forward == Module.forward and not opts.methods then
    fail("%s: %s has no forward; shard each of its modules, or the module that calls them", who, module.__name)
  end
  local entries, parts = collect(module)
  local first = module:parameters()[1]
  local device = not first and "cpu" or rows_of(first) and rows_of(first).device or first.device
  local mesh = mesh_of(opts.mesh, device)
  placement.check_experts(who, module, mesh.groups)
  for _, group in ipairs(mesh.groups) do
    for _, entry in ipairs(entries) do placement.check_replicas(who, entry.names[1], entry.t, group) end
  end
  compare(mesh, lists.map(entries, function(entry) return placement.summarize(entry.names[1], entry.t) end))
  local unit = {
    mesh = mesh, group = mesh.groups[mesh.ndim], owner = module.__name,
    device = device, depth = 0, reshard = opts.reshard_after_forward,
    replicas = mesh.ndim == 2 and mesh.groups[1].size > 1 and mesh.groups[1] or nil, offload = opts.offload,
    batch_dim = opts.batch_dim, param_dtype = precision.param_dtype, reduce_dtype = precision.reduce_dtype,
    output_dtype = precision.output_dtype, cast_inputs = precision.cast_forward_inputs,
    side = opts.offload and device:match "^cuda" and sides[device] or nil,
    keeps = not opts.reshard_after_backward, prefetch = opts.prefetch, ranks = mesh:size(),
  }
  local number = placement.note_names(who, mesh.groups[1], module)
  unit.title = ("fully_shard: the unit of call %d (%s)"):format(number, module.__name)
  placement.fill(who, module)
  unit.buckets = make_buckets(unit, entries)
  unit.reducers = reducers_of(unit)
  local forward = rawget(record.values, "forward")
  record.values.forward = function(self, ...) return run(unit, self, forward or record.class.forward, ...) end
  for i, name in ipairs(opts.methods or {}) do
    local method = module[name]
    if type(method) ~= "function" then
      options.must_be(who, ("methods[%d]"):format(i), "the name of a method of " .. module.__name, name)
    end
    record.values[name] = function(self, ...) return run(unit, self, method, ...) end
  end
  for _, part in ipairs(parts) do guard(unit, part[1], part[2], module) end
  record.unit, record.values.no_sync = unit, no_sync
  record.on_clone = function() fail("clone: a module of fully_shard cannot be cloned; clone it before") end
  return module
end)

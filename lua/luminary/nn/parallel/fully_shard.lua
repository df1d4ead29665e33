--- nn.parallel.fully_shard(…): Shards a module's parameters over ranks by rows, and gathers them while they are used.
--- Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models", 2020, stages 1 to 3;
--- the contract is that of PyTorch's FSDP2.
---
--- A unit is a module of a call of fully_shard. It holds the parameters of its descendants that belong to no unit of
--- their own, in buckets, each gathered by one collective. Forward puts the gathered tensors, results of the function
--- Gather, into the modules. Nodes of the graph save no reference to their memory: it is freed after forward, and
--- gathered again when backward first needs it (core.set_source), or kept. Gather's backward reduces the gradients.
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
local shards = require "luminary.nn.parallel.shards"

local ops, fail, pack, who = core.ops, options.fail, options.pack, "fully_shard"
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
    unit.titles[group])
end

-- Returns the dtype and device of the bucket's full tensors.
local function how(bucket)
  local unit, p = bucket.unit, bucket[1]
  return {
    dtype = p:is_floating_point() and unit.param_dtype or p.dtype, device = unit.offload and unit.device or p.device,
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
-- elements before each, `pointers`, their addresses, and `numel`, the number of all elements.
local function lay_out(bucket)
  bucket.at, bucket.numel, bucket.pointers = {}, 0, {}
  for i, p in ipairs(bucket) do
    bucket.at[i] = bucket.numel
    bucket.numel = bucket.numel + (#bucket > 1 and cost.part(p:numel()) or p:numel())
  end
  bucket.flat = pack_shards(bucket)
  if bucket.unit.side then bucket.flat = core.pin_memory(bucket.flat) end
  core.keep(bucket.flat)
  for i, p in ipairs(bucket) do
    core.set_data(p, core.part(bucket.flat, bucket.at[i], p:numel()):view(p.shape))
    bucket.pointers[i] = p:data_ptr()
  end
end

-- Returns the tensor of which the bucket's shards are parts, or a copy of them once one was replaced or converted.
local function flat_of(bucket)
  for i, p in ipairs(bucket) do
    if p:data_ptr() ~= bucket.pointers[i] or not p:is_contiguous() then bucket.flat = nil end
  end
  return bucket.flat or pack_shards(bucket)
end

-- Waits for the work of a table, if it has one: its group's last use of these tensors.
local function await(mesh, started, ...)
  if started.work then mesh:call(core.dist_wait, started.work, ...) end
  started.work = nil
end

-- Starts to gather the bucket. Returns {joined = [ranks, elements of a shard], versions, work}.
local function start(bucket)
  for _, p in ipairs(bucket) do shards.check_rows(p) end
  local group, row = bucket.unit.group, flat_of(bucket)
  local joined = core.keep(ops.empty({group.size, bucket.numel}, how(bucket)))
  local started = {joined = joined, versions = lists.map(bucket, function(p) return p._version end)}
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
    local about, whole = shards.of[p], joined
    if #bucket > 1 then
      whole = joined:narrow(2, bucket.at[i] + 1, p:numel()):clone {memory_format = "contiguous"}
    end
    full[i] = core.keep(whole:view {-1}:narrow(1, 1, about.numel):view(about.shape))
    if about.numel > 0 then core.set_source(full[i], function() return bucket:fetch()[i] end, p) end
  end
  return full
end

--- Returns the bucket's full tensors, gathered unless they are there and the shards have not changed since.
function Bucket:gather()
  if self.full and is_current(self, self.versions) then return self.full end
  self:release()
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
--- of the unit it came from, for which Gather's backward does not run, and begins to gather those of the unit that ran
--- before this one, which backward reaches next, unless no backward has needed them yet.
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

-- Returns the ranks' parts of the gradients, [ranks, elements of a shard], in the dtype of reductions: new memory.
local function join_gradients(bucket, grads, dtype)
  local size, device = bucket.unit.group.size, how(bucket).device
  local padding -- zeros
  local parts = {ops.empty({0}, {dtype = dtype, device = device})} -- which joins nothing, in this dtype or a larger one
  for i, p in ipairs(bucket) do
    local n, grad = size * p:numel(), grads[i] and grads[i]:reshape {-1}
    local missing = n - (grad and grad:numel() or 0)
    local zeros = missing > 0 and ops.zeros({missing}, {dtype = grad and grad.dtype or dtype, device = device})
    parts[#parts + 1] = (grad and zeros and ops.cat {grad, zeros} or grad or zeros):view {size, n / size}
    local rest = (bucket.at[i + 1] or bucket.numel) - bucket.at[i] - n / size
    if rest > 0 then
      padding = padding or ops.zeros({size * (cost.part(1) - 1)}, {dtype = dtype, device = device})
      parts[#parts + 1] = padding:narrow(1, 1, size * rest):view {size, rest}
    end
  end
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

-- Counts a pass, by its result of weight_of, in the next average: its backward runs.
local function count(weight)
  if weight.sum and not weight.is_counted then table.insert(weight.waiting, weight) end
  weight.is_counted = true
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
--- gradients and returns nil.
function Bucket:reduce(weight, grads)
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
  local joined = join_gradients(self, sums, unit.reduce_dtype or how(self).dtype)
  if weight.sum then joined:mul_(factor_of(weight, unit):to(joined.device)) end
  if weight.sum and weight.size == 0 then joined:zero_() end -- the mean over no samples is NaN
  for _, p in ipairs(self) do gradients.drop_held(p) end
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
  local about = how(bucket)
  about.dtype = bucket.unit.reduce_dtype or about.dtype
  return ops.empty({1}, about):expand {bucket.numel}
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

-- Is between a bucket's shards and Gather. Its backward waits for the reduction that Gather's has begun. Backward runs
-- the latest node that it can: a pass makes these nodes first, and core.run_next defers them by one or two units.
local Reduced = autograd.Function:extend "FullyShardReduced"

function Reduced.forward(ctx, bucket, link)
  ctx:set_materialize_grads(false)
  ctx.bucket, ctx.link = bucket, link
  return stand_in(bucket)
end

function Reduced.backward(ctx, sum)
  local bucket, results = ctx.bucket, {}
  if ctx.link.reduction then complete(ctx.link.reduction) end
  ctx.link.reduction = nil
  if sum then
    results = autograd.in_backward({sum}, function()
      local all = to_shards(bucket, sum)
      return lists.map(bucket, function(p, i)
        return all:narrow(1, bucket.at[i] + 1, p:numel()):view(p.shape):to {device = p.device, dtype = p.dtype}
      end)
    end)
  end
  return nil, nil, unpack(results, 1, #bucket)
end

-- Computes full tensors from shards.
local Gather = autograd.Function:extend "FullyShard"

function Gather.forward(ctx, bucket, weight, link)
  ctx:set_materialize_grads(false)
  ctx.bucket, ctx.weight, ctx.link = bucket, weight, link
  return unpack(lists.map(bucket:gather(), function(t) return t:detach() end))
end

function Gather.backward(ctx, ...)
  local bucket, link, grads = ctx.bucket, ctx.link, {...}
  count(ctx.weight)
  if not bucket.unit.keeps then bucket:release() end -- all nodes that read the tensors have run
  return nil, nil, nil, autograd.in_backward(grads, function()
    local sum, reduction = bucket:reduce(ctx.weight, grads)
    link.reduction = reduction
    if sum and link.uses > 1 then complete(reduction) end -- the graph adds sums of several uses up
    return {sum}
  end)[1]
end

-- ---- forward

-- Fails on all ranks of a mesh unless they have the same lines about their parameters.
local function compare(mesh, lines)
  for _, group in ipairs(mesh.groups) do mesh:call(alike, group, who, "module differs", lines, "parameter") end
end

-- Compares a bucket's parameters with other ranks' again if some were frozen, or no longer are, since the last time.
local function check_frozen(bucket)
  local lines, changed = {}, nil
  for i, p in ipairs(bucket) do
    if p.requires_grad ~= bucket.trains[i] then changed = shards.of[p].names[1] end
    bucket.trains[i] = p.requires_grad
  end
  if not changed then return end
  for i, p in ipairs(bucket) do lines[i] = shards.summarize(shards.of[p].names[1], p) end
  local same, problem = pcall(compare, bucket.unit.mesh, lines)
  if not same then fail("%s: this rank changed requires_grad of '%s', as all ranks must; %s", who, changed, problem) end
end

local function refuse_replaced(name)
  fail("%s: parameter '%s' was replaced or added; assign parameters and modules before fully_shard", who, name)
end

-- Returns the pass of a call of the outermost unit: a list of the units in the order of their calls, with `size`, this
-- rank's number of samples (nil: all ranks count the same), `before`, the last pass of that unit, `norms`, its layers
-- SyncBatchNorm, `weights`, a list of what weight_of returned, tables by bucket: links, {uses, reduction}, and inputs,
-- results of Reduced; and of backward: `fetched`, the unit whose tensors it needed last, and `reduction`, which began
-- last.
local function new_pass(unit, module, ...)
  local before = unit.pass and unit.pass[1] == unit and unit.pass or nil
  local pass = {before = before, links = {}, inputs = {}, weights = {}, norms = {}}
  local step = unit.step -- {samples, weights} that the passes of a Pipeline share
  if step then pass.weights = step.weights end
  if before then before.before = nil end
  autograd.free_returned()
  if not core.is_grad_enabled() then return pass end
  if unit.batch_dim then pass.size = step and step.samples or batch_size(who, unit.batch_dim, ...) end
  for prefix, m in module:named_modules() do
    local record = records.of(m)
    if m:is(SyncBatchNorm) then table.insert(pass.norms, m) end
    for _, name in ipairs(record.param) do
      if not shards.of[record.values[name]] then refuse_replaced(records.joined(prefix, name)) end
    end
    for _, bucket in ipairs(unit_of(m) and unit_of(m).buckets or {}) do
      check_frozen(bucket)
      pass.links[bucket] = {uses = 0}
      pass.inputs[bucket] = core.keep(Reduced(bucket, pass.links[bucket], unpack(bucket)))
    end
  end
  return pass
end

-- Returns {groups, size, sum, waiting}: a mesh's groups, the number of this rank's samples in the pass, `sum`, that of
-- all its ranks once `work` is done, and the weights of passes whose backward has begun, which no average has counted.
-- Without sum there is one rank, or no gradient.
local function weight_of(pass, unit)
  local mesh, size = unit.mesh, pass.size
  local weight = lists.find(pass.weights, function(w) return is_of(w, mesh.groups) end)
  if weight then return weight end
  weight = {groups = mesh.groups, size = size or 1}
  if not core.is_grad_enabled() or mesh:size() == 1 then return weight end
  table.insert(pass.weights, weight)
  pass[1].waiting = pass[1].waiting or {}
  weight.waiting = unit.step and {} or pass[1].waiting
  weight.sum = core.keep(ops.full({}, size or mesh:size(), {dtype = "float64", device = unit.device}))
  for _, group in ipairs(size and mesh.groups or {}) do
    await(mesh, weight)
    weight.work = group.size > 1 and run_async(unit, "all_reduce", group, "sum", weight.sum)
  end
  return weight
end

local function cast(values, dtype)
  if not dtype then return values end
  for i = 1, values.n do
    local is_cast = false
    local value = map_tensors(values[i], function(t)
      if not t:is_floating_point() or t.dtype == dtype then return t end
      is_cast = true
      return t:to(dtype)
    end)
    if is_cast then values[i] = value end -- else a table stays itself, to which forward may write
  end
  return values
end

-- Returns a bucket's full tensors, as results of Gather.
local function gathered(bucket, pass)
  local link, input, weight = pass.links[bucket], pass.inputs[bucket], weight_of(pass, bucket.unit)
  if pass.is_over and core.is_grad_enabled() then -- backward runs a checkpoint's function again
    input = stand_in(bucket):requires_grad_(lists.find(bucket, function(p) return p.requires_grad end) ~= nil)
  end
  if not pass.is_over and link then link.uses = link.uses + 1 end
  return {Gather(bucket, weight, link, input)}
end

-- Adds a value, and those in it if it is a plain table, to a set.
local function add_within(set, v)
  if v == nil or type(v) == "number" or set[v] then return end
  set[v] = true
  if options.is_plain(v) then
    for _, each in pairs(v) do add_within(set, each) end
  end
end

-- Returns two functions. The first puts full tensors, results of full_of(bucket, pass), into the unit's modules. The
-- second restores the modules, and frees these tensors, except those in a list, the results of forward; it returns the
-- parameter of one that forward changed, or nil.
local function exchange(unit)
  local before, entries, is_in = {}, {}, false -- entries: of the tensors, {t, version, parameter}
  local function install(full_of, pass)
    is_in, unit.depth = true, unit.depth + 1
    for _, record in ipairs(unit.parts) do
      lists.append(before, {{record, "__call", record.__call}, {record.values, "forward", record.values.forward}})
      record.__call, record.values.forward = record.first_call, record.first_forward
    end
    for _, bucket in ipairs(unit.buckets) do
      for i, t in ipairs(full_of(bucket, pass)) do
        entries[#entries + 1] = {core.keep(t), t._version, bucket[i]}
        for _, slot in ipairs(bucket.slots[i]) do
          if unit.depth == 1 and slot[1].values[slot[2]] ~= bucket[i] then
            refuse_replaced(slot[2])
          end
          before[#before + 1] = {slot[1].values, slot[2], slot[1].values[slot[2]]}
          slot[1].values[slot[2]] = t
        end
      end
    end
  end
  return install, function(results)
    if is_in then unit.depth = unit.depth - 1 end
    for i = #before, 1, -1 do
      local values, name, value = unpack(before[i])
      values[name] = value
    end
    local kept, changed = {}, nil
    add_within(kept, results)
    for _, entry in ipairs(entries) do
      local t, version, p = unpack(entry)
      if results and t._version ~= version then changed = p end
      if not kept[t] then t:free() end
    end
    before, entries, is_in = {}, {}, false
    return changed
  end
end

-- Returns a bucket's full tensors as leaves, for backward, which runs a part of the unit's forward again.
local function leaves_of(bucket)
  return lists.map(bucket:fetch(), function(t, i) return t:detach():requires_grad_(bucket[i].requires_grad) end)
end

-- Returns a boundaries.runner_of that puts the unit's full tensors into the modules too. A unit does that itself.
local function runner_with(unit, outer)
  return function(f)
    local outer_runner, record = outer(f), options.record(f)
    if record and record.unit then return outer_runner end
    return function(again, ...)
      local install, remove = exchange(unit)
      return outer_runner(options.restoring, remove, function(...)
        install(leaves_of)
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

local function run(unit, module, forward, ...)
  local outer, outer_runner_of, results = active, boundaries.runner_of, nil
  local install, remove = exchange(unit)
  local _, again = core.is_checkpointing()
  again = again and unit.pass and unit.pass[1] ~= unit -- the pass of its first run
  local pass = outer or again and unit.pass or new_pass(unit, module, ...)
  active, again, boundaries.runner_of = pass, pass.is_over, runner_with(unit, outer_runner_of)
  for _, norm in ipairs(pass.norms) do norm.batch_share = pass.size end -- as of DistributedDataParallel
  local inside = true
  local function leave()
    if not inside then return end
    inside, active, boundaries.runner_of = false, outer, outer_runner_of
    local changed = remove(results)
    for _, norm in ipairs(outer and {} or pass.norms) do norm.batch_share = nil end
    if not outer then
      autograd.free_all(pass.inputs)
      pass.is_over = true
    end
    local keeps = core.is_grad_enabled() and (again or unit.reshard == false or unit.reshard == nil and not outer)
    if changed or not (unit.depth > 0 or keeps or unit.keeps and not unit.reshard) then
      for _, bucket in ipairs(unit.buckets) do bucket:release() end
    end
    if changed then
      fail("%s: %s was changed in place in forward, which changes no shard; change parameters outside of forward", who,
        shards.of[changed].names[1])
    end
  end
  return options.restoring(leave, function(...)
    if not again then pass[#pass + 1], unit.position, unit.pass = unit, #pass + 1, pass end
    local before = not again and pass.before
    if not pass.before and not again then take_next(pass, unit) end
    weight_of(pass, unit) -- the ranks' numbers of samples are sent before any parameter
    install(gathered, pass)
    if before then
      prefetch(before[unit.position + 1])
      take_next(pass, before[unit.position + (unit.replicas and 2 or 1)])
    end
    local inputs = cast(pack(...), unit.cast_inputs and unit.param_dtype)
    results = cast(pack(own.call(forward, module, unpack(inputs, 1, inputs.n))), unit.output_dtype)
    return unpack(results, 1, results.n)
  end, ...)
end

-- ---- making a unit

-- Makes calls of a part of a unit fail while the unit does not run: it would compute with this rank's rows.
local function refuse_calls(part, name, module)
  local record = records.of(part)
  local function refuse()
    fail("%s: '%s' is a part of %s, which gathers its parameters while it runs; call that, name a method of it in "
      .. "{methods = {…}}, or shard '%s' in a call of its own", who, name, module.__name, name)
  end
  records.set_call(part, refuse)
  record.first_forward, record.values.forward = rawget(record.values, "forward"), refuse
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
      if shards.of[t] then
        fail("%s: '%s' of this %s is '%s' of a %s that is sharded already; shard both modules in one call", who,
          full_name, module.__name, shards.of[t].names[1], shards.of[t].owner or "module")
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
      bucket = setmetatable({unit = unit, slots = {}, trains = {}}, Bucket)
      open[key], buckets[#buckets + 1] = bucket, bucket
    end
    local about = shards.describe(lists.slice(p.shape), unit.group)
    about.names, about.owner, about.mesh, about.device = entry.names, unit.owner, unit.mesh, unit.device
    core.no_grad(core.scope, function()
      local full = p:detach():contiguous()
      shards.broadcast(unit.mesh, full)
      p.grad = nil
      core.set_data(p, shards.cut(about, full):to(unit.offload and "cpu" or p.device))
    end)
    shards.of[p] = about
    table.insert(bucket, p)
    table.insert(bucket.slots, entry.slots)
    table.insert(bucket.trains, p.requires_grad)
  end
  for _, bucket in ipairs(buckets) do core.no_grad(core.scope, lay_out, bucket) end
  return buckets
end

-- Returns the group of a unit's reductions. On GPUs each collective waits for the start of the one before it, of any
-- group (set_environment of nccl/comm.c): in other dims for a gather's, which no reduction on its stream may delay.
local function reducers_of(unit)
  local mesh, device = unit.mesh, unit.buckets[1] and how(unit.buckets[1]).device or "cpu"
  local function divided(of) return #lists.filter(of.shape, function(n) return n > 1 end) end
  if device:find "^cpu" or unit.group.size == 1 or divided(mesh) == divided(mesh.whole) then return unit.group end
  local reducers, is_new = groups.twin(unit.group)
  if is_new then mesh:call(dist.all_reduce, ops.zeros({1}, {device = device}), {group = reducers}) end -- connects ranks
  return reducers
end

local side_of = {} -- the number of the stream of copies to and from the host, by device

-- Returns the number of a GPU's stream of copies.
local function side_stream(device)
  side_of[device] = side_of[device] or core.stream_new(device, 0)
  return side_of[device]
end

-- Maps a group to the number of calls of fully_shard over it.
local calls = setmetatable({}, {__mode = "k"})

-- Returns the texts, by group of a mesh, that name the unit of this call in errors of collectives.
local function titles_of(mesh, module)
  local titles = {}
  for _, group in ipairs(mesh.groups) do
    calls[group] = (calls[group] or 0) + 1
    titles[group] = ("fully_shard: the unit of call %d (%s)"):format(calls[group], module.__name)
  end
  return titles
end

local default_mesh -- the mesh of all ranks, with its group

local function mesh_of(mesh, device)
  if mesh ~= nil then
    device_mesh.check(who, mesh, 2)
    return mesh
  end
  local default = groups.need(who)
  if not default_mesh or default_mesh.groups[1] ~= default then
    default_mesh = dist.init_device_mesh(device:match "^%a+", {default.size}, {names = {"shard"}})
  end
  return default_mesh
end

local precision_options = {
  param_dtype = {"string"}, reduce_dtype = {"string"}, output_dtype = {"string"},
  cast_forward_inputs = {"boolean", true},
}

-- Methods that the module gets.
local methods = {}

-- Calls f(...), within which gradients are not reduced: the next backward pass after it reduces them with its own.
function methods.no_sync(self, f, ...)
  options.arg("no_sync", "the first argument", f, "function")
  local units = {}
  for _, m in ipairs(self:modules()) do units[#units + 1] = unit_of(m) end
  for _, unit in ipairs(units) do unit.defers = true end
  return options.restoring(function()
    for _, unit in ipairs(units) do unit.defers = nil end
  end, f, ...)
end

-- Replaces full tensors in a dict by this rank's rows.
local function cut_full(unit, dict, prefix)
  for _, bucket in ipairs(unit.buckets) do
    for _, p in ipairs(bucket) do
      for _, name in ipairs(shards.of[p].names) do
        dict[prefix .. name] = shards.own_rows(p, dict[prefix .. name])
      end
    end
  end
end

--- Shards a module's parameters over ranks by rows; they are gathered while the module runs.
return signature.of([[fully_shard(module: module, {mesh, reshard_after_forward: boolean, mixed_precision: table,
  offload = false, *, batch_dim: count|false = 1, reshard_after_backward = true, prefetch = true,
  methods: string[]})]],
  function(module, opts)
  local record = records.of(module)
  if record.unit then fail("%s: the module is sharded already", who) end
  local precision = options.check(who .. ": mixed_precision", opts.mixed_precision, precision_options)
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
  local device = not first and "cpu" or shards.of[first] and shards.of[first].device or first.device
  local mesh = mesh_of(opts.mesh, device)
  shards.check_experts(who, module, mesh.groups)
  for _, group in ipairs(mesh.groups) do
    for _, entry in ipairs(entries) do shards.check_replicas(who, entry.names[1], entry.t, group) end
  end
  compare(mesh, lists.map(entries, function(entry) return shards.summarize(entry.names[1], entry.t) end))
  local unit = {
    mesh = mesh, titles = titles_of(mesh, module), group = mesh.groups[mesh.ndim], owner = module.__name,
    device = device, depth = 0, reshard = opts.reshard_after_forward,
    replicas = mesh.ndim == 2 and mesh.groups[1].size > 1 and mesh.groups[1] or nil, offload = opts.offload,
    batch_dim = opts.batch_dim, param_dtype = precision.param_dtype, reduce_dtype = precision.reduce_dtype,
    output_dtype = precision.output_dtype, cast_inputs = precision.cast_forward_inputs,
    side = opts.offload and device:match "^cuda" and side_stream(device) or nil,
    keeps = not opts.reshard_after_backward, prefetch = opts.prefetch,
    parts = lists.map(parts, function(part) return records.of(part[1]) end),
  }
  shards.note_names(who, mesh.groups[1], module)
  shards.fill(who, module)
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
  for _, part in ipairs(parts) do refuse_calls(part[1], part[2], module) end
  record.unit = unit
  for name, method in pairs(methods) do record.values[name] = method end
  record.on_clone = function() fail("clone: a module of fully_shard cannot be cloned; clone it before") end
  module:register_load_state_dict_pre_hook(function(_, dict, prefix) cut_full(unit, dict, prefix) end)
  return module
end)

--- nn.parallel.Pipeline(…): Runs consecutive stages of a module on different ranks, a batch in several micro-batches.
--
-- The module is a chain of parts. A stage is a twin of the module whose forward runs the parts of the stage: it has
-- the modules and parameters that these use, and Absent for others. After each pass a rank sends its results and
-- receives those that other ranks' passes of the same round have for it (pipeline_schedule), in one batch, since NCCL
-- runs single sends and receives one after the other. Activations follow a header with their dtypes and shapes;
-- gradients need none.
local core = require "luminary.core"
local class = require "luminary.base.class"
local lists = require "luminary.base.lists"
local options = require "luminary.base.options"
local own = require "luminary.base.own_functions"
local signature = require "luminary.base.signature"
local autograd = require "luminary.autograd.function"
local alike = require "luminary.distributed.same_on_all_ranks"
local dist = require "luminary.distributed"
local device_mesh = require "luminary.distributed.device_mesh"
local containers = require "luminary.nn.containers"
local layer = require "luminary.nn.define_layer"
local records = require "luminary.nn.module_fields"
local batch_size = require "luminary.nn.parallel.batch_size"
local placement = require "luminary.nn.parallel.placement"
local schedule = require "luminary.nn.parallel.pipeline_schedule"

local ops, fail, pack, who = core.ops, options.fail, options.pack, "Pipeline"
local DTYPES = lists.parts "float32 float64 float16 bfloat16 int64 int32 int16 int8 uint8 bool complex64 complex128"
local HEADER = 96 -- numbers of a header

local Pipeline = layer.define(who)
Pipeline.transparent, Pipeline.nameless = true, true -- names are those of the model

local Stages = layer.define("PipelineStages", containers.ModuleList)
Stages.transparent, Stages.nameless = true, true

local Absent = layer.define "Absent"
function Absent:init(name) self.name = name end
function Absent:extra_repr() return self.name end
function Absent:forward(...) -- luacheck: ignore
  fail("%s: no part of this rank's stages names '%s', which one uses", who, self.name)
end

-- ---- cutting a module

-- Returns the module, parameter or buffer of a dotted name; fails if there is none.
local function find(module, name)
  for _, kind in ipairs(type(name) == "string" and {"child", "param", "buffer"} or {}) do
    local ok, found = pcall(records.find, who, module, name, kind)
    if ok and found ~= module then return found end
  end
  options.must_be(who, "a name in parts", "that of a module, parameter or buffer of " .. module.__name, name)
end

-- Returns true if a dotted name is `name` or begins with it.
local function is_within(full, name) return full == name or full:sub(1, #name + 1) == name .. "." end

-- Returns the parts of a module: {names, forward} each, with forward(stage, …).
local function parts_of(module, given, split)
  local list, parts = given or class.has(module, "pipeline_parts") and module:pipeline_parts(), {}
  if not list and not module:is(containers.Sequential) then
    fail("%s: cannot cut %s, whose forward is code; define %s:pipeline_parts(), or pass {parts = {…}}: the names of "
      .. "its modules, each called with the results of the one before", who, module.__name, module.__name)
  end
  local function add(name)
    local m = find(module, name)
    if not records.is_module(m) then options.must_be(who, "a part", "the name of a module, or a table", name) end
    local is_cut = lists.find(split, function(s) return s ~= name and is_within(s, name) end)
    if not m:is(containers.ModuleList) and not (is_cut and m:is(containers.Sequential)) then
      parts[#parts + 1] = {names = {name}, forward = function(_, ...) return m(...) end}
      return
    end
    for _, child in ipairs(records.of(m).child) do add(records.joined(name, child)) end
  end
  for _, part in ipairs(list or records.of(module).child) do
    if type(part) ~= "table" then
      add(part)
    else
      local forward = options.arg(who, "forward of a part", part.forward, "function")
      parts[#parts + 1] = {names = part, forward = function(...) return own.call(forward, ...) end}
    end
  end
  return parts
end

-- Divides parts into stages; all but the first begin with a part that has the next module of split.
local function divide(parts, split)
  local stages, first = {}, 1
  for i, name in ipairs(split) do
    local _, found = lists.find(parts, function(part)
      return lists.find(part.names, function(n) return is_within(n, name) end)
    end)
    if not found or found <= first then
      fail("%s: split[%d] must be the name of a later part than the first of the stage before, got '%s'; parts are %s",
        who, i, name, table.concat(lists.map(parts, function(part) return part.names[1] end), ", "))
    end
    stages[i], first = lists.slice(parts, first, found - 1), found
  end
  return lists.append(stages, {lists.slice(parts, first)})
end

-- Returns a module for a stage: m itself if `kept` has it, a twin if it has some of its modules or parameters.
local function cut_module(m, name, kept)
  if kept[m] then return m end
  local function is_kept(v) return kept[v] end
  if not lists.find(m:modules(), is_kept) and not lists.find(m:parameters(), is_kept) then return Absent(name) end
  local twin = records.twin(m, {}, function(v) return v end)
  local record = records.of(twin)
  for _, child in ipairs(record.child) do
    record.values[child] = cut_module(record.values[child], records.joined(name, child), kept)
  end
  records.show_children(twin, record)
  for _, param in ipairs(lists.slice(record.param)) do
    if not kept[record.values[param]] then twin[param] = nil end
  end
  return twin
end

-- Returns the stage that runs these parts of a module.
local function stage_of(module, parts)
  local kept = {}
  for _, part in ipairs(parts) do
    for _, name in ipairs(part.names) do
      local found = find(module, name)
      local inner = records.is_module(found) and lists.joined(found:modules(), found:parameters()) or {found}
      for _, v in ipairs(inner) do kept[v] = true end
    end
  end
  local stage = cut_module(module, "", kept)
  records.of(stage).values.forward = function(self, ...)
    local values = pack(...)
    for _, part in ipairs(parts) do values = pack(part.forward(self, unpack(values, 1, values.n))) end
    return unpack(values, 1, values.n)
  end
  return stage
end

-- ---- constructing

-- Returns what must be equal on all ranks, as text of one line each.
local function describe(module, stages, opts)
  local lines = {("schedule %s, %d micro-batches%s"):format(opts.schedule, opts.microbatches,
    opts.count and ", with count" or "")}
  for s, parts in ipairs(stages) do
    for _, part in ipairs(parts) do
      lines[#lines + 1] = ("stage %d, %s"):format(s, table.concat(part.names, ", "))
    end
  end
  for name, p in module:named_parameters() do lines[#lines + 1] = placement.summarize(name, p) end
  return lines
end

-- Returns the names of a module's state.
local function state_names(m)
  return lists.map(records.state_of(m), function(entry) return entry[1] end)
end

-- Notes the ranks of each parameter. Frees those that this rank does not have.
local function note_parameters(self, module, stages)
  local group, mesh, holders, of = self.group, self.mesh, {}, {}
  for s, stage in ipairs(stages) do
    local rank, params = (s - 1) % group.size, stage:parameters()
    if #params == 0 then fail("%s: stage %d has no parameters; move its split", who, s) end
    for _, name in ipairs(state_names(stage)) do holders[name] = holders[name] or rank end
    for _, p in ipairs(params) do of[p] = lists.append(of[p] or {}, {rank}) end
  end
  for name, p in module:named_parameters() do
    if not of[p] then fail("%s: no part has the parameter '%s'", who, name) end
  end
  records.of(self).pipeline = {group = group, mesh = mesh, holders = holders, device = self.device}
  placement.last_pipeline[1] = records.of(self).pipeline
  self.ties = {}
  for number, p in ipairs(module:parameters()) do
    local ranks = lists.map(lists.sorted_keys(lists.set(of[p])), function(r) return group.ranks[r + 1] end)
    if lists.index_of(ranks, mesh.rank) then
      placement.set_stage(p, {group = group, mesh = mesh, number = number, counts = ranks[1] == mesh.rank})
      if #ranks > 1 then table.insert(self.ties, {p = p, ranks = ranks}) end
    else
      p.grad = nil
      p:free()
    end
  end
end

-- Exchanges t, a tensor of a tied parameter; returns those of all ranks that have it, in their order.
local function exchange(self, tie, t)
  local list, messages = {}, {}
  for i, rank in ipairs(tie.ranks) do
    list[i] = t
    if rank ~= self.mesh.rank then
      list[i] = ops.empty(t.shape, {dtype = t.dtype, device = t.device})
      lists.append(messages, {
        {op = "irecv", tensor = list[i], peer = rank, group = self.group},
        {op = "isend", tensor = t, peer = rank, group = self.group},
      })
    end
  end
  for _, work in ipairs(dist.batch_isend_irecv(messages)) do work:wait() end
  return list
end

Pipeline.init = signature.of([[Pipeline(module: module, {mesh, split: string[], microbatches: count,
  schedule = "1f1b" | "interleaved" | "gpipe", loss: callable, count: callable, parts: list,
  batch_dim: count = 1})]],
  function(self, module, opts)
  local mesh, split = opts.mesh, opts.split
  device_mesh.check(who, mesh)
  if not split or not opts.microbatches then fail("%s: the options split and microbatches are required", who) end
  local group = mesh.groups[1]
  local stages = divide(parts_of(module, opts.parts, split), split)
  local each = #stages / group.size
  if group.size > 1 and (each % 1 > 0 or each > 1 and opts.schedule ~= "interleaved") then
    fail("%s: split must have %d names for %d ranks%s, got %d", who, group.size - 1, group.size, opts.schedule
      == "interleaved" and ", or one less than a multiple of the ranks" or "; with {schedule = \"interleaved\"} ranks "
      .. "have several stages", #split)
  end
  if group.size > 1 then
    mesh:call(alike, group, who, "pipeline differs", describe(module, stages, opts), "line")
  else
    stages = {lists.joined({}, unpack(stages))}
  end
  self.mesh, self.group, self.loss, self.count, self.batch_dim = mesh, group, opts.loss, opts.count, opts.batch_dim
  self.schedule, self.microbatches, self.total = opts.schedule, opts.microbatches, #stages
  self.device = (module:parameters()[1] or ops.empty {}).device
  stages = lists.map(stages, function(parts) return stage_of(module, parts) end)
  note_parameters(self, module, stages)
  self.stages = Stages()
  for s = group.rank + 1, #stages, group.size do self.stages:append(stages[s]) end
  placement.fill(who, self.stages)
  local names, holders = lists.set(state_names(self)), records.of(self).pipeline.holders
  for _, stage in ipairs(self.stages) do
    local record = records.of(stage)
    record.load_pre_hooks = lists.slice(record.load_pre_hooks or {}) -- the twin's own
    stage:register_load_state_dict_pre_hook(function(_, dict, prefix)
      for name in pairs(holders) do
        if not names[name] then dict[prefix .. name] = nil end
      end
    end)
  end
  for _, tie in ipairs(self.ties) do
    core.no_grad(tie.p.copy_, tie.p, mesh:call(exchange, self, tie, tie.p:detach():contiguous())[1])
  end
end)

-- ---- messages of a run, a table of run_passes

local function rank_of(pipe, stage) return pipe.group.ranks[(stage - 1) % pipe.group.size + 1] end

-- Returns the result of a pass: tensors for the pass that receives them, after a header if `requires` says which of
-- them get a gradient.
local function message_of(tensors, requires)
  local header = {#tensors}
  for i, t in ipairs(requires and tensors or {}) do
    lists.append(header, {lists.index_of(DTYPES, t.dtype), requires[i] and 1 or 0, t.ndim})
    lists.append(header, t.shape)
  end
  if #header > HEADER then
    fail("%s: at most %d numbers describe the tensors that pass to the next stage, 3 and its shape for each; got %d "
      .. "tensors with %d dims in all", who, HEADER - 1, #tensors, #header - 1 - 3 * #tensors)
  end
  for i = #header + 1, HEADER do header[i] = 0 end
  return {
    header = requires and core.tensor(header, {dtype = "int64", device = "cpu"}),
    tensors = lists.map(tensors, function(t) return t:detach():contiguous() end),
  }
end

-- Makes the tensors that a pass receives: those of its header, or gradients of its stage's outputs.
local function make_received(run, pass, header)
  local received = {tensors = {}, requires = {}, works = {}}
  if pass.kind == "backward" then
    received.tensors = lists.map(run.live[pass.stage][pass.batch].outputs, function(y)
      return ops.empty(y.shape, {dtype = y.dtype, device = y.device})
    end)
    return received
  end
  local numbers, at = header:tolist(), 2
  for i = 1, numbers[1] do
    local last = at + 2 + numbers[at + 2]
    local how = {dtype = DTYPES[numbers[at]], device = run.pipe.device}
    received.tensors[i] = ops.empty(lists.slice(numbers, at + 3, last), how)
    received.requires[i] = numbers[at + 1] == 1 and run.grad
    at = last + 1
  end
  return received
end

-- Starts the messages of a round, headers first: `sent`, the message of its pass or nil, and those of its receives.
local function start_messages(run, round, sent)
  local pipe = run.pipe
  local function batch(to_send, to_receive)
    local messages, works = {}, {}
    local function add(op, stage, tensors)
      for _, t in ipairs(tensors) do
        messages[#messages + 1] = {op = op, tensor = t, peer = rank_of(pipe, stage), group = pipe.group}
      end
    end
    if sent then add("isend", round.pass.stage + (round.pass.kind == "forward" and 1 or -1), to_send) end
    local n_sends = #messages
    for i, pass in ipairs(round.receives) do
      add("irecv", schedule.source_of(pass, pipe.total).stage, to_receive[i])
    end
    if #messages > 0 then works = dist.batch_isend_irecv(messages) end
    lists.append(run.sends, lists.slice(works, 1, n_sends))
    return lists.slice(works, n_sends + 1)
  end
  local headers = lists.map(round.receives, function(pass)
    return pass.kind == "forward" and {ops.empty({HEADER}, {dtype = "int64", device = "cpu"})} or {}
  end)
  for _, work in ipairs(batch({sent and sent.header}, headers)) do work:wait() end
  local received = {}
  for i, pass in ipairs(round.receives) do
    run.received[pass] = make_received(run, pass, headers[i][1])
    received[i] = run.received[pass].tensors
  end
  local works = batch(sent and sent.tensors, received)
  if sent then autograd.free_all(sent.tensors) end -- the works have their memory
  for i, pass in ipairs(round.receives) do
    run.received[pass].works, works = lists.slice(works, 1, #received[i]), lists.slice(works, #received[i] + 1)
  end
end

local function receives(run, pass) return schedule.source_of(pass, run.pipe.total) ~= nil end

-- Returns the tensors that a pass receives.
local function obtain(run, pass)
  local received = run.received[pass]
  for i, work in ipairs(received.works) do
    core.dist_wait(work, received.tensors[i])
    if received.requires[i] then received.tensors[i]:requires_grad_() end
  end
  run.received[pass] = nil
  return received.tensors
end

-- ---- passes

-- Returns a tensor with the memory of one that requires gradients, as the result of an op: a stage may begin in place.
local Alias = autograd.Function:extend "Alias"
function Alias.forward(_, t) return t:detach() end
function Alias.backward(_, grad)
  return autograd.in_backward({grad}, function() return {grad} end)[1]
end

-- Returns a list of the samples of a pass's micro-batch: of a tensor, or of the tensors of a list.
local function samples_of(run, pass, value)
  local size = run.sizes[pass.batch]
  return lists.map(options.is_plain(value) and value or {value}, function(t)
    return core.is_tensor(t) and t:narrow(run.pipe.batch_dim, size.first + 1, size.n) or t
  end)
end

local function stage_at(pipe, pass) return pipe.stages[(pass.stage - 1 - pipe.group.rank) / pipe.group.size + 1] end

-- Returns the tensors of a list that require gradients.
local function requiring(list) return lists.filter(list, function(t) return t.requires_grad end) end

-- Runs a forward pass; returns its message for the next stage, or nil.
local function run_forward(run, pass)
  local pipe, is_last, requires, message = run.pipe, pass.stage == run.pipe.total, {}, nil
  local received = receives(run, pass) and obtain(run, pass)
  local inputs = received or samples_of(run, pass, run.x)
  local values = lists.map(inputs, function(t)
    return pass.stage > 1 and t.requires_grad and Alias(t) or t
  end)
  local outputs = pack(stage_at(pipe, pass)(unpack(values)))
  if is_last and run.evaluates then
    run.results[pass.batch] = outputs
  elseif is_last and run.sizes[pass.batch].weight > 0 then
    local loss = own.call(pipe.loss, unpack(lists.append(outputs, samples_of(run, pass, run.target))))
    if not core.is_tensor(loss) or loss:numel() ~= 1 then
      options.must_be(who, "the result of loss", "a tensor of one element", loss)
    end
    local part = loss:detach():double():reshape {} * run.sizes[pass.batch].weight
    run.loss, outputs = run.loss and run.loss + part or part, {loss}
  elseif not is_last then
    for i = 1, outputs.n do
      if not core.is_tensor(outputs[i]) then
        options.must_be(who, ("result %d of stage %d"):format(i, pass.stage), "a tensor", outputs[i])
      end
      requires[i] = outputs[i].requires_grad and run.grad
    end
    message = message_of(outputs, requires)
  end
  if run.grad then
    run.live[pass.stage][pass.batch] = {
      inputs = received and requiring(received) or {}, outputs = requiring(outputs),
      received = received and lists.joined(received, values) or {},
    }
  elseif received then
    autograd.free_all(lists.filter(received, function(t) return not lists.index_of(outputs, t) end))
  end
  return message
end

-- Makes the next backward pass of a stage average gradients over other dims of the mesh, or keep them until one does.
local function set_averaging(run, stage, is_last)
  local reducer = class.has(stage, "join") and stage.reducer -- the one that DistributedDataParallel has
  if reducer then
    local function mark() -- forward passes of a training have added their samples
      local weight = stage.training and (is_last and run.weight - run.samples or 0) or run.weight
      core.reducer_forward(reducer, weight, stage.training, false)
    end
    if is_last then mark() else stage:no_sync(mark) end
  end
  for _, m in ipairs(stage:modules()) do
    local unit = records.of(m).unit
    if unit then unit.defers = not is_last or nil end
  end
end

-- Runs a backward pass; returns its message for the stage before, or nil.
local function run_backward(run, pass)
  local live, weight = run.live[pass.stage][pass.batch], run.sizes[pass.batch].weight
  local grads = receives(run, pass) and obtain(run, pass) -- else outputs are a loss, or results of weight 0
    or lists.map(live.outputs, function(y) return ops.full_like(y:detach(), weight) end)
  set_averaging(run, stage_at(run.pipe, pass), pass.batch == run.n)
  if #grads > 0 then core.backward(live.outputs, grads) end
  autograd.free_all(grads)
  run.live[pass.stage][pass.batch] = nil
  grads = lists.map(live.inputs, function(x) return x.grad or ops.zeros_like(x:detach()) end)
  local message = pass.stage > 1 and message_of(grads) or nil
  autograd.free_all(grads)
  autograd.free_all(live.received)
  return message
end

-- ---- runs

-- Calls f() for a whole step: units of fully_shard weigh all of its samples, or targets.
local function with_units(pipe, weight, f)
  local units, step = {}, {samples = weight, weights = {}}
  for _, m in ipairs(pipe.stages:modules()) do units[#units + 1] = records.of(m).unit end
  for _, unit in ipairs(units) do unit.step = step end
  return options.restoring(function()
    for _, unit in ipairs(units) do unit.step, unit.defers = nil, nil end
  end, f)
end

-- Returns the number of samples of a batch or a target, a tensor or a list.
local function samples_in(pipe, what, value)
  local samples = batch_size(who, pipe.batch_dim, value)
  for i, t in ipairs(options.is_plain(value) and value or {}) do
    local n = core.is_tensor(t) and batch_size(who, pipe.batch_dim, t) or samples
    if n ~= samples then fail("%s: the %s's first tensor has %d samples, tensor %d %d", who, what, samples, i, n) end
  end
  return samples
end

-- Weighs micro-batches by the numbers of their targets, which the option count returns on the last rank.
local function weigh_targets(run, is_last)
  local pipe, counts = run.pipe, ops.zeros({run.n}, {dtype = "int64", device = "cpu"})
  for i = 1, is_last and run.n or 0 do
    local n = own.call(pipe.count, unpack(samples_of(run, {batch = i}, run.target)))
    n = core.is_tensor(n) and n:numel() == 1 and tonumber(n:item()) or n
    if not options.is("natural", n) then options.must_be(who, "the result of count", "a non-negative integer", n) end
    counts[i] = n
  end
  if pipe.group.size > 1 then dist.broadcast(counts, rank_of(pipe, pipe.total), {group = pipe.group}) end
  run.weight = counts:sum():item()
  for i, n in ipairs(counts:tolist()) do run.sizes[i].weight = n / math.max(run.weight, 1) end
end

-- Agrees with all ranks on the call. Returns the number of samples, which the first one knows, and of micro-batches,
-- the least over all pipelines of the mesh.
local function agree(pipe, call, x)
  local calls, group = {"forward", "step", "step without gradients"}, pipe.group
  local how = {dtype = "int64", device = "cpu"}
  local first = ops.zeros({3}, how)
  if group.rank == 0 then
    if x == nil then fail("%s: the first stage needs the batch", who) end
    local samples = samples_in(pipe, "batch", x)
    local n = core.tensor({math.max(1, math.min(pipe.microbatches, samples))}, how)
    for d, other in ipairs(pipe.mesh.whole.groups) do
      local is_own = lists.index_of(pipe.mesh.of[1], d)
      if not is_own and other.size > 1 then dist.all_reduce(n, {op = "min", group = other}) end
    end
    first = core.tensor({samples, n:item(), lists.index_of(calls, call)}, how)
  end
  if group.size > 1 then dist.broadcast(first, group.ranks[1], {group = group}) end
  local samples, n, theirs = unpack(first:tolist())
  if calls[theirs] ~= call then
    fail("%s: this rank calls %s, but rank %d calls %s", who, call, group.ranks[1], calls[theirs])
  end
  return samples, n
end

-- Runs the passes of a call; returns its run.
local function run_passes(pipe, call, x, target)
  local group, samples, n_batches = pipe.group, agree(pipe, call, x)
  local run = {
    pipe = pipe, n = n_batches, sizes = {}, samples = samples, weight = samples, x = x, target = target,
    grad = call == "step", evaluates = call == "forward", live = {}, received = {}, sends = {}, results = {},
  }
  local is_last = (pipe.total - 1) % group.size == group.rank
  if is_last and not run.evaluates and target == nil then fail("%s: the last stage needs the target", who) end
  local targets = is_last and not run.evaluates and samples_in(pipe, "target", target) or samples
  if targets ~= samples then fail("%s: the batch has %d samples, the target %d", who, samples, targets) end
  for i = 1, run.n do
    local first = math.floor(samples * (i - 1) / run.n)
    local n = math.floor(samples * i / run.n) - first
    run.sizes[i] = {first = first, n = n, weight = samples > 0 and n / samples or 1}
  end
  if pipe.count and not run.evaluates then weigh_targets(run, is_last) end
  for s = 1, pipe.total do run.live[s] = {} end
  for _, tie in ipairs(run.grad and pipe.ties or {}) do
    -- finish adds the ranks' gradients up: one rank keeps the sum of earlier steps.
    if not placement.stage(tie.p).counts then tie.p.grad = nil end
  end
  local function is_kept(pass) return run.grad or pass.kind == "forward" end
  local rounds = schedule.rounds(pipe.schedule, group.rank, group.size, run.n, #pipe.stages, is_kept)
  with_units(pipe, run.weight, function()
    for _, round in ipairs(rounds) do
      local pass = round.pass
      local sent = pass and (pass.kind == "forward" and run_forward or run_backward)(run, pass)
      start_messages(run, round, sent)
      run.sends = lists.filter(run.sends, function(work) return not work:is_completed() end)
    end
  end)
  for _, work in ipairs(run.sends) do core.dist_wait(work) end -- raises failures; no op waits for a send
  autograd.free_returned()
  return run
end

-- Calls f(…), whose failure ends the job: the other ranks wait for this one's messages.
local function guarded(pipe, f, ...)
  local results = pack(pcall(pipe.mesh.call, pipe.mesh, f, ...))
  if results[1] then return unpack(results, 2, results.n) end
  if pipe.group.size > 1 then core.reducer_fail(pipe.group.handle, results[2]) end
  error(results[2], 0)
end

-- Adds up the gradients of tied parameters, and returns the loss, which the last rank has.
local function finish_run(pipe, run)
  for _, tie in ipairs(run.grad and pipe.ties or {}) do
    local p, sum = tie.p, nil
    if p.requires_grad then
      p.grad = p.grad or ops.zeros(p.shape, {dtype = p.dtype, device = p.device})
      for _, grad in ipairs(exchange(pipe, tie, p.grad:detach():contiguous())) do sum = sum and sum + grad or grad end
      p.grad:copy_(sum)
    end
  end
  local loss = run.loss or ops.zeros({}, {dtype = "float64", device = pipe.device})
  if pipe.group.size > 1 then dist.broadcast(loss, rank_of(pipe, pipe.total), {group = pipe.group}) end
  return loss
end

--- net:step(x, target): Runs a batch forward and backward, or without gradients forward alone. Returns the mean of the
--- loss over all samples on all ranks.
function Pipeline:step(x, target)
  if not self.loss then fail("%s: step needs the option loss, such as F.cross_entropy", who) end
  local call = core.is_grad_enabled() and "step" or "step without gradients"
  local run = guarded(self, run_passes, self, call, x, target)
  return core.no_grad(guarded, self, finish_run, self, run)
end

--- Returns the results for a batch on the last rank, without gradients; on others nothing.
function Pipeline:forward(x)
  local run = core.no_grad(guarded, self, run_passes, self, "forward", x)
  local results = {}
  for i = 1, (run.results[1] or {n = 0}).n do
    results[i] = ops.cat(lists.map(run.results, function(each) return each[i] end), self.batch_dim)
  end
  return unpack(results)
end

return Pipeline

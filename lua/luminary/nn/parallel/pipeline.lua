--- nn.parallel.Pipeline(…): Runs consecutive stages of a module on different ranks, a batch in several micro-batches.
---
--- The module is a chain of parts. A stage is a twin of the module whose forward runs the parts of the stage: it has
--- the modules and parameters that these use, and Absent for others. Before each pass of its schedule a rank posts the
--- receives of the next two. Activations follow a header with their dtypes and shapes; gradients need none.
local core = require "luminary.core"
local class = require "luminary.base.class"
local lists = require "luminary.base.lists"
local options = require "luminary.base.options"
local own = require "luminary.base.own_functions"
local signature = require "luminary.base.signature"
local alike = require "luminary.distributed.same_on_all_ranks"
local dist = require "luminary.distributed"
local device_mesh = require "luminary.distributed.device_mesh"
local containers = require "luminary.nn.containers"
local layer = require "luminary.nn.define_layer"
local meta = require "luminary.nn.meta"
local records = require "luminary.nn.module_fields"
local batch_size = require "luminary.nn.parallel.batch_size"
local DDP = require "luminary.nn.parallel.distributed"
local schedule = require "luminary.nn.parallel.pipeline_schedule"
local shards = require "luminary.nn.parallel.shards"

local ops, fail, pack, who = core.ops, options.fail, options.pack, "Pipeline"
local DTYPES = {
  "float32", "float64", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool", "complex64",
  "complex128",
}
local HEADER, MOST = 96, 15 -- numbers of a header; tensors between two stages
local AHEAD = 2             -- passes whose receives are posted before a pass runs
local TIED = 1              -- tag of gradients of tied parameters; those of passes are multiples of MOST + 1, and more

local Pipeline = layer.define(who)
Pipeline.transparent = true -- state_dict has the names of the model

local Stages = layer.define("PipelineStages", containers.ModuleList)
Stages.transparent = true

local Absent = layer.define "Absent"
function Absent:init(name) self.name = name end
function Absent:extra_repr() return self.name end
function Absent:forward() fail("%s: '%s' is used by no part of this rank's stages; name it in the part", who, self.name) end

-- ---- cutting a module

-- Returns the module, parameter or buffer of a dotted name, or nil.
local function find(module, name)
  for _, kind in ipairs {"child", "param", "buffer"} do
    local ok, found = pcall(records.find, who, module, name, kind)
    if ok then return found end
  end
end

-- Returns true if a dotted name is `name` or begins with it.
local function is_within(full, name) return full == name or full:sub(1, #name + 1) == name .. "." end

-- Returns the parts of a module: {names, forward} each, with forward(stage, …).
local function parts_of(module, given, split)
  local list, parts = given or class.has(module, "pipeline_parts") and module:pipeline_parts(), {}
  if not list and not module:is(containers.Sequential) then
    fail("%s: cannot cut %s, whose forward is code; define %s:pipeline_parts(), or pass {parts = {…}}: names of its "
      .. "modules in the order in which forward calls them, each with the results of the one before", who,
      module.__name, module.__name)
  end
  local function add(name)
    local m = type(name) == "string" and find(module, name)
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
      for _, name in ipairs(part) do
        if not (type(name) == "string" and find(module, name)) then
          options.must_be(who, "a name in a part", "that of a module, parameter or buffer", name)
        end
      end
      parts[#parts + 1] = {names = part, forward = function(...) return own.call(forward, ...) end}
    end
  end
  return parts
end

-- Divides parts into stages: a new one begins with the first part that has a module of split, each.
local function divide(parts, split)
  local at, stages, first = 0, {}, 1
  for i, name in ipairs(split) do
    local _, found = lists.find(parts, function(part)
      return lists.find(part.names, function(n) return is_within(n, name) end)
    end)
    if not found or found <= math.max(1, at) then
      fail("%s: split[%d] must name a module with which a part %s begins, got '%s'; parts begin with %s", who, i,
        at > 0 and ("after '%s'"):format(split[i - 1]) or "after the first", name,
        table.concat(lists.map(parts, function(part) return tostring(part.names[1]) end), ", "))
    end
    at = found
    stages[i], first = lists.slice(parts, first, found - 1), found
  end
  stages[#split + 1] = lists.slice(parts, first)
  return stages
end

-- Returns a module for a stage: m itself if `kept` has it, a twin if it has some of its modules or parameters.
local function cut(m, name, kept)
  if kept[m] then return m end
  local uses = lists.find(m:modules(), function(each)
    return kept[each] or lists.find(each:parameters {recurse = false}, function(p) return kept[p] end)
  end)
  if not uses then return Absent(name) end
  local twin = records.twin(m, {}, function(v) return v end)
  local record, params = records.of(twin), {}
  for _, child in ipairs(record.child) do
    record.values[child] = cut(record.values[child], records.joined(name, child), kept)
  end
  records.show_children(twin, record)
  for _, param in ipairs(record.param) do
    if kept[record.values[param]] then
      params[#params + 1] = param
    else
      record.values[param], record.kind[param] = nil, nil
    end
  end
  record.param = params
  return twin
end

-- Returns the stage that runs these parts of a module.
local function stage_of(module, parts)
  local kept = {}
  for _, part in ipairs(parts) do
    for _, name in ipairs(part.names) do
      local found = find(module, name)
      kept[found] = true
      for _, m in ipairs(records.is_module(found) and found:modules() or {}) do
        kept[m] = true
        for _, p in ipairs(m:parameters {recurse = false}) do kept[p] = true end
      end
    end
  end
  local stage = cut(module, "", kept)
  if stage == module then fail("%s: a part cannot be the module itself", who) end
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
  local lines = {("schedule %s, %d micro-batches"):format(opts.schedule, opts.microbatches)}
  for s, parts in ipairs(stages) do
    for _, part in ipairs(parts) do
      lines[#lines + 1] = ("stage %d, %s"):format(s, table.concat(part.names, ", "))
    end
  end
  for name, p in module:named_parameters() do
    lines[#lines + 1] = ("'%s', %s [%s]"):format(name, p.dtype, table.concat(p.shape, ", "))
  end
  return table.concat(lines, "\n") .. "\n"
end

-- Notes of each parameter where it is: parameters of other ranks are freed, and those of several are equal.
local function note_parameters(self, module, stages)
  local group, mesh, holders, of = self.group, self.mesh, {}, {}
  for s, stage in ipairs(stages) do
    for name in pairs(stage:state_dict()) do holders[name] = holders[name] or (s - 1) % group.size end
    for _, p in ipairs(stage:parameters()) do
      of[p] = of[p] or {}
      of[p][(s - 1) % group.size] = true
    end
  end
  local is_first = lists.every(mesh.whole.groups, function(g) return g == group or g.rank == 0 end)
  shards.pipelines[self] = {
    group = group, mesh = mesh, holders = holders, is_first = is_first, device = module:parameters()[1].device,
  }
  self.ties = {}
  for number, p in ipairs(module:parameters()) do
    local ranks = lists.sorted_keys(of[p])
    if of[p][group.rank] then
      shards.pipeline_of[p] = {
        group = group, mesh = mesh, number = number, is_first = is_first, counts = ranks[1] == group.rank,
      }
      ranks = lists.map(ranks, function(r) return group.ranks[r + 1] end)
      if #ranks > 1 then table.insert(self.ties, {p = p, ranks = ranks}) end
    else
      p.grad = nil
      p:free()
    end
  end
end

-- Calls f(p, is_first, other rank) for each tied parameter and each other rank that has it, or, on these, its first.
local function each_tie(self, f)
  for _, tie in ipairs(self.ties) do
    local is_first = tie.ranks[1] == dist.get_rank()
    for i = is_first and 2 or 1, is_first and #tie.ranks or 1 do f(tie.p, is_first, tie.ranks[i]) end
  end
end

local function send(self, t, rank) dist.send(t:contiguous(), {dst = rank, group = self.group, tag = TIED}) end

local function receive(self, like, rank)
  local t = ops.empty(like.shape, {dtype = like.dtype, device = like.device})
  dist.recv(t, {src = rank, group = self.group, tag = TIED})
  return t
end

local function check(opts, group)
  local count = (#opts.split + 1) / group.size
  if count % 1 > 0 or count ~= 1 and opts.schedule ~= "interleaved" then
    fail("%s: split must have %d names for %d ranks%s, got %d", who, group.size - 1, group.size, opts.schedule
      == "interleaved" and ", or one less than a multiple of the ranks" or "; {schedule = \"interleaved\"} has several "
      .. "stages on a rank", #opts.split)
  end
  return count
end

Pipeline.init = signature.of([[Pipeline(module: module, {mesh, split: string[], microbatches: count,
  schedule = "1f1b" | "interleaved" | "gpipe", loss: callable, parts: list, batch_dim: count = 1})]],
  function(self, module, opts)
  local mesh = opts.mesh
  if not device_mesh.is_mesh(mesh) or mesh.ndim ~= 1 then
    options.must_be(who, "mesh", "a result of dist.init_device_mesh, or a part of it, with 1 dim", mesh)
  end
  for _, name in ipairs {"split", "microbatches"} do
    if opts[name] == nil then fail("%s: the option %s is required", who, name) end
  end
  local group = mesh.groups[1]
  self.count = check(opts, group)
  local divided = divide(parts_of(module, opts.parts, opts.split), opts.split)
  if group.size > 1 then mesh:call(alike, group, who, "pipeline differs", describe(module, divided, opts), "line") end
  self.mesh, self.group, self.loss, self.batch_dim = mesh, group, opts.loss, opts.batch_dim
  self.schedule, self.microbatches, self.total = opts.schedule, opts.microbatches, #divided
  local stages, used = lists.map(divided, function(parts) return stage_of(module, parts) end), {}
  for s, stage in ipairs(stages) do
    if #stage:parameters() == 0 then fail("%s: stage %d has no parameters; move its split", who, s) end
    for _, p in ipairs(stage:parameters()) do used[p] = true end
  end
  for name, p in module:named_parameters() do
    if not used[p] then fail("%s: no part has the parameter '%s'", who, name) end
  end
  note_parameters(self, module, stages)
  self.stages = Stages()
  for s = group.rank + 1, #stages, group.size do self.stages:append(stages[s]) end
  meta.materialize(who, self.stages:modules())
  self.device = shards.pipelines[self].device
  self.header_device = group.backend == "nccl" and self.device or "cpu"
  local names = self:state_dict()
  for _, stage in ipairs(self.stages) do
    local record, holders = records.of(stage), shards.pipelines[self].holders
    record.load_pre_hooks = lists.slice(record.load_pre_hooks or {})
    stage:register_load_state_dict_pre_hook(function(_, dict, prefix)
      for name in pairs(holders) do
        if not names[name] then dict[prefix .. name] = nil end
      end
    end)
  end
  core.no_grad(each_tie, self, function(p, is_first, rank)
    if is_first then mesh:call(send, self, p:detach(), rank) else p:copy_(mesh:call(receive, self, p, rank)) end
  end)
end)

-- named_parameters and named_buffers have the names of the model, too.
for _, kind in ipairs {"parameters", "buffers"} do
  Pipeline["named_" .. kind] = function(self, opts)
    local names, tensors, seen = {}, {}, {}
    for _, stage in ipairs(self.stages) do
      if stage:is(DDP) then stage = stage.module end
      for name, t in stage["named_" .. kind](stage, opts) do
        local is_new = not (seen[name] or seen[t] and (opts or {}).remove_duplicate ~= false)
        if is_new then
          seen[name], seen[t] = true, true
          names[#names + 1], tensors[#tensors + 1] = name, t
        end
      end
    end
    local i = 0
    return function()
      i = i + 1
      return names[i], tensors[i]
    end
  end
end

-- ---- messages of a run: {pipe, n = micro-batches, sizes, samples, grad, live, posted, sends, here}

-- Returns the tag of the messages that a pass receives.
local function tag_of(run, pass)
  local place = (pass.stage - 1) * run.n + pass.batch
  return (2 * place + (pass.kind == "backward" and 1 or 0)) * (MOST + 1)
end

local function rank_of(pipe, stage) return pipe.group.ranks[(stage - 1) % pipe.group.size + 1] end

-- Returns the stage whose results a pass receives; nil if it receives nothing from another rank.
local function source_of(pipe, pass)
  local from = pass.stage + (pass.kind == "forward" and -1 or 1)
  return from >= 1 and from <= pipe.total and pipe.group.size > 1 and from or nil
end

local function post_receive(run, t, from, tag)
  return dist.irecv(t, {src = rank_of(run.pipe, from), group = run.pipe.group, tag = tag})
end

local function post_send(run, t, to, tag)
  table.insert(run.sends, {t = t, work = dist.isend(t, {dst = rank_of(run.pipe, to), group = run.pipe.group, tag = tag})})
end

-- Posts the receives of the tensors that a header describes, and returns them with the works.
local function open(run, pass, posted)
  posted.work:wait()
  local numbers, at = posted.header:tolist(), 2
  posted.tensors, posted.works = {}, {}
  for i = 1, numbers[1] do
    local ndim = numbers[at + 2]
    local t = ops.empty(lists.slice(numbers, at + 3, at + 2 + ndim), {
      dtype = DTYPES[numbers[at]], device = run.pipe.device,
    })
    posted.tensors[i], posted.works[i] = t, post_receive(run, t, source_of(run.pipe, pass), tag_of(run, pass) + i)
    if numbers[at + 1] == 1 and run.grad then posted.requires = lists.append(posted.requires or {}, {t}) end
    at = at + 3 + ndim
  end
end

-- Posts what a later pass receives, as far as it is known yet.
local function advance(run, pass)
  local from, posted = pass and source_of(run.pipe, pass), pass and run.posted[pass]
  if not from then return end
  if pass.kind == "backward" then
    local live = run.live[pass.stage][pass.batch]
    if posted or not live then return end
    posted = {tensors = {}, works = {}}
    for i, y in ipairs(live.outputs) do
      posted.tensors[i] = ops.empty(y.shape, {dtype = y.dtype, device = y.device})
      posted.works[i] = post_receive(run, posted.tensors[i], from, tag_of(run, pass) + i)
    end
  elseif not posted then
    posted = {header = ops.empty({HEADER}, {dtype = "int64", device = run.pipe.header_device})}
    posted.work = post_receive(run, posted.header, from, tag_of(run, pass))
  elseif not posted.tensors and posted.work:is_completed() then
    open(run, pass, posted)
  end
  run.posted[pass] = posted
end

-- Returns the tensors that a pass receives.
local function obtain(run, pass)
  if not source_of(run.pipe, pass) then return run.here[tag_of(run, pass)] end
  advance(run, pass)
  local posted = run.posted[pass]
  if not posted.tensors then open(run, pass, posted) end
  for _, work in ipairs(posted.works) do work:wait() end
  for _, t in ipairs(posted.requires or {}) do t:requires_grad_() end
  run.posted[pass] = nil
  return posted.tensors
end

-- Sends tensors to the pass that receives them; requires: a list that tells which get a gradient, or nil.
local function deliver(run, pass, tensors, requires)
  local pipe, tag, header = run.pipe, tag_of(run, pass), {#tensors}
  if pipe.group.size == 1 then
    run.here[tag] = lists.map(tensors, function(t, i)
      return requires and requires[i] and t:detach():requires_grad_() or t:detach()
    end)
    return
  end
  for i, t in ipairs(requires and tensors or {}) do
    lists.append(header, {lists.index_of(DTYPES, t.dtype), requires[i] and 1 or 0, t.ndim})
    lists.append(header, t.shape)
  end
  if #tensors > MOST or #header > HEADER then
    fail("%s: stage %d returns %d tensors; at most %d, and %d dims in all, pass to the next stage", who,
      pass.stage - 1, #tensors, MOST, HEADER - 1 - 3 * #tensors)
  end
  if requires then
    for i = #header + 1, HEADER do header[i] = 0 end
    post_send(run, core.tensor(header, {dtype = "int64", device = pipe.header_device}), pass.stage, tag)
  end
  for i, t in ipairs(tensors) do post_send(run, t:detach():contiguous(), pass.stage, tag + i) end
end

-- ---- passes

-- Returns samples first + 1 to first + n of a tensor, or of the tensors of a list.
local function part_of(value, dim, first, n)
  if core.is_tensor(value) then return value:narrow(dim, first + 1, n) end
  return options.is_plain(value) and lists.map(value, function(v) return part_of(v, dim, first, n) end) or value
end

-- Returns the samples of a pass's micro-batch of the batch, as a list.
local function samples_of(run, pass, value)
  local size = run.sizes[pass.batch]
  local part = part_of(value, run.pipe.batch_dim, size.first, size.n)
  return options.is_plain(part) and part or {part}
end

local function stage_at(pipe, pass) return pipe.stages[(pass.stage - 1 - pipe.group.rank) / pipe.group.size + 1] end

local function run_forward(run, pass)
  local pipe, stage = run.pipe, stage_at(run.pipe, pass)
  local inputs = pass.stage == 1 and samples_of(run, pass, run.x) or obtain(run, pass)
  local outputs
  if stage:is(DDP) and pass.batch > 1 then -- buffers are broadcast once in a step
    outputs = pack(stage:no_sync(function() return stage(unpack(inputs)) end))
  else
    outputs = pack(stage(unpack(inputs)))
  end
  if pass.stage == pipe.total and run.evaluates then
    run.results[pass.batch] = outputs
    return
  elseif pass.stage == pipe.total then
    local loss = own.call(pipe.loss, unpack(lists.append(outputs, samples_of(run, pass, run.target))))
    if not core.is_tensor(loss) or loss:numel() ~= 1 then
      options.must_be(who, "the result of loss", "a tensor of one element", loss)
    end
    local part = loss:detach():double():reshape {} * run.sizes[pass.batch].weight
    run.loss, outputs = run.loss and run.loss + part or part, {loss}
  else
    for i = 1, outputs.n do
      if not core.is_tensor(outputs[i]) then
        options.must_be(who, ("result %d of stage %d"):format(i, pass.stage), "a tensor", outputs[i])
      end
    end
  end
  local requires = lists.map(outputs, function(t) return t.requires_grad and run.grad end)
  if pass.stage < pipe.total then
    deliver(run, {kind = "forward", stage = pass.stage + 1, batch = pass.batch}, outputs, requires)
  end
  if not run.grad then return end
  run.live[pass.stage][pass.batch] = {
    inputs = lists.filter(pass.stage > 1 and inputs or {}, function(t) return t.requires_grad end),
    outputs = lists.filter(outputs, function(t) return t.requires_grad end),
  }
end

-- Makes the next backward pass of a stage average gradients over other dims of the mesh, or not.
local function set_averaging(run, stage, is_last)
  if stage:is(DDP) and stage.reducer then
    local function mark() -- weighs the samples of forward passes alone
      core.reducer_forward(stage.reducer, stage.training and 0 or run.samples, stage.training, false)
    end
    if is_last then mark() else stage:no_sync(mark) end
  end
  for _, m in ipairs(stage:modules()) do
    local unit = records.of(m).unit
    if unit then unit.defers = not is_last or nil end
  end
end

local function run_backward(run, pass)
  local pipe, live = run.pipe, run.live[pass.stage][pass.batch]
  local grads
  if pass.stage == pipe.total then
    grads = lists.map(live.outputs, function(loss) return ops.full_like(loss:detach(), run.sizes[pass.batch].weight) end)
  else
    grads = obtain(run, pass)
  end
  set_averaging(run, stage_at(pipe, pass), pass.batch == run.n)
  if #live.outputs > 0 then core.backward(live.outputs, grads) end
  run.live[pass.stage][pass.batch] = nil
  local results = lists.map(live.inputs, function(x) return x.grad or ops.zeros_like(x:detach()) end)
  if pass.stage > 1 then
    deliver(run, {kind = "backward", stage = pass.stage - 1, batch = pass.batch}, results)
  end
  for _, t in ipairs(pipe.group.size > 1 and pass.stage < pipe.total and grads or {}) do t:free() end
end

-- ---- runs

-- Calls f() for a whole step: units of fully_shard weigh all of its samples.
local function with_units(pipe, samples, f)
  local units, steps = {}, {}
  for _, m in ipairs(pipe.stages:modules()) do
    local unit = records.of(m).unit
    if unit then
      steps[unit.mesh] = steps[unit.mesh] or {samples = samples}
      units[#units + 1], unit.step = unit, steps[unit.mesh]
    end
  end
  return options.restoring(function()
    for _, unit in ipairs(units) do unit.step, unit.defers = nil, nil end
  end, f)
end

local function is_last(pipe) return (pipe.total - 1) % pipe.group.size == pipe.group.rank end

-- Agrees with all ranks on the number of samples, which the first one knows.
local function agree(pipe, name, x)
  local calls = {"forward", "step", "step without gradients"}
  local what = lists.index_of(calls, name)
  local numbers = {pipe.group.rank == 0 and batch_size(pipe.batch_dim, x) or 0, what}
  if pipe.group.size == 1 then return numbers[1] end
  local t = core.tensor(numbers, {dtype = "int64", device = pipe.header_device})
  local first = dist.broadcast(t, pipe.group.ranks[1], {group = pipe.group}):tolist()
  if first[2] ~= what then fail("%s: this rank calls %s, but rank %d %s", who, name, pipe.group.ranks[1], calls[first[2]]) end
  return first[1]
end

-- Runs the passes of a call; returns its run.
local function run_passes(pipe, name, x, target)
  local group = pipe.group
  if group.rank == 0 and x == nil then fail("%s: the first stage needs the batch", who) end
  local samples = agree(pipe, name, x)
  local run = {
    pipe = pipe, n = math.max(1, math.min(pipe.microbatches, samples)), sizes = {}, samples = samples, x = x,
    target = target, grad = name == "step", evaluates = name == "forward", live = {}, posted = {}, sends = {},
    here = {}, results = {},
  }
  if is_last(pipe) and not run.evaluates and batch_size(pipe.batch_dim, target) ~= samples then
    fail("%s: the batch has %d samples, the target %d", who, samples, batch_size(pipe.batch_dim, target))
  end
  for i = 1, run.n do
    local first = math.floor(samples * (i - 1) / run.n)
    local n = math.floor(samples * i / run.n) - first
    run.sizes[i] = {first = first, n = n, weight = samples > 0 and n / samples or 1}
  end
  for s = 1, pipe.total do run.live[s] = {} end
  local passes = schedule.passes(pipe.schedule, group.rank, group.size, run.n, pipe.count)
  if not run.grad then passes = schedule.forward_only(passes) end
  with_units(pipe, samples, function()
    for i, pass in ipairs(passes) do
      for ahead = 1, AHEAD do advance(run, passes[i + ahead]) end
      if pass.kind == "forward" then run_forward(run, pass) else run_backward(run, pass) end
      run.sends = lists.filter(run.sends, function(each) return not each.work:is_completed() end)
    end
  end)
  for _, each in ipairs(run.sends) do each.work:wait() end
  return run
end

-- Adds up the gradients of tied parameters.
local function add_tied(pipe)
  for _, tie in ipairs(pipe.ties) do
    local p = tie.p
    if p.requires_grad then p.grad = p.grad or ops.zeros(p.shape, {dtype = p.dtype, device = p.device}) end
  end
  for _, is_sum in ipairs {false, true} do
    each_tie(pipe, function(p, is_first, rank)
      if not p.requires_grad then return end
      if is_first == is_sum then
        send(pipe, p.grad, rank)
      elseif is_first then
        p.grad:add_(receive(pipe, p, rank))
      else
        p.grad:copy_(receive(pipe, p, rank))
      end
    end)
  end
end

-- Calls f(…), whose failure ends the job: the other ranks wait for this one's messages.
local function guarded(pipe, f, ...)
  local results = pack(pcall(pipe.mesh.call, pipe.mesh, f, ...))
  if results[1] then return unpack(results, 2, results.n) end
  if pipe.group.size > 1 then core.reducer_fail(pipe.group.handle, results[2]) end
  error(results[2], 0)
end

--- net:step(x, target): Runs a batch forward and backward, or forward alone without gradients. Adds to the gradients of
--- this rank's parameters. Returns the mean of the loss over all samples, on all ranks. The first rank reads x, the
--- last one target; both may be lists of tensors.
function Pipeline:step(x, target)
  if not self.loss then fail("%s: step needs the option loss, such as F.cross_entropy", who) end
  return guarded(self, function()
    local name = core.is_grad_enabled() and "step" or "step without gradients"
    local run = run_passes(self, name, x, target)
    return core.no_grad(function()
      if run.grad then add_tied(self) end
      local loss = run.loss or ops.zeros({}, {dtype = "float64", device = self.device})
      if self.group.size > 1 then dist.broadcast(loss, rank_of(self, self.total), {group = self.group}) end
      return loss
    end)
  end)
end

--- Returns the results for a batch on the last rank, without gradients; on others nothing.
function Pipeline:forward(x)
  return core.no_grad(guarded, self, function()
    local run = run_passes(self, "forward", x)
    local results = {}
    for i = 1, (run.results[1] or {n = 0}).n do
      results[i] = ops.cat(lists.map(run.results, function(each) return each[i] end), self.batch_dim)
    end
    return unpack(results)
  end)
end

return Pipeline

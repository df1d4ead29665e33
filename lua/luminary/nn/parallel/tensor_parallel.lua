--- nn.parallel.parallelize(…): Divides layers over the ranks of a mesh by a plan, and activations between them.
--- Shoeybi et al., "Megatron-LM: Training Multi-Billion Parameter Language Models Using Model Parallelism", 2019;
--- Korthikanti et al., "Reducing Activation Recomputation in Large Transformer Models", 2022, for "sequence".
---
--- A layer of the plan gets a forward of its own, around its class's, and its parameters become this rank's part
--- (placement.divide). collective_functions.lua says what happens to activations, and defines replicated and partial.
local core = require "luminary.core"
local lists = require "luminary.base.lists"
local options = require "luminary.base.options"
local own = require "luminary.base.own_functions"
local printable_name = require "luminary.base.printable_name"
local signature = require "luminary.base.signature"
local boundaries = require "luminary.autograd.checkpoint_boundaries"
local agree = require "luminary.distributed.agree"
local alike = require "luminary.distributed.same_on_all_ranks"
local device_mesh = require "luminary.distributed.device_mesh"
local records = require "luminary.nn.module_fields"
local functions = require "luminary.nn.parallel.collective_functions"
local is_empty = require("luminary.nn.meta").is_empty
local placement = require "luminary.nn.parallel.placement"
local vocabulary = require "luminary.nn.parallel.vocabulary"

local ops, fail, who = core.ops, options.fail, "parallelize"

-- ---- activations

-- Checks that all ranks have the same input, once: in the first to run of the layers that one parallelize divided.
local function check_replicated(entry, x)
  local call = entry.call
  if call.is_checked or not core.is_tensor(x) then return end
  call.is_checked = true
  agree(entry.mesh, entry.shown, nil, {x})
end

-- Fails unless dim sequence_dim of an input can be divided, if `divides`, or joined.
local function check_sequence(entry, x, divides)
  local d = entry.sequence_dim
  if x.ndim < d then
    fail('%s: "sequence" is along dim %d of an input, got %s; positions are [1, L]', entry.shown, d,
      options.describe(x))
  end
  if divides then
    options.divisible(entry.shown, "the size of dim " .. d, x:size(d), "the number of ranks", entry.mesh:size())
  end
end

-- Returns a layer's input as all ranks use it for their parts. Layers in turn of one input (q, k and v) share the
-- result, so that one collective joins it, and one sums its gradients. It is held with the input, in a field: if the
-- collector could free it, a rank might call a collective again that the others do not.
local function enter(entry, x)
  options.arg(entry.shown, "the input", x, "tensor")
  if entry.input == "sequence" then check_sequence(entry, x) else check_replicated(entry, x) end
  local state = ("%d %s %d %s %d"):format(x._version, entry.input, entry.sequence_dim,
    tostring(core.is_grad_enabled()), boundaries.count)
  local before = core.field(x, "entered")
  local is_same = before and before.mesh == entry.mesh and before.state == state
  if is_same and core.is_alive(before.output) then return before.output end
  local y = entry.input == "sequence" and functions.gather_partial(x, entry.mesh, entry.sequence_dim)
    or functions.copy(x, entry.mesh)
  if y ~= x then core.set_field(x, "entered", {output = y, mesh = entry.mesh, state = state}) end
  return y
end

-- Returns the sum of the ranks' terms as the next layers use it.
local function leave(entry, x)
  if entry.output == "sequence" then
    check_sequence(entry, x, true)
    return functions.reduce_scatter(x, entry.mesh, entry.sequence_dim)
  end
  return functions.reduce(x, entry.mesh)
end

-- Returns divided features, joined if the plan says so. Classes that this rank has less than others are -inf.
local function join(entry, y)
  local d, shape = y.ndim, lists.slice(y.shape)
  shape[d] = math.ceil(entry.total / entry.mesh:size()) - shape[d]
  if entry.style == "vocabulary" and shape[d] > 0 then
    y = ops.cat({y, ops.full(shape, -math.huge, {dtype = y.dtype, device = y.device})}, d)
  end
  return entry.output == "replicated" and functions.gather(y, entry.mesh, d):narrow(d, 1, entry.total) or y
end

-- Calls f with random numbers of this rank's own, which follow from the next one of the CPU's generator. The generators
-- of all ranks advance alike, and a checkpoint's second run draws the same.
local function with_own_numbers(entry, x, f)
  local group, devices = entry.mesh.groups[1], lists.set {"cpu", x.device}
  local seed = ops.randint(0, 2 ^ 31, {}, {dtype = "int64", device = "cpu"}):item() * group.size + group.rank
  local states = {}
  for device in pairs(devices) do
    states[device] = core.keep(core.get_rng_state(device))
    core.seed_generator(core.generator(device, true), seed)
  end
  return options.restoring(function()
    for device, state in pairs(states) do core.set_rng_state(state, device) end
    states = {}
  end, f)
end

-- Calls f with use(p) in place of each parameter p of a module for which it is a tensor.
local function with_uses(self, use, f)
  local before = {}
  for _, m in ipairs(self:modules()) do
    local record = records.of(m)
    for _, name in ipairs(record.param) do
      local p = record.values[name]
      local t = use(p)
      if t then before[#before + 1], record.values[name] = {record.values, name, p}, t end
    end
  end
  return options.restoring(function()
    for _, slot in ipairs(before) do slot[1][slot[2]] = slot[3] end
    before = {}
  end, f)
end

-- Calls forward on divided activations: gradients of the module's parameters are summed over the ranks.
local function run_divided(entry, forward, self, x, ...)
  local rest = options.pack(...)
  if entry.input == "replicated" then
    check_replicated(entry, x)
    check_sequence(entry, x, true)
    x = functions.split(x, entry.mesh, entry.sequence_dim)
  end
  local function use(p) return not placement.is_divided(p) and functions.copy(p, entry.mesh) end
  local function call() return own.call(forward, self, x, unpack(rest, 1, rest.n)) end
  local draws = self.training and not self.normalized_shape and core.is_tensor(x) and entry.mesh:size() > 1
  local results = options.pack(with_uses(self, use, function()
    if draws then return with_own_numbers(entry, x, call) end
    return call()
  end))
  if entry.output == "replicated" then results[1] = functions.gather(results[1], entry.mesh, entry.sequence_dim) end
  return unpack(results, 1, results.n)
end

-- ---- layers: each has the dims of its weight that are divided, and run(entry, forward, module, x, …)

local function run_column(entry, forward, self, x)
  entry.call.divides = entry.output == "divided" and entry or nil
  x = enter(entry, x)
  if not entry.copies then return join(entry, own.call(forward, self, x)) end
  local function use(p) return functions.copy_near(p, entry.mesh, entry.copies) end
  return with_uses(self, use, function() return own.call(forward, self, x) end)
end

local function run_row(entry, _, self, x)
  entry.call.divides = nil
  if entry.input == "replicated" then
    check_replicated(entry, x)
    x = functions.split(x, entry.mesh, x.ndim)
  end
  local weight, bias = self.weight, self.bias
  local y = leave(entry, ops.linear(x, entry.dim == 1 and weight:t() or weight))
  if not bias then return y end
  return y + (entry.output == "sequence" and functions.copy(bias, entry.mesh) or bias):to(y.dtype)
end

local function run_rows(entry, _, self, ids)
  check_replicated(entry, ids)
  return leave(entry, vocabulary.embedding(self, ids, entry.mesh))
end

local divided_or_replicated, replicated_or_sequence = {"divided", "replicated"}, {"replicated", "sequence"}
local column = {at = "output", run = run_column, input = replicated_or_sequence, output = divided_or_replicated}
local row = {at = "input", run = run_row, input = divided_or_replicated, output = replicated_or_sequence}
local rows = {at = "input", run = run_rows, output = replicated_or_sequence}
local divided = {run = run_divided, input = divided_or_replicated, output = divided_or_replicated}

-- Styles by kind of layer, then by name.
local styles = {
  linear = {column = column, row = row, vocabulary = column},
  embedding = {
    column = {at = "output", run = run_column, output = divided_or_replicated}, row = rows, vocabulary = rows,
  },
  any = {sequence = divided, divided = {run = run_divided}, replicated = {}},
}
local names_of_styles = {"column", "row", "vocabulary", "sequence", "divided", "replicated"}

-- ---- plans

-- Returns the class that defines a module's forward.
local function class_of(module)
  local class = records.of(module).class
  while class.super and class.super.forward == class.forward do class = class.super end
  return class
end

-- Returns the entry of a module for its value in a plan.
local function make_entry(name, module, value, defaults)
  local shown = ("%s: '%s'"):format(who, printable_name(name, 200))
  local given = lists.copy(type(value) == "table" and value or {style = value})
  local style = options.choice(shown, "the style", given.style or value, names_of_styles)
  local dims = module and rawget(class_of(module), "weight_dims") or {output = 1, input = 2}
  local is_layer = not module or rawget(class_of(module), "weight_dims")
  local kind = is_layer and (module and module.num_embeddings and "embedding" or "linear") or "any"
  local layer = styles.any[style] or styles[kind][style]
  if not layer then
    fail('%s: "%s" is for nn.Linear, nn.Embedding and the linear layer of GPT-2, not for %s', shown, style,
      module.__name)
  end
  local spec = {style = {"string"}, input = layer.input and {layer.input}, output = layer.output and {layer.output}}
  if layer.at == "output" then spec.parts, spec.unit, spec.shared = {"any"}, {"count", 1}, {"boolean", false} end
  local entry = options.check(shown, given, spec)
  entry.input = entry.input or layer.input == replicated_or_sequence and defaults.between or "divided"
  entry.output = entry.output or layer.output == replicated_or_sequence and defaults.between or "divided"
  entry.name, entry.module, entry.style, entry.run = name, module, style, layer.run
  entry.mesh, entry.sequence_dim, entry.dim, entry.shown = defaults.mesh, defaults.sequence_dim, dims[layer.at], shown
  entry.call = defaults
  if entry.parts ~= nil and entry.output == "replicated" then
    fail("%s: parts cannot be joined again; leave out output = \"replicated\"", shown)
  end
  if module and (module.max_norm or module.scale_grad_by_freq) then
    fail("%s: an Embedding with max_norm or scale_grad_by_freq cannot be divided", shown)
  end
  if layer == divided and module.running_mean then
    fail("%s: %s would compute statistics of a part of the batch", shown, module.__name)
  end
  return entry
end

-- Returns the sizes of the pieces of dim d of a tensor that are each divided.
local function sizes_of(entry, t, d)
  local parts, size, ranks = entry.parts or 1, t:size(d), entry.mesh:size()
  if type(parts) == "number" then
    options.divisible(entry.shown, "the size of its output", size, "parts", options.arg(entry.shown, "parts", parts,
      "count"))
    local n = parts
    parts = {}
    for i = 1, n do parts[i] = size / n end
  end
  local sum, units = 0, size / (entry.unit or 1)
  if entry.shared and units < ranks and ranks % units == 0 and not parts[2] then
    entry.copies = ranks / units
    return parts
  end
  for i, n in ipairs(options.arg(entry.shown, "parts", parts, "table")) do
    sum = sum + options.arg(entry.shown, ("parts[%d]"):format(i), n, "count")
    options.divisible(entry.shown, ("the size of part %d"):format(i), n, "unit", entry.unit or 1)
    local is_uneven = entry.style == "vocabulary" and math.ceil(n / ranks) * (ranks - 1) < n -- each rank has some
    if n / (entry.unit or 1) % ranks ~= 0 and not is_uneven then
      fail("%s: dim %d of %s has %d%s, which must be divisible by the number of ranks (%d)", entry.shown, d,
        options.describe(t), n / (entry.unit or 1),
        entry.unit and entry.unit > 1 and (" units of %d"):format(entry.unit) or "", ranks)
    end
  end
  if sum ~= size then options.must_be(entry.shown, "parts", "sizes whose sum is " .. size, sum) end
  return parts
end

-- Returns the values of a plan by the names that its keys match, of the names of `modules` and `extra`.
local function resolve(plan, modules, extra)
  local found, by = {}, {}
  for _, key in ipairs(lists.sorted_keys(plan)) do
    options.arg(who, "a key of plan", key, "string")
    local pattern, any = "^" .. key:gsub("[%^%$%(%)%%%.%[%]%+%-%?]", "%%%0"):gsub("%*", "[^.]*") .. "$", false
    for _, names in ipairs {modules, extra} do
      for name in pairs(names) do
        if name == key or name ~= "" and name:find(pattern) then
          any = true
          if by[name] and by[name] ~= name and key ~= name then
            fail("%s: plan has two keys for '%s': '%s' and '%s'", who, name, by[name], key)
          end
          if by[name] ~= name then found[name], by[name] = plan[key], key end
        end
      end
    end
    if not any then
      local near = core.nearest(key, lists.sorted_keys(modules))
      fail("%s: no module matches '%s', a key of plan%s", who, printable_name(key, 200),
        near and near ~= "" and "; did you mean '" .. near .. "'?" or "")
    end
  end
  return found
end

-- ---- dividing

-- Returns the splits of the entries, with t, the tensor, and its name, once for each tensor.
local function divisions_of(module, entries)
  local list, of, by_module = {}, {}, {}
  local function add(entry, t, name, d)
    if not t or not d then return end
    entry.total = t:size(d)
    local sizes = sizes_of(entry, t, d)
    local same = of[t]
    if not same then
      of[t] = {t = t, name = name, mesh = entry.mesh, dim = d, sizes = sizes, copies = entry.copies}
      list[#list + 1] = of[t]
    elseif same.dim ~= d or table.concat(same.sizes, ",") ~= table.concat(sizes, ",") then
      fail("%s: '%s' and '%s' are one tensor, which the plan divides in two ways", who, same.name, name)
    end
  end
  for _, entry in ipairs(entries) do
    local m = entry.module or entry.tied
    if entry.module then by_module[m] = entry end
    if entry.dim and entry.module and records.of(m).values.parametrizations then
      fail("%s: '%s' has a parametrization, such as weight_norm, which needs all of a parameter; call "
        .. "nn.utils.parametrize.remove_parametrizations before, or leave the layer out of plan", who, entry.name)
    end
    add(entry, entry.module and m.weight or not entry.module and m:embedding(),
      records.joined(entry.name, "weight"), entry.dim)
    if entry.style == "column" or entry.style == "vocabulary" and entry.run == run_column then
      add(entry, entry.module and m.bias or not entry.module and m.score_bias, records.joined(entry.name, "bias"), 1)
    end
  end
  for name, m in module:named_modules() do
    for _, each in ipairs(records.of(m).param) do
      local t = records.of(m).values[each]
      local division = of[t]
      if division and not by_module[m] then
        fail("%s: '%s' is '%s', which the plan divides; name both modules in it", who, records.joined(name, each),
          division.name)
      end
    end
  end
  return list
end

-- Fails for parameters of modules without a style, if activations are divided along the sequence.
local function check_complete(module, by_name)
  for name, m in module:named_modules() do
    local covered, prefix = by_name[name], name
    while not covered and prefix ~= "" do
      prefix = prefix:match "^(.*)%.[^.]*$" or ""
      covered = by_name[prefix]
    end
    if not covered and records.of(m).param[1] then
      fail('%s: the plan has "sequence", but no style for \'%s\' (%s); say "sequence" if it sees a part of the '
        .. 'sequence, "replicated" if it sees all of it', who, name, m.__name)
    end
  end
end

-- Returns the properties that must be equal on all ranks, as lines.
local function describe(module, entries, list)
  local lines = lists.map(entries, function(e)
    return ('\'%s\' is "%s", %s to %s, sequence_dim %d'):format(e.name, e.style, e.input, e.output, e.sequence_dim)
  end)
  for _, d in ipairs(list) do
    lines[#lines + 1] = ("%s, dim %d in parts of %s"):format(placement.summarize(d.name, d.t), d.dim,
      table.concat(d.sizes, ", "))
  end
  for name, p in module:named_parameters() do lines[#lines + 1] = placement.summarize(name, p) end
  return lines
end

-- Makes calls of run(forward, self, …) run in place of those of a module's forward.
local function wrap_forward(module, run)
  local record = records.of(module)
  local forward = rawget(record.values, "forward") or record.class.forward
  record.values.forward = function(...) return run(forward, ...) end
end

-- Puts an entry's forward around its module's.
local function install(entry)
  if not entry.module then
    records.of(entry.tied).values.project = function(x, weight, bias)
      return join(entry, ops.linear(enter(entry, x), weight, bias))
    end
    return
  end
  records.of(entry.module).parallel = entry
  if entry.run then wrap_forward(entry.module, function(...) return entry.run(entry, ...) end) end
end

-- Adds to errors of the module, until a call succeeds, the entry that divided features before: code that expects all of
-- them reports sizes alone. call: that of all entries.
local function explain_errors(module, call)
  wrap_forward(module, function(forward, ...)
    if call.is_over then return own.call(forward, ...) end
    call.divides = nil
    local results = options.pack(pcall(own.call, forward, ...))
    local entry = not results[1] and type(results[2]) == "string" and call.divides
    local hint = entry and ('; %s: "%s" returned this rank\'s part of the features, for a "row"; {output = '
      .. '"replicated"} joins them, and a fused layer, such as q, k and v, requires parts'):format(entry.shown,
      entry.style)
    if not results[1] then error(hint and results[2] .. hint or results[2], 0) end
    call.is_over = true
    return unpack(results, 2, results.n)
  end)
end

-- Fails unless the module may be divided over a mesh.
local function check_module(module, mesh)
  for name, m in module:named_modules() do
    records.check_sized(who, m)
    if records.of(m).parallel then fail("%s: '%s' is in the plan of an earlier call", who, name) end
  end
  for name, p in module:named_parameters() do
    if placement.rows(p) then fail("%s: '%s' is sharded already; call parallelize before fully_shard", who, name) end
    placement.check_replicas(who, name, p, mesh.groups[1])
  end
end

--- Divides the layers of a module over the ranks of a mesh by a plan.
return signature.of("parallelize(module: module, mesh, plan, {sequence_dim: count = 2})",
  function(module, mesh, plan, opts)
  device_mesh.check(who, mesh)
  if type(plan) == "string" or options.is_plain(plan) and plan.style then plan = {[""] = plan} end
  if not options.is_plain(plan) then options.must_be(who, "plan", "a table of styles by module names", plan) end
  check_module(module, mesh)
  local modules, tied = {}, {}
  for name, m in module:named_modules() do
    modules[name] = m
    if class_of(m).parallel_plan and not m.lm_head then tied[records.joined(name, "lm_head")] = m end
  end
  local values, entries, by_name = resolve(plan, modules, tied), {}, {}
  local defaults = {mesh = mesh, sequence_dim = opts.sequence_dim, between = "replicated"}
  for _, value in pairs(values) do
    local style = type(value) == "table" and value.style or value
    if style == "sequence" then defaults.between = "sequence" end
  end
  for _, name in ipairs(lists.sorted_keys(values)) do
    local entry = make_entry(name, modules[name], values[name], defaults)
    entry.tied = not modules[name] and tied[name] or nil
    entries[#entries + 1], by_name[name] = entry, entry
  end
  for _, name in ipairs(lists.sorted_keys(tied)) do -- a divided embedding needs an output of as many rows
    local weight = tied[name]:embedding()
    local divides = lists.find(entries, function(e) return e.module and e.module.weight == weight and e.dim end)
    if divides and not by_name[name] then
      fail("%s: '%s' is also the output's weight; name '%s' in the plan", who, divides.name, name)
    end
  end
  for _, outer in ipairs(entries) do -- both would sum gradients over the ranks
    local prefix = outer.run == run_divided and records.joined(outer.name, "x"):sub(1, -2)
    local inner = prefix and lists.find(entries, function(e) return e ~= outer and e.name:sub(1, #prefix) == prefix end)
    if inner then
      fail("%s: '%s' is within '%s', which is \"%s\"; name only one of them", who, inner.name, outer.name, outer.style)
    end
  end
  if defaults.between == "sequence" then check_complete(module, by_name) end
  local list, group = divisions_of(module, entries), mesh.groups[1]
  mesh:call(alike, group, who, "plan differs", describe(module, entries, list), "parameter")
  core.no_grad(core.scope, function()
    for _, t in ipairs(group.size > 1 and lists.joined(module:parameters(), module:buffers()) or {}) do
      if not is_empty(t) then placement.broadcast(mesh, t:detach()) end
    end
    for _, split in ipairs(list) do placement.divide(split.t, split) end
  end)
  placement.note_names(who, group, module)
  if lists.find(module:parameters(), is_empty) then placement.fill_later(who, module, mesh) end
  for _, entry in ipairs(entries) do install(entry) end
  if group.size > 1 then explain_errors(module, defaults) end
  for name, m in module:named_modules() do
    if class_of(m).parallel_plan then
      local head = by_name[records.joined(name, "lm_head")]
      m.tensor_ranks, m.has_part_of_scores = group.size, group.size > 1 and head ~= nil and head.output == "divided"
    end
    records.of(m).on_clone = function()
      fail("clone: a module of parallelize cannot be cloned; clone it before")
    end
  end
  return module
end)

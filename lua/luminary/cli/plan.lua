--- Runs `luminary run --plan MODEL`: estimates memory and time of a training step in each layout of a job's ranks.
local core = require "luminary.core"
local cost = require "luminary.distributed.cost_model"
local lists = require "luminary.base.lists"
local load_module = require "luminary.base.load_module"
local Source = require "luminary.file_formats.source"

local GB, ROOM = 1e9, 0.94 -- share of a card's memory for tensors: the rest is the driver's, and lost between blocks

local function fail(...) error(string.format(...), 0) end

-- ---- models

local gpt = lists.parts "n_layer n_embd n_head vocab_size n_positions n_inner tie_word_embeddings resid_pdrop"
local llama = lists.parts [[num_hidden_layers hidden_size num_attention_heads vocab_size max_position_embeddings
  intermediate_size num_key_value_heads head_dim tie_word_embeddings attention_bias mlp_bias]]
local kinds = {gpt2 = gpt, llama = llama, mistral = llama, qwen2 = llama, qwen3 = llama, phi3 = llama, gemma = llama,
  gemma2 = llama, smollm3 = llama}

-- A kind and values of its options in the order above. Radford et al. 2019; Brown et al. 2020; Touvron et al. 2023;
-- Dubey et al. 2024.
local presets = {
  gpt2 = {"gpt2", 12}, ["gpt2-medium"] = {"gpt2", 24, 1024, 16}, ["gpt2-large"] = {"gpt2", 36, 1280, 20},
  ["gpt2-xl"] = {"gpt2", 48, 1600, 25}, ["gpt3-175b"] = {"gpt2", 96, 12288, 96, 50257, 2048},
  ["llama-7b"] = {"llama", 32}, ["llama-13b"] = {"llama", 40, 5120, 40, 32000, 2048, 13824},
  ["llama-65b"] = {"llama", 80, 8192, 64, 32000, 2048, 22016},
  ["llama2-70b"] = {"llama", 80, 8192, 64, 32000, 4096, 28672, 8},
  ["llama3-8b"] = {"llama", 32, 4096, 32, 128256, 8192, 14336, 8},
  ["llama3-70b"] = {"llama", 80, 8192, 64, 128256, 8192, 28672, 8},
  ["llama3-405b"] = {"llama", 126, 16384, 128, 128256, 8192, 53248, 8},
}

-- Returns a net of lm.models without memory, with one block, and the number of blocks that `values` (options) has.
local function make_one_block_net(kind, values)
  local opts, first = {}, kinds[kind][1]
  for _, name in ipairs(kinds[kind]) do opts[name] = values[name] or nil end
  local layers = opts[first] or kind == "gpt2" and 12 or 32
  if type(layers) ~= "number" or layers < 1 or layers % 1 > 0 then
    fail("%s must be an integer of at least 1, got '%s'", first, tostring(layers))
  end
  opts[first] = 1
  return load_module("luminary.nn.meta").of(load_module("luminary.models")[kind], opts), layers
end

-- Returns the net that --plan names, and the number of its blocks if it has fewer.
local function read_net(name)
  local meta, preset = load_module "luminary.nn.meta", presets[name]
  if preset then
    local values = {}
    for i = 2, #preset do values[kinds[preset[1]][i - 1]] = preset[i] end
    return make_one_block_net(preset[1], values)
  elseif name:find "%.json$" then
    local ok, config = pcall(core.json_decode, Source.whole_text(name), false)
    if not ok or type(config) ~= "table" then fail("'%s' is not a JSON object", name) end
    if not kinds[config.model_type] then
      fail("'%s': model_type must be one of %s, got '%s'", name, table.concat(lists.sorted_keys(kinds), ", "),
        tostring(config.model_type))
    end
    return make_one_block_net(config.model_type, config)
  elseif name:find "%.lua$" then
    local chunk, why = loadfile(name)
    local net = meta.of(chunk or fail("%s", why))
    if load_module("luminary.nn.module_fields").is_module(net) then return net end
    fail("'%s' must return a module, made in nn.utils.init_empty_weights", name)
  end
  local names = lists.sorted_keys(presets)
  local near = core.nearest(name, names)
  fail("--plan must be one of %s, a config.json or a Lua file, got '%s'%s", table.concat(names, ", "), name,
    near and "; did you mean '" .. near .. "'?" or "")
end

-- Returns the sizes of a list of parameters, as cost.transformer has them, without those in a set.
local function sizes_of(parameters, except)
  local sizes = {}
  for _, p in ipairs(parameters) do
    if p.ndim > 2 then fail("the plan knows layers whose weights have 1 or 2 dims, got %d", p.ndim) end
    local row = {p.ndim > 0 and p:size(1) or 1, p.ndim == 2 and p:size(2) or 1, p.ndim == 2}
    if not except[p] then sizes[#sizes + 1] = row end
  end
  return sizes
end

-- Returns the blocks of a net: the largest list of modules of one class.
local function blocks_of(net)
  local nn, most, blocks = load_module "luminary.nn", 0, nil
  for _, m in ipairs(net:modules()) do
    local is_list = (m:is(nn.ModuleList) or m:is(nn.Sequential)) and #m > 0
    if is_list and lists.every(m, function(each) return each.__name == m[1].__name end) then
      local n = lists.sum(m:parameters(), core.methods.numel)
      if n > most then most, blocks = n, m end
    end
  end
  return blocks or fail "the model has no list (nn.ModuleList, nn.Sequential) of blocks of one class"
end

--- Returns what the cost model knows about a net, whose list of blocks stands for `layers` (their number) of them.
local function model_of(net, layers, seq)
  local blocks, config, of_blocks = blocks_of(net), net.config, {}
  for _, p in ipairs(blocks:parameters()) do of_blocks[p] = true end
  local model = {block = sizes_of(blocks[1]:parameters(), {}), rest = sizes_of(net:parameters(), of_blocks),
    layers = layers or #blocks, seq = seq or 1}
  if type(config) == "table" and config.vocab_size and (config.n_embd or config.hidden_size) then
    local most = config.max_positions
    if (seq or 0) > most then fail("--seq must be at most %d, the positions of the model, got %d", most, seq) end
    model.hidden, model.heads = config.n_embd or config.hidden_size, config.n_head or config.num_attention_heads
    model.kv_heads, model.head_dim, model.seq = config.num_key_value_heads, config.head_dim, seq or math.min(most, 8192)
    model.inner, model.gated = config.n_inner or config.intermediate_size, config.hidden_size ~= nil
    model.vocab, model.tied = load_module("luminary.models.common").vocab_rows(config), config.tie_word_embeddings
    model.masks = (config.resid_pdrop or 0) > 0
    return cost.transformer(model)
  end
  if not seq and lists.find(net:modules(), function(m) return m:is(load_module "luminary.nn".Embedding) end) then
    fail "--seq is required: the model has an nn.Embedding, but no config with the number of its positions"
  end
  model.matrices, model.saved = {}, {whole = 0, divided = 0}
  for _, s in ipairs(model.block) do
    if s[3] then
      table.insert(model.matrices, {s[2], s[1], "column"})
      model.saved.whole = model.saved.whole + s[1] + s[2]
    end
  end
  local first = model.matrices[1] or fail "the model's blocks have no matrices"
  model.hidden, model.work = first[1], first[2]
  return model
end

-- ---- layouts

local DIMS = {"replicate", "shard", "tensor", "pipeline", "context"}

-- Calls f(mesh) for each way to divide n cards among the dims from the i-th on.
local function each_mesh(n, f, i, mesh)
  i, mesh = i or 1, mesh or {}
  for size = i == #DIMS and n or 1, n do
    if n % size == 0 then
      mesh[DIMS[i]] = size
      if i == #DIMS then f(lists.copy(mesh)) else each_mesh(n / size, f, i + 1, mesh) end
    end
  end
end

local function is_possible(model, job, mesh)
  local t, c, heads = mesh.tensor, mesh.context, model.heads
  return job.batch % (mesh.replicate * mesh.shard) == 0 and mesh.pipeline <= model.layers
    and (t == 1 or heads and job.gpus % t == 0 and heads % t == 0 and model.kv_heads % t == 0)
    and (c == 1 or heads and model.seq % (2 * c) == 0 and model.seq / c >= 512)
end

-- Calls f(layout) for each layout on a mesh.
local function each_layout(model, job, mesh, f)
  local share, p = job.batch / mesh.replicate / mesh.shard, mesh.pipeline
  for _, micro in ipairs(model.seq > 1 and {1, 2, 4, 8, 16} or {1, 16, 64, 256, 1024}) do
    for _, interleave in ipairs(share % micro == 0 and (p > 1 and {1, 2, 4} or {1}) or {}) do
      local fits = interleave == 1 or model.layers % (p * interleave) == 0 and share / micro % p == 0
      for choice = 0, not fits and -1 or mesh.shard * mesh.context > 1 and 5 or 1 do
        f(setmetatable({micro = micro, micros = share / micro, interleave = interleave, el = job.el,
          reshard = choice < 2, keep = choice > 3, recompute = choice % 2 == 1 and "block" or nil}, {__index = mesh}))
      end
    end
  end
end

-- Returns two lists of {layout, memory, time}, one of each mesh: the fastest that fits, by time; and of meshes where
-- none fits that with the least memory, by memory.
local function search(model, job)
  local fitting, large = {}, {}
  each_mesh(job.cards, function(mesh)
    if not is_possible(model, job, mesh) then return end
    local fast, small
    each_layout(model, job, mesh, function(layout)
      local memory = cost.memory(model, layout)
      if memory.total > ROOM * job.memory then
        if not small or memory.total < small.memory.total then small = {layout = layout, memory = memory} end
        return
      end
      local time = cost.step(model, layout, job.machine)
      if not fast or time.total < fast.time.total then fast = {layout = layout, memory = memory, time = time} end
    end)
    if fast then fitting[#fitting + 1] = fast elseif small then large[#large + 1] = small end
  end)
  table.sort(fitting, function(a, b) return a.time.total < b.time.total end)
  table.sort(large, function(a, b) return a.memory.total < b.memory.total end)
  return fitting, large
end

-- ---- text

local CALLS = {
  tensor = "all_reduce of activations", context = "ring of keys and values", replicate = "all_reduce of gradients",
  shard = "all_gather and reduce_scatter of blocks", pipeline = "sends between stages", bubble = "stages that wait",
  contention = "slower kernels beside collectives", stragglers = "waiting for the slowest rank",
}
local MEMORY = lists.parts "parameters gradients optimizer activations gathered buffers"
local TIME = lists.parts [[compute recompute tensor context shard copies replicate pipeline bubble optimizer contention
  stragglers]]

-- Returns a layout as text: its dims above 1, and its options.
local function text_of(layout)
  local dims = lists.filter(DIMS, function(dim) return layout[dim] > 1 end)
  dims = lists.map(dims, function(dim) return dim .. " " .. layout[dim] end)
  return dims[1] and table.concat(dims, " x ") or "one card", ("%d micro-batch%s of %d%s%s%s"):format(layout.micros,
    layout.micros == 1 and "" or "es", layout.micro,
    layout.interleave > 1 and ", interleaved " .. layout.interleave or "",
    layout.shard * layout.context == 1 and "" or layout.reshard and ", reshard" or layout.keep and ", kept"
      or ", no reshard",
    layout.recompute and ", recompute" or "")
end

-- Returns the parts of at least a thousandth of their total, "name 1.2, …".
local function parts_text(parts, names, unit, form)
  local shown = lists.filter(names, function(name) return (parts[name] or 0) > parts.total / 1000 end)
  return table.concat(lists.map(shown, function(name) return name .. form:format(parts[name] / unit) end), ", ")
end

local function print_row(number, row)
  local time, mesh, how = row.time, text_of(row.layout)
  print(("%2d. %s: %.1f ms, %.1f GB\n      %s"):format(number, mesh, 1e3 * time.total, row.memory.total / GB, how))
  print("      GB: " .. parts_text(row.memory, MEMORY, GB, " %.2f"))
  print(("      ms: %s; hidden %.1f"):format(parts_text(time, TIME, 1e-3, " %.1f"), 1e3 * time.hidden))
  if time.longest == "none" then return end
  print(("      longest collective: %s (%s), %.1f ms, of which %.1f exposed"):format(CALLS[time.longest], time.longest,
    1e3 * time.times[time.longest], 1e3 * time[time.longest]))
end

-- Returns the name of the part by which `a` exceeds `b` most, and the difference.
local function largest_excess(a, b, names)
  local name, most = nil, -math.huge
  for _, key in ipairs(names) do
    local more = (a[key] or 0) - (b[key] or 0)
    if more > most then name, most = key, more end
  end
  return name, most
end

-- Prints why the first of the fitting layouts is the best, and why the first with more of each dim is not.
local function print_reasons(model, job, fitting, large)
  local best, time = fitting[1], fitting[1].time
  local mesh_of_best = text_of(best.layout)
  print(("Best: %s. %.0f %% of its step is arithmetic that all layouts do; no other that fits adds less: %s."):format(
    mesh_of_best, 100 * time.compute / time.total,
    parts_text(time, lists.slice(TIME, 2), time.total / 100, " %.1f %%")))
  for _, dim in ipairs(DIMS) do
    local function has(row) return row.layout[dim] > best.layout[dim] end
    local other, big = lists.find(fitting, has), lists.find(large, has)
    local mesh, how = text_of((other or big or best).layout)
    if other then
      local name, more = largest_excess(other.time, time, TIME)
      print(("- more %s (%s; %s) takes %.1f ms more: %s, +%.1f ms."):format(dim, mesh, how,
        1e3 * (other.time.total - time.total), CALLS[name] or name, 1e3 * more))
    elseif big then
      local name, bytes = largest_excess(big.memory, {}, MEMORY)
      print(("- more %s (%s; %s) does not fit: %.1f GB, of which %s %.1f."):format(dim, mesh, how,
        big.memory.total / GB, name, bytes / GB))
    elseif best.layout[dim] == 1 and job.cards > 1 and (dim == "tensor" or dim == "context") then
      print(("- no %s: %s."):format(dim, not model.heads and "the plan does not know this model's attention"
        or dim == "context" and ("parts of %d tokens would be below 512"):format(model.seq)
        or ("%d heads, %d of keys, are not divisible among cards of a node"):format(model.heads,
          model.kv_heads)))
    end
  end
end

-- Fails since no layout fits; the message names the memory, GPUs or nodes that would suffice.
local function fail_without_layout(model, job, large)
  if not large[1] then fail("no layout: --batch %d cannot be divided among %d cards", job.batch, job.cards) end
  local mesh, how = text_of(large[1].layout)
  local memory, nodes = large[1].memory, nil
  for factor = 1, 8 do
    local more = {cards = job.cards * 2 ^ factor, batch = job.batch * (job.has_batch and 1 or 2 ^ factor)}
    if not nodes and search(model, setmetatable(more, {__index = job}))[1] then nodes = job.nodes * 2 ^ factor end
  end
  fail("no layout fits: the smallest, %s with %s, takes %.1f GB a card, %.1f GB too much (%s); --memory %d would do%s",
    mesh, how, memory.total / GB, (memory.total - ROOM * job.memory) / GB, parts_text(memory, MEMORY, GB, " %.1f"),
    math.ceil(memory.total / ROOM / GB), nodes and (", or --nodes %d"):format(nodes) or "")
end

local function run(o)
  local card, names = cost.cards[o.card or "h100"], lists.sorted_keys(cost.cards)
  local dtypes = {bfloat16 = 2, float16 = 2, float32 = 4}
  local dtype = o.dtype or (o.card == "cpu" and "float32" or "bfloat16")
  if not card then fail("--card must be one of %s, got '%s'", table.concat(names, ", "), o.card) end
  if not dtypes[dtype] then fail("--dtype must be bfloat16, float16 or float32, got '%s'", dtype) end
  local job = {nodes = o.nodes or 1, gpus = o.gpus or 8, el = dtypes[dtype], has_batch = o.batch}
  job.cards, job.memory = job.nodes * job.gpus, o.memory and o.memory * GB or card.bytes
  if job.cards > 65536 then fail("--nodes times --gpus must be at most 65536, got %d", job.cards) end
  job.batch, job.machine = o.batch or 4 * job.cards, cost.machine(card, job.gpus, o.network or nil)
  local net, layers = read_net(o.plan)
  local model = model_of(net, layers, o.seq or nil)
  local fitting, large = search(model, job)
  if #fitting == 0 then fail_without_layout(model, job, large) end
  local is_vector = not o.seq and not model.vocab
  print(("%s: %.1f M parameters, %d blocks; %d x %d %s of %.4g GB; batches of %d%s, %s, AdamW"):format(o.plan,
    (cost.elements(model.block, 1, 1) * model.layers + cost.elements(model.rest, 1, 1)) / 1e6, model.layers, job.nodes,
    job.gpus, o.card or "h100", job.memory / GB, job.batch,
    is_vector and " samples" or (" x %d tokens"):format(model.seq), dtype))
  if is_vector then
    print "A sample is taken to be one vector for each nn.Linear; of sequences, pass --seq POSITIONS."
  end
  print(("%d meshes fit in %.0f %% of a card's memory, %d do not. The fastest:"):format(#fitting, 100 * ROOM, #large))
  for i = 1, math.min(#fitting, o.layouts or 5) do print_row(i, fitting[i]) end
  print_reasons(model, job, fitting, large)
end

return {
  model_of = model_of,

  --- Prints the plan for the options of `luminary run`. Returns nil, or a message that says what is wrong.
  run = function(o)
    local ok, why = pcall(run, o)
    if not ok then return (tostring(why):gsub(o.plan:find "%.lua$" and "^$" or "^[^\n]-:%d+: ", "")) end
  end,
}

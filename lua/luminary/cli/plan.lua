--- Runs `luminary run --plan MODEL`: estimates memory and time of a training step in each layout of a job's ranks.
local core = require "luminary.core"
local cost = require "luminary.distributed.cost_model"
local lists = require "luminary.base.lists"
local load_module = require "luminary.base.load_module"
local Source = require "luminary.file_formats.source"

local plan = {}
local GB, ROOM = 1e9, 0.94 -- share of a card's memory for tensors: the rest is the driver's, and lost between blocks

-- ---- models

local gpt_names = {"n_layer", "n_embd", "n_head", "vocab_size", "n_positions", "n_inner", "tie_word_embeddings",
  "resid_pdrop"}
local llama_names = {"num_hidden_layers", "hidden_size", "num_attention_heads", "vocab_size", "max_position_embeddings",
  "intermediate_size", "num_key_value_heads", "head_dim", "tie_word_embeddings", "attention_bias", "mlp_bias"}

-- Models by name: values in the order of the names above. Radford et al. 2019; Brown et al. 2020; Touvron et al. 2023;
-- Dubey et al. 2024.
local presets = {
  gpt2 = {"gpt2"}, ["gpt2-medium"] = {"gpt2", 24, 1024, 16}, ["gpt2-large"] = {"gpt2", 36, 1280, 20},
  ["gpt2-xl"] = {"gpt2", 48, 1600, 25}, ["gpt3-175b"] = {"gpt2", 96, 12288, 96, 50257, 2048},
  ["llama-7b"] = {"llama"}, ["llama-13b"] = {"llama", 40, 5120, 40, 32000, 2048, 13824},
  ["llama-30b"] = {"llama", 60, 6656, 52, 32000, 2048, 17920},
  ["llama-65b"] = {"llama", 80, 8192, 64, 32000, 2048, 22016},
  ["llama2-70b"] = {"llama", 80, 8192, 64, 32000, 4096, 28672, 8},
  ["llama3-8b"] = {"llama", 32, 4096, 32, 128256, 8192, 14336, 8},
  ["llama3-70b"] = {"llama", 80, 8192, 64, 128256, 8192, 28672, 8},
  ["llama3-405b"] = {"llama", 126, 16384, 128, 128256, 8192, 53248, 8},
}

-- Returns a net of lm.models without memory, with one block, and the number of its blocks.
local function make(kind, opts)
  local names = kind == "gpt2" and gpt_names or llama_names
  local layers = opts[names[1]] or (kind == "gpt2" and 12 or 32)
  if type(layers) ~= "number" or layers < 1 or layers % 1 > 0 then
    error(("%s must be an integer of at least 1, got %s"):format(names[1], tostring(layers)), 0)
  end
  opts[names[1]] = 1
  return load_module("luminary.nn.meta").of(load_module("luminary.models")[kind], opts), layers
end

local function from_preset(preset)
  local opts = {}
  for i = 2, #preset do opts[(preset[1] == "gpt2" and gpt_names or llama_names)[i - 1]] = preset[i] end
  return make(preset[1], opts)
end

local function from_json(path)
  local ok, config = pcall(core.json_decode, Source.whole_text(path), false)
  if not ok or type(config) ~= "table" then return nil, ("'%s' is not a JSON object"):format(path) end
  local kinds = {"gemma", "gpt2", "llama", "mistral", "phi3", "qwen2", "qwen3"}
  if not lists.index_of(kinds, config.model_type) then
    return nil, ("'%s': model_type must be one of %s, got '%s'"):format(path, table.concat(kinds, ", "),
      tostring(config.model_type))
  end
  local opts = {}
  for _, name in ipairs(config.model_type == "gpt2" and gpt_names or llama_names) do
    if config[name] then opts[name] = config[name] end
  end
  return make(config.model_type, opts)
end

-- Returns the sizes of a list of parameters, as cost.transformer has them; `skip`: a set of those to leave out.
local function sizes_of(parameters, skip)
  local sizes = {}
  for _, p in ipairs(parameters) do
    if p.ndim > 2 then
      error(("a parameter has shape [%s]; the plan knows layers whose weights have 1 or 2 dims"):format(
        table.concat(p.shape, ", ")), 0)
    end
    if not (skip and skip[p]) then sizes[#sizes + 1] = {p.ndim > 0 and p:size(1) or 1, p.ndim == 2 and p:size(2) or 1, p.ndim == 2} end
  end
  return sizes
end

-- Returns the blocks of a net: the elements of its largest list of modules of one class.
local function blocks_of(net)
  local nn, most, blocks = load_module "luminary.nn", 0, nil
  for _, m in ipairs(net:modules()) do
    local n, same = 0, (m:is(nn.ModuleList) or m:is(nn.Sequential)) and #m > 0
    for i = 1, same and #m or 0 do same = same and m[i].__name == m[1].__name end
    for _, p in ipairs(same and m:parameters() or {}) do n = n + p:numel() end
    if n > most then most, blocks = n, m end
  end
  return blocks or error("the model has no list (nn.ModuleList, nn.Sequential) of blocks of one class", 0)
end

-- Returns the model of a net, whose list of blocks stands for `layers` ones.
local function model_of(net, layers, seq)
  local blocks, config = blocks_of(net), net.config
  local of_blocks, block = {}, sizes_of(blocks[1]:parameters())
  for _, p in ipairs(blocks:parameters()) do of_blocks[p] = true end
  local rest = sizes_of(net:parameters(), of_blocks)
  layers = layers or #blocks
  if type(config) == "table" and config.vocab_size and (config.n_embd or config.hidden_size) then
    local most = config.max_positions
    if (seq or 0) > most then error(("--seq must be at most %d, the positions of the model, got %d"):format(most, seq), 0) end
    local rows = load_module("luminary.models.common").vocab_rows(config)
    return cost.transformer {
      layers = layers, hidden = config.n_embd or config.hidden_size, heads = config.n_head or config.num_attention_heads,
      kv_heads = config.num_key_value_heads, head_dim = config.head_dim, vocab = rows,
      inner = config.n_inner or config.intermediate_size, gated = config.hidden_size ~= nil,
      masks = (config.resid_pdrop or 0) > 0, tied = config.tie_word_embeddings, seq = seq or math.min(most, 8192),
      block = block, rest = rest,
    }
  end
  local matrices, saved = {}, 0
  for _, s in ipairs(block) do
    if s[3] then
      matrices[#matrices + 1] = {s[2], s[1], "column"}
      saved = saved + s[1] + s[2]
    end
  end
  if #matrices == 0 then error("the model's blocks have no matrices", 0) end
  return {layers = layers, hidden = matrices[1][1], seq = seq or 1, matrices = matrices, work = matrices[1][2],
    saved = {whole = saved, divided = 0}, block = block, rest = rest, vocab = 0}
end

-- Returns the model that --plan names, or nil and why there is none.
local function read_model(name, seq)
  local net, layers
  if presets[name] then
    net, layers = from_preset(presets[name])
  elseif name:find "%.json$" then
    net, layers = from_json(name)
  elseif name:find "%.lua$" then
    local chunk, why = loadfile(name)
    if not chunk then return nil, why end
    net = load_module("luminary.nn.meta").of(chunk)
    if not load_module("luminary.base.class").has(net, "parameters") then
      return nil, ("'%s' must return a module, made in nn.utils.init_empty_weights"):format(name)
    end
  else
    local near = core.nearest(name, lists.sorted_keys(presets))
    return nil, ("--plan must be one of %s, a config.json or a Lua file, got '%s'%s"):format(
      table.concat(lists.sorted_keys(presets), ", "), name, near and "; did you mean '" .. near .. "'?" or "")
  end
  if not net then return nil, layers end
  return model_of(net, layers, seq)
end

-- ---- layouts

local DIMS = {"replicate", "shard", "tensor", "pipeline", "context"}

local function divisors(n)
  local list = {}
  for d = 1, n do
    if n % d == 0 then list[#list + 1] = d end
  end
  return list
end

-- Calls f(layout) for each layout of the cards. job: {cards, gpus, batch, el}.
local function each_layout(model, job, f)
  local heads, kv = model.heads or 1, model.kv_heads or model.heads or 1
  local function variants(base)
    local share = job.batch / base.replicate / base.shard
    if share % 1 > 0 then return end
    for _, micro in ipairs {1, 2, 4, 8, 16} do
      for _, interleave in ipairs(base.pipeline > 1 and {1, 2, 4} or {1}) do
        local p = base.pipeline
        local fits = share % micro == 0
          and (interleave == 1 or model.layers % (p * interleave) == 0 and share / micro % p == 0)
        for choice = 0, fits and 3 or -1 do
          local layout = setmetatable({micro = micro, micros = share / micro, interleave = interleave, el = job.el,
            reshard = choice < 2, recompute = choice % 2 == 1 and "block" or nil}, {__index = base})
          if base.shard > 1 or choice < 2 then f(layout) end
        end
      end
    end
  end
  for _, tensor in ipairs(divisors(job.gpus)) do
    for _, pipeline in ipairs(heads % tensor == 0 and kv % tensor == 0 and divisors(job.cards / tensor) or {}) do
      for _, context in ipairs(pipeline <= model.layers and divisors(job.cards / tensor / pipeline) or {}) do
        local rest = job.cards / tensor / pipeline / context
        local cuts = context == 1 or model.heads and model.seq % (2 * context) == 0 and model.seq / context >= 512
        for _, shard in ipairs(cuts and divisors(rest) or {}) do
          variants {replicate = rest / shard, shard = shard, tensor = tensor, pipeline = pipeline, context = context}
        end
      end
    end
  end
end

-- Returns two lists of {layout, memory, time}, one of each mesh: the fastest variant that fits, by time; and of meshes
-- where none fits that with the least memory, by memory.
local function search(model, job)
  local fitting, large = {}, {}
  each_layout(model, job, function(layout)
    local key, row = lists.map(DIMS, function(dim) return layout[dim] end), {layout = layout}
    key, row.memory = table.concat(key, " "), cost.memory(model, layout)
    if row.memory.total > ROOM * job.memory then
      if not large[key] or row.memory.total < large[key].memory.total then large[key] = row end
      return
    end
    row.time = cost.step(model, layout, job.machine)
    if not fitting[key] or row.time.total < fitting[key].time.total then fitting[key] = row end
  end)
  local function sorted(rows, value, except)
    local list = lists.map(lists.sorted_keys(rows, function(key) return not except[key] end), function(k) return rows[k] end)
    table.sort(list, function(a, b) return value(a) < value(b) end)
    return list
  end
  return sorted(fitting, function(row) return row.time.total end, {}),
    sorted(large, function(row) return row.memory.total end, fitting)
end

-- ---- text

local CALLS = {
  tensor = "all_reduce of activations", context = "ring of keys and values", replicate = "all_reduce of gradients",
  shard = "all_gather and reduce_scatter of blocks", pipeline = "sends between stages",
  bubble = "stages that wait", contention = "slower kernels beside collectives", stragglers = "waiting for the slowest rank",
}
local MEMORY = {"parameters", "gradients", "optimizer", "activations", "gathered", "buffers"}
local TIME = {"compute", "recompute", "tensor", "context", "shard", "replicate", "pipeline", "bubble", "optimizer",
  "contention", "stragglers"}

local function mesh_of(layout)
  local parts = {}
  for _, dim in ipairs(DIMS) do
    if layout[dim] > 1 then parts[#parts + 1] = dim .. " " .. layout[dim] end
  end
  return parts[1] and table.concat(parts, " x ") or "one card"
end

local function options_of(layout)
  return ("%d micro-batch%s of %d%s%s%s"):format(layout.micros, layout.micros == 1 and "" or "es", layout.micro,
    layout.interleave > 1 and ", interleaved " .. layout.interleave or "",
    layout.shard > 1 and (layout.reshard and ", reshard" or ", no reshard") or "",
    layout.recompute and ", recompute" or "")
end

-- Returns the parts of a total that are at least a thousandth of it, "name 1.2, …".
local function parts_text(parts, names, unit, form)
  local list = {}
  for _, name in ipairs(names) do
    local value = parts[name] or 0
    if value > parts.total / 1000 then list[#list + 1] = name .. " " .. form:format(value / unit) end
  end
  return table.concat(list, ", ")
end

local function print_row(number, row)
  local time, layout = row.time, row.layout
  local call = time.longest
  print(("%2d. %s: %.1f ms, %.1f GB"):format(number, mesh_of(layout), 1e3 * time.total, row.memory.total / GB))
  print("      " .. options_of(layout))
  print("      GB: " .. parts_text(row.memory, MEMORY, GB, "%.2f"))
  print("      ms: " .. parts_text(time, TIME, 1e-3, "%.1f") .. ("; hidden %.1f"):format(1e3 * time.hidden))
  if call ~= "none" then
    local exposed = time[call] or 0
    print(("      longest collective: %s (%s), %.1f ms, of which %.1f exposed"):format(CALLS[call], call,
      1e3 * time.times[call], 1e3 * exposed))
  end
end

-- Returns the name in `names` of the part by which `a` exceeds `b` most, and by how much.
local function largest_excess(a, b, names)
  local name, most = names[1], -math.huge
  for _, key in ipairs(names) do
    local more = (a[key] or 0) - (b[key] or 0)
    if more > most then name, most = key, more end
  end
  return name, most
end

-- Prints why the first of the fitting layouts is the best, and why the first of each other kind is not.
local function print_reasons(model, fitting, large, job)
  local best = fitting[1]
  local time, lost = best.time, best.time.total - best.time.compute
  print(("Best: %s. %.0f %% of its step is arithmetic that every layout does; %s."):format(mesh_of(best.layout),
    100 * time.compute / time.total, lost < time.total / 1000 and "nothing else takes time"
      or ("the rest is %s, and no other layout that fits loses less"):format(parts_text(time, lists.slice(TIME, 2), time.total / 100,
        "%.1f %%"))))
  for _, dim in ipairs(DIMS) do
    local function has(row)
      return row ~= best and row.layout[dim] > 1 and (best.layout[dim] == 1 or row.layout[dim] > best.layout[dim])
    end
    local other, big = lists.find(fitting, has), lists.find(large, has)
    other, big = fitting[other] or other, large[big] or big
    if other then
      local name, more = largest_excess(other.time, time, TIME)
      print(("- more %s (%s; %s) loses: %.1f ms more, most of it %s (+%.1f ms)."):format(dim, mesh_of(other.layout),
        options_of(other.layout), 1e3 * (other.time.total - time.total), CALLS[name] or name, 1e3 * more))
    elseif big then
      local name = largest_excess(big.memory, {}, MEMORY)
      print(("- more %s (%s) does not fit: %.1f GB with %s, %.1f GB too much; the largest part is %s, %.1f GB."):format(dim,
        mesh_of(big.layout), big.memory.total / GB, options_of(big.layout), (big.memory.total - ROOM * job.memory) / GB, name,
        big.memory[name] / GB))
    elseif best.layout[dim] == 1 and job.cards > 1 and (dim == "tensor" or dim == "context") then
      print(("- no %s: %s."):format(dim, not model.heads and "the plan does not know this model's layers"
        or dim == "tensor" and ("%d heads and %d of keys are not divisible among cards of a node"):format(model.heads,
          model.kv_heads) or ("a part of %d tokens would be below 512"):format(model.seq)))
    end
  end
end

-- Returns the message that no layout fits, and what would.
local function nothing_fits(model, job, large)
  local least = large[1]
  if not least then
    return ("no layout: --batch %d is not divisible among %d cards in any way that heads and layers allow"):format(
      job.batch, job.cards)
  end
  local nodes
  for factor = 1, 8 do
    local more = setmetatable({cards = job.cards * 2 ^ factor}, {__index = job})
    if not job.has_batch then more.batch = job.batch * 2 ^ factor end
    if not nodes and search(model, more)[1] then nodes = job.nodes * 2 ^ factor end
  end
  return ("no layout fits: the smallest, %s with %s, takes %.1f GB a card, %.1f GB too much (%s); --memory %d would do%s")
    :format(mesh_of(least.layout), options_of(least.layout), least.memory.total / GB,
      (least.memory.total - ROOM * job.memory) / GB, parts_text(least.memory, MEMORY, GB, "%.1f"),
      math.ceil(least.memory.total / ROOM / GB), nodes and (", or --nodes %d"):format(nodes) or "")
end

-- ---- the command

--- Prints the plan for options of `luminary run`; returns nil, or a message that says what is wrong.
function plan.run(o)
  local name = o.card or "h100"
  local card = cost.cards[name]
  if not card then
    local names = lists.sorted_keys(cost.cards)
    local near = core.nearest(name, names)
    return ("--card must be one of %s, got '%s'%s"):format(table.concat(names, ", "), name,
      near and "; did you mean '" .. near .. "'?" or "")
  end
  local dtype = o.dtype or (name == "cpu" and "float32" or "bfloat16")
  if dtype ~= "float32" and dtype ~= "bfloat16" and dtype ~= "float16" then
    return ("--dtype must be bfloat16, float16 or float32, got '%s'"):format(dtype)
  end
  local ok, model, why = pcall(read_model, o.plan, o.seq)
  if not ok then return (tostring(model):gsub(o.plan:find "%.lua$" and "^$" or "^[^\n]-:%d+: ", "")) end
  if not model then return why end
  local job = {nodes = o.nodes or 1, gpus = o.gpus or 8, memory = o.memory and o.memory * GB or card.bytes,
    el = dtype == "float32" and 4 or 2,
    has_batch = o.batch ~= false}
  job.cards = job.nodes * job.gpus
  if job.cards > 65536 then return ("--nodes times --gpus must be at most 65536, got %d"):format(job.cards) end
  job.batch, job.machine = o.batch or 4 * job.cards, cost.machine(card, job.gpus, o.network)
  local fitting, large = search(model, job)
  if #fitting == 0 then return nothing_fits(model, job, large) end
  local block, rest = cost.elements(model.block, 1, 1), cost.elements(model.rest, 1, 1)
  print(("%s: %.1f M parameters in %d blocks; %d x %d %s of %.4g GB; batches of %d x %d tokens, %s, AdamW"):format(o.plan,
    (block * model.layers + rest) / 1e6, model.layers, job.nodes, job.gpus, name, job.memory / GB, job.batch, model.seq,
    dtype))
  print(("%d meshes fit, %d do not; %.0f %% of a card's memory are left for the driver. The fastest:"):format(#fitting,
    #large, 100 * (1 - ROOM)))
  for i = 1, math.min(#fitting, o.layouts or 5) do print_row(i, fitting[i]) end
  print_reasons(model, fitting, large, job)
end

return plan

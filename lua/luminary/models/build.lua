--- Makes every network of lm.models: checks options, reads a config.json beside the weights, and loads the weights.
local core = require "luminary.core"
local lists = require "luminary.base.lists"
local changes = require "luminary.base.weight_changes"
local truncate_text = require "luminary.base.truncate_text"
local load_module = require "luminary.base.load_module"
local generation_config = require "luminary.models.generation_config"
local gguf = require "luminary.models.gguf"
local options = require "luminary.base.options"
local signature = require "luminary.base.signature"
local meta = require "luminary.nn.meta"
local Source = require "luminary.file_formats.source"

local fail = options.fail
local NULL = {} -- a null in JSON

local all = signature.spec [[{weights, device, dtype: string, strict = true, ignore_mismatched_sizes = false, rename,
  assign = false}]]

-- Removes the nulls of a JSON object, also in nested ones; those of options that may be false become false. Returns it.
local function without_nulls(t, spec)
  for name, value in pairs(t) do
    if value == NULL then
      t[name] = nil
      if spec[name] and spec[name][3] then t[name] = false end
    elseif type(value) == "table" then
      without_nulls(value, spec)
    end
  end
  return t
end

-- Returns two values: the object of the JSON file `name` in the folder `weights`, or beside that file, nil if there is
-- none; and its path.
local function read_json(who, weights, name, spec)
  if type(weights) ~= "string" then return nil end
  local folder = core.file_kind(weights) == "a folder" and weights:gsub("/*$", "/") or weights:match "^.*/" or ""
  local path = folder .. name
  if not core.file_kind(path) then return nil, path end
  local text = Source.whole_text(path)
  local ok, config = pcall(core.json_decode, text, NULL)
  if not ok or not text:find "^%s*{" then fail("%s: '%s' is not a JSON object", who, path) end
  return without_nulls(config, spec or {}), path
end

-- Returns the model's options that a config.json sets.
local function from_config(who, config, path, reads, spec, opts)
  local kind = config.model_type or config._class_name
  if kind and not reads.kinds[kind] then
    fail("%s: '%s' has model_type '%s', expected '%s'", who, path, generation_config.shown(kind),
      table.concat(options.sorted_keys(reads.kinds), "' or '"))
  end
  for name, only in lists.sorted_pairs(reads.only or {}) do
    if config[name] ~= nil and config[name] ~= only then
      fail("%s: '%s' has %s = %s; only %s is supported", who, path, name, generation_config.shown(config[name]),
        tostring(only))
    end
  end
  local out = {}
  for name in pairs(spec) do out[name] = config[name] end
  out.model_type = spec.model_type and kind or nil
  if reads.also then reads.also(config, out, opts, path) end
  for name, value in pairs(reads.kinds[kind] or {}) do
    if spec[name] and out[name] == nil then out[name] = value end
  end
  return out
end

-- Returns end tokens (an id from 1, or a list) without those beyond the vocabulary, about which it warns.
local function possible(who, path, ends, vocabulary)
  local list = {}
  for _, id in ipairs(type(ends) == "table" and ends or {ends}) do
    local good = id % 1 == 0 and id <= (vocabulary or math.huge)
    if good then list[#list + 1] = id end
    if not good then
      core.warn(("%s: %s: eos_token_id is %s, and tokens are %s there; no text ends with it"):format(who, path, id - 1,
        vocabulary and ("0 to %d"):format(vocabulary - 1) or "0, 1, …"))
    end
  end
  if type(ends) == "table" then return list end
  return list[1]
end

-- Returns two values: the end tokens of a language model, and the defaults of its options for generate, or nil.
local function generation_of(who, weights, config, config_path, vocabulary)
  local json, path = read_json(who, weights, "generation_config.json")
  local own = json and generation_config.read(who, path, json) or nil
  local ends = own and own.eos_token_id
  if own then own.eos_token_id = nil end
  if ends == nil then
    ends, path = generation_config.tokens(who, config_path, "eos_token_id", config.eos_token_id), config_path
  end
  return possible(who, path, ends, vocabulary), own
end

-- Returns, as text, the sizes that neither config.json nor the caller sets and whose defaults are in `why`, the error
-- of load_state_dict; nil if there are none.
local function unsaid_sizes(spec, from_file, why)
  local list = {}
  for name, row in pairs(spec) do
    local default = row[1] == "count" and from_file[name] == nil and row[2]
    if default and why:find(("%%[[%%d, ]*%%f[%%d]%d%%f[%%D][%%d, ]*%%] in the model"):format(default)) then
      list[#list + 1] = ("%s (by default %d)"):format(name, default)
    end
  end
  table.sort(list)
  return list[1] and table.concat(list, ", ")
end

-- Rejects sizes that no network has: they are slips, and would run for hours or end in errors about memory.
local function check_sizes(who, spec, given)
  for name, row in lists.sorted_pairs(spec) do
    local most = name:find "layer" and 10000 or 2 ^ 31 - 1
    if row[1] == "count" and given[name] and given[name] > most then
      options.must_be(who, name, ("at most %.0f"):format(most), given[name])
    end
  end
end

-- Returns the bytes of this machine's memory and swap; nil where /proc/meminfo is missing.
local function memory_of_machine()
  local file, sum = require("io").open "/proc/meminfo", 0
  if not file then return nil end
  for line in file:lines() do
    local name, kib = line:match "^(%a+):%s*(%d+) kB"
    if name == "MemTotal" or name == "SwapTotal" then sum = sum + kib * 1024 end
  end
  file:close()
  return sum > 0 and sum or nil
end

-- Returns "; the largest size is n_embd = 1048576" for the largest of the options that are sizes.
local function largest_size(spec, given)
  local largest
  for name, row in lists.sorted_pairs(spec) do
    local size = row[1] == "count" and given[name]
    if size and (not largest or size > given[largest]) then largest = name end
  end
  return largest and ("; the largest size is %s = %.0f"):format(largest, given[largest]) or ""
end

local function check_memory(who, net, dtype, device, largest)
  local bytes, there = meta.bytes(net, dtype), memory_of_machine()
  if there and bytes > there and not core.device(device or "cpu"):find "^cuda" then
    fail("%s: the model needs %.1f GiB, but this machine has %.1f GiB of memory%s%s", who, bytes / 2 ^ 30,
      there / 2 ^ 30, largest, dtype == nil and "; dtype = \"bfloat16\" halves it" or "")
  end
end

-- Returns the number of tensors in a table and its nested tables, and their bytes.
local function held_by(weights)
  local n, bytes = 0, 0
  for _, v in pairs(weights) do
    if core.is_tensor(v) then
      n, bytes = n + 1, bytes + v:numel() * v:element_size()
    elseif options.is_plain(v) then
      local n_within, bytes_within = held_by(v)
      n, bytes = n + n_within, bytes + bytes_within
    end
  end
  return n, bytes
end

-- Rejects a config.json with more layers than there are tensors: each layer has some, and making them would take long.
local function check_layers(who, spec, from_file, n)
  for name, row in lists.sorted_pairs(spec) do
    if row[1] == "count" and name:find "layer" and from_file[name] and from_file[name] > n then
      options.must_be(who, name, ("at most %d, the number of tensors in the weights"):format(n), from_file[name],
        "pass {strict = false} to load weights that lack tensors")
    end
  end
end

-- Rejects buffers, such as angles of positions, that are larger than the weights. blocks: the bytes of buffers that are
-- weights.
local function check_buffers(who, net, bytes, blocks, largest)
  local buffers = meta.bytes(net) - meta.bytes(net, nil, true) - blocks
  if buffers > 2 ^ 30 and buffers > bytes then
    fail("%s: its buffers would take %.1f GiB, its weights take %.1f GiB%s", who, buffers / 2 ^ 30, bytes / 2 ^ 30,
      largest)
  end
end

-- Returns the dtype for dtype = "auto": config.json's, else the one that most weights have (in GGUF files norms and
-- biases are float32 beside any); nil beside quantized blocks.
local function dtype_of_weights(config, weights)
  local counts, most = {}, nil
  for _, v in pairs(weights) do
    if options.is_plain(v) and v.blocks then return nil end
    if core.is_tensor(v) and v:is_floating_point() then counts[v.dtype] = (counts[v.dtype] or 0) + v:numel() end
  end
  local from_file = config and (config.dtype or config.torch_dtype)
  if type(from_file) == "string" and core.is_floating_point(core.dtype(from_file)) then return from_file end
  for dtype, n in lists.sorted_pairs(counts) do
    if not most or n > counts[most] then most = dtype end
  end
  return most
end

--- Returns make(options) for the options of `who`, checked by spec. reads, for families in Hugging Face's folders:
--- {kinds = {[model_type or _class_name of config.json] = defaults of options}, only = {name = the supported value},
--- also(config, options, the caller's, path) for options with other names there, generates = true if it has generate,
--- spec = that without a family's defaults}.
--- first: see options.check.
---
--- Every maker also takes: weights, a file or folder that lm.load reads, a table of tensors by name, or for
--- models.llama and models.gpt2 a GGUF file of that architecture, whose sizes and names become Hugging Face's and whose
--- quantized matrices stay blocks, on the CPU in the mapped file, unless another dtype than "auto" is given; assign, by
--- which all weights stay there, in their dtypes; strict, ignore_mismatched_sizes and rename of load_state_dict;
--- device; and dtype, a floating-point one, "auto" for that of the weights, which then stay in a GGUF file mapped on
--- the CPU, or nil, by which tensors of other dtypes become float32, as the report lists. With weights the second
--- result is load_state_dict's report. The caller's options override those of config.json. A network of a folder with a
--- config.json is in evaluation mode; if it generates, eos_token_id, from 1, and generation_config are those of
--- generation_config.json or config.json, with a warning about ends beyond the vocabulary. Nothing is drawn if weights
--- have all parameters, and nothing is allocated before they are known to fit.
return function(who, opts, spec, make, first, reads)
  local rows = lists.copy(spec)
  for name, row in pairs(all) do rows[name] = row end
  if type(opts) == "string" then
    fail("%s: options must be in a table: {weights = %q} reads a local file or folder; nothing is downloaded", who,
      truncate_text(opts, 200))
  end
  local given = options.check(who, opts, rows, first)
  local weights, config, path, from_file = given.weights, nil, nil, nil
  if type(weights) == "string" and not core.file_kind(weights) then
    fail("%s: weights: cannot open '%s': No such file or directory; nothing is downloaded%s", who,
      truncate_text(weights, 200),
      reads and ": `hf download NAME --local-dir FOLDER` makes a folder with config.json and weights" or "")
  end
  local source, is_mapped = weights, false
  if gguf.is(weights) then
    path = type(weights) == "string" and weights or "weights"
    if weights == path then
      is_mapped = given.dtype == nil or given.dtype == "auto"
      weights = load_module("luminary.save_load").load(weights, {mmap = true, keep_blocks = is_mapped})
    end
    config, weights = gguf.read(who, path, weights)
    if not reads or not weights and reads.kinds[config.model_type] then
      fail("%s: '%s' is a GGUF file of architecture '%s', which is not supported here; lm.load returns its metadata "
        .. "and tensors", who, path, truncate_text(config.model_type, 60))
    end
  elseif reads then
    config, path = read_json(who, weights, "config.json", spec)
  end
  if config then
    if reads.spec and reads.kinds[config.model_type] then -- a file of another family has that one's defaults
      spec = reads.spec
      for name, row in pairs(spec) do rows[name] = row end
    end
    from_file = from_config(who, config, path, reads, spec, given)
    for name, value in pairs(opts) do from_file[name] = value end
    given = options.check(who, from_file, rows, first)
  end
  check_sizes(who, spec, given)
  local ends, generation
  if config and reads.generates then ends, generation = generation_of(who, source, config, path, given.vocab_size) end
  local own, how, device = {}, {}, given.device
  for name in pairs(spec) do own[name] = given[name] end
  for _, name in ipairs {"strict", "ignore_mismatched_sizes", "rename"} do how[name] = given[name] end
  if weights == nil and (how.rename or given.dtype == "auto") then
    fail("%s: %s requires weights", who, how.rename and "rename" or 'dtype = "auto"')
  end
  if type(weights) == "string" then weights = load_module("luminary.save_load").load(weights, {mmap = true}) end
  local dtype = given.dtype
  if dtype == "auto" then dtype = options.is_plain(weights) and dtype_of_weights(config, weights) or nil end
  dtype, how.dtype = changes.dtype(who, dtype), dtype
  local plain, n_tensors, bytes = config and options.is_plain(weights), nil, nil
  if plain then n_tensors, bytes = held_by(weights) end
  if plain and how.strict ~= false then check_layers(who, spec, from_file, n_tensors) end
  local net, largest = meta.of(make, lists.copy(own)), largest_size(spec, own)
  local complete, blocks = false, 0
  if config and options.is_plain(weights) then blocks = load_module("luminary.nn.block_weights").put(net, weights) end
  if weights then
    how.dry_run = true
    local ok, report = pcall(net.load_state_dict, net, weights, how)
    local unsaid = not ok and config and unsaid_sizes(spec, from_file, tostring(report))
    if not ok and path and not config then
      fail("%s: cannot find '%s', which has the model's sizes, and the weights do not match the sizes from options "
        .. "and defaults: %s", who, path, truncate_text(tostring(report):gsub("^.-: (load_state_dict: )", "%1"), 1000))
    elseif unsaid then
      fail("%s: '%s' has no %s, and the weights do not match the default: %s", who, path, unsaid,
        truncate_text(tostring(report):match "size mismatch[^\n]*", 300))
    elseif not ok then
      error(report, 0)
    end
    how.dry_run, complete = nil, #report.missing_keys == 0 and #(report.mismatched_keys or {}) == 0
  end
  how.assign = not device and (given.assign and dtype == nil or is_mapped and given.dtype == "auto") or nil
  if not (meta.is_on() or how.assign) then check_memory(who, net, dtype, device, largest) end
  if plain then check_buffers(who, net, bytes, blocks, largest) end
  if complete then
    meta.allocate(net, dtype, device, how.assign)
  else
    net = make(own)
    if dtype or device then net:to {dtype = dtype, device = device} end
  end
  if weights == nil then return net end
  local report = net:load_state_dict(weights, how)
  if config then
    net:eval()
    net.eos_token_id, net.generation_config = ends, generation
  end
  return net, report
end

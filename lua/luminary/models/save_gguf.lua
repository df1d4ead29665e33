--- Writes language models as GGUF files, which llama.cpp reads: the inverse of models/gguf.lua, by its table.
local block_kinds = require "luminary.block_kinds"
local class = require "luminary.base.class"
local core = require "luminary.core"
local json_encode = require "luminary.base.json_encode"
local lists = require "luminary.base.lists"
local load_module = require "luminary.base.load_module"
local options = require "luminary.base.options"
local formats = require "luminary.file_formats.gguf"
local gguf = require "luminary.models.gguf"
local meta = require "luminary.nn.meta"
local Module = require "luminary.nn.module"

local fail, ops = options.fail, core.ops
local save_gguf = {}

local other_names = {mistral = "llama", gemma3_text = "gemma3"} -- model types without an architecture of their own

-- ---- options

-- Options that compare_options compares by their effects on layers, and those that files need not have.
local not_compared = lists.set [[
  model_type sliding_window use_sliding_window max_window_layers layer_types no_rope_layers no_rope_layer_interval
  sliding_window_pattern rope_scaling rope_parameters partial_rotary_factor decoder_sparse_step mlp_only_layers
  embd_pdrop attn_pdrop resid_pdrop pad_vocab_to]]

local function described(value) return type(value) == "table" and json_encode(value) or tostring(value) end

-- Fails if a net of the options that a reader gets differs from the net.
local function compare_options(net, model_type, said, architecture)
  said.model_type = net.config.model_type and model_type
  local made = meta.of(load_module("luminary.models")[model_type], said)
  local function compare(name, value, other)
    local text, other_text = described(value or nil), described(other or nil)
    if text == other_text then return end
    fail("save: GGUF's architecture '%s' cannot say %s = %s; readers take %s", architecture, name, text, other_text)
  end
  for name, value in lists.sorted_pairs(net.config) do
    if not not_compared[name] then compare(name, value, made.config[name]) end
  end
  local wide
  for i, layer in ipairs(net.model and net.model.layers or {}) do
    local other = made.model.layers[i]
    compare("rotation of layer " .. i, layer.rotates, other.rotates)
    compare("experts of layer " .. i, layer.mlp.experts ~= nil, other.mlp.experts ~= nil)
    wide = wide or layer.near and not other.near
    if other.near then compare("sliding_window of layer " .. i, layer.near, true) end
  end
  if wide then
    core.warn(("save: GGUF's architecture '%s' has no sliding_window; texts of more than %d tokens differ"):format(
      architecture, net.config.sliding_window))
  end
  if net.rope and said.rope_scaling then compare("rope_scaling", net.rope.scaling, made.rope.scaling) end
end

-- Returns the options about positions that a reader gets; sets metadata and tensors that say them.
local function say_positions(net, architecture, metadata, tensors)
  local scaling, said = net.rope.scaling, {}
  local kind = scaling.rope_type
  local function say(key, value) metadata[architecture .. "." .. key] = value end
  local function add(name, list) tensors[name .. ".weight"] = core.tensor(list, {dtype = "float32"}) end
  say("rope.dimension_count", net.config.rotary_dim)
  say("attention.value_length", net.config.head_dim)
  if kind == "llama3" or kind == "factors" then
    if architecture ~= "llama" then
      fail("save: GGUF's architecture '%s' cannot say rope_type = '%s'", architecture, kind)
    end
    add("rope_freqs", net.rope:divisors())
  elseif kind ~= "default" then
    if kind == "dynamic" then fail "save: GGUF cannot say rope_type = 'dynamic'" end
    local by_tensors = kind == "longrope" -- llama.cpp would scale by a factor, too
    said.rope_scaling = {
      rope_type = kind, factor = not by_tensors and scaling.factor or nil, short_factor = scaling.short_factor,
      long_factor = scaling.long_factor, original_max_position_embeddings = scaling.original_max_position_embeddings,
    }
    say("rope.scaling.type", kind)
    say("rope.scaling.factor", said.rope_scaling.factor)
    say("rope.scaling.original_context_length", scaling.original_max_position_embeddings)
    if by_tensors then
      say("rope.scaling.attn_factor", scaling.attention_factor)
      add("rope_factors_short", scaling.short_factor)
      add("rope_factors_long", scaling.long_factor)
    end
  end
  return said
end

-- ---- weights

-- Returns GGUF's name of a weight, and its part that the architecture's table lists; nil if it has none.
local function name_of(name, of, owns)
  local own, what = name:match "^(.+)%.(%w+)$"
  local layer, rest = (name:sub(1, #of.layers) == of.layers and own or ""):match("^(%d+)%.(.+)$", #of.layers + 1)
  own = owns[rest or own]
  return own and ("%s%s.%s"):format(layer and "blk." .. layer .. "." or "", own, what), own
end

-- Adds a net's weights to tensors, as gguf.save takes them.
local function add_weights(net, architecture, of, tensors)
  local kinds, parts, joined, owns = {}, {}, {}, {}
  for own, name in pairs(of.names) do owns[name] = own end
  for path, module in net:named_modules() do kinds[path .. ".weight"] = module.kind end
  for name, t in pairs(net:state_dict()) do
    local before, i, last = name:match "^(.*%.experts)%.(%d+)(%..*)$"
    local all = before and before .. last or name
    parts[all] = parts[all] or {}
    parts[all][(i or 0) + 1], kinds[all], joined[all] = t, kinds[name], before
  end
  for name, list in lists.sorted_pairs(parts) do
    local to, own = name_of(name, of, owns)
    if not to or list[1].dtype == "int8" then
      fail("save: '%s' has no place in a GGUF file of architecture '%s'%s", name, architecture,
        to and "; save the net before lm.quantize(net) rounds it to int8" or "; merge or remove added modules first")
    end
    local shape, kind, change = list[1].shape, kinds[name], of.changes[own]
    if kind then shape[#shape] = shape[#shape] / block_kinds[kind].bytes * block_kinds[kind].elements end
    if not kind and #shape == 2 and change and change == of.changes.ffn_up then shape = {shape[2], shape[1]} end
    if joined[name] then table.insert(shape, 1, #list) end
    tensors[to] = {kind = kind or list[1].dtype, shape = shape, make = function()
      local t = joined[name] and ops.stack(list, 1) or list[1]:detach()
      if kind then t = {kind = kind, blocks = t} end
      if change then t = change(t, net.config, true) end
      return kind and t.blocks or t
    end}
  end
end

-- ---- kinds of blocks

-- llama.cpp's mixtures: the kind of most matrices, and that of the output and of matrices in some layers.
local mixes = {q4_k_m = {"q4_k", "q6_k"}, q5_k_m = {"q5_k", "q6_k"}}
-- Kinds for rows that do not consist of a kind's blocks.
local narrower = {q2_k = "q4_0", q3_k = "q4_0", q4_k = "q5_0", q5_k = "q5_1", q6_k = "q8_0", iq4_xs = "iq4_nl"}
local kept_float = lists.set "ffn_gate_inp position_embd"
--- The kinds that kind may be.
save_gguf.kinds = lists.joined(lists.sorted_keys(mixes), block_kinds.names, {"bfloat16", "float16", "float32"})

-- Returns the kind of a mixture for the matrix `own` of a layer, as llama-quant.cpp chooses it. size: by key.
local function mixed(mix, own, layer, size)
  local n, eighth = size "block_count", math.floor(size "block_count" / 8)
  if size "expert_count" == 8 then
    if own == "attn_v" or own == "attn_k" then return "q8_0" end
    if own == "attn_output" and mix[1] == "q4_k" then return "q5_k" end
  end
  if own == "output" then return mix[2] end
  local gains = layer and (layer < eighth or layer >= math.floor(7 * n / 8) or (layer - eighth) % 3 == 2)
  if gains and (own == "attn_v" or own == "attn_qkv" or own:find "^ffn_down") then return mix[2] end
  local shares = size "attention.head_count" ~= size "attention.head_count_kv"
  if own == "attn_v" and n == 80 and shares then return "q5_k" end
  return mix[1]
end

-- Changes the tensors of a file to be made in the kinds that `wanted` says, or the nearest ones that readers accept.
local function choose_kinds(path, file, wanted, on_tensor)
  local architecture = file.metadata["general.architecture"]
  local of = gguf.architectures[architecture]
  if not of then
    options.unsupported_file(path, "kind: unknown architecture '%s'; supported are %s", tostring(architecture),
      table.concat(lists.sorted_keys(gguf.architectures), ", "))
  end
  local is_tied = file.tensors["output.weight"] == nil
  local function size(key) return file.metadata[architecture .. "." .. key] or 0 end
  local function kind_for(name, shape, now)
    local layer, own = name:match "^blk%.(%d+)%.([%w_]+)%.weight$"
    own = own or name:match "^([%w_]+)%.weight$"
    if #shape < 2 or not of.names[own] or kept_float[own] then return "float32" end
    if not wanted then return now == "float64" and "float32" or now end
    if own == "token_embd" and is_tied then own = "output" end
    local kind = mixes[wanted] and mixed(mixes[wanted], own, tonumber(layer), size) or wanted
    local function fits() return not block_kinds[kind] or shape[#shape] % block_kinds[kind].elements == 0 end
    if not fits() then kind = narrower[kind] or "float16" end
    return fits() and kind or "float16"
  end
  local n = #lists.sorted_keys(file.tensors)
  for name, t in pairs(file.tensors) do
    local from, shape, make = formats.described(t)
    local to = kind_for(name, shape, from)
    file.tensors[name] = {kind = to, shape = shape, make = function()
      if on_tensor then on_tensor(n, name, to) end
      local x = type(make) == "function" and make() or make
      if from == to then return x end
      if block_kinds[from] then x = ops.expand_blocks(x, from) end
      if not block_kinds[to] then return x:to(to) end
      if not x:isfinite():all():item() then options.fail_in_file(path, "'%s' must be finite", name) end
      return ops.quantize_blocks(x, to)
    end}
  end
  file.metadata["general.quantization_version"], file.metadata["general.file_type"] = 2, nil
end

-- ---- the file

-- Returns the name of the architecture of a net; nil if it has none.
local function architecture_of(net)
  local model_type = type(net.config) == "table" and net.config.model_type or net.__name:lower()
  for name, of in pairs(gguf.architectures) do
    if of.model_type == (other_names[model_type] or model_type) then return name end
  end
end

-- Returns the contents of a file for a net: {metadata, tensors}, as file_formats/gguf.lua writes them.
local function contents_of(net)
  local config = net.config
  local architecture = architecture_of(net)
  local of, metadata, tensors, said = gguf.architectures[architecture], {}, {}, {}
  metadata["general.architecture"] = architecture
  if net.rope then said = say_positions(net, architecture, metadata, tensors) end
  local has_near = net.model and lists.find(net.model.layers, function(layer) return layer.near end)
  for key, name in pairs(of.sizes) do
    local unused = key:find "^expert" and not config.num_experts or key == "attention.sliding_window" and not has_near
      or key == "rope.freq_base_swa" and not net.rope_near
    local value = not unused and config[name] or nil
    if value then metadata[architecture .. "." .. key], said[name] = value, value end
  end
  for _, name in ipairs {"vocab_size", "tie_word_embeddings", "attention_bias", "mlp_bias"} do
    said[name] = config[name]
  end
  said.partial_rotary_factor = net.rope and not of.changes.attn_q and config.rotary_dim / config.head_dim or nil
  metadata[architecture .. ".vocab_size"] = config.vocab_size
  if of.implied then of.implied(said) end
  compare_options(net, of.model_type, said, architecture)
  add_weights(net, architecture, of, tensors)
  metadata["tokenizer.ggml.model"] = "no_vocab"
  return {metadata = metadata, tensors = tensors}
end

--- Writes a language model, or what lm.load returns for a GGUF file, as a GGUF file. o: {kind, tokenizer, on_tensor =
--- a function(n, name, kind) called before each of the n tensors is made}.
function save_gguf.save(path, value, o)
  if o.kind then options.choice("save", "kind", o.kind, save_gguf.kinds) end
  local file
  if Module.is_module(value) and architecture_of(value) then
    file = contents_of(value)
  elseif not Module.is_module(value) and gguf.is(value) and type(value) == "table" then
    file = {metadata = lists.copy(value.metadata), tensors = lists.copy(value.tensors)}
  else
    options.must_be("save", "value", "a model of lm.models.llama or gpt2, or what lm.load returns for a .gguf", value)
  end
  if o.tokenizer then
    if not class.has(o.tokenizer, "to_str") then options.must_be("save", "tokenizer", "a tokenizer", o.tokenizer) end
    local vocabulary, embedding = load_module "luminary.text.gguf_vocabulary", file.tensors["token_embd.weight"]
    local metadata = vocabulary.metadata(o.tokenizer, embedding and select(2, formats.described(embedding))[1])
    for key, each in pairs(metadata) do file.metadata[key] = each end
  end
  local ends, eos = Module.is_module(value) and value.eos_token_id or {}, "tokenizer.ggml.eos_token_id"
  for _, id in ipairs(type(ends) == "table" and ends or {ends}) do
    file.metadata[eos] = file.metadata[eos] or id - 1
    if id - 1 ~= file.metadata[eos] then file.metadata["tokenizer.ggml.eot_token_id"] = id - 1 end
  end
  if o.kind or Module.is_module(value) then choose_kinds(path, file, o.kind, o.on_tensor) end
  formats.save(path, file)
end

return save_gguf

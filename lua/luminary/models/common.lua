--- Makes networks for images, initializes weights, and checks arguments and options that several models have.
local core = require "luminary.core"
local changes = require "luminary.base.weight_changes"
local class = require "luminary.base.class"
local options = require "luminary.base.options"
local nn = require "luminary.nn"
local build = require "luminary.models.build"
local part = require "luminary.nn.sequence_part"
local shapes = require "luminary.tensor.shapes"

local ops = core.ops
local common = {}

--- Returns a network for images, make(options), with the options of spec, num_classes, and those of build.lua.
function common.build(who, opts, spec, make)
  spec.num_classes = spec.num_classes or {"count", 1000}
  return build(who, opts, spec, make, "num_classes")
end

--- Draws weights, and sets biases to 0. linear: a standard deviation or a function of the weight; nil leaves linear
--- layers unchanged. conv: the same for convolutions; nil draws for ReLU by their outgoing size (He et al. 2015).
function common.draw(net, linear, conv)
  local function init_weights(m, rule)
    if type(rule) == "function" then rule(m.weight) else nn.init.normal_(m.weight, 0, rule) end
    if m.bias then nn.init.zeros_(m.bias) end
  end
  net:apply(function(m)
    if m:is(nn.Conv2d) then
      init_weights(m, conv or function(w) nn.init.kaiming_normal_(w, {mode = "fan_out", nonlinearity = "relu"}) end)
    elseif m:is(nn.Linear) and linear then
      init_weights(m, linear)
    end
  end)
  return net
end

--- Returns the number of rows of a model's embedding: vocab_size, rounded up to a multiple of pad_vocab_to if it is
--- set.
function common.vocab_rows(config)
  local multiple = config.pad_vocab_to or 1
  return math.ceil(config.vocab_size / multiple) * multiple
end

--- Makes a language model, whose embedding and lm_head have common.vocab_rows(config) rows, save and load state_dicts
--- of vocab_size rows, as published weights have. A bias (lm_head's, or the net's score_bias) makes scores of the other
--- rows -inf: no softmax sees them, and their gradient is 0.
function common.pad_vocab(net, config, embedding)
  local n, rows, names = config.vocab_size, common.vocab_rows(config), {embedding, "lm_head.weight"}
  if rows == n then return end
  local function change(from, to, f)
    return function(_, dict, prefix)
      for _, name in ipairs(names) do
        local t = dict[prefix .. name]
        if core.is_tensor(t) and t.ndim == 2 and t.shape[1] == from then dict[prefix .. name] = f(t, to) end
      end
    end
  end
  net:register_state_dict_post_hook(change(rows, n, function(t) return t:narrow(1, 1, n) end))
  net:register_load_state_dict_pre_hook(change(n, rows, function(t)
    return ops.cat({t, ops.zeros({rows - n, t.shape[2]}, {dtype = t.dtype, device = t.device})}, 1)
  end))
  local bias = ops.cat({ops.zeros {n}, ops.full({rows - n}, -math.huge)}, 1)
  if net.lm_head then
    net.lm_head:register_buffer("bias", bias, {persistent = false})
  else
    net:register_buffer("score_bias", bias, {persistent = false})
  end
end

local of_files = setmetatable({}, {__mode = "k"}) -- set of label lists from a config.json

--- Checks that config.labels names each of config[count] classes; drops a file's labels if their number differs.
function common.fit_labels(who, config, count)
  local labels, n = config.labels, config[count]
  if labels == nil then return end
  local good = #labels == n and not options.named_field(labels)
  for _, name in ipairs(labels) do good = good and type(name) == "string" end
  if good then return end
  if not of_files[labels] then
    options.fail("%s: labels must be a list of %d names because %s is %d, got %s", who, n, count, n,
      options.is_plain(labels) and ("%d of them"):format(#labels) or options.describe(labels))
  end
  config.labels = nil
end

--- Returns the labels of a config.json's id2label ({"0": "cat", …}) as a list; nil if it has none.
function common.labels(who, path, config)
  if config.id2label == nil then return nil end
  local labels, n = {}, 0
  for id, name in pairs(type(config.id2label) == "table" and config.id2label or {}) do
    n = n + 1
    labels[(tonumber(id) or -1) + 1] = tostring(name)
  end
  if n == 0 or #labels ~= n then
    options.fail('%s: \'%s\': id2label must name the classes 0, 1, …, as in {"0": "cat", "1": "dog"}', who, path)
  end
  of_files[labels] = true
  return labels
end

--- Renames tensors of a state_dict in place by a list of rules {pattern, replacement}; false removes the tensor.
function common.rename(dict, rules)
  local new = changes.renamed("load_state_dict", dict, rules)
  for _, key in ipairs(options.sorted_keys(dict)) do dict[key] = new[key] end
  for key, value in pairs(new) do dict[key] = value end
end

--- Returns the maker of a family's models, with the options of spec, the family's defaults and model_type; for make,
--- first and reads see build.lua.
function common.maker(name, spec, model_type, defaults, make, first, reads)
  local own = {}
  for key, row in pairs(spec) do own[key] = defaults[key] ~= nil and {row[1], defaults[key], row[3]} or row end
  own.model_type = {spec.model_type[1], model_type}
  return function(opts) return build(name, opts, own, make, first, reads) end
end

--- Returns the ids [N, L] of a model's call, checked.
function common.ids(who, ids)
  if type(ids) == "table" and ids.input_ids then
    options.fail("%s: pass ids first, then options: net(batch.input_ids, {attention_mask = batch.attention_mask})", who)
  end
  return shapes.check(who, "ids", options.arg(who, "ids", ids, "tensor"), {"N", "L"})
end

--- Activations by Hugging Face's names.
common.activations = {
  gelu = ops.gelu, relu = ops.relu, silu = ops.silu, swish = ops.silu, tanh = ops.tanh,
  gelu_new = function(x) return ops.gelu(x, {approximate = "tanh"}) end,
  quick_gelu = function(x) return x * (x * 1.702):sigmoid() end,
}
for _, name in ipairs {"gelu_fast", "gelu_pytorch_tanh"} do
  common.activations[name] = common.activations.gelu_new
end

--- Checks the options of a language model's call, net(ids [, {…}]). A cache is a list of one for each of `layers`.
--- Returns them with first, the number of tokens in the cache; `seen`, the options of scaled_dot_product_attention by
--- which a token attends to those before it, also in the cache, except where the mask is false (a token that attends to
--- none gets zeros); and `near`, the same for the last `window` tokens alone. With cache[1].position, which the one
--- token is at, the mask is bool [N, max_seq_len], and position_ids are required; so they are with a cache that
--- computes attention itself, cache:attend(q, k, v, {scale, window, cap}).
function common.forward_options(who, ids, opts, layers, window)
  local o = options.check(who, opts,
    "{cache: table, attention_mask: tensor, position_ids: tensor, logits_to_keep, hidden_states = false}")
  local n, l = unpack(common.ids(who, ids).shape)
  local cache, mask = o.cache, o.attention_mask
  if cache and not (#cache == layers and class.has(cache[1], "update")) then
    options.fail("%s: cache must be a list of %d nn.KVCache, one for each layer, as the net's new_cache makes it", who,
      layers)
  end
  if cache and cache[1].attend then
    o.first, o.seen, o.near = 0, {}, {window = window}
    return o
  end
  local place = cache and cache[1].position
  if place then
    local columns = ops.arange(1, cache[1].keys.shape[3] + 1, {dtype = "int64", device = ids.device})
    local seen = columns:le(place):view(1, 1, 1, -1)
    if mask then seen = seen:logical_and(mask:view(n, 1, 1, -1)) end
    o.first, o.seen = 0, {attn_mask = seen}
    o.near = window and {attn_mask = seen:logical_and(columns:gt(place - window):view(1, 1, 1, -1))} or o.seen
    return o
  end
  o.first = cache and options.arg(who, "cache[1].length", cache[1].length or 0, "natural") or 0
  if mask then shapes.check(who, "attention_mask", mask, {n, o.first + l}) end
  if o.position_ids then shapes.check(who, "position_ids", o.position_ids, {n, l}) end
  o.position_ids = o.position_ids or part.positions(ids)
  mask = mask and (mask.dtype == "bool" and mask or mask:ne(0)):view(n, 1, 1, o.first + l)
  local function attention(near)
    local causal = not near and (not mask and o.first == 0 or l == 1)
    local seen
    if not causal then seen = ops.ones({l, o.first + l}, {dtype = "bool", device = ids.device}):tril(o.first) end
    if near then seen = seen:triu(o.first - window + 1) end
    if mask then seen = seen and seen:logical_and(mask) or mask end
    return {attn_mask = seen, is_causal = not seen and l > 1}
  end
  o.seen = attention(false)
  o.near = window and o.first + l * part.ranks > window and attention(true) or o.seen
  return o
end

--- Returns the hidden states of the tokens whose scores a call wants: x [N, L, D], without logits_to_keep, its last
--- that many tokens, or those at the indices int64 [K].
function common.kept(who, x, o)
  local kept, l = o.logits_to_keep, x.shape[2]
  if kept == nil then return x end
  if core.is_tensor(kept) then return x:index_select(2, kept) end
  kept = options.arg(who, "logits_to_keep", kept, "count")
  return kept < l and x:narrow(2, l - kept + 1, kept) or x
end

-- The base class of language models. Classes define embedding(), which returns the weight of the token embedding
-- and, if that has quantized blocks, their kind; and cache_sizes(), which returns the numbers of layers, heads of keys,
-- and features of a head.
common.LanguageModel = class.define("LanguageModel", nn.Module)

--- net:new_cache(batch_size, max_seq_len): Returns an empty key-value cache for net(ids, {cache = …}).
--- net:parallel_plan([{sequence = false, gather = false}]): Returns a plan for nn.parallel.parallelize, a table.
--- net:generate(ids [, {…}]): Generates tokens, as lm.models.generate(net, ids, {…}) does.

--- Returns the device and dtype of keys and values.
function common.LanguageModel:cache_options()
  local weight, kind = self:embedding()
  return {device = weight.device, dtype = kind and self:parameters()[1].dtype or weight.dtype}
end

function common.LanguageModel:new_cache(batch_size, max_seq_len)
  max_seq_len = options.arg(self.__name .. ":new_cache", "max_seq_len", max_seq_len, "count")
  local list, like, layers, heads, head_dim = {}, self:cache_options(), self:cache_sizes()
  heads = math.max(1, heads / (self.tensor_ranks or 1))
  for i = 1, layers do
    list[i] = nn.KVCache(batch_size, math.min(max_seq_len, self.config.max_positions), heads, head_dim, like)
  end
  return list
end

--- Returns the scores of all tokens for the last hidden states x, by lm_head or the embedding.
function common.LanguageModel:scores(x)
  if self.lm_head then return self.lm_head(x) end
  local weight, kind = self:embedding()
  if kind then return ops.block_linear(x, weight, self.score_bias, kind) end
  return (self.project or ops.linear)(x, weight, self.score_bias) -- nn.parallel.parallelize sets project
end

--- Returns the plan of a model for nn.parallel.parallelize: `plan`, and with the option sequence also `sequence`.
function common.parallel_plan(who, opts, plan, sequence)
  local o = options.check(who .. ":parallel_plan", opts, "{sequence = false, gather = false}")
  if o.gather then plan.lm_head = {style = "vocabulary", output = "replicated"} end
  for name, style in pairs(o.sequence and sequence or {}) do plan[name] = style end
  return plan
end

--- Adds an int8 weight for a tied output, for lm.quantize. Returns the net.
function common.LanguageModel:to_int8()
  if not self.lm_head then self.lm_head = nn.Int8Linear((self:embedding()), self.score_bias) end
  return self
end

return common

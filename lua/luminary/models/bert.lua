--- BERT (Devlin et al., "BERT: Pre-training of Deep Bidirectional Transformers for Language Understanding", 2019), bare
--- or with a head, with Hugging Face's names of parameters: lm.models.bert {weights = "folder"}.
local core = require "luminary.core"
local class = require "luminary.base.class"
local truncate_text = require "luminary.base.truncate_text"
local options = require "luminary.base.options"
local nn = require "luminary.nn"
local layer = require "luminary.nn.define_layer"
local build = require "luminary.models.build"
local common = require "luminary.models.common"

local ops, fail = core.ops, options.fail
local models = {}

-- A module of these children; names are paths of Hugging Face's.
local function group(children)
  local m = nn.Module()
  for _, child in ipairs(children) do m[child[1]] = child[2] end
  return m
end

local function norm(config) return nn.LayerNorm(config.hidden_size, {eps = config.layer_norm_eps}) end

local activations = {
  gelu = ops.gelu, relu = ops.relu, silu = ops.silu, tanh = ops.tanh,
  gelu_new = function(x) return ops.gelu(x, {approximate = "tanh"}) end,
}
activations.gelu_pytorch_tanh, activations.swish = activations.gelu_new, activations.silu

local Layer = class.define("BertLayer", nn.Module)

function Layer:init(config)
  local width = config.hidden_size
  self.heads, self.rate, self.act = config.num_attention_heads, config.attention_probs_dropout_prob, config.hidden_act
  local function output(inputs) return group {{"dense", nn.Linear(inputs, width)}, {"LayerNorm", norm(config)}} end
  local own = group {
    {"query", nn.Linear(width, width)}, {"key", nn.Linear(width, width)}, {"value", nn.Linear(width, width)},
  }
  self.attention = group {{"self", own}, {"output", output(width)}}
  self.intermediate = group {{"dense", nn.Linear(width, config.intermediate_size)}}
  self.output = output(config.intermediate_size)
  self.dropout = nn.Dropout(config.hidden_dropout_prob)
end

function Layer:forward(x, mask)
  local n, l, width = unpack(x.shape)
  local own, after = self.attention.self, self.attention.output
  local function heads_of(t) return t:view(n, l, self.heads, width / self.heads):transpose(2, 3) end
  local y = ops.scaled_dot_product_attention(heads_of(own.query(x)), heads_of(own.key(x)), heads_of(own.value(x)), {
    attn_mask = mask, dropout_p = self.training and self.rate or 0,
  })
  y = after.dense(y:transpose(2, 3):reshape(n, l, width))
  x = after.LayerNorm(self.dropout(y) + x)
  y = self.output.dense(activations[self.act](self.intermediate.dense(x)))
  return self.output.LayerNorm(self.dropout(y) + x)
end

-- The dense layer, activation and norm before a head's scores of tokens.
local function transform_of(config)
  return group {{"dense", nn.Linear(config.hidden_size, config.hidden_size)}, {"LayerNorm", norm(config)}}
end

-- Left out as a state_dict is read: what is another's weight, and parts of pre-training beside the head.
local left_out = {"embeddings%.position_ids$", "^cls%.predictions%.decoder%.", "^cls%.seq_relationship%."}

-- Names of the bare model or of one with a head, and of TensorFlow's files.
local function rename(net, dict)
  local keys, head = {}, net.config.head
  for key in pairs(dict) do keys[#keys + 1] = key end
  for _, key in ipairs(keys) do
    local value = dict[key]
    local new = key:gsub("LayerNorm%.gamma$", "LayerNorm.weight"):gsub("LayerNorm%.beta$", "LayerNorm.bias")
    if head == "none" then
      new = new:gsub("^bert%.", "")
    elseif new:find "^embeddings%." or new:find "^encoder%." or new:find "^pooler%." then
      new = "bert." .. new
    end
    local keep = (net.bert or net).pooler ~= nil or not new:find "^pooler%." and not new:find "^bert%.pooler%."
    for _, pattern in ipairs(left_out) do keep = keep and not new:find(pattern) end
    dict[key] = nil
    if keep then dict[new] = value end
  end
end

--- The class of lm.models.bert.
local Bert = class.define("Bert", nn.Module)

function Bert:init(config)
  self.config = config
  local width, layers = config.hidden_size, {}
  for i = 1, config.num_hidden_layers do layers[i] = Layer(config) end
  local body = config.head == "none" and self or nn.Module()
  body.embeddings = group {
    {"word_embeddings", nn.Embedding(config.vocab_size, width)},
    {"position_embeddings", nn.Embedding(config.max_position_embeddings, width)},
    {"token_type_embeddings", nn.Embedding(config.type_vocab_size, width)}, {"LayerNorm", norm(config)},
  }
  body.encoder = group {{"layer", nn.ModuleList(layers)}}
  local pooled = config.head == "sequence_classification" or config.head == "none" and config.add_pooling_layer
  if pooled then body.pooler = group {{"dense", nn.Linear(width, width)}} end
  if body ~= self then self.bert = body end
  if config.head == "masked_lm" then
    self.cls = group {{"predictions", group {
      {"transform", transform_of(config)}, {"bias", nn.init.zeros_(layer.parameter({config.vocab_size}, {}))},
    }}}
  elseif config.head ~= "none" then
    self.classifier = nn.Linear(width, config.num_labels)
  end
  self.dropout = nn.Dropout(config.hidden_dropout_prob)
  self:reset_parameters()
  self:register_load_state_dict_pre_hook(rename)
end

--- Weights are drawn with deviation 0.02, biases are 0.
function Bert:reset_parameters()
  for name, p in self:named_parameters() do
    if p.ndim == 2 then nn.init.normal_(p, 0, 0.02) elseif name:find "bias$" then nn.init.zeros_(p) end
  end
end

-- bool [N, 1, L or 1, L], true where a token is seen, of a mask [N, L] or [N, L, L].
local function mask_of(given, ids)
  if not given then return nil end
  local n, l, shape = ids.shape[1], ids.shape[2], given.shape
  local by_query = given.ndim == 3
  if shape[1] ~= n or shape[#shape] ~= l or by_query and shape[2] ~= l or not by_query and given.ndim ~= 2 then
    options.wrong_shape("Bert", "attention_mask", given, ("[%d, %d] or [%d, %d, %d]"):format(n, l, n, l, l))
  end
  given = given.dtype == "bool" and given or given:ne(0)
  return by_query and given:unsqueeze(2) or given:view(n, 1, 1, l)
end

local function embedded(self, ids, o)
  local l, types = ids.shape[2], o.token_type_ids
  if l > self.config.max_position_embeddings then
    options.must_be("Bert", "the number of tokens",
      ("at most max_position_embeddings, %d"):format(self.config.max_position_embeddings), l)
  end
  if types and (types.ndim ~= 2 or types.shape[1] ~= ids.shape[1] or types.shape[2] ~= l) then
    options.wrong_shape("Bert", "token_type_ids", types, {ids.shape[1], l})
  end
  local embeddings = (self.bert or self).embeddings
  local kinds = embeddings.token_type_embeddings.weight[1]
  if types then
    local ok
    ok, kinds = pcall(embeddings.token_type_embeddings, types)
    if not ok then
      fail("Bert: token_type_ids must be 1 or 2, as tokenizer(…) returns them: %s", truncate_text(tostring(kinds), 500))
    end
  end
  return embeddings.word_embeddings(ids) + kinds + embeddings.position_embeddings.weight:narrow(1, 1, l)
end

--- net(ids [, {attention_mask, token_type_ids}]): ids [N, L] (int64, from 1); attention_mask [N, L] (or [N, L, L], by
--- query), 1 or true where a token is seen; token_type_ids [N, L], int64, 1 for the first text and 2 for the second,
--- all 1 by default. Without a head hidden states [N, L, hidden_size] and, with add_pooling_layer, the first token's,
--- pooled, [N, hidden_size]; with head "masked_lm" scores [N, L, vocab_size], with "sequence_classification" [N,
--- num_labels], with "token_classification" [N, L, num_labels].
function Bert:forward(ids, opts)
  local o = options.check("Bert", opts, {attention_mask = {"tensor"}, token_type_ids = {"tensor"}}, "attention_mask")
  if common.ids("Bert", ids).shape[2] == 0 then
    options.must_be("Bert", "ids", "a tensor with at least one token", ids)
  end
  local body, mask = self.bert or self, mask_of(o.attention_mask, ids)
  local x = self.dropout(body.embeddings.LayerNorm(embedded(self, ids, o)))
  for _, each in ipairs(body.encoder.layer) do x = each(x, mask) end
  if self.cls then
    local head = self.cls.predictions
    local y = head.transform.LayerNorm(activations[self.config.hidden_act](head.transform.dense(x)))
    return ops.linear(y, body.embeddings.word_embeddings.weight, head.bias)
  end
  if self.config.head == "token_classification" then return self.classifier(self.dropout(x)) end
  if not body.pooler then return x end
  local pooled = body.pooler.dense(x:select(2, 1)):tanh()
  if self.classifier then return self.classifier(self.dropout(pooled)) end
  return x, pooled
end

local heads = {
  BertModel = "none", BertForMaskedLM = "masked_lm", BertForPreTraining = "masked_lm",
  BertForSequenceClassification = "sequence_classification", BertForTokenClassification = "token_classification",
}

-- What config.json calls otherwise.
local function also(json, out, given, path)
  local architecture = type(json.architectures) == "table" and json.architectures[1]
  out.head = heads[architecture]
  if architecture and not out.head and given.head == nil then
    fail("bert: '%s' is a '%s', whose head is not supported; pass {head = \"none\", strict = false} to load the model "
      .. "without it", path, tostring(architecture))
  end
  out.labels = common.labels("bert", path, json)
  out.num_labels = out.labels and #out.labels or json.num_labels
end

--- models.bert([{head = "none", vocab_size = 30522, hidden_size = 768, num_hidden_layers = 12, num_attention_heads =
--- 12, intermediate_size = 3072, hidden_act = "gelu", hidden_dropout_prob = 0.1, attention_probs_dropout_prob = 0.1,
--- max_position_embeddings = 512, type_vocab_size = 2, layer_norm_eps = 1e-12, num_labels = 2, labels,
--- add_pooling_layer = true}]): Constructs BERT, bare or with a head. Devlin et al., "BERT: Pre-training of Deep
--- Bidirectional Transformers for Language Understanding", 2019.
function models.bert(opts)
  local names, act = {"none", "masked_lm", "sequence_classification", "token_classification"}, {}
  for name in pairs(activations) do act[#act + 1] = name end
  table.sort(act)
  return build("bert", opts, {
    head = {names}, vocab_size = {"count", 30522}, hidden_size = {"count", 768},
    num_hidden_layers = {"count", 12}, num_attention_heads = {"count", 12}, intermediate_size = {"count", 3072},
    hidden_act = {act, "gelu"}, hidden_dropout_prob = {"probability", 0.1},
    attention_probs_dropout_prob = {"probability", 0.1}, max_position_embeddings = {"count", 512},
    type_vocab_size = {"count", 2}, layer_norm_eps = {"positive", 1e-12}, num_labels = {"count", 2},
    labels = {"table"}, add_pooling_layer = {"boolean", true},
  }, function(config)
    config.head = config.head or "none"
    common.fit_labels("bert", config, "num_labels")
    if config.hidden_size % config.num_attention_heads ~= 0 then
      options.not_divisible("bert", "hidden_size", config.hidden_size, "num_attention_heads",
        config.num_attention_heads)
    end
    return Bert(config)
  end, "head", {kind = "bert", also = also, only = {
    position_embedding_type = "absolute", tie_word_embeddings = true, is_decoder = false, add_cross_attention = false,
  }})
end

return models

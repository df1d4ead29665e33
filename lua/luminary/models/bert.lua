--- Defines BERT, RoBERTa and DistilBERT, bare or with a head, with Hugging Face's names of parameters (Devlin et al.,
--- "BERT: Pre-training of Deep Bidirectional Transformers for Language Understanding", 2019).
local core = require "luminary.core"
local class = require "luminary.base.class"
local truncate_text = require "luminary.base.truncate_text"
local options = require "luminary.base.options"
local nn = require "luminary.nn"
local layer = require "luminary.nn.define_layer"
local common = require "luminary.models.common"
local part = require "luminary.nn.sequence_part"
local shapes = require "luminary.tensor.shapes"

local ops, fail = core.ops, options.fail
local models = {}

-- Returns a module with a list of children {name, module}.
local function group(children)
  local m = nn.Module()
  for _, child in ipairs(children) do m[child[1]] = child[2] end
  return m
end

local function norm(config) return nn.LayerNorm(config.hidden_size, {eps = config.layer_norm_eps}) end

local activations = common.activations

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
  self.drops_attention = config.model_type ~= "distilbert"
end

function Layer:forward(x, mask)
  local n, l, width = unpack(x.shape)
  local own, after = self.attention.self, self.attention.output
  local function heads_of(t) return t:view(n, l, self.heads, width / self.heads):transpose(2, 3) end
  local y = ops.scaled_dot_product_attention(heads_of(own.query(x)), heads_of(own.key(x)), heads_of(own.value(x)), {
    attn_mask = mask, dropout_p = self.training and self.rate or 0,
  })
  y = after.dense(y:transpose(2, 3):reshape(n, l, width))
  x = after.LayerNorm((self.drops_attention and self.dropout(y) or y) + x)
  y = self.output.dense(activations[self.act](self.intermediate.dense(x)))
  return self.output.LayerNorm(self.dropout(y) + x)
end

-- Returns the dense layer and norm before a head's scores of tokens.
local function transform_of(config)
  return group {{"dense", nn.Linear(config.hidden_size, config.hidden_size)}, {"LayerNorm", norm(config)}}
end

-- Families by model_type. names: rules that rename a state_dict's tensors to BERT's names. `counts` (RoBERTa):
-- positions count tokens that are not padding, from pad_token_id + 1, and the head has two dropouts. `distilled`
-- (DistilBERT): no token types, no dropout after attention, and ReLU before the head. All others are defaults of
-- options.
local roberta = {
  counts = true, vocab_size = 50265, pad_token_id = 2,
  names = {
    {"^roberta%.", "bert."}, {"^lm_head%.decoder%.", false}, {"^lm_head%.bias$", "cls.predictions.bias"},
    {"^lm_head%.dense%.", "cls.predictions.transform.dense."},
    {"^lm_head%.layer_norm%.", "cls.predictions.transform.LayerNorm."}, {"^classifier%.dense%.", "bert.pooler.dense."},
    {"^classifier%.out_proj%.", "classifier."},
  },
}
local families = {
  bert = {names = {}}, roberta = roberta, ["xlm-roberta"] = roberta, camembert = roberta,
  distilbert = {
    distilled = true, num_hidden_layers = 6, add_pooling_layer = false,
    names = {
      {"^distilbert%.", "bert."}, {"^transformer%.", "encoder."}, {"^bert%.transformer%.", "bert.encoder."},
      {"%.q_lin%.", ".self.query."}, {"%.k_lin%.", ".self.key."}, {"%.v_lin%.", ".self.value."},
      {"%.out_lin%.", ".output.dense."}, {"%.sa_layer_norm%.", ".attention.output.LayerNorm."},
      {"%.ffn%.lin1%.", ".intermediate.dense."}, {"%.ffn%.lin2%.", ".output.dense."},
      {"%.output_layer_norm%.", ".output.LayerNorm."}, {"^pre_classifier%.", "bert.pooler.dense."},
      {"^vocab_transform%.", "cls.predictions.transform.dense."},
      {"^vocab_layer_norm%.", "cls.predictions.transform.LayerNorm."},
      {"^vocab_projector%.bias$", "cls.predictions.bias"}, {"^vocab_projector%.weight$", false},
    },
  },
}

-- Rules for all families: old names of norms, and tensors to skip: tied weights, and pre-training's other heads.
local usual = {
  {"LayerNorm%.gamma$", "LayerNorm.weight"}, {"LayerNorm%.beta$", "LayerNorm.bias"},
  {"embeddings%.position_ids$", false}, {"^cls%.predictions%.decoder%.", false}, {"^cls%.seq_relationship%.", false},
}

-- Renames tensors of a state_dict, of a bare model or of one with a head, to the names in net.
local function rename(net, dict)
  common.rename(dict, families[net.config.model_type].names)
  common.rename(dict, usual)
  local rules = net.bert and {
    {"^embeddings%.", "bert.embeddings."}, {"^encoder%.", "bert.encoder."}, {"^pooler%.", "bert.pooler."},
  } or {{"^bert%.", ""}}
  if not (net.bert or net).pooler then table.insert(rules, {net.bert and "^bert%.pooler%." or "^pooler%.", false}) end
  common.rename(dict, rules)
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
  }
  if config.model_type ~= "distilbert" then
    body.embeddings.token_type_embeddings = nn.Embedding(config.type_vocab_size, width)
  end
  body.embeddings.LayerNorm = norm(config)
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
  self.head_dropout = nn.Dropout(config.classifier_dropout or config.hidden_dropout_prob)
  self:reset_parameters()
  self:register_load_state_dict_pre_hook(rename)
end

--- Draws weights with a standard deviation of 0.02, and sets biases to 0.
function Bert:reset_parameters()
  for name, p in self:named_parameters() do
    if p.ndim == 2 then nn.init.normal_(p, 0, 0.02) elseif name:find "bias$" then nn.init.zeros_(p) end
  end
end

-- Returns bool [N, 1, 1 or L, L], true where a token is attended to, for a mask [N, L] or [N, L, L]; nil for nil.
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
  local config, l, types = self.config, ids.shape[2], o.token_type_ids
  local counts = families[config.model_type].counts
  local most = config.max_position_embeddings - (counts and config.pad_token_id or 0)
  if l > most then
    options.must_be("Bert", "the number of tokens", ("at most %s, %d"):format(counts
      and "max_position_embeddings - pad_token_id" or "max_position_embeddings", most), l)
  end
  if types then shapes.check("Bert", "token_type_ids", types, {ids.shape[1], l}) end
  local embeddings = (self.bert or self).embeddings
  local x, kinds = embeddings.word_embeddings(ids), embeddings.token_type_embeddings
  if types and kinds then
    local ok
    ok, kinds = pcall(kinds, types)
    if not ok then
      fail("Bert: token_type_ids must be 1 or 2, as tokenizer(…) returns them: %s", truncate_text(tostring(kinds), 500))
    end
  elseif kinds then
    kinds = kinds.weight[1]
  end
  if kinds then x = x + kinds end
  if not counts then return x + embeddings.position_embeddings.weight:narrow(1, 1, l) end
  local real = ids:ne(config.pad_token_id):long()
  return x + embeddings.position_embeddings(real:cumsum(2) * real + config.pad_token_id)
end

--- net(ids [, {attention_mask, token_type_ids}]): ids [N, L] (int64, from 1); attention_mask [N, L] (or [N, L, L], by
--- query), 1 or true where a token is seen; token_type_ids [N, L], int64, 1 for the first text and 2 for the second,
--- all 1 by default. Without a head hidden states [N, L, hidden_size] and, with add_pooling_layer, the first token's,
--- pooled, [N, hidden_size]; with head "masked_lm" scores [N, L, vocab_size], with "sequence_classification" [N,
--- num_labels], with "token_classification" [N, L, num_labels].
function Bert:forward(ids, opts)
  if part.ranks > 1 then fail("Bert: nn.parallel.context_parallel is not supported; lm.models.gpt2 and llama are") end
  local o = options.check("Bert", opts, "{attention_mask: tensor, token_type_ids: tensor}")
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
  if self.config.head == "token_classification" then return self.classifier(self.head_dropout(x)) end
  if not body.pooler then return x end
  local family, pooled = families[self.config.model_type], x:select(2, 1)
  if self.classifier and family.counts then pooled = self.head_dropout(pooled) end
  pooled = body.pooler.dense(pooled)
  pooled = family.distilled and pooled:relu() or pooled:tanh()
  if self.classifier then return self.classifier(self.head_dropout(pooled)) end
  return x, pooled
end

local heads = {
  Model = "none", ForMaskedLM = "masked_lm", ForPreTraining = "masked_lm",
  ForSequenceClassification = "sequence_classification", ForTokenClassification = "token_classification",
}
local of_distilbert = {
  hidden_size = "dim", intermediate_size = "hidden_dim", num_hidden_layers = "n_layers",
  num_attention_heads = "n_heads", hidden_dropout_prob = "dropout", attention_probs_dropout_prob = "attention_dropout",
  hidden_act = "activation",
}

-- Sets the options that have other names in config.json.
local function read_renamed_options(json, out, given, path)
  local architecture = type(json.architectures) == "table" and json.architectures[1]
  local family = families[out.model_type or "bert"]
  out.head = heads[tostring(architecture):match "ForPreTraining$" or tostring(architecture):match "For%u%w*$"
    or tostring(architecture):match "Model$"]
  if architecture and not out.head and given.head == nil then
    fail("bert: '%s' is a '%s', whose head is not supported; pass {head = \"none\", strict = false} to load the model "
      .. "without it", path, tostring(architecture))
  end
  out.labels = common.labels("bert", path, json)
  out.num_labels = out.labels and #out.labels or json.num_labels
  if type(out.pad_token_id) == "number" then out.pad_token_id = out.pad_token_id + 1 end
  for ours, name in pairs(family.distilled and of_distilbert or {}) do out[ours] = json[name] end
  if family.distilled and out.head == "sequence_classification" then
    out.classifier_dropout = json.seq_classif_dropout or 0.2
  end
end

local spec = {
  model_type = {options.sorted_keys(families)},
  head = {{"none", "masked_lm", "sequence_classification", "token_classification"}}, vocab_size = {"count", 30522},
  hidden_size = {"count", 768}, num_hidden_layers = {"count", 12}, num_attention_heads = {"count", 12},
  intermediate_size = {"count", 3072}, hidden_act = {options.sorted_keys(activations), "gelu"},
  hidden_dropout_prob = {"probability", 0.1}, attention_probs_dropout_prob = {"probability", 0.1},
  max_position_embeddings = {"count", 512}, type_vocab_size = {"count", 2}, layer_norm_eps = {"positive", 1e-12},
  num_labels = {"count", 2}, labels = {"table"}, add_pooling_layer = {"boolean", true}, pad_token_id = {"count", 1},
  classifier_dropout = {"probability"},
}

local function maker(name)
  return common.maker(name, spec, name, families[name], function(config)
    config.head = config.head or "none"
    common.fit_labels(name, config, "num_labels")
    options.divisible(name, "hidden_size", config.hidden_size, "num_attention_heads", config.num_attention_heads)
    return Bert(config)
  end, "head", {kinds = families, also = read_renamed_options, only = {
    position_embedding_type = "absolute", tie_word_embeddings = true, is_decoder = false, add_cross_attention = false,
  }})
end

--- lm.models.bert([{head = "none", vocab_size = 30522, hidden_size = 768, num_hidden_layers = 12, num_attention_heads =
--- 12, intermediate_size = 3072, hidden_act = "gelu", hidden_dropout_prob = 0.1, attention_probs_dropout_prob = 0.1,
--- max_position_embeddings = 512, type_vocab_size = 2, layer_norm_eps = 1e-12, num_labels = 2, labels,
--- add_pooling_layer = true, classifier_dropout = hidden_dropout_prob, pad_token_id = 1, model_type = "bert"}]):
--- Constructs BERT, bare or with a head. Devlin et al., "BERT: Pre-training of Deep Bidirectional Transformers for
--- Language Understanding", 2019.
models.bert = maker "bert"
--- lm.models.roberta([{…, pad_token_id = 2}]): Constructs RoBERTa, bare or with a head. Liu et al., "RoBERTa: A
--- Robustly Optimized BERT Pretraining Approach", 2019.
models.roberta = maker "roberta"
--- lm.models.distilbert([{…}]): Constructs DistilBERT, bare or with a head. Sanh et al., "DistilBERT, a distilled
--- version of BERT: smaller, faster, cheaper and lighter", 2019.
models.distilbert = maker "distilbert"

return models

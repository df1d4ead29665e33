--- Defines GPT-2 (Radford et al., "Language Models are Unsupervised Multitask Learners", 2019) with Hugging Face's
--- names of parameters.
local block_kinds = require "luminary.block_kinds"
local core = require "luminary.core"
local class = require "luminary.base.class"
local lists = require "luminary.base.lists"
local options = require "luminary.base.options"
local nn = require "luminary.nn"
local layer = require "luminary.nn.define_layer"
local build = require "luminary.models.build"
local common = require "luminary.models.common"
local generate = require "luminary.models.generate"

local ops = core.ops
local models = {}

-- The standard deviation of weights. That of the layers before a residual's sum is divided by the root of their number.
local DEVIATION = 0.02

-- Returns a class of layers like `of` whose weights have that deviation.
local function class_with_normal_init(of)
  local new = class.define(of.__name, of)
  function new:reset_parameters() nn.init.normal_(self.weight, 0, DEVIATION) end
  return new
end
local Embedding, Linear = class_with_normal_init(nn.Embedding), class_with_normal_init(nn.Linear)

-- A linear layer with a weight [in, out], as in GPT-2's files.
local Conv1D = class.define("Conv1D", nn.Module)

-- The dims of the weight for nn.parallel.parallelize.
Conv1D.weight_dims = {output = 2, input = 1}

-- sums: the number of residual sums, if the layer is before one of them; otherwise nil.
function Conv1D:init(inputs, outputs, sums)
  self.nf, self.nx, self.in_features, self.out_features = outputs, inputs, inputs, outputs -- transformers', nn.Linear's
  self.deviation = DEVIATION / math.sqrt(sums or 1)
  self.weight = layer.parameter({inputs, outputs}, {})
  self.bias = layer.parameter({outputs}, {})
  self:reset_parameters()
end

function Conv1D:reset_parameters()
  nn.init.normal_(self.weight, 0, self.deviation)
  nn.init.zeros_(self.bias)
end

-- Multiplies without transposing the weight: autocast casts parameters in one launch, but a view alone.
function Conv1D:forward(x)
  local shape = x.shape
  shape[#shape] = self.bias:size(1)
  return ops.addmm(self.bias, x:flatten(1, -2), self.weight):view(shape)
end

function Conv1D:extra_repr() return ("nf=%d, nx=%d"):format(self.nf, self.nx) end

function Conv1D:to_int8() return nn.Int8Linear(self.weight:t(), self.bias) end

function Conv1D:to_blocks(kind, blocks)
  if self.nx % block_kinds[kind].elements ~= 0 then return self end
  return nn.BlockLinear(blocks or self.weight:t(), kind, self.bias)
end

-- Attends to values by heads; a module, so that nn.parallel.parallelize makes each rank draw its own dropout.
local Attend = class.define("GPT2Attend", nn.Module)

function Attend:init(rate, scale) self.rate, self.scale = rate, scale end

function Attend:forward(q, k, v, seen)
  return ops.scaled_dot_product_attention(q, k, v, {
    attn_mask = seen.attn_mask, is_causal = seen.is_causal, dropout_p = self.training and self.rate or 0,
    scale = self.scale,
  })
end

local Attention = class.define("GPT2Attention", nn.Module)

function Attention:init(config, depth)
  self.head_dim = config.n_embd / config.n_head
  local scale = (config.scale_attn_weights and (config.n_embd / config.n_head) ^ -0.5 or 1)
    / (config.scale_attn_by_inverse_layer_idx and depth or 1)
  self.c_attn = Conv1D(config.n_embd, 3 * config.n_embd)
  self.attend = Attend(config.attn_pdrop, scale)
  self.c_proj = Conv1D(config.n_embd, config.n_embd, 2 * config.n_layer)
  self.resid_dropout = nn.Dropout(config.resid_pdrop)
end

function Attention:forward(x, seen, cache)
  local qkv = self.c_attn(x)
  local n, l, width = qkv.shape[1], qkv.shape[2], qkv.shape[3] / 3 -- this rank's heads
  local q, k, v = unpack(qkv:view(n, l, 3, width / self.head_dim, self.head_dim):unbind(3))
  q, k, v = q:transpose(2, 3), k:transpose(2, 3), v:transpose(2, 3)
  local y
  if cache and cache.attend then
    y = cache:attend(q, k, v, {scale = self.attend.scale})
  else
    if cache then k, v = cache:update(k, v) end
    y = self.attend(q, k, v, seen)
  end
  return self.resid_dropout(self.c_proj(y:transpose(2, 3):reshape(n, l, width)))
end

local MLP = class.define("GPT2MLP", nn.Module)

function MLP:init(config)
  self.c_fc = Conv1D(config.n_embd, config.n_inner)
  self.c_proj = Conv1D(config.n_inner, config.n_embd, 2 * config.n_layer)
  self.dropout = nn.Dropout(config.resid_pdrop)
  self.act = config.activation_function
end

function MLP:forward(x) return self.dropout(self.c_proj(common.activations[self.act](self.c_fc(x)))) end

local Block = class.define("GPT2Block", nn.Module)

function Block:init(config, depth)
  local norm = {eps = config.layer_norm_epsilon}
  self.ln_1 = nn.LayerNorm(config.n_embd, norm)
  self.attn = Attention(config, depth)
  self.ln_2 = nn.LayerNorm(config.n_embd, norm)
  self.mlp = MLP(config)
end

function Block:forward(x, seen, cache)
  x = x + self.attn(self.ln_1(x), seen, cache)
  return x + self.mlp(self.ln_2(x))
end

-- Renames a state_dict from the bare model's names, and removes masks and the output weight that is tied to wte's.
local function rename(net, dict)
  common.rename(dict, {
    {"%.attn%.bias$", false}, {"%.attn%.masked_bias$", false}, {"^h%.", "transformer.h."},
    {"^w([tp])e%.", "transformer.w%1e."}, {"^ln_f%.", "transformer.ln_f."},
  })
  if not net.lm_head then dict["lm_head.weight"] = nil end
end

--- The class of lm.models.gpt2.
local GPT2 = class.define("GPT2", common.LanguageModel)

function GPT2:init(config)
  self.config = config
  local body = nn.Module()
  body.wte = Embedding(common.vocab_rows(config), config.n_embd)
  body.wpe = Embedding(config.n_positions, config.n_embd)
  body.drop = nn.Dropout(config.embd_pdrop)
  local blocks = {}
  for i = 1, config.n_layer do blocks[i] = Block(config, i) end
  body.h = nn.ModuleList(blocks)
  body.ln_f = nn.LayerNorm(config.n_embd, {eps = config.layer_norm_epsilon})
  self.transformer = body
  if not config.tie_word_embeddings then
    self.lm_head = Linear(config.n_embd, common.vocab_rows(config), {bias = false})
  end
  self:register_load_state_dict_pre_hook(rename)
  common.pad_vocab(self, config, "transformer.wte.weight")
end

--- Draws weights as in the paper: deviation 0.02, divided by the root of twice the layers before a residual's sum.
function GPT2:reset_parameters()
  for _, m in ipairs(self:modules()) do
    if m ~= self and m.reset_parameters then m:reset_parameters() end
  end
end

function GPT2:embedding() return self.transformer.wte.weight, self.transformer.wte.kind end

function GPT2:parallel_plan(opts)
  local block = "transformer.h.*."
  return common.parallel_plan("GPT2", opts, {
    ["transformer.wte"] = {style = "vocabulary", output = "replicated"}, lm_head = "vocabulary",
    [block .. "attn.c_attn"] = {style = "column", parts = 3, unit = self.config.n_embd / self.config.n_head},
    [block .. "attn.attend"] = "divided", [block .. "attn.c_proj"] = "row",
    [block .. "mlp.c_fc"] = "column", [block .. "mlp.c_proj"] = "row",
  }, {
    ["transformer.wpe"] = "replicated", ["transformer.drop"] = {style = "sequence", input = "replicated"},
    [block .. "ln_*"] = "sequence", [block .. "attn.resid_dropout"] = "sequence", [block .. "mlp.dropout"] = "sequence",
    ["transformer.ln_f"] = "sequence",
  })
end

function GPT2:cache_sizes() return self.config.n_layer, self.config.n_head, self.config.n_embd / self.config.n_head end

-- Returns the hidden states [N, L, n_embd] of ids before the first block. o: what common.forward_options returns.
local function embed(net, ids, o)
  local body, l = net.transformer, ids.shape[2]
  if o.first + l > net.config.n_positions then
    options.must_be("GPT2", "the number of tokens", ("at most n_positions, %d"):format(net.config.n_positions),
      o.first + l)
  end
  local positions = o.position_ids and body.wpe(o.position_ids) or body.wpe.weight:narrow(1, o.first + 1, l)
  return body.drop(body.wte(ids) + positions)
end

--- net(ids [, {cache, attention_mask, position_ids, logits_to_keep, hidden_states}]): Returns scores [N, L, vocab_size]
--- of the token after each of ids [N, L] (int64, from 1), which follow the M tokens of a cache. attention_mask
--- [N, M + L]: 1 or true for tokens, 0 or false for padding, to which no token attends. position_ids [N, L]: int64
--- positions from 1; M + 1 to M + L by default, whatever the mask is. logits_to_keep: the number of last tokens, or the
--- indices [K] of tokens, whose scores alone are returned. hidden_states = true: returns the last hidden states in the
--- place of scores.
function GPT2:forward(ids, opts)
  local o, body = common.forward_options("GPT2", ids, opts, self.config.n_layer), self.transformer
  local x = embed(self, ids, o)
  for i, block in ipairs(body.h) do x = block(x, o.seen, o.cache and o.cache[i]) end
  x = body.ln_f(common.kept("GPT2", x, o))
  return o.hidden_states and x or self:scores(x)
end

--- Returns the parts of net(ids) that nn.parallel.Pipeline divides into stages.
function GPT2:pipeline_parts()
  local parts = {{"transformer.wte", "transformer.wpe", "transformer.drop", forward = function(net, ids)
    return embed(net, ids, common.forward_options("GPT2", ids))
  end}}
  for i = 1, self.config.n_layer do
    parts[i + 1] = {"transformer.h." .. i - 1, forward = function(net, x)
      return net.transformer.h[i](x, common.forward_options("GPT2", x:detach():select(3, 1)).seen)
    end}
  end
  local head = self.lm_head and "lm_head" or "transformer.wte"
  return lists.append(parts, {{"transformer.ln_f", head, forward = function(net, x)
    return net:scores(net.transformer.ln_f(x))
  end}})
end

GPT2.generate = generate

--- models.gpt2([{vocab_size = 50257, n_positions = 1024, n_embd = 768, n_layer = 12, n_head = 12, n_inner = 4 * n_embd,
--- embd_pdrop = 0.1, attn_pdrop = 0.1, resid_pdrop = 0.1, layer_norm_epsilon = 1e-5, tie_word_embeddings = true,
--- pad_vocab_to, activation_function = "gelu_new", scale_attn_weights = true, scale_attn_by_inverse_layer_idx =
--- false}]): Constructs GPT-2. Radford et al., "Language Models are Unsupervised Multitask Learners", 2019.
function models.gpt2(opts)
  return build("gpt2", opts, {
    vocab_size = {"count", 50257}, n_positions = {"count", 1024}, n_embd = {"count", 768}, n_layer = {"count", 12},
    n_head = {"count", 12}, embd_pdrop = {"probability", 0.1}, attn_pdrop = {"probability", 0.1},
    resid_pdrop = {"probability", 0.1}, layer_norm_epsilon = {"positive", 1e-5}, n_inner = {"count"},
    tie_word_embeddings = {"boolean", true}, pad_vocab_to = {"count"}, scale_attn_weights = {"boolean", true},
    activation_function = {options.sorted_keys(common.activations), "gelu_new"},
    scale_attn_by_inverse_layer_idx = {"boolean", false},
  }, function(config)
    options.divisible("gpt2", "n_embd", config.n_embd, "n_head", config.n_head)
    config.max_positions, config.n_inner = config.n_positions, config.n_inner or 4 * config.n_embd
    return GPT2(config)
  end, "vocab_size", {kinds = {gpt2 = {}}, generates = true, only = {add_cross_attention = false}})
end

return models

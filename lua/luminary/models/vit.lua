--- Vision transformers (Dosovitskiy et al., "An Image is Worth 16x16 Words", 2021) with torchvision's names of
--- parameters; Hugging Face's ViTForImageClassification is renamed as it is loaded.
local core = require "luminary.core"
local class = require "luminary.base.class"
local options = require "luminary.base.options"
local nn = require "luminary.nn"
local layer = require "luminary.nn.define_layer"
local build = require "luminary.models.build"
local common = require "luminary.models.common"

local ops = core.ops
local models = {}

local EncoderBlock = class.define("EncoderBlock", nn.Module)

function EncoderBlock:init(config)
  local width, norm = config.hidden_dim, {eps = config.norm_eps}
  self.ln_1 = nn.LayerNorm(width, norm)
  self.self_attention = nn.MultiheadAttention(width, config.num_heads, {
    dropout = config.attention_dropout, batch_first = true,
  })
  self.dropout = nn.Dropout(config.dropout)
  self.ln_2 = nn.LayerNorm(width, norm)
  self.mlp = nn.Sequential(
    nn.Linear(width, config.mlp_dim), nn.GELU(), nn.Dropout(config.dropout),
    nn.Linear(config.mlp_dim, width), nn.Dropout(config.dropout))
end

function EncoderBlock:forward(x)
  local y = self.ln_1(x)
  x = x + self.dropout((self.self_attention(y, y, y, {need_weights = false})))
  return x + self.mlp(self.ln_2(x))
end

-- Hugging Face's names after "vit.", of files and of its state_dicts, and ours; %1 is a layer's number.
local theirs = {
  {"^embeddings%.cls_token$", "class_token"}, {"^embeddings%.position_embeddings$", "encoder.pos_embedding"},
  {"^embeddings%.patch_embeddings%.projection%.", "conv_proj."}, {"^layernorm%.", "encoder.ln."},
  {"^classifier%.", "heads.head."}, {"^encoder%.layer%.(%d+)", "encoder.layers.encoder_layer_%1"},
  {"^layers%.(%d+)", "encoder.layers.encoder_layer_%1"},
  {"%.layernorm_before%.", ".ln_1."}, {"%.layernorm_after%.", ".ln_2."},
  {"%.attention%.output%.dense%.", ".self_attention.out_proj."}, {"%.attention%.o_proj%.", ".self_attention.out_proj."},
  {"%.intermediate%.dense%.", ".mlp.0."}, {"%.output%.dense%.", ".mlp.3."},
  {"%.mlp%.fc1%.", ".mlp.0."}, {"%.mlp%.fc2%.", ".mlp.3."},
  {"%.attention%.attention%.([qkv])%l+%.", ".attention.%1."}, {"%.attention%.([qkv])_proj%.", ".attention.%1."},
}

-- A dict of Hugging Face's gets our names; queries, keys and values become one weight.
local function rename(_net, dict)
  if not (dict["vit.embeddings.cls_token"] or dict["embeddings.cls_token"]) then return end
  local bare, queries = {}, {}
  for key, value in pairs(dict) do bare[key:gsub("^vit%.", "")] = value end
  for key in pairs(bare) do dict[key], dict["vit." .. key] = nil, nil end
  for key, value in pairs(bare) do
    for _, rule in ipairs(theirs) do key = key:gsub(rule[1], rule[2]) end
    if not key:find "^pooler%." then dict[key] = value end
    if key:find "%.attention%.q%." then queries[#queries + 1] = key end
  end
  for _, query in ipairs(queries) do
    local from, kind = query:match "^(.*%.)attention%.q%.(%l+)$"
    local parts = {}
    for i, name in ipairs {"q", "k", "v"} do
      local key = from .. "attention." .. name .. "." .. kind
      parts[i], dict[key] = dict[key], nil
    end
    dict[from .. "self_attention.in_proj_" .. kind] = #parts == 3 and ops.cat(parts, 1) or nil
  end
end

--- The class of lm.models.vit.
local VisionTransformer = class.define("VisionTransformer", nn.Module)

function VisionTransformer:init(config)
  self.config = config
  local width, patch = config.hidden_dim, config.patch_size
  self.conv_proj = nn.Conv2d(config.num_channels, width, patch, {stride = patch})
  self.class_token = nn.init.zeros_(layer.parameter({1, 1, width}, {}))
  local encoder, layers = nn.Module(), nn.Sequential()
  local patches = (config.image_size / patch) ^ 2
  encoder.pos_embedding = nn.init.normal_(layer.parameter({1, patches + 1, width}, {}), 0, 0.02)
  encoder.dropout = nn.Dropout(config.dropout)
  for i = 0, config.num_layers - 1 do layers:add_module("encoder_layer_" .. i, EncoderBlock(config)) end
  encoder.layers = layers
  encoder.ln = nn.LayerNorm(width, {eps = config.norm_eps})
  self.encoder = encoder
  self.heads = nn.Sequential()
  if config.num_classes > 0 then self.heads:add_module("head", nn.Linear(width, config.num_classes)) end
  self:reset_parameters()
  self:register_load_state_dict_pre_hook(rename)
end

--- Weights are drawn as torchvision draws them: patches by their size, layers by Glorot's rule, the head is 0.
function VisionTransformer:reset_parameters()
  local function draw(linear) nn.init.xavier_uniform_(linear.weight) nn.init.normal_(linear.bias, 0, 1e-6) end
  local weight = self.conv_proj.weight
  nn.init.trunc_normal_(weight, 0, math.sqrt(1 / (weight:numel() / weight.shape[1])))
  nn.init.zeros_(self.conv_proj.bias)
  for _, block in self.encoder.layers:named_children() do
    draw(block.mlp[1])
    draw(block.mlp[4])
  end
  for _, p in ipairs(self.heads:parameters()) do nn.init.zeros_(p) end
end

--- net(x): scores [N, num_classes] of images x [N, num_channels, image_size, image_size]; where num_classes is 0 what
--- the head would be given, [N, hidden_dim].
function VisionTransformer:forward(x)
  local config = self.config
  options.arg("VisionTransformer", "x", x, "tensor")
  local shape = x.shape
  if x.ndim ~= 4 or shape[2] ~= config.num_channels or shape[3] ~= config.image_size or shape[4] ~= shape[3] then
    options.wrong_shape("VisionTransformer", "x", x, {"N", config.num_channels, config.image_size, config.image_size})
  end
  x = self.conv_proj(x):flatten(3):transpose(2, 3)
  x = ops.cat({self.class_token:expand(shape[1], 1, config.hidden_dim), x}, 2)
  local encoder = self.encoder
  x = encoder.ln(encoder.layers(encoder.dropout(x + encoder.pos_embedding)))
  return self.heads(x:select(2, 1))
end

-- What Hugging Face's config.json calls otherwise.
local function also(json, out, _given, path)
  for ours, name in pairs {
    num_layers = "num_hidden_layers", num_heads = "num_attention_heads", mlp_dim = "intermediate_size",
    hidden_dim = "hidden_size", norm_eps = "layer_norm_eps", dropout = "hidden_dropout_prob",
    attention_dropout = "attention_probs_dropout_prob",
  } do
    out[ours] = json[name]
  end
  local architecture = type(json.architectures) == "table" and json.architectures[1]
  out.labels = common.labels("vit", path, json)
  if architecture == "ViTModel" then
    out.num_classes, out.labels = 0, nil
  else -- a file leaves out the usual two
    out.num_classes = out.labels and #out.labels or json.num_labels or 2
  end
end

local function make(config)
  if config.image_size % config.patch_size ~= 0 then
    options.not_divisible("vit", "image_size", config.image_size, "patch_size", config.patch_size)
  end
  common.fit_labels("vit", config, "num_classes")
  return VisionTransformer(config)
end

local function maker(name, patch_size, layers, heads, width, mlp_dim)
  return function(opts)
    return build(name, opts, {
      image_size = {"count", 224}, patch_size = {"count", patch_size}, num_channels = {"count", 3},
      num_layers = {"count", layers}, num_heads = {"count", heads}, hidden_dim = {"count", width},
      mlp_dim = {"count", mlp_dim}, dropout = {"probability", 0}, attention_dropout = {"probability", 0},
      norm_eps = {"positive", 1e-6}, num_classes = {"natural", 1000}, labels = {"table"},
    }, make, "num_classes", {kinds = {vit = true}, also = also, only = {hidden_act = "gelu", qkv_bias = true}})
  end
end

--- lm.models.vit([{image_size = 224, patch_size = 16, num_channels = 3, num_layers = 12, num_heads = 12, hidden_dim =
--- 768, mlp_dim = 3072, dropout = 0, attention_dropout = 0, norm_eps = 1e-6, num_classes = 1000, labels}]): Constructs
--- a vision transformer. Dosovitskiy et al., "An Image is Worth 16x16 Words", 2021.
models.vit = maker("vit", 16, 12, 12, 768, 3072)
--- lm.models.vit_b_16([{image_size = 224, …}]): Constructs the ViT-B/16 vision transformer.
models.vit_b_16 = maker("vit_b_16", 16, 12, 12, 768, 3072)
--- lm.models.vit_b_32([{image_size = 224, …}]): Constructs the ViT-B/32 vision transformer.
models.vit_b_32 = maker("vit_b_32", 32, 12, 12, 768, 3072)
--- lm.models.vit_l_16([{image_size = 224, …}]): Constructs the ViT-L/16 vision transformer.
models.vit_l_16 = maker("vit_l_16", 16, 24, 16, 1024, 4096)
--- lm.models.vit_l_32([{image_size = 224, …}]): Constructs the ViT-L/32 vision transformer.
models.vit_l_32 = maker("vit_l_32", 32, 24, 16, 1024, 4096)
--- lm.models.vit_h_14([{image_size = 224, …}]): Constructs the ViT-H/14 vision transformer.
models.vit_h_14 = maker("vit_h_14", 14, 32, 16, 1280, 5120)

return models

--- Defines vision transformers (Dosovitskiy et al., "An Image is Worth 16x16 Words", 2021) with torchvision's names of
--- parameters; tensors with Hugging Face's names are renamed when they are loaded.
local core = require "luminary.core"
local class = require "luminary.base.class"
local options = require "luminary.base.options"
local nn = require "luminary.nn"
local layer = require "luminary.nn.define_layer"
local blocks = require "luminary.models.blocks"
local common = require "luminary.models.common"

local ops, F = core.ops, nn.functional
local models = {}

-- Families by model_type. `distilled`: DeiT has a token for distillation. `scales`: DINOv2 scales residuals, classifies
-- by the mean of patches too, and resizes positions for images of another size. All others are defaults of options.
local families = {vit = {}, deit = {distilled = true, norm_eps = 1e-12}, dinov2 = {scales = true, patch_size = 14}}

local activations = {
  gelu = nn.GELU, relu = nn.ReLU, silu = nn.SiLU, tanh = nn.Tanh,
  gelu_new = function() return nn.GELU {approximate = "tanh"} end,
}
activations.gelu_pytorch_tanh = activations.gelu_new

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
    nn.Linear(width, config.mlp_dim), activations[config.hidden_act](), nn.Dropout(config.dropout),
    nn.Linear(config.mlp_dim, width), nn.Dropout(config.dropout))
  if families[config.model_type].scales then
    for _, name in ipairs {"layer_scale1", "layer_scale2"} do
      self[name] = nn.init.constant_(layer.parameter({width}, {}), config.layerscale_value)
    end
  end
  self.rate = config.drop_path_rate
end

function EncoderBlock:forward(x)
  local y = self.ln_1(x)
  y = self.dropout((self.self_attention(y, y, y, {need_weights = false})))
  x = x + blocks.drop(self, self.layer_scale1 and y * self.layer_scale1 or y)
  y = self.mlp(self.ln_2(x))
  return x + blocks.drop(self, self.layer_scale2 and y * self.layer_scale2 or y)
end

-- Rules that rename tensors from Hugging Face's names, in files and state_dicts; %1 is a layer's number.
local theirs = {
  {"^vit%.", ""}, {"^deit%.", ""}, {"^dinov2%.", ""},
  {"^embeddings%.cls_token$", "class_token"}, {"^embeddings%.position_embeddings$", "encoder.pos_embedding"},
  {"^embeddings%.patch_embeddings%.projection%.", "conv_proj."}, {"^embeddings%.mask_token$", false},
  {"^embeddings%.distillation_token$", "distillation_token"}, {"^layernorm%.", "encoder.ln."}, {"^pooler%.", false},
  {"^classifier%.", "heads.head."}, {"^cls_classifier%.", "heads.head."},
  {"^distillation_classifier%.", "heads.distillation."},
  {"^encoder%.layer%.(%d+)", "encoder.layers.encoder_layer_%1"},
  {"^layers%.(%d+)", "encoder.layers.encoder_layer_%1"}, {"%.lambda1$", ""},
  {"%.layernorm_before%.", ".ln_1."}, {"%.layernorm_after%.", ".ln_2."}, {"%.norm([12])%.", ".ln_%1."},
  {"%.attention%.output%.dense%.", ".self_attention.out_proj."}, {"%.attention%.o_proj%.", ".self_attention.out_proj."},
  {"%.intermediate%.dense%.", ".mlp.0."}, {"%.output%.dense%.", ".mlp.3."},
  {"%.mlp%.fc1%.", ".mlp.0."}, {"%.mlp%.fc2%.", ".mlp.3."},
  {"%.attention%.attention%.([qkv])%l+%.", ".attention.%1."}, {"%.attention%.([qkv])_proj%.", ".attention.%1."},
}

-- Renames a state_dict from Hugging Face's names, or torchvision's older ones of the MLP. Queries, keys and values
-- become one weight, and missing biases zeros.
local function rename(_net, dict)
  common.rename(dict, {{"%.mlp%.linear_1%.", ".mlp.0."}, {"%.mlp%.linear_2%.", ".mlp.3."}})
  local from_there = false
  for key in pairs(dict) do from_there = from_there or key:find "embeddings%.cls_token$" end
  if not from_there then return end
  common.rename(dict, theirs)
  for _, query in ipairs(options.sorted_keys(dict, function(key) return key:find "%.attention%.q%.weight$" end)) do
    local from, joined = query:match "^(.*%.)attention%.q%.weight$", nil
    for _, kind in ipairs {"weight", "bias"} do
      local parts = {}
      for i, name in ipairs {"q", "k", "v"} do
        local key = from .. "attention." .. name .. "." .. kind
        parts[i], dict[key] = dict[key], nil
      end
      joined = #parts == 3 and ops.cat(parts, 1)
        or kind == "bias" and joined and #parts == 0 and ops.zeros_like(joined:select(2, 1)) or nil
      dict[from .. "self_attention.in_proj_" .. kind] = joined
    end
  end
end

--- The class of lm.models.vit.
local VisionTransformer = class.define("VisionTransformer", nn.Module)

function VisionTransformer:init(config)
  self.config = config
  local width, patch = config.hidden_dim, config.patch_size
  self.conv_proj = nn.Conv2d(config.num_channels, width, patch, {stride = patch})
  self.class_token = nn.init.zeros_(layer.parameter({1, 1, width}, {}))
  local family, extra = families[config.model_type], 1
  if family.distilled then
    self.distillation_token, extra = nn.init.zeros_(layer.parameter({1, 1, width}, {})), 2
  end
  local encoder, layers = nn.Module(), nn.Sequential()
  local patches = (config.image_size / patch) ^ 2
  encoder.pos_embedding = nn.init.normal_(layer.parameter({1, patches + extra, width}, {}), 0, 0.02)
  encoder.dropout = nn.Dropout(config.dropout)
  for i = 0, config.num_layers - 1 do layers:add_module("encoder_layer_" .. i, EncoderBlock(config)) end
  encoder.layers = layers
  encoder.ln = nn.LayerNorm(width, {eps = config.norm_eps})
  self.encoder = encoder
  self.heads = nn.Sequential()
  if config.num_classes > 0 then
    self.heads:add_module("head", nn.Linear(family.scales and 2 * width or width, config.num_classes))
    if config.distilled_head then self.heads:add_module("distillation", nn.Linear(width, config.num_classes)) end
  end
  self:reset_parameters()
  self:register_load_state_dict_pre_hook(rename)
end

--- Draws weights as torchvision does: patches by their size, layers by Glorot's rule; the head is 0.
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

-- Returns positions [1, 1 + patches, width] resized for images of `high` x `wide` patches.
local function resized(positions, high, wide)
  local n = positions.shape[2] - 1
  local size = math.sqrt(n)
  local patches = positions:narrow(2, 2, n):transpose(2, 3):unflatten(3, {size, size})
  patches = F.interpolate(patches:float(), {size = {high, wide}, mode = "bicubic"})
  return ops.cat({positions:narrow(2, 1, 1), patches:to(positions.dtype):flatten(3):transpose(2, 3)}, 2)
end

--- net(x): scores [N, num_classes] of images x [N, num_channels, image_size, image_size]; where num_classes is 0 what
--- the head would be given, [N, hidden_dim].
function VisionTransformer:forward(x)
  local config = self.config
  options.arg("VisionTransformer", "x", x, "tensor")
  local shape = x.shape
  local family, patch = families[config.model_type], config.patch_size
  local fits = x.ndim == 4 and shape[2] == config.num_channels
  local usual = fits and shape[3] == config.image_size and shape[4] == shape[3]
  if not (usual or fits and family.scales and math.min(shape[3], shape[4]) >= patch) then
    options.wrong_shape("VisionTransformer", "x", x, {"N", config.num_channels, config.image_size, config.image_size})
  end
  x = self.conv_proj(x):flatten(3):transpose(2, 3)
  local encoder, second = self.encoder, self.distillation_token
  local positions, tokens = encoder.pos_embedding, {self.class_token:expand(shape[1], -1, -1), x}
  if second then table.insert(tokens, 2, second:expand(shape[1], -1, -1)) end
  if not usual then positions = resized(positions, math.floor(shape[3] / patch), math.floor(shape[4] / patch)) end
  x = encoder.ln(encoder.layers(encoder.dropout(ops.cat(tokens, 2) + positions)))
  local first, heads = x:select(2, 1), self.heads
  if heads.distillation then return (heads.head(first) + heads.distillation(x:select(2, 2))) / 2 end
  if heads.head and family.scales then first = ops.cat({first, x:narrow(2, 2, x.shape[2] - 1):mean(2)}, 2) end
  return heads(first)
end

-- Sets the options that have other names in Hugging Face's config.json.
local function read_renamed_options(json, out, _given, path)
  for ours, name in pairs {
    num_layers = "num_hidden_layers", num_heads = "num_attention_heads", mlp_dim = "intermediate_size",
    hidden_dim = "hidden_size", norm_eps = "layer_norm_eps", dropout = "hidden_dropout_prob",
    attention_dropout = "attention_probs_dropout_prob",
  } do
    out[ours] = json[name]
  end
  if not json.intermediate_size and options.is("count", json.hidden_size) then
    out.mlp_dim = options.arg("vit", "mlp_ratio", json.mlp_ratio or 4, "positive") * json.hidden_size
  end
  local architecture = type(json.architectures) == "table" and json.architectures[1]
  out.labels = common.labels("vit", path, json)
  out.distilled_head = tostring(architecture):find "WithTeacher$" ~= nil
  if tostring(architecture):find "Model$" then
    out.num_classes, out.labels = 0, nil
  else -- files omit num_labels if it is 2
    out.num_classes = out.labels and #out.labels or json.num_labels or 2
  end
end

local function make(config)
  options.divisible("vit", "image_size", config.image_size, "patch_size", config.patch_size)
  common.fit_labels("vit", config, "num_classes")
  return VisionTransformer(config)
end

local spec = {
  model_type = {options.sorted_keys(families)}, image_size = {"count", 224}, patch_size = {"count", 16},
  num_channels = {"count", 3}, num_layers = {"count", 12}, num_heads = {"count", 12}, hidden_dim = {"count", 768},
  mlp_dim = {"count", 3072}, dropout = {"probability", 0}, attention_dropout = {"probability", 0},
  norm_eps = {"positive", 1e-6}, num_classes = {"natural", 1000}, labels = {"table"},
  hidden_act = {options.sorted_keys(activations), "gelu"}, layerscale_value = {"number", 1},
  drop_path_rate = {"probability", 0}, distilled_head = {"boolean", false},
}

local function maker(name, model_type, defaults)
  return common.maker(name, spec, model_type, defaults or families[model_type], make, "num_classes", {
    kinds = families, also = read_renamed_options, only = {use_swiglu_ffn = false},
  })
end

local function sizes(patch_size, layers, heads, width, mlp_dim)
  return {patch_size = patch_size, num_layers = layers, num_heads = heads, hidden_dim = width, mlp_dim = mlp_dim}
end

--- lm.models.vit([{image_size = 224, patch_size = 16, num_channels = 3, num_layers = 12, num_heads = 12, hidden_dim =
--- 768, mlp_dim = 3072, dropout = 0, attention_dropout = 0, norm_eps = 1e-6, num_classes = 1000, labels, hidden_act =
--- "gelu", model_type = "vit", layerscale_value = 1, drop_path_rate = 0, distilled_head = false}]): Constructs a vision
--- transformer. Dosovitskiy et al., "An Image is Worth 16x16 Words", 2021.
models.vit = maker("vit", "vit")
--- lm.models.deit([{…, distilled_head = false}]): Constructs DeiT. Touvron et al., "Training Data-efficient Image
--- Transformers & Distillation through Attention", 2021.
models.deit = maker("deit", "deit")
--- lm.models.dinov2([{…, layerscale_value = 1, drop_path_rate = 0}]): Constructs DINOv2. Oquab et al., "DINOv2:
--- Learning Robust Visual Features without Supervision", 2024.
models.dinov2 = maker("dinov2", "dinov2")
--- lm.models.vit_b_16([{image_size = 224, …}]): Constructs the ViT-B/16 vision transformer.
models.vit_b_16 = maker("vit_b_16", "vit", sizes(16, 12, 12, 768, 3072))
--- lm.models.vit_b_32([{image_size = 224, …}]): Constructs the ViT-B/32 vision transformer.
models.vit_b_32 = maker("vit_b_32", "vit", sizes(32, 12, 12, 768, 3072))
--- lm.models.vit_l_16([{image_size = 224, …}]): Constructs the ViT-L/16 vision transformer.
models.vit_l_16 = maker("vit_l_16", "vit", sizes(16, 24, 16, 1024, 4096))
--- lm.models.vit_l_32([{image_size = 224, …}]): Constructs the ViT-L/32 vision transformer.
models.vit_l_32 = maker("vit_l_32", "vit", sizes(32, 24, 16, 1024, 4096))
--- lm.models.vit_h_14([{image_size = 224, …}]): Constructs the ViT-H/14 vision transformer.
models.vit_h_14 = maker("vit_h_14", "vit", sizes(14, 32, 16, 1280, 5120))

return models

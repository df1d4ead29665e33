--- Defines the U-Net of diffusion models (Ho et al., "Denoising Diffusion Probabilistic Models", 2020) with the
--- structure and names of parameters of diffusers' UNet2DModel.
local core = require "luminary.core"
local class = require "luminary.base.class"
local options = require "luminary.base.options"
local nn = require "luminary.nn"
local build = require "luminary.models.build"
local common = require "luminary.models.common"

local ops, fail = core.ops, options.fail
local models = {}

local function group_norm(channels, config)
  return nn.GroupNorm(config.norm_num_groups, channels, {eps = config.norm_eps})
end

local function conv(inputs, outputs, size, stride, padding)
  return nn.Conv2d(inputs, outputs, size, {stride = stride or 1, padding = padding or (size - 1) / 2})
end

-- Two convolutions, between which an embedding of the time is added, with a residual connection.
local Resnet = class.define("ResnetBlock2D", nn.Module)

function Resnet:init(inputs, outputs, config)
  self.shift_only = config.resnet_time_scale_shift == "default"
  self.norm1 = group_norm(inputs, config)
  self.conv1 = conv(inputs, outputs, 3)
  self.time_emb_proj = nn.Linear(config.time_embedding_dim, self.shift_only and outputs or 2 * outputs)
  self.norm2 = group_norm(outputs, config)
  self.dropout = nn.Dropout(config.dropout)
  self.conv2 = conv(outputs, outputs, 3)
  if inputs ~= outputs then self.conv_shortcut = conv(inputs, outputs, 1) end
end

function Resnet:forward(x, time)
  local y = self.conv1(ops.silu(self.norm1(x)))
  time = self.time_emb_proj(ops.silu(time)):unsqueeze(-1):unsqueeze(-1)
  if self.shift_only then
    y = self.norm2(y + time)
  else
    local scale, shift = unpack(time:chunk(2, 2))
    y = self.norm2(y) * (scale + 1) + shift
  end
  y = self.conv2(self.dropout(ops.silu(y)))
  return (self.conv_shortcut and self.conv_shortcut(x) or x) + y
end

-- Attention among the pixels of an image, with a residual connection.
local Attention = class.define("Attention", nn.Module)

function Attention:init(channels, config, groups)
  self.heads = channels / (config.attention_head_dim or channels)
  if groups then self.group_norm = nn.GroupNorm(groups, channels, {eps = config.norm_eps}) end
  for _, name in ipairs {"to_q", "to_k", "to_v"} do self[name] = nn.Linear(channels, channels) end
  self.to_out = nn.ModuleList {nn.Linear(channels, channels), nn.Dropout(0)}
end

function Attention:forward(x)
  local n, channels, pixels = x.shape[1], x.shape[2], x.shape[3] * x.shape[4]
  local y = (self.group_norm and self.group_norm(x) or x):flatten(3):transpose(2, 3)
  local function heads_of(t) return t:view(n, pixels, self.heads, channels / self.heads):transpose(2, 3) end
  y = ops.scaled_dot_product_attention(heads_of(self.to_q(y)), heads_of(self.to_k(y)), heads_of(self.to_v(y)))
  y = self.to_out[1](y:transpose(2, 3):reshape(n, pixels, channels))
  return y:transpose(2, 3):reshape(x.shape) + x
end

-- A level of the encoder or decoder, or the middle: residual blocks, each followed by attention if the level has it.
local Level = class.define("UNetLevel", nn.Module)

function Level:init(with_attention, groups)
  if with_attention then self.attentions = nn.ModuleList() end
  self.groups = groups
  self.resnets = nn.ModuleList()
end

function Level:add_block(inputs, outputs, config)
  self.resnets:append(Resnet(inputs, outputs, config))
  if self.attentions then self.attentions:append(Attention(outputs, config, self.groups)) end
end

function Level:run(i, x, time)
  x = self.resnets[i](x, time)
  return self.attentions and self.attentions[i](x) or x
end

-- A convolution with stride 2, or one of an image enlarged by 2.
local Resample = class.define("UNetResample", nn.Module)

function Resample:init(channels, up, padding)
  self.up, self.padding = up, padding
  self.conv = up and conv(channels, channels, 3) or conv(channels, channels, 3, 2, padding)
end

function Resample:forward(x)
  if self.up then
    x = nn.functional.interpolate(x, {scale_factor = 2, mode = "nearest"})
  elseif self.padding == 0 then
    x = nn.functional.pad(x, {0, 1, 0, 1})
  end
  return self.conv(x)
end

--- The class of lm.models.unet2d.
local UNet2D = class.define("UNet2D", nn.Module)

local function is_attentive(kind) return kind:find "^Attn" ~= nil end

function UNet2D:init(config)
  self.config = config
  local widths, per_level = config.block_out_channels, config.layers_per_block
  local first, last, deepest = widths[1], #widths, widths[#widths]
  self.conv_in = conv(config.in_channels, first, 3)
  local time = nn.Module()
  time.linear_1 = nn.Linear(first, config.time_embedding_dim)
  time.linear_2 = nn.Linear(config.time_embedding_dim, config.time_embedding_dim)
  self.time_embedding = time
  if config.num_class_embeds then
    self.class_embedding = nn.Embedding(config.num_class_embeds, config.time_embedding_dim)
  end
  self.down_blocks = nn.ModuleList()
  self.up_blocks = nn.ModuleList()
  for i, width in ipairs(widths) do
    local level = Level(is_attentive(config.down_block_types[i]), config.norm_num_groups)
    for k = 1, per_level do level:add_block(k == 1 and (widths[i - 1] or first) or width, width, config) end
    if i < last then level.downsamplers = nn.ModuleList {Resample(width, false, config.downsample_padding)} end
    self.down_blocks:append(level)
  end
  local groups = config.attn_norm_num_groups or config.resnet_time_scale_shift == "default" and config.norm_num_groups
  local middle = Level(config.add_attention, groups)
  middle:add_block(deepest, deepest, config)
  middle.resnets:append(Resnet(deepest, deepest, config))
  self.mid_block = middle
  for i = 1, last do -- the deepest level first
    local width = widths[last + 1 - i]
    local level = Level(is_attentive(config.up_block_types[i]), config.norm_num_groups)
    for k = 1, per_level + 1 do
      local before = k == 1 and (widths[last + 2 - i] or width) or width
      local skipped = k == per_level + 1 and widths[math.max(last - i, 1)] or width
      level:add_block(before + skipped, width, config)
    end
    if i < last then level.upsamplers = nn.ModuleList {Resample(width, true)} end
    self.up_blocks:append(level)
  end
  self.conv_norm_out = group_norm(first, config)
  self.conv_out = conv(first, config.out_channels, 3)
end

-- Returns sines and cosines [N, dim] of times [N], with frequencies from 1 down to 1 / 10000.
local function waves(times, dim, config)
  local half = dim / 2
  local rates = ops.arange(0, half, {device = times.device}):mul(-math.log(10000) / (half - config.freq_shift)):exp()
  local turns = times:float():unsqueeze(2) * rates
  local parts = {turns:sin(), turns:cos()}
  if config.flip_sin_to_cos then parts = {parts[2], parts[1]} end
  return ops.cat(parts, 2)
end

local function time_of(self, x, step, class_labels)
  local n, config = x.shape[1], self.config
  if not core.is_tensor(step) then
    step = ops.full({n}, options.arg("UNet2D", "timestep", step, "finite(0)"), {device = x.device})
  elseif step.ndim == 0 or step:numel() == 1 then
    step = step:reshape(1):expand(n)
  end
  if step.ndim ~= 1 or step.shape[1] ~= n then
    options.must_be("UNet2D", "timestep", ("a number or a tensor [%d]"):format(n), step)
  end
  local embedding = self.time_embedding
  local time = waves(step, config.block_out_channels[1], config):to(x.dtype)
  time = embedding.linear_2(ops.silu(embedding.linear_1(time)))
  if (class_labels == nil) ~= (self.class_embedding == nil) then
    fail("UNet2D: class_labels requires num_class_embeds")
  end
  return class_labels and time + self.class_embedding(class_labels) or time
end

--- net(x, step [, {class_labels}]): Returns the prediction [N, out_channels, H, W] for noisy images x [N, in_channels,
--- H, W] (H and W divisible by 2^(levels - 1)) at step, a number from 0 or a tensor [N]; class_labels [N] (int64, from
--- 1) with num_class_embeds.
function UNet2D:forward(x, step, opts)
  local config = self.config
  local o = options.check("UNet2D", opts, "{class_labels: tensor}")
  local shape, times = options.arg("UNet2D", "x", x, "tensor").shape, 2 ^ (#config.block_out_channels - 1)
  if x.ndim ~= 4 or shape[2] ~= config.in_channels or shape[3] % times ~= 0 or shape[4] % times ~= 0 then
    fail("UNet2D: x must be [N, %d, H, W] with H and W divisible by %d, got %s", config.in_channels, times,
      options.describe(x))
  end
  local time = time_of(self, x, step, o.class_labels)
  if config.center_input_sample then x = x * 2 - 1 end
  x = self.conv_in(x)
  local kept = {x}
  for _, level in ipairs(self.down_blocks) do
    for i = 1, #level.resnets do
      x = level:run(i, x, time)
      kept[#kept + 1] = x
    end
    if level.downsamplers then
      x = level.downsamplers[1](x)
      kept[#kept + 1] = x
    end
  end
  x = self.mid_block.resnets[2](self.mid_block:run(1, x, time), time)
  for _, level in ipairs(self.up_blocks) do
    for i = 1, #level.resnets do x = level:run(i, ops.cat({x, table.remove(kept)}, 2), time) end
    if level.upsamplers then x = level.upsamplers[1](x) end
  end
  return self.conv_out(ops.silu(self.conv_norm_out(x)))
end

-- Rules that rename tensors of files from before diffusers 0.15.
local old = {
  {"(attentions%.%d+%.)query%.", "%1to_q."}, {"(attentions%.%d+%.)key%.", "%1to_k."},
  {"(attentions%.%d+%.)value%.", "%1to_v."}, {"(attentions%.%d+%.)proj_attn%.", "%1to_out.0."},
}

local function rename(_net, dict) common.rename(dict, old) end

-- Returns a list with one entry for each level, checked.
local function check_levels(who, name, value)
  if not options.is_plain(value) or #value == 0 then
    options.must_be(who, name, "a list with one entry for each level", value)
  end
  return value
end

local function kinds(direction)
  local known = {direction .. "Block2D", "Attn" .. direction .. "Block2D"}
  return function(who, name, value)
    for _, each in ipairs(check_levels(who, name, value)) do options.choice(who, name, each, known) end
    return value
  end
end

local function make(config)
  local widths = config.block_out_channels
  for _, name in ipairs {"down_block_types", "up_block_types"} do
    if #config[name] ~= #widths then
      options.wrong_length("unet2d", name, #widths, "entry of block_out_channels", #config[name])
    end
  end
  for i, width in ipairs(widths) do
    options.arg("unet2d", "block_out_channels[" .. i .. "]", width, "count")
    local head = config.attention_head_dim or width
    if width % config.norm_num_groups ~= 0 or width % head ~= 0 then
      fail("unet2d: channels (%d) must be divisible by norm_num_groups (%d) and attention_head_dim (%d)", width,
        config.norm_num_groups, head)
    end
  end
  if widths[1] % 2 ~= 0 then options.must_be("unet2d", "block_out_channels[1]", "even", widths[1]) end
  config.time_embedding_dim = config.time_embedding_dim or 4 * widths[1]
  local net = UNet2D(config)
  net:register_load_state_dict_pre_hook(rename)
  return net
end

--- Constructs the U-Net of a diffusion model. Ho et al., "Denoising Diffusion Probabilistic Models", 2020.
function models.unet2d(opts)
  return build("unet2d", opts, {
    in_channels = {"count", 3}, out_channels = {"count", 3}, block_out_channels = {check_levels, {224, 448, 672, 896}},
    layers_per_block = {"count", 2}, dropout = {"probability", 0}, attention_head_dim = {"count", 8, true},
    down_block_types = {kinds "Down", {"DownBlock2D", "AttnDownBlock2D", "AttnDownBlock2D", "AttnDownBlock2D"}},
    up_block_types = {kinds "Up", {"AttnUpBlock2D", "AttnUpBlock2D", "AttnUpBlock2D", "UpBlock2D"}},
    add_attention = {"boolean", true}, norm_num_groups = {"count", 32}, norm_eps = {"positive", 1e-5},
    resnet_time_scale_shift = {{"default", "scale_shift"}, "default"}, time_embedding_dim = {"count"},
    flip_sin_to_cos = {"boolean", true}, freq_shift = {"finite", 0}, downsample_padding = {"natural", 1},
    center_input_sample = {"boolean", false}, num_class_embeds = {"count"},
    attn_norm_num_groups = {"count"}, sample_size = {"size"},
  }, make, "block_out_channels", {
    kinds = {UNet2DModel = {}}, also = function(json, out) -- null there means one head
      if not json.attention_head_dim then out.attention_head_dim = false end
    end, only = {
      time_embedding_type = "positional", mid_block_type = "UNetMidBlock2D", mid_block_scale_factor = 1,
      downsample_type = "conv", upsample_type = "conv", act_fn = "silu",
    },
  })
end

return models

--- Swin transformers (Liu et al., "Swin Transformer: Hierarchical Vision Transformer using Shifted Windows", 2021, and
--- "Swin Transformer V2: Scaling Up Capacity and Resolution", 2022), with torchvision's names of parameters.
local core = require "luminary.core"
local class = require "luminary.base.class"
local nn = require "luminary.nn"
local layer = require "luminary.nn.define_layer"
local blocks = require "luminary.models.blocks"
local common = require "luminary.models.common"

local ops, init, F = core.ops, nn.init, nn.functional
local models = {}

-- Attention within windows of `size` x `size` positions of x [N, H, W, dim], which are shifted by `shift`.
local Attention = class.define("ShiftedWindowAttention", nn.Module)

function Attention:init(dim, heads, size, shift, o)
  self.heads, self.size, self.shift, self.rate = heads, size, shift, o.attention_dropout
  self.qkv = nn.Linear(dim, 3 * dim)
  self.proj = nn.Linear(dim, dim)
  self.dropout = nn.Dropout(o.dropout)
  local across = 2 * size - 1
  local at = ops.arange(0, size, {dtype = "int64"})
  local by = at:unsqueeze(2) - at + (size - 1) -- [from, to], from 0
  local both = by:view(size, 1, size, 1) * across + by:view(1, size, 1, size)
  self:register_buffer("relative_position_index", both:flatten())
  if o.v2 then
    self.logit_scale = init.constant_(layer.parameter({heads, 1, 1}, {}), math.log(10))
    self.cpb_mlp = nn.Sequential(nn.Linear(2, 512), nn.ReLU(), nn.Linear(512, heads, {bias = false}))
    local far = ops.arange(1 - size, size, {dtype = "float32"}) / (size - 1) * 8
    far = far:sign() * (far:abs() + 1):log2() / 3
    self:register_buffer("relative_coords_table", ops.stack({
      far:unsqueeze(2):expand(across, across), far:expand(across, across),
    }, 3):unsqueeze(1))
  else
    self.relative_position_bias_table = layer.parameter({across ^ 2, heads}, {})
    init.trunc_normal_(self.relative_position_bias_table, 0, 0.02)
  end
end

-- Added to the scores of a window's positions: [heads, positions, positions].
function Attention:bias()
  local n = self.size ^ 2
  local t = self.relative_position_bias_table or self.cpb_mlp(self.relative_coords_table):view(-1, self.heads)
  t = t:index_select(1, self.relative_position_index + 1):view(n, n, self.heads):permute(3, 1, 2)
  return self.logit_scale and t:sigmoid() * 16 or t
end

-- [windows, 1, positions, positions]: -100 between positions that the shift brought into one window.
local function mask_of(h, w, size, shift_h, shift_w, like)
  local function region(n, shift)
    local at = ops.arange(0, n, {device = like.device, dtype = "int64"})
    return shift == 0 and at * 0 or at:ge(n - size):long() + at:ge(n - shift):long()
  end
  local of = region(h, shift_h):unsqueeze(2) * 3 + region(w, shift_w)
  of = of:view(h / size, size, w / size, size):transpose(2, 3):reshape {-1, size ^ 2}
  return of:unsqueeze(2):ne(of:unsqueeze(3)):to(like.dtype):mul(-100):unsqueeze(2)
end

function Attention:forward(x)
  local n, h, w, dim = unpack(x.shape)
  local size, heads, qkv_bias = self.size, self.heads, self.qkv.bias
  local high, wide = math.ceil(h / size) * size, math.ceil(w / size) * size
  local shift_h, shift_w = size < high and self.shift or 0, size < wide and self.shift or 0
  local shifted = shift_h + shift_w > 0
  x = F.pad(x, {0, 0, 0, wide - w, 0, high - h})
  if shifted then x = x:roll({-shift_h, -shift_w}, {2, 3}) end
  x = x:view(n, high / size, size, wide / size, size, dim):transpose(3, 4):reshape {n, -1, size ^ 2, dim}
  if self.logit_scale then
    qkv_bias = ops.cat({qkv_bias:narrow(1, 1, dim), ops.zeros_like(qkv_bias:narrow(1, 1, dim)),
      qkv_bias:narrow(1, 2 * dim + 1, dim)}, 1)
  end
  local parts = ops.linear(x, self.qkv.weight, qkv_bias):unflatten(-1, {3, heads, dim / heads}):transpose(3, 5)
  local q, k, v = unpack(parts:unbind(4))
  if self.logit_scale then
    q = F.normalize(q, {dim = -1}) * self.logit_scale:clamp(-math.huge, math.log(100)):exp()
    k = F.normalize(k, {dim = -1})
  end
  local bias = self:bias()
  if shifted then bias = bias + mask_of(high, wide, size, shift_h, shift_w, bias) end
  x = ops.scaled_dot_product_attention(q, k, v, {
    attn_mask = bias, scale = self.logit_scale and 1 or nil, dropout_p = self.training and self.rate or 0,
  })
  x = self.dropout(self.proj(x:transpose(3, 4):flatten(4)))
  x = x:view(n, high / size, wide / size, size, size, dim):transpose(3, 4):reshape {n, high, wide, dim}
  if shifted then x = x:roll({shift_h, shift_w}, {2, 3}) end
  return x:narrow(2, 1, h):narrow(3, 1, w)
end

local Block = class.define("SwinTransformerBlock", nn.Module)

function Block:init(dim, heads, size, shift, drop, o)
  self.after = o.v2 -- where the norms are
  self.norm1 = nn.LayerNorm(dim)
  self.attn = Attention(dim, heads, size, shift, o)
  self.stochastic_depth = blocks.StochasticDepth(drop)
  self.norm2 = nn.LayerNorm(dim)
  self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Dropout(o.dropout), nn.Linear(4 * dim, dim),
    nn.Dropout(o.dropout))
end

function Block:forward(x)
  local function branch(norm, f, y) if self.after then return norm(f(y)) else return f(norm(y)) end end
  x = x + self.stochastic_depth(branch(self.norm1, self.attn, x))
  return x + self.stochastic_depth(branch(self.norm2, self.mlp, x))
end

-- Four positions become one of twice the channels.
local PatchMerging = class.define("PatchMerging", nn.Module)

function PatchMerging:init(dim, after)
  self.after = after
  self.reduction = nn.Linear(4 * dim, 2 * dim, {bias = false})
  self.norm = nn.LayerNorm((after and 2 or 4) * dim)
end

function PatchMerging:forward(x)
  x = F.pad(x, {0, 0, 0, x.shape[3] % 2, 0, x.shape[2] % 2})
  x = x:unflatten(3, {-1, 2}):unflatten(2, {-1, 2}):permute(1, 2, 4, 5, 3, 6):flatten(4)
  if self.after then return self.norm(self.reduction(x)) end
  return self.reduction(self.norm(x))
end

local SwinTransformer = blocks.family "SwinTransformer"

local function swin(o, counts, dim, heads, size)
  local features, made, total = nn.Sequential(nn.Sequential(nn.Conv2d(3, dim, 4, {stride = 4}),
    blocks.Permute(1, 3, 4, 2), nn.LayerNorm(dim))), 0, 0
  for _, count in ipairs(counts) do total = total + count end
  for i, count in ipairs(counts) do
    local stage = nn.Sequential()
    for k = 1, count do
      stage:append(Block(dim, heads, size, k % 2 == 0 and math.floor(size / 2) or 0,
        o.stochastic_depth_prob * made / (total - 1), o))
      made = made + 1
    end
    features:append(stage)
    if i < #counts then
      features:append(PatchMerging(dim, o.v2))
      dim, heads = 2 * dim, 2 * heads
    end
  end
  return common.draw(SwinTransformer {
    {"features", features}, {"norm", nn.LayerNorm(dim)}, {"permute", blocks.Permute(1, 4, 2, 3)},
    {"avgpool", nn.AdaptiveAvgPool2d(1)}, {"flatten", nn.Flatten()}, {"head", nn.Linear(dim, o.num_classes)},
  }, function(w) init.trunc_normal_(w, 0, 0.02) end)
end

-- Blocks of each stage, channels and heads of the first, probability of stochastic depth.
for letter, row in pairs {
  t = {{2, 2, 6, 2}, 96, 3, 0.2}, s = {{2, 2, 18, 2}, 96, 3, 0.3}, b = {{2, 2, 18, 2}, 128, 4, 0.5},
} do
  for prefix, size in pairs {swin_ = 7, swin_v2_ = 8} do
    local name = prefix .. letter
    --- Constructs a Swin transformer. Liu et al., "Swin Transformer: Hierarchical Vision Transformer using Shifted
    --- Windows", 2021, and "Swin Transformer V2: Scaling Up Capacity and Resolution", 2022.
    models[name] = function(opts)
      return common.build(name, opts, {
        dropout = {"probability", 0}, attention_dropout = {"probability", 0},
        stochastic_depth_prob = {"probability", row[4]},
      }, function(o)
        o.v2 = size == 8
        return swin(o, row[1], row[2], row[3], size)
      end)
    end
  end
end

return models

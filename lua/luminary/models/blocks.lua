--- Building blocks of networks for images, from which their tables are composed. Networks and most blocks are sequences
--- of named layers, so that names of parameters are torchvision's.
local core = require "luminary.core"
local class = require "luminary.base.class"
local nn = require "luminary.nn"
local layer = require "luminary.nn.define_layer"

local ops = core.ops
local blocks = {}

--- Returns a class of sequences, for networks: Class {{name, module}, …}.
function blocks.family(name) return class.define(name, nn.Sequential) end

--- Returns a convolution with `same` padding by default: o = {stride, padding, groups, bias}.
function blocks.conv(cin, cout, size, o)
  local padding = o and o.padding
  if padding == nil then
    padding = type(size) == "table" and {(size[1] - 1) / 2, (size[2] - 1) / 2} or math.floor((size - 1) / 2)
  end
  return nn.Conv2d(cin, cout, size, {
    stride = o and o.stride or 1, padding = padding, groups = o and o.groups or 1, bias = o and o.bias or false,
  })
end

--- Appends a convolution, batch norm (o.norm: its options) and o.act(), if there is one, to a sequence.
function blocks.append_unit(sequence, cin, cout, size, o)
  sequence:append(blocks.conv(cin, cout, size, o)):append(nn.BatchNorm2d(cout, o.norm))
  return o.act and sequence:append(o.act()) or sequence
end

--- Returns a sequence of a convolution, batch norm and an activation.
function blocks.unit(cin, cout, size, o) return blocks.append_unit(nn.Sequential(), cin, cout, size, o) end

-- [N, C, H, W] to [N, H, W, C] and the like.
local Permute = class.define("Permute", nn.Module)
blocks.Permute = Permute

function Permute:init(...) self.dims = {...} end

function Permute:forward(x) return x:permute(unpack(self.dims)) end

--- Layer norm over the channels of [N, C, H, W].
local LayerNorm2d = class.define("LayerNorm2d", nn.LayerNorm)
blocks.LayerNorm2d = LayerNorm2d

function LayerNorm2d:forward(x) return nn.LayerNorm.forward(self, x:permute(1, 3, 4, 2)):permute(1, 4, 2, 3) end

--- Drops samples of a residual branch in training (Huang et al., "Deep Networks with Stochastic Depth", 2016).
local StochasticDepth = class.define("StochasticDepth", nn.Module)
blocks.StochasticDepth = StochasticDepth

function StochasticDepth:init(p) self.p = p end

function StochasticDepth:forward(x)
  if not self.training or self.p == 0 then return x end
  local shape = {x.shape[1]}
  for i = 2, x.ndim do shape[i] = 1 end
  return x * ops.dropout(ops.ones(shape, {dtype = x.dtype, device = x.device}), self.p, true)
end

--- Scales channels by weights from their means (Hu et al., "Squeeze-and-Excitation Networks", 2018).
local SqueezeExcitation = class.define("SqueezeExcitation", nn.Module)
blocks.SqueezeExcitation = SqueezeExcitation

function SqueezeExcitation:init(channels, squeezed, act, scale)
  self.avgpool = nn.AdaptiveAvgPool2d(1)
  self.fc1 = nn.Conv2d(channels, squeezed, 1)
  self.fc2 = nn.Conv2d(squeezed, channels, 1)
  self.activation = act()
  self.scale_activation = scale()
end

function SqueezeExcitation:forward(x)
  return self.scale_activation(self.fc2(self.activation(self.fc1(self.avgpool(x))))) * x
end

--- A branch, and what is added to its result. o: {name of the branch, around = whether x is added, proj = a module that
--- x passes before, act = an activation of the sum, drop = probability of stochastic depth, scale = a first value of
--- factors for the channels}.
local Residual = class.define("Residual", nn.Module)
blocks.Residual = Residual

function Residual:init(branch, o)
  self.name, self.around = o.name, o.around
  self.proj = o.proj
  self[o.name] = branch
  if o.scale then self.layer_scale = nn.init.constant_(layer.parameter({o.channels, 1, 1}, {}), o.scale) end
  if o.drop then self.stochastic_depth = StochasticDepth(o.drop) end
  self.activation = o.act and o.act() or nil
end

function Residual:forward(x)
  local y = self[self.name](x)
  if not self.around then return y end
  if self.layer_scale then y = self.layer_scale * y end
  if self.stochastic_depth then y = self.stochastic_depth(y) end
  y = y + (self.proj and self.proj(x) or x)
  return self.activation and self.activation(y) or y
end

--- Paths through named layers, {name, module} …, whose results are concatenated. Each path is a list of what x passes
--- in turn: a name, a function, or {a, b} for the concatenated results of several.
local Paths = class.define("Paths", nn.Module)
blocks.Paths = Paths

function Paths:init(paths, layers)
  self.paths = paths
  for _, each in ipairs(layers) do self[each[1]] = each[2] end
end

local function concatenated(self, paths, x)
  local parts = {}
  for i, path in ipairs(paths) do
    local y = x
    for _, step in ipairs(type(path) == "table" and path or {path}) do
      if type(step) == "table" then y = concatenated(self, step, y) else y = (self[step] or step)(y) end
    end
    parts[i] = y
  end
  return ops.cat(parts, 2)
end

function Paths:forward(x) return concatenated(self, self.paths, x) end

return blocks

--- Defines building blocks of networks for images: sequences of named layers, so that parameters have torchvision's
--- names.
local core = require "luminary.core"
local class = require "luminary.base.class"
local nn = require "luminary.nn"
local layer = require "luminary.nn.define_layer"

local ops = core.ops
local blocks = {}

--- Returns the rows of a text, split by commas, as lists of numbers and words: rows "3 16, 5 a" is {{3, 16}, {5, "a"}}.
function blocks.rows(text)
  local list = {}
  for row in text:gmatch "[^,]+" do
    local values = {}
    for word in row:gmatch "%S+" do values[#values + 1] = tonumber(word) or word end
    list[#list + 1] = values
  end
  return list
end

--- Returns a convolution without bias; its padding keeps sizes at stride 1. size: a number or {height, width}.
function blocks.conv(cin, cout, size, stride, groups, padding)
  local h, w = unpack(type(size) == "table" and size or {size, size})
  return nn.Conv2d(cin, cout, {h, w}, {
    stride = stride, padding = padding or {(h - 1) / 2, (w - 1) / 2}, groups = groups, bias = false,
  })
end

--- Appends a convolution, batch norm (norm: its options) and act(), if there is one, to a sequence; returns that.
function blocks.unit(cin, cout, size, stride, groups, act, norm, sequence)
  sequence = sequence or nn.Sequential()
  sequence:append(blocks.conv(cin, cout, size, stride, groups)):append(nn.BatchNorm2d(cout, norm))
  return act and sequence:append(act()) or sequence
end

--- Permutes dims.
blocks.Permute = class.define("Permute", nn.Module)

function blocks.Permute:init(...) self.dims = {...} end

function blocks.Permute:forward(x) return x:permute(unpack(self.dims)) end

--- Normalizes over the channels of [N, C, H, W].
blocks.LayerNorm2d = class.define("LayerNorm2d", nn.LayerNorm)

function blocks.LayerNorm2d:forward(x) return nn.LayerNorm.forward(self, x:permute(1, 3, 4, 2)):permute(1, 4, 2, 3) end

--- Drops samples of y, the result of a residual branch, with probability module.rate in training (Huang et al., "Deep
--- Networks with Stochastic Depth", 2016).
function blocks.drop(module, y)
  if not module.training or module.rate == 0 then return y end
  local kept = ops.ones({y.shape[1], 1}, {dtype = y.dtype, device = y.device})
  return (y:flatten(2) * ops.dropout(kept, module.rate, true)):view(y.shape)
end

--- Scales channels by weights from their means (Hu et al., "Squeeze-and-Excitation Networks", 2018).
blocks.SqueezeExcitation = class.define("SqueezeExcitation", nn.Module)

function blocks.SqueezeExcitation:init(channels, squeezed, act, scale)
  self.avgpool = nn.AdaptiveAvgPool2d(1)
  self.fc1 = nn.Conv2d(channels, squeezed, 1)
  self.fc2 = nn.Conv2d(squeezed, channels, 1)
  self.activation = act()
  self.scale_activation = scale()
end

function blocks.SqueezeExcitation:forward(x)
  return self.scale_activation(self.fc2(self.activation(self.fc1(self.avgpool(x))))) * x
end

--- Adds x to the result of a branch, the child `name`, if `around` is true. o: {around, proj = a module for x, act = an
--- activation of the sum, drop = probability of stochastic depth, scale = initial value of the channels' factors}.
blocks.Residual = class.define("Residual", nn.Module)

function blocks.Residual:init(name, branch, o)
  self.name, self.around, self.rate = name, o.around, o.drop or 0
  self.proj = o.proj
  self[name] = branch
  if o.scale then self.layer_scale = nn.init.constant_(layer.parameter({o.channels, 1, 1}, {}), o.scale) end
  self.activation = o.act and o.act() or nil
end

function blocks.Residual:forward(x)
  local y = self[self.name](x)
  if not self.around then return y end
  if self.layer_scale then y = self.layer_scale * y end
  y = blocks.drop(self, y) + (self.proj and self.proj(x) or x)
  return self.activation and self.activation(y) or y
end

--- Concatenates the channels of several paths. A path is a list of layers {name, module} that are applied in turn, or a
--- list of such lists, whose results are concatenated.
blocks.Paths = class.define("Paths", nn.Module)

function blocks.Paths:init(paths, layers)
  self.paths = paths
  for _, each in ipairs(layers) do self[each[1]] = each[2] end
end

local function concatenated(self, paths, x)
  local parts = {}
  for i, path in ipairs(paths) do
    parts[i] = x
    for _, step in ipairs(type(path) == "table" and path or {path}) do
      parts[i] = type(step) == "table" and concatenated(self, step, parts[i]) or self[step](parts[i])
    end
  end
  return ops.cat(parts, 2)
end

function blocks.Paths:forward(x) return concatenated(self, self.paths, x) end

return blocks

--- Defines layers that infer the number of input channels from the first input. Until then their parameters are empty;
--- they remain the same tensors, so that an optimizer may hold them before.
local core = require "luminary.core"
local options = require "luminary.base.options"
local signature = require "luminary.base.signature"
local layer = require "luminary.nn.define_layer"
local parameter = require "luminary.nn.parameter"
local records = require "luminary.nn.module_fields"
local convolution = require "luminary.nn.convolution"
local linear = require "luminary.nn.linear"
local norm = require "luminary.nn.norm"

local lazy = {}

-- Calls f(name, tensor) for each parameter and buffer of a layer.
local function each_tensor(of, f)
  local record = records.of(of)
  for _, kind in ipairs {"param", "buffer"} do
    for _, name in ipairs(record[kind]) do f(name, record.values[name]) end
  end
end

-- Returns a layer of a lazy layer's base class for `channels`.
local function made_for(self, channels) return self.base(channels, unpack(self.given, 1, self.given.n)) end

-- Fills a lazy layer with the tensors and fields of `filled`, a layer of its base class.
local function fill_lazy_layer(self, filled)
  each_tensor(filled, function(name, value)
    core.no_grad(function() self[name].data = value:detach():to(self[name].device, self[name].dtype) end)
  end)
  for name, value in pairs(records.of(filled).values) do
    if not core.is_tensor(value) and name ~= "training" then self[name] = value end
  end
  self.given, self.per_channel = nil, nil
end

-- Adds a lazy class. channels_of(x): the first argument of its base class for input x, of `least` to `most` dims.
local function add_lazy_class(name, base, channels_of, help, least, most)
  local new = layer.define(name, base)
  new.base, new.__help = base, help
  lazy[name] = new

  local function init(self, ...)
    local n = select("#", ...)
    -- Take the fields of a layer with 1 input channel; if groups exclude that, with its number of output channels.
    local ok, like = pcall(base, 1, ...)
    if not ok then like = base(n > 0 and (...) or 1, ...) end
    each_tensor(like, function(key, value)
      local empty = core.ops.empty(0, {dtype = value.dtype, device = value.device})
      if parameter.is(value) then self[key] = parameter.new(empty) else self:register_buffer(key, empty) end
    end)
    local growing = like.weight or like.running_mean
    self.given, self.per_channel = {n = n, ...}, growing and growing:numel() / (ok and 1 or (...)) -- elements
  end
  local text = options.signature(base.init):gsub("%([^,]*, ", "(", 1) -- without the first argument
  -- Unlike InstanceNorm1d, LazyInstanceNorm1d is affine and has running statistics by default.
  new.init = name:find "^LazyInstance" and signature.of((text:gsub("= false", "= true")), init)
    or signature.note(text, init)

  function new:forward(x, ...)
    if self.given then
      options.arg(name, "x", x, "tensor")
      if x.ndim < least or x.ndim > (most or x.ndim) then
        local dims = not most and "at least 1 dim" or (least < most and least .. " or " or "") .. most .. " dims"
        options.must_be(name, "x", "a tensor of " .. dims, x)
      end
      fill_lazy_layer(self, made_for(self, channels_of(x)))
    end
    return base.forward(self, x, ...)
  end

  -- Infers the number of channels from a state, since the weight's size is proportional to it.
  function new:_adapt_state(dict, prefix, old)
    if base._adapt_state then base._adapt_state(self, dict, prefix, old) end
    local value = self.given and (dict[prefix .. "weight"] or dict[prefix .. "running_mean"])
    if not core.is_tensor(value) or not self.per_channel then return end
    local channels = value:numel() / self.per_channel
    if channels < 1 or channels % 1 ~= 0 then return end
    local filled = made_for(self, channels)
    each_tensor(filled, function(key, t) old.filled[prefix .. key] = t end)
    old.commit[#old.commit + 1] = function() fill_lazy_layer(self, filled) end
  end

  function new:reset_parameters()
    if not self.given then base.reset_parameters(self) end
  end

  function new:extra_repr() return self.given and "as the first input says" or base.extra_repr(self) end
end

add_lazy_class("LazyLinear", linear.Linear, function(x) return x.shape[x.ndim] end,
  "nn.LazyLinear(…): An nn.Linear whose in_features are those of the first input.", 1)

for n = 1, 3 do
  for _, name in ipairs {"Conv", "ConvTranspose", "BatchNorm", "InstanceNorm"} do
    local batched, convolves, d = name == "BatchNorm", name:find "^Conv", n .. "d"
    add_lazy_class("Lazy" .. name .. d, (convolves and convolution or norm)[name .. d],
      function(x) return x.shape[batched and 2 or x.ndim - n] end,
      ("nn.Lazy%s(…): An nn.%s whose %s the first input."):format(name .. d, name .. d,
        convolves and "in_channels are those of" or "num_features are the channels of"),
      batched and n > 1 and n + 2 or n + 1, n + 2)
  end
end

return lazy

--- Defines normalization: BatchNorm1d to 3d, InstanceNorm1d to 3d, GroupNorm, LayerNorm, RMSNorm, LocalResponseNorm.
local core = require "luminary.core"
local options = require "luminary.base.options"
local signature = require "luminary.base.signature"
local layer = require "luminary.nn.define_layer"
local meta = require "luminary.nn.meta"
local init = require "luminary.nn.initializers"
local F = require "luminary.nn.functional"

local ops, arg = core.ops, options.arg
local norm = {}

-- The base of layers with a weight, initially of ones, and a bias of zeros.
local Affine = layer.define("AffineNorm")

-- Adds the parameters of a size to a layer, if its options have them.
local function add_parameters(self, size, affine, opts)
  if affine then self.weight = layer.parameter(size, opts) end
  if affine and opts.bias then self.bias = layer.parameter(size, opts) end
end

--- Resets the parameters to their initial values.
function Affine:reset_parameters()
  if self.weight then init.ones_(self.weight) end
  if self.bias then init.zeros_(self.bias) end
end

-- ---- with statistics of the batch

local BatchNorm = layer.define("BatchNorm", Affine)
BatchNorm.__inner = {"check_input", "next_momentum", "next_options"}

-- Returns a signature; `on` is the default of affine and track_running_stats.
local function text_of(on)
  return ([[(num_features: count, {eps: positive = 1e-5, momentum: number|false = 0.1, affine = %s,
    track_running_stats = %s, device, dtype: string, bias = true})]]):format(on, on)
end

local function set_up(self, num_features, opts)
  self.num_features = num_features
  self.eps, self.momentum, self.affine = opts.eps, opts.momentum, opts.affine
  self.track_running_stats = opts.track_running_stats
  add_parameters(self, {num_features}, opts.affine, opts)
  if opts.track_running_stats then
    self:register_buffer("running_mean", layer.filled({num_features}, 0, opts))
    self:register_buffer("running_var", layer.filled({num_features}, 1, opts))
    self:register_buffer("num_batches_tracked", ops.full({}, 0, {device = opts.device, dtype = "int64"}))
  end
  self:reset_parameters()
end

BatchNorm.init = signature.of(text_of "true", set_up)

--- Resets the running statistics to their initial values.
function BatchNorm:reset_running_stats()
  if not self.track_running_stats or meta.is_on() then return end
  self.running_mean:zero_()
  self.running_var:fill_(1)
  self.num_batches_tracked:zero_()
end

--- Resets the parameters and the running statistics to their initial values.
function BatchNorm:reset_parameters()
  self:reset_running_stats()
  Affine.reset_parameters(self)
end

--- Accepts states of PyTorch before 0.4.1, which have no num_batches_tracked.
function BatchNorm:_adapt_state(dict, prefix, old) -- luacheck: no self
  old.optional[prefix .. "num_batches_tracked"] = dict[prefix .. "running_mean"] ~= nil
end

--- Fails if x does not have the dims of this layer.
function BatchNorm:check_input(x)
  if not core.is_tensor(x) or not self.dims[x.ndim] then
    options.wrong_shape(self.__name, "x", x, self.shape_of_x)
  end
end

--- Counts the batch. Returns its weight in the running statistics; nil if there are none to update, or backward runs a
--- checkpoint again, whose first run has.
function BatchNorm:next_momentum()
  local _, again = core.is_checkpointing()
  if again or not self.training or not self.track_running_stats then return nil end
  self.num_batches_tracked:add_(1)
  return self.momentum or 1 / self.num_batches_tracked:item()
end

--- Returns the options of F.batch_norm for a batch x. The op counts the batch; where it would not, this function does.
function BatchNorm:next_options(x)
  local op_counts = self.training and self.track_running_stats and self.momentum and x:numel() > 0
  return {
    training = self.training or not self.track_running_stats, eps = self.eps,
    momentum = op_counts and self.momentum or self:next_momentum() or 0,
    num_batches_tracked = op_counts and self.num_batches_tracked or nil,
  }
end

function BatchNorm:forward(x)
  self:check_input(x)
  return ops.batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias, self:next_options(x))
end

layer.prints(BatchNorm, "{num_features}, eps={eps}, momentum={momentum}, affine={affine}, bias={bias}, "
  .. "track_running_stats={track_running_stats}")

local InstanceNorm = layer.define("InstanceNorm", BatchNorm)
InstanceNorm.init = signature.of(text_of "false", set_up)

function InstanceNorm:forward(x)
  self:check_input(x)
  local channels = x.ndim - self.spatial
  if x.shape[channels] ~= self.num_features then
    options.must_be(self.__name, "x", ("a tensor of %d channels"):format(self.num_features), x)
  end
  local y = F.instance_norm(channels == 1 and x:unsqueeze(1) or x, self.running_mean, self.running_var, self.weight,
    self.bias, {
      use_input_stats = self.training or not self.track_running_stats, momentum = self.momentum or 0, eps = self.eps,
    })
  return channels == 1 and y:squeeze(1) or y
end

-- Adds a class for n spatial dims, whose inputs have the numbers of dims `dims`.
local function add_norm_class(base, n, kind, dims, shape_of_x)
  local new = layer.define(("%s%dd"):format(base.__name, n), base)
  norm[new.__name], new.spatial, new.dims, new.shape_of_x = new, n, dims, shape_of_x
  new.__help = ("nn.%s(…): Applies %s normalization to an input %s."):format(new.__name, kind, shape_of_x)
end
for n, sizes in ipairs {"L", "H, W", "D, H, W"} do
  local batch = ("[N, C, %s]"):format(sizes)
  add_norm_class(BatchNorm, n, "batch", {[2] = n == 1, [n + 2] = true}, n == 1 and "[N, C] or " .. batch or batch)
  add_norm_class(InstanceNorm, n, "instance", {[n + 1] = true, [n + 2] = true}, ("%s or [C, %s]"):format(batch, sizes))
end

-- ---- with statistics of each sample

--- nn.GroupNorm(…): Applies group normalization to an input [N, C, …].
local GroupNorm = layer.define("GroupNorm", Affine, norm)

GroupNorm.init = signature.of([[GroupNorm(num_groups: count, num_channels: count, {eps: positive = 1e-5, affine = true,
  device, dtype: string, bias = true})]], function(self, num_groups, num_channels, opts)
  self.num_groups, self.num_channels = num_groups, num_channels
  options.divisible("GroupNorm", "num_channels", num_channels, "num_groups", num_groups)
  self.affine, self.how = opts.affine, {eps = opts.eps}
  add_parameters(self, {num_channels}, opts.affine, opts)
  self:reset_parameters()
end)

function GroupNorm:forward(x) return ops.group_norm(x, self.num_groups, self.weight, self.bias, self.how) end

layer.prints(GroupNorm, "{num_groups}, {num_channels}, eps={eps}, affine={affine}, bias={bias}")

-- The kind of the last dims' sizes: a list of integers, from a number or a list.
options.kind("shape", "integer or list of integers", function(who, name, v)
  local shape = type(v) == "number" and {v} or v
  if type(shape) ~= "table" or #shape == 0 or options.named_field(shape) then
    options.must_be(who, name, "a size or a list of sizes", v)
  end
  for _, size in ipairs(shape) do arg(who, name, size, "count") end
  return shape
end)

local function set_shape(self, shape, opts)
  self.normalized_shape = shape
  self.elementwise_affine, self.how = opts.elementwise_affine, {eps = opts.eps}
  add_parameters(self, shape, opts.elementwise_affine, opts)
  self:reset_parameters()
end

--- nn.LayerNorm(…): Applies layer normalization over the last dims of the input.
local LayerNorm = layer.define("LayerNorm", Affine, norm)

LayerNorm.init = signature.of([[LayerNorm(normalized_shape: shape, {eps: positive = 1e-5, elementwise_affine = true,
  bias = true, device, dtype: string})]], set_shape)

function LayerNorm:forward(x) return ops.layer_norm(x, self.normalized_shape, self.weight, self.bias, self.how) end

layer.prints(LayerNorm, "{normalized_shape}, eps={eps}, elementwise_affine={elementwise_affine}, bias={bias}")

--- nn.RMSNorm(…): Applies root mean square normalization over the last dims of the input.
local RMSNorm = layer.define("RMSNorm", Affine, norm)

RMSNorm.init = signature.of([[RMSNorm(normalized_shape: shape, {eps: positive, elementwise_affine = true, device,
  dtype: string})]], set_shape)

function RMSNorm:forward(x) return ops.rms_norm(x, self.normalized_shape, self.weight, self.how) end

layer.prints(RMSNorm, "{normalized_shape}, eps={eps}, elementwise_affine={elementwise_affine}")

local list, entry = layer.entries()

entry "LocalResponseNorm(size: count, {alpha = 1e-4, beta = 0.75, k = 1})" {
  call = F.local_response_norm, prints = "{size}, alpha={alpha}, beta={beta}, k={k}",
  help = "Applies local response normalization over the channels of an input [N, C, …].",
}

-- PyTorch 2.15's loop never removes the first channel from the sums of later ones; this does.
entry "CrossMapLRN2d(size: count, {alpha = 1e-4, beta = 0.75, k = 1})" {
  forward = function(self, x)
    if not core.is_tensor(x) or x.ndim ~= 4 then options.wrong_shape("CrossMapLRN2d", "x", x, "[N, C, H, W]") end
    local window = 2 * math.floor((self.size - 1) / 2) + 1
    return F.local_response_norm(x, window, self.alpha * window / self.size, self.beta, self.k)
  end,
  prints = "{size}, alpha={alpha}, beta={beta}, k={k}",
  help = "Applies local response normalization over the channels of an input [N, C, H, W].",
}

for name, class in pairs(layer.classes(list)) do norm[name] = class end

return norm

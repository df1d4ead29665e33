--- Defines normalization: BatchNorm1d to 3d, InstanceNorm1d to 3d, GroupNorm, LayerNorm, RMSNorm, LocalResponseNorm.
local core = require "luminary.core"
local options = require "luminary.base.options"
local signature = require "luminary.base.signature"
local layer = require "luminary.nn.define_layer"
local meta = require "luminary.nn.meta"
local init = require "luminary.nn.initializers"
local F = require "luminary.nn.functional"
local printed = require "luminary.nn.print_values"

local ops, arg = core.ops, options.arg
local norm = {}

--- nn.BatchNorm2d(…): Applies batch normalization to an input [N, C, H, W].
local BatchNorm = layer.define("BatchNorm")
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
  if opts.affine then
    self.weight = layer.parameter({num_features}, opts)
    if opts.bias then self.bias = layer.parameter({num_features}, opts) end
  end
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
  if self.weight then init.ones_(self.weight) end
  if self.bias then init.zeros_(self.bias) end
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

--- Counts the batch. Returns its weight in the running statistics; nil if there are none to update.
function BatchNorm:next_momentum()
  if not self.training or not self.track_running_stats then return nil end
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

function BatchNorm:extra_repr()
  return ("%d, eps=%s, momentum=%s, affine=%s, bias=%s, track_running_stats=%s"):format(self.num_features,
    printed.float(self.eps), self.momentum and printed.float(self.momentum) or "None", printed.bool(self.affine),
    printed.bool(self.bias), printed.bool(self.track_running_stats))
end

--- nn.BatchNorm1d(…): Applies batch normalization to an input [N, C] or [N, C, L].
norm.BatchNorm1d = layer.define("BatchNorm1d", BatchNorm)
norm.BatchNorm1d.dims, norm.BatchNorm1d.shape_of_x = {[2] = true, [3] = true}, "[N, C] or [N, C, L]"
norm.BatchNorm2d = layer.define("BatchNorm2d", BatchNorm)
norm.BatchNorm2d.dims, norm.BatchNorm2d.shape_of_x = {[4] = true}, "[N, C, H, W]"
--- nn.BatchNorm3d(…): Applies batch normalization to an input [N, C, D, H, W].
norm.BatchNorm3d = layer.define("BatchNorm3d", BatchNorm)
norm.BatchNorm3d.dims, norm.BatchNorm3d.shape_of_x = {[5] = true}, "[N, C, D, H, W]"

--- nn.InstanceNorm2d(…): Applies instance normalization to an input [N, C, H, W] or [C, H, W].
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

--- nn.InstanceNorm1d(…): Applies instance normalization to an input [N, C, L] or [C, L].
norm.InstanceNorm1d = layer.define("InstanceNorm1d", InstanceNorm)
norm.InstanceNorm1d.spatial, norm.InstanceNorm1d.shape_of_x = 1, "[N, C, L] or [C, L]"
norm.InstanceNorm2d = layer.define("InstanceNorm2d", InstanceNorm)
norm.InstanceNorm2d.spatial, norm.InstanceNorm2d.shape_of_x = 2, "[N, C, H, W] or [C, H, W]"
--- nn.InstanceNorm3d(…): Applies instance normalization to an input [N, C, D, H, W] or [C, D, H, W].
norm.InstanceNorm3d = layer.define("InstanceNorm3d", InstanceNorm)
norm.InstanceNorm3d.spatial, norm.InstanceNorm3d.shape_of_x = 3, "[N, C, D, H, W] or [C, D, H, W]"
for _, name in ipairs {"InstanceNorm1d", "InstanceNorm2d", "InstanceNorm3d"} do
  norm[name].dims = {[norm[name].spatial + 1] = true, [norm[name].spatial + 2] = true}
end

--- nn.GroupNorm(…): Applies group normalization to an input [N, C, …].
local GroupNorm = layer.define("GroupNorm")
norm.GroupNorm = GroupNorm

GroupNorm.init = signature.of([[GroupNorm(num_groups: count, num_channels: count, {eps: positive = 1e-5, affine = true,
  device, dtype: string, bias = true})]], function(self, num_groups, num_channels, opts)
  self.num_groups, self.num_channels = num_groups, num_channels
  if num_channels % num_groups ~= 0 then
    options.not_divisible("GroupNorm", "num_channels", num_channels, "num_groups", num_groups)
  end
  self.affine, self.how = opts.affine, {eps = opts.eps}
  if opts.affine then
    self.weight = layer.parameter({num_channels}, opts)
    if opts.bias then self.bias = layer.parameter({num_channels}, opts) end
  end
  self:reset_parameters()
end)

--- Resets the parameters to their initial values.
function GroupNorm:reset_parameters()
  if self.weight then init.ones_(self.weight) end
  if self.bias then init.zeros_(self.bias) end
end

function GroupNorm:forward(x) return ops.group_norm(x, self.num_groups, self.weight, self.bias, self.how) end

function GroupNorm:extra_repr()
  return ("%d, %d, eps=%s, affine=%s, bias=%s"):format(self.num_groups, self.num_channels, printed.float(self.how.eps),
    printed.bool(self.affine), printed.bool(self.bias))
end

-- The kind of the last dims' sizes: a list of integers, from a number or a list.
options.kind("shape", "integer or list of integers", function(who, name, v)
  local shape = type(v) == "number" and {v} or v
  if type(shape) ~= "table" or #shape == 0 or options.named_field(shape) then
    options.must_be(who, name, "a size or a list of sizes", v)
  end
  for _, size in ipairs(shape) do arg(who, name, size, "count") end
  return shape
end)

--- nn.LayerNorm(…): Applies layer normalization over the last dims of the input.
local LayerNorm = layer.define("LayerNorm")
norm.LayerNorm = LayerNorm

LayerNorm.init = signature.of([[LayerNorm(normalized_shape: shape, {eps: positive = 1e-5, elementwise_affine = true,
  bias = true, device, dtype: string})]], function(self, shape, opts)
  self.normalized_shape = shape
  self.elementwise_affine, self.how = opts.elementwise_affine, {eps = opts.eps}
  if opts.elementwise_affine then
    self.weight = layer.parameter(shape, opts)
    if opts.bias then self.bias = layer.parameter(shape, opts) end
  end
  self:reset_parameters()
end)

--- Resets the parameters to their initial values.
function LayerNorm:reset_parameters()
  if self.weight then init.ones_(self.weight) end
  if self.bias then init.zeros_(self.bias) end
end

function LayerNorm:forward(x)
  return ops.layer_norm(x, self.normalized_shape, self.weight, self.bias, self.how)
end

function LayerNorm:extra_repr()
  return ("%s, eps=%s, elementwise_affine=%s, bias=%s"):format(printed.tuple(self.normalized_shape),
    printed.float(self.how.eps), printed.bool(self.elementwise_affine), printed.bool(self.bias))
end

--- nn.RMSNorm(…): Applies root mean square normalization over the last dims of the input.
local RMSNorm = layer.define("RMSNorm")
norm.RMSNorm = RMSNorm

RMSNorm.init = signature.of([[RMSNorm(normalized_shape: shape, {eps: positive, elementwise_affine = true, device,
  dtype: string})]], function(self, shape, opts)
  self.normalized_shape = shape
  self.elementwise_affine, self.how = opts.elementwise_affine, {eps = opts.eps}
  if opts.elementwise_affine then self.weight = layer.parameter(self.normalized_shape, opts) end
  self:reset_parameters()
end)

--- Resets the parameters to their initial values.
function RMSNorm:reset_parameters()
  if self.weight then init.ones_(self.weight) end
end

function RMSNorm:forward(x) return ops.rms_norm(x, self.normalized_shape, self.weight, self.how) end

function RMSNorm:extra_repr()
  return ("%s, eps=%s, elementwise_affine=%s"):format(printed.tuple(self.normalized_shape),
    self.how.eps and printed.float(self.how.eps) or "None", printed.bool(self.elementwise_affine))
end

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

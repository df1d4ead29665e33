--- nn.SyncBatchNorm(…): Applies batch normalization with the statistics of the batches of all ranks to an input
--- [N, C, …].
local core = require "luminary.core"
local options = require "luminary.base.options"
local signature = require "luminary.base.signature"
local Function = require("luminary.autograd").Function
local layer = require "luminary.nn.define_layer"
local groups = require "luminary.distributed.groups"
local dist = require "luminary.distributed.collectives"
local BatchNorm = require("luminary.nn.norm").BatchNorm1d.super

local ops, fail = core.ops, options.fail
local who = "SyncBatchNorm"

-- The dtype of the 2C + 1 numbers sent between ranks: in float64 a count is exact, and combining loses nothing.
local WIRE = "float64"

local function is_half(x) return x.dtype == "float16" or x.dtype == "bfloat16" end

local function elements_a_channel(x) return x:size(2) > 0 and x:numel() / x:size(2) or 0 end

-- ---- the function

-- Returns the mean and the sum of squared deviations of this rank's values of each channel, both [C] in WIRE.
local function moments(x, count)
  local channels = {x:size(2)}
  local how = {device = x.device, dtype = is_half(x) and "float32" or x.dtype}
  local mean, var = ops.zeros(channels, how), ops.zeros(channels, how)
  if count > 1 then -- the fused kernel's running values after a momentum of 1 are the batch's, var without bias
    ops.batch_norm(x, mean, var, nil, nil, {training = true, momentum = 1})
  elseif count == 1 then
    mean:copy_(ops.reshape(x, channels))
  end
  return mean:to(WIRE), var:to(WIRE) * math.max(count - 1, 0)
end

-- Returns the moments over all ranks, and the number of values of a channel, [1]. For parts of n_i values,   mean =
-- sum(n_i mean_i) / n,  m2 = sum(m2_i) + sum(n_i (mean_i - mean)^2) (Chan, Golub, LeVeque, "Updating formulae and a
-- pairwise algorithm for computing sample variances", 1979).
local function combined(x, count, group)
  local channels, mean, m2 = x:size(2), moments(x, count)
  local mine = ops.cat {mean, m2, ops.full({1}, count, {device = mean.device, dtype = WIRE})}
  local all = ops.empty({group.size, 2 * channels + 1}, {device = mean.device, dtype = WIRE})
  dist.all_gather_into_tensor(all, mine, {group = group})
  local means, m2s = all:narrow(2, 1, channels), all:narrow(2, channels + 1, channels)
  local counts = all:narrow(2, 2 * channels + 1, 1)
  local total = counts:sum(1)
  mean = (means * counts):sum(1) / total
  return mean, (m2s + counts * (means - mean):square()):sum(1), total
end

local function update(running, momentum, value) running:mul_(1 - momentum):add_(value, {alpha = momentum}) end

-- Returns a parameter in float32 if x has a half dtype, for the precision of its sums.
local function beside(x, param) return param and is_half(x) and param:float() or param end

local Synced = Function:extend(who)

function Synced.forward(ctx, x, weight, bias, self, group, momentum)
  local count = elements_a_channel(x)
  local mean, m2, total = combined(x, count, group)
  if count <= 1 then -- more cannot fail, and reading the total would synchronize a device
    local n = total:item()
    if n == 1 then
      fail("%s: training needs more than one value per channel over all ranks, x is %s here; use a larger batch or "
        .. ":eval()", who, options.describe(x))
    end
    if n == 0 then momentum = nil end
  end
  if momentum then
    update(self.running_mean, momentum, mean)
    update(self.running_var, momentum, m2 / (total - 1))
  end
  local dtype = is_half(x) and "float32" or x.dtype
  local var = (m2 / total):to(dtype)
  mean = mean:to(dtype)
  ctx:save_for_backward(unpack {x, mean, var, total, weight}) -- weight may be nil
  ctx.count, ctx.group, ctx.eps, ctx.share = count, group, self.eps, self.batch_share
  return ops.batch_norm(x, mean, var, weight, bias, {eps = self.eps})
end

-- Computes, with h = (x - mean) invstd over the n values of all ranks (Ioffe, Szegedy, 2015),
--   dx = weight invstd (g - sum(g) / n - h sum(g h) / n),  dweight = sum(g h),  dbias = sum(g)
-- where the sums in dx are over all ranks, the other two over this one. The fused kernel returns this rank's sums and
-- weight invstd g, to which the rest is added. For half dtypes it also subtracts the means over this rank's values, so
-- that nothing large is rounded before it cancels; the rest is then the difference to the means over all.
function Synced.backward(ctx, grad)
  if core.is_grad_enabled() then
    fail("%s: second derivatives are not supported; leave out create_graph, or use BatchNorm", who)
  end
  local x, mean, var, total, weight = unpack(ctx.saved_tensors)
  local how, own = {eps = ctx.eps}, is_half(x) and ctx.count > 0
  local wide = beside(x, weight)
  local invstd = ops.rsqrt(var + ctx.eps)
  local dx, dweight, dbias = ops.batch_norm_backward(grad, x, wide, mean, invstd, mean, var,
    {training = own, eps = ctx.eps})
  if not ctx.needs_input_grad[1] then return nil, dweight, dbias end

  local sums = ops.cat {dbias:to(WIRE), dweight:to(WIRE)}
  local off = own and sums / ctx.count
  -- Under DistributedDataParallel, gradients of a rank are weighted by its share of the samples: here, other ranks'
  -- gradients are scaled relative to this rank's.
  local share = ctx.share
  if share then sums:mul_(share) end
  dist.all_reduce(sums, {group = ctx.group})
  if share and share ~= 0 then sums:div_(share) end
  sums:div_(total)
  if off then sums:sub_(off) end

  local channels = mean:size(1)
  local scale = (wide and invstd * wide or invstd):neg()
  local rest = ops.batch_norm(x, mean, var, scale * sums:narrow(1, channels + 1, channels):to(scale.dtype),
    scale * sums:narrow(1, 1, channels):to(scale.dtype), how)
  return dx:add_(rest), dweight, dbias
end

-- ---- the layer

local SyncBatchNorm = layer.define(who, BatchNorm)
SyncBatchNorm.shape_of_x, SyncBatchNorm.dims = "[N, C, ...]", {}
for ndim = 2, 8 do SyncBatchNorm.dims[ndim] = true end

SyncBatchNorm.init = signature.of([[SyncBatchNorm(num_features: count, {eps: positive = 1e-5,
  momentum: number|false = 0.1, affine = true, track_running_stats = true, process_group, device, dtype: string,
  bias = true})]], function(self, num_features, opts)
  local group = opts.process_group
  opts.process_group = nil
  BatchNorm.init(self, num_features, opts)
  if group ~= nil then self.process_group = groups.resolve(who, group) end
end)

function SyncBatchNorm:forward(x)
  local group = self.training and (self.process_group or groups.default)
  group = group and groups.resolve(who, group)
  if not group or group.size == 1 then return BatchNorm.forward(self, x) end
  self:check_input(x)
  if x:size(2) ~= self.num_features then
    fail("%s: x has %d channels, but num_features is %d: x is %s", who, x:size(2), self.num_features,
      options.describe(x))
  end
  return Synced(x, self.weight, self.bias, self, group, self:next_momentum())
end

-- Returns the layer as a SyncBatchNorm, with the very same tensors as parameters and buffers.
local function converted(norm, group)
  local new = SyncBatchNorm(norm.num_features, {
    process_group = group, eps = norm.eps, momentum = norm.momentum, affine = false, track_running_stats = false,
  })
  new.affine, new.track_running_stats, new.training = norm.affine, norm.track_running_stats, norm.training
  new.weight = norm.weight -- one after the other: parameters are in order of assignment
  new.bias = norm.bias
  for name, t in norm:named_buffers() do new:register_buffer(name, t) end
  return new
end

--- Replaces each BatchNorm in the module, or the module itself, by an nn.SyncBatchNorm with the same parameters and
--- buffers. Returns the module, or its replacement. Call it before DistributedDataParallel wraps the module.
SyncBatchNorm.convert_sync_batchnorm = signature.of([[convert_sync_batchnorm(module: module,
  process_group)]], function(module, process_group)
  local caller = "convert_sync_batchnorm"
  if process_group ~= nil then groups.resolve(caller, process_group) end
  local done = {} -- maps a module to its replacement, so that shared modules stay shared
  local function convert(m)
    if done[m] then return done[m] end
    if m.__name == "DistributedDataParallel" then
      fail("%s: DistributedDataParallel already wraps part of the module; convert it before wrapping", caller)
    end
    done[m] = m:is(BatchNorm) and not m:is(SyncBatchNorm) and converted(m, process_group) or m
    local changed = {}
    for name, child in m:named_children() do
      local new = convert(child)
      if new ~= child then changed[name] = new end
    end
    for name, new in pairs(changed) do m[name] = new end
    return done[m]
  end
  return convert(module)
end)

return SyncBatchNorm

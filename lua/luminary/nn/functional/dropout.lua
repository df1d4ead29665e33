--- Implements dropout of channels, and alpha dropout, which keeps the mean and variance of SELU's outputs.
local core = require "luminary.core"
local options = require "luminary.base.options"
local signature = require "luminary.base.signature"
require "luminary.nn.functional.sizes" -- defines the kinds of its arguments

local ops = core.ops
local F = {}

local function result(x, y, opts) return opts.inplace and x:copy_(y) or y end

-- Returns the shape of a mask with one value for each channel of each sample.
local function channel_mask_shape(x, batched)
  local shape = {}
  for i = 1, x.ndim do shape[i] = i <= (batched and 2 or 1) and x.shape[i] or 1 end
  return shape
end

for n = 1, 3 do
  local who = ("dropout%dd"):format(n)
  --- Sets random channels to 0 with probability p and divides the others by 1 - p.
  F[who] = signature.of(("%s(x: input(%d), {p: probability = 0.5, training = true, inplace = false})"):format(who, n),
    function(x, opts)
    if not opts.training or opts.p == 0 then return x end
    local mask = ops.ones(channel_mask_shape(x, x.ndim == n + 2), {dtype = x.dtype, device = x.device})
    return result(x, x * ops.dropout(mask, opts.p, true), opts)
  end)
end

local NEGATIVE = -1.7580993408473766 -- SELU's limit at minus infinity

-- Sets dropped elements to NEGATIVE; a * y + b has mean 0 and variance 1 again (Klambauer et al. 2017, Self-Normalizing
-- Neural Networks). mask_shape(x) is the shape of the random mask.
local function alpha(x, opts, mask_shape)
  if not opts.training or opts.p == 0 or x:numel() == 0 then return x end
  if opts.p == 1 then return result(x, x * 0, opts) end
  local kept = ops.rand(mask_shape(x), {device = x.device}):ge(opts.p):to(x.dtype)
  local q = 1 - opts.p
  local a = 1 / math.sqrt(q * (1 + opts.p * NEGATIVE ^ 2))
  local b = -a * NEGATIVE * opts.p
  return result(x, x * (kept * a) + ((1 - kept) * (a * NEGATIVE) + b), opts)
end

-- The default of `training` is PyTorch's: these functions return x unless training is set.
local alpha_options = "(x: tensor, {p: probability = 0.5, training = false, inplace = false})"

--- Applies alpha dropout, which keeps mean 0 and variance 1.
F.alpha_dropout = signature.of("alpha_dropout" .. alpha_options, function(x, opts)
  return alpha(x, opts, function() return x.shape end)
end)

--- Applies alpha dropout to whole channels.
F.feature_alpha_dropout = signature.of("feature_alpha_dropout" .. alpha_options, function(x, opts)
  return alpha(x, opts, function()
    if x.ndim < 2 then options.wrong_shape("feature_alpha_dropout", "x", x, "[N, C, …]") end
    return channel_mask_shape(x, true)
  end)
end)

return options.exact_all(F)

--- Defines apex's opt_levels: their meaning, and the options of each (apex/amp/frontend.py).
---
---   O0  float32 throughout, as a baseline
---   O1  float32 weights; forward runs within autocast, its floating results come out as float32
---   O2  weights and inputs in the low dtype except batch norm; the optimizer steps float32 master weights
---   O3  the low dtype throughout
local options = require "luminary.base.options"
local fail = options.fail

local levels = {}

local defaults = {
  O0 = {loss_scale = 1},
  O1 = {autocast = true, loss_scale = "dynamic"},
  O2 = {cast = true, keep_batchnorm_fp32 = true, master_weights = true, loss_scale = "dynamic"},
  O3 = {cast = true, keep_batchnorm_fp32 = false, master_weights = false, loss_scale = 1},
}

--- The options of amp.initialize, without models and optimizers.
levels.options = [[{opt_level = "O1", enabled = true, cast_model_type: string, keep_batchnorm_fp32,
  master_weights: boolean, loss_scale, cast_model_outputs: string, num_losses: count = 1, verbosity: natural = 0,
  min_loss_scale: scale, max_loss_scale: scale = 2^24}]]

local who = "amp.initialize"
local low = {float16 = true, bfloat16 = true}

-- Parses a flag. apex also takes the words "True" and "False", as on a command line.
local function flag(name, value)
  if value == "True" or value == "true" then return true end
  if value == "False" or value == "false" then return false end
  if value ~= nil and type(value) ~= "boolean" then
    options.must_be(who, name, "true or false", value)
  end
  return value
end

local function scale_of(value)
  if value == nil or value == "dynamic" then return value end
  local number = tonumber(value)
  if not options.is("scale", number) then
    options.must_be(who, "loss_scale", 'a number from 2^-126 to 2^126 or "dynamic"', value)
  end
  return number
end

--- Resolves these options (see levels.options) for models on this device.
function levels.resolve(opts, device)
  local base = defaults[opts.opt_level]
  if not base then
    fail("%s: opt_level must be \"O0\", \"O1\", \"O2\" or \"O3\", got '%s'", who, opts.opt_level)
  end
  local keep = flag("keep_batchnorm_fp32", opts.keep_batchnorm_fp32)
  local dtype = opts.cast_model_type
  if dtype and not low[dtype] and dtype ~= "float32" then
    fail("%s: cast_model_type must be \"float16\", \"bfloat16\" or \"float32\", got '%s'", who, dtype)
  end
  if base.autocast then
    if dtype == "float32" then
      fail("%s: cast_model_type must be \"float16\" or \"bfloat16\" with opt_level \"O1\"; use opt_level \"O0\" for "
        .. "float32", who)
    end
    if keep ~= nil then
      fail("%s: keep_batchnorm_fp32 does not apply to opt_level \"O1\", whose weights are all float32; leave it out, "
        .. "or use \"O2\"", who)
    end
    if opts.master_weights then
      fail("%s: master_weights does not apply to opt_level \"O1\", whose weights are float32; leave it out, or use "
        .. "\"O2\"", who)
    end
  end
  if opts.min_loss_scale and opts.min_loss_scale > opts.max_loss_scale then
    fail("%s: min_loss_scale (%g) must be at most max_loss_scale (%g)", who, opts.min_loss_scale, opts.max_loss_scale)
  end
  local on = {
    level = opts.opt_level, device = device, autocast = base.autocast, loss_scale = scale_of(opts.loss_scale),
    cast_model_outputs = opts.cast_model_outputs,
  }
  on.loss_scale = on.loss_scale or base.loss_scale
  on.dtype = dtype or (opts.opt_level == "O0" and "float32" or device:sub(1, 3) == "cpu" and "bfloat16" or "float16")
  on.cast = base.cast or (opts.opt_level == "O0" and low[on.dtype])
  on.keep_batchnorm_fp32 = base.keep_batchnorm_fp32
  if keep ~= nil then on.keep_batchnorm_fp32 = keep end
  on.master_weights = base.master_weights
  if opts.master_weights ~= nil then on.master_weights = opts.master_weights end
  return on
end

return levels

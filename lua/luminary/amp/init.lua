--- lm.amp: Provides mixed precision with the functions of NVIDIA's apex, besides lm.autocast and lm.GradScaler.
local core = require "luminary.core"
local class = require "luminary.base.class"
local map_tensors = require "luminary.base.map_tensors"
local options = require "luminary.base.options"
local signature = require "luminary.base.signature"
local levels = require "luminary.amp.opt_levels"
local process = require "luminary.amp.master_weights"
local nn = require "luminary.nn"
local Optimizer = require "luminary.optim.optimizer"
local Zero = require "luminary.optim.zero"
local fail = options.fail

local custom = require "luminary.amp.custom_forward_backward"
local amp = {
  GradScaler = require "luminary.amp.grad_scaler", autocast = require "luminary.amp.autocast",
  custom_fwd = custom.custom_fwd, custom_bwd = custom.custom_bwd,
}

local state -- set by the latest initialize: {properties = …, scalers = list, enabled, verbosity}
local processed = setmetatable({}, {__mode = "k"}) -- set of models that initialize has changed

local is_list = options.is_plain

-- ---- casts of values in nested tables

local FLOATS = {float16 = true, bfloat16 = true, float32 = true, float64 = true}

local function convert_all(dtype, ...)
  if not dtype then return ... end
  return unpack(map_tensors({...}, function(t)
    return FLOATS[t.dtype] and t.dtype ~= dtype and t:to(dtype) or t
  end), 1, select("#", ...))
end

-- ---- models

local function is_wrapped(model) return model:is(nn.parallel.DistributedDataParallel) or model:is(nn.DataParallel) end

local function check_model(model)
  local who = "amp.initialize"
  if not nn.Module.is_module(model) then options.expected(who, "a module or a list of them", model) end
  if is_wrapped(model) then
    fail("%s: the model is already a %s; call amp.initialize(net, opt) first and wrap the result", who, model.__name)
  end
  if processed[model] then fail("%s: already called for this model", who) end
  for name, p in model:named_parameters() do
    if p.dtype ~= "float32" and FLOATS[p.dtype] then
      fail("%s: the parameter '%s' must be float32, got %s; do not call :half(), opt_level selects the dtypes", who,
        name, p.dtype)
    end
  end
end

local function device_of(models)
  local device
  for _, model in ipairs(models) do
    for name, p in model:named_parameters() do
      local kind = p.device:match "^%a+"
      if device and kind ~= device:match "^%a+" then
        fail("amp.initialize: device mismatch: '%s' is on %s, other parameters on %s; move the models first with "
          .. "net:to(%q)", name, p.device, device, device)
      end
      device = device or p.device
    end
  end
  return device or core.get_default_device()
end

-- Casts the model to the low dtype, except batch norm if that is kept. Tensors stay the same objects.
local function cast_model(model, on)
  local kept = {}
  for _, module in ipairs(model:modules()) do
    local is_norm = module:is(nn.BatchNorm1d) or module:is(nn.BatchNorm2d) or module:is(nn.BatchNorm3d)
      or module:is(nn.SyncBatchNorm)
    for _, kind in ipairs(is_norm and on.keep_batchnorm_fp32 and {"parameters", "buffers"} or {}) do
      for _, t in ipairs(module[kind](module)) do kept[t] = true end
    end
  end
  for _, kind in ipairs {"parameters", "buffers"} do
    for _, t in ipairs(model[kind](model)) do
      if t.dtype == "float32" and not kept[t] then
        t.grad = nil
        core.set_data(t, t:detach():to(on.dtype))
      end
    end
  end
end

local function patch_forward(model, on)
  local forward, out = model.forward, on.cast_model_outputs or (on.cast or on.autocast) and "float32"
  if not out then return end
  local mode = on.autocast and not on.cast and {device = on.device, dtype = on.dtype}
  model.forward = function(self, ...)
    if mode then return convert_all(out, core.autocast(mode, forward, self, ...)) end
    return convert_all(out, forward(self, convert_all(on.cast and on.dtype, ...)))
  end
end

-- ---- scales

-- The scale of one loss, as in apex's LossScaler: a fixed number, or "dynamic": initially 2^16 (clamped to [min, max]),
-- halved at an overflow, doubled after 2000 steps without one.
local LossScaler = class.define "LossScaler"

local START, FACTOR, WINDOW = 2 ^ 16, 2, 2000

function LossScaler:init(loss_scale, least, most)
  self.dynamic = loss_scale == "dynamic"
  self.least, self.most, self.unskipped = least or 2 ^ -126, most, 0
  self.scale = self.dynamic and math.max(self.least, math.min(most, START)) or loss_scale
end

--- Updates the scale after a backward pass; returns true if the step must be skipped.
function LossScaler:update(overflow)
  if not self.dynamic then return false end
  if overflow then
    self.scale, self.unskipped = math.max(self.least, self.scale / FACTOR), 0
  else
    self.unskipped = self.unskipped + 1
    if self.unskipped == WINDOW then self.scale, self.unskipped = math.min(self.most, self.scale * FACTOR), 0 end
  end
  return overflow
end

function LossScaler:state_dict() return {loss_scale = self.scale, unskipped = self.unskipped} end

function LossScaler:load_state_dict(who, dict)
  local known = options.check(who, dict, "{loss_scale: scale, unskipped: natural}")
  if not known.loss_scale or not known.unskipped then fail("%s: the state must have loss_scale and unskipped", who) end
  self.scale, self.unskipped = known.loss_scale, known.unskipped
end

-- ---- initialize

local function as_list(who, v, what, is_one)
  if v == nil then return {} end
  if is_one(v) then return {v} end
  if not is_list(v) then options.expected(who, ("%s or a list of them"):format(what), v) end
  for i, each in ipairs(v) do
    if not is_one(each) then options.must_be(who, ("entry %d"):format(i), what, each) end
  end
  return v
end

local function is_optimizer(v) return class.is(v, Optimizer) end

local function say(format, ...)
  if state.verbosity > 0 then io.stderr:write(format:format(...), "\n") end
end

--- Prepares models and optimizers for mixed precision, and returns them.
function amp.initialize(models, optimizers, opts)
  local who = "amp.initialize"
  if opts == nil and is_list(optimizers) and type(next(optimizers)) == "string" then -- options in their place
    optimizers, opts = nil, optimizers
  end
  opts = options.check(who, opts, levels.options)
  local model_list = as_list(who, models, "a module", nn.Module.is_module)
  local optimizer_list = as_list(who, optimizers, "an optimizer", is_optimizer)
  if not opts.enabled then
    state = {enabled = false, verbosity = 0, scalers = {}}
    return models, optimizers
  end
  if models == nil then fail("%s: expected a module or a list of them, got nil", who) end
  for _, model in ipairs(model_list) do check_model(model) end
  for _, opt in ipairs(optimizer_list) do
    if process.is_taken(opt) then fail("%s: already called for this optimizer", who) end
  end
  local on = levels.resolve(opts, device_of(model_list))
  for _, opt in ipairs(optimizer_list) do
    if on.master_weights and class.is(opt, Zero) then
      fail("%s: ZeroRedundancyOptimizer has no master weights; use opt_level \"O1\" or another optimizer", who)
    end
  end
  for _, model in ipairs(model_list) do
    if on.cast then cast_model(model, on) end
    patch_forward(model, on)
    processed[model] = true
  end
  for _, opt in ipairs(optimizer_list) do process.take(opt, on) end
  state = {properties = on, scalers = {}, enabled = true, verbosity = opts.verbosity}
  for i = 1, opts.num_losses do
    state.scalers[i] = LossScaler(on.loss_scale, opts.min_loss_scale, opts.max_loss_scale)
  end
  say("amp: opt_level %s, low dtype %s, loss scale %s", on.level, on.dtype, tostring(on.loss_scale))
  return models, optimizers
end

-- ---- the loss

local function need_state(who)
  if not state then fail("%s: call amp.initialize(net, opt, {opt_level = …}) first", who) end
end

--- Calls f with the scaled loss, and unscales the gradients after it.
amp.scale_loss = signature.of([[amp.scale_loss(loss: tensor, optimizers, f, {loss_id: count = 1,
  delay_unscale = false})]], function(loss, optimizers, f, opts)
  local who = "amp.scale_loss"
  need_state(who)
  if type(f) ~= "function" then
    options.expected(who, "a function", f, "amp.scale_loss(loss, opt, function(scaled) scaled:backward() end)")
  end
  if not state.enabled then return f(loss) end
  local list = as_list(who, optimizers, "an optimizer", is_optimizer)
  if #list == 0 then options.expected(who, "an optimizer or a list of them", optimizers) end
  for _, opt in ipairs(list) do
    if not process.is_taken(opt) then fail("%s: the optimizer was not passed to amp.initialize", who) end
  end
  local scaler = state.scalers[opts.loss_id]
  if not scaler then
    fail("%s: loss_id (%d) must be at most num_losses (%d) of amp.initialize", who, opts.loss_id, #state.scalers)
  end
  for _, opt in ipairs(list) do process.before(opt) end
  local results = options.pack(f(loss:float() * scaler.scale))
  if opts.delay_unscale then
    for _, opt in ipairs(list) do process.delay(opt) end
    return unpack(results, 1, results.n)
  end
  local overflow, found = false, {}
  for _, opt in ipairs(list) do found[#found + 1] = process.after(opt, scaler.scale) end
  if scaler.dynamic then -- a static scale needs no wait for the gradients
    for _, one in ipairs(found) do overflow = one:item() ~= 0 or overflow end
  end
  if scaler:update(overflow) then
    for _, opt in ipairs(list) do process.skip(opt) end
    say("amp: gradient overflow: the step is left out, the scale of loss %d is %g now", opts.loss_id, scaler.scale)
  end
  return unpack(results, 1, results.n)
end)

--- Returns the list of tensors that the optimizer steps: float32 master weights if there are any.
function amp.master_params(optimizer)
  if not is_optimizer(optimizer) then
    options.expected("amp.master_params", "an optimizer", optimizer)
  end
  return process.masters(optimizer)
end

--- Calls f(...) without the autocast of level O1.
function amp.disable_casts(f, ...) return core.autocast({enabled = false}, f, ...) end

--- Returns the state of all loss scalers, under apex's names: loss_scaler0 and so on.
function amp.state_dict()
  need_state "amp.state_dict"
  local dict = {}
  for i, scaler in ipairs(state.scalers) do dict["loss_scaler" .. i - 1] = scaler:state_dict() end
  return dict
end

--- Loads a state_dict, after amp.initialize with the same number of losses.
function amp.load_state_dict(dict)
  local who = "amp.load_state_dict"
  need_state(who)
  options.arg(who, "the state", dict, "table")
  local n = 0
  for name, saved in pairs(dict) do
    local i = tonumber(tostring(name):match "^loss_scaler(%d+)$")
    local scaler = i and state.scalers[i + 1]
    if not scaler then
      fail("%s: the state has '%s', but there are %d losses; set num_losses in amp.initialize", who, tostring(name),
        #state.scalers)
    end
    scaler:load_state_dict(who .. ": " .. name, saved)
    n = n + 1
  end
  if n ~= #state.scalers then
    fail("%s: the state has %d losses, this process %d; set num_losses in amp.initialize", who, n, #state.scalers)
  end
end

return options.strict("amp", amp)

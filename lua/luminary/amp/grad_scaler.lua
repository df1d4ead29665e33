--- lm.GradScaler(…): Scales losses, so that float16 gradients do not underflow, and unscales gradients.
local core = require "luminary.core"
local class = require "luminary.base.class"
local lists = require "luminary.base.lists"
local load_module = require "luminary.base.load_module"
local options = require "luminary.base.options"
local signature = require "luminary.base.signature"
local ffi = require "ffi"
local fail = options.fail

local GradScaler = class.root "GradScaler"

-- Rounds the scale to float32, the dtype of PyTorch's scale.
local function round_to_float32(x) return tonumber(ffi.cast("float", x)) end

-- Fails during a capture, whose replays would repeat the numbers of the capture.
local function refuse_capture(who)
  if core.graph_is_capturing() then
    fail("GradScaler:%s: cannot be captured; end the capture with scaler:scale(loss):backward() and call this after "
      .. "graph:replay()", who)
  end
end

GradScaler.init = signature.of([[GradScaler({device, init_scale: scale = 65536, growth_factor: above(1) = 2,
  backoff_factor: between(0, 1) = 0.5, growth_interval: count = 2000, enabled = true})]], function(self, opts)
  if type(opts.device) == "string" and opts.device:find "^cuda" and core.device_count "cuda" == 0 then
    if opts.enabled then core.warn "GradScaler: no CUDA device is available; the scaler of \"cuda\" is disabled" end
    opts.enabled = false
  end
  if opts.device ~= nil and opts.enabled then core.device(opts.device) end
  self.enabled, self.current, self.growth_factor = opts.enabled, round_to_float32(opts.init_scale), opts.growth_factor
  self.backoff_factor, self.growth_interval, self.good_steps = opts.backoff_factor, opts.growth_interval, 0
  self.tensors = {} -- the scale by device; captured graphs read them
  self.begun = false -- true if a loss was scaled since the last update
  self.stages = {} -- maps an optimizer to {stage = "unscaled" | "stepped", found = tensor}
end)

local function scale_tensors(self, v, seen)
  if core.is_tensor(v) then
    local by = self.tensors[v.device]
    if not by then
      if core.graph_is_capturing() then
        fail("GradScaler:scale: the first call on %s cannot be captured; call scale once before the capture", v.device)
      end
      by = core.keep(core.ops.full({}, self.current, {dtype = "float32", device = v.device}))
      self.tensors[v.device] = by
    end
    return v * by
  end
  if not options.is_plain(v) then
    options.expected("GradScaler:scale", "a tensor or a list of tensors", v)
  end
  if seen[v] then fail("GradScaler:scale: the list contains itself") end
  seen[v] = true
  local out = {}
  for key, each in pairs(v) do out[key] = scale_tensors(self, each, seen) end
  seen[v] = nil
  return out
end

--- Multiplies the loss, or each of a list, by the scale. A loss of a low dtype without dims becomes float32.
function GradScaler:scale(outputs)
  if not self.enabled then return outputs end
  local result = scale_tensors(self, outputs, {})
  local function begin() self.begun = true end
  if core.graph_is_capturing() then
    load_module("luminary.cuda.graph").on_replay(begin)
  else
    begin()
  end
  return result
end

local function need_optimizer(who, opt)
  if not class.record(opt) or type(opt.param_groups) ~= "table" or type(opt.step) ~= "function" then
    options.expected("GradScaler:" .. who, "an optimizer", opt)
  end
end

-- Returns a list of the optimizer's parameters with gradients, and one of all of them.
local function with_gradients(who, opt)
  local list, all = {}, {}
  for _, group in ipairs(opt.param_groups) do
    lists.append(all, group.params)
    for _, p in ipairs(group.params) do
      if core.has_grad(p) then
        list[#list + 1] = p
        if p.dtype == "float16" then
          fail("GradScaler:%s: cannot unscale gradients of float16 parameters; keep parameters in float32 and run the "
            .. "forward pass in lm.autocast, or use lm.amp.initialize with opt_level \"O2\"", who)
        end
      end
    end
  end
  return list, all
end

local function unscale(self, who, opt)
  local params, all = with_gradients(who, opt)
  local placement = package.loaded["luminary.nn.parallel.placement"]
  if not self.begun and not (placement and placement.has_loss_elsewhere(all)) then
    fail("GradScaler:%s: no loss was scaled since the last update(); call scaler:scale(loss):backward() first", who)
  end
  local found = #params > 0 and core.rescale_grads(params, nil, round_to_float32(1 / self.current))
    or core.tensor(-1, {dtype = "float32"})
  -- Ranks may have gradients of different parameters, but all or none have a part of one that is divided.
  if placement then found = core.no_grad(placement.any_found, all, found) end
  if #params == 0 and found:item() < 0 then
    fail("GradScaler:%s: no parameter of this optimizer has a gradient; call zero_grad, then "
      .. "scaler:scale(loss):backward() first", who)
  end
  self.stages[opt] = {stage = "unscaled", found = core.keep(found)}
end

--- Divides the gradients of the optimizer's parameters by the scale, in place, once between updates and before step.
function GradScaler:unscale_(opt)
  if not self.enabled then return end
  need_optimizer("unscale_", opt)
  refuse_capture "unscale_"
  local at = self.stages[opt]
  if at and at.stage == "unscaled" then
    fail("GradScaler:unscale_: already called for this optimizer since the last update()")
  end
  if at then fail("GradScaler:unscale_: called after step(); call it before") end
  unscale(self, "unscale_", opt)
end

--- Calls opt:step(), unless a gradient is infinite or NaN; unscales gradients first if unscale_ did not. Returns the
--- result of opt:step(), or nil if the step is skipped.
function GradScaler:step(opt, closure)
  need_optimizer("step", opt)
  if not self.enabled then return opt:step(closure) end
  refuse_capture "step"
  if closure ~= nil then
    fail("GradScaler:step: closures are not supported; compute the loss and its gradients before the step")
  end
  local at = self.stages[opt]
  if at and at.stage == "stepped" then
    fail("GradScaler:step: already called for this optimizer since the last update()")
  end
  if not at then unscale(self, "step", opt) end
  at = self.stages[opt]
  at.overflow = at.found:item() ~= 0
  local result
  if not at.overflow then
    result = opt:step()
  elseif class.has(opt, "count_step") then
    opt:count_step()
  end
  at.stage = "stepped"
  return result
end

local function set_scale(self, scale)
  self.current = round_to_float32(scale)
  for _, by in pairs(self.tensors) do by:fill_(self.current) end
end

-- Multiplies the scale; a result outside of a scale's limits leaves it unchanged.
local function multiply_scale(self, by)
  local scale = round_to_float32(self.current * by)
  if options.is("scale", scale) then set_scale(self, scale) end
end

--- Updates the scale: multiplies it by backoff_factor if a gradient was infinite or NaN, by growth_factor after
--- growth_interval iterations without. new_scale, a number or a tensor of one element, sets it instead.
function GradScaler:update(new_scale)
  if not self.enabled then return end
  refuse_capture "update"
  if new_scale ~= nil then
    new_scale = options.arg("GradScaler:update", "new_scale", new_scale, "scalar")
    set_scale(self, options.arg("GradScaler:update", "new_scale", new_scale, "scale"))
  else
    if next(self.stages) == nil then
      fail("GradScaler:update: no step since the last update(); call scaler:step(opt) first")
    end
    local overflow = false
    for _, at in pairs(self.stages) do
      if at.overflow == nil then at.overflow = at.found:item() ~= 0 end
      overflow = overflow or at.overflow
    end
    self.good_steps = overflow and 0 or self.good_steps + 1
    if overflow then
      multiply_scale(self, self.backoff_factor)
    elseif self.good_steps == self.growth_interval then
      multiply_scale(self, self.growth_factor)
      self.good_steps = 0
    end
  end
  self.begun, self.stages = false, {}
end

--- Returns the scale, a number; 1 if the scaler is disabled.
function GradScaler:get_scale() return self.enabled and self.current or 1 end

--- Returns whether the scaler is enabled.
function GradScaler:is_enabled() return self.enabled end

for key, kind in pairs {growth_factor = "above(1)", backoff_factor = "between(0, 1)", growth_interval = "count"} do
  --- Returns the value of the argument of this name.
  GradScaler["get_" .. key] = function(self) return self[key] end
  --- Sets the value of the argument of this name.
  GradScaler["set_" .. key] = function(self, value)
    self[key] = options.arg("GradScaler:set_" .. key, key, value, kind)
  end
end

-- The entries of a state_dict under PyTorch's names, their kinds and the fields that have them.
local state_entries = {
  {"scale", "current"}, {"growth_factor", "growth_factor"}, {"backoff_factor", "backoff_factor"},
  {"growth_interval", "growth_interval"}, {"_growth_tracker", "good_steps"},
}

--- Returns the state, plain values under PyTorch's names; empty if the scaler is disabled.
function GradScaler:state_dict()
  local dict = {}
  for _, entry in ipairs(self.enabled and state_entries or {}) do dict[entry[1]] = self[entry[2]] end
  return dict
end

--- Loads a state_dict, also one of PyTorch's.
function GradScaler:load_state_dict(dict)
  if not self.enabled then return end
  local who = "GradScaler:load_state_dict"
  refuse_capture "load_state_dict"
  options.arg(who, "the state", dict, "table")
  if next(dict) == nil then
    fail("%s: the state is empty: it was saved by a disabled scaler", who)
  end
  local known = options.check(who, dict, [[{scale: scale, growth_factor: above(1),
    backoff_factor: between(0, 1), growth_interval: count, _growth_tracker: natural}]])
  for _, entry in ipairs(state_entries) do
    if known[entry[1]] == nil then fail("%s: the state has no '%s'", who, entry[1]) end
  end
  for _, entry in ipairs(state_entries) do self[entry[2]] = known[entry[1]] end
  set_scale(self, known.scale)
end

function GradScaler:repr()
  if not self.enabled then return "GradScaler(enabled = false)" end
  return ("GradScaler(scale = %g, growth_factor = %g, backoff_factor = %g, growth_interval = %d)"):format(self.current,
    self.growth_factor, self.backoff_factor, self.growth_interval)
end

return GradScaler

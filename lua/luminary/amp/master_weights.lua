--- Converts an optimizer for amp.initialize (apex/amp/_process_optimizer.py).
---
--- With master weights its groups hold a float32 copy of each low-precision parameter, whose gradient is the
--- parameter's, unscaled; after a step the parameters become their masters' rounded values. Before the next backward
--- pass, a master takes the value of a parameter written elsewhere since (load_state_dict, the start of
--- DistributedDataParallel).
local core = require "luminary.core"
local class = require "luminary.base.class"
local gradients = require "luminary.autograd.zero_gradients"
local lists = require "luminary.base.lists"
local options = require "luminary.base.options"
local fail = options.fail

local low = {float16 = true, bfloat16 = true}

local stashes = setmetatable({}, {__mode = "k"}) -- maps an optimizer to its stash

local process = {}

-- A stash has: params (the model's, in the groups' order), masters (the groups' tensors, equal to params where no copy
-- is needed), lows and low_masters (pairs for the kernel), versions (of lows when their masters were last updated).

local function note_versions(stash)
  for i, p in ipairs(stash.lows) do stash.versions[i] = p._version end
end

local function make_master(p)
  local master = core.no_grad(function() return p:detach():float() end)
  master:requires_grad_(p.requires_grad)
  return core.keep(master)
end

-- Replaces a group's parameters by masters, and records both.
local function take_group(opt, stash, group)
  for i, p in ipairs(group.params) do
    local master = p
    if stash.master_weights and low[p.dtype] then
      master = make_master(p)
      group.params[i] = master
      opt.known[p], opt.known[master] = nil, true
      if opt.state[p] then
        local state = {}
        for key, value in pairs(opt.state[p]) do
          state[key] = core.is_tensor(value) and core.keep(value:float()) or value
        end
        opt.state[master], opt.state[p] = state, nil
      end
      table.insert(stash.lows, p)
      table.insert(stash.low_masters, master)
    end
    table.insert(stash.params, p)
    table.insert(stash.masters, master)
  end
  note_versions(stash)
end

local function check_devices(stash)
  for i, p in ipairs(stash.params) do
    if stash.masters[i].device ~= p.device then
      fail("amp: device mismatch: a parameter is on %s, its master weight on %s; move the model with net:to(%q) "
        .. "before amp.initialize", p.device, stash.masters[i].device, p.device)
    end
  end
end

local function refresh_masters(stash)
  local from, to = {}, {}
  for i, p in ipairs(stash.lows) do
    if p._version ~= stash.versions[i] then
      from[#from + 1], to[#to + 1] = p, stash.low_masters[i]
      stash.versions[i] = p._version
    end
  end
  if #from > 0 then core.rescale(from, to, 1) end
end

-- Methods of a converted optimizer, which override its class's.

local function step_with_master_weights(self, closure)
  local stash = stashes[self]
  if closure ~= nil then
    fail("amp: step: closures are not supported; call amp.scale_loss(loss, optimizer, f) first")
  end
  if stash.skip then
    stash.skip = false
    if class.has(self, "count_step") then self:count_step() end
    return nil
  end
  for i, rounded in ipairs(stash.lows) do
    if core.has_grad(rounded) and not core.has_grad(stash.low_masters[i]) then
      fail("amp: step: the master weights have no gradients; call backward inside lm.amp.scale_loss(loss, optimizer, "
        .. "function(scaled) scaled:backward() end)")
    end
  end
  local result = stash.step(self)
  if #stash.lows > 0 then
    core.rescale(stash.low_masters, stash.lows, 1)
    note_versions(stash)
  end
  return result
end

local function zero_grad(self, opts)
  local stash = stashes[self]
  opts = options.check("zero_grad", opts, "{set_to_none = true}")
  gradients.zero(stash.params, opts.set_to_none)
  core.zero_grad(stash.low_masters, opts.set_to_none)
end

local function add_param_group(self, given)
  local stash = stashes[self]
  stash.add_param_group(self, given)
  take_group(self, stash, self.param_groups[#self.param_groups])
end

-- Returns the state_dict with the masters of low-precision parameters, in order; the model's has them only rounded.
local function state_dict(self)
  local stash = stashes[self]
  local dict = stash.state_dict(self)
  if #stash.lows > 0 then dict.master_weights = lists.slice(stash.low_masters) end
  return dict
end

local function load_state_dict(self, dict)
  local stash = stashes[self]
  local saved = options.is_plain(dict) and dict.master_weights or {}
  options.arg("amp: load_state_dict", "master_weights", saved, "table")
  if next(saved) ~= nil and #saved ~= #stash.lows then
    fail("amp: load_state_dict: the state_dict has %d master weights, the model %d; use the same opt_level", #saved,
      #stash.lows)
  end
  for i, t in ipairs(saved) do
    local master = stash.low_masters[i]
    if not core.is_tensor(t) or t.shape ~= master.shape then
      options.must_be("amp: load_state_dict", ("master weight %d"):format(i), "a tensor " .. tostring(master.shape), t)
    end
  end
  stash.load_state_dict(self, dict)
  if #saved == 0 then return end
  for i, t in ipairs(saved) do stash.low_masters[i].data:copy_(t) end
  core.rescale(stash.low_masters, stash.lows, 1)
  note_versions(stash)
end

--- Makes the optimizer `opt` update float32 master weights of low-precision parameters, and copy them back.
function process.take(opt, properties)
  local stash = {
    master_weights = properties.master_weights, params = {}, masters = {}, lows = {}, low_masters = {}, versions = {},
    skip = false, scaled = false, step = opt.step, add_param_group = opt.add_param_group,
    state_dict = opt.state_dict, load_state_dict = opt.load_state_dict,
  }
  stashes[opt] = stash
  for _, group in ipairs(opt.param_groups) do take_group(opt, stash, group) end
  opt.step, opt.zero_grad, opt.add_param_group = step_with_master_weights, zero_grad, add_param_group
  opt.state_dict, opt.load_state_dict = state_dict, load_state_dict
end

function process.is_taken(opt) return stashes[opt] ~= nil end

--- Sets existing, unscaled gradients aside before a backward pass.
function process.before(opt)
  local stash = stashes[opt]
  if stash.scaled then return end -- gradients of a pass with delay_unscale accumulate
  check_devices(stash)
  refresh_masters(stash)
  stash.aside = {}
  for i, master in ipairs(stash.masters) do
    if core.has_grad(master) then stash.aside[i] = master.grad end
  end
  if next(stash.aside) then core.zero_grad(stash.masters, true) end
  core.zero_grad(stash.lows, true)
end

--- Unscales the gradients of a backward pass into the masters' gradients, and adds those set aside. Returns a tensor
--- that is nonzero if one was infinite or NaN; nil if there were no gradients.
function process.after(opt, scale)
  local stash = stashes[opt]
  stash.scaled = false
  local any = false
  for _, p in ipairs(stash.params) do
    any = any or core.has_grad(p)
  end
  local found = any and core.rescale_grads(stash.params, stash.masters, 1 / scale) or nil
  for i, grad in pairs(stash.aside) do
    local master = stash.masters[i]
    master.grad = core.has_grad(master) and core.no_grad(function() return master.grad + grad end) or grad
  end
  stash.aside = {}
  return found
end

--- Keeps the pass's gradients scaled, so that others accumulate.
function process.delay(opt) stashes[opt].scaled = true end

--- Skips the next step.
function process.skip(opt) stashes[opt].skip = true end

--- Returns a list of the tensors that opt steps.
function process.masters(opt)
  return stashes[opt] and lists.slice(stashes[opt].masters) or opt:all_parameters()
end

return process

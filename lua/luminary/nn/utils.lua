--- nn.utils: Clips and measures gradients, and converts parameters.
local core = require "luminary.core"
local lists = require "luminary.base.lists"
local class = require "luminary.base.class"
local load_module = require "luminary.base.load_module"
local options = require "luminary.base.options"
local signature = require "luminary.base.signature"
local parameter = require "luminary.nn.parameter"
local records = require "luminary.nn.module_fields"
local joined = require "luminary.tensor.joined"
local shapes = require "luminary.tensor.shapes"

local utils = {}

-- Returns a list of tensors, from a list or one tensor.
local function tensors(who, what, list)
  if core.is_tensor(list) then return {list} end
  if not options.is_plain(list) then
    options.expected(who, "a list of " .. what, list, what == "parameters" and "pass net:parameters()" or nil)
  end
  for i, t in ipairs(options.list(who, what, list)) do options.arg(who, what:sub(1, -2) .. " " .. i, t, "tensor") end
  return list
end

local norm_options = "norm_type: positive = 2, error_if_nonfinite = false"

-- Returns the norm of tensors or, with of_grads, of their gradients.
local function norm_of(who, list, opts, of_grads, total_norm)
  local total = total_norm and total_norm(list, opts.norm_type) or core.total_norm(list, opts.norm_type, of_grads)
  if opts.error_if_nonfinite then
    local value = total:item()
    if value - value ~= 0 then
      options.fail("%s: the norm of order %g is %g; pass {error_if_nonfinite = false} to use it", who, opts.norm_type,
        value)
    end
  end
  return total
end

--- Computes the norm of a list of tensors, as of one vector.
utils.get_total_norm = signature.of("get_total_norm(list, {" .. norm_options .. "})", function(list, opts)
  list = tensors("get_total_norm", "tensors", list)
  local placed = package.loaded["luminary.nn.parallel.placement"]
  local owners = placed and placed.with_owners(list)
  return norm_of("get_total_norm", list, opts, false, owners and placed.is_collective(owners) and function(_, norm_type)
    return core.no_grad(placed.total_norm, owners, norm_type, list)
  end)
end)

--- Clips the norm of the gradients of parameters, in place; returns the norm before.
utils.clip_grad_norm_ = signature.of("clip_grad_norm_(parameters, max_norm: positive, {" .. norm_options .. "})",
  function(parameters, max_norm, opts)
  local who = "clip_grad_norm_"
  parameters = tensors(who, "parameters", parameters)
  local placement = package.loaded["luminary.nn.parallel.placement"]
  local is_sharded = placement and placement.is_collective(parameters)
  local total = norm_of(who, parameters, opts, true, is_sharded and function(list, norm_type)
    return placement.total_norm(list, norm_type, nil, max_norm)
  end)
  core.clip_with_norm(parameters, max_norm, total)
  return total
end)

--- Scales the gradients of parameters, in place, by a norm that is already computed.
utils.clip_grads_with_norm_ = signature.of([[clip_grads_with_norm_(parameters, max_norm: positive,
  total_norm)]], function(parameters, max_norm, total_norm)
  local who = "clip_grads_with_norm_"
  parameters = tensors(who, "parameters", parameters)
  if type(total_norm) == "number" then total_norm = core.tensor(total_norm, {dtype = "float64"}) end
  if options.arg(who, "total_norm", total_norm, "tensor"):numel() ~= 1 then
    options.must_be(who, "total_norm", "one number", total_norm)
  end
  core.clip_with_norm(parameters, max_norm, core.ops.reshape(total_norm:detach(), {}))
end)

--- Clips the gradients of parameters to a range, in place.
function utils.clip_grad_value_(parameters, clip_value)
  local who = "clip_grad_value_"
  parameters = tensors(who, "parameters", parameters)
  core.clip_value(parameters, options.arg(who, "clip_value", clip_value, "positive"))
end

--- Flattens a list of parameters into one vector.
function utils.parameters_to_vector(parameters)
  parameters = tensors("parameters_to_vector", "parameters", parameters)
  if #parameters == 0 then options.fail("parameters_to_vector: the list of parameters is empty") end
  return joined.vector(parameters)
end

--- Copies the elements of a vector into a list of parameters.
utils.vector_to_parameters = signature.of("vector_to_parameters(vec: tensor, parameters)", function(vec, parameters)
  local who = "vector_to_parameters"
  parameters = tensors(who, "parameters", parameters)
  local total = lists.sum(parameters, core.methods.numel)
  if vec.ndim ~= 1 or vec:numel() ~= total then
    options.expected(who, ("a vector of %d elements"):format(total), vec)
  end
  core.no_grad(function()
    for i, part in ipairs(joined.parts(vec:detach(), parameters)) do parameters[i]:copy_(part) end
  end)
end)

--- Calls f(...), which creates modules whose parameters have shapes, but no memory and no values:
--- nn.parallel.fully_shard adds both, one module after another. Buffers have their values.
function utils.init_empty_weights(f, ...)
  load_module("luminary.autograd.function").check_callable("init_empty_weights", f)
  return load_module("luminary.nn.meta").without_parameters(f, ...)
end

--- skip_init(nn.Linear, 3, 4): Creates a layer without initializing its parameters.
function utils.skip_init(layer, ...)
  class.check("skip_init", layer)
  local own = layer:extend(layer.__name)
  own.strict = layer.strict
  rawset(own, "reset_parameters", function() end)
  rawset(own, "init", layer.init)
  local module = own(...)
  records.of(module).class = layer
  setmetatable(records.of(module).values, getmetatable(layer).instance)
  return module
end

--- Fuses the tensors of a convolution or linear layer and of a batch norm into a weight and a bias.
utils.fuse_conv_bn_weights = signature.of([[fuse_conv_bn_weights(conv_w: tensor, conv_b, bn_rm: tensor, bn_rv: tensor,
  bn_eps: number, bn_w, bn_b)]], function(conv_w, conv_b, bn_rm, bn_rv, bn_eps, bn_w, bn_b)
  local who = "fuse_conv_bn_weights"
  for name, t in pairs {conv_b = conv_b, bn_w = bn_w, bn_b = bn_b} do options.arg(who, name, t, "tensor") end
  local scale = core.ops.rsqrt(bn_rv + bn_eps)
  if bn_w then scale = scale * bn_w end
  local shift = (conv_b and conv_b - bn_rm or -bn_rm) * scale
  if bn_b then shift = shift + bn_b end
  local weight = conv_w * shapes.along_dim(scale, 1, conv_w.ndim)
  return parameter.new(weight:detach(), conv_w.requires_grad), parameter.new(shift:detach(), conv_w.requires_grad)
end)

--- Fuses a convolution or linear layer and a batch norm, both in evaluation mode, into one layer.
function utils.fuse_conv_bn_eval(conv, bn)
  local who = "fuse_conv_bn_eval"
  for i, name in ipairs {"conv", "bn"} do
    local module = i == 1 and conv or i == 2 and bn
    options.arg(who, name, module, "module")
    if module.training then options.fail("%s: %s must be in eval mode; call its eval() first", who, name) end
  end
  if not rawget(records.of(bn).values, "running_mean") then
    options.fail("%s: bn must be a batch norm with running statistics", who)
  end
  if not rawget(records.of(conv).values, "weight") then options.fail("%s: conv must be a layer with a weight", who) end
  local fused = conv:clone()
  fused.weight, fused.bias = utils.fuse_conv_bn_weights(fused.weight, fused.bias, bn.running_mean, bn.running_var,
    bn.eps, bn.weight, bn.bias)
  return fused
end
utils.fuse_linear_bn_eval, utils.fuse_linear_bn_weights = utils.fuse_conv_bn_eval, utils.fuse_conv_bn_weights

for name, f in pairs(require "luminary.nn.utils.norms") do utils[name] = f end
utils.parametrize = options.strict("nn.utils.parametrize", require "luminary.nn.utils.parametrize")
--- nn.utils.parametrizations: Provides the parametrizations weight_norm, spectral_norm and orthogonal.
utils.parametrizations = options.strict("nn.utils.parametrizations", {
  weight_norm = utils.weight_norm, spectral_norm = utils.spectral_norm, orthogonal = utils.orthogonal,
})
utils.orthogonal = nil -- PyTorch has it in parametrizations only
utils.rnn = require "luminary.nn.utils.rnn"
for _, name in ipairs {"add_lora", "merge_lora", "lora_state_dict"} do
  utils[name] = require("luminary.nn.lora")[name]
end
--- nn.utils.stateless: Calls modules with other parameters.
utils.stateless = options.strict("nn.utils.stateless", {
  --- lm.func.functional_call(module, values, ...): Calls a module with other parameters and buffers.
  functional_call = function(...) return load_module("luminary.func").functional_call(...) end,
})

return options.strict("nn.utils", signature.all(utils))

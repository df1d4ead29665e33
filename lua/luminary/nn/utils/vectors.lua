--- Converts parameters to one vector and back, skips initialization, and fuses batch norms into layers.
local core = require "luminary.core"
local class = require "luminary.base.class"
local options = require "luminary.base.options"
local signature = require "luminary.base.signature"
local parameter = require "luminary.nn.parameter"
local records = require "luminary.nn.module_fields"

local ops, fail = core.ops, options.fail
local utils = {}

local function check_list(who, list)
  if not options.is_plain(list) then
    options.expected(who, "a list of parameters, net:parameters()", list)
  end
  for i, p in ipairs(options.list(who, "parameters", list)) do options.arg(who, "parameter " .. i, p, "tensor") end
end

--- Flattens a list of parameters into one vector.
function utils.parameters_to_vector(parameters)
  check_list("parameters_to_vector", parameters)
  local parts = {}
  for i, p in ipairs(parameters) do parts[i] = ops.reshape(p, {-1}) end
  if #parts == 0 then fail("parameters_to_vector: the list of parameters is empty") end
  return ops.cat(parts)
end

--- Copies the elements of a vector into a list of parameters.
utils.vector_to_parameters = signature.of("vector_to_parameters(vec: tensor, parameters)", function(vec, parameters)
  local who = "vector_to_parameters"
  check_list(who, parameters)
  local total, first = 0, 1
  for _, p in ipairs(parameters) do total = total + p:numel() end
  if vec.ndim ~= 1 or vec:numel() ~= total then
    options.expected(who, ("a vector of %d elements"):format(total), vec)
  end
  core.no_grad(function()
    for _, p in ipairs(parameters) do
      p:copy_(vec:detach():narrow(1, first, p:numel()):view(p.shape))
      first = first + p:numel()
    end
  end)
end)

--- skip_init(nn.Linear, 3, 4): Creates a layer without initializing its parameters.
function utils.skip_init(layer, ...)
  class.check("skip_init", layer)
  local own = layer:extend(layer.__name)
  own.strict = layer.strict
  rawset(own, "reset_parameters", function() end)
  rawset(own, "init", layer.init)
  local made = own(...)
  records.of(made).class = layer
  setmetatable(records.of(made).values, getmetatable(layer).instance)
  return made
end

--- Fuses the tensors of a convolution or linear layer and of a batch norm into a weight and a bias.
utils.fuse_conv_bn_weights = signature.of([[fuse_conv_bn_weights(conv_w: tensor, conv_b, bn_rm: tensor, bn_rv: tensor,
  bn_eps: number, bn_w, bn_b)]], function(conv_w, conv_b, bn_rm, bn_rv, bn_eps, bn_w, bn_b)
  local who = "fuse_conv_bn_weights"
  for name, t in pairs {conv_b = conv_b, bn_w = bn_w, bn_b = bn_b} do options.arg(who, name, t, "tensor") end
  local scale = ops.rsqrt(bn_rv + bn_eps)
  if bn_w then scale = scale * bn_w end
  local shape = {scale:numel()}
  for i = 2, conv_w.ndim do shape[i] = 1 end
  local shift = (conv_b and conv_b - bn_rm or -bn_rm) * scale
  if bn_b then shift = shift + bn_b end
  local weight = conv_w * scale:view(shape)
  return parameter.new(weight:detach(), conv_w.requires_grad), parameter.new(shift:detach(), conv_w.requires_grad)
end)

--- Fuses a convolution or linear layer and a batch norm, both in evaluation mode, into one layer.
function utils.fuse_conv_bn_eval(conv, bn)
  local who = "fuse_conv_bn_eval"
  for i, name in ipairs {"conv", "bn"} do
    local module = i == 1 and conv or i == 2 and bn
    if not records.is_module(module) then
      options.must_be(who, name, "a module", module)
    end
    if module.training then fail("%s: %s must be in eval mode; call its eval() first", who, name) end
  end
  if not rawget(records.of(bn).values, "running_mean") then
    fail("%s: bn must be a batch norm with running statistics", who)
  end
  if not rawget(records.of(conv).values, "weight") then fail("%s: conv must be a layer with a weight", who) end
  local fused = conv:clone()
  fused.weight, fused.bias = utils.fuse_conv_bn_weights(fused.weight, fused.bias, bn.running_mean, bn.running_var,
    bn.eps, bn.weight, bn.bias)
  return fused
end
utils.fuse_linear_bn_eval, utils.fuse_linear_bn_weights = utils.fuse_conv_bn_eval, utils.fuse_conv_bn_weights

return utils

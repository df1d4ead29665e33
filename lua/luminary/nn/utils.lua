--- nn.utils: Clips and measures gradients, and converts parameters.
local core = require "luminary.core"
local load_module = require "luminary.base.load_module"
local options = require "luminary.base.options"
local signature = require "luminary.base.signature"

local utils = {}

-- Returns a list of tensors, from a list or one tensor.
local function tensors(who, what, list)
  if core.is_tensor(list) then return {list} end
  if not options.is_plain(list) then
    options.expected(who, "a list of " .. what, list, what == "parameters" and "pass net:parameters()" or nil)
  end
  for i, t in ipairs(list) do options.arg(who, what:sub(1, -2) .. " " .. i, t, "tensor") end
  return list
end

local norm_options = "norm_type: positive = 2, error_if_nonfinite = false"

-- Returns the norm of tensors or, with of_grads, of their gradients.
local function norm_of(who, list, opts, of_grads)
  local total = core.total_norm(list, opts.norm_type, of_grads)
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
  return norm_of("get_total_norm", tensors("get_total_norm", "tensors", list), opts, false)
end)

--- Clips the norm of the gradients of parameters, in place; returns the norm before.
utils.clip_grad_norm_ = signature.of("clip_grad_norm_(parameters, max_norm: positive, {" .. norm_options .. "})",
  function(parameters, max_norm, opts)
  local who = "clip_grad_norm_"
  parameters = tensors(who, "parameters", parameters)
  local total = norm_of(who, parameters, opts, true)
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

for _, file in ipairs {"vectors", "norms"} do
  for name, f in pairs(require("luminary.nn.utils." .. file)) do utils[name] = f end
end
utils.parametrize = options.strict("nn.utils.parametrize", require "luminary.nn.utils.parametrize")
--- nn.utils.parametrizations: Provides the parametrizations weight_norm, spectral_norm and orthogonal.
utils.parametrizations = options.strict("nn.utils.parametrizations", {
  weight_norm = utils.weight_norm, spectral_norm = utils.spectral_norm, orthogonal = utils.orthogonal,
})
utils.orthogonal = nil -- PyTorch has it in parametrizations only
utils.rnn = require "luminary.nn.utils.rnn"
--- nn.utils.stateless: Calls modules with other parameters.
utils.stateless = options.strict("nn.utils.stateless", {
  --- lm.func.functional_call(module, values, ...): Calls a module with other parameters and buffers.
  functional_call = function(...) return load_module("luminary.func").functional_call(...) end,
})

return options.strict("nn.utils", signature.all(utils))

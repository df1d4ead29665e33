--- nn.utils: what trainings do with parameters.
local core = require "luminary.core"
local options = require "luminary.options"

local utils = {}

--- Scale the gradients of these parameters (a list, or one tensor) in place so that their norm together
--- is at most max_norm; gives the norm before, a tensor of one float64 on the first gradient's device: :item() waits
--- for a GPU, the clipping does not. {norm_type = 2}, which may be math.huge.
function utils.clip_grad_norm_(parameters, max_norm, opts)
  opts = options.check("clip_grad_norm_", opts, {norm_type = {"positive", 2}}, "norm_type")
  options.arg("clip_grad_norm_", "max_norm", max_norm, "positive")
  if core.is_tensor(parameters) then parameters = {parameters} end
  if type(parameters) ~= "table" or getmetatable(parameters) then
    options.fail("clip_grad_norm_: a list of parameters wanted, net:parameters(), got %s",
      options.describe(parameters))
  end
  for i, p in ipairs(parameters) do options.arg("clip_grad_norm_", "parameter " .. i, p, "tensor") end
  return core.clip_grad_norm(parameters, max_norm, opts.norm_type)
end

return options.strict("nn.utils", options.exact_all(utils, options.named))

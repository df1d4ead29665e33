--- lm.distributions: Parameterizable probability distributions and sampling functions.
local options = require "luminary.base.options"
local kl = require "luminary.distributions.kl"

-- Copies the public names of a module's table.
local function copy_public_names(into, module)
  for name, value in pairs(require("luminary.distributions." .. module)) do
    if name:sub(1, 1) ~= "_" then into[name] = value end
  end
  return into
end

local distributions = {
  Distribution = require "luminary.distributions.distribution",
  --- lm.distributions.constraints: Conditions that parameters and values of distributions satisfy.
  constraints = options.strict("distributions.constraints", copy_public_names({}, "constraints")),
  kl_divergence = kl.kl_divergence, register_kl = kl.register_kl,
}
for _, file in ipairs {"continuous", "discrete", "gamma", "multivariate", "combined", "transforms"} do
  copy_public_names(distributions, file)
end
kl._register_all(distributions)

return options.strict("distributions", distributions)

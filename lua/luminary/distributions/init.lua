--- lm.distributions: Parameterizable probability distributions and sampling functions.
local options = require "luminary.base.options"
local kl = require "luminary.distributions.kl"

local distributions = {
  Distribution = require "luminary.distributions.distribution",
  constraints = options.strict("distributions.constraints", require "luminary.distributions.constraints"),
  kl_divergence = kl.kl_divergence, register_kl = kl.register_kl,
}
for _, file in ipairs {"continuous", "discrete", "gamma", "multivariate", "combined", "transforms"} do
  for name, class in pairs(require("luminary.distributions." .. file)) do
    if name:sub(1, 1) ~= "_" then distributions[name] = class end
  end
end
kl._register_all(distributions)

return options.strict("distributions", distributions)

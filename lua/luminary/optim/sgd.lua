--- optim.SGD(params, {lr = 0.001, momentum = 0, dampening = 0, weight_decay = 0, nesterov = false,
--- maximize = false}): gradient descent, with momentum or Nesterov's. weight_decay adds to the gradient.
local core = require "luminary.core"
local class = require "luminary.class"
local options = require "luminary.options"
local Optimizer = require "luminary.optim.optimizer"

local SGD = class.define("SGD", Optimizer)

SGD.spec = {
  lr = {"number", 0.001}, momentum = {"number", 0}, dampening = {"number", 0}, weight_decay = {"number", 0},
  nesterov = {"boolean", false}, maximize = {"boolean", false},
}

function SGD:check_group(group)
  Optimizer.check_group(self, group)
  options.arg("SGD", "momentum", group.momentum, "positive")
  if group.nesterov and (group.momentum == 0 or group.dampening ~= 0) then
    options.fail("SGD: nesterov needs a momentum and no dampening")
  end
end

--- What the optimizer remembers of a parameter before its first step.
function SGD:new_state(group, p) -- luacheck: ignore self
  if group.momentum == 0 then return {} end
  return {momentum_buffer = core.keep(core.ops.zeros_like(p:detach()))}
end

--- What the core is told of one step of a group's parameters.
function SGD:arguments(group, params, states, count) -- luacheck: ignore self
  -- A group whose momentum was turned on later starts its buffers then.
  local first = count == 1
  if group.momentum ~= 0 and not states[1].momentum_buffer then
    first = true
    for i, p in ipairs(params) do states[i].momentum_buffer = core.keep(core.ops.zeros_like(p:detach())) end
  end
  return {
    kind = "sgd", params = params, state0 = group.momentum ~= 0 and Optimizer.column(states, "momentum_buffer") or nil,
    lr = group.lr, momentum = group.momentum, dampening = group.dampening, weight_decay = group.weight_decay,
    nesterov = group.nesterov, maximize = group.maximize, first = first,
  }
end

return SGD

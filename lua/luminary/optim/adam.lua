--- Adam and AdamW.
local core = require "luminary.core"
local class = require "luminary.class"
local options = require "luminary.options"
local Optimizer = require "luminary.optim.optimizer"

local function spec(weight_decay)
  return {
    lr = {"number", 0.001}, betas = {"pair", {0.9, 0.999}}, eps = {"number", 1e-8},
    weight_decay = {"number", weight_decay}, amsgrad = {"boolean", false}, maximize = {"boolean", false},
  }
end

--- optim.Adam(params, {lr = 0.001, betas = {0.9, 0.999}, eps = 1e-8, weight_decay = 0, amsgrad = false,
--- maximize = false}): Kingma and Ba 2015. weight_decay adds to the gradient.
local Adam = class.define("Adam", Optimizer)
Adam.spec, Adam.decoupled = spec(0), false

--- optim.AdamW(params, {lr = 0.001, betas = {0.9, 0.999}, eps = 1e-8, weight_decay = 0.01, amsgrad = false,
--- maximize = false}): Adam whose weight_decay shrinks the weights themselves (Loshchilov and Hutter 2019).
local AdamW = class.define("AdamW", Adam)
AdamW.spec, AdamW.decoupled = spec(0.01), true

function Adam:check_group(group)
  Optimizer.check_group(self, group)
  options.arg(self.__name, "eps", group.eps, "positive")
  for i = 1, 2 do
    local beta = group.betas[i]
    if beta < 0 or beta >= 1 then options.fail("%s: betas[%d] has to be in [0, 1), got %g", self.__name, i, beta) end
  end
end

local function zeros(p) return core.keep(core.ops.zeros_like(p:detach())) end

--- What the optimizer remembers of a parameter before its first step.
function Adam:new_state(group, p) -- luacheck: ignore self
  return {exp_avg = zeros(p), exp_avg_sq = zeros(p), max_exp_avg_sq = group.amsgrad and zeros(p) or nil}
end

--- What the core is told of one step of a group's parameters.
function Adam:arguments(group, params, states, count)
  if group.amsgrad and not states[1].max_exp_avg_sq then
    for i, p in ipairs(params) do states[i].max_exp_avg_sq = zeros(p) end
  end
  return {
    kind = "adam", params = params, state0 = Optimizer.column(states, "exp_avg"),
    state1 = Optimizer.column(states, "exp_avg_sq"),
    state2 = group.amsgrad and Optimizer.column(states, "max_exp_avg_sq") or nil,
    lr = group.lr, beta1 = group.betas[1], beta2 = group.betas[2], eps = group.eps, step = count,
    weight_decay = group.weight_decay, amsgrad = group.amsgrad, maximize = group.maximize, decoupled = self.decoupled,
  }
end

return {Adam = Adam, AdamW = AdamW}

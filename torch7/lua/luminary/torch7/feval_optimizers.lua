--- Implements Torch7's functional optimizers: `x, losses = optim.sgd(feval, x [, config [, state]])` changes x, one
--- tensor, in place. feval(x) returns a loss and its gradient, a tensor like x. `config` has Torch7's options, with its
--- names and defaults, and is read again at each call; `state`, by default config itself, keeps values between steps.
--- The second result is a list of losses: the loss before the step, for lbfgs that of each evaluation. Formulas are
--- those of the Torch7 package optim.
local core = require "luminary.core"
local lists = require "luminary.base.lists"
local options = require "luminary.base.options"
local signature = require "luminary.base.signature"
local LBFGS = require "luminary.optim.lbfgs"
local fail, ops = options.fail, core.ops

local known = {} -- function's name -> its options and fields of the state
local torch7 = setmetatable({}, {options = known})

-- The state's fields and their types: a config that is also the state may have them besides options.
local kept = {evalCounter = {"natural"}, t = {"natural"}, v = {"tensor"}, m = {"tensor"}, dfdx = {"tensor"},
  paramVariance = {"tensor"}, lbfgs = {"table"}, u = {"tensor"}, accDelta = {"tensor"}, delta = {"tensor"},
  step = {"tensor"}, eta_t = {"number"}, mu_t = {"number"}, ax = {"tensor"}}

local function evaluate(who, feval, x)
  local loss, grad = core.enable_grad(feval, x)
  local number = core.is_tensor(loss) and loss:numel() == 1 and loss:item() or loss
  options.arg(who, "the loss of feval", number, "number")
  if not core.is_tensor(grad) or table.concat(grad.shape, ",") ~= table.concat(x.shape, ",") then
    fail("%s: feval must return a loss and a gradient of the shape of x, %s; the gradient is %s", who,
      options.describe(x), options.describe(grad))
  end
  return number, grad:detach()
end

-- The classes of luminary.optim for each function's name, for messages.
local classes = {
  sgd = "SGD", adam = "Adam", adagrad = "Adagrad", rmsprop = "RMSprop", adamax = "Adamax", adadelta = "Adadelta",
  nag = "SGD", rprop = "Rprop", asgd = "ASGD", lbfgs = "LBFGS",
}

-- Defines an optimizer function, which minimizes by `method`. items: the options of its config as in a signature.
-- update(x, options, state, evaluate) changes x and returns the losses and any further result; evaluate() returns the
-- loss and the gradient, with weightDecay's.
local function define(who, method, items, update)
  local text, spec = ("optim.%s(feval, x, {%s})"):format(who, items), lists.copy(kept)
  for i, row in ipairs(signature.parse(text).rows) do
    if i > 2 then spec[row[1]] = {row[2], row[3]} end
  end
  spec.learningRateDecay = spec.learningRateDecay or {"positive", 0}
  known[who] = spec
  torch7[who] = function(feval, x, config, state)
    if type(feval) ~= "function" then
      options.must_be(who, "feval", "a function", feval, "optim.%s is the class that takes a list of parameters",
        classes[who])
    end
    options.arg(who, "x", x, "tensor")
    config = config or state or {}
    local checked = options.check(who, config, spec, "learningRate")
    state = state and options.arg(who, "state", state, "table") or config
    for key, row in pairs(kept) do
      if state[key] ~= nil then options.arg(who, "the state's " .. key, state[key], row[1]) end
    end
    return x, core.no_grad(function()
      return update(x:detach(), checked, state, function()
        local loss, grad = evaluate(who, feval, x)
        if (checked.weightDecay or 0) ~= 0 then grad = ops.add(grad, x:detach(), {alpha = checked.weightDecay}) end
        return loss, grad
      end)
    end)
  end
  signature.texts[torch7[who]] = ("optim.%s(feval, x [, {%s} [, state]]): %s, as Torch7's function."):format(who,
    signature.parse(text):call(3):match "^%[{(.*)}%]$", method)
end

-- Defines an optimizer whose step needs one gradient: step(x, gradient, options, state).
local function define_step(who, method, items, step)
  define(who, "Updates x by a step of " .. method, items, function(x, o, state, feval)
    local loss, grad = feval()
    return {loss}, step(x, grad, o, state)
  end)
end

local function decayed(o, count) return o.learningRate / (1 + count * o.learningRateDecay) end

-- Returns the learning rate of this evaluation, and counts it.
local function counted_rate(o, state)
  local count = state.evalCounter or 0
  state.evalCounter = count + 1
  return decayed(o, count)
end

-- Returns a tensor of the state, filled with `value` on first use.
local function held(state, name, x, value)
  if state[name] == nil then state[name] = core.keep(ops.full_like(x, value or 0)) end
  return state[name]
end

-- Returns the gradient times an option that has a number for each of its elements; the gradient without the option.
local function weighted(grad, numbers)
  return numbers and ops.mul(grad, numbers:to(grad.dtype):reshape(grad.shape)) or grad
end

define_step("sgd", "stochastic gradient descent", [[learningRate = 1e-3, learningRateDecay: positive = 0,
  weightDecay: positive = 0, momentum: positive = 0, dampening: number = (momentum),
  nesterov = false, learningRates: tensor?, weightDecays: tensor?]], function(x, grad, o, state)
  if o.nesterov and (o.momentum == 0 or (o.dampening or o.momentum) ~= 0) then
    fail("sgd: nesterov requires momentum above 0 and dampening = 0")
  end
  if o.weightDecays and o.weightDecay == 0 then grad = ops.add(grad, weighted(x, o.weightDecays)) end
  if o.momentum ~= 0 then
    if state.dfdx then
      state.dfdx:mul_(o.momentum):add_(grad, {alpha = 1 - (o.dampening or o.momentum)})
    else
      state.dfdx = core.keep(grad:clone())
    end
    grad = o.nesterov and ops.add(grad, state.dfdx, {alpha = o.momentum}) or state.dfdx
  end
  x:add_(weighted(grad, o.learningRates), {alpha = -counted_rate(o, state)})
end)

define_step("adam", "Adam", [[learningRate = 1e-3, learningRateDecay: positive = 0, beta1 = 0.9, beta2 = 0.999,
  epsilon = 1e-8, weightDecay: positive = 0]], function(x, grad, o, state)
  local m, v = held(state, "m", x), held(state, "v", x)
  local rate = decayed(o, state.t or 0)
  state.t = (state.t or 0) + 1
  m:mul_(o.beta1):add_(grad, {alpha = 1 - o.beta1})
  v:mul_(o.beta2):add_(ops.square(grad), {alpha = 1 - o.beta2})
  local size = rate * math.sqrt(1 - o.beta2 ^ state.t) / (1 - o.beta1 ^ state.t)
  x:add_(ops.div(m, ops.sqrt(v):add_(o.epsilon)), {alpha = -size})
end)

define_step("adagrad", "Adagrad", [[learningRate = 1e-3, learningRateDecay: positive = 0,
  weightDecay: positive = 0]], function(x, grad, o, state)
  local sum = held(state, "paramVariance", x)
  sum:add_(ops.square(grad))
  x:add_(ops.div(grad, ops.sqrt(sum):add_(1e-10)), {alpha = -counted_rate(o, state)})
end)

define_step("rmsprop", "RMSprop", [[learningRate = 1e-2, alpha = 0.99, epsilon = 1e-8, initialMean = 0,
  weightDecay: positive = 0]], function(x, grad, o, state)
  local mean = held(state, "m", x, o.initialMean)
  mean:mul_(o.alpha):add_(ops.square(grad), {alpha = 1 - o.alpha})
  x:add_(ops.div(grad, ops.sqrt(mean):add_(o.epsilon)), {alpha = -o.learningRate})
end)

define_step("adamax", "Adamax", [[learningRate = 2e-3, beta1 = 0.9, beta2 = 0.999, epsilon = 1e-38,
  weightDecay: positive = 0]], function(x, grad, o, state)
  local m, u = held(state, "m", x), held(state, "u", x)
  state.t = (state.t or 0) + 1
  m:mul_(o.beta1):add_(grad, {alpha = 1 - o.beta1})
  u:copy_(ops.maximum(ops.mul(u, o.beta2), ops.add(ops.abs(grad), o.epsilon)))
  x:add_(ops.div(m, u), {alpha = -o.learningRate / (1 - o.beta1 ^ state.t)})
end)

define_step("adadelta", "Adadelta", "rho = 0.9, eps = 1e-6, weightDecay: positive = 0", function(x, grad, o, state)
  local mean, steps = held(state, "paramVariance", x), held(state, "accDelta", x)
  mean:mul_(o.rho):add_(ops.square(grad), {alpha = 1 - o.rho})
  local step = ops.mul(ops.sqrt(ops.div(ops.add(steps, o.eps), ops.add(mean, o.eps))), grad)
  x:sub_(step)
  steps:mul_(o.rho):add_(ops.square(step), {alpha = 1 - o.rho})
  state.evalCounter = (state.evalCounter or 0) + 1
end)

define("nag", "Updates x by a step of Nesterov's accelerated gradient", [[learningRate = 1e-3,
  learningRateDecay: positive = 0, momentum: positive = 0.9, weightDecay: positive = 0,
  learningRates: tensor?]], function(x, o, state, feval)
  if o.momentum == 0 then options.must_be("nag", "momentum", "above 0", o.momentum) end
  local velocity = held(state, "dfdx", x)
  velocity:mul_(o.momentum)
  x:add_(velocity)
  local loss, grad = feval()
  grad = weighted(grad, o.learningRates)
  local rate = counted_rate(o, state)
  x:add_(grad, {alpha = -rate})
  velocity:add_(grad, {alpha = -rate})
  return {loss}
end)

define("rprop", "Updates x by a step of resilient backpropagation", [[stepsize = 0.1, etaplus = 1.2, etaminus = 0.5,
  stepsizemax = 50, stepsizemin = 1e-6, niter: count = 1]], function(x, o, state, feval)
  local losses, before, step = {}, held(state, "delta", x), held(state, "step", x, o.stepsize)
  for i = 1, o.niter do
    local loss, grad = feval()
    local sign = ops.mul(grad, before)
    local sign_changed = ops.lt(sign, 0)
    step:mul_(ops.add(ops.mul(ops.gt(sign, 0):to(x.dtype), o.etaplus - 1), 1))
    step:mul_(ops.add(ops.mul(sign_changed:to(x.dtype), o.etaminus - 1), 1))
    step:copy_(ops.clamp_range(step, o.stepsizemin, o.stepsizemax))
    before:copy_(ops.masked_fill(grad, sign_changed, 0))
    x:sub_(ops.mul(ops.sign(before), step))
    losses[i] = loss
  end
  return losses
end)

define_step("asgd", "averaged stochastic gradient descent", [[eta0 = 1e-4, lambda = 1e-4, alpha = 0.75,
  t0 = 1e6]], function(x, grad, o, state)
  local eta = state.eta_t or o.eta0
  x:mul_(1 - o.lambda * eta):add_(grad, {alpha = -eta})
  state.ax = state.ax or core.keep(ops.clone(x))
  state.ax:add_(ops.sub(x, state.ax), {alpha = state.mu_t or 1})
  state.t = (state.t or 0) + 1
  state.eta_t = o.eta0 / (1 + o.lambda * o.eta0 * state.t) ^ o.alpha
  state.mu_t = 1 / math.max(1, state.t - o.t0)
  return state.ax
end)

--- optim.checkgrad(feval, x [, eps = 1e-7]): Compares a gradient with central differences.
function torch7.checkgrad(feval, x, eps)
  options.arg("checkgrad", "feval", feval, "function")
  options.arg("checkgrad", "x", x, "tensor")
  local _, grad = evaluate("checkgrad", feval, x)
  local values, flat = {}, core.no_grad(function() return x:detach():view {-1} end)
  eps, grad = eps or 1e-7, grad:clone()
  for i = 1, flat:numel() do
    local before = flat[i]
    flat[i] = before + eps
    local up = evaluate("checkgrad", feval, x)
    flat[i] = before - eps
    values[i] = (up - evaluate("checkgrad", feval, x)) / (2 * eps)
    flat[i] = before
  end
  local estimate = core.tensor(values, {dtype = x.dtype}):view(x.shape)
  return ops.norm(ops.sub(grad, estimate)):item() / ops.norm(ops.add(grad, estimate)):item(), grad, estimate
end

define("lbfgs", "Minimizes by limited-memory BFGS", [[maxIter: count = 20, maxEval: number = (1.25 * maxIter),
  tolFun: positive = 1e-5, tolX: positive = 1e-9, nCorrection: count = 100, learningRate = 1,
  lineSearch: function = (optim.lswolfe)]], function(x, o, state, feval)
  if o.lineSearch and o.lineSearch ~= torch7.lswolfe then
    options.must_be("lbfgs", "lineSearch", "optim.lswolfe or nil", o.lineSearch)
  end
  local optimizer = LBFGS({x})
  state.lbfgs = state.lbfgs or {func_evals = 0, n_iter = 0}
  if state.lbfgs.d and state.lbfgs.d:numel() ~= x:numel() then
    fail("lbfgs: the state has %d elements, x has %d", state.lbfgs.d:numel(), x:numel())
  end
  optimizer.state[x] = state.lbfgs
  local group = optimizer.param_groups[1]
  group.lr, group.max_iter, group.max_eval = o.learningRate, o.maxIter, o.maxEval or o.maxIter * 1.25
  group.tolerance_grad, group.tolerance_change, group.history_size = o.tolFun, o.tolX, o.nCorrection
  group.line_search_fn = o.lineSearch and "strong_wolfe"
  local losses = {}
  optimizer:step(function()
    local loss, grad = feval()
    losses[#losses + 1] = loss
    group.params[1].grad = grad:clone()
    return loss
  end)
  return losses
end)

--- optim.lswolfe: Names the line search of optim.lbfgs.
function torch7.lswolfe(...) -- luacheck: ignore
  fail("lswolfe: pass it as an option: optim.lbfgs(feval, x, {lineSearch = optim.lswolfe})")
end

return torch7

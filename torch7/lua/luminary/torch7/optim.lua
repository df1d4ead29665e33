--- Defines Torch7's optim: wraps luminary's functions for Torch7's tensors (x, the gradients and the state are such
--- tensors), and implements optim.cg, conjugate gradients, and optim.cmaes and optim.de, two searches that use only the
--- values of feval.
local options = require "luminary.base.options"
local core = require "luminary.core"
local lists = require "luminary.base.lists"
local class = require "luminary.torch7.class"
local known_options = getmetatable(require "luminary.torch7.feval_optimizers").options
local ours = require "luminary.optim"
local strong_wolfe = require "luminary.optim.strong_wolfe"
local tensor = require "luminary.torch7.tensor"

local optim, ops = class.packages.optim, core.ops

-- Converts the tensors of a state in place, also those in its tables: by raw before a step and by wrap after it.
local function converted(state, wanted, f)
  for key, v in pairs(state) do
    if wanted(v) then
      state[key] = f(v)
    elseif type(v) == "table" and getmetatable(v) == nil then
      converted(v, wanted, f)
    end
  end
end

for name, known in pairs(known_options) do
  --- optim.name(feval, x [, config [, state]]): Does as luminary's function; unknown options are ignored. The state
  --- has tensors of Torch7.
  optim[name] = function(feval, x, config, state)
    options.arg(name, "feval", feval, "function")
    config = config or state or {}
    state = state or config
    local own, given, evaluations, has_others = {}, {}, 0, false
    for key, v in pairs(config) do
      if known[key] then own[key] = tensor.raw_all(v) end
      if key:find "^tol" and type(v) == "number" then own[key] = math.max(v, 0) end -- below 0: never
    end
    local function evaluate()
      local loss, grad = feval(x)
      evaluations = evaluations + 1
      given[evaluations] = loss
      if name ~= "lbfgs" and type(loss) ~= "number" then loss, has_others = 0, true end -- nothing computes with it
      loss, grad = tensor.raw_all(loss), tensor.raw_all(grad)
      local sizes = tensor.raw(x).shape
      return loss, core.is_tensor(grad) and grad:numel() == lists.product(sizes) and grad:reshape(sizes) or grad
    end
    converted(state, tensor.is, tensor.raw)
    local ok, _, losses, average = pcall(ours[name], evaluate, tensor.raw(x, name), own, state)
    converted(state, core.is_tensor, tensor.wrap)
    if not ok then error(_, 0) end
    for i = 1, has_others and #losses or 0 do losses[i] = given[i] end
    if name == "lbfgs" then
      state.nIter, state.funcEval = state.lbfgs.n_iter, state.lbfgs.func_evals
      return x, losses, #losses
    end
    return x, losses, average and tensor.wrap(average) or nil
  end
end
optim.lswolfe = ours.lswolfe
--- difference, gradient, estimate = optim.checkgrad(feval, x [, eps]): Does as luminary's function.
function optim.checkgrad(feval, x, eps)
  local difference, grad, estimate = ours.checkgrad(function()
    local loss, grad = feval(x)
    return tensor.raw_all(loss), tensor.raw_all(grad)
  end, tensor.raw(x, "checkgrad"), eps)
  return difference, tensor.wrap(grad), tensor.wrap(estimate)
end

optim.Logger = ours.Logger

-- ---- searches

-- Returns x as luminary's vector of float64, and evaluate(v), which copies v into x and returns feval's loss and
-- gradient.
local function opened(who, feval, x)
  options.arg(who, "feval", feval, "function")
  local raw = tensor.raw(x, who)
  local function evaluate(v)
    raw:copy_(v:reshape(raw.shape))
    local loss, grad = feval(x)
    return tensor.is(loss) and loss:raw():item() or loss,
      grad and ops.clone(tensor.raw(grad)):to("float64"):reshape {-1}
  end
  return ops.clone(raw):to("float64"):reshape {-1}, evaluate
end

local function dot(a, b) return ops.sum(ops.mul(a, b)):item() end

--- x, losses, evaluations = optim.cg(feval, x [, config [, state]]): Minimizes by conjugate gradients (Polak-Ribière)
--- with a line search by cubic interpolation that satisfies Wolfe's conditions. Options: maxIter = 25, maxEval =
--- 1.25 * maxIter, rho = 0.01, sig = 0.5, red = 1.
function optim.cg(feval, x, config, state)
  config = config or state or {}
  state = state or config
  local v, evaluate = opened("optim.cg", feval, x)
  local max_iter = config.maxIter or 25
  local max_eval, rho, sig = config.maxEval or 1.25 * max_iter, config.rho or 0.01, config.sig or 0.5
  local loss, grad = evaluate(v)
  local losses, evals, direction = {loss}, 1, ops.neg(grad)
  local slope = dot(grad, direction)
  local step = (config.red or 1) / (1 - slope)
  for _ = 1, max_iter do
    if slope == 0 or evals >= max_eval then break end
    local function at(t)
      local point = {t = t, place = ops.add(v, direction, {alpha = t})}
      point.loss, point.grad = evaluate(point.place)
      if point.loss ~= point.loss then point.loss = math.huge end
      point.slope = dot(point.grad, direction)
      return point
    end
    local found, used = strong_wolfe(at, {t = 0, loss = loss, grad = grad, slope = slope}, step, 1e-20,
      math.min(20, max_eval - evals), 1, rho, sig)
    evals = evals + used
    if found.t == 0 then break end
    local factor, old_slope = (dot(found.grad, found.grad) - dot(found.grad, grad)) / dot(grad, grad), slope
    v, loss, grad = found.place, found.loss, found.grad
    losses[#losses + 1] = loss
    direction = ops.sub(ops.mul(direction, math.max(factor, 0)), grad)
    slope = dot(grad, direction)
    if slope >= 0 then
      direction = ops.neg(grad)
      slope = -dot(grad, grad)
    end
    step = found.t * math.min(100, old_slope / (slope - 2 ^ -1074))
  end
  tensor.raw(x):copy_(v:reshape(tensor.raw(x).shape))
  state.funcEval = (state.funcEval or 0) + evals
  return x, losses, evals
end

--- x, losses = optim.de(feval, x [, config [, state]]): Minimizes by differential evolution; feval may return only the
--- loss. Options: popsize = 20, scaleFactor = 0.5, crossoverRate = 0.5, maxFEs = 2000, maxRegion = 10 and minRegion =
--- -10 of the first generation, rand_seed.
function optim.de(feval, x, config, state)
  config = config or state or {}
  local v, evaluate = opened("optim.de", feval, x)
  local n, size, cross = v:numel(), config.popsize or 20, config.crossoverRate or 0.5
  local factor, max = config.scaleFactor or 0.5, config.maxFEs or 2000
  local low, high = config.minRegion or -10, config.maxRegion or 10
  options.arg("optim.de", "popsize", size, "count")
  if size < 4 then options.must_be("optim.de", "popsize", "at least 4", size) end
  if config.rand_seed then core.manual_seed(config.rand_seed) end
  local all, losses, values, best = {}, {}, {}, 1
  local function note(loss)
    losses[#losses + 1] = math.min(loss, losses[#losses] or loss)
    return loss
  end
  for i = 1, size do
    all[i] = i == 1 and v or ops.rand({n}, {dtype = "float64"}):mul_(high - low):add_(low)
    values[i] = note((evaluate(all[i])))
    if values[i] < values[best] then best = i end
  end
  while #losses < max do
    for i = 1, size do
      if #losses >= max then break end
      local order = {}
      for _, k in ipairs(ops.randperm(size):totable()) do if k ~= i then order[#order + 1] = k end end
      local mutant = ops.add(all[order[1]], ops.sub(all[order[2]], all[order[3]]), {alpha = factor})
      local mask = ops.lt(ops.rand({n}, {dtype = "float64"}), cross)
      mask[ops.randperm(n)[1]] = true
      local trial = ops.where(mask, mutant, all[i])
      local loss = note((evaluate(trial)))
      if loss < values[i] then all[i], values[i] = trial, loss end
      if values[i] < values[best] then best = i end
    end
  end
  tensor.raw(x):copy_(all[best]:reshape(tensor.raw(x).shape))
  return x, losses
end

--- x, losses, evaluations = optim.cmaes(feval, x [, config [, state]]): Minimizes by CMA-ES, which adapts the
--- covariance of a normal distribution (Hansen, The CMA Evolution Strategy: A Tutorial, arXiv:1604.00772). feval may
--- return only the loss. Options: sigma = 0.5, the first step size; maxEval = 1e3 * n^2; ftarget = -inf; popsize =
--- 4 + floor(3 * log(n)).
function optim.cmaes(feval, x, config, state)
  config = config or state or {}
  local mean, evaluate = opened("optim.cmaes", feval, x)
  local n = mean:numel()
  local sigma, max, target = config.sigma or 0.5, config.maxEval or 1e3 * n * n, config.ftarget or -math.huge
  local size = config.popsize or 4 + math.floor(3 * math.log(n))
  local parents, how = math.floor(size / 2), {dtype = "float64"}
  local weights = ops.add(ops.neg(ops.log(ops.arange(1, parents + 1, how))), math.log((size + 1) / 2))
  weights = ops.div(weights, ops.sum(weights))
  local mass = 1 / dot(weights, weights)
  local c_path, c_sigma = (4 + mass / n) / (n + 4 + 2 * mass / n), (mass + 2) / (n + mass + 5)
  local c_one = 2 / ((n + 1.3) ^ 2 + mass)
  local c_rank = math.min(1 - c_one, 2 * (mass - 2 + 1 / mass) / ((n + 2) ^ 2 + mass))
  local damping = 1 + 2 * math.max(0, math.sqrt((mass - 1) / (n + 1)) - 1) + c_sigma
  local expected = math.sqrt(n) * (1 - 1 / (4 * n) + 1 / (21 * n * n))
  local covariance, basis, scales = ops.eye(n, how), ops.eye(n, how), ops.ones({n}, how)
  local path, path_sigma = ops.zeros({n}, how), ops.zeros({n}, how)
  local losses, evals, generation, best, best_loss = {}, 0, 0, mean, math.huge
  while evals < max and best_loss > target do
    generation = generation + 1
    local steps, found = ops.matmul(ops.mul(ops.randn({size, n}, how), scales), ops.t(basis)), {}
    for i = 1, size do
      local place = ops.add(mean, ops.select(steps, 1, i), {alpha = sigma})
      found[i] = evaluate(place)
      if found[i] < best_loss then best, best_loss = place, found[i] end
    end
    evals = evals + size
    local sorted, order = ops.sort(core.tensor(found, how))
    losses[#losses + 1] = sorted[1]
    steps = ops.index_select(steps, 1, ops.narrow(order, 1, 1, parents))
    local move, rank = ops.matmul(weights, steps), ops.matmul(ops.mul(ops.t(steps), weights), steps)
    mean = ops.add(mean, move, {alpha = sigma})
    local whitened = ops.matmul(basis, ops.div(ops.matmul(ops.t(basis), move), scales))
    path_sigma:mul_(1 - c_sigma):add_(whitened, {alpha = math.sqrt(c_sigma * (2 - c_sigma) * mass)})
    local length = math.sqrt(dot(path_sigma, path_sigma))
    local steady = length / math.sqrt(1 - (1 - c_sigma) ^ (2 * generation)) / expected < 1.4 + 2 / (n + 1)
    path:mul_(1 - c_path)
    if steady then path:add_(move, {alpha = math.sqrt(c_path * (2 - c_path) * mass)}) end
    covariance:mul_(1 - c_one - c_rank + (steady and 0 or c_one * c_path * (2 - c_path)))
    covariance:add_(ops.mul(ops.unsqueeze(path, 2), ops.unsqueeze(path, 1)), {alpha = c_one})
    covariance:add_(rank, {alpha = c_rank})
    sigma = sigma * math.exp(c_sigma / damping * (length / expected - 1))
    if sigma ~= sigma or sigma < 1e-300 then break end
    local values, vectors = ops.linalg_eigh(covariance)
    scales, basis = ops.sqrt(ops.clamp(values, 1e-300)), vectors
    if scales:max():item() * sigma < 1e-12 then break end
  end
  tensor.raw(x):copy_(best:reshape(tensor.raw(x).shape))
  return x, losses, evals
end

return optim

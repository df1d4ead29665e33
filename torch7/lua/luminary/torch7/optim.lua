--- Wraps luminary's optim functions for Torch7's tensors: x, the gradients and the state are such tensors.
local options = require "luminary.base.options"
local core = require "luminary.core"
local lists = require "luminary.base.lists"
local class = require "luminary.torch7.class"
local known_options = getmetatable(require "luminary.torch7.feval_optimizers").options
local ours = require "luminary.optim"
local tensor = require "luminary.torch7.tensor"

local optim = class.packages.optim

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

for _, name in ipairs {
  "sgd", "adam", "adamax", "adagrad", "adadelta", "rmsprop", "rprop", "nag", "asgd", "lbfgs",
} do
  --- optim.name(feval, x [, config [, state]]): Does as luminary's function; unknown options are ignored. The state
  --- has tensors of Torch7.
  optim[name] = function(feval, x, config, state)
    options.arg(name, "feval", feval, "function")
    config = config or state or {}
    state = state or config
    local own, known = {}, known_options[name]
    for key, v in pairs(config) do
      if known[key] then own[key] = tensor.raw_all(v) end
      if key:find "^tol" and type(v) == "number" then own[key] = math.max(v, 0) end -- below 0: never
    end
    local function evaluate()
      local loss, grad = feval(x)
      loss, grad = tensor.raw_all(loss), tensor.raw_all(grad)
      local sizes = tensor.raw(x).shape
      return loss, core.is_tensor(grad) and grad:numel() == lists.product(sizes) and grad:reshape(sizes) or grad
    end
    converted(state, tensor.is, tensor.raw)
    local ok, _, losses, average = pcall(ours[name], evaluate, tensor.raw(x, name), own, state)
    converted(state, core.is_tensor, tensor.wrap)
    if not ok then error(_, 0) end
    if name == "lbfgs" then
      state.nIter, state.funcEval = state.lbfgs.n_iter, state.lbfgs.func_evals
      return x, losses, #losses
    end
    return x, losses, average and tensor.wrap(average) or nil
  end
end
for name, f in pairs(require "luminary.torch7.search_optimizers") do optim[name] = f end
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

return optim

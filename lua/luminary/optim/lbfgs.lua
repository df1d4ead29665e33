--- optim.LBFGS(…): Implements the L-BFGS algorithm, limited-memory BFGS. Nocedal and Wright, Numerical Optimization,
--- 2nd ed., algorithm 7.4.
local core = require "luminary.core"
local class = require "luminary.base.class"
local lists = require "luminary.base.lists"
local options = require "luminary.base.options"
local Optimizer = require "luminary.optim.optimizer"
local strong_wolfe = require "luminary.optim.strong_wolfe"
local joined = require "luminary.tensor.joined"
local fail, ops = options.fail, core.ops
local abs, min = math.abs, math.min

local LBFGS = class.define("LBFGS", Optimizer)

Optimizer.declare(LBFGS, [[{lr: positive = 1, max_iter: count = 20, max_eval: count, tolerance_grad: positive = 1e-7,
  tolerance_change: positive = 1e-9, history_size: count = 100, line_search_fn: "strong_wolfe"|false,
  maximize = false}]])

--- Sets the default of max_eval.
function LBFGS.check_group(_self, group)
  group.max_eval = group.max_eval or math.floor(group.max_iter * 5 / 4)
end

-- Fails if ranks divide these parameters, whose dot products a step takes.
local function refuse_parts(params)
  local placement = package.loaded["luminary.nn.parallel.placement"]
  if placement then placement.refuse_parts("LBFGS", params, true) end
end

function LBFGS:add_param_group(given)
  if self.param_groups[1] then fail("LBFGS: only one parameter group is supported") end
  Optimizer.add_param_group(self, given)
  local params = self.param_groups[1].params
  refuse_parts(params)
  for i, p in ipairs(params) do
    if p.device ~= params[1].device or p.dtype ~= params[1].dtype then
      fail("LBFGS: all parameters must have the same dtype and device: parameter 1 is %s on %s, parameter %d is %s on "
        .. "%s", params[1].dtype, params[1].device, i, p.dtype, p.device)
    end
  end
end

-- ---- all parameters as one vector

local function values_of(params) return joined.vector(lists.map(params, function(p) return p:detach() end)) end

local function gradient_of(params, sign)
  local grads = lists.map(params, function(p) return p.grad or ops.zeros_like(p:detach()) end)
  return joined.vector(grads):mul_(sign)
end

local function dot(a, b) return (ops.matmul(a, b):item()) end
local function largest(v) return ops.abs(v):max():item() end

-- ---- steps

-- Returns minus the product of the approximate inverse Hessian and the gradient, by the two-loop recursion.
local function direction(state, grad)
  local d, weights = grad:neg(), {}
  for i = #state.old_dirs, 1, -1 do
    weights[i] = dot(state.old_stps[i], d) * state.ro[i]
    d:add_(state.old_dirs[i], {alpha = -weights[i]})
  end
  d:mul_(state.H_diag)
  for i = 1, #state.old_dirs do
    local weight = dot(state.old_dirs[i], d) * state.ro[i]
    d:add_(state.old_stps[i], {alpha = weights[i] - weight})
  end
  return d
end

-- Adds the last step and the change of the gradient to the history.
local function remember(state, grad, most)
  local change, step = grad - state.prev_flat_grad, state.d * state.t
  local curvature = dot(change, step)
  if curvature <= 1e-10 or curvature ~= curvature then return end
  if #state.old_dirs == most then
    for _, name in ipairs {"old_dirs", "old_stps", "ro"} do table.remove(state[name], 1) end
  end
  table.insert(state.old_dirs, core.keep(change))
  table.insert(state.old_stps, core.keep(step))
  table.insert(state.ro, 1 / curvature)
  state.H_diag = curvature / dot(change, change)
end

local function iterate(self, closure, state)
  local group = self.param_groups[1]
  local params, sign = group.params, group.maximize and -1 or 1
  local function evaluate()
    local result = core.enable_grad(closure)
    local loss = core.is_tensor(result) and result:item() or result
    options.arg("LBFGS:step", "the loss of closure", loss, "number")
    return sign * loss, gradient_of(params, sign), result
  end

  local loss, grad, first = evaluate()
  state.func_evals = state.func_evals + 1
  local evaluations = 1
  if largest(grad) <= group.tolerance_grad then return first end
  for n = 1, group.max_iter do
    state.n_iter = state.n_iter + 1
    if state.n_iter == 1 then
      state.old_dirs, state.old_stps, state.ro, state.H_diag = {}, {}, {}, 1
    else
      remember(state, grad, group.history_size)
    end
    state.d = core.keep(direction(state, grad))
    state.prev_flat_grad, state.prev_loss = core.keep(grad), loss
    state.t = (state.n_iter == 1 and min(1, 1 / ops.abs(grad):sum():item()) or 1) * group.lr
    local slope = dot(grad, state.d)
    if slope > -group.tolerance_change then break end

    local start, used = {t = 0, loss = loss, grad = grad, slope = slope}, 0
    if group.line_search_fn then
      local origin = values_of(params)
      local function move_params(t)
        local moved = ops.add(origin, state.d, {alpha = t})
        for i, part in ipairs(joined.parts(moved, params)) do params[i]:copy_(part) end
      end
      local function at(t)
        move_params(t)
        local p = {t = t}
        p.loss, p.grad = evaluate()
        p.slope = dot(p.grad, state.d)
        return p
      end
      local found
      found, used = strong_wolfe(at, start, state.t, 1e-9, group.max_eval - evaluations, largest(state.d), 1e-4, 0.9)
      move_params(found.t)
      loss, grad, state.t = found.loss, found.grad, found.t
    else
      for i, part in ipairs(joined.parts(state.d, params)) do params[i]:add_(part, {alpha = state.t}) end
      if n < group.max_iter then -- the last one's loss would be unused
        loss, grad = evaluate()
        used = 1
      end
    end
    evaluations, state.func_evals = evaluations + used, state.func_evals + used
    if evaluations >= group.max_eval or largest(grad) <= group.tolerance_grad
      or largest(state.d) * abs(state.t) <= group.tolerance_change
      or abs(loss - state.prev_loss) < group.tolerance_change then
      break
    end
  end
  return first
end

-- ---- checkpoints: PyTorch's state, that of the first parameter: vectors of all elements, lists and numbers

-- The fields of a state, by kind. PyTorch also has al, scratch memory whose contents no step reuses.
local counts, vectors, numbers = {"func_evals", "n_iter"}, {"d", "prev_flat_grad"}, {"t", "H_diag", "prev_loss"}
local histories = {"old_dirs", "old_stps", "ro"}

--- Converts a state of PyTorch's or ours: vectors become this optimizer's own, tensors of one element become numbers.
function LBFGS:adopt_state(p, state, _mine, refuse)
  local total = lists.sum(self.param_groups[1].params, core.methods.numel)
  local function adopt(key, value)
    if options.is_plain(value) then return lists.map(value, function(v) return adopt(key, v) end) end
    if not core.is_tensor(value) then return value end
    if value.ndim == 0 then return value:item() end
    if value.ndim ~= 1 or value:numel() ~= total then refuse(key, value) end
    return core.keep(ops.clone(value:detach():to(p.device, p.dtype)))
  end
  local own = {}
  for _, keys in ipairs {counts, vectors, numbers, histories} do
    for _, key in ipairs(keys) do own[key] = adopt(key, state[key]) end
  end
  return own
end

--- Returns the problem of a state that load_state_dict took over, as text; nil if there is none.
function LBFGS:check_state(state) -- luacheck: no self
  -- Returns the problem of the first field that does not fit.
  local function problem_of(keys, bound, fits)
    for _, key in ipairs(keys) do
      if not fits(state[key]) then return ("%s must be %s, got %s"):format(key, bound, options.describe(state[key])) end
    end
  end
  local function is_number(v) return type(v) == "number" end
  local function is_like_others(v) return options.is_plain(v) and #v == #state.old_dirs end
  local problem = problem_of(counts, "an integer of at least 0", function(v) return options.is("natural", v) end)
  if problem or state.n_iter == 0 then return problem end
  problem = problem_of(vectors, "a tensor", core.is_tensor) or problem_of(numbers, "a number", is_number)
    or problem_of(histories, "a list like the others", is_like_others)
  if problem then return problem end
  for _, key in ipairs(histories) do
    local fits = key == "ro" and is_number or core.is_tensor
    for _, v in ipairs(state[key]) do
      if not fits(v) then return ("%s holds %s"):format(key, options.describe(v)) end
    end
  end
end

--- Performs one step of up to max_iter iterations. closure() clears the gradients, computes the loss, calls backward
--- and returns the loss. Returns the closure's first result.
function LBFGS:step(closure)
  options.arg("LBFGS:step", "closure", closure, "function")
  local p = self.param_groups[1].params[1]
  refuse_parts(self.param_groups[1].params)
  self.state[p] = self.state[p] or {func_evals = 0, n_iter = 0}
  return self:hooked(function() return core.no_grad(iterate, self, closure, self.state[p]) end, closure)
end

return LBFGS

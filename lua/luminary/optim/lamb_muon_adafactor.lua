--- Defines optimizers whose steps treat a parameter as a whole, by its norm or as a matrix: LAMB, Muon and Adafactor.
--- Their steps are tensor ops that never synchronize with a device, in float32 for half precision.
local core = require "luminary.core"
local class = require "luminary.base.class"
local options = require "luminary.base.options"
local Optimizer = require "luminary.optim.optimizer"
local fail, ops = options.fail, core.ops

local function is_half(t) return t.dtype == "float16" or t.dtype == "bfloat16" end
local function wide(t) return is_half(t) and t:float() or t end

-- Runs `update` on tensors that it changes in place; for half-precision tensors, on float32 copies.
local function run_in_float32(tensors, update)
  local full = {}
  for i, t in ipairs(tensors) do full[i] = wide(t) end
  update(unpack(full))
  for i, t in ipairs(tensors) do
    if is_half(t) then t:copy_(full[i]) end
  end
end

-- ---- the base class

local Whole = class.define("Whole", Optimizer)

--- Returns the sizes of a parameter's states by name: the parameter's sizes, unless a class overrides this.
function Whole:shapes(p)
  local shapes = {}
  for _, name in ipairs(self.states) do shapes[name] = p.shape end
  return shapes
end

function Whole:state_shape(p, key) return self:shapes(p)[key] end

--- Returns true if a group's steps depend on the step number, which a captured graph would repeat.
function Whole.by_number(_self, _group) return true end

-- Fails if replays of a captured step would differ from steps.
local function check_capture(self, group, states)
  if self:by_number(group) then
    fail("%s: step() depends on the step count and cannot be captured; call opt:step() outside the graph", self.__name)
  end
  for _, state in ipairs(states) do
    if not next(state) then
      fail("%s: the first step() cannot be captured; call step() once before the capture", self.__name)
    end
  end
end

function Whole:advance(group, params, states, count)
  local placement = package.loaded["luminary.nn.parallel.placement"]
  if placement then placement.refuse_parts(self.__name, params) end
  if core.graph_is_capturing() then check_capture(self, group, states) end
  for i, p in ipairs(params) do
    local state, g = states[i], wide(p.grad)
    p = p:detach()
    for name, shape in pairs(self:shapes(p)) do
      local how = {dtype = self.state_dtype(p), device = p.device}
      state[name] = state[name] or shape == p.shape and ops.zeros_like(p, how) or ops.zeros(shape, how)
    end
    self:step_one(group, p, group.maximize and g:neg() or g, state, count)
  end
end

-- Returns true if the state exists; one that another rank holds is false here (see Optimizer:adopt_state).
local function is_there(state, name) return core.is_tensor(state[name]) or state[name] == false end

function Whole:check_state(state)
  for _, name in ipairs(self.states) do
    if not is_there(state, name) then return name .. " is missing" end
  end
  return Optimizer.check_state(self, state)
end

-- ---- LAMB

--- optim.LAMB(…): Implements the LAMB algorithm, layerwise adaptive moments for large batches. You et al., "Large Batch
--- Optimization for Deep Learning: Training BERT in 76 minutes", 2020, algorithm 2.
local LAMB = class.define("LAMB", Whole)
Optimizer.declare(LAMB, [[{lr: positive = 0.001, betas: two = {0.9, 0.999}, eps: positive = 1e-6,
  weight_decay: positive = 0.01, bias_correction = true, maximize = false}]])
LAMB.states = {"exp_avg", "exp_avg_sq"}

--- Checks the group's options.
function LAMB:check_group(group)
  Whole.check_group(self, group)
  for i, beta in ipairs(group.betas) do
    options.arg("LAMB", ("betas[%d]"):format(i), beta, "below(0, 1)")
  end
end

function LAMB.by_number(_self, group) return group.bias_correction end

-- Returns a / b, and 1 where one of them is 0, for tensors of one element.
local function ratio(a, b) return ops.where(ops.logical_and(a:gt(0), b:gt(0)), a / b, ops.ones_like(a)) end

--- Performs one parameter's step.
function LAMB.step_one(_self, group, p, g, state, count)
  local beta1, beta2 = group.betas[1], group.betas[2]
  local correction1 = group.bias_correction and 1 - beta1 ^ count or 1
  local correction2 = group.bias_correction and 1 - beta2 ^ count or 1
  run_in_float32({p, state.exp_avg, state.exp_avg_sq}, function(x, m, v)
    m:mul_(beta1):add_(g, {alpha = 1 - beta1})
    v:mul_(beta2):add_(g:square(), {alpha = 1 - beta2})
    local step = (m / correction1):div_((v / correction2):sqrt_():add_(group.eps))
    if group.weight_decay ~= 0 then step:add_(x, {alpha = group.weight_decay}) end
    x:sub_(step:mul_(ratio(x:norm(), step:norm())), {alpha = group.lr})
  end)
end

-- ---- Muon

--- optim.Muon(…): Implements the Muon algorithm, momentum with orthogonalized updates, for 2-d parameters. Jordan et
--- al., "Muon: An optimizer for hidden layers in neural networks", 2024.
local Muon = class.define("Muon", Whole)
Optimizer.declare(Muon, [[{lr: positive = 0.001, weight_decay: positive = 0.1, momentum: positive = 0.95,
  nesterov = true, ns_coefficients: table = {3.4445, -4.775, 2.0315}, eps: positive = 1e-7,
  ns_steps: integer(0, 99) = 5, adjust_lr_fn: "original" | "match_rms_adamw" | "spectral_unclamped"}]])
Muon.states = {"momentum_buffer"}
Muon.counts = false

local factors = {
  original = function(n, m) return math.sqrt(math.max(1, n / m)) end,
  match_rms_adamw = function(n, m) return 0.2 * math.sqrt(math.max(n, m)) end,
  spectral_unclamped = function(n, m) return math.sqrt(n / m) end,
}

--- Checks the group's options.
function Muon:check_group(group)
  Whole.check_group(self, group)
  local list = group.ns_coefficients
  if #list ~= 3 then options.must_be("Muon", "ns_coefficients", "a list of three numbers", list) end
  for i = 1, 3 do options.arg("Muon", ("ns_coefficients[%d]"):format(i), list[i], "number") end
end

--- Adds a group of 2-d parameters, {params = list, lr = …}.
function Muon:add_param_group(given)
  for i, p in ipairs(options.is_plain(given) and options.is_plain(given.params) and given.params or {}) do
    if core.is_tensor(p) and p.ndim ~= 2 then
      fail("Muon: parameter %d must be 2-d, got %s; use optim.AdamW for other parameters", i, options.describe(p))
    end
  end
  Whole.add_param_group(self, given)
end

function Muon.by_number() return false end

-- Returns approximately the matrix with t's singular vectors and singular values of 1.
local function orthogonalized(t, group)
  local a, b, c = unpack(group.ns_coefficients)
  local x, tall = t:bfloat16(), t.shape[1] > t.shape[2]
  if tall then x = x:t() end
  x = x / x:norm():clamp_ {min = group.eps}
  for _ = 1, group.ns_steps do
    local gram = ops.mm(x, x:t())
    x = ops.addmm(x, ops.addmm(gram, gram, gram, {beta = b, alpha = c}), x, {beta = a})
  end
  return tall and x:t() or x
end

--- Performs one parameter's step.
function Muon.step_one(_self, group, p, g, state)
  run_in_float32({p, state.momentum_buffer}, function(x, buffer)
    buffer:lerp_(g, 1 - group.momentum)
    local step = orthogonalized(group.nesterov and ops.lerp(g, buffer, group.momentum) or buffer, group)
    local lr = group.lr * factors[group.adjust_lr_fn or "original"](p.shape[1], p.shape[2])
    x:mul_(1 - group.lr * group.weight_decay):sub_(step:to(x.dtype), {alpha = lr})
  end)
end

-- ---- Adafactor

--- optim.Adafactor(…): Implements the Adafactor algorithm, with second moments factored into rows and columns. Shazeer
--- and Stern, "Adafactor: Adaptive Learning Rates with Sublinear Memory Cost", 2018, as PyTorch varies it.
local Adafactor = class.define("Adafactor", Whole)
Optimizer.declare(Adafactor, [[{lr: positive = 0.01, beta2_decay = -0.8, eps: table = {false, 0.001}, d = 1,
  weight_decay: positive = 0, maximize = false}]])

local smallest = {float64 = 2 ^ -52, float32 = 2 ^ -23, float16 = 2 ^ -10, bfloat16 = 2 ^ -7}

--- Checks the group's options.
function Adafactor:check_group(group)
  Whole.check_group(self, group)
  local eps1, eps2 = group.eps[1] or false, group.eps[2]
  if eps1 then options.arg("Adafactor", "eps[1]", eps1, "positive") end
  options.arg("Adafactor", "eps[2]", eps2, "positive")
  group.eps = {eps1, eps2}
  local decays, cuts = group.beta2_decay <= 0, group.d >= 1 -- both are false for NaN
  if not decays then options.must_be("Adafactor", "beta2_decay", "at most 0", group.beta2_decay) end
  if not cuts then options.must_be("Adafactor", "d", "at least 1", group.d) end
end

function Adafactor.shapes(_self, p)
  if p.ndim < 2 then return {variance = p.shape} end
  local row, col = {unpack(p.shape)}, {unpack(p.shape)}
  row[p.ndim], col[p.ndim - 1] = 1, 1
  return {row_var = row, col_var = col}
end

function Adafactor:check_state(state)
  if not is_there(state, "variance") and not (is_there(state, "row_var") and is_there(state, "col_var")) then
    return "variance, or row_var and col_var, is missing"
  end
  return Optimizer.check_state(self, state)
end

local function root_mean_square(t) return t:norm():div_(math.sqrt(t:numel())) end

-- Updates and returns the factored estimate of the second moment, for one matrix or a batch.
local function update_factors(row, col, squares, weight, eps1)
  row:lerp_(squares:mean(-1, {keepdim = true}), weight)
  col:lerp_(squares:mean(-2, {keepdim = true}), weight)
  return (row * col):div_(row:mean(-2, {keepdim = true}):clamp_ {min = eps1})
end

--- Performs one parameter's step.
function Adafactor.step_one(_self, group, p, g, state, count)
  local weight, eps1 = count ^ group.beta2_decay, group.eps[1] or smallest[p.dtype]
  run_in_float32({p, state.variance or state.row_var, state.col_var}, function(x, moment, col)
    local size = root_mean_square(x):clamp_ {min = group.eps[2]}:mul_(math.min(group.lr, 1 / math.sqrt(count)))
    if group.weight_decay ~= 0 then x:mul_(1 - group.lr * group.weight_decay) end
    local estimate
    if col then
      estimate = update_factors(moment, col, g:square(), weight, eps1)
    else
      estimate = moment:lerp_(g:square(), weight):clone()
    end
    local step = estimate:clamp_ {min = eps1 * eps1}:rsqrt_():mul_(g)
    x:sub_(step:mul_(size:div_(root_mean_square(step):div_(group.d):clamp_ {min = 1})))
  end)
end

return {LAMB = LAMB, Muon = Muon, Adafactor = Adafactor}

-- Schedules against PyTorch's over 200 steps (spec/golden/_schedules.safetensors); state, order of calls, errors.
local lm = require "luminary"
local golden = require "spec.support.golden"
local temp = require "spec.support.temp"
local nn, optim = lm.nn, lm.optim
local S = optim.lr_scheduler

local stored, losses
setup(function()
  stored = golden.load("_schedules")
  losses = stored.losses:totable()
end)
teardown(function() stored, losses = nil, nil end)

local STEPS = 200

-- Schedules as in scripts/dev/golden/gen_golden_training.py.
local schedules = {
  step = function(o) return S.StepLR(o, 30) end,
  step_gamma = function(o) return S.StepLR(o, 7, { gamma = 0.9 }) end,
  multistep = function(o) return S.MultiStepLR(o, { 20, 60, 60, 150 }) end,
  multistep_gamma = function(o) return S.MultiStepLR(o, { milestones = { 1, 100 }, gamma = 0.5 }) end,
  constant = function(o) return S.ConstantLR(o) end,
  constant_options = function(o) return S.ConstantLR(o, { factor = 0.25, total_iters = 80 }) end,
  linear = function(o) return S.LinearLR(o) end,
  linear_options = function(o) return S.LinearLR(o, { start_factor = 0.9, end_factor = 0.2, total_iters = 120 }) end,
  exponential = function(o) return S.ExponentialLR(o, 0.97) end,
  polynomial = function(o) return S.PolynomialLR(o) end,
  polynomial_options = function(o) return S.PolynomialLR(o, { total_iters = 150, power = 1.7 }) end,
  lambda = function(o) return S.LambdaLR(o, function(e) return 0.95 ^ e end) end,
  lambda_list = function(o)
    return S.LambdaLR(o, { function(e) return 0.95 ^ e end, function(e) return 1 / (1 + e) end })
  end,
  multiplicative = function(o)
    return S.MultiplicativeLR(o, { lr_lambda = function(e) return e % 2 == 1 and 0.99 or 1.005 end })
  end,
  multiplicative_list = function(o)
    return S.MultiplicativeLR(o, { function() return 0.99 end, function(e) return e > 50 and 0.98 or 1 end })
  end,
  cosine = function(o) return S.CosineAnnealingLR(o, 50) end,
  cosine_min = function(o) return S.CosineAnnealingLR(o, 23, { eta_min = 0.01 }) end,
  restarts = function(o) return S.CosineAnnealingWarmRestarts(o, 20) end,
  restarts_options = function(o) return S.CosineAnnealingWarmRestarts(o, { T_0 = 10, T_mult = 3, eta_min = 0.001 }) end,
  onecycle = function(o) return S.OneCycleLR(o, 0.5, { total_steps = 200 }) end,
  onecycle_epochs = function(o)
    return S.OneCycleLR(o, { 0.5, 0.2 }, { epochs = 25, steps_per_epoch = 8, anneal_strategy = "linear" })
  end,
  onecycle_three = function(o)
    return S.OneCycleLR(o, { max_lr = 0.5, total_steps = 200, three_phase = true, pct_start = 0.4, div_factor = 10,
      final_div_factor = 100 })
  end,
  onecycle_three_linear = function(o)
    return S.OneCycleLR(o, 0.5, { total_steps = 210, three_phase = true, anneal_strategy = "linear",
      base_momentum = { 0.7, 0.8 }, max_momentum = 0.9 })
  end,
  onecycle_still = function(o) return S.OneCycleLR(o, 0.5, { total_steps = 200, cycle_momentum = false }) end,
  cyclic = function(o) return S.CyclicLR(o, 0.01, 0.2, { step_size_up = 25 }) end,
  cyclic_default = function(o) return S.CyclicLR(o, 0.01, 0.2) end,
  cyclic_down = function(o)
    return S.CyclicLR(o, { 0.01, 0.02 }, { 0.2, 0.1 }, { step_size_up = 10, step_size_down = 33,
      base_momentum = { 0.7, 0.6 }, max_momentum = { 0.95, 0.9 } })
  end,
  cyclic_triangular2 = function(o)
    return S.CyclicLR(o, { base_lr = 0.01, max_lr = 0.2, step_size_up = 20, mode = "triangular2" })
  end,
  cyclic_exp = function(o)
    return S.CyclicLR(o, 0.01, 0.2, { step_size_up = 20, mode = "exp_range", gamma = 0.99 })
  end,
  cyclic_fn = function(o)
    return S.CyclicLR(o, 0.01, 0.2, { step_size_up = 20, scale_fn = function(x) return 1 / x end })
  end,
  cyclic_fn_iterations = function(o)
    return S.CyclicLR(o, 0.01, 0.2, { step_size_up = 20, scale_fn = function(x) return 1 / (1 + x) end,
      scale_mode = "iterations", cycle_momentum = false })
  end,
  chained = function(o)
    return S.ChainedScheduler { S.ConstantLR(o, { factor = 0.5, total_iters = 40 }), S.ExponentialLR(o, 0.98) }
  end,
  chained_three = function(o)
    return S.ChainedScheduler({ S.LinearLR(o, { total_iters = 10 }), S.StepLR(o, 50, { gamma = 0.3 }),
      S.MultiplicativeLR(o, function() return 0.999 end) }, { optimizer = o })
  end,
  sequential = function(o)
    return S.SequentialLR(o, { S.LinearLR(o, { start_factor = 0.1, total_iters = 20 }), S.CosineAnnealingLR(o, 180) },
      { 20 })
  end,
  sequential_many = function(o)
    return S.SequentialLR(o, {
      S.ConstantLR(o, { factor = 0.1, total_iters = 10 }), S.ExponentialLR(o, 0.95), S.StepLR(o, 5, { gamma = 0.5 }),
      S.PolynomialLR(o, { total_iters = 30 }), S.MultiStepLR(o, { 3, 9 }),
      S.LambdaLR(o, function(e) return 1 / (1 + e) end), S.CosineAnnealingWarmRestarts(o, 7, { T_mult = 2 }),
      S.LinearLR(o),
    }, { 15, 40, 60, 90, 110, 130, 180 })
  end,
  sequential_restarts = function(o)
    return S.SequentialLR(o, { schedulers = { S.CosineAnnealingWarmRestarts(o, 9), S.ExponentialLR(o, 0.9) },
      milestones = { 50 } })
  end,
  sequential_of_chained = function(o)
    return S.SequentialLR(o, { S.ChainedScheduler { S.LinearLR(o, { total_iters = 10 }), S.StepLR(o, 20) },
      S.ExponentialLR(o, 0.9) }, { 60 })
  end,
  plateau = function(o) return S.ReduceLROnPlateau(o) end,
  plateau_min = function(o)
    return S.ReduceLROnPlateau(o, { factor = 0.5, patience = 3, threshold = 0.05, cooldown = 4,
      min_lr = { 0.001, 0.002 } })
  end,
  plateau_abs = function(o)
    return S.ReduceLROnPlateau(o, { mode = "min", factor = 0.7, patience = 1, threshold = 0.1, threshold_mode = "abs",
      eps = 1e-3 })
  end,
  plateau_max = function(o)
    return S.ReduceLROnPlateau(o, { mode = "max", factor = 0.8, patience = 5, threshold = 0.01, min_lr = 1e-4 })
  end,
  plateau_max_abs = function(o)
    return S.ReduceLROnPlateau(o, { mode = "max", patience = 0, factor = 0.99, threshold_mode = "abs" })
  end,
}
local over_adam = { onecycle_adam = schedules.onecycle, cyclic_adam = schedules.cyclic_down }
local resumed = {
  step = function(o) return S.StepLR(o, 30, { last_epoch = 99 }) end,
  cosine = function(o) return S.CosineAnnealingLR(o, 50, { last_epoch = 99 }) end,
  linear_options = function(o)
    return S.LinearLR(o, { start_factor = 0.9, end_factor = 0.2, total_iters = 120, last_epoch = 99 })
  end,
  exponential = function(o) return S.ExponentialLR(o, 0.97, { last_epoch = 99 }) end,
  polynomial_options = function(o) return S.PolynomialLR(o, { total_iters = 150, power = 1.7, last_epoch = 99 }) end,
  lambda = function(o) return S.LambdaLR(o, function(e) return 0.95 ^ e end, { last_epoch = 99 }) end,
}

-- Returns the error's message, with the line of this file that raises it.
local function message(f, ...)
  local ok, problem = pcall(f, ...)
  assert(not ok, "no error")
  return tostring(problem)
end

local function optimizer(adam)
  local function group(lr) return { params = { nn.Parameter(lm.zeros { 1 }) }, lr = lr } end
  if adam then return optim.Adam({ group(), group(0.03) }, { lr = 0.1 }) end
  return optim.SGD({ group(), group(0.03) }, { lr = 0.1, momentum = 0.5 })
end

local function advance(opt, schedule, k, jumps)
  opt:step()
  if schedule:is(S.ReduceLROnPlateau) then
    schedule:step(losses[k + 1])
  elseif jumps and k % 4 ~= 3 then
    schedule:step(k * 37 % 150 + k / 8)
  else
    schedule:step()
  end
end

-- Rates of both groups after each step, with the momentum where `momentum`.
local function run(make, options)
  local opt = optimizer(options.adam)
  local schedule, seen = make(opt), {}
  local function look()
    local row, rates = {}, {}
    for i, g in ipairs(opt.param_groups) do
      rates[i] = g.lr
      row[i] = options.momentum and { g.lr, options.adam and g.betas[1] or g.momentum } or g.lr
    end
    assert.same(rates, schedule:get_last_lr())
    seen[#seen + 1] = row
  end
  look()
  for k = 0, STEPS - 1 do
    if k == options.change then opt.param_groups[1].lr = 0.5 end
    advance(opt, schedule, k, options.jumps)
    look()
  end
  return lm.tensor(seen, { dtype = "float64" })
end

describe("200 steps give PyTorch's rates and momenta:", function()
  local keys = {}
  for name in pairs(schedules) do keys[#keys + 1] = name end
  for name in pairs(over_adam) do keys[#keys + 1] = name end
  for name in pairs(resumed) do keys[#keys + 1] = name .. ".resumed" end
  for name in ("step multistep constant_options linear_options exponential polynomial_options lambda multiplicative "
    .. "cosine restarts onecycle cyclic chained sequential plateau_min"):gmatch "%S+" do
    keys[#keys + 1] = name .. ".changed"
  end
  for _, name in ipairs { "restarts", "restarts_options" } do keys[#keys + 1] = name .. ".jumps" end
  table.sort(keys)

  for _, key in ipairs(keys) do
    it(key, function()
      local name, how = key:match "^([^.]*)%.?(.*)$"
      local make = schedules[name] or over_adam[name]
      if how == "resumed" then
        make = function(opt)
          for i, lr in ipairs { 0.2, 0.06 } do opt.param_groups[i].initial_lr = lr end
          return resumed[name](opt)
        end
      end
      local want = stored[key]
      local got = run(make, { adam = over_adam[name] ~= nil, momentum = want.ndim == 3,
        change = how == "changed" and 100 or nil, jumps = how == "jumps" })
      local difference = golden.differs(got, want, { 1e-12, 1e-15 })
      assert(not difference, difference)
    end)
  end

  it("and there are no others", function()
    local known = { losses = true }
    for _, key in ipairs(keys) do known[key] = true end
    for key in pairs(stored) do assert(known[key], key) end
  end)
end)

describe("the state_dict of a schedule", function()
  local folder = temp.during(setup, teardown)

  for name, make in pairs(schedules) do
    it("goes on to the same bits: " .. name, function()
      local opt = optimizer()
      local schedule = make(opt)
      for k = 0, 72 do advance(opt, schedule, k) end
      lm.save(folder .. "/state", { opt = opt:state_dict(), schedule = schedule:state_dict() })
      local other = optimizer()
      local again = make(other)
      for k = 0, 4 do advance(other, again, k) end -- these steps are forgotten
      local saved = lm.load(folder .. "/state")
      other:load_state_dict(saved.opt)
      again:load_state_dict(saved.schedule)
      assert.same(schedule:get_last_lr(), again:get_last_lr())
      for k = 73, STEPS - 1 do
        advance(opt, schedule, k)
        advance(other, again, k)
        for i, g in ipairs(opt.param_groups) do
          assert.equal(g.lr, other.param_groups[i].lr)
          assert.equal(g.momentum, other.param_groups[i].momentum)
        end
      end
      assert.same(schedule:state_dict(), again:state_dict())
    end)
  end

  it("is no part of the schedule", function()
    local schedule = schedules.cyclic(optimizer())
    local dict = schedule:state_dict()
    dict.max_lrs[1], dict.base_lrs[1], dict.last_lr[1] = 7, 7, 7
    assert.equal(0.2, schedule.max_lrs[1])
    assert.same({ 0.01, 0.01 }, schedule.base_lrs)
    assert.same({ 0.01, 0.01 }, schedule:get_last_lr())
  end)

  -- State dicts of PyTorch's schedules after three steps, as plain tables.
  it("may be PyTorch's", function()
    local function after(make, dict)
      local opt = optimizer()
      local schedule = make(opt)
      schedule:load_state_dict(dict)
      for i, lr in ipairs(dict._last_lr) do opt.param_groups[i].lr = lr end
      schedule:step()
      return opt.param_groups[1].lr
    end
    local base = { base_lrs = { 0.1, 0.03 }, last_epoch = 3, _step_count = 4, _is_initial = false,
      _get_lr_called_within_step = false, _last_lr = { 0.1, 0.03 } }
    local function with(more)
      for key, value in pairs(base) do
        if more[key] == nil then more[key] = value end
      end
      return more
    end
    assert.equal(0.05, after(schedules.step, with { step_size = 4, gamma = 0.5 }))
    assert.equal(0.1 * 0.25, after(schedules.multistep, with { milestones = { [4] = 2, [9] = 1 }, gamma = 0.5 }))
    assert.equal(0.05, after(schedules.exponential, with { gamma = 0.5 }))
    assert.near(0.55, after(schedules.cyclic, with { total_size = 8, step_ratio = 0.5, mode = "triangular", gamma = 1,
      max_lrs = { 1, 1 }, scale_mode = "cycle", cycle_momentum = true, use_beta1 = false,
      base_momentums = { 0.8, 0.8 }, max_momentums = { 0.9, 0.9 }, base_lrs = { 0.1, 0.1 }, last_epoch = 1 }), 1e-12)
    local phase = { start_momentum = "max_momentum", end_momentum = "base_momentum" }
    local function phase_to(step, from, to)
      return { end_step = step, start_lr = from, end_lr = to, start_momentum = phase.start_momentum,
        end_momentum = phase.end_momentum }
    end
    assert.near(0.3, after(schedules.onecycle, with { total_steps = 10, use_beta1 = false, cycle_momentum = false,
      _anneal_func_type = "linear", _schedule_phases = { phase_to(8, "initial_lr", "max_lr"),
        phase_to(9, "max_lr", "min_lr") } }), 1e-12)
    assert.near(0.1 * (1 + math.cos(math.pi / 2)) / (1 + math.cos(math.pi * 3 / 8)), after(schedules.sequential, {
      _milestones = { 2 }, last_epoch = 5, _last_lr = { 0.1, 0.03 },
      _schedulers = { with { start_factor = 0.1, end_factor = 1, total_iters = 20 }, with { T_max = 8, eta_min = 0 } },
    }), 1e-12)
    local plateau = S.ReduceLROnPlateau(optimizer())
    plateau:load_state_dict { factor = 0.5, default_min_lr = 0, min_lrs = { 0, 0 }, patience = 0, cooldown = 0,
      eps = 1e-8, last_epoch = 3, _last_lr = { 0.1, 0.03 }, mode_worse = math.huge, mode = "min", threshold = 1e-4,
      threshold_mode = "rel", best = 1, cooldown_counter = 0, num_bad_epochs = 0 }
    plateau:step(2)
    assert.same({ 0.05, 0.015 }, plateau:get_last_lr())
  end)

  it("that does not fit is an error that changes nothing", function()
    local opt = optimizer()
    for name, case in pairs {
      step = { { "gamma must be a number,", "gamma", "x" }, { "step_size must be an integer of at", "step_size", 0 } },
      multistep = { { "milestones%[3%] must be an integer of at least 0, got string", "milestones", { [3] = "x" } } },
      cyclic = { { "did you mean 'triangular'", "mode", "triangular3" }, { "max_lrs%[1%]", "max_lrs", { "x" } } },
      onecycle = { { "schedule_phases%[1%].end_step", "schedule_phases", { {} } },
        { "schedule_phases%[1%]%.start_lr must be one of 'initial_lr',", "schedule_phases", { { end_step = 1 } } } },
      sequential = {
        { "milestones must be a table, got 3", "milestones", 3 }, { "milestones must", "milestones", { 5, 3 } },
        { "schedulers must be a table, got 3", "schedulers", 3 }, { "last_lr must have 2 entries,", "last_lr", { 1 } },
      },
      chained = { { "the state_dict has 1 schedulers, this one 2", "schedulers", { {} } },
        { "base_lrs is missing or nil; expected a table", "schedulers", { {}, {} } } },
      plateau = { { "mode must be one of", "mode", "least" }, { "best must be a number, got false", "best", false } },
    } do
      local schedule = schedules[name](opt)
      local before = schedule:state_dict()
      for _, change in ipairs(case) do
        local dict = schedule:state_dict()
        dict[change[2]] = change[3]
        local text = message(schedule.load_state_dict, schedule, dict)
        assert.matches(change[1], text)
        assert.matches("schedules_spec.lua:%d+: ", text)
        assert.same(before, schedule:state_dict())
      end
    end
  end)
end)

describe("a step before the optimizer's first", function()
  -- Returns the standard error of a script's lines.
  local function warnings(text)
    local folder = temp.folder()
    finally(function() temp.remove(folder) end)
    local path = temp.write(folder .. "/script.lua", text)
    local ok, out = temp.run(folder, "luajit " .. path)
    assert(ok, out)
    return (out:gsub("[^\n]*/script", "script"))
  end
  local head = "local lm = require 'luminary' local S = lm.optim.lr_scheduler\n"
    .. "local function new() return lm.optim.SGD({ lm.nn.Parameter(lm.zeros { 1 }) }, { lr = 0.1 }) end\n"

  it("warns, once for each line of the script", function()
    assert.equal("script.lua:5: warning: StepLR:step() was called before the optimizer's first step, so the "
      .. "first learning rate is never used; call opt:step() first\n", warnings(head .. [[
        for _ = 1, 3 do
          local opt = new() local schedule = S.StepLR(opt, 2)
          schedule:step()
          opt:step()
          schedule:step()
        end]]))
  end)

  it("is silent after a step, where schedules are made of others, and after a state_dict", function()
    assert.equal("", warnings(head .. [[
      local opt = new()
      local one = S.SequentialLR(opt, { S.ChainedScheduler { S.LinearLR(opt) }, S.ExponentialLR(opt, 0.9) }, { 3 })
      opt:step()
      for _ = 1, 9 do one:step() end
      local two = S.StepLR(opt, 3)
      two:step()
      local three = S.StepLR(new(), 3)
      three:load_state_dict(two:state_dict())
      three:step()]]))
  end)

  it("leaves the optimizer's methods as they are", function()
    local opt, plain = optimizer(), optimizer()
    S.StepLR(opt, 3)
    S.StepLR(opt, 4)
    assert.matches("colon", message(opt.step))
    opt:step()
    assert.equal(plain.step, opt.step)
    assert.equal(3, opt:step(function() return 3 end))
  end)
end)

describe("a schedule", function()
  it("takes in groups that are added later where it knows their rate", function()
    local function added(make)
      local opt = optimizer()
      local schedule = make(opt)
      opt:add_param_group { params = { nn.Parameter(lm.zeros { 1 }) }, lr = 0.5 }
      opt:step()
      for _ = 1, 20 do
        if schedule:is(S.ReduceLROnPlateau) then schedule:step(1) else schedule:step() end
      end
      return schedule:get_last_lr()[3]
    end
    assert.near(0.5 * 0.97 ^ 20, added(schedules.exponential), 1e-15)
    assert.near(0.05, added(function(o) return S.ReduceLROnPlateau(o, { patience = 15 }) end), 1e-15)
    for name, missing in pairs { lambda = "lr_lambdas", cyclic = "max_momentums", onecycle = "max_lrs",
      plateau_min = "min_lrs" } do
      assert.matches("group 3 was added after the scheduler was created and has no " .. missing,
        message(added, schedules[name]))
    end
  end)

  it("takes a metric that is a tensor of one element", function()
    local schedule = S.ReduceLROnPlateau(optimizer(), { patience = 0 })
    schedule:step(lm.tensor { 1 }:requires_grad_(true))
    schedule:step(lm.tensor(2))
    assert.same({ 0.1 * 0.1, 0.03 * 0.1 }, schedule:get_last_lr())
    schedule:step(0 / 0) -- is not better
    assert.near(0.001, schedule:get_last_lr()[1], 1e-15)
  end)

  it("takes a callable object for a function", function()
    local half = setmetatable({}, { __call = function(_, epoch) return 0.5 ^ epoch end })
    local opt = optimizer()
    local schedule = S.LambdaLR(opt, half)
    opt:step()
    schedule:step()
    assert.same({ 0.05, 0.015 }, schedule:get_last_lr())
  end)

  it("is a user's class with get_lr", function()
    local Warm = S.LRScheduler:extend "Warm"
    function Warm:init(opt, steps, last_epoch)
      self.steps, self.marks = steps, { 1, 2 }
      self.ignored = function() end
      S.LRScheduler.init(self, opt, last_epoch)
    end
    function Warm:get_lr()
      local rates = {}
      for i, base in ipairs(self.base_lrs) do rates[i] = base * math.min(1, (self.last_epoch + 1) / self.steps) end
      return rates
    end
    local function rates_of(make, n)
      local opt = optim.SGD({ nn.Parameter(lm.zeros(1)) }, { lr = 1 })
      local schedule, list = make(opt), {}
      for i = 1, n do
        list[i] = opt.param_groups[1].lr
        opt:step()
        schedule:step()
      end
      return list, schedule, opt
    end
    local list, warm = rates_of(function(o) return Warm(o, 4) end, 5)
    assert.same({ 0.25, 0.5, 0.75, 1, 1 }, list)
    assert.same({ 1 }, warm:get_last_lr())
    local dict = warm:state_dict()
    assert.same({
      base_lrs = { 1 }, last_epoch = 5, last_lr = { 1 }, marks = { 1, 2 }, step_count = 6, steps = 4,
    }, dict)
    dict._step_count, dict.steps, dict.get_lr = 6, 40, 3
    local _, other, opt = rates_of(function(o) return Warm(o, 2) end, 0)
    other:load_state_dict(dict)
    opt:step()
    other:step()
    assert.near(7 / 40, other:get_last_lr()[1], 1e-15)
    assert.same({ 0.5, 1, 1, 1, 0.5 }, (rates_of(function(o)
      return S.SequentialLR(o, { Warm(o, 2), S.ExponentialLR(o, 0.5) }, { 3 })
    end, 5)))
    assert.same({ 1, 0.5, 0.25, 0.5, 1 }, (rates_of(function(o)
      return S.SequentialLR(o, { S.ExponentialLR(o, 0.5), Warm(o, 2) }, { 3 })
    end, 5)))
    assert.same({ 0.5, 1, 0.5 }, (rates_of(function(o) -- each schedule starts from the rate that the last one left
      return S.ChainedScheduler { Warm(o, 2), S.MultiStepLR(o, { 2 }, { gamma = 0.5 }) }
    end, 3)))
    assert.same({ 0.1, 0.03 }, S.StepLR(optimizer(), 2):get_lr())
    for problem, result in pairs {
      ["Bad: the result of get_lr must have 1 entry, one for each parameter group, got 0"] = {},
      ["Bad: the result of get_lr must be a table, got 3"] = 3,
      ["Bad: in epoch 0 the lr of group 1 would be nan"] = { 0 / 0 },
    } do
      local Bad = S.LRScheduler:extend "Bad"
      function Bad.get_lr() return result end
      assert.matches(problem, message(Bad, opt), 1, true)
    end
    assert.matches("define function LRScheduler:get_lr()", message(S.LRScheduler, opt), 1, true)
    local Empty = S.LRScheduler:extend "Empty"
    function Empty.init() end
    assert.matches("Empty: init must call LRScheduler.init(self, …)", message(Empty, opt), 1, true)
  end)

  -- PyTorch 2.15 has the first list, and NotImplementedError at the milestone of the others.
  it("of several is one of SequentialLR's", function()
    local function rates_of(make)
      local opt = optim.SGD({ nn.Parameter(lm.zeros(1)) }, { lr = 1 })
      local schedule, list = make(opt, S.ExponentialLR(opt, 0.5), S.ConstantLR(opt, { factor = 0.1, total_iters = 2 }),
        S.ExponentialLR(opt, 0.9)), {}
      for i = 1, 7 do
        list[i] = math.floor(opt.param_groups[1].lr * 1e6 + 0.5) / 1e6
        opt:step()
        schedule:step()
      end
      return list
    end
    assert.same({ 0.09, 0.081, 0.729, 0.6561, 1, 0.5, 0.25 }, rates_of(function(opt, half, tenth, slow)
      return S.SequentialLR(opt, { S.ChainedScheduler { tenth, slow }, half }, { 4 })
    end))
    assert.same({ 1, 0.5, 0.25, 0.1, 0.09, 0.81, 0.729 }, rates_of(function(opt, half, tenth, slow)
      return S.SequentialLR(opt, { half, S.ChainedScheduler { tenth, slow } }, { 3 })
    end))
    assert.same({ 1, 0.5, 0.25, 0.1, 0.1, 1, 0.9 }, rates_of(function(opt, half, tenth, slow)
      return S.SequentialLR(opt, { half, S.SequentialLR(opt, { tenth, slow }, { 2 }) }, { 3 })
    end))
  end)

  it("goes to a process and back with its optimizer", function()
    local opt = optimizer()
    local schedule = S.StepLR(opt, 1, { gamma = 0.5 })
    local serializer = require "luminary.mp.serialization"
    local text, tensors = serializer.encode("spec", { opt, schedule }, {})
    local copy = serializer.decode(text, tensors)
    copy[1]:step()
    copy[2]:step()
    assert.equal(0.05, copy[1].param_groups[1].lr)
    assert.equal(0.1, opt.param_groups[1].lr)
  end)

  it("names wrong arguments", function()
    local opt, other = optimizer(), optimizer()
    local adagrad = optimizer()
    adagrad.defaults = {}
    local function of(class, ...)
      local arguments, n = { ... }, select("#", ...)
      return function() class(opt, unpack(arguments, 1, n)) end
    end
    for problem, try in pairs {
      ["StepLR: optimizer must be an optimizer, got 3"] = function() S.StepLR(3, 2) end,
      ["LambdaLR: optimizer must be an optimizer, got nil"] = function() S.LambdaLR(nil, print) end,
      ["MultiStepLR: milestones[2] must be an integer, got string 'x'"] = of(S.MultiStepLR, { 1, "x" }),
      ["ConstantLR: factor must be a number from 0 to 1, got 2"] = of(S.ConstantLR, { factor = 2 }),
      ["ConstantLR: factor must be a number from 0 to 1, got string '0.5'"] = of(S.ConstantLR, "0.5"),
      ["LinearLR: start_factor must be a number above 0 and at most 1, got 0"] = of(S.LinearLR, { start_factor = 0 }),
      ["LinearLR: unknown option 'total_iter'; did you mean 'total_iters'?"] = of(S.LinearLR, { total_iter = 3 }),
      ["LinearLR: end_factor must be a number from 0 to 1, got -1"] = of(S.LinearLR, { end_factor = -1 }),
      ["ExponentialLR: gamma is missing or nil; expected a number"] = of(S.ExponentialLR),
      ["PolynomialLR: total_iters must be an integer of at least 1, got 0"] = of(S.PolynomialLR, { total_iters = 0 }),
      ["LambdaLR: lr_lambda must have 2 entries, one for each parameter group, got 1"] = of(S.LambdaLR, { print }),
      ["LambdaLR: lr_lambda must be a function, got 3"] = of(S.LambdaLR, 3),
      ["LambdaLR: the result of lr_lambda must be a number, got string 'x'"] = of(S.LambdaLR,
        function() return "x" end),
      ["CosineAnnealingWarmRestarts: T_0 must be an integer of at least 1,"] = of(S.CosineAnnealingWarmRestarts, 1.5),
      ["CosineAnnealingWarmRestarts: T_mult must be an integer of at least 1,"] = of(S.CosineAnnealingWarmRestarts, 1,
        { T_mult = 0 }),
      ["CosineAnnealingWarmRestarts:step: epoch must be a number of at least 0, got -1"] = function()
        S.CosineAnnealingWarmRestarts(opt, 2):step(-1)
      end,
      ["OneCycleLR: pass either total_steps, or epochs and steps_per_epoch"] = of(S.OneCycleLR, 1, { epochs = 3 }),
      ["OneCycleLR: pct_start must be a number from 0 to 1, got 2"] = of(S.OneCycleLR, 1,
        { total_steps = 3, pct_start = 2 }),
      ["OneCycleLR: anneal_strategy must be one of 'cos', 'linear', got string 'coss'; did you mean 'cos'?"] =
        of(S.OneCycleLR, 1, { total_steps = 3, anneal_strategy = "coss" }),
      ["OneCycleLR: max_lr must have 2 entries, one for each"] = of(S.OneCycleLR, { 1, 2, 3 }, { total_steps = 3 }),
      ["OneCycleLR: base_momentum[2] must be a number from 0 to 1, got 5"] = of(S.OneCycleLR, 1,
        { total_steps = 3, base_momentum = { 0, 5 } }),
      ["OneCycleLR:step: called more than 2 times, the total_steps of the schedule"] = function()
        local schedule = S.OneCycleLR(opt, 1, { total_steps = 2 })
        for _ = 1, 3 do schedule:step() end
      end,
      ["SGD has no momentum; pass {cycle_momentum = false}"] = function() S.CyclicLR(adagrad, 1, 2) end,
      ["CyclicLR: max_lr is missing or nil; expected a number"] = of(S.CyclicLR, 1),
      ["CyclicLR: mode must be one of 'triangular', 'triangular2',"] = of(S.CyclicLR, 1, 2, { mode = "x" }),
      ["CyclicLR: scale_mode must be one of 'cycle', 'iterations', got"] = of(S.CyclicLR, 1, 2, { scale_mode = "x" }),
      ["CyclicLR: the result of scale_fn is missing or nil; expected a number"] = of(S.CyclicLR, 1, 2,
        { scale_fn = function() end }),
      ["ReduceLROnPlateau: mode must be one of 'min', 'max', got string 'least'"] = of(S.ReduceLROnPlateau, "least"),
      ["ReduceLROnPlateau: factor must be below 1, got 1"] = of(S.ReduceLROnPlateau, { factor = 1 }),
      ["ReduceLROnPlateau: mode must be one of 'min', 'max', got"] = of(S.ReduceLROnPlateau, { mode = "most" }),
      ["ReduceLROnPlateau: threshold_mode must be one of 'rel',"] = of(S.ReduceLROnPlateau, { threshold_mode = "x" }),
      ["ReduceLROnPlateau: min_lr must have 2 entries, one for each"] = of(S.ReduceLROnPlateau, { min_lr = { 1 } }),
      ["ReduceLROnPlateau:step: the metric is missing or nil; expected a number"] = function()
        S.ReduceLROnPlateau(opt):step()
      end,
      ["ReduceLROnPlateau:step: the metric must be a number or a tensor of one element, got a tensor [2]"] = function()
        S.ReduceLROnPlateau(opt):step(lm.ones { 2 })
      end,
      ["ChainedScheduler: expected a list of at least one scheduler, {a, b}, got an empty list"] = function()
        S.ChainedScheduler {}
      end,
      ["ChainedScheduler: schedulers[2] has another optimizer"] = function()
        S.ChainedScheduler { S.ConstantLR(opt), S.ConstantLR(other) }
      end,
      ["ChainedScheduler: schedulers[1] must be a scheduler, got 3"] = function()
        S.ChainedScheduler { 3 }
      end,
      ["ChainedScheduler: schedulers[1] is a ReduceLROnPlateau, whose step() needs a metric"] = function()
        S.ChainedScheduler { S.ReduceLROnPlateau(opt) }
      end,
      ["SequentialLR: milestones must have 0 entries, one for each scheduler after the first, got 1"]
        = of(S.SequentialLR, { S.ConstantLR(opt) },
        { 3 }),
      ["SequentialLR: milestones must increase, got 2 after 3"] = of(S.SequentialLR, { S.ConstantLR(opt) },
        { 3, 2 }),
      ["StepLR: last_epoch = 3 resumes a schedule, but group 1 has no initial_lr"] = function()
        S.StepLR(optimizer(), 2, { last_epoch = 3 })
      end,
      ["StepLR: last_epoch must be an integer of at least -1, got -2"] = of(S.StepLR, 2, { last_epoch = -2 }),
      ["LinearLR: start_factor must be a number above 0 and at most 1, got nan"] =
        of(S.LinearLR, { start_factor = 0 / 0 }),
      ["OneCycleLR: in epoch 0 the lr of group 1 would be inf"] = function()
        S.OneCycleLR(optimizer(), 1, { total_steps = 9, div_factor = 0 })
      end,
      ["StepLR: the lr of group 1 is missing or nil; expected a number"] = function()
        local without = optimizer()
        local schedule = S.StepLR(without, 2)
        without.param_groups[1].lr = nil
        schedule:step()
      end,
      ["SequentialLR: step takes 0 arguments, got 1"] = function() schedules.sequential(opt):step(3) end,
    } do
      local text = message(try)
      assert.matches("schedules_spec.lua:%d+: ", text, 1, false, problem)
      assert.matches(problem, text, 1, true)
    end
  end)
end)

describe("get_scheduler", function()
  -- Returns the rates of an optimizer with an lr of 1 in its first steps.
  local function rates(name, opts, n)
    local opt = optim.SGD({ lm.ones({ 1 }, { requires_grad = true }) }, { lr = 1 })
    local schedule, list = S.get_scheduler(name, opt, opts), {}
    for k = 1, n do
      list[k] = opt.param_groups[1].lr
      opt:step()
      if k < n then schedule:step() end
    end
    return list
  end

  local function same(expected, got)
    assert.equal(#expected, #got)
    for k = 1, #got do assert.near(expected[k], got[k], 1e-12) end
  end

  local function cosine(x) return (1 + math.cos(math.pi * x)) / 2 end

  it("makes the schedules of a training of known length", function()
    same({ 1, 1, 1 }, rates("constant", {}, 3))
    same({ 1, 0.75, 0.5, 0.25, 0 }, rates("linear", { num_training_steps = 4 }, 5))
    same({ 1, cosine(1 / 3), cosine(2 / 3), 0 }, rates("cosine", { num_training_steps = 3 }, 4))
    same({ 1, 1, 0.1, 0.1, 0.01, 0.01 }, rates("step", { num_training_steps = 6 }, 6))
    same({ 1, 1, 1, 0.5 }, rates("step", { step_size = 3, gamma = 0.5 }, 4))
    same({ 1, 1, 1, 0.1, 0.1, 0.01, 0.01 }, rates("multistep", { num_training_steps = 6 }, 7))
    same({ 1, 0.1, 0.1, 0.01 }, rates("multistep", { milestones = { 1, 3 } }, 4))
    local opt = optim.SGD({ lm.ones(1) }, { lr = 1 })
    local one = S.OneCycleLR(opt, 1, { total_steps = 9, cycle_momentum = false })
    local list = {}
    for k = 1, 9 do
      list[k] = one:get_last_lr()[1]
      opt:step()
      if k < 9 then one:step() end
    end
    same(list, rates("onecycle", { num_training_steps = 9 }, 9))
  end)

  it("begins with a warm-up", function()
    local opts = { num_training_steps = 6, num_warmup_steps = 2 }
    same({ 1 / 3, 2 / 3, 1, 1, 1 }, rates("constant", { num_warmup_steps = 2 }, 5))
    same({ 1 / 3, 2 / 3, 1, 0.75, 0.5, 0.25, 0 }, rates("linear", opts, 7))
    same({ 1 / 3, 2 / 3, 1, cosine(1 / 4), cosine(1 / 2) }, rates("cosine", opts, 5))
    same({ 0.25, 0.625, 1, cosine(1 / 4) }, rates("cosine",
      { num_training_steps = 6, num_warmup_steps = 2, start_factor = 0.25 }, 4))
    same({ 1 / 3, 2 / 3, 1, 0.1, 0.1, 0.1, 0.01 }, rates("step", { step_size = 3, num_warmup_steps = 2 }, 7))
    same({ 1 / 3, 2 / 3, 1, 0.1 }, rates("multistep", { milestones = { 3 }, num_warmup_steps = 2 }, 4))
    same({ 1 / 3, 2 / 3, 1, cosine(1 / 38) }, rates("warmup", { num_training_steps = 40 }, 4))
    same({ 1 / 2, 1, cosine(1 / 39) }, rates("warmup", { num_training_steps = 40, num_warmup_steps = 1 }, 3))
  end)

  it("says what is wrong", function()
    local opt = optim.SGD({ lm.ones(1) }, { lr = 1 })
    for text, args in pairs {
      ["get_scheduler: name must be one of 'constant', 'linear', 'cosine'"] = { "cosin", opt },
      ["did you mean 'cosine'?"] = { "cosin", opt },
      ["get_scheduler: num_training_steps is missing or nil"] = { "cosine", opt },
      ["get_scheduler: num_warmup_steps must be 0 for onecycle, which warms up, got 2"]
        = { "onecycle", opt, { num_training_steps = 4, num_warmup_steps = 2 } },
      ["get_scheduler: optimizer must be an optimizer"] = { "step", 3 },
    } do
      local ok, problem = pcall(S.get_scheduler, unpack(args))
      assert.is_false(ok)
      assert.matches("schedules_spec.lua:%d+: ", problem)
      assert.matches(text, problem, 1, true)
    end
  end)
end)

describe("get_optimizer", function()
  it("makes each optimizer of its list by name, in upper or lower case", function()
    local names = optim.list_optimizers()
    assert.is_true(#names >= 16)
    for _, name in ipairs(names) do
      local opt = optim.get_optimizer(name:upper(), { lm.ones({ 2, 2 }, { requires_grad = true }) }, { lr = 0.25 })
      assert.equal(name, opt.__name:lower())
      assert.equal(0.25, opt.param_groups[1].lr)
    end
  end)

  it("says what is wrong", function()
    local function try(...)
      local ok, problem = pcall(optim.get_optimizer, ...)
      assert.is_false(ok)
      assert.matches("schedules_spec.lua:%d+: ", problem)
      return problem
    end
    assert.matches("name must be one of 'adabelief', .* 'sgd', got string 'adamm'; did you mean 'adam'%?",
      try("adamm", { lm.ones(1) }))
    assert.matches("get_optimizer: name must be one of", try("lbfgs", { lm.ones(1) }))
    assert.matches("get_optimizer: name must be a string, got 3", try(3, { lm.ones(1) }))
    assert.matches("Adam: unknown option 'momentum'", try("adam", { lm.ones(1) }, { momentum = 0.5 }))
  end)
end)

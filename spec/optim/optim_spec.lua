-- Optimizers and schedules against PyTorch's (spec/golden/_optim.safetensors); groups, state, errors.
local lm = require "luminary"
local golden = require "spec.support.golden"
local message = require "spec.support.error_of"
local nn, optim = lm.nn, lm.optim
local schedules = optim.lr_scheduler

local stored
setup(function() stored = golden.load("_optim") end)
teardown(function() stored = nil end)

-- Optimizers as in scripts/dev/golden/gen_golden.py.
local optimizers = {
  sgd = { "SGD", { lr = 0.1 } },
  sgd_momentum = { "SGD", { lr = 0.1, momentum = 0.9 } },
  sgd_dampening = { "SGD", { lr = 0.1, momentum = 0.9, dampening = 0.3 } },
  sgd_nesterov = { "SGD", { lr = 0.1, momentum = 0.9, nesterov = true } },
  sgd_decay = { "SGD", { lr = 0.1, momentum = 0.5, weight_decay = 0.1 } },
  sgd_nesterov_decay = { "SGD", { lr = 0.1, momentum = 0.9, weight_decay = 0.1, nesterov = true } },
  sgd_maximize = { "SGD", { lr = 0.1, momentum = 0.9, weight_decay = 0.1, maximize = true } },
  adam = { "Adam" },
  adam_options = { "Adam", { lr = 0.05, betas = { 0.8, 0.95 }, eps = 0.001 } },
  adam_decay = { "Adam", { lr = 0.05, weight_decay = 0.1 } },
  adam_amsgrad = { "Adam", { lr = 0.05, amsgrad = true, betas = { 0.5, 0.6 } } },
  adam_maximize = { "Adam", { lr = 0.05, weight_decay = 0.1, maximize = true } },
  adamw = { "AdamW" },
  adamw_decay = { "AdamW", { lr = 0.05, weight_decay = 0.3 } },
  adamw_amsgrad = { "AdamW", { lr = 0.05, amsgrad = true, betas = { 0.5, 0.6 } } },
  adamw_maximize = { "AdamW", { lr = 0.05, maximize = true } },
}
local STEPS = 6

-- Cases of every optimizer, those above and those that trajectories_spec compares.
local every = {}
for name, row in pairs(optimizers) do every[name] = row end
for _, case in ipairs(dofile("spec/golden/trajectories.lua")) do
  every[case[1] .. " " .. case[2]] = { case[1], case[3] }
end

-- Returns sizes that an optimizer takes: Muon steps matrices alone.
local function sizes_for(name, sizes) return name == "Muon" and #sizes ~= 2 and { #sizes, -1 } or sizes end

local function parameters(dtype, name)
  local params = {}
  for n = 1, 2 do
    local start = stored["start." .. n]
    params[n] = nn.Parameter(start:to(dtype):clone():reshape(sizes_for(name, start.shape)))
  end
  return params
end

local function set_grads(params, k, dtype)
  for n = 1, 2 do params[n].grad = stored["grad." .. n][k]:to(dtype):reshape(params[n].shape) end
end

local function flat(params) return lm.cat { params[1]:detach():flatten(), params[2]:detach():flatten() } end

describe("six steps give PyTorch's parameters:", function()
  local tolerance = { float32 = { 2e-6, 1e-6 }, float64 = { 1e-12, 1e-13 } }
  for name, row in pairs(optimizers) do
    for dtype, bound in pairs(tolerance) do
      it(name .. " in " .. dtype, function()
        local params = parameters(dtype)
        local opt = optim[row[1]](params, row[2])
        for k = 1, STEPS do
          set_grads(params, k, dtype)
          opt:step()
          golden.same(flat(params), stored[name .. "." .. dtype][k], bound)
        end
      end)
    end
  end

  it("every stored sequence is one of them", function()
    for key in pairs(stored) do
      local name = key:match("^([%w_]+)%.float32$")
      assert(not name or optimizers[name], name)
    end
  end)
end)

describe("an optimizer", function()
  it("steps strided and channels-last parameters by their elements", function()
    for name, row in pairs(every) do
      local want, got = {}, {}
      local shape = row[1] == "Muon" and { 5, 4 } or { 2, 3, 4, 5 }
      local start, grad = lm.randn(shape), lm.randn(shape)
      local function turned(t) return t:permute(#shape == 4 and { 4, 3, 2, 1 } or { 2, 1 }) end
      want[1] = nn.Parameter(start:clone())
      got[1] = nn.Parameter(#shape == 4 and start:clone { memory_format = "channels_last" }
        or turned(turned(start):contiguous()))
      want[1].grad = grad
      got[1].grad = turned(turned(grad):contiguous())
      local a, b = optim[row[1]](want, row[2]), optim[row[1]](got, row[2])
      for _ = 1, 2 do
        a:step()
        b:step()
      end
      assert(got[1]:allclose(want[1], { rtol = 1e-5, atol = 1e-6 }), name)
    end
  end)

  it("steps parameters of half precision, computed in float32", function()
    for _, row in pairs(every) do
      for dtype, bound in pairs { float16 = 2e-3, bfloat16 = 1.6e-2 } do
        local shape = row[1] == "Muon" and { 3, 4 } or { 7 }
        local start, grad = lm.randn(shape, { dtype = dtype }), lm.randn(shape, { dtype = dtype })
        grad = grad + grad:sign() * 0.1 -- above Adafactor's eps, which is the dtype's
        local half, whole = nn.Parameter(start:clone()), nn.Parameter(start:float())
        half.grad, whole.grad = grad, grad:float()
        optim[row[1]]({ half }, row[2]):step()
        optim[row[1]]({ whole }, row[2]):step()
        assert.equal(dtype, half.dtype)
        golden.same(half:detach():float(), whole:detach(), { bound, bound / 10 })
      end
    end
  end)

  it("steps parameters of float16 as float32 ones that are rounded after each step", function()
    for name, row in pairs(every) do
      for _, size in ipairs(row[1] == "Adafactor" and {} or { 1e-4, 1, 300 }) do -- its eps is the dtype's
        local start = lm.randn(sizes_for(row[1], { 3, 4 }), { dtype = "float16" }):t() -- not contiguous
        local half, whole = nn.Parameter(start:clone()), nn.Parameter(start:float())
        local opt, other = optim[row[1]]({ half }, row[2]), optim[row[1]]({ whole }, row[2])
        for step = 1, 12 do
          half.grad = (lm.randn(half.shape) * size):half()
          whole.grad = half.grad:float()
          opt:step()
          other:step()
          lm.no_grad(function() whole:copy_(whole:half()) end)
          assert.is_true(lm.equal(half:float(), whole), ("%s, gradients of %g, step %d"):format(name, size, step))
          if step == 6 then -- as a checkpoint does
            local again = optim[row[1]]({ half }, row[2])
            again:load_state_dict(opt:state_dict())
            opt = again
          end
        end
        for key, state in pairs(opt.state[half] or {}) do
          if lm.is_tensor(state) then assert.equal("float32", state.dtype, key) end
        end
      end
    end
  end)

  it("makes what its states lack, for those parameters alone", function()
    local a, b = parameters("float64"), parameters("float64")
    local both, first, second = optim.SGD(a, { lr = 0.1, dampening = 0.5 }), optim.SGD({ b[1] }, { lr = 0.1 }),
      optim.SGD({ b[2] }, { lr = 0.1, dampening = 0.5, momentum = 0.9 })
    for k = 1, 4 do
      set_grads(a, k, "float64")
      set_grads(b, k, "float64")
      if k == 2 then -- only the first one has a gradient then, and so a buffer
        a[2].grad, b[2].grad = nil, nil
        both.param_groups[1].momentum = 0.9
        first.param_groups[1].momentum, first.param_groups[1].dampening = 0.9, 0.5
      end
      if k == 3 then both.state[a[2]].step = 2 end -- a[2] has the same number of steps, but no buffer
      if k == 3 then second = optim.SGD({ b[2] }, { lr = 0.1, dampening = 0.5, momentum = 0.9 }) end
      both:step()
      first:step()
      if k == 1 then optim.SGD({ b[2] }, { lr = 0.1 }):step() elseif k > 2 then second:step() end
    end
    assert.is_true(flat(a):equal(flat(b)))
  end)

  it("keeps a parameter's numbers beside its tensors, each for itself", function()
    for name, field in pairs { NAdam = "mu_product", ASGD = "eta" } do
      local a, b = parameters("float64"), parameters("float64")
      local both, apart = optim[name](a, { lr = 0.1 }), { optim[name]({ b[1] }, { lr = 0.1 }),
        optim[name]({ b[2] }, { lr = 0.1 }) }
      for k = 1, 3 do
        set_grads(a, k, "float64")
        set_grads(b, k, "float64")
        if k == 2 then both.state[a[2]][field], apart[2].state[b[2]][field] = 0.25, 0.25 end
        both:step()
        apart[1]:step()
        apart[2]:step()
      end
      assert.is_true(flat(a):equal(flat(b)))
      assert.equal(apart[1].state[b[1]][field], both.state[a[1]][field])
      assert.equal(apart[2].state[b[2]][field], both.state[a[2]][field])
    end
  end)

  it("lets a momentum of no gradients end at 0, in all dtypes and parts of a vector", function()
    if jit.arch ~= "x64" then return pending "subnormal numbers are not slow there" end
    for _, dtype in ipairs { "float32", "bfloat16" } do
      local p = nn.Parameter(lm.ones({ 35 }, { dtype = dtype }))
      local opt = optim.SGD({ p }, { lr = 0.1, momentum = 0.9 })
      p.grad = lm.ones({ 35 }, { dtype = dtype })
      opt:step()
      p.grad:zero_()
      local least = lm.finfo(dtype).smallest_normal
      for _ = 1, 900 do
        opt:step()
        local size = opt.state[p].momentum_buffer:float():abs()
        assert.is_true((size:eq(0) + size:ge(least)):all():item())
      end
      assert.equal(0, opt.state[p].momentum_buffer:count_nonzero():item())
    end
    assert.equal(35, (lm.full({ 35 }, 2 ^ -126) * 0.5):count_nonzero():item()) -- elsewhere they are kept
  end)

  it("leaves parameters without a gradient alone, and starts them later", function()
    local params = parameters("float64")
    local opt = optim.Adam(params, { lr = 0.05 })
    params[1].grad = stored["grad.1"][1]
    local before = params[2]:detach():clone()
    opt:step()
    assert.is_true(before:equal(params[2]:detach()))
    assert.is_nil(opt.state[params[2]])
    set_grads(params, 2, "float64")
    opt:step()
    assert.equal(2, opt.state[params[1]].step)
    assert.equal(1, opt.state[params[2]].step)
    -- the late one moves as in a first step
    local alone = nn.Parameter(before:clone())
    alone.grad = stored["grad.2"][2]
    optim.Adam({ alone }, { lr = 0.05 }):step()
    golden.same(params[2]:detach(), alone:detach())
  end)

  it("takes a closure", function()
    local p = nn.Parameter(lm.tensor { 2 })
    local opt = optim.SGD({ p }, { lr = 0.25 })
    local loss = lm.no_grad(function()
      return opt:step(function()
        opt:zero_grad()
        local loss = p:square():sum()
        loss:backward()
        return loss
      end)
    end)
    assert.equal(4, loss:item())
    assert.equal(1, p:item())
    assert.matches("closure", message(opt.step, opt, 3))
  end)

  it("records no graph and notices in-place changes", function()
    local p = nn.Parameter(lm.tensor { 2 })
    local opt = optim.SGD({ p }, { lr = 1 })
    local y = p * p
    y:sum():backward { retain_graph = true }
    opt:step()
    assert.is_true(p.is_leaf)
    assert.matches("an optimizer's step", message(y.backward, y)) -- the step changed what backward needs
  end)

  it("zero_grad drops or zeros", function()
    local params = parameters("float32")
    local opt = optim.SGD(params, { lr = 0.1 })
    set_grads(params, 1, "float32")
    opt:zero_grad { set_to_none = false }
    assert.equal(0, params[1].grad:abs():sum():item())
    opt:zero_grad()
    assert.is_nil(params[1].grad)
  end)

  it("has one call into C a step, however many parameters", function()
    local core = lm.core
    local calls, real = 0, core.optim_step
    core.optim_step = function(...)
      calls = calls + 1
      return real(...)
    end
    local params = {}
    for n = 1, 50 do
      params[n] = nn.Parameter(lm.zeros { 3 })
      params[n].grad = lm.ones { 3 }
    end
    local opt = optim.Adam(params)
    opt:step()
    opt:step()
    core.optim_step = real
    assert.equal(2, calls)
  end)
end)

describe("a moment without memory", function()
  -- Returns the state `key` of a parameter after steps with these gradients.
  local function state_after(name, key, opts, gradients, shape)
    local p = nn.Parameter(lm.zeros(shape or { 1 }))
    local opt = optim[name]({ p }, opts)
    for _, g in ipairs(gradients) do
      p.grad = lm.full(shape or { 1 }, g)
      opt:step()
    end
    return opt.state[p][key]:flatten()[1]
  end

  it("is the gradient, also after one that was 1e10 times larger", function()
    for _, spike in ipairs { 1e4, 1e7, -1e7 } do
      for _, name in ipairs { "Adam", "AdamW", "NAdam", "RAdam", "Adamax", "AdaBelief", "LAMB" } do
        local got = state_after(name, "exp_avg", { lr = 0.1, betas = { 0, 0.9 } }, { spike, 1e-3 })
        assert.near(1e-3, got, 1e-9, name)
      end
      assert.near(1e-3, state_after("Lion", "exp_avg", { betas = { 0, 0 } }, { spike, 1e-3 }), 1e-9)
      assert.near(1e-3, state_after("RMSprop", "grad_avg", { alpha = 0, centered = true }, { spike, 1e-3 }), 1e-9)
      assert.near(1e-3, state_after("SGD", "momentum_buffer", { lr = 0.1, momentum = 1e-30 }, { spike, 1e-3 }), 1e-9)
      assert.near(1e-3, state_after("Muon", "momentum_buffer", { momentum = 0 }, { spike, 1e-3 }, { 1, 1 }), 1e-9)
      assert.near(1e-6, state_after("Adafactor", "variance", { beta2_decay = 0 }, { spike, 1e-3 }), 1e-12)
      local net = nn.Linear(1, 1, { bias = false })
      local ema = optim.AveragedModel(net, { decay = 0 })
      for _, value in ipairs { spike, 1e-3 } do
        net.weight.data:fill_(value)
        ema:update(net)
      end
      assert.near(1e-3, ema.module.weight:item(), 1e-9)
    end
  end)
end)

describe("an optimizer of whole parameters", function()
  it("takes gradients of float16 whose squares float16 lacks", function()
    for _, name in ipairs { "LAMB", "Adafactor" } do
      local values = {}
      for _, dtype in ipairs { "float32", "float16" } do
        local p = nn.Parameter(lm.ones({ 2, 3 }, { dtype = dtype }))
        local opt = optim[name]({ p }, { lr = 0.01 })
        for _ = 1, 3 do
          p.grad = lm.full({ 2, 3 }, 1000, { dtype = dtype })
          opt:step()
        end
        local again = optim[name]({ nn.Parameter(p:detach():clone()) }, { lr = 0.01 })
        again:load_state_dict(opt:state_dict())
        values[#values + 1] = p:detach():float()[{ 1, 1 }]
        for key, state in pairs(opt.state[p]) do
          local own = again.state[again.param_groups[1].params[1]][key]
          if lm.is_tensor(state) then assert.equal("float32", own.dtype, key) end
        end
      end
      assert.near(values[1], values[2], 2e-3, name)
    end
  end)

  it("keeps states that outlive a scope, in the dtype that the parameter has", function()
    for name, states in pairs { LAMB = { "exp_avg", "exp_avg_sq" }, Muon = { "momentum_buffer" },
      Adafactor = { "row_var", "col_var" } } do
      local p = nn.Parameter(lm.ones({ 2, 3 }, { dtype = "bfloat16" }))
      local opt = optim[name]({ p }, { lr = 0.1 })
      lm.scope(function()
        for _ = 1, 2 do
          p.grad = lm.ones({ 2, 3 }, { dtype = "bfloat16" })
          opt:step()
        end
      end)
      for _, key in ipairs(states) do
        assert.equal("bfloat16", opt.state[p][key].dtype)
        assert(opt.state[p][key]:sum():item() > 0, name .. "'s " .. key)
      end
      assert(p:sum():item() < 6, name)
    end
    local p = nn.Parameter(lm.zeros { 4, 2, 3 })
    p.grad = lm.ones { 4, 2, 3 }
    local opt = optim.Adafactor { p }
    opt:step()
    assert.same({ { 4, 2, 1 }, { 4, 1, 3 } }, { { unpack(opt.state[p].row_var.shape) },
      { unpack(opt.state[p].col_var.shape) } })
  end)

  it("is saved to a file and goes on from it", function()
    local path = os.tmpname()
    for _, name in ipairs { "LAMB", "Muon", "Adafactor" } do
      local a = nn.Parameter(lm.randn { 2, 3 })
      a.grad = lm.randn { 2, 3 }
      local first = optim[name]({ a }, { lr = 0.02 })
      first:step()
      lm.save(path, first:state_dict())
      local b = nn.Parameter(a:detach():clone())
      b.grad = a.grad
      local second = optim[name] { b }
      second:load_state_dict(lm.load(path))
      first:step()
      second:step()
      assert.is_true(a:equal(b), name)
    end
    os.remove(path)
  end)

  it("loads the state of each optimizer whose schedule made lr negative, as PyTorch does", function()
    for name in ("SGD Adam AdamW Adagrad RMSprop Rprop ASGD Adadelta Adamax NAdam RAdam LBFGS Lion LAMB Muon Adafactor")
      :gmatch "%S+" do
      local w = nn.Parameter(lm.ones { 2, 3 })
      local opt = optim[name]({ w }, { lr = 0.1 })
      local schedule = optim.lr_scheduler.LambdaLR(opt, function(epoch) return 1 - 2 * epoch end)
      local function loss()
        opt:zero_grad()
        local l = w:square():sum()
        l:backward()
        return l
      end
      for _ = 1, 2 do
        opt:step(loss)
        schedule:step()
      end
      local again = optim[name]({ w }, { lr = 0.5 })
      again:load_state_dict(opt:state_dict())
      assert.equal(opt.param_groups[1].lr, again.param_groups[1].lr)
      assert(math.abs(again.param_groups[1].lr + 0.3) < 1e-12, name)
      assert.matches("lr must be a number", message(again.load_state_dict, again, { state = {}, param_groups = { {
        params = { 1 }, lr = "fast" } } }))
    end
  end)

  it("takes parameters of no elements and of no dims, gradients of zeros, and parameters of zeros", function()
    for _, name in ipairs { "LAMB", "Muon", "Adafactor" } do
      for _, shape in ipairs { { 0, 3 }, { 3, 0 }, { 1, 1 }, name ~= "Muon" and {} or nil } do
        for _, value in ipairs { 0, 1 } do
          local p = nn.Parameter(lm.full(shape, 1 - value))
          p.grad = lm.full(shape, value)
          local opt = optim[name]({ p }, { lr = 0.25, weight_decay = 0 })
          opt:step()
          local moved = (p:detach() - (1 - value)):abs():sum():item()
          assert(value == 0 and moved == 0 or value == 1 and (moved > 0) == (p:numel() > 0), name .. moved)
          optim[name]({ p }, {}):load_state_dict(opt:state_dict())
        end
      end
    end
    local p = nn.Parameter(lm.zeros { 2 })
    p.grad = lm.ones { 2 }
    optim.LAMB({ p }, { lr = 0.25 }):step() -- the trust ratio is 1 where a norm is 0
    golden.same(p:detach(), lm.tensor { -0.25, -0.25 })
  end)

  it("waits for no tensor's value in a step", function()
    local methods, waits = lm.core.methods, 0
    for _, name in ipairs { "LAMB", "Muon", "Adafactor" } do
      local p, real = nn.Parameter(lm.ones { 2, 3 }), {}
      p.grad = lm.ones { 2, 3 }
      local opt = optim[name] { p }
      for _, method in ipairs { "item", "tolist", "cpu" } do
        real[method] = methods[method]
        methods[method] = function(...)
          waits = waits + 1
          return real[method](...)
        end
      end
      local ok, problem = pcall(opt.step, opt)
      for method, f in pairs(real) do methods[method] = f end
      assert(ok, problem)
    end
    assert.equal(0, waits)
  end)
end)

describe("an optimizer of whole parameters in a captured graph", function()
  local function capturing(f)
    local real = lm.core.graph_is_capturing
    lm.core.graph_is_capturing = function() return true end
    local ok, problem = pcall(f)
    lm.core.graph_is_capturing = real
    return not ok and tostring(problem)
  end
  local function step(name, opts)
    local p = nn.Parameter(lm.ones { 2, 3 })
    p.grad = lm.ones { 2, 3 }
    local opt = optim[name]({ p }, opts)
    return function() opt:step() end
  end

  it("has made its first step before", function()
    for name, opts in pairs { Muon = {}, LAMB = { bias_correction = false } } do
      local f = step(name, opts)
      assert.matches(name .. ": the first step%(%) cannot be captured; call step%(%) once before the capture",
        capturing(f))
      f()
      local problem = capturing(f) -- without a graph to count replays, nothing else may fail
      assert(not problem or not problem:find(name, 1, true), problem)
    end
  end)

  it("does not depend on its number", function()
    for _, name in ipairs { "LAMB", "Adafactor" } do
      local f = step(name, {})
      f()
      assert.matches(name .. ": step%(%) depends on the step count and cannot be captured; call opt:step%(%) "
        .. "outside the graph", capturing(f))
    end
  end)
end)

describe("a custom optimizer", function()
  -- Returns the example of the documentation.
  local function example()
    local file = assert(io.open("lua/luminary/optim/optimizer.lua"))
    local text = file:read("*a")
    file:close()
    local lines = {}
    for line in text:gmatch("%-%-%-   ([^\n]*)\n") do lines[#lines + 1] = line end
    local code = table.concat(lines, "\n") .. "\nreturn Signum, opt"
    return code
  end

  it("is as the documentation says", function()
    local net = nn.Linear(2, 1)
    local scope = setmetatable({ lm = lm, optim = optim, net = net }, { __index = _G })
    local Signum, opt = setfenv(assert(loadstring(example())), scope)()
    assert.equal(0.001, opt.param_groups[1].lr)
    assert.matches("did you mean 'momentum'", message(Signum, net:parameters(), { momentun = 1 }))
    local p = nn.Parameter(lm.tensor { 1, 1, 1 })
    local mine = Signum({ p }, { lr = 0.25, momentum = 0.5 })
    lm.scope(function()
      p.grad = lm.tensor { 4, -2, 0 }
      mine:step()
      p.grad = lm.tensor { -2, -2, 0 } -- the buffers: 2, -1, 0; 0, -1.5, 0
      mine:step()
    end)
    golden.same(p:detach(), lm.tensor { 0.75, 1.5, 1 })
    assert.equal(2, mine.state[p].step)
    golden.same(mine.state[p].buffer, lm.tensor { 0, -1.5, 0 })
    local again = Signum { p }
    again:load_state_dict(mine:state_dict())
    assert.equal(0.25, again.param_groups[1].lr)
    golden.same(again.state[p].buffer, lm.tensor { 0, -1.5, 0 })
  end)

  it("that fails may step again; one without advance says so", function()
    local Fails = optim.Optimizer:extend("Fails")
    Fails.spec = { lr = { "number", 1 } }
    local wrong = true
    function Fails:advance(group, params, states, count) -- luacheck: ignore self
      states[1].seen = count
      if wrong then error("mine") end
      params[1]:sub_(params[1].grad, { alpha = group.lr })
    end
    local p = nn.Parameter(lm.ones { 1 })
    p.grad = lm.ones { 1 }
    local opt = Fails { p }
    assert.matches("mine", message(opt.step, opt))
    assert.is_nil(opt.state[p])
    wrong = false
    opt:step()
    assert.equal(0, p:item())
    assert.same({ step = 1, seen = 1 }, opt.state[p])
    local Nothing = optim.Optimizer:extend("Nothing")
    local other = Nothing { p }
    assert.matches("Nothing: define function advance%(group, params, states, count%)", message(other.step, other))
    assert.matches("Fails: lr must be a number of at least 0, got %-1", message(Fails, { p }, { lr = -1 }))
  end)
end)

describe("parameter groups", function()
  it("have their own options, the optimizer's where they give none", function()
    local a, b = nn.Parameter(lm.zeros { 1 }), nn.Parameter(lm.zeros { 1 })
    local opt = optim.SGD({ { params = { a } }, { params = { b }, lr = 0.5, momentum = 0.9 } }, { lr = 0.1 })
    assert.equal(2, #opt.param_groups)
    assert.same({ 0.1, 0.5 }, { opt.param_groups[1].lr, opt.param_groups[2].lr })
    assert.same({ 0, 0.9 }, { opt.param_groups[1].momentum, opt.param_groups[2].momentum })
    for _ = 1, 2 do
      a.grad, b.grad = lm.ones { 1 }, lm.ones { 1 }
      opt:step()
    end
    golden.same(a:detach(), lm.tensor { -0.2 })
    golden.same(b:detach(), lm.tensor { -0.5 - 0.5 * 1.9 })
    opt.param_groups[1].lr = 1 -- as a schedule does
    opt:step()
    golden.same(a:detach(), lm.tensor { -1.2 })
  end)

  it("can be added", function()
    local a, b = nn.Parameter(lm.zeros { 1 }), nn.Parameter(lm.zeros { 1 })
    local opt = optim.AdamW({ a }, { lr = 0.1 })
    opt:add_param_group { params = { b }, weight_decay = 0 }
    assert.same({ 0.1, 0, 0.01 },
      { opt.param_groups[2].lr, opt.param_groups[2].weight_decay, opt.param_groups[1].weight_decay })
    assert.matches("twice", message(opt.add_param_group, opt, { params = { a } }))
    assert.matches("params", message(opt.add_param_group, opt, { a }))
  end)
end)

describe("an optimizer's text", function()
  it("lists its groups", function()
    local opt = optim.Adam({ { params = { nn.Parameter(lm.zeros { 1 }) } }, { params = { nn.Parameter(lm.zeros { 1 }) },
      lr = 0.5 } }, { betas = { 0.8, 0.9 } })
    local text = tostring(opt)
    assert.matches("^Adam %(\nParameter Group 1\n    amsgrad: false\n    betas: %(0.8, 0.9%)\n", text)
    assert.matches("Parameter Group 2\n.*    lr: 0.5\n.*\n%)$", text)
    assert.matches("\n    eps: %(false, 0.001%)\n", tostring(optim.Adafactor { nn.Parameter(lm.zeros { 1 }) }))
  end)
end)

describe("errors of optimizers", function()
  it("say that a group goes into a list", function()
    assert.error_matches(function() optim.SGD({ params = { lm.ones(1) }, lr = 0.1 }) end,
      "SGD: params must be a list of parameters or of groups, got one group; put it in a list: {{params = …}}", 1, true)
  end)

  local function params() return { nn.Parameter(lm.zeros { 1 }) } end
  local cases = {
    { "SGD: lr must be a number of at least 0, got string '0.1'", optim.SGD, params(), "0.1" },
    { "did you mean 'momentum'", optim.SGD, params(), { momentun = 0.9 } },
    { "unknown option 'something_else'", optim.SGD, params(), { something_else = 0.9 } },
    { "net:parameters()", optim.SGD, nn.Linear(1, 1) },
    { "net:parameters()", optim.SGD, lm.zeros { 1 } },
    { "empty", optim.SGD, {} },
    { "parameter 2 must be a tensor, got 3", optim.SGD, { params()[1], 3 } },
    { "parameter 1 must be a leaf, not the result of an op", optim.SGD, { params()[1] * 2 } },
    { "twice", function() local p = params()[1]; optim.SGD { p, p } end },
    { "lr must be a number of at least 0, got -1", optim.SGD, params(), { lr = -1 } },
    { "momentum must be a number of at least 0, got", optim.SGD, params(), { lr = 1, momentum = -1 } },
    { "nesterov needs a momentum", optim.SGD, params(), { lr = 1, nesterov = true } },
    { "nesterov", optim.SGD, params(), { momentum = 0.9, dampening = 0.1, nesterov = true } },
    { "betas[2]", optim.Adam, params(), { betas = { 0.9, 1 } } },
    { "betas", function() optim.Adam(params(), { betas = 0 }); optim.Adam(params(), { betas = "x" }) end },
    { "eps", optim.Adam, params(), { eps = -1 } },
    { "weight_decay", optim.AdamW, params(), { weight_decay = "much" } },
    { "amsgrad", optim.Adam, params(), { amsgrad = 1 } },
    { "Adadelta: rho must be a number from 0 to 1, got 1.5", optim.Adadelta, params(), { rho = 1.5 } },
    { "Rprop: etas[1] must be a number between 0 and 1, got 1", optim.Rprop, params(), { etas = { 1, 2 } } },
    { "etas[2] must be a number above 1, got 1", optim.Rprop, params(), { etas = { 0.5, 1 } } },
    { "betas[1] must be a number from 0 to below 1, got nan", optim.Lion, params(), { betas = { 0 / 0, 0 } } },
    { "NAdam: momentum_decay must be a number of at least 0, got -1", optim.NAdam, params(), { momentum_decay = -1 } },
    { "AdamW: unknown option 'decoupled_weight_decay'", optim.AdamW, params(), { decoupled_weight_decay = false } },
    { "NAdam:load_state_dict: the state of parameter 1: exp_avg is missing", function()
      optim.NAdam(params()):load_state_dict { state = { { step = 1, mu_product = 1 } }, param_groups = { {
        params = { 1 } } } }
    end },
    { "SGD:load_state_dict: the state of parameter 1: momentum_buffer must be a tensor, got 3", function()
      optim.SGD(params()):load_state_dict { state = { { momentum_buffer = 3 } }, param_groups = { { params = { 1 } } } }
    end },
    { "NAdam:load_state_dict: the state of parameter 1: mu_product must be a number", function()
      local t = lm.zeros { 1 }
      optim.NAdam(params()):load_state_dict { state = { { step = 1, exp_avg = t, exp_avg_sq = t } }, param_groups = { {
        params = { 1 } } } }
    end },
    { "Adam:load_state_dict: the state of parameter 1: step must be an integer of at least 1, got nil", function()
      local t = lm.zeros { 1 }
      optim.Adam(params()):load_state_dict { state = { { exp_avg = t, exp_avg_sq = t } }, param_groups = { {
        params = { 1 } } } }
    end },
    { "LAMB: betas[2] must be a number from 0 to below 1, got 1", optim.LAMB, params(), { betas = { 0, 1 } } },
    { "LAMB:load_state_dict: the state of parameter 1: exp_avg_sq is missing", function()
      optim.LAMB(params()):load_state_dict { state = { { step = 1, exp_avg = lm.zeros { 1 } } }, param_groups = { {
        params = { 1 } } } }
    end },
    { "Muon: parameter 2 must be 2-d, got a tensor [1]; use optim.AdamW for other parameters",
      optim.Muon, { nn.Parameter(lm.zeros { 2, 2 }), params()[1] } },
    { "Muon: ns_coefficients must be a list of three numbers, got a table",
      optim.Muon, { lm.zeros { 2, 2 } }, { ns_coefficients = { 1, 2 } } },
    { "Muon: ns_coefficients[2] must be a number, got string 'x'",
      optim.Muon, { lm.zeros { 2, 2 } }, { ns_coefficients = { 1, "x", 2 } } },
    { "Muon: ns_steps must be an integer from 0 to 99, got 100",
      optim.Muon, { lm.zeros { 2, 2 } }, { ns_steps = 100 } },
    { "Muon: adjust_lr_fn must be one of 'original', 'match_rms_adamw', 'spectral_unclamped', got string",
      optim.Muon, { lm.zeros { 2, 2 } }, { adjust_lr_fn = "none" } },
    { "Adafactor: d must be at least 1, got 0.5", optim.Adafactor, params(), { d = 0.5 } },
    { "Adafactor: beta2_decay must be at most 0, got 0.8", optim.Adafactor, params(), { beta2_decay = 0.8 } },
    { "Adafactor: eps[1] must be a number of at least 0, got -1", optim.Adafactor, params(), { eps = { -1, 1 } } },
    { "Adafactor: eps[2] is missing or nil; expected a number of at least 0",
      optim.Adafactor, params(), { eps = { 1 } } },
    { "Adafactor:load_state_dict: the state of parameter 1: variance, or row_var and col_var, is missing", function()
      optim.Adafactor(params()):load_state_dict { state = { { step = 1 } }, param_groups = { { params = { 1 } } } }
    end },
    { "col_var of parameter 1 is a tensor [2, 3], but the parameter is a tensor [2, 3]", function()
      local t = lm.zeros { 2, 3 }
      optim.Adafactor({ t }):load_state_dict { param_groups = { { params = { 1 } } },
        state = { { step = 1, row_var = lm.zeros(2, 1), col_var = t } } }
    end },
    { "Adafactor:load_state_dict: variance of parameter 1 is a tensor [2, 3]", function()
      local t = lm.zeros { 2, 3 }
      optim.Adafactor({ t }):load_state_dict { state = { { step = 1, variance = t } }, param_groups = { {
        params = { 1 } } } }
    end },
    { "optim has no 'SparseAdam'; gradients of Embedding are dense here: optim.Adam",
      function() return optim.SparseAdam end },
    { "kind must be an optimizer's name such as \"SGD\"", lm.core.optim_step, { kind = "sgd" } },
    { "exp_avg[1] must be a tensor",
      lm.core.optim_step, { kind = "Lion", params = params(), grads = params(), step = 1 } },
    { "Lion: shapes of parameter 1 and its exp_avg must match, got [1] and [2]",
      lm.core.optim_step,
      { kind = "Lion", params = params(), grads = params(), states = { exp_avg = { lm.zeros { 2 } } } } },
    { "lr must be a number", lm.core.optim_step, { kind = "Lion", params = params(), options = { "much" } } },
    { "step must be at least 1, got 0", lm.core.optim_step, { kind = "Lion", params = {}, step = 0 } },
    { "optim_step: carried.mu must be a number, got nil",
      lm.core.optim_step, { kind = "ASGD", params = {}, carried = { 1 } } },
  }
  for k, case in ipairs(cases) do
    it(("%d: %s"):format(k, case[1]), function()
      assert.matches(case[1], message(unpack(case, 2, table.maxn(case))), 1, true)
    end)
  end

  it("are raised at the caller's line", function()
    local text = message(function() optim.SGD(params(), "0.1") end)
    assert.matches("optim_spec.lua:%d+:", text)
  end)
end)

describe("an optimizer's state_dict", function()
  for name, row in pairs(every) do
    it("goes on to the same bits: " .. name, function()
      local a = parameters("float64", row[1])
      local first = optim[row[1]](a, row[2])
      for k = 1, 3 do
        set_grads(a, k, "float64")
        first:step()
      end
      local b = {}
      for n = 1, 2 do b[n] = nn.Parameter(a[n]:detach():clone()) end
      local second = optim[row[1]](b, { lr = 7 }) -- the state brings its own options
      second:load_state_dict(first:state_dict())
      for k = 4, STEPS do
        set_grads(a, k, "float64")
        set_grads(b, k, "float64")
        first:step()
        second:step()
      end
      assert.is_true(flat(a):equal(flat(b)))
    end)
  end

  it("numbers parameters from 1 and copies tensors when loading", function()
    local params = parameters("float32")
    local opt = optim.Adam({ { params = { params[1] } }, { params = { params[2] }, lr = 0.5 } })
    set_grads(params, 1, "float32")
    opt:step()
    local state = opt:state_dict()
    assert.same({ 1 }, state.param_groups[1].params)
    assert.same({ 2 }, state.param_groups[2].params)
    assert.equal(0.5, state.param_groups[2].lr)
    assert.equal(1, state.state[2].step)
    assert.same({ 5 }, state.state[2].exp_avg.shape)
    local fresh = parameters("float64")
    local other = optim.Adam { { params = { fresh[1] } }, { params = { fresh[2] } } }
    other:load_state_dict(state)
    assert.equal("float64", other.state[fresh[1]].exp_avg.dtype)
    assert.is_false(other.state[fresh[1]].exp_avg == state.state[1].exp_avg)
    assert.is_nil(state.param_groups[1].params[2])
  end)

  it("may have numbers as tensors of no dims, as PyTorch has, for a parameter of no dims too", function()
    for _, shape in ipairs { {}, { 1 } } do
      local p, t = nn.Parameter(lm.zeros(shape)), lm.full({}, 0.5)
      local opt = optim.NAdam { p }
      opt:load_state_dict { param_groups = { { params = { 0 }, foreach = false } }, state = { [0] = {
        step = lm.full({}, 3), mu_product = t, exp_avg = lm.full(shape, 2), exp_avg_sq = lm.full(shape, 4) } } }
      assert.same({ 3, 0.5 }, { opt.state[p].step, opt.state[p].mu_product })
      assert.same({ 2, 4 }, { opt.state[p].exp_avg:item(), opt.state[p].exp_avg_sq:item() })
    end
    local p = nn.Parameter(lm.zeros { 2 })
    local opt = optim.SGD({ p }, { momentum = 0.9, dampening = 0.5 })
    opt:load_state_dict { param_groups = { { params = { 0 }, lr = 1, momentum = 0.5, dampening = 0.5 } },
      state = { [0] = { momentum_buffer = lm.ones { 2 } } } }
    p.grad = lm.ones { 2 }
    opt:step() -- a later step: the buffer becomes 0.5 + 0.5 * 1
    golden.same(p:detach(), lm.tensor { -1, -1 })
    assert.equal(2, opt.state[p].step)
  end)

  it("of another shape is an error that changes nothing", function()
    local params = parameters("float32")
    local opt = optim.SGD(params, { lr = 0.1, momentum = 0.9 })
    set_grads(params, 1, "float32")
    opt:step()
    local state, before = opt:state_dict(), opt.state[params[1]].momentum_buffer
    for shown, list in pairs { ["1 in"] = { 1 }, ["no list of them in"] = false } do
      local bad = opt:state_dict()
      bad.param_groups[1].params = list
      assert.matches(("group 1 has %d parameters in the optimizer, %s the state_dict; pass the optimizer the "
        .. "parameters of the model"):format(#params, shown), message(opt.load_state_dict, opt, bad), 1, true)
    end
    state.state[1].momentum_buffer = lm.zeros { 9 }
    assert.matches("momentum_buffer of parameter 1 is a tensor [9]", message(opt.load_state_dict, opt, state), 1, true)
    assert.matches("groups", message(opt.load_state_dict, opt, { state = {}, param_groups = { {}, {} } }))
    assert.matches("param_groups", message(opt.load_state_dict, opt, 3))
    assert.is_true(opt.state[params[1]].momentum_buffer == before)
  end)
end)

describe("a schedule gives PyTorch's rates:", function()
  local function rates(make, count, change)
    local opt = optim.SGD({ { params = { nn.Parameter(lm.zeros { 1 }) } },
      { params = { nn.Parameter(lm.zeros { 1 }) }, lr = 0.03 } }, { lr = 0.1 })
    local schedule, seen = make(opt), {}
    local function look()
      seen[#seen + 1] = { opt.param_groups[1].lr, opt.param_groups[2].lr }
      assert.same(seen[#seen], schedule:get_last_lr())
    end
    look()
    for k = 1, count do
      if k == change then opt.param_groups[1].lr = 0.5 end
      opt:step()
      schedule:step()
      look()
    end
    return lm.tensor(seen, { dtype = "float64" })
  end
  local function check(name, got) golden.same(got, stored["rate." .. name], { 1e-12, 1e-15 }) end

  it("StepLR", function()
    check("step", rates(function(opt) return schedules.StepLR(opt, 3) end, 10))
    check("step_gamma", rates(function(opt) return schedules.StepLR(opt, 2, { gamma = 0.5 }) end, 9, 6))
  end)

  it("CosineAnnealingLR", function()
    check("cosine", rates(function(opt) return schedules.CosineAnnealingLR(opt, 10) end, 10))
    check("cosine_min", rates(function(opt) return schedules.CosineAnnealingLR(opt, 4, { eta_min = 0.01 }) end, 17))
    check("cosine_changed",
      rates(function(opt) return schedules.CosineAnnealingLR(opt, 8, { eta_min = 0.01 }) end, 12, 6))
  end)

  it("and goes on from a state_dict", function()
    for _, make in ipairs { function(opt) return schedules.StepLR(opt, 2) end,
      function(opt) return schedules.CosineAnnealingLR(opt, 5) end } do
      local function start()
        local opt = optim.SGD({ nn.Parameter(lm.zeros { 1 }) }, { lr = 0.1 })
        return opt, make(opt)
      end
      local opt, schedule = start()
      for _ = 1, 3 do schedule:step() end
      local again, other = start()
      again:load_state_dict(opt:state_dict())
      other:load_state_dict(schedule:state_dict())
      for _ = 1, 4 do
        schedule:step()
        other:step()
        assert.equal(opt.param_groups[1].lr, again.param_groups[1].lr)
      end
      assert.equal(7, other.last_epoch)
    end
  end)

  it("and takes in groups that are added later", function()
    local opt = optim.SGD({ nn.Parameter(lm.zeros { 1 }) }, { lr = 0.1 })
    local step, cosine = schedules.StepLR(opt, 2), schedules.CosineAnnealingLR(opt, 2)
    opt:add_param_group { params = { nn.Parameter(lm.zeros { 1 }) }, lr = 0.5 }
    for _ = 1, 5 do
      step:step()
      cosine:step()
    end
    assert.same({ 0.1, 0.5 }, cosine.base_lrs)
    assert.equal(2, #step:get_last_lr())
  end)

  it("and names wrong arguments", function()
    local opt = optim.SGD({ nn.Parameter(lm.zeros { 1 }) }, { lr = 0.1 })
    assert.matches("optimizer", message(schedules.StepLR, 3, 2))
    assert.matches("step_size", message(schedules.StepLR, opt))
    assert.matches("StepLR: takes at most 4 arguments, got 5: optimizer, step_size, gamma, last_epoch",
      message(schedules.StepLR, opt, 2, 0.5, -1, 1))
    assert.matches("T_max", message(schedules.CosineAnnealingLR, opt, 0))
    local schedule = schedules.StepLR(opt, 2)
    local empty = { base_lrs = {}, last_lr = {}, last_epoch = 1 }
    assert.matches("base_lrs must have 1 entry, one for each", message(schedule.load_state_dict, schedule, empty))
    assert.matches("table", message(schedule.load_state_dict, schedule))
  end)
end)

describe("the options of an optimizer of one's own", function()
  it("are told by kind and default", function()
    local Own = optim.Optimizer:extend("Own")
    Own.spec = { lr = 0.1 }
    assert.error_matches(function() Own { lm.ones(1) } end,
      'Own: the row of option lr must be a list {kind, default}, such as {"number", 0%.1}, got 0%.1')
    Own.spec = { lr = { "float", 0.1 } }
    assert.error_matches(function() Own({ lm.ones(1) }, { lr = 1 }) end,
      "Own: lr: unknown kind of option string 'float'; kinds are any, boolean, callable, count, dim, dims, finite,")
  end)
end)

describe("hooks of a step", function()
  it("run before and after it, until they are removed", function()
    for _, make in ipairs { optim.SGD, optim.LBFGS } do
      local p = lm.ones({ 1 }, { requires_grad = true })
      local opt, seen = make({ p }, { lr = 0.5 }), {}
      local function closure()
        opt:zero_grad()
        local loss = (p * 2):sum()
        loss:backward()
        return loss
      end
      local before = opt:register_step_pre_hook(function(o, c)
        assert.equal(opt, o)
        assert.equal(closure, c)
        seen[#seen + 1] = "before at " .. p:item()
      end)
      opt:register_step_post_hook(function() seen[#seen + 1] = "after" end)
      assert.equal(2, opt:step(closure):item())
      assert.same({ "before at 1", "after" }, seen)
      assert.is_true(p:item() < 1)
      before.remove()
      opt:step(closure)
      assert.same({ "before at 1", "after", "after" }, seen)
      assert.error_matches(function() opt:register_step_post_hook(3) end, "the hook must be a function, got 3")
    end
  end)
end)

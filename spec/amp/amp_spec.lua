-- Mixed precision: core.rescale, GradScaler against PyTorch's trajectory (gen_golden.py _scaler), and
-- apex's interface, lm.amp. LM_SPEC_DEVICE=cuda runs them there.
local lm = require "luminary"
local golden = require "spec.support.golden"
local ddp = require "spec.support.ddp"
local message = require "spec.support.error_of"
local core, nn, F, optim = lm.core, lm.nn, lm.nn.functional, lm.optim

local device = os.getenv "LM_SPEC_DEVICE" or "cpu"

describe("rescale", function()
  local lows = { "float16", "bfloat16", "float32", "float64" }

  it("multiplies many tensors of all dtypes, layouts and sizes, and finds what is not finite", function()
    for _, x in ipairs(lows) do
      for _, y in ipairs(lows) do
        local from, to, want = {}, {}, {}
        for i, size in ipairs { { 3, 5 }, { 0 }, { 40001 }, {}, { 2, 3, 4, 5 }, { 7 } } do
          local t = (lm.rand(size) * 64):floor():to(x):to(device)
          if i == 1 then t = t:t():contiguous():t() end
          if i == 5 then t = t:contiguous { memory_format = "channels_last" } end
          if i == 6 then t = lm.zeros({ 14 }, { dtype = x, device = device }):slice(1, 1, 14, 2):copy_(t) end
          from[i], to[i] = t, lm.zeros(size, { dtype = y, device = device })
          want[i] = (t:double() * 0.25):to(y)
        end
        assert.equal(0, core.rescale(from, to, 0.25):item())
        for i, t in ipairs(to) do assert(lm.equal(t, want[i]), x .. " to " .. y .. ", tensor " .. i) end
        for _, bad in ipairs { math.huge, -math.huge, 0 / 0 } do
          local one = from[3]:clone()
          one[40001] = bad
          assert.equal(1, core.rescale({ from[1], one, from[5] }, { to[1], to[3], to[5] }, 1):item())
        end
        if x == y then
          local kept = from[3]:clone()
          assert.equal(0, core.rescale(from, nil, 0.5):item())
          assert(lm.equal(from[3], (kept:double() * 0.5):to(x)))
          assert(lm.equal(from[6], want[6] * 2), "a strided one, in place")
        end
      end
    end
  end)

  it("serves more tensors than one launch takes, and several devices", function()
    local list = {}
    for i = 1, 300 do list[i] = lm.full({ i % 7 }, i, { device = device }) end
    assert.equal(0, core.rescale(list, nil, 2):item())
    for i = 1, 300 do
      if i % 7 > 0 then assert.equal(2 * i, list[i][1]) end
    end
    local a, b = lm.ones { 2 }, lm.ones({ 2 }, { device = "cpu:1" })
    b[2] = 0 / 0
    assert.equal(1, core.rescale({ a, b }, nil, 1):item())
    assert.equal(1, core.rescale({ b, a }, nil, 1):item())
    assert.equal(0, core.rescale({ a }, nil, 1):item())
    assert.equal(0, core.rescale({}, nil, 1):item())
  end)

  it("refuses what does not fit", function()
    local x = lm.ones({ 2 }, { device = device })
    assert.matches("rescale: shapes of from%[1%] and to%[1%] must match, got %[2%] and %[3%]",
      message(core.rescale, { x }, { lm.ones({ 3 }, { device = device }) }, 1))
    assert.matches("tensor 1 must be floating point, got int64", message(core.rescale, { x:long() }, nil, 1))
    assert.matches("the number of tensors in to must be 1 as in from, got 2", message(core.rescale, { x }, { x, x }, 1))
    assert.matches("share memory", message(core.rescale, { x:view(2, 1):expand(2, 2) }, nil, 1))
  end)
end)

describe("GradScaler", function()
  local stored
  setup(function() stored = golden.load("_scaler") end)
  teardown(function() stored = nil end)

  local function run(options, check)
    local ps = {}
    for k = 1, 2 do ps[k] = nn.Parameter(stored.start[k]:clone():to(device)) end
    local opts = { optim.SGD({ ps[1] }, { lr = 0.05, momentum = 0.9 }), optim.Adam({ ps[2] }, { lr = 0.05 }) }
    local scaler = lm.GradScaler(options)
    for step = 1, 50 do
      local x = stored.x[step]:to(device)
      local losses = scaler:scale { (x:matmul(ps[1])):square():mean(),
        (x:narrow(2, 1, 2):matmul(ps[2]:narrow(1, 1, 2)) - 1):square():mean() }
      for k, loss in ipairs(losses) do
        opts[k]:zero_grad()
        loss:backward()
      end
      if step % 2 == 0 then
        scaler:unscale_(opts[1])
        nn.utils.clip_grad_norm_({ ps[1] }, 1)
      end
      check(step, function()
        scaler:step(opts[1])
        scaler:step(opts[2])
        scaler:update()
      end, ps, opts, scaler)
    end
  end

  local planted = { [7] = true, [8] = true, [21] = true, [34] = true, [50] = true }
  for name, options in pairs {
    two = { init_scale = 1024, growth_interval = 4 },
    odd = { init_scale = 1000, growth_factor = 1.3, backoff_factor = 0.7, growth_interval = 3 },
  } do
    it("takes PyTorch's course over 50 steps: " .. name, function()
      run(options, function(step, make, ps, _, scaler)
        make()
        assert.equal(stored[name .. ".scale"][step], scaler:get_scale())
        local after = lm.stack { ps[1].data, ps[2].data }:cpu()
        assert.is_nil(golden.differs(after, stored[name .. ".after"][step], { 2e-5, 2e-6 }))
      end)
    end)
  end

  it("skips a step with an overflow to the bit: weights, momentum and counts stay, the scale halves", function()
    run({ init_scale = 1024, growth_interval = 4 }, function(step, make, ps, opts, scaler)
      local function all()
        local list = { ps[1].data:clone(), ps[2].data:clone() }
        for k, names in ipairs { { "momentum_buffer" }, { "exp_avg", "exp_avg_sq" } } do
          local state = opts[k]:state_dict().state[1] or {}
          for _, field in ipairs(names) do
            list[#list + 1] = state[field] and state[field]:clone() or lm.zeros({ 3 }, { device = device })
          end
          list[#list + 1] = lm.tensor { state.step or 0 }
        end
        return list
      end
      local before, scale = all(), scaler:get_scale()
      make()
      for i, t in ipairs(all()) do
        local first = i == 1 or i == 3 or i == 4 -- the loss of these steps overflows
        assert.equal(planted[step] == true and first, lm.equal(t, before[i]), ("step %d, %d"):format(step, i))
      end
      if planted[step] then assert.equal(scale / 2, scaler:get_scale()) end
    end)
  end)

  local function small(options)
    local p = nn.Parameter(lm.ones({ 2 }, { device = device }))
    return p, optim.SGD({ p }, { lr = 0.5 }), lm.GradScaler(options)
  end

  it("makes a float16 loss float32, and scales lists of lists", function()
    local _, _, scaler = small()
    local loss = lm.ones({}, { dtype = "float16", device = device })
    assert.equal("float32", scaler:scale(loss).dtype)
    assert.equal(65536, scaler:scale(loss):item())
    assert.equal(131072, scaler:scale({ { loss * 2 } })[1][1]:item())
  end)

  it("does nothing where it is not enabled", function()
    local p, opt, scaler = small { enabled = false }
    local loss = p:sum()
    assert.equal(loss, scaler:scale(loss))
    loss:backward()
    scaler:unscale_(opt)
    assert.equal(7, scaler:step(opt, function() return 7 end))
    local wanted = "expected an optimizer, got nil"
    assert.error_matches(function() scaler:step() end, wanted)
    assert.error_matches(function() scaler.step(opt) end, wanted)
    scaler:update()
    assert.same({ 0.5, 0.5 }, p:totable())
    assert.equal(1, scaler:get_scale())
    assert.same({}, scaler:state_dict())
    assert.is_false(scaler:is_enabled())
  end)

  it("says what is called in a wrong order", function()
    local p, opt, scaler = small()
    assert.matches("GradScaler:step: no loss was scaled since the last update%(%)", message(scaler.step, scaler, opt))
    assert.matches("GradScaler:update: no step since the last update%(%)", message(scaler.update, scaler))
    local loss = scaler:scale(p:sum())
    assert.matches("no parameter of this optimizer has a gradient", message(scaler.step, scaler, opt))
    loss:backward()
    scaler:unscale_(opt)
    assert.same({ 1, 1 }, p.grad:totable())
    assert.matches("already called for this optimizer since the last", message(scaler.unscale_, scaler, opt))
    assert.matches("closures are not supported", message(scaler.step, scaler, opt, print))
    scaler:step(opt)
    assert.matches("already called for this optimizer since the last update%(%)", message(scaler.step, scaler, opt))
    assert.matches("called after step%(%)", message(scaler.unscale_, scaler, opt))
    scaler:update()
    assert.matches("no loss was scaled since the last update%(%)", message(scaler.unscale_, scaler, opt))
    assert.matches("expected an optimizer, got 3", message(scaler.step, scaler, 3))
    assert.matches("a tensor or a list of tensors", message(scaler.scale, scaler, "x"))
    assert.matches("unknown option 'init_scal'; did you mean", message(lm.GradScaler, { init_scal = 1 }))
    assert.matches("growth_factor must be a number above 1, got 1", message(lm.GradScaler, { growth_factor = 1 }))
    for _, scale in ipairs { 0, -1, 0 / 0, 1 / 0, 1e300, 1e-60 } do
      assert.matches("init_scale must be a number from 2^-126 to 2^126, got ", message(lm.GradScaler,
        { init_scale = scale }), 1, true)
      assert.matches("new_scale must be a number from 2^-126 to 2^126, got ", message(lm.GradScaler().update,
        lm.GradScaler(), scale), 1, true)
    end
    assert.matches("backoff_factor must be a number between 0 and 1, got 1",
      message(lm.GradScaler, { backoff_factor = 1 }))
    local half = nn.Parameter(lm.ones({ 2 }, { dtype = "float16", device = device }))
    scaler:scale(half:sum()):backward()
    assert.matches("cannot unscale gradients of float16 parameters",
      message(scaler.step, scaler, optim.SGD({ half }, { lr = 1 })))
  end)

  it("stays a scale after however many overflows", function()
    local p, opt, scaler = small { init_scale = 2 ^ -125 }
    for _ = 1, 3 do
      scaler:scale(p:sum() * math.huge):backward()
      scaler:step(opt)
      scaler:update()
    end
    assert.equal(2 ^ -126, scaler:get_scale())
  end)

  it("is saved and goes on, is set by update, and changes its factors", function()
    local p, opt, scaler = small { init_scale = 16, growth_interval = 3 }
    local function step()
      scaler:scale(p:sum()):backward()
      scaler:step(opt)
      scaler:update()
    end
    step()
    step()
    local other = lm.GradScaler()
    other:load_state_dict(scaler:state_dict())
    assert.same({ scale = 16, growth_factor = 2, backoff_factor = 0.5, growth_interval = 3, _growth_tracker = 2 },
      other:state_dict())
    scaler = other
    step()
    assert.equal(32, scaler:get_scale())
    scaler:update(8)
    scaler:update(lm.tensor { 4 })
    assert.equal(4, scaler:get_scale())
    scaler:set_growth_interval(1)
    scaler:set_growth_factor(3)
    step()
    assert.equal(12, scaler:get_scale())
    assert.matches("update: new_scale", message(scaler.update, scaler, "x"))
    assert.matches("the state is empty", message(scaler.load_state_dict, scaler, {}))
    assert.matches("the state has no 'scale'", message(scaler.load_state_dict, scaler, { growth_factor = 2 }))
    assert.matches("GradScaler%(scale = 12", tostring(scaler))
  end)

  it("trains in float16 where gradients without scale would vanish", function()
    local w = nn.Parameter(lm.ones({ 4, 4 }, { device = device }))
    local x = lm.full({ 1, 4 }, 2 ^ -14, { device = device })
    local function loss()
      return lm.autocast({ device = device, dtype = "float16" }, function() return (x:mm(w) * 2 ^ -14):sum() end)
    end
    loss():backward()
    assert.equal(0, w.grad:max():item())
    w.grad = nil
    local scaler = lm.GradScaler { init_scale = 1024 }
    scaler:scale(loss()):backward()
    scaler:unscale_(optim.SGD({ w }, { lr = 1 }))
    assert.equal(2 ^ -28, w.grad:max():item())
  end)
end)

describe("GradScaler on several ranks", function()
  it("decides alike on all: an overflow on one skips the step on each", function()
    ddp.succeeds(2, [[
      lm.manual_seed(3)
      local net = DDP(nn.Linear(4, 2))
      local opt, scaler = optim.SGD(net:parameters(), {lr = 0.1, momentum = 0.9}), lm.GradScaler {init_scale = 256}
      for step = 1, 6 do
        local x = lm.randn {8, 4}
        if step % 3 == 0 and rank == 1 then x[{2, 1}] = math.huge end
        local before = net.module.weight.data:clone()
        opt:zero_grad()
        scaler:scale(lm.autocast({device = "cpu"}, function() return net(x):float():square():mean() end)):backward()
        if step % 2 == 0 then scaler:unscale_(opt) end
        scaler:step(opt)
        scaler:update()
        assert(lm.equal(before, net.module.weight.data) == (step % 3 == 0), "step " .. step)
      end
      assert(scaler:get_scale() == 64)
      local sum = dist.all_reduce(net.module.weight.data:clone())
      assert(lm.equal(sum, net.module.weight.data * 2))
    ]])
  end)
end)

describe("amp", function()
  local amp = lm.amp

  local function make(seed)
    lm.manual_seed(seed or 1)
    local net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3))
    net:to(device)
    return net, optim.SGD(net:parameters(), { lr = 0.1, momentum = 0.9 })
  end
  local x, y
  setup(function()
    lm.manual_seed(2)
    x, y = lm.randn({ 8, 1, 6, 6 }):to(device), lm.randint(1, 4, { 8 }):to(device)
  end)
  teardown(function() x, y = nil, nil end)

  local function step(net, opt, factor)
    local out = net(x)
    local loss = F.cross_entropy(out, y)
    opt:zero_grad()
    amp.scale_loss(factor and loss * factor or loss, opt, function(scaled) scaled:backward() end)
    opt:step()
    return loss:item(), out
  end

  local function losses(options, n)
    local net, opt = make()
    if options then net, opt = amp.initialize(net, opt, options) end
    local list = {}
    for i = 1, n or 8 do
      if options then
        list[i] = step(net, opt)
      else
        local loss = F.cross_entropy(net(x), y)
        opt:zero_grad()
        loss:backward()
        opt:step()
        list[i] = loss:item()
      end
    end
    return list, net, opt
  end

  local want
  setup(function()
    lm.backends.cudnn.deterministic = true -- some results are compared to the bit
    want = losses()
  end)
  teardown(function() lm.backends.cudnn.deterministic = false end)

  for level, kinds in pairs {
    O0 = { "float32", "float32", "float32" }, O1 = { "float32", "float32", "float32" },
    O2 = { "low", "float32", "float32" }, O3 = { "low", "low", "low" },
  } do
    it(level .. " follows float32", function()
      local low = device:sub(1, 3) == "cpu" and "bfloat16" or "float16"
      for _, more in ipairs { {}, { loss_scale = 128 }, { loss_scale = "dynamic" } } do
        more.opt_level = level
        local got, net, opt = losses(more)
        for i, loss in ipairs(got) do
          assert(math.abs(loss - want[i]) < 0.03 * want[i] + 3e-3, ("step %d: %g, %g"):format(i, loss, want[i]))
        end
        local function kind(i) return kinds[i] == "low" and low or kinds[i] end
        assert.equal(kind(1), net[1].weight.dtype)
        assert.equal(kind(2), net[2].weight.dtype)
        assert.equal(kind(2), net[2].running_mean.dtype)
        assert.equal("int64", net[2].num_batches_tracked.dtype)
        assert.equal("float32", net(x).dtype)
        local masters = amp.master_params(opt)
        assert.equal(6, #masters)
        for _, p in ipairs(masters) do assert.equal(kind(3), p.dtype) end
        assert.equal(masters[1], opt.param_groups[1].params[1])
      end
    end)
  end

  it("O2 steps masters, whose rounded values the weights are", function()
    local _, net, opt = losses { opt_level = "O2" }
    local masters = amp.master_params(opt)
    for i, p in ipairs(net:parameters()) do assert(lm.equal(masters[i]:to(p.dtype), p.data)) end
    assert.is_false(lm.equal(masters[1], net[1].weight:float()))
    assert.equal("float32", opt:state_dict().state[1].momentum_buffer.dtype)
    opt:zero_grad()
    assert.is_nil(net[1].weight.grad)
    assert.is_nil(masters[1].grad)
    net(x):float():sum():backward() -- the master weights get no gradient of this
    assert.matches("step: the master weights have no gradients",
      message(opt.step, opt))
  end)

  it("leaves a step with an overflow out, with the weights as they were, and halves the scale", function()
    for _, level in ipairs { "O1", "O2" } do
      local net, opt = make()
      amp.initialize(net, opt, { opt_level = level, loss_scale = "dynamic" })
      step(net, opt)
      local before, masters = net[1].weight.data:clone(), amp.master_params(opt)[1].data:clone()
      step(net, opt, math.huge)
      assert(lm.equal(before, net[1].weight.data))
      assert(lm.equal(masters, amp.master_params(opt)[1].data))
      assert.same({ loss_scaler0 = { loss_scale = 32768, unskipped = 0 } }, amp.state_dict())
      step(net, opt)
      assert.is_false(lm.equal(before, net[1].weight.data))
    end
  end)

  it("keeps dynamic scales between their limits, one a loss, and saves them", function()
    local net, opt = make()
    amp.initialize(net, opt, { num_losses = 2, min_loss_scale = 2 ^ 15, max_loss_scale = 2 ^ 16 })
    for _ = 1, 3 do
      opt:zero_grad()
      local loss = net(x):sum() * math.huge
      amp.scale_loss(loss, opt, function(scaled) scaled:backward() end, { loss_id = 2 })
      opt:step()
    end
    local saved = amp.state_dict()
    assert.same({ loss_scaler0 = { loss_scale = 2 ^ 16, unskipped = 0 },
      loss_scaler1 = { loss_scale = 2 ^ 15, unskipped = 0 } }, saved)
    net, opt = make()
    amp.initialize(net, opt, { num_losses = 2 })
    amp.load_state_dict(saved)
    assert.same(saved, amp.state_dict())
    assert.matches("loss_id %(3%) must be at most num_losses %(2%) of", message(amp.scale_loss, net(x):sum(), opt,
      function() end, { loss_id = 3 }))
    amp.initialize(make())
    assert.matches("the state has 'loss_scaler1', but there are 1 losses", message(amp.load_state_dict, saved))
  end)

  it("adds up gradients over backward passes, delayed or not", function()
    for _, level in ipairs { "O0", "O1", "O2" } do
      for _, delay in ipairs { true, false } do
        local net, opt = make()
        amp.initialize(net, opt, { opt_level = level, loss_scale = 64 })
        net:eval()
        opt:zero_grad()
        for pass = 1, 3 do
          amp.scale_loss(F.cross_entropy(net(x), y), opt, function(scaled) scaled:backward() end,
            { delay_unscale = delay and pass < 3 })
        end
        local thrice = amp.master_params(opt)[1].grad:clone()
        opt:zero_grad()
        amp.scale_loss(F.cross_entropy(net(x), y), opt, function(scaled) scaled:backward() end)
        local once = amp.master_params(opt)[1].grad
        assert((thrice - once * 3):norm():item() < 0.01 * thrice:norm():item(), level)
      end
    end
  end)

  it("takes lists of models and optimizers, and groups added later", function()
    local a, b = make(1), make(2)
    local opts = { optim.SGD(a:parameters(), { lr = 0.1 }), optim.Adam({ b[1].weight }) }
    local models, optimizers = amp.initialize({ a, b }, opts, { opt_level = "O2", loss_scale = 128 })
    assert.equal(a, models[1])
    optimizers[2]:add_param_group { params = { b[5].weight } }
    assert.equal(2, #amp.master_params(optimizers[2]))
    local before = b[5].weight.data:clone()
    for _, opt in ipairs(optimizers) do opt:zero_grad() end
    amp.scale_loss(F.cross_entropy(a(x) + b(x), y), optimizers, function(scaled) scaled:backward() end)
    for _, opt in ipairs(optimizers) do opt:step() end
    assert.is_false(lm.equal(before, b[5].weight.data))
  end)

  it("gives weights that were loaded to their masters", function()
    local net, opt = make()
    amp.initialize(net, opt, { opt_level = "O2" })
    local other = make(5)
    net:load_state_dict(other:state_dict())
    step(net, opt, 0)
    assert(lm.equal(other[5].weight:to(net[5].weight.dtype), net[5].weight.data))
  end)

  it("saves masters with the optimizer, of which the model's state_dict has rounded values only", function()
    local _, net, opt = losses { opt_level = "O2" }
    local weights, saved = net:state_dict(), opt:state_dict()
    local twin, its = make(7)
    amp.initialize(twin, its, { opt_level = "O2" })
    twin:load_state_dict(weights)
    its:load_state_dict(saved)
    for _ = 1, 3 do assert.equal(step(net, opt), (step(twin, its))) end
    for i, p in ipairs(amp.master_params(opt)) do assert(lm.equal(p, amp.master_params(its)[i])) end
    for _, wrong in ipairs { 3, lm.ones(1) } do
      local first = saved.master_weights[1]
      saved.master_weights[1] = wrong
      assert.matches("load_state_dict: master weight 1 must be a tensor", message(its.load_state_dict, its, saved))
      saved.master_weights[1] = first
    end
    assert.matches("load_state_dict: master_weights must be a table, got 3", message(its.load_state_dict, its,
      { state = {}, param_groups = {}, master_weights = 3 }))
    table.remove(saved.master_weights)
    assert.matches("load_state_dict: the state_dict has 3 master weights,", message(its.load_state_dict, its, saved))
  end)

  it("casts to what cast_model_type, keep_batchnorm_fp32 and cast_model_outputs say", function()
    local net, opt = make()
    amp.initialize(net, opt, { opt_level = "O2", cast_model_type = "float16", keep_batchnorm_fp32 = "False",
      master_weights = false, cast_model_outputs = "float64", loss_scale = "64" })
    assert.equal("float16", net[1].weight.dtype)
    assert.equal("float16", net[2].weight.dtype)
    assert.equal("float16", amp.master_params(opt)[1].dtype)
    assert.equal("float64", net(x).dtype)
    local seen
    local plain = make()
    plain[4].forward = function(_, h)
      seen = h.dtype
      return h:flatten(2)
    end
    plain[1]:register_forward_hook(function(_, _, out) seen = seen or out.dtype end)
    amp.initialize(plain, { opt_level = "O1", cast_model_type = "float16" })
    plain(x)
    assert.equal("float16", seen)
    plain[4].forward = function(_, h)
      return amp.disable_casts(h.mm, h:flatten(2):float(), lm.ones(64, 64):to(device))
    end
    plain[5].forward = function(_, h)
      seen = h.dtype
      return h
    end
    plain(x)
    assert.equal("float32", seen)
  end)

  it("does nothing where it is not enabled", function()
    local net, opt = make()
    amp.initialize(net, opt, { opt_level = "O3", enabled = false })
    assert.equal("float32", net[1].weight.dtype)
    local loss = net(x):sum()
    assert.equal(7, amp.scale_loss(loss, opt, function(scaled)
      assert.equal(loss, scaled)
      return 7
    end))
  end)

  it("says what is called in a wrong order, and what would work", function()
    local fresh = ("luajit -e %q 2>&1"):format([[local lm = require 'luminary' local p = lm.nn.Linear(1, 1)
      lm.amp.scale_loss(lm.ones(1), lm.optim.SGD(p:parameters(), {lr = 1}), print)]])
    assert.matches("%(command line%):1: amp%.scale_loss: call amp%.initialize%(net, opt, {opt_level = …}%) first",
      io.popen(fresh):read "*a")
    local net, opt = make()
    local wrapped = nn.DataParallel(net, { device_ids = { device } })
    assert.matches("the model is already a DataParallel; call amp%.initialize%(net, opt%) first and wrap the result",
      message(amp.initialize, wrapped, opt))
    assert.matches("the parameter '0%.weight' must be float32, got float16", message(amp.initialize, make():half()))
    assert.matches("opt_level must be \"O0\", \"O1\",", message(amp.initialize, net, opt, { opt_level = "o1" }))
    for _, scale in ipairs { "dynamc", 0, -1, 0 / 0, 1e300, 1e-60 } do
      assert.matches("loss_scale must be a number from 2^-126 to 2^126 or \"dynamic\", got ",
        message(amp.initialize, net, opt, { loss_scale = scale }), 1, true)
    end
    assert.matches("min_loss_scale must be a number from", message(amp.initialize, net, opt,
      { min_loss_scale = 0 / 0 }))
    assert.matches("expected a module or a list of them, got nil", message(amp.initialize))
    assert.matches("master_weights does not apply to opt_level \"O1\", whose weights are float32",
      message(amp.initialize, net, opt, { master_weights = true }))
    assert.matches("keep_batchnorm_fp32 does not apply to opt_level \"O1\", whose weights are all float32",
      message(amp.initialize, net, opt, { keep_batchnorm_fp32 = true }))
    assert.matches("expected a module or a list of them, got 3", message(amp.initialize, 3, opt))
    assert.matches("unknown option 'opt_leve'; did you mean", message(amp.initialize, net, opt, { opt_leve = "O1" }))
    amp.initialize(net, opt, { opt_level = "O2" })
    assert.matches("already called for this model", message(amp.initialize, net, opt))
    assert.matches("expected a function, got nil",
      message(amp.scale_loss, net(x):sum(), opt))
    local _, other = make()
    assert.matches("the optimizer was not passed to", message(amp.scale_loss, net(x):sum(), other, print))
    assert.matches("closures are not supported", message(opt.step, opt, print))
    if device == "cpu" then
      net:to "cpu:1"
      assert.matches("move the model with net:to%(\"cpu:1\"%) before amp.initialize",
        message(amp.scale_loss, lm.ones({ 1 }, { requires_grad = true }), opt, print))
    end
  end)

  it("goes under DataParallel", function()
    if device ~= "cpu" then return pending "cpu:0 and cpu:1 are enough" end
    for _, level in ipairs { "O1", "O2" } do
      local net, opt = make()
      amp.initialize(net, opt, { opt_level = level })
      local seen = {}
      net[5]:register_forward_hook(function(_, _, out) seen[out.device] = out.dtype end)
      local wrapped = nn.DataParallel(net, { device_ids = { "cpu:0", "cpu:1" } })
      for i = 1, 5 do
        local loss = step(wrapped, opt)
        assert(math.abs(loss - want[i]) < 0.1, ("%s, step %d: %g, %g"):format(level, i, loss, want[i]))
      end
      assert.same({ cpu = "bfloat16", ["cpu:1"] = "bfloat16" }, seen)
    end
  end)

  it("goes under DistributedDataParallel and SyncBatchNorm by apex's names", function()
    for _, level in ipairs { "O1", "O2" } do
      ddp.succeeds(2, ([[
        lm.manual_seed(rank + 1)
        local net = lm.parallel.convert_syncbn_model(nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(),
          nn.Flatten(), nn.Linear(64, 3)))
        local opt = optim.SGD(net:parameters(), {lr = 0.1, momentum = 0.9})
        local ok, problem = pcall(lm.amp.initialize, nn.Linear(2, 2), optim.ZeroRedundancyOptimizer(net:parameters(),
          {optimizer_class = optim.SGD, lr = 0.1}), {opt_level = "O2"})
        assert(not ok and tostring(problem):find "ZeroRedundancyOptimizer has no master weights")
        net, opt = lm.amp.initialize(net, opt, {opt_level = "%s", loss_scale = "dynamic"})
        net = lm.parallel.DistributedDataParallel(net)
        lm.manual_seed(10 + rank)
        local x, y = lm.randn {8, 1, 6, 6}, lm.randint(1, 4, {8})
        local first, last
        for step = 1, 10 do
          local loss = F.cross_entropy(net(x), y)
          if step == 4 and rank == 1 then loss = loss * math.huge end
          local before = net.module[1].weight.data:clone()
          opt:zero_grad()
          lm.amp.scale_loss(loss, opt, function(scaled) scaled:backward() end)
          nn.utils.clip_grad_norm_(lm.amp.master_params(opt), 10)
          opt:step()
          assert(lm.equal(before, net.module[1].weight.data) == (step == 4), "step " .. step)
          first, last = first or loss:item(), loss:item()
        end
        assert(last < 0.5 * first, last)
        assert(lm.amp.state_dict().loss_scaler0.loss_scale == 2 ^ 15)
        for _, list in ipairs {net:parameters(), lm.amp.master_params(opt)} do
          for _, p in ipairs(list) do
            assert(lm.equal(dist.all_reduce(p.data:float():clone()), p.data:float() * 2))
          end
        end
      ]]):format(level))
    end
  end)
end)

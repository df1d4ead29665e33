-- Whole-step capture. Runs where there is a CUDA device (or a fake one).
local ffi = require "ffi"
local lm = require "luminary"
local core = require "luminary.core"
if core.device_count("cuda") == 0 then return end
local nn, F, optim = lm.nn, lm.nn.functional, lm.optim

local function net_of(seed)
  lm.manual_seed(seed)
  return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)):to("cuda")
end

local function batches(n)
  lm.manual_seed(5)
  local list = {}
  for k = 1, n do
    list[k] = {lm.randn({4, 6}, {device = "cuda"}), lm.randint(1, 4, {4}, {device = "cuda"})}
  end
  return list
end

local function step_of(net, opt)
  return function(x, y)
    opt:zero_grad()
    local loss = F.cross_entropy(net(x), y)
    loss:backward()
    opt:step()
    return loss
  end
end

-- Returns the numbers that an optimizer keeps of each parameter beside tensors.
local function numbers_of(opt, parameters)
  local list = {}
  for i, p in ipairs(parameters) do
    list[i] = {}
    for key, value in pairs(opt.state[p] or {}) do
      if type(value) == "number" then list[i][key] = value end
    end
  end
  return list
end

describe("a captured step", function()
  local options = {SGD = {lr = 0.1, momentum = 0.9, dampening = 0.5}, Adadelta = {}, Adagrad = {lr_decay = 0.1},
    RAdam = {lr = 0.01, betas = {0.5, 0.9}}, ASGD = {lambd = 0.01, t0 = 3}, NAdam = {lr = 0.01, momentum_decay = 1},
    LAMB = {lr = 0.01, bias_correction = false}}
  local names = {"LAMB", "Muon"}
  for _, entry in ipairs(require "luminary.optim.sgd_adam_rules") do table.insert(names, entry.name) end
  for _, name in ipairs(names) do
    local function make(p)
      local matrices = {p[1], p[3]} -- the weights, all that Muon takes
      return optim[name](name == "Muon" and matrices or p, options[name] or {lr = 0.01})
    end
    it("trains as the eager one does, with " .. name, function()
      local list = batches(6)
      local eager, other = net_of(1), net_of(1)
      local one, two = make(eager:parameters()), make(other:parameters())
      local plain, captured = step_of(eager, one), step_of(other, two)
      local graphed = captured
      local losses = {}
      for _ = 1, 2 do plain(unpack(list[1])) end -- as the warm-up below
      for k = 1, #list do losses[k] = plain(unpack(list[k])):item() end
      graphed = lm.cuda.make_graphed_step(graphed, list[1], {warmup = 2})
      for k = 1, #list do
        assert.near(losses[k], graphed(unpack(list[k])):item(), 1e-5)
      end
      local a, b = eager:parameters(), other:parameters()
      assert.same(numbers_of(one, a), numbers_of(two, b))
      for k = 1, 4 do -- training continues without the graph, then with it again
        local again = k % 2 == 0 and graphed or captured
        assert.near(plain(unpack(list[k])):item(), again(unpack(list[k])):item(), 1e-5)
      end
      for k = 1, #a do assert.is_true(a[k]:allclose(b[k], {atol = 1e-5})) end
      assert.same(numbers_of(one, a), numbers_of(two, b))
    end)
  end

  it("is none of an optimizer that goes by the step's number in Lua", function()
    for _, name in ipairs {"LAMB", "Adafactor"} do
      local x = lm.ones({2, 2}, {device = "cuda", requires_grad = true})
      x.grad = lm.ones({2, 2}, {device = "cuda"})
      local opt = optim[name]({x})
      assert.error_matches(function() lm.cuda.graph(function() opt:step() end, {warmup = 2}) end,
        name .. ": step%(%) depends on the step count and cannot be captured")
      opt:step()
      assert.equal(3, opt.state[x].step)
    end
  end)

  it("has room for the numbers of many optimizers, and says where that ends", function()
    local list = {}
    for i = 1, 171 do
      local x = lm.ones({1}, {device = "cuda", requires_grad = true})
      x.grad = lm.ones({1}, {device = "cuda"})
      list[i] = optim.ASGD({x})
      list[i]:step()
    end
    local function step(n)
      return lm.cuda.graph(function()
        for i = 1, n do list[i]:step() end
      end, {warmup = 0})
    end
    assert.error_matches(function() step(171) end, "ASGD: cannot capture more optimizer steps in one graph")
    step(170):replay()
    assert.equal(2, select(2, next(list[170].state)).step)
    assert.equal(1, select(2, next(list[171].state)).step)
  end)

  it("is not the first one of an optimizer with states", function()
    local x = lm.ones({2}, {device = "cuda", requires_grad = true})
    x.grad = lm.ones({2}, {device = "cuda"})
    for _, make in ipairs {function() return optim.Adam({x}) end,
      function() return optim.SGD({x}, {momentum = 0.9}) end,
      function() return optim.LAMB({x}, {bias_correction = false}) end} do
      local opt = make()
      local ok, err = pcall(lm.cuda.graph, function() opt:step() end, {warmup = 0})
      assert.is_false(ok)
      assert.matches("first step.* once before the capture", err)
      assert.is_nil(opt.state[x])
    end
    local sgd = optim.SGD({x}, {lr = 0.25}) -- plain SGD has no state
    local g = lm.cuda.graph(function() sgd:step() end, {warmup = 0})
    g:replay()
    assert.same({0.75, 0.75}, x:tolist())
  end)

  it("leaves what it kept of an optimizer alone until its last replay is done", function()
    local x = lm.ones({1}, {device = "cuda", requires_grad = true})
    x.grad = lm.ones({1}, {device = "cuda"})
    local opt = optim.ASGD({x})
    opt:step()
    local side, held = lm.cuda.Stream(), {}
    for i = 1, 5 do held[i] = lm.ones({1}, {device = "cuda"}) end
    held[2], held[4] = nil, nil -- for the graph's smaller ones, which would lie beside it otherwise
    collectgarbage()
    collectgarbage()
    local function replay()
      local g = lm.cuda.graph(function() opt:step() end, {warmup = 0})
      lm.cuda.stream(side, function() g:replay() end)
    end
    replay()
    collectgarbage()
    collectgarbage()
    local taken = {} -- one of these gets the freed memory
    for i = 1, 8 do taken[i] = lm.full({256}, 7, {dtype = "float64", device = "cuda"}) end
    lm.cuda.current_stream():synchronize()
    side:synchronize()
    assert.is_table(held)
    for i = 1, 8 do assert.is_true(taken[i]:eq(7):all():item(), "tensor " .. i) end
  end)

  it("is seen by autocast, whose copies of weights are as old as the last replay at most", function()
    local w, x = lm.ones({2, 2}, {device = "cuda", requires_grad = true}), lm.ones({2, 2}, {device = "cuda"})
    w.grad = lm.ones({2, 2}, {device = "cuda"})
    local opt = optim.SGD({w}, {lr = 0.5})
    local g = lm.cuda.graph(function() opt:step() end, {warmup = 0})
    lm.autocast({device = "cuda"}, function()
      for k = 0, 2 do
        assert.equal(2 - k, x:mm(w):detach()[1][1])
        g:replay()
      end
    end)
  end)

  it("may end before a GradScaler's step, and scales by what update made of the scale", function()
    local w, x = lm.ones({4}, {device = "cuda", requires_grad = true}), lm.ones({4}, {device = "cuda"})
    local opt, scaler = optim.SGD({w}, {lr = 0.125}), lm.GradScaler {init_scale = 8, growth_interval = 2}
    local function pass()
      opt:zero_grad()
      scaler:scale((w * x):sum()):backward()
    end
    local function attempt(f) return select(2, pcall(lm.cuda.graph, f, {warmup = 0})) end
    assert.matches("GradScaler:scale: the first call .* cannot be captured; call scale once before", attempt(pass))
    local g = lm.cuda.graph(pass, {warmup = 1})
    local seen = {}
    for _, value in ipairs {math.huge, 1, 1, 0 / 0, 1} do
      x:fill_(value)
      g:replay()
      seen[#seen + 1] = w.grad[1]
      scaler:step(opt)
      scaler:update()
      seen[#seen + 1] = w:detach()[1]
    end
    assert.is_true(seen[7] ~= seen[7])
    seen[7] = "NaN"
    assert.same({math.huge, 1, 4, 0.875, 4, 0.75, "NaN", 0.75, 4, 0.625}, seen)
    assert.matches("GradScaler:step: cannot be captured", attempt(function() scaler:step(opt) end))
    assert.matches("GradScaler:unscale_: cannot be captured", attempt(function() scaler:unscale_(opt) end))
    assert.matches("GradScaler:update: cannot be captured", attempt(function() scaler:update(4) end))
    assert.equal(4, scaler:get_scale())
  end)

  it("is not replayed once a schedule or load_state_dict asks for another one", function()
    local x = lm.ones({2}, {device = "cuda", requires_grad = true})
    x.grad = lm.ones({2}, {device = "cuda"})
    local opt = optim.Adam({x}, {lr = 0.5})
    opt:step()
    local schedule = optim.lr_scheduler.StepLR(opt, {step_size = 2, gamma = 0.5})
    local g = lm.cuda.graph(function() opt:step() end, {warmup = 0})
    g:replay()
    schedule:step()
    g:replay()
    schedule:step()
    local before = x:detach():clone()
    assert.error_matches(function() g:replay() end,
      "replay: Adam's lr is 0.25 but was 0.5 at the capture; capture the graph again")
    opt.param_groups[1].lr, opt.param_groups[1].betas = 0.5, {0.8, 0.999}
    assert.error_matches(function() g:replay() end, "replay: Adam's betas is %(0.8, 0.999%) but was %(0.9, 0.999%) at")
    assert.is_true(lm.equal(before, x:detach()))
    assert.equal(3, opt.state[x].step)
    opt.param_groups[1].betas = {0.9, 0.999}
    g:replay()
    opt:load_state_dict(opt:state_dict())
    assert.error_matches(function() g:replay() end, "replay: Adam has loaded another state since the capture")
  end)

  it("is not replayed once a step beside it left some of its parameters out", function()
    local list = {}
    for i = 1, 2 do
      list[i] = lm.ones({2}, {device = "cuda", requires_grad = true})
      list[i].grad = lm.ones({2}, {device = "cuda"})
    end
    local opt = optim.Adam(list)
    opt:step()
    local g = lm.cuda.graph(function() opt:step() end, {warmup = 0})
    g:replay()
    list[2].grad = nil
    opt:step()
    assert.error_matches(function() g:replay() end, "Adam has stepped some of the captured parameters but not all")
    assert.equal(3, opt.state[list[1]].step)
  end)

  it("draws fresh random numbers at each replay, as eager calls would", function()
    lm.manual_seed(3)
    local g = lm.cuda.graph(function() return lm.rand({1000}, {device = "cuda"}) end, {warmup = 1})
    lm.manual_seed(3)
    lm.rand({1000}, {device = "cuda"}) -- warm-up
    g:replay()
    local first = g.results[1]:clone()
    g:replay()
    assert.is_false(first:equal(g.results[1]))
    lm.manual_seed(3)
    lm.rand({1000}, {device = "cuda"})
    assert.is_true(first:equal(lm.rand({1000}, {device = "cuda"})))
  end)

  it("computes again for backward with the random numbers of its replay", function()
    local function weights(again, captured)
      local net = net_of(1)
      local opt = optim.SGD(net:parameters(), {lr = 0.1})
      local function hidden(x) return F.dropout(net[1](x), {p = 0.5}) end
      local function step(x)
        opt:zero_grad()
        net[3](again and lm.autograd.checkpoint(hidden, x) or hidden(x)):sum():backward()
        opt:step()
      end
      local x = lm.ones({4, 6}, {device = "cuda"})
      lm.manual_seed(7)
      for _ = 1, 2 do step(x) end
      local run = captured and lm.cuda.make_graphed_step(step, {x}, {warmup = 0}) or step
      for _ = 1, 3 do run(x) end
      return net:parameters()
    end
    local want = weights(false, false)
    for i, p in ipairs(weights(true, true)) do assert.is_true(p:allclose(want[i], {atol = 1e-5})) end
  end)

  it("refuses what cannot be captured, and leaves the device usable", function()
    local x = lm.ones({3}, {device = "cuda"})
    local ok, err = pcall(lm.cuda.graph, function() return x:sum():item() end, {warmup = 0})
    assert.is_false(ok)
    assert.matches("captur", err)
    assert.is_false(lm.cuda.is_current_stream_capturing())
    assert.error_matches(function() lm.cuda.graph(function() error("mine") end, {warmup = 0}) end, "mine")
    assert.equal(3, x:sum():item())
    local g = lm.cuda.graph(function()
      assert(lm.cuda.is_current_stream_capturing())
      return x + 1
    end, {warmup = 0})
    x:fill_(4)
    g:replay()
    assert.same({5, 5, 5}, g.results[1]:totable())
  end)

  it("takes inputs from the host while the last replay may still run", function()
    local n = 600000 -- more than is staged anyway
    local step = lm.cuda.make_graphed_step(function(x) return x * 2 end, {lm.ones({n}, {device = "cuda"})})
    local host, got = lm.zeros({n}):pin_memory(), {}
    pcall(ffi.cdef, "long lm_fake_call_count(const char *);")
    local counts, calls = pcall(function() return ffi.C.lm_fake_call_count end)
    local function waits()
      return counts and tonumber(calls "cudaStreamSynchronize" + calls "cudaEventSynchronize")
    end
    lm.cuda.synchronize()
    local before = waits()
    for k = 1, 5 do
      host:fill_(k)
      got[k] = step(host):clone()
      host:fill_(-1) -- is the caller's again
      if k == 2 then assert.equal(before, waits()) end
    end
    for k = 1, 5 do assert.is_true(got[k]:eq(2 * k):all():item(), "step " .. k) end
  end)

  it("says which input does not fit", function()
    local step = lm.cuda.make_graphed_step(function(x) return x * 2 end, {lm.ones({3}, {device = "cuda"})})
    assert.error_matches(function() step(lm.ones {4}) end, "input 1 was captured as float32 %[3%], got float32 %[4%]")
    assert.same({4, 4, 4}, step(lm.full({3}, 2)):totable())
    assert.error_matches(function() lm.cuda.make_graphed_step(print, {lm.ones {3}}) end,
      "input 1 must be a CUDA tensor")
  end)
end)

--- Training steps with optimizers, schedules, clipping, accumulation, precision, averages, checkpointing, hooks, and
--- with parameters that change.
local lm = require "luminary"
local lists = require "luminary.base.lists"
local nn, F, optim = lm.nn, lm.nn.functional, lm.optim
local list, add = require "spec.support.steps.list"()
local checkpoint, clip_norm = lm.autograd.checkpoint, nn.utils.clip_grad_norm_

local function once(at, f)
  return function(k)
    if k == at then f() end
  end
end

-- ---- optimizers and their options

for _, name in ipairs(optim.list_optimizers()) do
  add("optim." .. name, function(_, t)
    t.net:to(t.net[1].weight.dtype)
    local params = t.net:parameters()
    if name == "muon" then
      params = {t.net[1].weight, t.net[3].weight}
    end
    t.opt = optim.get_optimizer(name, params, {lr = 0.05})
  end, {"float32", "bfloat16"})
end
add("optim.LBFGS", function(c, t)
  t.opt = optim.LBFGS(t.net:parameters(), {line_search_fn = "strong_wolfe", max_iter = 3})
  function t.step(x, y)
    return t.opt:step(function()
      t.opt:zero_grad()
      local loss = c.run(t.loss, x, y)
      loss:backward()
      return loss
    end)
  end
end, {"float32", "float64"})
add("options by group, all of SGD's and AdamW's", function(_, t)
  t.opt = optim.SGD({{params = {t.net[1].weight, t.net[1].bias}, nesterov = true, momentum = 0.8},
    {params = {t.net[3].weight}, weight_decay = 0.1, maximize = true}}, {lr = 0.1})
  t.other = optim.AdamW({t.net[3].bias}, {lr = 0.01, betas = {0.8, 0.95}, amsgrad = true})
  function t.after() t.other:step() end
end)

-- ---- schedules

for name, make in lists.sorted_pairs {
  ["StepLR after each step"] = function(opt) return optim.lr_scheduler.StepLR(opt, {step_size = 2}) end,
  CosineAnnealingLR = function(opt) return optim.lr_scheduler.CosineAnnealingLR(opt, 4) end,
  ["OneCycleLR, which changes the momentum too"] = function(opt)
    return optim.lr_scheduler.OneCycleLR(opt, {max_lr = 0.2, total_steps = 160})
  end,
  MultiStepLR = function(opt) return optim.lr_scheduler.MultiStepLR(opt, {2, 3}) end,
  LinearLR = function(opt) return optim.lr_scheduler.LinearLR(opt, {total_iters = 3}) end,
  PolynomialLR = function(opt) return optim.lr_scheduler.PolynomialLR(opt, {total_iters = 4, power = 2}) end,
  LambdaLR = function(opt) return optim.lr_scheduler.LambdaLR(opt, function(n) return 0.9 ^ n end) end,
  CyclicLR = function(opt) return optim.lr_scheduler.CyclicLR(opt, {base_lr = 0.1, max_lr = 0.3, step_size_up = 2}) end,
  ["warm restarts"] = function(opt) return optim.lr_scheduler.CosineAnnealingWarmRestarts(opt, 2) end,
  SequentialLR = function(opt)
    return optim.lr_scheduler.SequentialLR(opt, {optim.lr_scheduler.ConstantLR(opt, {total_iters = 2}),
      optim.lr_scheduler.ExponentialLR(opt, {gamma = 0.9})}, {2})
  end,
  ["warmup and cosine"] = function(opt)
    return optim.lr_scheduler.get_scheduler("cosine", opt, {num_training_steps = 60, num_warmup_steps = 2})
  end,
} do
  add("a schedule in the step: " .. name, function(_, t)
    t.opt = optim.SGD(t.net:parameters(), {lr = 0.1, momentum = 0.9})
    t.schedule = make(t.opt)
    function t.after() t.schedule:step() end
  end)
end
add("a schedule between the steps, with Adam", function(_, t)
  t.opt = optim.Adam(t.net:parameters(), {lr = 0.05})
  t.schedule = optim.lr_scheduler.ExponentialLR(t.opt, {gamma = 0.7})
  function t.between(k)
    if k > 1 then t.schedule:step() end
  end
end)
add("ReduceLROnPlateau by the step's loss", function(_, t)
  t.opt = optim.SGD(t.net:parameters(), {lr = 0.1})
  t.schedule = optim.lr_scheduler.ReduceLROnPlateau(t.opt, {patience = 0, threshold = 1})
  function t.after(loss) t.schedule:step(loss:item()) end
end)
add("rates, momentum and betas set between the steps", function(_, t)
  t.opt, t.other = optim.SGD({t.net[1].weight}, {lr = 0.1, momentum = 0.9}), optim.Adam({t.net[3].weight}, {lr = 0.1})
  function t.after() t.other:step() end
  function t.between(k)
    local group = t.opt.param_groups[1]
    group.lr, group.momentum, group.weight_decay = 0.1 / k, k == 3 and 0 or 0.9, k == 4 and 0.1 or 0
    t.other.param_groups[1].betas = {0.9, 1 - 0.1 / k}
  end
end)

-- ---- gradients

add("clipping by norm", function(_, t) function t.stepped() return clip_norm(t.net:parameters(), 0.1) end end)
add("clipping by norm, which is returned", function(c, t)
  function t.step(x, y)
    t.opt:zero_grad()
    local loss = c.run(t.loss, x, y)
    loss:backward()
    local norm = clip_norm(t.net:parameters(), 0.5)
    t.opt:step()
    return loss, norm, norm:item()
  end
end)
add("clipping by value", function(_, t)
  function t.stepped() nn.utils.clip_grad_value_(t.net:parameters(), 0.01) end
end)
add("accumulation within a step", function(c, t)
  function t.step(x, y)
    t.opt:zero_grad()
    local sum = 0
    for i = 1, 4 do
      local loss = c.run(t.loss, x:narrow(1, i, 1), y:narrow(1, i, 1)) / 4
      loss:backward()
      sum = sum + loss:item()
    end
    t.opt:step()
    return sum
  end
end)
add("accumulation over several calls", function(c, t)
  local calls = 0
  function t.step(x, y)
    calls = calls + 1
    local loss = c.run(t.loss, x, y) / 3
    loss:backward()
    if calls % 3 == 0 then
      t.opt:step()
      t.opt:zero_grad()
    end
    return loss
  end
end)
add("zero_grad with set_to_none = false", function(c, t)
  function t.step(x, y)
    t.opt:zero_grad {set_to_none = false}
    local loss = c.run(t.loss, x, y)
    loss:backward()
    t.opt:step()
    return loss
  end
end)
add("zero_grad after the step and of the net", function(_, t)
  function t.after() t.net:zero_grad() end
end)
add("gradients that are never cleared, and changed between the steps", function(c, t)
  function t.step(x, y)
    local loss = c.run(t.loss, x, y)
    loss:backward()
    t.opt:step()
    return loss
  end
  function t.between(k)
    if k == 3 then t.net[1].weight.grad:mul_(0.5) end
    if k == 4 then t.net[3].bias.grad = nil end
  end
end)
add("penalty of the gradient, by double backward", function(c, t)
  t.net = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)):to(c.dtype)
  function t.loss(x, y)
    x = x:detach():requires_grad_()
    local loss = F.cross_entropy(t.net(x), y)
    local slope = lm.grad(loss, x, {create_graph = true})[1]
    return loss + slope:square():sum()
  end
end, {"float32", "float64", "bfloat16"})
add("lm.grad instead of backward", function(c, t)
  function t.step(x, y)
    local params = t.net:parameters()
    local slopes = lm.grad(c.run(t.loss, x, y), params)
    lm.no_grad(function()
      for i, p in ipairs(params) do p:sub_(slopes[i], {alpha = 0.1}) end
    end)
    return slopes[1]
  end
end)
add("backward twice by retain_graph", function(c, t)
  function t.step(x, y)
    t.opt:zero_grad()
    local loss = c.run(t.loss, x, y)
    loss:backward(nil, {retain_graph = true})
    loss:backward()
    t.opt:step()
    return loss
  end
end)
add("two losses of one graph, and a gradient of the input", function(c, t)
  function t.step(x, y)
    x:requires_grad_()
    t.opt:zero_grad()
    local hidden = c.run(function() return t.net[2](t.net[1](x)) end)
    local a, b = c.run(function() return F.cross_entropy(t.net[3](hidden), y), hidden:square():mean() end)
    lm.autograd.backward {a, b}
    t.opt:step()
    return a, b, x.grad
  end
end)
add("an update written by hand", function(c, t)
  function t.step(x, y)
    local loss = c.run(t.loss, x, y)
    loss:backward()
    lm.no_grad(function()
      for _, p in ipairs(t.net:parameters()) do
        p:sub_(p.grad, {alpha = 0.1})
        p.grad:zero_()
      end
    end)
    return loss:detach()
  end
end)

-- ---- precision, averages, memory

add("GradScaler and float16, with an overflow", function(_, t)
  t.scaler = lm.GradScaler {init_scale = 1024, growth_interval = 2}
  t.opt = optim.AdamW(t.net:parameters(), {lr = 0.01})
  local factor = 1
  function t.step(x, y)
    local loss = lm.autocast({dtype = "float16"}, function() return t.loss(x, y) * factor end)
    t.opt:zero_grad()
    t.scaler:scale(loss):backward()
    t.scaler:unscale_(t.opt)
    local norm = clip_norm(t.net:parameters(), 1)
    t.scaler:step(t.opt)
    t.scaler:update()
    return loss, norm, t.scaler:get_scale()
  end
  function t.between(k) factor = k == 3 and 1e38 or 1 end
end, {"float32"})
add("EMA with buffers", function(c, t)
  t.net = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3)):to(c.dtype)
  t.ema = optim.AveragedModel(t.net, {decay = 0.9, use_buffers = true})
  function t.after() t.ema:update(t.net) end
end)
add("SWA, its rate and update_bn", function(c, t)
  t.net = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3)):to(c.dtype)
  t.opt = optim.SGD(t.net:parameters(), {lr = 0.1})
  t.swa, t.rate = optim.AveragedModel(t.net), optim.SWALR(t.opt, {swa_lr = 0.05, anneal_epochs = 2})
  function t.between(k)
    if k < 3 then return end
    t.swa:update(t.net)
    t.rate:step()
    optim.swa_utils.update_bn({(t.inputs()), (t.inputs())}, t.swa)
  end
end)
add("dropout", function(c, t)
  t.net = nn.Sequential(nn.Dropout(0.2), nn.Linear(6, 8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 3)):to(c.dtype)
end)
add("noise of several kinds", function(_, t)
  function t.loss(x, y)
    x = x + lm.randn_like(x) * 0.1
    x = lm.where(lm.rand(4, 1):lt(0.5), x, x * 2)
    return F.cross_entropy(F.rrelu(t.net(x[lm.randperm(4)]), 0.1, 0.3, true), y)
  end
end)
for _, dropped in ipairs {false, true} do
  add("checkpointing" .. (dropped and " of dropout and batch norm" or ""), function(c, t)
    local layers = {nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6)}
    if dropped then layers = {nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Dropout(0.3)} end
    t.net = nn.Sequential(nn.Linear(6, 6), nn.Sequential(unpack(layers)), nn.Linear(6, 3)):to(c.dtype)
    function t.loss(x, y)
      x = checkpoint(t.net[2], t.net[1](x))
      return F.cross_entropy(checkpoint(t.net[3], x), y)
    end
  end)
end
add("checkpoint_sequential", function(c, t)
  t.net = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6), nn.Dropout(0.5), nn.Linear(6, 3)):to(c.dtype)
  function t.loss(x, y) return F.cross_entropy(lm.autograd.checkpoint_sequential(t.net, 2, x), y) end
end)

-- ---- parameters

add("shared parameters", function(c, t)
  t.net = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 3)):to(c.dtype)
  t.net[3].weight = t.net[1].weight
end)
add("an embedding tied to the head", function(c, t)
  t.net = nn.Sequential(nn.Embedding(9, 5, {padding_idx = 1}), nn.Linear(5, 9)):to(c.dtype)
  t.net[2].weight = t.net[1].weight
  function t.inputs() return lm.randint(1, 10, {3, 4}) end
  function t.loss(x) return F.cross_entropy(t.net(x):flatten(1, 2), x:flatten()) end
end)
add("frozen parameters, then trained ones", function(_, t)
  t.net[1]:requires_grad_(false)
  t.between = once(3, function() t.net[1]:requires_grad_(true) end)
end)
add("parameters frozen later", function(_, t)
  t.between = once(3, function() t.net[3].weight:requires_grad_(false) end)
end)
add("weights replaced and changed in place", function(c, t)
  t.opt = optim.SGD(t.net:parameters(), {lr = 0.1})
  function t.between(k)
    lm.no_grad(function()
      if k == 2 then t.net[1].weight:mul_(2) end
      if k == 3 then t.net[1].weight.data = c.randn(8, 6) end
      if k == 4 then t.net[3].bias = nn.Parameter(c.randn(3)) end
      if k == 5 then t.net[3] = nn.Linear(8, 3):to(c.dtype) end
    end)
  end
end)
add("a layer more, whose parameters the optimizer gets", function(c, t)
  t.opt = optim.Adam(t.net:parameters(), {lr = 0.05})
  t.between = once(3, function()
    local layer = nn.Linear(3, 3):to(c.dtype)
    t.net:append(layer)
    t.opt:add_param_group {params = layer:parameters(), lr = 0.01}
  end)
end)
add("load_state_dict in the middle", function(_, t)
  t.opt = optim.Adam(t.net:parameters(), {lr = 0.05})
  local saved
  function t.between(k)
    if k == 2 then
      saved = {net = t.net:clone():state_dict(), opt = optim.Adam(t.net:clone():parameters(), {lr = 0.01}):state_dict()}
    elseif k == 4 then
      t.net:load_state_dict(saved.net)
      t.opt:load_state_dict(saved.opt)
    end
  end
end)
add("another optimizer from the middle on", function(_, t)
  t.opt = optim.SGD(t.net:parameters(), {lr = 0.1})
  t.between = once(3, function() t.opt = optim.Adam(t.net:parameters(), {lr = 0.05}) end)
end)
add("two networks against each other", function(c, t)
  local judge = nn.Sequential(nn.Linear(6, 8), nn.LeakyReLU(0.2), nn.Linear(8, 1)):to(c.dtype)
  t.net = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 6)):to(c.dtype)
  local by = {optim.Adam(judge:parameters(), {lr = 0.01}), optim.Adam(t.net:parameters(), {lr = 0.01})}
  local function loss_of(x, real)
    local logits = judge(x)
    return F.binary_cross_entropy_with_logits(logits, lm.full_like(logits, real))
  end
  function t.step(x)
    local drawn = c.run(function() return t.net(c.randn(4, 2)) end)
    by[1]:zero_grad()
    local a = c.run(function() return loss_of(x, 1) + loss_of(drawn:detach(), 0) end)
    a:backward()
    by[1]:step()
    by[2]:zero_grad()
    local b = c.run(loss_of, drawn, 1)
    b:backward()
    by[2]:step()
    return {judge = a:detach(), forger = b:detach()}
  end
end)
add("weight_norm and spectral_norm", function(_, t)
  nn.utils.parametrizations.weight_norm(t.net[1])
  nn.utils.parametrizations.spectral_norm(t.net[3])
end, {"float32", "float64"})

-- ---- hooks and functions in Lua

add("hooks added and removed later", function(_, t)
  local handle
  function t.between(k)
    if k == 2 then handle = t.net[1].weight:register_hook(function(g) return g * 2 end) end
    if k == 3 then t.net[2]:register_forward_hook(function(_, _, y) return y + 1 end) end
    if k == 4 then
      handle:remove()
      t.net[3]:register_full_backward_hook(function(_, g) return {g[1] and g[1] * 0.5} end)
    end
    if k == 5 then t.net[3].bias:register_post_accumulate_grad_hook(function(p) p.grad:mul_(3) end) end
  end
end)
add("a hook on a tensor within the step", function(_, t)
  function t.loss(x, y)
    local scores = t.net(x)
    scores:register_hook(function(g) return g:clamp(-0.1, 0.1) end)
    return F.cross_entropy(scores, y)
  end
end)
-- Steps whose parameters have hooks: make(t, log) registers them and may replace t.step and t.loss. What they note in
-- the log is compared with the rest. A hook that held its parameter would keep both forever.
local function hooked(name, make)
  add("hooks of parameters " .. name, function(_, t)
    local log = {}
    t.log = log
    make(t, function(v) table.insert(log, lm.is_tensor(v) and v:double():sum():item() or v) end)
  end)
end
hooked("run in the order of backward, and as often", function(t, log)
  for i, p in ipairs(t.net:parameters()) do
    p:register_hook(function(g) log(i) log(g) end)
    p:register_post_accumulate_grad_hook(function(q) log(-i) log(q.grad) end)
  end
end)
hooked("read results of forward, and variables of the script", function(t, log)
  local hidden, calls = nil, 0
  t.net[1].weight:register_hook(function(g)
    log(hidden)
    log(calls)
    return g * hidden:detach():mean():abs()
  end)
  function t.loss(x, y)
    hidden = t.net[1](x)
    local scores = hidden
    for i = 2, #t.net do scores = t.net[i](scores) end
    calls = calls + 1
    return F.cross_entropy(scores, y)
  end
  function t.after() hidden = nil end
end)
hooked("update and drop gradients", function(t)
  for _, p in ipairs(t.net:parameters()) do
    p:register_post_accumulate_grad_hook(function(q)
      lm.no_grad(function() q:sub_(q.grad * 0.01) end)
      q.grad = nil
    end)
  end
end)
hooked("that share a gradient with another tensor", function(t, log)
  local p = nn.Parameter(lm.zeros(16, t.net[1].weight.shape[1]):to(t.net[1].weight.dtype))
  t.shift = p
  p:register_hook(log)
  function t.loss(x, y)
    local h = t.net[1](x)
    h = h + p:narrow(1, 1, #h)
    local scores = h:tanh() + h
    for i = 3, #t.net do scores = t.net[i](scores) end
    return F.cross_entropy(scores, y)
  end
end)
hooked("call backward of another graph", function(t, log)
  local q = lm.ones({3}, {requires_grad = true})
  t.net[3].weight:register_hook(function(g)
    lm.enable_grad(function() (q * g:float():sum()):sum():backward() end)
    log(q.grad)
  end)
end)
add("optimizers within hooks of gradients", function(c, t)
  local weak = setmetatable({t}, {__mode = "v"}) -- a hook that held its parameter's optimizer would keep both forever
  t.each = {}
  for i, p in ipairs(t.net:parameters()) do
    t.each[i] = optim.SGD({p}, {lr = 0.1})
    p:register_post_accumulate_grad_hook(function()
      weak[1].each[i]:step()
      weak[1].each[i]:zero_grad()
    end)
  end
  function t.step(x, y)
    local loss = c.run(t.loss, x, y)
    loss:backward()
    return loss
  end
end)
local Round = lm.autograd.Function:extend "Round"
function Round.forward(ctx, x)
  ctx:save_for_backward(x)
  return (x * 4):round() / 4
end
function Round.backward(ctx, g) return g * ctx.saved_tensors[1]:abs():lt(2) end
add("a Function of Lua", function(_, t)
  function t.loss(x, y) return F.cross_entropy(Round(t.net(x)), y) end
end)

return list

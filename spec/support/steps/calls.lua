--- Training steps whose calls differ: by arguments, modes, numbers in Lua, errors, results, and by the tensors that
--- they read and write.
local lm = require "luminary"
local ffi = require "ffi"
local lists = require "luminary.base.lists"
local nn, F, optim = lm.nn, lm.nn.functional, lm.optim
local list, add = require "spec.support.steps.list"()

add("train and eval in the middle", function(c, t)
  t.net = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.3), nn.Linear(8, 3)):to(c.dtype)
  function t.between(k) t.net:train(k ~= 3 and k ~= 5) end
end)
add("an evaluation within the step", function(c, t)
  t.net = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.3), nn.Linear(8, 3)):to(c.dtype)
  function t.step(x, y)
    t.net:train()
    t.opt:zero_grad()
    local loss = c.run(t.loss, x, y)
    loss:backward()
    t.opt:step()
    t.net:eval()
    return loss, lm.no_grad(function() return c.run(t.loss, x, y), t.net(x):argmax(2):eq(y):sum():item() end)
  end
end)
add("calls within no_grad between those that train", function(c, t)
  local trains = true
  function t.step(x, y)
    local function run() return c.run(t.loss, x, y) end
    if not trains then return lm.no_grad(run) end
    t.opt:zero_grad()
    local loss = run()
    loss:backward()
    t.opt:step()
    return loss
  end
  function t.between(k) trains = k % 2 == 1 end
end)
add("autocast and grad mode around the calls", function(c, t)
  local mode = 1
  local function step(x, y)
    local loss = t.loss(x, y)
    if lm.is_grad_enabled() then
      t.opt:zero_grad()
      loss:backward()
      t.opt:step()
    end
    return loss
  end
  t.step = function(...)
    if mode == 2 then return lm.autocast({dtype = "bfloat16"}, step, ...) end
    if mode == 3 then return lm.no_grad(step, ...) end
    return c.run(step, ...)
  end
  function t.between(k) mode = k % 3 + 1 end
end)
add("loss:item() decides in the middle", function(c, t)
  function t.step(x, y)
    t.opt:zero_grad()
    local loss = c.run(t.loss, x, y)
    local value = loss:item()
    if value > 1.1 then loss = loss * 0.5 end
    loss:backward()
    t.opt:step()
    return value
  end
end)
add("steps skipped by the gradient's size", function(c, t)
  function t.step(x, y)
    t.opt:zero_grad()
    local loss = c.run(t.loss, x, y)
    loss:backward()
    if t.net[1].weight.grad:abs():max():item() < 0.2 then t.opt:step() end
    return loss
  end
end)
add("nothing returned", function(c, t)
  function t.step(x, y)
    t.opt:zero_grad()
    c.run(t.loss, x, y):backward()
    t.opt:step()
  end
end)
add("tables, nil and several values returned", function(c, t)
  function t.step(x, y)
    t.opt:zero_grad()
    local scores = c.run(function() return t.net(x) end)
    local loss = F.cross_entropy(scores, y)
    loss:backward()
    t.opt:step()
    return nil, {loss = loss, parts = {scores, scores:detach(), "text"}}, x, t.net[1].weight, true, scores:select(2, 1)
  end
end)
add("other shapes at each call", function(c, t)
  function t.inputs(k)
    local rows = ({4, 4, 3, 1, 4})[(k - 1) % 5 + 1]
    return c.randn(rows, 6), lm.randint(1, 4, {rows})
  end
end)
add("other layouts and dtypes of inputs", function(c, t)
  t.net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16, 3)):to(c.dtype)
  function t.inputs(k)
    local x, y = c.randn(2, 3, 4, 4), lm.randint(1, 4, {2})
    if k == 2 then x = x:contiguous {memory_format = "channels_last"} end
    if k == 3 then x = c.randn(3, 2, 4, 4):transpose(1, 2) end
    if k == 4 then x = c.randn(2, 1, 4, 4):expand(2, 3, 4, 4) end
    return x, k == 5 and y:int():long() or y
  end
end)
add("numbers, flags and tables as arguments", function(c, t)
  function t.inputs(k)
    return {x = c.randn(4, 6), y = lm.randint(1, 4, {4})}, k / 2, k % 2 == 0, k > 2 and "text" or nil
  end
  function t.step(batch, factor, doubled, text)
    t.opt:zero_grad()
    local loss = c.run(t.loss, batch.x, batch.y) * factor
    if doubled then loss = loss * 2 end
    if text then loss = loss + #text end
    loss:backward()
    t.opt:step()
    return loss
  end
end)
add("numbers that the function refers to and changes", function(c, t)
  local factor, calls, sum = 1, 0, 0
  function t.step(x, y)
    calls = calls + 1
    t.opt:zero_grad()
    local loss = c.run(t.loss, x * factor, y) / calls
    loss:backward()
    t.opt:step()
    sum = sum + loss:item()
    return loss, calls, sum
  end
  function t.between(k) factor = 1 / k end
end)
add("inputs written in place, and views of them", function(c, t)
  function t.step(x, y)
    t.opt:zero_grad()
    x:narrow(1, 1, 2):mul_(2)
    local half = x[{{}, {1, 3}}]
    local loss = c.run(t.loss, x * 1, y)
    loss:backward()
    t.opt:step()
    half:add_(1)
    return loss, half
  end
end)
add("a tensor outside that counts and sums", function(c, t)
  local sum, seen = lm.zeros(1), lm.zeros({3}, {dtype = "int64"})
  t.sum, t.seen = sum, seen
  function t.step(x, y)
    t.opt:zero_grad()
    local loss = c.run(t.loss, x, y)
    loss:backward()
    t.opt:step()
    sum:add_(loss:detach())
    seen:add_(lm.arange(1, 4):eq(y:max()):long())
    return sum
  end
end)
add("rows chosen by their values", function(_, t)
  function t.loss(x, y)
    local kept = x:select(2, 1):gt(-0.5)
    kept[1] = true
    return F.cross_entropy(t.net(x[kept]), y[kept])
  end
end)
add("results of earlier calls used again", function(c, t)
  local before
  function t.step(x, y)
    t.opt:zero_grad()
    local scores = c.run(function() return t.net(x) end)
    local loss = F.cross_entropy(scores, y)
    if before then loss = loss + F.mse_loss(scores, before) end
    loss:backward()
    t.opt:step()
    before = scores:detach()
    return loss, before
  end
end)
add("an error in the middle of a step", function(c, t)
  c.fails = true
  local fails
  function t.step(x, y)
    t.opt:zero_grad()
    local loss = c.run(t.loss, x, y)
    loss:backward()
    if fails == "lua" then error "no more" end
    if fails == "op" then loss = loss + t.net(x:narrow(2, 1, 5)):sum() end
    t.opt:step()
    return loss
  end
  function t.between(k) fails = ({nil, nil, "lua", "op"})[k] end
end)

-- ---- arguments and results that share memory

add("one tensor as two arguments, and a parameter as one", function(c, t)
  function t.inputs(k)
    local x = c.randn(4, 6)
    return x, k % 2 == 0 and x or c.randn(4, 6), k > 2 and t.net[1].weight or c.randn(8, 6)
  end
  function t.step(a, b, w)
    t.opt:zero_grad()
    local loss = c.run(function() return (t.net(a) - t.net(b) * 2):square():mean() + w:square():mean() end)
    loss:backward()
    t.opt:step()
    return loss, a - b
  end
end)
add("views of one tensor as arguments", function(c, t)
  function t.inputs(k)
    local x = c.randn(8, 6)
    return x:narrow(1, 1, 4), x:narrow(1, k % 2 == 0 and 3 or 5, 4), x
  end
  function t.step(a, b, x)
    t.opt:zero_grad()
    a:mul_(2)
    b:add_(1)
    local loss = c.run(function() return t.net(x):square():mean() + t.net(a):mean() end)
    loss:backward()
    t.opt:step()
    return loss, a, b
  end
end)
add("results that are arguments of the next call", function(c, t)
  local last
  t.net = nn.GRUCell(6, 6):to(c.dtype)
  function t.inputs() return c.randn(4, 6), last end
  function t.step(x, h)
    t.opt:zero_grad()
    h = c.run(function() return t.net(x, h) end)
    local loss = h:square():mean()
    loss:backward()
    t.opt:step()
    last = h:detach()
    return last, loss
  end
end)
add("inputs that require gradients at some calls", function(c, t)
  function t.inputs(k) return c.randn(4, 6):requires_grad_(k % 2 == 0), lm.randint(1, 4, {4}) end
  function t.after() return t.net[1].weight.grad end
end)
add("gradients and parameters returned", function(c, t)
  function t.step(x, y)
    t.opt:zero_grad()
    c.run(t.loss, x, y):backward()
    local grads = {}
    for name, p in t.net:named_parameters() do grads[name] = p.grad end
    t.opt:step()
    return grads, t.net:parameters(), t.net:state_dict()
  end
end)
add("writes to parts of a parameter and of a buffer", function(c, t)
  t.net:register_buffer("seen", lm.zeros({4, 3}, {dtype = c.dtype}))
  function t.step(x, y)
    t.opt:zero_grad()
    local scores = c.run(function() return t.net(x) end)
    local loss = F.cross_entropy(scores, y)
    loss:backward()
    t.opt:step()
    lm.no_grad(function()
      t.net[1].weight[{1, {2, 3}}] = 0
      t.net[1].weight:clamp_(-0.3, 0.3)
      t.net.seen:copy_(scores:detach())
      t.net.seen:select(1, 2):zero_()
    end)
    return loss
  end
end)

add("results written in place by the caller", function(c, t)
  local last
  t.kept = {}
  function t.step(x, y)
    t.opt:zero_grad()
    local scores = c.run(function() return t.net(x) end)
    local loss = F.cross_entropy(scores, y)
    loss:backward()
    t.opt:step()
    last = {scores:detach(), t.net[1].weight:detach(), loss:detach()}
    return scores, loss
  end
  function t.between()
    for _, v in ipairs(last or {}) do v:mul_(0.9) end
  end
end)
add("one input tensor, which the caller writes to, also by data_ptr", function(c, t)
  local x, y = lm.zeros({4, 6}, {dtype = c.dtype}), lm.ones({4}):long()
  function t.inputs(k)
    local drawn = c.randn(4, 6)
    if k % 2 == 0 then
      x:copy_(drawn)
    else
      ffi.copy(x:data_ptr(), drawn:data_ptr(), 24 * x:element_size())
    end
    y:random_(1, 3)
    return x, y
  end
end)
add("arguments with a history, hooks and a backward pass through them", function(c, t)
  t.front = nn.Linear(6, 6):to(c.dtype)
  t.front_opt, c.apart = optim.SGD(t.front:parameters(), {lr = 0.1}), true
  local by_loss = c.wrap(function(x, y)
    local loss = c.run(t.loss, x, y)
    loss:backward()
    return loss
  end)
  local loss_of = c.wrap(function(x, y) return c.run(t.loss, x, y) end)
  function t.step(x, y)
    t.opt:zero_grad()
    t.front_opt:zero_grad()
    local hidden = t.front(x)
    hidden:register_hook(function(g) return g * 2 end)
    local a = by_loss(hidden, y)
    local b = loss_of(t.front(x):tanh(), y)
    b:backward()
    t.opt:step()
    t.front_opt:step()
    return a, b
  end
end)
add("empty batches, infinities, NaN and -0", function(c, t)
  function t.inputs(k)
    local x = c.randn(k == 2 and 0 or 4, 6)
    if k == 3 then
      x[1], x[2], x[3] = 1 / 0, 0 / 0, -0.0
    end
    return x
  end
  function t.step(x)
    t.opt:zero_grad()
    local y = c.run(function() return t.net(x) end)
    local loss = (y * 0 + x:sum() * 0):sum() + y:nan_to_num(0, 1, -1):clamp(-9, 9):square():sum()
    loss:backward()
    nn.utils.clip_grad_value_(t.net:parameters(), 1)
    for _, p in ipairs(t.net:parameters()) do p.grad:nan_to_num_(0) end
    t.opt:step()
    return loss, -x, x * 0
  end
end)
add("seventy shapes", function(c, t)
  c.calls = 90
  function t.inputs(k)
    local n = k % 70 + 1
    return c.randn(n, 6), lm.randint(1, 4, {n})
  end
end, {"float32"})

-- ---- several compiled functions

for _, apart in ipairs {false, true} do
  local within = apart and "" or " within a compiled step"
  add("a compiled net, and backward as it is" .. within, function(c, t)
    local net = c.wrap(t.net)
    c.apart = apart
    function t.loss(x, y) return F.cross_entropy(net(x), y) end
  end)
  add("a compiled loss, and backward as it is" .. within, function(c, t)
    t.loss, c.apart = c.wrap(t.loss), apart
  end)
end
add("backward outside through what compiled calls kept", function(c, t)
  c.apart = true
  local forward = c.wrap(function(x) return c.run(function() return t.net(x) end) end)
  function t.step(x, y)
    t.opt:zero_grad()
    local a, b = forward(x), forward(x * 2)
    F.cross_entropy(b, y):backward()
    local loss = F.cross_entropy(a, y)
    loss:backward()
    t.opt:step()
    return loss, a, b
  end
end)
add("training and evaluation compiled apart", function(c, t)
  c.apart = true
  t.train = c.wrap(function(x, y)
    t.opt:zero_grad()
    local loss = c.run(t.loss, x, y)
    loss:backward()
    t.opt:step()
    return loss
  end)
  function t.step(x, y)
    local loss = t.train(x, y)
    t.after()
    return loss
  end
  t.net = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3)):to(c.dtype)
  local evaluate = c.wrap(function(x) return c.run(function() return t.net(x) end) end)
  function t.after()
    t.net:eval()
    t.scores = lm.no_grad(evaluate, lm.ones(4, 6):to(c.dtype))
    t.net:train()
  end
end)
add("backward and the optimizer's step compiled apart, within a compiled step", function(c, t)
  local update = c.wrap(function() t.opt:step() end)
  local slope = c.wrap(function(x, y)
    t.opt:zero_grad()
    local loss = c.run(t.loss, x, y)
    loss:backward()
    return loss
  end)
  function t.step(x, y)
    local loss = slope(x, y)
    update()
    return loss
  end
end)
add("one function of two nets", function(c, t)
  t.other = nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 3)):to(c.dtype)
  local opts = {[t.net] = optim.SGD(t.net:parameters(), {lr = 0.1}), [t.other] = optim.Adam(t.other:parameters())}
  function t.inputs(k) return k % 2 == 0 and t.net or t.other, c.randn(4, 6), lm.randint(1, 4, {4}) end
  function t.step(net, x, y)
    opts[net]:zero_grad()
    local loss = c.run(function() return F.cross_entropy(net(x), y) end)
    loss:backward()
    opts[net]:step()
    return loss, t.net, t.other
  end
end)

-- ---- tensors that later calls alone need

for name, keep in lists.sorted_pairs {
  ["a part of it"] = function(hidden) return hidden:select(1, 2) end,
  ["itself"] = function(hidden) return hidden end,
  ["its values"] = function(hidden) return hidden:sum():item(), hidden:tolist() end,
  ["its detached values"] = function(hidden) return hidden:detach() end,
  ["a function of it"] = function(hidden)
    local y = hidden * 2
    return function() return y end
  end,
  ["its text"] = function(hidden) return tostring(hidden) end,
} do
  for _, late in ipairs {false, true} do
    add(("an intermediate tensor, of which later calls keep %s%s"):format(name, late and " after the update" or ""),
      function(c, t)
      local calls = 0
      function t.step(x, y)
        calls = calls + 1
        t.opt:zero_grad()
        local hidden = c.run(function() return t.net[2](t.net[1](x)) end)
        if calls > 3 and not late then t.kept = {keep(hidden)} end
        local loss = c.run(function() return F.cross_entropy(t.net[3](hidden), y) end)
        loss:backward()
        t.opt:step()
        if calls > 3 and late then t.kept = {keep(hidden)} end
        return loss
      end
    end)
  end
end
add("gradients that later calls keep", function(_, t)
  local calls = 0
  function t.after()
    calls = calls + 1
    if calls > 2 then t.kept = {t.net[1].weight.grad, t.net[3].bias.grad:clone()} end
    t.opt:zero_grad()
  end
end)
add("gradients of intermediate tensors, retained by later calls", function(c, t)
  local calls = 0
  function t.step(x, y)
    calls = calls + 1
    t.opt:zero_grad()
    local hidden = c.run(function() return t.net[2](t.net[1](x)) end)
    if calls > 2 then hidden:retain_grad() end
    local loss = c.run(function() return F.cross_entropy(t.net[3](hidden), y) end)
    loss:backward()
    t.opt:step()
    if calls > 2 then t.kept = hidden.grad end
    return loss
  end
end)
add("a file saved by a later call", function(_, t)
  local calls = 0
  function t.after(loss)
    calls = calls + 1
    if calls ~= 4 then return end
    local path = os.tmpname()
    lm.save(path, {loss = loss:detach(), net = t.net:state_dict()})
    t.kept = lm.load(path, {mmap = false})
    os.remove(path)
  end
end)
add("results that only later calls return", function(c, t)
  local calls = 0
  function t.step(x, y)
    calls = calls + 1
    t.opt:zero_grad()
    local scores = c.run(function() return t.net(x) end)
    local loss = F.cross_entropy(scores, y)
    loss:backward()
    t.opt:step()
    if calls == 3 then return scores, loss, t.net[1].weight.grad end
    if calls > 3 then return nil, scores:softmax(2) end
  end
end)

-- ---- numbers and options of ops that change from call to call

-- Adds a step whose loss is of f(hidden, k), where k is from 1 to 5 and hidden a result [4, 8] of the net.
local function changing(name, f)
  add("that changes from call to call: " .. name, function(c, t)
    local at
    local order = {1, 2, 3, 1, 4, 2, 5} -- some come back, with the calls before them recorded
    c.calls = #order
    function t.between(k) at = order[(k - 1) % #order + 1] end
    function t.loss(x, y)
      local hidden = t.net[1](x)
      local scores = f(hidden, at, c)
      return F.cross_entropy(t.net[3](hidden), y) + scores:square():mean()
    end
  end)
end
changing("numbers beside elementwise ops", function(h, k)
  local y = (h * k + 1 / k):clamp(-k, k / 2):add(h, {alpha = k}):masked_fill(h:gt(k / 10), k)
  return (y / k - k):pow(k % 2 + 1) + lm.where(h:lt(0), h * k, 1 - h / k)
end)
changing("numbers of layers and losses", function(h, k)
  local y = F.layer_norm(h, {8}, {eps = 10 ^ -k}) + F.leaky_relu(h, k / 10) + F.softplus(h, {beta = k})
  return F.dropout(y, k / 10) + F.huber_loss(y, h:detach(), {delta = k / 5}) + F.normalize(h, {p = 2, eps = k / 9})
end)
changing("dims, parts and indices", function(h, k)
  local y = h:narrow(2, k, 2):sum(k % 2 + 1):mean() + h:select(2, k):mean() + h[k % 4 + 1]:sum()
  return y + h:roll(k, 2):cumsum(k % 2 + 1) + h[{{1, 2}, {k, -1}}]:mean()
end)
changing("options by name", function(h, k)
  local how = {"mean", "sum", "none", "mean", "sum"}
  local loss = F.mse_loss(h, h:detach() + 1, {reduction = how[k]}):mean()
  local spread = h:std(2, {correction = k % 2, keepdim = true})
  return F.gelu(h, {approximate = k % 2 == 0 and "tanh" or "none"}) + loss + spread
end)
changing("tensors made of numbers", function(h, k, c)
  local made = lm.tensor({k, 2 * k, -k, 1}, {dtype = c.dtype}):unsqueeze(2)
  local y = h * made + lm.full({4, 8}, 1 / k, {dtype = c.dtype}) + lm.arange(k, k + 8):to(c.dtype)
  local buffer = lm.zeros({4, 8}, {dtype = c.dtype})
  buffer[k % 4 + 1] = k
  buffer[{{}, k}] = h:select(2, 1):detach()
  buffer:narrow(1, 1, 2):fill_(k / 3)
  return y * 0.1 + buffer + lm.ones({4, 8}, {dtype = c.dtype}):mul_(k)
end)
changing("types and lengths", function(h, k, c)
  local dtypes = {"float32", "float64", "float32", "bfloat16", "float32"}
  local y = h:to(dtypes[k]):repeat_interleave(k, 2):sum(2, {keepdim = true}):to(c.dtype)
  return y + lm.cat({h:narrow(2, 1, k), h}, 2):mean() + h:unfold(2, k, 1):mean()
end)
changing("integers and masks", function(h, k)
  local codes = (h:detach() * 10):long():remainder(k + 1) + 1
  local mask = codes:eq(k):logical_or(codes:gt(2)):logical_and(h:lt(k / 5))
  local hot = F.one_hot(codes:clamp(1, k + 1), k + 1):sum({1, 2}):to(h.dtype)
  return h * mask + hot:mean() + codes:bitwise_and(k):to(h.dtype):cumsum(2) * 0.01 + mask:any(2):sum():to(h.dtype)
end)
changing("transforms and equations", function(h, k)
  local x = h:float():tanh()
  local spectrum = lm.fft.rfft(x * k):abs():mean()
  local square = x:mm(x:t()) + lm.diag(lm.full({4}, k + 1))
  return lm.linalg.solve(square, x) + (lm.linalg.cholesky(square):sum() + lm.linalg.det(square):log() + spectrum) * 0.1
end)
changing("one op more, at another place each time", function(h, k)
  local y = h
  for i = 1, 5 do
    y = y * 1.5 + F.dropout(y, 0.1)
    if i == k then y = y:tanh() end
    y = y:add(0.25):mul_(0.5)
    if i == 6 - k then y:neg_() end
  end
  return y
end)

-- ---- what Lua reads and writes within a step

add("values read in several ways between forward and backward", function(c, t)
  local how, at = {
    function(v) return v:sum():item() end, function(v) return v:tolist() end, function(v) return tostring(v) end,
    function(v) return v[1]:tolist(), v[{2, 3}] end, function(v) return lm.equal(v, v * 1), lm.allclose(v, v + 1) end,
    function(v) return v:detach():clone():neg_():max():item() end,
    function(v) return ("%s %s"):format(v:sum(), v:isnan():any():item()) end,
    function(v) return v:argmax(2):tolist(), v:gt(0):nonzero():tolist() end,
  }, 1
  function t.between(k) at = (k - 1) % #how + 1 end
  function t.step(x, y)
    t.opt:zero_grad()
    local scores = c.run(function() return t.net(x) end)
    t.seen = {how[at](scores)}
    local loss = F.cross_entropy(scores, y)
    loss:backward()
    t.opt:step()
    t.after_update = {how[at](t.net[3].weight), how[at](t.net[3].weight.grad)}
    return loss
  end
  c.calls = 8
end)
add("another dtype of the net from the middle on", function(_, t)
  t.opt = optim.SGD(t.net:parameters(), {lr = 0.1})
  function t.between(k)
    if k == 3 then
      t.net:double()
      t.opt = optim.SGD(t.net:parameters(), {lr = 0.1})
    end
  end
  function t.loss(x, y) return F.cross_entropy(t.net(x:to(t.net[1].weight.dtype)), y) end
end, {"float32", "bfloat16"})
add("evaluations in inference mode", function(c, t)
  t.net = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3)):to(c.dtype)
  local loss_of = t.loss
  function t.after()
    t.net:eval()
    t.scores = lm.inference_mode(loss_of, lm.ones(4, 6):to(c.dtype), lm.ones({4}):long()):item()
    t.net:train()
  end
end)
add("two thousand ops", function(_, t)
  local loss_of = t.loss
  function t.loss(x, y)
    local z = x * 0.1
    for i = 1, 300 do
      z = z + (x * 0.9):tanh() * 0.01
      if i % 100 == 0 then z:add_(F.dropout(z, 0.5)) end
    end
    return loss_of(z, y)
  end
end, {"float32"})
add("sequences of several lengths, packed", function(c, t)
  local R = nn.utils.rnn
  t.net = nn.GRU(6, 5, {batch_first = true}):to(c.dtype)
  function t.inputs(k) return c.randn(3, 7, 6), {7, 8 - k % 5 - 1, 2} end
  function t.loss(x, lengths)
    local y = R.pad_packed_sequence((t.net(R.pack_padded_sequence(x, lengths, {batch_first = true}))))
    return y:square():mean()
  end
end)

add("fields of tensors: versions, nodes, strides, addresses", function(_, t)
  local loss_of = t.loss
  function t.loss(x, y)
    local hidden = t.net[1](x)
    local view = hidden:view(8, 4)
    local w = t.net[1].weight
    t.seen = {hidden._version, w._version, tostring(hidden.grad_fn), hidden.is_leaf, hidden:stride(), #hidden,
      view:data_ptr() == hidden:data_ptr(), hidden:is_contiguous(), x.requires_grad, tostring(w.grad == nil)}
    return loss_of(x, y)
  end
  function t.after() table.insert(t.seen, t.net[1].weight._version) end
end)
add("memory read and written by data_ptr", function(c, t)
  local type_of = ({float32 = "float *", float64 = "double *", bfloat16 = "uint16_t *"})[c.dtype]
  function t.step(x, y)
    t.opt:zero_grad()
    local hidden = c.run(function() return t.net(x * 2) end)
    local cell, bits = ffi.cast(type_of, t.net[3].bias:detach():data_ptr()), ffi.cast(type_of, x:data_ptr())
    cell[0], bits[1] = cell[1], bits[2]
    local loss = c.run(function() return F.cross_entropy(t.net(x), y) + hidden:square():mean() end)
    loss:backward()
    t.opt:step()
    return loss, hidden, cell[1]
  end
end)
add("gradients assigned, cleared and changed by hand", function(c, t)
  local calls = 0
  function t.step(x, y)
    calls = calls + 1
    t.net[1].weight.grad = lm.ones_like(t.net[1].weight)
    t.net[3].bias.grad = calls > 1 and t.net[3].bias.grad or nil
    local loss = c.run(t.loss, x, y)
    loss:backward()
    t.net[1].bias.grad = t.net[1].bias.grad * 0.5
    t.net[3].weight.grad:clamp_(-0.1, 0.1)
    if calls % 2 == 0 then t.net[1].bias.grad = nil end
    t.opt:step()
    t.net[3].weight.grad = nil
    return loss
  end
end)
add("views of parameters made outside, and data replaced within", function(c, t)
  local flat = t.net[1].weight:detach():view(-1)
  t.flat = flat
  function t.step(x, y)
    t.opt:zero_grad()
    local loss = c.run(t.loss, x, y) + flat:sum() * 0.1
    loss:backward()
    t.opt:step()
    flat:narrow(1, 1, 3):mul_(0.5)
    t.net[3].bias.data = t.net[3].bias.data * 0.9
    return loss
  end
end)
add("requires_grad changed within the step", function(c, t)
  function t.step(x, y)
    t.opt:zero_grad()
    t.net[1].weight:requires_grad_(false)
    local a = c.run(t.loss, x, y)
    t.net[1].weight:requires_grad_(true)
    local b = c.run(t.loss, x, y)
    a:backward()
    local only = t.net[1].weight.grad == nil
    b:backward()
    t.opt:step()
    return a, b, only
  end
end)
add("states of random numbers saved and set within the step", function(c, t)
  t.net = nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.5), nn.Linear(8, 3)):to(c.dtype)
  function t.step(x, y)
    t.opt:zero_grad()
    local state = lm.get_rng_state()
    local a = c.run(t.loss, x, y)
    lm.set_rng_state(state)
    local b = c.run(t.loss, x, y)
    ;(a + b):backward()
    t.opt:step()
    return a, b, lm.rand(2)
  end
end)
add("batches from a loader within the step", function(c, t)
  local set = lm.data.TensorDataset(c.randn(12, 6), lm.randint(1, 4, {12}))
  local loader = lm.data.DataLoader(set, {batch_size = 5, shuffle = true, seed = 1})
  local epoch, batches = 0, nil
  function t.step()
    local x, y
    if batches then x, y = batches() end
    if not x then
      epoch = epoch + 1
      batches = loader:epoch(epoch)
      x, y = batches()
    end
    t.opt:zero_grad()
    local loss = c.run(t.loss, x, y)
    loss:backward()
    t.opt:step()
    return loss
  end
end)
for _, place in ipairs {"forward", "backward", "the first of two updates", "a write in place"} do
  add("an error after " .. place, function(c, t)
    c.fails = true
    local fails
    t.sum = lm.zeros({3}, {dtype = c.dtype})
    t.first = optim.Adam({t.net[1].weight}, {lr = 0.1})
    local function reach(here)
      if fails and here == place then error "no more" end
    end
    function t.step(x, y)
      t.opt:zero_grad()
      local scores = c.run(function() return t.net(F.dropout(x, 0.2)) end)
      t.sum:add_(scores:detach():sum(1))
      reach "a write in place"
      local loss = F.cross_entropy(scores, y)
      reach "forward"
      loss:backward()
      reach "backward"
      t.first:step()
      reach "the first of two updates"
      t.opt:step()
      return loss
    end
    function t.between(k) fails = k % 3 == 0 end
  end)
end
add("an error in a hook", function(c, t)
  c.fails = true
  local fails
  function t.loss(x, y)
    local scores = t.net(x)
    scores:register_hook(function()
      if fails then error "no more" end
    end)
    return F.cross_entropy(scores, y)
  end
  function t.between(k) fails = k == 3 end
end)

-- ---- errors of ops, which the step catches or raises at some calls

for name, f in lists.sorted_pairs {
  ["a label out of range"] = function(h, bad)
    return F.cross_entropy(h, lm.tensor({1, 2, bad and 99 or 3, 8}):long())
  end,
  ["an index out of range"] = function(h, bad)
    return h:index_select(2, lm.tensor({1, bad and 9 or 2}):long()):sum()
  end,
  ["an id out of range"] = function(h, bad)
    return F.embedding(lm.tensor({1, bad and 0 or 2}):long(), h):square():sum()
  end,
  ["a matrix that is not positive"] = function(h, bad)
    local square = h:mm(h:t()):float() + lm.eye(4)
    return lm.linalg.cholesky(bad and -square or square):sum()
  end,
  ["shapes that do not fit"] = function(h, bad) return (h * lm.ones(bad and 7 or 8)):mean() end,
} do
  for _, caught in ipairs {true, false} do
    add(name .. (caught and ", caught" or ", which ends the call"), function(c, t)
      c.fails = true
      local bad
      function t.between(k) bad = k % 2 == 0 end
      function t.loss(x, y)
        local h = t.net[1](x)
        local more
        if caught then
          local ok, value = pcall(f, h, bad)
          more = ok and value or h:square():mean()
          t.text = not ok and value or nil
        else
          more = f(h, bad)
        end
        return F.cross_entropy(t.net[3](h), y) + more
      end
    end)
  end
end
for name, fault in lists.sorted_pairs {
  ["a saved tensor changed in place"] = function(h, loss)
    h:mul_(2)
    loss:backward()
  end,
  ["a second backward pass"] = function(_, loss)
    loss:backward()
    loss:backward()
  end,
  ["an in-place change of a parameter with a gradient"] = function(_, loss, w)
    w:add_(1)
    loss:backward()
  end,
} do
  add("an error of autograd at some calls: " .. name, function(c, t)
    c.fails = true
    local bad
    function t.between(k) bad = k % 2 == 0 end
    function t.step(x, y)
      t.opt:zero_grad()
      local hidden = c.run(function() return t.net[1](x):tanh() end)
      local loss = c.run(function() return F.cross_entropy(t.net[3](hidden), y) end)
      if bad then
        fault(hidden, loss, t.net[1].weight)
      else
        loss:backward()
      end
      t.opt:step()
      return loss, hidden
    end
  end, name:find "second" and {"float32", "float64", "autocast"} or nil)
end
add("a second backward pass after the call", function(_, t)
  local last
  t.texts = {}
  function t.after(loss) last = loss end
  function t.between()
    if last then t.texts[#t.texts + 1] = tostring(select(2, pcall(last.backward, last))):match "saved .*" or "none" end
  end
end)
add("gradients retained, hooks of the optimizer and of layers at every call", function(_, t)
  t.opt = optim.Adam(t.net:parameters(), {lr = 0.05})
  t.opt:register_step_pre_hook(function() for _, p in ipairs(t.net:parameters()) do p.grad:mul_(0.5) end end)
  t.opt:register_step_post_hook(function() lm.no_grad(function() t.net[1].bias:mul_(0.9) end) end)
  t.net[2]:register_forward_hook(function(_, _, y) return y * 1.5 end)
  function t.loss(x, y)
    t.hidden = t.net[1](x)
    t.hidden:retain_grad()
    return F.cross_entropy(t.net[3](t.net[2](t.hidden)), y)
  end
  function t.after() t.slope = t.hidden.grad end
end)

-- ---- what else a step may do

add("garbage collected between and within the calls", function(_, t)
  function t.stepped() collectgarbage() end
  function t.between()
    collectgarbage()
    collectgarbage()
  end
end)
add("a seed set within the step, and a generator", function(c, t)
  local generator = lm.Generator():manual_seed(3)
  function t.step(x, y)
    lm.manual_seed(5)
    t.opt:zero_grad()
    local noise = lm.rand({4, 6}, {generator = generator}):to(c.dtype)
    local loss = c.run(t.loss, F.dropout(x, 0.5) + noise, y)
    loss:backward()
    t.opt:step()
    return loss, noise
  end
end)
add("another number of threads within the step", function(_, t)
  local loss_of, calls, before = t.loss, 0, lm.get_num_threads()
  function t.loss(x, y)
    calls = calls + 1
    lm.set_num_threads(calls % 2 + 1)
    return loss_of(x, y)
  end
  function t.after() lm.set_num_threads(before) end
end)
add("errors caught within the step", function(_, t)
  local loss_of = t.loss
  function t.loss(x, y)
    local ok, text = pcall(t.net, x:narrow(2, 1, 5))
    assert(not ok and text:find "linear")
    return loss_of(x, y)
  end
end)
add("scopes, coroutines and anomaly detection", function(c, t)
  local function run(x, y)
    t.opt:zero_grad()
    local loss = lm.scope(function() return c.run(t.loss, x, y) end)
    loss:backward()
    t.opt:step()
    return loss:detach()
  end
  function t.step(x, y)
    local thread = coroutine.create(run)
    local _, loss = coroutine.resume(thread, x, y)
    return loss, lm.autograd.detect_anomaly(run, x, y)
  end
end)
add("copies of the net and new layers within the step", function(c, t)
  function t.step(x, y)
    t.opt:zero_grad()
    local copy, head = t.net:clone(), nn.Linear(3, 3):to(c.dtype)
    local loss = c.run(function() return F.cross_entropy(head(t.net(x)), y) + F.mse_loss(copy(x), t.net(x)) end)
    loss:backward()
    t.opt:step()
    return loss, head.weight.grad
  end
end)
add("an inner step by functional_call", function(c, t)
  function t.loss(x, y)
    local values = {}
    for name, p in t.net:named_parameters() do values[name] = p end
    local inner = F.cross_entropy(lm.func.functional_call(t.net, values, x), y)
    local names, params = {}, {}
    for name, p in t.net:named_parameters() do
      names[#names + 1] = name
      params[#params + 1] = p
    end
    local slopes = lm.grad(inner, params, {create_graph = true})
    for i, name in ipairs(names) do values[name] = params[i] - slopes[i] * 0.1 end
    return F.cross_entropy(lm.func.functional_call(t.net, values, x * 2), y)
  end
  t.net = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)):to(c.dtype)
end, {"float32", "float64", "bfloat16"})
add("lists in Lua that grow, and a number of steps that varies", function(c, t)
  t.log = {}
  function t.inputs(k) return c.randn(4, 6), lm.randint(1, 4, {4}), k % 3 + 1 end
  function t.step(x, y, times)
    for _ = 1, times do
      t.opt:zero_grad()
      local loss = c.run(t.loss, x, y)
      loss:backward()
      t.opt:step()
      t.log[#t.log + 1] = loss:item()
    end
    return unpack(t.log)
  end
end)
add("another function in a variable", function(_, t)
  local activation = F.relu
  function t.loss(x, y) return F.cross_entropy(activation(t.net(x)), y) end
  function t.between(k) activation = ({F.relu, F.tanh, F.gelu})[k % 3 + 1] end
end)
add("a net and an optimizer replaced by saved ones", function(c, t)
  t.opt = optim.Adam(t.net:parameters(), {lr = 0.05})
  t.schedule = optim.lr_scheduler.StepLR(t.opt, {step_size = 2})
  function t.after() t.schedule:step() end
  function t.between(k)
    if k ~= 3 then return end
    local path = os.tmpname()
    lm.save(path, {net = t.net:state_dict(), opt = t.opt:state_dict(), schedule = t.schedule:state_dict()})
    local saved = lm.load(path)
    os.remove(path)
    t.net = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)):to(c.dtype)
    t.opt = optim.Adam(t.net:parameters(), {lr = 1})
    t.schedule = optim.lr_scheduler.StepLR(t.opt, {step_size = 9})
    t.net:load_state_dict(saved.net)
    t.opt:load_state_dict(saved.opt)
    t.schedule:load_state_dict(saved.schedule)
  end
end)

return list

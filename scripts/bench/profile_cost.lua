--- Measures what lm.profile costs a step, lm.record_memory_history an op: luajit scripts/bench/profile_cost.lua.
--- Steps with and without the profile alternate; medians.
local lm = require "luminary"
local nn, F, optim = lm.nn, lm.nn.functional, lm.optim

local function median(list)
  table.sort(list)
  return list[math.floor(#list / 2) + 1]
end

local function cost(name, net, x, y, rounds)
  local opt = optim.SGD(net:parameters(), {lr = 0.01})
  local function step()
    local loss = F.cross_entropy(net(x):flatten(1, -2), y)
    opt:zero_grad()
    loss:backward()
    opt:step()
  end
  for _ = 1, 10 do step() end
  local prof, seconds = lm.profile {}, {{}, {}}
  for i = 1, 2 * rounds do
    local on = i % 2 + 1
    if on == 2 then prof:start() end
    step() -- a first step after the change, which is not measured
    local start = lm.time()
    step()
    table.insert(seconds[on], lm.time() - start)
    if on == 2 then prof:stop() end
  end
  local off, on = median(seconds[1]), median(seconds[2])
  print(("%-12s %8.3f ms off, %8.3f ms on: %+.1f %%"):format(name, off * 1e3, on * 1e3, 100 * (on / off - 1)))
end

lm.manual_seed(0)
local labels = lm.randint(1, 11, {256})
local lenet = nn.Sequential(nn.Conv2d(1, 6, 5, {padding = 2}), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 16, 5),
  nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
  nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10))
cost("LeNet b256", lenet, lm.randn(256, 1, 28, 28), labels, 100)
local mlp = nn.Sequential(nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10))
cost("MLP b256", mlp, lm.randn(256, 784), labels, 200)
local transformer = nn.Sequential(nn.Embedding(1000, 128), nn.TransformerEncoder(nn.TransformerEncoderLayer(128, 4,
  {dim_feedforward = 512, dropout = 0, batch_first = true}), 2), nn.Linear(128, 1000))
cost("transformer", transformer, lm.randint(1, 1001, {8, 64}), lm.randint(1, 1001, {512}), 50)

-- Measures an op that costs almost nothing, without a profile: with and without the memory history.
local a, b = lm.ones(2), lm.ones(2)
local function call_seconds()
  local n, best = 100000, math.huge
  for _ = 1, 15 do
    local start = lm.time()
    for _ = 1, n do a:add(b) end
    best = math.min(best, (lm.time() - start) / n)
  end
  return best * 1e9
end
local off = call_seconds()
lm.record_memory_history()
local on = call_seconds()
lm.record_memory_history(false)
print(("a:add(b): %.0f ns; with lm.record_memory_history %.0f ns; after it %.0f ns"):format(off, on, call_seconds()))

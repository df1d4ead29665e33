-- Prints the collector's share of forwards without gradients, and their time and peak memory, relative to forwards in
-- which modules leave their intermediate results to the collector. Both run by turns, on one thread:
--   luajit scripts/bench/collector.lua
local lm = require "luminary"
local core = require "luminary.core"

lm.set_num_threads(1)
lm.manual_seed(0)
local image = lm.randn(1, 3, 224, 224)
local ids = lm.randint(1, 1000, {1, 16})
local function on_image(net)
  net:eval()
  return function() return net(image) end
end
local gpt2 = lm.models.gpt2 {n_layer = 12, n_embd = 384, n_head = 6, vocab_size = 1000, n_positions = 128}:eval()

local cases = {
  {"mobilenet_v2", on_image(lm.models.mobilenet_v2()), 20}, {"resnet18", on_image(lm.models.resnet18()), 8},
  {"vit_b_16", on_image(lm.models.vit_b_16()), 2},
  {"gpt2, 20 tokens", function() return lm.models.generate(gpt2, ids, {max_new_tokens = 20, do_sample = false}) end, 3},
}
local call_own, rounds = core.call_own, 7
local ways = {freed = call_own, collected = function(f, ...) return f(...) end}

-- Counts the collector's cycles: each finalizes one object.
local cycles = 0
local function watch()
  getmetatable(newproxy(true)).__gc = function()
    cycles = cycles + 1
    watch()
  end
end
watch()

-- Returns seconds of CPU time for f(…).
local function seconds(f, ...)
  local before = os.clock()
  f(...)
  return os.clock() - before
end

local function median(list)
  table.sort(list)
  return list[math.ceil(#list / 2)]
end

local function measure(forward, n, way, result)
  core.call_own = ways[way]
  lm.no_grad(forward)
  collectgarbage()
  lm.reset_peak_memory_stats()
  local before, counted = lm.memory_allocated(), cycles
  local spent = seconds(lm.no_grad, function() for _ = 1, n do forward() end end)
  table.insert(result.time, spent / n)
  result.cycles = result.cycles + (cycles - counted) / n / rounds
  result.peak = math.max(result.peak, lm.max_memory_allocated() - before)
  core.call_own = call_own
end

print(("%-16s %10s %14s %18s %12s"):format("", "ms", "of collected", "collecting, %", "peak, MB"))
for _, case in ipairs(cases) do
  local name, forward, n = unpack(case)
  local results = {}
  for way in pairs(ways) do results[way] = {time = {}, cycles = 0, peak = 0} end
  for _ = 1, rounds do
    for way, result in pairs(results) do measure(forward, n, way, result) end
  end
  local cycle = {}
  for i = 1, 9 do cycle[i] = seconds(collectgarbage, "step", 2 * collectgarbage "count") end
  cycle = median(cycle)
  for _, result in pairs(results) do result.ms = 1000 * median(result.time) end
  for _, way in ipairs {"collected", "freed"} do
    local result = results[way]
    print(("%-16s %10.2f %14.2f %18.1f %12.1f"):format(way == "freed" and "" or name, result.ms,
      result.ms / results.collected.ms, 1e5 * result.cycles * cycle / result.ms, result.peak / 1e6))
  end
end

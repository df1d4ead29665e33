-- Measures what a loader costs a training: LeNet on Fashion-MNIST, batches of 256, on batches that lie in memory and on
-- those of a loader with one worker, in turn. The worker's thread runs beside the training's, so with two cores the
-- training uses one thread. Beside the clock's time stands the CPU time of the training's own thread, which is
-- meaningful even on a busy machine.
local ffi = require "ffi"
local lm = require "luminary"
local F, data, optim = lm.nn.functional, lm.data, lm.optim
local here = arg[0]:match "^(.*)/[^/]*$" or "."
local models, median = dofile(here .. "/../models.lua"), dofile(here .. "/averages.lua").median

local options = require "luminary.cli.script_options"([[
usage: luajit scripts/bench/loader.lua [options]

  --rounds N         of each kind of batches, in turn; medians count   (15)
  --steps N          of a round                                        (60)
  --threads N        CPU threads of the training                       (1)
  --help             print this
]])
local rounds, steps, threads = options.rounds, options.steps, options.threads
lm.set_num_threads(threads)
local set = data.FashionMNIST { train = true }
local net = models.lenet()
local opt = optim.SGD(net:parameters(), { lr = 0.01, momentum = 0.9 })

local function step(x, y)
  opt:zero_grad()
  F.cross_entropy(net(x), y):backward()
  opt:step()
end

local ready = {}
for x, y in data.DataLoader(set, { batch_size = 256, shuffle = true }):iter() do
  if #ready == steps then break end
  ready[#ready + 1] = { x, y }
end

local function from_memory()
  for i = 1, steps do step(ready[i][1], ready[i][2]) end
end

local loader = data.DataLoader(set, { batch_size = 256, shuffle = true, num_workers = 1 })
local next_batch
local function from_loader()
  for _ = 1, steps do
    local x, y = next_batch()
    if x == nil or x.shape[1] < 256 then
      next_batch = loader:iter()
      x, y = next_batch()
    end
    step(x, y)
  end
end


ffi.cdef [[
  struct lm_cost_time { long s, ns; };
  int lm_cost_clock(int, struct lm_cost_time *) __asm__("clock_gettime");
]]
local function on_core() -- seconds of this thread (CLOCK_THREAD_CPUTIME_ID)
  local now = ffi.new "struct lm_cost_time"
  ffi.C.lm_cost_clock(3, now)
  return tonumber(now.s) + tonumber(now.ns) / 1e9
end

-- Milliseconds a step: by the clock, and of this thread.
local function timed(f)
  local began, mine = lm.time(), on_core()
  f()
  return (lm.time() - began) / steps * 1e3, (on_core() - mine) / steps * 1e3
end

next_batch = loader:iter()
from_memory()
from_loader()
local memory, loaded = { {}, {} }, { {}, {} }
for r = 1, rounds do
  memory[1][r], memory[2][r] = timed(from_memory)
  loaded[1][r], loaded[2][r] = timed(from_loader)
end
for k, what in ipairs { "by the clock", "of the thread" } do
  local a, b = median(memory[k]), median(loaded[k])
  print(("%d threads, ms a step %-13s: from memory %.3f, from the loader %.3f, ratio %.3f"):format(threads, what, a, b,
    b / a))
end

--- Measures what lm.checkpoint costs a training, and times saving 45 MB beside safetensors:
---   luajit scripts/bench/checkpoint.lua [FOLDER [PYTHON]]
--- A block of 50 steps with a save in the background at its beginning is compared with those before and after it;
--- median of 20. The steps compute on one thread; the save has a core of its own if there is one. PYTHON has
--- safetensors and numpy. Both sides save with and without fsync, which for Luminary a preloaded library takes away, if
--- gcc is there.
local lm = require "luminary"
local folder, python = arg[1] or "/tmp", arg[2]
local path = folder .. "/bench_checkpoint.safetensors"
io.stdout:setvbuf "no"

local function median(list)
  table.sort(list)
  return list[math.floor(#list / 2) + 1]
end

local state = {}
for i = 1, 60 do state["layer" .. i] = lm.randn(45e6 / 4 / 60) end

local function seconds(f)
  local began = lm.time()
  f()
  return lm.time() - began
end

local function saving(text, save)
  local list = {}
  for i = 1, 9 do list[i] = seconds(save) end
  print(("%-44s %7.1f ms"):format(text, median(list) * 1e3))
end

if arg[3] == "--no-fsync" then
  saving("lm.save, without fsync", function() lm.save(path, state) end)
  saving("checkpoint.save (checksums), without fsync", function() lm.checkpoint.save(path, {net = state}) end)
  os.remove(path)
  return
end

-- ---- the loop
lm.set_num_threads(1)
local a, b, n = lm.randn(512, 512), lm.randn(512, 512), 1
local function step()
  for _ = 1, n do a:matmul(b) end
end
local function usual(f)
  local list = {}
  for i = 1, 9 do list[i] = seconds(f) end
  return median(list)
end
while usual(step) < 0.025 do n = n + 1 end
local calls, blocks, changes, noise = {}, {[true] = {}, [false] = {}}, {}, {}
local function block(saves)
  local whole = seconds(function()
    if saves then
      table.insert(calls, seconds(function() lm.checkpoint.save(path, {net = state}, {async = true}) end))
    end
    for _ = 1, 50 do step() end
  end)
  lm.checkpoint.wait()
  table.insert(blocks[saves], whole)
  return whole
end
block(true)
for _ = 1, 20 do
  local before, with, after = block(false), block(true), block(false)
  table.insert(changes, 2 * with / (before + after) - 1)
  table.insert(noise, math.abs(after / before - 1))
end
print(("50 steps of %.1f ms: %.1f ms, with an async save of 45 MB %+.2f %%; the call itself %.1f ms, %.2f %%"):format(
  median(blocks[false]) / 50 * 1e3, median(blocks[false]) * 1e3, 100 * median(changes), median(calls) * 1e3,
  100 * median(calls) / median(blocks[false])))
print(("two blocks without a save differ by %.2f %%"):format(100 * median(noise)))

-- ---- saving
lm.set_num_threads(2)
saving("lm.save, with fsync", function() lm.save(path, state) end)
saving("checkpoint.save (checksums), with fsync", function() lm.checkpoint.save(path, {net = state}) end)
local library = os.tmpname()
local compile = ("echo 'int fsync(int fd) { return (void)fd, 0; } "
  .. "int sync_file_range(int a, long b, long c, unsigned d) { return (void)a, (void)b, (void)c, (void)d, 0; }' "
  .. "| gcc -shared -fPIC -x c - -o %s"):format(library)
if os.execute(compile) == 0 then
  os.execute(("LD_PRELOAD=%s luajit %s %s - --no-fsync"):format(library, arg[0], folder))
end
os.remove(library)
os.remove(path)
if not python then return end
local script = os.tmpname()
local file = io.open(script, "w")
file:write(([[
import os, statistics, time
import numpy, safetensors.numpy
path = %q
state = {"layer%%d" %% i: numpy.random.randn(45000000 // 4 // 60).astype("float32") for i in range(60)}
def run(sync):
    began = time.perf_counter()
    safetensors.numpy.save_file(state, path)
    if sync:
        fd = os.open(path, os.O_RDONLY)
        os.fsync(fd)
        os.close(fd)
    return time.perf_counter() - began
for sync in (True, False):
    ms = 1e3 * statistics.median(run(sync) for _ in range(9))
    print("%%-44s %%7.1f ms" %% ("safetensors, with%%s fsync" %% ("" if sync else "out"), ms))
os.remove(path)
]]):format(path))
file:close()
os.execute(python .. " " .. script)
os.remove(script)

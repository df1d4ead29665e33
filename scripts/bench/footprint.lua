-- Prints what Luminary costs a worker of another program: the time of require, its memory, and the memory of four
-- processes that map the same file of weights.
--   luajit scripts/bench/footprint.lua [RUNS]      30 runs of require
--   luajit scripts/bench/footprint.lua dist        a table of the packages there, which `scripts/package deb tar` and
--                                                  --parts inference tar made: their sizes, and what trees cost
-- Memory is Linux's, from /proc/self/smaps_rollup: RSS counts shared pages in each process, PSS divides them.
local lm -- required by the processes that measure
local RUNS, WORKERS, SIZE = tonumber(arg[1]) or 30, 4, 2048

local function memory(field)
  for line in io.lines "/proc/self/smaps_rollup" do
    local kilobytes = line:match("^" .. field .. ":%s+(%d+)")
    if kilobytes then return tonumber(kilobytes) / 1024 end
  end
end

-- A model of six layers: 96 MiB of weights.
local function model()
  local layers = {}
  for i = 1, 6 do layers[i] = lm.nn.Linear(SIZE, SIZE, {bias = false}) end
  return lm.nn.Sequential(unpack(layers))
end

if arg[1] == "require" then
  local ffi = require "ffi"
  ffi.cdef "typedef struct { long s, ns; } footprint_time; int clock_gettime(int, footprint_time *);"
  local time = ffi.new "footprint_time"
  local function milliseconds(clock)
    ffi.C.clock_gettime(clock, time)
    return tonumber(time.s) * 1e3 + tonumber(time.ns) / 1e6
  end
  local WALL, PROCESS = 1, 2
  local wall, cpu = milliseconds(WALL), milliseconds(PROCESS)
  require "luminary"
  print(milliseconds(WALL) - wall, milliseconds(PROCESS) - cpu, memory "Rss")
elseif arg[1] == "worker" then
  lm = require "luminary"
  lm.set_num_threads(1)
  local folder, at, before = arg[2], arg[3], memory "Rss"
  local net = model()
  net:load_state_dict(lm.load(folder .. "/weights.safetensors", {mmap = true}), {assign = true})
  lm.no_grad(function() net(lm.ones(1, SIZE)) end)
  lm.empty_cache()
  collectgarbage()
  -- Waits until all workers are there, and measures before the first ends.
  local function meet(name)
    io.open(folder .. "/" .. name .. at, "w"):close()
    for i = 1, WORKERS do
      while not io.open(folder .. "/" .. name .. i) do os.execute "sleep 0.05" end
    end
  end
  meet "ready"
  local rss, pss = memory "Rss", memory "Pss"
  meet "measured"
  print(before, rss, pss)
elseif arg[1] and not tonumber(arg[1]) and arg[1] ~= "numbers" then
  local function output(command)
    local pipe = io.popen(command)
    local text = pipe:read "*a"
    pipe:close()
    return assert(text:match "^%s*(%S.-)%s*$", command .. ": prints nothing")
  end
  local function size(file) return ("%.1f MiB"):format(output("du -sb " .. file):match "%d+" / 2 ^ 20) end
  local here, folder = output("realpath " .. arg[0]), output "mktemp -d"
  local rows = {"| | `luminary` | `luminary-inference` |", "|---|---|---|", "| Debian package |", "| installed |",
    "| tree, packed |", "| tree |", "| `require`, median of 30 |", "| of the processor |",
    "| resident then, with LuaJIT |",
    "| four workers that map 96 MiB of weights, PSS in all |"}
  for _, name in ipairs {"luminary", "luminary-inference"} do
    local deb = output(("ls %s/%s_*.deb"):format(arg[1], name))
    local tar = output(("ls %s/%s-[0-9]*.tar.zst"):format(arg[1], name))
    output(("cd %s && zstd -dc %s | tar -xf - && echo done"):format(folder, output("realpath " .. tar)))
    local tree = output(("ls -d %s/%s-[0-9]*"):format(folder, name))
    local wall, cpu, resident, pss = output(("cd %s && . ./env && luajit %s numbers"):format(tree, here))
      :match "^(%S+)%s+(%S+)%s+(%S+)%s+(%S+)$"
    local installed = output(("dpkg-deb -f %s Installed-Size"):format(deb)) / 1024
    for i, value in ipairs {size(deb), ("%.1f MiB"):format(installed), size(tar), size(tree), ("%.1f ms"):format(wall),
      ("%.1f ms"):format(cpu), ("%.1f MiB"):format(resident), ("%.1f MiB"):format(pss)} do
      rows[i + 2] = rows[i + 2] .. " " .. value .. " |"
    end
  end
  os.execute("rm -r " .. folder)
  print(table.concat(rows, "\n"))
else
  local walls, cpus, resident = {}, {}, 0
  for i = 1, RUNS do
    local pipe = io.popen("luajit " .. arg[0] .. " require")
    local wall, cpu, rss = pipe:read("*n", "*n", "*n")
    pipe:close()
    walls[i], cpus[i], resident = wall, cpu, math.max(resident, rss)
  end
  table.sort(walls)
  table.sort(cpus)
  local median, cpu = walls[math.ceil(RUNS / 2)], cpus[math.ceil(RUNS / 2)]
  local print_text = arg[1] ~= "numbers" and print or function() end
  print_text(("require: %.1f ms (median of %d), at least %.1f; of the processor %.1f; resident with LuaJIT %.1f MiB")
    :format(median, RUNS, walls[1], cpu, resident))
  lm = require "luminary"
  local folder = os.tmpname()
  os.remove(folder)
  os.execute("mkdir " .. folder)
  lm.save(folder .. "/weights.safetensors", model():state_dict())
  local command = {}
  for i = 1, WORKERS do command[i] = ("luajit %s worker %s %d &"):format(arg[0], folder, i) end
  local pipe, pss = io.popen(table.concat(command, " ") .. " wait"), 0
  for i = 1, WORKERS do
    local before, rss, part = pipe:read("*n", "*n", "*n")
    print_text(("worker %d: %.1f MiB resident before the weights, %.1f after; PSS %.1f"):format(i, before, rss, part))
    pss = pss + part
  end
  pipe:close()
  os.execute("rm -r " .. folder)
  local weights = 6 * SIZE * SIZE / 2 ^ 18
  print_text(("%d workers: PSS %.1f MiB in all, of which the weights are %.0f"):format(WORKERS, pss, weights))
  if arg[1] == "numbers" then print(median, cpu, resident, pss) end
end

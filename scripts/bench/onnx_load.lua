-- Loads an ONNX file five times, for scripts/bench/onnx_load:  luajit scripts/bench/onnx_load.lua MODEL.onnx
local lm = require "luminary"
local load, timer = lm.onnx.load, lm.Timer()

local function peak()
  for line in io.lines "/proc/self/status" do
    if line:find "^VmHWM" then return tonumber(line:match "%d+") / 1024 end
  end
end

local before, times, first, memory = peak(), {}, nil, nil
for i = 1, 5 do
  timer:reset()
  load(arg[1])
  times[i] = timer:time().real * 1e3
  first, memory = first or times[i], memory or peak() - before
  collectgarbage()
end
table.sort(times)
print(("%s: luminary %.0f ms, median %.0f ms, %.0f MiB"):format(arg[1], first, times[3], memory))

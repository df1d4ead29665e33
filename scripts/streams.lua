-- Streams, and a program known for its race. A tutorial on streams fills a matrix on one stream and sums it on another
-- without a wait; there the sum may begin before the matrix is filled. Here a tensor knows who writes it, so the
-- program is right as it stands:
--
--   luajit scripts/streams.lua                    on all GPUs, one after the other
--   luajit scripts/streams.lua --devices cpu:0    the CPU's streams do everything at once

local lm = require "luminary"

local USAGE = [[
usage: luajit streams.lua [options]

  --devices DEVICES such as cuda:0,cuda:1                    (all CUDA devices, else cpu)
  --epochs N        sums on each device                      (20)
  --max-steps N     sums in all                              (no limit)
  --batch-size N    rows of the matrix, of 1024 numbers each (4096)
  --dtype NAME      float32, float64, bfloat16 or float16    (float32)
  --lr X            accepted as in the other examples, and ignored
]]

local options = require "luminary.cli.script_options"(USAGE)
local sums, wrong = 0, 0

-- Returns whether a sum on the side stream is the sum of the matrix that the current stream filled.
local function race(device, side, round)
  local a = lm.empty({ options["batch-size"], 1024 }, { device = device, dtype = options.dtype }):normal_(0, 1)
  local b = lm.cuda.stream(side, function() return a:sum() end) -- the missing wait_stream is the race
  local again = a:sum()
  a:fill_(round) -- this does not overtake the sum on the other stream
  return b:item() == again:item()
end

for _, device in ipairs(options.devices) do
  local current, side = lm.cuda.current_stream(device), lm.cuda.Stream(device)
  local begin, finish = lm.cuda.Event { enable_timing = true }, lm.cuda.Event { enable_timing = true }
  begin:record(current)
  for round = 1, math.min(options.epochs, options["max-steps"] - sums) do
    if not race(device, side, round) then wrong = wrong + 1 end
    sums = sums + 1
  end
  finish:record(current)
  finish:synchronize()
  print(("%s: %.1f ms"):format(device, begin:elapsed_time(finish)))
end
print(("%d sums on a second stream, %d wrong"):format(sums, wrong))
os.exit(wrong == 0 and 0 or 1, true)

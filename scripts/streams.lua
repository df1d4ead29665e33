-- Streams, and a program known for its race. A tutorial on streams fills a matrix on one stream and sums it on another
-- without a wait; there the sum may begin before the matrix is filled. Here a tensor knows who writes it, so the
-- program is right as it stands:
--
--   luajit scripts/streams.lua                    on the first GPU
--   luajit scripts/streams.lua --devices cpu:0    the CPU's streams do everything at once
--
--   --devices NAME,...   --epochs N rounds (20)   --max-steps N sums in all   --batch-size N rows (4096)
--   --dtype NAME (float32)   --lr is taken and not needed

local lm = require "luminary"

local options = { devices = "cuda:0", epochs = 20, ["max-steps"] = math.huge, ["batch-size"] = 4096, dtype = "float32",
  lr = 0 }
for i = 1, #arg, 2 do
  local name = arg[i]:match("^%-%-(.*)$")
  local value = name and options[name] ~= nil and arg[i + 1]
  if value and type(options[name]) == "number" then value = tonumber(value) end
  if not value then
    io.stderr:write("streams.lua: no option or no value: ", arg[i], "; see the head of the file\n")
    os.exit(2, true)
  end
  options[name] = value
end

local rows, columns = options["batch-size"], 1024
local sums, wrong = 0, 0

for device in options.devices:gmatch("[^,]+") do
  local side = lm.cuda.Stream(device)
  local begin, finish = lm.cuda.Event { enable_timing = true }, lm.cuda.Event { enable_timing = true }
  begin:record(lm.cuda.current_stream(device))
  for round = 1, options.epochs do
    if sums >= options["max-steps"] then break end
    local a = lm.empty({ rows, columns }, { device = device, dtype = options.dtype }):normal_(0, 1)
    local b = lm.cuda.stream(side, function() return a:sum() end) -- no wait_stream: that is the race
    local again = a:sum()
    a:fill_(round) -- nor does this overtake the sum on the other stream
    sums = sums + 1
    if b:item() ~= again:item() then wrong = wrong + 1 end
  end
  finish:record(lm.cuda.current_stream(device))
  finish:synchronize()
  print(("%s: %d sums on a second stream, %d wrong, %.1f ms"):format(device, sums, wrong, begin:elapsed_time(finish)))
end
os.exit(wrong == 0 and 0 or 1, true)

-- One rank of scripts/bench/ddp: times training steps with one compute thread and prints their median in seconds.
--   luajit ddp_worker.lua MODEL BATCH STEPS
local lm = require "luminary"
local nn, F, optim, dist = lm.nn, lm.nn.functional, lm.optim, lm.dist

dist.init_process_group()
lm.set_num_threads(1)
local root = debug.getinfo(1, "S").source:match("^@(.*)/bench/[^/]*$") or "."
local net = nn.parallel.DistributedDataParallel(dofile(root .. "/models.lua")[arg[1]]())
local opt = optim.SGD(net:parameters(), {lr = 0.01, momentum = 0.9})
local x, y = lm.rand {tonumber(arg[2]), 1, 28, 28}, lm.randint(1, 11, {tonumber(arg[2])})

local seconds = dofile(root .. "/bench/averages.lua").of_steps(tonumber(arg[3]), function()
  local loss = F.cross_entropy(net(x), y)
  opt:zero_grad()
  loss:backward()
  opt:step()
  loss:item()
end)
if dist.get_rank() == 0 then print(("median %.6f"):format(seconds)) end
dist.barrier()

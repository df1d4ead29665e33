--- The script of an elastic job, for spec/cli/elastic_spec.lua and scripts/dev/elastic_soak:
---   luminary run --nnodes 1:4 ... elastic_run.lua FOLDER EPOCHS [SECONDS A STEP]
--- A step takes 24 samples, whatever the number of ranks, so that the losses are those of one rank. Writes FOLDER/log:
--- a line for each rank and step, "RANK ROUND TIME EPOCH STEP LOSS SIZE SAMPLES,...".
local lm = require "luminary"
local core = require "luminary.core"
local ffi = require "ffi"
local nn, data, dist, optim = lm.nn, lm.data, lm.dist, lm.optim
ffi.cdef "int usleep(unsigned microseconds);"

local folder, epochs, pause = arg[1], tonumber(arg[2]), tonumber(arg[3] or 0)
local SAMPLES, STEP = 480, 24

dist.init_process_group()
local rank, size = dist.get_rank(), dist.get_world_size()
local round = tonumber(os.getenv "LM_RESTART_COUNT" or 0)

lm.manual_seed(1)
local x = lm.randn(SAMPLES, 8)
local set = data.TensorDataset(x, x:matmul(lm.randn(8, 1)), lm.arange(1, SAMPLES + 1))
local net = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1)))
local opt = optim.SGD(net:parameters(), {lr = 0.002, momentum = 0.9})
local loader = data.DataLoader(set, {
  batch_size = STEP / size, sampler = data.DistributedSampler(set, {shuffle = true, seed = 5}),
})
local manager = lm.checkpoint.Manager {dir = folder .. "/checkpoints", every = 10, on_sigterm = true}
local parts = {model = net, optimizer = opt, loader = loader, epoch = 1}
local saved = manager:load(parts)
local step = saved and saved.step or 0

local log = io.open(folder .. "/log", "a")
log:setvbuf "no"
for epoch = saved and saved.epoch or 1, epochs do
  parts.epoch = epoch
  for inputs, targets, samples in loader:epoch(epoch) do
    step = step + 1
    local loss = (net(inputs) - targets):square():mean()
    opt:zero_grad()
    loss:backward()
    opt:step()
    local sum = dist.all_reduce(loss:detach():clone())
    log:write(("%d %d %.3f %d %d %.9g %d %s\n"):format(rank, round, core.time(), epoch, step, sum:item() / size, size,
      table.concat(samples:totable(), ",")))
    manager:save(step, parts)
    ffi.C.usleep(pause * 1e6)
  end
end
dist.destroy_process_group()

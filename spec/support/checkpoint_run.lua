-- Trains a small network with all that has a state, for spec/checkpoint: luajit checkpoint_run.lua FOLDER FIRST LAST
-- OPTIMIZER. It resumes after step FIRST, if that is not 0, and ends after step LAST, by SIGKILL if that is not 30;
-- each rank writes its end to FOLDER/end-FIRST-RANK.safetensors. "zero" is for another number of ranks when it resumes:
-- a sharded Adam, without what is random or of one rank.
local lm = require "luminary"
local ffi = require "ffi"
local nn, optim, data, dist = lm.nn, lm.optim, lm.data, lm.dist
local folder, first, last, optimizer = arg[1], tonumber(arg[2]), tonumber(arg[3]), arg[4]
local STEPS, BATCH = 30, 16
local is_zero = optimizer == "zero"
local path = folder .. "/checkpoint.safetensors"

ffi.cdef "int kill(int, int); int getpid(void);"

dist.init_process_group()
local rank, world = dist.get_rank(), dist.get_world_size()
lm.set_num_threads(1)
lm.manual_seed(first == 0 and 7 or 99) -- a resumed run begins with other weights

local images = lm.randn({200, 4, 4}, {generator = lm.Generator():manual_seed(1)})
local set = {
  len = function() return 200 end,
  get = function(_, i)
    local image = images[i] + lm.randn(4, 4) * 0.1 -- a random transform
    if lm.rand(1):item() < 0.5 then image = image:flip(2) end
    return image:reshape(16), i % 4 + 1
  end,
}

local loader = data.DataLoader(set, {
  batch_size = BATCH / world, num_workers = 2, drop_last = true,
  sampler = data.DistributedSampler(set, {seed = 3, drop_last = true}),
})
local net = is_zero and nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 4))
  or nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 4))
local average = optim.AveragedModel(net, {decay = 0.9})
local opt
if is_zero then
  opt = optim.ZeroRedundancyOptimizer(net:parameters(), {optimizer_class = optim.Adam, lr = 0.01})
elseif optimizer == "adam" then
  opt = optim.Adam(net:parameters(), {lr = 0.01, amsgrad = true})
else
  opt = optim.SGD(net:parameters(), {lr = 0.05, momentum = 0.9})
end
local schedule = optim.lr_scheduler.CosineAnnealingLR(opt, STEPS)
local scaler = lm.GradScaler {init_scale = 1024, growth_interval = 4}
local ddp = nn.parallel.DistributedDataParallel(net)
local position = {epoch = 1, step = 0}

local parts = {
  model = ddp, optimizer = opt, schedule = schedule, scaler = scaler, ema = average,
  loader = not is_zero and loader or nil, rng = not is_zero,
}

if first > 0 then
  position = lm.checkpoint.load(path, parts).position
  assert(position.step == first, "step " .. position.step)
end

local function finish()
  dist.barrier()
  if last < STEPS then ffi.C.kill(ffi.C.getpid(), 9) end
  local state = {model = net:state_dict(), ema = average:state_dict()}
  if not is_zero then state.optimizer, state.scaler = opt:state_dict(), scaler:state_dict() end
  lm.save(("%s/end-%d-%d.safetensors"):format(folder, first, rank), state)
  dist.destroy_process_group()
  os.exit(0, true)
end

-- Returns the rank's part of each batch of an epoch, as the loader's, but without a state.
local function plain_batches(epoch)
  local batch = epoch == 1 and position.step or 0
  return function()
    batch = batch + 1
    if batch > STEPS then return nil end
    local at = lm.arange(1, BATCH / world + 1, 1, {dtype = "int64"}) + (batch - 1) % 12 * BATCH + rank * BATCH / world
    return images:index_select(1, at):reshape(-1, 16), (at % 4) + 1
  end
end

while true do
  for x, y in (is_zero and plain_batches or function(n) return loader:epoch(n) end)(position.epoch) do
    local loss = nn.functional.cross_entropy(ddp(x), y)
    opt:zero_grad()
    scaler:scale(loss):backward()
    scaler:step(opt)
    scaler:update()
    schedule:step()
    average:update(net)
    position.step = position.step + 1
    if position.step == last then
      if last < STEPS then
        parts.position = position
        local saving = lm.checkpoint.save(path, parts, {async = optimizer == "sgd"})
        if saving then saving:wait() end
      end
      finish()
    end
  end
  position.epoch = position.epoch + 1
end

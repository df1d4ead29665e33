-- One rank of a chaos trial (chaos.lua): a random but common course of collectives, and one rank that goes wrong.
-- The environment says which: CHAOS_VICTIM (a rank), CHAOS_KIND, CHAOS_STEP (0: before it joins), CHAOS_SEED,
-- CHAOS_STEPS, CHAOS_TIMEOUT, CHAOS_BACKEND, CHAOS_INIT (init_method), CHAOS_NOTES (a file to write times to; %RANK%
-- stands for the rank), CHAOS_LAYOUT ("ddp" or "fully_shard"). Faults from outside (signals, a cut link)
-- are the harness's.
local lm = require "luminary"
local dist, nn, optim = lm.dist, lm.nn, lm.optim

local function env(name) return (assert(os.getenv(name), name .. " is not set")) end

local me = tonumber(os.getenv "RANK" or env "OMPI_COMM_WORLD_RANK")
local victim, kind, fault_step = tonumber(env "CHAOS_VICTIM"), env "CHAOS_KIND", tonumber(env "CHAOS_STEP")
local steps, seed = tonumber(env "CHAOS_STEPS"), tonumber(env "CHAOS_SEED")

local notes = assert(io.open((env("CHAOS_NOTES"):gsub("%%RANK%%", tostring(me))), "a"))
local function note(what) notes:write(("%s %.4f\n"):format(what, lm.time())) notes:flush() end

-- The same numbers on every rank, from the seed alone.
local state = seed % 2147483647
local function random(n)
  state = (state * 48271) % 2147483647
  return state % n
end

note "start"
local function fault(step)
  if me ~= victim or step ~= fault_step then return end
  note "fault"
  if kind == "error" then error("chaos: this rank's script fails") end
  if kind == "exit" then os.exit(0) end
  if kind == "return" then
    notes:close()
    os.exit(0, true)
  end
end

fault(0)
dist.init_process_group {
  backend = env "CHAOS_BACKEND", init_method = env "CHAOS_INIT", timeout = tonumber(env "CHAOS_TIMEOUT"),
}
note "joined"
-- Most tensors are on this rank's card over NCCL, and some on the CPU.
local nccl = env("CHAOS_BACKEND"):find("nccl", 1, true) ~= nil
local card = nccl and dist.local_device() or "cpu"
if nccl then lm.cuda.set_device(card) end
local device = card
local function ones(shape, dtype) return lm.ones(shape, { dtype = dtype or "float32", device = device }) end
local function zeros(shape, dtype) return lm.zeros(shape, { dtype = dtype or "float32", device = device }) end
local world = dist.get_world_size()
local pair = dist.new_group { 0, world - 1 }

lm.manual_seed(1)
local net = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 3)):to(card)
net = nn.parallel.DistributedDataParallel(net)
local opt = optim.SGD(net:parameters(), { lr = 0.01 })

local courses = {
  function(wrong)
    local t = ones({ 3, wrong == "shape" and 2 or 1 }, wrong == "dtype" and "float64")
    if wrong == "op" then return dist.all_reduce(t, { op = "max" }) end
    if wrong == "other" then return dist.barrier() end
    dist.all_reduce(t)
    if nccl and random(2) == 0 then t:sum():item() end -- the host waits for the device
  end,
  function(wrong)
    local root = random(world)
    local t = ones({ wrong == "shape" and 1001 or 1000 }, wrong == "dtype" and "int32")
    if wrong == "op" then return dist.broadcast(t, (root + 1) % world) end
    if wrong == "other" then return dist.all_reduce(t) end
    dist.broadcast(t, root)
  end,
  function(wrong)
    local t = ones({ wrong == "shape" and 4 or 5 }, wrong == "dtype" and "float64")
    if wrong == "op" or wrong == "other" then return dist.all_reduce(t) end
    local outputs = {}
    for r = 1, world do outputs[r] = zeros({ #t }, t.dtype) end
    dist.all_gather(outputs, t)
  end,
  function(wrong) -- large, through the sockets as well as shared memory
    local t = ones({ 300000 + (wrong == "shape" and 1 or 0) }, wrong == "dtype" and "int64")
    if wrong == "op" then return dist.all_reduce(t, { op = "min" }) end
    if wrong == "other" then return dist.broadcast(t, 0) end
    dist.all_reduce(t)
  end,
  function(wrong)
    if wrong then return dist.all_reduce(ones { 2 }) end
    dist.barrier()
  end,
  function(wrong) -- two at once
    local a = ones({ wrong == "shape" and 9 or 8 }, wrong == "dtype" and "uint8")
    local first = dist.all_reduce(a, { async_op = true, op = wrong == "op" and "max" or "sum" })
    if wrong == "other" then first:wait() return dist.barrier() end
    local second = dist.all_reduce(ones { 4 }, { async_op = true })
    first:wait()
    second:wait()
  end,
  function(wrong)
    if wrong then return dist.barrier() end
    opt:zero_grad()
    net(lm.randn({ 4, 8 }, { device = card })):square():mean():backward()
    opt:step()
  end,
  function(wrong) -- a ring of messages
    local behind, before = (me + 1) % world, (me - 1) % world
    if nccl then -- nccl does not compare messages, and needs a ring in one call
      for _, work in ipairs(dist.batch_isend_irecv {
        dist.P2POp(dist.isend, ones { 16 }, behind), dist.P2POp(dist.irecv, zeros { 16 }, before),
      }) do work:wait() end
      if wrong then return dist.all_reduce(ones { 16 }) end
      return dist.barrier()
    end
    local work = dist.isend(ones { 16 }, behind)
    dist.recv(zeros({ wrong and 8 or 16 }, wrong == "dtype" and "int32"), before)
    work:wait()
    dist.barrier()
  end,
  function(wrong) -- a group of two beside the world
    if pair ~= dist.NON_MEMBER then
      dist.all_reduce(ones { wrong and 7 or 6 }, { group = pair })
    elseif wrong then
      dist.all_reduce(ones { 1 })
    end
    dist.barrier()
  end,
}

-- Returns courses of a network that is sharded over a mesh; each raises its errors in one of the mesh's collectives.
local function sharded_courses()
  local mesh = dist.init_device_mesh(nccl and "cuda" or "cpu", world == 4 and { 2, 2 } or { 1, world }, {
    names = { "replicate", "shard" },
  })
  local blocks = nn.Sequential()
  for _ = 1, 3 do blocks:append(nn.Sequential(nn.Linear(8, 8), nn.ReLU())) end
  blocks = blocks:to(card)
  for _, block in ipairs(blocks) do nn.parallel.fully_shard(block, { mesh = mesh }) end
  nn.parallel.fully_shard(blocks, { mesh = mesh })
  local adam = optim.Adam(blocks:parameters(), { lr = 0.01 })
  note "meshed"
  local function loss_of(module) return module(lm.randn({ 4, 8 }, { device = card })):square():mean() end
  local function goes_wrong(wrong)
    local group = mesh:get_group "shard" -- calls of different groups are not compared
    if wrong == "shape" then return dist.all_reduce(ones { 3 }, { group = group }) end
    if wrong == "op" then return dist.barrier { group = group } end
    if wrong == "dtype" then return loss_of(blocks:double()) end
    loss_of(blocks[2]):backward() -- a block is left out
  end
  local function course(f)
    return function(wrong)
      if wrong then goes_wrong(wrong) end
      f()
    end
  end
  return {
    course(function()
      adam:zero_grad()
      loss_of(blocks):backward()
      nn.utils.clip_grad_norm_(blocks:parameters(), 1)
      adam:step()
    end),
    course(function() (loss_of(blocks) + loss_of(blocks)):backward() end),
    course(function()
      blocks:no_sync(function() loss_of(blocks):backward() end)
      loss_of(blocks):backward()
    end),
    course(function() lm.no_grad(function() return loss_of(blocks) end) end),
    course(function() nn.parallel.full_state_dict(blocks, { dst = random(world) }) end),
  }
end
if os.getenv "CHAOS_LAYOUT" == "fully_shard" then courses = sharded_courses() end

local wrongs = { shape = true, dtype = true, op = true, other = true }
for step = 1, steps do
  fault(step)
  local wrong = me == victim and step == fault_step and wrongs[kind] and kind or nil
  if wrong then note "fault" end
  local course = courses[1 + random(#courses)]
  if nccl then device = random(4) == 0 and "cpu" or card end
  course(wrong)
  local pause = lm.time() + random(nccl and 16 or 4) * 1e-3
  while lm.time() < pause do end -- luacheck: ignore 542
end
note "last"
dist.barrier()
note "done"
dist.destroy_process_group()
fault(steps + 1)
note "left"

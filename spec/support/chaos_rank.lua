-- One rank of a chaos trial (chaos.lua): a random but common course of collectives, and one rank that goes wrong.
-- The environment says which: CHAOS_VICTIM (a rank), CHAOS_KIND, CHAOS_STEP (0: before it joins), CHAOS_SEED,
-- CHAOS_STEPS, CHAOS_TIMEOUT, CHAOS_BACKEND, CHAOS_INIT (init_method), CHAOS_NOTES (a file to write times to; %RANK%
-- stands for the rank), CHAOS_LAYOUT ("ddp" or a key of dims in the harness), CHAOS_MESH (sizes and names of the mesh's
-- dims). Faults from outside (signals, a cut link) are the harness's.
local lm = require "luminary"
local lists = require "luminary.base.lists"
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

-- Blocks of a network that layouts divide: as Sequential, and with attention.
local function mlp(d) return nn.Sequential(nn.Linear(d, 2 * d), nn.ReLU(), nn.Linear(2 * d, d)) end
local Attention = nn.Module:extend "Attention"
function Attention:init(d) self.qkv = nn.Linear(d, 3 * d) end
function Attention:forward(x)
  local q, k, v = unpack(self.qkv(x):unsqueeze(2):chunk(3, -1))
  return x + nn.functional.scaled_dot_product_attention(q, k, v, { is_causal = true }):squeeze(2)
end

-- Returns courses of a network that is divided over a mesh; each raises its errors in one of the mesh's collectives.
local function divided_courses(layout)
  local shape, names = {}, {}
  for size, name in env "CHAOS_MESH":gmatch "(%d+) (%a+)" do
    shape[#shape + 1], names[#names + 1] = tonumber(size), name
  end
  local parallel, width = nn.parallel, 12
  local mesh = dist.init_device_mesh(nccl and "cuda" or "cpu", shape, { names = names })
  local blocks = nn.Sequential()
  for _ = 1, 4 do blocks:append(layout == "context" and Attention(width) or mlp(width)) end
  blocks = blocks:to(card)
  if layout == "tensor" or layout == "mixed" then
    local plan = { ["0"] = "column", ["2"] = "row" }
    for _, block in ipairs(blocks) do parallel.parallelize(block, mesh["tensor"], plan) end
  end
  local function mean_of(y) return y:square():mean() end
  local function input(rows) return lm.randn({ rows or 4, 24, width }, { device = card }) end
  local function part_of_sequences(x, f)
    if layout ~= "context" then return f(x) end
    return parallel.context_parallel(mesh["context"], { buffers = { x }, dims = { 2 } }, f)
  end
  local pipe
  if layout == "pipeline" or layout == "mixed" then
    local split, stages = {}, mesh["pipeline"]:size()
    for s = 1, stages - 1 do split[s] = tostring(s) end
    pipe = parallel.Pipeline(blocks, { mesh = mesh["pipeline"], split = split, microbatches = 2,
      loss = function(y) return mean_of(y) end })
  end
  if names[2] == "shard" then -- both dims
    for _, block in ipairs(blocks) do parallel.fully_shard(block, { mesh = mesh }) end
    parallel.fully_shard(blocks, { mesh = mesh })
  elseif names[1] == "shard" then
    for _, m in ipairs(pipe and pipe.stages or blocks) do parallel.fully_shard(m, { mesh = mesh["shard"] }) end
  end
  local whole = pipe or blocks
  local adam = optim.Adam(whole:parameters(), { lr = 0.01 })
  note "meshed"
  local function forward(module, rows)
    return part_of_sequences(input(rows):to(blocks[1]:parameters()[1].dtype), function(x) return mean_of(module(x)) end)
  end
  local function pass() -- forward and backward
    if pipe then return pipe:step(input(), input()) end
    forward(blocks):backward()
  end
  local messages_first = layout == "context" and not nccl -- nccl does not compare messages
  local function goes_wrong(wrong)
    if messages_first then return forward(wrong == "dtype" and blocks:double() or blocks, 5) end
    local group = mesh:get_group(pipe and "pipeline" or #shape) -- calls of different groups are not compared
    if wrong == "shape" then return dist.all_reduce(ones { 3 }, { group = group }) end
    if wrong == "op" then return dist.barrier { group = group } end
    if layout ~= "fully_shard" and wrong == "dtype" then
      return dist.all_reduce(ones({ 3 }, "float64"), { group = group })
    end
    if pipe then return pipe(input()) end
    if layout == "context" then return dist.all_reduce(ones { 4 }, { group = group }) end
    if wrong == "dtype" then
      forward(blocks:double())
      blocks:float() -- or Adam's state has another dtype, which is this rank's own error
      return
    end
    forward(blocks[2]):backward() -- blocks are left out
  end
  local function course(f)
    return function(wrong)
      if wrong then goes_wrong(wrong) end
      if layout == "context" and nccl then
        mesh:call(dist.all_reduce, ones { 1 }, { group = mesh:get_group "context" })
      end
      f()
    end
  end
  local list = {
    course(function()
      adam:zero_grad()
      pass()
      nn.utils.clip_grad_norm_(whole:parameters(), 1)
      adam:step()
    end),
    course(function() pass() pass() end),
    course(function() lm.no_grad(function() return pipe and pipe:step(input(), input()) or forward(blocks) end) end),
    course(function() parallel.full_state_dict(whole, { dst = random(world) }) end),
  }
  if layout == "fully_shard" then
    lists.append(list, {
      course(function() (forward(blocks) + forward(blocks)):backward() end),
      course(function()
        blocks:no_sync(pass)
        pass()
      end),
    })
  end
  return list
end
-- A call that differs from the others' is named at once if they are in the same kind of call, messages or a collective
-- of one group. So at that step the ranks of a divided network all begin the first course.
local layout = env "CHAOS_LAYOUT"
if layout ~= "ddp" then courses = divided_courses(layout) end
local begins_alike = layout ~= "ddp"
local wrongs = { shape = true, dtype = true, op = true, other = true }
for step = 1, steps do
  fault(step)
  local wrong = me == victim and step == fault_step and wrongs[kind] and kind or nil
  if wrong then note "fault" end
  local course = courses[1 + random(#courses)]
  if begins_alike and wrongs[kind] and step == fault_step then course = courses[1] end
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

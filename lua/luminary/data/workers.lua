--- A loader's workers: threads, or processes, each with a Lua state and a copy of the set of its own. They are told
--- which batch to make of which samples, and send it back; between threads tensors are passed on, not copied.
---
--- Which worker makes a batch changes nothing in it: its random numbers come from a seed of the batch's own, and what
--- dtype columns of plain numbers have is settled by the first batch before others are asked for.
local core = require "luminary.core"
local options = require "luminary.options"
local batch = require "luminary.data.batch"
local carrier = require "luminary.mp.carrier"
local failure = require "luminary.mp.failure"
local here = require "luminary.mp.here"
local names = require "luminary.mp.names"
local Worker = require "luminary.mp.worker"
local fail = options.fail

local workers = {}

local asked -- whether get_worker_info was: a stream that does shares itself out

--- data.get_worker_info(): in a loader's worker {id, num_workers, dataset}, ids from 0; nil elsewhere.
function workers.get_worker_info()
  asked = true
  return workers.info
end

-- ---- in the worker

-- Tensors on their way to another process lie in shared memory: copies do, whatever else holds the originals.
local function copied(v, seen)
  if core.is_tensor(v) then
    seen[v] = seen[v] or v.is_leaf and v:detach():clone():requires_grad_(v.requires_grad) or v
  elseif not options.is_plain(v) then
    return v
  elseif not seen[v] then
    seen[v] = {}
    for key, value in pairs(v) do seen[v][key] = copied(value, seen) end
  end
  return seen[v]
end

local function begin_random(seed)
  batch.begin_random(seed)
  math.randomseed(seed)
end

-- A function that makes the batch asked for. Of a stream that shares itself out, by :shard or by get_worker_info, each
-- worker makes its part, and every count-th batch of all is its; of others each walks everything, by the same random
-- numbers, and leaves out what others are asked for.
local function maker(recipe, index, count)
  if not recipe.is_stream then
    return function(request)
      begin_random(request.seed)
      return batch.fetch(recipe, request.numbers)
    end
  end
  asked = type(recipe.set.shard) == "function"
  if asked then recipe.set:shard(index, count) end
  local pass, take, at
  return function(request)
    local seed = request.seed - request.batch
    if pass ~= request.pass then
      begin_random(seed)
      pass, take = request.pass, batch.stream(recipe)
      at = asked and index + 1 - count or 0
    end
    local samples
    repeat
      local shared = asked
      at = at + (shared and count or 1)
      begin_random(seed + at)
      samples = take()
      if asked and not shared then at = index + 1 end -- it has asked only now: this was its first
    until samples == nil or at >= request.batch
    if samples then return batch.join(recipe, samples) end
  end
end

local function pack(...) return {n = select("#", ...), values = {...}} end

-- What f gives, packed; or nil and what went wrong. os.exit in f ends the worker.
local function attempt(f)
  local made
  local ok, problem = failure.attempt(function() made = pack(f()) end)
  if ok then return made end
  if getmetatable(problem) == failure.Exit then error(problem, 0) end
  return nil, problem
end

--- Answers a loader until it has gone. setup: {recipe, count, init, processes}.
function workers.serve(index, setup)
  local recipe = setup.recipe
  local how = {processes = setup.processes, name_of = names.finder()}
  workers.info = {id = index, num_workers = setup.count, dataset = recipe.set}
  local begun, misfortune = attempt(function()
    if setup.init then setup.init(index) end
    return maker(recipe, index, setup.count)
  end)
  while true do
    local text, tensors, handles = here.receive()
    if not text then return end
    local request = carrier.decode(text, tensors, handles)
    recipe.dtypes, recipe.at = request.dtypes, nil
    local reply, problem
    if begun then reply, problem = attempt(function() return begun.values[1](request) end) end
    if reply and setup.processes then reply.values = copied(reply.values, {}) end
    reply = reply or {problem = problem or misfortune, at = recipe.at}
    reply.batch, reply.dtypes = request.batch, recipe.dtypes
    local sent, why = attempt(function()
      core.mp_send(here.channel, carrier.encode("DataLoader: a batch", reply, how))
    end)
    if not sent then
      core.mp_send(here.channel, carrier.encode("DataLoader", {batch = request.batch, problem = why}, how))
    end
  end
end

-- ---- where the script runs

local Pool = {}
Pool.__index = Pool

-- The workers of one pass, or of all passes.
local function start(loader, recipe)
  local method = loader.worker_type
  local job = Worker.job("DataLoader", workers.serve, {{
    recipe = recipe, count = loader.num_workers, init = loader.worker_init_fn, processes = method == "process",
  }}, method)
  local self = setmetatable({list = {}, asked = {}, waiting = 0, passes = 0, processes = method == "process"}, Pool)
  local ok, problem = pcall(function()
    for i = 1, loader.num_workers do
      self.asked[i] = 0
      self.list[i] = Worker.start("DataLoader", {
        method = method, job = job, index = i - 1, threads = 1,
        environment = {LM_ERROR_FILE = false, TORCHELASTIC_ERROR_FILE = false}, -- its errors are the loader's
      })
    end
  end)
  if not ok then
    self:close()
    error(problem, 0)
  end
  return self
end

--- Ends the workers, those that are at work too.
function Pool:close()
  self.closed = true
  for i, worker in ipairs(self.list) do
    if self.asked[i] > 0 then core.mp_signal(worker.handle, Worker.SIGKILL) end
  end
  for _, worker in ipairs(self.list) do core.mp_close(worker.handle) end
end

local plain = function() end -- requests hold nothing that has a name

function Pool:ask(i, request)
  if self.processes and core.is_tensor(request.numbers) then request.numbers = request.numbers:totable() end
  self.asked[i], self.waiting = self.asked[i] + 1, self.waiting + 1
  local text, tensors, handles = carrier.encode("DataLoader", request, {
    processes = self.processes, name_of = plain,
  })
  local ok, problem = pcall(core.mp_send, self.list[i].handle, text, tensors, handles)
  if not ok and not problem:find("closed$") then error(problem, 0) end -- one that has ended tells so by its end
end

-- The worker that has least to do.
function Pool:idlest()
  local best = 1
  for i = 2, #self.list do
    if self.asked[i] < self.asked[best] then best = i end
  end
  return best
end

local function gone(self, i)
  local worker = self.list[i]
  worker:join(1)
  local end_of = worker:failure() or {code = worker.code or 0}
  local how = end_of.message or end_of.signal and "was ended by " .. core.signal_name(end_of.signal)
    or ("ended with exit code %d"):format(end_of.code)
  self:close()
  fail("DataLoader: worker %d %s", i - 1, how)
end

-- What has come, by number of the batch. Batches other than k, the one that is asked for, outlive the scope.
function Pool:collect(ready, k)
  for i, worker in ipairs(self.list) do
    while true do
      local text, tensors, handles = core.mp_receive(worker.handle, 0)
      if text == nil then gone(self, i) end
      if not text then break end
      local reply = carrier.decode(text, tensors, handles)
      if reply.ok ~= nil then -- its last words
        worker.report = reply
        gone(self, i)
      end
      self.asked[i], self.waiting = self.asked[i] - 1, self.waiting - 1
      reply.worker = i
      ready[reply.batch] = reply
      if reply.batch ~= k then core.keep(reply.values) end
    end
  end
end

function Pool:wait_for(k, ready, timeout)
  local deadline = core.time() + (timeout > 0 and timeout or math.huge)
  while true do
    self:collect(ready, k)
    if ready[k] then break end
    local left = deadline - core.time()
    if left <= 0 then
      self:close()
      fail("DataLoader: batch %d has not come within %g s, the timeout", k, timeout)
    end
    Worker.wait(self.list, math.min(left, 1))
  end
  local reply = ready[k]
  ready[k] = nil
  return reply
end

local function raise(loader, reply)
  local name, problem = loader.dataset.__name or "the set", reply.problem
  local where = reply.at and ("sample %s of %s"):format(tostring(reply.at), name) or name
  local text = ("DataLoader: worker %d, %s: %s"):format(reply.worker - 1, where, problem.message)
  if problem.traceback ~= "" then text = text .. "\nstack traceback of the worker:\n\t" .. problem.traceback end
  core.error_at_caller(text)
end

local function pool_of(loader, recipe)
  local pool = loader.pool
  loader.pool = nil
  if pool and not pool.closed and pool.waiting == 0 then return pool end
  return start(loader, recipe)
end

--- A function that gives the batches from number `first` on, made by the loader's workers. next_numbers() says what is
--- in each, nil at the end; seed + k is batch k's seed.
function workers.walk(loader, recipe, next_numbers, seed, first)
  local pool, ready, done = pool_of(loader, recipe), {}, {}
  local count = loader.num_workers
  local sent, given, ended, over = first - 1, first - 1, false, false
  pool.passes = pool.passes + 1
  local function whose(k) return recipe.is_stream and (k - 1) % count + 1 or pool:idlest() end
  local function ask()
    local most = loader.dtypes_known and count * loader.prefetch_factor or 1
    while not ended and sent - given < most do
      local numbers = next_numbers()
      if numbers == nil then
        ended = true
        break
      end
      sent = sent + 1
      local i = whose(sent)
      if not done[i] then
        pool:ask(i, {batch = sent, pass = pool.passes, numbers = numbers, seed = seed + sent, dtypes = recipe.dtypes})
      end
    end
  end
  local function finish() -- once: the workers may be another iterator's by now
    over = true
    if loader.persistent_workers and not loader.pool then loader.pool = pool else pool:close() end
  end
  local function next_batch()
    while true do
      if over or pool.closed then return nil end
      ask()
      if sent == given then
        finish()
        return nil
      end
      given = given + 1
      local i = recipe.is_stream and whose(given)
      if not (i and done[i]) then
        local reply = pool:wait_for(given, ready, loader.timeout)
        if reply.problem then
          pool:close()
          raise(loader, reply)
        end
        if reply.n > 0 and reply.values[1] ~= nil then
          for path, dtype in pairs(reply.dtypes) do recipe.dtypes[path] = dtype end
          loader.dtypes_known = true
          ask() -- they make more while the script works with this one
          return unpack(reply.values, 1, reply.n)
        end
        done[i], done.n = true, (done.n or 0) + 1
        ended = ended or done.n == count
      end
    end
  end
  return next_batch
end

return workers

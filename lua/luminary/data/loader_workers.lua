--- Runs a loader's workers: threads or processes, each with its own Lua state and copy of the set. They receive the
--- number and samples of a batch, make it and send it back; threads pass tensors without copying.
---
--- A batch does not depend on the worker that makes it: its random numbers come from its own seed, and the first batch
--- sets the dtypes of columns of plain numbers before others are requested.
local core = require "luminary.core"
local lists = require "luminary.base.lists"
local options = require "luminary.base.options"
local batches = require "luminary.data.make_batch"
local map_tensors = require "luminary.base.map_tensors"
local serializer = require "luminary.mp.serialization"
local failure = require "luminary.mp.worker_failure"
local here = require "luminary.mp.parent_channel"
local names = require "luminary.mp.module_references"
local connections = require "luminary.mp.shared_handle"
local Worker = require "luminary.mp.worker"
local fail = options.fail

local workers = {}

-- ---- in the worker

-- Copies a tensor, which then moves to shared memory alone, even if other tensors share the original's memory.
local function copied(t) return t.is_leaf and t:detach():clone():requires_grad_(t.requires_grad) or t end

-- Seeds the random numbers of a batch. math.random begins alike after near seeds, as those of batches are, so its seed
-- is drawn.
local function begin_random(seed)
  batches.begin_random(seed)
  math.randomseed(core.ops.randint(0, 2 ^ 52, {1}, {device = "cpu"}):item())
  batches.begin_random(seed)
end

-- Begins a pass by the loader's setup, {batch_plan, init, pin}. Returns the functions that make batches; nil without a
-- batch plan, which releases everything.
local function begin(index, count, setup)
  local batch_plan, maker = setup.batch_plan, {batch_plan = setup.batch_plan, pin = setup.pin}
  batches.worker_info = batch_plan and {id = index, num_workers = count, dataset = batch_plan.set}
  if not batch_plan then return nil end
  maker.problem = failure.outcome(function()
    if setup.init then setup.init(index) end
    maker.make, maker.is_shared = batches.maker(batch_plan, index, count, begin_random)
  end).problem
  return maker
end

local function answer_request(maker, request, processes)
  local batch_plan = maker.batch_plan
  batch_plan.dtypes, batch_plan.at = request.dtypes, nil
  local outcome, state = maker, {}
  if maker.make then outcome = failure.outcome(maker.make, request) end
  if outcome.values and batches.has_state(batch_plan) then
    state = failure.outcome(batch_plan.set.state_dict, batch_plan.set)
  end
  local values, problem = outcome.values, outcome.problem or state.problem
  if problem then return {batch = request.batch, problem = problem, at = batch_plan.at} end
  if processes then
    values = map_tensors(values, copied)
  elseif maker.pin then
    values = map_tensors(values, core.pin_memory)
  end
  return {
    batch = request.batch, values = values, state = state.values and state.values[1], dtypes = batch_plan.dtypes,
    shared = maker.is_shared(),
  }
end

local IDLE = 0.05 -- seconds after a pass until memory is freed, which takes longer than a short pass

-- Returns the loader's next message; nil if the loader has ended.
local function listen(maker)
  local text, tensors, handles
  if not maker then text, tensors, handles = core.mp_get(here.channel, IDLE) end
  if text == false then
    collectgarbage()
    collectgarbage() -- the second cycle frees memory that finalizers held
  end
  if not text and (maker or text == false) then text, tensors, handles = here.receive() end
  if text then return serializer.decode(text, tensors, handles) end
end

local function send(reply, how)
  connections.send(here.channel, serializer.encode("DataLoader: a batch", reply, how))
end

--- Serves a loader until it is gone: it sends each pass's setup, and then requests batches.
function workers.serve(index, count, processes)
  local how = {processes = processes, name_of = names.finder()}
  local maker
  while true do
    local request = listen(maker)
    if not request then return end
    if request.batch then
      local reply = answer_request(maker, request, processes)
      local why = failure.outcome(send, reply, how).problem
      if why then
        connections.send(here.channel, serializer.encode("DataLoader", {batch = request.batch, problem = why}, how))
      end
    else
      maker = begin(index, count, request)
    end
  end
end

-- ---- in the script

local Pool = {}
Pool.__index = Pool

-- Makes a pool whose workers have not started. setup: text, tensors and handles of a pass's setup.
local function new_pool(loader, setup)
  local method, count = loader.worker_type, loader.num_workers
  local self = setmetatable({
    list = {}, requested = {}, count = count, waiting = 0, passes = 0, setup = setup, method = method,
    processes = method == "process",
  }, Pool)
  for i = 1, count do self.requested[i] = 0 end
  self.job = Worker.job("DataLoader", workers.serve, {count, self.processes}, method)
  return self
end

--- Returns worker i, and starts it at the first call.
function Pool:worker(i)
  if not self.list[i] then
    self.list[i] = Worker.start("DataLoader", {
      method = self.method, job = self.job, index = i - 1, threads = 1,
    })
    self:send(i, unpack(self.setup, 1, 3))
  end
  return self.list[i]
end

--- Ends the workers, including busy ones.
function Pool:close()
  self.closed = true
  for i, worker in pairs(self.list) do
    if self.requested[i] > 0 then core.mp_signal(worker.handle, Worker.SIGKILL) end
  end
  for _, worker in pairs(self.list) do worker:close() end
end

local plain = function() end -- in place of names for errors: a request holds no data

function Pool:send(i, text, tensors, handles)
  local ok, problem = pcall(connections.send, self.list[i].channel, text, tensors, handles)
  if not ok and not problem:find("closed$") then error(problem, 0) end -- a worker that ended is noticed by its end
end

function Pool:request(i, request)
  if self.processes and core.is_tensor(request.numbers) then request.numbers = request.numbers:totable() end
  self:worker(i)
  self.requested[i], self.waiting = self.requested[i] + 1, self.waiting + 1
  self:send(i, serializer.encode("DataLoader", request, {processes = self.processes, name_of = plain}))
end

--- Begins a pass in all workers, or ends it if the setup is of an empty table.
function Pool:begin(setup)
  self.setup = setup
  for i in pairs(self.list) do self:send(i, unpack(setup, 1, 3)) end
end

--- Returns the worker with the fewest requests.
function Pool:idlest()
  local best = 1
  for i = 2, self.count do
    if self.requested[best] == 0 then break end
    if self.requested[i] < self.requested[best] then best = i end
  end
  return best
end

-- Fails with the error of worker i, which has ended.
local function fail_for_ended(self, i)
  local worker = self.list[i]
  worker:join(1)
  local end_of = worker:failure() or {code = worker.code or 0}
  self:close()
  fail("DataLoader: worker %d %s", i - 1, end_of.message and "ended: " .. end_of.message or Worker.how_it_ended(end_of))
end

-- Receives replies into `ready`, by number of the batch. Batches other than k, the requested one, outlive the scope.
function Pool:collect(ready, k)
  for i, worker in pairs(self.list) do
    while self.requested[i] > 0 do
      local text, tensors, handles = core.mp_get(worker.channel, 0)
      if text == nil then fail_for_ended(self, i) end
      if not text then break end
      local reply = serializer.decode(text, tensors, handles)
      if reply.ok ~= nil then -- its final report
        worker.report = reply
        fail_for_ended(self, i)
      end
      self.requested[i], self.waiting = self.requested[i] - 1, self.waiting - 1
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
    if left <= 0 then fail("DataLoader: timeout: batch %d did not arrive within %g s", k, timeout) end
    local busy = {}
    for i, worker in pairs(self.list) do
      if self.requested[i] > 0 then busy[#busy + 1] = worker end
    end
    Worker.wait(busy, math.min(left, 1))
  end
  local reply = ready[k]
  ready[k] = nil
  return reply
end

local function raise(loader, reply)
  local name, problem = loader.dataset.__name or "the set", reply.problem
  local where = reply.at and ("sample %s of %s"):format(tostring(reply.at), name) or name
  core.error_at_caller(("DataLoader: worker %d, %s: %s"):format(reply.worker - 1, where,
    failure.text(problem, "the worker")))
end

-- Pools of loaders between passes. They are not fields of a loader, which may be sent to another thread within a set.
local pools = setmetatable({}, {__mode = "k"})

-- Returns true if setups are the same: text, tensors and handles.
local function is_same(a, b)
  for list = 2, 3 do
    for i, x in ipairs(a[list]) do
      if x ~= b[list][i] then return false end
    end
  end
  return a[1] == b[1]
end

-- Returns the pool of the loader's last pass, or a new one, after sending it the setup. Persistent workers keep theirs
-- until something in it changes, such as a field of the set.
local function pool_of(loader, batch_plan)
  local pool = pools[loader]
  pools[loader] = nil
  if pool and (pool.closed or pool.waiting > 0 or pool.count ~= loader.num_workers
    or pool.method ~= loader.worker_type) then
    pool:close()
    pool = nil
  end
  local plan = lists.copy(batch_plan)
  plan.dtypes = nil -- requests have them
  local setup = {serializer.encode("DataLoader",
    {batch_plan = plan, init = loader.worker_init_fn, pin = loader.pins},
    {processes = loader.worker_type == "process", name_of = names.cached_finder()})}
  if pool and loader.persistent_workers and not pool.resting and is_same(pool.setup, setup) then return pool end
  if pool then
    pool:begin(setup)
  else
    pool = new_pool(loader, setup)
  end
  pool.resting = nil
  return pool
end

-- Keeps threads for the loader's next pass, since a Lua state is slow to start; they release everything of the last
-- one.
local function put_away(loader, pool)
  if pools[loader] or pool.processes and not loader.persistent_workers then return pool:close() end
  pools[loader] = pool
  if loader.persistent_workers then return end
  pool.resting = true
  pool:begin {serializer.encode("DataLoader", {}, {})}
end

local MOST_REQUESTED = 64 -- requests to a worker at a time; more than its channel holds

--- Returns an iterator over the batches after number pass.batch, made by the loader's workers, each preceded by {batch
--- = its number, shared, sets (the pass.sets that resume after it)}; and a function that returns true if the next batch
--- is ready. next_numbers() returns the samples of each, nil at the end; pass.seed + k is batch k's seed.
function workers.walk(loader, batch_plan, next_numbers, pass)
  local pool, ready, done = pool_of(loader, batch_plan), {}, {}
  local count = loader.num_workers
  local sent, given, ended, over = pass.batch, pass.batch, false, false
  local sets, shared = lists.copy(pass.sets or {}), pass.shared -- states of the set, by worker if they share it
  local begun = {}
  pool.passes = pool.passes + 1
  local function whose(k) return batch_plan.is_stream and (k - 1) % count + 1 or pool:idlest() end
  local function request_more()
    local most = loader.dtypes_known and count * loader.prefetch_factor or 1
    while not ended and sent - given < most and pool.waiting < count * MOST_REQUESTED do
      local numbers = next_numbers()
      if numbers == nil then
        ended = true
        break
      end
      sent = sent + 1
      local i = whose(sent)
      if not done[i] then
        local from = not begun[i] and pass.sets and pass.sets[pass.shared and i or 1] or nil
        begun[i] = true
        pool:request(i, {
          batch = sent, pass = pool.passes, numbers = numbers, seed = pass.seed + sent, dtypes = batch_plan.dtypes,
          from = from,
        })
      end
    end
  end
  local function finish() -- ends the pass only once: workers may be in another one by then
    over = true
    put_away(loader, pool)
  end
  local function next_batch()
    while true do
      if over or pool.closed then return nil end
      request_more()
      if sent == given then
        finish()
        return nil
      end
      given = given + 1
      local i = batch_plan.is_stream and whose(given)
      if not (i and done[i]) then
        local reply = pool:wait_for(given, ready, loader.timeout)
        if reply.problem then raise(loader, reply) end
        shared = reply.shared
        if reply.values[1] ~= nil then
          for path, dtype in pairs(reply.dtypes) do batch_plan.dtypes[path] = dtype end
          loader.dtypes_known = true
          local about = {batch = given, shared = shared}
          if reply.state ~= nil then
            sets[shared and i or 1] = {batch = given, state = reply.state}
            about.sets = lists.copy(sets)
          end
          request_more() -- workers continue while the script uses this batch
          return about, unpack(reply.values, 1, reply.values.n)
        end
        done[i], done.n = true, (done.n or 0) + 1
        ended = ended or done.n == count
      end
    end
  end
  local function is_ready()
    if over or pool.closed or sent == given then return true end
    pool:collect(ready)
    return ready[given + 1] ~= nil or batch_plan.is_stream and done[whose(given + 1)]
  end
  -- Ends the workers, whose batches would be unused, after any error, also of the sampler.
  local function checked(ok, ...)
    if ok then return ... end
    pool:close()
    error(..., 0)
  end
  return function() return checked(pcall(next_batch)) end, is_ready
end

return workers

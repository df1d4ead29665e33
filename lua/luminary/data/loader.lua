--- data.DataLoader(…): Combines a dataset and a sampler, and yields the dataset in batches.
-- Its workers, and the error of one that ended (fail_for_ended), are in loader_workers.lua.
local core = require "luminary.core"
local class = require "luminary.base.class"
local lists = require "luminary.base.lists"
local options = require "luminary.base.options"
local signature = require "luminary.base.signature"
local batches = require "luminary.data.make_batch"
local dataset = require "luminary.data.dataset"
local sampler = require "luminary.data.sampler"
local load_module = require "luminary.base.load_module"
local rank_and_size = require "luminary.base.rank_and_size"
local fail = options.fail

local DataLoader = class.root("DataLoader")
DataLoader.differs_by_rank = true -- checkpoints hold the state of each rank
DataLoader.__makes = "dataset"
DataLoader.__hint = "for x, y in loader:iter() do … end walks its batches, #loader is the number of batches"

-- Checks a custom sampler, which needs :len() and :iter() (or :indices()).
local function check_sampler(name, v)
  if not class.has(v, "len", "iter") and not class.has(v, "len", "indices") then
    options.must_be("DataLoader", name, "an object with :iter() and :len()", v)
  end
end

DataLoader.init = signature.of([[DataLoader(set, {batch_size: count = (1), shuffle: boolean = (false), sampler,
  batch_sampler, num_workers: integer(0, 4096) = 0, collate_fn: function, pin_memory: boolean,
  drop_last: boolean = (false), timeout: positive = 0, worker_init_fn: function,
  worker_type = "thread" | "process", generator: generator, prefetch_factor: count = 2, persistent_workers = false,
  seed: natural, device, shard_ranks: boolean})]], function(self, set, opts)
  self.dataset = dataset.check("DataLoader", set)
  for _, name in ipairs {
    "num_workers", "seed", "prefetch_factor", "persistent_workers", "worker_init_fn", "worker_type", "timeout",
    "pin_memory", "shard_ranks", "generator",
  } do
    self[name] = opts[name]
  end
  if opts.device ~= nil then self.device = core.device(opts.device) end
  self.is_stream = class.is(set, dataset.IterableDataset)
  if opts.shard_ranks and not self.is_stream then
    fail("DataLoader: shard_ranks requires an IterableDataset; use {sampler = data.DistributedSampler(set)} here")
  elseif opts.shard_ranks and type(set.shard) ~= "function" then
    fail("DataLoader: shard_ranks requires a dataset with :shard(i, n), after which its :iter() yields part i (from "
      .. "0) of n")
  end
  if self.is_stream then
    for _, name in ipairs {"shuffle", "sampler", "batch_sampler"} do
      if opts[name] then fail("DataLoader: an IterableDataset has its own order; leave out %s", name) end
    end
  elseif opts.batch_sampler then
    check_sampler("batch_sampler", opts.batch_sampler)
    if opts.batch_size or opts.shuffle or opts.sampler or opts.drop_last then
      fail("DataLoader: batch_sampler excludes batch_size, shuffle, sampler and drop_last; leave them out")
    end
  elseif opts.sampler then
    check_sampler("sampler", opts.sampler)
    if opts.shuffle then
      fail("DataLoader: sampler and shuffle are mutually exclusive; let the sampler shuffle: "
        .. "data.DistributedSampler(set, {shuffle = true})")
    end
  end
  self.batch_size, self.drop_last = opts.batch_size or 1, opts.drop_last or false
  self.batch_sampler, self.collate_fn = opts.batch_sampler, opts.collate_fn
  self.passes = 0 -- number of epochs begun by iter()
  self.dtypes = {} -- dtypes of columns of plain numbers, see make_batch.lua
  if self.is_stream then return end
  self.sampler = opts.sampler
    or opts.shuffle and sampler.RandomSampler(set, {seed = opts.seed, generator = opts.generator})
    or sampler.SequentialSampler(set)
end)

-- Returns this rank and the number of ranks for streams that are split over ranks; 0 and 1 for others.
local function rank_for_streams(self)
  local set, rank, ranks = self.dataset, rank_and_size()
  local has_shard = self.is_stream and type(set.shard) == "function"
  local shards = self.shard_ranks
  if shards == nil and has_shard then shards = set.shard_ranks end
  if has_shard and shards == nil and ranks > 1 then
    core.warn(("DataLoader: each of %d ranks walks all of %s; pass {shard_ranks = true} to split it by :shard, "
      .. "or {shard_ranks = false} to keep this without a warning"):format(ranks, set.__name or "the set"))
  end
  if not shards or ranks == 1 then return 0, 1 end
  return rank, ranks
end

--- Returns the number of batches of an epoch; for a stream that is split over ranks, the number for this rank.
function DataLoader:len()
  if self.batch_sampler then return dataset.length("DataLoader", self.batch_sampler, "batch sampler") end
  local n
  if self.is_stream then
    local rank, world = rank_for_streams(self)
    n = math.ceil((dataset.length("DataLoader", self.dataset) - rank) / world)
  else
    n = dataset.length("DataLoader", self.sampler, "sampler")
  end
  return (self.drop_last and math.floor or math.ceil)(n / self.batch_size)
end

-- ---- iterating

local function list_of(iterator)
  if type(iterator) ~= "function" then
    options.must_be("DataLoader", "the result of the sampler's :iter()", "a function", iterator)
  end
  local list = {}
  for v in iterator do list[#list + 1] = v end
  return list
end

-- Returns a function that returns the sample numbers of one batch after another from batch `first` on, an int64 tensor
-- or a list; for a stream it always returns true.
local function requests(self, first, seed)
  if self.is_stream then return function() return true end end
  if self.batch_sampler then
    local next_numbers = self.batch_sampler:iter()
    if type(next_numbers) ~= "function" then
      options.must_be("DataLoader", "the result of the batch sampler's :iter()", "a function", next_numbers)
    end
    -- Give the sampler its own random numbers, those of batch 0, since workers get requests ahead of the script.
    local drawn
    local function step()
      if drawn then core.set_rng_state(drawn, "cpu") end
      local numbers = next_numbers()
      drawn = core.get_rng_state "cpu"
      return numbers
    end
    for _ = 1, first - 1 do core.with_seed(seed, step) end
    return function()
      local numbers = core.with_seed(seed, step)
      if numbers == nil then return nil end
      local n = core.is_tensor(numbers) and numbers.ndim == 1 and numbers.shape[1]
        or options.is_plain(numbers) and #numbers or 0
      if n > 0 then return core.keep(numbers) end
      options.must_be("DataLoader", "a value of the batch sampler", "a non-empty list of sample numbers", numbers)
    end
  end
  local order = dataset.numbers("DataLoader: the sampler",
    self.sampler.indices and self.sampler:indices() or list_of(self.sampler:iter()))
  local n, size = order.shape[1], self.batch_size
  local at = (first - 1) * size + 1 -- position in the order at which the next batch begins
  return function()
    local count = math.min(size, n - at + 1)
    if count <= 0 or self.drop_last and count < size then return nil end
    local numbers = order:narrow(1, at, count)
    at = at + count
    return numbers
  end
end

local MOST = 2 ^ 52

-- Returns the seed of a pass; batch k's is this plus k. It follows from the loader's seed and the epoch or, without a
-- seed, from the state of its generator or the CPU's, which it does not advance.
local function seed_of_pass(self, epoch)
  local base = self.seed
  if not base then
    base = 0
    local state = core.get_rng_state(self.generator or "cpu")
    for _, byte in ipairs(state:totable()) do base = (base * 257 + byte) % 2 ^ 32 end
  end
  return core.draws(MOST, base % 2 ^ 32 + epoch % 2 ^ 20 * 2 ^ 32, 1):item()
end

-- Iterates over a pass's batches as workers.walk does, but without workers.
local function walk_alone(self, batch_plan, next_numbers, pass)
  local make, is_shared = batches.maker(batch_plan, 0, 1, batches.begin_random)
  local k = pass.batch
  local function next_batch()
    local numbers = next_numbers()
    if numbers == nil then return nil end
    k = k + 1
    local request = {batch = k, seed = pass.seed + k, numbers = numbers, pass = pass, from = pass.sets and pass.sets[1]}
    return {batch = k}, core.with_seed(request.seed, make, request)
  end
  return function()
    local function noted(about, ...)
      if about and ... ~= nil then
        about.shared = is_shared()
        if batches.has_state(batch_plan) then about.sets = {{batch = k, state = self.dataset:state_dict()}} end
      end
      return about, ...
    end
    return noted(next_batch())
  end, function() return true end
end

-- Returns the function that pins batches in the script's thread; nil if none is needed, or workers pin unconditionally.
local function pinner(self)
  local there = self.device and self.device:find "^cuda" and self.device
  self.pins = nil
  if core.device_count "cuda" == 0 or not (self.pin_memory or there and self.pin_memory == nil) then return nil end
  self.pins = self.num_workers > 0 and self.worker_type == "thread"
  if self.pins and not self.pin_memory then return nil end
  local pinner_of = load_module("luminary.data.copy_to_gpu").pinner
  return pinner_of {device = there or core.device "cuda", always = self.pin_memory, by_worker = self.pins}
end

-- Returns the iterator of a pass. pass: {epoch, batch: number of batches yielded, offset: the number of them before the
-- sampler's order, which another number of ranks took, seed, shared, sets}
local function batches_of_pass(self, pass)
  local batch_plan = {
    set = self.dataset, collate_fn = self.collate_fn, batch_size = self.batch_size, drop_last = self.drop_last,
    dtypes = self.dtypes, is_stream = self.is_stream,
  }
  batch_plan.rank, batch_plan.world = rank_for_streams(self)
  pass.rank, pass.world = batch_plan.rank, batch_plan.world
  local pin = pinner(self)
  local next_numbers = requests(self, pass.batch - (pass.offset or 0) + 1, pass.seed)
  local walk_batches = self.num_workers == 0 and walk_alone or load_module("luminary.data.loader_workers").walk
  local next_batch, is_ready = walk_batches(self, batch_plan, next_numbers, pass)
  if self.device and self.device ~= "cpu" then
    next_batch = load_module("luminary.data.copy_to_gpu").ahead(self.device, next_batch, is_ready, pin)
  elseif pin then
    local next_unpinned = next_batch
    local function pinned(about, ...)
      if about == nil or ... == nil then return nil end
      local values, n = {...}, select("#", ...)
      pin(values, n)
      return about, unpack(values, 1, n)
    end
    next_batch = function() return pinned(next_unpinned()) end
  end
  local function give(about, ...)
    if about == nil or ... == nil then
      pass.over = true
      return nil
    end
    pass.batch, pass.shared, pass.sets = about.batch, about.shared, about.sets
    return ...
  end
  self.pass = pass
  return function()
    if core.is_recording() then return give(core.record_kind("wait", "DataLoader: next batch", next_batch)) end
    return give(next_batch())
  end
end

-- ---- states

local function order_of(self) return self.batch_sampler or self.sampler or self.dataset end

local function state_of_order(self)
  local order = order_of(self)
  if not self.is_stream and class.has(order, "state_dict", "load_state_dict") then return order:state_dict() end
end

local function begin_pass(self, epoch, first, epoch_is_explicit)
  return batches_of_pass(self, {
    epoch = epoch, epoch_is_explicit = epoch_is_explicit, batch = first - 1,
    seed = seed_of_pass(self, epoch), sampler = state_of_order(self),
    rng = core.get_rng_state "cpu",
  })
end

-- Resumes the pass of a loaded state.
local function resume(self)
  local pass, order = self.resumed, order_of(self)
  self.resumed = nil
  if pass.sampler then
    order:load_state_dict(pass.sampler)
  elseif pass.epoch_is_explicit and order.set_epoch then
    order:set_epoch(pass.epoch)
  end
  return core.with_seed(0, function()
    core.set_rng_state(pass.rng, "cpu")
    return batches_of_pass(self, pass)
  end)
end

-- Warns, once and on rank 0, if a pass has the same order as the last one.
local function warn_of_same_order(self, order)
  if self.has_warned or not class.is(order, sampler.DistributedSampler) then return end
  if order.shuffle and order.rank == 0 and self.last_epoch == order.epoch then
    self.has_warned = true
    core.warn(("DataLoader: this pass has the same order as the last one, that of epoch %d; call loader:epoch(n) "
      .. "instead of loader:iter(), or sampler:set_epoch(n)"):format(order.epoch))
  end
  self.last_epoch = order.epoch
end

--- Returns an iterator over the batches of an epoch, or of the rest of one after load_state_dict.
function DataLoader:iter()
  if self.resumed then return resume(self) end
  warn_of_same_order(self, order_of(self))
  self.passes = self.passes + 1
  return begin_pass(self, self.passes, 1, false)
end

--- Returns an iterator over the batches of epoch n, for which it calls the sampler's set_epoch. `first`: the first
--- batch, for resuming.
function DataLoader:epoch(n, first)
  options.arg("DataLoader:epoch", "the epoch", n, "natural")
  local from = options.arg("DataLoader:epoch", "the first batch", first or 1, "count")
  local resumed = self.resumed
  if resumed then
    if n ~= resumed.epoch or first then
      fail("DataLoader:epoch: the loaded state resumes in epoch %d after batch %d; call loader:epoch(%d)",
        resumed.epoch, resumed.batch, resumed.epoch)
    end
    return resume(self)
  end
  local order = order_of(self)
  if order.set_epoch then order:set_epoch(n) end
  return begin_pass(self, n, from, true)
end

local PASS = {
  epoch = "natural", batch = "natural", seed = "natural", rng = "tensor", rank = "natural", world = "count",
  workers = "count",
}

-- Returns the sampler's state for the rest of an epoch that another number of ranks began, so that the present ranks
-- share what is left; nil if their number is the same, or the sampler has no such state.
local function state_for_other_ranks(self, state)
  local order, pass = order_of(self), state.pass
  local of_order = type(pass) == "table" and pass.sampler or state.sampler
  if self.is_stream or type(of_order) ~= "table" or not class.has(order, "state_after") then return nil end
  local batches_taken = pass and pass.batch - (pass.offset or 0) or 0
  local each = self.batch_sampler and 1
    or options.arg("DataLoader:load_state_dict", "batch_size", state.batch_size, "count")
  return order:state_after(of_order, batches_taken * each)
end

--- Fails for the states of ranks that are at different batches, since another number of ranks cannot share the rest of
--- such an epoch. Checkpoints call it.
function DataLoader.check_rank_states(_, states)
  local first = states[1].pass
  for r, state in ipairs(states) do
    local pass = state.pass
    if (pass and pass.batch) ~= (first and first.batch) then
      fail("DataLoader: rank 0 was after batch %s, rank %d after batch %s; such a state needs %d ranks again",
        first and first.batch or "0", r - 1, pass and pass.batch or "0", #states)
    end
  end
end

--- Returns the position in the current epoch, a plain table for lm.save. After load_state_dict of it, a loader with the
--- same arguments yields exactly the remaining batches, random numbers included, with any number of workers. A dataset
--- with :get reads nothing twice. Samplers with :state_dict() and :load_state_dict(state) are saved, too. A stream with
--- these methods resumes from its own state; one without is read from its beginning. A stream with :shard needs the
--- same number of workers and the same rank. What is left of the epoch of a DistributedSampler can be loaded by any
--- number of ranks.
function DataLoader:state_dict()
  local state = {passes = self.passes, dtypes = lists.copy(self.dtypes), batch_size = self.batch_size}
  if not self.is_stream then state.length = self:len() end
  local pass = self.resumed or self.pass
  if pass and not pass.over then
    state.pass = lists.copy(pass)
    state.pass.workers = math.max(self.num_workers, 1)
  else
    state.sampler = state_of_order(self)
  end
  return state
end

--- Loads a state_dict: the next iter(), or epoch(n) of the same n, yields the rest of its epoch. The default generator
--- is not changed.
function DataLoader:load_state_dict(state)
  local who = "DataLoader:load_state_dict"
  options.arg(who, "the state", state, "table")
  if type(state.passes) ~= "number" or type(state.dtypes) ~= "table" then
    options.expected(who, "a result of loader:state_dict()", state)
  end
  options.arg(who, "passes", state.passes, "natural")
  for path, dtype in pairs(state.dtypes) do options.arg(who, "a key of dtypes", path, "string") core.dtype(dtype) end
  local pass = state.pass
  if pass ~= nil then
    options.arg(who, "pass", pass, "table")
    for name, kind in pairs(PASS) do options.arg(who, "pass." .. name, pass[name], kind) end
    if pass.sampler ~= nil then options.arg(who, "pass.sampler", pass.sampler, "table") end
    if pass.offset ~= nil then options.arg(who, "pass.offset", pass.offset, "natural") end
    if (pass.offset or 0) > pass.batch then
      fail("%s: pass.offset must be at most %.0f, the batch, got %.0f", who, pass.batch, pass.offset)
    end
  end
  local of_order = state_for_other_ranks(self, state)
  if state.batch_size ~= self.batch_size and not of_order then
    fail("%s: the state has batch_size %s, this loader %d", who, tostring(state.batch_size), self.batch_size)
  end
  local length = not self.is_stream and self:len() or nil
  if state.length ~= length and not of_order then
    fail("%s: the state has %s batches per epoch, this loader %s; the dataset or the sampler differs", who,
      tostring(state.length or "an unknown number of"), tostring(length or "an unknown number of"))
  end
  if pass ~= nil then
    if length and pass.batch > length and not of_order and not pass.offset then
      fail("%s: the state is after batch %.0f, but an epoch has %d", who, pass.batch, length)
    end
    local rank, world = rank_for_streams(self)
    if pass.rank ~= rank or pass.world ~= world then
      fail("%s: the state is for part %d of %d of the stream, this is part %d of %d", who, pass.rank + 1, pass.world,
        rank + 1, world)
    end
    if pass.shared and pass.workers ~= math.max(self.num_workers, 1) then
      fail("%s: the state has %s workers, this loader %d; create it with {num_workers = %d}", who, pass.workers,
        self.num_workers, pass.workers)
    end
    if pass.sets and not batches.has_state {is_stream = true, set = self.dataset} then
      fail("%s: the state has a dataset state, but the dataset has no :load_state_dict(state)", who)
    end
  elseif state.sampler ~= nil then
    order_of(self):load_state_dict(state.sampler)
  end
  self.passes, self.dtypes, self.pass = state.passes, lists.copy(state.dtypes), nil
  self.dtypes_known = next(self.dtypes) ~= nil
  self.resumed = pass and lists.copy(pass)
  if pass and of_order then self.resumed.sampler, self.resumed.offset = of_order, pass.batch end
end

function DataLoader:repr()
  if self.is_stream then
    return ("DataLoader(%s, batch_size=%d)"):format(tostring(self.dataset), self.batch_size)
  end
  return ("DataLoader(%s, batch_size=%d, %d batches)"):format(tostring(self.dataset), self.batch_size, self:len())
end

return DataLoader

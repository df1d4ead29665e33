--- Defines samplers, the order in which a loader visits a set. Each has :len() and :indices(), a 1-d int64 tensor of
--- sample numbers for one epoch. A custom one may have :iter(), a Lua iterator, instead.
local core = require "luminary.core"
local class = require "luminary.base.class"
local options = require "luminary.base.options"
local signature = require "luminary.base.signature"
local dataset = require "luminary.data.dataset"
local rank_and_size = require "luminary.base.rank_and_size"
local fail = options.fail

local function count_to(n) return core.ops.arange(1, n + 1, {dtype = "int64"}) end

--- data.Sampler: Base class for samplers. A custom one defines len, and iter or indices.
local Sampler = class.root("Sampler")
Sampler.differs_by_rank = true -- checkpoints hold the state of each rank
--- Returns the number of samples of an epoch. Every sampler defines it.
function Sampler:len() fail("%s: define function %s:len()", self.__name, self.__name) end

--- Returns an iterator over the indices of an epoch.
function Sampler:iter()
  local order, i = self:indices(), 0
  local n = order.shape[1]
  return function()
    i = i + 1
    if i <= n then return order:select(1, i):item() end
  end
end

--- Returns the state that sets the order of the next epoch, besides the default generator, as a plain table.
function Sampler:state_dict()
  local own = core.is_generator(self.generator)
  return {epoch = self.epoch, generator = own and core.get_rng_state(self.generator) or nil}
end
--- Loads a state_dict.
function Sampler:load_state_dict(state)
  local epoch = options.arg("load_state_dict", "the state", state, "table").epoch
  self.epoch = self.epoch and options.arg("load_state_dict", "the sampler's epoch", epoch, "natural")
  if core.is_generator(self.generator) and state.generator ~= nil then
    local own = options.arg("load_state_dict", "the generator's state", state.generator, "tensor")
    core.set_rng_state(own, self.generator)
  end
end

-- Fails if a sampler has both a seed and a generator.
local function check_source(who, sampler)
  if sampler.seed and sampler.generator then options.exclusive(who, "seed", "generator") end
end

-- Returns 1 to n in the next order of a sampler without a seed.
local function order_of(sampler, n) return core.ops.randperm(n, {device = "cpu", generator = sampler.generator}) end

--- data.SequentialSampler(set): Samples elements sequentially, always in the same order.
local Sequential = class.define("SequentialSampler", Sampler)
Sequential.init = signature.of("SequentialSampler(set)", function(self, set)
  self.set = dataset.check("SequentialSampler", set)
end)
function Sequential:len() return dataset.length("SequentialSampler", self.set) end
--- Returns the indices of an epoch, a 1-d int64 tensor.
function Sequential:indices() return count_to(self:len()) end

--- data.RandomSampler(…): Samples elements randomly, in a new order each epoch.
local Random = class.define("RandomSampler", Sampler)

Random.init = signature.of([[RandomSampler(set, {replacement = false, num_samples: count, generator: generator,
  seed: natural})]], function(self, set, opts)
  self.set = dataset.check("RandomSampler", set)
  self.epoch = 0
  signature.assign(self, opts)
  check_source("RandomSampler", self)
  if self.num_samples and dataset.length("RandomSampler", set) == 0 then
    fail("RandomSampler: cannot draw num_samples = %d from an empty dataset", self.num_samples)
  end
end)

function Random:len() return self.num_samples or dataset.length("RandomSampler", self.set) end

--- Sets the epoch, which the next order depends on. loader:epoch(n) calls it.
Random.set_epoch = signature.of("set_epoch(epoch: natural)", function(self, epoch) self.epoch = epoch end)

--- Returns the indices of an epoch, a 1-d int64 tensor.
function Random:indices()
  local n, count = dataset.length("RandomSampler", self.set), self:len()
  local seed = self.seed and self.seed + self.epoch
  self.epoch = self.epoch + 1
  if self.replacement then
    if seed then return core.draws(n, seed, count) end
    return core.ops.randint(1, n + 1, {count}, {device = "cpu", generator = self.generator})
  end
  local order = core.ops.empty({count}, {dtype = "int64"})
  for k = 0, math.ceil(count / n) - 1 do
    local part = seed and core.permutation(n, seed + k * 2 ^ 32) or order_of(self, n)
    local size = math.min(n, count - k * n)
    order:narrow(1, k * n + 1, size):copy_(part:narrow(1, 1, size))
  end
  return order
end

--- data.SubsetRandomSampler(…): Samples elements randomly from a list of indices, without replacement.
local SubsetRandom = class.define("SubsetRandomSampler", Sampler)

SubsetRandom.init = signature.of([[SubsetRandomSampler(indices, {generator: generator,
  seed: natural})]], function(self, indices, opts)
  self.subset = dataset.numbers("SubsetRandomSampler", indices)
  signature.assign(self, opts)
  self.epoch = 0
  check_source("SubsetRandomSampler", self)
end)

function SubsetRandom:len() return self.subset.shape[1] end
SubsetRandom.set_epoch = Random.set_epoch

--- Returns the indices of an epoch, a 1-d int64 tensor.
function SubsetRandom:indices()
  local n, seed = self:len(), self.seed and self.seed + self.epoch
  self.epoch = self.epoch + 1
  if n == 0 then return self.subset end
  return core.gather_rows(self.subset, seed and core.permutation(n, seed) or order_of(self, n))
end

--- data.WeightedRandomSampler(…): Samples indices with given probabilities (weights).
local Weighted = class.define("WeightedRandomSampler", Sampler)

Weighted.init = signature.of([[WeightedRandomSampler(weights, num_samples: count, {replacement = true,
  generator: generator, seed: natural})]], function(self, weights, num_samples, opts)
  local who = "WeightedRandomSampler"
  if core.is_tensor(weights) and weights.ndim == 1 then weights = weights:totable() end
  if not options.is_plain(weights) then
    options.expected(who, "a list or a 1-d tensor of weights", weights)
  end
  signature.assign(self, opts)
  check_source(who, self)
  self.weights, self.num_samples = {}, num_samples
  self.epoch = 0
  local total, above = 0, 0
  for i = 1, table.maxn(options.list(who, "weights", weights)) do
    local w = options.arg(who, ("weight %d"):format(i), weights[i], "finite(0)")
    self.weights[i] = w
    total, above = total + w, above + (w > 0 and 1 or 0)
  end
  if total == 0 then fail("%s: at least one weight must be above 0", who) end
  if total == 1 / 0 then fail("%s: the sum of the weights must be finite", who) end
  if not self.replacement and above < num_samples then
    fail("%s: cannot draw %d samples without replacement from %d weights above 0", who, num_samples, above)
  end
end)

function Weighted:len() return self.num_samples end
Weighted.set_epoch = Random.set_epoch

local MOST = 2 ^ 52 -- the number of different random numbers between 0 and 1

--- Returns the indices of an epoch, a 1-d int64 tensor.
function Weighted:indices()
  local seed = self.seed and self.seed + self.epoch
    or core.ops.randint(0, MOST, {1}, {device = "cpu", generator = self.generator}):item()
  self.epoch = self.epoch + 1
  local weights, n = core.tensor(self.weights, {dtype = "float64", device = "cpu"}), #self.weights
  local draws = (core.draws(MOST, seed, self.replacement and self.num_samples or n):to "float64" - 0.5) / MOST
  if self.replacement then
    local sums = weights:cumsum(1)
    return core.ops.searchsorted(sums, draws * sums:select(1, n), {right = true}):clamp(1, n)
  end
  local times = -draws:log() / weights -- exponential arrival times: take the first ones
  return core.ops.argsort(times, {stable = true}):narrow(1, 1, self.num_samples)
end

--- data.BatchSampler(…): Wraps another sampler to yield lists of batch_size indices.
local Batch = class.define("BatchSampler", Sampler)

Batch.init = signature.of([[BatchSampler(sampler, batch_size: count,
  {drop_last = false})]], function(self, sampler, batch_size, opts)
  if not class.has(sampler, "len", "iter") then
    options.expected("BatchSampler", "a sampler, with :iter() and :len()", sampler)
  end
  self.sampler, self.batch_size = sampler, batch_size
  self.drop_last = opts.drop_last
end)

function Batch:len()
  return (self.drop_last and math.floor or math.ceil)(dataset.length("BatchSampler", self.sampler, "sampler") /
    self.batch_size)
end

--- Sets the epoch of the wrapped sampler. loader:epoch(n) calls it.
function Batch:set_epoch(epoch)
  if self.sampler.set_epoch then self.sampler:set_epoch(epoch) end
end

--- Returns the state_dict of the wrapped sampler.
function Batch:state_dict()
  return {
    sampler = class.has(self.sampler, "state_dict", "load_state_dict") and self.sampler:state_dict() or nil,
    batch_size = self.batch_size,
  }
end

--- Loads a state_dict.
function Batch:load_state_dict(state)
  state = options.arg("load_state_dict", "the state", state, "table").sampler
  if state then self.sampler:load_state_dict(state) end
end

--- Returns the state after `count` batches on each rank, if the wrapped sampler had another number of ranks; or nil.
function Batch:state_after(state, count)
  local inner = state.sampler and class.has(self.sampler, "state_after")
    and self.sampler:state_after(state.sampler, count * (state.batch_size or self.batch_size))
  return inner and {sampler = inner} or nil
end

function Batch:iter() return dataset.grouped(self.sampler:iter(), self.batch_size, self.drop_last) end

--- data.DistributedSampler(…): Restricts data loading to a subset of the dataset that is exclusive to the rank.
local Distributed = class.define("DistributedSampler", Sampler)

Distributed.init = signature.of([[DistributedSampler(set, {num_replicas: count, rank: natural, shuffle = true,
  seed: natural = 0, drop_last = false})]], function(self, set, opts)
  self.set = dataset.check("DistributedSampler", set)
  local rank, size = rank_and_size()
  self.num_replicas, self.rank = opts.num_replicas or size, opts.rank or rank
  self.shuffle, self.seed, self.drop_last, self.epoch = opts.shuffle, opts.seed, opts.drop_last, 0
  local n = dataset.length("DistributedSampler", set)
  if self.rank >= self.num_replicas then
    fail("DistributedSampler: rank %d is out of range for %d ranks (ranks start at 0)", self.rank, self.num_replicas)
  end
  if n < self.num_replicas then
    fail("DistributedSampler: %d samples are fewer than the %d ranks; run at most %d processes, or use a larger "
      .. "dataset", n, self.num_replicas, n)
  end
  self.start = 0 -- number of samples of the next order that other numbers of ranks took
end)

-- Returns the number of a rank's samples of n.
local function samples_per_rank(self, n) return (self.drop_last and math.floor or math.ceil)(n / self.num_replicas) end

function Distributed:len() return samples_per_rank(self, dataset.length("DistributedSampler", self.set)) end

--- Sets the epoch, which the next order depends on. loader:epoch(n) calls it.
Distributed.set_epoch = signature.of("set_epoch(epoch: natural)", function(self, epoch)
  self.epoch, self.start = epoch, 0
end)

--- Returns the indices of an epoch, a 1-d int64 tensor; after load_state_dict, only the rest of the epoch.
function Distributed:indices()
  local n, start = dataset.length("DistributedSampler", self.set), self.start
  self.start = 0
  local order = self.shuffle and core.permutation(n, self.seed + self.epoch) or count_to(n)
  local each = samples_per_rank(self, n - start)
  local last = start + each * self.num_replicas
  if last > n then order = core.ops.cat {order, order:narrow(1, 1, last - n)} end
  if each == 0 then return order:narrow(1, 1, 0) end
  if self.num_replicas == 1 and last == n then return order:narrow(1, start + 1, each) end
  return order:slice(1, start + self.rank + 1, last, self.num_replicas):contiguous()
end

--- Returns the state that sets the order of the next epoch, as a plain table.
function Distributed:state_dict()
  return {
    epoch = self.epoch, start = self.start, num_replicas = self.num_replicas,
    num_samples = dataset.length("DistributedSampler", self.set),
  }
end

--- Loads a state_dict.
function Distributed:load_state_dict(state)
  Sampler.load_state_dict(self, state)
  local n = dataset.length("DistributedSampler", self.set)
  local start = options.arg("load_state_dict", "the sampler's start", state.start or 0, "natural")
  if (state.num_samples or n) ~= n then
    fail("load_state_dict: the state is of a dataset with %s samples, this one has %d", tostring(state.num_samples), n)
  elseif start > n then
    fail("load_state_dict: the sampler's start must be at most %d, the number of samples, got %.0f", n, start)
  end
  self.start = start
end

--- Returns the state after each rank took `count` samples of a state's order, whose rest another number of ranks
--- divides; nil if the number of ranks is the same.
function Distributed:state_after(state, count)
  if (state.num_replicas or self.num_replicas) == self.num_replicas then return nil end
  self:load_state_dict(state) -- checks the state
  local ranks = options.arg("load_state_dict", "the sampler's num_replicas", state.num_replicas, "count")
  local n = dataset.length("DistributedSampler", self.set)
  self.start = math.min(self.start + count * ranks, n)
  return self:state_dict()
end

return {
  Sampler = Sampler, SequentialSampler = Sequential, RandomSampler = Random, SubsetRandomSampler = SubsetRandom,
  WeightedRandomSampler = Weighted, BatchSampler = Batch, DistributedSampler = Distributed,
}

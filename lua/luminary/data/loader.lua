--- data.DataLoader(set [, {batch_size = 1, shuffle = false, sampler, batch_sampler, collate_fn, drop_last = false,
--- seed, pin_memory = false, num_workers = 0, prefetch_factor = 2, persistent_workers = false, worker_init_fn,
--- worker_type = "thread", timeout = 0}]): a set in batches.
---
---   for x, y in loader:epoch(n) do … end     -- the sampler is told which epoch
---   for x, y in loader:iter() do … end
---
--- Sets with get_batch (tensors, images) are gathered in C, one call a tensor. Others are asked sample by
--- sample and collated: tensors are stacked; numbers become a tensor (int64 if all of the loader's first batch are
--- integers, else float32; fractions where those were integers are an error); booleans a bool tensor; tables are
--- collated field by field; the rest stays a list.
--- A data.IterableDataset is batched as its samples come: shuffle, sampler and batch_sampler are errors with one.
--- collate_fn(samples), where each sample is a list of what :get gave, or the one table that it gave, returns the batch
--- instead.
---
--- With num_workers above 0 as many workers make batches ahead, up to prefetch_factor each, and the batches are the
--- same: each one's random numbers (of this library's functions, on the CPU) come from a seed of its own, which follows
--- from `seed` and the epoch, or without a seed from manual_seed. `seed` decides the order of shuffle, too. Workers are
--- threads with a Lua state each, or processes by worker_type = "process". Both get a copy of the set, collate_fn and
--- worker_init_fn (called with the worker's number, from 0) when a pass begins, or once with persistent_workers;
--- tensors in them are shared, not copied. An IterableDataset may have :shard(i, n), called in worker i (from 0) of n,
--- after which its :iter() gives that part, or ask data.get_worker_info() in :iter(); of others each worker walks the
--- whole stream and keeps its batches. A worker's error is raised where its batch would come, with the sample's number
--- and the worker's traceback. timeout: seconds to wait for a batch; 0 is as long as it takes.
--- pin_memory = true puts the tensors of each batch in page-locked memory, from which copies to a GPU run beside other
--- work; without CUDA there is none, and they stay as they are.
local core = require "luminary.core"
local class = require "luminary.class"
local options = require "luminary.options"
local batches = require "luminary.data.batch"
local dataset = require "luminary.data.dataset"
local sampler = require "luminary.data.sampler"
local workers = require "luminary.data.workers"
local fail = options.fail

local DataLoader = class.root("DataLoader")
DataLoader.__makes = "dataset"
DataLoader.__hint = "for x, y in loader:iter() do … end walks its batches, #loader says how many there are"

-- A sampler of one's own needs :len() and :iter() (or :indices()).
local function check_sampler(name, v)
  if not class.has(v, "len", "iter") and not class.has(v, "len", "indices") then
    fail("DataLoader: %s has to have :iter() and :len(), got %s", name, options.describe(v))
  end
end

function DataLoader:init(set, opts)
  self.dataset = dataset.check("DataLoader", set)
  opts = options.check("DataLoader", opts, {
    batch_size = {"count"}, shuffle = {"boolean"}, sampler = {"any"}, batch_sampler = {"any"},
    collate_fn = {"function"}, drop_last = {"boolean"}, num_workers = {"natural", 0}, pin_memory = {"boolean", false},
    seed = {"natural"}, prefetch_factor = {"count", 2}, persistent_workers = {"boolean", false},
    worker_init_fn = {"function"}, worker_type = {"string", "thread"}, timeout = {"positive", 0},
  }, "batch_size")
  options.choice("DataLoader", "worker_type", opts.worker_type, {"thread", "process"})
  for _, name in ipairs {
    "num_workers", "seed", "prefetch_factor", "persistent_workers", "worker_init_fn", "worker_type", "timeout",
  } do
    self[name] = opts[name]
  end
  self.is_stream = class.is(set, dataset.IterableDataset)
  if self.is_stream then
    for _, name in ipairs {"shuffle", "sampler", "batch_sampler"} do
      if opts[name] then fail("DataLoader: an IterableDataset comes in its own order: give no %s with it", name) end
    end
  elseif opts.batch_sampler then
    check_sampler("batch_sampler", opts.batch_sampler)
    if opts.batch_size or opts.shuffle or opts.sampler or opts.drop_last then
      fail("DataLoader: batch_sampler decides alone: give no batch_size, shuffle, sampler or drop_last with it")
    end
  elseif opts.sampler then
    check_sampler("sampler", opts.sampler)
    if opts.shuffle then
      fail("DataLoader: sampler and shuffle exclude each other: let the sampler shuffle "
        .. "(data.DistributedSampler(set, {shuffle = true})) and leave shuffle out")
    end
  end
  self.batch_size, self.drop_last = opts.batch_size or 1, opts.drop_last or false
  self.batch_sampler, self.collate_fn, self.pin_memory = opts.batch_sampler, opts.collate_fn, opts.pin_memory
  self.passes = 0 -- begun by iter()
  self.dtypes = {} -- of columns of plain numbers: see batch.lua
  if self.is_stream then return end
  self.sampler = opts.sampler or opts.shuffle and sampler.RandomSampler(set, {seed = opts.seed})
    or sampler.SequentialSampler(set)
end

--- How many batches an epoch has.
function DataLoader:len()
  if self.batch_sampler then return dataset.length("DataLoader", self.batch_sampler, "batch sampler") end
  local n = self.is_stream and dataset.length("DataLoader", self.dataset)
    or dataset.length("DataLoader", self.sampler, "sampler")
  return (self.drop_last and math.floor or math.ceil)(n / self.batch_size)
end

-- ---- pinning

-- A batch in page-locked memory: its tensors, those in plain tables included. Without CUDA there is nothing to pin for.
local function pinned(v, seen)
  if core.is_tensor(v) then return core.pin_memory(v) end
  if not options.is_plain(v) then return v end
  if not seen[v] then
    seen[v] = {}
    for key, value in pairs(v) do seen[v][key] = pinned(value, seen) end
  end
  return seen[v]
end

local function finish(self, ...)
  if not self.pin_memory or ... == nil then return ... end
  local batch, seen, n = {...}, {}, select("#", ...)
  for i = 1, n do batch[i] = pinned(batch[i], seen) end
  return unpack(batch, 1, n)
end

-- ---- walking

local function list_of(iterator)
  if type(iterator) ~= "function" then
    fail("DataLoader: the sampler's :iter() has to give a function, got %s", options.describe(iterator))
  end
  local list = {}
  for v in iterator do list[#list + 1] = v end
  return list
end

-- A function that gives the sample numbers of one batch after the other from batch `first` on, an int64 tensor or a
-- list; of a stream true for ever.
local function requests(self, first)
  if self.is_stream then return function() return true end end
  if self.batch_sampler then
    local next_numbers = self.batch_sampler:iter()
    if type(next_numbers) ~= "function" then
      fail("DataLoader: the batch sampler's :iter() has to give a function, got %s", options.describe(next_numbers))
    end
    for _ = 1, first - 1 do next_numbers() end
    return function()
      local numbers = next_numbers()
      if numbers == nil then return nil end
      local n = core.is_tensor(numbers) and numbers.ndim == 1 and numbers.shape[1]
        or options.is_plain(numbers) and #numbers or 0
      if n > 0 then return core.keep(numbers) end
      fail("DataLoader: the batch sampler has to give lists of sample numbers, of at least one each, got %s",
        options.describe(numbers))
    end
  end
  local order = dataset.numbers("DataLoader: the sampler",
    self.sampler.indices and self.sampler:indices() or list_of(self.sampler:iter()))
  local n, size = order.shape[1], self.batch_size
  local at = (first - 1) * size + 1 -- the next batch's first place in the order
  return function()
    local count = math.min(size, n - at + 1)
    if count <= 0 or self.drop_last and count < size then return nil end
    local numbers = order:narrow(1, at, count)
    at = at + count
    return numbers
  end
end

local MOST = 2 ^ 52

-- Batch k's random numbers come from the seed that is this and k. It follows from the loader's seed and the epoch;
-- without one from where the CPU's generator stands, which stays there.
local function seed_of_pass(self, epoch)
  local base = self.seed
  if not base then
    base = 0
    for _, byte in ipairs(core.get_rng_state("cpu"):totable()) do base = (base * 257 + byte) % 2 ^ 32 end
  end
  return core.draws(MOST, base % 2 ^ 32 + epoch % 2 ^ 20 * 2 ^ 32, 1):item()
end

local function walk_alone(self, recipe, next_numbers, seed, first)
  local k, take = first - 1, nil
  local function make()
    local numbers = next_numbers()
    if numbers == nil then return nil end
    k = k + 1
    local before = batches.begin_random(seed + k)
    local function finished(...)
      core.set_rng_state(before, "cpu")
      return ...
    end
    if not take then return finished(batches.fetch(recipe, numbers)) end
    local samples = take()
    if samples == nil then return finished(nil) end
    return finished(batches.join(recipe, samples))
  end
  if self.is_stream then
    local before = batches.begin_random(seed)
    take = batches.stream(recipe)
    for i = 1, first - 1 do
      batches.begin_random(seed + i)
      take()
    end
    core.set_rng_state(before, "cpu")
  end
  return function() return finish(self, make()) end
end

local function walk(self, epoch, first)
  local recipe = {
    set = self.dataset, collate_fn = self.collate_fn, batch_size = self.batch_size, drop_last = self.drop_last,
    dtypes = self.dtypes, is_stream = self.is_stream,
  }
  local seed, next_numbers = seed_of_pass(self, epoch), requests(self, first)
  if self.num_workers == 0 then return walk_alone(self, recipe, next_numbers, seed, first) end
  local next_batch = workers.walk(self, recipe, next_numbers, seed, first)
  return function() return finish(self, next_batch()) end
end

--- One pass over the set.
function DataLoader:iter()
  self.passes = self.passes + 1
  return walk(self, self.passes, 1)
end

--- The same for epoch n, of which the sampler is told. `first` begins at that batch, for resuming.
function DataLoader:epoch(n, first)
  options.arg("DataLoader:epoch", "the epoch", n, "natural")
  first = options.arg("DataLoader:epoch", "the first batch", first or 1, "count")
  local order = self.batch_sampler or self.sampler or self.dataset
  if order.set_epoch then order:set_epoch(n) end
  return walk(self, n, first)
end

function DataLoader:repr()
  if self.is_stream then
    return ("DataLoader(%s, batch_size=%d)"):format(tostring(self.dataset), self.batch_size)
  end
  return ("DataLoader(%s, batch_size=%d, %d batches)"):format(tostring(self.dataset), self.batch_size, self:len())
end

return DataLoader

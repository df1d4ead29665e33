--- data.DataLoader(set [, {batch_size = 1, shuffle = false, sampler, batch_sampler, collate_fn,
--- drop_last = false, num_workers = 0, pin_memory = false}]): a set in batches.
---
---   for x, y in loader:epoch(n) do … end     -- the sampler is told which epoch
---   for x, y in loader:iter() do … end
---
--- Sets with get_batch (tensors, images) are gathered in C, one call a tensor. Others are asked sample by
--- sample and collated: tensors are stacked; numbers become a tensor (int64 if all of the loader's first batch are
--- integers, else float32; fractions where those were integers are an error); booleans a bool tensor; tables are
--- collated field by field; the rest stays a list.
--- collate_fn(samples), where each sample is a list of what :get gave, returns the batch instead.
--- pin_memory = true puts the tensors of each batch in page-locked memory, from which copies to a GPU run beside other
--- work; without CUDA there is none, and they stay as they are.
local core = require "luminary.core"
local class = require "luminary.class"
local options = require "luminary.options"
local dataset = require "luminary.data.dataset"
local sampler = require "luminary.data.sampler"
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
  }, "batch_size")
  if opts.num_workers > 0 then
    fail("DataLoader: num_workers = %d: workers come in a later version; use num_workers = 0", opts.num_workers)
  end
  if opts.batch_sampler then
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
  self.number_dtypes = {} -- see dtype_of
  self.sampler = opts.sampler or (opts.shuffle and sampler.RandomSampler or sampler.SequentialSampler)(set)
end

--- How many batches an epoch has.
function DataLoader:len()
  if self.batch_sampler then return dataset.length("DataLoader", self.batch_sampler, "batch sampler") end
  return (self.drop_last and math.floor or math.ceil)(dataset.length("DataLoader", self.sampler, "sampler") /
    self.batch_size)
end

-- ---- collating

local collate

-- Numbers of Lua do not say whether they are integers or happen to be whole: a column's dtype is what its first batch
-- was, noted in `dtypes` by the column's path.
local function dtype_of(values, dtypes, path)
  local whole = true
  for _, v in ipairs(values) do whole = whole and v == math.floor(v) and math.abs(v) < 2 ^ 53 end
  dtypes[path] = dtypes[path] or (whole and "int64" or "float32")
  if not whole and dtypes[path] == "int64" then
    fail("DataLoader: value %s was whole in earlier batches, which made it int64, and has fractions now: let the set "
      .. "give tensors (lm.tensor(v)), or collate with a collate_fn", path:sub(2))
  end
  return dtypes[path]
end

local function collate_column(values, dtypes, path)
  local first = values[1]
  if core.is_tensor(first) then return core.ops.stack(values) end
  local kind = type(first)
  for i, v in ipairs(values) do
    if type(v) ~= kind then
      fail("DataLoader: sample 1 of a batch has a %s where sample %d has a %s", kind, i, type(v))
    end
  end
  if kind == "boolean" then return core.tensor(values, {dtype = "bool"}) end
  if kind == "number" then return core.tensor(values, {dtype = dtype_of(values, dtypes, path)}) end
  if options.is_plain(first) then return collate(values, dtypes, path) end
  return values
end

-- A list of samples, each a table with the same keys, to one table of batches.
function collate(samples, dtypes, path)
  local batch = {}
  for key in pairs(samples[1]) do
    local column = {}
    for i, sample in ipairs(samples) do
      column[i] = sample[key]
      if column[i] == nil then fail("DataLoader: sample %d of a batch lacks the field %s", i, tostring(key)) end
    end
    batch[key] = collate_column(column, dtypes, path .. "." .. tostring(key))
  end
  return batch
end

-- nil would end the loop over the batches, without a word.
local function given(what, first, ...)
  if first == nil then fail("DataLoader: %s gave nil for a batch, where the loop would end", what) end
  return first, ...
end

-- The batch of these sample numbers: an int64 tensor, or a list.
local function fetch(self, numbers)
  local set = self.dataset
  if set.get_batch and not self.collate_fn then
    if not core.is_tensor(numbers) then numbers = core.tensor(numbers, {dtype = "int64"}) end
    return given("the set's :get_batch", set:get_batch(numbers))
  end
  local list, samples = core.is_tensor(numbers) and numbers:totable() or numbers, {}
  for i, number in ipairs(list) do samples[i] = {set:get(number)} end
  if self.collate_fn then return given("collate_fn", self.collate_fn(samples)) end
  for i, sample in ipairs(samples) do
    if sample[1] == nil then fail("DataLoader: the set's :get(%s) gave nil", tostring(list[i])) end
  end
  return unpack(collate(samples, self.number_dtypes, ""))
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
  if not self.pin_memory then return ... end
  local batch, seen, n = {...}, {}, select("#", ...)
  for i = 1, n do batch[i] = pinned(batch[i], seen) end
  return unpack(batch, 1, n)
end

-- ---- walking

local function list_of(iterator)
  local list = {}
  for v in iterator do list[#list + 1] = v end
  return list
end

local function walk_batches(self, skip)
  local batches = self.batch_sampler:iter()
  for _ = 1, skip do batches() end
  return function()
    local numbers = batches()
    if numbers ~= nil then return finish(self, fetch(self, numbers)) end
  end
end

local function walk(self, first)
  if self.batch_sampler then return walk_batches(self, first - 1) end
  local order = self.sampler.indices and self.sampler:indices()
    or core.tensor(list_of(self.sampler:iter()), {dtype = "int64"})
  core.keep(order)
  local n, size = order.shape[1], self.batch_size
  local at = (first - 1) * size + 1 -- the next batch's first place in the order
  return function()
    local count = math.min(size, n - at + 1)
    if count <= 0 or self.drop_last and count < size then return nil end
    local numbers = order:narrow(1, at, count)
    at = at + count
    return finish(self, fetch(self, numbers))
  end
end

--- One pass over the set.
function DataLoader:iter() return walk(self, 1) end

--- The same for epoch n, of which the sampler is told. `first` begins at that batch, for resuming.
function DataLoader:epoch(n, first)
  options.arg("DataLoader:epoch", "the epoch", n, "natural")
  first = options.arg("DataLoader:epoch", "the first batch", first or 1, "count")
  local order = self.batch_sampler or self.sampler
  if order.set_epoch then order:set_epoch(n) end
  return walk(self, first)
end

function DataLoader:repr()
  return ("DataLoader(%s, batch_size=%d, %d batches)"):format(tostring(self.dataset), self.batch_size, self:len())
end

return DataLoader

--- Makes batches of a set's samples, for the loader itself or its workers, by a batch plan: {set, collate_fn,
--- batch_size, drop_last, dtypes, is_stream, rank, world}. rank and world are this process's part of a split stream.
local core = require "luminary.core"
local class = require "luminary.base.class"
local options = require "luminary.base.options"
local dataset = require "luminary.data.dataset"
local fail, describe, bare = options.fail, options.describe, options.without_position

local batches = {}

-- ---- collating

local collate

-- Returns a column's dtype. Lua's numbers do not distinguish integers from whole floats, so the column's first batch
-- decides, recorded in `dtypes` by the column's path.
local function dtype_of(values, dtypes, path)
  local whole = true
  for _, v in ipairs(values) do whole = whole and v == math.floor(v) and math.abs(v) < 2 ^ 53 end
  dtypes[path] = dtypes[path] or (whole and "int64" or "float32")
  if not whole and dtypes[path] == "int64" then
    fail("DataLoader: value %s was an integer in earlier batches, which made it int64, and now has a fraction; return "
      .. "tensors (lm.tensor(v)) or use a collate_fn", path:sub(2))
  end
  return dtypes[path]
end

local MAX_DEPTH = 100 -- levels of tables in a sample, which may contain itself

local function collate_column(values, dtypes, path, depth)
  local first, kind = values[1], type(values[1])
  if core.is_tensor(first) then
    local ok, batch = pcall(core.ops.stack, values)
    if ok then return batch end
    fail("DataLoader: samples of a batch cannot be stacked; a collate_fn can pad them: %s", bare(batch))
  end
  for i, v in ipairs(values) do
    if type(v) ~= kind then fail("DataLoader: a batch's sample 1 is %s, but %d %s", describe(first), i, describe(v)) end
  end
  if kind == "boolean" then return core.tensor(values, {dtype = "bool"}) end
  if kind == "number" then return core.tensor(values, {dtype = dtype_of(values, dtypes, path)}) end
  if options.is_plain(first) then return collate(values, dtypes, path, depth + 1) end
  return values
end

-- Collates a list of samples, each a table with the same keys, to one table of batches.
function collate(samples, dtypes, path, depth)
  if depth > MAX_DEPTH then
    fail("DataLoader: a sample's tables must be at most %d deep, got more; a sample must not contain itself", MAX_DEPTH)
  end
  local batch = {}
  for key in pairs(samples[1]) do
    local column = {}
    for i, sample in ipairs(samples) do
      column[i] = sample[key]
      if column[i] == nil then fail("DataLoader: sample %d of a batch has no field %s", i, tostring(key)) end
    end
    batch[key] = collate_column(column, dtypes, path .. "." .. tostring(key), depth)
  end
  return batch
end

-- Fails for nil, which would silently end the loop over the batches.
local function require_batch(what, first, ...)
  if first == nil then fail("DataLoader: %s returned nil for a batch, which would end the loop", what) end
  return first, ...
end

--- data.default_collate(samples): Collates a list of samples into a batch, as a loader without collate_fn does.
function batches.default_collate(samples)
  if not options.is_plain(samples) or not options.is_plain(samples[1]) then
    options.expected("default_collate", "a list of samples, each a table",
      options.is_plain(samples) and samples[1] or samples)
  end
  local batch = collate(samples, {}, "", 1)
  if samples[1][1] == nil then return batch end
  return unpack(batch)
end

--- Joins samples, each a list of values, to a batch; collate_fn gets a sample that is one plain table as that table.
function batches.join(batch_plan, samples)
  if batch_plan.collate_fn then
    for i, sample in ipairs(samples) do
      if sample[2] == nil and options.is_plain(sample[1]) then samples[i] = sample[1] end
    end
    return require_batch("collate_fn", batch_plan.collate_fn(samples))
  end
  return unpack(collate(samples, batch_plan.dtypes, "", 1))
end

-- Returns a sample: the list of the values that a set returned, without nils at its end. A nil before another value,
-- which collating would silently drop, is an error.
local function sample_of(batch_plan, method, number, ...)
  local n, sample = select("#", ...), {...}
  while n > 0 and sample[n] == nil do n = n - 1 end
  for i = 2, batch_plan.collate_fn and 0 or n do
    if sample[i] == nil then
      fail("DataLoader: the set's :%s(%s) returned nil as value %d of %d", method, tostring(number or ""), i, n)
    end
  end
  return sample
end

--- Returns the batch of sample numbers, an int64 tensor or a list. batch_plan.at is the number being read.
function batches.fetch(batch_plan, numbers)
  local set = batch_plan.set
  if not batch_plan.collate_fn and dataset.gathers(set) then
    return require_batch("the set's :get_batch", set:get_batch(dataset.numbers("DataLoader", numbers)))
  end
  local list, samples = core.is_tensor(numbers) and numbers:totable() or numbers, {}
  for i, number in ipairs(list) do
    batch_plan.at = number
    samples[i] = sample_of(batch_plan, "get", number, set:get(number))
    if samples[i][1] == nil and not batch_plan.collate_fn then
      fail("DataLoader: :get(%s) of the dataset returned nil", tostring(number))
    end
  end
  batch_plan.at = nil
  return batches.join(batch_plan, samples)
end

-- Returns a function that returns the samples of a stream's next batch, a list; nil at its end.
local function in_batches(batch_plan)
  local next_sample = batch_plan.set:iter()
  if type(next_sample) ~= "function" then
    options.must_be("DataLoader", "the result of the dataset's :iter()", "a function", next_sample)
  end
  return dataset.grouped(function()
    local sample = sample_of(batch_plan, "iter", nil, next_sample())
    return sample[1] ~= nil and sample or nil
  end, batch_plan.batch_size, batch_plan.drop_last)
end

-- ---- random numbers

local function state_of(seed)
  local bytes = {}
  for i = 1, 16 do
    bytes[i] = seed % 256
    seed = math.floor(seed / 256)
  end
  return core.tensor(bytes, {dtype = "uint8", device = "cpu"})
end

--- Seeds the CPU's generator; the seed is below 2^53.
function batches.begin_random(seed) core.set_rng_state(state_of(seed), "cpu") end

-- ---- making

local splits_itself -- true if get_worker_info was called: such a stream splits itself

--- data.get_worker_info(): Returns the information about the current worker of a DataLoader, nil outside of a worker.
function batches.get_worker_info()
  splits_itself = true
  return batches.worker_info
end

--- Returns true if a stream resumes from its own state.
function batches.has_state(batch_plan)
  return batch_plan.is_stream and class.has(batch_plan.set, "state_dict", "load_state_dict")
end

--- Returns a function that makes the batch of a request {batch = its number, seed, numbers, pass, from}, for worker
--- `index` (from 0) of `count`. begin_random(seed) runs before code that draws random numbers. A pass's first request
--- may have `from` = {batch, state}, the set's :state_dict() after that batch. The second result returns true if the
--- stream splits itself.
---
--- In a stream that splits itself, by :shard or get_worker_info, each worker makes its part, and owns every count-th
--- batch. In other streams each worker reads everything, with equal random numbers, and skips batches of other workers.
function batches.maker(batch_plan, index, count, begin_random)
  if not batch_plan.is_stream then
    return function(request)
      begin_random(request.seed)
      return batches.fetch(batch_plan, request.numbers)
    end, function() return false end
  end
  local set, parts = batch_plan.set, batch_plan.world * count
  local shared = type(set.shard) == "function"
  if shared and parts > 1 then set:shard(batch_plan.rank * count + index, parts) end
  local function watched(f, ...) -- nested loaders call it too
    local before = splits_itself
    splits_itself = shared
    local result = f(...)
    shared, splits_itself = splits_itself, before
    return result
  end
  local pass, take, at
  local function make_requested_batch(request)
    local seed = request.seed - request.batch
    if pass ~= request.pass then
      local from = request.from
      begin_random(seed)
      if from then set:load_state_dict(from.state) end
      pass, take = request.pass, watched(in_batches, batch_plan)
      at = from and from.batch or shared and index + 1 - count or 0
    end
    local samples
    repeat
      local known = shared
      at = at + (known and count or 1)
      begin_random(seed + at)
      samples = watched(take)
      if shared and not known then at = at - 1 + (request.from and count or index + 1) end -- it just split itself
    until samples == nil or at >= request.batch
    if samples then return batches.join(batch_plan, samples) end
  end
  return make_requested_batch, function() return shared end
end

return batches

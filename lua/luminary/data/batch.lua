--- Batches: samples of a set brought together, by the loader itself or by its workers. What makes them is a recipe:
--- {set, collate_fn, batch_size, drop_last, dtypes}.
local core = require "luminary.core"
local options = require "luminary.options"
local dataset = require "luminary.data.dataset"
local fail = options.fail

local batches = {}

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

--- The batch of these samples, each a list of values; to a collate_fn a sample that is one plain table is that table.
function batches.join(recipe, samples)
  if recipe.collate_fn then
    for i, sample in ipairs(samples) do
      if sample[2] == nil and options.is_plain(sample[1]) then samples[i] = sample[1] end
    end
    return given("collate_fn", recipe.collate_fn(samples))
  end
  return unpack(collate(samples, recipe.dtypes, ""))
end

--- The batch of these sample numbers: an int64 tensor, or a list. recipe.at is the number that is asked for.
function batches.fetch(recipe, numbers)
  local set = recipe.set
  if set.get_batch and not recipe.collate_fn then
    return given("the set's :get_batch", set:get_batch(dataset.numbers("DataLoader", numbers)))
  end
  local list, samples = core.is_tensor(numbers) and numbers:totable() or numbers, {}
  for i, number in ipairs(list) do
    recipe.at = number
    samples[i] = {set:get(number)}
    if samples[i][1] == nil and not recipe.collate_fn then
      fail("DataLoader: the set's :get(%s) gave nil", tostring(number))
    end
  end
  recipe.at = nil
  return batches.join(recipe, samples)
end

--- A function that gives the samples of the next batch of a stream, a list, and nil at its end.
function batches.stream(recipe)
  local next_sample = recipe.set:iter()
  if type(next_sample) ~= "function" then
    fail("DataLoader: the set's :iter() has to give a function, got %s", options.describe(next_sample))
  end
  return function()
    local samples = {}
    while next_sample and #samples < recipe.batch_size do
      local sample = {next_sample()}
      if sample[1] == nil then
        next_sample = nil
      else
        samples[#samples + 1] = sample
      end
    end
    if #samples == recipe.batch_size or #samples > 0 and not recipe.drop_last then return samples end
  end
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

--- The CPU's random numbers come from a seed, below 2^53, from now on. Gives what core.set_rng_state takes to go back.
function batches.begin_random(seed)
  local before = core.get_rng_state "cpu"
  core.set_rng_state(state_of(seed), "cpu")
  return before
end

return batches

--- Defines datasets: anything with :get(i), which returns one sample as one or more values, and :len(). Samples count
--- from 1. A set that can gather many samples at once also has :get_batch(index), which takes a 1-d int64 tensor of
--- sample numbers and returns the batched tensors; the loader prefers it unless the set's optional :one_by_one()
--- returns true. A set whose `draws` is true, or returns true, draws random numbers for each sample, in order. If a
--- set's transform returns several values, they become one value of the sample, a list.
local core = require "luminary.core"
local class = require "luminary.base.class"
local lists = require "luminary.base.lists"
local options = require "luminary.base.options"
local signature = require "luminary.base.signature"
local fail = options.fail

--- data.Dataset: Base class for datasets with samples 1 to len. A custom one defines init, get and len.
local Dataset = class.root("Dataset")
Dataset.__inner = {"draws", "file_of", "hold", "load", "loader", "one_by_one", "rows"}
Dataset.__hint = "set:get(i) returns sample i, #set is the number of samples"

--- Returns sample i, as one or more values. Every dataset defines it.
function Dataset:get(_i) fail("%s: define function %s:get(i)", self.__name, self.__name) end
--- Returns the number of samples, as #set does. Every dataset defines it.
function Dataset:len() fail("%s: define function %s:len()", self.__name, self.__name) end

-- Returns the result of :len() of a set or a sampler, after checking it, since users write such classes.
local function length_of(who, set, what)
  local n = set:len()
  if type(n) ~= "number" or n ~= math.floor(n) or n < 0 or n >= 2 ^ 53 then
    fail("%s: :len() of the %s must return an integer of at least 0, got %s", who, what or "set", options.describe(n))
  end
  return n
end

--- Returns the index of a sample from 1: i, or len + 1 + i for a negative i. An index out of range is an error.
function Dataset:index(i)
  local n = length_of(self.__name, self)
  if type(i) ~= "number" or i ~= math.floor(i) or i == 0 or math.abs(i) > n then
    options.out_of_range(self.__name, i, n, "samples")
  end
  return i < 0 and n + i + 1 or i
end

--- Returns the number of records that could not be read and were skipped so far (on_error = "skip"), by all workers.
function Dataset:skipped() return self.faults and self.faults:item() or 0 end

function Dataset:repr() return ("%s(%s samples)"):format(self.__name, tostring(self:len())) end

--- data.TensorDataset(a, b, …): Dataset wrapping tensors, whose first dim is the sample.
local TensorDataset = class.define("TensorDataset", Dataset)
TensorDataset.__makes = "tensors"

function TensorDataset:init(...)
  self.tensors = {...}
  if #self.tensors == 0 then fail("TensorDataset: expected at least one tensor") end
  for i = 1, select("#", ...) do
    local t = options.arg("TensorDataset", "argument " .. i, self.tensors[i], "tensor")
    if t.ndim == 0 or t.shape[1] ~= self.tensors[1].shape[1] then
      fail("TensorDataset: all tensors must have the same first size: argument 1 is %s, argument %d is %s",
        options.describe(self.tensors[1]), i, options.describe(t))
    end
    core.keep(t)
  end
end

function TensorDataset:len() return self.tensors[1].shape[1] end

function TensorDataset:get(i)
  i = self:index(i)
  return unpack(lists.map(self.tensors, function(t) return t:select(1, i) end))
end

--- Returns the samples of a 1-d int64 tensor of indices, as batched tensors.
function TensorDataset:get_batch(index)
  return unpack(lists.map(self.tensors, function(t)
    return t.requires_grad and t:index_select(1, index) or core.gather_rows(t, index)
  end))
end

-- Returns true if a class overrides :get below the class that defines :get_batch, which would ignore the override.
local function gets_otherwise(set)
  local record = class.record(set)
  if not record or rawget(record.values, "get_batch") then return false end
  local of = record.class
  while of and rawget(of, "get") == nil and rawget(of, "get_batch") == nil do of = of.super end
  return of ~= nil and rawget(of, "get_batch") == nil
end

-- Returns true if a set can currently return many samples at once; its fields may change after construction.
local function has_gather(set)
  return set.get_batch ~= nil and not (set.one_by_one and set:one_by_one()) and not gets_otherwise(set)
end

local function draws(set)
  if type(set.draws) == "function" then return set:draws() end
  return set.draws
end

-- Defines :get_batch for a class whose :one_by_one() may be true.
local function define_get_batch(of, gather)
  --- Returns the samples of a 1-d int64 tensor of indices, as batched tensors, if all samples allow it.
  function of:get_batch(index)
    if self:one_by_one() then fail("%s:get_batch: this dataset returns single samples; use set:get(i)", self.__name) end
    return gather(self, index)
  end
end

local function check(who, set)
  if not class.has(set, "get", "len") then
    if options.is_plain(set) and class.has(set[1], "get", "len") then
      fail("%s: expected a dataset, got a list of %d, as random_split returns; write local a, b = unpack(list), "
        .. "or list[1]", who, #set)
    end
    options.expected(who, "a dataset, with :get(i) and :len()", set)
  end
  return set
end

-- Returns sample numbers, a list or a 1-d tensor, as a 1-d int64 tensor.
local function numbers(who, indices)
  local given = options.is_plain(indices) and core.tensor(indices, {dtype = "float64"}) or indices
  local list = core.keep(options.arg(who, "the list of indices", given, "tensor"):to("int64"):contiguous())
  if list.ndim ~= 1 then options.must_be(who, "indices", "1-d", indices) end
  if core.is_floating_point(given) and not core.ops.eq(list, given):all():item() then
    fail("%s: indices must be integers, got %s", who, table.concat(given:totable(), ", "):sub(1, 60))
  end
  return list
end

--- data.Subset(set, indices): Subset of a dataset at given indices.
local Subset = class.define("Subset", Dataset)
Subset.__makes = "indices"

function Subset:init(set, indices)
  self.set = check("Subset", set)
  self.indices = numbers("Subset", indices)
  local n = length_of("Subset", set)
  if self:len() > 0 then
    local low, high = core.min(self.indices), core.max(self.indices)
    if low:item() < 1 or high:item() > n then
      fail("Subset: indices must be from 1 to %d, got %d to %d", n, low:item(), high:item())
    end
  end
end

--- Returns true if the underlying set returns its samples one by one.
function Subset:one_by_one() return not has_gather(self.set) end
--- Returns true if the underlying set draws random numbers.
function Subset:draws() return draws(self.set) end
function Subset:len() return self.indices.shape[1] end
function Subset:get(i) return self.set:get(self.indices:select(1, self:index(i)):item()) end

define_get_batch(Subset, function(self, index)
  return self.set:get_batch(core.gather_rows(self.indices, index))
end)

--- data.ConcatDataset{a, b, …}: Dataset as a concatenation of several datasets.
local ConcatDataset = class.define("ConcatDataset", Dataset)

function ConcatDataset:init(sets)
  if not options.is_plain(sets) or #options.list("ConcatDataset", "sets", sets) == 0 then
    options.expected("ConcatDataset", "a list of sets, ConcatDataset{a, b}", sets)
  end
  self.sets, self.cumulative_sizes = {}, {}
  local total = 0
  for i, set in ipairs(sets) do
    total = total + length_of("ConcatDataset", check("ConcatDataset", set))
    self.sets[i], self.cumulative_sizes[i] = set, total
  end
end

--- Returns true if any of the sets returns its samples one by one, or draws random numbers.
function ConcatDataset:one_by_one()
  return not lists.every(self.sets, function(set) return has_gather(set) and not draws(set) end) -- drawn set by set
end

function ConcatDataset:len() return self.cumulative_sizes[#self.sets] end

-- Returns the number of the set that has sample i, and the number of samples in the sets before it.
local function holder(self, i)
  local which = 1
  while self.cumulative_sizes[which] < i do which = which + 1 end
  return which, self.cumulative_sizes[which - 1] or 0
end

function ConcatDataset:get(i)
  i = self:index(i)
  local which, before = holder(self, i)
  return self.sets[which]:get(i - before)
end

-- Gathers each set's samples of the batch, and puts them into the requested order.
define_get_batch(ConcatDataset, function(self, index)
  local wanted, place, columns, n, sets = {}, {}, {}, 0, 0
  for k, i in ipairs(index:totable()) do
    local which, before = holder(self, self:index(i))
    wanted[which] = wanted[which] or {}
    table.insert(wanted[which], {number = i - before, at = k})
  end
  for which, set in ipairs(self.sets) do
    if wanted[which] then
      local list = {}
      for k, one in ipairs(wanted[which]) do
        n = n + 1
        list[k], place[one.at] = one.number, n
      end
      local parts = {set:get_batch(core.tensor(list, {dtype = "int64"}))}
      sets = sets + 1
      for c = 1, math.max(#parts, #columns) do
        columns[c] = columns[c] or {}
        table.insert(columns[c], parts[c])
        if #columns[c] ~= sets then
          fail("ConcatDataset: dataset %d returns %d values per sample, those before it %d", which, #parts,
            c > #parts and #columns or c - 1)
        end
      end
    end
  end
  local order, batch = core.tensor(place, {dtype = "int64"}), {}
  for c, parts in ipairs(columns) do
    local all = #parts == 1 and parts[1] or core.ops.cat(parts)
    batch[c] = #parts == 1 and all or core.gather_rows(all, order)
  end
  return unpack(batch)
end)

--- data.IterableDataset: Base class for datasets that are streams of samples. A custom one defines iter, and len if
--- known.
local IterableDataset = class.define("IterableDataset", Dataset)

--- Returns an iterator, which returns a sample at each call, and nil at the end.
function IterableDataset:iter() fail("%s: define function %s:iter()", self.__name, self.__name) end
function IterableDataset:get(_i) fail("%s: an IterableDataset has no get(i); use set:iter()", self.__name) end
function IterableDataset:len() fail("%s: an IterableDataset has no length unless it defines len()", self.__name) end
function IterableDataset:repr() return self.__name end

--- data.random_split(…): Randomly splits a dataset into non-overlapping subsets of given lengths.
local random_split = signature.of([[random_split(set, lengths, {generator: generator,
  seed: natural})]], function(set, lengths, opts)
  check("random_split", set)
  if opts.seed and opts.generator then options.exclusive("random_split", "seed", "generator") end
  local n, sum, counts = length_of("random_split", set), 0, {}
  if type(lengths) ~= "table" or #lengths == 0 then
    fail("random_split: lengths must be a list with at least one entry")
  end
  for i, length in ipairs(options.list("random_split", "lengths", lengths)) do
    sum = sum + options.arg("random_split", "length " .. i, length, "positive")
    counts[i] = length
  end
  if math.abs(sum - 1) < 1e-6 and n ~= 1 then -- fractions are rounded down, the rest is distributed from the first on
    local left = n
    for i, fraction in ipairs(lengths) do
      counts[i] = math.floor(n * fraction)
      left = left - counts[i]
    end
    for i = 0, left - 1 do counts[i % #counts + 1] = counts[i % #counts + 1] + 1 end
  elseif sum ~= n then
    fail("random_split: lengths must add up to 1 or the number of samples, got %g for %d samples", sum, n)
  end
  local order = opts.seed and core.permutation(n, opts.seed)
    or core.ops.randperm(n, {device = "cpu", generator = opts.generator})
  local parts, first = {}, 1
  for i, count in ipairs(counts) do
    if count ~= math.floor(count) then fail("random_split: lengths must be integers, got %g", count) end
    parts[i] = Subset(set, order:narrow(1, first, count))
    first = first + count
  end
  return parts
end)

-- Returns a function that returns lists of the next `size` values of an iterator, then nil.
local function grouped(next_one, size, drop_last)
  return function()
    local group = {}
    while next_one and #group < size do
      local one = next_one()
      if one == nil then next_one = nil else group[#group + 1] = one end
    end
    if #group == size or #group > 0 and not drop_last then return group end
  end
end

return {
  Dataset = Dataset, TensorDataset = TensorDataset, Subset = Subset, ConcatDataset = ConcatDataset,
  IterableDataset = IterableDataset,
  random_split = random_split, check = check, gathers = has_gather,
  define_get_batch = define_get_batch,
  length = length_of, numbers = numbers, grouped = grouped,
}

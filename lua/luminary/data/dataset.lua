--- Datasets: anything with :get(i), which gives one sample as one or more values, and :len(). Samples
--- count from 1. A set that can gather many samples at once also has :get_batch(index), which takes a
--- 1-d int64 tensor of sample numbers and gives the batched tensors; the loader prefers it.
local core = require "luminary.core"
local class = require "luminary.class"
local options = require "luminary.options"
local fail = options.fail

--- data.Dataset: extend it and write init, get and len.
local Dataset = class.root("Dataset")
Dataset.__hint = "set:get(i) gives a sample, #set says how many there are"

function Dataset:get(_i) fail("%s: define function %s:get(i)", self.__name, self.__name) end
function Dataset:len() fail("%s: define function %s:len()", self.__name, self.__name) end

-- What a set's (or a sampler's) own :len() says, which somebody else may have written.
local function length_of(who, set, what)
  local n = set:len()
  if type(n) ~= "number" or n ~= math.floor(n) or n < 0 or n >= 2 ^ 53 then
    fail("%s: the %s's :len() has to give an integer of at least 0, got %s", who, what or "set", options.describe(n))
  end
  return n
end

--- Which sample is meant: 1 to len, or negative from the end.
function Dataset:index(i)
  local n = length_of(self.__name, self)
  if type(i) ~= "number" or i ~= math.floor(i) or i == 0 or math.abs(i) > n then
    fail("%s: sample %s is not among the %d, which count from 1", self.__name, tostring(i), n)
  end
  return i < 0 and n + i + 1 or i
end

function Dataset:repr() return ("%s(%s samples)"):format(self.__name, tostring(self:len())) end

--- data.TensorDataset(a, b, …): tensors whose first dim is the sample.
local TensorDataset = class.define("TensorDataset", Dataset)
TensorDataset.__makes = "tensors"

function TensorDataset:init(...)
  self.tensors = {...}
  if #self.tensors == 0 then fail("TensorDataset: at least one tensor wanted") end
  for i = 1, select("#", ...) do
    local t = options.arg("TensorDataset", "argument " .. i, self.tensors[i], "tensor")
    if t.ndim == 0 or t.shape[1] ~= self.tensors[1].shape[1] then
      fail("TensorDataset: the first sizes differ: argument 1 is %s, argument %d %s",
        options.describe(self.tensors[1]), i, options.describe(t))
    end
    core.keep(t)
  end
end

function TensorDataset:len() return self.tensors[1].shape[1] end

function TensorDataset:get(i)
  i = self:index(i)
  local sample = {}
  for k, t in ipairs(self.tensors) do sample[k] = t:select(1, i) end
  return unpack(sample)
end

function TensorDataset:get_batch(index)
  local batch = {}
  for k, t in ipairs(self.tensors) do
    batch[k] = t.requires_grad and t:index_select(1, index) or core.gather_rows(t, index)
  end
  return unpack(batch)
end

local function check(who, set)
  if not class.has(set, "get", "len") then
    fail("%s: a dataset wanted, with :get(i) and :len(), got %s", who, options.describe(set))
  end
  return set
end

--- data.Subset(set, indices): those samples of a set, by a list or a 1-d int64 tensor.
local Subset = class.define("Subset", Dataset)
Subset.__makes = "indices"

function Subset:init(set, indices)
  self.set = check("Subset", set)
  if options.is_plain(indices) then
    indices = core.tensor(indices, {dtype = "int64"})
  end
  self.indices = core.keep(options.arg("Subset", "the list of indices", indices, "tensor"):to("int64"))
  if self.indices.ndim ~= 1 then fail("Subset: 1-d indices wanted, got %s", options.describe(indices)) end
  local n = length_of("Subset", set)
  if self:len() > 0 then
    local low, high = core.min(self.indices), core.max(self.indices)
    if low:item() < 1 or high:item() > n then
      fail("Subset: indices from %d to %d, but the set has samples 1 to %d", low:item(), high:item(), n)
    end
  end
  if set.get_batch then self.get_batch = self.gather end
end

function Subset:len() return self.indices.shape[1] end
function Subset:get(i) return self.set:get(self.indices:select(1, self:index(i)):item()) end

function Subset:gather(index) return self.set:get_batch(core.gather_rows(self.indices, index)) end

--- data.random_split(set, lengths [, {seed}]): disjoint Subsets of those lengths (or fractions that sum to
--- 1), drawn at random from the default generator or from a seed. Gives a list.
local function random_split(set, lengths, opts)
  check("random_split", set)
  opts = options.check("random_split", opts, {seed = {"natural"}}, "seed")
  local n, sum, counts = length_of("random_split", set), 0, {}
  if type(lengths) ~= "table" or #lengths == 0 then fail("random_split: a list of lengths wanted") end
  for i, length in ipairs(lengths) do
    sum = sum + options.arg("random_split", "length " .. i, length, "positive")
    counts[i] = length
  end
  if math.abs(sum - 1) < 1e-6 and n ~= 1 then -- fractions: rounded down, the rest one each from the first on
    local left = n
    for i, fraction in ipairs(lengths) do
      counts[i] = math.floor(n * fraction)
      left = left - counts[i]
    end
    for i = 0, left - 1 do counts[i % #counts + 1] = counts[i % #counts + 1] + 1 end
  elseif sum ~= n then
    fail("random_split: lengths sum to %g, the set has %d samples", sum, n)
  end
  local order = opts.seed and core.permutation(n, opts.seed) or core.ops.randperm(n)
  local parts, first = {}, 1
  for i, count in ipairs(counts) do
    if count ~= math.floor(count) then fail("random_split: length %g is no integer", count) end
    parts[i] = Subset(set, order:narrow(1, first, count))
    first = first + count
  end
  return parts
end

return {
  Dataset = Dataset, TensorDataset = TensorDataset, Subset = Subset,
  random_split = options.named("random_split", random_split), check = check,
  length = length_of,
}

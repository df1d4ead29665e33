--- Defines Torch7's linear layers of sparse inputs or of some outputs: SparseLinear, IndexLinear and PartialLinear.
local core = require "luminary.core"
local lists = require "luminary.base.lists"
local options = require "luminary.base.options"
local class = require "luminary.torch7.class"
local tensor = require "luminary.torch7.tensor"
local Leaf = require "luminary.torch7.nn.leaf"
local Module = require "luminary.torch7.nn.module"
local F = require "luminary.nn.functional"
local ops, nn, define = core.ops, class.packages.nn, Module.define
local raw, wrap = tensor.raw, tensor.wrap

-- Returns the sums of rows of a matrix, multiplied by values, for samples that are lists of indices and of values.
local function sums_of_rows(matrix, indices, values)
  local offsets, first = {}, 1
  for i, index in ipairs(indices) do
    offsets[i] = first
    first = first + index:numel()
  end
  return F.embedding_bag(ops.cat(indices, 1), matrix, {mode = "sum",
    offsets = core.tensor(offsets, {dtype = "int64", device = matrix.device}),
    per_sample_weights = ops.cat(values, 1):detach():to(matrix.dtype)})
end

-- Adds the gradients of a layer with weight decay.
local function accumulated(self, input, gradOutput, scale)
  Leaf.accGradParameters(self, input, gradOutput, scale)
  if self.weightDecay ~= 0 then self.gradWeight:add(self.weightDecay, self.weight) end
end

-- Returns gradOutput * weight as a list of rows, and the indices of its columns.
local function dense_rows(gradOutput, weight)
  local g = ops.matmul(raw(gradOutput), weight)
  if g.ndim == 1 then g = ops.unsqueeze(g, 1) end
  local rows = {}
  for i = 1, g:size(1) do rows[i] = ops.select(g, 1, i) end
  return rows, ops.arange(1, g:size(2) + 1)
end

-- nn.SparseLinear(inputSize, outputSize [, doGradInput]) takes [n, 2] pairs of an index and a value, a table of them,
-- or [batch, n, 2].
local Sparse = Leaf.layer("SparseLinear", "_inputSize# _outputSize# doGradInput=false", function(x, o)
  local samples = type(x) == "table" and x or x.ndim == 2 and {x} or core.methods.unbind(x, 1)
  local indices = lists.map(samples, function(s) return ops.select(s, 2, 1):to "int64" end)
  local values = lists.map(samples, function(s) return ops.select(s, 2, 2) end)
  local y = ops.add(sums_of_rows(ops.contiguous(ops.transpose(o.weight, 1, 2)), indices, values), o.bias)
  return samples[1] == x and ops.select(y, 1, 1) or y
end, {
  sizes = function(_, i, o) return {weight = {o, i}, bias = {o}} end,
  reset = function(self, stdv)
    Leaf.reset(self, stdv)
    self.bias:mul(1e-6)
  end,
})
Sparse.weightDecay, Sparse.accGradParameters = 0, accumulated
function Sparse:updateGradInput(input, gradOutput)
  self.gradInput = {}
  if not self.doGradInput then return self.gradInput end
  local rows, index = dense_rows(gradOutput, raw(self.weight))
  for i, row in ipairs(rows) do self.gradInput[i] = wrap(ops.stack({index:to(row.dtype), row}, 2)) end
  if tensor.is(input) and input:dim() == 3 then self.gradInput = wrap(ops.stack(tensor.raw_all(self.gradInput), 1)) end
  return self.gradInput
end

-- nn.IndexLinear(inputSize, outputSize [, doGradInput [, keysOffset [, weight [, bias]]]]) takes {keys, values} of one
-- sample, {{keys, …}, {values, …}} or {keys, values, sizes} with all samples joined. Its weight is [inputs, outputs].
local Index = Leaf.layer("IndexLinear", "inputSize# outputSize# doGradInput=false offset", function(t, o)
  local keys, values = t[1], t[2]
  if t[3] then
    local sizes = t[3]:to("int64"):totable()
    keys, values = core.methods.split(keys, sizes), core.methods.split(values, sizes)
  elseif type(keys) ~= "table" then
    keys, values = {keys}, {values}
  end
  keys = lists.map(keys, function(k) return o.offset and ops.add(k:to "int64", o.offset) or k:to "int64" end)
  local y = ops.add(sums_of_rows(o.weight, keys, values), o.bias)
  return type(t[1]) ~= "table" and not t[3] and ops.select(y, 1, 1) or y
end, {
  sizes = function(_, i, o) return {weight = {i, o}, bias = {o}} end,
  reset = function(self)
    self.weight:zero()
    self.bias:zero()
  end,
})
Index.weightDecay, Index.accGradParameters = 0, accumulated
local init = Index.__init
function Index:__init(i, o, doGradInput, offset, weight, bias, normalize)
  if normalize then options.fail "nn.IndexLinear: normalize is not supported; divide the values by their maxima" end
  init(self, i, o, doGradInput, offset)
  self.weight, self.bias = weight or self.weight, bias or self.bias
end
-- Returns the input with its sizes as a tensor, which may be the number of elements of one sample.
local function with_sizes(self, input)
  if type(input[3]) ~= "number" then return input end
  if not self.sizes or self.sizes[1] ~= input[3] then self.sizes = wrap(core.tensor({input[3]}, {dtype = "int64"})) end
  return {input[1], input[2], self.sizes}
end
function Index:updateOutput(input) return Leaf.updateOutput(self, with_sizes(self, input)) end
function Index:accGradParameters(input, ...) accumulated(self, with_sizes(self, input), ...) end
function Index:updateGradInput(input, gradOutput)
  self.gradInput = {}
  if not self.doGradInput then return self.gradInput end
  local rows, index = dense_rows(gradOutput, ops.transpose(raw(self.weight), 1, 2))
  local keys = lists.map(rows, function() return index end)
  if input[3] then
    self.gradInput = {wrap(ops.stack(keys, 1)), wrap(ops.stack(rows, 1))}
  elseif tensor.is(input[1]) then
    self.gradInput = {wrap(index), wrap(rows[1])}
  else
    self.gradInput = {lists.map(keys, wrap), lists.map(rows, wrap)}
  end
  return self.gradInput
end

--- nn.PartialLinear(inputSize, outputSize [, bias]): Computes those outputs of a linear layer that
--- setPartition(indices) selects, all after resetPartition().
local Partial = define("PartialLinear", "Module", function(self, i, o, bias)
  self.network = nn.Sequential()
    :add(nn.ParallelTable():add(nn.Identity()):add(nn.LookupTable(o, i))):add(nn.MM(false, true))
  self.modules = {self.network}
  if bias ~= false then
    self.bias, self.gradBias = tensor.new(tensor.default, 1, o):zero(), tensor.new(tensor.default, 1, o):zero()
  end
  self.inputsize, self.outputsize = i, o
  self.allcolumns = wrap(ops.arange(1, o + 1))
  self:resetPartition()
end, function(self, input)
  local y = self.network:forward {input, self.partition}
  return self.bias and wrap(ops.add(raw(y), ops.index_select(raw(self.bias), 2, raw(self.partition)))) or y
end, function(self, input, gradOutput)
  return self.network:updateGradInput({input, self.partition}, gradOutput)[1]
end)
function Partial:setPartition(indices) self.partition = indices:long() end
function Partial:resetPartition() self.partition = self.allcolumns end
function Partial:parameters()
  local lookup = self.network:get(1):get(2)
  return {lookup.weight, self.bias}, {lookup.gradWeight, self.gradBias}
end
function Partial:accGradParameters(input, gradOutput, scale)
  self.network:accGradParameters({input, self.partition}, gradOutput, scale)
  if self.bias then
    self.gradBias:indexAdd(2, self.partition, wrap(ops.mul(ops.sum(raw(gradOutput), 1, {keepdim = true}), scale or 1)))
  end
end
--- nn.Kmeans(k, dim [, scale]): Returns the number of the nearest of k centers, its weight, for each row of the input;
--- loss is the sum of the distances. Its gradWeight moves each center towards the mean of its rows.
local Kmeans = Leaf.layer("Kmeans", "k# dim# scale", nil, {
  init = function(self) self.loss = 0 end, sizes = function(self) return {weight = {self.k, self.dim}} end,
})
function Kmeans:reset(std) self.weight:uniform(-(std or 1), std or 1) end
--- Makes rows of the input, drawn at random, the centers.
function Kmeans:initRandom(input)
  local rows = ops.narrow(ops.randperm(input:size(1)), 1, 1, self.k)
  raw(self.weight):copy_(ops.index_select(raw(input), 1, rows))
end
--- Chooses centers one by one, each of the rows that are farthest from all before: of the share 1 - p (p = 0.95).
function Kmeans:initKmeansPlus(input, p)
  self.p = p or self.p or 0.95
  local x, weight = raw(input), raw(self.weight)
  local n = x:size(1)
  local far, at = math.max(math.ceil((1 - self.p) * n), 1), math.random(n)
  local nearest = ops.full({n}, math.huge, {dtype = x.dtype, device = x.device})
  for k = 1, self.k do
    ops.select(weight, 1, k):copy_(ops.select(x, 1, at))
    nearest = ops.minimum(nearest, ops.sum(ops.square(ops.sub(x, ops.select(weight, 1, k))), 2))
    local _, order = ops.sort(nearest, 1, true)
    at = ops.select(order, 1, math.random(far)):item()
  end
end
function Kmeans:updateOutput(input)
  local x, weight = raw(input), raw(self.weight)
  local distances = ops.sum(ops.square(ops.sub(ops.unsqueeze(x, 2), ops.unsqueeze(weight, 1))), 3)
  local least, at = core.min(distances, 2)
  self.nearest, self.loss, self.output = at, ops.sum(least):item(), wrap(at:to(x.dtype))
  return self.output
end
Kmeans.updateGradInput = Leaf.zeroGradInput
function Kmeans:accGradParameters(input, _, scale)
  local x, weight, at = raw(input), raw(self.weight), self.nearest
  local sums = ops.index_add(ops.zeros_like(weight), 1, at, ops.sub(ops.index_select(weight, 1, at), x))
  local counts = ops.index_add(ops.zeros_like(ops.select(weight, 2, 1)), 1, at, ops.ones_like(ops.select(x, 2, 1)))
  raw(self.gradWeight):add_(ops.div(ops.mul(sums, self.scale or scale or 1), ops.unsqueeze(ops.clamp(counts, 1), 2)))
end
function Kmeans:clearState()
  self.nearest = nil
  return Module.clearState(self)
end

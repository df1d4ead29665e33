--- Defines the layers of tables, shapes and constants that Torch7's nn and, with luminary.torch7, Luminary's nn have.
--- Their fields have Torch7's names. Dims count from 1, or from -1 at the end. If a layer has the number of dims of
--- a sample, they count in samples, and an input with one more dim is a batch.
local core = require "luminary.core"
local lists = require "luminary.base.lists"
local options = require "luminary.base.options"
local containers = require "luminary.nn.containers"
local layer = require "luminary.nn.define_layer"
local printed = require "luminary.nn.print_values"
local tensor = require "luminary.torch7.tensor"

local ops, fail = core.ops, options.fail
local list, entry = layer.entries()
local shared = {rows = {}}

-- ---- inputs

-- Returns t; fails unless it is a table of at least min_count values.
local function table_of(name, t, min_count)
  if not options.is_plain(t) or core.is_tensor(t) then options.must_be(name, "the input", "a table, {a, b}", t) end
  min_count = min_count or 1
  if #t < min_count then fail("%s: the table has %d entries; expected at least %d", name, #t, min_count) end
  return t
end

-- Returns t, as table_of does; fails unless all values are tensors.
local function tensors_of(name, t, min_count)
  for i, x in ipairs(table_of(name, t, min_count)) do
    if not core.is_tensor(x) then options.must_be(name, ("entry %d of the table"):format(i), "a tensor", x) end
  end
  return t
end

--- Returns the dim of x that `dim` means in samples of `dims` dims.
function shared.dim_in(x, dim, dims)
  if dim < 0 then return x.ndim + dim + 1 end
  return dims and x.ndim == dims + 1 and dim + 1 or dim
end
local dim_in = shared.dim_in

-- ---- one table for both

-- Adds a layer that computes f(x, o, name) from x and its fields, under its signature, such as
-- "Narrow(dimension: integer, length: integer = 1)". prints: what print shows of it in Luminary.
local function both(text, prints, help, f)
  local name, arguments = text:match "^(%w+)%((.*)%)$"
  entry(text) {prints = prints, help = help, forward = function(self, x) return f(x, self, name) end}
  table.insert(shared.rows, {
    name = name, fields = arguments:gsub(": [%w?]+", ""):gsub(" = ", "="):gsub(",", ""),
    compute = function(x, o) return f(x, o, name) end,
  })
end

-- Adds a layer of a tensor, whose dim is in `field`: f(x, dim, o).
local function on_dim(text, field, dims, help, f)
  both(text, field, help, function(x, o, name)
    options.arg(name, "the input", x, "tensor")
    return f(x, dim_in(x, o[field], dims and o[dims]), o)
  end)
end

-- ---- tables

-- Returns the elements of the tensor that is_better(b, a) chooses; of equal ones those of a, which get the gradient.
local function chosen(is_better)
  return function(a, b) return ops.where(is_better(b, a), b, a) end
end
for name, row in pairs {
  CAddTable = {ops.add, "Adds the tensors of a table."},
  CMulTable = {ops.mul, "Multiplies the tensors of a table by elements."},
  CMaxTable = {chosen(ops.gt), "Computes the elementwise maximum of the tensors of a table."},
  CMinTable = {chosen(ops.lt), "Computes the elementwise minimum of the tensors of a table."},
  CSubTable = {ops.sub, "Subtracts the second tensor of a table from the first.", 2},
  CDivTable = {ops.div, "Divides the first tensor of a table by the second.", 2},
} do
  local op, help, count = row[1], row[2], row[3]
  both(name .. "()", nil, help, function(t)
    tensors_of(name, t, count)
    if count and #t > count then fail("%s: expected two tensors, got %d", name, #t) end
    local y = t[1]
    for i = 2, #t do y = op(y, t[i]) end
    return #t == 1 and ops.clone(y) or y
  end)
end
both("JoinTable(dimension: integer, nInputDims: count?)", "dimension",
  "Concatenates the tensors of a table along a dim.", function(t, o, name)
    return ops.cat(tensors_of(name, t), dim_in(t[1], o.dimension, o.nInputDims))
  end)
on_dim("SplitTable(dimension: integer, nInputDims: count?)", "dimension", "nInputDims",
  "Returns a table of the input's entries along a dim.", function(x, d)
    return lists.slice(core.methods.unbind(x, d))
  end)
both("NarrowTable(offset: count, length: count = 1)", "offset length",
  "Returns `length` entries of a table, from offset on.", function(t, o, name)
    local last = o.offset + o.length - 1
    if last > #table_of(name, t) then
      fail("%s: entries %d to %d are out of range for a table of %d", name, o.offset, last, #t)
    end
    return lists.slice(t, o.offset, last)
  end)

-- ---- single dims

on_dim("Select(dimension: integer, index: integer)", "dimension", nil, "Selects the entry at an index along a dim.",
  function(x, d, o) return ops.select(x, d, o.index < 0 and x:size(d) + o.index + 1 or o.index) end)
on_dim("Narrow(dimension: integer, index: integer, length: integer = 1)", "dimension", nil,
  "Returns `length` entries along a dim, from an index on.", function(x, d, o)
    local first, length = o.index, o.length
    if first < 0 then return ops.narrow(x, d, 1, x:size(d) - length) end -- all but the last `length`
    return ops.narrow(x, d, first, length < 0 and x:size(d) - first + length + 2 or length)
  end)
both("Unsqueeze(pos: integer, numInputDims: count?)", "pos", "Inserts a dim of size 1 before a dim.", function(x, o)
  return ops.unsqueeze(x, o.pos + (o.numInputDims and x.ndim - o.numInputDims or 0))
end)
both("Squeeze(dim: integer?, numInputDims: count?)", "dim", "Removes the dims of size 1, or one of them.",
  function(x, o)
    if o.dim then return ops.squeeze(x, dim_in(x, o.dim, o.numInputDims)) end
    return ops.squeeze(x)
  end)
for name, op in pairs {
  Mean = ops.mean, Sum = ops.sum, Max = function(...) return (core.max(...)) end,
  Min = function(...) return (core.min(...)) end,
} do
  local more = name == "Sum" and ", sizeAverage = false, squeeze = true" or name == "Mean" and ", squeeze = true" or ""
  local words = {Mean = "mean", Sum = "sum", Max = "maximum", Min = "minimum"}
  on_dim(name .. "(dimension: integer = 1, nInputDims: count?" .. more .. ")", "dimension", "nInputDims",
    ("Computes the %s along a dim, which is removed."):format(words[name]), function(x, d, o)
      return (o.sizeAverage and ops.mean or op)(x, d, {keepdim = o.squeeze == false})
    end)
end

-- ---- constants

for name, row in pairs {
  AddConstant = {ops.add, "Adds a constant."}, MulConstant = {ops.mul, "Multiplies by a constant."},
} do
  both(name .. "(constant_scalar: number)", "{constant_scalar}", row[2],
    function(x, o) return row[1](x, o.constant_scalar) end)
end

-- ---- sizes

--- Returns the sizes that were passed to a layer, as numbers, a list or a LongStorage, in the type of x:size(), and the
--- product of those that are not -1.
function shared.sizes_of(name, ...)
  local sizes, count = tensor.sizes(... and tensor.sizes_from(...) or {}), 1
  if #sizes == 0 then fail("%s: expected sizes, such as nn.%s(-1, 16)", name, name) end
  if #sizes > 8 then fail("%s: expected at most 8 sizes, got %d", name, #sizes) end
  for i, n in ipairs(sizes) do
    options.arg(name, "size " .. i, n, "integer")
    if n < -1 then fail("%s: size %d must be at least 0, or -1 to be inferred, got %d", name, i, n) end
    if n >= 0 then count = count * n end
  end
  return sizes, count
end

--- Define how nn.View, nn.Reshape and nn.Transpose compute, for x and the fields of the layer; set(self, …) sets these.
local View, Reshape, Transpose = {}, {}, {}
shared.of_sizes = {View = View, Reshape = Reshape, Transpose = Transpose}

--- nn.View(a, b, …): Returns a view of the input with given sizes.
function View.set(self, ...) self.size, self.numElements = shared.sizes_of("View", ...) end
function View.compute(x, o)
  local sizes, dims, inside = tensor.sizes_from(o.size), o.numInputDims or x.ndim, 1
  for d = math.max(1, x.ndim - dims + 1), x.ndim do inside = inside * x:size(d) end
  local batch = inside / o.numElements
  if inside > 0 and batch % 1 ~= 0 then
    fail("View: cannot view an input of shape [%s] as sizes [%s]", table.concat(x.shape, ", "),
      table.concat(sizes, ", "))
  end
  if lists.index_of(sizes, -1) then batch = 1 end
  for d = 1, x.ndim - dims do batch = batch * x:size(d) end
  if batch == 1 and (not o.numInputDims or x.ndim <= o.numInputDims) then return ops.reshape(x, sizes) end
  return ops.reshape(x, {batch, unpack(sizes)})
end

--- nn.Reshape(a, b, … [, batch]): Reshapes the input to given sizes.
function Reshape.set(self, ...)
  local given = {...}
  if type(given[#given]) == "boolean" then self.batchMode = table.remove(given) end
  self.size, self.nelement = shared.sizes_of("Reshape", unpack(given))
end
function Reshape.compute(x, o)
  local sizes, mode = tensor.sizes_from(o.size), o.batchMode
  if mode == nil then mode = not lists.index_of(sizes, -1) and (x:numel() ~= o.nelement or x:size(1) == 1) end
  return ops.reshape(x, mode and {x:size(1), unpack(sizes)} or sizes)
end

--- nn.Transpose({a, b}, …): Exchanges pairs of dims, one pair after the other.
function Transpose.set(self, ...)
  self.permutations = {...}
  for i, pair in ipairs(self.permutations) do
    if not options.is_plain(pair) or #pair ~= 2 then
      options.must_be("Transpose", ("argument %d"):format(i), "a pair of dims, {1, 2}", pair)
    end
    for k = 1, 2 do options.arg("Transpose", "dim " .. k, pair[k], "integer") end
  end
end
function Transpose.compute(x, o)
  local more = o.numInputDims and x.ndim - o.numInputDims or 0
  local function dim(d) return d < 0 and d or d + more end
  for _, pair in ipairs(o.permutations) do x = ops.transpose(x, dim(pair[1]), dim(pair[2])) end
  return x
end

-- ---- Luminary's classes alone

local Numbered = containers.Sequential.super

--- nn.Concat(dim, a, b, …): Calls modules with the same input and concatenates their results along dim.
local Concat = layer.define("Concat", Numbered)

function Concat:init(dim, ...)
  self.dim = options.arg("Concat", "dim", dim, "integer")
  Numbered.init(self, ...)
end

-- Returns a list of the modules' results for x, or for the entries of a table x.
local function to_each(self, x, is_table)
  local out = {}
  for i, module in self:iter() do out[i] = module(is_table and x[i] or x) end
  return out
end
function Concat:forward(x) return ops.cat(tensors_of("Concat", to_each(self, x)), self.dim) end

--- nn.ConcatTable(a, b, …): Calls modules with the same input; returns a table of their results.
local ConcatTable = layer.define("ConcatTable", Numbered)
function ConcatTable:forward(x) return to_each(self, x) end

--- nn.ParallelTable(a, b, …): Calls each module with its entry of a table; returns a table of their results.
local ParallelTable = layer.define("ParallelTable", Numbered)

function ParallelTable:forward(t)
  if #table_of("ParallelTable", t) ~= self:len() then
    fail("ParallelTable: the table has %d entries; expected %d, one for each module", #t, self:len())
  end
  return to_each(self, t, true)
end

entry "SelectTable(index: integer)" {
  prints = "index",
  help = "Selects the entry of a table at an index, from 1, or from -1 at the end.",
  forward = function(self, t)
    local value = table_of("SelectTable", t)[self.index < 0 and #t + 1 + self.index or self.index]
    if value == nil then options.out_of_range("SelectTable", self.index, #t, "entries") end
    return value
  end,
}
local function flatten(t, into)
  for _, v in ipairs(t) do
    if options.is_plain(v) and not core.is_tensor(v) then flatten(v, into) else into[#into + 1] = v end
  end
  return into
end
entry "FlattenTable()" {
  help = "Flattens nested tables into one table.",
  forward = function(_, t) return flatten(table_of("FlattenTable", t), {}) end,
}

local classes = layer.classes(list)
classes.Concat, classes.ConcatTable, classes.ParallelTable = Concat, ConcatTable, ParallelTable
for name, of in pairs(shared.of_sizes) do
  local new = layer.define(name)
  new.init = of.set
  function new:extra_repr() return printed.tuple(self.size or self.permutations) end
  function new:forward(x) return of.compute(options.arg(name, "the input", x, "tensor"), self) end
  classes[name] = new
end
--- Sets the number of dims of a sample: an input with one more dim is a batch. Returns the layer.
function classes.View:setNumInputDims(n)
  self.numInputDims = options.arg("setNumInputDims", "n", n, "count")
  return self
end
shared.classes = classes
return shared

--- Torch7's layers that take or give tables of tensors, and its small layers about shapes and constants. Dims count
--- from 1, or from -1 at the end; where Torch7 has nInputDims, an input of one dim more is a batch, and dim is meant in
--- its samples.
local core = require "luminary.core"
local options = require "luminary.base.options"
local containers = require "luminary.nn.containers"
local layer = require "luminary.nn.define_layer"
local printed = require "luminary.nn.print_values"

local ops, fail = core.ops, options.fail
local list, entry = layer.entries()

-- The table of at least `least` values that a layer got.
local function table_of(self, t, least)
  if not options.is_plain(t) or core.is_tensor(t) then
    fail("%s: the input has to be a table, {a, b}, got %s", self.__name, options.describe(t))
  end
  if #t < (least or 1) then fail("%s: the table has %d entries, at least %d wanted", self.__name, #t, least or 1) end
  return t
end

-- The same of tensors alone.
local function tensors_of(self, t, least)
  for i, x in ipairs(table_of(self, t, least)) do
    if not core.is_tensor(x) then
      fail("%s: entry %d of the table has to be a tensor, got %s", self.__name, i, options.describe(x))
    end
  end
  return t
end

local function input_of(self, x) return options.arg(self.__name, "the input", x, "tensor") end

-- ---- containers

local Numbered = containers.Sequential.super

--- nn.Concat(dim, a, b, …): calls each with the same input and joins what they give along dim.
local Concat = layer.define("Concat", Numbered)

function Concat:init(dim, ...)
  if type(dim) ~= "number" then fail("Concat: dim has to be an integer, got %s", options.describe(dim)) end
  self.dim = options.arg("Concat", "dim", dim, "integer")
  Numbered.init(self, ...)
end

function Concat:forward(x)
  local parts = {}
  for i, module in self:iter() do parts[i] = module(x) end
  return ops.cat(tensors_of(self, parts), self.dim)
end

--- nn.ConcatTable(a, b, …): calls each with the same input; gives the table of what they give.
local ConcatTable = layer.define("ConcatTable", Numbered)

function ConcatTable:forward(x)
  local out = {}
  for i, module in self:iter() do out[i] = module(x) end
  return out
end

--- nn.ParallelTable(a, b, …): calls the i-th with the i-th entry of its input, a table; gives the table of what they
--- give.
local ParallelTable = layer.define("ParallelTable", Numbered)

function ParallelTable:forward(t)
  local out = {}
  if #table_of(self, t) ~= self:len() then fail("ParallelTable: %d inputs for %d modules", #t, self:len()) end
  for i, module in self:iter() do out[i] = module(t[i]) end
  return out
end

-- ---- elementwise over a table

local function folded(name, op, help, two)
  entry(name) {
    help = help, forward = function(self, t)
      tensors_of(self, t, two and 2)
      if two and #t > 2 then fail("%s: two tensors wanted, got %d", name, #t) end
      local y = t[1]
      for i = 2, #t do y = op(y, t[i]) end
      return y
    end,
  }
end
folded("CAddTable", ops.add, "the sum of the tensors of a table")
folded("CMulTable", ops.mul, "the product, by elements, of the tensors of a table")
folded("CMaxTable", ops.maximum, "the largest of each place of the tensors of a table")
folded("CMinTable", ops.minimum, "the smallest of each place of the tensors of a table")
folded("CSubTable", ops.sub, "the first less the second of two tensors in a table", true)
folded("CDivTable", ops.div, "the first divided by the second of two tensors in a table", true)

-- ---- joining and taking apart

-- Where self.dim, which counts in samples, is in an input of x's dims.
local function dim_in(self, x)
  local dim, dims = self.dim, self.nInputDims
  return dims and dim > 0 and x.ndim == dims + 1 and dim + 1 or dim
end

local along = {{"dim", "integer"}, {"nInputDims", "count?"}}

entry "JoinTable" {
  takes = along, prints = "dim={dim}", help = "the tensors of a table joined along dim",
  forward = function(self, t) return ops.cat(tensors_of(self, t), dim_in(self, t[1])) end,
}
entry "SplitTable" {
  takes = along, prints = "dim={dim}", help = "the table of x's entries along dim",
  forward = function(self, x) return {unpack(core.methods.unbind(input_of(self, x), dim_in(self, x)))} end,
}
entry "SelectTable" {
  takes = {{"index", "integer"}}, prints = "index={index}",
  help = "the entry of a table at index, which counts from 1, or from -1 at the end",
  forward = function(self, t)
    local i = self.index < 0 and #table_of(self, t) + 1 + self.index or self.index
    local value = table_of(self, t)[i]
    if value == nil then fail("SelectTable: there is nothing at %d of a table of %d", self.index, #t) end
    return value
  end,
}
entry "NarrowTable" {
  takes = {{"offset", "count"}, {"length", "count", 1}}, prints = "offset={offset}, length={length}",
  help = "the table of `length` entries of a table, from offset on",
  forward = function(self, t)
    local last = self.offset + self.length - 1
    if last > #table_of(self, t) then fail("NarrowTable: entries %d to %d of a table of %d", self.offset, last, #t) end
    return {unpack(t, self.offset, last)}
  end,
}

local function flatten(t, into)
  for _, v in ipairs(t) do
    if options.is_plain(v) and not core.is_tensor(v) then flatten(v, into) else into[#into + 1] = v end
  end
  return into
end
entry "FlattenTable" {
  help = "tables in a table made one",
  forward = function(self, t) return flatten(table_of(self, t), {}) end,
}

-- ---- shapes

-- The sizes that a layer was given, as numbers or as a list, and how many elements they are; nil with a -1 in them.
local function sizes_of(who, ...)
  local sizes, count = {...}, 1
  if #sizes == 1 and type(sizes[1]) == "table" then sizes = sizes[1] end
  if #sizes == 0 then fail("%s: sizes wanted, as nn.%s(-1, 16)", who, who) end
  for i, n in ipairs(sizes) do
    options.arg(who, "size " .. i, n, "integer")
    if n < -1 then fail("%s: size %d is %d; sizes are from 0 on, or -1 for what is left", who, i, n) end
    count = n >= 0 and count and count * n or nil
  end
  return {unpack(sizes)}, count
end

local function shape_layer(name)
  local class = layer.define(name)
  function class:init(...) self.sizes, self.count = sizes_of(name, ...) end
  function class:extra_repr() return printed.tuple(self.sizes) end
  return class
end

--- nn.View(a, b, …): x in those sizes. -1 is what is left over; without one, more elements than those sizes have are a
--- batch of them.
local View = shape_layer "View"

--- How many dims a sample has: an input of one more is a batch, though sizes have a -1. Gives the layer.
function View:setNumInputDims(n)
  self.nInputDims = options.arg("setNumInputDims", "n", n, "count")
  return self
end

function View:forward(x)
  local n = input_of(self, x):numel()
  local batch = self.nInputDims and x.ndim > self.nInputDims
    or self.count and self.count > 0 and n ~= self.count and n % self.count == 0
  if not batch then return ops.reshape(x, self.sizes) end
  return ops.reshape(x, {self.count and -1 or x:size(1), unpack(self.sizes)})
end

--- nn.Reshape(a, b, … [, batch]): x in those sizes. With `batch` true the first dim stays before them, with false it
--- does not; without it, it does where x has more elements than those sizes, or a first dim of 1.
local Reshape = shape_layer "Reshape"

function Reshape:init(...)
  local given = {...}
  if type(given[#given]) == "boolean" then self.batch = table.remove(given) end
  self.sizes, self.count = sizes_of("Reshape", unpack(given))
end

function Reshape:forward(x)
  input_of(self, x)
  local batch = self.batch
  if batch == nil and self.count then
    batch = x:numel() ~= self.count or x.ndim > 0 and x:size(1) == 1 and self.sizes[1] ~= 1
  end
  return ops.reshape(x, batch and {x:size(1), unpack(self.sizes)} or self.sizes)
end

--- nn.Transpose({a, b}, …): each pair of dims exchanged, one after the other.
local Transpose = layer.define("Transpose")

function Transpose:init(...)
  self.pairs = {...}
  for i, pair in ipairs(self.pairs) do
    if not options.is_plain(pair) or #pair ~= 2 then
      fail("Transpose: argument %d has to be a pair of dims, {1, 2}, got %s", i, options.describe(pair))
    end
    for k = 1, 2 do options.arg("Transpose", "dim " .. k, pair[k], "integer") end
  end
end

function Transpose:forward(x)
  for _, pair in ipairs(self.pairs) do x = ops.transpose(x, pair[1], pair[2]) end
  return x
end

local function on_dim(name, op, more, help)
  entry(name) {
    takes = more, prints = "dim={dim}", help = help,
    forward = function(self, x) return op(input_of(self, x), dim_in(self, x), self) end,
  }
end
on_dim("Select", function(x, dim, self) return ops.select(x, dim, self.index) end,
  {{"dim", "integer"}, {"index", "integer"}}, "x's entry at index along dim")
on_dim("Narrow", function(x, dim, self)
  local length = self.length < 0 and x:size(dim) - self.offset + 2 + self.length or self.length
  return ops.narrow(x, dim, self.offset, length)
end, {{"dim", "integer"}, {"offset", "count"}, {"length", "integer", 1}},
  "x's entries from offset on along dim, `length` of them; -1: all that follow")
on_dim("Unsqueeze", function(x, dim) return ops.unsqueeze(x, dim) end, {{"dim", "integer"},
  {"nInputDims", "count?"}}, "a dim of size 1 more, before dim")
entry "Squeeze" {
  takes = {{"dim", "integer?"}, {"nInputDims", "count?"}}, prints = "dim={dim}",
  help = "x without its dims of size 1, or without that one",
  forward = function(self, x)
    if self.dim then return ops.squeeze(input_of(self, x), dim_in(self, x)) end
    return ops.squeeze(input_of(self, x))
  end,
}

on_dim("Mean", function(x, dim) return ops.mean(x, dim) end, {{"dim", "integer", 1}, {"nInputDims", "count?"}},
  "the mean along dim, which goes")
on_dim("Sum", function(x, dim, self)
  local y = ops.sum(x, dim)
  return self.sizeAverage and ops.div(y, x:size(dim)) or y
end, {{"dim", "integer", 1}, {"nInputDims", "count?"}, {"sizeAverage", "boolean", false}},
  "the sum along dim, which goes; with sizeAverage the mean")
on_dim("Max", function(x, dim) return (core.max(x, dim)) end, {{"dim", "integer", 1}, {"nInputDims", "count?"}},
  "the largest along dim, which goes")
on_dim("Min", function(x, dim) return (core.min(x, dim)) end, {{"dim", "integer", 1}, {"nInputDims", "count?"}},
  "the smallest along dim, which goes")

-- ---- constants

entry "AddConstant" {takes = {{"constant", "number"}}, call = ops.add, prints = "{constant}", help = "x + constant"}
entry "MulConstant" {takes = {{"constant", "number"}}, call = ops.mul, prints = "{constant}", help = "x * constant"}

local classes = layer.classes(list)
classes.Concat, classes.ConcatTable, classes.ParallelTable = Concat, ConcatTable, ParallelTable
classes.View, classes.Reshape, classes.Transpose = View, Reshape, Transpose
return classes

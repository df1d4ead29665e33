--- Torch7's layers that take or give tables of tensors. Dims count from 1, or from -1 at the end; where Torch7 has
--- nInputDims, an input of one dim more is a batch, and dim is meant in its samples.
local core = require "luminary.core"
local copy_list = require "luminary.base.copy_list"
local options = require "luminary.base.options"
local containers = require "luminary.nn.containers"
local layer = require "luminary.nn.define_layer"
local sample = require "luminary.nn.sample_dims"

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

-- ---- containers

local Numbered = containers.Sequential.super

--- nn.Concat(dim, a, b, …): Calls modules with the same input and concatenates their results along dim.
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

--- nn.ConcatTable(a, b, …): Calls modules with the same input; returns a table of their results.
local ConcatTable = layer.define("ConcatTable", Numbered)

function ConcatTable:forward(x)
  local out = {}
  for i, module in self:iter() do out[i] = module(x) end
  return out
end

--- nn.ParallelTable(a, b, …): Calls each module with its entry of a table; returns a table of their results.
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
      return #t == 1 and ops.clone(y) or y
    end,
  }
end
folded("CAddTable", ops.add, "Adds the tensors of a table.")
folded("CMulTable", ops.mul, "Multiplies the tensors of a table by elements.")
folded("CMaxTable", ops.maximum, "Computes the elementwise maximum of the tensors of a table.")
folded("CMinTable", ops.minimum, "Computes the elementwise minimum of the tensors of a table.")
folded("CSubTable", ops.sub, "Subtracts the second tensor of a table from the first.", true)
folded("CDivTable", ops.div, "Divides the first tensor of a table by the second.", true)

-- ---- joining and taking apart

local along = {{"dim", "integer"}, {"nInputDims", "count?"}}

entry "JoinTable" {
  takes = along, prints = "dim={dim}", help = "Concatenates the tensors of a table along dim.",
  forward = function(self, t) return ops.cat(tensors_of(self, t), sample.dim_in(self, t[1])) end,
}
entry "SplitTable" {
  takes = along, prints = "dim={dim}", help = "Returns a table of the input's entries along dim.",
  forward = function(self, x)
    return copy_list(core.methods.unbind(sample.input_of(self, x), sample.dim_in(self, x)))
  end,
}
entry "SelectTable" {
  takes = {{"index", "integer"}}, prints = "index={index}",
  help = "Selects the entry of a table at an index, from 1, or from -1 at the end.",
  forward = function(self, t)
    local i = self.index < 0 and #table_of(self, t) + 1 + self.index or self.index
    local value = table_of(self, t)[i]
    if value == nil then fail("SelectTable: there is nothing at %d of a table of %d", self.index, #t) end
    return value
  end,
}
entry "NarrowTable" {
  takes = {{"offset", "count"}, {"length", "count", 1}}, prints = "offset={offset}, length={length}",
  help = "Returns `length` entries of a table, from offset on.",
  forward = function(self, t)
    local last = self.offset + self.length - 1
    if last > #table_of(self, t) then fail("NarrowTable: entries %d to %d of a table of %d", self.offset, last, #t) end
    return copy_list(t, self.offset, last)
  end,
}

local function flatten(t, into)
  for _, v in ipairs(t) do
    if options.is_plain(v) and not core.is_tensor(v) then flatten(v, into) else into[#into + 1] = v end
  end
  return into
end
entry "FlattenTable" {
  help = "Flattens nested tables into one table.",
  forward = function(self, t) return flatten(table_of(self, t), {}) end,
}

local classes = layer.classes(list)
classes.Concat, classes.ConcatTable, classes.ParallelTable = Concat, ConcatTable, ParallelTable
return classes

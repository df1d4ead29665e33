--- Defines Torch7's layers that take or return tables of tensors. Dims count from 1, or from -1 at the end. With
--- nInputDims an input with one more dim is a batch, and dim counts in its samples.
local core = require "luminary.core"
local lists = require "luminary.base.lists"
local options = require "luminary.base.options"
local containers = require "luminary.nn.containers"
local layer = require "luminary.nn.define_layer"
local sample = require "luminary.torch7.input_dims"

local ops, fail = core.ops, options.fail
local list, entry = layer.entries()

-- Returns t; fails unless it is a table of at least min_count values.
local function table_of(self, t, min_count)
  if not options.is_plain(t) or core.is_tensor(t) then
    options.must_be(self.__name, "the input", "a table, {a, b}", t)
  end
  min_count = min_count or 1
  if #t < min_count then fail("%s: the table has %d entries; expected at least %d", self.__name, #t, min_count) end
  return t
end

-- Returns t, as table_of does; fails unless all values are tensors.
local function tensors_of(self, t, min_count)
  for i, x in ipairs(table_of(self, t, min_count)) do
    if not core.is_tensor(x) then
      options.must_be(self.__name, ("entry %d of the table"):format(i), "a tensor", x)
    end
  end
  return t
end

-- ---- containers

local Numbered = containers.Sequential.super

--- nn.Concat(dim, a, b, …): Calls modules with the same input and concatenates their results along dim.
local Concat = layer.define("Concat", Numbered)

function Concat:init(dim, ...)
  if type(dim) ~= "number" then options.must_be("Concat", "dim", "an integer", dim) end
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
  if #table_of(self, t) ~= self:len() then
    fail("ParallelTable: the table has %d entries; expected %d, one for each module", #t, self:len())
  end
  for i, module in self:iter() do out[i] = module(t[i]) end
  return out
end

-- ---- elementwise over a table

local function folded(name, op, help, two)
  entry(name .. "()") {
    help = help, forward = function(self, t)
      tensors_of(self, t, two and 2)
      if two and #t > 2 then fail("%s: expected two tensors, got %d", name, #t) end
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

entry "JoinTable(dim: integer, nInputDims: count?)" {
  prints = "dim", help = "Concatenates the tensors of a table along dim.",
  forward = function(self, t) return ops.cat(tensors_of(self, t), sample.dim_in(self, t[1])) end,
}
entry "SplitTable(dim: integer, nInputDims: count?)" {
  prints = "dim", help = "Returns a table of the input's entries along dim.",
  forward = function(self, x)
    return lists.slice(core.methods.unbind(sample.input_of(self, x), sample.dim_in(self, x)))
  end,
}
entry "SelectTable(index: integer)" {
  prints = "index",
  help = "Selects the entry of a table at an index, from 1, or from -1 at the end.",
  forward = function(self, t)
    local i = self.index < 0 and #table_of(self, t) + 1 + self.index or self.index
    local value = table_of(self, t)[i]
    if value == nil then options.out_of_range("SelectTable", self.index, #t, "entries") end
    return value
  end,
}
entry "NarrowTable(offset: count, length: count = 1)" {
  prints = "offset length",
  help = "Returns `length` entries of a table, from offset on.",
  forward = function(self, t)
    local last = self.offset + self.length - 1
    if last > #table_of(self, t) then
      fail("NarrowTable: entries %d to %d are out of range for a table of %d", self.offset, last, #t)
    end
    return lists.slice(t, self.offset, last)
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
  forward = function(self, t) return flatten(table_of(self, t), {}) end,
}

local classes = layer.classes(list)
classes.Concat, classes.ConcatTable, classes.ParallelTable = Concat, ConcatTable, ParallelTable
return classes

--- Defines Torch7's layers of shapes, single dims and constants. Dims count from 1, or from -1 at the end. With
--- nInputDims an input with one more dim is a batch, and dim counts in its samples.
local core = require "luminary.core"
local options = require "luminary.base.options"
local layer = require "luminary.nn.define_layer"
local printed = require "luminary.nn.print_values"
local sample = require "luminary.torch7.input_dims"

local ops, fail = core.ops, options.fail
local list, entry = layer.entries()

-- Returns the sizes that were passed to a layer, as numbers or as a list, and their number of elements; nil with a -1.
local function sizes_of(who, ...)
  local sizes, count = {...}, 1
  if #sizes == 1 and type(sizes[1]) == "table" then sizes = sizes[1] end
  if #sizes == 0 then fail("%s: expected sizes, such as nn.%s(-1, 16)", who, who) end
  if #sizes > 8 then fail("%s: expected at most 8 sizes, got %d", who, #sizes) end
  for i, n in ipairs(sizes) do
    options.arg(who, "size " .. i, n, "integer")
    if n < -1 then fail("%s: size %d must be at least 0, or -1 to be inferred, got %d", who, i, n) end
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

--- nn.View(a, b, …): Returns a view of the input with given sizes.
local View = shape_layer "View"

--- Sets the number of dims of a sample: an input with one more dim is a batch. Returns the layer.
function View:setNumInputDims(n)
  self.nInputDims = options.arg("setNumInputDims", "n", n, "count")
  return self
end

function View:forward(x)
  local n = sample.input_of(self, x):numel()
  local batch = self.nInputDims and x.ndim > self.nInputDims
    or self.count and self.count > 0 and n ~= self.count and n % self.count == 0
  if not batch then return ops.reshape(x, self.sizes) end
  return ops.reshape(x, {self.count and -1 or x:size(1), unpack(self.sizes)})
end

--- nn.Reshape(a, b, … [, batch]): Reshapes the input to given sizes.
local Reshape = shape_layer "Reshape"

function Reshape:init(...)
  local given = {...}
  if type(given[#given]) == "boolean" then self.batch = table.remove(given) end
  self.sizes, self.count = sizes_of("Reshape", unpack(given))
end

function Reshape:forward(x)
  sample.input_of(self, x)
  local batch = self.batch
  if batch == nil and self.count then
    batch = x:numel() ~= self.count or x.ndim > 0 and x:size(1) == 1 and self.sizes[1] ~= 1
  end
  return ops.reshape(x, batch and {x:size(1), unpack(self.sizes)} or self.sizes)
end

--- nn.Transpose({a, b}, …): Exchanges pairs of dims, one pair after the other.
local Transpose = layer.define("Transpose")

function Transpose:init(...)
  self.pairs = {...}
  for i, pair in ipairs(self.pairs) do
    if not options.is_plain(pair) or #pair ~= 2 then
      options.must_be("Transpose", ("argument %d"):format(i), "a pair of dims, {1, 2}", pair)
    end
    for k = 1, 2 do options.arg("Transpose", "dim " .. k, pair[k], "integer") end
  end
end

function Transpose:forward(x)
  for _, pair in ipairs(self.pairs) do x = ops.transpose(x, pair[1], pair[2]) end
  return x
end

local function on_dim(text, op, help)
  entry(text) {
    prints = "dim", help = help,
    forward = function(self, x) return op(sample.input_of(self, x), sample.dim_in(self, x), self) end,
  }
end
on_dim("Select(dim: integer, index: integer)", function(x, dim, self) return ops.select(x, dim, self.index) end,
  "Selects the entry at an index along dim.")
on_dim("Narrow(dim: integer, offset: count, length: integer = 1)", function(x, dim, self)
  local length = self.length < 0 and x:size(dim) - self.offset + 2 + self.length or self.length
  return ops.narrow(x, dim, self.offset, length)
end, "Returns `length` entries along dim, from offset on.")
on_dim("Unsqueeze(dim: integer, nInputDims: count?)", function(x, dim) return ops.unsqueeze(x, dim) end,
  "Inserts a dim of size 1 before dim.")
entry "Squeeze(dim: integer?, nInputDims: count?)" {
  prints = "dim",
  help = "Removes the dims of size 1, or one of them.",
  forward = function(self, x)
    if self.dim then return ops.squeeze(sample.input_of(self, x), sample.dim_in(self, x)) end
    return ops.squeeze(sample.input_of(self, x))
  end,
}

on_dim("Mean(dim: integer = 1, nInputDims: count?)", function(x, dim) return ops.mean(x, dim) end,
  "Computes the mean along dim, which is removed.")
on_dim("Sum(dim: integer = 1, nInputDims: count?, sizeAverage = false)", function(x, dim, self)
  local y = ops.sum(x, dim)
  return self.sizeAverage and ops.div(y, x:size(dim)) or y
end, "Computes the sum along dim, which is removed.")
on_dim("Max(dim: integer = 1, nInputDims: count?)", function(x, dim) return (core.max(x, dim)) end,
  "Computes the maximum along dim, which is removed.")
on_dim("Min(dim: integer = 1, nInputDims: count?)", function(x, dim) return (core.min(x, dim)) end,
  "Computes the minimum along dim, which is removed.")

-- ---- constants

entry "AddConstant(constant: number)" {op = "add", prints = "{constant}", help = "Adds a constant."}
entry "MulConstant(constant: number)" {op = "mul", prints = "{constant}", help = "Multiplies by a constant."}

local classes = layer.classes(list)
classes.View, classes.Reshape, classes.Transpose = View, Reshape, Transpose
return classes

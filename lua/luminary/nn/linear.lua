--- Defines Linear, the layer that multiplies by a matrix.
local core = require "luminary.core"
local load_module = require "luminary.base.load_module"
local signature = require "luminary.base.signature"
local layer = require "luminary.nn.define_layer"
local init = require "luminary.nn.initializers"

local ops = core.ops
local linear = {}

--- nn.Linear(…): Applies an affine linear transformation to the last dim of the input.
local Linear = layer.define("Linear", nil, linear)

-- The dims of the weight for nn.parallel.parallelize.
Linear.weight_dims = {output = 1, input = 2}

Linear.init = signature.of([[Linear(in_features: natural, out_features: natural, {bias = true, device,
  dtype: string})]], function(self, in_features, out_features, opts)
  self.in_features = in_features
  self.out_features = out_features
  self.weight = layer.parameter({out_features, in_features}, opts)
  if opts.bias then self.bias = layer.parameter({out_features}, opts) end
  self:reset_parameters()
end)

--- Draws the parameters again, as at construction.
function Linear:reset_parameters() init._layer(self.weight, self.bias) end

function Linear:forward(x) return ops.linear(x, self.weight, self.bias) end

--- Returns an nn.Int8Linear with the same weight, rounded, and bias; lm.quantize calls it.
function Linear:to_int8() return load_module("luminary.nn.int8").Int8Linear(self.weight, self.bias) end

--- Returns an nn.BlockLinear with the same weight, rounded to blocks of a kind, or with these blocks; itself if rows
--- are not divisible into them. lm.quantize calls it.
function Linear:to_blocks(kind, blocks)
  if not load_module("luminary.nn.block_weights").divides(self.in_features, kind) then return self end
  return load_module("luminary.nn.blocks").BlockLinear(blocks or self.weight, kind, self.bias)
end

layer.prints(Linear, "in_features out_features bias")

return linear

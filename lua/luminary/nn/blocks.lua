--- Layers with weights in quantized blocks, as GGUF files store them.
local block_weights = require "luminary.nn.block_weights"
local core = require "luminary.core"
local layer = require "luminary.nn.define_layer"
local parameter = require "luminary.nn.parameter"
local options = require "luminary.base.options"
local signature = require "luminary.base.signature"
local shapes = require "luminary.tensor.shapes"

local ops = core.ops
local blocks = {}

-- Registers the buffer `weight`: blocks of the kind, as they are or made of floats. Returns the numbers of rows and
-- columns that they stand for.
local function set_blocks(self, who, weight, kind)
  local row = block_weights.kind_of(who, kind)
  if weight.ndim ~= 2 or weight.dtype ~= "uint8" and not weight:is_floating_point() then
    options.must_be(who, "weight", "a floating matrix, or one of blocks as uint8", weight)
  end
  if weight.dtype ~= "uint8" then
    weight = weight:detach()
    if not weight:isfinite():all():item() then options.fail("%s: weight must be finite", who) end
    weight = ops.quantize_blocks(weight, kind)
  end
  options.divisible(who, "the number of bytes of a row", weight:size(2), ("that of a %s block"):format(kind), row.bytes)
  self.kind = kind
  self:register_buffer("weight", weight)
  return weight:size(1), weight:size(2) / row.bytes * row.elements
end

--- nn.BlockLinear(…): An nn.Linear with a weight in quantized blocks.
local BlockLinear = layer.define("BlockLinear", nil, blocks)

BlockLinear.init = signature.of("BlockLinear(weight: tensor, kind: string, bias: tensor?)",
  function(self, weight, kind, bias)
    self.out_features, self.in_features = set_blocks(self, "BlockLinear", weight, kind)
    if bias then shapes.check("BlockLinear", "bias", bias, {self.out_features}) end
    if bias then self.bias = parameter.is(bias) and bias or parameter.new(bias) end
  end)

function BlockLinear:forward(x) return ops.block_linear(x, self.weight, self.bias, self.kind) end

layer.prints(BlockLinear, "in_features out_features kind bias")

--- nn.BlockEmbedding(…): An nn.Embedding with a weight in quantized blocks. Its rows are of `dtype`, or of that to
--- which the layer is moved.
local BlockEmbedding = layer.define("BlockEmbedding", nil, blocks)

BlockEmbedding.init = signature.of('BlockEmbedding(weight: tensor, kind: string, {dtype: string = "float32"})',
  function(self, weight, kind, opts)
    self.num_embeddings, self.embedding_dim = set_blocks(self, "BlockEmbedding", weight, kind)
    local like = ops.empty({0}, {dtype = opts.dtype, device = weight.device}) -- to(…) changes its dtype
    self:register_buffer("like", like, {persistent = false})
  end)

function BlockEmbedding:forward(index) return ops.block_rows(index, self.weight, self.kind):to(self.like.dtype) end

layer.prints(BlockEmbedding, "num_embeddings embedding_dim kind")

return blocks

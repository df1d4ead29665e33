--- Layers that multiply by a matrix: Linear, Embedding.
local core = require "luminary.core"
local load_module = require "luminary.base.load_module"
local options = require "luminary.base.options"
local layer = require "luminary.nn.define_layer"
local embedding = require("luminary.nn.functional.embedding").embedding
local init = require "luminary.nn.initializers"
local parameter = require "luminary.nn.parameter"
local printed = require "luminary.nn.print_values"
local rows = require "luminary.nn.embedding_rows"

local ops, arg = core.ops, options.arg
local linear = {}

--- nn.Linear(in_features, out_features [, {bias = true, device, dtype}]): Applies an affine linear
--- transformation to the last dim of the input.
local Linear = layer.define("Linear")
linear.Linear = Linear

Linear.init = layer.takes("Linear", {{"bias", "boolean", true}}, function(self, in_features, out_features, opts)
  self.in_features = arg("Linear", "in_features", in_features, "count")
  self.out_features = arg("Linear", "out_features", out_features, "count")
  self.weight = layer.parameter({out_features, in_features}, opts)
  if opts.bias then self.bias = layer.parameter({out_features}, opts) end
  self:reset_parameters()
end)

--- Parameters (and running values) as when the layer was made; where they are drawn, drawn again.
function Linear:reset_parameters() init._layer(self.weight, self.bias) end

function Linear:forward(x) return ops.linear(x, self.weight, self.bias) end

--- Returns an nn.Int8Linear with the same weight, rounded, and bias; lm.quantize calls it.
function Linear:to_int8() return load_module("luminary.nn.int8").Int8Linear(self.weight, self.bias) end

function Linear:extra_repr()
  return ("in_features=%d, out_features=%d, bias=%s"):format(self.in_features, self.out_features,
    printed.bool(self.bias))
end

--- nn.Embedding(…): A lookup table that stores one vector for each index, from 1.
local Embedding = layer.define("Embedding")
linear.Embedding = Embedding

Embedding.init = layer.takes("Embedding", {
  {"padding_idx", "integer"}, {"max_norm", "positive"}, {"norm_type", "number", 2},
  {"scale_grad_by_freq", "boolean", false}, {"sparse", false, lacks = true}, {"_weight", "tensor"},
  {"_freeze", false, lacks = true},
}, function(self, num_embeddings, embedding_dim, opts)
  self.num_embeddings = arg("Embedding", "num_embeddings", num_embeddings, "count")
  self.embedding_dim = arg("Embedding", "embedding_dim", embedding_dim, "count")
  self.padding_idx = rows.padding("Embedding", opts.padding_idx, num_embeddings)
  self.max_norm, self.norm_type, self.scale_grad_by_freq = opts.max_norm, opts.norm_type, opts.scale_grad_by_freq
  self.how = {padding_idx = self.padding_idx or 0}
  if opts.max_norm or opts.scale_grad_by_freq then
    self.how.max_norm, self.how.norm_type = opts.max_norm, opts.norm_type
    self.how.scale_grad_by_freq = opts.scale_grad_by_freq
  end
  if opts._weight then
    self.weight = parameter.new(opts._weight)
  else
    self.weight = layer.parameter({num_embeddings, embedding_dim}, opts)
    self:reset_parameters()
  end
end)

--- nn.Embedding.from_pretrained(weight [, {freeze = true, …}]): Makes a layer with the given weight, which is not
--- trained unless freeze is false; other options are those of nn.Embedding.
function Embedding.from_pretrained(weight, opts) return rows.from_pretrained(Embedding, weight, opts) end

--- Parameters (and running values) as when the layer was made; where they are drawn, drawn again.
function Embedding:reset_parameters()
  init.normal_(self.weight)
  if self.padding_idx then
    core.no_grad(function() self.weight:select(1, self.padding_idx):zero_() end)
  end
end

function Embedding:forward(index)
  if self.how.norm_type then return embedding(index, self.weight, self.how) end
  return ops.embedding(index, self.weight, self.how)
end

function Embedding:extra_repr()
  local parts = {("%d, %d"):format(self.num_embeddings, self.embedding_dim)}
  if self.padding_idx then parts[#parts + 1] = "padding_idx=" .. self.padding_idx end
  if self.max_norm then parts[#parts + 1] = "max_norm=" .. printed.float(self.max_norm) end
  if self.norm_type ~= 2 then parts[#parts + 1] = "norm_type=" .. printed.float(self.norm_type) end
  if self.scale_grad_by_freq then parts[#parts + 1] = "scale_grad_by_freq=True" end
  return table.concat(parts, ", ")
end

return linear

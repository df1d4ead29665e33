--- Sums, means and maxima of embeddings: EmbeddingBag.
local options = require "luminary.base.options"
local layer = require "luminary.nn.define_layer"
local embedding_bag = require("luminary.nn.functional.embedding").embedding_bag
local Embedding = require("luminary.nn.linear").Embedding
local parameter = require "luminary.nn.parameter"
local printed = require "luminary.nn.print_values"
local rows = require "luminary.nn.embedding_rows"

local arg = options.arg

--- nn.EmbeddingBag(…): Computes sums, means or maxima of bags of embeddings.
local EmbeddingBag = layer.define("EmbeddingBag")

EmbeddingBag.init = layer.takes("EmbeddingBag", {
  {"max_norm", "positive"}, {"norm_type", "number", 2}, {"scale_grad_by_freq", "boolean", false},
  {"mode", {"sum", "mean", "max"}, "mean"}, {"sparse", false, lacks = true}, {"_weight", "tensor"},
  {"include_last_offset", "boolean", false}, {"padding_idx", "integer"},
}, function(self, num_embeddings, embedding_dim, opts)
  self.num_embeddings = arg("EmbeddingBag", "num_embeddings", num_embeddings, "count")
  self.embedding_dim = arg("EmbeddingBag", "embedding_dim", embedding_dim, "count")
  self.padding_idx = rows.padding("EmbeddingBag", opts.padding_idx, num_embeddings)
  self.max_norm, self.norm_type, self.scale_grad_by_freq = opts.max_norm, opts.norm_type, opts.scale_grad_by_freq
  self.mode, self.include_last_offset = opts.mode, opts.include_last_offset
  if opts._weight then
    self.weight = parameter.new(opts._weight)
  else
    self.weight = layer.parameter({num_embeddings, embedding_dim}, opts)
    self:reset_parameters()
  end
end)

--- nn.EmbeddingBag.from_pretrained(weight [, {freeze = true, …}]): Makes a layer with the given weight, which is not
--- trained unless freeze is false; other options are those of nn.EmbeddingBag.
function EmbeddingBag.from_pretrained(weight, opts) return rows.from_pretrained(EmbeddingBag, weight, opts) end

--- Parameters (and running values) as when the layer was made; where they are drawn, drawn again.
EmbeddingBag.reset_parameters = Embedding.reset_parameters

function EmbeddingBag:forward(index, offsets, per_sample_weights)
  return embedding_bag(index, self.weight, {
    offsets = offsets, per_sample_weights = per_sample_weights, max_norm = self.max_norm, norm_type = self.norm_type,
    scale_grad_by_freq = self.scale_grad_by_freq, mode = self.mode, include_last_offset = self.include_last_offset,
    padding_idx = self.padding_idx,
  })
end

function EmbeddingBag:extra_repr()
  local parts = {("%d, %d"):format(self.num_embeddings, self.embedding_dim)}
  if self.max_norm then parts[#parts + 1] = "max_norm=" .. printed.float(self.max_norm) end
  if self.norm_type ~= 2 then parts[#parts + 1] = "norm_type=" .. printed.float(self.norm_type) end
  if self.scale_grad_by_freq then parts[#parts + 1] = "scale_grad_by_freq=True" end
  parts[#parts + 1] = ("mode='%s'"):format(self.mode)
  if self.padding_idx then parts[#parts + 1] = "padding_idx=" .. self.padding_idx end
  return table.concat(parts, ", ")
end

return {EmbeddingBag = EmbeddingBag}

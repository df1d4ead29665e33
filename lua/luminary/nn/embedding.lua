--- Defines layers that look up rows of a matrix: Embedding, EmbeddingBag.
local core = require "luminary.core"
local load_module = require "luminary.base.load_module"
local options = require "luminary.base.options"
local signature = require "luminary.base.signature"
local layer = require "luminary.nn.define_layer"
local functional = require "luminary.nn.functional.embedding"
local meta = require "luminary.nn.meta"
local parameter = require "luminary.nn.parameter"
local printed = require "luminary.nn.print_values"
local padding_row = require "luminary.nn.functional.padding_row"
local shapes = require "luminary.tensor.shapes"

local ops, arg = core.ops, options.arg
local layers = {}

-- Makes a layer of the class with the given weight; opts holds the class's options, and freeze.
local function from_pretrained(class, weight, opts)
  local who = class.__name .. ".from_pretrained"
  shapes.check(who, "weight", options.arg(who, "weight", weight, "tensor"), {"num_embeddings", "embedding_dim"})
  local own = {}
  for name, value in pairs(opts or {}) do own[name] = value end
  local freeze = own.freeze == nil or options.arg(who, "freeze", own.freeze, "boolean")
  own.freeze, own._weight = nil, weight
  local new = class(weight.shape[1], weight.shape[2], own)
  new.weight:requires_grad_(not freeze)
  return new
end

-- Sets the fields of both layers: the matrix, and how its rows are read.
local function set_table(self, who, num_embeddings, embedding_dim, opts)
  self.num_embeddings = arg(who, "num_embeddings", num_embeddings, "count")
  self.embedding_dim = arg(who, "embedding_dim", embedding_dim, "count")
  self.padding_idx = padding_row(who, opts.padding_idx, num_embeddings)
  self.max_norm, self.norm_type, self.scale_grad_by_freq = opts.max_norm, opts.norm_type, opts.scale_grad_by_freq
  if opts._weight then
    self.weight = parameter.new(opts._weight)
  else
    self.weight = layer.parameter({num_embeddings, embedding_dim}, opts)
    self:reset_parameters()
  end
end

-- Returns the text of extra_repr; mode: EmbeddingBag's.
local function fields_text(self, mode)
  local parts = {("%d, %d"):format(self.num_embeddings, self.embedding_dim)}
  local padding = self.padding_idx and "padding_idx=" .. self.padding_idx or nil
  if not mode then parts[2] = padding end
  if self.max_norm then parts[#parts + 1] = "max_norm=" .. printed.float(self.max_norm) end
  if self.norm_type ~= 2 then parts[#parts + 1] = "norm_type=" .. printed.float(self.norm_type) end
  if self.scale_grad_by_freq then parts[#parts + 1] = "scale_grad_by_freq=True" end
  if mode then parts[#parts + 1], parts[#parts + 2] = ("mode='%s'"):format(mode), padding end
  return table.concat(parts, ", ")
end

--- nn.Embedding(…): A lookup table that stores one vector for each index, from 1.
local Embedding = layer.define("Embedding", nil, layers)

-- The dims of the weight for nn.parallel.parallelize.
Embedding.weight_dims = {output = 2, input = 1}

Embedding.init = signature.of([[Embedding(num_embeddings, embedding_dim, {padding_idx: integer, max_norm: positive,
  norm_type = 2, scale_grad_by_freq = false, sparse: lacks = false, _weight: tensor, _freeze: lacks = false, device,
  dtype: string})]], function(self, num_embeddings, embedding_dim, opts)
  set_table(self, "Embedding", num_embeddings, embedding_dim, opts)
  self.how = {padding_idx = self.padding_idx or 0}
  if opts.max_norm or opts.scale_grad_by_freq then
    self.how.max_norm, self.how.norm_type = opts.max_norm, opts.norm_type
    self.how.scale_grad_by_freq = opts.scale_grad_by_freq
  end
end)

--- nn.Embedding.from_pretrained(weight [, {freeze = true, …}]): Makes a layer with the given weight, which is not
--- trained unless freeze is false; other options are those of nn.Embedding.
function Embedding.from_pretrained(weight, opts) return from_pretrained(Embedding, weight, opts) end

--- Draws the parameters again, as at construction.
function Embedding:reset_parameters()
  local padding = self.padding_idx
  meta.fill(self.weight, function(weight)
    weight:normal_()
    if padding then weight:select(1, padding):zero_() end
  end)
end

function Embedding:forward(index)
  if self.how.norm_type then return functional.embedding(index, self.weight, self.how) end
  return ops.embedding(index, self.weight, self.how)
end

--- Returns an nn.BlockEmbedding, as nn.Linear.to_blocks; itself if it has options that change rows.
function Embedding:to_blocks(kind, blocks)
  local divides = load_module("luminary.nn.block_weights").divides(self.embedding_dim, kind)
  if self.how.norm_type or self.padding_idx or not divides then return self end
  return load_module("luminary.nn.blocks").BlockEmbedding(blocks or self.weight, kind, {dtype = self.weight.dtype})
end

function Embedding:extra_repr() return fields_text(self) end

--- nn.EmbeddingBag(…): Computes sums, means or maxima of bags of embeddings.
local EmbeddingBag = layer.define("EmbeddingBag", nil, layers)

EmbeddingBag.init = signature.of([[EmbeddingBag(num_embeddings, embedding_dim, {max_norm: positive, norm_type = 2,
  scale_grad_by_freq = false, mode: "sum" | "mean" | "max" = "mean", sparse: lacks = false, _weight: tensor,
  include_last_offset = false, padding_idx: integer, device,
  dtype: string})]], function(self, num_embeddings, embedding_dim, opts)
  set_table(self, "EmbeddingBag", num_embeddings, embedding_dim, opts)
  self.mode, self.include_last_offset = opts.mode, opts.include_last_offset
end)

--- nn.EmbeddingBag.from_pretrained(weight [, {freeze = true, …}]): Makes a layer with the given weight, which is not
--- trained unless freeze is false; other options are those of nn.EmbeddingBag.
function EmbeddingBag.from_pretrained(weight, opts) return from_pretrained(EmbeddingBag, weight, opts) end

--- Draws the parameters again, as at construction.
EmbeddingBag.reset_parameters = Embedding.reset_parameters

EmbeddingBag.forward = signature.of([[EmbeddingBag(input: tensor, offsets: tensor?,
  per_sample_weights: tensor?)]], function(self, index, offsets, per_sample_weights)
  return functional.embedding_bag(index, self.weight, {
    offsets = offsets, per_sample_weights = per_sample_weights, max_norm = self.max_norm, norm_type = self.norm_type,
    scale_grad_by_freq = self.scale_grad_by_freq, mode = self.mode, include_last_offset = self.include_last_offset,
    padding_idx = self.padding_idx,
  })
end)

function EmbeddingBag:extra_repr() return fields_text(self, self.mode) end

return layers

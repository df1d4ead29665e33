--- Implements padding_idx and from_pretrained of Embedding and EmbeddingBag.
local options = require "luminary.base.options"
local check_shape = require "luminary.tensor.check_shape"

local rows = {}

--- Returns padding_idx as a row from 1 to num_embeddings; nil stays nil.
function rows.padding(who, pad, num_embeddings)
  if not pad then return nil end
  if pad == 0 or math.abs(pad) > num_embeddings then
    options.must_be(who, "padding_idx", ("from 1 to %d"):format(num_embeddings), pad)
  end
  return pad < 0 and num_embeddings + pad + 1 or pad
end

--- Makes a layer of the class with the given weight; opts holds the class's options, and freeze.
function rows.from_pretrained(class, weight, opts)
  local who = class.__name .. ".from_pretrained"
  check_shape(who, "weight", options.arg(who, "weight", weight, "tensor"), {"num_embeddings", "embedding_dim"})
  local own = {}
  for name, value in pairs(opts or {}) do own[name] = value end
  local freeze = own.freeze == nil or options.arg(who, "freeze", own.freeze, "boolean")
  own.freeze, own._weight = nil, weight
  local new = class(weight.shape[1], weight.shape[2], own)
  new.weight:requires_grad_(not freeze)
  return new
end

return rows

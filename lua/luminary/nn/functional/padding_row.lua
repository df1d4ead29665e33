local options = require "luminary.base.options"

--- Returns padding_idx as a row of an embedding, from 1 to num_embeddings; nil stays nil.
return function(who, pad, num_embeddings)
  if not pad then return nil end
  if pad == 0 or math.abs(pad) > num_embeddings then
    options.must_be(who, "padding_idx", ("from 1 to %d"):format(num_embeddings), pad)
  end
  return pad < 0 and num_embeddings + pad + 1 or pad
end

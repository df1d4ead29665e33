local core = require "luminary.core"
local options = require "luminary.base.options"

--- Returns t, the argument `name` of `who`; fails unless it is a tensor with the sizes of a list `shape`, in which a
--- word, such as "N", is any size.
return function(who, name, t, shape)
  local fits = core.is_tensor(t) and t.ndim == #shape
  local sizes = fits and t.shape
  for d, size in ipairs(shape) do fits = fits and (sizes[d] == size or type(size) == "string") end
  if not fits then options.wrong_shape(who, name, t, shape) end
  return t
end

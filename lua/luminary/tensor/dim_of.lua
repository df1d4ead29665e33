local options = require "luminary.base.options"

local arg, describe, fail = options.arg, options.describe, options.fail

--- A dim as a number from 1, of one that counts from 1 or, negative, from the end. x has n dims: its own, and a 0-d
--- tensor one.
return function(who, x, dim, n)
  n = n or math.max(x.ndim, 1)
  arg(who, "dim", dim, "integer")
  if dim == 0 or dim < -n or dim > n then
    fail("%s: there is no dim %d in %s; dims count from 1, or from -1 at the end%s", who, dim, describe(x),
      n < x.ndim and (", here to %d: the last holds pairs"):format(n) or "")
  end
  return dim > 0 and dim or n + 1 + dim
end

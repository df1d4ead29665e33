local options = require "luminary.base.options"

--- Returns a dim as a number from 1; a negative one counts from the end. n is x's number of dims by default, at least
--- 1.
return function(who, x, dim, n)
  n = n or math.max(x.ndim, 1)
  options.arg(who, "dim", dim, "integer")
  if dim == 0 or dim < -n or dim > n then
    local bound = n == 1 and "1 or -1" or ("from 1 to %d or from -%d to -1"):format(n, n)
    options.must_be(who, "dim", bound, dim, "x is %s%s", options.describe(x), n < x.ndim and
      ", whose last dim holds pairs" or "")
  end
  return dim > 0 and dim or n + 1 + dim
end
